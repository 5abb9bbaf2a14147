"""Ending what a search left on a standing cluster."""

from __future__ import annotations

import logging

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import list_named_actors

from tuner import ray_cluster
from tuner.ray_dispatch import END_DEADLINE_S

logger = logging.getLogger(__name__)


def end_stages(address: str, study_name: str) -> int:
    """End the stages of a study whose driver is gone; compiles, which belong to no study, go on.

    Returns:
        How many there were.

    Raises:
        DispatchError: The cluster cannot be joined.
    """
    ray_cluster.join(address)
    try:
        names = [name for name in list_named_actors() if name.startswith(f"{study_name}:")]
        for name in names:
            _end(name)
        return len(names)
    finally:
        ray.shutdown()


def _end(name: str) -> None:
    try:
        actor = ray.get_actor(name)
    except ValueError:  # it ended meanwhile
        return
    try:
        ray.get(actor.end.remote(), timeout=END_DEADLINE_S)
    except RayActorError:
        logger.info("stage %s ended", name)
    except GetTimeoutError:
        logger.warning("stage %s does not answer; its worker is killed", name)
        ray.kill(actor, no_restart=True)
