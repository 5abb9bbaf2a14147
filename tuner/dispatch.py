"""Where stages run: what a dispatcher promises, and one that runs them in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from tuner.errors import DispatchError, StageTimeoutError, TunerError
from tuner.needs import Needs
from tuner.trial import StageTask, run_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """How a submitted stage is doing.

    Attributes:
        has_started: Its process runs or ran. A lost stage that never started does not count as an attempt.
        ran_s: Since it began to run, not since it was submitted.
        node: Where it runs or ran, as people know the machine.
        waiting_for: Of one that has not started, what it waits for.
        done: Finished requests, of ``total``; both 0 until it says.
        result: The stage's record as bytes, once it ended well.
        error: Why it ended badly.
        log: What its processes wrote, once it ended; the beginning and the end of a long one.
    """

    has_started: bool = False
    ran_s: float = 0.0
    node: str | None = None
    waiting_for: str | None = None
    done: int = 0
    total: int = 0
    result: bytes | None = None
    error: TunerError | None = None
    log: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the stage ended, well or badly."""
        return self.result is not None or self.error is not None


class StageBugError(Exception):
    """A stage ended by an exception that is not one of ours: a bug. Its text is the traceback of the stage."""


class Dispatcher(Protocol):
    """Sends stages to where they run. A context manager; ``close`` may be called twice.

    A stage that fails with an error of ours ends with it in its status. Any other exception is a bug: ``poll`` raises
    it, with the worker's traceback in its text.
    """

    def check(self, needs: Iterable[Needs]) -> None:
        """Refuse needs that no machine can ever meet, unless machines are awaited.

        Raises:
            UnsatisfiableError: Says what is needed and what each machine offers.
        """
        ...

    def capacity(self, needs: Needs) -> int:
        """How many stages with these needs fit at once on the machines that there are; at least 1."""
        ...

    def submit(self, task: StageTask) -> None:
        """Start a stage, or attach to it where a stage of that name runs already. Does not wait."""
        ...

    def poll(self, task: StageTask) -> StageStatus:
        """How a submitted stage is doing. Does not wait.

        Once its deadline is over, a stage is ended with all its processes and its error is a
        ``StageTimeoutError``; a lost worker gives a ``WorkerLostError``.
        """
        ...

    def forget(self, task: StageTask) -> None:
        """Release an ended stage, after its result is stored; ends one that still runs."""
        ...

    def close(self) -> None:
        """Release everything. Stages end, but for those on a standing cluster, which go on without their driver."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class InlineDispatcher:
    """Runs each stage in this very process, at ``submit``; for debugging and for tests.

    Deadlines are noticed only after the stage ended, and nothing keeps other work off the machine.
    """

    def __init__(self) -> None:
        self._ended: dict[str, StageStatus] = {}

    def check(self, needs: Iterable[Needs]) -> None:
        """Nothing is reserved here; see ``Dispatcher.check``."""

    def capacity(self, needs: Needs) -> int:  # noqa: ARG002
        """One; see ``Dispatcher.capacity``."""
        return 1

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        if task.name in self._ended:
            return
        began_s = time.monotonic()
        try:
            status = StageStatus(result=run_stage(task))
        except TunerError as error:
            status = StageStatus(error=error)
        ran_s = time.monotonic() - began_s
        if ran_s > task.deadline_s:
            status = StageStatus(error=timeout_error(task))
        self._ended[task.name] = replace(status, has_started=True, ran_s=ran_s)

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        if task.name not in self._ended:
            raise DispatchError(f"stage {task.name} was never submitted")
        return self._ended[task.name]

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        self._ended.pop(task.name, None)

    def close(self) -> None:
        """See ``Dispatcher.close``."""
        self._ended.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def timeout_error(task: StageTask) -> StageTimeoutError:
    """The error of a stage that ran past its deadline."""
    return StageTimeoutError(
        f"stage {task.kind} of {task.config.speculation.label} ran longer than its deadline of {task.deadline_s:.0f} s",
        "give --stage-deadline more seconds, or fewer or shorter prompts",
    )
