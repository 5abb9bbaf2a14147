"""``tuner doctor`` on a local Ray, on a standing one, and where none answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.standing_ray import StandingRay, standing_ray

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandingRay]:
    with standing_ray(num_cpus=3) as started:
        yield started


def examined(tmp_path: Path, *options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and each check by its name."""
    own = {"TUNER_STORAGE": f"sqlite:///{tmp_path / 'studies.sqlite'}", "TUNER_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-m", "tuner", "doctor", "--json", *options],
        env={**os.environ, **own, "PYTHONPATH": f"{ROOT}:{ROOT / 'storage'}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    return ended.returncode, {one["check"]: one for one in json.loads(ended.stdout)["checks"]}


def test_a_ray_of_its_own_is_started_and_holds_every_stage(tmp_path: Path) -> None:
    code, found = examined(tmp_path)
    assert (code, found["cluster"]["state"]) == (0, "ok")
    assert found["ray"]["message"].startswith("started on this machine")


def test_a_standing_ray_is_joined_and_its_machines_are_listed(tmp_path: Path, cluster: StandingRay) -> None:
    code, found = examined(tmp_path, "--ray-address", cluster.address)
    assert (code, found["ray"]["message"].split(" in ")[0]) == (0, f"joined {cluster.address}")
    assert "1 configuration can be measured at once" in found["cluster"]["message"]
    assert "3 CPU" in found["cluster"]["message"]
    assert found["token"]["state"] == "warning"


def test_stages_that_no_machine_of_a_standing_ray_holds_fail(tmp_path: Path, cluster: StandingRay) -> None:
    code, found = examined(tmp_path, "--ray-address", cluster.address, "--hardware", "trn2.48xlarge")
    assert (code, found["ray"]["state"], found["cluster"]["state"]) == (5, "ok", "failed")
    assert "32 neuron_cores" in found["cluster"]["message"]


def test_an_address_where_no_ray_answers_fails_within_half_a_minute(tmp_path: Path) -> None:
    began_s = time.monotonic()
    code, found = examined(tmp_path, "--ray-address", "127.0.0.1:1")
    assert (code, found["ray"]["state"]) == (5, "failed")
    assert "--ray-address" in found["ray"]["hint"]
    assert time.monotonic() - began_s < 30
