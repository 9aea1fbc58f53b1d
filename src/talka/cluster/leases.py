"""Keys that one owner holds for a while: the leader's half and the owner's half.

A grant is a write to the majority's register with an epoch one higher. A renewal is answered from the leader's memory,
so a heartbeat is never a write. Only durations travel: the owner counts from before it asked and shorter by the drift
that clocks may have, the leader counts from when it answered and longer by as much. So the owner's count ends first
as long as each clock runs within 2 % of true time. Beyond that, only the epoch as a fencing token protects.

Clocks here count while the machine is suspended.

Gray and Cheriton, "Leases" (1989). docs/decisions/0012-the-holes-of-leadership.md. No node uses these leases yet:
slots and gates will.
"""

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from talka.errors import Unavailable
from talka.units import NEVER
from talka.wire.channels import Codec

DRIFT_PERCENT: Final = 2
KEYS_LIMIT: Final = 4096
"""Keys of one table, and of one holder. The shards of all jobs are a quarter of it."""
TTL_LEAST_NS: Final = 10_000_000
TTL_MOST_NS: Final = 3_600_000_000_000
"""Longer, and a crashed owner would block its key for more than an hour."""
REQUESTS_LIMIT: Final = 8
"""Unanswered requests for one key whose answers still count: all retries that fit between renewal and end."""


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True):
    """A lease as the register keeps it. It says who holds the key, not until when: that is known in memory only."""

    owner: str
    epoch: Annotated[int, msgspec.Meta(ge=1)]
    ttl_ns: Annotated[int, msgspec.Meta(ge=1)]


# Taking a key for free whose value cannot be read would be unsafe: a leader that finds one stops.
RECORDS: Final[Codec[LeaseRecord]] = Codec(LeaseRecord, "the register holds a value that is no lease")
encode_record, decode_record = RECORDS.encode, RECORDS.decode


# What the leader answers.


class Write(msgspec.Struct, frozen=True):
    """Write `value` under `key` to the register, then say `committed` or `abandoned`. Answer nobody before."""

    key: str
    value: bytes
    epoch: int


class GrantedNow(msgspec.Struct, frozen=True):
    """Tell the owner that it holds the key, newly or on: its request `number` is answered."""

    key: str
    owner: str
    epoch: int
    ttl_ns: int
    number: int


class HeldLease(msgspec.Struct, frozen=True):
    """Another owner holds the key; it is worth asking again after `wait_ns`."""

    owner: str
    epoch: int
    wait_ns: int


class Ended(msgspec.Struct, frozen=True):
    """The asker no longer holds this epoch. It stops, and may ask anew with epoch 0."""

    epoch: int


class Busy(msgspec.Struct, frozen=True):
    """A write of this key is under way, or the leader has not taken over yet: ask again soon."""


class LeasesFull(msgspec.Struct, frozen=True):
    """The table has no room for a new key."""

    limit: int


class LeaseExpired(msgspec.Struct, frozen=True):
    """News at the leader: the owner did not renew, the key is free."""

    key: str
    owner: str
    epoch: int


Answer: TypeAlias = Write | GrantedNow | HeldLease | Ended | Busy | LeasesFull
BUSY: Final = Busy()


class _Pending(msgspec.Struct, frozen=True):
    record: LeaseRecord
    number: int


class _Lease:
    __slots__ = ("highest_epoch", "is_free", "pending", "record", "until")

    def __init__(self, record: LeaseRecord | None, until: int) -> None:
        self.record = record
        self.until = until
        self.is_free = record is None
        """Released, or its end was told."""
        self.highest_epoch = 0 if record is None else record.epoch
        """Of all that were sent to the register: also a write that seemed to fail may have been kept."""
        self.pending: _Pending | None = None

    def current(self, now: int) -> LeaseRecord | None:
        return None if self.is_free or now >= self.until else self.record


