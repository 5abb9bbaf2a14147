"""Tensors of a model folder: which there must be, and reading them one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tuner.engines.cpu.limits import ARCHITECTURES, EAGLE
from tuner.errors import ModelError
from tuner.models.config import ModelConfig
from tuner.models.files import WEIGHTS
from tuner.models.weights import read_tensor_infos, weight_files

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
FUSE = "fc.weight"
DRAFT_VOCABULARY = "draft_token_ids"

# Missing tensors that a message names: enough to see which layers or kinds are gone.
NAMED = 4


class Weights:
    """The tensors of one folder. Headers are read at once, a tensor when it is asked for.

    Args:
        folder: Holds ``model.safetensors``, or several files and their index.

    Raises:
        ModelError: There is no such file, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = weight_files(folder)
        if not files:
            raise ModelError(f"{folder} holds no {WEIGHTS}", "give a folder in Hugging Face format with safetensors")
        self._file_of = {name: file for file in files for name in read_tensor_infos(file)}

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the folder."""
        return frozenset(self._file_of)

    @property
    def prefix(self) -> str:
        """``"model."`` in a complete causal model, nothing in a bare draft."""
        return "model." if "model.norm.weight" in self._file_of else ""

    def require(self, names: Iterable[str]) -> None:
        """Make sure that tensors exist.

        Raises:
            ModelError: Some do not; the first of them are named.
        """
        missing = sorted(set(names) - self.names)
        if missing:
            named = ", ".join(missing[:NAMED]) + (" …" if len(missing) > NAMED else "")
            raise ModelError(
                f"{self.folder} lacks {len(missing)} tensors: {named}", "convert or download the model again"
            )

    def get(self, name: str) -> Any:
        """The tensor of that name, a ``torch.Tensor`` in the type it was stored in.

        Raises:
            ModelError: There is none, or it holds values that are no numbers: such a model answers the same token for
                ever, which speculation predicts very well.
        """
        import torch

        self.require([name])
        with safe_open(self._file_of[name], framework="pt") as file:
            tensor = file.get_tensor(name)
        # One pass without a copy: NaN and infinity survive in a sum, and fp32 holds the sum of any real weights.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float32).item()):
            raise ModelError(f"{self.folder}: {name} holds NaN or infinite values", "fetch or convert the model again")
        return tensor


def check_tensors(weights: Weights, config: ModelConfig) -> None:
    """Make sure that a folder holds all that its configuration needs, before any of it is read.

    Raises:
        ModelError: Tensors are missing.
    """
    names = list(stack_tensors(config, weights.prefix))
    if config.architecture in ARCHITECTURES:
        names += [weights.prefix + EMBEDDING, *([] if config.tie_word_embeddings else [OUTPUT])]
    else:
        names += [DRAFT_VOCABULARY, *([FUSE] if config.architecture == EAGLE else [])]
    weights.require(names)


def stack_tensors(config: ModelConfig, prefix: str) -> Iterator[str]:
    """Names of the tensors of the decoder layers and the final norm."""
    parts = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{name}_proj" for name in "qkvo")]
    parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    if config.architecture == "qwen3":
        parts += ["self_attn.q_norm", "self_attn.k_norm"]
    for index in range(config.num_hidden_layers):
        yield from (f"{prefix}layers.{index}.{part}.weight" for part in parts)
    yield f"{prefix}norm.weight"
