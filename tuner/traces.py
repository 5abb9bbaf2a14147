"""Acceptance traces as artifacts: what each is of, and its bytes.

A trace says what a draft would propose along a target's outputs. It is made once and serves every later search whose
key is the same, on any machine. The file is an npz of plain arrays and one JSON header; nothing in it is pickled.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from io import BytesIO
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tuner.errors import TraceError
from tuner.records import GREEDY, PromptTrace, Sampling, TargetOutput, Trace, TraceKind, from_json, to_json
from tuner.speculation import Method, content_key
from tuner.trace_checks import MAKE_AGAIN, check_trace

FORMAT_VERSION = 1
"""Raised when a file of before means something else."""

_FORMAT = "specdec-tuner acceptance trace"
_MAX_UNPACKED_BYTES = 2 << 30
"""10,000 prompts of 4,096 tokens with all columns take half of it; a file that swells to more is not a trace."""

_COUNTS = ("proposed", "matched", "ranks", "unknown")
_REALS = ("target_probabilities", "draft_probabilities", "top2_gaps")
_HEADER = "header"
_LABELS = {
    "target": "target (its config, tokenizer or weights)",
    "draft": "draft (its config or weights)",
    "outputs": "outputs (prompts, caps or the target's answers)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What computed the outputs and the draft's answers: the largest of two near logits can turn on it.

    Attributes:
        weight_format: As the engine resolved it, never ``"auto"`` where it says so.
        lossless: Whether a row's result is the same however many rows are computed together; None: it does not say.
    """

    engine: str
    weight_format: str
    lossless: bool | None

    @classmethod
    def of(cls, engine: str, environment: Mapping[str, str], asked_format: str) -> Self:
        """The numerics of a measurement, from what the engine said of itself."""
        said = environment.get("lossless")
        return cls(
            engine=engine,
            weight_format=environment.get("weight_format", asked_format),
            lossless=None if said is None else said == "yes",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceKey:
    """Everything that an acceptance trace depends on but its depth: a deeper trace serves a shallower search.

    Attributes:
        target: ``models.fingerprint`` of the target: ``config.json``, ``generation_config.json``, ``tokenizer.json``
            and weights. A chat template outside these files is seen only through ``outputs``.
        method: How tokens are proposed.
        draft: The draft's fingerprint, of the same files; None for a matching rule.
        outputs: ``outputs_key`` of what it was traced along.
        sampling: How the target chose them; ``decisive`` of it.
        max_model_len: Prompt plus output tokens; near it a round may propose less.
        numerics: What computed it.
        prompt_lookup_max: Longest n-gram that the matching rule looks up.
        prompt_lookup_min: Shortest one.
        source: A pass of the draft, or a run's log, which does not show every position.
    """

    target: str
    method: Method
    draft: str | None
    outputs: str
    sampling: Sampling
    max_model_len: int
    numerics: Numerics
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    source: Literal["draft", "log"] = "draft"
    format_version: int = FORMAT_VERSION

    @property
    def key(self) -> str:
        """Equal for traces that are the same."""
        return content_key(asdict(self))

    @property
    def path_key(self) -> str:
        """Equal for traces along the same outputs, whatever computed them.

        A trace with this and another ``key`` is *transferred*: where two logits are nearer to each other than the
        numerics' noise, it may differ from what would be seen here. See ``share_of_near_ties``.
        """
        return content_key({name: value for name, value in asdict(self).items() if name != "numerics"})

    def differences(self, other: TraceKey) -> dict[str, tuple[Any, Any]]:
        """``{field: (here, there)}`` of every field that differs; those of parts have dotted names."""
        here, there = _flat(asdict(self)), _flat(asdict(other))
        return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTrace:
    """What a trace's file holds.

    Attributes:
        provenance: Where it was made; decides nothing.
    """

    trace: Trace
    key: TraceKey
    provenance: Mapping[str, Any] = field(default_factory=dict)


def decisive(sampling: Sampling) -> Sampling:
    """The sampling without what decides nothing: at temperature 0 neither seed nor cuts do."""
    return sampling if sampling.temperature > 0 else GREEDY


def outputs_key(outputs: Sequence[TargetOutput]) -> str:
    """Hash of prompts, caps and output ids; the order of the prompts does not matter."""
    return content_key(sorted(content_key(asdict(output)) for output in outputs))


def cut_to(trace: Trace, depth: int) -> Trace:
    """The trace as one made for at most ``depth`` drafted tokens; itself where it is no deeper."""
    if trace.max_drafted_tokens <= depth:
        return trace
    prompts = tuple(
        replace(
            prompt,
            proposed=tuple(min(one, depth) for one in prompt.proposed),
            matched=tuple(min(one, depth) for one in prompt.matched),
        )
        for prompt in trace.prompts
    )
    return replace(trace, max_drafted_tokens=depth, prompts=prompts)


def share_of_near_ties(trace: Trace, noise: float) -> float | None:
    """Share of positions at which the target's two largest logits are less than ``noise`` apart.

    Position 0, which the prefill gives, is left out. None where the trace has no logit gaps.
    """
    gaps = np.concatenate([np.zeros(0), *(np.asarray(prompt.top2_gaps[1:]) for prompt in trace.prompts)])
    return float((gaps < noise).mean()) if gaps.size else None


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, one in value.items():
        plain = one.value if isinstance(one, StrEnum) else one
        flat |= _flat(one, f"{prefix}{name}.") if isinstance(one, Mapping) else {prefix + name: plain}
    return flat


# ── packing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptHeader:
    prompt_id: str
    prompt_class: str
    max_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    format: str
    key: TraceKey
    draft_name: str
    max_drafted_tokens: int
    kind: TraceKind
    sampling: Sampling
    prompts: tuple[_PromptHeader, ...]
    provenance: dict[str, Any]


def pack_trace(trace: Trace, key: TraceKey, provenance: Mapping[str, Any]) -> bytes:
    """The trace as a compressed npz, with all that ``unpack_trace`` needs to give it back exactly.

    Raises:
        TraceError: It contradicts itself.
    """
    check_trace(trace)
    header = _Header(
        format=_FORMAT,
        key=key,
        draft_name=trace.draft_name,
        max_drafted_tokens=trace.max_drafted_tokens,
        kind=trace.kind,
        sampling=trace.sampling,
        prompts=tuple(
            _PromptHeader(
                prompt_id=one.prompt_id, prompt_class=one.prompt_class, max_output_tokens=one.max_output_tokens
            )
            for one in trace.prompts
        ),
        provenance=dict(provenance),
    )
    arrays = {_HEADER: np.frombuffer(to_json(header), dtype=np.uint8)}
    for name in (*_COUNTS, *_REALS):
        columns = [getattr(prompt, name) for prompt in trace.prompts]
        arrays[_lengths(name)] = np.array([len(column) for column in columns], dtype=np.uint32)
        arrays[name] = _smallest([value for column in columns for value in column], is_real=name in _REALS)
    packed = BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def _lengths(name: str) -> str:
    return f"{name}.lengths"


def _smallest(values: Sequence[float], *, is_real: bool) -> NDArray[Any]:
    """The values in the smallest type that holds each of them exactly."""
    if not is_real:
        return np.array(values, dtype=np.min_scalar_type(int(max(values, default=0))))
    exact = np.array(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        short = exact.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), exact) else exact


