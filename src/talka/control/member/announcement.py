"""What a member says of itself to everybody, in its state: its role, its keys, and whether it leads."""

from typing import Annotated

import msgspec
from msgspec import Meta

from talka.cluster.membership.members import Member
from talka.cluster.membership.membership import Membership
from talka.control.member.admission import Admission


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


_decoder = msgspec.msgpack.Decoder(Announcement)


def standing_of(member: Member) -> Announcement | None:
    """What a member said of itself, as far as it can be read."""
    if member.state is None:
        return None
    try:
        return _decoder.decode(member.state.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def zone_of(zone: str, datacenter: str) -> str:
    """What a member said of its zone, by what membership has: the datacenter counts as one where no zone was said."""
    return "" if zone == datacenter else zone


class Announcer:
    """Keeps what this member says of itself up to date."""

    def __init__(self, admission: Admission, membership: Membership) -> None:
        self._admission = admission
        self._membership = membership
        self._leads = 0
        self.api = ""
        self.region = ""

    def tell(self, now: int, *, spread: bool) -> None:
        """Others learn it with probes and syncs; with `spread` at once."""
        me = self._admission.me
        standing = Announcement(
            self._admission.ring.digest,
            me.role,
            me.version,
            me.datacenter,
            me.software,
            self._leads,
            self.api,
            self.region,
        )
        self._membership.set_state(now, msgspec.msgpack.encode(standing), spread=spread)

    def lead(self, now: int, term: int) -> None:
        """This member leads in this term from now on; 0: no more."""
        self._leads = term
        self.tell(now, spread=True)
