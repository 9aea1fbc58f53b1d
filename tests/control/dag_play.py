"""The keeper of dag jobs on a store in memory; the test is its workers, its clients and its shell."""

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from talka.control.dags.job import DagJob
from talka.control.dags.keeper import DagKeeper, Edit
from talka.control.dags.keeper_limits import KEEPER_LIMITS, KeeperLimits
from talka.control.tasks.store_effects import (
    CallAnswered,
    Commit,
    DagEnded,
    RaiseEpoch,
    ReadOutputs,
    WorkerDropped,
    WorkerTooOld,
)
from talka.control.tasks.task import DagTask
from talka.control.tasks.worker_link import ToWorker, WorkerBeat
from talka.store.dags.sqlite import SqliteRecords
from talka.units import SECOND
from talka.wire.attempts import NOWHERE, StoreLife
from talka.wire.jobs import WorkerFacts
from talka.wire.task_views import WhyView
from talka.wire.tasks import AssignTasks, Done, HandedTask, Outcome, ResultsStored, TaskResult, WorkerMessage
from talka.work.dags.dag import CodeBundle, DagSettings, DagSpec, TaskSpec
from talka.work.dags.elements import fans_of, whole_specs
from talka.work.dags.records import Change, DropElements, JobRow, PutStreams, TaskKey, TaskRow

WALL_OFFSET_NS = 1_700_000_000 * SECOND
ALL = 1 << 32
Kind = TypeVar("Kind")


