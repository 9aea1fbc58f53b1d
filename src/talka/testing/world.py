"""A whole cluster in one process, from one seed: one heap of events, integer nanoseconds of true time.

Same seed, same history: `trace_hash` tells whether two runs were the same.
"""

import gc
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from talka.cluster.effects import Lane
from talka.errors import Invalid
from talka.testing.disk import Disk, Puts
from talka.testing.host import Clock, Cpu, Effects, Host
from talka.testing.network import Network
from talka.testing.trace import Event, Trace, line_of
from talka.units import SECOND
from talka.wire.security.roles import NOBODY, Proven

VIOLATIONS_LIMIT: Final = 1000
"""Violations that are kept; later ones only count."""


class SimulatedNode(Protocol):
    """What a host runs: a composite of `talka.control`, or a test's own. Times are of the host's clock."""

    next_tick_at: int
    """`tick` is called once this has come. It may change with every call."""
    frames_admitted: int
    """Grows by one for every frame that was let in."""

    def start(self, now: int) -> Effects: ...
    def on_frame(
        self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int, proven: Proven = NOBODY
    ) -> Effects:
        """`proven` is told in worlds with certificates only."""
        ...

    def tick(self, now: int) -> Effects: ...
    def on_persisted(self, now: int, ticket: int) -> Effects: ...


class Boot(msgspec.Struct, frozen=True):
    """What a host gives to a node that starts."""

    name: str
    boot: int
    """62 bits, drawn at every start, unique in its world."""
    rng: Random
    now: int
    stored: dict[str, bytes]
    """A copy of what is durable."""


Starter: TypeAlias = Callable[[Boot], SimulatedNode]


class Violation(msgspec.Struct, frozen=True):
    time: int
    invariant: str
    text: str


class Observer:
    """Sees all that happens. Checkers and recorders derive from it and override what they need."""

    def on_boot(self, world: "World", host: Host) -> None:
        """A node was made; its `start` has not been called yet."""

    def on_crash(self, world: "World", host: Host) -> None:
        """The node is gone, and what its disk kept of the last writes is durable."""

    def on_effect(self, world: "World", host: Host, effect: object) -> None:
        """A node's news: every effect that is neither a frame nor a write."""

    def on_persisted(self, world: "World", host: Host, puts: Puts) -> None:
        """The puts became durable. The node is told afterwards, or never when it crashed."""

    def on_admitted(self, world: "World", host: Host, frame: bytes) -> None:
        """The node let this frame in; its effects follow."""

    def on_second(self, world: "World") -> None:
        """Another simulated second is over."""

    def at_end(self, world: "World") -> None:
        """The run is over."""


class World:
    """Hosts, the network between them, and the order in which everything happens."""

    def __init__(self, seed: int, *, verbose: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.hosts: dict[str, Host] = {}
        self.observers: list[Observer] = []
        self.door_watchers: list[Observer] = []
        """Those of the observers that want to see frames: there are many, and most observers do not."""
        self.violations: list[Violation] = []
        self.violation_count = 0
        self.stop_at_first = True
        """A violation ends the run, once the event that showed it is over."""
        self.stopped = False
        self.identities: dict[str, Proven] = {}
        """Whom the certificate of each host names. Empty: there are no certificates."""
        self.struck: dict[str, int] = {}
        """How often each class of fault struck."""
        self.met_nothing: dict[str, int] = {}
        """How often each class of fault was to strike and had no effect."""
        self.drawn_again: dict[str, int] = {}
        """How many of each class were drawn in the place of one that met nothing."""
        self.events_handled = 0
        self.trace = Trace(verbose)
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = count().__next__
        """Breaks ties in the heap: first asked for, first done."""
        self.network = Network(self)
        self._boots: dict[int, str] = {}
        self._boot_rng = self.rng("boot")
        self.push(SECOND, self._end_second, ())

    def count_fault(self, name: str, *, has_met: bool = True, is_again: bool = False) -> None:
        """A fault of this class had an effect, or met nothing. `is_again`: it was drawn in the place of one that met
        nothing."""
        counts = self.struck if has_met else self.met_nothing
        counts[name] = counts.get(name, 0) + 1
        if is_again:
            self.drawn_again[name] = self.drawn_again.get(name, 0) + 1

    def rng(self, stream: str, entity: str = "") -> Random:
        """A source of randomness that no other stream or entity draws from."""
        return Random(f"{self.seed}:{stream}:{entity}")

    def push(self, when: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Call `action(*arguments)` at a true time that has not passed."""
        heappush(self.heap, (when, self.sequence(), action, arguments))

    def at(self, when: int, action: Callable[[], None]) -> None:
        if when < self.now:
            raise Invalid(f"it is {self.now} ns; nothing can be done at {when} ns any more")
        self.push(when, action, ())

    def after(self, delay: int, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def add_host(
        self,
        name: str,
        starter: Starter,
        *,
        clock: Clock = Clock(),  # noqa: B008 a frozen value
        cpu: Cpu = Cpu(),  # noqa: B008 a frozen value
        disk: Disk | None = None,
    ) -> Host:
        """A host that is down until its `start`."""
        if name in self.hosts:
            raise Invalid(f"there is a host {name!r} already; hosts need names of their own")
        host = self.hosts[name] = Host(self, name, starter, clock, cpu, Disk() if disk is None else disk)
        return host

    def bring_up(self, host: Host, starter: Starter, now: int) -> tuple[int, SimulatedNode]:
        """A new boot of a host's node, and the node."""
        boot = self._boot_rng.getrandbits(62)
        while boot in self._boots:
            boot = self._boot_rng.getrandbits(62)
        self._boots[boot] = host.name
        stored = dict(host.disk.durable)
        return boot, starter(Boot(host.name, boot, self.rng("node", f"{host.name}:{boot}"), now, stored))

    def run_until(self, when: int) -> None:
        """Handle every event up to this true time, and let it be then. A violation may end it earlier."""
        heap, trace = self.heap, self.trace
        self.door_watchers = [o for o in self.observers if type(o).on_admitted is not Observer.on_admitted]
        pending = trace.pending
        # A run makes no cycles worth looking for, and the search would cost a tenth of it.
        is_collected = gc.isenabled()
        gc.disable()
        try:
            while not self.stopped and heap[0][0] <= when:
                self.now, _, action, arguments = heappop(heap)
                action(*arguments)
                self.events_handled += 1
                if len(pending) >= trace.limit:
                    trace.flush()
        finally:
            if is_collected:
                gc.enable()
            trace.flush()
        if not self.stopped:
            self.now = max(self.now, when)

    def _end_second(self) -> None:
        self.push(self.now + SECOND, self._end_second, ())
        for observer in self.observers:
            observer.on_second(self)

    def finish(self) -> list[Violation]:
        """Let every observer judge the whole run; what was violated in it."""
        for observer in self.observers:
            observer.at_end(self)
        return self.violations

    def violate(self, invariant: str, text: str) -> None:
        """Record that something happened which never may."""
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_LIMIT:
            self.violations.append(Violation(self.now, invariant, text))
        self.trace.pending.append((self.now, "violation", "", invariant, 0, text))
        self.stopped = self.stopped or self.stop_at_first

    def trace_hash(self) -> str:
        """BLAKE2 over every event so far: when, what, where, and its bytes."""
        return self.trace.digest()

    @property
    def recent(self) -> deque[Event]:
        """The last 200 events."""
        return self.trace.recent()

    def recent_lines(self) -> list[str]:
        return [line_of(event) for event in self.recent]
