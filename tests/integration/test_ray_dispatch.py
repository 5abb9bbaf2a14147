"""Stages on a Ray of this machine, against the contract of all dispatchers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from tests.support.drills import drill_task
from tuner.dispatch import Dispatcher
from tuner.ray_dispatch import RayDispatcher
from tuner.testing.dispatchers import DispatcherContract, MakeTask
from tuner.trial import StageTask

pytestmark = pytest.mark.slow


class ForgettingDispatcher(RayDispatcher):
    """Can forget whatever a test left, so that the next one finds the machine free."""

    tasks: ClassVar[list[StageTask]] = []

    def submit(self, task: StageTask) -> None:
        self.tasks.append(task)
        super().submit(task)

    def forget_all(self) -> None:
        while self.tasks:
            self.forget(self.tasks.pop())


@pytest.fixture(scope="module")
def ray_dispatcher() -> Iterator[ForgettingDispatcher]:
    """One for all tests: Ray takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CPU_LOCKS", "")  # Ray's workers inherit it
        with ForgettingDispatcher(devices={"neuron_cores": 8}).start() as dispatcher:
            yield dispatcher


class TestRayDispatcher(DispatcherContract):
    @pytest.fixture
    def dispatcher(self, ray_dispatcher: ForgettingDispatcher) -> Iterator[Dispatcher]:
        yield ray_dispatcher
        ray_dispatcher.forget_all()

    @pytest.fixture
    def make_task(self) -> MakeTask:
        return drill_task
