"""How overloaded this node is, by what is measured of it.

How late the loop is, how old the oldest request is and how long requests take show that work waits. Each is judged by
bounds that hold everywhere and by how far it is above what is usual here. The bounds see a load that has become usual
and is too much all the same. What is far above the usual, or rises so fast that it soon reaches the next bound, counts
as one level more than the bounds say, and no more: a node that is idle most of the time is not overloaded because it
has something to do.

A processor that is full does not show that anything waits: a load test on the same machine fills it, and that is what
it is for. So it counts as one level more than what waits does, at the most, and only once it is full for a while: one
long turn of the loop fills it too. Memory that is full ends processes, however
fast they answer: it counts by its bounds alone. The worst of all counts.

Decision: docs/decisions/0060-what-is-left-undone-under-load.md.
"""

from collections import deque
from enum import IntEnum
from typing import Final

import msgspec

from talka.cluster.placement import Ewma
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND


class Level(IntEnum):
    NORMAL = 0
    BUSY = 1
    STRESSED = 2
    OVERLOADED = 3


Bounds = tuple[int, int, int]
"""From where on a value means busy, stressed and overloaded."""


class OverloadConfig(msgspec.Struct, frozen=True, kw_only=True):
    late_ns: Bounds = (200 * MILLISECOND, 500 * MILLISECOND, 2 * SECOND)
    """How late the loop may be."""
    queue_ns: Bounds = (500 * MILLISECOND, 2 * SECOND, 5 * SECOND)
    """How old the oldest may be that waits to be done."""
    latency_ns: Bounds = (500 * MILLISECOND, SECOND, 3 * SECOND)
    """How long a request may take. It may need the disks of a majority, so that more is usual than of the loop."""
    cpu_percent: Bounds = (85, 95, 99)
    """Of one core: what this process used, and for how long it was kept waiting for a processor."""
    memory_percent: Bounds = (85, 95, 98)
    """Of the machine, or of its control group where that has a limit: what cannot be had any more."""
    above_percent: Bounds = (20, 50, 100)
    """How far above the baseline."""
    late_floor_ns: int = 50 * MILLISECOND
    """The baseline counts as no lower than this: what is small is small, however far above an even smaller one."""
    latency_floor_ns: int = 250 * MILLISECOND
    baseline_half_life_ns: int = 60 * SECOND
    """Slow, so that a load of minutes still stands out."""
    warm_up: int = 10
    """Samples before the baseline means anything."""
    recent: int = 10
    """Samples by which latency, its trend and the use of a processor are judged."""
    recent_ns: int = 5 * SECOND
    """Older ones do not count: nobody may have asked since."""
    least_recent: int = 3
    """One slow request says little."""
    ahead_ns: int = 2 * SECOND
    """How far a trend is followed."""
    calm: int = 5
    """Samples in a row that must be lower before the level falls."""
    retry_most_ns: int = 10 * SECOND
    """The longest that anybody is told to wait."""

    def __post_init__(self) -> None:
        triples = (
            *(self.late_ns, self.queue_ns, self.latency_ns),
            *(self.cpu_percent, self.memory_percent, self.above_percent),
        )
        for bounds in triples:
            if not 0 < bounds[0] <= bounds[1] <= bounds[2]:
                raise Invalid(f"bounds of overload must be above 0 and must not fall, unlike {bounds}")
        least = (
            *(self.late_floor_ns, self.latency_floor_ns, self.baseline_half_life_ns, self.warm_up, self.calm),
            *(self.recent_ns, self.least_recent, self.ahead_ns, self.retry_most_ns),
        )
        if min(least) < 1 or self.recent < self.least_recent:
            raise Invalid(
                "floors, times, warm-up and calm of an overload must be at least 1, and recent at least least_recent"
            )


DEFAULT: Final = OverloadConfig()


