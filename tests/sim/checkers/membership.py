"""What must hold of members and their views in a world, judged only by what happened.

Each checker is an observer of its own; a world has those its scenario can keep. None knows a scenario or a safeguard.
Hosts are looked at once a second and at every verdict: what begins and ends between two looks is not seen, and then no
excuse for anybody.
"""

from functools import partial
from typing import Final

from talka.cluster.membership import gossip, verdicts
from talka.cluster.membership.members import ALIVE, DEAD, SUSPECT
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberLost
from talka.cluster.membership.presets import MembershipConfig
from talka.cluster.membership.prober import RELAYS_LIMIT
from talka.cluster.membership.suspicion import bounds
from talka.control.member.composite import ClusterMember
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND

SETTLED_NS: Final = 10 * SECOND
"""So long a member must have been well before a verdict about it, or by it, is called false."""
FULL_WITHIN_NS: Final = 45 * SECOND
"""A seed or a dead member is asked at most 37.5 s after the last time; news of the answer then spreads."""
BYTES_PER_S: Final = 8_000
"""What a member may send on average, headers and seals included. Idle it sends a tenth of it."""
MISSES_TOLD: Final = 5
"""Views that a violation names; of the others it tells how many."""
_HOUR_NS: Final = 3600 * SECOND


def detection_bound_ns(config: MembershipConfig, members: int) -> int:
    """After so long every member that is well holds a crashed one dead.

    - 8 probe intervals: that nobody picks the dead one in 6 of them has a probability of e⁻⁶, and a probe takes two.
    - 5 times the shortest suspicion: a member that does badly doubles or triples it, and a lone accuser waits for a
      confirmation.
    - 8 rounds of gossip for each power of ten members: twice what an update needs without loss.
    """
    probing_ns = 8 * config.probe_interval_ns
    suspicion_ns = 5 * bounds(config, members, 0).min_ns
    return probing_ns + suspicion_ns + 8 * len(str(members)) * config.gossip_interval_ns


def membership_of(host: Host) -> Membership | None:
    """The membership of the node that runs on this host now, if there is one."""
    return host.node.membership if isinstance(host.node, ClusterMember) else None


class Wellness(Observer):
    """Since when each host is well: up, not stalled, not slow, and connected both ways with a majority of the hosts.

    Only hosts that are up and not slow themselves count for the majority.
    """

    def __init__(self) -> None:
        self._unwell_at: dict[str, int] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._unwell_at[host.name] = world.now

    def on_second(self, world: World) -> None:
        sound = [host for host in world.hosts.values() if is_sound(host)]
        ports = world.network.ports
        has_cuts = any(ports[name].cuts for name in world.hosts)
        for name, host in world.hosts.items():
            if not is_sound(host):
                self._unwell_at[name] = world.now
                continue
            reached = len(sound)
            if has_cuts:
                cuts = ports[name].cuts
                reached = sum(other.name not in cuts and name not in ports[other.name].cuts for other in sound)
            if 2 * reached <= len(world.hosts):
                self._unwell_at[name] = world.now

    def is_well_since(self, host: Host, since: int) -> bool:
        """Whether the host is well, and was at every look from `since` on."""
        return is_sound(host) and self._unwell_at.get(host.name, 0) < since


def is_sound(host: Host) -> bool:
    """Up, and as fast as it should be."""
    return host.state == "up" and not host.service_ns


class FalseVerdicts(Wellness):
    """I10: no member that has been well for 10 s is declared dead by one for which the same holds.

    `per_member_hour` is the rate of them that is borne, judged at the end; with 0 the first one is a violation.
    """

    def __init__(self, per_member_hour: float = 0.0) -> None:
        super().__init__()
        self.count = 0
        self._per_member_hour = per_member_hour
        self._member_ns = 0

    def on_second(self, world: World) -> None:
        super().on_second(world)
        self._member_ns += SECOND * sum(host.state != "down" for host in world.hosts.values())

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not MemberLost or not effect.own:
            return
        subject = world.hosts.get(effect.name)
        if subject is None or subject.boot != effect.boot:
            return
        since = world.now - SETTLED_NS
        if not self.is_well_since(subject, since) or not self.is_well_since(host, since):
            return
        self.count += 1
        if not self._per_member_hour:
            world.violate("I10", f"{host.name} declared {effect.name} dead ({effect.reason}), and both are well")

    def at_end(self, world: World) -> None:
        if not self._per_member_hour:
            return
        most = self._per_member_hour * self._member_ns / _HOUR_NS
        if self.count > most:
            world.violate("I10", f"{self.count} false verdicts; {most:.1f} are borne in this time")


