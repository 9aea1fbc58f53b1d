"""The command `talka history`, and keeping a result."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from talka.cli.command import CommandEntry, ListingGroup, command
from talka.cli.output import ResultFile, columns_of, say, say_list, tell
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.report.document import Metric, ResultDocument, Step, Times
    from talka.store.history.runs import History, KeptRun, MetricColumns, RunFacts, RunRows, StepColumns
    from talka.work.retention import Retention

DEFAULT_STORE: Final = "~/.local/state/talka/history.sqlite"
MOST_LISTED: Final = 10_000
WORDS: Final = ("ID", "STARTED (UTC)", "STATUS")
"""Columns that are no numbers."""
GIVE_WAY: Final = ("P50", "TOOK", "RATE")
NAME_COLUMNS: Final = 30
GAP: Final = 2
NAMES_SHOWN: Final = 8
COMMANDS: Final = {
    "list": CommandEntry("Commands", "history:list_command", "list the newest kept runs (what it does by itself)"),
    "show": CommandEntry("Commands", "history:show", "show the summary of a kept run, or write its result"),
    "baseline": CommandEntry("Commands", "history:baseline", "name a kept run to compare others with"),
    "forget": CommandEntry("Commands", "history:forget", "remove kept runs"),
}


class NoSuchRun(Invalid):
    """Nothing in this history has such an id."""

    def __init__(self, ids: Sequence[str], place: str) -> None:
        named = " and no run ".join(repr(id) for id in ids)
        super().__init__(f"there is no run {named} in {place}: talka history lists what is kept")


class IsBaseline(Invalid):
    """A run that a baseline names is not forgotten by the way."""


class NoBaseline(Invalid):
    """Nothing in this history has such a name."""


class OtherMeasures(Invalid):
    """A run that no run of this version can be compared with."""


class NoPlace(Invalid):
    """There is no folder for the history."""


store_option = click.option(
    "--store", metavar="URL", help=f"A file, sqlite:///PATH or postgresql://USER@HOST/DATABASE ({DEFAULT_STORE})."
)


history = ListingGroup(
    "history",
    "Results kept with talka run --keep: list, show, name and forget them.",
    COMMANDS,
    ("talka run shop.py --keep", "keep a result"),
    ("talka history", "the newest of those kept"),
    ("talka history show k7f", "the summary of one; the beginning of its id is enough"),
    ("talka history baseline main k7f", "name it; talka compare --baseline main RESULT"),
)


@command(
    "list",
    "List the newest kept runs, newest first.",
    ("talka history", "the newest 50"),
    ("talka history --name shop.py --limit 5", "of one test"),
    ("talka history --json", "for programs"),
)
@store_option
@click.option("--name", metavar="NAME", help="Only runs of this name.")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=50, metavar="N", help="At most this many (50).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_command(store: str | None, name: str | None, limit: int, as_json: bool) -> int:
    with open_store(store) as kept:
        runs = kept.list(limit=limit, name=name)
    of_name = "" if name is None else f" of {name!r}"
    none = f"no run{of_name} is kept in {kept.place}: talka run … --keep keeps one"
    cut = f"these are the newest {limit}" if len(runs) == limit else ""
    return say_list("runs", runs, as_json, lambda found: table(found, width=columns_of(sys.stdout)), none, cut)


@command(
    "show",
    "Show the summary of a kept run. ID is its id, or as much of its beginning as no other has.",
    ("talka history show k7f", "as it was at the end of the run"),
    ("talka history show k7f --json result.json", "and the result document"),
)
@click.argument("id", metavar="ID")
@store_option
@click.option("--json", "json_file", metavar="FILE", help="Write the result; - prints it, without a summary.")
def show(id: str, store: str | None, json_file: str | None) -> int:
    file = None if json_file is None else ResultFile(json_file, what="--json")
    from talka.cli.saved import summary_of

    with open_store(store) as kept:
        run = kept.load(id)
        if run is None:
            raise NoSuchRun([id], kept.place)
    if file is not None:
        file.write(run.json())
        if file.is_stdout:
            return 0
    say(summary_of(result_in(run)))
    return 0


@command(
    "forget",
    "Remove kept runs. All of them are there, or none is removed. ID is as for talka history show.",
    ("talka history forget k7f 9wz", "two of them"),
)
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@store_option
def forget(ids: tuple[str, ...], store: str | None) -> int:
    from talka.report.text import counted_text

    with open_store(store) as kept:
        found = {id: kept.find(id) for id in ids}
        missing = [id for id, run in found.items() if run is None]
        if missing:
            raise NoSuchRun(missing, kept.place)
        names = {id: name for name, id in kept.baselines().items()}
        for run in found.values():
            if run is not None and (name := names.get(run.id)):
                raise IsBaseline(
                    f"run {run.id} is the baseline {name!r}: talka history baseline {name} --forget lets go of the name"
                    " first"
                )
        count = kept.forget({run.id for run in found.values() if run is not None})
    say(f"forgot {counted_text(count, 'run')}")
    return 0


@command(
    "baseline",
    "Name a kept run to compare others with, or list these names. A run that has one is never let go. ID is as for "
    "talka history show.",
    ("talka history baseline main k7f", "the run k7f is what others are compared with"),
    ("talka compare --baseline main result.json", "compare with it"),
    ("talka history baseline", "which there are"),
    ("talka history baseline main --forget", "let go of the name; the run stays"),
)
@click.argument("name", metavar="[NAME]", required=False)
@click.argument("id", metavar="[ID]", required=False)
@store_option
@click.option("--forget", "is_dropped", is_flag=True, help="Let go of the name.")
def baseline(name: str | None, id: str | None, store: str | None, is_dropped: bool) -> int:
    if is_dropped and (name is None or id is not None):
        raise click.UsageError("--forget lets go of a name: write talka history baseline NAME --forget")
    with open_store(store) as kept:
        if name is None:
            known = kept.baselines()
            for one, run_id in known.items():
                say(f"{one}  {run_id}")
            if not known:
                tell(f"no baseline is named in {kept.place}: talka history baseline NAME ID names one")
        elif is_dropped:
            baseline_id(kept, name)
            kept.drop_baseline(name)
            say(f"forgot the baseline {name}")
        elif id is None:
            say(baseline_id(kept, name))
        else:
            run = kept.find(id)
            if run is None:
                raise NoSuchRun([id], kept.place)
            check_measures(kept, run.id)
            kept.set_baseline(name, run.id)
            say(f"the baseline {name} is {run.id}: talka compare --baseline {name} RESULT")
    return 0


# For these commands and for whoever keeps a result.


def baseline_id(kept: "History", name: str) -> str:
    """Of the run that the baseline names."""
    known = kept.baselines()
    if name not in known:
        has = f"it has {', '.join(list(known)[:NAMES_SHOWN])}" if known else "it has none"
        raise NoBaseline(
            f"there is no baseline {name!r} in {kept.place} ({has}): talka history baseline {name} ID makes a kept run"
            " it"
        )
    return known[name]


def check_measures(kept: "History", id: str) -> None:
    from talka.report.document import MEASURES

    document = kept_result(kept, id)
    if document is not None and document.measures != MEASURES:
        raise OtherMeasures(
            f"run {id} was measured by rules {document.measures} and this version measures by rules {MEASURES}: nothing"
            " that it runs could be compared with this baseline. Run the test again with --keep, and name that run"
        )


def kept_result(kept: "History", id: str) -> "ResultDocument | None":
    """The result of the run with this id, or of the only one whose id begins so."""
    run = kept.load(id)
    return None if run is None else result_in(run)


def result_in(run: "KeptRun") -> "ResultDocument":
    from talka.report.document import BadResult, read

    try:
        return read(run.json())
    except BadResult as error:
        raise BadResult(f"run {run.id}: {error}") from None


def open_store(url: str | None, kept: "Retention | None" = None) -> "History":
    """The history at the address, or the user's own. Nothing is touched yet."""
    from talka.store.history.runs import KEPT, open_history

    return open_history(own_store() if url is None else url, kept=KEPT if kept is None else kept)


