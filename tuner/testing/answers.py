"""Following requests through an engine, and what has to hold of every answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.engines.base import LoadedEngine
from tuner.records import (
    GREEDY,
    WORST_RANK,
    Arrival,
    Chunk,
    Counters,
    Event,
    Failed,
    Finished,
    Prompt,
    Sampling,
    Sent,
    TargetOutput,
    TimedSteps,
    Trace,
)
from tuner.replay import ReplayedRounds

SAMPLED_REQUESTS = 300
# Fewer observations of a token than this are counted together: the chi-square approximation needs some.
RARE = 10
# A softmax in single precision may give a certain token a little more than 1.
ROUNDING = 1e-5


@dataclass(slots=True)
class Answer:
    """Everything that happened to one request."""

    sent: Sent | None = None
    chunks: list[Chunk] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def token_ids(self) -> list[int]:
        """The output."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def finished(self) -> Finished:
        """Its good end."""
        assert isinstance(self.end, Finished), self.end
        return self.end


def answers(events: Iterable[Event]) -> dict[str, Answer]:
    """What happened, by request."""
    found: dict[str, Answer] = {}
    for event in events:
        answer = found.setdefault(event.request_id, Answer())
        if isinstance(event, Sent):
            answer.sent = event
        elif isinstance(event, Chunk):
            answer.chunks.append(event)
        else:
            answer.end = event
    return found


def arrivals(
    prompts: Sequence[Prompt], *, max_output_tokens: int, sampling: Sampling = GREEDY, ignore_eos: bool = False
) -> list[Arrival]:
    """One request for each prompt, named after it."""
    return [
        Arrival(
            request_id=prompt.prompt_id,
            prompt=prompt,
            max_output_tokens=max_output_tokens,
            sampling=sampling,
            ignore_eos=ignore_eos,
        )
        for prompt in prompts
    ]


def assert_same_outputs(found: Mapping[str, Answer], expected: Mapping[str, Answer], where: str) -> None:
    """Every request has the same tokens and the same end."""
    assert found.keys() == expected.keys()
    for request_id, answer in found.items():
        assert answer.token_ids == expected[request_id].token_ids, (where, request_id)
        assert answer.finished.reason == expected[request_id].finished.reason, (where, request_id)


def assert_counters_agree(counters: Counters | None, found: Mapping[str, Answer], drafted_tokens: int) -> None:
    """Every output token is explained by a prefill, a round or an accepted draft; totals are sums over requests."""
    ends = [answer.finished for answer in found.values()]
    for answer in found.values():
        assert_rounds_explain(answer, drafted_tokens)
    if counters is None:
        return
    assert counters.rounds == sum(end.rounds or 0 for end in ends)
    assert counters.drafted_tokens == sum(counters.drafted_at) == sum(end.drafted_tokens or 0 for end in ends)
    assert counters.accepted_tokens == sum(counters.accepted_at) == sum(end.accepted_tokens or 0 for end in ends)
    assert counters.rounds_with_draft == (counters.drafted_at[0] if counters.drafted_at else 0)
    assert all(a <= d for a, d in zip(counters.accepted_at, counters.drafted_at, strict=True))
    assert list(counters.drafted_at) == sorted(counters.drafted_at, reverse=True)


def assert_rounds_explain(answer: Answer, drafted_tokens: int) -> None:
    """One request's rounds, drafts and tokens fit together."""
    end = answer.finished
    assert sum(chunk.num_tokens for chunk in answer.chunks) == end.output_tokens == len(answer.token_ids)
    if end.rounds is None or end.drafted_tokens is None or end.accepted_tokens is None:
        return
    assert end.accepted_tokens <= end.drafted_tokens <= drafted_tokens * end.rounds
    assert end.rounds <= end.output_tokens - 1 <= (drafted_tokens + 1) * end.rounds
    # An accepted end of sequence leaves no room for the target's own token of that round.
    own = end.output_tokens - 1 - end.accepted_tokens
    assert own in ({end.rounds, end.rounds - 1} if end.reason == "stop" else {end.rounds})


