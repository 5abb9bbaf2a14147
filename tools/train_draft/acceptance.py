"""How often the target accepts a draft's tokens, on its own greedy answers.

The target decodes greedily, so a draft token is accepted exactly when it and
all draft tokens before it in the round equal the target's answer. Along that
answer the draft's inputs are the answer's tokens, and acceptance can be
counted at every position without running the two models in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from data import IGNORED, Batch, Sequence, collate, vocabulary_rows
from model import Draft, EagleDraft, ShallowDraft
from torch import Tensor

# Cost of a round relative to one ordinary decoding step: verification of k
# tokens, and each draft step.
VERIFY_COST = 1.24
DRAFT_COST = 0.07


@dataclass
class Tally:
    """Acceptance counts of one class."""

    possible: list[int]
    accepted: list[int]
    rounds: int = 0
    tokens: int = 0
    covered: int = 0
    positions: int = 0

    def joint(self, step: int) -> float:
        """Share of rounds in which draft tokens 1 to ``step`` are all accepted."""
        return self.accepted[step] / max(self.possible[step], 1)

    def conditional(self, step: int) -> float:
        """Share of ``step`` being accepted given that all before it are."""
        return self.joint(step) / max(self.joint(step - 1), 1e-9) if step else self.joint(0)

    def mean_tokens(self) -> float:
        """Tokens that a round yields, with the target's own token."""
        return self.tokens / max(self.rounds, 1)


def correct(draft: Draft, batch: Batch, depth: int) -> list[Tensor]:
    """For each draft step, at which answer positions its token is the target's."""
    labels = vocabulary_rows(draft.vocabulary)[batch.next_tokens]
    if isinstance(draft, EagleDraft):
        outputs = draft.unroll(batch, depth)
        hits = [(output @ draft.head.T).argmax(-1) == labels for output in outputs]
    else:
        assert isinstance(draft, ShallowDraft)
        hits = [(draft(batch) @ draft.head.T).argmax(-1) == labels] * depth
    return [hit & batch.mask for hit in hits]


def _rounds(accepted: list[int], k: int) -> tuple[int, int]:
    """Rounds and tokens of decoding with ``k`` drafts, given how many each start accepts."""
    position = rounds = 0
    while position < len(accepted):
        position += min(accepted[position], k) + 1
        rounds += 1
    return rounds, min(position, len(accepted))


def measure(draft: Draft, sequences: list[Sequence], depth: int, k: int = 3, size: int = 14) -> dict[str, Tally]:
    """Acceptance by class, and over all classes under ``"all"``."""
    tallies: dict[str, Tally] = {}
    rows = vocabulary_rows(draft.vocabulary)
    order = sorted(sequences, key=lambda s: len(s.answer))
    for start in range(0, len(order), size):
        batch = collate(order[start : start + size])
        with torch.no_grad():
            hits = correct(draft, batch, depth)
        for row, kind in enumerate(batch.kinds):
            used = int(batch.mask[row].sum())
            covered = int((rows[batch.next_tokens[row, :used]] != IGNORED).sum())
            for name in (kind, "all"):
                tally = tallies.setdefault(name, Tally([0] * depth, [0] * depth))
                _count(tally, [hit[row, :used].tolist() for hit in hits], k)
                tally.covered += covered
                tally.positions += used
    return tallies


def _count(tally: Tally, hits: list[list[bool]], k: int) -> None:
    """Add one sequence; ``hits[j][t]`` is step j's success at position t."""
    used = len(hits[0])
    accepted = []
    for start in range(used):
        run = 0
        while run < len(hits) and start + run < used and hits[run][start + run]:
            run += 1
        accepted.append(run)
        for step in range(min(len(hits), used - start)):
            tally.possible[step] += 1
            tally.accepted[step] += run > step
    rounds, tokens = _rounds(accepted, k)
    tally.rounds += rounds
    tally.tokens += tokens


def table(tallies: dict[str, Tally], k: int = 3) -> str:
    """The counts as a markdown table."""
    lines = [
        "| class | positions | 1st | 2nd joint (cond.) | 3rd joint (cond.) | in vocabulary "
        f"| tokens a round, k={k} | estimated speed-up |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = sorted(name for name in tallies if name != "all")
    for name in [*names, "all"]:
        tally = tallies[name]
        mean = tally.mean_tokens()
        later = " | ".join(f"{tally.joint(i):.3f} ({tally.conditional(i):.3f})" for i in (1, 2))
        lines.append(
            f"| {name} | {tally.positions} | {tally.joint(0):.3f} | {later} "
            f"| {tally.covered / tally.positions:.3f} | {mean:.2f} | {mean / (VERIFY_COST + k * DRAFT_COST):.2f} |"
        )
    return "\n".join(lines)
