"""Rendering of a model's own chat template, in a sandbox: the template comes from a download."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tuner.errors import ModelError
from tuner.models.files import CHAT_TEMPLATE, TOKENIZER_CONFIG, read_json_if_there
from tuner.records import Message

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """One model's template and the special tokens that it may print.

    Args:
        source: The template's text.
        origin: The file it came from; errors name it.
        special_tokens: ``bos_token``, ``eos_token``, … as far as the model states them.
    """

    def __init__(self, source: str, origin: Path, special_tokens: Mapping[str, str]) -> None:
        self._origin = origin
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"{origin}: the chat template does not compile: {error.message} (line {error.lineno} of the template)",
                "fetch the model again, or write prompts as plain text",
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The text that asks the model for the next assistant turn.

        Raises:
            ModelError: The template refuses the conversation or fails on it.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise ModelError(
                f"{self._origin}: the chat template refuses the conversation: {error}",
                f"its roles are {', '.join(message.role for message in messages)}; change the prompt",
            ) from error


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of the model in ``folder``, from its own file or from ``tokenizer_config.json``.

    Raises:
        ModelError: The template does not compile, or a file is broken.
    """
    config = read_json_if_there(folder / TOKENIZER_CONFIG)
    tokens = {name: text for name in SPECIAL_TOKEN_NAMES if (text := token_text(config.get(name))) is not None}
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return ChatTemplate(file.read_text(encoding="utf-8"), file, tokens)
    source = _default_of(config.get("chat_template"))
    return None if source is None else ChatTemplate(source, folder / TOKENIZER_CONFIG, tokens)


def token_text(value: object) -> str | None:
    """The text of a special token, which configs write as a string or as an object with ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _default_of(stated: object) -> str | None:
    """A model may carry several named templates; the one called ``default`` is for plain conversations."""
    if isinstance(stated, str):
        return stated
    named = stated if isinstance(stated, list) else []
    sources = {one.get("name"): one.get("template") for one in named if isinstance(one, Mapping)}
    source = sources.get("default")
    return source if isinstance(source, str) else None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model was trained to write; for a prompt its body stands as it is."""

    tags = {"generation"}  # noqa: RUF012 -- the name and type that jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    """Local time, as the models' own tools print it: the date is for the model to read."""
    return datetime.now().astimezone().strftime(form)
