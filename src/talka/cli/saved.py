"""Results that were saved by `talka run --json`, read back for commands that look at them."""

import sys
from typing import TYPE_CHECKING, Final

import click

from talka.cli.output import NARROW_COLUMNS, columns_of
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.report.document import ResultDocument

MOST_RESULT_BYTES: Final = 256 * 1024 * 1024
"""Far above the result of any job; whoever names a disk image by mistake is told so at once."""


class ResultUnreadable(Invalid):
    """The file that was named cannot be read."""


def saved_result(path: str, most_bytes: int = MOST_RESULT_BYTES) -> "ResultDocument":
    """The result in the file; `-` is stdin."""
    from talka.report.document import BadResult, read

    try:
        with click.open_file(path, "rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ResultUnreadable(
            f"{path} cannot be read: {reason}. Name a file that talka run --json has written."
        ) from None
    assert isinstance(content, bytes)
    if len(content) > most_bytes:
        raise ResultUnreadable(f"{path} is larger than {most_bytes:,} bytes: no result of talka is")
    try:
        return read(content)
    except BadResult as error:
        raise BadResult(f"{path}: {error}") from None


def summary_of(document: "ResultDocument", stats: str | None = None) -> str:
    """For whoever reads stdout: as wide as that is, with the columns of `--summary`."""
    from talka.cli.config import wants_color
    from talka.report.summary import STATS, parse_stats, summary

    return summary(
        document,
        width=columns_of(sys.stdout, NARROW_COLUMNS),
        color=wants_color(sys.stdout),
        stats=tuple(STATS) if stats is None else parse_stats(stats),
    )
