"""What a member says of itself to everybody, in its state: its role, its keys, whether it leads, and how it does.

What changes all the time is told in steps and not often, so that a member at rest says nothing new, and noise is not
spread. What others decide by is told at once.

Decision: docs/decisions/0061-three-signals-one-table.md.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from talka.cluster.membership.local_health import degradation_of
from talka.cluster.membership.members import Member
from talka.cluster.membership.membership import Membership
from talka.control.member.admission import Admission
from talka.control.member.three_signals import Readiness
from talka.units import SECOND
from talka.wire.condition import UNMEASURED, NodeCondition
from talka.wire.membership import MemberState

API_LIMIT_BYTES: Final = 200
"""A longer address is not announced: a part of one would lead elsewhere."""
NUMBERS_EVERY_NS: Final = 5 * SECOND
"""Numbers alone are told anew no more often than this."""
STEP_PERCENT: Final = 10
"""A share is told in steps of so much, and anew once it is a step away from what was told."""
OVERLOADED_FROM: Final = 2
"""From this level on a manager is given no more jobs to lead."""

ManagerPhase = Literal["", "syncing", "active", "draining"]


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    ring: Annotated[str, Meta(max_length=64)]
    """The digest of its keys."""
    role: Annotated[str, Meta(max_length=64)] = ""
    version: Annotated[str, Meta(max_length=64)] = ""
    datacenter: Annotated[str, Meta(max_length=64)] = ""
    software: Annotated[str, Meta(max_length=64)] = ""
    leads: Annotated[int, Meta(ge=0)] = 0
    """The term it leads in; 0 when it does not. A hint: who must be sure asks the voters."""
    api: Annotated[str, Meta(max_length=300)] = ""
    """Where clients reach its API."""
    region: Annotated[str, Meta(max_length=64)] = ""
    condition: NodeCondition = NodeCondition()
    phase: Annotated[str, Meta(max_length=16)] = ""
    """Of a manager: syncing, active or draining. Empty: it is none, or is of an earlier version."""


_LIMITS_BYTES: Final = {
    "ring": 32,
    "role": 32,
    "version": 16,
    "datacenter": 56,
    "software": 32,
    "region": 56,
    "phase": 16,
}
"""With the address of its API and all numbers at their largest, that is below `PAYLOAD_LIMIT_BYTES`."""


def encode_announcement(announcement: Announcement) -> bytes:
    """It fits a state, whatever it says: words that are too long end in an ellipsis."""
    words: dict[str, str] = {name: _cut(getattr(announcement, name), limit) for name, limit in _LIMITS_BYTES.items()}
    api = announcement.api if len(announcement.api.encode()) <= API_LIMIT_BYTES else ""
    return msgspec.msgpack.encode(msgspec.structs.replace(announcement, **words, api=api))


def _cut(text: str, limit_bytes: int) -> str:
    raw = text.encode()
    if len(raw) <= limit_bytes:
        return text
    return raw[: limit_bytes - len(_ELLIPSIS)].decode(errors="ignore") + _ELLIPSIS.decode()


_ELLIPSIS: Final = "…".encode()
_decoder = msgspec.msgpack.Decoder(Announcement)


def standing_of(member: Member) -> Announcement | None:
    """What a member said of itself, as far as it can be read."""
    return None if member.state is None else announcement_in(member.state)


def announcement_in(state: MemberState) -> Announcement | None:
    try:
        return _decoder.decode(state.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def zone_of(zone: str, datacenter: str) -> str:
    """What a member said of its zone, by what membership has: the datacenter counts as one where no zone was said."""
    return "" if zone == datacenter else zone


def announced_readiness(announcement: Announcement | None) -> tuple[Readiness, str]:
    """Whether a member would take work, by what it announced, and why not. Who announced nothing would."""
    if announcement is None:
        return Readiness.READY, ""
    if announcement.phase == "draining":
        return Readiness.LEAVING, "it leaves, and takes nothing new"
    if announcement.phase == "syncing":
        return Readiness.UNREADY, "it is still learning what others know"
    health = degradation_of(announcement.condition.health)
    if not health.takes_work:
        return Readiness.UNREADY, f"its health is {health.name.lower()}: it handles everything late"
    if announcement.condition.overload >= OVERLOADED_FROM:
        return Readiness.UNREADY, "it is overloaded"
    return Readiness.READY, ""


class Announcer:
    """Keeps what this member says of itself up to date."""

    def __init__(self, membership: Membership, admission: Admission | None = None) -> None:
        """`admission`: whose keys and words are told too."""
        self._admission = admission
        self._membership = membership
        self._leads = 0
        self._condition = NodeCondition()
        """As it was told last."""
        self._phase: ManagerPhase = ""
        self._numbers_at = 0
        """When numbers alone may be told again."""
        self.api = ""
        self.region = ""

    def tell(self, now: int, *, spread: bool) -> None:
        """Others learn it with probes and syncs; with `spread` at once."""
        self._membership.set_state(now, encode_announcement(self.told), spread=spread)

    @property
    def told(self) -> Announcement:
        admission, condition = self._admission, self._condition
        if admission is None:
            return Announcement(
                "", leads=self._leads, api=self.api, region=self.region, condition=condition, phase=self._phase
            )
        me = admission.me
        facts = (admission.ring.digest, me.role, me.version, me.datacenter, me.software)
        return Announcement(*facts, self._leads, self.api, self.region, condition, self._phase)

    def lead(self, now: int, term: int) -> None:
        """This member leads in this term from now on; 0: no more."""
        self._leads = term
        self.tell(now, spread=True)

    def note(self, now: int, condition: NodeCondition, phase: ManagerPhase = "") -> None:
        """How this member does now. May be called at any time: it is told if it is news."""
        told = self._condition
        condition = in_steps(condition, told)
        is_news = (*readiness_of(condition), phase) != (*readiness_of(told), self._phase)
        if is_news or (condition != told and now >= self._numbers_at):
            self._numbers_at = now + NUMBERS_EVERY_NS
            self._condition, self._phase = condition, phase
            self.tell(now, spread=is_news)


def readiness_of(condition: NodeCondition) -> tuple[bool, bool]:
    """What others decide by: whether it is overloaded, and whether it does so badly that it takes no work."""
    return condition.overload >= OVERLOADED_FROM, not degradation_of(condition.health).takes_work


def in_steps(condition: NodeCondition, told: NodeCondition) -> NodeCondition:
    """As it is told, after this was."""
    return msgspec.structs.replace(
        condition,
        cpu_percent=_stepped(condition.cpu_percent, told.cpu_percent),
        memory_percent=_stepped(condition.memory_percent, told.memory_percent),
    )


def _stepped(percent: int, told: int) -> int:
    if percent == UNMEASURED:
        return percent
    if told != UNMEASURED and abs(percent - told) < STEP_PERCENT:
        return told
    return percent // STEP_PERCENT * STEP_PERCENT
