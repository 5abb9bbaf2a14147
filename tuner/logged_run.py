"""What a logged run shows of its draft: accepted tokens per round, at one number of drafted tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import MeasurementError
from tuner.records import GREEDY, Measurement, PromptTrace, RequestRecord, Sampling, Trace, TraceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request of a run that drafted k tokens in each round, fewer only where the cap leaves no room.

    Attributes:
        output_tokens: N, as the engine says at the end.
        accepted: Accepted tokens of every round in order, rounds that drafted nothing included. Of the last round an
            engine may count what it accepted beyond the stop: only what became output is used.
    """

    prompt_id: str
    prompt_class: str
    max_output_tokens: int
    output_tokens: int
    accepted: tuple[int, ...]


def logged_requests(measurement: Measurement, outputs: Mapping[str, tuple[int, ...]]) -> tuple[LoggedRequest, ...]:
    """The log of a measurement with one request in flight, in which every chunk after the first is a round.

    Args:
        measurement: Of a configuration that drafts k tokens in each round.
        outputs: What the target alone answered, by prompt: answers that differ are left out, for predictions follow
            these.

    Raises:
        MeasurementError: A chunk is no round, or no answer is the target's own.
    """
    records = [one for one in measurement.requests if one.is_complete and one.token_ids == outputs.get(one.prompt_id)]
    if not records:
        raise MeasurementError(
            "no answer of the logged run is the target's own, so its rounds say nothing of them",
            "check that the engine is greedy, and gives token ids",
        )
    return tuple(_logged(one) for one in records)


def _logged(record: RequestRecord) -> LoggedRequest:
    sizes = [tokens for _, tokens in record.chunks]
    is_whole = sizes[:1] == [1] and sum(sizes) == record.output_tokens
    if not is_whole or (record.rounds is not None and record.rounds != len(sizes) - 1):
        raise MeasurementError(
            f"prompt {record.prompt_id!r}: chunks of {sizes[:4]} … tokens are not one round each",
            "run one request at a time, on an engine that streams every round by itself",
        )
    return LoggedRequest(
        prompt_id=record.prompt_id,
        prompt_class=record.prompt_class,
        max_output_tokens=record.max_output_tokens,
        output_tokens=sum(sizes),
        accepted=tuple(tokens - 1 for tokens in sizes[1:]),
    )


def logged_trace(
    draft_name: str, drafted_tokens: int, requests: Iterable[LoggedRequest], sampling: Sampling = GREEDY
) -> Trace:
    """The trace of a run: exact at its own k, bounds below it for an autoregressive draft, nothing beyond it.

    A round that accepted m < k tokens shows m right positions and a wrong one. A round that accepted all its k shows
    k right ones; then comes the target's own token, at which the draft was not asked. A smaller k may start or pass
    there, so ``replay_bounds`` tries both. A draft that is not autoregressive (EAGLE, n-gram) would have proposed
    other tokens from other starts: of those the bounds are an estimate.

    Raises:
        MeasurementError: A log does not add up to its output.
    """
    return Trace(
        draft_name=draft_name,
        max_drafted_tokens=drafted_tokens,
        prompts=tuple(_prompt_trace(request, drafted_tokens) for request in requests),
        kind=TraceKind.LOGGED,
        sampling=sampling,
    )


def _prompt_trace(request: LoggedRequest, drafted_tokens: int) -> PromptTrace:
    right, unknown = _read(request, drafted_tokens)
    return PromptTrace(
        prompt_id=request.prompt_id,
        prompt_class=request.prompt_class,
        max_output_tokens=request.max_output_tokens,
        proposed=(0, *[drafted_tokens] * (request.output_tokens - 1))[: request.output_tokens],
        matched=_runs(right, drafted_tokens),
        unknown=unknown,
    )


def _read(request: LoggedRequest, drafted_tokens: int) -> tuple[list[bool], tuple[int, ...]]:
    """Whether the draft was right at each position, as far as rounds show it, and the positions they do not show."""
    n, s = request.output_tokens, 1
    right, unknown = [False] * n, []
    for number, logged in enumerate(request.accepted):
        drafted = min(drafted_tokens, request.max_output_tokens - s - 1)
        if s >= n or not 0 <= logged <= drafted:
            raise MeasurementError(
                f"log of prompt {request.prompt_id!r}: round {number} of {len(request.accepted)} accepted {logged} "
                f"of {max(drafted, 0)} drafted tokens at position {s} of {n}",
                "check how the engine counts the last round, and its number of drafted tokens",
            )
        accepted = min(logged, n - s)
        right[s : s + accepted] = [True] * accepted
        if accepted == drafted and s + accepted < n:
            unknown.append(s + accepted)
        s += accepted + 1
    if s < n:
        raise MeasurementError(
            f"log of prompt {request.prompt_id!r}: {len(request.accepted)} rounds end at position {s} of {n}",
            "log every round, also those in which nothing was drafted",
        )
    return right, tuple(unknown)


def _runs(right: Sequence[bool], most: int) -> tuple[int, ...]:
    """Leading right positions from each position on; 0 at the prefill's."""
    runs = [0] * (len(right) + 1)
    for place in reversed(range(1, len(right))):
        runs[place] = min(runs[place + 1] + 1, most) if right[place] else 0
    return tuple(runs[: len(right)])
