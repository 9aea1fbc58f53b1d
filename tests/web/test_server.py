"""The socket under the API: who may listen where, limits of connections, stopping, TLS."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from talka.client.client import Client
from talka.client.http import ApiSilent
from talka.client.requests import ClusterUnreachable
from talka.net.certificates import issue, make_authority
from talka.net.tls import cert_files
from talka.web import server as module
from talka.web.api_limits import HTTP_LIMITS, HttpLimits
from talka.web.server import ApiCannotListen, Exposed, GentleTransport, listen
from talka.wire.security.roles import Role
from tests.web.fake_control import LIMIT_S, Api, Apis


def test_without_tokens_it_listens_on_loopback_only() -> None:
    with pytest.raises(Exposed, match="let everybody in: give it a token key"):
        listen("0.0.0.0", 0, has_tokens=False)
    for host in ("127.0.0.1", "localhost"):
        listen(host, 0, has_tokens=False).close()
    listen("0.0.0.0", 0, has_tokens=True).close()


def test_an_address_that_is_taken_or_not_there_is_said_in_words() -> None:
    with listen("127.0.0.1", 0, has_tokens=False) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ApiCannotListen, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; end what"
        ):
            listen("127.0.0.1", port, has_tokens=False)
    with pytest.raises(ApiCannotListen, match="cannot listen on no.such.host.invalid"):
        listen("no.such.host.invalid", 0, has_tokens=False)


async def test_the_process_keeps_its_own_signal_handlers(apis: Apis) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    await apis.start()

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_stopping_lets_a_call_that_is_under_way_finish(apis: Apis) -> None:
    api = await apis.start(grace_s=LIMIT_S)
    api.control.hold = asyncio.Event()
    asked = asyncio.create_task(api.ask("GET", "/v1/jobs"))
    await api.control.is_asked()

    api.stop.set()
    await asyncio.sleep(0)
    api.control.hold.set()

    assert (await asked).status == 200
    assert api.task is not None
    await api.task
    with pytest.raises(ApiSilent):
        await api.ask("GET", "/v1/jobs")


async def test_stopping_does_not_wait_for_ever(apis: Apis) -> None:
    api = await apis.start(grace_s=0)
    api.control.hold = asyncio.Event()
    asked = asyncio.create_task(api.ask("GET", "/v1/jobs"))
    await api.control.is_asked()

    api.stop.set()
    assert api.task is not None
    async with asyncio.timeout(LIMIT_S):
        await api.task

    with pytest.raises(ApiSilent):
        await asked


async def test_an_endless_head_is_cut_off(api: Api) -> None:
    answer = await api.send(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000)

    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_head_that_never_comes_is_not_waited_for(apis: Apis) -> None:
    api = await apis.start(http=HttpLimits(head_s=0.05))

    assert await api.send(b"") == b""
    assert await api.send(b"GET /v1/jobs HTTP/1.1\r\nHost: loc") == b""


async def rest_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What comes until the end. What was sent too late, for a server that has hung up, ends in a reset."""
    came = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(LIMIT_S):
            while part := await reader.read(65_536):
                came += part
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return came


async def test_what_follows_an_early_answer_is_not_kept(apis: Apis) -> None:
    api = await apis.start(http=HttpLimits(linger_s=0.05))
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)

    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\nx")
    assert b" 415 " in await reader.readline()
    writer.write(b"y" * 1000)

    await rest_of(reader, writer)


async def test_after_an_early_answer_the_rest_is_passed_over_and_the_connection_serves_on(api: Api) -> None:
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)

    async with asyncio.timeout(LIMIT_S):
        for _ in range(3):
            writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 415 ")
            [length] = [int(line[16:]) for line in head.splitlines() if line.startswith(b"content-length: ")]
            await reader.readexactly(length)
            writer.write(b"nothing")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"alive\n")
    writer.close()
    await writer.wait_closed()


