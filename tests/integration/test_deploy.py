"""Ray, started as KubeRay would start it from the manifests of ``deploy/kuberay``, with its token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.kuberay import groups, ray_start

pytestmark = pytest.mark.slow

WAIT_S = 120
OBJECT_STORE = "100000000"  # of this machine, not of a trn2
PORTS = ("dashboard-port", "dashboard-agent-listen-port", "metrics-export-port")

DRIVER = """
import os, sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while "neuron_cores" not in ray.cluster_resources():
    time.sleep(0.5)

@ray.remote(num_cpus=64, resources={"neuron_cores": 32})
def cores():
    return os.environ["NEURON_RT_VISIBLE_CORES"]

resources = ray.cluster_resources()
print(int(resources["CPU"]), int(resources["neuron_cores"]))
for found in sorted(ray.get([cores.remote(), cores.remote()]), key=len):
    print(found)
"""


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def with_token(token: str) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "PATH": path}


@contextmanager
def started(command: str) -> Iterator[None]:
    with subprocess.Popen(
        ["/bin/bash", "-c", command],
        env=with_token("right"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def drive(address: str, token: str, wait_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DRIVER, address],
        env=with_token(token),
        capture_output=True,
        text=True,
        check=False,
        timeout=wait_s,
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of the head and one trn2 worker, both on this machine."""
    port, host = free_port(), socket.gethostbyname(socket.gethostname())
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))
        here = {"temp-dir": folder, "object-store-memory": OBJECT_STORE}
        for name, own in (("head", {"port": port}), ("trn2", {"address": f"{host}:{port}"})):
            ports = {one: free_port() for one in PORTS if name == "head" or one != "dashboard-port"}
            parameters = {**groups()[name]["rayStartParams"], **here, **ports, **own}
            stack.enter_context(started(ray_start(parameters, head=name == "head")))
            wait_for_port(host, int(port))
        yield f"{host}:{port}"


def wait_for_port(host: str, port: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens at {host}:{port}")


def test_a_driver_with_the_token_gets_both_blocks_of_cores(address: str) -> None:
    driven = drive(address, "right")
    assert driven.returncode == 0, driven.stderr
    first, second = (",".join(map(str, range(start, start + 32))) for start in (0, 32))
    assert driven.stdout.splitlines() == ["192 64", first, second]


def test_a_driver_with_another_token_is_refused(address: str) -> None:
    driven = drive(address, "wrong")
    assert driven.returncode != 0
    assert driven.stdout == ""
