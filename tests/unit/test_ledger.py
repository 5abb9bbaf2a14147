"""The ledger of an Optuna study outlives an outage of its database, wherever in a call it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState as OptunaState

from tests.support.bench import SPACE
from tuner.errors import StorageUnreachableError
from tuner.objective import DEFAULT_OBJECTIVES
from tuner.patience import Patience
from tuner.samplers import DRAFT, TOKENS, ReplaySampler
from tuner.speculation import NO_SPECULATION
from tuner.store import TrialRecord, TrialState
from tuner.study import Asked, TrialLedger, distributions

WRITES = (
    "create_new_trial",
    "set_trial_state_values",
    "set_trial_param",
    "set_trial_user_attr",
    "set_trial_system_attr",
)
MOST_WRITES = 12
"""More than any call of the ledger makes."""


class CutStorage(InMemoryStorage):
    """Loses its server once, at the write that it is told to: before it, or after it was kept.

    Optuna's own storage raises an error of its own class then; that is tested with a real server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = -1
        self.is_kept = False

    def cut(self, after: int, *, is_kept: bool) -> None:
        self.writes_left, self.is_kept = after, is_kept

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._cutting(found) if name in WRITES else found

    def _cutting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            self.writes_left -= 1
            if self.writes_left != -1:
                return write(*args, **kwargs)
            if self.is_kept:
                write(*args, **kwargs)
            raise StorageUnreachableError("cut")

        return maybe


@pytest.fixture
def storage() -> CutStorage:
    return CutStorage()


@pytest.fixture
def ledger(storage: CutStorage) -> TrialLedger:
    return TrialLedger.open(storage, "study", SPACE, DEFAULT_OBJECTIVES, Patience(60, on_wait=lambda _text: None))


def trials_of(storage: CutStorage) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="study", storage=storage).get_trials()


def ended(asked: Asked, **changes: Any) -> TrialRecord:
    values = {objective.name: 1.0 for objective in DEFAULT_OBJECTIVES}
    trial = TrialRecord(
        study_name="study",
        number=asked.number,
        speculation=asked.speculation,
        state=TrialState.COMPLETE,
        values=values,
        metrics={"tpot_ms": 2.5},
    )
    return replace(trial, **changes)


CUTS = pytest.mark.parametrize(
    ("after", "is_kept"), [(after, is_kept) for after in range(MOST_WRITES) for is_kept in (True, False)]
)


@CUTS
def test_an_outage_while_asking_leaves_no_trial_that_nobody_knows(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool
) -> None:
    first = ledger.ask()
    storage.cut(after, is_kept=is_kept)
    second = ledger.ask()
    found = trials_of(storage)
    assert [trial.state for trial in found] == [OptunaState.RUNNING] * 2
    assert [first.number, second.number] == [0, 1]
    assert SPACE.speculation(found[1].params[DRAFT], found[1].params[TOKENS]) == second.speculation


@CUTS
def test_an_outage_while_asking_for_what_is_enqueued_does_not_lose_it(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool
) -> None:
    wanted = SPACE.speculation("good", 4)
    ledger.enqueue(wanted, {"speedup": 1.5})
    storage.cut(after, is_kept=is_kept)
    assert ledger.ask().speculation == wanted
    assert len(trials_of(storage)) == 1


@CUTS
def test_an_outage_while_the_baseline_is_asked_for_makes_it_once(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool
) -> None:
    storage.cut(after, is_kept=is_kept)
    assert ledger.ask_baseline() == Asked(0, NO_SPECULATION)
    (trial,) = trials_of(storage)
    assert trial.state is OptunaState.RUNNING
    assert SPACE.speculation(trial.params[DRAFT], trial.params[TOKENS]) == NO_SPECULATION


@CUTS
def test_an_outage_while_something_is_asked_for_again_asks_once(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool
) -> None:
    wanted = SPACE.speculation("good", 4)
    ledger.enqueue(wanted)
    first = ledger.ask()
    storage.cut(after, is_kept=is_kept)
    again = ledger.ask_again(wanted)
    assert again == Asked(first.number + 1, wanted)
    assert [trial.state for trial in trials_of(storage)] == [OptunaState.RUNNING] * 2


@CUTS
@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.LOST])
def test_an_outage_while_telling_tells_once(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool, state: TrialState
) -> None:
    row = ended(ledger.ask(), state=state)
    storage.cut(after, is_kept=is_kept)
    ledger.tell(row)
    (trial,) = trials_of(storage)
    assert trial.state is (OptunaState.FAIL if state is TrialState.LOST else OptunaState.COMPLETE)
    assert trial.user_attrs["tpot_ms"] == 2.5


@CUTS
def test_an_outage_while_the_study_is_rebuilt_adds_no_trial_twice(
    storage: CutStorage, ledger: TrialLedger, after: int, is_kept: bool
) -> None:
    rows = [ended(Asked(number, SPACE.speculation("good", number + 1))) for number in range(5)]
    storage.cut(after, is_kept=is_kept)
    ledger.reconcile(rows)
    found = trials_of(storage)
    assert [(trial.number, trial.params[TOKENS]) for trial in found] == [(n, n + 1) for n in range(5)]


def test_a_baseline_whose_driver_died_while_asking_is_finished_asking(storage: CutStorage, ledger: TrialLedger) -> None:
    optuna.load_study(study_name="study", storage=storage).enqueue_trial({DRAFT: "none", TOKENS: 1})
    optuna.load_study(study_name="study", storage=storage).ask()
    assert ledger.ask_baseline() == Asked(0, NO_SPECULATION)
    (trial,) = trials_of(storage)
    assert set(trial.params) == {DRAFT, TOKENS}


def test_trials_that_run_since_before_are_not_asked_for_again(storage: CutStorage, ledger: TrialLedger) -> None:
    running = replace(ended(ledger.ask()), state=TrialState.RUNNING, values={})
    later = TrialLedger.open(storage, "study", SPACE, DEFAULT_OBJECTIVES, Patience(60, on_wait=lambda _text: None))
    later.reconcile([running])
    storage.cut(0, is_kept=True)
    assert later.ask().number == 1


def test_an_outage_that_lasts_ends_with_the_reason(storage: CutStorage) -> None:
    ledger = TrialLedger.open(storage, "study", SPACE, DEFAULT_OBJECTIVES)
    storage.cut(0, is_kept=False)
    with pytest.raises(StorageUnreachableError, match="cut"):
        ledger.ask()


def test_samplers_that_cannot_tell_always_want_more(ledger: TrialLedger) -> None:
    assert ledger.wants_more()


def test_replay_wants_no_more_while_all_that_is_worth_it_runs(ledger: TrialLedger) -> None:
    ledger.use(ReplaySampler({}, distributions(SPACE), has_unpredicted=True))
    count = 0
    while ledger.wants_more():
        ledger.ask()
        count += 1
    assert count == len(SPACE.drafts) * SPACE.num_speculative_tokens.max
    assert ledger.finished() is None
