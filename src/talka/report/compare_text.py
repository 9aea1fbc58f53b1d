"""A comparison in words and as text."""

import math
from collections.abc import Sequence
from typing import Final

from talka.report.comparison import (
    LETTERS,
    ROWS_SHOWN,
    SAID,
    TOO_SHORT,
    WORDS,
    ComparedRun,
    Comparison,
    ComparisonRow,
    Comparisons,
)
from talka.report.text import (
    Style,
    TextPage,
    padded,
    rate_text,
    room_for,
    seconds_text,
    time_text,
)
from talka.stats.comparison import WORSE, Unit

TINY: Final = 1e-6
"""Milliseconds, or per second: what is left of sums of decimals, and none of what was measured."""

# Words.


def headline_of(rows: Sequence[ComparisonRow], name: str, within: float) -> str:
    """The worst difference; or how much is the same, and what cannot be told."""
    different = [row for row in rows if row.is_different]
    if not different:
        return undecided_text(rows, within)
    row = different[0]
    least = ""
    if row.unit == "share":
        least = f", at least {points_text(row.at_least or 0.0)}"
    elif row.a:
        least = f", at least {percent_text((row.at_least or 0.0) / row.a)}"
    size = difference_text(row)
    size = f"{size[:-1]}{least})" if size.endswith(")") else size + least
    return f"{name} {SAID[row.verdict]}: {name_of(row, rows)} {size}."


def undecided_text(rows: Sequence[ComparisonRow], within: float) -> str:
    share = f"± {within * 100:g} %"
    unknown = [row for row in rows if row.answer == "cannot tell"]
    if not unknown:
        return f"Same: all {len(rows)} figures are within {share}."
    if all(row.difference is None for row in rows):
        return f"{TOO_SHORT} {would_tell_text(unknown)}"
    worst = next((row for row in unknown if row.difference is not None), unknown[0])
    example = f" (such as {name_of(worst, rows)}, {difference_text(worst)})" if worst.difference is not None else ""
    return (
        f"Cannot tell: no difference beyond noise, but {len(unknown)} of {len(rows)} figures are not known to "
        f"{share}{example}. {would_tell_text(unknown)}"
    )


def would_tell_text(unknown: Sequence[ComparisonRow]) -> str:
    """How long runs would tell what could not be told."""
    lengths = [row.needs_s for row in unknown if row.needs_s is not None]
    if not lengths:
        return "Longer runs would not tell: run both in turn, several times, on a machine with less to do."
    whom = "them" if len(lengths) == len(unknown) else f"{len(lengths)} of them"
    return f"Runs of about {about_text(max(lengths))} would tell {whom}."


