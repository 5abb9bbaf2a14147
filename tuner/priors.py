"""What a round's steps may take before any was timed: limits from the models' sizes and a device's figures.

Decoding one token reads every weight once, so a plain round takes about weight bytes / memory bandwidth. A draft's
pass takes at least its share of the bytes. Small models do not reach the bandwidth, and their passes take as long as
their layers are many: drafts of Qwen3-32B on Trainium2 were seen at 0.07 to 0.20 of a target pass where the bytes say
0.02 and the layers 0.44. Truth lies between, and one measured configuration says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.cost_model import CostModel
from tuner.errors import ConfigurationError
from tuner.lookup import did_you_mean
from tuner.models.config import ModelConfig
from tuner.step_limits import StepLimits

BYTES_PER_WEIGHT = 2.0
"""Half precision, in which models are published and mostly served."""

LOOKUP_PASS = (1e-4, 1e-2)
"""Looking a proposal up takes microseconds and a round milliseconds; bringing it to the device may take a hundredth."""

BANDWIDTH_LOSS = 1.5
"""Most time of a pass over its share of the bytes where its layers say less, as of EAGLE heads: an allowance for
matrices that are too small to reach the bandwidth. One measured configuration replaces it."""

MOST_ROW_SHARE = 0.05
"""Of a plain round, for one further row on an accelerator: the upper end of the 1 to 5 % that the simulated worlds
assume. Within a kernel's tile a row is nearly free."""

MATRIX_LOSS = 3.0
"""Most time of a row over that at the matrix units' peak: on two cores seven rows took 1.8 times as long as one, 13 %
a row where the peak says 5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What decides the time of a pass.

    Attributes:
        bandwidth_bytes_per_s: Of the memory that holds the weights.
        matrix_flop_per_s: Dense products in half precision; on CPUs in single precision.
    """

    bandwidth_bytes_per_s: float
    matrix_flop_per_s: float

    @property
    def least_row_share(self) -> float:
        """Arithmetic of one row over reading the weights: 2 FLOP for each weight of two bytes."""
        return 2 * self.bandwidth_bytes_per_s / (BYTES_PER_WEIGHT * self.matrix_flop_per_s)

    def row_shares(self, most_requests: int = 1) -> tuple[float, float]:
        """Least and most of a plain round that one further row of each request may add, for 1 to so many in flight."""
        least = self.least_row_share
        return least, max(MOST_ROW_SHARE, MATRIX_LOSS * least * most_requests)


# Trainium2: AWS Neuron documentation, "Trainium2 Architecture" (667 BF16 TFLOPS for eight cores) and its guide for NKI
# (2.9 TB/s); a logical core is two of the eight cores (LNC=2, the default).
_TRN2_CHIP = Device(bandwidth_bytes_per_s=2.9e12, matrix_flop_per_s=667e12)

DEVICES: Mapping[str, Device] = {
    "trn2-chip": _TRN2_CHIP,
    "trn2": Device(
        bandwidth_bytes_per_s=_TRN2_CHIP.bandwidth_bytes_per_s / 4, matrix_flop_per_s=_TRN2_CHIP.matrix_flop_per_s / 4
    ),
    # AWS Neuron documentation, "Trainium Architecture", of a chip of two cores.
    "trn1-chip": Device(bandwidth_bytes_per_s=820e9, matrix_flop_per_s=190e12),
    "trn1": Device(bandwidth_bytes_per_s=410e9, matrix_flop_per_s=95e12),
    # NVIDIA's data sheets, without sparsity: H100 SXM, H200 SXM, A100 SXM of 80 GB, L4.
    "h100": Device(bandwidth_bytes_per_s=3.35e12, matrix_flop_per_s=989e12),
    "h200": Device(bandwidth_bytes_per_s=4.8e12, matrix_flop_per_s=989e12),
    "a100": Device(bandwidth_bytes_per_s=2.039e12, matrix_flop_per_s=312e12),
    "l4": Device(bandwidth_bytes_per_s=300e9, matrix_flop_per_s=121e12),
    # A plain machine of two cores: SmolLM2-135M, 269 MB in fp16, took 23 to 35 ms a token; 32 FLOP a cycle and core
    # with AVX2, at 2.5 GHz.
    "cpu": Device(bandwidth_bytes_per_s=8e9, matrix_flop_per_s=160e9),
}
"""By name; of accelerators one core as engines count them, and one chip."""


