"""Members and voters of two releases: every host is replaced by the next one, one after the other, and some back again.

The newer release has a message more. Everybody hands it, and one that both know, to its member for everybody. Hosts
crash, links lose and double, and nets fall apart meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from typing import Any, Final
from unittest.mock import patch

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.testing.faults import FaultLimits, Faults
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, World
from talka.units import MILLISECOND, SECOND
from talka.wire import jobs
from talka.wire.channels import Message
from talka.wire.greeting import Self
from talka.wire.jobs import CHANNEL, JobMessage, Sync
from talka.wire.security.keys import Keyring
from talka.wire.security.roles import Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION
from tests.sim.checkers.leadership import OneLeaderPerTerm
from tests.sim.checkers.skew import Told

GROUP: Final = "shop/staging"
RING: Final = Keyring.of(("kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu",))
VOTERS: Final = ("v0", "v1", "v2")
HOSTS: Final = (*VOTERS, "m0", "m1")
OLDER: Final = VERSION.minor
NEWER: Final = OLDER + 1
SAID_EVERY_NS: Final = 400 * MILLISECOND
FAULTS_FROM: Final = 3 * SECOND
CALM_FROM: Final = 24 * SECOND
ENDS_AT: Final = CALM_FROM + 12 * SECOND
CLASSES: Final = ("crash", "partition")


class Rain(Message, frozen=True, tag=240):
    """What only the newer release knows."""

    since = NEWER
    number: int


@contextmanager
def with_rain() -> Iterator[None]:
    """The newer release's table of messages. That older hosts do not know it too is for the checker."""
    both: Any = reduce(or_, (*jobs.CHANNEL.kinds, Rain))
    with patch.object(jobs.CHANNEL, "_read", msgspec.msgpack.Decoder(both).decode):
        yield


class Talker:
    """Has something to say to everybody, twice: in words that all know, and in those of the newer release."""

    def __init__(self, boot: Boot, minor: int, told: Told) -> None:
        self.next_tick_at = boot.now
        self._name = boot.name
        self._minor = minor
        self._told = told
        self._number = 0

    def tick(self, now: int) -> Sequence[Send[Message]]:
        self.next_tick_at = now + SAID_EVERY_NS
        self._number += 1
        said: list[Send[Message]] = []
        for to in HOSTS:
            if to != self._name:
                said.append(Send(CHANNEL, to, Sync(self._number), Lane.STREAM))
                if self._minor == NEWER:
                    said.append(Send(CHANNEL, to, Rain(self._number), Lane.STREAM))
        return said

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: Role | None = None
    ) -> Sequence[Send[Message]]:
        self._told.hear(self._name, sender, self._minor, message)
        return []

    def on_news(self, now: int, news: Elected | SteppedDown | WriteEnded) -> Sequence[Send[Message]]:
        return []

    def on_persisted(self, now: int, ticket: int) -> Sequence[Send[Message]]:
        return []

    def on_not_persisted(self, now: int, ticket: int, text: str) -> Sequence[Send[Message]]:
        return []


class Story:
    """Up for everybody, back for some, and then a calm in which everybody must be heard again."""

    def __init__(self, seed: int, *, verbose: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, verbose=verbose)
        rng = world.rng("plan")
        world.network.default = LinkProfile(
            latency_ns=rng.randrange(100, 2000) * 1000,
            jitter_ns=rng.randrange(50, 30_000) * 1000,
            loss=0.01 + 0.02 * rng.random(),
            duplicate=0.02 + 0.1 * rng.random(),
        )
        self.told = Told(world)
        self._minors = dict.fromkeys(HOSTS, OLDER)
        self.plan: list[str] = []
        for name in HOSTS:
            world.add_host(name, self._start, clock=Clock(rng.randrange(1000) * SECOND))
            world.at(rng.randrange(SECOND), partial(_begin, world.hosts[name]))
        world.observers += [OneLeaderPerTerm(), self.told]
        limits = FaultLimits(gap_ns=3 * SECOND, down_ns=(50 * MILLISECOND, 2 * SECOND))
        self.faults = Faults(world, HOSTS, CLASSES, limits=limits)
        half = (CALM_FROM - FAULTS_FROM) // 2
        ups, downs = rng.sample(HOSTS, len(HOSTS)), rng.sample(HOSTS, rng.randrange(2, len(HOSTS)))
        for names, minor, first in ((ups, NEWER, FAULTS_FROM), (downs, OLDER, FAULTS_FROM + half)):
            for place, name in enumerate(names):
                at = first + (half - SECOND) * place // len(names) + rng.randrange(SECOND)
                self.plan.append(f"at {at / SECOND:.1f} s {name} is replaced by minor {minor}")
                world.at(at, partial(self._replace, world.hosts[name], minor, rng.randrange(20, 900) * MILLISECOND))

    def _replace(self, host: Host, minor: int, after_ns: int) -> None:
        self._minors[host.name] = minor
        host.crash()
        self.world.after(after_ns, partial(_begin, host))

    def _start(self, boot: Boot) -> ClusterMember[Send[Message]]:
        minor = self._minors[boot.name]
        self.told.begin(boot.name, minor)
        replay_guard = ReplayGuard(group=GROUP, name=boot.name, boot=boot.boot)
        nonces = self.world.rng("nonce", f"{boot.name}:{boot.boot}")
        admission = Admission(
            replay_guard=replay_guard,
            seal=Seal(RING, boot.boot),
            name=boot.name,
            me=Self("shop", "staging", "manager", f"{VERSION.major}.{minor}"),
            rng=nonces,
        )
        config = PRESETS["default"]
        members = Membership(
            name=boot.name, boot=boot.boot, address=boot.name, group=GROUP, config=config, rng=boot.rng, now=boot.now
        )
        voter = None
        if boot.name in VOTERS:
            voter = Voter(name=boot.name, voters=VOTERS, stored=boot.stored, rng=boot.rng, now=boot.now)
        return ClusterMember(
            group=GROUP,
            name=boot.name,
            boot=boot.boot,
            membership=members,
            voter=voter,
            part=Talker(boot, minor, self.told),
            seeds=VOTERS,
            replay_guard=replay_guard,
            admission=admission,
        )

    def run(self) -> World:
        world = self.world
        world.at(FAULTS_FROM, partial(self.faults.begin, CALM_FROM))
        world.at(CALM_FROM, self.faults.stop)
        with with_rain():
            world.run_until(ENDS_AT)
        if not world.stopped:
            world.finish()
        return world


def _begin(host: Host) -> None:
    host.start()


def describe(seed: int) -> list[str]:
    return Story(seed).plan


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    return Story(seed, verbose=verbose).run()
