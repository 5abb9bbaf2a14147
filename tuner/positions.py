"""The positions of a trace's outputs as arrays: what proposals, matches, ranks and probabilities there are at each.

Prompts lie end to end in flat arrays. Position s of a prompt means that s of its output tokens are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError
from tuner.records import PromptTrace

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
ScalarT = TypeVar("ScalarT", np.int64, np.float64)

UNLIMITED = 1 << 30
"""Proposals of a draft that goes on for as long as it is asked to."""

SLIGHTLY_MORE_THAN_ONE = 1 + 1e-5
"""A softmax in single precision may round a certain token up to this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """Outputs laid end to end.

    Attributes:
        lengths: [prompts], output tokens N.
        caps: [prompts], most output tokens.
        starts: [prompts], where each prompt's position 0 lies.
        proposed: [positions].
        matched: [positions].
    """

    prompt_ids: tuple[str, ...]
    lengths: Counts
    caps: Counts
    starts: Counts
    proposed: Counts
    matched: Counts

    @property
    def ends(self) -> Counts:
        """[prompts], where each output ends."""
        return self.starts + self.lengths

    def padded(self, values: NDArray[ScalarT]) -> NDArray[ScalarT]:
        """[prompts, longest], from [positions]; 0 beyond the end of an output."""
        table = np.zeros((len(self.lengths), int(self.lengths.max(initial=0))), dtype=values.dtype)
        table[np.arange(table.shape[1]) < self.lengths[:, None]] = values
        return table

    def runs(self, hits: NDArray[np.bool_]) -> Counts:
        """[positions], the number of hits in a row from each position on, to the end of its output at most."""
        place = np.arange(len(hits))
        next_miss = np.minimum.accumulate(np.where(hits, len(hits), place)[::-1])[::-1]
        runs: Counts = np.minimum(next_miss, np.repeat(self.ends, self.lengths)) - place
        return runs

    def used(self) -> NDArray[np.bool_]:
        """[positions], False at each prompt's position 0, which is the prefill's."""
        used = np.ones(len(self.proposed), dtype=np.bool_)
        used[self.starts[self.lengths > 0]] = False
        return used

    def name(self, place: int) -> str:
        """A flat position in words."""
        prompt = int(np.searchsorted(self.ends, place, side="right"))
        return f"prompt {self.prompt_ids[prompt]!r}, position {place - int(self.starts[prompt])}"


def positions(prompts: Sequence[PromptTrace]) -> Positions:
    """Proposals and matches of the prompts.

    Raises:
        MeasurementError: A trace contradicts itself.
    """
    for prompt in prompts:
        _check_lengths(prompt)
    lengths = np.array([len(prompt.proposed) for prompt in prompts], dtype=np.int64)
    laid = Positions(
        prompt_ids=tuple(prompt.prompt_id for prompt in prompts),
        lengths=lengths,
        caps=np.array([prompt.max_output_tokens for prompt in prompts], dtype=np.int64),
        starts=np.cumsum(lengths) - lengths,
        proposed=np.fromiter(chain.from_iterable(prompt.proposed for prompt in prompts), np.int64),
        matched=np.fromiter(chain.from_iterable(prompt.matched for prompt in prompts), np.int64),
    )
    most = np.minimum(laid.proposed, np.repeat(laid.ends, lengths) - np.arange(len(laid.proposed)))
    for place in np.flatnonzero(laid.used() & ((laid.matched < 0) | (laid.matched > most)))[:1]:
        raise MeasurementError(
            f"trace of {laid.name(place)}: {laid.matched[place]} matches of {laid.proposed[place]} proposed tokens, "
            f"{most[place]} at most",
            "make the trace again",
        )
    return laid


def _check_lengths(prompt: PromptTrace) -> None:
    proposed, matched = len(prompt.proposed), len(prompt.matched)
    if proposed != matched or proposed > prompt.max_output_tokens:
        raise MeasurementError(
            f"trace of prompt {prompt.prompt_id!r}: {proposed} proposals, {matched} matches, "
            f"cap {prompt.max_output_tokens}",
            "make the trace again",
        )


def ranks(prompts: Sequence[PromptTrace], laid: Positions) -> Counts:
    """[positions], ranks of the target's tokens among the draft's.

    Raises:
        MeasurementError: A prompt has none, a rank is negative, or rank 0 and a first match do not go together.
    """
    _require(prompts, "ranks")
    found = np.fromiter(chain.from_iterable(prompt.ranks for prompt in prompts), np.int64)
    for place in np.flatnonzero(laid.used() & (found < 0))[:1]:
        raise MeasurementError(f"rank {found[place]} of {laid.name(place)}", "make the trace again")
    asked = laid.used() & (laid.proposed > 0)
    for place in np.flatnonzero(asked & ((found == 0) != (laid.matched > 0)))[:1]:
        raise MeasurementError(
            f"trace of {laid.name(place)}: the rank is {found[place]}, and {laid.matched[place]} tokens match",
            "make the trace again; where logits tie, the rank must follow the token that the draft proposes",
        )
    return found


def acceptance(prompts: Sequence[PromptTrace], laid: Positions) -> Floats:
    """[positions], a = min(1, q / p): the chance that the emitted token, had it been drafted, was accepted.

    Raises:
        MeasurementError: A prompt lacks p or q, or one of them is no probability, or an emitted token has p = 0.
    """
    _require(prompts, "target_probabilities")
    _require(prompts, "draft_probabilities")
    target = np.fromiter(chain.from_iterable(prompt.target_probabilities for prompt in prompts), np.float64)
    draft = np.fromiter(chain.from_iterable(prompt.draft_probabilities for prompt in prompts), np.float64)
    used = laid.used()
    for side, values in (("target", target), ("draft", draft)):
        for place in np.flatnonzero(used & ~((values >= 0) & (values <= SLIGHTLY_MORE_THAN_ONE)))[:1]:
            raise MeasurementError(
                f"{side} probability {values[place]} of {laid.name(place)} is no probability", "make the trace again"
            )
    for place in np.flatnonzero(used & (target == 0))[:1]:
        raise MeasurementError(
            f"the target gave probability 0 to the token it emitted: {laid.name(place)}",
            "take the probabilities after all logit processors, with the sampling of the run",
        )
    accepted: Floats = np.minimum(1.0, np.divide(draft, target, out=np.zeros_like(draft), where=used))
    return accepted


def _require(
    prompts: Sequence[PromptTrace], field: Literal["ranks", "target_probabilities", "draft_probabilities"]
) -> None:
    for prompt in prompts:
        values: tuple[float, ...] = getattr(prompt, field)
        if len(values) != len(prompt.proposed):
            raise MeasurementError(
                f"trace of prompt {prompt.prompt_id!r}: {len(values)} {field.replace('_', ' ')} "
                f"for {len(prompt.proposed)} positions",
                "trace the draft with its logits",
            )
