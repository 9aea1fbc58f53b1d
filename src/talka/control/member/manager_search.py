"""How a worker that no manager leads finds some: those it was told of, in this life or an earlier one, and those that
its seeds and names say. Near ones are greeted first, each again after a growing pause.

What is remembered gives no trust: whoever is greeted must be let in by the same keys and certificates as a stranger.

Decision: docs/decisions/0062-peers-are-remembered-and-near-ones-preferred.md.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Final

import msgspec

from talka.control.member.peer_pool import PeerPool, Place, PoolConfig, PooledPeer
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import ManagerAt, WorkerFacts
from talka.work.retry import RetryPolicy

REMEMBERED_LIMIT: Final = 64
"""Managers that are remembered, those told of last first."""
FOUND_LIMIT: Final = 256
GREETINGS_AT_ONCE: Final = 10
ANSWER_NS: Final = SECOND
"""A greeting that is not answered within this time has failed; a later answer counts all the same."""
MET_NS: Final = 5 * SECOND
"""One that let this worker in hears its beats. It is greeted again if nobody has given a lease after so long."""
PAUSES: Final = RetryPolicy(attempts=None, base_ns=500 * MILLISECOND, factor=2.0, cap_ns=4 * SECOND, jitter="quarter")
"""After each greeting in vain. The cap is how late a manager that comes is found."""

_decoder = msgspec.msgpack.Decoder(tuple[ManagerAt, ...])


class GreetManager(msgspec.Struct, frozen=True):
    """Greet whoever is at this address, and say `welcomed` if it lets this node in."""

    address: str


class ManagerSearch:
    """Call `found` with what seeds and names say, `told` with what managers say, `welcomed` for an answer, `seek` when
    the lease is over and `rest` when there is one; and `tick` once `next_tick_at` has come."""

    def __init__(
        self,
        name: str,
        place: Place,
        content: bytes | None,
        rng: Random,
        now: int,
        *,
        remembered_limit: int = REMEMBERED_LIMIT,
        at_once: int = GREETINGS_AT_ONCE,
    ) -> None:
        """`content` is what was written last, perhaps in an earlier life."""
        self._remembered_limit = remembered_limit
        self._at_once = at_once
        self._remembered = {manager.name: manager for manager in _read(content)}
        self._found: tuple[str, ...] = ()
        config = PoolConfig(rests=PAUSES, peers_limit=FOUND_LIMIT)
        self._pool = PeerPool(PooledPeer(name, place), "managers", rng, config)
        self._tries: dict[str, int] = {}
        """Greetings of each address since it began to seek."""
        self._asked: dict[str, int] = {}
        """Addresses that were greeted, and when."""
        self._met: dict[str, int] = {}
        """Addresses that answered, and when."""
        self._names: dict[str, str] = {}
        """Of those at addresses, as they were told or met."""
        self.searches = 1
        """How often it began to seek."""
        self.greetings = 0
        self.is_seeking = True
        self._has_heard = False
        self.next_tick_at = now
        self._gather(now)

    @property
    def remembered(self) -> tuple[ManagerAt, ...]:
        return tuple(self._remembered.values())

    @property
    def addresses(self) -> list[str]:
        """Where managers may be."""
        return list(self._addresses())

    @property
    def has_found(self) -> bool:
        """Whether seeds and names have said anything."""
        return bool(self._found)

    @property
    def is_alone(self) -> bool:
        """It seeks, and nobody has answered since it began."""
        return self.is_seeking and not self._has_heard

    @property
    def failures(self) -> int:
        """Greetings that were not answered in time."""
        return self._pool.failures

    def name_at(self, address: str) -> str:
        """Of the manager there, where it is known."""
        return self._names.get(address, "")

    def peer(self, name: str) -> PooledPeer:
        """A manager, and where it stands, as far as it was told."""
        known = self._remembered.get(name)
        return PooledPeer(name) if known is None else PooledPeer(name, _place_of(known))

    # What happens.

    def found(self, now: int, addresses: Iterable[str]) -> None:
        """These are all that seeds and names say now. Where that is nobody, what they said before still counts."""
        self._found = tuple(addresses)[:FOUND_LIMIT] or self._found
        self._gather(now)

    def told(self, now: int, managers: tuple[ManagerAt, ...]) -> bytes | None:
        """A manager says where managers are. Answers with what is to be written, where that is new."""
        if all(self._remembered.get(manager.name) == manager for manager in managers):
            return None
        known = {manager.name: manager for manager in (*managers, *self._but(managers))}
        self._remembered = dict(list(known.items())[: self._remembered_limit])
        for manager in managers:
            self._names[manager.address] = manager.name
        self._gather(now)
        return msgspec.msgpack.encode(self.remembered)

    def welcomed(self, now: int, address: str, name: str) -> None:
        """The manager at this address lets this worker in."""
        self._has_heard = True
        self._names[address] = name
        self._met[address] = now
        self._pool.succeeded(now, address, self._asked.pop(address, now))
        self._plan(now)

    def heard(self) -> None:
        """A manager answered a beat."""
        self._has_heard = True

    def seek(self, now: int) -> None:
        """Nobody renews the lease any more: whoever was met may be elsewhere."""
        self.is_seeking = True
        self._has_heard = False
        self.searches += 1
        for kept in (self._asked, self._met, self._tries):
            kept.clear()
        self._plan(now)

    def rest(self) -> None:
        """There is a lease, and the leader names the others."""
        self.is_seeking = False
        self.next_tick_at = NEVER

    def tick(self, now: int) -> list[GreetManager]:
        if now < self.next_tick_at:
            return []
        for address, asked_at in list(self._asked.items()):
            if now >= asked_at + ANSWER_NS:
                del self._asked[address]
                self._pool.failed(now, address, asked_at)
        effects: list[GreetManager] = []
        # Near ones first, and nobody again before everybody was greeted as often.
        for address in sorted(self._pool.due(now), key=lambda address: self._tries.get(address, 0)):
            if len(self._asked) >= self._at_once:
                break
            if address not in self._asked and not self._is_met(now, address):
                self._asked[address] = now
                self._tries[address] = self._tries.get(address, 0) + 1
                effects.append(GreetManager(address))
        self.greetings += len(effects)
        self._plan(now)
        return effects

    # What is known.

    def _but(self, managers: tuple[ManagerAt, ...]) -> list[ManagerAt]:
        """Those that were told of earlier. One whose address another has now is not there any more."""
        taken = {manager.address for manager in managers}
        return [
            manager
            for manager in self._remembered.values()
            if manager.address not in taken and manager.name not in {one.name for one in managers}
        ]

    def _addresses(self) -> Mapping[str, Place]:
        """The likeliest first."""
        known = {manager.address: _place_of(manager) for manager in self._remembered.values()}
        return known | {address: Place() for address in self._found if address not in known}

    def _gather(self, now: int) -> None:
        addresses = self._addresses()
        self._pool.set_peers(PooledPeer(address, place) for address, place in addresses.items())
        for kept in (self._asked, self._met, self._tries):
            for address in [address for address in kept if address not in addresses]:
                del kept[address]
        if len(self._names) > 2 * FOUND_LIMIT:
            self._names = {address: name for address, name in self._names.items() if address in addresses}
        self._plan(now)

    def _is_met(self, now: int, address: str) -> bool:
        return address in self._met and now < self._met[address] + MET_NS

    def _plan(self, now: int) -> None:
        """Say when `tick` is due."""
        if not self.is_seeking:
            return
        at = [asked_at + ANSWER_NS for asked_at in self._asked.values()]
        if len(self._asked) < self._at_once:
            at += [
                self._met[address] + MET_NS if self._is_met(now, address) else now
                for address in self._pool.due(now)
                if address not in self._asked
            ]
            at.append(self._pool.next_awake_at(now))
        self.next_tick_at = min(at, default=NEVER)


def _place_of(manager: ManagerAt) -> Place:
    return Place(manager.zone, manager.datacenter, manager.region)


def place_of(facts: WorkerFacts) -> Place:
    return Place(facts.zone, facts.datacenter, facts.region)


def _read(content: bytes | None) -> tuple[ManagerAt, ...]:
    """What cannot be read is as if nothing was remembered: seeds are there all the same."""
    if content is None:
        return ()
    try:
        return _decoder.decode(content)[:REMEMBERED_LIMIT]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()