def own_store() -> str:
    path = os.path.expanduser(DEFAULT_STORE)
    if path == DEFAULT_STORE:
        raise NoPlace("you have no home folder to keep results in: name a file with --store")
    return path


def keep_result(kept: "History", document: "ResultDocument", *, is_own: bool) -> None:
    """Keep the result and say how to get at it again. `is_own`: it is the history that is looked at by default."""
    run = kept_run(document)
    kept.keep(run, kept_rows(document))
    # Not the whole address of another one: it may have a password in it.
    tell(f"kept in {kept.place}: talka history show {run.id}{'' if is_own else ' --store …'}")


def kept_run(document: "ResultDocument") -> "KeptRun":
    from datetime import datetime

    from talka.stats import hdr
    from talka.stats.histogram import merged
    from talka.store.history.runs import MOST_TEXT_CHARACTERS, KeptRun, packed

    steps = [step for workflow in document.workflows for step in workflow.steps]
    times = merged(hdr.decode(step.histogram) for step in steps if step.histogram is not None)
    totals = document.totals
    return KeptRun(
        id=document.job.id,
        name=document.job.name[:MOST_TEXT_CHARACTERS],
        status=document.status,
        exit_code=document.exit_code,
        started_at=datetime.fromisoformat(document.started_at),
        duration_s=document.duration_s,
        requests=totals.requests,
        rate_per_s=totals.rate_per_s,
        failed=totals.failed,
        p50_ms=times.percentile(50) / 1000 if times.count else None,
        p99_ms=times.percentile(99) / 1000 if times.count else None,
        document=packed(document.to_json()),
    )


