"""One leader in one term: its lease, its take-over, its writes and reads, and the voters it brings up to date.

Made when a majority has voted, dropped when leadership ends; nothing of it outlives the term.

Raft (Ongaro's dissertation) §6.4 reads proven by heartbeats, §6.4.1 leases, §4.1 one voter changes at a time; the
take-over is phase 1 of Paxos. docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.fencing import Token
from talka.cluster.leadership.lease_terms import WORKER_LEASE_KEY, LeaseFit, decode_terms, told
from talka.cluster.leadership.news import ConfigChanged, Elected, LeadershipEffect, LeaseExtended, ReadEnded, WriteEnded
from talka.cluster.leadership.quorum import BadVoters, check_size
from talka.cluster.leadership.register import KEYS_LIMIT, Acceptor
from talka.cluster.leadership.snapshot_transfer import SnapshotTransfer
from talka.cluster.leadership.timings import LeadershipConfig
from talka.cluster.leadership.voters import (
    CONFIG_KEY,
    LEADER_KEY,
    Electorate,
    VoterConfig,
    decode_config,
    encode_config,
)
from talka.cluster.safeguards import Safeguards
from talka.units import NEVER
from talka.wire.leadership import (
    CHANNEL,
    KEY_LIMIT,
    VALUE_LIMIT_BYTES,
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    LeadershipMessage,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    SnapshotReply,
    Version,
    VoterHello,
    pages,
)

ROUNDS_KEPT: Final = 128
"""More than reads can begin within a lease; older rounds could not renew it any more."""
BATCHES_LIMIT: Final = 256
VALUES_LIMIT_BYTES: Final = 48 * 1024 * 1024
"""Of all values together: what is held must fit into the batches, and the pages of a lesson, that may be under way."""
READS_LIMIT: Final = 256


class _Round(msgspec.Struct):
    sent_at: int
    replies: dict[str, int]
    """Who answered, and how much it doubts itself."""
    is_confirmed: bool = False


class _Batch(msgspec.Struct):
    entries: tuple[RegisterEntry, ...]
    accepted: dict[str, None]
    deadline: int
    ref: int | None = None
    excluding: str = ""
    is_takeover: bool = False


class _Joining(msgspec.Struct, frozen=True):
    """A voter that is to be added: it is being taught, with the change that adds it."""

    name: str
    change: RegisterEntry
    ref: int
    deadline: int


class LeaderTerm:
    """What the leader of `term` does. Every method adds what is to be said and told to `out`."""

    def __init__(
        self,
        now: int,
        *,
        me: str,
        term: int,
        parent: int,
        config: LeadershipConfig,
        electorate: Electorate,
        acceptor: Acceptor,
        founding: VoterConfig | None,
        fit: LeaseFit,
        safeguards: Safeguards,
    ) -> None:
        self.me = me
        self.term = term
        self.lease_until = 0
        self.is_serving = False
        """Whether the take-over is done and the token installed."""
        self.next_at = now
        self._token = Token(parent, term, 1)
        self._config = config
        self._electorate = electorate
        self._acceptor = acceptor
        self._founding = founding
        self._fit = fit
        self.objection = ""
        """Why this voter may not lead by what a majority holds."""
        self._safeguards = safeguards
        self._started_at = now
        self._rounds: dict[int, _Round] = {}
        self._round = 0
        self._beaten_at = now
        self._cursors: dict[str, str] = dict.fromkeys(electorate.others(), "")  # voters whose values are being read
        self._read_from: dict[str, None] = {me: None}
        self._best: dict[str, RegisterEntry] = dict(acceptor.entries)
        self._is_collecting = True
        self._batches: dict[int, _Batch] = {}
        self._batch = 0
        self._sequence = 1  # the token's own; writes follow
        self._committed: dict[str, RegisterEntry] = {}
        self._size_bytes = 0
        self._busy: dict[str, int] = {}
        self._reads: list[tuple[int, str, int]] = []  # ref, key, the first round that may answer it
        self._lessons = SnapshotTransfer(term)
        self._joining: _Joining | None = None
        self._settling = 0  # voters change no further before all batches up to this one are on a majority

    # -- the lease

    def holds_lease(self, now: int) -> bool:
        return now < self.lease_until

    def deadline(self) -> int:
        """When leadership ends unless a majority answers."""
        if not self._safeguards.check_quorum:
            return NEVER
        return self.lease_until or self._started_at + self._config.lease_ns

    def tick(self, now: int, out: list[LeadershipEffect]) -> None:
        if now >= self.next_at:
            self._beat(now, out)

    def _beat(self, now: int, out: list[LeadershipEffect]) -> None:
        self._round += 1
        self._rounds[self._round] = _Round(now, {self.me: 0})
        oldest = next(iter(self._rounds))
        if len(self._rounds) > ROUNDS_KEPT or self._rounds[oldest].sent_at < now - self._config.lease_ns:
            del self._rounds[oldest]
        self._beaten_at = now
        self.next_at = now + self._config.heartbeat_ns
        terms = told(self.value_of(WORKER_LEASE_KEY))
        group_id, lease_ns = self._acceptor.record.group_id, self._config.lease_ns
        self._say_to_others(Heartbeat(self.term, self._round, group_id, lease_ns, terms), out)
        self._say_again(now, out)
        self._confirm(now, self._round, out)  # a group of one voter needs no answer

    def _say_to_others(self, message: LeadershipMessage, out: list[LeadershipEffect]) -> None:
        for name in self._electorate.others():
            out.append(Send(CHANNEL, name, message, Lane.CONTROL))

    def _say_again(self, now: int, out: list[LeadershipEffect]) -> None:
        """Whatever was not answered may have been lost."""
        if self._is_collecting:
            for name, after in self._cursors.items():
                out.append(Send(CHANNEL, name, Collect(self.term, after), Lane.CONTROL))
        for number, batch in self._batches.items():
            proposal = Propose(self.term, number, batch.entries)
            for name in (*self._electorate.others(), self.me):
                if name not in batch.accepted:
                    out.append(Send(CHANNEL, name, proposal, Lane.CONTROL))
            if batch.ref is not None and now >= batch.deadline:
                out.append(WriteEnded(batch.ref, "unknown", reason="no majority answered in time"))
                batch.ref = None
        self._lessons.go_on(self._acceptor.record.group_id, out)
        joining = self._joining
        if joining is not None and now >= joining.deadline:
            self._joining = None
            self._lessons.stop(joining.name)
            # It may have learned the change, and stand by it. No other change begins before a majority holds something
            # newer: of an even number of voters, two halves could otherwise follow two different changes.
            self._sequence += 1
            present = encode_config(self._electorate.config)
            self._propose(now, (RegisterEntry(CONFIG_KEY, Version(self.term, self._sequence), present),), out)
            out.append(WriteEnded(joining.ref, "unknown", reason=f"{joining.name!r} did not learn in time"))

    def on_heartbeat_reply(self, now: int, sender: str, message: HeartbeatReply, out: list[LeadershipEffect]) -> None:
        turn = self._rounds.get(message.round)
        if turn is not None:
            turn.replies[sender] = message.health
            self._confirm(now, message.round, out)
        config = self._committed.get(CONFIG_KEY)
        if config is not None and message.config < config.version:
            # It missed a change of the configuration, which is written once; what it says of others would be old.
            out.append(Send(CHANNEL, sender, Propose(self.term, 0, (config,)), Lane.CONTROL))

    def _confirm(self, now: int, number: int, out: list[LeadershipEffect]) -> None:
        turn = self._rounds[number]
        if turn.is_confirmed or not self._electorate.is_majority(now, turn.replies):
            return
        turn.is_confirmed = True
        start = turn.sent_at if self._safeguards.lease_from_send else now
        until = start + self._config.leader_lease_ns(self._safeguards)
        if until > self.lease_until:
            self.lease_until = until
            if self.is_serving:
                out.append(LeaseExtended(self.term, until))
            else:
                self._serve_if_ready(now, out)
        if self._reads:
            self._answer_reads(number, out)

    # -- taking over: read a majority, write back to a majority, then serve

    def begin(self, now: int, out: list[LeadershipEffect]) -> None:
        self._beat(now, out)
        self._write_back_if_read(now, out)

    def on_collected(self, now: int, sender: str, message: Collected, out: list[LeadershipEffect]) -> None:
        if not self._is_collecting or self._cursors.get(sender) != message.after:
            return
        for entry in message.entries:
            best = self._best.get(entry.key)
            if best is None or entry.version > best.version:
                self._best[entry.key] = entry
        if message.more and message.entries:
            self._cursors[sender] = message.entries[-1].key
            out.append(Send(CHANNEL, sender, Collect(self.term, message.entries[-1].key), Lane.CONTROL))
            return
        del self._cursors[sender]
        self._read_from[sender] = None
        self._write_back_if_read(now, out)

    def _write_back_if_read(self, now: int, out: list[LeadershipEffect]) -> None:
        if not self._electorate.is_majority(now, self._read_from):
            return
        terms = self._best.get(WORKER_LEASE_KEY)
        self.objection = "" if terms is None else self._fit.objection(decode_terms(terms.value))
        if self.objection:
            return  # nothing was written: whoever leads next finds what this one found
        self._is_collecting = False
        found = self._best.get(CONFIG_KEY)
        if found is not None:
            self._founding = None
            if found.version > self._acceptor.version_of(CONFIG_KEY):
                # It may never have reached a majority: until it is written back, both it and the one before count.
                self._electorate.pending = decode_config(found.value)
        token = Version(self.term, self._token.sequence)
        own = [RegisterEntry(LEADER_KEY, token, self.me.encode())]
        if self._founding is not None:
            own.append(RegisterEntry(CONFIG_KEY, token, encode_config(self._founding)))
        if terms is None and (content := self._fit.founding(self.me, self._token)) is not None:
            own.append(RegisterEntry(WORKER_LEASE_KEY, token, content))
        kept = [
            RegisterEntry(key, Version(self.term, 0), entry.value)
            for key, entry in sorted(self._best.items())
            if key != LEADER_KEY
        ]
        if self._safeguards.write_back:
            own += kept
        else:
            for entry in kept:
                self._commit(entry)
        for page in pages(own):
            self._propose(now, page, out, is_takeover=True)

    def _serve_if_ready(self, now: int, out: list[LeadershipEffect]) -> None:
        if self._is_collecting or any(batch.is_takeover for batch in self._batches.values()):
            return
        if self._electorate.config.disk_id_of(self.me) is None:
            return  # what it took over says that it votes no more
        if self.holds_lease(now):
            self.is_serving = True
            out.append(Elected(self._token, self.lease_until))

    # -- writes

    def _propose(
        self,
        now: int,
        entries: tuple[RegisterEntry, ...],
        out: list[LeadershipEffect],
        *,
        ref: int | None = None,
        excluding: str = "",
        is_takeover: bool = False,
    ) -> None:
        self._batch += 1
        deadline = now + self._config.write_timeout_ns
        self._batches[self._batch] = _Batch(entries, {}, deadline, ref, excluding, is_takeover)
        for entry in entries:
            self._busy[entry.key] = self._batch
        proposal = Propose(self.term, self._batch, entries)
        self._say_to_others(proposal, out)
        out.append(Send(CHANNEL, self.me, proposal, Lane.CONTROL))  # this voter's own disk is one of the majority

    def refusal(self, now: int, key: str) -> str:
        """Why a write of this key cannot be taken now; empty when it can."""
        if not self.is_serving or not self.holds_lease(now):
            return "this voter holds no lease"
        if key in self._busy:
            return "another write of this key is under way"
        if len(self._batches) >= BATCHES_LIMIT:
            return "too many writes are under way"
        if key not in self._committed and len(self._committed) + len(self._batches) >= KEYS_LIMIT:
            return f"the register holds {KEYS_LIMIT} keys already"
        return ""

    def write(self, now: int, ref: int, key: str, value: bytes, out: list[LeadershipEffect]) -> None:
        reason = self.refusal(now, key)
        if key in (CONFIG_KEY, LEADER_KEY) or not 0 < len(key) <= KEY_LIMIT:
            reason = f"a key has 1 to {KEY_LIMIT} characters and is not one of the group's own"
        elif len(value) > VALUE_LIMIT_BYTES:
            reason = f"a value may have {VALUE_LIMIT_BYTES} bytes, not {len(value)}"
        elif self._size_with(key, value) > VALUES_LIMIT_BYTES:
            reason = f"the register holds {self._size_bytes} bytes, and may hold {VALUES_LIMIT_BYTES}"
        if reason:
            out.append(WriteEnded(ref, "refused", reason=reason))
            return
        self._sequence += 1
        self._propose(now, (RegisterEntry(key, Version(self.term, self._sequence), value),), out, ref=ref)

    def on_accepted(self, now: int, sender: str, message: ProposalAccepted, out: list[LeadershipEffect]) -> None:
        self._count(now, sender, message.batch, out)

    def _count(self, now: int, sender: str, number: int, out: list[LeadershipEffect]) -> None:
        batch = self._batches.get(number)
        if batch is None:
            return
        batch.accepted[sender] = None
        if not self._electorate.is_majority(now, batch.accepted, batch.excluding):
            return
        del self._batches[number]
        for entry in batch.entries:
            self._busy.pop(entry.key, None)
            self._commit(entry)
            if entry.key == CONFIG_KEY:
                before, self._electorate.config = self._electorate.config, decode_config(entry.value)
                self._electorate.pending = None
                self._acceptor.confirm(self._electorate.config.group_id)
                if self._electorate.config != before:
                    out.append(ConfigChanged(self._electorate.config))
                    if self.is_serving and len(self._electorate.config.voters) != len(before.voters):
                        self._spread(now, out)
        if batch.ref is not None:
            out.append(WriteEnded(batch.ref, "accepted", batch.entries[0].version))
        if batch.is_takeover:
            self._serve_if_ready(now, out)

    def _commit(self, entry: RegisterEntry) -> None:
        self._size_bytes = self._size_with(entry.key, entry.value)
        self._committed[entry.key] = entry

    def _size_with(self, key: str, value: bytes) -> int:
        before = self._committed.get(key)
        return self._size_bytes + len(value) - (0 if before is None else len(before.value))

    def _spread(self, now: int, out: list[LeadershipEffect]) -> None:
        """Write everything to a majority of the present voters.

        One that went may have been one of a majority. One that came may count before it has learned everything: the
        old disk of a voter that was removed before accepts at once.
        """
        for page in pages([entry for key, entry in sorted(self._committed.items()) if key not in self._busy]):
            self._propose(now, page, out)
        self._settling = self._batch

    # -- reads: answered by a round of heartbeats that began after the question

    def read(self, now: int, ref: int, key: str, out: list[LeadershipEffect]) -> None:
        if not self.is_serving or len(self._reads) >= READS_LIMIT:
            reason = "this voter does not lead" if not self.is_serving else "too many reads are under way"
            out.append(ReadEnded(ref, "refused", reason=reason))
            return
        self._reads.append((ref, key, self._round + 1))
        self.next_at = min(self.next_at, self._beaten_at + self._config.read_spacing_ns)

    def _answer_reads(self, number: int, out: list[LeadershipEffect]) -> None:
        waiting = []
        for ref, key, first in self._reads:
            if first > number:
                waiting.append((ref, key, first))
                continue
            entry = self._committed.get(key)
            out.append(ReadEnded(ref, "accepted", None if entry is None else entry.value))
        self._reads = waiting

    def value_of(self, key: str) -> bytes | None:
        """What the register is known to hold. Only a read proves that it still does."""
        entry = self._committed.get(key)
        return None if entry is None else entry.value

    def values(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in sorted(self._committed.items())}

    # -- voters without state, and changes of the configuration

    def on_hello(self, now: int, sender: str, message: VoterHello, out: list[LeadershipEffect]) -> None:
        if not self.is_serving:
            return
        recorded = self._electorate.config.disk_id_of(sender)
        if recorded is not None and recorded != message.disk_id:
            # The voter's own word must not count: its disk has forgotten what it promised.
            self._change(now, self._electorate.config.with_storage(sender, message.disk_id), None, sender, out)
        elif recorded is None and self._lessons.apply(sender, message.disk_id):
            self._teach(sender, message.disk_id, out)
        elif recorded is not None and not message.admitted:
            self._teach(sender, message.disk_id, out)

    def _teach(self, name: str, disk_id: int, out: list[LeadershipEffect], change: RegisterEntry | None = None) -> None:
        """All this leader holds, and the change of the configuration that makes the learner a voter, if it is to be."""
        entries = {entry.key: entry for entry in self._acceptor.after("")}
        if change is not None:
            entries[change.key] = change
        held = [entries[key] for key in sorted(entries)]
        self._lessons.teach(name, disk_id, held, self._acceptor.record.group_id, out, is_last=change is not None)

    def on_snapshot_reply(self, now: int, sender: str, message: SnapshotReply, out: list[LeadershipEffect]) -> None:
        has_joined = self._lessons.on_reply(sender, message, self._acceptor.record.group_id, out)
        if has_joined and self._joining is not None and self._joining.name == sender:
            joining, self._joining = self._joining, None
            self._electorate.pending = decode_config(joining.change.value)
            self._propose(now, (joining.change,), out, ref=joining.ref)
            self._count(now, sender, self._batch, out)  # learning it was accepting it

    def change_voters(
        self, now: int, ref: int, names: tuple[str, ...], out: list[LeadershipEffect], *, allow_two: bool = False
    ) -> None:
        """Add or remove one voter. One that is added must have been brought up to date first."""
        config = self._electorate.config
        before, after = sorted(config.names()), sorted(dict.fromkeys(names))
        added = [name for name in after if name not in before]
        removed = [name for name in before if name not in after]
        reason = self.refusal(now, CONFIG_KEY)
        if len(added) + len(removed) != 1:
            reason = "voters change one at a time: name the present ones with one more or one less"
        elif problem := _size_problem(after, allow_two):
            reason = problem
        elif added and added[0] not in self._lessons.synced:
            reason = f"{added[0]!r} has not been brought up to date yet: start it, wait, and ask again"
        elif any(number <= self._settling for number in self._batches):
            reason = "everything is still being written to the voters of the last change: ask again"
        if reason:
            out.append(WriteEnded(ref, "refused", reason=reason))
        elif added:
            # A newcomer has promised nothing yet, so its word counts. But first it learns all there is, with the change
            # in it: whoever goes by the new configuration must find it able to vote, or too few may be left who can.
            name, disk_id = added[0], self._lessons.synced[added[0]]
            self._sequence += 1
            version = Version(self.term, self._sequence)
            change = RegisterEntry(CONFIG_KEY, version, encode_config(config.with_storage(name, disk_id)))
            self._joining = _Joining(name, change, ref, now + self._config.write_timeout_ns)
            self._busy[CONFIG_KEY] = 0
            self._teach(name, disk_id, out, change)
        else:
            self._change(now, config.without(removed[0]), ref, "", out)

    def _change(
        self, now: int, config: VoterConfig, ref: int | None, excluding: str, out: list[LeadershipEffect]
    ) -> None:
        if self.refusal(now, CONFIG_KEY):
            return
        self._electorate.pending = config
        self._sequence += 1
        entry = RegisterEntry(CONFIG_KEY, Version(self.term, self._sequence), encode_config(config))
        self._propose(now, (entry,), out, ref=ref, excluding=excluding)

    # -- the end

    def best_successor(self) -> tuple[str, int]:
        """Of those who answered lately the one that doubts itself least, and how much. No name when nobody did."""
        for number in sorted(self._rounds, reverse=True):
            replies = [(health, name) for name, health in self._rounds[number].replies.items() if name != self.me]
            if replies:
                health, name = min(replies)
                return name, health
        return "", 0

    def end(self, out: list[LeadershipEffect]) -> None:
        """Answer everybody who waits: the outcome of what was under way is not known."""
        self._electorate.pending = None
        for batch in self._batches.values():
            if batch.ref is not None:
                out.append(WriteEnded(batch.ref, "unknown", reason="leadership ended"))
        if self._joining is not None:
            out.append(WriteEnded(self._joining.ref, "unknown", reason="leadership ended"))
        for ref, _, _ in self._reads:
            out.append(ReadEnded(ref, "refused", reason="leadership ended"))
        self._batches.clear()
        self._reads.clear()


def _size_problem(voters: list[str], allow_two: bool) -> str:
    try:
        check_size(voters, allow_two)
    except BadVoters as problem:
        return str(problem)
    return ""
