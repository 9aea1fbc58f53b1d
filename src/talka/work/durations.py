"""Times and rates as people write them: "1m30s", "500ms", "30/m". Read exactly, without floats on the way."""

import json
import math
import re
from fractions import Fraction
from typing import Final

from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND

LONGEST_NS: Final = 30 * 86_400 * SECOND
"""30 days: a longer time is a slip far more often than a wish."""
HIGHEST_RATE: Final = 10_000_000
"""Arrivals per second."""

UNIT_NS: Final = {
    "d": 86_400 * SECOND,
    "h": 3_600 * SECOND,
    "m": 60 * SECOND,
    "s": SECOND,
    "ms": MILLISECOND,
    "us": 1_000,
    "ns": 1,
}
UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600}

# The digits are bounded: reading a number of millions of digits takes minutes.
NUMBER: Final = r"[0-9]{1,20}(?:\.[0-9]{1,20})?"
# Every unit once, largest first.
DURATION: Final = re.compile("".join(f"(?:(?P<{unit}>{NUMBER}){unit})?" for unit in UNIT_NS))
RATE: Final = re.compile(f"(?P<number>{NUMBER})(?:/(?P<unit>[smh]))?")
BARE: Final = re.compile(NUMBER)

SHOWN_CHARACTERS: Final = 60


class BadDuration(Invalid):
    """What was written is not a length of time, or not one Talka accepts."""


class BadRate(Invalid):
    """What was written is not a rate, or not one Talka accepts."""


def parse_duration(text: str | int | float, *, what: str = "duration", longest_ns: int = LONGEST_NS) -> int:
    """Nanoseconds, rounded to whole ones. A bare number means seconds; `what` names the value in an error."""
    if isinstance(text, str):
        amount_ns = _written_ns(text.strip())
    else:
        seconds = _number(text)
        amount_ns = None if seconds is None else seconds * SECOND
    if amount_ns is None:
        raise BadDuration(
            f'{what} = {shown(text)} is not a duration: write a number and a unit, such as "30s", "1m30s" or "500ms"'
        )
    if amount_ns < 0:
        raise BadDuration(f"{what} = {shown(text)} is negative: a duration is 0 or more")
    if amount_ns > longest_ns:
        raise BadDuration(f"{what} = {shown(text)} is too long: write at most {longest_ns // UNIT_NS['d']} days")
    return round(amount_ns)


def format_duration(ns: int) -> str:
    """Short, exact, and read back by `parse_duration`: "1m30s", "500ms", "1.5s"."""
    if ns < 0:
        return "-" + format_duration(-ns)
    days, rest_ns = divmod(ns, UNIT_NS["d"])
    hours, rest_ns = divmod(rest_ns, UNIT_NS["h"])
    minutes, rest_ns = divmod(rest_ns, UNIT_NS["m"])
    parts = [f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if count]
    if rest_ns and not parts:
        unit = next(unit for unit in ("s", "ms", "us", "ns") if rest_ns >= UNIT_NS[unit])
        return _decimal(Fraction(rest_ns, UNIT_NS[unit]), digits=9) + unit
    if rest_ns or not parts:
        parts.append(_decimal(Fraction(rest_ns, SECOND), digits=9) + "s")
    return "".join(parts)


def tenths_text(ns: int) -> str:
    """Of a wait that people are told of: to a tenth of a second, and never none."""
    return f"{ns / SECOND:.1f} s" if ns >= SECOND // 10 else "< 0.1 s"


def parse_rate(text: str | int | float, *, what: str = "rate") -> Fraction:
    """Arrivals per second, exactly as written. A bare number means per second; `what` names the value in an error."""
    if isinstance(text, str):
        found = RATE.fullmatch(text.strip())
        per_s = Fraction(found["number"]) / UNIT_S[found["unit"] or "s"] if found else None
    else:
        per_s = _number(text)
    if per_s is None:
        raise BadRate(
            f"{what} = {shown(text)} is not a rate: write arrivals per second, minute or hour, "
            'such as 500, "2.5/s", "30/m" or "2000/h"'
        )
    if per_s < 0:
        raise BadRate(f"{what} = {shown(text)} is negative: a rate is 0 or more")
    if per_s > HIGHEST_RATE:
        raise BadRate(f"{what} = {shown(text)} is too high: write at most {HIGHEST_RATE:,} arrivals per second")
    return per_s


def format_rate(per_s: Fraction) -> str:
    """In the first of the units s, m, h in which six decimals hold it exactly; else rounded, per second."""
    for unit, unit_s in UNIT_S.items():
        if (per_s * unit_s * 10**6).denominator == 1:
            return f"{_decimal(per_s * unit_s, digits=6)}/{unit}"
    return f"{float(per_s):.6g}/s"


def shown(value: object) -> str:
    """The value as an error repeats it: as it would be written, and never longer than a line."""
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return "a number of very many digits"  # Python itself refuses to print the longest
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _written_ns(text: str) -> Fraction | None:
    if BARE.fullmatch(text):
        return Fraction(text) * SECOND
    # There are two Unicode characters for micro, and keyboards offer either.
    found = DURATION.fullmatch(text.replace("µs", "us").replace("μs", "us"))
    if found is None or not text:
        return None
    return sum((Fraction(found[unit] or 0) * unit_ns for unit, unit_ns in UNIT_NS.items()), Fraction(0))


def _number(value: object) -> Fraction | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, float) and math.isfinite(value):
        # By way of its decimal form: 0.1 means a tenth, not the nearest binary fraction.
        return Fraction(repr(float(value)))
    return None


def _decimal(value: Fraction, *, digits: int) -> str:
    """A value that this many decimals hold exactly, without trailing zeros."""
    whole, rest = divmod(round(value * 10**digits), 10**digits)
    return f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".") if rest else str(whole)
