"""Timing single steps: one pass of the target, and drafting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.drafters import Ask
from tuner.errors import UnsupportedConfigurationError
from tuner.records import TimedSteps

# Cached tokens before a timed step: about a short chat prompt with half of its answer.
CONTEXT_TOKENS = 200
CONTEXT_PERIOD = 50


@torch.inference_mode()
def time_verify(decoder: Decoder, widths: Sequence[int], repeats: int) -> TimedSteps:
    """Time one pass of the target with its choice of tokens, over each number of rows of one sequence."""
    target, context = decoder.target, _context(decoder, max(widths))
    target.prefill(0, context)

    def verify(width: int) -> None:
        rows = torch.zeros(width, dtype=torch.long)
        target.choose(target.hidden_states(rows, [Segment(0, len(context), width)])).tolist()

    return _timed("verify", verify, widths, repeats)


@torch.inference_mode()
def time_draft(decoder: Decoder, lengths: Sequence[int], repeats: int) -> TimedSteps:
    """Time proposing each number of tokens for one request, without verifying them.

    Before each timing the target runs once, as it does between two drafts of a real round: without that the draft's
    weights still lie in the processor's cache, and drafting one token was timed at half of what a round pays.
    """
    context = _context(decoder, max(lengths) + 1)
    decoder.drafter.start(0, context, decoder.target.prefill(0, context))
    tokens = [*context, len(context) % CONTEXT_PERIOD]

    last = torch.tensor(tokens[-1:])

    def run_target() -> None:
        decoder.target.choose(decoder.target.hidden_states(last, [Segment(0, len(context), 1)]))

    def draft(length: int) -> None:
        decoder.drafter.propose([Ask(0, tokens, length)])

    return _timed("draft", draft, lengths, repeats, before=run_target)


def _context(decoder: Decoder, room: int) -> list[int]:
    length = min(CONTEXT_TOKENS, decoder.max_model_len - room)
    if length < 1:
        raise UnsupportedConfigurationError(
            f"{room} rows cannot be timed in max_model_len {decoder.max_model_len}", "raise max_model_len"
        )
    # Time does not depend on the tokens, but prompt lookup has to find what it looks for: the context repeats itself.
    period = min(CONTEXT_PERIOD, len(decoder.target.embedding))
    return [token % period for token in range(length)]


def _timed(
    step: Literal["verify", "draft"],
    action: Callable[[int], None],
    sizes: Sequence[int],
    repeats: int,
    before: Callable[[], None] = lambda: None,
) -> TimedSteps:
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for size in seconds:
        action(size)
    for _ in range(repeats):
        for size, observed in seconds.items():
            before()
            began_s = time.perf_counter()
            action(size)
            observed.append(time.perf_counter() - began_s)
    return TimedSteps(step=step, seconds={size: tuple(observed) for size, observed in seconds.items()})
