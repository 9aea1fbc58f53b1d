"""Whether this node is overloaded, and what it then leaves undone.

A value is judged by bounds that hold everywhere, and by how far it is above what is usual here. The bounds see a load
that has become usual and is too much all the same. What is far above the usual counts as one level more than the bounds
say, and no more: a node that is idle most of the time is not overloaded because it has something to do.
"""

from enum import IntEnum
from typing import Final

import msgspec

from talka.cluster.placement import Ewma
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND


class Level(IntEnum):
    HEALTHY = 0
    BUSY = 1
    STRESSED = 2
    OVERLOADED = 3


class OverloadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Each triple says from where on a value means busy, stressed and overloaded."""

    late_ns: tuple[int, int, int] = (200 * MILLISECOND, 500 * MILLISECOND, 2 * SECOND)
    """How late the loop may be."""
    above_percent: tuple[int, int, int] = (20, 50, 100)
    """How far above the baseline."""
    floor_ns: int = 50 * MILLISECOND
    """The baseline counts as no lower than this: what is small is small, however far above an even smaller one."""
    cpu_percent: int = 90
    """Of one core, used by this process. A loop that hardly rests is busy; only lateness says that it is more."""
    baseline_half_life_ns: int = 60 * SECOND
    """Slow, so that a load of minutes still stands out."""
    warm_up: int = 10
    """Samples before the baseline means anything."""
    calm: int = 5
    """Samples in a row that must be lower before the level falls."""

    def __post_init__(self) -> None:
        for bounds in (self.late_ns, self.above_percent):
            if not 0 < bounds[0] <= bounds[1] <= bounds[2]:
                raise Invalid(f"bounds of overload must be above 0 and must not fall, unlike {bounds}")
        if min(self.floor_ns, self.cpu_percent, self.baseline_half_life_ns, self.warm_up, self.calm) < 1:
            raise Invalid("floor, cpu, half-life, warm-up and calm of an overload must be at least 1")


DEFAULT: Final = OverloadConfig()


class Overload:
    """Call `sample` at a steady pace, say ten times a second, and ask `level`.

    It rises at once and falls only after `calm` lower samples in a row, to the highest of those.
    """

    def __init__(self, config: OverloadConfig = DEFAULT) -> None:
        self._config = config
        self._baseline = Ewma(config.baseline_half_life_ns)
        self._samples = 0
        self._calm = 0
        self._highest = Level.HEALTHY
        """Of the samples that were lower than the level."""
        self.level = Level.HEALTHY

    @property
    def samples_to_fall(self) -> int:
        """So many must be lower in a row before the level can fall."""
        return self._config.calm - self._calm

    def sample(self, now: int, *, lag_ns: int, cpu_percent: int = 0, is_starting: bool = False) -> Level:
        """The level with this sample: how late the loop ran, and this process's use of a processor. `is_starting`: the
        node was reading what it begins with, and that is no load that clients could be spared."""
        if is_starting:
            return self.level
        config = self._config
        found = Level.BUSY if cpu_percent >= config.cpu_percent else Level.HEALTHY
        found = max(found, self._judge(lag_ns))
        self._baseline.add(now, lag_ns)
        self._samples += 1
        if found >= self.level:
            self.level = found
            self._calm = 0
            self._highest = Level.HEALTHY
            return found
        self._calm += 1
        self._highest = max(self._highest, found)
        if self._calm >= config.calm:
            self.level = self._highest
            self._calm = 0
            self._highest = Level.HEALTHY
        return self.level

    def _judge(self, lag_ns: int) -> Level:
        config = self._config
        found = _level(lag_ns, config.late_ns)
        if self._samples < config.warm_up:
            return found
        usual = max(self._baseline.value, config.floor_ns)
        above = _level((lag_ns - usual) / usual * 100, config.above_percent)
        return Level(found + 1) if above > found else found


def _level(value: float, bounds: tuple[int, int, int]) -> Level:
    return Level(sum(value >= bound for bound in bounds))


SHED_FROM: Final = {
    "submit": Level.OVERLOADED,
    "submit_dag": Level.OVERLOADED,
    "bulk": Level.OVERLOADED,
    "submit_frames": Level.OVERLOADED,
    "put_bundle": Level.OVERLOADED,
    "jobs": Level.STRESSED,
    "workers": Level.STRESSED,
    "cluster": Level.STRESSED,
    "watch": Level.STRESSED,
}
"""From which level on an operation of the API is left undone; what is not named here is always done."""
SHED_OF_ALL: Final = frozenset({"watch"})
"""Those of them that are also left undone for whoever is not counted: what is told to watchers costs time again and
again. Who asks one thing after the other asks no more than is answered."""


def is_shed(operation: str, level: Level, *, is_counted: bool = True) -> bool:
    """`is_counted` is False of the one user of a machine, where no tokens are used."""
    if operation not in SHED_FROM or not (is_counted or operation in SHED_OF_ALL):
        return False
    return level >= SHED_FROM[operation]


REPORT_LEAST_MS: Final = 50
REPORT_MOST_MS: Final = 1000
REPORT_MS: Final[dict[Level, int]] = {
    Level.HEALTHY: REPORT_LEAST_MS,
    Level.BUSY: 200,
    Level.STRESSED: 500,
    Level.OVERLOADED: REPORT_MOST_MS,
}


def report_interval_ms(level: Level, workers: int) -> int:
    """How often each of so many workers should report: at most a thousand reports a second in all, fewer under load."""
    return min(REPORT_MOST_MS, max(REPORT_MS[level], workers))
