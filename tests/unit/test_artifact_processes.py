"""Compiled artifacts with several processes, a limit, and full disks: each made once, and nothing half-made."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.artifacts import (
    ABOUT,
    KEY,
    build,
    graph,
    half_made,
    keys_in,
    never,
    of_size,
    other_graph,
)
from tuner.artifacts import ArtifactCache, ArtifactPlace, BuiltArtifact
from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.upkeep import prune
from tuner.errors import ArtifactError, ArtifactMissingError

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def cache(node: Path) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(node)))


@pytest.fixture(params=["folder", "file URL", "objects"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place that two machines reach."""
    folder = tmp_path / "shared"
    yield {"folder": str(folder), "file URL": f"file://{folder}", "objects": f"memory://{tmp_path.name}"}[request.param]
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def here(tmp_path: Path, shared: str) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"), shared=shared))


@pytest.fixture
def there(tmp_path: Path, shared: str) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "there"), shared=shared))


def build_slowly(node: str, started: Connection, made: str, seconds: float) -> None:
    def make(folder: Path) -> None:
        graph(folder)
        with Path(made).open("a") as stream:
            stream.write("made\n")
        started.send("making")
        time.sleep(seconds)

    ArtifactCache(ArtifactPlace(node_dir=node)).build(KEY, make, ABOUT)
    started.send("done")


def hold(node: str, held: Connection) -> None:
    ArtifactCache(ArtifactPlace(node_dir=node)).find(KEY)
    held.send("held")
    held.recv()


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[BaseProcess, Connection]]]:
    """Start a function in a process of its own, which is ended with the test."""
    processes: list[BaseProcess] = []

    def start_one(function: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=function, args=(arguments[0], theirs, *arguments[1:]))
        process.start()
        processes.append(process)
        return process, ours

    yield start_one
    for process in processes:
        process.kill()
        process.join()


def test_two_processes_that_want_one_key_make_it_once(node: Path, tmp_path: Path, start: Any) -> None:
    made = tmp_path / "made"
    pairs = [start(build_slowly, str(node), str(made), 0.5) for _ in range(2)]
    for process, _ in pairs:
        process.join(timeout=60)
    assert [process.exitcode for process, _ in pairs] == [0, 0]
    assert made.read_text() == "made\n"
    assert half_made(node) == []


def test_after_a_maker_was_killed_the_next_one_makes_it(
    cache: ArtifactCache, node: Path, tmp_path: Path, start: Any
) -> None:
    process, started = start(build_slowly, str(node), str(tmp_path / "made"), 60.0)
    assert started.recv() == "making"
    assert len(half_made(node)) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)
    assert half_made(node) == []
    assert not build(cache).was_found


def test_what_a_killed_maker_left_is_removed_by_whoever_makes_another(
    cache: ArtifactCache, node: Path, tmp_path: Path, start: Any
) -> None:
    process, started = start(build_slowly, str(node), str(tmp_path / "made"), 60.0)
    assert started.recv() == "making"
    build(cache, "other", other_graph)
    assert len(half_made(node)) == 1  # it is still being made
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    build(cache, "third", graph)
    assert half_made(node) == []


def test_content_that_was_published_without_its_key_is_removed(cache: ArtifactCache, node: Path) -> None:
    built = build(cache)
    (node / "keys" / f"{KEY}.json").unlink()
    build(cache, "other", other_graph)
    assert not (node / "content" / built.content_hash).exists()


def test_what_another_process_has_loaded_is_not_pruned_until_it_ends(
    cache: ArtifactCache, node: Path, start: Any
) -> None:
    built = build(cache)
    process, held = start(hold, str(node))
    assert held.recv() == "held"
    place = FolderPlace(node)
    assert place.in_use(built.content_hash)
    pruned = prune(place, max_bytes=0)
    assert ([one.key for one in pruned.in_use], pruned.removed) == ([KEY], ())
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [one.key for one in prune(place, max_bytes=0).removed] == [KEY]
    assert sorted(path.name for path in node.rglob("*") if path.is_file()) == []


def used_at(node: Path, built: BuiltArtifact, second: int) -> None:
    os.utime(node / "locks" / f"{built.content_hash}.use", (second, second))


def limited(node: Path, limit_bytes: int, shared: str | None = None) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(node), node_limit_bytes=limit_bytes, shared=shared))


def test_beyond_the_limit_the_least_recently_used_goes(node: Path) -> None:
    cache = limited(node, 2500)
    used_at(node, build(cache, "a", of_size(1000)), second=20)
    used_at(node, build(cache, "b", of_size(1000)), second=10)
    build(cache, "c", of_size(1000))
    assert keys_in(node) == ["a", "c"]
    assert len(list((node / "content").iterdir())) == 2


