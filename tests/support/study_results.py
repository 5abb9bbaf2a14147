"""Studies as a report sees them, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tuner.decide import Decision, Verdict
from tuner.intervals import Interval
from tuner.outputs import Agreement
from tuner.prediction import Prediction
from tuner.predictions import Predictions
from tuner.speculation import NO_SPECULATION, Method, Speculation
from tuner.stopping import Reason
from tuner.store import ParetoEntry, StudyRecord, TrialRecord, TrialState

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=4, prompt_lookup_max=3, prompt_lookup_min=1)
EAGLE = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="eagle-head", drafted_tokens=3)
SHALLOW = Speculation(method=Method.DRAFT_MODEL, draft_name="shallow", draft_model="two-layers", drafted_tokens=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class AResult:
    """A study with everything that a report asks for."""

    study: StudyRecord
    decision: Decision | None
    baseline: TrialRecord | None
    recommended: TrialRecord | None
    trials: tuple[TrialRecord, ...]
    pareto: tuple[ParetoEntry, ...] = ()
    predictions: Predictions = field(default_factory=lambda: Predictions(by_configuration={}))
    stopped: Reason | None = None


def a_trial(number: int, speculation: Speculation, **changes: Any) -> TrialRecord:
    """A finished trial."""
    record = TrialRecord(
        study_name="code-gen-1a2b3c",
        number=number,
        speculation=speculation,
        state=TrialState.COMPLETE,
        values={"e2e_ms": 2000.0, "waste": 0.0},
        created_at=NOON,
        ended_at=NOON,
    )
    return replace(record, **changes)


BASELINE = a_trial(
    0,
    NO_SPECULATION,
    metrics={"tpot_ms_mean": 23.44, "speedup": 1.0, "waste_tokens_per_output_token": 0.0, "acceptance_rate": None},
)
GOOD = a_trial(
    1,
    EAGLE,
    values={"e2e_ms": 1733.0, "waste": 0.81},
    metrics={
        "tpot_ms_mean": 20.12,
        "speedup": 1.154,
        "speedup_low": 1.101,
        "speedup_high": 1.203,
        "waste_tokens_per_output_token": 0.81,
        "acceptance_rate": 0.374,
        "mean_acceptance_length": 1.92,
        "identical_share": 1.0,
    },
    predicted={"speedup": 1.18, "speedup_low": 1.06, "speedup_high": 1.31, "e2e_ms_mean": 1700.0},
)
BROKEN = a_trial(
    2,
    SHALLOW,
    state=TrialState.INFEASIBLE,
    values={},
    error_type="OutOfDeviceMemoryError",
    error="2.0 GiB needed, 1.0 GiB free on cpu\nlower max_num_seqs",
)
REPEATED = replace(GOOD, number=3, duplicate_of=1)


def an_interval(estimate: float = 1.15, low: float = 1.09, high: float = 1.21) -> Interval:
    """Limits around a ratio over sixteen prompts."""
    return Interval(
        estimate=estimate,
        low=low,
        high=high,
        one_sided_99_low=low - 0.01,
        n=16,
        coefficient_of_variation=0.1,
        method="bootstrap-t",
    )


def a_decision(verdict: Verdict = Verdict.RECOMMEND, **changes: Any) -> Decision:
    """A verdict on ``EAGLE``."""
    sentences = {
        Verdict.RECOMMEND: "Use eagle k=3: it answers faster than no speculation.",
        Verdict.TIE: "Use eagle k=3, the simplest of 2 that cannot be told apart (also eagle k=4): it answers faster.",
        Verdict.DO_NOT_SPECULATE: "Do not speculate: eagle k=3 does not gain 2% end to end.",
        Verdict.INCONCLUSIVE: "Inconclusive for eagle k=3: the interval holds both answers.",
    }
    decision = Decision(
        verdict=verdict,
        sentence=sentences[verdict],
        margin=0.02,
        candidate=EAGLE,
        speedup=an_interval(),
        agreement=Agreement(pairs=16, share_identical=1.0, divergences_per_1000_tokens=0.0),
        notes=("one load per side: variation from load to load is not in the interval",),
    )
    return replace(decision, **changes)


def a_prediction(draft_name: str, drafted_tokens: int, speedup: float) -> Prediction:
    """What replay says of one configuration, give or take five per cent."""
    return Prediction(
        draft_name=draft_name,
        drafted_tokens=drafted_tokens,
        speedup=speedup,
        speedup_low=speedup * 0.95,
        speedup_high=speedup * 1.05,
        columns={"e2e_ms_mean": 2000.0 / speedup},
    )


def a_result(decision: Decision | None = None, **changes: Any) -> AResult:
    """A study of four trials: no speculation, a good one, one that cannot run, and a repeat of the good one."""
    verdict = decision or a_decision()
    result = AResult(
        study=StudyRecord(
            name="code-gen-1a2b3c",
            spec={"workload": {"name": "code-gen"}, "target": "SmolLM2-135M-Instruct", "seed": 0},
            provenance={"python": "3.11.2"},
            created_at=NOON,
        ),
        decision=verdict,
        baseline=BASELINE,
        recommended=GOOD if verdict.recommends else None,
        trials=(BASELINE, GOOD, BROKEN, REPEATED),
        pareto=(
            ParetoEntry(speculation=EAGLE, values=GOOD.values, trial_number=1, is_measured=True),
            ParetoEntry(
                speculation=NGRAM, values={"e2e_ms": 1900.0, "waste": 0.3}, trial_number=None, is_measured=False
            ),
            ParetoEntry(speculation=NO_SPECULATION, values=BASELINE.values, trial_number=0, is_measured=True),
        ),
        predictions=Predictions(
            by_configuration={("eagle", k): a_prediction("eagle", k, 1.2 - 0.02 * k) for k in range(1, 5)}
        ),
    )
    return replace(result, **changes)
