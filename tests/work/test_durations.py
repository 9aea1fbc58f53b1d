from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.units import HOUR, MILLISECOND, MINUTE, SECOND
from talka.work.durations import (
    LONGEST_NS,
    BadDuration,
    BadRate,
    format_duration,
    format_rate,
    parse_duration,
    parse_rate,
    shown,
    tenths_text,
)

DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("10s", 10 * SECOND),
        ("1m30s", 90 * SECOND),
        ("500ms", 500 * MILLISECOND),
        ("2h", 2 * HOUR),
        ("1.5s", 1_500 * MILLISECOND),
        ("250us", 250_000),
        ("250µs", 250_000),  # the micro sign
        ("250μs", 250_000),  # the Greek letter
        ("7ns", 7),
        ("1d", DAY),
        ("30d", 30 * DAY),
        ("1d2h3m4s5ms6us7ns", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5 * MILLISECOND + 6_007),
        ("0.1s", 100 * MILLISECOND),
        ("0s", 0),
        ("90m", 90 * MINUTE),
        (" 10s\n", 10 * SECOND),
        ("45", 45 * SECOND),
        ("0.25", 250 * MILLISECOND),
        (45, 45 * SECOND),
        (0, 0),
        (0.1, 100 * MILLISECOND),
        (1e-7, 100),
        ("0.6ns", 1),
    ],
)
def test_durations_are_read_as_people_write_them(written: str | int | float, ns: int) -> None:
    assert parse_duration(written) == ns


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            " ",
            "s",
            "ten",
            "5 parsecs",
            "10x",
            "10S",
            "1m30",
            "1m 30s",
            "30s1m",
            "1s1s",
            "1ms1s",
            ".5s",
            "1.s",
            "1e3s",
        ),
        *("-1s", "+1s", "nan", "inf", "1,5s", "1_000s", "١s", "9" * 21 + "s", "0." + "1" * 21 + "s"),
        *(float("nan"), float("inf"), float("-inf"), True, None, [], b"1s"),
    ],
)
def test_what_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(BadDuration, match="is not a duration"):
        parse_duration(written)


def test_the_refusal_of_a_duration_says_what_was_written_and_what_to_write() -> None:
    with pytest.raises(Invalid) as raised:
        parse_duration("5 parsecs")
    assert str(raised.value) == (
        'duration = "5 parsecs" is not a duration: write a number and a unit, such as "30s", "1m30s" or "500ms"'
    )
    with pytest.raises(BadDuration, match=r'^think_time = "soon" is not'):
        parse_duration("soon", what="think_time")


@pytest.mark.parametrize("written", [-1, -0.001])
def test_a_negative_duration_is_refused(written: float) -> None:
    with pytest.raises(BadDuration, match=f"^duration = {written} is negative: a duration is 0 or more$"):
        parse_duration(written)


@pytest.mark.parametrize(
    "written", ["30d1ns", "31d", "721h", 30 * 86_400 + 1, 1e300, pytest.param(10**5_000, id="huge")]
)
def test_durations_beyond_thirty_days_are_refused(written: str | int | float) -> None:
    with pytest.raises(BadDuration, match="is too long: write at most 30 days$"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (90 * SECOND, "1m30s"),
        (500 * MILLISECOND, "500ms"),
        (1_500 * MILLISECOND, "1.5s"),
        (10 * SECOND, "10s"),
        (MINUTE, "1m"),
        (HOUR + MINUTE, "1h1m"),
        (DAY, "1d"),
        (MINUTE + 500 * MILLISECOND, "1m0.5s"),
        (250_000, "250us"),
        (1_250, "1.25us"),
        (1, "1ns"),
        (0, "0s"),
        (-1_500 * MILLISECOND, "-1.5s"),
    ],
)
def test_durations_are_written_short(ns: int, written: str) -> None:
    assert format_duration(ns) == written


@pytest.mark.parametrize(
    ("ns", "told"),
    [
        (90 * SECOND, "90.0 s"),
        (2_340 * MILLISECOND, "2.3 s"),
        (100 * MILLISECOND, "0.1 s"),
        (100 * MILLISECOND - 1, "< 0.1 s"),
        (1, "< 0.1 s"),
        (0, "< 0.1 s"),
    ],
)
def test_a_time_to_a_tenth_of_a_second_is_never_none(ns: int, told: str) -> None:
    assert tenths_text(ns) == told


@given(ns=st.integers(0, LONGEST_NS) | st.integers(0, LONGEST_NS // SECOND).map(lambda s: s * SECOND))
@settings(deadline=None, derandomize=True)
def test_a_written_duration_is_read_back_exactly(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@pytest.mark.parametrize(
    ("written", "per_s"),
    [
        (500, Fraction(500)),
        ("500", Fraction(500)),
        ("500/s", Fraction(500)),
        ("30/m", Fraction(1, 2)),
        ("2000/h", Fraction(5, 9)),
        ("2.5/s", Fraction(5, 2)),
        (0.1, Fraction(1, 10)),
        (1e-7, Fraction(1, 10**7)),
        (0, Fraction(0)),
        (" 5/s ", Fraction(5)),
        (10_000_000, Fraction(10_000_000)),
        ("600000000/m", Fraction(10_000_000)),
    ],
)
def test_rates_are_read_exactly(written: str | int | float, per_s: Fraction) -> None:
    assert parse_rate(written) == per_s


@pytest.mark.parametrize(
    "written",
    [
        *("", "fast", "500/", "/s", "500/d", "500/S", "500 / s", "5s", "-5/s", "1e3", "nan", "5//s", "9" * 21),
        *(float("nan"), float("inf"), True, None, (1, 2)),
    ],
)
def test_what_is_no_rate_is_refused(written: str) -> None:
    with pytest.raises(BadRate, match="is not a rate"):
        parse_rate(written)


def test_the_refusal_of_a_rate_says_what_was_written_and_what_to_write() -> None:
    with pytest.raises(Invalid) as raised:
        parse_rate("fast", what="stages[0] rate")
    assert str(raised.value) == (
        'stages[0] rate = "fast" is not a rate: write arrivals per second, minute or hour, '
        'such as 500, "2.5/s", "30/m" or "2000/h"'
    )


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(BadRate, match="^rate = -1 is negative: a rate is 0 or more$"):
        parse_rate(-1)


@pytest.mark.parametrize(
    "written", [10_000_001, "10000000.1/s", "600000001/m", 1e300, pytest.param(10**5_000, id="huge")]
)
def test_rates_beyond_ten_million_a_second_are_refused(written: str | int | float) -> None:
    with pytest.raises(BadRate, match="is too high: write at most 10,000,000 arrivals per second$"):
        parse_rate(written)


@pytest.mark.parametrize(
    ("per_s", "written"),
    [
        (Fraction(500), "500/s"),
        (Fraction(5, 2), "2.5/s"),
        (Fraction(1, 60), "1/m"),
        (Fraction(5, 9), "2000/h"),
        (Fraction(0), "0/s"),
        (Fraction(1, 7), "0.142857/s"),
    ],
)
def test_rates_are_written_in_the_first_unit_that_holds_them(per_s: Fraction, written: str) -> None:
    assert format_rate(per_s) == written


def test_an_error_never_repeats_more_than_a_line_of_what_was_written() -> None:
    assert shown('a"b') == '"a\\"b"'
    assert shown(3) == "3"
    assert len(shown("x" * 1_000)) == 60
    assert shown(10**5_000) == "a number of very many digits"
