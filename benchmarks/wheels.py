"""Does a change cost anything? Two wheels in turns on one core, against the server in C on another.

OLD and NEW are wheels, or revisions of this repository whose wheels are built first (NEW also "." for the files as they
are). Each is installed into an environment of its own below build/wheels. Every row is measured in turns, old, new,
old, new …, and told are the user CPU of all the generator's processes for each call, the median of the ratios of such
pairs with their range, and the ratio of all turns together with twice its standard error: the system finds out how time
is divided into user and system by looking at fixed intervals, and of a short turn that is not good to a few per cent.
Their sum is known exactly, and its ratio is told as well. Rows that only the new one can run are held against a fixed
bound, or against a row of the same wheel. Exits with 1 if a bound was broken or a row could not be measured.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from epoll_server import EpollServer, compiled
from load import DISTURBED, aligned, markdown, say
from load_meter import Reading, Run
from load_server import NotMeasured, have
from load_tools import RESULT

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
HOME: Final = ROOT / "build" / "wheels"
TICKS_PER_S: Final = 250
"""How often most kernels look whether a process is in user or in system mode (CONFIG_HZ)."""
MANY: Final = 10_000
SPARE_S: Final = 2
"""Of load beyond what is measured: users connect, and the last reading must come before the end."""
MANY_SPARE_S: Final = 6
RATIO_MOST: Final = 1.05
CALL_MOST_US: Final = 2.0
OTHER_MOST: Final = 1.1
FEATURES: Final = """
import inspect, talka
from talka.work.clients import HTTPMethod
had = {"on_start": hasattr(talka, "on_start"), "pause": hasattr(talka.Workflow, "pause"),
       "name=": "name" in inspect.signature(HTTPMethod.__call__).parameters}
