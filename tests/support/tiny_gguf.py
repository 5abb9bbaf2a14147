"""GGUF files of a few kilobytes, written by the format's own library, with the weights that went in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "1 2", "Ġ Ġ", "c a", "Ġ 1")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokens(num_unused: int = 0) -> list[str]:
    """Special tokens, the 256 byte letters, one token per merge, then padding."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*SPECIAL, *letters, *merged, *(f"[PAD{index}]" for index in range(num_unused))]


@dataclass(kw_only=True)
class TinyGguf:
    """What goes into the file; change what a test is about."""

    architecture: str = "llama"
    pre: str | None = "smollm"
    tokenizer_model: str = "gpt2"
    num_unused: int = 0
    is_tied: bool = True
    quantisation: GGMLQuantizationType = GGMLQuantizationType.F32
    rope_factors: NDArray[np.float32] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def published(self) -> dict[str, NDArray[np.float32]]:
        """The weights under their publisher's names and in the publisher's order of rows."""
        random = np.random.default_rng(7)

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return random.standard_normal((rows, columns), dtype=np.float32)

        rows = len(tokens(self.num_unused))
        weights = {"model.embed_tokens": matrix(rows, HIDDEN), "model.norm": matrix(1, HIDDEN)[0]}
        if not self.is_tied:
            weights["lm_head"] = matrix(rows, HIDDEN)
        for index in range(LAYERS):
            layer = {
                "input_layernorm": matrix(1, HIDDEN)[0],
                "self_attn.q_proj": matrix(HEADS * HEAD_DIM, HIDDEN),
                "self_attn.k_proj": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.v_proj": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD_DIM),
                "post_attention_layernorm": matrix(1, HIDDEN)[0],
                "mlp.gate_proj": matrix(INTERMEDIATE, HIDDEN),
                "mlp.up_proj": matrix(INTERMEDIATE, HIDDEN),
                "mlp.down_proj": matrix(HIDDEN, INTERMEDIATE),
            }
            if self.architecture == "qwen3":
                layer |= {"self_attn.q_norm": matrix(1, HEAD_DIM)[0], "self_attn.k_norm": matrix(1, HEAD_DIM)[0]}
            weights |= {f"model.layers.{index}.{name}": value for name, value in layer.items()}
        return {f"{name}.weight": value for name, value in weights.items()}

    def write(self, file: Path) -> Path:
        """Write the file as llama.cpp's converter would."""
        writer = GGUFWriter(file, self.architecture)
        for key, value in self._metadata().items():
            if key not in self.without:
                _add(writer, f"{self.architecture}.{key}" if not key.startswith("tokenizer.") else key, value)
        for name, value in self.published().items():
            stored = self._stored(name, value)
            if stored.ndim == 1 or self.quantisation is GGMLQuantizationType.F32:
                writer.add_tensor(_gguf_name(name), stored)
            else:
                writer.add_tensor(_gguf_name(name), quantize(stored, self.quantisation), raw_dtype=self.quantisation)
        if self.rope_factors is not None:
            writer.add_tensor("rope_freqs.weight", self.rope_factors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    def _metadata(self) -> dict[str, Any]:
        vocabulary = tokens(self.num_unused)
        normal = len(vocabulary) - len(SPECIAL) - self.num_unused
        kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * normal + [TokenType.UNUSED] * self.num_unused
        return {
            "block_count": LAYERS,
            "context_length": 256,
            "embedding_length": HIDDEN,
            "feed_forward_length": INTERMEDIATE,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD_DIM,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 100_000.0,
            "tokenizer.ggml.model": self.tokenizer_model,
            **({} if self.pre is None else {"tokenizer.ggml.pre": self.pre}),
            "tokenizer.ggml.tokens": vocabulary,
            "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
            "tokenizer.ggml.merges": list(MERGES),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.chat_template": CHAT_TEMPLATE,
            **self.extra,
        }

    def _stored(self, name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """llama.cpp interleaves the halves of each head of q and k in llama models."""
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2], 0)
        if self.architecture != "llama" or not heads:
            return value
        stored = np.empty_like(value)
        half = HEAD_DIM // 2
        for head in range(heads):
            for index in range(half):
                stored[head * HEAD_DIM + 2 * index] = value[head * HEAD_DIM + index]
                stored[head * HEAD_DIM + 2 * index + 1] = value[head * HEAD_DIM + half + index]
        return stored


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stem = name.removesuffix(".weight")
    if stem in outer:
        return f"{outer[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"
