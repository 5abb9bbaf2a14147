"""Which node a stage is sent to, of nodes that are only described."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.needs import Needs
from tuner.ray_nodes import Node, described, free_for
from tuner.ray_placement import Placement

pytestmark = pytest.mark.slow  # it imports Ray, but starts none

ON_HOST = Needs(num_cpus=1, device="neuron_cores", on_device_host=True)


class Answering:
    answers = True

    def answers_now(self) -> bool:
        return True


def a_node(name: str, free: dict[str, float] | None = None, **total: float) -> Node:
    return Node(node_id=name * 56, address=f"10.0.0.{name}", host=f"host-{name}", total=total, free=free or total)


def placement(monkeypatch: pytest.MonkeyPatch, *nodes: Node, is_pinned: bool = False) -> Placement:
    monkeypatch.setattr("tuner.ray_placement.alive_nodes", lambda: list(nodes))
    answering: Any = Answering()
    return Placement(answering, is_pinned=is_pinned)


def test_ray_chooses_where_amounts_say_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing = placement(monkeypatch, a_node("1", CPU=4, GPU=2), a_node("2", CPU=8, GPU=2))
    needs = Needs(num_cpus=2, device="GPU", num_devices=1, memory_bytes=2**30, resources={"disk": 0.5})
    assert choosing.choose(needs, [], waited_s=0.0) == (
        None,
        {"num_cpus": 2, "num_gpus": 1, "resources": {"disk": 0.5}, "memory": 2**30},
    )


def test_a_stage_that_takes_a_whole_node_takes_all_its_cpus_where_nodes_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choosing = placement(monkeypatch, a_node("1", CPU=4), a_node("2", CPU=4))
    assert choosing.choose(Needs(), [], waited_s=0.0) == (None, {"num_cpus": 4, "num_gpus": 0, "resources": None})


def test_a_stage_that_takes_a_whole_node_is_sent_to_a_free_one_where_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = a_node("1", CPU=4), a_node("2", free={"CPU": 7}, CPU=8)
    choosing = placement(monkeypatch, small, large)
    choice = choosing.choose(Needs(), [], waited_s=0.0)
    assert choice is not None
    node, options = choice
    assert node == small
    assert options["num_cpus"] == 4
    assert options["scheduling_strategy"].node_id == small.node_id
    assert choosing.choose(Needs(), [(small.node_id, Needs())], waited_s=0.0) is None
    queued = choosing.choose(Needs(), [(small.node_id, Needs())], waited_s=100.0)
    assert queued is not None
    assert queued[1]["num_cpus"] == 8


def test_a_compile_goes_to_the_device_host_with_most_free_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, idle = (
        a_node("1", free={"CPU": 2}, CPU=8, neuron_cores=64),
        a_node("2", free={"CPU": 6}, CPU=8, neuron_cores=64),
    )
    choosing = placement(monkeypatch, a_node("3", CPU=64), busy, idle)
    choice = choosing.choose(ON_HOST, [], waited_s=0.0)
    assert choice is not None
    assert choice[0] == idle
    assert choice[1]["resources"] is None


def test_the_shared_node_is_the_one_with_most_devices_then_cpus_then_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        a_node("4", CPU=8, neuron_cores=64),
        a_node("3", CPU=16, neuron_cores=64),
        a_node("2", CPU=16, neuron_cores=64),
        a_node("1", CPU=96, neuron_cores=32),
    ]
    for order in (nodes, nodes[::-1]):
        choosing = placement(monkeypatch, *order, is_pinned=True)
        assert [node.host for node in choosing.candidates()] == ["host-2"]


def test_the_shared_node_suffices_for_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = a_node("1", CPU=2, neuron_cores=64), a_node("2", CPU=8, neuron_cores=32)
    choosing = placement(monkeypatch, *nodes, is_pinned=True)
    choosing.intend([ON_HOST, Needs(num_cpus=4)])
    assert [node.host for node in choosing.candidates()] == ["host-2"]


def test_a_node_holds_as_many_stages_as_its_scarcest_resource_allows() -> None:
    node = a_node("1", CPU=16, neuron_cores=64, memory=64 * 2.0**30)
    assert node.room(Needs(num_cpus=2, device="neuron_cores", num_devices=16)) == 4
    assert node.room(Needs(num_cpus=2, memory_bytes=40 * 2**30)) == 1
    assert node.room(Needs()) == 1
    assert node.room(ON_HOST) == 16
    assert node.room(Needs(num_cpus=1, device="GPU", on_device_host=True)) == 0


def test_what_nodes_have_and_what_is_awaited_is_said_in_lines() -> None:
    nodes = [a_node("1", free={"CPU": 1.0}, CPU=2.0, neuron_cores=4.0, memory=2.0**31), a_node("2", CPU=2.0)]
    assert described(nodes, most=1) == ("  host-1 (10.0.0.1): 2 CPU, 4 neuron_cores, 2.0 GiB of memory\n  and 1 more")
    needs = Needs(num_cpus=1, device="neuron_cores", num_devices=2)
    assert free_for(needs, nodes) == "1 CPU, 2 neuron_cores (free: host-1 1 CPU, 0 neuron_cores)"
