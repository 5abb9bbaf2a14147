from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import MeasurementError
from tuner.records import PromptTrace, Sampling, Trace, TraceKind
from tuner.replay import replay, replay_all

SAMPLED = Sampling(temperature=1.0)


def sampled(chances: list[float], *, cap: int | None = None, prompt_id: str = "p0") -> PromptTrace:
    """Both models sample; the draft's token at position s was accepted with probability ``chances[s]``."""
    n = len(chances)
    return PromptTrace(
        prompt_id=prompt_id,
        prompt_class="any",
        max_output_tokens=cap or n,
        proposed=(0,) * n,
        matched=(0,) * n,
        target_probabilities=(0.5,) * n,
        draft_probabilities=tuple(0.5 * chance for chance in chances),
    )


def a_trace(*prompts: PromptTrace, sampling: Sampling = SAMPLED, most: int = 8) -> Trace:
    return Trace(
        draft_name="draft",
        max_drafted_tokens=most,
        prompts=prompts,
        kind=TraceKind.TEACHER_FORCED,
        sampling=sampling,
    )


def by_recursion(chances: list[float], cap: int, k: int) -> tuple[float, float, float]:
    """Expected rounds, drafted and accepted tokens: every outcome of every round, from the last position back."""
    n = len(chances)
    after = [(0.0, 0.0, 0.0)] * (n + k + 2)
    for s in reversed(range(1, n)):
        j = min(k, cap - s - 1)
        chances_here = [*chances[s : s + j], *[1.0] * (j - len(chances[s : s + j]))]
        outcomes = [math.prod(chances_here[:m]) * (1 - chances_here[m]) for m in range(j)] + [math.prod(chances_here)]
        this = [0.0, 0.0, 0.0]
        for m, probability in enumerate(outcomes):
            rest = after[s + m + 1]
            for index, value in enumerate((1 + rest[0], j + rest[1], min(m, n - s) + rest[2])):
                this[index] += probability * value
        after[s] = (this[0], this[1], this[2])
    return after[1] if n > 1 else (0.0, 0.0, 0.0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 6),
    st.integers(0, 8),
)
def test_expected_counts_equal_the_sum_over_all_outcomes(chances, spare, k):
    rounds = replay(a_trace(sampled(chances, cap=len(chances) + spare)), k)
    expected = by_recursion(chances, len(chances) + spare, k)
    assert (rounds.rounds[0], rounds.drafted[0], rounds.accepted[0]) == pytest.approx(expected, abs=1e-9)
    assert rounds.rounds_by_drafted[0].sum() == pytest.approx(rounds.rounds[0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4), st.integers(0, 5))
def test_certain_acceptance_is_the_greedy_walk(prompts, spare):
    names = [f"p{number}" for number in range(len(prompts))]
    certain = a_trace(
        *(
            sampled([float(bit) for bit in bits], cap=len(bits) + spare, prompt_id=name)
            for name, bits in zip(names, prompts, strict=True)
        )
    )
    greedy = Trace(
        draft_name="draft",
        max_drafted_tokens=8,
        kind=TraceKind.TEACHER_FORCED,
        prompts=tuple(
            PromptTrace(
                prompt_id=name,
                prompt_class="any",
                max_output_tokens=len(bits) + spare,
                proposed=(8,) * len(bits),
                matched=tuple(int(bit) for bit in bits),
            )
            for name, bits in zip(names, prompts, strict=True)
        ),
    )
    for expected, walked in zip(replay_all(certain, range(9)), replay_all(greedy, range(9)), strict=True):
        assert expected.rounds.tolist() == walked.rounds.tolist()
        assert expected.accepted.tolist() == walked.accepted.tolist()
        assert expected.rounds_by_drafted.tolist() == walked.rounds_by_drafted.tolist()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_expected_acceptance_length_never_falls_with_k_for_an_autoregressive_draft(chances):
    lengths = [one.mean_acceptance_length for one in replay_all(a_trace(sampled(chances)), range(33))]
    assert lengths[0] == pytest.approx(1)
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(lengths))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 9))
def test_expected_rounds_lie_between_full_acceptance_and_none(chances, k):
    rounds, to_gain = replay(a_trace(sampled(chances)), k).rounds[0], len(chances) - 1
    assert math.ceil(to_gain / (k + 1)) - 1e-9 <= rounds <= to_gain + 1e-9


def test_two_tokens_by_hand():
    # Positions 1 and 2; the first is right half of the time, and then the bonus is the end.
    rounds = replay(a_trace(sampled([0.0, 0.5, 0.25], cap=9)), 1)
    assert rounds.rounds[0] == 1.5
    assert rounds.drafted[0] == 1.5
    assert rounds.accepted[0] == 0.5 + 0.5 * 0.25
    assert rounds.mean_acceptance_length == 2 / 1.5


@dataclass(frozen=True)
class Toy:
    """Six tokens; target and draft choose the next one by the last."""

    target: np.ndarray
    draft: np.ndarray

    @classmethod
    def random(cls, generator: np.random.Generator) -> Toy:
        target = generator.dirichlet(np.full(6, 0.6), size=6)
        return cls(target=target, draft=0.6 * target + 0.4 * generator.dirichlet(np.full(6, 0.6), size=6))


