from __future__ import annotations

import pytest

from tests.support.observed import a_measurement, a_request
from tuner.interference import held_up_ms
from tuner.records import RequestRecord


def together(name: str, sent_s: float, first_s: float, last_s: float, tokens: int = 11) -> RequestRecord:
    return a_request(name, sent_s=sent_s, chunks=((first_s, 1), (last_s, tokens - 1)))


# The second prompt is read from 1.0 to 1.3, in the middle of the first answer; that is over before the third begins.
FIRST, SECOND, THIRD = together("a", 0.0, 0.2, 2.0), together("b", 1.0, 1.3, 3.0), together("c", 2.5, 2.6, 4.0)


def test_a_request_waits_while_others_prompts_are_read():
    waits = held_up_ms(a_measurement(FIRST, SECOND, THIRD), pass_ms=10.0)
    assert waits == pytest.approx({"request-a": 300.0, "request-b": 100.0, "request-c": 0.0})


def test_nobody_waits_longer_than_its_passes_leave():
    waits = held_up_ms(a_measurement(FIRST, SECOND, THIRD), pass_ms=175.0)  # ten passes, of 1,800 and 1,700 ms
    assert waits == pytest.approx({"request-a": 50.0, "request-b": 0.0, "request-c": 0.0})


def test_requests_one_at_a_time_hold_nobody_up():
    one, other = together("a", 0.0, 0.2, 1.0), together("b", 1.0, 1.2, 2.0)
    assert set(held_up_ms(a_measurement(one, other), pass_ms=1.0).values()) == {0.0}


def test_answers_of_one_chunk_decode_nothing():
    assert held_up_ms(a_measurement(a_request("a", chunks=((0.1, 1),))), pass_ms=1.0) == {}
