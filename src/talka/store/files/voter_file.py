"""What a voter must not forget, on disk: its vote, its promises and the entries it accepted.

Two slot files take turns. A slot is a header, one snapshot of everything, and one record for each write since then;
every record has a checksum over its generation, its number and its content. When the writes outgrow the snapshot,
everything is written to the other slot under the next generation. Once that is durable the old slot is marked as
retired, and only then is the new one written to. Hence, after a crash:

- a last record that cannot be read was never acknowledged, and is left behind;
- a new slot that cannot be read beside an old one that is not retired was never in use, and the old one holds;
- anything else that cannot be read is damage: the voter must not go on with what it may have promised and lost.

A last record spoilt long after it was written looks like one that a crash cut short. Peers notice that: they know the
revision of the record they last heard of.

Decision: docs/decisions/0016-two-slots.md.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from talka.errors import Invalid
from talka.store.files.folder import (
    FILE_MODE,
    StoreFailed,
    failed,
    read_file,
    set_aside,
    sync_file,
    sync_folder,
    write_all,
)

Puts: TypeAlias = Sequence[tuple[str, bytes | None]]

FORMAT: Final = 1
NAMES: Final = ("voter.0", "voter.1")
LEAST_GROWTH_BYTES: Final = 256 * 1024
"""The writes of a slot may take this much, or twice its snapshot, before the other slot takes over."""
MOST_BYTES: Final = 3 << 30
"""Of all values together: above what a full register holds, below what the length of a record can say."""
MOST_FILE_BYTES: Final = 4 * MOST_BYTES
MOST_GROUP_BYTES: Final = 1024

MAGIC: Final = b"talkavtr"
HEADER: Final = struct.Struct(">8sHHQ")
"""Magic, format, length of the group's name, generation. The name and a CRC-32 of all this follow."""
CHECKSUM: Final = struct.Struct(">I")
MARK: Final = b"\xf5rec"
"""Begins every record, so that one behind a damaged one is found. No text has this first byte."""
RECORD: Final = struct.Struct(">4sBIQI")
"""Mark, kind, length of the payload, sequence, CRC-32. The payload follows."""
CHECKED: Final = struct.Struct(">QBIQ")
"""Generation, kind, length, sequence: what the checksum covers besides the payload."""


class RecordKind(IntEnum):
    SNAPSHOT = 1
    WRITE = 2
    RETIRED = 3
    """The other slot, one generation later, is whole and durable. Nothing follows."""


class VoterRecordOnDisk(NamedTuple):
    kind: int
    sequence: int
    payload: bytes


