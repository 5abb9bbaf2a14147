"""Whether a search could be run: what is installed, this machine, Ray, the disks, the database and shared artifacts."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.artifacts import ArtifactCache, ArtifactPlace
from tuner.artifacts.places import open_shared
from tuner.dispatch import Dispatcher
from tuner.doctor import machine
from tuner.doctor.findings import Finding, doubtful, failed, failed_by, fine
from tuner.doctor.installation import (
    check_engine,
    check_packages,
    check_python,
    check_tools,
    devices_here,
    load_named_engine,
)
from tuner.engines import Engine
from tuner.errors import StorageError, TunerError
from tuner.estimate import missing_model_bytes
from tuner.hardware import Hardware
from tuner.needs import Needs
from tuner.records import StageKind
from tuner.search_space import SearchSpace
from tuner.settings import Settings

DATA_BYTES = 200_000_000
"""A study takes a few megabytes; a database of many of them grows slowly."""

TEMPORARY_BYTES = 1_000_000_000
TOKEN_FILE = Path(".ray") / "auth_token"
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """What the checks open, given by whoever may open it.

    Attributes:
        start_ray: Starts or joins Ray.
        see_machines: What each machine of the Ray that was joined has, a line for each.
        look_at_database: Says how the database is, in words.
    """

    start_ray: Callable[[], Dispatcher]
    see_machines: Callable[[], str]
    look_at_database: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intended:
    """The search that is meant.

    Attributes:
        artifacts: Shared place for compiled artifacts; None takes the hardware's.
        ray_address: Of a running Ray; None is this machine.
        with_ray: Whether Ray is started or joined.
    """

    hardware: Hardware
    space: SearchSpace
    settings: Settings
    artifacts: str | None = None
    ray_address: str | None = None
    with_ray: bool = True

    @property
    def runs_here(self) -> bool:
        """Whether stages run on this machine."""
        return self.ray_address is None


def examine(intended: Intended, doors: Doors, environment: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Check one thing after the other, the quick ones first; nothing that a search made is changed."""
    engine = load_named_engine(intended.space.engine)
    yield from _installed(intended, engine)
    yield from _this_machine(intended, engine)
    yield from _disks(intended, engine)
    yield _database(doors)
    yield _artifacts(intended, engine)
    yield machine.check_loopback()
    if intended.with_ray:
        yield machine.check_shared_memory()
        yield machine.check_open_files()
        yield check_token(os.environ if environment is None else environment, Path.home(), intended.ray_address)
        yield from _ray(intended, doors, engine)


def _compiles(engine: Engine | None) -> bool:
    return engine is not None and engine.capabilities.needs_compile


def _kinds(engine: Engine | None) -> tuple[StageKind, ...]:
    return tuple(kind for kind in StageKind if kind is not StageKind.COMPILE or _compiles(engine))


def _installed(intended: Intended, engine: Engine | None) -> Iterator[Finding]:
    yield check_python()
    yield check_packages()
    yield check_engine(intended.space.engine)
    yield from check_tools(intended.hardware.device, compiles=_compiles(engine), are_needed_here=intended.runs_here)


def _this_machine(intended: Intended, engine: Engine | None) -> Iterator[Finding]:
    hardware = intended.hardware
    if not intended.runs_here:
        yield fine("stages", f"run on the cluster at {intended.ray_address}, not on this machine")
        return
    here = machine.this_machine(devices_here(hardware.device, hardware.devices_per_machine))
    yield machine.check_stages(here, hardware, _kinds(engine))
    yield machine.check_quiet()


# ── disks and what lies on them ───────────────────────────────────────────────────────────────────────────────────


def _disks(intended: Intended, engine: Engine | None) -> Iterator[Finding]:
    settings, hardware = intended.settings, intended.hardware
    try:
        models = missing_model_bytes(settings.default_target, intended.space, settings)
    except TunerError as error:
        yield failed_by("models", error)
        models = 0
    compiled = round((hardware.node_cache_gb or 0.0) * machine.GB) if _compiles(engine) and intended.runs_here else 0
    what_for = "models and compiled artifacts" if compiled else "models that are not here yet"
    yield machine.check_folder("cache", settings.cache_dir, models + compiled, what_for)
    if (file := _sqlite_file(settings.storage_url)) is not None:
        yield machine.check_folder("data", file.parent, DATA_BYTES, "the database and plots")
    yield machine.check_temporary(TEMPORARY_BYTES, with_ray=intended.with_ray)


def _sqlite_file(url: str) -> Path | None:
    scheme, _, rest = url.partition(":///")
    return Path(rest) if scheme.startswith("sqlite") and rest else None


