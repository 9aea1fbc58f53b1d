"""What else goes on on this machine, read from the kernel once before a shard and once after it. What it does not tell
is not known."""

import os
from pathlib import Path
from typing import Final

import msgspec

from talka.clock import monotonic_ns
from talka.stats.machine import Machine
from talka.units import MICROSECOND

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
    return MachineReading(monotonic_ns(), ticks_of(proc), waited_of(proc), load_of(proc))


def ticks_of(proc: Path) -> tuple[int, ...]:
    try:
        words = (proc / "stat").read_text().split("\n", 1)[0].split()
        return tuple(int(word) for word in words[1 : STEAL + 2])
    except (OSError, ValueError, IndexError):
        return ()


def waited_of(proc: Path) -> int | None:
    try:
        first = (proc / "pressure" / "cpu").read_text().split("\n", 1)[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError):
        return None


def load_of(proc: Path) -> float | None:
    try:
        return float((proc / "loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def machine_between(before: MachineReading, after: MachineReading) -> Machine:
    steal = waiting = None
    if len(before.ticks) == len(after.ticks) == STEAL + 1:
        passed = [later - earlier for earlier, later in zip(before.ticks, after.ticks, strict=True)]
        steal = max(0, passed[STEAL]) / sum(passed) if sum(passed) > 0 else None
    if before.waited_us is not None and after.waited_us is not None and after.at_ns > before.at_ns:
        waited_ns = (after.waited_us - before.waited_us) * MICROSECOND
        waiting = min(1.0, max(0.0, waited_ns / (after.at_ns - before.at_ns)))
    return Machine(os.cpu_count() or 1, steal, waiting, after.load)
