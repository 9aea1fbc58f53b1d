"""Charts as SVG inside HTML: axes, lines, bands and a legend, readable on a phone and on a wide screen.

The plot stretches with the page, its labels do not: they stand at shares of the width, outside the part that is scaled.
Nothing here needs a script or a style attribute, so a strict content security policy shows it. Colours and sizes are
classes, which the page's style sheet defines. Lines carry the values they were drawn from, for the script of the page
(`html_script.py`) to show under the pointer.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from talka.report.text import cleaned
from talka.units import SECOND
from talka.work.durations import format_duration

SIDE: Final = 1000
"""Units of a plot's width and height: finer than the pixels of most screens."""
AVERAGES: Final = 100
EXTREMES: Final = 240
"""Stretches of time of which the lowest and the highest value are drawn."""
MOST_TICKS: Final = 7
"""As many labels as fit side by side on a phone."""
TOO_FAR: Final = 1e18
"""Nothing we measure is beyond; arithmetic with it is still safe."""
TIME_STEPS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200)

Paint = Literal["main", "second", "third", "fourth", "fifth", "bad", "plan"]
Kind = Literal["count", "ms", "percent", "time", "percentile"]
"""What the numbers of an axis are, which tells how to write them."""
Point = tuple[float, float]
Part = tuple[float, float, float]
"""The start and the end of a stretch of time, and the value in it."""


class Cell(NamedTuple):
    """What was measured in a stretch of time; None: nothing was."""

    start: float
    width: float
    value: float | None


class Average(NamedTuple):
    start: float
    end: float
    mean: float
    low: float
    high: float


class ChartLine(NamedTuple):
    """A line in pieces: between them nothing was measured."""

    label: str
    paint: Paint
    pieces: Sequence[Sequence[Point]]
    spread: Sequence[Sequence[tuple[float, float, float]]] = ()
    """(x, low, high), drawn as a pale area."""
    is_filled: bool = False


class Band(NamedTuple):
    start: float
    end: float
    label: str


class Mark(NamedTuple):
    """An upright line at a value of x that has a name. Left of the line, or right of it."""

    x: float
    label: str
    is_left: bool


@dataclass(frozen=True, slots=True)
class Axis:
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False
    kind: Kind = "count"

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies outside is at the nearer end."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)


def escaped(text: str) -> str:
    """Text from anywhere as text of a page: no markup, no control characters."""
    return html.escape(cleaned(text))


# Axes.


def nice_step(span: float, most: int) -> float:
    """The least of 1, 2, 5, 10, 20 … that cuts the span into at most so many parts."""
    return round_up(max(span, 1e-12) / most)


def steps_up(step: float, high: float) -> list[float]:
    return [step * number for number in range(int(high / step + 1e-9) + 1)]


def linear_axis(highest: float, label: Callable[[float], str], *, least: float = 1.0, least_step: float = 0.0) -> Axis:
    """From 0 to a round number at or above `highest`; at least up to `least`."""
    highest = min(max(highest, least), TOO_FAR)
    step = max(nice_step(highest, 4), least_step)
    high = math.ceil(highest / step - 1e-9) * step
    return Axis(0.0, high, tuple((at, label(at)) for at in steps_up(step, high)), kind=kind_of(label))


def kind_of(label: Callable[[float], str]) -> Kind:
    return "ms" if label is milliseconds_label else "percent" if label is percent_label else "count"


def time_axis(length_s: float) -> Axis:
    length_s = min(max(length_s, 0.1), TOO_FAR)
    fitting = (step for step in TIME_STEPS_S if length_s / step <= MOST_TICKS - 1)
    step = next(fitting, None) or nice_step(length_s / 86_400, MOST_TICKS - 1) * 86_400
    return Axis(0.0, length_s, tuple((at, instant_label(at)) for at in steps_up(step, length_s)), kind="time")


def log_axis(low: float, high: float, label: Callable[[float], str]) -> Axis:
    """From a round number to a round number, at least a factor of four apart."""
    low = min(max(low, 1e-3), TOO_FAR)
    high = min(max(high, low * 1.01), TOO_FAR * 10)
    low, high = round_down(low), round_up(high)
    if high < low * 4:
        low, high = round_down(low * 0.99), round_up(high * 1.01)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for factors, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 4)):
        ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= MOST_TICKS:
            break
    return Axis(low, high, tuple((tick, label(tick)) for tick in ticks), is_log=True, kind=kind_of(label))


def round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return next(factor * power for factor in (5, 2, 1) if factor * power <= value * (1 + 1e-9))