def _database(doors: Doors) -> Finding:
    try:
        return fine("database", doors.look_at_database())
    except StorageError as error:
        return failed_by("database", error)


def _artifacts(intended: Intended, engine: Engine | None) -> Finding:
    place = intended.artifacts or intended.hardware.artifacts
    if not _compiles(engine):
        return fine("artifacts", f"engine {intended.space.engine} compiles nothing, so that none are kept")
    if place is None and intended.runs_here:
        return fine("artifacts", "kept on this machine alone, where all stages run")
    if place is None:
        text = "no place that all machines reach: a search compiles and measures on one machine of the cluster only"
        return doubtful("artifacts", text, "give --artifacts, or `artifacts` in the hardware file")
    try:
        probe_artifacts(place)
    except TunerError as error:
        return failed_by("artifacts", error)
    return fine("artifacts", f"{place} can be written and read")


def probe_artifacts(place: str) -> None:
    """Leave a small artifact in a shared place, as a compile does, take it as another machine would, and remove it.

    Raises:
        ArtifactError: One of these cannot be done.
    """
    with tempfile.TemporaryDirectory() as folder:
        there, elsewhere = (ArtifactPlace(node_dir=str(Path(folder, name)), shared=place) for name in ("a", "b"))
        key = f"doctor-{uuid.uuid4().hex}"
        built = ArtifactCache(there).build(key, lambda made: _write_probe(made, key), {"engine": "doctor"})
        try:
            ArtifactCache(elsewhere).find(key)
        finally:
            open_shared(place).remove(built.content_hash)


def _write_probe(folder: Path, key: str) -> None:
    (folder / "probe.txt").write_text(key, encoding="utf-8")


# ── Ray ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_token(environment: Mapping[str, str], home: Path, ray_address: str | None) -> Finding:
    """How Ray tells friends from strangers, and whether this machine has the token that it asks for."""
    mode = environment.get(AUTH_MODE, "").lower()
    if mode and mode != "token":
        whose = "the cluster's ports" if ray_address else "this machine's ports while a search runs"
        text = f"{AUTH_MODE}={mode}: whoever reaches {whose} can run programs there"
        where = "here and on all machines of the cluster, with one token" if ray_address else "or leave it unset"
        return doubtful("token", text, f"set {AUTH_MODE}=token {where}")
    place = _token_place(environment, home)
    if place is not None:
        return fine("token", f"Ray's token comes from {place}")
    if ray_address is None:
        return fine("token", f"Ray makes a token at its first start and keeps it in ~/{TOKEN_FILE}")
    hint = f"copy the cluster's token into ~/{TOKEN_FILE}, or set {AUTH_TOKEN}; {AUTH_MODE} must be the same everywhere"
    if mode == "token":
        return failed("token", f"{AUTH_MODE}=token, and there is no token here", hint)
    return doubtful("token", "there is no token here; a cluster that asks for one refuses", hint)


def _token_place(environment: Mapping[str, str], home: Path) -> str | None:
    if environment.get(AUTH_TOKEN):
        return AUTH_TOKEN
    named = environment.get(AUTH_TOKEN_PATH)
    if named:
        return f"{AUTH_TOKEN_PATH}, {named}" if Path(named).is_file() else None
    return f"~/{TOKEN_FILE}" if (home / TOKEN_FILE).is_file() else None


def _ray(intended: Intended, doors: Doors, engine: Engine | None) -> Iterator[Finding]:
    needs = {kind: intended.hardware.needs(kind) for kind in _kinds(engine)}
    began_s = time.monotonic()
    try:
        with doors.start_ray() as dispatcher:
            where = "started on this machine" if intended.runs_here else f"joined {intended.ray_address}"
            yield fine("ray", f"{where} in {time.monotonic() - began_s:.0f} s")
            yield _fits(dispatcher, needs, doors.see_machines())
    except TunerError as error:
        yield failed_by("ray", error)
    except ImportError as error:
        yield failed("ray", f"cannot be imported: {error}", "pip install --upgrade 'ray[tune]'")


def _fits(dispatcher: Dispatcher, needs: Mapping[StageKind, Needs], machines: str) -> Finding:
    try:
        dispatcher.check(needs.values())
    except TunerError as error:
        return failed_by("cluster", error)
    at_once = dispatcher.capacity(needs[StageKind.MEASURE])
    configurations = "configuration" if at_once == 1 else "configurations"
    text = f"each kind of stage fits, and {at_once} {configurations} can be measured at once"
    return fine("cluster", f"{text}\n{machines}")
