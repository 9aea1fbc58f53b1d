"""An API whose places are few, and more who want one than there are."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from talka.control.clients.connections import ConnectionLimits
from talka.engine.process_start import new_event_loop
from talka.net.certificates import issue, make_authority
from talka.net.tls import cert_files
from talka.web.api_limits import HttpLimits
from talka.web.crowd import is_probe
from talka.wire.security.roles import Role
from talka.wire.views import JobUpdate
from tests.web.fake_control import LIMIT_S, Api, Apis

FEW = ConnectionLimits(places=4, heads=6, heads_of_one=4, probes=2, burst=8)
HALF = b"GET /v1/jobs HTTP/1.1\r\nHost: loc"
JOBS = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
WATCH = (
    b"GET /v1/jobs/j/watch HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
Loop = Callable[[], asyncio.AbstractEventLoop]


class Link:
    """A connection that its owner keeps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(
        cls, api: Api, said: bytes = b"", source: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> "Link":
        address = (source, 0)
        opened = await asyncio.open_connection(api.address.host, api.address.port, local_addr=address, ssl=tls)
        link = cls(*opened)
        link.writer.write(said)
        return link

    async def status(self) -> int:
        """Of the next answer, which is read whole. 0: the connection has ended."""
        async with asyncio.timeout(LIMIT_S):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0
            [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await self.reader.readexactly(length)
            return int(head.split()[1])

    async def is_ended(self) -> None:
        """Waits for it."""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                assert await self.reader.read() == b""

    def close(self) -> None:
        self.writer.transport.abort()


async def livez(api: Api) -> int:
    return (await api.ask("GET", "/livez")).status


async def busy(api: Api, number: int) -> list[Link]:
    """So many requests that are being served, and not answered."""
    api.control.hold = asyncio.Event()
    links = [await Link.to(api, JOBS) for _ in range(number)]
    async with asyncio.timeout(LIMIT_S), api.control.news:
        await api.control.news.wait_for(lambda: len(api.control.asked) == number)
    return links


async def test_the_oldest_half_sent_head_of_a_source_gives_way(apis: Apis) -> None:
    api = await apis.start(limits=FEW)

    links = [await Link.to(api, HALF) for _ in range(10)]

    for link in links[:6]:
        await link.is_ended()
    links[9].writer.write(b"alhost\r\n\r\n")
    assert await links[9].status() == 200
    for link in links:
        link.close()


async def test_half_sent_heads_of_one_source_are_no_matter_to_another(apis: Apis) -> None:
    api = await apis.start(limits=FEW)

    other = await Link.to(api, HALF, "127.0.0.9")
    links = [await Link.to(api, HALF, f"127.0.0.{2 + number % 2}") for number in range(40)]
    assert await livez(api) == 200

    other.writer.write(b"alhost\r\n\r\n")
    assert await other.status() == 200
    for link in (*links, other):
        link.close()


async def test_whole_requests_that_come_all_at_once_are_served_however_many_they_are(apis: Apis) -> None:
    """They are accepted in one go, before any of them is read."""
    api = await apis.start(limits=FEW._replace(places=12))

    links = await asyncio.gather(*(Link.to(api, JOBS) for _ in range(12)))

    assert [await link.status() for link in links] == [200] * 12
    for link in links:
        link.close()


async def test_probes_are_served_in_a_reserve_once_all_places_are_busy(apis: Apis) -> None:
    api = await apis.start(limits=FEW)
    links = await busy(api, 4)

    for _ in range(5):
        assert [(await api.ask(method, "/livez")).status for method in ("GET", "HEAD")] == [200, 200]
        assert (await api.ask("GET", "/readyz")).status == 200

    crowded = await api.ask("GET", "/v1/jobs")
    assert crowded.status == 503 and crowded.headers["retry-after"] == "1"
    assert b"serves as many connections as it can" in crowded.body
    assert (await api.send(WATCH)).startswith(b"HTTP/1.1 503 ")
    assert (await api.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")).endswith(b"alive\n")  # and closed
    assert api.control.hold is not None
    api.control.hold.set()
    assert [await link.status() for link in links] == [200] * 4
    assert (await api.ask("GET", "/v1/jobs")).status == 200
    for link in links:
        link.close()


async def test_probes_that_are_never_done_give_way_to_others(apis: Apis) -> None:
    api = await apis.start(limits=FEW)
    links = await busy(api, 4)
    endless = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"

    links += [await Link.to(api, endless, f"127.0.0.{number % 5 + 2}") for number in range(30)]

    assert await livez(api) == 200
    for link in links:
        link.close()


async def test_a_connection_that_rests_gives_its_place_up_to_a_request(apis: Apis) -> None:
    api = await apis.start(limits=FEW)
    links = [await Link.to(api, JOBS) for _ in range(4)]
    assert [await link.status() for link in links] == [200] * 4

    assert (await api.ask("GET", "/v1/jobs")).status == 200

    await links[0].is_ended()
    links[1].writer.write(JOBS)
    assert await links[1].status() == 200
    for link in links:
        link.close()


async def test_a_watcher_has_its_place_to_its_end(apis: Apis) -> None:
    api = await apis.start(limits=FEW._replace(places=1))
    job = api.control.add_job()
    await api.control.tell(job, JobUpdate(job.facts, 1))
    watcher = await Link.to(api, WATCH.replace(b"/j/", f"/{job.facts.id}/".encode()))
    assert (await watcher.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")

    assert (await api.ask("GET", "/v1/jobs")).status == 503
    assert await livez(api) == 200

    watcher.close()
    while (await api.ask("GET", "/v1/jobs")).status == 503:
        pass


async def test_one_request_behind_the_other_keeps_its_place(apis: Apis) -> None:
    api = await apis.start(limits=FEW._replace(places=1))
    [link] = await busy(api, 1)
    link.writer.write(JOBS)
    assert api.control.hold is not None
    api.control.hold.set()

    assert [await link.status(), await link.status()] == [200, 200]
    link.close()


# TLS: who has not agreed on it yet stands in the same line.


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder, "shop", "staging", now=datetime.now(UTC))
    issue(folder, name="m1", role=Role.MANAGER, now=datetime.now(UTC))
    files = cert_files(folder, "m1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl._create_unverified_context()


def on_every_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A server's loop is uvloop's where that is installed."""

    def run(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        for loop in (asyncio.new_event_loop, new_event_loop):
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(with_apis(test, contexts))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def with_apis(test: Callable[..., Awaitable[None]], contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    apis = Apis()
    try:
        await test(apis, contexts)
    finally:
        await apis.close()


@on_every_loop
async def test_whoever_never_agrees_on_tls_keeps_no_probe_out(
    apis: Apis, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    ours, theirs = contexts
    api = await apis.start(limits=FEW, tls=ours)
    said = (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n")
    links = [await Link.to(api, said[number % 3], f"127.0.0.{2 + number % 3}") for number in range(40)]

    for _ in range(3):
        prober = await Link.to(api, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", tls=theirs)
        assert await prober.status() == 200
        prober.close()

    await links[0].is_ended()
    for link in links:
        link.close()


@on_every_loop
async def test_half_a_handshake_does_not_hold_the_end_up(
    apis: Apis, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    api = await apis.start(limits=FEW, tls=contexts[0], grace_s=LIMIT_S)
    link = await Link.to(api, b"\x16\x03\x01")
    prober = await Link.to(api, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", tls=contexts[1])
    assert await prober.status() == 200

    api.stop.set()

    assert api.task is not None
    async with asyncio.timeout(LIMIT_S / 2):
        await api.task
        await link.is_ended()
    prober.close()
    link.close()


async def test_a_handshake_that_never_ends_is_not_waited_for(
    apis: Apis, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    api = await apis.start(tls=contexts[0], http=HttpLimits(head_s=0.05))

    assert await api.send(b"\x16\x03\x01") == b""


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        (b"GET", b"/livez", True),
        (b"HEAD", b"/readyz?verbose", True),
        (b"POST", b"/livez", False),
        (b"GET", b"/livez/", False),
        (b"GET", b"/v1/jobs", False),
    ],
)
def test_what_a_probe_is(method: bytes, url: bytes, expected: bool) -> None:
    assert is_probe(method, url) is expected