def kept_rows(document: "ResultDocument") -> "RunRows":
    """What queries are about: its steps with their calls, its metrics and its checks."""
    from talka.store.history.runs import CheckColumns, RunRows

    workflows = document.workflows
    return RunRows(
        [row for workflow in workflows for step in workflow.steps for row in step_rows(workflow.name, step)],
        [metric_row(workflow.name, metric) for workflow in workflows for metric in workflow.metrics],
        [
            CheckColumns(storable(workflow.name), storable(check.name), check.passed, check.failed)
            for workflow in workflows
            for check in workflow.checks
        ],
    )


def step_rows(workflow: str, step: "Step") -> "Iterator[StepColumns]":
    from talka.store.history.runs import StepColumns

    for call in (None, *step.calls):
        part, name = (step, "") if call is None else (call, call.name)
        response, service = part.response_time_ms, part.service_time_ms
        yield StepColumns(
            storable(workflow),
            storable(step.name),
            storable(name),
            step.measured,
            part.count,
            part.ok,
            part.failed,
            part.interrupted,
            step.skipped if call is None else 0,
            part.rate_per_s,
            *((None,) * 6 if response is None else times_of(response)),
            *((None,) * 2 if service is None else (service.p50, service.p99)),
        )


def times_of(times: "Times") -> tuple[float, ...]:
    return times.mean, times.p50, times.p90, times.p95, times.p99, times.max


def metric_row(workflow: str, metric: "Metric") -> "MetricColumns":
    from talka.store.history.runs import MetricColumns

    percentiles = metric.percentiles or {}
    return MetricColumns(
        storable(workflow),
        storable(metric.name),
        metric.kind,
        metric.values,
        metric.total,
        metric.rate_per_s,
        metric.min,
        metric.mean,
        metric.max,
        percentiles.get("p50"),
        percentiles.get("p99"),
    )


def storable(text: str) -> str:
    """As every database takes it. The document has it as it was."""
    from talka.store.history.runs import MOST_TEXT_CHARACTERS
    from talka.store.sql_text import is_storable

    return "".join(char if is_storable(char) else "\ufffd" for char in text[:MOST_TEXT_CHARACTERS])


def table(runs: "Sequence[RunFacts]", *, width: int) -> str:
    """A line for each run. Where it is narrow, some numbers give way to the name."""
    from talka.report.text import TextPage, padded, rate_text, room_for, seconds_text, sign, time_text

    def cell(head: str, text: str) -> str:
        return (padded(text, rooms[head]) if head in WORDS else text.rjust(rooms[head])) + " " * GAP

    cells = {
        "ID": [run.id for run in runs],
        "STARTED (UTC)": [f"{run.started_at:%Y-%m-%d %H:%M}" for run in runs],
        "STATUS": [f"{sign(run.exit_code == 0)} {run.status}" for run in runs],
        "TOOK": [seconds_text(run.duration_s) for run in runs],
        "REQUESTS": [f"{run.requests:,}" for run in runs],
        "RATE": [rate_text(run.rate_per_s) for run in runs],
        "FAILED": [f"{run.failed:,}" for run in runs],
        "P50": ["-" if run.p50_ms is None else time_text(run.p50_ms) for run in runs],
        "P99": ["-" if run.p99_ms is None else time_text(run.p99_ms) for run in runs],
    }
    names = [run.name for run in runs]
    rooms = {head: room_for([head, *texts], width) for head, texts in cells.items()}
    for head in GIVE_WAY:
        if sum(rooms.values()) + GAP * len(rooms) + room_for(names, NAME_COLUMNS) > width:
            del cells[head], rooms[head]
    page = TextPage(width)
    page.line(*(cell(head, head) for head in cells), "NAME")
    for number, name in enumerate(names):
        page.line(*(cell(head, texts[number]) for head, texts in cells.items()), name)
    return page.text()