# ── unpacking ─────────────────────────────────────────────────────────────────────────────────────────────────────


def unpack_trace(data: bytes, expected_key: TraceKey | None = None) -> UnpackedTrace:
    """What ``pack_trace`` packed, every figure checked.

    Args:
        data: The file's content.
        expected_key: What the trace must be of; None takes any.

    Raises:
        TraceError: It is truncated, no trace, of another format, contradicts itself, or is of something else; names
            each field of the key that differs, with both values.
    """
    arrays = _read_arrays(data)
    header = _read_header(arrays.pop(_HEADER, None))
    columns = {name: _column(arrays, name, len(header.prompts)) for name in (*_COUNTS, *_REALS)}
    trace = Trace(
        draft_name=header.draft_name,
        max_drafted_tokens=header.max_drafted_tokens,
        kind=header.kind,
        sampling=header.sampling,
        prompts=tuple(_prompt(header.prompts[place], columns, place) for place in range(len(header.prompts))),
    )
    check_trace(trace)
    if expected_key is not None:
        check_key(header.key, expected_key)
    return UnpackedTrace(trace=trace, key=header.key, provenance=header.provenance)


def _prompt(header: _PromptHeader, columns: Mapping[str, list[tuple[Any, ...]]], place: int) -> PromptTrace:
    fields: dict[str, Any] = asdict(header) | {name: column[place] for name, column in columns.items()}
    return PromptTrace(**fields)


