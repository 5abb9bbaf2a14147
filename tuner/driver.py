"""The search: baseline, traces, predictions, trials, certification, verdict.

Every step is resumable. When a stage ends, its result is stored, then the worker forgets it; when a trial ends, our
row is written, then Optuna is told. Whatever dies in between, the same command goes on from the last row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tuner.decide import Decision, decide, no_winner
from tuner.dispatch import Dispatcher, StageStatus, wait_for
from tuner.errors import DispatchError, EngineError, InputError, StageTimeoutError, TunerError, WorkerLostError
from tuner.outcome import TrialOutcome, front_members
from tuner.plan import SearchPlan
from tuner.predictions import Predictions, target_outputs
from tuner.records import BaselineResult, CertifyResult, MeasureResult, TargetOutput, TraceResult, from_json, to_json
from tuner.reuse import find_trace, keep_trace, referring, whole
from tuner.speculation import Speculation
from tuner.store import (
    ParetoEntry,
    StageRecord,
    StageState,
    StudyRecord,
    TrialRecord,
    TrialState,
    TrialStore,
    utc_now,
)
from tuner.study import Asked, TrialLedger
from tuner.trace_keys import TraceKey
from tuner.trial import Progress, StageTask

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
PREDICTED_FIRST = 3
"""Predicted best configurations that are enqueued before Optuna's sampler chooses."""
MAX_REPEATS_IN_A_ROW = 3
"""After so many repeated suggestions the best untried prediction is enqueued instead of asking on."""


class Observer(Protocol):
    """Hears what a search does; the CLI shows it."""

    def stage_began(self, task: StageTask) -> Progress:
        """A stage was sent to a worker. The returned function hears its progress."""
        ...

    def stage_ended(self, task: StageTask) -> None:
        """That stage is over."""
        ...

    def trial_ended(self, trial: TrialRecord) -> None:
        """A trial got its result."""
        ...

    def notice(self, text: str) -> None:
        """Something a person should know."""
        ...


