"""What is installed here: Python, packages, the engine and the programs of its devices."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tuner.doctor.findings import Finding, doubtful, failed, failed_by, fine
from tuner.engines import ENTRY_POINT_GROUP, Engine, load_engine
from tuner.errors import TunerError

DISTRIBUTION = "specdec-tuner"

NEURON_LS = "neuron-ls"
NEURON_FOLDER = Path("/opt/aws/neuron/bin")
"""Where AWS's packages put Neuron's tools; not every shell looks there."""

TOOLS = {"neuron_cores": (NEURON_LS,), "GPU": ("nvidia-smi",)}
"""The program that counts the devices of a machine."""

COMPILERS = {"neuron_cores": ("neuronx-cc",)}
TOOL_TIMEOUT_S = 30.0


def check_python() -> Finding:
    """Whether this Python is one that the package is made for."""
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    wanted = _wanted_python()
    if wanted and not SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
        return failed("python", f"{here}, and {wanted} is needed", "make a virtual environment with a newer Python")
    return fine("python", here)


def _wanted_python() -> str:
    try:
        stated = distribution(DISTRIBUTION).metadata
    except PackageNotFoundError:
        return ""
    return str(next(iter(stated.get_all("Requires-Python") or ()), ""))


def check_packages() -> Finding:
    """Whether the packages that the tuner needs are there, none older than its lower bound."""
    try:
        own = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        hint = "pip install -e . in the checkout, so that its packages and engines are found"
        return doubtful("packages", f"{DISTRIBUTION} is not installed; nothing says what it needs", hint)
    needed = list(_requirements(own, extra=""))
    if problems := _problems(needed):
        return failed("packages", "; ".join(problems), f"pip install --upgrade {DISTRIBUTION}")
    return fine("packages", f"{DISTRIBUTION} {own.version}, and the {len(needed)} packages that it needs")


def check_engine(name: str) -> Finding:
    """Whether the engine of a search space can be used, with the packages of its extra."""
    try:
        engine = load_engine(name)
        entry = next(one for one in entry_points(group=ENTRY_POINT_GROUP) if one.name == name)
    except TunerError as error:
        return failed_by("engine", error)
    home = entry.dist
    if home is None:
        return fine("engine", f"{name}: {entry.value}")
    if problems := _problems(_requirements(home, extra=name)):
        return failed("engine", f"{name}: {'; '.join(problems)}", f"pip install --upgrade '{home.name}[{name}]'")
    abilities = "compiles configurations" if engine.capabilities.needs_compile else "compiles nothing"
    return fine("engine", f"{name} of {home.name} {home.version}, {abilities}")


def _requirements(package: Distribution, extra: str) -> Iterator[Requirement]:
    """What a package needs: of itself, or further for an extra."""
    for requirement in map(Requirement, package.requires or ()):
        is_further = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if is_wanted and is_further == bool(extra):
            yield requirement


def _problems(requirements: Iterable[Requirement]) -> list[str]:
    found = []
    for requirement in requirements:
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            found.append(f"{requirement.name} is not installed")
            continue
        if not requirement.specifier.contains(here, prereleases=True):
            found.append(f"{requirement.name} is {here}, and {requirement.specifier} is needed")
    return found


# ── programs of devices ───────────────────────────────────────────────────────────────────────────────────────────


def check_tools(device: str | None, *, compiles: bool, are_needed_here: bool) -> Iterator[Finding]:
    """Whether the programs that count devices, and compile for them, are here.

    Args:
        device: Of the hardware; None needs none.
        compiles: Whether the engine compiles.
        are_needed_here: False where stages run on other machines.
    """
    names = (*TOOLS.get(device or "", ()), *(COMPILERS.get(device or "", ()) if compiles else ()))
    for name in names:
        place = find_tool(name)
        if place is not None:
            yield fine("tools", f"{name} is {place}")
        elif are_needed_here:
            yield failed("tools", f"{name} is not here", _how_to_get(device or ""))
        else:
            yield fine("tools", f"{name} is not here; the machines that run stages need it")


def _how_to_get(device: str) -> str:
    if device == "GPU":
        return "install NVIDIA's driver, or give --hardware of what this machine has"
    return "install AWS Neuron's tools and compiler, or use one of its images, or give another --hardware"


def find_tool(name: str) -> Path | None:
    """Where a program is; None where it is not."""
    found = shutil.which(name)
    if found is None and (NEURON_FOLDER / name).is_file():
        return NEURON_FOLDER / name
    return None if found is None else Path(found)


def count_devices(device: str) -> int | None:
    """Devices of this machine, as their own program counts them; None where it cannot tell."""
    tools = TOOLS.get(device, ())
    place = find_tool(tools[0]) if tools else None
    if place is None:
        return None
    arguments = ["--json-output"] if place.name == NEURON_LS else ["-L"]
    try:
        said = subprocess.run(
            [str(place), *arguments], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True
        ).stdout
        return _neuron_cores(said) if place.name == NEURON_LS else _gpus(said)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def devices_here(device: str | None, stated: int | None) -> dict[str, int]:
    """Devices of this machine by the name of their resource; none where there are none.

    Args:
        device: The resource; None for plain machines.
        stated: What the hardware file says of one machine, which holds where no program counts such devices.
    """
    if device is None:
        return {}
    count = count_devices(device) if device in TOOLS else stated
    return {device: count} if count else {}


def _neuron_cores(said: str) -> int:
    """Logical cores of all chips, as Ray counts them."""
    return sum(int(chip["nc_count"]) for chip in json.loads(said))


def _gpus(said: str) -> int:
    return sum(line.startswith("GPU ") for line in said.splitlines())


def load_named_engine(name: str) -> Engine | None:
    """The engine of that name; None where it cannot be used, which ``check_engine`` says."""
    try:
        return load_engine(name)
    except TunerError:
        return None
