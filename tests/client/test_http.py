"""One request and its answer: addresses, limits, and servers that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from talka.client.http import ApiAddress, ApiSilent, HttpAnswer, call, parse_address, trust
from talka.errors import Invalid
from tests.web.fake_control import LIMIT_S, free_port


class Script:
    """A server that says what it is told to, whatever it is asked."""

    def __init__(self) -> None:
        self.says = b""
        self.stays_open = False
        self.heard = b""
        self.address = ApiAddress("http", "127.0.0.1", 0)
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        self.heard = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.says)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if not self.stays_open:
            writer.close()

    async def close(self) -> None:
        for writer in self._open:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    script = Script()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.address = ApiAddress("http", "127.0.0.1", server.sockets[0].getsockname()[1])
    yield script
    server.close()
    await script.close()


async def get(
    address: ApiAddress, *, timeout_s: float = LIMIT_S, limit_bytes: int = 100, method: str = "GET"
) -> HttpAnswer:
    return await call(address, method, "/x", headers={"a": "b"}, timeout_s=timeout_s, limit_bytes=limit_bytes)


async def test_an_answer_of_known_length_ends_where_it_says(script: Script) -> None:
    script.says, script.stays_open = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: v\r\n\r\nhello", True

    answer = await get(script.address)

    assert answer == HttpAnswer(200, {"content-length": "5", "x-name": "v"}, b"hello")
    assert script.heard.startswith(b"GET /x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\na: b\r\n" in script.heard


async def test_chunks_are_put_together(script: Script) -> None:
    script.says = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nT: x\r\n\r\n"

    assert (await get(script.address)).body == b"hello"


async def test_an_answer_without_a_length_ends_with_the_connection(script: Script) -> None:
    script.says = b"HTTP/1.1 200 OK\r\n\r\nhello"

    assert (await get(script.address)).body == b"hello"


async def test_the_answer_to_a_head_has_no_body_whatever_its_length_says(script: Script) -> None:
    script.says, script.stays_open = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n", True

    assert await get(script.address, method="HEAD") == HttpAnswer(404, {"content-length": "5"}, b"")


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"", "ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", "ended before the answer did"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not answer as a manager does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n" + b"x" * 500, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000, "never ends"),
        (b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "it changed to another protocol"),
    ],
    ids=range(7),
)
async def test_what_is_no_whole_answer_is_none(script: Script, says: bytes, words: str) -> None:
    script.says = says

    with pytest.raises(ApiSilent, match=words):
        await get(script.address)


async def test_silence_is_not_waited_for_longer_than_was_said(script: Script) -> None:
    script.stays_open = True

    with pytest.raises(ApiSilent, match="did not answer within 0.05 s"):
        await get(script.address, timeout_s=0.05)


async def test_nobody_there_is_said_in_words() -> None:
    with free_port() as port, pytest.raises(ApiSilent, match=f"127.0.0.1:{port} cannot be reached: "):
        await get(ApiAddress("http", "127.0.0.1", port))
    with pytest.raises(ApiSilent, match="no.such.host.invalid:8470 cannot be reached: "):
        await get(ApiAddress("http", "no.such.host.invalid", 8470))


async def test_an_early_answer_is_heard_while_the_body_is_still_on_its_way(script: Script) -> None:
    script.says, script.stays_open = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", True

    answer = await call(
        script.address, "PUT", "/x", headers={}, body=b"x" * 50_000_000, timeout_s=LIMIT_S, limit_bytes=100
    )

    assert answer.status == 413


async def test_a_header_cannot_smuggle_another(script: Script) -> None:
    with pytest.raises(Invalid, match="characters that cannot be sent"):
        await call(script.address, "GET", "/", headers={"a": "b\r\nc: d"}, timeout_s=LIMIT_S, limit_bytes=1)


@pytest.mark.parametrize(
    ("text", "is_tls", "address"),
    [
        ("m1", False, ("http", "m1", 8470)),
        ("m1:80", True, ("https", "m1", 80)),
        ("http://m1:1/", True, ("http", "m1", 1)),
        ("https://M1", False, ("https", "m1", 8470)),
        ("[::1]:9", False, ("http", "::1", 9)),
    ],
    ids=range(5),
)
def test_addresses_are_read(text: str, is_tls: bool, address: tuple[str, str, int]) -> None:
    assert parse_address(text, is_tls=is_tls) == address


@pytest.mark.parametrize(
    "text", ["", "ftp://m1", "http://", "m1:x", "m1:99999", "http://m1/path", "a@m1", "http://m1?x", "[::1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not the address of a manager"):
        parse_address(text)


def test_an_address_is_written_as_urls_write_it() -> None:
    assert str(ApiAddress("http", "::1", 9)) == "[::1]:9"
    assert str(ApiAddress("http", "m1", 9)) == "m1:9"


def test_an_authority_that_cannot_be_read_is_said_in_words(tmp_path) -> None:
    with pytest.raises(Invalid, match="cannot be used as a certificate authority"):
        trust(str(tmp_path / "none.crt"))
    (tmp_path / "bad.crt").write_text("nonsense")
    with pytest.raises(Invalid, match="cannot be used as a certificate authority"):
        trust(str(tmp_path / "bad.crt"))
