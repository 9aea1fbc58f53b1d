"""Results that were saved by `talka run --json`, read back for commands that look at them."""

from typing import TYPE_CHECKING, Final

import click

from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.report.document import ResultDocument

MOST_RESULT_BYTES: Final = 256 * 1024 * 1024
"""Far above the result of any job; whoever names a disk image by mistake is told so at once."""


class CannotRead(Invalid):
    """The file that was named cannot be read."""


def saved_result(path: str) -> "ResultDocument":
    """The result in the file; `-` is stdin."""
    from talka.report.document import BadResult, read

    try:
        with click.open_file(path, "rb") as file:
            content = file.read(MOST_RESULT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotRead(f"{path} cannot be read: {reason}. Name a file that talka run --json has written.") from None
    assert isinstance(content, bytes)
    if len(content) > MOST_RESULT_BYTES:
        raise CannotRead(f"{path} is larger than {MOST_RESULT_BYTES:,} bytes: no result of talka is")
    try:
        return read(content)
    except BadResult as error:
        raise BadResult(f"{path}: {error}") from None
