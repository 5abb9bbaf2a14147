"""The verdict: is speculation worth it, how sure is that, and what would make it surer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from tuner.errors import MeasurementError
from tuner.intervals import Interval, prompts_needed, ratio_interval
from tuner.metrics import mean_acceptance_length
from tuner.outputs import Agreement, identical_outputs, looping_prompts
from tuner.pairing import anchored_speedup, paired, paired_speedup
from tuner.records import CertifyResult, Measurement
from tuner.speculation import Speculation

DEFAULT_MARGIN = 0.02
"""A gain that pays for running a second model."""

FEWEST_PROMPTS_FOR_A_VERDICT = 8
"""Below this even bootstrap-t limits cover too little to stake a deployment on them."""

MOST_PROMPTS_TO_ASK_FOR = 10_000
"""More than this no one measures: the gain is then the margin itself, for all that it matters."""

TOO_FEW = f"fewer than {FEWEST_PROMPTS_FOR_A_VERDICT} prompts could be compared"
BOTH_ANSWERS = "the interval holds both answers"
ONE_LOAD = "one load per side: variation from load to load is not in the interval"


class Verdict(StrEnum):
    """What a certified comparison comes to."""

    RECOMMEND = "recommend"
    DO_NOT_SPECULATE = "do_not_speculate"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsCheck:
    """Whether a gain is possible at all: no configuration decodes faster than its acceptance allows.

    Attributes:
        tpot_speedup: Gain in time per output token; None for too few prompts.
        limit: τ's upper limit / (1 + relative draft cost's lower limit); None where rounds are not counted.
        is_artefact: The gain's lower limit exceeds the limit.
    """

    tpot_speedup: Interval | None
    limit: float | None
    is_artefact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict with everything that it rests on.

    Attributes:
        sentence: The verdict for a person to read.
        candidate: The configuration it is about; None where none was certified.
        speedup: End-to-end gain over no speculation without looping prompts; None for fewer than three prompts.
        speedup_with_looping: The same with them; equal where there are none.
        margin: Least gain worth having.
        looping_prompts: Left out for both sides, by the baseline's outputs.
        failed_prompts: Left out because a request of either side failed.
        prompts_needed: Prompts that would settle an open verdict if the estimate holds.
        notes: What the interval does not contain, and what else a reader must know.
    """

    verdict: Verdict
    sentence: str
    margin: float
    candidate: Speculation | None = None
    speedup: Interval | None = None
    speedup_with_looping: Interval | None = None
    agreement: Agreement | None = None
    mean_acceptance_length: float | None = None
    physics: PhysicsCheck | None = None
    looping_prompts: tuple[str, ...] = ()
    failed_prompts: tuple[str, ...] = ()
    prompts_needed: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def recommends(self) -> bool:
        """Whether the candidate should be deployed."""
        return self.verdict is Verdict.RECOMMEND


