"""Finding what a person named: shipped files by name, other files by path, and the nearest name for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from tuner.errors import NotFoundError

YAML_SUFFIXES = (".yaml", ".yml")
Kind = Literal["workloads", "search_spaces", "hardware"]


def shipped_folder(kind: Kind) -> Path:
    """The folder of the files that come with the package: inside a wheel, or beside ``tuner/`` in a checkout."""
    package = Path(__file__).parent
    if kind == "hardware":
        return package / "_hardware"
    installed = package / "_catalog" / kind
    return installed if installed.is_dir() else package.parent / kind


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Names that can be given instead of a path."""
    return tuple(sorted(path.stem for path in shipped_folder(kind).glob("*.yaml")))


def find_file(kind: Kind, reference: str | Path) -> Path:
    """The file that a shipped name or a path stands for.

    Raises:
        NotFoundError: It is neither.
    """
    path, name = Path(reference), str(reference)
    if isinstance(reference, str) and name in shipped_names(kind):
        return shipped_folder(kind) / f"{name}.yaml"
    if path.is_file():
        return path
    if path.is_dir() and name:
        raise NotFoundError(f"{path} is a folder", f"give a file in it, or one of: {', '.join(shipped_names(kind))}")
    what = kind.replace("_", " ").removesuffix("s")
    has_ending = (
        path.suffix.lower() in YAML_SUFFIXES if kind == "hardware" else bool(path.suffix)
    )  # trn2.48xlarge has none
    if has_ending or path.name != name:
        raise NotFoundError(f"no such {what} file: {path}", f"shipped: {', '.join(shipped_names(kind))}")
    raise NotFoundError(f"no {what} named {name!r}", did_you_mean(name, shipped_names(kind)))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or all of them when none is near."""
    names = list(known)
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(names) or 'none'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is written most alike; None when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
