from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.errors import ConfigurationError, MeasurementError
from tuner.logged_run import LoggedRequest, logged_requests, logged_trace
from tuner.records import PromptTrace, Trace, TraceKind
from tuner.replay import exactness, is_bounded, replay, replay_all, replay_bounds, replay_nearest


def autoregressive(bits: list[bool], cap: int) -> Trace:
    prompt = PromptTrace(
        prompt_id="p0",
        prompt_class="any",
        max_output_tokens=cap,
        proposed=(1,) * len(bits),
        matched=tuple(int(bit) for bit in bits),
    )
    return Trace(draft_name="draft", max_drafted_tokens=1, prompts=(prompt,), kind=TraceKind.TEACHER_FORCED)


def a_log(accepted: tuple[int, ...], *, n: int, cap: int | None = None) -> LoggedRequest:
    return LoggedRequest(
        prompt_id="p0", prompt_class="any", max_output_tokens=cap or n, output_tokens=n, accepted=accepted
    )


def log_of(bits: list[bool], cap: int, k: int) -> LoggedRequest:
    """What an engine logs that drafts k tokens a round."""
    n, s, accepted = len(bits), 1, []
    while s < n:
        j = min(k, cap - s - 1)
        m = next((place for place in range(min(j, n - s)) if not bits[s + place]), min(j, n - s))
        accepted.append(m)
        s += m + 1
    return a_log(tuple(accepted), n=n, cap=cap)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 5), st.integers(1, 8))
def test_bounds_hold_for_every_smaller_k_of_an_autoregressive_draft(bits, spare, k0):
    cap = len(bits) + spare
    logged = logged_trace("draft", k0, [log_of(bits, cap, k0)])
    truth = replay_all(autoregressive(bits, cap), range(k0 + 1))
    for bounds, true in zip(replay_bounds(logged, range(k0 + 1)), truth, strict=True):
        assert bounds.fewest.rounds[0] <= true.rounds[0] <= bounds.most.rounds[0]
        if bounds.known[0]:
            assert bounds.most.rounds_by_drafted.tolist() == true.rounds_by_drafted.tolist()
            assert bounds.most.accepted.tolist() == true.accepted.tolist()
    assert replay(logged, k0).rounds_by_drafted.tolist() == truth[k0].rounds_by_drafted.tolist()
    assert replay_bounds(logged, [k0])[0].known.all()


def test_a_token_after_full_acceptance_is_unknown_and_a_smaller_k_may_meet_it():
    # Rounds at 1 (all three accepted: 1, 2, 3 right, 4 unknown) and 5 (5 right, 6 wrong); 7 alone.
    trace = logged_trace("draft", 3, [a_log((3, 1, 0), n=8, cap=20)])
    assert trace.prompts[0].matched == (0, 3, 2, 1, 0, 1, 0, 0)
    assert trace.prompts[0].unknown == (4,)
    one, two = replay_bounds(trace, [1, 2])
    assert (one.fewest.rounds[0], one.most.rounds[0]) == (4, 4)  # 1, 3, 5, 7 whatever 4 is
    assert one.known.all()
    assert (two.fewest.rounds[0], two.most.rounds[0]) == (3, 4)  # 1, 4 (right: to 6), 6 … or 1, 4, 5, 7
    assert not two.known.any()


def test_a_round_cut_off_by_the_cap_says_nothing_of_the_token_after_it():
    # The round at 3 may draft one token (5 - 3 - 1), accepts it, and adds the target's own at 4.
    trace = logged_trace("draft", 3, [a_log((1, 1), n=5, cap=5)])
    assert trace.prompts[0].unknown == (4,)
    assert replay(trace, 3).rounds_by_drafted.tolist() == [[0, 1, 0, 1]]


def test_acceptance_counted_beyond_the_stop_is_cut_off():
    # The output ends inside the second round: positions 3 and 4.
    trace = logged_trace("draft", 4, [a_log((1, 4), n=5, cap=20)])
    assert trace.prompts[0].matched == (0, 1, 0, 2, 1)
    assert replay(trace, 4).accepted.tolist() == [3]


@pytest.mark.parametrize("n", [0, 1])
def test_an_output_of_at_most_one_token_has_no_round(n):
    trace = logged_trace("draft", 3, [a_log((), n=n, cap=4)])
    assert replay(trace, 3).rounds.tolist() == [0]


