"""Two stages that reserve CPUs never share one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import DispatchError
from tuner.processes.cores import LOCKS_VARIABLE, Reservation, reserve_cpus, reserve_devices

EIGHT = range(8)


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path / "cpus"))


def reserved(count: int | None, allowed: range = EIGHT) -> Reservation:
    found = reserve_cpus(count, allowed)
    assert found is not None
    return found


def test_two_reservations_share_no_cpu() -> None:
    first, second = reserved(3), reserved(4)
    assert not set(first.cpus) & set(second.cpus)
    assert reserve_cpus(2, EIGHT) is None
    first.close()
    third = reserved(2)
    second.close()
    third.close()


def test_cpus_are_adjacent_and_leave_whole_blocks() -> None:
    one = reserved(1)
    block = reserved(4)
    assert (one.cpus, block.cpus) == ((0,), (4, 5, 6, 7))
    one.close()
    block.close()


def test_scattered_cpus_do_where_no_others_are_free() -> None:
    singles = [reserved(1) for _ in EIGHT]
    singles[1].close()
    singles[6].close()
    pair = reserved(2)
    assert pair.cpus == (1, 6)
    for one in (pair, *(single for place, single in enumerate(singles) if place not in {1, 6})):
        one.close()


def test_none_is_every_cpu() -> None:
    everything = reserved(None)
    assert everything.cpus == tuple(EIGHT)
    assert reserve_cpus(1, EIGHT) is None
    everything.close()
    one = reserved(1)
    assert reserve_cpus(None, EIGHT) is None
    one.close()


def test_more_than_there_are_is_all_of_them() -> None:
    found = reserved(100)
    assert found.cpus == tuple(EIGHT)
    found.close()


def test_a_reservation_ends_with_the_process_that_inherited_it() -> None:
    program = "import sys; sys.stdin.read()"
    everything = reserved(None)
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, pass_fds=everything.locks)
    everything.close()
    assert reserve_cpus(1, EIGHT) is None
    holder.kill()
    holder.communicate()
    reserved(1).close()


def test_nothing_stays_open_where_too_few_are_free() -> None:
    held = reserved(7)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert reserve_cpus(2, EIGHT) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    held.close()


def test_devices_are_reserved_all_or_none() -> None:
    first = reserve_devices(["neuron_cores-0", "neuron_cores-1"])
    assert first is not None
    assert reserve_devices(["neuron_cores-1", "neuron_cores-2"]) is None
    other = reserve_devices(["neuron_cores-2"])
    assert other is not None
    first.close()
    other.close()


def test_no_device_is_no_lock() -> None:
    assert reserve_devices([]) == Reservation()


def test_reservations_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS_VARIABLE, "")
    assert reserve_cpus(None, EIGHT) == reserve_cpus(8, EIGHT) == Reservation()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(DispatchError, match="file") as caught:
        reserve_cpus(1, EIGHT)
    assert LOCKS_VARIABLE in caught.value.hint
