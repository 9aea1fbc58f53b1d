"""Who votes in a group, and what a majority of them is.

The configuration is a value of the majority register: it has a version, changes by one voter at a time, and a change
needs a majority of the voters before it and of those after it.

Raft (Ongaro's dissertation) §4.1 changes of one server. docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from talka.units import NEVER
from talka.wire.channels import BadMessage, Codec
from talka.wire.leadership import RegisterEntry

CONFIG_KEY: Final = "config"
LEADER_KEY: Final = "leader"


class VoterEntry(msgspec.Struct, frozen=True, array_like=True):
    name: str
    disk_id: int = 0
    """The disk this voter was admitted with; 0 when it never was. A voter with another disk has lost its promises."""


class VoterConfig(msgspec.Struct, frozen=True, array_like=True):
    group_id: int
    """The group's number, drawn once by its first leader; 0 before. Strangers with the same name differ in it."""
    epoch: int
    voters: tuple[VoterEntry, ...]

    def names(self) -> tuple[str, ...]:
        return tuple(voter.name for voter in self.voters)

    def disk_id_of(self, name: str) -> int | None:
        return next((voter.disk_id for voter in self.voters if voter.name == name), None)

    def with_storage(self, name: str, disk_id: int) -> "VoterConfig":
        """The next configuration, in which `name` counts with this disk; it joins when it is not a voter yet."""
        voters = tuple(voter for voter in self.voters if voter.name != name) + (VoterEntry(name, disk_id),)
        return VoterConfig(self.group_id, self.epoch + 1, tuple(sorted(voters, key=lambda voter: voter.name)))

    def without(self, name: str) -> "VoterConfig":
        return VoterConfig(self.group_id, self.epoch + 1, tuple(voter for voter in self.voters if voter.name != name))


CONFIGS: Final[Codec[VoterConfig]] = Codec(VoterConfig, "a voter sent a malformed configuration of voters")
encode_config, decode_config = CONFIGS.encode, CONFIGS.decode


def config_problem(entries: tuple[RegisterEntry, ...]) -> str:
    """Why a configuration among these entries cannot be read; empty when there is none, or it can."""
    for entry in entries:
        if entry.key == CONFIG_KEY:
            try:
                decode_config(entry.value)
            except BadMessage as problem:
                return str(problem)
    return ""


def digest_of(names: tuple[str, ...]) -> int:
    """A number for a list of voters, the same on every machine and whatever their order."""
    joined = "\0".join(sorted(names)).encode()
    return int.from_bytes(blake2b(joined, digest_size=7).digest(), "big")


class Electorate:
    """Answers one question: are these a majority?"""

    __slots__ = ("_config", "_heard", "_live_ns", "_seats", "me", "pending")

    def __init__(self, me: str, config: VoterConfig, live_ns: int) -> None:
        self.me = me
        self.config = config
        self.pending: VoterConfig | None = None
        """A configuration being written: until it is, a majority is one of both."""
        self._live_ns = live_ns
        self._heard: dict[str, int] = {}

    @property
    def config(self) -> VoterConfig:
        return self._config

    @config.setter
    def config(self, config: VoterConfig) -> None:
        self._config = config
        self._seats = {voter.name: None for voter in config.voters}

    def heard(self, now: int, name: str) -> None:
        """Bounded by the configuration: only voters are noted."""
        if self.is_voter(name):
            self._heard[name] = now

    def is_voter(self, name: str) -> bool:
        return name in self._seats or (self.pending is not None and self.pending.disk_id_of(name) is not None)

    def has_seat(self, name: str, disk_id: int) -> bool:
        """Whether a voter speaks with the disk it was admitted with; one that was replaced has forgotten too much."""
        seat = self._config.disk_id_of(name)
        if seat is None and self.pending is not None:
            seat = self.pending.disk_id_of(name)
        return seat in (0, disk_id)

    def others(self) -> tuple[str, ...]:
        """Every voter to be told things, of both configurations while one is being written."""
        names = dict(self._seats)
        if self.pending is not None:
            names.update(dict.fromkeys(self.pending.names()))
        names.pop(self.me, None)
        return tuple(names)

    def answering(self, now: int) -> list[str]:
        """Voters that spoke lately, this one included."""
        return [voter.name for voter in self._config.voters if self._is_live(now, voter.name)]

    def silent_ns(self, now: int, name: str) -> int:
        """How long ago a voter was last heard; 0 for this one. One that never was is silent since this one began."""
        return 0 if name == self.me else now - self._heard.get(name, 0)

    def is_majority(self, now: int, names: Mapping[str, object], excluding: str = "") -> bool:
        """Whether `names` are a majority. `excluding` is a voter whose own word does not count, though its seat
        does."""
        if self.pending is not None and not self._covers(now, self.pending, names, excluding):
            return False
        return self._covers(now, self.config, names, excluding)

    def _covers(self, now: int, config: VoterConfig, names: Mapping[str, object], excluding: str) -> bool:
        count = 0
        for voter in config.voters:
            if voter.name in names and voter.name != excluding:
                count += 1
        return 2 * count > len(config.voters)

    def _is_live(self, now: int, name: str) -> bool:
        return name == self.me or now - self._heard.get(name, -NEVER) <= self._live_ns
