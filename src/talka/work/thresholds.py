"""Rules a job must hold, as users write them, and the verdict on what was measured.

    RULE   = SUBJECT OPERATOR LIMIT [abort [after TIME]]         OPERATOR = < <= > >= == !=
    time   : [STEP.]response_time.STAT [STEP.]service_time.STAT  in us ms s m; STAT = min mean stdev max p99 p99.9
    share  : [STEP.]failed checks checks.NAME dropped            in %
    rate   : [STEP.]rate metrics.NAME.rate                       in /s /m /h
    number : requests iterations metrics.NAME.STAT               bare; STAT = count total min max mean p99 p99.9

Without a step, `rate` is that of requests; with one, that of its completed runs. For a metric, `count` is how many
values were recorded, `total` their sum and `rate` that sum per second. In front, `checks` and `metrics` always have
this meaning, even if a step is called so.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Final, Literal

import msgspec

from talka.errors import Invalid
from talka.stats.histogram import HIGHEST, Histogram
from talka.stats.tally import MetricTally, Tally
from talka.work.durations import BARE, BadDuration, BadRate, parse_duration, parse_rate

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Measure = Literal[
    "response_time", "service_time", "failed", "checks", "dropped", "rate", "requests", "iterations", "metrics"
]
Unit = Literal["time", "share", "rate", "number"]

HOLDS: Final[dict[Operator, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
UNITS: Final[dict[Measure, Unit]] = {
    "response_time": "time",
    "service_time": "time",
    "failed": "share",
    "checks": "share",
    "dropped": "share",
    "rate": "rate",
    "requests": "number",
    "iterations": "number",
    "metrics": "number",  # except their `rate`
}
EXAMPLES: Final[dict[Measure, str]] = {
    "response_time": "response_time.p99 < 250ms",
    "service_time": "service_time.max <= 1s",
    "failed": "failed < 1%",
    "checks": "checks > 99%",
    "dropped": "dropped < 1%",
    "rate": "rate > 500/s",
    "requests": "requests >= 10000",
    "iterations": "iterations > 1000",
    "metrics": "metrics.page_size.p95 < 20000",
}
METRIC_HIGHEST: Final = HIGHEST // 1000
"""Percentiles of a metric end here: its histogram holds thousandths."""
DIGITS_SHOWN: Final[dict[Unit, int]] = {"time": 3, "share": 3, "rate": 4, "number": 4}
QUOTED_CHARACTERS: Final = 120
NAMES_LISTED: Final = 8

PERCENTILE: Final = r"p[0-9]{1,3}(?:[._][0-9]{1,6})?"
RULE: Final = re.compile(r"(?P<subject>[^<>=!]+)(?P<operator><=|>=|==|!=|<|>)(?P<rest>[^<>=!]+)")
CHECKS: Final = re.compile(r"checks(?:\.(?P<name>.+))?")
METRIC: Final = re.compile(rf"metrics\.(?P<name>.+)\.(?P<stat>count|total|rate|min|max|mean|{PERCENTILE})")
TIMES: Final = re.compile(r"(?:(?P<step>.+)\.)?(?P<measure>response_time|service_time)(?:\.(?P<stat>.+))?")
TIME_STAT: Final = re.compile(rf"min|mean|stdev|max|{PERCENTILE}")
OTHERS: Final = re.compile(r"(?:(?P<step>.+)\.)?(?P<measure>failed|rate|checks|dropped|requests|iterations)")
# The digits are bounded: a longer number takes long to read, or becomes infinite.
NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
PERCENT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)%")
GAP_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[a-zµμ%/])")


class BadThreshold(Invalid):
    """A rule that cannot be read, cannot hold, or names what the test does not have."""

    def __init__(self, rule: str, problem: str, example: str) -> None:
        quoted = rule if len(rule) <= QUOTED_CHARACTERS else rule[: QUOTED_CHARACTERS - 1] + "…"
        super().__init__(f'The threshold "{quoted}" is wrong: {problem}. Write it like "{example}".')
        self.rule, self.problem, self.example = rule, problem, example


class Threshold(msgspec.Struct, frozen=True):
    text: str
    step: str | None
    """None: over all steps."""
    measure: Measure
    stat: str | None
    operator: Operator
    limit: float
    """Times in milliseconds, shares from 0 to 1, rates per second."""
    abort: bool = False
    grace_ns: int = 0
    """Since the start of the job; a rule that fails earlier does not abort it."""
    name: str | None = None
    """Of the check or metric."""

    @property
    def unit(self) -> Unit:
        return "rate" if self.stat == "rate" else UNITS[self.measure]


class Verdict(msgspec.Struct, frozen=True):
    rule: str
    value: float | None
    """In the unit of the rule's limit; None without a sample."""
    passed: bool
    shown: str
    """The value for people."""


