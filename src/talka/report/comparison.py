"""What a comparison of two results says, schema `talka.comparison/1`: its rows, rules and verdicts."""

from typing import Final, Literal

import msgspec

from talka.errors import Invalid
from talka.report.text import (
    cleaned,
    cut,
)
from talka.stats import comparison as statistics
from talka.stats.comparison import Unit, Verdict

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
