"""The result as one HTML file: the verdict first, then charts and tables. It asks for nothing else.

Its script shows values under the pointer, and nothing is missing without it. All that comes from a document is escaped,
and the page's own policy allows its style sheet and its script, by their digests, and nothing beside them.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from talka.report.charts import escaped
from talka.report.document import ErrorSample, ResultDocument, Step, Workflow, failures_of
from talka.report.html.charts_page import (
    STEPS_DRAWN,
    Distribution,
    distribution_charts,
    distribution_of,
    lost_text,
    step_charts,
    step_sparks,
    timeline_charts,
)
from talka.report.html.script import SCRIPT
from talka.report.html.style import HATCH, STYLE
from talka.report.plan import PlanDocument
from talka.report.summary import (
    STATS,
    all_samples,
    call_row,
    codes_of,
    cores_text,
    counted_labels,
    error_counts,
    facts_of,
    failing_sentences,
    failures_text,
    generator_text,
    held_text,
    metric_text,
    named,
    rule_text,
    unfinished_facts,
)
from talka.report.text import bytes_text, counted_text, cut, rate_text, seconds_text, share_text, sign, time_text
from talka.work.outcome import EXIT_CODES

ROWS_SHOWN: Final = 100
"""Of a table. Tests with more of anything have the rest in the result document."""
SAMPLES_SHOWN: Final = 5
TEXT_CHARACTERS_SHOWN: Final = 400
NAME_CHARACTERS_SHOWN: Final = 120
FACT_CHARACTERS_GLUED: Final = 40
CROSSED_SHOWN: Final = 5
THRESHOLDS_SHOWN: Final = 8

TWO_TIMES: Final = (
    "<b>Response time</b> runs from the intended start: what a user would feel. "
    "<b>Service time</b> runs from the send: what the server took."
)
TWO_MODELS: Final = (
    "<b>Open</b>: users arrive on a schedule, whatever became of earlier ones. "
    "<b>Closed</b>: users wait for their answers, so only requests under way meet a stalled server."
)
KINDS: Final = {
    "refused": "nothing accepted the connection",
    "dns": "the name has no address",
    "tls": "no secure connection came about",
    "reset": "the connection broke off",
    "timeout": "no answer in time",
    "protocol": "the answer did not keep to the protocol",
    "status": "the answer had a status that was not expected",
    "check": "a check did not pass",
    "exception": "the test's own code raised",
}


def html_report(document: ResultDocument, plan: PlanDocument | None = None) -> str:
    """The whole page. With a plan, its course is drawn beside what was reached."""
    distribution = distribution_of(document)
    tone, banner_html = banner(document)
    parts = [
        banner_html,
        tiles(document, distribution),
        thresholds(document),
        section("Warnings", bullets(document.warnings, kind="warnings")),
        over_time(document, plan),
        steps_over_time(document),
        distributions(distribution),
        *(steps(document, workflow, distribution) for workflow in document.workflows[:ROWS_SHOWN]),
        errors(document),
        checks(document),
        metrics(document),
        lost_shards(document),
        generator(document),
        environment(document),
    ]
    name = cut(document.job.name, NAME_CHARACTERS_SHOWN)
    return html_page(f"{sign(document.exit_code == 0)} {name} – Talka", tone, parts)


def html_page(title: str, tone: str, parts: Iterable[str]) -> str:
    """A page of its own. The parts are HTML, the title is text; the tone is good, unsure or bad."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        # Without it, browsers ask the server for an icon.
        '<link rel="icon" href="data:,"/>'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n"
        f'<body class="{tone}">{HATCH}<main>'
        + "\n".join(filter(None, parts))
        + f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def policy() -> str:
    style, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (STYLE, SCRIPT))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# The verdict.


