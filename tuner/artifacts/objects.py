"""Artifacts in an object store, through fsspec: ``s3://bucket/path`` and whatever else it knows.

    content/HASH/…    the files
    keys/KEY.json     the manifest; uploaded last, which publishes them

There is no renaming and no lock there. Objects appear whole, manifests after their content, and two uploads of one key
each leave whole content: the manifest that is written last stands.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tuner.artifacts.folder import finish, prepare
from tuner.artifacts.locks import FULL, file_system_error
from tuner.artifacts.manifest import ArtifactFile, Damage, Manifest, check_key, read_manifest, wrong_hash
from tuner.errors import ArtifactError

LONGEST_UPLOAD = timedelta(days=1)
"""Content without a manifest is taken for an upload in progress for this long: nothing tells it from a killed one."""


class ObjectPlace:
    """A path in an object store."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._files, self._root = _open(self.name)

    def manifest(self, key: str) -> Manifest | Damage | None:
        """What is published under a key; None where nothing is."""
        path = f"keys/{check_key(key)}.json"
        with self._reached(f"reading artifact {key}"):
            try:
                data = self._files.cat_file(self._at(path))
            except FileNotFoundError:
                return None
        return read_manifest(data, key, f"{self.name}/{path}")

    def manifests(self) -> tuple[Manifest | Damage, ...]:
        """Everything that is published, by key."""
        names = sorted(name.removesuffix(".json") for name in self._list("keys") if name.endswith(".json"))
        return tuple(found for key in names if (found := self.manifest(key)) is not None)

    def publish(self, manifest: Manifest, source: Path) -> Manifest | Damage:
        """Upload an artifact, unless something is published under its key.

        What an interrupted upload of the same content left is not sent again.

        Returns:
            The manifest of whoever was first, or what is wrong with it.
        """
        if (found := self.manifest(manifest.key)) is not None:
            return found
        with self._reached(f"uploading artifact {manifest.key}"), tempfile.TemporaryDirectory() as folder:
            there = self._sizes(manifest.content_hash)
            for file in manifest.files:
                if there.get(file.path) != file.size_bytes:
                    self._files.put_file(str(source / file.path), self._of(manifest, file.path))
            written = Path(folder, "manifest.json")
            written.write_bytes(manifest.data)
            self._files.put_file(str(written), self._at(f"keys/{manifest.key}.json"))
        return self.manifest(manifest.key) or manifest

    def fetch(self, manifest: Manifest, folder: Path) -> Damage | None:
        """Download an artifact's files into an empty folder, without looking at what is in them.

        Returns:
            What is missing there.

        Raises:
            ArtifactError: The store cannot be reached, or the disk is full.
        """
        with self._reached(f"fetching artifact {manifest.key}", folder, manifest.size_bytes):
            for file in manifest.files:
                target = prepare(folder, file.path)
                try:
                    self._files.get_file(self._of(manifest, file.path), str(target))
                except FileNotFoundError:
                    return Damage(key=manifest.key, file=file.path, problem="missing")
            finish(manifest, folder)
        return None

    def damage(self, manifest: Manifest, *, reread: bool = True) -> Damage | None:  # noqa: ARG002
        """What of an artifact is not as it was published; every byte is read, and none is kept."""
        for file in manifest.files:
            with self._reached(f"reading artifact {manifest.key}"):
                problem = self._problem(self._of(manifest, file.path), file)
            if problem is not None:
                return Damage(key=manifest.key, file=file.path, problem=problem)
        return None

    def in_use(self, content_hash: str) -> bool:  # noqa: ARG002
        """No: nothing tells. Who fetches what is being removed compiles it again."""
        return False

    def last_used_at(self, manifest: Manifest) -> datetime:
        """When it was made: stores do not tell who reads."""
        return manifest.created_at

    def remove(self, content_hash: str) -> bool:
        """Remove content with every key that has it; the keys first, so that nobody begins to fetch it."""
        for one in self.manifests():
            if isinstance(one, Manifest) and one.content_hash == content_hash:
                self.forget(one.key)
        self.drop(content_hash)
        return True

    def forget(self, key: str) -> None:
        """Remove a manifest and leave the content."""
        with self._reached(f"removing artifact {key}"):
            try:
                self._files.rm_file(self._at(f"keys/{check_key(key)}.json"))
            except FileNotFoundError:
                return

    def drop(self, content_hash: str) -> None:
        """Remove content."""
        with self._reached("removing an artifact"):
            try:
                self._files.rm(self._at(f"content/{content_hash}"), recursive=True)
            except FileNotFoundError:
                return

    def sweep(self) -> None:
        """Remove what interrupted uploads left, once it is too old to be an upload in progress."""
        named = {one.content_hash for one in self.manifests() if isinstance(one, Manifest)}
        for content_hash in set(self._list("content")) - named:
            with self._reached("looking for interrupted uploads"):
                paths = self._files.find(self._at(f"content/{content_hash}"))
                newest = max((_as_utc(self._files.modified(path)) for path in paths), default=datetime.now(UTC))
            if datetime.now(UTC) - newest > LONGEST_UPLOAD:
                self.drop(content_hash)

    def _problem(self, path: str, file: ArtifactFile) -> str | None:
        try:
            with self._files.open(path, "rb") as stream:
                return wrong_hash(hashlib.file_digest(stream, "sha256").hexdigest(), file)
        except FileNotFoundError:
            return "missing"

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _of(self, manifest: Manifest, path: str) -> str:
        return self._at(f"content/{manifest.content_hash}/{path}")

    def _list(self, path: str) -> list[str]:
        """Names at a path."""
        with self._reached("listing the artifacts"):
            try:
                return [found.rstrip("/").rpartition("/")[2] for found in self._files.ls(self._at(path), detail=False)]
            except FileNotFoundError:
                return []

    def _sizes(self, content_hash: str) -> dict[str, int]:
        """Of the files of some content, by their path in it."""
        prefix = self._at(f"content/{content_hash}/")
        found = self._files.find(prefix, detail=True)
        return {path.removeprefix(prefix): facts["size"] for path, facts in found.items()}

    @contextmanager
    def _reached(self, doing: str, folder: Path | None = None, need_bytes: int | None = None) -> Iterator[None]:
        """Turn what the store's library raises into an error that names the place.

        Args:
            doing: For the message.
            folder: On this machine, where something is written.
            need_bytes: What is written.

        Raises:
            ArtifactError: Anything was raised.
        """
        self._files.invalidate_cache()  # listings that other machines have outdated
        try:
            yield
        except ArtifactError:
            raise
        except Exception as error:  # each store's library has classes of its own, known only where it is installed
            if isinstance(error, OSError) and error.errno in FULL and folder is not None:
                raise file_system_error(str(folder), doing, error, need_bytes) from error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ArtifactError(
                f"{doing} in {self.name} failed: {reason}",
                "check the address, the credentials and the network; nothing half-written is ever used",
            ) from error


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        ArtifactError: Its package is not installed, or fsspec does not know it.
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        raise ArtifactError(f"{url} needs a package that is not installed", _how_to_install(protocol)) from error
    except ValueError as error:
        raise ArtifactError(
            f"{url} cannot be used: {error}", "give a folder, or a URL that fsspec knows, such as s3://bucket/path"
        ) from error
    return files, root.rstrip("/")


def _how_to_install(protocol: str) -> str:
    from fsspec.registry import known_implementations

    if protocol in {"s3", "s3a"}:
        return 'pip install "specdec-tuner[s3]", on every machine'
    package = known_implementations.get(protocol, {}).get("class", protocol).partition(".")[0]
    return f"pip install {package}, on every machine"


def _as_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
