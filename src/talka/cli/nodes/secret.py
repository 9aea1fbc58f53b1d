"""What the commands of a cluster's nodes have in common: its secret, its ids and their files. And `talka secret`."""

from typing import Any

import click

from talka.cli.command import command
from talka.cli.output import tell
from talka.errors import Invalid

LEAST_FILES = 64
"""A node's files, its store, its sockets and pipes to a few cores."""
WANTED_FILES = 4096
MOST_BYTES = 64 * 1024
SECRET_BYTES = 32


class NoSecret(Invalid):
    """There is no secret to seal with, or its file cannot be used."""


class Seconds(click.FloatRange):
    """A range of seconds. "nan" is in none of them, though it is not outside either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


cluster_option = click.option(
    "--cluster", "cluster_id", default="default", metavar="ID", help="The cluster's id (default)."
)
environment_option = click.option(
    "--environment", default="default", metavar="ID", help="The environment's id, such as production (default)."
)


@command(
    "secret",
    "Make a cluster's secret. Every manager, worker and member of the cluster gets the file, and nobody else.",
    ("talka secret -o secret", "once; every node of the cluster gets it"),
)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it, for your eyes only. Required.")
def secret(output: str) -> int:
    import secrets

    from talka.cli.nodes.token import write_secretly

    write_secretly(output, secrets.token_urlsafe(SECRET_BYTES))
    tell(f"{output}: start the cluster's nodes with --secret-file {output}\nWhoever has it can speak as one of them.")
    return 0


def read_secrets(file: str | None) -> tuple[str, ...]:
    """The secrets of --secret-file, or of the file that TALKA_SECRET_FILE names."""
    from talka.cli.config import own_secret_file
    from talka.net.private_files import read_private
    from talka.wire.security.keys import parse_secrets

    file = file or own_secret_file()
    if file is None:
        raise NoSecret("a secret is needed: give --secret-file FILE, or set TALKA_SECRET_FILE")
    try:
        content = read_private(file, "the secret file", MOST_BYTES)
        if len(content) > MOST_BYTES:
            raise NoSecret(f"{file} is too large for a file of secrets: one line for each, at least 32 characters long")
        return parse_secrets(content.decode(), file)
    except OSError as error:
        raise NoSecret(f"the secret file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoSecret(f"the secret file {file} is not text") from None


def checked_id(what: str, text: str) -> str:
    from talka.wire.security.roles import id_problem

    if problem := id_problem(what, text):
        raise Invalid(problem)
    return text


def check_descriptors(who: str) -> None:
    """Raises the limit as far as it goes. One that is too low is named as the cause: what fails later would not say
    so."""
    from talka.net.descriptors import ask_for

    ask_for(who, least=LEAST_FILES, wanted=WANTED_FILES)
