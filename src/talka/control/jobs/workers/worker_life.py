"""One life of one worker, as the cluster's leader keeps it: what it said of itself, its signals, its reserved cores.

Decision: docs/decisions/0033-one-lease.md.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

from talka.cluster.placement import choose
from talka.control.jobs.effects import WorkerJudged
from talka.control.jobs.workers.standing import Decision, Standing, WorkerFinding
from talka.control.member.breaker import Breaker, BreakerState
from talka.control.tasks.quarantine import Denied
from talka.control.tasks.worker_room import LOAD_JOBS_HAVE_ALL, CoresForTasks
from talka.units import MILLISECOND
from talka.wire.jobs import Beat, QuietCore, TaskLoad, WorkerFacts
from talka.wire.machines import WorkerMachine
from talka.wire.views import OVERLOADED, DecisionName, WorkerState
from talka.work.durations import tenths_text

LIVES_LIMIT: Final = 8192
QUIET_SHOWN: Final = 3
"""Of the cores that do not turn, in one sentence; the API has them all."""
LOAD_LIMIT_PERCENT: Final = 95
CALM_PERCENT: Final = 85
"""A worker that was busy is calm again below this."""
NUMBER: Final = re.compile(r"\b[0-9]\w*")
"""In what a worker says of itself: with each of its looks it may be another."""


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
    registered_at: int = 0
    """When its first beat was heard."""
    machine: WorkerMachine | None = None
    """As the latest beat said that told it."""
    machine_number: int = -1
    """Of that beat."""
    was_heard: bool = True
    """By this process, at some time; False of one that is only expected."""
    is_silent: bool = False
    """Also of one that was given up for it, while it counts as silent beside those that are silent now."""
    is_spared: bool = False
    """Silent, and not given up for it yet: so are too many others."""
    is_lost: bool = False
    lost_at: int = 0
    cause: str = ""
    is_drained: bool = False
    """By order of the leader, whatever it says of itself."""
    drained_by: str = ""
    is_undrained: bool = False
    """It was ordered to take work again, and not to drain since."""
    leaves: bool = False
    """It was told to end."""
    is_blocked: bool = False
    """By the breaker."""
    reserved: dict[str, int] = {}
    """Cores of each job."""
    used: int = 0
    held: int = 0
    """Cores that get no new tasks, for the load job that is next."""
    held_for: str = ""
    tasks: TaskLoad = TaskLoad()
    """As of its last beat."""
    busy_cores: int = 0
    """Those that tasks keep busy, as far as it is known."""
    quiet: tuple[QuietCore, ...] = ()
    """Of its cores those that do not turn their event loop."""
    denied: Denied | None = None
    """That it gets no tasks, and why."""
    is_busy: bool = False
    """Its processors are."""
    rival: int | None = None
    """The boot that last wanted the same name in vain."""
    _standing: Standing = msgspec.field(default_factory=Standing)
    _breaker: Breaker | None = None
    """Made at the first failure: most never have one."""
    _probe: str = ""
    """The job by which the breaker finds out whether it takes work again."""

    # What it is good for.

    @property
    def cores(self) -> int:
        """That are there."""
        return 0 if self.facts is None or self.is_lost else self.facts.cores

    @property
    def unreserved(self) -> int:
        """Cores that no load job has."""
        return max(0, self.cores - self.used)

    @property
    def free(self) -> int:
        """Cores that nobody has: no load job, and no tasks."""
        return max(0, self.cores - self.used - self.busy_cores)

    @property
    def for_tasks(self) -> CoresForTasks:
        if self.is_silent:
            return CoresForTasks(self.name, 0, "nothing is heard of it, and it is given nothing new until it is")
        why_none = LOAD_JOBS_HAVE_ALL
        if self.held and self.unreserved:
            why_none = f"the cores that load jobs leave of it are held for job {self.held_for}, which is next"
        return CoresForTasks(self.name, max(0, self.unreserved - self.held), why_none)

    @property
    def load_percent(self) -> int:
        """By which workers are compared: measured or taken, whichever is more."""
        facts = self.facts
        return 0 if facts is None else max(facts.load_percent, 100 * (self.used + self.busy_cores) // facts.cores)

    @property
    def is_calm(self) -> bool:
        """Usable, and its processors are not busy."""
        return self.is_usable and not self.is_busy and not self.is_overloaded

    @property
    def is_overloaded(self) -> bool:
        """It has more to do than it can, by what it measures. That is no sign that it does not live."""
        return self.facts is not None and self.facts.overload >= OVERLOADED

    @property
    def is_usable(self) -> bool:
        """It lives and would take work. A busy worker is not a sick one: it is taken where no other will do. Nor is one
        of which a core hangs: its other cores do not."""
        is_out = self.is_lost or self.is_silent or self.is_drained or self.is_blocked
        return not is_out and self.facts is not None and self.facts.state == "healthy"

    @property
    def may_be_usable(self) -> bool:
        """It is, or may be at any moment: when it is heard again, or its breaker has waited long enough."""
        is_out = self.is_lost or self.is_drained
        return not is_out and self.facts is not None and self.facts.state == "healthy"

    @property
    def state(self) -> WorkerState:
        if self.is_lost:
            return "offline"
        if self.facts is None:
            return "registering"
        return "draining" if self.is_drained else self.facts.state

    @property
    def is_undraining(self) -> bool:
        """It is to take work again, and says that it does not: it has not heard of that, or after it of the order
        before."""
        return self.is_undrained and not self.leaves and self.facts is not None and self.facts.state == "draining"

    @property
    def reason(self) -> str:
        """Why it is in this state, for people."""
        return "; ".join(finding.reason for finding in self._found().values() if finding.reason)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """As of the last review."""
        return self._standing.decisions

    def review(self, now: int) -> list[WorkerJudged]:
        """Note what is so with it, and tell what has changed."""
        return self._standing.review(now, self.name, self._found())

    def _found(self) -> dict[DecisionName, WorkerFinding]:
        if self.is_lost:
            return {"lost": WorkerFinding(self.cause, self.lost_at)}
        found: dict[DecisionName, WorkerFinding] = {}
        facts = self.facts
        if self.is_silent:
            spared = "; too many workers are silent at once, so none is given up yet" if self.is_spared else ""
            text = f"nothing is heard of it, and it is given nothing new{spared}"
            found["silent"] = WorkerFinding(text, self.heard_at)
        if facts is None:
            return found or {"registering": WorkerFinding("it was not heard since this manager leads", self.heard_at)}
        if self.is_drained or facts.state == "draining":
            by = f" by {self.drained_by}" if self.drained_by else ""
            ordered = f"it was told to drain{by}, and takes nothing new"
            told = facts.reason or "it takes nothing new"
            if self.is_undraining:
                told = "it was told to take new work again, and has not heard of it yet"
            found["draining"] = WorkerFinding(ordered if self.is_drained else told)
        if facts.state == "degraded":
            found["degraded"] = WorkerFinding(facts.reason, key=NUMBER.sub("", facts.reason))
        if self.is_blocked:
            again = "the next one is the test whether it takes them again" if self._probe else "one is tried after 10 s"
            found["blocked"] = WorkerFinding(f"attempts could not be placed there again and again: {again}")
        if self.denied is not None:
            what, why = self.denied
            found[what] = WorkerFinding(why)
        for state in ("stuck", "stalled"):
            quiet = [core for core in self.quiet if core.state == state]
            if quiet:
                since = self.heard_at - max(core.quiet_ms for core in quiet) * MILLISECOND
                text = "; ".join(map(quiet_text, quiet[:QUIET_SHOWN]))
                found[state] = WorkerFinding(text, since, str(sorted([core.pid for core in quiet])))
        if self.held:
            found["held"] = WorkerFinding(
                f"{self.held} of its cores get no new tasks: job {self.held_for} is to have them", key=self.held_for
            )
        if self.is_busy:
            found["busy"] = WorkerFinding(
                f"its processors are busy ({facts.load_percent} %): load tests go to others first", key=""
            )
        if self.is_overloaded:
            found["overloaded"] = WorkerFinding(
                "it has more to do than it can: load tests and tasks go to others first"
            )
        return found

    def silence(self, now: int, silent_ns: int, *, is_held: bool) -> str:
        """What is waited for before its work is given to others; empty while it is heard."""
        given = f"given to others in {tenths_text(self.until - now)}, unless {self.name} is heard before"
        if self.facts is None and self.was_heard:
            return f", which was not heard since this manager leads again: it is {given}"
        if self.facts is None:
            return (
                f", which was not heard since this manager started: {self.name} may go on without it, so it is {given}"
            )
        if now - self.heard_at < silent_ns:
            return ""
        silent = f", which is silent for {tenths_text(now - self.heard_at)}"
        if is_held:
            return f"{silent}: too many workers are silent at once, so none is given up yet"
        return f"{silent}: it is {given}"

    # What happens to it.

    def heard(self, now: int, until: int, source: str, beat: Beat) -> None:
        """A beat that was overtaken by a later one refreshes the lease, because it is answered too, and no more."""
        self.is_lost = self.is_silent = False
        self.heard_at = now
        self.until = until
        if self.facts is None:
            self.registered_at = now
        if beat.facts.machine is not None and beat.number > self.machine_number:
            # Also of one that was overtaken: it is answered, and what it told is not told again.
            self.machine, self.machine_number = beat.facts.machine, beat.number
        if beat.number > self.number:
            self.number = beat.number
            self.facts = beat.facts
            self.folder = beat.facts.folder
            self.source = source
            self.quiet, self.tasks, self.leaves = beat.quiet, beat.tasks, beat.leaves
            self.busy_cores = beat.tasks.cores
            self.is_busy = beat.facts.load_percent >= (CALM_PERCENT if self.is_busy else LOAD_LIMIT_PERCENT)
            if self._probe and any(t.job == self._probe and t.state in ("armed", "running") for t in beat.running):
                self._probe_succeeded(now)

    def lost(self, now: int, cause: str) -> None:
        self.is_lost = True
        self.is_silent = False
        self.lost_at = now
        self.cause = cause
        self.reserved.clear()
        self.used = self.held = self.busy_cores = 0
        self.quiet, self.tasks = (), TaskLoad()

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

    def shrink(self, job: str, cores: int) -> None:
        """The job keeps so many."""
        self.release(job)
        self.used += cores
        if cores:
            self.reserved[job] = cores

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

    @property
    def breaker_state(self) -> BreakerState:
        return BreakerState.CLOSED if self._breaker is None else self._breaker.state

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


def quiet_text(core: QuietCore) -> str:
    """For people, in a line."""
    where = next((line.strip() for line in core.stack.splitlines() if line.lstrip().startswith("File ")), "")
    names = ", ".join(core.workflows)
    at = f", in {where}" if where else ""
    return f"core {core.pid} of job {core.job} ({names}) does not turn its event loop{at}; the other cores are usable"


def fewest(
    cores: int, candidates: Mapping[str, WorkerLife], rng: Random, room: Callable[[WorkerLife], int]
) -> list[tuple[str, int, int]]:
    """Name, boot and cores of as few candidates as can be; together they must have as much `room`.

    Whole workers, the largest first, until one can hold the rest: nothing needs fewer. Among those that serve equally
    well the less loaded of two drawn at random is taken.
    """
    by_free: dict[int, list[str]] = {}
    for name, life in candidates.items():
        by_free.setdefault(room(life), []).append(name)
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
