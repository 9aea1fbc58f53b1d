"""What commands that ask a cluster over its API have in common."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from talka.cli.command import option, options
from talka.cli.nodes.private import found_token
from talka.cli.output import tell
from talka.errors import Invalid
from talka.units import SECOND

if TYPE_CHECKING:
    from talka.cli.config import CliSettings
    from talka.client.client import Client

DEFAULT_TO: Final = "127.0.0.1:8470"
CLUSTER: Final = "Cluster"
KNOWN_FOLDER: Final = "~/.local/state/talka/clients"
MOST_TOKEN_BYTES: Final = 8192

Found = TypeVar("Found")


class NoToken(Invalid):
    """The file of a token cannot be used."""


trust_options = options(
    option(CLUSTER, "--token-file", "FILE", "Your token, where the cluster wants one (or set TALKA_TOKEN)."),
    option(CLUSTER, "--ca", "FILE", "The cluster's ca.crt, where its API speaks TLS."),
)
api_options = options(
    option(CLUSTER, "--to", "HOST:PORT", f"A manager's API; several with commas between ({DEFAULT_TO})."),
    trust_options,
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def client_of(settings: "CliSettings") -> "Client":
    from talka.client.client import Client
    from talka.clock import realtime_ns
    from talka.control.member.peer_pool import Place
    from talka.store.files.known_clusters import KNOWN_NAME, KnownClusters

    addresses = [address.strip() for address in (settings.to or DEFAULT_TO).split(",") if address.strip()]
    memory: KnownClusters | None = KnownClusters(Path(KNOWN_FOLDER).expanduser() / KNOWN_NAME, realtime_ns() // SECOND)
    token = token_of(settings)
    if token is None and settings.ca is None and (token := found_token(addresses)) is not None:
        memory = None  # that token is for this machine's own cluster, and for nobody else
    place = Place(settings.zone or "", settings.datacenter or "", settings.region or "")
    client = Client(addresses, token, settings.ca, place=place, memory=memory)
    client.on_trouble = tell
    return client


def token_of(settings: "CliSettings") -> str | None:
    """A flag comes before TALKA_TOKEN, which comes before a file that the configuration names."""
    from talka.cli.config import own_token

    file, origin = settings.token_file, settings.named("token_file")
    if file is None or (not origin.startswith("--") and own_token() is not None):
        return own_token()
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MOST_TOKEN_BYTES + 1)
        token = content.decode("ascii").strip()
    except OSError as error:
        raise NoToken(f"{origin}: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoToken(f"{origin}: {file} holds no token: talka token issue makes one") from None
    if not token or len(content) > MOST_TOKEN_BYTES or len(token.split()) > 1:
        raise NoToken(f"{origin}: {file} holds no token, which is one line: talka token issue makes one")
    return token


def asked(flags: dict[str, Any], question: Callable[["Client"], Coroutine[Any, Any, Found]]) -> Found:
    """The answer to one question, asked where the flags, the environment or the configuration say."""
    from talka.cli.config import read_settings

    settings = read_settings(flags)
    return answered(settings, question(client_of(settings)))


def answered(settings: "CliSettings", work: Coroutine[Any, Any, Found]) -> Found:
    """Whoever has no token and needs one is told how to show one."""
    import asyncio

    from talka.client.requests import NotAuthorised

    try:
        return asyncio.run(work)
    except NotAuthorised as error:
        if token_of(settings) is not None:
            raise
        raise NotAuthorised(f"{error}; that is, give --token-file FILE or set TALKA_TOKEN") from None


def submitted(settings: "CliSettings", work: Coroutine[Any, Any, Found]) -> Found:
    try:
        return answered(settings, work)
    except KeyboardInterrupt:
        tell("interrupted while the job was being submitted: talka jobs list tells whether it was")
        raise