class Slot:
    """What one file says. `content` is None without a whole snapshot, `generation` 0 without a whole header."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.format = FORMAT
        self.group = ""
        self.generation = 0
        self.content: dict[str, bytes] | None = None
        self.sequence = 0
        """Of the next record."""
        self.end = 0
        """Behind the last record that can be read; 0 without a whole header."""
        self.is_retired = False
        self.damage = ""
        """What no crash can have done to the file."""


class OtherGroup(Invalid):
    """The folder holds the votes of another group. Using it here would forget them."""

    def __init__(self, folder: Path, *, found: str, wanted: str) -> None:
        super().__init__(
            f"the data folder {folder} belongs to a voter of group {found!r}, not {wanted!r}: "
            "name another --data-dir, or the --cluster and --environment of that group"
        )


class LaterFormat(Invalid):
    """A later version of Talka wrote this file."""

    def __init__(self, path: Path, *, found: int) -> None:
        super().__init__(
            f"{path} was written by a later version of talka (its format is {found}, known here is {FORMAT}): "
            "use that version or a newer one"
        )


_encode = msgspec.msgpack.Encoder().encode
_snapshot_decoder = msgspec.msgpack.Decoder(dict[str, bytes])
_puts_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])


def encode_header(group: str, generation: int, format: int = FORMAT) -> bytes:
    name = group.encode()
    header = HEADER.pack(MAGIC, format, len(name), generation) + name
    return header + CHECKSUM.pack(zlib.crc32(header))


def encode_record(generation: int, kind: RecordKind, sequence: int, payload: bytes) -> bytes:
    crc = _checksum(generation, kind, sequence, payload)
    return RECORD.pack(MARK, kind, len(payload), sequence, crc) + payload


def _checksum(generation: int, kind: int, sequence: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(CHECKED.pack(generation, kind, len(payload), sequence)))


def _record_at(data: bytes, offset: int, generation: int) -> VoterRecordOnDisk | None:
    """The record that begins here, None unless it is whole and of this generation."""
    start = offset + RECORD.size
    if start > len(data):
        return None
    mark, kind, length, sequence, crc = RECORD.unpack_from(data, offset)
    if mark != MARK or start + length > len(data):
        return None
    payload = memoryview(data)[start : start + length]
    if _checksum(generation, kind, sequence, payload) != crc:
        return None
    return VoterRecordOnDisk(kind, sequence, bytes(payload))


def _has_record_behind(data: bytes, offset: int, generation: int) -> bool:
    offset = data.find(MARK, offset + 1)
    while offset >= 0:
        if _record_at(data, offset, generation) is not None:
            return True
        offset = data.find(MARK, offset + 1)
    return False


def _read_header(slot: Slot, data: bytes) -> None:
    if len(data) < HEADER.size:
        return
    magic, format, length, generation = HEADER.unpack_from(data)
    end = HEADER.size + length
    if magic != MAGIC or length > MOST_GROUP_BYTES or end + CHECKSUM.size > len(data):
        return
    if CHECKSUM.unpack_from(data, end) != (zlib.crc32(data[:end]),):
        return
    slot.format, slot.generation, slot.group = format, generation, data[HEADER.size : end].decode(errors="replace")
    slot.end = end + CHECKSUM.size


def read_slot(name: str, data: bytes) -> Slot:
    slot = Slot(name)
    _read_header(slot, data)
    if not slot.end or slot.format != FORMAT:
        return slot
    while not slot.is_retired:
        record = _record_at(data, slot.end, slot.generation)
        if record is None:
            break
        if not _apply(slot, record):
            slot.damage = f"record {record.sequence} is not the one expected there"
            return slot
        slot.end += RECORD.size + len(record.payload)
        slot.sequence += 1
    if _has_record_behind(data, slot.end, slot.generation):
        slot.damage = f"record {slot.sequence} cannot be read, and later ones follow it"
    return slot


def _apply(slot: Slot, record: VoterRecordOnDisk) -> bool:
    if record.sequence != slot.sequence or (record.kind == RecordKind.SNAPSHOT) != (slot.content is None):
        return False
    try:
        if slot.content is None:
            slot.content = _snapshot_decoder.decode(record.payload)
        elif record.kind == RecordKind.WRITE:
            apply_puts(slot.content, _puts_decoder.decode(record.payload))
        elif record.kind == RecordKind.RETIRED:
            slot.is_retired = True
        else:
            return False
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def apply_puts(content: dict[str, bytes], puts: Puts) -> None:
    for key, value in puts:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value


class VoterFile:
    """The durable home of what `Persist` asks for.

    Give `stored` to the voter once, at its start; afterwards it belongs to `write`. One write at a time, from any
    thread. The folder must be locked by this process. When a write has failed nobody can say what is on the disk:
    further ones are refused, and a new start finds out.
    """

    def __init__(
        self,
        folder: Path,
        group: str,
        *,
        most_bytes: int = MOST_BYTES,
        least_growth_bytes: int = LEAST_GROWTH_BYTES,
    ) -> None:
        if not 0 < len(group.encode()) <= MOST_GROUP_BYTES:
            raise Invalid(f"the name of a voter's group has 1 to {MOST_GROUP_BYTES} bytes, not {len(group.encode())}")
        self.stored: dict[str, bytes] = {}
        self.problem = ""
        """A sentence when damaged files were set aside: the voter starts empty and has to be admitted anew."""
        self._folder = folder
        self._group = group
        self._most_bytes = most_bytes
        self._least_growth_bytes = least_growth_bytes
        self._slot = 1
        self._generation = 0
        self._sequence = 0
        self._descriptor: int | None = None
        self._is_closed = False
        self._failure = ""
        self._stored_bytes: int
        self._snapshot_bytes: int
        self._written_bytes: int
        """Set by every switch of slots, of which a start makes the first."""
        self._load()

    # -- writing

    def write(self, puts: Puts) -> None:
        """Make all of this durable, as one. It is when this returns; it may be when this raises."""
        path = self._path(self._slot)
        if self._is_closed:
            raise Invalid(f"{path} has been closed: nothing can be written to it")
        if self._failure:
            raise StoreFailed(f"nothing more is written to {path} by this process: {self._failure}")
        payload = _encode(puts)
        grown_bytes = sum(len(value or b"") - len(self.stored.get(key, b"")) for key, value in puts)
        if max(self._stored_bytes + grown_bytes, len(payload)) > self._most_bytes:
            raise Invalid(f"{path} would hold more than {self._most_bytes} bytes: remove entries first")
        # Set before anything is tried: whatever ends the attempt, what is on the disk is unknown then.
        self._failure = "an earlier write was cut short; start again to find out what it left behind"
        try:
            self._append(RecordKind.WRITE, payload)
            apply_puts(self.stored, puts)
            self._written_bytes += RECORD.size + len(payload)
            self._stored_bytes += grown_bytes
            if self._written_bytes > max(self._least_growth_bytes, 2 * self._snapshot_bytes):
                self._switch()
        except OSError as error:
            failure = failed(self._path(self._slot), "written", error)
            self._failure = f"an earlier write failed ({failure})"
            raise failure from error
        self._failure = ""

    def close(self) -> None:
        """Let the files go. What was written stays; nothing is written any more."""
        self._is_closed = True
        self._let_go()

    def _path(self, slot: int) -> Path:
        return self._folder / NAMES[slot]

    def _append(self, kind: RecordKind, payload: bytes) -> None:
        assert self._descriptor is not None
        write_all(self._descriptor, encode_record(self._generation, kind, self._sequence, payload))
        sync_file(self._descriptor)
        self._sequence += 1

    def _switch(self) -> None:
        """Write everything to the other slot and go on there. Every step is durable before the next."""
        other = 1 - self._slot
        snapshot = _encode(self.stored)
        descriptor = os.open(self._path(other), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(descriptor, 0)
            image = encode_header(self._group, self._generation + 1)
            image += encode_record(self._generation + 1, RecordKind.SNAPSHOT, 0, snapshot)
            write_all(descriptor, image)
            sync_file(descriptor)
            sync_folder(self._folder)  # always: an earlier start may have made the file and come no further
            if self._descriptor is not None:
                self._append(RecordKind.RETIRED, b"")
        except BaseException:
            os.close(descriptor)
            raise
        self._let_go()
        self._descriptor, self._slot, self._generation, self._sequence = descriptor, other, self._generation + 1, 1
        self._stored_bytes = sum(map(len, self.stored.values()))
        self._snapshot_bytes, self._written_bytes = len(snapshot), 0

    def _let_go(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    # -- reading

    def _load(self) -> None:
        newest = self._find()
        try:
            if newest is not None and newest.content is not None:
                self.stored = newest.content
                self._resume(newest)
            # What was read may not be on the disk: a killed process leaves it in memory, and so does a failed sync.
            # Nobody acts on it before it has been written anew.
            self._switch()
        except OSError as error:
            self._let_go()
            raise failed(self._path(1 - self._slot), "written", error) from error

    def _resume(self, slot: Slot) -> None:
        self._slot = NAMES.index(slot.name)
        self._generation, self._sequence = slot.generation, slot.sequence
        self._descriptor = os.open(self._path(self._slot), os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(self._descriptor, slot.end, os.SEEK_SET)

    def _find(self) -> Slot | None:
        """The slot that holds; None for an empty start."""
        slots: list[Slot] = []
        sizes: list[int] = []
        for name in NAMES:
            data = read_file(self._folder / name, MOST_FILE_BYTES)
            if data is not None:
                slots.append(read_slot(name, data))
                sizes.append(len(data))
        for slot in slots:
            if slot.format != FORMAT:
                raise LaterFormat(self._folder / slot.name, found=slot.format)
            if slot.generation and slot.group != self._group:
                raise OtherGroup(self._folder, found=slot.group, wanted=self._group)
        if not slots:
            return None
        whole = [slot for slot in slots if slot.content is not None]
        newest = max(whole, key=lambda slot: slot.generation) if whole else None
        damage = self._damage(slots, newest)
        if not damage:
            return newest
        if newest is None and [slot.name for slot in slots] == [NAMES[0]] and sizes[0] <= self._first_bytes():
            return None  # a first start came no further: nothing was ever written to it
        self._start_over(slots, damage)
        return None

    def _damage(self, slots: list[Slot], newest: Slot | None) -> str:
        if newest is None:
            return "; ".join(f"{slot.name}: {slot.damage or 'no whole snapshot'}" for slot in slots)
        for slot in slots:
            if slot.damage and slot.generation >= newest.generation:
                return f"{slot.name}: {slot.damage}"
        if newest.is_retired:
            return f"{newest.name} was followed by generation {newest.generation + 1}, which cannot be read"
        return ""

    def _first_bytes(self) -> int:
        return len(encode_header(self._group, 1)) + len(encode_record(1, RecordKind.SNAPSHOT, 0, _encode({})))

    def _start_over(self, slots: list[Slot], damage: str) -> None:
        # The newest last: should this be interrupted, an older one must not be found alone and pass for what holds.
        kept = [set_aside(self._folder / slot.name) for slot in sorted(slots, key=lambda slot: slot.generation)]
        self.problem = (
            f"the voter's files in {self._folder} are damaged ({damage}); they were kept as "
            f"{' and '.join(path.name for path in kept)}, and this voter starts empty: the others must admit it again"
        )
