"""A Ray cluster of one machine that no driver owns, started by the command that people use."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

START_S = 90
RAY = Path(sys.executable).with_name("ray")


class StandingRay:
    """Its processes, all below one command."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.address = address

    def kill(self) -> None:
        """All of it at once, as a machine that loses power."""
        family = [psutil.Process(self._process.pid)]
        family += family[0].children(recursive=True)
        for one in family:
            one.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)
        self._process.wait()


@contextmanager
def standing_ray(num_cpus: int) -> Iterator[StandingRay]:
    """A cluster on the loopback interface, gone at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets in it have short names only
    command = [
        *(str(RAY), "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port)),
        *("--num-cpus", str(num_cpus), "--include-dashboard", "false", "--temp-dir", str(folder)),
        *("--object-store-memory", str(80 * 2**20), "--disable-usage-stats"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ.copy())
    cluster = StandingRay(process, f"127.0.0.1:{port}", folder)
    try:
        _wait_for(process, port, folder / "log")
        yield cluster
    finally:
        if process.poll() is None:
            cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while b"Ray runtime started" not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass
