"""For people who have a Ray Tune set-up: a searcher that asks our samplers, and a trainable that measures.

``tuner search`` does not use Tune; ``docs/ray-tune.md`` says how to use this, and what Tune loses. Importing this
module imports ``ray.tune``, which takes seconds, so nothing else of the package imports it.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.search import Searcher

from tuner.api import open_result, plan_search, run_prediction
from tuner.errors import NotFoundError, TunerError, WorkerLostError
from tuner.objective import Objective
from tuner.observer import Observer
from tuner.outcome import TrialOutcome
from tuner.plan import SearchPlan
from tuner.predictions import Predictions
from tuner.records import BaselineResult, MeasureResult, StageKind, from_json
from tuner.samplers import DRAFT, EPSILON, TOKENS, SamplerName, make_sampler
from tuner.search_options import SearchOptions
from tuner.search_space import SearchSpace
from tuner.speculation import Speculation
from tuner.stages import MAX_ATTEMPTS, is_final
from tuner.stopping import Reason, StopKind
from tuner.store import TrialRecord, TrialState, utc_now
from tuner.stored import StoredStudy
from tuner.study import CONSTRAINT, TrialLedger, distributions, open_optuna_storage
from tuner.trial import StageTask, run_stage

logger = logging.getLogger(__name__)

STUDY_NAME = "ray-tune"
CANNOT_RUN = CONSTRAINT
"""Metric of a trial: 1 where its configuration cannot run, whatever the machine."""

ERROR, ERROR_TYPE = "error", "error_type"
MAX_REPEATS_IN_A_ROW = 3
"""After so many repeated suggestions of a sampler the best prediction that is left is suggested."""

ANSWERED = (TrialState.COMPLETE, TrialState.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSearch:
    """A search up to its predictions, from where Tune goes on.

    Attributes:
        baseline: No speculation, as measured.
        predictions: As the baseline and the traces give them; what was measured since is in ``trials``.
        trials: Of the study so far, the baseline first.
    """

    plan: SearchPlan
    baseline: BaselineResult
    predictions: Predictions
    trials: tuple[TrialRecord, ...]

    @classmethod
    def of(cls, plan: SearchPlan, study: StoredStudy) -> PreparedSearch:
        """From a stored study of the plan.

        Raises:
            NotFoundError: Its baseline was not measured yet.
        """
        if study.baseline_result is None:
            raise NotFoundError(f"study {plan.name!r} has no baseline yet", "run `tuner predict` with the same options")
        predictions = Predictions.of(study.baseline_result, study.traces)
        return cls(plan=plan, baseline=study.baseline_result, predictions=predictions, trials=study.trials)

    def searcher(self, sampler: SamplerName | None = None) -> ReplaySearcher:
        """What Tune asks for configurations; None takes the plan's sampler."""
        return ReplaySearcher(
            self.plan.space,
            self.plan.objectives,
            self.predictions,
            self.trials,
            sampler=sampler or self.plan.sampler,
            epsilon=self.plan.epsilon,
            seed=self.plan.seed,
        )


def prepare_search(options: SearchOptions, observer: Observer | None = None) -> PreparedSearch:
    """Measure the baseline and trace every draft, where the study has neither yet, as ``tuner predict`` does.

    With ``dispatch="ray"`` and no address a local Ray is started for it, and stopped again; where Ray runs in this
    process already, give another ``dispatch``.

    Raises:
        TunerError: As ``run_prediction`` says.
    """
    plan = plan_search(options)
    run_prediction(options, observer)
    return PreparedSearch.of(plan, open_result(plan.name, options.storage))


# ── the searcher ──────────────────────────────────────────────────────────────────────────────────────────────────


