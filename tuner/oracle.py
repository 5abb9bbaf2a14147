"""What a draft length chosen anew in every round would add: replay with a perfect choice.

The best length of a round is known afterwards, from what would have been accepted. No rule that runs in an engine
can choose better, so the gain over the best fixed length bounds what any such rule is worth (the idea of an oracle
lookahead is that of arXiv 2405.04304).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import ConfigurationError
from tuner.positions import Floats, Positions
from tuner.records import Trace
from tuner.replay import proposals, replay_all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariableLength:
    """Decode time with the best length in every round, beside every fixed length.

    Attributes:
        fixed_ms: [lengths, prompts], by the most tokens that every round drafts, from 0 on.
        oracle_ms: [prompts].
    """

    prompt_ids: tuple[str, ...]
    fixed_ms: Floats
    oracle_ms: Floats

    @property
    def best_fixed(self) -> int:
        """The fixed length that takes least over all prompts; the shortest of a tie."""
        return int(self.fixed_ms.sum(axis=1).argmin())

    @property
    def speedup(self) -> float | None:
        """Σ time of the best fixed length / Σ time of the oracle, at least 1; None when no round was needed."""
        oracle = float(self.oracle_ms.sum())
        return float(self.fixed_ms[self.best_fixed].sum()) / oracle if oracle else None


def variable_length(
    trace: Trace, round_ms: Sequence[float], prompt_ids: Collection[str] | None = None
) -> VariableLength:
    """The value of a variable draft length, from one trace and the time of a round by the tokens that it drafts.

    Args:
        trace: What one draft proposes; greedy, or a draft that proposes its likeliest token.
        round_ms: Time of a round that drafts 0, 1, … tokens; how many there are is the longest draft considered.
        prompt_ids: Replay only these; None replays all.

    Raises:
        ConfigurationError: A time is not positive, or the trace does not tell the rounds of every length.
        MeasurementError: The trace contradicts itself.
    """
    times = np.asarray(round_ms, dtype=np.float64)
    if not times.size or not (np.isfinite(times) & (times > 0)).all():
        raise ConfigurationError(
            f"round times {[float(time) for time in times]} are not all positive",
            "give the time of a round for every length from 0 on",
        )
    laid = proposals(trace, prompt_ids)
    fixed = replay_all(trace, range(len(times)), prompt_ids)
    return VariableLength(
        prompt_ids=laid.prompt_ids,
        fixed_ms=np.array([one.rounds_by_drafted @ times[: one.drafted_tokens + 1] for one in fixed]),
        oracle_ms=oracle_ms(laid, times),
    )


def oracle_ms(laid: Positions, round_ms: Floats) -> Floats:
    """Least decode time of each prompt over all choices of a length in every round.

    With f(s) the least time from position s on, f(s) = min over j of T(j) + f(s + min(m(s), j) + 1), f = 0 at the
    end of the output; j is at most what was proposed at s and what the cap leaves room for. Where T never falls
    with j, more than m(s) tokens are never worth drafting: they emit what m(s) do. Measured times do fall at some
    widths, so every j is tried.

    Args:
        laid: Proposals and matches.
        round_ms: [lengths], T.

    Returns:
        [prompts].
    """
    proposed, matched = laid.padded(laid.proposed), laid.padded(laid.matched)
    count, longest = proposed.shape
    lengths, rows = np.arange(len(round_ms)), np.arange(count)[:, None]
    least = np.zeros((count, longest + len(round_ms) + 1))  # [prompts, positions], f
    for s in reversed(range(1, longest)):
        most = np.minimum(proposed[:, s], laid.caps - s - 1)
        following = s + np.minimum(matched[:, s, None], lengths) + 1
        choices = np.where(lengths <= most[:, None], round_ms + least[rows, following], np.inf)
        least[:, s] = np.where(s < laid.lengths, choices.min(axis=1), 0.0)
    return least[:, 1]
