from __future__ import annotations

import json
import os

import pytest

from tests.support.observed import Clock, ScriptedEngine, a_prompt, prompts
from tuner.engines import Artifact
from tuner.errors import ConfigurationError, MeasurementError, WorkloadError
from tuner.measure import (
    MeasureLimits,
    measure,
    measure_blocks,
    measure_loads,
    measure_with_anchor,
    process_tree_bytes,
)
from tuner.metrics import e2e_ms, mean_acceptance_length, summarize, tpot_ms, ttft_ms
from tuner.records import (
    Chunk,
    Counters,
    Finished,
    Measurement,
    MeasureResult,
    Message,
    Prompt,
    Sent,
    from_json,
    to_json,
)
from tuner.speculation import EngineConfig
from tuner.testing.fakes import FakeEngine

LIMITS = MeasureLimits(max_output_tokens=5)


def test_latencies_are_those_of_the_engine_clock():
    measured = measure(ScriptedEngine(round_s=[0.01], ttft_s=0.1), prompts(2), LIMITS)
    for record in measured.requests:
        assert ttft_ms(record) == pytest.approx(100)
        assert tpot_ms(record) == pytest.approx(10)
        assert e2e_ms(record) == pytest.approx(140)
    assert measured.wall_s == pytest.approx(0.28)
    assert [record.prompt_id for record in measured.requests] == ["p0", "p1"]


def test_accepted_tokens_arrive_in_one_chunk():
    measured = measure(ScriptedEngine(tokens=9, emits=(4, 1, 3)), prompts(1), MeasureLimits(max_output_tokens=20))
    record = measured.requests[0]
    assert [count for _, count in record.chunks] == [1, 4, 1, 3]
    assert record.token_ids == tuple(range(9))
    assert mean_acceptance_length(measured) == pytest.approx(8 / 3)
    assert record.finish_reason == "stop"


def test_a_prompt_of_a_lower_cap_keeps_it():
    own = [a_prompt("p0", max_output_tokens=3), a_prompt("p1", max_output_tokens=50)]
    measured = measure(ScriptedEngine(tokens=99), own, LIMITS)
    assert [record.output_tokens for record in measured.requests] == [3, 5]


def test_warm_up_ends_once_the_round_time_is_steady():
    engine = ScriptedEngine(round_s=[0.8, 0.02, 0.0101, 0.01])
    measured = measure(engine, prompts(1), MeasureLimits(max_output_tokens=5, max_warmup_requests=9))
    assert len(measured.warmup) == 4  # 800, 20, 10.1, 10 ms a round: the last two are steady
    assert len(measured.requests) == 1
    assert tpot_ms(measured.requests[0]) == pytest.approx(10)


@pytest.mark.parametrize(("most", "sent"), [(0, 1), (1, 1), (3, 3)])
def test_warm_up_is_bounded(most, sent):
    never_steady = ScriptedEngine(round_s=[4.0, 2.0, 1.0, 0.5])
    measured = measure(never_steady, prompts(1), MeasureLimits(max_output_tokens=5, max_warmup_requests=most))
    assert len(measured.warmup) == sent


def test_warm_up_shares_no_prefix_with_a_measured_prompt():
    chat = Prompt(prompt_id="chat", prompt_class="any", messages=(Message(role="user", content="hello"),))
    for prompt in (chat, a_prompt("text")):
        engine = ScriptedEngine()
        measure(engine, [prompt], LIMITS)
        first = engine.served[0].prompt
        assert first.prompt_id == prompt.prompt_id
        mine, theirs = (one.text or one.messages[0].content for one in (prompt, first))
        assert not theirs.startswith(mine[0])
        assert theirs.endswith(mine)


def test_counters_are_differences_since_the_warm_up():
    busy_before = ScriptedEngine(
        tokens=5, emits=(4,), totals=Counters(rounds=900, drafted_tokens=50, accepted_tokens=9)
    )
    measured = measure(busy_before, prompts(3), LIMITS)
    assert measured.counters == Counters(rounds=3, rounds_with_draft=3, drafted_tokens=9, accepted_tokens=9)


