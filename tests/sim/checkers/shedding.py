"""What managers with too much to do leave undone, judged by an order of its own.

Whoever has a token is refused the first of these sooner than the later ones, and the last never; of what workers tell
statistics alone are refused, and only by a manager that is overloaded.
"""

from functools import partial
from typing import Any, Final

from talka.control.clients.overload import Level
from talka.control.manager import Manager
from talka.errors import Untrusted
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.wire.jobs import LogLines, Report
from talka.wire.shards import Totals, UnreadMetric, UnreadStep, decode_unread
from talka.wire.tasks import TaskProgress
from tests.sim.checkers.jobs import manager_on

SHED: Final = ("watch", "jobs", "workers", "cluster", "job", "order", "submit", "execute", "retry", "skip")
"""In this order."""
NEVER_SHED: Final = ("cancel", "result", "pause", "drain", "metrics")


class ShedInOrder(Observer):
    def __init__(self) -> None:
        self.shed: dict[str, int] = {}
        """How often, by operation."""
        self.passed = 0
        """Cancels, results and the like while their manager was overloaded."""
        self.refused = 0
        """Statistics."""
        self.taken = 0
        """All else that was told to an overloaded manager."""
        self._levels: dict[tuple[str, int], Level] = {}

    def set_level(self, host: Host, level: Level) -> None:
        self._levels[host.name, host.boot] = level

    def _level(self, host: Host) -> Level:
        return self._levels.get((host.name, host.boot), Level.NORMAL)

    def asked(self, world: World, host: Host, operation: str, *, is_shed: bool) -> None:
        level = self._level(host)
        if is_shed:
            self.shed[operation] = self.shed.get(operation, 0) + 1
        if is_shed and (operation in NEVER_SHED or level < Level.STRESSED):
            world.violate("shed", f"{host.name}, which is {level.name}, refuses {operation}")
        if not is_shed and operation in SHED and level is Level.OVERLOADED:
            world.violate("shed", f"{host.name}, which is {level.name}, takes {operation} beside what must pass")
        if not is_shed and operation in SHED[:4] and level is Level.STRESSED:
            world.violate("shed", f"{host.name}, which is {level.name}, takes {operation} before what comes after it")
        if is_shed and operation in SHED[4:] and level is Level.STRESSED:
            world.violate("shed", f"{host.name}, which is {level.name}, refuses {operation} too early")
        self.passed += operation in NEVER_SHED and level is Level.OVERLOADED

    def on_boot(self, world: World, host: Host) -> None:
        manager: Any = manager_on(host)
        if manager is not None:
            manager.on_message = partial(self._heard, world, host, manager, manager.on_message)

    def _heard(
        self, world: World, host: Host, manager: Manager, hear: Any, now: int, sender: str, message: Any, *more: Any
    ) -> Any:
        before = manager.shedding.statistics_refused
        effects = hear(now, sender, message, *more)
        is_refused = manager.shedding.statistics_refused > before
        is_overloaded = self._level(host) is Level.OVERLOADED
        self.refused += is_refused
        self.taken += is_overloaded and not is_refused
        if is_refused != (is_overloaded and _is_statistics(message)):
            what = "refuses" if is_refused else "takes"
            told = f"{host.name}, which is {self._level(host).name}, {what} {type(message).__name__} of {sender}"
            world.violate("shed", told)
        return effects


def _is_statistics(message: Any) -> bool:
    if isinstance(message, TaskProgress):
        return not message.more_time
    if isinstance(message, LogLines):
        return True
    if not isinstance(message, Report):
        return False
    try:
        last = decode_unread(message.contents[-1])
    except Untrusted:
        return True
    if isinstance(last, Totals):
        return not last.asked and not last.provided
    return isinstance(last, UnreadStep | UnreadMetric)
