"""The place for artifacts that all machines reach: a folder, or an object store."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Protocol

from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.manifest import Damage, Manifest
from tuner.artifacts.objects import ObjectPlace
from tuner.errors import ArtifactError


class Place(Protocol):
    """Where artifacts are kept, whatever it is made of; its classes say what each method means there."""

    name: str

    def manifest(self, key: str) -> Manifest | Damage | None:
        """What is published under a key; None where nothing is."""
        ...

    def manifests(self) -> tuple[Manifest | Damage, ...]:
        """Everything that is published, by key."""
        ...

    def publish(self, manifest: Manifest, source: Path) -> Manifest | Damage:
        """Copy an artifact into this place, unless something is published under its key; what is there then."""
        ...

    def fetch(self, manifest: Manifest, folder: Path) -> Damage | None:
        """Copy an artifact's files into an empty folder, without looking at what is in them; what is missing."""
        ...

    def damage(self, manifest: Manifest, *, reread: bool = ...) -> Damage | None:
        """What of an artifact is not as it was published."""
        ...

    def in_use(self, content_hash: str) -> bool:
        """Whether a process has it loaded, as far as the place can tell."""
        ...

    def last_used_at(self, manifest: Manifest) -> datetime:
        """When it was last used, as far as the place can tell."""
        ...

    def remove(self, content_hash: str) -> bool:
        """Remove content with every key that has it, unless it is in use; whether it is gone."""
        ...

    def forget(self, key: str) -> None:
        """Remove a manifest and leave the content."""
        ...

    def sweep(self) -> None:
        """Remove what is half-written and nobody writes any more."""
        ...


def open_shared(shared: str, *, create: bool = True) -> Place:
    """The place at a folder, a ``file://`` URL or another URL that fsspec knows.

    A folder that is not there is created, its parent is not: a share that is not mounted must not become a folder of
    one machine.

    Args:
        shared: As a stage or a person is given it.
        create: Whether a folder is created.

    Raises:
        ArtifactError: It cannot be used: a relative path, a folder that is not there, a package that is missing.
    """
    path = shared_folder(shared)
    if path is None:
        return ObjectPlace(shared)
    try:
        if create:
            path.mkdir(exist_ok=True)
        os.scandir(path).close()
    except FileNotFoundError as error:
        raise ArtifactError(
            f"the shared place for artifacts is not on this machine: {path}", "mount it here, or create the folder"
        ) from error
    except OSError as error:
        raise ArtifactError(
            f"the shared place for artifacts cannot be used: {path}: {error.strerror}", "give a folder"
        ) from error
    return FolderPlace(path)


def shared_folder(shared: str) -> Path | None:
    """The folder that a shared place is; None for object stores.

    Raises:
        ArtifactError: It is empty, or relative and so another one in every process.
    """
    protocol, has_protocol, rest = shared.partition("://")
    if has_protocol and protocol not in {"file", "local"}:
        return None
    path = Path(rest if has_protocol else shared).expanduser()
    if not path.is_absolute():
        raise ArtifactError(f"the shared place for artifacts is a relative path: {shared!r}", "give the whole path")
    return path


def absolute_place(shared: str) -> str:
    """A shared place as a person gives it, with the whole path where it is a folder."""
    return shared if "://" in shared else str(Path(shared).expanduser().absolute())
