"""The replay sampler as anyone may use it: with ask and tell, and in ``study.optimize``."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler, GridSampler, NSGAIISampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from tests.support.forecasts import Machine
from tuner.forecast import Key
from tuner.samplers import DRAFT, TOKENS, ReplaySampler, finished
from tuner.search_space import NO_DRAFT
from tuner.stopping import Reason, StopKind

MACHINE = Machine(hit_rates={"light": 0.5, "heavy": 0.8}, pass_ms={"light": 1.0, "heavy": 4.0})
PENALTY_MS = 40_000.0


def a_sampler(machine: Machine = MACHINE, *traced: str, **settings: object) -> ReplaySampler:
    return ReplaySampler({0: machine.forecast(*traced)}, machine.space, **settings)  # type: ignore[arg-type]


def a_study(sampler: BaseSampler, storage: optuna.storages.BaseStorage | None = None) -> optuna.Study:
    return optuna.create_study(sampler=sampler, storage=storage, study_name="study", load_if_exists=True)


def ask(study: optuna.Study, machine: Machine = MACHINE) -> tuple[int, Key]:
    trial = study.ask(dict(machine.space))
    return trial.number, (trial.params[DRAFT], trial.params[TOKENS])


def tell(study: optuna.Study, number: int, value: float, *, cannot_run: bool = False) -> None:
    """As a loop tells it, with the constraint that says whether the configuration ran."""
    storage, trial = study._storage, study.get_trials(deepcopy=False)[number]
    storage.set_trial_system_attr(trial._trial_id, "constraints:cannot_run", float(cannot_run))
    study.tell(number, value)


def searched(study: optuna.Study, machine: Machine = MACHINE, most: int = 99) -> list[Key]:
    """Ask and tell the truth until the sampler says that it is finished."""
    asked: list[Key] = []
    while finished(study) is None and len(asked) < most:
        number, key = ask(study, machine)
        asked.append(key)
        tell(study, number, machine.latency_ms(key))
    return asked


def objective(machine: Machine = MACHINE) -> Callable[[optuna.Trial], float]:
    def measure(trial: optuna.Trial) -> float:
        draft = trial.suggest_categorical(DRAFT, (NO_DRAFT, *machine.hit_rates))
        return machine.latency_ms((draft, trial.suggest_int(TOKENS, 1, machine.most_tokens)))

    return measure


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_suggestion_has_the_largest_expected_gain() -> None:
    study = a_study(a_sampler())
    outlook = MACHINE.forecast().outlook({})
    gains = np.maximum(outlook.gains, 0).mean(axis=0)
    assert ask(study)[1] == outlook.keys[int(gains.argmax())] == ("heavy", 4)


def test_gains_are_weighed_by_what_a_measurement_costs() -> None:
    study = a_study(a_sampler(cost=lambda key: 100.0 if key[0] == "heavy" else 1.0))
    assert ask(study)[1][0] == "light"


def test_what_was_measured_changes_what_is_asked_for_next() -> None:
    # a pass of the heavy draft takes three times what was believed, so the light one is best
    machine = replace(MACHINE, true_ms={"heavy": 12.0})
    study = a_study(a_sampler(machine))
    first, second = searched(study, machine, most=2)
    assert (first[0], second[0]) == ("heavy", "light")


def test_nothing_is_asked_twice_even_by_who_goes_on_after_the_end() -> None:
    study = a_study(a_sampler())
    asked = searched(study)
    assert len(asked) < len(MACHINE.keys)
    while len(asked) < len(MACHINE.keys):
        number, key = ask(study)
        asked.append(key)
        tell(study, number, MACHINE.latency_ms(key))
    assert sorted(asked) == sorted(MACHINE.keys)
    assert finished(study) == Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")


def test_who_asks_after_everything_was_tried_gets_some_configuration_again() -> None:
    machine = replace(MACHINE, most_tokens=1)
    study = a_study(a_sampler(machine))
    for _ in machine.keys:
        number, key = ask(study, machine)
        tell(study, number, machine.latency_ms(key))
    number, _ = ask(study, machine)
    assert number == 2


def test_what_cannot_run_is_never_asked_for_again_and_never_counts_as_measured() -> None:
    sampler = a_sampler()
    study = a_study(sampler)
    number, broken = ask(study)
    tell(study, number, 1.0, cannot_run=True)  # the best possible latency, and yet no measurement
    outlook = sampler.outlooks(study)[0]
    assert not outlook.measured.any()
    assert outlook.incumbent_key is None
    assert broken not in searched(study)
    assert finished(study) is not None


def test_what_was_lost_may_be_asked_for_again() -> None:
    study = a_study(a_sampler())
    number, first = ask(study)
    study.tell(number, state=TrialState.FAIL)
    assert ask(study)[1] == first


def test_what_was_pruned_is_not_asked_for_again() -> None:
    study = a_study(a_sampler())
    number, first = ask(study)
    study.tell(number, state=TrialState.PRUNED)
    assert ask(study)[1] != first


def test_several_in_flight_are_different_configurations() -> None:
    study = a_study(a_sampler())
    in_flight = [ask(study) for _ in range(4)]
    assert len({key for _, key in in_flight}) == 4
    assert finished(study) is None
    for number, key in in_flight:
        tell(study, number, MACHINE.latency_ms(key))
    following = searched(study)
    assert not {key for _, key in in_flight} & set(following)
    assert finished(study) is not None


def test_a_search_is_not_finished_while_something_runs() -> None:
    study = a_study(a_sampler(epsilon=0.9))
    assert finished(study) is not None
    number, _ = ask(study)
    assert finished(study) is None
    study.tell(number, state=TrialState.FAIL)
    assert finished(study) is not None


def test_no_speculation_is_no_configuration_to_learn_from() -> None:
    study = a_study(a_sampler())
    study.enqueue_trial({DRAFT: NO_DRAFT, TOKENS: 1})
    number, (draft, _) = ask(study)
    assert draft == NO_DRAFT
    assert ask(study)[1] == ("heavy", 4)
    study.tell(number, 20_000.0)
    assert not study.sampler.outlooks(study)[0].measured.any()


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, -3.0])
def test_values_that_are_no_latency_are_not_learnt_from_and_their_configuration_is_not_asked_again(
    value: float,
) -> None:
    sampler = a_sampler()
    study = a_study(sampler)
    number, first = ask(study)
    study.tell(number, value)
    assert not sampler.outlooks(study)[0].measured.any()
    assert first not in searched(study)


def test_a_value_that_is_no_number_is_a_failure_of_that_trial() -> None:
    sampler = a_sampler()
    study = a_study(sampler)
    number, first = ask(study)
    with pytest.warns(UserWarning, match="nan"):
        study.tell(number, math.nan)
    assert study.trials[number].state is TrialState.FAIL
    assert ask(study)[1] == first


# ── why it ends ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_ends_when_nothing_can_be_much_faster_and_names_the_best() -> None:
    study = a_study(a_sampler())
    asked = searched(study)
    best = min(asked, key=MACHINE.latency_ms)
    assert len(asked) <= 4
    assert finished(study) == Reason(
        kind=StopKind.NOTHING_WORTH_IT,
        text=f"no other configuration can be more than 1 % faster than {best[0]} k={best[1]} (95 % sure)",
    )


def test_it_ends_before_it_began_where_no_draft_can_pay() -> None:
    slow = replace(MACHINE, pass_ms={"light": 60.0, "heavy": 60.0})
    reason = finished(a_study(a_sampler(slow, epsilon=0.005)))
    assert reason is not None
    assert reason.text == "no other configuration can be more than 0.5 % faster than no speculation (95 % sure)"


def test_a_larger_epsilon_never_asks_for_more() -> None:
    counts = [len(searched(a_study(a_sampler(epsilon=epsilon)))) for epsilon in (0.0, 0.01, 0.05, 0.9)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


def test_other_samplers_cannot_tell_that_a_study_is_finished() -> None:
    assert finished(a_study(RandomSampler())) is None


def test_where_the_truth_is_drawn_from_the_beliefs_at_most_epsilon_is_given_away() -> None:
    rng = np.random.default_rng(0)
    given_away = []
    for _ in range(60):
        rates, passes = rng.uniform(0.2, 0.95, 2), rng.uniform(0.5, 5.0, 2)
        row, light, heavy = np.exp(rng.normal(0, 0.3, 3))
        machine = Machine(
            hit_rates={"light": rates[0], "heavy": rates[1]},
            pass_ms={"light": passes[0], "heavy": passes[1]},
            sd=0.3,
            true_ms={"row": 0.5 * row, "light": passes[0] * light, "heavy": passes[1] * heavy},
        )
        tried = [None, *searched(a_study(a_sampler(machine)), machine)]
        best = max(machine.speedup(key) for key in (None, *machine.keys))
        given_away.append(1 - max(machine.speedup(key) for key in tried) / best)
        assert len(tried) <= 6
    assert np.mean(given_away) < 0.001
    assert np.mean(np.array(given_away) <= 0.01) >= 0.95  # the bound is one of 95 %


# ── drafts without a trace ────────────────────────────────────────────────────────────────────────────────────────


def test_untraced_drafts_are_explored_in_turn_with_the_others() -> None:
    machine = replace(
        MACHINE, hit_rates={"light": 0.5, "heavy": 0.8, "dark": 0.1}, pass_ms={**MACHINE.pass_ms, "dark": 9.0}
    )
    study = a_study(a_sampler(machine, "light", "heavy"))
    asked = searched(study, machine)
    assert [draft == "dark" for draft, _ in asked[:2]] == [False, True]
    dark = [tokens for draft, tokens in asked if draft == "dark"]
    assert sorted(dark) == [1, 2, 3, 4, 5, 6]  # the bound says nothing of them, so all are tried
    assert len(asked) < len(machine.keys)  # of the traced ones only what is worth it
    reason = finished(study)
    assert reason is not None
    assert reason.kind is StopKind.NOTHING_WORTH_IT


def test_without_any_trace_the_whole_space_is_explored_once() -> None:
    study = a_study(ReplaySampler({}, MACHINE.space))
    assert sorted(searched(study)) == sorted(MACHINE.keys)


def test_what_an_untraced_draft_measured_is_no_evidence_for_the_others() -> None:
    sampler = a_sampler(MACHINE, "light")
    study = a_study(sampler)
    study.enqueue_trial({DRAFT: "heavy", TOKENS: 4})
    number, key = ask(study)
    tell(study, number, MACHINE.latency_ms(key))
    outlook = sampler.outlooks(study)[0]
    assert not outlook.measured.any()
    assert (outlook.gains == MACHINE.forecast("light").outlook({}).gains).all()


@pytest.mark.parametrize(
    "fallback",
    [
        RandomSampler(seed=1),
        NSGAIISampler(population_size=4, seed=1),
        GridSampler({DRAFT: (NO_DRAFT, "light", "heavy"), TOKENS: range(1, 7)}, seed=1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_any_sampler_of_optunas_may_explore_them(fallback: BaseSampler) -> None:
    machine = replace(MACHINE, most_tokens=2)
    study = a_study(a_sampler(machine, "light", fallback=fallback))
    assert {("heavy", 1), ("heavy", 2)} <= set(searched(study, machine))


def test_an_objective_that_must_be_measured_keeps_the_search_going_to_the_end_of_the_space() -> None:
    sampler = a_sampler(has_unpredicted=True)
    study = a_study(sampler)
    assert len(sampler.unpredicted(study)) == 12
    assert sorted(searched(study)) == sorted(MACHINE.keys)
    assert sampler.unpredicted(study) == []


# ── in Optuna's own loop ──────────────────────────────────────────────────────────────────────────────────────────


def test_optimize_stops_by_itself() -> None:
    study = a_study(a_sampler())
    study.optimize(objective(), n_trials=50, n_jobs=1)
    assert 1 <= len(study.trials) <= 4
    reason = finished(study)
    assert reason is not None
    assert reason.kind is StopKind.NOTHING_WORTH_IT
    asked = [_key(trial) for trial in study.trials]
    assert asked == searched(a_study(a_sampler()))  # the same as with ask and tell


def test_optimize_of_several_objectives_stops_by_itself() -> None:
    sampler = ReplaySampler({1: MACHINE.forecast()}, MACHINE.space)
    study = optuna.create_study(sampler=sampler, directions=["minimize", "minimize"])
    study.optimize(lambda trial: (0.5, objective()(trial)), n_trials=50)
    assert 1 <= len(study.trials) <= 4
    assert sampler.outlooks(study)[1].measured.sum() == len(study.trials)


def test_two_objectives_that_are_both_predicted_are_both_searched() -> None:
    # one wants the fastest, the other the most tokens a second of another machine on which the heavy draft is dear
    other = replace(MACHINE, pass_ms={"light": 1.0, "heavy": 15.0})
    sampler = ReplaySampler({0: MACHINE.forecast(), 1: other.forecast(is_rate=True)}, MACHINE.space)
    study = optuna.create_study(sampler=sampler, directions=["minimize", "maximize"])

    def both(trial: optuna.Trial) -> tuple[float, float]:
        latency = objective()(trial)
        return latency, 1e6 / other.latency_ms(_key(study.trials[trial.number]))

    study.optimize(both, n_trials=50)
    assert len(study.trials) < 12
    best = [outlook.incumbent_key for outlook in sampler.outlooks(study).values()]
    assert [key[0] for key in best if key is not None] == ["heavy", "light"]


def test_a_trial_that_raises_in_optimize_is_lost_and_its_configuration_comes_again() -> None:
    study = a_study(a_sampler())
    failed: list[Key] = []

    def fails_once(trial: optuna.Trial) -> float:
        latency = objective()(trial)
        if not failed:
            failed.append(_key(study.trials[0]))
            raise ValueError("the worker is gone")
        return latency

    study.optimize(fails_once, n_trials=50, catch=(ValueError,))
    assert [trial.state for trial in study.trials[:2]] == [TrialState.FAIL, TrialState.COMPLETE]
    assert _key(study.trials[1]) == failed[0]


def test_parameters_of_someone_elses_space_are_left_to_the_fallback() -> None:
    study = a_study(a_sampler(fallback=RandomSampler(seed=0)))

    def measure(trial: optuna.Trial) -> float:
        trial.suggest_float("temperature", 0.0, 1.0)
        return objective()(trial)

    study.optimize(measure, n_trials=1)
    assert 0 <= study.trials[0].params["temperature"] <= 1
    assert _key(study.trials[0]) == ("heavy", 4)


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_sampler_on_a_stored_study_suggests_what_the_old_one_would() -> None:
    whole = searched(a_study(a_sampler()))
    storage = optuna.storages.InMemoryStorage()
    pieces: list[Key] = []
    while finished(study := a_study(a_sampler(), storage)) is None:  # a new sampler for every trial
        pieces += searched(study, most=1)
    assert pieces == whole


def test_a_sampler_can_be_sent_to_another_process() -> None:
    study = a_study(a_sampler())
    sent = a_study(pickle.loads(pickle.dumps(a_sampler())))  # noqa: S301
    assert searched(sent) == searched(study)


def test_untraced_drafts_are_explored_in_the_same_order_after_a_restart() -> None:
    machine = replace(MACHINE, most_tokens=3)

    def fallback() -> BaseSampler:
        return NoSuggestions()

    whole = searched(a_study(a_sampler(machine, "light", fallback=fallback())), machine)
    storage = optuna.storages.InMemoryStorage()
    pieces: list[Key] = []
    while finished(study := a_study(a_sampler(machine, "light", fallback=fallback()), storage)) is None:
        pieces += searched(study, machine, most=1)
    assert pieces == whole


class NoSuggestions(RandomSampler):
    """Leaves every choice of a draft without a trace to the replay sampler."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, object]:
        return {}


