"""``tuner cache``: what is kept, what of it is damaged, and what may go."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.artifacts import KEY, build, keys_in, never, of_size, spoil
from tests.support.cli import RunCli, run_main
from tuner.artifacts import ArtifactCache, ArtifactPlace, BuiltArtifact
from tuner.errors import ArtifactMissingError

DAY_S = 86_400


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "artifacts"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def cache(node: Path) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(node)))


@pytest.fixture
def sharing(node: Path, shared: Path) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(node), shared=str(shared)))


def document(tuner: RunCli, *arguments: str) -> Any:
    said = tuner("cache", *arguments, "--json")
    assert (said.exit_code, said.stderr) == (0, "")
    return json.loads(said.stdout)


def unused_for(node: Path, built: BuiltArtifact, days: float) -> None:
    moment = time.time() - days * DAY_S
    os.utime(node / "locks" / f"{built.content_hash}.use", (moment, moment))


# ---- list


def test_the_list_says_what_each_artifact_is_of_and_where(
    tuner: RunCli, cache: ArtifactCache, sharing: ArtifactCache, shared: Path, tmp_path: Path
) -> None:
    build(sharing, "both")
    build(cache, "own", of_size(2_500_000))
    other = ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "other"), shared=str(shared)))
    build(other, "away", of_size(10))
    header, *rows, total = tuner("cache", "list", "--artifacts", str(shared)).stdout.splitlines()
    assert header.split() == ["Key", "Configuration", "Engine", "Size", "Age", "Where", "In", "use"]
    assert [" ".join(row.split()) for row in rows] == [
        "both shallow, k=4 neuron 12.0 kB now here, shared no",
        "own shallow, k=4 neuron 2.5 MB now here no",
        "away shallow, k=4 neuron 10 B now shared no",
    ]
    assert total == f"2.5 MB in {tmp_path / 'cache' / 'artifacts'}"


def test_the_list_as_json_has_every_fact(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    built = build(cache)
    listed = document(tuner, "list")
    assert (listed["node_dir"], listed["shared"]) == (str(node), None)
    (one,) = listed["artifacts"]
    assert (one["key"], one["about"]["engine"], one["content_hash"]) == (KEY, "neuron", built.content_hash)
    assert (one["size_bytes"], one["here"], one["shared"], one["in_use"]) == (built.size_bytes, True, False, False)


def test_what_is_loaded_is_in_use(tuner: RunCli, cache: ArtifactCache) -> None:
    build(cache)
    cache.find(KEY)
    assert [one["in_use"] for one in document(tuner, "list")["artifacts"]] == [True]


def test_an_empty_cache_says_so_and_makes_nothing(tuner: RunCli, tmp_path: Path) -> None:
    assert tuner("cache", "list").stdout.startswith("No compiled artifact")
    assert document(tuner, "prune", "--all")["removed"] == []
    assert document(tuner, "verify")["good"] == []
    assert not (tmp_path / "cache").exists()


def test_a_damaged_manifest_is_noted_and_the_others_are_listed(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    build(cache, "damaged")
    (node / "keys" / "damaged.json").write_text("{")
    said = tuner("cache", "list", "--json")
    assert [one["key"] for one in json.loads(said.stdout)["artifacts"]] == [KEY]
    assert "keys/damaged.json" in said.stderr


def test_a_shared_folder_that_is_not_there_is_not_made(tuner: RunCli, shared: Path) -> None:
    said = tuner("cache", "list", "--artifacts", str(shared))
    assert (said.exit_code, said.stdout) == (5, "")
    assert str(shared) in said.stderr
    assert not shared.exists()


# ---- verify


def test_whole_artifacts_pass(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    said = tuner("cache", "verify")
    assert (said.exit_code, said.stdout) == (0, f"{node}: 1 artifact as published\n")


def test_damage_is_exit_code_5_and_says_which(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache, "good", of_size(10))
    built = build(cache)
    spoil(node / "content" / built.content_hash / "weights" / "tp0.safetensors")
    said = tuner("cache", "verify")
    assert (said.exit_code, said.stdout) == (5, "")
    assert "1 of 2 artifacts damaged: 5f1e (weights/tp0.safetensors: SHA-256" in said.stderr
    assert "--remove-damaged" in said.stderr


def test_damage_is_removed_on_request(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache, "good", of_size(10))
    built = build(cache)
    spoil(node / "content" / built.content_hash / "model.neff")
    assert [one["key"] for one in document(tuner, "verify", "--remove-damaged")["removed"]] == [KEY]
    assert keys_in(node) == ["good"]
    assert tuner("cache", "verify").exit_code == 0


def test_a_damaged_manifest_is_found_and_removed(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    (node / "keys" / f"{KEY}.json").write_text("{")
    assert tuner("cache", "verify").exit_code == 5
    assert tuner("cache", "verify", "--remove-damaged").exit_code == 0
    assert keys_in(node) == []


def test_damage_in_use_stays_and_is_exit_code_5(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    spoil(cache.find(KEY) / "model.neff")
    said = tuner("cache", "verify", "--remove-damaged")
    assert said.exit_code == 5
    assert "damaged and in use" in said.stderr
    assert keys_in(node) == [KEY]


def test_the_shared_place_is_verified_on_request(
    tuner: RunCli, sharing: ArtifactCache, node: Path, shared: Path
) -> None:
    built = build(sharing)
    (shared / "content" / built.content_hash / "model.neff").unlink()
    assert tuner("cache", "verify").exit_code == 0
    said = tuner("cache", "verify", "--shared", "--artifacts", str(shared))
    assert said.exit_code == 5
    assert "model.neff: missing" in said.stderr


# ---- prune


def test_the_least_recently_used_go_until_the_size_is_kept(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    unused_for(node, build(cache, "a", of_size(1000)), days=1)
    unused_for(node, build(cache, "b", of_size(1000)), days=3)
    unused_for(node, build(cache, "c", of_size(1000)), days=2)
    said = tuner("cache", "prune", "--max-bytes", "1kB")
    assert said.stdout == f"removed b (1.0 kB)\nremoved c (1.0 kB)\n{node}: 2.0 kB freed\n"
    assert keys_in(node) == ["a"]


def test_what_was_not_used_for_long_goes(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    unused_for(node, build(cache, "a", of_size(1000)), days=29)
    unused_for(node, build(cache, "b", of_size(1000)), days=31)
    assert document(tuner, "prune", "--older-than", "30d")["removed"] == ["b"]
    assert keys_in(node) == ["a"]


def test_a_dry_run_removes_nothing(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache, "a", of_size(1000))
    build(cache, "b", of_size(1000))
    cache.find("b")
    said = tuner("cache", "prune", "--all", "--dry-run")
    assert said.stdout == (f"would remove a (1.0 kB)\nin use, stays: b (1.0 kB)\n{node}: 1.0 kB would be free\n")
    assert keys_in(node) == ["a", "b"]


def test_what_is_in_use_is_never_pruned(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    folder = cache.find(KEY)
    pruned = document(tuner, "prune", "--all")
    assert (pruned["removed"], pruned["in_use"], pruned["freed_bytes"]) == ([], [KEY], 0)
    assert (folder / "model.neff").is_file()


def test_all_leaves_nothing_but_empty_folders(tuner: RunCli, cache: ArtifactCache, node: Path) -> None:
    build(cache)
    build(cache, "same")
    build(cache, "damaged", of_size(1000))
    (node / "keys" / "damaged.json").write_text("{")
    pruned = document(tuner, "prune", "--all")
    assert (pruned["removed"], pruned["freed_bytes"]) == ([KEY, "same"], 12_010)
    assert [path for path in node.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("url", [False, True])
def test_the_shared_place_is_pruned_on_request_only(
    tuner: RunCli, sharing: ArtifactCache, node: Path, shared: Path, url: bool
) -> None:
    build(sharing)
    assert document(tuner, "prune", "--all")["removed"] == [KEY]
    assert keys_in(shared) == [KEY]
    assert build(sharing, make=never).was_found
    place = f"file://{shared}" if url else str(shared)
    assert document(tuner, "prune", "--all", "--shared", "--artifacts", place)["removed"] == [KEY]
    assert (keys_in(node), keys_in(shared)) == ([KEY], [])


def test_a_relative_shared_folder_is_taken_from_where_one_is(
    tuner: RunCli, sharing: ArtifactCache, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(sharing)
    monkeypatch.chdir(shared.parent)
    assert document(tuner, "list", "--artifacts", "shared")["shared"] == str(shared)


def test_what_was_pruned_is_missing(tuner: RunCli, tmp_path: Path, cache: ArtifactCache) -> None:
    build(cache)
    document(tuner, "prune", "--all")
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prune",), "--max-bytes 50GB, --older-than 30d, or --all"),
        (("prune", "--max-bytes", "many"), "'many' is not a size"),
        (("prune", "--max-bytes", "5 parsecs"), "500MB, 50GB"),
        (("prune", "--max-bytes", "-1"), "is not a size"),
        (("prune", "--older-than", "30"), "'30' is not an age"),
        (("prune", "--all", "--shared"), "--artifacts URL"),
        (("verify", "--artifacts", "s3://bucket/path"), "add --shared"),
    ],
)
def test_a_command_that_is_unclear_is_refused(tuner: RunCli, arguments: tuple[str, ...], said: str) -> None:
    answer = tuner("cache", *arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert said in answer.stderr


@pytest.mark.parametrize(("size", "kept"), [("2000", 2), ("2kB", 2), ("1.9 KB", 1), ("1KiB", 1), ("1GB", 3)])
def test_sizes_are_written_as_people_do(tuner: RunCli, cache: ArtifactCache, node: Path, size: str, kept: int) -> None:
    for key in "abc":
        build(cache, key, of_size(1000))
    document(tuner, "prune", "--max-bytes", size)
    assert len(keys_in(node)) == kept
