"""Schedules by a clock that may be wrong for a moment."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.control.tasks.schedules import (
    ScheduleLimits,
    after_job,
    after_run,
    ahead_text,
    backfill_key,
    backfilled,
    due,
    due_values,
    instant_of,
    jump_text,
    known_keys,
    known_runs,
    mended,
    resumed,
    run_key,
    turn,
    zoned_text,
)
from talka.errors import Invalid
from talka.work.dags.cron import LAST_MS, Cron
from talka.work.dags.records import ScheduleRow

NOON_MS = 1_790_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS, DAY_NS = 60_000, 3_600_000, 86_400_000, 86_400 * 10**9
EAST = timezone(timedelta(hours=2))


def row(next_ms: int, cron: str = "*/5 * * * *", **more: Any) -> ScheduleRow:
    return ScheduleRow(name="s", cron=cron, spec=b"{}", next_ms=next_ms, **more)


def zones(name: str) -> tzinfo | None:
    if name == "Nowhere":
        raise Invalid("there is no such zone")
    return EAST if name else None


def test_a_schedule_is_due_from_its_instant_on() -> None:
    rows = [row(NOON_MS - 1), row(NOON_MS), row(NOON_MS + 1)]
    assert due(rows, NOON_MS) == rows[:2]
    assert due([row(NOON_MS, is_paused=True)], NOON_MS) == []


def test_a_job_of_a_schedule_is_given_the_instant_it_was_due_and_its_date() -> None:
    assert due_values(NOON_MS) == {"scheduled_for": "2026-09-21T14:13:20+00:00", "scheduled_day": "2026-09-21"}


def test_a_clock_that_was_30_days_ahead_for_a_moment_silences_no_schedule() -> None:
    followed = after_run(row(NOON_MS), NOON_MS + 30 * DAY_MS, "job", None)
    assert followed.next_ms > NOON_MS + 30 * DAY_MS
    (again,) = mended([followed], NOON_MS, zones)
    assert NOON_MS < again.next_ms <= NOON_MS + 5 * MINUTE_MS
    assert again == msgspec.structs.replace(followed, next_ms=again.next_ms)


def test_a_schedule_whose_next_instant_is_right_stays_as_it_is() -> None:
    assert mended([after_run(row(NOON_MS), NOON_MS, "job", None)], NOON_MS, zones) == []


crons = st.sampled_from(["* * * * *", "*/7 3 * * *", "0 0 1 * *", "30 2 * * mon-fri", "0 0 29 2 *"])


@given(crons, st.integers(NOON_MS, NOON_MS + 400 * DAY_MS), st.integers(0, 400 * DAY_MS))
def test_nothing_is_mended_while_the_clock_goes_on_as_it_should(cron: str, at_ms: int, later_ms: int) -> None:
    followed = after_run(row(at_ms, cron), at_ms, "job", None)
    now_ms = min(at_ms + later_ms, followed.next_ms - 1)
    assert mended([followed], now_ms, zones) == []


@given(crons, st.integers(NOON_MS, NOON_MS + 400 * DAY_MS), st.integers(NOON_MS, NOON_MS + 400 * DAY_MS))
def test_whatever_the_clock_showed_a_schedule_is_due_when_it_should_be(cron: str, then_ms: int, now_ms: int) -> None:
    followed = after_run(row(then_ms, cron), then_ms, "job", None)
    (found,) = mended([followed], now_ms, zones) or [followed]
    assert found.next_ms <= Cron.parse(cron).next_after(now_ms)


def test_what_no_calendar_reckons_with_is_left_for_a_better_clock() -> None:
    assert after_run(row(5), LAST_MS + 1, "job", None).next_ms == LAST_MS
    (instants, following, text) = turn(row(NOON_MS), LAST_MS + 1, None)
    assert (instants, following.next_ms, text) == ((), LAST_MS, "")
    assert due([following], LAST_MS + 1) == [], "it is told of once"
    assert mended([row(LAST_MS)], -1, zones) == []
    right = Cron.parse("*/5 * * * *").next_after(NOON_MS)
    assert [one.next_ms for one in mended([row(LAST_MS)], NOON_MS, zones)] == [right]


def test_a_schedule_is_mended_in_its_own_zone_and_one_whose_zone_is_not_known_stays() -> None:
    nightly = row(LAST_MS, "0 3 * * *", timezone="East")
    (mended_one,) = mended([nightly, row(LAST_MS, timezone="Nowhere")], NOON_MS, zones)
    assert zoned_text(mended_one.next_ms, EAST)[10:] == "T03:00:00+02:00"


def test_an_instant_that_comes_twice_is_another_job_and_one_that_is_tried_twice_the_same() -> None:
    first = row(NOON_MS)
    assert run_key(first, NOON_MS) == run_key(row(NOON_MS), NOON_MS)
    followed = after_run(first, NOON_MS, "job-1", None)
    assert run_key(msgspec.structs.replace(followed, next_ms=NOON_MS), NOON_MS) != run_key(first, NOON_MS)


# What passed while nobody looked.

HOURLY = "0 * * * *"
ONE_OCLOCK = NOON_MS - NOON_MS % HOUR_MS


def at(hours: int) -> int:
    return ONE_OCLOCK + hours * HOUR_MS


def test_an_instant_is_followed_by_the_next_one_in_the_zone() -> None:
    (instants, following, text) = turn(row(at(0), HOURLY), at(0) + 900, None)
    assert (instants, following.next_ms, text) == ((at(0),), at(0), "")
    followed = after_run(following, at(0), "job", None)
    assert (followed.next_ms, followed.last_job, followed.ran_job, followed.ran_ms) == (at(1), "job", "job", at(0))
    daily = after_run(row(at(0), "0 3 * * *", timezone="East"), at(0), "job", EAST)
    assert zoned_text(daily.next_ms, EAST)[10:] == "T03:00:00+02:00"


def test_an_instant_that_could_not_be_followed_leaves_the_job_before_it() -> None:
    before = row(at(0), HOURLY, last_job="job-1", ran_ms=at(-1), ran_job="job-2")
    assert after_run(before, at(0), "", None) == msgspec.structs.replace(before, next_ms=at(1))


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_instants_of_the_last_minute_are_run_each_whatever_is_caught_up_with(catch_up: str) -> None:
    late = row(NOON_MS - NOON_MS % MINUTE_MS, "* * * * *", catch_up=catch_up)
    assert turn(late, late.next_ms + MINUTE_MS, None).instants == (late.next_ms, late.next_ms + MINUTE_MS)


@pytest.mark.parametrize(
    ("catch_up", "instants"), [("one", (at(4),)), ("all", (at(0), at(1), at(2), at(3), at(4))), ("skip", ())]
)
def test_what_was_missed_is_caught_up_with_as_the_schedule_says(catch_up: str, instants: tuple[int, ...]) -> None:
    now_ms = at(4) + 20 * MINUTE_MS
    turned = turn(row(at(0), HOURLY, catch_up=catch_up), now_ms, None)
    assert turned.instants == instants
    followed = turned.row
    for instant in instants:
        assert instant >= followed.next_ms
        followed = after_run(followed, instant, f"job-{instant}", None)
    assert followed.next_ms == at(5)


def test_what_is_skipped_is_told_and_an_instant_of_just_now_is_run_nevertheless() -> None:
    missed = row(at(0), HOURLY, catch_up="skip", timezone="East")
    instants, following, text = turn(missed, at(3) + 1000, EAST)
    assert (instants, following.next_ms) == ((at(3),), at(3))
    since, until = zoned_text(at(0), EAST), zoned_text(at(3), EAST)
    assert text == f"the schedule s was not followed: what was due from {since} until before {until} is skipped"


def test_of_more_instants_than_are_made_up_for_the_last_ones_are_run_and_the_others_told() -> None:
    missed = row(at(0), HOURLY, catch_up="all")
    limits = ScheduleLimits(caught_up=3)
    instants, following, text = turn(missed, at(5) + 20 * MINUTE_MS, None, limits)
    assert (instants, following.next_ms) == ((at(3), at(4), at(5)), at(3))
    assert text == (
        "the schedule s was due more than 3 times while it was not followed: the last 3 are made up for, and none from"
        f" {zoned_text(at(0), None)} until before {zoned_text(at(3), None)}: talka jobs schedules backfill runs those"
    )
    assert turn(missed, at(2) + 20 * MINUTE_MS, None, limits).instants == (at(0), at(1), at(2)), "as many as may be"
    again = turn(following, at(5) + 30 * MINUTE_MS, None, limits)
    assert (again.instants, again.text) == (instants, ""), "after a restart they are the same"
    one = turn(missed, at(5) + 20 * MINUTE_MS, None, ScheduleLimits(caught_up=1))
    assert one.instants == (at(5),)


@pytest.mark.parametrize(("catch_up", "count"), [("one", 1), ("all", 5)])
def test_a_manager_that_dies_before_it_noted_a_run_submits_the_same_job_again(catch_up: str, count: int) -> None:
    kept = row(at(0), HOURLY, catch_up=catch_up)
    submitted: list[tuple[int, str]] = []
    while kept.next_ms <= at(4):
        for has_died in (True, False):
            instants, kept, _ = turn(kept, at(4) + 20 * MINUTE_MS, None)
            submitted.append((instants[0], run_key(kept, instants[0])))
            if not has_died:
                kept = after_run(kept, instants[0], f"job-{instants[0]}", None)
    assert len(submitted) == 2 * count
    assert len(set(submitted)) == len({instant for instant, _ in submitted}) == count


def test_what_was_due_during_a_pause_is_caught_up_with_when_it_ends() -> None:
    for catch_up, next_ms in (("skip", at(3)), ("one", at(0)), ("all", at(0))):
        paused = row(at(0), HOURLY, catch_up=catch_up, is_paused=True)
        found = resumed(paused, at(2) + 1000, None)
        assert (found.is_paused, found.next_ms) == (False, next_ms)
        again = resumed(found, at(2) + 2000, None)
        assert again == found, "one that is not paused stays as it is"
    assert resumed(row(at(9), HOURLY, catch_up="skip", is_paused=True), at(2), None).next_ms == at(9)


# Backfills.


def test_a_backfill_is_of_the_instants_from_one_up_to_another_in_the_zone() -> None:
    nightly = row(at(0), "0 3 * * *", timezone="East")
    now_ms = instant_of("2026-11-18", "to", EAST)
    found = backfilled(nightly, "2026-11-01", "2026-11-04", now_ms, EAST)
    assert [zoned_text(one, EAST) for one in found] == [f"2026-11-0{day}T03:00:00+02:00" for day in (1, 2, 3)]
    assert backfilled(nightly, "2026-11-01T03:00", "2026-11-02T03:00", now_ms, EAST) == found[:1]
    assert backfilled(nightly, "2026-11-01T01:00:00Z", "2026-11-02T01:00+00:00", now_ms, EAST) == found[:1]
    assert backfilled(nightly, "2026-11-01T04:00", "2026-11-02T02:59", now_ms, EAST) == []


@pytest.mark.parametrize(
    ("begin", "end", "says"),
    [
        ("2026-11-04", "2026-11-04", "from 2026-11-04 is not before to 2026-11-04"),
        ("2026-11-01", "2026-11-19", "to 2026-11-19 has not come yet"),
        ("monday", "2026-11-04", "from: 'monday' is neither a date nor an instant: write 2026-11-16"),
        ("2026-11-01", "2026-11-31", "to: '2026-11-31' is neither a date nor an instant"),
        ("1969-12-31", "2026-11-04", "from: 1969-12-31 is not an instant that schedules are reckoned for"),
        ("2026-10-01", "2026-11-01", "was due more than 5 times from 2026-10-01 to 2026-11-01: the first 5 are those"
            " before 2026-10-06T03:00:00\\+00:00"),
    ],
)  # fmt: skip
def test_a_backfill_that_cannot_be_is_refused_with_a_sentence(begin: str, end: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        backfilled(row(at(0), "0 3 * * *"), begin, end, instant_of("2026-11-18", "to", None), None, 5)


def test_an_instant_that_was_run_is_known_whoever_ran_it() -> None:
    followed = row(at(0), HOURLY, last_job="job-0")
    keys = {run_key(followed, at(0)): "job-1", backfill_key("s", at(1)): "job-2"}
    keys |= {f"schedule/s/{at(2)}/{at(0)}/x": "of a schedule s/…", f"schedule/s/{at(3)}": "of somebody else"}
    assert known_runs("s", [at(0), at(1), at(2), at(3)], keys) == {at(0): "job-1", at(1): "job-2"}
    begins = known_keys("s", [at(0), at(1)])
    assert all(any(key.startswith(begin) for begin in begins) for key in list(keys)[:2])


def test_a_job_knows_the_instant_it_is_for() -> None:
    assert due_values(at(0), EAST) == {"scheduled_for": zoned_text(at(0), EAST), "scheduled_day": "2026-09-21"}
    late = round(datetime(2026, 11, 16, 22, 30, tzinfo=UTC).timestamp() * 1000)
    assert due_values(late, EAST)["scheduled_day"] == "2026-11-17", "it is another day there"
    assert due_values(late, None)["scheduled_for"] == "2026-11-16T22:30:00+00:00"
    assert after_job(row(1), late, "job").ran_ms == late


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
