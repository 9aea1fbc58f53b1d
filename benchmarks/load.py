"""How much load does one core make? Ours on both engines beside wrk, h2load, hey, autocannon, k6 and Locust, on nginx.

nginx has one worker on one core, every generator another core. wrk runs right before each of the others, and a ratio is
that of such a pair: the machine's speed changes from minute to minute. Numbers are medians over rounds. Needs nginx and
wrk (Debian packages, installed when this runs as root): a ratio against a slow target would mean nothing. Other peers
are installed once into build/peers-load, or left out with a line. Results also go to build/bench-load.json. The whole
takes about ten minutes on a quiet machine; --quick one, with ours and wrk alone. Prints what must be and what was
measured, and exits with 0 whatever that is.
"""

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from load_meter import Reading
from load_server import NotMeasured, Server, have
from load_tools import OPEN_USERS, Case, Ours, Peers, Tool

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- make bench-load: from here -->\n"
END: Final = "<!-- to here -->\n"
WINDOW_S, SECONDS = 2.0, 3
MANY_WINDOW_S, MANY_SECONDS = 4.0, 7
"""Ten thousand users take a while to connect, and answers come in waves of as many: more of them make a truer mean."""
FEW, SOME, MANY = 64, 1000, 10_000
LEAST: Final = 10
"""Users of the runs whose memory that of many is compared with."""
RATE: Final = 50_000
PARTS: Final = ("peers", "few", "some", "many", "open")
TARGETS: Final = ("plain", "json", "tls")
SPARE_FILES: Final = 300
DISTURBED: Final = 0.1


class Settings(argparse.Namespace):
    quick: bool
    write: bool
    rounds: int
    parts: list[str]
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"ours and wrk with {FEW} users: about a minute")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=3, help="how often each has its turn (3)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these (all)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-load.json", help="JSON file")
    return parser.parse_args(arguments, namespace=Settings())


class Row(msgspec.Struct):
    """A generator and what it was asked, with its turns. `pairs` holds wrk's of the same round."""

    tool: str
    case: Case
    turns: dict[int, Reading] = {}
    pairs: dict[int, Reading] = {}
    is_lone: bool = False
    """Without wrk beside it: only its memory or its own clock is wanted."""

    @property
    def ratios(self) -> dict[int, float]:
        """To wrk, by round."""
        return {
            number: turn.per_s / self.pairs[number].per_s
            for number, turn in self.turns.items()
            if number in self.pairs and self.pairs[number].per_s
        }

    def median(self, of: Callable[[Reading], float | None]) -> float | None:
        return median(of(turn) for turn in self.turns.values())


