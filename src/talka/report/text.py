"""A page of plain text for people, and how numbers look on it.

What is shown comes from files and servers too, so it is cleaned first: nothing but colours ever reaches a terminal.
"""

import math
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from talka.units import SECOND
from talka.work.durations import format_duration

NARROWEST: Final = 40
"""Below this many columns nothing is readable, so lines are rather too long."""

Style = Literal["bold", "green", "red", "yellow"]
Part: TypeAlias = str | tuple[str, Style | None]
SGR: Final[dict[Style, str]] = {"bold": "\x1b[1m", "green": "\x1b[32m", "red": "\x1b[31m", "yellow": "\x1b[33m"}
RESET: Final = "\x1b[0m"
GLUE: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line may end; it is a plain one in the end."""


class TextPage:
    """Lines, none wider than the page and none with spaces at its end."""

    def __init__(self, width: int, *, color: bool = False) -> None:
        self.width = max(width, NARROWEST)
        self._color = color
        self._lines: list[str] = []

    def line(self, *parts: Part) -> None:
        """What does not fit is cut off at the end, with an ellipsis."""
        room, shown = self.width, ""
        for part in parts:
            text, style = (part, None) if isinstance(part, str) else part
            text = cut(cleaned(text).replace(GLUE, " "), room)
            room -= columns(text)
            shown += self._painted(text, style)
        self._lines.append(shown.rstrip())

    def sentence(self, text: str, *, indent: int = 2, lead: str = "", style: Style | None = None) -> None:
        """A text of any length in as many lines as it takes. The first one starts with `lead`, all at one column."""
        lead = " " * indent + lead
        text = cleaned(text)
        room = max(self.width - columns(lead), 10)
        # textwrap counts characters. Where some take two columns, half the room is always enough.
        wrapped = textwrap.wrap(text, room if columns(text) == len(text) else room // 2, break_on_hyphens=False)
        for number, part in enumerate(wrapped or [""]):
            self.line((lead, style) if number == 0 else " " * columns(lead), (part, style))

    def fitted(self, *parts: Part, hang: int = 4) -> None:
        """A line where there is room for it; else as many as it takes, all but the first one indented by `hang`."""
        text = "".join(part if isinstance(part, str) else part[0] for part in parts).rstrip()
        if columns(text) <= self.width:
            self.line(*parts)
            return
        words = cleaned(text)
        first = len(words) - len(words.lstrip())
        room = self.width if columns(words) == len(words) else self.width // 2
        for line in textwrap.wrap(
            words.strip(), room, initial_indent=" " * first, subsequent_indent=" " * hang, break_on_hyphens=False
        ):
            self.line(line)

    def facts(self, facts: Sequence[str]) -> None:
        self.sentence(" · ".join(glued(fact) for fact in facts))

    def row(self, label: str, text: str) -> None:
        self.sentence(text, lead=f"{label:<10} ")

    def gap(self) -> None:
        if self._lines:
            self._lines.append("")

    def section(self, title: str, text: str = "") -> None:
        self.gap()
        self.line((title, "bold"), text)

    def text(self) -> str:
        return "\n".join(self._lines)

    def _painted(self, text: str, style: Style | None) -> str:
        core = text.strip()
        if not self._color or style is None or not core:
            return text
        before, _, after = text.partition(core)
        return f"{before}{SGR[style]}{core}{RESET}{after}"


# The end of a job.


def sign(is_good: bool) -> str:
    return "✓" if is_good else "✗"


def counted_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def significant(value: float) -> str:
    """Three significant digits, and never fewer than the whole ones."""
    if not math.isfinite(value):
        return str(value)
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(0, 2 - magnitude), 6)}f}"


def time_text(ms: float) -> str:
    # Rounded first: 999.9 ms is "1.00 s", not "1000 ms".
    ms = float(f"{ms:.3g}")
    if ms >= 1000:
        return f"{significant(ms / 1000)} s"
    if not ms:
        return "0 ms"
    return f"{significant(ms)} ms" if ms >= 1 else f"{significant(ms * 1000)} µs"


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 59.95 else format_duration(round(seconds) * SECOND)


def rate_text(per_s: float) -> str:
    return f"{significant(per_s)}/s" if per_s else "0/s"


def share_text(part: int, whole: int) -> str:
    """Never rounded to none or to all: "0 %" failed says that not one did."""
    if part <= 0 or whole <= 0:
        return "0 %"
    if part >= whole:
        return "100 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "<0.01 %"
    return ">99.99 %" if percent > 99.99 else f"{percent:.2f} %"


def bytes_text(count: int) -> str:
    amount = float(f"{count:.3g}")
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{significant(amount)} {unit}"
        amount /= 1000
    return f"{significant(amount)} TB"


def number_text(value: float) -> str:
    return f"{value:,.0f}" if value == round(value, 0) and abs(value) < 1e15 else f"{value:,.4g}"


def cleaned(text: str) -> str:
    """One line without control characters: a server's text must not steer the terminal."""
    if text.isprintable():
        return text

    def shown(char: str) -> str:
        if char.isprintable() or char == GLUE:
            return char
        return " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"

    return "".join(map(shown, text))


def glued(text: str) -> str:
    """A short text that is not broken over two lines."""
    return text.replace(" ", GLUE) if len(text) <= NARROWEST else text


def columns(text: str) -> int:
    """Columns of a terminal: ideographs and their like take two."""
    return len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text if char > "\u10ff")


def cut(text: str, room: int) -> str:
    if columns(text) <= room:
        return text
    while text and columns(text) >= room:
        text = text[: min(room - 1, len(text) - 1)] if room > 1 else ""
    return text + "…" if room > 0 else ""


def padded(text: str, room: int) -> str:
    text = cut(cleaned(text), room)
    return text + " " * (room - columns(text))


def room_for(texts: Sequence[str], most: int) -> int:
    return min(max((columns(cleaned(text)) for text in texts), default=0), most)
