"""The engine's own forward pass gives the logits of the library that models are published for."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tests.support.tiny_models import write_model
from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.kernels import FP16_PACKED, FP32, has_fbgemm
from tuner.engines.cpu.model import LanguageModel, open_model

TOKENS = [97, 12, 250, 3, 3, 88, 140, 7, 61, 205, 19, 42]

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}

MODELS = {
    "llama": {"architecture": "llama"},
    "llama with tied embeddings": {"architecture": "llama", "tied": True},
    "llama 3 with scaled positions": {"architecture": "llama", "rope_parameters": LLAMA3_SCALING},
    "llama with linear scaling": {
        "architecture": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    },
    "qwen2 with biases": {"architecture": "qwen2"},
    "qwen3 with normed queries and keys": {"architecture": "qwen3", "tied": True, "layers": 3},
    "one query head for each key": {"architecture": "llama", "num_key_value_heads": 4},
}


def logits_of_transformers(folder: Path) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another project's own making, on import
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


@torch.inference_mode()
def logits_in_pieces(model: LanguageModel) -> torch.Tensor:
    """A prompt, then one row, then several rows at once: the three shapes of decoding."""
    pieces = [TOKENS[:6], TOKENS[6:7], TOKENS[7:]]
    states, position = [], 0
    for piece in pieces:
        states.append(model.hidden_states(torch.tensor(piece), [Segment(0, position, len(piece))]))
        position += len(piece)
    return model.logits(torch.cat(states))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model", **MODELS[name])
    expected = logits_of_transformers(folder)
    found = logits_in_pieces(open_model(folder, FP32, slots=1, length=64))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.skipif(not has_fbgemm(), reason="this build of PyTorch has no FBGEMM")
def test_packed_weights_lose_nothing_that_fp16_can_hold(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    expected = logits_of_transformers(folder)
    found = logits_in_pieces(open_model(folder, FP16_PACKED, slots=1, length=64))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
