"""The search: baseline, traces, predictions, trials, certification, verdict.

Every step is resumable. When a stage ends, its result is stored, then the worker forgets it; when a trial ends, our
row is written, then Optuna is told. Whatever dies in between, the same command goes on from the last row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.decide import Decision, no_winner
from tuner.dispatch import Dispatcher
from tuner.errors import EngineError, InputError, StageTimeoutError
from tuner.evidence import Evidence
from tuner.objective import deciding
from tuner.observer import Observer, SilentObserver
from tuner.outcome import TrialOutcome, estimated_gains, front_members, seen_at, sharpened
from tuner.plan import SearchPlan
from tuner.predictions import Predictions, timed_at
from tuner.records import (
    BaselineResult,
    CertifyResult,
    MeasureResult,
    StageKind,
    TraceResult,
    from_json,
    to_json,
)
from tuner.samplers import REPLAY, make_sampler
from tuner.speculation import Speculation
from tuner.stages import StageRunner
from tuner.stopping import Reason, Spent, StopKind
from tuner.store import ParetoEntry, StudyRecord, TrialRecord, TrialState, TrialStore, utc_now
from tuner.study import Asked, TrialLedger, distributions
from tuner.tracing import Tracer

MAX_REPEATS_IN_A_ROW = 3
"""After so many repeated suggestions the best untried prediction is enqueued instead of asking on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        baseline: Trial 0, no speculation.
        recommended: The trial to deploy; None where the verdict is not to speculate, or open.
        trials: All of them, by number.
        pareto: Measured and predicted members of the front.
        predictions: What replay says of every configuration, sharpened by those that were measured.
        certified: The winner and the baseline in alternating blocks, once per load; none where nothing was worth it.
        stopped: Why no further configuration was tried.
    """

    study: StudyRecord
    decision: Decision
    baseline: TrialRecord
    recommended: TrialRecord | None
    trials: tuple[TrialRecord, ...]
    pareto: tuple[ParetoEntry, ...]
    predictions: Predictions
    certified: tuple[CertifyResult, ...]
    stopped: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStudy:
    """What replay says of every configuration, from the baseline and one trace of each draft.

    Attributes:
        trials: So far; the baseline at least.
        predictions: Sharpened by the configurations that were measured, if any were.
        configurations: Of the search space, no speculation not among them.
        gaps: Those without a prediction, each with the reason.
        concurrency: Requests in flight at which a search would decide; None for the workload's own number.
    """

    study: StudyRecord
    trials: tuple[TrialRecord, ...]
    predictions: Predictions
    configurations: tuple[Speculation, ...] = ()
    gaps: Mapping[Speculation, str] = field(default_factory=dict)
    concurrency: int | None = None


def new_study(plan: SearchPlan, provenance: Mapping[str, Any] | None = None) -> StudyRecord:
    """The study of a plan, as it is stored before anything was measured."""
    return StudyRecord(name=plan.name, spec=plan.spec, provenance={**(provenance or {}), "models": plan.places})


class Search:
    """One search over one study."""

    def __init__(
        self,
        plan: SearchPlan,
        store: TrialStore,
        ledger: TrialLedger,
        dispatcher: Dispatcher,
        observer: Observer | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._ledger = ledger
        self._observer = observer or SilentObserver()
        self._stages = StageRunner(store, dispatcher, self._observer)
        self._study = new_study(plan, provenance)
        self._tracer = Tracer(plan, store, self._stages, self._observer, self._study.provenance)

    def run(self) -> SearchResult:
        """Go on from wherever the study is, to its verdict.

        Raises:
            StudyMismatchError: The stored study was started with other settings.
            EngineError: The baseline itself cannot run.
            DispatchError: Workers are lost again and again.
        """
        baseline, traces = self._begin()
        predictions = Predictions.of(baseline, traces)
        stopped = self._try_configurations(baseline, predictions)
        return self._conclude(baseline, traces, predictions, stopped)

    def predict(self) -> PredictedStudy:
        """Run the baseline and the traces, where they are not stored yet, and stop there; ``run`` goes on from it.

        Raises:
            StudyMismatchError: The stored study was started with other settings.
            EngineError: The baseline itself cannot run.
            DispatchError: Workers are lost again and again.
        """
        baseline, traces = self._begin()
        predictions = sharpened(Predictions.of(baseline, traces), self._trials())
        configurations = tuple(one for one in self._plan.space.configurations() if not one.is_baseline)
        return PredictedStudy(
            study=self._store.study(self._plan.name),
            trials=self._trials(),
            predictions=predictions,
            configurations=configurations,
            gaps=predictions.gaps(configurations, traces),
            concurrency=deciding(self._plan.objectives).load,
        )

    def _begin(self) -> tuple[BaselineResult, tuple[TraceResult, ...]]:
        self._study = self._store.add_study(self._study)
        self._ledger.reconcile(self._trials())
        for notice in self._plan.notices:
            self._observer.notice(notice)
        baseline = self._run_baseline()
        return baseline, self._tracer.trace_all(baseline)

    # ── baseline and predictions ──────────────────────────────────────────────────────────────────────────────

    def _run_baseline(self) -> BaselineResult:
        if not self._trials():
            self._store.save_trial(self._row(self._ledger.ask_baseline()))
        task = self._plan.baseline_task()
        result = from_json(BaselineResult, self._stages.result_of(task))
        self._observer.notice(_conditions(result.measurement.environment))
        row = self._trials()[0]
        if row.state is TrialState.RUNNING:
            self._finish(row, TrialOutcome.of_baseline(result, self._plan.objectives))
        return result

    # ── trials ────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_configurations(self, baseline: BaselineResult, predictions: Predictions) -> Reason:
        unpredicted = predictions.left_open(self._plan.objectives)
        if unpredicted and predictions.by_configuration:
            names = " and ".join(one.name for one in unpredicted)
            self._observer.notice(f"{names} cannot be predicted: configurations are tried until all are, or a limit")
        self._ledger.use(
            make_sampler(
                self._plan.sampler,
                distributions(self._plan.space),
                self._plan.seed,
                forecasts=predictions.forecasts(self._plan.objectives),
                has_unpredicted=bool(unpredicted),
                epsilon=self._plan.epsilon,
            )
        )
        for row in self._trials():
            if row.state is TrialState.RUNNING:
                self._run_trial(row, baseline)
        if self._plan.sampler != REPLAY:  # other samplers know nothing of predictions, so they are given the best one
            self._enqueue_best(predictions)
        while (stopped := self._why_stop()) is None:
            self._try_next(baseline, predictions)
        self._observer.notice(f"no more configurations are tried: {stopped.text}")
        return stopped

    def _enqueue_best(self, predictions: Predictions) -> None:
        for speculation in predictions.ranked(self._plan.space.configurations())[:1]:
            self._ledger.enqueue(speculation, predictions.metrics(speculation))

    def _why_stop(self) -> Reason | None:
        if not self._untried():
            return Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")
        return self._ledger.finished() or self._plan.budget.exhausted_by(self._spent())

    def _spent(self) -> Spent:
        stages = [one for one in self._store.stages(self._plan.name) if one.kind is not StageKind.CERTIFY]
        seconds = sum((one.ended_at - one.started_at).total_seconds() for one in stages if one.ended_at is not None)
        tried = len(self._tried())
        return Spent(trials=tried, compiles=tried, seconds=seconds)

    def _try_next(self, baseline: BaselineResult, predictions: Predictions) -> None:
        asked = self._ask(predictions)
        now = sharpened(predictions, self._trials())
        row = self._row(asked, now.metrics(asked.speculation))
        self._store.save_trial(row)
        self._run_trial(row, baseline)
        if (standing := self._ledger.standing()) is not None:
            self._observer.standing(standing)

    def _ask(self, predictions: Predictions) -> Asked:
        """The next configuration that was not tried yet; those that were are answered from the store."""
        for _ in range(MAX_REPEATS_IN_A_ROW):
            asked = self._ledger.ask()
            if not self._answer_from_store(self._row(asked, predictions.metrics(asked.speculation))):
                return asked
        untried = self._untried()
        self._ledger.enqueue((predictions.ranked(untried) or untried)[0])
        return self._ledger.ask()

    def _run_trial(self, row: TrialRecord, baseline: BaselineResult) -> None:
        task = self._plan.measure_task(row.speculation)
        try:
            result = from_json(MeasureResult, self._stages.result_of(task))
            outcome = TrialOutcome.of_candidate(
                baseline, result, self._plan.objectives, self._plan.workload.repetition_expected
            )
        except (EngineError, StageTimeoutError, InputError) as error:
            outcome = TrialOutcome.infeasible(error)
        self._finish(row, outcome)

    def _answer_from_store(self, row: TrialRecord) -> bool:
        """Whether an earlier trial has this configuration; if so, its answer is stored and told again."""
        earlier = self._tried().get(row.speculation.key)
        if earlier is None:
            return False
        repeated = replace(
            earlier, number=row.number, duplicate_of=earlier.number, created_at=row.created_at, ended_at=utc_now()
        )
        self._store.save_trial(repeated)
        self._ledger.tell(repeated)
        return True

    def _finish(self, row: TrialRecord, outcome: TrialOutcome) -> None:
        ended = outcome.applied_to(row, utc_now())
        self._store.save_trial(ended)
        self._ledger.tell(ended)
        self._observer.trial_ended(ended)

    def _row(self, asked: Asked, predicted: Mapping[str, float] | None = None) -> TrialRecord:
        return TrialRecord(
            study_name=self._plan.name,
            number=asked.number,
            speculation=asked.speculation,
            predicted=dict(predicted or {}),
        )

    def _trials(self) -> tuple[TrialRecord, ...]:
        return self._store.trials(self._plan.name)

    def _tried(self) -> dict[str, TrialRecord]:
        """First finished trial of each configuration, by the configuration's key."""
        found: dict[str, TrialRecord] = {}
        for trial in self._trials():
            if trial.state in (TrialState.COMPLETE, TrialState.INFEASIBLE) and trial.duplicate_of is None:
                found.setdefault(trial.speculation.key, trial)
        return found

    def _untried(self) -> tuple[Speculation, ...]:
        tried = self._tried()
        return tuple(one for one in self._plan.space.configurations() if one.key not in tried)

    # ── verdict ───────────────────────────────────────────────────────────────────────────────────────────────

    def _conclude(
        self, baseline: BaselineResult, traces: Sequence[TraceResult], predictions: Predictions, stopped: Reason
    ) -> SearchResult:
        measured = [trial for trial in self._tried().values() if trial.state is TrialState.COMPLETE]
        evidence = self._evidence(baseline, traces, measured)
        gains = estimated_gains(predictions, measured, evidence.concurrency)
        predictions = sharpened(predictions, measured)
        choice = evidence.choose(measured, self._plan.epsilon, gains)
        best = choice.candidate
        certified = self._certify(best)
        if certified:
            decision = evidence.decide(choice, certified, self._plan.margin)
        else:
            ruled_out = stopped.text if stopped.kind is StopKind.NOTHING_WORTH_IT else None
            decision = no_winner(
                measured, margin=self._plan.margin, ruled_out=ruled_out, concurrency=evidence.concurrency
            )
        front = front_members(measured, self._untried(), predictions, self._plan.objectives)
        conclusion = {
            "decision": json.loads(to_json(decision)),
            "trial": best.number if decision.recommends else None,
            "candidate": None if best.speculation.is_baseline else best.number,
            "stopped": json.loads(to_json(stopped)),
        }
        self._store.conclude(self._plan.name, conclusion, front)
        return SearchResult(
            study=self._store.study(self._plan.name),
            decision=decision,
            baseline=self._trials()[0],
            recommended=best if decision.recommends else None,
            trials=self._trials(),
            pareto=front,
            predictions=predictions,
            certified=certified,
            stopped=stopped,
        )

    def _evidence(
        self, baseline: BaselineResult, traces: Sequence[TraceResult], measured: Sequence[TrialRecord]
    ) -> Evidence:
        tasks = {
            trial.speculation.key: self._plan.measure_task(trial.speculation)
            for trial in measured
            if not trial.speculation.is_baseline
        }
        load = deciding(self._plan.objectives).load
        results = {key: from_json(MeasureResult, self._stages.result_of(task)) for key, task in tasks.items()}
        seen = traces if load is None else timed_at(traces, load)
        return Evidence(
            baseline=baseline if load is None else baseline.at_load[load],
            results={key: seen_at(load, baseline, result) for key, result in results.items()},
            traces={one.trace.draft_name: one for one in seen},
            concurrency=load,
            repetition_expected=self._plan.workload.repetition_expected,
            replay_is_exact=self._plan.replay_is_exact,
        )

    def _certify(self, best: TrialRecord) -> tuple[CertifyResult, ...]:
        """The final comparison, once for each load; nothing where no speculation is the best."""
        tasks = () if best.speculation.is_baseline else self._plan.certify_tasks(best.speculation)
        return tuple(from_json(CertifyResult, self._stages.result_of(task)) for task in tasks)


def _conditions(environment: Mapping[str, str]) -> str:
    """What the engine says of itself, for the person who waits."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in environment.items())
    return f"measured with {facts}"
