"""The target model in plain PyTorch: weights, one forward pass, greedy decoding.

``transformers`` would do, but its cache grows by copying; decoding a large
batch with fixed cache slots takes about half the CPU time per token, and it
hands over the final hidden states that the EAGLE draft is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

HIDDEN = 576
INTERMEDIATE = 1536
LAYERS = 30
HEADS = 9
KV_HEADS = 3
HEAD_DIM = 64
EPS = 1e-5
ROPE_THETA = 100_000.0
VOCAB = 49_152
END_OF_TURN = 2
GROUP = HEADS // KV_HEADS
Q_SIZE = HEADS * HEAD_DIM
KV_SIZE = KV_HEADS * HEAD_DIM


def rope_tables(length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables of shape [length, HEAD_DIM], in the half-split layout."""
    frequencies = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding to ``x`` [..., HEAD_DIM]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


@dataclass
class Layer:
    """The weights of one decoder layer, with fused input projections."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class Target:
    """The target's weights, in fp32 with fp16-rounded matrices."""

    embedding: Tensor
    norm: Tensor
    layers: list[Layer]
    tensors: dict[str, Tensor] = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Target:
        """Read the Hugging Face folder written by ``convert.py``."""
        raw = load_file(str(folder / "model.safetensors"))
        tensors = {name.removeprefix("model."): value.float() for name, value in raw.items()}
        layers = []
        for i in range(LAYERS):
            part = {k.removeprefix(f"layers.{i}."): v for k, v in tensors.items() if k.startswith(f"layers.{i}.")}
            attention = [part[f"self_attn.{p}_proj.weight"] for p in "qkv"]
            layers.append(
                Layer(
                    attention_norm=part["input_layernorm.weight"],
                    mlp_norm=part["post_attention_layernorm.weight"],
                    qkv=torch.cat(attention),
                    out=part["self_attn.o_proj.weight"],
                    gate_up=torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]]),
                    down=part["mlp.down_proj.weight"],
                )
            )
        return cls(tensors["embed_tokens.weight"], tensors["norm.weight"], layers, tensors)


def mlp(layer: Layer, x: Tensor) -> Tensor:
    """The second half of a layer."""
    gate, up = F.linear(F.rms_norm(x, (HIDDEN,), layer.mlp_norm, EPS), layer.gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, layer.down)


def project(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [..., heads, HEAD_DIM], not yet rotated."""
    fused = F.linear(F.rms_norm(x, (HIDDEN,), layer.attention_norm, EPS), layer.qkv)
    query, key, value = fused.split([Q_SIZE, KV_SIZE, KV_SIZE], dim=-1)  # type: ignore[no-untyped-call]
    heads = (*x.shape[:-1], -1, HEAD_DIM)
    return query.reshape(heads), key.reshape(heads), value.reshape(heads)


class SlotDecoder:
    """Greedy decoding of many sequences at once, one cache slot for each.

    A finished sequence frees its slot for the next prompt, so no step waits
    for the longest answer of a batch.
    """

    def __init__(self, target: Target, slots: int, max_length: int) -> None:
        """Reserve the cache for ``slots`` sequences of at most ``max_length`` tokens."""
        self.target = target
        self.max_length = max_length
        self.cos, self.sin = rope_tables(max_length)
        shape = (slots, KV_HEADS, max_length, HEAD_DIM)
        self.keys = [torch.zeros(shape) for _ in target.layers]
        self.values = [torch.zeros(shape) for _ in target.layers]
        self.lengths = torch.zeros(slots, dtype=torch.long)

    def prefill(self, slot: int, tokens: list[int]) -> Tensor:
        """Run a prompt into ``slot``; the final hidden states [len(tokens), HIDDEN]."""
        count = len(tokens)
        x = F.embedding(torch.tensor(tokens), self.target.embedding)
        cos, sin = self.cos[:count, None], self.sin[:count, None]
        for i, layer in enumerate(self.target.layers):
            query, key, value = project(layer, x)
            query, key = rotate(query, cos, sin).transpose(0, 1), rotate(key, cos, sin).transpose(0, 1)
            value = value.transpose(0, 1)
            self.keys[i][slot, :, :count] = key
            self.values[i][slot, :, :count] = value
            mixed = F.scaled_dot_product_attention(
                query[None],
                key.repeat_interleave(GROUP, 0)[None],
                value.repeat_interleave(GROUP, 0)[None],
                is_causal=True,
            )
            x = x + F.linear(mixed[0].transpose(0, 1).reshape(count, Q_SIZE), layer.out)
            x = mlp(layer, x)
        self.lengths[slot] = count
        return F.rms_norm(x, (HIDDEN,), self.target.norm, EPS)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to every slot; the final hidden states [slots, HIDDEN]."""
        slots = len(tokens)
        rows = torch.arange(slots)
        position = self.lengths
        span = int(position.max()) + 1
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]
        hidden_keys = torch.arange(span)[None] > position[:, None]
        mask = torch.zeros(slots, span).masked_fill_(hidden_keys, float("-inf"))[:, None, None]
        mask = mask.expand(slots, 1, GROUP, span)
        x = F.embedding(tokens, self.target.embedding)
        for i, layer in enumerate(self.target.layers):
            query, key, value = project(layer, x)
            self.keys[i][rows, :, position] = rotate(key, cos, sin)
            self.values[i][rows, :, position] = value
            mixed = F.scaled_dot_product_attention(
                rotate(query, cos, sin).view(slots, KV_HEADS, GROUP, HEAD_DIM),
                self.keys[i][:, :, :span],
                self.values[i][:, :, :span],
                attn_mask=mask,
            )
            x = x + F.linear(mixed.reshape(slots, Q_SIZE), layer.out)
            x = mlp(layer, x)
        self.lengths = (position + 1).clamp(max=self.max_length - 1)
        return F.rms_norm(x, (HIDDEN,), self.target.norm, EPS)

    def choose(self, hidden: Tensor) -> Tensor:
        """The greedy next token for each row of ``hidden``."""
        return F.linear(hidden, self.target.embedding).argmax(dim=-1)
