"""The keepers of dag jobs that a manager has: one for each partition of the store that is its own, and who of them is
meant.

Decision: docs/decisions/0040-partitions-of-jobs.md.
"""

from collections.abc import Iterable, Iterator, Mapping

from talka.cluster.placement import partition_of
from talka.control.dags.keeper import DagKeeper
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.quarantine import QUARANTINED, Denied
from talka.control.tasks.store_effects import DagEffect
from talka.control.tasks.worker_link import KeeperEnd, WorkerBeat
from talka.control.tasks.worker_room import CoresForTasks
from talka.units import NEVER
from talka.wire.tasks import WorkerMessage


class DagKeepers(KeeperEnd[DagEffect]):
    """All of one store. What concerns one partition reaches its keeper alone; beats, losses of workers and the time
    concern all."""

    def __init__(self) -> None:
        self.strayed = 0
        """What workers told of partitions that are not kept here."""
        self._keepers: dict[int, DagKeeper] = {}

    def __iter__(self) -> Iterator[DagKeeper]:
        return iter(self._keepers.values())

    def __len__(self) -> int:
        return len(self._keepers)

    def set(self, keeper: DagKeeper) -> None:
        """In the place of an earlier one of its partition."""
        self._keepers[keeper.partition.number] = keeper

    def drop(self, now: int, partition: int) -> None:
        keeper = self._keepers.pop(partition, None)
        if keeper is not None:
            keeper.leave(now)

    def get(self, partition: int) -> DagKeeper | None:
        return self._keepers.get(partition)

    def of_job(self, id: str) -> DagKeeper | None:
        """The keeper of the partition that a job of this id is in."""
        return self._of(id)

    def of_key(self, key: str) -> DagKeeper | None:
        """Where a job is put that is submitted with this idempotency key: at one place, so that two that come at the
        same moment meet."""
        return self._of(key)

    def of_turn(self, turn: int) -> DagKeeper | None:
        """Where a job is put that has none: by turns."""
        keepers = list(self._keepers.values())
        return keepers[turn % len(keepers)] if keepers else None

    def _of(self, text: str) -> DagKeeper | None:
        one = next(iter(self._keepers.values()), None)
        return None if one is None else self._keepers.get(partition_of(text, one.partition.count))

    @property
    def next_tick_at(self) -> int:
        return min([keeper.next_tick_at for keeper in self._keepers.values()], default=NEVER)

    def tick(self, now: int) -> list[DagEffect]:
        effects: list[DagEffect] = []
        for keeper in self._keepers.values():
            if now >= keeper.next_tick_at:
                effects += keeper.tick(now)
        return effects

    def on_beat(self, now: int, beat: WorkerBeat) -> list[DagEffect]:
        effects: list[DagEffect] = []
        for keeper in self._keepers.values():
            effects += keeper.on_beat(now, beat)
        return effects

    def set_cores(self, now: int, cores: Iterable[CoresForTasks]) -> list[DagEffect]:
        """Of these workers, from now on."""
        if self._dispatcher is None:
            return []
        for one in cores:
            self._dispatcher.workers.set_cores(one)
        effects: list[DagEffect] = []
        for keeper in self._keepers.values():
            effects += keeper.tick(now)  # more of them may start now
        return effects

    # What load jobs have to know of tasks: all keepers of a store share one dispatcher.

    @property
    def _dispatcher(self) -> Dispatcher | None:
        return next((keeper.dispatcher for keeper in self._keepers.values()), None)

    def busy_cores(self, name: str) -> int | None:
        """Cores of this worker that tasks keep busy; None: nobody here knows."""
        return None if self._dispatcher is None else self._dispatcher.workers.busy_cores(name)

    def are_waiting(self) -> bool:
        """Whether tasks are ready that some worker has the handler of."""
        return self._dispatcher is not None and self._dispatcher.has_ready()

    def denied(self, now: int) -> Mapping[str, Denied]:
        """Workers that get no tasks, whatever they could run."""
        found: dict[str, Denied] = {}
        if self._dispatcher is not None:
            found |= dict.fromkeys(self._dispatcher.workers.quarantined(now), ("quarantined", QUARANTINED))
        for keeper in self._keepers.values():
            found |= {name: ("refused", why) for name, why in keeper.floor.denied.items()}
        return found

    def has_heard(self, worker: str) -> bool:
        """What a worker of this name can run is known."""
        known = None if self._dispatcher is None else self._dispatcher.workers.here.get(worker)
        return known is not None and not known.facts.is_loading

    def on_worker_lost(self, now: int, worker: str, boot: int, cause: str) -> list[DagEffect]:
        effects: list[DagEffect] = []
        for keeper in self._keepers.values():
            effects += keeper.on_worker_lost(now, worker, boot, cause)
        return effects

    def on_message(self, now: int, worker: str, message: WorkerMessage) -> list[DagEffect]:
        keeper = self._keepers.get(message.of.partition)
        if keeper is None:
            self.strayed += 1
            return []
        return keeper.on_message(now, worker, message)

    def on_stepped_down(self, now: int) -> None:
        for keeper in self._keepers.values():
            keeper.on_stepped_down(now)

    def set_wall_offset(self, wall_offset_ns: int) -> None:
        for keeper in self._keepers.values():
            keeper.wall_offset_ns = wall_offset_ns

    def may_fetch(self, worker: str, digest: str) -> bool:
        """Whether a worker of this name was given a task of a job that brought this bundle."""
        return any(keeper.may_fetch(worker, digest) for keeper in self._keepers.values())

    def expected(self) -> list[tuple[str, int, int]]:
        """Name, boot and folder of the workers that have attempts of any."""
        found: dict[tuple[str, int, int], None] = {}
        for keeper in self._keepers.values():
            found.update(dict.fromkeys(keeper.attempts.expected()))
        return list(found)
