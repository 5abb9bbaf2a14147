"""Model folders that take milliseconds: random weights from a seed, and a tokenizer of single bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

VOCAB_SIZE = 300
HIDDEN_SIZE = 64
HEAD_DIM = 16
# Large enough that logits differ clearly, small enough that layers add to the embedding and do not drown it.
WEIGHT_SCALE = 0.12


def write_model(
    folder: Path,
    *,
    architecture: str = "llama",
    layers: int = 2,
    seed: int = 0,
    tied: bool = False,
    eos_token_id: int | None = None,
    **config: Any,
) -> Path:
    """A complete model folder."""
    folder.mkdir(parents=True)
    settings = {
        "model_type": architecture,
        "architectures": [
            {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}.get(architecture, "Qwen3ForCausalLM")
        ],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 512,
        "eos_token_id": eos_token_id,
        "bos_token_id": None,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    _write_tokenizer(folder)
    save_file(_weights(settings, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def _weights(settings: dict[str, Any], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, vocab = settings["hidden_size"], settings["vocab_size"]
    tensors = {
        "model.embed_tokens.weight": _matrix(generator, vocab, hidden, scale=1.0),
        "model.norm.weight": _norm(generator, hidden),
    }
    for index in range(settings["num_hidden_layers"]):
        layer = _layer(settings, generator)
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    if not settings["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _matrix(generator, vocab, hidden, scale=1.0)
    return tensors


def _layer(settings: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    hidden, inner, head_dim = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    query, key_value = (settings[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    shapes = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key_value, hidden),
        "self_attn.v_proj": (key_value, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layer = {f"{name}.weight": _matrix(generator, *shape) for name, shape in shapes.items()}
    layer |= {f"{name}.weight": _norm(generator, hidden) for name in ("input_layernorm", "post_attention_layernorm")}
    if settings["model_type"] == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": layer[f"self_attn.{name}_proj.weight"][:, 0].clone() for name in "qkv"}
    if settings["model_type"] == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": _norm(generator, head_dim) for name in "qk"}
    return layer


def _matrix(generator: torch.Generator, rows: int, columns: int, scale: float = WEIGHT_SCALE) -> Tensor:
    # Exact in fp16, so that every weight format of this engine gives the same output.
    return (torch.randn(rows, columns, generator=generator) * scale).half().float()


def _norm(generator: torch.Generator, width: int) -> Tensor:
    return 1 + 0.1 * torch.randn(width, generator=generator)


def write_perturbed(folder: Path, target: Path, *, noise: float, seed: int = 1) -> Path:
    """A draft that agrees with ``target`` more or less often: its weights with noise added."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text((target / name).read_text())
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1
        else tensor
        for name, tensor in load_file(target / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_shallow(folder: Path, target: Path) -> Path:
    """The target's first layer as a draft that can choose two thirds of the tokens."""
    return _write_head(folder, target, model_type="tuner_shallow", extra={})


def write_eagle(folder: Path, target: Path) -> Path:
    """The target's first layer as an EAGLE head: the token's embedding with a little of the target's state."""
    identity = torch.eye(HIDDEN_SIZE)
    return _write_head(
        folder, target, model_type="tuner_eagle", extra={"fc.weight": torch.cat([identity, 0.1 * identity], 1)}
    )


def _write_head(folder: Path, target: Path, *, model_type: str, extra: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True)
    token_ids = torch.arange(VOCAB_SIZE, dtype=torch.int32)
    token_ids = token_ids[token_ids % 3 != 1]
    settings = json.loads((target / "config.json").read_text())
    settings |= {
        "model_type": model_type,
        "num_hidden_layers": 1,
        "draft_vocab_size": len(token_ids),
        "target_model": "tiny",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    kept = {
        name.removeprefix("model."): tensor.half() if tensor.dim() > 1 else tensor
        for name, tensor in load_file(target / "model.safetensors").items()
        if name.startswith("model.layers.0.") or name == "model.norm.weight"
    }
    save_file({**kept, **extra, "draft_token_ids": token_ids}, folder / "model.safetensors")
    return folder
