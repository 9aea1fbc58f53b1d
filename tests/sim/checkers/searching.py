"""Whether workers find managers, and which."""

from collections.abc import Mapping
from typing import Final

from talka.cluster.effects import Lane
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.peer_pool import Place, Tier
from talka.testing.cores import WorkerPart
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire import jobs
from talka.wire.jobs import WantBlob
from talka.wire.packets import decode_packet

WELL_FOR_NS: Final = 40 * SECOND
"""Longer than the longest rest of one that failed: after this it is asked first again."""
FOUND_WITHIN_S: Final = 15
"""Seconds in a row in which a worker could speak with the leader, after which it has a lease."""


class EveryWorkerIsFound(Observer):
    """A worker that can reach the manager that leads is registered with it again within a stated time."""

    def __init__(self, managers: tuple[str, ...], workers: tuple[str, ...]) -> None:
        self.longest_s = 0
        """Without a lease although the leader could be reached."""
        self._managers = managers
        self._workers = workers
        self._since: dict[str, tuple[str, int, int]] = {}
        """Of each worker: the leader and its own life, and for how many seconds so."""

    def begin(self, world: World) -> None:
        """From the start there was time enough."""
        for name in self._workers:
            if not has_lease(world.hosts[name]):
                world.violate("found", f"{name} has no lease, and nothing has happened yet")

    def on_second(self, world: World) -> None:
        leader = self._leader(world)
        for name in self._workers:
            host = world.hosts[name]
            if leader is None or host.state != "up" or has_lease(host) or is_cut(world, name, leader):
                self._since.pop(name, None)
                continue
            known, boot, seconds = self._since.get(name, (leader, host.boot, 0))
            seconds = seconds + 1 if (known, boot) == (leader, host.boot) else 1
            self._since[name] = (leader, host.boot, seconds)
            self.longest_s = max(self.longest_s, seconds)
            if seconds >= FOUND_WITHIN_S:
                world.violate("found", f"{name} could reach {leader} for {seconds} s and has no lease")

    def at_end(self, world: World) -> None:
        for name in self._workers:
            if not world.stopped and not has_lease(world.hosts[name]):
                world.violate("found", f"{name} has no lease at the end")

    def _leader(self, world: World) -> str | None:
        for name in self._managers:
            host = world.hosts[name]
            node = host.node
            if host.state == "up" and isinstance(node, ClusterMember) and isinstance(node.jobs, Manager):
                if node.voter is not None and node.voter.election.is_leading(host.local(world.now)):
                    return name
        return None


def has_lease(host: Host) -> bool:
    node = host.node
    return isinstance(node, ClusterMember) and isinstance(node.jobs, WorkerPart) and node.jobs.worker.has_lease


def is_cut(world: World, one: str, other: str) -> bool:
    return world.network.is_cut(one, other) or world.network.is_cut(other, one)


class NearIsAskedFirst(Observer):
    """A worker asks a near manager for a bundle before a far one, unless something was wrong with all that are near."""

    def __init__(self, world: World, places: Mapping[str, Place]) -> None:
        self.asked: dict[Tier, int] = dict.fromkeys(Tier, 0)
        """How often a bundle was asked for first so near."""
        self._world = world
        self._places = places
        self._managers = tuple(name for name in places if name.startswith("m"))
        self._trouble: dict[tuple[str, str], int] = {}
        """When something was wrong last between a worker and a manager."""
        self._hindered: dict[tuple[str, str], int] = {}
        self._begun: set[tuple[str, int, str]] = set()
        """Fetches, by worker, its life and the digest."""
        world.network.tap(self._see)

    def on_second(self, world: World) -> None:
        for worker in self._places:
            for manager in self._managers:
                pair, hindered = (worker, manager), world.network.hindered
                count = hindered.get(pair, 0) + hindered.get((manager, worker), 0)
                is_down = world.hosts[manager].state != "up" or world.hosts[worker].state != "up"
                if world.now > 3 * SECOND and (is_down or count != self._hindered.get(pair, 0)):
                    self._trouble[pair] = world.now
                self._hindered[pair] = count

    def on_crash(self, world: World, host: Host) -> None:
        for name in self._places:
            self._trouble[name, host.name] = world.now

    def _see(self, source: str, to: str, sealed: bytes, lane: Lane) -> None:
        if source in self._managers or to not in self._managers or lane is not Lane.STREAM:
            return
        frame = self._world.network.unseal(sealed)
        assert frame is not None
        packet = decode_packet(frame)
        said = jobs.decode(packet.body) if packet.channel == jobs.CHANNEL.number else None
        if not isinstance(said, WantBlob) or (source, packet.boot, said.digest) in self._begun:
            return
        self._begun.add((source, packet.boot, said.digest))
        tiers = {name: how_near(self._places[source], self._places[name]) for name in self._managers}
        self.asked[tiers[to]] += 1
        well = [name for name in self._managers if self._is_well(source, name)]
        nearest = min((tiers[name] for name in well), default=Tier.ANY)
        if tiers[to] > nearest:
            self._world.violate("near", f"{source} asked {to} first, and {', '.join(well)} could be asked")

    def _is_well(self, worker: str, manager: str) -> bool:
        at = self._trouble.get((worker, manager))
        return at is None or self._world.now - at >= WELL_FOR_NS


def how_near(one: Place, other: Place) -> Tier:
    """In histories all is said of everybody."""
    if one.region != other.region:
        return Tier.ANY
    if one.datacenter != other.datacenter:
        return Tier.REGION
    return Tier.ZONE if one.zone == other.zone else Tier.DATACENTER
