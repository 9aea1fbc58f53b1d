"""Dag jobs of a manager on its store: connects the pure keepers to the store, and answers clients.

Implements `client.dags.DagControl`, its reading half in `dag_reading`.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md, docs/decisions/0040-partitions-of-jobs.md.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, assert_never

import msgspec

from talka.client.dags import DagEnd, Submitted
from talka.client.requests import Conflict, TooBusy
from talka.clock import boottime_ns
from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob
from talka.control.dags.keeper import DagKeeper, Edit
from talka.control.dags.keeper_limits import KEEPER_LIMITS, KeeperLimits
from talka.control.dags.shelf import KeyTaken, NoRoomForJobs
from talka.control.member.metrics import Counted
from talka.control.tasks.notices import NOTICE_LIMITS, NoticeLimits
from talka.control.tasks.store_effects import (
    CallAnswered,
    Commit,
    DagEffect,
    DagEnded,
    RaiseEpoch,
    ReadOutputs,
    StoreEffect,
    WorkerDropped,
    WorkerTooOld,
)
from talka.control.tasks.worker_link import ToWorker
from talka.errors import TalkaError, Unavailable
from talka.nodes.dags.dag_events import dag_ended_event, dropped_event, new_life_event, raised_event, too_old_event
from talka.nodes.dags.dag_reading import ReadingLimits
from talka.nodes.dags.dag_requests import BUSY_S, DRAFTS_LIMIT, SILENCE_S, DagAnswers, DagDrafts
from talka.nodes.dags.job_code import JobCode
from talka.nodes.dags.kept_partitions import KeptPartitions
from talka.nodes.dags.notice_sender import NO_NOTICES, NoticeSender, NotifyOptions
from talka.nodes.dags.notifier import Notifier
from talka.nodes.dags.runnable import SETTLE_NS, RunnableCheck, bundled_in
from talka.nodes.dags.schedule_calls import ScheduleCalls
from talka.nodes.dags.schedule_keeper import ScheduleKeeper
from talka.nodes.dags.store_upkeep import StoreUpkeep, UpkeepLimits
from talka.nodes.dags.submit_turns import SubmitTurns
from talka.nodes.member_events import Event
from talka.store.dags.records import CommitListener, Store, StoreLost, StoreTaken
from talka.wire.task_views import DagFacts, RetryRequest, SkipRequest
from talka.work.dags.dag import (
    BadDag,
    DagHead,
    DagSpec,
    TaskSpec,
    identity_of,
    with_bundle,
)
from talka.work.dags.elements import kept_element
from talka.work.dags.params import Filler, filled, values_for, values_text
from talka.work.dags.records import JobRow
from talka.work.lifecycle import JobState, TaskState, is_final

if TYPE_CHECKING:
    from talka.nodes.manager import ManagerNode

PAGE: Final = 20_000
SWEEP_S: Final = 60.0
SCHEDULE_S: Final = 1.0
NOTIFY_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Before something is read again that could not be."""
LEASE_EVERY_S: Final = 2.0
PATIENCE_S: Final = 2.0
"""With which a client waits for a store that cannot be written."""
STREAMED: Final = "streamed"
"""Instead of a digest: it is found in the store when a stream with the same key comes."""

Answer = TypeVar("Answer")


class ServiceLimits(NamedTuple):
    page: int = PAGE
    sweep_s: float = SWEEP_S
    schedule_s: float = SCHEDULE_S
    notify_s: float = NOTIFY_S
    again_s: float = AGAIN_S
    lease_every_s: float = LEASE_EVERY_S
    patience_s: float = PATIENCE_S
    drafts: int = DRAFTS_LIMIT
    silence_s: float = SILENCE_S
    reading: ReadingLimits = ReadingLimits()
    upkeep: UpkeepLimits = UpkeepLimits()
    notices: NoticeLimits = NOTICE_LIMITS
    keeper: KeeperLimits = KEEPER_LIMITS
    settle_ns: int = SETTLE_NS


USUAL_LIMITS: Final = ServiceLimits()


