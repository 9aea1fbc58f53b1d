"""Faults that strike a world: which, whom and when is drawn from the seed.

Each class counts in `World.struck` when it had an effect, not when it was tried. A fault that met nothing, as a crash
of a host that is down or a cut where nobody spoke, counts in `World.met_nothing`, and another is drawn in its place: of
the same class, by randomness of its own, up to `REDRAWS` times and not once faults have ended or make way for others.
That it was drawn counts in `World.drawn_again`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from talka.cluster.effects import Lane
from talka.testing.network import LinkProfile
from talka.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    from talka.testing.world import World

RECORDED_LIMIT: Final = 512
REDRAWS: Final = 8
"""Of one fault. After that its class waits for its next turn."""
REDRAWN_AFTER_NS: Final = (50 * MILLISECOND, SECOND)
"""Not at once: who was down may be up then, so that favourites are struck as often as they are to be."""
PROOF_NS: Final = SECOND // 3
"""Shortly before the end a fault has this long to show an effect, before another is tried beside it."""
LAST_CALL_NS: Final = 14 * SECOND
INSIST_NS: Final = 4 * SECOND
DISK_FAULTS: Final = ("disk lost", "disk rolled back")

HOST_FAULTS: Final = ("crash", "stall", "pause", "slow cpu", "slow disk", "drift", "disk lost", "disk rolled back")
NETWORK_FAULTS: Final = ("partition", "one-way cut", "isolation", "swizzle", "flapping link", "replay", "forgery")
LINK_FAULTS: Final = ("loss", "burst loss", "duplicates", "reordering", "bandwidth")
"""Properties of every link for the whole run, not events."""


def link_profile(rng: Random, classes: Sequence[str], *, loss_most: float = 0.05) -> LinkProfile:
    """A network that shows the link faults among `classes` and no other."""
    return LinkProfile(
        latency_ns=rng.randrange(100, 2000) * 1000,
        jitter_ns=rng.randrange(50, 2000) * 1000,
        loss=0.01 + rng.random() * (loss_most - 0.01) if "loss" in classes else 0.0,
        burst=(0.004 + rng.random() * 0.004, 2.0 + rng.random() * 8) if "burst loss" in classes else None,
        duplicate=0.01 + rng.random() * 0.05 if "duplicates" in classes else 0.0,
        reorder=(0.01 + rng.random() * 0.03, rng.randrange(100, 900) * MILLISECOND)
        if "reordering" in classes
        else None,
        bandwidth_bytes_per_s=rng.randrange(20_000, 200_000) if "bandwidth" in classes else None,
    )


class FaultLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How hard faults strike."""

    gap_ns: int = 1500 * MILLISECOND
    """Mean time from one fault to the next."""
    down_ns: tuple[int, int] = (50 * MILLISECOND, 3 * SECOND)
    stall_ns: tuple[int, int] = (200 * MILLISECOND, 3 * SECOND)
    cut_ns: tuple[int, int] = (500 * MILLISECOND, 6 * SECOND)
    drift_ppm: int = 20_000
    service_ns: tuple[int, int] = (20 * MILLISECOND, 200 * MILLISECOND)


class FrozenWorkers:
    """Freezes one of those that `busy` names now and then, mostly for longer than a lease: its cores go on. Drawn apart
    from other faults, which strike as they would without it."""

    NAME: Final = "frozen worker"

    def __init__(self, world: "World", busy: Callable[[], list[str]], until: int) -> None:
        self._world = world
        self._busy = busy
        self._until = until
        self._rng = world.rng(self.NAME)
        self._is_again = False

    def strike(self) -> None:
        world, rng = self._world, self._rng
        if world.now >= self._until:
            return
        names = self._busy()
        if not names and self.NAME not in world.struck and world.now >= self._until - LAST_CALL_NS:
            names = [name for name in world.hosts if name.startswith("w")]
        delay_ns = int(rng.expovariate(1.0) * 6 * SECOND)
        has_met = bool(names) and world.hosts[rng.choice(names)].freeze(rng.randrange(3, 12) * SECOND)
        if names:
            world.count_fault(self.NAME, has_met=has_met, is_again=self._is_again)
            self._is_again = not has_met
        if not has_met:
            delay_ns = SECOND // 20  # it is to strike, also where there is little to strike at
        world.after(delay_ns + MILLISECOND, self.strike)


