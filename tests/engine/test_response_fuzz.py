"""Both engines come to the same verdict on whatever a server sends; `make fuzz` sends much more of it."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("talka._native", reason="the native engine is not built here")

from talka.engine.clients.connection import MAX_HEAD_BYTES
from tests.engine import response_fuzz as fuzz
from tests.engine.response_fuzz import WAITING, Case, NativeEngine, PureEngine, Verdict

ROOT = Path(__file__).parents[2]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NOT_HTTP = Verdict("protocol", "not HTTP/1.1")
MORE = Verdict("protocol", "the server sent more than the answer")
BODY_TO_HEAD = Verdict("protocol", "the server sent a body in answer to HEAD")
CUT = Verdict("reset", "the server closed the connection in the middle of its answer")
Feed = Callable[[Case], Verdict]


@pytest.fixture(params=["python", "native"])
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    loop = asyncio.new_event_loop()
    yield (PureEngine(loop) if request.param == "python" else NativeEngine()).feed
    loop.close()


def answer(status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, keeps: bool) -> Verdict:
    return Verdict("answer", (status, headers, body), keeps)


# The verdicts that were decided on; the fuzzer only says that both engines share them.


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (OK, answer(200, [(b"Content-Length", b"2")], b"ok", keeps=True)),
        (OK + b"\r\n", answer(200, [(b"Content-Length", b"2")], b"ok", keeps=True)),
        (OK + b"x", MORE),
        (OK + OK, MORE),
        (OK[:-1], WAITING),
        (b"", WAITING),
        (
            CHUNKED + b'2;a="\\""\r\nok\r\n00\r\nLocation: /x\r\n\r\n',
            answer(200, [(b"Transfer-Encoding", b"chunked")], b"ok", keeps=True),
        ),
        (
            CHUNKED + b"0\r\nConnection: close\r\n\r\n",
            answer(200, [(b"Transfer-Encoding", b"chunked")], b"", keeps=False),
        ),
        (CHUNKED + b"2 \r\nok\r\n0\r\n\r\n", NOT_HTTP),
        (CHUNKED + b"10000000000000000\r\n", NOT_HTTP),
        (CHUNKED + b"2\r\nokay\r\n", NOT_HTTP),
        (CHUNKED + b"0\r\nContent-Length: 2\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", answer(204, [(b"Content-Length", b"9")], b"", keeps=True)),
        (b"HTTP/1.0 204 No\r\n\r\n", answer(204, [], b"", keeps=False)),
        (b"HTTP/1.1 100 Go\r\nA: b\r\n\r\n" + OK, answer(200, [(b"Content-Length", b"2")], b"ok", keeps=True)),
        (b"HTTP/1.1 103 Hints\r\nContent-Length: 9\r\n\r\n" + OK[:9], WAITING),
        (b"HTTP/1.1 104 What\r\nContent-Length: 9\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 199 What\r\nTransfer-Encoding: gzip\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 100 Go\r\nConnection: close\r\n\r\n" + OK, NOT_HTTP),
        (
            b"HTTP/1.1 101 Switching\r\n\r\n",
            Verdict("protocol", "the server switched to another protocol (101), which nobody asked for"),
        ),
        (b"HTTP/1.1 099 Low\r\n\r\n", NOT_HTTP),
        (OK.replace(b"2\r\n", b"2\r\nContent-Length: 2\r\n", 1), NOT_HTTP),
        (OK.replace(b"2\r\n", b"2\r\nTransfer-Encoding: chunked\r\n", 1), NOT_HTTP),
        (OK.replace(b": 2", b": 2, 2"), NOT_HTTP),
        (OK.replace(b": 2", b": 18446744073709551616"), NOT_HTTP),
        (OK.replace(b": 2", b" : 2"), NOT_HTTP),
        (OK.replace(b"\r\n", b"\n"), NOT_HTTP),
        (OK.replace(b": 2\r\n", b": 2\r\nX: y\r\n z\r\n"), NOT_HTTP),
        (OK.replace(b": 2\r\n", b": 2\r\nX: \0\r\n"), NOT_HTTP),
    ],
)
def test_an_answer_gets_the_verdict_that_was_decided_on_wherever_it_is_split(
    feed: Feed, data: bytes, verdict: Verdict
) -> None:
    assert feed(Case("", (data,) if data else ())) == verdict
    if verdict.outcome != "protocol":  # which may be seen before the last byte
        for place in range(1, len(data)):
            got = feed(Case("", (data[:place], data[place:])))
            # What is behind the end in a read of its own is the next exchange's affair.
            assert got == verdict or data[place:].strip() == b""
        assert feed(Case("", tuple(data[place : place + 1] for place in range(len(data.rstrip()))))).outcome in (
            verdict.outcome,
            "waiting",
        )


@pytest.mark.parametrize("headers", [b"", b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", CHUNKED[17:-2]])
@pytest.mark.parametrize("behind", [b"\r\n", b"0\r\n\r\n", b"5\r\n", b"x", OK])
def test_nothing_may_follow_the_head_in_answer_to_head(feed: Feed, headers: bytes, behind: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n"
    assert feed(Case("", (head,), "HEAD")).outcome == "answer"
    assert feed(Case("", (head[:-1], head[-1:]), "HEAD")).outcome == "answer"
    assert feed(Case("", (head + behind,), "HEAD")) == BODY_TO_HEAD
    assert feed(Case("", (head[:-1], head[-1:] + behind), "HEAD")) == BODY_TO_HEAD


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nok", answer(200, [], b"ok", keeps=False)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
            answer(200, [(b"Transfer-Encoding", b"gzip")], b"ok", keeps=False),
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\nok", CUT),
        (OK[:-1], CUT),
        (CHUNKED + b"2\r\nok\r\n", CUT),
        (b"HTTP/1.1 100 Go\r\n\r\n", CUT),
        (b"\r\n", CUT),
        (b"", Verdict("reset", "the server closed the connection without an answer")),
    ],
)
def test_the_end_of_the_connection_ends_only_a_body_that_has_no_other_end(
    feed: Feed, data: bytes, verdict: Verdict
) -> None:
    assert feed(Case("", (data,) if data else (), closes=True)) == verdict


def test_limits_of_head_framing_and_body_are_the_same(feed: Feed) -> None:
    line = b"X: " + b"x" * 995 + b"\r\n"
    head = Verdict("protocol", "the answer's head is larger than 65536 bytes")
    assert feed(Case("", (b"HTTP/1.1 200 OK\r\n" + line * 70,))) == head
    assert feed(Case("", (b"HTTP/1.1 200 OK\r\n" + line * 70 + b"Content-Length: 0\r\n\r\n",))) == head
    assert feed(Case("", (b"HTTP/1.1 100 Go\r\n\r\n" * 4000,))) == head
    framing = Verdict("protocol", "what stands between or behind its chunks is larger than 65536 bytes")
    assert feed(Case("", (CHUNKED + b"2\r\nok\r\n", b"0\r\n" + line * 70))) == framing
    assert feed(Case("", (CHUNKED, b"2;" + b"x" * MAX_HEAD_BYTES))) == framing
    body = Verdict("protocol", "the answer's body is larger than 10 bytes")
    long = OK.replace(b"2\r\n\r\nok", b"11\r\n\r\nhello hello")
    for data in (CHUNKED + b"b\r\nhello hello\r\n0\r\n\r\n", CHUNKED + b"b\r\nhello hello", long):
        assert feed(Case("", (data,), max_body=10)) == body
        assert feed(Case("", (data,), max_body=11)) != body
    # So much framing around a byte each is no body, though neither it nor any one part of the rest is too large.
    slow = (CHUNKED, *[b"1;" + b"x" * 7000 + b"\r\ny", b"\r\n"] * 10)
    assert feed(Case("", slow, max_body=10)) == body
    assert feed(Case("", slow, max_body=1000)) == WAITING


# The native parser's memory.


def test_buffers_are_kept_for_the_next_answer_unless_they_are_large() -> None:
    from talka import _native

    parser = _native.Parser()
    parser.feed(OK)
    small = parser.capacity
    assert 0 < small < 1000
    parser.begin()
    parser.feed(OK)
    assert parser.capacity == small
    parser.begin()
    assert parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000) == 1
    assert parser.capacity > 300_000
    parser.begin()
    assert parser.capacity <= small


def test_a_length_that_is_only_announced_takes_little_memory() -> None:
    from talka import _native

    parser = _native.Parser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\nx")
    assert parser.capacity < 1_000_000


# Fuzzing.


def test_both_engines_agree_on_fifty_thousand_answers() -> None:
    report = fuzz.run(50_000, seed=1)

    assert report.faults == []
    assert report.fault_count == 0
    assert report.final_kib - report.early_kib <= fuzz.GROWTH_LIMIT_KIB
    assert set(report.kinds) == set(fuzz.Fuzzer(1).kinds)
    for outcome in ("answer", "protocol", "reset", "waiting"):
        assert report.outcomes[outcome] > 1000, f"{outcome} was hardly reached"


def test_a_verdict_of_one_engine_alone_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = NativeEngine.feed
    monkeypatch.setattr(NativeEngine, "feed", lambda self, case: feed(self, case)._replace(keeps=False))

    report = fuzz.run(200, seed=1)

    assert report.fault_count > 0
    assert "keeps=True, the native one answer" in report.faults[0]


def test_the_same_seed_makes_the_same_answers() -> None:
    assert list(fuzz.Fuzzer(3).cases(500)) == list(fuzz.Fuzzer(3).cases(500))
    assert list(fuzz.Fuzzer(3).cases(500)) != list(fuzz.Fuzzer(4).cases(500))


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parser without Python, in a program that ends at the first byte it may not touch and tells what it leaks."""
    program = tmp_path_factory.mktemp("sanitized") / "native_fuzz"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = (ROOT / "tests" / "engine" / "native_fuzz.c", ROOT / "native" / "parser.c")
    command: list[Any] = [*compiler.split(), "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *sanitizers]
    probe = program.with_suffix(".c")
    probe.write_text("int main(void) { return 0; }")
    if subprocess.run([*command, probe, "-o", program], capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    subprocess.run([*command, "-I", ROOT / "native", *sources, "-o", program], check=True)
    return program


def test_the_parser_touches_no_byte_that_is_not_its_own_and_leaks_none(sanitized: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    with corpus.open("wb") as file:
        outcomes = fuzz.write_corpus(50_000, 2, file)

    options = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [sanitized, corpus], capture_output=True, text=True, check=False, timeout=100, env={**os.environ, **options}
    )

    assert done.stderr == ""
    assert done.returncode == 0
    assert dict(line.split() for line in done.stdout.splitlines()) == {
        outcome: str(count) for outcome, count in outcomes.items()
    }
