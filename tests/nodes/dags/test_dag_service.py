"""The port of dag jobs on a real store: what is asked there, what is answered, and what a restart finds."""

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from talka.client.dags import DagEnd
from talka.client.requests import (
    BundleMissing,
    Conflict,
    NobodyCanRun,
    NoSuchJob,
    NoSuchSchedule,
    NoSuchTask,
    TooBusy,
    problem_of,
)
from talka.clock import boottime_ns, both_clocks, realtime_ns
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keeper_limits import KEEPER_LIMITS, KeeperLimits
from talka.control.member.metrics import Counted
from talka.control.tasks.clock_watch import ClockWatch
from talka.control.tasks.delivery import DeliveryLimits
from talka.control.tasks.epoch_floor import PAUSE_NS
from talka.control.tasks.partition import WHOLE, Partition
from talka.control.tasks.schedules import ScheduleLimits
from talka.control.tasks.store_effects import (
    CallAnswered,
    Commit,
    DagEnded,
    RaiseEpoch,
    ReadOutputs,
    WorkerDropped,
    WorkerTooOld,
)
from talka.control.tasks.store_hold import LEASE_NS
from talka.control.tasks.worker_link import ToWorker, WorkerBeat
from talka.errors import Invalid, Unavailable
from talka.nodes.dags import dag_requests
from talka.nodes.dags.dag_opening import open_dags
from talka.nodes.dags.dag_reading import ReadingLimits
from talka.nodes.dags.dag_service import DagService, ServiceLimits
from talka.nodes.dags.dag_views import spec_of
from talka.nodes.dags.notice_sender import NO_NOTICES
from talka.nodes.dags.store_upkeep import UpkeepLimits
from talka.stats.time_buckets import TimeBuckets
from talka.store.dags.memory import StoreMemory
from talka.store.dags.records import RecordsUnavailable, StoreGone, StoreLost, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import FileLimits
from talka.store.dags.sqlite_store import SqliteStore
from talka.store.dags.sqlite_thread import ThreadLimits
from talka.store.files.blobs import Blobs
from talka.units import MILLISECOND, NEVER
from talka.wire.attempts import NOWHERE, Dropped, StoreLife
from talka.wire.jobs import WorkerFacts
from talka.wire.task_views import BackfillRequest, DagFacts, RetryRequest, SkipRequest, TaskWants, TaskWorkers
from talka.wire.tasks import (
    AssignTasks,
    Done,
    HandedTask,
    Held,
    ResultsStored,
    TaskLine,
    TaskProgress,
    TaskResult,
    WorkerMessage,
)
from talka.work.dags.dag import BadDag, CodeBundle, DagHead, DagSettings, DagSpec, Limit, Param, Retry, TaskSpec
from talka.work.dags.records import Change, PutJob, PutSchedule, ScheduleRow
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.retention import WEEK, Keep, ManagerKeeps, Retention

ONCE = DagSettings(retry=Retry(max=0))
MONTH_NS = 30 * 86_400 * 10**9


def both(keep: Keep) -> Retention:
    return Retention(keep, keep)


FOR_EVER = both(Keep(NEVER, 99))
RARELY = "0 0 29 2 *"
"""Hardly at the moment of a test."""


def done_of(node: "Node", task: HandedTask, outcome: Any, **fields: Any) -> Done:
    """As the worker tells it that was handed the task."""
    result = TaskResult(task.fence, outcome, job=task.job, task=task.id, **fields)
    keeper = node.jobs.keepers.of_job(task.job)
    assert keeper is not None
    return Done((result,), keeper.floor.life)


WORKER = WorkerFacts(4, folder=7, handlers=("h",))


class Node:
    """A manager around the port; the test is its worker."""

    jobs: DagService

    def __init__(
        self,
        folder: Path,
        owner: str = "owner",
        *,
        partitions: tuple[Partition, ...] = (WHOLE,),
        file: FileLimits = FileLimits(),  # noqa: B008 - a value
        thread: ThreadLimits = ThreadLimits(),  # noqa: B008 - a value
        **limits: Any,
    ) -> None:
        self.owner = owner
        self.notices = NO_NOTICES
        self.partitions = partitions
        self.lost: list[int] = []
        """Partitions that the manager was told to drop."""
        self.limits = ServiceLimits(**limits)
        self.manager = self
        self.clock = ClockWatch(*both_clocks())
        self.next_tick_at = 1 << 63  # always later than what the keeper wants: it is told of everything
        self.hands: list[HandedTask] = []
        self.took: list[int] = []
        self.events: list[dict[str, Any]] = []
        self.broken: list[Exception] = []
        self.told: list[Any] = []
        self.code: set[str] = set()
        """Digests of bundles that were uploaded."""
        self.moved = asyncio.Event()
        self.home = folder / owner
        self.home.mkdir(exist_ok=True)
        self.records = SqliteRecords(str(folder / "store.db"), "NORMAL", limits=file)
        self.blobs = Blobs(folder / "store.blobs")
        self.store = SqliteStore(self.records, self.blobs, thread)

    async def open(self) -> None:
        try:
            self.jobs = await open_dags(
                self,  # type: ignore[arg-type]
                self.store,
                self.home,
                self.owner,
                lambda event: self.note(self.events, event),
                lambda error: self.note(self.broken, error),
                limits=self.limits,
                partitions=self.partitions,
                notices=self.notices,
            )
        except BaseException:
            await self.store.close()
            raise

    @property
    def keeper(self) -> DagKeeper:
        """Of the only partition."""
        (keeper,) = self.jobs.keepers
        return keeper

    def note(self, where: list[Any], what: Any) -> None:
        where.append(what)
        self.moved.set()

    def done(self, answer: Any) -> None:
        """Of a submission that is not awaited."""
        self.note(self.told, answer)

    # As the node does.

    def act(self, now: int, effects: list[object]) -> list[object]:
        return effects

    def drop_keeper(self, now: int, partition: int) -> None:
        self.note(self.lost, partition)

    def perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case ToWorker(message=AssignTasks(tasks=tasks)):
                    self.hands += tasks
                case ToWorker(message=ResultsStored(fences=fences)):
                    self.took += fences
                case Commit() | ReadOutputs() | CallAnswered() | DagEnded():
                    self.jobs.carry_out(effect)
                case RaiseEpoch() | WorkerDropped() | WorkerTooOld():
                    self.jobs.carry_out(effect)
                case _:
                    pass
        self.moved.set()

    def word_for(self, digest: str) -> bytes:
        return b"word"

    def check_bundle(self, bundle: CodeBundle) -> None:
        if bundle.digest not in self.code:
            raise BundleMissing("this manager has no such bundle")

    # The worker.

    def beat(self, *handlers: str, accepts_code: bool = False) -> None:
        facts = WorkerFacts(4, folder=7, handlers=handlers or ("h",), accepts_code=accepts_code)
        self.perform(self.jobs.keepers.on_beat(boottime_ns(), WorkerBeat("w", 1, 0, facts, 4, "healthy", 0, NOWHERE)))

    def hear(self, message: WorkerMessage) -> None:
        self.perform(self.jobs.keepers.on_message(boottime_ns(), "w", message))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.moved.clear()
                await self.moved.wait()

    async def handed(self, id: str, count: int = 1) -> HandedTask:
        """The n-th attempt of a task of that id."""
        await self.until(lambda: len([task for task in self.hands if task.id == id]) >= count)
        return [task for task in self.hands if task.id == id][count - 1]

    async def finish(self, id: str, outcome: Any = "completed", count: int = 1, **fields: Any) -> None:
        task = await self.handed(id, count)
        if outcome == "completed":
            fields = {"output": msgspec.json.encode(id), **fields}
        self.hear(done_of(self, task, outcome, **fields))
        await self.until(lambda: task.fence in self.took)

    async def ended(self, id: str) -> DagFacts:
        await self.until(lambda: self.jobs._job(id) is None)
        return await self.jobs.dag(id)

    async def tick(self) -> None:
        self.perform([effect for keeper in self.jobs.keepers for effect in keeper.tick(boottime_ns())])


NodeOf = Callable[..., Any]
IDLE = {"lease_every_s": 3600.0, "sweep_s": 3600.0, "schedule_s": 3600.0}


@pytest.fixture
async def node_of(tmp_path: Path) -> AsyncIterator[NodeOf]:
    nodes: list[Node] = []

    async def make(**more: Any) -> Node:
        node = Node(tmp_path, **more)
        await node.open()
        nodes.append(node)
        await node.jobs.start()
        return node

    yield make
    for node in nodes:
        await node.jobs.close()


@pytest.fixture
async def node(node_of: NodeOf, request: pytest.FixtureRequest) -> Node:
    """With a parameter: limits of its keeper."""
    made: Node = await node_of(keeper=getattr(request, "param", KEEPER_LIMITS))
    return made


@pytest.fixture
async def idle_node(node_of: NodeOf) -> Node:
    """It does its chores only when the test says so."""
    made: Node = await node_of(**IDLE)
    return made


def dag(tasks: dict[str, Any], settings: DagSettings = DagSettings(), **more: Any) -> DagSpec:  # noqa: B008 - a value
    """It waits for workers, for many tests have none yet."""
    return DagSpec(
        name=more.pop("name", "n"), tasks=specs(tasks), settings=settings, **({"wait_for_workers": True} | more)
    )


def specs(tasks: dict[str, Any]) -> tuple[TaskSpec, ...]:
    return tuple(
        [
            TaskSpec(id=id, handler="h", **(fields if isinstance(fields, dict) else {"depends_on": tuple(fields)}))
            for id, fields in tasks.items()
        ]
    )


# Submitting.


def commits_of(metrics: dict[str, Counted]) -> int:
    """Those that are durable and whose time was taken."""
    times = metrics["dag_store_commit_seconds"]
    assert isinstance(times, TimeBuckets)
    return times.up_to()[-1][1]


