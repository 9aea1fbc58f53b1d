"""Two results side by side: which numbers differ by more than noise, in words, as a page and as a document.

`talka.stats.comparison` decides what is noise; here are the rows to decide about, the rules people set, and the words.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple, cast

import msgspec

from talka.errors import Invalid
from talka.report.document import BadResult, ResultDocument
from talka.report.text import (
    Page,
    Style,
    cleaned,
    counted_text,
    cut,
    padded,
    rate_text,
    room_for,
    seconds_text,
    time_text,
)
from talka.stats import comparison as statistics
from talka.stats import hdr
from talka.stats.comparison import WORSE, Estimate, Slice, Unit, Verdict
from talka.stats.histogram import Histogram

SCHEMA: Final = "talka.comparison/1"
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
STATS: Final = (*PERCENTILES, "mean")
ROWS_SHOWN: Final = 60
"""On a page of text; the other forms have all."""
NAMES_SHOWN: Final = 8
LENGTHS_ALIKE: Final = 0.1
"""Runs whose lengths differ by a smaller share were meant to be equally long."""
SHARES_WEIGH: Final = 10
"""A point more failures is as bad as so many percent more time, when rows are put in order."""

Measure = Literal["response_time", "service_time", "failed", "rate"]
Key = tuple[str, str]
"""Names of a workflow and of its step."""
UNITS: Final[dict[Measure, Unit]] = {"response_time": "time", "service_time": "time", "failed": "share", "rate": "rate"}
WORDS: Final[dict[Measure, str]] = {
    "response_time": "response",
    "service_time": "service",
    "failed": "failed",
    "rate": "rate",
}
SAID: Final[dict[Verdict, str]] = {
    "slower": "is slower",
    "faster": "is faster",
    "lower rate": "has a lower rate",
    "higher rate": "has a higher rate",
    "more failures": "fails more often",
    "fewer failures": "fails less often",
}
NO_DIFFERENCE: Final = "No difference beyond noise."
TOO_SHORT: Final = "These runs are too short to tell a difference from noise."


class NotComparable(Invalid):
    """Two results with no step in common."""


class BadRule(Invalid):
    """A rule of `--fail-on` that cannot be read, or names what is not in both runs."""

    def __init__(self, rule: str, problem: str, example: str = "response_time.p99 +10%") -> None:
        super().__init__(f'The rule "{cut(cleaned(rule), 120)}" is wrong: {problem}. Write it like "{example}".')
        self.rule, self.problem = rule, problem


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of both runs. Times in milliseconds, rates per second, shares from 0 to 1."""

    workflow: str | None
    """None, and so is the step: over the whole job."""
    step: str | None
    measure: Measure
    stat: str | None
    a: float | None
    b: float | None
    difference: float | None = None
    relative: float | None = None
    """The difference as a share of A; None if A is 0."""
    low: float | None = None
    high: float | None = None
    """The interval of the difference."""
    verdict: Verdict

    @property
    def unit(self) -> Unit:
        return UNITS[self.measure]

    @property
    def is_different(self) -> bool:
        return self.verdict in SAID

    @property
    def surely(self) -> float:
        """The least difference that is still in the interval; 0 within noise."""
        if not self.is_different or self.low is None or self.high is None:
            return 0.0
        return self.low if self.low > 0 else self.high


class RuleVerdict(msgspec.Struct, frozen=True):
    rule: str
    broken: bool
    shown: str


class Run(msgspec.Struct, frozen=True):
    """Which run it was."""

    file: str
    job: str
    name: str
    status: str
    started_at: str
    duration_s: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    a: Run
    b: Run
    headline: str
    different: bool
    rules: list[RuleVerdict]
    warnings: list[str]
    rows: list[Row]
    """The worst first."""
    only_in_a: list[str]
    only_in_b: list[str]
    """Steps, as Workflow.step."""

    @property
    def is_broken(self) -> bool:
        return any(rule.broken for rule in self.rules)

    @property
    def method(self) -> str:
        return (
            f"The intervals hold with {statistics.LEVEL:.0%} for all {len(self.rows)} rows together (Bonferroni), "
            "and allow for chance within a run and from run to run."
        ).replace("%", " %")

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


# From two documents to rows.


class Number(NamedTuple):
    """What one run says, and how far that can be trusted."""

    value: float | None
    estimate: Estimate | None


