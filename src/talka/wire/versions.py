"""What two sides of a connection agree on: the version of the protocol, and the capabilities that both have.

Another MAJOR is another language. A higher MINOR adds messages, fields and capabilities; the lower one of both is
spoken. What a message needs stands in its class (`since`), what a capability needs here.

Decision: docs/decisions/0063-what-two-sides-agreed-on.md.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talka.errors import Invalid, Untrusted

CAPABILITIES_LIMIT: Final = 64
CAPABILITY_LIMIT: Final = 64
PART_LIMIT: Final = 9999

_NAMED: Final = 3

_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})", re.ASCII)

Part = Annotated[int, Meta(ge=0, le=PART_LIMIT)]
CapabilityName = Annotated[str, Meta(min_length=1, max_length=CAPABILITY_LIMIT)]
Capabilities = Annotated[tuple[CapabilityName, ...], Meta(max_length=CAPABILITIES_LIMIT)]


class ProtocolVersion(msgspec.Struct, frozen=True, array_like=True, order=True):
    major: Part
    minor: Part

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> "ProtocolVersion":
        match = _TEXT.fullmatch(text)
        if match is None:
            raise Invalid(
                f"{ascii(text[:20])} is not a version of the protocol. Write it as MAJOR.MINOR, for example {VERSION}"
            )
        return cls(int(match[1]), int(match[2]))


VERSION: Final = ProtocolVersion(1, 1)
OLDEST: Final = ProtocolVersion(VERSION.major, 0)
"""Spoken with a side that nothing is known of: every side of this MAJOR understands it."""


class Capability(msgspec.Struct, frozen=True):
    """What a side can do that one of a lower minor cannot."""

    name: str
    since: int
    """The minor that brought it: every side from there on has it."""
    otherwise: str
    """What is done with a side that lacks it."""


CHALLENGE: Final = Capability("challenge", 0, "nothing: every side has it")
KEYRING: Final = Capability("keyring", 0, "nothing: every side has it")
ONE_LIFE: Final = Capability("one-life", 1, "what is said to it is for whichever life of it hears it")
"""It says its version when it proves that it lives, and does not hear what was meant for an earlier life of it."""
CAPABILITIES: tuple[Capability, ...] = (CHALLENGE, KEYRING, ONE_LIFE)
"""Those of this release."""


def names_until(minor: int) -> tuple[str, ...]:
    """What a side of this minor can do, as far as this one knows of it."""
    return tuple(each.name for each in CAPABILITIES if each.since <= minor)


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What one side can do, and what the other one must be able to do."""

    version: ProtocolVersion
    capabilities: Capabilities = ()
    required: Capabilities = ()

    def __post_init__(self) -> None:
        for names in (self.capabilities, self.required):
            if len(names) > CAPABILITIES_LIMIT or not all(1 <= len(name) <= CAPABILITY_LIMIT for name in names):
                raise Invalid(
                    f"an offer names at most {CAPABILITIES_LIMIT} capabilities of 1 to {CAPABILITY_LIMIT} characters "
                    "each"
                )


class Agreed(msgspec.Struct, frozen=True):
    version: ProtocolVersion
    capabilities: tuple[str, ...]
    """Those of both, in order."""

    def knows(self, capability: Capability) -> bool:
        return capability.name in self.capabilities


class NotCompatible(Untrusted):
    """The two sides cannot talk. `reason` is a word for counters: version, capability."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def compatible(mine: ProtocolVersion, theirs: ProtocolVersion) -> str:
    """Why the two versions cannot talk; empty when they can."""
    if mine.major == theirs.major:
        return ""
    older = "This side" if mine.major < theirs.major else "The other side"
    return f"this side speaks protocol {mine}, the other one {theirs}. {older} needs a newer release"


def negotiate(mine: Offer, theirs: Offer) -> Agreed:
    """What both sides will use. Both come to the same, whoever is `mine`."""
    if problem := compatible(mine.version, theirs.version):
        raise NotCompatible("version", problem)
    if missing := _missing(mine.required, theirs.capabilities):
        raise NotCompatible("capability", f"the other side lacks {missing}, which this side requires")
    if missing := _missing(theirs.required, mine.capabilities):
        raise NotCompatible("capability", f"this side lacks {missing}, which the other one requires")
    shared = tuple(sorted(dict.fromkeys(each for each in mine.capabilities if each in theirs.capabilities)))
    return Agreed(min(mine.version, theirs.version), shared)


def offer_of(version: str, capabilities: Sequence[str] = (), required: Sequence[str] = ()) -> Offer:
    """What a side says of itself. Without a version it speaks the oldest; without capabilities it has what its version
    brings."""
    spoken = ProtocolVersion.parse(version) if version else OLDEST
    return Offer(spoken, tuple(capabilities) or names_until(spoken.minor), tuple(required))


def disagreement(mine: Offer, version: str, capabilities: Sequence[str], required: Sequence[str]) -> str:
    """Why this side cannot talk with one that says this of itself; empty when it can. At most 400 characters."""
    try:
        negotiate(mine, Offer(ProtocolVersion.parse(version), tuple(capabilities), tuple(required)))
    except (Invalid, NotCompatible) as problem:
        return str(problem)
    return ""


def _missing(required: tuple[str, ...], capabilities: tuple[str, ...]) -> str:
    """The first of them, shortened: they are the other side's words."""
    missing = sorted(dict.fromkeys(each for each in required if each not in capabilities))
    named = ", ".join(ascii(each)[: CAPABILITY_LIMIT + 2] for each in missing[:_NAMED])
    return named if len(missing) <= _NAMED else f"{named} and {len(missing) - _NAMED} more"
