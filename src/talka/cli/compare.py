"""The command `talka compare`: two results side by side, and an exit code for CI."""

import sys

import click

from talka.cli.command import Command
from talka.cli.output import ResultFile, say
from talka.cli.saved import saved_result
from talka.errors import Invalid


class TwoOutputs(Invalid):
    """Two things cannot be printed at once."""


@click.command(
    "compare",
    cls=Command,
    examples=[
        ("talka compare before.json after.json", "what differs by more than noise"),
        ('talka compare A.json B.json --fail-on "response_time.p99 +10%"', "exit code 4 if B is slower than that"),
        ('talka compare A.json B.json --fail-on "failed +1%" --html diff.html', "failures in points; a page to share"),
    ],
    help="Compare two results of talka run --json: B as seen from A. Noise is called noise.",
)
@click.argument("before", metavar="A", type=click.Path(readable=False))
@click.argument("after", metavar="B", type=click.Path(readable=False))
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    help='Exit with 4 if it happened, as "response_time.p99 +10%", "failed +1%" (points), "rate -5%" or '
    '"login.response_time.p95 +20ms". Repeatable.',
)
@click.option("--html", "page", metavar="FILE", help="Write a page; - prints it instead of the text.")
@click.option("--json", "data", metavar="FILE", help="Write the comparison as JSON; - prints it instead of the text.")
def compare(before: str, after: str, rules: tuple[str, ...], page: str | None, data: str | None) -> int:
    page_file = None if page is None else ResultFile(page, what="--html")
    data_file = None if data is None else ResultFile(data, what="--json")
    printed = [file for file in (page_file, data_file) if file is not None and file.is_stdout]
    if len(printed) > 1:
        raise TwoOutputs("--html - and --json - cannot both be printed: write one of them to a file")

    from talka.cli.config import wants_color
    from talka.cli.output import columns_of
    from talka.report import compare as report
    from talka.report.compare_text import comparison_html, comparison_text
    from talka.work.outcome import ExitCode

    wanted = [report.parse_rule(rule) for rule in rules]
    found = report.compare(saved_result(before), saved_result(after), wanted, files=(before, after))
    if page_file is not None:
        page_file.write(comparison_html(found).encode())
    if data_file is not None:
        data_file.write(found.to_json())
    if not printed:
        say(comparison_text(found, width=columns_of(sys.stdout), color=wants_color(sys.stdout)))
    return ExitCode.THRESHOLD_CROSSED if found.is_broken else ExitCode.HELD
