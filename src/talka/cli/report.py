"""The command that makes a page of a result that was saved."""

import os

import click

from talka.cli.command import Command
from talka.cli.output import ResultFile
from talka.cli.saved import saved_result
from talka.errors import Invalid


@click.command(
    "report",
    cls=Command,
    examples=[
        ("talka report result.json -o report.html", "a page to open, print or send"),
        ("talka report - -o - < result.json", "from stdin to stdout"),
    ],
    help="Make an HTML page of a result written by talka run --json. RESULT is that file; - reads stdin.",
)
# Nothing is checked by this type; shells complete names of files for it.
@click.argument("result", type=click.Path(readable=False), metavar="RESULT")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write the page; - prints it. Required.")
def report(result: str, output: str) -> int:
    if output != "-" and os.path.exists(output) and os.path.exists(result) and os.path.samefile(result, output):
        raise Invalid(f"--output: {output} is the result itself, and the page would replace it: name another file")
    file = ResultFile(output, what="--output")
    document = saved_result(result)
    from talka.report.document import BadResult
    from talka.report.html import html_report

    try:
        page = html_report(document)
    except BadResult as error:
        raise BadResult(f"{result}: {error}") from None
    except OverflowError:
        raise BadResult(f"{result}: it has numbers no measurement can have, so it is damaged or made up") from None
    file.write(page.encode())
    return 0
