"""A summary in Markdown, appended to a file: made for the step summaries of CI systems."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from talka.report.document import ResultDocument, Step, Totals
from talka.report.summary import (
    STATS,
    all_samples,
    call_row,
    chosen,
    errors_of,
    failing_sentences,
    named,
    runs_text,
    sample_text,
)
from talka.report.text import bytes_text, cleaned, counted_text, rate_text, seconds_text, share_text, sign, time_text

ROWS_SHOWN: Final = 200
"""CI systems drop a summary that is too long, all of it."""
SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@-])")


def markdown(document: ResultDocument) -> str:
    parts = [
        headline(document),
        thresholds(document),
        totals(document),
        *steps(document),
        errors(document),
        checks(document),
        bullets("Warnings", document.warnings),
    ]
    return "\n\n".join(part for part in parts if part) + "\n\n"


def headline(document: ResultDocument) -> str:
    is_good = document.exit_code == 0
    name = f"## {sign(is_good)} {plain(document.job.name)}: {document.status}"
    exit_code = "" if is_good else f", exit code {document.exit_code}"
    facts = f"ran {seconds_text(document.duration_s)}, started {document.started_at}{exit_code}"
    sentences = [*document.reasons, *failing_sentences(document)]
    return "\n\n".join([name, facts, *(f"**{plain(sentence)}**" for sentence in sentences)])


def thresholds(document: ResultDocument) -> str:
    rows = [
        (sign(rule.passed), plain(rule.rule), plain(rule.workflow or "the whole job"), plain(rule.shown))
        for rule in document.thresholds
    ]
    return table("Thresholds", ("", "rule", "of", "measured"), rows)


def totals(document: ResultDocument) -> str:
    found = document.totals
    rows = [
        ("requests", f"{found.requests:,}", rate_text(found.rate_per_s)),
        ("ok", f"{found.ok:,}", share_text(found.ok, found.requests)),
        ("failed", f"{found.failed:,}", share_text(found.failed, found.requests)),
        ("interrupted", f"{found.interrupted:,}", ""),
        ("not sent", f"{found.not_sent:,}", ""),
        ("iterations", f"{found.iterations:,}", iterations_text(found)),
        ("connections", f"{found.connections:,}", counted_text(found.reconnects, "reconnect")),
        ("data", bytes_text(found.bytes_sent) + " sent", bytes_text(found.bytes_received) + " received"),
    ]
    return table("Totals", ("", "count", ""), rows)


def iterations_text(found: Totals) -> str:
    cut_off = f", {found.interrupted_iterations:,} cut off" if found.interrupted_iterations else ""
    return f"{found.dropped_iterations:,} dropped{cut_off}"


def steps(document: ResultDocument) -> Iterable[str]:
    for workflow in document.workflows:
        rows = [
            (indent + plain(row.name), plain(runs_text(row)), *times_of(row))
            for step in workflow.steps
            for indent, row in [("", step), *(("&emsp;", call_row(call)) for call in step.calls)]
        ]
        title = f"{plain(workflow.name)}: {plain(workflow.load)} ({workflow.model} model), {workflow.status}"
        yield table(title, ("step", "runs", *(f"response {stat}" for stat in STATS)), rows)


def times_of(step: Step) -> list[str]:
    times = step.response_time_ms
    return ["" if times is None else time_text(getattr(times, field)) for field in STATS.values()]


def errors(document: ResultDocument) -> str:
    rows = [
        (plain(name), kind, f"{count:,}")
        for name, step in named(document, lambda workflow: workflow.steps)
        for kind, count in errors_of(step).items()
    ]
    shown = [f"{sample.t_s:.1f} s {name}: {sample_text(sample)}" for name, sample in chosen(all_samples(document))]
    parts = [table("Errors", ("step", "kind", "count"), rows), bullets("", shown)]
    return "\n\n".join(part for part in parts if part)


def checks(document: ResultDocument) -> str:
    rows = []
    for name, check in named(document, lambda workflow: workflow.checks):
        mark = sign(not check.failed) if check.passed or check.failed else "-"
        rows.append((mark, plain(name), f"{check.passed:,}", f"{check.failed:,}"))
    return table("Checks", ("", "check", "passed", "failed"), rows)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows[:ROWS_SHOWN]]
    if len(rows) > ROWS_SHOWN:
        lines += ["", f"{len(rows) - ROWS_SHOWN:,} more are in the result."]
    return "\n".join(lines)


def bullets(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    head = [f"### {title}", ""] if title else []
    return "\n".join([*head, *(f"- {plain(text)}" for text in texts[:ROWS_SHOWN])])


def plain(text: str) -> str:
    """A text in one line that means nothing in Markdown or HTML: a server may have written it."""
    return SPECIAL.sub(r"\\\1", cleaned(text))
