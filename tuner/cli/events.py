"""What a search does, as one JSON object per line of stderr, for machines. ``docs/events.md`` has every field."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from tuner.cli.watched import WatchedStage, WatchedStages
from tuner.cli.words import num_prompts
from tuner.documents import finite, trial_document
from tuner.errors import WorkerLostError
from tuner.redact import hide_passwords
from tuner.store import utc_now

if TYPE_CHECKING:
    from tuner.dispatch import StageStatus
    from tuner.observer import Observer
    from tuner.records import StageKind
    from tuner.stopping import Standing
    from tuner.store import TrialRecord
    from tuner.timetable import SearchOutlook
    from tuner.trial import StageTask

PROGRESS_EVERY_S = 5.0
"""Of each stage."""

WAITING_AFTER_S, WAITING_EVERY_S = 10.0, 300.0
"""A stage that waits longer is told, and again after that time, or as it waits for something else."""


@contextmanager
def observing_as_json() -> Iterator[Observer]:
    """An observer that writes to stderr; what others write there meanwhile becomes a notice for each line."""
    observer = EventObserver(sys.stderr)
    with closing(_Notices(observer.notice, sys.stderr)) as notices, redirect_stderr(notices):
        yield observer


def write_notice(text: str) -> None:
    """Say on stderr what a person should know, before or after anything is observed."""
    EventObserver(sys.stderr).notice(text)


class EventObserver:
    """Writes an object per event.

    Args:
        stream: Where to.
        now_s: A clock for durations.
        now: The present moment.
    """

    def __init__(
        self,
        stream: TextIO,
        now_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._stream, self._now_s, self._now = stream, now_s, now
        self._stages = WatchedStages()
        self._expected_s: dict[StageKind, float] = {}

    def stage_began(self, task: StageTask) -> None:
        """Tell that a stage was sent to a worker."""
        self._stages.begin(task, self._now_s())
        self._write("stage_began", **_named(task), total=num_prompts(task), expected_s=self._expected(task))

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """Tell how it is doing, at most every few seconds."""
        now_s = self._now_s()
        stage = self._stages.see(task, status, now_s)
        if stage.is_waiting:
            self._tell_waiting(stage, now_s)
        elif not status.has_ended and stage.say_again(now_s, PROGRESS_EVERY_S):
            self._write(
                "stage_progress",
                **_named(task),
                node=status.node,
                elapsed_s=_rounded(stage.elapsed_s(now_s)),
                expected_s=self._expected(task),
                done=status.done,
                total=status.total or num_prompts(task),
            )

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        """Tell that an attempt is over, and how."""
        self._stages.end(task)
        error = None if status is None else status.error
        self._write(
            "stage_ended",
            **_named(task),
            outcome=_outcome(status),
            node=None if status is None else status.node,
            elapsed_s=None if status is None else _rounded(status.ran_s),
            error=None
            if error is None
            else {"type": type(error).__name__, "message": error.message, "hint": error.hint},
        )

    def trial_ended(self, trial: TrialRecord) -> None:
        """Tell what became of a trial."""
        self._write("trial_ended", **trial_document(trial))

    def standing(self, standing: Standing) -> None:
        """Tell what could still beat the best."""
        told = asdict(standing)
        for name in ("best", "most_promising"):
            told[name] = None if (one := getattr(standing, name)) is None else one.label
        self._write("standing", **told)

    def outlook(self, outlook: SearchOutlook) -> None:
        """Tell how far the search is and when it ends."""
        self._expected_s = dict(outlook.expected_s)
        self._write(
            "outlook",
            trials=outlook.trials,
            most_trials=outlook.most_trials,
            running=outlook.running,
            expected_s={str(kind): _rounded(seconds) for kind, seconds in outlook.expected_s.items()},
            ends_at=None if outlook.ends_at is None else _moment(outlook.ends_at),
        )

    def notice(self, text: str) -> None:
        """Pass it on."""
        self._write("notice", text=text)

    def _tell_waiting(self, stage: WatchedStage, now_s: float) -> None:
        waited_s = stage.elapsed_s(now_s)
        waiting_for = None if stage.status is None else stage.status.waiting_for
        every_s = WAITING_EVERY_S if waiting_for == stage.told_waiting_for else PROGRESS_EVERY_S
        if waited_s < WAITING_AFTER_S or not stage.say_again(now_s, every_s):
            return
        stage.told_waiting_for = waiting_for
        self._write("stage_waiting", **_named(stage.task), waited_s=_rounded(waited_s), waiting_for=waiting_for)

    def _expected(self, task: StageTask) -> float | None:
        seconds = self._expected_s.get(task.kind)
        return None if seconds is None else _rounded(seconds)

    def _write(self, event: str, **fields: Any) -> None:
        told = finite({"event": event, "at": _moment(self._now()), **fields})
        self._stream.write(hide_passwords(json.dumps(told, ensure_ascii=False, allow_nan=False)) + "\n")
        self._stream.flush()


def _named(task: StageTask) -> dict[str, Any]:
    return {
        "kind": str(task.kind),
        "key": task.key,
        "label": task.config.speculation.label,
        "attempt": task.attempt,
    }


def _outcome(status: StageStatus | None) -> str:
    if status is None:
        return "abandoned"
    if status.error is None:
        return "done"
    return "lost" if isinstance(status.error, WorkerLostError) else "failed"


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


class _Notices(io.TextIOBase):
    """A stream whose lines are notices; processes that inherit it write where it stands for."""

    def __init__(self, notice: Callable[[str], None], stands_for: TextIO) -> None:
        super().__init__()
        self._notice, self._stands_for = notice, stands_for
        self._begun = ""

    def fileno(self) -> int:
        """Of the stream that it stands for."""
        return self._stands_for.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Take in text, and pass on the lines that it ends."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._notice(line)
        return len(text)

    def close(self) -> None:
        """Pass on what is left."""
        if self._begun.strip():
            self.write("\n")
        super().close()