print(" ".join(name for name, is_there in had.items() if not is_there))
"""
"""Prints what a wheel does not have of what the new rows need."""


class Row(msgspec.Struct, frozen=True):
    """What the users of one class are asked for."""

    key: str
    title: str
    workflow: str
    vus: int = 64
    rate: int = 0
    engine: str = "native"
    is_new: bool = False
    driver: str = "direct"
    against: str = ""
    """The row of the same wheel whose CPU it may exceed by a tenth; without one, a new row has a bound of its own."""

    @property
    def file(self) -> str:
        return "wheel_users_new.py" if self.is_new else "wheel_users.py"

    @property
    def arguments(self) -> list[str]:
        load = ["--vus", str(self.vus), *(["--rate", f"{self.rate}/s"] if self.rate else [])]
        return [f"{HERE / self.file}:{self.workflow}", *load, "--engine", self.engine]


ROWS: Final = (
    Row("plain", "one step, 64 users", "Plain"),
    Row("chained", "two steps in a chain, 64 users", "Chained"),
    Row("json", "`response.json()`, 64 users", "JSON"),
    Row("post", "POST with `json=`, 64 users", "Post"),
    Row("composed", "address composed in the step, 64 users", "Composed"),
    Row("judged", "check and metric, 64 users", "Judged"),
    Row("tasks", "asyncio tasks, 64 users", "Tasks", driver="task"),
    Row("open", "one step, 50,000 arrivals/s", "Plain", vus=100, rate=50_000),
    Row("paced", "one step, 40,000 arrivals/s", "Plain", vus=100, rate=40_000),
    Row("some", "one step, 1,000 users", "Plain", vus=1000),
    Row("many", "one step, 10,000 users", "Plain", vus=MANY),
    Row("python", "one step, 64 users, engine in Python", "Plain", engine="python", driver=""),
    Row("two-calls", "two named calls in a step, 64 users", "TwoCalls", is_new=True),
    Row("loop", "a loop of five calls in a step, 64 users", "Loop", is_new=True),
    Row("started", "`on_start` once for each of 64 users", "Started", is_new=True),
    # Two calls an arrival. What such a load costs is mostly waking up for each arrival, with `on_start` or without.
    Row(
        "arrivals",
        "`on_start` at each of 20,000 arrivals/s",
        "Started",
        vus=100,
        rate=20_000,
        is_new=True,
        against="paced",
    ),
    Row("think", "`think` of 20 ms, 640 users", "Thinking", vus=640, is_new=True),
    Row("pause", "`pause` of 20 ms, 640 users", "Pausing", vus=640, is_new=True, against="think"),
)


class Settings(argparse.Namespace):
    old: str
    new: str
    pairs: int
    seconds: float
    rows: list[str]
    quick: bool
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", help="a wheel, or a revision whose wheel is built")
    parser.add_argument("new", nargs="?", default=".", help="likewise; . (as it comes) for the files as they are")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each wheel for each row (5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured in each turn (8)")
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, default=keys, help="only these (all)")
    parser.add_argument("--quick", action="store_true", help="one pair of one second: shows that it works, no more")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-wheels.json", help="JSON file")
    settings = parser.parse_args(arguments, namespace=Settings())
    if settings.quick:
        settings.pairs, settings.seconds = 1, 1.0
    if settings.pairs < 1 or settings.seconds < 0.5:
        parser.error("--pairs must be at least 1 and --seconds at least 0.5")
    return settings


# Wheels


def run_quietly(command: list[str], doing: str, **more: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **more}, cwd=ROOT)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotMeasured(f"{doing}: {lines[-1]}")
    return done.stdout


def wheel_of(what: str) -> Path:
    """The wheel itself, or that of a revision, built once; of the files as they are, built anew each time."""
    if what.endswith(".whl"):
        if not (path := Path(what).resolve()).is_file():
            raise NotMeasured(f"there is no wheel {what}")
        return path
    if what == ".":
        folder, source = HOME / "working-files", ROOT
        for old in folder.glob("*.whl"):
            old.unlink()
    else:
        revision = run_quietly(["git", "rev-parse", "--verify", f"{what}^{{commit}}"], f"{what} is no revision").strip()
        folder, source = HOME / revision[:12], HOME / revision[:12] / "source"
        if not (source / "pyproject.toml").exists():
            source.mkdir(parents=True, exist_ok=True)
            archive = HOME / f"{revision[:12]}.tar"
            run_quietly(["git", "archive", "--output", str(archive), revision], f"git archive of {what}")
            run_quietly(["tar", "-xf", str(archive), "-C", str(source)], f"tar of {what}")
            archive.unlink()
    if not (found := list(folder.glob("*.whl"))):
        say(f"building the wheel of {what}…")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run_quietly([*command, "--wheel-dir", str(folder), str(source)], f"the wheel of {what} cannot be built")
        found = list(folder.glob("*.whl"))
    return found[0]


class Wheel:
    """An installed wheel: `python` runs it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        self.python = HOME / f"environment-{self.digest}" / "bin" / "python"
        self.missing = ""
        """What the new rows need and it does not have."""

    def install(self) -> None:
        ready = self.python.parent.parent / "installed"
        if not ready.exists():
            say(f"installing {self.path.name} as the {self.name} one…")
            run_quietly([sys.executable, "-m", "venv", "--clear", str(ready.parent)], "no environment can be made")
            command = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run_quietly([*command, f"{self.path}[fast]"], f"{self.path.name} cannot be installed")
            ready.touch()
        self.missing = run_quietly([str(self.python), "-c", FEATURES], f"the {self.name} wheel does not work").strip()

    def obstacle(self, row: Row) -> str:
        return f"the {self.name} wheel has no {', '.join(self.missing.split())}" if row.is_new and self.missing else ""


# Measuring


class Turn(msgspec.Struct):
    """Of all processes of the generator."""

    user_us: float
    all_us: float
    per_s: float
    user_share: float
    """Of its CPU time."""
    seconds: float
    """Of CPU time that were measured."""
    server_busy: float
    others_busy: float
    """What others took meanwhile, as a share of one core."""
    warnings: list[str]


def measured(wheel: Wheel, row: Row, server: EpollServer, folder: Path, seconds: float) -> Turn:
    spare_s = MANY_SPARE_S if row.vus >= MANY else SPARE_S
    (folder / RESULT).unlink(missing_ok=True)
    command = [str(wheel.python), "-m", "talka", "run", *row.arguments, "--duration", f"{seconds + spare_s:g}s"]
    command += ["--cores", "1", "--ui", "none", "--no-keep", "--json", RESULT]
    with Run.started(["env", f"TARGET={server.url}", *command], server, folder) as run:
        reading = run.read(1 if row.rate else row.vus, seconds)
        run.ended(reading, (0, 6))
    cpu_s = reading.all.user_s + reading.all.system_s
    return Turn(
        user_us=reading.all_user_us,
        all_us=cpu_s / reading.requests * 1e6,
        per_s=reading.per_s,
        user_share=reading.all.user_s / cpu_s if cpu_s else 0.0,
        seconds=cpu_s,
        server_busy=reading.server_busy,
        others_busy=reading.others_busy,
        warnings=warnings_of(json.loads((folder / RESULT).read_bytes()), row, reading),
    )