def decide(
    certified: CertifyResult,
    candidate: Speculation | None = None,
    *,
    repetition_expected: Callable[[str], bool] = lambda _: False,
    margin: float = DEFAULT_MARGIN,
    draft_cost_low: float = 0.0,
    seed: int = 0,
) -> Decision:
    """The verdict on a candidate that was run in alternating blocks with the baseline.

    ``RECOMMEND`` needs the one-sided 99 % lower limit of the end-to-end gain above 1 + margin.
    ``DO_NOT_SPECULATE`` needs the 95 % upper limit below it. Everything else is ``INCONCLUSIVE``: too few prompts,
    an interval that holds both answers, requests that only the candidate failed, or a gain that physics forbids.

    Args:
        certified: Both sides on the same prompts.
        candidate: For the sentence.
        repetition_expected: Says of a prompt class whether its answers repeat by nature.
        margin: Least gain worth having, e.g. 0.02.
        draft_cost_low: Lower limit of a round's drafting time over that of a plain round; 0 where unknown.
        seed: Of the resampling.

    Raises:
        MeasurementError: The answers were forced to their cap; no conclusion follows from such lengths.
    """
    baseline, other = certified.baseline, certified.candidate
    _refuse_forced_lengths(baseline, other)
    looping = looping_prompts(baseline, repetition_expected)
    pairs = paired(baseline, other, left_out=looping)
    speedup = ratio_interval(pairs.baseline, pairs.candidate, seed)
    physics = physics_check(baseline, other, left_out=looping, draft_cost_low=draft_cost_low, seed=seed)
    verdict, reason = _verdict(speedup, physics, margin, more_failures=_more_failures(baseline, other))
    needed = _prompts_needed(speedup, margin) if reason in (TOO_FEW, BOTH_ANSWERS) else None
    with_looping = paired_speedup(baseline, other, seed=seed) if looping else speedup
    return Decision(
        verdict=verdict,
        sentence=_sentence(verdict, candidate, speedup, margin, reason),
        margin=margin,
        candidate=candidate,
        speedup=speedup,
        speedup_with_looping=with_looping,
        agreement=identical_outputs(baseline, other),
        mean_acceptance_length=mean_acceptance_length(other),
        physics=physics,
        looping_prompts=tuple(sorted(looping)),
        failed_prompts=pairs.failed,
        prompts_needed=needed,
        notes=_help(needed) + _notes(looping, pairs.failed, with_looping),
    )


def _refuse_forced_lengths(*sides: Measurement) -> None:
    if any(side.environment.get("output_lengths") == "forced" for side in sides):
        raise MeasurementError(
            "the answers were forced to their cap (ignore_eos), so their lengths are not the workload's",
            "certify with natural stops",
        )


def _more_failures(baseline: Measurement, candidate: Measurement) -> int:
    """Requests that failed under the candidate beyond those that failed without speculation."""
    lost = [sum(not record.is_complete for record in side.requests) for side in (baseline, candidate)]
    return max(0, lost[1] - lost[0])


def physics_check(
    baseline: Measurement,
    candidate: Measurement,
    *,
    left_out: Collection[str] = (),
    draft_cost_low: float = 0.0,
    seed: int = 0,
) -> PhysicsCheck:
    """Compare the gain in time per output token with what the acceptance allows.

    A round emits τ tokens on average and takes at least a plain round and its drafting, so the gain is at most
    τ / (1 + draft cost). A gain whose lower limit exceeds that of τ's upper limit is an artefact, and so is a
    significant gain at τ = 1.
    """
    gain = paired_speedup(baseline, candidate, "tpot_ms", left_out=left_out, seed=seed)
    length = _acceptance_interval(candidate, left_out, seed)
    limit = None if length is None else length.high / (1 + draft_cost_low)
    is_artefact = gain is not None and limit is not None and gain.low > limit
    return PhysicsCheck(tpot_speedup=gain, limit=limit, is_artefact=is_artefact)


