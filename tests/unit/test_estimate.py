from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated import OpaqueEngine, World
from tuner.documents import plan_document
from tuner.estimate import PlanDescription, describe_search
from tuner.hardware import Hardware, read_hardware
from tuner.records import StageKind
from tuner.report import plan_sentences, plan_table
from tuner.search_space import read_search_space
from tuner.settings import read_settings
from tuner.workload import read_workload

GB = 10**9
FARM = read_hardware("trn2.48xlarge").model_copy(update={"name": "farm", "price_per_hour": 10.0})


def a_model(folder: Path, size_bytes: int) -> str:
    """A folder whose weights have a size, and no content."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size_bytes)
    return str(folder)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine compiles, runs on trn2 and holds one model at a time."""
    able = replace(OpaqueEngine.capabilities, needs_compile=True, device="trn2", loads_at_once=1)
    monkeypatch.setattr(OpaqueEngine, "capabilities", able)
    monkeypatch.setattr("tuner.estimate.load_engine", lambda _name: OpaqueEngine(World(hit_rates={}, draft_ms={})))


@pytest.fixture
def described(tmp_path: Path) -> Any:
    target, draft = a_model(tmp_path / "target", 65 * GB), a_model(tmp_path / "draft", GB)
    space = read_search_space("cpu-default").with_drafts([f"draft_model:{draft}"])

    def describe(hardware: Hardware = FARM, max_trials: int = 7, **options: Any) -> PlanDescription:
        return describe_search(
            target=target,
            workload=read_workload("code-gen"),
            space=space,
            max_trials=max_trials,
            settings=read_settings({}),
            hardware=hardware,
            **options,
        )

    return describe


def stage(plan: PlanDescription, kind: StageKind) -> Any:
    return next(one for one in plan.stages if one.kind is kind)


@pytest.mark.usefixtures("compiling")
def test_each_configuration_and_no_speculation_is_compiled_once_at_most(described: Any) -> None:
    plan = described()
    assert plan.compiles == 7
    assert stage(plan, StageKind.MEASURE).count == 6
    assert 900 < plan.compile_s < 1100  # 950 to 1010 s were published for such models


def test_an_engine_without_a_compiler_compiles_nothing(described: Any) -> None:
    plan = described()
    assert (plan.compiles, plan.compile_s, plan.machines.artifact_bytes) == (0, 0.0, 0)
    assert not any("compile" in line for line in plan_sentences(plan))


@pytest.mark.usefixtures("compiling")
def test_devices_are_counted_for_as_long_as_stages_hold_them(described: Any) -> None:
    plan = described()
    held_s = sum(one.seconds for one in plan.stages if one.kind is not StageKind.COMPILE)
    assert plan.machines.device_hours == pytest.approx(32 * held_s / 3600)
    assert plan.machines.block_hours == pytest.approx(held_s / 3600)
    assert stage(plan, StageKind.COMPILE).num_devices == 0


@pytest.mark.usefixtures("compiling")
def test_one_machine_takes_two_configurations_at_once_unless_more_are_asked_for(described: Any) -> None:
    alone, more = described(), described(parallel=6, is_cluster=True)
    assert (alone.machines.parallel, alone.machines.count) == (2, 1)
    assert (more.machines.parallel, more.machines.count) == (6, 3)
    assert more.machines.wall_s < alone.machines.wall_s < alone.seconds


def test_one_machine_takes_no_more_than_fit_whatever_is_asked_for(described: Any) -> None:
    machines = described(parallel=6).machines
    assert (machines.parallel, machines.count) == (2, 1)


def test_no_more_are_in_flight_than_there_are_to_try(described: Any) -> None:
    assert described(max_trials=2, parallel=8, is_cluster=True).machines.parallel == 1
    assert described(max_trials=1, parallel=8, is_cluster=True).machines.parallel == 1


