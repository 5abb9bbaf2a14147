"""Timing single steps: one pass of the target, drafting, and the draft's reading of a prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.drafters import Ask
from tuner.errors import UnsupportedConfigurationError
from tuner.records import TimedSteps, TraceKind

# Cached tokens before a timed step: about a short chat prompt with half of its answer.
CONTEXT_TOKENS = 200
CONTEXT_PERIOD = 50


@torch.inference_mode()
def time_verify(decoder: Decoder, widths: Sequence[int], repeats: int, batch: int) -> TimedSteps:
    """Time one pass of the target with its choice of tokens, over each number of rows of each of ``batch`` sequences.

    Raises:
        UnsupportedConfigurationError: The engine was loaded for a smaller batch or fewer tokens.
    """
    target, context = decoder.target, _context(decoder, max(widths), batch)
    for slot in range(batch):
        target.prefill(slot, context)

    def verify(width: int) -> None:
        _run_target(decoder, batch, len(context), width)

    timed = _timed("verify", verify, widths, repeats)
    return replace(timed, batch=batch)


@torch.inference_mode()
def time_draft(decoder: Decoder, lengths: Sequence[int], repeats: int, batch: int) -> TimedSteps:
    """Time proposing each number of tokens for each of ``batch`` requests, without verifying them.

    Before each timing the target runs once, as it does between two drafts of a real round: without that the draft's
    weights still lie in the processor's cache, and drafting one token was timed at half of what a round pays.

    Raises:
        UnsupportedConfigurationError: The engine was loaded for a smaller batch or fewer tokens.
    """
    context = _context(decoder, max(lengths) + 1, batch)
    for slot in range(batch):
        decoder.drafter.start(slot, context, decoder.target.prefill(slot, context))
    tokens = [*context, len(context) % CONTEXT_PERIOD]

    def run_target(length: int) -> None:  # noqa: ARG001
        _run_target(decoder, batch, len(context), 1)

    def draft(length: int) -> None:
        decoder.drafter.propose([Ask(slot, tokens, length) for slot in range(batch)])

    timed = _timed("draft", draft, lengths, repeats, before=run_target)
    return replace(timed, batch=batch)


@torch.inference_mode()
def time_draft_prefill(decoder: Decoder, prompt_tokens: Sequence[int], repeats: int) -> TimedSteps | None:
    """Time the draft's reading of a prompt, each time after the target has read it; None where the draft reads none.

    Raises:
        UnsupportedConfigurationError: A prompt is longer than the engine was loaded for.
    """
    if decoder.drafter.kind is TraceKind.PROPOSALS:
        return None
    _check_room(decoder, max(prompt_tokens) + 1)
    prompts = {length: _repeating(decoder, length) for length in prompt_tokens}
    states: dict[int, Tensor] = {}

    def read_by_target(length: int) -> None:
        states[length] = decoder.target.prefill(0, prompts[length])

    def read(length: int) -> None:
        decoder.drafter.start(0, prompts[length], states[length])

    return _timed("draft_prefill", read, prompt_tokens, repeats, before=read_by_target)


def _run_target(decoder: Decoder, batch: int, position: int, rows: int) -> None:
    ids = torch.zeros(batch * rows, dtype=torch.long)
    segments = [Segment(slot, position, rows) for slot in range(batch)]
    decoder.target.choose(decoder.target.hidden_states(ids, segments)).tolist()


def _context(decoder: Decoder, room: int, batch: int) -> list[int]:
    if not 1 <= batch <= decoder.max_num_seqs:
        raise UnsupportedConfigurationError(
            f"steps of {batch} requests cannot be timed: the engine was loaded for max_num_seqs {decoder.max_num_seqs}",
            f"load it with max_num_seqs {batch} or more",
        )
    _check_room(decoder, room + 1)
    return _repeating(decoder, min(CONTEXT_TOKENS, decoder.max_model_len - room))


def _check_room(decoder: Decoder, tokens: int) -> None:
    if tokens > decoder.max_model_len:
        raise UnsupportedConfigurationError(
            f"a step that needs {tokens} positions cannot be timed in max_model_len {decoder.max_model_len}",
            "raise max_model_len",
        )


def _repeating(decoder: Decoder, length: int) -> list[int]:
    # Time does not depend on the tokens, but prompt lookup has to find what it looks for: the context repeats itself.
    period = min(CONTEXT_PERIOD, len(decoder.target.embedding))
    return [token % period for token in range(length)]


def _timed(
    step: Literal["verify", "draft", "draft_prefill"],
    action: Callable[[int], None],
    sizes: Sequence[int],
    repeats: int,
    before: Callable[[int], None] = lambda _: None,
) -> TimedSteps:
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for size in seconds:
        before(size)
        action(size)
    for _ in range(repeats):
        for size, observed in seconds.items():
            before(size)
            began_s = time.perf_counter()
            action(size)
            observed.append(time.perf_counter() - began_s)
    return TimedSteps(step=step, seconds={size: tuple(observed) for size, observed in seconds.items()})
