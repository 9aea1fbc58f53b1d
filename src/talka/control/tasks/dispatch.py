"""Which ready task goes to which worker: fair between jobs, to the least loaded worker that can run it.

A worker has room as long as what it was given fills less than its cores. A task fills a part of one that depends on how
long tasks of its handler take: short ones are given in hundreds, so that no core waits for the next, long ones are kept
back for whoever is free first. A task that must run alone fills a whole core, and finds room while fewer of them than
cores run, whatever else does: a stream of short ones would never leave it a whole core. Tasks that carry much are
counted by their bytes as well.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0042-a-source-gives-ranges.md,
docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.control.tasks.known_workers import KnownWorkers
from talka.control.tasks.limits import Limits
from talka.control.tasks.quarantine import Quarantine
from talka.control.tasks.ready_queues import GroupKey, Queue, QueueGroup, ReadyQueues, SourceLane, group_key
from talka.control.tasks.source import DrawnRange, Source
from talka.control.tasks.task import DagTask, Needs
from talka.units import NEVER, SECOND
from talka.wire.jobs import WorkerFacts
from talka.wire.task_views import QueuesView, QueueView, Reason
from talka.work.dags.records import TaskKey
from talka.work.durations import format_duration

AHEAD_NS: Final = 20_000_000
"""So much work lies ready for a core: longer than it takes to hear of an end and to hand the next task."""
FEWEST_PER_CORE: Final = 2
MOST_PER_CORE: Final = 256
SIDE_BY_SIDE: Final = 32
"""Of handlers that are no plain functions at least: while one waits for something, others go on."""
UNKNOWN_PER_CORE: Final = 8
"""As long as no task of a handler has ended."""
CORE: Final = 1 << 20
"""What fills a core, in parts."""
NARROW: Final = CORE // SIDE_BY_SIDE
"""So many of what fills no more than this run in one core."""
DEGRADED: Final = 1 << 60
"""A handicap that no load makes up for: a degraded worker is the last choice."""
SMOOTHING_SHIFT: Final = 3
"""A task counts an eighth in the length of its handler's tasks."""
NAMES_SHOWN: Final = 10
DIGEST_LENGTH: Final = 64
"""Of a bundle. No name of a handler is longer."""


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

Refusal: TypeAlias = tuple[str, str]
"""Constraint and text, as in `Reason`."""


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
    """Those that load jobs do not have."""
    state: str = "healthy"
    """Or degraded, or draining."""
    accepts_code: bool = False
    """It runs handlers that travel with jobs."""

    @classmethod
    def of(cls, name: str, facts: WorkerFacts, cores: int, state: str) -> "DispatchWorker":
        return cls(
            name=name,
            handlers=facts.handlers,
            plain=facts.plain,
            capabilities=facts.capabilities,
            memory_bytes=facts.memory_bytes,
            cores=cores,
            state=state,
            accepts_code=facts.accepts_code,
        )


class _Worker:
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
        self.handicap = DEGRADED if facts.state == "degraded" else 0

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
class _Pool:
    """The workers that can run what a group has, by rank. Those without room are not in the heap until they get some.

    Ranks in the heap may be wrong in either direction and are set right at the top; whoever got room since the heap was
    last looked at is in the log behind `cursor`, and enters again.
    """

    alone: bool
    numbers: "count[int]"
    members: dict[_Worker, None] = field(default_factory=dict)
    heap: list[tuple[int, int, _Worker]] = field(default_factory=list)
    version: int = -1
    cursor: int = 0

    def fill(self) -> None:
        alone = self.alone
        self.heap = [(worker.rank(), next(self.numbers), worker) for worker in self.members if worker.has_room(alone)]
        heapify(self.heap)

    def enter(self, worker: _Worker) -> None:
        heappush(self.heap, (worker.rank(), next(self.numbers), worker))
        if len(self.heap) > 2 * len(self.members) + 16:
            self.fill()

    def best(self) -> _Worker | None:
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

    def loaded(self, worker: _Worker) -> None:
        """The best one was given something: it comes after those of its rank."""
        heapreplace(self.heap, (worker.rank(), next(self.numbers), worker))


