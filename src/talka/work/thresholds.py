"""Rules a job must hold, as users write them, and the verdict on what was measured.

    RULE   = [WHERE.]WHAT OPERATOR LIMIT [abort [after TIME]]    OPERATOR = < <= > >= == !=
    WHERE  = CLASS or [CLASS.]STEP or [CLASS.]STEP/CALL          a name with . / { } or " in it is quoted: "a ""b"" c.d"
    time   : response_time.STAT service_time.STAT                in us ms s m; STAT = min mean stdev max p99 p99.9
    share  : failed checks checks.NAME dropped                   in %
    rate   : rate metrics.NAME.rate                              in /s /m /h
    number : requests iterations metrics.NAME.STAT               bare; STAT = count total min max mean p99 p99.9

Of a step or a call there are times, `failed` and `rate`. For all steps with certain tags they are written with these:
`response_time{kind=page}.p99`, `failed{kind=page,area=shop}`. Of calls there are those in every step of the name.

`failed` alone, or of a class, is the worse of `steps.failed` and `requests.failed`, which can be named too. Without a
step, `rate` is that of requests; with one, that of its completed runs. For a metric, `count` is how many values were
recorded, `total` their sum and `rate` that sum per second. In front, `checks`, `metrics`, `steps.failed` and
`requests.failed` always have this meaning, even if a step is called so.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Final, Literal, TypeAlias, TypedDict, Unpack

import msgspec

from talka.errors import Invalid
from talka.stats.histogram import HIGHEST, Histogram, merged
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.work.durations import BARE, BadDuration, BadRate, parse_duration, parse_rate
from talka.work.failures import of_requests, of_steps, worse

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Measure = Literal[
    "response_time",
    "service_time",
    "failed",
    "steps.failed",
    "requests.failed",
    "checks",
    "dropped",
    "rate",
    "requests",
    "iterations",
    "metrics",
]
Unit = Literal["time", "share", "rate", "number"]
Workflows: TypeAlias = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Measured steps of each workflow, and their tags."""

HOLDS: Final[dict[Operator, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
MEASURES: Final[dict[Measure, tuple[Unit, str]]] = {
    "response_time": ("time", "response_time.p99 < 250ms"),
    "service_time": ("time", "service_time.max <= 1s"),
    "failed": ("share", "failed < 1%"),
    "steps.failed": ("share", "steps.failed < 1%"),
    "requests.failed": ("share", "requests.failed < 1%"),
    "checks": ("share", "checks > 99%"),
    "dropped": ("share", "dropped < 1%"),
    "rate": ("rate", "rate > 500/s"),
    "requests": ("number", "requests >= 10000"),
    "iterations": ("number", "iterations > 1000"),
    "metrics": ("number", "metrics.page_size.p95 < 20000"),  # a number, except their `rate`
}
UNITS: Final = {measure: unit for measure, (unit, _) in MEASURES.items()}
EXAMPLES: Final = {measure: example for measure, (_, example) in MEASURES.items()}
METRIC_HIGHEST: Final = HIGHEST // 1000
"""Percentiles of a metric end here: its histogram holds thousandths."""
DIGITS_SHOWN: Final[dict[Unit, int]] = {"time": 3, "share": 3, "rate": 4, "number": 4}
QUOTED_CHARACTERS: Final = 120
NAMES_LISTED: Final = 8

PERCENTILE: Final = r"p[0-9]{1,3}(?:[._][0-9]{1,6})?"
METRIC_STAT: Final = re.compile(rf"count|total|rate|min|max|mean|{PERCENTILE}")
TIME_STAT: Final = re.compile(rf"min|mean|stdev|max|{PERCENTILE}")
OF_STEPS: Final = frozenset[Measure]({"response_time", "service_time", "failed", "rate"})
"""What there is of a step, of a call and of steps with a tag."""
QUOTED: Final = r'"(?:[^"]|"")*"'
PIECE: Final = re.compile(rf'{QUOTED}|\{{(?:[^{{}}"]|{QUOTED})*\}}|[^<>=!"{{}}]+')
"""Of the left side of a rule: a name in quotes, tags, or anything else that is no comparison."""
COMPARISON: Final = re.compile(r"<=|>=|==|!=|<|>")
RIGHT_SIDE: Final = re.compile(r"[^<>=!]+")
WORD: Final = re.compile(rf"(?P<before>[./]?)(?P<name>{QUOTED}|[^\"./{{}}]+)")
TAGS: Final = re.compile(rf'\{{(?P<pairs>(?:[^{{}}"]|{QUOTED})*)\}}')
PAIR: Final = re.compile(rf' ?(?P<key>{QUOTED}|[^",={{}}]+)=(?P<value>{QUOTED}|[^",={{}}]+)')
# The digits are bounded: a longer number takes long to read, or becomes infinite.
NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
PERCENT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)%")
GAP_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[a-zµμ%/])")


