"""The client against a real API: every call, and managers that die."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from talka.client import calls as module
from talka.client.client import Client
from talka.client.http import ApiAddress, HttpAnswer
from talka.client.requests import (
    BundleMissing,
    ClusterUnreachable,
    Conflict,
    Forbidden,
    NoSuchJob,
    NoSuchWorker,
    NotAuthorised,
    NotEnded,
    TooBusy,
)
from talka.errors import Invalid, Superseded, Unavailable
from talka.stats.windows import Window
from talka.web.auth import Tokens
from talka.wire.views import JobUpdate, ManagerView
from talka.work.lifecycle import JobState
from tests.client.asked_first import asking_first
from tests.web.fake_control import LIMIT_S, Api, Apis, FakeControl, FakeJob, free_port

CONTENT = b"a bundle"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def client(api: Api) -> Client:
    return Client([str(api.address)], rng=Random(1))


def update(job: FakeJob, sequence: int, final: bool = False, windows: tuple[int, ...] = ()) -> JobUpdate:
    return JobUpdate(job.facts, sequence, windows=[Window(index) for index in windows], final=final)


# Every call.


async def test_a_job_is_submitted_with_its_bundle_and_found_again(
    client: Client, control: FakeControl, order_of
) -> None:
    order = order_of(digest=DIGEST)

    facts = await client.submit(order, bundle=CONTENT)

    assert control.bundles == {DIGEST: CONTENT}
    assert await client.job(facts.id) == facts
    assert (await client.jobs()).items == [facts]
    assert (await client.jobs("queued", "", 1)).items == [facts]
    assert (await client.jobs("running")).items == []
    shown = await client.order(facts.id)
    assert msgspec.structs.replace(shown, bundle=order.bundle) == order


async def test_a_bundle_that_is_there_is_not_sent_again(client: Client, control: FakeControl, order_of) -> None:
    control.bundles[DIGEST] = CONTENT

    await client.submit(order_of(digest=DIGEST), bundle=CONTENT)

    assert "put_bundle" not in [name for name, *_ in control.asked]


async def test_a_bundle_that_was_lost_meanwhile_is_sent_again(client: Client, control: FakeControl, order_of) -> None:
    has_bundle = control.has_bundle
    control.has_bundle = lambda digest: asyncio.sleep(0, True)  # type: ignore[method-assign, assignment]

    facts = await client.submit(order_of(digest=DIGEST), bundle=CONTENT)

    assert facts.state is JobState.QUEUED
    assert [name for name, *_ in control.asked if name != "cluster"] == ["submit", "put_bundle", "submit"]
    assert await has_bundle(DIGEST)


async def test_a_bundle_that_is_nowhere_is_an_error(client: Client, order_of) -> None:
    with pytest.raises(BundleMissing):
        await client.submit(order_of())


async def test_each_submission_has_a_key_of_its_own_unless_one_is_given(
    client: Client, control: FakeControl, order_of
) -> None:
    control.bundles[DIGEST] = CONTENT
    order = order_of(digest=DIGEST)

    first, second = await client.submit(order), await client.submit(order)
    third, fourth = await client.submit(order, "mine"), await client.submit(order, "mine")

    assert first.id != second.id
    assert third == fourth
    with pytest.raises(Conflict):
        await client.submit(order_of("other", digest=DIGEST), "mine")
    drawn = [key for name, key in (asked for asked in control.asked if asked[0] == "submit")][:2]
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in drawn)


async def test_a_job_is_cancelled_and_a_worker_drained(client: Client, control: FakeControl) -> None:
    control.add_job("job1")

    assert (await client.cancel("job1", "enough")).cancel == "enough"
    assert (await client.drain("w1")).state == "draining"
    assert (await client.undrain("w1")).state == "healthy"
    assert [worker.name for worker in await client.workers()] == ["w1"]


async def test_results_health_and_metrics(client: Client, control: FakeControl) -> None:
    job = control.add_job("job1")
    with pytest.raises(NotEnded):
        await client.result("job1")
    job.result = b"{}"

    assert await client.result("job1") == b"{}"
    assert await client.is_ready() == ""
    control.not_ready = "it is joining"
    assert await client.is_ready() == "it is joining"
    assert "talka_jobs 1" in await client.metrics()


async def test_errors_are_those_that_were_raised(client: Client, control: FakeControl) -> None:
    with pytest.raises(NoSuchJob, match="there is no job nojob"):
        await client.job("nojob")
    for id in ("../cluster", "job1/result", "", "j?x", "j#x", ".."):
        with pytest.raises(NoSuchJob):
            await client.job(id)
    with pytest.raises(NoSuchWorker):
        await client.drain("w1/drain")
    with pytest.raises(NoSuchJob):
        async for _ in client.watch("nojob"):
            pass
    with pytest.raises(Invalid, match="limit is a whole number"):
        await client.jobs(limit=0)
    control.errors["jobs"] = TooBusy("too many", 100)
    with pytest.raises(TooBusy, match="too many"):
        await client.jobs()


async def test_whoever_is_asked_to_wait_waits_and_asks_again(apis: Apis, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [0.5]
    slept: list[float] = []
    api = await apis.start(limiter=lambda operation, client: waits.pop() if waits else 0)
    client = Client([str(api.address)])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)

    assert (await client.cluster()).name == "shop"
    assert slept == [1.0]


def test_a_client_needs_an_address() -> None:
    with pytest.raises(Invalid, match="at least one manager"):
        Client([])


# Tokens.


async def test_a_token_opens_what_its_role_may_do(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)
    job = api.control.add_job("job1")
    await api.control.tell(job, update(job, 1, final=True))
    viewer = Client([str(api.address)], token=tokens.issue("ann", "viewer", 2**33))
    nobody = Client([str(api.address)])

    assert (await viewer.job("job1")).id == "job1"
    assert [one.final async for one in viewer.watch("job1")] == [True]
    with pytest.raises(Forbidden, match="a viewer may not cancel a job"):
        await viewer.cancel("job1")
    with pytest.raises(NotAuthorised, match="needs a token"):
        await nobody.job("job1")
    with pytest.raises(NotAuthorised):
        await nobody.has_bundle(DIGEST)
    with pytest.raises(NotAuthorised):
        async for _ in nobody.watch("job1"):
            pass


async def test_whoever_may_not_submit_is_told_which_role_may(apis: Apis, tokens: Tokens, order_of) -> None:
    """Whether the bundle is there is asked first, and that answer has no words."""
    api = await apis.start(auth=tokens)
    viewer = Client([str(api.address)], token=tokens.issue("ann", "viewer", 2**33))

    with pytest.raises(Forbidden, match="a viewer may not .*: that takes the role submitter"):
        await viewer.submit(order_of(digest=DIGEST), bundle=CONTENT)
    assert not api.control.bundles


# Managers that die.


async def test_with_nobody_there_the_cluster_is_unreachable(impatient: Callable[..., Client]) -> None:
    within = f"within {LIMIT_S} s"
    with free_port() as port, free_port() as other:
        client = asking_first(impatient(f"127.0.0.1:{port}", f"127.0.0.1:{other}"), f"127.0.0.1:{port}")
        with pytest.raises(ClusterUnreachable, match=rf"{within}: 127.0.0.1:{port} cannot .*; 127.0.0.1:{other} "):
            await client.jobs()
        client = impatient(f"127.0.0.1:{port}")
        with pytest.raises(ClusterUnreachable, match=f"no manager answered {within}"):
            async for _ in client.watch("job1"):
                pass


async def test_whoever_waits_for_a_cluster_that_refuses_is_told_once_and_at_once(
    impatient: Callable[..., Client],
) -> None:
    with free_port() as port:
        client = impatient(f"127.0.0.1:{port}")
        told: list[str] = []
        client.on_trouble = told.append
        with pytest.raises(ClusterUnreachable):
            await client.jobs()
        with pytest.raises(ClusterUnreachable):
            await client.jobs()

    (trouble,) = told
    assert re.fullmatch(
        rf"127.0.0.1:{port} cannot be reached: nothing listens there: trying again for up to \d+ s", trouble
    )


async def test_nobody_is_told_of_trouble_with_a_cluster_that_has_answered(apis: Apis) -> None:
    api = await apis.start()
    client = Client([str(api.address)], question_s=0.5)
    told: list[str] = []
    client.on_trouble = told.append
    await client.jobs()
    api.control.errors["jobs"] = Unavailable("no leader")

    with pytest.raises(ClusterUnreachable):
        await client.jobs()

    assert told == []


@pytest.mark.parametrize(
    "error", [Unavailable("no leader"), Superseded("another leads"), RuntimeError("a bug")], ids=range(3)
)
async def test_another_manager_is_asked_when_one_is_dead_or_unavailable(apis: Apis, error: Exception) -> None:
    sick, well = await apis.start(), await apis.start()
    sick.control.errors["jobs"] = error
    well.control.add_job("job1")
    with free_port() as port:
        client = Client([f"127.0.0.1:{port}", str(sick.address), str(well.address)])
        asking_first(client, f"127.0.0.1:{port}")

        assert len((await client.jobs()).items) == 1
    assert client.addresses[0] == str(well.address), "who answered is asked first from then on"


async def test_a_manager_that_accepts_and_is_silent_leaves_time_for_the_next(
    apis: Apis, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = await apis.start()
    silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []
    port = silent.sockets[0].getsockname()[1]
    client = Client([f"127.0.0.1:{port}", str(well.address)], question_s=LIMIT_S)
    asking_first(client, f"127.0.0.1:{port}")
    given_s: list[float] = []

    async def call(address: ApiAddress, *words: Any, timeout_s: float, **more: Any) -> HttpAnswer:
        if address.port == port:
            given_s.append(timeout_s)
            timeout_s = 0.05  # nobody waits for all of it
        return await whole_call(address, *words, timeout_s=timeout_s, **more)

    whole_call = module.call
    monkeypatch.setattr(module, "call", call)

    assert (await client.jobs()).items == []

    assert given_s == [LIMIT_S / 2]
    silent.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_server_that_is_no_manager_is_told_of(impatient: Callable[..., Client]) -> None:
    statuses: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello" % statuses[-1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = impatient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for status, words in (
        (b"200 OK", "does not match the API"),
        (b"404 Not Found", "answered with status 404: is a manager of the same version there"),
        (b"502 Bad Gateway", "answered with status 502"),
    ):
        statuses.append(status)
        with pytest.raises(ClusterUnreachable, match=words):
            await client.jobs()
    server.close()


async def test_managers_are_learned_from_the_cluster(apis: Apis) -> None:
    first, second = await apis.start(), await apis.start()
    first.control.managers = [
        ManagerView("m1", "active", str(first.address)),
        ManagerView("m2", "active", str(second.address)),
        ManagerView("m3", "joining"),
    ]
    second.control.add_job("job1")
    client = Client([str(first.address)])

    await client.cluster()
    await client.cluster()
    assert sorted(client.addresses) == sorted([str(first.address), str(second.address)])

    await first.kill()
    assert (await client.job("job1")).id == "job1"


async def test_a_submission_whose_manager_dies_is_made_once(apis: Apis, order_of) -> None:
    control = FakeControl()
    control.bundles[DIGEST] = CONTENT
    dying, other = await apis.start(control), await apis.start(control)
    client = asking_first(Client([str(dying.address), str(other.address)]), dying.address)
    await client.cluster()
    submit = control.submit

    async def submit_and_die(order, key):
        control.submit = submit  # type: ignore[method-assign]
        await submit(order, key)
        task = asyncio.create_task(dying.kill())
        await asyncio.sleep(LIMIT_S)
        await task

    control.submit = submit_and_die  # type: ignore[method-assign]

    facts = await client.submit(order_of(digest=DIGEST))

    assert list(control.jobs_by_id) == [facts.id]
    assert len([asked for asked in control.asked if asked[0] == "submit"]) == 2


async def test_a_watch_goes_on_at_another_manager_and_misses_nothing_at_the_end(apis: Apis) -> None:
    control = FakeControl()
    job = control.add_job("job1")
    first, second = await apis.start(control), await apis.start(control)
    client = asking_first(Client([str(first.address), str(second.address)]), first.address)
    await control.tell(job, update(job, 1, windows=(0, 1)))

    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for one in client.watch("job1", steps=True):
            seen.append((one.sequence, [window.index for window in one.windows]))
            if len(seen) == 1:
                job.updates = [update(job, 0), update(job, 1, windows=(0,)), update(job, 2, windows=(1, 2))]
                await first.kill()
            elif len(seen) == 4:
                await control.tell(job, update(job, 3, windows=(3,), final=True))

    assert seen == [(1, [0, 1]), (0, []), (1, []), (2, [2]), (3, [3])], "what was told is left out, however it is told"
    assert [asked for asked in control.asked if asked[0] == "watch"] == [("watch", "job1", "True")] * 2


async def test_a_watch_survives_the_stop_of_its_only_manager_and_its_return(apis: Apis) -> None:
    control = FakeControl()
    job = control.add_job("job1")
    api = await apis.start(control)
    client = Client([str(api.address)])
    await control.tell(job, update(job, 1))

    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for one in client.watch("job1"):
            seen.append(one.sequence)
            if not one.final:
                await api.kill()
                job.updates = [update(job, 2, final=True)]
                listener = await asyncio.to_thread(again, api.address.port)
                await apis.start(control, listener=listener)

    assert seen == [1, 2]


def again(port: int):
    from talka.web.server import listen

    return listen("127.0.0.1", port, has_tokens=False)


async def test_a_watch_that_is_broken_off_is_opened_anew(api: Api, client: Client, control: FakeControl) -> None:
    job = control.add_job("job1")
    await control.tell(job, update(job, 1))

    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for one in client.watch("job1"):
            seen.append(one.sequence)
            if not one.final:
                control.errors["watching"] = Unavailable("another leads it now")
                async with control.news:
                    control.news.notify_all()
                await control.watchers_become(0)
                control.errors.clear()
                job.updates = [update(job, 2, final=True)]

    assert seen == [1, 2]


async def test_a_watch_that_is_left_is_closed(client: Client, control: FakeControl) -> None:
    job = control.add_job("job1")
    await control.tell(job, update(job, 1))

    updates = client.watch("job1")
    await anext(updates)
    await updates.aclose()

    await control.watchers_become(0)


async def test_a_result_is_waited_for(client: Client, control: FakeControl) -> None:
    job = control.add_job("job1")
    await control.tell(job, update(job, 1))
    waiting = asyncio.create_task(client.wait("job1"))
    await control.watchers_become(1)

    await control.tell(job, update(job, 2, final=True))
    async with control.news:
        while ("result", "job1") not in control.asked:
            await control.news.wait()
    job.result = b'{"late": true}'

    async with asyncio.timeout(LIMIT_S):
        assert await waiting == b'{"late": true}'


async def test_an_update_that_cannot_be_read_does_not_end_the_watch_silently(
    impatient: Callable[..., Client],
) -> None:
    from websockets.asyncio.server import serve

    async def nonsense(websocket) -> None:
        await websocket.send("nonsense")

    async with serve(nonsense, "127.0.0.1", 0) as server:
        client = impatient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client._has_learned = True
        with pytest.raises(ClusterUnreachable, match="sent an update that does not match the API"):
            async for _ in client.watch("job1"):
                pass