async def test_a_job_runs_from_submission_to_its_end(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a"}), "", "me")
    assert (facts.state, facts.tasks, facts.submitted_by, facts.exit_code) == (JobState.RUNNING, 2, "me", None)
    assert node.records.job(facts.id) is not None, "from the answer on it is on disk"
    await node.finish("a")
    assert (await node.handed("b")).inputs == {"a": b'"a"'}
    await node.finish("b")
    end = await node.ended(facts.id)
    assert (end.state, end.exit_code, end.counts) == (JobState.COMPLETED, 0, {"completed": 2})
    assert end.ended_at and node.jobs.counts == {"completed": 1}
    assert node.events == [], "there may be thousands a second that just complete"
    metrics = node.jobs.metrics()
    assert metrics["dag_jobs_ended_total"] == {"completed": 1}
    assert commits_of(metrics) >= 3, "of the job, and of each of its results"
    assert (metrics["dag_store_commits_waiting"], metrics["dag_store_oldest_commit_seconds"]) == (0, 0)


async def test_a_bad_job_is_refused(node: Node) -> None:
    with pytest.raises(BadDag, match="there is no such task"):
        await node.jobs.submit_dag(dag({"a": "z"}), "", "")
    node.jobs.submit_soon(dag({"a": "z"}), "", "", node.done)
    assert [type(one) for one in node.told] == [BadDag]


async def test_a_task_is_on_its_way_before_its_submission_is_answered(node: Node) -> None:
    node.beat()
    handed: list[list[str]] = []
    node.jobs.submit_soon(dag({"a": ""}), "", "", lambda _: handed.append([task.id for task in node.hands]))
    await node.handed("a")
    await node.until(lambda: bool(handed))
    assert handed == [["a"]]


async def test_the_same_key_is_the_same_job_and_it_is_told_once_it_is_durable(node: Node) -> None:
    spec = dag({"a": ""})
    first, second = await asyncio.gather(
        *[node.jobs.submit_dag(spec, "k", "") for _ in range(2)], return_exceptions=True
    )
    assert isinstance(first, DagFacts)
    if isinstance(second, Conflict):  # at the very same moment
        second = await node.jobs.submit_dag(spec, "k", "")
    assert isinstance(second, DagFacts)
    assert first.id == second.id
    with pytest.raises(Conflict, match="was used for another job"):
        await node.jobs.submit_dag(dag({"b": ""}), "k", "")
    node.beat()
    await node.finish("a")
    await node.ended(first.id)
    assert (await node.jobs.submit_dag(spec, "k", "")).id == first.id, "also after its end"


async def test_a_key_that_is_about_to_be_kept_is_not_told_before(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dag({"a": ""})
    held: list[tuple[int, Any]] = []

    def hold(ticket: int, changes: Any, key: str) -> bool:
        held.append((ticket, changes))
        node.moved.set()
        return False

    monkeypatch.setattr(node.store, "commit", hold)
    first = asyncio.ensure_future(node.jobs.submit_dag(spec, "k", ""))
    await node.until(lambda: len(held) == 1)
    second = asyncio.ensure_future(node.jobs.submit_dag(spec, "k", ""))
    await node.until(lambda: len(held) == 2)
    assert not first.done() and not second.done()
    monkeypatch.undo()
    for ticket, changes in held:
        node.jobs.carry_out(Commit(ticket, changes))
    assert (await first).id == (await second).id


async def test_submissions_that_nobody_awaits_are_answered_each(node_of: NodeOf) -> None:
    node = await node_of(thread=ThreadLimits(quiet_ns=1 << 40))  # but for the first there is no silence before them
    for number in range(20):
        node.jobs.submit_soon(dag({f"t{number}": ""}), "", "me", node.done)
    assert len(node.told) <= 1, "the first may hold at once, the others go together"
    assert all(node.records.job(one.id) is not None for one in node.told)
    node.jobs.submit_soon(dag({"k": ""}), "key", "me", node.done)
    await node.until(lambda: len(node.told) == 21)
    assert len({one.id for one in node.told}) == 21
    node.jobs.submit_soon(dag({"z": ""}), "key", "me", node.done)
    await node.until(lambda: len(node.told) == 22)
    assert isinstance(node.told[-1], Conflict)


async def test_the_first_job_of_a_turn_is_on_its_way_at_once_and_the_others_go_in_one_commit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    commit = node.store.commit

    def counted(ticket: int, changes: Sequence[Change], key: str = "") -> bool:
        commits.append(sum(isinstance(change, PutJob) for change in changes))
        return commit(ticket, changes, key)

    monkeypatch.setattr(node.store, "commit", counted)
    for number in range(5):
        node.jobs.submit_soon(dag({f"t{number}": ""}), "", "", node.done, is_brief=True)
    assert commits == [1]
    await node.until(lambda: len(node.told) == 5)
    assert [jobs for jobs in commits if jobs] == [1, 4]
    assert all(node.records.job(one.id) is not None for one in node.told)
    assert {(one.name, one.state, one.submitted_at) for one in node.told} == {("n", JobState.RUNNING, "")}, "brief"
    node.jobs.submit_soon(dag({"a": ""}), "", "", node.done)
    await node.until(lambda: len(node.told) == 6)
    assert [jobs for jobs in commits if jobs] == [1, 4, 1], "another turn began"
    assert node.told[-1].tasks == 1 and node.told[-1].submitted_at


@pytest.mark.parametrize("node", [KeeperLimits(jobs=1)], indirect=True)
async def test_what_there_is_no_room_for_is_too_busy(node: Node) -> None:
    await node.jobs.submit_dag(dag({"a": ""}), "", "")
    with pytest.raises(TooBusy) as caught:
        await node.jobs.submit_dag(dag({"a": ""}), "", "")
    assert caught.value.retry_after_s == dag_requests.BUSY_S
    with pytest.raises(TooBusy):
        await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")


async def test_while_the_store_takes_nothing_nothing_is_accepted(
    node_of: NodeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await node_of(patience_s=3600.0)
    apply = node.records.apply

    def fail(changes: Any, keys: Any, **_: Any) -> list[int]:
        raise RecordsUnavailable("the disk is full")

    monkeypatch.setattr(node.records, "apply", fail)
    first = asyncio.ensure_future(node.jobs.submit_dag(dag({"a": ""}), "", ""))
    await node.until(lambda: bool(node.events))
    assert node.events[0]["text"] == "the disk is full: dag jobs wait until it can be written"
    metrics = node.jobs.metrics()
    assert (metrics["dag_store_has_problem"], metrics["dag_store_commits_waiting"]) == (1, 1)
    assert cast(float, metrics["dag_store_oldest_commit_seconds"]) > 0 and commits_of(metrics) == 0
    assert node.jobs.oldest_ns(boottime_ns()) == 0, "that nothing can be written is no load"
    with pytest.raises(Unavailable, match="the disk is full: try again later"):
        await node.jobs.submit_dag(dag({"b": ""}), "", "")
    monkeypatch.setattr(node.records, "apply", apply)
    assert (await first).state is JobState.RUNNING
    assert node.events[-1] == {"event": "store-back"}


async def test_a_store_that_answers_nonsense_breaks_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.records, "apply", lambda changes, keys, **_: 1 // 0)
    asking = asyncio.ensure_future(node.jobs.submit_dag(dag({"a": ""}), "", ""))
    await node.until(lambda: bool(node.broken))
    assert "the store failed: ZeroDivisionError" in str(node.broken[0])
    await node.jobs.close()
    with pytest.raises(Unavailable, match="this manager stops"):
        await asking


# Idempotency keys of tasks.


async def test_a_task_whose_key_was_done_before_has_that_output(node: Node) -> None:
    node.beat()
    large = b'"' + b"x" * 100_000 + b'"'
    first = await node.jobs.submit_dag(dag({"a": {"key": "ka"}, "b": {"key": "kb"}}), "", "")
    await node.finish("a", output=b"[1]")
    await node.finish("b", output=large)
    await node.ended(first.id)
    again = dag({"x": {"key": "ka"}, "y": {"key": "kb"}, "z": "xy", "new": {"key": "kc"}})
    facts = await node.jobs.submit_dag(again, "", "")
    task = await node.handed("z")
    assert {task.id for task in node.hands} == {"a", "b", "z", "new"}
    assert task.inputs == {"x": b"[1]", "y": large}
    view = await node.jobs.dag_task(facts.id, "y")
    assert (view.state, view.attempts, bytes(view.output)) == (TaskState.COMPLETED, 0, large)
    node.jobs.submit_soon(dag({"soon": {"key": "ka"}}), "", "", node.done)
    await node.until(lambda: bool(node.told))
    assert (await node.ended(node.told[0].id)).state is JobState.COMPLETED
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    await node.jobs.add_tasks(draft, specs({"part": {"key": "ka"}}))
    await node.jobs.end_dag(draft)
    assert (await node.ended(draft)).state is JobState.COMPLETED


# Params.


def dated(**more: Any) -> DagSpec:
    config = msgspec.Raw(b'{"day":"${day}","parts":"${parts}"}')
    params = {"day": Param("date"), "parts": Param("int", 4)}
    return dag({"a": {"config": config}}, params=params, **more)


async def test_a_job_is_filled_before_it_is_kept_and_shows_with_which_values_it_runs(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dated(values={"day": "2026-11-16"}), "", "")
    wanted = {"day": "2026-11-16", "parts": 4}
    assert facts.params == wanted
    assert msgspec.json.decode((await node.handed("a")).config) == wanted
    await node.finish("a")
    assert (await node.ended(facts.id)).params == wanted, "also from the store"
    assert (await node.jobs.dags("", "", 5)).items[0].params == wanted


async def test_a_job_that_cannot_be_filled_is_refused(node: Node) -> None:
    with pytest.raises(BadDag, match="param day has no default and is not given"):
        await node.jobs.submit_dag(dated(), "", "")
    node.jobs.submit_soon(dated(values={"day": "monday"}), "", "", node.done)
    assert [str(error) for error in node.told] == ['param day: "monday" is not a date: write it as 2026-11-16']
    assert not node.keeper.jobs


async def test_with_other_values_it_is_another_order_and_with_the_same_ones_the_same(node: Node) -> None:
    first = await node.jobs.submit_dag(dated(values={"day": "2026-11-16", "parts": 4}), "k", "")
    again = await node.jobs.submit_dag(dated(values={"day": "2026-11-16", "parts": "4"}), "k", "")
    default = await node.jobs.submit_dag(dated(values={"day": "2026-11-16"}), "k", "")
    assert first.id == again.id == default.id
    with pytest.raises(Conflict, match="was used for another job"):
        await node.jobs.submit_dag(dated(values={"day": "2026-11-17"}), "k", "")
    node.jobs.submit_soon(dated(values={"day": "2026-11-17"}), "k", "", node.done)
    await node.until(lambda: bool(node.told))
    assert isinstance(node.told[0], Conflict)


async def test_a_job_that_comes_in_parts_is_filled_part_by_part(node: Node) -> None:
    node.beat()

    async def stream(n: int) -> DagFacts:
        draft = await node.jobs.begin_dag(
            DagHead(name="n", params={"n": Param("int")}, values={"n": n}, wait_for_workers=True), "k", ""
        )
        for id in "ab":
            await node.jobs.add_tasks(draft, specs({id: {"config": msgspec.Raw(b'"${n}"')}}))
        return await node.jobs.end_dag(draft)

    facts = await stream(7)
    assert facts.params == {"n": 7}
    assert [(await node.handed(id)).config for id in "ab"] == [b"7", b"7"]
    assert (await stream(7)).id == facts.id
    with pytest.raises(Conflict, match="was used for another job"):
        await stream(8)


async def test_a_part_or_a_head_that_cannot_be_filled_is_refused(node: Node) -> None:
    with pytest.raises(BadDag, match='there is no param "n"'):
        await node.jobs.begin_dag(DagHead(name="n", values={"n": 1}), "", "")
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    with pytest.raises(BadDag, match="task b: its config has") as caught:
        await node.jobs.add_tasks(draft, specs({"a": "", "b": {"config": msgspec.Raw(b'"${n}"')}}))
    assert caught.value.index == 1


async def test_a_schedule_is_kept_unfilled_and_filled_for_each_instant(idle_node: Node) -> None:
    node = idle_node
    config = msgspec.Raw(b'["${scheduled_for}","${scheduled_day}","${n}"]')
    spec = dag({"a": {"config": config}}, schedule=RARELY, params={"n": Param("int")}, values={"n": "3"})
    await node.jobs.put_schedule(spec, "")
    (row,) = node.records.schedules()
    node.beat()
    for number, (due_ms, day) in enumerate([(86_400_000, "1970-01-02"), (2 * 86_400_000, "1970-01-03")], 1):
        set_clock(node, f"{day}T00:00:01Z")
        node.records.apply([PutSchedule(msgspec.structs.replace(row, next_ms=due_ms))])
        await node.jobs.follow_schedules()
        instant = f"{day}T00:00:00+00:00"
        assert msgspec.json.decode((await node.handed("a", number)).config) == [instant, day, 3]
    newest, _ = (await node.jobs.dags("", "", 5)).items
    assert newest.params == {"n": 3, "scheduled_for": instant, "scheduled_day": day}


async def test_a_schedule_that_cannot_be_filled_is_refused_when_it_is_put(idle_node: Node) -> None:
    config = msgspec.Raw(b'["${scheduled_for}","${n}"]')
    with pytest.raises(BadDag, match="param n has no default and is not given"):
        await idle_node.jobs.put_schedule(
            dag({"a": {"config": config}}, schedule=RARELY, params={"n": Param("int")}), ""
        )
    with pytest.raises(BadDag, match="there is no such param"):
        await idle_node.jobs.put_schedule(dag({"a": {"config": config}}, schedule=RARELY), "")
    with pytest.raises(BadDag, match="scheduled_for}, which only a pipeline with a schedule has"):
        await idle_node.jobs.submit_dag(dag({"a": {"config": config}}, params={"n": Param("int", 1)}), "", "")


# What nobody could run.


def wanting(**fields: Any) -> DagSpec:
    return DagSpec(name="n", tasks=(TaskSpec(id="first", handler="h"), TaskSpec(id="a", **({"handler": "h"} | fields))))


async def test_what_no_worker_could_run_is_refused_and_nothing_is_kept(node_of: NodeOf) -> None:
    node = await node_of(settle_ns=0)
    node.beat("h", "clean")
    with pytest.raises(NobodyCanRun) as caught:
        await node.jobs.submit_dag(wanting(handler="claen"), "k", "")
    assert str(caught.value) == (
        'task a: no worker has the handler "claen" (did you mean clean?); known: clean, h;'
        " start a worker that has it, or submit the job with --wait-for-workers"
    )
    assert (caught.value.task, caught.value.index, caught.value.field) == ("a", 1, "handler")
    with pytest.raises(NobodyCanRun, match='the capability "gpu"; known: none'):
        await node.jobs.submit_dag(wanting(capabilities=("gpu",)), "", "")
    node.jobs.submit_soon(wanting(handler="claen"), "", "", node.done)
    node.jobs.submit_soon(wanting(handler="claen"), "k", "", node.done)
    await node.until(lambda: len(node.told) == 2)
    assert {type(one) for one in node.told} == {NobodyCanRun} and not node.keeper.jobs


async def test_who_could_run_tasks_is_told_by_the_workers_of_now(node_of: NodeOf) -> None:
    node = await node_of()
    nobody, _ = await node.jobs.who_could_run([TaskWants("h"), TaskWants("g")])
    assert nobody == TaskWorkers('no worker has the handler "h"; no worker is known here yet')
    node.beat()
    able, unknown = await node.jobs.who_could_run([TaskWants("h"), TaskWants("g")])
    assert (able.lack, able.able, [one.worker for one in able.workers]) == ("", 1, ["w"])
    assert (unknown.lack, unknown.able) == ('no worker has the handler "g"; known: h', 0)
    assert [(one.worker, one.constraint) for one in unknown.workers] == [("w", "handler")]


async def test_what_waits_for_workers_is_taken_and_run_when_one_comes(node_of: NodeOf) -> None:
    node = await node_of(settle_ns=0)
    spec = msgspec.structs.replace(wanting(handler="later"), wait_for_workers=True)
    facts = await node.jobs.submit_dag(spec, "k", "")
    node.jobs.submit_soon(spec, "", "", node.done)
    again = await node.jobs.submit_dag(msgspec.structs.replace(spec, wait_for_workers=False), "k", "")
    assert again.id == facts.id, "it is the same order, and taken already"
    await node.until(lambda: bool(node.told))
    assert isinstance(node.told[0], DagFacts)
    node.beat("h", "later")
    await node.handed("a", 2)


async def test_a_part_that_no_worker_could_run_is_refused(node_of: NodeOf) -> None:
    node = await node_of(settle_ns=0)
    node.beat()
    draft = await node.jobs.begin_dag(DagHead(name="n"), "", "")
    assert await node.jobs.add_tasks(draft, wanting().tasks[:1]) == 1
    with pytest.raises(NobodyCanRun, match='no worker has the handler "x"'):
        await node.jobs.add_tasks(draft, wanting(handler="x").tasks[1:])
    waits = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    assert await node.jobs.add_tasks(waits, wanting(handler="x").tasks) == 2


async def test_a_schedule_is_checked_when_it_is_put_and_waits_when_it_is_due(node_of: NodeOf) -> None:
    node = await node_of(**IDLE, settle_ns=0)
    node.beat("other")
    spec = msgspec.structs.replace(wanting(handler="x"), schedule=RARELY)
    with pytest.raises(NobodyCanRun, match="known: other"):
        await node.jobs.put_schedule(spec, "")
    await node.jobs.put_schedule(msgspec.structs.replace(spec, wait_for_workers=True), "")
    (row,) = node.records.schedules()
    assert not msgspec.json.decode(row.spec).get("values")
    node.records.apply([PutSchedule(msgspec.structs.replace(row, next_ms=1000))])
    await node.jobs.follow_schedules()
    assert len(node.keeper.jobs) == 1


async def test_a_manager_that_has_just_started_refuses_nothing_for_good(node_of: NodeOf) -> None:
    young = await node_of(settle_ns=3600 * 10**9)
    with pytest.raises(Unavailable, match="has just started, and workers may still be on their way to it: try again"):
        await young.jobs.submit_dag(wanting(), "", "")
    young.beat()
    assert (await young.jobs.submit_dag(wanting(), "", "")).tasks == 2


async def test_the_workers_of_a_fleet_that_starts_again_still_count(node_of: NodeOf) -> None:
    node = await node_of(settle_ns=0)
    with pytest.raises(NobodyCanRun, match="no worker is known here yet"):
        await node.jobs.submit_dag(wanting(), "", "")
    node.beat()
    node.jobs.keepers.on_worker_lost(boottime_ns(), "w", 1, "it stopped")
    assert (await node.jobs.submit_dag(wanting(), "", "")).tasks == 2


# Drafts.


async def test_a_job_comes_in_parts(node: Node) -> None:
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "me")
    assert await node.jobs.add_tasks(draft, specs({"a": "", "b": ""})) == 2
    assert await node.jobs.add_tasks(draft, specs({"c": "ab"})) == 3
    for asking in (node.jobs.dag(draft), node.jobs.dag_tasks(draft, "", "", 5), node.jobs.cancel_dag(draft, "")):
        with pytest.raises(NoSuchJob):
            await asking
    assert (await node.jobs.dags("", "", 5)).items == [] and not await node.jobs.has_dag(draft)
    facts = await node.jobs.end_dag(draft)
    assert (facts.id, facts.tasks) == (draft, 3) and await node.jobs.has_dag(draft)
    assert [one.id for one in (await node.jobs.dags("", "", 5)).items] == [draft]
    with pytest.raises(Invalid, match="broken off"):
        await node.jobs.add_tasks(draft, specs({"d": ""}))


async def test_a_draft_that_is_dropped_or_cannot_be_ended_is_gone(node: Node) -> None:
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "k", "")
    await node.jobs.add_tasks(draft, specs({"a": ""}))
    await node.jobs.drop_dag(draft)
    await node.jobs.drop_dag(draft)
    with pytest.raises(Invalid):
        await node.jobs.end_dag(draft)
    empty = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "k", "")
    with pytest.raises(Invalid, match="has no tasks"):
        await node.jobs.end_dag(empty)
    assert not node.keeper.jobs