class Names(TypedDict, total=False):
    """What rules may speak of. What is missing is not held against anything."""

    steps: Collection[str]
    checks: Collection[str]
    metrics: Collection[str]
    """May map them to their kinds."""
    workflows: Workflows
    methods: Collection[str]
    """Everything that may make calls. Names of calls are not known before they are made."""


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
    workflow: str | None = None
    """None: of every workflow the rule is for."""
    call: str | None = None
    """The name of calls in `step`."""
    tags: tuple[tuple[str, str], ...] = ()
    members: tuple[tuple[str, str], ...] = ()
    """(workflow, step) of all that have the tags."""

    @property
    def unit(self) -> Unit:
        return "rate" if self.stat == "rate" else UNITS[self.measure]

    def wrong(self, problem: str) -> BadThreshold:
        return BadThreshold(self.text, problem, EXAMPLES[self.measure])


class Verdict(msgspec.Struct, frozen=True):
    rule: str
    value: float | None
    """In the unit of the rule's limit; None without a sample."""
    passed: bool
    shown: str
    """The value for people."""


def parse_threshold(text: str, **names: Unpack[Names]) -> Threshold:
    """The rule, checked."""
    text = _tidied(text)
    subject, comparison, right = _sides(text)
    threshold = _placed(_with_subject(text, subject, comparison), names)
    _check_names(threshold, names)
    limit, abort, suffix = f" {right} ".partition(" abort ")
    return msgspec.structs.replace(
        threshold,
        limit=_limit(threshold, limit.strip()),
        abort=bool(abort),
        grace_ns=_grace_ns(threshold, suffix.strip()),
    )


def scoped(threshold: Threshold, tallies: Mapping[str, Tally], whole: Tally) -> Tally:
    """What the rule speaks of: by workflow what was counted is in `tallies`, and all together in `whole`."""
    if threshold.tags:
        tagged = Tally()
        for workflow, step in threshold.members:
            if workflow in tallies:
                counted = tallies[workflow]
                tagged.merge(
                    Tally(
                        steps={step: counted.steps[step]} if step in counted.steps else {},
                        calls={step: counted.calls[step]} if step in counted.calls else {},
                    )
                )
        return tagged
    return whole if threshold.workflow is None else tallies.get(threshold.workflow, Tally())


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


def meaning_of(threshold: Threshold) -> str:
    """What a rule looks at, in words."""
    match threshold.measure:
        case "response_time" | "service_time":
            text = f"{threshold.stat} of the {threshold.measure.replace('_', ' ')} of {_subject(threshold)}"
        case "failed" if threshold.step is None and not threshold.tags:
            text = "the worse of two shares: steps that failed, and requests that did"
        case "failed" | "steps.failed":
            text = f"share that failed of {_subject(threshold)}"
        case "requests.failed":
            text = "share of requests that failed"
        case "rate" if threshold.step is None and not threshold.tags:
            text = "requests a second"
        case "rate":
            text = f"a second of {_subject(threshold)}"
        case "checks":
            text = f"share that passed of {'check ' + threshold.name if threshold.name else 'all checks'}"
        case "dropped":
            text = "share of arrivals that could not start"
        case "requests" | "iterations":
            text = f"number of {threshold.measure}"
        case "metrics":  # pragma: no branch - the type checker sees that no measure is left
            text = f"{threshold.stat} of metric {threshold.name}"
    is_told = threshold.workflow is None or bool(threshold.tags) or threshold.step is not None
    return text if is_told else f"{text}, of {threshold.workflow}"


