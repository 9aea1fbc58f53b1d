"""What membership achieves, in numbers: detection, traffic, false verdicts, and what each safeguard is worth.

python -m tests.sim.membership_figures prints every table. A false verdict is `MemberLost` by a member's own timer about
a life that is up.
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Final

import msgspec

from talka.cluster.membership.news import MemberLost
from talka.cluster.membership.presets import PRESETS
from talka.testing.host import Host
from talka.testing.network import LinkProfile
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from tests.sim.checkers.membership import incomplete_views
from tests.sim.membership import member_of
from tests.sim.variants import without

JOINED_BY: Final = 5 * SECOND
STEP_NS: Final = 100 * MILLISECOND
PATIENCE_NS: Final = 120 * SECOND
"""For what a figure waits for; longer means never."""


PLAIN_SWIM: Final = ("local_health", "nack", "buddy", "confirmations", "lag_gate")
"""What it lacks."""
LIFEGUARD: Final = ("lag_gate",)
"""As published: health is inferred from probes, not measured."""


class Verdicts(Observer):
    """Counts false verdicts by whom they are about, and sees when all survivors know of a death."""

    def __init__(self) -> None:
        self.about: dict[str, int] = {}
        self.all_know_at: int | None = None
        self._dead: tuple[str, int] = ("", 0)
        self._unaware: dict[str, None] = {}

    def await_death(self, world: World, host: Host) -> None:
        """The host has just crashed."""
        self._dead = (host.name, host.boot)
        self._unaware = {other.name: None for other in world.hosts.values() if other.state != "down"}
        self.all_know_at = None

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not MemberLost:
            return
        if (effect.name, effect.boot) == self._dead:
            self._unaware.pop(host.name, None)
            if not self._unaware and self.all_know_at is None:
                self.all_know_at = world.now
        elif effect.own:
            subject = world.hosts[effect.name]
            if subject.boot == effect.boot and subject.state != "down":
                self.about[effect.name] = self.about.get(effect.name, 0) + 1

    @property
    def false_verdicts(self) -> int:
        return sum(self.about.values())

    def about_any_of(self, names: Iterable[str]) -> int:
        return sum(self.about.get(name, 0) for name in names)


def group(seed: int, preset: str, members: int, profile: LinkProfile | None = None) -> tuple[World, Verdicts]:
    """A group of members that have started within half a second."""
    world = World(seed)
    if profile is not None:
        world.network.default = profile
    verdicts = Verdicts()
    world.observers.append(verdicts)
    starter = partial(member_of, config=PRESETS[preset])
    rng = world.rng("join")
    for index in range(members):
        host = world.add_host(f"m{index}", starter)
        world.at(rng.randrange(SECOND // 2), partial(_start, host))
    return world, verdicts


def _start(host: Host) -> None:
    host.start()


def _wait(world: World, is_so: Callable[[], bool], what: str) -> None:
    begun_at = world.now
    while not is_so():
        if world.now > begun_at + PATIENCE_NS:
            raise AssertionError(f"seed {world.seed}: {what} has not come in {PATIENCE_NS // SECOND} s")
        world.run_until(world.now + STEP_NS)


# Detection and traffic


class Detection(msgspec.Struct, frozen=True):
    preset: str
    members: int
    loss: float
    times_s: list[float]
    """From each kill until every survivor holds the member dead, in order."""
    false_verdicts: int
    idle_bytes_per_s: float
    """Sent by a member, headers and seals included."""
    joined_s: float
    """From the first start until all views were full."""

    @property
    def median_s(self) -> float:
        return median(self.times_s)

    @property
    def worst_s(self) -> float:
        return self.times_s[-1]


def detection(preset: str, *, loss: float = 0.0, members: int = 100, kills: int = 30, seed: int = 1) -> Detection:
    """Kill one member, wait until all know, start it again, wait until all views are full; then the next."""
    world, verdicts = group(seed, preset, members, profile=LinkProfile(loss=loss))
    world.run_until(SECOND // 2)
    _wait(world, lambda: not incomplete_views(world), "a full view of all")
    joined_s = world.now / SECOND
    world.run_until(world.now + 15 * SECOND)
    idle_bytes_per_s = _traffic(world, 20 * SECOND)
    rng = world.rng("kill")
    times_ns = []
    for _ in range(kills):
        world.run_until(world.now + rng.randrange(SECOND))
        host = world.hosts[f"m{rng.randrange(members)}"]
        killed_at = world.now
        host.crash()
        verdicts.await_death(world, host)
        _wait(world, lambda: verdicts.all_know_at is not None, f"the death of {host.name}")
        assert verdicts.all_know_at is not None
        times_ns.append(verdicts.all_know_at - killed_at)
        host.start()
        _wait(world, lambda: not incomplete_views(world), "a full view of all")
    times_s = [time_ns / SECOND for time_ns in sorted(times_ns)]
    return Detection(preset, members, loss, times_s, verdicts.false_verdicts, idle_bytes_per_s, joined_s)


def _traffic(world: World, duration_ns: int) -> float:
    """Bytes that a member sends in a second, over this time."""
    before = sum(port.bytes_sent for port in world.network.ports.values())
    world.run_until(world.now + duration_ns)
    sent = sum(port.bytes_sent for port in world.network.ports.values()) - before
    return sent * SECOND / duration_ns / len(world.hosts)


DETECTION_HEAD: Final = (
    "| preset | members | loss | kills | all know: median | worst | false verdicts | idle traffic sent | joined |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _row(found: Detection) -> str:
    return (
        f"| {found.preset} | {found.members} | {found.loss:.0%} | {len(found.times_s)} | {found.median_s:.2f} s"
        f" | {found.worst_s:.2f} s | {found.false_verdicts} | {found.idle_bytes_per_s:.0f} B/s"
        f" | {found.joined_s:.1f} s |"
    )


def detection_table() -> list[str]:
    cells = (("default", 0.0), ("default", 0.05), ("fast", 0.0), ("serf-lan", 0.0))
    return [*DETECTION_HEAD, *(_row(detection(preset, loss=loss)) for preset, loss in cells)]


def thousand() -> list[str]:
    """One kill among a thousand members."""
    return [*DETECTION_HEAD, _row(detection("default", members=1000, kills=1))]


# False verdicts


def slow_members(
    seed: int,
    preset: str,
    lacking: tuple[str, ...] = (),
    *,
    service_ns: int,
    seconds: int,
    members: int = 64,
    slow: int = 6,
) -> int:
    """False verdicts about members that are as fast as they should be, while some handle frames slowly."""
    with without(*lacking):
        world, verdicts = group(seed, preset, members)
        world.run_until(JOINED_BY)
        names = list(world.hosts)
        for name in names[-slow:]:
            world.hosts[name].set_service(service_ns)
        world.run_until(JOINED_BY + seconds * SECOND)
        return verdicts.about_any_of(names[:-slow])


class Deafness(msgspec.Struct, frozen=True):
    """False verdicts while some members hear nothing every now and then."""

    about_deaf: int
    about_others: int


def deaf_members(
    seed: int,
    preset: str,
    lacking: tuple[str, ...] = (),
    *,
    deaf_ns: int,
    hearing_ns: int,
    deaf: int,
    members: int = 32,
    seconds: int = 40,
) -> Deafness:
    """Nothing reaches some members for about `deaf_ns`, then everything for about `hearing_ns`, and so on."""
    with without(*lacking):
        world, verdicts = group(seed, preset, members)
        world.run_until(JOINED_BY)
        names = list(world.hosts)
        rng = world.rng("deaf")

        def turn(name: str, is_deaf: bool) -> None:
            change = world.network.cut if is_deaf else world.network.heal
            for other in names:
                if other != name:
                    change(other, name)
            mean_ns = deaf_ns if is_deaf else hearing_ns
            world.after(mean_ns * 3 // 4 + rng.randrange(mean_ns // 2), partial(turn, name, not is_deaf))

        for name in names[-deaf:]:
            world.after(rng.randrange(deaf_ns + hearing_ns), partial(turn, name, True))
        world.run_until(JOINED_BY + seconds * SECOND)
        return Deafness(verdicts.about_any_of(names[-deaf:]), verdicts.about_any_of(names[:-deaf]))


class Comparison(msgspec.Struct, frozen=True):
    """False verdicts in the same scenario and seeds, with more and with fewer safeguards."""

    what: str
    scenario: str
    more: int
    fewer: int

    @property
    def factor(self) -> str:
        return f"{self.fewer / self.more:.0f}×" if self.more else f"{self.fewer} against 0"

    def is_at_least(self, factor: int) -> bool:
        """Whether fewer safeguards give so many times as many; against 0, at least so many."""
        return self.fewer >= factor * max(1, self.more)


def lifeguard(service_ms: int, seeds: tuple[int, ...] = (1, 2)) -> Comparison:
    """The published comparison: Lifeguard against SWIM with a group's slow members."""
    count = partial(slow_members, preset="serf-lan", service_ns=service_ms * MILLISECOND, seconds=120)
    return Comparison(
        "Lifeguard against plain SWIM",
        f"serf-lan, 64 members, 6 slow, {service_ms} ms a frame, 120 s, seeds {_told(seeds)}",
        sum(count(seed, lacking=LIFEGUARD) for seed in seeds),
        sum(count(seed, lacking=PLAIN_SWIM) for seed in seeds),
    )


