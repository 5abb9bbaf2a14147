"""What a draft would have proposed along outputs that are known already, and how clear the target's choices were."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tuner.engines.base import DEEPEST_REPLAY
from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.drafters import Replayed
from tuner.engines.cpu.requests import check_length
from tuner.engines.logits import TokenFacts
from tuner.records import GREEDY, PromptTrace, Sampling, TargetOutput, TraceKind


def replayed_depth(decoder: Decoder) -> int:
    """Tokens proposed at each position of a trace: as loaded where each costs a pass, and enough for all elsewhere."""
    return decoder.drafted_tokens if decoder.drafter.kind is TraceKind.ROLLOUTS else DEEPEST_REPLAY


@torch.inference_mode()
def trace_output(decoder: Decoder, output: TargetOutput, sampling: Sampling) -> PromptTrace:
    """Proposals of the decoder's draft at every position of one output.

    Raises:
        WorkloadError: Prompt and output are longer than this engine was loaded for.
    """
    prompt = _encoded(decoder, output)
    nothing = Replayed(proposed=(), matched=()), None
    # Drafts propose their most likely token here, so acceptance is a match and needs no probability of the draft's.
    replayed, facts = _replay(decoder, prompt, output.token_ids, sampling) if output.token_ids else nothing
    return PromptTrace(
        prompt_id=output.prompt.prompt_id,
        prompt_class=output.prompt.prompt_class,
        max_output_tokens=min(output.max_output_tokens, decoder.max_model_len - len(prompt)),
        proposed=replayed.proposed,
        matched=replayed.matched,
        ranks=replayed.ranks,
        target_probabilities=facts.probabilities if facts is not None else (),
        top2_gaps=facts.top2_gaps if facts is not None else (),
    )


def _replay(
    decoder: Decoder, prompt: Sequence[int], output: Sequence[int], sampling: Sampling
) -> tuple[Replayed, TokenFacts]:
    tokens = [*prompt, *output]
    states = decoder.target.prefill(0, tokens[:-1])
    replayed = decoder.drafter.replay(tokens, len(prompt), replayed_depth(decoder), states)
    return replayed, _target_facts(decoder, states, output, sampling)


def _target_facts(decoder: Decoder, states: Tensor, output: Sequence[int], sampling: Sampling) -> TokenFacts:
    return decoder.target.facts(states[-len(output) :], output, sampling, are_chosen=True)


@torch.inference_mode()
def top2_gaps(decoder: Decoder, output: TargetOutput) -> tuple[float, ...]:
    """Logit of the target's most likely token minus that of its second, at each position of one output.

    Raises:
        WorkloadError: Prompt and output are longer than this engine was loaded for.
    """
    prompt = _encoded(decoder, output)
    if not output.token_ids:
        return ()
    states = decoder.target.prefill(0, [*prompt, *output.token_ids[:-1]])
    return _target_facts(decoder, states, output.token_ids, GREEDY).top2_gaps


def _encoded(decoder: Decoder, output: TargetOutput) -> list[int]:
    prompt = decoder.tokenizer.encode(output.prompt)
    check_length(output.prompt.prompt_id, len(prompt), output.max_output_tokens, decoder.max_model_len)
    return prompt
