"""The command that makes a page, or a summary, of a result that was saved."""

import os

import click

from talka.cli.command import command
from talka.cli.output import ResultFile, say
from talka.cli.saved import saved_result, summary_of
from talka.errors import Invalid


@command(
    "report",
    "Make an HTML page or a summary of a result written by talka run --json. RESULT is that file; - reads stdin.",
    ("talka report result.json -o report.html", "a page to open, print or send"),
    ("talka report - -o - < result.json", "from stdin to stdout"),
    ("talka report result.json --summary p50,p99.9", "the summary again, with these times"),
)
# Nothing is checked by this type; shells complete names of files for it.
@click.argument("result", type=click.Path(readable=False), metavar="RESULT")
@click.option("-o", "--output", metavar="FILE", help="Where to write the page; - prints it.")
@click.option("--summary", metavar="COLUMNS", help="Print the summary, with these times: p50,p95,p99.9,mean.")
def report(result: str, output: str | None, summary: str | None) -> int:
    if output is None and summary is None:
        raise Invalid(
            "nothing would be made of the result: name a page with -o FILE, or columns with --summary p50,p99"
        )
    if output == "-" and summary is not None:
        raise Invalid("--output - and --summary cannot both be printed: give the page a FILE")
    if summary is not None:
        from talka.cli.config import checked_summary

        summary = checked_summary("--summary", summary)
    file = None if output is None else page_file(result, output)
    document = saved_result(result)
    from talka.report.document import BadResult
    from talka.report.html.page import html_report
    from talka.stats.hdr import BrokenHistogram

    try:
        page = None if file is None else html_report(document)
        text = None if summary is None else summary_of(document, summary)
    except (BadResult, BrokenHistogram) as error:
        raise BadResult(f"{result}: {error}") from None
    except OverflowError:
        raise BadResult(f"{result}: it has numbers no measurement can have, so it is damaged or made up") from None
    if file is not None and page is not None:
        file.write(page.encode())
    if text is not None:
        say(text)
    return 0


def page_file(result: str, output: str) -> ResultFile:
    if output != "-" and os.path.exists(output) and os.path.exists(result) and os.path.samefile(result, output):
        raise Invalid(f"--output: {output} is the result itself, and the page would replace it: name another file")
    return ResultFile(output, what="--output")
