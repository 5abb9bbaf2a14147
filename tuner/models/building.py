"""Folders that appear whole or not at all, made once however many processes ask for them."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.models.progress import Report, silent

_BLOCK_BYTES = 1 << 20


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; a second process waits. The lock dies with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def build_folder_once(
    folder: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.exists
) -> Path:
    """``folder``, made by ``build`` if it is not there yet.

    ``build`` fills a new folder beside it, which is renamed when it is complete. What an interrupted build left
    is removed by the next one.

    Args:
        folder: The result.
        build: Fills the folder it is given.
        is_whole: Whether an existing result can still be used; one that cannot is made anew.
    """
    if is_whole(folder):
        return folder
    with locked(folder.parent / f".{folder.name}.lock"):
        if is_whole(folder):
            return folder
        prefix = f".{folder.name}.part-"
        for left_over in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(left_over)
        part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        try:
            build(part)
            part.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def file_sha256(file: Path, what: str = "", report: Report = silent) -> str:
    """SHA-256 of a file's bytes, in hex; progress is reported under ``what``."""
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            report(what, done, total)
    return digest.hexdigest()