def round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def value_axis(values: Iterable[float], label: Callable[[float], str]) -> Axis:
    """From 0; logarithmic where the small values would lie flat on the ground beside the large ones."""
    found = [value for value in values if value > 0]
    if found and max(found) > 30 * min(found):
        return log_axis(min(found), max(found), label)
    # No time was measured finer than a microsecond.
    return linear_axis(max(found, default=0.0), label, least=0.001 if found else 1.0)


def percentile_axis(count: int) -> Axis:
    """Each part of equal width holds a tenth of what the part before it left. As far as `count` samples can tell."""
    high = min(max(math.log10(max(count, 1)), 1.0), 6.0)
    # Farther out, 0 and 50 would be written over each other.
    percents = [*([0.0] if high < 3 else []), 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999]
    places = [(percentile_place(percent), f"{percent:g}") for percent in percents]
    ticks = tuple((place, f"{name} %") for place, name in places if place <= high + 1e-6)
    return Axis(0.0, high, ticks, kind="percentile")


def percentile_place(percent: float) -> float:
    return -math.log10(1 - percent / 100)


# Labels of ticks.


def count_label(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or (value >= size and unit != "k"):
            return f"{value / size:,.6g}{unit}"
    return f"{value:,.6g}"


def percent_label(value: float) -> str:
    return f"{value:.6g} %"


def milliseconds_label(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:,.6g} s"
    return f"{value:.6g} ms" if value >= 1 or not value else f"{value * 1000:.6g} µs"


def instant_label(seconds: float) -> str:
    return "0" if not seconds else format_duration(round(seconds * 10) * (SECOND // 10))


# Fewer points than were measured.


def pieces_of(cells: Iterable[Cell]) -> list[list[Part]]:
    """(start, end, value) of what was measured, cut where there is a gap."""
    pieces: list[list[Part]] = []
    reached = -math.inf
    for start, width, value in sorted(cells, key=lambda cell: cell.start):
        if value is None or not all(map(math.isfinite, (start, width, value))) or abs(start) + abs(width) > TOO_FAR:
            continue
        end = start + max(width, 0.0)
        # Spans are whole tenths of a second, but their sums are floats.
        if start > reached + 1e-3:
            pieces.append([])
        pieces[-1].append((start, end, min(value, TOO_FAR)))
        reached = max(reached, end)
    return pieces


def averages(cells: Iterable[Cell], length: float, stretches: int = AVERAGES) -> list[list[Average]]:
    """Means over at most about so many stretches, each with the lowest and the highest value that is in it."""
    bucket = max(nice_step(length, stretches), 0.1)
    found: list[list[Average]] = []
    for piece in pieces_of(cells):
        found.append([average_of(group) for group in grouped(piece, bucket)])
    return found


def grouped(piece: Sequence[Part], bucket: float) -> list[list[Part]]:
    """Parts that begin in the same stretch of this width."""
    groups: dict[int, list[Part]] = {}
    for part in piece:
        groups.setdefault(math.floor(part[0] / bucket + 1e-6), []).append(part)
    return list(groups.values())


def average_of(parts: Sequence[Part]) -> Average:
    values = [value for _, _, value in parts]
    lengths = [end - start for start, end, _ in parts]
    whole = sum(lengths)
    mean = sum(value * length for value, length in zip(values, lengths, strict=True)) / whole if whole else values[0]
    return Average(parts[0][0], parts[-1][1], mean, min(values), max(values))


def average_line(
    label: str,
    paint: Paint,
    cells: Sequence[Cell],
    length: float,
    *,
    is_filled: bool = False,
    stretches: int = AVERAGES,
) -> ChartLine:
    found = averages(cells, length, stretches)
    pieces = [through([(part.start, part.end, part.mean) for part in piece], length) for piece in found]
    spread = [
        [(at, part.low, part.high) for part in piece for at in (part.start, part.end)]
        for piece in found
        if any(part.high > part.low for part in piece)
    ]
    return ChartLine(label, paint, pieces, spread, is_filled)


def through(parts: Sequence[Part], length: float) -> list[Point]:
    """A line through the middles of short stretches and along long ones, from the first start to the last end."""
    points: list[Point] = []
    for start, end, value in parts:
        is_long = end - start > length / 50
        points += [(start, value), (end, value)] if is_long else [((start + end) / 2, value)]
    return [(parts[0][0], parts[0][2]), *points, (parts[-1][1], parts[-1][2])]


def extremes_line(
    label: str, paint: Paint, cells: Sequence[Cell], length: float, *, stretches: int = EXTREMES
) -> ChartLine:
    """The lowest and the highest value of each of so many stretches: a spike stays as high as it was."""
    bucket = max(length / stretches, 1e-9)
    pieces = []
    for piece in pieces_of(cells):
        kept: list[Part] = []
        for group in grouped(piece, bucket):
            chosen = {min(group, key=lambda part: part[2]), max(group, key=lambda part: part[2])}
            # The line begins and ends where the measuring did.
            kept += sorted(chosen | {piece[0], piece[-1]}.intersection(group))
        pieces.append(through(kept, length))
    return ChartLine(label, paint, pieces)


# Drawing.


def chart(
    name: str,
    title: str,
    description: str,
    x_axis: Axis,
    y_axis: Axis,
    lines: Sequence[ChartLine],
    *,
    unit: str = "",
    x_unit: str = "",
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    empty: str = "Nothing was measured.",
) -> str:
    """A figure with its title, legend and plot. `name` is unique on the page; the description is for who cannot see
    it."""
    drawn = [line for line in lines if any(line.pieces)]
    legend = "".join(legend_item(line.label, line.paint) for line in drawn)
    if any(line.spread and line.paint != "plan" for line in drawn):
        legend += '<li><svg class="swatch"><rect class="spread main" width="100%" height="100%"/></svg>range</li>'
    if bands and drawn:
        legend += '<li><svg class="swatch"><rect class="band" width="100%" height="100%"/></svg>shard lost</li>'
    caption = caption_of(title, unit, legend)
    if not drawn:
        return f'<figure class="chart">{caption}<p class="empty">{escaped(empty)}</p></figure>'
    plot = (
        f"{grid(x_axis, y_axis)}{''.join(band(item, x_axis) for item in bands)}"
        f'<svg class="lines" viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" width="100%" height="100%">'
        f"{''.join(drawing(line, x_axis, y_axis) for line in drawn)}</svg>"
        f"{''.join(mark(item, x_axis) for item in marks)}"
    )
    below = f'<p class="x-unit">{escaped(x_unit)}</p>' if x_unit else ""
    framed = frame(name, title, description, plot, scales(x_axis, y_axis))
    return f'<figure class="chart">{caption}{framed}{below}</figure>'


def caption_of(title: str, unit: str, legend: str) -> str:
    small = f" <small>{escaped(unit)}</small>" if unit else ""
    return f'<figcaption><b>{escaped(title)}{small}</b><ul class="legend">{legend}</ul></figcaption>'


def frame(name: str, title: str, description: str, plot: str, attributes: str = "") -> str:
    return (
        f'<div class="plot"><svg class="frame" role="img" aria-labelledby="{name}-title {name}-text"{attributes}>'
        f'<title id="{name}-title">{escaped(title)}</title><desc id="{name}-text">{escaped(description)}</desc>'
        f"{plot}</svg></div>"
    )


def scales(x_axis: Axis, y_axis: Axis) -> str:
    """What the script needs to say where the pointer is: kind, ends and shape of x, and the kind of y."""
    shape = "log" if x_axis.is_log else "linear"
    return f' data-x="{x_axis.kind} {x_axis.low:.6g} {x_axis.high:.6g} {shape}" data-y="{y_axis.kind}"'


def legend_item(label: str, paint: Paint) -> str:
    stroke = f'<line class="line {paint}" x1="0" x2="100%" y1="50%" y2="50%"/>'
    return f'<li><svg class="swatch">{stroke}</svg>{escaped(label)}</li>'


def grid(x_axis: Axis, y_axis: Axis) -> str:
    parts = ['<g class="grid">']
    for value, label in y_axis.ticks:
        at = percent_at(1 - y_axis.place(value))
        parts.append(f'<line x1="0" x2="100%" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="y" x="-8" y="{at}" dy=".32em">{escaped(label)}</text>')
    for value, label in x_axis.ticks:
        at = percent_at(x_axis.place(value))
        parts.append(f'<line class="tick" x1="{at}" x2="{at}" y1="0" y2="100%"/>')
        parts.append(f'<text class="x" x="{at}" y="100%" dy="1.5em">{escaped(label)}</text>')
    return "".join(parts) + "</g>"


def band(item: Band, x_axis: Axis) -> str:
    start, end = x_axis.place(item.start), x_axis.place(item.end)
    return (
        f'<rect class="band" x="{percent_at(start)}" width="{percent_at(max(end - start, 0.0))}" height="100%">'
        f"<title>{escaped(item.label)}</title></rect>"
    )


def mark(item: Mark, x_axis: Axis) -> str:
    at, side = percent_at(x_axis.place(item.x)), ("left", -4) if item.is_left else ("right", 4)
    return (
        f'<g class="mark"><line x1="{at}" x2="{at}" y1="0" y2="100%"/>'
        f'<text class="{side[0]}" x="{at}" dx="{side[1]}" y="0" dy="1em">{escaped(item.label)}</text></g>'
    )


def drawing(line: ChartLine, x_axis: Axis, y_axis: Axis) -> str:
    def placed(points: Iterable[Point]) -> list[tuple[int, int]]:
        return [(round(SIDE * x_axis.place(x)), round(SIDE * (1 - y_axis.place(y)))) for x, y in points]

    outlines = []
    for piece in line.spread:
        there = [(x, high) for x, _, high in piece]
        back = [(x, low) for x, low, _ in reversed(piece)]
        outlines.append(path(placed([*there, *back])) + "z")
    drawn = [path(placed(piece)) for piece in line.pieces if piece]
    parts = []
    if line.is_filled:
        ground = [f"{path(placed(piece))}V{SIDE}H{placed(piece[:1])[0][0]}z" for piece in line.pieces if piece]
        parts.append(f'<path class="area {line.paint}" d="{"".join(ground)}"/>')
    if outlines:
        parts.append(f'<path class="spread {line.paint}" d="{"".join(outlines)}"/>')
    values = " ".join(values_text(piece, x_axis) for piece in line.pieces if piece)
    said = f' data-name="{escaped(line.label)}" data-values="{values}"'
    parts.append(f'<path class="line {line.paint}"{said} d="{"".join(drawn)}"/>')
    return "".join(parts)


def values_text(points: Iterable[Point], x_axis: Axis) -> str:
    """x,value of every point: x as it is drawn, the value as it was measured."""
    last, parts = "", []
    for x, value in points:
        part = f"{round(SIDE * x_axis.place(x))},{value:.4g}"
        if part != last:
            parts.append(part)
        last = part
    return " ".join(parts)


def path(points: Sequence[tuple[int, int]]) -> str:
    """In steps from point to point, which are shorter than coordinates. A single point is a dot."""
    (x, y), steps = points[0], []
    last_x, last_y = x, y
    for next_x, next_y in points[1:]:
        if (next_x, next_y) != (last_x, last_y):
            steps.append(f"{next_x - last_x} {next_y - last_y}")
        last_x, last_y = next_x, next_y
    return f"M{x} {y}l{' '.join(steps) or '0 0'}".replace(" -", "-")


def percent_at(share: float) -> str:
    return f"{round(share * 100, 2):g}%"


def spark(shares: Sequence[float], label: str) -> str:
    """A small distribution to compare rows of a table by."""
    highest = max(shares, default=0.0)
    if highest <= 0:
        return ""
    width = SIDE / len(shares)
    points = [(0, SIDE)]
    for number, share in enumerate(shares):
        y = round(SIDE * (1 - share / highest))
        points += [(round(number * width), y), (round((number + 1) * width), y)]
    return (
        f'<svg class="spark" role="img" viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none">'
        f'<title>{escaped(label)}</title><path class="area main solid" d="{path([*points, (SIDE, SIDE)])}z"/></svg>'
    )


class Whisker(NamedTuple):
    """A value with its interval, where they are known."""

    label: str
    value: float | None
    low: float | None
    high: float | None


def whiskers(
    name: str,
    title: str,
    description: str,
    labels: Sequence[str],
    y_axis: Axis,
    series: Sequence[tuple[str, Sequence[Whisker]]],
    *,
    unit: str = "",
) -> str:
    """Values with their intervals beside each other: a group for each label, and in it one for each of the series."""
    x_axis = Axis(0.0, float(len(labels)), tuple((number + 0.5, label) for number, label in enumerate(labels)))
    legend = "".join(
        f'<li><svg class="swatch"><circle class="run-{number}" cx="50%" cy="50%" r="4"/></svg>{escaped(label)}</li>'
        for number, (label, _) in enumerate(series)
    )
    drawn = "".join(
        whisker(item, x_axis.place(labels.index(item.label) + (number + 1) / (len(series) + 1)), y_axis, number, label)
        for number, (label, items) in enumerate(series)
        for item in items
        if item.value is not None
    )
    plot = frame(name, title, description, grid(x_axis, y_axis) + drawn)
    return f'<figure class="chart">{caption_of(title, unit, legend)}{plot}</figure>'


def whisker(item: Whisker, place: float, y_axis: Axis, number: int, series: str) -> str:
    value = item.value or 0.0
    x, y = percent_at(place), percent_at(1 - y_axis.place(value))
    said, reach = f"{series} {item.label}: {milliseconds_label(float(f'{value:.3g}'))}", ""
    if item.low is not None and item.high is not None:
        low, high = percent_at(1 - y_axis.place(item.low)), percent_at(1 - y_axis.place(item.high))
        reach = f'<line class="reach run-{number}" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
        ends = [milliseconds_label(float(f"{end:.3g}")) for end in (item.low, item.high)]
        said += f", {ends[0]} to {ends[1]}"
    return f'<g><title>{escaped(said)}</title>{reach}<circle class="run-{number}" cx="{x}" cy="{y}" r="4"/></g>'
