"""What the bench of members found, against Serf and against the targets: one table, and whether all is met."""

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from member_machine import Cost
from member_processes import FalseVerdict

SERF, DEFAULT, FAST = KINDS = ("serf-lan", "default", "fast")
MODEL_TOLERANCE = 0.15

OURS = (DEFAULT, FAST)
LIMITS: dict[str, dict[str, float]] = {
    "median_s": {DEFAULT: 4.5},
    "worst_s": {DEFAULT: 7.0, FAST: 3.5},
    "false verdicts": dict.fromkeys(OURS, 0),
    "kB/s": dict.fromkeys(OURS, 1.2),
    "cpu %": dict.fromkeys(OURS, 0.5),
    "MB": dict.fromkeys(OURS, 60),
    "election_s": {DEFAULT: 3.0},
    "divergence": {DEFAULT: 0},
}


class Spread(NamedTuple):
    """Of times in seconds; infinite is what never came."""

    median: float
    p95: float
    worst: float
    number: int

    @classmethod
    def of(cls, times_s: list[float]) -> "Spread":
        ordered = sorted(times_s)
        at_p95 = max(0, math.ceil(0.95 * len(ordered)) - 1)
        return cls(statistics.median(ordered), ordered[at_p95], ordered[-1], len(ordered))

    def __str__(self) -> str:
        return (
            f"median {told(self.median)} s, p95 {told(self.p95)} s, worst {told(self.worst)} s (of {self.number})"
            if self.number
            else "nothing"
        )


def told(number: float | None) -> str:
    if number is None:
        return "–"
    if math.isinf(number):
        return "never"
    return f"{number:.0f}" if number == int(number) else f"{number:.2f}"


class Slowness(NamedTuple):
    """What happened while a few members were starved."""

    about_healthy: int
    about_slow: int
    by_slow: int
    """Of both, how many were said by a starved member."""
    kills_s: list[float]
    """From each kill of a healthy member until all healthy ones knew."""
    throttled: float
    """Share of the periods in which a starved member's quota ran out; the least of all."""
    queued_bytes_worst: int
    dropped: int
    """Datagrams that found the starved members' queues full."""
    false: list[FalseVerdict]


