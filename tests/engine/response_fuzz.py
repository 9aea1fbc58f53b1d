"""Answers that nobody should send, through both engines: `python -m tests.engine.response_fuzz --answers 1000000`.

Each engine gets the same reads of the same connection through one `feed`, and both must come to the same verdict: an
answer with the same status, headers, body and keep-alive; an error of the same kind; a connection that broke; or the
wait for more. The same seed makes the same answers.
"""

import argparse
import asyncio
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from talka.engine.calls import ExchangeFailed
from talka.engine.clients.connection import MAX_BODY_BYTES, MAX_HEAD_BYTES, Connection, Pool, SharedPool
from talka.engine.clients.requests import serialise
from talka.engine.clients.urls import parse_url
from talka.engine.load import native
from talka.stats.tally import Exchanges

GROWTH_LIMIT_KIB: Final = 16 * 1024
"""How much the memory may grow after the first tenth of the answers."""
CAPACITY_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""What the native parser may hold at once: no answer here is longer than a million bytes."""
FAULTS_SHOWN: Final = 20
SMALL_BODY_BYTES: Final = 1000
URL: Final = parse_url("http://h/")
REQUESTS: Final = {method: serialise(method, URL, "t") for method in ("GET", "HEAD")}
FAR: Final = 1 << 62
"""A deadline that never comes."""


class Case(NamedTuple):
    kind: str
    reads: tuple[bytes, ...]
    method: str = "GET"
    closes: bool = False
    """The server closes its side behind the last read."""
    max_body: int = MAX_BODY_BYTES


class Verdict(NamedTuple):
    outcome: str
    """answer, protocol, reset or waiting"""
    facts: Any = None
    """Of an answer its parts, of an error its sentence. What is not HTTP/1.1 is so in each engine's own words."""
    keeps: bool = False


WAITING: Final = Verdict("waiting")


def failed(kind: str, sentence: str) -> Verdict:
    return Verdict(kind, "not HTTP/1.1" if sentence.startswith("the answer is not HTTP/1.1: ") else sentence)


# -- one seam for both


class Engine(Protocol):
    def feed(self, case: Case) -> Verdict: ...


class Transport(asyncio.Transport):
    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass


class Socket:
    def send(self, payload: bytes) -> int:
        return len(payload)


