"""YAML as people write it: read safely and strictly, with the line of every key kept for error messages.

Numbers follow YAML 1.2 and what people type: ``1e-3``, ``1E4``, ``.5`` and ``1_000`` are numbers, ``yes``, ``1:30``
and ``2026-01-01`` are text. Duplicate keys, custom tags and repeated references to lists or mappings are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ValidationError

from tuner.errors import InputError
from tuner.lookup import did_you_mean

KeyPath = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)

_NUMBER = re.compile(
    r"[-+]?(?:0x[0-9a-fA-F_]+|0o[0-7_]+|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, not {str(value).lower()}")  # noqa: TRY004 - pydantic reports ValueError
    return value


WholeNumber = Annotated[int, BeforeValidator(_refuse_bool)]
Number = Annotated[float, BeforeValidator(_refuse_bool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """The data of a YAML file and where each part of it was written.

    Attributes:
        lines: ``{path: line}`` for each key and list item, e.g. ``("drafts", 0, "method"): 7``; ``()`` is the root.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """The line of the path, or of the nearest part of it that was written."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


# --- reading ----------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """A safe loader that resolves no plain scalar by itself: ``_scalar`` does, by YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


def read_yaml(path: Path, error: type[InputError]) -> YamlDocument:
    """The mapping in a YAML file.

    Args:
        path: The file.
        error: The class of error to raise, so that it says which kind of file is wrong.

    Raises:
        InputError: As ``error``: not readable, not YAML, not a mapping, a key given twice, a tag that is not allowed.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=_Loader)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}", "check the path and its permissions") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text: {problem.reason}", "save it as UTF-8") from problem
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise error(f"{path}:{line}: not valid YAML: {problem.problem}", "check indentation and quotes") from problem
    except yaml.YAMLError as problem:
        raise error(f"{path}: not valid YAML: {problem}", "remove the character that is not text") from problem
    if not isinstance(node, yaml.MappingNode):
        found = "is empty" if node is None else "does not hold a mapping"
        raise error(
            f"{path} {found}", "write `key: value` lines; `tuner workloads show` and `tuner spaces show` print examples"
        )
    reader = _NodeReader(path, error)
    data = reader.read(node, ())
    return YamlDocument(path=path, data=data, lines=reader.lines)


class _NodeReader:
    """Turns composed nodes into data and notes the line of each path."""

    def __init__(self, path: Path, error: type[InputError]) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._path = path
        self._error = error
        self._seen: set[int] = set()

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._seen:
            raise self._refused(node, "an alias of a list or mapping", "write it out a second time")
        self._seen.add(id(node))
        if node.tag not in {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            raise self._refused(node, f"the tag {node.tag}", "remove it")
        return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refused(key, "a key that is a list or mapping", "write a plain key")
            here = (*path, key.value)
            if key.value in data:
                first = self.lines[here]
                raise self._refused(key, f"the key {key.value!r} a second time, first on line {first}", "remove one")
            self.lines[here] = key.start_mark.line + 1
            data[key.value] = self.read(value, here)
        return data

    def _list(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = item.start_mark.line + 1
        return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag != "tag:yaml.org,2002:str":
            raise self._refused(node, f"the tag {node.tag}", "remove it")
        if node.style is not None:  # quoted, or a block of text
            return node.value
        return plain_value(node.value)

    def _refused(self, node: yaml.Node, what: str, hint: str) -> InputError:
        return self._error(f"{self._path}:{node.start_mark.line + 1}: {what} is not allowed", hint)


def plain_value(text: str) -> bool | int | float | str | None:
    """What an unquoted word means: a truth value, a number, nothing, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _NUMBER.fullmatch(text):
        return text
    digits = text.replace("_", "").lower()
    if "0x" in digits or "0o" in digits:
        return int(digits, 0)
    if re.fullmatch(r"[-+]?[0-9]+", digits):
        return int(digits)
    return float(digits.replace(".inf", "inf").replace(".nan", "nan"))


# --- checking ---------------------------------------------------------------------------------------------------


