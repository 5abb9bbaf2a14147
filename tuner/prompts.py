"""Prompt files: JSON Lines as people save them, read into prompts with exact complaints.

Read: UTF-8 with or without byte-order mark, LF or CRLF, blank lines, lines of any length, gzip. Lines end at LF only,
so that U+2028 or U+0085 inside a string cut nothing. Row layouts, by their columns:

- ``{"messages": [{"role": …, "content": …}]}``: a conversation; assistant turns at its end are reference answers and
  are left out.
- ``{"turns": ["…", …]}``: Spec-Bench; the first turn is the prompt.
- ``{"prompt": "…"}``, or ``text``, ``question``, ``instruction`` (with an optional ``input``), ``input``: one user
  message. With ``"raw": true`` it is plain text to be continued, without the chat template.

Optional everywhere: an id, a class (``class`` or ``category``), and a cap of output tokens.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tuner.errors import WorkloadError
from tuner.lookup import did_you_mean, nearest
from tuner.records import Message, Prompt

TEXT_COLUMNS = ("prompt", "text", "question", "instruction", "input")
PROMPT_COLUMNS = ("messages", "turns", *TEXT_COLUMNS)
ID_COLUMNS = ("id", "prompt_id", "question_id", "task_id")
CLASS_COLUMNS = ("class", "category")
CAP_COLUMNS = ("max_output_tokens", "output_tokens", "max_tokens")
DEFAULT_CLASS = "default"
ROW_HINT = 'write one object a line, e.g. {"prompt": "Write a haiku."}'

_SHOWN_BYTES = 4096
_SHOWN_COLUMNS = 20
_SHOWN_CHARACTERS = 40
"""Of a line that is no prompt, in a message: its beginning, columns, and letters of a column's name."""