async def test_a_draft_whose_keys_cannot_be_read_is_dropped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    await node.jobs.add_tasks(draft, specs({"a": {"key": "k"}}))

    def fail(keys: Any) -> Any:
        raise RecordsUnavailable("locked")

    monkeypatch.setattr(node.records, "keyed", fail)
    with pytest.raises(RecordsUnavailable):
        await node.jobs.end_dag(draft)
    assert not node.keeper.jobs


async def test_so_many_are_streamed_at_a_time(node_of: NodeOf) -> None:
    node = await node_of(drafts=1)
    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    with pytest.raises(TooBusy, match="are being streamed already"):
        await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    await node.jobs.drop_dag(draft)
    await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")


async def test_a_stream_with_a_key_that_is_known_is_that_job_if_it_is_the_same(
    node_of: NodeOf,
) -> None:
    node = await node_of(page=1)

    async def stream(*parts: dict[str, Any], name: str = "n") -> DagFacts:
        draft = await node.jobs.begin_dag(DagHead(name=name, wait_for_workers=True), "k", "")
        for part in parts:
            await node.jobs.add_tasks(draft, specs(part))
        return await node.jobs.end_dag(draft)

    draft = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "k", "")
    with pytest.raises(Conflict, match="is being streamed just now"):
        await stream()
    await node.jobs.add_tasks(draft, specs({"a": "", "b": "a"}))
    first = await node.jobs.end_dag(draft)
    assert (await stream({"a": ""}, {"b": "a"})).id == first.id
    with pytest.raises(Conflict, match="was used for another job"):
        await stream({"a": ""}, {"b": ""})
    with pytest.raises(Conflict, match="was used for another job"):
        await stream({"a": ""})
    with pytest.raises(Conflict, match="was used for another job"):
        await stream({"a": "", "b": "a"}, name="other")
    with pytest.raises(Conflict):
        await node.jobs.submit_dag(dag({"a": "", "b": "a"}), "k", "")
    shadow = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "k", "")
    await node.jobs.drop_dag(shadow)
    assert len(node.keeper.jobs) == 1


async def test_a_draft_that_nobody_adds_to_is_dropped(node_of: NodeOf) -> None:
    node = await node_of(silence_s=-1.0)
    await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    await node.jobs.sweep()
    assert not node.keeper.jobs


# Looking.


async def test_pages_of_jobs(node: Node) -> None:
    node.beat()
    ids = [(await node.jobs.submit_dag(dag({f"t{number}": ""}), "", "")).id for number in range(3)]
    await node.finish("t0")
    await node.ended(ids[0])
    page = await node.jobs.dags("", "", 2)
    assert [one.id for one in page.items] == [ids[2], ids[1]]
    rest = await node.jobs.dags("", page.next, 2)
    assert [one.id for one in rest.items] == [ids[0]] and rest.next == ""
    for id, cursor in zip(ids[::-1], [*page.cursors, *rest.cursors], strict=True):
        assert [one.id for one in (await node.jobs.dags("", cursor, 1)).items] == [id], "its page begins with it"
    assert [await node.jobs.has_dag(id) for id in (*ids, "nothing")] == [True, True, True, False]
    assert [one.id for one in (await node.jobs.dags("completed", "", 9)).items] == [ids[0]]
    with pytest.raises(Invalid, match="the cursor is not known"):
        await node.jobs.dags("", "x", 2)
    with pytest.raises(NoSuchJob):
        await node.jobs.dag("nothing")


async def test_tasks_are_shown_as_memory_has_them(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "", "c": "a"}), "", "")
    task = await node.handed("a")
    node.hear(TaskProgress((task.fence,), of=node.keeper.floor.life))
    await node.until(lambda: all([row.worker for row in node.records.tasks(1, (), -1, 2)]))  # what was handed is kept
    page = await node.jobs.dag_tasks(facts.id, "", "", 2)
    assert [(one.id, one.state, one.worker) for one in page.items] == [("a", "running", "w"), ("b", "assigned", "w")]
    assert page.next == "1"
    rest = await node.jobs.dag_tasks(facts.id, "", page.next, 2)
    assert [(one.id, one.state, one.depends_on) for one in rest.items] == [("c", "pending", ["a"])] and rest.next == ""
    for state, names in (("running", ["a"]), ("assigned", ["b"]), ("pending", ["c"]), ("ready", []), ("dead", [])):
        assert [one.id for one in (await node.jobs.dag_tasks(facts.id, state, "", 9)).items] == names
    assert (await node.jobs.dag_task(facts.id, "a")).state is TaskState.RUNNING
    with pytest.raises(NoSuchTask):
        await node.jobs.dag_task(facts.id, "z")
    await node.finish("a")
    assert (await node.jobs.dag_task(facts.id, "a")).output == msgspec.Raw(b'"a"')


async def test_an_end_that_is_not_kept_yet_is_not_shown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}, ONCE), "", "")
    task = await node.handed("a")
    held: list[Any] = []
    carry_out = node.jobs.carry_out
    monkeypatch.setattr(node.jobs, "carry_out", held.append)
    node.hear(done_of(node, task, "failed", error="E: no"))
    shown = await node.jobs.dag(facts.id)
    assert (shown.state, shown.exit_code) == (JobState.COMPLETING, None)
    assert not is_final((await node.jobs.dag_task(facts.id, "a")).state)
    monkeypatch.undo()
    for effect in held:
        carry_out(effect)
    assert (await node.ended(facts.id)).state is JobState.FAILED


async def test_a_watch_tells_what_changed_and_ends_with_the_job(node_of: NodeOf) -> None:
    node = await node_of(reading=ReadingLimits(watch_s=0.001))
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a"}), "", "")
    seen: list[DagFacts] = []
    async for one in node.jobs.watch_dag(facts.id):
        seen.append(one)
        if len(seen) == 1:
            await node.finish("a")
            await node.finish("b")
    assert (seen[0].state, seen[-1].state, seen[-1].exit_code) == (JobState.RUNNING, JobState.COMPLETED, 0)
    assert all([one != other for one, other in zip(seen, seen[1:], strict=False)])


