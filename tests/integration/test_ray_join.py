"""Joining a Ray cluster, and being refused in time where that cannot work."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.drills import leftovers
from tests.support.standing_ray import standing_ray
from tuner.errors import DispatchError
from tuner.ray_dispatch import RayDispatcher

pytestmark = pytest.mark.slow

REFUSED_WITHIN_S = 30.0


@contextmanager
def refused_in_time(match: str) -> Iterator[None]:
    began_s = time.monotonic()
    with pytest.raises(DispatchError, match=match) as caught:
        yield
    assert caught.value.hint
    assert time.monotonic() - began_s < REFUSED_WITHIN_S


def driver(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since Ray reads once how it is to authenticate."""
    program = (
        "from tuner.ray_dispatch import RayDispatcher\n"
        "from tuner.errors import DispatchError\n"
        "try:\n"
        f"    with RayDispatcher({address!r}).start(): print('joined')\n"
        "except DispatchError as error: print(error)\n"
    )
    began_s = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert time.monotonic() - began_s < REFUSED_WITHIN_S
    return ran


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "10.0.0.1:ray", "10.0.0.1:99999"])
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with refused_in_time("address"):
        RayDispatcher(address).start()


def test_an_address_where_nothing_listens_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with refused_in_time("nothing answers at"):
            RayDispatcher(f"127.0.0.1:{taken.getsockname()[1]}").start()


def test_an_address_where_something_else_listens_is_refused() -> None:
    with HTTPServer(("", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with refused_in_time("is no Ray"):
                RayDispatcher(f"127.0.0.1:{server.server_port}").start()
        finally:
            server.shutdown()
            thread.join()


def test_a_wrong_or_missing_token_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    for name, value in token.items():
        monkeypatch.setenv(name, value)
    with standing_ray(num_cpus=1) as cluster:
        monkeypatch.setenv("HOME", str(tmp_path))  # where no token is kept
        assert driver(cluster.address, **token).stdout == "joined\n"
        for refused in (
            driver(cluster.address, RAY_AUTH_MODE="disabled"),
            driver(cluster.address, RAY_AUTH_TOKEN="fedcba9876543210fedcba9876543210"),
            driver(cluster.address, RAY_AUTH_TOKEN=""),
        ):
            assert "refuses the token" in refused.stdout
            assert "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN" in refused.stdout


def test_a_search_ends_when_its_whole_cluster_is_gone() -> None:
    program = (
        "import sys, time\nfrom tests.support.drills import drill_task\nfrom tuner import ray_cluster\n"
        "from tuner.errors import DispatchError\nfrom tuner.needs import Needs\n"
        "from tuner.ray_dispatch import RayDispatcher\n"
        "ray_cluster.SILENCE_S = 5.0\n"
        "task = drill_task('hangs below', key='lost', needs=Needs(num_cpus=1), deadline_s=100.0)\n"
        "try:\n"
        "    with RayDispatcher(sys.argv[1]).start() as dispatcher:\n"
        "        dispatcher.submit(task)\n"
        "        while not dispatcher.poll(task).has_started: time.sleep(0.1)\n"
        "        print(task.name, flush=True)\n"
        "        while not dispatcher.poll(task).has_ended: time.sleep(0.1)\n"
        "except DispatchError as error: print(error)\n"
    )
    with standing_ray(num_cpus=1) as cluster:
        driving = subprocess.Popen([sys.executable, "-c", program, cluster.address], stdout=subprocess.PIPE, text=True)
        with driving:
            assert driving.stdout is not None
            name = driving.stdout.readline().strip()
            cluster.kill()
            said, _ = driving.communicate(timeout=60)
    assert "has not answered for 5 s" in said
    assert driving.returncode == 0
    assert leftovers(TUNER_STAGE=name) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    started = Cluster(initialize_head=True, head_node_args=arguments)
    yield started
    started.shutdown()


def test_a_node_with_another_tuner_is_refused_by_name(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metadata = tmp_path / "specdec_tuner-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: specdec-tuner\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    monkeypatch.undo()
    with refused_in_time(rf"{socket.gethostname()}.*has other versions: tuner 9.9 there"):
        RayDispatcher(cluster.address).start()
    cluster.remove_node(node)


def test_a_node_without_the_tuner_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Hidden:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'tuner': raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    monkeypatch.undo()
    with refused_in_time("tuner unusable .No module named"):
        RayDispatcher(cluster.address).start()
    cluster.remove_node(node)


def test_a_cluster_of_another_ray_is_refused(cluster: Any) -> None:
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._raylet import GcsClient

    client = GcsClient(address=cluster.address)
    key = b"CLUSTER_METADATA"
    said = client.internal_kv_get(key, KV_NAMESPACE_CLUSTER)
    client.internal_kv_put(
        key, json.dumps({**json.loads(said), "ray_version": "2.9.0"}).encode(), True, KV_NAMESPACE_CLUSTER
    )
    try:
        with refused_in_time(r"has other versions: ray 2\.9\.0 there"):
            RayDispatcher(cluster.address).start()
    finally:
        client.internal_kv_put(key, said, True, KV_NAMESPACE_CLUSTER)
