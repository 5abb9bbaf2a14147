from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest

import tuner
from tuner.api import search
from tuner.errors import ConfigurationError


@pytest.mark.parametrize("name", tuner.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(tuner, name) is not None


def test_search_stays_a_function_when_its_modules_are_imported() -> None:
    importlib.import_module("tuner.driver")
    assert tuner.search is search


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'serach'"):
        tuner.serach  # noqa: B018


@pytest.mark.parametrize("function", [tuner.search, tuner.predict])
def test_an_unknown_option_is_named_with_the_nearest(function: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{function.__name__}\(\) has no option 'traget'") as caught:
        function("code-gen", traget="somewhere")
    assert "'target'" in caught.value.hint