@pytest.mark.usefixtures("compiling")
def test_machines_are_paid_from_begin_to_end(described: Any) -> None:
    machines = described(parallel=6, is_cluster=True).machines
    assert machines.machine_hours == pytest.approx(3 * machines.wall_s / 3600)
    assert machines.cost == pytest.approx(10.0 * machines.machine_hours)
    assert described(price_per_hour=20.0, parallel=6, is_cluster=True).machines.cost == pytest.approx(
        2 * (machines.cost or 0.0)
    )


def test_what_has_no_price_has_no_cost(described: Any) -> None:
    plan = described(read_hardware("trn2.48xlarge"))
    assert plan.machines.cost is None
    assert any("cost not known without --price-per-hour" in line for line in plan_sentences(plan))


@pytest.mark.usefixtures("compiling")
def test_machines_that_only_compile_are_paid_apart(described: Any) -> None:
    update = {"compile_on": "cpu", "compile_price_per_hour": 2.0}
    machines = described(FARM.model_copy(update=update)).machines
    assert machines.compile_machine_hours > 1
    assert machines.cost == pytest.approx(10.0 * machines.machine_hours + 2.0 * machines.compile_machine_hours)
    unpriced = described(FARM.model_copy(update={"compile_on": "cpu"}))
    assert unpriced.machines.cost is None
    assert any("without compile_price_per_hour" in line for line in plan_sentences(unpriced))


@pytest.mark.usefixtures("compiling")
def test_compiled_artifacts_take_disk_where_they_are_shared(described: Any) -> None:
    plan = described(artifacts="s3://bucket/x")
    assert plan.machines.artifact_bytes == 7 * 66 * GB
    assert plan_sentences(plan)[-1].endswith("and compiled artifacts up to 462.0 GB in s3://bucket/x")
    assert plan_sentences(described())[-1].endswith("up to 462.0 GB on each machine")


@pytest.mark.usefixtures("compiling")
def test_a_token_takes_as_long_as_was_published_for_such_devices(described: Any) -> None:
    tokens = 600
    seconds = stage(described(), StageKind.BASELINE).seconds
    assert 0.03 * tokens < seconds  # 45 ms a token were published for 32B weights on 32 cores
    assert any("by published times of trn2" in line for line in plan_sentences(described()))


def test_a_target_of_unknown_size_is_said_to_be_left_out_of_the_time() -> None:
    plan = describe_search(
        target="acme/none",
        workload=read_workload("code-gen"),
        space=read_search_space("cpu-default").with_drafts(["ngram"]),
        max_trials=3,
        settings=read_settings({}),
    )
    assert any("the size of the target is not known" in line for line in plan_sentences(plan))


@pytest.mark.usefixtures("compiling")
def test_an_engine_that_loads_one_model_at_a_time_runs_each_side_twice(described: Any) -> None:
    plan = described()
    certified = len(read_workload("code-gen").certify_sample())
    assert stage(plan, StageKind.CERTIFY).requests == 4 * certified
    assert stage(plan, StageKind.MEASURE).requests == len(read_workload("code-gen").search_sample())


@pytest.mark.usefixtures("compiling")
def test_the_plan_as_json_has_compiles_devices_money_and_disk(described: Any) -> None:
    document = plan_document(described())
    assert document["compiles"] == 7
    assert {"device_hours", "machine_hours", "cost", "currency", "wall_s", "artifact_bytes"} <= set(
        document["machines"]
    )
    json.dumps(document, allow_nan=False)


@pytest.mark.usefixtures("compiling")
def test_the_table_says_what_each_stage_holds(described: Any) -> None:
    table = plan_table(described())
    assert list(table.columns[-1].cells) == [
        "64 CPU, 32 neuron_cores",
        "64 CPU, 32 neuron_cores",
        "32 CPU, 238.4 GiB of memory, on a machine with neuron_cores",
        "64 CPU, 32 neuron_cores",
        "64 CPU, 32 neuron_cores",
    ]