class DagService(ScheduleCalls):
    """Made by `dag_opening.open_dags` with the store open and had; `start` once, `close` at the end."""

    def __init__(
        self,
        node: "ManagerNode",
        store: Store,
        kept: KeptPartitions,
        tell: Callable[[Event], None],
        on_broken: Callable[[TalkaError], None],
        limits: ServiceLimits,
        notices: NotifyOptions = NO_NOTICES,
        datacenter: str = "",
    ) -> None:
        super().__init__(kept, store, limits.reading, datacenter)
        kept.do, kept.on_broken = self._do, self._broken
        self._node = node
        self._tell = tell
        self._on_broken = on_broken
        self._limits = limits
        self._code = JobCode(node, store)
        self._upkeep = StoreUpkeep(store, node.clock, limits.upkeep)
        self._schedules = ScheduleKeeper(store, self.submit_filled, self.submitted, tell)
        self._notices = notices
        sender = NoticeSender(notices.secret, may_be_private=notices.may_be_private)
        self._notifier = Notifier(
            store,
            sender.send,
            kept.lease_of,
            tell,
            random.Random(random.SystemRandom().getrandbits(128)),
            limits=limits.notices,
            again_s=limits.again_s,
        )
        self._lease_problem = ""
        """Why the lease could not be renewed the last time."""
        self._is_problem_told = False
        self._is_closed = False
        self._answers = DagAnswers()
        self._runnable = RunnableCheck(kept.turns.dispatcher.workers.known, limits.settle_ns)
        self._drafts = DagDrafts(limits.drafts, limits.silence_s)
        self._submit_turns = SubmitTurns(self.keepers, self._do)
        self._turns = count()
        """Of partitions, for new jobs."""
        self._reviving = asyncio.Lock()
        self._chores: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}
        """Of jobs that ended, by state."""
        self.dropped = 0
        """Attempts and results of another store or life that workers told to have dropped."""

    # -- life

    async def start(self) -> None:
        """Go on where the last life of this manager left off."""
        kept = self._kept
        self._opened_store.start(CommitListener(kept.on_committed, self._has_problem, self._broken))
        await kept.load()
        self.loaded.set()
        self._runnable.begin()
        if kept.opened.reason:
            life = next(iter(self.keepers)).floor.life
            self._tell(new_life_event(self._opened_store.place, life, kept.opened.reason))
        for keeper in list(self.keepers):
            self._do(keeper.restored(boottime_ns()))
        self._chores = [
            asyncio.create_task(self._every(self._limits.lease_every_s, self.keep_leases)),
            asyncio.create_task(self._every(self._limits.sweep_s, self.sweep)),
            asyncio.create_task(self._every(self._limits.schedule_s, self.follow_schedules)),
            asyncio.create_task(self._every(self._limits.notify_s, self.send_notices)),
        ]

    async def close(self) -> None:
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._is_closed = True
        await self._notifier.close()
        self._kept.stop()
        stopping = Unavailable("this manager stops: ask again when it is back")
        self._answers.fail(stopping)
        self._ends.fail(stopping)
        await self._opened_store.drain()
        await self._kept.release()
        await self._opened_store.close()

    def _do(self, effects: list[DagEffect]) -> None:
        """Carry out what a keeper answered: messages first, through the manager, since a task that waits to be run is
        worth more haste than what is told."""
        if self._is_closed or self.lost is not None:
            return
        said = [effect for effect in effects if isinstance(effect, ToWorker)]
        self._node.perform(self._node.manager.act(boottime_ns(), said))
        for effect in effects:
            if not isinstance(effect, ToWorker):
                self.carry_out(effect)

    def carry_out(self, effect: StoreEffect) -> None:
        if self.lost is not None:
            return
        match effect:
            case Commit():
                self._kept.commit(effect)
            case ReadOutputs():
                self._kept.fetch(effect)
            case CallAnswered():
                self._answers.answer(effect)
            case DagEnded(job=job, state=state, reason=reason):
                self.counts[state] = self.counts.get(state, 0) + 1
                self._ends.tell(job, DagEnd(state, reason, effect.counts))
                self._wake_watchers(job)
                if state is not JobState.COMPLETED:  # there may be thousands a second of those
                    self._tell(dag_ended_event(job, state, reason))
            case RaiseEpoch():
                self._tell(raised_event(self._opened_store.place, effect))
                self._kept.raise_epoch(effect)
            case WorkerDropped(worker=worker, dropped=dropped):
                self.dropped += dropped.attempts + dropped.results
                self._tell(dropped_event(worker, dropped))
            case WorkerTooOld(worker=worker):
                self._tell(too_old_event(worker))
            case _:
                assert_never(effect)

    def metrics(self) -> dict[str, Counted]:
        return {
            **self._kept.metrics(boottime_ns()),
            "dag_jobs_ended_total": dict(self.counts),
            "dag_attempts_dropped_total": self.dropped,
            "dag_notices_total": dict(self._notifier.counts),
            "dag_store_has_problem": int(bool(self.problem)),
        }

    @property
    def problem(self) -> str:
        """Why the store cannot be written just now."""
        if self.lost is not None:
            return str(self.lost)
        return self._opened_store.problem or self._lease_problem

    def oldest_ns(self, now: int) -> int:
        """For how long the oldest write of the store is waited for. One that cannot be written is no load."""
        return 0 if self.problem else self._kept.oldest_ns(now)

    def why_not_ready(self) -> str:
        if self.lost is None and not self.is_loaded:
            return "this manager is still reading its dag jobs from the store"
        return f"the store cannot be written: {self.problem}" if self.problem else ""

    def has_heard(self, worker: str) -> bool:
        """What a worker of this name can run is known."""
        return self.keepers.has_heard(worker)

    def is_doubtful(self, now: int) -> bool:
        """Whether another manager may have the store: then its workers must not go on because of this one."""
        return isinstance(self.lost, StoreTaken) or (not self._is_closed and self._kept.is_doubtful(now))

    def _has_problem(self, text: str) -> None:
        if bool(text or self.problem) == self._is_problem_told or self.lost is not None:
            return  # what keeps one from writing keeps the other
        self._is_problem_told = not self._is_problem_told
        if text:
            self._tell({"event": "alarm", "kind": "store", "text": f"{text}: dag jobs wait until it can be written"})
            asyncio.get_running_loop().call_later(self._limits.patience_s, self._answer_unknown)
        else:
            self._tell({"event": "store-back"})

    def _answer_unknown(self) -> None:
        """Who waits is told so. What was asked for stays in line, and is done once there is room."""
        problem = self.problem
        if problem and self.lost is None:
            text = f"{problem}: what was asked for may still be done then; ask again with the same key"
            self._answers.fail(Unavailable(text))

    def _broken(self, error: BaseException) -> None:
        if isinstance(error, StoreTaken) and (partition := self._kept.drop(error)) is not None:
            self._lose_partition(partition, error)
        elif isinstance(error, StoreLost):
            self._lose(error)
        else:
            self._on_broken(error if isinstance(error, TalkaError) else Unavailable(f"the store failed: {error!r}"))

    def _lose_partition(self, partition: int, error: StoreTaken) -> None:
        """Another manager has this one; jobs of the others go on."""
        self._node.manager.drop_keeper(boottime_ns(), partition)
        place = self._opened_store.place
        text = f"another manager has taken partition {partition} of the store {place}: the others go on here"
        self._answers.fail(type(error)(text), partition)
        self._ends.fail(type(error)(text), lambda id: self.keepers.of_job(id) is None)
        self._tell({"event": "alarm", "kind": "store", "text": text})

    def _lose(self, error: StoreLost) -> None:
        """Nothing is written, decided or acknowledged any more. Whoever asks is told so."""
        if self.lost is not None or self._is_closed:
            return
        self.lost = error
        self._kept.stop()
        self._opened_store.give_up()
        for chore in self._chores:
            chore.cancel()
        self._answers.fail(error)
        self._ends.fail(error)
        self._tell({"event": "alarm", "kind": "store", "text": str(error)})
        self._on_broken(error)

    # -- chores

    async def _every(self, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except Unavailable:
                continue  # the next time comes soon
            except Exception as error:  # noqa: BLE001 - nobody else would see it
                self._broken(error)

    async def keep_leases(self) -> None:
        problem = await self._kept.keep_leases()
        self._lease_problem = problem
        self._has_problem(problem)

    async def sweep(self) -> None:
        for name in self._drafts.silent(self._loop_time()):
            await self.drop_dag(name)
        self._check_loaded()
        if self._kept.has_first:
            await self._upkeep.sweep()

    async def follow_schedules(self) -> None:
        self._check_loaded()
        if self._kept.has_first:
            await self._schedules.follow()

    async def send_notices(self) -> None:
        self._check_loaded()
        await self._notifier.look()

    def on_clock_jump(self, jump_ns: int) -> None:
        """The clock of the day was set by so much."""
        self._schedules.on_jump(jump_ns)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    # -- asking the keeper

    async def _call(self, keeper: DagKeeper, ask: Callable[[int], list[DagEffect]]) -> str:
        """The id of the job that the keeper was asked about, once that is durable."""
        call = next(self._answers.calls)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._check_store()
        effects = self._asked(ask, call)
        self._answers.wait(call, answer, keeper.partition.number)
        try:
            self._do(effects)
            return await answer
        finally:
            self._answers.forget(call)

    def _keeper_for(self, key: str) -> DagKeeper:
        """Where a new job is put."""
        self._check_loaded()
        keeper = self.keepers.of_key(key) if key else self.keepers.of_turn(next(self._turns))
        if keeper is None:
            raise Unavailable(
                f"another manager has the part of the store that jobs with the key {key!r} are in: ask it"
            )
        return keeper

    def _asked(self, ask: Callable[[int], Answer], call: int) -> Answer:
        try:
            return ask(call)
        except NoRoomForJobs as error:
            raise TooBusy(str(error), BUSY_S) from None
        except KeyTaken as error:
            raise Conflict(f"{error}, which was submitted at the same moment: ask again") from None

    async def bundles(self) -> set[str]:
        """Digests of those that must stay."""
        self._check_loaded()
        return await self._code.named(self.keepers)

    def _check_store(self) -> None:
        self._check_loaded()
        if self.problem:
            raise Unavailable(f"{self.problem}: try again later")

    # -- the port: submitting

    async def submit_dag(self, spec: DagSpec, key: str, by: str) -> DagFacts:
        self._check_notices(spec.settings)
        return await self.submit_filled(filled(spec), key, by, waits=spec.wait_for_workers)

    async def submit_filled(self, spec: DagSpec, key: str, by: str, *, waits: bool = True) -> DagFacts:
        """As `submit_dag`, of what `filled` gave: other values are another order. `waits`: also for workers that nobody
        knows, as what a schedule submits does."""
        self._code.check(spec.bundle)
        digest = ""
        if key:
            digest = hashlib.sha256(identity_of(spec)).hexdigest()
            known = await self._row_of(key)
            if known is not None:
                if known.digest != digest:
                    raise Conflict(f"the key {key!r} was used for another job, {known.id}: use a key of its own")
                return await self._known(known)
        if not waits:
            self._runnable.check(spec.tasks, bundled_in(spec))
        keyed = await self._keyed([task.key for task in spec.tasks if task.key])
        keeper = self._keeper_for(key)
        id = await self._call(
            keeper, lambda call: keeper.submit(boottime_ns(), call, spec, key=key, by=by, digest=digest, keyed=keyed)
        )
        return await self.dag(id)

    async def submitted(self, key: str) -> DagFacts | None:
        """The job that was submitted with this key, whatever it is."""
        row = await self._row_of(key)
        return None if row is None or self._is_draft(row.id) else await self._known(row)

    async def _row_of(self, key: str) -> JobRow | None:
        """Of the job that was submitted with this key."""
        job = self._keeper_for(key).shelf.of_key(key)
        if job is not None:
            return job.row
        row = await self._store.job_by_key(key)
        return None if row is None or row.state is JobState.SUBMITTED else row  # a draft that is being dropped

    async def _known(self, row: JobRow) -> DagFacts:
        """Of a job that may be about to be kept: it is not told before."""
        keeper = self._keeper_of(row.id)
        await self._call(keeper, lambda call: keeper.confirm(boottime_ns(), call, row.id))
        return await self.dag(row.id)

    async def _keyed(self, keys: Sequence[str]) -> dict[str, tuple[bytes, str]]:
        """Outputs of tasks that completed under these idempotency keys before."""
        if not keys:
            return {}
        found = await self._store.keyed(keys)
        return {key: (one.output, one.blob) for key, one in found.items()}

    def submit_soon(self, spec: DagSpec, key: str, by: str, done: Submitted, *, is_brief: bool = False) -> None:
        try:
            self._check_notices(spec.settings)
            spec = filled(spec)
        except BadDag as error:
            done(error)
            return
        if key or any([task.key for task in spec.tasks]):
            task = asyncio.ensure_future(self.submit_filled(spec, key, by, waits=spec.wait_for_workers))
            task.add_done_callback(lambda ended: done(_result_of(ended)))
            return
        call = next(self._answers.calls)
        try:
            self._check_store()
            self._code.check(spec.bundle)
            if not spec.wait_for_workers:
                self._runnable.check(spec.tasks, bundled_in(spec))
            keeper = self._keeper_for("")
            has_more = self._submit_turns.waits(keeper)
            effects = self._asked(lambda call: keeper.submit(boottime_ns(), call, spec, by=by, has_more=has_more), call)
        except TalkaError as error:
            done(error)
            return
        self._answers.wait(
            call, lambda told: done(self._submitted_facts(told, is_brief=is_brief)), keeper.partition.number
        )
        if effects:
            self._do(effects)

    async def begin_dag(self, head: DagHead, key: str, by: str) -> str:
        self._drafts.check_room()
        self._check_store()
        self._check_notices(head.settings)
        self._code.check(head.bundle)
        values = values_for(head)
        params = values_text(values)
        name, settings = head.name, with_bundle(head.settings, head.bundle)
        known = await self._row_of(key) if key else None
        keeper = self._keeper_for(key)
        if known is None:
            now, digest = boottime_ns(), STREAMED
            id = self._asked(
                lambda _: keeper.begin(now, name, settings, key=key, by=by, digest=digest, params=params), 0
            )
        elif self._is_draft(known.id):
            raise Conflict(f"a job with the key {key!r} is being streamed just now: wait for it, or use another key")
        elif (known.name, known.settings, known.params) != (name, msgspec.json.encode(settings), params):
            raise Conflict(f"the key {key!r} was used for another job, {known.id}: use a key of its own")
        else:
            id = f"{known.id}-{next(self._answers.calls)}"  # nothing is written of it
        self._drafts.open(id, known, self._loop_time(), Filler(values), bundled_in(head), waits=head.wait_for_workers)
        return id

    async def add_tasks(self, draft: str, tasks: Sequence[TaskSpec]) -> int:
        found = self._drafts.find(draft, self._loop_time())
        tasks = found.filled(tasks)
        if found.known is None:
            if not found.waits:
                self._runnable.check(tasks, found.bundled)
            keeper = self._keeper_of(draft)
            await self._call(keeper, lambda call: keeper.add(boottime_ns(), call, draft, tasks))
        return found.add(tasks)

    async def end_dag(self, draft: str) -> DagFacts:
        found = self._drafts.find(draft, self._loop_time())
        self._drafts.close(draft)
        if found.known is not None:
            facts = await self._known(found.known)
            if await self._digest_of(found.known.number) != found.digest.digest():
                raise Conflict(f"a key was used for another job, {facts.id}: use a key of its own")
            return facts
        try:
            keyed = await self._keyed(list(found.keys))
            keeper = self._keeper_of(draft)
            await self._call(keeper, lambda call: keeper.end(boottime_ns(), call, draft, keyed=keyed))
        except BaseException:
            self._drop(draft)  # unless it was ended, and only nobody waits any more
            raise
        return await self.dag(draft)

    async def _digest_of(self, job: int) -> bytes:
        digest = hashlib.sha256()
        after = -1
        while rows := await self._store.tasks(job, (), after, self._limits.page):
            content = b"".join([row.spec + b"\n" for row in rows if kept_element(row.spec) is None])
            await asyncio.to_thread(digest.update, content)  # it may be many megabytes
            after = rows[-1].index
        return digest.digest()

    async def drop_dag(self, draft: str) -> None:
        if self._drafts.close(draft) is not None:
            self._drop(draft)

    def _drop(self, draft: str) -> None:
        keeper = self.keepers.of_job(draft)
        if keeper is not None:
            self._do(keeper.drop(boottime_ns(), draft))

    # -- the port: changing

    async def cancel_dag(self, id: str, reason: str) -> DagFacts:
        facts = await self.dag(id)
        if is_final(facts.state) or facts.state is JobState.CANCELLING:
            return facts
        return await self._change(id, lambda job: job.cancel(boottime_ns(), reason or "cancelled"))

    async def pause_dag(self, id: str) -> DagFacts:
        await self._check_under_way(id)
        return await self._change(id, lambda job: job.pause(boottime_ns()))

    async def resume_dag(self, id: str) -> DagFacts:
        await self._check_under_way(id)
        return await self._change(id, lambda job: job.resume(boottime_ns()))

    async def skip_dag(self, id: str, request: SkipRequest, by: str = "") -> DagFacts:
        await self._check_under_way(id)
        return await self._change(id, lambda job: job.skip(boottime_ns(), request.tasks, by))

    async def retry_dag(self, id: str, request: RetryRequest) -> DagFacts:
        # One at a time: what the store has of a job that has ended must not change before it is in memory again.
        async with self._reviving:
            ended = None
            if self._job(id) is None:
                row = await self._row(id)
                self._code.check_kept(row)
                live = await self._store.live_tasks(row.number, -1, row.tasks + 1)
                streams = await self._store.stream_sizes(row.number, 0, live[-1].index + 1 if live else 0)
                ended = (row, live, streams, await self._store.fans(row.number))
            edits: list[Edit] = []
            for task, config in request.config.items():
                _, found = await self._task(id, task)
                key = (found.job, found.index)
                specs = await self._kept.whole_specs({key: (found.spec, found.checkpoint)})
                edits.append(Edit(found.index, *specs[key], config))
            if ended is None and self._job(id) is None:
                raise Unavailable(f"job {id} has ended just now: ask again")
            keeper = self._keeper_of(id)
            await self._call(keeper, lambda call: keeper.rerun(boottime_ns(), call, id, request.tasks, edits, ended))
        return await self.dag(id)

    async def _check_under_way(self, id: str) -> None:
        facts = await self.dag(id)
        if is_final(facts.state):
            raise Conflict(f"job {id} is {facts.state}: it has ended")

    async def _change(self, id: str, what: Callable[[DagJob], DagStep]) -> DagFacts:
        keeper = self._keeper_of(id)
        await self._call(keeper, lambda call: keeper.change(boottime_ns(), call, id, what))
        return await self.dag(id)

    # -- the port: all jobs together

    async def replay(self, id: str, config: msgspec.Raw | None) -> DagFacts:
        job, _, task = id.partition("/")
        _, found = await self._task(job, task)
        if found.state is not TaskState.DEAD:
            raise Conflict(f"task {task} of job {job} is {found.state}: only dead letters are replayed")
        return await self.retry_dag(job, RetryRequest((task,), {} if config is None else {task: config}))


def _result_of(ended: "asyncio.Future[DagFacts]") -> DagFacts | TalkaError:
    error = ended.exception()
    if error is None:
        return ended.result()
    return error if isinstance(error, TalkaError) else Unavailable(str(error))