def test_an_engine_without_counters_has_none():
    assert measure(ScriptedEngine(totals=None), prompts(1), LIMITS).counters is None


def test_counters_of_one_of_several_workers_are_refused():
    with pytest.raises(MeasurementError, match="the engine counted 4 rounds, its requests have 8 together"):
        measure(ScriptedEngine(overrides={"rounds": 8}), prompts(1), LIMITS)


def test_counters_that_fall_are_refused():
    engine = ScriptedEngine()
    progress = lambda _done, _total: setattr(engine, "totals", Counters(rounds=1))  # noqa: E731
    with pytest.raises(MeasurementError, match="rounds fell from 8 to 1"):
        measure(engine, prompts(1), LIMITS, progress=progress)


def test_a_failed_request_is_recorded_and_the_others_go_on():
    measured = measure(ScriptedEngine(fails=frozenset({"p1"})), prompts(3), LIMITS)
    assert [record.error for record in measured.requests] == [None, "out of luck", None]
    assert summarize(measured)["failed_requests"] == 1


def test_a_request_that_is_never_finished_has_failed():
    measured = measure(ScriptedEngine(vanishes=frozenset({"p1"})), prompts(2), LIMITS)
    assert [record.is_complete for record in measured.requests] == [True, False]
    assert measured.requests[1].error == "the engine ended without finishing the request"


def test_requests_that_the_engine_never_took_have_failed():
    class Lazy(ScriptedEngine):
        def run(self, arrivals, concurrency=None):
            yield from super().run([next(iter(arrivals))])

    measured = measure(Lazy(), prompts(3), LIMITS)
    assert [record.prompt_id for record in measured.requests] == ["p0", "p1", "p2"]
    assert [record.error for record in measured.requests][1:] == ["the engine never took the request"] * 2


def test_tokens_that_disagree_with_the_engines_own_count_are_refused():
    with pytest.raises(MeasurementError, match="says 99 output tokens"):
        measure(ScriptedEngine(overrides={"output_tokens": 99}), prompts(1), LIMITS)


class Scripted(ScriptedEngine):
    """Yields a fixed list of events, whatever is asked."""

    def __init__(self, *events):
        super().__init__(totals=None)
        self.events = events

    def run(self, arrivals, concurrency=None):
        yield from self.events


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Chunk(request_id="request-0", at_s=1, num_tokens=1)], "Chunk for 'request-0', which is not in flight"),
        ([Sent(request_id="who", at_s=1)], "'who' twice, or made it up"),
        ([Sent(request_id="request-warmup-0", at_s=1)] * 2, "twice"),
        (
            [
                Sent(request_id="request-warmup-0", at_s=1),
                Chunk(request_id="request-warmup-0", at_s=2, num_tokens=2, token_ids=(1,)),
            ],
            "has 1 ids for 2 tokens",
        ),
    ],
)
def test_events_that_make_no_sense_are_refused(events, message):
    with pytest.raises(MeasurementError, match=message):
        measure(Scripted(*events), prompts(1), LIMITS)


def test_more_requests_in_flight_than_asked_for_are_refused():
    class Eager(ScriptedEngine):
        def run(self, arrivals, concurrency=None):
            taken = list(arrivals)
            yield from (Sent(request_id=one.request_id, at_s=0.0) for one in taken)
            for one in taken:
                yield Chunk(request_id=one.request_id, at_s=0.1, num_tokens=1)
                yield Finished(request_id=one.request_id, at_s=0.1, reason="stop", prompt_tokens=1, output_tokens=1)

    with pytest.raises(MeasurementError, match="2 requests are in flight, 1 were asked for"):
        measure(Eager(totals=None), prompts(2), LIMITS)
    both = MeasureLimits(max_output_tokens=5, concurrency=2)
    assert len(measure(Eager(totals=None), prompts(2), both).requests) == 2


def test_nothing_to_measure_is_an_error():
    with pytest.raises(WorkloadError, match="no prompt"):
        measure(ScriptedEngine(), [], LIMITS)


def test_progress_counts_measured_requests():
    seen = []
    measure(ScriptedEngine(fails=frozenset({"p0"})), prompts(2), LIMITS, progress=lambda *one: seen.append(one))
    assert seen == [(1, 2), (2, 2)]


