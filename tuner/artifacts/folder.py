"""Artifacts in a folder: the cache of one machine, or a place on a file system that machines share.

    keys/KEY.json     the manifest; published last, by renaming
    content/HASH/     the files; keys of the same content share them
    making/KEY.xxxx/  what is being made or copied, by whoever holds the lock of the key
    locks/            KEY.lock: held while making; HASH.use: held while loaded, its time is that of the last use
    seals/HASH.json   which versions of the files were found good on this machine

A lock dies with its holder, so that what a killed process leaves under ``making/`` belongs to nobody and is removed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from tuner.artifacts.locks import acquire, explained, is_at, release, try_acquire
from tuner.artifacts.manifest import Damage, Manifest, Stamp, check_files, check_key, read_manifest

_MAY_NOT_WRITE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IN_USE: dict[Path, int] = {}
"""Descriptors whose locks tell other processes what this one has loaded; they end with it."""


class FolderPlace:
    """A folder of artifacts. Any number of processes may use it at once, on every machine that its locks reach."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)

    def manifest(self, key: str) -> Manifest | Damage | None:
        """What is published under a key; None where nothing is."""
        path = self._manifest_file(key)
        with explained(self.name, f"reading artifact {key}"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        return read_manifest(data, key, str(path))

    def manifests(self) -> tuple[Manifest | Damage, ...]:
        """Everything that is published, by key."""
        with explained(self.name, "listing the artifacts"):
            keys = sorted(path.stem for path in (self.root / "keys").glob("*.json"))
        return tuple(found for key in keys if (found := self.manifest(key)) is not None)

    def content(self, manifest: Manifest) -> Path:
        """The folder of an artifact's files."""
        return self.root / "content" / manifest.content_hash

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a key; others who make or copy it wait."""
        path = self._lock_file(key)
        with explained(self.name, f"locking artifact {key}"):
            held = acquire(path)
        try:
            self._clear(key)
            yield
        finally:
            release(held, path)

    @contextmanager
    def temporary(self, key: str) -> Iterator[Path]:
        """An empty folder for what will be published, gone afterwards; the key must be locked."""
        with explained(self.name, f"making a folder for artifact {key}"):
            folder = self.root / "making" / f"{key}.{_token()}"
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def adopt(self, manifest: Manifest, folder: Path, stamps: Mapping[str, Stamp]) -> Manifest:
        """Publish what lies in a temporary folder of this place, unless something is published under the key.

        Args:
            manifest: Of the folder.
            folder: Moved away, unless the same content is here.
            stamps: Versions of its files that were found good.

        Returns:
            The manifest of whoever was first.
        """
        with explained(self.name, f"keeping artifact {manifest.key}"), self.used(manifest.content_hash):
            found = self.manifest(manifest.key)
            if isinstance(found, Manifest):
                return found
            content = self.content(manifest)
            if content.exists() and self.damage(manifest) is not None:
                self.drop(manifest.content_hash)
            if not content.exists():
                _move(folder, content)
                if stamps:
                    self._write_seal(manifest.content_hash, stamps)
            try:
                self._write_manifest(manifest)
            except OSError:
                if not self._keys_of(manifest.content_hash):
                    self.drop(manifest.content_hash)
                raise
        return manifest

    def publish(self, manifest: Manifest, source: Path) -> Manifest | Damage:
        """Copy an artifact into this place, unless something is published under its key.

        Returns:
            The manifest of whoever was first, or what is wrong with it.
        """
        if (found := self.manifest(manifest.key)) is not None:
            return found
        with self.locked(manifest.key), self.temporary(manifest.key) as folder:
            with explained(self.name, f"copying artifact {manifest.key}", manifest.size_bytes):
                copy_files(manifest, source, folder)
            return self.adopt(manifest, folder, {})

    def fetch(self, manifest: Manifest, folder: Path) -> Damage | None:
        """Copy an artifact's files into an empty folder, without looking at what is in them.

        Returns:
            What is missing here.

        Raises:
            OSError: A file cannot be read, or not be written there.
        """
        with self.used(manifest.content_hash):
            try:
                copy_files(manifest, self.content(manifest), folder)
            except FileNotFoundError as error:
                return Damage(key=manifest.key, file=str(error.filename), problem="missing")
        return None

    def use(self, key: str) -> Manifest | Damage | None:
        """What is published under a key; it is not removed from here until this process ends."""
        while True:
            found = self.manifest(key)
            if not isinstance(found, Manifest):
                return found
            with explained(self.name, f"using artifact {key}"):
                self._hold(self._use_file(found.content_hash))
            if self.manifest(key) == found:  # it may have been removed before it was held
                return found

    @contextmanager
    def holding(self, key: str) -> Iterator[Manifest | Damage | None]:
        """What is published under a key; it is not removed from here meanwhile."""
        while True:
            found = self.manifest(key)
            if not isinstance(found, Manifest):
                yield found
                return
            with self.used(found.content_hash):
                if self.manifest(key) == found:  # it may have been removed before it was held
                    yield found
                    return

    def damage(self, manifest: Manifest, *, reread: bool = False) -> Damage | None:
        """What of an artifact is not as it was published.

        Each version of a file is hashed once between two starts of the machine, unless ``reread`` asks for all.
        """
        known = {} if reread else _read_seal(self._seal_file(manifest.content_hash))
        damage, stamps = check_files(self.content(manifest), manifest, known)
        if damage is None and stamps != known:
            self._write_seal(manifest.content_hash, stamps)
        return damage

    @contextmanager
    def used(self, content_hash: str) -> Iterator[None]:
        """Mark content as in use meanwhile; where this process may not write, the mark is left out."""
        held = None
        with explained(self.name, "using an artifact"):
            try:
                held = acquire(self._use_file(content_hash), shared=True)
                os.utime(held)
            except OSError as error:
                if error.errno not in _MAY_NOT_WRITE:
                    raise
        try:
            yield
        finally:
            if held is not None:
                release(held)

    def in_use(self, content_hash: str) -> bool:
        """Whether a process has it loaded, or is copying it."""
        path = self._use_file(content_hash)
        if not path.exists():
            return False
        with explained(self.name, "looking for who uses an artifact"):
            held = try_acquire(path)
        if held is not None:
            release(held)
        return held is None

    def last_used_at(self, manifest: Manifest) -> datetime:
        """When it was last loaded or copied from here; when it was made where it never was."""
        try:
            return datetime.fromtimestamp(self._use_file(manifest.content_hash).stat().st_mtime, UTC)
        except FileNotFoundError:
            return manifest.created_at

    def remove(self, content_hash: str, *, only_without_key: bool = False) -> bool:
        """Remove content with every key that has it, unless it is in use.

        Args:
            content_hash: Of the content.
            only_without_key: Leave it where a key has it.

        Returns:
            Whether it is gone.
        """
        path = self._use_file(content_hash)
        with explained(self.name, "removing an artifact"):
            held = try_acquire(path)
            if held is None:
                return False
            try:
                keys = self._keys_of(content_hash)
                if keys and only_without_key:
                    return False
                for key in keys:
                    self.forget(key)
                self.drop(content_hash)
                path.unlink(missing_ok=True)
            finally:
                release(held)
        return True

    def forget(self, key: str) -> None:
        """Remove a manifest and leave the content."""
        with explained(self.name, f"removing artifact {key}"):
            self._manifest_file(key).unlink(missing_ok=True)

    def drop(self, content_hash: str) -> None:
        """Take content away, used or not: nobody loads damaged files."""
        with explained(self.name, "removing an artifact"):
            self._seal_file(content_hash).unlink(missing_ok=True)
            trash = self.root / "trash" / _token()
            trash.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                (self.root / "content" / content_hash).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed processes left: folders whose maker is gone, and content that has no key."""
        with explained(self.name, "removing what was left half-made"):
            for key in {path.name.strip(".").rpartition(".")[0] for path in self._being_made("*")}:
                path = self._lock_file(key)
                if (held := try_acquire(path)) is not None:
                    self._clear(key)
                    release(held, path)
            for trash in (self.root / "trash").glob("*"):
                shutil.rmtree(trash, ignore_errors=True)
            named = {one.content_hash for one in self.manifests() if isinstance(one, Manifest)}
            for content in (self.root / "content").glob("*"):
                if content.name not in named:
                    self.remove(content.name, only_without_key=True)

    def _keys_of(self, content_hash: str) -> list[str]:
        return [one.key for one in self.manifests() if isinstance(one, Manifest) and one.content_hash == content_hash]

    def _being_made(self, key: str) -> list[Path]:
        token = "?" * len(_token())
        return [*(self.root / "making").glob(f"{key}.{token}"), *(self.root / "keys").glob(f".{key}.{token}")]

    def _clear(self, key: str) -> None:
        """Remove what a killed holder of the key's lock left, which is ours now."""
        for left_over in self._being_made(key):
            if left_over.is_dir():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink(missing_ok=True)

    def _manifest_file(self, key: str) -> Path:
        return self.root / "keys" / f"{check_key(key)}.json"

    def _lock_file(self, key: str) -> Path:
        return self.root / "locks" / f"{key}.lock"

    def _use_file(self, content_hash: str) -> Path:
        return self.root / "locks" / f"{content_hash}.use"

    def _seal_file(self, content_hash: str) -> Path:
        return self.root / "seals" / f"{content_hash}.json"

    def _hold(self, path: Path) -> None:
        held = _IN_USE.get(path)
        if held is None or not is_at(held, path):
            if held is not None:
                release(held)
            held = acquire(path, shared=True)
            _IN_USE[path] = held
        os.utime(held)

    def _write_manifest(self, manifest: Manifest) -> None:
        """Publish a key, at once; its lock must be held."""
        path = self._manifest_file(manifest.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{manifest.key}.{_token()}")
        try:
            with temporary.open("wb") as stream:
                stream.write(manifest.data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _write_seal(self, content_hash: str, stamps: Mapping[str, Stamp]) -> None:
        """Note which versions of files are good; without the note, or with half of it, they are hashed again."""
        path = self._seal_file(content_hash)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"boot_id": _boot_id(), "files": stamps}), encoding="utf-8")


