"""The command `talka member`."""

import os
import select
import signal
import stat
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Never

import click

from talka.cli.command import command
from talka.cli.nodes.secret import (
    Seconds,
    check_descriptors,
    checked_id,
    cluster_option,
    environment_option,
    read_secrets,
)
from talka.cli.output import tell
from talka.report.tame import tame, tame_json

LINES_LIMIT = 10_000
"""Lines that wait for a reader that does not read; further ones are counted and left out."""
FINISH_S = 1.0
PRESET_NAMES = ("default", "fast", "wan", "serf-lan")
DEFAULT_FOLDER = "~/.local/state/talka"


@command(
    "member",
    "Be a member of a cluster: tell who joins, is lost or leaves, and who leads, one line for each."
    " UDP and TCP on one port. SIGTERM or Ctrl-C: it says good-bye and stops.",
    ("talka member --name a --bind 127.0.0.1:8472 --secret-file s", "the first"),
    ("talka member --name b --bind 127.0.0.1:8473 --seed 127.0.0.1:8472 …", "another"),
    ("talka member … --voters a,b,c", "a, b and c elect a leader"),
)
@click.option("--name", required=True, metavar="NAME", help="Its name, unique in the cluster.")
@click.option("--bind", required=True, metavar="HOST:PORT", help="Where it listens, UDP and TCP.")
@click.option("--advertise", metavar="HOST:PORT", help="Where others reach it (where it listens).")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="ADDRESS",
    help="A member to contact first: HOST:PORT, srv:NAME for a DNS service, or file:PATH. Repeatable.",
)
@click.option("--secret-file", metavar="FILE", help="The cluster's secret, one line of at least 32 characters.")
@click.option("--data-dir", metavar="FOLDER", help=f"Where it keeps its files ({DEFAULT_FOLDER}/NAME).")
@cluster_option
@environment_option
@click.option("--datacenter", default="", metavar="ID", help="The datacenter in which it stands.")
@click.option("--zone", default="", metavar="ID", help="The zone of its datacenter.")
@click.option("--region", default="", metavar="ID", help="The region of its datacenter.")
@click.option("--voters", metavar="A,B,C", help="The names of the voters, which elect a leader: 1, 3 or 5 of them.")
@click.option(
    "--preset", type=click.Choice(PRESET_NAMES), default="default", help="How fast failures are detected (default)."
)
@click.option("--certs", metavar="FOLDER", help="Certificates (talka certs): TCP is TLS, and roles are checked.")
@click.option(
    "--forget-after",
    type=Seconds(1, 604_800),
    metavar="SECONDS",
    help="Drop a dead member from the view after this time (900); looked at every half minute.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each line.")
def member(
    name: str,
    bind: str,
    advertise: str | None,
    seeds: tuple[str, ...],
    secret_file: str | None,
    data_dir: str | None,
    cluster_id: str,
    environment: str,
    datacenter: str,
    zone: str,
    region: str,
    voters: str | None,
    preset: str,
    certs: str | None,
    forget_after: float | None,
    as_json: bool,
) -> int:
    from talka.net.discovery import Candidates
    from talka.nodes.member import MemberOptions
    from talka.wire.addresses import parse_address

    check_descriptors("a member")
    checked_id("name", name)
    checked_id("cluster", cluster_id)
    checked_id("environment", environment)
    for what, text in (("datacenter", datacenter), ("zone", zone), ("region", region)):
        if text:
            checked_id(what, text)
    if advertise:
        parse_address(advertise)
    Candidates(seeds)  # says what is wrong with them
    options = MemberOptions(
        name=name,
        bind=parse_address(bind, is_port_0_allowed=True),
        advertise=advertise or "",
        seeds=seeds,
        secrets=read_secrets(secret_file),
        data_dir=Path(data_dir or f"{DEFAULT_FOLDER}/{name}").expanduser(),
        cluster=cluster_id,
        environment=environment,
        zone=zone,
        datacenter=datacenter,
        region=region,
        voters=voter_names(voters),
        preset=preset,
        certs=None if certs is None else Path(certs),
        forget_after_s=forget_after,
    )
    import asyncio

    return asyncio.run(live(options, as_json))


def voter_names(text: str | None) -> tuple[str, ...]:
    from talka.cluster.leadership.quorum import check_size

    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        checked_id("voter", name)
    if note := check_size(names):
        tell(note)
    return names


async def live(options: Any, as_json: bool) -> int:
    import asyncio

    from talka.cli.nodes.key_repair import audited
    from talka.nodes.member import MemberNode
    from talka.nodes.member_events import sentence_of

    loop = asyncio.get_running_loop()
    printer = Printer(loop, as_json, sentence_of)
    node: MemberNode[Never] = MemberNode(options, audited(printer.event, options.data_dir))
    loop.set_exception_handler(lambda _, context: tell(mishap(context)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    try:
        await node.run()
    finally:
        printer.finish()
    if node.failure is not None:
        tell(str(node.failure))
        return 1
    return 0


def mishap(context: dict[str, Any]) -> str:
    """A mistake of ours in one step; the member goes on with the next."""
    from talka.cli.config import wants_traceback

    error = context.get("exception")
    if error is not None and wants_traceback():
        import traceback

        return "".join(traceback.format_exception(error)).rstrip()
    line = " ".join(f"{type(error).__name__}: {error}".split()) if error is not None else context["message"]
    return f"internal error: {line}\nSet TALKA_TRACEBACK=1 to see where it happened."


class Printer:
    """Prints events. A pipe that nobody reads must not hold the member up: then lines wait, and at last are left
    out."""

    def __init__(
        self,
        loop: Any,
        as_json: bool,
        sentence: Callable[[dict[str, Any]], str],
        *,
        lines_limit: int = LINES_LIMIT,
        finish_s: float = FINISH_S,
    ) -> None:
        """`sentence` says an event to people; empty: it is left out."""
        self._lines_limit = lines_limit
        self._finish_s = finish_s
        self._loop = loop
        self._as_json = as_json
        self._sentence = sentence
        self._waiting: list[bytes] = []
        self._left_out = 0
        self._descriptor = sys.stdout.fileno()
        self._is_pipe = stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
        if self._is_pipe:
            os.set_blocking(self._descriptor, False)

    def event(self, event: dict[str, Any]) -> None:
        if self._as_json:
            import msgspec

            line = tame_json(msgspec.json.encode(event))
        else:
            sentence = self._sentence(event)
            if not sentence:
                return
            at = datetime.fromtimestamp(event["at"]).astimezone()
            line = f"{at:%H:%M:%S.%f}"[:-3].encode() + b"  " + tame(sentence).encode()
        if len(self._waiting) >= self._lines_limit:
            self._left_out += 1
            return
        self._waiting.append(line + b"\n")
        if len(self._waiting) == 1:
            self._write()

    def _write(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self._descriptor, line)
            except BlockingIOError:
                self._loop.add_writer(self._descriptor, self._resume)
                return
            except OSError:  # the reader has gone; the member goes on
                self._waiting.clear()
                return
            if written < len(line):
                self._waiting[0] = line[written:]
            else:
                del self._waiting[0]

    def _resume(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._write()

    def finish(self) -> None:
        """Write what waits, as long as somebody reads."""
        while self._waiting:
            self._loop.remove_writer(self._descriptor)
            if not select.select([], [self._descriptor], [], self._finish_s)[1]:
                self._left_out += len(self._waiting)
                break
            self._write()
        if self._is_pipe:
            os.set_blocking(self._descriptor, True)  # others may have it too
        if self._left_out:
            tell(f"{self._left_out} lines were left out: nobody read them")
