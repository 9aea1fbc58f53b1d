"""What clients can ask of a manager, asked of the cluster: the port that the HTTP API calls."""

import asyncio
import copy
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, assert_never

import msgspec

from talka.client.requests import (
    BundleMissing,
    ClusterUnreachable,
    Conflict,
    Forbidden,
    NoResult,
    NoSuchJob,
    NoSuchWorker,
    NotEnded,
    TooBusy,
)
from talka.clock import boottime_ns
from talka.control.blobs.replicated_blobs import BlobFailed, BlobKept, BlobReady, BlobsFull
from talka.control.clients.rate_limits import RateLimits
from talka.control.clients.request_classes import CLASSES, RequestClass
from talka.control.clients.request_times import RequestTimes
from talka.control.jobs.effects import Updated, WatchFailed
from talka.control.member.leader_calls import CallEnded
from talka.control.member.metrics import metrics_text
from talka.errors import Invalid, TalkaError, Unavailable
from talka.nodes.runtime import Counts
from talka.wire.manager_calls import (
    CancelJob,
    ClusterTold,
    DescribeCluster,
    DrainWorker,
    GetJob,
    GetLease,
    GetOrder,
    GetResult,
    JobsTold,
    JobTold,
    LeaderCall,
    LeaseTold,
    ListJobs,
    ListWorkers,
    OrderTold,
    ResultTold,
    ResumeJob,
    SetLease,
    SubmitJob,
    UndrainWorker,
    WorkersTold,
    WorkerTold,
)
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.views import (
    ClusterView,
    JobFacts,
    JobsPage,
    JobUpdate,
    LeaseView,
    ManagerView,
    WorkerView,
)

if TYPE_CHECKING:
    from talka.nodes.manager import ManagerNode

KEEP_S: Final = 30.0
PLACE: Final = ("zone", "datacenter", "region")
UNWELL_RETRY_S: Final = 5.0
NEW_WORK: Final = frozenset({"submit", "submit_dag", "bulk", "submit_frames"})
"""Operations that bring it."""
ASK_S: Final = 25.0
TIMED: Final = frozenset(
    [
        name
        for kind in (RequestClass.LISTS, RequestClass.READS, RequestClass.CHANGES)
        for name in CLASSES[kind].operations
    ]
)
"""Requests that show how long clients wait: others wait for what they want, as an end or a large body."""
BEYOND: Final = 429
"""A request with such a status, or a higher one, was not answered as it would be by a node that does well."""
UPDATES_LIMIT: Final = 256
"""Updates that wait for one watcher; who is slower is cut off and may come again."""

Told = TypeVar("Told")
Answered: TypeAlias = CallEnded | BlobKept | BlobFailed | BlobReady | Updated | WatchFailed
"""What somebody who asked waits for."""