class LeaseTable:
    """Who holds which key, at the leader.

    Call `take_over` when elected, with everything the register holds, and `stepped_down` when leadership ends; in
    between, and only while the leader's own lease holds at `now`, call the rest. Every `Write` is followed by exactly
    one `committed` or `abandoned`. An owner is a name that one process has at a time. Keys are never dropped, because
    their epochs must go on growing: at `limit` new ones are refused.
    """

    __slots__ = ("_is_serving", "_leases", "_limit", "next_tick_at")

    def __init__(self, limit: int = KEYS_LIMIT) -> None:
        self._leases: dict[str, _Lease] = {}
        self._limit = limit
        self._is_serving = False
        self.next_tick_at = NEVER
        """No lease ends before this; call `expire` then."""

    def __len__(self) -> int:
        return len(self._leases)

    def take_over(self, now: int, records: Mapping[str, bytes]) -> None:
        """Start from the register's values.

        When a lease was renewed last is not known, so each counts as renewed now: nobody else gets its key before it
        has certainly run out.
        """
        leases: dict[str, _Lease] = {}
        soonest = NEVER
        for key, content in records.items():
            record = decode_record(content)
            until = self._end(now, record.ttl_ns)
            soonest = min(soonest, until)
            leases[key] = _Lease(record, until)
        self._leases = leases
        self.next_tick_at = soonest
        self._is_serving = True

    def stepped_down(self) -> None:
        """Forget everything: another leader may answer from now on."""
        self._leases = {}
        self.next_tick_at = NEVER
        self._is_serving = False

    def acquire(self, now: int, key: str, owner: str, ttl_ns: int, epoch: int = 0, number: int = 0) -> Answer:
        """Answer `owner`, who asks for the key anew (`epoch` 0) or to keep the epoch it holds.

        A renewal keeps the time to live of its grant, because only that one is in the register. An owner that asks
        anew for what it holds has lost its memory: it gets a new epoch at once. `ttl_ns` is brought within the limits;
        the answer says what was granted.
        """
        if not self._is_serving:
            return BUSY
        lease = self._leases.get(key)
        if lease is None:
            if epoch:
                return Ended(epoch)
            if len(self._leases) >= self._limit:
                return LeasesFull(self._limit)
            lease = self._leases[key] = _Lease(None, now)
        if lease.pending is not None:
            return BUSY
        current = lease.current(now)
        if epoch:
            if current is None or current.epoch != epoch or current.owner != owner:
                return Ended(epoch)
            lease.until = self._end(now, current.ttl_ns)
            return GrantedNow(key, owner, epoch, current.ttl_ns, number)
        if current is not None and current.owner != owner:
            return HeldLease(current.owner, current.epoch, lease.until - now)
        # A number written once is not written again, even if that write seemed to fail.
        lease.highest_epoch += 1
        ttl_ns = min(max(ttl_ns, TTL_LEAST_NS), TTL_MOST_NS)
        record = LeaseRecord(owner, lease.highest_epoch, ttl_ns)
        lease.pending = _Pending(record, number)
        return Write(key, encode_record(record), record.epoch)

    def committed(self, now: int, key: str, epoch: int) -> GrantedNow | None:
        """A majority has this write: what to tell the owner. None when the write is not the one under way."""
        lease = self._leases.get(key)
        if lease is None or lease.pending is None or lease.pending.record.epoch != epoch:
            return None
        record, number = lease.pending.record, lease.pending.number
        lease.pending = None
        lease.record = record
        lease.is_free = False
        lease.until = self._end(now, record.ttl_ns)
        self.next_tick_at = min(self.next_tick_at, lease.until)
        return GrantedNow(key, record.owner, epoch, record.ttl_ns, number)

    def abandoned(self, key: str, epoch: int) -> None:
        """This write failed or its outcome is unknown: its owner was not told, so it holds nothing."""
        lease = self._leases.get(key)
        if lease is not None and lease.pending is not None and lease.pending.record.epoch == epoch:
            lease.pending = None

    def release(self, key: str, owner: str, epoch: int) -> bool:
        """The owner has stopped and gives the key back: whether it was the holder. No write: a later leader waits."""
        lease = self._leases.get(key)
        if lease is None or lease.is_free or lease.record is None:
            return False
        if lease.record.epoch != epoch or lease.record.owner != owner:
            return False
        lease.is_free = True
        return True

    def expire(self, now: int) -> list[LeaseExpired]:
        """Leases that ran out, each told once. One that was granted anew before it was told is not."""
        if now < self.next_tick_at:
            return []
        expired: list[LeaseExpired] = []
        soonest = NEVER
        for key, lease in self._leases.items():
            record = lease.record
            if lease.is_free or record is None:
                continue
            if now >= lease.until:
                lease.is_free = True
                expired.append(LeaseExpired(key, record.owner, record.epoch))
            elif lease.until < soonest:
                soonest = lease.until
        self.next_tick_at = soonest
        return expired

    def holder(self, now: int, key: str) -> LeaseRecord | None:
        """The lease of this key, as far as the leader must respect it."""
        lease = self._leases.get(key)
        return None if lease is None else lease.current(now)

    def _end(self, now: int, ttl_ns: int) -> int:
        return now + ttl_ns + margin_ns(ttl_ns)


