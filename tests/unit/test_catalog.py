"""The shipped catalogue, and the settings that say where its models are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.catalog import WheelSource, read_catalog
from tuner.errors import ConfigurationError
from tuner.settings import DEFAULT_TARGET, read_settings


def test_the_default_target_is_in_the_catalogue_and_needs_no_account() -> None:
    model = read_catalog().find(DEFAULT_TARGET)

    assert model is not None
    assert model.role == "target"
    assert [source.kind for source in model.sources] == ["hub", "wheel"]


def test_every_draft_belongs_to_a_target_of_the_catalogue() -> None:
    catalog = read_catalog()

    for draft in (model for model in catalog.models if model.role == "draft"):
        target = catalog.find(draft.for_target or "")
        assert target is not None, draft.name
        assert target.role == "target"


def test_the_drafts_of_a_target_are_found_in_any_case() -> None:
    names = [model.name for model in read_catalog().drafts_for("qwen3-32b")]

    assert names == ["Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B"]


def test_names_differ_whatever_the_case() -> None:
    names = [name.lower() for name in read_catalog().names]

    assert len(set(names)) == len(names)


def test_a_wheel_states_its_own_version() -> None:
    wheels = [source for model in read_catalog().models for source in model.sources if isinstance(source, WheelSource)]

    assert wheels
    assert all(f"-{wheel.version}-" in wheel.file for wheel in wheels)


def test_a_hash_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "tuner" / "catalog.yaml").read_text()
    (tmp_path / "catalog.yaml").write_text(text.replace("sha256: bcc8", "sha256: xyz"))

    with pytest.raises(ConfigurationError, match=r"catalog\.yaml:\d+"):
        read_catalog(tmp_path / "catalog.yaml")


def test_an_option_wins_over_the_environment_which_wins_over_the_default(tmp_path: Path) -> None:
    env = {"TUNER_CACHE": "/from/env", "TUNER_STORAGE": "sqlite:////from/env.db"}

    assert read_settings(env, cache_dir=tmp_path).cache_dir == tmp_path
    assert read_settings(env).cache_dir == Path("/from/env")
    assert read_settings(env).storage_url == "sqlite:////from/env.db"
    assert read_settings({}).cache_dir.name == "tuner"
    assert read_settings({}).storage_url.endswith("/tuner/tuner.db")


def test_an_empty_variable_counts_as_absent() -> None:
    assert read_settings({"TUNER_MODELS": "", "TUNER_TARGET": ""}).models_dir is None
    assert read_settings({"TUNER_TARGET": ""}).default_target == DEFAULT_TARGET


def test_a_home_folder_is_written_out() -> None:
    assert read_settings({"TUNER_CACHE": "~/models"}).cache_dir == Path.home() / "models"


def test_settings_print_no_password() -> None:
    assert "s3cret" not in repr(read_settings({"TUNER_STORAGE": "postgresql://me:s3cret@host/db"}))