def test_the_record_says_under_which_conditions_it_was_made():
    forced = MeasureLimits(max_output_tokens=5, ignore_eos=True)
    assert measure(ScriptedEngine(), prompts(1), LIMITS).environment == {
        "engine": "engine",
        "concurrency": "1",
        "output_lengths": "natural",
    }
    assert measure(ScriptedEngine(), prompts(1), forced).environment["output_lengths"] == "forced"


def test_memory_is_that_of_the_process_tree():
    measured = measure(ScriptedEngine(), prompts(1), LIMITS)
    assert measured.peak_memory_bytes is not None
    assert measured.peak_memory_bytes > 10_000_000
    assert process_tree_bytes() >= os.sysconf("SC_PAGE_SIZE")


def test_a_measurement_survives_being_stored():
    measured = measure(ScriptedEngine(emits=(2, 3)), prompts(2), LIMITS)
    text = to_json(measured)
    json.loads(text, parse_constant=pytest.fail)
    assert from_json(Measurement, text) == measured


# ── several loads of one engine ───────────────────────────────────────────────────────────────────────────────


def shared_rounds(max_num_seqs=4):
    """An engine with a round of 125 ms for all requests in flight, and a first token after half a second."""
    engine = FakeEngine(accepts=(0,))
    config = EngineConfig(target_model="any", max_num_seqs=max_num_seqs)
    return engine.load(config, Artifact(key=engine.compile_key(config)))


def most_in_flight(measured):
    ended = [(record.sent_s, record.chunks[-1][0]) for record in measured.requests]
    return max(sum(sent <= at_s < end for sent, end in ended) for at_s, _ in ended)


def test_each_load_has_as_many_requests_in_flight():
    found = measure_loads(shared_rounds(), prompts(8), LIMITS, (2, 4))
    assert {load: most_in_flight(one) for load, one in found.items()} == {1: 1, 2: 2, 4: 4}
    assert [one.environment["concurrency"] for one in found.values()] == ["1", "2", "4"]
    assert [[record.prompt_id for record in one.requests] for one in found.values()] == [
        [f"p{n}" for n in range(8)]
    ] * 3


def test_each_load_counts_its_own_rounds_and_time():
    found = measure_loads(shared_rounds(), prompts(8), LIMITS, (4,))
    assert found[1].counters == found[4].counters
    assert found[1].wall_s == pytest.approx(8 * 1.0)
    assert found[4].wall_s < 8 * 1.0


def test_few_prompts_are_repeated_so_that_a_load_is_mostly_full():
    found = measure_loads(shared_rounds(), prompts(3), LIMITS, (4,))
    assert len(found[1].requests) == 3
    assert [record.prompt_id for record in found[4].requests] == ["p0", "p1", "p2"] * 3


def test_progress_counts_the_requests_of_every_load():
    seen = []
    measure_loads(shared_rounds(), prompts(3), LIMITS, (4,), progress=lambda *one: seen.append(one))
    assert seen == [(done, 12) for done in range(1, 13)]


def test_further_loads_are_the_candidates_alone():
    seen = []
    result = measure_with_anchor(
        shared_rounds(), shared_rounds(), prompts(8), LIMITS, loads=(4,), progress=lambda *one: seen.append(one)
    )
    assert most_in_flight(result.at_load[4]) == 4
    assert len(result.at_load[4].requests) == len(result.candidate.requests) == 8
    assert seen[-1] == (19, 19)  # eight, three beside them, eight
    assert from_json(MeasureResult, to_json(result)) == result


# ── two engines in turns ──────────────────────────────────────────────────────────────────────────────────────


def two_engines():
    clock, log = Clock(), []
    baseline = ScriptedEngine(clock=clock, name="A", log=log)
    candidate = ScriptedEngine(clock=clock, name="B", log=log, emits=(2,))
    return baseline, candidate, log


def turns(log):
    """Blocks after the warm-up, as ``"A:p0,p1"``."""
    blocks = []
    for name, prompt_id in log:
        if blocks and blocks[-1].startswith(name):
            blocks[-1] += f",{prompt_id}"
        else:
            blocks.append(f"{name}:{prompt_id}")
    return blocks


