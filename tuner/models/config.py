"""A model's dimensions and numerics, read from ``config.json`` whatever dialect it was written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import ModelError
from tuner.models.files import CONFIG, GENERATION_CONFIG, WEIGHT_INDEX, read_json, read_json_if_there


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What an engine must know of a decoder-only model before it reads a weight.

    Attributes:
        architecture: ``"llama"``, ``"qwen3"`` or another ``model_type`` as it stands.
        vocab_size: Rows of the embedding, padding included: more than the tokenizer has tokens in many models.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How frequencies are stretched, with key ``rope_type``; None for plain rotary embeddings.
        tie_word_embeddings: Whether the output matrix is the embedding.
        attention_bias: Whether q, k, v and o have bias vectors.
        eos_token_ids: Every id that ends an answer, from ``config.json`` and ``generation_config.json``.
        draft_vocab_size: Rows of a draft head that proposes only a part of the vocabulary; None elsewhere.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    attention_bias: bool
    max_position_embeddings: int
    eos_token_ids: frozenset[int]
    draft_vocab_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """What a model type's configuration class assumes where the file is silent. head_dim None: hidden / heads."""

    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    head_dim: int | None = None


# Values of LlamaConfig, Qwen2Config and Qwen3Config of transformers 5; other types are read as llama.
_DEFAULTS: Mapping[str, _Defaults] = {
    "llama": _Defaults(),
    "qwen2": _Defaults(max_position_embeddings=32_768, attention_bias=True),
    "qwen3": _Defaults(max_position_embeddings=32_768, head_dim=128),
}
_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def read_model_config(folder: Path) -> ModelConfig:
    """The configuration of the model in ``folder``.

    Language models nested under ``text_config`` are read through it. Absent optional fields take the defaults
    of the model type; no field is ever guessed from a weight.

    Raises:
        ModelError: ``config.json`` is absent or broken, lacks required fields, holds values of a wrong type, or
            declares an untied output matrix that the weight index does not list.
    """
    path = folder / CONFIG
    outer = read_json(path)
    fields = _Fields(path, _language_model(outer))
    fields.require(_REQUIRED)
    architecture = fields.text("model_type", outer.get("model_type"))
    defaults = _DEFAULTS.get(architecture.split("_")[0], _Defaults())
    heads, hidden_size = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    rope_theta, rope_scaling = _rope(fields, defaults.rope_theta)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size"),
        num_hidden_layers=fields.whole("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=fields.whole("num_key_value_heads", heads),
        head_dim=fields.whole("head_dim", defaults.head_dim or hidden_size // heads),
        rms_norm_eps=fields.number("rms_norm_eps", defaults.rms_norm_eps),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", _flag_or(outer, defaults.tie_word_embeddings)),
        attention_bias=fields.flag("attention_bias", defaults.attention_bias),
        max_position_embeddings=fields.whole("max_position_embeddings", defaults.max_position_embeddings),
        eos_token_ids=read_eos_token_ids(folder),
        draft_vocab_size=fields.whole("draft_vocab_size") if fields.has("draft_vocab_size") else None,
    )
    _check_heads(path, config)
    _check_output_matrix(folder, config)
    return config


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """Every end-of-sequence id that ``config.json`` and ``generation_config.json`` name; empty when none does.

    Raises:
        ModelError: A file is broken, or an id is not a whole number.
    """
    outer = read_json_if_there(folder / CONFIG)
    sources = {
        CONFIG: (outer, _language_model(outer)),
        GENERATION_CONFIG: (read_json_if_there(folder / GENERATION_CONFIG),),
    }
    found: set[int] = set()
    for name, objects in sources.items():
        for holder in objects:
            value = holder.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
                raise ModelError(f"{folder / name}: eos_token_id is {value!r}", "it must be an id or a list of ids")
            found.update(ids)
    return frozenset(found)


def _language_model(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = outer.get("text_config")
    return nested if isinstance(nested, dict) else outer


def _flag_or(outer: Mapping[str, Any], default: bool) -> bool:
    """A multimodal config may state ``tie_word_embeddings`` at the top only."""
    value = outer.get("tie_word_embeddings")
    return value if isinstance(value, bool) else default


def _rope(fields: _Fields, default_theta: float) -> tuple[float, Mapping[str, Any] | None]:
    """Base and scaling, from ``rope_parameters`` or from the older ``rope_theta`` and ``rope_scaling``."""
    stated = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or {}
    # Models with several kinds of attention state one set of parameters per kind.
    nested = stated.get("full_attention")
    parameters = dict(nested) if isinstance(nested, dict) else dict(stated)
    theta = _Fields(fields.path, {**fields.values, **parameters}).number("rope_theta", default_theta)
    parameters.pop("rope_theta", None)
    rope_type = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    if rope_type == "default":
        return theta, None
    return theta, {"rope_type": rope_type, **parameters}


def _check_heads(path: Path, config: ModelConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise ModelError(
            f"{path}: num_attention_heads {config.num_attention_heads} is no multiple of "
            f"num_key_value_heads {config.num_key_value_heads}",
            "compare the file with the model's published config.json",
        )


def _check_output_matrix(folder: Path, config: ModelConfig) -> None:
    index = folder / WEIGHT_INDEX
    if config.tie_word_embeddings or config.draft_vocab_size is not None or not index.is_file():
        return
    names = read_json(index).get("weight_map", {})
    if not any(str(name).endswith("lm_head.weight") for name in names):
        raise ModelError(
            f"{folder / CONFIG} says tie_word_embeddings: false, but {index.name} lists no lm_head.weight",
            "set tie_word_embeddings to true if the model shares its embedding, or fetch the missing weights",
        )


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the fields of one JSON object; null counts as absent."""

    path: Path
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def require(self, names: tuple[str, ...]) -> None:
        absent = [name for name in names if not self.has(name)]
        if absent:
            raise ModelError(
                f"{self.path} lacks required fields: {', '.join(absent)}",
                "copy them from the model's published config.json",
            )

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name) if self.has(name) else default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a whole number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name) if self.has(name) else default
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._wrong(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name) if self.has(name) else default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: object) -> str:
        value = self.values.get(name) or default
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "a name such as llama or qwen3")
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def _wrong(self, name: str, wanted: str) -> ModelError:
        return ModelError(f"{self.path}: {name} is {self.values.get(name)!r}", f"it must be {wanted}")