class ReplaySearcher(Searcher):  # type: ignore[misc,unused-ignore]
    """Suggests the configuration most worth its compile, and is finished when none is.

    An Optuna study in memory is asked and told. Every trial of it ends: it is told FAIL where a result lacks an
    objective, is not finite, or comes with an error, and such a configuration is suggested again, up to three times;
    where the trial reports that its configuration ``cannot_run``, it is told complete with a violated constraint, and
    is not suggested again. No configuration is suggested twice while it runs or once it has a result.

    Tune saves the searcher's state with its own checkpoints. Give the run ``callbacks=[searcher.callback()]``: Tune
    tells searchers nothing of trials that it stops itself, at a time budget for one, and they would count as running.

    Args:
        predictions: Without what was measured, which ``trials`` tells.
        trials: Already known, numbered from 0; the baseline first.
        sampler: As ``tuner search --sampler``.
        epsilon: Gain over the best measured configuration that is not worth a trial.
    """

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[Objective],
        predictions: Predictions,
        trials: Sequence[TrialRecord],
        *,
        sampler: SamplerName = "replay",
        epsilon: float = EPSILON,
        seed: int = 0,
    ) -> None:
        # Tune ends the whole run where a result lacks a searcher's metric; here that is one trial's loss.
        super().__init__(metric=None, mode=None)
        self._space = space
        self._objectives = tuple(objectives)
        self._sampler = sampler
        self._settings: Mapping[str, Any] = {
            "seed": seed,
            "forecasts": predictions.forecasts(self._objectives),
            "has_unpredicted": bool(predictions.left_open(self._objectives)),
            "epsilon": epsilon,
        }
        candidates = space.configurations()
        ranked = predictions.ranked(candidates)
        self._candidates = (*ranked, *(one for one in candidates if one not in ranked))
        self._predicted = {one.key: predictions.metrics(one) for one in candidates}
        self._rows = {row.number: row for row in trials}
        self._running: dict[str, int] = {}
        self.finished_because: Reason | None = None
        self._open_study()

    def _open_study(self) -> None:
        self.optuna_storage = open_optuna_storage(None)
        self._ledger = TrialLedger.open(self.optuna_storage, STUDY_NAME, self._space, self._objectives)
        self._ledger.reconcile(self.trials)
        self._ledger.use(make_sampler(self._sampler, distributions(self._space), **self._settings))

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Every trial by number, with its values, metrics and predictions."""
        return tuple(self._rows[number] for number in sorted(self._rows))

    def callback(self) -> Callback:
        """For ``tune.RunConfig(callbacks=[...])``: ends trials that Tune stopped without a word to the searcher."""
        return _StoppedTrials(self)

    # ── Tune's questions ──────────────────────────────────────────────────────────────────────────────────────────

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The configuration to try; ``FINISHED`` when none is worth it, None while what runs has to tell."""
        if trial_id not in self._running:
            self.finished_because = self._why_finished()
            if self.finished_because is not None:
                logger.info("no more configurations are tried: %s", self.finished_because.text)
                return Searcher.FINISHED  # type: ignore[return-value]  # Tune's word for the end
            if not self._left() or not self._ledger.wants_more():
                return None
            self._running[trial_id] = self._ask().number
        return self._parameters(self._rows[self._running[trial_id]].speculation)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Results before the last one tell nothing."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the study what became of a trial; one that a restored Tune runs and this does not know is taken in."""
        number = self._running.pop(trial_id, None)
        if number is None:
            self._take_in(result or {}, error=error)
        else:
            row = self._rows[number]
            self._end(row, self._outcome(row.speculation, result or {}, error=error))

    def end_stopped(self, trial_ids: Iterable[str]) -> None:
        """Take these trials as lost, where they still count as running."""
        for trial_id in trial_ids:
            if trial_id in self._running:
                self._end(self._rows[self._running.pop(trial_id)], _lost("Tune stopped the trial"))

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, checkpoint_path: str) -> None:
        """Write the trials so far; Tune calls it with each of its checkpoints."""
        Path(checkpoint_path).write_bytes(pickle.dumps((self._rows, self._running)))

    def restore(self, checkpoint_path: str) -> None:
        """Go on from the trials that ``save`` wrote; those that ran then are running."""
        self._rows, self._running = pickle.loads(Path(checkpoint_path).read_bytes())  # noqa: S301 - Tune's own folder
        self._open_study()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the study, which is made again from the trials."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_ledger", "optuna_storage")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """See ``__getstate__``."""
        self.__dict__.update(state)
        self._open_study()

    # ── trials ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answered(self) -> dict[str, TrialRecord]:
        found: dict[str, TrialRecord] = {}
        for row in self.trials:
            if row.state in ANSWERED:
                found.setdefault(row.speculation.key, row)
        return found

    def _left(self) -> list[Speculation]:
        """Configurations that neither have a result nor run, the best prediction first."""
        taken = {*self._answered(), *(self._rows[number].speculation.key for number in self._running.values())}
        return [one for one in self._candidates if one.key not in taken]

    def _why_finished(self) -> Reason | None:
        if self._running:
            return None
        if not self._left():
            return Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")
        return self._ledger.finished()

    def _ask(self) -> TrialRecord:
        left = self._left()
        for _ in range(MAX_REPEATS_IN_A_ROW):
            asked = self._ledger.ask()
            row = self._keep(asked.number, asked.speculation)
            if row.speculation in left:
                return row
            self._answer(row)
        asked = self._ledger.ask_again(left[0])
        return self._keep(asked.number, asked.speculation)

    def _keep(self, number: int, speculation: Speculation) -> TrialRecord:
        predicted = self._predicted.get(speculation.key, {})
        row = TrialRecord(study_name=STUDY_NAME, number=number, speculation=speculation, predicted=predicted)
        self._rows[number] = row
        return row

    def _answer(self, row: TrialRecord) -> None:
        """End a suggestion that repeats another trial: with its result, or without where it still runs."""
        earlier = self._answered().get(row.speculation.key)
        if earlier is None:
            self._end(row, TrialOutcome(state=TrialState.LOST))
            return
        repeated = replace(earlier, number=row.number, duplicate_of=earlier.number, created_at=row.created_at)
        self._rows[row.number] = replace(repeated, ended_at=utc_now())
        self._ledger.tell(self._rows[row.number])

    def _end(self, row: TrialRecord, outcome: TrialOutcome) -> None:
        self._rows[row.number] = outcome.applied_to(row, utc_now())
        self._ledger.tell(self._rows[row.number])

    def _take_in(self, result: Mapping[str, Any], *, error: bool) -> None:
        """Learn from a trial that this did not suggest: one of an experiment state newer than the searcher's."""
        draft, tokens = result.get(f"config/{DRAFT}"), result.get(f"config/{TOKENS}")
        if draft not in self._space.choices or tokens is None:
            return
        speculation = self._space.speculation(str(draft), int(tokens))
        outcome = self._outcome(speculation, result, error=error)
        if outcome.state in ANSWERED and speculation.key not in self._answered():
            row = self._keep(max(self._rows, default=-1) + 1, speculation)
            self._rows[row.number] = outcome.applied_to(row, utc_now())
            self._ledger.reconcile(self.trials)

    def _outcome(self, speculation: Speculation, result: Mapping[str, Any], *, error: bool) -> TrialOutcome:
        values = {one.name: result.get(one.name) for one in self._objectives}
        bad = [name for name, value in values.items() if not _is_finite(value)]
        if not error and result.get(CANNOT_RUN):
            return TrialOutcome(
                state=TrialState.INFEASIBLE,
                error_type=str(result.get(ERROR_TYPE) or TunerError.__name__),
                error=str(result.get(ERROR) or "the configuration cannot run"),
            )
        if error or bad:
            reason = "the trial ended with an error" if error else f"it reported no finite {' and '.join(bad)}"
            return self._lost_or_given_up(speculation, reason)
        metrics = {
            name: float(value)
            for name, value in result.items()
            if _is_finite(value) and name not in AUTO_RESULT_KEYS and not name.startswith("config/")
        }
        return TrialOutcome(
            state=TrialState.COMPLETE,
            values={name: float(value) for name, value in values.items() if value is not None},
            metrics=metrics,
        )

    def _lost_or_given_up(self, speculation: Speculation, reason: str) -> TrialOutcome:
        """FAIL means "ask again"; what is lost each time would be asked for without end."""
        losses = [row for row in self.trials if row.speculation == speculation and row.state is TrialState.LOST]
        if sum(row.error is not None for row in losses) + 1 < MAX_ATTEMPTS:
            return _lost(reason)
        message = f"{speculation.label} was lost {MAX_ATTEMPTS} times; the last time {reason}"
        return TrialOutcome.infeasible(WorkerLostError(message, "see the trial's error file"))

    def _parameters(self, speculation: Speculation) -> dict[str, Any]:
        lowest = self._space.num_speculative_tokens.min
        return {DRAFT: speculation.draft_name, TOKENS: max(speculation.drafted_tokens, lowest)}


