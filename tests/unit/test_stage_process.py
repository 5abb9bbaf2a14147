"""A stage in a process of its own: what it is given, what comes of it, and what ends it."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.drills import a_task, command_line, drill_environment, leftovers, read_journal
from tuner.dispatch import StageStatus
from tuner.errors import (
    DispatchError,
    EngineCrashedError,
    EngineError,
    FragmentedDevicesError,
    OutOfDeviceMemoryError,
    StageTimeoutError,
    WorkerLostError,
)
from tuner.needs import Needs
from tuner.processes import stage_main
from tuner.processes.cores import reserve_cpus
from tuner.processes.stage_process import LOG_BYTES, StageProcess, read_log
from tuner.records import Prompt
from tuner.trial import StageTask

Start = Callable[..., tuple[StageTask, StageProcess]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a stage of the drill engine; none is left after the test."""
    monkeypatch.setattr("tuner.processes.stage_process.GRACE_S", 0.3)
    started: list[StageProcess] = []

    def begin(faults: str = "", log_dir: Path | None = None, **changes: Any) -> tuple[StageTask, StageProcess]:
        environment = drill_environment(tmp_path / "journal", faults=faults, **changes.pop("settings", {}))
        task = a_task(key=f"{tmp_path.name}-{len(started)}", environment=environment, **changes)
        started.append(StageProcess.start(task, log_dir))
        return task, started[-1]

    yield begin
    for process in started:
        process.end()


def ended(process: StageProcess, within_s: float = 30.0) -> StageStatus:
    until(lambda: process.has_ended, within_s)
    return process.poll()


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def stage_pid(task: StageTask) -> int:
    """The process that runs the stage itself, once it is there."""
    found: list[int] = []

    def is_there() -> bool:
        below = {one.pid: command_line(one) for one in leftovers(TUNER_STAGE=task.name)}
        found[:] = [pid for pid, words in below.items() if "-P" in words and "-I" not in words]
        return bool(found)

    until(is_there)
    return found[0]


def test_a_stage_runs_on_as_many_cpus_as_it_reserves(start: Start) -> None:
    task, process = start("load:*=hang", needs=Needs(num_cpus=1))
    until(lambda: process.poll().has_started)
    assert len(os.sched_getaffinity(stage_pid(task))) == 1


