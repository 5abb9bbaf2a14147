"""Limits of steps from the models' sizes: exact cases by hand, of published models and of the shipped heads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tuner.errors import ConfigurationError
from tuner.models.config import ModelConfig, read_model_config
from tuner.priors import (
    BANDWIDTH_LOSS,
    DEVICES,
    LOOKUP_PASS,
    MOST_ROW_SHARE,
    find_device,
    guessed_costs,
    pass_shares,
    plain_step_s,
    row_shares,
    step_limits,
    weight_count,
    weights_read,
)
from tuner.step_times import Step

DRAFTS = Path(__file__).parents[2] / "tuner" / "engines" / "cpu" / "drafts"


def a_qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> ModelConfig:
    return ModelConfig(
        architecture="qwen3",
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        tie_word_embeddings=tied,
        attention_bias=False,
        max_position_embeddings=40_960,
        eos_token_ids=frozenset(),
    )


QWEN3_32B = a_qwen3(5120, 25_600, 64, 64, tied=False)
QWEN3_1_7B = a_qwen3(2048, 6144, 28, 16, tied=True)
QWEN3_0_6B = a_qwen3(1024, 3072, 28, 16, tied=True)


@pytest.mark.parametrize(
    ("config", "billions"),
    [(QWEN3_32B, 32.762), (QWEN3_1_7B, 1.7206), (QWEN3_0_6B, 0.5960)],
    ids=["32B", "1.7B", "0.6B"],
)
def test_published_models_have_the_weights_that_they_are_named_after(config: ModelConfig, billions: float) -> None:
    assert weight_count(config) == pytest.approx(billions * 1e9, rel=1e-4)


def test_a_pass_reads_no_embedding_that_is_not_the_output_matrix_too() -> None:
    embedding = 151_936 * 5120
    assert weight_count(QWEN3_32B) - weights_read(QWEN3_32B) == embedding
    assert weight_count(QWEN3_0_6B) == weights_read(QWEN3_0_6B)


def test_an_eagle_head_reads_a_layer_its_joint_and_the_rows_that_it_can_choose() -> None:
    head = replace(QWEN3_32B, architecture="eagle", num_hidden_layers=1, draft_vocab_size=32_000)
    layer = (64 + 64 + 8 + 8) * 128 * 5120 + 3 * 5120 * 25_600 + 2 * 5120
    assert weights_read(head) == layer + 5120 + 32_000 * 5120 + 2 * 5120 * 5120
    assert weight_count(head) == weights_read(head)  # the embedding is the target's


def test_a_model_draft_takes_between_its_share_of_bytes_and_of_layers() -> None:
    # 28 of 64 layers for both; published points on Trainium2 lie at 0.07 to 0.20
    small, large = pass_shares(QWEN3_32B, QWEN3_0_6B), pass_shares(QWEN3_32B, QWEN3_1_7B)
    assert small == pytest.approx((0.5960 / 31.984, 28 / 64), rel=1e-3)
    assert large == pytest.approx((1.7206 / 31.984, 28 / 64), rel=1e-3)
    assert small[0] < 0.07
    assert small[1] > 0.20


def test_a_head_has_fewer_layers_than_bytes_and_its_limits_are_in_order() -> None:
    head = replace(QWEN3_32B, architecture="eagle", num_hidden_layers=1, draft_vocab_size=32_000)
    by_bytes = weights_read(head) / weights_read(QWEN3_32B)
    assert by_bytes > 1 / 64
    assert pass_shares(QWEN3_32B, head) == pytest.approx((1 / 64, BANDWIDTH_LOSS * by_bytes))


def test_looking_up_takes_next_to_nothing() -> None:
    assert pass_shares(QWEN3_32B, None) == LOOKUP_PASS
    assert step_limits(QWEN3_32B, None, most_drafted_tokens=8, wasted_draft_passes=1).wasted_draft_passes == 0


@pytest.mark.parametrize("folder", sorted(DRAFTS.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_the_shipped_heads_take_a_part_of_their_target(folder: Path) -> None:
    head = read_model_config(folder.parent)
    target = replace(head, architecture="llama", num_hidden_layers=30, draft_vocab_size=None, tie_word_embeddings=True)
    assert weight_count(target) == pytest.approx(134.5e6, rel=1e-3)  # SmolLM2-135M
    low, high = pass_shares(target, head)
    assert 0 < low < high < 0.5


def test_one_core_of_trainium2_has_a_quarter_of_its_chip() -> None:
    core, chip = DEVICES["trn2"], DEVICES["trn2-chip"]
    assert chip.bandwidth_bytes_per_s == 4 * core.bandwidth_bytes_per_s
    assert core.row_shares() == chip.row_shares()
    # 65.5 GB over sixteen cores' worth of bandwidth and over one chip's
    assert plain_step_s(2 * weight_count(QWEN3_32B), chip) == pytest.approx(65.524e9 / 2.9e12, rel=1e-4)


@pytest.mark.parametrize("name", sorted(set(DEVICES) - {"cpu"}))
def test_a_row_is_nearly_free_on_accelerators(name: str) -> None:
    low, high = row_shares(name)
    assert 0.002 < low < 0.01
    assert high == MOST_ROW_SHARE


def test_a_row_on_a_plain_machine_may_take_what_was_seen_there() -> None:
    low, high = row_shares("cpu")
    assert low < 0.8 / 6 < high  # seven rows took 1.8 times as long as one


def test_a_row_of_each_of_many_requests_takes_as_many_times_the_arithmetic() -> None:
    low, high = row_shares("h100", most_requests=16)
    assert low == row_shares("h100")[0]
    assert high == pytest.approx(3 * 16 * low)
    assert high > MOST_ROW_SHARE


def test_without_a_device_the_limits_are_those_of_all() -> None:
    assert row_shares(None) == (row_shares("l4")[0], row_shares("cpu")[1])


def test_an_unknown_device_is_named_with_its_nearest() -> None:
    with pytest.raises(ConfigurationError, match="no device named 'trn22'") as caught:
        find_device("trn22")
    assert "trn2" in caught.value.hint


def test_guessed_costs_hold_the_limits_in_milliseconds() -> None:
    drafts = {"small": QWEN3_0_6B, "lookup": None}
    costs = guessed_costs(QWEN3_32B, drafts, 40.0, most_drafted_tokens=15, device="trn2", wasted_draft_passes=1)
    assert costs.wasted_draft_passes == 1
    low, high = pass_shares(QWEN3_32B, QWEN3_0_6B)
    median, sd = costs.step_times.medians("pass", "small")[1]
    assert median == pytest.approx(40 * math.sqrt(low * high))
    assert sd == pytest.approx(math.log(high / low) / math.sqrt(12))
    assert costs.reaches("small", 15)
    assert not costs.reaches("small", 16)
    assert not costs.reaches("other", 1)
    row_low, row_high = row_shares("trn2")
    row = 40 * math.sqrt(row_low * row_high)
    assert costs.round_ms("small", 2) == pytest.approx(3 * median + row * np.arange(3))


def test_doubtful_positions_are_a_step_of_one_with_the_share_as_its_limit() -> None:
    costs = guessed_costs(QWEN3_32B, {"small": QWEN3_0_6B}, 40.0, most_drafted_tokens=15)
    doubted = costs.with_doubts({"small": 0.02})
    assert costs.with_doubts({"small": 0.0}) is costs
    assert costs.doubt("small", 3.0) is None
    index, weight = doubted.doubt("small", 3.0) or (0, 0.0)
    assert doubted.step_times.steps[index] == Step("doubt", "small", 1)
    assert doubted.step_times.medians("doubt", "small")[1] == pytest.approx((1.0, 0.02 / 1.96))
    assert weight == 3.0
    assert doubted.round_ms("small", 2) == pytest.approx(costs.round_ms("small", 2))
    assert (doubted.doubt("small", 99.0) or (0, 0.0))[1] == pytest.approx(0.25 * 1.96 / 0.02)
