"""Checks of the recipe and of the training forward passes; run with ``pytest``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from acceptance import measure
from data import Sequence, collate
from export import restore, save, vocabulary
from model import DraftLayer, EagleDraft, ShallowDraft
from prompts import held_out_prompts, normalise, overlaps, training_prompts
from target import EPS, GROUP, HEAD_DIM, HIDDEN, INTERMEDIATE, KV_SIZE, LAYERS, Q_SIZE, Target, rope_tables, rotate
from templates import HELD_OUT, TRAINING
from torch import Tensor

ROWS = 700


def random_target() -> Target:
    """A target with random first and last layers and a small vocabulary."""
    torch.manual_seed(0)
    shapes = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (Q_SIZE, HIDDEN),
        "self_attn.k_proj": (KV_SIZE, HIDDEN),
        "self_attn.v_proj": (KV_SIZE, HIDDEN),
        "self_attn.o_proj": (HIDDEN, Q_SIZE),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    tensors = {
        f"layers.{i}.{name}.weight": torch.randn(shape) * 0.06 + (len(shape) == 1)
        for i in (0, LAYERS - 1)
        for name, shape in shapes.items()
    }
    embedding = torch.randn(ROWS, HIDDEN) * 0.1
    return Target(embedding, torch.ones(HIDDEN), [], tensors)


def random_sequence(prompt: int, answer: int, seed: int) -> Sequence:
    """A sequence of random tokens and features."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, ROWS, prompt + answer).tolist()
    features = rng.normal(size=(prompt + answer - 1, HIDDEN)).astype(np.float16)
    return Sequence("t", "numbers", tokens[:prompt], tokens[prompt:], features)


def plain_layer(layer: DraftLayer, x: Tensor, positions: Tensor, cache: list[Tensor], keep: bool) -> Tensor:
    """One decoder layer over new rows with a growing cache, as an engine would run it."""
    cos, sin = (table[positions][:, None] for table in rope_tables(512))
    y = F.rms_norm(x, (HIDDEN,), layer.input_layernorm, EPS)
    query = rotate((y @ layer.q_proj.T).view(len(x), -1, HEAD_DIM), cos, sin)
    key = torch.cat([cache[0], rotate((y @ layer.k_proj.T).view(len(x), -1, HEAD_DIM), cos, sin)])
    value = torch.cat([cache[1], (y @ layer.v_proj.T).view(len(x), -1, HEAD_DIM)])
    if keep:
        cache[:] = [key, value]
    mask = torch.ones(len(x), len(key), dtype=torch.bool).tril(len(key) - len(x))
    mixed = F.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1).repeat_interleave(GROUP, 0),
        value.transpose(0, 1).repeat_interleave(GROUP, 0),
        attn_mask=mask,
    )
    x = x + mixed.transpose(0, 1).reshape(len(x), Q_SIZE) @ layer.o_proj.T
    y = F.rms_norm(x, (HIDDEN,), layer.post_attention_layernorm, EPS)
    return x + (F.silu(y @ layer.gate_proj.T) * (y @ layer.up_proj.T)) @ layer.down_proj.T


def empty_cache() -> list[Tensor]:
    """No keys and no values."""
    return [torch.zeros(0, KV_SIZE // HEAD_DIM, HEAD_DIM), torch.zeros(0, KV_SIZE // HEAD_DIM, HEAD_DIM)]


@torch.no_grad()
def test_unroll_is_what_an_engine_computes() -> None:
    """Each chain of the unroll equals drafting one token after another."""
    draft = EagleDraft(random_target(), torch.arange(ROWS), [LAYERS - 1])
    draft.fc.normal_(0, 0.05)
    sequences = [random_sequence(9, 8, 1), random_sequence(14, 6, 2)]
    outputs = draft.unroll(collate(sequences), depth=3)
    for row, sequence in enumerate(sequences):
        tokens = torch.tensor(sequence.tokens)
        features = torch.from_numpy(sequence.features.astype(np.float32))
        first = len(sequence.prompt)
        for begin in range(first, len(tokens) - 3):
            cache = empty_cache()
            entries = torch.arange(1, begin + 1)
            x = draft.join(tokens[entries], features[entries - 1])
            state = draft.final(plain_layer(draft.blocks[0], x, entries - 1, cache, True))[-1:]
            for step in range(3):
                at = begin + step
                assert torch.allclose(state[0], outputs[step][row, at - first], atol=2e-4)
                x = draft.join(tokens[at + 1 : at + 2], state)
                state = draft.final(plain_layer(draft.blocks[0], x, torch.tensor([at]), cache, True))


@torch.no_grad()
def test_shallow_draft_is_a_causal_model() -> None:
    """Its training pass equals a plain pass over each whole sequence."""
    draft = ShallowDraft(random_target(), torch.arange(ROWS), [0, LAYERS - 1])
    sequences = [random_sequence(5, 8, 3), random_sequence(11, 7, 4)]
    outputs = draft(collate(sequences))
    for row, sequence in enumerate(sequences):
        tokens = torch.tensor(sequence.tokens[:-1])
        x = F.embedding(tokens, draft.embedding)
        for layer in draft.blocks:
            x = plain_layer(layer, x, torch.arange(len(tokens)), empty_cache(), False)
        expected = draft.final(x)[len(sequence.prompt) :]
        assert torch.allclose(expected, outputs[row, : len(expected)], atol=2e-4)


def test_export_can_be_read_back(tmp_path: Path) -> None:
    """An exported draft comes back with the same weights, rounded to fp16."""
    target, tokens = random_target(), torch.arange(0, ROWS, 2)
    draft = EagleDraft(target, tokens, [LAYERS - 1])
    save(draft, tmp_path)
    other = EagleDraft(target, vocabulary(tmp_path), [LAYERS - 1])
    with torch.no_grad():
        other.fc.zero_()
    restore(other, tmp_path)
    assert torch.equal(other.vocabulary, tokens)
    assert torch.equal(other.fc, draft.fc.half().float())
    assert torch.equal(other.blocks[0].q_proj, draft.blocks[0].q_proj.half().float())


def test_acceptance_counts_are_consistent() -> None:
    """Joint acceptance never rises with the position, and a round yields a token at least."""
    draft = ShallowDraft(random_target(), torch.arange(ROWS), [0, LAYERS - 1])
    tally = measure(draft, [random_sequence(6, 9, 5)], depth=3)["all"]
    assert tally.possible == [8, 7, 6]
    assert tally.accepted[0] >= tally.accepted[1] >= tally.accepted[2]
    assert tally.mean_tokens() >= 1


def test_prompts_are_seeded_and_split() -> None:
    """The same seed gives the same prompts, and no held-out prompt is trained on."""
    prompts = training_prompts(2000, 1)
    assert prompts[:50] == training_prompts(50, 1)
    trained = {normalise(prompt.text) for prompt in prompts}
    held_out = held_out_prompts()
    assert not any(normalise(prompt.text) in trained for prompt in held_out)
    assert set(TRAINING) == set(HELD_OUT) == {prompt.kind for prompt in held_out}


def test_overlap_is_found(tmp_path: Path) -> None:
    """A workload prompt that differs only in case and punctuation is reported."""
    (tmp_path / "w.jsonl").write_text('{"prompt": "count from 1 to 20, by ones"}\n{"prompt": "something else"}\n')
    assert overlaps(["Count from 1 to 20 by ones."], tmp_path) == [("w.jsonl", "count from 1 to 20, by ones")]
