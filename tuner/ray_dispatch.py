"""Stages on Ray: one named actor per study, stage, key and attempt."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

# Set before Ray is imported: no usage reports, and no warning about accelerators it does not manage.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from tuner.dispatch import StageStatus, timeout_error
from tuner.errors import DispatchError, TunerError, WorkerLostError
from tuner.needs import Needs
from tuner.records import StageKind
from tuner.trial import StageTask, run_stage

logger = logging.getLogger(__name__)

NAMESPACE = "tuner"
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # stages pass a few megabytes; more would only warn about /dev/shm
START_DEADLINE_S = 300.0
"""A worker starts in seconds; one that does not start within minutes waits for something that will not come."""

TIMED_STAGES = frozenset({StageKind.BASELINE, StageKind.MEASURE, StageKind.CERTIFY, StageKind.TRACE})


class StageActor:
    """Runs one stage in its worker process and keeps the outcome until the driver has stored it."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._progress = (0, 0)

    def run(self, task: StageTask) -> bytes | TunerError:
        """The stage's record, or the error of ours that it ended with; any other error is a bug and propagates."""
        self._began_s = time.monotonic()
        try:
            return run_stage(task, self._note_progress)
        except TunerError as error:
            return error

    def status(self) -> tuple[float, int, int]:
        """Seconds since the stage began to run, and finished and total requests."""
        began_s = self._began_s
        return (0.0 if began_s is None else time.monotonic() - began_s, *self._progress)

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = (done, total)


@dataclass(slots=True)
class _Running:
    actor: Any
    outcome: Any
    status: Any
    seen: tuple[float, int, int] = (0.0, 0, 0)
    submitted_s: float = field(default_factory=time.monotonic)


class RayDispatcher:
    """Sends stages to a Ray cluster, or to a local Ray of its own on the loopback interface.

    A timed stage asks for every CPU of a node, so nothing else of this cluster runs beside it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._running: dict[str, _Running] = {}
        self._node_cpus = 1

    def start(self) -> Self:
        """Start or join Ray.

        Raises:
            DispatchError: No Ray answers at the address.
        """
        options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            options |= {
                "address": "local",
                "num_cpus": os.cpu_count(),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_ip_address": "127.0.0.1",
            }
        else:
            options["address"] = self._address
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DispatchError(
                f"no Ray at {self._address or 'this machine'}: {error}", "check --ray-address, and `ray status` there"
            ) from error
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        self._node_cpus = int(max(node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]))
        return self

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``."""

    def capacity(self, needs: Needs) -> int:  # noqa: ARG002
        """See ``Dispatcher.capacity``."""
        return 1

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        if task.name in self._running:
            return
        cpus = self._node_cpus if task.kind in TIMED_STAGES else 1
        # max_concurrency 2: one thread runs the stage, the other answers `status`.
        remote: Any = ray.remote(StageActor)
        actor = remote.options(
            name=task.name,
            get_if_exists=True,
            num_cpus=cpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,
        ).remote()
        self._running[task.name] = _Running(actor, actor.run.remote(task), actor.status.remote())
        logger.info("stage %s submitted", task.name)

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        if task.name not in self._running:
            raise DispatchError(f"stage {task.name} was never submitted")
        running = self._running[task.name]
        try:
            if ray.wait([running.outcome], timeout=0)[0]:
                outcome = ray.get(running.outcome)
                is_error = isinstance(outcome, TunerError)
                return StageStatus(error=outcome) if is_error else StageStatus(result=outcome)
            if ray.wait([running.status], timeout=0)[0]:
                running.seen = ray.get(running.status)
                running.status = running.actor.status.remote()
        except ActorUnavailableError:  # not death: the next look tells
            running.status = running.actor.status.remote()
        except (ActorDiedError, RayActorError) as error:
            return StageStatus(error=_lost_error(task, error))
        except RayTaskError as error:  # a bug of ours in the worker, with the worker's traceback
            raise error.as_instanceof_cause() from error  # type: ignore[no-untyped-call]
        ran_s, done, total = running.seen
        if ran_s > task.deadline_s:
            self.forget(task)
            return StageStatus(error=timeout_error(task))
        if ran_s == 0 and time.monotonic() - running.submitted_s > START_DEADLINE_S:
            self.forget(task)
            return StageStatus(error=self._never_started(task))
        return StageStatus(done=done, total=total)

    def _never_started(self, task: StageTask) -> DispatchError:
        free = ray.available_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
        return DispatchError(
            f"stage {task.kind} of {task.config.speculation.label} was not started within {START_DEADLINE_S:.0f} s: "
            f"it needs up to {self._node_cpus} CPUs of one node, {free:.0f} are free in the cluster",
            "see what holds them with `ray status`, or use another --ray-address",
        )

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        running = self._running.pop(task.name, None)
        if running is not None:
            ray.kill(running.actor, no_restart=True)

    def close(self) -> None:
        """See ``Dispatcher.close``."""
        if ray.is_initialized():
            for running in self._running.values():
                ray.kill(running.actor, no_restart=True)
            ray.shutdown()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lost_error(task: StageTask, error: Exception) -> WorkerLostError:
    return WorkerLostError(
        f"the worker of stage {task.kind} of {task.config.speculation.label} died: {str(error).splitlines()[0]}",
        "it is run again; if it dies each time, look for the kernel's out-of-memory message (dmesg)",
    )
