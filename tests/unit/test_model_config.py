"""Reading config.json in its dialects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ModelError
from tuner.models.config import read_model_config

CASES = Path(__file__).parents[1] / "data" / "cases"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def a_folder(path: Path, config: dict[str, Any] | None = None, **other_files: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(LLAMA | (config or {})))
    for name, content in other_files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_a_nested_text_config_is_read_through() -> None:
    config = read_model_config(CASES / "B3" / "nested")

    assert (config.vocab_size, config.num_attention_heads) == (32, 4)
    assert config.tie_word_embeddings


def test_the_kind_of_a_text_config_without_one_is_that_of_the_whole(tmp_path: Path) -> None:
    text = {name: value for name, value in LLAMA.items() if name != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "text_config": text}))

    assert read_model_config(tmp_path).architecture == "qwen3_vl"


def test_an_eagle_head_keeps_both_vocabulary_sizes() -> None:
    config = read_model_config(CASES / "B3" / "eagle3")

    assert (config.vocab_size, config.draft_vocab_size) == (32, 16)


def test_absent_optional_fields_take_the_defaults_of_llama(tmp_path: Path) -> None:
    config = read_model_config(a_folder(tmp_path))

    assert (config.num_key_value_heads, config.head_dim) == (4, 16)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-6, 10_000.0, 2048)
    assert config.rope_scaling is None
    assert not config.tie_word_embeddings
    assert not config.attention_bias


def test_a_qwen3_head_is_128_wide_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert read_model_config(a_folder(tmp_path, {"model_type": "qwen3"})).head_dim == 128
    assert read_model_config(a_folder(tmp_path, {"model_type": "qwen3", "head_dim": 32})).head_dim == 32


def test_null_counts_as_absent(tmp_path: Path) -> None:
    config = read_model_config(a_folder(tmp_path, {"head_dim": None, "rope_scaling": None, "rope_theta": None}))

    assert (config.head_dim, config.rope_theta, config.rope_scaling) == (16, 10_000.0, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}},
    ],
)
def test_every_spelling_of_rotary_scaling_reads_alike(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = read_model_config(a_folder(tmp_path, fields))

    assert config.rope_theta == 5e5
    assert config.rope_scaling == {"rope_type": "linear", "factor": 2.0}


def test_default_rope_parameters_are_no_scaling(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}})

    assert (read_model_config(folder).rope_theta, read_model_config(folder).rope_scaling) == (1e5, None)


def test_end_of_sequence_ids_come_from_both_files(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"eos_token_id": 2}, generation_config={"eos_token_id": [2, 7]})

    assert read_model_config(folder).eos_token_ids == {2, 7}


def test_exactly_the_absent_required_fields_are_listed() -> None:
    with pytest.raises(ModelError, match=r"lacks required fields: intermediate_size\n"):
        read_model_config(CASES / "B3" / "sparse")


def test_broken_json_is_located_by_file_line_and_column() -> None:
    with pytest.raises(ModelError, match=r"broken/config\.json, line 3, column 1"):
        read_model_config(CASES / "B3" / "broken")


def test_an_untied_embedding_without_output_matrix_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tie_word_embeddings.*lm_head\.weight"):
        read_model_config(CASES / "B3" / "untied_without_head")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("num_hidden_layers", 0),
        ("rms_norm_eps", "x"),
        ("rope_scaling", 2),
    ],
)
def test_a_value_of_a_wrong_kind_is_shown_with_its_name(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(ModelError) as caught:
        read_model_config(a_folder(tmp_path, {name: value}))

    assert f"{name} is {value!r}" in caught.value.message


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="num_attention_heads 4 is no multiple of num_key_value_heads 3"):
        read_model_config(a_folder(tmp_path, {"num_key_value_heads": 3}))


def test_a_folder_without_config_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1.gguf").touch()

    with pytest.raises(ModelError) as caught:
        read_model_config(tmp_path)

    assert "has no config.json" in caught.value.message
    assert "model.Q4_1.gguf" in caught.value.hint


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())

    assert read_model_config(tmp_path).hidden_size == 64
