"""Tasks that could run now, in the order in which they should.

They wait in a queue for each kind of needs, and in it in a lane for each job. In a lane, a task comes first that has
the higher priority, and a minute of waiting counts as much as one step of that. Between lanes the same holds, only that
the waiting of a lane begins anew whenever it is given something: what counts is how long a job was left out, not how
much of it is waiting. Lanes that are alike by this, to the minute, take turns, and so do queues: jobs share equally, a
job of one task does not wait behind one of a million, and the lowest priority gets its turn within minutes. A turn is
one task, or of short ones several that go out together.

Queues that the same workers can serve form a group. A group waits when no worker has room, a queue when a limit is
reached; neither costs anything until it is woken.

A lane holds the tasks of a dag job, or stands for a source of which ranges are drawn. A lane that was given a range has
had as many turns as the range has tasks: it lets others go first for the rest of them.

Ranks in heaps may be too good and are set right when they come to the top; only a better one is entered at once.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0042-a-source-gives-ranges.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar, final

from talka.control.tasks.limits import Limits
from talka.control.tasks.source import Source
from talka.control.tasks.task import DagTask, Needs, TaskOwner
from talka.units import MINUTE, NEVER

PRIORITY_BITS: Final = 4
"""Enough for 1 to 10."""
PRIORITY_MASK: Final = (1 << PRIORITY_BITS) - 1
TURN: Final = 1 << 14
"""What a lane is given in one turn, in parts of a core (`worker_room.CORE`), or one task that is longer: a 64th of what
lies ready for it, or 16 of the shortest tasks. Rows of one job lie side by side in the store: a commit that is about
one task of each of a thousand jobs writes ten times as much."""
STALE_LIMIT: Final = 64
"""A lane with more places of removed tasks than this and than tasks is cleaned."""

GroupKey: TypeAlias = tuple[str, tuple[str, ...], int, bool, int, str]
"""Handler, capabilities, least memory, alone, partition, bundle: what makes a worker fit or not."""


def group_key(needs: Needs) -> GroupKey:
    return needs.handler, needs.capabilities, needs.min_memory_bytes, needs.alone, needs.partition, needs.bundle


class _Ranked(ABC):
    __slots__ = ("band", "is_changed", "place", "turn")

    def __init__(self, turn: int) -> None:
        self.band = 0
        self.turn = turn
        self.place: object = None
        """Its entry in the heap that it is in; others that are left there do not count."""
        self.is_changed = True
        """Something below it has changed since its rank was last found."""

    @abstractmethod
    def refresh(self) -> bool:
        """Find its rank. Whether there is anything in it that may be taken."""


_Node = TypeVar("_Node", bound=_Ranked)


class _Rotation(Generic[_Node]):
    """Its best node first: the lowest band, then whose turn was longest ago."""

    __slots__ = ("_clean_at", "_heap", "_numbers")

    def __init__(self, numbers: "count[int]") -> None:
        self._heap: list[tuple[int, int, int, _Node]] = []
        self._numbers = numbers
        self._clean_at = STALE_LIMIT

    def enter(self, node: _Node) -> None:
        """A node that is new here, or whose rank is better than before."""
        entry = (node.band, node.turn, next(self._numbers), node)
        node.place = entry
        heappush(self._heap, entry)
        if len(self._heap) > self._clean_at:
            self._heap = [entry for entry in self._heap if entry[3].place is entry]
            heapify(self._heap)
            self._clean_at = 2 * len(self._heap) + STALE_LIMIT

    def clear(self) -> None:
        self._heap.clear()

    def best(self) -> _Node | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            node = entry[3]
            if node.place is not entry:
                heappop(heap)
            elif node.is_changed and not node.refresh():
                heappop(heap)
                node.place = None
            elif len(heap) > 1 and (node.turn != entry[1] or node.band != entry[0]):
                entry = (node.band, node.turn, next(self._numbers), node)
                node.place = entry
                heapreplace(heap, entry)
            else:
                return node
        return None


class _Bucket:
    """Tasks of one lane that became ready at the same instant with the same priority, first come first."""

    __slots__ = ("fresh", "key", "lane", "turned")

    def __init__(self, lane: "TaskLane", key: int) -> None:
        self.lane = lane
        self.key = key
        self.fresh: list[DagTask] = []
        self.turned: list[DagTask] = []
        """From its end they are taken; `fresh` follows, turned around."""


@final
class TaskLane(_Ranked):
    """Tasks of one dag job in one queue."""

    __slots__ = ("buckets", "buckets_of", "count", "given", "job", "keys", "queue", "served_at", "stale")

    def __init__(self, queue: "Queue", job: TaskOwner, turn: int, buckets_of: dict[DagTask, _Bucket]) -> None:
        super().__init__(turn)
        self.queue = queue
        self.job = job
        self.buckets_of = buckets_of
        self.served_at = -NEVER
        self.given = 0
        """What it was given in this turn, in parts of a core."""
        self.count = 0
        self.stale = 0
        self.keys: list[int] = []
        """A heap of the keys of its buckets."""
        self.buckets: dict[int, _Bucket] = {}

    def rank(self) -> int:
        """The band of its best key."""
        key = self.keys[0]
        priority = key & PRIORITY_MASK
        earlier = priority * MINUTE
        since = (key >> PRIORITY_BITS) + earlier
        if since < self.served_at:
            since = self.served_at
        return (since - earlier) // MINUTE

    def head(self) -> _Bucket:
        """The bucket whose next task is the lane's next. There is one."""
        keys = self.keys
        buckets_of = self.buckets_of
        while True:
            bucket = self.buckets[keys[0]]
            turned = bucket.turned
            while True:
                if not turned:
                    if not bucket.fresh:
                        break
                    bucket.fresh.reverse()
                    bucket.turned, bucket.fresh = bucket.fresh, turned
                    turned = bucket.turned
                if buckets_of.get(turned[-1]) is bucket:
                    return bucket
                turned.pop()
                self.stale -= 1
            del self.buckets[heappop(keys)]

    def present_rank(self) -> int:
        self.head()
        return self.rank()

    @property
    def oldest_at(self) -> int:
        """When the task that is next became ready."""
        key = self.head().key
        return (key >> PRIORITY_BITS) + (key & PRIORITY_MASK) * MINUTE

    def refresh(self) -> bool:
        self.is_changed = False
        self.head()
        self.band = self.rank()
        return True

    def clean(self) -> None:
        """Without the places of tasks that were removed."""
        buckets_of = self.buckets_of
        for bucket in list(self.buckets.values()):
            bucket.turned.reverse()
            tasks = [task for task in bucket.turned + bucket.fresh if buckets_of.get(task) is bucket]
            bucket.turned = []
            bucket.fresh = list(dict.fromkeys(tasks))  # one that was put again at the same instant is here twice
            if not bucket.fresh:
                del self.buckets[bucket.key]
        self.keys = list(self.buckets)
        heapify(self.keys)
        self.stale = 0


