"""A stage in a process of its own, from its start to the end of its last descendant."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

import psutil

from tuner.dispatch import StageBugError, StageStatus, timeout_error
from tuner.errors import DispatchError, EngineCrashedError, OutOfDeviceMemoryError, TunerError, WorkerLostError
from tuner.processes import stage_main, supervisor
from tuner.processes.cores import reserve_cpus, reserve_devices
from tuner.processes.devices import check_devices, device_names
from tuner.processes.oom_kills import count_oom_kills
from tuner.trial import StageTask

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: a server closes its sockets and devices in less."""

END_DEADLINE_S = 60.0
"""A process that SIGKILL does not end within it hangs in the kernel, in a driver or on a lost network disk."""

LOG_BYTES = 256 * 1024
"""Of a stage's log that is kept: half from its beginning, half from its end."""

STAGE_VARIABLE = "TUNER_STAGE"
"""In the environment of a stage's processes: the name of the stage."""

_MARK_VARIABLE = "TUNER_STAGE_PROCESS"  # finds what a killed supervisor could not end

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


@dataclass(slots=True)
class _Running:
    """What the owner holds of a started stage."""

    control: socket.socket
    supervising: subprocess.Popen[bytes]
    mark: str
    oom_kills: int | None
    said: str = ""
    asked_to_end_s: float | None = None

    def words(self, kind: str) -> list[str] | None:
        """The words of the supervisor's line that begins with ``kind``."""
        whole, _, _ = self.said.rpartition("\n")
        return next((line.split() for line in whole.splitlines() if line.startswith(kind)), None)


