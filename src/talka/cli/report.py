"""The command that makes a page of a result that was saved."""

import os

import click

from talka.cli.command import Command
from talka.cli.output import ResultFile
from talka.errors import Invalid

MOST_RESULT_BYTES = 256 * 1024 * 1024
"""Far above the result of any job; whoever names a disk image by mistake is told so at once."""


class CannotRead(Invalid):
    """The file that was named cannot be read."""


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
    content = read_result(result)
    from talka.report.document import BadResult, read
    from talka.report.html import html_report

    try:
        page = html_report(read(content))
    except BadResult as error:
        raise BadResult(f"{result}: {error}") from None
    except OverflowError:
        raise BadResult(f"{result}: it has numbers no measurement can have, so it is damaged or made up") from None
    file.write(page.encode())
    return 0


def read_result(path: str) -> bytes:
    try:
        with click.open_file(path, "rb") as file:
            content = file.read(MOST_RESULT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotRead(f"{path} cannot be read: {reason}") from None
    assert isinstance(content, bytes)
    if len(content) > MOST_RESULT_BYTES:
        raise CannotRead(f"{path} is larger than {MOST_RESULT_BYTES:,} bytes: no result of talka is")
    return content
