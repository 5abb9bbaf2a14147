"""The fake engine does exactly what its script says."""

from __future__ import annotations

from tuner.engines.base import Artifact, LoadedEngine, Replayable
from tuner.measure import MeasureLimits, measure
from tuner.records import Arrival, Chunk, Failed, Finished, Prompt, Sent, TargetOutput, TimedSteps
from tuner.replay import replay
from tuner.speculation import EngineConfig, Method, Speculation
from tuner.testing import FakeEngine

K3 = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=3)


def loaded(engine: FakeEngine, *, max_num_seqs: int = 1) -> LoadedEngine:
    config = EngineConfig(target_model="fake", speculation=K3, max_num_seqs=max_num_seqs)
    return engine.load(config, Artifact(key=engine.compile_key(config)))


def an_arrival(name: str = "a", **changes: object) -> Arrival:
    settings = {"max_output_tokens": 9, **changes}
    return Arrival(request_id=name, prompt=Prompt(prompt_id=name, prompt_class="c", text=name), **settings)


def test_rounds_accept_what_the_script_says() -> None:
    events = list(loaded(FakeEngine(accepts=(3, 0, 2))).run([an_arrival()]))
    assert [(event.at_s, event.num_tokens) for event in events if isinstance(event, Chunk)] == [
        (0.5, 1),
        (0.625, 4),
        (0.75, 1),
        (0.875, 3),
    ]
    assert events[0] == Sent(request_id="a", at_s=0.0)
    assert events[-1] == Finished(
        request_id="a",
        at_s=0.875,
        reason="length",
        prompt_tokens=10,
        output_tokens=9,
        rounds=3,
        # The last round had three tokens to go, and the last of them is the target's own.
        drafted_tokens=3 + 3 + 2,
        accepted_tokens=5,
    )


def test_counters_are_totals_over_requests() -> None:
    engine = loaded(FakeEngine(accepts=(3, 0, 2)))
    list(engine.run([an_arrival("a"), an_arrival("b")]))
    counters = engine.counters()
    assert counters is not None
    assert (counters.rounds, counters.drafted_tokens, counters.accepted_tokens) == (6, 16, 10)
    assert counters.drafted_at == (6, 6, 4)
    assert counters.accepted_at == (4, 4, 2)


def test_requests_in_flight_share_rounds() -> None:
    events = list(loaded(FakeEngine(), max_num_seqs=2).run([an_arrival("a"), an_arrival("b"), an_arrival("c")]))
    ends = {event.request_id: event.at_s for event in events if isinstance(event, Finished)}
    # Two prefills, then eight rounds for both; the third request waits for a slot.
    assert ends == {"a": 2.0, "b": 2.0, "c": 2.0 + 0.5 + 1.0}


def test_an_answer_may_end_by_itself() -> None:
    end = list(loaded(FakeEngine(accepts=(3,), output_tokens=4)).run([an_arrival()]))[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.output_tokens, end.accepted_tokens) == ("stop", 4, 3)


def test_an_open_loop_waits_on_the_fake_clock() -> None:
    events = list(loaded(FakeEngine()).run([an_arrival("a", max_output_tokens=1), an_arrival("b", at_s=7.0)]))
    assert [event.at_s for event in events if isinstance(event, Sent)] == [0.0, 7.0]


def test_a_failing_prompt_fails_alone() -> None:
    events = list(loaded(FakeEngine(failing=frozenset({"a"}))).run([an_arrival("a"), an_arrival("b")]))
    assert [type(event) for event in events if event.request_id == "a"] == [Sent, Failed]
    assert isinstance(events[-1], Finished)


def test_a_measurement_of_it_has_exact_numbers() -> None:
    prompts = [Prompt(prompt_id=name, prompt_class="c", text=name) for name in ("a", "b")]
    engine = loaded(FakeEngine(accepts=(3, 0, 2)))
    measured = measure(engine, prompts, MeasureLimits(max_output_tokens=9))
    assert [request.chunks[0][0] - request.sent_s for request in measured.requests] == [0.5, 0.5]
    assert [request.chunks[-1][0] - request.sent_s for request in measured.requests] == [0.875, 0.875]
    assert measured.counters is not None
    assert (measured.counters.rounds, measured.counters.accepted_tokens) == (6, 10)


def test_its_trace_is_known_where_the_scripts_rounds_begin() -> None:
    output = TargetOutput(
        prompt=Prompt(prompt_id="a", prompt_class="c", text="a"), token_ids=tuple(range(9)), max_output_tokens=9
    )
    engine = loaded(FakeEngine(accepts=(3, 0, 2)))
    assert isinstance(engine, Replayable)
    (trace,) = engine.trace([output]).prompts
    assert trace.matched == (0, 3, 0, 0, 0, 0, 2, 0, 0)
    assert trace.unknown == (2, 3, 4, 7, 8)
    replayed = replay(engine.trace([output]), 3)
    end = list(engine.run([an_arrival()]))[-1]
    assert isinstance(end, Finished)
    counts = (end.rounds, end.drafted_tokens, end.accepted_tokens)
    assert (replayed.rounds.sum(), replayed.drafted.sum(), replayed.accepted.sum()) == counts


def test_a_round_is_drafting_and_verifying() -> None:
    engine = loaded(FakeEngine(draft_s=0.03125))
    assert isinstance(engine, Replayable)
    assert engine.time_verify([1, 4], 2).seconds == {1: (0.09375, 0.09375), 4: (0.09375, 0.09375)}
    assert engine.time_draft([2], 1, batch=3) == TimedSteps(step="draft", seconds={2: (0.03125,)}, batch=3)
    assert engine.time_draft_prefill([10], 1) is None
