"""Rotary position embedding as one complex multiplication.

A head's first and second half form pairs (x_i, x_{i + d/2}) that are rotated together. The rows of the query and
key projections are reordered once, at load, so that a pair lies side by side and can be read as one complex number.
Scores do not change: queries and keys are reordered alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tuner.errors import UnsupportedConfigurationError


def pairs_side_by_side(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a projection [heads * head_dim, …] from half-split to interleaved pairs."""
    heads = weight.shape[0] // head_dim
    split = weight.view(heads, 2, head_dim // 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def rotations(head_dim: int, theta: float, scaling: Mapping[str, Any] | None, length: int) -> Tensor:
    """Complex rotation of each pair at each position: [length, head_dim / 2].

    Raises:
        UnsupportedConfigurationError: ``scaling`` is of a kind other than llama3, linear or default.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), _scaled(frequencies, scaling))
    return torch.polar(torch.ones_like(angles), angles)


def _scaled(frequencies: Tensor, scaling: Mapping[str, Any] | None) -> Tensor:
    kind = "default" if scaling is None else str(scaling.get("rope_type", scaling.get("type", "default")))
    if scaling is None or kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    raise UnsupportedConfigurationError(
        f"rope scaling of type {kind!r} is not implemented", "the cpu engine knows: default, linear, llama3"
    )


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = original * frequencies / (2 * math.pi)
    share_kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return share_kept * frequencies + (1 - share_kept) * frequencies / factor