# Columns by which other public formats are known. Their rows mean something else, so they are refused, not guessed at.
OTHER_FORMATS = {
    "ShareGPT": ({"conversations"}, {"conversation"}, {"items"}),
    "OpenAI batch": ({"custom_id", "body"}, {"body", "url"}),
    "Mooncake trace": ({"hash_ids"}, {"input_length", "output_length"}),
    "BurstGPT trace": ({"Request tokens", "Response tokens"},),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line that is no prompt.

    Attributes:
        line: The physical line, from 1.
        reason: Why, in words that are the same for the same fault.
        detail: What was found there instead.
    """

    line: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFile:
    """What a prompt file holds.

    Attributes:
        prompts: In file order. A prompt without a class has ``DEFAULT_CLASS``.
        lines: The physical line of each prompt, from 1.
        skipped: Lines left out; empty unless invalid lines were to be skipped.
    """

    path: Path
    prompts: tuple[Prompt, ...]
    lines: tuple[int, ...]
    skipped: tuple[SkippedLine, ...] = ()


class _InvalidRowError(ValueError):
    """Why one row is no prompt: the reason, and what was found instead."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}; {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


def read_prompts(path: Path, *, skip_invalid: bool = False) -> PromptFile:
    """The prompts of a JSON Lines file.

    Args:
        path: The file, plain or gzip.
        skip_invalid: Leave invalid lines out and report them in ``skipped``, where otherwise the first one stops.

    Raises:
        WorkloadError: A line is invalid, the file is of another format, or it holds no prompt at all.
    """
    prompts: dict[str, tuple[int, Prompt]] = {}
    skipped: list[SkippedLine] = []
    columns: dict[str, None] = {}
    lines = _lines(_read_bytes(path))
    _refuse_other_files(path, lines)
    for number, line in lines:
        try:
            row = _row(line)
            columns.update(dict.fromkeys(row))
            _refuse_other_formats(path, number, row)
            prompt = _prompt(row, default_id=f"{path.name.partition('.')[0]}-{number}")
            _refuse_repeated_id(prompt, prompts)
        except _InvalidRowError as problem:
            if not skip_invalid:
                hint = f"{ROW_HINT}; `tuner workloads check {path} --skip-invalid` finds all such lines"
                raise WorkloadError(f"{path}:{number}: {problem}", hint) from problem
            skipped.append(SkippedLine(line=number, reason=problem.reason, detail=problem.detail))
        else:
            prompts[prompt.prompt_id] = (number, prompt)
    if not prompts:
        _nothing_usable(path, skipped, columns)
    numbers, found = zip(*prompts.values(), strict=True)
    return PromptFile(path=path, prompts=found, lines=numbers, skipped=tuple(skipped))


def reasons(skipped: tuple[SkippedLine, ...]) -> dict[str, int]:
    """How many lines were skipped for each reason, most frequent first."""
    return dict(Counter(item.reason for item in skipped).most_common())


def prompts_digest(prompts: tuple[Prompt, ...]) -> str:
    """SHA-256 of what is asked, in order: equal for equal prompts, whatever file they were written in."""
    digest = hashlib.sha256()
    for prompt in prompts:
        turns = [[message.role, message.content] for message in prompt.messages]
        content = [prompt.prompt_id, prompt.prompt_class, turns, prompt.text, prompt.max_output_tokens]
        digest.update(json.dumps(content, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


# --- bytes to rows ----------------------------------------------------------------------------------------------


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except FileNotFoundError as problem:
        raise WorkloadError(f"no such prompt file: {path}", "check the path") from problem
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise WorkloadError(f"{path} is damaged: {problem}", "copy the file again") from problem
    except OSError as problem:
        raise WorkloadError(f"{path} cannot be read: {problem.strerror}", "check the file's permissions") from problem
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise WorkloadError(f"{path} is UTF-16, not UTF-8", "save it as UTF-8")
    if b"\0" in data:
        raise WorkloadError(f"{path} is not text: it holds zero bytes", ROW_HINT)
    return data.removeprefix(b"\xef\xbb\xbf")


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    """Lines that hold something, with their physical number from 1. Only LF ends a line."""
    stripped = ((number, line.strip()) for number, line in enumerate(data.split(b"\n"), start=1))
    return [(number, line) for number, line in stripped if line]


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise _InvalidRowError("not UTF-8", f"at byte {problem.start + 1} of the line") from problem
    except json.JSONDecodeError as problem:
        raise _InvalidRowError("not valid JSON", f"{problem.msg} at column {problem.colno}") from problem
    except RecursionError as problem:
        raise _InvalidRowError("not usable JSON: nested too deeply") from problem
    if not isinstance(row, dict):
        raise _InvalidRowError(f"not an object but {_kind(row)}")
    return row


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _refuse_repeated_id(prompt: Prompt, prompts: dict[str, tuple[int, Prompt]]) -> None:
    if prompt.prompt_id in prompts:
        raise _InvalidRowError("id repeated", f"{prompt.prompt_id!r} is first on line {prompts[prompt.prompt_id][0]}")


def _refuse_other_files(path: Path, lines: list[tuple[int, bytes]]) -> None:
    """Refuse files that are not JSON Lines as a whole: one JSON array, one object over many lines, or CSV."""
    if not lines:
        return
    number, first = lines[0]
    if first == b"{" or first.startswith(b"["):
        raise WorkloadError(f"{path}:{number}: one JSON document, not one object a line (ShareGPT?)", ROW_HINT)
    if first[:1] not in b'{["' and b"," in first:
        columns = next(csv.reader([first[:_SHOWN_BYTES].decode("utf-8", errors="replace")]))
        raise WorkloadError(
            f"{path}:{number}: CSV (a BurstGPT trace?), not JSON Lines; columns found: {_listed(columns)}", ROW_HINT
        )


def _refuse_other_formats(path: Path, number: int, row: dict[str, Any]) -> None:
    if row.keys() & set(PROMPT_COLUMNS):
        return
    for name, layouts in OTHER_FORMATS.items():
        if any(layout <= row.keys() for layout in layouts):
            raise WorkloadError(
                f"{path}:{number}: a row of the {name} format, which is not read; columns found: {_listed(row)}",
                ROW_HINT,
            )


def _nothing_usable(path: Path, skipped: list[SkippedLine], columns: dict[str, None]) -> NoReturn:
    counts = [f"{count} × {reason}" for reason, count in reasons(tuple(skipped)).items()]
    what = "; ".join(counts) or "the file is empty or all its lines are blank"
    found = f"; columns found: {_listed(columns)}" if columns else ""
    raise WorkloadError(f"{path} holds no usable prompt: {what}{found}", ROW_HINT)


def _listed(columns: Iterable[str]) -> str:
    """Names of columns for a message, however many there are and whatever they are made of."""
    names = [name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…" for name in columns]
    return ", ".join(names[:_SHOWN_COLUMNS]) + (" …" if len(names) > _SHOWN_COLUMNS else "") or "none"


# --- rows to prompts --------------------------------------------------------------------------------------------


def _prompt(row: dict[str, Any], *, default_id: str) -> Prompt:
    messages, text = _content(row)
    return Prompt(
        prompt_id=_label(row, ID_COLUMNS) or default_id,
        prompt_class=_label(row, CLASS_COLUMNS) or DEFAULT_CLASS,
        messages=messages,
        text=text,
        max_output_tokens=_cap(row),
    )


def _content(row: dict[str, Any]) -> tuple[tuple[Message, ...], str | None]:
    raw = row.get("raw", False)
    if not isinstance(raw, bool):
        raise _InvalidRowError(f"raw must be true or false, not {_kind(raw)}")
    if "messages" in row:
        if raw:
            raise _InvalidRowError("raw goes with a text column, not with messages")
        return tuple(_conversation(row["messages"])), None
    text = _plain_text(row)
    return ((), text) if raw else ((Message(role="user", content=text),), None)


def _plain_text(row: dict[str, Any]) -> str:
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise _InvalidRowError("turns is not a list with at least one turn")
        return _text("turns[0]", turns[0])
    column = next((name for name in TEXT_COLUMNS if name in row), None)
    if column is None:
        near = [f"; {did_you_mean(name, PROMPT_COLUMNS)}" for name in row if nearest(name, PROMPT_COLUMNS)]
        raise _InvalidRowError("no prompt column", f"columns found: {_listed(row)}{''.join(near[:1])}")
    text = _text(column, row[column])
    if column == "instruction" and row.get("input"):
        return f"{text}\n\n{_text('input', row['input'])}"
    return text


def _text(column: str, value: object) -> str:
    if not isinstance(value, str):
        raise _InvalidRowError(f"{column} is {_kind(value)}, not text")
    if not value.strip():
        raise _InvalidRowError(f"{column} is empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _InvalidRowError(f"{column} holds half a surrogate pair, which is not text")
    return value


def _conversation(value: object) -> Iterator[Message]:
    if not isinstance(value, list):
        raise _InvalidRowError(f"messages is {_kind(value)}, not a list")
    messages = [_message(index, item) for index, item in enumerate(value)]
    asked = [index for index, message in enumerate(messages) if message.role == "user"]
    if not asked:
        raise _InvalidRowError("messages has no message of the user")
    if any(message.role == "system" for message in messages[asked[-1] :]):
        raise _InvalidRowError("messages has a system message after the last one of the user")
    yield from messages[: asked[-1] + 1]


def _message(index: int, item: object) -> Message:
    if not isinstance(item, dict):
        raise _InvalidRowError(f"messages[{index}] is {_kind(item)}, not an object")
    role = item.get("role")
    if role not in {"system", "user", "assistant"}:
        raise _InvalidRowError(f"messages[{index}].role is {role!r}, not system, user or assistant")
    return Message(role=role, content=_text(f"messages[{index}].content", item.get("content")))


def _label(row: dict[str, Any], columns: tuple[str, ...]) -> str | None:
    for column in columns:
        value = row.get(column)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _InvalidRowError(f"{column} is {_kind(value)}, not text")
        return _text(column, str(value)).strip()
    return None


def _cap(row: dict[str, Any]) -> int | None:
    for column in CAP_COLUMNS:
        value = row.get(column)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _InvalidRowError(f"{column} is {value!r}, not a whole number above 0")
        return value
    return None
