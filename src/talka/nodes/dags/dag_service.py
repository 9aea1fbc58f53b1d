"""Dag jobs of a manager on its store: connects the pure keeper to the thread that has the store, and answers clients.

Implements `client.dags.DagControl`, its reading half in `dag_reading`.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import msgspec

from talka.client.dags import Submitted
from talka.client.requests import Conflict, TooBusy
from talka.clock import boottime_ns
from talka.cluster.effects import Send
from talka.control.dags.job import DagJob, DagStep
from talka.control.dags.keeper import DagKeeper, Edit
from talka.control.dags.shelf import KeyTaken, NoRoomForJobs
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
from talka.errors import TalkaError, Unavailable
from talka.nodes.dags.dag_events import dag_ended_event, dropped_event, new_life_event, raised_event, too_old_event
from talka.nodes.dags.dag_reading import DagReading
from talka.nodes.dags.dag_requests import BUSY_S, DagAnswers, DagDrafts
from talka.nodes.dags.dag_views import live_facts, spec_of
from talka.nodes.dags.schedule_keeper import ScheduleKeeper
from talka.nodes.dags.store_hold import StoreLease
from talka.nodes.dags.store_thread import StoreThread
from talka.nodes.dags.store_upkeep import StoreUpkeep
from talka.nodes.member_events import Event
from talka.store.dags.records import StoreLost, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_life import StoreMemory, open_life
from talka.store.files.blobs import Blobs
from talka.wire.attempts import DRAWN_BITS, StoreLife
from talka.wire.task_views import DagFacts, RetryRequest, ScheduleView, SkipRequest
from talka.work.dag import DagSettings, DagSpec, TaskSpec
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.records import JobRow, TaskKey

if TYPE_CHECKING:
    from talka.nodes.manager import ManagerNode

PAGE: Final = 20_000
SWEEP_S: Final = 60.0
SCHEDULE_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Before something is read again that could not be."""
LEASE_EVERY_S: Final = 2.0
PATIENCE_S: Final = 2.0
"""With which a client waits for a store that cannot be written."""
STREAMED: Final = "streamed"
"""Instead of a digest: it is found in the store when a stream with the same key comes."""

Answer = TypeVar("Answer")


