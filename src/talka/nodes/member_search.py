"""A member looks for its first peer, and keeps knowing where to look when somebody is missing."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from talka.clock import boottime_ns
from talka.net.discovery import Candidates, SourceRefused, probe
from talka.nodes.member_events import Event

REFRESH_S: Final = 60.0
REFRESH_JITTER_S: Final = 5.0
ALONE_S: Final = 5.0
"""How long after it was welcomed a member that still knows nobody says so."""
TOLD_LIMIT: Final = 256


class Searching:
    """Candidates; where there are none, it tells why, each reason once."""

    def __init__(self, candidates: Candidates, tell: Callable[[Event], None]) -> None:
        self.at_once = candidates.at_once
        self._candidates = candidates
        self._tell = tell
        self._told: dict[str, None] = {}

    async def resolve(self, now: int) -> list[str]:
        found = await self._candidates.resolve(now)
        for problem in [] if found else self._candidates.problems:
            if problem not in self._told and len(self._told) < TOLD_LIMIT:
                self._told[problem] = None
                self._tell({"event": "searching", "text": problem})
        return found


class Search:
    """Runs from the start of a member to its end. Tell it of every answer with `greeted` and `closed`."""

    def __init__(
        self,
        sources: Sequence[str],
        *,
        own: str,
        remembered: Callable[[], list[str]],
        greet: Callable[[str], None],
        join: Callable[[list[str]], None],
        set_seeds: Callable[[list[str]], None],
        is_alone: Callable[[], bool],
        tell: Callable[[Event], None],
        rng: Random,
    ) -> None:
        self._candidates = Candidates(sources, remembered=remembered, own=[own])
        self._has_somebody = bool(sources) or bool(remembered())
        self._greet = greet
        self._join = join
        self._set_seeds = set_seeds
        self._is_alone = is_alone
        self._tell = tell
        self._rng = rng
        self._greetings: dict[str, asyncio.Future[str]] = {}
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(_surface)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refresh(self) -> None:
        """Others were met: they are seeds too from now on."""
        self._fresh.set()

    def greeted(self, address: str, refusal: str) -> None:
        greeting = self._greetings.get(address)
        if greeting is None or greeting.done():
            return
        if refusal:
            greeting.set_exception(SourceRefused(f"{address} does not let this member in: {refusal}"))
        else:
            greeting.set_result(address)

    def closed(self, address: str, key_id: str) -> None:
        """The node at this address closed the connection it was asked on."""
        self.greeted(
            address,
            "it closed the connection without an answer, so it does not know this secret "
            f"(key {key_id}), or it wants certificates (--certs)",
        )

    async def _run(self) -> None:
        if self._has_somebody:
            await self._find_first()
        while True:
            self._set_seeds(await self._candidates.resolve(boottime_ns()))
            self._fresh.clear()
            try:
                async with asyncio.timeout(REFRESH_S + self._rng.random() * REFRESH_JITTER_S):
                    await self._fresh.wait()
            except TimeoutError:
                continue

    async def _find_first(self) -> None:
        first = await probe(
            Searching(self._candidates, self._tell),
            self._ask,
            rng=self._rng,
            now=boottime_ns,
            on_refusal=self._on_refusal,
        )
        assert first is not None  # it ends with an answer, or is cancelled
        # Name servers that are silent must not keep it from those it was given.
        others = await self._candidates.at_once() or await self._candidates.resolve(boottime_ns())
        self._join([first, *others])
        asyncio.get_running_loop().call_later(ALONE_S, self._look_around, first)

    def _look_around(self, first: str) -> None:
        if self._is_alone() and self._task is not None and not self._task.done():
            text = (
                f"{first} answered and joining it does not come through: is its TCP port open both ways, "
                "and do both sides have certificates, or neither?"
            )
            self._tell({"event": "searching", "text": text})

    async def _ask(self, address: str) -> str:
        greeting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._greetings[address] = greeting
        try:
            self._greet(address)
            return await greeting
        finally:
            self._greetings.pop(address, None)

    def _on_refusal(self, sentence: str) -> None:
        self._tell({"event": "refused", "address": "", "reason": "seed", "text": sentence})


def _surface(task: "asyncio.Task[None]") -> None:
    """A mistake in the search must be seen, not kept in a task that nobody awaits."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        raise error
