"""What a draft would have proposed along outputs that are known already."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.requests import check_length
from tuner.records import PromptTrace, TargetOutput

# Rows whose logits are held at a time: 32 MB with a vocabulary of 128,000.
LOGIT_ROWS = 64


@torch.inference_mode()
def trace_output(decoder: Decoder, output: TargetOutput) -> PromptTrace:
    """Proposals of the decoder's draft at every position of one output.

    Raises:
        WorkloadError: Prompt and output are longer than this engine was loaded for.
    """
    prompt = decoder.tokenizer.encode(output.prompt)
    check_length(output.prompt.prompt_id, len(prompt), output.max_output_tokens, decoder.max_model_len)
    tokens = [*prompt, *output.token_ids]
    # Position 0 is the prefill's; a round can begin only where another token follows.
    steps = list(_steps(decoder, tokens, len(prompt))) if len(output.token_ids) > 1 else []
    unused = [(0, 0)] if output.token_ids else []
    return PromptTrace(
        prompt_id=output.prompt.prompt_id,
        prompt_class=output.prompt.prompt_class,
        max_output_tokens=min(output.max_output_tokens, decoder.max_model_len - len(prompt)),
        proposed=tuple(proposed for proposed, _ in unused + steps),
        matched=tuple(matched for _, matched in unused + steps),
    )


@torch.inference_mode()
def top2_gaps(decoder: Decoder, output: TargetOutput) -> tuple[float, ...]:
    """Logit of the target's most likely token minus that of its second, at each position of one output.

    Raises:
        WorkloadError: Prompt and output are longer than this engine was loaded for.
    """
    prompt = decoder.tokenizer.encode(output.prompt)
    check_length(output.prompt.prompt_id, len(prompt), output.max_output_tokens, decoder.max_model_len)
    if not output.token_ids:
        return ()
    states = decoder.target.prefill(0, [*prompt, *output.token_ids[:-1]])[len(prompt) - 1 :]
    gaps: list[float] = []
    for rows in torch.split(states, LOGIT_ROWS):
        first, second = decoder.target.logits(rows).topk(2).values.unbind(1)
        gaps += (first - second).tolist()
    return tuple(gaps)


def _steps(decoder: Decoder, tokens: Sequence[int], prompt_tokens: int) -> list[tuple[int, int]]:
    drafter = decoder.drafter
    states = decoder.target.prefill(0, tokens[:-1]) if drafter.uses_hidden_states else torch.empty(0)
    return list(drafter.replay(tokens, prompt_tokens, decoder.drafted_tokens, states))
