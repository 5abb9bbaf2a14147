from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import ConfigurationError
from tuner.oracle import variable_length
from tuner.records import PromptTrace, Sampling, Trace, TraceKind


def a_trace(*prompts: PromptTrace, most: int = 8, kind: TraceKind = TraceKind.PROPOSALS) -> Trace:
    return Trace(draft_name="draft", max_drafted_tokens=most, prompts=prompts, kind=kind)


def proposing(pairs: list[tuple[int, int]], cap: int, prompt_id: str = "p0") -> PromptTrace:
    """Proposed and matched tokens at each position."""
    return PromptTrace(
        prompt_id=prompt_id,
        prompt_class="any",
        max_output_tokens=cap,
        proposed=tuple(proposed for proposed, _ in pairs),
        matched=tuple(matched for _, matched in pairs),
    )


def autoregressive(bits: list[bool], cap: int) -> Trace:
    pairs = [(1, int(bit)) for bit in bits]
    return a_trace(proposing(pairs, cap), kind=TraceKind.TEACHER_FORCED)


def by_trying(prompt: PromptTrace, round_ms: list[float], s: int = 1) -> float:
    """The least time over every sequence of lengths."""
    if s >= len(prompt.proposed):
        return 0.0
    most = min(prompt.proposed[s], prompt.max_output_tokens - s - 1, len(round_ms) - 1)
    return min(round_ms[j] + by_trying(prompt, round_ms, s + min(prompt.matched[s], j) + 1) for j in range(most + 1))


@st.composite
def prompt_traces(draw: st.DrawFn) -> PromptTrace:
    length = draw(st.integers(0, 9))
    proposed = [draw(st.integers(0, 4)) for _ in range(length)]
    pairs = [(one, draw(st.integers(0, min(one, length - place)))) for place, one in enumerate(proposed)]
    return proposing(pairs, length + draw(st.integers(0, 4)), f"p{draw(st.integers())}")


@settings(max_examples=80, deadline=None)
@given(st.lists(prompt_traces(), max_size=3), st.lists(st.floats(0.5, 4), min_size=1, max_size=5))
def test_the_oracle_equals_trying_every_sequence_of_lengths(prompts, round_ms):
    found = variable_length(a_trace(*prompts), round_ms)
    assert found.oracle_ms.tolist() == pytest.approx([by_trying(prompt, round_ms) for prompt in prompts])
    assert (found.oracle_ms <= found.fixed_ms.min(axis=0) + 1e-9).all()


def test_a_variable_length_by_hand():
    # Positions 1 to 3 are right, 4 to 7 wrong: draft three once, then nothing any more.
    trace = autoregressive([False, True, True, True, False, False, False, False], cap=30)
    found = variable_length(trace, [1.0, 1.4, 1.8, 2.2])
    assert found.oracle_ms.tolist() == pytest.approx([2.2 + 3 * 1.0])  # 1 to 4, then 5, 6, 7
    assert found.fixed_ms[:, 0].tolist() == pytest.approx([7.0, 1.4 * 5, 1.8 * 5, 2.2 * 4])
    assert found.best_fixed == 0  # no longer than drafting one token, and simpler
    assert found.speedup == pytest.approx(7.0 / 5.2)


def test_more_than_what_matches_is_drafted_where_that_is_faster():
    # Two rows are slower than three on this machine; one token matches at 1.
    trace = autoregressive([False, True, False], cap=30)
    assert variable_length(trace, [1.0, 3.0, 1.5]).oracle_ms.tolist() == [1.5]


def test_drafting_never_pays_when_nothing_matches():
    found = variable_length(autoregressive([False] * 6, cap=9), [1.0, 1.2, 1.3])
    assert found.oracle_ms.tolist() == [5.0]
    assert (found.best_fixed, found.speedup) == (0, 1.0)


@pytest.mark.parametrize("length", [0, 1])
def test_an_output_of_at_most_one_token_takes_no_time(length):
    found = variable_length(autoregressive([True] * length, cap=4), [1.0, 1.2])
    assert found.oracle_ms.tolist() == [0.0]
    assert found.speedup is None


@pytest.mark.parametrize("round_ms", [[], [1.0, 0.0], [1.0, float("nan")]])
def test_times_that_are_none_are_refused(round_ms):
    with pytest.raises(ConfigurationError, match="are not all positive"):
        variable_length(autoregressive([True] * 3, cap=4), round_ms)


def test_lengths_beyond_the_trace_are_refused():
    with pytest.raises(ConfigurationError, match="drafted_tokens 2 cannot be replayed"):
        variable_length(a_trace(proposing([(0, 0), (1, 1)], 4), most=1), [1.0, 1.1, 1.2])


def test_a_log_and_a_draft_that_samples_have_no_oracle():
    log = a_trace(proposing([(0, 0), (1, 1)], 4), kind=TraceKind.LOGGED)
    chance = Trace(
        draft_name="draft",
        max_drafted_tokens=1,
        kind=TraceKind.TEACHER_FORCED,
        sampling=Sampling(temperature=0.7),
        prompts=(
            PromptTrace(
                prompt_id="p0",
                prompt_class="any",
                max_output_tokens=4,
                proposed=(0, 1),
                matched=(0, 1),
                target_probabilities=(1.0, 0.5),
                draft_probabilities=(1.0, 0.5),
            ),
        ),
    )
    for trace in (log, chance):
        with pytest.raises(ConfigurationError, match="does not tell what a round matches at every position"):
            variable_length(trace, [1.0, 1.1])


def test_two_hundred_prompts_and_thirty_two_lengths_take_a_fraction_of_a_second():
    bits = np.random.default_rng(3).random((200, 256)) < 0.6
    trace = a_trace(
        *(proposing([(1, int(bit)) for bit in row], 256, str(number)) for number, row in enumerate(bits)),
        kind=TraceKind.TEACHER_FORCED,
    )
    started = time.process_time()
    found = variable_length(trace, [1 + 0.1 * j for j in range(33)])
    assert time.process_time() - started < 1.0  # 0.07 on an idle core; shared ones stretch even CPU time
    assert found.speedup > 1.1
