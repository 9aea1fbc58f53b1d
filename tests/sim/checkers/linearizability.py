"""Whether the history of a register's calls could have been that of one place with one value at a time.

Every value of a key is written once, so each belongs to one write and the reads that returned it: its cluster. In any
legal order a cluster stands together. Its zone is the time between the first end and the last begin in it, and two
clusters can be ordered unless each has an operation that ended before one of the other began: forward zones that
overlap, or a backward zone inside a forward one (Gibbons and Korach, "Testing Shared Memories", 1997). Longer circles
always contain such a pair.
"""

from bisect import bisect_left
from math import inf
from typing import Final, Literal, TypeAlias

import msgspec

from talka.errors import Invalid

Kind: TypeAlias = Literal["write", "read"]
Outcome: TypeAlias = Literal["accepted", "refused", "unknown"]


class RegisterOperation(msgspec.Struct):
    """A call of a client, in true time."""

    key: str
    kind: Kind
    began: int
    value: bytes | None
    """What was written, or what an accepted read returned."""
    ended: int | None = None
    outcome: Outcome | None = None
    """None while nobody has answered."""


class _Zone(msgspec.Struct):
    value: bytes | None
    first_end: float
    last_begin: float


class RegisterHistory:
    """Calls of clients as they begin and end. A key holds None until the first write."""

    def __init__(self) -> None:
        self._operations: list[RegisterOperation] = []
        self._of_key: dict[str, list[RegisterOperation]] = {}
        self._written: dict[tuple[str, bytes], None] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def keys(self) -> list[str]:
        return list(self._of_key)

    def operation(self, op: int) -> RegisterOperation:
        return self._operations[op]

    def invoke(self, time: int, key: str, kind: Kind, value: bytes | None = None) -> int:
        """A call begins: its number. A value is written to a key once."""
        if kind == "write":
            if value is None or (key, value) in self._written:
                raise Invalid(f"key {key!r}: {value!r} is no value that was never written before; write another")
            self._written[key, value] = None
        elif value is not None:
            raise Invalid(f"key {key!r}: what a read returns is not known when it begins")
        operation = RegisterOperation(key, kind, time, value)
        self._operations.append(operation)
        self._of_key.setdefault(key, []).append(operation)
        return len(self._operations) - 1

    def ended(self, time: int, op: int, outcome: Outcome, value: bytes | None = None) -> None:
        """The caller has its answer. A call whose caller never learns one is not ended: it counts as unknown."""
        operation = self._operations[op]
        if operation.outcome is not None:
            raise Invalid(f"key {operation.key!r}: call {op} has ended before, {operation.outcome}")
        operation.ended = time
        operation.outcome = outcome
        if operation.kind == "read" and outcome == "accepted":
            operation.value = value

    def check(self, key: str) -> list[str]:
        """Why this key's history is not linearizable, in sentences; empty when it is."""
        operations = self._of_key.get(key, [])
        # None was written before everything else.
        writes: dict[bytes | None, RegisterOperation] = {
            None: RegisterOperation(key, "write", -1, None, -1, "accepted")
        }
        reads: dict[bytes | None, list[RegisterOperation]] = {}
        for operation in operations:
            if operation.kind == "write":
                writes[operation.value] = operation
            elif operation.outcome == "accepted":
                reads.setdefault(operation.value, []).append(operation)
        wrong: list[str] = []
        for value, readers in reads.items():
            wrong += _wrong_reads(key, value, writes.get(value), readers)
        zones: list[_Zone] = []
        for value, write in writes.items():
            zone = _zone_of(value, write, reads.get(value, ()))
            if zone is not None:
                zones.append(zone)
        return wrong + _conflicts(key, zones)


_BEFORE_ALL: Final = -inf
_AFTER_ALL: Final = inf


def _wrong_reads(
    key: str, value: bytes | None, write: RegisterOperation | None, reads: list[RegisterOperation]
) -> list[str]:
    """What is wrong with the reads of one value, whatever else was written."""
    if write is None:
        return [f"key {key!r}: {value!r} was read at {reads[0].ended} ns, and nobody ever wrote it"]
    if write.outcome == "refused":
        return [f"key {key!r}: {value!r} was read at {reads[0].ended} ns, but its write was refused"]
    if value is None:
        return []
    for read in reads:
        assert read.ended is not None
        if read.ended < write.began:
            return [f"key {key!r}: {value!r} was read at {read.ended} ns, but its write began at {write.began} ns"]
    return []


def _zone_of(value: bytes | None, write: RegisterOperation, reads: list[RegisterOperation] | tuple[()]) -> _Zone | None:
    """The zone of a value; None when it took no effect that anybody saw."""
    if write.outcome == "refused":
        return None
    if value is None:
        return _Zone(None, _BEFORE_ALL, max(read.began for read in reads)) if reads else None
    first_end, last_begin = _AFTER_ALL, write.began
    if write.outcome == "accepted" and write.ended is not None:
        first_end = write.ended
    elif not reads:
        return None
    for read in reads:
        assert read.ended is not None
        first_end = min(first_end, read.ended)
        last_begin = max(last_begin, read.began)
    return _Zone(value, first_end, last_begin)


def _conflicts(key: str, zones: list[_Zone]) -> list[str]:
    """Pairs of clusters of which neither can stand before the other; each cluster is named once as the later."""
    forward = sorted(
        (zone for zone in zones if zone.first_end < zone.last_begin), key=lambda zone: (zone.first_end, zone.last_begin)
    )
    starts = [zone.first_end for zone in forward]
    wrong: list[str] = []
    longest: list[_Zone] = []  # of the forward zones up to each, the one that reaches furthest
    for zone in forward:
        if longest and longest[-1].last_begin > zone.first_end:
            wrong.append(_sentence(key, longest[-1], zone))
        longest.append(zone if not longest or zone.last_begin > longest[-1].last_begin else longest[-1])
    for zone in zones:
        if zone.first_end < zone.last_begin:
            continue
        before = bisect_left(starts, zone.last_begin)
        if before and longest[before - 1].last_begin > zone.first_end:
            wrong.append(_sentence(key, longest[before - 1], zone))
    return wrong


def _sentence(key: str, one: _Zone, other: _Zone) -> str:
    return (
        f"key {key!r}: {one.value!r} and {other.value!r} each came before the other: {_order(one, other)},"
        f" but {_order(other, one)}"
    )


def _order(one: _Zone, other: _Zone) -> str:
    end = "at the beginning" if one.first_end == _BEFORE_ALL else f"at {one.first_end} ns"
    return f"a call with {one.value!r} ended {end}, before one with {other.value!r} began at {other.last_begin} ns"