def _acceptance_interval(candidate: Measurement, left_out: Collection[str], seed: int) -> Interval | None:
    rows = [
        (record.output_tokens - 1, record.rounds)
        for record in candidate.requests
        if record.is_complete and record.prompt_id not in left_out and record.rounds and record.output_tokens
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return ratio_interval(table[:, 0], table[:, 1], seed)


def _verdict(
    speedup: Interval | None, physics: PhysicsCheck, margin: float, *, more_failures: int
) -> tuple[Verdict, str]:
    """The verdict, and the reason for an open one."""
    if speedup is None or speedup.n < FEWEST_PROMPTS_FOR_A_VERDICT:
        return Verdict.INCONCLUSIVE, TOO_FEW
    if speedup.high < 1 + margin:
        return Verdict.DO_NOT_SPECULATE, ""
    if more_failures:
        return Verdict.INCONCLUSIVE, f"{more_failures} requests failed that did not fail without speculation"
    if physics.is_artefact:
        return Verdict.INCONCLUSIVE, "the gain per token is larger than the accepted tokens allow, so it is an artefact"
    if speedup.one_sided_99_low > 1 + margin:
        return Verdict.RECOMMEND, ""
    return Verdict.INCONCLUSIVE, BOTH_ANSWERS


def _prompts_needed(speedup: Interval | None, margin: float) -> int | None:
    """Prompts after which a gain as estimated would be told from the margin; None where no number would do."""
    if speedup is None or speedup.n < FEWEST_PROMPTS_FOR_A_VERDICT:
        return FEWEST_PROMPTS_FOR_A_VERDICT
    distance = math.log(speedup.estimate / (1 + margin))
    if distance == 0:
        return None
    confidence = 0.98 if distance > 0 else 0.95  # one-sided 99 % is two-sided 98 %
    needed = max(prompts_needed(speedup.coefficient_of_variation, abs(distance), confidence), speedup.n + 1)
    return needed if needed <= MOST_PROMPTS_TO_ASK_FOR else None


def _sentence(
    verdict: Verdict, candidate: Speculation | None, speedup: Interval | None, margin: float, reason: str
) -> str:
    name = "the candidate" if candidate is None else candidate.label
    gain = "" if speedup is None else f" ({_spoken(speedup)})"
    if verdict is Verdict.RECOMMEND:
        return f"Use {name}: it answers faster than no speculation{gain}."
    if verdict is Verdict.DO_NOT_SPECULATE:
        return f"Do not speculate: {name} does not gain {margin * 100:g} % end to end{gain}."
    return f"Inconclusive for {name}: {reason}{gain}."


def _spoken(speedup: Interval) -> str:
    return (
        f"{speedup.estimate:.2f} times the speed end to end, "
        f"95 % interval {speedup.low:.2f} to {speedup.high:.2f} over {speedup.n} prompts"
    )


def _help(needed: int | None) -> tuple[str, ...]:
    return () if needed is None else (f"about {needed} prompts would settle it if the estimate holds",)


def _notes(looping: Collection[str], failed: Collection[str], with_looping: Interval | None) -> tuple[str, ...]:
    notes = [ONE_LOAD]
    if looping:
        kept = "" if with_looping is None else f"; with them: {_spoken(with_looping)}"
        notes.append(f"{len(looping)} prompts left out, on which the target alone goes in circles{kept}")
    if failed:
        notes.append(f"{len(failed)} prompts left out, on which a request failed")
    return tuple(notes)


class Tried(Protocol):
    """A measured configuration: what ``no_winner`` needs of a trial."""

    @property
    def speculation(self) -> Speculation:
        """What was tried."""
        ...

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Its figures; ``"speedup"`` is the gain over no speculation."""
        ...


def no_winner(measured: Sequence[Tried], margin: float = DEFAULT_MARGIN) -> Decision:
    """The verdict of a search in which no candidate beat the baseline, so that there is nothing to certify."""
    gains = [
        (gain, trial.speculation)
        for trial in measured
        if not trial.speculation.is_baseline and (gain := trial.metrics.get("speedup")) is not None
    ]
    if not gains:
        was_measured = any(not trial.speculation.is_baseline for trial in measured)
        reason = (
            "too few answers to compare any configuration with no speculation"
            if was_measured
            else "no configuration with speculation could be measured"
        )
        return Decision(verdict=Verdict.INCONCLUSIVE, sentence=f"Inconclusive: {reason}.", margin=margin)
    gain, best = max(gains, key=lambda pair: pair[0])
    return Decision(
        verdict=Verdict.DO_NOT_SPECULATE,
        sentence=f"Do not speculate: the best of {len(gains)} measured configurations, {best.label}, "
        f"has {gain:.2f} times the speed of no speculation.",
        margin=margin,
        candidate=best,
    )


__all__ = [
    "Decision",
    "PhysicsCheck",
    "Tried",
    "Verdict",
    "anchored_speedup",
    "decide",
    "no_winner",
    "paired_speedup",
    "physics_check",
]