@final
class SourceLane(_Ranked):
    """A source of one job in one queue."""

    __slots__ = ("count", "debt", "job", "queue", "served_at", "source")

    def __init__(self, queue: "Queue", source: Source, turn: int, debt: int) -> None:
        super().__init__(turn)
        self.queue = queue
        self.source = source
        self.job = source.job
        self.served_at = -NEVER
        self.count = 0
        """Tasks that the source had ready when it was last asked."""
        self.debt = debt
        """Turns it has had before its time."""

    def rank(self) -> int:
        earlier = self.source.priority * MINUTE
        return (max(self.source.queued_at, self.served_at) - earlier) // MINUTE

    def present_rank(self) -> int:
        return self.rank()

    @property
    def oldest_at(self) -> int:
        return self.source.queued_at

    def refresh(self) -> bool:
        self.is_changed = False
        self.band = self.rank()
        return True


Lane: TypeAlias = TaskLane | SourceLane


class _Shared(_Ranked, Generic[_Node]):
    """Something below which others take turns."""

    __slots__ = ("next", "rotation")

    def __init__(self, turn: int, numbers: "count[int]") -> None:
        super().__init__(turn)
        self.rotation: _Rotation[_Node] = _Rotation(numbers)
        self.next: _Node | None = None
        """The best one, as of the last refresh."""

    def let_go(self) -> None:
        """Nothing is below it any more. What was names it, and would stay with it until the collector comes by."""
        self.place = self.next = None
        self.rotation.clear()


