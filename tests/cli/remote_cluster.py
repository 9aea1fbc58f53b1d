"""A cluster of the tests' own making, behind a real API in a thread of its own, for commands that ask one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from talka.client.requests import NoResult
from talka.control.jobs.job_checkpoint import spec_of
from talka.control.load.load_job import LoadJob
from talka.control.load.shard_run import ShardAttempt, ShardRun
from talka.report.building import Meta, build
from talka.stats.tally import Exchanges, StepTally, Tally
from talka.stats.windows import Window
from talka.units import SECOND
from talka.web.auth import Tokens
from talka.wire.orders import JobOrder
from talka.wire.views import JobFacts, JobUpdate, LogLine, WorkerView, WorkflowUpdate
from talka.work.lifecycle import JobState, TaskState
from talka.work.load import Shard
from tests.web.fake_control import Api, Apis, FakeControl, FakeJob

LIMIT_S = 60

Found = TypeVar("Found")


class ScriptedControl(FakeControl):
    """Jobs wait, run and end as soon as they are submitted; or they go on until somebody cancels them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_endless = False
        """Jobs run until they are cancelled."""
        self.stays_queued = False
        self.ignores_cancel = False
        self.orders: list[JobOrder] = []
        self.found_workers: list[WorkerView] | None = None
        self.exit_code = 0
        self.logs: list[LogLine] = []

    async def _note(self, *asked: str) -> None:
        try:
            await super()._note(*asked)
        finally:
            async with self.news:
                self.news.notify_all()

    async def submit(self, order: JobOrder, key: str) -> JobFacts:
        if order.bundle.url:
            self.bundles[order.bundle.digest] = b""
        known = len(self.jobs_by_id)
        facts = await super().submit(order, key)
        self.orders.append(order)
        if len(self.jobs_by_id) > known:
            await self._play(self.jobs_by_id[facts.id])
        return facts

    async def _play(self, job: FakeJob) -> None:
        queued = msgspec.structs.replace(
            job.facts, state=JobState.QUEUED, position=2, waits_for="waits for 4 cores: 1 of 8 are free"
        )
        job.facts = queued
        await self.tell(job, JobUpdate(queued, 1))
        if self.stays_queued:
            return
        job.facts = msgspec.structs.replace(
            queued, state=JobState.RUNNING, position=None, waits_for="", cores=4, workers=["w1"], owner="m1"
        )
        await self.tell(job, self._update(job, 2, TaskState.RUNNING))
        if not self.is_endless:
            await self.end(job, JobState.COMPLETED, self.exit_code)

    def _update(self, job: FakeJob, sequence: int, state: TaskState, *, final: bool = False) -> JobUpdate:
        tally = Tally(
            iterations=60, started=60, exchanges=Exchanges(ok=60), steps={"get": StepTally(ok=60), "home": StepTally()}
        )
        tally.steps["get"].response_time.record(5000)
        ended = state is not TaskState.RUNNING
        return JobUpdate(
            job.facts,
            sequence,
            3 * SECOND,
            True,
            [
                WorkflowUpdate(workflow.name, state, 3 * SECOND, ended, ended, 0 if ended else 2, 4, tally)
                for workflow in job.order.workflows
            ],
            [] if final else [Window(number, requests=3) for number in range(20)],
            final=final,
            logs=self.logs,
        )

    async def end(self, job: FakeJob, state: JobState, exit_code: int) -> None:
        job.facts = msgspec.structs.replace(job.facts, state=state, cores=0, position=None, exit_code=exit_code)
        task = TaskState.CANCELLED if state is JobState.CANCELLED else TaskState.COMPLETED
        began = bool(job.updates and job.updates[-1].origin)
        if began:
            update = self._update(job, 3, task, final=True)
            load = LoadJob(spec_of(job.facts.id, job.order, job.order.cores))
            load.origin_ns, load.ended_ns = 1000 * SECOND, 1003 * SECOND
            for number, workflow in enumerate(update.workflows):
                run, attempt = load.workflows[workflow.name], ShardAttempt(number, 0, "w1", ())
                run.state, run.origin_ns, run.ended_ns = task, load.origin_ns, load.ended_ns
                assert workflow.tally is not None
                attempt.tally = workflow.tally
                run.shards = [ShardRun(Shard(run.spec.plan, 0, 1))]
                run.shards[0].attempts.append(attempt)
            for window in (window for told in job.updates for window in told.windows):
                load.timeline.add(window)
            load.interrupted_by = "cancel" if state is JobState.CANCELLED else None
            meta = Meta(name=job.order.name, file=None, started_at="2026-01-02T03:04:05.000+00:00", version="0")
            document = build(load, job.order.workflows, meta)
            job.result = msgspec.structs.replace(document, exit_code=exit_code).to_json()
        else:
            update = JobUpdate(job.facts, 3, final=True)
        await self.tell(job, update)

    async def cancel(self, id: str, reason: str) -> JobFacts:
        facts = await super().cancel(id, reason)
        if not self.ignores_cancel:
            job = self.jobs_by_id[id]
            await self.end(job, JobState.CANCELLED, 8)
            facts = job.facts
        return facts

    async def result(self, id: str) -> bytes:
        job = self._job(id)
        if job.result is None and job.updates and job.updates[-1].final:
            raise NoResult(f"job {id} ended before anything ran: there is no result")
        return await super().result(id)

    async def workers(self) -> list[WorkerView]:
        found = await super().workers()
        return found if self.found_workers is None else self.found_workers


class RemoteCluster:
    """The API's address is `to`. What the control holds may be looked at and changed while nobody asks."""

    def __init__(self, auth: Tokens | None = None) -> None:
        self.control = ScriptedControl()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        self._apis = Apis()
        api: Api = self.do(self._apis.start(self.control, auth=auth))
        self.to = str(api.address)

    def do(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def until(self, is_so: Callable[[ScriptedControl], bool]) -> None:
        """Wait until somebody has asked what makes it so."""

        async def wait() -> None:
            async with asyncio.timeout(LIMIT_S), self.control.news:
                await self.control.news.wait_for(lambda: is_so(self.control))

        self.do(wait())

    def close(self) -> None:
        self.do(self._apis.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
