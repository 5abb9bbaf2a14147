"""The nodes of a Ray cluster: what they have, and what of it is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import ray
from ray._private.state import actors, available_resources_per_node

from tuner.needs import Needs

ACCELERATORS = ("neuron_cores", "GPU")

_OF_RAY = ("node:", "accelerator_type:", "object_store_memory")  # resources that nobody asks for by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster that is alive.

    Attributes:
        node_id: Ray's.
        total: What it has, by resource; memory in bytes.
        free: What of it no stage holds now.
    """

    node_id: str
    address: str
    host: str
    total: Mapping[str, float]
    free: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_cpus(self) -> int:
        """What Ray may give away of its CPUs."""
        return int(self.total.get("CPU", 0))

    @property
    def num_devices(self) -> int:
        """Its accelerators of every kind."""
        return int(sum(self.total.get(name, 0) for name in ACCELERATORS))

    def demand(self, needs: Needs) -> dict[str, float]:
        """What a stage would take of this machine."""
        cpus = max(self.num_cpus, 1) if needs.num_cpus is None else needs.num_cpus
        amounts = {"CPU": float(cpus), "memory": float(needs.memory_bytes), **needs.amounts}
        return {name: amount for name, amount in amounts.items() if amount}

    def meets(self, needs: Needs) -> bool:
        """Whether a stage can ever run here."""
        hosts = not needs.on_device_host or self.total.get(needs.device or "", 0) > 0
        return hosts and all(self.total.get(name, 0) >= amount for name, amount in self.demand(needs).items())

    def has_room(self, needs: Needs) -> bool:
        """Whether a stage can run here now."""
        return self.meets(needs) and all(
            self.free.get(name, 0) >= amount for name, amount in self.demand(needs).items()
        )

    def room(self, needs: Needs) -> int:
        """How many such stages it holds at once while nothing else runs."""
        if not self.meets(needs):
            return 0
        return int(min((self.total[name] // amount for name, amount in self.demand(needs).items()), default=1))


def alive_nodes() -> list[Node]:
    """The machines of the cluster that this process joined."""
    free = available_resources_per_node()  # type: ignore[no-untyped-call]
    return [
        Node(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            host=node["NodeManagerHostname"],
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]


def running_actors(most: int = 8) -> str:
    """The actors of the cluster, whoever made them, a line for each; Ray does not tell what each of them holds."""
    found = actors(actor_state_name="ALIVE").values()
    lines = [
        f"  {one['Name'] or one['ActorClassName']} (process {one['Pid']} on {one['Address']['IPAddress']})"
        for one in found
    ]
    return "\n".join((*lines[:most], *([f"  and {len(lines) - most} more"] if len(lines) > most else [])))


def described(nodes: Iterable[Node], most: int = 8) -> str:
    """What nodes have, a line for each."""
    lines = [f"  {node.host} ({node.address}): {_amounts(node.total)}" for node in nodes]
    return _first(lines, most) or "  no node is alive"


def _first(lines: Sequence[str], most: int) -> str:
    rest = [f"  and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join((*lines[:most], *rest))


def free_for(needs: Needs, nodes: Iterable[Node], most: int = 3) -> str:
    """What a stage waits for, and what is free of it where it could run, in a line."""
    suitable = [node for node in nodes if node.meets(needs)]
    free = "; ".join(f"{node.host} {_free_of(node.demand(needs), node.free)}" for node in suitable[:most])
    return f"{needs} (free: {free}{' …' if len(suitable) > most else ''})"


def _free_of(demand: Iterable[str], free: Mapping[str, float]) -> str:
    return _amounts({name: free.get(name, 0.0) for name in demand})


def _amounts(resources: Mapping[str, float]) -> str:
    named = {name: amount for name, amount in resources.items() if not name.startswith(_OF_RAY)}
    memory_bytes = named.pop("memory", None)
    memory = [] if memory_bytes is None else [f"{memory_bytes / 2**30:.1f} GiB of memory"]
    return ", ".join((*(f"{amount:g} {name}" for name, amount in sorted(named.items())), *memory)) or "nothing"
