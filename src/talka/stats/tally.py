"""What a shard has counted so far: cumulative, mergeable, encodable.

A tally only grows. Merging is associative and commutative, so the order in which shards report does not matter, and
the latest tally of a shard replaces its earlier ones.
"""

from bisect import insort
from typing import Final, Literal

import msgspec

from talka.errors import sendable
from talka.stats.histogram import Histogram, add_counts
from talka.stats.machine import Machine

ERROR_KINDS: Final = ("refused", "dns", "tls", "reset", "timeout", "protocol", "status", "check", "exception")
MetricKind = Literal["count", "rate", "sample", "distribution"]

SAMPLES_KEPT: Final = 5
"""First error samples kept for each step and kind."""
OUTCOMES_KEPT: Final = 64
"""Labels of answers in one row. A server that invents some must not fill memory: further ones are counted under
`OTHER_OUTCOMES`."""
OTHER_OUTCOMES: Final = "other"
LABEL_CHARACTERS_LIMIT: Final = 64
CALL_NAMES_KEPT: Final = 200
"""Names of calls in one workflow. A name made of an id would otherwise be a row for every id."""
OTHER_CALLS: Final = "(other)"
"""The name under which calls beyond those names are counted."""


class Exchanges(msgspec.Struct):
    """Requests and what became of them, every one: also redirect hops and further calls inside a step."""

    ok: int = 0
    failed: int = 0
    interrupted: int = 0
    not_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    reconnects: int = 0

    @property
    def requests(self) -> int:
        """Every exchange put on the wire."""
        return self.ok + self.failed + self.interrupted

    def merge(self, other: "Exchanges") -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Sample(msgspec.Struct, frozen=True, order=True):
    """One failure as it was seen, kept because it was among the first of its kind."""

    at_ns: int
    """Since the start of the job."""
    kind: str
    text: str
    status: int = 0


class StepTally(msgspec.Struct):
    """Runs of one step, or calls of one name in it.

    Of a step: `response_time` runs from its intended start to its end; `service_time` and `outcomes` are those of its
    calls, and empty here. Of a call: from the instant its user wanted it.
    """

    ok: int = 0
    failed: int = 0
    interrupted: int = 0
    response_time: Histogram = msgspec.field(default_factory=Histogram)
    service_time: Histogram = msgspec.field(default_factory=Histogram)
    outcomes: dict[str, int] = {}
    """Answers by label: see `work.responses.Response.label`."""
    errors: dict[str, int] = {}
    samples: list[Sample] = []
    skipped: int = 0
    """Runs that did nothing, on purpose or because what they wait for gave nothing. They are in no other count."""
    status_codes: dict[int, int] = {}
    """`statuses`, where people are shown a tally. Earlier versions counted here and had no outcomes."""

    def __post_init__(self) -> None:
        if self.status_codes and not self.outcomes:
            self.outcomes = {str(code) if code else OTHER_OUTCOMES: count for code, count in self.status_codes.items()}

    @property
    def count(self) -> int:
        return self.ok + self.failed + self.interrupted

    @property
    def seen(self) -> int:
        """Grows with everything that is counted here."""
        return self.count + self.skipped

    def fail(self, sample: Sample) -> None:
        self.failed += 1
        seen = self.errors.get(sample.kind, 0)
        self.errors[sample.kind] = seen + 1
        if seen < SAMPLES_KEPT:
            insort(self.samples, sample)

    def saw(self, label: str, times: int = 1) -> None:
        """Answers of one label; those without any are in no outcome."""
        outcomes = self.outcomes
        if label not in outcomes:
            label = sendable(label, LABEL_CHARACTERS_LIMIT)
            if label not in outcomes and len(outcomes) >= OUTCOMES_KEPT:
                label = OTHER_OUTCOMES
        if label:
            outcomes[label] = outcomes.get(label, 0) + times

    @property
    def statuses(self) -> dict[int, int]:
        """Outcomes that are status codes, as HTTP has them; other codes under 0, where there is nothing but codes."""
        codes = {int(label): count for label, count in sorted(self.outcomes.items()) if is_status(label)}
        if codes and self.outcomes.keys() == {*map(str, codes), OTHER_OUTCOMES}:
            return {0: self.outcomes[OTHER_OUTCOMES], **codes}
        return codes

    @property
    def labels(self) -> dict[str, int]:
        """The outcomes that are not in `statuses`."""
        codes = self.statuses
        told = {*map(str, codes), OTHER_OUTCOMES} if 0 in codes else {*map(str, codes)}
        return {label: count for label, count in sorted(self.outcomes.items()) if label not in told}

    def merge(self, other: "StepTally") -> None:
        self.ok += other.ok
        self.failed += other.failed
        self.interrupted += other.interrupted
        self.skipped += other.skipped
        self.response_time.merge(other.response_time)
        self.service_time.merge(other.service_time)
        add_counts(self.outcomes, other.outcomes)
        fold_outcomes(self.outcomes)
        self.status_codes = {}  # they tell of what was there before
        add_counts(self.errors, other.errors)
        self.samples = first_samples(self.samples + other.samples)


