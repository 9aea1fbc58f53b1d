"""Load shapes as users write them. Each checks its values when it is made, and becomes a plan."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from numbers import Integral, Real
from typing import Final, TypeAlias, TypeVar

from talka.units import SECOND
from talka.work.durations import (
    LONGEST_NS,
    BadDuration,
    BadRate,
    format_duration,
    format_rate,
    parse_duration,
    parse_rate,
    shown,
)
from talka.work.load import RATE_PER_S, BadShape, Plan, Policy, Segment

Duration: TypeAlias = str | int | float
Rate: TypeAlias = str | int | float
Target = TypeVar("Target")

MOST_VUS: Final = 1_000_000
MOST_STAGES: Final = 1_000
MOST_SAMPLES: Final = 100_000
MOST_ITERATIONS: Final = 10**12
STAGES_DESCRIBED: Final = 8


class LoadShape(ABC):
    __slots__ = ()

    def __post_init__(self) -> None:
        self.plan()

    @abstractmethod
    def plan(self) -> Plan:
        """The plan that this shape becomes."""

    @abstractmethod
    def describe(self) -> str:
        """The shape in words, as `talka check` prints it."""


@dataclass(frozen=True, slots=True)
class ConstantVUs(LoadShape):
    """`vus` users for `duration`, each of which runs one iteration after the other."""

    vus: int
    duration: Duration

    def plan(self) -> Plan:
        vus = _count(self, "vus", self.vus, most=MOST_VUS)
        return Plan.of_vus(_steady(_run_ns(self, "duration", self.duration), vus))

    def describe(self) -> str:
        return f"{_vus(self.vus)} for {_time(self.duration)}"


@dataclass(frozen=True, slots=True)
class RampingVUs(LoadShape):
    """VUs that change in straight lines: from `start` to the target of the first stage, then to that of the next.

    `stages` are pairs (VUs, duration); a stage of duration 0 is a jump.
    """

    stages: Sequence[tuple[int, Duration]]
    start: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _pairs(self, self.stages, "VUs"))
        self.plan()

    def plan(self) -> Plan:
        return Plan.of_vus(_ramp(self, self.start, self.stages, _some_vus))

    def describe(self) -> str:
        targets, durations = zip(*self.stages, strict=True)
        return f"ramp of VUs: {_course([_number(vus) for vus in (self.start, *targets)], durations)}"


@dataclass(frozen=True, slots=True)
class ConstantRate(LoadShape):
    """Iterations that start at `rate` for `duration`, whether or not earlier ones have ended.

    An arrival that finds all of `max_vus` busy follows `policy`: with "queue" it waits for a free VU, and its wait is
    counted; with "drop" it is dropped, and counted as dropped.
    """

    rate: Rate
    duration: Duration
    max_vus: int | None = None
    policy: Policy = "queue"

    def plan(self) -> Plan:
        rate = _some_rate(self, "rate", self.rate)
        return _open_plan(self, _steady(_run_ns(self, "duration", self.duration), rate))

    def describe(self) -> str:
        return f"{_rate(self.rate)} for {_time(self.duration)}, {_allowance(self.plan().vus, self.policy)}"


@dataclass(frozen=True, slots=True)
class RampingRate(LoadShape):
    """A rate that changes in straight lines: from `start` to the rate of the first stage, then to that of the next.

    `stages` are pairs (rate, duration); a stage of duration 0 is a jump. `max_vus` and `policy` as in `ConstantRate`.
    """

    stages: Sequence[tuple[Rate, Duration]]
    start: Rate = 0
    max_vus: int | None = None
    policy: Policy = "queue"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _pairs(self, self.stages, "rate"))
        self.plan()

    def plan(self) -> Plan:
        return _open_plan(self, _ramp(self, self.start, self.stages, _some_rate))

    def describe(self) -> str:
        targets, durations = zip(*self.stages, strict=True)
        course = _course([_rate(rate) for rate in (self.start, *targets)], durations)
        return f"ramp of the rate: {course}, {_allowance(self.plan().vus, self.policy)}"


@dataclass(frozen=True, slots=True)
class IterationsPerVU(LoadShape):
    """Each of `vus` users runs exactly `iterations`, and stops after `max_duration` if there is one."""

    vus: int
    iterations: int
    max_duration: Duration | None = None

    def plan(self) -> Plan:
        vus = _count(self, "vus", self.vus, most=MOST_VUS)
        iterations = _count(self, "iterations", self.iterations, most=MOST_ITERATIONS)
        segments = _until(self, self.max_duration, vus)
        return Plan(model="closed", vus=vus, segments=segments, iterations_per_vu=iterations)

    def describe(self) -> str:
        return f"{_vus(self.vus)}, {_iterations(self.iterations)} each{_at_most(self.max_duration)}"


@dataclass(frozen=True, slots=True)
class SharedIterations(LoadShape):
    """`vus` users run `iterations` in all, each taken by the next free user; they stop after `max_duration`."""

    vus: int
    iterations: int
    max_duration: Duration | None = None

    def plan(self) -> Plan:
        vus = _count(self, "vus", self.vus, most=MOST_VUS)
        iterations = _count(self, "iterations", self.iterations, most=MOST_ITERATIONS)
        segments = _until(self, self.max_duration, vus)
        return Plan(model="closed", vus=vus, segments=segments, shared_iterations=iterations)

    def describe(self) -> str:
        return f"{_iterations(self.iterations)} shared by {_vus(self.vus)}{_at_most(self.max_duration)}"


@dataclass(frozen=True, slots=True)
class CustomVUs(LoadShape):
    """As many VUs as `function` returns. It is called with the seconds since the start, once for `every` of `duration`.

    It is called when the plan is made, not during the run.
    """

    function: Callable[[float], float]
    duration: Duration
    every: Duration = "1s"

    def __post_init__(self) -> None:
        _sampling(self)

    def plan(self) -> Plan:
        return Plan.of_vus(_sampled(self, _sampled_vus))

    def describe(self) -> str:
        return f"VUs by {_name(self.function)} for {_time(self.duration)}, every {_time(self.every)}"


@dataclass(frozen=True, slots=True)
class CustomRate(LoadShape):
    """The rate that `function` returns. It is called with the seconds since the start, once for `every` of `duration`.

    It is called when the plan is made, not during the run. `max_vus` and `policy` as in `ConstantRate`.
    """

    function: Callable[[float], float]
    duration: Duration
    every: Duration = "1s"
    max_vus: int | None = None
    policy: Policy = "queue"

    def __post_init__(self) -> None:
        _sampling(self)
        _pool(self)

    def plan(self) -> Plan:
        return _open_plan(self, _sampled(self, _some_rate))

    def describe(self) -> str:
        line = f"rate by {_name(self.function)} for {_time(self.duration)}, every {_time(self.every)}"
        return f"{line}, {_allowance(self.max_vus, self.policy)}"


OpenShape: TypeAlias = ConstantRate | RampingRate | CustomRate
CustomShape: TypeAlias = CustomVUs | CustomRate


# Checks. Every value passes one of these, which names the shape and the field.


def _wrong(shape: LoadShape, sentence: object) -> BadShape:
    return BadShape(f"{type(shape).__name__}: {sentence}")


def _count(shape: LoadShape, what: str, value: object, *, least: int = 1, most: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    means = "means that nothing would run" if value == 0 and least == 1 else "is not possible"
    raise _wrong(shape, f"{what} = {shown(value)} {means}: write a whole number from {least} to {most:,}")


def _some_vus(shape: LoadShape, what: str, value: object) -> int:
    return _count(shape, what, value, least=0, most=MOST_VUS)


def _some_rate(shape: LoadShape, what: str, value: Rate) -> int:
    try:
        return round(parse_rate(value, what=what) * RATE_PER_S)
    except BadRate as error:
        raise _wrong(shape, error) from None


def _length_ns(shape: LoadShape, what: str, value: Duration) -> int:
    try:
        return parse_duration(value, what=what)
    except BadDuration as error:
        raise _wrong(shape, error) from None


def _run_ns(shape: LoadShape, what: str, value: Duration) -> int:
    length_ns = _length_ns(shape, what, value)
    if length_ns == 0:
        raise _wrong(shape, f"{what} = {shown(value)} means that nothing would run: write a duration above 0")
    return length_ns


def _pairs(shape: RampingVUs | RampingRate, stages: object, unit: str) -> tuple[tuple[object, object], ...]:
    """The stages, safe from later changes to the list they came in."""
    if not isinstance(stages, list | tuple) or not 1 <= len(stages) <= MOST_STAGES:
        raise _wrong(shape, f"stages must be a list of 1 to {MOST_STAGES:,} pairs of ({unit}, duration)")
    for position, stage in enumerate(stages):
        if not isinstance(stage, list | tuple) or len(stage) != 2:
            raise _wrong(shape, f"stages[{position}] = {shown(stage)} is not a pair of ({unit}, duration)")
    return tuple((target, duration) for target, duration in stages)


def _pool(shape: OpenShape) -> int | None:
    """`max_vus` as given; the policy is checked with it."""
    if shape.policy not in ("queue", "drop"):
        raise _wrong(shape, f'policy = {shown(shape.policy)} is not known: write "queue" or "drop"')
    return None if shape.max_vus is None else _count(shape, "max_vus", shape.max_vus, most=MOST_VUS)


def _sampling(shape: CustomShape) -> tuple[int, int]:
    """Length and step, in nanoseconds."""
    if not callable(shape.function):
        raise _wrong(
            shape, f"function = {shown(shape.function)} cannot be called: write a function of the elapsed seconds"
        )
    length_ns, every_ns = _run_ns(shape, "duration", shape.duration), _length_ns(shape, "every", shape.every)
    if every_ns * MOST_SAMPLES < length_ns:
        least = format_duration(ceil(Fraction(length_ns, MOST_SAMPLES)))
        raise _wrong(
            shape,
            f"every = {shown(shape.every)} makes more than {MOST_SAMPLES:,} steps: write at least {least}",
        )
    return length_ns, every_ns


# Segments.


def _steady(length_ns: int, value: int) -> tuple[Segment, ...]:
    return (Segment(length_ns, value, value),)


def _until(shape: IterationsPerVU | SharedIterations, max_duration: Duration | None, vus: int) -> tuple[Segment, ...]:
    return () if max_duration is None else _steady(_run_ns(shape, "max_duration", max_duration), vus)


def _ramp(
    shape: RampingVUs | RampingRate,
    start: Target,
    stages: Sequence[tuple[Target, Duration]],
    read: Callable[[LoadShape, str, Target], int],
) -> list[Segment]:
    segments = []
    value = read(shape, "start", start)
    for position, (target, duration) in enumerate(stages):
        before, value = value, read(shape, f"stages[{position}] target", target)
        length_ns = _length_ns(shape, f"stages[{position}] duration", duration)
        if length_ns:
            segments.append(Segment(length_ns, before, value))
    total_ns = sum(part.length_ns for part in segments)
    if total_ns > LONGEST_NS:
        raise _wrong(shape, f"the stages last {format_duration(total_ns)} together: 30 days is the most")
    return segments


def _sampled(shape: CustomShape, read: Callable[[LoadShape, str, float], int]) -> list[Segment]:
    """Steps of the function's values; equal ones in a row are one segment."""
    length_ns, every_ns = _sampling(shape)
    segments: list[Segment] = []
    for at_ns in range(0, length_ns, every_ns):
        step_ns = min(every_ns, length_ns - at_ns)
        value = _sample(shape, at_ns, read)
        if segments and segments[-1].start == value:
            step_ns += segments.pop().length_ns
        segments.append(Segment(step_ns, value, value))
    return segments


