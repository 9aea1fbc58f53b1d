"""What a simulated core counts: journeys of two steps and an action, whose calls have several names and partly fail.

Every row follows from how many iterations began, ended and were cut. Whatever was merged of such counts, in whatever
order, must obey the same equations; `discrepancies` tells which do not hold.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from talka.stats.tally import Exchanges, StepTally, Tally
from talka.units import MILLISECOND

ITERATION_NS: Final = 200 * MILLISECOND
"""What one iteration takes a VU."""
JOURNEY_NS: Final = 1_200 * MILLISECOND
LONG_JOURNEY_NS: Final = 3_000 * MILLISECOND
"""Of every fourth journey: longer than the grace of simulated jobs."""
NAMES_PER_CORE: Final = 120
"""Where the names of calls are made of ids. Two cores have more than a result has room for."""
PAGE: Final = "page"
"""A step of two calls, `FIRST` and `SECOND`, made when an iteration begins. Every seventh fails with its second
call."""
BUY: Final = "buy"
"""The step after it, with one call under its own name. Every third is skipped; of the others every fifth raises."""
LOOK: Final = "look"
"""An action at the end of an iteration, with two calls under its own name."""
FIRST: Final = "first"
SECOND: Final = "second"


class Manner(msgspec.Struct, frozen=True):
    """How the cores of a job behave. The seed among its settings decides, for that is all that reaches them."""

    tells_rows: bool
    is_slow: bool
    """Iterations take longer, some of them longer than the grace."""
    has_many_names: bool
    has_failing_action: bool
    """Requests fail more often than steps. Otherwise it is the other way round."""
    asks: bool = False
    """They ask for more time, again and again."""

    @classmethod
    def of(cls, seed: int | None) -> "Manner":
        bits = seed or 0
        return cls(bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8), bool(bits & 16))


class JourneyCounts(msgspec.Struct, frozen=True):
    """Iterations of one core, or of several together."""

    started: int = 0
    iterations: int = 0
    interrupted: int = 0

    @property
    def under_way(self) -> int:
        return self.started - self.iterations - self.interrupted

    def __add__(self, other: "JourneyCounts") -> "JourneyCounts":
        return JourneyCounts(
            self.started + other.started,
            self.iterations + other.iterations,
            self.interrupted + other.interrupted,
        )


def counts_in(tally: Tally) -> JourneyCounts:
    return JourneyCounts(tally.started, tally.iterations, tally.interrupted_iterations)


class Journeys:
    """The iterations of one core, by its own clock."""

    __slots__ = ("_under_way", "iterations", "interrupted", "started")

    def __init__(self) -> None:
        self.started = 0
        self.iterations = 0
        self.interrupted = 0
        self._under_way: list[tuple[int, int]] = []
        """When they end, and how many."""

    @property
    def counts(self) -> JourneyCounts:
        return JourneyCounts(self.started, self.iterations, self.interrupted)

    @property
    def are_over(self) -> bool:
        return not self._under_way

    def begin(self, now: int, number: int, *, is_slow: bool) -> None:
        before, self.started = self.started, self.started + number
        if not is_slow:
            self._under_way.append((now + ITERATION_NS, number))
            return
        long = self.started // 4 - before // 4
        self._under_way += [(now + JOURNEY_NS, number - long), (now + LONG_JOURNEY_NS, long)]

    def advance(self, now: int) -> None:
        self.iterations += sum(number for ends_at, number in self._under_way if ends_at <= now)
        self._under_way = [one for one in self._under_way if one[0] > now]

    def cut(self) -> None:
        self.interrupted += sum(number for _, number in self._under_way)
        self._under_way = []


class JourneyRow(msgspec.Struct, frozen=True):
    """A step, an action, or calls of one name in it, as it is told."""

    name: str
    call: str | None
    is_measured: bool
    tally: StepTally


def rows_of(manner: Manner, shard: int, counts: JourneyCounts) -> list[JourneyRow]:
    """Every step, action and name of calls that a core has counted anything of."""
    bad_pages = counts.started // 7
    page = StepTally(ok=counts.started - bad_pages, failed=bad_pages, errors=_errors("status", bad_pages))
    second = StepTally(
        ok=page.ok, failed=bad_pages, errors=dict(page.errors), outcomes={"200": page.ok, "500": bad_pages}
    )
    skipped = counts.iterations // 3
    ran = counts.iterations - skipped
    raised = ran // 5
    buy = StepTally(
        ok=ran - raised,
        failed=raised,
        interrupted=counts.interrupted,
        errors=_errors("exception", raised),
        skipped=skipped,
    )
    looks = 2 * counts.iterations
    look = StepTally(failed=looks, errors=_errors("status", looks)) if manner.has_failing_action else StepTally(looks)
    rows = [
        JourneyRow(PAGE, None, True, page),
        JourneyRow(BUY, None, True, buy),
        JourneyRow(LOOK, None, False, StepTally(ok=counts.iterations)),
        *(
            JourneyRow(PAGE, name, False, StepTally(ok=number))
            for name, number in _first_calls(manner, shard, counts.started)
        ),
        JourneyRow(PAGE, SECOND, False, second),
        JourneyRow(BUY, BUY, False, StepTally(ok=ran, interrupted=counts.interrupted)),
        JourneyRow(LOOK, LOOK, False, look),
    ]
    return [row for row in rows if row.tally.seen]


def totals_of(manner: Manner, counts: JourneyCounts) -> Tally:
    """What a core tells beside its rows, which travel by themselves."""
    bad_pages, looks = counts.started // 7, 2 * counts.iterations
    bought = counts.iterations - counts.iterations // 3
    bad_looks = looks if manner.has_failing_action else 0
    return Tally(
        started=counts.started,
        iterations=counts.iterations,
        interrupted_iterations=counts.interrupted,
        exchanges=Exchanges(
            ok=2 * counts.started - bad_pages + bought + looks - bad_looks,
            failed=bad_pages + bad_looks,
            interrupted=counts.interrupted,
        ),
    )


def tally_of(manner: Manner, shard: int, counts: JourneyCounts) -> Tally:
    """All that a core with these counts has counted: what must be in a result of which nothing was lost."""
    tally = totals_of(manner, counts)
    for row in rows_of(manner, shard, counts) if manner.tells_rows else ():
        if row.call is not None:
            tally.calls.setdefault(row.name, {})[row.call] = row.tally
        else:
            (tally.steps if row.is_measured else tally.actions)[row.name] = row.tally
    return tally


def discrepancies(manner: Manner, tally: Tally) -> Iterator[str]:
    """What cannot be, however many cores the tally is of and whenever each of them told its counts."""
    counts = counts_in(tally)
    if counts.under_way < 0:
        yield f"of {counts.started} iterations {counts.iterations} ended and {counts.interrupted} were cut"
    if not manner.tells_rows:
        return
    steps, actions, calls = tally.steps, tally.actions, tally.calls
    page, buy, look = steps.get(PAGE, _NONE), steps.get(BUY, _NONE), actions.get(LOOK, _NONE)
    of_page, of_buy, of_look = (calls.get(name, {}) for name in (PAGE, BUY, LOOK))
    second, bought = of_page.get(SECOND, _NONE), of_buy.get(BUY, _NONE)
    firsts = sum(call.count for name, call in of_page.items() if name != SECOND)
    exchanges = _exchanges_of(tally)
    equations: tuple[tuple[str, object, object], ...] = (
        ("runs of page", page.seen, counts.started),
        ("first calls of page", firsts, counts.started),
        ("second calls of page", second.count, counts.started),
        ("pages that failed, and their second calls", page.failed, second.failed),
        ("second calls answered with 500", second.outcomes.get("500", 0), second.failed),
        ("runs of buy that ended", buy.ok + buy.failed + buy.skipped, counts.iterations),
        ("runs of buy that were cut", buy.interrupted, counts.interrupted),
        ("calls of buy, and its runs", bought.count, buy.count),
        ("looks", look.count, counts.iterations),
        ("calls of look", sum(call.count for call in of_look.values()), 2 * counts.iterations),
        ("errors of steps", sum(map(_error_count, steps.values())), page.failed + buy.failed),
        ("requests, and the calls they are of", _outcomes(tally.exchanges), _outcomes(exchanges)),
    )
    for what, one, other in equations:
        if one != other:
            yield f"{what}: {one} and {other}"


def rows_in(tally: Tally) -> dict[tuple[str, str, str], tuple[int, int, int, int]]:
    """Every row by kind, name and name of its calls: ok, failed, interrupted, skipped."""
    found: dict[tuple[str, str, str], StepTally] = {("step", name, ""): row for name, row in tally.steps.items()}
    found |= {("action", name, ""): row for name, row in tally.actions.items()}
    found |= {("call", name, call): row for name, rows in tally.calls.items() for call, row in rows.items()}
    return {key: (row.ok, row.failed, row.interrupted, row.skipped) for key, row in found.items() if row.seen}


_NONE: Final = StepTally()


def _first_calls(manner: Manner, shard: int, started: int) -> list[tuple[str, int]]:
    if not manner.has_many_names:
        return [(FIRST, started)]
    first = shard * NAMES_PER_CORE
    return [
        (f"/item/{first + number}", (started + NAMES_PER_CORE - 1 - number) // NAMES_PER_CORE)
        for number in range(NAMES_PER_CORE)
    ]


def _errors(kind: str, number: int) -> dict[str, int]:
    return {kind: number} if number else {}


def _error_count(row: StepTally) -> int:
    return sum(row.errors.values())


def _exchanges_of(tally: Tally) -> Exchanges:
    whole = Exchanges()
    for rows in tally.calls.values():
        for row in rows.values():
            whole.merge(Exchanges(ok=row.ok, failed=row.failed, interrupted=row.interrupted))
    return whole


def _outcomes(exchanges: Exchanges) -> tuple[int, int, int]:
    return exchanges.ok, exchanges.failed, exchanges.interrupted
