"""Which rounds a draft would have run through, for any number of drafted tokens, from one trace of it.

Under temperature 0 the target's output does not depend on the draft. A round that starts at position s, with s
output tokens known, therefore proposes and matches the same tokens whatever happened before; walking from round
to round reproduces the engine's own accept/reject sequence for every k. Where target and draft both sample, the
rounds are expected values over the acceptance draws along the sampled outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ConfigurationError, MeasurementError
from tuner.greedy_rounds import walk
from tuner.positions import UNLIMITED, Counts, Floats, Positions, acceptance, positions, ranks
from tuner.records import PromptTrace, Trace, TraceKind
from tuner.sampled_rounds import expect

Amounts = Counts | Floats
"""Whole numbers where a walk was counted, fractions where rounds are expected values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedRounds:
    """What a draft with one k would have done on each prompt.

    Attributes:
        drafted_tokens: k, the most that a round proposes.
        output_tokens: [prompts], N.
        rounds: [prompts].
        drafted: [prompts], proposed tokens.
        accepted: [prompts], proposed tokens that became output.
        rounds_by_drafted: [prompts, k + 1], rounds that proposed exactly j tokens.
    """

    drafted_tokens: int
    prompt_ids: tuple[str, ...]
    output_tokens: Counts
    rounds: Amounts
    drafted: Amounts
    accepted: Amounts
    rounds_by_drafted: Amounts

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ = Σ(N − 1) / Σ rounds; None when no round was needed."""
        rounds = float(self.rounds.sum())
        return float(np.maximum(self.output_tokens - 1, 0).sum()) / rounds if rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None when nothing was drafted."""
        drafted = float(self.drafted.sum())
        return float(self.accepted.sum()) / drafted if drafted else None

    @property
    def waste_tokens_per_output_token(self) -> float | None:
        """Σ(drafted − accepted) / ΣN; None without output."""
        tokens = int(self.output_tokens.sum())
        return float((self.drafted - self.accepted).sum()) / tokens if tokens else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundBounds:
    """The rounds of one k as far as a trace tells them.

    Attributes:
        fewest: Every position that the trace does not show is right.
        most: Every position that the trace does not show is wrong.
    """

    fewest: ReplayedRounds
    most: ReplayedRounds

    @property
    def known(self) -> NDArray[np.bool_]:
        """[prompts], whether both agree in every count; whatever the unknown positions hold, these are the rounds."""
        pairs = [
            (self.fewest.rounds, self.most.rounds),
            (self.fewest.drafted, self.most.drafted),
            (self.fewest.accepted, self.most.accepted),
        ]
        known: NDArray[np.bool_] = np.all([low == high for low, high in pairs], axis=0)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Whether a trace tells the rounds of one k, and why or why not, in words for a person."""

    is_exact: bool
    reason: str


def exactness(trace: Trace, drafted_tokens: int) -> Exactness:
    """What a trace says of one k. ``replay`` answers where it is exact and refuses elsewhere."""
    k, most = drafted_tokens, trace.max_drafted_tokens
    if k < 0:
        return Exactness(is_exact=False, reason="fewer than no tokens cannot be drafted")
    if k == 0:
        return Exactness(is_exact=True, reason="no speculation: one token a round")
    if k > most and trace.kind is not TraceKind.TEACHER_FORCED:
        return Exactness(is_exact=False, reason=f"the trace of {trace.draft_name!r} holds at most {most}")
    if k < most and trace.kind is TraceKind.LOGGED:
        return Exactness(
            is_exact=False,
            reason=f"a run logged at {most} bounds the rounds at {k} of an autoregressive draft, "
            "and gives no more than an estimate of any other",
        )
    return Exactness(is_exact=True, reason=_why_exact(trace))


def _why_exact(trace: Trace) -> str:
    if _draft_samples(trace):
        return "expected rounds along the sampled outputs, from the probabilities of both models"
    return {
        TraceKind.TEACHER_FORCED: "one pass along the outputs shows what an autoregressive draft proposes anywhere",
        TraceKind.PROPOSALS: "the whole proposal was recorded at every position",
        TraceKind.ROLLOUTS: "the whole proposal was recorded at every position",
        TraceKind.LOGGED: f"the logged run itself, which drafted {trace.max_drafted_tokens}",
    }[trace.kind]


def replay(trace: Trace, drafted_tokens: int, prompt_ids: Collection[str] | None = None) -> ReplayedRounds:
    """Replay one k. See ``replay_all``."""
    return replay_all(trace, [drafted_tokens], prompt_ids)[0]


def replay_all(
    trace: Trace, drafted_tokens: Sequence[int], prompt_ids: Collection[str] | None = None
) -> tuple[ReplayedRounds, ...]:
    """Replay every k of ``drafted_tokens`` at once; see ``greedy_rounds.walk`` and ``sampled_rounds.expect``.

    A teacher-forced trace replays every k: its draft is autoregressive, so matches are the runs of positions at
    which it is right. Where the target samples, they hold for a draft that proposes its likeliest token; with the
    draft's probabilities in the trace, the draft samples and rounds are expected values.

    Args:
        trace: What one draft proposes along the target's outputs.
        drafted_tokens: Values of k; 0 is no speculation.
        prompt_ids: Replay only these; None replays all.

    Raises:
        ConfigurationError: The trace does not tell this k exactly.
        MeasurementError: The trace contradicts itself.
    """
    for k in drafted_tokens:
        answer = exactness(trace, k)
        if not answer.is_exact:
            raise ConfigurationError(
                f"drafted_tokens {k} cannot be replayed: {answer.reason}",
                "take replay_bounds, or trace the draft itself"
                if trace.kind is TraceKind.LOGGED and k < trace.max_drafted_tokens
                else "make the trace with more drafted tokens",
            )
    return _replayed(trace, _chosen(trace, prompt_ids), drafted_tokens)


def replay_bounds(
    trace: Trace, drafted_tokens: Sequence[int], prompt_ids: Collection[str] | None = None
) -> tuple[RoundBounds, ...]:
    """Rounds of every k with what a logged run leaves open: after a round in which all was accepted, nobody knows.

    The true rounds of an autoregressive draft lie between the two: a hit more never makes a round start earlier
    than it did. For other drafts both are estimates, since a shorter round proposes other tokens later.

    Raises:
        ConfigurationError: A k is beyond what the trace was made for.
        MeasurementError: The trace contradicts itself.
    """
    if trace.kind is not TraceKind.LOGGED:
        return tuple(RoundBounds(fewest=one, most=one) for one in replay_all(trace, drafted_tokens, prompt_ids))
    for k in drafted_tokens:
        if not 0 <= k <= trace.max_drafted_tokens:
            raise ConfigurationError(
                f"drafted_tokens {k} cannot be replayed: {exactness(trace, k).reason}",
                "log a run that drafts at least as many",
            )
    prompts = _chosen(trace, prompt_ids)
    most = _replayed(trace, prompts, drafted_tokens)
    fewest = _replayed(trace, prompts, drafted_tokens, unknown_is_right=True)
    return tuple(RoundBounds(fewest=low, most=high) for low, high in zip(fewest, most, strict=True))


def replay_nearest(
    trace: Trace, drafted_tokens: Sequence[int], prompt_ids: Collection[str] | None = None
) -> tuple[ReplayedRounds, ...]:
    """Replay every k; of a logged run that drafted more, the middle of its bounds.

    Raises:
        ConfigurationError: A k is beyond what the trace was made for.
        MeasurementError: The trace contradicts itself.
    """
    if trace.kind is not TraceKind.LOGGED:
        return replay_all(trace, drafted_tokens, prompt_ids)
    return tuple(_middle(one.fewest, one.most) for one in replay_bounds(trace, drafted_tokens, prompt_ids))


def is_bounded(trace: Trace, drafted_tokens: int) -> bool:
    """Whether a trace tells the rounds of one k exactly or within bounds."""
    logged = trace.kind is TraceKind.LOGGED and 0 <= drafted_tokens <= trace.max_drafted_tokens
    return logged or exactness(trace, drafted_tokens).is_exact


def _middle(fewest: ReplayedRounds, most: ReplayedRounds) -> ReplayedRounds:
    return replace(
        fewest,
        rounds=(fewest.rounds + most.rounds) / 2,
        drafted=(fewest.drafted + most.drafted) / 2,
        accepted=(fewest.accepted + most.accepted) / 2,
        rounds_by_drafted=(fewest.rounds_by_drafted + most.rounds_by_drafted) / 2,
    )


def _draft_samples(trace: Trace) -> bool:
    """Whether acceptance is a matter of chance: both models sample, and the trace holds their probabilities."""
    one_pass = trace.kind is TraceKind.TEACHER_FORCED
    return one_pass and trace.sampling.temperature > 0 and any(prompt.draft_probabilities for prompt in trace.prompts)


def proposals(trace: Trace, prompt_ids: Collection[str] | None = None) -> Positions:
    """What a round proposes and matches at every position, as ``greedy_rounds.walk`` takes it.

    Raises:
        ConfigurationError: The trace does not tell it at every position: of a logged run, or where the draft samples.
        MeasurementError: The trace contradicts itself.
    """
    if trace.kind is TraceKind.LOGGED or _draft_samples(trace):
        raise ConfigurationError(
            f"the {trace.kind} trace of {trace.draft_name!r} does not tell what a round matches at every position",
            "take replay_bounds" if trace.kind is TraceKind.LOGGED else "trace greedy outputs",
        )
    prompts = _chosen(trace, prompt_ids)
    return _laid(trace, prompts, positions(prompts))


def _chosen(trace: Trace, prompt_ids: Collection[str] | None) -> list[PromptTrace]:
    return [prompt for prompt in trace.prompts if prompt_ids is None or prompt.prompt_id in prompt_ids]


def _replayed(
    trace: Trace, prompts: Sequence[PromptTrace], drafted_tokens: Sequence[int], *, unknown_is_right: bool = False
) -> tuple[ReplayedRounds, ...]:
    ks = np.asarray(drafted_tokens, dtype=np.int64)
    laid = positions(prompts)
    if _draft_samples(trace):
        chances = laid.padded(acceptance(prompts, laid))
        return _rounds(laid, ks, *expect(chances, laid.lengths, laid.caps, ks))
    if unknown_is_right:
        hits = laid.matched > 0
        hits[_unknown(prompts, laid)] = True
        return _rounds(laid, ks, *walk(_with_runs(laid, hits), ks))
    return _rounds(laid, ks, *walk(_laid(trace, prompts, laid), ks))


def _laid(trace: Trace, prompts: Sequence[PromptTrace], laid: Positions) -> Positions:
    """Matches of an autoregressive draft do not end with what was proposed when it was traced; others do."""
    return _with_runs(laid, _hits(prompts, laid)) if trace.kind is TraceKind.TEACHER_FORCED else laid


def _with_runs(laid: Positions, hits: NDArray[np.bool_]) -> Positions:
    """Matches of an autoregressive draft: the run of hits. It proposes as many tokens as it is asked for."""
    return replace(laid, proposed=np.full_like(laid.proposed, UNLIMITED), matched=laid.runs(hits))


def _hits(prompts: Sequence[PromptTrace], laid: Positions) -> NDArray[np.bool_]:
    """[positions], whether the draft's likeliest token is the target's."""
    hits: NDArray[np.bool_] = laid.matched > 0
    if any(prompt.ranks for prompt in prompts):
        hits = ranks(prompts, laid) == 0
    return hits


def _unknown(prompts: Sequence[PromptTrace], laid: Positions) -> Counts:
    """Flat positions of which a logged run shows nothing."""
    for prompt in prompts:
        for position in prompt.unknown:
            if not 1 <= position < len(prompt.proposed):
                raise MeasurementError(
                    f"trace of prompt {prompt.prompt_id!r}: unknown position {position} "
                    f"of {len(prompt.proposed)} output tokens",
                    "read the log again",
                )
    places = [int(start) + one for start, prompt in zip(laid.starts, prompts, strict=True) for one in prompt.unknown]
    return np.array(places, dtype=np.int64)


def _rounds(laid: Positions, ks: Counts, histogram: Amounts, accepted: Amounts) -> tuple[ReplayedRounds, ...]:
    sizes = np.arange(histogram.shape[2])
    return tuple(
        ReplayedRounds(
            drafted_tokens=int(k),
            prompt_ids=laid.prompt_ids,
            output_tokens=laid.lengths,
            rounds=histogram[index].sum(axis=1),
            drafted=histogram[index] @ sizes,
            accepted=accepted[index],
            rounds_by_drafted=histogram[index, :, : int(k) + 1],
        )
        for index, k in enumerate(ks)
    )
