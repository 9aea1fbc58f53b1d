"""How many attempts that name a key may run at once, and how often one may start.

A hold belongs to a fence: it is given back when that attempt is over, in whatever way, and nothing else can hold. Of
the limits that name a key the strictest one counts, among those that wait or run: what is over binds nobody.

Decision: docs/decisions/0022-who-runs-a-task.md.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.task_views import LimitView
from talka.work.dags.dag import Limit
from talka.work.durations import format_duration, parse_rate

KEYS_LIMIT: Final = 10_000
"""Keys that nobody names are remembered for their rate up to so many together with the others."""
BURST_NS: Final = SECOND // 10
"""Starts that were not used are kept for so long; at a low rate one is. A tenth of a second in which nothing was given
out can so be made up for, and no second sees more than a tenth above its rate, or one start."""


@dataclass(slots=True, eq=False)
class _Key:
    """`due_at` moves one interval ahead with each start, and a start is allowed until it is `slack_ns` ahead of now."""

    name: str
    said: dict[Limit, int] = field(default_factory=dict)
    """How many queues and attempts say it."""
    held: int = 0
    concurrency: int = 0
    rate: str = ""
    interval_ns: int = 0
    """0: any rate."""
    slack_ns: int = 0
    due_at: int = 0

    def settle(self) -> None:
        """Find the strictest."""
        self.concurrency = min((limit.concurrency for limit in self.said if limit.concurrency), default=0)
        self.rate, self.interval_ns = "", 0
        for limit in self.said:
            interval_ns = _interval_ns(limit.rate)
            if interval_ns > self.interval_ns:
                self.rate, self.interval_ns = limit.rate, interval_ns
        self.slack_ns = max(0, BURST_NS - self.interval_ns) if self.interval_ns else 0

    def free_at(self, now: int) -> int:
        """When one may start, by the rate."""
        if not self.interval_ns:
            return now
        return NEVER if self.interval_ns == NEVER else max(now, self.due_at - self.slack_ns)


class Limits:
    """Tell it which limits are named (`say`, `unsay`), and take and give for each attempt.

    `freed` are the keys of which something was given back or loosened since it was last emptied.
    """

    def __init__(self, keys_limit: int = KEYS_LIMIT) -> None:
        if keys_limit < 1:
            raise Invalid(f"limits need a keys_limit of at least 1, not {keys_limit}")
        self._keys_limit = keys_limit
        self._keys: dict[str, _Key] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Keys that nobody names, oldest first."""
        self._held: dict[int, tuple[Limit, ...]] = {}
        self._forgot_at = -NEVER
        """When a key was last forgotten that had no start free."""
        self.freed: dict[str, None] = {}

    def say(self, now: int, limits: Iterable[Limit]) -> None:
        """Somebody who waits or runs names these."""
        for limit in limits:
            key = self._keys.get(limit.key)
            if key is None:
                key = self._keys[limit.key] = _Key(limit.key)
                self._shrink(now)
            elif not key.said:
                del self._idle[limit.key]
            count = key.said.get(limit, 0)
            key.said[limit] = count + 1
            if not count:
                self._settle(now, key)

    def unsay(self, now: int, limits: Iterable[Limit]) -> None:
        """One of those who said this does no longer."""
        for limit in limits:
            key = self._keys[limit.key]
            key.said[limit] -= 1
            if key.said[limit]:
                continue
            del key.said[limit]
            if not key.said:
                self._idle[limit.key] = None  # its rate is remembered as it was last
                self._shrink(now)
                continue
            self._settle(now, key)
            self.freed[limit.key] = None

    def refusal(self, limits: Sequence[Limit], now: int) -> tuple[str, str, str] | None:
        """What stands in the way of a start: constraint, text and the key."""
        keys = [self._keys[limit.key] for limit in limits if limit.key in self._keys]
        for key in keys:
            if key.concurrency and key.held >= key.concurrency:
                runs = "1 task that names it runs" if key.held == 1 else f"{key.held} tasks that name it run"
                return "limit", f'limit "{key.name}" lets {key.concurrency} run at a time, and {runs}', key.name
        for key in keys:
            free_at = key.free_at(now)
            if free_at > now:
                return "rate", f'limit "{key.name}" lets {key.rate} start: {_wait(free_at - now)}', key.name
        return None

    def room(self, limits: Sequence[Limit], now: int, most: int) -> int:
        """How many may start at once where one may, `most` at the most."""
        for limit in limits:
            key = self._keys[limit.key]
            if key.concurrency:
                most = min(most, key.concurrency - key.held)
            if key.interval_ns:
                most = min(most, 1 + (key.slack_ns - max(key.due_at - now, 0)) // key.interval_ns)
        return most

    def free_at(self, name: str, now: int) -> int:
        """The soonest instant at which the rate of this key allows a start; `now` if it does. It is named."""
        return self._keys[name].free_at(now)

    def take(self, fence: int, limits: tuple[Limit, ...], now: int, *, is_start: bool = True) -> None:
        """An attempt holds these until it is given back. `is_start`: not one that runs already and is only counted."""
        self.give(fence, now)
        self._held[fence] = limits
        self.say(now, limits)
        for name in dict.fromkeys([limit.key for limit in limits]):
            key = self._keys[name]
            key.held += 1
            if is_start and key.interval_ns:
                # Starts that were not used for longer than the slack are gone.
                key.due_at = max(key.due_at, now) + key.interval_ns

    def rename(self, former: int, fence: int) -> None:
        """What `former` holds, `fence` does."""
        limits = self._held.pop(former, None)
        if limits is not None:
            self._held[fence] = limits

    def give(self, fence: int, now: int) -> None:
        limits = self._held.pop(fence, None)
        if limits is None:
            return
        for name in dict.fromkeys([limit.key for limit in limits]):
            self._keys[name].held -= 1
            self.freed[name] = None
        self.unsay(now, limits)

    def views(self, waiting: dict[str, int]) -> list[LimitView]:
        """Of all keys that are named. `waiting`: ready tasks by key."""
        return [
            LimitView(name, key.held, key.concurrency, key.rate, waiting.get(name, 0))
            for name, key in sorted(self._keys.items())
            if key.said
        ]

    def _settle(self, now: int, key: _Key) -> None:
        had_rate = key.interval_ns > 0
        key.settle()
        if not key.interval_ns:
            return
        # A key that was not heard of has one start and no more. It may be one that was forgotten before it had that.
        first = max(now, self._forgot_at + key.interval_ns)
        if not had_rate:
            key.due_at = max(key.due_at, first + key.slack_ns)
        # What was started under a stricter rule does not bind for longer than the present one would.
        key.due_at = min(key.due_at, first + key.slack_ns + key.interval_ns)

    def _shrink(self, now: int) -> None:
        while len(self._keys) > self._keys_limit and self._idle:
            name, _ = self._idle.popitem(last=False)
            if self._keys.pop(name).free_at(now) > now:
                self._forgot_at = now


@lru_cache(maxsize=1024)
def _interval_ns(rate: str) -> int:
    if not rate:
        return 0
    per_s = parse_rate(rate)
    return -(-SECOND // per_s) if per_s else NEVER


def _wait(ns: int) -> str:
    if ns > NEVER // 2:
        return "none ever does"
    return f"the next one does in {format_duration(-(-ns // MILLISECOND) * MILLISECOND)}"
