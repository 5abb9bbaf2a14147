"""How sure mean acceptance lengths are, and by how much they differ between configurations on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.errors import MeasurementError
from tuner.intervals import Interval, ratio_interval
from tuner.positions import Floats
from tuner.replay import ReplayedRounds


def acceptance_lengths(replayed: Sequence[ReplayedRounds], seed: int = 0) -> tuple[Interval | None, ...]:
    """τ = Σ(N − 1) / Σ rounds of each, with limits over prompts; None for fewer than three prompts with rounds.

    Prompts are the independent units, whether their rounds were counted or are expected values. The limits say how
    far τ of other prompts of the workload may lie from these; for the prompts replayed it has no error.
    """
    return tuple(_acceptance_length(one, seed) for one in replayed)


def _acceptance_length(replayed: ReplayedRounds, seed: int) -> Interval | None:
    decoded = replayed.output_tokens > 1
    gained = (replayed.output_tokens[decoded] - 1).astype(np.float64)
    return ratio_interval(gained, replayed.rounds[decoded].astype(np.float64), seed)


def acceptance_length_ratio(candidate: ReplayedRounds, reference: ReplayedRounds, seed: int = 0) -> Interval | None:
    """τ of the candidate over τ of the reference, prompt by prompt: above 1 where the candidate needs fewer rounds.

    Both emit the same outputs, so this is Σ rounds of the reference / Σ rounds of the candidate. Pairing takes what
    prompts have in common out of the limits. Prompts that only one side replayed are left out.

    Returns:
        None for fewer than three shared prompts with rounds.

    Raises:
        MeasurementError: A shared prompt has outputs of different lengths.
    """
    known = set(reference.prompt_ids)
    shared = [one for one in candidate.prompt_ids if one in known]
    ours, theirs = _of(candidate, shared), _of(reference, shared)
    for prompt_id, our_length, their_length in zip(shared, ours[0], theirs[0], strict=True):
        if our_length != their_length:
            raise MeasurementError(
                f"prompt {prompt_id!r} was replayed along outputs of {our_length:.0f} and {their_length:.0f} tokens",
                "replay both along the outputs of one target",
            )
    decoded = ours[0] > 1
    return ratio_interval(theirs[1][decoded], ours[1][decoded], seed)


def _of(replayed: ReplayedRounds, prompt_ids: Sequence[str]) -> tuple[Floats, Floats]:
    """[prompts] and [prompts], output tokens and rounds in the order of the ids."""
    row = {prompt_id: index for index, prompt_id in enumerate(replayed.prompt_ids)}
    rows = np.array([row[one] for one in prompt_ids], dtype=np.int64)
    return replayed.output_tokens[rows].astype(np.float64), replayed.rounds[rows].astype(np.float64)
