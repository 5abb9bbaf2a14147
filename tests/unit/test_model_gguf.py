"""GGUF files become Hugging Face folders with the publisher's names, order of rows and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

from tests.support.tiny_gguf import HEAD_DIM, TinyGguf
from tuner.errors import ModelError
from tuner.models.check import check_model
from tuner.models.config import read_model_config
from tuner.models.gguf import convert_gguf, write_model_folder
from tuner.models.provenance import read_provenance
from tuner.models.tokenizer import ChatTokenizer
from tuner.records import Message, Prompt


def a_folder(tmp_path: Path, source: TinyGguf) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_model_folder(source.write(tmp_path / "tiny.gguf"), folder)
    return folder


def pieces(folder: Path, text: str) -> list[str]:
    tokenizer = ChatTokenizer.open(folder)
    names = {index: token for token, index in tokenizer.vocabulary().items()}
    return [names[index] for index in tokenizer.encode(Prompt(prompt_id="p", prompt_class="c", text=text))]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_have_the_publishers_names_and_order_of_rows(tmp_path: Path, architecture: str, is_tied: bool) -> None:
    source = TinyGguf(architecture=architecture, is_tied=is_tied)

    weights = load_file(a_folder(tmp_path, source) / "model.safetensors")

    published = source.published()
    assert weights.keys() == published.keys()
    for name, value in published.items():
        kind = np.float16 if value.ndim == 2 else np.float32
        assert weights[name].dtype == kind
        np.testing.assert_array_equal(weights[name], value.astype(kind), err_msg=name)


@pytest.mark.parametrize("quantisation", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
def test_quantised_weights_are_what_the_format_says(tmp_path: Path, quantisation: GGMLQuantizationType) -> None:
    source = TinyGguf(quantisation=quantisation)

    weights = load_file(a_folder(tmp_path, source) / "model.safetensors")

    name = "model.layers.1.mlp.up_proj.weight"
    expected = dequantize(quantize(source.published()[name], quantisation), quantisation)
    np.testing.assert_array_equal(weights[name], expected.astype(np.float16))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_folder_passes_the_check(tmp_path: Path, architecture: str) -> None:
    report = check_model(a_folder(tmp_path, TinyGguf(architecture=architecture, is_tied=False)))

    assert report.problems == ()
    assert report.has_chat_template


def test_the_config_says_what_the_file_says(tmp_path: Path) -> None:
    config = read_model_config(a_folder(tmp_path, TinyGguf()))

    assert (config.architecture, config.num_hidden_layers, config.num_key_value_heads) == ("llama", 2, 2)
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 100_000.0, None)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == {2}


def test_a_second_end_token_also_ends_answers(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, TinyGguf(extra={"tokenizer.ggml.eot_token_id": 0}))

    assert read_model_config(folder).eos_token_ids == {0, 2}


def test_a_stated_scaling_of_positions_is_kept(tmp_path: Path) -> None:
    extra = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}

    scaling = read_model_config(a_folder(tmp_path, TinyGguf(extra=extra))).rope_scaling

    assert scaling == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def llama_3_factors(factor: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Per frequency, by the published rule: kept above a band of wavelengths, divided below, blended inside."""
    factors = []
    for index in range(0, HEAD_DIM, 2):
        wavelength = 2 * np.pi * 100_000.0 ** (index / HEAD_DIM)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            blend = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - blend) / factor + blend))
    return np.array(factors, dtype=np.float32)


def test_the_scaling_of_llama_3_is_recovered_from_its_factors(tmp_path: Path) -> None:
    scaling = read_model_config(a_folder(tmp_path, TinyGguf(rope_factors=llama_3_factors(32.0)))).rope_scaling

    assert scaling == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_factors_of_another_rule_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)

    with pytest.raises(ModelError, match="does not follow Llama 3"):
        a_folder(tmp_path, TinyGguf(rope_factors=factors))


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "the 12", ["t", "he", "Ġ", "1", "2"]),
        ("gpt-2", "the 12", ["t", "he", "Ġ", "12"]),
        ("default", "a12", ["a", "12"]),
        ("qwen2", "a12", ["a", "1", "2"]),
        ("qwen2", "the cat", ["t", "he", "Ġ", "ca", "t"]),
        ("smollm", "  the", ["Ġ", "Ġthe"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),
        ("gpt-2", "e\u0301", ["e", "Ì", "ģ"]),
    ],
)
def test_text_is_cut_as_the_file_asks(tmp_path: Path, pre: str, text: str, expected: list[str]) -> None:
    assert pieces(a_folder(tmp_path, TinyGguf(pre=pre)), text) == expected