def about_text(seconds: float) -> str:
    """Rounded up: it is only about so long."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds > size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"


def length_text(row: ComparisonRow) -> str:
    match row.needs:
        case "length":
            return f"runs of about {about_text(row.needs_s or 0.0)} would tell"
        case "no lag":
            return "a generator that is less late would tell"
        case "repeats":
            return "runs of both in turn would tell"
        case None:
            return "longer runs would tell"


def may_be_chance(row: ComparisonRow) -> bool:
    return row.low is not None and row.high is not None and row.low <= 0 <= row.high


def noise_text(row: ComparisonRow) -> str:
    """What may have caused a difference that is not blamed on the target."""
    if row.beyond_noise:
        return ""
    if may_be_chance(row) or row.answer == "same":
        return ", within noise"
    return (
        ", within what the generator was late" if row.needs == "no lag" else ", within what runs of one thing differ by"
    )


def name_of(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> str:
    """As short as it can be told apart from the others."""
    what = f"{WORDS[row.measure]} {row.stat}" if row.stat else WORDS[row.measure]
    workflows = {other.workflow for other in rows if other.workflow}
    if row.step is None:
        return f"all: {what}"
    steps = {(other.workflow, other.step) for other in rows if other.step}
    if len(steps) == 1 and row.unit == "time":
        return what
    return f"{row.workflow}.{row.step} {what}" if len(workflows) > 1 else f"{row.step} {what}"


def difference_text(row: ComparisonRow) -> str:
    """The size of a difference, with its share of A where there is one."""
    text = amount_text(row.difference or 0.0, row.unit)
    return text if row.relative is None or row.unit == "share" else f"{text} ({percent_text(row.relative)})"


def amount_text(amount: float, unit: Unit) -> str:
    if unit == "share":
        return points_text(amount)
    if abs(amount) < TINY:
        amount = 0.0
    text = time_text(abs(amount)) if unit == "time" else rate_text(abs(amount))
    return f"{sign_of(amount)}{text}"


def sign_of(amount: float) -> str:
    return "+" if amount > 0 else "-" if amount < 0 else "±"


def percent_text(share: float) -> str:
    percent = round(share * 100, 1 if abs(share) < 0.1 else 0)
    return f"{sign_of(percent)}{abs(percent):,.{1 if abs(share) < 0.1 else 0}f} %"


def points_text(share: float) -> str:
    """Percentage points: "+1 %" of a share could mean either."""
    points = round(share * 100, 2)
    return f"{sign_of(points)}{abs(points):.2f} points"


def value_text(value: float | None, unit: Unit) -> str:
    if value is None:
        return "–"
    if unit == "share":
        return f"{value * 100:.2f} %"
    return time_text(value) if unit == "time" else rate_text(value)


def interval_text(row: ComparisonRow) -> str:
    if row.low is None or row.high is None:
        return ""
    low, high = amount_text(row.low, row.unit), amount_text(row.high, row.unit)
    return f"{low.removesuffix(' points')} to {high}"


def needs_text(row: ComparisonRow) -> str:
    if row.answer != "cannot tell":
        return ""
    return about_text(row.needs_s) if row.needs_s is not None else row.needs or ""


def cells_of(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    amount = "–" if row.difference is None else amount_text(row.difference, row.unit)
    share = "" if row.relative is None or row.unit == "share" else percent_text(row.relative)
    values = (value_text(row.a, row.unit), value_text(row.b, row.unit))
    return (row.verdict, name_of(row, rows), *values, amount, share, interval_text(row), needs_text(row))


def style_of(row: ComparisonRow) -> Style | None:
    if row.answer == "cannot tell":
        return "yellow"
    return None if row.verdict == "same" else "red" if row.verdict in WORSE else "green"


def facts_of(run: ComparedRun) -> str:
    return f"{run.file} · {run.name} · {run.status} after {seconds_text(run.duration_s)} · started {run.started_at}"


Cell = tuple[str, Style | None]
TITLES: Final = ("VERDICT", "", "A", "B", "B - A", "", "INTERVAL", "NEEDS")
NUMBERS: Final = range(2, 6)
INTERVAL: Final = 6
NEEDS: Final = 7
"""Columns of the table."""
RULE_MARKS: Final[dict[str, tuple[str, Style]]] = {
    "held": ("✓", "green"),
    "broken": ("✗", "red"),
    "cannot tell": ("?", "yellow"),
}


def comparisons_text(found: Comparisons, *, width: int = 100, color: bool = False) -> str:
    """The headline, the rules, then a table with the worst first: of more than two runs, with a column for each. The
    last line has no end of line."""
    page = TextPage(width, color=color)
    is_several = len(found.comparisons) > 1
    for comparison in found.comparisons:
        worst = style_of(comparison.rows[0])
        page.sentence(headline_text(comparison, is_several), indent=0, style="bold" if worst is None else worst)
    for name, run in zip(LETTERS, [found.base, *(one.b for one in found.comparisons)], strict=False):
        page.sentence(facts_of(run), lead=f"{name}  ")
    for warning in dict.fromkeys(warning for comparison in found.comparisons for warning in comparison.warnings):
        page.sentence(warning, lead="! ", style="yellow")
    for comparison in found.comparisons:
        show_notes(page, comparison, is_several)
    if is_several:
        show_columns(page, found)
    else:
        show_table(page, found.comparisons[0].rows)
    page.gap()
    page.sentence(found.comparisons[0].method, indent=0)
    return page.text()


def headline_text(comparison: Comparison, is_one_of: bool) -> str:
    lead = f"{comparison.names[1]}: " if is_one_of and not comparison.different else ""
    return lead + comparison.headline


def show_notes(page: TextPage, comparison: Comparison, is_one_of: bool) -> None:
    one, other = comparison.names
    if comparison.rules:
        page.section(f"RULES FOR {other}" if is_one_of else "RULES")
        room = room_for([rule.rule for rule in comparison.rules], page.width // 2)
        for rule in comparison.rules:
            mark, style = RULE_MARKS[rule.answer]
            page.sentence(f"{rule.answer}: {rule.shown}", lead=f"{mark} {padded(rule.rule, room)}  ", style=style)
    for name, steps in ((one, comparison.only_in_a), (other, comparison.only_in_b)):
        if steps:
            page.section(f"ONLY IN {name} OF {one} AND {other}" if is_one_of else f"ONLY IN {name}")
            page.sentence(", ".join(steps))


def show_table(page: TextPage, rows: Sequence[ComparisonRow]) -> None:
    shown = rows[: max(ROWS_SHOWN, sum(row.is_different for row in rows))]
    table = [TITLES, *(cells_of(row, rows) for row in shown)]
    rooms = [room_for([cells[column] for cells in table], page.width // 3) for column in range(len(TITLES))]
    columns = list(range(len(TITLES)))
    if not any(cells[NEEDS] for cells in table[1:]):
        columns.remove(NEEDS)
    if 2 * len(columns) + sum(rooms[column] for column in columns) > page.width:
        # Intervals give way where it is narrow: they are long, and the other forms have them.
        columns.remove(INTERVAL)
    page.gap()
    for cells, row in zip(table, [None, *shown], strict=True):
        parts = [
            f"{cells[column]:>{rooms[column]}}" if column in NUMBERS else padded(cells[column], rooms[column])
            for column in columns
        ]
        style = "bold" if row is None else style_of(row)
        page.line((f"  {parts[0]}", style), "  ", "  ".join(parts[1:]))
    show_rest(page, len(rows) - len(shown))


def show_rest(page: TextPage, count: int) -> None:
    if count > 0:
        page.sentence(f"and {count} more rows without a difference (--json and --html have them all)")


def show_columns(page: TextPage, found: Comparisons) -> None:
    """A row for each figure, a column for each run: its value, how far it is from A, and the verdict."""
    by_figure = [{figure_of(row): row for row in comparison.rows} for comparison in found.comparisons]
    figures = figures_of(found)
    every_row = list(figures.values())
    different = sum(any(rows[figure].is_different for rows in by_figure if figure in rows) for figure in figures)
    shown = list(figures)[: max(ROWS_SHOWN, different)]
    lines: list[list[Cell]] = [[("", None), ("A", "bold")]]
    lines[0] += [(comparison.names[1], "bold") for comparison in found.comparisons]
    for figure in shown:
        first = figures[figure]
        cells: list[Cell] = [(name_of(first, every_row), None), (value_text(first.a, first.unit), None)]
        cells += [column_cell(rows.get(figure)) for rows in by_figure]
        lines.append(cells)
    rooms = [room_for([cells[column][0] for cells in lines], page.width // 2) for column in range(len(lines[0]))]
    page.gap()
    for cells in lines:
        page.line(*((f"  {padded(text, room)}", style) for (text, style), room in zip(cells, rooms, strict=True)))
    show_rest(page, len(figures) - len(shown))


def figures_of(found: Comparisons) -> dict[tuple[object, ...], ComparisonRow]:
    """Every figure of any of the comparisons, the worst first, with one of its rows."""
    rows = [row for comparison in found.comparisons for row in comparison.rows]
    # Each comparison has its worst first: a figure stands where the worst of its rows does.
    places = [place for comparison in found.comparisons for place in range(len(comparison.rows))]
    order: dict[tuple[object, ...], ComparisonRow] = {}
    for _, _, row in sorted(
        zip((not row.is_different for row in rows), places, rows, strict=True), key=lambda it: it[:2]
    ):
        order.setdefault(figure_of(row), row)
    return order


def figure_of(row: ComparisonRow) -> tuple[object, ...]:
    return row.workflow, row.step, row.measure, row.stat


def column_cell(row: ComparisonRow | None) -> Cell:
    if row is None:
        return "–", None
    apart = ""
    if row.difference is not None:
        in_points = row.unit == "share" or row.relative is None
        apart = f"{amount_text(row.difference, row.unit) if in_points else percent_text(row.relative or 0.0)} "
    return f"{value_text(row.b, row.unit)} {apart}{row.verdict}", style_of(row)