def find_device(name: str) -> Device:
    """The device of that name.

    Raises:
        ConfigurationError: There is none.
    """
    if name not in DEVICES:
        raise ConfigurationError(f"no device named {name!r}", did_you_mean(name, tuple(DEVICES)))
    return DEVICES[name]


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def weight_count(config: ModelConfig) -> int:
    """Weights of the model itself, biases and norms inside heads left out.

    A draft head that proposes a part of the vocabulary has no embedding of its own: it takes the target's.
    """
    has_embedding = config.draft_vocab_size is None and not config.tie_word_embeddings
    return weights_read(config) + (config.vocab_size * config.hidden_size if has_embedding else 0)


def weights_read(config: ModelConfig) -> int:
    """Weights that one pass reads: all but an embedding that is no output matrix, of which it reads one row."""
    rows = config.draft_vocab_size or config.vocab_size
    # An EAGLE head joins the token's embedding and the target's hidden state.
    fused = 2 * config.hidden_size**2 if "eagle" in config.architecture.lower() else 0
    return config.num_hidden_layers * _layer(config) + config.hidden_size + rows * config.hidden_size + fused


def _layer(config: ModelConfig) -> int:
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads  # q and o, k and v
    attention = heads * config.head_dim * config.hidden_size
    return attention + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size


def plain_step_s(weight_bytes: float, device: Device) -> float:
    """Seconds of one plain decode step, at least: every weight is read once."""
    return weight_bytes / device.bandwidth_bytes_per_s


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pass_shares(target: ModelConfig, draft: ModelConfig | None) -> tuple[float, float]:
    """Least and most of a target pass that one pass of the draft may take; None is a draft that looks up.

    From the lesser to the larger ratio of weights read and of layers.
    """
    if draft is None:
        return LOOKUP_PASS
    by_bytes = weights_read(draft) / weights_read(target)
    by_layers = draft.num_hidden_layers / target.num_hidden_layers
    return min(by_bytes, by_layers), max(BANDWIDTH_LOSS * by_bytes, by_layers)


def row_shares(device: str | None, most_requests: int = 1) -> tuple[float, float]:
    """Least and most of a plain round that one further row of each request may add; of all devices where none is named.

    Raises:
        ConfigurationError: There is no such device.
    """
    found = [find_device(device)] if device is not None else list(DEVICES.values())
    shares = [one.row_shares(most_requests) for one in found]
    return min(low for low, _ in shares), max(high for _, high in shares)


def step_limits(
    target: ModelConfig,
    draft: ModelConfig | None,
    *,
    most_drafted_tokens: int,
    device: str | None = None,
    wasted_draft_passes: int = 0,
    most_requests: int = 1,
) -> StepLimits:
    """Limits of the steps of a round with one draft; None is a draft that looks up.

    They hold for 1 to ``most_requests`` in flight.

    Raises:
        ConfigurationError: There is no such device.
    """
    return StepLimits(
        row=row_shares(device, most_requests),
        draft_pass=pass_shares(target, draft),
        most_drafted_tokens=most_drafted_tokens,
        wasted_draft_passes=0 if draft is None else wasted_draft_passes,
    )


def guessed_costs(
    target: ModelConfig,
    drafts: Mapping[str, ModelConfig | None],
    plain_round_ms: float,
    *,
    most_drafted_tokens: int,
    device: str | None = None,
    wasted_draft_passes: int = 0,
) -> CostModel:
    """A cost model from sizes alone, to be sharpened by measured configurations.

    Args:
        target: Its configuration.
        drafts: Theirs, by name; None for a draft that looks up.
        plain_round_ms: The baseline's measured time per token, or ``plain_step_s`` of the target.
        most_drafted_tokens: Of a round; no round of more is predicted.
        device: A name of ``DEVICES``; None takes the limits of all.
        wasted_draft_passes: As the engine's capabilities say.

    Raises:
        ConfigurationError: There is no such device.
    """
    limits = {
        name: step_limits(
            target,
            draft,
            most_drafted_tokens=most_drafted_tokens,
            device=device,
            wasted_draft_passes=wasted_draft_passes,
        )
        for name, draft in drafts.items()
    }
    return CostModel.guessed(limits, plain_round_ms)
