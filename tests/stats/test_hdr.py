"""Exchange with HdrHistogram: its decode of ours, our decode of its, and everything that is neither."""

import base64
import tracemalloc
import zlib

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid, Untrusted
from talka.stats.hdr import (
    COMPRESSED_COOKIE,
    FRAME,
    LAYOUT,
    MOST_COUNT,
    MOST_PAYLOAD_BYTES,
    PAYLOAD,
    PAYLOAD_COOKIE,
    BrokenHistogram,
    CountTooLarge,
    decode,
    encode,
)
from talka.stats.histogram import COUNTERS, HIGHEST, Histogram, highest_of, index_of, lowest_of, middle_of

VALUES = st.one_of(st.integers(0, 40), st.integers(0, 5_000), st.integers(0, HIGHEST))
TIMES = st.one_of(st.integers(1, 300), st.integers(0, 57).map(lambda bits: 1 << bits))
RECORDINGS = st.lists(st.tuples(VALUES, TIMES), max_size=30)


def histogram_of(recordings: list[tuple[int, int]]) -> Histogram:
    histogram = Histogram()
    for value, times in recordings:
        histogram.record(value, times)
    return histogram


def oracle_of(recordings: list[tuple[int, int]]) -> HdrHistogram:
    oracle = HdrHistogram(1, HIGHEST, 3)
    for value, times in recordings:
        assert oracle.record_value(value, times)
    return oracle


def counts_of(oracle: HdrHistogram) -> dict[int, int]:
    return {index: count for index, count in enumerate(oracle.counts) if count}


def framed(stream: bytes, cookie: int = COMPRESSED_COOKIE, length: int | None = None) -> str:
    return base64.b64encode(FRAME.pack(cookie, len(stream) if length is None else length) + stream).decode()


def packed(counters: bytes, cookie: int = PAYLOAD_COOKIE, length: int | None = None, layout=LAYOUT) -> str:
    return framed(zlib.compress(PAYLOAD.pack(cookie, len(counters) if length is None else length, *layout) + counters))


def payload_of(text: str | bytes) -> bytes:
    return zlib.decompress(base64.b64decode(text)[FRAME.size :])


# Agreement


@settings(deadline=None, derandomize=True, max_examples=60)
@given(RECORDINGS)
def test_hdrhistogram_reads_ours_counter_by_counter(recordings: list[tuple[int, int]]) -> None:
    histogram = histogram_of(recordings)
    oracle = HdrHistogram.decode(encode(histogram))
    assert counts_of(oracle) == histogram.counts
    assert oracle.get_total_count() == histogram.count


@settings(deadline=None, derandomize=True, max_examples=60)
@given(RECORDINGS)
def test_we_read_hdrhistogram_s_counter_by_counter(recordings: list[tuple[int, int]]) -> None:
    oracle = oracle_of(recordings)
    histogram = decode(oracle.encode().decode())
    assert histogram.counts == counts_of(oracle)
    assert histogram.count == oracle.get_total_count()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(RECORDINGS)
def test_the_bytes_before_compression_are_those_of_hdrhistogram(recordings: list[tuple[int, int]]) -> None:
    assert payload_of(encode(histogram_of(recordings))) == payload_of(oracle_of(recordings).encode())


def test_a_known_histogram_has_known_bytes() -> None:
    text = encode(histogram_of([(0, 1), (2, 64), (5, 1)]))
    payload = payload_of(text)
    header = "1c849313000000060000000000000003000000000000000100000000d693a4003ff0000000000000"
    assert base64.b64decode(text)[:4].hex() == "1c849314"
    # 1 of value 0, one zero, 64 of value 2, two zeros, 1 of value 5
    assert payload.hex() == header + "020180010302"


@settings(deadline=None, derandomize=True)
@given(RECORDINGS)
def test_after_a_round_trip_only_the_exact_numbers_are_those_of_the_counters(recordings: list[tuple[int, int]]) -> None:
    values = [value for value, _ in recordings]
    histogram = histogram_of(recordings)
    assert decode(encode(histogram)) == Histogram(
        counts=histogram.counts,
        count=histogram.count,
        total=sum(middle_of(index) * count for index, count in histogram.counts.items()),
        min=lowest_of(index_of(min(values, default=0))),
        max=highest_of(index_of(max(values, default=0))),
    )


@settings(deadline=None, derandomize=True)
@given(RECORDINGS)
def test_decoding_and_encoding_again_gives_the_same_text(recordings: list[tuple[int, int]]) -> None:
    text = encode(histogram_of(recordings))
    assert encode(decode(text)) == text


@pytest.mark.parametrize("count", [(1 << 55) - 1, 1 << 55, 1 << 62, MOST_COUNT])
def test_the_largest_counts_survive(count: int) -> None:
    histogram = histogram_of([(7, count), (9, 1)])
    assert decode(encode(histogram)).counts == histogram.counts


def test_a_count_beyond_the_encoding_is_named() -> None:
    histogram = histogram_of([(5_000, MOST_COUNT + 1)])
    with pytest.raises(CountTooLarge, match="The value 5000 was counted 9223372036854775808 times") as raised:
        encode(histogram)
    assert isinstance(raised.value, Invalid)
    assert (raised.value.value, raised.value.count) == (5_000, MOST_COUNT + 1)


def test_the_last_counter_of_the_layout_is_read() -> None:
    histogram = Histogram(counts={COUNTERS - 1: 3})
    assert decode(encode(histogram)).counts == {COUNTERS - 1: 3}


def test_a_run_of_one_zero_is_read_in_both_spellings() -> None:
    assert decode(packed(bytes([0x00, 0x02]))).counts == decode(packed(bytes([0x01, 0x02]))).counts == {1: 1}


