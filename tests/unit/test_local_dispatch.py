"""Which stages run at once on this machine, and which devices each one gets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.drills import a_task, drill_environment, leftovers
from tuner.dispatch import StageStatus
from tuner.errors import UnsatisfiableError
from tuner.local_dispatch import LocalDispatcher
from tuner.needs import Needs
from tuner.trial import StageTask

GIB = 2**30


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalDispatcher]:
    """A machine with eight Neuron cores, two GPUs and a licence; CPUs are not what its stages wait for."""
    monkeypatch.setattr("tuner.processes.stage_process.GRACE_S", 0.3)
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with LocalDispatcher({"neuron_cores": 8, "GPU": 2, "licence": 1}) as dispatcher:
        yield dispatcher


def a_hanging_task(key: str, **needs: Any) -> StageTask:
    environment = drill_environment(faults="load:*=hang")
    return a_task(key=key, needs=Needs(**{"num_cpus": 0, **needs}), environment=environment)


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def started(dispatcher: LocalDispatcher, task: StageTask) -> bool:
    return dispatcher.poll(task).has_started


def submitted(dispatcher: LocalDispatcher, task: StageTask) -> StageStatus:
    dispatcher.submit(task)
    return dispatcher.poll(task)


def variable(task: StageTask, name: str) -> str:
    """What the stage's processes see."""
    return next(one.environ()[name] for one in leftovers(TUNER_STAGE=task.name))


def test_each_stage_gets_a_block_of_its_own(dispatcher: LocalDispatcher) -> None:
    tasks = [a_hanging_task(f"block-{n}", device="neuron_cores", num_devices=4) for n in range(3)]
    for task in tasks:
        dispatcher.submit(task)
    until(lambda: all(started(dispatcher, task) for task in tasks[:2]))
    assert [variable(task, "NEURON_RT_VISIBLE_CORES") for task in tasks[:2]] == ["0,1,2,3", "4,5,6,7"]
    assert dispatcher.poll(tasks[2]).waiting_for == "4 neuron_cores (0 neuron_cores free)"
    dispatcher.forget(tasks[0])
    until(lambda: started(dispatcher, tasks[2]))
    assert variable(tasks[2], "NEURON_RT_VISIBLE_CORES") == "0,1,2,3"


def test_a_block_is_waited_for_although_enough_scattered_ones_are_free(dispatcher: LocalDispatcher) -> None:
    pairs = [a_hanging_task(f"pair-{n}", device="neuron_cores", num_devices=2) for n in range(4)]
    for task in pairs:
        dispatcher.submit(task)
    dispatcher.forget(pairs[0])
    dispatcher.forget(pairs[2])
    block = a_hanging_task("block", device="neuron_cores", num_devices=4)
    assert submitted(dispatcher, block).waiting_for == "4 adjacent neuron_cores"
    dispatcher.forget(pairs[1])
    until(lambda: started(dispatcher, block))


