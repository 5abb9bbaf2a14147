"""What a stranger gets: a light command, short modules, complete documents, and nothing of our machines."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner import errors

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = ("tuner", "storage", "tests", "tools", "benchmarks")
TEXT_FOLDERS = ("deploy", "docs", "notebooks", "search_spaces", "workloads")
MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_HELP_CPU_S = 0.3
HEAVY_PACKAGES = frozenset(
    {"alembic", "numpy", "optuna", "pandas", "plotly", "ray", "scipy", "sqlalchemy", "torch", "transformers"}
)
# Bracketed letters keep this file from matching itself.
OUR_MACHINES = re.compile(r"(?<![\w./:}])/(?:[w]ork|[f]arm|[r]oot|[h]ome/\w+|[U]sers/\w+|[t]mp/[\w.]+)(?=/|\b)")


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "storage")))}


def _tracked_files() -> list[Path]:
    """What git tracks; in a copy without git, every file of the project's folders."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        folders = (*CODE_FOLDERS, *TEXT_FOLDERS)
        found = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
        return [path for path in (*found, *ROOT.iterdir()) if path.is_file()]
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]  # the checkout may be another user's
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def _python_files() -> list[Path]:
    return [path for folder in CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _project() -> dict[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(project, dict)
    return project


def _error_classes() -> dict[str, type[errors.TunerError]]:
    return {
        name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TunerError)
    }


def _cpu_s_of_help() -> float:
    program = "import sys; sys.argv = ['tuner', '--help']; from tuner.cli.main import main; main()"
    with subprocess.Popen([sys.executable, "-c", program], env=_environment(), stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_is_fast() -> None:
    assert min(_cpu_s_of_help() for _ in range(3)) <= MAX_HELP_CPU_S


def test_the_command_line_imports_no_heavy_package() -> None:
    program = "import json, sys, tuner.cli.main; print(json.dumps([name.split('.')[0] for name in sys.modules]))"
    printed = subprocess.check_output([sys.executable, "-c", program], env=_environment(), text=True)
    assert sorted(HEAVY_PACKAGES.intersection(json.loads(printed))) == []


def test_no_module_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in _python_files()}
    assert lengths
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in _python_files()
        for node in _functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("package", ["tuner", "storage/tuner_storage"])
def test_types_are_published(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("folder", ["work/x", "root/.cache", "home/ann/models", "tmp/v/bin"])
def test_a_path_of_a_machine_is_recognised(folder: str) -> None:
    assert OUR_MACHINES.search(f'open("/{folder}")')


@pytest.mark.parametrize("before", ["https://host", "docs", ".", "{home}"])
def test_an_address_or_a_relative_path_is_not_taken_for_one(before: str) -> None:
    assert OUR_MACHINES.search(f"{before}/{'work'}/x") is None


def test_no_tracked_file_names_a_path_of_a_developers_machine() -> None:
    found = []
    for path in _tracked_files():
        if path == Path(__file__) or b"\0" in (data := path.read_bytes()):
            continue
        for number, line in enumerate(data.decode().splitlines(), start=1):
            if match := OUR_MACHINES.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert found == []


def test_every_error_has_its_section_with_the_exit_code() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    sections = re.findall(r"^### (\w+)\n\nExit code (\d+)\.", text, flags=re.MULTILINE)
    expected = {name: kind.exit_code for name, kind in _error_classes().items()}
    assert {name: int(code) for name, code in sections} == expected


def test_the_changelog_describes_this_version() -> None:
    assert f"## [{_project()['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_direct_dependency_has_a_tested_pin() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [settings["project"]["dependencies"], *settings["project"]["optional-dependencies"].values()]
    lists += settings["dependency-groups"].values()
    wanted = {_normalised(re.split(r"[\[<>=~! ]", one)[0]) for each in lists for one in each if isinstance(one, str)}
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert wanted - {_normalised(name) for name in pins} == set()


def test_the_first_screen_of_the_readme_has_both_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make search" in first_screen
    assert "make test" in first_screen


def test_make_alone_lists_the_targets() -> None:
    printed = subprocess.check_output(["make", "--no-print-directory"], cwd=ROOT, text=True)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert targets is not None
    assert [line.split()[0] for line in printed.splitlines()] == targets.group(1).split()


def test_the_map_of_the_code_names_every_module_once() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = text.split("## Where things are")[1].split("## ")[0].split("|---|---|")[1]
    named = re.findall(r"`([a-z_]+)`", rooms)
    here = {path.stem for path in (ROOT / "tuner").glob("*.py")}
    here |= {path.name for path in (ROOT / "tuner").iterdir() if (path / "__init__.py").is_file()}
    assert sorted(named) == sorted(here)
