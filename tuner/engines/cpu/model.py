"""A language model: embedding, decoder layers and output matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.kernels import Kernel, Linear
from tuner.engines.cpu.transformer import Stack
from tuner.engines.cpu.weights import EMBEDDING, OUTPUT, Weights
from tuner.engines.logits import ABSENT, TokenFacts, token_facts
from tuner.models.config import ModelConfig, read_model_config
from tuner.records import Sampling

# Rows of one pass over a prompt. Longer prompts take several passes, so that masks stay a few megabytes.
PREFILL_ROWS = 512


class LanguageModel:
    """Token ids in, hidden states and next tokens out.

    Args:
        embedding: [vocabulary, hidden], in the type it was stored in.
        stack: The decoder layers and their cache.
        output: Rows of the output matrix, one per token that can be chosen.
        token_ids: Token id of each row of ``output``; None where row and id are the same.
    """

    def __init__(
        self, *, embedding: Tensor, stack: Stack, output: Tensor, kernel: Kernel, token_ids: Tensor | None = None
    ) -> None:
        self.embedding, self.stack, self.token_ids = embedding, stack, token_ids
        self._choices = len(output)
        self.logits: Linear = kernel.prepare(output, None)
        self.weight_bytes = stack.weight_bytes + output.numel() * kernel.bytes_per_weight

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embedded rows [tokens, hidden] in fp32."""
        return functional.embedding(token_ids, self.embedding).float()

    def hidden_states(self, token_ids: Tensor, segments: Sequence[Segment]) -> Tensor:
        """States after the final norm [tokens, hidden] of the tokens of these segments, which become cached."""
        return self.stack.forward(self.embed(token_ids), self.stack.attend(segments))

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> Tensor:
        """States [tokens, hidden] of a long run of tokens, cached from position ``start`` on."""
        passes = []
        for first in range(0, len(token_ids), PREFILL_ROWS):
            ids = torch.tensor(token_ids[first : first + PREFILL_ROWS])
            passes.append(self.hidden_states(ids, [Segment(slot, start + first, len(ids))]))
        return passes[0] if len(passes) == 1 else torch.cat(passes)

    def facts(
        self, hidden: Tensor, token_ids: Sequence[int], sampling: Sampling, *, are_chosen: bool = False
    ) -> TokenFacts:
        """What this model says of the token after each row; see ``token_facts``."""
        return token_facts(hidden, self._columns(torch.tensor(token_ids)), self.logits, sampling, are_chosen=are_chosen)

    def _columns(self, token_ids: Tensor) -> Tensor:
        """Row of ``output`` of each token id; ``ABSENT`` for those that cannot be chosen."""
        if self.token_ids is None:
            return torch.where(token_ids < self._choices, token_ids, ABSENT)
        column_of = torch.full((len(self.embedding),), ABSENT)
        column_of[self.token_ids] = torch.arange(len(self.token_ids))
        return column_of[token_ids]

    def choose(self, hidden: Tensor) -> Tensor:
        """The most likely next token id after each row."""
        best = self.logits(hidden).argmax(-1)
        return best if self.token_ids is None else self.token_ids[best]


def open_model(folder: Path, kernel: Kernel, *, slots: int, length: int, choices: int | None = None) -> LanguageModel:
    """A complete model of a Hugging Face folder.

    Args:
        folder: Holds configuration and weights.
        kernel: How matrices are stored.
        slots: Sequences held at a time.
        length: Tokens that each may reach.
        choices: Token ids below this can be chosen; None for all of the model's own.
    """
    config, weights = read_model_config(folder), Weights(folder)
    stack = Stack(weights, config, kernel, slots=slots, length=length)
    output = output_matrix(weights, config)
    return LanguageModel(embedding=embedding_matrix(weights), stack=stack, output=output[:choices], kernel=kernel)


def embedding_matrix(weights: Weights) -> Tensor:
    """The input embedding [vocabulary, hidden] in the type it was stored in."""
    matrix: Tensor = weights.get(weights.prefix + EMBEDDING)
    return matrix


def output_matrix(weights: Weights, config: ModelConfig) -> Tensor:
    """The output matrix [vocabulary, hidden], which may be the embedding."""
    if config.tie_word_embeddings:
        return embedding_matrix(weights)
    matrix: Tensor = weights.get(OUTPUT)
    return matrix
