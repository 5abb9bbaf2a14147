"""Devices by number: which of them a process sees, and that they are adjacent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import FragmentedDevicesError
from tuner.needs import Needs

VISIBLE_VARIABLES = {"neuron_cores": "NEURON_RT_VISIBLE_CORES", "GPU": "CUDA_VISIBLE_DEVICES"}
"""The variable by which a device's runtime is told which ones a process may use."""

ADJACENT_DEVICES = frozenset({"neuron_cores"})
"""A model that is split over several needs neighbours."""


def listed_devices(text: str) -> tuple[str, ...]:
    """The devices that ``"0,1,2"``, ``"0-3"`` or a list of names means."""
    return tuple(device for part in text.split(",") for device in _expanded(part.strip()) if device)


def _expanded(part: str) -> Sequence[str]:
    first, dash, last = part.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        return [str(number) for number in range(int(first), int(last) + 1)]
    return [part]


def check_adjacent(text: str | None, count: int) -> None:
    """Refuse devices that are not ``count`` neighbours in ascending order.

    Args:
        text: As the variable has it, ``"0,1,2,3"`` or ``"0-3"``; None where it is not set.
        count: How many the stage holds.

    Raises:
        FragmentedDevicesError: Says what was given.
    """
    found = listed_devices(text or "")
    first = int(found[0]) if found and found[0].isdecimal() else 0
    if found != tuple(str(first + place) for place in range(count)):
        raise FragmentedDevicesError(
            f"{count} adjacent devices are needed, and {text or 'none'} were given",
            "let every stage on this machine take blocks of one size, so that what is freed is adjacent again",
        )


def device_names(needs: Needs, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The devices that a stage sees, by names that are unique on its machine; empty where that cannot be told."""
    if needs.device not in VISIBLE_VARIABLES or not needs.num_devices:
        return ()
    seen = listed_devices(environment.get(VISIBLE_VARIABLES[needs.device], ""))
    return tuple(f"{needs.device}-{device.replace('/', '-')}" for device in seen)


def check_devices(needs: Needs, environment: Mapping[str, str]) -> None:
    """Refuse devices that are not adjacent where they have to be; see ``check_adjacent``."""
    if needs.device in ADJACENT_DEVICES and needs.num_devices:
        check_adjacent(environment.get(VISIBLE_VARIABLES[needs.device]), needs.num_devices)
