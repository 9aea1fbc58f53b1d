"""What all conversations share: a base for messages, and a channel that knows its messages, their bytes and its
error."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Generic, TypeAlias, TypeVar, get_args

import msgspec

from talka.errors import Invalid, Untrusted

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid)
"""What a decoder raises: beside its own errors it lets through those of text, of nesting and of the values' own
checks."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Value = TypeVar("Value")


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of a conversation. Its tag is never reused; new fields go last and have a default.

    It refers to nothing that refers to it, so the garbage collector need not look at it.
    """

    since: ClassVar[int] = 0
    """The minor of the protocol that brought it: it is not said to a side of a lower one."""

    @property
    def needs(self) -> int:
        """The minor that a side must speak to understand this message, with what is in it."""
        return self.since


class BadMessage(Untrusted):
    """Bytes that are not what was to be read: no message of their conversation, no value of their type."""


class Codec(Generic[Value]):
    """Values of one type as MessagePack. Bytes that hold no such value raise `BadMessage`, with a sentence."""

    def __init__(self, kind: Any, sentence: str) -> None:
        self.encode: Callable[[Value], bytes] = msgspec.msgpack.Encoder().encode
        self.kind = kind
        """The type or the union of types."""
        self.sentence = sentence
        """What is wrong with other bytes; the decoder's own words follow it."""
        self._read: Callable[[bytes | msgspec.Raw], Value] = msgspec.msgpack.Decoder(kind).decode

    def decode(self, content: bytes | msgspec.Raw) -> Value:
        try:
            return self._read(content)
        except UNREADABLE as problem:
            raise BadMessage(f"{self.sentence}: {problem}") from None


class Channel(Codec[Value]):
    """One conversation: a union of messages, told apart by their tags."""

    def __init__(self, number: int, name: str, messages: Any, sentence: str) -> None:
        super().__init__(messages, sentence)
        self.number = number
        """In a packet; 0: it travels on a connection of its own."""
        self.name = name
        self.kinds: tuple[type[Message], ...] = get_args(messages)