class ManagerControl:
    """Implements `client.requests.Control` for one manager."""

    def __init__(self, node: "ManagerNode") -> None:
        self.counts: dict[str, int] = {"calls": 0}
        self.refused: dict[str, int] = {}
        self._asker: Asker | None = None
        """Who asks; None: this process itself."""
        self._node = node
        self._open: dict[int, asyncio.Future[CallEnded]] = {}
        self._kept: dict[str, list[asyncio.Future[None]]] = {}
        self._ready: dict[str, list[asyncio.Future[bytes | None]]] = {}
        self._watchers: dict[int, asyncio.Queue[JobUpdate | TalkaError]] = {}
        self.limits = RateLimits()
        self.times = RequestTimes()

    # -- answers that arrive

    def on_answer(self, news: Answered) -> None:
        match news:
            case CallEnded(number=number):
                waiting = self._open.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(news)
            case BlobKept(digest=digest):
                for kept in self._kept.pop(digest, []):
                    if not kept.done():
                        kept.set_result(None)
            case BlobFailed(digest=digest, text=text):
                for kept in self._kept.pop(digest, []):
                    if not kept.done():
                        kept.set_exception(Unavailable(text))
            case BlobReady(digest=digest, content=content):
                for ready in self._ready.pop(digest, []):
                    if not ready.done():
                        ready.set_result(content)
            case Updated(number=number, update=update):
                self._push(number, update)
            case WatchFailed(number=number, text=text):
                self._push(number, NoSuchJob(text))
            case _:
                assert_never(news)

    def _push(self, number: int, item: JobUpdate | TalkaError) -> None:
        queue = self._watchers.get(number)
        if queue is None:
            return
        if queue.full():
            queue.get_nowait()
            item = TooBusy("this watcher reads too slowly: watch again")
        queue.put_nowait(item)

    # -- asking

    def on_behalf(self, asker: Asker) -> "ManagerControl":
        other = copy.copy(self)  # everything else is of all of them
        other._asker = asker
        return other

    async def _call(self, call: LeaderCall, answer: type[Told], asker: Asker | None = None) -> Told:
        self.counts["calls"] += 1
        number, effects = self._node.manager.call(boottime_ns(), call, asker or self._asker)
        waiting: asyncio.Future[CallEnded] = asyncio.get_running_loop().create_future()
        self._open[number] = waiting
        try:
            self._node.perform(effects)
            async with asyncio.timeout(ASK_S):
                ended = await waiting
        except TimeoutError:
            raise ClusterUnreachable("the cluster's leader did not answer: is a majority of managers there?") from None
        finally:
            self._open.pop(number, None)
        if isinstance(ended.answer, answer):
            return ended.answer
        text = ended.text
        self.refused[ended.problem] = self.refused.get(ended.problem, 0) + 1
        match ended.problem:
            case "missing":
                raise NoSuchWorker(text) if isinstance(call, DrainWorker | UndrainWorker) else NoSuchJob(text)
            case "conflict":
                raise NotEnded(text) if isinstance(call, GetResult) else Conflict(text)
            case "busy":
                raise TooBusy(text, ended.retry_after_ms / 1000)
            case "invalid":
                raise Invalid(text)
            case "forbidden":
                raise Forbidden(text)
            case _:
                raise Unavailable(text or "the cluster's leader answered something else: ask again")

    async def lease(self, lease_ns: int) -> LeaseView:
        """The lease of workers; above 0: to be this from when it can be."""
        call = SetLease(lease_ns, "talka cluster lease") if lease_ns else GetLease()
        return (await self._call(call, LeaseTold)).lease

    # -- the port

    async def put_bundle(self, digest: str, content: bytes) -> None:
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept.setdefault(digest, []).append(kept)
        try:
            self._node.perform(self._node.manager.keep(boottime_ns(), digest, content))
            async with asyncio.timeout(KEEP_S):
                await kept
        except TimeoutError:
            raise Unavailable("no majority of managers stored the bundle in time: submit again") from None
        except BlobsFull as error:
            raise TooBusy(str(error), 2.0) from None

    async def has_bundle(self, digest: str) -> bool:
        return self._node.manager.blobs.has(digest)

    async def submit(self, order: JobOrder, key: str) -> JobFacts:
        if not order.bundle.url and not self._node.manager.blobs.has(order.bundle.digest):
            raise BundleMissing(f"this manager has no bundle {order.bundle.digest[:12]}: put it first")
        return (await self._call(SubmitJob(self._node.signed(order), key), JobTold)).job

    async def jobs(self, state: str, cursor: str, limit: int) -> JobsPage:
        return (await self._call(ListJobs(state, cursor, limit), JobsTold)).page

    async def job(self, id: str) -> JobFacts:
        return (await self._call(GetJob(id), JobTold)).job

    async def order(self, id: str) -> JobOrder:
        return (await self._call(GetOrder(id), OrderTold)).order

    async def cancel(self, id: str, reason: str) -> JobFacts:
        return (await self._call(CancelJob(id, reason), JobTold)).job

    async def resume(self, id: str) -> JobFacts:
        return (await self._call(ResumeJob(id), JobTold)).job

    async def result(self, id: str) -> bytes:
        digest = (await self._call(GetResult(id), ResultTold)).digest
        if not digest:
            raise NoResult(f"job {id} ended before anything ran: there is no result")
        ready: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._ready.setdefault(digest, []).append(ready)
        self._node.perform(self._node.manager.fetch(boottime_ns(), digest))
        try:
            async with asyncio.timeout(KEEP_S):
                content = await ready
        except TimeoutError:
            raise Unavailable(f"no manager gave the result of job {id} in time: ask again") from None
        if content is None:
            raise NoResult(f"the result of job {id} is no longer kept by any manager")
        return content

    async def watch(self, id: str, steps: bool) -> AsyncGenerator[JobUpdate, None]:
        manager = self._node.manager
        if manager.watches.is_full:
            raise TooBusy("too many watch through this manager: try another", 2.0)
        number, effects = manager.watch(boottime_ns(), id, steps=steps, asker=self._asker)
        queue: asyncio.Queue[JobUpdate | TalkaError] = asyncio.Queue(UPDATES_LIMIT)
        self._watchers[number] = queue
        try:
            self._node.perform(effects)
            while True:
                update = await queue.get()
                if isinstance(update, TalkaError):
                    raise update
                yield update
                if update.final:
                    return
        finally:
            self._watchers.pop(number, None)
            manager.unwatch(number)

    async def workers(self) -> list[WorkerView]:
        return list((await self._call(ListWorkers(), WorkersTold)).workers)

    async def worker(self, name: str) -> WorkerView:
        # It is a list of one: so a leader of an earlier version lets it be asked for too, and answers with all.
        asker = self._asker and msgspec.structs.replace(self._asker, operation="workers")
        told = await self._call(ListWorkers(name), WorkersTold, asker)
        for view in told.workers:
            if view.name == name:
                return view
        raise NoSuchWorker.named(name)

    async def drain(self, name: str) -> WorkerView:
        return (await self._call(DrainWorker(name), WorkerTold)).worker

    async def undrain(self, name: str) -> WorkerView:
        return (await self._call(UndrainWorker(name), WorkerTold)).worker

    async def cluster(self) -> ClusterView:
        node = self._node
        view = (await self._call(DescribeCluster(), ClusterTold)).cluster
        apis, judged = node.apis(), {one.name: one for one in view.managers}
        states, places = node.manager_states(), node.places()
        managers = [
            msgspec.structs.replace(
                judged.get(name, ManagerView(name, "")),
                state=state,
                api=apis.get(name, ""),
                leads=name == view.leader,
                **({place: getattr(places[name], place) for place in PLACE} if name in places else {}),
            )
            for name, state in states.items()
        ]
        certificates = node.certificates()
        return msgspec.structs.replace(view, name=node.options.cluster, managers=managers, certificates=certificates)

    def is_ready(self) -> str:
        return self._node.why_not_ready()

    def metrics(self) -> str:
        return metrics_text(self._node.member, boottime_ns(), self._node.counts())

    # -- besides

    def limit_counts(self) -> Counts:
        """Metrics of whose requests are counted, and how many had to wait."""
        return {"api_clients": len(self.limits), "api_rate_limited_total": dict(self.limits.refused)}

    def limiter(self, operation: str, client: str) -> float:
        """Seconds to wait before this may be asked; 0: go on. Whoever has no name is not counted: it is the one user of
        this machine, of whom little is shed. `TooBusy` says of itself what is the matter."""
        if operation in NEW_WORK and (why_not := self._node.manager.why_not()):
            self.refused["unwell"] = self.refused.get("unwell", 0) + 1
            raise TooBusy(why_not, UNWELL_RETRY_S)
        shedding = self._node.manager.shedding
        if shedding.sheds(operation, is_counted=bool(client)):
            self.refused["overload"] = self.refused.get("overload", 0) + 1
            return self._node.retry_after_s
        self.limits.level = shedding.level
        wait_ns = self.limits.check(boottime_ns(), operation, client) if client else 0
        if wait_ns:
            self.refused["rate"] = self.refused.get("rate", 0) + 1
        return wait_ns / 1e9

    def begin(self, operation: str) -> int:
        """A request has come; 0: how long it takes says nothing of this node."""
        return self.times.begin(boottime_ns()) if operation in TIMED else 0

    def end(self, number: int, status: int) -> None:
        if number:
            self.times.end(boottime_ns(), number, is_answered=status < BEYOND)
