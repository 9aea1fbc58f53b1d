"""The plan a load shape becomes, and the shards it splits into.

A plan is made before the run and never changes. However many shards it is split into, their VUs, arrivals and
iterations add up to the whole at every instant: each VU and each arrival has a number in the whole, and the number
alone says which shard it belongs to. Where workflows share one load, it says which workflow, in the same way. All of it
is integer arithmetic, so that no two machines round differently.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import gcd, isqrt
from typing import Annotated, Final, Literal

import msgspec

from talka.errors import Invalid
from talka.units import SECOND

Model = Literal["closed", "open"]
Policy = Literal["queue", "drop"]

RATE_PER_S: Final = 3_600 * 10**6
"""One arrival per second in the unit of plans: millionths of an arrival per hour.

A whole number holds every rate of six decimals per second, minute or hour exactly, and fits 64 bits."""

# Areas under the rate are counted in halves of (rate unit x nanosecond), so that a triangle's is whole too.
ARRIVAL_AREA: Final = 2 * RATE_PER_S * SECOND


SHARES_LIMIT: Final = 10_000
"""The most that shares of one load may add up to, without their common divisor."""
MIX_LIMIT: Final = 256


class BadShape(Invalid):
    """The load as described cannot be run."""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The part of a load that one of several workflows has: one of the `weights`.

    Each number of the whole, be it a VU, an arrival or an iteration, belongs to exactly one of them. However many there
    are, each has as many as its weight says, rounded down or up.
    """

    weights: Annotated[tuple[int, ...], msgspec.Meta(max_length=MIX_LIMIT)]
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.weights):
            raise BadShape(f"share {self.index} of {len(self.weights)} does not exist: shares are numbered from 0")
        if min(self.weights) < 1 or sum(self.weights) > SHARES_LIMIT:
            raise BadShape(f"shares are whole numbers above 0 that add up to {SHARES_LIMIT:,} at most")

    @property
    def weight(self) -> int:
        return self.weights[self.index]

    @property
    def total(self) -> int:
        return sum(self.weights)

    def count(self, whole: int) -> int:
        """How many of the numbers below `whole` belong to this share."""
        rounds, rest = divmod(whole, self.total)
        return rounds * self.weight + bisect_left(dealt(self.weights)[self.index], rest)

    def number(self, position: int) -> int:
        """The number in the whole of what is at this position, from 0, in the share."""
        rounds, rest = divmod(position, self.weight)
        return rounds * self.total + dealt(self.weights)[self.index][rest]