class StageProcess:
    """One stage, run by a process below a supervisor (``tuner.processes.supervisor``).

    Whatever happens to this process, to the supervisor or to the stage, nothing of the stage is left. A deadline
    holds also while nobody looks. ``start`` returns at once; where another search or a stage that ends still holds the
    CPUs or devices that it reserves, it begins at the first ``poll`` that finds them free.
    """

    def __init__(self, task: StageTask, log: IO[bytes], messages: IO[bytes]) -> None:
        self._task, self._log, self._messages = task, log, messages
        self._read_bytes = 0
        self._running: _Running | None = None
        self._outcome: stage_main.Message | None = None
        self._bug: str | None = None  # its traceback, once everything has ended
        self._status = StageStatus()

    @classmethod
    def start(cls, task: StageTask, log_dir: Path | None = None) -> Self:
        """Start a stage.

        Args:
            task: Its ``needs.environment`` goes over the environment of this process.
            log_dir: Where its log stays, named for the stage; None keeps it no longer than this object.

        Raises:
            DispatchError: Its files cannot be written.
        """
        try:
            started = cls(task, _open_log(task, log_dir), tempfile.TemporaryFile())  # noqa: SIM115 - closed at its end
        except OSError as error:
            raise DispatchError(
                f"cannot write the files of stage {task.name}: {error}", "see the space and the rights of that folder"
            ) from error
        started._launch()
        return started

    @property
    def has_ended(self) -> bool:
        """Whether the stage and everything below it ended."""
        self._look()
        return self._has_ended

    def poll(self) -> StageStatus:
        """How it is doing. Does not wait.

        Raises:
            StageBugError: The stage raised what is no error of ours.
        """
        self._look()
        if self._bug is not None:
            raise StageBugError(f"stage {self._task.name} failed by a bug:\n{self._bug}")
        return self._status

    def ask_to_end(self) -> None:
        """Let everything below end. Does not wait; ``end`` does."""
        if self._running is not None and self._running.asked_to_end_s is None:
            self._running.asked_to_end_s = time.monotonic()
            with contextlib.suppress(OSError):
                self._running.control.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """End everything below; returns when nothing is left. May be called twice."""
        if self._running is not None:
            self.ask_to_end()
            self._running.control.settimeout(END_DEADLINE_S)
            with contextlib.suppress(OSError):
                while said := self._running.control.recv(4096):
                    self._running.said += said.decode()
            self._finish(self._running)
        elif not self._has_ended:
            self._close(StageStatus(error=_lost(self._task, "was ended before it began")))

    @property
    def _has_ended(self) -> bool:
        return self._status.has_ended or self._bug is not None

    def _launch(self) -> None:
        needs = self._task.needs
        environment = {**os.environ, **needs.environment}
        try:
            check_devices(needs, environment)
            with contextlib.ExitStack() as holding:
                if (cpus := reserve_cpus(needs.num_cpus)) is None:
                    return self._wait_for("CPUs")
                holding.callback(cpus.close)
                if (devices := reserve_devices(device_names(needs, environment))) is None:
                    return self._wait_for(needs.device or "devices")
                holding.callback(devices.close)
                pinned = () if needs.num_cpus is None else cpus.cpus
                self._running = self._supervise(pinned, (*cpus.locks, *devices.locks), environment)
        except OSError as error:
            failed = DispatchError(
                f"cannot start a process for stage {self._task.name}: {error}", "see `ulimit -a` and `df`"
            )
            self._close(StageStatus(error=failed))
        except DispatchError as error:
            self._close(StageStatus(error=error))

    def _wait_for(self, what: str) -> None:
        self._status = StageStatus(waiting_for=f"{what} that another stage on this machine still holds")

    def _supervise(self, cpus: Sequence[int], locks: Sequence[int], environment: dict[str, str]) -> _Running:
        mark = uuid.uuid4().hex
        environment |= {STAGE_VARIABLE: self._task.name, _MARK_VARIABLE: mark}
        ours, theirs = socket.socketpair()
        with theirs, _own_pidfd() as owner, tempfile.TemporaryFile() as task:
            stage_main.write_task(task, self._task)
            task.seek(0)
            messages = self._messages.fileno()
            orders = {
                "control": theirs.fileno(),
                "owner": owner,
                "keep": [messages],
                "hold": locks,
                "cpus": cpus,
                "deadline_s": self._task.deadline_s,
                "grace_s": GRACE_S,
            }
            stage = [sys.executable, "-P", stage_main.__file__, str(messages)]
            supervising = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(orders), *stage],
                stdin=task,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                pass_fds=[one for one in (theirs.fileno(), owner, messages, *locks) if one >= 0],
                start_new_session=True,  # Ctrl-C at a terminal is for the owner, which ends its stages in order
            )
        ours.setblocking(False)
        logger.debug("stage %s has process %d", self._task.name, supervising.pid)
        return _Running(ours, supervising, mark, count_oom_kills())

    def _look(self) -> None:
        if self._running is None:
            if not self._has_ended:
                self._launch()
            return
        running = self._running
        is_over = _listen(running)
        self._read_messages()
        self._note_progress(running)
        if self._is_overdue(running):
            self.ask_to_end()
        if is_over or _hangs(running):
            self._finish(running)

    def _read_messages(self) -> None:
        while found := stage_main.read_message(self._messages.fileno(), self._read_bytes):
            (kind, value), self._read_bytes = found
            if kind == "progress":
                self._status = replace(self._status, done=value[0], total=value[1])
            else:
                self._outcome = (kind, value)

    def _note_progress(self, running: _Running) -> None:
        began, ended = running.words("began"), running.words("ended")
        if began is not None:
            until_s = time.monotonic() if ended is None else float(ended[3])
            ran_s = max(until_s - float(began[2]), 0.0)
            self._status = replace(self._status, has_started=True, ran_s=ran_s, waiting_for=None)

    def _is_overdue(self, running: _Running) -> bool:
        """The supervisor keeps the deadline; one that is stopped or starved must not keep the search waiting."""
        return self._status.ran_s > self._task.deadline_s + GRACE_S and running.words("ended") is None

    def _finish(self, running: _Running) -> None:
        """Everything has ended, or will not; say how."""
        self._read_messages()
        self._note_progress(running)
        if running.words("ended") is None:
            _kill_marked(running.mark)
        running.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.supervising.wait(timeout=GRACE_S)
        self._running = None
        log = read_log(self._log)
        ended = replace(self._status, log=log)
        match self._outcome:
            case ("result", result):
                ended = replace(ended, result=result)
            case ("error", error):
                ended = replace(ended, error=error)
            case ("bug", traceback):
                self._bug = traceback
            case _:
                ended = replace(ended, error=_ending_error(self._task, running, ended.ran_s, log))
        self._close(ended)

    def _close(self, status: StageStatus) -> None:
        self._status = status
        self._log.close()
        self._messages.close()


