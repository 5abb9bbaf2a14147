"""Traces for engines that cannot replay: by the matching rule, or by a pass of the draft's own model.

Such a trace is *transferred*: it was computed under other numerics than the engine's, and where two logits lie nearer
to each other than the noise between the two, the engine may take the other token. Predictions from it have wider
limits, and no round is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.engines.base import DEEPEST_REPLAY
from tuner.engines.model_pass import PassSettings, trace_with_model
from tuner.errors import UnsupportedConfigurationError
from tuner.models.tokenizer import ChatTokenizer
from tuner.outputs import LOGIT_NOISE
from tuner.proposers import LOOKUP_METHODS, trace_proposals
from tuner.records import Sampling, TargetOutput, Trace, TraceKind
from tuner.speculation import EngineConfig, Method
from tuner.trace_keys import Numerics, TraceKey
from tuner.traces import share_of_near_ties

Progress = Callable[[int, int], None]
"""Called with (finished, total) outputs."""

_PASS = PassSettings()

FEATURE_METHODS = frozenset({Method.EAGLE})
"""Their drafts feed on features of the target: only the engine itself can run them."""

HALF_PRECISION_NOISE = {"bf16": 0.125, "bfloat16": 0.125, "fp16": 2**-6, "float16": 2**-6}
"""Spacing of the numbers between 16 and 32, where the largest logits of language models lie: two of them rounded in
opposite ways differ by as much."""

FULL_PRECISION_NOISE = {"fp32": LOGIT_NOISE, "float32": LOGIT_NOISE}

UNKNOWN_NOISE = HALF_PRECISION_NOISE["bf16"]
"""Of formats that are not listed: the coarsest in which models are served without a loss of quality."""

NEAR_TIES_PER_LOGIT = 1 / 1500 / LOGIT_NOISE
"""Share of positions that are near-ties, for each unit of noise, where a trace has no logits: about one greedy choice
in fifteen hundred is closer than a thousandth; see ``LOGIT_NOISE``."""

LOOKUP_DOUBT = 0.02
"""Share of positions at which an engine's own matching rule may propose something else: engines differ in which of
several earlier places they take."""

FEATURES_DOUBT = 0.1
"""Share of positions at which a draft that feeds on its own features does otherwise where rounds start elsewhere: run
lengths of EAGLE heads break at 8 to 10 % of them."""

LEAST_DOUBT = 0.001
"""Of a transferred trace: what three thousand positions without a near-tie cannot rule out."""

INEXACT_SHARE = 0.05
"""Share of positions that are doubtful where an engine itself says that replay is not exact. The shift of acceptance
in the misspecified simulated worlds; at five tokens a round it covers the fifth that the fused speculation of NxDI
loses when two prompts of unequal length are decoded together."""


def numerics_of_pass(method: Method) -> Numerics:
    """What computes the traces that ``trace_without_engine`` makes."""
    if method in LOOKUP_METHODS:
        return Numerics(engine="matching rule", weight_format="none", lossless=True)
    return Numerics(engine="model pass", weight_format=_PASS.dtype, lossless=None)


def key_of_stand_in(key: TraceKey, depth: int) -> TraceKey:
    """The key of the trace that is made in place of the engine's own, for ``depth`` drafted tokens.

    Where only a run can tell, it is that of the run's log, which serves no other depth.
    """
    if key.method in FEATURE_METHODS:
        return replace(key, source="log", rule={**key.rule, "drafted_tokens": depth})
    return replace(key, numerics=numerics_of_pass(key.method))


def trace_without_engine(
    config: EngineConfig,
    outputs: Sequence[TargetOutput],
    sampling: Sampling,
    *,
    drafts_are_sampled: bool = False,
    with_gaps: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Trace the draft of a configuration along outputs, with no engine loaded.

    Args:
        config: Folders of target and draft, in Hugging Face format, and how it is drafted.
        outputs: What the target answered.
        sampling: How it chose them.
        drafts_are_sampled: Whether the engine draws a model's draft tokens where the target samples.
        with_gaps: Whether to run the target as well, for the logits that tell near-ties.
        progress: Told of each finished output of a pass.

    Raises:
        UnsupportedConfigurationError: The draft feeds on features of the target, or the target is no folder.
        EngineNotInstalledError: A model has to be run, and PyTorch or transformers is missing.
        ModelError: A model or tokenizer cannot be read.
        MeasurementError: The outputs are not of this target.
    """
    speculation, target = config.speculation, Path(config.target_model)
    if not target.is_dir():
        raise UnsupportedConfigurationError(
            f"{target} is no folder with a tokenizer, so the engine's token ids cannot be had",
            "give the target as a folder in Hugging Face format",
        )
    if speculation.method in LOOKUP_METHODS:
        tokenizer = ChatTokenizer.open(target)
        prompts = [tokenizer.encode(output.prompt) for output in outputs]
        return trace_proposals(speculation, outputs, prompts, depth=DEEPEST_REPLAY, sampling=sampling)
    if speculation.method is not Method.DRAFT_MODEL or speculation.draft_model is None:
        raise UnsupportedConfigurationError(
            f"a draft of method {speculation.method} feeds on the target's own features: only its roll-outs in the "
            "engine are exact, and this engine gives none",
            "import a trace of it that was made elsewhere with `tuner traces import FILE`",
        )
    return trace_with_model(
        outputs,
        draft_name=speculation.draft_name,
        draft=Path(speculation.draft_model),
        target=target,
        sampling=sampling,
        draft_samples=drafts_are_sampled,
        with_gaps=with_gaps,
        settings=_PASS,
        progress=progress,
    )


def doubtful_share(trace: Trace, *numerics: Numerics) -> float:
    """Share of a transferred trace's positions at which the engine may do otherwise.

    The share of near-ties of the target stands for that of the draft too. Without logits it is assumed.

    Args:
        trace: Made under other numerics than the engine's.
        *numerics: Those it was made under, and the engine's: the coarser ones decide.
    """
    if trace.kind is TraceKind.PROPOSALS:
        return LOOKUP_DOUBT
    if trace.kind is TraceKind.LOGGED:
        positions = sum(len(prompt.proposed) for prompt in trace.prompts)
        # Predictions take the middle of a log's bounds, and each unknown position moves them by half a round.
        return FEATURES_DOUBT + sum(len(prompt.unknown) for prompt in trace.prompts) / 2 / max(positions, 1)
    noise = max(logit_noise(one.weight_format) for one in numerics)
    share = share_of_near_ties(trace, noise)
    return max(LEAST_DOUBT, NEAR_TIES_PER_LOGIT * noise if share is None else share)


def logit_noise(weight_format: str) -> float:
    """How near two logits must lie to change places between two engines of such numerics."""
    return {**HALF_PRECISION_NOISE, **FULL_PRECISION_NOISE}.get(weight_format, UNKNOWN_NOISE)