def test_its_environment_goes_over_that_of_its_owner(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILL_FAULTS", "load:*=fail")
    _, process = start("")
    assert ended(process).error is None


def test_a_big_task_and_a_big_result_pass(start: Start) -> None:
    prompts = tuple(Prompt(prompt_id=f"{n}-" + "x" * 1_000_000, prompt_class="big", text="y" * 10) for n in range(12))
    _, process = start(prompts=prompts)
    status = ended(process)
    assert status.result is not None
    assert len(status.result) > 12_000_000
    assert len(json.loads(status.result)["measurement"]["requests"]) == 12


def test_a_stage_ends_although_nobody_reads_its_result(start: Start, tmp_path: Path) -> None:
    task, process = start()
    until(lambda: read_journal(tmp_path / "journal", "closed"))
    until(lambda: not leftovers(TUNER_STAGE=task.name))
    assert process.poll().result


def test_what_it_leaves_behind_is_ended_and_its_result_counts(start: Start) -> None:
    task, process = start("run:*=leave_behind")
    assert ended(process).result
    assert leftovers(TUNER_STAGE=task.name) == []


def test_an_exit_in_the_middle_is_a_crash_with_the_last_line(start: Start) -> None:
    error = ended(start("run:*=exit")[1]).error
    assert type(error) is EngineCrashedError
    assert "exit code 7" in error.message
    assert "the runtime has had enough" in error.message


def test_a_fault_is_a_crash_with_the_last_line_before_it(start: Start) -> None:
    status = ended(start("run:*=segfault")[1])
    assert type(status.error) is EngineCrashedError
    assert status.error.message.endswith("ended by SIGSEGV; its last line: about to read address 0")
    assert "Fatal Python error: Segmentation fault" in status.log


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_stage_that_somebody_ends_is_lost(start: Start, by: signal.Signals) -> None:
    task, process = start("load:*=hang")
    until(lambda: process.poll().has_started)
    os.kill(stage_pid(task), by)
    error = ended(process).error
    assert type(error) is WorkerLostError
    assert by.name in error.message


def test_a_stage_that_the_kernel_kills_for_memory_does_not_fit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr("tuner.processes.stage_process.count_oom_kills", lambda: next(counts))
    task, process = start("load:*=hang")
    until(lambda: process.poll().has_started)
    os.kill(stage_pid(task), signal.SIGKILL)
    error = ended(process).error
    assert type(error) is OutOfDeviceMemoryError
    assert error.hint


@pytest.mark.slow
def test_nothing_is_left_of_a_stage_whose_supervisor_was_killed(start: Start) -> None:
    task, process = start("load:*=hang_below")
    until(lambda: len(leftovers(TUNER_STAGE=task.name)) >= 8)
    supervisor = psutil.Process(stage_pid(task)).ppid()
    os.kill(supervisor, signal.SIGKILL)
    assert type(ended(process).error) is WorkerLostError
    assert leftovers(TUNER_STAGE=task.name) == []


def test_a_deadline_is_told_from_an_end_by_others(start: Start) -> None:
    task, process = start("load:*=hang", deadline_s=0.7)
    status = ended(process)
    assert type(status.error) is StageTimeoutError
    assert 0.7 <= status.ran_s < 2.0
    assert leftovers(TUNER_STAGE=task.name) == []


def test_ending_twice_is_ending_once(start: Start) -> None:
    task, process = start("load:*=hang")
    process.end()
    process.end()
    assert type(process.poll().error) is WorkerLostError
    assert leftovers(TUNER_STAGE=task.name) == []


def test_a_stage_waits_for_cpus_that_another_search_holds(start: Start) -> None:
    others = reserve_cpus(None)
    _, process = start()
    status = process.poll()
    assert (status.has_started, status.waiting_for) == (False, "CPUs that another stage on this machine still holds")
    assert others is not None
    others.close()
    status = ended(process)
    assert status.result
    assert status.waiting_for is None


def test_a_stage_that_waits_can_be_ended(start: Start) -> None:
    others = reserve_cpus(None)
    assert others is not None
    _, process = start()
    process.end()
    others.close()
    status = process.poll()
    assert type(status.error) is WorkerLostError
    assert not status.has_started


def test_cores_that_are_not_adjacent_are_refused_before_the_start(start: Start) -> None:
    needs = Needs(num_cpus=1, device="neuron_cores", num_devices=4)
    status = ended(start(needs=needs, settings={})[1])
    assert type(status.error) is FragmentedDevicesError
    assert not status.has_started


def test_adjacent_cores_are_taken(start: Start) -> None:
    cores = {"NEURON_RT_VISIBLE_CORES": "4-7"}
    needs = Needs(num_cpus=1, device="neuron_cores", num_devices=4, environment=cores)
    assert ended(start(needs=needs)[1]).result


@pytest.mark.slow
def test_a_stage_waits_for_cores_of_one_that_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.processes.stage_process.GRACE_S", 1.0)
    cores = {"NEURON_RT_VISIBLE_CORES": "0-1"}
    needs = Needs(num_cpus=0, device="neuron_cores", num_devices=2, environment=cores)
    task, ending = start("load:*=hang_below", needs=needs)
    until(lambda: len(leftovers(TUNER_STAGE=task.name)) >= 8)
    ending.ask_to_end()
    _, process = start(needs=needs)
    assert process.poll().waiting_for == "neuron_cores that another stage on this machine still holds"
    assert ended(process).result
    assert leftovers(TUNER_STAGE=task.name) == []


def test_a_log_is_kept_by_the_name_of_its_stage(start: Start, tmp_path: Path) -> None:
    task, process = start("run:*=talk", log_dir=tmp_path / "logs", study_name="a/b c")
    assert "the drill says something" in ended(process).log
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == f"a-b-c--baseline-{task.key}-0.log"
    assert "the drill says something" in file.read_text()


def test_a_log_that_cannot_be_written_is_an_error_of_ours(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DispatchError, match="file"):
        start(log_dir=tmp_path / "file")


@pytest.mark.slow
def test_a_stage_that_runs_again_begins_its_log_anew(start: Start, tmp_path: Path) -> None:
    task, process = start("run:*=exit", log_dir=tmp_path / "logs")
    assert ended(process).log
    again = StageProcess.start(replace(task, needs=Needs(num_cpus=1)), tmp_path / "logs")
    assert "had enough" not in ended(again).log


@pytest.mark.slow
def test_a_stopped_supervisor_does_not_keep_the_search_waiting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.processes.stage_process.END_DEADLINE_S", 0.3)
    task, process = start("load:*=hang", deadline_s=2.0)
    until(lambda: process.poll().has_started)
    os.kill(psutil.Process(stage_pid(task)).ppid(), signal.SIGSTOP)
    assert type(ended(process).error) is StageTimeoutError
    until(lambda: not leftovers(TUNER_STAGE=task.name))


def test_a_long_log_keeps_its_beginning_and_its_end() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"first\n" + b"\xff" * 10 + b"x" * 2 * LOG_BYTES + b"\nlast\n")
        file.flush()
        log = read_log(file)
    assert log.startswith("first\n")
    assert log.endswith("\nlast\n")
    assert f"{LOG_BYTES + 22} bytes are left out" in log
    assert len(log.encode()) <= LOG_BYTES + 20  # what is no text became a character of three bytes


class ThirdPartyError(EngineError):
    """Not known where the search runs."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the device answered {code}", "restart it")


def test_an_error_of_a_third_party_travels_as_ours() -> None:
    error = stage_main._as_ours(ThirdPartyError(17))
    assert type(error) is EngineError
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.message, copy.hint) == ("the device answered 17", "restart it")


def test_a_message_is_read_once_it_is_whole() -> None:
    with tempfile.TemporaryFile() as file:
        stage_main.write_message(file.fileno(), "progress", (1, 3))
        whole = file.seek(0, os.SEEK_END)
        stage_main.write_message(file.fileno(), "result", b"r" * 100)
        file.truncate(whole + 50)
        found = stage_main.read_message(file.fileno(), 0)
        assert found == (("progress", (1, 3)), whole)
        assert stage_main.read_message(file.fileno(), whole) is None
