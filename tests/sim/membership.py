"""Membership of one group under drawn faults, then a calm in which every view must become full."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS, MembershipConfig
from talka.control.member.composite import ClusterMember
from talka.testing.faults import LINK_FAULTS, FaultLimits, Faults, link_profile, missing
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, World
from talka.units import MILLISECOND, SECOND
from tests.sim.checkers.leadership import NoReplayAccepted
from tests.sim.checkers.membership import (
    FULL_WITHIN_NS,
    DeathIsKnown,
    FalseVerdicts,
    FullViews,
    MembershipWithinLimits,
    membership_of,
)

DRIFT_LIMIT_PPM: Final = 20_000
SEEDS: Final = ("m0", "m1", "m2")
FAULTS_FROM: Final = 5 * SECOND
LEAVES_WITHIN_NS: Final = 4 * SECOND
"""From saying good-bye to the end of the process: more than the rounds of gossip a good-bye takes."""
AWAY_LIMIT_NS: Final = 6 * SECOND
CLASSES: Final = (
    "crash",
    "leave",
    "stall",
    "pause",
    "slow cpu",
    "drift",
    "partition",
    "one-way cut",
    "isolation",
    "swizzle",
    "flapping link",
    "replay",
    "forgery",
    "loss",
    "burst loss",
    "duplicates",
    "reordering",
    "bandwidth",
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a seed decides before the run; the rest follows from it."""

    seed: int
    members: int
    preset: str
    classes: tuple[str, ...]
    profile: LinkProfile
    gap_ns: int
    leaves: tuple[tuple[int, int, int], ...]
    """When, which member, and how long it stays away."""
    drifts_ppm: tuple[int, ...]
    offsets_ns: tuple[int, ...]
    calm_from: int
    ends_at: int

    def lines(self) -> list[str]:
        links = self.profile
        return [
            f"seed {self.seed}: {self.members} members, preset {self.preset}, {self.ends_at // SECOND} s",
            f"faults {FAULTS_FROM // SECOND} s to {self.calm_from // SECOND} s, every {self.gap_ns / SECOND:.1f} s on"
            f" average: {', '.join(self.classes)}",
            f"links: {links.latency_ns / MILLISECOND:.1f} ms, jitter {links.jitter_ns / MILLISECOND:.1f} ms, loss"
            f" {links.loss:.1%}, bursts {links.burst}, duplicates {links.duplicate:.1%}, reordering {links.reorder},"
            f" bandwidth {links.bandwidth_bytes_per_s}",
            f"clocks: {', '.join(f'{ppm / 10_000:+.1f} %' for ppm in self.drifts_ppm)}",
            "leaves: "
            + (
                ", ".join(
                    f"m{member} at {at / SECOND:.1f} s for {away / SECOND:.1f} s" for at, member, away in self.leaves
                )
                or "none"
            ),
        ]


def plan_of(seed: int) -> Plan:
    rng = Random(f"{seed}:plan")
    members = rng.choice((16, 16, 16, 17, 18, 20, 24))
    ends_at = rng.choice((60, 60, 60, 66, 75, 90)) * SECOND
    calm_from = ends_at * 2 // 3
    # A subset for every seed: heavy faults together would hide what one of them does alone.
    drawn = rng.sample(CLASSES, rng.randrange(3, 8))
    drifting = "drift" in drawn
    # Three times as many strikes as there are classes, on average: then hardly ever one does not get its turn.
    gap_most_ns = (calm_from - FAULTS_FROM) // (3 * max(1, sum(name not in LINK_FAULTS for name in drawn)))
    leaves = []
    for member in rng.sample(range(members), rng.randrange(2, 5)) if "leave" in drawn else ():
        at = rng.randrange(FAULTS_FROM, calm_from - 20 * SECOND)
        leaves.append((at, member, rng.randrange(100 * MILLISECOND, AWAY_LIMIT_NS)))
    return Plan(
        seed=seed,
        members=members,
        preset=rng.choice(("default", "default", "default", "fast", "serf-lan")),
        classes=tuple(name for name in CLASSES if name in drawn),
        profile=link_profile(rng, drawn),
        gap_ns=min(rng.randrange(1500, 4000) * MILLISECOND, gap_most_ns),
        leaves=tuple(leaves),
        drifts_ppm=tuple(rng.randrange(-DRIFT_LIMIT_PPM, DRIFT_LIMIT_PPM) if drifting else 0 for _ in range(members)),
        offsets_ns=tuple(rng.randrange(1000) * SECOND for _ in range(members)),
        calm_from=calm_from,
        ends_at=ends_at,
    )


