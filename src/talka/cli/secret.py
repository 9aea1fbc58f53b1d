"""What the commands of a cluster's nodes have in common: its secret and its ids."""

from pathlib import Path
from typing import Any

import click

from talka.errors import Invalid

MOST_BYTES = 64 * 1024


class NoSecret(Invalid):
    """There is no secret to seal with, or its file cannot be used."""


class Seconds(click.FloatRange):
    """A range of seconds. "nan" is in none of them, though it is not outside either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


cluster_option = click.option(
    "--cluster", "cluster_id", default="default", metavar="ID", help="The cluster's id (default)."
)
environment_option = click.option(
    "--environment", default="default", metavar="ID", help="The environment's id, such as production (default)."
)


def read_secrets(file: str | None) -> tuple[str, ...]:
    """The secrets of --secret-file, or of the file that TALKA_SECRET_FILE names."""
    from talka.cli.config import own_secret_file
    from talka.wire.keys import parse_secrets

    file = file or own_secret_file()
    if file is None:
        raise NoSecret("a secret is needed: give --secret-file FILE, or set TALKA_SECRET_FILE")
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise NoSecret(f"{file} is too large for a file of secrets: one line for each, at least 32 characters long")
        return parse_secrets(content.decode(), file)
    except OSError as error:
        raise NoSecret(f"the secret file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoSecret(f"the secret file {file} is no text") from None


def checked_id(what: str, text: str) -> str:
    from talka.wire.roles import id_problem

    if problem := id_problem(what, text):
        raise Invalid(problem)
    return text