@lru_cache(maxsize=16)
def dealt(weights: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Which numbers of one round each weight gets; a round has as many as all weights together.

    The i-th of weight w is wanted from floor(i * total / w) on and before ceil((i + 1) * total / w): then nobody is
    ever a whole one ahead or behind. There is always an order that keeps all of these limits, and taking whoever is due
    first finds it (Tijdeman, The chairman assignment problem, 1980).
    """
    total = sum(weights)
    numbers: list[list[int]] = [[] for _ in weights]
    waiting = [(0, index) for index in range(len(weights))]
    heapify(waiting)
    due: list[tuple[int, int]] = []
    for number in range(total):
        while waiting and waiting[0][0] <= number:
            _, index = heappop(waiting)
            heappush(due, (-(-(len(numbers[index]) + 1) * total // weights[index]), index))
        _, index = heappop(due)
        numbers[index].append(number)
        heappush(waiting, (len(numbers[index]) * total // weights[index], index))
    return tuple(tuple(each) for each in numbers)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a plan over which the VUs or the rate go in a straight line from `start` to `end`.

    VUs are whole; rates are in units of `1 / RATE_PER_S` arrivals per second. `end` is where the line leads: its last
    instant belongs to the next segment.
    """

    length_ns: Annotated[int, msgspec.Meta(ge=1)]
    start: Annotated[int, msgspec.Meta(ge=0)]
    end: Annotated[int, msgspec.Meta(ge=0)]

    @property
    def area(self) -> int:
        return (self.start + self.end) * self.length_ns

    def area_times_length(self, offset_ns: int) -> int:
        """The area up to the offset, multiplied by the length: only so it is always whole."""
        return (2 * self.start * self.length_ns + (self.end - self.start) * offset_ns) * offset_ns

    def whole_at(self, offset_ns: int) -> int:
        """The whole number nearest to the line; halves go up, so that a ramp has reached its target before its end."""
        return self.start + (2 * (self.end - self.start) * offset_ns + self.length_ns) // (2 * self.length_ns)

    def offset_of(self, area: int) -> int:
        """The last nanosecond up to which the area is at most this, for an area in `range(self.area)`."""
        slope = self.end - self.start
        if slope == 0:
            return area // (2 * self.start)
        # Up to offset x the area is (slope * x**2 + 2 * reach * x) / length. Solved for x; square roots are rounded
        # so that the quotient is rounded down.
        reach = self.start * self.length_ns
        square = reach * reach + slope * area * self.length_ns
        if slope > 0:
            return (isqrt(square) - reach) // slope
        return (reach - isqrt(square - 1) - 1) // -slope


class Plan(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """What to run, and when.

    Closed model: VUs run one iteration after the other; `segments` say how many VUs there are. VU number j exists as
    long as more than j are wanted. Iteration plans end when their iterations are done, and at the latest when their
    segment, if any, is over.

    Open model: `segments` say at what rate iterations start, whatever became of earlier ones. Arrival number n is due
    at the instant from which on the integral of the rate is above n: arrival 0 as soon as the rate is above 0, and at a
    constant rate one every 1/rate. So there are exactly ceil(integral) arrivals, none of them during a pause.
    """

    model: Model
    vus: int
    """VUs that ever exist. Open model: VUs that may be busy at the same time."""
    segments: tuple[Segment, ...] = ()
    """Empty for iteration plans without an end in time."""
    iterations_per_vu: int | None = None
    shared_iterations: int | None = None
    policy: Policy = "queue"
    """Open model: what becomes of an arrival that finds no VU free."""
    share: Share | None = None
    """Where this is one workflow's part of a load: `segments` are of the whole, everything else is of the part."""

    def __post_init__(self) -> None:
        has_iterations = self.iterations_per_vu is not None or self.shared_iterations is not None
        if not self.segments and not has_iterations:
            raise BadShape("nothing would run: the load has no length; give it a duration above 0")
        if self.vus < 1:
            raise BadShape("nothing would run: not one VU is wanted at any time")
        if self.model == "open" and self.arrivals_total == 0:
            raise BadShape("nothing would run: the rate is 0 all the time")

    @classmethod
    def of_vus(cls, segments: Sequence[Segment]) -> "Plan":
        peak = max((max(part.start, part.whole_at(part.length_ns - 1)) for part in segments), default=0)
        return cls(model="closed", vus=peak, segments=tuple(segments))

    @classmethod
    def of_rate(cls, segments: Sequence[Segment], *, max_vus: int, policy: Policy) -> "Plan":
        return cls(model="open", vus=max_vus, segments=tuple(segments), policy=policy)

    def part(self, weights: Sequence[int], index: int) -> "Plan":
        """The part of this plan that has one of the weights."""
        divisor = gcd(*weights)
        share = Share(tuple(weight // divisor for weight in weights), index)
        vus, iterations = share.count(self.vus), self.shared_iterations
        if self.model == "open":
            vus = max(1, vus)  # its arrivals could never start otherwise
            found, whole, what = share.count(self.arrivals_total), self.arrivals_total, "arrivals"
        elif iterations is not None and share.count(iterations) == 0:
            found, whole, what = 0, iterations, "iterations"
        else:
            found, whole, what = vus, self.vus, "VUs"
        if found == 0:
            raise BadShape(f"{share.weight} in {share.total} of {whole:,} {what} are none: give more of them")
        return msgspec.structs.replace(
            self, vus=vus, shared_iterations=None if iterations is None else share.count(iterations), share=share
        )

    @cached_property
    def starts_ns(self) -> tuple[int, ...]:
        """When each segment starts, and last when the plan ends."""
        return tuple(accumulate((part.length_ns for part in self.segments), initial=0))

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """The area under the rate when each segment starts, and last the whole area."""
        return tuple(accumulate((part.area for part in self.segments), initial=0))

    @property
    def length_ns(self) -> int | None:
        return self.starts_ns[-1] if self.segments else None

    @property
    def arrivals_total(self) -> int:
        return self._mine(-(-self.areas[-1] // ARRIVAL_AREA)) if self.model == "open" else 0

    def arrivals_before(self, t_ns: int) -> int:
        """How many arrivals are due before t."""
        position = bisect_right(self.starts_ns, t_ns) - 1
        if self.model == "closed" or position < 0:
            return 0
        if position == len(self.segments):
            return self.arrivals_total
        part = self.segments[position]
        area = self.areas[position] * part.length_ns + part.area_times_length(t_ns - self.starts_ns[position])
        return self._mine(-(-area // (ARRIVAL_AREA * part.length_ns)))

    def vus_at(self, t_ns: int) -> int:
        """VUs that exist at t. Open model: VUs that may be busy."""
        if not self._runs_at(t_ns):
            return 0
        if self.model == "open" or not self.segments:
            return self.vus
        position = bisect_right(self.starts_ns, t_ns) - 1
        return self._mine(self.segments[position].whole_at(t_ns - self.starts_ns[position]))

    def rate_at(self, t_ns: int) -> float:
        """Arrivals per second at t; 0 in the closed model."""
        if self.model == "closed" or not self._runs_at(t_ns):
            return 0.0
        position = bisect_right(self.starts_ns, t_ns) - 1
        part = self.segments[position]
        risen = (part.end - part.start) * (t_ns - self.starts_ns[position])
        return self._rate(part.start * part.length_ns + risen, part.length_ns)

    def preview(self, points: int = 20) -> list[tuple[int, float]]:
        """The corners of the plan as (instant, VUs or arrivals per second), thinned out evenly to at most `points`.

        A jump shows as two values at one instant.
        """
        if not self.segments:
            return [(0, float(self.vus))]
        corners: list[tuple[int, float]] = []
        for start, end in self.lines():
            if corners[-1:] != [start]:
                corners.append(start)
            corners.append(end)
        if len(corners) <= points:
            return corners
        gaps = max(points, 2) - 1
        return [corners[round(point * (len(corners) - 1) / gaps)] for point in range(gaps + 1)]

    def lines(self) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
        """The two ends of each segment, as (instant, VUs or arrivals per second)."""
        for at_ns, part in zip(self.starts_ns, self.segments, strict=False):
            start, end = (
                self._rate(value) if self.model == "open" else float(self._mine(value))
                for value in (part.start, part.end)
            )
            yield (at_ns, start), (at_ns + part.length_ns, end)

    def shards_for(self, cores: int) -> int:
        """Into how many shards to split for this many cores, so that none has nothing to do."""
        most = min(cores, self.vus)
        if self.shared_iterations is not None:
            most = min(most, self.shared_iterations)
        if self.model == "open":
            most = min(most, self.arrivals_total)
        return max(1, most)

    def split(self, of: int) -> "tuple[Shard, ...]":
        if of < 1:
            raise BadShape(f"a plan cannot be split into {of} shards: at least 1 is needed")
        return tuple(Shard(self, index, of) for index in range(of))

    def number_of(self, position: int) -> int:
        """The number in the whole of the VU or arrival that is at this position in this plan."""
        return position if self.share is None else self.share.number(position)

    def _mine(self, whole: int) -> int:
        """How many of the first so many VUs or arrivals of the whole are of this plan."""
        return whole if self.share is None else self.share.count(whole)

    def _rate(self, whole: int, of: int = 1) -> float:
        """Arrivals per second of this plan, where the whole has `whole / of` in the unit of plans."""
        weight, total = (1, 1) if self.share is None else (self.share.weight, self.share.total)
        return whole * weight / (of * RATE_PER_S * total)

    def _runs_at(self, t_ns: int) -> bool:
        return t_ns >= 0 and (not self.segments or t_ns < self.starts_ns[-1])


class Shard(msgspec.Struct, frozen=True):
    """One of `of` parts of a plan, for one core.

    VUs are dealt out in turn, VU number j to shard j % of; what does not divide evenly goes to the last shard, so
    that 2000 VUs over 6 shards are five times 333, and 335. Arrival number n goes to shard n % of.
    """

    plan: Plan
    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise BadShape(f"shard {self.index} of {self.of} does not exist: shards are numbered from 0")

    @property
    def count(self) -> int:
        """Of shards: see `PlanSlice`."""
        return 1

    @property
    def vus(self) -> int:
        """VUs this shard owns."""
        return self._share(self.plan.vus)

    @property
    def max_vus(self) -> int:
        """VUs this shard may have busy. At least 1, as its arrivals could never start otherwise."""
        return max(1, self.vus)

    @property
    def iterations(self) -> int | None:
        """This shard's share of the shared iterations."""
        shared = self.plan.shared_iterations
        return None if shared is None else self._share(shared)

    @property
    def iterations_in_all(self) -> int | None:
        """Iterations after which this shard is done; None when time alone ends it."""
        each = self.plan.iterations_per_vu
        return self.iterations if each is None else self.vus * each

    @property
    def arrivals_total(self) -> int:
        return self._in_turn(self.plan.arrivals_total)

    def vu_number(self, position: int) -> int:
        """The number in the whole plan of this shard's VU at this position, from 0; VUs come and go in this order."""
        base = self.plan.vus // self.of
        return position * self.of + self.index if position < base else base * self.of + position - base

    def vus_at(self, t_ns: int) -> int:
        """VUs of this shard that exist at t. They are those at positions 0 up to this number."""
        existing = self.plan.vus_at(t_ns)
        dealt = self.plan.vus // self.of * self.of
        if self.index < self.of - 1 or existing <= dealt:
            return self._in_turn(min(existing, dealt))
        return self._in_turn(dealt) + existing - dealt

    def next_change(self, t_ns: int) -> int | None:
        """The next instant after t, and before the end, at which `vus_at` changes; None when it changes no more."""
        plan = self.plan
        owned, now = self.vus, self.vus_at(t_ns)
        if plan.model == "open" or not plan.segments:
            return 0 if t_ns < 0 < owned else None
        # The shard keeps its number while this many VUs of the whole are wanted.
        least = plan.number_of(self.vu_number(now - 1)) + 1 if now > 0 else 0
        most = plan.number_of(self.vu_number(now) if now < owned else plan.vus)
        after_ns = max(t_ns + 1, 0)
        for position in range(bisect_right(plan.starts_ns, after_ns) - 1, len(plan.segments)):
            part, start_ns = plan.segments[position], plan.starts_ns[position]
            offset_ns = max(after_ns - start_ns, 0)
            rise = part.end - part.start
            if least <= part.whole_at(offset_ns) <= most:
                if rise > 0:
                    offset_ns = -(-(2 * (most - part.start) + 1) * part.length_ns // (2 * rise))
                elif rise < 0:
                    offset_ns = (2 * (part.start - least) + 1) * part.length_ns // (-2 * rise) + 1
                else:
                    offset_ns = part.length_ns
            if offset_ns < part.length_ns:
                return start_ns + offset_ns
        return None

    def arrivals(self, from_ns: int = 0) -> Iterator[int]:
        """When this shard's arrivals are due, in nanoseconds since the start, ascending, from `from_ns` on.

        Each is worked out on its own from its number, so that nothing adds up over a long run, and starting late
        costs nothing.
        """
        plan = self.plan
        if plan.model == "closed":
            return
        from_ns = max(from_ns, 0)
        for position in range(bisect_right(plan.starts_ns, from_ns) - 1, len(plan.segments)):
            part, start_ns, area = plan.segments[position], plan.starts_ns[position], plan.areas[position]
            first = plan.arrivals_before(max(from_ns, start_ns))
            first += (self.index - first) % self.of
            end = plan.arrivals_before(plan.starts_ns[position + 1])
            numbers: Iterable[int] = range(first, end, self.of)
            for number in numbers if plan.share is None else map(plan.share.number, numbers):
                yield start_ns + part.offset_of(number * ARRIVAL_AREA - area)

    def arrivals_between(self, from_ns: int, to_ns: int) -> int:
        """How many of this shard's arrivals are due from `from_ns` on and before `to_ns`."""
        before = self._in_turn(self.plan.arrivals_before(from_ns))
        return max(0, self._in_turn(self.plan.arrivals_before(to_ns)) - before)

    def _share(self, total: int) -> int:
        rest = total % self.of if self.index == self.of - 1 else 0
        return total // self.of + rest

    def _in_turn(self, total: int) -> int:
        """How many of the numbers below `total` are this shard's when dealt out in turn."""
        return (total - self.index + self.of - 1) // self.of


class PlanSlice(msgspec.Struct, frozen=True):
    """Consecutive shards of a plan, for the cores of one machine. What it says of itself is the sum of theirs."""

    plan: Plan
    first: int
    count: int
    of: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.first < 0 or self.first + self.count > self.of:
            last = self.first + self.count - 1
            raise BadShape(f"shards {self.first} to {last} of {self.of} do not exist: shards are numbered from 0")

    @property
    def shards(self) -> tuple[Shard, ...]:
        return tuple(Shard(self.plan, self.first + offset, self.of) for offset in range(self.count))

    @property
    def index(self) -> int:
        return self.first

    @property
    def vus(self) -> int:
        return sum(shard.vus for shard in self.shards)

    @property
    def iterations_in_all(self) -> int | None:
        each = [shard.iterations_in_all for shard in self.shards]
        return sum(count for count in each if count is not None) if None not in each else None

    def arrivals_between(self, from_ns: int, to_ns: int) -> int:
        return sum(shard.arrivals_between(from_ns, to_ns) for shard in self.shards)

    def part(self, offset: int, count: int) -> "PlanSlice":
        return PlanSlice(self.plan, self.first + offset, count, self.of)
