"""The two drafts as PyTorch modules, with the forward passes used in training.

Both share the target's embedding, frozen, also as the output head over the
draft vocabulary. Positions are relative (rotary), so a batch may be aligned
at the end of the prompts, and prompt tokens only ever serve as keys and
values of the last layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import Batch
from target import EPS, GROUP, HEAD_DIM, HIDDEN, KV_HEADS, Q_SIZE, Target, rope_tables, rotate
from torch import Tensor, nn

MAX_POSITIONS = 1024
SCALE = HEAD_DIM**-0.5


class DraftLayer(nn.Module):
    """One llama decoder layer whose attention takes its keys from outside."""

    input_layernorm: nn.Parameter
    post_attention_layernorm: nn.Parameter
    q_proj: nn.Parameter
    k_proj: nn.Parameter
    v_proj: nn.Parameter
    o_proj: nn.Parameter
    gate_proj: nn.Parameter
    up_proj: nn.Parameter
    down_proj: nn.Parameter

    def __init__(self, target: Target, index: int) -> None:
        """Start from the target's layer ``index``."""
        super().__init__()
        part = {
            name.removeprefix(f"layers.{index}."): value
            for name, value in target.tensors.items()
            if name.startswith(f"layers.{index}.")
        }
        for name, value in part.items():
            short = name.split(".")[-2]
            self.register_parameter(short, nn.Parameter(value.clone()))

    def normed(self, x: Tensor) -> Tensor:
        """The attention's input."""
        return F.rms_norm(x, (HIDDEN,), self.input_layernorm, EPS)

    def query(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries [batch, KV_HEADS, GROUP, length, HEAD_DIM] of normed input."""
        heads = F.linear(y, self.q_proj).view(*y.shape[:2], KV_HEADS, GROUP, HEAD_DIM)
        return rotate(heads.permute(0, 2, 3, 1, 4).float(), cos, sin)

    def key_value(self, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [batch, KV_HEADS, length, HEAD_DIM] of normed input."""
        shape = (*y.shape[:2], KV_HEADS, HEAD_DIM)
        key = F.linear(y, self.k_proj).view(shape).transpose(1, 2).float()
        return rotate(key, cos, sin), F.linear(y, self.v_proj).view(shape).transpose(1, 2).float()

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Output projection and MLP; ``mixed`` is shaped like ``query``'s result."""
        flat = mixed.permute(0, 3, 1, 2, 4).reshape(*x.shape[:2], Q_SIZE)
        x = x + F.linear(flat, self.o_proj)
        y = F.rms_norm(x, (HIDDEN,), self.post_attention_layernorm, EPS)
        return x + F.linear(F.silu(F.linear(y, self.gate_proj)) * F.linear(y, self.up_proj), self.down_proj)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, extra: list[tuple[Tensor, Tensor]] | None = None
) -> Tensor:
    """Grouped attention; ``extra`` adds for every query one key and value of its own each.

    ``mask`` is [batch, length, keys], True where a query may look.
    """
    batch, groups, _, length, _ = query.shape
    flat = query.reshape(batch, groups, GROUP * length, HEAD_DIM)
    scores = (flat @ keys.transpose(-1, -2)).view(batch, groups, GROUP, length, -1) * SCALE
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    own = [(query * key[:, :, None]).sum(-1, keepdim=True) * SCALE for key, _ in extra or []]
    weights = torch.cat([scores, *own], dim=-1).softmax(dim=-1)
    shared = weights[..., : keys.shape[2]].reshape(batch, groups, GROUP * length, -1)
    mixed = (shared @ values).view(query.shape)
    for i, (_, value) in enumerate(extra or []):
        mixed = mixed + weights[..., keys.shape[2] + i, None] * value[:, :, None]
    return mixed


def shift(x: Tensor, by: int, dim: int) -> Tensor:
    """Move ``x`` by ``by`` places towards the end of ``dim``, with zeros in front."""
    if by == 0:
        return x
    length = x.shape[dim]
    front = torch.zeros_like(x.narrow(dim, 0, min(by, length)))
    return torch.cat([front, x.narrow(dim, 0, max(length - by, 0))], dim=dim)


def answer_mask(context_mask: Tensor, span: int, lag: int = 0) -> Tensor:
    """Which keys (context, then answer) each answer position sees, the last ``lag`` hidden."""
    rows, width = context_mask.shape
    causal = torch.ones(span, span, dtype=torch.bool).tril(-lag)
    context = context_mask[:, None].expand(rows, span, width)
    return torch.cat([context, causal.expand(rows, span, span)], dim=-1)


