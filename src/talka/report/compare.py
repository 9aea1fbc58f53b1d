"""From two results to a comparison: which numbers differ by more than noise, and which rules are broken.

`talka.stats.comparison` decides what is noise; here are the rows to decide about and the rules people set.
"""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, cast

import msgspec

from talka.report.compare_text import difference_text, headline_of
from talka.report.comparison import (
    LENGTHS_ALIKE,
    NAMES_SHOWN,
    PERCENTILES,
    SHARES_WEIGH,
    STATS,
    UNITS,
    BadRule,
    Comparison,
    Key,
    Measure,
    NotComparable,
    Row,
    RuleVerdict,
    Run,
)
from talka.report.document import BadResult, ResultDocument
from talka.report.text import (
    counted_text,
    seconds_text,
)
from talka.stats import comparison as statistics
from talka.stats import hdr
from talka.stats.comparison import WORSE, Estimate, Slice, Unit
from talka.stats.histogram import Histogram

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
        ("engine", a.generator.engine_text, b.generator.engine_text),
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
