"""TLS between nodes over real connections: who is let in, who is not, and what either end is told."""

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from talka.errors import Unavailable
from talka.net.certificates import issue, make_authority
from talka.net.tls import (
    CertFiles,
    HandshakeFailed,
    PeerIdentity,
    TlsChannel,
    check_identity,
    client_context,
    peer_identity,
    reason_of,
    server_context,
)
from talka.wire.security.roles import Role

# The TLS library reads the clock itself: what is good holds for long, what is not is far off.
START = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2110, 1, 1, tzinfo=UTC)
CENTURY_DAYS = 36_500
LIMIT_S = 30


class Fleet:
    """A folder of certificates, one for each kind of node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.foreign = folder / "certs", folder / "foreign"
        for place in (self.folder, self.foreign):
            make_authority(place, "shop", "staging", days=CENTURY_DAYS, now=START)
        self.manager = self.issue("manager", "manager")
        self.worker = self.issue("worker", "worker")
        self.gate = self.issue("gate", "gate")
        self.expired = self.issue("expired", "manager", days=1)
        self.early = self.issue("early", "manager", now=FUTURE)
        self.bank = self.issue("bank", "manager", cluster="bank")
        self.live = self.issue("live", "manager", environment="live")
        # Of another authority of the same name; it knows ours.
        alien = issue(self.foreign, name="alien", role="manager", days=CENTURY_DAYS, now=START)
        self.alien = alien._replace(ca=self.manager.ca)

    def issue(
        self, name: str, role: str, *, days: int = CENTURY_DAYS, now: datetime = START, **claims: Any
    ) -> CertFiles:
        return issue(self.folder, name=name, role=role, days=days, now=now, datacenter="eu", **claims)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


class End(asyncio.Protocol):
    """One end of a connection. The server answers with what it was told; both look at who the other end is."""

    def __init__(self, node: "Node", *, server_side: bool) -> None:
        self.channel = TlsChannel(node.context, server_side=server_side)
        self.node, self.server_side = node, server_side
        self.outcome: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        """("", what was heard) or (reason, sentence)."""
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.flush()

    def data_received(self, data: bytes) -> None:
        was_accepted = self.channel.is_accepted
        try:
            content = self.channel.receive(data)
        except HandshakeFailed as error:
            self.end(error.reason, str(error))
            return
        if self.channel.is_accepted and not was_accepted:
            refused = check_identity(
                self.channel.identity,
                cluster=self.node.cluster,
                environment=self.node.environment,
                role_here=self.node.role,
                initiated_by_peer=self.server_side,
            )
            if refused is not None:
                self.end(*refused)
                return
            if not self.server_side:
                self.channel.write(b"hello")
        if content and self.server_side:
            self.channel.write(b"heard " + content)
            self.flush()
            self.end("", content.decode())
        elif content:
            self.end("", content.decode())
        self.flush()

    def eof_received(self) -> None:
        if not self.channel.is_accepted:
            self.end(*reason_of(ConnectionResetError()))

    def connection_lost(self, error: Exception | None) -> None:
        self.end("lost", str(error))
        self.gone.set()

    def flush(self) -> None:
        self.transport.write(self.channel.to_send())

    def end(self, reason: str, text: str) -> None:
        if not self.outcome.done():
            self.outcome.set_result((reason, text))
            self.flush()
            self.transport.close()


class Met(NamedTuple):
    server: tuple[str, str]
    client: tuple[str, str]
    server_saw: PeerIdentity
    client_saw: PeerIdentity


class Node(NamedTuple):
    context: ssl.SSLContext
    role: Role = Role.MANAGER
    cluster: str = "shop"
    environment: str = "staging"


async def meet(server: Node, client: Node) -> Met:
    loop = asyncio.get_running_loop()
    ends: list[End] = []
    arrived = asyncio.Event()

    def accept() -> End:
        ends.append(End(server, server_side=True))
        arrived.set()
        return ends[0]

    listening = await loop.create_server(accept, "127.0.0.1", 0)
    async with listening, asyncio.timeout(LIMIT_S):
        port = listening.sockets[0].getsockname()[1]
        _, near = await loop.create_connection(lambda: End(client, server_side=False), "127.0.0.1", port)
        client_outcome = await near.outcome
        await arrived.wait()
        far = ends[0]
        server_outcome = await far.outcome
        await near.gone.wait()
        await far.gone.wait()
        return Met(server_outcome, client_outcome, far.channel.identity, near.channel.identity)


def serving(certs: CertFiles, role: Role = Role.MANAGER) -> Node:
    return Node(server_context(certs), role)


def dialling(certs: CertFiles, role: Role = Role.MANAGER) -> Node:
    return Node(client_context(certs), role)


# Who is let in.


async def test_nodes_of_one_authority_talk_and_know_each_other(fleet: Fleet) -> None:
    met = await meet(serving(fleet.manager), dialling(fleet.worker, Role.WORKER))
    assert (met.server, met.client) == (("", "hello"), ("", "heard hello"))
    assert met.server_saw == PeerIdentity("worker", "worker", "shop", "staging", "eu")
    assert met.client_saw == PeerIdentity("manager", "manager", "shop", "staging", "eu")


async def test_contexts_serve_the_streams_of_asyncio_too(fleet: Fleet) -> None:
    seen: list[PeerIdentity] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(peer_identity(writer.get_extra_info("ssl_object")))
        writer.write(await reader.readline())
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(fleet.manager))
    async with listening, asyncio.timeout(LIMIT_S):
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(fleet.worker))
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        assert peer_identity(writer.get_extra_info("ssl_object")).name == "manager"
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()
        await writer.wait_closed()
    assert [identity.name for identity in seen] == ["worker"]


# Who is not.


@pytest.mark.parametrize(
    ("who", "reason", "server_says", "client_says"),
    [
        ("expired", "expired", "the peer's certificate has expired", "refused our certificate, which has expired"),
        ("early", "not-yet-valid", "the peer's certificate is not valid yet", "which is not valid yet by its clock"),
        ("alien", "foreign", "the peer's certificate is of another authority", "it is of another authority"),
    ],
)
async def test_client_with_a_bad_certificate_is_refused_and_both_ends_know_why(
    fleet: Fleet, who: str, reason: str, server_says: str, client_says: str
) -> None:
    met = await meet(serving(fleet.manager), dialling(getattr(fleet, who)))
    assert met.server[0] == met.client[0] == reason
    assert server_says in met.server[1]
    assert client_says in met.client[1]


@pytest.mark.parametrize(
    ("who", "reason", "client_says", "server_says"),
    [
        ("expired", "expired", "the peer's certificate has expired", "refused our certificate, which has expired"),
        ("early", "not-yet-valid", "the peer's certificate is not valid yet", "which is not valid yet by its clock"),
        ("alien", "foreign", "the peer's certificate is of another authority", "it is of another authority"),
    ],
)
async def test_server_with_a_bad_certificate_is_refused_and_both_ends_know_why(
    fleet: Fleet, who: str, reason: str, client_says: str, server_says: str
) -> None:
    met = await meet(serving(getattr(fleet, who)), dialling(fleet.manager))
    assert met.server[0] == met.client[0] == reason
    assert server_says in met.server[1]
    assert client_says in met.client[1]


async def test_client_without_a_certificate_is_refused_and_both_ends_know_why(fleet: Fleet) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(fleet.manager.ca)
    met = await meet(serving(fleet.manager), Node(bare))
    assert met.server[0] == met.client[0] == "no-certificate"
    assert met.server[1].startswith("the peer showed no certificate")
    assert met.client[1].startswith("the peer wants a certificate and we showed none")


async def test_wrong_role_is_refused_by_both_ends(fleet: Fleet) -> None:
    met = await meet(serving(fleet.gate, Role.GATE), dialling(fleet.worker, Role.WORKER))
    rule = "a worker may not connect to a gate, only to a manager"
    assert met.server == ("role", f"{rule} ('worker' is the worker, this node the gate)")
    assert met.client == ("role", f"{rule} ('gate' is the gate, this node the worker)")


async def test_wrong_cluster_is_refused_by_both_ends(fleet: Fleet) -> None:
    met = await meet(serving(fleet.manager), dialling(fleet.bank)._replace(cluster="bank"))
    assert met.server == ("cluster", "'bank' is of cluster 'bank', this manager of 'shop'")
    assert met.client == ("cluster", "'manager' is of cluster 'shop', this manager of 'bank'")


async def test_wrong_environment_is_refused_by_both_ends(fleet: Fleet) -> None:
    met = await meet(serving(fleet.manager), dialling(fleet.live)._replace(environment="live"))
    assert met.server == ("environment", "'live' is of environment 'live', this manager of 'staging'")
    assert met.client == ("environment", "'manager' is of environment 'staging', this manager of 'live'")


async def test_older_tls_is_refused(fleet: Fleet) -> None:
    old = client_context(fleet.worker)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    met = await meet(serving(fleet.manager), Node(old))
    assert met.server == ("tls", "the peer cannot speak TLS 1.3: nodes speak nothing older")
    assert met.client == met.server


# Plain connections.


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x05hello", b"\x80\x2e\x01"], ids=["http", "frame", "sslv2"]
)
async def test_plain_connection_to_a_tls_port_is_refused(fleet: Fleet, words: bytes) -> None:
    loop = asyncio.get_running_loop()
    end = End(serving(fleet.manager), server_side=True)
    listening = await loop.create_server(lambda: end, "127.0.0.1", 0)
    async with listening, asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.sockets[0].getsockname()[1])
        writer.write(words)
        reason, sentence = await end.outcome
        await reader.read()
        writer.close()
        await end.gone.wait()
    assert reason == "not-tls"
    assert sentence.startswith("the peer does not speak TLS: give it certificates with --certs")


async def test_tls_connection_to_a_plain_port_says_so(fleet: Fleet) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example\r\n")
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    async with listening, asyncio.timeout(LIMIT_S):
        port = listening.sockets[0].getsockname()[1]
        _, end = await loop.create_connection(
            lambda: End(dialling(fleet.worker, Role.WORKER), server_side=False), "127.0.0.1", port
        )
        reason, sentence = await end.outcome
        await end.gone.wait()
    assert (reason, sentence.partition(":")[0]) == ("not-tls", "the peer does not speak TLS")


async def test_port_that_closes_during_the_handshake_is_told_from_one_that_works(fleet: Fleet) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        writer.close()

    listening = await asyncio.start_server(leave, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    async with listening, asyncio.timeout(LIMIT_S):
        port = listening.sockets[0].getsockname()[1]
        _, end = await loop.create_connection(
            lambda: End(dialling(fleet.worker, Role.WORKER), server_side=False), "127.0.0.1", port
        )
        outcome = await end.outcome
        await end.gone.wait()
    assert outcome == ("tls", "the peer closed the connection during the TLS handshake: its own output says why")


# The channel.


def exchange(far: TlsChannel, near: TlsChannel) -> None:
    while True:
        to_far = near.to_send()
        far.receive(to_far)
        to_near = far.to_send()
        near.receive(to_near)
        if not to_far and not to_near:
            return


def pair(fleet: Fleet) -> tuple[TlsChannel, TlsChannel]:
    far = TlsChannel(server_context(fleet.manager), server_side=True)
    return far, TlsChannel(client_context(fleet.worker), server_side=False)


def test_refusal_arrives_with_the_first_read_of_a_client_that_thought_it_was_in(fleet: Fleet) -> None:
    far = TlsChannel(server_context(fleet.manager), server_side=True)
    near = TlsChannel(client_context(fleet.expired), server_side=False)
    far.receive(near.to_send())
    near.receive(far.to_send())
    assert near.identity.name == "manager" and not near.is_accepted
    with pytest.raises(HandshakeFailed):
        far.receive(near.to_send())
    with pytest.raises(HandshakeFailed, match="which has expired") as caught:
        near.receive(far.to_send())
    assert caught.value.reason == "expired"


def test_client_is_accepted_only_when_the_server_has_looked_at_its_certificate(fleet: Fleet) -> None:
    far, near = pair(fleet)
    far.receive(near.to_send())
    near.receive(far.to_send())
    assert near.identity.name == "manager"  # it knows the server, and not yet what the server thinks of it
    assert not near.is_accepted and not far.is_accepted
    assert far.identity.name == ""
    with pytest.raises(Unavailable, match="the TLS handshake is not over"):
        near.write(b"too soon")
    far.receive(near.to_send())
    assert far.is_accepted and far.identity.name == "worker"
    near.receive(far.to_send())
    assert near.is_accepted


def test_channel_takes_bytes_in_any_pieces(fleet: Fleet) -> None:
    far, near = pair(fleet)
    heard = b""
    for _ in range(3):
        for byte in near.to_send():
            heard += far.receive(bytes([byte]))
        answer = far.to_send()
        for index, byte in enumerate(answer):
            was_last = index == len(answer) - 1
            near.receive(bytes([byte]))
            assert was_last or not near.is_accepted
    assert near.is_accepted and far.is_accepted and heard == b""
    content = bytes(range(256)) * 100  # more than one record
    near.write(content)
    for byte in near.to_send():
        heard += far.receive(bytes([byte]))
    assert heard == content


def test_words_right_behind_the_handshake_are_heard(fleet: Fleet) -> None:
    far, near = pair(fleet)
    far.receive(near.to_send())
    near.receive(far.to_send())
    finished = near.to_send()
    near.is_accepted = True  # an impatient peer
    near.write(b"hello")
    assert far.receive(finished + near.to_send()) == b"hello"


def say_goodbye(channel: TlsChannel) -> None:
    with contextlib.suppress(ssl.SSLError):  # it would like to wait for the same word from the other end
        channel._ssl.unwrap()


def test_goodbye_is_heard_by_either_end(fleet: Fleet) -> None:
    far, near = pair(fleet)
    exchange(far, near)
    near.write(b"last words")
    say_goodbye(near)
    assert far.receive(near.to_send()) == b"last words"
    assert far.is_closed and not near.is_closed
    say_goodbye(far)
    assert near.receive(far.to_send()) == b""
    assert near.is_closed


def test_record_that_was_tampered_with_is_refused(fleet: Fleet) -> None:
    far, near = pair(fleet)
    exchange(far, near)
    near.write(b"hello")
    record = bytearray(near.to_send())
    record[-1] ^= 1
    with pytest.raises(HandshakeFailed, match="the TLS connection failed: ") as caught:
        far.receive(bytes(record))
    assert caught.value.reason == "tls"
