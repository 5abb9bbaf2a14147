from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated import OpaqueEngine, World
from tuner.dispatch import Dispatcher, InlineDispatcher
from tuner.doctor import machine
from tuner.doctor.examination import Doors, Intended, check_token, examine
from tuner.doctor.findings import Finding, State
from tuner.doctor.installation import (
    check_engine,
    check_packages,
    check_python,
    check_tools,
    count_devices,
    devices_here,
)
from tuner.doctor.machine import Machine, check_folder, check_open_files, check_shared_memory, check_stages
from tuner.errors import DispatchError, StorageError, UnsatisfiableError
from tuner.hardware import read_hardware
from tuner.needs import Needs
from tuner.records import StageKind
from tuner.search_space import read_search_space
from tuner.settings import read_settings

GIB = 2**30
PLAIN = Machine(num_cpus=2, memory_bytes=8 * GIB)


class Refusing(InlineDispatcher):
    """A cluster on which nothing fits."""

    def check(self, needs: Iterable[Needs]) -> None:
        raise UnsatisfiableError(f"no machine has {next(iter(needs))}", "add machines")


def doors(
    dispatcher: Callable[[], Dispatcher] = InlineDispatcher, look_at_database: Callable[[], str] = lambda: "is current"
) -> Doors:
    return Doors(start_ray=dispatcher, see_machines=lambda: "  one machine", look_at_database=look_at_database)


def raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 2.0)


