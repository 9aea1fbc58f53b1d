"""Schedules as cron writes them: minute, hour, day of the month, month, day of the week; in UTC or in a time zone.

As in Vixie's cron: when neither the day of the month nor that of the week begins with a star, either is enough.

Where clocks are set forward, a time that is not there is due as much later as they were set: 02:30 is 03:30. Where they
are set back, a time that is there twice is due when it is there first; but a schedule whose hour is a star is due both
times, as it is due in every hour that passes. Decision: docs/decisions/0051-when-a-schedule-is-due.md.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.work.durations import shown

MINUTE_MS: Final = 60_000
DAY_MINUTES: Final = 1440
CHARACTERS_LIMIT: Final = 200
LAST_YEAR: Final = 9000
"""Python's calendar ends at 9999."""
SEARCH_MONTHS: Final = 41 * 12
"""Nothing that can be is rarer than a given weekday on a leap day: once in 40 years around a century without one."""
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
LAST_MS: Final = (date(LAST_YEAR, 1, 1).toordinal() - EPOCH_DAY) * DAY_MINUTES * MINUTE_MS
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MS: Final = timedelta(milliseconds=1)
OFFSET_MS: Final = 26 * 60 * MINUTE_MS
"""No zone is further from UTC than a day, so that nothing beyond this has to do with an instant."""
HOURS: Final = tuple(range(24))

LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
PART: Final = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[a-z0-9]{1,9})(?:-(?P<high>[a-z0-9]{1,9}))?)(?:/(?P<step>[0-9]{1,9}))?"
)


class BadCron(Invalid):
    """What was written is no schedule, or none that is ever due."""


class Field(msgspec.Struct, frozen=True):
    name: str
    lowest: int
    highest: int
    names: dict[str, int] = {}


FIELDS: Final = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of the month", 1, 31),
    Field("month", 1, 12, {name: number for number, name in enumerate(MONTHS, start=1)}),
    Field("day of the week", 0, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)
WEEK: Final = FIELDS[-1]


