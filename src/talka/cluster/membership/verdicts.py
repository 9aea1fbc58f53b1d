"""Who accused whom, and why: the last verdicts this member gave or heard, for the people who ask afterwards.

Decision: docs/decisions/0013-membership-measures-itself.md.
"""

from collections import deque
from typing import Final

import msgspec

LIMIT: Final = 256


class MemberVerdict(msgspec.Struct, frozen=True):
    at: int
    subject: str
    boot: int
    incarnation: int
    verdict: str
    """What the subject was held to be from then on, such as `suspect` or `dead`."""
    accuser: str
    reason: str
    own: bool
    """Whether this member came to it itself, or was told."""


class VerdictLog:
    """The last `LIMIT` verdicts; older ones are dropped."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[MemberVerdict] = deque(maxlen=LIMIT)

    def add(
        self,
        at: int,
        subject: str,
        boot: int,
        incarnation: int,
        verdict: str,
        accuser: str,
        reason: str,
        own: bool,
    ) -> None:
        self._entries.append(MemberVerdict(at, subject, boot, incarnation, verdict, accuser, reason, own))

    def entries(self) -> list[MemberVerdict]:
        """Newest last."""
        return list(self._entries)
