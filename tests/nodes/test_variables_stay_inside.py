"""Values of variables reach the processes that run the test, and nobody who asks: everything that answers is asked."""

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest import MonkeyPatch

from talka.client.ordering import OrderOptions, submission_of_file
from talka.clock import boottime_ns
from talka.cluster.effects import Send
from talka.control.blobs.replicated_blobs import ServeBlob, piece_of
from talka.control.load.planning import Overrides
from talka.control.member.admin_queries import answer
from talka.control.member.composite import ClusterMember
from talka.errors import Invalid
from talka.net.endorsing import Endorser
from talka.nodes.manager import ManagerNode
from talka.web.app import make_app
from talka.web.audit import ApiAudit
from talka.web.operations import OPERATIONS
from talka.web.server import serve
from talka.wire.asking import AskAudit, AskKeys, AskLeader, AskMembers, AskMetrics
from talka.wire.jobs import Beat, JobMessage, WantBlob, WatchJob, WorkerFacts, encode
from talka.wire.manager_calls import (
    CALLS,
    CancelJob,
    DescribeCluster,
    DrainWorker,
    GetJob,
    GetLease,
    GetOrder,
    GetResult,
    LeaderCall,
    ListJobs,
    ListWorkers,
    ManagerCall,
    ResumeJob,
    SetLease,
    SubmitJob,
    UndrainWorker,
)
from talka.wire.security.envelopes import SEALING_PURPOSE, Opener, SealingKey, vouched_for
from talka.wire.security.roles import Role
from talka.work.lifecycle import JobState
from tests.nodes.small_cluster import SmallCluster, small_cluster
from tests.wire.samples import JOBS

MARKER = "swordfish-5a17c0de"
TEST = """
import os

from talka import CustomResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
        assert os.environ["SHOP_TOKEN"] == "-".join(["swordfish", "5a17c0de"])
        return CustomResponse(1)
"""
QUESTIONS = (AskMembers(), AskLeader(), AskAudit(), AskKeys(), AskMetrics())
both = pytest.mark.parametrize("certified", [False, True], ids=["secret alone", "certificates"])


class Api:
    """What a manager's API answers on its socket; what it wrote down of that."""

    def __init__(self, port: int, audit: Path) -> None:
        self.audit = audit
        self._url = f"http://127.0.0.1:{port}"

    async def ask(self, method: str, path: str) -> bytes:
        def blocking() -> bytes:
            request = urllib.request.Request(self._url + path, method=method)
            try:
                with urllib.request.urlopen(request, timeout=20) as found:
                    return bytes(found.read())
            except urllib.error.HTTPError as error:
                return error.read()

        return await asyncio.to_thread(blocking)


@asynccontextmanager
async def api_of(node: ManagerNode) -> AsyncIterator[Api]:
    listener, stop, started = socket.create_server(("127.0.0.1", 0)), asyncio.Event(), asyncio.Event()
    audit = ApiAudit(node.folder / "audit.log")
    app = make_app(node.control, node.kinds, audit=audit)
    serving = asyncio.create_task(serve(app, listener, stop=stop, on_started=started.set))
    await started.wait()
    try:
        yield Api(listener.getsockname()[1], node.folder / "audit.log")
    finally:
        stop.set()
        await serving
        audit.close()
        listener.close()


def calls(job: str, order: Any, key: str) -> list[LeaderCall]:
    """Every question that managers pass on."""
    asked: list[LeaderCall] = [SubmitJob(order, key), ListJobs(), GetJob(job), GetOrder(job), GetResult(job)]
    asked += [CancelJob(job), ResumeJob(job), ListWorkers(), DrainWorker("w"), UndrainWorker("w"), DescribeCluster()]
    asked += [GetLease(), SetLease(5_000_000_000)]
    assert {type(one) for one in asked} == set(CALLS)
    return asked


def answers_of_the_port(node: ManagerNode, job: str, order: Any, sender: str) -> dict[str, bytes]:
    """What the node port says to every message there is, about this job where it is about one."""
    asked: dict[str, JobMessage] = {}
    for name, message in JOBS.items():
        if isinstance(getattr(message, "job", None), str):
            message = msgspec.structs.replace(message, job=job)  # type: ignore[call-arg]
        asked[name] = message
    for number, call in enumerate(calls(job, order, "k")):
        asked[type(call).__name__] = ManagerCall(number, call)
    for path in sorted((node.folder / "blobs").rglob("*")):
        if path.is_file():
            asked[f"blob {path.name}"] = WantBlob(path.name, 0)
    asked["watch"] = WatchJob(job, 7, -1, True)
    found: dict[str, bytes] = {}
    for name, message in asked.items():
        for at, effect in enumerate(node.manager.on_message(boottime_ns(), sender, message, 5, "#1")):
            if isinstance(effect, Send):
                found[f"{sender}: {name} {at}"] = encode(effect.message)
            elif isinstance(effect, ServeBlob):
                piece = piece_of(effect.digest, node._blobs.get(effect.digest), effect.offset)
                found[f"{sender}: {name} {at}"] = encode(piece)
    for effect in node.manager.tick(boottime_ns()):
        if isinstance(effect, Send):
            found[f"{sender}: then {type(effect.message).__name__}"] = encode(effect.message)
    for question in QUESTIONS:
        try:
            content, _ = answer(node.member, boottime_ns(), question, counts=node.counts())
        except Invalid as error:
            content = str(error).encode()
        found[f"ask {question}"] = content
    return found


