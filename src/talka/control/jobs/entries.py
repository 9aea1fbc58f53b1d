"""The entries of all jobs, as the cluster's leader writes them to the register.

An entry is decided first and then put on a majority of disks; what follows from it waits for that. One write of a job
is under way at a time: what is decided meanwhile goes with the next.

Decision: docs/decisions/0018-who-may-act-on-a-job.md.
"""

from typing import Final

import msgspec

from talka.cluster.leadership.news import WriteEnded
from talka.control.jobs.effects import Alarmed, JobsEffect
from talka.control.member.voter import Voter
from talka.units import MILLISECOND
from talka.wire.channels import BadMessage
from talka.wire.entries import SLOTS, JobEntry, decode_entry, encode_entry
from talka.work.lifecycle import JobState, is_final
from talka.work.retention import Retention

PREFIX: Final = "job/"


class _Held(msgspec.Struct, frozen=True):
    version: int
    effect: JobsEffect


class EntryBook:
    """Reads what the register holds when it is made. `put` and `on_write_ended` return effects."""

    def __init__(self, voter: Voter, slots: int = SLOTS) -> None:
        self.slots = slots
        """Jobs that are remembered."""
        assert voter.election.leader_term is not None
        self.decided: dict[str, JobEntry] = {}
        """By job; what is on disk may be a version behind."""
        self.written: dict[str, JobEntry] = {}
        """What a majority has on disk: only this is told to anybody."""
        self.alarms: list[Alarmed] = []
        self._voter = voter
        self._slots: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._held: dict[str, list[_Held]] = {}
        self._writing: dict[int, JobEntry] = {}
        self._dirty: dict[str, None] = {}
        self._leaving: dict[int, str] = {}
        """Jobs that are dropped as soon as a majority has it on disk, by write."""
        self._refs = 0
        for key, value in voter.election.leader_term.values().items():
            if key.startswith(PREFIX) and value:
                self._read(key, value)

    def _read(self, key: str, value: bytes) -> None:
        try:
            entry, slot = decode_entry(value), int(key.removeprefix(PREFIX))
        except (BadMessage, ValueError) as problem:
            self.alarms.append(Alarmed(f"{key}: {problem}"))
            return
        self.decided[entry.job] = self.written[entry.job] = entry
        self._slots[entry.job] = slot
        if entry.key:
            self._keys[entry.key] = entry.job

    def in_order(self) -> list[JobEntry]:
        """As they were submitted."""
        return sorted(self.decided.values(), key=lambda entry: entry.number)

    def by_key(self, key: str) -> JobEntry | None:
        """The job of an idempotency key."""
        return self.decided.get(self._keys.get(key, ""))

    def is_written(self, job: str) -> bool:
        """Whether what was decided of it is on disk."""
        known = self.written.get(job)
        return known is not None and known.version == self.decided[job].version

    # -- writing

    def has_room(self) -> bool:
        """Whether another job can be remembered; the one that ended longest ago gives way."""
        return len(self._slots) < self.slots or bool(self._ended())

    def add(self, now: int, entry: JobEntry, *then: JobsEffect) -> list[JobsEffect]:
        """A new job. Ask `has_room` first."""
        self._slots[entry.job] = self._free_slot()
        if entry.key:
            self._keys[entry.key] = entry.job
        return self.put(now, entry, *then)

    def put(self, now: int, entry: JobEntry, *then: JobsEffect) -> list[JobsEffect]:
        """Decide this. `then` is done once a majority has it on disk."""
        before = self.decided.get(entry.job)
        entry = msgspec.structs.replace(entry, version=1 + (before.version if before is not None else 0))
        self.decided[entry.job] = entry
        self._held.setdefault(entry.job, []).extend(_Held(entry.version, effect) for effect in then)
        return self._write(now, entry.job)

    def once_written(self, entry: JobEntry, effect: JobsEffect) -> list[JobsEffect]:
        """Now, if this is on disk; else once it is."""
        known = self.written.get(entry.job)
        if known is not None and known.version >= entry.version:
            return [effect]
        held, wanted = self._held.setdefault(entry.job, []), _Held(entry.version, effect)
        if wanted not in held:  # who waits asks again and again
            held.append(wanted)
        return []

    def write_again(self, now: int) -> list[JobsEffect]:
        """Writes that did not come through."""
        return [effect for job in list(self._dirty) for effect in self._write(now, job)]

    def _write(self, now: int, job: str) -> list[JobsEffect]:
        if any(entry.job == job for entry in self._writing.values()):
            return []  # written again when that has ended
        entry = self.decided[job]
        self._refs += 1
        self._writing[self._refs] = entry
        self._dirty.pop(job, None)
        return [*self._voter.write(now, self._refs, self._key_of(job), encode_entry(entry))]

    def on_write_ended(self, now: int, ended: WriteEnded) -> list[JobsEffect]:
        if (leaving := self._leaving.pop(ended.ref, None)) is not None:
            if ended.outcome == "accepted":  # else it is tried again with the next sweep
                self._forget(leaving)
            return []
        entry = self._writing.pop(ended.ref, None)
        if entry is None:
            return []
        job = entry.job
        if ended.outcome != "accepted":
            self._dirty[job] = None
            return []
        self.written[job] = entry
        held = self._held.pop(job, [])
        effects = [each.effect for each in held if each.version <= entry.version]
        later = [each for each in held if each.version > entry.version]
        if later:
            self._held[job] = later
        if self.decided[job].version > entry.version:
            effects += self._write(now, job)
        return effects

    # -- slots

    def _free_slot(self) -> int:
        used = set(self._slots.values())
        for slot in range(self.slots):
            if slot not in used:
                return slot
        return self._forget(self._ended()[0].job)

    def _ended(self) -> list[JobEntry]:
        """Those that can be dropped, the one that ended longest ago first. Of one whose end is not on disk yet,
        somebody still waits for that."""
        leaving = self._leaving.values()
        ended = [entry for entry in self.written.values() if is_final(entry.state) and entry.job not in leaving]
        return sorted(ended, key=lambda entry: (entry.ended_ms, entry.number))

    def _forget(self, job: str) -> int:
        """The slot that it leaves."""
        self._keys.pop(self.decided.pop(job).key, None)
        del self.written[job]
        return self._slots.pop(job)

    # -- retention

    def sweep(self, now: int, wall_ms: int, kept: Retention) -> list[JobsEffect]:
        """Drop jobs that ended long ago, or beyond so many that did. `wall_ms`: the clock of the day, as in entries."""
        effects: list[JobsEffect] = []
        ended = self._ended()
        for is_completed in (True, False):
            keep = kept.of(is_completed=is_completed)
            alike = [entry for entry in ended if (entry.state is JobState.COMPLETED) is is_completed]
            before_ms = wall_ms - keep.age_ns // MILLISECOND
            for place, entry in enumerate(alike):
                if entry.ended_ms <= before_ms or place < len(alike) - keep.count:
                    self._refs += 1
                    self._leaving[self._refs] = entry.job
                    effects += self._voter.write(now, self._refs, self._key_of(entry.job), b"")
        return effects

    def _key_of(self, job: str) -> str:
        return f"{PREFIX}{self._slots[job]:03d}"