def _open_log(task: StageTask, log_dir: Path | None) -> IO[bytes]:
    if log_dir is None:
        return tempfile.TemporaryFile()
    log_dir.mkdir(parents=True, exist_ok=True)
    log = (log_dir / log_name(task)).open("ab+")  # many processes append
    log.truncate(0)
    return log


def log_name(task: StageTask) -> str:
    """Name of the file of a stage's log."""
    return "".join(one if one.isalnum() or one in "-._" else "-" for one in task.name) + ".log"


def read_log(file: IO[bytes]) -> str:
    """What a log says, its middle left out where it is longer than ``LOG_BYTES``."""
    size = os.fstat(file.fileno()).st_size
    if size <= LOG_BYTES:
        return os.pread(file.fileno(), size, 0).decode(errors="replace")
    note = f"\n… {size - LOG_BYTES} bytes are left out here …\n"
    half = LOG_BYTES // 2 - len(note)
    head, tail = os.pread(file.fileno(), half, 0), os.pread(file.fileno(), half, size - half)
    return head.decode(errors="replace") + note + tail.decode(errors="replace")


@contextlib.contextmanager
def _own_pidfd() -> Iterator[int]:
    """Tells its holder when this process ends; -1 where the kernel has no such thing."""
    try:
        descriptor = os.pidfd_open(os.getpid())
    except OSError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _listen(running: _Running) -> bool:
    """Take in what the supervisor says; whether it has ended."""
    try:
        while said := running.control.recv(4096):
            running.said += said.decode()
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _hangs(running: _Running) -> bool:
    """Whether something below should have ended long ago."""
    ended = running.words("ended")
    told_s = running.asked_to_end_s if ended is None else float(ended[3])
    return told_s is not None and time.monotonic() - told_s > END_DEADLINE_S


def _kill_marked(mark: str) -> None:
    """End what is left below a supervisor that was killed itself."""
    for _ in range(10):  # what forks meanwhile is found the next time
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK_VARIABLE) == mark:
                    process.kill()
        time.sleep(supervisor.LOOK_INTERVAL_S)


def _ending_error(task: StageTask, running: _Running, ran_s: float, log: str) -> TunerError:
    """Why a stage ended without an outcome of its own."""
    _, reason, value, *_ = running.words("ended") or ("ended", "alone", "0")
    if reason == "deadline" or (reason in {"told", "alone"} and ran_s > task.deadline_s):
        return timeout_error(task)
    if reason == "exit":
        return _crashed(task, f"ended with exit code {value}", log)
    if reason == "signal":
        return _killed(task, int(value), running.oom_kills, log)
    return _lost(task, "was ended" if reason == "told" else "lost its supervisor")


def _killed(task: StageTask, number: int, oom_kills: int | None, log: str) -> TunerError:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _CRASHES:
        return _crashed(task, f"ended by {name}", log)
    now = count_oom_kills()
    if number == signal.SIGKILL and now is not None and oom_kills is not None and now > oom_kills:
        return OutOfDeviceMemoryError(
            f"the kernel killed stage {task.kind} of {task.config.speculation.label}: no memory was left",
            "use a smaller draft or batch, or a machine with more memory",
        )
    return _lost(task, f"was ended by {name} from outside")


def _crashed(task: StageTask, how: str, log: str) -> EngineCrashedError:
    # Behind it comes Python's own account of a fault, which the log keeps.
    lines = log.partition("Fatal Python error")[0].strip().splitlines()
    last = f"; its last line: {lines[-1].strip()}" if lines else ""
    return EngineCrashedError(
        f"the process of stage {task.kind} of {task.config.speculation.label} {how}{last}",
        "see what it wrote with `tuner logs`",
    )


def _lost(task: StageTask, how: str) -> WorkerLostError:
    return WorkerLostError(
        f"the process of stage {task.kind} of {task.config.speculation.label} {how}",
        "it is run again; if it ends each time, see who ends it in the system's log",
    )