def parse_threshold(
    text: str,
    *,
    steps: Collection[str] | None = None,
    checks: Collection[str] | None = None,
    metrics: Collection[str] | None = None,
) -> Threshold:
    """The rule, checked. Names are held against the collections given; `metrics` may map them to their kinds."""
    text = " ".join(text.split())
    rule = RULE.fullmatch(text)
    if rule is None:
        raise BadThreshold(text, "it needs one comparison by <, <=, >, >=, == or !=", EXAMPLES["response_time"])
    threshold = _with_subject(text, rule["subject"].strip(), msgspec.convert(rule["operator"], Operator))
    _check_names(threshold, steps, checks, metrics)
    limit, abort, suffix = f" {rule['rest'].strip()} ".partition(" abort ")
    return msgspec.structs.replace(
        threshold,
        limit=_limit(threshold, limit.strip()),
        abort=bool(abort),
        grace_ns=_grace_ns(threshold, suffix.strip()),
    )


def judge(threshold: Threshold, tally: Tally, elapsed_s: float) -> Verdict:
    """Whether the rule holds so far. Without a sample it does not."""
    value = _measured(threshold, tally, elapsed_s)
    # A metric may have been fed infinity or not-a-number: nothing to compare, and nothing that JSON can carry.
    if value is None or not math.isfinite(value):
        return Verdict(threshold.text, None, False, "no sample")
    passed = HOLDS[threshold.operator](value, threshold.limit)
    return Verdict(threshold.text, value, passed, _shown(threshold, value, passed))


def should_abort(threshold: Threshold, verdict: Verdict, elapsed_ns: int) -> bool:
    has_failed = verdict.value is not None and not verdict.passed
    return threshold.abort and has_failed and elapsed_ns >= threshold.grace_ns


def _with_subject(text: str, subject: str, comparison: Operator) -> Threshold:
    """The rule as far as its left side tells; the limit is 0 as yet."""
    if found := CHECKS.fullmatch(subject):
        return Threshold(text, None, "checks", None, comparison, 0.0, name=found["name"])
    if found := METRIC.fullmatch(subject):
        stat = _stat(text, found["stat"], EXAMPLES["metrics"])
        return Threshold(text, None, "metrics", stat, comparison, 0.0, name=found["name"])
    if subject.partition(".")[0] == "metrics":
        problem = "a metric needs a name and one of count, total, rate, min, max, mean or a percentile such as p95"
        raise BadThreshold(text, problem, EXAMPLES["metrics"])
    if found := TIMES.fullmatch(subject):
        measure: Measure = msgspec.convert(found["measure"], Measure)
        if not TIME_STAT.fullmatch(found["stat"] or ""):
            problem = f"{measure} needs one of min, mean, stdev, max or a percentile such as p99 or p99.9"
            raise BadThreshold(text, problem, EXAMPLES[measure])
        return Threshold(text, found["step"], measure, _stat(text, found["stat"], EXAMPLES[measure]), comparison, 0.0)
    if found := OTHERS.fullmatch(subject):
        measure = msgspec.convert(found["measure"], Measure)
        if found["step"] is not None and measure not in ("failed", "rate"):
            raise BadThreshold(text, f"{measure} is counted for the whole job, not for a step", EXAMPLES[measure])
        return Threshold(text, found["step"], measure, None, comparison, 0.0)
    close = [word for part in subject.split(".") for word in get_close_matches(part, UNITS, n=1)]
    hint = f'perhaps you mean "{close[0]}"' if close else f"there are {', '.join(UNITS)}"
    raise BadThreshold(text, f'"{subject}" is not among what is measured; {hint}', EXAMPLES["response_time"])


def _stat(text: str, stat: str, example: str) -> str:
    stat = stat.replace("_", ".")
    if _is_percentile(stat) and Fraction(stat[1:]) > 100:
        raise BadThreshold(text, f"percentiles end at p100, so there is no {stat}", example)
    return stat


def _is_percentile(stat: str | None) -> bool:
    return stat is not None and stat[0] == "p"


def _check_names(
    threshold: Threshold,
    steps: Collection[str] | None,
    checks: Collection[str] | None,
    metrics: Collection[str] | None,
) -> None:
    if threshold.step is not None:
        _check_name(threshold, "step", threshold.step, steps)
    elif threshold.name is not None and threshold.measure == "checks":
        _check_name(threshold, "check", threshold.name, checks)
    elif threshold.name is not None:
        _check_name(threshold, "metric", threshold.name, metrics)
        if isinstance(metrics, Mapping) and _is_percentile(threshold.stat):
            kind = metrics[threshold.name]
            if kind != "distribution":
                problem = f'"{threshold.name}" is a {kind} and has no percentiles; only a distribution has'
                raise BadThreshold(threshold.text, problem, f"metrics.{threshold.name}.total > 10")


def _check_name(threshold: Threshold, what: str, name: str, known: Collection[str] | None) -> None:
    if known is None or name in known:
        return
    example = EXAMPLES[threshold.measure]
    if close := get_close_matches(name, known, n=1):
        hint = f'perhaps you mean "{close[0]}"'
        example = threshold.text.replace(name, close[0], 1)
    elif known:
        hint = f"there are {', '.join(sorted(known)[:NAMES_LISTED])}{', …' if len(known) > NAMES_LISTED else ''}"
    else:
        hint = f"the test has no {what} at all"
    raise BadThreshold(threshold.text, f'there is no {what} "{name}"; {hint}', example)


def _limit(threshold: Threshold, written: str) -> float:
    readers: dict[Unit, Callable[[Threshold, str], float]] = {
        "time": _time_ms,
        "share": _share,
        "rate": _rate,
        "number": _number,
    }
    return readers[threshold.unit](threshold, GAP_BEFORE_UNIT.sub("", written))


def _time_ms(threshold: Threshold, written: str) -> float:
    example = EXAMPLES[threshold.measure]
    limit_ns = _time_ns(threshold.text, written, example)
    # Longer times are recorded as one hour, so the rule would hold or fail regardless.
    if limit_ns >= HIGHEST * 1000:
        raise BadThreshold(threshold.text, "times are told apart only below one hour", example)
    return limit_ns / 1e6


def _time_ns(text: str, written: str, example: str) -> int:
    # Elsewhere a bare number means seconds; limits are mostly milliseconds, and a guess would be a trap.
    if BARE.fullmatch(written):
        raise BadThreshold(text, f"{written} has no unit, add ms or s", example)
    try:
        return parse_duration(written, what="time")
    except BadDuration as error:
        raise BadThreshold(text, str(error), example) from error


def _rate(threshold: Threshold, written: str) -> float:
    text, example = threshold.text, "metrics.orders.rate > 10/s" if threshold.name else EXAMPLES["rate"]
    if BARE.fullmatch(written):
        raise BadThreshold(text, f"{written} has no unit, add /s", example)
    try:
        return float(parse_rate(written, what="rate"))
    except BadRate as error:
        raise BadThreshold(text, str(error), example) from error


def _number(threshold: Threshold, written: str) -> float:
    text, example = threshold.text, EXAMPLES[threshold.measure]
    if not NUMBER.fullmatch(written):
        raise BadThreshold(text, f'"{written}" is not a plain number', example)
    number = float(written)
    # Values beyond are recorded as the nearest end, so the rule would hold or fail regardless.
    if _is_percentile(threshold.stat) and not 0 <= number < METRIC_HIGHEST:
        problem = f"percentiles of a metric lie between 0 and {METRIC_HIGHEST}; record it in a larger unit"
        raise BadThreshold(text, problem, example)
    return number


def _share(threshold: Threshold, written: str) -> float:
    text, example = threshold.text, EXAMPLES[threshold.measure]
    if NUMBER.fullmatch(written):
        # 0.01 may mean 1 % or 0.01 %.
        raise BadThreshold(text, f"{written} has no unit, add %", example)
    found = PERCENT.fullmatch(written)
    if found is None:
        raise BadThreshold(text, f'"{written}" is not a share in %', example)
    # By way of a fraction: 99.9 / 100 in floats is not the 999 / 1000 that is measured.
    share = float(Fraction(found[1]) / 100)
    if share > 1:
        raise BadThreshold(text, "a share is at most 100%", example)
    if (threshold.operator, share) in ((">", 1.0), ("<", 0.0)):
        raise BadThreshold(text, f"no share is {threshold.operator} {written}, so it can never hold", example)
    return share


