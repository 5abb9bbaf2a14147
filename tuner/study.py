"""The Optuna study: a projection of our trials that samplers learn from and optuna-dashboard shows.

Our store is the truth. ``reconcile`` repairs this projection, or rebuilds it where it is gone.
"""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, create_trial
from optuna.trial import TrialState as OptunaState

from tuner.errors import StorageError, StudyMismatchError
from tuner.forecast import Key, Outlook
from tuner.objective import Objective
from tuner.patience import Patience
from tuner.samplers import DRAFT, TOKENS, ReplaySampler, finished
from tuner.search_space import SearchSpace
from tuner.speculation import NO_SPECULATION, Speculation
from tuner.stopping import Reason, Standing
from tuner.store import TrialRecord, TrialState

logger = logging.getLogger(__name__)

DRAFT_ATTRIBUTE = "draft:"
CONSTRAINT = "cannot_run"
PENALTY_FACTOR = 2.0
"""A configuration that cannot run is told no better than twice the baseline. Much more would wreck a GP's scaling."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A configuration that Optuna asks for, under the number that it gave."""

    number: int
    speculation: Speculation


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The search space as Optuna knows it: flat, with k asked for even where the draft is ``none``."""
    bounds = space.num_speculative_tokens
    return {DRAFT: CategoricalDistribution(space.choices), TOKENS: IntDistribution(bounds.min, bounds.max)}


def open_optuna_storage(url: str | None, patience: Patience | None = None) -> BaseStorage:
    """Optuna's storage in the same database as our tables; in memory where there is no database.

    Raises:
        StorageError: The database does not answer.
    """
    if url is None:
        return InMemoryStorage()
    arguments = {"connect_args": {"timeout": 30}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        return (patience or Patience()).call(lambda: RDBStorage(url, engine_kwargs=arguments))
    except (optuna.exceptions.StorageInternalError, ImportError) as error:
        raise StorageError(f"Optuna cannot use the database: {type(error).__name__}", "see --storage") from error


def close_optuna_storage(storage: BaseStorage) -> None:
    """Release its connections."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Method = Callable[Concatenate["TrialLedger", _P], _T]