Numbers = dict[tuple[Measure, str | None], Number]


class Side:
    """One of the two runs, read."""

    def __init__(self, document: ResultDocument, file: str) -> None:
        self.document, self.file = document, file
        self.steps = {
            (workflow.name, step.name): step
            for workflow in document.workflows
            for step in workflow.steps
            if step.measured and step.count
        }
        counts = [count for step in self.steps.values() for count in (step.ok, step.failed, step.rate_per_s)]
        counts += [count for row in document.timeline for count in (row.requests, row.failed)]
        if any(count < 0 for count in counts) or document.totals.rate_per_s < 0:
            raise BadResult(f"{file}: a count is below 0, so this is not a result as talka wrote it")
        self.response = {key: self._decoded(key, step.histogram) for key, step in self.steps.items()}
        self.service = {key: self._decoded(key, step.service_histogram) for key, step in self.steps.items()}
        self.noise = statistics.noise_of(
            [
                Slice(row.width_s, row.requests, row.failed, row.response_p50_ms, row.response_p99_ms)
                for row in document.timeline
            ],
            merged(self.response.values()),
        )
        self._closed = {workflow.name for workflow in document.workflows if workflow.model == "closed"}

    def _decoded(self, key: Key, text: str | None) -> Histogram:
        if text is None:
            raise BadResult(f"{self.file}: the step {'.'.join(key)} has no histogram, so it cannot be compared")
        try:
            return hdr.decode(text)
        except hdr.BrokenHistogram as error:
            raise BadResult(f"{self.file}: the step {'.'.join(key)}: {error}") from None

    def run(self) -> Run:
        document = self.document
        job = document.job
        return Run(self.file, job.id, job.name, document.status, document.started_at, document.duration_s)

    def whole(self, common: Sequence[Key], rows: int) -> Numbers:
        """Of the whole job; its times over the steps that both runs have."""
        numbers = self._counted(list(self.steps), self.document.totals.rate_per_s, rows)
        # With a single step they would be the same rows once more.
        return numbers if len(common) == 1 else numbers | self._timed(common, rows)

    def of_step(self, key: Key, rows: int) -> Numbers:
        return self._counted([key], self.steps[key].rate_per_s, rows) | self._timed([key], rows)

    def _counted(self, keys: Sequence[Key], per_s: float, rows: int) -> Numbers:
        failed = sum(self.steps[key].failed for key in keys)
        of = failed + sum(self.steps[key].ok for key in keys)
        share = failed / of if of else None
        if self.noise is None:
            return {("failed", None): Number(share, None), ("rate", None): Number(per_s, None)}
        return {
            ("failed", None): Number(share, statistics.share_of(failed, of, self.noise, rows)),
            ("rate", None): Number(per_s, statistics.rate_of(per_s, self.noise, self._lag_share(keys), rows)),
        }

    def _timed(self, keys: Sequence[Key], rows: int) -> Numbers:
        numbers: Numbers = {}
        sources: dict[Measure, dict[Key, Histogram]] = {"response_time": self.response, "service_time": self.service}
        for measure, histograms in sources.items():
            times = merged(histograms[key] for key in keys)
            for stat in STATS:
                numbers[measure, stat] = Number(time_of(times, stat), self._estimate(times, stat, rows))
        return numbers

    def _estimate(self, times: Histogram, stat: str, rows: int) -> Estimate | None:
        if self.noise is None:
            return None
        if stat == "mean":
            return statistics.mean_of(times, self.noise, self._lag_ms(stat), rows)
        return statistics.percentile_of(times, PERCENTILES[stat], self.noise, self._lag_ms(stat), rows)

    def _lag_ms(self, stat: str) -> float:
        lag = self.document.generator.loop_lag_ms
        return 0.0 if lag is None else max(0.0, cast(float, getattr(lag, stat)))

    def _lag_share(self, keys: Sequence[Key]) -> float:
        """How much higher the rate could have been: users in a loop wait for the generator too, arrivals do not."""
        times = merged(self.response[key] for key in keys if key[0] in self._closed)
        return self._lag_ms("mean") * 1000 / times.mean if times.mean else 0.0


