"""What the engine ``cpu`` refuses before it loads anything, and what it says then."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import write_eagle, write_model, write_shallow
from tuner.engines import Artifact, base
from tuner.engines.cpu import engine as engine_module
from tuner.engines.cpu import kernels
from tuner.engines.cpu.engine import CpuEngine
from tuner.engines.cpu.kernels import has_fbgemm
from tuner.errors import (
    EngineError,
    EngineNotInstalledError,
    ModelError,
    OutOfDeviceMemoryError,
    TokenizerMismatchError,
    UnsupportedConfigurationError,
)
from tuner.proposers import lookup_lengths
from tuner.records import Arrival, Finished, Prompt
from tuner.speculation import EngineConfig, Method, Speculation

NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=3)
SUFFIX = Speculation(method=Method.SUFFIX, draft_name="suffix", drafted_tokens=3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def config(target: Path) -> EngineConfig:
    return EngineConfig(target_model=str(target), max_model_len=64, num_threads=1)


def with_draft(config: EngineConfig, folder: Path, method: Method = Method.DRAFT_MODEL) -> EngineConfig:
    draft = Speculation(method=method, draft_name="d", draft_model=str(folder), drafted_tokens=2)
    return replace(config, speculation=draft)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(config: EngineConfig) -> base.LoadedEngine:
    engine = CpuEngine()
    return engine.load(config, Artifact(key=engine.compile_key(config)))


def test_the_engine_is_known_without_importing_torch() -> None:
    code = "import sys, tuner.engines.cpu.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_torch_is_told_with_what_to_install(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "find_spec", lambda name: None)
    with pytest.raises(EngineNotInstalledError) as caught:
        load(config)
    assert caught.value.hint == "pip install 'specdec-tuner[cpu]'"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_num_seqs": 9}, "max_num_seqs is 9"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"weight_format": "q4"}, "weight_format 'q4'"),
        ({"speculation": replace(NGRAM, drafted_tokens=17)}, "ngram k=17"),
        ({"speculation": replace(NGRAM, drafted_tokens=0)}, "ngram k=0"),
        ({"speculation": replace(NGRAM, prompt_lookup_min=5, prompt_lookup_max=4)}, "prompt_lookup_min 5"),
        ({"speculation": replace(SUFFIX, suffix_decoding_max_tree_depth=1)}, "suffix_decoding_max_tree_depth 1"),
        ({"speculation": replace(SUFFIX, suffix_decoding_max_spec_factor=0.0)}, "suffix_decoding_max_spec_factor 0"),
        ({"speculation": replace(SUFFIX, suffix_decoding_min_token_prob=1.5)}, "suffix_decoding_min_token_prob 1.5"),
        ({"speculation": Speculation(method=Method.EAGLE, draft_name="e", drafted_tokens=2)}, "needs a draft_model"),
    ],
)
def test_a_limit_that_is_exceeded_is_named(config: EngineConfig, changes: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=named) as caught:
        CpuEngine().check(replace(config, **changes))
    assert caught.value.hint


def test_the_shortest_ngram_is_never_longer_than_the_longest(config: EngineConfig) -> None:
    one = replace(NGRAM, prompt_lookup_max=1)
    CpuEngine().check(replace(config, speculation=one))
    assert lookup_lengths(one) == (1, 1)
    assert lookup_lengths(NGRAM) == (4, 2)
    assert lookup_lengths(replace(NGRAM, prompt_lookup_max=5, prompt_lookup_min=3)) == (5, 3)


def test_an_unknown_architecture_is_named_with_the_known_ones(config: EngineConfig, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "other", architecture="gpt_neox")
    with pytest.raises(UnsupportedConfigurationError, match="'gpt_neox'") as caught:
        CpuEngine().check(replace(config, target_model=str(folder)))
    assert "llama, qwen2, qwen3" in caught.value.hint


def test_a_draft_is_no_target(config: EngineConfig, target: Path, tmp_path: Path) -> None:
    eagle = write_eagle(tmp_path / "eagle", target)
    with pytest.raises(UnsupportedConfigurationError, match="tuner_eagle"):
        CpuEngine().check(replace(config, target_model=str(eagle)))


def test_an_eagle_head_is_refused_as_a_draft_model_and_the_other_way_round(
    config: EngineConfig, target: Path, tmp_path: Path
) -> None:
    eagle, shallow = write_eagle(tmp_path / "eagle", target), write_shallow(tmp_path / "shallow", target)
    with pytest.raises(UnsupportedConfigurationError, match="tuner_eagle"):
        CpuEngine().check(with_draft(config, eagle))
    with pytest.raises(UnsupportedConfigurationError, match="tuner_shallow"):
        CpuEngine().check(with_draft(config, shallow, Method.EAGLE))


def test_a_draft_for_another_target_is_refused(config: EngineConfig, target: Path, tmp_path: Path) -> None:
    shallow = write_shallow(tmp_path / "shallow", target)
    edit_config(shallow, hidden_size=128)
    with pytest.raises(ModelError, match="hidden size 128"):
        CpuEngine().check(with_draft(config, shallow))


def test_a_draft_with_other_tokens_is_refused(config: EngineConfig, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    path = other / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(definition))
    with pytest.raises(TokenizerMismatchError):
        CpuEngine().check(with_draft(config, other))


def test_missing_tensors_are_named(config: EngineConfig, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "damaged")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"lacks 1 tensors: model\.layers\.1\.mlp\.up_proj\.weight"):
        CpuEngine().check(replace(config, target_model=str(folder)))


def test_a_head_without_its_fusing_matrix_is_refused(config: EngineConfig, target: Path, tmp_path: Path) -> None:
    eagle = write_eagle(tmp_path / "eagle", target)
    file = eagle / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "fc.weight"}, file)
    with pytest.raises(ModelError, match=r"lacks 1 tensors: fc\.weight"):
        CpuEngine().check(with_draft(config, eagle, Method.EAGLE))


def test_a_damaged_file_is_named(config: EngineConfig, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        CpuEngine().check(replace(config, target_model=str(folder)))


def test_more_positions_than_the_target_was_trained_for_are_refused(config: EngineConfig) -> None:
    with pytest.raises(UnsupportedConfigurationError, match="trained for 512 positions"):
        CpuEngine().check(replace(config, max_model_len=513))


def test_what_does_not_fit_into_memory_is_refused(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", type("Memory", (), {"available": 1000}))
    with pytest.raises(OutOfDeviceMemoryError, match="GiB of memory free"):
        load(config)


def test_a_closed_engine_says_so(config: EngineConfig) -> None:
    loaded = load(config)
    loaded.close()
    with pytest.raises(EngineError, match="closed"):
        loaded.counters()


def test_the_environment_tells_format_threads_and_bytes(config: EngineConfig) -> None:
    with load(replace(config, weight_format="fp32")) as loaded:
        environment = loaded.environment()
    assert environment["weight_format"] == "fp32"
    assert environment["lossless"] == "yes"
    assert environment["threads"] == "1"
    layers = 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 96)
    assert environment["weight_bytes"] == str(4 * (layers + 300 * 64))
    assert environment["draft_weight_bytes"] == "0"


def test_threads_are_chosen_by_a_self_test(config: EngineConfig) -> None:
    with load(replace(config, num_threads=None)) as loaded:
        environment = loaded.environment()
    assert environment["thread_self_test"].startswith("1: ")
    assert int(environment["threads"]) >= 1


def test_int8_is_marked_as_not_lossless(config: EngineConfig) -> None:
    int8 = replace(config, weight_format="int8")
    assert not CpuEngine().replay_is_exact(int8)
    assert CpuEngine().replay_is_exact(config)


@pytest.mark.skipif(not has_fbgemm(), reason="this build of PyTorch has no FBGEMM")
def test_int8_answers_without_a_warning(config: EngineConfig) -> None:
    arrival = Arrival(request_id="a", prompt=Prompt(prompt_id="a", prompt_class="c", text="hello"), max_output_tokens=5)
    with load(replace(config, weight_format="int8")) as loaded:
        end = list(loaded.run([arrival]))[-1]
        assert loaded.environment()["lossless"] == "no"
    assert isinstance(end, Finished)
    assert end.output_tokens == 5


@pytest.mark.parametrize("weight_format", ["fp16-packed", "int8"])
def test_packed_formats_are_refused_where_fbgemm_is_missing(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, weight_format: str
) -> None:
    monkeypatch.setattr(kernels, "has_fbgemm", lambda: False)
    with pytest.raises(UnsupportedConfigurationError, match="FBGEMM"):
        load(replace(config, weight_format=weight_format))
    with load(config) as loaded:
        assert loaded.environment()["weight_format"] == "fp32"


def with_weights(folder: Path, value: float) -> EngineConfig:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return EngineConfig(target_model=str(folder), max_model_len=64, num_threads=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, value: float) -> None:
    config = with_weights(write_model(tmp_path / "broken"), value)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight holds NaN or infinite values"):
        load(config)


@pytest.mark.skipif(not has_fbgemm(), reason="this build of PyTorch has no FBGEMM")
def test_a_weight_beyond_half_precision_is_refused_and_fp32_takes_it(tmp_path: Path) -> None:
    config = with_weights(write_model(tmp_path / "large"), 1e5)
    with pytest.raises(UnsupportedConfigurationError, match="too large for weight_format 'fp16-packed'"):
        load(replace(config, weight_format="fp16-packed"))
    load(replace(config, weight_format="fp32")).close()