def _subject(threshold: Threshold) -> str:
    if threshold.tags:
        tags = ", ".join(f"{key}={value}" for key, value in threshold.tags)
        members = _listed([f"{workflow}.{step}" for workflow, step in threshold.members])
        return f"steps with {tags}" + (f": {members}" if members else "")
    if threshold.step is None:
        return "all steps"
    step = threshold.step if threshold.workflow is None else f"{threshold.workflow}.{threshold.step}"
    return f"step {step}" if threshold.call is None else f'calls "{threshold.call}" in {step}'


# Reading.


class Word(msgspec.Struct, frozen=True):
    """A name of the left side."""

    text: str
    is_quoted: bool = False
    is_call: bool = False
    """It comes after a slash."""


def _tidied(text: str) -> str:
    """With single spaces, but for those in quotes."""
    pieces = re.split(f"({QUOTED})", text)
    return "".join(piece if number % 2 else re.sub(r"\s+", " ", piece) for number, piece in enumerate(pieces)).strip()


def _sides(text: str) -> tuple[str, Operator, str]:
    at = 0
    while piece := PIECE.match(text, at):
        at = piece.end()
    comparison = COMPARISON.match(text, at)
    subject, right = text[:at].strip(), text[comparison.end() :].strip() if comparison else ""
    if not subject or comparison is None or (right and not RIGHT_SIDE.fullmatch(right)):
        problem = "it needs one comparison by <, <=, >, >=, == or !="
        if text[at : at + 1] in ('"', "{", "}"):
            problem = f"the {text[at]} is never closed or never opened"
        raise BadThreshold(text, problem, EXAMPLES["response_time"])
    return subject, msgspec.convert(comparison[0], Operator), right


def _with_subject(text: str, subject: str, comparison: Operator) -> Threshold:
    """The rule as far as its left side tells; the limit is 0 as yet. A single name in front may still be a class."""
    words, tags, tags_after = _words(text, subject)
    place = _place_of_measure(words)
    if place is None:
        close = [found for word in words for found in get_close_matches(word.text, UNITS, n=1)]
        hint = f'perhaps you mean "{close[0]}"' if close else f"there are {', '.join(UNITS)}"
        raise BadThreshold(text, f'"{subject}" is not among what is measured; {hint}', EXAMPLES["response_time"])
    first, last = place
    measure = msgspec.convert(".".join(word.text for word in words[first : last + 1]), Measure)
    example = EXAMPLES[measure]
    if tags and (measure not in OF_STEPS or tags_after != last):
        problem = "tags follow response_time, service_time, failed or rate, without a space"
        raise BadThreshold(text, problem, "response_time{kind=page}.p99 < 1s")
    rest = words[last + 1 :]
    if any(word.is_call for word in words[first:]):
        raise BadThreshold(text, "a slash stands only between a step and the name of its calls", example)
    step, call, workflow = _where(text, words[:first], measure)
    if tags and step is not None and call is not None:
        raise BadThreshold(text, "tags choose steps, and calls are not among them", "failed{kind=page} < 1%")
    stat, name = _what(text, measure, rest)
    return Threshold(
        text, step, measure, stat, comparison, 0.0, name=name, workflow=workflow, call=call, tags=tuple(sorted(tags))
    )


def _words(text: str, subject: str) -> tuple[list[Word], list[tuple[str, str]], int]:
    """Names, and tags with the number of the name they follow."""
    words: list[Word] = []
    tags: list[tuple[str, str]] = []
    tags_after, at = -1, 0
    while at < len(subject):
        if found := TAGS.match(subject, at):
            tags, tags_after = _tags(text, found["pairs"]), len(words) - 1
        elif (found := WORD.match(subject, at)) and bool(found["before"]) == bool(words):
            words.append(Word(_unquoted(found["name"]), found["name"][0] == '"', found["before"] == "/"))
        else:
            problem = f'"{subject[at:]}" cannot be read: names are parted by a dot, a call from its step by a slash'
            raise BadThreshold(text, problem, 'login/"page 1".response_time.p99 < 250ms')
        at = found.end()
    return words, tags, tags_after


