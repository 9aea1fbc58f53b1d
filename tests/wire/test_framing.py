import tracemalloc
import zlib
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire.framing import (
    COMPRESSED_FROM_BYTES,
    DECOMPRESSED_LIMIT_BYTES,
    FRAME_LIMIT_BYTES,
    GRACE_BYTES,
    HEADER_BYTES,
    PROBE_BYTES,
    RATIO_LIMIT,
    BadContent,
    Deframer,
    FrameTooLong,
    framed,
    packed,
    unpacked,
)

quick = settings(deadline=None, derandomize=True, max_examples=150)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in cuts)
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def test_a_frame_is_four_bytes_of_length_and_then_its_content() -> None:
    assert framed(b"hello") == b"\x00\x00\x00\x05hello"
    assert framed(b"") == b"\x00\x00\x00\x00"


@given(contents=st.lists(st.binary(max_size=300), max_size=6), cuts=st.lists(st.integers(min_value=0), max_size=8))
@quick
def test_wherever_the_stream_is_cut_the_frames_are_the_same(contents: list[bytes], cuts: list[int]) -> None:
    deframer = Deframer()
    stream = b"".join(framed(content) for content in contents)

    assert [frame for part in cut(stream, cuts) for frame in deframer.feed(part)] == contents


def test_byte_by_byte_a_frame_appears_with_its_last_byte() -> None:
    deframer = Deframer()
    *before, last = [deframer.feed(bytes([byte])) for byte in framed(b"hello")]

    assert before == [[]] * 8
    assert last == [b"hello"]


def test_the_largest_frame_passes() -> None:
    largest = bytes(FRAME_LIMIT_BYTES)

    assert Deframer().feed(framed(largest)) == [largest]


def test_a_longer_frame_is_not_sent() -> None:
    with pytest.raises(FrameTooLong) as refused:
        framed(bytes(FRAME_LIMIT_BYTES + 1))

    assert (refused.value.size_bytes, refused.value.reason) == (FRAME_LIMIT_BYTES + 1, "too-long")
    assert str(refused.value) == "a frame of 1048577 bytes is over the limit of 1048576"


@pytest.mark.parametrize("size_bytes", [FRAME_LIMIT_BYTES + 1, 2**32 - 1])
def test_a_frame_that_says_it_is_longer_is_refused_by_its_header_alone(size_bytes: int) -> None:
    deframer = Deframer()
    header = size_bytes.to_bytes(HEADER_BYTES, "big")

    assert deframer.feed(header[:3]) == []
    with pytest.raises(FrameTooLong):
        deframer.feed(header[3:])


def test_a_stranger_has_a_lower_limit_until_it_is_lifted() -> None:
    deframer = Deframer(limit_bytes=5)

    assert deframer.feed(framed(b"hello")) == [b"hello"]
    with pytest.raises(FrameTooLong, match="^a frame of 6 bytes is over the limit of 5$"):
        deframer.feed(framed(b"hello!"))
    deframer.lift()
    assert deframer.feed(framed(b"again")) == [b"hello!", b"again"]


def test_a_stream_that_was_refused_stays_refused() -> None:
    deframer = Deframer()
    for data in (b"\xff\xff\xff\xff", framed(b"hello")):
        with pytest.raises(Untrusted):
            deframer.feed(data)


@given(parts=st.lists(st.binary(max_size=64), max_size=8))
@quick
def test_no_bytes_at_all_raise_anything_but_untrusted(parts: list[bytes]) -> None:
    deframer = Deframer()
    try:
        frames = [frame for part in parts for frame in deframer.feed(part)]
    except Untrusted:
        return
    stream = b"".join(parts)
    assert stream.startswith(b"".join(framed(frame) for frame in frames))


# -- compression