async def test_no_part_of_an_answer_waits_for_another(apis: Apis) -> None:
    listener = module.listen("127.0.0.1", 0, has_tokens=False)

    await apis.start(listener=listener)

    # Connections inherit it. Without, each answer on an open connection takes 40 ms.
    assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_rest_that_does_not_end_is_not_read(apis: Apis) -> None:
    api = await apis.start(http=HttpLimits(linger_s=0.1, rest_bytes=10))
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)

    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n")
    assert b" 415 " in await reader.readline()
    writer.write(b"y" * 20 + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert b"alive" not in await rest_of(reader, writer)


@pytest.mark.parametrize("end", ["keep-alive", "close"])
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
async def test_whoever_goes_on_sending_after_a_refusal_is_not_read_and_has_the_answer(
    apis: Apis, certs: Path, monkeypatch: pytest.MonkeyPatch, end: str, has_tls: bool
) -> None:
    """100 MB were announced, and somebody sends them as fast as the connection takes them."""
    read = 0
    whole = module.BoundedHttp.data_received

    def counted(protocol: module.BoundedHttp, data: bytes) -> None:
        nonlocal read
        read += len(data)
        whole(protocol, data)

    monkeypatch.setattr(module.BoundedHttp, "data_received", counted)
    api = await apis.start(tls=server_tls(certs, "m1") if has_tls else None, http=HttpLimits(deaf_s=0.3))
    head = f"PUT /v1/bundles/{'0' * 64} HTTP/1.1\r\nHost: localhost\r\nConnection: {end}\r\n"

    def talk() -> tuple[bytes, int]:
        """In a thread, with a plain socket: nothing here reads before it has to."""
        sent = 0
        raw = socket.create_connection((api.address.host, api.address.port), timeout=LIMIT_S)
        with raw if not has_tls else ssl._create_unverified_context().wrap_socket(raw) as link:
            link.sendall(f"{head}Content-Length: {100 * 1024 * 1024}\r\n\r\n".encode())
            answer = link.recv(65_536)
            with contextlib.suppress(OSError):
                while sent < 100 * 1024 * 1024:
                    sent += link.send(bytes(65_536))
            return answer, sent

    answer, sent = await asyncio.to_thread(talk)

    assert answer.startswith(b"HTTP/1.1 413 ")
    # What the kernels of both sides hold is not ours to bound.
    assert sent < 50 * 1024 * 1024
    assert read <= len(head) + HTTP_LIMITS.rest_bytes + 2 * 256 * 1024


async def test_an_answer_that_ends_the_connection_is_read_to_its_end_by_whoever_still_sends(api: Api) -> None:
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 50000\r\n\r\n"

    async with asyncio.timeout(LIMIT_S):
        writer.write(head + b"x" * 10)
        answer = await reader.read()  # up to the end, although a rest is owed
        writer.write(b"x" * 49_990 + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 415 ") and answer.endswith(b"}")
    assert (await api.ask("GET", "/livez")).status == 200


async def test_a_connection_serves_one_request_after_the_other(api: Api) -> None:
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)
    request = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"

    for _ in range(2):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"\r\ndate: " in head
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()
    await writer.wait_closed()


async def test_nonsense_is_answered_with_400(api: Api) -> None:
    assert (await api.send(b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    now = datetime.now(UTC)
    make_authority(folder, "shop", "staging", now=now)
    for name, role in (("m1", Role.MANAGER), ("w1", Role.WORKER)):
        issue(folder, name=name, role=role, now=now)
    return folder


def server_tls(folder: Path, name: str) -> ssl.SSLContext:
    files = cert_files(folder, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


async def test_a_manager_with_a_certificate_of_the_clusters_authority_is_trusted(apis: Apis, certs: Path) -> None:
    api = await apis.start(tls=server_tls(certs, "m1"))
    client = Client([str(api.address)], ca=str(certs / "ca.crt"))

    assert (await client.cluster()).name == "shop"


async def test_a_worker_cannot_pass_for_a_manager(apis: Apis, certs: Path, impatient: Callable[..., Client]) -> None:
    api = await apis.start(tls=server_tls(certs, "w1"))
    client = impatient(str(api.address), token="t", ca=str(certs / "ca.crt"))
    api.control.add_job()

    with pytest.raises(ClusterUnreachable, match="not a manager's but says worker"):
        await client.cluster()
    assert api.control.asked == []


async def test_a_foreign_certificate_is_told_in_words(
    apis: Apis, certs: Path, tmp_path: Path, impatient: Callable[..., Client]
) -> None:
    now = datetime.now(UTC)
    make_authority(tmp_path, "shop", "staging", now=now)
    issue(tmp_path, name="m1", role=Role.MANAGER, now=now)
    api = await apis.start(tls=server_tls(tmp_path, "m1"))
    client = impatient(str(api.address), ca=str(certs / "ca.crt"))

    with pytest.raises(ClusterUnreachable, match="of another authority than ours"):
        await client.cluster()


async def test_a_socket_that_was_handed_over_is_used(apis: Apis) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    api = await apis.start(listener=listener)

    assert (await api.ask("GET", "/livez")).status == 200


class Gone:
    """A transport whose other side has gone away, as uvloop has it."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")


def test_an_answer_to_whoever_has_gone_away_goes_nowhere() -> None:
    transport: Any = Gone()

    GentleTransport(transport, lambda: None).write(b"HTTP/1.1 200 OK\r\n\r\n")
