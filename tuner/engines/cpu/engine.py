"""The engine ``cpu``: speculative decoding on plain CPUs. Importing this module does not import PyTorch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from tuner.engines.base import Artifact, Capabilities, LoadedEngine
from tuner.engines.cpu.limits import (
    ARCHITECTURES,
    EAGLE,
    LOSSY_WEIGHT_FORMATS,
    MAX_DRAFTED_TOKENS,
    MAX_NUM_SEQS,
    SHALLOW,
    WEIGHT_FORMATS,
)
from tuner.engines.cpu.weights import Weights, check_tensors
from tuner.errors import EngineNotInstalledError, ModelError, UnsupportedConfigurationError
from tuner.models.config import ModelConfig, read_model_config
from tuner.models.tokenizer import check_same_tokenizer
from tuner.proposers import lookup_lengths, suffix_rule
from tuner.speculation import EngineConfig, Method, Speculation, content_key


class CpuEngine:
    """Runs Llama and Qwen models with fused, packed weights on x86 CPUs, and in fp32 elsewhere."""

    name: ClassVar[str] = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=frozenset(Method),
        max_num_seqs=MAX_NUM_SEQS,
        max_drafted_tokens=MAX_DRAFTED_TOKENS,
        needs_compile=False,
        gives_token_ids=True,
        loads_at_once=2,
    )

    def check(self, config: EngineConfig) -> None:
        """Refuse limits that are exceeded and models that are not of a known kind.

        Raises:
            UnsupportedConfigurationError: With the reason and what to change.
            ModelError: The target or draft cannot be used.
        """
        _check_limits(config)
        _check_speculation(config.speculation)
        target = read_model_config(Path(config.target_model))
        _check_architecture(config.target_model, target, ARCHITECTURES)
        _check_length(config, target)
        check_tensors(Weights(Path(config.target_model)), target)
        if config.speculation.draft_model is not None:
            _check_draft(config, config.speculation.draft_model, target)

    def replay_is_exact(self, config: EngineConfig) -> bool:
        """Whether a token's result is the same however many are verified together."""
        return config.weight_format not in LOSSY_WEIGHT_FORMATS

    def compile_key(self, config: EngineConfig) -> str:  # noqa: ARG002
        """Always the same: nothing is compiled."""
        return content_key({"engine": self.name})

    def compile(self, config: EngineConfig, folder: Path) -> None:
        """Nothing to do."""

    def load(self, config: EngineConfig, artifact: Artifact) -> LoadedEngine:  # noqa: ARG002
        """Read the weights. The result is a context manager.

        Raises:
            EngineNotInstalledError: PyTorch is missing.
            OutOfDeviceMemoryError: It does not fit.
        """
        self.check(config)
        if find_spec("torch") is None:
            raise EngineNotInstalledError(
                "the cpu engine needs the package 'torch', which is not installed", "pip install 'specdec-tuner[cpu]'"
            )
        from tuner.engines.cpu.loading import load_cpu_engine

        return load_cpu_engine(config)


def _check_limits(config: EngineConfig) -> None:
    if not 1 <= config.max_num_seqs <= MAX_NUM_SEQS:
        raise UnsupportedConfigurationError(
            f"max_num_seqs is {config.max_num_seqs}, the cpu engine decodes 1 to {MAX_NUM_SEQS} requests together",
            f"set max_num_seqs to {MAX_NUM_SEQS} or less",
        )
    if config.weight_format not in WEIGHT_FORMATS:
        raise UnsupportedConfigurationError(
            f"weight_format {config.weight_format!r} is unknown to the cpu engine",
            f"use one of: {', '.join(WEIGHT_FORMATS)}",
        )
    if config.num_threads is not None and config.num_threads < 1:
        raise UnsupportedConfigurationError(f"num_threads is {config.num_threads}", "use 1 or more, or leave it out")
    if config.max_model_len < 2:
        raise UnsupportedConfigurationError(
            f"max_model_len is {config.max_model_len}", "a prompt and its output take 2 tokens at least"
        )


def _check_speculation(speculation: Speculation) -> None:
    if speculation.is_baseline:
        return
    if not 1 <= speculation.drafted_tokens <= MAX_DRAFTED_TOKENS:
        raise UnsupportedConfigurationError(
            f"{speculation.label}: the cpu engine drafts 1 to {MAX_DRAFTED_TOKENS} tokens in a round",
            f"set num_speculative_tokens to {MAX_DRAFTED_TOKENS} or less",
        )
    _check_lookup(speculation)
    if speculation.method in {Method.DRAFT_MODEL, Method.EAGLE} and speculation.draft_model is None:
        raise UnsupportedConfigurationError(
            f"{speculation.label}: method {speculation.method} needs a draft_model", "give the folder of its weights"
        )


def _check_lookup(speculation: Speculation) -> None:
    longest, shortest = lookup_lengths(speculation)
    if speculation.method is Method.NGRAM and not 1 <= shortest <= longest:
        raise UnsupportedConfigurationError(
            f"prompt_lookup_min {shortest} and prompt_lookup_max {longest} leave no n-gram to look up",
            "keep 1 <= prompt_lookup_min <= prompt_lookup_max",
        )
    rule = suffix_rule(speculation)
    if rule.max_tree_depth < 2 or rule.max_spec_factor <= 0 or not 0 <= rule.min_token_prob <= 1:
        raise UnsupportedConfigurationError(
            f"suffix_decoding_max_tree_depth {rule.max_tree_depth}, suffix_decoding_max_spec_factor "
            f"{rule.max_spec_factor:g} and suffix_decoding_min_token_prob {rule.min_token_prob:g} propose nothing",
            "use a depth of 2 or more, a factor above 0, and a probability of 0 to 1",
        )


def _check_architecture(folder: str, model: ModelConfig, known: tuple[str, ...]) -> None:
    if model.architecture not in known:
        raise UnsupportedConfigurationError(
            f"{folder} has architecture {model.architecture!r}", f"the cpu engine knows: {', '.join(known)}"
        )


def _check_length(config: EngineConfig, target: ModelConfig) -> None:
    if config.max_model_len > target.max_position_embeddings:
        raise UnsupportedConfigurationError(
            f"max_model_len is {config.max_model_len}, but {config.target_model} was trained for "
            f"{target.max_position_embeddings} positions",
            f"set max_model_len to {target.max_position_embeddings} or less",
        )


def _check_draft(config: EngineConfig, folder: str, target: ModelConfig) -> None:
    draft = read_model_config(Path(folder))
    if config.speculation.method is Method.EAGLE:
        _check_architecture(folder, draft, (EAGLE,))
    else:
        _check_architecture(folder, draft, (*ARCHITECTURES, SHALLOW))
    check_tensors(Weights(Path(folder)), draft)
    if draft.architecture in ARCHITECTURES:
        check_same_tokenizer(Path(config.target_model), Path(folder))
        return
    if (draft.hidden_size, draft.vocab_size) != (target.hidden_size, target.vocab_size):
        raise ModelError(
            f"{folder} was made for hidden size {draft.hidden_size} and {draft.vocab_size} tokens, "
            f"{config.target_model} has {target.hidden_size} and {target.vocab_size}",
            "choose a draft that was trained for this target",
        )
