"""Replay for engines that cannot replay themselves: one pass of a Hugging Face model over the target's outputs.

Importing this module imports neither PyTorch nor transformers; they come with the extra ``replay``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.engines.base import DEEPEST_REPLAY
from tuner.errors import EngineNotInstalledError, MeasurementError, ModelError
from tuner.models.config import read_model_config
from tuner.models.tokenizer import ChatTokenizer, check_same_tokenizer
from tuner.records import GREEDY, PromptTrace, Sampling, TargetOutput, Trace, TraceKind

if TYPE_CHECKING:
    from tuner.engines.logits import TokenFacts

Progress = Callable[[int, int], None]
"""Called with (finished, total) outputs of one model's pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """How a model is run.

    Attributes:
        dtype: Numerics of weights and activations; ``"auto"`` is what the weights are stored in. The engine's own are
            best, for argmaxes of near ties depend on them; on CPUs half precision takes three times as long as fp32.
        device: PyTorch's name of where it runs.
        tokens_at_once: Rows of one pass, padding included. All their logits are held: 0.6 GB for a vocabulary of
            152,000 in fp32. A longer output has a pass for itself.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    tokens_at_once: int = 1024


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt and the output along which a model is run."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def trace_with_model(
    outputs: Sequence[TargetOutput],
    *,
    draft_name: str,
    draft: Path,
    target: Path,
    sampling: Sampling = GREEDY,
    draft_samples: bool = False,
    with_gaps: bool = False,
    settings: PassSettings = PassSettings(),
    progress: Progress | None = None,
) -> Trace:
    """Trace an autoregressive draft by one teacher-forced pass over the outputs.

    Exact for engines whose draft has this folder's weights, these numerics and no state of its own between rounds:
    for every k where the draft proposes its most likely token, as expected values where it samples.

    Args:
        outputs: What the target answered.
        draft_name: What the trace is called after.
        draft: Folder of the draft, any causal language model that transformers knows without remote code.
        target: Folder of the target; only its tokenizer is read unless its pass is needed.
        sampling: How the target chose the outputs.
        draft_samples: Whether the engine draws draft tokens where the target samples: p and q are kept then.
        with_gaps: Whether to run the target for its logit gaps.
        settings: How both models are run.
        progress: Told of each model's pass.

    Raises:
        EngineNotInstalledError: PyTorch or transformers is missing.
        TokenizerMismatchError: Their token ids mean different things.
        ModelError: A model cannot be read, or is too short for an output.
        MeasurementError: The outputs hold ids that the target's tokenizer does not have, or logits are no numbers.
    """
    _require_packages()
    check_same_tokenizer(target, draft)
    continuations = _encode(outputs, target)
    needs_p = draft_samples and sampling.temperature > 0
    of_draft = _facts(draft, continuations, target, sampling if needs_p else GREEDY, settings, progress)
    of_target: list[TokenFacts] | None = None
    if needs_p or with_gaps:
        chosen_by = sampling if needs_p else GREEDY
        of_target = _facts(target, continuations, target, chosen_by, settings, progress, are_chosen=True)
    prompts = [
        _prompt_trace(output, of_draft[index], None if of_target is None else of_target[index])
        for index, output in enumerate(outputs)
    ]
    return Trace(
        draft_name=draft_name,
        max_drafted_tokens=DEEPEST_REPLAY,
        prompts=tuple(prompts),
        kind=TraceKind.TEACHER_FORCED,
        sampling=sampling,
    )


def top2_gaps_with_model(
    outputs: Sequence[TargetOutput],
    target: Path,
    settings: PassSettings = PassSettings(),
    progress: Progress | None = None,
) -> tuple[tuple[float, ...], ...]:
    """Logit of the target's most likely token minus that of its second, at each position of each output.

    Raises:
        EngineNotInstalledError: PyTorch or transformers is missing.
        ModelError: The target cannot be read, or is too short for an output.
        MeasurementError: The outputs hold ids that its tokenizer does not have, or logits are no numbers.
    """
    _require_packages()
    facts = _facts(target, _encode(outputs, target), target, GREEDY, settings, progress)
    return tuple(one.top2_gaps for one in facts)


def _require_packages() -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise EngineNotInstalledError(
            f"replaying a draft by a pass of its model needs {' and '.join(missing)}, which is not installed",
            "pip install 'specdec-tuner[replay]'",
        )


def _encode(outputs: Sequence[TargetOutput], target: Path) -> list[Continuation]:
    tokenizer = ChatTokenizer.open(target)
    known = num_token_ids(tokenizer)
    continuations = []
    for output in outputs:
        foreign = [token for token in output.token_ids if not 0 <= token < known]
        if foreign:
            raise MeasurementError(
                f"the output of prompt {output.prompt.prompt_id!r} holds token id {foreign[0]}, "
                f"but the tokenizer of {target} ends at {known - 1}",
                "replay along outputs of this very target",
            )
        continuations.append(Continuation(tuple(tokenizer.encode(output.prompt)), output.token_ids))
    return continuations


def num_token_ids(tokenizer: ChatTokenizer) -> int:
    """The highest id of a tokenizer and one. Rows of logits from there on are padding, and never count."""
    return max(tokenizer.vocabulary().values(), default=-1) + 1


def _facts(
    folder: Path,
    continuations: Sequence[Continuation],
    target: Path,
    sampling: Sampling,
    settings: PassSettings,
    progress: Progress | None,
    *,
    are_chosen: bool = False,
) -> list[TokenFacts]:
    num_tokens = num_token_ids(ChatTokenizer.open(target))
    _check_fits(folder, continuations, num_tokens)
    from tuner.engines.causal_lm import CausalLm

    model = CausalLm.load(folder, settings, num_tokens=num_tokens)
    return model.facts(continuations, sampling, progress, are_chosen=are_chosen)


def _check_fits(folder: Path, continuations: Sequence[Continuation], num_tokens: int) -> None:
    config = read_model_config(folder)
    if config.vocab_size < num_tokens:
        raise ModelError(
            f"{folder}: config.json has {config.vocab_size} rows for {num_tokens} token ids",
            "fetch config, tokenizer and weights of one and the same model",
        )
    longest = max((len(one.prompt) + len(one.output) for one in continuations), default=0)
    if longest > config.max_position_embeddings:
        raise ModelError(
            f"{folder} was trained for {config.max_position_embeddings} positions, "
            f"but a prompt with its output has {longest}",
            "leave out long prompts, or choose another draft",
        )


def _prompt_trace(output: TargetOutput, of_draft: TokenFacts, of_target: TokenFacts | None) -> PromptTrace:
    from tuner.engines.logits import runs_of_hits

    proposed, matched = runs_of_hits(of_draft.ranks, DEEPEST_REPLAY)
    return PromptTrace(
        prompt_id=output.prompt.prompt_id,
        prompt_class=output.prompt.prompt_class,
        max_output_tokens=output.max_output_tokens,
        proposed=proposed,
        matched=matched,
        ranks=of_draft.ranks,
        target_probabilities=() if of_target is None else of_target.probabilities,
        draft_probabilities=of_draft.probabilities,
        top2_gaps=() if of_target is None else of_target.top2_gaps,
    )
