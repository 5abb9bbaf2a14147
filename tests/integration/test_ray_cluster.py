"""Stages on a Ray cluster of several nodes, while workers, nodes and drivers are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.support.drills import drill_environment, drill_task, leftovers, read_journal
from tuner.dispatch import StageStatus
from tuner.errors import UnsatisfiableError, WorkerLostError
from tuner.needs import Needs
from tuner.ray_dispatch import RayDispatcher
from tuner.trial import StageTask

pytestmark = pytest.mark.slow

WITHIN_S = 60.0
OBJECT_STORE_BYTES = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with two CPUs; tests add nodes of their own."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CPU_LOCKS", "")  # its nodes only pretend to be several machines
        started = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            },
        )
        yield started
        started.shutdown()


@pytest.fixture
def add_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Adds a node that is gone after the test."""
    added = []

    def add(num_cpus: int = 1, **resources: float) -> Any:
        node = cluster.add_node(num_cpus=num_cpus, resources=resources, object_store_memory=OBJECT_STORE_BYTES)
        added.append(node)
        return node

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.fixture
def dispatcher(cluster: Any) -> Iterator[RayDispatcher]:
    with RayDispatcher(cluster.address).start() as dispatcher:
        yield dispatcher


def a_stage(
    behaviour: str,
    *,
    needs: Needs | None = None,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = 120.0,
    **changes: Any,
) -> StageTask:
    task = drill_task(
        behaviour, key=uuid4().hex[:16], needs=needs or Needs(num_cpus=1), deadline_s=deadline_s, **changes
    )
    return replace(task, needs=replace(task.needs, environment={**task.needs.environment, **(environment or {})}))


def processes_of(task: StageTask) -> list[psutil.Process]:
    return leftovers(TUNER_STAGE=task.name)


def hangs(task: StageTask) -> bool:
    return len(processes_of(task)) > 6


def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s, "it took too long"
        time.sleep(0.05)


def ended(dispatcher: RayDispatcher, task: StageTask) -> StageStatus:
    dispatcher.submit(task)
    until(lambda: dispatcher.poll(task).has_ended)
    return dispatcher.poll(task)


def worker_of(task: StageTask) -> psutil.Process:
    """The process of the stage's actor, right above those of the stage."""
    above = {process.parent() for process in processes_of(task)} - {None}
    (worker,) = (one for one in above if one is not None and "ray::StageActor" in " ".join(one.cmdline()))
    return worker


def test_a_killed_worker_is_lost_and_leaves_no_process(dispatcher: RayDispatcher) -> None:
    task = a_stage("hangs below")
    dispatcher.submit(task)
    until(lambda: hangs(task))
    until(lambda: dispatcher.poll(task).has_started)
    worker_of(task).kill()
    until(lambda: dispatcher.poll(task).has_ended)
    status = dispatcher.poll(task)
    assert type(status.error) is WorkerLostError
    assert status.has_started
    until(lambda: processes_of(task) == [])
    dispatcher.forget(task)


def test_a_hang_below_is_ended_at_its_deadline(dispatcher: RayDispatcher) -> None:
    task = a_stage("hangs below", deadline_s=4.0)
    dispatcher.submit(task)
    until(lambda: hangs(task))
    assert "deadline" in str(ended(dispatcher, task).error)
    assert processes_of(task) == []
    dispatcher.forget(task)


def test_a_stage_of_a_lost_node_runs_on_another(
    cluster: Any, dispatcher: RayDispatcher, add_node: Callable[..., Any]
) -> None:
    node = add_node(bench=1)
    needs = Needs(num_cpus=1, resources={"bench": 1.0})
    lost, unbegun = a_stage("hangs below", needs=needs), a_stage("works", needs=needs)
    dispatcher.submit(lost)
    until(lambda: dispatcher.poll(lost).has_started)
    dispatcher.submit(unbegun)
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: dispatcher.poll(lost).has_ended)
    status = dispatcher.poll(lost)
    assert type(status.error) is WorkerLostError
    assert status.has_started
    until(lambda: processes_of(lost) == [])
    dispatcher.forget(lost)
    add_node(bench=1)
    status = ended(dispatcher, unbegun)
    assert status.result or not status.has_started
    dispatcher.forget(unbegun)
    again = a_stage("works", needs=needs, attempt=1)
    assert ended(dispatcher, again).result
    dispatcher.forget(again)


def test_a_stage_whose_node_was_lost_before_it_began_did_not_start(
    cluster: Any, dispatcher: RayDispatcher, add_node: Callable[..., Any]
) -> None:
    node = add_node(neuron_cores=2)
    dispatcher.check([Needs(num_cpus=1, device="neuron_cores", on_device_host=True)])
    cluster.remove_node(node, allow_graceful=False)
    task = a_stage("works", needs=Needs(num_cpus=1, device="neuron_cores", on_device_host=True))
    status = ended(dispatcher, task)  # sent to the node that is not known to be lost yet
    assert type(status.error) is WorkerLostError
    assert not status.has_started
    dispatcher.forget(task)


