"""The verdict: is speculation worth it, how sure is that, and what would make it surer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.choice import Tried
from tuner.errors import MeasurementError
from tuner.intervals import Interval, prompts_needed
from tuner.loads import PooledLoads, pool_loads
from tuner.metrics import mean_acceptance_length
from tuner.objective import at_load
from tuner.outputs import Losslessness, identical_outputs, looping_prompts, losslessness
from tuner.pairing import anchored_speedup, paired_speedup
from tuner.physics import PhysicsCheck, acceptance_alarm, acceptance_interval, physics_check
from tuner.records import CertifyResult, Measurement
from tuner.speculation import Speculation
from tuner.verdict import Decision, Verdict, notes_of, sentence_of, spoken_bugs, spoken_load

DEFAULT_MARGIN = 0.02
"""A gain that pays for running a second model."""

FEWEST_PROMPTS_FOR_A_VERDICT = 8
"""Below this even bootstrap-t limits cover too little to stake a deployment on them."""

MOST_PROMPTS_TO_ASK_FOR = 10_000
"""More than this no one measures: the gain is then the margin itself, for all that it matters."""

ONE_SIDED_99, TWO_SIDED_95 = 2.326, 1.960
"""Quantiles of the normal distribution."""

POWER = 0.8
"""Share of repetitions that a stated number of prompts is to settle."""

TOO_FEW = f"fewer than {FEWEST_PROMPTS_FOR_A_VERDICT} prompts could be compared"
BOTH_ANSWERS = "the interval holds both answers"
ARTEFACT = "the gain per token is larger than the accepted tokens allow, so it is an artefact"


def decide(
    certified: CertifyResult | Sequence[CertifyResult],
    candidate: Speculation | None = None,
    *,
    tied_with: Sequence[Speculation] = (),
    repetition_expected: Callable[[str], bool] = lambda _: False,
    margin: float = DEFAULT_MARGIN,
    draft_cost_low: float = 0.0,
    replayed_acceptance: Interval | None = None,
    alarms: Sequence[str] = (),
    concurrency: int | None = None,
    seed: int = 0,
) -> Decision:
    """The verdict on a candidate that was run in alternating blocks with the baseline.

    ``RECOMMEND`` needs the one-sided 99 % lower limit of the end-to-end gain above 1 + margin, and is called ``TIE``
    where other configurations are as good. ``DO_NOT_SPECULATE`` needs the 95 % upper limit below it. Everything else
    is ``INCONCLUSIVE``: too few prompts, an interval that holds both answers, requests that only the candidate failed,
    greedy outputs that differ where the target's choice was clear, or a gain that physics forbids.

    Args:
        certified: Both sides on the same prompts; several where they were loaded several times.
        candidate: For the sentence.
        tied_with: Other configurations that the search could not tell from it, of which it is the simplest.
        repetition_expected: Says of a prompt class whether its answers repeat by nature.
        margin: Least gain worth having, e.g. 0.02.
        draft_cost_low: See ``physics.draft_cost_low``; 0 where unknown.
        replayed_acceptance: See ``physics.replayed_acceptance``; measured acceptance beside it is an alarm.
        alarms: What else was found amiss; goes to the notes.
        concurrency: Requests that were in flight, for the sentence; None for the workload's own number.
        seed: Of the resampling.

    Raises:
        MeasurementError: The answers were forced to their cap; no conclusion follows from such lengths.
    """
    loads = (certified,) if isinstance(certified, CertifyResult) else tuple(certified)
    _refuse_forced_lengths(*(side for load in loads for side in (load.baseline, load.candidate)))
    looping = frozenset[str]().union(*(looping_prompts(load.baseline, repetition_expected) for load in loads))
    pooled = pool_loads(loads, looping, seed)
    physics = physics_check(
        pooled.baseline, pooled.candidate, left_out=looping, draft_cost_low=draft_cost_low, seed=seed
    )
    alarm = acceptance_alarm(acceptance_interval(pooled.candidate, looping, seed), replayed_acceptance)
    decision, reason = _judged(pooled, physics, losslessness(loads), margin)
    decision = replace(
        decision,
        verdict=Verdict.TIE if decision.verdict is Verdict.RECOMMEND and tied_with else decision.verdict,
        candidate=candidate,
        speedup_with_looping=pool_loads(loads, seed=seed).speedup if looping else pooled.speedup,
        looping_prompts=tuple(sorted(looping)),
        tied_with=tuple(tied_with),
        loads=len(loads),
        concurrency=concurrency,
    )
    notes = (*alarms, *([] if alarm is None else [alarm]), *notes_of(decision, loads, pooled.load_error))
    return replace(decision, sentence=sentence_of(decision, reason), notes=notes)


def _judged(
    pooled: PooledLoads, physics: PhysicsCheck, lossless: Losslessness | None, margin: float
) -> tuple[Decision, str]:
    """The verdict on both sides as pooled, with what it rests on, and the reason for an open one."""
    baseline, other = pooled.baseline, pooled.candidate
    verdict, reason = _verdict(pooled.speedup, margin, _objections(baseline, other, lossless, physics))
    needed = _prompts_needed(pooled, margin) if reason in (TOO_FEW, BOTH_ANSWERS) else None
    decision = Decision(
        verdict=verdict,
        sentence="",
        margin=margin,
        speedup=pooled.speedup,
        agreement=None if lossless is None else identical_outputs(baseline, other),
        mean_acceptance_length=mean_acceptance_length(other),
        physics=physics,
        failed_prompts=pooled.pairs.failed,
        prompts_needed=needed,
        seconds_needed=_seconds_needed(pooled, needed),
        losslessness=lossless,
    )
    return decision, reason


def _refuse_forced_lengths(*sides: Measurement) -> None:
    if any(side.environment.get("output_lengths") == "forced" for side in sides):
        raise MeasurementError(
            "the answers were forced to their cap (ignore_eos), so their lengths are not the workload's",
            "certify with natural stops",
        )


def _objections(
    baseline: Measurement, candidate: Measurement, lossless: Losslessness | None, physics: PhysicsCheck
) -> list[str]:
    """What stands in the way of a recommendation however large the gain is."""
    found = []
    failures = _more_failures(baseline, candidate)
    if failures:
        found.append(f"{failures} requests failed that did not fail without speculation")
    if lossless is not None and lossless.bugs:
        found.append(spoken_bugs(lossless.bugs))
    if physics.is_artefact:
        found.append(ARTEFACT)
    return found


def _more_failures(baseline: Measurement, candidate: Measurement) -> int:
    """Requests that failed under the candidate beyond those that failed without speculation."""
    lost = [sum(not record.is_complete for record in side.requests) for side in (baseline, candidate)]
    return max(0, lost[1] - lost[0])


def _verdict(speedup: Interval | None, margin: float, objections: Sequence[str]) -> tuple[Verdict, str]:
    """The verdict, and the reason for an open one."""
    if speedup is None or speedup.n < FEWEST_PROMPTS_FOR_A_VERDICT:
        return Verdict.INCONCLUSIVE, TOO_FEW
    if speedup.high < 1 + margin:
        return Verdict.DO_NOT_SPECULATE, ""
    if objections:
        return Verdict.INCONCLUSIVE, "; ".join(objections)
    if speedup.one_sided_99_low > 1 + margin:
        return Verdict.RECOMMEND, ""
    return Verdict.INCONCLUSIVE, BOTH_ANSWERS


def _prompts_needed(pooled: PooledLoads, margin: float) -> int | None:
    """Prompts with which four certifications in five tell a gain as estimated from the margin; None if no number does.

    What varies from load to load stays, however many prompts there are.
    """
    speedup = pooled.speedup
    if speedup is None or speedup.n < FEWEST_PROMPTS_FOR_A_VERDICT:
        return FEWEST_PROMPTS_FOR_A_VERDICT
    distance = math.log(speedup.estimate / (1 + margin))
    confidence = 0.98 if distance > 0 else 0.95  # one-sided 99 % is two-sided 98 %
    quantile = ONE_SIDED_99 if distance > 0 else TWO_SIDED_95
    left_over = distance**2 - (quantile * (pooled.load_error or 0.0)) ** 2
    if left_over <= 0:
        return None
    needed = prompts_needed(speedup.coefficient_of_variation, math.sqrt(left_over), confidence, power=POWER)
    return max(needed, speedup.n + 1) if needed <= MOST_PROMPTS_TO_ASK_FOR else None


def _seconds_needed(pooled: PooledLoads, needed: int | None) -> float | None:
    """Time of both sides over that many prompts in as many loads, at the speed of this certification."""
    prompts = len({record.prompt_id for record in pooled.baseline.requests})
    wall_s = pooled.baseline.wall_s + pooled.candidate.wall_s
    return None if needed is None or not prompts or wall_s <= 0 else needed * wall_s / prompts


# ── nothing to certify ────────────────────────────────────────────────────────────────────────────────────────────


def no_winner(
    measured: Sequence[Tried],
    margin: float = DEFAULT_MARGIN,
    ruled_out: str | None = None,
    concurrency: int | None = None,
) -> Decision:
    """The verdict of a search in which no candidate beat the baseline, so that there is nothing to certify.

    Args:
        measured: No speculation among them.
        margin: Smallest gain worth recommending.
        ruled_out: Why no configuration with speculation was worth a measurement, where predictions say so.
        concurrency: Requests in flight at which gains count; None for the workload's own number.
    """
    speedup = at_load("speedup", concurrency)
    gains = [
        (gain, trial.speculation)
        for trial in measured
        if not trial.speculation.is_baseline and (gain := trial.metrics.get(speedup)) is not None
    ]
    if not gains:
        was_measured = any(not trial.speculation.is_baseline for trial in measured)
        if ruled_out is not None and not was_measured:
            sentence = f"Do not speculate: {ruled_out}."
            return Decision(verdict=Verdict.DO_NOT_SPECULATE, sentence=sentence, margin=margin)
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
        f"has {gain:.2f} times the speed of no speculation{spoken_load(concurrency)}.",
        margin=margin,
        candidate=best,
        concurrency=concurrency,
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