def compare(
    a: ResultDocument, b: ResultDocument, rules: Sequence["Rule"] = (), *, files: tuple[str, str] = ("A", "B")
) -> Comparison:
    """B as seen from A. Raises `NotComparable` without a common step, `BadRule` for a rule about what is not there."""
    one, other = Side(a, files[0]), Side(b, files[1])
    common = [key for key in one.steps if key in other.steps]
    if not common:
        raise NotComparable(
            "These results have no step in common, so there is nothing to compare: "
            f"{files[0]} has {listed(one.steps)}; {files[1]} has {listed(other.steps)}."
        )
    rows = sorted(rows_of(one, other, common), key=order_of)
    return Comparison(
        a=one.run(),
        b=other.run(),
        headline=headline_of(rows),
        different=any(row.is_different for row in rows),
        rules=[judged(rule, rows) for rule in rules],
        warnings=warnings_of(a, b),
        rows=rows,
        only_in_a=[".".join(key) for key in one.steps if key not in other.steps],
        only_in_b=[".".join(key) for key in other.steps if key not in one.steps],
    )


def rows_of(one: Side, other: Side, common: Sequence[Key]) -> list[Row]:
    # How many there will be decides how wide each interval is.
    count = len(one.whole(common, 1)) + sum(len(one.of_step(key, 1)) for key in common)
    rows = rows_side_by_side(None, one.whole(common, count), other.whole(common, count))
    for key in common:
        rows += rows_side_by_side(key, one.of_step(key, count), other.of_step(key, count))
    return rows


def rows_side_by_side(key: Key | None, ours: Numbers, theirs: Numbers) -> list[Row]:
    workflow, step = key or (None, None)
    rows = []
    for (measure, stat), number in ours.items():
        a, b = number, theirs[measure, stat]
        row = Row(workflow=workflow, step=step, measure=measure, stat=stat, a=a.value, b=b.value, verdict="too few")
        if a.estimate is not None and b.estimate is not None:
            found = statistics.difference(a.estimate, b.estimate, UNITS[measure])
            row = msgspec.structs.replace(
                row,
                difference=found.absolute,
                relative=found.relative,
                low=found.low,
                high=found.high,
                verdict=found.verdict,
            )
        rows.append(row)
    return rows


def time_of(times: Histogram, stat: str) -> float | None:
    """Milliseconds."""
    if not times.count:
        return None
    return round(times.mean / 1000, 3) if stat == "mean" else times.percentile(PERCENTILES[stat]) / 1000


def merged(histograms: Iterable[Histogram]) -> Histogram:
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole


def listed(keys: Iterable[Key]) -> str:
    names = [".".join(key) for key in keys]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more if names else "none that ran"


def order_of(row: Row) -> tuple[int, float]:
    """Worse rows first, then better ones, then those that are the same; each by how much they surely differ."""
    group = 0 if row.verdict in WORSE else 1 if row.is_different else 2 if row.verdict == "same" else 3
    weight = SHARES_WEIGH if row.unit == "share" else 1 / row.a if row.a else math.inf
    return group, -abs(row.surely) * weight if row.surely else 0.0


def warnings_of(a: ResultDocument, b: ResultDocument) -> list[str]:
    if (a.job.id, a.started_at) == (b.job.id, b.started_at):
        return ["A and B are the same run, so nothing can differ."]
    apart = []
    theirs = {workflow.name: workflow for workflow in b.workflows}
    for ours in a.workflows:
        other = theirs.get(ours.name)
        if other is None:
            continue
        if (ours.load, ours.model) != (other.load, other.model):
            apart.append(f"{ours.name} had the load {ours.load} in A and {other.load} in B")
        if ours.cores != other.cores:
            apart.append(f"{ours.name} ran on {counted_text(ours.cores, 'core')} in A and {other.cores} in B")
    if abs(a.duration_s - b.duration_s) > LENGTHS_ALIKE * max(a.duration_s, b.duration_s):
        apart.append(f"A ran {seconds_text(a.duration_s)} and B {seconds_text(b.duration_s)}")
    for what, one, two in (
        ("engine", a.generator.engine, b.generator.engine),
        ("version", a.generator.version, b.generator.version),
    ):
        if one != two:
            apart.append(f"the {what} was {one or 'unknown'} in A and {two or 'unknown'} in B")
    found = [f"These runs were not made alike: {'; '.join(apart)}."] if apart else []
    for name, document in (("A", a), ("B", b)):
        if document.status != "completed":
            found.append(f"{name} ended {document.status}: its numbers may tell only a part.")
        if document.generator.saturated:
            found.append(f"In {name} the generator was the bottleneck: the target may be faster than its numbers.")
    return found


