"""The processes of a worker that run handlers: which load, are ready, end, and how many may be given what.

See docs/decisions/0022-who-runs-a-task.md and 0023-a-core-that-dies.md.
"""

from collections.abc import Iterator
from typing import Final

from talka.control.worker.effects import EndHandlers
from talka.control.worker.handlers_attempt import CoreStage, CoreState, KillReason
from talka.units import NEVER, SECOND

LOAD_LIMIT_NS: Final = 60 * SECOND
END_LIMIT_NS: Final = 5 * SECOND
"""A core with nothing to do that was asked to end is killed after this."""
DEATH_LIMIT_NS: Final = 10 * SECOND
"""A core that was killed has ended after this, whatever is heard of it."""
IDLE_NS: Final = 60 * SECOND
"""A core that has nothing to do for so long ends, unless it is the first."""


class HandlerCores:
    """At most `limit` cores, and one more: the first is kept, and one attempt may always have a core of its own.

    Whatever changes a core's stage, or whose it is, ends with `review`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Cores that what else runs on this worker leaves."""
        self.started = 0
        """Cores started since the worker began; the newest has this number."""
        self.died = 0
        """Cores that ended otherwise than by order."""
        self.spent = 0
        """Cores that were given nothing more, for what an attempt left behind."""
        self.next_look_at = NEVER
        self.open: list[CoreState] = []
        """Ready for attempts that share a core."""
        self.shared = 0
        """Cores that load or are ready, and are not for one attempt."""
        self.lone = 0
        """Cores that load or are ready, for one attempt each."""
        self.loading = 0
        """Those of the shared ones that load."""
        self.by_number: dict[int, CoreState] = {}
        """Those whose processes are not gone."""

    def __iter__(self) -> Iterator[CoreState]:
        return iter(list(self.by_number.values()))

    @property
    def count(self) -> int:
        """Those that load or are ready."""
        return self.shared + self.lone

    def draw(self, now: int, *, is_bounded: bool) -> CoreState:
        """A new one, which loads."""
        self.started += 1
        core = CoreState(self.started, now + LOAD_LIMIT_NS, is_bounded, is_alone=is_bounded)
        self.by_number[core.number] = core
        self.look_at(core.due_at)
        return core

    def idle(self, now: int, core: CoreState) -> None:
        """It has nothing to do from now on."""
        core.idle_at = now
        self.look_at(now + IDLE_NS)

    def end(self, now: int, core: CoreState) -> EndHandlers:
        core.stage, core.due_at = CoreStage.ENDING, now + END_LIMIT_NS
        self.look_at(core.due_at)
        self.review()
        return EndHandlers(core.number, hard=False)

    def kill(self, now: int, core: CoreState, reason: KillReason) -> EndHandlers:
        core.stage, core.due_at, core.reason = CoreStage.KILLED, now + DEATH_LIMIT_NS, reason
        self.look_at(core.due_at)
        self.review()
        return EndHandlers(core.number, hard=True)

    def review(self) -> None:
        """The shared ones beyond the limit take nothing more; the first is kept in any case."""
        shared = 0
        self.lone = self.loading = 0
        self.open = []
        for core in self.by_number.values():
            if core.stage > CoreStage.READY or core.is_spent:
                continue
            if core.is_alone:
                self.lone += 1
                continue
            core.is_surplus = shared >= max(1, self.limit)
            if core.stage is CoreStage.LOADING:
                self.loading += 1
            elif shared < self.limit:
                self.open.append(core)
            shared += 1
        self.shared = shared

    def look_at(self, at: int) -> None:
        self.next_look_at = min(self.next_look_at, at)

    def look_after(self, now: int) -> tuple[list[EndHandlers], list[int]]:
        """Ends those that idle, kills those whose patience is over. Also numbers of those that were killed long ago."""
        orders: list[EndHandlers] = []
        silent: list[int] = []
        for core in self:
            if core.stage is CoreStage.READY:
                if not core.tasks and now >= core.idle_at + IDLE_NS and not self._is_first(core):
                    orders.append(self.end(now, core))
            elif now < core.due_at:
                continue
            elif core.stage is CoreStage.KILLED:
                silent.append(core.number)
            else:
                orders.append(self.kill(now, core, "load" if core.stage is CoreStage.LOADING else "neighbour"))
        self.next_look_at = NEVER
        for core in self.by_number.values():
            if core.stage is not CoreStage.READY and core.number not in silent:
                self.look_at(core.due_at)
            elif core.stage is CoreStage.READY and not core.tasks and not self._is_first(core):
                self.look_at(core.idle_at + IDLE_NS)
        return orders, silent

    def _is_first(self, core: CoreState) -> bool:
        return bool(self.open) and self.open[0] is core or self.shared == 1
