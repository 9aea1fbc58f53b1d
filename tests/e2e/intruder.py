"""Somebody with a certificate and the cluster's secret who says whatever it wants, over real TLS connections."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from talka.clock import boottime_ns
from talka.cluster.effects import Lane, Transmit
from talka.control.member.admission import Admission, HelloDeclined, Welcomed
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.send_queue import Class
from talka.errors import Untrusted
from talka.net.identity import Certified
from talka.net.streams import Streams
from talka.wire import greeting, membership
from talka.wire.greeting import Self
from talka.wire.security.keys import Keyring
from talka.wire.security.permissions import CHANNELS
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION

LIMIT_S = 30.0


class Intruder:
    """One connection to one node. `async with`, then `say`; what it is answered is in `heard`."""

    def __init__(self, target: str, *, secret: str, certs: Path, name: str, role: Role) -> None:
        rng = random.SystemRandom()
        self.heard: list[object] = []
        self.refused = ""
        self._target, self._name = target, name
        boot = rng.getrandbits(61)
        self._admission = Admission(
            replay_guard=ReplayGuard(group="default/default", name=name, boot=boot),
            seal=Seal(Keyring.of((secret,)), boot),
            name=name,
            me=Self("default", "default", role, str(VERSION)),
            rng=rng,
        )
        security = Certified(certs, name=name, role=role, cluster="default", environment="default")
        self._streams = Streams(
            on_frame=self._on_frame, on_refused=self._on_refused, rng=rng, security=security, on_gone=self._on_gone
        )
        self._node = ""
        self._news = asyncio.Event()

    async def __aenter__(self) -> "Intruder":
        self._carry(self._admission.hello(boottime_ns(), self._target))
        await self.until(lambda: bool(self._node))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._streams.close()

    @property
    def is_open(self) -> bool:
        return not self.refused

    def say(self, channel: int, message: object) -> None:
        body = msgspec.msgpack.encode(message)
        # As the real ones: what only one node may hear is sealed for it.
        to = "" if channel in (membership.CHANNEL.number, greeting.CHANNEL.number) else self._node
        frame = self._admission.wrap(boottime_ns(), channel, body, to=to)
        self._streams.renew(self._target)
        self._streams.send(self._target, frame, Class.JOBS)

    async def ask(self, channel: int, message: object, kind: type, within_s: float = LIMIT_S) -> Any:
        """The next message of this kind; None: there was none before a later question was answered."""
        before = len(self.heard)
        self.say(channel, message)
        await self.settle()
        return next((one for one in self.heard[before:] if isinstance(one, kind)), None)

    async def settle(self) -> None:
        """Until the node has read what was said: its answer to a greeting comes after."""
        before = len(self.heard)
        self._carry(self._admission.hello(boottime_ns(), self._target))
        await self.until(lambda: any(isinstance(one, Welcomed) for one in self.heard[before:]))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def _on_frame(self, source: str, frame: bytes, proven: Proven) -> bool:
        opened = self._admission.opened
        arrivals, effects = self._admission.receive(boottime_ns(), source, frame, Lane.STREAM, -1, proven)
        for arrival in arrivals:
            try:
                self.heard.append(CHANNELS[arrival.packet.channel].decode(arrival.packet.body))
            except Untrusted:
                continue
        self._carry(effects)
        self._news.set()
        return self._admission.opened > opened

    def _carry(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit) and effect.lane is not Lane.DATAGRAM:
                self._streams.send(effect.to, effect.frame, Class.JOBS)
            elif isinstance(effect, Welcomed):
                self._node = effect.name
                self.heard.append(effect)
                self._news.set()
            elif isinstance(effect, HelloDeclined):
                self.refused = effect.text

    def _on_refused(self, address: str, reason: str, text: str) -> None:
        self.refused = f"{reason}: {text}"
        self._news.set()

    def _on_gone(self, address: str, was_there: bool) -> None:
        self._news.set()
