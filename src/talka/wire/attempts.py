"""Names of attempts. A fence is a number of one store in one of its lives: another copy of the store gives the same
numbers out again, so whatever is said of attempts says whose they are. All of it is an attempt's name, and a result
must match all of it: store and life, told once in each message; job, task and fence, told with each attempt.

Decision: docs/decisions/0031-whose-attempt-it-is.md.
"""

from typing import Annotated, Final

import msgspec

Drawn = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
DRAWN_BITS: Final = 62


class StoreLife(msgspec.Struct, frozen=True, array_like=True):
    """Told once in each message about attempts."""

    store: Drawn = 0
    """Drawn when the store was made."""
    life: Drawn = 0
    """Drawn with it, and anew when a copy is opened in its place: what was given out after the copy was made is not of
    this life, whatever its number."""
    opening: Drawn = 0
    """Drawn by each manager that opens the store. Two that have the same epoch of one life are told apart by it: the
    store was put back together with all that remembers it. Attempts of all openings of a life count."""

    def is_of(self, other: "StoreLife") -> bool:
        """Whether attempts of the one are attempts of the other."""
        return self.life == other.life and self.store == other.store

    def __str__(self) -> str:
        return f"store {self.store:x}, life {self.life:x}"


NOWHERE: Final = StoreLife()
"""Of nobody's store: of this no attempt counts for any other."""


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """What a worker held of another store, or of another life of this one, and forgot."""

    store: Drawn
    life: Drawn
    attempts: Drawn
    """That waited or ran."""
    results: Drawn
    """That nobody had taken."""
