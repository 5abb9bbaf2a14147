"""What an artifact consists of: its files by hash, and the manifest that is published with them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tuner.errors import ArtifactError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = r"^[0-9a-f]{64}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What of an artifact is not as it was published.

    Attributes:
        file: Where it lies, or its path within the artifact.
    """

    key: str
    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.key} ({self.file}: {self.problem})"


class Stamp(NamedTuple):
    """What tells one version of a file from another without reading it.

    The time of change, unlike that of modification, cannot be set back.
    """

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> Self:
        """The stamp of a file as it is now."""
        facts = file.stat(follow_symlinks=False)
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


class ArtifactFile(BaseModel):
    """One file of an artifact; its path is relative, with slashes."""

    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=_SHA256)]
    is_executable: bool = False

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        return _inside(path)


class Manifest(BaseModel):
    """What is published under a key. It is written last: an artifact without one does not exist.

    ``about`` says for people what the artifact is of; ``content_hash`` covers paths, contents and executable bits, and
    no time, so that the same content has the same hash wherever and whenever it was made.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    key: str
    about: dict[str, str]
    content_hash: Annotated[str, Field(pattern=_SHA256)]
    files: tuple[ArtifactFile, ...]
    empty_folders: tuple[str, ...] = ()
    created_at: AwareDatetime
    compile_s: Annotated[float, Field(ge=0)]
    tuner_version: str

    @field_validator("empty_folders")
    @classmethod
    def _stay_inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_inside(path) for path in paths)

    @model_validator(mode="after")
    def _describes_its_content(self) -> Self:
        if _content_hash(self.files, self.empty_folders) != self.content_hash:
            raise ValueError("its content hash is not that of the files it lists")
        return self

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def data(self) -> bytes:
        """The manifest's file."""
        return self.model_dump_json(indent=1).encode()


def check_key(key: str) -> str:
    """The key, which can name a file.

    Raises:
        ArtifactError: It cannot.
    """
    if not _KEY.fullmatch(key):
        raise ArtifactError(f"{key!r} cannot be the key of an artifact", "keys are letters, digits, '.', '_' and '-'")
    return key


def read_manifest(data: bytes, key: str, where: str) -> Manifest | Damage:
    """The manifest in a file, or what is wrong with it.

    Args:
        data: Of the file.
        key: What it must be of.
        where: The file, for messages.
    """
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        return Damage(key=key, file=where, problem=f"not a manifest that this version reads ({first['msg']})")
    if manifest.key != key:
        return Damage(key=key, file=where, problem=f"the manifest of {manifest.key!r}")
    return manifest


def describe(key: str, about: Mapping[str, str], folder: Path, compile_s: float) -> tuple[Manifest, dict[str, Stamp]]:
    """The manifest of what lies in a folder, and the version of each file that was hashed.

    Raises:
        ArtifactError: There is something that is neither a file nor a folder.
        OSError: A file cannot be read.
    """
    files, stamps, empty_folders = [], {}, []
    for path, entry in _walk(folder, PurePosixPath()):
        if entry is None:
            empty_folders.append(path)
            continue
        stamps[path] = Stamp.of(entry)
        is_executable = bool(entry.stat().st_mode & stat.S_IXUSR)
        files.append(
            ArtifactFile(
                path=path, size_bytes=stamps[path].size_bytes, sha256=file_sha256(entry), is_executable=is_executable
            )
        )
    manifest = Manifest(
        key=key,
        about=dict(about),
        content_hash=_content_hash(files, empty_folders),
        files=tuple(files),
        empty_folders=tuple(empty_folders),
        created_at=datetime.now(UTC),
        compile_s=compile_s,
        tuner_version=_own_version(),
    )
    return manifest, stamps


def check_files(folder: Path, manifest: Manifest, known: Mapping[str, Stamp]) -> tuple[Damage | None, dict[str, Stamp]]:
    """What of the content in a folder is not as published, and the version of each file that is.

    Args:
        folder: Holds the content. What lies there beside it is not looked at.
        manifest: What it must be.
        known: Versions of files that were found good before: they are not read again.
    """
    stamps: dict[str, Stamp] = {}
    for file in manifest.files:
        path = folder / file.path
        try:
            stamps[file.path] = Stamp.of(path)
            problem = _problem(path, file) if stamps[file.path] != known.get(file.path) else None
        except OSError as error:
            problem = "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        if problem is not None:
            return Damage(key=manifest.key, file=file.path, problem=problem), {}
    for name in manifest.empty_folders:
        if not (folder / name).is_dir():
            return Damage(key=manifest.key, file=name, problem="missing"), {}
    return None, stamps


def file_sha256(file: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _problem(path: Path, file: ArtifactFile) -> str | None:
    facts = path.stat(follow_symlinks=False)
    if not stat.S_ISREG(facts.st_mode):
        return "not a file"
    if facts.st_size != file.size_bytes:
        return f"{facts.st_size} bytes instead of {file.size_bytes}"
    return wrong_hash(file_sha256(path), file)


def wrong_hash(found: str, file: ArtifactFile) -> str | None:
    """What is wrong with content of that hash; None where it is the expected one."""
    return None if found == file.sha256 else f"SHA-256 {found[:16]}… instead of {file.sha256[:16]}…"


def _content_hash(files: list[ArtifactFile] | tuple[ArtifactFile, ...], empty_folders: object) -> str:
    listed = [[file.path, file.size_bytes, file.sha256, file.is_executable] for file in files]
    return hashlib.sha256(json.dumps([listed, empty_folders], separators=(",", ":")).encode()).hexdigest()


def _walk(folder: Path, below: PurePosixPath) -> Iterator[tuple[str, Path | None]]:
    """Every file by its path within the artifact, in one order on all machines; None instead of an empty folder."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    if not entries and below.parts:
        yield str(below), None
    for entry in entries:
        path = below / _utf8(entry.name, folder)
        if entry.is_symlink():
            raise ArtifactError(
                f"what was compiled holds the symbolic link {path} (to {Path(entry.path).readlink()})",
                "let the compiler copy the file: a link leads nowhere on another machine",
            )
        if entry.is_dir():
            yield from _walk(Path(entry.path), path)
        elif entry.is_file():
            yield str(path), Path(entry.path)
        else:
            raise ArtifactError(
                f"what was compiled holds {path}, which is neither a file nor a folder",
                "let the compiler put sockets, pipes and devices elsewhere",
            )


def _own_version() -> str:
    try:
        return version("specdec-tuner")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0.0.0"


def _utf8(name: str, folder: Path) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{folder} holds a file whose name is not UTF-8: {name!r}", "let it be renamed") from error
    return name


def _inside(path: str) -> str:
    """The path, which stays within the artifact: a manifest may come from somebody else."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} leads out of the artifact")
    return path