def _sampled_vus(shape: LoadShape, what: str, value: float) -> int:
    # Functions that compute with floats return 5.0 for 5.
    return _some_vus(shape, what, int(value) if isinstance(value, float) and value.is_integer() else value)


def _sample(shape: CustomShape, at_ns: int, read: Callable[[LoadShape, str, float], int]) -> int:
    elapsed_s = at_ns / SECOND
    what = f"function's value at second {elapsed_s:.12g}"
    value: object
    try:
        value = shape.function(elapsed_s)
        # Number libraries have types of their own, which are turned into Python's.
        if isinstance(value, Real) and not isinstance(value, bool):
            value = int(value) if isinstance(value, Integral) else float(value)
    except Exception as error:
        reason = f"{type(error).__name__}({shown(str(error))})"
        raise _wrong(shape, f"function raised {reason} at second {elapsed_s:.12g}") from error
    if not isinstance(value, int | float):
        raise _wrong(shape, f"{what} = {shown(value)} is not a number")
    return read(shape, what, value)


def _open_plan(shape: OpenShape, segments: Sequence[Segment]) -> Plan:
    peak = max((max(part.start, part.end) for part in segments), default=0)
    # Twice the peak is room for iterations of two seconds; a pool far beyond it would hide a server that stalls.
    enough = min(10_000, max(100, 2 * ceil(Fraction(peak, RATE_PER_S))))
    return Plan.of_rate(segments, max_vus=_pool(shape) or enough, policy=shape.policy)


