"""The command `talka compare`: results side by side, and an exit code for CI."""

import os
import sys
from typing import TYPE_CHECKING

import click

from talka.cli.command import command
from talka.cli.history import NoSuchRun, baseline_id, kept_result, open_store, store_option
from talka.cli.output import ResultFile, say
from talka.cli.saved import ResultUnreadable, saved_result
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.report.document import ResultDocument


class TwoOutputs(Invalid):
    """Two things cannot be printed at once."""


@command(
    "compare",
    "Compare results: the second and all others as seen from the first. A RUN is a file that talka run --json has "
    "written (- is stdin), or the id of a run that talka run --keep has kept.",
    ("talka compare before.json after.json", "same, different, or cannot tell"),
    ('talka compare A.json B.json --fail-on "response_time.p99 +10%"', "exit code 4 if B is slower than that"),
    ('talka compare A.json B.json --fail-on "failed +1%" --html diff.html', "failures in points; a page to share"),
    ("talka compare k7f 9wz m3q", "runs kept in talka history, the first as the base"),
    ("talka compare --baseline main after.json", "with what talka history baseline named main"),
)
# Nothing is checked by this type; shells complete names of files for it.
@click.argument("runs", metavar="RUN…", nargs=-1, type=click.Path(readable=False))
@click.option("--baseline", metavar="NAME", help="Compare with the run that talka history baseline gave this name.")
@store_option
@click.option(
    "--within",
    "tolerance",
    metavar="PERCENT",
    default="5%",
    help="The largest difference that counts as the same, as a share of A (5%); for failures, a fifth of it in points.",
)
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    help='Exit with 4 if this happened, such as "response_time.p99 +10%", "failed +1%" (points), "rate -5%" or '
    '"login.response_time.p95 +20ms"; with 6 if the runs cannot show it. Repeatable.',
)
@click.option(
    "--allow-unknown", is_flag=True, help="Exit with 0 also where the runs cannot show whether a rule is broken."
)
@click.option("--html", "page", metavar="FILE", help="Write a page; - prints it instead of the text.")
@click.option("--json", "data", metavar="FILE", help="Write the comparison as JSON; - prints it instead of the text.")
def compare(
    runs: tuple[str, ...],
    baseline: str | None,
    store: str | None,
    tolerance: str,
    rules: tuple[str, ...],
    allow_unknown: bool,
    page: str | None,
    data: str | None,
) -> int:
    if len(runs) < (1 if baseline else 2):
        raise click.UsageError("Name two results to compare, or one and --baseline NAME.")
    page_file = None if page is None else ResultFile(page, what="--html")
    data_file = None if data is None else ResultFile(data, what="--json")
    printed = [file for file in (page_file, data_file) if file is not None and file.is_stdout]
    if len(printed) > 1:
        raise TwoOutputs("--html - and --json - cannot both be printed: write one of them to a file")

    from talka.cli.config import wants_color
    from talka.cli.output import columns_of
    from talka.report import compare as report
    from talka.report.compare_text import comparisons_text
    from talka.report.html.comparison_page import comparison_html
    from talka.work.outcome import ExitCode

    wanted, within = [report.parse_rule(rule) for rule in rules], report.parse_within(tolerance)
    documents, names = [result_of(run, store) for run in runs], list(runs)
    if baseline is not None:
        documents.insert(0, baseline_result(baseline, store))
        names.insert(0, f"the baseline {baseline}")
    found = report.compare_all(documents, wanted, files=names, within=within)
    if page_file is not None:
        page_file.write(comparison_html(found, documents).encode())
    if data_file is not None:
        data_file.write(found.to_json())
    if not printed:
        say(comparisons_text(found, width=columns_of(sys.stdout), color=wants_color(sys.stdout)))
    if found.is_broken:
        return ExitCode.THRESHOLD_CROSSED
    return ExitCode.INCOMPLETE if found.is_unsure and not allow_unknown else ExitCode.HELD


def result_of(run: str, store: str | None) -> "ResultDocument":
    """A file of that name, or else the kept run of that id."""
    is_path = run == "-" or os.path.exists(run) or os.sep in run or run.endswith(".json")
    if is_path:
        return saved_result(run)
    with open_store(store) as kept:
        document = kept_result(kept, run)
        if document is None:
            raise ResultUnreadable(
                f"{run} is neither a file here nor a run kept in {kept.place}: name a file that talka run --json has "
                "written, or an id that talka history lists"
            )
    return document


def baseline_result(name: str, store: str | None) -> "ResultDocument":
    with open_store(store) as kept:
        id = baseline_id(kept, name)
        document = kept_result(kept, id)
        if document is None:
            raise NoSuchRun([id], kept.place)
    return document
