"""When schedules are due, by a clock that may be wrong for a moment.

Decisions: docs/decisions/0034-no-clock-decides-who-has-the-store.md, docs/decisions/0051-when-a-schedule-is-due.md.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec

from talka.errors import Invalid
from talka.units import SECOND
from talka.work.dags.cron import EPOCH, LAST_MS, MINUTE_MS, Cron
from talka.work.dags.dag import ParamValue
from talka.work.dags.records import ScheduleRow

UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))

Zones: TypeAlias = Callable[[str], tzinfo | None]
"""The zone of a name; None: UTC. Raises `Invalid`."""


class ScheduleLimits(NamedTuple):
    late_ms: int = MINUTE_MS
    """An instant that passed no longer ago than this is run as if it was now: nothing has to be caught up with."""
    caught_up: int = 100
    """Instants that `all` makes up for; of more, the last ones."""
    backfilled: int = 1000
    """Instants of one backfill."""


SCHEDULE_LIMITS: Final = ScheduleLimits()


class ScheduleTurn(NamedTuple):
    """What is to be done for a schedule that is due."""

    instants: tuple[int, ...]
    """That are run, oldest first."""
    row: ScheduleRow
    """As it is then, before the first of them."""
    text: str = ""
    """What people are told of instants that passed and are not run."""


def due(rows: Iterable[ScheduleRow], now_ms: int) -> list[ScheduleRow]:
    """One that waits for the end of the calendar waits for a better clock."""
    return [row for row in rows if row.next_ms <= now_ms and not row.is_paused and row.next_ms < LAST_MS]


def turn(row: ScheduleRow, now_ms: int, zone: tzinfo | None, limits: ScheduleLimits = SCHEDULE_LIMITS) -> ScheduleTurn:
    """Of one that is due. What it says stays the same until the row has changed, but for instants that come meanwhile,
    so that one that was run is not run anew because a manager died before it had noted that."""
    if now_ms >= LAST_MS:
        return ScheduleTurn((), msgspec.structs.replace(row, next_ms=LAST_MS))
    cron = Cron.parse(row.cron)
    last = cron.last_until(now_ms, row.next_ms, zone) or row.next_ms
    if row.next_ms >= now_ms - limits.late_ms:
        return ScheduleTurn((row.next_ms, *cron.due(row.next_ms + 1, now_ms + 1, zone)), row)
    if row.catch_up == "one":
        return ScheduleTurn((last,), row)
    if row.catch_up == "skip":
        fresh = tuple(cron.due(now_ms - limits.late_ms, now_ms + 1, zone))
        following = fresh[0] if fresh else cron.next_after(now_ms, zone)
        text = (
            f"the schedule {row.name} was not followed: what was due from {zoned_text(row.next_ms, zone)} until before"
            f" {zoned_text(following, zone)} is skipped"
        )
        return ScheduleTurn(fresh, msgspec.structs.replace(row, next_ms=following), text)
    instants = (row.next_ms, *islice(cron.due(row.next_ms + 1, now_ms + 1, zone), limits.caught_up))
    if len(instants) <= limits.caught_up:
        return ScheduleTurn(instants, row)
    instants = _latest(cron, last, row.next_ms, limits.caught_up, zone)
    text = (
        f"the schedule {row.name} was due more than {limits.caught_up} times while it was not followed: the last"
        f" {limits.caught_up} are made up for, and none from {zoned_text(row.next_ms, zone)} until before"
        f" {zoned_text(instants[0], zone)}: talka jobs schedules backfill runs those"
    )
    return ScheduleTurn(instants, msgspec.structs.replace(row, next_ms=instants[0]), text)


def _latest(cron: Cron, last: int, after: int, count: int, zone: tzinfo | None) -> tuple[int, ...]:
    """The last one, and those before it."""
    found = [last]
    while len(found) < count and (before := cron.last_until(found[-1] - 1, after, zone)) is not None:
        found.append(before)
    return tuple(reversed(found))


def run_key(row: ScheduleRow, instant_ms: int) -> str:
    """Of the job that is submitted for an instant: the same until the row has changed, so that it is one job also when
    the manager dies in between. An instant that comes twice, because the clock went back, is another job."""
    return f"{_key_of(row.name, instant_ms)}{row.last_job}"


def backfill_key(name: str, instant_ms: int) -> str:
    """Of the job that a backfill submits for an instant, however often it is asked to."""
    return f"backfill/{name}/{instant_ms}"


def known_keys(name: str, instants: Iterable[int]) -> list[str]:
    """With which keys of jobs begin that were submitted for one of these instants, among others."""
    return [begin for instant in instants for begin in (_key_of(name, instant), backfill_key(name, instant))]


def known_runs(name: str, instants: Iterable[int], keys: Mapping[str, str]) -> dict[int, str]:
    """The job of each of the instants that was run. `keys`: jobs by their keys."""
    begins = {_key_of(name, instant): instant for instant in instants}
    whole = {backfill_key(name, instant): instant for instant in begins.values()}
    found: dict[int, str] = {}
    for key, job in keys.items():
        begin, slash, _ = key.rpartition("/")  # no id has a slash, and names of other schedules may
        instant = whole.get(key) or begins.get(begin + slash)
        if instant is not None:
            found[instant] = job
    return found


def _key_of(name: str, instant_ms: int) -> str:
    return f"schedule/{name}/{instant_ms}/"


def after_run(row: ScheduleRow, instant_ms: int, job: str, zone: tzinfo | None) -> ScheduleRow:
    """As it is once this instant was followed. `job`: empty where none could be submitted."""
    try:
        following = Cron.parse(row.cron).next_after(instant_ms, zone)
    except (
        Invalid
    ):  # at the end of the calendar: the clock is wrong, and the schedule is looked at again when it is not
        following = LAST_MS
    row = msgspec.structs.replace(row, next_ms=following)
    return msgspec.structs.replace(after_job(row, instant_ms, job), last_job=job) if job else row


def after_job(row: ScheduleRow, instant_ms: int, job: str) -> ScheduleRow:
    """As it is once a job was submitted for an instant, whether that was due or not."""
    return msgspec.structs.replace(row, ran_ms=instant_ms, ran_job=job)


def resumed(row: ScheduleRow, now_ms: int, zone: tzinfo | None) -> ScheduleRow:
    """What was due while it was paused is caught up with as if no manager had been there; `skip` begins with now."""
    next_ms = row.next_ms
    if row.is_paused and row.catch_up == "skip" and next_ms <= now_ms:
        next_ms = Cron.parse(row.cron).next_after(now_ms, zone)
    return msgspec.structs.replace(row, is_paused=False, next_ms=next_ms)


def mended(rows: Iterable[ScheduleRow], now_ms: int, zones: Zones) -> list[ScheduleRow]:
    """Those whose next instant was reckoned by a clock that was ahead, with the right one.

    Between now and the instant after it nothing can be due: a row that says a later one was written when it was later.
    """
    found = []
    for row in rows:
        try:
            following = Cron.parse(row.cron).next_after(now_ms, zones(row.timezone))
        except Invalid:
            continue  # nothing better can be said of it
        if row.next_ms > following:
            found.append(msgspec.structs.replace(row, next_ms=following))
    return found


# Instants as people write them and are told.


def backfilled(
    row: ScheduleRow, begin: str, end: str, now_ms: int, zone: tzinfo | None, limit: int = SCHEDULE_LIMITS.backfilled
) -> list[int]:
    """Instants in [begin, end), oldest first. Without an offset they are in the schedule's zone."""
    first, last = instant_of(begin, "from", zone), instant_of(end, "to", zone)
    if first >= last:
        raise Invalid(
            f"from {begin} is not before to {end}: a backfill is of the instants from the one up to the other"
        )
    if last > now_ms:
        raise Invalid(f"to {end} has not come yet: a backfill is of instants that have passed")
    instants = list(islice(Cron.parse(row.cron).due(first, last, zone), limit + 1))
    if len(instants) > limit:
        raise Invalid(
            f"{row.name} was due more than {limit} times from {begin} to {end}: the first {limit} are those before"
            f" {zoned_text(instants[-1], zone)}; backfill one part after the other"
        )
    return instants


def instant_of(text: str, what: str, zone: tzinfo | None) -> int:
    """Milliseconds since 1970 of ISO 8601: a date, or date and time. Where clocks show it twice it is the first."""
    try:
        written = datetime.fromisoformat(text)
        if written.tzinfo is None:
            written = written.replace(tzinfo=zone or UTC)
        instant = (written - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise Invalid(
            f"{what}: {text[:64]!r} is neither a date nor an instant: write 2026-11-16 or 2026-11-16T03:00"
        ) from None
    if not 0 <= instant < LAST_MS:
        raise Invalid(f"{what}: {text} is not an instant that schedules are reckoned for, which are those from 1970 on")
    return instant


def zoned_text(instant_ms: int, zone: tzinfo | None) -> str:
    """ISO 8601 with the zone's offset, to the second."""
    return (EPOCH + timedelta(milliseconds=instant_ms)).astimezone(zone or UTC).isoformat(timespec="seconds")


def due_values(due_ms: int, zone: tzinfo | None = None) -> dict[str, ParamValue]:
    """What a schedule gives the job that it submits: the instant it was due, and its date there."""
    text = zoned_text(due_ms, zone)
    return {"scheduled_for": text, "scheduled_day": text[:10]}


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
