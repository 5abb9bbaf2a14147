"""GGUF files as folders in Hugging Face format, without torch: llama and qwen3, any quantisation.

Matrices become fp16 and vectors fp32, which is what the CPU engine computes with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from tuner.errors import ModelError
from tuner.models.building import build_folder_once, file_sha256
from tuner.models.files import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from tuner.models.gguf_tokenizer import build_tokenizer, special_token_ids, tokenizer_config
from tuner.models.progress import Report, silent
from tuner.models.provenance import write_provenance
from tuner.models.weights import TensorInfo, write_safetensors

# Raised when the same file would give another folder, so that folders made before are made anew.
CONVERTER_VERSION = 1

_ARCHITECTURES: Mapping[str, str] = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OUTER_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


def convert_gguf(file: Path, cache_dir: Path, report: Report = silent) -> Path:
    """The folder in Hugging Face format for a GGUF file, made once for each content.

    Args:
        file: The GGUF file.
        cache_dir: Where converted folders are kept.
        report: Told how far the conversion is.

    Raises:
        ModelError: It is no GGUF file, or of an architecture or tokenizer that is not read.
    """
    digest = file_sha256(file, f"Hashing {file.name}", report)
    folder = cache_dir / "gguf" / f"{file.stem}-{digest[:16]}-v{CONVERTER_VERSION}"

    def build(part: Path) -> None:
        write_model_folder(file, part, report)
        write_provenance(part, name=file.stem, source=file.name, source_sha256=digest)

    return build_folder_once(folder, build)


def write_model_folder(file: Path, folder: Path, report: Report = silent) -> None:
    """Write config, weights, tokenizer and generation defaults of a GGUF file into an empty folder.

    Raises:
        ModelError: It is no GGUF file, or of an architecture or tokenizer that is not read.
    """
    reader = _open(file)
    metadata = _Stated(file, {key: field.contents() for key, field in reader.fields.items()})
    tensors = _Stated(file, {tensor.name: tensor for tensor in reader.tensors})
    config = _model_config(metadata, tensors, file)
    build_tokenizer(metadata, file).save(str(folder / TOKENIZER))
    _write_json(folder / TOKENIZER_CONFIG, tokenizer_config(metadata, config["max_position_embeddings"]))
    _write_json(folder / CONFIG, config)
    _write_json(folder / GENERATION_CONFIG, special_token_ids(metadata))
    _write_weights(folder / WEIGHTS, tensors, config, file, report)


class _Stated(dict[str, Any]):
    """What a GGUF file states; asking for what it lacks is an error that names the file."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._file = file

    def __missing__(self, key: str) -> Any:
        raise ModelError(f"{self._file} lacks {key!r}", "fetch the file again, or use another one")


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except FileNotFoundError as error:
        raise ModelError(f"{file} does not exist", "check the path") from error
    except (ValueError, IndexError, OSError) as error:
        raise ModelError(f"{file} is no GGUF file that can be read: {error}", "fetch it again") from error


def _model_config(metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor], file: Path) -> dict[str, Any]:
    architecture = str(metadata.get("general.architecture"))
    if architecture not in _ARCHITECTURES or metadata.get(f"{architecture}.expert_count"):
        raise ModelError(
            f"{file} holds a model of architecture {architecture!r}"
            f"{' with experts' if architecture in _ARCHITECTURES else ''}",
            f"GGUF files of dense {' and '.join(_ARCHITECTURES)} models are read",
        )
    return _config_fields(architecture, metadata, tensors)