class PureEngine:
    """The connection of the engine in Python, kept as long as the answers allow."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = SharedPool(loop, Exchanges())
        self._connection: Connection | None = None

    def feed(self, case: Case) -> Verdict:
        shared = self._shared
        shared.max_body_bytes = case.max_body
        connection = self._connection
        if connection is None or not connection.is_open:
            self._leave()
            connection = self._connection = Connection(shared, Pool(), Socket())  # type: ignore[arg-type]
            connection.connection_made(Transport())
        waiter = connection.send(REQUESTS[case.method], FAR, FAR)
        for read in case.reads:
            shared.receive_buffer[: len(read)] = read
            connection.buffer_updated(len(read))
            if waiter.done():
                break
        else:
            if case.closes:
                connection.eof_received()
        if not waiter.done():
            self._leave()
            waiter.cancel()
            return WAITING
        error = waiter.exception()
        if error is None:
            response = waiter.result()
            return Verdict(
                "answer", (response.status, response.raw_headers, bytes(response.body)), keeps=connection.is_open
            )
        assert isinstance(error, ExchangeFailed)
        return failed(error.kind, str(error).removeprefix(f"{case.method} {URL}: "))

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.waiter = None
            self._connection.connection_lost(None)
            self._connection = None


class NativeEngine:
    """The parser of the engine in C, with one set of buffers for all answers."""

    def __init__(self) -> None:
        from talka import _native

        self._parser = _native.Parser()
        self.capacity = 0

    def feed(self, case: Case) -> Verdict:
        parser = self._parser
        parser.begin(is_head=case.method == "HEAD", max_body=case.max_body)
        verdict = 0
        for read in case.reads:
            verdict = parser.feed(read)
            if verdict:
                break
        else:
            if case.closes:
                verdict = parser.end()
        self.capacity = parser.capacity
        if not verdict:
            return WAITING
        if verdict < 0:
            assert parser.answer is None
            return failed(*parser.error)
        status, headers, body, keeps = parser.answer
        names = {name.lower() for name, _ in headers}
        marks = tuple(name in names for name in (b"set-cookie", b"location", b"content-encoding"))
        assert parser.marks == marks, f"{parser.marks} marked, {marks} there"
        return Verdict("answer", (status, headers, body), keeps=keeps)


# -- answers, good and bad

STATUS_LINES: Final = (
    *[b"HTTP/1.1 200 OK"] * 12, b"HTTP/1.1 404 Not Found", b"HTTP/1.1 500", b"HTTP/1.1 302 Found", b"HTTP/1.1 204 No",
    b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 200 OK", b"HTTP/1.1 205 Reset", b"HTTP/1.1 200 ", b"HTTP/1.1 999 \xff\x01",
    b"HTTP/1.0 204 No", b"HTTP/1.1 600 x",
)  # fmt: skip
ODD_STATUS_LINES: Final = (
    b"HTTP/0.9 200 OK", b"HTTP/2.0 200 OK", b"HTTP/1.2 200 OK", b"HTTP/3.0 200", b"HTTP/11.1 200 OK", b"HTTP/1.11 200",
    b"http/1.1 200 OK", b"RTSP/1.0 200 OK", b"ICE/1.1 200 OK", b"ICY 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 20 OK",
    b"HTTP/1.1 2000 OK", b"HTTP/1.1 000 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 -20 OK", b"HTTP/1.1 2e2 OK", b"HTTP/1.1",
    b"HTTP/1.1 ", b"HTTP/1.1\t200 OK", b"HTTP/1.1 200OK", b"HTTP/1.1 200\tOK", b" HTTP/1.1 200 OK", b"HTTP /1.1 200 OK",
    b"\r\nHTTP/1.1 200 OK", b"\n\rHTTP/1.1 200 OK", b"\0HTTP/1.1 200 OK", b"HTTP/1.1 200 O\0K", b"HTTP/-1.1 200 OK",
    b"HTTP/1.1 101 Switching", b"HTTP/1.1 200 OK\r", b"GET / HTTP/1.1", b"", b"HTTP/1.1 100 Continue", b"HTTP/1,1 200",
)  # fmt: skip
INTERIM: Final = (
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nSet-Cookie: a=b\r\n\r\n",
    b"HTTP/1.1 102 \r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 199 x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n", b"HTTP/1.0 100 Continue\r\n\r\n",
    b"HTTP/1.0 100 Continue\r\nConnection: keep-alive\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"\r\n", b"HTTP/1.1 100 Continue\n\n",
)  # fmt: skip
HEADERS: Final = (
    b"Server: nginx", b"Date: Thu, 01 Jan 1970 00:00:00 GMT", b"Content-Type: text/plain", b"X: ", b"X:y", b"X:\t y \t",
    b"Connection: keep-alive", b"connection: KEEP-ALIVE", b"Set-Cookie: a=b; Path=/", b"SET-COOKIE: c=d",
    b"Location: /elsewhere", b"Content-Encoding: gzip", b"ETag: \"x\"", b"X-\xc3\xa4: y", b"X: \xe4\xff",
    b"Upgrade: h2c",
    b"Connection: close", b"Connection: x, close", b"Proxy-Connection: keep-alive",
)  # fmt: skip
ODD_HEADERS: Final = (
    b"Connection: close\t", b"Connection: ,close,", b"Connection: closed", b"Connection: close x", b"Connection:",
    b"Connection: keep-alive, close", b"Connection:\tclose", b"CONNECTION: Close", b"Connection: upgrade",
    b"Connection: keep-alive\t,x", b"Proxy-Connection: close", b"Connection: c lose", b"Connectio: close",
    b"X : y", b" X: y", b"\tX: y", b": y", b"X", b"X\0: y", b"X: y\0z", b"X: y\x7f", b"X: y\x0bz", b"(X): y",
    b"X: y\rz",
    b"X: y\r\n z", b"X: y\r\n\tz", b"X:\r\n z", b"X: y\nZ: z", b"X: y\r\r", b"X\r\n: y", b"X:: y", b"X: y\r\n ",
    b"Content-Length: 0", b"Content-Length: 5", b"content-length: 5", b"Content-Length: 5, 5", b"Content-Length: +5",
    b"Content-Length: -5", b"Content-Length: 0x5", b"Content-Length: 5 5", b"Content-Length:", b"Content-Length: ",
    b"Content-Length: 18446744073709551615", b"Content-Length: 18446744073709551616", b"Content-Length: 9" + b"9" * 40,
    b"Content-Length: 0000000000000000000000005", b"Content-Length: 5 \t", b"Content-Length : 5",
    b"Content-Length: 5\0",
    b"Content-Lengt: 5", b"Content-Lengthy: 5", b"Content-Length: 5\r\n ", b"Content-Length: 5\r\n 5",
    b"Content-Length:\t5",
    b"Transfer-Encoding: chunked", b"TRANSFER-ENCODING: CHUNKED", b"Transfer-Encoding: gzip", b"Transfer-Encoding: ",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding: chunked,", b"Transfer-Encoding: ,chunked", b"Transfer-Encoding: chunked ;q=1",
    b"Transfer-Encoding: chunked \t", b"Transfer-Encoding: chunked\t ", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunkedx", b"Transfer-Encoding: chunk ed", b"Transfer-Encoding: chunked chunked",
    b"Transfer-Encoding: gzip,\tchunked", b"Transfer-Encoding: gzip\tchunked", b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: chunked\r\n ", b"Transfer-Encoding : chunked", b"Transfer-Encoding: \"chunked\"",
    b"Transfer-Encoding: chunked , chunked", b"Transfer-Encoding:", b"Transfer-Encoding: ,", b"Transfer-Encoding: x,,",
)  # fmt: skip
SIZES: Final = (
    b"0x5", b"-5", b"+5", b" 5", b"5 ", b"", b"g", b"5g", b"ffffffffffffffff", b"10000000000000000", b"f" * 40,
    b"7fffffffffffffff", b"0" * 30 + b"5", b"5;", b"5;;", b"5;a;", b"5; a", b"5;a =b", b"5;a=b c", b'5;a="b', b"5\0",
    b'5;a="b"c', b'5;a="\\', b'5;a="\n"', b"5;\xff", b'5;a="\x7f"', b'5;a=b"c"', b"5;=", b"5;=b", b"5,5", b"5\t",
)  # fmt: skip
EXTENSIONS: Final = (b"", b"", b"", b"", b";a", b";a=b", b';a="b c"', b';a="\\"";b', b";a=", b";a=b;c=d", b';a="\xff"')
TRAILERS: Final = (
    b"T: u\r\n", b"Connection: close\r\n", b"Transfer-Encoding: x\r\n", b"Set-Cookie: a=b\r\n", b"Location: /x\r\n",
    b"Content-Length: 5\r\n", b"T : u\r\n", b"T: u\r\n v\r\n", b"Transfer-Encoding: chunked\r\n", b"T\r\n", b"T:\n",
    b"Content-Encoding: gzip\r\n",
)  # fmt: skip
LINE_ENDS: Final = (b"\n", b"\r", b"\r\r\n", b"\n\r", b" \r\n", b"\r\n\r\n", b"\0\r\n", b"\r \n")
BEHIND: Final = (
    b"\r\n", b"\n\n", b"x", b"\0", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"0\r\n\r\n", b"HTTP/1.1 ",
    b"\r\nx",
    b"5\r\nhello\r\n",
)  # fmt: skip
PIECES: Final = (
    *LINE_ENDS, *BEHIND, b"\r\n", b"\r\n\r\n", b":", b" ", b"\t", b",", b";", b"\"", b"\xff", b"\x80\x80", b"\x7f",
    b"0", b"9",
    b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"chunked", b"close", b"1\r\nx\r\n", b"0\r\n", b"=", b"\\",
)  # fmt: skip


class Fuzzer:
    """Makes answers, one after the other, of every kind in turn of chance."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"answers:{seed}")
        # What most servers send is tried as well, and often: state left behind by it would spoil the next answer.
        self.kinds: dict[str, tuple[int, Callable[[], bytes]]] = {
            "good": (20, lambda: self._answer(odd=0)),
            "odd": (25, lambda: self._answer(odd=0.2)),
            "very odd": (10, lambda: self._answer(odd=0.6)),
            "spoilt": (25, lambda: self._spoilt(self._answer(odd=0))),
            "odd and spoilt": (10, lambda: self._spoilt(self._answer(odd=0.2))),
            "followed by more": (6, lambda: self._answer(odd=0.02) + self.rng.choice(BEHIND)),
            "random bytes": (3, lambda: self.rng.randbytes(self.rng.getrandbits(6))),
            "large": (1, self._large),
        }

    def cases(self, count: int) -> Iterator[Case]:
        rng = self.rng
        kinds = list(self.kinds)
        weights = [weight for weight, _ in self.kinds.values()]
        for kind in rng.choices(kinds, weights, k=count):
            method = "HEAD" if rng.random() < 0.1 else "GET"
            data = self.kinds[kind][1]()
            if method == "HEAD" and rng.random() < 0.8:
                head, blank, _ = data.rpartition(b"\r\n\r\n")
                data = head + blank
            if rng.random() < 0.15:
                data = data[: rng.randrange(len(data) + 1)]
            # Larger ones than the small limit are among all kinds, so each limit is met at every state.
            max_body = SMALL_BODY_BYTES if rng.random() < 0.1 else MAX_BODY_BYTES
            yield Case(kind, self._split(data), method, rng.random() < 0.4, max_body)

    def _split(self, data: bytes) -> tuple[bytes, ...]:
        rng = self.rng
        chance = rng.random()
        if chance < 0.25 or len(data) < 2:
            cuts: list[int] = []
        elif chance < 0.3 and len(data) < 1000:
            cuts = list(range(1, len(data)))
        else:
            cuts = sorted({rng.randrange(1, len(data)) for _ in range(1 + rng.getrandbits(rng.choice((0, 1, 3))))})
        edges = [0, *cuts, len(data)]
        # No read is longer than the engines' buffers.
        return tuple(
            data[place : min(place + 200_000, end)]
            for start, end in zip(edges, edges[1:], strict=False)
            for place in range(start, end, 200_000)
        )

    def _end(self, odd: float) -> bytes:
        return self.rng.choice(LINE_ENDS) if odd and self.rng.random() < odd / 20 else b"\r\n"

    def _answer(self, odd: float) -> bytes:
        rng = self.rng
        interim = b""
        if rng.random() < 0.08:
            interim = b"".join(rng.choice(INTERIM if odd else INTERIM[:4]) for _ in range(1 + rng.getrandbits(2)))
        first = rng.choice(ODD_STATUS_LINES if rng.random() < odd / 2 else STATUS_LINES)
        headers = [
            rng.choice(HEADERS if odd or rng.random() < 0.2 else HEADERS[:13]) for _ in range(rng.getrandbits(2))
        ]
        while rng.random() < odd:
            headers.insert(rng.randrange(len(headers) + 1), rng.choice(ODD_HEADERS))
        body = b""
        framing = rng.random()
        # One in twenty is larger than the small limit and another than one read of it.
        size = rng.choice((0, 1, 2, 5, 40)) if rng.random() < 0.95 else rng.choice((999, 1000, 1001, 3000))
        if framing < 0.45:
            wrong = rng.choice((-1, 1)) if rng.random() < odd / 5 else 0
            headers.insert(rng.randrange(len(headers) + 1), b"Content-Length: %d" % max(0, size + wrong))
            body = rng.randbytes(size)
        elif framing < 0.8:
            headers.insert(rng.randrange(len(headers) + 1), b"Transfer-Encoding: chunked")
            body = self._chunks(size, odd)
        elif framing < 0.9:
            body = rng.randbytes(size)
        lines = [line + self._end(odd) for line in (first, *headers, b"")]
        return interim + b"".join(lines) + body

    def _chunks(self, size: int, odd: float) -> bytes:
        rng = self.rng
        parts: list[bytes] = []
        while size > 0:
            length = rng.randint(1, size)
            size -= length
            number = b"%x" % length if rng.random() < 0.9 else b"%X" % length
            written = rng.choice(SIZES) if rng.random() < odd / 4 else number + rng.choice(EXTENSIONS)
            parts += [written, self._end(odd), rng.randbytes(length), self._end(odd)]
        parts += [b"0", rng.choice(EXTENSIONS), self._end(odd)]
        while rng.random() < 0.1 + odd / 2:
            parts.append(rng.choice(TRAILERS) if odd else b"T: u\r\n")
        parts.append(self._end(odd))
        return b"".join(parts)

    def _spoilt(self, content: bytes) -> bytes:
        rng = self.rng
        data = bytearray(content)
        for _ in range(1 + rng.getrandbits(1)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(6):
                case 0:
                    if place < len(data):
                        data[place] ^= 1 << rng.getrandbits(3)
                case 1:
                    data[place : place + 1] = bytes([rng.getrandbits(8)])
                case 2:
                    del data[place : place + 1 + rng.getrandbits(3)]
                case 3:
                    data[place:place] = data[place : place + rng.getrandbits(5)]
                case _:
                    piece = rng.choice(PIECES)
                    data[place : place + (len(piece) if rng.random() < 0.3 else 0)] = piece
        return bytes(data)

    def _large(self) -> bytes:
        """Around the limits of the head and of what stands between chunks; some never end."""
        rng = self.rng
        least = MAX_HEAD_BYTES + rng.choice((-20_000, -200, -40, -10, 0, 10, 40, 20_000, 100_000))
        match rng.randrange(8):
            case 0:
                line = b"X: " + b"x" * rng.choice((0, 1, 50, 995)) + b"\r\n"
                head = b"HTTP/1.1 200 OK\r\n" + line * (least // len(line))
                return head + rng.choice((b"", b"Content-Length: 2\r\n\r\nok", b"Content-Length: 0\r\n\r\n"))
            case 1:
                line = b"X:y\r\n"
                return b"HTTP/1.1 200 OK\r\n" + line * (least // len(line)) + b"Content-Length: 0\r\n\r\n"
            case 2:
                value = b"x" * least
                return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + value + rng.choice((b"", b"\r\n\r\n"))
            case 3:
                interim = rng.choice(INTERIM[:4])
                return interim * (least // len(interim)) + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
            case 4:
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
                trailer = b"T: " + b"u" * 500 + b"\r\n"
                return head + b"0\r\n" + trailer * (least // len(trailer)) + rng.choice((b"", b"\r\n"))
            case 5:
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
                return head + b"2;a=" + b"b" * least + rng.choice((b"", b"\r\nok\r\n0\r\n\r\n"))
            case 6:
                head = b"HTTP/1.1 200 OK\r\n" + rng.choice((b"\r\n", b"Content-Length: %d\r\n\r\n" % least))
                return head + b"b" * least
            case _:
                chunk = b"1\r\nx\r\n"
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                return head + chunk * (least // len(chunk)) + b"0\r\n\r\n"


# -- comparing


class Report(NamedTuple):
    kinds: Counter[str]
    outcomes: Counter[str]
    """Of both engines, for they agree."""
    faults: list[str]
    fault_count: int
    early_kib: int
    """The most memory used, after the first tenth of the answers."""
    final_kib: int


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def difference(case: Case, pure: Verdict, native: Verdict, capacity: int) -> str:
    """What is wrong, or nothing."""
    if pure != native:
        return f"the pure engine says {shown(pure)}, the native one {shown(native)}"
    if capacity > CAPACITY_LIMIT_BYTES:
        return f"the native parser holds {capacity} bytes"
    return ""


def shown(verdict: Verdict) -> str:
    return f"{verdict.outcome} {str(verdict.facts)[:300]} keeps={verdict.keeps}"


def run(answers: int, seed: int) -> Report:
    loop = asyncio.new_event_loop()
    try:
        pure, native = PureEngine(loop), NativeEngine()
        kinds: Counter[str] = Counter()
        outcomes: Counter[str] = Counter()
        faults: list[str] = []
        fault_count = early_kib = 0
        for number, case in enumerate(Fuzzer(seed).cases(answers)):
            if number == answers // 10:
                early_kib = peak_kib()
            kinds[case.kind] += 1
            try:
                verdict = native.feed(case)
                expected = pure.feed(case)
                problem = difference(case, expected, verdict, native.capacity)
                outcomes[verdict.outcome] += 1
            except Exception as error:  # noqa: BLE001 - whatever it raises is what is looked for
                problem = f"{type(error).__name__}: {error}"
            if problem:
                fault_count += 1
                if len(faults) < FAULTS_SHOWN:
                    faults.append(f"answer {number} ({case.kind}): {problem}\n  {str(case)[:1500]}")
        return Report(kinds, outcomes, faults, fault_count, early_kib, peak_kib())
    finally:
        loop.close()


def write_corpus(answers: int, seed: int, file: BinaryIO) -> Counter[str]:
    """The same answers for the program that has no Python in it. Returns the verdicts it must come to."""
    native = NativeEngine()
    outcomes: Counter[str] = Counter()
    for case in Fuzzer(seed).cases(answers):
        file.write(struct.pack("<BBII", case.method == "HEAD", case.closes, case.max_body, len(case.reads)))
        for read in case.reads:
            file.write(struct.pack("<I", len(read)) + read)
        outcomes[native.feed(case).outcome] += 1
    return outcomes


def table(report: Report) -> str:
    lines = [f"{'kind of answer':<24} {'answers':>9}"]
    lines += [f"{kind:<24} {count:>9}" for kind, count in sorted(report.kinds.items())]
    lines += ["", f"{'verdict of both':<24} {'times':>9}"]
    lines += [f"{outcome:<24} {count:>9}" for outcome, count in sorted(report.outcomes.items())]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.response_fuzz", description=__doc__)
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="only write the answers to this file, and print their verdicts")
    options = parser.parse_args(arguments)
    if (obstacle := native.available()) is not None:
        sys.stdout.write(f"there is no native engine to compare with: {obstacle}\n")
        return 0
    if options.corpus:
        with options.corpus.open("wb") as file:
            outcomes = write_corpus(options.answers, options.seed, file)
        sys.stdout.write("".join(f"{outcome} {count}\n" for outcome, count in sorted(outcomes.items())))
        return 0
    started = time.perf_counter()
    report = run(options.answers, options.seed)
    took_s = time.perf_counter() - started
    growth_kib = report.final_kib - report.early_kib
    sys.stdout.write(
        f"{table(report)}\n\n{options.answers} answers of seed {options.seed} in {took_s:.1f} s:"
        f" {options.answers / took_s:.0f} a second\n"
        f"memory: {report.early_kib} KiB after the first tenth, {report.final_kib} KiB at the end\n"
    )
    for fault in report.faults:
        sys.stdout.write(f"FAULT in {fault}\n")
    if growth_kib > GROWTH_LIMIT_KIB:
        sys.stdout.write(f"FAULT: the memory grew by {growth_kib} KiB, at most {GROWTH_LIMIT_KIB} are allowed\n")
    sys.stdout.write(f"{report.fault_count} faults\n")
    return 1 if report.fault_count or growth_kib > GROWTH_LIMIT_KIB else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