def _grace_ns(threshold: Threshold, suffix: str) -> int:
    if not suffix:
        return 0
    example = f"{EXAMPLES[threshold.measure]} abort after 10s"
    after, _, written = suffix.partition(" ")
    if after != "after":
        raise BadThreshold(threshold.text, f'"{suffix}" cannot follow "abort", only "after" and a time can', example)
    return _time_ns(threshold.text, GAP_BEFORE_UNIT.sub("", written), example)


def _measured(threshold: Threshold, tally: Tally, elapsed_s: float) -> float | None:
    """The value in the unit of the limit; None without a sample."""
    steps = [step for name, step in tally.steps.items() if threshold.step in (None, name)]
    match threshold.measure:
        case "response_time":
            return _thousandth_of([step.response_time for step in steps], threshold.stat)
        case "service_time":
            return _thousandth_of([step.service_time for step in steps], threshold.stat)
        case "failed":
            failed = sum(step.failed for step in steps)
            return _ratio(failed, failed + sum(step.ok for step in steps))
        case "checks":
            checks = [check for name, check in tally.checks.items() if threshold.name in (None, name)]
            passed = sum(check.passed for check in checks)
            return _ratio(passed, passed + sum(check.failed for check in checks))
        case "dropped":
            return _ratio(tally.dropped, tally.started + tally.dropped)
        case "rate":
            completed = sum(step.ok + step.failed for step in steps)
            done = tally.exchanges.requests if threshold.step is None else completed
            return _ratio(done, elapsed_s) if done else None
        case "requests":
            return float(tally.exchanges.requests) if tally.started else None
        case "iterations":
            return float(tally.iterations) if tally.started else None
        case "metrics":  # pragma: no branch - the type checker sees that no measure is left
            return _of_metric(threshold, tally, elapsed_s)


def _of_metric(threshold: Threshold, tally: Tally, elapsed_s: float) -> float | None:
    metric = tally.metrics.get(str(threshold.name)) or MetricTally("count")
    # A counter of mishaps is never touched in a good run: the sum of nothing is 0 as soon as anything has run.
    has_run = metric.values > 0 or tally.started > 0
    match threshold.stat:
        case "count":
            return float(metric.values) if has_run else None
        case "total":
            return metric.total if has_run else None
        case "rate":
            return _ratio(metric.total, elapsed_s) if has_run else None
        case "min":
            return metric.min
        case "max":
            return metric.max
        case "mean":
            return _ratio(metric.total, metric.values)
        case percentile:
            return _thousandth_of([metric.thousandths], percentile)


def _thousandth_of(parts: list[Histogram], stat: str | None) -> float | None:
    """The statistic over all parts in a unit a thousand times larger: microseconds in, milliseconds out."""
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    if not whole.count:
        return None
    match stat:
        case "min" | "mean" | "stdev" | "max":
            return float(getattr(whole, stat)) / 1000
        case percentile:
            return whole.percentile(float(str(percentile)[1:])) / 1000


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _shown(threshold: Threshold, value: float, passed: bool) -> str:
    """Rounded, but never to the other side of the limit: "250 ms" beside a failed "<= 250ms" would look like a bug."""
    unit = threshold.unit
    power, suffix = {"time": (0, " ms"), "share": (2, " %"), "rate": (0, "/s"), "number": (0, "")}[unit]
    if unit == "time" and value >= 1000:
        power, suffix = -3, " s"
    exact = Decimal(repr(value)).scaleb(power)
    digits = DIGITS_SHOWN[unit]
    while True:
        text = f"{exact:.{max(0, digits - 1 - exact.adjusted())}f}"
        rounded = float(Decimal(text).scaleb(-power))
        # Nor to a whole from less: "100 %" of checks says that none failed.
        is_fair = unit != "share" or (rounded == 1) == (value == 1)
        if is_fair and HOLDS[threshold.operator](rounded, threshold.limit) == passed:
            return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix
        digits += 1
