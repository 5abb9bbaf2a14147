"""Machines on a clock of their own: the driver's real policy, with stages that take as long as they are told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from tuner.dispatch import StageStatus
from tuner.errors import TunerError, WorkerLostError
from tuner.needs import Needs
from tuner.records import StageKind
from tuner.testing.fakes import FakeClock
from tuner.trial import StageTask, run_stage


@dataclass(slots=True)
class Machine:
    """What one machine has left."""

    cpus: int
    devices: int = 0
    name: str = "machine"
    free_cpus: int = field(init=False)
    free_devices: int = field(init=False)

    def __post_init__(self) -> None:
        self.free_cpus, self.free_devices = self.cpus, self.devices

    def fits(self, needs: Needs) -> bool:
        """Whether it can run such a stage now."""
        if needs.on_device_host and not self.devices:
            return False
        cpus = self.cpus if needs.num_cpus is None else needs.num_cpus
        return cpus <= self.free_cpus and needs.num_devices <= self.free_devices

    def take(self, needs: Needs, sign: int = 1) -> None:
        """Reserve what a stage needs; ``sign`` -1 gives it back."""
        self.free_cpus -= sign * (self.cpus if needs.num_cpus is None else needs.num_cpus)
        self.free_devices -= sign * needs.num_devices


@dataclass(slots=True)
class Placed:
    """A stage that was submitted; ``machine`` is None while it waits."""

    task: StageTask
    machine: Machine | None = None
    began_s: float = 0.0
    ends_s: float = 0.0
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When a stage ran, and the devices that it held."""

    kind: StageKind
    label: str
    began_s: float
    ended_s: float
    devices: int


class SimulatedCluster:
    """A dispatcher over such machines: first come, first served.

    Attributes:
        ran: Every stage that ended, with its times.
    """

    def __init__(self, machines: Sequence[Machine], duration_s: Callable[[StageTask], float]) -> None:
        self.machines = list(machines)
        self.clock = FakeClock()
        self.ran: list[Interval] = []
        self._duration_s = duration_s
        self._stages: dict[str, Placed] = {}

    def sleep(self, seconds: float) -> None:
        """Let time pass: to the next end of a stage, however far that is."""
        self._place()
        now_s = self.clock.now_s
        ends = [one.ends_s for one in self._stages.values() if one.machine is not None and one.ends_s > now_s]
        self.clock.wait_until(min(ends, default=self.clock.now_s + seconds))

    def lose(self, name: str) -> None:
        """A worker dies."""
        self._stages[name].is_lost = True

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``; every need can be met here."""

    def capacity(self, needs: Needs) -> int:
        """See ``Dispatcher.capacity``."""
        return max(1, sum(self._how_often(machine, needs) for machine in self.machines))

    @staticmethod
    def _how_often(machine: Machine, needs: Needs) -> int:
        empty = Machine(cpus=machine.cpus, devices=machine.devices)
        count = 0
        while empty.fits(needs) and count < machine.cpus:
            empty.take(needs)
            count += 1
        return count

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        self._stages.setdefault(task.name, Placed(task))
        self._place()

    def _place(self) -> None:
        for stage in self._stages.values():
            if stage.machine is not None:
                continue
            machine = next((one for one in self.machines if one.fits(stage.task.needs)), None)
            if machine is not None:
                machine.take(stage.task.needs)
                stage.machine, stage.began_s = machine, self.clock.now_s
                stage.ends_s = self.clock.now_s + self._duration_s(stage.task)

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        stage = self._stages[task.name]
        if stage.machine is None:
            return StageStatus(waiting_for=str(task.needs))
        status = StageStatus(has_started=True, ran_s=self.clock.now_s - stage.began_s, node=stage.machine.name)
        if stage.is_lost:
            return replace(status, error=WorkerLostError(f"the worker of {task.name} died"))
        if self.clock.now_s < stage.ends_s:
            return status
        try:
            return replace(status, result=run_stage(task))
        except TunerError as error:
            return replace(status, error=error)

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        stage = self._stages.pop(task.name, None)
        if stage is None or stage.machine is None:
            return
        stage.machine.take(task.needs, sign=-1)
        self.ran.append(
            Interval(
                kind=task.kind,
                label=task.config.speculation.label,
                began_s=stage.began_s,
                ended_s=min(stage.ends_s, self.clock.now_s),
                devices=task.needs.num_devices,
            )
        )
        self._place()

    def close(self) -> None:
        """See ``Dispatcher.close``."""
        self._stages.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
