"""Asks the table of roles about what was read and not yet heard, and counts what nobody of that role may say.

docs/decisions/0028-one-table-of-roles.md.
"""

from typing import Final

import msgspec

from talka.cluster.safeguards import ALL, Safeguards
from talka.wire.asking import AddKey, Ask, ChangeLease, RepairKeys, RetireKey, UseKey
from talka.wire.packets import BadPacket
from talka.wire.security.permissions import may_say, name_of
from talka.wire.security.roles import Proven, Role, a

TOLD_LIMIT: Final = 256
"""Kinds of refusals of nodes that are told, each once; the counters have them all."""
KEY_CHANGES: Final = (AddKey, UseKey, RetireKey, RepairKeys)


class RoleRefused(msgspec.Struct, frozen=True):
    """News: somebody said what nobody of its role may say. Told once for each name, role and message."""

    name: str
    """In the certificate; without one, what it calls itself."""
    role: str
    """Empty: nothing proved one."""
    message: str
    source: str

    @property
    def text(self) -> str:
        return objection(self.role, self.message, self.name)


class NotForThisRole(BadPacket):
    """What was read is not for its sender to say."""

    def __init__(self, message: object) -> None:
        super().__init__("role", f"{name_of(message)} may not be said by this role")
        self.message = message


class RoleCheck:
    """One for each node. Without certificates there is nothing to ask: whoever has the secret is a node."""

    def __init__(self, *, is_certified: bool, safeguards: Safeguards = ALL) -> None:
        self.is_certified = is_certified
        self.refused: dict[str, int] = {}
        """By message: there are no more than rows of the table."""
        self._is_asked = is_certified and safeguards.role_table
        self._told: dict[tuple[str, str, str], None] = {}

    def check(self, proven: Proven, message: object) -> None:
        """Raises `NotForThisRole`."""
        if self._is_asked and not may_say(proven.role, message):
            raise NotForThisRole(message)

    def note(self, proven: Proven, sender: str, source: str, message: object) -> list[RoleRefused]:
        """Count a refusal; the first of its kind is told."""
        word, role = name_of(message), proven.role or ""
        self.refused[word] = self.refused.get(word, 0) + 1
        key = (sender, role, word)
        if key in self._told or len(self._told) >= TOLD_LIMIT:
            return []
        self._told[key] = None
        return [RoleRefused(sender, role, word, source)]


def why_not(role: Role, ask: Ask, name: str) -> str:
    """What whoever asked is answered instead."""
    if isinstance(ask.question, (*KEY_CHANGES, ChangeLease)):
        what = "the lease" if isinstance(ask.question, ChangeLease) else "keys"
        return (
            f"{a(role)} may not change {what} where certificates are in use: ask with the certificate of a manager "
            "(--name NAME; talka certs issue FOLDER --name operator --role manager makes one for you)"
        )
    return objection(role, name_of(ask), name)


def objection(role: str, message: str, name: str) -> str:
    who = f"{name!r}, {a(role)}," if role else f"{name!r}, which no certificate names here,"
    return f"{who} may not say {message}: docs/security.md has the table of what each role may say"
