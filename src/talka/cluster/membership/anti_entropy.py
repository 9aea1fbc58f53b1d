"""Compares whole views, cheaply when they agree: a digest of each bucket first, then the records of those that differ.

Demers and others, "Epidemic algorithms for replicated database maintenance" (1987): anti-entropy.
docs/decisions/0013-membership-measures-itself.md.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from talka.cluster.membership.members import SUSPECT, Member
from talka.wire.membership import BUCKETS, DIGEST_BYTES, PAGE_LIMIT_BYTES, Alive, MemberRecord, MemberState

_MASK = (1 << 8 * DIGEST_BYTES) - 1
# What a record's numbers and lengths take at most, and what is around the records of a page.
_RECORD_BYTES = 64
_AROUND_BYTES = 8 * 1024


# Both are asked for the same few members again and again; a large group fits.
@lru_cache(maxsize=16_384)
def bucket_of(name: str) -> int:
    return blake2b(name.encode(), digest_size=1).digest()[0] % BUCKETS


def own_record(me: Alive, state: MemberState | None) -> MemberRecord:
    own = (me.name, me.boot, me.incarnation, me.address, me.zone, me.meta)
    return MemberRecord(*own, 0, state, certificate=me.certificate, signature=me.signature)


def record_of(member: Member) -> MemberRecord:
    return MemberRecord(
        member.name,
        member.boot,
        member.incarnation,
        member.address,
        member.zone,
        member.meta,
        int(member.status),
        member.state,
        member.accuser,
        member.reason,
        member.certificate,
        member.signature,
    )


def digests(me: Alive, state: MemberState | None, members: Iterable[Member]) -> bytes:
    """One digest for each bucket: of lives, incarnations and versions of the living, in whatever order.

    The dead are left out: each forgets them at its own time. So is the difference between alive and suspected: it
    passes by itself.
    """
    sums = [0] * BUCKETS
    sums[bucket_of(me.name)] += _digest(me.name, me.boot, me.incarnation, state.version if state else 0)
    for member in members:
        if member.status <= SUSPECT:
            name = member.name
            sums[bucket_of(name)] += _digest(name, member.boot, member.incarnation, member.version)
    return b"".join((total & _MASK).to_bytes(DIGEST_BYTES, "big") for total in sums)


def differing(ours: bytes, theirs: bytes) -> list[int]:
    """The buckets that differ. Digests of another length tell nothing: then all do."""
    if len(theirs) != len(ours):
        return list(range(BUCKETS))
    if ours == theirs:
        return []
    return [
        bucket
        for bucket in range(BUCKETS)
        if ours[bucket * DIGEST_BYTES : (bucket + 1) * DIGEST_BYTES]
        != theirs[bucket * DIGEST_BYTES : (bucket + 1) * DIGEST_BYTES]
    ]


def records_in(
    buckets: list[int], me: Alive, state: MemberState | None, members: Iterable[Member]
) -> list[MemberRecord]:
    """All that is known in these buckets, the living first: who refutes must be known before it is accused."""
    if not buckets:
        return []
    wanted = [False] * BUCKETS
    for bucket in buckets:
        wanted[bucket] = True
    records = [own_record(me, state)] if wanted[bucket_of(me.name)] else []
    records += [record_of(member) for member in members if wanted[bucket_of(member.name)]]
    records.sort(key=lambda record: (record.status, record.name))
    return records


def not_in(records: list[MemberRecord], theirs: list[MemberRecord]) -> list[MemberRecord]:
    """Those that the other side did not just send itself."""
    known = {record.name: record for record in theirs}
    return [record for record in records if not _says_the_same(record, known.get(record.name))]


def pages(records: list[MemberRecord]) -> list[list[MemberRecord]]:
    """The records in frames that stay below the limit; one empty page when there are none.

    That keeps them below the limit of a page's records as well: each is counted with `_RECORD_BYTES` at least.
    """
    made: list[list[MemberRecord]] = [[]]
    room = PAGE_LIMIT_BYTES - _AROUND_BYTES
    for record in records:
        size = _size_bytes(record)
        if size > room:
            made.append([])
            room = PAGE_LIMIT_BYTES - _AROUND_BYTES
        made[-1].append(record)
        room -= size
    return made


@lru_cache(maxsize=16_384)
def _digest(name: str, boot: int, incarnation: int, version: int) -> int:
    text = f"{boot} {incarnation} {version} {name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "big")


def _says_the_same(record: MemberRecord, other: MemberRecord | None) -> bool:
    return (
        other is not None
        and (record.boot, record.incarnation, record.status) == (other.boot, other.incarnation, other.status)
        and (record.state.version if record.state else 0) == (other.state.version if other.state else 0)
    )


def _size_bytes(record: MemberRecord) -> int:
    """At least what it takes encoded: a character takes up to four bytes."""
    texts = len(record.name) + len(record.address) + len(record.zone) + len(record.accuser) + len(record.reason)
    state = len(record.state.payload) + len(record.state.signature) if record.state else 0
    return _RECORD_BYTES + 4 * texts + len(record.meta) + state + len(record.certificate) + len(record.signature)
