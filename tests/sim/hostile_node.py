"""A member of a world that has a worker's certificate and the secret, and says everything to everybody.

What it names is real more often than not: it is told of jobs, attempts, fences and digests as if it had read them all
on a worker's machine. It never says that it would take work, since of what it was given it may lie as it likes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Transmit
from talka.control.member.replay_guard import ReplayGuard
from talka.errors import TalkaError
from talka.units import MILLISECOND, NEVER
from talka.wire import asking, jobs, membership, tasks
from talka.wire.packets import decode_packet
from talka.wire.security.permissions import CHANNELS, MESSAGES, name_of
from talka.wire.security.roles import Proven, Role
from tests.sim.sampler import Sampler

if TYPE_CHECKING:
    from talka.testing.host import Host
    from talka.testing.world import Boot, World

GAP_MS: Final = (3, 60)
"""Between two of its messages."""
HOSTILE: Final = "hostile member"
"""The fault's name in `World.struck`."""
HARMLESS: Final[tuple[type, ...]] = (
    # What any worker is told that beats, or that names an attempt it does not have.
    jobs.Renew,
    jobs.Elsewhere,
    jobs.Halt,
    jobs.ResultAccepted,
    tasks.ResultsStored,
    tasks.AskHeld,
    tasks.Recall,
    # Whoever has the secret can be taken for a member by datagrams: a hint, and nothing of jobs is said there.
    *membership.CHANNEL.kinds,
)

Known: TypeAlias = Mapping[str, Sequence[object]]
"""By the name of the field it goes into."""


class HostileNode:
    """Runs on a host of its own, of which a certificate says `Role.WORKER`. What it was told is in `heard`."""

    def __init__(
        self,
        boot: "Boot",
        world: "World",
        targets: Sequence[str],
        known: Callable[[], Known],
        *,
        heard: dict[str, object],
        sent: dict[str, int],
        until: int,
    ) -> None:
        self.next_tick_at = boot.now
        self.frames_admitted = 0
        self._world = world
        self._targets = tuple(targets)
        self._known = known
        self._heard = heard
        self._sent = sent
        self._until = until
        self._rng = boot.rng
        self._sampler = Sampler(boot.rng)
        self._replay_guard = ReplayGuard(group="g", name=boot.name, boot=boot.boot)

    def start(self, now: int) -> list[Transmit]:
        return []

    def tick(self, now: int) -> list[Transmit]:
        if self._world.now >= self._until:
            self.next_tick_at = NEVER
            return []
        self.next_tick_at = now + self._rng.randrange(*GAP_MS) * MILLISECOND
        self._sampler.known = dict(self._known())
        # Every second one is what its role may say: those get further.
        channel, message = self._sampler.any(Role.WORKER if self._rng.random() < 0.5 else None)
        message = harmless_beat(message)
        frame = self._replay_guard.wrap(channel, msgspec.msgpack.encode(message))
        word = name_of(message)
        self._sent[word] = self._sent.get(word, 0) + 1
        self._world.struck[HOSTILE] = self._world.struck.get(HOSTILE, 0) + 1
        is_datagram = channel == membership.CHANNEL.number and self._rng.random() < 0.5
        lane = Lane.DATAGRAM if is_datagram else Lane.CONTROL
        return [Transmit(self._rng.choice(self._targets), frame, lane)]

    def on_frame(
        self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int, proven: Proven | None = None
    ) -> list[Transmit]:
        try:
            packet = decode_packet(frame)
            message = CHANNELS[packet.channel].decode(packet.body)
        except TalkaError:
            return []
        if not is_harmless(message):
            self._heard.setdefault(f"{name_of(message)} of {source}", message)
        return []

    def on_persisted(self, now: int, ticket: int) -> list[Transmit]:
        return []


def harmless_beat(message: object) -> object:
    """It would be given work otherwise, and may then say what it likes of that."""
    if not isinstance(message, jobs.Beat):
        return message
    return msgspec.structs.replace(message, facts=msgspec.structs.replace(message.facts, state="draining"))


def is_harmless(message: object) -> bool:
    """Whether a worker that was given nothing may be told this."""
    if isinstance(message, jobs.Piece):
        return not message.data
    if isinstance(message, asking.AskAnswer):
        return bool(message.problem) and not message.content
    return isinstance(message, HARMLESS)


def identities(names: Mapping[str, "Host"], workers: Callable[[str], bool]) -> dict[str, Proven]:
    """Certificates for all hosts of a world."""
    return {name: Proven(name, Role.WORKER if workers(name) else Role.MANAGER) for name in names}


KINDS: Final = len(MESSAGES)
