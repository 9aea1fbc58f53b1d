"""Fencing tokens, and the receiver's side of them: whoever acts late is refused where it would act.

A lease only makes two leaders at once unlikely, because a process may stall between its check and its effect. The
token in every command makes the effect of the older one impossible.

Burrows, "The Chubby lock service" (2006), §2.4: sequencers. docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Final, TypeAlias

import msgspec

from talka.errors import Invalid


class Token(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Who commands, as numbers of a majority's register. Compared from left to right; the higher one is the later.

    Losing the parent's lease voids all below it, so the parent's term comes first.
    """

    parent: int
    term: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.parent}.{self.term}.{self.sequence}"


ZERO: Final = Token(0, 0, 0)
"""Below every token a leader gives out: what a receiver starts with."""


class BrokenFence(Invalid):
    """What was stored is no token, so nobody can say which commands are stale."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the stored fence of this receiver is no token: {reason}; restore it,"
            " or start the receiver under a new name with an empty store"
        )


class Apply(msgspec.Struct, frozen=True):
    """The token is on disk: carry the command out now."""


class PersistFirst(msgspec.Struct, frozen=True):
    """The token is the highest so far and not on disk yet: carry the command out after `Fence.persisted(token)`."""

    token: Token
    content: bytes | None
    """What to write. None when an earlier command of this token has asked for the same write already."""


class Refuse(msgspec.Struct, frozen=True):
    """The token is below one that was seen: do not carry the command out."""

    presented: Token
    highest: Token


Admission: TypeAlias = Apply | PersistFirst | Refuse
APPLY: Final = Apply()

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Token)


class Fence:
    """The highest token a receiver has seen, on disk before a command under it takes effect.

    For every command call `admit` with its token. After `PersistFirst`, write `content` durably, call
    `persisted(token)`, and only then carry the command out; commands that wait are carried out in the order in which
    they were admitted. From the moment a token is seen, all below it are refused, also while it is being written. A
    shell whose write fails must stop the receiver: what the disk holds is then unknown. `stored` is the content
    written last, None for a receiver that starts empty; such a one is a new incarnation and is commanded under its
    new name.
    """

    __slots__ = ("durable", "highest")

    def __init__(self, stored: bytes | None) -> None:
        self.highest = ZERO if stored is None else _decode(stored)
        """The highest token seen."""
        self.durable = self.highest
        """The highest token known to be on disk."""

    def admit(self, token: Token) -> Admission:
        """What to do with a command under `token`."""
        if token == self.durable == self.highest:
            return APPLY
        if token > self.highest:
            self.highest = token
            return PersistFirst(token, _encoder.encode(token))
        if token == self.highest:
            return PersistFirst(token, None)
        return Refuse(token, self.highest)

    def persisted(self, token: Token) -> None:
        """The content given out for `token` is on disk."""
        if token > self.durable:
            self.durable = token


def _decode(stored: bytes) -> Token:
    try:
        return _decoder.decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenFence(str(error)) from None