class DagPlay:
    """Commits and reads are done at once, unless they are held."""

    def __init__(
        self, epoch: int = 1, seed: int = 7, life: StoreLife = NOWHERE, limits: KeeperLimits = KEEPER_LIMITS
    ) -> None:
        self.life = life
        self.limits = limits
        self.records = SqliteRecords(":memory:")
        self.epoch = epoch
        self.now = self.start = 100 * SECOND
        self.seed = seed
        self.blobs: dict[str, bytes] = {}
        self.calls = 0
        self.given: dict[int, tuple[str, HandedTask]] = {}
        """All attempts that were ever handed, by fence, and to whom."""
        self._forget_all()
        self.keeper = self._new()

    def _forget_all(self) -> None:
        self.told_all: list[ToWorker] = []
        self.hands: list[tuple[str, HandedTask]] = []
        self.handed: dict[int, HandedTask] = {}
        self.took: list[int] = []
        self.answers: list[CallAnswered] = []
        self.ended: list[DagEnded] = []
        self.news: list[RaiseEpoch | WorkerDropped | WorkerTooOld] = []
        self.commits: list[Commit] = []
        self.fetches: list[ReadOutputs] = []
        self._open_commits: deque[Commit] = deque()
        self._open_fetches: deque[ReadOutputs] = deque()
        self._holds_commits = self._holds_reads = False

    def _new(self) -> DagKeeper:
        return DagKeeper(
            epoch=self.epoch,
            next_number=self.records.next_number(),
            rng=Random(f"{self.seed}/{self.epoch}"),
            wall_offset_ns=WALL_OFFSET_NS,
            life=self.life,
            limits=self.limits,
            sign=lambda digest: f"word for {digest[:4]}".encode(),
        )

    # The shell.

    def take(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Commit():
                    self.commits.append(effect)
                    self._open_commits.append(effect)
                case ReadOutputs():
                    self.fetches.append(effect)
                    self._open_fetches.append(effect)
                case ToWorker(worker=to, message=message):
                    self.told_all.append(effect)
                    if isinstance(message, AssignTasks):
                        self.hands += [(to, task) for task in message.tasks]
                        self.handed.update({task.fence: task for task in message.tasks})
                        self.given.update({task.fence: (to, task) for task in message.tasks})
                    elif isinstance(message, ResultsStored):
                        self.took += message.fences
                case CallAnswered():
                    self.answers.append(effect)
                case DagEnded():
                    self.ended.append(effect)
                case RaiseEpoch() | WorkerDropped() | WorkerTooOld():
                    self.news.append(effect)
                case _:
                    raise AssertionError(effect)
        while self._open_commits and not self._holds_commits:
            self.commit()
        while self._open_fetches and not self._holds_reads:
            self.fetched()

    def hold(self) -> None:
        self._holds_commits = True

    def hold_reads(self) -> None:
        self._holds_reads = True

    def release(self) -> None:
        self._holds_commits = self._holds_reads = False
        self.take([])

    def release_commits(self) -> None:
        self._holds_commits = False
        self.take([])

    @property
    def waits(self) -> tuple[int, int]:
        """Commits and reads that are held."""
        return len(self._open_commits), len(self._open_fetches)

    def commit(self) -> None:
        """The oldest of those that are held."""
        commit = self._open_commits.popleft()
        self._apply(commit.changes)
        self.take(self.keeper.on_committed(self.now, commit.ticket))

    def commit_together(self) -> None:
        """All that are held, in one transaction."""
        commits = [self._open_commits.popleft() for _ in range(len(self._open_commits))]
        self._apply([change for commit in commits for change in commit.changes])
        self.take(self.keeper.on_committed(self.now, *[commit.ticket for commit in commits]))

    def _apply(self, changes: Sequence[Change]) -> None:
        """Jobs have as much of what attempts wrote as they say."""
        self.records.apply(changes)
        if any(isinstance(change, PutStreams | DropElements) for change in changes):
            for row in self.records.jobs((), ALL, ALL):
                assert row.output_bytes == sum([one.kept for one in self.records.stream_sizes(row.number, 0, ALL)])

    def fetched(self, outputs: Mapping[TaskKey, bytes] | None = None) -> None:
        """Answer the oldest read that is held, with these outputs or those of the store."""
        fetch = self._open_fetches.popleft()
        found = self.records.specs(fetch.specs)
        specs = whole_specs(found, self.records.specs(fans_of(found)))
        if outputs is None:
            outputs = {
                key: self.blobs[blob] if blob else output
                for key, (output, blob) in self.records.outputs(fetch.outputs).items()
                if not blob or blob in self.blobs
            }
        self.take(self.keeper.on_fetched(self.now, fetch.ticket, specs, outputs))

    def restart(self, seconds: float = 1.0, page: int = 100) -> None:
        """The manager dies, and a new life goes on with what was durable."""
        self._forget_all()
        self.now += round(seconds * SECOND)
        self.epoch += 1
        self.keeper = self._new()
        for row in self.records.live_jobs():
            self.keeper.restore_job(self.now, row)
            after = -1
            while live := self.records.live_tasks(row.number, after, page):
                first, after = live[0].index, live[-1].index
                streams = self.records.stream_sizes(row.number, first, after - first + 1)
                self.keeper.restore_tasks(self.now, row.number, live, streams)
            self.keeper.restore_fans(row.number, self.records.fans(row.number))
            self.keeper.restore_times(row.number, self.records.times(row.number, 0, ALL))

    def go_on(self) -> None:
        self.take(self.keeper.restored(self.now))

    # Clients.

    def submit(
        self,
        tasks: Mapping[str, Any],
        *,
        key: str = "",
        keyed: Any = None,
        bundle: CodeBundle | None = None,
        **settings: Any,
    ) -> str:
        """`tasks`: by id what it depends on, or fields of its spec. The id of the job."""
        spec = DagSpec(name="n", tasks=specs_of(tasks), settings=DagSettings(**settings), bundle=bundle)
        number = self._next_number()
        self.take(self.keeper.submit(self.now, self._call(), spec, key=key, by="me", keyed=keyed or {}))
        found = [row.id for row in self.records.jobs((), number + 1, 1) if row.number == number]
        return found[0] if found else self.keeper.jobs[number].row.id

    def _next_number(self) -> int:
        return max([self.records.next_number(), *[number + 1 for number in self.keeper.jobs]])

    def begin(self, **more: Any) -> str:
        return self.keeper.begin(self.now, "n", DagSettings(), **more)

    def add(self, draft: str, tasks: Mapping[str, Any]) -> None:
        self.take(self.keeper.add(self.now, self._call(), draft, specs_of(tasks)))

    def end(self, draft: str, keyed: Any = None) -> None:
        self.take(self.keeper.end(self.now, self._call(), draft, keyed=keyed or {}))

    def change(self, id: str, what: str, *arguments: Any) -> None:
        self.take(self.keeper.change(self.now, self._call(), id, lambda job: getattr(job, what)(self.now, *arguments)))

    def rerun(self, id: str, *ids: str, configs: Mapping[str, msgspec.Raw] | None = None) -> None:
        row = self.records.job(id)
        assert row is not None
        live = self.records.live_tasks(row.number, -1, 10_000)
        edits = []
        for name, config in (configs or {}).items():
            task = self.records.task(row.number, name)
            assert task is not None
            found = {(row.number, task.index): (task.spec, task.checkpoint)}
            ((spec, checkpoint),) = whole_specs(found, self.records.specs(fans_of(found))).values()
            edits.append(Edit(task.index, spec, checkpoint, config))
        streams = self.records.stream_sizes(row.number, 0, ALL)
        ended = (row, live, streams, self.records.fans(row.number))
        self.take(self.keeper.rerun(self.now, self._call(), id, ids, edits, ended))

    def why(self, id: str, task: str) -> WhyView:
        job = self.job(id)
        found = job.tasks[job.index_by_id()[task]]
        return self.keeper.why(self.now, id, task, found.index, found.state)

    def _call(self) -> int:
        self.calls += 1
        return self.calls

    # Workers.

    def beat(self, name: str, *, boot: int = 1, folder: int = 7, cores: int = 4, number: int = 0, **more: Any) -> None:
        """`remembers`: the highest epoch it has obeyed, and whose."""
        remembers = more.pop("remembers", (0, NOWHERE))
        names = more.pop("names", True)
        facts = WorkerFacts(cores, folder=folder, handlers=more.pop("handlers", ("h",)), **more)
        beat = WorkerBeat(name, boot, number, facts, cores, facts.state, *remembers, names=names)
        self.take(self.keeper.on_beat(self.now, beat))

    def lose(self, name: str, boot: int = 1) -> None:
        self.take(self.keeper.on_worker_lost(self.now, name, boot, "its lease is over"))

    def hear(self, name: str, message: WorkerMessage) -> None:
        self.take(self.keeper.on_message(self.now, name, message))

    def results(self, results: Sequence[TaskResult], worker: str = "w") -> None:
        """As a worker tells them: each names the task it was handed, unless it says so itself."""
        named = [
            result
            if result.job or result.fence not in self.given
            else msgspec.structs.replace(
                result, job=self.given[result.fence][1].job, task=self.given[result.fence][1].id
            )
            for result in results
        ]
        self.hear(worker, Done(tuple(named), self.life))

    def result(self, fence: int, outcome: Outcome = "completed", *, worker: str = "", **fields: Any) -> None:
        """By the worker that was handed it, unless another is named."""
        worker = worker or self.given.get(fence, ("w", None))[0]
        self.results([TaskResult(fence, outcome, **fields)], worker)

    def done(self, id: str, *, worker: str = "", output: bytes | None = None) -> None:
        output = msgspec.json.encode(id) if output is None else output
        self.result(self.fence(id), output=output, worker=worker or self.worker_of(id))

    # Time.

    def pass_time(self, seconds: float) -> None:
        end = self.now + round(seconds * SECOND)
        for _ in range(10_000):
            if self.keeper.next_tick_at > end:
                break
            self.now = max(self.now, self.keeper.next_tick_at)
            self.take(self.keeper.tick(self.now))
        else:
            raise AssertionError("it is due again and again")
        self.now = end

    # What is seen.

    def told(self, kind: type[Kind]) -> list[tuple[str, Kind]]:
        return [(one.worker, one.message) for one in self.told_all if isinstance(one.message, kind)]

    def said(self, kind: type[Kind]) -> list[Kind]:
        return [message for _, message in self.told(kind)]

    def changes(self, kind: type[Kind]) -> list[Kind]:
        return [change for commit in self.commits for change in commit.changes if isinstance(change, kind)]

    def names(self) -> set[str]:
        """Of tasks that were handed to anybody."""
        return {task.id for _, task in self.hands}

    def fence(self, id: str) -> int:
        """Of the attempt that was handed last."""
        return [task.fence for _, task in self.hands if task.id == id][-1]

    def worker_of(self, id: str) -> str:
        return [to for to, task in self.hands if task.id == id][-1]

    def job(self, id: str) -> DagJob:
        job = self.keeper.job(id)
        assert job is not None
        return job

    def task(self, id: str) -> DagTask:
        """As it is in memory; ids of a test's jobs differ."""
        (found,) = [task for job in self.keeper.jobs.values() for task in job.tasks if task.id == id]
        return found

    def row(self, index: int, job: int = 1) -> TaskRow:
        """As it is in the store."""
        return self.records.tasks(job, (), index - 1, 1)[0]

    def job_row(self, number: int = 1) -> JobRow | None:
        return next((row for row in self.records.jobs((), number + 1, 1) if row.number == number), None)


def specs_of(tasks: Mapping[str, Any]) -> tuple[TaskSpec, ...]:
    return tuple(
        [
            TaskSpec(
                id=id, **{"handler": "h"} | (fields if isinstance(fields, dict) else {"depends_on": tuple(fields)})
            )
            for id, fields in tasks.items()
        ]
    )
