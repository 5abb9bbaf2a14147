from __future__ import annotations

import math
from types import MappingProxyType

import pytest

from tuner.testing.store_records import a_stage
from tuner_storage.columns import plain_json
from tuner_storage.rows import MAX_ERROR_CHARACTERS, cut, stored_form


def test_a_short_text_is_kept_whole() -> None:
    text = "x" * MAX_ERROR_CHARACTERS
    assert cut(text) == text


def test_of_a_long_text_beginning_and_end_are_kept_around_a_mark() -> None:
    kept = cut("begin" + "x" * 300_000 + "end")
    assert len(kept) <= MAX_ERROR_CHARACTERS
    assert kept.startswith("beginx")
    assert kept.endswith("xend")
    assert f"[… cut: 300008 characters, {MAX_ERROR_CHARACTERS} kept …]" in kept


def test_characters_that_no_database_takes_are_replaced() -> None:
    assert cut("a\0b\udc80c") == "a\N{REPLACEMENT CHARACTER}b?c"


def test_the_stored_form_of_a_record_is_its_own_stored_form() -> None:
    stored = stored_form(a_stage(error="x" * 300_000))
    assert stored_form(stored) == stored
    assert stored_form(a_stage()) == a_stage()


def test_json_takes_any_mapping_and_sequence() -> None:
    assert plain_json(MappingProxyType({"a": (1, None)})) == {"a": [1, None]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_holds_only_finite_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain_json({"metric": value})


def test_json_refuses_what_it_could_not_give_back() -> None:
    with pytest.raises(TypeError, match=r"\{1\} of type set cannot be stored"):
        plain_json({"choices": {1}})
