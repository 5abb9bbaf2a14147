"""CPUs and devices that a stage has to itself, among all stages of one person on one machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import DispatchError

LOCKS_VARIABLE = "TUNER_CPU_LOCKS"
"""Names another folder for the locks, those of devices included; empty switches reservations off, for clusters
that only pretend to be several machines."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What nobody else reserves while any process holds ``locks``, which are open files.

    Attributes:
        cpus: Numbers of the CPUs; empty where none are reserved.
    """

    cpus: tuple[int, ...] = ()
    locks: tuple[int, ...] = ()

    def close(self) -> None:
        """Close this process's own hold."""
        for descriptor in self.locks:
            os.close(descriptor)


def reserve_cpus(count: int | None, allowed: Sequence[int] | None = None) -> Reservation | None:
    """Reserve CPUs, adjacent ones if possible, of those that this process may run on.

    Two tuners on one machine do not know of each other; the locks tell them.

    Args:
        count: How many; None, or more than there are, for all of them.
        allowed: The CPUs to choose from; None for this process's own.

    Returns:
        None where too few are free at the moment.

    Raises:
        DispatchError: The folder of locks cannot be written.
    """
    among = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    wanted = len(among) if count is None else min(count, len(among))
    return _reserve(lambda folder: _choose(folder, among, wanted))


def reserve_devices(names: Sequence[str]) -> Reservation | None:
    """Reserve the devices of these names, all of them.

    A stage that is ended keeps its devices until its last process is gone, while a cluster gives them away at once.

    Returns:
        None where one of them is taken at the moment.

    Raises:
        DispatchError: The folder of locks cannot be written.
    """
    return _reserve(lambda folder: _lock_all(folder, names)) if names else Reservation()


def _reserve(choose: Callable[[Path], Reservation | None]) -> Reservation | None:
    """What ``choose`` locks, while nobody else chooses."""
    folder = _folder()
    if folder is None:
        return Reservation()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(folder / "choosing.lock") as choosing:
            return None if choosing is None else choose(folder)
    except OSError as error:
        raise DispatchError(
            f"cannot lock CPUs and devices in {folder}: {error.strerror}",
            f"name a folder of your own with {LOCKS_VARIABLE}",
        ) from error


def _lock_all(folder: Path, names: Sequence[str]) -> Reservation | None:
    found = [_try_lock(folder / f"{name}.lock") for name in names]
    locks = tuple(lock for lock in found if lock is not None)
    if len(locks) == len(found):
        return Reservation(locks=locks)
    Reservation(locks=locks).close()
    return None


def _folder() -> Path | None:
    stated = os.environ.get(LOCKS_VARIABLE)
    if stated is None:
        return Path(tempfile.gettempdir()) / f"tuner-cpus-{os.getuid()}"
    return Path(stated) if stated else None


def _choose(folder: Path, among: Sequence[int], wanted: int) -> Reservation | None:
    locks = {cpu: lock for cpu in among if (lock := _try_lock(folder / f"cpu-{cpu}.lock")) is not None}
    chosen = next(_windows(among, wanted, locks), None)
    for cpu, lock in locks.items():
        if chosen is None or cpu not in chosen:
            os.close(lock)
    return None if chosen is None else Reservation(chosen, tuple(locks[cpu] for cpu in chosen))


def _windows(among: Sequence[int], wanted: int, free: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Ways of choosing, best first: whole blocks leave whole blocks to others, then adjacent ones, then any."""
    for step in (wanted, 1):
        for begin in range(0, len(among) - wanted + 1, max(step, 1)):
            window = tuple(among[begin : begin + wanted])
            if free.keys() >= set(window):
                yield window
    if len(free) >= wanted:
        yield tuple(sorted(free))[:wanted]


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _lock(path: Path) -> Iterator[int | None]:
    descriptor = _try_lock(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)
