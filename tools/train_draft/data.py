"""Training data: the sequences written by ``generate.py``, as padded batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from target import HIDDEN, VOCAB
from torch import Tensor

# Ids below this are the special tokens, the bytes and the first merges.
ALWAYS_IN_VOCABULARY = 512
IGNORED = -100


@dataclass(frozen=True)
class Sequence:
    """One prompt with the target's greedy answer."""

    template: str
    kind: str
    prompt: list[int]
    answer: list[int]
    features: np.ndarray

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.answer


@dataclass(frozen=True)
class Batch:
    """Sequences aligned at the end of the prompt.

    The context holds the prompt tokens, padded on the left; the answer block
    holds the tokens that a draft predicts from: the first answer token up to
    the last but one. ``previous`` is the target's hidden state of the token
    before, ``own`` that of the token itself. ``pair_mask`` is the context mask
    without the very first token, which has no state before it.
    """

    context: Tensor
    context_previous: Tensor
    context_mask: Tensor
    pair_mask: Tensor
    tokens: Tensor
    previous: Tensor
    own: Tensor
    next_tokens: Tensor
    mask: Tensor
    kinds: list[str]


def load(parts: list[Path]) -> list[Sequence]:
    """Read the sequences of several ``generate.py`` outputs (without file ending)."""
    sequences = []
    for part in parts:
        features = np.memmap(part.with_suffix(".f16"), dtype=np.float16, mode="r").reshape(-1, HIDDEN)
        for line in part.with_suffix(".jsonl").read_text("utf-8").splitlines():
            record = json.loads(line)
            rows = len(record["prompt"]) + len(record["answer"]) - 1
            start = record["feature_row"]
            if len(record["answer"]) < 3:
                continue
            sequences.append(
                Sequence(
                    record["template"],
                    record["kind"],
                    record["prompt"],
                    record["answer"],
                    features[start : start + rows],
                )
            )
    return sequences


def draft_vocabulary(sequences: list[Sequence], size: int) -> Tensor:
    """The most frequent answer tokens and the first ids, ``size`` in all, ascending."""
    counts: Counter[int] = Counter()
    for sequence in sequences:
        counts.update(sequence.answer)
    chosen = set(range(ALWAYS_IN_VOCABULARY))
    for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == size:
            break
        chosen.add(token)
    spare = (token for token in range(VOCAB) if token not in chosen)
    while len(chosen) < size:
        chosen.add(next(spare))
    return torch.tensor(sorted(chosen), dtype=torch.long)


def vocabulary_rows(vocabulary: Tensor) -> Tensor:
    """For each target token its draft row, or ``IGNORED``."""
    rows = torch.full((VOCAB,), IGNORED, dtype=torch.long)
    rows[vocabulary] = torch.arange(len(vocabulary))
    return rows


def collate(sequences: list[Sequence]) -> Batch:
    """Align ``sequences`` at the end of their prompts."""
    count = len(sequences)
    width = max(len(sequence.prompt) for sequence in sequences)
    span = max(len(sequence.answer) for sequence in sequences) - 1
    context = torch.zeros(count, width, dtype=torch.long)
    context_previous = torch.zeros(count, width, HIDDEN)
    context_mask = torch.zeros(count, width, dtype=torch.bool)
    pair_mask = torch.zeros(count, width, dtype=torch.bool)
    tokens = torch.zeros(count, span, dtype=torch.long)
    next_tokens = torch.zeros(count, span, dtype=torch.long)
    previous, own = torch.zeros(count, span, HIDDEN), torch.zeros(count, span, HIDDEN)
    mask = torch.zeros(count, span, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        features = torch.from_numpy(np.asarray(sequence.features, dtype=np.float32))
        prompt, answer = torch.tensor(sequence.prompt), torch.tensor(sequence.answer)
        start, used = len(prompt), len(answer) - 1
        left = width - start
        context[row, left:] = prompt
        context_previous[row, left + 1 :] = features[: start - 1]
        context_mask[row, left:] = True
        pair_mask[row, left + 1 :] = True
        tokens[row, :used] = answer[:-1]
        next_tokens[row, :used] = answer[1:]
        previous[row, :used] = features[start - 1 : -1]
        own[row, :used] = features[start:]
        mask[row, :used] = True
    kinds = [sequence.kind for sequence in sequences]
    return Batch(context, context_previous, context_mask, pair_mask, tokens, previous, own, next_tokens, mask, kinds)


def batches(sequences: list[Sequence], size: int, rng: Random) -> Iterator[Batch]:
    """One epoch of shuffled batches, each of sequences of similar length."""
    order = list(sequences)
    rng.shuffle(order)
    window = 16 * size
    groups: list[list[Sequence]] = []
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window], key=lambda s: (len(s.answer), len(s.prompt)))
        groups.extend(near[i : i + size] for i in range(0, len(near), size))
    rng.shuffle(groups)
    for group in groups:
        yield collate(group)
