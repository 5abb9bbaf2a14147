from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import RunCli, run_main
from tuner.hardware import hardware_names


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


def test_the_list_has_all_that_come_with_the_package(tuner: RunCli) -> None:
    shown = tuner("hardware", "list").stdout
    listed = json.loads(tuner("hardware", "list", "--json").stdout)["hardware"]
    assert [one["name"] for one in listed] == list(hardware_names())
    assert all(name in shown for name in hardware_names())


def test_shown_is_what_each_stage_holds(tuner: RunCli) -> None:
    shown = tuner("hardware", "show", "trn2.48xlarge").stdout
    assert "64 CPU, 32 neuron_cores" in shown
    assert "on a machine with neuron_cores" in shown
    assert "write price_per_hour into a copy" in shown
    stages = json.loads(tuner("hardware", "show", "trn2.48xlarge", "--json").stdout)["stages"]
    assert (stages["measure"]["num_cpus"], stages["measure"]["per_machine"]) == (64, 2)


def test_plain_machines_show_that_a_stage_takes_them_whole(tuner: RunCli) -> None:
    stages = json.loads(tuner("hardware", "show", "cpu", "--json").stdout)["stages"]
    assert stages["measure"]["num_cpus"] == "all"
    assert "every CPU of a machine" in tuner("hardware", "show", "cpu").stdout


def test_all_that_a_file_says_is_shown(tuner: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "farm.yaml"
    path.write_text(
        "name: farm\ndescription: Of a test.\ndevice: GPU\nprice_per_hour: 12.5\ncurrency: EUR\ncompile_on: cpu\n"
        "compile_price_per_hour: 2\nartifacts: s3://bucket/x\ncompile_facts: {sdk: '2.26'}\nenvironment: {A: b}\n"
        "node_cache_gb: 400\nwait_for_nodes_s: 900\n"
    )
    shown = tuner("hardware", "show", str(path)).stdout
    for said in (
        "12.5 EUR an hour",
        "compiles: 2 EUR",
        "s3://bucket/x",
        "compiled for sdk 2.26",
        "with A set",
        "400 GB at most",
        "for 900 s",
    ):
        assert said in shown


def test_a_right_file_is_ok_and_a_wrong_one_is_told_the_line(tuner: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ndescription: Of a test.\n")
    right = tuner("hardware", "check", str(path))
    assert (right.exit_code, right.stdout) == (0, "ok: mine measures 1 configuration at once on each machine\n")
    assert json.loads(tuner("hardware", "check", str(path), "--json").stdout)["ok"] is True
    path.write_text("name: mine\ndescription: Of a test.\nblok: 1\n")
    wrong = tuner("hardware", "check", str(path))
    assert wrong.exit_code == 2
    assert "mine.yaml:3: blok is not a known key" in wrong.stderr
    assert "did you mean 'block'?" in wrong.stderr
