"""Machines on a clock of their own: the driver's real policy, with stages that take as long as they are told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from tuner.dispatch import StageStatus, timeout_error
from tuner.errors import DispatchError, TunerError, UnsatisfiableError, WorkerLostError
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
        return self.serves(needs) and self._cpus(needs) <= self.free_cpus and needs.num_devices <= self.free_devices

    def serves(self, needs: Needs) -> bool:
        """Whether it can run such a stage while it runs nothing else."""
        has_device = self.devices > 0 or not needs.on_device_host
        return has_device and self._cpus(needs) <= self.cpus and needs.num_devices <= self.devices

    def take(self, needs: Needs, sign: int = 1) -> None:
        """Reserve what a stage needs; ``sign`` -1 gives it back."""
        self.free_cpus -= sign * self._cpus(needs)
        self.free_devices -= sign * needs.num_devices

    def _cpus(self, needs: Needs) -> int:
        return self.cpus if needs.num_cpus is None else needs.num_cpus


@dataclass(slots=True)
class Placed:
    """A stage that was submitted; ``machine`` is None while it waits."""

    task: StageTask
    machine: Machine | None = None
    began_s: float = 0.0
    ends_s: float = 0.0
    ended: StageStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When a stage ran, and the devices that it held."""

    kind: StageKind
    label: str
    began_s: float
    ended_s: float
    devices: int


class SimulatedCluster:
    """A dispatcher over such machines. First come, first served: what waits is overtaken only by what it can spare.

    Attributes:
        ran: Every stage that ran, with its times.
    """

    def __init__(self, machines: Sequence[Machine], duration_s: Callable[[StageTask], float]) -> None:
        self.machines = list(machines)
        self.clock = FakeClock()
        self.ran: list[Interval] = []
        self._duration_s = duration_s
        self._stages: dict[str, Placed] = {}

    @property
    def running(self) -> tuple[Placed, ...]:
        """Stages that hold a machine now."""
        return tuple(one for one in self._stages.values() if one.machine is not None)

    def sleep(self, seconds: float) -> None:
        """Let time pass: to the next end of a stage, however far that is."""
        now_s = self.clock.now_s
        ends = [one.ends_s for one in self.running if one.ends_s > now_s]
        self.clock.wait_until(min(ends, default=now_s + seconds))

    def lose(self, name: str) -> None:
        """The worker of a stage dies, or, of one that waits, is preempted before it begins."""
        stage = self._stages[name]
        lost = WorkerLostError(f"the worker of {name} died")
        stage.ended = replace(self._status(stage), error=lost)

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``."""
        for one in needs:
            if not any(machine.serves(one) for machine in self.machines):
                raise UnsatisfiableError(f"no machine offers {one}", "add one")

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
        if task.name not in self._stages:
            self._stages[task.name] = Placed(task)
            self._place()

    def _place(self) -> None:
        """Give machines to what waits; what finds none has one set aside, which nothing behind it may fill up."""
        aside: list[tuple[Machine, Needs]] = []
        for stage in self._stages.values():
            if stage.machine is not None or stage.ended is not None:
                continue
            needs = stage.task.needs
            if any(needs == others for _, others in aside):  # they wait before it
                continue
            machine = next((one for one in self.machines if one.fits(needs)), None)
            if machine is not None:
                machine.take(needs)
                stage.machine, stage.began_s = machine, self.clock.now_s
                stage.ends_s = self.clock.now_s + self._duration_s(stage.task)
                continue
            wanted = max((one for one in self.machines if one.serves(needs)), key=lambda one: one.free_cpus)
            wanted.take(needs)
            aside.append((wanted, needs))
        for machine, needs in aside:
            machine.take(needs, sign=-1)

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        stage = self._stages.get(task.name)
        if stage is None:
            raise DispatchError(f"stage {task.name} was never submitted")
        if stage.ended is None and stage.machine is not None and self.clock.now_s >= stage.ends_s:
            stage.ended = self._result(stage)
        return stage.ended or self._status(stage)

    def _status(self, stage: Placed) -> StageStatus:
        if stage.machine is None:
            return StageStatus(waiting_for=str(stage.task.needs))
        ran_s = min(self.clock.now_s, stage.ends_s) - stage.began_s
        return StageStatus(has_started=True, ran_s=ran_s, node=stage.machine.name)

    def _result(self, stage: Placed) -> StageStatus:
        status = self._status(stage)
        if status.ran_s > stage.task.deadline_s:
            return replace(status, error=timeout_error(stage.task))
        try:
            return replace(status, result=run_stage(stage.task))
        except TunerError as error:
            return replace(status, error=error)

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        stage = self._stages.pop(task.name, None)
        if stage is None or stage.machine is None:
            return
        stage.machine.take(stage.task.needs, sign=-1)
        self.ran.append(
            Interval(
                kind=stage.task.kind,
                label=stage.task.config.speculation.label,
                began_s=stage.began_s,
                ended_s=min(stage.ends_s, self.clock.now_s),
                devices=stage.task.needs.num_devices,
            )
        )
        self._place()

    def close(self) -> None:
        """See ``Dispatcher.close``: all that runs ends."""
        for stage in list(self._stages.values()):
            self.forget(stage.task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
