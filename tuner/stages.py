"""Running one stage to its stored result, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tuner.dispatch import Dispatcher, StageStatus, wait_for
from tuner.errors import DispatchError, EngineError, TunerError, WorkerLostError
from tuner.observer import Observer
from tuner.store import StageRecord, StageState, TrialStore, utc_now
from tuner.trial import StageTask

MAX_ATTEMPTS = 3


class StageRunner:
    """Gives the result of a stage: from the store when it is done, else from a worker.

    A result is stored before the worker may forget it, so a stage that is done never runs again.
    """

    def __init__(self, store: TrialStore, dispatcher: Dispatcher, observer: Observer) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._observer = observer

    def is_done(self, task: StageTask) -> bool:
        """Whether the result is in the store."""
        stored = self._store.stage(task.study_name, task.kind, task.key)
        return stored is not None and stored.result is not None

    def result_of(self, task: StageTask, kept: Callable[[bytes], bytes] = bytes) -> bytes:
        """The stage's result, as bytes.

        Args:
            task: What to run.
            kept: Makes of a worker's result what the stage keeps of it.

        Raises:
            TunerError: Whatever the stage failed with.
            WorkerLostError: Workers are lost again and again.
        """
        stored = self._store.stage(task.study_name, task.kind, task.key)
        if stored is not None and stored.result is not None:
            return stored.result
        for attempt in _attempts(stored):
            row = StageRecord(study_name=task.study_name, kind=task.kind, key=task.key, attempt=attempt)
            self._store.save_stage(row)
            status = _kept(self._wait(replace(task, attempt=attempt)), kept)
            self._store.save_stage(_ended(row, status))
            self._dispatcher.forget(replace(task, attempt=attempt))  # its result is safe; what it held is free again
            if status.result is not None:
                return status.result
            if not isinstance(status.error, WorkerLostError):
                raise status.error or DispatchError(f"stage {task.name} ended without a result")
            self._observer.notice(f"{status.error.message}; attempt {attempt + 1} of {MAX_ATTEMPTS}")
        raise WorkerLostError(
            f"stage {task.kind} of {task.config.speculation.label} lost its worker {MAX_ATTEMPTS} times",
            "the results so far are kept; run the same command again once the machine is well",
        )

    def _wait(self, task: StageTask) -> StageStatus:
        progress = self._observer.stage_began(task)
        try:
            return wait_for(self._dispatcher, task, progress)
        finally:
            self._observer.stage_ended(task)


def _attempts(stored: StageRecord | None) -> Iterator[int]:
    """Attempts of this run: numbered on from those of earlier runs, so that each has a name of its own."""
    first = 0 if stored is None else stored.attempt + 1
    return iter(range(first, first + MAX_ATTEMPTS))


def _kept(status: StageStatus, kept: Callable[[bytes], bytes]) -> StageStatus:
    """The status with what is kept of its result; failed where the result contradicts itself."""
    if status.result is None:
        return status
    try:
        return replace(status, result=kept(status.result))
    except EngineError as error:
        return replace(status, result=None, error=error)


def _ended(row: StageRecord, status: StageStatus) -> StageRecord:
    error: TunerError | None = status.error
    return replace(
        row,
        state=StageState.DONE if error is None else StageState.FAILED,
        ended_at=utc_now(),
        result=status.result,
        error_type=None if error is None else type(error).__name__,
        error=None if error is None else str(error),
    )
