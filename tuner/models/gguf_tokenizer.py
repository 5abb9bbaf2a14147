"""The tokenizer of a GGUF file as ``tokenizer.json``, with its special tokens and chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tuner.errors import ModelError

Metadata = Mapping[str, Any]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN_2_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"


def _gpt_2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt_2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


def _by_pattern(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreTokenization:
    """How one ``tokenizer.ggml.pre`` cuts text before merges apply.

    Attributes:
        cut: Makes the pre-tokenizer.
        ignore_merges: Whether a piece that is a token stands as it is, whatever the merges say.
        adds_bos: Whether a text begins with the bos token where the file does not say.
        composes: Whether text is brought to Unicode NFC first, as the Qwen tokenizers do.
    """

    cut: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    adds_bos: bool = False
    composes: bool = False


_GPT_2 = _PreTokenization(cut=_gpt_2)
_LLAMA_3 = _PreTokenization(cut=_by_pattern(_LLAMA_3_PATTERN), ignore_merges=True, adds_bos=True)
_QWEN_2 = _PreTokenization(cut=_by_pattern(_QWEN_2_PATTERN), composes=True)
_SMOLLM = _PreTokenization(cut=_digits_then_gpt_2)
# Names that llama.cpp (llama-vocab.cpp) gives to the same pre-tokenization share an entry.
_PRE_TOKENIZATIONS: Mapping[str, _PreTokenization] = {
    "default": _GPT_2,
    "gpt-2": _GPT_2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
}
_SPECIAL_TOKENS: Mapping[str, str] = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_END_TOKENS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def build_tokenizer(metadata: Metadata, file: Path) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Tokens marked unused are padding that the file's writer added to fill the embedding, and are left out.

    Args:
        metadata: Keys and values of the file.
        file: Named in errors.

    Raises:
        ModelError: The tokenizer is not byte-level BPE, or cuts text in a way that is not known here.
    """
    pre = _pre_tokenization(metadata, file)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    used = [(index, token) for index, token in enumerate(tokens) if types[index] != TokenType.UNUSED]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in used},
            merges=[_pair(merge, file) for merge in metadata["tokenizer.ggml.merges"]],
            ignore_merges=pre.ignore_merges,
        )
    )
    if pre.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.cut()
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for index, token in used if types[index] == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    user_defined = [token for index, token in used if types[index] == TokenType.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    if metadata.get("tokenizer.ggml.add_bos_token", pre.adds_bos):
        _begin_with_bos(tokenizer, metadata, file)
    return tokenizer


def tokenizer_config(metadata: Metadata, context_length: int) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says of the same tokenizer: special tokens and chat template."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    for name, key in _SPECIAL_TOKENS.items():
        if key in metadata:
            config[name] = metadata["tokenizer.ggml.tokens"][metadata[key]]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def special_token_ids(metadata: Metadata) -> dict[str, Any]:
    """``bos_token_id``, ``eos_token_id`` … as far as the file states them; a list where several tokens end a turn."""
    ids: dict[str, Any] = {f"{name}_id": metadata[key] for name, key in _SPECIAL_TOKENS.items() if key in metadata}
    ends = {metadata[key] for key in _END_TOKENS if key in metadata}
    if len(ends) > 1:
        ids["eos_token_id"] = sorted(ends)
    return ids


def _pre_tokenization(metadata: Metadata, file: Path) -> _PreTokenization:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(
            f"{file} has a tokenizer of kind {kind!r}; only byte-level BPE (gpt2) is read from GGUF",
            "use the model's folder in Hugging Face format instead",
        )
    name = str(metadata.get("tokenizer.ggml.pre"))
    if name not in _PRE_TOKENIZATIONS:
        raise ModelError(
            f"{file} cuts text by tokenizer.ggml.pre {name!r}, which is not known here",
            f"known are {', '.join(_PRE_TOKENIZATIONS)}; use the model's folder in Hugging Face format instead",
        )
    return _PRE_TOKENIZATIONS[name]


def _pair(merge: str, file: Path) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise ModelError(f"{file} holds the merge {merge!r}, which is no pair", "fetch the file again")
    return left, right


def _begin_with_bos(tokenizer: Tokenizer, metadata: Metadata, file: Path) -> None:
    if "tokenizer.ggml.bos_token_id" not in metadata:
        raise ModelError(f"{file} asks for a bos token and states none", "fetch the file again")
    index = metadata["tokenizer.ggml.bos_token_id"]
    bos = metadata["tokenizer.ggml.tokens"][index]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, index)]
    )