def _patient(method: _Method[_P, _T]) -> _Method[_P, _T]:
    """Repeat a method of the ledger until the database can be reached; it must be safe to repeat."""

    @functools.wraps(method)
    def call(self: TrialLedger, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._patience.call(lambda: method(self, *args, **kwargs))

    return call


class TrialLedger:
    """One Optuna study, asked and told by number.

    Where Optuna's database cannot be reached, each call waits as long as ``patience`` says.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: SearchSpace,
        objectives: Sequence[Objective],
        patience: Patience | None = None,
    ) -> None:
        self._study = study
        self._space = space
        self._distributions = distributions(space)
        self._objectives = tuple(objectives)
        self._patience = patience or Patience()
        self._given: set[int] = set()  # trials that the caller knows of

    @classmethod
    def open(
        cls,
        storage: BaseStorage,
        name: str,
        space: SearchSpace,
        objectives: Sequence[Objective],
        patience: Patience | None = None,
    ) -> Self:
        """Create the study, or open the one of that name. It asks at random until it is told to ``use`` a sampler.

        Raises:
            StudyMismatchError: Another program made an Optuna study of that name in the same database.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of a lost database with whole statements
        patience = patience or Patience()
        study = patience.call(lambda: _opened(storage, name, space, objectives))
        return cls(study, space, objectives, patience)

    def use(self, sampler: BaseSampler) -> None:
        """Ask this sampler from now on."""
        self._study.sampler = sampler

    @_patient
    def finished(self) -> Reason | None:
        """Why nothing more is worth a trial; None while something is, or where the sampler cannot tell."""
        return finished(self._study)

    @_patient
    def wants_more(self) -> bool:
        """Whether asking now makes sense although trials are running: always, where the sampler cannot tell."""
        sampler = self._study.sampler
        if not isinstance(sampler, ReplaySampler):
            return True
        return bool(sampler.worth_measuring(self._study) or sampler.unpredicted(self._study))

    @_patient
    def standing(self) -> Standing | None:
        """The best so far and what could still beat it; None where the sampler cannot tell."""
        sampler = self._study.sampler
        if not isinstance(sampler, ReplaySampler):
            return None
        outlook = next(iter(sampler.outlooks(self._study).values()), None)
        if outlook is None:
            return None
        worth = sampler.worth_measuring(self._study)
        others = set(sampler.unpredicted(self._study)).difference(worth)
        return replace(self._standing(outlook, worth), num_unpredicted=len(others))

    def _standing(self, outlook: Outlook, worth: Sequence[Key]) -> Standing:
        best, first = outlook.incumbent_key, next((key for key in worth if key in outlook.keys), None)
        made = Standing(
            best=None if best is None else self._space.speculation(*best),
            best_speedup=1.0 if best is None else outlook.expected_speedup(best),
            num_open=len(worth),
        )
        if first is None:
            return made
        return replace(
            made,
            most_promising=self._space.speculation(*first),
            most_promising_speedup=outlook.expected_speedup(first),
            most_promising_bound=outlook.speedup_bound(first),
        )

    @_patient
    def enqueue(self, speculation: Speculation, predicted: Mapping[str, float] | None = None) -> None:
        """Have this configuration asked for next, unless it was asked for or enqueued before."""
        self._study.enqueue_trial(
            self._parameters(speculation), user_attrs={"predicted": dict(predicted or {})}, skip_if_exists=True
        )

    @_patient
    def ask_baseline(self) -> Asked:
        """No speculation, as trial 0 of an empty study; asking again before it is told gives the same trial."""
        trials = self._study.get_trials(deepcopy=False)
        if not trials:
            self.enqueue(NO_SPECULATION)
        if not trials or trials[0].state is OptunaState.WAITING:
            self.ask()
        elif trials[0].state is OptunaState.RUNNING:
            self._suggest(Trial(self._study, trials[0]._trial_id))  # the driver may have died in the middle of asking
        return Asked(0, NO_SPECULATION)

    def ask(self) -> Asked:
        """The configuration to try next. It may repeat an earlier one: the caller answers those from the store."""
        attempts = itertools.count()
        return self._patience.call(lambda: self._ask(is_repeated=next(attempts) > 0))

    def ask_again(self, speculation: Speculation) -> Asked:
        """A trial of this configuration, whether or not it was asked for before."""
        self._enqueue_unless_waiting(self._parameters(speculation))
        return self.ask()

    @_patient
    def tell(self, trial: TrialRecord) -> None:
        """Tell Optuna what became of a trial, from our row; telling twice changes nothing."""
        frozen = self._frozen(trial.number)
        if frozen is None or frozen.state.is_finished():
            return
        for name, value in _attributes(trial).items():
            self._study._storage.set_trial_user_attr(frozen._trial_id, name, value)
        if trial.state is TrialState.LOST:
            self._finish(trial.number, None, OptunaState.FAIL)
            return
        self._set_constraint(frozen, violated=trial.state is TrialState.INFEASIBLE)
        self._finish(trial.number, self._values(trial), OptunaState.COMPLETE)

    @_patient
    def reconcile(self, trials: Sequence[TrialRecord]) -> None:
        """Make the projection agree with our rows after a driver died, or rebuild it where it is gone."""
        rows = {trial.number: trial for trial in trials}
        frozen = self._study.get_trials(deepcopy=False)
        for number in range(len(frozen), max(rows, default=-1) + 1):
            self._study.add_trial(self._rebuilt(rows.get(number)))
        for one in self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            row = rows.get(one.number)
            if row is None and one.number > 0:  # the driver died between Optuna's row and ours
                logger.info("trial %d was asked for but never kept; it is dropped", one.number)
                self._finish(one.number, None, OptunaState.FAIL)
            elif row is not None and row.state is not TrialState.RUNNING:
                self.tell(row)
            else:
                self._given.add(one.number)

    def _ask(self, *, is_repeated: bool) -> Asked:
        begun = self._begun() if is_repeated else None
        trial = self._study.ask() if begun is None else Trial(self._study, begun._trial_id)
        asked = Asked(trial.number, self._suggest(trial))
        self._given.add(asked.number)
        return asked

    def _begun(self) -> FrozenTrial | None:
        """The trial in whose making the database was lost: it runs, and nobody was told of it."""
        running = self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,))
        return next((one for one in running if one.number not in self._given), None)

    def _suggest(self, trial: Trial) -> Speculation:
        """Choose what of the trial's configuration is not chosen yet."""
        bounds = self._space.num_speculative_tokens
        draft = trial.suggest_categorical(DRAFT, self._space.choices)
        return self._speculation({DRAFT: draft, TOKENS: trial.suggest_int(TOKENS, bounds.min, bounds.max)})

    @_patient
    def _enqueue_unless_waiting(self, parameters: Mapping[str, Any]) -> None:
        waiting = self._study.get_trials(deepcopy=False, states=(OptunaState.WAITING,))
        if all(one.system_attrs.get("fixed_params") != parameters for one in waiting):
            self._study.enqueue_trial(dict(parameters))

    def _parameters(self, speculation: Speculation) -> dict[str, Any]:
        tokens = max(speculation.drafted_tokens, self._space.num_speculative_tokens.min)
        return {DRAFT: speculation.draft_name, TOKENS: tokens}

    def _speculation(self, parameters: Mapping[str, Any]) -> Speculation:
        return self._space.speculation(str(parameters[DRAFT]), int(parameters[TOKENS]))

    def _frozen(self, number: int) -> FrozenTrial | None:
        trials = self._study.get_trials(deepcopy=False)
        return trials[number] if number < len(trials) else None

    def _finish(self, number: int, values: Sequence[float] | None, state: OptunaState) -> None:
        try:
            self._study.tell(number, values, state=state, skip_if_finished=True)
        except RuntimeError as error:
            # Grid samplers end a space by `study.stop()`, which works only inside `optimize`; the trial is stored.
            if "stop" not in str(error).lower():
                raise

    def _set_constraint(self, frozen: FrozenTrial, *, violated: bool) -> None:
        storage = self._study._storage
        value = 1.0 if violated else 0.0
        storage.set_trial_system_attr(frozen._trial_id, f"constraints:{CONSTRAINT}", value)
        # optuna-dashboard 0.21 reads only the older list
        storage.set_trial_system_attr(frozen._trial_id, "constraints", [value])

    def _values(self, trial: TrialRecord) -> list[float]:
        if trial.state is TrialState.COMPLETE:
            return [trial.values[objective.name] for objective in self._objectives]
        return [self._penalty(index) for index in range(len(self._objectives))]

    def _penalty(self, index: int) -> float:
        """Worse than everything that ran, yet on its scale: the worst value seen, or twice the baseline's."""
        seen = [
            trial.values[index]
            for trial in self._study.get_trials(deepcopy=False, states=(OptunaState.COMPLETE,))
            if all(value <= 0 for value in trial.constraints.values())
        ]
        if self._objectives[index].direction == "maximize":
            return min([*seen, *(value / PENALTY_FACTOR for value in seen[:1])], default=0.0)
        return max([*seen, *(value * PENALTY_FACTOR for value in seen[:1])], default=0.0)

    def _rebuilt(self, row: TrialRecord | None) -> FrozenTrial:
        if row is None:
            return create_trial(state=OptunaState.FAIL)
        state = {TrialState.RUNNING: OptunaState.RUNNING, TrialState.LOST: OptunaState.FAIL}.get(
            row.state, OptunaState.COMPLETE
        )
        violated = float(row.state is TrialState.INFEASIBLE)
        return create_trial(
            state=state,
            params=self._parameters(row.speculation),
            distributions=self._distributions,
            values=self._values(row) if state is OptunaState.COMPLETE else None,
            user_attrs=_attributes(row),
            system_attrs={f"constraints:{CONSTRAINT}": violated, "constraints": [violated]},
        )


