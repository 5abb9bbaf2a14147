"""What is observed: requests, counters, measurements, traces and timed steps, as immutable values.

Raw facts only. Every figure derived from them lives in ``metrics``, so that a corrected formula also corrects
what was stored before. All times are seconds of one process's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from tuner.step_limits import StepLimits

FinishReason = Literal["stop", "length"]


class StageKind(StrEnum):
    """The kinds of work that a study sends to machines."""

    BASELINE = "baseline"
    TRACE = "trace"
    COMPILE = "compile"
    MEASURE = "measure"
    CERTIFY = "certify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload: a conversation for the chat template, or plain text to be continued.

    Attributes:
        prompt_id: Unique in its workload.
        prompt_class: Name of the class it belongs to.
        messages: The conversation; empty for plain text.
        text: The plain text; None for a conversation.
        max_output_tokens: Its own cap, below the workload's; None takes the workload's.
    """

    prompt_id: str
    prompt_class: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target's next token is chosen. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request on its way to an engine.

    Attributes:
        at_s: Earliest moment it may be sent, in seconds after ``run`` began; 0 means as soon as a slot is free.
    """

    request_id: str
    prompt: Prompt
    max_output_tokens: int
    sampling: Sampling = GREEDY
    ignore_eos: bool = False
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request was handed to the engine."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens of a request arrived together. ``token_ids`` is empty where the engine gives only a count."""

    request_id: str
    at_s: float
    num_tokens: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request ended well. Round counters are of this request alone; None where an engine has none."""

    request_id: str
    at_s: float
    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    rounds: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request ended badly."""

    request_id: str
    at_s: float
    error: str


