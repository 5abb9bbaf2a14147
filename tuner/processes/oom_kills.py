"""How often the kernel has killed a process for want of memory."""

from __future__ import annotations

from pathlib import Path


def count_oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Kills so far in this process's cgroup, or on the whole machine where the cgroup does not tell; None if neither.

    A difference of two counts tells why a process was killed.
    """
    for file in (*_counters(proc / "self/cgroup", cgroups), proc / "vmstat"):
        for line in _lines(file):
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


def _counters(own: Path, cgroups: Path) -> list[Path]:
    """Files that may hold the count. In a container the path may be the host's; then its root is this cgroup."""
    found = []
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            memory = cgroups / "memory"
            found += [memory / path.lstrip("/") / "memory.oom_control", memory / "memory.oom_control"]
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
