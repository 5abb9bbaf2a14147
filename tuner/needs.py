"""What a stage holds while it runs: processors, devices, memory, and the environment of its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one stage asks of the machine that runs it.

    Attributes:
        num_cpus: Reserved for it alone; None takes every CPU of the machine, so that nothing runs beside it.
        device: Resource that its devices are counted in, such as ``neuron_cores`` or ``GPU``; None where it holds none.
        num_devices: How many of them, on one machine and adjacent.
        on_device_host: It runs on a machine that has ``device``, whether or not it holds any.
        memory_bytes: Reserved for it; 0 reserves none.
        resources: Further ones by name, as the cluster's nodes offer them.
        environment: Variables of its process, over those of the worker.
    """

    num_cpus: int | None = None
    device: str | None = None
    num_devices: int = 0
    on_device_host: bool = False
    memory_bytes: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[str, float]:
        """Everything countable by the name of its resource, CPUs and memory left out."""
        devices = {} if self.device is None or not self.num_devices else {self.device: float(self.num_devices)}
        return {**self.resources, **devices}

    def __str__(self) -> str:
        cpus = "every CPU of a machine" if self.num_cpus is None else f"{self.num_cpus} CPU"
        others = [f"{amount:g} {name}" for name, amount in self.amounts.items()]
        memory = [f"{self.memory_bytes / 2**30:.1f} GiB of memory"] if self.memory_bytes else []
        host = [f"on a machine with {self.device}"] if self.on_device_host and not self.num_devices else []
        return ", ".join((cpus, *others, *memory, *host))
