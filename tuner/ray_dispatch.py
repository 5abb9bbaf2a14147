"""Stages on Ray: one named, detached actor per stage and attempt, on the nodes that have what it needs."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from tuner import ray_cluster
from tuner.dispatch import StageBugError, StageStatus
from tuner.errors import DispatchError, FragmentedDevicesError, TunerError, UnsatisfiableError, WorkerLostError
from tuner.needs import Needs
from tuner.ray_cluster import NAMESPACE, VERSION, Lifeline
from tuner.ray_nodes import ACCELERATORS, Node, alive_nodes, described, free_for, running_actors
from tuner.ray_stage import StageActor
from tuner.trial import StageTask

import ray  # isort: skip - after ray_cluster, which sets what Ray reads when it is imported
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

UNCOLLECTED_S = 1800.0
"""A search that was interrupted is usually started again within half an hour."""

NODE_PATIENCE_S = 120.0
"""A lost node that comes back, comes back within minutes."""

BINDING_PATIENCE_S = 60.0
"""A stage that has to choose its node waits for a free one so long, then joins the queue of one."""

NODES_SEEN_S = 1.0
"""What is known of the nodes is as old as this at most; asking costs the driver some milliseconds."""

MOST_FRAGMENTED = 10
"""Times that a stage is sent out again because the devices that it got are not adjacent."""

FRAGMENTED_PAUSE_S = 2.0
"""Before the first of them; each pause is twice the one before, up to ``MOST_FRAGMENTED_PAUSE_S``."""

MOST_FRAGMENTED_PAUSE_S = 30.0

END_DEADLINE_S = 15.0
"""For stages to end with their processes when the driver closes; a server takes up to its grace period."""


@dataclass(slots=True)
class _Submitted:
    """What the driver holds of a stage.

    Attributes:
        actor: None while the stage waits here for a node, a pause, or the end of a former actor of its name.
        node: Where it has to run, if it had to choose.
        has_begun: Its actor is known to have run.
        answer: To the one question that is under way: ``begin`` until it has begun, then ``look``.
        ended: How the stage ended, whatever becomes of its actor.
    """

    task: StageTask
    not_before_s: float
    submitted_s: float = field(default_factory=time.monotonic)
    actor: Any = None
    node: Node | None = None
    has_begun: bool = False
    answer: Any = None
    seen: StageStatus = field(default_factory=StageStatus)
    ended: StageStatus | None = None
    bug: StageBugError | None = None
    unmet_since_s: float | None = None


@dataclass(slots=True)
class _Leaving:
    """An actor on its way out, whose name is not free yet."""

    actor: Any
    gone: Any


class RayDispatcher:
    """Sends stages to a Ray cluster, or to a Ray of its own on this machine.

    Nothing here waits for a stage: each has one question under way, whose answer is taken up at the next ``poll``.
    On a standing cluster stages go on when their driver ends; the next one finds them by name.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        wait_for_nodes_s: float | None = None,
        uncollected_s: float = UNCOLLECTED_S,
        pin_to_one_node: bool = False,
        devices: Mapping[str, int] | None = None,
    ) -> None:
        """Describe where stages run; ``start`` goes there.

        Args:
            address: ``HOST:PORT`` of a standing cluster, or ``auto``; None starts Ray on this machine.
            wait_for_nodes_s: A stage that no node can run waits so long for one to join. Ray does not tell whether
                anything adds nodes, so with an autoscaler this has to be given.
            uncollected_s: A stage whose outcome nobody collects within it is dropped.
            pin_to_one_node: Every stage runs on the same node, so that each finds what another left on its disk.
            devices: What Ray does not find by itself on this machine, as ``{"neuron_cores": 4}``.
        """
        self._address, self._devices = address, dict(devices or {})
        self._wait_for_nodes_s, self._uncollected_s = wait_for_nodes_s, uncollected_s
        self._is_pinned = pin_to_one_node
        self._pinned: str | None = None
        self._submitted: dict[str, _Submitted] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._fragmented: dict[str, int] = {}
        self._needs: list[Needs] = []
        self._nodes: tuple[float, list[Node]] = (0.0, [])
        self._lifeline: Lifeline | None = None

    def start(self) -> Self:
        """Start or join Ray.

        Raises:
            DispatchError: Ray does not start here, or the cluster cannot be joined.
        """
        if self._address is None:
            ray_cluster.start_local(self._devices)
        else:
            ray_cluster.join(self._address)
        self._lifeline = Lifeline()
        return self

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``."""
        self._needs = list(needs)
        nodes = self._candidates()
        for one in self._needs:
            if not any(node.meets(one) for node in nodes):
                if self._wait_for_nodes_s is None:
                    raise self._unsatisfiable(one)
                logger.warning("no node has %s yet; waiting for one up to %.0f s", one, self._wait_for_nodes_s)

    def capacity(self, needs: Needs) -> int:
        """See ``Dispatcher.capacity``."""
        return max(sum(node.room(needs) for node in self._candidates()), 1)

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        if task.name in self._submitted:
            return
        tries = self._fragmented.get(_stage(task), 0)
        pause_s = min(FRAGMENTED_PAUSE_S * 2 ** (tries - 1), MOST_FRAGMENTED_PAUSE_S) if tries else 0.0
        submitted = _Submitted(task, time.monotonic() + pause_s)
        self._submitted[task.name] = submitted
        self._place(submitted)

    def poll(self, task: StageTask) -> StageStatus:
        """See ``Dispatcher.poll``."""
        if (submitted := self._submitted.get(task.name)) is None:
            raise DispatchError(f"stage {task.name} was never submitted")
        if submitted.bug is not None:
            raise submitted.bug
        if submitted.ended is None:
            self._cluster.check()
            self._place(submitted)
            status = self._ask(submitted)
            if status.has_ended:
                submitted.ended = self._with_tries(task, status)
            elif not submitted.has_begun:
                return self._waiting(submitted)
            submitted.seen = status
        return submitted.ended or submitted.seen

    def forget(self, task: StageTask) -> None:
        """See ``Dispatcher.forget``."""
        submitted = self._submitted.pop(task.name, None)
        if submitted is None or submitted.actor is None:
            return
        if submitted.has_begun and submitted.ended is None and submitted.bug is None:
            # What it holds is freed by Ray when its actor ends, so its processes end first.
            self._leaving[task.name] = _Leaving(submitted.actor, submitted.actor.end.remote())
        else:
            ray.kill(submitted.actor, no_restart=True)
            self._leaving[task.name] = _Leaving(submitted.actor, submitted.actor.look.remote())

    def close(self) -> None:
        """See ``Dispatcher.close``."""
        if self._lifeline is not None:
            if self._lifeline.answers:
                self._let_end()
            self._lifeline.leave()
            self._lifeline = None
        self._submitted.clear()
        self._leaving.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _cluster(self) -> Lifeline:
        if self._lifeline is None:
            raise DispatchError("this dispatcher was not started")
        return self._lifeline

    def _let_end(self) -> None:
        """Let stages that nobody takes up end with their processes."""
        for submitted in list(self._submitted.values()):
            if self._address is None or not submitted.has_begun:
                self.forget(submitted.task)
        if self._leaving:
            gone = [one.gone for one in self._leaving.values()]
            ray.wait(gone, num_returns=len(gone), timeout=END_DEADLINE_S)

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, submitted: _Submitted) -> StageStatus:
        """Take up the answer that is there, if any, and ask on."""
        if submitted.actor is None or not _is_there(submitted.answer):
            return submitted.seen
        try:
            status: StageStatus = ray.get(submitted.answer) or submitted.seen
        except ActorUnavailableError:  # not death: it may have been the network, and a second copy must not start
            self._question(submitted)
            return submitted.seen
        except (RayActorError, ActorUnschedulableError) as error:
            return self._lost(submitted, error)
        except RayTaskError as error:
            submitted.bug = _bug(error)
            raise submitted.bug from error
        submitted.has_begun = True
        self._question(submitted)
        return status

    def _question(self, submitted: _Submitted) -> None:
        actor = submitted.actor
        submitted.answer = (
            actor.look.remote() if submitted.has_begun else actor.begin.remote(VERSION, pickle.dumps(submitted.task))
        )

    def _lost(self, submitted: _Submitted, error: Exception) -> StageStatus:
        task = submitted.task
        what = f"stage {task.kind} of {task.config.speculation.label}"
        if getattr(error, "actor_init_failed", False):
            lost: TunerError = DispatchError(
                f"{what} could not begin on its node: {str(error).strip().splitlines()[-1]}",
                f"install specdec-tuner {VERSION} on every node of the cluster",
            )
        else:
            lost = WorkerLostError(
                f"the worker of {what} is gone: {_reason(error)}",
                "it is run again; if it is lost each time, see what Ray writes on the node, and the kernel (dmesg)",
            )
        return replace(submitted.seen, has_started=submitted.has_begun, waiting_for=None, error=lost)

    def _with_tries(self, task: StageTask, status: StageStatus) -> StageStatus:
        """Send a stage whose devices are not adjacent out again, some times; other stages meanwhile free theirs."""
        if not isinstance(status.error, FragmentedDevicesError):
            self._fragmented.pop(_stage(task), None)
            return status
        tries = self._fragmented[_stage(task)] = self._fragmented.get(_stage(task), 0) + 1
        if tries > MOST_FRAGMENTED:
            error: TunerError = DispatchError(
                f"stage {task.kind} of {task.config.speculation.label} got no adjacent devices in {tries} tries: "
                f"{status.error.message}. Others hold what lies between; on the cluster run:\n{running_actors()}",
                "end what holds devices beside this search, or let all of them take blocks of one size",
            )
        else:
            error = WorkerLostError(status.error.message, status.error.hint)
        return replace(status, has_started=False, error=error)

    # ── placing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, submitted: _Submitted) -> None:
        """Make the stage's actor, or find it, as soon as it is known where it may run."""
        if submitted.actor is not None or not self._cluster.answers or not self._may_go(submitted):
            return
        options = self._options(submitted)
        if options is None:
            return
        task = submitted.task
        remote: Any = ray.remote(StageActor)
        submitted.actor = remote.options(
            name=task.name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            max_task_retries=0,
            **options,
        ).remote(self._uncollected_s)
        self._question(submitted)
        logger.info("stage %s submitted", task.name)

    def _may_go(self, submitted: _Submitted) -> bool:
        leaving = self._leaving.get(submitted.task.name)
        if leaving is not None and _is_there(leaving.gone):
            del self._leaving[submitted.task.name]
            leaving = None
        return leaving is None and time.monotonic() >= submitted.not_before_s

    def _options(self, submitted: _Submitted) -> dict[str, Any] | None:
        """What Ray is asked for; None while there is no node to ask for."""
        needs = submitted.task.needs
        suitable = [node for node in self._candidates() if node.meets(needs)]
        chooses = self._is_pinned or (needs.on_device_host and not needs.num_devices)
        if needs.num_cpus is None:  # alone on its node, however large that is
            chooses = chooses or len({node.num_cpus for node in suitable}) != 1
        if not chooses:
            return _options(needs, suitable[0] if suitable else None)
        remaining = [self._unclaimed(node) for node in suitable]
        has_waited = time.monotonic() - submitted.submitted_s > BINDING_PATIENCE_S
        free = [node for node in remaining if has_waited or node.has_room(needs)]
        if not free:
            return None
        submitted.node = node = min(free, key=_most_free)
        return _options(needs, node) | {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False)}

    def _unclaimed(self, node: Node) -> Node:
        """A node less what is on its way to it, which Ray does not count yet."""
        claims = [
            node.demand(one.task.needs)
            for one in self._submitted.values()
            if one.node is not None and one.node.node_id == node.node_id and not one.has_begun and one.ended is None
        ]
        free = {name: amount - sum(claim.get(name, 0) for claim in claims) for name, amount in node.free.items()}
        return replace(node, free=free)

    def _waiting(self, submitted: _Submitted) -> StageStatus:
        """What a stage that has not begun waits for; its end where that will not come."""
        needs, now_s = submitted.task.needs, time.monotonic()
        nodes = self._candidates()
        if any(node.meets(needs) for node in nodes):
            submitted.unmet_since_s = None
            room = any(node.has_room(needs) for node in nodes)
            return StageStatus(waiting_for="a worker process" if room else free_for(needs, nodes))
        submitted.unmet_since_s = submitted.unmet_since_s or now_s
        patience_s = NODE_PATIENCE_S if self._wait_for_nodes_s is None else self._wait_for_nodes_s
        if now_s - submitted.unmet_since_s <= patience_s:
            return StageStatus(waiting_for=f"a node with {needs}")
        submitted.ended = StageStatus(error=self._unsatisfiable(needs))
        return submitted.ended

    def _unsatisfiable(self, needs: Needs) -> UnsatisfiableError:
        where = "no node of the Ray cluster" if self._address else "this machine does not"
        return UnsatisfiableError(
            f"{where} ever has what a stage needs: {needs}. What there is:\n{described(self._all_nodes())}",
            "ask for less in the hardware file, or name resources as the nodes do; where nodes join later, give "
            "--wait-for-nodes",
        )

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _all_nodes(self) -> list[Node]:
        seen_s, nodes = self._nodes
        if self._cluster.answers and time.monotonic() - seen_s > NODES_SEEN_S:
            nodes = sorted(alive_nodes(), key=lambda node: node.address)
            self._nodes = (time.monotonic(), nodes)
        return nodes

    def _candidates(self) -> list[Node]:
        """The nodes that stages may run on."""
        nodes = self._all_nodes()
        if not self._is_pinned:
            return nodes
        if not any(node.node_id == self._pinned for node in nodes):
            self._pin(nodes)
        return [node for node in nodes if node.node_id == self._pinned]

    def _pin(self, nodes: list[Node]) -> None:
        """Choose the node of all stages, the same one in every driver."""
        able = [node for node in nodes if all(node.meets(one) for one in self._needs)]
        chosen = min(able, key=lambda node: (-node.num_devices, -node.num_cpus, node.address), default=None)
        self._pinned = None if chosen is None else chosen.node_id
        if chosen is not None:
            logger.warning(
                "every stage runs on %s (%s), because compiled artifacts stay on its disk; name a shared folder with "
                "--artifacts to use other nodes too",
                chosen.host,
                chosen.address,
            )


def _options(needs: Needs, node: Node | None) -> dict[str, Any]:
    """Ray's words for what a stage needs, on this node where it takes all of one."""
    cpus = needs.num_cpus if needs.num_cpus is not None else node.num_cpus if node is not None else 1
    amounts = {name: int(amount) if amount.is_integer() else amount for name, amount in needs.amounts.items()}
    gpus = amounts.pop("GPU", 0)
    memory = {"memory": needs.memory_bytes} if needs.memory_bytes else {}
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": amounts or None, **memory}


def _most_free(node: Node) -> tuple[float, float, str]:
    return (
        -node.free.get("CPU", 0.0),
        sum(node.free.get(name, 0.0) for name in ACCELERATORS),
        node.address,
    )


def _stage(task: StageTask) -> str:
    """A stage by name, whatever the attempt."""
    return replace(task, attempt=0).name


def _is_there(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])


def _bug(error: RayTaskError) -> StageBugError:
    """What a worker raised that is no error of ours, as itself where it says so."""
    return error.cause if isinstance(error.cause, StageBugError) else StageBugError(str(error))


def _reason(error: Exception) -> str:
    """The line of Ray's account that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__