def test_a_cookie_may_tell_another_counter_width() -> None:
    counters = bytes([0x02])
    text = framed(zlib.compress(PAYLOAD.pack(0x1C849303, 1, *LAYOUT) + counters), cookie=0x1C849384)
    assert decode(text).counts == {0: 1}


def test_an_empty_histogram_survives() -> None:
    assert decode(encode(Histogram())) == Histogram()
    assert decode(HdrHistogram(1, HIGHEST, 3).encode().decode()) == Histogram()


# Refusal

BROKEN = {
    "not base64": ("no base64!", "it is not base64"),
    "not ascii": ("ÄÖÜß", "it is not base64"),
    "empty": ("", "it ends within its header"),
    "short": (base64.b64encode(b"1234567").decode(), "it ends within its header"),
    "other cookie": (framed(b"", cookie=0x1C849302), "it starts with 0x1c849302"),
    "shorter than told": (framed(b"abc", length=4), "4 compressed bytes are announced and 3 are there"),
    "not zlib": (framed(b"certainly not zlib"), "its compressed bytes are damaged"),
    "cut short": (framed(zlib.compress(b"x" * 99)[:-5]), "its compressed bytes do not end where they should"),
    "followed by more": (framed(zlib.compress(b"x") + b"y"), "its compressed bytes do not end where they should"),
    "a bomb": (framed(zlib.compress(bytes(MOST_PAYLOAD_BYTES + 1))), "it unpacks into more than 1048576 bytes"),
    "no bomb yet": (framed(zlib.compress(bytes(MOST_PAYLOAD_BYTES))), "its payload starts with 0x00000000"),
    "short payload": (framed(zlib.compress(bytes(PAYLOAD.size - 1))), "its payload ends within the header"),
    "other payload cookie": (packed(b"", cookie=0x1C849301), "its payload starts with 0x1c849301"),
    "two digits": (
        HdrHistogram(1, HIGHEST, 2).encode().decode(),
        "its offset, digits, lowest value, highest value and ratio are 0, 2, 1, 3600000000, 1.0",
    ),
    "other offset": (packed(b"", layout=(1, *LAYOUT[1:])), "ratio are 1, 3, 1, 3600000000, 1.0"),
    "other lowest": (packed(b"", layout=(0, 3, 2, HIGHEST, 1.0)), "ratio are 0, 3, 2, 3600000000, 1.0"),
    "other highest": (packed(b"", layout=(0, 3, 1, HIGHEST + 1, 1.0)), "ratio are 0, 3, 1, 3600000001, 1.0"),
    "no ratio": (packed(b"", layout=(*LAYOUT[:4], float("nan"))), "ratio are 0, 3, 1, 3600000000, nan"),
    "fewer counters than told": (packed(b"\x02", length=2), "2 bytes of counters are announced and 1 are there"),
    "half a counter": (packed(b"\x02\x80"), "it ends within a counter"),
    "too long a run": (packed(b"\xff" * 9), "it has more than 23552 counters"),
    "one counter too many": (packed(b"\x02" * (COUNTERS + 1)), "it has more than 23552 counters"),
    "one zero too many": (packed(b"\x00" * (COUNTERS + 1)), "it has more than 23552 counters"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_text_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(BrokenHistogram) as raised:
        decode(text)
    assert isinstance(raised.value, Untrusted)
    assert raised.value.reason.startswith(reason) or raised.value.reason.endswith(reason)
    assert str(raised.value).startswith(f"The HdrHistogram text cannot be read: {raised.value.reason}. ")


def test_a_bomb_is_not_unpacked_to_its_end() -> None:
    bomb = framed(zlib.compress(bytes(16 * MOST_PAYLOAD_BYTES)))
    tracemalloc.start()
    try:
        with pytest.raises(BrokenHistogram, match="it unpacks into more than 1048576 bytes"):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_PAYLOAD_BYTES
    finally:
        tracemalloc.stop()


def test_another_layout_is_answered_with_the_one_to_use() -> None:
    with pytest.raises(BrokenHistogram, match=r"Record it with 0, 3, 1, 3600000000, 1\.0\.$"):
        decode(HdrHistogram(1, HIGHEST * 2, 3).encode().decode())


def test_as_many_counters_as_the_layout_has_are_read() -> None:
    assert decode(packed(b"\x02" * COUNTERS)).count == COUNTERS


@settings(deadline=None, derandomize=True)
@given(
    st.one_of(
        st.text("AZaz09+/= \nß\ud800"),
        st.binary().map(lambda junk: base64.b64encode(junk).decode()),
        st.binary().map(framed),
        st.binary().map(lambda junk: framed(zlib.compress(junk))),
        st.binary().map(packed),
    )
)
def test_random_bytes_are_read_or_refused_and_nothing_else(text: str) -> None:
    try:
        histogram = decode(text)
    except BrokenHistogram:
        return
    assert sum(histogram.counts.values()) == histogram.count
    assert len(histogram.counts) <= COUNTERS


@settings(deadline=None, derandomize=True)
@given(RECORDINGS, st.integers(min_value=0), st.integers(1, 255))
def test_one_damaged_byte_is_noticed_or_harmless(recordings: list[tuple[int, int]], place: int, damage: int) -> None:
    histogram = histogram_of(recordings)
    frame = bytearray(base64.b64decode(encode(histogram)))
    frame[place % len(frame)] ^= damage
    try:
        assert decode(base64.b64encode(frame).decode()).counts == histogram.counts
    except BrokenHistogram:
        return
