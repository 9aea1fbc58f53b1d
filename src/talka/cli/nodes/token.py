"""The command `talka token …`: keys of a cluster's API, and tokens for people and programs that use it."""

import os
from typing import TYPE_CHECKING, Final

import click

from talka.cli.command import CommandEntry, LazyGroup, command
from talka.cli.output import say, tell
from talka.errors import Invalid
from talka.units import SECOND

if TYPE_CHECKING:
    from talka.web.auth import Revoked, Tokens

COMMANDS: Final = {
    "key": CommandEntry("Commands", "nodes.token:key", "make a key, which every manager gets"),
    "issue": CommandEntry("Commands", "nodes.token:issue", "make a token with it, for one person or program"),
    "revoke": CommandEntry("Commands", "nodes.token:revoke", "end a token before its time"),
}
KEY_BYTES: Final = 48
KEY_LEAST: Final = 32
KEYS_LIMIT: Final = 8
MOST_KEY_BYTES: Final = 64 * 1024
ID_BYTES: Final = 8
ROLES: Final = ("view", "submit", "operate", "admin", "viewer", "submitter", "operator")
"""The last three are what the first were called before."""
REVOKED_SUFFIX: Final = ".revoked"


class BadKey(Invalid):
    """A file that holds no key, or cannot be read or written."""


token = LazyGroup(
    "token",
    "Tokens that open a cluster's API. Whoever may submit runs code of their own on the workers.",
    COMMANDS,
    ("talka token key -o key", "once; managers get it"),
    ("talka token issue --key-file key --role view --for ci", "for a program"),
    ("talka jobs --token-file ada.token", "using one"),
)


@command("key", "Make a key for tokens. Every manager of the cluster gets it, and nobody else.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it, for your eyes only. Required.")
def key(output: str) -> int:
    import secrets

    write_secretly(output, secrets.token_urlsafe(KEY_BYTES))
    tell(f"{output}: start managers with --token-key-file {output}\nWhoever has it can make tokens of every role.")
    return 0


@command(
    "issue",
    "Make a token. view: look. submit: also submit, change and cancel jobs. operate: also drain and undrain workers, "
    "replay dead letters and put schedules. admin: also read the audit log.",
    ("talka token issue --key-file key --role view --for ci", "printed, for a variable"),
    ("talka token issue … --role operate --expires 8h -o ada.token", "in a file"),
)
@click.option("--key-file", required=True, metavar="FILE", help="The cluster's token key. Required.")
@click.option("--role", required=True, type=click.Choice(ROLES), help="Its role. Required.")
@click.option(
    "--for", "--name", "name", required=True, metavar="NAME", help="The name of its owner, shown with jobs. Required."
)
@click.option("--id", "token_id", metavar="ID", help="Its id, for revoking it (drawn at random).")
@click.option("--expires", default="30d", metavar="D", help="How long it is valid: 30d, 12h (30d).")
@click.option("--cluster", "cluster_id", default="default", metavar="ID", help="The cluster's id (default).")
@click.option("-o", "--output", metavar="FILE", help="Write it here, for your eyes only, instead of printing it.")
def issue(
    key_file: str, role: str, name: str, token_id: str | None, expires: str, cluster_id: str, output: str | None
) -> int:
    import secrets

    from talka.cli.nodes.secret import checked_id
    from talka.clock import realtime_ns
    from talka.web.auth import ROLE_WORDS, Tokens
    from talka.work.durations import parse_duration

    checked_id("cluster", cluster_id)
    length_ns = parse_duration(expires, what="--expires")
    if length_ns < SECOND:
        raise Invalid(f"--expires = {expires!r} means that it would never be valid: write a time above 0, such as 30d")
    keys = Tokens(read_keys(key_file, "--key-file"), cluster_id)
    id = token_id or secrets.token_hex(ID_BYTES)
    made = keys.issue(name, ROLE_WORDS[role], (realtime_ns() + length_ns) // SECOND, id)
    if output is None:
        say(made)
        tell(f"its id is {id}: talka token revoke {id} --key-file {key_file} ends it")
    else:
        write_secretly(output, made)
        tell(f"{output}: a token of {name}, {role}, with the id {id}; use it with --token-file {output}")
    return 0


@command(
    "revoke",
    "End a token before its time, by the id that issue told. It is written beside the key file, from where managers"
    " read it at once: do this for the key file of every manager.",
    ("talka token revoke 5f2c0a9b1d3e4f60 --key-file key", "where each manager reads the key"),
)
@click.argument("token_id", metavar="ID")
@click.option("--key-file", required=True, metavar="FILE", help="The cluster's token key. Required.")
def revoke(token_id: str, key_file: str) -> int:
    read_keys(key_file, "--key-file")
    revoked = revoked_beside(key_file)
    try:
        is_new = revoked.add(token_id)
    except OSError as error:
        raise BadKey(f"{key_file}{REVOKED_SUFFIX} cannot be written: {error.strerror}") from None
    tell(f"{token_id} {'holds no longer' if is_new else 'was revoked before'}: {key_file}{REVOKED_SUFFIX}")
    return 0


def revoked_beside(key_file: str) -> "Revoked":
    from talka.web.auth import Revoked

    return Revoked(f"{key_file}{REVOKED_SUFFIX}")


def tokens_from(key_file: str, what: str, cluster: str) -> "Tokens":
    """What a manager lets people in by: the keys in the file, but not what is revoked beside it."""
    from talka.web.auth import Tokens

    return Tokens(read_keys(key_file, what), cluster, revoked_beside(key_file))


def read_keys(file: str, what: str) -> list[bytes]:
    """The keys in a file, one a line. The first signs, all are accepted."""
    from talka.net.private_files import read_private

    try:
        content = read_private(file, "the token key", MOST_KEY_BYTES)
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