def _token() -> str:
    return secrets.token_hex(8)


def _move(folder: Path, content: Path) -> None:
    content.parent.mkdir(exist_ok=True)
    try:
        folder.rename(content)
    except OSError:
        if not content.exists():  # else it is the same content, by somebody else
            raise


def copy_files(manifest: Manifest, source: Path, folder: Path) -> None:
    """Copy what a manifest lists, and nothing else, from one folder into another.

    Raises:
        OSError: A file is missing, cannot be read, or cannot be written.
    """
    for file in manifest.files:
        target = prepare(folder, file.path)
        shutil.copyfile(source / file.path, target, follow_symlinks=False)
    finish(manifest, folder)


def prepare(folder: Path, path: str) -> Path:
    """Where a file goes; its folder is there afterwards."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def finish(manifest: Manifest, folder: Path) -> None:
    """Make the empty folders, and the executable files executable."""
    for name in manifest.empty_folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        if file.is_executable:
            target = folder / file.path
            readers = target.stat().st_mode & 0o444
            target.chmod(target.stat().st_mode | readers >> 2)  # whoever may read it may run it


def _boot_id() -> str:
    """Names this start of the machine: what was written before a power failure may not have reached the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _read_seal(path: Path) -> dict[str, Stamp]:
    try:
        seal = json.loads(path.read_bytes())
        if seal["boot_id"] != _boot_id():
            return {}
        return {name: Stamp(*stamp) for name, stamp in seal["files"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