def check_key(found: TraceKey, expected: TraceKey) -> None:
    """Refuse a trace of something else.

    Raises:
        TraceError: Names each field that differs, with both values.
    """
    differing = expected.differences(found)
    if differing:
        lines = [
            f"  {_LABELS.get(name, name)}: expected {one!r}, found {other!r}"
            for name, (one, other) in differing.items()
        ]
        raise TraceError(
            "the trace is of something else:\n" + "\n".join(lines), "make a trace of what is searched here"
        )


def _read_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            unpacked_bytes = sum(member.file_size for member in archive.infolist())
        if unpacked_bytes > _MAX_UNPACKED_BYTES:
            raise TraceError(f"a trace file that unpacks to {unpacked_bytes} bytes is none", MAKE_AGAIN)
        with np.load(BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, RuntimeError, MemoryError) as error:
        raise TraceError(f"not a trace file, or a damaged one: {error}", MAKE_AGAIN) from error
    expected = {_HEADER, *(name for one in (*_COUNTS, *_REALS) for name in (one, _lengths(one)))}
    if set(arrays) != expected:
        wrong = ", ".join(sorted(set(arrays) ^ expected))
        raise TraceError(f"not a trace file: missing or unknown in it: {wrong}", MAKE_AGAIN)
    return arrays


def _read_header(array: NDArray[Any] | None) -> _Header:
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        raise TraceError("not a trace file: its header is no text", MAKE_AGAIN)
    try:
        raw = json.loads(array.tobytes())
    except ValueError as error:
        raise TraceError(f"the header of the trace is no JSON: {error}", MAKE_AGAIN) from error
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT or not isinstance(raw.get("key"), dict):
        raise TraceError("not a trace file: its header does not say that it is one", MAKE_AGAIN)
    version = raw["key"].get("format_version")
    if version != FORMAT_VERSION:
        raise TraceError(
            f"the trace has format version {version!r}, this program reads {FORMAT_VERSION}",
            "make the trace again, or install the version of specdec-tuner that made it",
        )
    try:
        return from_json(_Header, array.tobytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"the header of the trace is not valid: {place}: {first['msg']}", MAKE_AGAIN) from error


def _column(arrays: Mapping[str, NDArray[Any]], name: str, prompts: int) -> list[tuple[Any, ...]]:
    """One tuple for each prompt."""
    values, lengths = arrays[name], arrays[_lengths(name)]
    kinds = "f" if name in _REALS else "iu"
    if not _is_row(values, kinds) or not _is_row(lengths, "iu"):
        raise TraceError(f"the trace's {name} are not numbers of their kind", MAKE_AGAIN)
    if len(lengths) != prompts or (lengths < 0).any() or int(lengths.sum(dtype=np.int64)) != len(values):
        raise TraceError(
            f"the trace holds {len(values)} {name} for {prompts} prompts, and lengths that say otherwise", MAKE_AGAIN
        )
    flat, ends = values.tolist(), np.cumsum(lengths, dtype=np.int64).tolist()
    return [tuple(flat[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def _is_row(array: object, kinds: str) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in kinds
