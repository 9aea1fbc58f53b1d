import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire.framing import FRAME_LIMIT_BYTES, HEADER_BYTES, Deframer, FrameTooLong, framed

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

    assert refused.value.size_bytes == FRAME_LIMIT_BYTES + 1
    assert str(refused.value) == "a frame of 1048577 bytes is over the limit of 1048576"


@pytest.mark.parametrize("size_bytes", [FRAME_LIMIT_BYTES + 1, 2**32 - 1])
def test_a_frame_that_says_it_is_longer_is_refused_by_its_header_alone(size_bytes: int) -> None:
    deframer = Deframer()
    header = size_bytes.to_bytes(HEADER_BYTES, "big")

    assert deframer.feed(header[:3]) == []
    with pytest.raises(FrameTooLong):
        deframer.feed(header[3:])


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
