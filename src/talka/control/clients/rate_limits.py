"""How often each client may ask for what: a sliding window for every operation and client.

A window slides by counting the last whole window in part, as much as of it still lies within the window that ends now.
So a client that is at its limit is let through evenly, not in a burst whenever a window begins.

Under load limits shrink. From stressed on clients share as well: all together may ask no more than a few may when all
is well, each as much as any other, so that nobody is kept out by somebody else's flood.

Decision: docs/decisions/0060-what-is-left-undone-under-load.md.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from talka.control.clients.overload import Level
from talka.errors import Invalid
from talka.units import SECOND

CLIENTS_LIMIT: Final = 4096


class RateLimit(msgspec.Struct, frozen=True):
    """So many requests within any window, roughly."""

    requests: int
    window_ns: int = 10 * SECOND
    is_steady: bool = False
    """It does not shrink under load: what it limits must pass then of all times."""

    def __post_init__(self) -> None:
        if self.requests < 1 or self.window_ns < 1:
            raise Invalid(
                f"a limit needs requests and window_ns of at least 1, not {self.requests} and {self.window_ns}"
            )


LIMITS: Final[dict[str, RateLimit]] = {
    "submit": RateLimit(50),
    "submit_dag": RateLimit(1000),
    "bulk": RateLimit(200),
    "submit_frames": RateLimit(50),
    "tasks": RateLimit(200),
    "task": RateLimit(200),
    "logs": RateLimit(200),
    "events": RateLimit(200),
    "pause": RateLimit(50, is_steady=True),
    "resume": RateLimit(50, is_steady=True),
    "retry": RateLimit(50),
    "skip": RateLimit(50),
    "replay": RateLimit(100),
    "job": RateLimit(500),
    "view": RateLimit(200),
    "jobs": RateLimit(100),
    "workers": RateLimit(100),
    "worker": RateLimit(100),
    "cluster": RateLimit(100),
    "watch": RateLimit(50),
    "cancel": RateLimit(20, is_steady=True),
    "result": RateLimit(200, is_steady=True),
    "metrics": RateLimit(500, is_steady=True),
    "drop_schedule": RateLimit(50, is_steady=True),
    "pause_schedule": RateLimit(50, is_steady=True),
    "drain": RateLimit(20, is_steady=True),
    "undrain": RateLimit(20, is_steady=True),
}
OTHER: Final = RateLimit(100)
"""For operations without a limit of their own: they share this one."""

SHARE_PERCENT: Final[dict[Level, int]] = {
    Level.NORMAL: 100,
    Level.BUSY: 75,
    Level.STRESSED: 50,
    Level.OVERLOADED: 25,
}
"""Of each limit, at each level of overload; at least one request is left."""
SHARED_FROM: Final = Level.STRESSED
SHARED_BY: Final = 4
"""From then on all clients together may ask as much as so many may when all is well."""


class _Window(msgspec.Struct):
    index: int = 0
    count: int = 0
    previous: int = 0
    asked: int = -1
    """The last window in which the client asked, whether it was let or not."""

    def move_to(self, index: int) -> None:
        if index == self.index:
            return
        self.previous = self.count if index == self.index + 1 else 0
        self.count = 0
        self.index = index


class RateLimits:
    """Call `check` for every request. Set `level` whenever the overload of this node changes.

    At `clients_limit` the client that asked longest ago is forgotten, and has all its requests again when it returns.
    """

    def __init__(
        self, limits: Mapping[str, RateLimit] = LIMITS, *, other: RateLimit = OTHER, clients_limit: int = CLIENTS_LIMIT
    ) -> None:
        if clients_limit < 1:
            raise Invalid(f"rate limits need a clients_limit of at least 1, not {clients_limit}")
        self._limits = dict(limits)
        self._other = other
        self._clients_limit = clients_limit
        # In the order of the last use.
        self._clients: OrderedDict[str, dict[str, _Window]] = OrderedDict()
        self._crowds: dict[str, _Window] = {}
        """How many clients asked, by operation with a limit."""
        self.level = Level.NORMAL
        self.refused: dict[str, int] = {}
        """By operation."""

    def __len__(self) -> int:
        """Clients that are remembered."""
        return len(self._clients)

    def check(self, now: int, operation: str, client: str) -> int:
        """How many nanoseconds the client has to wait; 0: it may do it now, and this counts. A refusal does not."""
        asked = operation
        limit = self._limits.get(operation)
        if limit is None:
            limit, operation = self._other, ""
        window = self._window(client, operation)
        length = limit.window_ns
        window.move_to(now // length)
        clients = self._crowd(operation, window)
        wait_ns = _wait_ns(window, now % length, self._requests(limit, clients), length)
        if wait_ns:
            self.refused[asked] = self.refused.get(asked, 0) + 1
        else:
            window.count += 1
        return wait_ns

    def _requests(self, limit: RateLimit, clients: int) -> int:
        if limit.is_steady:
            return limit.requests
        requests = limit.requests * SHARE_PERCENT[self.level] // 100
        if self.level >= SHARED_FROM:
            requests = min(requests, limit.requests * SHARED_BY // clients)
        return max(1, requests)

    def _crowd(self, operation: str, window: _Window) -> int:
        """How many clients ask for it, with the one of this window: as many as in this window or the one before."""
        crowd = self._crowds.setdefault(operation, _Window())
        crowd.move_to(window.index)
        if window.asked != window.index:
            window.asked = window.index
            crowd.count += 1
        return max(crowd.count, crowd.previous)

    def _window(self, client: str, operation: str) -> _Window:
        clients = self._clients
        windows = clients.get(client)
        if windows is None:
            if len(clients) >= self._clients_limit:
                clients.popitem(last=False)
            windows = clients[client] = {}
        else:
            clients.move_to_end(client)
        window = windows.get(operation)
        if window is None:
            window = windows[operation] = _Window()
        return window


def _wait_ns(window: _Window, elapsed_ns: int, requests: int, length_ns: int) -> int:
    """Until one more fits, if nobody asks meanwhile. A count weighs as much as of its window is still in sight."""
    room = requests - 1 - window.count
    if room >= 0:
        return max(0, _faded_after_ns(window.previous, room, length_ns) - elapsed_ns)
    # Not in this window any more; in the next one, this one's count fades.
    return length_ns - elapsed_ns + _faded_after_ns(window.count, requests - 1, length_ns)


def _faded_after_ns(count: int, room: int, length_ns: int) -> int:
    """How far into the following window a count has faded to at most `room`."""
    return 0 if count <= room else length_ns - room * length_ns // count
