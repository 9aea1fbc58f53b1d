"""How a frame of the live view is laid out: lines that fit, sections that share the height, bars and sparklines."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from talka.report.text import cleaned, columns, cut
from talka.units import SECOND

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PULSE_NS: Final = 4 * SECOND
"""A bar without a known end goes to and fro in so long."""

Style = Literal["", "bold", "dim", "green", "red", "yellow", "cyan"]
Part: TypeAlias = str | tuple[str, Style]
Line: TypeAlias = tuple[tuple[str, Style], ...]
Item = TypeVar("Item")


class Size(NamedTuple):
    columns: int
    rows: int


class FrameView(NamedTuple):
    """A frame. No line is wider than the terminal, and there is one line less than it has rows."""

    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return "\n".join("".join(text for text, _ in line) for line in self.lines)


class Section(NamedTuple):
    """Lines that belong together. `lines` gets how many there may be, and makes the best of it."""

    rank: int
    """Where room is short, the lowest is served first."""
    least: int
    wish: int
    lines: Callable[[int], list[Line]]


# What fits.


def fitted(sections: Sequence[Section], room: int) -> list[Line]:
    """Every section its least, in the order of ranks, then as much as it wishes; blank lines if there is room left."""
    given = [0 for _ in sections]
    ranked = sorted(range(len(sections)), key=lambda number: sections[number].rank)
    for wanted in ([section.least for section in sections], [section.wish for section in sections]):
        for number in ranked:
            extra = min(wanted[number] - given[number], room)
            # Less than its least would say nothing.
            if extra > 0 and given[number] + extra >= sections[number].least:
                given[number] += extra
                room -= extra
    lines: list[Line] = []
    for number, section in enumerate(sections):
        if given[number]:
            if lines and room > 0:
                room -= 1
                lines.append(())
            lines += section.lines(given[number])
    return lines


def selected(items: Sequence[Item], room: int, urgency: Callable[[Item], tuple[int, ...]]) -> list[Item]:
    """The most urgent, in their own order, with a line left for saying how many are not shown."""
    if len(items) <= room:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda number: urgency(items[number]))
    return [items[number] for number in sorted(ranked[: max(room - 1, 1)])]


def chosen(
    items: Sequence[Item],
    room: int,
    urgency: Callable[[Item], tuple[int, ...]],
    line: Callable[[Item], Line],
    noun: str = "",
) -> list[Line]:
    shown = selected(items, room, urgency)
    return [line(item) for item in shown] + (more(80, len(items) - len(shown), noun) if room > 1 else [])


def titled(
    title: str,
    rank: int,
    items: Sequence[Item],
    width: int,
    urgency: Callable[[Item], tuple[int, ...]],
    line: Callable[[Item], Line],
) -> Section:
    """With a heading, where there is room for more than one line."""

    def lines(room: int) -> list[Line]:
        if room <= min(1, len(items)):
            return chosen(items, room, urgency, line)
        return [styled(width, (title, "dim")), *chosen(items, room - 1, urgency, line)]

    return Section(rank, min(1, len(items)), len(items) + 1 if items else 0, lines)


def more(width: int, hidden: int, noun: str) -> list[Line]:
    return (
        [styled(width, (f"… and {hidden} more {noun}{'s' if noun and hidden > 1 else ''}".rstrip(), "dim"))]
        if hidden
        else []
    )


def styled(width: int, *parts: Part) -> Line:
    """A line that fits. Texts of users and servers are cleaned: nothing but our styles steers the terminal."""
    line: list[tuple[str, Style]] = []
    for part in parts:
        given: tuple[str, Style] = (part, "") if isinstance(part, str) else part
        text, style = cut(cleaned(given[0]), width), given[1]
        width -= columns(text)
        if text:
            line.append((text, style))
    return tuple(line)


# Figures.


def sparkline(values: Sequence[float | None]) -> str:
    """One block for each value, from 0 up to the highest; a gap where there is none."""
    highest = max((value for value in values if value is not None), default=0) or 1
    top = len(BLOCKS) - 1
    return "".join(" " if value is None else BLOCKS[min(top, round(value / highest * top))] for value in values)


def bar(share: float, room: int) -> list[Part]:
    halves = round(min(max(share, 0.0), 1.0) * room * 2)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return [(full, "green"), ("─" * (room - len(full)), "dim")]


def pulse(now: int, room: int) -> list[Part]:
    """A bar for what has no known end: a piece of it goes to and fro."""
    piece = max(room // 6, 1)
    way = room - piece
    phase = now % PULSE_NS / PULSE_NS
    before = round(way * (2 * phase if phase < 0.5 else 2 - 2 * phase))
    return [("─" * before, "dim"), ("━" * piece, "green"), ("─" * (way - before), "dim")]


def clock_text(ns: int, *, up: bool = False) -> str:
    """1:05, or 2:01:05. `up`: a second that has begun counts, as for time that is left."""
    seconds = -(-max(ns, 0) // SECOND) if up else max(ns, 0) // SECOND
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
