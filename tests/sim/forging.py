"""Somebody who has read all that a worker has, the secret too, and gives tasks to other workers in a manager's
stead."""

from functools import partial
from random import Random
from typing import Final

from talka.cluster.effects import Lane
from talka.control.member.replay_guard import ReplayGuard
from talka.testing.trust import GROUP, SIGNER
from talka.testing.world import World
from talka.units import SECOND
from talka.wire.jobs import CHANNEL, Assign, encode
from talka.wire.orders import BundleFacts
from talka.wire.security.bundles import BundleSigner
from talka.wire.shards import Settings, digest_of_url
from talka.work.load import Plan

NAME: Final = "forger"
URL: Final = "http://elsewhere/"
DIGEST: Final = digest_of_url(URL)
OWN: Final = BundleSigner(b"f" * 32, GROUP)
WORDS: Final = (
    b"",
    OWN.sign(DIGEST),
    SIGNER.sign("0" * 64),
    BundleSigner(bytes(range(32)), "other").sign(DIGEST),
)
"""None; by a key of its own; of a manager for another bundle, and for this one in another cluster."""
AGAIN: Final = 9
"""Times that it says each: a key nobody has named is refused after 5 s only."""


class Forger:
    """`jobs` are those it made up, and at which worker."""

    def __init__(self, world: World, workers: tuple[str, ...]) -> None:
        self.jobs: dict[str, str] = {}
        self._world = world
        self._workers = workers
        self._rng: Random = world.rng("forger")
        self._replay_guard = ReplayGuard(group=GROUP, name=NAME, boot=1)

    def begin(self, until_ns: int) -> None:
        if self._world.now >= until_ns:
            return
        worker, number = self._rng.choice(self._workers), len(self.jobs)
        job = f"forged {number}"
        self.jobs[job] = worker
        assign = Assign(
            job=job,
            fence=(1, 1 << 40, 1),
            attempt=1,
            workflow="Load",
            plan=Plan(model="closed", vus=1, iterations_per_vu=1),
            first=0,
            count=1,
            of=1,
            iterations_done=(0,),
            values={},
            settings=Settings(grace_ns=SECOND),
            bundle=BundleFacts(DIGEST, 0, b"signed", "test.py", {}, URL, word=WORDS[number % len(WORDS)]),
        )
        for turn in range(AGAIN):
            self._world.after(turn * SECOND, partial(self._say, worker, assign))
        self._world.after(self._rng.randrange(500, 2500) * SECOND // 1000, partial(self.begin, until_ns))

    def _say(self, worker: str, assign: Assign) -> None:
        frame = self._replay_guard.wrap(CHANNEL.number, encode(assign))
        self._world.network.inject(worker, NAME, self._world.network.seal(frame), Lane.STREAM)
