"""What this machine has: CPUs, memory, devices, disks, and whether a search's stages fit."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tuner.doctor.findings import Finding, doubtful, failed, fine
from tuner.hardware import Hardware
from tuner.needs import Needs
from tuner.records import StageKind

GB = 10**9

BUSY_SHARE = 0.2
"""Of all CPUs, used by others: timings wander by more than the gains that are looked for."""

BUSY_INTERVAL_S = 0.5

LEAST_DISK_BYTES = GB // 10
"""Below it nothing is written any more."""

FULL_SHARE = 0.95
"""Of the disk with temporary files: Ray places no objects there beyond it, by its default."""

LEAST_SHM_BYTES = GB // 5
"""Ray's store for passing results; with less it goes to the disk and warns."""

LEAST_OPEN_FILES = 4096
"""Ray raises its own limit up to the hard one, and warns below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one machine has.

    Attributes:
        devices: By the name of their resource, as far as they could be counted.
    """

    num_cpus: int
    memory_bytes: int
    devices: Mapping[str, int] = field(default_factory=dict)

    def lacks(self, needs: Needs) -> tuple[str, ...]:
        """What it will never have enough of for these needs."""
        found = []
        if (needs.num_cpus or 1) > self.num_cpus:
            found.append(f"{needs.num_cpus} CPU ({self.num_cpus} here)")
        if needs.memory_bytes > self.memory_bytes:
            memory = f"{needs.memory_bytes / 2**30:.1f} GiB of memory ({self.memory_bytes / 2**30:.1f} GiB here)"
            found.append(memory)
        wanted = max(needs.num_devices, int(needs.on_device_host))
        if needs.device is not None and wanted > self.devices.get(needs.device, 0):
            found.append(f"{wanted} {needs.device} ({self.devices.get(needs.device, 0)} here)")
        return tuple(found)

    def __str__(self) -> str:
        devices = "".join(f", {count} {name}" for name, count in self.devices.items())
        return f"{self.num_cpus} CPU, {self.memory_bytes / 2**30:.1f} GiB of memory{devices}"


def this_machine(devices: Mapping[str, int]) -> Machine:
    """The machine that this runs on, with the CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    return Machine(num_cpus=cpus, memory_bytes=psutil.virtual_memory().total, devices=devices)


def check_stages(machine: Machine, hardware: Hardware, kinds: Iterable[StageKind]) -> Finding:
    """Whether each kind of stage fits on this machine at all."""
    lacking: dict[str, list[str]] = {}
    for kind in kinds:
        if lacks := machine.lacks(hardware.needs(kind)):
            lacking.setdefault(" and ".join(lacks), []).append(str(kind))
    if lacking:
        text = "; ".join(f"{', '.join(names)} can never fit: {lacks}" for lacks, names in lacking.items())
        hint = (
            "send stages to a cluster with --ray-address, or say in a copy of the hardware file what this machine has"
        )
        return failed("stages", text, hint)
    return fine("stages", f"each kind of stage of {hardware.name} fits on this machine: {machine}")


def check_quiet(interval_s: float = BUSY_INTERVAL_S) -> Finding:
    """Whether other programs would disturb timings."""
    share = psutil.cpu_percent(interval=interval_s) / 100
    text = f"other programs use {share:.0%} of this machine's CPUs"
    if share > BUSY_SHARE:
        return doubtful("load", f"{text}: timings are disturbed", "end them, or measure when the machine is idle")
    return fine("load", text)


# ── disks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_folder(subject: str, folder: Path, needed_bytes: int, what_for: str) -> Finding:
    """Whether a folder, which may not be there yet, can be written to and has room."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        return failed(subject, f"{folder} cannot be made: {there} is no folder", "name another")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        return failed(subject, f"{folder} cannot be written to: {error.strerror}", "change its rights, or name another")
    text = f"{folder}: {_gb(free)} free"
    if free < LEAST_DISK_BYTES:
        return failed(subject, text, "make room")
    if free < needed_bytes:
        return doubtful(subject, f"{text}, and {_gb(needed_bytes)} may be needed for {what_for}", "make room")
    return fine(subject, text)


def check_temporary(needed_bytes: int, *, with_ray: bool) -> Finding:
    """Whether temporary files have room; a disk that is nearly full stops Ray though much is free."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return failed("temporary", "no folder for temporary files can be written to", "set TMPDIR to one")
    found = check_folder("temporary", folder, needed_bytes, "logs and downloads")
    usage = shutil.disk_usage(folder)
    if with_ray and usage.used > FULL_SHARE * usage.total:
        text = f"{found.message}, {usage.used / usage.total:.0%} used: Ray keeps nothing on a disk so full"
        return doubtful("temporary", text, "make room, or set TMPDIR to another disk")
    return found


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / GB:.1f} GB"


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - that is where Linux has it
    """Whether processes can pass results through memory."""
    if not folder.is_dir():
        return doubtful("shared memory", f"{folder} is not there; Ray passes results by disk", "mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    if free < LEAST_SHM_BYTES:
        hint = "enlarge it; for containers: --shm-size=1g"
        return doubtful("shared memory", f"{folder}: {free / 1e6:.0f} MB free; Ray passes results by disk", hint)
    return fine("shared memory", f"{folder}: {_gb(free)} free")


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_open_files(hard: int | None = None) -> Finding:
    """Whether a process may open as many files as Ray wants; ``hard`` is the limit, None asks for this process's."""
    if hard is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_OPEN_FILES:
        text = f"a process may open {hard} files; Ray wants {LEAST_OPEN_FILES} or more"
        return doubtful("open files", text, f"raise the hard limit: ulimit -Hn {2 * LEAST_OPEN_FILES}")
    shown = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return fine("open files", f"a process may open {shown} files")


def check_loopback() -> Finding:
    """Whether processes of this machine can talk to each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=5.0):
                pass
    except OSError as error:
        hint = "allow connections on 127.0.0.1; a sandbox or a firewall may forbid them"
        return failed("ports", f"no connection on 127.0.0.1: {error.strerror or error}", hint)
    return fine("ports", "127.0.0.1 takes connections")
