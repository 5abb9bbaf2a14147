"""A Ray cluster: starting one on this machine, joining one, and noticing that it is gone."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

# Set before Ray is imported: no usage reports, and no warning about accelerators it does not manage.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
import ray._private.worker
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private import ray_constants
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.services import canonicalize_bootstrap_address, find_node_ids
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.errors import DispatchError
from tuner.provenance import package_versions
from tuner.ray_nodes import Node, alive_nodes

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAMESPACE = "tuner"

VERSION = package_versions(("specdec-tuner",)).get("specdec-tuner", "0.0.0")
"""Of this tuner; a checkout that was never installed has none."""

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Stages pass a few megabytes; more would only make Ray warn about /dev/shm."""

CONNECT_DEADLINE_S = 5.0
ANSWER_DEADLINE_S = 10.0
"""Ray itself takes two minutes to see that what answers is no Ray."""

JOIN_DEADLINE_S = 20.0
"""Joining takes a second; Ray itself looks for a node on this machine for a minute."""

PROBE_DEADLINE_S = 20.0
"""A node starts a worker in seconds, also a loaded one."""

LIFELINE_INTERVAL_S = 2.0

SILENCE_S = 40.0
"""A head that is restarted answers sooner; after 60 s Ray itself ends the driver."""

LEAVE_DEADLINE_S = 15.0
"""With what went before, less than these 60 s."""

# ── starting and joining ──────────────────────────────────────────────────────────────────────────────────────────────

_QUIET: Mapping[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}


def start_local(devices: Mapping[str, int]) -> None:
    """Start Ray on the loopback interface of this machine; it ends with this process.

    Args:
        devices: Resources that Ray does not find by itself.

    Raises:
        DispatchError: Ray does not start here.
    """
    named = {name: float(count) for name, count in devices.items() if name != "GPU"}
    _keep_stdout_clean()
    try:
        with _on_loopback():
            ray.init(
                address="local",
                num_cpus=len(os.sched_getaffinity(0)),
                num_gpus=devices.get("GPU"),
                resources=named or None,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **_QUIET,
            )
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise DispatchError(f"Ray does not start on this machine: {error}", "search with --dispatch local") from error


def join(address: str) -> str:
    """Join a standing cluster, and make sure that its nodes have the same versions as this process.

    Args:
        address: ``HOST:PORT`` of its head node, or ``auto`` for the cluster that this machine is a node of.

    Returns:
        The address that was joined, ``HOST:PORT``.

    Raises:
        DispatchError: Within half a minute; says what is wrong with the address, the token, a version or this machine.
    """
    found = _resolve(address)
    _check_listening(found)
    _check_versions(found, _ask(found))
    if not find_node_ids():  # type: ignore[no-untyped-call]
        raise DispatchError(
            f"this machine is no node of the Ray cluster at {found}",
            f"run `ray start --address={found} --num-cpus=0` here first, or search on a node of the cluster",
        )
    _keep_stdout_clean()
    _within(JOIN_DEADLINE_S, lambda: ray.init(address=found, **_QUIET), f"the Ray at {found} lets nobody join")
    try:
        _probe(alive_nodes())
    except DispatchError:
        ray.shutdown()
        raise
    return found


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on the loopback interface only, as it does by itself on macOS and Windows.

    It would take ``_node_ip_address="127.0.0.1"`` for the address that other machines reach this one by.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _keep_stdout_clean() -> None:
    """Log what Ray hears of lost nodes and workers; it prints that to standard output, which belongs to results."""

    def log(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:  # noqa: ARG001
        logger.info("%s", "\n".join(data["lines"]))

    ray._private.worker.print_to_stdstream = log


def _resolve(address: str) -> str:
    if address.startswith("ray://"):
        raise DispatchError(
            f"{address} is an address of Ray Client, which does not say what the nodes have",
            "search on a node of the cluster with --ray-address auto, or give the head node's HOST:PORT (6379)",
        )
    try:
        found = canonicalize_bootstrap_address(address) or ""
    except ConnectionError as error:
        raise DispatchError("no Ray runs on this machine", "name the cluster: --ray-address HOST:PORT") from error
    except ValueError as error:
        raise _no_address(address) from error
    host, _, port = found.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise _no_address(address)
    return found


def _no_address(address: str) -> DispatchError:
    return DispatchError(f"{address!r} is no address of a Ray cluster", "write HOST:PORT, as 10.0.0.1:6379")


def _check_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_DEADLINE_S).close()
    except OSError as error:
        raise DispatchError(
            f"nothing answers at {address}: {error.strerror or error}", "check --ray-address, and `ray status` there"
        ) from error


def _ask(address: str) -> Mapping[str, str]:
    """What the cluster says of itself: ``ray_version`` and ``python_version``."""
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # without one, Ray's C++ part ends the process
        return _within(
            ANSWER_DEADLINE_S,
            lambda: get_cluster_metadata(GcsClient(address=address)) or {},
            f"what answers at {address} is no Ray",
        )
    except AuthenticationError as error:
        raise DispatchError(
            f"the Ray cluster at {address} refuses the token of this process, or its lack of one "
            f"(RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', '')}): {error.message}",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of the cluster",
        ) from error


