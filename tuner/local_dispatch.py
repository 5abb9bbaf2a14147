"""Stages in processes of their own on this machine, without Ray."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tuner.dispatch import StageStatus
from tuner.errors import DispatchError, UnsatisfiableError
from tuner.needs import Needs
from tuner.processes.devices import VISIBLE_VARIABLES, listed_devices
from tuner.processes.stage_process import StageProcess
from tuner.trial import StageTask

logger = logging.getLogger(__name__)

CPU, MEMORY = "CPU", "memory"


@dataclass(frozen=True, slots=True)
class _Started:
    """A stage and what it holds until it ends.

    Attributes:
        places: Of its devices, among those of this machine.
    """

    process: StageProcess
    amounts: Mapping[str, float]
    device: str | None
    places: frozenset[int]


class LocalDispatcher:
    """Runs stages on this machine, as many at once as what they need allows, first come first served.

    A stage that needs every CPU runs alone. Nothing takes what an earlier one waits for, so none waits for ever; what
    needs other things may overtake it. Stages start while somebody polls.
    """

    def __init__(self, devices: Mapping[str, int] | None = None, log_dir: Path | None = None) -> None:
        """Use this machine.

        Args:
            devices: How many there are of each, such as ``{"neuron_cores": 8}``, and of further resources.
            log_dir: Where logs of stages stay; None keeps each with its status alone.
        """
        self._devices, self._log_dir = dict(devices or {}), log_dir
        self._node = platform.node()
        self._has: dict[str, float] = {
            CPU: len(os.sched_getaffinity(0)),
            MEMORY: psutil.virtual_memory().total,
            **self._devices,
        }
        self._waiting: dict[str, StageTask] = {}
        self._started: dict[str, _Started] = {}
        self._holding: dict[str, _Started] = {}  # of those, what has not been seen to end

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``."""
        for one in needs:
            lacking = [_amount(name, amount) for name, amount in self._demand(one).items() if amount > self._all(name)]
            if one.on_device_host and not self._all(one.device or ""):
                lacking.append(f"1 {one.device}")
            if lacking:
                has = ", ".join(_amount(name, amount) for name, amount in self._has.items())
                raise UnsatisfiableError(
                    f"a stage needs {', '.join(lacking)}, and this machine has {has}",
                    "say in the hardware file what this machine has, or send the stages to a cluster that has it",
                )

    def capacity(self, needs: Needs) -> int:
        """See ``Dispatcher.capacity``."""
        fitting = [int(self._all(name) // amount) for name, amount in self._demand(needs).items()]
        return max(min(fitting, default=1), 1)

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        if task.name not in self._started:
            self.check([task.needs])
            self._waiting.setdefault(task.name, task)
            self._advance()

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        self._advance()
        if (started := self._started.get(task.name)) is not None:
            return replace(started.process.poll(), node=self._node)
        if task.name not in self._waiting:
            raise DispatchError(f"stage {task.name} was never submitted")
        return StageStatus(waiting_for=self._awaited(task))

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        self._waiting.pop(task.name, None)
        if (started := self._started.pop(task.name, None)) is not None:
            started.process.end()
            self._holding.pop(task.name, None)
        self._advance()

    def close(self) -> None:
        """See ``Dispatcher.close``."""
        self._waiting.clear()
        for started in self._started.values():  # all at once, since each may take its time
            started.process.ask_to_end()
        for started in self._started.values():
            started.process.end()
        self._started.clear()
        self._holding.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _advance(self) -> None:
        self._holding = {name: one for name, one in self._holding.items() if not one.process.has_ended}
        aside: dict[str, float] = {}
        for name, task in list(self._waiting.items()):
            places = self._free_block(task.needs)
            if places is not None and not self._missing(task.needs, aside):
                del self._waiting[name]
                self._start(task, places)
                continue
            for resource, amount in self._demand(task.needs).items():
                aside[resource] = aside.get(resource, 0) + amount

    def _start(self, task: StageTask, places: range) -> None:
        needs = task.needs
        process = StageProcess.start(
            replace(task, needs=replace(needs, environment={**needs.environment, **self._visible(needs, places)})),
            self._log_dir,
        )
        started = _Started(process, self._demand(needs), needs.device, frozenset(places))
        self._started[task.name] = self._holding[task.name] = started
        logger.info("stage %s started", task.name)

    def _visible(self, needs: Needs, places: range) -> dict[str, str]:
        """The variable that shows a stage its own devices, of those that this process may use."""
        if needs.device not in VISIBLE_VARIABLES or not places:
            return {}
        variable = VISIBLE_VARIABLES[needs.device]
        ours = listed_devices(os.environ.get(variable, "")) or tuple(map(str, range(self._devices[needs.device])))
        return {variable: ",".join(ours[place] for place in places)}

    def _free_block(self, needs: Needs) -> range | None:
        """Where a stage's devices are: a whole block, so that what it leaves is one again. None while all are taken."""
        if needs.device is None or not needs.num_devices:
            return range(0)
        taken = {place for one in self._holding.values() if one.device == needs.device for place in one.places}
        blocks = range(0, self._devices[needs.device] - needs.num_devices + 1, needs.num_devices)
        return next(
            (block for begin in blocks if taken.isdisjoint(block := range(begin, begin + needs.num_devices))), None
        )

    def _demand(self, needs: Needs) -> dict[str, float]:
        cpus = self._has[CPU] if needs.num_cpus is None else needs.num_cpus
        demand = {CPU: cpus, MEMORY: needs.memory_bytes, **needs.amounts}
        return {resource: amount for resource, amount in demand.items() if amount}

    def _all(self, resource: str) -> float:
        return self._has.get(resource, 0)

    def _missing(self, needs: Needs, aside: Mapping[str, float] | None = None) -> list[str]:
        """What is not free of what a stage needs, what is laid aside for others not counted."""
        found = []
        for resource, amount in self._demand(needs).items():
            free = self._all(resource) - sum(one.amounts.get(resource, 0) for one in self._holding.values())
            if amount > free - (aside or {}).get(resource, 0):
                found.append(f"{_amount(resource, amount)} ({_amount(resource, free)} free)")
        return found

    def _awaited(self, task: StageTask) -> str:
        if missing := self._missing(task.needs):
            return ", ".join(missing)
        if self._free_block(task.needs) is None:
            return f"{task.needs.num_devices} adjacent {task.needs.device}"
        return "stages before it"


def _amount(resource: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB of memory" if resource == MEMORY else f"{amount:g} {resource}"
