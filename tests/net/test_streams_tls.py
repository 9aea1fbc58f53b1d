"""Connections with certificates: good ones talk, all others are refused with a reason before a frame is looked at."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from talka.control.member.breaker import Breaker
from talka.control.member.send_queue import Class
from talka.errors import Invalid
from talka.net import streams as module
from talka.net.certificates import issue, make_authority
from talka.net.identity import Certified
from talka.net.streams import StreamLimits, Streams
from talka.net.tls import TlsChannel, cert_files, check_identity, client_context, server_context
from talka.wire.framing import framed
from talka.wire.security.roles import Proven, Role

LIMIT_S = 60.0
A = Proven("a", Role.MANAGER)
NOW = datetime.now(UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Unchecked:
    """Like `Certified`, for certificates that it would not start with."""

    def __init__(self, folder: Path, name: str, role: Role) -> None:
        files = cert_files(folder, name)
        self._server, self._client, self._role = server_context(files), client_context(files), role

    def channel(self, *, server_side: bool) -> TlsChannel:
        return TlsChannel(self._server if server_side else self._client, server_side=server_side)

    def judge(self, channel: TlsChannel, *, initiated_by_peer: bool) -> tuple[str, str]:
        refused = check_identity(
            channel.identity,
            cluster="shop",
            environment="staging",
            role_here=self._role,
            initiated_by_peer=initiated_by_peer,
        )
        return ("", "") if refused is None else (refused.reason, refused.text)


class Lenient(Unchecked):
    """A peer that lets anybody in whose certificate holds."""

    def judge(self, channel: TlsChannel, *, initiated_by_peer: bool) -> tuple[str, str]:
        return "", ""


PATIENT = StreamLimits(dial_s=LIMIT_S)
"""On a busy machine a good connection may take long."""


class Node:
    """Streams, and what came of them."""

    def __init__(self, security, limits: StreamLimits = PATIENT) -> None:
        self.frames: list[tuple[str, bytes, Proven]] = []
        self.refused: list[tuple[str, str, str]] = []
        self.gone: list[tuple[str, bool]] = []
        self.address = ""
        self._news = asyncio.Event()
        self.streams = Streams(
            on_frame=lambda *frame: self._note(self.frames, frame),
            on_refused=lambda *refusal: self._note(self.refused, refusal),
            on_gone=lambda *gone: self._note(self.gone, gone),
            rng=Random(1),
            security=security,
            limits=limits,
        )

    async def listen(self) -> "Node":
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        self.address = f"127.0.0.1:{sock.getsockname()[1]}"
        await self.streams.listen(sock)
        return self

    def _note(self, where: list, what) -> bool:
        where.append(what)
        self._news.set()
        return True

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def node():
    made: list[Node] = []

    async def make(security=None, limits: StreamLimits = PATIENT) -> Node:
        made.append(await Node(security, limits).listen())
        return made[-1]

    yield make
    before = asyncio.all_tasks()
    for each in made:
        await each.streams.close()
    assert asyncio.all_tasks() <= before
    assert not any(each.streams._open for each in made)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder, "shop", "staging", now=LONG_AGO)
    for name, role in (("a", Role.MANAGER), ("b", Role.MANAGER), ("w", Role.WORKER), ("x", Role.WORKER)):
        issue(folder, name=name, role=role, now=NOW)
    issue(folder, name="expired", role=Role.MANAGER, now=LONG_AGO, days=1)
    issue(folder, name="other-cluster", role=Role.MANAGER, cluster="bakery", now=NOW)
    issue(folder, name="other-environment", role=Role.MANAGER, environment="production", now=NOW)
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    make_authority(folder, "shop", "staging", now=NOW)
    issue(folder, name="foreign", role=Role.MANAGER, now=NOW)
    return folder


def certified(folder: Path, name: str, role: Role = Role.MANAGER) -> Certified:
    return Certified(folder, name=name, role=role, cluster="shop", environment="staging")


async def test_good_pair_talks_in_both_directions_and_knows_names_and_roles(node, certs: Path) -> None:
    here, there = await node(certified(certs, "a")), await node(certified(certs, "b"))
    long = bytes(300_000)
    here.streams.send(there.address, b"question", Class.CONTROL)
    here.streams.send(there.address, long, Class.CONTROL)
    await there.until(lambda: len(there.frames) == 2)
    assert [frame[1:] for frame in there.frames] == [(b"question", A), (long, A)]
    there.streams.send(there.frames[0][0], b"answer", Class.CONTROL)
    await here.until(lambda: here.frames == [(there.address, b"answer", Proven("b", Role.MANAGER))])
    assert here.streams.counts == there.streams.counts == {}


@pytest.mark.parametrize(
    ("name", "role", "reason", "words"),
    [
        ("expired", Role.MANAGER, "expired", "the peer's certificate has expired"),
        ("foreign", Role.MANAGER, "foreign", "another authority"),
        ("other-cluster", Role.MANAGER, "cluster", "'other-cluster' is of cluster 'bakery'"),
        ("other-environment", Role.MANAGER, "environment", "of environment 'production'"),
        ("x", Role.WORKER, "role", "a worker may not connect to a worker"),
    ],
)
async def test_server_refuses_a_certificate_with_the_reason(
    node, certs: Path, foreign: Path, name: str, role: Role, reason: str, words: str
) -> None:
    there = await node(certified(certs, "w", Role.WORKER) if role is Role.WORKER else certified(certs, "b"))
    here = await node(Lenient(foreign if name == "foreign" else certs, name, role))
    if name == "foreign":  # it must not refuse first
        here.streams._security._client.load_verify_locations(certs / "ca.crt")
    here.streams.send(there.address, b"frame", Class.CONTROL)
    await there.until(lambda: bool(there.refused))
    await here.until(lambda: bool(here.gone))
    assert there.streams.counts == {reason: 1}
    assert [(refusal[1], words in refusal[2]) for refusal in there.refused] == [(reason, True)]
    assert there.frames == [] and there.streams.connections == 0


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [
        ("expired", "expired", "the peer's certificate has expired"),
        ("foreign", "foreign", "another authority"),
        ("other-cluster", "cluster", "'other-cluster' is of cluster 'bakery'"),
    ],
)
async def test_dialler_refuses_a_certificate_with_the_reason(
    node, certs: Path, foreign: Path, name: str, reason: str, words: str
) -> None:
    there = await node(Lenient(foreign if name == "foreign" else certs, name, Role.MANAGER))
    here = await node(certified(certs, "a"))
    here.streams.send(there.address, b"secret", Class.CONTROL)
    await here.until(lambda: bool(here.gone))
    assert here.gone == [(there.address, False)]
    assert here.streams.counts == {reason: 1, "undeliverable": 1}
    [(address, word, text)] = here.refused
    assert (address, word) == (there.address, reason) and words in text
    assert there.frames == []


async def test_refused_dialler_learns_why_where_the_authority_refuses(node, certs: Path) -> None:
    there, here = await node(certified(certs, "b")), await node(Unchecked(certs, "expired", Role.MANAGER))
    here.streams.send(there.address, b"frame", Class.CONTROL)
    await here.until(lambda: bool(here.refused))
    assert here.refused[0][1] == "expired" and "the peer refused our certificate" in here.refused[0][2]


async def test_frames_that_come_with_the_handshake_wait_for_the_judgement(node, certs: Path) -> None:
    there = await node(certified(certs, "b"))
    host, _, port = there.address.rpartition(":")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(cert_files(certs, "other-cluster")).wrap_bio(incoming, outgoing)
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        client.write(framed(b"frame"))
        writer.write(outgoing.read())  # the end of the handshake and a frame in one
        await there.until(lambda: bool(there.refused))
        await reader.read()
    writer.close()
    await writer.wait_closed()
    assert there.streams.counts == {"cluster": 1} and there.frames == []


async def test_server_that_speaks_before_it_is_judged_is_refused(node) -> None:
    class Early:
        identity = TlsChannel.__new__(TlsChannel)
        is_accepted = False

        def receive(self, data: bytes) -> bytes:
            return data

        def to_send(self) -> bytes:
            return b"hello"

    class Hasty:
        def channel(self, *, server_side: bool) -> Early:
            return Early()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(b"frame"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    here = await node(Hasty())
    here.streams.send(f"127.0.0.1:{port}", b"frame", Class.CONTROL)
    await here.until(lambda: bool(here.gone))
    server.close()
    await server.wait_closed()
    assert here.frames == [] and here.refused[0][1:] == ("tls", "the peer spoke before the TLS handshake was over")


async def test_dialler_without_certificates_is_refused(node, certs: Path) -> None:
    there, here = await node(certified(certs, "b")), await node()
    here.streams.send(there.address, b"frame", Class.CONTROL)
    await there.until(lambda: bool(there.refused))
    await here.until(lambda: here.gone == [(there.address, True)])
    assert there.streams.counts == {"not-tls": 1} and "--certs" in there.refused[0][2]


async def test_peer_without_certificates_is_dialled_once_and_not_in_a_circle(node, certs: Path) -> None:
    there, here = await node(), await node(certified(certs, "a"))
    here.streams.send(there.address, b"frame", Class.CONTROL)
    await here.until(lambda: bool(here.gone))
    assert here.gone == [(there.address, False)]
    assert here.streams.counts == {"tls": 1, "undeliverable": 1}
    assert "closed the connection during the TLS handshake" in here.refused[0][2]
    assert there.streams.counts == {"too-long": 1} and there.frames == []


async def test_peer_that_refuses_again_and_again_is_left_alone(node, certs: Path) -> None:
    limits = replace(PATIENT, control_probe_ns=3600 * 10**9)
    there, here = await node(), await node(certified(certs, "a"), limits)
    for number in range(module.BREAKER_FAILURES):
        here.streams.send(there.address, b"frame", Class.CONTROL)
        await here.until(lambda number=number: len(here.gone) == number + 1)
    here.streams.send(there.address, b"frame", Class.CONTROL)
    assert here.streams._dialled[(there.address, True)].dialling is None
    assert here.streams.counts == {"tls": module.BREAKER_FAILURES, "undeliverable": module.BREAKER_FAILURES + 1}


async def test_breaker_closes_after_a_handshake_and_not_before(node, certs: Path) -> None:
    there, here = await node(certified(certs, "b")), await node(certified(certs, "a"))
    told: list[str] = []

    class Recorder(Breaker):
        def succeeded(self, now: int) -> None:
            told.append("succeeded")

    judge = here.streams.judge
    here.streams.judge = lambda *a, **b: told.append("judged") or judge(*a, **b)  # type: ignore[method-assign]
    here.streams._dialled_to(there.address, True).breaker = Recorder()
    here.streams.send(there.address, b"frame", Class.CONTROL)
    await there.until(lambda: bool(there.frames))
    assert told == ["judged", "succeeded"]


async def test_peer_that_takes_the_connection_and_says_nothing_is_given_up(node, certs: Path) -> None:
    limits = StreamLimits(dial_s=3.0)  # the connection itself must be there in time
    here = await node(certified(certs, "a"), limits)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        here.streams.send(address, b"frame", Class.CONTROL)
        await here.until(lambda: bool(here.gone))
    assert here.gone == [(address, False)]
    assert here.refused == [(address, "tls", "the TLS handshake was not over in time")]
    assert here.streams.counts == {"tls": 1, "undeliverable": 1}


async def test_end_during_a_handshake_is_no_refusal(node, certs: Path) -> None:
    here = await node(certified(certs, "a"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        here.streams.send(address, b"frame", Class.CONTROL)
        dialling = here.streams._dialled[(address, True)].dialling
        async with asyncio.timeout(LIMIT_S):
            await dialling
        await here.streams.close()
    assert here.refused == []


# A node's own certificate.


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("expired", {}, "cannot be used: it expired on"),
        ("a", {"role": Role.WORKER}, "is for role 'manager', and this is 'worker'"),
        ("a", {"cluster": "bakery"}, "is for cluster 'shop', and this is 'bakery'"),
        ("a", {"environment": "production"}, "is for environment 'staging', and this is 'production'"),
        ("nobody", {}, "nobody.crt and nobody.key are not in"),
    ],
)
def test_node_does_not_start_with_a_certificate_that_is_not_its_own(
    certs: Path, name: str, options: dict[str, str], words: str
) -> None:
    asked = {"role": Role.MANAGER, "cluster": "shop", "environment": "staging"} | options
    with pytest.raises(Invalid, match=words):
        Certified(certs, name=name, **asked)