def assert_timed(timed: TimedSteps, step: str, sizes: Sequence[int], batch: int) -> None:
    """Every size was timed twice."""
    assert (timed.step, tuple(timed.seconds), timed.batch) == (step, tuple(sizes), batch)
    assert all(len(observed) == 2 for observed in timed.seconds.values())
    assert all(seconds > 0 for observed in timed.seconds.values() for seconds in observed)


def assert_trace_is_whole(trace: Trace, outputs: Sequence[TargetOutput], sampling: Sampling) -> None:
    """A trace has one entry for each token of each output, and its parts do not contradict each other."""
    assert trace.sampling == sampling
    for prompt, output in zip(trace.prompts, outputs, strict=True):
        length = len(output.token_ids)
        assert prompt.prompt_id == output.prompt.prompt_id
        assert len(prompt.proposed) == len(prompt.matched) == length
        assert all(m <= p <= trace.max_drafted_tokens for m, p in zip(prompt.matched, prompt.proposed, strict=True))
        optional = (prompt.ranks, prompt.target_probabilities, prompt.draft_probabilities, prompt.top2_gaps)
        assert all(len(one) in {0, length} for one in optional)
        assert all(0 <= rank <= WORST_RANK for rank in prompt.ranks)
        # The first proposed token is the draft's most likely one.
        assert all((m > 0) == (rank == 0) for m, rank in zip(prompt.matched[1:], prompt.ranks[1:], strict=False))
        assert all(0 < p < 1 + ROUNDING for p in prompt.target_probabilities)
        assert all(0 <= q < 1 + ROUNDING for q in prompt.draft_probabilities)
        assert bool(prompt.target_probabilities) == (sampling.temperature > 0)


def assert_rounds_are(replayed: ReplayedRounds, found: Mapping[str, Answer], where: str) -> None:
    """Every request ran through the rounds, drafts and acceptances that replay says."""
    ran = [found[prompt_id].finished for prompt_id in replayed.prompt_ids]
    assert replayed.rounds.tolist() == [end.rounds for end in ran], where
    assert replayed.drafted.tolist() == [end.drafted_tokens for end in ran], where
    assert replayed.accepted.tolist() == [end.accepted_tokens for end in ran], where


def target_output(prompt: Prompt, alone: Mapping[str, Answer], max_output_tokens: int) -> TargetOutput:
    """The path along which drafts are replayed."""
    token_ids = tuple(alone[prompt.prompt_id].token_ids)
    return TargetOutput(prompt=prompt, token_ids=token_ids, max_output_tokens=max_output_tokens)


def third_tokens(loaded: LoadedEngine, prompt: Prompt, temperature: float, *, first_seed: int) -> dict[int, int]:
    """How often each token comes third when many requests with different seeds are sampled.

    The first round begins with the second token, so a third one has been through acceptance or rejection.
    """
    requests = [
        Arrival(
            request_id=str(seed),
            prompt=prompt,
            max_output_tokens=4,
            sampling=Sampling(temperature=temperature, top_k=3, seed=seed),
            ignore_eos=True,
        )
        for seed in range(first_seed, first_seed + SAMPLED_REQUESTS)
    ]
    counts: dict[int, int] = {}
    for answer in answers(loaded.run(requests)).values():
        token = answer.token_ids[2]
        counts[token] = counts.get(token, 0) + 1
    return counts


def p_value_of_same_distribution(first: Mapping[int, int], second: Mapping[int, int]) -> float:
    """Chi-square test of two samples; tokens seen fewer than ten times are counted as one."""
    from scipy.stats import chi2_contingency  # over half a second, which every process with a fake would wait

    both = {token: (first.get(token, 0), second.get(token, 0)) for token in first.keys() | second.keys()}
    frequent = [pair for pair in both.values() if sum(pair) >= RARE]
    rest = [pair for pair in both.values() if sum(pair) < RARE]
    table = frequent + ([(sum(a for a, _ in rest), sum(b for _, b in rest))] if rest else [])
    if len(table) < 2:
        return 1.0
    return float(chi2_contingency(table).pvalue)
