"""The end of what an attempt wrote, as it is kept and told."""

import msgspec
import pytest

from talka.wire.output_tail import STREAM_LIMIT_BYTES, OutputTail, StreamTail, tails_bytes


def test_the_last_bytes_are_kept_and_all_are_counted() -> None:
    tail = OutputTail(limit=4)
    for content in (b"ab", b"cd", b"e", b"123456"):
        tail.write(content)
        assert len(tail) <= 4
    assert tail.all("stdout") == StreamTail("stdout", b"3456", 11)
    assert tail.all("stdout", 2) == StreamTail("stdout", b"56", 11)


def test_of_a_stream_64_kib_are_kept() -> None:
    tail = OutputTail()
    tail.write(b"-" + b"a" * 40_000)
    tail.write(b"b" * 25_536)
    assert tail.all("stderr") == StreamTail("stderr", b"a" * 40_000 + b"b" * 25_536, 65_537)


def test_what_is_new_is_told_once() -> None:
    tail = OutputTail(limit=4)
    assert tail.fresh("stderr") is None
    tail.write(b"abc")
    assert tail.fresh("stderr") == StreamTail("stderr", b"abc", 3)
    assert tail.fresh("stderr") is None
    tail.write(b"d")
    assert tail.fresh("stderr") == StreamTail("stderr", b"d", 4)
    tail.write(b"0123456789")
    assert tail.fresh("stderr") == StreamTail("stderr", b"6789", 14), "what is not kept is not told"


def test_whoever_is_told_all_that_is_new_has_the_same_end() -> None:
    here, there = OutputTail(limit=6), OutputTail(limit=6)
    for content in (b"abc", b"", b"defgh", b"i"):
        here.write(content)
        fresh = here.fresh("stdout")
        if fresh is not None:
            there.take(fresh)
    assert there.all("stdout") == here.all("stdout") == StreamTail("stdout", b"defghi", 9)


def test_what_is_kept_has_no_holes() -> None:
    tail = OutputTail(limit=8)
    tail.take(StreamTail("stdout", b"abc", 3))
    tail.take(StreamTail("stdout", b"xy", 9))  # four bytes in between never came
    assert tail.all("stdout") == StreamTail("stdout", b"xy", 9)


def test_a_tail_beyond_the_limit_is_not_read() -> None:
    content = msgspec.msgpack.encode(StreamTail("stdout", b"x" * (STREAM_LIMIT_BYTES + 1), STREAM_LIMIT_BYTES + 1))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(content, type=StreamTail)


def test_bytes_of_tails_are_those_of_their_contents() -> None:
    assert tails_bytes((StreamTail("stdout", b"abc", 9), StreamTail("stderr", b"de", 2))) == 5