async def answers_of_the_api(api: Api, job: str, digest: str) -> dict[str, bytes]:
    found = {}
    for operation in OPERATIONS:
        if operation.method in ("GET", "HEAD"):
            path = operation.path.format(id=job, digest=digest, name="w", task="x")
            found[f"{operation.method} {path}"] = await api.ask(operation.method, path)
    found["audit.log"] = api.audit.read_bytes() if api.audit.exists() else b""
    return found


def with_marker(found: dict[str, bytes]) -> list[str]:
    return [what for what, content in found.items() if MARKER.encode() in content]


@pytest.fixture
def order_of_test(tmp_path: Path) -> Any:
    path = tmp_path / "shop.py"
    path.write_text(TEST)
    options = OrderOptions(overrides=Overrides(vus=1, iterations=1), cores=1, env={"SHOP_TOKEN": MARKER})
    return submission_of_file(str(path), (), options)


@both
async def test_values_of_variables_are_in_nothing_that_a_node_says_or_answers(
    tmp_path: Path, monkeypatch: MonkeyPatch, order_of_test: Any, certified: bool
) -> None:
    order, bundle, _ = order_of_test
    frames: dict[str, bytes] = {}
    wrap = ClusterMember._wrap

    def tapped(self: ClusterMember, now: int, channel: int, body: bytes, *more: Any, **also: Any) -> bytes:
        frames[f"{self.name} on channel {channel}, frame {len(frames)}"] = body
        return wrap(self, now, channel, body, *more, **also)

    monkeypatch.setattr(ClusterMember, "_wrap", tapped)
    async with small_cluster(tmp_path, "m", certified=certified) as cluster:
        manager = cluster.managers["m"]
        async with api_of(manager) as api:
            await manager.control.put_bundle(order.bundle.digest, bundle)
            waiting = await manager.control.submit(order, "k")
            told = await answers_of_the_api(api, waiting.id, order.bundle.digest)
            await cluster.start_worker()
            updates = [msgspec.json.encode(each) async for each in manager.control.watch(waiting.id, True)]
            ended = await manager.control.job(waiting.id)
            told |= await answers_of_the_api(api, waiting.id, order.bundle.digest)
        # Whoever asks, by the name of a worker, of nobody, of a manager.
        for sender in ("w", "stranger", "m"):
            told |= answers_of_the_port(manager, waiting.id, order, sender)
        worker_files = {str(path): path.read_bytes() for path in (tmp_path / "w").rglob("*") if path.is_file()}

    assert ended.state is JobState.COMPLETED, ended.reason
    assert any("SHOP_TOKEN" in content.decode(errors="replace") for content in told.values()), "names are shown"
    told |= {f"update {number}": content for number, content in enumerate(updates)}
    told |= {f"event {number}": msgspec.json.encode(event) for number, event in enumerate(cluster.events)}
    asked = [type(call).__name__ for call in calls("", order, "")]
    unanswered = [what for what in asked if not any(f"w: {what} " in name for name in told)]
    assert unanswered == [], "what is not answered proves nothing"
    assert frames and worker_files and any(name.startswith("w: blob ") for name in told)
    assert with_marker(told) == []
    assert with_marker(frames) == []
    assert with_marker(worker_files) == []


async def sealed_to(cluster: SmallCluster, order_of_test: Any, facts: WorkerFacts, boot: int) -> tuple[str, ...]:
    """Workers that the job of this manager turned away, after a stranger has beaten in the name of its worker."""
    order, bundle, _ = order_of_test
    manager = cluster.managers["m"]
    await manager.control.put_bundle(order.bundle.digest, bundle)
    manager.perform(manager.manager.on_message(boottime_ns(), "w", Beat(1, facts), boot, "#1"))
    job = await manager.control.submit(order, "")
    await cluster.until(lambda: cluster.told("task-lost"))
    await manager.control.cancel(job.id, "")
    return tuple(event["cause"] for event in cluster.told("task-lost"))


@pytest.mark.parametrize("how", ["no voucher", "of another worker", "of another life", "of the manager's"])
async def test_with_certificates_nothing_is_sealed_to_a_key_that_is_not_proven_to_be_the_workers(
    tmp_path: Path, order_of_test: Any, how: str
) -> None:
    async with small_cluster(tmp_path, "m", certified=True) as cluster:
        cluster._certified("w", Role.WORKER)
        cluster._certified("other", Role.WORKER)
        assert cluster.certs is not None
        opener, voucher = Opener(b"s" * 32), b""
        by = {"of another worker": "other", "of another life": "w", "of the manager's": "m"}.get(how)
        if by is not None:
            endorser = Endorser(cluster.certs, name=by, cluster="default", environment="default")
            voucher = endorser.vouch(SEALING_PURPOSE, vouched_for(opener.public, 6 if by == "w" else 5))
        facts = WorkerFacts(1, sealing=SealingKey(opener.public, voucher).encode())

        causes = await sealed_to(cluster, order_of_test, facts, 5)

    assert all("the key that it tells is not proven to be its own" in cause for cause in causes)