def gate_alone(seeds: tuple[int, ...] = (1, 2)) -> Comparison:
    """What the gate does for plain SWIM at a probe period of 0.25 s."""
    count = partial(slow_members, preset="fast", service_ns=500 * MILLISECOND, seconds=60)
    gated = tuple(name for name in PLAIN_SWIM if name != "lag_gate")
    return Comparison(
        "plain SWIM with the lag gate against plain SWIM",
        f"fast, 64 members, 6 slow, 500 ms a frame, 60 s, seeds {_told(seeds)}",
        sum(count(seed, lacking=gated) for seed in seeds),
        sum(count(seed, lacking=PLAIN_SWIM) for seed in seeds),
    )


def lag_gate(seeds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)) -> Comparison:
    """What the gate adds to Lifeguard and to the patience with those who refute, which alone leave little to add: hence
    so many slow members, and so many seeds."""
    count = partial(slow_members, preset="fast", service_ns=500 * MILLISECOND, seconds=60, members=32, slow=16)
    return Comparison(
        "`lag_gate`",
        f"fast, 32 members, 16 slow, 500 ms a frame, 60 s, seeds {_told(seeds)}",
        sum(count(seed) for seed in seeds),
        sum(count(seed, lacking=LIFEGUARD) for seed in seeds),
    )


