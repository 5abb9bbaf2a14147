"""A causal language model of transformers, run over whole texts. Needs PyTorch and transformers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tuner.engines.logits import TokenFacts, token_facts
from tuner.engines.model_pass import Continuation, PassSettings, Progress
from tuner.errors import ModelError
from tuner.records import Sampling

NO_OUTPUT = TokenFacts(ranks=(), probabilities=(), top2_gaps=())


class CausalLm:
    """A model in memory. Made by ``load``.

    Args:
        model: Of transformers.
        settings: How it is run.
        num_tokens: Token ids; rows of logits from there on are padding.
    """

    def __init__(self, model: Any, settings: PassSettings, num_tokens: int) -> None:
        self._model, self._settings, self._num_tokens = model, settings, num_tokens
        self._keeps_few_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @classmethod
    def load(cls, folder: Path, settings: PassSettings, *, num_tokens: int) -> Self:
        """Read the weights from a folder, from safetensors alone and without any code of the model's own.

        Raises:
            ModelError: transformers does not know such a model, or a file is missing or damaged.
        """
        with _quiet_transformers() as transformers:
            try:
                model, info = transformers.AutoModelForCausalLM.from_pretrained(
                    str(folder),
                    dtype=settings.dtype,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    output_loading_info=True,
                )
            except (OSError, ValueError, RuntimeError) as error:
                raise ModelError(
                    f"transformers cannot read {folder} as a causal language model: {str(error).splitlines()[0]}",
                    "give a folder with config.json and safetensors of an architecture that transformers knows",
                ) from error
        absent = sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]}))
        if absent:  # transformers would go on with random numbers in their place
            raise ModelError(
                f"{folder} lacks {len(absent)} tensors, or has them in other shapes: {absent[0]} …",
                "convert or download the model again",
            )
        return cls(model.eval().to(settings.device), settings, num_tokens)

    @torch.inference_mode()
    def facts(
        self,
        continuations: Sequence[Continuation],
        sampling: Sampling,
        progress: Progress | None = None,
        *,
        are_chosen: bool = False,
    ) -> list[TokenFacts]:
        """What the model says of each output token, of each continuation; see ``token_facts``.

        Raises:
            MeasurementError: Its logits are NaN or infinite.
        """
        found = [NO_OUTPUT] * len(continuations)
        done = sum(not one.output for one in continuations)
        for batch in batches(continuations, self._settings.tokens_at_once):
            first, logits = self._logits([continuations[index] for index in batch])
            for index, rows in zip(batch, logits, strict=True):
                found[index] = self._facts_of(continuations[index], first, rows, sampling, are_chosen=are_chosen)
            done += len(batch)
            if progress is not None:
                progress(done, len(continuations))
        return found

    def _facts_of(
        self, continuation: Continuation, first: int, rows: Tensor, sampling: Sampling, *, are_chosen: bool
    ) -> TokenFacts:
        begin = len(continuation.prompt) - 1 - first
        own = rows[begin : begin + len(continuation.output)]
        columns = torch.tensor(continuation.output, device=rows.device)
        return token_facts(
            own, columns, lambda some: some[:, : self._num_tokens].float(), sampling, are_chosen=are_chosen
        )

    def _logits(self, batch: Sequence[Continuation]) -> tuple[int, Tensor]:
        """Logits [batch, rows, vocabulary] from the first row that any of the batch needs on, and that row."""
        fed = [[*one.prompt, *one.output[:-1]] for one in batch]  # nothing follows the last token
        longest = max(map(len, fed))
        # What comes after a token does not reach it, so that any id will do as padding on the right.
        ids = torch.tensor([one + [0] * (longest - len(one)) for one in fed], device=self._settings.device)
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in fed], device=ids.device)
        first = min(len(one.prompt) for one in batch) - 1
        few = {"logits_to_keep": torch.arange(first, longest, device=ids.device)} if self._keeps_few_logits else {}
        logits: Tensor = self._model(input_ids=ids, attention_mask=mask, use_cache=False, **few).logits
        return first, logits if few else logits[:, first:]


@contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """The package, without its progress bars and without warnings of its own making."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        logging: Any = transformers.utils.logging
        had_bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            if had_bars:
                logging.enable_progress_bar()


def batches(continuations: Sequence[Continuation], tokens_at_once: int) -> list[list[int]]:
    """Indices of continuations that have output, similar lengths together, the longest first.

    Each batch padded to its longest has at most ``tokens_at_once`` tokens, or is one continuation.
    """
    lengths = {i: len(one.prompt) + len(one.output) - 1 for i, one in enumerate(continuations) if one.output}
    found: list[list[int]] = []
    for index in sorted(lengths, key=lambda index: -lengths[index]):
        if found and lengths[found[-1][0]] * (len(found[-1]) + 1) <= tokens_at_once:
            found[-1].append(index)
        else:
            found.append([index])
    return found
