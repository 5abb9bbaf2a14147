"""Locks that die with their holder, and errors that say which disk is full."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import ArtifactError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, no quota, or a file larger than its process may write."""


def acquire(path: Path, *, shared: bool = False) -> int:
    """A descriptor that holds a lock on a file; waits for whoever has it.

    The lock is the process's, and that of those it forked: it ends with them, or with ``release``.
    """
    return _lock(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_acquire(path: Path) -> int | None:
    """As ``acquire``; None where somebody has it."""
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def release(held: int, path: Path | None = None) -> None:
    """End a lock; with its path, an exclusive one takes its file along."""
    if path is not None:
        with suppress(OSError):
            path.unlink()
    os.close(held)


def is_at(held: int, path: Path) -> bool:
    """Whether a descriptor is still of the file at that path."""
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False


def _lock(path: Path, operation: int) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(held, operation)
            if is_at(held, path):
                return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)  # its last holder removed the file while we waited: lock the new one


@contextmanager
def explained(place: str, doing: str, need_bytes: int | None = None) -> Iterator[None]:
    """Turn what the file system says into an error that names the place and what to do.

    Raises:
        ArtifactError: Something was raised that a file system raises.
    """
    try:
        yield
    except OSError as error:
        raise file_system_error(place, doing, error, need_bytes) from error


def file_system_error(place: str, doing: str, error: OSError, need_bytes: int | None = None) -> ArtifactError:
    """What a person should know of a file system's error."""
    reason = error.strerror or str(error)
    if error.errno not in FULL:
        return ArtifactError(
            f"{doing} in {place} failed: {reason}", "check that it exists and that you may write there"
        )
    need = "" if need_bytes is None else f"{size_text(need_bytes)} needed, "
    return ArtifactError(
        f"{doing} in {place} failed: {reason} ({need}{size_text(_free_bytes(place))} free)",
        "free some space, for example with `tuner cache prune --max-bytes SIZE`, or set TUNER_CACHE to a folder on a"
        " larger disk; earlier artifacts are as they were",
    )


def size_text(size_bytes: float) -> str:
    """A size for people, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def _free_bytes(place: str) -> int:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return 0
