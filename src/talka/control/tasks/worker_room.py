"""How much a worker may be given: a part of a core for each task, by how long tasks of its handler take.

A worker has room as long as what it was given fills less than its cores. Short tasks are given in hundreds, so that no
core waits for the next, long ones are kept back for whoever is free first. A task that must run alone fills a whole
core, and finds room while fewer of them than cores run, whatever else does: a stream of short ones would never leave it
a whole core. Tasks that carry much are counted by their bytes as well.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, NamedTuple, TypeAlias

import msgspec

from talka.wire.jobs import WorkerFacts
from talka.wire.views import OVERLOADED

AHEAD_NS: Final = 20_000_000
"""So much work lies ready for a core: longer than it takes to hear of an end and to hand the next task."""
FEWEST_PER_CORE: Final = 2
MOST_PER_CORE: Final = 1024
SIDE_BY_SIDE: Final = 32
"""Of handlers that are no plain functions at least: while one waits for something, others go on."""
UNKNOWN_PER_CORE: Final = 8
"""As long as no task of a handler has ended."""
CORE: Final = 1 << 20
"""What fills a core, in parts."""
NARROW: Final = CORE // SIDE_BY_SIDE
"""So many of what fills no more than this run in one core."""
DEGRADED: Final = 1 << 60
"""A handicap that no load makes up for: a worker that is degraded is the last choice."""
OVERLOADED_BY: Final = CORE // UNKNOWN_PER_CORE - 1
"""The handicap of an overloaded worker: it comes after those with cores to spare, and before those where a task would
wait for another one. It may be overloaded for a moment, and tasks that were given out do not move."""
LOAD_JOBS_HAVE_ALL: Final = "load jobs have all of its cores"


class DispatchLimits(msgspec.Struct, frozen=True):
    """What a dispatcher gives to one worker, and remembers."""

    in_flight: int = 16_384
    """Attempts on one worker, which takes no more."""
    core_kib: int = 8 * 1024
    """KiB of configs and inputs that a worker has at a time for each of its cores: as much as waits side by side."""
    worker_kib: int = 128 * 1024
    """And for all of them together. Whatever tasks carry, a core has one to run and one to follow it."""
    handlers: int = 10_000
    """Handlers whose lengths are remembered."""
    pools: int = 256
    """Beyond, pools that nothing waits for are dropped."""
    log: int = 4096
    """Entries of the log of workers that got room, beside four for each worker."""


DISPATCH_LIMITS: Final = DispatchLimits()


class CoresForTasks(NamedTuple):
    """On how many cores of a worker tasks may begin."""

    name: str
    cores: int
    why_none: str = LOAD_JOBS_HAVE_ALL
    """Where there are none."""


class DispatchWorker(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of a worker here."""

    name: str
    handlers: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    """Those of them of which a core runs one at a time."""
    capabilities: tuple[str, ...] = ()
    memory_bytes: int = 0
    """0: not known, and then enough."""
    cores: int = 1
    """Those on which tasks may begin."""
    why_none: str = LOAD_JOBS_HAVE_ALL
    """Where there are none."""
    state: str = "healthy"
    """Or degraded, or draining."""
    accepts_code: bool = False
    """It runs handlers that travel with jobs."""
    is_loading: bool = False
    """It loads its handlers: which it has is not known yet."""
    is_overloaded: bool = False
    problem: str = ""
    """Of one without handlers, why it is degraded: their file may be broken."""

    @classmethod
    def of(cls, facts: WorkerFacts, cores: CoresForTasks, state: str) -> "DispatchWorker":
        return cls(
            name=cores.name,
            handlers=facts.handlers,
            plain=facts.plain,
            capabilities=facts.capabilities,
            memory_bytes=facts.memory_bytes,
            cores=cores.cores,
            why_none=cores.why_none,
            state=state,
            accepts_code=facts.accepts_code,
            is_loading=facts.is_loading,
            is_overloaded=facts.overload >= OVERLOADED,
            problem=facts.reason if facts.state == "degraded" and not facts.handlers else "",
        )