class _StoppedTrials(Callback):  # type: ignore[misc,unused-ignore]
    """Looks at the start of a run, which may be a restored one, and at its end for trials that Tune has stopped."""

    def __init__(self, searcher: ReplaySearcher) -> None:
        self._searcher = searcher
        self._has_looked = False

    def setup(self, *_arguments: Any, **_info: Any) -> None:
        """See ``Callback.setup``; a restored run comes here again."""
        self._has_looked = False

    def on_step_begin(self, iteration: int, trials: list[Any], **_info: Any) -> None:  # noqa: ARG002
        """See ``Callback.on_step_begin``."""
        if not self._has_looked:
            self._has_looked = True
            self._searcher.end_stopped(trial.trial_id for trial in trials if trial.is_finished())

    def on_experiment_end(self, trials: list[Any], **_info: Any) -> None:
        """See ``Callback.on_experiment_end``."""
        self._searcher.end_stopped(trial.trial_id for trial in trials)


def _lost(reason: str) -> TrialOutcome:
    return TrialOutcome(state=TrialState.LOST, error_type=WorkerLostError.__name__, error=reason)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


# ── the trainable ─────────────────────────────────────────────────────────────────────────────────────────────────


def search_trainable(prepared: PreparedSearch) -> Callable[[dict[str, Any]], None]:
    """A function trainable that reports what ``configuration_runner`` finds."""
    run_configuration = configuration_runner(prepared)

    def measure_configuration(config: dict[str, Any]) -> None:
        tune.report(run_configuration(config))

    return measure_configuration


