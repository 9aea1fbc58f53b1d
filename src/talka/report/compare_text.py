"""A comparison in words, as text and as a page."""

import html
from collections.abc import Sequence
from typing import Final

from talka.report.comparison import NO_DIFFERENCE, ROWS_SHOWN, SAID, TOO_SHORT, WORDS, Comparison, Row
from talka.report.text import (
    Page,
    Style,
    cleaned,
    padded,
    rate_text,
    room_for,
    seconds_text,
    time_text,
)
from talka.stats.comparison import WORSE, Unit

# Words.


def headline_of(rows: Sequence[Row]) -> str:
    different = [row for row in rows if row.is_different]
    if not different:
        return TOO_SHORT if all(row.verdict == "too few" for row in rows) else NO_DIFFERENCE
    row = different[0]
    least = ""
    if row.unit == "share":
        least = f", at least {points_text(row.surely)}"
    elif row.a:
        least = f", at least {percent_text(row.surely / row.a)}"
    size = difference_text(row)
    size = f"{size[:-1]}{least})" if size.endswith(")") else size + least
    return f"B {SAID[row.verdict]}: {name_of(row, rows)} {size}."


def name_of(row: Row, rows: Sequence[Row]) -> str:
    """As short as it can be told apart from the others."""
    what = f"{WORDS[row.measure]} {row.stat}" if row.stat else WORDS[row.measure]
    workflows = {other.workflow for other in rows if other.workflow}
    if row.step is None:
        return f"all: {what}"
    steps = {(other.workflow, other.step) for other in rows if other.step}
    if len(steps) == 1 and row.unit == "time":
        return what
    return f"{row.workflow}.{row.step} {what}" if len(workflows) > 1 else f"{row.step} {what}"


def difference_text(row: Row) -> str:
    """The size of a difference, with its share of A where there is one."""
    text = amount_text(row.difference or 0.0, row.unit)
    return text if row.relative is None or row.unit == "share" else f"{text} ({percent_text(row.relative)})"


def amount_text(amount: float, unit: Unit) -> str:
    if unit == "share":
        return points_text(amount)
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


def interval_text(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    low, high = amount_text(row.low, row.unit), amount_text(row.high, row.unit)
    return f"{low.removesuffix(' points')} to {high}"


def cells_of(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    amount = "–" if row.difference is None else amount_text(row.difference, row.unit)
    share = "" if row.relative is None or row.unit == "share" else percent_text(row.relative)
    values = (value_text(row.a, row.unit), value_text(row.b, row.unit))
    return (row.verdict, name_of(row, rows), *values, amount, share, interval_text(row))


def style_of(row: Row) -> Style | None:
    if row.verdict == "too few":
        return "yellow"
    return None if row.verdict == "same" else "red" if row.verdict in WORSE else "green"


TITLES: Final = ("VERDICT", "", "A", "B", "B - A", "", "INTERVAL")


def comparison_text(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """The headline, the rules, then a table with the worst first. The last line has no end of line."""
    page = Page(width, color=color)
    worst = style_of(comparison.rows[0])
    page.sentence(comparison.headline, indent=0, style="bold" if worst in (None, "yellow") else worst)
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        facts = (
            f"{run.file} · {run.name} · {run.status} after {seconds_text(run.duration_s)} · started {run.started_at}"
        )
        page.sentence(facts, lead=f"{name}  ")
    for warning in comparison.warnings:
        page.sentence(warning, lead="! ", style="yellow")
    if comparison.rules:
        page.section("RULES")
        room = room_for([rule.rule for rule in comparison.rules], page.width // 2)
        for rule in comparison.rules:
            style: Style = "red" if rule.broken else "green"
            mark, word = ("✗", "broken") if rule.broken else ("✓", "held")
            page.line("  ", (mark, style), " ", padded(rule.rule, room), "  ", (word, style), f": {rule.shown}")
    show_table(page, comparison.rows)
    for name, steps in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if steps:
            page.section(f"ONLY IN {name}")
            page.sentence(", ".join(steps))
    page.gap()
    page.sentence(comparison.method, indent=0)
    return page.text()


def show_table(page: Page, rows: Sequence[Row]) -> None:
    different = sum(row.is_different for row in rows)
    shown = rows[: max(ROWS_SHOWN, different)]
    table = [TITLES, *(cells_of(row, rows) for row in shown)]
    rooms = [room_for([cells[column] for cells in table], page.width // 3) for column in range(len(TITLES))]
    page.gap()
    for cells, row in zip(table, [None, *shown], strict=True):
        parts = [padded(cells[0], rooms[0]), padded(cells[1], rooms[1])]
        parts += [f"{cell:>{room}}" for cell, room in zip(cells[2:6], rooms[2:6], strict=True)]
        style = "bold" if row is None else style_of(row)
        page.line((f"  {parts[0]}", style), "  ", "  ".join([*parts[1:], cells[6]]))
    if len(rows) > len(shown):
        page.sentence(f"and {len(rows) - len(shown)} more rows without a difference (--json and --html have them all)")


# A page for browsers.

STYLE: Final = """
:root { color-scheme: light dark; --worse: #b3261e; --better: #1b6e3c; --edge: #8886; }
@media (prefers-color-scheme: dark) { :root { --worse: #ff8a80; --better: #7fdca0; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--edge); white-space: nowrap; text-align: right; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.worse { color: var(--worse); font-weight: 600; } .better { color: var(--better); font-weight: 600; }
.warning { border-left: 3px solid; padding-left: .6rem; } footer { margin-top: 2rem; opacity: .75; }
"""


def comparison_html(comparison: Comparison) -> str:
    """One file of its own: nothing is loaded, and nothing runs."""
    kinds: dict[Style | None, str] = {"red": "worse", "green": "better"}
    worst = kinds.get(style_of(comparison.rows[0]), "")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Comparison</title>',
        f"<style>{STYLE}</style></head><body>",
        f'<h1 class="{worst}">{escaped(comparison.headline)}</h1><ul>',
    ]
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        facts = (
            f"{run.file} · {run.name} · {run.status} after {seconds_text(run.duration_s)} · started {run.started_at}"
        )
        parts.append(f"<li><b>{name}</b> {escaped(facts)}</li>")
    parts.append("</ul>")
    parts += [f'<p class="warning">{escaped(warning)}</p>' for warning in comparison.warnings]
    if comparison.rules:
        parts.append("<h2>Rules</h2><ul>")
        for rule in comparison.rules:
            kind, word = ("worse", "broken") if rule.broken else ("better", "held")
            parts.append(f'<li>{escaped(rule.rule)} <span class="{kind}">{word}</span>: {escaped(rule.shown)}</li>')
        parts.append("</ul>")
    titles = ("Verdict", "What", "A", "B", "B - A", "%", "Interval")
    parts.append('<div class="wide"><table><thead><tr>' + "".join(f"<th>{title}</th>" for title in titles))
    parts.append("</tr></thead><tbody>")
    for row in comparison.rows:
        verdict, *others = (escaped(cell) for cell in cells_of(row, comparison.rows))
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        parts.append(f'<tr><td class="{kinds.get(style_of(row), "")}">{verdict}</td>{cells}</tr>')
    parts.append("</tbody></table></div>")
    for name, steps in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if steps:
            parts.append(f"<h2>Only in {name}</h2><p>{escaped(', '.join(steps))}</p>")
    parts.append(f"<footer>{escaped(comparison.method)}</footer></body></html>")
    return "\n".join(parts) + "\n"


def escaped(text: str) -> str:
    return html.escape(cleaned(text))
