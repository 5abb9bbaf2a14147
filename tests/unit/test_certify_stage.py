"""What stage ``certify`` runs, in which order, and what it looks at where outputs differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from tests.support.observed import Clock, ScriptedEngine, prompts
from tuner.engines import Artifact, Capabilities
from tuner.records import (
    Arrival,
    CertifyResult,
    Chunk,
    Divergence,
    Event,
    Sampling,
    StageKind,
    TargetOutput,
    from_json,
)
from tuner.speculation import EngineConfig, Method, Speculation
from tuner.trial import Progress, StageTask, run_stage

NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=3)


@dataclass
class Scripted(ScriptedEngine):
    """Answers 0, 1, 2, … ; ``slips`` says at which position of a prompt's answer another token comes."""

    slips: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        for arrival in arrivals:
            slip, place = self.slips.get(arrival.prompt.prompt_id), 0
            for event in super().run([arrival]):
                if isinstance(event, Chunk):
                    ids = tuple(99 if place + one == slip else token for one, token in enumerate(event.token_ids))
                    place += event.num_tokens
                    yield replace(event, token_ids=ids)
                else:
                    yield event

    def environment(self) -> dict[str, str]:
        return dict(self.facts)


@dataclass
class WithLogits(Scripted):
    """Replayable as far as certification asks: it knows how far apart the two best logits are at each position."""

    asked: list[TargetOutput] = field(default_factory=list)

    def top2_gaps(self, outputs: Sequence[TargetOutput]) -> tuple[tuple[float, ...], ...]:
        self.asked += outputs
        return tuple(tuple(0.5 + place for place in range(len(output.token_ids))) for output in outputs)

    def trace(self, outputs: Sequence[TargetOutput], sampling: Sampling) -> None: ...
    def time_verify(self, widths: Sequence[int], repeats: int, batch: int) -> None: ...
    def time_draft(self, lengths: Sequence[int], repeats: int, batch: int) -> None: ...
    def time_draft_prefill(self, prompt_tokens: Sequence[int], repeats: int) -> None: ...


class Bench:
    """An engine that loads a baseline or a candidate, and remembers what was loaded and what ran."""

    name: ClassVar[str] = "bench"

    def __init__(self, *, fits: int = 2, has_logits: bool = True, **candidate: object) -> None:
        self.capabilities = Capabilities(
            methods=frozenset(Method),
            max_num_seqs=1,
            max_drafted_tokens=8,
            needs_compile=False,
            gives_token_ids=True,
            loads_at_once=fits,
        )
        self.kind = WithLogits if has_logits else Scripted
        self.candidate = candidate
        self.clock, self.log, self.loaded = Clock(), [], []  # type: ignore[var-annotated]

    def check(self, config: EngineConfig) -> None: ...

    def compile_key(self, config: EngineConfig) -> str:
        return config.key

    def load(self, config: EngineConfig, artifact: Artifact) -> Scripted:
        is_baseline = config.speculation.is_baseline
        assert sum(not one.closed for one in self.loaded) < self.capabilities.loads_at_once
        changes = {} if is_baseline else {"emits": (2,), **self.candidate}
        loaded = self.kind(clock=self.clock, name="A" if is_baseline else "B", log=self.log, **changes)
        self.loaded.append(loaded)
        return loaded

    @property
    def asked(self) -> list[TargetOutput]:
        return [output for one in self.loaded for output in getattr(one, "asked", [])]


def a_task(**changes: object) -> StageTask:
    task = StageTask(
        study_name="study",
        kind=StageKind.CERTIFY,
        key="0",
        engine="bench",
        config=EngineConfig(target_model="target", speculation=NGRAM),
        prompts=tuple(prompts(4)),
        max_output_tokens=16,
        sampling=Sampling(),
        concurrency=1,
    )
    return replace(task, **changes)  # type: ignore[arg-type]


def certify(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, progress: Progress | None = None, **changes: object
) -> CertifyResult:
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: bench)
    return from_json(CertifyResult, run_stage(a_task(**changes), progress))


def test_outputs_that_agree_leave_nothing_to_look_at(monkeypatch):
    bench = Bench()
    result = certify(monkeypatch, bench)
    assert (result.divergences, bench.asked) == ((), [])
    assert result.loads == 2


def test_where_an_output_diverges_the_target_says_how_sure_it_was(monkeypatch):
    bench = Bench(slips={"p2": 3})
    assert certify(monkeypatch, bench).divergences == (Divergence(prompt_id="p2", position=3, gap=3.5),)
    (asked,) = bench.asked
    assert asked.prompt.prompt_id == "p2"
    assert len(asked.token_ids) == 4
    assert asked.token_ids[:3] == (0, 1, 2)


def test_an_output_that_ends_early_is_looked_at_where_it_ended(monkeypatch):
    bench = Bench(tokens=3)
    result = certify(monkeypatch, bench)
    assert {one.position for one in result.divergences} == {3}
    assert {output.token_ids for output in bench.asked} == {(0, 1, 2, 3)}


def test_an_engine_without_logits_leaves_divergences_unexplained(monkeypatch):
    assert certify(monkeypatch, Bench(has_logits=False, slips={"p2": 3})).divergences == ()


def test_sampled_outputs_are_not_looked_at_and_the_result_says_how_they_were_made(monkeypatch):
    result = certify(monkeypatch, Bench(slips={"p2": 3}), sampling=Sampling(temperature=0.7))
    assert result.divergences == ()
    assert result.sampling == Sampling(temperature=0.7)


def test_numerics_that_promise_nothing_are_not_looked_at(monkeypatch):
    bench = Bench(slips={"p2": 3}, facts={"lossless": "no"})
    assert certify(monkeypatch, bench).divergences == ()
    assert bench.asked == []


# ── one configuration at a time ───────────────────────────────────────────────────────────────────────────────────


def measured(bench: Bench) -> list[tuple[str, str]]:
    """What ran, without the short requests of the warm-up."""
    served = {id(arrival) for one in bench.loaded for arrival in one.served if "warmup" in arrival.request_id}
    order = [(one, arrival) for one in bench.loaded for arrival in one.served if id(arrival) not in served]
    return [(one.name, arrival.prompt.prompt_id) for one, arrival in order]


def test_where_one_fits_whole_passes_run_in_the_order_a_b_b_a_on_three_loads(monkeypatch):
    bench = Bench(fits=1)
    result = certify(monkeypatch, bench)
    everyone = [f"p{number}" for number in range(4)]
    assert [one.name for one in bench.loaded] == ["A", "B", "A"]
    assert measured(bench) == [(side, one) for side in "ABBA" for one in everyone]
    assert (result.order, result.loads) == ("ABBA", 3)


def test_both_sides_have_every_prompt_twice_and_every_round_counted(monkeypatch):
    result = certify(monkeypatch, Bench(fits=1))
    for side, rounds in ((result.baseline, 4), (result.candidate, 2)):
        assert len(side.requests) == 8
        assert len({record.request_id for record in side.requests}) == 8
        assert side.counters.rounds == 8 * rounds


def test_where_one_fits_divergences_are_looked_at_on_the_last_load(monkeypatch):
    bench = Bench(fits=1, slips={"p2": 3})
    assert certify(monkeypatch, bench).divergences == (Divergence(prompt_id="p2", position=3, gap=3.5),)
    assert [bool(one.asked) for one in bench.loaded] == [False, False, True]


def test_progress_counts_all_four_passes(monkeypatch):
    seen: list[tuple[int, int]] = []
    certify(monkeypatch, Bench(fits=1), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 16) for done in range(1, 17)]