def nack(seeds: tuple[int, ...] = (1, 2)) -> Comparison:
    """Measured where confirmations and the lag gate do not stand in for it."""
    count = partial(slow_members, preset="serf-lan", service_ns=500 * MILLISECOND, seconds=60, members=48, slow=8)
    return Comparison(
        "`nack`",
        "serf-lan, 48 members, 8 slow, 500 ms a frame, 60 s, without `confirmations` and `lag_gate` on both sides,"
        f" seeds {_told(seeds)}",
        sum(count(seed, lacking=("confirmations", "lag_gate")) for seed in seeds),
        sum(count(seed, lacking=("confirmations", "lag_gate", "nack")) for seed in seeds),
    )


def buddy(seeds: tuple[int, ...] = (1, 2)) -> Comparison:
    """A suspected member that hears little must hear of it in what it hears."""
    count = partial(deaf_members, preset="default", deaf_ns=2 * SECOND, hearing_ns=SECOND, deaf=4)
    return Comparison(
        "`buddy`",
        f"default, 32 members, 4 hear nothing 2 s out of 3, 40 s, verdicts about these, seeds {_told(seeds)}",
        sum(count(seed).about_deaf for seed in seeds),
        sum(count(seed, lacking=("buddy",)).about_deaf for seed in seeds),
    )


def confirmations(seeds: tuple[int, ...] = (1, 2)) -> Comparison:
    """Members that hear nothing accuse others alone."""
    count = partial(deaf_members, preset="fast", deaf_ns=10 * SECOND, hearing_ns=5 * SECOND, deaf=12)
    return Comparison(
        "`confirmations`",
        f"fast, 32 members, 12 hear nothing 10 s out of 15, 40 s, verdicts about the others, seeds {_told(seeds)}",
        sum(count(seed).about_others for seed in seeds),
        sum(count(seed, lacking=("confirmations",)).about_others for seed in seeds),
    )


def _told(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _table(found: Iterable[Comparison], head: str) -> list[str]:
    lines = [head, "|---|---|---|---|---|"]
    lines += [f"| {one.what} | {one.scenario} | {one.more} | {one.fewer} | {one.factor} |" for one in found]
    return lines


def lifeguard_table() -> list[str]:
    found = [lifeguard(service_ms) for service_ms in (250, 500, 1000)]
    return _table([*found, gate_alone()], "| comparison | scenario | false verdicts with | without | factor |")


RATES: Final = {"nack": nack, "buddy": buddy, "confirmations": confirmations, "lag_gate": lag_gate}
"""Safeguards whose removal makes false verdicts more frequent, rather than possible."""


def rate_table() -> list[str]:
    """What each safeguard of membership is worth, where it is a matter of rates."""
    return _table(
        [measure() for measure in RATES.values()],
        "| taken away | scenario | false verdicts with it | without | factor |",
    )


def main() -> None:
    for table in (detection_table, lifeguard_table, rate_table, thousand):
        for line in table():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
