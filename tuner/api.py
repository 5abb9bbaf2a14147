"""The composition root: turns options into a plan, opens what a search needs, and runs it.

The CLI and ``tuner.search`` both come in here; it alone knows the concrete store and dispatchers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tuner.dispatch import Dispatcher, InlineDispatcher
from tuner.driver import PredictedStudy, Search, SearchResult, new_study
from tuner.engines import Engine, load_engine
from tuner.errors import ConfigurationError, DispatchError
from tuner.estimate import PlanDescription, describe_search
from tuner.fitting import FittedWorkload, fit_workload
from tuner.lookup import did_you_mean
from tuner.models.fingerprint import model_fingerprint
from tuner.models.resolve import resolve_models
from tuner.objective import Objective, further_loads, parse_objectives
from tuner.observer import Observer
from tuner.plan import STAGE_DEADLINE_S, SearchPlan
from tuner.provenance import collect_provenance
from tuner.samplers import SAMPLER_NAMES, SamplerName, check_sampler
from tuner.search_options import SearchOptions, budget_of, check_options, most_configurations, price_per_hour
from tuner.search_space import SearchSpace, read_search_space
from tuner.settings import Settings, read_settings
from tuner.speculation import content_key
from tuner.store import check_study_name
from tuner.stored import StoredStudy, read_study
from tuner.study import TrialLedger, open_optuna_storage
from tuner.workload import Workload, read_workload


def plan_search(options: SearchOptions, settings: Settings | None = None) -> SearchPlan:
    """Read and check everything that a search needs, before anything is spent.

    Models that are not here yet are fetched.

    Raises:
        InputError: Something that a person wrote cannot be used.
        DownloadError: A model could not be fetched.
        EngineError: The engine refuses the target or a draft.
    """
    settings = settings or read_settings()
    check_options(options, tuple(_DISPATCHERS))
    workload, space = _read_workload(options), _read_space(options)
    objectives = _objectives(options, workload)
    sampler = _sampler_name(options.sampler)
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
        fingerprints={name: model_fingerprint(folder) for name, folder in places.items()},
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
        deadline_s=options.stage_deadline_s or STAGE_DEADLINE_S,
        notices=_notices(fitted),
    )
    configs = [plan.config(space.speculation(name, space.num_speculative_tokens.max)) for name in space.choices]
    for config in configs:  # refuse a draft now, not after the baseline was measured
        engine.check(config)
    plan = replace(plan, replay_is_exact=all(engine.replay_is_exact(config) for config in configs))
    named = replace(plan, name=options.name or _study_name(plan, quick=options.quick))
    check_study_name(named.name)
    return named


def describe_plan(options: SearchOptions, settings: Settings | None = None) -> PlanDescription:
    """What ``run_search`` would do, how long it would take and how much disk; fetches and starts nothing.

    Where all models are here, everything that would stop the search before its first stage is found now.

    Raises:
        InputError: Something that a person wrote cannot be used.
        EngineError: The engine refuses the target or a draft.
    """
    settings = settings or read_settings()
    check_options(options, tuple(_DISPATCHERS))
    workload = _read_workload(options)
    objectives = _objectives(options, workload)
    _sampler_name(options.sampler)
    description = describe_search(
        target=options.target or settings.default_target,
        workload=workload,
        loads=further_loads(objectives),
        space=_read_space(options),
        max_trials=most_configurations(options),
        settings=settings,
        certify_loads=options.certify_loads,
    )
    if not all(model.is_ready for model in description.models):
        return description
    plan = plan_search(options, settings)
    return replace(description, study=plan.name, notices=plan.notices)


def open_result(name: str | None = None, storage: str | None = None) -> StoredStudy:
    """A study from the database, finished or not; without a name the newest one that has a verdict.

    Raises:
        NotFoundError: There is none.
    """
    from tuner_storage import open_store

    is_own = storage is None  # one's own database may not be there yet, one that was named must be
    store = open_store(read_settings(storage_url=storage).storage_url, create=is_own)
    try:
        return read_study(store, name)
    finally:
        store.close()


def run_search(
    options: SearchOptions, observer: Observer | None = None, settings: Settings | None = None
) -> SearchResult:
    """Plan a search and run it to its verdict, or go on with it where it was interrupted."""
    with _opened(options, observer, settings) as search_to_run:
        return search_to_run.run()


def run_prediction(
    options: SearchOptions, observer: Observer | None = None, settings: Settings | None = None
) -> PredictedStudy:
    """Run only the baseline and the traces, and predict every configuration; a search with these options goes on."""
    with _opened(options, observer, settings) as search_to_run:
        return search_to_run.predict()


@contextmanager
def _opened(
    options: SearchOptions, observer: Observer | None = None, settings: Settings | None = None
) -> Iterator[Search]:
    from tuner_storage import open_store, optuna_url, study_lock

    settings = settings or read_settings()
    plan = plan_search(options, settings)
    url = options.storage or settings.storage_url
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(url)))
        stack.enter_context(study_lock(store, plan.name))
        provenance = collect_provenance()
        store.add_study(new_study(plan, provenance))  # other settings are refused before Optuna's study is touched
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        starting = pool.submit(_start_dispatcher, options)  # Ray takes seconds; Optuna opens its study meanwhile
        stack.callback(_close_started, starting)
        storage = open_optuna_storage(optuna_url(url))
        ledger = TrialLedger.open(storage, plan.name, plan.space, plan.objectives)
        yield Search(plan, store, ledger, starting.result(), observer, provenance)


def _close_started(starting: Future[Dispatcher]) -> None:
    if starting.exception() is None:
        starting.result().close()


def search(workload: str, observer: Observer | None = None, **options: Any) -> SearchResult:
    """Find out whether, and how, speculation pays off for a workload.

    Args:
        workload: Name of a shipped workload, or a YAML or JSONL file.
        observer: Hears the progress.
        **options: The other fields of ``SearchOptions``.

    Raises:
        ConfigurationError: An option that does not exist, or a value of another type.
        TunerError: As ``plan_search`` and ``Search.run`` say.
    """
    return run_search(_typed("search", {"workload": workload, **options}), observer)


def predict(workload: str, observer: Observer | None = None, **options: Any) -> PredictedStudy:
    """Predict every configuration for a workload: only no speculation is run, and each draft along its outputs.

    A search with the same options goes on from there.

    Args:
        workload: Name of a shipped workload, or a YAML or JSONL file.
        observer: Hears the progress.
        **options: The other fields of ``SearchOptions``.

    Raises:
        ConfigurationError: An option that does not exist, or a value of another type.
        TunerError: As ``plan_search`` and ``Search.predict`` say.
    """
    return run_prediction(_typed("predict", {"workload": workload, **options}), observer)


def _typed(function: str, options: Mapping[str, Any]) -> SearchOptions:
    """The options with the types that they have on a command line; paths may be ``Path``."""
    known = SearchOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ConfigurationError(f"{function}() has no option {name!r}", did_you_mean(name, tuple(known)))
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    try:
        return TypeAdapter(SearchOptions).validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, reason = first["loc"][0], first["msg"].removeprefix("Input ")
        raise ConfigurationError(
            f"{function}(): {field} {reason}, found {first['input']!r}", "see help(tuner.SearchOptions)"
        ) from error

def end_stages(address: str, study_name: str) -> int:
    """End what a study has left on a standing cluster where no driver runs it; how many stages that were.

    Without this they end by themselves, because nobody collects their results.

    Raises:
        DispatchError: The cluster cannot be reached.
    """
    raise DispatchError(
        f"stages of {study_name!r} on {address} cannot be ended without their driver yet",
        "they end by themselves, because nobody collects their results",
    )


def _start_ray(options: SearchOptions) -> Dispatcher:
    from tuner.ray_dispatch import RayDispatcher

    return RayDispatcher(options.ray_address).start()


def _start_inline(_options: SearchOptions) -> Dispatcher:
    return InlineDispatcher()


_DISPATCHERS: Mapping[str, Callable[[SearchOptions], Dispatcher]] = {"ray": _start_ray, "inline": _start_inline}


def _start_dispatcher(options: SearchOptions) -> Dispatcher:
    return _DISPATCHERS[options.dispatch](options)


def _read_workload(options: SearchOptions) -> Workload:
    workload = read_workload(options.workload)
    if options.prompts is not None:
        workload = workload.with_prompts(read_workload(options.prompts).prompts)
    return workload.quick() if options.quick else workload


def _read_space(options: SearchOptions) -> SearchSpace:
    space = read_search_space(options.space)
    return space.with_drafts(options.drafts) if options.drafts else space


def _draft_models(space: SearchSpace) -> tuple[str, ...]:
    return tuple(draft.model for draft in space.drafts if draft.model is not None)


def _notices(fitted: FittedWorkload) -> tuple[str, ...]:
    names = ", ".join(fitted.left_out[:3]) + ("…" if len(fitted.left_out) > 3 else "")
    count = len(fitted.left_out)
    left_out = f"prompts longer than the target's context are left out: {count} ({names})" if count else None
    return tuple(notice for notice in (left_out, fitted.workload.reuse_notice) if notice is not None)


def _objectives(options: SearchOptions, workload: Workload) -> tuple[Objective, ...]:
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


def _sampler_name(text: str) -> SamplerName:
    for name in SAMPLER_NAMES:
        if name == text:
            check_sampler(name)
            return name
    raise ConfigurationError(f"no sampler named {text!r}", did_you_mean(text, SAMPLER_NAMES))


def _study_name(plan: SearchPlan, *, quick: bool) -> str:
    """The same for the same settings, so that the same command goes on with its study."""
    return f"{plan.workload.name}{'-quick' if quick else ''}-{content_key(dict(plan.spec))[:6]}"
