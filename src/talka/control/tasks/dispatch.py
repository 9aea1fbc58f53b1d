"""Which ready task goes to which worker: fair between jobs, to the least loaded worker that can run it and has room.

Who that is, `dispatch_workers.py` knows; whose turn it is, `ready_queues.py`.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0042-a-source-gives-ranges.md,
docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final, TypeAlias

from talka.control.tasks.dispatch_workers import DispatchWorkers
from talka.control.tasks.limits import Limits
from talka.control.tasks.ready_queues import Queue, QueueGroup, ReadyQueues, SourceLane, TaskLane, group_key
from talka.control.tasks.source import DrawnRange, Source
from talka.control.tasks.task import DagTask, Needs, TaskOwner
from talka.control.tasks.worker_room import (
    DISPATCH_LIMITS,
    DispatchLimits,
    Flight,
    HandlerLength,
    WorkerPool,
    WorkerRoom,
    add,
)
from talka.units import NEVER, SECOND
from talka.wire.task_views import QueuesView, QueueView, Reason

DIGEST_LENGTH: Final = 64
"""Of a bundle. No name of a handler is longer."""

_RangeFlight: TypeAlias = tuple[WorkerRoom, HandlerLength, int, bool, list[int]]
"""As `Flight`, with the numbers under which limits are held for those that have not ended; empty: none are."""


class Dispatcher:
    """`put` tasks that are ready, `offer` sources that have some, `assign` after each change and at `next_tick_at`, and
    tell of each attempt how it `ended`.

    One for all partitions of a store that a process keeps: a worker's room and a limit are given out once.
    """

    def __init__(self, rng: Random, bounds: DispatchLimits = DISPATCH_LIMITS) -> None:
        self.workers = DispatchWorkers(rng, bounds)
        self._bounds = bounds
        self._limits = Limits()
        self._ready = ReadyQueues(self._limits)
        self._line: dict[TaskOwner, DagTask] = {}
        """Instead of the queues, as long as all that is ready would come out of them in the order in which it came: one
        task of each job, with the same needs and priority. Links of a chain and jobs of one task need no more."""
        self._flights: dict[DagTask, Flight] = {}
        self._range_flights: dict[DrawnRange, _RangeFlight] = {}
        self.drawn: list[DrawnRange] = []
        """What `assign` has drawn from sources since this was last emptied."""
        self._holds = 0
        self._now = 0
        self._again_at = NEVER
        """When there may be more to give out than the last time's limit."""

    def drop(self, now: int, partition: int, tasks: Iterable[DagTask]) -> None:
        """A partition is kept by somebody else: these were all its tasks, whether they wait or run."""
        for name in list(self.workers.here):
            self.workers.remove_worker(now, name, partition)
        for task in tasks:
            self.ended(now, task, None)
            self._queued.remove(now, (task,))

    def has_ready(self) -> bool:  # that some worker has the handler of
        return _have_handler(self._queued.queues.values(), self.workers.here.values())

    # -- tasks

    def put(self, now: int, tasks: Sequence[DagTask]) -> None:
        """These are ready. An attempt of theirs that was under way is over."""
        self._now = now
        flights = self._flights
        for task in tasks:
            if task in flights:
                self.ended(now, task, None)
        if len(tasks) == 1 and not self._ready.queues and self._may_stand_in_line(tasks[0]):
            self._line[tasks[0].job] = tasks[0]
            return
        self._queued.put(now, tasks)

    def _may_stand_in_line(self, task: DagTask) -> bool:
        needs, line = task.needs, self._line
        if needs is None or needs.limits:
            return False
        if not line:
            return True
        last = next(reversed(line.values()))
        if last.priority != task.priority or last.queued_at > task.queued_at:
            return False
        return task.job not in line and last.needs == needs

    @property
    def _queued(self) -> ReadyQueues:
        """With every task that is ready."""
        if self._line:
            line, self._line = self._line, {}
            self._ready.put(self._now, line.values())
        return self._ready

    @property
    def ready(self) -> int:
        return len(self._ready) + len(self._line)

    def remove(self, tasks: Iterable[DagTask]) -> None:
        self._queued.remove(self._now, tasks)

    def assign(self, now: int, limit: int = 4096) -> list[tuple[DagTask, str]]:
        """Tasks that start now and the names of their workers; ranges of sources are added to `drawn`. All hold their
        part of a worker and their limits. No more than `limit` together."""
        if not self._ready.queues:
            return self._assign_line(now, limit)
        ready = self._ready
        self._wake(now)
        limits = self._limits
        flights = self._flights
        given: list[tuple[DagTask, str]] = []
        best, take, load = ready.best, ready.take, self.workers.load
        pools: dict[QueueGroup, WorkerPool] = {}
        passed: dict[SourceLane, None] = {}
        passed_at = 0
        last: TaskLane | None = None
        while len(given) < limit:
            queue = best()
            if queue is None:
                break
            pool = pools.get(queue.group)
            if pool is None:
                pool = pools[queue.group] = self.workers.pool(now, queue.group.key, ready.groups)
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
            flights[task] = flight = load(worker, needs, kib, hold)
            ready.gave_task(lane, flight[2])
            last = lane
            pool.loaded(worker)
            given.append((task, worker.facts.name))
        if last is not None:
            ready.end_turn(last)  # who comes next time shares what is free then
        self._again_at = now if len(given) >= limit else NEVER
        return given

    def _assign_line(self, now: int, limit: int) -> list[tuple[DagTask, str]]:
        """As the queues would, in which nothing is."""
        workers, line = self.workers, self._line
        self._now = now
        self._limits.freed.clear()  # nobody waits for them
        given: list[tuple[DagTask, str]] = []
        if line:
            workers.look(now)
            needs = next(iter(line.values())).needs
            assert needs is not None, "it would not be here"
            pool = workers.pool(now, group_key(needs), ())
            for task in line.values():
                worker = pool.best() if len(given) < limit else None
                if worker is None:
                    break
                kib = handed_kib(task) if task.after else task.kib
                self._flights[task] = workers.load(worker, needs, kib, 0)
                pool.loaded(worker)
                given.append((task, worker.facts.name))
            for task, _ in given:
                del line[task.job]
            workers.trim()
        self._again_at = now if line and len(given) >= limit else NEVER
        return given

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
        known = self.workers.of_name(task.worker.partition("#")[0])
        self._flights[task] = self.workers.load(known, needs, 0, hold)  # it was handed long ago

    def ended(self, now: int, task: DagTask, took_ns: int | None) -> None:
        """An attempt is over. `took_ns`: how long its handler ran, if it did to its end."""
        flight = self._flights.pop(task, None)
        if flight is None:
            return
        hold = flight[-1]
        if hold:
            self._limits.give(hold, now)
        self.workers.unload(flight, took_ns)

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
        flight = self.workers.load(self.workers.of_name(worker), source.needs, 0, 0)
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
        add(worker, handler, part, alone, -count)
        if holds:
            for hold in holds[drawn.left :]:
                self._limits.give(hold, now)
            del holds[drawn.left :]
        self.workers.over(worker, handler, took_ns)

    @property
    def next_tick_at(self) -> int:
        """When `assign` may give out what it could not before, if nothing else happens."""
        return min(self._ready.next_due_at, self.workers.next_end_at, self._again_at)

    # -- what people ask

    def why(self, task: DagTask, now: int) -> list[Reason]:
        """For each worker the first thing that keeps this ready task from running there."""
        return self.reasons(task.needs or task.job.needs_of(task.handler), now)

    def reasons(self, needs: Needs, now: int) -> list[Reason]:
        """For each worker the first thing that keeps a ready task with such needs from running there."""
        limited = self._limits.refusal(needs.limits, now)
        return self.workers.reasons(needs, now, None if limited is None else limited[:2])

    def position(self, job: object) -> int | None:
        """About how many ready tasks come before the first one of the job; None: it has none, or nobody can run it."""
        now = self._now
        ready = self._queued
        groups = [group for group in ready.groups.values() if self.workers.pool(now, group.key, ready.groups).members]
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
        for name, known in self.workers.handlers.items():
            if known.running:
                running[name if len(name) <= DIGEST_LENGTH else name[DIGEST_LENGTH + 1 :]] += known.running
        workers = Counter([name for worker in self.workers.here.values() for name in worker.facts.handlers])
        views = [
            QueueView(name, ready[name], running[name], workers[name], (now - oldest_at.get(name, now)) / SECOND)
            for name in sorted({**ready, **running, **workers})
        ]
        return QueuesView(views, self._limits.views(waiting))

    # -- how it is done

    def _wake(self, now: int) -> None:
        """Let those take part again that waited for what has come."""
        self._now = now
        self.workers.look(now)
        ready = self._ready
        freed = self._limits.freed
        if freed:
            for key in freed:
                ready.wake_key(key)
            freed.clear()
        ready.wake_due(now)
        for group in list(ready.parked_groups):
            if self.workers.pool(now, group.key, ready.groups).heap:
                ready.wake_group(group)
        self.workers.trim()

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

    def _draw(self, now: int, lane: SourceLane, worker: WorkerRoom, pool: WorkerPool, limit: int) -> int:
        """Give a worker that has room tasks of the source whose turn it is: how many."""
        source, queue = lane.source, lane.queue
        needs = source.needs
        flight = self.workers.load(worker, needs, 0, 0)  # of the first one
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
        self, now: int, source: Source, first: int, count: int, flight: Flight, *, is_start: bool = True
    ) -> DrawnRange:
        """`flight`: of the first one, which is counted already."""
        worker, handler, part, alone, _, _ = flight
        add(worker, handler, part, alone, count - 1)
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
        kib += before.output_kib
    return kib


def _have_handler(queues: Iterable[Queue], workers: Iterable[WorkerRoom]) -> bool:
    """Whether any of the queues has tasks ready that one of the workers has the handler of."""
    handlers = dict.fromkeys(name for worker in workers for name in worker.facts.handlers)
    return any(queue.ready and queue.needs.handler in handlers for queue in queues)
