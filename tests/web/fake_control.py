"""A cluster of the tests' own making behind a real API on a real socket."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterator

import msgspec

from talka.client.dag_kind import DagKind
from talka.client.dags import DagControl
from talka.client.http import ApiAddress, HttpAnswer, call
from talka.client.kinds import JobDirectory
from talka.client.load_kind import LoadKind
from talka.client.requests import BundleMissing, Conflict, NoSuchJob, NoSuchWorker, NotEnded
from talka.control.clients.connections import ConnectionLimits
from talka.web.answers import NO_STOPWATCH, Limiter, Stopwatch, no_limit
from talka.web.api_limits import API_LIMITS, HTTP_LIMITS, ApiLimits, HttpLimits
from talka.web.app import make_app
from talka.web.audit import ApiAudit
from talka.web.auth import Tokens
from talka.web.server import WHOLE, listen, serve
from talka.wire.machines import MachineView
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.security.access import Asker
from talka.wire.shards import Settings
from talka.wire.views import CertificateView, ClusterView, JobFacts, JobsPage, JobUpdate, ManagerView, WorkerView
from talka.work.lifecycle import JobState
from talka.work.load import Plan, Segment

LIMIT_S = 60
KEY = b"k" * 32


def make_order(name: str = "shop.py", digest: str = "a" * 64, env: dict[str, str] | None = None) -> JobOrder:
    return JobOrder(
        name=name,
        bundle=BundleFacts(digest, 3, b"signed", "shop.py", env or {}),
        workflows=(
            WorkflowOrder("Shop", Plan.of_vus([Segment(10**9, 2, 2)]), "auto", True, (), 10**10, (), (), "2 VUs", ()),
        ),
        settings=Settings(grace_ns=10**9),
    )


class FakeJob:
    def __init__(self, facts: JobFacts, order: JobOrder) -> None:
        self.facts = facts
        self.order = order
        self.updates: list[JobUpdate] = []
        self.result: bytes | None = None


class FakeControl:
    """What was asked is in `asked`; an error in `errors` is raised by the call of that name."""

    def __init__(self) -> None:
        self.bundles: dict[str, bytes] = {}
        self.jobs_by_id: dict[str, FakeJob] = {}
        self.keys: dict[str, str] = {}
        self.errors: dict[str, Exception] = {}
        self.asked: list[tuple[str, ...]] = []
        self.askers: list[Asker] = []
        self.managers: list[ManagerView] = []
        self.certificates: list[CertificateView] = []
        self.undrained = WorkerView("w1", "healthy")
        self.shown_worker = WorkerView(
            "w1", "healthy", cores=4, handlers=["resize"], machine=MachineView("host1", 4711, tags={"rack": "7"})
        )
        self.not_ready = ""
        self.hold: asyncio.Event | None = None
        """Calls wait for it, when there is one."""
        self.watchers = 0
        self.news = asyncio.Condition()

    def add_job(self, id: str = "job1", state: JobState = JobState.RUNNING) -> FakeJob:
        job = FakeJob(JobFacts(id, "shop.py", state), make_order(env={"TOKEN": "secret"}))
        self.jobs_by_id[id] = job
        return job

    async def tell(self, job: FakeJob, update: JobUpdate) -> None:
        async with self.news:
            job.updates.append(update)
            self.news.notify_all()

    async def _note(self, *asked: str) -> None:
        self.asked.append(asked)
        async with self.news:
            self.news.notify_all()
        if self.hold is not None:
            await self.hold.wait()
        if asked[0] in self.errors:
            raise self.errors[asked[0]]

    def _job(self, id: str) -> FakeJob:
        if id not in self.jobs_by_id:
            raise NoSuchJob.named(id)
        return self.jobs_by_id[id]

    def on_behalf(self, asker: Asker) -> "FakeControl":
        self.askers.append(asker)
        return self

    async def put_bundle(self, digest: str, content: bytes) -> None:
        await self._note("put_bundle", digest)
        self.bundles[digest] = content

    async def has_bundle(self, digest: str) -> bool:
        await self._note("has_bundle", digest)
        return digest in self.bundles

    async def submit(self, order: JobOrder, key: str) -> JobFacts:
        await self._note("submit", key)
        if order.bundle.digest not in self.bundles:
            raise BundleMissing(f"there is no bundle {order.bundle.digest}")
        if key in self.keys:
            known = self._job(self.keys[key])
            if known.order != order:
                raise Conflict(f"the key {key} was used for another order")
            return known.facts
        id = f"job{len(self.jobs_by_id) + 1}"
        facts = JobFacts(id, order.name, JobState.QUEUED, submitted_by=order.submitted_by)
        self.jobs_by_id[id] = FakeJob(facts, order)
        if key:
            self.keys[key] = id
        return facts

    async def jobs(self, state: str, cursor: str, limit: int) -> JobsPage:
        await self._note("jobs", state, cursor, str(limit))
        facts = [job.facts for job in self.jobs_by_id.values() if state in ("", job.facts.state)]
        start = int(cursor or 0)
        items = facts[start : start + limit]
        cursors = [str(start + number) for number in range(len(items))]
        return JobsPage(items, str(start + limit) if start + limit < len(facts) else "", cursors)

    async def job(self, id: str) -> JobFacts:
        await self._note("job", id)
        return self._job(id).facts

    async def order(self, id: str) -> JobOrder:
        await self._note("order", id)
        return self._job(id).order

    async def cancel(self, id: str, reason: str) -> JobFacts:
        await self._note("cancel", id, reason)
        job = self._job(id)
        job.facts = msgspec.structs.replace(job.facts, cancel=reason)
        return job.facts

    async def resume(self, id: str) -> JobFacts:
        await self._note("resume", id)
        job = self._job(id)
        if job.facts.state is not JobState.PAUSED:
            raise Conflict(f"job {id} is {job.facts.state}: only a job that is paused can be resumed")
        job.facts = msgspec.structs.replace(job.facts, state=JobState.RUNNING, reason="")
        return job.facts

    async def result(self, id: str) -> bytes:
        await self._note("result", id)
        job = self._job(id)
        if job.result is None:
            raise NotEnded.named(id, job.facts.state)
        return job.result

    async def watch(self, id: str, steps: bool) -> AsyncIterator[JobUpdate]:
        await self._note("watch", id, str(steps))
        job = self._job(id)
        self.watchers += 1
        try:
            for position in range(10_000):
                async with self.news:
                    while len(job.updates) <= position:
                        if "watching" in self.errors:
                            raise self.errors["watching"]
                        await self.news.wait()
                    update = job.updates[position]
                yield update
                if update.final:
                    return
        finally:
            self.watchers -= 1
            async with self.news:
                self.news.notify_all()

    async def watchers_become(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S), self.news:
            while self.watchers != count:
                await self.news.wait()

    async def is_asked(self) -> None:
        async with asyncio.timeout(LIMIT_S), self.news:
            while not self.asked:
                await self.news.wait()

    async def workers(self) -> list[WorkerView]:
        await self._note("workers")
        return [WorkerView("w1", "healthy", cores=4, free=2)]

    async def worker(self, name: str) -> WorkerView:
        await self._note("worker", name)
        if name != "w1":
            raise NoSuchWorker.named(name)
        return self.shown_worker

    async def drain(self, name: str) -> WorkerView:
        await self._note("drain", name)
        if name != "w1":
            raise NoSuchWorker.named(name)
        return WorkerView("w1", "draining")

    async def undrain(self, name: str) -> WorkerView:
        await self._note("undrain", name)
        if name == "w2":
            raise Conflict("worker w2 was told to end: start it again, and it takes work")
        if name != "w1":
            raise NoSuchWorker.named(name)
        return self.undrained

    async def cluster(self) -> ClusterView:
        await self._note("cluster")
        return ClusterView("shop", "m1", 3, self.managers, 1, 4, 2, certificates=self.certificates)

    def is_ready(self) -> str:
        return self.not_ready

    def metrics(self) -> str:
        return "# TYPE talka_jobs gauge\ntalka_jobs 1\n"


class Api:
    """A running API. `ask` is a request to it."""

    def __init__(
        self, control: FakeControl, listener: socket.socket, tls: ssl.SSLContext | None, dags: DagControl | None = None
    ) -> None:
        self.control = control
        self.dags = dags
        host, port = listener.getsockname()[:2]
        self.address = ApiAddress("https" if tls else "http", host, port)
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, token: str = ""
    ) -> HttpAnswer:
        headers = dict(headers or {})
        if token:
            headers["authorization"] = f"Bearer {token}"
        return await call(
            self.address, method, path, headers=headers, body=body, timeout_s=LIMIT_S, limit_bytes=1 << 26
        )

    async def send(self, raw: bytes) -> bytes:
        """What comes back for these bytes, up to the end of the connection."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            writer.write(raw)
            async with asyncio.timeout(LIMIT_S):
                return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def kill(self) -> None:
        """Drop everything at once, as a death does."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Apis:
    """Starts APIs and stops them when the test is over."""

    def __init__(self) -> None:
        self.started: list[Api] = []

    async def start(
        self,
        control: FakeControl | None = None,
        *,
        dags: DagControl | None = None,
        kinds: JobDirectory | None = None,
        audit: ApiAudit | None = None,
        auth: Tokens | None = None,
        allowed_hosts: Collection[str] = (),
        limiter: Limiter = no_limit,
        stopwatch: Stopwatch = NO_STOPWATCH,
        tls: ssl.SSLContext | None = None,
        grace_s: int = 1,
        listener: socket.socket | None = None,
        limits: ConnectionLimits = WHOLE,
        http: HttpLimits = HTTP_LIMITS,
        api_limits: ApiLimits = API_LIMITS,
    ) -> Api:
        listener = listener or listen("127.0.0.1", 0, has_tokens=auth is not None)
        api = Api(control or FakeControl(), listener, tls, dags)
        is_up = asyncio.Event()
        if kinds is None:
            kinds = JobDirectory(*([] if dags is None else [DagKind(dags)]), LoadKind(api.control))
        app = make_app(
            api.control,
            kinds,
            auth=auth,
            allowed_hosts=allowed_hosts,
            limiter=limiter,
            stopwatch=stopwatch,
            audit=audit,
            limits=api_limits,
        )
        api.task = asyncio.create_task(
            serve(
                app,
                listener,
                stop=api.stop,
                tls=tls,
                on_started=is_up.set,
                grace_s=grace_s,
                limits=limits,
                http=http,
            )
        )
        self.started.append(api)
        await is_up.wait()
        return api

    async def close(self) -> None:
        for api in self.started:
            await api.kill()


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