def test_devices_are_those_that_this_process_may_use(
    dispatcher: LocalDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a,GPU-9b")
    tasks = [a_hanging_task(f"gpu-{n}", device="GPU", num_devices=1) for n in range(2)]
    for task in tasks:
        dispatcher.submit(task)
    until(lambda: all(started(dispatcher, task) for task in tasks))
    assert [variable(task, "CUDA_VISIBLE_DEVICES") for task in tasks] == ["GPU-8a", "GPU-9b"]


def test_nothing_takes_what_an_earlier_stage_waits_for(dispatcher: LocalDispatcher) -> None:
    pair, block, later = (a_hanging_task(f"n{n}", device="neuron_cores", num_devices=n) for n in (2, 8, 1))
    for task in (pair, block, later):
        dispatcher.submit(task)
    assert dispatcher.poll(block).waiting_for == "8 neuron_cores (6 neuron_cores free)"
    assert dispatcher.poll(later).waiting_for == "stages before it"
    dispatcher.forget(pair)
    until(lambda: started(dispatcher, block))
    dispatcher.forget(block)
    until(lambda: started(dispatcher, later))


def test_what_needs_other_things_overtakes(dispatcher: LocalDispatcher) -> None:
    first, second = (a_hanging_task(key, resources={"licence": 1.0}) for key in ("first", "second"))
    other = a_hanging_task("other", device="neuron_cores", num_devices=1)
    for task in (first, second, other):
        dispatcher.submit(task)
    assert dispatcher.poll(second).waiting_for == "1 licence (0 licence free)"
    until(lambda: started(dispatcher, other))


def test_a_stage_that_needs_every_cpu_runs_alone(dispatcher: LocalDispatcher) -> None:
    compiling = a_hanging_task("compiling", num_cpus=1)
    timed = a_hanging_task("timed", num_cpus=None)
    dispatcher.submit(compiling)
    cpus = len(os.sched_getaffinity(0))
    assert submitted(dispatcher, timed).waiting_for == f"{cpus} CPU ({cpus - 1} CPU free)"
    dispatcher.forget(compiling)
    until(lambda: started(dispatcher, timed))


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (Needs(num_cpus=9999), "needs 9999 CPU, and this machine has .* CPU"),
        (Needs(num_cpus=1, memory_bytes=2**60), r"needs 1073741824.0 GiB of memory, and this machine has .* GiB"),
        (Needs(num_cpus=1, device="neuron_cores", num_devices=16), "needs 16 neuron_cores, and .* 8 neuron_cores"),
        (Needs(num_cpus=1, device="tpu", on_device_host=True), "needs 1 tpu, and this machine has"),
        (Needs(num_cpus=1, resources={"licence": 2.0}), "needs 2 licence, and this machine has .* 1 licence"),
    ],
)
def test_what_this_machine_lacks_is_named(dispatcher: LocalDispatcher, needs: Needs, message: str) -> None:
    with pytest.raises(UnsatisfiableError, match=message):
        dispatcher.check([needs])
    with pytest.raises(UnsatisfiableError, match=message):
        dispatcher.submit(a_task(needs=needs))


def test_capacity_is_that_of_the_scarcest(dispatcher: LocalDispatcher) -> None:
    cores = {"device": "neuron_cores", "num_devices": 2}
    assert dispatcher.capacity(Needs(num_cpus=0, **cores)) == 4
    assert dispatcher.capacity(Needs(num_cpus=0, resources={"licence": 1.0}, **cores)) == 1
    assert dispatcher.capacity(Needs(**cores)) == 1
    half = psutil.virtual_memory().total // 2
    assert dispatcher.capacity(Needs(num_cpus=0, memory_bytes=half)) == 2
    assert dispatcher.capacity(Needs(num_cpus=9999)) == 1


def test_closing_ends_every_stage(dispatcher: LocalDispatcher) -> None:
    tasks = [a_hanging_task(f"closing-{n}") for n in range(3)]
    for task in tasks:
        dispatcher.submit(task)
    until(lambda: all(started(dispatcher, task) for task in tasks))
    dispatcher.close()
    assert not any(leftovers(TUNER_STAGE=task.name) for task in tasks)


def test_what_ended_frees_what_it_held_though_nobody_forgets_it(dispatcher: LocalDispatcher) -> None:
    licensed = Needs(num_cpus=0, resources={"licence": 1.0})
    bug = a_task(key="bug", needs=licensed, environment=drill_environment(faults="load:*=bug"))
    after = a_hanging_task("after", resources={"licence": 1.0})
    dispatcher.submit(bug)
    dispatcher.submit(after)
    until(lambda: started(dispatcher, after))


OWNER = """
import time
from tests.support.drills import a_task, drill_environment
from tuner.local_dispatch import LocalDispatcher
task = a_task(key={key!r}, environment=drill_environment(faults="load:*=hang"))
dispatcher = LocalDispatcher()
dispatcher.submit(task)
while not dispatcher.poll(task).has_started:
    time.sleep(0.01)
raise SystemExit("left without closing")
"""


@pytest.mark.slow
def test_an_owner_that_leaves_without_closing_leaves_nothing(tmp_path: Path) -> None:
    program = OWNER.format(key=tmp_path.name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "left without closing"
    until(lambda: not leftovers(TUNER_STAGE=f"drill::baseline:{tmp_path.name}:0"))
