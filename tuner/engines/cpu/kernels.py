"""Matrix multiplication in the weight formats of this engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tuner.errors import UnsupportedConfigurationError

# [rows, in] -> [rows, out]
Linear = Callable[[Tensor], Tensor]

INT8_LEVELS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One way of storing weights and multiplying by them.

    Attributes:
        name: As ``EngineConfig.weight_format`` spells it.
        bytes_per_weight: Of a matrix, as stored.
        is_lossless: Whether a row's result is the same however many rows are multiplied together.
        prepare: Makes the multiplication out of an fp32 matrix [out, in] and a bias [out].
    """

    name: str
    bytes_per_weight: int
    is_lossless: bool
    prepare: Callable[[Tensor, Tensor | None], Linear]


def kernel_of(weight_format: str) -> Kernel:
    """The kernel of that name; ``"auto"`` is fp16-packed where FBGEMM exists and fp32 elsewhere.

    Raises:
        UnsupportedConfigurationError: This build of PyTorch has no FBGEMM (macOS, ARM).
    """
    if weight_format == "auto":
        weight_format = "fp16-packed" if has_fbgemm() else "fp32"
    kernel = KERNELS[weight_format]
    if kernel is not FP32 and not has_fbgemm():
        raise UnsupportedConfigurationError(
            f"weight_format {weight_format!r} needs FBGEMM, which this build of PyTorch lacks",
            "set weight_format to 'fp32' or 'auto'",
        )
    return kernel


def has_fbgemm() -> bool:
    """Whether PyTorch was built with FBGEMM, the library of the packed formats."""
    return "fbgemm" in torch.backends.quantized.supported_engines


@contextmanager
def _packing_for_fbgemm() -> Iterator[None]:
    # The engine is a global of PyTorch; it matters while packing only, for the packed weight remembers its own.
    previous = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        yield
    finally:
        torch.backends.quantized.engine = previous


def _prepare_fp32(weight: Tensor, bias: Tensor | None) -> Linear:
    kept = weight.float().contiguous()
    return lambda rows: functional.linear(rows, kept, bias)


def _prepare_fp16_packed(weight: Tensor, bias: Tensor | None) -> Linear:
    largest = float(weight.abs().max())
    if largest > torch.finfo(torch.float16).max:  # FBGEMM would cut it off and only warn
        raise UnsupportedConfigurationError(
            f"a weight of {largest:.3g} is too large for weight_format 'fp16-packed'", "set weight_format to 'fp32'"
        )
    with _packing_for_fbgemm():
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
    multiply: Callable[[Tensor, object], Tensor] = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda rows: multiply(rows, packed)


def _prepare_int8(weight: Tensor, bias: Tensor | None) -> Linear:
    weight = weight.float()
    scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / INT8_LEVELS
    zeros = torch.zeros(weight.shape[0], dtype=torch.long)
    with _packing_for_fbgemm(), warnings.catch_warnings():
        # PyTorch announces the end of its quantized tensors; what replaces them has no CPU kernel as fast.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantized, bias)
    multiply: Callable[[Tensor, object, bool], Tensor] = torch.ops.quantized.linear_dynamic.default
    return lambda rows: multiply(rows, packed, True)


FP32 = Kernel(name="fp32", bytes_per_weight=4, is_lossless=True, prepare=_prepare_fp32)
FP16_PACKED = Kernel(name="fp16-packed", bytes_per_weight=2, is_lossless=True, prepare=_prepare_fp16_packed)
INT8 = Kernel(name="int8", bytes_per_weight=1, is_lossless=False, prepare=_prepare_int8)

KERNELS = {kernel.name: kernel for kernel in (FP16_PACKED, FP32, INT8)}
