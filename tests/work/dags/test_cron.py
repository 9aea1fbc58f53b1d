"""Schedules: what they mean, when they are due next, and what is said of those that cannot be."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

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


# Time zones. Those of the tests are made of rules, so that they are the same on every machine.


class Zone(tzinfo):
    """Whose clocks are set forward and back at two instants of UTC, from one offset to another and again to it."""

    def __init__(self, forward: datetime, back: datetime, usual: timedelta, summer: timedelta) -> None:
        self.changes = (forward, back)
        self.usual, self.summer = usual, summer

    def utcoffset(self, shown_at: datetime | None) -> timedelta:
        assert shown_at is not None
        written, (forward, back) = shown_at.replace(tzinfo=None, fold=0), self.changes
        if shown_at.fold:
            is_summer = forward + self.usual <= written < back + self.usual
        else:
            is_summer = forward + self.summer <= written < back + self.summer
        return self.summer if is_summer else self.usual

    def dst(self, shown_at: datetime | None) -> timedelta:
        return timedelta(0)

    def fromutc(self, shown_at: datetime) -> datetime:
        written, (forward, back) = shown_at.replace(tzinfo=None), self.changes
        is_summer = forward <= written < back
        shown = shown_at + (self.summer if is_summer else self.usual)
        return shown.replace(fold=int(back <= written < back + self.summer - self.usual))


def written(*parts: int) -> datetime:
    """On the wall of some zone."""
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


BERLIN = Zone(written(2026, 3, 29, 1), written(2026, 10, 25, 1), hours(1), hours(2))
APIA = Zone(written(2026, 12, 30, 10), written(2027, 4, 3, 14), hours(-10), hours(14))
"""A whole day was left out there."""
LORD_HOWE = Zone(written(2026, 10, 3, 15, 30), written(2027, 4, 3, 15), hours(10.5), hours(11))


def shown_in(zone: tzinfo, ms: int) -> str:
    shown = datetime.fromtimestamp(ms // 1000, UTC).astimezone(zone)
    return f"{shown:%d %H:%M}{shown.utcoffset() / hours(1):+g}"  # type: ignore[operator]


def due_between(text: str, zone: tzinfo, begin: datetime, end: datetime) -> list[str]:
    """As clocks of the zone show it."""
    cron = Cron.parse(text)
    begin_ms, end_ms = (round(at.replace(tzinfo=zone).timestamp() * 1000) for at in (begin, end))
    return [shown_in(zone, instant) for instant in cron.due(begin_ms, end_ms, zone)]


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("30 2 * * *", ["28 02:30+1", "29 03:30+2", "30 02:30+2"]),
        ("*/20 2 * * *", [f"28 02:{m}+1" for m in ("00", "20", "40")]
            + [f"29 03:{m}+2" for m in ("00", "20", "40")] + [f"30 02:{m}+2" for m in ("00", "20", "40")]),
        ("0 3 * * *", ["28 03:00+1", "29 03:00+2", "30 03:00+2"]),
        ("0,30 2-3 29 * *", ["29 03:00+2", "29 03:30+2"]),
        ("30 * 29 3 *", ["29 00:30+1", "29 01:30+1"] + [f"29 {h:02}:30+2" for h in range(3, 24)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Europe/Berlin")], ids=["rules", "zoneinfo"])
def test_a_time_that_the_clocks_leave_out_is_due_once_as_much_later_as_they_were_set(
    text: str, due: list[str], zone: tzinfo
) -> None:
    assert due_between(text, zone, written(2026, 3, 28), written(2026, 3, 31)) == due


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("30 2 * * *", ["24 02:30+2", "25 02:30+2", "26 02:30+1"]),
        ("0,30 1-3 25 * *", ["25 01:00+2", "25 01:30+2", "25 02:00+2", "25 02:30+2", "25 03:00+1", "25 03:30+1"]),
        ("30 0-23/2 25 * *", [f"25 {h:02}:30+{2 if h <= 2 else 1}" for h in range(0, 24, 2)]),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Europe/Berlin")], ids=["rules", "zoneinfo"])
def test_a_time_that_is_there_twice_is_due_once_when_it_is_there_first(text: str, due: list[str], zone: tzinfo) -> None:
    assert due_between(text, zone, written(2026, 10, 24), written(2026, 10, 27)) == due


@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Europe/Berlin")], ids=["rules", "zoneinfo"])
def test_a_schedule_of_every_hour_is_due_in_both_hours_that_have_the_same_name(zone: tzinfo) -> None:
    told = due_between("0,30 * * * *", zone, written(2026, 10, 25, 1), written(2026, 10, 25, 4))
    first = ["25 01:00+2", "25 01:30+2", "25 02:00+2", "25 02:30+2"]
    assert told == [*first, "25 02:00+1", "25 02:30+1", "25 03:00+1", "25 03:30+1"]


def test_from_whichever_moment_the_next_instant_is_asked_for_it_is_the_first_after_it() -> None:
    for zone, around in (
        (BERLIN, written(2026, 10, 25)),
        (BERLIN, written(2026, 3, 29)),
        (APIA, written(2026, 12, 30)),
    ):
        begin = round(around.replace(tzinfo=UTC).timestamp() * 1000) - 24 * 60 * MINUTE_MS
        for text in ("*/30 * * * *", "30 0-23/2 * * *", "15 2 * * *"):
            cron = Cron.parse(text)
            instants = list(cron.due(begin, begin + 72 * 60 * MINUTE_MS, zone))
            assert instants == sorted(set(instants)) and instants
            for at in range(begin, instants[-1], 7 * MINUTE_MS):
                assert cron.next_after(at, zone) == next(one for one in instants if one > at)


def test_a_day_that_a_zone_leaves_out_is_run_on_the_day_after_it() -> None:
    told = due_between("0 9 * * *", APIA, written(2026, 12, 29), written(2027, 1, 2))
    assert told == ["29 09:00-10", "31 09:00+14", "01 09:00+14"], "and that of the day itself is the same instant"
    told = due_between("0 9 30 12 *", APIA, written(2026, 12, 29), written(2027, 1, 2))
    assert told == ["31 09:00+14"]


def test_clocks_that_are_set_by_half_an_hour_leave_out_half_an_hour() -> None:
    told = due_between("15 1-3 * * *", LORD_HOWE, written(2026, 10, 4), written(2026, 10, 5))
    assert told == ["04 01:15+10.5", "04 02:45+11", "04 03:15+11"]


def test_the_last_instant_before_a_moment_is_found() -> None:
    cron, noon = Cron.parse("30 2 * * *"), round(datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp() * 1000)
    for after in (noon - 400 * 24 * 60 * MINUTE_MS, noon - 24 * 60 * MINUTE_MS):
        found = cron.last_until(noon, after, BERLIN)
        assert found is not None and shown_in(BERLIN, found) == "25 02:30+2"
        assert cron.last_until(found, after, BERLIN) == found
        assert cron.last_until(noon, found, BERLIN) is None
    assert cron.last_until(noon, noon, BERLIN) is None
    assert cron.last_until(noon, 0) == ms_of(2026, 10, 25, 2, 30)
