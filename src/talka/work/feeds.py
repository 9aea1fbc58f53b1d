"""Data for tests: rows that users take one by one, and pauses drawn at random."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, TypeAlias, cast, get_args, overload

import msgspec

from talka.errors import Invalid
from talka.work.durations import parse_duration

Order = Literal["sequential", "random", "once"]
Format = Literal["csv", "json", "jsonl"]
Row: TypeAlias = Mapping[str, Any]


class BadFeed(Invalid):
    """A feed that cannot give rows."""


class FeedUsedUp(Exception):
    """A feed whose rows are given once has given its last: the users that wanted another are done."""


class Feed:
    """A file of rows, declared in a workflow: `users = Feed.csv("users.csv")`, then `self.users.next()` in a step.

    `sequential` starts again after the last row, `random` draws any, `once` gives each row to one iteration of one
    core and ends the workflow when there are no more. Paths are relative to the test file.
    """

    def __init__(self, format: Format, path: str, order: Order) -> None:
        if order not in get_args(Order):
            raise BadFeed(f"order = {order!r} is not one of {', '.join(get_args(Order))}")
        self.format = format
        self.path = path
        self.order = order
        self.name = ""

    @classmethod
    def csv(cls, path: str, *, order: Order = "sequential") -> "Feed":
        """The first line names the columns; every value is a string."""
        return cls("csv", path, order)

    @classmethod
    def json(cls, path: str, *, order: Order = "sequential") -> "Feed":
        """A list of objects."""
        return cls("json", path, order)

    @classmethod
    def jsonl(cls, path: str, *, order: Order = "sequential") -> "Feed":
        """An object in each line."""
        return cls("jsonl", path, order)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, workflow: None, owner: type) -> "Feed": ...
    @overload
    def __get__(self, workflow: object, owner: type) -> "Cursor": ...
    def __get__(self, workflow: object | None, owner: type) -> "Feed | Cursor":
        if workflow is None:
            return self
        # A user's cursor lies in its own dict and is found there first; so this is an object that was made by hand.
        raise BadFeed(f"feed {self.name} has no rows yet: they are there while the workflow runs")


class Cursor:
    """One shard's way through the rows. Its users share it."""

    def __init__(
        self, feed: Feed, rows: Sequence[Row], random: Random, *, shard: int = 0, of: int = 1, given: int = 0
    ) -> None:
        self._feed = feed
        self._rows = rows
        self._random = random
        self._next = shard + given * of
        self._stride = of

    def next(self) -> dict[str, Any]:
        rows = self._rows
        if self._feed.order == "random":
            return dict(self._random.choice(rows))
        if self._feed.order == "once" and self._next >= len(rows):
            raise FeedUsedUp(f"the feed {self._feed.name} ({self._feed.path}) was used up: it has {len(rows)} rows")
        row = rows[self._next % len(rows)]
        self._next += self._stride
        return dict(row)


class Between(msgspec.Struct, frozen=True):
    """A pause of a length drawn anew each time."""

    low_ns: int
    high_ns: int

    def draw_ns(self, source: Random) -> int:
        return source.randint(self.low_ns, self.high_ns)


def between(low: str | float, high: str | float, *, what: str = "between") -> Between:
    """Any time from `low` to `high`, all equally likely."""
    found = Between(parse_duration(low, what=what), parse_duration(high, what=what))
    if found.low_ns > found.high_ns:
        raise BadFeed(f"{what}({low!r}, {high!r}): the first must not be the longer one")
    return found


def pause_of(think: object) -> Between | None:
    """What a workflow's `think` means: nothing, a fixed pause, or one drawn at random."""
    if think is None or isinstance(think, Between):
        return think
    fixed = parse_duration(cast(str | float, think), what="think")
    return Between(fixed, fixed) if fixed else None