def test_llama_3_begins_with_bos_and_takes_whole_tokens_first(tmp_path: Path) -> None:
    assert pieces(a_folder(tmp_path, TinyGguf(pre="llama-bpe")), "12 the") == ["<|im_start|>", "12", "Ġthe"]


def test_the_file_decides_about_bos(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, TinyGguf(pre="llama-bpe", extra={"tokenizer.ggml.add_bos_token": False}))

    assert pieces(folder, "12") == ["12"]


def test_special_tokens_stay_whole_and_the_template_is_kept(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.open(a_folder(tmp_path, TinyGguf()))

    ids = tokenizer.encode(Prompt(prompt_id="p", prompt_class="c", messages=(Message(role="user", content="hi"),)))

    assert (ids[0], ids.count(1), ids.count(2)) == (1, 2, 1)
    assert tokenizer.decode(ids) == "user\nhi\nassistant\n"


def test_padding_is_no_token(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, TinyGguf(num_unused=6))

    vocabulary = ChatTokenizer.open(folder).vocabulary()

    assert read_model_config(folder).vocab_size == len(vocabulary) + 6
    assert not any(token.startswith("[PAD") for token in vocabulary)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (TinyGguf(architecture="gemma3"), "architecture 'gemma3'"),
        (TinyGguf(extra={"expert_count": 8}), "'llama' with experts"),
        (TinyGguf(pre="tekken"), r"tokenizer\.ggml\.pre 'tekken'"),
        (TinyGguf(pre=None), r"tokenizer\.ggml\.pre 'None'"),
        (TinyGguf(tokenizer_model="llama"), "tokenizer of kind 'llama'"),
        (TinyGguf(without=("block_count",)), r"lacks 'llama\.block_count'"),
        (TinyGguf(without=("tokenizer.ggml.merges",)), r"lacks 'tokenizer\.ggml\.merges'"),
        (TinyGguf(extra={"tokenizer.ggml.merges": ["ab"]}), "merge 'ab', which is no pair"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, source: TinyGguf, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        a_folder(tmp_path, source)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + bytes(64)])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)

    with pytest.raises(ModelError, match=r"model\.gguf is no GGUF file"):
        write_model_folder(tmp_path / "model.gguf", tmp_path)


def test_numbers_beyond_fp16_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TinyGguf()
    published = {name: value * 1e6 for name, value in source.published().items()}
    monkeypatch.setattr(TinyGguf, "published", lambda _: published)

    with pytest.raises(ModelError, match="beyond the range of fp16"):
        a_folder(tmp_path, source)


def test_a_file_is_converted_once_and_says_where_it_came_from(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")
    reports: list[tuple[str, int, int | None]] = []

    folder = convert_gguf(file, tmp_path / "cache", lambda *state: reports.append(state))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = convert_gguf(file, tmp_path / "cache")

    assert again == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in folder.parent.iterdir() if not path.name.startswith(".")] == [folder.name]
    provenance = read_provenance(folder)
    assert provenance is not None
    assert provenance.source == "tiny.gguf"
    assert provenance.weights_sha256.keys() == {"model.safetensors"}
    assert reports[-1][1] == reports[-1][2]


def test_another_content_under_the_same_name_is_another_folder(tmp_path: Path) -> None:
    first = convert_gguf(TinyGguf().write(tmp_path / "tiny.gguf"), tmp_path / "cache")
    second = convert_gguf(TinyGguf(pre="gpt-2").write(tmp_path / "tiny.gguf"), tmp_path / "cache")

    assert first != second


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        convert_gguf(TinyGguf(pre="tekken").write(tmp_path / "tiny.gguf"), tmp_path / "cache")

    assert [path for path in (tmp_path / "cache" / "gguf").iterdir() if path.is_dir()] == []


def test_the_tokenizer_config_names_the_special_tokens(tmp_path: Path) -> None:
    config = json.loads((a_folder(tmp_path, TinyGguf()) / "tokenizer_config.json").read_text())

    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "add_generation_prompt" in config["chat_template"]