def drawn(generator: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    """One token for each row."""
    below = probabilities.cumsum(axis=1)
    return (generator.random((len(below), 1)) * below[:, -1:] > below).sum(axis=1)


def speculate(toy: Toy, generator: np.random.Generator, prompts: int, n: int, k: int):
    """Rejection sampling, as engines do it: outputs, and what each prompt's rounds came to."""
    outputs = np.zeros((prompts, n + k + 1), dtype=np.int64)
    outputs[:, 0] = generator.integers(6, size=prompts)
    length, rounds, accepted = np.ones(prompts, dtype=np.int64), np.zeros(prompts), np.zeros(prompts)
    every = np.arange(prompts)
    while (running := length < n).any():
        rounds += running
        alive = running.copy()
        for place in range(k + 1):
            rows = every[alive]
            last = outputs[rows, length[rows] - 1]
            p, q = toy.target[last], toy.draft[last]
            if place == k:
                outputs[rows, length[rows]] = drawn(generator, p)
                length[rows] += 1
                break
            guess = drawn(generator, q)
            picked = np.arange(len(rows))
            right = generator.random(len(rows)) < p[picked, guess] / q[picked, guess]
            correction = drawn(generator, np.maximum(p - q, 0) + 1e-300)
            outputs[rows, length[rows]] = np.where(right, guess, correction)
            accepted[rows] += right & (length[rows] < n)
            length[rows] += 1
            alive[rows[~right]] = False
    return outputs[:, :n], rounds, accepted


@pytest.mark.parametrize("k", [1, 3, 7])
def test_expected_rounds_are_those_of_rejection_sampling(k):
    generator = np.random.default_rng(k)
    toy, prompts, n = Toy.random(generator), 4000, 40
    outputs, rounds, accepted = speculate(toy, generator, prompts, n, k)
    steps = outputs[:, :-1], outputs[:, 1:]
    target, draft = ([[1.0, *row] for row in side[steps].tolist()] for side in (toy.target, toy.draft))
    trace = a_trace(
        *(
            PromptTrace(
                prompt_id=str(number),
                prompt_class="any",
                max_output_tokens=n + 20,  # no round is near the cap
                proposed=(0,) * n,
                matched=(0,) * n,
                target_probabilities=tuple(target[number]),
                draft_probabilities=tuple(draft[number]),
            )
            for number in range(prompts)
        )
    )
    replayed = replay(trace, k)
    for seen, expected in ((rounds, replayed.rounds), (accepted, replayed.accepted)):
        difference = seen - expected
        error = difference.std(ddof=1) / math.sqrt(prompts)
        assert abs(difference.mean()) < 3 * error
        assert abs(difference.mean()) < 0.005 * expected.mean()
        assert 0 < error < 0.003 * expected.mean()  # sharp enough that the estimators to avoid would fail


def test_a_draft_that_proposes_its_likeliest_token_is_walked():
    # The target samples, no probabilities of the draft: ranks along the sampled output decide.
    prompt = PromptTrace(
        prompt_id="p0",
        prompt_class="any",
        max_output_tokens=9,
        proposed=(0, 2, 2, 2),
        matched=(0, 1, 0, 1),
        ranks=(0, 0, 3, 0),
        target_probabilities=(1.0, 0.5, 0.1, 0.7),
    )
    assert replay(a_trace(prompt), 2).rounds.tolist() == [2]


def test_probabilities_of_a_greedy_run_do_not_turn_it_into_chance():
    prompt = sampled([0.0, 0.5, 0.5])
    assert replay(a_trace(prompt, sampling=Sampling(temperature=0.0)), 2).rounds.tolist() == [2]


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        (0.0, 0.5, "probability 0 to the token it emitted: prompt 'bad', position 2"),
        (math.nan, 0.5, "target probability nan of prompt 'bad', position 2"),
        (0.5, math.nan, "draft probability nan of prompt 'bad', position 2"),
        (0.5, 1.5, "draft probability 1.5 of prompt 'bad', position 2"),
        (-0.1, 0.5, "target probability -0.1 of prompt 'bad', position 2"),
    ],
)
def test_a_number_that_is_no_probability_is_refused(target, draft, message):
    bad = PromptTrace(
        prompt_id="bad",
        prompt_class="any",
        max_output_tokens=3,
        proposed=(0, 0, 0),
        matched=(0, 0, 0),
        target_probabilities=(math.nan, 0.5, target),  # entry 0 is unused
        draft_probabilities=(math.nan, 0.5, draft),
    )
    with pytest.raises(MeasurementError, match=message):
        replay(a_trace(sampled([0.0, 0.5]), bad), 1)


def test_a_prompt_without_probabilities_is_refused_where_others_have_them():
    bare = PromptTrace(prompt_id="bare", prompt_class="any", max_output_tokens=3, proposed=(0, 1), matched=(0, 1))
    with pytest.raises(MeasurementError, match="'bare': 0 target probabilities for 2 positions"):
        replay(a_trace(sampled([0.0, 0.5]), bare), 1)


@pytest.mark.parametrize("length", [0, 1])
def test_an_output_of_at_most_one_token_needs_no_round(length):
    replayed = replay_all(a_trace(sampled([0.5] * length, cap=4), sampled([0.0, 1.0], prompt_id="p1")), range(4))
    for rounds in replayed:
        assert (rounds.rounds[0], rounds.drafted[0], rounds.accepted[0]) == (0, 0, 0)
        assert rounds.rounds[1] == 1


def test_two_hundred_prompts_and_thirty_two_k_take_a_fraction_of_a_second():
    chances = np.random.default_rng(3).random((200, 256)).tolist()
    trace = a_trace(*(sampled(row, prompt_id=f"p{number}") for number, row in enumerate(chances)))
    started = time.process_time()
    replay_all(trace, range(1, 33))
    assert time.process_time() - started < 0.6  # 0.06 on an idle core; shared ones stretch even CPU time
