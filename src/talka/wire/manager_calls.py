"""What is inside `Call` and `Answer`: questions that managers pass on to the leader.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

from typing import Annotated, Final, TypeVar

import msgspec

from talka.errors import Invalid
from talka.wire.entries import JobOrder

KEY_LIMIT: Final = 200
PAGE_LIMIT: Final = 500

Asked = TypeVar("Asked")


class SubmitCall(msgspec.Struct, frozen=True):
    order: JobOrder
    key: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)] = ""


class JobsCall(msgspec.Struct, frozen=True):
    state: str = ""
    cursor: str = ""
    limit: int = 50


class NameCall(msgspec.Struct, frozen=True):
    """Of a job or a worker."""

    name: str


class CancelCall(msgspec.Struct, frozen=True):
    job: str
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class LeaseCall(msgspec.Struct, frozen=True):
    """What is the lease of workers? Or make it this one."""

    lease_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """0: nothing is to be changed."""
    by: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)] = ""


_encoder = msgspec.msgpack.Encoder()


def encode(content: msgspec.Struct | list[msgspec.Struct]) -> bytes:
    return _encoder.encode(content)


def decode(content: bytes, type: type[Asked]) -> Asked:
    try:
        return msgspec.msgpack.decode(content, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"what was asked cannot be read: {error}") from None
