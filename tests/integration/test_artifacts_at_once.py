"""Many processes of two machines build, load and prune the same few artifacts, and some are killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tuner.artifacts import ArtifactCache, ArtifactPlace
from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.upkeep import prune, verify
from tuner.errors import ArtifactMissingError

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")
KEYS = tuple(f"key{number}" for number in range(6))
FOR_S = 8.0


def content(key: str) -> bytes:
    return b"x" * (1000 + int(key[-1]) % 3)  # two keys each have the same


def compiler(key: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "model.neff").write_bytes(content(key))
        (folder / "weights").mkdir()
        (folder / "weights" / "tp0").write_bytes(content(key))

    return make


def place_of(root: str, machine: int, rng: random.Random) -> ArtifactPlace:
    shared = str(Path(root) / "shared") if rng.random() < 0.7 else None
    return ArtifactPlace(node_dir=str(Path(root) / f"node{machine}"), shared=shared, node_limit_bytes=9000)


def build_and_prune(root: str, seed: int, until: float) -> None:
    rng = random.Random(seed)
    while time.time() < until:
        key, place = rng.choice(KEYS), place_of(root, seed % 2, rng)
        if rng.random() < 0.8:
            assert ArtifactCache(place).build(key, compiler(key), {}).size_bytes == 2 * len(content(key))
        else:
            folder = place.shared if rng.random() < 0.3 and place.shared is not None else place.node_dir
            prune(FolderPlace(Path(folder)), max_bytes=rng.choice((0, 3000)))


def load(root: str, seed: int, until: float) -> None:
    """Load one after the other, each in a process that ends with its load, sometimes early."""
    rng = random.Random(seed)
    while time.time() < until:
        child = os.fork()
        if child == 0:
            os._exit(load_one(place_of(root, seed % 2, rng), rng.choice(KEYS)))
        if rng.random() < 0.1:
            time.sleep(0.003)
            os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {0, -signal.SIGKILL}


def load_one(place: ArtifactPlace, key: str) -> int:
    with suppress(ArtifactMissingError):
        folder = ArtifactCache(place).find(key)
        for _ in range(3):
            for name in ("model.neff", "weights/tp0"):
                if (folder / name).read_bytes() != content(key):
                    return 1
            time.sleep(0.005)
    return 0


def test_nothing_half_made_is_seen_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    until = time.time() + FOR_S
    arguments = [(str(tmp_path), seed, until) for seed in range(6)]
    processes = [
        SPAWN.Process(target=load if number > 2 else build_and_prune, args=one) for number, one in enumerate(arguments)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    for name in ("node0", "node1", "shared"):
        place = FolderPlace(tmp_path / name)
        place.sweep()
        assert verify(place).damaged == ()
        prune(place, max_bytes=0)
        assert [path for path in place.root.rglob("*") if path.is_file()] == []