# Words for people.


def _number(count: int) -> str:
    return f"{count:,}" if count >= 10_000 else str(count)


def _vus(count: int) -> str:
    return "1 VU" if count == 1 else f"{_number(count)} VUs"


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{_number(count)} iterations"


def _time(duration: Duration) -> str:
    return format_duration(parse_duration(duration))


def _rate(rate: Rate) -> str:
    return format_rate(parse_rate(rate))


def _at_most(max_duration: Duration | None) -> str:
    return "" if max_duration is None else f", for at most {_time(max_duration)}"


def _allowance(max_vus: int | None, policy: Policy) -> str:
    late = "late arrivals queue" if policy == "queue" else "late arrivals are dropped"
    return late if max_vus is None else f"at most {_vus(max_vus)}, {late}"


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _course(values: Sequence[object], durations: Sequence[Duration]) -> str:
    """As in "0 → 50 in 10s, held for 1m → 0 in 5s"; of very many stages only the first ones and the last."""
    legs = [_leg(*stage) for stage in zip(values, values[1:], durations, strict=False)]
    if len(legs) > STAGES_DESCRIBED:
        legs[STAGES_DESCRIBED - 1 : -1] = [f" → … {len(legs) - STAGES_DESCRIBED} more …"]
    return str(values[0]) + "".join(legs)


def _leg(before: object, after: object, duration: Duration) -> str:
    length = _time(duration)
    if length == "0s":
        return f" → {after} at once"
    return f", held for {length}" if after == before else f" → {after} in {length}"