def median_of(row: Row | None, of: Callable[[Reading], float | None]) -> float | None:
    return None if row is None else row.median(of)


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Plan:
    """Who is asked what, in the order of a round."""

    def __init__(self, settings: Settings) -> None:
        self.rows: list[tuple[Tool, Row]] = []
        self.lines: list[str] = []
        """Why something is left out."""
        self._gone: set[str] = set()
        parts = ["few"] if settings.quick else settings.parts
        native, python, tasks = Ours("native"), Ours("python"), Ours("native", "Tasks", driver="task")
        few, most = Case("plain", FEW), self._most()
        if "few" in parts:
            self._add([native, python], few)
            self._add([Ours("native", "JSON")], Case("json", FEW))
            if not settings.quick:
                self._add([tasks], few)
                self._add([Ours("python", "JSON")], Case("json", FEW))
                self._add([Ours("native", "TLS"), Ours("python", "TLS")], Case("tls", FEW))
        if "peers" in parts:
            self._add([*Peers.fast, *Peers.slow], few)
        for part, vus in (("some", SOME), ("many", most)):
            if part in parts:
                self._add([*Peers.fast, native, python], Case("plain", vus))
        if "some" in parts:
            self._add([Peers.wrk, native, python], Case("plain", LEAST), lone=True)
        if "open" in parts:
            self._add([native, python], Case("plain", OPEN_USERS, RATE), lone=True)

    def _add(self, tools: Iterable[Tool], case: Case, *, lone: bool = False) -> None:
        for tool in tools:
            if tool.name in self._gone:
                continue
            if why := tool.missing():
                self._gone.add(tool.name)
                self.lines.append(f"{tool.name} is left out: {why}")
            else:
                self.rows.append((tool, Row(tool.name, case, is_lone=lone)))

    def _most(self) -> int:
        """As many users as there may be open files."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for all that are started from here
        files = hard if hard != resource.RLIM_INFINITY else MANY + SPARE_FILES
        most = min(MANY, files - SPARE_FILES)
        if most < MANY:
            self.lines.append(f"{most:,} users instead of {MANY:,}: only {files:,} files may be open")
        return most


# Measuring


def times_of(case: Case) -> tuple[float, int]:
    """How long is measured, and how long the load lasts: whole seconds, as some tools want them."""
    return (MANY_WINDOW_S, MANY_SECONDS) if case.vus > SOME else (WINDOW_S, SECONDS)


def measure(plan: Plan, server: Server, folder: Path, rounds: int) -> dict[int, list[Row]]:
    """Round by round, so that what the machine does meanwhile happens to all. Gives wrk's rows as well."""
    of_wrk: dict[Case, Row] = {}
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        for tool, row in plan.rows:
            if row.is_lone and row.case.vus == LEAST and number > 1:
                continue  # memory is no matter of luck
            if not row.is_lone:
                pair = turn(Peers.wrk, row.case, server, folder)
                if pair is None:
                    continue
                row.pairs[number] = pair
                turns = of_wrk.setdefault(row.case, Row(Peers.wrk.name, row.case)).turns
                turns[len(turns)] = pair
            reading = turn(tool, row.case, server, folder)
            if reading is not None:
                row.turns[number] = reading
                say(f"  {title(row)}: {reading_text(reading, row.ratios.get(number))}")
    rows: dict[int, list[Row]] = {}
    for row in [*of_wrk.values(), *(row for _, row in plan.rows)]:
        rows.setdefault(row.case.vus, []).append(row)
    return rows


def turn(tool: Tool, case: Case, server: Server, folder: Path) -> Reading | None:
    try:
        reading = tool.measure(case, server, folder, *times_of(case))
    except NotMeasured as problem:
        say(f"  {tool.name}, {case_text(case)}: not measured: {problem}")
        return None
    for warning in reading.warnings:
        say(f"  {tool.name}, {case_text(case)}: {warning}")
    if reading.others_busy > DISTURBED:
        say(f"  {tool.name}, {case_text(case)}: others took {reading.others_busy:.0%} of a core meanwhile")
    return reading


# What was asked


class Target(msgspec.Struct):
    name: str
    must: str
    aim: str
    measured: str
    mark: str