class Draft(nn.Module):
    """What both drafts share: embedding, final norm and the reduced head."""

    embedding: Tensor
    head: Tensor
    vocabulary: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, target: Target, vocabulary: Tensor, layers: list[int]) -> None:
        """Start from the given layers of the target."""
        super().__init__()
        self.blocks = [DraftLayer(target, index) for index in layers]
        self.layers = nn.ModuleList(self.blocks)
        self.norm = nn.Parameter(target.norm.clone())
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.register_buffer("head", target.embedding[vocabulary].clone(), persistent=False)
        self.register_buffer("vocabulary", vocabulary)
        cos, sin = rope_tables(MAX_POSITIONS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def final(self, x: Tensor) -> Tensor:
        """The final norm."""
        return F.rms_norm(x.float(), (HIDDEN,), self.norm, EPS)

    def tables(self, start: int, length: int) -> tuple[Tensor, Tensor]:
        """Rotary tables of ``length`` positions from ``start``."""
        return self.cos[start : start + length], self.sin[start : start + length]


class EagleDraft(Draft):
    """One layer over [embedding of the token, hidden state of the token before]."""

    def __init__(self, target: Target, vocabulary: Tensor, layers: list[int]) -> None:
        """Start from the target's last layer; ``fc`` passes the embedding through."""
        super().__init__(target, vocabulary, layers)
        identity = torch.eye(HIDDEN)
        self.fc = nn.Parameter(torch.cat([identity, 0.05 * identity], dim=1))

    def join(self, tokens: Tensor, features: Tensor) -> Tensor:
        """The layer's input."""
        return F.linear(torch.cat([F.embedding(tokens, self.embedding), features], dim=-1), self.fc).float()

    def unroll(self, batch: Batch, depth: int, noise: float = 0.0) -> list[Tensor]:
        """Output features of draft steps 1 to ``depth`` at every answer position.

        Step 1 has the target's own hidden states. Step j at a position belongs
        to the chain that began j - 1 positions earlier: its feature input is
        the output of step j - 1 one position before, and it attends to the
        step-1 keys up to the chain's beginning and to the chain's own keys.
        Positions before j - 1 have no such chain; their output is meaningless.
        """
        layer = self.blocks[0]
        width, span = batch.context.shape[1], batch.tokens.shape[1]
        cos, sin = self.tables(width, span)
        previous, context_previous = batch.previous, batch.context_previous
        if noise:
            previous = previous + noise * torch.randn_like(previous)
            context_previous = context_previous + noise * torch.randn_like(context_previous)
        context = layer.normed(self.join(batch.context, context_previous))
        context_key, context_value = layer.key_value(context, *self.tables(0, width))
        outputs: list[Tensor] = []
        chain: list[tuple[Tensor, Tensor]] = []
        features, keys, values = previous, context_key, context_value
        for step in range(depth):
            x = self.join(batch.tokens, features)
            y = layer.normed(x)
            key, value = layer.key_value(y, cos, sin)
            if step == 0:
                keys = torch.cat([context_key, key], dim=2)
                values = torch.cat([context_value, value], dim=2)
            else:
                chain.append((key, value))
            # The i-th own key of the chain lies step - i places back.
            extra = [(shift(k, step - i, 2), shift(v, step - i, 2)) for i, (k, v) in enumerate(chain, 1)]
            mask = answer_mask(batch.pair_mask, span, step)
            mixed = attend(layer.query(y, cos, sin), keys, values, mask, extra)
            outputs.append(self.final(layer.finish(x, mixed)))
            features = shift(outputs[-1], 1, 1)
        return outputs


class ShallowDraft(Draft):
    """A two-layer causal language model."""

    def forward(self, batch: Batch) -> Tensor:
        """Output features at every answer position."""
        first, last = self.blocks
        width, span = batch.context.shape[1], batch.tokens.shape[1]
        tables = self.tables(0, width + span)
        own = self.tables(width, span)
        x = F.embedding(torch.cat([batch.context, batch.tokens], dim=1), self.embedding)
        rows = torch.ones(width, width, dtype=torch.bool).tril()[None] & batch.context_mask[:, None]
        rows = rows | torch.eye(width, dtype=torch.bool)  # a padded row sees itself, to stay finite
        blank = torch.zeros(len(x), width, span, dtype=torch.bool)
        after = answer_mask(batch.context_mask, span)
        seen = torch.cat([torch.cat([rows, blank], dim=2), after], dim=1)
        y = first.normed(x)
        keys, values = first.key_value(y, *tables)
        x = first.finish(x, attend(first.query(y, *tables), keys, values, seen))
        y = last.normed(x)
        keys, values = last.key_value(y, *tables)
        mixed = attend(last.query(y[:, width:], *own), keys, values, after)
        return self.final(last.finish(x[:, width:], mixed))
