"""Questions to one node and its answers, as `talka cluster …` asks them. Channel 5 of a packet.

Many may be under way on one connection: the number says which answer belongs to which question.

Decision: docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from talka.wire.channels import Channel, Message, Number

SECRET_LIMIT: Final = 1024
SECRETS_LIMIT: Final = 8
ANSWER_LIMIT_BYTES: Final = 960 * 1024
"""What fits a frame beside the packet around it."""

Word: TypeAlias = Annotated[str, Meta(max_length=64)]


class AskMembers(Message, frozen=True, tag=1):
    """Who is there, as this node sees it? Answered page by page."""

    after: Annotated[str, Meta(max_length=128)] = ""


class AskLeader(Message, frozen=True, tag=2):
    pass


class AskAudit(Message, frozen=True, tag=3):
    """Who accused whom?"""


class AskKeys(Message, frozen=True, tag=4):
    """Which keys are accepted, and which member has which?"""


class AskMetrics(Message, frozen=True, tag=5):
    """Everything counted, as Prometheus reads it."""


class AddKey(Message, frozen=True, tag=6):
    """Accept this secret from now on, everywhere."""

    secret: Annotated[str, Meta(max_length=SECRET_LIMIT)]


class UseKey(Message, frozen=True, tag=7):
    """Seal with this key from now on, everywhere."""

    key_id: Word


class RetireKey(Message, frozen=True, tag=8):
    """Accept this key no more, anywhere."""

    key_id: Word
    force: bool = False
    """Also when members are away that have not confirmed the keys in use: they will not come back by themselves."""


class RepairKeys(Message, frozen=True, tag=9):
    """Have these secrets and no others from now on, everywhere, whatever the keys are now. The first one seals."""

    secrets: Annotated[
        tuple[Annotated[str, Meta(max_length=SECRET_LIMIT)], ...], Meta(min_length=1, max_length=SECRETS_LIMIT)
    ]


class AskLease(Message, frozen=True, tag=10):
    """How long is the lease of workers, and is it being changed?"""


class ChangeLease(Message, frozen=True, tag=11):
    """Make the lease of workers this, once nobody can have a longer one any more."""

    lease_ns: Number


Question: TypeAlias = (
    AskMembers
    | AskLeader
    | AskAudit
    | AskKeys
    | AskMetrics
    | AddKey
    | UseKey
    | RetireKey
    | RepairKeys
    | AskLease
    | ChangeLease
)


class Ask(Message, frozen=True, tag=20):
    number: Number
    question: Question
    within_ms: Annotated[int, Meta(ge=0, le=600_000)] = 10_000
    """After so long nobody waits for the answer any more."""

    @property
    def needs(self) -> int:
        return self.question.needs


class AskAnswer(Message, frozen=True, tag=21):
    number: Number
    problem: Annotated[str, Meta(max_length=4096)]
    """A sentence when it cannot be answered; else empty."""
    content: Annotated[bytes, Meta(max_length=ANSWER_LIMIT_BYTES)] = b""
    """JSON, or text for metrics."""


AskingMessage: TypeAlias = Ask | AskAnswer


CHANNEL: Final[Channel[AskingMessage]] = Channel(
    5, "asking", AskingMessage, "a node sent a malformed question or answer"
)
encode, decode = CHANNEL.encode, CHANNEL.decode


def encode_content(value: Any) -> bytes:
    return msgspec.json.encode(value)
