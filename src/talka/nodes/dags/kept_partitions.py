"""The partitions of a store that a manager has: the lease and the keeper of each, and what keepers ask of the store.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md, docs/decisions/0040-partitions-of-jobs.md.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from talka.clock import boottime_ns
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.dags.turns import DagTurns
from talka.control.member.metrics import Counted
from talka.control.tasks.partition import WHOLE
from talka.control.tasks.store_effects import Commit, DagEffect, RaiseEpoch, ReadOutputs
from talka.errors import TalkaError, Unavailable
from talka.nodes.dags.store_hold import StoreLease
from talka.stats.time_buckets import TimeBuckets
from talka.store.dags.memory import OpenedLife, StoreMemory
from talka.store.dags.records import Store, StoreLost, StoreTaken
from talka.units import SECOND
from talka.work.dags.dag import TaskSpec
from talka.work.dags.elements import fans_of, whole_specs
from talka.work.dags.records import TaskKey

Answer = TypeVar("Answer")
Read = tuple[dict[TaskKey, tuple[TaskSpec, bytes]], dict[TaskKey, bytes]]
"""Specs with checkpoints, and outputs."""


class KeptPartition(NamedTuple):
    lease: StoreLease
    keeper: DagKeeper


class KeptPartitions:
    """Made with all leases had; `load` once. Everything of a partition is done under its own lease, and one that is
    lost is dropped alone."""

    def __init__(
        self,
        store: Store,
        turns: DagTurns,
        kept: Sequence[KeptPartition],
        memory: StoreMemory,
        opened: OpenedLife,
        *,
        page: int,
        again_s: float,
    ) -> None:
        """Tasks are read `page` by page, and what could not be read once more after `again_s`."""
        self.opened = opened
        self.turns = turns
        self.keepers = DagKeepers()
        """Also while they are read."""
        self.do: Callable[[list[DagEffect]], None] = lambda effects: None
        """Told what a keeper answered."""
        self.on_broken: Callable[[BaseException], None] = lambda error: None
        """Told what the store cannot be gone on with: `StoreTaken` names the lease that is another's."""
        self._store = store
        self._memory = memory
        self._page = page
        self._again_s = again_s
        self._kept = {one.keeper.partition.number: one for one in kept}
        self._count = kept[0].keeper.partition.count
        for one in kept:
            self.keepers.set(one.keeper)
        self._held: list[int] = []
        """Tickets of commits that hold already, and of which keepers are told in a moment."""
        self.commit_times = TimeBuckets()
        """From when a commit was asked for until it was durable; of commits under way together, each its own."""
        self._asked_ns: dict[int, int] = {}
        """When each commit that is under way was asked for, by ticket."""
        self._asking: set[asyncio.Task[Any]] = set()
        """Questions to the store that nobody awaits."""
        self._is_over = False

    @property
    def has_first(self) -> bool:
        """Whether it has partition 0: who does looks after what belongs to all, schedules and the age of the store."""
        return WHOLE.number in self._kept

    def lease_of(self, job: str) -> str | None:
        """The key of the lease that jobs of this id are written under; None: another manager has it."""
        keeper = self.keepers.of_job(job)
        kept = None if keeper is None else self._kept.get(keeper.partition.number)
        return None if kept is None else kept.lease.key

    async def load(self) -> None:
        """Read all that had not ended."""
        now = boottime_ns()
        rows = await self._store.live_jobs()
        for keeper in self.keepers:
            for row in rows:
                if keeper.partition.holds(row.id):
                    keeper.restore_job(now, row)
                    after = -1
                    while page := await self._store.live_tasks(row.number, after, self._page):
                        first, after = page[0].index, page[-1].index
                        streams = await self._store.stream_sizes(row.number, first, after - first + 1)
                        keeper.restore_tasks(now, row.number, page, streams)
                    keeper.restore_fans(row.number, await self._store.fans(row.number))
                    keeper.restore_times(row.number, await self._store.times(row.number, 0, after + 1))

    # What keepers ask for.

    def commit(self, commit: Commit) -> None:
        kept = self._kept.get(commit.partition)
        if kept is None:
            return
        asked_ns = boottime_ns()
        if not self._store.commit(commit.ticket, commit.changes, kept.lease.key):
            self._asked_ns[commit.ticket] = asked_ns
            return
        self.commit_times.add(boottime_ns() - asked_ns)
        # Not at once: whoever calls is in the midst of other effects.
        self._held.append(commit.ticket)
        if len(self._held) == 1:
            asyncio.get_running_loop().call_soon(self._on_held)

    def _on_held(self) -> None:
        held, self._held = self._held, []
        self.on_committed(held)

    def on_committed(self, tickets: list[int]) -> None:
        """Those of each partition together: no two of them draw the same."""
        by_partition: dict[int, list[int]] = {}
        now = boottime_ns()
        for ticket in tickets:
            if (asked_ns := self._asked_ns.pop(ticket, None)) is not None:
                self.commit_times.add(now - asked_ns)
            by_partition.setdefault(ticket % self._count, []).append(ticket)
        for number, own in by_partition.items():
            keeper = self.keepers.get(number)
            if keeper is not None:
                now = boottime_ns()
                # A core waits for these, and for nothing else of it.
                if handed := keeper.hand(now, *own):
                    self.do(handed)
                self.do(keeper.on_committed(now, *own))

    def fetch(self, fetch: ReadOutputs) -> None:
        if not self._is_over and fetch.partition in self._kept:
            self._ask(self._read(fetch), lambda found: self._fetched(fetch, found))

    async def _read(self, fetch: ReadOutputs) -> Read:
        found = await self._store.fetch(fetch.specs, fetch.outputs)
        return await self.whole_specs(found.specs), found.outputs

    async def whole_specs(self, found: Mapping[TaskKey, tuple[bytes, bytes]]) -> dict[TaskKey, tuple[TaskSpec, bytes]]:
        """Of what the store has of them, with checkpoints."""
        fans = fans_of(found)
        return whole_specs(found, (await self._store.fetch(fans, ())).specs if fans else {})

    def _fetched(self, fetch: ReadOutputs, found: "asyncio.Future[Read]") -> None:
        if found.cancelled():
            return
        error = found.exception()
        if error is not None:
            if not isinstance(error, Unavailable):
                self.on_broken(error)
                return
            asyncio.get_running_loop().call_later(self._again_s, self.fetch, fetch)
            return
        keeper = self.keepers.get(fetch.partition)
        if keeper is not None:
            self.do(keeper.on_fetched(boottime_ns(), fetch.ticket, *found.result()))

    def raise_epoch(self, wanted: RaiseEpoch) -> None:
        kept = self._kept.get(wanted.partition)
        if kept is not None:
            self._ask(
                self._raised_to(kept, wanted.epoch), lambda raising: self._epoch_raised(wanted.partition, raising)
            )

    async def _raised_to(self, kept: KeptPartition, epoch: int) -> int:
        raised = await kept.lease.raise_to(epoch)
        if kept.keeper.partition.number == WHOLE.number:  # by this one the folder knows how far the store had come
            await asyncio.to_thread(self._memory.remember, self.opened.store, self.opened.life, raised)
        return raised

    def _epoch_raised(self, partition: int, raising: "asyncio.Future[int]") -> None:
        keeper = self.keepers.get(partition)
        if raising.cancelled() or keeper is None:
            return
        error = raising.exception()
        if isinstance(error, StoreLost) or (error is not None and not isinstance(error, Unavailable)):
            self.on_broken(error)
            return
        # Where the store could not be written now, it is asked again with the worker's next beat.
        epoch = keeper.floor.epoch if error is not None else raising.result()
        self.do(keeper.on_epoch(boottime_ns(), epoch))

    def _ask(self, question: Coroutine[Any, Any, Answer], answered: Callable[[asyncio.Task[Answer]], None]) -> None:
        asking = asyncio.create_task(question)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        asking.add_done_callback(answered)

    # Leases.

    async def keep_leases(self) -> str:
        """Why one could not be renewed; empty: all were. `on_broken` is told of those that are lost."""
        problem = ""
        for kept in list(self._kept.values()):
            try:
                await kept.lease.keep()
            except StoreLost as error:
                self.on_broken(error)
            except Unavailable as error:
                problem = str(error)
        return problem

    def is_doubtful(self, now: int) -> bool:
        """Whether another may have what this manager believes to have."""
        return any(kept.lease.hold.is_over(now) for kept in self._kept.values())

    def drop(self, taken: StoreTaken) -> int | None:
        """Another manager has what is leased under this key: the number of the partition, if it is one and not the
        last one here."""
        found = [number for number, kept in self._kept.items() if kept.lease.key == taken.key]
        if not found or len(self._kept) == 1:
            return None
        (number,) = found
        del self._kept[number]
        self._store.give_up(taken.key)
        self._asked_ns = {ticket: at for ticket, at in self._asked_ns.items() if ticket % self._count != number}
        self.keepers.drop(boottime_ns(), number)
        return number

    def metrics(self, now: int) -> dict[str, Counted]:
        keepers, waiting = list(self.keepers), self._asked_ns
        oldest_s = {queue.handler: queue.oldest_s for queue in self.turns.dispatcher.queues(now).queues}
        return {
            **self.turns.handlers.metrics(oldest_s),
            "dag_jobs_live": sum(len(keeper.jobs) for keeper in keepers),
            "dag_tasks_under_way": sum(len(keeper.attempts.running) for keeper in keepers),
            "dag_results_stale_total": sum(keeper.stale_results for keeper in keepers),
            "dag_more_time_total": dict(sum((keeper.attempts.times for keeper in keepers), Counter[str]())),
            "dag_messages_foreign_total": sum(keeper.foreign_messages for keeper in keepers),
            "dag_messages_strayed_total": self.keepers.strayed,
            "dag_epochs_raised_total": sum(keeper.floor.raised_total for keeper in keepers),
            "dag_workers_quarantined": len(self.turns.dispatcher.workers.quarantined(now)),
            "dag_store_commit_seconds": self.commit_times,
            "dag_store_commits_waiting": len(waiting),
            "dag_store_oldest_commit_seconds": self.oldest_ns(now) / SECOND,
        }

    def oldest_ns(self, now: int) -> int:
        """For how long the oldest commit is waited for."""
        return max(0, now - next(iter(self._asked_ns.values()), now))

    def stop(self) -> None:
        """Ask nothing more."""
        self._is_over = True

    async def release(self) -> None:
        for kept in self._kept.values():
            with contextlib.suppress(TalkaError):
                await kept.lease.release()
