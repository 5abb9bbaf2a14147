"""Stages on their way to a stored result, whatever dies meanwhile.

The order of writing, each time: our row, then Optuna, then the worker may forget. What is done never runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from tuner import errors
from tuner.artifacts import BuiltArtifact
from tuner.dispatch import Dispatcher, StageStatus
from tuner.errors import DispatchError, EngineError, InputError, StageTimeoutError, TunerError, WorkerLostError
from tuner.observer import Observer
from tuner.records import StageKind, from_json
from tuner.store import StageLog, StageRecord, StageState, TrialStore, utc_now
from tuner.trial import StageTask

MAX_ATTEMPTS = 3
"""A stage that lost its worker so often is given up. An attempt that never started to run does not count."""

RETRY_HINT = "--retry-failed tries it again"

ResultT = TypeVar("ResultT")
Work = Generator["Wanted", bytes, ResultT]
"""Something that needs stages: it yields each, is sent its result, or is thrown the error that it ended with."""

StageId = tuple[StageKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A stage that some work waits for.

    Attributes:
        kept: Makes of a worker's result what the stage keeps of it.
        is_anew: It runs although it is done, because what it left behind is gone.
        is_retried: It runs although it failed before, because nothing can be done without it.
    """

    task: StageTask
    kept: Callable[[bytes], bytes] = bytes
    is_anew: bool = False
    is_retried: bool = False


def is_final(error: TunerError) -> bool:
    """Whether it is the configuration that failed, so that trying it again would change nothing."""
    return isinstance(error, (EngineError, StageTimeoutError, InputError))


class StageRunner:
    """Gives each wanted stage its result: from the store when it is done, else from a worker.

    Works that want the same stage share it.
    """

    def __init__(
        self,
        store: TrialStore,
        dispatcher: Dispatcher,
        observer: Observer,
        *,
        scope: str = "",
        retry_failed: bool = False,
    ) -> None:
        self.store = store
        self.dispatcher = dispatcher
        self.observer = observer
        self.scope = scope
        self.retry_failed = retry_failed
        self._running: dict[StageId, StageRun] = {}
        self._ended: dict[StageId, StageRecord] = {}
        self._compiled: set[str] = set()
        self._failed: set[StageId] = set()  # in this run of the search

    def recall(self, study_name: str) -> None:
        """Know the stages that earlier runs of the study have ended."""
        for row in self.store.stages(study_name):
            if row.ended_at is not None:
                self._ended[row.kind, row.key] = row
            if row.kind is StageKind.COMPILE and row.ended_at is not None:
                self._note_compile(self.store.stage(study_name, row.kind, row.key) or row)

    @property
    def ended(self) -> tuple[StageRecord, ...]:
        """Stages of this study that ended, without their results."""
        return tuple(self._ended.values())

    @property
    def worked(self) -> tuple[StageRecord, ...]:
        """Of these, the ones that did their work themselves: compiles that were found are not among them."""
        return tuple(one for one in self.ended if one.kind is not StageKind.COMPILE or one.key in self._compiled)

    @property
    def compiles(self) -> int:
        """Compiles that this study paid for; what was found compiled costs nothing."""
        return len(self._compiled)

    @property
    def running(self) -> Sequence[StageRun]:
        """Stages that have been submitted and have not ended."""
        return tuple(self._running.values())

    def is_done(self, task: StageTask) -> bool:
        """Whether the result is in the store."""
        return self.stored(task) is not None

    def stored(self, task: StageTask) -> bytes | None:
        """The stage's result, if it is in the store."""
        row = self.store.stage(task.study_name, task.kind, task.key)
        return None if row is None else row.result

    def begin(self, wanted: Wanted) -> StageRun:
        """The stage on its way: one that runs already, or a new one, which may have ended at once."""
        stage = (wanted.task.kind, wanted.task.key)
        if stage in self._running:
            return self._running[stage]
        run = StageRun(self, wanted)
        self._running[stage] = run
        run.start()
        return run

    def known(self, wanted: Wanted) -> tuple[StageRecord | None, StageRecord | None]:
        """The stage's own row, and the row whose ending counts as its own; None where it is still to run."""
        task = wanted.task
        own = self.store.stage(task.study_name, task.kind, task.key)
        if wanted.is_anew:
            return own, None
        found = self.store.compile_of(task.key) if task.kind is StageKind.COMPILE else own
        if found is None or found.state is StageState.RUNNING:
            return own, None
        if found.state is StageState.DONE:
            return own, found
        return own, found if self._is_remembered(wanted, found) else None

    def _is_remembered(self, wanted: Wanted, failed: StageRecord) -> bool:
        """Whether a failure stands: the configuration's own, unless it is tried again, which is done once in a run."""
        if wanted.task.kind not in (StageKind.COMPILE, StageKind.MEASURE) or not is_final(stored_error(failed)):
            return False
        return (failed.kind, failed.key) in self._failed or not (self.retry_failed or wanted.is_retried)

    def note_ended(self, row: StageRecord) -> None:
        """Keep account of a stage that ended, well or badly."""
        self._running.pop((row.kind, row.key), None)
        self._ended[row.kind, row.key] = replace(row, result=None)
        if row.state is StageState.FAILED:
            self._failed.add((row.kind, row.key))
        if row.kind is StageKind.COMPILE:
            self._note_compile(row)

    def note_known(self, task: StageTask) -> None:
        """A stage needs no run any more."""
        self._running.pop((task.kind, task.key), None)

    def _note_compile(self, row: StageRecord) -> None:
        if row.result is None or not from_json(BuiltArtifact, row.result).was_found:
            self._compiled.add(row.key)