def banner(document: ResultDocument) -> tuple[str, str]:
    """Its tone, and itself."""
    notes = reservations(document)
    crossed = [rule for rule in document.thresholds if not rule.passed]
    if document.exit_code:
        tone, symbol, word = "bad", "✗", "Failed"
    elif notes:
        tone, symbol, word = "unsure", "!", "Passed, but look closer"
    else:
        tone, symbol, word = "good", "✓", "Passed"
    said = [*document.reasons, *(note for note in notes if note not in document.reasons)]
    if document.exit_code and not document.reasons:
        said.insert(0, EXIT_CODES.get(document.exit_code, "This exit code has no meaning that is known here."))
    said += [f"✗ {rule.rule}: measured {rule.shown}" for rule in crossed[:CROSSED_SHOWN]]
    if len(crossed) > CROSSED_SHOWN:
        said.append(f"✗ {len(crossed) - CROSSED_SHOWN} more thresholds were crossed.")
    if not document.exit_code:
        said.append(held_text(document))
    return tone, (
        f'<header class="banner"><p class="verdict"><span class="sign" aria-hidden="true">{symbol}</span> {word}'
        f' <span class="code">{escaped(document.status)}, exit code {document.exit_code}</span></p>'
        f"<h1>{name_text(document.job.name)}</h1>{bullets(said)}{facts_line(facts_of(document))}</header>"
    )


def reservations(document: ResultDocument) -> list[str]:
    """Why even a job with exit code 0 may mislead who only looks at that."""
    notes = list(document.reasons) if not document.exit_code else []
    totals = document.totals
    if not document.thresholds:
        if failed := failures_text(document):
            notes.append(failed)
        if totals.not_sent:
            notes.append(f"{counted_text(totals.not_sent, 'request')} could not be sent.")
        if times := sum(check.failed for workflow in document.workflows for check in workflow.checks):
            notes.append(f"Checks failed {counted_text(times, 'time')}.")
    if document.generator.saturated:
        notes.append("The generator was saturated: the target may be faster than these numbers.")
    return [*notes, *failing_sentences(document)]


def tiles(document: ResultDocument, distribution: Distribution) -> str:
    totals = document.totals
    active = max((row.vus for row in document.timeline), default=0)
    worst = failures_of(document)
    failed = share_text(worst.failed, worst.ended) if worst.ended else "–"
    found = [
        ("Requests", f"{totals.requests:,}", f"{totals.ok:,} ok", ""),
        ("Rate", rate_text(totals.rate_per_s), "on average", ""),
        ("Failed", failed, counted_text(worst.failed, worst.of), bad_if(worst.failed)),
    ]
    for percent in (50, 95, 99):
        shown = time_text(distribution.response.percentile(percent) / 1000) if distribution.response.count else "–"
        found.append((f"Response p{percent}", shown, "of all steps", ""))
    found.append(("Virtual users", f"{active:,}", "active at most", ""))
    found.append(("Iterations", f"{totals.iterations:,}", f"in {seconds_text(document.duration_s)}", ""))
    for label, count in (
        ("Dropped", totals.dropped_iterations),
        ("Not sent", totals.not_sent),
        ("Interrupted", totals.interrupted),
    ):
        if count:
            found.append((label, f"{count:,}", "iterations" if label == "Dropped" else "requests", "unsure"))
    cells = "".join(
        f'<div class="tile {tone}"><dt>{label}</dt><dd>{escaped(value)}</dd><dd class="note">{escaped(note)}</dd></div>'
        for label, value, note, tone in found
    )
    return f'<section aria-label="Key numbers"><dl class="tiles">{cells}</dl></section>'


def thresholds(document: ResultDocument) -> str:
    """Crossed ones first; of many that held, most are folded away."""
    if not document.thresholds:
        return ""
    head = ["", "rule", ">measured"]
    rows = [
        [
            verdict_cell(rule.passed),
            cell(rule_text(document, rule), "name"),
            cell(rule.shown, f"number {bad_if(not rule.passed)}"),
        ]
        for rule in sorted(document.thresholds, key=lambda rule: rule.passed)
    ]
    crossed = sum(not rule.passed for rule in document.thresholds)
    shown = max(crossed, THRESHOLDS_SHOWN)
    folded = f"<details><summary>{len(rows) - shown:,} more held</summary>{table(head, rows[shown:], kind='narrow')}"
    more = f"{folded}</details>" if len(rows) > shown else ""
    return section("Thresholds", table(head, rows[:shown], kind="narrow") + more)


