"""What leadership asks for and tells: its effects."""

from typing import Literal, TypeAlias

import msgspec

from talka.cluster.effects import Persist, Send
from talka.cluster.fencing import Token
from talka.cluster.leadership.lease_terms import LeaseDiffers
from talka.cluster.leadership.voters import VoterConfig
from talka.wire.leadership import LeadershipMessage, Version

Outcome: TypeAlias = Literal["accepted", "refused", "unknown"]
"""`refused`: nothing was and nothing will be done. `unknown`: a later leader may find the value, or not."""


class Elected(msgspec.Struct, frozen=True):
    """This voter leads: its token is on a majority of disks, and it holds the lease until `until`."""

    token: Token
    until: int


class LeaseExtended(msgspec.Struct, frozen=True):
    term: int
    until: int


class WriteEnded(msgspec.Struct, frozen=True):
    ref: int
    outcome: Outcome
    version: Version | None = None
    reason: str = ""


class ReadEnded(msgspec.Struct, frozen=True):
    ref: int
    outcome: Outcome
    value: bytes | None = None
    reason: str = ""


class ConfigChanged(msgspec.Struct, frozen=True):
    config: VoterConfig


class SteppedDown(msgspec.Struct, frozen=True):
    term: int
    reason: str


class LeaderChanged(msgspec.Struct, frozen=True):
    leader: str
    """Empty when none is known."""
    term: int


class PhaseChanged(msgspec.Struct, frozen=True):
    phase: str


class LeadershipAlarm(msgspec.Struct, frozen=True):
    """Something a person must look at. Told once for each peer and kind."""

    kind: str
    text: str


LeadershipNews: TypeAlias = (
    Elected
    | LeaseExtended
    | WriteEnded
    | ReadEnded
    | ConfigChanged
    | SteppedDown
    | LeaderChanged
    | PhaseChanged
    | LeadershipAlarm
    | LeaseDiffers
)
LeadershipEffect: TypeAlias = Send[LeadershipMessage] | Persist | LeadershipNews