class CheckTally(msgspec.Struct):
    passed: int = 0
    failed: int = 0
    samples: list[Sample] = []

    def fail(self, sample: Sample) -> None:
        self.failed += 1
        if self.failed <= SAMPLES_KEPT:
            insort(self.samples, sample)

    def merge(self, other: "CheckTally") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.samples = first_samples(self.samples + other.samples)


class MetricTally(msgspec.Struct):
    """A metric of the user's: `count` and `rate` sum up, `sample` keeps the extremes, `distribution` every value.

    Distributions are kept in thousandths, so that fractions down to 0.001 survive; the histogram's three
    significant digits hold from there up to 3.6 million.
    """

    kind: MetricKind
    values: int = 0
    total: float = 0.0
    min: float | None = None
    max: float | None = None
    thousandths: Histogram = msgspec.field(default_factory=Histogram)

    def add(self, value: float) -> None:
        self.values += 1
        self.total += value
        if self.min is None or value < self.min:
            self.min = value
        if self.max is None or value > self.max:
            self.max = value
        if self.kind == "distribution":
            self.thousandths.record(round(value * 1000))

    def merge(self, other: "MetricTally") -> None:
        self.values += other.values
        self.total += other.total
        self.min = min((m for m in (self.min, other.min) if m is not None), default=None)
        self.max = max((m for m in (self.max, other.max) if m is not None), default=None)
        self.thousandths.merge(other.thousandths)


class GeneratorTally(msgspec.Struct):
    """How well the generator itself kept up."""

    start_lag: Histogram = msgspec.field(default_factory=Histogram)
    """Microseconds by which iterations started late (open model). Time queued for a free user is not ours, and left
    out."""
    loop_lag: Histogram = msgspec.field(default_factory=Histogram)
    """Microseconds by which the event loop woke up late."""
    cpu_ns: int = 0
    wall_ns: int = 0
    max_rss_bytes: int = 0
    process: int = 0
    """The process that CPU, loop lag and memory are of: shards of several workflows may run in one, and each tells all
    of it. 0: unknown; -1: of several processes, as in what was merged."""
    machine: Machine | None = None
    """Known from a shard's end on. Of what was merged, the one with the most going on."""

    def merge(self, other: "GeneratorTally") -> None:
        if other.process and other.process != self.process:
            self.process = -1 if self.process else other.process
        self.start_lag.merge(other.start_lag)
        self.loop_lag.merge(other.loop_lag)
        self.cpu_ns += other.cpu_ns
        self.wall_ns += other.wall_ns
        self.max_rss_bytes = max(self.max_rss_bytes, other.max_rss_bytes)
        known = [machine for machine in (self.machine, other.machine) if machine is not None]
        self.machine = max(known, key=lambda machine: machine.pressed, default=None)


