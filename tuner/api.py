"""The composition root: turns options into a plan, opens what a search needs, and runs it.

The CLI and ``tuner.search`` both come in here; it alone knows the concrete store and dispatchers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tuner.dispatch import Dispatcher, InlineDispatcher
from tuner.doctor.installation import devices_here
from tuner.driver import PredictedStudy, Search, SearchResult, new_study
from tuner.errors import ConfigurationError
from tuner.estimate import PlanDescription, describe_search
from tuner.hardware import read_hardware
from tuner.lookup import did_you_mean
from tuner.objective import further_loads
from tuner.observer import Observer, SilentObserver
from tuner.plan import SearchPlan
from tuner.planning import (
    CheckedSearch,
    check_search,
    objectives_of,
    read_space_of,
    read_workload_of,
    sampler_name,
)
from tuner.provenance import collect_provenance
from tuner.search_options import SearchOptions, check_options, most_configurations
from tuner.settings import Settings, read_settings
from tuner.stop_signal import StopSignal
from tuner.stored import StoredStudy, read_study
from tuner.study import TrialLedger, close_optuna_storage, open_optuna_storage

PATIENCE_S = 600.0
"""A database that cannot be reached meanwhile, as a server that is restarted, stops no search."""


def plan_search(options: SearchOptions, settings: Settings | None = None) -> SearchPlan:
    """Read and check everything that a search needs, before anything is spent.

    Models that are not here yet are fetched.

    Raises:
        InputError: Something that a person wrote cannot be used.
        DownloadError: A model could not be fetched.
        EngineError: The engine refuses the target or a draft.
    """
    return _checked(options, settings or read_settings()).plan()


def _checked(options: SearchOptions, settings: Settings) -> CheckedSearch:
    check_options(options, tuple(_DISPATCHERS))
    return check_search(options, settings)


def describe_plan(options: SearchOptions, settings: Settings | None = None) -> PlanDescription:
    """What ``run_search`` would do, how long it would take and how much disk; fetches and starts nothing.

    Where all models are here, everything that would stop the search before its first stage is found now.

    Raises:
        InputError: Something that a person wrote cannot be used.
        EngineError: The engine refuses the target or a draft.
    """
    settings = settings or read_settings()
    check_options(options, tuple(_DISPATCHERS))
    workload = read_workload_of(options)
    objectives = objectives_of(options, workload)
    sampler_name(options.sampler)
    description = describe_search(
        target=options.target or settings.default_target,
        workload=workload,
        loads=further_loads(objectives),
        space=read_space_of(options),
        max_trials=most_configurations(options),
        settings=settings,
        certify_loads=options.certify_loads,
        hardware=read_hardware(options.hardware),
        parallel=options.parallel,
        is_cluster=options.ray_address is not None,
        price_per_hour=options.price_per_hour,
        artifacts=options.artifacts,
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
    from tuner_storage import making_tables, open_store, optuna_url, study_lock

    settings, observer = settings or read_settings(), observer or SilentObserver()
    checked = _checked(options, settings)
    url = options.storage or settings.storage_url
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        starting = pool.submit(_start_dispatcher, checked)  # Ray takes seconds; models are read meanwhile
        stack.callback(_close_started, starting)
        plan = checked.plan()
        store = stack.enter_context(closing(open_store(url, patience_s=PATIENCE_S, on_wait=observer.notice)))
        lock = stack.enter_context(study_lock(store, plan.name))
        provenance = {**collect_provenance(), "dispatch": options.dispatch, "ray_address": options.ray_address}
        store.add_study(new_study(plan, provenance))  # other settings are refused before Optuna's study is touched
        store.withdraw_stop(plan.name)
        with making_tables(store):
            storage = open_optuna_storage(optuna_url(url), store.patience)
        stack.callback(close_optuna_storage, storage)
        ledger = TrialLedger.open(storage, plan.name, plan.space, plan.objectives, store.patience)
        stop = StopSignal(observer, lambda: store.stop_asked(plan.name), lock.renew)
        stack.enter_context(stop.hearing())
        yield Search(plan, store, ledger, starting.result(), observer, provenance, stop_asked=stop.asked)


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
        DispatchError: The cluster cannot be joined.
    """
    from tuner.ray_cleanup import end_stages as end

    return end(address, study_name)


def _start_ray(checked: CheckedSearch) -> Dispatcher:
    from tuner.ray_dispatch import RayDispatcher

    hardware, options = checked.draft.hardware, checked.options
    return RayDispatcher(
        options.ray_address,
        wait_for_nodes_s=hardware.wait_for_nodes_s if options.wait_for_nodes_s is None else options.wait_for_nodes_s,
        pin_to_one_node=checked.needs_one_machine,
        devices=devices_here(hardware.device, hardware.devices_per_machine),
    ).start()


def _start_local(checked: CheckedSearch) -> Dispatcher:
    from tuner.local_dispatch import LocalDispatcher

    hardware = checked.draft.hardware
    return LocalDispatcher(devices=devices_here(hardware.device, hardware.devices_per_machine))


def _start_inline(_checked: CheckedSearch) -> Dispatcher:
    return InlineDispatcher()


_DISPATCHERS: Mapping[str, Callable[[CheckedSearch], Dispatcher]] = {
    "ray": _start_ray,
    "local": _start_local,
    "inline": _start_inline,
}


def _start_dispatcher(checked: CheckedSearch) -> Dispatcher:
    return _DISPATCHERS[checked.options.dispatch](checked)
