"""When schedules are due, by a clock that may be wrong for a moment.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.units import SECOND
from talka.work.dags.cron import LAST_MS, Cron
from talka.work.dags.dag import ParamValue
from talka.work.dags.records import ScheduleRow

UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def due(rows: Iterable[ScheduleRow], now_ms: int) -> list[ScheduleRow]:
    return [row for row in rows if row.next_ms <= now_ms]


def run_key(row: ScheduleRow) -> str:
    """Of the job that is submitted when a schedule is due: the same until the row has changed, so that it is one job
    also when the manager dies in between. An instant that comes twice, because the clock went back, is another job."""
    return f"schedule/{row.name}/{row.next_ms}/{row.last_job}"


def due_values(due_ms: int) -> dict[str, ParamValue]:
    """What a schedule gives the job that it submits: the instant it was due, and its date."""
    at = datetime.fromtimestamp(due_ms // 1000, UTC)
    return {"scheduled_for": at.isoformat(), "scheduled_day": at.date().isoformat()}


def after_run(row: ScheduleRow, now_ms: int, last_job: str) -> ScheduleRow:
    """As it is once it was followed at this instant."""
    try:
        following = Cron.parse(row.cron).next_after(now_ms)
    except (
        Invalid
    ):  # at the end of the calendar: the clock is wrong, and the schedule is looked at again when it is not
        following = LAST_MS
    return msgspec.structs.replace(row, next_ms=following, last_job=last_job)


def mended(rows: Iterable[ScheduleRow], now_ms: int) -> list[ScheduleRow]:
    """Those whose next instant was reckoned by a clock that was ahead, with the right one.

    Between now and the instant after it nothing can be due: a row that says a later one was written when it was later.
    """
    found = []
    for row in rows:
        try:
            following = Cron.parse(row.cron).next_after(now_ms)
        except Invalid:
            continue  # nothing better can be said of it
        if row.next_ms > following:
            found.append(msgspec.structs.replace(row, next_ms=following))
    return found


def jump_text(jump_ns: int, count: int = 0) -> str:
    """What is told of a clock that jumped, with how many schedules were mended."""
    told = f"the clock of this machine went {'back' if jump_ns < 0 else 'forward'} by {_about(abs(jump_ns))}"
    if count:
        told += ": 1 schedule was recomputed" if count == 1 else f": {count} schedules were recomputed"
    return told


def ahead_text(count: int) -> str:
    """Of schedules that were mended though no jump was seen."""
    number = "a schedule was" if count == 1 else f"{count} schedules were"
    return f"{number} reckoned by a clock that was ahead, and recomputed by the one of now"


def _about(ns: int) -> str:
    seconds = max(1, round(ns / SECOND))
    unit, size_s = next(one for one in UNITS if seconds >= 2 * one[1] or seconds % one[1] == 0)
    number = round(seconds / size_s)
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
