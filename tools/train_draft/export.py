"""Write a trained draft as the folder that the product's CPU engine loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from model import Draft, EagleDraft
from safetensors.torch import load_file, save_file
from target import EPS, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, ROPE_THETA, VOCAB
from torch import Tensor

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def _names(layer: int) -> dict[str, str]:
    """Exported tensor name of each parameter of a layer."""
    prefix = f"layers.{layer}."
    names = {short: f"{prefix}self_attn.{short}.weight" for short in _ATTENTION}
    names |= {short: f"{prefix}mlp.{short}.weight" for short in _MLP}
    names |= {short: f"{prefix}{short}.weight" for short in ("input_layernorm", "post_attention_layernorm")}
    return names


def config(draft: Draft) -> dict[str, object]:
    """The contents of ``config.json``."""
    return {
        "model_type": "tuner_eagle" if isinstance(draft, EagleDraft) else "tuner_shallow",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": len(draft.blocks),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_THETA,
        "vocab_size": VOCAB,
        "draft_vocab_size": len(draft.vocabulary),
        "target_model": "SmolLM2-135M-Instruct",
    }


def tensors(draft: Draft) -> dict[str, Tensor]:
    """The contents of ``model.safetensors``: fp16 matrices, fp32 norms, int32 token ids."""
    values = {"norm.weight": draft.norm.detach(), "draft_token_ids": draft.vocabulary.to(torch.int32)}
    if isinstance(draft, EagleDraft):
        values["fc.weight"] = draft.fc.detach()
    for index, layer in enumerate(draft.blocks):
        for short, name in _names(index).items():
            values[name] = getattr(layer, short).detach()
    return {name: (value.half() if value.dim() == 2 else value).contiguous().clone() for name, value in values.items()}


def save(draft: Draft, folder: Path) -> None:
    """Write the draft; each file is replaced at once, so a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors.new"
    save_file(tensors(draft), weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    weights.replace(folder / "model.safetensors")
    description = folder / "config.json.new"
    description.write_text(json.dumps(config(draft), indent=2) + "\n", encoding="utf-8")
    description.replace(folder / "config.json")


def restore(draft: Draft, folder: Path) -> None:
    """Load exported weights into a draft with the same draft vocabulary."""
    values = load_file(str(folder / "model.safetensors"))
    with torch.no_grad():
        draft.norm.copy_(values["norm.weight"])
        if isinstance(draft, EagleDraft):
            draft.fc.copy_(values["fc.weight"])
        for index, layer in enumerate(draft.blocks):
            for short, name in _names(index).items():
                getattr(layer, short).copy_(values[name])


def vocabulary(folder: Path) -> Tensor:
    """The draft vocabulary of an exported draft."""
    return load_file(str(folder / "model.safetensors"))["draft_token_ids"].long()
