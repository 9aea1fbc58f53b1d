"""One life of one worker, as the cluster's leader keeps it: what it said of itself, its signals, its reserved cores.

Decision: docs/decisions/0033-one-lease.md.
"""

from collections import OrderedDict
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from talka.cluster.placement import choose
from talka.control.member.breaker import Breaker, BreakerState
from talka.units import SECOND
from talka.wire.jobs import Beat, WorkerFacts
from talka.wire.views import WorkerState

LIVES_LIMIT: Final = 8192
LOAD_LIMIT_PERCENT: Final = 95
STALLED_NS: Final = 10 * SECOND


class WorkerLife(msgspec.Struct, eq=False):
    """Kept by a `Fleet`, which alone changes it."""

    name: str
    boot: int
    folder: int
    source: str
    heard_at: int
    until: int
    """When its lease is surely over."""
    facts: WorkerFacts | None = None
    """None before the first beat."""
    number: int = -1
    """Of the latest beat."""
    was_heard: bool = True
    """By this process, at some time; False of one that is only expected."""
    is_silent: bool = False
    """Also of one that was given up for it, while it counts as silent beside those that are silent now."""
    is_lost: bool = False
    lost_at: int = 0
    cause: str = ""
    is_drained: bool = False
    """By order of the leader, whatever it says of itself."""
    is_stalled: bool = False
    """It has something to do, and its counters stand still."""
    is_blocked: bool = False
    """By the breaker."""
    reserved: dict[str, int] = {}
    """Cores of each job."""
    used: int = 0
    rival: int | None = None
    """The boot that last wanted the same name in vain."""
    _started: int | None = None
    """Iterations that its tasks have started; None: nothing runs there."""
    _advanced_at: int = 0
    _breaker: Breaker | None = None
    """Made at the first failure: most never have one."""
    _probe: str = ""
    """The job by which the breaker finds out whether it takes work again."""

    # What it is good for.

    @property
    def free(self) -> int:
        return 0 if self.facts is None or self.is_lost else max(0, self.facts.cores - self.used)

    @property
    def load_percent(self) -> int:
        """By which workers are compared: measured or reserved, whichever is more."""
        facts = self.facts
        return 0 if facts is None else max(facts.load_percent, 100 * self.used // facts.cores)

    @property
    def is_calm(self) -> bool:
        """Usable, and its processors are not busy."""
        return self.is_usable and self.facts is not None and self.facts.load_percent < LOAD_LIMIT_PERCENT

    @property
    def is_usable(self) -> bool:
        """It lives, would take work, and what it was given advances. A busy worker is not a sick one: it is taken
        where no other will do."""
        is_out = self.is_lost or self.is_silent or self.is_drained or self.is_blocked or self.is_stalled
        return not is_out and self.facts is not None and self.facts.state == "healthy"

    @property
    def state(self) -> WorkerState:
        if self.is_lost:
            return "offline"
        if self.facts is None:
            return "registering"
        return "draining" if self.is_drained else self.facts.state

    @property
    def reason(self) -> str:
        """Why it is in this state, for people."""
        if self.is_lost:
            return self.cause
        return "" if self.facts is None else self.facts.reason

    def silence(self, now: int, silent_ns: int, *, is_held: bool) -> str:
        """What is waited for before its work is given to others; empty while it is heard."""
        given = f"given to others in {max(0, self.until - now) / SECOND:.1f} s, unless {self.name} is heard before"
        if self.facts is None and self.was_heard:
            return f", which was not heard since this manager leads again: it is {given}"
        if self.facts is None:
            return (
                f", which was not heard since this manager started: {self.name} may go on without it, so it is {given}"
            )
        if now - self.heard_at < silent_ns:
            return ""
        silent = f", which is silent for {(now - self.heard_at) / SECOND:.1f} s"
        if is_held:
            return f"{silent}: too many workers are silent at once, so none is given up yet"
        return f"{silent}: it is {given}"

    # What happens to it.

    def heard(self, now: int, until: int, source: str, beat: Beat) -> None:
        """A beat that was overtaken by a later one refreshes the lease, because it is answered too, and no more."""
        self.is_lost = self.is_silent = False
        self.heard_at = now
        self.until = until
        if beat.number > self.number:
            self.number = beat.number
            self.facts = beat.facts
            self.folder = beat.facts.folder
            self.source = source
            running = [task.started for task in beat.running if task.state == "running"]
            before, self._started = self._started, sum(running) if running else None
            if self._started != before:  # one that falls is a new count
                self._advanced_at = now
            self.is_stalled = self._started is not None and now - self._advanced_at >= STALLED_NS
            if self._probe and any(t.job == self._probe and t.state in ("armed", "running") for t in beat.running):
                self._probe_succeeded(now)

    def lost(self, now: int, cause: str) -> None:
        self.is_lost = True
        self.is_silent = False
        self.lost_at = now
        self.cause = cause
        self.is_stalled = False
        self.reserved.clear()
        self.used = 0

    def reserve(self, now: int, job: str, cores: int) -> None:
        is_new = job not in self.reserved
        self.reserved[job] = self.reserved.get(job, 0) + cores
        self.used += cores
        if self._breaker is not None and self._breaker.state is not BreakerState.CLOSED:
            # This is the probe; nothing more until its outcome is told, or it is given up.
            self._breaker.allows(now)
            self.is_blocked = True
            self._probe = job if is_new else ""

    def release(self, job: str) -> None:
        self.used -= self.reserved.pop(job, 0)

    def failed(self, now: int) -> None:
        if self._breaker is None:
            self._breaker = Breaker()
        self._breaker.failed(now)
        self._probe = ""
        self.is_blocked = self._breaker.state is BreakerState.OPEN

    def _probe_succeeded(self, now: int) -> None:
        assert self._breaker is not None
        self._breaker.succeeded(now)
        self.is_blocked = False
        self._probe = ""

    def unblock(self, now: int) -> None:
        """The breaker has waited long enough: a probe may go there."""
        self.is_blocked = self.is_blocked and self.blocked_for_ns(now) > 0

    def blocked_for_ns(self, now: int) -> int:
        return 0 if self._breaker is None else self._breaker.retry_in_ns(now)


class HeardLives:
    """Which lives of workers this process has renewed the lease of, whenever it led. Ends with the process.

    A worker may go on without its only manager while that one's address refuses connections. Since this process listens
    none was refused: what it has heard is over with its lease. Only of others the grace has to be waited for.
    """

    def __init__(self, limit: int = LIVES_LIMIT) -> None:
        self._lives: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._limit = limit

    def add(self, name: str, boot: int) -> None:
        self._lives[name, boot] = None
        self._lives.move_to_end((name, boot))
        if len(self._lives) > self._limit:
            self._lives.popitem(last=False)

    def has(self, name: str, boot: int) -> bool:
        return (name, boot) in self._lives


def fewest(cores: int, candidates: Mapping[str, WorkerLife], rng: Random) -> list[tuple[str, int, int]]:
    """Name, boot and cores of as few candidates as can be; together they must have as many free.

    Whole workers, the largest first, until one can hold the rest: nothing needs fewer. Among those that serve equally
    well the less loaded of two drawn at random is taken.
    """
    by_free: dict[int, list[str]] = {}
    for name, life in candidates.items():
        by_free.setdefault(life.free, []).append(name)
    sizes = sorted(by_free, reverse=True)
    loads = {name: float(life.load_percent) for name, life in candidates.items()}
    chosen: list[tuple[str, int, int]] = []
    left = cores
    while True:
        largest = sizes[0]
        is_last = largest >= left
        alike = [name for size in sizes if size >= left for name in by_free[size]] if is_last else by_free[largest]
        found = choose(rng, alike, loads)
        assert found is not None
        chosen.append((found, candidates[found].boot, min(left, largest)))
        if is_last:
            return chosen
        left -= largest
        alike.remove(found)
        if not alike:
            del sizes[0]
