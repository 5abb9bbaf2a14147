"""A pass of a Hugging Face model says what the cpu engine's own replay of that model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import VOCAB_SIZE, write_eagle, write_model, write_perturbed
from tuner.engines.base import Replayable
from tuner.engines.cpu.engine import CpuEngine
from tuner.engines.model_pass import PassSettings, top2_gaps_with_model, trace_with_model
from tuner.errors import ModelError
from tuner.records import GREEDY, Prompt, Sampling, TargetOutput, Trace, TraceKind
from tuner.replay import replay
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.testing.answers import answers, arrivals, assert_trace_is_whole, target_output
from tuner.testing.engines import load

FP32 = PassSettings(dtype="float32")
NUM_TOKENS = 256  # of the tiny tokenizer
SAMPLED = Sampling(temperature=2.0, top_p=0.9, seed=1)
PROMPTS = tuple(
    Prompt(prompt_id=text, prompt_class="c", text=text)
    for text in ("a", "def f(x):", "The quick brown fox jumps over the lazy dog. " * 2, "0101010")
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", vocab_size=NUM_TOKENS)


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    return write_perturbed(target.parent / "draft", target, noise=0.1)


def config_of(target: Path, draft: Path) -> EngineConfig:
    return EngineConfig(
        target_model=str(target),
        max_model_len=160,
        num_threads=1,
        weight_format="fp32",
        speculation=Speculation(
            method=Method.DRAFT_MODEL, draft_name="draft", draft_model=str(draft), drafted_tokens=4
        ),
    )


def outputs_of(config: EngineConfig, sampling: Sampling = GREEDY) -> list[TargetOutput]:
    lengths = dict(zip((prompt.prompt_id for prompt in PROMPTS), (24, 1, 7, 40), strict=True))
    with load(CpuEngine(), config, NO_SPECULATION, "") as loaded:
        alone = answers(loaded.run(arrivals(PROMPTS, max_output_tokens=40, sampling=sampling)))
    outputs = [target_output(prompt, alone, 40) for prompt in PROMPTS]
    return [replace(output, token_ids=output.token_ids[: lengths[output.prompt.prompt_id]]) for output in outputs]


def own_trace(config: EngineConfig, outputs: Sequence[TargetOutput], sampling: Sampling = GREEDY) -> Trace:
    with load(CpuEngine(), config, config.speculation, "") as loaded:
        assert isinstance(loaded, Replayable)
        return loaded.trace(outputs, sampling)


@pytest.fixture(scope="module")
def outputs(target: Path, draft: Path) -> list[TargetOutput]:
    return outputs_of(config_of(target, draft))


def assert_same(found: Trace, expected: Trace) -> None:
    for one, other in zip(found.prompts, expected.prompts, strict=True):
        assert (one.proposed, one.matched, one.ranks) == (other.proposed, other.matched, other.ranks)
        assert one.top2_gaps == pytest.approx(other.top2_gaps, abs=1e-3)
        assert one.target_probabilities == pytest.approx(other.target_probabilities, rel=1e-3, abs=1e-6)
        assert one.draft_probabilities == pytest.approx(other.draft_probabilities, rel=1e-3, abs=1e-6)


def test_it_says_what_the_engines_own_replay_says(target: Path, draft: Path, outputs: list[TargetOutput]) -> None:
    found = trace_with_model(outputs, draft_name="draft", draft=draft, target=target, with_gaps=True, settings=FP32)
    assert found.kind is TraceKind.TEACHER_FORCED
    expected = own_trace(config_of(target, draft), outputs)
    assert_same(found, expected)
    assert_trace_is_whole(found, outputs, GREEDY)
    assert 0 < replay(found, 4).accepted.sum() < replay(found, 4).drafted.sum()
    gaps = top2_gaps_with_model(outputs, target, FP32)
    assert gaps == tuple(pytest.approx(prompt.top2_gaps, abs=1e-3) for prompt in expected.prompts)


def test_outputs_of_unequal_lengths_together_are_as_one_by_one(
    target: Path, draft: Path, outputs: list[TargetOutput]
) -> None:
    def traced(settings: PassSettings) -> tuple[Trace, list[tuple[int, int]]]:
        told: list[tuple[int, int]] = []
        trace = trace_with_model(
            outputs,
            draft_name="draft",
            draft=draft,
            target=target,
            with_gaps=True,
            settings=settings,
            progress=lambda done, total: told.append((done, total)),
        )
        return trace, told

    together, told_once = traced(FP32)
    alone, told = traced(replace(FP32, tokens_at_once=1))
    assert_same(together, alone)
    assert told_once == [(4, 4)] * 2
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2


def with_padded_vocabulary(folder: Path, model: Path, *, rows: int) -> Path:
    """The same model with rows of embedding and output beyond its tokens, which would win if they counted."""
    folder.mkdir()
    settings = (model / "config.json").read_text().replace(f'"vocab_size": {NUM_TOKENS}', f'"vocab_size": {rows}')
    (folder / "config.json").write_text(settings)
    (folder / "tokenizer.json").write_text((model / "tokenizer.json").read_text())
    tensors = load_file(model / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padding = 5 * torch.randn(rows - NUM_TOKENS, 64, generator=torch.Generator().manual_seed(0))
        tensors[name] = torch.cat([tensors[name], padding])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_rows_beyond_the_tokenizer_never_count(
    target: Path, draft: Path, outputs: list[TargetOutput], tmp_path: Path
) -> None:
    padded_draft = with_padded_vocabulary(tmp_path / "draft", draft, rows=VOCAB_SIZE)
    padded_target = with_padded_vocabulary(tmp_path / "target", target, rows=320)
    sampled = outputs_of(config_of(target, draft), SAMPLED)

    def traced(draft: Path, target: Path) -> list[Trace]:
        greedy = trace_with_model(
            outputs, draft_name="draft", draft=draft, target=target, with_gaps=True, settings=FP32
        )
        return [
            greedy,
            trace_with_model(
                sampled,
                draft_name="draft",
                draft=draft,
                target=target,
                sampling=SAMPLED,
                draft_samples=True,
                settings=FP32,
            ),
        ]

    for found, expected in zip(traced(padded_draft, padded_target), traced(draft, target), strict=True):
        assert_same(found, expected)


def test_where_the_target_samples_p_is_the_engines_and_q_that_of_the_draft_as_a_target(
    target: Path, draft: Path
) -> None:
    outputs = outputs_of(config_of(target, draft), SAMPLED)
    found = trace_with_model(
        outputs,
        draft_name="draft",
        draft=draft,
        target=target,
        sampling=SAMPLED,
        draft_samples=True,
        settings=FP32,
    )
    assert_trace_is_whole(found, outputs, SAMPLED)
    # The engine's own drafts are no samples, so its traces have no q: it is asked for p with either model as target.
    p = own_trace(config_of(target, draft), outputs, SAMPLED)
    q = own_trace(config_of(draft, draft), outputs, SAMPLED)
    assert not any(prompt.draft_probabilities for prompt in p.prompts)
    for one, of_target, of_draft in zip(found.prompts, p.prompts, q.prompts, strict=True):
        assert one.target_probabilities == pytest.approx(of_target.target_probabilities, rel=1e-3)
        drawable = [i for i, probability in enumerate(one.draft_probabilities) if probability > 0]
        assert [one.draft_probabilities[i] for i in drawable] == pytest.approx(
            [of_draft.target_probabilities[i] for i in drawable], rel=1e-3
        )
    assert any(probability > 0 for prompt in found.prompts for probability in prompt.draft_probabilities[1:])


def test_a_draft_that_does_not_sample_needs_no_probabilities(target: Path, draft: Path) -> None:
    outputs = outputs_of(config_of(target, draft), SAMPLED)
    found = trace_with_model(outputs, draft_name="draft", draft=draft, target=target, sampling=SAMPLED, settings=FP32)
    assert found.sampling == SAMPLED
    assert not any(prompt.target_probabilities or prompt.draft_probabilities for prompt in found.prompts)
    expected = own_trace(config_of(target, draft), outputs, SAMPLED)
    assert replay(found, 4).rounds.tolist() == replay(expected, 4).rounds.tolist()


def test_qwen_models_are_read_as_well(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", architecture="qwen3", vocab_size=NUM_TOKENS)
    draft = write_perturbed(tmp_path / "draft", target, noise=0.1)
    config = config_of(target, draft)
    outputs = outputs_of(config)
    found = trace_with_model(outputs, draft_name="draft", draft=draft, target=target, with_gaps=True, settings=FP32)
    assert_same(found, own_trace(config, outputs))


def test_a_head_that_is_no_language_model_is_refused(target: Path, outputs: list[TargetOutput], tmp_path: Path) -> None:
    head = write_eagle(tmp_path / "eagle", target)
    (head / "tokenizer.json").write_text((target / "tokenizer.json").read_text())
    with pytest.raises(ModelError, match="as a causal language model") as caught:
        trace_with_model(outputs, draft_name="head", draft=head, target=target, settings=FP32)
    assert "architecture" in caught.value.hint


def test_a_model_that_lacks_tensors_is_refused(target: Path, outputs: list[TargetOutput], tmp_path: Path) -> None:
    damaged = write_perturbed(tmp_path / "damaged", target, noise=0.1)
    tensors = load_file(damaged / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 tensors.*model\.layers\.1\.mlp\.up_proj\.weight"):
        trace_with_model(outputs, draft_name="damaged", draft=damaged, target=target, settings=FP32)


def test_a_model_with_tied_embeddings_is_whole(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", tied=True, vocab_size=NUM_TOKENS)
    config = config_of(target, target)
    outputs = outputs_of(config)
    found = trace_with_model(outputs, draft_name="draft", draft=target, target=target, with_gaps=True, settings=FP32)
    assert_same(found, own_trace(config, outputs))


def test_loading_shows_no_bar(target: Path, outputs: list[TargetOutput], capfd: pytest.CaptureFixture[str]) -> None:
    top2_gaps_with_model(outputs, target, FP32)
    assert capfd.readouterr() == ("", "")
