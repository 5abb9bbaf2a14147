"""What a certified comparison comes to, and how it is said."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.intervals import Interval
from tuner.outputs import LOGIT_NOISE, Agreement, Losslessness
from tuner.physics import PhysicsCheck
from tuner.records import CertifyResult, Divergence
from tuner.speculation import Speculation

MOST_TIES_NAMED = 4

ONE_LOAD = "one load per side: variation from load to load is not in the interval"
ONE_AT_A_TIME = (
    "one configuration fits at a time: no speculation, the candidate twice, no speculation, one load after another; "
    "the interval holds what the machine's drift between them may have added, but not variation from load to load"
)


class Verdict(StrEnum):
    """What a certified comparison comes to."""

    RECOMMEND = "recommend"
    TIE = "tie"
    """Recommended, as the simplest of several that cannot be told apart."""
    DO_NOT_SPECULATE = "do_not_speculate"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict with everything that it rests on.

    Attributes:
        sentence: The verdict for a person to read.
        candidate: The configuration it is about; None where none was certified.
        speedup: End-to-end gain over no speculation without looping prompts; None for fewer than three prompts.
        speedup_with_looping: The same with them; equal where there are none.
        margin: Least gain worth having.
        agreement: How many outputs are the baseline's; None where tokens were sampled.
        looping_prompts: Left out for both sides, by the baseline's outputs.
        failed_prompts: Left out because a request of either side failed.
        prompts_needed: Prompts that would settle an open verdict if the estimate holds.
        notes: What the interval does not contain, and what else a reader must know.
        tied_with: Measured configurations that the search could not tell from the candidate, simplest first.
        seconds_needed: Measuring time of that many prompts, at the speed of this certification.
        losslessness: What lies behind outputs that differ; None where tokens were sampled.
        loads: Certifications that were pooled.
        concurrency: Requests in flight that it is about; None for the workload's own number.
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
    tied_with: tuple[Speculation, ...] = ()
    seconds_needed: float | None = None
    losslessness: Losslessness | None = None
    loads: int = 1
    concurrency: int | None = None

    @property
    def recommends(self) -> bool:
        """Whether the candidate should be deployed."""
        return self.verdict in (Verdict.RECOMMEND, Verdict.TIE)


# ── in words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sentence_of(decision: Decision, reason: str = "") -> str:
    """The verdict in one sentence; ``reason`` is that of an open one."""
    name = "the candidate" if decision.candidate is None else decision.candidate.label
    at_load = spoken_load(decision.concurrency)
    gain = "" if decision.speedup is None else f" ({_spoken(decision.speedup)})"
    match decision.verdict:
        case Verdict.RECOMMEND:
            return f"Use {name}: it answers faster than no speculation{at_load}{gain}."
        case Verdict.TIE:
            tied = f"the simplest of {len(decision.tied_with) + 1} that cannot be told apart"
            return (
                f"Use {name}, {tied} (also {_named(decision.tied_with)}): it answers faster than no speculation"
                f"{at_load}{gain}."
            )
        case Verdict.DO_NOT_SPECULATE:
            return f"Do not speculate: {name} does not gain {decision.margin * 100:g} % end to end{at_load}{gain}."
        case Verdict.INCONCLUSIVE:
            return f"Inconclusive for {name}{at_load}: {reason}{gain}."


def spoken_load(concurrency: int | None) -> str:
    """How many requests are in flight, to be added to a sentence; nothing for the workload's own number."""
    return "" if concurrency is None else f" with {concurrency} requests in flight"


def notes_of(decision: Decision, loads: Sequence[CertifyResult], load_error: float | None) -> tuple[str, ...]:
    """What a reader must know beside the sentence: what would help comes first."""
    return (
        *_help(decision),
        _load_note(loads, load_error),
        *_left_out_notes(decision.looping_prompts, decision.failed_prompts, decision.speedup_with_looping),
        *_output_notes(decision.losslessness, decision.agreement),
    )


def spoken_bugs(bugs: Sequence[Divergence]) -> str:
    """Why outputs that differ are a fault; there is at least one."""
    first, *others = bugs
    more = f", and {len(others)} more outputs likewise" if others else ""
    return (
        f"the output to prompt {first.prompt_id!r} leaves the target's at position {first.position}, where the two "
        f"best logits lie {first.gap:.3g} apart and the numerics' noise is {LOGIT_NOISE:g}{more}: "
        "a fault of the engine, not a near-tie"
    )


def _named(tied_with: Sequence[Speculation]) -> str:
    names = [one.label for one in tied_with[:MOST_TIES_NAMED]]
    more = len(tied_with) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _spoken(speedup: Interval) -> str:
    return (
        f"{speedup.estimate:.2f} times the speed end to end, "
        f"95 % interval {speedup.low:.2f} to {speedup.high:.2f} over {speedup.n} prompts"
    )


def _help(decision: Decision) -> tuple[str, ...]:
    if decision.prompts_needed is None:
        return ()
    seconds = decision.seconds_needed
    time = "" if seconds is None else f", {_spoken_time(seconds)} of measuring,"
    return (f"about {decision.prompts_needed} prompts{time} would settle it if the estimate holds",)


def _spoken_time(seconds: float) -> str:
    return f"{math.ceil(seconds)} seconds" if seconds < 90 else f"{round(seconds / 60)} minutes"


def _load_note(loads: Sequence[CertifyResult], load_error: float | None) -> str:
    if len(loads) == 1:
        return ONE_LOAD if loads[0].loads == 2 else ONE_AT_A_TIME
    if load_error is None:
        return f"{len(loads)} loads per side"
    spread = f"{load_error * math.sqrt(len(loads)) * 100:.1f} %"
    return f"{len(loads)} loads per side: the gain varies by {spread} from load to load, which the interval contains"


def _left_out_notes(
    looping: Collection[str], failed: Collection[str], with_looping: Interval | None
) -> tuple[str, ...]:
    notes = []
    if looping:
        kept = "" if with_looping is None else f"; with them: {_spoken(with_looping)}"
        notes.append(f"{len(looping)} prompts left out, on which the target alone goes in circles{kept}")
    if failed:
        notes.append(f"{len(failed)} prompts left out, on which a request failed")
    return tuple(notes)


def _output_notes(lossless: Losslessness | None, agreement: Agreement | None) -> tuple[str, ...]:
    notes = []
    if lossless is not None and lossless.near_ties:
        notes.append(
            f"{lossless.near_ties} outputs differ where the target's two best tokens are a near-tie, which is harmless"
        )
    if lossless is not None and lossless.unexplained:
        rate = agreement.divergences_per_1000_tokens if agreement is not None else None
        often = "" if rate is None else f" ({rate:.2g} divergences per 1,000 tokens)"
        why = (
            "logits were not at hand, so near-ties could not be told from bugs"
            if lossless.is_promised
            else "the engine's numerics do not promise the same outputs"
        )
        notes.append(f"{lossless.unexplained} outputs differ from those without speculation{often}: {why}")
    return tuple(notes)