def _config_fields(
    architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]
) -> dict[str, Any]:
    hidden_size, heads = metadata[f"{architecture}.embedding_length"], metadata[f"{architecture}.attention.head_count"]
    head_dim = metadata.get(f"{architecture}.attention.key_length", hidden_size // heads)
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "hidden_size": hidden_size,
        "intermediate_size": metadata[f"{architecture}.feed_forward_length"],
        "num_hidden_layers": metadata[f"{architecture}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{architecture}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(metadata[f"{architecture}.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": _rope_parameters(architecture, metadata, tensors, head_dim),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": False,
        "max_position_embeddings": metadata[f"{architecture}.context_length"],
        "dtype": "float16",
        **special_token_ids(metadata),
    }


def _shortest(value: float) -> float:
    """The shortest decimal that is the same fp32 number: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope_parameters(
    architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor], head_dim: int
) -> dict[str, Any]:
    theta = _shortest(metadata.get(f"{architecture}.rope.freq_base", 10_000.0))
    if _ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[_ROPE_FACTORS].data, dtype=np.float64).reshape(-1)
        return {"rope_theta": theta, **_llama_3_scaling(factors, theta, head_dim)}
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    parameters = {"rope_theta": theta, "rope_type": kind, "factor": metadata[f"{architecture}.rope.scaling.factor"]}
    original = metadata.get(f"{architecture}.rope.scaling.original_context_length")
    return parameters if original is None else {**parameters, "original_max_position_embeddings": original}


def _llama_3_scaling(factors: NDArray[np.float64], theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters of Llama 3's scaling, of which a GGUF file keeps only the resulting factor per frequency.

    All published models share the band (1, 4, 8192) and differ in the factor, which the slowest frequency shows.

    Raises:
        ModelError: Those parameters do not give the factors of the file.
    """
    low, high, original, factor = 1.0, 4.0, 8192, float(factors[-1])
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    if factors.shape != smooth.shape or not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise ModelError(
            f"{_ROPE_FACTORS} does not follow Llama 3's scaling with factor {factor}",
            "use the model's folder in Hugging Face format instead",
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _write_weights(
    target: Path, tensors: Mapping[str, ReaderTensor], config: Mapping[str, Any], file: Path, report: Report
) -> None:
    sources = {_published_name(name, file): tensor for name, tensor in tensors.items() if name != _ROPE_FACTORS}
    infos = [(name, _tensor_info(tensor)) for name, tensor in sources.items()]
    total, done = sum(info.num_bytes for _, info in infos), 0

    def written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report(f"Converting {file.name}", done, total)

    write_safetensors(target, infos, lambda name: _values(name, sources[name], config, file), written)


def _published_name(name: str, file: Path) -> str:
    """The name that the model's publisher gave to what GGUF calls ``name``."""
    match = _TENSOR.fullmatch(name)
    layer, part, kind = match.group("layer", "part", "kind") if match else (None, name, "")
    known = _OUTER_NAMES if layer is None else _LAYER_NAMES
    if part not in known:
        raise ModelError(f"{file} holds the tensor {name!r}, which no dense llama or qwen3 model has", "")
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{known[part]}.{kind}"


def _tensor_info(tensor: ReaderTensor) -> TensorInfo:
    shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF states the fastest dimension first
    return TensorInfo(dtype="F16" if len(shape) == 2 else "F32", shape=shape)


def _values(name: str, tensor: ReaderTensor, config: Mapping[str, Any], file: Path) -> NDArray[Any]:
    info = _tensor_info(tensor)
    try:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(info.shape)
    except NotImplementedError as error:
        raise ModelError(
            f"{file}: {tensor.name} is quantised as {tensor.tensor_type.name}, which cannot be read", "use another file"
        ) from error
    if config["model_type"] == "llama":
        if ".q_proj." in name:
            values = _published_rows(values, config["num_attention_heads"])
        if ".k_proj." in name:
            values = _published_rows(values, config["num_key_value_heads"])
    if info.dtype == "F16" and np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
        raise ModelError(f"{file}: {tensor.name} holds numbers beyond the range of fp16", "use a safetensors folder")
    return values.astype(np.float16 if info.dtype == "F16" else np.float32)


def _published_rows(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo the order of rows in which llama.cpp stores q and k: pairs (i, i + d/2) of a head lie side by side there."""
    pairs = values.shape[0] // heads // 2
    return values.reshape(heads, pairs, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