def member_of(boot: Boot, config: MembershipConfig) -> ClusterMember:
    membership = Membership(
        name=boot.name,
        boot=boot.boot,
        address=boot.name,
        group="g",
        config=config,
        rng=boot.rng,
        now=boot.now,
    )
    return ClusterMember(group="g", name=boot.name, boot=boot.boot, membership=membership, seeds=SEEDS)


class Story:
    """Runs a plan from its first second to its last."""

    def __init__(self, plan: Plan, verbose: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, verbose=verbose)
        world.network.default = plan.profile
        starter = partial(member_of, config=PRESETS[plan.preset])
        for index in range(plan.members):
            world.add_host(f"m{index}", starter, clock=Clock(plan.offsets_ns[index], plan.drifts_ppm[index]))
        self.views = FullViews()
        world.observers += [
            FalseVerdicts(),
            DeathIsKnown(),
            NoReplayAccepted(),
            MembershipWithinLimits(),
            self.views,
        ]
        limits = FaultLimits(
            gap_ns=plan.gap_ns,
            down_ns=(100 * MILLISECOND, 12 * SECOND),
            stall_ns=(500 * MILLISECOND, 3 * SECOND),
            cut_ns=(SECOND, 10 * SECOND),
            service_ns=(20 * MILLISECOND, 400 * MILLISECOND),
        )
        classes = [name for name in plan.classes if name != "leave"]
        self.faults = Faults(world, list(world.hosts), classes, limits=limits)

    def run(self) -> World:
        world, plan = self.world, self.plan
        rng = world.rng("join")
        for host in world.hosts.values():
            world.at(rng.randrange(SECOND), partial(_start, host))
        world.at(FAULTS_FROM, partial(self.faults.begin, plan.calm_from))
        for at, member, away_ns in plan.leaves:
            world.at(at, partial(self._leave, world.hosts[f"m{member}"], away_ns))
        world.at(plan.calm_from, self._calm)
        world.run_until(plan.ends_at)
        while not world.stopped and self.views.full_after_ns is None and world.now < plan.calm_from + FULL_WITHIN_NS:
            world.run_until(world.now + SECOND)
        if not world.stopped:
            world.finish()
            for name in missing(world, plan.classes):
                world.violate("plan", f"the fault {name!r} of the plan never struck")
        return world

    def _leave(self, host: Host, away_ns: int, *, is_again: bool = False) -> None:
        """Say good-bye, end, and come back as another life."""
        node, membership = host.node, membership_of(host)
        if (
            not isinstance(node, ClusterMember)
            or membership is None
            or not host.act(lambda now: node.act(now, list(membership.leave(now))))
        ):
            self.world.count_fault("leave", has_met=False, is_again=is_again)
            if self.world.now < self.plan.calm_from - LEAVES_WITHIN_NS - AWAY_LIMIT_NS - SECOND:
                self.world.after(SECOND, partial(self._leave, host, away_ns, is_again=True))
            return
        self.world.count_fault("leave", is_again=is_again)
        self.world.after(LEAVES_WITHIN_NS, partial(self._end, host, host.boot, away_ns))

    def _end(self, host: Host, boot: int, away_ns: int) -> None:
        if host.boot == boot and host.crash():
            self.world.after(away_ns, partial(_start, host))

    def _calm(self) -> None:
        self.faults.stop()
        self.views.begin(self.world)


def _start(host: Host) -> None:
    host.start()


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
