"""A trace is made once: finding it in the store, keeping it there as an artifact, and putting it back into a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.errors import MeasurementError, StorageError, TraceError
from tuner.records import TraceResult
from tuner.store import TrialStore
from tuner.trace_keys import TraceKey
from tuner.traces import TraceRecord, cut_to, pack_trace, unpack_trace
from tuner.transfer import INEXACT_SHARE, doubtful_share, key_of_stand_in


def find_trace(store: TrialStore, key: TraceKey, depth: int) -> TraceRecord | None:
    """This very trace, for at least ``depth`` drafted tokens; None where it has to be made.

    Raises:
        TraceError: The store has it, and it is damaged.
    """
    kept = store.trace(key.key)
    if kept is None or kept.data is None or kept.depth < depth:
        return None
    unpack_trace(kept.data, key)
    return kept


def transferred_traces(store: TrialStore, key: TraceKey) -> tuple[TraceRecord, ...]:
    """Traces along the same outputs that other numerics computed, deepest first, without their data.

    Such a trace is *transferred*: its interval is to be widened by ``share_of_near_ties``.
    """
    others = [one for one in store.traces(key.path_key) if one.key != key.key]
    return tuple(sorted(others, key=lambda one: -one.depth))


def find_transferred(store: TrialStore, key: TraceKey, depth: int) -> TraceRecord | None:
    """The deepest transferred trace for at least ``depth`` drafted tokens, with its data; None where there is none.

    Raises:
        TraceError: The store has it, and it is damaged.
    """
    deep = [one for one in transferred_traces(store, key) if one.depth >= depth]
    kept = store.trace(deep[0].key) if deep else None
    if kept is None or kept.data is None:
        return find_trace(store, key_of_stand_in(key, depth), depth)
    unpack_trace(kept.data)
    return kept


def with_doubt(store: TrialStore, result: TraceResult, own: TraceKey, *, replay_is_exact: bool) -> TraceResult:
    """The result with the share of positions at which the engine may do otherwise than its trace says.

    Args:
        store: Where its trace is kept.
        result: Refers to a trace.
        own: Key of the trace that the engine would make itself.
        replay_is_exact: As the engine says of itself.
    """
    share = 0.0 if replay_is_exact else INEXACT_SHARE
    kept = None if result.trace_key in (None, own.key) else store.trace(result.trace_key)
    if kept is not None and kept.data is not None:
        known = unpack_trace(kept.data)
        share += doubtful_share(known.trace, known.key.numerics, own.numerics)
    return replace(result, doubtful_share=share)


def keep_trace(store: TrialStore, result: TraceResult, key: TraceKey, provenance: Mapping[str, Any]) -> TraceResult:
    """Store the result's trace as an artifact, and give back the result that refers to it.

    Raises:
        MeasurementError: The trace contradicts itself; nothing is stored.
    """
    try:
        record = TraceRecord.of(pack_trace(result.trace, key, provenance))
    except TraceError as error:
        raise MeasurementError(f"{result.trace.draft_name}: {error.message}", error.hint) from error
    store.save_trace(record)
    return referring(result, record)


def referring(result: TraceResult, record: TraceRecord) -> TraceResult:
    """The result with its trace's prompts left out, because the record has them; its depth is kept as it is now."""
    header = replace(result.trace, prompts=(), max_drafted_tokens=record.depth)
    return replace(result, trace=header, trace_key=record.key)


def whole(store: TrialStore, result: TraceResult) -> TraceResult:
    """The result with its trace put back, as deep as it was then and under the name that the draft has there.

    Raises:
        StorageError: The artifact is not in this database.
        TraceError: It is damaged.
    """
    if result.trace_key is None:  # written before traces were artifacts
        return result
    kept = store.trace(result.trace_key)
    if kept is None or kept.data is None:
        raise StorageError(
            f"the acceptance trace {result.trace_key} of {result.trace.draft_name} is not in the database",
            "bring it back with `tuner traces import FILE`, or search under another --name",
        )
    trace = cut_to(unpack_trace(kept.data).trace, result.trace.max_drafted_tokens)
    return replace(result, trace=replace(trace, draft_name=result.trace.draft_name))