def _tags(text: str, written: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    at = 0
    while found := PAIR.match(written, at):
        pairs.append((_unquoted(found["key"]), _unquoted(found["value"])))
        at = found.end()
        if written[at : at + 1] != ",":
            break
        at += 1
    if not pairs or at < len(written) or written.endswith(","):
        problem = f'"{{{written}}}" are no tags; they are written {{name=value}}, several with commas between'
        raise BadThreshold(text, problem, "response_time{kind=page}.p99 < 1s")
    return pairs


def _unquoted(written: str) -> str:
    written = written.strip()
    return written[1:-1].replace('""', '"') if written[:1] == '"' else written


def _place_of_measure(words: Sequence[Word]) -> tuple[int, int] | None:
    """Which of the words say what is measured, the first and the last of them."""
    plain = [None if word.is_quoted or word.is_call else word.text for word in words]
    for at in (0, 1):
        if plain[at : at + 1] in (["checks"], ["metrics"]):
            return at, at
        if plain[at : at + 2] in (["steps", "failed"], ["requests", "failed"]):
            return at, at + 1
    found = [at for at, word in enumerate(plain) if word in UNITS]
    return (found[-1], found[-1]) if found else None


def _where(text: str, words: Sequence[Word], measure: Measure) -> tuple[str | None, str | None, str | None]:
    """Step, call and workflow."""
    names = [word.text for word in words if not word.is_call]
    calls = [word.text for word in words if word.is_call]
    if len(names) > 2 or len(calls) > 1 or (calls and not words[-1].is_call):
        problem = "in front stands CLASS, STEP, CLASS.STEP or one of the latter and /CALL; quote names with dots"
        raise BadThreshold(text, problem, 'login/"page 1".response_time.p99 < 250ms')
    if measure not in OF_STEPS:
        if calls or len(names) == 2:
            problem = f"{measure} is counted for a class or the whole job, not for a step"
            raise BadThreshold(text, problem, EXAMPLES[measure])
        return None, None, names[0] if names else None
    call = calls[0] if calls else None
    if len(names) == 2:
        return names[1], call, names[0]
    return (names[0] if names else None), call, None


def _what(text: str, measure: Measure, rest: Sequence[Word]) -> tuple[str | None, str | None]:
    """The statistic, and the name of the check or metric."""
    written = ".".join(word.text for word in rest)
    match measure:
        case "checks":
            return None, written or None
        case "metrics":
            # A percentile may have a dot of its own.
            for size in (2, 1):
                stat = ".".join(word.text for word in rest[len(rest) - size :])
                if len(rest) > size and METRIC_STAT.fullmatch(stat):
                    name = ".".join(word.text for word in rest[: len(rest) - size])
                    return _stat(text, stat, EXAMPLES["metrics"]), name
            problem = "a metric needs a name and one of count, total, rate, min, max, mean or a percentile such as p95"
            raise BadThreshold(text, problem, EXAMPLES["metrics"])
        case "response_time" | "service_time":
            if not TIME_STAT.fullmatch(written):
                problem = f"{measure} needs one of min, mean, stdev, max or a percentile such as p99 or p99.9"
                raise BadThreshold(text, problem, EXAMPLES[measure])
            return _stat(text, written, EXAMPLES[measure]), None
        case _ if rest:
            problem = f'"{written}" cannot follow {measure}'
            raise BadThreshold(text, problem, EXAMPLES[measure])
        case _:
            return None, None


def _stat(text: str, stat: str, example: str) -> str:
    stat = stat.replace("_", ".")
    if _is_percentile(stat) and Fraction(stat[1:]) > 100:
        raise BadThreshold(text, f"percentiles end at p100, so there is no {stat}", example)
    return stat


def _is_percentile(stat: str | None) -> bool:
    return stat is not None and stat[0] == "p"


def _placed(threshold: Threshold, names: Names) -> Threshold:
    """With a class where a single name in front is one, and with the steps that have the tags."""
    workflows = names.get("workflows")
    if workflows is None:
        return threshold
    if threshold.workflow is None and threshold.call is None and threshold.step is not None:
        is_step = threshold.step in names.get("steps", ()) and not threshold.tags
        if threshold.step in workflows and not is_step:
            threshold = msgspec.structs.replace(threshold, workflow=threshold.step, step=None)
    if not threshold.tags:
        return threshold
    members = [
        (workflow, step)
        for workflow, tagged in workflows.items()
        for step, tags in tagged.items()
        if threshold.workflow in (None, workflow) and all(tags.get(key) == value for key, value in threshold.tags)
    ]
    return msgspec.structs.replace(threshold, members=tuple(members))


def _check_names(threshold: Threshold, names: Names) -> None:
    steps, workflows = names.get("steps"), names.get("workflows")
    if threshold.workflow is not None:
        if workflows is not None and threshold.workflow in (steps or ()) and threshold.measure not in OF_STEPS:
            raise threshold.wrong(f"{threshold.measure} is counted for a class or the whole job, not for a step")
        _check_name(threshold, "class", threshold.workflow, workflows)
    if threshold.tags:
        _check_tags(threshold, workflows)
    elif threshold.step is not None:
        if threshold.call is not None:
            _check_name(threshold, "step", threshold.step, names.get("methods"))
        elif threshold.workflow is not None and workflows is not None:
            _check_name(threshold, "step", threshold.step, workflows[threshold.workflow])
        elif workflows is not None and steps is not None:
            _check_name(threshold, "step or class", threshold.step, [*steps, *workflows])
        else:
            _check_name(threshold, "step", threshold.step, steps)
    elif threshold.name is not None and threshold.measure == "checks":
        _check_name(threshold, "check", threshold.name, names.get("checks"))
    elif threshold.name is not None:
        metrics = names.get("metrics")
        _check_name(threshold, "metric", threshold.name, metrics)
        if isinstance(metrics, Mapping) and _is_percentile(threshold.stat):
            kind = metrics[threshold.name]
            if kind != "distribution":
                problem = f'"{threshold.name}" is a {kind} and has no percentiles; only a distribution has'
                raise BadThreshold(threshold.text, problem, f"metrics.{threshold.name}.total > 10")


def _check_tags(threshold: Threshold, workflows: Workflows | None) -> None:
    if threshold.step is not None and (workflows is not None or threshold.workflow is not None):
        problem = "tags choose the steps: name a class in front of them, or nothing"
        raise BadThreshold(threshold.text, problem, "response_time{kind=page}.p99 < 1s")
    if workflows is None or threshold.members:
        return
    known = sorted(
        {f"{key}={value}" for tagged in workflows.values() for tags in tagged.values() for key, value in tags.items()}
    )
    wanted = ",".join(f"{key}={value}" for key, value in threshold.tags)
    if not known:
        hint = "the test has no tags at all"
    elif close := get_close_matches(wanted, known, n=1):
        hint = f'perhaps you mean "{close[0]}"'
    else:
        hint = f"there are {_listed(known)}"
    problem = f"no step has the tags {{{wanted}}}; {hint}"
    raise BadThreshold(threshold.text, problem, "response_time{kind=page}.p99 < 1s")


def _check_name(threshold: Threshold, what: str, name: str, known: Collection[str] | None) -> None:
    if known is None or name in known:
        return
    example = EXAMPLES[threshold.measure]
    if close := get_close_matches(name, known, n=1):
        hint = f'perhaps you mean "{close[0]}"'
        example = threshold.text.replace(name, close[0], 1)
    elif known:
        hint = f"there are {_listed(known)}"
    else:
        hint = f"the test has no {what} at all"
    raise BadThreshold(threshold.text, f'there is no {what} "{name}"; {hint}', example)


def _listed(names: Collection[str]) -> str:
    return f"{', '.join(sorted(names)[:NAMES_LISTED])}{', …' if len(names) > NAMES_LISTED else ''}"


def _limit(threshold: Threshold, written: str) -> float:
    readers: dict[Unit, Callable[[Threshold, str], float]] = {
        "time": _time_ms,
        "share": _share,
        "rate": _rate,
        "number": _number,
    }
    return readers[threshold.unit](threshold, GAP_BEFORE_UNIT.sub("", written))


def _time_ms(threshold: Threshold, written: str) -> float:
    limit_ns = _time_ns(threshold.text, written, EXAMPLES[threshold.measure])
    # Longer times are recorded as one hour, so the rule would hold or fail regardless.
    if limit_ns >= HIGHEST * 1000:
        raise threshold.wrong("times are told apart only below one hour")
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
    if not NUMBER.fullmatch(written):
        raise threshold.wrong(f'"{written}" is not a plain number')
    number = float(written)
    # Values beyond are recorded as the nearest end, so the rule would hold or fail regardless.
    if _is_percentile(threshold.stat) and not 0 <= number < METRIC_HIGHEST:
        raise threshold.wrong(f"percentiles of a metric lie between 0 and {METRIC_HIGHEST}; record it in a larger unit")
    return number


def _share(threshold: Threshold, written: str) -> float:
    if NUMBER.fullmatch(written):
        # 0.01 may mean 1 % or 0.01 %.
        raise threshold.wrong(f"{written} has no unit, add %")
    found = PERCENT.fullmatch(written)
    if found is None:
        raise threshold.wrong(f'"{written}" is not a share in %')
    # By way of a fraction: 99.9 / 100 in floats is not the 999 / 1000 that is measured.
    share = float(Fraction(found[1]) / 100)
    if share > 1:
        raise threshold.wrong("a share is at most 100%")
    if (threshold.operator, share) in ((">", 1.0), ("<", 0.0)):
        raise threshold.wrong(f"no share is {threshold.operator} {written}, so it can never hold")
    return share


def _grace_ns(threshold: Threshold, suffix: str) -> int:
    if not suffix:
        return 0
    example = f"{EXAMPLES[threshold.measure]} abort after 10s"
    after, _, written = suffix.partition(" ")
    if after != "after":
        raise BadThreshold(threshold.text, f'"{suffix}" cannot follow "abort", only "after" and a time can', example)
    return _time_ns(threshold.text, GAP_BEFORE_UNIT.sub("", written), example)


# Judging.


def _measured(threshold: Threshold, tally: Tally, elapsed_s: float) -> float | None:
    """The value in the unit of the limit; None without a sample."""
    if threshold.call is not None:
        steps = calls = [tally.calls.get(str(threshold.step), {}).get(threshold.call, StepTally())]
    else:
        names = [name for name in tally.steps if threshold.step in (None, name)]
        steps = [tally.steps[name] for name in names]
        # What was counted before calls had names is all in the step itself.
        calls = [call for name in names for call in (tally.calls.get(name) or {"": tally.steps[name]}).values()]
    match threshold.measure:
        case "response_time":
            return _thousandth_of([step.response_time for step in steps], threshold.stat)
        case "service_time":
            return _thousandth_of([call.service_time for call in calls], threshold.stat)
        case "failed":
            if threshold.step is not None:
                return of_steps(steps).share
            return worse(of_steps(calls) if threshold.tags else of_requests(tally.exchanges), of_steps(steps)).share
        case "steps.failed":
            return of_steps(steps).share
        case "requests.failed":
            return of_requests(tally.exchanges).share
        case "checks":
            checks = [check for name, check in tally.checks.items() if threshold.name in (None, name)]
            passed = sum(check.passed for check in checks)
            return _ratio(passed, passed + sum(check.failed for check in checks))
        case "dropped":
            return _ratio(tally.dropped, tally.started + tally.dropped)
        case "rate":
            completed = sum(step.ok + step.failed for step in steps)
            is_of_all = threshold.step is None and not threshold.tags
            done = tally.exchanges.requests if is_of_all else completed
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
    whole = merged(parts)
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
