"""How fast this machine's memory can be read: the bound on decoding, which reads every weight for every token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

ARRAY_BYTES = 1 << 30
READS = 5

# Each reads every byte once and writes next to nothing. Which is fastest depends on the machine; the limit is the best.
KERNELS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "float32_sum": lambda array: array.sum(),
    "float32_maximum": lambda array: array.amax(),
    "float32_dot": lambda array: torch.dot(*array.chunk(2)),
    "int32_maximum": lambda array: array.view(torch.int32).amax(),
    "int64_sum": lambda array: array.view(torch.int64).sum(),
}


@torch.inference_mode()
def read_bandwidths(threads: int) -> dict[str, float]:
    """Bytes per second of the best of five parallel reads of a 1 GiB array, by kernel."""
    torch.set_num_threads(threads)
    array = torch.ones(ARRAY_BYTES // 4)  # ones, since untouched zeros would all be one page of the system's
    fastest_s = {name: min(_seconds(kernel, array) for _ in range(READS)) for name, kernel in KERNELS.items()}
    return {name: ARRAY_BYTES / seconds for name, seconds in fastest_s.items()}


def _seconds(kernel: Callable[[Tensor], Tensor], array: Tensor) -> float:
    began_s = time.perf_counter()
    kernel(array).item()
    return time.perf_counter() - began_s
