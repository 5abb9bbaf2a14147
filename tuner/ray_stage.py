"""The worker's side of a stage on Ray: an actor that holds the stage's process until its outcome was collected."""

from __future__ import annotations

import os
import pickle
import platform
import threading
import time
from dataclasses import replace

import ray.actor

from tuner.dispatch import StageStatus
from tuner.errors import DispatchError
from tuner.processes.stage_process import StageProcess
from tuner.ray_cluster import VERSION, version_error
from tuner.trial import StageTask

UNBEGUN_S = 120.0
"""A driver tells an actor what to run as soon as it has made it; one that is not told was left behind."""

WATCH_INTERVAL_S = 5.0
"""Between two looks of the actor itself; deadlines are kept by the stage's supervisor and do not wait for it."""


class StageActor:
    """Runs one stage in a process below this one. Every call returns at once, but for ``end``.

    An actor whose outcome nobody collects ends itself, so that a search that was given up holds no machine.
    """

    def __init__(self, uncollected_s: float) -> None:
        self._uncollected_s = uncollected_s
        self._lock = threading.Lock()
        self._process: StageProcess | None = None
        self._refused: DispatchError | None = None
        self._wanted_s = time.monotonic()
        self._ended_s: float | None = None
        threading.Thread(target=self._watch, name="uncollected", daemon=True).start()

    def begin(self, version: str, task: bytes) -> None:
        """Start the stage, unless it was started already.

        Args:
            version: Of the tuner that asks.
            task: A ``StageTask``, pickled; a tuner of another version might read it as something else.
        """
        with self._lock:
            self._wanted_s = time.monotonic()
            if version != VERSION:
                self._refused = version_error(platform.node(), {"tuner": VERSION}, {"tuner": version})
            elif self._process is None:
                wanted: StageTask = pickle.loads(task)  # noqa: S301 - from the driver, by way of Ray, which pickles too
                self._process = StageProcess.start(wanted)

    def look(self) -> StageStatus:
        """How the stage is doing.

        Raises:
            StageBugError: It ended by a bug.
        """
        with self._lock:
            self._wanted_s = time.monotonic()
            if self._refused is not None:
                return StageStatus(error=self._refused, node=platform.node())
            return StageStatus() if self._process is None else replace(self._process.poll(), node=platform.node())

    def end(self) -> None:
        """End the stage with all its processes, then this actor; what it held is free only now."""
        with self._lock:
            if self._process is not None:
                self._process.end()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

    def _watch(self) -> None:
        while True:
            time.sleep(min(WATCH_INTERVAL_S, self._uncollected_s / 4))
            with self._lock:
                self._note_end()
                if self._is_left_behind():
                    os._exit(0)  # of the whole worker: only a call of the actor can ask Ray to let it exit

    def _note_end(self) -> None:
        if self._ended_s is None and self._process is not None and self._process.has_ended:
            self._ended_s = time.monotonic()

    def _is_left_behind(self) -> bool:
        """Whether nothing runs and nobody has asked for long. A stage that runs goes on until it ends."""
        unwanted_s = time.monotonic() - self._wanted_s
        if self._process is None:
            return unwanted_s > min(self._uncollected_s, UNBEGUN_S)
        return self._ended_s is not None and unwanted_s > self._uncollected_s < time.monotonic() - self._ended_s
