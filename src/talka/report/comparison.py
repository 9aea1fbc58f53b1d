"""What a comparison of results says, schema `talka.comparison/1`: its rows, rules and verdicts."""

from typing import Final, Literal

import msgspec

from talka.errors import Invalid
from talka.report.text import cleaned, cut
from talka.stats import comparison as statistics
from talka.stats.comparison import Answer, Need, Unit, Verdict

SCHEMA: Final = "talka.comparison/1"
SEVERAL_SCHEMA: Final = "talka.comparisons/1"
MOST_RUNS: Final = 10
"""In one comparison: as many as still fit beside each other."""
LETTERS: Final = "ABCDEFGHIJ"
LONGEST_RUN_S: Final = 86_400.0
"""Nobody runs a test for longer than that to see whether two figures differ."""
SHORTEST_RUN_S: Final = 5.0
"""With the windows of so many seconds the noise of a run is known."""
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
TOO_SHORT: Final = "Cannot tell: these runs are too short to tell a difference from noise."


class NotComparable(Invalid):
    """Results with no step in common, or measured by different rules."""


class BadWithin(Invalid):
    """What counts as the same cannot be read."""


class BadRule(Invalid):
    """A rule of `--fail-on` that cannot be read, or names what is not in both runs."""

    def __init__(self, rule: str, problem: str, example: str = "response_time.p99 +10%") -> None:
        super().__init__(f'The rule "{cut(cleaned(rule), 120)}" is wrong: {problem}. Write it like "{example}".')
        self.rule, self.problem = rule, problem


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
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
    answer: Answer
    beyond_noise: bool = False
    at_least: float | None = None
    """What is left of a difference beyond noise if everything else that may have caused it did."""
    needs: Need | None = None
    """What would tell what cannot be told; None: it is known."""
    needs_s: float | None = None
    """Runs of about this length would tell; None where length is not what they need."""
    a_low: float | None = None
    a_high: float | None = None
    b_low: float | None = None
    b_high: float | None = None
    """The intervals of both values."""

    @property
    def unit(self) -> Unit:
        return UNITS[self.measure]

    @property
    def is_different(self) -> bool:
        return self.answer == "different"


RuleAnswer = Literal["held", "broken", "cannot tell"]


class RuleVerdict(msgspec.Struct, frozen=True):
    rule: str
    broken: bool
    shown: str
    answer: RuleAnswer


class ComparedRun(msgspec.Struct, frozen=True):
    """Which run it was."""

    file: str
    job: str
    name: str
    status: str
    started_at: str
    duration_s: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run as seen from another."""

    schema: str = SCHEMA
    a: ComparedRun
    b: ComparedRun
    headline: str
    different: bool
    rules: list[RuleVerdict]
    warnings: list[str]
    rows: list[ComparisonRow]
    """The worst first."""
    only_in_a: list[str]
    only_in_b: list[str]
    """Steps, as Workflow.step."""

    within: float = statistics.WITHIN
    """What counts as same, as a share of A."""
    names: tuple[str, str] = ("A", "B")
    """What the two are called, in words."""
    together: int = 0
    """Rows whose intervals hold together: those of all comparisons made at once."""

    @property
    def is_broken(self) -> bool:
        return any(rule.broken for rule in self.rules)

    @property
    def is_unsure(self) -> bool:
        """A rule was neither broken nor held."""
        return any(rule.answer == "cannot tell" for rule in self.rules)

    @property
    def method(self) -> str:
        share = f"{self.within * 100:g} %"
        points = f"{statistics.tolerance_of(0.0, 'share', self.within) * 100:g}"
        points += " point" if points == "1" else " points"
        return (
            f"same: the interval of the difference lies within ± {share} of A (failures: ± {points}, times: at least "
            f"± {statistics.LEAST_MS:g} ms). different (slower, faster, …): beyond chance, and beyond what runs of one "
            "thing differ by anyway and what the generator was late. cannot tell: neither is known. NEEDS is what "
            "would "
            "tell: runs of about that length, as an interval shrinks with its square root; repeats, which are runs of "
            "both in turn; or no lag of the generator. "
            f"Intervals hold with {statistics.LEVEL * 100:.0f} % for all {self.together or len(self.rows)} rows "
            "together (Bonferroni)."
        )

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


class Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    """Several runs, each as seen from the first."""

    schema: str = SEVERAL_SCHEMA
    base: ComparedRun
    comparisons: list[Comparison]

    @property
    def is_broken(self) -> bool:
        return any(found.is_broken for found in self.comparisons)

    @property
    def is_unsure(self) -> bool:
        return any(found.is_unsure for found in self.comparisons)

    def to_json(self) -> bytes:
        """Of two runs, the one comparison there is."""
        whole = self.comparisons[0] if len(self.comparisons) == 1 else self
        return msgspec.json.format(msgspec.json.encode(whole), indent=1)
