"""How long to wait before the next try."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.units import MILLISECOND
from talka.work.retry import DISCOVERY, LONGEST_DELAY_NS, Jitter, RetryPolicy, delay

quick = settings(deadline=None, derandomize=True, max_examples=100)
JITTERS: list[Jitter] = ["none", "full", "quarter", "decorrelated"]


def policy_of(jitter: Jitter, *, base_ns: int = 100, cap_ns: int = 1000) -> RetryPolicy:
    return RetryPolicy(attempts=None, base_ns=base_ns, cap_ns=cap_ns, jitter=jitter)


def waits_of(policy: RetryPolicy, count: int) -> list[int]:
    """The waits after so many failed attempts, one after the other."""
    rng, waits = Random(3), [0]
    for attempt in range(1, count + 1):
        waits.append(delay(policy, attempt, waits[-1], rng))
    return waits[1:]


def many(policy: RetryPolicy, attempt: int, previous_ns: int = 0) -> list[int]:
    rng = Random(1)
    return [delay(policy, attempt, previous_ns, rng) for _ in range(2000)]


def test_without_jitter_the_delays_double_up_to_the_cap() -> None:
    assert waits_of(policy_of("none"), 6) == [100, 200, 400, 800, 1000, 1000]


def test_a_factor_of_one_never_grows() -> None:
    policy = RetryPolicy(attempts=None, base_ns=7, factor=1.0, cap_ns=1000, jitter="none")
    assert delay(policy, 10_000, 0, Random(1)) == 7


def test_a_delay_of_any_attempt_can_be_computed() -> None:
    assert delay(policy_of("none"), 10**9, 0, Random(1)) == 1000


def test_a_factor_that_is_no_whole_number_is_rounded_to_nanoseconds() -> None:
    policy = RetryPolicy(attempts=None, base_ns=3, factor=1.5, cap_ns=1000, jitter="none")
    assert waits_of(policy, 4) == [3, 4, 7, 10]


@pytest.mark.parametrize(("jitter", "lowest", "highest"), [("none", 400, 400), ("full", 0, 400), ("quarter", 400, 500)])
def test_each_jitter_fills_its_range_and_does_not_leave_it(jitter: Jitter, lowest: int, highest: int) -> None:
    drawn = many(policy_of(jitter), attempt=3)
    assert (min(drawn), max(drawn)) == (lowest, highest)


def test_decorrelated_jitter_lies_between_the_base_and_three_times_the_previous_wait() -> None:
    drawn = many(policy_of("decorrelated"), attempt=2, previous_ns=200)
    assert (min(drawn), max(drawn)) == (100, 600)


def test_decorrelated_jitter_begins_at_the_base() -> None:
    drawn = many(policy_of("decorrelated"), attempt=1)
    assert (min(drawn), max(drawn)) == (100, 300)


def test_decorrelated_jitter_stays_below_the_cap() -> None:
    drawn = many(policy_of("decorrelated"), attempt=9, previous_ns=1000)
    assert max(drawn) == 1000
    assert min(drawn) < 200


def test_decorrelated_delays_depend_on_the_one_before() -> None:
    policy = policy_of("decorrelated", cap_ns=10**9)
    waits = waits_of(policy, 50)
    assert all(100 <= after <= 3 * before for before, after in zip(waits, waits[1:], strict=False))
    assert max(waits) > 300


def test_discovery_waits_half_a_second_up_to_fifteen_and_a_quarter_more() -> None:
    for attempt, expected_ms in enumerate((500, 1000, 2000, 4000, 8000, 15_000, 15_000), start=1):
        drawn = many(DISCOVERY, attempt)
        assert expected_ms * MILLISECOND <= min(drawn) < expected_ms * 1.01 * MILLISECOND
        assert expected_ms * 1.24 * MILLISECOND < max(drawn) <= expected_ms * 1.25 * MILLISECOND


@quick
@given(
    st.sampled_from(JITTERS),
    st.integers(1, 10**9),
    st.integers(0, 10**9),
    st.floats(1.0, 100.0),
    st.integers(1, 10**6),
    st.integers(0, 2**32),
)
def test_no_delay_is_negative_or_more_than_a_quarter_above_the_cap(
    jitter: Jitter, base_ns: int, above_ns: int, factor: float, attempt: int, seed: int
) -> None:
    policy = RetryPolicy(attempts=None, base_ns=base_ns, factor=factor, cap_ns=base_ns + above_ns, jitter=jitter)
    wait_ns = delay(policy, attempt, 0, Random(seed))
    assert isinstance(wait_ns, int)
    assert 0 <= wait_ns <= policy.cap_ns + (policy.cap_ns // 4 if jitter == "quarter" else 0)
    assert wait_ns == delay(policy, attempt, 0, Random(seed))


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(Invalid, match="counted from 1, not 0"):
        delay(DISCOVERY, 0, 0, Random(1))


def test_a_single_attempt_is_a_policy() -> None:
    assert RetryPolicy(attempts=1, base_ns=10, cap_ns=10).attempts == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attempts": 0}, "attempts must be at least 1, not 0"),
        ({"base_ns": 0}, "base_ns must be at least 1"),
        ({"base_ns": 11}, "cap_ns at least base_ns"),
        ({"cap_ns": LONGEST_DELAY_NS + 1}, "one day"),
        ({"factor": 0.5}, "factor must be from 1 to 100, not 0.5"),
        ({"factor": 101.0}, "factor must be from 1 to 100"),
        ({"factor": float("nan")}, "factor must be from 1 to 100"),
        ({"jitter": "some"}, "jitter must be one of none, full, quarter, decorrelated, not 'some'"),
    ],
    ids=["no attempt", "no base", "base above cap", "cap too long", "shrinks", "grows too fast", "nan", "jitter"],
)
def test_a_policy_that_makes_no_sense_is_refused_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        RetryPolicy(**{"attempts": 3, "base_ns": 10, "cap_ns": 10, **changes})  # type: ignore[arg-type]