def text_of(size_bytes: int) -> bytes:
    """Text of a kind that compresses to about a third."""
    rng = Random(size_bytes)
    return b"".join(b"member %d is alive\n" % rng.getrandbits(32) for _ in range(size_bytes // 15))[:size_bytes]


def compressed_to(size_bytes: int, compressed_bytes: int) -> bytes:
    """A packed content of zeros and noise: `size_bytes` long, and exactly `compressed_bytes` when compressed."""
    noise = Random(1).randbytes(compressed_bytes)
    low, high = 0, compressed_bytes
    while low < high:
        middle = (low + high) // 2
        if len(zlib.compress(noise[:middle] + bytes(size_bytes - middle), 9)) < compressed_bytes:
            low = middle + 1
        else:
            high = middle
    result = zlib.compress(noise[:low] + bytes(size_bytes - low), 9)
    assert len(result) == compressed_bytes
    return b"\x01" + result


def refusal_of(data: bytes) -> tuple[str, str]:
    with pytest.raises(BadContent) as refused:
        unpacked(data)
    assert isinstance(refused.value, Untrusted)
    return refused.value.reason, str(refused.value)


def test_short_contents_are_sent_as_they_are() -> None:
    assert packed(b"") == b"\x00"
    assert packed(bytes(COMPRESSED_FROM_BYTES)) == b"\x00" + bytes(COMPRESSED_FROM_BYTES)


def test_long_contents_are_compressed_when_they_get_shorter() -> None:
    text, noise = text_of(COMPRESSED_FROM_BYTES + 1), Random(1).randbytes(COMPRESSED_FROM_BYTES + 1)

    assert packed(text)[:1] == b"\x01"
    assert len(packed(text)) < len(text) / 2
    assert packed(noise) == b"\x00" + noise


def test_what_gets_only_a_little_shorter_is_sent_as_it_is() -> None:
    rng = Random(1)
    histogram = msgspec.msgpack.encode({index: 1 + rng.getrandbits(6) for index in range(3000, 6000)})
    assert len(histogram) * 0.5 < len(zlib.compress(histogram, 1)) < len(histogram) * 0.8

    assert packed(histogram) == b"\x00" + histogram


def test_the_middle_of_a_content_says_whether_it_is_worth_compressing() -> None:
    noise, text = Random(1).randbytes(20_000), text_of(PROBE_BYTES)

    assert packed(text_of(20_000) + noise[:PROBE_BYTES] + text_of(20_000))[:1] == b"\x00"
    assert packed(noise + text + noise)[:1] == b"\x01"


def test_what_might_not_fit_a_frame_is_compressed_however_little_that_helps() -> None:
    noise, text = Random(1).randbytes(FRAME_LIMIT_BYTES // 2 - 10_000), text_of(10_000)

    assert packed(text + noise)[:1] == b"\x00"
    assert packed(text + noise + b"!")[:1] == b"\x01"


@pytest.mark.parametrize("size_bytes", [GRACE_BYTES, GRACE_BYTES + 1, FRAME_LIMIT_BYTES - 1, 5_000_000])
def test_what_nobody_would_open_is_not_compressed(size_bytes: int) -> None:
    monotonous = bytes(size_bytes)

    assert packed(monotonous)[0] == (1 if size_bytes <= GRACE_BYTES else 0)
    assert unpacked(packed(monotonous)) == monotonous


@given(content=st.binary(max_size=300), times=st.integers(1, 200))
@quick
def test_what_is_packed_is_unpacked_to_the_same(content: bytes, times: int) -> None:
    assert unpacked(packed(content * times)) == content * times


def test_contents_of_many_steps_come_out_whole() -> None:
    text = text_of(3_500_000)

    assert packed(text)[:1] == b"\x01"
    assert unpacked(packed(text)) == text


def test_a_content_over_the_limit_is_not_packed() -> None:
    with pytest.raises(BadContent, match="^a content of 52428801 bytes is over the limit of 52428800$") as refused:
        packed(bytes(DECOMPRESSED_LIMIT_BYTES + 1))

    assert refused.value.reason == "too-long"


def test_a_ratio_of_a_hundred_is_taken_and_no_more() -> None:
    compressed_bytes = 2000
    largest = RATIO_LIMIT * compressed_bytes

    assert len(unpacked(compressed_to(largest, compressed_bytes))) == largest
    assert refusal_of(compressed_to(largest + 1, compressed_bytes)) == (
        "bomb",
        "a content of 2001 bytes opens to more than the 200000 allowed",
    )


def test_a_little_grace_is_given_to_the_tiny() -> None:
    assert unpacked(b"\x01" + zlib.compress(bytes(GRACE_BYTES), 9)) == bytes(GRACE_BYTES)
    assert refusal_of(b"\x01" + zlib.compress(bytes(GRACE_BYTES + 1), 9))[0] == "bomb"


def test_a_bomb_is_opened_to_the_first_byte_too_many_and_no_further() -> None:
    spoilt_end = zlib.compress(bytes(GRACE_BYTES + 2), 9)[:-4] + bytes(4)

    assert refusal_of(b"\x01" + spoilt_end)[0] == "bomb"


def test_fifty_megabytes_are_too_long_at_any_ratio() -> None:
    noise = Random(1).randbytes(DECOMPRESSED_LIMIT_BYTES // RATIO_LIMIT + 1)
    longest = noise + bytes(DECOMPRESSED_LIMIT_BYTES - len(noise))

    assert len(unpacked(b"\x01" + zlib.compress(longest, 1))) == DECOMPRESSED_LIMIT_BYTES
    assert refusal_of(b"\x01" + zlib.compress(longest + b"\x00", 1))[0] == "too-long"


def test_a_bomb_is_given_up_before_it_fills_the_memory() -> None:
    bomb = b"\x01" + zlib.compress(bytes(100_000_000), 9)
    allowed = RATIO_LIMIT * len(bomb)
    tracemalloc.start()
    try:
        assert refusal_of(bomb)[0] == "bomb"
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < allowed + 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "a content is of no known kind: it begins with nothing"),
        (b"\x02hello", "a content is of no known kind: it begins with 02"),
        (b"\x01", "a compressed content ends too early"),
        (b"\x01hello", "a content was not compressed as it says: "),
        (packed(text_of(30_000))[:-1], "a compressed content ends too early"),
        (packed(text_of(30_000))[:1500], "a compressed content ends too early"),
        (packed(text_of(30_000)) + b"more", "4 bytes follow a compressed content"),
        (packed(text_of(30_000))[:-4] + bytes(4), "a content was not compressed as it says: "),
        (packed(text_of(30_000)) + packed(text_of(30_000))[1:], " bytes follow a compressed content"),
    ],
    ids=[
        "nothing",
        "another kind",
        "no stream",
        "no zlib",
        "a byte short",
        "a part",
        "more",
        "a wrong sum",
        "a second",
    ],
)
def test_contents_that_are_not_whole_are_malformed(data: bytes, sentence: str) -> None:
    reason, text = refusal_of(data)

    assert reason == "malformed"
    assert sentence in text


@given(data=st.data())
@quick
def test_spoilt_contents_raise_nothing_but_untrusted(data: st.DataObject) -> None:
    content = bytearray(packed(text_of(5000)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpacked(bytes(content))
    except Untrusted:
        pass
