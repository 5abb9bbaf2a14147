"""What compilers leave, and looks at the places where artifacts are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fsspec

from tuner.artifacts import ArtifactCache, BuiltArtifact
from tuner.artifacts.manifest import file_sha256

ABOUT = {"engine": "neuron", "configuration": "shallow, k=4"}
KEY = "5f1e"


def graph(folder: Path) -> None:
    """What a compiler leaves: a binary, weights in a folder, something to run, an empty folder."""
    (folder / "model.neff").write_bytes(b"graph" * 1000)
    (folder / "weights").mkdir()
    (folder / "weights" / "tp0.safetensors").write_bytes(b"weights" * 1000)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "tmp").mkdir()


def other_graph(folder: Path) -> None:
    (folder / "model.neff").write_bytes(b"other" * 1000)


def of_size(size_bytes: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "model.neff").write_bytes(os.urandom(size_bytes))

    return make


def never(folder: Path) -> None:
    raise AssertionError("compiled again")


def build(cache: ArtifactCache, key: str = KEY, make: Callable[[Path], None] = graph) -> BuiltArtifact:
    return cache.build(key, make, ABOUT)


def half_made(node: Path) -> list[Path]:
    return list((node / "making").glob("*"))


def keys_in(node: Path) -> list[str]:
    return sorted(path.stem for path in (node / "keys").glob("*.json"))


def spoil(file: Path) -> None:
    """Change one byte, and nothing that a look at size and time of modification shows."""
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def counting(hashed: list[str]) -> Callable[[Path], str]:
    def hash_and_count(file: Path) -> str:
        hashed.append(file.name)
        return file_sha256(file)

    return hash_and_count


def change_shared(shared: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Change the one file of that name in a shared place; None removes it."""
    files, root = fsspec.url_to_fs(shared)
    (path,) = (found for found in files.find(root) if found.endswith(name))
    changed = change(files.cat_file(path))
    files.rm_file(path)
    if changed is not None:
        files.pipe_file(path, changed)
