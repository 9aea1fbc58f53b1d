"""Schedules: what they mean, when they are due next, and what is said of those that cannot be."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.work.dags.cron import LAST_MS, MINUTE_MS, BadCron, Cron


def ms_of(*instant: int) -> int:
    return round(datetime(*instant, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]


def told(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M %a")


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("* * * * *", (2026, 1, 1, 0, 0), "2026-01-01 00:01 Thu"),
        ("*/15 * * * *", (2026, 1, 1, 0, 46), "2026-01-01 01:00 Thu"),
        ("5/20 * * * *", (2026, 1, 1, 0, 6), "2026-01-01 00:25 Thu"),
        ("0,30 9-17/4 * * *", (2026, 1, 1, 9, 30), "2026-01-01 13:00 Thu"),
        ("30 2 * * *", (2026, 12, 31, 2, 30), "2027-01-01 02:30 Fri"),
        ("0 0 * * mon-fri", (2026, 1, 3, 0, 0), "2026-01-05 00:00 Mon"),
        ("0 0 * * FRI-SUN", (2026, 1, 5, 0, 0), "2026-01-09 00:00 Fri"),
        ("0 0 * * 7", (2026, 1, 5, 0, 0), "2026-01-11 00:00 Sun"),
        ("0 0 * jan,jul *", (2026, 1, 31, 0, 0), "2026-07-01 00:00 Wed"),
        ("0 0 29 feb *", (2096, 3, 1, 0, 0), "2104-02-29 00:00 Fri"),
        ("0 0 13 * fri", (2026, 1, 1, 0, 0), "2026-01-02 00:00 Fri"),
        ("0 0 13 * fri", (2026, 1, 9, 0, 0), "2026-01-13 00:00 Tue"),
        ("0 0 */31 2 mon", (2026, 1, 1, 0, 0), "2027-02-01 00:00 Mon"),
        ("0 0 30 2 1", (2026, 1, 1, 0, 0), "2026-02-02 00:00 Mon"),
        ("@hourly", (2026, 1, 1, 0, 0), "2026-01-01 01:00 Thu"),
        ("@daily", (2026, 1, 1, 0, 0), "2026-01-02 00:00 Fri"),
        ("@midnight", (2026, 1, 1, 0, 0), "2026-01-02 00:00 Fri"),
        ("@weekly", (2026, 1, 1, 0, 0), "2026-01-04 00:00 Sun"),
        ("@monthly", (2026, 1, 1, 0, 0), "2026-02-01 00:00 Sun"),
        (" @Yearly ", (2026, 1, 1, 0, 0), "2027-01-01 00:00 Fri"),
        ("@annually", (2026, 1, 1, 0, 0), "2027-01-01 00:00 Fri"),
    ],
)
def test_a_schedule_is_due_next_when_people_expect_it(text: str, after: tuple[int, ...], due: str) -> None:
    assert told(Cron.parse(text).next_after(ms_of(*after))) == due


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * *", "has 3 fields, not 5"),
        ("0 * * * * *", "has 6 fields, not 5"),
        ("", "has 0 fields, not 5"),
        ("@reboot", "is not one of @hourly, @daily"),
        ("60 * * * *", 'minute "60" is not from 0 to 59'),
        ("* 24 * * *", 'hour "24" is not from 0 to 23'),
        ("* * 0 * *", 'day of the month "0" is not from 1 to 31'),
        ("* * * 13 *", 'month "13" is not from 1 to 12'),
        ("* * * * 8", 'day of the week "8" is not from 0 to 7'),
        ("* * * * friday", 'day of the week "friday" is not a number or sun, mon'),
        ("x * * * *", 'minute "x" is not a number'),
        ("30-10 * * * *", 'minute "30-10" ends before it begins'),
        ("*/0 * * * *", 'minute "*/0" has a step that is not from 1 to 59'),
        ("*/60 * * * *", 'minute "*/60" has a step that is not from 1 to 59'),
        ("1,,2 * * * *", 'minute "" is neither a number, a range, a step nor a star'),
        ("* * L * *", 'day of the month "l" is not a number'),
        ("* * ? * *", 'day of the month "?" is neither'),
        ("0 0 30 2 *", "is never due: none of its months has a day 30"),
        ("0 0 31 feb,apr,jun,sep,nov *", "is never due: none of its months has a day 31"),
        ("0 " * 200, "is longer than 200 characters"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(BadCron) as caught:
        Cron.parse(text)

    assert says in str(caught.value)


@pytest.mark.parametrize("instant_ms", [-1, LAST_MS])
def test_instants_beyond_the_calendar_are_refused(instant_ms: int) -> None:
    with pytest.raises(BadCron, match="from 1970 to the year 9000"):
        Cron.parse("@daily").next_after(instant_ms)


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, max(1, high)).map(lambda step: f"*/{step}")
    parts = st.one_of(numbers.map(str), ranges, steps, st.just("*"))
    return st.lists(parts, min_size=1, max_size=3).map(",".join)


CRONS = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 7)).map(" ".join)


def is_due(cron: Cron, at: datetime) -> bool:
    is_day, is_weekday = at.day in cron.days, at.isoweekday() % 7 in cron.weekdays
    day = is_day or is_weekday if cron.is_either else is_day and is_weekday
    return at.minute in cron.minutes and at.hour in cron.hours and at.month in cron.months and day


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CRONS, st.integers(0, 4_000_000_000_000))
def test_the_next_instant_is_later_a_whole_minute_and_fits_every_field(text: str, after_ms: int) -> None:
    cron = Cron.parse(text)

    due_ms = cron.next_after(after_ms)

    assert due_ms > after_ms and due_ms % MINUTE_MS == 0
    assert is_due(cron, datetime.fromtimestamp(due_ms / 1000, UTC))
    assert cron.next_after(due_ms - 1) == due_ms


@settings(deadline=None, derandomize=True, max_examples=20)
@given(CRONS, st.integers(0, 4_000_000_000))
def test_nothing_between_now_and_the_next_instant_is_due(text: str, after_s: int) -> None:
    cron = Cron.parse(text)
    at = datetime.fromtimestamp(after_s - after_s % 60, UTC)

    due_ms = cron.next_after(after_s * 1000)

    for _ in range(3000):
        at += timedelta(minutes=1)
        if at.timestamp() * 1000 >= due_ms:
            break
        assert not is_due(cron, at)
