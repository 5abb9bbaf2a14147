"""Devices that a stage sees are the neighbours that it asked for."""

from __future__ import annotations

import pytest

from tuner.errors import FragmentedDevicesError
from tuner.needs import Needs
from tuner.processes.devices import check_adjacent, check_devices, device_names, listed_devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0,1,2", ("0", "1", "2")),
        ("0-3", ("0", "1", "2", "3")),
        (" 4 , 6-7", ("4", "6", "7")),
        ("", ()),
        ("GPU-8a,GPU-9b", ("GPU-8a", "GPU-9b")),
    ],
)
def test_a_list_is_read(text: str, devices: tuple[str, ...]) -> None:
    assert listed_devices(text) == devices


@pytest.mark.parametrize(("text", "count"), [("0,1,2,3", 4), ("0-3", 4), ("4,5", 2), ("7", 1), ("8-11,12-15", 8)])
def test_neighbours_are_taken(text: str, count: int) -> None:
    check_adjacent(text, count)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0,1,4,5", 4), ("0-3", 2), ("0,1", 4), ("1,0", 2), ("0,0", 2), ("3-0", 4), ("GPU-8a,GPU-9b", 2), ("", 1)],
)
def test_others_are_refused_with_what_was_given(text: str, count: int) -> None:
    with pytest.raises(FragmentedDevicesError, match=text or "none") as caught:
        check_adjacent(text, count)
    assert "blocks of one size" in caught.value.hint


def test_a_stage_without_its_cores_is_refused() -> None:
    with pytest.raises(FragmentedDevicesError, match="none"):
        check_devices(Needs(device="neuron_cores", num_devices=2), {})


def test_only_devices_that_must_be_adjacent_are_looked_at() -> None:
    check_devices(Needs(device="GPU", num_devices=2), {"CUDA_VISIBLE_DEVICES": "0,3"})
    check_devices(Needs(device="neuron_cores", on_device_host=True), {})
    check_devices(Needs(device="neuron_cores", num_devices=2), {"NEURON_RT_VISIBLE_CORES": "2,3"})


def test_devices_have_names_where_their_variable_tells_them() -> None:
    cores = {"NEURON_RT_VISIBLE_CORES": "4-5"}
    assert device_names(Needs(device="neuron_cores", num_devices=2), cores) == ("neuron_cores-4", "neuron_cores-5")
    assert device_names(Needs(device="neuron_cores", on_device_host=True), cores) == ()
    assert device_names(Needs(device="GPU", num_devices=1), {"CUDA_VISIBLE_DEVICES": "MIG-1/2"}) == ("GPU-MIG-1-2",)
    assert device_names(Needs(device="tpu", num_devices=1), cores) == ()
