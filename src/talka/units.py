"""Lengths of time in nanoseconds, the unit of every time in Talka, and the time that never comes."""

from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000 * MICROSECOND
SECOND: Final = 1_000 * MILLISECOND
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

NEVER: Final = (1 << 63) - 1
"""Later than every time on a clock. Its negative is earlier than every one. It fits a signed column of 64 bits."""