def _opened(storage: BaseStorage, name: str, space: SearchSpace, objectives: Sequence[Objective]) -> optuna.Study:
    directions = [objective.direction for objective in objectives]
    study = optuna.create_study(
        storage=storage, study_name=name, load_if_exists=True, directions=directions, sampler=RandomSampler()
    )
    _refuse_foreign(study, directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([objective.name for objective in objectives])
    for draft in space.drafts:  # the table behind the short ids
        study.set_user_attr(f"{DRAFT_ATTRIBUTE}{draft.name}", draft.model_dump(mode="json"))
    return study


def _refuse_foreign(study: optuna.Study, directions: Sequence[str]) -> None:
    """Refuse an Optuna study that the tuner did not make: its trials would be taken for ours."""
    found = [direction.name.lower() for direction in study.directions]
    is_ours = any(name.startswith(DRAFT_ATTRIBUTE) for name in study.user_attrs)
    if found != list(directions) or (study.get_trials(deepcopy=False) and not is_ours):
        raise StudyMismatchError(
            f"this database holds an Optuna study named {study.study_name!r} that is not this search's: "
            f"it would {', '.join(found)} {len(found)} values",
            "give another --name, or another --storage",
        )


def _attributes(trial: TrialRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"configuration": trial.speculation.label, "config_key": trial.speculation.key}
    found |= {name: value for name, value in trial.metrics.items() if value is not None}
    found |= {f"predicted_{name}": value for name, value in trial.predicted.items()}
    if trial.duplicate_of is not None:
        found["duplicate_of"] = trial.duplicate_of
    if trial.error is not None:
        found["error"] = trial.error
    return found
