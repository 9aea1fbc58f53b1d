"""Schedules by a clock that may be wrong for a moment."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.control.tasks.schedules import after_run, ahead_text, due, due_values, jump_text, mended, run_key
from talka.work.dags.cron import LAST_MS, Cron
from talka.work.dags.records import ScheduleRow

NOON_MS = 1_790_000_000_000
MINUTE_MS, DAY_MS, DAY_NS = 60_000, 86_400_000, 86_400 * 10**9


def row(next_ms: int, cron: str = "*/5 * * * *", **more: str) -> ScheduleRow:
    return ScheduleRow(name="s", cron=cron, spec=b"{}", next_ms=next_ms, **more)


def test_a_schedule_is_due_from_its_instant_on() -> None:
    rows = [row(NOON_MS - 1), row(NOON_MS), row(NOON_MS + 1)]
    assert due(rows, NOON_MS) == rows[:2]


def test_a_job_of_a_schedule_is_given_the_instant_it_was_due_and_its_date() -> None:
    assert due_values(NOON_MS) == {"scheduled_for": "2026-09-21T14:13:20+00:00", "scheduled_day": "2026-09-21"}


def test_a_clock_that_was_30_days_ahead_for_a_moment_silences_no_schedule() -> None:
    followed = after_run(row(NOON_MS), NOON_MS + 30 * DAY_MS, "job")
    assert followed.next_ms > NOON_MS + 30 * DAY_MS
    (again,) = mended([followed], NOON_MS)
    assert NOON_MS < again.next_ms <= NOON_MS + 5 * MINUTE_MS
    assert again == msgspec.structs.replace(followed, next_ms=again.next_ms)


def test_a_schedule_whose_next_instant_is_right_stays_as_it_is() -> None:
    assert mended([after_run(row(NOON_MS), NOON_MS, "job")], NOON_MS) == []


crons = st.sampled_from(["* * * * *", "*/7 3 * * *", "0 0 1 * *", "30 2 * * mon-fri", "0 0 29 2 *"])


@given(crons, st.integers(NOON_MS, NOON_MS + 400 * DAY_MS), st.integers(0, 400 * DAY_MS))
def test_nothing_is_mended_while_the_clock_goes_on_as_it_should(cron: str, at_ms: int, later_ms: int) -> None:
    followed = after_run(row(at_ms, cron), at_ms, "job")
    now_ms = min(at_ms + later_ms, followed.next_ms - 1)
    assert mended([followed], now_ms) == []


@given(crons, st.integers(NOON_MS, NOON_MS + 400 * DAY_MS), st.integers(NOON_MS, NOON_MS + 400 * DAY_MS))
def test_whatever_the_clock_showed_a_schedule_is_due_when_it_should_be(cron: str, then_ms: int, now_ms: int) -> None:
    followed = after_run(row(then_ms, cron), then_ms, "job")
    (found,) = mended([followed], now_ms) or [followed]
    assert found.next_ms <= Cron.parse(cron).next_after(now_ms)


def test_what_no_calendar_reckons_with_is_left_for_a_better_clock() -> None:
    assert after_run(row(5), LAST_MS + 1, "job").next_ms == LAST_MS
    assert mended([row(LAST_MS)], -1) == []
    assert [one.next_ms for one in mended([row(LAST_MS)], NOON_MS)] == [Cron.parse("*/5 * * * *").next_after(NOON_MS)]


def test_an_instant_that_comes_twice_is_another_job_and_one_that_is_tried_twice_the_same() -> None:
    first = row(NOON_MS)
    assert run_key(first) == run_key(row(NOON_MS))
    followed = after_run(first, NOON_MS, "job-1")
    assert run_key(msgspec.structs.replace(followed, next_ms=NOON_MS)) != run_key(first)


@pytest.mark.parametrize(
    ("jump_ns", "count", "text"),
    [
        (-30 * DAY_NS, 3, "the clock of this machine went back by 30 days: 3 schedules were recomputed"),
        (-3600 * 10**9, 1, "the clock of this machine went back by 1 hour: 1 schedule was recomputed"),
        (2 * 3600 * 10**9, 0, "the clock of this machine went forward by 2 hours"),
        (-90 * 10**9, 0, "the clock of this machine went back by 90 seconds"),
        (10**9, 0, "the clock of this machine went forward by 1 second"),
    ],
)
def test_a_jump_is_told_in_words(jump_ns: int, count: int, text: str) -> None:
    assert jump_text(jump_ns, count) == text


def test_schedules_that_were_mended_without_a_jump_are_told_of() -> None:
    assert ahead_text(1).startswith("a schedule was reckoned by a clock that was ahead")
    assert ahead_text(2).startswith("2 schedules were reckoned")