def warnings_of(document: dict[str, dict[str, float]], row: Row, reading: Reading) -> list[str]:
    totals, generator = document["totals"], document["generator"]
    warnings = []
    if generator["engine"] != row.engine or (row.driver and generator["driver"] != row.driver):
        warnings.append(f"it ran on {generator['engine']}, driver {generator['driver']}, instead of {row.driver}")
    for what in ("failed", "not_sent", "dropped_iterations"):
        if totals[what]:
            warnings.append(f"{totals[what]:,} {what.replace('_', ' ')}")
    # Those under way at the end may be cut off, and the server may not have read them.
    if not totals["requests"] - totals["interrupted"] <= reading.served <= totals["requests"]:
        warnings.append(f"it counts {totals['requests']:,} requests, the server {reading.served:,}")
    if reading.others_busy > DISTURBED:
        warnings.append(f"others took {reading.others_busy:.0%} of a core meanwhile")
    return warnings


class Outcome(msgspec.Struct):
    """One row: the turns by wheel, those of a pair at the same place."""

    row: Row
    turns: dict[str, list[Turn]]
    problem: str = ""


def outcomes_of(
    wheels: dict[str, Wheel], rows: Iterable[Row], server: EpollServer, folder: Path, settings: Settings
) -> list[Outcome]:
    outcomes = [Outcome(row, {name: [] for name in (["new"] if row.is_new else ["old", "new"])}) for row in rows]
    for outcome in outcomes:
        outcome.problem = next(filter(None, (wheels[name].obstacle(outcome.row) for name in outcome.turns)), "")
        if outcome.problem:
            say(f"{outcome.row.title}: left out, {outcome.problem}")
    for first in outcomes:
        if first.row.against:
            continue  # has its turns with that one
        together = [one for one in outcomes if one is first or one.row.against == first.row.key]
        for _ in range(settings.pairs):
            for outcome in together:
                if not outcome.problem:
                    take_turns(outcome, wheels, server, folder, settings.seconds)
    return outcomes


def take_turns(outcome: Outcome, wheels: dict[str, Wheel], server: EpollServer, folder: Path, seconds: float) -> None:
    for name, turns in outcome.turns.items():
        try:
            turns.append(measured(wheels[name], outcome.row, server, folder, seconds))
        except NotMeasured as problem:
            outcome.problem = f"not measured: {problem}"
            say(f"{outcome.row.title}, {name}: {outcome.problem}")
            return
        say(f"{outcome.row.title}, {name}: {turn_text(turns[-1])}")


def turn_text(turn: Turn) -> str:
    return (
        f"{turn.per_s:,.0f}/s; user {turn.user_us:.2f} µs, with system {turn.all_us:.2f} µs;"
        f" server at {turn.server_busy:.0%}" + "".join(f"; {warning}" for warning in turn.warnings)
    )


# What came of it


def pooled_us(turns: list[Turn]) -> float:
    """User CPU of all turns for each of all their calls."""
    calls = [turn.seconds / turn.all_us for turn in turns]
    used = sum(turn.user_us * count for turn, count in zip(turns, calls, strict=True))
    return used / sum(calls)


def relative_error(turns: list[Turn]) -> float:
    """Of the pooled user CPU, one standard deviation: so many looks at which of two it was."""
    looks = TICKS_PER_S * sum(turn.seconds for turn in turns)
    share = sum(turn.user_share * turn.seconds for turn in turns) / sum(turn.seconds for turn in turns)
    return math.sqrt((1 - share) / (share * looks)) if share and looks else math.inf


class Ratio(msgspec.Struct):
    median: float
    least: float
    most: float
    pooled: float
    error: float
    """Twice the standard error of the pooled one."""
    whole: float
    """The median of that of user and system together."""

    @classmethod
    def of(cls, old: list[Turn], new: list[Turn], *, whole: bool = False) -> "Ratio":
        pairs = list(zip(old, new, strict=True))
        wholes = [after.all_us / before.all_us for before, after in pairs]
        ratios = wholes if whole else [after.user_us / before.user_us for before, after in pairs if before.user_us]
        pooled = pooled_us(new) / pooled_us(old)
        error = 2 * pooled * math.hypot(relative_error(old), relative_error(new))
        if whole:
            pooled, error = statistics.median(wholes), 0.0
        median = statistics.median(ratios)
        return cls(median, min(ratios), max(ratios), pooled, error, statistics.median(wholes))

    def mark(self, most: float) -> str:
        """Whether it holds; a broken one may still be within what the measurement cannot tell."""
        if self.median <= most:
            return "✓"
        return "?" if self.pooled - self.error <= most else "✗"


def mark_of(turns: list[Turn], most_us: float) -> str:
    """As a ratio's."""
    if statistics.median(turn.user_us for turn in turns) <= most_us:
        return "✓"
    return "?" if pooled_us(turns) * (1 - 2 * relative_error(turns)) <= most_us else "✗"


