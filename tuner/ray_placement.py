"""Which node of a Ray cluster a stage runs on, where Ray cannot choose by amounts alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import DispatchError
from tuner.needs import Needs
from tuner.ray_cluster import Lifeline
from tuner.ray_nodes import ACCELERATORS, Node, alive_nodes

logger = logging.getLogger(__name__)

NODES_SEEN_S = 1.0
"""What is known of the nodes is as old as this at most; asking costs the driver some milliseconds."""

BINDING_PATIENCE_S = 60.0
"""A stage that has to choose its node waits for a free one so long, then joins the queue of one."""

Claim: TypeAlias = tuple[str, Needs]
"""A node, and what will run there although Ray does not count it yet."""

Choice: TypeAlias = tuple[Node | None, dict[str, Any]]
"""A node, None where Ray chooses it; and Ray's options of the stage's actor."""


class Placement:
    """Chooses nodes for stages.

    Ray itself places what is a matter of amounts. A node is chosen here for a stage that takes all CPUs of a node where
    nodes differ in size, for one that only has to be near a device, and where all stages share one node.
    """

    def __init__(self, lifeline: Lifeline | None = None, *, is_pinned: bool = False) -> None:
        """Look at the cluster that was joined.

        Args:
            lifeline: While it does not answer, the nodes are those seen before; None where none was joined.
            is_pinned: All stages run on the same node.
        """
        self._lifeline, self._is_pinned = lifeline, is_pinned
        self._pinned: str | None = None
        self._seen: tuple[float, list[Node]] = (0.0, [])
        self.intended: tuple[Needs, ...] = ()

    def intend(self, needs: Iterable[Needs]) -> None:
        """Note what all the stages to come need; one node has to suffice for them where all share one."""
        self.intended = tuple(needs)

    def all_nodes(self) -> list[Node]:
        """Every node that is alive.

        Raises:
            DispatchError: No cluster was joined.
        """
        if self._lifeline is None:
            raise DispatchError("this dispatcher was not started")
        seen_s, nodes = self._seen
        if time.monotonic() - seen_s > NODES_SEEN_S and self._lifeline.answers_now():
            nodes = sorted(alive_nodes(), key=lambda node: node.address)
            self._seen = (time.monotonic(), nodes)
        return nodes

    def candidates(self) -> list[Node]:
        """The nodes that stages may run on."""
        nodes = self.all_nodes()
        if not self._is_pinned:
            return nodes
        if not any(node.node_id == self._pinned for node in nodes):
            self._pin(nodes)
        return [node for node in nodes if node.node_id == self._pinned]

    def chooses(self, needs: Needs) -> bool:
        """Whether the node has to be chosen here."""
        if self._is_pinned or (needs.on_device_host and not needs.num_devices):
            return True
        return needs.num_cpus is None and len({node.num_cpus for node in self._suitable(needs)}) != 1

    def choose(self, needs: Needs, claims: Sequence[Claim], waited_s: float) -> Choice | None:
        """Where a stage goes, and what Ray is asked for; None while there is no node to go to.

        Args:
            needs: Of the stage.
            claims: Of stages that were sent to a node that they chose.
            waited_s: How long it has waited for a node.
        """
        suitable = self._suitable(needs)
        if not self.chooses(needs):
            return None, _options(needs, suitable[0] if suitable else None)
        remaining = [_less(node, claims) for node in suitable]
        open_ones = [node for node in remaining if waited_s > BINDING_PATIENCE_S or node.has_room(needs)]
        if not open_ones:
            return None
        node = min(open_ones, key=_most_free)
        affinity = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        return node, _options(needs, node) | {"scheduling_strategy": affinity}

    def _suitable(self, needs: Needs) -> list[Node]:
        return [node for node in self.candidates() if node.meets(needs)]

    def _pin(self, nodes: Sequence[Node]) -> None:
        """Choose the node of all stages, the same one in every driver."""
        able = [node for node in nodes if all(node.meets(one) for one in self.intended)]
        chosen = min(able, key=lambda node: (-node.num_devices, -node.num_cpus, node.address), default=None)
        self._pinned = None if chosen is None else chosen.node_id
        if chosen is not None:
            logger.warning(
                "every stage runs on %s (%s), because compiled artifacts stay on its disk; name a shared folder with "
                "--artifacts to use other nodes too",
                chosen.host,
                chosen.address,
            )


def _less(node: Node, claims: Sequence[Claim]) -> Node:
    """A node less what is on its way to it."""
    claimed = [node.demand(needs) for node_id, needs in claims if node_id == node.node_id]
    free = {name: amount - sum(one.get(name, 0.0) for one in claimed) for name, amount in node.free.items()}
    return replace(node, free=free)


def _options(needs: Needs, node: Node | None) -> dict[str, Any]:
    """Ray's words for what a stage needs, on this node where it takes all of one."""
    cpus = needs.num_cpus if needs.num_cpus is not None else node.num_cpus if node is not None else 1
    amounts = {name: int(amount) if amount.is_integer() else amount for name, amount in needs.amounts.items()}
    gpus = amounts.pop("GPU", 0)
    memory = {"memory": needs.memory_bytes} if needs.memory_bytes else {}
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": amounts or None, **memory}


def _most_free(node: Node) -> tuple[float, float, str]:
    """Sorts first what has most CPUs free, and then fewest devices, which are for those that need them."""
    free_devices = sum(node.free.get(name, 0.0) for name in ACCELERATORS)
    return (-node.free.get("CPU", 0.0), free_devices, node.address)
