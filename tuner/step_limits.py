"""What stands in for timed steps where an engine cannot time any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What the steps of a round may take, as shares of a plain round: all that is known where none can be timed.

    Attributes:
        row: Least and most that one more row adds to a pass of the target.
        draft_pass: Least and most of one pass of the draft.
        most_drafted_tokens: Of a round; no round of more is predicted.
        wasted_draft_passes: Passes of a round beyond the tokens that it proposes.
    """

    row: tuple[float, float]
    draft_pass: tuple[float, float]
    most_drafted_tokens: int
    wasted_draft_passes: int = 0
