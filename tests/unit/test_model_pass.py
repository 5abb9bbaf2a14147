"""What is refused before a model is read, and how outputs are put together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_models import write_model
from tuner.engines import model_pass
from tuner.engines.causal_lm import batches
from tuner.engines.model_pass import Continuation, top2_gaps_with_model, trace_with_model
from tuner.errors import EngineNotInstalledError, MeasurementError, ModelError, TokenizerMismatchError
from tuner.records import Prompt, TargetOutput


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=16)


def an_output(*token_ids: int) -> TargetOutput:
    prompt = Prompt(prompt_id="p", prompt_class="c", text="hello")
    return TargetOutput(prompt=prompt, token_ids=token_ids, max_output_tokens=20)


def test_the_module_is_known_without_importing_torch() -> None:
    code = "import sys, tuner.engines.model_pass; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_is_told_with_what_to_install(
    target: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(model_pass, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(EngineNotInstalledError, match=f"needs {missing}, which") as caught:
        trace_with_model([an_output(1)], draft_name="d", draft=target, target=target)
    assert caught.value.hint == "pip install 'specdec-tuner[replay]'"


def test_a_draft_with_other_tokens_is_refused_first(target: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other")
    path = other / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(definition))
    with pytest.raises(TokenizerMismatchError):
        trace_with_model([an_output(9999)], draft_name="d", draft=other, target=target)


@pytest.mark.parametrize("token", [256, -1])
def test_outputs_of_another_tokenizer_are_refused(target: Path, token: int) -> None:
    with pytest.raises(MeasurementError, match=f"prompt 'p' holds token id {token}, .* ends at 255"):
        top2_gaps_with_model([an_output(1, token)], target)


def test_an_output_longer_than_the_model_is_refused(target: Path) -> None:
    with pytest.raises(ModelError, match="trained for 16 positions, but a prompt with its output has 17"):
        top2_gaps_with_model([an_output(*range(12))], target)


def test_a_draft_with_fewer_rows_than_tokens_is_refused(target: Path, tmp_path: Path) -> None:
    small = write_model(tmp_path / "small", vocab_size=200)
    with pytest.raises(ModelError, match="200 rows for 256 token ids"):
        trace_with_model([an_output(1)], draft_name="small", draft=small, target=target)


def test_an_output_without_tokens_needs_no_model(target: Path) -> None:
    assert batches([Continuation((1, 2), ())], 100) == []


def test_batches_are_of_similar_lengths_and_within_the_limit() -> None:
    lengths = [3, 9, 4, 10, 1]  # prompt of one token, and nothing follows the last
    continuations = [Continuation((0,), (0,) * length) for length in lengths]
    assert batches(continuations, 20) == [[3, 1], [2, 0, 4]]
    assert batches(continuations, 5) == [[3], [1], [2], [0], [4]]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=20), st.integers(1, 60))
def test_every_output_is_in_one_batch(sizes: list[tuple[int, int]], tokens_at_once: int) -> None:
    continuations = [Continuation((0,) * prompt, (0,) * output) for prompt, output in sizes]
    found = batches(continuations, tokens_at_once)
    assert sorted(index for batch in found for index in batch) == [i for i, (_, output) in enumerate(sizes) if output]
    for batch in found:
        longest = max(sum(sizes[index]) - 1 for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= tokens_at_once
