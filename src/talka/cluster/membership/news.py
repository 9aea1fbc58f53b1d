"""What membership asks for and tells: messages to say, and news of members."""

from typing import TypeAlias

import msgspec

from talka.cluster.effects import Send
from talka.wire.membership import MembershipMessage


class MemberJoined(msgspec.Struct, frozen=True):
    """A life of a member that was not known before."""

    name: str
    boot: int
    address: str


class Namesake(msgspec.Struct, frozen=True):
    """Two lives of one name speak for longer than one that was restarted would. Told once for each of them."""

    name: str
    address: str
    other: str
    """Where the other one is."""


class MemberSuspected(msgspec.Struct, frozen=True):
    name: str
    boot: int
    accuser: str
    reason: str


class MemberReturned(msgspec.Struct, frozen=True):
    """The same life, suspected or lost before, is alive after all."""

    name: str
    boot: int


class MemberLost(msgspec.Struct, frozen=True):
    """Held dead, or replaced by a later life of the same name. A hint: it may return."""

    name: str
    boot: int
    accuser: str
    reason: str
    own: bool
    """Whether it was this member's own timer that ran out."""


class MemberLeft(msgspec.Struct, frozen=True):
    name: str
    boot: int


class StateLearned(msgspec.Struct, frozen=True):
    name: str
    version: int
    payload: bytes


class DatagramsBlocked(msgspec.Struct, frozen=True):
    """The member answers over the stream only. Told once; holds until `DatagramsRestored`, or until
    this life of it is lost or leaves."""

    name: str


class DatagramsRestored(msgspec.Struct, frozen=True):
    name: str


class Refuted(msgspec.Struct, frozen=True):
    """This member was accused and has said, under a new incarnation, that it lives."""

    incarnation: int


MemberNews: TypeAlias = (
    MemberJoined
    | MemberSuspected
    | Namesake
    | MemberReturned
    | MemberLost
    | MemberLeft
    | StateLearned
    | DatagramsBlocked
    | DatagramsRestored
    | Refuted
)
MembershipEffect: TypeAlias = Send[MembershipMessage] | MemberNews