def test_the_next_driver_collects_what_the_first_submitted(cluster: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    slow = a_stage("works slowly", environment=drill_environment(journal, request_s=1.0))
    quick = a_stage("works", environment=drill_environment(journal))
    with RayDispatcher(cluster.address).start() as first:
        first.submit(slow)
        assert ended(first, quick).result
        until(lambda: first.poll(slow).has_started)
    with RayDispatcher(cluster.address).start() as second:
        for task in (quick, slow):
            status = ended(second, task)
            assert status.result
            assert status.has_started
            second.forget(task)
    assert sorted(line.stage for line in read_journal(journal, "load")) == sorted([quick.name, slow.name])


def test_a_stage_that_nobody_collects_ends_itself_once_it_has_run(cluster: Any, tmp_path: Path) -> None:
    from ray.util import list_named_actors

    journal = tmp_path / "journal"
    task = a_stage("works slowly", environment=drill_environment(journal, request_s=1.5))
    with RayDispatcher(cluster.address, uncollected_s=2.0).start() as dispatcher:
        dispatcher.submit(task)
        until(lambda: dispatcher.poll(task).has_started)
        worker = worker_of(task)
    until(lambda: processes_of(task) == [])
    assert [line.kind for line in read_journal(journal)] == ["load", "closed"]
    until(lambda: not worker.is_running())
    with RayDispatcher(cluster.address).start():
        assert task.name not in list_named_actors()


def test_a_stage_that_waits_when_its_driver_ends_is_withdrawn(cluster: Any) -> None:
    from ray.util import list_named_actors

    task = a_stage("works", needs=Needs(num_cpus=1, resources={"bench": 1.0}))
    with RayDispatcher(cluster.address, wait_for_nodes_s=60).start() as dispatcher:
        dispatcher.submit(task)
        assert "bench" in (dispatcher.poll(task).waiting_for or "")
    with RayDispatcher(cluster.address).start():
        until(lambda: task.name not in list_named_actors())


def test_what_no_node_has_is_refused_at_once_with_what_there_is(dispatcher: RayDispatcher) -> None:
    began_s = time.monotonic()
    with pytest.raises(UnsatisfiableError, match=r"4096 neuron_cores[\s\S]*2 CPU"):
        dispatcher.check([Needs(num_cpus=1), Needs(num_cpus=1, device="neuron_cores", num_devices=4096)])
    assert time.monotonic() - began_s < 5.0


def test_a_stage_that_no_node_can_run_any_more_is_given_up(
    dispatcher: RayDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.ray_dispatch.NODE_PATIENCE_S", 1.0)
    task = a_stage("works", needs=Needs(num_cpus=1, resources={"bench": 1.0}))
    assert type(ended(dispatcher, task).error) is UnsatisfiableError
    dispatcher.forget(task)


def test_a_stage_waits_for_a_node_that_is_to_join(cluster: Any, add_node: Callable[..., Any]) -> None:
    needs = Needs(num_cpus=1, resources={"bench": 1.0})
    task = a_stage("works", needs=needs)
    with RayDispatcher(cluster.address, wait_for_nodes_s=WITHIN_S).start() as dispatcher:
        dispatcher.check([needs])
        dispatcher.submit(task)
        assert dispatcher.poll(task).waiting_for == "a node with 1 CPU, 1 bench"
        add_node(bench=1)
        assert ended(dispatcher, task).result
        dispatcher.forget(task)


def test_a_stage_has_its_node_to_itself_whatever_the_size(
    dispatcher: RayDispatcher, add_node: Callable[..., Any]
) -> None:
    for num_cpus in (1, 3):
        add_node(num_cpus, bench=1)
    needs = Needs(resources={"bench": 0.5})
    assert dispatcher.capacity(needs) == 2
    assert dispatcher.capacity(Needs()) == 3
    tasks = [a_stage("works slowly", needs=needs) for _ in range(3)]
    for task in tasks:
        dispatcher.submit(task)
    until(lambda: sum(dispatcher.poll(task).has_started for task in tasks) == 2)
    (waiting,) = [task for task in tasks if not dispatcher.poll(task).has_started]
    until(lambda: "bench" in (dispatcher.poll(waiting).waiting_for or ""))
    for task in sorted(tasks, key=lambda task: task is waiting):
        assert ended(dispatcher, task).result
        dispatcher.forget(task)


def test_a_compile_runs_beside_a_stage_that_holds_every_device(
    dispatcher: RayDispatcher, add_node: Callable[..., Any]
) -> None:
    add_node(2, neuron_cores=2)
    measure = a_stage("works slowly", needs=Needs(num_cpus=1, device="neuron_cores", num_devices=2))
    compile_ = a_stage("works", needs=Needs(num_cpus=1, device="neuron_cores", on_device_host=True))
    dispatcher.submit(measure)
    until(lambda: dispatcher.poll(measure).has_started)
    assert ended(dispatcher, compile_).result
    assert ended(dispatcher, measure).result
    for task in (measure, compile_):
        dispatcher.forget(task)


def test_every_stage_runs_on_one_node_where_artifacts_stay_on_its_disk(
    cluster: Any, add_node: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    add_node(1, neuron_cores=2)
    add_node(2, neuron_cores=2)
    needs = [
        Needs(num_cpus=1, device="neuron_cores", num_devices=2),
        Needs(num_cpus=1, device="neuron_cores", on_device_host=True),
    ]
    with RayDispatcher(cluster.address, pin_to_one_node=True).start() as dispatcher:
        dispatcher.check(needs)
        assert "every stage runs on" in caplog.text
        assert [dispatcher.capacity(one) for one in needs] == [1, 2]
        tasks = [a_stage("works slowly", needs=one) for one in needs]
        for task in tasks:
            dispatcher.submit(task)
        until(lambda: all(dispatcher.poll(task).has_started for task in tasks))
    with RayDispatcher(cluster.address, pin_to_one_node=True).start() as dispatcher:  # they leave no room meanwhile
        for task in tasks:
            assert ended(dispatcher, task).result
            dispatcher.forget(task)
        with pytest.raises(UnsatisfiableError):
            dispatcher.check([*needs, Needs(num_cpus=3)])