def margin_ns(ttl_ns: int) -> int:
    """What a clock may be off over `ttl_ns`, rounded up: to the safe side at both ends."""
    return -(-ttl_ns * DRIFT_PERCENT // 100)


# What the owner is told by its own half.


class LeaseRequest(msgspec.Struct, frozen=True):
    """What a request carries; its answer carries `number` back."""

    key: str
    number: int
    epoch: int
    """The epoch to keep, 0 to ask anew."""


class LeaseGranted(msgspec.Struct, frozen=True):
    """News: the key is held under a new epoch, at first until this instant of the local clock."""

    key: str
    epoch: int
    until: int


class LeaseLost(msgspec.Struct, frozen=True):
    """News: the key is no longer held; stop what it protects. This epoch is never held again."""

    key: str
    epoch: int


class RenewDue(msgspec.Struct, frozen=True):
    """It is time to call `requested` for this key and send what it returns."""

    key: str


HolderNews: TypeAlias = LeaseGranted | LeaseLost | RenewDue


class _Claim:
    __slots__ = ("asked", "due", "epoch", "ttl_ns", "until")

    def __init__(self) -> None:
        self.epoch = 0
        """0 while nothing is held."""
        self.until = 0
        self.due = 0
        self.ttl_ns = 0
        self.asked: dict[int, int] = {}
        """When each unanswered request was made, oldest first."""


class LeaseHolder:
    """Which keys this process holds, by its own clock.

    Call `requested` before a request is sent, and `granted`, `refused` or `lost` for its answer; call `tick` once
    `next_tick_at` has come. Before every effect ask `holds`, and send the epoch along. `first_number` is drawn at
    every start, so that answers to a former life match nothing.
    """

    __slots__ = ("_claims", "_limit", "_number", "next_tick_at")

    def __init__(self, first_number: int, limit: int = KEYS_LIMIT) -> None:
        self._claims: dict[str, _Claim] = {}
        self._number = first_number
        self._limit = limit
        self.next_tick_at = NEVER

    def __len__(self) -> int:
        return len(self._claims)

    def requested(self, now: int, key: str) -> LeaseRequest:
        """A request for this key is about to be sent: what it says. Its lease will be counted from `now`."""
        claim = self._claims.get(key)
        if claim is None:
            self._make_room(key)
            claim = self._claims[key] = _Claim()
        number = self._number
        self._number += 1
        if len(claim.asked) >= REQUESTS_LIMIT:
            del claim.asked[next(iter(claim.asked))]
        claim.asked[number] = now
        return LeaseRequest(key, number, claim.epoch if now < claim.until else 0)

    def granted(self, now: int, key: str, number: int, epoch: int, ttl_ns: int) -> list[HolderNews]:
        """The leader granted or renewed: the answer to request `number`. An answer to no open request is ignored."""
        claim = self._claims.get(key)
        asked_at = None if claim is None else claim.asked.get(number)
        if claim is None or asked_at is None:
            return []
        claim.asked = {later: at for later, at in claim.asked.items() if later > number}
        until = asked_at + ttl_ns - margin_ns(ttl_ns)
        held = claim.epoch
        if held and now >= claim.until and epoch <= held:
            # Renewed too late: between the two the key was not held, and an epoch is one unbroken hold.
            del self._claims[key]
            return [LeaseLost(key, held)]
        if now >= until or epoch < held:
            self._drop_if_idle(key, claim)
            return []
        claim.ttl_ns = ttl_ns
        claim.due = asked_at + ttl_ns // 3
        # The answer to the first of several requests may bring the next renewal forward.
        self.next_tick_at = min(self.next_tick_at, claim.due, until)
        if epoch == held:
            claim.until = max(claim.until, until)
            return []
        claim.epoch = epoch
        claim.until = until
        news: list[HolderNews] = [LeaseLost(key, held)] if held else []
        news.append(LeaseGranted(key, epoch, until))
        return news

    def refused(self, key: str, number: int) -> None:
        """The leader answered request `number` with anything but a grant. What is held stays held until its end."""
        claim = self._claims.get(key)
        if claim is not None:
            claim.asked.pop(number, None)
            self._drop_if_idle(key, claim)

    def lost(self, key: str, epoch: int) -> list[HolderNews]:
        """The leader says that this epoch has ended."""
        claim = self._claims.get(key)
        if claim is None or claim.epoch != epoch or not epoch:
            return []
        del self._claims[key]
        return [LeaseLost(key, epoch)]

    def released(self, key: str) -> int | None:
        """Hold and want this key no longer: the epoch to give back, None when none was held."""
        claim = self._claims.pop(key, None)
        return claim.epoch if claim is not None and claim.epoch else None

    def holds(self, now: int, key: str) -> int | None:
        """The epoch under which this key is held at `now`."""
        claim = self._claims.get(key)
        return claim.epoch if claim is not None and now < claim.until else None

    def ends_at(self, key: str) -> int | None:
        """When this key's lease ends unless it is renewed, or has ended untold; None when none is held."""
        claim = self._claims.get(key)
        return claim.until if claim is not None and claim.epoch else None

    def tick(self, now: int) -> list[HolderNews]:
        """What ended, and what is to be renewed: at a third of its time, then every ninth while no answer comes."""
        if now < self.next_tick_at:
            return []
        news: list[HolderNews] = []
        ended: list[str] = []
        soonest = NEVER
        for key, claim in self._claims.items():
            if not claim.epoch:
                continue
            if now >= claim.until:
                news.append(LeaseLost(key, claim.epoch))
                ended.append(key)
                continue
            # A first renewal that is nearly due goes with those that are: leases fall into step and share a pass.
            early_ns = 0 if claim.asked else claim.ttl_ns // 12
            if now + early_ns >= claim.due:
                news.append(RenewDue(key))
                claim.due = now + claim.ttl_ns // 9
            soonest = min(soonest, claim.due, claim.until)
        for key in ended:
            del self._claims[key]
        self.next_tick_at = soonest
        return news

    def _make_room(self, key: str) -> None:
        if len(self._claims) < self._limit:
            return
        idle = next((other for other, claim in self._claims.items() if not claim.epoch), None)
        if idle is None:
            raise Unavailable(
                f"lease of {key!r}: this node holds {self._limit} leases, and that is the most; release one first"
            )
        del self._claims[idle]

    def _drop_if_idle(self, key: str, claim: _Claim) -> None:
        if not claim.epoch and not claim.asked:
            del self._claims[key]
