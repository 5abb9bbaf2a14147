"""Counting rounds: what was drafted and what became output."""

from __future__ import annotations

from tuner.engines.cpu.limits import MAX_DRAFTED_TOKENS
from tuner.records import Counters


class Tally:
    """Totals over all rounds of a loaded engine, counted where tokens are appended."""

    def __init__(self) -> None:
        self._rounds = self._rounds_with_draft = 0
        self._drafted_at = [0] * MAX_DRAFTED_TOKENS
        self._accepted_at = [0] * MAX_DRAFTED_TOKENS

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round of one request."""
        self._rounds += 1
        self._rounds_with_draft += drafted > 0
        for index in range(drafted):
            self._drafted_at[index] += 1
        for index in range(accepted):
            self._accepted_at[index] += 1

    def snapshot(self) -> Counters:
        """The totals so far."""
        deepest = max((index + 1 for index, count in enumerate(self._drafted_at) if count), default=0)
        return Counters(
            rounds=self._rounds,
            rounds_with_draft=self._rounds_with_draft,
            drafted_tokens=sum(self._drafted_at),
            accepted_tokens=sum(self._accepted_at),
            drafted_at=tuple(self._drafted_at[:deepest]),
            accepted_at=tuple(self._accepted_at[:deepest]),
        )