def test_only_the_run_itself_is_replayed_and_other_k_say_why_not():
    trace = logged_trace("draft", 3, [a_log((3, 1, 0), n=8, cap=20)])
    assert exactness(trace, 3).reason == "the logged run itself, which drafted 3"
    with pytest.raises(ConfigurationError, match=r"logged at 3 bounds .* at 2 of an autoregressive draft"):
        replay(trace, 2)
    with pytest.raises(ConfigurationError, match="drafted_tokens 4 cannot be replayed"):
        replay_bounds(trace, [4])


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        ((3, 1), "2 rounds end at position 7 of 8"),
        ((3, 1, 0, 0), "round 3 of 4 accepted 0"),
        ((4, 1, 0), "round 0 of 3 accepted 4 of 3 drafted tokens at position 1 of 8"),
        ((-1, 3, 1), "round 0 of 3 accepted -1"),
    ],
)
def test_a_log_that_does_not_add_up_is_refused(accepted, message):
    with pytest.raises(MeasurementError, match=message):
        logged_trace("draft", 3, [a_log(accepted, n=8, cap=20)])


def test_other_traces_bound_themselves():
    trace = autoregressive([False, True, False, True], cap=9)
    for bounds in replay_bounds(trace, range(4)):
        assert bounds.known.all()
        assert np.array_equal(bounds.fewest.rounds, bounds.most.rounds)


def test_an_unknown_position_outside_the_output_is_refused():
    prompt = PromptTrace(
        prompt_id="p0", prompt_class="any", max_output_tokens=3, proposed=(0, 2), matched=(0, 1), unknown=(2,)
    )
    trace = Trace(draft_name="draft", max_drafted_tokens=2, prompts=(prompt,), kind=TraceKind.LOGGED)
    with pytest.raises(MeasurementError, match="unknown position 2 of 2 output tokens"):
        replay_bounds(trace, [1])


# ── from measurements ─────────────────────────────────────────────────────────────────────────────────────────────

CHUNKS = ((0.1, 1), (0.2, 3), (0.3, 1), (0.4, 2))


def test_every_chunk_after_the_first_is_a_round_that_accepted_all_but_one():
    run = a_measurement(a_request("p0", chunks=CHUNKS, rounds=3), a_failed_request("p1"))
    (found,) = logged_requests(run, {"p0": tuple(range(7)), "p1": (0,)})
    assert found == LoggedRequest(
        prompt_id="p0", prompt_class="any", max_output_tokens=64, output_tokens=7, accepted=(2, 0, 1)
    )


def test_answers_that_are_not_the_targets_own_are_left_out():
    run = a_measurement(a_request("p0", chunks=CHUNKS), a_request("p1", chunks=CHUNKS))
    (found,) = logged_requests(run, {"p0": tuple(range(7)), "p1": (9,) * 7})
    assert found.prompt_id == "p0"
    with pytest.raises(MeasurementError, match="no answer of the logged run is the target's own"):
        logged_requests(run, {})


@pytest.mark.parametrize(
    "changes",
    [{"rounds": 4}, {"chunks": ((0.1, 2), (0.2, 5))}, {"chunks": CHUNKS, "output_tokens": 8}],
    ids=["counted otherwise", "a round with the prefill", "a chunk is missing"],
)
def test_chunks_that_are_no_rounds_are_refused(changes):
    request = a_request("p0", **{"chunks": CHUNKS, **changes})
    with pytest.raises(MeasurementError, match=r"'p0': chunks of .* tokens are not one round each"):
        logged_requests(a_measurement(request), {"p0": request.token_ids})


def test_the_nearest_replay_of_a_log_is_the_middle_of_its_bounds():
    bits = [True, True, True, False, True, True, True, True, True, False, True, True]
    trace = logged_trace("draft", 2, [log_of(bits, 12, 2)])
    middle, own = replay_nearest(trace, [1, 2])
    (bounds,) = replay_bounds(trace, [1])
    assert bounds.fewest.rounds[0] < bounds.most.rounds[0]
    assert middle.rounds[0] == (bounds.fewest.rounds[0] + bounds.most.rounds[0]) / 2
    assert middle.rounds_by_drafted.sum() == middle.rounds[0]
    assert own.rounds[0] == replay(trace, 2).rounds[0]
    assert [is_bounded(trace, k) for k in (0, 1, 2, 3)] == [True, True, True, False]
