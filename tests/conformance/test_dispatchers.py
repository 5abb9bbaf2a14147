"""Dispatchers without Ray, against the contract of all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.drills import drill_task
from tuner.dispatch import Dispatcher
from tuner.local_dispatch import LocalDispatcher
from tuner.testing.dispatchers import DispatcherContract, MakeTask

pytestmark = pytest.mark.slow  # a stage's process takes half a second to import what it needs


class TestLocalDispatcher(DispatcherContract):
    @pytest.fixture
    def dispatcher(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
        monkeypatch.setattr("tuner.processes.stage_process.GRACE_S", 0.5)
        with LocalDispatcher() as dispatcher:
            yield dispatcher

    @pytest.fixture
    def make_task(self) -> MakeTask:
        return drill_task