class Tally(msgspec.Struct):
    """Everything one shard, or several merged, has counted."""

    iterations: int = 0
    """Iterations that ran to their end."""
    started: int = 0
    dropped: int = 0
    """Arrivals that were due and could not start."""
    exchanges: Exchanges = msgspec.field(default_factory=Exchanges)
    steps: dict[str, StepTally] = {}
    actions: dict[str, StepTally] = {}
    """What ran without being measured: its times stay empty, its failures must not."""
    checks: dict[str, CheckTally] = {}
    metrics: dict[str, MetricTally] = {}
    generator: GeneratorTally = msgspec.field(default_factory=GeneratorTally)
    interrupted_iterations: int = 0
    """Iterations that began and were cut off before their end."""
    busy_ns: int = 0
    """From the real beginnings of iterations to their ends, all together: how long users were at work."""
    calls: dict[str, dict[str, StepTally]] = {}
    """By the method that made them, measured or not, and by name."""

    def tell_statuses(self) -> None:
        """Fill in `status_codes` of every row of calls, before people are shown it."""
        for calls in self.calls.values():
            for call in calls.values():
                call.status_codes = call.statuses

    def merge(self, other: "Tally") -> None:
        self.iterations += other.iterations
        self.interrupted_iterations += other.interrupted_iterations
        self.busy_ns += other.busy_ns
        self.started += other.started
        self.dropped += other.dropped
        self.exchanges.merge(other.exchanges)
        merge_steps(self.steps, other.steps)
        merge_steps(self.actions, other.actions)
        for name, check in other.checks.items():
            self.checks.setdefault(name, CheckTally()).merge(check)
        for name, metric in other.metrics.items():
            self.metrics.setdefault(name, MetricTally(metric.kind)).merge(metric)
        for node, calls in other.calls.items():
            merge_steps(self.calls.setdefault(node, {}), calls)
        self.generator.merge(other.generator)


def merge_steps(into: dict[str, StepTally], more: dict[str, StepTally]) -> None:
    for name, step in more.items():
        into.setdefault(name, StepTally()).merge(step)


def is_status(label: str) -> bool:
    """Whether it is a number of three digits. Other protocols have such codes too, and may use them as labels."""
    return len(label) == 3 and label.isascii() and label.isdigit() and label[0] != "0"


def fold_outcomes(outcomes: dict[str, int]) -> None:
    """Keep the first labels by name and count the others under `OTHER_OUTCOMES`. A choice by order of arrival would
    depend on who merges first."""
    for label in sorted(outcomes.keys() - {OTHER_OUTCOMES})[OUTCOMES_KEPT:]:
        outcomes[OTHER_OUTCOMES] = outcomes.get(OTHER_OUTCOMES, 0) + outcomes.pop(label)


def first_samples(samples: list[Sample]) -> list[Sample]:
    """The earliest few of each kind. Ordered by every field, so that merging does not depend on the order."""
    kept: dict[str, list[Sample]] = {}
    for sample in sorted(samples):
        of_kind = kept.setdefault(sample.kind, [])
        if len(of_kind) < SAMPLES_KEPT:
            of_kind.append(sample)
    return sorted(sample for of_kind in kept.values() for sample in of_kind)


def fold_calls(calls: dict[str, dict[str, StepTally]]) -> None:
    """Keep the rows with the most calls and count the others under `OTHER_CALLS`.

    Each shard keeps so many names by itself; this is for what several shards come to, once they are all together.
    """
    named = [
        (-call.seen, node, name)
        for node, by_name in calls.items()
        for name, call in by_name.items()
        if name not in (node, OTHER_CALLS)
    ]
    for _, node, name in sorted(named)[CALL_NAMES_KEPT:]:
        calls[node].setdefault(OTHER_CALLS, StepTally()).merge(calls[node].pop(name))


def merged(tallies: "list[Tally]") -> Tally:
    """A new tally; the given ones stay as they are."""
    whole = Tally()
    for tally in tallies:
        whole.merge(tally)
    return whole
