"""The kernel's count of processes killed for want of memory, wherever it keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.processes.oom_kills import count_oom_kills

UNIFIED = "0::/user.slice/session-1.scope\n"
SPLIT = "9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n"


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "place", "text"),
    [
        (UNIFIED, "user.slice/session-1.scope/memory.events", "low 0\noom 4\noom_kill 3\n"),
        (UNIFIED, "memory.events", "oom_kill 3\n"),
        (SPLIT, "memory/jobs/7/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (SPLIT, "memory/memory.oom_control", "oom_kill 3\n"),
    ],
    ids=["own cgroup", "as a container sees it", "own cgroup, version 1", "container, version 1"],
)
def test_it_is_that_of_the_cgroup(tmp_path: Path, cgroup: str, place: str, text: str) -> None:
    files(tmp_path, proc__self__cgroup=cgroup, proc__vmstat="oom_kill 99\n")
    (tmp_path / "cgroup" / place).parent.mkdir(parents=True)
    (tmp_path / "cgroup" / place).write_text(text)
    assert count_oom_kills(tmp_path / "proc", tmp_path / "cgroup") == 3


def test_else_it_is_that_of_the_machine(tmp_path: Path) -> None:
    files(tmp_path, proc__self__cgroup="0::/\n", proc__vmstat="nr_free 1\noom_kill 99\n")
    assert count_oom_kills(tmp_path / "proc", tmp_path / "cgroup") == 99


def test_it_may_be_unknown(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path, tmp_path) is None
