"""A server that does what servers should not: each behaviour has a name, which the path of a request asks for.

Used by `hostile_run.py`. A behaviour writes raw bytes to one connection and says whether to keep it.
"""

import asyncio
import gzip
import socket
import ssl
import struct
import zlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

STALL_S: Final = 30.0
"""Longer than any client here waits."""
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Behaviour = Callable[["Peer"], Awaitable[None]]


class Peer:
    """One connection, after a request was read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: Random) -> None:
        self.reader, self.writer, self.rng = reader, writer, rng
        self.keeps = True

    async def say(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def drip(self, content: bytes, most: int = 1) -> None:
        while content:
            size = self.rng.randint(1, most)
            await self.say(content[:size])
            content = content[size:]
            await asyncio.sleep(0)

    def close(self) -> None:
        self.keeps = False

    def reset(self) -> None:
        """The next close is a reset: what was not read is thrown away."""
        self.keeps = False
        sock = self.writer.get_extra_info("socket")
        if sock is None:  # the client was faster
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def answer(body: bytes = b"ok", *headers: bytes, status: bytes = b"200 OK", length: bool = True) -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def chunked(content: bytes, *headers: bytes) -> bytes:
    return answer(content, b"Transfer-Encoding: chunked", *headers, length=False)


def saying(content: bytes | Callable[[Random], bytes], *, closes: bool = False) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.say(content if isinstance(content, bytes) else content(peer.rng))
        peer.keeps = not closes

    return behave


def dripping(content: bytes) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.drip(content)

    return behave


def then_stalling(content: bytes) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.say(content)
        await asyncio.sleep(STALL_S)
        peer.close()

    return behave


def then_resetting(content: bytes) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.say(content)
        peer.reset()

    return behave


async def halves(peer: Peer) -> None:
    """Says it sends no more, and reads on."""
    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    if peer.writer.can_write_eof():
        peer.writer.write_eof()
    peer.close()


async def cuts_anywhere(peer: Peer) -> None:
    whole = chunked(b"5\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n")
    await peer.say(whole[: peer.rng.randrange(len(whole))])
    peer.close()


async def closes_later(peer: Peer) -> None:
    """The connection is idle, or has just been taken again, when it is closed."""
    await peer.say(OK)
    await asyncio.sleep(peer.rng.random() * 0.002)
    peer.close()


async def says_more_later(peer: Peer) -> None:
    await peer.say(OK)
    await asyncio.sleep(peer.rng.random() * 0.002)
    await peer.say(b"HTTP/1.1 200 OK\r\n")


async def resets_later(peer: Peer) -> None:
    await peer.say(OK)
    await asyncio.sleep(peer.rng.random() * 0.002)
    peer.reset()


async def many_small_reads(peer: Peer) -> None:
    body = bytes(peer.rng.randrange(256) for _ in range(3000))
    await peer.drip(answer(body), most=40)


def flipped(rng: Random) -> bytes:
    whole = bytearray(chunked(b"5\r\nhello\r\n0\r\n\r\n", b"Set-Cookie: a=b; Path=/", b"Content-Type: text/plain"))
    for _ in range(rng.randint(1, 4)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole)


GZIP: Final = gzip.compress(b'{"a": 1}' * 50, mtime=0)
BOMB: Final = gzip.compress(bytes(1 << 24), mtime=0)
BEHAVIOURS: Final[dict[str, Behaviour]] = {
    # as it should be, so that connections are used again
    "ok": saying(OK),
    "ok-chunked": saying(chunked(b"5\r\nhello\r\n0\r\n\r\n")),
    "ok-gzip": saying(answer(GZIP, b"Content-Encoding: gzip")),
    "ok-json": saying(answer(b'{"a": [1, 2]}', b"Content-Type: application/json")),
    "ok-large": saying(answer(bytes(1 << 20))),
    "ok-1.0": saying(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"),
    "ok-until-close": saying(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", closes=True),
    # ends
    "close": saying(b"", closes=True),
    "reset": then_resetting(b""),
    "half-line-close": saying(b"HTTP/1.", closes=True),
    "half-head-close": saying(b"HTTP/1.1 200 OK\r\nContent-Le", closes=True),
    "half-body-close": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", closes=True),
    "half-body-reset": then_resetting(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
    "half-chunk-close": saying(chunked(b"ff\r\nhalf"), closes=True),
    "half-close": halves,
    "cut-anywhere": cuts_anywhere,
    "close-later": closes_later,
    "reset-later": resets_later,
    "more-later": says_more_later,
    # times
    "stall": then_stalling(b""),
    "stall-in-head": then_stalling(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"),
    "stall-in-body": then_stalling(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"),
    "stall-in-chunk": then_stalling(chunked(b"5\r\nab")),
    "drip": dripping(OK),
    "drip-chunked": dripping(chunked(b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n")),
    "small-reads": many_small_reads,
    # first lines
    "garbage": saying(lambda rng: rng.randbytes(300), closes=True),
    "flipped": saying(flipped, closes=True),
    "http-0.9": saying(b"<html>hello</html>", closes=True),
    "http-2": saying(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18), closes=True),
    "http-9.9": saying(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "lower-case": saying(b"http/1.1 200 ok\r\ncontent-length: 0\r\n\r\n"),
    "status-0": saying(answer(status=b"0 None")),
    "status-999": saying(answer(status=b"999 Most")),
    "status-long": saying(answer(status=b"20000000000000000000000 OK")),
    "status-none": saying(b"HTTP/1.1\r\n\r\n", closes=True),
    "reason-long": saying(answer(status=b"200 " + b"x" * 70_000)),
    "reason-bytes": saying(answer(status=b"200 " + bytes(range(128, 256)))),
    # heads
    "head-long": saying(answer(b"ok", b"X: " + b"x" * (1 << 20))),
    "head-many": saying(answer(b"ok", *(b"X-%d: %d" % (n, n) for n in range(10_000)))),
    "head-no-colon": saying(answer(b"ok", b"this is no header")),
    "head-nul": saying(answer(b"ok", b"X: a\x00b")),
    "head-folded": saying(answer(b"ok", b"X: a\r\n b")),
    "head-empty-name": saying(answer(b"ok", b": nobody")),
    "head-space-name": saying(answer(b"ok", b"X : y")),
    "head-bare-newlines": saying(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
    "cookies-many": saying(answer(b"ok", *(b"Set-Cookie: c%d=%d" % (n, n) for n in range(500)))),
    "cookie-odd": saying(answer(b"ok", b"Set-Cookie: =;;=\x80; Expires=never; Max-Age=-1; Domain=.; Path")),
    "cookie-long": saying(answer(b"ok", b"Set-Cookie: a=" + b"x" * 50_000)),
    # lengths
    "length-negative": saying(answer(b"ok", b"Content-Length: -1", length=False), closes=True),
    "length-twice": saying(answer(b"ok", b"Content-Length: 2", b"Content-Length: 3", length=False), closes=True),
    "length-2**63": saying(answer(b"ok", b"Content-Length: 9223372036854775808", length=False), closes=True),
    "length-2**64": saying(answer(b"ok", b"Content-Length: 18446744073709551618", length=False), closes=True),
    "length-text": saying(answer(b"ok", b"Content-Length: two", length=False), closes=True),
    "length-short": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more"),
    "length-and-chunks": saying(chunked(b"2\r\nok\r\n0\r\n\r\n", b"Content-Length: 2")),
    "length-too-much": saying(answer(bytes(3 << 20))),
    # chunks
    "chunk-no-number": saying(chunked(b"zz\r\nhello\r\n0\r\n\r\n"), closes=True),
    "chunk-huge": saying(chunked(b"ffffffffffffffffff\r\nhello"), closes=True),
    "chunk-extension": saying(chunked(b"5;" + b"x" * 100_000 + b"\r\nhello\r\n0\r\n\r\n"), closes=True),
    "chunk-no-newline": saying(chunked(b"5\r\nhelloXX0\r\n\r\n"), closes=True),
    "chunk-trailers": saying(chunked(b"0\r\n" + b"T: x\r\n" * 5000 + b"\r\n"), closes=True),
    "chunk-ones": saying(chunked(b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n")),
    "coding-unknown": saying(answer(b"ok", b"Transfer-Encoding: cow", length=False), closes=True),
    "coding-gzip": saying(answer(GZIP, b"Transfer-Encoding: gzip, chunked", length=False), closes=True),
    "coding-twice": saying(chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked"), closes=True),
    # more than one answer
    "two": saying(OK + OK),
    "continue": saying(b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK),
    "continue-endless": saying(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 5000, closes=True),
    "switching": saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: cow\r\n\r\nmoo"),
    "204-body": saying(answer(b"body", status=b"204 No Content")),
    "304-body": saying(answer(b"body", status=b"304 Not Modified")),
    # redirects
    "redirect-loop": saying(answer(b"", b"Location: /redirect-loop", status=b"302 Found")),
    "redirect-none": saying(answer(b"", status=b"302 Found")),
    "redirect-odd": saying(answer(b"", b"Location: http://[::1", status=b"301 Moved")),
    "redirect-away": saying(answer(b"", b"Location: ftp://127.0.0.1/", status=b"307 Away")),
    "redirect-bytes": saying(answer(b"", b"Location: /\xff\xfe\x00", status=b"308 Away")),
    "redirect-ok": saying(answer(b"", b"Location: /ok", status=b"303 Other")),
    "redirect-close": saying(answer(b"", b"Location: /close", b"Connection: close", status=b"302 Found"), closes=True),
    # contents
    "gzip-broken": saying(answer(b"\x1f\x8b" + bytes(50), b"Content-Encoding: gzip")),
    "gzip-half": saying(answer(GZIP[:20], b"Content-Encoding: gzip")),
    "gzip-bomb": saying(answer(BOMB, b"Content-Encoding: gzip")),
    "gzip-twice": saying(answer(gzip.compress(GZIP, mtime=0), b"Content-Encoding: gzip, gzip")),
    "deflate": saying(answer(zlib.compress(b"ok"), b"Content-Encoding: deflate")),
    "encoding-unknown": saying(answer(b"ok", b"Content-Encoding: cow")),
    "charset-odd": saying(answer(b"a" * 2000 + b"-", b"Content-Type: text/plain; charset=punycode")),
    "charset-none": saying(answer(b"\xff\xfe\x00", b"Content-Type: text/plain; charset=none")),
    "json-broken": saying(answer(b'{"a": [', b"Content-Type: application/json")),
    "json-deep": saying(answer(b"[" * 100_000, b"Content-Type: application/json")),
    "json-bytes": saying(answer(b'"\xff\xfe"', b"Content-Type: application/json")),
}


async def serve(peer: Peer) -> None:
    """Requests of one connection, until it is closed."""
    try:
        while peer.keeps:
            head = await peer.reader.readuntil(b"\r\n\r\n")
            name = head.split(b" ", 2)[1].decode("latin-1").strip("/").partition("?")[0]
            if b"content-length" in head.lower() and peer.rng.random() < 0.5:
                await peer.reader.read(peer.rng.randint(1, 100_000))  # some of the body; the rest is never read
                peer.keeps = False
            keeps = peer.keeps
            await BEHAVIOURS.get(name, BEHAVIOURS["ok"])(peer)
            peer.keeps = peer.keeps and keeps
    except (OSError, EOFError, asyncio.LimitOverrunError, ssl.SSLError, asyncio.CancelledError):
        pass  # cancelled only when everything ends
    finally:
        peer.writer.close()


async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: Random) -> None:
    """Does not wait for a request: an answer, garbage, a reset or an end, at once."""
    peer = Peer(reader, writer, rng)
    kind = rng.randrange(4)
    try:
        if kind == 0:
            await peer.say(OK)
        elif kind == 1:
            await peer.say(rng.randbytes(50))
        elif kind == 2:
            peer.reset()
        await asyncio.sleep(rng.random() * 0.01)
    except (OSError, asyncio.CancelledError):
        pass
    finally:
        writer.close()
