"""Writing a file at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tuner.errors import ConfigurationError, StorageError


def replace_text(path: Path, text: str, reads_back: Callable[[str], bool] | None = None) -> None:
    """Write ``text`` as UTF-8; see ``replace_bytes``.

    Args:
        path: Its folder must exist.
        text: What is written.
        reads_back: Whether what was written means what was meant; by default it must be the same text.

    Raises:
        ConfigurationError: The folder does not exist, or the file cannot be written.
        StorageError: What was written reads back differently; an earlier file is still there.
    """
    means_the_same = reads_back or text.__eq__
    replace_bytes(path, text.encode(), lambda data: means_the_same(data.decode()))


def replace_bytes(path: Path, data: bytes, reads_back: Callable[[bytes], bool] | None = None) -> None:
    """Write ``data`` beside ``path``, check what is read back, and put it in place in one step.

    Args:
        path: Its folder must exist.
        data: What is written.
        reads_back: Whether what was written means what was meant; by default it must be the same bytes.

    Raises:
        ConfigurationError: The folder does not exist, or the file cannot be written.
        StorageError: What was written reads back differently; an earlier file is still there.
    """
    check_folder(path)
    try:
        _replace(path, data, reads_back or data.__eq__)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}", "give another path") from error


def check_folder(path: Path) -> None:
    """Refuse a path that no file can have, before work is done for it.

    Raises:
        ConfigurationError: Its folder does not exist, or it is one itself.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"no such folder: {folder}", "create it, or give another path")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder", "give the name of a file")


def _replace(path: Path, data: bytes, reads_back: Callable[[bytes], bool]) -> None:
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not reads_back(temporary.read_bytes()):
            raise StorageError(f"{path}: what was written reads back differently", "check the disk; nothing was kept")
        temporary.chmod(0o666 & ~_umask())  # mkstemp lets the owner alone read it
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