def configuration_runner(prepared: PreparedSearch) -> Callable[[Mapping[str, Any]], dict[str, float | str]]:
    """Runs one configuration in this process: its compile, where the engine has one, and its measurement.

    It gives what a trial of ``tuner search`` has: each objective by its name, the columns of ``docs/metrics.md``,
    ``speedup`` with its limits, and ``cannot_run``, 0 or 1. A configuration that cannot run has no number as its
    objectives, ``error_type`` and ``error``. Any other failure is raised.
    """
    plan, baseline = prepared.plan, prepared.baseline
    work = {(one.draft_name, one.drafted_tokens): _tasks(plan, one) for one in plan.space.configurations()}
    objectives, repetition_expected = plan.objectives, plan.workload.repetition_expected

    def run_configuration(config: Mapping[str, Any]) -> dict[str, float | str]:
        try:
            measured = _measured(work[config[DRAFT], config[TOKENS]])
            outcome = TrialOutcome.of_candidate(baseline, measured, objectives, repetition_expected)
        except TunerError as error:
            if not is_final(error):
                raise
            outcome = TrialOutcome.infeasible(error)
        return _reported(outcome, objectives)

    return run_configuration


def _tasks(plan: SearchPlan, speculation: Speculation) -> tuple[StageTask, ...]:
    measure = plan.measure_task(speculation)
    return (*plan.compile_tasks(measure), measure)


def _measured(tasks: Sequence[StageTask]) -> MeasureResult:
    result = b""
    for task in tasks:
        os.environ.update(task.needs.environment)  # the process is this trial's own
        result = run_stage(task)
    return from_json(MeasureResult, result)


def _reported(outcome: TrialOutcome, objectives: Collection[Objective]) -> dict[str, float | str]:
    """What Tune is told of a trial; objectives without a value are not a number, since Tune wants each one named."""
    found: dict[str, float | str] = {one.name: math.nan for one in objectives}
    found |= {name: value for name, value in outcome.metrics.items() if value is not None}
    found |= outcome.values
    found[CANNOT_RUN] = float(outcome.state is TrialState.INFEASIBLE)
    if outcome.error is not None:
        found |= {ERROR_TYPE: outcome.error_type or "", ERROR: outcome.error}
    return found


def tune_resources(plan: SearchPlan, num_cpus: int | None = None) -> tune.PlacementGroupFactory:
    """What a trial of the trainable holds, in one bundle: its process sees the ids of its devices only so.

    Args:
        plan: Its hardware says what a measurement holds.
        num_cpus: Where a measurement takes every CPU of its machine; None takes those of the largest one in the
            cluster that this process is connected to, else of this machine.
    """
    needs = plan.needs(StageKind.MEASURE)
    cpus = needs.num_cpus if needs.num_cpus is not None else num_cpus or _most_cpus()
    memory = {"memory": float(needs.memory_bytes)} if needs.memory_bytes else {}
    return tune.PlacementGroupFactory([{"CPU": float(cpus), **needs.amounts, **memory}])


def _most_cpus() -> int:
    if not ray.is_initialized():
        return os.cpu_count() or 1
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return int(max(node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]))