class WorkerRoom:
    __slots__ = (
        "alone",
        "bounds",
        "cores",
        "facts",
        "full",
        "full_kib",
        "handicap",
        "is_here",
        "kib",
        "load",
        "logged",
        "lot",
        "partitions",
        "patient",
        "running",
        "wide",
    )

    def __init__(self, facts: DispatchWorker, lot: int, bounds: DispatchLimits) -> None:
        self.lot = lot
        self.bounds = bounds
        self.is_here = False
        self.partitions: dict[int, None] = {}
        """Those whose tasks it may be given: where none is left, it is not here."""
        self.load = 0
        """In parts of a core."""
        self.kib = 0
        """What the attempts that it has took to hand."""
        self.running = 0
        self.alone = 0
        self.wide = 0
        """Attempts that keep a core busy, each its own as long as there are any."""
        self.logged = -1
        """Its last place in the log of those that got room."""
        self.set(facts)

    def set(self, facts: DispatchWorker) -> None:
        self.facts = facts
        self.cores = facts.cores
        self.full = facts.cores * CORE
        self.full_kib = min(facts.cores * self.bounds.core_kib, self.bounds.worker_kib)
        self.patient = frozenset(facts.handlers) - frozenset(facts.plain)
        """Handlers of which many wait side by side in one core."""
        self.handicap = DEGRADED if facts.state == "degraded" else OVERLOADED_BY if facts.is_overloaded else 0

    def rank(self) -> int:
        """Of those with room the lowest is chosen."""
        return self.load // self.cores + self.handicap

    def has_room(self, alone: bool) -> bool:
        if self.running >= self.bounds.in_flight:
            return False
        if self.kib >= self.full_kib and self.running >= FEWEST_PER_CORE * self.cores:
            return False
        # Not "and the task fits": a long one would never find room between short ones.
        return self.alone < self.cores if alone else self.load < self.full


@dataclass(slots=True, eq=False)
class WorkerPool:
    """The workers that can run what a group has, by rank. Those without room are not in the heap until they get some.

    Ranks in the heap may be wrong in either direction and are set right at the top; whoever got room since the heap was
    last looked at is in the log behind `cursor`, and enters again.
    """

    alone: bool
    numbers: "count[int]"
    members: dict[WorkerRoom, None] = field(default_factory=dict)
    heap: list[tuple[int, int, WorkerRoom]] = field(default_factory=list)
    version: int = -1
    cursor: int = 0

    def fill(self) -> None:
        alone = self.alone
        self.heap = [(worker.rank(), next(self.numbers), worker) for worker in self.members if worker.has_room(alone)]
        heapify(self.heap)

    def enter(self, worker: WorkerRoom) -> None:
        heappush(self.heap, (worker.rank(), next(self.numbers), worker))
        if len(self.heap) > 2 * len(self.members) + 16:
            self.fill()

    def best(self) -> WorkerRoom | None:
        heap, alone = self.heap, self.alone
        while heap:
            rank, _, worker = heap[0]
            if not worker.has_room(alone):
                heappop(heap)
                continue
            present = worker.rank()
            if present == rank:
                return worker
            heapreplace(heap, (present, next(self.numbers), worker))
        return None

    def loaded(self, worker: WorkerRoom) -> None:
        """The best one was given something: it comes after those of its rank."""
        heapreplace(self.heap, (worker.rank(), next(self.numbers), worker))


@dataclass(slots=True, eq=False)
class HandlerLength:
    running: int = 0
    length_ns: int = -1
    """Of its tasks, the later ones counting more; -1: not known."""
    costed_ns: int = -1
    cost: int = CORE // UNKNOWN_PER_CORE

    def part(self) -> int:
        """What one of its tasks fills of a core."""
        if self.costed_ns != self.length_ns:
            self.costed_ns = length_ns = self.length_ns
            per_core = (AHEAD_NS + length_ns // 2) // length_ns if length_ns else MOST_PER_CORE
            # Rounded up: as many as are meant fill the core.
            self.cost = -(-CORE // min(max(per_core, FEWEST_PER_CORE), MOST_PER_CORE))
        return self.cost


Flight: TypeAlias = tuple[WorkerRoom, HandlerLength, int, bool, int, int]
"""Worker, handler, part of a core, alone, KiB, and the number under which limits are held; 0: none."""


def add(worker: WorkerRoom, handler: HandlerLength, part: int, alone: bool, count: int) -> None:
    """So many tasks of a source more, or fewer, of which each fills so much of a core."""
    worker.load += part * count
    worker.running += count
    worker.wide += count * (part > NARROW)
    handler.running += count
    if alone:
        worker.alone += count
