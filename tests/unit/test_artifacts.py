"""Compiled artifacts on one machine: made once, published whole, and verified when loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.artifacts import (
    ABOUT,
    KEY,
    build,
    counting,
    graph,
    half_made,
    never,
    spoil,
)
from tuner.artifacts import ArtifactCache, ArtifactPlace
from tuner.artifacts.folder import FolderPlace
from tuner.artifacts.manifest import Manifest
from tuner.errors import ArtifactError, ArtifactMissingError, CompileError


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def cache(node: Path) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(node)))


def test_what_was_made_is_found_as_it_was_left(cache: ArtifactCache) -> None:
    built = build(cache)
    folder = cache.find(KEY)
    assert not built.was_found
    assert built.size_bytes == 5000 + 7000 + 10
    assert built.compile_s > 0
    assert (folder / "model.neff").read_bytes() == b"graph" * 1000
    assert os.access(folder / "run.sh", os.X_OK)
    assert (folder / "tmp").is_dir()


def test_what_is_there_is_not_made_again(cache: ArtifactCache) -> None:
    first = build(cache)
    second = build(cache, make=never)
    assert (second.was_found, second.compile_s) == (True, 0)
    assert (second.content_hash, second.size_bytes) == (first.content_hash, first.size_bytes)


def test_the_same_content_has_one_hash_and_lies_there_once(cache: ArtifactCache, node: Path) -> None:
    assert build(cache, "a").content_hash == build(cache, "b").content_hash
    assert cache.find("a") == cache.find("b")
    assert len(list((node / "content").iterdir())) == 1


@pytest.mark.parametrize("change", ["content", "name", "mode", "folder"])
def test_any_difference_is_another_hash(cache: ArtifactCache, change: str) -> None:
    def differently(folder: Path) -> None:
        graph(folder)
        match change:
            case "content":
                (folder / "model.neff").write_bytes(b"grapH" * 1000)
            case "name":
                (folder / "model.neff").rename(folder / "other.neff")
            case "mode":
                (folder / "run.sh").chmod(0o644)
            case _:
                (folder / "tmp").rmdir()

    assert build(cache, "a").content_hash != build(cache, "b", differently).content_hash


def test_the_manifest_says_what_it_is_of(cache: ArtifactCache, node: Path) -> None:
    built = build(cache)
    manifest = json.loads((node / "keys" / f"{KEY}.json").read_text())
    assert (manifest["key"], manifest["about"], manifest["content_hash"]) == (KEY, ABOUT, built.content_hash)
    assert [file["path"] for file in manifest["files"]] == ["model.neff", "run.sh", "weights/tp0.safetensors"]
    assert manifest["compile_s"] == built.compile_s
    assert manifest["tuner_version"]


def test_nothing_is_found_where_nothing_was_made(cache: ArtifactCache, node: Path) -> None:
    with pytest.raises(ArtifactMissingError, match=KEY) as caught:
        cache.find(KEY)
    assert str(node) in caught.value.message


@pytest.mark.parametrize("error", [CompileError("no such layout", "use tp 4"), OSError(5, "Input/output error")])
def test_what_a_compiler_raises_is_passed_on_and_nothing_is_kept(
    cache: ArtifactCache, node: Path, error: Exception
) -> None:
    def fails(folder: Path) -> None:
        graph(folder)
        raise error

    with pytest.raises(type(error)) as caught:
        build(cache, make=fails)
    assert caught.value is error
    assert half_made(node) == []
    assert not (node / "content").exists()
    assert not build(cache).was_found


def link(folder: Path) -> None:
    (folder / "weights").symlink_to("/data/weights")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "weights")


def bad_name(folder: Path) -> None:
    Path(os.fsdecode(bytes(folder) + b"/\xff")).touch()


@pytest.mark.parametrize(
    ("make", "said"),
    [(link, "symbolic link weights"), (pipe, "weights, which is neither a file nor a folder"), (bad_name, "not UTF-8")],
)
def test_what_cannot_be_carried_to_another_machine_is_refused(
    cache: ArtifactCache, node: Path, make: Callable[[Path], None], said: str
) -> None:
    with pytest.raises(ArtifactError, match=said) as caught:
        build(cache, make=make)
    assert caught.value.hint
    assert half_made(node) == []
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)


@pytest.mark.parametrize("key", ["", "../etc", "a/b", ".hidden", "a b"])
def test_a_key_that_cannot_name_a_file_is_refused(cache: ArtifactCache, key: str) -> None:
    with pytest.raises(ArtifactError, match="cannot be the key"):
        build(cache, key)
    with pytest.raises(ArtifactError, match="cannot be the key"):
        cache.find(key)


def shorten(file: Path) -> None:
    os.truncate(file, 3)


def replace_by_link(file: Path) -> None:
    moved = file.with_suffix(".moved")
    file.rename(moved)
    file.symlink_to(moved)


@pytest.mark.parametrize("damage", [spoil, shorten, Path.unlink, replace_by_link])
@pytest.mark.parametrize("was_loaded", [True, False])
def test_a_damaged_artifact_is_never_loaded(
    cache: ArtifactCache, node: Path, damage: Callable[[Path], None], was_loaded: bool
) -> None:
    built = build(cache)
    if was_loaded:
        cache.find(KEY)
    damage(node / "content" / built.content_hash / "model.neff")
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)
    assert not build(cache).was_found
    assert (cache.find(KEY) / "model.neff").read_bytes() == b"graph" * 1000


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', "[1]", "\x00"])
def test_an_artifact_with_a_damaged_manifest_is_made_again(cache: ArtifactCache, node: Path, text: str) -> None:
    build(cache)
    (node / "keys" / f"{KEY}.json").write_text(text)
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)
    assert not build(cache).was_found


def test_a_manifest_that_leads_out_of_the_artifact_is_not_followed(cache: ArtifactCache, node: Path) -> None:
    build(cache)
    path = node / "keys" / f"{KEY}.json"
    manifest = json.loads(path.read_text())
    manifest["files"][0]["path"] = "../../../etc/passwd"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactMissingError):
        cache.find(KEY)


def test_damage_of_a_key_with_the_same_content_is_found_when_it_is_made(cache: ArtifactCache, node: Path) -> None:
    built = build(cache, "a")
    spoil(node / "content" / built.content_hash / "model.neff")
    build(cache, "b")
    assert (cache.find("b") / "model.neff").read_bytes() == b"graph" * 1000


def test_an_artifact_that_does_not_stay_whole_is_an_error_and_not_compiled_for_ever(
    cache: ArtifactCache, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt = FolderPlace.adopt

    def adopt_while_the_compiler_still_writes(self: FolderPlace, *arguments: Any) -> Manifest:
        manifest = adopt(self, *arguments)
        spoil(self.content(manifest) / "model.neff")
        return manifest

    monkeypatch.setattr(FolderPlace, "adopt", adopt_while_the_compiler_still_writes)
    with pytest.raises(ArtifactError, match="does not stay whole"):
        build(cache)
    assert list((node / "content").iterdir()) == []


def test_a_file_is_hashed_once_and_again_after_it_was_touched(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    build(cache)
    monkeypatch.setattr("tuner.artifacts.manifest.file_sha256", counting(hashed))
    folder = cache.find(KEY)
    assert hashed == []  # when it was published
    (folder / "model.neff").touch()
    cache.find(KEY)
    cache.find(KEY)
    assert hashed == ["model.neff"]


def test_after_the_machine_started_anew_everything_is_hashed(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    build(cache)
    monkeypatch.setattr("tuner.artifacts.manifest.file_sha256", counting(hashed))
    monkeypatch.setattr("tuner.artifacts.folder._boot_id", lambda: "another")
    cache.find(KEY)
    assert sorted(hashed) == ["model.neff", "run.sh", "tp0.safetensors"]
