"""Engines: the ways of running a model. Concrete ones are reached by name through entry points."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points

from tuner.engines.base import Artifact, Capabilities, Engine, LoadedEngine, Replayable
from tuner.errors import EngineNotInstalledError, NotFoundError

__all__ = ["Artifact", "Capabilities", "Engine", "LoadedEngine", "Replayable", "engine_names", "load_engine"]

ENTRY_POINT_GROUP = "tuner.engines"


def _entry_points() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise NotFoundError(
                f"two packages offer an engine named {entry.name!r}: {_distribution(other)} and {_distribution(entry)}",
                "uninstall one of them",
            )
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def engine_names() -> tuple[str, ...]:
    """Names of all installed engines, built-in and third-party."""
    return tuple(sorted(_entry_points()))


def load_engine(name: str) -> Engine:
    """The engine of that name, not yet holding a model.

    Raises:
        NotFoundError: No installed package offers it.
        EngineNotInstalledError: It is offered, but a package that it needs is missing.
    """
    entries = _entry_points()
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"installed engines: {', '.join(sorted(entries))}"
        raise NotFoundError(f"no engine named {name!r}", hint)
    try:
        factory = entries[name].load()
    except ImportError as error:
        raise EngineNotInstalledError(
            f"engine {name!r} needs the package {error.name!r}, which is not installed",
            f"pip install 'specdec-tuner[{name}]'",
        ) from error
    engine: Engine = factory()
    return engine
