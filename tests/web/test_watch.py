"""Watching a job over a WebSocket."""

import asyncio
import contextlib

import msgspec
import pytest
import websockets
from websockets.asyncio.client import connect

from talka.client.requests import Problem
from talka.errors import Invalid, Unavailable
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.web.api_limits import ApiLimits
from talka.wire.views import JobUpdate, WorkflowUpdate
from talka.work.lifecycle import TaskState
from tests.web.fake_control import LIMIT_S, Api, FakeJob


def uri(api: Api, rest: str = "job1/watch") -> str:
    return f"ws://{api.address}/v1/jobs/{rest}"


def update(job: FakeJob, sequence: int, final: bool = False) -> JobUpdate:
    tally = Tally(iterations=sequence)
    workflow = WorkflowUpdate("Shop", TaskState.RUNNING, elapsed_ns=5, vus=2, cores=1, tally=tally)
    return JobUpdate(job.facts, sequence, workflows=[workflow], windows=[Window(sequence, started=3)], final=final)


async def refusal(url: str, **options) -> tuple[int, Problem]:
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with connect(url, proxy=None, **options):
            pass
    response = caught.value.response
    return response.status_code, msgspec.json.decode(response.body, type=Problem)


@pytest.mark.parametrize("kind", ["json", "msgpack"])
async def test_updates_arrive_one_frame_each_and_the_watch_ends_after_the_final_one(api: Api, kind: str) -> None:
    job = api.control.add_job()
    told = [update(job, 1), update(job, 2), update(job, 3, final=True)]
    decode = (msgspec.json if kind == "json" else msgspec.msgpack).decode

    await api.control.tell(job, told[0])
    async with asyncio.timeout(LIMIT_S), connect(uri(api) + f"?steps=1&format={kind}", proxy=None) as websocket:
        received = []
        for one in told:
            if one is not told[0]:
                await api.control.tell(job, one)
            frame = await websocket.recv()
            assert isinstance(frame, str) == (kind == "json")
            received.append(decode(frame, type=JobUpdate))
        with pytest.raises(websockets.ConnectionClosedOK):
            await websocket.recv()

    assert received == told
    assert api.control.asked == [("watch", "job1", "True")]
    await api.control.watchers_become(0)


async def test_a_watcher_that_goes_ends_its_watch_though_the_job_is_quiet(api: Api) -> None:
    job = api.control.add_job()
    await api.control.tell(job, update(job, 1))

    async with connect(uri(api), proxy=None) as websocket:
        await websocket.recv()
        await websocket.send("whatever a watcher says means nothing")
        assert api.control.watchers == 1

    await api.control.watchers_become(0)


async def test_a_watcher_that_dies_ends_its_watch(api: Api) -> None:
    job = api.control.add_job()
    await api.control.tell(job, update(job, 1))
    websocket = await connect(uri(api), proxy=None)
    await websocket.recv()

    websocket.transport.abort()

    await api.control.watchers_become(0)
    await websocket.wait_closed()


@pytest.mark.parametrize(
    ("rest", "status", "kind"),
    [
        ("nojob/watch", 404, "no-such-job"),
        ("%00/watch", 404, "no-such-job"),
        ("job1/watch?steps=2", 422, "invalid"),
        ("job1/watch?format=xml", 422, "invalid"),
    ],
    ids=range(4),
)
async def test_a_watch_that_cannot_be_is_refused_before_it_opens(api: Api, rest: str, status: int, kind: str) -> None:
    api.control.add_job()

    assert (await refusal(uri(api, rest)))[1].type == f"urn:talka:problem:{kind}"
    assert (await refusal(uri(api, rest)))[0] == status


async def test_a_path_that_is_no_watch_is_refused(api: Api) -> None:
    with pytest.raises(websockets.InvalidStatus):
        await connect(uri(api, "job1"), proxy=None)


async def test_a_page_elsewhere_may_not_watch(api: Api) -> None:
    api.control.add_job()

    status, problem = await refusal(uri(api), origin="http://evil.example")

    assert (status, problem.type) == (403, "urn:talka:problem:forbidden")
    assert api.control.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unavailable("the leader is gone"), 1013), (Invalid("forgotten"), 1012), (RuntimeError("a bug"), 1011)],
    ids=range(3),
)
async def test_a_watch_that_breaks_off_says_whether_to_try_again(api: Api, error: Exception, code: int) -> None:
    job = api.control.add_job()
    await api.control.tell(job, update(job, 1))

    async with connect(uri(api), proxy=None) as websocket:
        await websocket.recv()
        api.control.errors["watching"] = error
        async with api.control.news:
            api.control.news.notify_all()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await websocket.recv()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code
    assert "bug" not in closed.value.rcvd.reason


async def test_an_error_before_the_first_update_is_a_problem(api: Api) -> None:
    api.control.add_job()
    api.control.errors["watch"] = Unavailable("no leader")
    assert await refusal(uri(api)) == (503, Problem(
        "urn:talka:problem:unavailable", "Not available now", 503, "no leader", "/v1/jobs/job1/watch"
    ))  # fmt: skip

    api.control.errors["watch"] = RuntimeError("a bug")
    assert (await refusal(uri(api)))[0] == 500


@pytest.mark.parametrize("api", [ApiLimits(first_s=0.01)], indirect=True)
async def test_a_job_of_which_nothing_is_heard_is_unavailable(api: Api) -> None:
    api.control.add_job()

    status, problem = await refusal(uri(api))

    assert (status, problem.detail) == (503, "nothing was heard of the job within 0.01 s")
    await api.control.watchers_become(0)


@pytest.mark.parametrize("api", [ApiLimits(watchers=1)], indirect=True)
async def test_there_is_a_limit_to_watchers(api: Api) -> None:
    job = api.control.add_job()
    await api.control.tell(job, update(job, 1))

    async with connect(uri(api), proxy=None):
        assert (await refusal(uri(api)))[0] == 429
    await api.control.watchers_become(0)
    async with connect(uri(api), proxy=None) as websocket:
        await websocket.recv()


@pytest.mark.parametrize("api", [ApiLimits(send_s=0.05, close_s=0.01)], indirect=True)
async def test_a_watcher_that_does_not_read_is_let_go(api: Api) -> None:
    job = api.control.add_job()
    large = JobUpdate(job.facts, engine="x" * 1_000_000)
    await api.control.tell(job, large)
    head = f"GET /v1/jobs/job1/watch HTTP/1.1\r\nHost: {api.address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
    _, writer = await asyncio.open_connection(api.address.host, api.address.port, limit=1024)

    writer.write(head.encode())
    await api.control.watchers_become(1)
    for _ in range(20):
        await api.control.tell(job, large)

    await api.control.watchers_become(0)
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_watchers_are_sent_away_when_the_server_stops(api: Api) -> None:
    job = api.control.add_job()
    await api.control.tell(job, update(job, 1))

    async with connect(uri(api), proxy=None) as websocket:
        await websocket.recv()
        api.stop.set()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await websocket.recv()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    await api.control.watchers_become(0)
