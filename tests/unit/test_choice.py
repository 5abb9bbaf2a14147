from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.support.observed import a_measurement, timed
from tuner.choice import Choice, choose_candidate, simplicity
from tuner.records import Measurement, MeasureResult
from tuner.speculation import NO_SPECULATION, Method, Speculation

LENGTHS = np.linspace(1.0, 3.0, 24)
NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=6)
EAGLE = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="eagle", drafted_tokens=3)
MODEL = Speculation(method=Method.DRAFT_MODEL, draft_name="small", draft_model="small", drafted_tokens=2)


@dataclass(frozen=True)
class ATrial:
    speculation: Speculation
    metrics: Mapping[str, float | None] = field(default_factory=dict)


def run(gain: float, spread: float = 0.01, *, phase: float = 0.0, slowdown: float = 1.0) -> Measurement:
    """Every prompt with a gain around the mean, measured while the machine was slower."""
    gains = gain * (1 + spread * np.sin(np.arange(24) * 2.4 + phase))
    return a_measurement(
        *(timed(f"p{n}", slowdown * s / g) for n, (s, g) in enumerate(zip(LENGTHS, gains, strict=True)))
    )


BASELINE = run(1.0, 0.0)


def choose(*tried: tuple[Speculation, float, Measurement], **options: object) -> Choice[ATrial]:
    trials = [ATrial(NO_SPECULATION, {"speedup": 1.0})]
    trials += [ATrial(speculation, {"speedup": speedup}) for speculation, speedup, _ in tried]
    results = {speculation.key: MeasureResult(candidate=made, anchor=None) for speculation, _, made in tried}
    return choose_candidate(trials, results, BASELINE, **options)  # type: ignore[arg-type]


def names(choice: Choice[ATrial]) -> list[str]:
    return [choice.candidate.speculation.label, *(one.label for one in choice.tied_speculations)]


def test_the_best_is_chosen_where_it_stands_alone():
    assert names(choose((NGRAM, 1.2, run(1.2)), (EAGLE, 1.4, run(1.4)))) == ["eagle k=3"]


def test_of_a_tie_the_simplest_is_chosen_and_the_others_are_named():
    tried = ((MODEL, 1.401, run(1.401)), (EAGLE, 1.4, run(1.4, phase=1.0)), (NGRAM, 1.397, run(1.397, phase=2.0)))
    assert names(choose(*tried)) == ["ngram k=6", "eagle k=3", "small k=2"]


def test_an_estimate_from_all_measurements_goes_before_the_measured_gain():
    tried = ((NGRAM, 1.50, run(1.5)), (EAGLE, 1.4, run(1.4)))
    assert names(choose(*tried)) == ["ngram k=6"]
    assert names(choose(*tried, gains={NGRAM.key: 1.3})) == ["eagle k=3"]


def test_what_the_paired_comparison_can_tell_apart_is_no_tie_however_close():
    # 0.5 % apart on every prompt alike: no interval is narrower.
    assert names(choose((MODEL, 1.407, run(1.407)), (EAGLE, 1.4, run(1.4)))) == ["small k=2"]


def test_what_lies_further_apart_than_epsilon_is_no_tie_however_uncertain():
    tried = ((MODEL, 1.43, run(1.43, 0.5)), (EAGLE, 1.4, run(1.4, 0.5, phase=1.5)))
    assert names(choose(*tried)) == ["small k=2"]
    assert names(choose(*tried, epsilon=0.03)) == ["eagle k=3", "small k=2"]


def test_a_tie_with_no_speculation_means_no_speculation():
    choice = choose((EAGLE, 1.004, run(1.004, 0.1)))
    assert choice.candidate.speculation == NO_SPECULATION
    assert choice.tied_with == ()


def test_a_sure_gain_below_epsilon_is_no_tie_with_no_speculation():
    assert names(choose((EAGLE, 1.008, run(1.008, 0.001)))) == ["eagle k=3"]


def test_when_no_candidate_is_faster_no_speculation_is_chosen():
    assert choose((EAGLE, 0.9, run(0.9))).candidate.speculation == NO_SPECULATION


def test_a_trial_without_a_gain_is_never_chosen():
    trials = [ATrial(NO_SPECULATION, {"speedup": 1.0}), ATrial(EAGLE, {"speedup": None})]
    assert choose_candidate(trials, {}, BASELINE).candidate.speculation == NO_SPECULATION


def test_anchors_bring_two_loads_to_one_speed_before_they_are_compared():
    # The same gain; the second was measured on a machine that was a tenth slower, as its anchor shows.
    trials = [
        ATrial(NO_SPECULATION, {"speedup": 1.0}),
        ATrial(MODEL, {"speedup": 1.4}),
        ATrial(EAGLE, {"speedup": 1.4}),
    ]
    slow = run(1.4, phase=1.0, slowdown=1.1)
    drifted = {
        MODEL.key: MeasureResult(candidate=run(1.4), anchor=BASELINE),
        EAGLE.key: MeasureResult(candidate=slow, anchor=run(1.0, 0.0, slowdown=1.1)),
    }
    assert names(choose_candidate(trials, drifted, BASELINE)) == ["eagle k=3", "small k=2"]
    unanchored = drifted | {EAGLE.key: MeasureResult(candidate=slow, anchor=None)}
    assert names(choose_candidate(trials, unanchored, BASELINE)) == ["small k=2"]


# ── simplicity ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_needs_no_model_is_simpler_and_a_head_is_simpler_than_a_model():
    order = [NO_SPECULATION, NGRAM, EAGLE, MODEL]
    trials = [ATrial(one) for one in reversed(order)]
    assert [one.speculation for one in sorted(trials, key=simplicity)] == order


def test_fewer_drafted_tokens_are_simpler():
    deeper = replace(EAGLE, drafted_tokens=4)
    assert simplicity(ATrial(EAGLE)) < simplicity(ATrial(deeper))


def test_less_memory_is_simpler_and_known_memory_comes_first():
    other = replace(EAGLE, draft_name="other")
    small, large = {"peak_memory_bytes": 1e9}, {"peak_memory_bytes": 2e9}
    assert simplicity(ATrial(EAGLE, small)) < simplicity(ATrial(other, large))
    assert simplicity(ATrial(EAGLE, large)) < simplicity(ATrial(other))
    assert simplicity(ATrial(other, small)) < simplicity(ATrial(EAGLE, large))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_total(seed):
    trials = [
        ATrial(replace(one, drafted_tokens=k, draft_name=name))
        for one in (NGRAM, EAGLE, MODEL)
        for k in (1, 2)
        for name in ("a", "b")
    ]
    shuffled = [trials[place] for place in np.random.default_rng(seed).permutation(len(trials))]
    assert sorted(shuffled, key=simplicity) == sorted(trials, key=simplicity)
