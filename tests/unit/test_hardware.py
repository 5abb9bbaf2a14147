from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import HardwareError, NotFoundError
from tuner.hardware import DEFAULT_HARDWARE, Hardware, StageOnHardware, hardware_names, read_hardware
from tuner.needs import Needs
from tuner.records import StageKind

TIMED = (StageKind.BASELINE, StageKind.TRACE, StageKind.MEASURE, StageKind.CERTIFY)
EVERYWHERE = "{num_cpus: 4}"
SHARED = "\n".join(f"  {kind}: {EVERYWHERE}" for kind in StageKind)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str) -> Hardware:
        path = tmp_path / "mine.yaml"
        path.write_text(f"name: mine\ndescription: Of a test.\n{text}\n")
        return read_hardware(path)

    return write


def test_plain_machines_are_the_default_and_give_each_timed_stage_all_cpus() -> None:
    hardware = read_hardware()
    assert hardware.name == DEFAULT_HARDWARE
    assert [hardware.needs(kind) for kind in TIMED] == [Needs()] * len(TIMED)
    assert hardware.needs(StageKind.COMPILE) == Needs(num_cpus=1)


def test_plain_machines_change_nothing_about_a_study() -> None:
    assert read_hardware().identity == {}


@pytest.mark.parametrize("name", hardware_names())
def test_shipped_hardware_can_run_every_stage(name: str) -> None:
    hardware = read_hardware(name)
    for kind in StageKind:
        needs = hardware.needs(kind)
        assert needs.num_devices <= (hardware.devices_per_machine or 0)
        assert (needs.num_cpus or 1) <= (hardware.cpus_per_machine or needs.num_cpus or 1)


def test_two_blocks_of_trn2_measure_at_once_and_leave_cpus_to_compile_on() -> None:
    hardware = read_hardware("trn2.48xlarge")
    measure, compiling = hardware.needs(StageKind.MEASURE), hardware.needs(StageKind.COMPILE)
    assert (measure.device, measure.num_devices, measure.num_cpus) == ("neuron_cores", 32, 64)
    assert (compiling.device, compiling.num_devices, compiling.on_device_host) == ("neuron_cores", 0, True)
    assert hardware.per_machine(StageKind.MEASURE) == 2
    assert 2 * 64 + 2 * (compiling.num_cpus or 0) == hardware.cpus_per_machine


def test_a_configuration_costs_the_share_of_a_machine_that_it_holds(written: Any) -> None:
    assert written("device: GPU\ndevices_per_machine: 8\nblock: 2\nprice_per_hour: 10").measured_price_per_hour == 2.5
    assert written("price_per_hour: 10").measured_price_per_hour == 10


def test_no_shipped_hardware_claims_a_price() -> None:
    assert {read_hardware(name).price_per_hour for name in hardware_names()} == {None}


def test_what_a_stage_says_comes_over_what_all_say(written: Any) -> None:
    hardware = written(
        "device: GPU\ndevices_per_machine: 8\nenvironment: {A: all, B: all}\nstages:\n"
        "  measure: {blocks: 2, memory_gb: 1.5, resources: {licence: 1}, deadline_s: 60, environment: {B: mine}}"
    )
    assert hardware.needs(StageKind.MEASURE) == Needs(
        device="GPU",
        num_devices=2,
        memory_bytes=1_500_000_000,
        resources={"licence": 1.0},
        environment={"A": "all", "B": "mine"},
    )
    assert hardware.needs(StageKind.CERTIFY).environment == {"A": "all", "B": "all"}
    deadlines = [hardware.deadline_s(kind, 1800.0) for kind in (StageKind.MEASURE, StageKind.CERTIFY)]
    assert deadlines == [60.0, 1800.0]


def test_a_timed_stage_may_hold_no_device(written: Any) -> None:
    needs = written("device: GPU\nstages: {trace: {blocks: 0}}").needs(StageKind.TRACE)
    assert (needs.device, needs.num_devices, needs.on_device_host) == (None, 0, False)


def test_compiles_on_plain_machines_need_no_machine_with_devices(written: Any) -> None:
    needs = written("device: neuron_cores\ncompile_on: cpu\ncompile_price_per_hour: 2").needs(StageKind.COMPILE)
    assert needs == Needs(num_cpus=1)


