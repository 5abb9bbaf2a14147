"""From options to a plan: everything that a search needs, read and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.artifacts.places import absolute_place
from tuner.engines import Engine, load_engine
from tuner.errors import ConfigurationError
from tuner.estimate import MOST_IN_FLIGHT_OF_REPLAY
from tuner.fitting import FittedWorkload, fit_workload
from tuner.hardware import Hardware, read_hardware
from tuner.lookup import did_you_mean
from tuner.models.fingerprint import model_fingerprint
from tuner.models.resolve import resolve_models
from tuner.objective import Objective, parse_objectives
from tuner.plan import Compiling, SearchPlan
from tuner.samplers import REPLAY, SAMPLER_NAMES, SamplerName, check_sampler
from tuner.search_options import SearchOptions, budget_of, price_per_hour
from tuner.search_space import SearchSpace, read_search_space
from tuner.settings import Settings
from tuner.speculation import content_key
from tuner.store import check_study_name
from tuner.workload import Workload, read_workload

ONE_MACHINE_NOTICE = (
    "what is compiled stays on the machine that compiled it, so that every stage runs on one machine of the cluster; "
    "--artifacts with a place that all machines reach uses the others too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSearch:
    """A search whose settings and models were found to be usable; the models' content has not been read yet.

    Attributes:
        draft: The plan, but for its name and the models' fingerprints.
        places: Folder of each model.
    """

    options: SearchOptions
    engine: Engine
    draft: SearchPlan
    places: Mapping[str, Path]

    @property
    def needs_one_machine(self) -> bool:
        """Whether what is compiled stays on the machine that compiled it."""
        return self.draft.compiling is not None and self.draft.artifact_place.shared is None

    def plan(self) -> SearchPlan:
        """The plan. Reads every model's weights once, to know them again.

        Raises:
            ModelError: A file cannot be read.
            ConfigurationError: The name cannot be one of a study.
        """
        fingerprints = {name: model_fingerprint(folder) for name, folder in self.places.items()}
        plan = replace(self.draft, fingerprints=fingerprints)
        named = replace(plan, name=self.options.name or _study_name(plan, quick=self.options.quick))
        check_study_name(named.name)
        return named


def check_search(options: SearchOptions, settings: Settings) -> CheckedSearch:
    """Find everything that would stop a search before its first stage. Models that are not here yet are fetched.

    Raises:
        InputError: Something that a person wrote cannot be used.
        DownloadError: A model could not be fetched.
        EngineError: The engine refuses the target or a draft.
    """
    workload, space, hardware = read_workload_of(options), read_space_of(options), read_hardware(options.hardware)
    objectives, sampler = objectives_of(options, workload), sampler_name(options.sampler)
    engine = load_engine(space.engine)
    _check_loads(engine, objectives)
    target_name = options.target or settings.default_target
    places = resolve_models((target_name, *_draft_models(space)), settings=settings)
    fitted = fit_workload(workload, places[target_name])
    plan = SearchPlan(
        name="unnamed",
        target_model=str(places[target_name]),
        target_name=target_name,
        draft_folders={name: str(places[name]) for name in _draft_models(space)},
        fingerprints={},
        workload=fitted.workload,
        space=space,
        objectives=objectives,
        cache_dir=str(settings.cache_dir),
        sampler=sampler,
        seed=options.seed,
        epsilon=options.epsilon,
        budget=budget_of(options),
        certify_loads=options.certify_loads,
        margin=options.margin,
        weight_format=options.weight_format,
        num_threads=options.num_threads,
        max_model_len=fitted.max_model_len,
        hardware=hardware,
        deadline_s=options.stage_deadline_s,
        artifacts=_shared_artifacts(options, hardware),
        compiling=_compiling(engine),
        parallel=_most_in_flight(options, sampler),
        retry_failed=options.retry_failed,
        notices=_notices(fitted),
    )
    configs = [plan.config(space.speculation(name, space.num_speculative_tokens.max)) for name in space.choices]
    for config in configs:  # refuse a draft now, not after the baseline was measured
        engine.check(config)
    plan = replace(plan, replay_is_exact=all(engine.replay_is_exact(config) for config in configs))
    checked = CheckedSearch(options=options, engine=engine, draft=plan, places=places)
    if checked.needs_one_machine and options.ray_address is not None:
        return replace(checked, draft=replace(plan, notices=(*plan.notices, ONE_MACHINE_NOTICE)))
    return checked


def _compiling(engine: Engine) -> Compiling | None:
    if not engine.capabilities.needs_compile:
        return None
    return Compiling(key_of=engine.compile_key, loads_at_once=engine.capabilities.loads_at_once)


def _shared_artifacts(options: SearchOptions, hardware: Hardware) -> str | None:
    """As every worker understands it, wherever it was started."""
    stated = options.artifacts or hardware.artifacts
    return None if stated is None else absolute_place(stated)


def _most_in_flight(options: SearchOptions, sampler: SamplerName) -> int | None:
    return options.parallel or (MOST_IN_FLIGHT_OF_REPLAY if sampler == REPLAY else None)


def read_workload_of(options: SearchOptions) -> Workload:
    """The workload with the prompts that are asked for."""
    workload = read_workload(options.workload)
    if options.prompts is not None:
        workload = workload.with_prompts(read_workload(options.prompts).prompts)
    return workload.quick() if options.quick else workload


def read_space_of(options: SearchOptions) -> SearchSpace:
    """The search space with the drafts that are asked for."""
    space = read_search_space(options.space)
    return space.with_drafts(options.drafts) if options.drafts else space


def _draft_models(space: SearchSpace) -> tuple[str, ...]:
    return tuple(draft.model for draft in space.drafts if draft.model is not None)


def _notices(fitted: FittedWorkload) -> tuple[str, ...]:
    names = ", ".join(fitted.left_out[:3]) + ("…" if len(fitted.left_out) > 3 else "")
    count = len(fitted.left_out)
    left_out = f"prompts longer than the target's context are left out: {count} ({names})" if count else None
    return tuple(notice for notice in (left_out, fitted.workload.reuse_notice) if notice is not None)


def objectives_of(options: SearchOptions, workload: Workload) -> tuple[Objective, ...]:
    """What is optimised."""
    return parse_objectives(
        options.objectives, concurrency=workload.concurrency, price_per_hour=price_per_hour(options)
    )


def _check_loads(engine: Engine, objectives: Sequence[Objective]) -> None:
    """Refuse a number of requests in flight that the engine cannot take."""
    most = engine.capabilities.max_num_seqs
    for objective in objectives:
        if objective.load is not None and objective.load > most:
            raise ConfigurationError(
                f"objective {objective.name!r}: engine {engine.name!r} decodes at most {most} requests together",
                f"ask for {most} or fewer in flight",
            )


def sampler_name(text: str) -> SamplerName:
    """The sampler of that name, which can be used here.

    Raises:
        ConfigurationError: There is none.
        EngineNotInstalledError: It needs a package that is not installed.
    """
    for name in SAMPLER_NAMES:
        if name == text:
            check_sampler(name)
            return name
    raise ConfigurationError(f"no sampler named {text!r}", did_you_mean(text, SAMPLER_NAMES))


def _study_name(plan: SearchPlan, *, quick: bool) -> str:
    """The same for the same settings, so that the same command goes on with its study."""
    return f"{plan.workload.name}{'-quick' if quick else ''}-{content_key(dict(plan.spec))[:6]}"
