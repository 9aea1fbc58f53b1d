"""What else goes on on this machine, read from the kernel once before a shard and once after it. What it does not tell
is not known."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from talka.clock import monotonic_ns
from talka.stats.machine import Machine
from talka.units import MICROSECOND

Value = TypeVar("Value")

PROC: Final = Path("/proc")
STEAL: Final = 7
"""Its place among the numbers of a CPU; those after it are in others already."""


class MachineReading(msgspec.Struct, frozen=True):
    at_ns: int
    ticks: tuple[int, ...] = ()
    """Of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal."""
    waited_us: int | None = None
    load: float | None = None


def reading(proc: Path = PROC) -> MachineReading:
    return MachineReading(
        monotonic_ns(),
        first_line(proc / "stat", lambda line: tuple(int(word) for word in line.split()[1 : STEAL + 2]), ()),
        first_line(proc / "pressure" / "cpu", lambda line: int(line.rpartition("total=")[2]), None),
        first_line(proc / "loadavg", lambda line: float(line.split()[0]), None),
    )


def first_line(file: Path, read: Callable[[str], Value], unknown: Value) -> Value:
    try:
        return read(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError, IndexError):
        return unknown


def machine_between(before: MachineReading, after: MachineReading) -> Machine:
    steal = waiting = None
    if len(before.ticks) == len(after.ticks) == STEAL + 1:
        passed = [later - earlier for earlier, later in zip(before.ticks, after.ticks, strict=True)]
        steal = max(0, passed[STEAL]) / sum(passed) if sum(passed) > 0 else None
    if before.waited_us is not None and after.waited_us is not None and after.at_ns > before.at_ns:
        waited_ns = (after.waited_us - before.waited_us) * MICROSECOND
        waiting = min(1.0, max(0.0, waited_ns / (after.at_ns - before.at_ns)))
    return Machine(os.cpu_count() or 1, steal, waiting, after.load)
