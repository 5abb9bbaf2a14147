"""A start for the EAGLE draft's ``fc``: regression on the last layer's input.

The draft's layer starts as the target's last layer, so ``fc`` should turn
[embedding, state of the token before] into what that layer is used to see.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import Sequence
from model import EagleDraft
from target import GROUP, HIDDEN, LAYERS, Q_SIZE, Target, mlp, project, rope_tables, rotate
from torch import Tensor


def last_layer_input(target: Target, tokens: list[int]) -> Tensor:
    """What the target's last layer receives, [len(tokens), HIDDEN]."""
    x = F.embedding(torch.tensor(tokens), target.embedding)
    cos, sin = (table[:, None] for table in rope_tables(len(tokens)))
    for layer in target.layers[: LAYERS - 1]:
        query, key, value = project(layer, x)
        query, key = rotate(query, cos, sin).transpose(0, 1), rotate(key, cos, sin).transpose(0, 1)
        mixed = F.scaled_dot_product_attention(
            query[None],
            key.repeat_interleave(GROUP, 0)[None],
            value.transpose(0, 1).repeat_interleave(GROUP, 0)[None],
            is_causal=True,
        )
        x = x + F.linear(mixed[0].transpose(0, 1).reshape(len(tokens), Q_SIZE), layer.out)
        x = mlp(layer, x)
    return x


@torch.no_grad()
def regress_fc(draft: EagleDraft, target: Target, sequences: list[Sequence], ridge: float = 1.0) -> float:
    """Set ``fc`` by ridge regression; the share of the variance that it explains."""
    inputs, outputs = [], []
    for sequence in sequences:
        tokens = sequence.tokens[:-1]
        features = torch.from_numpy(sequence.features.astype("float32"))
        embedded = F.embedding(torch.tensor(tokens[1:]), target.embedding)
        inputs.append(torch.cat([embedded, features[: len(tokens) - 1]], dim=-1))
        outputs.append(last_layer_input(target, tokens)[1:])
    x, y = torch.cat(inputs).double(), torch.cat(outputs).double()
    gram = x.T @ x
    scale = gram.diagonal().mean()
    weight = torch.linalg.solve(gram + ridge * 1e-3 * scale * torch.eye(2 * HIDDEN), x.T @ y)
    draft.fc.copy_(weight.T.float())
    residual = (y - x @ weight).pow(2).mean()
    return float(1 - residual / y.pow(2).mean())
