"""Searches killed again and again, in small: what the full drill counts is nought here too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRILL = Path(__file__).parents[2] / "benchmarks" / "kill_drill.py"

pytestmark = pytest.mark.slow


def drilled(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(DRILL), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_nothing_lost(found: dict[str, Any], kills: int) -> None:
    assert found["kills"] == found["resumed"] == kills
    assert {found[name] for name in ("failed_drivers", "stages_run_twice", "rows_lost", "orphans")} == {0}
    assert found["trials_not_complete"] == 0


def test_ten_kills_on_a_standing_cluster_lose_nothing_and_repeat_nothing() -> None:
    found = drilled("--quick", "--kills", "10", "--seed", "1")
    assert_nothing_lost(found, kills=10)
    assert found["resume_s_max"] < 5


def test_drivers_killed_with_their_own_ray_lose_nothing_and_leave_no_process() -> None:
    assert_nothing_lost(drilled("--quick", "--local", "--kills", "2", "--seed", "1"), kills=2)
