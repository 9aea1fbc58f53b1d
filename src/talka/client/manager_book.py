"""The managers that a client knows: which of them to ask, and who was known before where none of them answers.

Decision: docs/decisions/0062-peers-are-remembered-and-near-ones-preferred.md.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final, NamedTuple, Protocol

from talka.client.http import ApiAddress, parse_address
from talka.control.member.peer_pool import PeerPool, Place, PoolConfig, PooledPeer
from talka.store.files.known_clusters import KnownCluster, KnownManager
from talka.wire.views import ClusterView, ManagerView

ADDRESSES_LIMIT: Final = 32


class ClusterMemory(Protocol):
    """What is remembered of clusters from one command to the next."""

    def cluster_of(self, given: Sequence[str]) -> KnownCluster | None:
        """The cluster that was asked at one of these addresses."""

    def note(self, given: Sequence[str], cluster: KnownCluster) -> None:
        """This cluster answered whoever asked at these addresses."""


class BookCounts(NamedTuple):
    address: str
    """The manager that was asked last."""
    candidates: int
    failures: int
    switches: int
    latency_ns: float
    """Its mean; 0: it has not answered yet."""


class ManagerBook:
    """`ask` names the manager to ask now; say `answered` or `failed` for each."""

    def __init__(self, given: Sequence[ApiAddress], place: Place, rng: Random) -> None:
        self._addresses: dict[str, ApiAddress] = {}
        self._places: dict[str, Place] = {}
        self._unproven: dict[str, KnownCluster] = {}
        self._pool = PeerPool(PooledPeer("", place), "api", rng, PoolConfig(peers_limit=ADDRESSES_LIMIT))
        self.scheme = given[0].scheme
        for address in given:
            self._put(address, Place())
        self._gather()

    def __len__(self) -> int:
        return len(self._pool)

    def ask(self, now: int) -> ApiAddress:
        name = self._pool.choose(now)
        assert name is not None  # those that were given stay
        return self._addresses[name]

    def all(self, now: int) -> list[ApiAddress]:
        """The next one first."""
        return [self._addresses[name] for name in self._pool.order(now)]

    def answered(self, now: int, address: ApiAddress, asked_at: int) -> None:
        self._pool.succeeded(now, str(address), asked_at)

    def failed(self, now: int, address: ApiAddress, asked_at: int) -> None:
        self._pool.failed(now, str(address), asked_at)

    def counts(self) -> BookCounts:
        pool = self._pool
        return BookCounts(pool.current, len(pool), pool.failures, pool.switches, pool.latency_ns(pool.current))

    # Who is known.

    def learn(self, view: ClusterView) -> None:
        """The cluster says who its managers are."""
        for manager in known_managers(view.managers):
            address = self._address_of(manager)
            self._put(address, Place(manager.zone, manager.datacenter, manager.region))
            self._unproven.pop(str(address), None)
        self._gather()

    def add_remembered(self, cluster: KnownCluster) -> list[ApiAddress]:
        """None of those that are known answers: ask these too, each of which must prove first that it is of this
        cluster. Answers with those that were not known."""
        before = dict(self._addresses)
        for manager in cluster.managers:
            address = self._address_of(manager)
            if str(address) not in before:
                self._put(address, Place(manager.zone, manager.datacenter, manager.region))
                self._unproven[str(address)] = cluster
        self._gather()
        return [address for name, address in self._addresses.items() if name not in before]

    def must_be(self, address: ApiAddress) -> KnownCluster | None:
        """Of which cluster it must prove to be before it is asked anything else."""
        return self._unproven.get(str(address))

    def drop(self, address: ApiAddress) -> None:
        """It is another's."""
        for of_address in (self._addresses, self._places, self._unproven):
            of_address.pop(str(address), None)
        self._gather()

    def _put(self, address: ApiAddress, place: Place) -> None:
        name = str(address)
        if name in self._addresses or len(self._addresses) < ADDRESSES_LIMIT:
            self._addresses.setdefault(name, address)
            self._places[name] = place

    def _gather(self) -> None:
        self._pool.set_peers(PooledPeer(name, self._places[name]) for name in self._addresses)

    def _address_of(self, manager: KnownManager) -> ApiAddress:
        return parse_address(manager.api)._replace(scheme=self.scheme)


def known_managers(managers: Iterable[ManagerView]) -> list[KnownManager]:
    """Those that tell where their API is."""
    return [KnownManager(one.name, one.api, one.zone, one.datacenter, one.region) for one in managers if one.api]


def is_of(view: ClusterView, known: KnownCluster) -> bool:
    """Whether who answers with this view is of the cluster that is known: by its name, and a manager of it."""
    names = {manager.name for manager in view.managers}
    return view.name == known.name and any(manager.name in names for manager in known.managers)
