"""The rules for tests are themselves kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import pytest_collection_modifyitems


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeItem:
    path: Path
    mark: str | None = None

    @property
    def nodeid(self) -> str:
        return f"{self.path}::test_it"

    def get_closest_marker(self, name: str) -> str | None:
        return self.mark if self.mark == name else None


def _collect(folder: str, mark: str | None) -> None:
    item = FakeItem(path=Path("tests", folder, "test_file.py"), mark=mark)
    pytest_collection_modifyitems([cast("pytest.Item", item)])


@pytest.mark.parametrize("mark", [None, "parametrize"])
def test_an_integration_test_without_a_mark_is_refused(mark: str | None) -> None:
    with pytest.raises(pytest.UsageError, match=r"tests/integration/test_file\.py::test_it"):
        _collect("integration", mark)


@pytest.mark.parametrize(("folder", "mark"), [("integration", "slow"), ("integration", "model"), ("unit", None)])
def test_other_tests_are_collected(folder: str, mark: str | None) -> None:
    _collect(folder, mark)
