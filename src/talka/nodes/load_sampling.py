"""What is measured of a node, manager or worker, to find out whether it has too much to do."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import psutil

from talka.clock import boottime_ns, cpu_ns
from talka.control.clients.overload import DEFAULT, Level, Overload, OverloadConfig
from talka.nodes.runtime import Counts
from talka.units import SECOND

MEMORY_EVERY_NS: Final = 10 * SECOND
LIMITS_KEPT_FOR: Final = 30
"""Looks at the memory before limits of control groups are looked for again: that takes longer than all else."""
PROC: Final = Path("/proc/self")
CGROUPS: Final = Path("/sys/fs/cgroup")
LIMITS: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Names of files of the two versions of control groups."""


class LoadSampler:
    """Looks at this process at a steady pace."""

    def __init__(
        self,
        every_s: float,
        *,
        oldest_ns: Callable[[int], int],
        took_ns: Callable[[], int | None] = lambda: None,
        is_starting: Callable[[], bool] = lambda: False,
        config: OverloadConfig = DEFAULT,
    ) -> None:
        """`oldest_ns`: for how long the oldest waits that is to be done; `took_ns`: how long requests took that were
        answered since it was last asked."""
        self.overload = Overload(config, every_ns=round(every_s * SECOND))
        self._every_s = every_s
        self._oldest_ns = oldest_ns
        self._took_ns = took_ns
        self._is_starting = is_starting
        self.memory_percent = 0
        """Of the machine's memory or of this group's, as of the last look."""
        self._memory_at = 0
        self._memory_looks = 0
        self._limited: list[Path] = []

    async def run(
        self, on_sample: Callable[[int, Level], None], pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        with RunQueue() as queue:
            used_ns, at_ns = cpu_ns() + queue.waited_ns(), boottime_ns()
            while True:
                due = loop.time() + self._every_s
                is_starting = self._is_starting()
                await pause(self._every_s)
                now, wanted_ns = boottime_ns(), cpu_ns() + queue.waited_ns()
                cpu_percent = 100 * (wanted_ns - used_ns) // max(1, now - at_ns)
                used_ns, at_ns = wanted_ns, now
                level = self.overload.sample(
                    now,
                    lag_ns=max(0, round((loop.time() - due) * SECOND)),
                    queue_ns=self._oldest_ns(now),
                    latency_ns=self._took_ns(),
                    cpu_percent=cpu_percent,
                    memory_percent=self._memory(now),
                    is_starting=is_starting,
                )
                on_sample(now, level)

    def counts(self) -> Counts:
        """For metrics."""
        counts: Counts = {f"overload_{name}": value for name, value in self.overload.values.items()}
        signals = {name: int(level) for name, level in self.overload.levels.items()}
        return counts | {"overload_level": int(self.overload.level), "overload_signal_level": signals}

    def _memory(self, now: int) -> int:
        """It fills slowly, and to look takes as long as all else together."""
        if now >= self._memory_at:
            self._memory_at = now + MEMORY_EVERY_NS
            if self._memory_looks % LIMITS_KEPT_FOR == 0:
                self._limited = limited_groups()
            self._memory_looks += 1
            self.memory_percent = memory_percent(self._limited)
        return self.memory_percent


class RunQueue:
    """For how long the thread of the loop was ready to run and did not, by the kernel's count."""

    def __init__(self, file: Path = PROC / "schedstat") -> None:
        self._file = file
        self._descriptor = -1

    def __enter__(self) -> "RunQueue":
        try:
            self._descriptor = os.open(self._file, os.O_RDONLY)
        except OSError:
            pass  # not Linux, or a kernel that does not count it
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def waited_ns(self) -> int:
        if self._descriptor < 0:
            return 0
        try:
            return int(os.pread(self._descriptor, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0


def limited_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """Control groups around this process that have a limit of memory."""
    return [group for group in _groups(proc, cgroups) if any(_number(group / most) is not None for most, _ in LIMITS)]


def memory_percent(groups: list[Path]) -> int:
    """What is taken of the memory of the machine, or of one of these control groups, where that is more. What the
    kernel can give back at once is not taken."""
    machine = psutil.virtual_memory()
    taken = 100 * (machine.total - machine.available) // machine.total
    for folder in groups:
        for most, current in LIMITS:
            limit, used = _number(folder / most), _number(folder / current)
            if limit is not None and used is not None and 0 < limit < machine.total:
                taken = max(taken, 100 * max(0, used - _reclaimable(folder)) // limit)
    return min(100, taken)


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    """Those of this process, with all around them: any of them may have a limit."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        group = root / path.lstrip("/")
        found += [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return found


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # there is none, or it is "max"
        return None


def _reclaimable(folder: Path) -> int:
    """Files of which the memory is a copy."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split() for line in lines)
    return int(sizes.get("total_inactive_file", sizes.get("inactive_file", 0)))
