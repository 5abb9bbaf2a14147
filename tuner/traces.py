"""Acceptance traces as artifacts: their files, and their records in a store.

A trace says what a draft would propose along a target's outputs. It is made once and serves every later search whose
key is the same, on any machine. The file is an npz of plain arrays and one JSON header; nothing in it is pickled.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tuner.errors import TraceError
from tuner.records import PromptTrace, Sampling, Trace, TraceKind, from_json, to_json
from tuner.trace_checks import MAKE_AGAIN, check_trace
from tuner.trace_keys import FORMAT_VERSION, TraceKey, check_key, decisive

_FORMAT = "specdec-tuner acceptance trace"
_MAX_UNPACKED_BYTES = 2 << 30
"""10,000 prompts of 4,096 tokens with all columns take half of it; a file that swells to more is not a trace."""

_COUNTS = ("proposed", "matched", "ranks", "unknown")
_REALS = ("target_probabilities", "draft_probabilities", "top2_gaps")
_HEADER = "header"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTrace:
    """What a trace's file holds.

    Attributes:
        provenance: Where it was made; decides nothing.
    """

    trace: Trace
    key: TraceKey
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """An acceptance trace as an artifact: it belongs to no study, and serves every one that it fits.

    Attributes:
        key: ``TraceKey.key`` of it; unique in the store.
        path_key: ``TraceKey.path_key``: equal for traces along the same outputs that other numerics computed.
        header: What it is of and where it was made, as plain JSON values.
        depth: Most drafted tokens that it replays.
        data: As ``pack_trace`` packed it; None in a listing.
    """

    key: str
    path_key: str
    header: Mapping[str, Any]
    depth: int
    data: bytes | None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The record of a packed trace, all of which is checked.

        Raises:
            TraceError: It cannot be used.
        """
        unpacked = unpack_trace(data)
        key, trace = unpacked.key, unpacked.trace
        header = {
            "key": json.loads(to_json(key)),
            "draft_name": trace.draft_name,
            "kind": str(trace.kind),
            "prompts": len(trace.prompts),
            "output_tokens": sum(len(prompt.proposed) for prompt in trace.prompts),
            "provenance": dict(unpacked.provenance),
        }
        return cls(key=key.key, path_key=key.path_key, header=header, depth=trace.max_drafted_tokens, data=data)


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
        TraceError: It contradicts itself or the key.
    """
    check_trace(trace)
    _check_sampling(trace, key)
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
    _check_sampling(trace, header.key)
    if expected_key is not None:
        check_key(header.key, expected_key)
    return UnpackedTrace(trace=trace, key=header.key, provenance=header.provenance)


def _prompt(header: _PromptHeader, columns: Mapping[str, list[tuple[Any, ...]]], place: int) -> PromptTrace:
    fields: dict[str, Any] = asdict(header) | {name: column[place] for name, column in columns.items()}
    return PromptTrace(**fields)


def _check_sampling(trace: Trace, key: TraceKey) -> None:
    """A greedy trace holds no probabilities, and would pass for a sampled one in which nothing is known."""
    if decisive(trace.sampling) != key.sampling:
        raise TraceError(f"the trace was made for {trace.sampling}, its key says {key.sampling}", MAKE_AGAIN)


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
