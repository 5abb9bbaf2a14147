"""Compiled artifacts in a place that two machines reach: fetched and not compiled, and never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support.artifacts import (
    KEY,
    build,
    change_shared,
    counting,
    half_made,
    never,
    other_graph,
    spoil,
)
from tuner.artifacts import ArtifactCache, ArtifactPlace
from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.manifest import Damage, Manifest
from tuner.artifacts.objects import ObjectPlace
from tuner.artifacts.places import open_shared
from tuner.artifacts.upkeep import verify
from tuner.errors import ArtifactError, ArtifactMissingError


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


def test_what_one_machine_made_is_fetched_by_another(here: ArtifactCache, there: ArtifactCache) -> None:
    made = build(here)
    found = build(there, make=never)
    assert (found.was_found, found.content_hash, found.size_bytes) == (True, made.content_hash, made.size_bytes)
    folder = there.find(KEY)
    assert folder != here.find(KEY)
    assert (folder / "weights" / "tp0.safetensors").read_bytes() == b"weights" * 1000
    assert os.access(folder / "run.sh", os.X_OK)
    assert not os.access(folder / "model.neff", os.X_OK)
    assert (folder / "tmp").is_dir()


def test_finding_alone_fetches_too(here: ArtifactCache, there: ArtifactCache, tmp_path: Path) -> None:
    build(here)
    assert (there.find(KEY) / "model.neff").read_bytes() == b"graph" * 1000
    assert half_made(tmp_path / "there") == []


def test_what_is_nowhere_is_missing(there: ArtifactCache, shared: str) -> None:
    with pytest.raises(ArtifactMissingError, match=r"whole artifact 5f1e in .* nor in "):
        there.find(KEY)


def test_what_is_damaged_here_is_fetched_again(here: ArtifactCache, there: ArtifactCache) -> None:
    build(here)
    spoil(there.find(KEY) / "model.neff")
    assert (there.find(KEY) / "model.neff").read_bytes() == b"graph" * 1000


def test_what_was_found_here_only_is_shared_by_the_next_build(
    tmp_path: Path, shared: str, there: ArtifactCache
) -> None:
    build(ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"))))
    assert build(ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"), shared=shared)), make=never).was_found
    assert there.find(KEY).is_dir()


@pytest.mark.parametrize("problem", ["spoiled", "missing"])
def test_damage_in_the_shared_place_is_an_error_that_names_the_file(
    here: ArtifactCache, there: ArtifactCache, shared: str, tmp_path: Path, problem: str
) -> None:
    build(here)
    change_shared(shared, "tp0.safetensors", lambda data: None if problem == "missing" else data[:-1] + b"!")
    for act in (lambda: there.find(KEY), lambda: build(there)):
        with pytest.raises(ArtifactError, match=r"tp0\.safetensors") as caught:
            act()
        assert not isinstance(caught.value, ArtifactMissingError)
        assert "--remove-damaged" in caught.value.hint
    assert half_made(tmp_path / "there") == []
    assert here.find(KEY).is_dir()


def test_a_damaged_manifest_in_the_shared_place_is_an_error_that_names_it(
    here: ArtifactCache, there: ArtifactCache, shared: str
) -> None:
    build(here)
    change_shared(shared, f"{KEY}.json", lambda data: data[: len(data) // 2])
    with pytest.raises(ArtifactError, match=rf"keys/{KEY}\.json: not a manifest"):
        there.find(KEY)


def test_an_upload_without_its_manifest_is_no_artifact(here: ArtifactCache, there: ArtifactCache, shared: str) -> None:
    build(here)
    change_shared(shared, f"{KEY}.json", lambda _: None)
    with pytest.raises(ArtifactMissingError):
        there.find(KEY)
    assert not build(there).was_found
    assert ArtifactCache(ArtifactPlace(node_dir=str(here.find(KEY).parent / "x"), shared=shared)).find(KEY).is_dir()


def test_an_upload_that_was_cut_is_completed(here: ArtifactCache, there: ArtifactCache, shared: str) -> None:
    build(here)
    change_shared(shared, f"{KEY}.json", lambda _: None)
    change_shared(shared, "model.neff", lambda data: data[:7] if shared.startswith("memory") else data)
    build(here)
    assert (there.find(KEY) / "model.neff").read_bytes() == b"graph" * 1000


def test_who_publishes_second_takes_what_is_there(here: ArtifactCache, there: ArtifactCache) -> None:
    def while_another_machine_is_first(folder: Path) -> None:
        build(here)
        other_graph(folder)

    built = build(there, make=while_another_machine_is_first)
    assert not built.was_found
    assert built.content_hash == build(here).content_hash
    assert (there.find(KEY) / "model.neff").read_bytes() == b"graph" * 1000


def test_a_shared_place_that_is_the_machines_own_folder_is_used_once(node: Path) -> None:
    cache = ArtifactCache(ArtifactPlace(node_dir=str(node), shared=f"file://{node}"))
    build(cache)
    assert cache.find(KEY).is_dir()
    node.joinpath("keys", f"{KEY}.json").unlink()
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)


@pytest.mark.parametrize(
    ("shared", "said", "hint"),
    [
        ("/nowhere/at/all", "not on this machine: /nowhere/at/all", "mount it"),
        ("relative/folder", "relative path", "whole path"),
        ("gs://bucket/path", "package that is not installed", "pip install gcsfs"),
        ("nonsense://bucket", "nonsense", "s3://bucket/path"),
    ],
)
def test_a_shared_place_that_cannot_be_used_says_why(node: Path, shared: str, said: str, hint: str) -> None:
    cache = ArtifactCache(ArtifactPlace(node_dir=str(node), shared=shared))
    with pytest.raises(ArtifactError, match=said) as caught:
        cache.find(KEY)
    assert hint in caught.value.hint


def test_a_missing_package_for_s3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(url: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "url_to_fs", not_installed)
    with pytest.raises(ArtifactError) as caught:
        open_shared("s3://bucket/path")
    assert 'pip install "specdec-tuner[s3]"' in caught.value.hint


def test_a_store_that_fails_is_an_error_that_names_it(
    here: ArtifactCache, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shared.startswith("memory"):
        return

    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("AccessDenied")

    monkeypatch.setattr(fsspec.filesystem("memory"), "put_file", refuses)
    with pytest.raises(ArtifactError, match=r"uploading artifact 5f1e in memory://.* failed: AccessDenied"):
        build(here)
    monkeypatch.undo()
    assert build(here, make=never).was_found  # what was compiled is kept, and uploaded now
    assert isinstance(ObjectPlace(shared).manifest(KEY), Manifest)


def test_an_artifact_that_is_pruned_while_it_is_fetched_is_missing(
    here: ArtifactCache, there: ArtifactCache, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(here)
    place = open_shared(shared)
    kind = type(place)
    fetch = kind.fetch

    def prunes_first(self: Any, manifest: Manifest, folder: Path) -> Damage | None:
        assert place.remove(manifest.content_hash)
        return fetch(self, manifest, folder)

    monkeypatch.setattr(kind, "fetch", prunes_first)
    with pytest.raises(ArtifactMissingError):
        there.find(KEY)


def test_verifying_reads_what_nobody_touched(cache: ArtifactCache, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    build(cache)
    monkeypatch.setattr("tuner.artifacts.manifest.file_sha256", counting(hashed))
    found = verify(FolderPlace(node))
    assert ([one.key for one in found.good], found.damaged, len(hashed)) == ([KEY], (), 3)


def test_damage_in_a_shared_place_can_be_removed_and_is_compiled_again(
    here: ArtifactCache, there: ArtifactCache, shared: str
) -> None:
    build(here, "good", other_graph)
    build(here)
    change_shared(shared, "tp0.safetensors", lambda data: data[:-1] + b"!")
    place = open_shared(shared)
    assert [damage.file for damage in verify(place).damaged] == ["weights/tp0.safetensors"]
    found = verify(place, remove_damaged=True)
    assert ([one.key for one in found.good], [one.key for one in found.removed]) == (["good"], [KEY])
    assert not build(there).was_found


def test_an_upload_in_progress_is_not_swept_and_a_stale_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path.name}"
    build(ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / "here"), shared=url)))
    change_shared(url, f"{KEY}.json", lambda _: None)
    place = ObjectPlace(url)
    place.sweep()
    files = fsspec.filesystem("memory")
    assert len(files.find(tmp_path.name)) == 3
    monkeypatch.setattr("tuner.artifacts.objects.LONGEST_UPLOAD", timedelta(seconds=-1))
    place.sweep()
    assert files.find(tmp_path.name) == []
