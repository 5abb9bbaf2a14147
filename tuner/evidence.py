"""From everything that a search measured to what it certifies and concludes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tuner.choice import DEFAULT_EPSILON, Choice, TriedT, choose_candidate
from tuner.decide import DEFAULT_MARGIN, decide
from tuner.objective import at_load
from tuner.outputs import looping_prompts
from tuner.physics import draft_cost_low, replayed_acceptance, rounds_alarm
from tuner.records import BaselineResult, CertifyResult, MeasureResult, TraceResult
from tuner.speculation import Speculation
from tuner.verdict import Decision

MOST_ALARMS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What a search measured before it certified anything, with as many requests in flight as count for the verdict.

    Attributes:
        baseline: The target alone, over the search's prompts.
        results: What was measured, by the key of its configuration.
        traces: Of the drafts that could be replayed, with their prompts, by name.
        repetition_expected: Says of a prompt class whether its answers repeat by nature.
        replay_is_exact: Whether the engine's own accept/reject sequence is what replay gives.
        concurrency: Requests in flight; None for the workload's own number.
    """

    baseline: BaselineResult
    results: Mapping[str, MeasureResult]
    traces: Mapping[str, TraceResult] = field(default_factory=dict)
    repetition_expected: Callable[[str], bool] = lambda _: False
    replay_is_exact: bool = True
    concurrency: int | None = None

    @property
    def looping_prompts(self) -> frozenset[str]:
        """Prompts that count for no configuration."""
        return looping_prompts(self.baseline.measurement, self.repetition_expected)

    def choose(
        self,
        measured: Sequence[TriedT],
        epsilon: float = DEFAULT_EPSILON,
        gains: Mapping[str, float] = MappingProxyType({}),
    ) -> Choice[TriedT]:
        """The configuration to certify; see ``choose_candidate``. No speculation means that there is none.

        Args:
            measured: Every trial with a measurement, the baseline's among them.
            epsilon: Gains that are closer are equal.
            gains: Better estimates than the measured gains, by the configuration's key.
        """
        return choose_candidate(
            measured,
            self.results,
            self.baseline.measurement,
            epsilon=epsilon,
            left_out=self.looping_prompts,
            speedup=at_load("speedup", self.concurrency),
            gains=gains,
        )

    def decide(
        self, choice: Choice[TriedT], certified: Sequence[CertifyResult], margin: float = DEFAULT_MARGIN
    ) -> Decision:
        """The verdict on what was chosen and certified; see ``decide.decide``."""
        candidate = choice.candidate.speculation
        made = self.traces.get(candidate.draft_name)
        k = candidate.drafted_tokens
        replayed = None
        if made is not None and self.replay_is_exact:
            replayed = replayed_acceptance(made.trace, k, self.looping_prompts, doubtful_share=made.doubtful_share)
        return decide(
            certified,
            candidate,
            tied_with=choice.tied_speculations,
            repetition_expected=self.repetition_expected,
            margin=margin,
            draft_cost_low=self._draft_cost_low(made, k),
            replayed_acceptance=replayed,
            alarms=self.alarms([candidate, *choice.tied_speculations]),
            concurrency=self.concurrency,
        )

    def _draft_cost_low(self, made: TraceResult | None, drafted_tokens: int) -> float:
        """Of what was timed; guessed limits are no evidence against a gain."""
        if made is None or made.draft_steps is None:
            return 0.0
        return draft_cost_low(self.baseline, made.draft_steps, drafted_tokens)

    def alarms(self, speculations: Sequence[Speculation]) -> tuple[str, ...]:
        """Which of these did not run the rounds that replay says, on the prompts of the search; a few in full.

        Of a transferred trace rounds may differ: only its interval of the acceptance length is held against it.
        """
        found = [alarm for one in speculations if (alarm := self._alarm(one)) is not None]
        more = len(found) - MOST_ALARMS_TOLD
        told = found[:MOST_ALARMS_TOLD]
        return (*told, f"ALARM: {more} more configurations likewise") if more > 0 else tuple(told)

    def _alarm(self, speculation: Speculation) -> str | None:
        made, result = self.traces.get(speculation.draft_name), self.results.get(speculation.key)
        if made is None or result is None or not self.replay_is_exact or made.doubtful_share:
            return None
        return rounds_alarm(result.candidate, self.baseline.measurement, made.trace, speculation.drafted_tokens)
