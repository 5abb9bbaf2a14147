"""Stages on a Ray of this machine, against the contract of all dispatchers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import psutil
import pytest

from tests.support.drills import drill_task, leftovers
from tuner.dispatch import Dispatcher, StageStatus
from tuner.errors import DispatchError, WorkerLostError
from tuner.needs import Needs
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


@pytest.mark.usefixtures("ray_dispatcher")
def test_a_ray_of_this_machine_listens_on_the_loopback_interface_only() -> None:
    own = psutil.Process()
    addresses = set()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            addresses |= {one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert addresses


@pytest.fixture
def cores(ray_dispatcher: ForgettingDispatcher) -> Iterator[list[Any]]:
    """Others that hold all eight cores of the machine, two each."""
    import ray

    class Holder:
        def cores(self) -> str:
            return os.environ["NEURON_RT_VISIBLE_CORES"]

    remote: Any = ray.remote(Holder)
    holders = [remote.options(num_cpus=0, resources={"neuron_cores": 2}).remote() for _ in range(4)]
    by_core = dict(zip(ray.get([one.cores.remote() for one in holders]), holders, strict=True))
    ordered = [by_core[text] for text in sorted(by_core)]
    yield ordered
    for one in ordered:
        ray.kill(one)
    ray_dispatcher.forget_all()


FOUR_CORES = Needs(num_cpus=1, device="neuron_cores", num_devices=4)


def a_stage_of_four_cores(attempt: int = 0) -> StageTask:
    return drill_task("works", key="four-cores", needs=FOUR_CORES, deadline_s=60.0, attempt=attempt)


def ended(dispatcher: RayDispatcher, task: StageTask) -> StageStatus:
    dispatcher.submit(task)
    give_up_s = time.monotonic() + 60.0
    while not (status := dispatcher.poll(task)).has_ended:
        assert time.monotonic() < give_up_s, "it took too long"
        time.sleep(0.05)
    dispatcher.forget(task)
    return status


def test_a_stage_on_cores_that_are_not_adjacent_did_not_start_and_is_sent_out_again(
    ray_dispatcher: ForgettingDispatcher, cores: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr("tuner.ray_dispatch.UNBEGUN_PAUSE_S", 0.2)
    for holder in (cores[0], cores[2]):  # free: 0, 1 and 4, 5
        ray.kill(holder)
    status = ended(ray_dispatcher, a_stage_of_four_cores())
    assert type(status.error) is WorkerLostError
    assert "0,1,4,5" in status.error.message
    assert not status.has_started
    ray.kill(cores[1])  # free: 0 to 5
    attempt = 1
    while (status := ended(ray_dispatcher, a_stage_of_four_cores(attempt))).result is None:
        assert not status.has_started
        attempt += 1
    assert status.node


def test_a_stage_that_never_gets_adjacent_cores_is_given_up_with_what_else_runs(
    ray_dispatcher: ForgettingDispatcher, cores: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr("tuner.ray_dispatch.UNBEGUN_PAUSE_S", 0.1)
    monkeypatch.setattr("tuner.ray_dispatch.MOST_UNBEGUN", 1)
    for holder in (cores[0], cores[2]):
        ray.kill(holder)
    assert type(ended(ray_dispatcher, a_stage_of_four_cores()).error) is WorkerLostError
    status = ended(ray_dispatcher, a_stage_of_four_cores(attempt=1))
    assert type(status.error) is DispatchError
    assert "in 2 tries; the last time: 4 adjacent devices are needed, and 0,1,4,5 were given" in status.error.message
    assert "Holder (process" in status.error.message


def test_a_closed_dispatcher_leaves_no_stage_behind() -> None:
    program = (
        "from tests.support.drills import drill_task\nfrom tuner.needs import Needs\n"
        "from tuner.ray_dispatch import RayDispatcher\nimport time\n"
        "task = drill_task('hangs below', key='closed', needs=Needs(num_cpus=1), deadline_s=60.0)\n"
        "with RayDispatcher().start() as dispatcher:\n"
        "    dispatcher.submit(task)\n"
        "    while not dispatcher.poll(task).has_started: time.sleep(0.05)\n"
        "    print(task.name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    name = ran.stdout.strip()  # nothing else is written there
    assert name.startswith("drill:")
    assert leftovers(TUNER_STAGE=name) == []
