"""What the wheel holds, and that it works away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MAX_DRAFT_BYTES = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release makes it: from the source distribution, not from the working tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sizes(wheel: Path) -> dict[str, int]:
    """Bytes of every file in the wheel, by its path."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder


def _run(command: list[str], installed: Path, elsewhere: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.check_output(command, cwd=elsewhere, env=environment, text=True)


def test_the_top_level_holds_the_two_packages_only(sizes: dict[str, int]) -> None:
    top = {name.split("/")[0] for name in sizes}
    assert {name for name in top if not name.endswith(".dist-info")} == {"tuner", "tuner_storage"}


@pytest.mark.parametrize(
    ("folder", "pattern", "packaged"),
    [
        ("workloads", "*.yaml", "tuner/_catalog/workloads"),
        ("workloads", "*.jsonl", "tuner/_catalog/workloads"),
        ("search_spaces", "*.yaml", "tuner/_catalog/search_spaces"),
        ("tuner", "*.py", "tuner"),
        ("tuner", "*.yaml", "tuner"),
        ("tuner", "*.safetensors", "tuner"),
        ("tuner", "py.typed", "tuner"),
        ("storage/tuner_storage", "*.py", "tuner_storage"),
        ("storage/tuner_storage", "py.typed", "tuner_storage"),
    ],
)
def test_every_file_of_a_packaged_folder_is_inside(
    sizes: dict[str, int], folder: str, pattern: str, packaged: str
) -> None:
    wanted = {f"{packaged}/{path.relative_to(ROOT / folder).as_posix()}" for path in (ROOT / folder).rglob(pattern)}
    assert wanted, f"no {pattern} in {folder}"
    assert wanted - set(sizes) == set()


def test_migrations_are_inside(sizes: dict[str, int]) -> None:
    assert [name for name in sizes if name.startswith("tuner_storage/migrations/versions/") and name.endswith(".py")]


def test_the_model_catalogue_is_inside(sizes: dict[str, int]) -> None:
    assert "tuner/catalog.yaml" in sizes


def test_trained_drafts_are_inside_and_small(sizes: dict[str, int]) -> None:
    drafts = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    assert len(drafts) >= 2
    assert {name: size for name, size in drafts.items() if size > MAX_DRAFT_BYTES} == {}


def test_a_shipped_workload_is_read_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = "from tuner.workload import read_workload; print(read_workload('code-gen').name)"
    assert _run([sys.executable, "-c", program], installed, tmp_path).strip() == "code-gen"


def test_shipped_hardware_is_read_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = (
        "from tuner.hardware import hardware_names, read_hardware; print(read_hardware(hardware_names()[-1]).name)"
    )
    assert _run([sys.executable, "-c", program], installed, tmp_path).strip() == "trn2.48xlarge"


def test_it_is_imported_from_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    program = "import tuner, tuner_storage; print(tuner.__file__); print(tuner_storage.__file__)"
    printed = _run([sys.executable, "-c", program], installed, tmp_path).splitlines()
    assert [Path(line).parents[1] for line in printed] == [installed, installed]


def test_the_built_in_engine_is_found_by_its_name(installed: Path, tmp_path: Path) -> None:
    program = "from tuner.engines import load_engine; print(type(load_engine('cpu')).__name__)"
    assert _run([sys.executable, "-c", program], installed, tmp_path).strip() == "CpuEngine"


def test_the_command_starts(installed: Path, tmp_path: Path) -> None:
    assert "search" in _run([str(installed / "bin" / "tuner"), "--help"], installed, tmp_path)
