"""A model's tokenizer with its chat template, and whether two models give the same ids to the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from tuner.errors import ModelError, TokenizerMismatchError
from tuner.models.chat_template import ChatTemplate, read_chat_template, token_text
from tuner.models.config import read_eos_token_ids
from tuner.models.files import TOKENIZER, TOKENIZER_CONFIG, read_json, read_json_if_there
from tuner.records import Prompt
from tuner.speculation import content_key

# Enough to see the pattern of a mismatch (shifted ids, missing added tokens) in one line.
EXAMPLES_SHOWN = 4


class ChatTokenizer:
    """Prompts to token ids and back, as the model's own publisher defined it. Made by ``open``."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        folder: Path,
        chat_template: ChatTemplate | None,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._chat_template = chat_template
        self.eos_token_ids = eos_token_ids

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The tokenizer of the model in ``folder``.

        Raises:
            ModelError: ``tokenizer.json`` is absent or broken, or the chat template does not compile.
        """
        tokenizer = _load(folder / TOKENIZER)
        eos_text = token_text(read_json_if_there(folder / TOKENIZER_CONFIG).get("eos_token"))
        eos_id = None if eos_text is None else tokenizer.token_to_id(eos_text)
        return cls(
            tokenizer,
            folder=folder,
            chat_template=read_chat_template(folder),
            eos_token_ids=read_eos_token_ids(folder) | (frozenset() if eos_id is None else {eos_id}),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids to equal words: of token map, merges and added tokens.

        Raises:
            ModelError: ``tokenizer.json`` is gone or broken.
        """
        return _fingerprint(read_json(self._folder / TOKENIZER), self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return self._chat_template is not None

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: a conversation through the chat template, ready for the answer; plain text as it is.

        Plain text gets what the tokenizer itself puts around a text (a beginning-of-sequence id in some models);
        a rendered conversation carries its special tokens already.

        Raises:
            ModelError: The prompt is a conversation and the model has no chat template, or it refuses it.
        """
        if not prompt.messages:
            return self._ids(prompt.text or "", add_special_tokens=True)
        if self._chat_template is None:
            raise ModelError(
                f"prompt {prompt.prompt_id!r} is a conversation, but {self._folder} has no chat template",
                "write the prompt as plain text, or use an instruction-tuned model",
            )
        return self._ids(self._chat_template.render(prompt.messages), add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def vocabulary(self) -> dict[str, int]:
        """Every token and its id, added tokens included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


def check_same_tokenizer(target: Path, draft: Path) -> None:
    """Refuse a draft whose token ids mean something else than the target's.

    Maps from token to id are compared, never sizes: embeddings padded to different row counts are equal, and
    vocabularies of one size can differ.

    Args:
        target: Folder of the target.
        draft: Folder of the draft.

    Raises:
        TokenizerMismatchError: Some tokens differ; the message shows examples.
        ModelError: One of the folders has no readable tokenizer.
    """
    ours, theirs = (_load(folder / TOKENIZER).get_vocab(with_added_tokens=True) for folder in (target, draft))
    if ours == theirs:
        return
    differing = sorted(
        (token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)),
        key=lambda token: (min(ours.get(token, 1 << 62), theirs.get(token, 1 << 62)), token),
    )
    examples = "; ".join(_difference(token, ours, theirs) for token in differing[:EXAMPLES_SHOWN])
    raise TokenizerMismatchError(
        f"{draft} does not share the tokenizer of {target}: {len(differing)} tokens differ, e.g. {examples}",
        "choose a draft of the target's own family, or the n-gram method, which needs no draft model",
    )


def _difference(token: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    here, there = (str(vocabulary.get(token, "absent")) for vocabulary in (ours, theirs))
    return f"{token!r} is {here} in the target and {there} in the draft"


def _load(path: Path) -> Tokenizer:
    if not path.is_file():
        read_json(path)  # raises, and says what the folder holds instead
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(f"{path} is no tokenizer that can be read: {error}", "fetch the file again") from error


def _fingerprint(definition: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    merges = definition.get("model", {}).get("merges") or []
    added = {entry["content"]: entry["id"] for entry in definition.get("added_tokens", [])}
    return content_key(
        {
            "vocabulary": tokenizer.get_vocab(with_added_tokens=True),
            # Older files write a merge as one text with a space, newer ones as a pair.
            "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in merges],
            "added_tokens": added,
        }
    )
