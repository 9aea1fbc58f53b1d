"""Who accused whom, and why: the last verdicts this member gave or heard, for the people who ask afterwards.

Decision: docs/decisions/0013-membership-measures-itself.md.
"""

from collections import deque
from typing import Final, TypeAlias

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
    own: bool = False
    """Whether this member came to it itself, or was told."""


VerdictLog: TypeAlias = deque[MemberVerdict]
"""The last `LIMIT` verdicts, newest last."""
