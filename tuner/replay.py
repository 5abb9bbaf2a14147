"""Which rounds a draft would have run through, for any number of drafted tokens, from one trace of it.

Under temperature 0 the target's output does not depend on the draft. A round that starts at position s, with s
output tokens known, therefore proposes and matches the same tokens whatever happened before; walking from round
to round reproduces the engine's own accept/reject sequence for every k.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ConfigurationError, MeasurementError
from tuner.records import PromptTrace, Trace

Counts = NDArray[np.int64]


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
    rounds: Counts
    drafted: Counts
    accepted: Counts
    rounds_by_drafted: Counts

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ = Σ(N − 1) / Σ rounds; None when no round was needed."""
        rounds = int(self.rounds.sum())
        return float(np.maximum(self.output_tokens - 1, 0).sum()) / rounds if rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None when nothing was drafted."""
        drafted = int(self.drafted.sum())
        return float(self.accepted.sum()) / drafted if drafted else None

    @property
    def waste_tokens_per_output_token(self) -> float | None:
        """Σ(drafted − accepted) / ΣN; None without output."""
        tokens = int(self.output_tokens.sum())
        return float((self.drafted - self.accepted).sum()) / tokens if tokens else None


def replay(trace: Trace, drafted_tokens: int, prompt_ids: Collection[str] | None = None) -> ReplayedRounds:
    """Replay one k. See ``replay_all``."""
    return replay_all(trace, [drafted_tokens], prompt_ids)[0]


def replay_all(
    trace: Trace, drafted_tokens: Sequence[int], prompt_ids: Collection[str] | None = None
) -> tuple[ReplayedRounds, ...]:
    """Replay every k of ``drafted_tokens`` in one walk.

    A round at position s proposes j = min(proposed at s, k, cap − s − 1) tokens, since no more than the cap can be
    used, and m = min(matched at s, j) of them are right. It emits min(m + 1, N − s) tokens and accepts
    min(m, N − s): the last round is clipped to the end of the output.

    Args:
        trace: Proposals and matches of one draft.
        drafted_tokens: Values of k; 0 is no speculation.
        prompt_ids: Replay only these; None replays all.

    Raises:
        ConfigurationError: A k is negative or beyond what the trace was made for.
        MeasurementError: The trace contradicts itself.
    """
    for k in drafted_tokens:
        if not 0 <= k <= trace.max_drafted_tokens:
            raise ConfigurationError(
                f"drafted_tokens {k} cannot be replayed: the trace of {trace.draft_name!r} "
                f"holds at most {trace.max_drafted_tokens}",
                "make the trace with more drafted tokens",
            )
    prompts = [prompt for prompt in trace.prompts if prompt_ids is None or prompt.prompt_id in prompt_ids]
    for prompt in prompts:
        _check(prompt)
    return _walk(prompts, np.asarray(drafted_tokens, dtype=np.int64))


def _check(prompt: PromptTrace) -> None:
    lengths = len(prompt.proposed), len(prompt.matched)
    if lengths[0] != lengths[1] or lengths[0] > prompt.max_output_tokens:
        raise MeasurementError(
            f"trace of prompt {prompt.prompt_id!r}: {lengths[0]} proposals, {lengths[1]} matches, "
            f"cap {prompt.max_output_tokens}",
            "make the trace again",
        )


def _walk(prompts: Sequence[PromptTrace], ks: Counts) -> tuple[ReplayedRounds, ...]:
    """Walk every (prompt, k) at once, one round of each at a time, until all are at the end of their output."""
    lengths = np.array([len(prompt.proposed) for prompt in prompts], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])  # of each prompt in the tuples laid end to end
    proposed = np.fromiter((one for prompt in prompts for one in prompt.proposed), np.int64, int(starts[-1]))
    matched = np.fromiter((one for prompt in prompts for one in prompt.matched), np.int64, int(starts[-1]))
    caps = np.array([prompt.max_output_tokens for prompt in prompts], dtype=np.int64)
    width = int(ks.max(initial=0)) + 1
    histogram = np.zeros(len(ks) * len(prompts) * width, dtype=np.int64)
    accepted = np.zeros(len(ks) * len(prompts), dtype=np.int64)

    cell = np.arange(len(ks) * len(prompts))  # (k, prompt) pairs that are still walking
    k, prompt = (side.ravel() for side in np.meshgrid(ks, np.arange(len(prompts)), indexing="ij"))
    place = starts[prompt] + 1  # the first token comes from the prefill
    end, capped_end = starts[prompt] + lengths[prompt], starts[prompt] + caps[prompt]
    while True:
        walking = place < end
        if not walking.all():
            cell, k, place, end, capped_end = (one[walking] for one in (cell, k, place, end, capped_end))
        if not cell.size:
            break
        drafted = np.minimum(np.minimum(proposed[place], k), capped_end - place - 1)
        right = np.minimum(matched[place], drafted)
        histogram[cell * width + drafted] += 1  # each cell occurs once, so no count is lost
        accepted[cell] += np.minimum(right, end - place)
        place = place + right + 1
    return _rounds(prompts, ks, lengths, histogram.reshape(len(ks), len(prompts), width), accepted)


def _rounds(
    prompts: Sequence[PromptTrace], ks: Counts, lengths: Counts, histogram: Counts, accepted: Counts
) -> tuple[ReplayedRounds, ...]:
    names = tuple(prompt.prompt_id for prompt in prompts)
    by_k = accepted.reshape(len(ks), len(prompts))
    sizes = np.arange(histogram.shape[2])
    return tuple(
        ReplayedRounds(
            drafted_tokens=int(k),
            prompt_ids=names,
            output_tokens=lengths,
            rounds=histogram[index].sum(axis=1),
            drafted=histogram[index] @ sizes,
            accepted=by_k[index],
            rounds_by_drafted=histogram[index, :, : int(k) + 1],
        )
        for index, k in enumerate(ks)
    )
