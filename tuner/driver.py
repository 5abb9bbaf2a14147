"""The search: baseline, traces, predictions, trials, certification, verdict.

Every step is resumable. When a stage ends, its result is stored, then the worker forgets it; when a trial ends, our
row is written, then Optuna is told. Whatever dies in between, the same command goes on from the last row. Trials are
works that wait for their stages; the driver moves all of them on and waits for none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.decide import Decision, no_winner
from tuner.dispatch import Dispatcher
from tuner.errors import ArtifactMissingError, DispatchError, TunerError, WorkerLostError
from tuner.evidence import Evidence
from tuner.lookout import Lookout
from tuner.objective import deciding
from tuner.observer import Observer, SilentObserver
from tuner.outcome import Sharpening, TrialOutcome, estimated_gains, front_members, seen_at, sharpened
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
from tuner.speculation import Speculation, content_key
from tuner.stages import StageRunner, Wanted, Work, is_final
from tuner.stopping import Reason, Spent, StopKind
from tuner.store import ParetoEntry, StudyRecord, TrialRecord, TrialState, TrialStore
from tuner.study import Asked, TrialLedger, distributions
from tuner.timetable import Phase
from tuner.tracing import Tracer
from tuner.trial import StageTask
from tuner.trial_book import TrialBook
from tuner.works import StopAsked, Works

MAX_REPEATS_IN_A_ROW = 3
"""After so many repeated suggestions the best untried prediction is enqueued instead of asking on."""

MOST_LOST_IN_A_ROW = 2
"""Configurations given up for lost workers, with no success between: then the machines are at fault, not they."""


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
    """One search over one study.

    Args:
        stop_asked: Looked at some times a second; see ``works.StopAsked``.
        sleep: Between two looks at what runs.
    """

    def __init__(
        self,
        plan: SearchPlan,
        store: TrialStore,
        ledger: TrialLedger,
        dispatcher: Dispatcher,
        observer: Observer | None = None,
        provenance: Mapping[str, Any] | None = None,
        *,
        stop_asked: Callable[[], StopAsked | None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._store = store
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._observer = observer or SilentObserver()
        self._study = new_study(plan, provenance)
        self._stages = StageRunner(store, dispatcher, self._observer, retry_failed=plan.retry_failed)
        self._works = Works(self._stages, stop_asked, sleep)
        self._trials = TrialBook(store, ledger, self._observer, plan.name, plan.space.configurations())
        self._tracer = Tracer(plan, store, self._stages, self._observer, self._study.provenance)
        self._lookout = Lookout(plan, self._stages, self._trials, dispatcher, self._observer)
        self._lost_in_a_row: set[str] = set()
        self._to_retry: list[Speculation] = []

    def run(self) -> SearchResult:
        """Go on from wherever the study is, to its verdict.

        Raises:
            StudyMismatchError: The stored study was started with other settings.
            EngineError: The baseline itself cannot run.
            DispatchError: Workers are lost again and again, or no machine offers what a stage needs.
            SearchStoppedError: Somebody asked it to stop.
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
            DispatchError: As ``run``.
            SearchStoppedError: Somebody asked it to stop.
        """
        self._lookout.last = Phase.TRACES
        baseline, traces = self._begin()
        predictions = sharpened(Predictions.of(baseline, traces), self._trials.all)
        configurations = tuple(one for one in self._plan.space.configurations() if not one.is_baseline)
        return PredictedStudy(
            study=self._store.study(self._plan.name),
            trials=self._trials.all,
            predictions=predictions,
            configurations=configurations,
            gaps=predictions.gaps(configurations, traces),
            concurrency=deciding(self._plan.objectives).load,
        )

    def _begin(self) -> tuple[BaselineResult, tuple[TraceResult, ...]]:
        self._study = self._store.add_study(self._study)
        self._stages.scope = content_key([self._study.spec_key, self._study.created_at.isoformat()])
        self._stages.recall(self._plan.name)
        self._trials.recall()
        for notice in self._plan.notices:
            self._observer.notice(notice)
        self._dispatcher.check(self._plan.all_needs)
        self._tell(Phase.BASELINE)
        (baseline,) = self._works.finish([self._baseline()])
        self._tell(Phase.TRACES)
        tracing = self._tracer.works(baseline, self._with_artifacts)
        return baseline, tuple(one for one in self._works.finish(tracing) if one is not None)

    # ── stages with what they load ────────────────────────────────────────────────────────────────────────────────

    def _with_artifacts(self, wanted: Wanted) -> Work[bytes]:
        """A stage after the compiles that it needs; where an artifact is gone meanwhile, it is compiled anew."""
        yield from self._compiled(wanted.task, is_anew=False)
        try:
            return (yield wanted)
        except ArtifactMissingError as error:
            self._observer.notice(f"{error.message}; it is compiled again")
            yield from self._compiled(wanted.task, is_anew=True)
            return (yield wanted)

    def _compiled(self, task: StageTask, *, is_anew: bool) -> Work[None]:
        for compile_task in self._plan.compile_tasks(task):
            # without the baseline there is no search: starting it again is the wish to try again
            yield Wanted(task=compile_task, is_anew=is_anew, is_retried=task.kind is StageKind.BASELINE)

    # ── baseline ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _baseline(self) -> Work[BaselineResult]:
        if not self._trials.all:
            self._trials.open(self._ledger.ask_baseline())
        result = from_json(BaselineResult, (yield from self._with_artifacts(Wanted(task=self._plan.baseline_task()))))
        self._observer.notice(_conditions(result.measurement.environment))
        row = self._trials.all[0]
        if row.state is TrialState.RUNNING:
            self._trials.finish(row, TrialOutcome.of_baseline(result, self._plan.objectives))
        return result

    # ── trials ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_configurations(self, baseline: BaselineResult, predictions: Predictions) -> Reason:
        self._use_sampler(predictions)
        self._sharpening = Sharpening(predictions)
        for row in self._trials.running:
            self._works.start(self._trial(row, baseline))
        self._to_retry = self._failed() if self._plan.retry_failed else []
        if self._plan.sampler != REPLAY:  # other samplers know nothing of predictions, so they are given the best one
            self._enqueue_best(predictions)
        most = self._most_in_flight()
        while True:
            while len(self._trials.in_flight) < most and self._may_try_another():
                self._try_next(baseline, predictions)
            if not self._works:
                break
            self._tell(Phase.TRIALS)
            self._works.wait_for_any()
        stopped = self._why_stop()
        self._observer.notice(f"no more configurations are tried: {stopped.text}")
        return stopped

    def _use_sampler(self, predictions: Predictions) -> None:
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

    def _enqueue_best(self, predictions: Predictions) -> None:
        for speculation in predictions.ranked(self._plan.space.configurations())[:1]:
            self._ledger.enqueue(speculation, predictions.metrics(speculation))

    def _tell(self, phase: Phase) -> None:
        self._lookout.tell(phase, self._spent(), self._most_in_flight())

    def _most_in_flight(self) -> int:
        """Trials at once: as many as are measured and compiled beside each other, unless fewer are asked for."""
        measured = self._dispatcher.capacity(self._plan.needs(StageKind.MEASURE))
        compiled = self._dispatcher.capacity(self._plan.needs(StageKind.COMPILE)) if self._plan.compiling else 0
        return min(measured + compiled, self._plan.parallel or measured + compiled)

    def _may_try_another(self) -> bool:
        """Whether asking now makes sense, with what is known and with what runs."""
        if self._to_retry:  # tried already, and a person wishes it
            return True
        spent = self._spent()
        spent = replace(spent, seconds=spent.seconds + sum(run.status.ran_s for run in self._stages.running))
        if self._plan.budget.exhausted_by(spent) is not None:
            return False
        wants_more = self._ledger.wants_more() if self._works else self._ledger.finished() is None
        return wants_more and bool(self._trials.untried)

    def _why_stop(self) -> Reason:
        if not self._trials.untried:
            return Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")
        found = self._ledger.finished() or self._plan.budget.exhausted_by(self._spent())
        return found or Reason(kind=StopKind.ALL_TRIED, text="nothing is left to try")

    def _spent(self) -> Spent:
        stages = [one for one in self._stages.ended if one.kind is not StageKind.CERTIFY]
        seconds = sum((one.ended_at - one.started_at).total_seconds() for one in stages if one.ended_at is not None)
        tried = len(self._trials.taken())
        compiles = tried
        if self._plan.compiling is not None:
            compiles = self._stages.compiles + sum(run.task.kind is StageKind.COMPILE for run in self._stages.running)
        return Spent(trials=tried, compiles=compiles, seconds=seconds)

    def _try_next(self, baseline: BaselineResult, predictions: Predictions) -> None:
        asked = self._ledger.ask_again(self._to_retry.pop(0)) if self._to_retry else self._ask(baseline, predictions)
        row = self._trials.open(asked, self._sharpening.metrics(asked.speculation, self._trials.measured))
        self._works.start(self._trial(row, baseline))

    def _ask(self, baseline: BaselineResult, predictions: Predictions) -> Asked:
        """The next configuration that was not tried yet; those that were, or are now, share what came of the first."""
        for _ in range(MAX_REPEATS_IN_A_ROW):
            asked = self._ledger.ask()
            if asked.speculation.key not in self._trials.taken():
                return asked
            row = self._trials.open(asked, predictions.metrics(asked.speculation))
            earlier = self._trials.answered.get(asked.speculation.key)
            if earlier is not None:
                self._trials.repeat(row, earlier)
            else:
                self._works.start(self._trial(row, baseline))
        untried = self._trials.untried
        return self._ledger.ask_again((predictions.ranked(untried) or untried)[0])

    def _failed(self) -> list[Speculation]:
        """Configurations that could not run and are not being tried."""
        in_flight = self._trials.in_flight
        rows = (row for row in self._trials.answered.values() if row.state is TrialState.INFEASIBLE)
        return [row.speculation for row in rows if row.speculation.key not in in_flight]

    def _trial(self, row: TrialRecord, baseline: BaselineResult) -> Work[None]:
        before = self._trials.answered.get(row.speculation.key)
        outcome = yield from self._outcome(row, baseline)
        earlier = self._trials.answered.get(row.speculation.key)
        is_retried = earlier is not None and earlier is before and earlier.state is TrialState.INFEASIBLE
        if earlier is not None and not is_retried:  # another trial of the same configuration ended first
            self._trials.repeat(row, earlier)
            return
        self._trials.finish(row, outcome)
        if (standing := self._ledger.standing()) is not None:
            self._lookout.standing(standing)

    def _outcome(self, row: TrialRecord, baseline: BaselineResult) -> Work[TrialOutcome]:
        try:
            wanted = Wanted(task=self._plan.measure_task(row.speculation))
            result = from_json(MeasureResult, (yield from self._with_artifacts(wanted)))
            outcome = TrialOutcome.of_candidate(
                baseline, result, self._plan.objectives, self._plan.workload.repetition_expected
            )
        except TunerError as error:
            if not is_final(error) and not self._gives_up(row.speculation, error):
                raise
            return TrialOutcome.infeasible(error)
        self._lost_in_a_row.clear()
        return outcome

    def _gives_up(self, speculation: Speculation, error: TunerError) -> bool:
        """Whether only this configuration is given up, though it is a machine that failed."""
        if not isinstance(error, WorkerLostError):
            return False
        self._lost_in_a_row.add(speculation.key)
        if len(self._lost_in_a_row) >= MOST_LOST_IN_A_ROW:
            raise DispatchError(
                f"{len(self._lost_in_a_row)} configurations in a row lost their workers; the last: {error.message}",
                "the results so far are kept; run the same command again once the machines are well",
            ) from error
        return True

    # ── verdict ───────────────────────────────────────────────────────────────────────────────────────────────

    def _conclude(
        self, baseline: BaselineResult, traces: Sequence[TraceResult], predictions: Predictions, stopped: Reason
    ) -> SearchResult:
        measured = self._trials.measured
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
        front = front_members(measured, self._trials.untried, predictions, self._plan.objectives)
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
            baseline=self._trials.all[0],
            recommended=best if decision.recommends else None,
            trials=self._trials.all,
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
        results = {key: from_json(MeasureResult, self._stages.stored(task) or b"") for key, task in tasks.items()}
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
        if tasks:
            self._tell(Phase.CERTIFICATION)
        results = self._works.finish([self._with_artifacts(Wanted(task=task)) for task in tasks])
        return tuple(from_json(CertifyResult, result) for result in results)


def _conditions(environment: Mapping[str, str]) -> str:
    """What the engine says of itself, for the person who waits."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in environment.items())
    return f"measured with {facts}"