class StageRun:
    """One stage on its way. ``status`` is what was last seen; ``result`` or ``error`` is set once it ended."""

    def __init__(self, runner: StageRunner, wanted: Wanted) -> None:
        self._runner = runner
        self._wanted = wanted
        self._task = replace(wanted.task, scope=runner.scope)
        self._row: StageRecord | None = None
        self._keeps_row = True
        self._losses = 0
        self.status = StageStatus()
        self.result: bytes | None = None
        self.error: TunerError | None = None

    @property
    def has_started(self) -> bool:
        """Whether it was seen to run."""
        return self.status.has_started

    @property
    def has_ended(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def task(self) -> StageTask:
        """What runs, with the attempt's number."""
        return self._task

    def start(self) -> None:
        """Take the stage from the store, or send it to a worker, where it may run already."""
        own, known = self._runner.known(self._wanted)
        if known is not None:
            self._take(known)
            return
        self._keeps_row = own is None or own.state is not StageState.DONE
        if own is not None:  # one that was running is attached to; after one that ended the next has a name of its own
            self._task = replace(self._task, attempt=own.attempt + (own.state is not StageState.RUNNING))
        self._runner.observer.stage_began(self._task)
        self._submit()

    def look(self) -> bool:
        """Whether the stage ended; does not wait."""
        if self.has_ended:
            return True
        status = self._runner.dispatcher.poll(self._task)
        self.status = status
        self._runner.observer.stage_seen(self._task, status)
        if not status.has_ended:
            return False
        if isinstance(status.error, WorkerLostError):
            return self._lose(status)
        self._end(_kept(status, self._wanted.kept))
        return True

    def abandon(self) -> None:
        """End the stage without a result. Its row says that it runs, so that the next run of the search takes it up."""
        self._runner.dispatcher.forget(self._task)
        self._runner.note_known(self._task)
        self._runner.observer.stage_ended(self._task, None)

    def _submit(self) -> None:
        task = self._task
        if self._keeps_row:
            self._row = StageRecord(
                study_name=task.study_name,
                kind=task.kind,
                key=task.key,
                attempt=task.attempt,
                label=self._label,
            )
            self._runner.store.save_stage(self._row)
        self._runner.dispatcher.submit(task)

    def _lose(self, status: StageStatus) -> bool:
        """Send the stage out again, or give up. Somebody else may have collected a compile and ended its worker."""
        if self._task.kind is StageKind.COMPILE and (known := self._runner.known(self._wanted)[1]) is not None:
            self.abandon()
            self._take(known)
            return True
        self._losses += status.has_started
        if self._losses >= MAX_ATTEMPTS:
            self._end(replace(status, error=self._given_up(status)))
            return True
        if status.log and self._row is not None:
            self._runner.store.save_log(_log_of(self._row, status.log))
        self._runner.dispatcher.forget(self._task)
        if status.has_started and status.error is not None:
            attempts = f"attempt {self._losses + 1} of {MAX_ATTEMPTS}"
            self._runner.observer.notice(f"{status.error.message}; it is run again, {attempts}")
        self._runner.observer.stage_ended(self._task, status)
        self._task = replace(self._task, attempt=self._task.attempt + 1)
        self._runner.observer.stage_began(self._task)
        self._submit()
        return False

    def _take(self, known: StageRecord) -> None:
        """End as an earlier run of the stage did."""
        self._runner.note_known(self._task)
        self.result, self.error = known.result, None if known.result is not None else self._remembered(known)

    def _given_up(self, status: StageStatus) -> WorkerLostError:
        last = "" if status.error is None else f"; the last time: {status.error.message}"
        return WorkerLostError(
            f"stage {self._task.kind} of {self._label} lost its worker {MAX_ATTEMPTS} times{last}",
            "the results so far are kept; run the same command again once the machine is well",
        )

    @property
    def _label(self) -> str:
        return self._task.config.speculation.label

    def _end(self, status: StageStatus) -> None:
        task, now = self._task, utc_now()
        row = replace(
            self._row or StageRecord(study_name=task.study_name, kind=task.kind, key=task.key, attempt=task.attempt),
            state=StageState.DONE if status.error is None else StageState.FAILED,
            started_at=now - timedelta(seconds=status.ran_s),
            ended_at=now,
            node=status.node,
            result=status.result,
            error_type=None if status.error is None else type(status.error).__name__,
            error=None if status.error is None else str(status.error),
        )
        if status.log:
            self._runner.store.save_log(_log_of(row, status.log))
        if self._keeps_row:
            self._runner.store.save_stage(row)
        self._runner.dispatcher.forget(task)  # its result is safe; what it held is free again
        self._runner.note_ended(row)
        self._runner.observer.stage_ended(task, status)
        self.result, self.error = status.result, status.error

    def _remembered(self, row: StageRecord) -> TunerError:
        """The error of a stage that failed before, told once more."""
        error = stored_error(row)
        if row.study_name == self._task.study_name:
            return error
        return type(error)(f"{error.message} (tried in study {row.study_name!r})", error.hint or RETRY_HINT)


def stored_error(row: StageRecord) -> TunerError:
    """The error that a stage failed with, as an exception of its class."""
    kind = getattr(errors, row.error_type or "", DispatchError)
    text = row.error or f"stage {row.kind} failed"
    message, _, hint = text.rpartition("\n") if "\n" in text else (text, "", "")
    error: TunerError = kind(message, hint)
    return error


def _log_of(row: StageRecord, text: str) -> StageLog:
    return StageLog(
        study_name=row.study_name,
        kind=row.kind,
        key=row.key,
        attempt=row.attempt,
        label=row.label,
        node=row.node,
        text=text,
        ended_at=row.ended_at or utc_now(),
    )


def _kept(status: StageStatus, kept: Callable[[bytes], bytes]) -> StageStatus:
    """The status with what is kept of its result; failed where the result contradicts itself."""
    if status.result is None:
        return status
    try:
        return replace(status, result=kept(status.result))
    except EngineError as error:
        return replace(status, result=None, error=error)
