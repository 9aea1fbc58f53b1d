"""The records of all jobs, as the cluster's leader writes them to the register.

A record is decided first and then put on a majority of disks; what follows from it waits for that. One write of a job
is under way at a time: what is decided meanwhile goes with the next.
"""

from typing import Final

import msgspec

from talka.cluster.leadership.news import WriteEnded
from talka.control.member.voter import Voter
from talka.wire.entries import SLOTS, BadRecord, JobRecord, decode_record, encode_record
from talka.work.lifecycle import is_final

PREFIX: Final = "job/"


class Alarmed(msgspec.Struct, frozen=True):
    """A person should look at this."""

    text: str


class _Held(msgspec.Struct, frozen=True):
    version: int
    effect: object


class RecordBook:
    """Reads what the register holds when it is made. `put` and `on_write_ended` return effects."""

    def __init__(self, voter: Voter) -> None:
        assert voter.election.leader_term is not None
        self.decided: dict[str, JobRecord] = {}
        """By job; what is on disk may be a version behind."""
        self.written: dict[str, JobRecord] = {}
        """What a majority has on disk: only this is told to anybody."""
        self.alarms: list[Alarmed] = []
        self._voter = voter
        self._slots: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._held: dict[str, list[_Held]] = {}
        self._writing: dict[int, JobRecord] = {}
        self._dirty: dict[str, None] = {}
        self._refs = 0
        for key, value in voter.election.leader_term.values().items():
            if key.startswith(PREFIX) and value:
                self._read(key, value)

    def _read(self, key: str, value: bytes) -> None:
        try:
            record, slot = decode_record(value), int(key.removeprefix(PREFIX))
        except (BadRecord, ValueError) as problem:
            self.alarms.append(Alarmed(f"{key}: {problem}"))
            return
        self.decided[record.job] = self.written[record.job] = record
        self._slots[record.job] = slot
        if record.key:
            self._keys[record.key] = record.job

    def in_order(self) -> list[JobRecord]:
        """As they were submitted."""
        return sorted(self.decided.values(), key=lambda record: record.number)

    def by_key(self, key: str) -> JobRecord | None:
        """The job of an idempotency key."""
        return self.decided.get(self._keys.get(key, ""))

    def is_written(self, job: str) -> bool:
        """Whether what was decided of it is on disk."""
        known = self.written.get(job)
        return known is not None and known.version == self.decided[job].version

    # -- writing

    def has_room(self) -> bool:
        """Whether another job can be remembered; the one that ended longest ago gives way."""
        return len(self._slots) < SLOTS or any(is_final(record.state) for record in self.written.values())

    def add(self, now: int, record: JobRecord, *then: object) -> list[object]:
        """A new job. Ask `has_room` first."""
        self._slots[record.job] = self._free_slot()
        if record.key:
            self._keys[record.key] = record.job
        return self.put(now, record, *then)

    def put(self, now: int, record: JobRecord, *then: object) -> list[object]:
        """Decide this. `then` is done once a majority has it on disk."""
        before = self.decided.get(record.job)
        record = msgspec.structs.replace(record, version=1 + (before.version if before is not None else 0))
        self.decided[record.job] = record
        self._held.setdefault(record.job, []).extend(_Held(record.version, effect) for effect in then)
        return self._write(now, record.job)

    def once_written(self, record: JobRecord, effect: object) -> list[object]:
        """Now, if this is on disk; else once it is."""
        known = self.written.get(record.job)
        if known is not None and known.version >= record.version:
            return [effect]
        held, wanted = self._held.setdefault(record.job, []), _Held(record.version, effect)
        if wanted not in held:  # who waits asks again and again
            held.append(wanted)
        return []

    def write_again(self, now: int) -> list[object]:
        """Writes that did not come through."""
        return [effect for job in list(self._dirty) for effect in self._write(now, job)]

    def _write(self, now: int, job: str) -> list[object]:
        if any(record.job == job for record in self._writing.values()):
            return []  # written again when that has ended
        record = self.decided[job]
        self._refs += 1
        self._writing[self._refs] = record
        self._dirty.pop(job, None)
        return [*self._voter.write(now, self._refs, f"{PREFIX}{self._slots[job]:03d}", encode_record(record))]

    def on_write_ended(self, now: int, ended: WriteEnded) -> list[object]:
        record = self._writing.pop(ended.ref, None)
        if record is None:
            return []
        job = record.job
        if ended.outcome != "accepted":
            self._dirty[job] = None
            return []
        self.written[job] = record
        held = self._held.pop(job, [])
        effects = [each.effect for each in held if each.version <= record.version]
        later = [each for each in held if each.version > record.version]
        if later:
            self._held[job] = later
        if self.decided[job].version > record.version:
            effects += self._write(now, job)
        return effects

    # -- slots

    def _free_slot(self) -> int:
        used = set(self._slots.values())
        for slot in range(SLOTS):
            if slot not in used:
                return slot
        # Of one whose end is not on disk yet, somebody still waits for that.
        ended = [record for record in self.written.values() if is_final(record.state)]
        oldest = min(ended, key=lambda record: (record.ended_ms, record.number))
        del self.decided[oldest.job], self.written[oldest.job]
        self._keys.pop(oldest.key, None)
        return self._slots.pop(oldest.job)
