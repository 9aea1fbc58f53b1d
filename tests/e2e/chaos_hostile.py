"""Somebody with a worker's certificate and the secret, who says every message at random to every manager.

What its role may not say must be refused, all of it; what it may say must change nothing of anybody else's. What it is
answered shows no order, no blob, no vote: only what any worker is told that beats and was given nothing.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from talka.control.member.admission import Welcomed
from talka.wire.security.permissions import MESSAGES, name_of, rows
from talka.wire.security.roles import Role
from tests.e2e.chaos_cluster import HOSTILE, ChaosCluster
from tests.e2e.intruder import Intruder
from tests.sim.hostile_node import harmless_beat, is_harmless
from tests.sim.sampler import Sampler

GAP_S = 0.004
METRIC = "talka_frames_refused_by_role_total"
REFUSED_BEFORE = ("ShareRing",)
"""Refused for more reasons than the role: counted elsewhere too."""


@dataclass
class Assault:
    """What was said, and what became of it."""

    sent: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def add(self, other: "Assault") -> None:
        for mine, theirs in ((self.sent, other.sent), (self.refused, other.refused)):
            for word, number in theirs.items():
                mine[word] = mine.get(word, 0) + number


async def assault(
    cluster: ChaosCluster, dice: random.Random, seconds: float, known: Mapping[str, Sequence[object]]
) -> Assault:
    """Every row of the table once to each manager, then whatever the dice say until the time is over."""
    found = Assault()
    before = refused_by(cluster)
    sampler = Sampler(dice, known)
    async with AsyncExitStack() as stack:
        intruders = [await stack.enter_async_context(intruder_of(cluster, name)) for name in cluster.managers]
        until = asyncio.get_running_loop().time() + seconds
        todo = [(intruder, channel, kind) for channel, kind in MESSAGES for intruder in intruders]
        dice.shuffle(todo)
        while todo or asyncio.get_running_loop().time() < until:
            intruder, channel, kind = todo.pop() if todo else (dice.choice(intruders), *dice.choice(MESSAGES))
            message = harmless_beat(sampler.message(kind))
            intruder.say(channel, message)
            found.sent[name_of(message)] = found.sent.get(name_of(message), 0) + 1
            await asyncio.sleep(GAP_S)
        for intruder in intruders:
            await intruder.settle()
            told = [one for one in intruder.heard if not isinstance(one, Welcomed) and not is_harmless(one)]
            found.broken += [f"the hostile member was told {name_of(one)}: {one!r:.200}" for one in told[:3]]
    after = refused_by(cluster)
    found.refused = {
        word: number - before.get(word, 0) for word, number in after.items() if number > before.get(word, 0)
    }
    for _, word, who in rows():
        sent, refused = found.sent.get(word, 0), found.refused.get(word, 0)
        if Role.WORKER not in who and refused < sent and word not in REFUSED_BEFORE:
            found.broken.append(f"{word} was said {sent} times by a worker and refused {refused} times")
    return found


def intruder_of(cluster: ChaosCluster, manager: str) -> Intruder:
    place = cluster.place(manager).advertised
    return Intruder(place, secret=cluster.secret, certs=cluster.certs, name=HOSTILE, role=Role.WORKER)


def refused_by(cluster: ChaosCluster) -> dict[str, int]:
    """Of all managers together, by message."""
    counts: dict[str, int] = {}
    for name in cluster.managers:
        for (metric, word), number in cluster.metrics(name, "--certs", str(cluster.certs)).items():
            if metric == METRIC:
                counts[word] = counts.get(word, 0) + int(number)
    return counts


def table_of(assaults: Iterable[Assault]) -> str:
    """Message × sent × refused by the table × harmless."""
    whole = Assault()
    for one in assaults:
        whole.add(one)
    lines = [("MESSAGE", "SENT", "REFUSED", "HARMLESS")]
    for _, word, who in rows():
        sent, refused = whole.sent.get(word, 0), whole.refused.get(word, 0)
        lines.append((word, str(sent), str(refused), str(max(0, sent - refused)) if Role.WORKER in who else ""))
    total = [str(sum(counts.values())) for counts in (whole.sent, whole.refused)]
    lines.append(("all", *total, ""))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
