"""The conversation of a group's voters: who leads, and what the majority register holds.

A voter that starts says VoterHello; peers answer VoterWelcome with what they remember of it. A candidate asks PreVote,
then Vote. A leader sends Heartbeat, reads what voters hold with Collect, writes with Propose, brings a voter without
state up to date with RegisterSnapshot, and gives leadership up with Released. Every message may be lost, doubled or
overtaken.

Raft (Ongaro, Ousterhout, 2014) section 5.2; Paxos Made Simple (Lamport, 2001) section 2.2.
Decision: docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from talka.wire.channels import Channel, Message
from talka.wire.packets import NAME_LIMIT

KEY_LIMIT: Final = 200
VALUE_LIMIT_BYTES: Final = 256 * 1024
PAGE_LIMIT_BYTES: Final = 512 * 1024
"""What entries in one message may add up to: it stays under a frame's limit whatever else is in it."""
PAGES_LIMIT: Final = 1024
ENTRIES_PER_PAGE: Final = 1024
WORKER_LEASE_LIMIT_BYTES: Final = 4096

Name = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_LIMIT)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Version(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which write a value is of: the leader's term, then its place among the writes of that term."""

    term: Count
    sequence: Count


class RegisterEntry(msgspec.Struct, frozen=True, array_like=True):
    key: Key
    version: Version
    value: Annotated[bytes, msgspec.Meta(max_length=VALUE_LIMIT_BYTES)]


Entries = Annotated[tuple[RegisterEntry, ...], msgspec.Meta(max_length=ENTRIES_PER_PAGE)]


class VoterHello(Message, frozen=True, tag=1):
    """I start (or still wait): this is my disk, and this far it is. What do you remember of me?"""

    disk_id: Count
    """Drawn when the disk was first used; another number is another disk."""
    revision: Count
    """How often the disk was written."""
    admitted: bool
    group_id: Count
    """The group's number, drawn once by its first leader; 0 before."""
    voters: Count
    """Digest of the voters this one was configured with: they must agree before the group is founded."""
    echo: Count = 0
    """The nonce of the receiver's last VoterWelcome: proof that this VoterHello is not one of an earlier life."""


class VoterWelcome(Message, frozen=True, tag=2):
    disk_id: Count
    revision: Count
    """The latest this peer has seen of the asker since it started; 0 and 0 if nothing."""
    group_id: Count
    seat: Count
    """The disk with which the asker counts, by the configuration this peer holds; 0 when none is recorded."""
    config: Version
    """Which configuration that is."""
    term: Count
    """The peer's own term: above 0, a majority has voted before and an empty disk is not needed to found a group."""
    nonce: Count = 0
    """To be echoed by the next VoterHello."""


class PreVote(Message, frozen=True, tag=3):
    """Would you vote for me in `term`? Nothing is promised by the answer."""

    term: Count
    round: Count
    config: Version
    group_id: Count = 0
    released: Count = 0
    """The term of a leader that has given its lease up; 0 when none is known to have."""
    lease_ns: Count = 0
    """The leader's lease as the sender counts it: voters that count another one do not vote for it. 0: not told."""


class PreVoteReply(Message, frozen=True, tag=4):
    term: Count
    """The replier's own term."""
    round: Count
    granted: bool


class Vote(Message, frozen=True, tag=5):
    """Vote for me in `term`: from then on accept nothing of an earlier one."""

    term: Count
    config: Version
    group_id: Count = 0
    released: Count = 0
    lease_ns: Count = 0


class VoteReply(Message, frozen=True, tag=6):
    term: Count
    """The replier's term: the candidate's own when granted."""
    granted: bool
    disk_id: Count
    revision: Count


class Heartbeat(Message, frozen=True, tag=7):
    term: Count
    round: Count
    group_id: Count
    lease_ns: Count = 0
    """The leader's own."""
    worker_lease: Annotated[bytes, msgspec.Meta(max_length=WORKER_LEASE_LIMIT_BYTES)] = b""
    """The lease of workers as the register has it; empty before the leader serves, and where it has none."""


class HeartbeatReply(Message, frozen=True, tag=8):
    term: Count
    """The replier's term; above the leader's, the leader is deposed."""
    round: Count
    disk_id: Count
    revision: Count
    config: Version
    """The configuration the replier holds: one that missed a change is told again."""
    health: Count
    """How much the replier doubts itself, 0 for not at all: leadership is not handed to one who is worse off."""


class Collect(Message, frozen=True, tag=9):
    """What do you hold? Answered in pages by key; `after` is the last key of the page before."""

    term: Count
    after: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)] = ""


class Collected(Message, frozen=True, tag=10):
    term: Count
    after: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)]
    entries: Entries
    more: bool


class Propose(Message, frozen=True, tag=11):
    """Write these durably, then say ProposalAccepted."""

    term: Count
    batch: Count
    entries: Entries


class ProposalAccepted(Message, frozen=True, tag=12):
    term: Count
    batch: Count
    disk_id: Count
    revision: Count


class ProposalRefused(Message, frozen=True, tag=13):
    """Your term is over: this one has been promised."""

    term: Count


class RegisterSnapshot(Message, frozen=True, tag=14):
    """All a leader holds, for a voter without state. The voter may act once it has every page and is configured."""

    term: Count
    number: Count
    """Which snapshot the page is of: pages of two are never mixed."""
    page: Annotated[int, msgspec.Meta(ge=0, lt=PAGES_LIMIT)]
    pages: Annotated[int, msgspec.Meta(ge=1, le=PAGES_LIMIT)]
    entries: Entries
    group_id: Count


class SnapshotReply(Message, frozen=True, tag=15):
    term: Count
    number: Count
    page: Count
    disk_id: Count
    """The disk that learned it."""


class Released(Message, frozen=True, tag=16):
    """The leader of `term` acts no more; `invited` should stand at once."""

    term: Count
    invited: Name


LeadershipMessage: TypeAlias = (
    VoterHello
    | VoterWelcome
    | PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Heartbeat
    | HeartbeatReply
    | Collect
    | Collected
    | Propose
    | ProposalAccepted
    | ProposalRefused
    | RegisterSnapshot
    | SnapshotReply
    | Released
)


CHANNEL: Final[Channel[LeadershipMessage]] = Channel(
    2, "leadership", LeadershipMessage, "a voter sent a malformed message"
)
encode, decode = CHANNEL.encode, CHANNEL.decode


def pages(entries: list[RegisterEntry]) -> list[tuple[RegisterEntry, ...]]:
    """`entries` cut so that each part fits a message. One empty page when there are none."""
    result: list[tuple[RegisterEntry, ...]] = []
    page: list[RegisterEntry] = []
    size = 0
    for entry in entries:
        weight = len(entry.value) + 4 * len(entry.key) + 32
        if page and (size + weight > PAGE_LIMIT_BYTES or len(page) == ENTRIES_PER_PAGE):
            result.append(tuple(page))
            page, size = [], 0
        page.append(entry)
        size += weight
    result.append(tuple(page))
    return result