class DagService(DagReading):
    """Made with the store open; `start` within the loop, `close` at the end."""

    def __init__(
        self,
        node: "ManagerNode",
        records: SqliteRecords,
        blobs: Blobs,
        folder: Path,
        owner: str,
        tell: Callable[[Event], None],
        on_broken: Callable[[TalkaError], None],
    ) -> None:
        self._node = node
        self._tell = tell
        self._on_broken = on_broken
        draw = random.SystemRandom().getrandbits
        self._memory = StoreMemory(folder)
        self._lease = StoreLease(records, owner, tell)
        self._opened = open_life(records, self._lease.epoch, self._memory, lambda: draw(DRAWN_BITS))
        # Before anything is given out: should the file be put back, this folder knows how far it had come.
        self._memory.remember(self._opened.store, self._opened.life, self._lease.epoch)
        keeper = DagKeeper(
            epoch=self._lease.epoch,
            next_number=records.next_number(),
            rng=random.Random(draw(128)),
            wall_offset_ns=node.clock.offset_ns,
            life=StoreLife(self._opened.store, self._opened.life, draw(DRAWN_BITS)),
        )
        super().__init__(keeper, records, blobs)
        self._upkeep = StoreUpkeep(records, blobs, node.clock)
        self._schedules = ScheduleKeeper(records, self.submit_dag, tell)
        self._lease_problem = ""
        """Why the lease could not be renewed the last time."""
        self._is_problem_told = False
        self._is_closed = False
        self._answers = DagAnswers(self._submitted_facts)
        self._held: list[int] = []
        """Tickets of commits that hold already, and of which the keeper is told in a moment."""
        self._drafts = DagDrafts()
        self._reviving = asyncio.Lock()
        self._chores: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}
        """Of jobs that ended, by state."""
        self.dropped = 0
        """Attempts and results of another store or life that workers told to have dropped."""

    # -- life

    async def start(self) -> None:
        """Go on where the last life of this manager left off."""
        self._thread = StoreThread(self._records, self._blobs, self._committed, self._has_problem, self._broken)
        now = boottime_ns()
        thread = self._thread
        for row in await thread.read(self._records.live_jobs):
            self.keeper.restore_job(now, row)
            after = -1
            while page := await thread.read(self._records.live_tasks, row.number, after, PAGE):
                self.keeper.restore_tasks(now, row.number, page)
                after = page[-1].index
        self.is_loaded = True
        if self._opened.reason:
            self._tell(new_life_event(self._records.place, self.keeper.floor.life, self._opened.reason))
        self._do(self.keeper.restored(boottime_ns()))
        self._chores = [
            asyncio.create_task(self._every(LEASE_EVERY_S, self.keep_lease)),
            asyncio.create_task(self._every(SWEEP_S, self.sweep)),
            asyncio.create_task(self._every(SCHEDULE_S, self.follow_schedules)),
        ]

    async def close(self) -> None:
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._is_closed = True
        self._answers.fail(Unavailable("this manager stops: ask again when it is back"))
        if self._thread is not None:
            await self._thread.close()
        with contextlib.suppress(TalkaError):
            self._lease.release()
        self._records.close()

    def _do(self, effects: list[DagEffect]) -> None:
        """Carry out what the keeper answered: messages first, through the manager, since a task that waits to be run is
        worth more haste than what is told."""
        if self._is_closed or self.lost is not None:
            return
        sends = [effect for effect in effects if isinstance(effect, Send)]
        manager = self._node.manager
        if sends or self.keeper.next_tick_at < manager.next_tick_at:
            self._node.perform(manager.act(boottime_ns(), [*sends]))
        for effect in effects:
            if not isinstance(effect, Send):
                self.carry_out(effect)

    def carry_out(self, effect: StoreEffect) -> None:
        if self.lost is not None:
            return
        match effect:
            case Commit(ticket=ticket, changes=changes):
                if self._store.commit(ticket, changes):
                    # Not at once: whoever calls is in the midst of other effects.
                    self._held.append(ticket)
                    if len(self._held) == 1:
                        asyncio.get_running_loop().call_soon(self._on_held)
            case ReadOutputs():
                self._fetch(effect)
            case CallAnswered():
                self._answers.answer(effect)
            case DagEnded(job=job, state=state, reason=reason):
                self.counts[state] = self.counts.get(state, 0) + 1
                self._wake_watchers(job)
                if state is not JobState.COMPLETED:  # there may be thousands a second of those
                    self._tell(dag_ended_event(job, state, reason))
            case RaiseEpoch():
                self._raise_epoch(effect)
            case WorkerDropped(worker=worker, dropped=dropped):
                self.dropped += dropped.attempts + dropped.results
                self._tell(dropped_event(worker, dropped))
            case WorkerTooOld(worker=worker):
                self._tell(too_old_event(worker))
            case _:
                assert_never(effect)

    def _raise_epoch(self, wanted: RaiseEpoch) -> None:
        self._tell(raised_event(self._records.place, wanted))
        self._store.read(self._raised_to, wanted.epoch).add_done_callback(self._epoch_raised)

    def _raised_to(self, epoch: int) -> int:
        raised = self._lease.raise_to(epoch)
        self._memory.remember(self._opened.store, self._opened.life, raised)
        return raised

    def _epoch_raised(self, raising: "asyncio.Future[int]") -> None:
        if raising.cancelled():
            return
        error = raising.exception()
        if isinstance(error, StoreLost) or (error is not None and not isinstance(error, Unavailable)):
            self._broken(error)
            return
        # Where the store could not be written now, it is asked again with the worker's next beat.
        epoch = self.keeper.floor.epoch if error is not None else raising.result()
        self._do(self.keeper.on_epoch(boottime_ns(), epoch))

    def metrics(self) -> dict[str, dict[str, int] | float]:
        keeper = self.keeper
        return {
            "dag_jobs_live": len(keeper.jobs),
            "dag_jobs_ended_total": dict(self.counts),
            "dag_tasks_under_way": len(keeper.attempts.running),
            "dag_results_stale_total": keeper.stale_results,
            "dag_messages_foreign_total": keeper.foreign_messages,
            "dag_attempts_dropped_total": self.dropped,
            "dag_epochs_raised_total": keeper.floor.raised_total,
            "dag_workers_quarantined": len(keeper.dispatcher.quarantined(boottime_ns())),
            "dag_store_has_problem": int(bool(self.problem)),
        }

    @property
    def problem(self) -> str:
        """Why the store cannot be written just now."""
        if self.lost is not None:
            return str(self.lost)
        return (self._thread.problem if self._thread is not None else "") or self._lease_problem

    def why_not_ready(self) -> str:
        if self.lost is None and not self.is_loaded:
            return "this manager is still reading its dag jobs from the store"
        return f"the store cannot be written: {self.problem}" if self.problem else ""

    def is_doubtful(self, now: int) -> bool:
        """Whether another manager may have the store: then its workers must not go on because of this one."""
        return isinstance(self.lost, StoreTaken) or (not self._is_closed and self._lease.hold.is_over(now))

    def _on_held(self) -> None:
        held, self._held = self._held, []
        self._committed(held)

    def _committed(self, tickets: list[int]) -> None:
        self._do(self.keeper.on_committed(boottime_ns(), *tickets))

    def _fetch(self, fetch: ReadOutputs) -> None:
        if self._is_closed or self.lost is not None:
            return
        self._store.read(self._read_for, fetch).add_done_callback(lambda found: self._fetched(fetch, found))

    def _read_for(self, fetch: ReadOutputs) -> tuple[dict[TaskKey, tuple[TaskSpec, bytes]], dict[TaskKey, bytes]]:
        specs = {
            key: (spec_of(content), checkpoint)
            for key, (content, checkpoint) in self._records.specs(fetch.specs).items()
        }
        outputs: dict[TaskKey, bytes] = {}
        for key, (output, blob) in self._records.outputs(fetch.outputs).items():
            content = self._blobs.get(blob) if blob else output
            if content is not None:
                outputs[key] = content
        return specs, outputs

    def _fetched(
        self,
        fetch: ReadOutputs,
        found: "asyncio.Future[tuple[dict[TaskKey, tuple[TaskSpec, bytes]], dict[TaskKey, bytes]]]",
    ) -> None:
        if found.cancelled():
            return
        error = found.exception()
        if error is not None:
            if not isinstance(error, Unavailable):
                self._broken(error)
                return
            asyncio.get_running_loop().call_later(AGAIN_S, self._fetch, fetch)
            return
        specs, outputs = found.result()
        self._do(self.keeper.on_fetched(boottime_ns(), fetch.ticket, specs, outputs))

    def _has_problem(self, text: str) -> None:
        if bool(text or self.problem) == self._is_problem_told or self.lost is not None:
            return  # what keeps one from writing keeps the other
        self._is_problem_told = not self._is_problem_told
        if text:
            self._tell({"event": "alarm", "kind": "store", "text": f"{text}: dag jobs wait until it can be written"})
            asyncio.get_running_loop().call_later(PATIENCE_S, self._answer_unknown)
        else:
            self._tell({"event": "store-back"})

    def _answer_unknown(self) -> None:
        """Who waits is told so. What was asked for stays in line, and is done once there is room."""
        problem = self.problem
        if problem and self.lost is None:
            text = f"{problem}: what was asked for may still be done then; ask again with the same key"
            self._answers.fail(Unavailable(text))

    def _broken(self, error: BaseException) -> None:
        if isinstance(error, StoreLost):
            self._lose(error)
            return
        self._on_broken(error if isinstance(error, TalkaError) else Unavailable(f"the store failed: {error!r}"))

    def _lose(self, error: StoreLost) -> None:
        """Nothing is written, decided or acknowledged any more. Whoever asks is told so."""
        if self.lost is not None or self._is_closed:
            return
        self.lost = error
        if self._thread is not None:
            self._thread.give_up()
        for chore in self._chores:
            chore.cancel()
        self._answers.fail(error)
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

    async def keep_lease(self) -> None:
        """Not in the thread that reads: a long question must not cost the store."""
        problem = ""
        try:
            await asyncio.to_thread(self._lease.keep)
        except StoreLost as error:
            self._lose(error)
        except Unavailable as error:
            problem = str(error)
        self._lease_problem = problem
        self._has_problem(problem)

    async def sweep(self) -> None:
        for name in self._drafts.silent(self._loop_time()):
            await self.drop_dag(name)
        await self._store.read(self._upkeep.sweep)

    async def follow_schedules(self) -> None:
        await self._schedules.follow(self._store)

    def on_clock_jump(self, jump_ns: int) -> None:
        """The clock of the day was set by so much."""
        self._schedules.on_jump(jump_ns)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    # -- asking the keeper

    def _submitted_facts(self, id: str) -> DagFacts | TalkaError:
        job = self.keeper.job(id)
        # Where it stands among others is asked for apart: it takes a while.
        return Unavailable("the job is gone already") if job is None else live_facts(job, None)

    async def _call(self, ask: Callable[[int], list[DagEffect]]) -> str:
        """The id of the job that was asked about, once that is durable."""
        call = next(self._answers.calls)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._check_store()
        effects = self._asked(ask, call)
        self._answers.waiting[call] = answer
        try:
            self._do(effects)
            return await answer
        finally:
            self._answers.waiting.pop(call, None)

    def _asked(self, ask: Callable[[int], Answer], call: int) -> Answer:
        try:
            return ask(call)
        except NoRoomForJobs as error:
            raise TooBusy(str(error), BUSY_S) from None
        except KeyTaken as error:
            raise Conflict(f"{error}, which was submitted at the same moment: ask again") from None

    def _check_store(self) -> None:
        self._check_loaded()
        if self.problem:
            raise Unavailable(f"{self.problem}: try again later")

    # -- the port: submitting

    async def submit_dag(self, spec: DagSpec, key: str, by: str) -> DagFacts:
        digest = ""
        if key:
            digest = hashlib.sha256(msgspec.json.encode(spec)).hexdigest()
            known = await self._row_of(key)
            if known is not None:
                if known.digest != digest:
                    raise Conflict(f"the key {key!r} was used for another job, {known.id}: use a key of its own")
                return await self._known(known)
        keyed = await self._keyed([task.key for task in spec.tasks if task.key])
        id = await self._call(
            lambda call: self.keeper.submit(boottime_ns(), call, spec, key=key, by=by, digest=digest, keyed=keyed)
        )
        return await self.dag(id)

    async def _row_of(self, key: str) -> JobRow | None:
        """Of the job that was submitted with this key."""
        job = self.keeper.shelf.of_key(key)
        if job is not None:
            return job.row
        row = await self._store.read(self._records.job_by_key, key)
        return None if row is None or row.state is JobState.SUBMITTED else row  # a draft that is being dropped

    async def _known(self, row: JobRow) -> DagFacts:
        """Of a job that may be about to be kept: it is not told before."""
        await self._call(lambda call: self.keeper.confirm(boottime_ns(), call, row.id))
        return await self.dag(row.id)

    async def _keyed(self, keys: Sequence[str]) -> dict[str, tuple[bytes, str]]:
        """Outputs of tasks that completed under these idempotency keys before."""
        if not keys:
            return {}
        found = await self._store.read(self._records.keyed, keys)
        return {key: (one.output, one.blob) for key, one in found.items()}

    def submit_soon(self, spec: DagSpec, key: str, by: str, done: Submitted) -> None:
        if key or any([task.key for task in spec.tasks]):
            task = asyncio.ensure_future(self.submit_dag(spec, key, by))
            task.add_done_callback(lambda ended: done(_result_of(ended)))
            return
        call = next(self._answers.calls)
        try:
            self._check_store()
            effects = self._asked(lambda call: self.keeper.submit(boottime_ns(), call, spec, by=by), call)
        except TalkaError as error:
            done(error)
            return
        self._answers.waiting[call] = done
        self._do(effects)

    async def begin_dag(self, name: str, settings: DagSettings, key: str, by: str) -> str:
        self._drafts.check_room()
        self._check_store()
        known = await self._row_of(key) if key else None
        if known is None:
            id = self._asked(
                lambda _: self.keeper.begin(boottime_ns(), name, settings, key=key, by=by, digest=STREAMED), 0
            )
        elif known.id in self.keeper.shelf.drafts:
            raise Conflict(f"a job with the key {key!r} is being streamed just now: wait for it, or use another key")
        elif (known.name, known.settings) != (name, msgspec.json.encode(settings)):
            raise Conflict(f"the key {key!r} was used for another job, {known.id}: use a key of its own")
        else:
            id = f"{known.id}-{next(self._answers.calls)}"  # nothing is written of it
        self._drafts.open(id, known, self._loop_time())
        return id

    async def add_tasks(self, draft: str, tasks: Sequence[TaskSpec]) -> int:
        found = self._drafts.find(draft, self._loop_time())
        if found.known is None:
            await self._call(lambda call: self.keeper.add(boottime_ns(), call, draft, tasks))
        return found.add(tasks)

    async def end_dag(self, draft: str) -> DagFacts:
        found = self._drafts.find(draft, self._loop_time())
        self._drafts.close(draft)
        if found.known is not None:
            facts = await self._known(found.known)
            if await self._store.read(self._digest_of, found.known.number) != found.digest.digest():
                raise Conflict(f"a key was used for another job, {facts.id}: use a key of its own")
            return facts
        try:
            keyed = await self._keyed(list(found.keys))
            await self._call(lambda call: self.keeper.end(boottime_ns(), call, draft, keyed=keyed))
        except BaseException:
            self._do(self.keeper.drop(boottime_ns(), draft))  # unless it was ended, and only nobody waits any more
            raise
        return await self.dag(draft)

    def _digest_of(self, job: int) -> bytes:
        digest = hashlib.sha256()
        after = -1
        while rows := self._records.tasks(job, (), after, PAGE):
            for row in rows:
                digest.update(row.spec + b"\n")
            after = rows[-1].index
        return digest.digest()

    async def drop_dag(self, draft: str) -> None:
        if self._drafts.close(draft) is not None:
            self._do(self.keeper.drop(boottime_ns(), draft))

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

    async def skip_dag(self, id: str, request: SkipRequest) -> DagFacts:
        await self._check_under_way(id)
        return await self._change(id, lambda job: job.skip(boottime_ns(), request.tasks))

    async def retry_dag(self, id: str, request: RetryRequest) -> DagFacts:
        # One at a time: what the store has of a job that has ended must not change before it is in memory again.
        async with self._reviving:
            ended = None
            if self.keeper.job(id) is None:
                row = await self._row(id)
                ended = (row, await self._store.read(self._records.live_tasks, row.number, -1, row.tasks + 1))
            edits: list[Edit] = []
            for task, config in request.config.items():
                _, found = await self._task(id, task)
                edits.append(Edit(found.index, spec_of(found.spec), found.checkpoint, config))
            if ended is None and self.keeper.job(id) is None:
                raise Unavailable(f"job {id} has ended just now: ask again")
            await self._call(lambda call: self.keeper.rerun(boottime_ns(), call, id, request.tasks, edits, ended))
        return await self.dag(id)

    async def _check_under_way(self, id: str) -> None:
        facts = await self.dag(id)
        if is_final(facts.state):
            raise Conflict(f"job {id} is {facts.state}: it has ended")

    async def _change(self, id: str, what: Callable[[DagJob], DagStep]) -> DagFacts:
        await self._call(lambda call: self.keeper.change(boottime_ns(), call, id, what))
        return await self.dag(id)

    # -- the port: all jobs together

    async def replay(self, id: str, config: msgspec.Raw | None) -> DagFacts:
        job, _, task = id.partition("/")
        _, found = await self._task(job, task)
        if found.state is not TaskState.DEAD:
            raise Conflict(f"task {task} of job {job} is {found.state}: only dead letters are replayed")
        return await self.retry_dag(job, RetryRequest((task,), {} if config is None else {task: config}))

    async def put_schedule(self, spec: DagSpec, by: str) -> ScheduleView:
        return await self._schedules.put(self._store, spec, by)

    async def drop_schedule(self, name: str) -> None:
        await self._schedules.drop(self._store, name)


def _result_of(ended: "asyncio.Future[DagFacts]") -> DagFacts | TalkaError:
    error = ended.exception()
    if error is None:
        return ended.result()
    return error if isinstance(error, TalkaError) else Unavailable(str(error))