async def test_events_lines_and_the_graph(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a"}, DagSettings(retry=Retry(max=1, backoff=0.0))), "", "")
    task = await node.handed("a")
    node.hear(
        TaskProgress((), (), (TaskLine(task.fence, 5, "one"), TaskLine(task.fence, 6, "two")), node.keeper.floor.life)
    )
    await node.finish("a", "failed", error="E: no")
    page = await node.jobs.dag_events(facts.id, "", 1)
    assert [(one.kind, one.task) for one in page.items] == [("started", ""), ("retry", "a")] and page.next == ""
    lines = await node.jobs.task_logs(facts.id, "a", "", 1)
    assert [line.text for line in lines.items] == ["one"]
    lines = await node.jobs.task_logs(facts.id, "a", lines.next, 9)
    assert [line.text for line in lines.items] == ["two"] and lines.next != "", "more may come"
    graph = await node.jobs.dag_graph(facts.id)
    assert (graph.edges, graph.left_out) == ([("a", "b")], 0)
    await node.finish("a", count=2)
    await node.finish("b")
    await node.ended(facts.id)
    page = await node.jobs.dag_events(facts.id, "", 9)
    assert [(one.kind, one.text) for one in page.items] == [
        ("started", ""),
        ("retry", "attempt 1: E: no; tried again at once"),
        ("ended", "It is completed."),
    ]
    assert (await node.jobs.task_logs(facts.id, "a", lines.next, 9)).next == ""
    assert (await node.jobs.task_logs(facts.id, "b", "", 9)).next == ""
    assert (await node.jobs.why(facts.id, "a")).text.startswith("completed at ")


async def test_a_large_graph_is_cut(node_of: NodeOf) -> None:
    node = await node_of(reading=ReadingLimits(graph=2))
    facts = await node.jobs.submit_dag(dag(dict.fromkeys("abcde", "")), "", "")
    graph = await node.jobs.dag_graph(facts.id)
    assert ([task.id for task in graph.tasks], graph.left_out) == (["a", "b"], 3)


async def test_why_and_queues(node: Node) -> None:
    facts = await node.jobs.submit_dag(dag({"a": {"limits": (Limit(key="db", concurrency=1),)}}), "", "")
    why = await node.jobs.why(facts.id, "a")
    assert (why.text, [reason.constraint for reason in why.workers]) == ("it is ready to run", ["offline"])
    queues = await node.jobs.queues()
    assert [(queue.handler, queue.waiting) for queue in queues.queues] == [("h", 1)]
    assert [(limit.key, limit.waiting) for limit in queues.limits] == [("db", 1)]


# Changing.


async def test_pause_resume_skip_and_cancel(node: Node) -> None:
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "", "c": "b"}), "", "")
    assert (await node.jobs.pause_dag(facts.id)).state is JobState.PAUSED
    assert (await node.jobs.skip_dag(facts.id, SkipRequest(("a",)))).counts["skipped"] == 1
    assert (await node.jobs.resume_dag(facts.id)).state is JobState.RUNNING
    node.beat()
    await node.handed("b")
    cancelling = await node.jobs.cancel_dag(facts.id, "enough")
    assert (cancelling.state, cancelling.stopped) == (JobState.CANCELLING, 2)
    again = await node.jobs.cancel_dag(facts.id, "again")
    assert (again.reason, again.stopped) == ("enough", 2)
    await node.finish("b", "cancelled")
    end = await node.ended(facts.id)
    assert (end.state, end.reason, end.exit_code) == (JobState.CANCELLED, "enough", 8)
    assert end.stopped == 2
    assert (await node.jobs.cancel_dag(facts.id, "")).stopped == 2, "it has ended, and the answer is the same"
    for asking in (
        node.jobs.pause_dag(facts.id),
        node.jobs.resume_dag(facts.id),
        node.jobs.skip_dag(facts.id, SkipRequest(("a",))),
    ):
        with pytest.raises(Conflict, match="it has ended"):
            await asking
    waiting = await node.jobs.submit_dag(dag({"x": ""}), "", "")
    await node.handed("x")
    assert (await node.jobs.cancel_dag(waiting.id, "")).reason == "cancelled"


async def test_a_job_that_nobody_cancelled_stopped_nothing_and_each_names_its_datacenter(node: Node) -> None:
    node.jobs._datacenter = "fra1"
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    live = await node.jobs.dag(facts.id)
    await node.finish("a")
    end = await node.ended(facts.id)
    (listed,) = (await node.jobs.dags("", "", 9)).items
    for each in (live, end, listed):
        assert (each.stopped, each.datacenter) == (None, "fra1")


async def test_dead_letters_are_listed_and_replayed(node: Node) -> None:
    node.beat()
    ids = []
    for name in ("a", "b"):
        facts = await node.jobs.submit_dag(dag({name: {"config": msgspec.Raw(b"1")}}, ONCE), "", "")
        await node.finish(name, "failed", error="E: no", cause="E", classes=("E",))
        await node.ended(facts.id)
        ids.append(facts.id)
    page = await node.jobs.dead_letters("", 1)
    (letter,) = page.items
    assert (letter.id, letter.cause, letter.error) == (f"{ids[0]}/a", "E", "E: no")
    assert [(one.attempt, one.worker) for one in letter.attempts] == [(1, "w")]
    rest = await node.jobs.dead_letters(page.next, 1)
    assert [one.task for one in rest.items] == ["b"] and rest.next == ""
    with pytest.raises(Invalid, match="cursor"):
        await node.jobs.dead_letters("1", 1)
    assert (await node.jobs.replay(letter.id, msgspec.Raw(b"2"))).state is JobState.RUNNING
    assert (await node.handed("a", 2)).config == b"2"
    with pytest.raises(Conflict, match="only dead letters are replayed"):
        await node.jobs.replay(letter.id, None)
    await node.finish("a", count=2)
    await node.ended(ids[0])
    await node.jobs.replay(f"{ids[1]}/b", None)
    assert (await node.handed("b", 2)).config == b"1"


async def test_a_job_that_has_ended_is_run_again(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a"}, ONCE), "", "")
    await node.finish("a")
    await node.finish("b", "failed")
    await node.ended(facts.id)
    with pytest.raises(NoSuchTask):
        await node.jobs.retry_dag(facts.id, RetryRequest((), {"z": msgspec.Raw(b"1")}))
    with pytest.raises(Invalid, match="has no task z"):
        await node.jobs.retry_dag(facts.id, RetryRequest(("z",)))
    assert not node.keeper.jobs
    first, second = await asyncio.gather(
        *[node.jobs.retry_dag(facts.id, RetryRequest()) for _ in range(2)], return_exceptions=True
    )
    assert isinstance(first, DagFacts) and isinstance(second, Invalid)
    assert (await node.handed("b", 2)).inputs == {"a": b'"a"'}
    await node.finish("b", count=2)
    assert (await node.ended(facts.id)).state is JobState.COMPLETED
    with pytest.raises(NoSuchJob):
        await node.jobs.retry_dag("nothing", RetryRequest())


async def test_what_would_run_again_is_told_of_jobs_that_run_and_that_have_ended(node: Node) -> None:
    node.beat()
    tasks = {"a": "", "b": "a", "c": "a"}
    facts = await node.jobs.submit_dag(dag(tasks, DagSettings(retry=Retry(max=0), on_failure="continue")), "", "")
    await node.handed("a")
    with pytest.raises(Invalid, match="task a is running"):
        await node.jobs.retry_plan(facts.id, RetryRequest(("a",)))
    await node.finish("a")
    await node.finish("b", "failed")
    await node.finish("c")
    await node.ended(facts.id)

    failed = await node.jobs.retry_plan(facts.id, RetryRequest())
    first = await node.jobs.retry_plan(facts.id, RetryRequest(("a",)))

    assert [(task.id, task.state) for task in failed.tasks] == [("b", TaskState.DEAD)]
    assert [task.id for task in first.tasks] == ["a", "b", "c"] and first.left_out == 0
    with pytest.raises(Invalid, match="has no task z"):
        await node.jobs.retry_plan(facts.id, RetryRequest(("z",)))
    with pytest.raises(NoSuchJob):
        await node.jobs.retry_plan("nothing", RetryRequest())
    assert not node.keeper.jobs and (await node.jobs.dag(facts.id)).state is JobState.PARTIAL


async def test_a_plan_of_a_retry_names_so_many_tasks_and_counts_the_others(node_of: NodeOf) -> None:
    node = await node_of(reading=ReadingLimits(retry=2))
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a", "c": "a"}), "", "")
    await node.handed("a")
    await node.finish("a")
    await node.handed("b")
    await node.handed("c")
    await node.finish("b")
    await node.finish("c")
    await node.ended(facts.id)
    plan = await node.jobs.retry_plan(facts.id, RetryRequest(("a",)))
    assert ([task.id for task in plan.tasks], plan.left_out) == (["a", "b"], 1)


# Tasks that are fanned out.

FAN: dict[str, Any] = {"extract": "", "clean": {"for_each": "extract"}, "load": ("clean",)}


async def test_a_task_that_is_fanned_out_is_shown_with_its_elements_while_it_runs_and_afterwards(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag(FAN, DagSettings(on_failure="continue", retry=Retry(max=0))), "", "")
    assert (facts.tasks, facts.to_fan_out) == (3, 1)
    assert (await node.jobs.dag_task(facts.id, "clean")).elements == {}
    await node.finish("extract", output=b'["x","y"]')
    await node.handed("clean[1]")
    view = await node.jobs.dag_task(facts.id, "clean")
    assert (view.for_each, view.depends_on, view.elements) == ("extract", ["extract"], {"assigned": 2})
    one = await node.jobs.dag_task(facts.id, "clean[1]")
    assert (one.element_of, bytes(one.item), one.handler, one.depends_on) == ("clean", b'"y"', "h", [])
    live = await node.jobs.dag(facts.id)
    assert (live.tasks, live.to_fan_out) == (5, 0)
    assert "2 of its 2 elements" in (await node.jobs.why(facts.id, "clean")).text
    graph = await node.jobs.dag_graph(facts.id)
    assert [task.id for task in graph.tasks] == ["extract", "clean", "load"] and graph.left_out == 0
    assert graph.edges == [("extract", "clean"), ("clean", "load")]
    await node.finish("clean[0]")
    await node.finish("clean[1]", "failed", error="E: no")
    assert (await node.handed("load")).inputs == {"clean": b'["clean[0]",null]'}
    await node.finish("load")
    assert (await node.ended(facts.id)).tasks == 5
    view = await node.jobs.dag_task(facts.id, "clean")
    assert (view.state, view.elements) == (TaskState.COMPLETED, {"completed": 1, "dead": 1})
    page = await node.jobs.dag_tasks(facts.id, "", "", 10)
    assert [task.id for task in page.items] == ["extract", "clean", "load", "clean[0]", "clean[1]"]
    assert [letter.handler for letter in (await node.jobs.dead_letters("", 9)).items] == ["h"]
    assert (await node.jobs.dag_graph(facts.id)).left_out == 0
    failed = await node.jobs.retry_plan(facts.id, RetryRequest())
    assert [(task.id, task.elements) for task in failed.tasks] == [("clean", 0), ("load", 0), ("clean[1]", 0)]
    anew = await node.jobs.retry_plan(facts.id, RetryRequest(("extract",)))
    assert [(task.id, task.elements) for task in anew.tasks] == [("extract", 0), ("clean", 2), ("load", 0)]
    replayed = await node.jobs.replay(f"{facts.id}/clean[1]", msgspec.Raw(b'{"fixed":true}'))
    assert replayed.state is JobState.RUNNING
    again = await node.handed("clean[1]", 2)
    assert (again.config, again.item) == (b'{"fixed":true}', b'"y"')


async def ran_to_its_end(node: Node, id: str, begin: int, *failing: str) -> list[str]:
    """What the worker was handed from this one on until the job has ended, in order."""
    ran: list[str] = []
    while node.jobs._job(id) is not None:
        for task in node.hands[begin + len(ran) :]:
            ran.append(task.id)
            if task.id in failing:
                node.hear(done_of(node, task, "failed", error="E: no"))
            else:
                node.hear(done_of(node, task, "completed", output=b'["x","y"]' if task.id == "extract" else b"1"))
        await node.until(lambda: len(node.hands) > begin + len(ran) or node.jobs._job(id) is None)
    return ran


@pytest.mark.parametrize(
    ("begin", "edited", "planned"),
    [
        ((), "", {"clean[1]", "load", "broken", "last"}),
        (("extract",), "", {"extract", "clean[0]", "clean[1]", "load", "last"}),
        (("extract",), "broken", {"extract", "clean[0]", "clean[1]", "load", "broken", "last"}),
        (("clean",), "", {"clean[0]", "clean[1]", "load", "last"}),
        (("clean[0]",), "", {"clean[0]", "load", "last"}),
        (("load", "broken"), "", {"load", "broken", "last"}),
        (("other",), "load", {"other", "load", "last"}),
        (("last",), "", {"last"}),
    ],
    ids=range(8),
)
async def test_what_runs_again_is_what_the_plan_of_the_retry_names(
    node: Node, begin: tuple[str, ...], edited: str, planned: set[str]
) -> None:
    node.beat()
    tasks = {**FAN, "other": "", "broken": "", "last": ("load", "other", "broken")}
    facts = await node.jobs.submit_dag(dag(tasks, DagSettings(on_failure="continue", retry=Retry(max=0))), "", "")
    await ran_to_its_end(node, facts.id, 0, "clean[1]", "broken")
    request = RetryRequest(begin, {edited: msgspec.Raw(b"1")} if edited else {})

    plan = await node.jobs.retry_plan(facts.id, request)
    so_far = len(node.hands)
    await node.jobs.retry_dag(facts.id, request)
    ran = await ran_to_its_end(node, facts.id, so_far)

    named = [task.id for task in plan.tasks if task.id != "clean"]  # which is done when its elements are
    named += [f"clean[{place}]" for task in plan.tasks for place in range(task.elements)]
    assert sorted(ran) == sorted(named) == sorted(planned), "each once"
    assert {task.id for task in plan.tasks if task.elements} <= {"clean"}


@pytest.mark.parametrize(
    "request_of",
    [
        RetryRequest((), {"extract": msgspec.Raw(b"1"), "clean[0]": msgspec.Raw(b"1")}),
        RetryRequest(("clean",), {"clean[1]": msgspec.Raw(b"1")}),
        RetryRequest(("nothing",)),
        RetryRequest((), {"clean[2]": msgspec.Raw(b"1")}),
    ],
    ids=range(4),
)
async def test_what_a_retry_refuses_its_plan_refuses_too(node: Node, request_of: RetryRequest) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag(FAN, DagSettings(on_failure="continue", retry=Retry(max=0))), "", "")
    await ran_to_its_end(node, facts.id, 0, "clean[1]")
    for ask in (node.jobs.retry_plan, node.jobs.retry_dag):
        with pytest.raises((Invalid, NoSuchTask)):
            await ask(facts.id, request_of)
    assert not node.keeper.jobs


