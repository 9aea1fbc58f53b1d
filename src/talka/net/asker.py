"""Asks one node questions over TCP, as one who is no member: its seal proves that it may."""

import asyncio
import random
from pathlib import Path
from typing import Final

from talka.clock import boottime_ns
from talka.cluster.effects import Lane, Transmit
from talka.control.member.admission import Admission, AdmissionEffect, HelloDeclined, Welcomed
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.send_queue import Class
from talka.errors import Unavailable, Untrusted
from talka.net.streams import Security, Streams
from talka.wire import asking
from talka.wire.asking import Ask, AskAnswer, Question
from talka.wire.greeting import Self
from talka.wire.security.keys import Keyring
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION as PROTOCOL_VERSION

TIMEOUT_S: Final = 10.0


class NodeSilent(Unavailable):
    """The node cannot be reached, or does not let us ask."""


class NobodyThere(NodeSilent):
    """Nobody listens at this address."""


class AnswerRefused(Unavailable):
    """The node understood the question and says why it does not do it."""


class NodeAsker:
    """One connection to one node. `async with`, then `ask`."""

    def __init__(
        self,
        address: str,
        target: str,
        *,
        secrets: tuple[str, ...],
        cluster: str,
        environment: str,
        certs: Path | None = None,
        name: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`address` as it was written, `target` the same with an IP address. `name`: the certificate's."""
        self._address = address
        self._target = target
        self._timeout_s = timeout_s
        rng = random.SystemRandom()
        name = name or f"client-{rng.getrandbits(48):012x}"
        boot = rng.getrandbits(61)
        security: Security | None = None
        role = Role.CLIENT
        if certs is not None:
            from talka.net.identity import Certified, role_in

            role = role_in(certs, name)
            security = Certified(certs, name=name, role=role, cluster=cluster, environment=environment)
        self._ring = Keyring.of(secrets)
        self._admission = Admission(
            replay_guard=ReplayGuard(group=f"{cluster}/{environment}", name=name, boot=boot),
            seal=Seal(self._ring, boot),
            name=name,
            me=Self(cluster, environment, role, str(PROTOCOL_VERSION)),
            rng=rng,
        )
        self._streams = Streams(
            on_frame=self._on_frame, on_refused=self._on_refused, rng=rng, security=security, on_gone=self._on_gone
        )
        self._node = ""
        self._welcome: asyncio.Future[str] | None = None
        self._answers: dict[int, asyncio.Future[AskAnswer]] = {}
        self._number = 0

    async def __aenter__(self) -> "NodeAsker":
        self._welcome = asyncio.get_running_loop().create_future()
        try:
            self._carry(self._admission.hello(boottime_ns(), self._target))
            async with asyncio.timeout(self._timeout_s):
                self._node = await self._welcome
        except TimeoutError:
            await self._streams.close()
            raise NodeSilent(f"{self._address} did not answer within {self._timeout_s:g} s") from None
        except BaseException:
            await self._streams.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._streams.close()

    async def ask(self, question: Question) -> bytes:
        self._number += 1
        number = self._number
        asked = Ask(number, question, round(self._timeout_s * 1000))
        if not self._admission.agreements.may_say(self._node, asked):
            version = self._admission.agreements.of(self._node).version
            raise AnswerRefused(f"{self._node} speaks protocol {version} and does not know this question: upgrade it")
        answered: asyncio.Future[AskAnswer] = asyncio.get_running_loop().create_future()
        self._answers[number] = answered
        body = asking.encode(asked)
        frame = self._admission.wrap(boottime_ns(), asking.CHANNEL.number, body, to=self._node)
        try:
            self._streams.send(self._target, frame, Class.JOBS)
            async with asyncio.timeout(self._timeout_s):
                answer = await answered
        except TimeoutError:
            raise NodeSilent(f"{self._address} did not answer within {self._timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if answer.problem:
            raise AnswerRefused(answer.problem)
        return answer.content

    def _on_frame(self, source: str, frame: bytes, proven: Proven) -> bool:
        opened = self._admission.opened
        arrivals, effects = self._admission.receive(boottime_ns(), source, frame, Lane.STREAM, -1, proven)
        self._carry(effects)
        for arrival in arrivals:
            if arrival.packet.channel != asking.CHANNEL.number:
                continue
            try:
                message = asking.decode(arrival.packet.body)
            except Untrusted:
                continue
            waiting = self._answers.get(message.number) if isinstance(message, AskAnswer) else None
            if waiting is not None and not waiting.done() and isinstance(message, AskAnswer):
                waiting.set_result(message)
        return self._admission.opened > opened

    def _carry(self, effects: list[AdmissionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit) and effect.lane is not Lane.DATAGRAM:
                self._streams.send(effect.to, effect.frame, Class.JOBS)
            elif isinstance(effect, Welcomed) and self._welcome is not None and not self._welcome.done():
                self._welcome.set_result(effect.name)
            elif isinstance(effect, HelloDeclined):
                self._fail(NodeSilent(f"{self._address} refuses this client: {effect.text}"))

    def _on_refused(self, address: str, reason: str, text: str) -> None:
        self._fail(NodeSilent(f"{self._address}: {text}"))

    def _on_gone(self, address: str, was_there: bool) -> None:
        if not was_there:
            text = f"nobody listens at {self._address}: is the node running, and is its TCP port open?"
            self._fail(NobodyThere(text))
        elif self._node:
            self._fail(NodeSilent(f"{self._address} closed the connection before it answered"))
        else:
            self._fail(
                NodeSilent(
                    f"{self._address} closed the connection without an answer: it does not know this secret "
                    f"(key {self._ring.primary_id}), or it wants certificates (--certs)"
                )
            )

    def _fail(self, error: NodeSilent) -> None:
        for waiting in (self._welcome, *self._answers.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
