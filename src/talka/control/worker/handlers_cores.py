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
    """At most `limit` cores, and one more: the first of the worker's own is kept, and one attempt may always have a
    core of its own. Cores of bundles count among them: where there are too many, the first of the worker's own rests.

    Whatever changes a core's stage, or whose it is, ends with `review`.
    """

    def __init__(self, limit: int, idle_ns: int = IDLE_NS) -> None:
        self._idle_ns = idle_ns
        self.limit = limit
        """Cores that what else runs on this worker leaves."""
        self.started = 0
        """Cores started since the worker began; the newest has this number."""
        self.died = 0
        """Cores that ended otherwise than by order."""
        self.spent = 0
        """Cores that were given nothing more, for what an attempt left behind."""
        self.next_look_at = NEVER
        self.open: dict[str, list[CoreState]] = {}
        """Ready for attempts that share a core, by the code they have loaded."""
        self.first: CoreState | None = None
        """Of the worker's own; it is kept."""
        self.shared = 0
        """Cores that load or are ready, and are not for one attempt. One that rests is not counted."""
        self.lone = 0
        """Cores that load or are ready, for one attempt each."""
        self.loading: dict[str, int] = {}
        """Those of the shared ones that load, by code."""
        self.of: dict[str, int] = {}
        """How many load or are ready, by code."""
        self.by_number: dict[int, CoreState] = {}
        """Those whose processes are not gone."""

    def __iter__(self) -> Iterator[CoreState]:
        return iter(list(self.by_number.values()))

    @property
    def count(self) -> int:
        """Those that load or are ready."""
        return self.shared + self.lone

    def draw(self, now: int, *, is_bounded: bool, code: str = "") -> CoreState:
        """A new one, which loads."""
        self.started += 1
        core = CoreState(self.started, now + LOAD_LIMIT_NS, is_bounded, is_alone=is_bounded, code=code)
        self.by_number[core.number] = core
        self.look_at(core.due_at)
        return core

    def idle(self, now: int, core: CoreState) -> None:
        """It has nothing to do from now on."""
        core.idle_at = now
        self.look_at(now + self._idle_ns)

    def end(self, now: int, core: CoreState) -> EndHandlers:
        core.stage, core.due_at = CoreStage.ENDING, now + END_LIMIT_NS
        self.look_at(core.due_at)
        self.review()
        return EndHandlers(core.number, hard=False)

    def kill(self, now: int, core: CoreState, reason: KillReason, *, shows_stack: bool = False) -> EndHandlers:
        core.stage, core.due_at, core.reason = CoreStage.KILLED, now + DEATH_LIMIT_NS, reason
        self.look_at(core.due_at)
        self.review()
        return EndHandlers(core.number, hard=True, shows_stack=shows_stack)

    def review(self) -> None:
        """The shared ones beyond the limit take nothing more; the first is kept in any case."""
        self.lone = self.shared = 0
        self.open, self.loading, self.of = {}, {}, {}
        shared: list[CoreState] = []
        for core in self.by_number.values():
            if core.stage > CoreStage.READY or core.is_spent:
                continue
            self.of[core.code] = self.of.get(core.code, 0) + 1
            if core.is_alone:
                self.lone += 1
            else:
                shared.append(core)
        own = [core for core in shared if not core.code]
        first = self.first = next((core for core in own if core.stage is CoreStage.READY), own[0] if own else None)
        is_mixed = len(own) < len(shared)
        if first is not None and is_mixed and not first.tasks:  # others may have its place
            shared.remove(first)
            shared.append(first)
        for core in shared:
            is_beyond = self.shared >= self.limit
            core.is_surplus = self.shared >= max(1, self.limit) and not (is_mixed and core is first)
            core.is_resting = is_beyond and is_mixed and core is first and not core.tasks
            if core.stage is CoreStage.LOADING:
                self.loading[core.code] = self.loading.get(core.code, 0) + 1
            elif not is_beyond and not core.is_leaving:
                self.open.setdefault(core.code, []).append(core)
            self.shared += not core.is_resting

    def look_at(self, at: int) -> None:
        self.next_look_at = min(self.next_look_at, at)

    def look_after(self, now: int) -> tuple[list[EndHandlers], list[int]]:
        """Ends those that idle, kills those whose patience is over. Also numbers of those that were killed long ago."""
        orders: list[EndHandlers] = []
        silent: list[int] = []
        for core in self:
            if core.stage is CoreStage.READY:
                if not core.tasks and now >= core.idle_at + self._idle_ns and core is not self.first:
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
            elif core.stage is CoreStage.READY and not core.tasks and core is not self.first:
                self.look_at(core.idle_at + self._idle_ns)
        return orders, silent
