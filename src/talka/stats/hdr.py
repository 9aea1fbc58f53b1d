"""Histograms as HdrHistogram's tools exchange them: the V2 encoding, compressed, in base64.

Text of 8 bytes of header and a zlib stream; in the stream, 40 bytes of header and the counters from index 0 to the
last one in use. A counter is a ZigZag LEB128 number of at most 9 bytes; a negative number stands for a run of zeros.
"""

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from talka.errors import Invalid, Untrusted
from talka.stats.histogram import COUNTERS, HIGHEST, Histogram, highest_of, lowest_of, middle_of

# The low byte's upper half once held the width of a counter; V2 writes 1 there, and readers pass over it.
COMPRESSED_COOKIE: Final = 0x1C849314
PAYLOAD_COOKIE: Final = 0x1C849313
COOKIE_MASK: Final = 0xFFFFFF0F
FRAME: Final = struct.Struct(">II")
"""Cookie, bytes of the zlib stream."""
PAYLOAD: Final = struct.Struct(">IIIIQQd")
"""Cookie, bytes of counters, normalizing index offset, digits, lowest value, highest value, ratio."""
LAYOUT: Final = (0, 3, 1, HIGHEST, 1.0)
"""The last five fields of a payload's header that `Histogram` can hold."""
MOST_PAYLOAD_BYTES: Final = 1 << 20
"""Five times what all counters at their longest take; a small text must not unpack into gigabytes."""
MOST_COUNT: Final = (1 << 63) - 1


class CountTooLarge(Invalid):
    """A counter beyond what the encoding can hold."""

    def __init__(self, value: int, count: int) -> None:
        super().__init__(
            f"The value {value} was counted {count} times, and HdrHistogram's encoding holds at most {MOST_COUNT}: "
            "export the parts before they are merged."
        )
        self.value, self.count = value, count


class BrokenHistogram(Untrusted):
    """Text that is not a histogram of ours in HdrHistogram's encoding."""

    def __init__(self, reason: str, advice: str = "Ask its source for a whole, unchanged copy") -> None:
        super().__init__(f"The HdrHistogram text cannot be read: {reason}. {advice}.")
        self.reason = reason


def encode(histogram: Histogram) -> str:
    counters = bytearray()
    following = 0
    for index in sorted(histogram.counts):
        count = histogram.counts[index]
        if count > MOST_COUNT:
            raise CountTooLarge(lowest_of(index), count)
        if gap := index - following:
            _write(counters, -gap)
        _write(counters, count)
        following = index + 1
    payload = PAYLOAD.pack(PAYLOAD_COOKIE, len(counters), *LAYOUT) + counters
    compressed = zlib.compress(payload)
    return base64.b64encode(FRAME.pack(COMPRESSED_COOKIE, len(compressed)) + compressed).decode("ascii")


def decode(text: str) -> Histogram:
    """The histogram of a text, with least, greatest and sum as its counters tell: exact ones are not in the encoding.

    Only the layout of `Histogram` is read.
    """
    histogram = Histogram()
    index = 0
    for number in _numbers(_counters(text)):
        reached = index + (-number if number < 0 else 1)
        if reached > COUNTERS:
            raise BrokenHistogram(f"it has more than {COUNTERS} counters")
        if number > 0:
            histogram.counts[index] = number
            histogram.count += number
            histogram.total += number * middle_of(index)
        index = reached
    if histogram.counts:
        histogram.min, histogram.max = lowest_of(min(histogram.counts)), highest_of(max(histogram.counts))
    return histogram


def _counters(text: str) -> bytes:
    """The bytes of the counters, once everything around them is found in order."""
    try:
        frame = base64.b64decode(text, validate=True)
    except ValueError:
        raise BrokenHistogram("it is not base64") from None
    if len(frame) < FRAME.size:
        raise BrokenHistogram("it ends within its header")
    cookie, length = FRAME.unpack_from(frame)
    if cookie & COOKIE_MASK != COMPRESSED_COOKIE & COOKIE_MASK:
        raise BrokenHistogram(f"it starts with {cookie:#010x}, and compressed V2 with {COMPRESSED_COOKIE:#010x}")
    if length != len(frame) - FRAME.size:
        raise BrokenHistogram(f"{length} compressed bytes are announced and {len(frame) - FRAME.size} are there")
    payload = _decompressed(frame[FRAME.size :])
    if len(payload) < PAYLOAD.size:
        raise BrokenHistogram("its payload ends within the header")
    cookie, length, *layout = PAYLOAD.unpack_from(payload)
    if cookie & COOKIE_MASK != PAYLOAD_COOKIE & COOKIE_MASK:
        raise BrokenHistogram(f"its payload starts with {cookie:#010x}, and V2 with {PAYLOAD_COOKIE:#010x}")
    if tuple(layout) != LAYOUT:
        raise BrokenHistogram(
            f"its offset, digits, lowest value, highest value and ratio are {', '.join(map(str, layout))}",
            advice=f"Record it with {', '.join(map(str, LAYOUT))}",
        )
    if length != len(payload) - PAYLOAD.size:
        raise BrokenHistogram(f"{length} bytes of counters are announced and {len(payload) - PAYLOAD.size} are there")
    return payload[PAYLOAD.size :]


def _decompressed(stream: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        payload = decompressor.decompress(stream, MOST_PAYLOAD_BYTES + 1)
    except zlib.error:
        raise BrokenHistogram("its compressed bytes are damaged") from None
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise BrokenHistogram(f"it unpacks into more than {MOST_PAYLOAD_BYTES} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise BrokenHistogram("its compressed bytes do not end where they should")
    return payload


def _write(into: bytearray, number: int) -> None:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    for _ in range(8):
        if rest < 0x80:
            break
        into.append(rest & 0x7F | 0x80)
        rest >>= 7
    # A ninth byte is all payload: 8 times 7 bits and 8 more make 64.
    into.append(rest)


def _numbers(counters: bytes) -> Iterator[int]:
    rest = shift = 0
    for byte in counters:
        if shift == 56 or byte < 0x80:
            rest |= byte << shift
            yield rest >> 1 if rest & 1 == 0 else -(rest >> 1) - 1
            rest = shift = 0
        else:
            rest |= (byte & 0x7F) << shift
            shift += 7
    if shift:
        raise BrokenHistogram("it ends within a counter")
