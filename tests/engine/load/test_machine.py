"""What the kernel tells of a machine, and that nothing is made up where it does not."""

import os
from pathlib import Path

import pytest

from talka.engine.load.machine import MachineReading, machine_between, reading
from talka.units import SECOND


def proc_of(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "pressure").mkdir()
    for name, content in files.items():
        (tmp_path / name.replace("_", "/")).write_text(content)
    return tmp_path


def test_steal_pressure_and_run_queue_are_read(tmp_path: Path) -> None:
    found = reading(
        proc_of(
            tmp_path,
            stat="cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n",
            pressure_cpu="some avg10=0.12 avg60=0.50 avg300=0.10 total=123456\nfull avg10=0.00 total=7\n",
            loadavg="2.50 0.18 0.12 3/80 11206\n",
        )
    )
    assert (found.ticks, found.waited_us, found.load) == ((1, 2, 3, 4, 5, 6, 7, 8), 123_456, 2.5)


@pytest.mark.parametrize("content", ["", "what is this\n"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, content: str) -> None:
    found = reading(proc_of(tmp_path, stat=content, pressure_cpu=content, loadavg=content))
    assert (len(found.ticks), found.waited_us, found.load) == (0, None, None)
    machine = machine_between(found, found)
    assert (machine.steal, machine.waiting, machine.load) == (None, None, None)


def test_a_machine_without_these_files_tells_nothing(tmp_path: Path) -> None:
    found = reading(tmp_path / "nowhere")
    assert (found.ticks, found.waited_us, found.load) == ((), None, None)


def test_shares_are_of_the_time_between_two_readings() -> None:
    before = MachineReading(0, (10, 0, 0, 100, 0, 0, 0, 5), 1_000_000, 9.0)
    after = MachineReading(10 * SECOND, (20, 0, 10, 160, 0, 0, 0, 25), 4_000_000, 1.5)
    machine = machine_between(before, after)
    assert (machine.steal, machine.waiting, machine.load) == (0.2, 0.3, 1.5)


def test_two_readings_at_one_instant_have_no_shares() -> None:
    at = MachineReading(5, (1, 1, 1, 1, 1, 1, 1, 1), 7)
    assert (machine_between(at, at).steal, machine_between(at, at).waiting) == (None, None)


@pytest.mark.parametrize(("told", "cpus"), [(7, 7), (None, 1)])
def test_a_machine_that_does_not_tell_its_cpus_has_one(
    told: int | None, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: told)
    assert machine_between(MachineReading(0), MachineReading(SECOND)).cpus == cpus
