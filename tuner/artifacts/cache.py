"""Compiled artifacts: where they are kept, and how each is made once.

An artifact is a folder of files under a compile key. ``artifact_folder`` says how they lie in a folder; a shared place
has the same artifacts, for all machines. What is found is loaded only if every file has the hash it was published with.
On one machine each version of a file is hashed once between two starts of it: size, times and inode tell whether it
was touched since, so that a model of 65 GB is not read twice at each load. ``tuner cache verify`` reads everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.locks import FULL, explained, file_system_error
from tuner.artifacts.manifest import Damage, Manifest, Stamp, check_files, check_key, describe
from tuner.artifacts.places import Place, open_shared, shared_folder
from tuner.artifacts.upkeep import prune
from tuner.errors import ArtifactError, ArtifactMissingError

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often an artifact is fetched that is pruned at once, or that the disk does not keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPlace:
    """Where a stage finds compiled artifacts, and leaves them.

    Attributes:
        node_dir: Folder on the machine that runs the stage.
        shared: Folder or fsspec URL (``s3://bucket/path``) that every machine reaches; None where there is none.
        node_limit_bytes: Least recently used artifacts are removed from ``node_dir`` beyond it; None is no limit.
    """

    node_dir: str
    shared: str | None = None
    node_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltArtifact:
    """What stage ``compile`` returns.

    Attributes:
        content_hash: Of every file's path and content.
        compile_s: What compiling took; 0 where it was found.
        was_found: It was there already.
    """

    key: str
    content_hash: str
    size_bytes: int
    compile_s: float
    was_found: bool = False


class ArtifactCache:
    """Compiled artifacts by key: a folder on this machine, backed by a place that all machines share."""

    def __init__(self, place: ArtifactPlace) -> None:
        self._place = place
        self._node = FolderPlace(Path(place.node_dir))

    def build(self, key: str, make: Callable[[Path], None], about: Mapping[str, str]) -> BuiltArtifact:
        """The artifact of that key, made by ``make`` in an empty folder unless it is there already.

        Of several processes on this machine that ask for one key, one makes it and the others wait. What ``make``
        raises is passed on, and nothing is published then. What was made is in the shared place too when this returns.

        Args:
            key: ``Engine.compile_key``.
            make: Leaves plain files in the folder that it is given, beside which nothing is kept.
            about: What it is of, for people.

        Raises:
            ArtifactError: A disk is full, a place cannot be reached, what lies in the shared place is damaged, or
                what was made cannot be kept.
        """
        check_key(key)
        with self._node.locked(key), ExitStack() as uses:
            self._node.sweep()
            made, attempts = None, 0
            while (manifest := self._kept_and_shared(key, uses)) is None:
                attempts += 1
                if made is not None or attempts > ATTEMPTS:
                    raise self._never_whole(key)
                if self._fetched(key, uses) is None:
                    made = self._made(key, make, about, uses)
        self._trim(manifest)
        return BuiltArtifact(
            key=key,
            content_hash=manifest.content_hash,
            size_bytes=manifest.size_bytes,
            compile_s=0.0 if made is None else made.compile_s,
            was_found=made is None,
        )

    def find(self, key: str) -> Path:
        """The folder of the artifact on this machine, its content verified.

        It is not pruned from this machine until this process ends.

        Raises:
            ArtifactMissingError: It is neither here nor in the shared place.
            ArtifactError: It is damaged in the shared place, the place cannot be reached, or the disk is full.
        """
        check_key(key)
        manifest = self._sound(self._node.use(key))
        if manifest is None:
            with self._node.locked(key), ExitStack() as uses:
                self._node.sweep()
                attempts = 0
                while (manifest := self._sound(self._node.use(key), drops_damaged=True)) is None:
                    attempts += 1
                    if attempts > ATTEMPTS:
                        raise self._never_whole(key)
                    if self._fetched(key, uses) is None:
                        raise self._missing(key)
            self._trim(manifest)
        return self._node.content(manifest)

    @cached_property
    def _shared(self) -> Place | None:
        """The shared place; None where there is none, or where it is this machine's own folder."""
        if self._place.shared is None:
            return None
        folder = shared_folder(self._place.shared)
        if folder is not None and folder.resolve() == self._node.root.resolve():
            return None
        return open_shared(self._place.shared)

    def _sound(self, found: Manifest | Damage | None, *, drops_damaged: bool = False) -> Manifest | None:
        """What was found on this machine, if it is verified; whoever holds the lock drops what is damaged."""
        damage = self._node.damage(found) if isinstance(found, Manifest) else found
        if damage is None:
            return found if isinstance(found, Manifest) else None
        if drops_damaged:
            logger.warning("artifact %s in %s is damaged and dropped", damage, self._node.name)
            self._node.forget(damage.key)
            if isinstance(found, Manifest):
                self._node.drop(found.content_hash)
        return None

    def _fetched(self, key: str, uses: ExitStack) -> Manifest | None:
        """What is published in the shared place, copied here and verified; None where there is none."""
        if self._shared is None or (there := self._shared.manifest(key)) is None:
            return None
        if isinstance(there, Damage):
            raise _damaged(there, self._shared)
        started = time.monotonic()
        with self._node.temporary(key) as folder:
            with explained(self._node.name, f"copying artifact {key} from {self._shared.name}", there.size_bytes):
                missing = self._shared.fetch(there, folder)
                damage, stamps = check_files(folder, there, {}) if missing is None else (missing, {})
            if damage is not None:
                if self._shared.manifest(key) != there:  # pruned while it was copied
                    return None
                raise _damaged(damage, self._shared)
            self._adopt(there, folder, stamps, uses)
        logger.info("artifact %s fetched from %s in %.1f s", key, self._shared.name, time.monotonic() - started)
        return there

    def _made(self, key: str, make: Callable[[Path], None], about: Mapping[str, str], uses: ExitStack) -> Manifest:
        with self._node.temporary(key) as folder:
            started = time.monotonic()
            try:
                make(folder)
            except OSError as error:
                if error.errno in FULL:  # no fault of the configuration: it must not count as one that fails
                    raise file_system_error(self._node.name, f"compiling artifact {key}", error) from error
                raise
            compile_s = time.monotonic() - started
            with explained(self._node.name, f"reading what was compiled for artifact {key}"):
                manifest, stamps = describe(key, about, folder, compile_s)
            return self._adopt(manifest, folder, stamps, uses)

    def _adopt(self, manifest: Manifest, folder: Path, stamps: Mapping[str, Stamp], uses: ExitStack) -> Manifest:
        """Publish on this machine, held until ``uses`` ends: nobody prunes what somebody waits for."""
        uses.enter_context(self._node.used(manifest.content_hash))
        return self._node.adopt(manifest, folder, stamps)

    def _kept_and_shared(self, key: str, uses: ExitStack) -> Manifest | None:
        """What is whole on this machine, and now in the shared place too; None where there is nothing."""
        with self._node.holding(key) as found:
            manifest = self._sound(found, drops_damaged=True)
            return manifest if manifest is None or self._shared is None else self._share(manifest, self._shared, uses)

    def _share(self, manifest: Manifest, shared: Place, uses: ExitStack) -> Manifest:
        """Publish in the shared place; where another machine was first, its artifact replaces this one."""
        there = shared.publish(manifest, self._node.content(manifest))
        if isinstance(there, Damage):
            raise _damaged(there, shared)
        if there.content_hash == manifest.content_hash:
            return manifest
        self._node.forget(manifest.key)
        theirs = self._fetched(manifest.key, uses)
        return theirs or self._node.adopt(manifest, self._node.content(manifest), {})  # pruned meanwhile

    def _trim(self, manifest: Manifest) -> None:
        if self._place.node_limit_bytes is None:
            return
        gone = prune(self._node, max_bytes=self._place.node_limit_bytes, keep=manifest.content_hash)
        for one in gone.removed:
            logger.info("artifact %s removed from %s, which has a limit", one.key, self._node.name)

    def _never_whole(self, key: str) -> ArtifactError:
        return ArtifactError(
            f"artifact {key} does not stay whole in {self._node.name}: it changed, or was removed, at once",
            "see that nothing else writes or prunes there, also no process that the compiler leaves; then try again",
        )

    def _missing(self, key: str) -> ArtifactMissingError:
        others = "" if self._shared is None else f" nor in {self._shared.name}"
        return ArtifactMissingError(
            f"there is no whole artifact {key} in {self._node.name}{others}", "the search compiles it again"
        )


def _damaged(damage: Damage, place: Place) -> ArtifactError:
    return ArtifactError(
        f"an artifact in {place.name} is damaged: {damage}",
        f"`tuner cache verify --shared --artifacts {place.name} --remove-damaged` removes it, and it is compiled again",
    )
