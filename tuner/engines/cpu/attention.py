"""Attention over cached keys and values, for the three shapes that decoding needs.

Each layer hands over its projected rows, queries and keys already rotated; an attention object knows which sequence
each row belongs to, writes keys and values into the cache and returns the mixed values. One object serves all layers
of one pass, so that every slice of the cache is cut once per pass and not once per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Numbers of heads and their width."""

    query: int
    key_value: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.query // self.key_value

    @property
    def query_width(self) -> int:
        """Columns of a projected row that hold queries."""
        return self.query * self.dim

    @property
    def rotated_width(self) -> int:
        """Columns of a projected row that hold queries and keys; values follow."""
        return (self.query + self.key_value) * self.dim


class Cache:
    """Keys and values of every layer and slot, in one tensor [layers, 2, slots, key_value heads, length, dim]."""

    def __init__(self, layers: int, slots: int, heads: Heads, length: int) -> None:
        self.heads = heads
        self.length = length
        self.data = torch.zeros(layers, 2, slots, heads.key_value, length, heads.dim)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one sequence: ``rows`` tokens from ``position`` on, cached in ``slot``."""

    slot: int
    position: int
    rows: int


class Attention(Protocol):
    """Mixes values for the rows of one pass."""

    @property
    def positions(self) -> slice | Tensor:
        """Of each row, to rotate it by: a slice where they are consecutive."""
        ...

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Mixed values [rows, query heads * dim] of projected rows [rows, (query + 2 key_value heads) * dim]."""
        ...


class SequenceAttention:
    """Rows of one sequence. A row sees everything cached before it, and itself."""

    def __init__(self, cache: Cache, segment: Segment) -> None:
        slot, start, end = segment.slot, segment.position, segment.position + segment.rows
        self.heads, self.rows = cache.heads, segment.rows
        self.positions = slice(start, end)
        self.written = cache.data[:, :, slot, :, start:end].unbind(0)
        self.keys = cache.data[:, 0, slot : slot + 1, :, :end].unbind(0)
        self.values = cache.data[:, 1, slot : slot + 1, :, :end].unbind(0)
        self.mask = None if segment.rows == 1 else causal_mask(segment.rows, start, self.heads.group)

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Mixed values, see ``Attention``."""
        heads, rows = self.heads, self.rows
        new = projected[:, heads.query_width :].view(rows, 2, heads.key_value, heads.dim)
        self.written[layer].copy_(new.permute(1, 2, 0, 3))
        grouped = projected[:, : heads.query_width].view(rows, heads.key_value, heads.group, heads.dim)
        if rows == 1:
            mixed = functional.scaled_dot_product_attention(grouped, self.keys[layer], self.values[layer])
            return mixed.view(1, heads.query_width)
        query = grouped.transpose(0, 1).reshape(1, heads.key_value, rows * heads.group, heads.dim)
        mixed = functional.scaled_dot_product_attention(
            query, self.keys[layer], self.values[layer], attn_mask=self.mask
        )
        mixed = mixed.view(heads.key_value, rows, heads.group, heads.dim)
        return mixed.transpose(0, 1).reshape(rows, heads.query_width)


class BatchAttention:
    """Rows of several sequences, one after the other. Each sequence is computed as it would be alone."""

    def __init__(self, cache: Cache, segments: Sequence[Segment]) -> None:
        self.parts = [SequenceAttention(cache, segment) for segment in segments]
        self.rows = [segment.rows for segment in segments]
        self.positions = torch.cat([torch.arange(s.position, s.position + s.rows) for s in segments])

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Mixed values, see ``Attention``."""
        pieces = torch.split(projected, self.rows)
        return torch.cat([part(layer, piece) for part, piece in zip(self.parts, pieces, strict=True)])


def attend(cache: Cache, segments: Sequence[Segment]) -> Attention:
    """The attention of these segments, in this order of rows."""
    return SequenceAttention(cache, segments[0]) if len(segments) == 1 else BatchAttention(cache, segments)


class BranchAttention:
    """Many continuations of one cached sequence at once, each seeing its own beginning and its own new keys.

    Branch r sees ``seen[r]`` cached entries and whatever it appended before; nothing is written to the cache.
    One object serves several passes: each appends one entry to every branch.
    """

    def __init__(self, cache: Cache, slot: int, seen: Tensor) -> None:
        self.heads, self.positions = cache.heads, seen
        longest = int(seen.max())
        self.shared = cache.data[:, :, slot, :, :longest]
        hidden = torch.arange(longest) >= seen.repeat_interleave(cache.heads.group)[:, None]
        self.mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        self.own: list[Tensor | None] = [None] * cache.data.shape[0]  # [2, branches, key_value heads, appended, dim]

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Mixed values, see ``Attention``."""
        heads, rows = self.heads, len(projected)
        query = projected[:, : heads.query_width].view(rows, heads.key_value, heads.group, heads.dim)
        keys, values = self._append(layer, projected[:, heads.query_width :])
        shared_keys, shared_values = self.shared[layer].unbind(0)
        by_head = query.transpose(0, 1).reshape(heads.key_value, rows * heads.group, heads.dim)
        old = by_head @ shared_keys.transpose(1, 2) * heads.dim**-0.5 + self.mask
        new = (query @ keys.transpose(2, 3) * heads.dim**-0.5).transpose(0, 1).flatten(1, 2)
        shares = torch.softmax(torch.cat([old, new], -1), -1)
        old, new = torch.split(shares, [old.shape[-1], new.shape[-1]], -1)
        from_old = (old @ shared_values).view(heads.key_value, rows, heads.group, heads.dim)
        from_new = new.view(heads.key_value, rows, heads.group, -1).transpose(0, 1) @ values
        return (from_old.transpose(0, 1) + from_new).reshape(rows, heads.query_width)

    def _append(self, layer: int, projected: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.heads
        new = projected.reshape(-1, 2, heads.key_value, 1, heads.dim).transpose(0, 1)
        before = self.own[layer]
        both = new if before is None else torch.cat([before, new], 3)
        self.own[layer] = both
        return both[0], both[1]

    def step(self) -> None:
        """Move every branch on by one position."""
        self.positions = self.positions + 1


# Rows of a round: k drafted tokens and the one before them. Larger masks are prefills and are made when needed.
CACHED_MASK_ROWS = 32
CACHED_MASK_LENGTH = 4096


def causal_mask(rows: int, position: int, group: int) -> Tensor:
    """Additive mask [rows * group, position + rows]: 0 for what a row sees, -inf for what comes after it."""
    if rows <= CACHED_MASK_ROWS and position <= CACHED_MASK_LENGTH:
        widest = _mask(rows, CACHED_MASK_LENGTH, group)
        return widest[:, CACHED_MASK_LENGTH - position :]
    return _mask.__wrapped__(rows, position, group)


@lru_cache(maxsize=64)
def _mask(rows: int, position: int, group: int) -> Tensor:
    later = torch.full((rows, rows), float("-inf")).triu(1)
    return torch.cat([torch.zeros(rows, position), later], 1).repeat_interleave(group, 0)
