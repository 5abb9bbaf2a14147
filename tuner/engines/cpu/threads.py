"""How many threads to use, decided by trying them on the model itself."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.model import LanguageModel

TRIALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadChoice:
    """A number of threads, and what it was chosen by.

    Attributes:
        seconds: Fastest pass of one row with each number of threads tried; empty where none was.
    """

    threads: int
    seconds: dict[int, float]

    @property
    def text(self) -> str:
        """For the record, e.g. ``"1: 26.5 ms, 2: 23.4 ms"``."""
        if not self.seconds:
            return "not run: the number of threads was given"
        return ", ".join(f"{threads}: {1000 * seconds:.1f} ms" for threads, seconds in self.seconds.items())


def available_threads() -> int:
    """CPUs that this process may use, and no more than ``OMP_NUM_THREADS`` allows."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cpus, int(limit)) if limit.isdecimal() else cpus)


def candidates(available: int) -> list[int]:
    """1, 2, 4, … and the number available."""
    doubled = [1 << power for power in range(available.bit_length()) if 1 << power < available]
    return [*doubled, available]


@torch.inference_mode()
def choose_threads(target: LanguageModel, given: int | None) -> ThreadChoice:
    """The given number, or the one with which the target's pass over one row is fastest."""
    if given is not None:
        return ThreadChoice(threads=given, seconds={})
    seconds = {threads: _fastest_pass_s(target, threads) for threads in candidates(available_threads())}
    return ThreadChoice(threads=min(seconds, key=seconds.__getitem__), seconds=seconds)


def _fastest_pass_s(target: LanguageModel, threads: int) -> float:
    torch.set_num_threads(threads)
    row = torch.zeros(1, dtype=torch.long)
    observed = []
    for _ in range(TRIALS):
        began_s = time.perf_counter()
        target.choose(target.hidden_states(row, [Segment(0, 0, 1)]))
        observed.append(time.perf_counter() - began_s)
    return min(observed)