def test_blocks_alternate_over_prompts():
    baseline, candidate, log = two_engines()
    warmup = 2
    result = measure_blocks(baseline, candidate, prompts(8), LIMITS)
    assert turns(log[2 * warmup :]) == [
        "A:p0,p1", "B:p0,p1,p2,p3", "A:p2,p3,p4,p5", "B:p4,p5,p6,p7", "A:p6,p7",
    ]  # fmt: skip
    assert result.order == "ABBAABBA"
    assert len(result.baseline.warmup) == len(result.candidate.warmup) == warmup


def test_many_in_flight_leave_each_side_two_blocks_at_least():
    baseline, candidate, _ = two_engines()
    together = MeasureLimits(max_output_tokens=5, concurrency=8)
    assert measure_blocks(baseline, candidate, prompts(12), together).order == "ABBA"
    assert measure_blocks(baseline, candidate, prompts(64), together).order == "ABBAABBA"


def test_both_sides_run_the_same_prompts_once():
    baseline, candidate, _ = two_engines()
    result = measure_blocks(baseline, candidate, prompts(5), LIMITS)
    for side in (result.baseline, result.candidate):
        assert sorted(record.prompt_id for record in side.requests) == ["p0", "p1", "p2", "p3", "p4"]
    assert mean_acceptance_length(result.baseline) == 1
    assert mean_acceptance_length(result.candidate) == 2


def test_a_linear_drift_hits_both_sides_alike():
    clock = Clock()

    class Drifting(ScriptedEngine):
        def run(self, arrivals, concurrency=None):
            for arrival in arrivals:
                self.round_s = [0.01 * (1 + clock.now_s / 10)]
                yield from super().run([arrival])

    same = [Drifting(clock=clock, name=name, ttft_s=0.0) for name in "AB"]
    result = measure_blocks(*same, prompts(16), LIMITS)
    means = [summarize(side)["e2e_ms_mean"] for side in (result.baseline, result.candidate)]
    assert means[0] == pytest.approx(means[1], rel=1e-3)


def test_wall_time_of_a_side_is_that_of_its_own_blocks():
    baseline, candidate, _ = two_engines()
    result = measure_blocks(baseline, candidate, prompts(4), LIMITS)
    assert result.baseline.wall_s == pytest.approx(4 * 0.14)
    assert result.candidate.wall_s == pytest.approx(4 * 0.12)


def test_progress_counts_both_sides():
    baseline, candidate, _ = two_engines()
    seen = []
    measure_blocks(baseline, candidate, prompts(3), LIMITS, progress=lambda *one: seen.append(one))
    assert seen == [(done, 6) for done in range(1, 7)]


@pytest.mark.parametrize("order", ["", "A", "AAB", "ABX", "AABB"])
def test_an_order_that_is_unfair_is_refused(order):
    baseline, candidate, _ = two_engines()
    with pytest.raises(ConfigurationError, match="pairs AB and BA"):
        measure_blocks(baseline, candidate, prompts(4), LIMITS, order=order)


def test_the_anchor_runs_every_third_prompt_beside_the_candidate():
    baseline, candidate, log = two_engines()
    result = measure_with_anchor(baseline, candidate, prompts(8), LIMITS)
    assert turns(log[4:]) == ["A:p0", "B:p0,p1,p2,p3,p4,p5", "A:p5,p6", "B:p6,p7"]
    assert [record.prompt_id for record in result.candidate.requests] == [f"p{n}" for n in range(8)]
    assert result.anchor is not None
    assert [record.prompt_id for record in result.anchor.requests] == ["p0", "p5", "p6"]


def test_memory_of_two_engines_in_one_process_is_told_apart_only_by_what_the_anchor_added():
    def peak(**known):
        baseline, candidate, _ = two_engines()
        return measure_with_anchor(baseline, candidate, prompts(1), LIMITS, **known).candidate.peak_memory_bytes

    assert peak() is None
    assert peak(anchor_bytes=5_000_000) == pytest.approx(process_tree_bytes() - 5_000_000, rel=0.05)
