"""What happened in a world: hashed always, the last of it kept for people.

Events are small tuples in a list; they are encoded and hashed many at a time, and made into text only when asked for.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane
from talka.units import SECOND

Event: TypeAlias = tuple[int, str, str, str, int, object]
"""True time in ns, kind, host, peer or name, number, content (bytes of a frame, or a node's news)."""

RECENT: Final = 200
CHUNK: Final = 1024
"""Events hashed at a time."""


def _name_of(value: object) -> str:
    return type(value).__name__


# Deterministic: news that holds a set is hashed in the order of its values.
_encoder = msgspec.msgpack.Encoder(enc_hook=_name_of, order="deterministic")
# News may hold what has no encoding, such as an integer of 65 bits; its name still counts.
_NO_ENCODING: Final = (TypeError, ValueError, OverflowError, RecursionError)


class Trace:
    """Whoever makes an event appends it to `pending`; whoever runs the events calls `flush` at `limit`."""

    __slots__ = ("_hash", "_tail", "_verbose", "limit", "pending")

    def __init__(self, verbose: Callable[[str], None] | None = None) -> None:
        self.pending: list[Event] = []
        self.limit = CHUNK if verbose is None else 1
        self._hash = blake2b(digest_size=16)
        self._tail: deque[Event] = deque(maxlen=RECENT)
        self._verbose = verbose

    def flush(self) -> None:
        pending = self.pending
        # Event by event, so that the hash does not depend on where a chunk ends.
        try:
            encoded = b"".join(map(_encoder.encode, pending))
        except _NO_ENCODING:
            encoded = b"".join(map(_encoded, pending))
        self._hash.update(encoded)
        self._tail.extend(pending[-RECENT:])
        if self._verbose is not None:
            for event in pending:
                self._verbose(line_of(event))
        pending.clear()

    def digest(self) -> str:
        self.flush()
        return self._hash.hexdigest()

    def recent(self) -> deque[Event]:
        return deque([*self._tail, *self.pending], maxlen=RECENT)


def _encoded(event: Event) -> bytes:
    try:
        return _encoder.encode(event)
    except _NO_ENCODING:
        return _encoder.encode(event[:5])


def line_of(event: Event) -> str:
    """The event as one line: seconds, host, what."""
    now, kind, host, name, number, content = event
    seconds, rest = divmod(now, SECOND)
    match kind, content:
        case "frame", bytes():
            what = f"frame from {name}, {Lane(number).name.lower()}, {len(content)} bytes"
        case "drop", _:
            what = f"frame to {name} dropped: {content}"
        case "news", _:
            what = f"news {content}" if name in str(content) else f"news {name} {content}"
        case "violation", _:
            what = f"violates {name}: {content}"
        case "durable", _:
            what = f"write {number} is durable"
        case "persisted", _:
            what = f"told that write {number} is durable"
        case "boot", _:
            what = f"starts as boot {number:x}"
        case "stall", _:
            what = f"stalls for {number / 1e9:.3f} s"
        case _:
            what = f"{kind} {name}".rstrip()
    return f"{seconds:>6}.{rest:09} {host:<12} {what}"