def test_another_seed_explores_untraced_drafts_in_another_order() -> None:
    orders = [
        searched(a_study(ReplaySampler({}, MACHINE.space, seed=seed, fallback=NoSuggestions()))) for seed in (0, 1)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_the_order_of_results_does_not_matter() -> None:
    results = [(("heavy", 4), 9000.0), (("light", 2), 15000.0), (("heavy", 2), 11000.0)]
    asked = []
    for order in (results, results[::-1]):
        study = a_study(a_sampler(epsilon=0.0))
        for key, value in order:
            study.enqueue_trial({DRAFT: key[0], TOKENS: key[1]})
            study.tell(ask(study)[0], value)
        asked.append(ask(study)[1])
    assert asked[0] == asked[1]


# ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_asking_among_270_configurations_takes_less_than_a_tenth_of_a_second() -> None:
    names = [f"draft-{number}" for number in range(18)]
    machine = Machine(
        hit_rates={name: 0.4 + 0.03 * number for number, name in enumerate(names)},
        pass_ms={name: 1.0 + 0.3 * number for number, name in enumerate(names)},
        most_tokens=15,
    )
    study = a_study(a_sampler(machine))
    searched(study, machine, most=6)
    times = []
    for _ in range(3):
        trial = study.ask()
        began = time.process_time()
        study.sampler.sample_relative(study, study.trials[trial.number], dict(machine.space))
        times.append(time.process_time() - began)
        study.tell(trial, state=TrialState.FAIL)
    assert min(times) < 0.1


def _key(trial: FrozenTrial) -> Key:
    return trial.params[DRAFT], trial.params[TOKENS]