async def test_a_manager_that_starts_again_has_elements_and_their_specs(node_of: NodeOf) -> None:
    node = await node_of()
    facts = await node.jobs.submit_dag(dag({**FAN, "clean": {"for_each": "extract", "priority": 8}}), "", "")
    node.beat()
    await node.finish("extract", output=b'["x","y"]')
    await node.finish("clean[0]", output=b"0")
    second = await node_of(owner="owner")
    facts = await second.jobs.dag(facts.id)
    assert (facts.tasks, facts.counts["completed"]) == (5, 2)
    second.perform(second.jobs.keepers.on_worker_lost(boottime_ns(), "w", 1, "gone"))
    second.beat()
    assert (await second.handed("clean[1]")).item == b'"y"'
    await second.finish("clean[1]", output=b"1")
    assert (await second.handed("load")).inputs == {"clean": b"[0,1]"}


async def test_a_stream_that_was_fanned_out_is_the_same_when_it_comes_again(node: Node) -> None:
    async def stream() -> DagFacts:
        draft = await node.jobs.begin_dag(DagHead(name="n"), "k", "")
        await node.jobs.add_tasks(draft, specs({"extract": ""}))
        await node.jobs.add_tasks(draft, specs({"clean": {"for_each": "extract"}}))
        return await node.jobs.end_dag(draft)

    node.beat()
    first = await stream()
    await node.finish("extract", output=b"[1]")
    await node.handed("clean[0]")
    assert (await stream()).id == first.id


async def test_a_job_that_ends_while_it_is_asked_to_run_again_is_to_be_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": ""}, ONCE), "", "")
    await node.finish("a")
    task = node.jobs._task

    async def end_meanwhile(id: str, name: str) -> Any:
        found = await task(id, name)
        await node.finish("b")
        await node.until(lambda: node.keeper.job(id) is None)
        return found

    monkeypatch.setattr(node.jobs, "_task", end_meanwhile)
    with pytest.raises(Unavailable, match="has ended just now: ask again"):
        await node.jobs.retry_dag(facts.id, RetryRequest((), {"a": msgspec.Raw(b"1")}))


# Schedules.


async def test_a_schedule_submits_its_job_once_for_each_instant(idle_node: Node) -> None:
    node = idle_node
    view = await node.jobs.put_schedule(dag({"a": ""}, schedule=RARELY, name="nightly"), "me")
    assert (view.name, view.cron, view.last_job) == ("nightly", RARELY, "")
    with pytest.raises(BadDag):
        await node.jobs.put_schedule(dag({"a": "z"}, schedule=RARELY), "")
    await node.jobs.follow_schedules()
    assert not node.keeper.jobs, "it is not due"
    (row,) = node.records.schedules()
    due = msgspec.structs.replace(row, next_ms=1000)
    for _ in range(2):  # also when the manager died before it had noted that
        node.records.apply([PutSchedule(due)])
        await node.jobs.follow_schedules()
    assert len(node.keeper.jobs) == 1
    (view,) = await node.jobs.schedules()
    (job,) = node.keeper.jobs.values()
    assert view.last_job == job.row.id and job.row.submitted_by == "me"
    assert view.next_at > "2020"
    await node.jobs.drop_schedule("nightly")
    assert await node.jobs.schedules() == []
    with pytest.raises(NoSuchSchedule):
        await node.jobs.drop_schedule("nightly")


async def test_a_schedule_that_cannot_be_followed_does_not_hold_up_the_others(idle_node: Node) -> None:
    node = idle_node
    good = dag({"a": ""}, name="good")
    rows = [
        ScheduleRow(name="bad", cron=RARELY, spec=msgspec.json.encode(dag({"a": "z"})), next_ms=1),
        ScheduleRow(name="good", cron=RARELY, spec=msgspec.json.encode(good), next_ms=1),
        ScheduleRow(name="ugly", cron=RARELY, spec=b"{}", next_ms=1),
    ]
    node.records.apply([PutSchedule(row) for row in rows])
    await node.jobs.follow_schedules()
    assert [job.row.name for job in node.keeper.jobs.values()] == ["good"]
    alarms = [event["text"] for event in node.events if event["event"] == "alarm"]
    assert [text.split(" could")[0] for text in alarms] == ["the schedule bad", "the schedule ugly"]
    await node.jobs.follow_schedules()
    assert len(node.events) == 2, "they wait for their next instant"


