"""What a client must know of the step that calls it.

It travels in a context variable, so that steps of one layer, and tasks a step starts by itself, each find their own.
"""

from collections.abc import Container
from contextvars import ContextVar

from talka.errors import TalkaError


class Call:
    """One run of one step: when it should have started, and which answers it accepts beyond those below 400."""

    __slots__ = ("intended_ns", "expect")

    def __init__(self, intended_ns: int, expect: Container[int] = ()) -> None:
        self.intended_ns = intended_ns
        """Taken by the first exchange of the step, which sets it to 0: later ones start when they are made."""
        self.expect = expect


current_call: ContextVar[Call] = ContextVar("current_call")


class ExchangeFailed(TalkaError):
    """A call that got no answer, with the kind under which it is counted."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