class Targets:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(row.tool, row.case): row for row in rows}
        self.targets: list[Target] = []

    def row(self, tool: str, case: Case) -> Row | None:
        row = self._rows.get((tool, case))
        return row if row is not None and row.turns else None

    def judge(self, name: str, value: float | None, must: float, aim: float, form: str, *, most: bool = False) -> None:
        """`form` shows a number, as "{} µs". With `most` it must not exceed what is asked, else not fall below."""

        def holds(bound: float) -> bool:
            return value is not None and (value <= bound if most else value >= bound)

        sign = "≤" if most else "≥"
        shown = "not measured" if value is None else form.format(number_text(value))
        mark = "" if value is None else "✓ aim" if holds(aim) else "✓" if holds(must) else "✗"
        bounds = [f"{sign} {form.format(f'{bound:g}')}" for bound in (must, aim)]
        self.targets.append(Target(name, bounds[0], bounds[1], shown, mark))

    def against(self, ours: str, peer: str, case: Case) -> float | None:
        """How often as many requests as the peer, each of them seen against wrk in the same round."""
        mine, theirs = self.row(ours, case), self.row(peer, case)
        if mine is None or theirs is None:
            return None
        both = mine.ratios.keys() & theirs.ratios.keys()
        return median(mine.ratios[number] / theirs.ratios[number] for number in both)

    def all(self) -> list[Target]:
        few, engine = Case("plain", FEW), Ours("native").name
        ours, pure = self.row(engine, few), self.row(Ours("python").name, few)
        decoding = self.row(engine, Case("json", FEW))
        self.judge("native against wrk", ratio_of(ours), 0.65, 0.9, "{} x")
        for peer, must, aim in (("k6", 6, 10), ("autocannon", 2.5, 3.5), ("Locust FastHttpUser", 12, 25)):
            self.judge(f"native against {peer}", self.against(engine, peer, few), must, aim, "{} x")
        user_us = median_of(ours, lambda turn: turn.user_us)
        self.judge("native, user CPU per request", user_us, 4, 1.5, "{} µs", most=True)
        self.judge("native with `response.json()` against wrk", ratio_of(decoding), 0.45, 0.6, "{} x")
        self.judge("native, RSS per 1,000 users", self.grown(engine), 8, 5, "{} MB", most=True)
        many = next((row for (tool, case), row in self._rows.items() if tool == engine and case.vus > SOME), None)
        many_us = median_of(many, lambda turn: turn.user_us)
        growth = many_us / user_us if many_us and user_us else None
        vus = f"{many.case.vus:,}" if many else f"{MANY:,}"
        self.judge(f"native, user CPU per request, {vus} users against {FEW}", growth, 2, 1.5, "{} x", most=True)
        opened = self.row(engine, Case("plain", OPEN_USERS, RATE))
        lag_ms = median_of(opened, lambda turn: turn.lag_p99_ms)
        self.judge(f"native, {RATE:,} arrivals/s, start lag p99", lag_ms, 1, 0.1, "{} ms", most=True)
        self.judge("python against wrk", ratio_of(pure), 0.35, 0.6, "{} x")
        return self.targets

    def grown(self, tool: str) -> float | None:
        """MB for each thousand users."""
        some, least = self.row(tool, Case("plain", SOME)), self.row(tool, Case("plain", LEAST))
        if some is None or least is None:
            return None
        high, low = some.median(lambda turn: turn.rss_bytes), least.median(lambda turn: turn.rss_bytes)
        return None if high is None or low is None else (high - low) / (SOME - LEAST) * 1000 / 1e6


def ratio_of(row: Row | None) -> float | None:
    return None if row is None else median(row.ratios.values())


# Words


def title(row: Row) -> str:
    return f"{row.tool}, {case_text(row.case)}"


def case_text(case: Case) -> str:
    words = dict(zip(TARGETS, ("", ", JSON", ", TLS"), strict=True))[case.target]
    return (f"{case.rate:,} arrivals/s" if case.rate else f"{case.vus:,} users") + words


def reading_text(reading: Reading, ratio: float | None) -> str:
    beside = "" if ratio is None else f", {ratio:.2f} of wrk"
    lag = "" if reading.lag_p99_ms is None else f", start lag {times_text(reading.lag_p50_ms, reading.lag_p99_ms)}"
    return (
        f"{reading.per_s:,.0f}/s{beside}; CPU {reading.user_us:.1f} + {reading.system_us:.1f} µs;"
        f" {times_text(reading.p50_ms, reading.p99_ms)}{lag}; nginx at {reading.server_busy:.0%}"
    )


def times_text(p50_ms: float | None, p99_ms: float | None) -> str:
    return "–" if p50_ms is None or p99_ms is None else f"{p50_ms:.2f} / {p99_ms:.2f} ms"


