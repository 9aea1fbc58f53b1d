"""The workers that tasks can be given to: which of them can run what, which have room, and which are kept away.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0056-one-book-of-cores.md.
"""

from collections.abc import Collection, Sequence
from itertools import count
from operator import attrgetter
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.control.tasks.known_workers import KnownWorkers
from talka.control.tasks.quarantine import Quarantine
from talka.control.tasks.ready_queues import GroupKey
from talka.control.tasks.task import Needs
from talka.control.tasks.worker_room import (
    CORE,
    DISPATCH_LIMITS,
    NARROW,
    CoresForTasks,
    DispatchLimits,
    DispatchWorker,
    Flight,
    HandlerLength,
    WorkerPool,
    WorkerRoom,
)
from talka.units import SECOND
from talka.wire.task_views import Reason
from talka.work.dags.records import TaskKey
from talka.work.durations import format_duration

SMOOTHING_SHIFT: Final = 3
"""A task counts an eighth in the length of its handler's tasks."""
NAMES_SHOWN: Final = 10

Refusal: TypeAlias = tuple[str, str]
"""Constraint and text, as in `Reason`."""


class DispatchWorkers:
    """Told who is there and what each may be given. The best of a `pool` is given a task, which is a `load` on it until
    that is `unload`ed."""

    def __init__(self, rng: Random, limits: DispatchLimits = DISPATCH_LIMITS) -> None:
        self._rng = rng
        self._limits = limits
        self._quarantine = Quarantine()
        self.known = KnownWorkers()
        self.here: dict[str, WorkerRoom] = {}
        self._away: dict[str, WorkerRoom] = {}
        """Not here, but attempts on them were not given up yet."""
        self.handlers: dict[str, HandlerLength] = {}
        self._pools: dict[GroupKey, WorkerPool] = {}
        self._numbers = count(1)
        self._version = 0
        """Of what is known of workers. Pools of another one are made anew."""
        self._log: list[WorkerRoom] = []
        """Workers that got room, in order; entry i has the number `_log_base` + i."""
        self._log_base = 0
        self._log_read = 0
        """The highest number a pool has read up to: a worker that is behind it in the log need not be entered again."""
        self._bad: dict[str, int] = {}
        """Workers that are kept in quarantine, and until when."""
        self._looked = -1
        """The version for which that was found."""

    def set_worker(self, now: int, facts: DispatchWorker, partition: int = 0) -> None:
        """A worker is there, or is another than before, and obeys in this partition. Cheap when nothing changed."""
        worker = self.here.get(facts.name)
        if worker is not None and worker.facts == facts and partition in worker.partitions:
            return
        if worker is None:
            worker = self._away.pop(facts.name, None) or self._new_worker(facts)
            worker.is_here = True
            self.here[facts.name] = worker
        worker.partitions[partition] = None
        worker.set(facts)
        self.known.here(now, facts)
        self._version += 1

    def remove_worker(self, now: int, name: str, partition: int = 0) -> None:
        """It is given nothing more of this partition, and is not there any more where that was the last. Its attempts
        are counted until they are told to have ended."""
        worker = self.here.get(name)
        if worker is None or partition not in worker.partitions:
            return
        del worker.partitions[partition]
        self._version += 1
        if worker.partitions:
            return
        del self.here[name]
        self.known.left(now, name)
        worker.is_here = False
        if worker.running:
            self._away[name] = worker

    def died(self, now: int, task: TaskKey, worker: str) -> None:
        """A process of the worker of that name died with this task alone in it."""
        if self._quarantine.died(now, task, worker):
            self._version += 1

    def running(self, name: str) -> int:
        """Attempts that were given to this worker and have not ended."""
        worker = self.here.get(name) or self._away.get(name)
        return 0 if worker is None else worker.running

    def set_cores(self, cores: CoresForTasks) -> None:
        """From now on; what runs goes on."""
        worker = self.here.get(cores.name)
        if worker is None:
            return
        facts = msgspec.structs.replace(worker.facts, cores=cores.cores, why_none=cores.why_none)
        if worker.facts != facts:
            worker.set(facts)
            self._version += 1

    def busy_cores(self, name: str) -> int:
        """Cores of this worker that its attempts keep busy, whatever cores are for tasks."""
        known = self.here.get(name) or self._away.get(name)
        if known is None:
            return 0
        # One for all that fill little of a core is not enough where there are hundreds of them.
        return max(known.wide + (known.running > known.wide), -(-known.load // CORE))

    @property
    def next_end_at(self) -> int:
        """When a worker comes out of quarantine."""
        return self._quarantine.next_end_at

    # -- who can run what

    def refusal(self, worker: DispatchWorker, needs: Needs, now: int) -> Refusal | None:
        """The first thing that stands in the way of a worker running such a task, limits apart."""
        known = self.here.get(worker.name)
        refused = self._unfit(worker, needs, now)
        if refused is not None or known is None or known.has_room(needs.alone):
            return refused
        tasks = "task" if known.running == 1 else "tasks"
        return "slots", f"it has all it may have at a time: {known.running} {tasks} on {_cores(worker.cores)}"

    def reasons(self, needs: Needs, now: int, limited: Refusal | None) -> list[Reason]:
        """For each worker the first thing that keeps a ready task with such needs from running there. `limited`: what
        keeps it from running anywhere."""
        workers = {name: worker for name, worker in self.here.items() if needs.partition in worker.partitions}
        if not workers:
            text = f'there is no worker: start one that has the handler "{needs.handler}"'
            if needs.bundle:
                text = "there is no worker: start one with --accept-code"
            return [Reason("", "offline", text)]
        reasons = []
        for name, worker in sorted(workers.items()):
            refused = self.refusal(worker.facts, needs, now) or limited
            reasons.append(Reason(name, *(refused or ("", "it can run here: it is given out when its turn comes"))))
        return reasons

    def quarantined(self, now: int) -> dict[str, int]:
        """Workers that are there and get no tasks because they are bad, and until when."""
        self.look(now)
        return {name: until for name, until in self._bad.items() if name in self.here}

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
            return "cores", facts.why_none
        return None

    def _no_handler(self, facts: DispatchWorker, handler: str) -> str:
        if facts.problem:
            return f"it is degraded and has no handlers: {facts.problem}"
        if facts.is_loading:
            return "it still loads its handlers, and has not told yet which they are"
        everywhere: dict[str, None] = {}
        for worker in self.here.values():
            everywhere.update(dict.fromkeys(worker.facts.handlers))
        if handler in everywhere:
            return f'it does not have the handler "{handler}"; it has {_listed(sorted(facts.handlers)) or "none"}'
        if not everywhere:
            return f'no worker has the handler "{handler}", nor any other: start one with a file of handlers'
        return f'no worker has the handler "{handler}": there are {_listed(sorted(everywhere))}'

    def look(self, now: int) -> None:
        """Who is in quarantine. A bad worker is better than none: one that all others depend on is not kept in it."""
        if self._quarantine.expire(now):
            self._version += 1
        if self._looked == self._version:
            return
        self._looked = self._version
        bad = self._quarantine.until
        for name, worker in self.here.items():
            if name not in bad and worker.facts.state != "draining":
                self._bad = dict(bad)
                return
        self._bad = {}

    # -- room

    def pool(self, now: int, key: GroupKey, wanted: Collection[GroupKey]) -> WorkerPool:
        """As it is now. `wanted`: those that something waits for."""
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= self._limits.pools:
                self._pools = {key: pool for key, pool in self._pools.items() if key in wanted}
            pool = self._pools[key] = WorkerPool(key[3], self._numbers)
        end = self._log_base + len(self._log)
        if pool.version != self._version or pool.cursor < self._log_base:
            pool.version = self._version
            needs = Needs(*key[:3], alone=key[3], partition=key[4], bundle=key[5])
            members = [
                worker
                for worker in self.here.values()
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

    def trim(self) -> None:
        """The log is read by pools now and then: what all have read, or would be too much to read, is dropped."""
        if len(self._log) > 4 * len(self.here) + self._limits.log:
            self._log_base += len(self._log)
            self._log.clear()

    def load(self, worker: WorkerRoom, needs: Needs, kib: int, hold: int) -> Flight:
        name, alone = needs.handler, needs.alone
        if needs.bundle:  # what one job brings may be of any length, whatever others call so
            name = f"{needs.bundle}/{name}"
        handler = self.handlers.get(name)
        if handler is None:
            if len(self.handlers) >= self._limits.handlers:
                self.handlers = {name: handler for name, handler in self.handlers.items() if handler.running}
            handler = self.handlers[name] = HandlerLength()
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

    def unload(self, flight: Flight, took_ns: int | None) -> None:
        """The attempt is over. `took_ns`: how long its handler ran, if it did to its end."""
        worker, handler, part, alone, kib, _ = flight
        worker.load -= part
        worker.kib -= kib
        worker.running -= 1
        worker.wide -= part > NARROW
        handler.running -= 1
        if alone:
            worker.alone -= 1
        self.over(worker, handler, took_ns)

    def over(self, worker: WorkerRoom, handler: HandlerLength, took_ns: int | None) -> None:
        """An attempt on this worker is over."""
        if took_ns is not None:
            length_ns = handler.length_ns
            handler.length_ns = took_ns if length_ns < 0 else length_ns + (took_ns - length_ns >> SMOOTHING_SHIFT)
        if worker.logged < self._log_read:
            worker.logged = self._log_base + len(self._log)
            self._log.append(worker)
        if not worker.running and not worker.is_here:
            self._away.pop(worker.facts.name, None)

    def of_name(self, name: str) -> WorkerRoom:
        """A worker that has attempts, here or not."""
        known = self.here.get(name) or self._away.get(name)
        if known is None:
            known = self._away[name] = self._new_worker(DispatchWorker(name=name))
        return known

    def _new_worker(self, facts: DispatchWorker) -> WorkerRoom:
        return WorkerRoom(facts, self._rng.getrandbits(32), self._limits)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join([f'"{name}"' for name in names[:NAMES_SHOWN]])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _about(ns: int) -> str:
    return format_duration(-(-ns // SECOND) * SECOND)


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"