class Results:
    """Everything measured, by kind of member and size."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.first: dict[int, dict[str, list[float]]] = {}
        self.all: dict[int, dict[str, list[float]]] = {}
        self.joined: dict[int, dict[str, float]] = {}
        self.false: dict[int, dict[str, list[FalseVerdict]]] = {}
        self.idle: dict[int, dict[str, Cost]] = {}
        self.slow: dict[str, Slowness] = {}
        self.elections_s: list[float] = []
        self.cold_s: list[float] = []
        self.divergences: list[str] = []
        self.cold_rounds = 0
        self.model: dict[int, float] = {}
        self.left_out: list[str] = []
        self.broken: list[str] = []

    def leave_out(self, what: str) -> None:
        self.left_out.append(what)
        print(f"left out: {what}", flush=True)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_plain(vars(self)), indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """For JSON: named tuples as objects, never as null."""
    if isinstance(value, float) and math.isinf(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


class Row(NamedTuple):
    quantity: str
    cells: dict[str, str]
    ratio: str
    target: str
    is_met: bool | None
    """None: no target, or nothing to hold against it."""


def rows(results: Results) -> list[Row]:
    found = []
    for size, times in results.all.items():
        spreads = {kind: Spread.of(ones) for kind, ones in times.items() if ones}
        firsts = {kind: Spread.of(ones) for kind, ones in results.first[size].items() if ones}
        found += [
            _row(f"{size}: first knows, median s", {kind: one.median for kind, one in firsts.items()}),
            _row(f"{size}: all agree, median s", {kind: one.median for kind, one in spreads.items()}, "median_s"),
            _row(f"{size}: all agree, p95 s", {kind: one.p95 for kind, one in spreads.items()}),
            _row(f"{size}: all agree, worst s", {kind: one.worst for kind, one in spreads.items()}, "worst_s"),
        ]
    for size, lists in results.false.items():
        found.append(
            _row(f"{size}: false verdicts", {kind: len(ones) for kind, ones in lists.items()}, "false verdicts")
        )
    for size, costs in results.idle.items():
        sent = {kind: one.bytes_per_s / 1000 for kind, one in costs.items() if one.bytes_per_s is not None}
        found += [
            _row(f"{size}: idle, kB/s sent", sent, "kB/s"),
            _row(f"{size}: idle, % of a core", {kind: one.cpu_percent for kind, one in costs.items()}, "cpu %"),
            _row(
                f"{size}: idle, MB resident, worst", {kind: one.resident_mb_worst for kind, one in costs.items()}, "MB"
            ),
        ]
    if results.slow:
        slow = results.slow
        found += [
            _row(
                "starved: false about healthy",
                {kind: one.about_healthy for kind, one in slow.items()},
                "false verdicts",
            ),
            _row(
                "starved: false about starved", {kind: one.about_slow for kind, one in slow.items()}, "false verdicts"
            ),
            _row(
                "starved: healthy agree, worst s", {kind: max(one.kills_s) for kind, one in slow.items() if one.kills_s}
            ),
        ]
    if results.elections_s:
        spread = Spread.of(results.elections_s)
        found += [
            _row("leader killed → elected, median s", {DEFAULT: spread.median}),
            _row("leader killed → elected, worst s", {DEFAULT: spread.worst}, "election_s"),
        ]
    if results.cold_s:
        found.append(_row("cold start → leader, worst s", {DEFAULT: max(results.cold_s)}))
    if results.cold_rounds or results.elections_s:
        found.append(
            _row(
                f"divergence, {len(results.elections_s)} kills, {results.cold_rounds} cold starts",
                {DEFAULT: len(results.divergences)},
                "divergence",
            )
        )
    for size, simulated in results.model.items():
        found.append(_model_row(size, simulated, results.all.get(size, {}).get(SERF, [])))
    return found


def _row(quantity: str, values: dict[str, float], limits_of: str = "") -> Row:
    limits = LIMITS.get(limits_of, {})
    judged = [values[kind] <= limit for kind, limit in limits.items() if kind in values]
    serf, ours = values.get(SERF), values.get(DEFAULT)
    words = (
        f"≤ {told(next(iter(limits.values())))}"
        if len(set(limits.values())) == 1 and len(limits) == len(OURS)
        else ", ".join(f"{kind} ≤ {told(limit)}" for kind, limit in limits.items())
    )
    return Row(
        quantity,
        {kind: told(values.get(kind)) for kind in KINDS},
        f"{ours / serf:.2f}" if serf and ours is not None and not math.isinf(serf + ours) else "–",
        words,
        all(judged) if judged else None,
    )


def _model_row(size: int, simulated_s: float, serf_s: list[float]) -> Row:
    measured_s = statistics.median(serf_s) if serf_s else None
    ratio = simulated_s / measured_s if measured_s else None
    return Row(
        f"{size}: serf-lan simulated {simulated_s:.2f} s",
        {SERF: told(measured_s), DEFAULT: "–", FAST: "–"},
        told(ratio),
        f"ratio within {MODEL_TOLERANCE:.0%} of 1",
        abs(ratio - 1) <= MODEL_TOLERANCE if ratio is not None else None,
    )


def print_report(results: Results) -> bool:
    """Whether every target that was looked at is met."""
    table = rows(results)
    print()
    head = ("quantity", "Serf", "Talka default", "Talka fast", "default/Serf", "target", "")
    lines = [head, *((row.quantity, *row.cells.values(), row.ratio, row.target, _verdict(row)) for row in table)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for size, lists in results.false.items():
        for kind, ones in lists.items():
            print_false_verdicts(f"{kind}, {size} members", ones)
    for sentence in results.divergences:
        print(f"divergence: {sentence}")
    for sentence in results.left_out:
        print(f"left out: {sentence}")
    for sentence in results.broken:
        print(f"not measured: {sentence}")
    missed = sum(row.is_met is False for row in table)
    print(
        f"{sum(row.is_met is True for row in table)} targets met, {missed} not met, {len(results.broken)} not measured"
    )
    return not missed and not results.broken


def _verdict(row: Row) -> str:
    if row.is_met is None:
        return "not judged" if row.target else ""
    return "met" if row.is_met else "NOT MET"


def print_false_verdicts(where: str, ones: list[FalseVerdict]) -> None:
    """Each subject once, with how many said so, how many of their own, and when."""
    about = Counter(one.about for one in ones)
    for name, count in about.items():
        mine = [one for one in ones if one.about == name]
        own = [one.by for one in mine if one.own]
        print(
            f"false: {where}: {name} declared lost by {count} in {mine[0].phase!r},"
            f" {mine[0].at_s:.1f}–{mine[-1].at_s:.1f} s, by their own timers: {', '.join(own) or 'none'}",
            flush=True,
        )
