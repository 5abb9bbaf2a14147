"""Sampling draws from the distribution that temperature, top-k and top-p leave, with and without drafts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from tuner.engines.cpu.sampling import Sampler, chooser, confirm, num_accepted
from tuner.engines.logits import distribution
from tuner.records import GREEDY, Sampling

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0])
PROBABILITIES = torch.softmax(LOGITS, 0)


def kept(sampling: Sampling) -> dict[int, float]:
    probabilities, token_ids = distribution(LOGITS, sampling)
    pairs = zip(token_ids.tolist(), probabilities.tolist(), strict=True)
    return {token: probability for token, probability in pairs if probability > 0}


def test_temperature_one_keeps_the_distribution() -> None:
    assert kept(Sampling(temperature=1.0)) == pytest.approx(dict(enumerate(PROBABILITIES.tolist())))


def test_a_low_temperature_sharpens_it() -> None:
    assert kept(Sampling(temperature=0.5))[1] == pytest.approx(float(torch.softmax(LOGITS / 0.5, 0)[1]))


def test_top_k_keeps_the_most_likely_and_renormalises() -> None:
    assert kept(Sampling(temperature=1.0, top_k=2)) == pytest.approx({1: 0.731059, 3: 0.268941}, abs=1e-5)


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    assert len(kept(Sampling(temperature=1.0, top_k=50))) == 5


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    # The two most likely have 0.55 and 0.20.
    assert set(kept(Sampling(temperature=1.0, top_p=0.5))) == {1}
    assert set(kept(Sampling(temperature=1.0, top_p=0.6))) == {1, 3}
    assert sum(kept(Sampling(temperature=1.0, top_p=0.6)).values()) == pytest.approx(1.0)


def test_temperature_zero_is_greedy() -> None:
    assert chooser(GREEDY)(LOGITS) == 1


def test_drawn_tokens_have_the_distribution() -> None:
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    counts = Counter(sampler(LOGITS) for _ in range(4000))
    observed = [counts[token] for token in range(5)]
    assert chisquare(observed, PROBABILITIES.double() / PROBABILITIES.double().sum() * 4000).pvalue > 1e-3


@pytest.mark.parametrize("drafted", [0, 1, 2])
def test_output_has_the_distribution_whatever_was_drafted(drafted: int) -> None:
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    first: Counter[int] = Counter()
    second: Counter[int] = Counter()
    for seed in range(4000):
        output = confirm([drafted], rows, Sampler(Sampling(temperature=1.0, seed=seed)), ())
        first[output[0]] += 1
        if len(output) > 1:
            second[output[1]] += 1
    assert chisquare([first[token] for token in range(5)], PROBABILITIES.double() * 4000, sum_check=False).pvalue > 1e-3
    expected = PROBABILITIES.flip(0).double() * second.total()
    assert chisquare([second[token] for token in range(5)], expected, sum_check=False).pvalue > 1e-3
    # Accepted as often as its own probability: min(1, p / q) with all of q on the drafted token.
    assert second.total() == first[drafted]


def test_a_seed_draws_the_same_tokens_with_any_draft() -> None:
    rows = torch.stack([LOGITS] * 4)
    alone = Sampler(Sampling(temperature=1.0, seed=11))
    expected = [alone(LOGITS) for _ in range(4)]
    assert confirm(expected[:3], rows, Sampler(Sampling(temperature=1.0, seed=11)), ()) == expected
    wrong = [expected[0], (expected[1] + 1) % 5, 0]
    assert confirm(wrong, rows, Sampler(Sampling(temperature=1.0, seed=11)), ()) == expected[:2]


def one_hot(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 10).float()


def test_a_round_ends_with_the_targets_own_token() -> None:
    assert confirm([3, 4], one_hot(3, 4, 5), chooser(GREEDY), ()) == [3, 4, 5]


def test_a_wrong_draft_is_replaced_and_ends_the_round() -> None:
    assert confirm([3, 4], one_hot(3, 7, 5), chooser(GREEDY), ()) == [3, 7]


def test_nothing_follows_an_end_inside_a_round() -> None:
    output = confirm([3, 4], one_hot(3, 4, 5), chooser(GREEDY), {3})
    assert output == [3]
    assert num_accepted([3, 4], output) == 1


def test_only_drafted_tokens_that_became_output_are_accepted() -> None:
    assert num_accepted([3, 4], [3, 7]) == 1
    assert num_accepted([3, 4], [3, 4, 5]) == 2
    assert num_accepted([], [5]) == 0
