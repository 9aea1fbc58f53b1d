"""Timeouts, and a wheel that watches over thousands of them with one timer for each 10 ms."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

from talka.clock import monotonic_ns
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND

SLOT_NS: Final = 10 * MILLISECOND
LONGEST_S: Final = 86_400.0


class BadTimeout(Invalid):
    """A timeout that is not a sensible number of seconds."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long one call may take. A plain number in its place bounds each of the three.

    `connect_ns`, `response_ns` and `total_ns` are the same in nanoseconds.
    """

    connect_s: float = 10.0
    """Finding the address, connecting and the TLS handshake."""
    response_s: float = 60.0
    """From sending the request to the first byte of the answer."""
    total_s: float = 60.0
    """The whole call: connecting, redirects and bodies included."""
    connect_ns: int = field(init=False, repr=False, compare=False)
    response_ns: int = field(init=False, repr=False, compare=False)
    total_ns: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for part in ("connect", "response", "total"):
            seconds = getattr(self, f"{part}_s")
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_S:
                raise BadTimeout(f"timeout {part}_s={seconds!r}: give seconds above 0, at most {LONGEST_S:.0f}")
            object.__setattr__(self, f"{part}_ns", max(1, round(seconds * SECOND)))


def timeout_of(value: Timeout | float) -> Timeout:
    return value if isinstance(value, Timeout) else Timeout(value, value, value)


_timeout_of_seconds = lru_cache(64, typed=True)(timeout_of)


def kept_timeout(value: Timeout | float) -> Timeout:
    """As `timeout_of`, for every call."""
    return value if isinstance(value, Timeout) else _timeout_of_seconds(value)


class Item(Protocol):
    """What can be watched. Both times start as `NEVER`."""

    due_ns: int
    """When it is too late. Its owner may move it to later, or to `NEVER`, without telling the wheel."""
    look_ns: int
    """When the wheel will look at it next. Only the wheel writes it."""

    def on_deadline(self, now_ns: int) -> None: ...


class Deadlines:
    """Calls `on_deadline` of every item whose time has come: never early, late by at most one slot.

    The wheel is lazy: an item stays in its slot while its owner moves `due_ns` on, and is put into a later slot when
    its own comes round. So a connection that answers in time costs no more than an assignment for each request.
    """

    __slots__ = ("_loop", "_now", "_slots", "_timers")

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], int] = monotonic_ns) -> None:
        self._loop = loop
        self._now = now
        self._slots: dict[int, set[Item]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def add(self, item: Item, at_ns: int) -> None:
        """Watch the item until `at_ns`. Needed only when `at_ns` is before the item's `look_ns`."""
        item.due_ns = at_ns
        if item.look_ns <= at_ns:
            return
        if item.look_ns != NEVER:
            self._slots[item.look_ns].discard(item)
        slot = -(-at_ns // SLOT_NS) * SLOT_NS
        item.look_ns = slot
        items = self._slots.get(slot)
        if items is None:
            self._slots[slot] = {item}
            self._arm(slot, slot - self._now())
        else:
            items.add(item)

    def remove(self, item: Item) -> None:
        """Forget the item at once, so that the wheel does not keep it alive."""
        item.due_ns = NEVER
        if item.look_ns != NEVER:
            self._slots[item.look_ns].discard(item)
            item.look_ns = NEVER

    def close(self) -> None:
        """Stop every timer; items are let go unexpired."""
        for timer in self._timers.values():
            timer.cancel()
        for items in self._slots.values():
            for item in items:
                item.due_ns = item.look_ns = NEVER
        self._timers.clear()
        self._slots.clear()

    def _arm(self, slot: int, wait_ns: int) -> None:
        # At least 1 ms: event loops round to milliseconds and may wake too early. Without it they would then spin.
        when_s = self._loop.time() + max(wait_ns, MILLISECOND) / SECOND
        self._timers[slot] = self._loop.call_at(when_s, self._look, slot)

    def _look(self, slot: int) -> None:
        now = self._now()
        del self._timers[slot]
        for item in self._slots.pop(slot):
            item.look_ns = NEVER
            if item.due_ns <= now:
                item.due_ns = NEVER
                item.on_deadline(now)
            elif item.due_ns != NEVER:
                self.add(item, item.due_ns)  # moved on by its owner, or woken too early