class Overload:
    """Call `sample` at a steady pace, and ask `level`.

    It rises at once and falls only after `calm` lower samples in a row, to the highest of those.
    """

    def __init__(self, config: OverloadConfig = DEFAULT, *, every_ns: int = SECOND // 10) -> None:
        """`every_ns`: the pace of the samples."""
        self._config = config
        self._every_ns = every_ns
        self._late = _Usual(config.late_ns, config.late_floor_ns, config)
        self._latency = _Usual(config.latency_ns, config.latency_floor_ns, config)
        self._recent: deque[tuple[int, int]] = deque(maxlen=config.recent)
        """When, and how long requests took then."""
        self._cpu: deque[int] = deque([0] * config.recent, config.recent)
        self._calm = 0
        self._highest = Level.NORMAL
        """Of the samples that were lower than the level."""
        self._since = 0
        self.level = Level.NORMAL
        self.levels: dict[str, Level] = {}
        """What each signal said by itself in the last sample."""
        self.values: dict[str, float] = {}
        """Of the last sample, as they are told: in seconds, percent, and seconds more a second."""

    def sample(
        self,
        now: int,
        *,
        lag_ns: int,
        queue_ns: int = 0,
        latency_ns: int | None = None,
        cpu_percent: int = 0,
        memory_percent: int = 0,
        is_starting: bool = False,
    ) -> Level:
        """The level with this sample: how late the loop ran, how old the oldest is that waits, how long requests took
        that were answered since the last sample (None: none was), this process's use of a processor, and how much of
        the memory is taken. `is_starting`: the node was reading what it begins with, and that is no load that clients
        could be spared."""
        if is_starting:
            return self.level
        config = self._config
        if latency_ns is not None:
            self._recent.append((now, latency_ns))
        self._cpu.append(cpu_percent)
        cpu_percent = sum(self._cpu) // config.recent
        took_ns, rise = self._latency_now(now)
        late = self._late.judge(now, lag_ns)
        latency = Level.NORMAL
        if len(self._recent) >= config.least_recent:
            latency = self._latency.judge(now, took_ns, soon=took_ns + round(rise * config.ahead_ns))
        queue = _level(queue_ns, config.queue_ns)
        waits = max(late, latency, queue)
        cpu = min(_level(cpu_percent, config.cpu_percent), Level(min(waits + 1, Level.OVERLOADED)))
        memory = _level(memory_percent, config.memory_percent)
        self.levels = {"late": late, "queue": queue, "latency": latency, "cpu": cpu, "memory": memory}
        self.values = {
            "late_seconds": lag_ns / SECOND,
            "queue_seconds": queue_ns / SECOND,
            "latency_seconds": took_ns / SECOND,
            "latency_rise_ratio": round(rise, 3),
            "cpu_percent": cpu_percent,
            "memory_percent": memory_percent,
        }
        return self._take(now, max(waits, cpu, memory))

    def retry_after_ns(self, now: int) -> int:
        """How long whoever is left waiting is told to wait: until the level may have fallen, longer the higher it is
        and the longer it has lasted."""
        falls_ns = (self._config.calm - self._calm) * self._every_ns
        lasted_ns = (now - self._since) // 4 if self.level else 0
        return min(self._config.retry_most_ns, max(falls_ns, lasted_ns) * max(1, self.level - 1))

    def _take(self, now: int, found: Level) -> Level:
        if found >= self.level:
            self._rise(now, found)
            return found
        self._calm += 1
        self._highest = max(self._highest, found)
        if self._calm >= self._config.calm:
            self._rise(now, self._highest)
        return self.level

    def _rise(self, now: int, level: Level) -> None:
        if level != self.level:
            self._since = now
        self.level = level
        self._calm = 0
        self._highest = Level.NORMAL

    def _latency_now(self, now: int) -> tuple[int, float]:
        """How long requests take now, and how much longer with each nanosecond that passes."""
        recent = self._recent
        while recent and now - recent[0][0] > self._config.recent_ns:
            recent.popleft()
        if not recent:
            return 0, 0.0
        return sum(took_ns for _, took_ns in recent) // len(recent), slope(recent)


def slope(points: "deque[tuple[int, int]]") -> float:
    """Of the straight line that fits best: by how much the second of each pair grows while the first grows by one."""
    base, number = points[0][0], len(points)
    mean_at = sum(at - base for at, _ in points) / number
    mean = sum(value for _, value in points) / number
    spread = sum((at - base - mean_at) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    return sum((at - base - mean_at) * (value - mean) for at, value in points) / spread


class _Usual:
    """One signal, by its bounds and by what is usual of it."""

    def __init__(self, bounds: Bounds, floor_ns: int, config: OverloadConfig) -> None:
        self._bounds = bounds
        self._floor_ns = floor_ns
        self._config = config
        self._baseline = Ewma(config.baseline_half_life_ns)
        self._samples = 0

    def judge(self, now: int, value: int, *, soon: int = 0) -> Level:
        """`soon`: what it will be before long, where that is known."""
        found = _level(value, self._bounds)
        is_more = _level(soon, self._bounds) > found
        if self._samples >= self._config.warm_up:
            usual = max(self._baseline.value, self._floor_ns)
            is_more |= _level((value - usual) / usual * 100, self._config.above_percent) > found
        self._baseline.add(now, value)
        self._samples += 1
        return Level(found + 1) if is_more else found


def _level(value: float, bounds: Bounds) -> Level:
    if value < bounds[0]:  # nearly always, many times a second
        return Level.NORMAL
    return Level(sum(value >= bound for bound in bounds))
