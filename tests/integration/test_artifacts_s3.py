"""Compiled artifacts in S3, against moto's server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.support.artifacts import KEY, build, change_shared, never, of_size
from tuner.artifacts import ArtifactCache, ArtifactPlace
from tuner.artifacts.objects import ObjectPlace
from tuner.artifacts.upkeep import prune, verify
from tuner.errors import ArtifactError, ArtifactMissingError

pytestmark = pytest.mark.slow

LARGE_BYTES = 60_000_000  # more than one part of an upload


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=stream, stderr=stream)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(tmp_path))}"
    urllib.request.urlopen(urllib.request.Request(f"{server}/{name}", method="PUT"))  # noqa: S310
    return f"s3://{name}/artifacts"


def machine(tmp_path: Path, name: str, bucket: str) -> ArtifactCache:
    return ArtifactCache(ArtifactPlace(node_dir=str(tmp_path / name), shared=bucket))


def test_what_one_machine_made_is_fetched_by_another(tmp_path: Path, bucket: str) -> None:
    made = build(machine(tmp_path, "here", bucket), make=of_size(LARGE_BYTES))
    found = build(machine(tmp_path, "there", bucket), make=never)
    assert (found.was_found, found.content_hash, found.size_bytes) == (True, made.content_hash, LARGE_BYTES)


def test_folders_and_modes_survive(tmp_path: Path, bucket: str) -> None:
    build(machine(tmp_path, "here", bucket))
    folder = machine(tmp_path, "there", bucket).find(KEY)
    assert os.access(folder / "run.sh", os.X_OK)
    assert (folder / "tmp").is_dir()


def test_what_is_not_there_is_missing(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(ArtifactMissingError):
        machine(tmp_path, "here", bucket).find(KEY)


def test_damage_is_named_removed_and_compiled_again(tmp_path: Path, bucket: str) -> None:
    build(machine(tmp_path, "here", bucket))
    change_shared(bucket, "tp0.safetensors", lambda data: data[:-1] + b"!")
    there = machine(tmp_path, "there", bucket)
    with pytest.raises(ArtifactError, match=r"tp0\.safetensors: SHA-256"):
        there.find(KEY)
    assert [one.key for one in verify(ObjectPlace(bucket), remove_damaged=True).removed] == [KEY]
    assert not build(there).was_found


def test_an_upload_without_its_manifest_is_no_artifact_and_is_completed(tmp_path: Path, bucket: str) -> None:
    here = machine(tmp_path, "here", bucket)
    build(here)
    change_shared(bucket, f"{KEY}.json", lambda _: None)
    change_shared(bucket, "model.neff", lambda data: data[:7])
    there = machine(tmp_path, "there", bucket)
    with pytest.raises(ArtifactMissingError):
        there.find(KEY)
    build(here, make=never)
    assert there.find(KEY).is_dir()


def test_pruning_leaves_nothing(tmp_path: Path, bucket: str) -> None:
    build(machine(tmp_path, "here", bucket))
    place = ObjectPlace(bucket)
    place.sweep()  # what is published is no upload
    assert [one.key for one in prune(place, max_bytes=0).removed] == [KEY]
    assert place.manifests() == ()


@pytest.mark.parametrize("problem", ["no such bucket", "no server"])
def test_a_store_that_cannot_be_used_is_an_error_that_names_it(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "no server":
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # it has the address of the one that runs
    url = bucket if problem == "no server" else "s3://nowhere-at-all/artifacts"
    with pytest.raises(ArtifactError, match=r"artifact 5f1e in s3://.* failed: ") as caught:
        build(machine(tmp_path, "here", url))
    assert "credentials" in caught.value.hint
    fsspec.get_filesystem_class("s3").clear_instance_cache()