Event = Sent | Chunk | Finished | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals of an engine since it was loaded; a measurement takes the difference of two snapshots.

    A round is one decode step of one request, whether or not anything was drafted. The first output token comes
    from the prefill and belongs to no round.

    Attributes:
        rounds: Decode steps.
        rounds_with_draft: Decode steps in which something was proposed.
        drafted_tokens: Proposed tokens.
        accepted_tokens: Proposed tokens that became output.
        drafted_at: ``drafted_at[i]`` counts rounds that proposed at least i + 1 tokens.
        accepted_at: ``accepted_at[i]`` counts rounds that accepted at least i + 1 tokens.
    """

    rounds: int = 0
    rounds_with_draft: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            rounds=self.rounds - earlier.rounds,
            rounds_with_draft=self.rounds_with_draft - earlier.rounds_with_draft,
            drafted_tokens=self.drafted_tokens - earlier.drafted_tokens,
            accepted_tokens=self.accepted_tokens - earlier.accepted_tokens,
            drafted_at=_difference(self.drafted_at, earlier.drafted_at),
            accepted_at=_difference(self.accepted_at, earlier.accepted_at),
        )

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            rounds=self.rounds + other.rounds,
            rounds_with_draft=self.rounds_with_draft + other.rounds_with_draft,
            drafted_tokens=self.drafted_tokens + other.drafted_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            drafted_at=_sum(self.drafted_at, other.drafted_at),
            accepted_at=_sum(self.accepted_at, other.accepted_at),
        )


def _difference(later: tuple[int, ...], earlier: tuple[int, ...]) -> tuple[int, ...]:
    padded = earlier + (0,) * (len(later) - len(earlier))
    return tuple(a - b for a, b in zip(later, padded, strict=True))


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Everything observed of one request.

    Attributes:
        chunks: ``(at_s, num_tokens)`` of each chunk, in order of arrival.
        output_tokens: As the engine says at the end, never by counting chunks; None for a failed request.
        token_ids: The output; empty where the engine gives no ids.
        error: Why it failed; None when it did not.
    """

    request_id: str
    prompt_id: str
    prompt_class: str
    max_output_tokens: int
    sent_s: float
    chunks: tuple[tuple[float, int], ...] = ()
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: FinishReason | None = None
    rounds: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the request ended well and may enter a latency."""
        return self.error is None and self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One pass over prompts with one configuration on one load; added up, several of them.

    Attributes:
        requests: In order of sending.
        warmup: Requests before the clock counted; kept apart.
        counters: What the engine counted during ``requests``; None where it has no counters.
        wall_s: From the first request sent to the last token.
        peak_memory_bytes: Largest resident memory of the engine's process tree; None where it is not known.
        environment: Threads, weight format, versions: what the engine says of itself.
    """

    requests: tuple[RequestRecord, ...]
    warmup: tuple[RequestRecord, ...] = ()
    counters: Counters | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __add__(self, later: Measurement) -> Measurement:
        """Both passes of one configuration as one; its environment is that of the first."""
        peaks = [one.peak_memory_bytes for one in (self, later) if one.peak_memory_bytes is not None]
        return Measurement(
            requests=self.requests + later.requests,
            warmup=self.warmup + later.warmup,
            counters=self.counters + later.counters if self.counters and later.counters else None,
            wall_s=self.wall_s + later.wall_s,
            peak_memory_bytes=max(peaks) if len(peaks) == 2 else None,
            environment=self.environment,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What the target alone answers to one prompt: the path along which drafts are replayed."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    max_output_tokens: int


class TraceKind(StrEnum):
    """How a trace was made, and with that what it replays exactly."""

    TEACHER_FORCED = "teacher_forced"
    """One pass of an autoregressive draft over the outputs: exact for every k."""
    PROPOSALS = "proposals"
    """A matching rule (n-gram, suffix) at every position: exact for every k up to the longest proposal asked for."""
    ROLLOUTS = "rollouts"
    """The draft's own continuation from every position (EAGLE-type): exact up to the depth of the roll-outs."""
    LOGGED = "logged"
    """Accepted lengths of a run at one k: what lies between its rounds is not known everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTrace:
    """What a draft proposes at each position of one target output, had a round started there.

    Position s means: s output tokens are known (s >= 1, the first comes from the prefill), and the round may
    emit tokens s, s + 1, …  Every tuple that is not empty has one entry per position 0 … N - 1; entry 0 is unused.

    Attributes:
        proposed: Tokens proposed at s, up to the trace's ``max_drafted_tokens``.
        matched: Leading proposed tokens that equal the target's output.
        ranks: Rank of the target's token s among the draft's, 0 its most likely, ``WORST_RANK`` that or worse; only
            of teacher-forced traces. Static token trees replay from it.
        target_probabilities: p(token s) after all logit processors; only where the target samples.
        draft_probabilities: q(token s) of the draft likewise; only of teacher-forced traces where the target samples.
        top2_gaps: Logit of the target's most likely token at s minus that of its second; empty where no logits are.
        unknown: Positions at which a logged run shows nothing of the draft; others have none.
    """

    prompt_id: str
    prompt_class: str
    max_output_tokens: int
    proposed: tuple[int, ...]
    matched: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    target_probabilities: tuple[float, ...] = ()
    draft_probabilities: tuple[float, ...] = ()
    top2_gaps: tuple[float, ...] = ()
    unknown: tuple[int, ...] = ()


WORST_RANK = 16
"""Ranks from here on are not told apart: no static tree is as wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Accept/reject facts of one draft over one workload, for every k up to ``max_drafted_tokens``.

    Attributes:
        kind: What of it is exact.
        sampling: How the target chose its outputs.
    """

    draft_name: str
    max_drafted_tokens: int
    prompts: tuple[PromptTrace, ...]
    kind: TraceKind = TraceKind.ROLLOUTS
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSteps:
    """Repeated timings of one kind of step at several sizes.

    Attributes:
        step: ``"verify"``: one target pass over ``size`` rows of each request. ``"draft"``: proposing ``size``
            tokens for each. ``"draft_prefill"``: the draft reading a prompt of ``size`` tokens.
        seconds: ``{size: repeated timings}``, interleaved over sizes.
        batch: Requests decoded together.
    """

    step: Literal["verify", "draft", "draft_prefill"]
    seconds: dict[int, tuple[float, ...]]
    batch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """What stage ``baseline`` returns: the target alone, and what one pass over several rows costs.

    Attributes:
        verify: None for engines that cannot time single steps.
        at_load: The same at other numbers of requests in flight, where objectives ask for them.
    """

    measurement: Measurement
    verify: TimedSteps | None
    at_load: dict[int, BaselineResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """What stage ``trace`` returns: a draft's proposals along the target's outputs, and what proposing costs.

    Attributes:
        trace: Without prompts where ``trace_key`` says which artifact holds them.
        draft_steps: None for engines that cannot time single steps.
        draft_prefill: What the draft adds to the time to the first token; None where it reads no prompt.
        trace_key: Key of the artifact in the store; None where ``trace`` is whole.
        draft_steps_at_load: Drafting for other numbers of requests in flight, where objectives ask for them.
        limits: What stands in for ``draft_steps`` where there are none.
        doubtful_share: Share of positions at which the draft may be right in the engine and wrong in the trace, or
            the other way round; 0 where replay gives the engine's own rounds.
    """

    trace: Trace
    draft_steps: TimedSteps | None = None
    draft_prefill: TimedSteps | None = None
    trace_key: str | None = None
    draft_steps_at_load: dict[int, TimedSteps] = field(default_factory=dict)
    limits: StepLimits | None = None
    doubtful_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """What stage ``measure`` returns: the candidate over all prompts, the baseline over some of them between.

    Attributes:
        anchor: Ties this load to the machine's speed at that time; None where only one engine fits.
        at_load: The candidate at other numbers of requests in flight, where objectives ask for them.
    """

    candidate: Measurement
    anchor: Measurement | None
    at_load: dict[int, Measurement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where an output of the candidate first differs from the baseline's to the same prompt.

    Attributes:
        position: Of the first token that differs, 0 the first of the output; where one output is the beginning of
            the other, the length of the shorter one.
        gap: Logit of the target's most likely token there minus that of its second; None where no logits are.
    """

    prompt_id: str
    position: int
    gap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyResult:
    """What stage ``certify`` returns: both configurations over the same prompts, in alternating blocks.

    Attributes:
        order: The blocks, A the baseline and B the candidate, e.g. ``"ABBA"``.
        divergences: Of the pairs whose outputs differ those whose logits were looked at.
        sampling: How tokens were chosen; only greedy outputs can be held to be identical.
        loads: Times an engine was loaded for it: 2 where both fit beside each other. 3 where one fits: the baseline
            over all prompts, the candidate twice, the baseline again, and the blocks are these passes.
    """

    baseline: Measurement
    candidate: Measurement
    order: str
    divergences: tuple[Divergence, ...] = ()
    sampling: Sampling = GREEDY
    loads: int = 2


RecordT = TypeVar("RecordT")


_adapters: dict[type, TypeAdapter[Any]] = {}  # building one takes milliseconds


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(record: object) -> bytes:
    """The record as JSON, to be read back with ``from_json``."""
    return _adapter(type(record)).dump_json(record)


def from_json(kind: type[RecordT], text: bytes) -> RecordT:
    """A record read back from what ``to_json`` wrote.

    Raises:
        pydantic.ValidationError: The text is not such a record.
    """
    record: RecordT = _adapter(kind).validate_json(text)
    return record