# Rules: when to fail.

TIMES: Final = re.compile(r"(?:(?P<place>.+)\.)?(?P<measure>response_time|service_time)(?:\.(?P<stat>.*))?")
OTHERS: Final = re.compile(r"(?:(?P<place>.+)\.)?(?P<measure>failed|rate)")
# The digits are bounded: a longer number takes long to read, or becomes infinite.
RULE: Final = re.compile(
    r"(?P<subject>[^\s+-]+)\s*(?P<sign>[+-])\s*(?P<number>[0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?P<unit>[^\s0-9.]*)"
)
FACTORS: Final[dict[Unit, dict[str, float]]] = {
    "time": {"%": 0.01, "us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0},
    "rate": {"%": 0.01, "/s": 1.0},
    "share": {"%": 0.01},
}
EXAMPLES: Final[dict[Measure, str]] = {
    "response_time": "response_time.p99 +10%",
    "service_time": "service_time.mean +20ms",
    "failed": "failed +1%",
    "rate": "rate -5%",
}


class Rule(msgspec.Struct, frozen=True):
    text: str
    place: str | None
    """A step, or Workflow.step; None: the whole job."""
    measure: Measure
    stat: str | None
    limit: float
    """With the sign of the difference that breaks the rule. Milliseconds, per second, or a share."""
    is_relative: bool
    """The limit is a share of A."""

    def is_broken_by(self, row: Row) -> bool:
        if not row.is_different or row.difference is None:
            return False
        # From nothing, every step up is more than any share.
        relative = math.copysign(math.inf, row.difference) if row.relative is None else row.relative
        found = relative if self.is_relative else row.difference
        return found * self.direction > 0 and abs(found) > abs(self.limit)

    @property
    def direction(self) -> float:
        return math.copysign(1.0, self.limit)


def parse_rule(text: str) -> Rule:
    """A rule as people write it: "response_time.p99 +10%", "login.failed +1%" (points), "rate -5%"."""
    text = " ".join(text.split())
    found = RULE.fullmatch(text)
    if found is None:
        raise BadRule(text, "it needs a number that is measured, + or -, and how much it may change")
    subject = found["subject"]
    parts = TIMES.fullmatch(subject) or OTHERS.fullmatch(subject)
    if parts is None:
        close = [word for part in subject.split(".") for word in get_close_matches(part, UNITS, n=1)]
        hint = f'perhaps you mean "{close[0]}"' if close else f"there are {', '.join(UNITS)}"
        raise BadRule(text, f'"{subject}" is not among what is compared; {hint}')
    measure = cast(Measure, parts["measure"])
    stat = parts.groupdict().get("stat")
    if UNITS[measure] == "time" and stat not in STATS:
        raise BadRule(text, f"{measure} needs one of {', '.join(STATS)}", EXAMPLES[measure])
    factors = FACTORS[UNITS[measure]]
    if found["unit"] not in factors:
        problem = f"{found['number']}{found['unit']} needs a unit that fits: {' or '.join(factors)}"
        raise BadRule(text, problem, EXAMPLES[measure])
    limit = float(found["number"]) * factors[found["unit"]]
    is_relative = found["unit"] == "%" and measure != "failed"
    return Rule(text, parts["place"], measure, stat, -limit if found["sign"] == "-" else limit, is_relative)


def judged(rule: Rule, rows: Sequence[Row]) -> RuleVerdict:
    """Broken when a difference is beyond noise and larger than the limit."""
    found = meant_by(rule, rows)
    broken = [row for row in found if rule.is_broken_by(row)]
    row = (broken or found)[0]
    if row.difference is None:
        return RuleVerdict(rule.text, False, "too few samples to tell")
    shown = difference_text(row) + ("" if row.is_different else ", within noise")
    return RuleVerdict(rule.text, bool(broken), shown)


def meant_by(rule: Rule, rows: Sequence[Row]) -> list[Row]:
    """The rows a rule speaks of: one, or one of each workflow that has a step of that name."""
    alike = [row for row in rows if (row.measure, row.stat) == (rule.measure, rule.stat)]
    if rule.place is None:
        # A single step is the whole job.
        return [row for row in alike if row.step is None] or alike
    found = [row for row in alike if row.step and rule.place in (row.step, f"{row.workflow}.{row.step}")]
    if not found:
        known = sorted({name for row in rows if row.step for name in (row.step, f"{row.workflow}.{row.step}")})
        close = get_close_matches(rule.place, known, n=1)
        steps = sorted({row.step for row in rows if row.step})
        hint = f'perhaps you mean "{close[0]}"' if close else f"both have {', '.join(steps[:NAMES_SHOWN])}"
        example = f"{(close or steps)[0]}.{EXAMPLES[rule.measure]}"
        raise BadRule(rule.text, f'no step "{rule.place}" is in both runs; {hint}', example)
    return found


# Words.


def headline_of(rows: Sequence[Row]) -> str:
    different = [row for row in rows if row.is_different]
    if not different:
        return TOO_SHORT if all(row.verdict == "too few" for row in rows) else NO_DIFFERENCE
    row = different[0]
    least = ""
    if row.unit == "share":
        least = f", at least {points_text(row.surely)}"
    elif row.a:
        least = f", at least {percent_text(row.surely / row.a)}"
    size = difference_text(row)
    size = f"{size[:-1]}{least})" if size.endswith(")") else size + least
    return f"B {SAID[row.verdict]}: {name_of(row, rows)} {size}."


def name_of(row: Row, rows: Sequence[Row]) -> str:
    """As short as it can be told apart from the others."""
    what = f"{WORDS[row.measure]} {row.stat}" if row.stat else WORDS[row.measure]
    workflows = {other.workflow for other in rows if other.workflow}
    if row.step is None:
        return f"all: {what}"
    steps = {(other.workflow, other.step) for other in rows if other.step}
    if len(steps) == 1 and row.unit == "time":
        return what
    return f"{row.workflow}.{row.step} {what}" if len(workflows) > 1 else f"{row.step} {what}"


def difference_text(row: Row) -> str:
    """The size of a difference, with its share of A where there is one."""
    text = amount_text(row.difference or 0.0, row.unit)
    return text if row.relative is None or row.unit == "share" else f"{text} ({percent_text(row.relative)})"


def amount_text(amount: float, unit: Unit) -> str:
    if unit == "share":
        return points_text(amount)
    text = time_text(abs(amount)) if unit == "time" else rate_text(abs(amount))
    return f"{sign_of(amount)}{text}"


def sign_of(amount: float) -> str:
    return "+" if amount > 0 else "-" if amount < 0 else "±"


def percent_text(share: float) -> str:
    percent = round(share * 100, 1 if abs(share) < 0.1 else 0)
    return f"{sign_of(percent)}{abs(percent):,.{1 if abs(share) < 0.1 else 0}f} %"


def points_text(share: float) -> str:
    """Percentage points: "+1 %" of a share could mean either."""
    points = round(share * 100, 2)
    return f"{sign_of(points)}{abs(points):.2f} points"


def value_text(value: float | None, unit: Unit) -> str:
    if value is None:
        return "–"
    if unit == "share":
        return f"{value * 100:.2f} %"
    return time_text(value) if unit == "time" else rate_text(value)


def interval_text(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    low, high = amount_text(row.low, row.unit), amount_text(row.high, row.unit)
    return f"{low.removesuffix(' points')} to {high}"


def cells_of(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    amount = "–" if row.difference is None else amount_text(row.difference, row.unit)
    share = "" if row.relative is None or row.unit == "share" else percent_text(row.relative)
    values = (value_text(row.a, row.unit), value_text(row.b, row.unit))
    return (row.verdict, name_of(row, rows), *values, amount, share, interval_text(row))


def style_of(row: Row) -> Style | None:
    if row.verdict == "too few":
        return "yellow"
    return None if row.verdict == "same" else "red" if row.verdict in WORSE else "green"


TITLES: Final = ("VERDICT", "", "A", "B", "B - A", "", "INTERVAL")


def comparison_text(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """The headline, the rules, then a table with the worst first. The last line has no end of line."""
    page = Page(width, color=color)
    worst = style_of(comparison.rows[0])
    page.sentence(comparison.headline, indent=0, style="bold" if worst in (None, "yellow") else worst)
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        facts = (
            f"{run.file} · {run.name} · {run.status} after {seconds_text(run.duration_s)} · started {run.started_at}"
        )
        page.sentence(facts, lead=f"{name}  ")
    for warning in comparison.warnings:
        page.sentence(warning, lead="! ", style="yellow")
    if comparison.rules:
        page.section("RULES")
        room = room_for([rule.rule for rule in comparison.rules], page.width // 2)
        for rule in comparison.rules:
            style: Style = "red" if rule.broken else "green"
            mark, word = ("✗", "broken") if rule.broken else ("✓", "held")
            page.line("  ", (mark, style), " ", padded(rule.rule, room), "  ", (word, style), f": {rule.shown}")
    show_table(page, comparison.rows)
    for name, steps in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if steps:
            page.section(f"ONLY IN {name}")
            page.sentence(", ".join(steps))
    page.gap()
    page.sentence(comparison.method, indent=0)
    return page.text()


def show_table(page: Page, rows: Sequence[Row]) -> None:
    different = sum(row.is_different for row in rows)
    shown = rows[: max(ROWS_SHOWN, different)]
    table = [TITLES, *(cells_of(row, rows) for row in shown)]
    rooms = [room_for([cells[column] for cells in table], page.width // 3) for column in range(len(TITLES))]
    page.gap()
    for cells, row in zip(table, [None, *shown], strict=True):
        parts = [padded(cells[0], rooms[0]), padded(cells[1], rooms[1])]
        parts += [f"{cell:>{room}}" for cell, room in zip(cells[2:6], rooms[2:6], strict=True)]
        style = "bold" if row is None else style_of(row)
        page.line((f"  {parts[0]}", style), "  ", "  ".join([*parts[1:], cells[6]]))
    if len(rows) > len(shown):
        page.sentence(f"and {len(rows) - len(shown)} more rows without a difference (--json and --html have them all)")


# A page for browsers.

STYLE: Final = """
:root { color-scheme: light dark; --worse: #b3261e; --better: #1b6e3c; --edge: #8886; }
@media (prefers-color-scheme: dark) { :root { --worse: #ff8a80; --better: #7fdca0; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--edge); white-space: nowrap; text-align: right; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.worse { color: var(--worse); font-weight: 600; } .better { color: var(--better); font-weight: 600; }
.warning { border-left: 3px solid; padding-left: .6rem; } footer { margin-top: 2rem; opacity: .75; }
"""


def comparison_html(comparison: Comparison) -> str:
    """One file of its own: nothing is loaded, and nothing runs."""
    kinds: dict[Style | None, str] = {"red": "worse", "green": "better"}
    worst = kinds.get(style_of(comparison.rows[0]), "")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Comparison</title>',
        f"<style>{STYLE}</style></head><body>",
        f'<h1 class="{worst}">{escaped(comparison.headline)}</h1><ul>',
    ]
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        facts = (
            f"{run.file} · {run.name} · {run.status} after {seconds_text(run.duration_s)} · started {run.started_at}"
        )
        parts.append(f"<li><b>{name}</b> {escaped(facts)}</li>")
    parts.append("</ul>")
    parts += [f'<p class="warning">{escaped(warning)}</p>' for warning in comparison.warnings]
    if comparison.rules:
        parts.append("<h2>Rules</h2><ul>")
        for rule in comparison.rules:
            kind, word = ("worse", "broken") if rule.broken else ("better", "held")
            parts.append(f'<li>{escaped(rule.rule)} <span class="{kind}">{word}</span>: {escaped(rule.shown)}</li>')
        parts.append("</ul>")
    titles = ("Verdict", "What", "A", "B", "B - A", "%", "Interval")
    parts.append('<div class="wide"><table><thead><tr>' + "".join(f"<th>{title}</th>" for title in titles))
    parts.append("</tr></thead><tbody>")
    for row in comparison.rows:
        verdict, *others = (escaped(cell) for cell in cells_of(row, comparison.rows))
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        parts.append(f'<tr><td class="{kinds.get(style_of(row), "")}">{verdict}</td>{cells}</tr>')
    parts.append("</tbody></table></div>")
    for name, steps in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if steps:
            parts.append(f"<h2>Only in {name}</h2><p>{escaped(', '.join(steps))}</p>")
    parts.append(f"<footer>{escaped(comparison.method)}</footer></body></html>")
    return "\n".join(parts) + "\n"


def escaped(text: str) -> str:
    return html.escape(cleaned(text))