def _check_versions(address: str, metadata: Mapping[str, str]) -> None:
    theirs = {name: metadata.get(f"{name}_version", "") for name in ("ray", "python")}
    ours = {name: version for name, version in own_versions().items() if theirs.get(name)}
    if any(theirs[name] != version for name, version in ours.items()):
        raise version_error(f"the Ray cluster at {address}", theirs, ours)


def _within(deadline_s: float, work: Callable[[], T], complaint: str) -> T:
    """What ``work`` gives back, or a refusal after so long: Ray's own deadlines are minutes, and not ours to set."""
    outcome: list[T | Exception] = []

    def do() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=do, name="joining", daemon=True)
    thread.start()
    thread.join(deadline_s)
    hint = "check --ray-address: it is the HOST:PORT that `ray start --head` printed"
    match outcome:
        case []:
            raise DispatchError(f"{complaint}: nothing came of it within {deadline_s:.0f} s", hint)
        case [AuthenticationError() as error]:
            raise error
        case [Exception() as error]:
            raise DispatchError(f"{complaint}: {error}", hint) from error
    return outcome[0]  # type: ignore[return-value]


class Lifeline:
    """Looks whether the head of the joined cluster still answers, in a thread of its own.

    A driver without it would be ended by Ray's C++ part after a minute of silence, without a word of ours.
    """

    def __init__(self) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._answered_s = time.monotonic()
        self._answers = True
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    @property
    def answers(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._answers

    def answers_now(self) -> bool:
        """Whether it answers: to be asked before what Ray's C++ part would wait for, until it ends the process."""
        self._look()
        return self._answers

    def check(self) -> None:
        """Refuse to go on without a cluster.

        Raises:
            DispatchError: It has been silent for so long that it will not come back.
        """
        if not self._answers and time.monotonic() - self._answered_s > SILENCE_S:
            raise DispatchError(
                f"the Ray cluster at {self._address} has not answered for {SILENCE_S:.0f} s",
                "what is finished is kept; run the same command again once the cluster is back",
            )

    def leave(self) -> None:
        """Disconnect; also from a cluster that is gone, for which Ray waits some seconds."""
        self._closed.set()
        leaving = threading.Thread(target=ray.shutdown, name="leaving", daemon=True)
        leaving.start()
        leaving.join(None if self._answers else LEAVE_DEADLINE_S)
        if leaving.is_alive():  # at exit Ray would wait on, until its C++ part ends the process
            atexit.unregister(ray.shutdown)

    def _watch(self) -> None:
        while not self._closed.wait(LIFELINE_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        self._answers = _listens(self._address, LIFELINE_INTERVAL_S)
        if self._answers:
            self._answered_s = time.monotonic()


def _listens(address: str, deadline_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=deadline_s).close()
    except OSError:
        return False
    return True


# ── versions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def own_versions() -> dict[str, str]:
    """What driver and workers must have in common."""
    return {"tuner": VERSION, "ray": ray.__version__, "python": platform.python_version()}


def version_error(where: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> DispatchError:
    """The refusal of a machine with other versions."""
    differing = [name for name, version in ours.items() if theirs.get(name) != version]
    said = "; ".join(f"{name} {theirs.get(name) or 'missing'} there, {ours[name]} here" for name in differing)
    return DispatchError(f"{where} has other versions: {said}", "install the same versions on all machines")


def _probe(nodes: Sequence[Node]) -> None:
    """Ask every node for its versions; one that does not answer in time is left to prove itself."""

    def versions() -> dict[str, str]:  # travels by value, so that it runs where no tuner is installed
        try:
            import_module("tuner.ray_stage")
            own: dict[str, str] = import_module("tuner.ray_cluster").own_versions()
        except (ImportError, AttributeError) as error:
            return {"ray": ray.__version__, "python": platform.python_version(), "tuner": f"unusable ({error})"}
        return own

    remote: Any = ray.remote(versions)
    asked = {
        remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        ).remote(): node
        for node in nodes
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=PROBE_DEADLINE_S)
    for reference in answered:
        node = asked[reference]
        try:
            theirs = ray.get(reference)
        except RayTaskError as error:  # what travelled by value could not be read there
            raise version_error(f"{node.host} ({node.address})", {"tuner": str(error.cause)}, own_versions()) from error
        except RayError as error:  # it was lost meanwhile
            logger.warning("node %s does not answer: %s", node.host, error)
            continue
        if theirs != own_versions():
            raise version_error(f"{node.host} ({node.address})", theirs, own_versions())
    for reference in silent:
        logger.warning("node %s does not answer within %.0f s", asked[reference].host, PROBE_DEADLINE_S)
