"""From results to a comparison: which figures are the same, which differ, and which rules are broken.

`talka.stats.comparison` decides what is noise; here are the rows to decide about and the rules people set.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, cast

import msgspec

from talka.report.compare_text import (
    difference_text,
    headline_of,
    interval_text,
    length_text,
    may_be_chance,
    noise_text,
)
from talka.report.comparison import (
    LENGTHS_ALIKE,
    LETTERS,
    LONGEST_RUN_S,
    MOST_RUNS,
    NAMES_SHOWN,
    PERCENTILES,
    SHARES_WEIGH,
    SHORTEST_RUN_S,
    STATS,
    UNITS,
    BadRule,
    BadWithin,
    ComparedRun,
    Comparison,
    ComparisonRow,
    Comparisons,
    Key,
    Measure,
    NotComparable,
    RuleAnswer,
    RuleVerdict,
)
from talka.report.document import BadResult, ResultDocument
from talka.report.text import cleaned, counted_text, cut, seconds_text
from talka.stats import comparison as statistics
from talka.stats import hdr
from talka.stats.comparison import WITHIN, WORSE, Estimate, TimeSlice, Unit
from talka.stats.histogram import Histogram, merged

GREATEST: Final = 1e12
"""No count, rate, time in milliseconds or instant in seconds is beyond."""
NARROWEST_S: Final = 1e-6
"""Of a window: nothing that lasts shorter has a rate."""

# From two documents to rows.


class Number(NamedTuple):
    """What one run says, and how far that can be trusted."""

    value: float | None
    estimate: Estimate | None
    samples: int = 0


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
        if not all(0 <= number <= GREATEST for number in self._numbers()):
            raise BadResult(f"{file}: a number is below 0 or beyond measure, so this is not a result as talka wrote it")
        self.response = {key: self._decoded(key, step.histogram) for key, step in self.steps.items()}
        self.service = {key: self._decoded(key, step.service_histogram) for key, step in self.steps.items()}
        self.noise = statistics.noise_of(
            [
                TimeSlice(row.width_s, row.requests, row.failed, row.response_p50_ms, row.response_p99_ms)
                for row in document.timeline
                if row.width_s > NARROWEST_S
            ],
            merged(self.response.values()),
        )
        self._closed = {workflow.name for workflow in document.workflows if workflow.model == "closed"}

    def _numbers(self) -> Iterator[float]:
        """Every number that is reckoned with."""
        document = self.document
        yield from (document.duration_s, document.totals.rate_per_s)
        for step in self.steps.values():
            yield from (step.ok, step.failed, step.rate_per_s)
        for row in document.timeline:
            yield from (row.t_s, row.width_s, row.requests, row.failed)
            yield from (time for time in (row.response_p50_ms, row.response_p95_ms, row.response_p99_ms) if time)
        if document.generator.loop_lag_ms is not None:
            yield max(msgspec.structs.astuple(document.generator.loop_lag_ms))

    def _decoded(self, key: Key, text: str | None) -> Histogram:
        if text is None:
            raise BadResult(f"{self.file}: the step {'.'.join(key)} has no histogram, so it cannot be compared")
        try:
            return hdr.decode(text)
        except hdr.BrokenHistogram as error:
            raise BadResult(f"{self.file}: the step {'.'.join(key)}: {error}") from None

    def run(self) -> ComparedRun:
        document = self.document
        job = document.job
        return ComparedRun(self.file, job.id, job.name, document.status, document.started_at, document.duration_s)

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
                estimate = self._estimate(times, stat, rows)
                numbers[measure, stat] = Number(time_of(times, stat), estimate, times.count)
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


def compare_all(
    documents: Sequence[ResultDocument],
    rules: Sequence["CompareRule"] = (),
    *,
    files: Sequence[str],
    within: float = WITHIN,
) -> Comparisons:
    """Each but the first as seen from the first. Raises `NotComparable` without a common step, `BadRule` for a rule
    about what is not there."""
    if not 2 <= len(documents) <= MOST_RUNS:
        raise NotComparable(f"{len(documents)} runs cannot be compared: name 2 to {MOST_RUNS}, the base first.")
    for document, file in zip(documents[1:], files[1:], strict=True):
        check_measures(documents[0], document, (files[0], file))
    base, *others = (Side(document, file) for document, file in zip(documents, files, strict=True))
    common = [common_steps(base, other) for other in others]
    # How many there will be decides how wide each interval is.
    together = sum(count_rows(base, steps) for steps in common)
    found = [
        compare_sides(base, other, (LETTERS[0], letter), steps, together, rules, within)
        for other, steps, letter in zip(others, common, LETTERS[1:], strict=False)
    ]
    return Comparisons(base=base.run(), comparisons=found)


def check_measures(a: ResultDocument, b: ResultDocument, files: tuple[str, str]) -> None:
    """Numbers that mean different things are not put side by side."""
    if a.measures == b.measures:
        return
    older = files[0] if a.measures < b.measures else files[1]
    raise NotComparable(
        f"{files[0]} was measured by rules {a.measures} and {files[1]} by rules {b.measures}, so their numbers mean "
        "different things: by rules 2 a response time runs to the end of the step with all of its calls, and failed "
        f"counts steps as well as requests. Run what {older} is of again with this version, and compare with that."
    )


def common_steps(one: Side, other: Side) -> list[Key]:
    common = [key for key in one.steps if key in other.steps]
    if not common:
        raise NotComparable(
            "These results have no step in common, so there is nothing to compare: "
            f"{one.file} has {listed(one.steps)}; {other.file} has {listed(other.steps)}."
        )
    return common


def count_rows(side: Side, common: Sequence[Key]) -> int:
    return len(side.whole(common, 1)) + sum(len(side.of_step(key, 1)) for key in common)


def compare_sides(
    one: Side,
    other: Side,
    names: tuple[str, str],
    common: Sequence[Key],
    together: int,
    rules: Sequence["CompareRule"],
    within: float,
) -> Comparison:
    rows = rows_side_by_side(None, one, other, one.whole(common, together), other.whole(common, together), within)
    for key in common:
        ours, theirs = one.of_step(key, together), other.of_step(key, together)
        rows += rows_side_by_side(key, one, other, ours, theirs, within)
    rows.sort(key=order_of)
    return Comparison(
        a=one.run(),
        b=other.run(),
        headline=headline_of(rows, names[1], within),
        different=any(row.is_different for row in rows),
        rules=[judged(rule, rows, within) for rule in rules],
        warnings=warnings_of(one.document, other.document, names),
        rows=rows,
        only_in_a=[".".join(key) for key in one.steps if key not in other.steps],
        only_in_b=[".".join(key) for key in other.steps if key not in one.steps],
        within=within,
        names=names,
        together=together,
    )


def rows_side_by_side(
    key: Key | None, one: Side, other: Side, ours: Numbers, theirs: Numbers, within: float
) -> list[ComparisonRow]:
    workflow, step = key or (None, None)
    length_s = max(one.document.duration_s, other.document.duration_s)
    rows = []
    for (measure, stat), a in ours.items():
        b = theirs[measure, stat]
        row = ComparisonRow(
            workflow=workflow,
            step=step,
            measure=measure,
            stat=stat,
            a=a.value,
            b=b.value,
            verdict="cannot tell",
            answer="cannot tell",
        )
        if a.estimate is None or b.estimate is None:
            needed_s = least_length_s(one, other, a, b, stat)
            rows.append(msgspec.structs.replace(row, needs="length" if needed_s else "repeats", needs_s=needed_s))
            continue
        found = statistics.difference(a.estimate, b.estimate, UNITS[measure], within)
        needed_s = None if found.times_as_long is None else length_of(length_s * found.times_as_long)
        rows.append(
            msgspec.structs.replace(
                row,
                difference=found.absolute,
                relative=found.relative,
                low=found.low,
                high=found.high,
                verdict=found.verdict,
                answer=statistics.answer_of(found.verdict),
                beyond_noise=found.is_beyond_noise,
                at_least=found.at_least if found.is_beyond_noise else None,
                needs="repeats" if found.need == "length" and needed_s is None else found.need,
                needs_s=needed_s,
                a_low=a.estimate.low,
                a_high=a.estimate.high,
                b_low=b.estimate.low,
                b_high=b.estimate.high,
            )
        )
    return rows


def least_length_s(one: Side, other: Side, a: Number, b: Number, stat: str | None) -> float | None:
    """Of runs of which more than this would be known: with windows enough, and values above the percentile."""
    lengths: list[float] = []
    for side, number in ((one, a), (other, b)):
        if side.noise is None:
            # A result without windows stays one, however long it is.
            lengths.append(SHORTEST_RUN_S if side.document.timeline else math.inf)
        elif number.estimate is None:
            times = statistics.times_as_long_for(number.samples, PERCENTILES.get(stat or "", 50.0))
            lengths.append(math.inf if times is None else times * side.document.duration_s)
    return length_of(max(lengths))


def length_of(seconds: float) -> float | None:
    """Two digits are enough for what is foreseen; None: nobody would wait for it."""
    if not 0 < seconds <= LONGEST_RUN_S:
        return None
    return float(f"{seconds:.2g}")


def time_of(times: Histogram, stat: str) -> float | None:
    """Milliseconds."""
    if not times.count:
        return None
    return round(times.mean / 1000, 3) if stat == "mean" else times.percentile(PERCENTILES[stat]) / 1000


def listed(keys: Iterable[Key]) -> str:
    names = [".".join(key) for key in keys]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more if names else "none that ran"


def order_of(row: ComparisonRow) -> tuple[int, float]:
    """Worse rows first, then better ones, each by how much they surely differ; then what cannot be told, by how far
    apart it may be; then what is the same."""
    group = 0 if row.verdict in WORSE else 1 if row.is_different else 2 if row.answer == "cannot tell" else 3
    weight = SHARES_WEIGH if row.unit == "share" else 1 / row.a if row.a else math.inf
    size = abs(row.at_least or 0.0) if row.is_different else abs(row.difference or 0.0) if group == 2 else 0.0
    return group, -size * weight if size else 0.0


def warnings_of(a: ResultDocument, b: ResultDocument, names: tuple[str, str]) -> list[str]:
    first, second = names
    if (a.job.id, a.started_at) == (b.job.id, b.started_at):
        return [f"{first} and {second} are the same run, so nothing can differ."]
    apart = []
    theirs = {workflow.name: workflow for workflow in b.workflows}
    for ours in a.workflows:
        other = theirs.get(ours.name)
        if other is None:
            continue
        if (ours.load, ours.model) != (other.load, other.model):
            apart.append(f"{ours.name} had the load {ours.load} in {first} and {other.load} in {second}")
        if ours.cores != other.cores:
            cores = counted_text(ours.cores, "core")
            apart.append(f"{ours.name} ran on {cores} in {first} and {other.cores} in {second}")
    if abs(a.duration_s - b.duration_s) > LENGTHS_ALIKE * max(a.duration_s, b.duration_s):
        apart.append(f"{first} ran {seconds_text(a.duration_s)} and {second} {seconds_text(b.duration_s)}")
    for what, one, two in (
        ("engine", a.generator.engine_text, b.generator.engine_text),
        ("version", a.generator.version, b.generator.version),
    ):
        if one != two:
            apart.append(f"the {what} was {one or 'unknown'} in {first} and {two or 'unknown'} in {second}")
    found = [f"These runs were not made alike: {'; '.join(apart)}."] if apart else []
    for name, document in ((first, a), (second, b)):
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
WITHIN_TEXT: Final = re.compile(r"(?P<number>[0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
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


class CompareRule(msgspec.Struct, frozen=True):
    text: str
    place: str | None
    """A step, or Workflow.step; None: the whole job."""
    measure: Measure
    stat: str | None
    limit: float
    """With the sign of the difference that breaks the rule. Milliseconds, per second, or a share."""
    is_relative: bool
    """The limit is a share of A."""

    def is_broken_by(self, row: ComparisonRow) -> bool:
        if not row.beyond_noise or row.difference is None:
            return False
        # From nothing, every step up is more than any share.
        relative = math.copysign(math.inf, row.difference) if row.relative is None else row.relative
        found = relative if self.is_relative else row.difference
        return found * self.direction > 0 and abs(found) > abs(self.limit)

    def is_held_by(self, row: ComparisonRow, within: float) -> bool:
        """Whether the difference is surely not above the limit, give or take what is called the same."""
        if row.low is None or row.high is None or row.a is None:
            return False
        limit = abs(self.limit) * (row.a if self.is_relative else 1.0)
        farthest = row.high if self.direction > 0 else -row.low
        return farthest <= limit + statistics.tolerance_of(row.a, row.unit, within)

    @property
    def direction(self) -> float:
        return math.copysign(1.0, self.limit)


def parse_rule(text: str) -> CompareRule:
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
    return CompareRule(text, parts["place"], measure, stat, -limit if found["sign"] == "-" else limit, is_relative)


def parse_within(text: str) -> float:
    """What counts as the same, as people write it: "5%"."""
    found = WITHIN_TEXT.fullmatch(text.strip())
    share = float(found["number"]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise BadWithin(f'--within "{cut(cleaned(text), 40)}" is wrong: write a share above 0 % and up to 100 %, as 5%')
    return share


def judged(rule: CompareRule, rows: Sequence[ComparisonRow], within: float = WITHIN) -> RuleVerdict:
    """Broken when a difference is beyond noise and larger than the limit; held when it is known not to be."""
    found = meant_by(rule, rows)
    broken = [row for row in found if rule.is_broken_by(row)]
    unsure = [row for row in found if not rule.is_held_by(row, within)]
    row = (broken or unsure or found)[0]
    answer: RuleAnswer = "broken" if broken else "cannot tell" if unsure else "held"
    if row.difference is None:
        shown = "too few samples"
    else:
        shown = difference_text(row) + noise_text(row)
    if answer == "cannot tell":
        # Where chance alone does not explain it, the interval says nothing about what does.
        between = f", anything from {interval_text(row)}" if may_be_chance(row) else ""
        shown = f"{shown}{between}; {length_text(row)}"
    return RuleVerdict(rule.text, bool(broken), shown, answer)


def meant_by(rule: CompareRule, rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
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