class Blow:
    """A fault that lasts, and may yet turn out to have met nothing."""

    __slots__ = ("_before", "_count", "at", "name", "redraws")

    def __init__(self, name: str, at: int, count: Callable[[], int], redraws: int) -> None:
        """`count` grows when it has an effect; if it does not, so many others may be drawn one after the other."""
        self.name = name
        self.at = at
        self.redraws = redraws
        self._count = count
        self._before = count()

    @property
    def has_met(self) -> bool:
        return self._count() > self._before


class Faults:
    """Strikes `hosts` with faults of the given classes from `begin` to `stop`.

    Every class is tried once, in a drawn order, before any is tried again. Half of the faults strike one of those that
    `favourites` names: who leads is hit too rarely by chance. `may_lose_disk` says whether a host may lose its disk, or
    have it rolled back, at this instant: a protocol promises something for some disks only. Towards the end the other
    faults make way for these two, which need a calm moment.
    """

    def __init__(
        self,
        world: "World",
        hosts: Sequence[str],
        classes: Sequence[str],
        *,
        limits: FaultLimits = FaultLimits(),  # noqa: B008 a frozen value
        favourites: Callable[[], list[str]] = list,
        may_lose_disk: Callable[[str], bool] = lambda name: False,
        centre: str = "",
    ) -> None:
        """`centre`: the host that all others talk to and that writes most, where there is one. Of it, or else of a
        favourite, a slow disk and a cut between two are drawn where their class has met nothing so far: when they are
        drawn again, and towards the end."""
        self._world = world
        self._rng = world.rng("fault")
        self._again_rng = world.rng("fault again")
        """Of what is drawn in the place of others: the rest of the history goes on as it would."""
        self._redraws = REDRAWS
        """So many may be drawn in the place of what is drawn just now."""
        self._blows: list[Blow] = []
        """Those that last, and have had no effect when it was last looked."""
        self._hosts = list(hosts)
        self._classes = [name for name in classes if name not in LINK_FAULTS]
        self._link_classes = [name for name in classes if name in LINK_FAULTS]
        self._limits = limits
        self._favourites = favourites
        self._may_lose_disk = may_lose_disk
        self._centre = centre
        self._todo: list[str] = []
        self._era = 0  # raised when faults end, so that what was to heal later does not
        self._is_over = True
        self._quiet_until = 0
        self._last_call_at = 0
        self._insist_at = 0
        self._is_image_kept = False
        self._slow_until: dict[str, int] = {}
        self._recorded: list[tuple[str, str, bytes, Lane]] = []
        if "replay" in classes or "forgery" in classes:
            world.network.tap(self._record)
        # None: nothing can be done just now, as to a disk while not all is well.
        self._actions: dict[str, Callable[[], bool | None]] = {
            "crash": self._crash,
            "stall": self._stall,
            "pause": self._pause,
            "slow cpu": self._slow_cpu,
            "slow disk": self._slow_disk,
            "drift": self._drift,
            "disk lost": self._lose_disk,
            "disk rolled back": self._roll_back,
            "partition": self._partition,
            "one-way cut": self._cut_one_way,
            "isolation": self._isolate,
            "swizzle": self._swizzle,
            "flapping link": self._flap,
            "replay": self._replay,
            "forgery": self._forge,
        }

    def begin(self, until: int) -> None:
        """Strike until `stop`, which is to come at `until`."""
        self._is_over = False
        self._last_call_at = until - LAST_CALL_NS
        self._insist_at = max(self._world.now, until - INSIST_NS)
        self._world.at(self._insist_at, self._insist)
        self._next()

    def stop(self) -> None:
        """No more faults: links heal, hosts come back, clocks stay as they are."""
        self._is_over = True
        self._heal()

    def _heal(self) -> None:
        for blow in list(self._blows):
            self._settle(blow, is_drawn_again=False)
        self._era += 1
        self._world.network.heal_all()
        for name in self._hosts:
            host = self._world.hosts[name]
            host.set_service(None)
            host.start()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be disturbed just now."""
        return self._is_over or self._world.now < self._quiet_until

    def _next(self) -> None:
        if not self._is_over and self._classes:
            gap_ns = self._limits.gap_ns
            if self._not_struck():
                gap_ns //= 2  # every class is to strike, also where there is little time
            delay = int(self._rng.expovariate(1.0) * gap_ns) + MILLISECOND
            self._world.after(delay, self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        if self._world.now >= self._last_call_at and self._is_last_call():
            return
        if not self.is_quiet:
            if not self._todo:
                self._todo = list(self._classes)
                self._rng.shuffle(self._todo)
            # What is not possible just now is tried again when all others had their turn.
            self._blow(self._todo.pop())
        self._next()

    def _blow(self, name: str) -> None:
        self._count(name, self._actions[name]())

    def _count(self, name: str, has_met: bool | None, redraws: int = REDRAWS, *, is_again: bool = False) -> None:
        """What came of a fault. In the place of one that met nothing another is drawn, up to so many times."""
        if has_met is None:
            return
        self._world.count_fault(name, has_met=has_met, is_again=is_again)
        if not has_met and redraws:
            pause_ns = self._again_rng.randrange(*REDRAWN_AFTER_NS)
            self._later(pause_ns, lambda: self._draw_again(name, redraws - 1))

    def _draw_again(self, name: str, redraws: int) -> None:
        if self._is_over:
            return
        if self.is_quiet:  # put off, not dropped
            self._later(self._quiet_until - self._world.now, lambda: self._draw_again(name, redraws))
            return
        self._rng, own = self._again_rng, self._rng
        self._redraws = redraws
        has_met = self._actions[name]()
        self._rng, self._redraws = own, REDRAWS
        self._count(name, has_met, redraws, is_again=True)

    def _lasts(self, name: str, duration: int, count: Callable[[], int]) -> None:
        """It counts as struck; that is taken back when it is over and `count` has not grown."""
        blow = Blow(name, self._world.now, count, self._redraws)
        self._blows.append(blow)
        self._later(duration, lambda: self._settle(blow))

    def _settle(self, blow: Blow, *, is_drawn_again: bool = True) -> None:
        if blow not in self._blows:
            return
        self._blows.remove(blow)
        if blow.has_met:
            return
        struck = self._world.struck
        struck[blow.name] -= 1
        if not struck[blow.name]:
            del struck[blow.name]
        self._count(blow.name, False, blow.redraws if is_drawn_again else 0)

    def _is_last_call(self) -> bool:
        """Whether a fault of a disk has not struck yet, or shortly before the end any other: then everything else
        heals, and only it is tried."""
        waiting = self._not_struck()
        if self._world.now < self._insist_at:
            waiting = [name for name in waiting if name in DISK_FAULTS]
        else:
            waiting += [name for name in self._classes if self._is_unproven(name)]
        if not waiting:
            return False
        if self._quiet_until < self._last_call_at + LAST_CALL_NS:
            self._quiet_until = self._last_call_at + LAST_CALL_NS
            self._heal()
        else:
            self._blow(waiting[0])
        self._world.after(LAST_CALL_NS // 100, self._strike)
        return True

    def _insist(self) -> None:
        """Where a fault has not struck by chance, make it likely for the time that is left."""
        if self._not_struck() or any([self._is_unproven(name) for name in self._classes]):
            self._strike()
        late = missing(self._world, self._link_classes)
        profile = self._world.network.default
        if "loss" in late:
            profile = msgspec.structs.replace(profile, loss=0.1)
        if "burst loss" in late:
            profile = msgspec.structs.replace(profile, burst=(0.05, 3.0))
        if "duplicates" in late:
            profile = msgspec.structs.replace(profile, duplicate=0.2)
        if "reordering" in late:
            profile = msgspec.structs.replace(profile, reorder=(0.2, SECOND // 2))
        if late:
            self._world.network.default = profile

    def _not_struck(self) -> list[str]:
        """Classes that never did, those of disks first: they need most hosts to be well."""
        ordered = (*DISK_FAULTS, *[name for name in self._classes if name not in DISK_FAULTS])
        return [name for name in ordered if name in self._classes and name not in self._world.struck]

    def _is_unproven(self, name: str) -> bool:
        """Whether it may have met nothing each time, as far as can be known by now."""
        self._blows = [blow for blow in self._blows if not blow.has_met]
        open_ones = [blow.at for blow in self._blows if blow.name == name]
        return (
            bool(open_ones)
            and len(open_ones) == self._world.struck[name]
            and max(open_ones) + PROOF_NS < self._world.now
        )

    def _between(self, span: tuple[int, int]) -> int:
        return self._rng.randrange(span[0], span[1])

    def _later(self, delay: int, action: Callable[[], object]) -> None:
        era = self._era

        def act() -> None:
            if era == self._era:
                action()

        self._world.after(delay, act)

    def _victim(self) -> str:
        favourites = self._favourites()
        if favourites and self._rng.random() < 0.5:
            return self._rng.choice(favourites)
        return self._rng.choice(self._hosts)

    def _sure_of(self, name: str) -> str:
        """Whom a fault of this class surely meets, which has met nothing so far; empty while chance decides."""
        is_late = self._rng is self._again_rng or self._world.now >= self._insist_at
        if not is_late or (name in self._world.struck and not self._is_unproven(name)):
            return ""
        return self._centre or next(iter(self._favourites()), "")

    def _two(self, name: str) -> list[str]:
        """Hosts between which links are cut. A favourite speaks with those of its kind."""
        centre = self._sure_of(name)
        others = [host for host in (self._world.hosts if self._centre else self._hosts) if host != centre]
        if not centre or not others:
            return self._rng.sample(list(self._world.hosts), 2)
        pair = [centre, self._rng.choice(others)]
        self._rng.shuffle(pair)
        return pair

    # -- hosts

    def _crash(self) -> bool:
        host = self._world.hosts[self._victim()]
        if not host.crash():
            return False
        self._later(self._between(self._limits.down_ns), host.start)
        return True

    def _stall(self) -> bool:
        host = self._world.hosts[self._victim()]
        return host.state == "up" and host.stall(self._between(self._limits.stall_ns))

    def _pause(self) -> bool:
        """A stall between a decision and its effects."""
        host = self._world.hosts[self._victim()]
        return host.state == "up" and host.stall(self._between(self._limits.stall_ns), mid_step=True)

    def _slow_cpu(self) -> bool:
        host = self._world.hosts[self._victim()]
        host.set_service(self._between(self._limits.service_ns))
        self._later(self._between(self._limits.cut_ns), lambda: host.set_service(None))
        return host.state == "up"

    def _slow_disk(self) -> bool:
        name = self._sure_of("slow disk") or self._victim()
        if self._slow_until.get(name, 0) > self._world.now:
            return False  # slowness multiplies: two at once would stop the disk for good
        duration = self._between(self._limits.cut_ns)
        self._slow_until[name] = self._world.now + duration
        disk = self._world.hosts[name].disk
        disk.slow_down(self._rng.choice((10, 50, 200)), duration)
        self._lasts("slow disk", duration, lambda: disk.slowed_writes)
        return True

    def _drift(self) -> bool:
        limit = self._limits.drift_ppm
        host = self._world.hosts[self._victim()]
        before = host.drift_ppm
        host.set_drift(self._rng.choice((-limit, limit, self._rng.randrange(-limit, limit))))
        return host.drift_ppm != before

    def _is_calm(self) -> bool:
        hosts = self._world.hosts
        return all(hosts[name].state == "up" and not self._world.network.ports[name].cuts for name in self._hosts)

    def _victim_with_disk(self) -> str:
        """One of those who may lose their disks now; empty when nobody may."""
        names = [name for name in self._hosts if self._may_lose_disk(name)] if self._is_calm() else []
        return self._rng.choice(names) if names else ""

    def _lose_disk(self) -> bool | None:
        name = self._victim_with_disk()
        if not name:
            return None
        host = self._world.hosts[name]
        host.crash()
        host.disk.lose()
        self._later(self._between(self._limits.down_ns), host.start)
        return True

    def _roll_back(self) -> None:
        """The disk returns to what it was a while ago. Peers that answered meanwhile can tell, if they are there."""
        name = "" if self._is_image_kept else self._victim_with_disk()
        if not name:
            return
        host = self._world.hosts[name]
        host.disk.snapshot()
        self._is_image_kept = True
        is_again, redraws = self._rng is self._again_rng, self._redraws

        def put_back() -> None:
            self._is_image_kept = False
            if self._is_over or not host.disk.has_changed or not self._is_calm() or not self._may_lose_disk(name):
                self._count("disk rolled back", False, redraws, is_again=is_again)
                return
            host.crash()
            host.disk.roll_back()
            host.start()
            self._quiet_until = max(self._quiet_until, self._world.now + 3 * SECOND)
            self._world.count_fault("disk rolled back", is_again=is_again)

        self._world.after(self._between((SECOND, 4 * SECOND)), put_back)

    # -- network

    def _cuts_last(self, name: str, pairs: Sequence[tuple[str, str]], duration: int) -> None:
        hindered, kept = self._world.network.hindered, tuple(dict.fromkeys(pairs))
        self._lasts(name, duration, lambda: sum([hindered.get(pair, 0) for pair in kept]))

    def _cut(self, pairs: list[tuple[str, str]], duration: int) -> None:
        network = self._world.network
        for source, to in pairs:
            network.cut(source, to)

        def heal() -> None:
            for source, to in pairs:
                network.heal(source, to)

        self._later(duration, heal)

    def _partition(self) -> bool:
        names = list(self._world.hosts)
        self._rng.shuffle(names)
        size = self._rng.randrange(1, len(names))
        pairs = [(a, b) for a in names[:size] for b in names[size:]]
        pairs += [(b, a) for a, b in pairs]
        duration = self._between(self._limits.cut_ns)
        self._cut(pairs, duration)
        self._cuts_last("partition", pairs, duration)
        return True

    def _cut_one_way(self) -> bool:
        source, to = self._two("one-way cut")
        duration = self._between(self._limits.cut_ns)
        self._cut([(source, to)], duration)
        self._cuts_last("one-way cut", [(source, to)], duration)
        return True

    def _isolate(self) -> bool:
        """One host hears nobody, or nobody hears it, or both."""
        name = self._victim()
        others = [other for other in self._world.hosts if other != name]
        ways = self._rng.randrange(3)
        pairs = [(name, other) for other in others] if ways != 1 else []
        pairs += [(other, name) for other in others] if ways != 0 else []
        duration = self._between(self._limits.cut_ns)
        self._cut(pairs, duration)
        self._cuts_last("isolation", pairs, duration)
        return True

    def _swizzle(self) -> bool:
        """Stop a set of hosts' links one by one, then heal them in another order."""
        names = self._rng.sample(list(self._world.hosts), self._rng.randrange(1, max(2, len(self._world.hosts) // 2)))
        step = self._between((50 * MILLISECOND, 400 * MILLISECOND))
        others = list(self._world.hosts)
        every: list[tuple[str, str]] = []
        longest = 0
        for index, name in enumerate(names):
            pairs = [(name, other) for other in others if other != name]
            pairs += [(other, name) for other in others if other != name]
            lasts = (len(names) + self._rng.randrange(len(names) + 1)) * step + step
            self._later(index * step, partial(self._cut, pairs, lasts))
            every += pairs
            longest = max(longest, index * step + lasts)
        self._cuts_last("swizzle", every, longest)
        return True

    def _flap(self) -> bool:
        one, other = self._two("flapping link")
        period = self._between((300 * MILLISECOND, 1500 * MILLISECOND))
        turns = self._rng.randrange(2, 6)
        for turn in range(turns):
            self._later(2 * turn * period, lambda: self._cut([(one, other), (other, one)], period))
        self._cuts_last("flapping link", [(one, other), (other, one)], (2 * turns - 1) * period)
        return True

    def _record(self, source: str, to: str, sealed: bytes, lane: Lane) -> None:
        if self._is_over:
            return
        if len(self._recorded) >= RECORDED_LIMIT:
            self._recorded[self._rng.randrange(RECORDED_LIMIT)] = (source, to, sealed, lane)
        else:
            self._recorded.append((source, to, sealed, lane))

    def _replay(self) -> bool | None:
        """Frames seen on the wire are played to whom they were meant for once more."""
        if not self._recorded:
            return None
        is_there = False
        for source, to, sealed, lane in self._rng.sample(self._recorded, min(20, len(self._recorded))):
            if to in self._world.hosts:
                self._world.network.inject(to, source, sealed, lane)
                is_there = is_there or self._world.hosts[to].state != "down"
        return is_there

    def _forge(self) -> bool | None:
        """Frames of somebody without the key: random bytes, and real ones with a bit turned or cut short."""
        if not self._recorded:
            return None
        is_there = False
        for source, to, sealed, lane in self._rng.sample(self._recorded, min(10, len(self._recorded))):
            kind = self._rng.randrange(3)
            forged = bytearray(sealed)
            if kind == 0:
                forged = bytearray(self._rng.randbytes(self._rng.randrange(1, 200)))
            elif kind == 1:
                forged[self._rng.randrange(len(forged))] ^= 1 << self._rng.randrange(8)
            else:
                del forged[self._rng.randrange(len(forged)) :]
            if to in self._world.hosts:
                self._world.network.inject(to, source, bytes(forged), lane)
                is_there = is_there or self._world.hosts[to].state != "down"
        return is_there


def missing(world: "World", classes: Sequence[str]) -> list[str]:
    """Classes of the plan that never struck: such a run proves less than it says."""
    network = world.network
    seen = dict(world.struck)
    seen["loss"] = network.dropped.get("loss", 0)
    seen["burst loss"] = network.dropped.get("burst", 0)
    seen["duplicates"] = network.doubled
    seen["reordering"] = network.held_back
    seen["bandwidth"] = network.squeezed
    return [name for name in classes if not seen.get(name)]