async def test_a_schedule_that_there_is_no_room_for_waits_and_does_not_hold_up_the_others(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = idle_node
    for name in ("big", "small"):
        await node.jobs.put_schedule(dag({"a": ""}, schedule=RARELY, name=name), "me")
    due = [msgspec.structs.replace(row, next_ms=1000) for row in node.records.schedules()]
    node.records.apply([PutSchedule(row) for row in due])
    submit, full = node.jobs._schedules._submit, {"big"}

    async def where_there_is_room(spec: DagSpec, key: str, by: str) -> Any:
        if spec.name in full:
            raise TooBusy("there is no room for so many tasks")
        return await submit(spec, key, by)

    monkeypatch.setattr(node.jobs._schedules, "_submit", where_there_is_room)
    with pytest.raises(TooBusy):
        await node.jobs.follow_schedules()
    assert [job.row.name for job in node.keeper.jobs.values()] == ["small"] and not node.events
    full.clear()
    await node.jobs.follow_schedules()
    assert [job.row.name for job in node.keeper.jobs.values()] == ["small", "big"], "its instant was kept"


async def test_a_clock_that_was_wrong_for_a_moment_silences_no_schedule_and_that_is_told(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = idle_node
    for name in ("one", "two"):
        await node.jobs.put_schedule(dag({"a": ""}, schedule="0 * * * *", name=name), "me")
    right = [row.next_ms for row in node.records.schedules()]
    await node.jobs.follow_schedules()
    boot, wall = both_clocks()
    monkeypatch.setattr(node.jobs._schedules, "_clocks", lambda: (boot, wall + MONTH_NS))
    node.jobs.on_clock_jump(MONTH_NS)
    await node.jobs.follow_schedules()
    assert len(node.keeper.jobs) == 2, "they were due, by that clock"
    assert all(row.next_ms > right[0] + 29 * 86_400_000 for row in node.records.schedules())
    monkeypatch.setattr(node.jobs._schedules, "_clocks", lambda: (boot, wall))
    node.jobs.on_clock_jump(-MONTH_NS)
    await node.jobs.follow_schedules()
    assert [row.next_ms for row in node.records.schedules()] == right
    assert [event["text"] for event in node.events] == [
        "the clock of this machine went forward by 30 days",
        "the clock of this machine went back by 30 days: 2 schedules were recomputed",
    ]
    for minutes in (61, 121):
        later = wall + minutes * 60 * 10**9
        monkeypatch.setattr(node.jobs._schedules, "_clocks", lambda: (boot, later))  # noqa: B023
        await node.jobs.follow_schedules()
    assert len(node.keeper.jobs) == 6


async def test_schedules_that_were_written_while_the_clock_was_ahead_are_mended_at_the_next_start(
    idle_node: Node,
) -> None:
    node = idle_node
    await node.jobs.put_schedule(dag({"a": ""}, schedule="0 * * * *", name="s"), "me")
    (row,) = node.records.schedules()
    node.records.apply([PutSchedule(msgspec.structs.replace(row, next_ms=row.next_ms + MONTH_NS // 10**6))])
    await node.jobs.follow_schedules()
    assert node.records.schedules() == [row]
    assert [event["text"] for event in node.events] == [
        "a schedule was reckoned by a clock that was ahead, and recomputed by the one of now"
    ]


def set_clock(node: Node, at: str) -> int:
    """What the clock of the day shows to schedules, in ISO 8601. In milliseconds."""
    wall_ns = round(datetime.fromisoformat(at).timestamp()) * 10**9
    node.jobs._schedules._clocks = lambda: (0, wall_ns)
    return wall_ns // 10**6


BERLIN = "Europe/Berlin"
DAY = msgspec.Raw(b'"${scheduled_day} ${scheduled_for}"')


def daily(**more: Any) -> DagSpec:
    spec = dag({"a": ""}, name="nightly", schedule="30 2 * * *", timezone=BERLIN)
    (task,) = spec.tasks
    return msgspec.structs.replace(spec, tasks=(msgspec.structs.replace(task, config=DAY),), **more)


CHANGES: dict[str, Callable[[Node], Any]] = {
    "pause": lambda node: node.jobs.pause_schedule("nightly"),
    "drop": lambda node: node.jobs.drop_schedule("nightly"),
    "replace": lambda node: node.jobs.put_schedule(daily(schedule="0 4 * * *"), "me"),
}
CHANGED = {"pause": [(True, "30 2 * * *")], "drop": [], "replace": [(False, "0 4 * * *")]}


@pytest.mark.parametrize("change", ["pause", "drop", "replace"])
async def test_a_schedule_that_is_changed_while_its_job_is_submitted_is_so_after_that_and_stays_so(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    set_clock(node, "2026-11-18T12:00:00+01:00")
    submit, changing = node.jobs._schedules._submit, list[asyncio.Task[Any]]()

    async def slowly(*asked: Any) -> Any:
        changing.append(asyncio.create_task(CHANGES[change](node)))
        facts = await submit(*asked)
        for _ in range(9):  # the change would have been made by then
            await node.store.schedules()
        assert not changing[0].done()
        return facts

    monkeypatch.setattr(node.jobs._schedules, "_submit", slowly)
    await node.jobs.follow_schedules()
    (change_made,) = changing
    await change_made
    rows = node.records.schedules()
    assert [(row.is_paused, row.cron) for row in rows] == CHANGED[change] and len(node.keeper.jobs) == 1
    await node.jobs.follow_schedules()
    assert node.records.schedules() == rows and len(node.keeper.jobs) == 1


@pytest.mark.parametrize("change", ["pause", "drop", "replace"])
async def test_a_schedule_submits_nothing_after_its_change_was_answered_while_another_catches_up(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(name="a", catch_up="all"), "me")
    await node.jobs.put_schedule(daily(), "me")
    set_clock(node, "2026-11-18T12:00:00+01:00")
    submit, changing, submitted = node.jobs._schedules._submit, list[asyncio.Task[Any]](), list[str]()

    async def noted(spec: DagSpec, key: str, by: str) -> Any:
        if not changing:
            changing.append(asyncio.create_task(CHANGES[change](node)))
        submitted.append(spec.name)
        return await submit(spec, key, by)

    monkeypatch.setattr(node.jobs._schedules, "_submit", noted)
    await node.jobs.follow_schedules()
    assert changing[0].done() and submitted == ["a"] * 5
    await node.jobs.follow_schedules()
    assert submitted == ["a"] * 5
    rows = [(row.is_paused, row.cron) for row in node.records.schedules() if row.name == "nightly"]
    assert rows == CHANGED[change]


async def configs(node: Node) -> list[str]:
    """Of the jobs, in the order in which they were submitted."""
    rows = sorted(await node.store.jobs((), 1 << 40, 1000), key=lambda row: row.number)
    tasks = [await node.store.task(row.number, "a") for row in rows]
    return [msgspec.json.decode(spec_of(task.spec).config) for task in tasks if task is not None]


async def test_a_schedule_is_followed_in_its_zone_over_both_changes_of_the_clocks(idle_node: Node) -> None:
    node = idle_node
    set_clock(node, "2026-03-28T12:00:00+01:00")
    view = await node.jobs.put_schedule(daily(), "me")
    assert (view.next_in_zone, view.next_at) == ("2026-03-29T03:30:00+02:00", "2026-03-29T01:30:00.000Z")
    for at in ("2026-03-29T01:59:59+01:00", "2026-03-29T03:30:00+02:00", "2026-03-29T03:30:59+02:00"):
        set_clock(node, at)
        await node.jobs.follow_schedules()
    assert await configs(node) == ["2026-03-29 2026-03-29T03:30:00+02:00"]
    set_clock(node, "2026-10-24T12:00:00+02:00")
    await node.jobs.put_schedule(daily(), "me")
    for at in ("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T02:31:00+01:00"):
        set_clock(node, at)
        await node.jobs.follow_schedules()
    assert (await configs(node))[1:] == ["2026-10-25 2026-10-25T02:30:00+02:00"]
    (view,) = await node.jobs.schedules()
    assert (view.next_in_zone, view.last_in_zone) == ("2026-10-26T02:30:00+01:00", "2026-10-25T02:30:00+02:00")
    assert view.last_job == node.jobs.keepers.of_job(view.last_job).job(view.last_job).row.id  # type: ignore[union-attr]


async def test_a_zone_that_is_not_known_is_refused_and_one_that_went_is_told_until_it_is_back(idle_node: Node) -> None:
    node = idle_node
    set_clock(node, "2026-11-18T12:00:00Z")
    with pytest.raises(Invalid, match="did you mean Europe/Berlin"):
        await node.jobs.put_schedule(daily(timezone="Europe/Berlim"), "")
    await node.jobs.put_schedule(daily(), "")
    (row,) = node.records.schedules()

    def none_known(name: str) -> None:
        raise Invalid("this machine has no zones")

    zones, node.jobs._schedules._zones = node.jobs._schedules._zones, none_known
    set_clock(node, "2026-11-19T12:00:00Z")
    for _ in range(2):
        await node.jobs.follow_schedules()
    alarm = "the schedule nightly could not be followed: this machine has no zones"
    assert [event["text"] for event in node.events] == [alarm]
    (view,) = await node.jobs.schedules()
    assert (view.next_at, view.next_in_zone) == ("", "")
    node.jobs._schedules._zones = zones
    node.jobs.on_clock_jump(0)
    await node.jobs.follow_schedules()
    (mended,) = node.records.schedules()
    assert mended.next_ms == row.next_ms + 86_400_000 and not node.keeper.jobs


@pytest.mark.parametrize(("catch_up", "days"), [("skip", []), ("one", ["18"]), ("all", ["14", "15", "16", "17", "18"])])
@pytest.mark.parametrize("is_paused", [False, True], ids=["no manager", "paused"])
async def test_what_passed_while_nobody_followed_it_is_caught_up_with_as_the_schedule_says(
    idle_node: Node, catch_up: str, days: list[str], is_paused: bool
) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(catch_up=catch_up), "me")
    if is_paused:
        assert (await node.jobs.pause_schedule("nightly")).paused
        set_clock(node, "2026-11-17T12:00:00+01:00")
        await node.jobs.follow_schedules()
        assert await configs(node) == []
    set_clock(node, "2026-11-18T12:00:00+01:00")
    if is_paused:
        assert not (await node.jobs.resume_schedule("nightly")).paused
    for _ in range(2):
        await node.jobs.follow_schedules()
    assert [told[8:10] for told in await configs(node)] == days
    (view,) = await node.jobs.schedules()
    assert view.next_in_zone == "2026-11-19T02:30:00+01:00"
    told = [event["text"] for event in node.events if event.get("kind") == "schedule"]
    assert len(told) == (catch_up == "skip" and not is_paused)


async def test_of_more_missed_instants_than_are_made_up_for_the_last_ones_are_run_and_an_event_says_so(
    idle_node: Node,
) -> None:
    node = idle_node
    set_clock(node, "2026-11-01T12:00:00+01:00")
    await node.jobs.put_schedule(daily(catch_up="all"), "me")
    node.jobs._schedules._limits = ScheduleLimits(caught_up=2)
    set_clock(node, "2026-11-18T12:00:00+01:00")
    await node.jobs.follow_schedules()
    assert [told[8:10] for told in await configs(node)] == ["17", "18"]
    (event,) = node.events
    assert "was due more than 2 times" in event["text"] and "talka jobs schedules backfill" in event["text"]


async def test_a_manager_that_is_killed_while_it_catches_up_runs_each_instant_once(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(catch_up="all"), "me")
    set_clock(node, "2026-11-18T12:00:00+01:00")
    put, deaths = node.jobs._schedules._put, [True, False] * 5

    async def dies_now_and_then(before: Any, after: Any) -> bool:
        if deaths and deaths.pop(0):
            raise Unavailable("killed between the job and the note of it")
        return await put(before, after)

    monkeypatch.setattr(node.jobs._schedules, "_put", dies_now_and_then)
    for _ in range(5):
        with pytest.raises(Unavailable):
            await node.jobs.follow_schedules()
    await node.jobs.follow_schedules()
    assert [told[8:10] for told in await configs(node)] == ["14", "15", "16", "17", "18"]


async def test_a_schedule_is_run_now_for_this_moment_and_its_next_instant_stays(idle_node: Node) -> None:
    node = idle_node
    set_clock(node, "2026-11-18T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    await node.jobs.pause_schedule("nightly")
    facts = await node.jobs.run_schedule("nightly", "k", "ada")
    again = await node.jobs.run_schedule("nightly", "k", "ada")
    other = await node.jobs.run_schedule("nightly", "", "ada")
    assert again.id == facts.id != other.id and facts.submitted_by == "ada"
    assert await configs(node) == ["2026-11-18 2026-11-18T12:00:00+01:00"] * 2
    (view,) = await node.jobs.schedules()
    assert (view.paused, view.last_job, view.next_in_zone) == (True, other.id, "2026-11-19T02:30:00+01:00")
    assert view.last_in_zone == "2026-11-18T12:00:00+01:00"
    for ask in (node.jobs.pause_schedule, node.jobs.resume_schedule):
        with pytest.raises(NoSuchSchedule, match="there is no schedule weekly: talka jobs schedules lists"):
            await ask("weekly")
    with pytest.raises(NoSuchSchedule):
        await node.jobs.run_schedule("weekly", "", "")


async def test_a_schedule_that_is_run_now_again_with_the_same_key_is_the_same_job_also_later(idle_node: Node) -> None:
    node = idle_node
    set_clock(node, "2026-11-18T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    first = await node.jobs.run_schedule("nightly", "k", "ada")
    set_clock(node, "2026-11-18T12:00:01+01:00")
    same = await asyncio.gather(*[node.jobs.run_schedule("nightly", "k", "ada") for _ in range(2)])
    assert [facts.id for facts in same] == [first.id] * 2
    other, again = await asyncio.gather(*[node.jobs.run_schedule("nightly", "new", "ada") for _ in range(2)])
    assert other.id == again.id != first.id
    assert (await node.jobs.run_schedule("nightly", "k", "ada")).id == first.id
    assert await configs(node) == [f"2026-11-18 2026-11-18T12:00:0{second}+01:00" for second in (0, 1)]
    (view,) = await node.jobs.schedules()
    assert view.last_job == other.id, "the repeated calls ran nothing"
    await node.jobs.drop_schedule("nightly")
    assert (await node.jobs.run_schedule("nightly", "k", "ada")).id == first.id
    node.beat()
    for count in (1, 2):
        await node.finish("a", count=count)
    await node.ended(first.id)
    assert (await node.jobs.run_schedule("nightly", "k", "ada")).id == first.id, "also after its end"
    with pytest.raises(NoSuchSchedule):
        await node.jobs.run_schedule("nightly", "never used", "ada")


async def test_a_job_that_was_run_now_and_is_about_to_be_kept_is_not_told_before_that(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = idle_node
    set_clock(node, "2026-11-18T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    held: list[tuple[int, Any]] = []

    def hold(ticket: int, changes: Any, key: str) -> bool:
        held.append((ticket, changes))
        node.moved.set()
        return False

    monkeypatch.setattr(node.store, "commit", hold)
    first = asyncio.ensure_future(node.jobs.run_schedule("nightly", "k", "ada"))
    await node.until(lambda: len(held) == 1)
    first.cancel()  # whoever asked went away
    set_clock(node, "2026-11-18T12:00:01+01:00")
    second = asyncio.ensure_future(node.jobs.run_schedule("nightly", "k", "ada"))
    await node.until(lambda: len(held) == 2)
    assert not second.done()
    monkeypatch.undo()
    (job,) = node.keeper.jobs.values()
    for ticket, changes in held:
        node.jobs.carry_out(Commit(ticket, changes))
    assert (await second).id == job.row.id
    assert await configs(node) == ["2026-11-18 2026-11-18T12:00:00+01:00"]


async def test_a_key_of_a_schedule_that_somebody_used_for_a_job_of_their_own_is_told(idle_node: Node) -> None:
    node = idle_node
    await node.jobs.put_schedule(daily(), "me")
    await node.jobs.submit_dag(dag({"b": ""}), "run/nightly/k", "eve")
    draft = await node.jobs.begin_dag(DagHead(name="nightly"), "run/nightly/streamed", "eve")
    for key in ("k", "streamed"):
        with pytest.raises(Conflict, match="was used for another job"):
            await node.jobs.run_schedule("nightly", key, "ada")
    await node.jobs.drop_dag(draft)


async def test_a_backfill_runs_each_instant_once_however_often_it_is_asked_for_and_whoever_ran_it(
    idle_node: Node,
) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    set_clock(node, "2026-11-14T02:30:00+01:00")
    await node.jobs.follow_schedules()
    set_clock(node, "2026-11-16T12:00:00+01:00")
    (by_clock,) = node.keeper.jobs.values()
    asked = BackfillRequest("2026-11-12", "2026-11-16T16:00+05:00")
    dry = await node.jobs.backfill("nightly", msgspec.structs.replace(asked, dry_run=True), "ada")
    assert [(run.at[8:10], run.state, run.job) for run in dry.runs] == [
        ("12", "due", ""),
        ("13", "due", ""),
        ("14", "known", by_clock.row.id),
        ("15", "due", ""),
        ("16", "due", ""),
    ]
    assert len(node.keeper.jobs) == 1
    first = await node.jobs.backfill("nightly", asked, "ada")
    assert [run.state for run in first.runs] == ["submitted", "submitted", "known", "submitted", "submitted"]
    again = await node.jobs.backfill("nightly", asked, "ada")
    assert [(run.job, run.state) for run in again.runs] == [(run.job, "known") for run in first.runs]
    assert [told[8:10] for told in await configs(node)] == ["14", "12", "13", "15", "16"], "oldest first"
    await node.jobs.follow_schedules()
    assert len(node.keeper.jobs) == 5, "its clock finds that the 16th was run"
    (view,) = await node.jobs.schedules()
    assert (view.last_job, view.next_in_zone) == (first.runs[-1].job, "2026-11-17T02:30:00+01:00")
    with pytest.raises(Invalid, match="has not come yet"):
        await node.jobs.backfill("nightly", BackfillRequest("2026-11-01", "2027-01-01"), "")
    with pytest.raises(NoSuchSchedule):
        await node.jobs.backfill("weekly", asked, "")


async def test_a_schedule_that_is_replaced_stays_paused_and_keeps_its_last_run(idle_node: Node) -> None:
    node = idle_node
    set_clock(node, "2026-11-13T12:00:00+01:00")
    await node.jobs.put_schedule(daily(), "me")
    facts = await node.jobs.run_schedule("nightly", "", "")
    await node.jobs.pause_schedule("nightly")
    view = await node.jobs.put_schedule(daily(schedule="0 4 * * *", catch_up="all"), "me")
    assert (view.paused, view.last_job, view.cron, view.catch_up) == (True, facts.id, "0 4 * * *", "all")


# Life.


async def test_nothing_is_answered_before_the_store_was_read(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.open()
    with pytest.raises(Unavailable, match="is still reading its dag jobs"):
        await node.jobs.submit_dag(dag({"a": ""}), "", "")
    await node.jobs.close()


async def test_of_a_job_that_is_half_read_nothing_is_told(
    node_of: NodeOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told with the tasks that were read by then, for the whole of it."""
    first = await node_of()
    facts = await first.jobs.submit_dag(dag({"a": "", "b": "a"}), "", "")
    await first.jobs.close()
    second = Node(tmp_path, page=1)
    await second.open()
    restore, told = second.keeper.restore_tasks, list[str]()

    def restored(now: int, job: int, live: Any, streams: Any) -> None:
        restore(now, job, live, streams)
        for asked in (second.jobs.dag(facts.id), second.jobs.queues()):
            with pytest.raises(Unavailable, match="is still reading its dag jobs") as refused:
                asked.send(None)  # it does not wait for anything
            told.append(str(refused.value))

    monkeypatch.setattr(second.keeper, "restore_tasks", restored)
    await second.jobs.start()
    assert len(told) == 4
    assert (await second.jobs.dag(facts.id)).tasks == 2
    await second.jobs.close()


async def test_a_new_life_goes_on_with_a_higher_epoch(node_of: NodeOf) -> None:
    first = await node_of()
    first.beat()
    facts = await first.jobs.submit_dag(dag({"a": "", "b": "a", "c": "b"}), "", "")
    await first.finish("a", output=b'"' + b"x" * 50_000 + b'"')
    old = await first.handed("b")
    await first.jobs.close()
    second = await node_of(page=1)
    assert second.keeper.floor.epoch > first.keeper.floor.epoch
    assert second.keeper.attempts.expected() == [("w", 1, 7)]
    await second.until(lambda: second.keeper.jobs[1].tasks[1].policy is not None)
    second.hear(done_of(second, old, "completed", output=b"7"))
    await second.until(lambda: old.fence in second.took)
    second.beat()
    assert (await second.handed("c")).inputs == {"b": b"7"}
    await second.finish("c")
    assert (await second.ended(facts.id)).state is JobState.COMPLETED


@pytest.mark.parametrize("node", [KeeperLimits(delivery=DeliveryLimits(outputs_bytes=0))], indirect=True)
async def test_a_large_output_is_read_from_its_file_and_its_loss_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b'"' + b"x" * 50_000 + b'"'
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a", "c": "b"}), "", "")
    node.beat()
    await node.finish("a", output=large)
    assert (await node.handed("b")).inputs == {"a": large}
    blobs, lost = node.blobs, hashlib.sha256(large[:-1] + b' "').hexdigest()
    monkeypatch.setattr(blobs, "get", lambda digest: None)
    await node.finish("b", output=large[:-1] + b' "')
    end = await node.ended(facts.id)
    assert end.reason == "Task c failed: the output of task b is lost: run that one again"
    assert lost in blobs.digests()


OTHERS = StoreLife(1, 2, 3)
OBEYED_OTHERS = WorkerBeat("w", 1, 0, WORKER, 4, "healthy", epoch=7, of=OTHERS)


async def test_an_epoch_that_a_worker_remembers_is_passed_through_the_store(node_of: NodeOf) -> None:
    node = await node_of()
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.perform(node.keeper.on_beat(boottime_ns(), OBEYED_OTHERS))
    await node.until(lambda: node.keeper.floor.epoch == 8)
    (lease,) = node.records.leases("manager")
    assert lease.epoch == 8
    memory = StoreMemory(node.home).of(node.keeper.floor.life.store)
    assert memory is not None and memory.epoch == 8
    assert [event["event"] for event in node.events] == ["epoch-raised"]
    assert node.jobs.metrics()["dag_epochs_raised_total"] == 1

    dropped = Dropped(1, 2, 3, 1)
    node.perform(node.keeper.on_beat(boottime_ns(), OBEYED_OTHERS))
    node.hear(Held(8, (), of=node.keeper.floor.life, dropped=(dropped,)))
    beat = msgspec.structs.replace(OBEYED_OTHERS, epoch=8, of=node.keeper.floor.life)
    node.perform(node.keeper.on_beat(boottime_ns(), beat))
    await node.finish("a")
    assert (await node.ended(facts.id)).state is JobState.COMPLETED
    assert node.jobs.metrics()["dag_attempts_dropped_total"] == 4
    assert node.events[-1]["text"] == "worker w held 3 attempts and 1 result of store 1, life 2: dropped"
    nameless = WorkerBeat("v", 1, 0, WORKER, 4, "healthy", 0, NOWHERE, names=False)
    node.perform(node.keeper.on_beat(boottime_ns(), nameless))
    assert "worker v: it gets no tasks: its version is too old to say" in node.events[-1]["text"]


async def test_an_epoch_that_the_store_cannot_take_now_is_asked_for_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*asked: Any) -> int:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(node.store, "raise_epoch", full)
        node.perform(node.keeper.on_beat(boottime_ns(), OBEYED_OTHERS))
        await node.until(lambda: not node.keeper.floor._is_raising)
    assert (node.keeper.floor.epoch, node.broken) == (1, [])
    later = boottime_ns() + PAUSE_NS
    node.perform(node.keeper.on_beat(later, OBEYED_OTHERS))
    await node.until(lambda: node.keeper.floor.epoch == 8)


async def test_a_manager_that_cannot_raise_its_epoch_because_another_has_the_store_stops(idle_node: Node) -> None:
    node = idle_node
    rob(node)
    node.perform(node.keeper.on_beat(boottime_ns(), OBEYED_OTHERS))
    await node.until(lambda: bool(node.broken))
    assert "another manager has taken the store" in str(node.broken[0])


async def test_a_store_that_was_put_back_tells_that_it_begins_a_new_life(node_of: NodeOf, tmp_path: Path) -> None:
    first = await node_of()
    copy = tmp_path / "copy.db"
    first.records.file.backup(copy)
    life = first.keeper.floor.life
    await first.jobs.close()
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"store.db{end}").unlink(missing_ok=True)
    copy.rename(tmp_path / "store.db")

    second = await node_of()

    assert second.keeper.floor.life.store == life.store
    assert not second.keeper.floor.life.is_of(life)
    assert [event["event"] for event in second.events] == ["store-life"]


async def test_old_jobs_and_their_files_are_swept(node_of: NodeOf) -> None:
    node = await node_of(upkeep=UpkeepLimits(blobs_kept_s=-60.0))
    node.beat()
    ids = []
    for name in ("a", "b"):
        facts = await node.jobs.submit_dag(dag({name: ""}), "", "")
        await node.finish(name, output=b'"' + name.encode() * 50_000 + b'"')
        await node.ended(facts.id)
        ids.append(facts.id)
        await node.jobs.sweep()  # sees this end
        if name == "a":
            node.records.sweep(1000, both(WEEK), 99)
    assert len(node.blobs.digests()) == 2
    assert node.records.sweep(WEEK.age_ns // MILLISECOND - 1000, FOR_EVER, 99) == 0  # only grows older
    await node.jobs.sweep()
    with pytest.raises(NoSuchJob):
        await node.jobs.dag(ids[0])
    assert node.blobs.digests() == [(node.records.tasks(2, (), -1, 1)[0]).blob]


async def test_all_jobs_above_those_that_are_kept_are_swept_however_many_and_all_that_they_had(node_of: NodeOf) -> None:
    node = await node_of(upkeep=UpkeepLimits(ManagerKeeps(both(Keep(NEVER, 1))), swept_at_once=1))
    node.beat()
    ids = []
    for number in range(4):
        facts = await node.jobs.submit_dag(dag({f"t{number}": ""}), "", "")
        await node.finish(f"t{number}")
        await node.ended(facts.id)
        ids.append(facts.id)
    large = await node.jobs.begin_dag(DagHead(name="n", wait_for_workers=True), "", "")
    await node.jobs.add_tasks(large, specs({f"t{number}": "" for number in range(3000)}))
    await node.jobs.drop_dag(large)
    await node.jobs.sweep()
    assert [one.id for one in (await node.jobs.dags("", "", 9)).items] == ids[-1:]
    assert node.records.file.sizes() == (1, 1)


async def test_a_clock_that_is_a_month_ahead_for_a_moment_drops_no_ended_job_and_no_file(
    idle_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = idle_node
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    await node.finish("a", output=b'"' + b"x" * 50_000 + b'"')
    await node.ended(facts.id)
    unnamed = hashlib.sha256(b"on its way").hexdigest()
    node.blobs.put(unnamed, b"on its way")
    wrong = realtime_ns() + MONTH_NS
    monkeypatch.setattr(node.jobs._upkeep, "_wall_ns", lambda: wrong)
    node.clock.look(boottime_ns(), wrong)
    await node.jobs.sweep()
    await node.jobs.sweep()
    assert (await node.jobs.dag(facts.id)).state is JobState.COMPLETED
    node.jobs._upkeep._limits = UpkeepLimits(ManagerKeeps(both(Keep(0, 9))))
    await node.jobs.sweep()
    with pytest.raises(NoSuchJob):
        await node.jobs.dag(facts.id)
    assert unnamed in node.blobs.digests(), "a file is not old because the clock was set"


# A store that is lost.


def rob(node: Node) -> None:
    """Another manager takes the store."""
    node.records.take("another", list(node.records.leases("manager")))


async def assert_lost(node: Node, kind: type[StoreLost], says: str) -> None:
    assert [type(error) for error in node.broken] == [kind]
    for ask in (
        lambda: node.jobs.submit_dag(dag({"b": ""}), "", ""),
        lambda: node.jobs.dag("x"),
        lambda: node.jobs.schedules(),
        lambda: node.jobs.put_schedule(dag({"a": ""}, schedule=RARELY), ""),
    ):
        with pytest.raises(kind, match=says) as told:
            await ask()
        assert problem_of(told.value).status == 503
    node.jobs.submit_soon(dag({"b": ""}), "", "", node.done)
    assert isinstance(node.told[-1], kind)
    assert says in node.jobs.why_not_ready()
    assert [event["kind"] for event in node.events if says in event.get("text", "")] == ["store"]
    assert node.jobs.metrics()["dag_store_has_problem"] == 1


@pytest.mark.parametrize("how", ["commit", "renewal"])
async def test_a_manager_whose_store_was_taken_writes_and_answers_nothing_more(idle_node: Node, how: str) -> None:
    node = idle_node
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.beat()
    task = await node.handed("a")
    assert node.jobs.why_not_ready() == "" and not node.jobs.is_doubtful(boottime_ns())
    rob(node)
    if how == "commit":
        with pytest.raises(StoreTaken, match="another manager has taken the store"):
            await node.jobs.submit_dag(dag({"b": ""}), "", "")
    else:
        await node.jobs.keep_leases()
    await assert_lost(node, StoreTaken, "another manager has taken the store")
    node.hear(Done((TaskResult(task.fence, "completed", output=b"1"),)))
    await node.jobs.keep_leases()
    assert node.took == [] and len(node.broken) == 1
    assert node.jobs.is_doubtful(boottime_ns())
    await node.jobs.close()
    with SqliteRecords(node.records.place) as other:
        assert [row.id for row in other.live_jobs()] == [facts.id]
        assert [lease.owner for lease in other.leases("manager")] == ["another"]


@pytest.mark.parametrize("how", ["commit", "renewal"])
async def test_a_store_that_was_deleted_is_noticed_and_nothing_is_acknowledged(
    node_of: NodeOf, tmp_path: Path, how: str
) -> None:
    node = await node_of(**IDLE, file=FileLimits(look_ns=-1))  # it was not looked for long
    (tmp_path / "store.db").unlink()
    if how == "commit":
        with pytest.raises(StoreGone, match="was deleted while this manager had it"):
            await node.jobs.submit_dag(dag({"a": ""}), "", "")
    else:
        await node.jobs.keep_leases()
    await assert_lost(node, StoreGone, "was deleted while this manager had it")
    assert not node.jobs.is_doubtful(boottime_ns()), "nobody else has it: load jobs may go on"


async def test_a_manager_that_stood_still_for_a_lease_doubts_its_hold_until_it_has_renewed_it(idle_node: Node) -> None:
    now = boottime_ns()
    assert idle_node.jobs.is_doubtful(now + LEASE_NS + 10**9)
    await idle_node.jobs.keep_leases()
    assert not idle_node.jobs.is_doubtful(boottime_ns())


async def test_a_manager_is_not_ready_while_its_store_cannot_be_written(
    node_of: NodeOf,
) -> None:
    node = await node_of(**IDLE, file=FileLimits(busy_s=0.001))
    await node.jobs.keep_leases()
    with contextlib.closing(sqlite3.connect(node.records.place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await node.jobs.keep_leases()
        assert node.jobs.why_not_ready().startswith("the store cannot be written: ")
        assert "is in use by another process" in node.jobs.why_not_ready()
        with pytest.raises(Unavailable, match="try again later"):
            await node.jobs.submit_dag(dag({"a": ""}), "", "")
        await node.jobs.keep_leases()
        other.execute("ROLLBACK")
    await node.jobs.keep_leases()
    assert node.jobs.why_not_ready() == ""
    assert [event["event"] for event in node.events] == ["alarm", "store-back"], "each is told once"
    await node.jobs.submit_dag(dag({"a": ""}), "", "")


async def test_chores_are_done_again_and_again_and_their_slips_are_told(
    node_of: NodeOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [RecordsUnavailable("locked"), ZeroDivisionError("a slip")]

    async def sweep(jobs: DagService) -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(DagService, "sweep", sweep)
    node = await node_of(lease_every_s=0.001, sweep_s=0.001, schedule_s=0.001)
    await node.until(lambda: bool(node.broken))
    assert [str(error) for error in node.broken] == ["the store failed: ZeroDivisionError('a slip')"]
    due = ScheduleRow(name="s", cron="* * * * *", spec=msgspec.json.encode(dag({"a": ""})), next_ms=1)
    node.records.apply([PutSchedule(due)])
    await node.until(lambda: bool(node.keeper.jobs))


async def test_what_cannot_be_read_now_is_read_again(node_of: NodeOf, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await node_of(again_s=0.001, keeper=KeeperLimits(delivery=DeliveryLimits(specs_bytes=1)))
    read, failures = node.records.specs, [RecordsUnavailable("locked")]

    def fail_once(keys: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(keys)

    monkeypatch.setattr(node.records, "specs", fail_once)
    await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.beat()
    await node.handed("a")


@pytest.mark.parametrize("node", [KeeperLimits(delivery=DeliveryLimits(specs_bytes=1))], indirect=True)
async def test_rows_that_cannot_be_understood_break_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.records, "specs", lambda keys: {key: (b"{}", b"") for key in keys})
    await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.beat()
    await node.until(lambda: bool(node.broken))
    assert "the store failed: ValidationError" in str(node.broken[0])


async def test_what_comes_after_its_end_is_nothing_to_it(node: Node) -> None:
    await node.jobs.close()
    node.jobs.carry_out(ReadOutputs(1, (), ()))
    node.jobs.carry_out(CallAnswered(99, "x"))
    node.jobs._kept.on_committed([])


# Ends of jobs.


async def test_the_end_of_a_job_is_told_once_it_is_on_disk(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.jobs.at_end(facts.id, node.done)
    give_up = node.jobs.at_end(facts.id, node.done)
    give_up()
    give_up()
    await node.finish("a")
    await node.until(lambda: bool(node.told))
    assert node.told == [DagEnd(JobState.COMPLETED, "", {"completed": 1})]
    row = node.records.job(facts.id)
    assert row is not None and row.state is JobState.COMPLETED


async def test_the_end_of_a_job_that_has_ended_is_told_soon(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}, ONCE), "", "")
    await node.finish("a", "failed", error="it broke")
    end = await node.ended(facts.id)
    node.jobs.at_end(facts.id, node.done)
    node.jobs.at_end("nobody", node.done)
    await node.until(lambda: len(node.told) == 2)
    assert node.told[0] == DagEnd(JobState.FAILED, end.reason, {"dead": 1})
    assert isinstance(node.told[1], NoSuchJob)


async def test_a_job_that_runs_again_is_waited_for_again(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}, ONCE), "", "")
    await node.finish("a", "failed")
    await node.ended(facts.id)
    node.jobs.at_end(facts.id, node.done)
    again = asyncio.create_task(node.jobs.retry_dag(facts.id, RetryRequest()))
    await again
    told = len(node.told)  # of the first end, unless it was run again before that was read
    await node.finish("a", count=2)
    await node.ended(facts.id)
    if not told:
        await node.until(lambda: bool(node.told))
    assert len(node.told) == 1


async def test_who_waits_for_an_end_is_told_when_the_manager_stops(node_of: NodeOf) -> None:
    node = await node_of()
    facts = await node.jobs.submit_dag(dag({"a": ""}), "", "")
    node.jobs.at_end(facts.id, node.done)
    await node.jobs.close()
    assert [str(one) for one in node.told] == ["this manager stops: ask again when it is back"]


async def test_it_is_loaded_once_everything_was_read(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.open()
    assert not node.jobs.loaded.is_set()
    await node.jobs.start()
    assert node.jobs.loaded.is_set()
    await node.jobs.close()


# Handlers that travel.


CODE = CodeBundle("c" * 64, 10, ("etl.py",), ("mine",), plain=("mine",))
BROUGHT = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="mine"),), settings=ONCE, bundle=CODE)


async def test_a_job_that_names_a_bundle_is_taken_once_that_was_uploaded(node_of: NodeOf) -> None:
    node = await node_of()
    node.beat(accepts_code=True)
    with pytest.raises(BundleMissing):
        await node.jobs.submit_dag(BROUGHT, "", "")
    with pytest.raises(BundleMissing):
        await node.jobs.begin_dag(DagHead(name="n", bundle=CODE), "", "")
    with pytest.raises(BundleMissing):
        await node.jobs.put_schedule(msgspec.structs.replace(BROUGHT, schedule=RARELY), "")
    node.jobs.submit_soon(BROUGHT, "", "", node.done)
    assert isinstance(node.told[-1], BundleMissing)
    node.code.add(CODE.digest)
    facts = await node.jobs.submit_dag(BROUGHT, "", "")
    assert (await node.handed("a")).job == facts.id


async def test_a_job_with_code_is_refused_where_no_worker_takes_any(node_of: NodeOf) -> None:
    node = await node_of(settle_ns=0)
    node.code.add(CODE.digest)
    node.beat("mine")
    with pytest.raises(NobodyCanRun, match=r"task a: no worker takes code that travels with a job \(--accept-code\)"):
        await node.jobs.submit_dag(BROUGHT, "", "")
    facts = await node.jobs.submit_dag(msgspec.structs.replace(BROUGHT, wait_for_workers=True), "", "")
    node.beat(accepts_code=True)
    assert (await node.handed("a")).job == facts.id


async def test_bundles_stay_while_a_job_or_a_schedule_names_them_also_after_a_restart(node_of: NodeOf) -> None:
    node = await node_of()
    other = msgspec.structs.replace(CODE, digest="d" * 64)
    node.code |= {CODE.digest, other.digest}
    waiting = msgspec.structs.replace(BROUGHT, wait_for_workers=True)
    facts = await node.jobs.submit_dag(waiting, "", "")
    scheduled = msgspec.structs.replace(waiting, name="each", schedule=RARELY, bundle=other)
    await node.jobs.put_schedule(scheduled, "")
    assert await node.jobs.bundles() == {CODE.digest, other.digest}
    await node.jobs.close()
    node = await node_of()
    node.code |= {CODE.digest, other.digest}
    assert await node.jobs.bundles() == {CODE.digest, other.digest}
    node.beat(accepts_code=True)
    node.hear(done_of(node, await node.handed("a"), "completed", output=b"1"))
    await node.ended(facts.id)
    await node.jobs.drop_schedule("each")
    assert await node.jobs.bundles() == set()


async def test_a_streamed_job_keeps_its_bundle_too(node_of: NodeOf) -> None:
    node = await node_of()
    node.code.add(CODE.digest)
    node.beat(accepts_code=True)
    draft = await node.jobs.begin_dag(DagHead(name="n", bundle=CODE), "", "")
    await node.jobs.add_tasks(draft, BROUGHT.tasks)
    await node.jobs.end_dag(draft)
    assert (await node.handed("a")).handler == "mine"
    assert await node.jobs.bundles() == {CODE.digest}


async def test_a_job_whose_bundle_is_gone_is_not_run_again(node_of: NodeOf) -> None:
    node = await node_of()
    node.code.add(CODE.digest)
    node.beat(accepts_code=True)
    facts = await node.jobs.submit_dag(BROUGHT, "", "")
    node.hear(done_of(node, await node.handed("a"), "failed", error="no"))
    await node.ended(facts.id)
    assert (await node.jobs.retry_plan(facts.id, RetryRequest())).tasks
    node.code.clear()
    text = f"the handlers that job {facts.id} brought are not kept any more: submit it again with --with"
    with pytest.raises(Conflict, match=text):
        await node.jobs.retry_dag(facts.id, RetryRequest())
    with pytest.raises(Conflict, match=text):
        await node.jobs.replay(f"{facts.id}/a", None)
    with pytest.raises(Conflict, match=text):
        await node.jobs.retry_plan(facts.id, RetryRequest())
    node.code.add(CODE.digest)
    await node.jobs.retry_dag(facts.id, RetryRequest())
    assert (await node.handed("a", 2)).handler == "mine"


async def test_another_bundle_under_the_same_key_is_another_job(node_of: NodeOf) -> None:
    node = await node_of()
    other = msgspec.structs.replace(CODE, digest="d" * 64)
    node.code |= {CODE.digest, other.digest}
    node.beat(accepts_code=True)
    facts = await node.jobs.submit_dag(BROUGHT, "k", "")
    assert (await node.jobs.submit_dag(BROUGHT, "k", "")).id == facts.id
    with pytest.raises(Conflict, match="was used for another job"):
        await node.jobs.submit_dag(msgspec.structs.replace(BROUGHT, bundle=other), "k", "")