# Charts.


def over_time(document: ResultDocument, plan: PlanDocument | None) -> str:
    loads = [f"{workflow.name}: {workflow.load} ({workflow.model} model)" for workflow in document.workflows]
    asked = bullets([f"Asked for – {load}" for load in loads], kind="plain")
    return section("Over time", charts(timeline_charts(document, plan)) + asked + note(TWO_MODELS))


def steps_over_time(document: ResultDocument) -> str:
    found = step_charts(document)
    if not found:
        return ""
    count = sum(len({row.step for row in workflow.timeline}) for workflow in document.workflows)
    more = more_text(count - STEPS_DRAWN)
    return section("Steps over time", f'<div class="charts small-charts">{"".join(found)}</div>{more}')


def distributions(distribution: Distribution) -> str:
    if not distribution.response.count:
        return ""
    samples = f"{counted_text(distribution.response.count, 'sample')} of all measured steps together."
    return section("Distribution", facts_line([samples]) + charts(distribution_charts(distribution)) + note(TWO_TIMES))


def charts(figures: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(figures)}</div>'


# Tables.


def steps(document: ResultDocument, workflow: Workflow, distribution: Distribution) -> str:
    facts = [workflow.load, f"{workflow.model} model", workflow.status]
    if workflow.cores:
        facts += [counted_text(workflow.cores, "core"), f"ran {seconds_text(workflow.duration_s)}"]
        facts.append(counted_text(workflow.iterations, "iteration"))
    facts += unfinished_facts(workflow)
    failure = f'<p class="bad-text">✗ {sentence(workflow.failure)}</p>' if workflow.failure else ""
    rows: list[list[str]] = []
    for step, shape in zip(workflow.steps[:ROWS_SHOWN], step_sparks(workflow, distribution), strict=False):
        rows += step_rows(step, shape)
        for call in step.calls[: max(0, ROWS_SHOWN - len(rows) // 2)]:
            rows += step_rows(call_row(call), "")
    head = ["step", ">runs", ">rate", ">failed", "", *(f">{name}" for name in STATS), "response times"]
    more = more_text(len(workflow.steps) - ROWS_SHOWN)
    return section(f"Steps of {workflow.name}", facts_line(facts) + failure + table(head, rows, kind="steps") + more)


def step_rows(step: Step, shape: str) -> Iterator[list[str]]:
    codes = ", ".join([*codes_of(step), *counted_labels(step.outcomes)][:SAMPLES_SHOWN])
    under = codes if step.measured or codes else "not measured"
    under += "".join(f" {key}={value}" for key, value in sorted(step.tags.items()))
    under += f" skipped {step.skipped:,}" if step.skipped else ""
    ended = step.ok + step.failed
    failed = f"{step.failed:,} ({share_text(step.failed, ended)})" if step.failed else "0"
    kinds = [
        (kind, times)
        for kind, times in (("response", step.response_time_ms), ("service", step.service_time_ms))
        if times is not None
    ]
    span = f' rowspan="{max(len(kinds), 1)}"'
    first = [
        f'<th scope="row"{span}>{name_text(step.name)}<small>{escaped(under)}</small></th>',
        cell(f"{step.count:,}" if step.count else "never ran", "number", span),
        cell(rate_text(step.rate_per_s) if step.measured else "", "number", span),
        cell(failed, f"number {bad_if(step.failed)}", span),
    ]
    last = f'<td class="shape"{span}>{shape}</td>'
    if not kinds:
        yield [*first, f'<td colspan="{len(STATS) + 1}"></td>', last]
    for number, (kind, times) in enumerate(kinds):
        cells = [cell(kind, "kind"), *(cell(time_text(getattr(times, field)), "number") for field in STATS.values())]
        yield [*first, *cells, last] if number == 0 else cells


def errors(document: ResultDocument) -> str:
    samples = all_samples(document)
    parts = []
    for number, (kind, count) in enumerate(error_counts(document)[:ROWS_SHOWN]):
        first = first_samples(samples, kind)
        shown = bullets([f"{sample.t_s:.1f} s  {name}: {sample.text}" for name, sample in first], kind="samples")
        meaning = f' <span class="note">{escaped(KINDS[kind])}</span>' if kind in KINDS else ""
        is_open = ' open=""' if number < SAMPLES_SHOWN else ""
        parts.append(
            f"<details{is_open}><summary><b>{name_text(kind)}</b> × {count:,}{meaning}</summary>{shown}</details>"
        )
    return section("Errors", "".join(parts))


def first_samples(samples: Sequence[tuple[str, ErrorSample]], kind: str) -> list[tuple[str, ErrorSample]]:
    """The earliest that say different things."""
    found: dict[tuple[str, str], tuple[str, ErrorSample]] = {}
    for name, sample in sorted(samples, key=lambda item: item[1].t_s):
        if sample.kind == kind:
            found.setdefault((name, sample.text), (name, sample))
    return list(found.values())[:SAMPLES_SHOWN]


def checks(document: ResultDocument) -> str:
    found = list(named(document, lambda workflow: workflow.checks))
    if not found:
        return ""
    rows = []
    for name, check in found[:ROWS_SHOWN]:
        ran = check.passed + check.failed
        sample = f"{check.samples[0].t_s:.1f} s  {check.samples[0].text}" if check.samples else ""
        rows.append(
            [
                verdict_cell(not check.failed) if ran else "<td></td>",
                cell(name, "name"),
                cell(f"{check.passed:,}" if ran else "never ran", "number"),
                cell(
                    f"{check.failed:,} ({share_text(check.failed, ran)})" if check.failed else "0",
                    f"number {bad_if(check.failed)}",
                ),
                cell(sample, "text"),
            ]
        )
    head = ["", "check", ">passed", ">failed", "first failure"]
    return section("Checks", table(head, rows) + more_text(len(found) - ROWS_SHOWN))


def metrics(document: ResultDocument) -> str:
    found = list(named(document, lambda workflow: workflow.metrics))
    if not found:
        return ""
    rows = [[cell(name, "name"), cell(metric_text(metric), "text")] for name, metric in found[:ROWS_SHOWN]]
    return section("Metrics", table(["metric", "values"], rows) + more_text(len(found) - ROWS_SHOWN))


def lost_shards(document: ResultDocument) -> str:
    lost = document.lost_shards
    shown = bullets([lost_text(item) for item in lost[:ROWS_SHOWN]], kind="warnings")
    return section("Lost shards", shown + more_text(len(lost) - ROWS_SHOWN))


def generator(document: ResultDocument) -> str:
    found = document.generator
    is_good, text = generator_text(found)
    verdict = f"<p>✓ {text}</p>" if is_good else f'<p class="unsure-text">! {text}</p>'
    facts = [f"busiest core at {found.cpu * 100:.0f} % of a CPU"]
    for label, times in (("start lag", found.start_lag_ms), ("loop lag", found.loop_lag_ms)):
        if times is not None:
            facts.append(f"{label} p50 {time_text(times.p50)}, p99 {time_text(times.p99)}, max {time_text(times.max)}")
    facts.append(f"start skew {time_text(document.start_skew_ms)}")
    rows = [
        [
            cell(core.workflow, "name"),
            cell(f"{core.shard}", "number"),
            cell(f"{core.attempt}", "number"),
            f'<td class="number"><meter min="0" max="1" high="0.85" value="{min(core.cpu, 1.0):.3f}"></meter>'
            f" {core.cpu * 100:.0f} %</td>",
            cell(lag_text(core.start_lag_p99_ms), "number"),
            cell(lag_text(core.loop_lag_p99_ms), "number"),
            cell(bytes_text(core.max_rss_bytes), "number"),
        ]
        for core in found.cores[:ROWS_SHOWN]
    ]
    head = ["workflow", ">shard", ">attempt", ">CPU", ">start lag p99", ">loop lag p99", ">memory"]
    listed = ""
    if rows:
        summary = f"<summary>Core processes ({len(found.cores):,})</summary>"
        more = more_text(len(found.cores) - ROWS_SHOWN)
        listed = f'<details open="">{summary}{table(head, rows)}{more}</details>'
    return section("Generator", verdict + facts_line(facts) + listed)


def lag_text(ms: float | None) -> str:
    return "–" if ms is None else time_text(ms)


def environment(document: ResultDocument) -> str:
    totals = document.totals
    found = {
        "Talka": f"{document.generator.version}, engine {document.generator.engine_text}",
        "file": document.job.file or "none",
        "job": document.job.id,
        "started": document.started_at,
        "duration": f"{document.duration_s:,.3f} s",
        "cores": cores_text(document).removeprefix(" on ") or "none",
        "datacenters": ", ".join(document.datacenters),
        "data": f"{bytes_text(totals.bytes_sent)} sent, {bytes_text(totals.bytes_received)} received",
        "connections": f"{totals.connections:,} opened, {counted_text(totals.reconnects, 'reconnect')}",
        "schema": document.schema,
    }
    rows = [[f'<th scope="row">{label}</th>', cell(value, "text")] for label, value in found.items() if value]
    return section("Environment", table([], rows, kind="narrow"))


# Parts of pages.


def section(title: str, content: str) -> str:
    """Without content, nothing."""
    return f"<section><h2>{name_text(title)}</h2>{content}</section>" if content else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """In a box of its own, which scrolls where the page is narrow. Cells are HTML; `>` before a head marks a column of
    numbers."""
    heads = "".join(
        f'<th scope="col" class="number">{label[1:]}</th>' if label[:1] == ">" else f'<th scope="col">{label}</th>'
        for label in head
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    top = f"<thead><tr>{heads}</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def cell(text: str, kind: str = "", attributes: str = "") -> str:
    return f'<td class="{kind.strip()}"{attributes}>{sentence(text)}</td>'


def verdict_cell(is_good: bool) -> str:
    words = ("good", "passed") if is_good else ("bad", "failed")
    return f'<td class="sign {words[0]}-text" title="{words[1]}">{sign(is_good)}</td>'


def bullets(texts: Sequence[str], *, kind: str = "") -> str:
    items = "".join(f"<li>{sentence(text)}</li>" for text in texts[:ROWS_SHOWN])
    return f'<ul class="{kind}">{items}</ul>{more_text(len(texts) - ROWS_SHOWN)}' if items else ""


def facts_line(facts: Sequence[str]) -> str:
    """Short facts are not broken over two lines."""
    shown = [
        f"<span>{sentence(fact)}</span>" if len(fact) <= FACT_CHARACTERS_GLUED else sentence(fact) for fact in facts
    ]
    return f'<p class="facts">{" · ".join(shown)}</p>'


def note(markup: str) -> str:
    return f'<p class="note">{markup}</p>'


def more_text(count: int) -> str:
    return f'<p class="note">{count:,} more are in the result document.</p>' if count > 0 else ""


def sentence(text: str) -> str:
    return escaped(cut(text, TEXT_CHARACTERS_SHOWN))


def name_text(text: str) -> str:
    return escaped(cut(text, NAME_CHARACTERS_SHOWN))


def bad_if(is_bad: object) -> str:
    return "bad-text" if is_bad else ""
