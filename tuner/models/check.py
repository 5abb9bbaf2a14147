"""Whether a model folder can be used, and whether a draft fits a target, without loading a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import ModelError
from tuner.models.config import ModelConfig, read_model_config
from tuner.models.files import TOKENIZER
from tuner.models.tokenizer import ChatTokenizer, check_same_tokenizer
from tuner.models.weights import TensorInfo, read_tensor_infos, weight_files

Shape = tuple[int, ...]
# Draft heads that come with the tuner: no tokenizer and no embedding of their own, they use the target's.
OWN_ARCHITECTURES = frozenset({"tuner_eagle", "tuner_shallow"})
_CHECKED_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
_LISTED_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """What a look at a model folder found.

    Attributes:
        config: None where it cannot be read.
        tensors: Every stored tensor; empty where the weights were not looked at or cannot be read.
        num_tokens: Tokens of the tokenizer, which are fewer than the embedding's rows where it is padded; None
            without a tokenizer.
        has_chat_template: Whether conversations can be asked; None without a tokenizer.
        problems: Why it cannot be used; empty for a usable model.
    """

    folder: Path
    config: ModelConfig | None
    tensors: Mapping[str, TensorInfo]
    num_tokens: int | None
    has_chat_template: bool | None
    problems: tuple[ModelError, ...]

    @property
    def num_parameters(self) -> int:
        """Weights in the files."""
        return sum(info.num_elements for info in self.tensors.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the files."""
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Kinds of numbers that are stored."""
        return tuple(sorted({info.dtype for info in self.tensors.values()}))


def check_model(folder: Path, *, with_weights: bool = True) -> ModelReport:
    """Look at config, tokenizer and the headers of the weight files.

    Args:
        folder: Of the model.
        with_weights: Whether missing weights are a problem; False looks at config and tokenizer alone.
    """
    problems: list[ModelError] = []
    config = _config(folder, problems)
    tokenizer = None if config is None else _tokenizer(folder, config, problems)
    tensors = _tensors(folder, problems) if with_weights else {}
    if config is not None and tensors:
        problems += _shape_problems(folder, config, tensors)
    return ModelReport(
        folder=folder,
        config=config,
        tensors=tensors,
        num_tokens=None if tokenizer is None else len(tokenizer.vocabulary()),
        has_chat_template=None if tokenizer is None else tokenizer.has_chat_template,
        problems=tuple(problems),
    )


def check_pair(target: Path, draft: Path) -> tuple[str, ...]:
    """Remarks on a draft that fits a target; empty where there is nothing to say.

    Embeddings padded to different row counts are a remark, not a fault: whether an engine takes them is the engine's
    to say.

    Raises:
        TokenizerMismatchError: Their token ids mean different things.
        ModelError: The draft was made for another target, or a file is broken.
    """
    ours, theirs = read_model_config(target), read_model_config(draft)
    if theirs.architecture in OWN_ARCHITECTURES:
        _check_made_for(target, ours, draft, theirs)
        return ()
    check_same_tokenizer(target, draft)
    if ours.vocab_size == theirs.vocab_size:
        return ()
    return (
        f"same tokens, but the target's embedding has {ours.vocab_size} rows and the draft's {theirs.vocab_size}: "
        "the rest is padding, which some engines refuse",
    )


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every matrix and norm that a dense llama or qwen model has."""
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer: dict[str, Shape] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (config.intermediate_size, hidden),
        "mlp.up_proj": (config.intermediate_size, hidden),
        "mlp.down_proj": (hidden, config.intermediate_size),
    }
    if config.architecture == "qwen3":
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{part}.weight": shape for part, shape in layer.items()}
    return shapes


def _config(folder: Path, problems: list[ModelError]) -> ModelConfig | None:
    try:
        return read_model_config(folder)
    except ModelError as error:
        problems.append(error)
        return None


def _tokenizer(folder: Path, config: ModelConfig, problems: list[ModelError]) -> ChatTokenizer | None:
    if config.architecture in OWN_ARCHITECTURES and not (folder / TOKENIZER).exists():
        return None
    try:
        tokenizer = ChatTokenizer.open(folder)
    except ModelError as error:
        problems.append(error)
        return None
    highest = max(tokenizer.vocabulary().values(), default=0)
    if highest >= config.vocab_size:
        problems.append(
            ModelError(
                f"{folder}: the tokenizer has the id {highest}, the embedding only {config.vocab_size} rows",
                "fetch config.json and tokenizer.json of one and the same model",
            )
        )
    return tokenizer


def _tensors(folder: Path, problems: list[ModelError]) -> dict[str, TensorInfo]:
    try:
        files = weight_files(folder)
        if not files:
            problems.append(ModelError(f"{folder} has no safetensors weights", "fetch them, or convert the model"))
        return {name: info for file in files for name, info in read_tensor_infos(file).items()}
    except ModelError as error:
        problems.append(error)
        return {}


def _shape_problems(folder: Path, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> list[ModelError]:
    if config.architecture not in _CHECKED_ARCHITECTURES or config.draft_vocab_size is not None:
        return []
    expected = expected_shapes(config)
    absent = [name for name in expected if name not in tensors]
    wrong = [
        f"{name} is {tensors[name].shape}, not {shape}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    found = {"are missing": absent, "do not fit config.json": wrong}
    return [
        ModelError(f"{folder}: {len(names)} tensors {what}: {_some(names)}", "fetch the model again")
        for what, names in found.items()
        if names
    ]


def _check_made_for(target: Path, ours: ModelConfig, draft: Path, theirs: ModelConfig) -> None:
    if (ours.hidden_size, ours.vocab_size) != (theirs.hidden_size, theirs.vocab_size):
        raise ModelError(
            f"{draft} was made for hidden size {theirs.hidden_size} and {theirs.vocab_size} tokens, "
            f"{target} has {ours.hidden_size} and {ours.vocab_size}",
            "choose a draft that was trained for this target",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_LISTED_NAMES]) + (" …" if len(names) > _LISTED_NAMES else "")