@dataclass(slots=True, eq=False)
class _Handler:
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


_Flight: TypeAlias = tuple[_Worker, _Handler, int, bool, int, int]
"""Worker, handler, part of a core, alone, KiB, and the number under which limits are held; 0: none."""


_RangeFlight: TypeAlias = tuple[_Worker, _Handler, int, bool, list[int]]
"""As `_Flight`, with the numbers under which limits are held for those that have not ended; empty: none are."""


class Dispatcher:
    """`put` tasks that are ready, `offer` sources that have some, `assign` after each change and at `next_tick_at`, and
    tell of each attempt how it `ended`.

    One for all partitions of a store that a process keeps: a worker's room and a limit are given out once.
    """

    def __init__(self, rng: Random, bounds: DispatchLimits = DISPATCH_LIMITS) -> None:
        self._rng = rng
        self._bounds = bounds
        self._limits = Limits()
        self._ready = ReadyQueues(self._limits)
        self._lone: DagTask | None = None
        """The only task that is ready, before it has a place in the queues. Most likely it is given out at once, as
        each link of a chain: then it needs none."""
        self._quarantine = Quarantine()
        self.known = KnownWorkers()
        self._workers: dict[str, _Worker] = {}
        self._away: dict[str, _Worker] = {}
        """Not here, but attempts on them were not given up yet."""
        self._handlers: dict[str, _Handler] = {}
        self._flights: dict[DagTask, _Flight] = {}
        self._range_flights: dict[DrawnRange, _RangeFlight] = {}
        self.drawn: list[DrawnRange] = []
        """What `assign` has drawn from sources since this was last emptied."""
        self._pools: dict[GroupKey, _Pool] = {}
        self._numbers = count(1)
        self._holds = 0
        self._version = 0
        """Of what is known of workers. Pools of another one are made anew."""
        self._log: list[_Worker] = []
        """Workers that got room, in order; entry i has the number `_log_base` + i."""
        self._log_base = 0
        self._log_read = 0
        """The highest number a pool has read up to: a worker that is behind it in the log need not be entered again."""
        self._bad: dict[str, int] = {}
        """Workers that are kept in quarantine, and until when."""
        self._looked = -1
        """The version for which that was found."""
        self._now = 0
        self._again_at = NEVER
        """When there may be more to give out than the last time's limit."""

    # -- workers

    def set_worker(self, now: int, facts: DispatchWorker, partition: int = 0) -> None:
        """A worker is there, or is another than before, and obeys in this partition. Cheap when nothing changed."""
        worker = self._workers.get(facts.name)
        if worker is not None and worker.facts == facts and partition in worker.partitions:
            return
        if worker is None:
            worker = self._away.pop(facts.name, None) or self._new_worker(facts)
            worker.is_here = True
            self._workers[facts.name] = worker
        worker.partitions[partition] = None
        worker.set(facts)
        self.known.here(facts)
        self._version += 1

    def remove_worker(self, now: int, name: str, partition: int = 0) -> None:
        """It is given nothing more of this partition, and is not there any more where that was the last. Its attempts
        are counted until they are told to have ended."""
        worker = self._workers.get(name)
        if worker is None or partition not in worker.partitions:
            return
        del worker.partitions[partition]
        self._version += 1
        if worker.partitions:
            return
        del self._workers[name]
        self.known.left(now, name)
        worker.is_here = False
        if worker.running:
            self._away[name] = worker

    def drop(self, now: int, partition: int, tasks: Iterable[DagTask]) -> None:
        """A partition is kept by somebody else: these were all its tasks, whether they wait or run."""
        for name in list(self._workers):
            self.remove_worker(now, name, partition)
        for task in tasks:
            self.ended(now, task, None)
            self._queued.remove(now, (task,))

    def died(self, now: int, task: TaskKey, worker: str) -> None:
        """A process of the worker of that name died with this task alone in it."""
        if self._quarantine.died(now, task, worker):
            self._version += 1

    def running(self, name: str) -> int:
        """Attempts that were given to this worker and have not ended."""
        worker = self._workers.get(name) or self._away.get(name)
        return 0 if worker is None else worker.running

    def set_cores(self, name: str, cores: int) -> None:
        """So many cores of a worker are for tasks from now on; what runs goes on."""
        worker = self._workers.get(name)
        if worker is not None and worker.facts.cores != cores:
            worker.set(msgspec.structs.replace(worker.facts, cores=cores))
            self._version += 1

    def busy_cores(self, name: str) -> int:
        """Cores of this worker that its attempts keep busy, whatever cores are for tasks."""
        known = self._workers.get(name) or self._away.get(name)
        return 0 if known is None else known.wide + (known.running > known.wide)

    def has_ready(self) -> bool:  # that some worker has the handler of
        return _have_handler(self._queued.queues.values(), self._workers.values())

    # -- tasks

    def put(self, now: int, tasks: Sequence[DagTask]) -> None:
        """These are ready. An attempt of theirs that was under way is over."""
        self._now = now
        flights = self._flights
        for task in tasks:
            if task in flights:
                self.ended(now, task, None)
        if len(tasks) == 1 and self._lone is None and not self._ready.queues:
            needs = tasks[0].needs
            if needs is not None and not needs.limits:
                self._lone = tasks[0]
                return
        self._queued.put(now, tasks)

    @property
    def _queued(self) -> ReadyQueues:
        """With every task that is ready."""
        lone, self._lone = self._lone, None
        if lone is not None:
            self._ready.put(self._now, (lone,))
        return self._ready

    @property
    def ready(self) -> int:
        return len(self._ready) + (self._lone is not None)

    def remove(self, tasks: Iterable[DagTask]) -> None:
        self._queued.remove(self._now, tasks)

    def assign(self, now: int, limit: int = 4096) -> list[tuple[DagTask, str]]:
        """Tasks that start now and the names of their workers; ranges of sources are added to `drawn`. All hold their
        part of a worker and their limits. No more than `limit` together."""
        if not self._ready.queues:
            self._now, self._again_at = now, NEVER
            self._limits.freed.clear()  # nobody waits for them
            alone = self._assign_lone(now)
            if alone or self._lone is None:
                return alone
        ready = self._queued
        self._wake(now)
        limits = self._limits
        flights = self._flights
        given: list[tuple[DagTask, str]] = []
        best, take, load = ready.best, ready.take, self._load
        pools: dict[QueueGroup, _Pool] = {}
        passed: dict[SourceLane, None] = {}
        passed_at = 0
        while len(given) < limit:
            queue = best()
            if queue is None:
                break
            pool = pools.get(queue.group)
            if pool is None:
                pool = pools[queue.group] = self._pool(now, queue.group.key)
            worker = pool.best()
            if worker is None:
                ready.park_group(queue.group)
                continue
            needs = queue.needs
            lane = queue.next
            assert lane is not None, "the best queue has one"
            hold = 0
            if needs.limits:
                refused = limits.refusal(needs.limits, now)
                if refused is not None:
                    constraint, _, key = refused
                    ready.park(queue, key, limits.free_at(key, now) if constraint == "rate" else NEVER)
                    continue
                if type(lane) is not SourceLane:
                    self._holds -= 1  # below all fences
                    hold = self._holds
                    limits.take(hold, needs.limits, now)
            if type(lane) is SourceLane:
                if lane.debt:
                    if passed_at != len(given) - limit:  # somebody was given something
                        passed_at = len(given) - limit
                        passed = {}
                    if self._passes(lane, passed):
                        continue
                limit -= self._draw(now, lane, worker, pool, limit - len(given))
                continue
            task = take(now, queue, lane)
            kib = handed_kib(task) if task.after else task.kib
            flights[task] = load(worker, needs, kib, hold)
            pool.loaded(worker)
            given.append((task, worker.facts.name))
        self._again_at = now if len(given) >= limit else NEVER
        return given

    def _assign_lone(self, now: int) -> list[tuple[DagTask, str]]:
        """As the queues would, in which nothing is."""
        task = self._lone
        if task is None or task.needs is None:
            return []
        needs = task.needs
        self._look(now)
        pool = self._pool(now, group_key(needs))
        worker = pool.best()
        if worker is None:
            return []
        self._lone = None
        kib = handed_kib(task) if task.after else task.kib
        self._flights[task] = self._load(worker, needs, kib, 0)
        pool.loaded(worker)
        return [(task, worker.facts.name)]

    def took(self, task: DagTask, fence: int) -> None:
        """The fence of an attempt that was assigned."""
        worker, handler, part, alone, kib, hold = self._flights[task]
        if hold:
            self._limits.rename(hold, fence)
            self._flights[task] = (worker, handler, part, alone, kib, fence)

    def restore(self, now: int, task: DagTask) -> None:
        """An attempt under way that an earlier life of the manager gave out: it holds what it held. Tell it again once
        its needs are known, if they were not."""
        needs = task.needs or task.job.needs_of(task.handler)
        hold = 0
        if needs.limits:
            hold = task.fence
            self._limits.take(hold, needs.limits, now, is_start=False)
        flight = self._flights.get(task)
        if flight is not None:
            self._flights[task] = (*flight[:-1], hold)
            return
        known = self._known(task.worker.partition("#")[0])
        self._flights[task] = self._load(known, needs, 0, hold)  # it was handed long ago

    def ended(self, now: int, task: DagTask, took_ns: int | None) -> None:
        """An attempt is over. `took_ns`: how long its handler ran, if it did to its end."""
        flight = self._flights.pop(task, None)
        if flight is None:
            return
        worker, handler, part, alone, kib, hold = flight
        worker.load -= part
        worker.kib -= kib
        worker.running -= 1
        worker.wide -= part > NARROW
        handler.running -= 1
        if alone:
            worker.alone -= 1
        if hold:
            self._limits.give(hold, now)
        self._over(worker, handler, took_ns)

    # -- sources

    def offer(self, now: int, source: Source) -> None:
        """It has tasks ready, or others than before, or none any more."""
        self._now = now
        self._queued.offer(now, source)

    def withdraw(self, now: int, source: Source) -> None:
        """It is over. What was drawn from it is not."""
        self._queued.withdraw(now, source)

    def restore_range(self, now: int, source: Source, first: int, count: int, worker: str) -> DrawnRange:
        """Attempts under way that an earlier life of the manager gave out: they hold what they held."""
        flight = self._load(self._known(worker), source.needs, 0, 0)
        return self._drew(now, source, first, count, flight, is_start=False)

    def ended_range(self, now: int, drawn: DrawnRange, count: int, took_ns: int | None) -> None:
        """So many of these attempts are over. `took_ns`: how long a handler ran, if it did to its end."""
        flight = self._range_flights.get(drawn)
        if flight is None:
            return
        worker, handler, part, alone, holds = flight
        count = min(count, drawn.left)
        drawn.left -= count
        if not drawn.left:
            del self._range_flights[drawn]
        _add(worker, handler, part, alone, -count)
        if holds:
            for hold in holds[drawn.left :]:
                self._limits.give(hold, now)
            del holds[drawn.left :]
        self._over(worker, handler, took_ns)

    @property
    def next_tick_at(self) -> int:
        """When `assign` may give out what it could not before, if nothing else happens."""
        return min(self._ready.next_due_at, self._quarantine.next_end_at, self._again_at)

    # -- what people ask

    def refusal(self, worker: DispatchWorker, needs: Needs, now: int) -> Refusal | None:
        """The first thing that stands in the way of a worker running such a task, limits apart."""
        known = self._workers.get(worker.name)
        refused = self._unfit(worker, needs, now)
        if refused is not None or known is None or known.has_room(needs.alone):
            return refused
        tasks = "task" if known.running == 1 else "tasks"
        return "slots", f"it has all it may have at a time: {known.running} {tasks} on {_cores(worker.cores)}"

    def why(self, task: DagTask, now: int) -> list[Reason]:
        """For each worker the first thing that keeps this ready task from running there."""
        return self.reasons(task.needs or task.job.needs_of(task.handler), now)

    def reasons(self, needs: Needs, now: int) -> list[Reason]:
        """For each worker the first thing that keeps a ready task with such needs from running there."""
        workers = {name: worker for name, worker in self._workers.items() if needs.partition in worker.partitions}
        if not workers:
            text = f'there is no worker: start one that has the handler "{needs.handler}"'
            if needs.bundle:
                text = "there is no worker: start one with --accept-code"
            return [Reason("", "offline", text)]
        limited = self._limits.refusal(needs.limits, now)
        reasons = []
        for name, worker in sorted(workers.items()):
            refused = self.refusal(worker.facts, needs, now)
            if refused is None and limited is not None:
                refused = limited[:2]
            reasons.append(Reason(name, *(refused or ("", "it can run here: it is given out when its turn comes"))))
        return reasons

    def position(self, job: object) -> int | None:
        """About how many ready tasks come before the first one of the job; None: it has none, or nobody can run it."""
        now = self._now
        ready = self._queued
        groups = [group for group in ready.groups.values() if self._pool(now, group.key).members]
        return ready.ahead_of(job, groups)

    def queues(self, now: int) -> QueuesView:
        ready, waiting = Counter[str](), Counter[str]()
        oldest_at: dict[str, int] = {}
        for queue in self._queued.queues.values():
            handler, tasks = queue.needs.handler, queue.ready
            ready[handler] += tasks
            oldest_at[handler] = min(oldest_at.get(handler, now), queue.oldest_at)
            waiting.update(dict.fromkeys([limit.key for limit in queue.needs.limits], tasks))
        running = Counter[str]()
        for name, known in self._handlers.items():
            if known.running:
                running[name if len(name) <= DIGEST_LENGTH else name[DIGEST_LENGTH + 1 :]] += known.running
        workers = Counter([name for worker in self._workers.values() for name in worker.facts.handlers])
        views = [
            QueueView(name, ready[name], running[name], workers[name], (now - oldest_at.get(name, now)) / SECOND)
            for name in sorted({**ready, **running, **workers})
        ]
        return QueuesView(views, self._limits.views(waiting))

    def quarantined(self, now: int) -> dict[str, int]:
        """Workers that are there and get no tasks because they are bad, and until when."""
        self._look(now)
        return {name: until for name, until in self._bad.items() if name in self._workers}

    # -- how it is done

    def _unfit(self, facts: DispatchWorker, needs: Needs, now: int) -> Refusal | None:
        """What stands in the way as long as nothing new is known of the worker."""
        if facts.state == "draining":
            return "draining", "it is draining: it takes no new tasks"
        until = self._bad.get(facts.name)
        if until is not None:
            text = f"it is in quarantine for another {_about(until - now)}: tasks died on it that died nowhere else"
            return "quarantine", text
        if needs.bundle and not facts.accepts_code:
            return "code", "it takes no code (start it with --accept-code)"
        if not needs.bundle and needs.handler not in facts.handlers:
            return "handler", self._no_handler(facts, needs.handler)
        missing = [capability for capability in needs.capabilities if capability not in facts.capabilities]
        if missing:
            has = _listed(facts.capabilities) or "none"
            return "capability", f"it lacks the capability {_listed(missing)}; it has {has}"
        if 0 < facts.memory_bytes < needs.min_memory_bytes:
            text = f"it has {facts.memory_bytes:,} bytes of memory, and {needs.min_memory_bytes:,} are asked for"
            return "memory", text
        if facts.cores < 1:
            return "cores", "load jobs have all of its cores"
        return None

    def _no_handler(self, facts: DispatchWorker, handler: str) -> str:
        everywhere: dict[str, None] = {}
        for worker in self._workers.values():
            everywhere.update(dict.fromkeys(worker.facts.handlers))
        if handler in everywhere:
            return f'it does not have the handler "{handler}"; it has {_listed(sorted(facts.handlers)) or "none"}'
        if not everywhere:
            return f'no worker has the handler "{handler}", nor any other: start one with a file of handlers'
        return f'no worker has the handler "{handler}": there are {_listed(sorted(everywhere))}'

    def _look(self, now: int) -> None:
        """Who is in quarantine. A bad worker is better than none: one that all others depend on is not kept in it."""
        if self._quarantine.expire(now):
            self._version += 1
        if self._looked == self._version:
            return
        self._looked = self._version
        bad = self._quarantine.until
        for name, worker in self._workers.items():
            if name not in bad and worker.facts.state != "draining":
                self._bad = dict(bad)
                return
        self._bad = {}

    def _wake(self, now: int) -> None:
        """Let those take part again that waited for what has come."""
        self._now = now
        self._look(now)
        ready = self._ready
        freed = self._limits.freed
        if freed:
            for key in freed:
                ready.wake_key(key)
            freed.clear()
        ready.wake_due(now)
        for group in list(ready.parked_groups):
            if self._pool(now, group.key).heap:
                ready.wake_group(group)
        if len(self._log) > 4 * len(self._workers) + self._bounds.log:
            self._log_base += len(self._log)
            self._log.clear()

    def _new_worker(self, facts: DispatchWorker) -> _Worker:
        return _Worker(facts, self._rng.getrandbits(32), self._bounds)

    def _pool(self, now: int, key: GroupKey) -> _Pool:
        """As it is now."""
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= self._bounds.pools:
                self._pools = {key: pool for key, pool in self._pools.items() if key in self._ready.groups}
            pool = self._pools[key] = _Pool(key[3], self._numbers)
        end = self._log_base + len(self._log)
        if pool.version != self._version or pool.cursor < self._log_base:
            pool.version = self._version
            needs = Needs(*key[:3], alone=key[3], partition=key[4], bundle=key[5])
            members = [
                worker
                for worker in self._workers.values()
                if needs.partition in worker.partitions and self._unfit(worker.facts, needs, now) is None
            ]
            members.sort(key=attrgetter("lot"))
            pool.members = dict.fromkeys(members)
            pool.fill()
        elif pool.cursor < end:
            for number in range(pool.cursor, end):
                worker = self._log[number - self._log_base]
                if worker.logged == number and worker in pool.members:
                    pool.enter(worker)
        pool.cursor = self._log_read = end
        return pool

    def _load(self, worker: _Worker, needs: Needs, kib: int, hold: int) -> _Flight:
        name, alone = needs.handler, needs.alone
        if needs.bundle:  # what one job brings may be of any length, whatever others call so
            name = f"{needs.bundle}/{name}"
        handler = self._handlers.get(name)
        if handler is None:
            if len(self._handlers) >= self._bounds.handlers:
                self._handlers = {name: handler for name, handler in self._handlers.items() if handler.running}
            handler = self._handlers[name] = _Handler()
        part = CORE if alone else handler.part()
        if part > NARROW and not alone and (not needs.is_plain or name in worker.patient):
            part = NARROW
        worker.load += part
        worker.kib += kib
        worker.running += 1
        worker.alone += alone
        worker.wide += part > NARROW
        handler.running += 1
        return worker, handler, part, alone, kib, hold

    def _known(self, name: str) -> _Worker:
        """A worker that has attempts, here or not."""
        known = self._workers.get(name) or self._away.get(name)
        if known is None:
            known = self._away[name] = self._new_worker(DispatchWorker(name=name))
        return known

    def _over(self, worker: _Worker, handler: _Handler, took_ns: int | None) -> None:
        """An attempt on this worker is over."""
        if took_ns is not None:
            length_ns = handler.length_ns
            handler.length_ns = took_ns if length_ns < 0 else length_ns + (took_ns - length_ns >> SMOOTHING_SHIFT)
        if worker.logged < self._log_read:
            worker.logged = self._log_base + len(self._log)
            self._log.append(worker)
        if not worker.running and not worker.is_here:
            self._away.pop(worker.facts.name, None)

    def _passes(self, lane: SourceLane, passed: dict[SourceLane, None]) -> bool:
        """Whether a lane with a debt lets others go first. `passed`: those that did since anybody was given any."""
        if lane in passed:
            if all([one.queue is lane.queue for one in passed]):
                # Nobody else is there, and these take turns: only what they owe each other counts.
                least = min([one.debt for one in passed])
                for one in passed:
                    one.debt -= least
            passed.clear()
            if not lane.debt:
                return False
        passed[lane] = None
        self._ready.pass_turn(lane)
        return True

    def _draw(self, now: int, lane: SourceLane, worker: _Worker, pool: _Pool, limit: int) -> int:
        """Give a worker that has room tasks of the source whose turn it is: how many."""
        source, queue = lane.source, lane.queue
        needs = source.needs
        flight = self._load(worker, needs, 0, 0)  # of the first one
        _, _, part, alone, _, _ = flight
        more = worker.cores - worker.alone if alone else -((worker.load - worker.full) // part)
        more = min(more, self._bounds.in_flight - worker.running)
        rivals = len(queue.lanes) + len(queue.group.queues) - 1
        # What is left of the room is for others whose turn it is, what is left of the tasks for other workers.
        most = min(-(-(1 + max(more, 0)) // rivals), -(-lane.count // len(pool.heap)), limit)
        if needs.limits:
            most = self._limits.room(needs.limits, now, most)
        first, count = source.draw(now, most)
        assert 0 < count <= most, f"a source was asked for {most} tasks at the most, and gave {count}"
        self.drawn.append(self._drew(now, source, first, count, flight))
        self._ready.gave(now, lane, count)
        pool.loaded(worker)
        return count

    def _drew(
        self, now: int, source: Source, first: int, count: int, flight: _Flight, *, is_start: bool = True
    ) -> DrawnRange:
        """`flight`: of the first one, which is counted already."""
        worker, handler, part, alone, _, _ = flight
        _add(worker, handler, part, alone, count - 1)
        holds: list[int] = []
        if source.needs.limits:
            for _ in range(count):
                self._holds -= 1
                holds.append(self._holds)
                self._limits.take(self._holds, source.needs.limits, now, is_start=is_start)
        drawn = DrawnRange(source, first, count, worker.facts.name, count)
        self._range_flights[drawn] = worker, handler, part, alone, holds
        return drawn


def handed_kib(task: DagTask) -> int:
    """What it takes to hand it, with the outputs of those before it as far as they are known here."""
    kib = task.kib
    for before in task.job.inputs_of(task):
        kib += before.kib
    return kib


def _add(worker: _Worker, handler: _Handler, part: int, alone: bool, count: int) -> None:
    worker.load += part * count
    worker.running += count
    worker.wide += count * (part > NARROW)
    handler.running += count
    if alone:
        worker.alone += count


def _have_handler(queues: Iterable[Queue], workers: Iterable[_Worker]) -> bool:
    """Whether any of the queues has tasks ready that one of the workers has the handler of."""
    handlers = dict.fromkeys(name for worker in workers for name in worker.facts.handlers)
    return any(queue.ready and queue.needs.handler in handlers for queue in queues)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join([f'"{name}"' for name in names[:NAMES_SHOWN]])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _about(ns: int) -> str:
    return format_duration(-(-ns // SECOND) * SECOND)


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"