class Queue(_Shared[Lane]):
    """Tasks with the same needs."""

    __slots__ = ("group", "lanes", "needs", "parked_on", "parked_until")

    def __init__(self, group: "QueueGroup", needs: Needs, turn: int, numbers: "count[int]") -> None:
        super().__init__(turn, numbers)
        self.group = group
        self.needs = needs
        self.lanes: dict[object, Lane] = {}
        self.parked_on: str | None = None
        self.parked_until = NEVER

    @property
    def ready(self) -> int:
        return sum(lane.count for lane in self.lanes.values())

    @property
    def oldest_at(self) -> int:
        """When the task that is next in its lane became ready, of all lanes the earliest."""
        return min([lane.oldest_at for lane in self.lanes.values()])

    def refresh(self) -> bool:
        lane = self.rotation.best()
        assert lane is not None  # an empty queue is dropped
        self.is_changed = False
        self.next = lane
        self.band = lane.band
        return True


class QueueGroup(_Shared[Queue]):
    """Queues that the same workers can serve."""

    __slots__ = ("is_parked", "key", "queues")

    def __init__(self, key: GroupKey, numbers: "count[int]") -> None:
        super().__init__(0, numbers)
        self.key = key
        self.queues: dict[Needs, Queue] = {}
        self.is_parked = False

    def refresh(self) -> bool:
        self.is_changed = False
        queue = self.rotation.best()
        if queue is None:
            return False
        self.next = queue
        self.band = queue.band
        self.turn = queue.turn
        return True


