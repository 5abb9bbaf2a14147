from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.acceptance_length import acceptance_length_ratio, acceptance_lengths
from tuner.errors import MeasurementError
from tuner.records import PromptTrace, Trace, TraceKind
from tuner.replay import ReplayedRounds, replay_all


def a_trace(outputs: dict[str, list[bool]]) -> Trace:
    """An autoregressive draft that is right where a bit is set."""
    return Trace(
        draft_name="draft",
        max_drafted_tokens=1,
        kind=TraceKind.TEACHER_FORCED,
        prompts=tuple(
            PromptTrace(
                prompt_id=name,
                prompt_class="any",
                max_output_tokens=len(bits) + 40,
                proposed=(1,) * len(bits),
                matched=tuple(int(bit) for bit in bits),
            )
            for name, bits in outputs.items()
        ),
    )


def drawn(generator: np.random.Generator, prompts: int) -> dict[str, list[bool]]:
    """Prompts differ in length and in how often the draft is right."""
    lengths = np.minimum(generator.lognormal(3.5, 0.6, prompts).astype(int) + 2, 120)
    return {str(number): list(generator.random(length) < generator.beta(6, 4)) for number, length in enumerate(lengths)}


def test_every_k_has_its_ratio_of_sums_and_its_limits():
    replayed = replay_all(a_trace(drawn(np.random.default_rng(5), 60)), range(9))
    lengths = acceptance_lengths(replayed)
    assert lengths[0].estimate == lengths[0].low == lengths[0].high == 1  # no speculation: one token a round
    for one, interval in zip(replayed[1:], lengths[1:], strict=True):
        assert interval.estimate == pytest.approx(one.mean_acceptance_length)
        assert interval.low < interval.estimate < interval.high
        assert interval.n == 60
    widths = [math.log(one.high / one.low) for one in lengths]
    assert widths == sorted(widths)  # a longer draft depends more on the prompt


def test_the_delta_method_by_hand():
    # 20 prompts of 10 tokens in 5 rounds, 20 of 10 in 10: e = 10 / (4/3) - rounds = ±2.5.
    rounds = np.array([5, 10] * 20)
    replayed = ReplayedRounds(
        drafted_tokens=1,
        prompt_ids=tuple(str(number) for number in range(40)),
        output_tokens=np.full(40, 11),
        rounds=rounds,
        drafted=rounds,
        accepted=10 - rounds,
        rounds_by_drafted=np.stack([rounds * 0, rounds], axis=1),
    )
    (interval,) = acceptance_lengths([replayed])
    assert interval.estimate == pytest.approx(400 / 300)
    assert interval.coefficient_of_variation == pytest.approx(2.5 * math.sqrt(40 / 39) / 7.5)


def test_prompts_without_a_round_say_nothing_of_the_acceptance_length():
    replayed = replay_all(a_trace({"one": [True], "a": [True] * 9, "b": [False] * 9, "c": [True] * 9}), [2])
    (interval,) = acceptance_lengths(replayed)
    assert interval.n == 3
    assert interval.estimate == pytest.approx(replayed[0].mean_acceptance_length)


def test_two_prompts_are_too_few():
    replayed = replay_all(a_trace({"a": [True] * 9, "b": [False] * 9}), [2])
    assert acceptance_lengths(replayed) == (None,)
    assert acceptance_length_ratio(replayed[0], replayed[0]) is None


def test_pairing_tells_neighbours_apart_that_intervals_of_each_do_not():
    replayed = replay_all(a_trace(drawn(np.random.default_rng(6), 60)), [3, 4])
    three, four = acceptance_lengths(replayed)
    assert three.high > four.low
    ratio = acceptance_length_ratio(replayed[1], replayed[0])
    assert ratio.low > 1
    assert ratio.estimate == pytest.approx(four.estimate / three.estimate)


def test_only_shared_prompts_are_paired_in_whatever_order():
    outputs = drawn(np.random.default_rng(7), 50)
    (whole,), names = replay_all(a_trace(outputs), [3]), list(outputs)
    backwards = replay_all(a_trace({name: outputs[name] for name in reversed(names[:45])}), [3])[0]
    ratio = acceptance_length_ratio(whole, backwards)
    assert (ratio.n, ratio.estimate, ratio.low, ratio.high) == (45, 1, 1, 1)


def test_outputs_of_different_lengths_are_not_compared():
    sides = [replay_all(a_trace({"a": [True] * n, "b": [True] * 5}), [1])[0] for n in (7, 9)]
    with pytest.raises(MeasurementError, match="'a' was replayed along outputs of 7 and 9 tokens"):
        acceptance_length_ratio(*sides)


def test_intervals_cover_the_population():
    # τ of the population from many prompts; then samples of 60, each with its interval.
    generator = np.random.default_rng(8)
    population = replay_all(a_trace(drawn(generator, 12_000)), [4])[0]
    tokens, rounds = population.output_tokens, population.rounds
    truth = population.mean_acceptance_length
    hits = 0
    for _ in range(400):
        chosen = generator.choice(len(tokens), 60, replace=False)
        sample = ReplayedRounds(
            drafted_tokens=4,
            prompt_ids=tuple(str(one) for one in chosen),
            output_tokens=tokens[chosen],
            rounds=rounds[chosen],
            drafted=population.drafted[chosen],
            accepted=population.accepted[chosen],
            rounds_by_drafted=population.rounds_by_drafted[chosen],
        )
        interval = acceptance_lengths([sample])[0]
        hits += interval.low <= truth <= interval.high
    assert 0.92 <= hits / 400 <= 0.98