def validate(document: YamlDocument, model: type[ModelT], error: type[InputError]) -> ModelT:
    """The document as a ``model``.

    Raises:
        InputError: As ``error``: a line per problem with file, line, field and reason; hints name the nearest key.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as problem:
        found = _problems(document, model, [dict(item) for item in problem.errors(include_url=False)])
    if len(found) == 1:
        raise error(*found[0])
    raise error("\n".join(f"{text} ({hint})" for text, hint in found), f"correct these lines of {document.path.name}")


def _problems(document: YamlDocument, model: type[BaseModel], items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """``(what and where, what to do)`` of each problem, in file order; a list with a bad item is not bad itself."""
    places = [_place(item) for item in items]
    kept = [
        (document.line_of(place), _problem(document, model, place, item))
        for place, item in zip(places, items, strict=True)
        if not any(other != place and other[: len(place)] == place for other in places)
    ]
    return [problem for _, problem in sorted(kept, key=lambda entry: entry[0])]


def _place(item: dict[str, Any]) -> KeyPath:
    return tuple(part for part in item["loc"] if part != "[key]")


def _problem(document: YamlDocument, model: type[BaseModel], place: KeyPath, item: dict[str, Any]) -> tuple[str, str]:
    where = f"{document.path}:{document.line_of(place)}: {_dotted(place)}"
    given, reason = item["input"], _reason(item)
    if item["type"] == "extra_forbidden":
        return f"{where} is not a known key", did_you_mean(str(place[-1]), _keys_at(model, place[:-1]))
    if item["type"] == "missing":
        return f"{where} is missing", f"add {place[-1]!r}: {_description_at(model, place)}"
    if item["type"] == "literal_error":
        return f"{where}: {reason}, found {given!r}", did_you_mean(str(given), re.findall(r"'([^']*)'", reason))
    shown = f", found {given!r}" if isinstance(given, str | int | float | None) else ""
    hint = "put it in quotes" if item["type"] == "string_type" else _description_at(model, place)
    return f"{where}: {reason}{shown}", hint or "edit this line"


_WORDS_OF_PYTHON = (
    (r"a valid dictionary(?: or instance of \w+)?", "a mapping, {key: value, …}"),
    (r"a valid (?:list|tuple)", "a list, [value, …]"),
    (r"a valid string", "text"),
    (r"a valid integer(?:, got a number with a fractional part)?", "a whole number"),
    (r"a valid number", "a number"),
    (r"a valid boolean", "true or false"),
    (r"(text|number|true or false), unable to (?:parse|interpret) .*", r"\1"),
)


def _reason(item: dict[str, Any]) -> str:
    """Pydantic's reason in a YAML writer's words: without Python's for inputs, enums and kinds of values."""
    reason = re.sub(r"^(?:Value error, |Input |String |Tuple )", "", str(item["msg"])).replace(" after validation", "")
    reason = re.sub(r"<[^:>]+: ('[^']*')>", r"\1", reason)
    for theirs, ours in _WORDS_OF_PYTHON:
        reason = re.sub(theirs, ours, reason)
    return reason


def _dotted(location: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".") or "the file"


def _keys_at(model: type[BaseModel], location: KeyPath) -> list[str]:
    annotation: Any = model
    for part in location:
        annotation = _step(annotation, part)
    return list(annotation.model_fields) if _is_model(annotation) else []


def _description_at(model: type[BaseModel], location: KeyPath) -> str:
    annotation: Any = model
    description = ""
    for part in location:
        if _is_model(annotation) and part in annotation.model_fields:
            description = annotation.model_fields[str(part)].description or ""
        annotation = _step(annotation, part)
    return description


def _step(annotation: Any, part: str | int) -> Any:
    """The type one key or index further in: fields of models, values of mappings, items of lists."""
    if _is_model(annotation):
        field = annotation.model_fields.get(str(part))
        return _without_none(field.annotation) if field else None
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if arguments else None


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in {Union, UnionType}:
        return next(kind for kind in get_args(annotation) if kind is not type(None))
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
