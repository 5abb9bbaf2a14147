"""Decoder layers of the Llama family, with fused projections and a fixed cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tuner.engines.cpu.attention import Attention, Cache, Heads, Segment, attend
from tuner.engines.cpu.kernels import Kernel, Linear
from tuner.engines.cpu.limits import MAX_DRAFTED_TOKENS
from tuner.engines.cpu.norm import RmsNorm
from tuner.engines.cpu.rope import pairs_side_by_side, rotations
from tuner.engines.cpu.weights import Weights
from tuner.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. ``query_norm`` and ``key_norm`` are None for architectures without them."""

    attention_norm: RmsNorm
    qkv: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    attention_out: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


class Stack:
    """Decoder layers with their final norm and their own cache: embeddings in, hidden states out."""

    def __init__(self, weights: Weights, config: ModelConfig, kernel: Kernel, *, slots: int, length: int) -> None:
        prefix = weights.prefix
        self.heads = Heads(query=config.num_attention_heads, key_value=config.num_key_value_heads, dim=config.head_dim)
        self.layers = [
            self._read_layer(weights, f"{prefix}layers.{i}.", kernel, config.rms_norm_eps)
            for i in range(config.num_hidden_layers)
        ]
        self.norm = RmsNorm(weights.get(f"{prefix}norm.weight"), config.rms_norm_eps)
        self.cache = Cache(config.num_hidden_layers, slots, self.heads, length)
        # Replay rolls out past the end of an output, by as many tokens as can be drafted.
        positions = length + MAX_DRAFTED_TOKENS
        self.rotations = rotations(config.head_dim, config.rope_theta, config.rope_scaling, positions)[:, None]
        self.weight_bytes = layer_weights(config) * kernel.bytes_per_weight

    def _read_layer(self, weights: Weights, prefix: str, kernel: Kernel, eps: float) -> Layer:
        def norm(name: str) -> RmsNorm:
            return RmsNorm(weights.get(f"{prefix}{name}.weight"), eps)

        def head_norm(name: str) -> RmsNorm | None:
            full = f"{prefix}self_attn.{name}.weight"
            if full not in weights.names:
                return None
            return RmsNorm(pairs_side_by_side(weights.get(full), self.heads.dim), eps)

        return Layer(
            attention_norm=norm("input_layernorm"),
            qkv=kernel.prepare(*self._fused_qkv(weights, f"{prefix}self_attn.")),
            query_norm=head_norm("q_norm"),
            key_norm=head_norm("k_norm"),
            attention_out=kernel.prepare(*_matrix(weights, f"{prefix}self_attn.o_proj")),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=kernel.prepare(*_fused([_matrix(weights, f"{prefix}mlp.{name}_proj") for name in ("gate", "up")])),
            down=kernel.prepare(*_matrix(weights, f"{prefix}mlp.down_proj")),
        )

    def _fused_qkv(self, weights: Weights, prefix: str) -> tuple[Tensor, Tensor | None]:
        parts = []
        for name in "qkv":
            weight, bias = _matrix(weights, f"{prefix}{name}_proj")
            if name != "v":
                weight = pairs_side_by_side(weight, self.heads.dim)
                bias = None if bias is None else pairs_side_by_side(bias, self.heads.dim)
            parts.append((weight, bias))
        return _fused(parts)

    def attend(self, segments: Sequence[Segment]) -> Attention:
        """Attention over this stack's cache."""
        return attend(self.cache, segments)

    def forward(self, rows: Tensor, attention: Attention) -> Tensor:
        """Hidden states after the final norm [rows, hidden] of embedded rows, which are overwritten."""
        rotation = self.rotations[attention.positions]
        for index, layer in enumerate(self.layers):
            projected = layer.qkv(layer.attention_norm(rows))
            self._rotate(layer, projected, rotation)
            rows.add_(layer.attention_out(attention(index, projected)))
            gate, up = layer.gate_up(layer.mlp_norm(rows)).chunk(2, 1)
            rows.add_(layer.down(functional.silu(gate).mul_(up)))
        return self.norm(rows)

    def _rotate(self, layer: Layer, projected: Tensor, rotation: Tensor) -> None:
        heads, rows = self.heads, len(projected)
        rotated = projected[:, : heads.rotated_width].view(rows, heads.query + heads.key_value, heads.dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = rotated[:, : heads.query], rotated[:, heads.query :]
            query.copy_(layer.query_norm(query))
            key.copy_(layer.key_norm(key))
        torch.view_as_complex(rotated.view(rows, -1, heads.dim // 2, 2)).mul_(rotation)


def layer_weights(config: ModelConfig) -> int:
    """Entries of all matrices of the decoder layers."""
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    attention = config.hidden_size * (2 * query + 2 * key_value)
    return config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def _matrix(weights: Weights, name: str) -> tuple[Tensor, Tensor | None]:
    bias = weights.get(f"{name}.bias").float() if f"{name}.bias" in weights.names else None
    return weights.get(f"{name}.weight").float(), bias


def _fused(parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    biases = [bias for _, bias in parts if bias is not None]
    return torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None
