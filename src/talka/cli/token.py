"""The command `talka token …`: keys of a cluster's API, and tokens for people and programs that use it."""

import os
from pathlib import Path
from typing import Final

import click

from talka.cli.command import Command, Entry, LazyGroup
from talka.cli.output import say, tell
from talka.errors import Invalid

COMMANDS: Final = {
    "key": Entry("Commands", "talka.cli.token:key", "make a key, which every manager gets"),
    "issue": Entry("Commands", "talka.cli.token:issue", "make a token with it, for one person or program"),
}
KEY_BYTES: Final = 48
KEY_LEAST: Final = 32
KEYS_LIMIT: Final = 8
MOST_KEY_BYTES: Final = 64 * 1024
ROLES: Final = ("viewer", "submitter", "operator")


class BadKey(Invalid):
    """A file that holds no key, or cannot be read or written."""


@click.group(
    "token",
    cls=LazyGroup,
    entries=COMMANDS,
    examples=[
        ("talka token key -o key", "once; managers get it"),
        ("talka token issue --key-file key --role viewer --name ci", "for a program"),
        ("talka jobs --token-file ada.token", "using one"),
    ],
    help="Tokens that open a cluster's API. Whoever may submit runs code of their own on the workers.",
)
def token() -> None:
    pass


@click.command("key", cls=Command, help="Make a key for tokens. Every manager of the cluster gets it, and nobody else.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it, for your eyes only. Required.")
def key(output: str) -> int:
    import secrets

    write_secretly(output, secrets.token_urlsafe(KEY_BYTES))
    tell(f"{output}: start managers with --token-key-file {output}\nWhoever has it can make tokens of every role.")
    return 0


@click.command(
    "issue",
    cls=Command,
    examples=[
        ("talka token issue --key-file key --role viewer --name ci", "printed, for a variable"),
        ("talka token issue … --role operator --expires 8h -o ada.token", "in a file"),
    ],
    help="Make a token: viewers look, submitters also submit and cancel jobs, operators also drain workers.",
)
@click.option("--key-file", required=True, metavar="FILE", help="The cluster's token key. Required.")
@click.option("--role", required=True, type=click.Choice(ROLES), help="What it allows. Required.")
@click.option("--name", required=True, metavar="NAME", help="Whose it is, as jobs will show it. Required.")
@click.option("--expires", default="30d", metavar="D", help="How long it holds: 30d, 12h (30d).")
@click.option("--cluster", "cluster_id", default="default", metavar="ID", help="The cluster's id (default).")
@click.option("-o", "--output", metavar="FILE", help="Write it here, for your eyes only, instead of printing it.")
def issue(key_file: str, role: str, name: str, expires: str, cluster_id: str, output: str | None) -> int:
    from typing import cast

    from talka.cli.secret import checked_id
    from talka.clock import SECOND, realtime_ns
    from talka.web.auth import Role, Tokens
    from talka.work.durations import parse_duration

    checked_id("cluster", cluster_id)
    length_ns = parse_duration(expires, what="--expires")
    if length_ns < SECOND:
        raise Invalid(f"--expires = {expires!r} means that it would never hold: write a time above 0, such as 30d")
    keys = Tokens(read_keys(key_file, "--key-file"), cluster_id)
    made = keys.issue(name, cast(Role, role), (realtime_ns() + length_ns) // SECOND)
    if output is None:
        say(made)
    else:
        write_secretly(output, made)
        tell(f"{output}: a token of {name}, {role}; use it with --token-file {output}")
    return 0


def read_keys(file: str, what: str) -> list[bytes]:
    """The keys in a file, one a line. The first signs, all are accepted."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise BadKey(f"{what}: {file} cannot be read: {error.strerror}") from None
    keys = [line for line in (line.strip() for line in content.splitlines()) if line and not line.startswith(b"#")]
    if not keys or len(content) > MOST_KEY_BYTES or len(keys) > KEYS_LIMIT or min(map(len, keys)) < KEY_LEAST:
        raise BadKey(
            f"{what}: {file} holds no token key: that is a line of at least {KEY_LEAST} characters, which "
            f"talka token key makes; at most {KEYS_LIMIT} of them"
        )
    return keys


def write_secretly(path: str, text: str) -> None:
    """A new file that only its owner can read. One that is there already stays: it may be in use."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
    except FileExistsError:
        raise BadKey(f"{path} is there already, and may be in use: name another file") from None
    except OSError as error:
        raise BadKey(f"{path} cannot be written: {error.strerror}") from None