class SilentObserver:
    """Hears everything and says nothing."""

    def stage_began(self, task: StageTask) -> Progress:  # noqa: ARG002
        """See ``Observer.stage_began``."""
        return lambda _done, _total: None

    def stage_ended(self, task: StageTask) -> None:
        """See ``Observer.stage_ended``."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """See ``Observer.trial_ended``."""

    def notice(self, text: str) -> None:
        """See ``Observer.notice``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        baseline: Trial 0, no speculation.
        recommended: The trial to deploy; None where the verdict is not to speculate, or open.
        trials: All of them, by number.
        pareto: Measured and predicted members of the front.
        predictions: What replay said of every configuration.
        certified: The winner and the baseline in alternating blocks; None where nothing was worth it.
    """

    study: StudyRecord
    decision: Decision
    baseline: TrialRecord
    recommended: TrialRecord | None
    trials: tuple[TrialRecord, ...]
    pareto: tuple[ParetoEntry, ...]
    predictions: Predictions
    certified: CertifyResult | None


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
        self._dispatcher = dispatcher
        self._observer = observer or SilentObserver()
        self._study = new_study(plan, provenance)

    def run(self) -> SearchResult:
        """Go on from wherever the study is, to its verdict.

        Raises:
            StudyMismatchError: The stored study was started with other settings.
            EngineError: The baseline itself cannot run.
            DispatchError: Workers are lost again and again.
        """
        self._study = self._store.add_study(self._study)
        self._ledger.reconcile(self._trials())
        for notice in self._plan.notices:
            self._observer.notice(notice)
        baseline = self._run_baseline()
        predictions = self._predict(baseline)
        self._try_configurations(baseline, predictions)
        return self._conclude(predictions)

    # ── baseline and predictions ──────────────────────────────────────────────────────────────────────────────

    def _run_baseline(self) -> BaselineResult:
        if not self._trials():
            self._store.save_trial(self._row(self._ledger.ask_baseline()))
        task = self._plan.baseline_task()
        result = from_json(BaselineResult, self._result_of(task))
        self._observer.notice(_conditions(result.measurement.environment))
        row = self._trials()[0]
        if row.state is TrialState.RUNNING:
            self._finish(row, TrialOutcome.of_baseline(result, self._plan.objectives))
        return result

    def _predict(self, baseline: BaselineResult) -> Predictions:
        outputs = target_outputs(baseline.measurement, self._plan.workload.search_sample())
        traces = []
        for name in self._plan.space.draft_names:
            try:
                traces.append(self._trace(name, outputs, baseline.measurement.environment))
            except EngineError as error:
                self._observer.notice(f"{name} cannot be replayed and is explored without predictions: {error.message}")
        return Predictions.of(baseline, traces)

    def _trace(self, draft: str, outputs: tuple[TargetOutput, ...], environment: Mapping[str, str]) -> TraceResult:
        """The draft's trace: from the store where any study made it, else made now; its steps are timed here."""
        key = self._plan.trace_key(draft, outputs, environment)
        found = find_trace(self._store, key, self._plan.deepest)
        task = self._plan.trace_task(draft, () if found else outputs)
        if found and not self._is_done(task):
            self._observer.notice(f"{draft}: its acceptance trace {key.key} is in the database and is not made again")

        def kept(result: bytes) -> bytes:
            made = from_json(TraceResult, result)
            return to_json(referring(made, found) if found else self._keep_trace(made, key))

        return whole(self._store, from_json(TraceResult, self._result_of(task, kept)))

    def _keep_trace(self, made: TraceResult, key: TraceKey) -> TraceResult:
        provenance = {
            **self._study.provenance,
            "study": self._plan.name,
            "target": self._plan.target_name,
            "workload": self._plan.workload.name,
            "made_at": utc_now().isoformat(),
        }
        return keep_trace(self._store, made, key, provenance)

    # ── trials ────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_configurations(self, baseline: BaselineResult, predictions: Predictions) -> None:
        for row in self._trials():
            if row.state is TrialState.RUNNING:
                self._run_trial(row, baseline)
        first = min(PREDICTED_FIRST, self._plan.max_trials - 1)  # the baseline is one of them
        for speculation in predictions.most_promising(self._plan.space.configurations(), first):
            self._ledger.enqueue(speculation, predictions.metrics(speculation))
        repeats = 0
        while self._untried() and len(self._tried()) < self._plan.max_trials:
            asked = self._ledger.ask()
            row = self._row(asked, predictions.metrics(asked.speculation))
            repeated = self._answer_from_store(row)
            repeats = repeats + 1 if repeated else 0
            if not repeated:
                self._store.save_trial(row)
                self._run_trial(row, baseline)
            elif repeats >= MAX_REPEATS_IN_A_ROW:
                untried = self._untried()
                self._ledger.enqueue((predictions.ranked(untried) or untried)[0])
        if not self._untried():
            self._observer.notice("every configuration of the space was tried")

    def _run_trial(self, row: TrialRecord, baseline: BaselineResult) -> None:
        task = self._plan.measure_task(row.speculation)
        try:
            result = from_json(MeasureResult, self._result_of(task))
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

    def _conclude(self, predictions: Predictions) -> SearchResult:
        measured = [trial for trial in self._tried().values() if trial.state is TrialState.COMPLETE]
        best = max(measured, key=lambda trial: trial.metrics.get("speedup") or 0.0)
        certified = None if best.speculation.is_baseline else self._certify(best)
        if certified is None:
            decision = no_winner(measured, margin=self._plan.margin)
        else:
            decision = decide(
                certified,
                best.speculation,
                repetition_expected=self._plan.workload.repetition_expected,
                margin=self._plan.margin,
            )
        front = front_members(measured, self._untried(), predictions, self._plan.objectives)
        conclusion = {
            "decision": json.loads(to_json(decision)),
            "trial": best.number if decision.recommends else None,
            "candidate": None if best.speculation.is_baseline else best.number,
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
        )

    def _certify(self, best: TrialRecord) -> CertifyResult:
        task = self._plan.certify_task(best.speculation)
        return from_json(CertifyResult, self._result_of(task))

    # ── stages ────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_done(self, task: StageTask) -> bool:
        stored = self._store.stage(task.study_name, task.kind, task.key)
        return stored is not None and stored.result is not None

    def _result_of(self, task: StageTask, kept: Callable[[bytes], bytes] = bytes) -> bytes:
        """The stage's result: from the store when it is done, else from a worker, stored before anything else.

        Args:
            task: What to run.
            kept: Makes of a worker's result what the stage keeps of it.
        """
        stored = self._store.stage(task.study_name, task.kind, task.key)
        if stored is not None and stored.result is not None:
            return stored.result
        for attempt in _attempts(stored):
            row = StageRecord(study_name=task.study_name, kind=task.kind, key=task.key, attempt=attempt)
            self._store.save_stage(row)
            status = _kept(self._wait(replace(task, attempt=attempt)), kept)
            self._store.save_stage(_ended(row, status))
            self._dispatcher.forget(replace(task, attempt=attempt))  # its result is safe; what it held is free again
            if status.result is not None:
                return status.result
            if not isinstance(status.error, WorkerLostError):
                raise status.error or DispatchError(f"stage {task.name} ended without a result")
            self._observer.notice(f"{status.error.message}; attempt {attempt + 1} of {MAX_ATTEMPTS}")
        raise WorkerLostError(
            f"stage {task.kind} of {task.config.speculation.label} lost its worker {MAX_ATTEMPTS} times",
            "the results so far are kept; run the same command again once the machine is well",
        )

    def _wait(self, task: StageTask) -> StageStatus:
        progress = self._observer.stage_began(task)
        try:
            return wait_for(self._dispatcher, task, progress)
        finally:
            self._observer.stage_ended(task)


def _conditions(environment: Mapping[str, str]) -> str:
    """What the engine says of itself, for the person who waits."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in environment.items())
    return f"measured with {facts}"


def _attempts(stored: StageRecord | None) -> Iterator[int]:
    """Attempts of this run: numbered on from those of earlier runs, so that each has a name of its own."""
    first = 0 if stored is None else stored.attempt + 1
    return iter(range(first, first + MAX_ATTEMPTS))


def _kept(status: StageStatus, kept: Callable[[bytes], bytes]) -> StageStatus:
    """The status with what is kept of its result; failed where the result contradicts itself."""
    if status.result is None:
        return status
    try:
        return replace(status, result=kept(status.result))
    except EngineError as error:
        return replace(status, result=None, error=error)


def _ended(row: StageRecord, status: StageStatus) -> StageRecord:
    error: TunerError | None = status.error
    return replace(
        row,
        state=StageState.DONE if error is None else StageState.FAILED,
        ended_at=utc_now(),
        result=status.result,
        error_type=None if error is None else type(error).__name__,
        error=None if error is None else str(error),
    )