def test_a_block_makes_another_study_and_a_price_does_not(written: Any) -> None:
    one = written("device: GPU\nblock: 1")
    dear = written("device: GPU\nblock: 1\nprice_per_hour: 12.5\nartifacts: s3://bucket/x")
    two = written("device: GPU\nblock: 2")
    assert one.identity == dear.identity == {"device": "GPU", "block": 1}
    assert two.identity != one.identity


def test_artifacts_go_where_the_option_says_else_where_the_file_says(written: Any, tmp_path: Path) -> None:
    hardware = written("artifacts: s3://bucket/file\nnode_cache_gb: 2")
    places = [hardware.artifact_place(tmp_path, option) for option in (None, "s3://bucket/option")]
    assert [place.shared for place in places] == ["s3://bucket/file", "s3://bucket/option"]
    assert {place.node_limit_bytes for place in places} == {2_000_000_000}
    assert {place.node_dir for place in places} == {str(tmp_path / "artifacts")}
    assert read_hardware().artifact_place(tmp_path).node_limit_bytes is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 1),
        ("device: GPU\ndevices_per_machine: 8", 1),
        (f"device: GPU\ndevices_per_machine: 8\nstages:\n{SHARED}", 8),
        (f"device: GPU\ndevices_per_machine: 8\ncpus_per_machine: 12\nstages:\n{SHARED}", 3),
        (f"stages:\n{SHARED}", 1),
    ],
)
def test_as_many_stages_run_at_once_as_cpus_and_devices_allow(written: Any, text: str, count: int) -> None:
    assert written(text).per_machine(StageKind.MEASURE) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stages: {measure: {num_cpus: 4}}", "say num_cpus for baseline, trace, compile, certify too"),
        ("stages: {measure: {num_cpus: 0}}", "should be a whole number from 1 to 4096, or all, found 0"),
        ("stages: {measure: {num_cpus: true}}", "should be a whole number from 1 to 4096, or all"),
        ("stages: {measure: {num_cpus: some}}", "or all, found 'some'"),
        ("cpus_per_machine: 2\nstages: {compile: {num_cpus: 4}}", "stage compile takes 4 CPUs, one machine has 2"),
        ("block: 4", "device is missing"),
        ("stages: {measure: {blocks: 1}}", "device is missing"),
        ("device: GPU\ndevices_per_machine: 8\nblock: 3", "8 is no multiple of block 3"),
        (
            "device: GPU\ndevices_per_machine: 4\nblock: 2\nstages: {certify: {blocks: 3}}",
            "stage certify takes 6 GPU, one machine has 4",
        ),
        ("device: GPU\nstages: {measure: {resources: {GPU: 1}}}", "say blocks instead"),
        ("stages: {measure: {resources: {CPU: 1}}}", "say num_cpus or memory_gb instead"),
        ("compile_price_per_hour: 1", "say compile_on: cpu"),
        ("compile_on: laptop", "'device_host' or 'cpu'"),
        ("price_per_hour: .inf", "price_per_hour"),
        ("environment: {A: 1}", "should be text, found 1"),
        ("stages: {measured: {}}", "stages.measured is not a known key"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_reason(written: Any, text: str, said: str) -> None:
    with pytest.raises(HardwareError, match=r"mine\.yaml") as refused:
        written(text)
    assert said in refused.value.message


def test_saying_all_counts_as_saying_how_many_cpus(written: Any) -> None:
    rest = "\n".join(f"  {kind}: {{num_cpus: all}}" for kind in StageKind if kind is not StageKind.MEASURE)
    assert written(f"stages:\n  measure: {{num_cpus: 4}}\n{rest}").needs(StageKind.CERTIFY).num_cpus is None


@pytest.mark.parametrize(
    ("reference", "said"),
    [("trn2.48xlarg", "did you mean 'trn2.48xlarge'?"), ("none.yaml", "no such hardware file"), ("a/b", "no such")],
)
def test_hardware_that_is_not_there_is_named(reference: str, said: str) -> None:
    with pytest.raises(NotFoundError) as missing:
        read_hardware(reference)
    assert said in str(missing.value)


def test_the_example_of_the_documentation_can_be_used(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    lines = text.split("## A file of your own\n\n")[1].split("\n\n")[0].splitlines()
    (tmp_path / "farm.yaml").write_text("\n".join(line.removeprefix("    ") for line in lines))
    assert read_hardware(tmp_path / "farm.yaml").name == "our-farm"


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    fields = {*Hardware.model_fields, *StageOnHardware.model_fields}
    assert {name for name in fields if f"`{name}`" not in text} == set()
