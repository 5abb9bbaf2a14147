"""The library ``transformers`` as a contender: plain generation, prompt lookup and assisted decoding.

It gets the same prompt ids, end tokens, caps and threads, and for assisted decoding the same draft: the shipped
two-layer model with the target's embedding and the same few rows of its output matrix.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tuner.metrics import tpot_ms
from tuner.models.config import read_model_config
from tuner.models.files import WEIGHTS
from tuner.models.tokenizer import ChatTokenizer
from tuner.records import Prompt, RequestRecord

DTYPES = {"": torch.float32, "_bf16": torch.bfloat16}
"""Suffix of a contender's name, and what its weights and activations are stored in."""

PROMPT_LOOKUP_TOKENS = 5
ASSISTANT_TOKENS = 3

DIMENSIONS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
)
"""What a draft's configuration shares with the library's."""

PROBE_TOKENS = 12
PROBE_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Settings of plain generation that change its speed and nothing else.

    Attributes:
        cache: ``"static"``, or None for one that grows. Assisted decoding takes the growing one only.
    """

    attention: str
    cache: str | None

    @property
    def label(self) -> str:
        """As the JSON shows it."""
        return f"{self.attention} attention, {self.cache or 'dynamic'} cache"


MODES = tuple(
    Mode(attention=attention, cache=cache) for attention, cache in product(("sdpa", "eager"), (None, "static"))
)


class ReducedHead(nn.Module):
    """The rows of an output matrix that a draft can choose; all other tokens get a logit that loses."""

    def __init__(self, rows: Tensor, token_ids: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.rows, self.token_ids, self.vocabulary = rows, token_ids, vocabulary

    def forward(self, states: Tensor) -> Tensor:
        """Logits [..., vocabulary] of states [..., hidden]."""
        chosen = nn.functional.linear(states, self.rows)
        logits = chosen.new_full((*chosen.shape[:-1], self.vocabulary), torch.finfo(chosen.dtype).min)
        logits[..., self.token_ids] = chosen
        return logits


@dataclass(slots=True)
class Stopwatch:
    """A streamer: told the prompt first, then the tokens of every step as they come."""

    chunks: list[tuple[float, list[int]]] = field(default_factory=list)
    saw_prompt: bool = False

    def put(self, tokens: Tensor) -> None:
        """Note the moment of new tokens."""
        if self.saw_prompt:
            self.chunks.append((time.monotonic(), tokens.flatten().tolist()))
        self.saw_prompt = True

    def end(self) -> None:
        """Nothing to do: the last token has been noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersContender:
    """A model of ``transformers`` with one set of options of ``generate``."""

    name: str
    reference: str
    model: Any
    mode: Mode
    tokenizer: ChatTokenizer
    threads: int
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, prompt: Prompt, max_output_tokens: int) -> RequestRecord:
        """Answer one prompt greedily."""
        torch.set_num_threads(self.threads)
        watch = Stopwatch()
        sent_s = time.monotonic()
        ids = torch.tensor([self.tokenizer.encode(prompt)])
        with torch.inference_mode(), _quiet():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_output_tokens,
                eos_token_id=sorted(self.tokenizer.eos_token_ids),
                cache_implementation=self.mode.cache,
                streamer=watch,
                **self.options,
            )
        tokens = tuple(token for _, chunk in watch.chunks for token in chunk)
        return RequestRecord(
            request_id=self.name,
            prompt_id=prompt.prompt_id,
            prompt_class=prompt.prompt_class,
            max_output_tokens=max_output_tokens,
            sent_s=sent_s,
            chunks=tuple((at_s, len(chunk)) for at_s, chunk in watch.chunks),
            token_ids=tokens,
            prompt_tokens=ids.shape[1],
            output_tokens=len(tokens),
            finish_reason="stop" if tokens[-1] in self.tokenizer.eos_token_ids else "length",
        )


def load_transformers(target: Path, shallow: Path, threads: int, probe: Prompt) -> list[TransformersContender]:
    """Every dtype without speculation, with prompt lookup and with the shipped draft, each in its fastest mode."""
    tokenizer = ChatTokenizer.open(target)
    loaded = []
    for suffix, dtype in DTYPES.items():
        model = _open_target(target, dtype)
        plain = _fastest(
            [
                TransformersContender(
                    name=f"transformers{suffix}",
                    reference=f"transformers{suffix}",
                    model=model,
                    mode=mode,
                    tokenizer=tokenizer,
                    threads=threads,
                )
                for mode in MODES
            ],
            probe,
        )
        loaded += [plain, *_with_speculation(plain, suffix, _open_assistant(shallow, model))]
    return loaded


def _with_speculation(plain: TransformersContender, suffix: str, assistant: Any) -> list[TransformersContender]:
    options = {
        "prompt_lookup": {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS},
        "assisted": {"assistant_model": assistant},
    }
    return [
        TransformersContender(
            name=f"transformers{suffix}_{kind}",
            reference=plain.name,
            model=plain.model,
            mode=Mode(attention=plain.mode.attention, cache=None),
            tokenizer=plain.tokenizer,
            threads=plain.threads,
            options=chosen,
        )
        for kind, chosen in options.items()
    ]


def _library() -> Any:
    """The package, told to keep off the network and to keep still."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with _quiet():
        library: Any = import_module("transformers")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def _open_target(folder: Path, dtype: torch.dtype) -> Any:
    model = _library().AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval()


def _open_assistant(folder: Path, target: Any) -> Any:
    """The shipped two-layer draft as a model of ``transformers``, in the target's dtype."""
    library, own, tensors = _library(), read_model_config(folder), load_file(folder / WEIGHTS)
    token_ids = tensors.pop("draft_token_ids").long()
    config = library.LlamaConfig(
        **{name: getattr(own, name) for name in DIMENSIONS},
        rope_parameters={"rope_type": "default", "rope_theta": own.rope_theta},
        attn_implementation=target.config._attn_implementation,
    )
    assistant, embedding = library.LlamaForCausalLM(config), target.get_input_embeddings()
    assistant.model.load_state_dict({**tensors, "embed_tokens.weight": embedding.weight})
    assistant = assistant.to(target.dtype).eval()
    assistant.model.embed_tokens = embedding
    assistant.lm_head = ReducedHead(target.get_output_embeddings().weight[token_ids], token_ids, own.vocab_size)
    generation = assistant.generation_config
    generation.num_assistant_tokens = ASSISTANT_TOKENS
    generation.num_assistant_tokens_schedule = "constant"
    generation.assistant_confidence_threshold = 0.0
    return assistant


def _fastest(contenders: Sequence[TransformersContender], probe: Prompt) -> TransformersContender:
    """The contender whose best of some short runs is fastest; its attention stays set."""
    best_ms = [float("inf")] * len(contenders)
    for _ in range(1 + PROBE_ROUNDS):
        for index, contender in enumerate(contenders):
            contender.model.set_attn_implementation(contender.mode.attention)
            best_ms[index] = min(best_ms[index], tpot_ms(contender.run(probe, PROBE_TOKENS)) or float("inf"))
    winner = contenders[best_ms.index(min(best_ms))]
    winner.model.set_attn_implementation(winner.mode.attention)
    return winner


def _quiet() -> AbstractContextManager[object]:
    """Warnings of another project's own making are not ours to show."""
    return warnings.catch_warnings(action="ignore")
