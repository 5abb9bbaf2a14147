"""What a person may write as a target or draft, and the hub's answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.file_server import FileServer, running_file_server
from tests.support.tiny_gguf import TinyGguf
from tuner.errors import DownloadError, ModelError
from tuner.models.check import check_model
from tuner.models.gguf import write_model_folder
from tuner.models.hub import check_hub_access, fetch_from_hub, find_in_hub_cache
from tuner.models.resolve import resolve_model, resolve_models
from tuner.settings import Settings

TOKEN = "hf_TESTTOKEN"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", storage_url="sqlite://")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A hub in which ``acme/public`` may be read and ``acme/private-draft`` may not."""
    with running_file_server() as server:
        server.files["/acme/public/resolve/main/config.json"] = b"{}"
        server.statuses["/acme/private-draft/resolve/main/config.json"] = 401
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server


def a_cached_model(tmp_path: Path, repo: str) -> Path:
    """A model as the hub's cache lays it out."""
    commit = "0" * 40
    repository = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    write_model_folder(TinyGguf().write(tmp_path / "tiny.gguf"), folder)
    return folder


def test_a_folder_stands_for_itself(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)

    assert resolve_model("mine", settings=settings) == tmp_path / "mine"
    assert resolve_model("./mine", settings=settings) == tmp_path / "mine"


def test_a_gguf_file_is_converted_into_the_cache(tmp_path: Path, settings: Settings) -> None:
    folder = resolve_model(str(TinyGguf().write(tmp_path / "tiny.gguf")), settings=settings)

    assert folder.is_relative_to(settings.cache_dir)
    assert check_model(folder).problems == ()


def test_a_name_of_the_catalogue_is_found_in_any_case(tmp_path: Path) -> None:
    own = tmp_path / "models" / "Qwen3-0.6B"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    settings = Settings(cache_dir=tmp_path, storage_url="sqlite://", models_dir=tmp_path / "models")

    assert resolve_model("qwen3-0.6b", settings=settings) == own


def test_a_folder_without_config_says_what_it_holds(tmp_path: Path, settings: Settings) -> None:
    TinyGguf().write(tmp_path / "tiny.gguf")

    with pytest.raises(ModelError) as caught:
        resolve_model(str(tmp_path), settings=settings)

    assert "has no config.json" in caught.value.message
    assert str(tmp_path / "tiny.gguf") in caught.value.hint


def test_a_file_of_another_kind_is_refused(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "model.bin").touch()

    with pytest.raises(ModelError, match=r"model\.bin is no model"):
        resolve_model(str(tmp_path / "model.bin"), settings=settings)


@pytest.mark.parametrize("reference", ["./nowhere", "/no/where", "nowhere.gguf", "a/nowhere.gguf"])
def test_a_path_to_nothing_is_no_hub_name(settings: Settings, reference: str) -> None:
    with pytest.raises(ModelError, match="no model at /"):
        resolve_model(reference, settings=settings)


def test_the_nearest_name_is_suggested(settings: Settings) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model("Qwen3-0.6", settings=settings)

    assert "did you mean 'Qwen3-0.6B'?" in caught.value.hint


def test_a_private_draft_is_refused_before_its_target_is_fetched(settings: Settings, hub: FileServer) -> None:
    with pytest.raises(DownloadError) as caught:
        resolve_models(["acme/public", "acme/private-draft"], settings=settings)

    assert "acme/private-draft" in caught.value.message
    assert "HF_TOKEN" in caught.value.hint
    assert TOKEN not in str(caught.value)
    assert {(method, path) for method, path, *_ in hub.seen} == {
        ("HEAD", "/acme/public/resolve/main/config.json"),
        ("HEAD", "/acme/private-draft/resolve/main/config.json"),
    }


@pytest.mark.parametrize(
    ("status", "message"), [(401, "refuses acme/x"), (403, "refuses acme/x"), (404, "no model acme/x"), (500, "500")]
)
def test_the_hubs_refusals_name_the_model(hub: FileServer, status: int, message: str) -> None:
    hub.statuses["/acme/x/resolve/main/config.json"] = status

    with pytest.raises(DownloadError, match=message):
        check_hub_access("acme/x")


def test_the_token_is_sent_to_the_hub(hub: FileServer) -> None:
    check_hub_access("acme/public")

    assert hub.seen[0][3] == f"Bearer {TOKEN}"


def test_a_hub_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, hub: FileServer) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(DownloadError, match=r"no answer from 127\.0\.0\.1"):
        check_hub_access("acme/public")


def test_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, hub: FileServer) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        fetch_from_hub("acme/public")

    assert hub.seen == []


def test_what_the_hubs_cache_holds_needs_no_request(tmp_path: Path, settings: Settings, hub: FileServer) -> None:
    folder = a_cached_model(tmp_path, "acme/private-draft")

    assert resolve_models(["acme/private-draft"], settings=settings) == {"acme/private-draft": folder}
    assert hub.seen == []


def test_a_cached_model_that_lacks_a_file_counts_as_absent(tmp_path: Path, hub: FileServer) -> None:
    folder = a_cached_model(tmp_path, "acme/public")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")

    assert find_in_hub_cache("acme/public") is None
