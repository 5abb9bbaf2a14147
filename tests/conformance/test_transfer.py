"""Traces without an engine say what an engine's own replay of the same draft says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_models import write_eagle, write_model, write_perturbed
from tuner.engines.base import Replayable
from tuner.engines.cpu.engine import CpuEngine
from tuner.errors import UnsupportedConfigurationError
from tuner.records import GREEDY, Prompt, Sampling, TargetOutput, Trace, TraceKind
from tuner.replay import replay_all
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.testing.answers import answers, arrivals, target_output
from tuner.testing.engines import load
from tuner.trace_keys import Numerics
from tuner.traces import share_of_near_ties
from tuner.transfer import (
    LEAST_DOUBT,
    LOOKUP_DOUBT,
    NEAR_TIES_PER_LOGIT,
    doubtful_share,
    logit_noise,
    trace_without_engine,
)

SAMPLED = Sampling(temperature=2.0, top_p=0.9, seed=1)
PROMPTS = tuple(Prompt(prompt_id=text, prompt_class="c", text=text) for text in ("a", "def f(x):", "0101010" * 3))
BF16 = Numerics(engine="other", weight_format="bf16", lossless=None)
FP32 = Numerics(engine="model pass", weight_format="float32", lossless=None)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", vocab_size=256)


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    return write_perturbed(target.parent / "draft", target, noise=0.1)


@pytest.fixture(scope="module")
def config(target: Path, draft: Path) -> EngineConfig:
    model = Speculation(method=Method.DRAFT_MODEL, draft_name="draft", draft_model=str(draft), drafted_tokens=4)
    return EngineConfig(
        target_model=str(target), max_model_len=160, num_threads=1, weight_format="fp32", speculation=model
    )


def outputs_of(config: EngineConfig, sampling: Sampling = GREEDY) -> list[TargetOutput]:
    with load(CpuEngine(), config, NO_SPECULATION, "") as loaded:
        alone = answers(loaded.run(arrivals(PROMPTS, max_output_tokens=40, sampling=sampling)))
    return [target_output(prompt, alone, 40) for prompt in PROMPTS]


def own_trace(config: EngineConfig, outputs: Sequence[TargetOutput]) -> Trace:
    with load(CpuEngine(), config, config.speculation, "") as loaded:
        assert isinstance(loaded, Replayable)
        return loaded.trace(outputs, GREEDY)


def rounds(trace: Trace) -> list[list[float]]:
    return [one.rounds.tolist() for one in replay_all(trace, range(1, 5))]


@pytest.mark.parametrize("method", [Method.DRAFT_MODEL, Method.NGRAM, Method.SUFFIX])
def test_its_rounds_are_those_of_the_engines_own_replay(config: EngineConfig, method: Method) -> None:
    lookup = Speculation(method=method, draft_name="lookup", drafted_tokens=4)
    config = config if method is Method.DRAFT_MODEL else replace(config, speculation=lookup)
    outputs = outputs_of(config)
    found = trace_without_engine(config, outputs, GREEDY)
    assert rounds(found) == rounds(own_trace(config, outputs))
    assert found.draft_name == config.speculation.draft_name


def test_a_draft_that_samples_has_its_probabilities_kept(config: EngineConfig) -> None:
    outputs = outputs_of(config, SAMPLED)
    drawn = trace_without_engine(config, outputs, SAMPLED, drafts_are_sampled=True)
    likeliest = trace_without_engine(config, outputs, SAMPLED)
    assert all(prompt.draft_probabilities for prompt in drawn.prompts)
    assert not any(prompt.draft_probabilities for prompt in likeliest.prompts)
    assert drawn.sampling == likeliest.sampling == SAMPLED


def test_an_eagle_head_is_refused_with_the_reason(config: EngineConfig, target: Path) -> None:
    head = write_eagle(target.parent / "eagle", target)
    speculation = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model=str(head), drafted_tokens=4)
    with pytest.raises(UnsupportedConfigurationError, match="only its roll-outs in the engine are exact") as caught:
        trace_without_engine(replace(config, speculation=speculation), outputs_of(config), GREEDY)
    assert "tuner traces import" in caught.value.hint


def test_a_target_without_a_folder_is_refused(config: EngineConfig) -> None:
    with pytest.raises(UnsupportedConfigurationError, match="is no folder with a tokenizer"):
        trace_without_engine(replace(config, target_model="target.gguf"), outputs_of(config), GREEDY)


def test_the_doubt_is_the_share_of_near_ties_at_the_coarser_numerics(config: EngineConfig) -> None:
    outputs = outputs_of(config)
    with_gaps = trace_without_engine(config, outputs, GREEDY, with_gaps=True)
    share = share_of_near_ties(with_gaps, 0.125)
    assert share is not None
    assert share > LEAST_DOUBT
    assert doubtful_share(with_gaps, FP32, BF16) == share
    assert doubtful_share(with_gaps, FP32, FP32) == max(LEAST_DOUBT, share_of_near_ties(with_gaps, 0.001) or 0.0)


def test_without_logits_the_share_of_near_ties_is_assumed(config: EngineConfig) -> None:
    trace = trace_without_engine(config, outputs_of(config), GREEDY)
    assert doubtful_share(trace, FP32, BF16) == pytest.approx(NEAR_TIES_PER_LOGIT * 0.125)
    assert doubtful_share(trace, FP32, BF16) == pytest.approx(1 / 12)
    assert doubtful_share(trace, FP32) == LEAST_DOUBT
    assert logit_noise("auto") == logit_noise("bf16")


def test_a_matching_rule_is_doubted_whatever_the_numerics(config: EngineConfig) -> None:
    lookup = Speculation(method=Method.NGRAM, draft_name="lookup", drafted_tokens=4)
    trace = trace_without_engine(replace(config, speculation=lookup), outputs_of(config), GREEDY)
    assert trace.kind is TraceKind.PROPOSALS
    assert doubtful_share(trace, FP32) == doubtful_share(trace, BF16) == LOOKUP_DOUBT