def disturbed_of(outcomes: list[Outcome]) -> str:
    """What the numbers are worth where the machine did other things as well."""
    turns = [turn for outcome in outcomes for of_wheel in outcome.turns.values() for turn in of_wheel]
    count = sum(turn.others_busy > DISTURBED for turn in turns)
    return f"In {count} of {len(turns)} turns others took more than {DISTURBED:.0%} of a core." if count else ""


def tables_of(outcomes: list[Outcome]) -> tuple[list[list[str]], list[list[str]]]:
    both = [["", "old, user µs/call", "new", "new / old (range)", "all turns", "with system", "must", ""]]
    alone = [["new alone", "user µs/call (range)", "with system, µs", "driver", "must", ""]]
    by_key = {outcome.row.key: outcome for outcome in outcomes}
    for outcome in outcomes:
        row = outcome.row
        if outcome.problem:
            shown = alone if row.is_new else both
            shown.append([row.title, outcome.problem, *[""] * (len(shown[0]) - 2)])
        elif not row.is_new:
            old, new = outcome.turns["old"], outcome.turns["new"]
            ratio = Ratio.of(old, new)
            both.append(
                [row.title, *(f"{statistics.median(turn.user_us for turn in turns):.2f}" for turns in (old, new))]
                + [
                    f"{ratio.median:.3f} ({ratio.least:.3f}–{ratio.most:.3f})",
                    f"{ratio.pooled:.3f} ± {ratio.error:.3f}",
                ]
                + [f"{ratio.whole:.3f}", f"≤ {RATIO_MOST}", ratio.mark(RATIO_MOST)]
            )
        else:
            turns = outcome.turns["new"]
            user = [turn.user_us for turn in turns]
            must, mark = "", ""
            if row.against:
                other = by_key.get(row.against)
                if other is not None and not other.problem:
                    ratio = Ratio.of(other.turns["new"], turns, whole=True)
                    must = (
                        f"CPU ≤ {OTHER_MOST} x `{row.against}`: {ratio.median:.3f} ({ratio.least:.3f}–{ratio.most:.3f})"
                    )
                    mark = ratio.mark(OTHER_MOST)
            elif row.key not in {one.against for one in ROWS}:
                is_direct = not any("instead of" in warning for turn in turns for warning in turn.warnings)
                must = f"direct driver, ≤ {CALL_MOST_US:g} µs"
                mark = mark_of(turns, CALL_MOST_US) if is_direct else "✗"
            whole = statistics.median(turn.all_us for turn in turns)
            shown_user = f"{statistics.median(user):.2f} ({min(user):.2f}–{max(user):.2f})"
            alone.append([row.title, shown_user, f"{whole:.2f}", row.driver, must, mark])
    return both, alone


def main() -> None:
    settings = settings_of(sys.argv[1:])
    if (os.cpu_count() or 1) < 2:
        sys.exit("this needs two cores: nothing was measured")
    if not have("taskset", "util-linux"):
        sys.exit("taskset is missing (Debian package util-linux): nothing was measured")
    wanted = {*settings.rows, *(row.against for row in ROWS if row.key in settings.rows)}
    rows = [row for row in ROWS if row.key in wanted]
    try:
        program = compiled()
        wheels = {name: Wheel(name, wheel_of(what)) for name, what in (("old", settings.old), ("new", settings.new))}
        for wheel in wheels.values():
            wheel.install()
        machine = (
            f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} processors, {platform.platform()}, Python"
            f" {platform.python_version()}; {settings.pairs} turns of {settings.seconds:g} s each; old {settings.old},"
            f" new {settings.new}."
        )
        say(machine)
        with (
            tempfile.TemporaryDirectory(prefix="bench-wheels-", ignore_cleanup_errors=True) as name,
            EpollServer.started(program=program) as server,
        ):
            outcomes = outcomes_of(wheels, rows, server, Path(name), settings)
    except (NotMeasured, ConnectionError) as problem:
        sys.exit(f"not measured: {problem}")
    tables = [table for table in tables_of(outcomes) if len(table) > 1]
    for table in tables:
        say("\n" + aligned(table))
    if disturbed := disturbed_of(outcomes):
        say("\n" + disturbed)
        machine += f" {disturbed}"
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "outcomes": outcomes}
    settings.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    settings.output.with_suffix(".md").write_text("\n".join([machine + "\n", *map(markdown, tables)]))
    broken = [cells for table in tables for cells in table if cells[-1] == "✗"]
    sys.exit(1 if broken or any(outcome.problem.startswith("not measured") for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