def test_finding_counts_as_use(node: Path, start: Any) -> None:
    cache = limited(node, 2500)
    used_at(node, build(cache, KEY, of_size(1000)), second=10)
    used_at(node, build(cache, "b", of_size(1000)), second=20)
    process, held = start(hold, str(node))
    assert held.recv() == "held"
    held.send("end")
    process.join()
    build(cache, "c", of_size(1000))
    assert keys_in(node) == [KEY, "c"]


def test_what_was_just_made_stays_even_alone_beyond_the_limit(node: Path) -> None:
    cache = limited(node, 500)
    build(cache, "a", of_size(1000))
    build(cache, "b", of_size(1000))
    assert keys_in(node) == ["b"]


def test_what_is_loaded_stays_beyond_the_limit(node: Path) -> None:
    cache = limited(node, 1500)
    build(cache, "a", of_size(1000))
    cache.find("a")
    build(cache, "b", of_size(1000))
    build(cache, "c", of_size(1000))
    assert keys_in(node) == ["a", "c"]


def test_the_limit_holds_for_what_is_fetched(tmp_path: Path) -> None:
    maker = ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "maker"), shared=str(tmp_path / "shared")))
    build(maker, "a", of_size(1000))
    build(maker, "b", of_size(1000))
    cache = limited(tmp_path / "node", 1500, str(tmp_path / "shared"))
    build(cache, "a", never)
    cache.find("b")
    assert keys_in(tmp_path / "node") == ["b"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """A folder that holds 200 kB, on a file system of its own where this process may mount one.

    Elsewhere no file may be larger than 100 kB, which the system reports in the same place with another number.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin() -> Path:
        nonlocal mounted
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
        mounted = (
            shutil.which("mount") is not None
            and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        )
        if not mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        return folder

    yield begin
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_says_what_to_do(error: ArtifactError, place: Path) -> None:
    assert not isinstance(error, ArtifactMissingError)
    assert str(place) in error.message
    assert " free)" in error.message
    assert "tuner cache prune" in error.hint


def test_a_disk_that_fills_while_compiling_keeps_what_was_there(small_disk: Callable[[], Path]) -> None:
    node = small_disk() / "node"
    cache = ArtifactCache(ArtifactPlace(node_dir=str(node)))
    build(cache)
    with pytest.raises(ArtifactError) as caught:
        build(cache, "large", of_size(300_000))
    assert_says_what_to_do(caught.value, node)
    assert half_made(node) == []
    assert keys_in(node) == [KEY]
    assert build(cache, make=never).was_found
    assert cache.find(KEY).is_dir()


def test_a_disk_that_fills_with_the_manifest_keeps_no_content_without_one(small_disk: Callable[[], Path]) -> None:
    def leaves_many_files(folder: Path) -> None:
        for number in range(2500):
            (folder / f"{number}.txt").touch()

    node = small_disk() / "node"
    with pytest.raises(ArtifactError) as caught:
        build(ArtifactCache(ArtifactPlace(node_dir=str(node))), make=leaves_many_files)
    assert_says_what_to_do(caught.value, node)
    assert [path for path in node.rglob("*") if path.suffix in {".txt", ".json"}] == []


def test_a_disk_that_fills_while_fetching_says_how_much_is_needed(
    tmp_path: Path, small_disk: Callable[[], Path], shared: str
) -> None:
    maker = ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "maker"), shared=shared))
    build(maker)
    build(maker, "large", of_size(300_000))
    node = small_disk() / "node"
    cache = ArtifactCache(ArtifactPlace(node_dir=str(node), shared=shared))
    cache.find(KEY)
    with pytest.raises(ArtifactError, match=r"300\.0 kB needed") as caught:
        cache.find("large")
    assert_says_what_to_do(caught.value, node)
    assert half_made(node) == []
    assert cache.find(KEY).is_dir()


def test_a_shared_disk_that_fills_keeps_what_was_there(tmp_path: Path, small_disk: Callable[[], Path]) -> None:
    make = of_size(300_000)
    build(ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"))), "large", make)
    shared = small_disk() / "shared"
    here = ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"), shared=str(shared)))
    build(here)
    with pytest.raises(ArtifactError, match=r"300\.0 kB needed") as caught:
        build(here, "large", never)
    assert_says_what_to_do(caught.value, shared)
    assert half_made(shared) == []
    assert keys_in(shared) == [KEY]
    assert here.find("large").is_dir()  # what was compiled is not lost


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"file/node failed: Not a directory"):
        build(ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "file" / "node"))))
