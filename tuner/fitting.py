"""Which prompts fit the target's context, known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.errors import WorkloadError
from tuner.models.config import read_model_config
from tuner.models.tokenizer import ChatTokenizer
from tuner.workload import Workload

WARMUP_MARK_TOKENS = 8
"""Tokens that a warm-up request adds to its prompt, so that no cache knows its beginning."""

ROUND_TO = 64
"""Context lengths are rounded up, so that two samples of one workload load the same engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWorkload:
    """A workload of which every prompt fits.

    Attributes:
        max_model_len: Tokens of the longest prompt with its answer, rounded up.
        left_out: Ids of prompts that do not fit.
    """

    workload: Workload
    max_model_len: int
    left_out: tuple[str, ...]


def fit_workload(workload: Workload, target: Path) -> FittedWorkload:
    """Leave out prompts that, with their answer's cap, are longer than the target's context.

    Raises:
        WorkloadError: None fits; says how long they are.
        ModelError: The target's configuration or tokenizer cannot be read.
    """
    limit = read_model_config(target).max_position_embeddings
    tokenizer = ChatTokenizer.open(target)
    lengths = {
        prompt.prompt_id: len(tokenizer.encode(prompt)) + workload.output_cap(prompt) + WARMUP_MARK_TOKENS
        for prompt in workload.prompts
    }
    left_out = tuple(name for name, length in lengths.items() if length > limit)
    if len(left_out) == len(lengths):
        raise WorkloadError(
            f"no prompt of workload {workload.name!r} fits: the shortest needs {min(lengths.values())} tokens with its "
            f"answer, the target's context has {limit}",
            "lower max_output_tokens, shorten the prompts, or choose a target with a longer context",
        )
    longest = max(length for length in lengths.values() if length <= limit)
    fitting = [prompt for prompt in workload.prompts if prompt.prompt_id not in left_out]
    return FittedWorkload(
        workload=workload.with_prompts(fitting) if left_out else workload,
        max_model_len=min(limit, -(-longest // ROUND_TO) * ROUND_TO),
        left_out=left_out,
    )
