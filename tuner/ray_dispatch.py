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
from tuner.ray_nodes import Node, described, free_for, running_actors
from tuner.ray_placement import Claim, Placement
from tuner.ray_stage import StageActor
from tuner.trial import StageTask

import ray  # isort: skip - after ray_cluster, which sets what Ray reads when it is imported
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

logger = logging.getLogger(__name__)

UNCOLLECTED_S = 1800.0
"""A search that was interrupted is usually started again within half an hour."""

NODE_PATIENCE_S = 120.0
"""A lost node that comes back, comes back within minutes."""

START_DEADLINE_S = 300.0
"""Where there is room, a worker starts in seconds, on a loaded machine in a minute."""

MOST_UNBEGUN = 10
"""Times that a stage is sent out again that did not begin: its node was lost, or its devices are not adjacent."""

UNBEGUN_PAUSE_S = 2.0
"""Before the first of them; each pause is twice the one before, up to ``LONGEST_UNBEGUN_PAUSE_S``."""

LONGEST_UNBEGUN_PAUSE_S = 30.0

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
    was_sought: bool = False
    unmet_since_s: float | None = None
    room_since_s: float | None = None

    @property
    def may_run(self) -> bool:
        """Whether there may be processes of it: its actor has begun, or its answer that it has is on its way."""
        if self.actor is None or self.ended is not None or self.bug is not None:
            return False
        return self.has_begun or _is_there(self.answer)


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
        self._submitted: dict[str, _Submitted] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._unbegun: dict[str, int] = {}
        self._lifeline: Lifeline | None = None
        self._placement = Placement()

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
        self._placement = Placement(self._lifeline, is_pinned=self._is_pinned)
        return self

    def check(self, needs: Iterable[Needs]) -> None:
        """See ``Dispatcher.check``."""
        self._placement.intend(needs)
        nodes = self._placement.candidates()
        for one in self._placement.intended:
            if not any(node.meets(one) for node in nodes):
                if self._wait_for_nodes_s is None:
                    raise self._unsatisfiable(one)
                logger.warning("no node has %s yet; waiting for one up to %.0f s", one, self._wait_for_nodes_s)

    def capacity(self, needs: Needs) -> int:
        """See ``Dispatcher.capacity``."""
        return max(sum(node.room(needs) for node in self._placement.candidates()), 1)

    def submit(self, task: StageTask) -> None:
        """See ``Dispatcher.submit``."""
        if task.name in self._submitted:
            return
        tries = self._unbegun.get(_stage(task), 0)
        pause_s = min(UNBEGUN_PAUSE_S * 2 ** (tries - 1), LONGEST_UNBEGUN_PAUSE_S) if tries else 0.0
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
        self._leaving = {name: one for name, one in self._leaving.items() if not _is_there(one.gone)}
        submitted = self._submitted.pop(task.name, None)
        if submitted is None or submitted.actor is None:
            return
        if submitted.may_run:
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
            if self._address is None or not (submitted.may_run or submitted.seen.has_ended):
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
        if not status.has_ended:
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
        """Send a stage that did not begin out again, some times: nodes come back, and others free their devices."""
        error = status.error
        is_fragmented = isinstance(error, FragmentedDevicesError)
        if error is None or not (is_fragmented or (isinstance(error, WorkerLostError) and not status.has_started)):
            self._unbegun.pop(_stage(task), None)
            return status
        tries = self._unbegun[_stage(task)] = self._unbegun.get(_stage(task), 0) + 1
        if tries <= MOST_UNBEGUN:
            return replace(status, has_started=False, error=WorkerLostError(error.message, error.hint))
        what = f"stage {task.kind} of {task.config.speculation.label} did not begin in {tries} tries; the last time: "
        others = f". Others hold what lies between; on the cluster run:\n{running_actors()}" if is_fragmented else ""
        hint = "end what holds devices beside this search, or let all of them take blocks of one size"
        given_up = DispatchError(f"{what}{error.message}{others}", hint if is_fragmented else error.hint)
        return replace(status, has_started=False, error=given_up)

    # ── placing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, submitted: _Submitted) -> None:
        """Make the stage's actor, or find it, as soon as it is known where it may run."""
        if submitted.actor is not None or not self._may_go(submitted) or not self._cluster.answers_now():
            return
        task = submitted.task
        if self._placement.chooses(task.needs) and self._attach(submitted):
            return
        choice = self._placement.choose(task.needs, self._claims(), time.monotonic() - submitted.submitted_s)
        if choice is None:
            return
        submitted.node, options = choice
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

    def _attach(self, submitted: _Submitted) -> bool:
        """Find the actor of a stage that runs already, which may be what leaves no room for another."""
        if submitted.was_sought:
            return False
        submitted.was_sought = True
        try:
            submitted.actor = ray.get_actor(submitted.task.name, namespace=NAMESPACE)
        except ValueError:
            return False
        self._question(submitted)
        return True

    def _claims(self) -> list[Claim]:
        """What is on its way to a node, and not counted by Ray yet."""
        return [
            (one.node.node_id, one.task.needs)
            for one in self._submitted.values()
            if one.node is not None and not one.has_begun and one.ended is None
        ]

    def _may_go(self, submitted: _Submitted) -> bool:
        leaving = self._leaving.get(submitted.task.name)
        if leaving is not None and _is_there(leaving.gone):
            del self._leaving[submitted.task.name]
            leaving = None
        return leaving is None and time.monotonic() >= submitted.not_before_s

    def _waiting(self, submitted: _Submitted) -> StageStatus:
        """What a stage that has not begun waits for; its end where that will not come."""
        needs, now_s = submitted.task.needs, time.monotonic()
        bound = submitted.node
        nodes = [node for node in self._placement.candidates() if bound is None or node.node_id == bound.node_id]
        if not any(node.meets(needs) for node in nodes):
            submitted.unmet_since_s = submitted.unmet_since_s or now_s
            patience_s = NODE_PATIENCE_S if self._wait_for_nodes_s is None else self._wait_for_nodes_s
            if now_s - submitted.unmet_since_s > patience_s:
                submitted.ended = StageStatus(error=self._unsatisfiable(needs))
            return submitted.ended or StageStatus(waiting_for=f"a node with {needs}")
        submitted.unmet_since_s = None
        if submitted.actor is None or not any(node.has_room(needs) for node in nodes):
            submitted.room_since_s = None
            return StageStatus(waiting_for=free_for(needs, nodes))
        submitted.room_since_s = submitted.room_since_s or now_s
        if now_s - submitted.room_since_s > START_DEADLINE_S:
            submitted.ended = StageStatus(error=_never_started(submitted.task))
        return submitted.ended or StageStatus(waiting_for="a worker process")

    def _unsatisfiable(self, needs: Needs) -> UnsatisfiableError:
        where = "no node of the Ray cluster ever has" if self._address else "this machine never has"
        return UnsatisfiableError(
            f"{where} what a stage needs: {needs}. What there is:\n{described(self._placement.all_nodes())}",
            "ask for less in the hardware file, or name resources as the nodes do; where nodes join later, give "
            "--wait-for-nodes",
        )


def _never_started(task: StageTask) -> DispatchError:
    return DispatchError(
        f"no worker began stage {task.kind} of {task.config.speculation.label} in {START_DEADLINE_S:.0f} s, although "
        "there is room for it",
        "see `ray status`, and on the nodes what Ray writes in session_latest/logs of its folder",
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
