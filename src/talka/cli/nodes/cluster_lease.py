"""The command `talka cluster lease`: asks any manager for the lease of workers, and has it changed."""

from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.command import command
from talka.cli.connection import json_option
from talka.cli.nodes.cluster import ask, ask_one, asking_options
from talka.cli.output import facts_rows, json_of, say, tell
from talka.errors import Unavailable
from talka.units import MILLISECOND

if TYPE_CHECKING:
    from talka.net.asker import NodeAsker
    from talka.wire.views import LeaseView

AGAIN_S: Final = 0.5
BEYOND_S: Final = 60.0
"""After the time that the leader said it waits: it may have been replaced, and its successor waits anew."""


@command(
    "lease",
    "The lease of workers: one that is silent for so long is given up, and its work given to others. It is one value "
    "for the whole cluster. A change holds once the longer of the old and the new one is over; until then nothing is "
    "given up early and nothing runs twice. Managers go on as they are; take --lease out of their settings, for one "
    "that is started with another value is refused.",
    ("talka cluster lease --to HOST:PORT", "how long it is, and where it comes from"),
    ("talka cluster lease 2s --to HOST:PORT", "make it 2 s for all managers; waits until that is in force"),
)
@click.argument("duration", metavar="[D]", required=False)
@asking_options
@json_option
def lease(duration: str | None, as_json: bool, **where: Any) -> int:
    import msgspec

    from talka.cli.nodes.settings import checked_lease
    from talka.wire.asking import AskLease
    from talka.wire.views import LeaseView
    from talka.work.durations import format_duration, parse_duration

    if duration is None:
        view = msgspec.json.decode(ask_one(where, AskLease()), type=LeaseView)
    else:
        lease_ns = checked_lease(f"the lease = {duration!r}", parse_duration(duration, what="the lease"))
        view = ask(where, lambda asker: changed(asker, lease_ns))
    rows = [("lease", format_duration(view.lease_ms * MILLISECOND)), ("set by", view.by)]
    if view.next_ms:
        next = format_duration(view.next_ms * MILLISECOND)
        rows.append(("changes", f"to {next} in {view.wait_ms / 1000:.1f} s, when the longer one is over"))
    say(json_of(view) if as_json else facts_rows(rows))
    return 0


async def changed(asker: "NodeAsker", lease_ns: int) -> "LeaseView":
    """Ask for it, and wait until it holds."""
    import asyncio

    import msgspec

    from talka.wire.asking import AskLease, ChangeLease
    from talka.wire.views import LeaseView
    from talka.work.durations import format_duration

    wanted_ms = lease_ns // MILLISECOND
    view = msgspec.json.decode(await asker.ask(ChangeLease(lease_ns)), type=LeaseView)
    if view.next_ms:
        tell(f"it takes effect when the longer of the two has passed: {view.wait_ms / 1000:.1f} s")
    for _ in range(round((view.wait_ms / 1000 + BEYOND_S) / AGAIN_S)):
        if (view.lease_ms, view.next_ms) == (wanted_ms, 0):
            return view
        await asyncio.sleep(AGAIN_S)
        view = msgspec.json.decode(await asker.ask(AskLease()), type=LeaseView)
    raise Unavailable(
        f"the change to {format_duration(lease_ns)} has begun and is not in force yet: look with talka cluster lease"
    )
