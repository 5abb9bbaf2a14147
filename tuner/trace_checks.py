"""Whether an acceptance trace can be true: lengths that agree, counts within bounds, probabilities that are some."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tuner.errors import TraceError
from tuner.records import WORST_RANK, PromptTrace, Trace, TraceKind

MAKE_AGAIN = "make the trace again, or export it again where it was made"

_ONE_A_POSITION = ("matched", "ranks", "target_probabilities", "draft_probabilities", "top2_gaps")


def check_trace(trace: Trace) -> None:
    """Refuse a trace that contradicts itself.

    Raises:
        TraceError: Names the prompt, the position and the value.
    """
    if trace.max_drafted_tokens < 0:
        raise TraceError(f"the trace's depth is {trace.max_drafted_tokens}", MAKE_AGAIN)
    for prompt_id, times in Counter(prompt.prompt_id for prompt in trace.prompts).items():
        if times > 1:
            raise TraceError(f"prompt {prompt_id!r} is in the trace {times} times", MAKE_AGAIN)
    for prompt in trace.prompts:
        _check_lengths(prompt)
        _check_values(prompt, trace.max_drafted_tokens)
        _check_unknown(prompt, trace.kind)


def _check_lengths(prompt: PromptTrace) -> None:
    length = len(prompt.proposed)
    if length > prompt.max_output_tokens:
        raise _wrong(prompt, f"{length} positions, above its cap of {prompt.max_output_tokens}")
    for name in _ONE_A_POSITION:
        found = len(getattr(prompt, name))
        if found != length and (found or name == "matched"):
            raise _wrong(prompt, f"{length} proposed and {found} {name}")


def _check_values(prompt: PromptTrace, depth: int) -> None:
    proposed = np.asarray(prompt.proposed)
    left = len(proposed) - np.arange(len(proposed))  # no more can match than is left of the output
    limits: dict[str, tuple[str, Any]] = {
        "proposed": ("the trace's depth", depth),
        "matched": ("what was proposed and what is left of the output", np.minimum(proposed, left)),
        "ranks": ("the worst rank", WORST_RANK),
        "target_probabilities": ("1", 1.0),
        "draft_probabilities": ("1", 1.0),
        "top2_gaps": ("infinity", np.inf),
    }
    for name, (limit, most) in limits.items():
        values = np.asarray(getattr(prompt, name))
        if values.size:
            bad = np.flatnonzero(~((values >= 0) & (values <= most)))  # NaN is neither
            if bad.size:
                place = int(bad[0])
                raise _wrong(prompt, f"{name} at position {place} is {values[place]}, outside 0 to {limit}")


def _check_unknown(prompt: PromptTrace, kind: TraceKind) -> None:
    if prompt.unknown and kind is not TraceKind.LOGGED:
        raise _wrong(prompt, f"unknown positions, which a trace of kind {kind} has none of")
    outside = [place for place in prompt.unknown if not 0 <= place < len(prompt.proposed)]
    if outside:
        raise _wrong(prompt, f"unknown position {outside[0]}, outside its {len(prompt.proposed)}")


def _wrong(prompt: PromptTrace, what: str) -> TraceError:
    return TraceError(f"trace of prompt {prompt.prompt_id!r}: {what}", MAKE_AGAIN)