def number_text(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def cells_of(row: Row, grown: float | None) -> list[str]:
    """One row of the table of generators."""
    ratios = list(row.ratios.values())
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else ""
    user, system, whole = (
        row.median(lambda turn: turn.user_us),
        row.median(lambda turn: turn.system_us),
        row.median(lambda turn: turn.all_user_us + turn.all.system_s / turn.requests * 1e6),
    )
    lag = times_text(row.median(lambda turn: turn.lag_p50_ms), row.median(lambda turn: turn.lag_p99_ms))
    return [
        row.tool,
        case_text(row.case),
        f"{row.median(lambda turn: turn.per_s):,.0f}",
        "1" if row.tool == Peers.wrk.name and not row.is_lone else ratio,
        f"{user:.1f} + {system:.1f}",
        f"{whole:.1f}",
        f"{(row.median(lambda turn: turn.rss_bytes) or 0) / 1e6:.0f}",
        "" if grown is None else f"{grown:.1f}",
        times_text(row.median(lambda turn: turn.p50_ms), row.median(lambda turn: turn.p99_ms)),
        "" if lag == "–" else lag,
        f"{row.median(lambda turn: turn.server_busy):.0%}",
    ]


HEADS: Final = (
    ("generator", "load", "requests/s", "x wrk (range)", "user + system CPU, µs/request", "all processes, µs/request")
    + ("RSS, MB", "per 1,000 users, MB", "p50 / p99", "start lag p50 / p99", "nginx busy")
)  # fmt: skip


def tables(rows: dict[int, list[Row]], targets: Targets) -> tuple[list[list[str]], list[list[str]]]:
    judged = [[one.name, one.must, one.aim, one.measured, one.mark] for one in targets.all()]
    shown = []
    for vus in sorted(rows):
        for row in sorted(
            rows[vus], key=lambda row: (bool(row.case.rate), TARGETS.index(row.case.target), row.tool != "wrk")
        ):
            if row.turns and vus != LEAST:
                grown = targets.grown(row.tool) if row.case == Case("plain", SOME) else None
                shown.append(cells_of(row, grown))
    return [["", "must", "aim", "measured", ""], *judged], [list(HEADS), *shown]


def markdown(table: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]]) + "\n"


def aligned(table: list[list[str]]) -> str:
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    )


def write(text: str) -> None:
    """Between the marks of docs/performance.md."""
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{DOCUMENT.name} has no place for the tables: put back the lines {BEGIN.strip()} and {END.strip()}")
    DOCUMENT.write_text(before + begin + "\n" + text + "\n" + end + after)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    settings = settings_of(sys.argv[1:])
    if (os.cpu_count() or 1) < 2:
        sys.exit("this needs two cores: nothing was measured")
    for program, package in (("nginx", "nginx-light"), ("wrk", "wrk"), ("taskset", "util-linux")):
        if not have(program, package):
            sys.exit(f"{program} is missing (Debian package {package}): nothing was measured")
    BUILD.mkdir(exist_ok=True)
    plan = Plan(settings)
    for line in plan.lines:
        say(line)
    if not plan.rows:
        sys.exit("nothing is left to measure")
    tools = {tool.name: tool.version() for tool in [Peers.wrk, *(tool for tool, _ in plan.rows)]}
    versions = ", ".join(f"{name} {version}" for name, version in tools.items() if version)
    machine = (
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} processors, {platform.platform()},"
        f" Python {platform.python_version()}; {versions}."
    )
    say(machine)
    with tempfile.TemporaryDirectory(prefix="bench-load-", ignore_cleanup_errors=True) as name:
        try:
            with Server.started(Path(name), MANY) as server:
                rows = measure(plan, server, Path(name), settings.rounds)
        except (NotMeasured, ConnectionError) as problem:
            sys.exit(f"not measured: {problem}")
    targets = Targets(row for of_vus in rows.values() for row in of_vus)
    judged, shown = tables(rows, targets)
    say("\n" + aligned(shown) + "\n\n" + aligned(judged))
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "rows": rows, "targets": targets.targets, "left_out": plan.lines}
    settings.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    if settings.write:
        left_out = "".join(f"{line[0].upper()}{line[1:]}.\n" for line in plan.lines)
        parts = [machine + "\n", markdown(judged), markdown(shown), *([left_out] if left_out else [])]
        write("\n".join(parts))


if __name__ == "__main__":
    main()
