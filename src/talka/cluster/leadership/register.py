"""The durable half of the majority register: what one voter has promised and accepted.

Single-decree Paxos for each key, with one ballot (the term) for all: a voter that promised a term accepts nothing of
an earlier one, and of one key only newer versions. Nothing promised or accepted is spoken of before it is on disk.

Lamport, "Paxos Made Simple", §2.2: the acceptor; Rystsov, "CASPaxos" (arXiv 1802.07000): a register for each key
instead of a log. docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from talka.cluster.effects import Lane, Persist, Send
from talka.cluster.leadership.news import LeadershipEffect
from talka.cluster.leadership.voters import CONFIG_KEY, VoterConfig, decode_config
from talka.cluster.safeguards import ALL, Safeguards
from talka.wire.leadership import CHANNEL, HeartbeatReply, LeadershipMessage, RegisterEntry, Version

RECORD_KEY: Final = "record"
ENTRY_PREFIX: Final = "entry/"
KEYS_LIMIT: Final = 8192
HELD_LIMIT: Final = 1024
"""Words that wait for one write of the disk. More are dropped, as a network may drop them."""
NEVER: Final = Version(0, 0)


class VoterRecord(msgspec.Struct, array_like=True):
    """What a voter must not forget. Written as a whole: never a new term beside an old vote."""

    disk_id: int
    revision: int = 1
    """How often it was written, counted from before the write: what is told to peers is never behind the disk."""
    term: int = 0
    voted_for: str = ""
    admitted: bool = False
    """Whether this disk holds what its voter is supposed to: without it the voter neither votes nor accepts."""
    group_id: int = 0
    """The number of the group, once a majority is known to hold it; 0 before."""
    lease_ns: int = 0
    """The longest leader's lease under which this voter may have promised something that still runs."""


_encode = msgspec.msgpack.Encoder().encode
_record_decoder = msgspec.msgpack.Decoder(VoterRecord)
_entry_decoder = msgspec.msgpack.Decoder(RegisterEntry)


class Acceptor:
    """One voter's promises and values, and the order in which they become durable.

    Change the record or the entries, then call `flush`: it gives the effect that makes the changes durable. Words
    that depend on durability are held by `hold` and given back by `persisted`.
    """

    __slots__ = ("_dirty", "_is_record_dirty", "_safeguards", "_tickets", "_waiting", "_writing", "entries", "record")

    def __init__(self, stored: Mapping[str, bytes], new_disk_id: int, safeguards: Safeguards = ALL) -> None:
        self._safeguards = safeguards
        content = stored.get(RECORD_KEY)
        self.record = _record_decoder.decode(content) if content is not None else VoterRecord(new_disk_id)
        self.entries: dict[str, RegisterEntry] = {}
        for key in sorted(stored):
            if key.startswith(ENTRY_PREFIX):
                entry = _entry_decoder.decode(stored[key])
                self.entries[entry.key] = entry
        self._is_record_dirty = content is None
        self._dirty: dict[str, None] = {}
        self._tickets = 0
        self._writing: list[Send[LeadershipMessage]] | None = None  # words that wait for the write under way
        self._waiting: list[Send[LeadershipMessage]] = []  # words that wait for the next one

    # -- what may be changed

    def promise(self, term: int, voted_for: str) -> None:
        self._touch()
        self.record.term = term
        self.record.voted_for = voted_for

    def adopt(self, term: int) -> None:
        """Follow a later term without having voted in it."""
        if term > self.record.term:
            self.promise(term, "")

    def admit(self) -> None:
        if not self.record.admitted:
            self._touch()
            self.record.admitted = True

    def confirm(self, group_id: int) -> None:
        """A majority is known to hold this number of the group."""
        if group_id != self.record.group_id:
            self._touch()
            self.record.group_id = group_id

    def count_with(self, lease_ns: int) -> None:
        """What is promised from now on is promised for so long."""
        if lease_ns != self.record.lease_ns:
            self._touch()
            self.record.lease_ns = lease_ns

    def start_over(self, new_disk_id: int) -> None:
        """Treat the disk as a new one: what was on it cannot be trusted."""
        self._touch()
        for key in self.entries:
            self._dirty[key] = None
        self.entries.clear()
        self.record = VoterRecord(new_disk_id, self.record.revision, lease_ns=self.record.lease_ns)

    def accept(self, entries: tuple[RegisterEntry, ...]) -> bool:
        """Take what is newer than what is held. False when there are too many keys: then nothing is taken."""
        fresh = [entry for entry in entries if entry.version > self.version_of(entry.key)]
        unknown = sum(1 for entry in fresh if entry.key not in self.entries)
        if len(self.entries) + unknown > KEYS_LIMIT:
            return False
        if fresh:
            self._touch()
        for entry in fresh:
            self.entries[entry.key] = entry
            self._dirty[entry.key] = None
        return True

    # -- what is held

    def version_of(self, key: str) -> Version:
        entry = self.entries.get(key)
        return NEVER if entry is None else entry.version

    def config(self) -> VoterConfig | None:
        entry = self.entries.get(CONFIG_KEY)
        return None if entry is None else decode_config(entry.value)

    def after(self, key: str) -> list[RegisterEntry]:
        """Entries behind `key`, in the order of keys."""
        return [self.entries[name] for name in sorted(self.entries) if name > key]

    # -- durability

    def _touch(self) -> None:
        if not self._is_record_dirty:
            self._is_record_dirty = True
            self.record.revision += 1

    @property
    def is_durable(self) -> bool:
        """Whether everything promised and accepted so far is on disk."""
        return self._writing is None and not self._is_record_dirty

    def hold(self, word: Send[LeadershipMessage]) -> None:
        """Keep this until everything so far is durable. Call `flush` in the same step."""
        words = self._waiting if self._writing is None or self._is_record_dirty else self._writing
        if len(words) < HELD_LIMIT:
            words.append(word)

    def answer(self, to: str, message: LeadershipMessage, out: list[LeadershipEffect]) -> None:
        """Say what rests on promises: at once when they are on disk, else when they are."""
        word = Send(CHANNEL, to, message, Lane.CONTROL)
        if self.is_durable:
            out.append(word)
        else:
            self.hold(word)

    def answer_heartbeat(self, to: str, number: int, health: int, out: list[LeadershipEffect]) -> None:
        record, config = self.record, self.version_of(CONFIG_KEY)
        reply = HeartbeatReply(record.term, number, record.disk_id, record.revision, config, health)
        self.answer(to, reply, out)

    def flush(self) -> Persist | None:
        """What to write so that everything so far is durable. None when it is, and while a write is under way.

        One write at a time: what changes meanwhile goes into the next, however slow the disk is.
        """
        if self._writing is not None or not self._is_record_dirty:
            return None
        record = self.record
        kept = record
        if not self._safeguards.persist_vote:
            kept = msgspec.structs.replace(record, term=0, voted_for="")
        puts: list[tuple[str, bytes | None]] = [(RECORD_KEY, _encode(kept))]
        for key in self._dirty:
            entry = self.entries.get(key)
            puts.append((ENTRY_PREFIX + key, None if entry is None else _encode(entry)))
        self._dirty.clear()
        self._is_record_dirty = False
        self._tickets += 1
        self._writing, self._waiting = self._waiting, []
        return Persist(self._tickets, tuple(puts))

    def persisted(self, ticket: int) -> list[Send[LeadershipMessage]]:
        """The write of this ticket is durable: the words that may be said now. Call `flush` in the same step."""
        if self._writing is None or ticket != self._tickets:
            return []
        words, self._writing = self._writing, None
        return words