class Cron(msgspec.Struct, frozen=True):
    """When something is due. Each field holds its values in order; 0 is Sunday."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_either: bool
    """A day of the month or a day of the week; else both at once."""

    @classmethod
    def parse(cls, text: str) -> "Cron":
        words = NICKNAMES.get(text.strip().lower(), text).lower().split()
        if len(text) > CHARACTERS_LIMIT:
            raise BadCron(f"schedule {shown(text)} is longer than {CHARACTERS_LIMIT} characters")
        if len(words) == 1 and words[0].startswith("@"):
            raise BadCron(f"schedule {shown(text)} is not one of {', '.join(NICKNAMES)}")
        if len(words) != len(FIELDS):
            raise BadCron(
                f"schedule {shown(text)} has {len(words)} fields, not 5: minute, hour, day of the month, month and day "
                'of the week, such as "30 2 * * mon-fri"'
            )
        minutes, hours, days, months, weekdays = (
            _values(field, word, text) for field, word in zip(FIELDS, words, strict=True)
        )
        weekdays = tuple(sorted(dict.fromkeys(value % 7 for value in weekdays)))
        is_either = not words[2].startswith("*") and not words[4].startswith("*")
        if not is_either and not any(days[0] <= LONGEST_MONTHS[month - 1] for month in months):
            raise BadCron(f"schedule {shown(text)} is never due: none of its months has a day {days[0]}")
        return cls(text, minutes, hours, days, months, weekdays, is_either)

    def next_after(self, ms_utc: int, zone: tzinfo | None = None) -> int:
        """The first instant after this one at which it is due, in milliseconds since 1970 as well. `zone` None: UTC."""
        if not 0 <= ms_utc < LAST_MS:
            raise BadCron(f"schedules are reckoned from 1970 to the year {LAST_YEAR}, not from {ms_utc} ms on")
        if zone is None:
            return self._next_written(ms_utc)
        near = (max(ms_utc - OFFSET_MS, 0), ms_utc, ms_utc + OFFSET_MS)
        offset, shifts = offset_ms(zone, ms_utc), [offset_ms(zone, one) for one in near]
        # Only where the clocks are set near by can a time of before be due after this instant.
        written = ms_utc + offset - (max(shifts) - min(shifts))
        first = LAST_MS
        while True:
            written = self._next_written(written)
            if written - self._greatest_offset(zone, min(first, written)) > first:
                return first
            for instant in self._instants(written, zone):
                if ms_utc < instant < first:
                    first = instant

    def last_until(self, ms_utc: int, after: int, zone: tzinfo | None = None) -> int | None:
        """The last instant up to this one, and after another, at which it is due."""
        if after >= ms_utc or (found := self.next_after(after, zone)) > ms_utc:
            return None
        low, high = found // MINUTE_MS, ms_utc // MINUTE_MS + 1
        while high - low > 1:
            middle = (low + high) // 2
            following = self.next_after(middle * MINUTE_MS - 1, zone)
            if following <= ms_utc:
                low, found = middle, following
            else:
                high = middle
        return found

    def due(self, begin: int, end: int, zone: tzinfo | None = None) -> Iterator[int]:
        """All instants in [begin, end) at which it is due, oldest first."""
        instant = self.next_after(max(begin - 1, 0), zone)
        while instant < end:
            yield instant
            instant = self.next_after(instant, zone)

    def _instants(self, written: int, zone: tzinfo) -> tuple[int, ...]:
        """When a clock on a wall of the zone shows this."""
        shown_at = EPOCH + timedelta(milliseconds=written)
        first, second = (_offset(zone, shown_at.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
        # Before the clocks are set forward the offset is the smaller one, and so is that of what is not there.
        is_twice = first > second and self.hours == HOURS
        return (written - first, written - second) if is_twice else (written - first,)

    def _greatest_offset(self, zone: tzinfo, ms: int) -> int:
        return max(offset_ms(zone, one) for one in (max(ms - OFFSET_MS, 0), ms, ms + OFFSET_MS))

    def _next_written(self, ms: int) -> int:
        """As `next_after`, of a clock that is never set."""
        day, minute = divmod(ms // MINUTE_MS + 1, DAY_MINUTES)
        start = date.fromordinal(EPOCH_DAY + day)
        if self._is_day(start):
            hour, minute = divmod(minute, 60)
            place = bisect_left(self.hours, hour)
            if self.hours[place : place + 1] == (hour,):
                if minute <= self.minutes[-1]:
                    due = self.minutes[bisect_left(self.minutes, minute)]
                    return (day * DAY_MINUTES + hour * 60 + due) * MINUTE_MS
                place += 1
            if place < len(self.hours):
                return (day * DAY_MINUTES + self.hours[place] * 60 + self.minutes[0]) * MINUTE_MS
        due = self.hours[0] * 60 + self.minutes[0]
        return (self._next_day(start) * DAY_MINUTES + due) * MINUTE_MS

    def _is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_in_month, is_in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return is_in_month or is_in_week if self.is_either else is_in_month and is_in_week

    def _next_day(self, after: date) -> int:
        """In days since 1970."""
        ordinal = after.toordinal() + 1
        for _ in range(SEARCH_MONTHS):
            month = date.fromordinal(ordinal).replace(day=1)
            following = _following_month(month).toordinal()
            while month.month in self.months and ordinal < following:
                if self._is_day(date.fromordinal(ordinal)):
                    return ordinal - EPOCH_DAY
                ordinal += 1
            ordinal = following
        raise AssertionError(f"schedule {self.text} is never due")  # pragma: no cover - refused when it is read


def offset_ms(zone: tzinfo, ms_utc: int) -> int:
    """By how much clocks of the zone are ahead of UTC at this instant."""
    return _offset(zone, (EPOCH + timedelta(milliseconds=ms_utc)).astimezone(zone))


def _offset(zone: tzinfo, shown_at: datetime) -> int:
    offset = zone.utcoffset(shown_at)
    assert offset is not None  # what knows no offset is no zone
    return offset // ONE_MS


def _following_month(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def _values(field: Field, word: str, text: str) -> tuple[int, ...]:
    values: dict[int, None] = {}
    for part in word.split(","):
        found = PART.fullmatch(part)
        if found is None:
            raise _bad(field, part, text, "is neither a number, a range, a step nor a star")
        if found["star"]:
            low, high = field.lowest, field.highest
        else:
            low = _number(field, found["low"], part, text)
            high = low
            if found["high"]:
                high = _number(field, found["high"], part, text)
                if field is WEEK and high == 0 < low:
                    high = 7  # fri-sun
            elif found["step"]:
                high = field.highest
        if low > high:
            raise _bad(field, part, text, "ends before it begins: write it as two ranges")
        step = int(found["step"] or 1)
        if not 1 <= step <= field.highest:
            raise _bad(field, part, text, f"has a step that is not from 1 to {field.highest}")
        values.update(dict.fromkeys(range(low, high + 1, step)))
    return tuple(sorted(values))


def _number(field: Field, word: str, part: str, text: str) -> int:
    number = field.names.get(word, int(word) if word.isdecimal() else None)
    if number is None:
        choices = f" or {', '.join(field.names)}" if field.names else ""
        raise _bad(field, part, text, f"is not a number{choices}")
    if not field.lowest <= number <= field.highest:
        raise _bad(field, part, text, f"is not from {field.lowest} to {field.highest}")
    return number


def _bad(field: Field, part: str, text: str, problem: str) -> BadCron:
    return BadCron(f"schedule {shown(text)}: {field.name} {shown(part)} {problem}")