class DeathIsKnown(Wellness):
    """I11: a crashed member is dead, or has left, in the view of every host that is well since then, within a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0
        """Views that were looked at."""

    def on_crash(self, world: World, host: Host) -> None:
        views = (membership_of(other) for other in world.hosts.values())
        config = next((membership.config for membership in views if membership is not None), None)
        if config is not None:
            within_ns = detection_bound_ns(config, len(world.hosts))
            world.after(within_ns, partial(self._judge, world, host.name, host.boot, world.now, within_ns))

    def _judge(self, world: World, name: str, boot: int, crashed_at: int, within_ns: int) -> None:
        unaware = []
        for other in world.hosts.values():
            membership = membership_of(other)
            if membership is None or not self.is_well_since(other, crashed_at):
                continue
            self.judged += 1
            member = membership.get(name)
            if member is not None and member.boot == boot and member.status < DEAD:
                unaware.append(f"{other.name} ({member.status.name.lower()})")
        if unaware:
            world.violate(
                "I11", f"{name} crashed {within_ns / SECOND:.1f} s ago and lives in the view of {_some(unaware)}"
            )


class MembershipWithinLimits(Observer):
    """I13: datagrams fit the MTU; queues, tables and logs stay within their limits; traffic stays under a cap."""

    def __init__(self, bytes_per_s: int = BYTES_PER_S) -> None:
        self._bytes_per_s = bytes_per_s

    def on_second(self, world: World) -> None:
        if too_long := world.network.dropped.get("mtu", 0):
            world.violate("I13", f"{too_long} datagrams were longer than the MTU")
        for host in world.hosts.values():
            membership = membership_of(host)
            if membership is None:
                continue
            for what, count, limit in (
                ("news to pass on", len(membership._queue), gossip.QUEUE_LIMIT),
                ("verdicts kept", len(membership.audit), verdicts.LIMIT),
                ("members", len(membership._members), membership.config.members_limit),
                ("pings for others", len(membership._prober._relays), RELAYS_LIMIT),
            ):
                if count > limit:
                    world.violate("I13", f"{host.name}: {count} {what}; the limit is {limit}")

    def at_end(self, world: World) -> None:
        for name in world.hosts:
            sent = world.network.ports[name].bytes_sent
            if sent * SECOND > self._bytes_per_s * world.now:
                rate = sent * SECOND // world.now
                world.violate("I13", f"{name} sent {rate} B/s on average; the cap is {self._bytes_per_s}")


class FullViews(Observer):
    """I14: some time after faults are over every view holds all that are up, with their present boot, and no other.

    The scenario calls `begin` when its faults are over. From `within_ns` later on nobody may be missing; those who are
    suspected for a moment are not.
    """

    def __init__(self, within_ns: int = FULL_WITHIN_NS) -> None:
        self._within_ns = within_ns
        self._begun_at: int | None = None
        self.full_after_ns: int | None = None
        """From `begin` to the first look at which all views were full."""

    def begin(self, world: World) -> None:
        self._begun_at = world.now

    def on_second(self, world: World) -> None:
        if self._begun_at is None:
            return
        is_due = world.now >= self._begun_at + self._within_ns
        if self.full_after_ns is not None and not is_due:
            return
        problems = incomplete_views(world, is_due)
        if not problems:
            if self.full_after_ns is None:
                self.full_after_ns = world.now - self._begun_at
        elif is_due:
            passed_ns = world.now - self._begun_at
            world.violate("I14", f"{passed_ns / SECOND:.0f} s after the last fault {_some(problems)}")

    def at_end(self, world: World) -> None:
        if self._begun_at is None:
            world.violate("I14", "the run ended before its faults did")
        elif self.full_after_ns is None:
            world.violate("I14", f"the run ended before the views were full: {_some(incomplete_views(world, False))}")


def incomplete_views(world: World, with_suspects: bool = False) -> list[str]:
    """What is wrong in the view of a host that is up, as sentences. With `with_suspects` these count as alive."""
    highest = SUSPECT if with_suspects else ALIVE
    up = [host for host in world.hosts.values() if host.state != "down"]
    down = [host for host in world.hosts.values() if host.state == "down"]
    problems = []
    for host in up:
        membership = membership_of(host)
        if membership is None:
            continue
        for other in up:
            if other is not host:
                member = membership.get(other.name)
                if member is None:
                    problems.append(f"{host.name} does not know {other.name}")
                elif member.boot != other.boot:
                    problems.append(f"{host.name} knows another boot of {other.name}")
                elif member.status > highest:
                    problems.append(f"{host.name} holds {other.name} {member.status.name.lower()}")
        for other in down:
            member = membership.get(other.name)
            if member is not None and member.status < DEAD:
                problems.append(f"{host.name} holds {other.name} {member.status.name.lower()}, which is down")
    return problems


def _some(things: list[str]) -> str:
    told = ", ".join(things[:MISSES_TOLD])
    return told if len(things) <= MISSES_TOLD else f"{told} and {len(things) - MISSES_TOLD} more"