class ReadyQueues:
    """Ask for the `best` queue, and `take` from it and tell what that `gave_task`, or `park` it or its group and ask
    again; whoever takes no more for now ends the turn of the last lane. Where its next lane is a `SourceLane`, draw
    from that source and tell what it `gave`, or let it `pass_turn`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._numbers = count(1)
        self.buckets_of: dict[DagTask, _Bucket] = {}
        """Every task that is ready. A place in a bucket counts only if that bucket is here."""
        self.queues: dict[Needs, Queue] = {}
        self.groups: dict[GroupKey, QueueGroup] = {}
        self.parked_groups: dict[QueueGroup, None] = {}
        self._rotation: _Rotation[QueueGroup] = _Rotation(self._numbers)
        self._by_key: dict[str, dict[Queue, None]] = {}
        """Parked queues by the key of the limit."""
        self._timed: list[tuple[int, int, Queue]] = []
        self._sources: dict[Source, SourceLane] = {}
        """Those that have something ready."""
        self._debts: dict[Source, int] = {}
        """Of those that have nothing ready now."""

    def __len__(self) -> int:
        return len(self.buckets_of)

    # -- in and out

    def put(self, now: int, tasks: Iterable[DagTask]) -> None:
        """Tasks that are here already keep their place. Their needs are known."""
        buckets_of = self.buckets_of
        job: TaskOwner | None = None
        needs: Needs | None = None
        lane: TaskLane | None = None
        bucket: _Bucket | None = None
        for task in tasks:
            if task in buckets_of:
                continue
            if lane is None or task.job is not job or task.needs is not needs:
                job, needs = task.job, task.needs
                assert needs is not None
                lane = self._lane(now, job, needs)
                bucket = None
            priority = task.priority
            key = (task.queued_at - priority * MINUTE << PRIORITY_BITS) + priority
            if bucket is None or bucket.key != key:
                bucket = lane.buckets.get(key)
                if bucket is None:
                    bucket = lane.buckets[key] = _Bucket(lane, key)
                    heappush(lane.keys, key)
                    if lane.keys[0] == key:
                        self._improved(lane)
            bucket.fresh.append(task)
            buckets_of[task] = bucket
            lane.count += 1

    def remove(self, now: int, tasks: Iterable[DagTask]) -> None:
        """Those that are not here are none of its concern."""
        for task in tasks:
            bucket = self.buckets_of.pop(task, None)
            if bucket is None:
                continue
            lane = bucket.lane
            lane.count -= 1
            lane.stale += 1
            lane.is_changed = lane.queue.is_changed = lane.queue.group.is_changed = True
            if not lane.count:
                self._drop(now, lane)
                continue
            if lane.stale > STALE_LIMIT and lane.stale > lane.count:
                lane.clean()
            elif bucket.key != lane.keys[0] or lane.head() is bucket:
                continue
            # A lane that was served lately may rank better by a later task of a higher priority.
            self._improved(lane)

    def best(self) -> Queue | None:
        """Whose turn it is, of those that are not parked."""
        group = self._rotation.best()
        return None if group is None else group.next

    def take(self, now: int, queue: Queue, lane: TaskLane) -> DagTask:
        """The next task of the queue that `best` has just told, and of its next lane."""
        turned = lane.buckets[lane.keys[0]].turned  # `best` has cleared its end of removed ones
        task = (turned or lane.head().turned).pop()
        del self.buckets_of[task]
        lane.count -= 1
        lane.is_changed = queue.is_changed = queue.group.is_changed = True
        queue.turn = next(self._numbers)
        if lane.count:
            lane.served_at = now
        else:
            self._drop(now, lane)
        return task

    def gave_task(self, lane: TaskLane, part: int) -> None:
        """The task that was just taken fills so much of a core."""
        lane.given += part
        # A source has turns by tasks.
        if lane.given >= TURN or self._sources:
            self.end_turn(lane)

    def end_turn(self, lane: TaskLane) -> None:
        """Others of its queue come first now."""
        lane.given = 0
        lane.turn = next(self._numbers)
        lane.is_changed = lane.queue.is_changed = lane.queue.group.is_changed = True

    # -- sources

    def offer(self, now: int, source: Source) -> None:
        """It has other tasks ready than before, or none."""
        lane = self._sources.get(source)
        count = source.ready
        if not count:
            if lane is not None:
                self._emptied(now, lane)
            return
        if lane is None:
            queue = self._queue(now, source.needs)
            assert source.job not in queue.lanes, "a job has one source for the same needs"
            lane = SourceLane(queue, source, next(self._numbers), self._debts.pop(source, 0))
            self._sources[source] = queue.lanes[lane.job] = lane
        lane.count = count
        lane.is_changed = True
        self._improved(lane)

    def withdraw(self, now: int, source: Source) -> None:
        """It is over."""
        lane = self._sources.get(source)
        if lane is not None:
            self._emptied(now, lane)
        self._debts.pop(source, None)

    def gave(self, now: int, lane: SourceLane, count: int) -> None:
        """So many were drawn from the source whose turn it was."""
        self._had_turn(lane)
        lane.debt = count - 1
        lane.served_at = now
        lane.count = lane.source.ready
        if not lane.count:
            self._emptied(now, lane)

    def pass_turn(self, lane: SourceLane) -> None:
        """It has had this turn already."""
        lane.debt -= 1
        self._had_turn(lane)

    def _had_turn(self, lane: SourceLane) -> None:
        queue = lane.queue
        lane.is_changed = queue.is_changed = queue.group.is_changed = True
        lane.turn = queue.turn = next(self._numbers)

    def _emptied(self, now: int, lane: SourceLane) -> None:
        del self._sources[lane.source]
        if lane.debt:
            self._debts[lane.source] = lane.debt
        lane.queue.is_changed = lane.queue.group.is_changed = True
        self._drop(now, lane)

    # -- waiting for workers or limits

    def park_group(self, group: QueueGroup) -> None:
        group.is_parked = True
        group.place = None
        self.parked_groups[group] = None

    def wake_group(self, group: QueueGroup) -> None:
        group.is_parked = False
        del self.parked_groups[group]
        if group.refresh():
            self._rotation.enter(group)

    def park(self, queue: Queue, key: str, until: int = NEVER) -> None:
        """Until the key is woken, or the time has come."""
        queue.parked_on = key
        queue.parked_until = until
        queue.place = None
        queue.group.is_changed = True
        self._by_key.setdefault(key, {})[queue] = None
        if until < NEVER:
            heappush(self._timed, (until, next(self._numbers), queue))

    def wake_key(self, key: str) -> None:
        for queue in list(self._by_key.get(key, ())):
            self._wake(queue)

    def wake_due(self, now: int) -> None:
        while self.next_due_at <= now:
            self._wake(self._timed[0][2])

    @property
    def next_due_at(self) -> int:
        """When a queue is to be woken."""
        timed = self._timed
        while timed:
            until, _, queue = timed[0]
            if queue.parked_until == until:
                return until
            heappop(timed)
        return NEVER

    # -- what people ask

    def ahead_of(self, job: object, groups: Sequence[QueueGroup]) -> int | None:
        """How many tasks of these groups come before the first of the job, as things are; None: it has none there."""
        ranks: list[tuple[int, int, Lane]] = []
        for group in groups:
            for queue in group.queues.values():
                for lane in queue.lanes.values():
                    ranks.append((lane.present_rank(), lane.turn, lane))
        own = min([(band, turn) for band, turn, lane in ranks if lane.job is job], default=None)
        if own is None:
            return None
        better = [(band, lane) for band, turn, lane in ranks if (band, turn) < own]
        return sum(lane.count if band < own[0] else 1 for band, lane in better)

    # -- how it is done

    def _lane(self, now: int, job: TaskOwner, needs: Needs) -> TaskLane:
        queue = self._queue(now, needs)
        lane = queue.lanes.get(job)
        if lane is None:
            lane = queue.lanes[job] = TaskLane(queue, job, next(self._numbers), self.buckets_of)
        assert type(lane) is TaskLane, "a job has tasks or sources"
        return lane

    def _queue(self, now: int, needs: Needs) -> Queue:
        queue = self.queues.get(needs)
        return self._new_queue(now, needs) if queue is None else queue

    def _new_queue(self, now: int, needs: Needs) -> Queue:
        key = group_key(needs)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = QueueGroup(key, self._numbers)
        queue = Queue(group, needs, next(self._numbers), self._numbers)
        self.queues[needs] = group.queues[needs] = queue
        self._limits.say(now, needs.limits)
        return queue

    def _improved(self, lane: Lane) -> None:
        """Its best task is another: let it, its queue and their group rank as they may now."""
        band = lane.rank()
        queue = lane.queue
        queue.is_changed = queue.group.is_changed = True
        if lane.place is None or band < lane.band:
            lane.band = band
            queue.rotation.enter(lane)
        if queue.parked_on is None:
            self._enter_queue(queue, band)

    def _enter_queue(self, queue: Queue, band: int) -> None:
        group = queue.group
        group.is_changed = True
        if queue.place is None or band < queue.band:
            queue.band = band
            group.rotation.enter(queue)
        if group.is_parked:
            return
        if group.place is None or (band, queue.turn) < (group.band, group.turn):
            group.band, group.turn = band, queue.turn
            self._rotation.enter(group)

    def _wake(self, queue: Queue) -> None:
        self._unpark(queue)
        queue.refresh()
        self._enter_queue(queue, queue.band)

    def _unpark(self, queue: Queue) -> None:
        key = queue.parked_on
        if key is None:
            return
        queue.parked_on = None
        queue.parked_until = NEVER
        others = self._by_key[key]
        del others[queue]
        if not others:
            del self._by_key[key]

    def _drop(self, now: int, lane: Lane) -> None:
        """The lane is empty."""
        queue = lane.queue
        lane.place = None
        if type(lane) is TaskLane:
            lane.buckets = {}  # places of removed tasks: the lane itself may stay in a heap for a while
        del queue.lanes[lane.job]
        if queue.lanes:
            return
        group = queue.group
        queue.let_go()
        del self.queues[queue.needs], group.queues[queue.needs]
        self._unpark(queue)
        self._limits.unsay(now, queue.needs.limits)
        if group.queues:
            return
        group.let_go()
        del self.groups[group.key]
        self.parked_groups.pop(group, None)
