"""What is tried: one way of speculating, and the engine settings it runs under."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Method(StrEnum):
    """How draft tokens are proposed."""

    NONE = "none"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft and how many tokens it proposes in a round.

    ``drafted_tokens`` is k: 0 means no speculation. Engines count it differently; each translates at its own
    edge, and ``num_speculative_tokens`` appears only in YAML, the CLI and exports.

    Attributes:
        method: How tokens are proposed.
        draft_name: Short stable id of the draft in the search space (``"eagle"``); what tables and Optuna show.
        draft_model: Folder of the draft's weights; None for methods without a model.
        drafted_tokens: Tokens proposed per round, k.
        prompt_lookup_max: Longest n-gram looked up (n-gram only).
        prompt_lookup_min: Shortest n-gram looked up (n-gram only).
        suffix_decoding_max_tree_depth: Longest pattern looked up and its proposal together (suffix only).
        suffix_decoding_max_spec_factor: Tokens proposed per token of the pattern (suffix only).
        suffix_decoding_min_token_prob: Least estimated probability of a proposed token (suffix only).
    """

    method: Method = Method.NONE
    draft_name: str = "none"
    draft_model: str | None = None
    drafted_tokens: int = 0
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether this is the target alone."""
        return self.method is Method.NONE

    @property
    def key(self) -> str:
        """Equal for equal configurations, whatever order their fields were written in."""
        return content_key(asdict(self))

    @property
    def label(self) -> str:
        """What tables show, e.g. ``"eagle k=3"``."""
        return "no speculation" if self.is_baseline else f"{self.draft_name} k={self.drafted_tokens}"


NO_SPECULATION = Speculation()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to load: the target, its numerics, its limits and the speculation.

    Attributes:
        target_model: Folder in Hugging Face format, or a GGUF file.
        speculation: What is proposed; ``NO_SPECULATION`` for the baseline.
        max_num_seqs: Largest number of requests decoded together.
        max_model_len: Prompt plus output tokens that one request may reach.
        weight_format: Numerics, in the engine's own words; ``"auto"`` lets the engine choose a lossless one.
        num_threads: CPU threads; None lets the engine choose by a short self-test.
    """

    target_model: str
    speculation: Speculation = NO_SPECULATION
    max_num_seqs: int = 1
    max_model_len: int = 1024
    weight_format: str = "auto"
    num_threads: int | None = None

    @property
    def key(self) -> str:
        """Equal for equal configurations."""
        return content_key(asdict(self))


def content_key(value: object) -> str:
    """Sixteen hex digits that depend on content alone: SHA-256 of the canonical JSON.

    Raises:
        TypeError: ``value`` holds something that JSON cannot.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