@pytest.fixture
def intended(tmp_path: Path) -> Intended:
    settings = read_settings({}, cache_dir=tmp_path / "cache", storage_url=f"sqlite:///{tmp_path / 'studies.sqlite'}")
    return Intended(hardware=read_hardware(), space=read_search_space("cpu-default"), settings=settings)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(OpaqueEngine.capabilities, needs_compile=True)
    monkeypatch.setattr(OpaqueEngine, "capabilities", able)
    monkeypatch.setattr(
        "tuner.doctor.examination.load_named_engine", lambda _name: OpaqueEngine(World(hit_rates={}, draft_ms={}))
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts another specdec-tuner before the real one, by what pip writes of it."""

    def install(*lines: str) -> None:
        folder = tmp_path / "site" / "specdec_tuner-9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            "\n".join(("Metadata-Version: 2.1", "Name: specdec-tuner", "Version: 9", *lines))
        )
        (folder / "entry_points.txt").write_text("[tuner.engines]\nlacking = tuner.testing.fakes:FakeEngine\n")
        monkeypatch.syspath_prepend(str(folder.parent))

    return install


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program that prints a text on an otherwise empty path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("tuner.doctor.installation.NEURON_FOLDER", tmp_path / "none")

    def write(name: str, said: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nprint('''{said}''')\n")
        path.chmod(0o755)

    return write


def states(found: Iterable[Finding]) -> dict[str, State]:
    return {one.subject: one.state for one in found}


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_machine_can_run_a_search_of_the_default_space(intended: Intended) -> None:
    found = {one.subject: one for one in examine(intended, doors(), {"RAY_AUTH_TOKEN": "t"})}
    assert State.FAILED not in {one.state for one in found.values()}
    assert found["cluster"].message == (
        "each kind of stage fits, and 1 configuration can be measured at once\n  one machine"
    )
    assert {"python", "packages", "engine", "stages", "cache", "data", "temporary", "database", "ports"} <= set(found)


def test_whatever_is_not_well_says_what_to_do(intended: Intended) -> None:
    wrong = replace(intended, hardware=read_hardware("trn2.48xlarge"), ray_address=None)
    found = tuple(examine(wrong, doors(raising(DispatchError("no Ray", "start it")))))
    assert all(one.hint for one in found if one.state is not State.OK)
    assert states(found)["ray"] is State.FAILED


def test_without_ray_nothing_is_started(intended: Intended) -> None:
    found = examine(replace(intended, with_ray=False), doors(raising(AssertionError("started"))))
    assert not {"ray", "cluster", "token"} & set(states(found))


def test_a_ray_that_is_not_installed_is_said(intended: Intended) -> None:
    found = {one.subject: one for one in examine(intended, doors(raising(ImportError("No module named 'ray'"))))}
    assert found["ray"].state is State.FAILED
    assert "pip install" in found["ray"].hint


def test_what_no_machine_of_the_cluster_offers_fails(intended: Intended) -> None:
    found = {one.subject: one for one in examine(replace(intended, ray_address="host:6379"), doors(Refusing))}
    assert (found["ray"].state, found["ray"].message[:16]) == (State.OK, "joined host:6379")
    assert (found["cluster"].state, found["cluster"].hint) == (State.FAILED, "add machines")


def test_a_machine_that_only_drives_a_cluster_needs_no_devices(intended: Intended) -> None:
    far = replace(intended, hardware=read_hardware("trn2.48xlarge"), ray_address="host:6379")
    found = states(examine(far, doors()))
    assert State.FAILED not in found.values()


def test_a_database_that_cannot_be_used_fails_with_its_own_hint(intended: Intended) -> None:
    broken = doors(look_at_database=raising(StorageError("the schema is older", "run `tuner db upgrade`")))
    found = {one.subject: one for one in examine(intended, broken)}
    assert (found["database"].state, found["database"].hint) == (State.FAILED, "run `tuner db upgrade`")


# ── artifacts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_engine_that_compiles_nothing_needs_no_place_for_artifacts(intended: Intended) -> None:
    found = {one.subject: one for one in examine(replace(intended, artifacts="nowhere"), doors())}
    assert found["artifacts"].state is State.OK


@pytest.mark.usefixtures("compiling")
def test_a_shared_place_is_tried_and_left_as_it_was(intended: Intended, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    found = {one.subject: one for one in examine(replace(intended, artifacts=str(shared)), doors())}
    assert found["artifacts"] == Finding("artifacts", State.OK, f"{shared} can be written and read")
    assert not list(shared.rglob("probe.txt"))


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("place", ["relative", "/proc/none/shared", "nosuch://bucket/x"])
def test_a_shared_place_that_cannot_be_used_fails(intended: Intended, place: str) -> None:
    found = {one.subject: one for one in examine(replace(intended, artifacts=place), doors())}
    assert found["artifacts"].state is State.FAILED
    assert found["artifacts"].hint


@pytest.mark.usefixtures("compiling")
def test_a_cluster_without_a_shared_place_compiles_and_measures_on_one_machine(intended: Intended) -> None:
    alone = {one.subject: one for one in examine(intended, doors())}
    cluster = {one.subject: one for one in examine(replace(intended, ray_address="host:6379"), doors())}
    assert alone["artifacts"].state is State.OK
    assert (cluster["artifacts"].state, "--artifacts" in cluster["artifacts"].hint) == (State.WARNING, True)


# ── what is installed ─────────────────────────────────────────────────────────────────────────────────────────────


def test_this_environment_has_what_the_package_needs() -> None:
    assert check_python().state is State.OK
    assert check_packages().state is State.OK
    assert check_engine("cpu").state is State.OK


def test_packages_that_are_missing_or_too_old_are_named(installed: Callable[..., None]) -> None:
    installed("Requires-Dist: numpy>=999", "Requires-Dist: no-such-package>=1", 'Requires-Dist: nor-this; extra == "x"')
    found = check_packages()
    assert found.state is State.FAILED
    assert ">=999 is needed" in found.message
    assert "no-such-package is not installed" in found.message
    assert "nor-this" not in found.message


def test_an_older_python_is_refused(installed: Callable[..., None]) -> None:
    installed("Requires-Python: >=99")
    assert check_python().state is State.FAILED


def test_an_engine_without_the_packages_of_its_extra_fails(installed: Callable[..., None]) -> None:
    installed("Provides-Extra: lacking", 'Requires-Dist: no-such-package; extra == "lacking"')
    found = check_engine("lacking")
    assert (found.state, found.hint) == (State.FAILED, "pip install --upgrade 'specdec-tuner[lacking]'")
    assert "no-such-package is not installed" in found.message


def test_an_engine_that_nobody_offers_fails() -> None:
    assert check_engine("warp").state is State.FAILED


@pytest.mark.parametrize(
    ("device", "program", "said", "count"),
    [
        ("neuron_cores", "neuron-ls", json.dumps([{"nc_count": 4}] * 16), 64),
        ("neuron_cores", "neuron-ls", "no devices", None),
        ("neuron_cores", "neuron-ls", json.dumps({"error": "driver"}), None),
        ("GPU", "nvidia-smi", "GPU 0: L4 (UUID: a)\nGPU 1: L4 (UUID: b)", 2),
    ],
)
def test_devices_are_counted_by_their_own_program(
    programs: Callable[[str, str], None], device: str, program: str, said: str, count: int | None
) -> None:
    programs(program, said)
    assert count_devices(device) == count


@pytest.mark.usefixtures("programs")
def test_programs_that_are_missing_fail_where_stages_run_here() -> None:
    here = list(check_tools("neuron_cores", compiles=True, are_needed_here=True))
    far = list(check_tools("neuron_cores", compiles=True, are_needed_here=False))
    assert [(one.message, one.state) for one in here] == [
        ("neuron-ls is not here", State.FAILED),
        ("neuronx-cc is not here", State.FAILED),
    ]
    assert {one.state for one in far} == {State.OK}
    assert count_devices("GPU") is None


def test_plain_machines_need_no_programs() -> None:
    assert list(check_tools(None, compiles=True, are_needed_here=True)) == []


# ── this machine ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_stages_that_can_never_fit_are_named_together() -> None:
    found = check_stages(PLAIN, read_hardware("trn2.48xlarge"), StageKind)
    assert (found.state, found.message) == (
        State.FAILED,
        "baseline, trace, measure, certify can never fit: 64 CPU (2 here) and 32 neuron_cores (0 here); "
        "compile can never fit: 32 CPU (2 here) and 238.4 GiB of memory (8.0 GiB here) and 1 neuron_cores (0 here)",
    )


def test_stages_that_fit_are_told_the_machine() -> None:
    big = Machine(num_cpus=192, memory_bytes=2048 * GIB, devices={"neuron_cores": 64})
    found = check_stages(big, read_hardware("trn2.48xlarge"), StageKind)
    assert (found.state, "192 CPU, 2048.0 GiB of memory, 64 neuron_cores" in found.message) == (State.OK, True)


def test_a_folder_needs_room_and_a_right_to_write(tmp_path: Path) -> None:
    assert check_folder("cache", tmp_path / "a" / "b", 0, "models").state is State.OK
    full = check_folder("cache", tmp_path, 10**18, "models")
    assert (full.state, "may be needed for models" in full.message) == (State.WARNING, True)
    assert check_folder("cache", Path("/proc/x"), 0, "models").state is State.FAILED
    (tmp_path / "file").touch()
    assert "is no folder" in check_folder("cache", tmp_path / "file" / "x", 0, "models").message
    assert not (tmp_path / "a").exists()


def test_a_machine_without_room_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_temporary(0, with_ray=False).state is State.OK

    def nowhere() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    assert machine.check_temporary(0, with_ray=True).state is State.FAILED


def test_memory_for_results_is_looked_at(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path).state is State.OK
    assert check_shared_memory(tmp_path / "none").state is State.WARNING


def test_too_few_open_files_are_told() -> None:
    assert check_open_files(1024).state is State.WARNING
    assert check_open_files(65536).state is State.OK
    assert check_open_files().subject == "open files"


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_quiet().state is State.OK
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 85.0)
    assert machine.check_quiet().state is State.WARNING


# ── the token of Ray ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environment", "has_file", "address", "state", "said"),
    [
        ({}, False, None, State.OK, "makes a token"),
        ({}, True, None, State.OK, "~/.ray/auth_token"),
        ({}, False, "host:6379", State.WARNING, "no token here"),
        ({"RAY_AUTH_MODE": "token"}, False, "host:6379", State.FAILED, "no token here"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}, False, "host:6379", State.OK, "RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN_PATH": "/none"}, True, "host:6379", State.WARNING, "no token here"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "host:6379", State.WARNING, "the cluster's ports"),
        ({"RAY_AUTH_MODE": "disabled"}, True, None, State.WARNING, "this machine's ports"),
    ],
)
def test_who_may_run_programs_on_ray_is_said(
    tmp_path: Path, environment: dict[str, str], has_file: bool, address: str | None, state: State, said: str
) -> None:
    if has_file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    found = check_token(environment, tmp_path, address)
    assert (found.state, said in found.message) == (state, True)
    assert "secret" not in found.message + found.hint


@pytest.mark.parametrize(
    ("device", "stated", "here"),
    [(None, None, {}), ("tpu_chips", 4, {"tpu_chips": 4}), ("tpu_chips", None, {}), ("neuron_cores", 64, {})],
)
def test_devices_of_this_machine_are_counted_where_they_can_be(
    device: str | None, stated: int | None, here: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.doctor.installation.find_tool", lambda _name: None)
    assert devices_here(device, stated) == here
