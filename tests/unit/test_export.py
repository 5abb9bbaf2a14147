"""What is exported, what is refused, and that the file means what was meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.study_results import BASELINE, BROKEN, EAGLE, GOOD, NGRAM, SHALLOW, a_decision, a_result, a_trial
from tuner.decide import Verdict
from tuner.documents import export_document
from tuner.errors import ConfigurationError, NotFoundError, StorageError, UnsupportedConfigurationError
from tuner.export import (
    Export,
    ExportFormat,
    choose_trial,
    json_export,
    parse_format,
    vllm_export,
    vllm_settings,
    write_export,
)
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation

TRIALS = (BASELINE, GOOD, BROKEN)


def a_config(speculation: Speculation = NO_SPECULATION) -> EngineConfig:
    return EngineConfig(target_model="models/target", speculation=speculation, max_model_len=512)


def as_vllm_reads_it(export: Export) -> dict[str, Any]:
    """Keys with dashes, the nested object as one JSON string: what every generation of the loader understands."""
    read: dict[str, Any] = yaml.safe_load(export.text)
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for key in read)
    if "speculative-config" in read:
        assert isinstance(read["speculative-config"], str)
        read["speculative-config"] = json.loads(read["speculative-config"])
    return read


def test_no_speculation_is_a_configuration_without_a_speculative_part() -> None:
    read = as_vllm_reads_it(vllm_export(vllm_settings(a_config())))
    assert read == {"model": "models/target", "max-model-len": 512, "max-num-seqs": 1}


def test_ngram_has_both_bounds_written_out() -> None:
    read = as_vllm_reads_it(vllm_export(vllm_settings(a_config(NGRAM))))
    assert read["speculative-config"] == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }


def test_suffix_decoding_is_exported_without_the_past_responses_that_it_was_measured_without() -> None:
    suffix = Speculation(
        method=Method.SUFFIX,
        draft_name="suffix",
        drafted_tokens=8,
        suffix_decoding_max_tree_depth=24,
        suffix_decoding_max_spec_factor=2.0,
        suffix_decoding_min_token_prob=0.1,
    )
    read = as_vllm_reads_it(vllm_export(vllm_settings(a_config(suffix))))
    assert read["speculative-config"] == {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.1,
        "suffix_decoding_max_cached_requests": 0,
    }


def test_a_draft_model_is_named_by_its_folder_whatever_characters_it_has() -> None:
    draft = replace(SHALLOW, draft_model='models/O\'Brien "draft": é')
    read = as_vllm_reads_it(vllm_export(vllm_settings(a_config(draft))))
    assert read["speculative-config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 12,
        "model": 'models/O\'Brien "draft": é',
    }


def test_an_eagle_head_that_vllm_knows_is_exported_as_eagle() -> None:
    head = replace(EAGLE, draft_model="acme/EAGLE-head")
    read = as_vllm_reads_it(vllm_export(vllm_settings(a_config(head))))
    assert read["speculative-config"]["method"] == "eagle"


@pytest.mark.parametrize("model_type", ["tuner_eagle", "tuner_shallow"])
def test_drafts_in_our_own_format_are_refused_with_a_way_out(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    own = replace(EAGLE, draft_model=str(tmp_path))
    with pytest.raises(UnsupportedConfigurationError, match="cpu engine only") as caught:
        vllm_settings(a_config(own))
    assert "--format json" in caught.value.hint


def test_switches_that_are_off_are_written_so_that_they_stay_off() -> None:
    settings = {"enable_prefix_caching": False, "trust_remote_code": False, "enforce_eager": True, "quantization": None}
    assert vllm_export(settings).document == {"no-enable-prefix-caching": True, "enforce-eager": True}


def test_numbers_of_samplers_become_plain_ones() -> None:
    export = vllm_export(
        {
            "gpu_memory_utilization": np.float64(0.9199999999999999),
            "max_num_seqs": np.int64(64),
            "eager": np.bool_(True),
        }
    )
    assert export.text.splitlines()[1:] == ["gpu-memory-utilization: 0.92", "max-num-seqs: 64", "eager: true"]


@pytest.mark.parametrize("settings", [{}, {"quantization": None}])
def test_an_empty_file_is_never_written(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no setting to export"):
        vllm_export(settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_values_without_a_form_are_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match="max_num_seqs is"):
        vllm_export({"max_num_seqs": value})


def test_comments_stay_comments_whatever_a_study_is_called() -> None:
    export = vllm_export({"model": "m"}, ["study a\nmodel: other"])
    assert yaml.safe_load(export.text) == {"model": "m"}


def test_the_certified_trial_is_chosen() -> None:
    chosen = choose_trial(TRIALS, a_decision())
    assert (chosen.trial.number, chosen.is_certified) == (1, True)
    assert chosen.comments == ("study code-gen-1a2b3c, trial 1: eagle k=3", a_decision().sentence)


def test_where_the_verdict_is_not_to_speculate_that_is_exported() -> None:
    chosen = choose_trial(TRIALS, a_decision(Verdict.DO_NOT_SPECULATE))
    assert (chosen.trial.number, chosen.is_certified) == (0, True)
    assert chosen.comments[1].startswith("Do not speculate")


@pytest.mark.parametrize("decision", [None, a_decision(Verdict.INCONCLUSIVE)])
def test_without_a_verdict_nothing_is_exported(decision: Any) -> None:
    with pytest.raises(ConfigurationError, match="nothing is certified") as caught:
        choose_trial(TRIALS, decision)
    assert "--trial N" in caught.value.hint


def test_a_trial_of_ones_choice_is_marked_as_not_certified() -> None:
    chosen = choose_trial(TRIALS, a_decision(Verdict.INCONCLUSIVE), 1)
    assert (chosen.trial.number, chosen.is_certified) == (1, False)
    assert "NOT CERTIFIED" in vllm_export({"model": "m"}, chosen.comments).text


def test_asking_for_the_certified_trial_by_number_is_as_good() -> None:
    assert choose_trial(TRIALS, a_decision(), 1).is_certified


def test_a_trial_without_a_measurement_cannot_be_exported() -> None:
    with pytest.raises(ConfigurationError, match="trial 2 was not measured: it is infeasible"):
        choose_trial(TRIALS, a_decision(), 2)
    with pytest.raises(NotFoundError, match="no trial 9"):
        choose_trial(TRIALS, a_decision(), 9)


def test_json_has_the_decision_the_conditions_and_the_provenance() -> None:
    result = a_result()
    export = json_export(export_document(result, a_config(EAGLE), choose_trial(result.trials, result.decision)))
    document = json.loads(export.text)
    assert document["configuration"]["num_speculative_tokens"] == 3
    assert document["configuration"]["target_model"] == "models/target"
    assert document["decision"]["speedup"]["low"] == 1.09
    assert document["conditions"]["seed"] == 0
    assert document["provenance"] == {"python": "3.11.2"}
    assert document["is_certified"] is True


@pytest.mark.parametrize(
    ("name", "export"),
    [("vllm.yaml", vllm_export(vllm_settings(a_config(NGRAM)))), ("out.json", json_export({"trial": 1}))],
)
def test_files_are_read_back_and_may_be_written_again(tmp_path: Path, name: str, export: Export) -> None:
    path = tmp_path / name
    write_export(path, export)
    write_export(path, export)
    assert path.read_text(encoding="utf-8") == export.text
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_file_of_someone_else_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text("model: mine\n")
    with pytest.raises(ConfigurationError, match="was not written by the tuner"):
        write_export(path, vllm_export({"model": "m"}))
    assert path.read_text() == "model: mine\n"
    write_export(path, vllm_export({"model": "m"}), force=True)
    assert yaml.safe_load(path.read_text()) == {"model": "m"}


@pytest.mark.parametrize("name", ["vllm.txt", "absent/vllm.yaml", "folder.yaml"])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigurationError):
        write_export(tmp_path / name, vllm_export({"model": "m"}))


def test_what_reads_back_differently_is_not_put_in_place(tmp_path: Path) -> None:
    damaged = Export(export_format=ExportFormat.VLLM, text="model: other\n", document={"model": "m"})
    with pytest.raises(StorageError, match="reads back differently"):
        write_export(tmp_path / "vllm.yaml", damaged)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'toml'") as caught:
        parse_format("toml")
    assert caught.value.hint == "--format takes one of: vllm, json"


def test_a_trial_recorded_later_with_the_same_configuration_does_not_hide_the_certified_one() -> None:
    later = a_trial(7, EAGLE, duplicate_of=1)
    assert choose_trial((*TRIALS, later), a_decision()).trial.number == 1
