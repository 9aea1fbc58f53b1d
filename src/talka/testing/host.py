"""One machine of a world: a clock, a processor, a disk, and the node it runs.

Inputs reach the node in turns, as asyncio's loop would bring them: answers that wait (finished writes, calls), then
ONE frame, then every timer that is due, then the next turn. After a stall a node therefore sees its timeouts before
most of the frames that came in time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappush
from math import log
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Persist, PersistBlob, Transmit
from talka.errors import Invalid
from talka.testing.disk import BLOB_PREFIX, Disk, Puts
from talka.testing.network import OVERHEAD_BYTES
from talka.units import NEVER
from talka.wire.security.roles import NOBODY

if TYPE_CHECKING:
    from talka.testing.world import SimulatedNode, Starter, World

TICKS_LIMIT: Final = 1000
"""Ticks a node may ask for at one instant."""
_MILLION: Final = 1_000_000

Effects: TypeAlias = Sequence[object]
"""What a node asks for: a world has nodes of every kind."""
Input: TypeAlias = Callable[[int], Effects]


class Clock(msgspec.Struct, frozen=True):
    """How a host's clock differs from true time when the world begins."""

    offset_ns: int = 0
    drift_ppm: int = 0


class Cpu(msgspec.Struct, frozen=True):
    service_ns: int = 0
    """Mean time that handling a frame takes; 0 is instant."""
    inbox_frames: int = 512
    """Frames that wait for their turn; more are dropped."""


class Host:
    """Runs one node. Made by `World.add_host`; it is down until `start`."""

    __slots__ = (
        "_answers",
        "_armed_local",
        "_base_local",
        "_base_true",
        "_cpu",
        "_cpu_rng",
        "_drift_ppm",
        "_free",
        "_held",
        "_held_until",
        "_inbox",
        "_is_only_frozen",
        "_life",
        "_pause_ns",
        "_starter",
        "_steps",
        "_token",
        "_trace",
        "_wake_at",
        "_world",
        "boot",
        "disk",
        "forged_dropped",
        "inbox_dropped",
        "name",
        "node",
        "port",
        "service_ns",
        "state",
    )

    def __init__(self, world: "World", name: str, starter: "Starter", clock: Clock, cpu: Cpu, disk: Disk) -> None:
        self.name = name
        self.node: SimulatedNode | None = None
        self.boot = 0
        """Drawn at every start."""
        self.state: Literal["up", "stalled", "down"] = "down"
        self.disk = disk
        self.forged_dropped = 0
        self.inbox_dropped = 0
        self._world = world
        self._trace = world.trace.pending
        self._starter = starter
        self._cpu = cpu
        self._cpu_rng = world.rng("cpu", name)
        self.service_ns = cpu.service_ns
        self._base_true = 0
        self._base_local = clock.offset_ns
        self._drift_ppm = _checked_drift(clock.drift_ppm)
        self._free = False
        """Up, and in the middle of nothing: an input is handled at once."""
        self._life = 0
        self._wake_at = 0
        self._pause_ns = 0
        self._is_only_frozen = False
        """It stands still, and what it started goes on."""
        self._held: Effects | None = None
        """Effects of an input whose handling still takes time, until `_held_until` and the end of a stall."""
        self._held_until = 0
        self._steps = 0
        self._inbox: deque[tuple[int, str, bytes, Lane]] = deque()
        self._answers: deque[tuple[int, Input | None]] = deque()
        self._armed_local = NEVER
        """Local time of the one timer of this host that counts; `_token` tells it from those that no longer do."""
        self._token = 0
        disk.attach(world, name, self._on_durable)
        self.port = world.network.attach(self)

    # ---- clock

    def local(self, true_ns: int) -> int:
        elapsed = true_ns - self._base_true
        # The same as elapsed·(10⁶ + ppm) // 10⁶, in smaller numbers.
        return self._base_local + elapsed + elapsed * self._drift_ppm // _MILLION

    def true_of(self, local_ns: int) -> int:
        """The first true instant at which this local time has come."""
        elapsed = local_ns - self._base_local
        return self._base_true - elapsed * _MILLION // -(_MILLION + self._drift_ppm)

    @property
    def drift_ppm(self) -> int:
        return self._drift_ppm

    def set_drift(self, ppm: int) -> None:
        """From now on the clock runs at this rate. Local time goes on from where it is."""
        drift_ppm = _checked_drift(ppm)
        self._set_clock(self.local(self._world.now))
        self._drift_ppm = drift_ppm
        self._trace.append((self._world.now, "drift", self.name, f"{ppm} ppm", 0, None))
        self._rearm()

    def jump(self, ahead_ns: int) -> None:
        """The clock leaps forward."""
        if ahead_ns < 0:
            raise Invalid(f"host {self.name}: a monotonic clock never goes back, but was asked to by {-ahead_ns} ns")
        self._set_clock(self.local(self._world.now) + ahead_ns)
        self._trace.append((self._world.now, "jump", self.name, f"{ahead_ns} ns", 0, None))
        self._rearm()

    def _set_clock(self, local_ns: int) -> None:
        self._base_local = local_ns
        self._base_true = self._world.now

    # ---- faults

    def start(self) -> bool:
        """Start the node from what the disk holds. False when the host already runs."""
        if self.state != "down":
            return False
        world = self._world
        self.state = "up"
        self._free = False
        now = self.local(world.now)
        self.boot, node = world.bring_up(self, self._starter, now)
        self.node = node
        self._trace.append((world.now, "boot", self.name, "", self.boot, None))
        for observer in world.observers:
            observer.on_boot(world, self)
        if self.node is node and self._emit(node, node.start(now)):
            self._settle(node)
        return True

    def crash(self) -> bool:
        """Stop at once: memory, inbox and effects that were held back are gone. False when the host is down."""
        if self.state == "down":
            return False
        world = self._world
        self.state = "down"
        self.node = None
        self._free = False
        self._life += 1
        self._wake_at = 0
        self._pause_ns = 0
        self._held = None
        self._inbox.clear()
        self._answers.clear()
        self._trace.append((world.now, "crash", self.name, "", 0, None))
        self.disk.crash()
        world.network.reset_streams(self.port)
        for observer in world.observers:
            observer.on_crash(world, self)
        return True

    @property
    def is_running(self) -> bool:
        """Whether processes beside the node go on: the machine is up, or the node's process alone stands still."""
        return self.state == "up" or (self.state == "stalled" and self._is_only_frozen)

    def freeze(self, duration_ns: int) -> bool:
        """Stop the node's process alone, as a debugger or a full memory does; its cores go on. Of a host that is up."""
        if self.state != "up" or not self.stall(duration_ns):
            return False
        self._is_only_frozen = True
        return True

    def stall(self, duration_ns: int, *, mid_step: bool = False) -> bool:
        """Handle nothing for a while; frames wait in the inbox. False when the host is down.

        With `mid_step` the stall begins between the next decision of the node and its effects: they are carried out
        when it ends. A stall during another lasts until the later end of the two.
        """
        if self.state == "down":
            return False
        if mid_step:
            self._pause_ns = max(self._pause_ns, duration_ns)
            return True
        world = self._world
        self.state = "stalled"
        self._is_only_frozen = False
        self._free = False
        self._trace.append((world.now, "stall", self.name, "", duration_ns, None))
        self._wake_at = max(self._wake_at, world.now + duration_ns)
        world.push(world.now + duration_ns, self._wake, (self._life,))
        return True

    def _wake(self, life: int) -> None:
        world = self._world
        if life != self._life or self.state != "stalled" or world.now < self._wake_at:
            return
        self.state = "up"
        self._trace.append((world.now, "wake", self.name, "", 0, None))
        if self._held is None:
            self._take_turns()
        elif world.now >= self._held_until:
            self._release()

    def set_service(self, mean_ns: int | None) -> None:
        """Handling a frame takes this long from now on, on average; None: as the host was made."""
        self.service_ns = self._cpu.service_ns if mean_ns is None else mean_ns

    # ---- inputs

    def arrive(self, source: str, frame: bytes, lane: Lane) -> None:
        """A frame reached this host. Called by the network."""
        if self._free:
            port = self.port
            port.frames_received += 1
            port.bytes_received += len(frame) + OVERHEAD_BYTES
            node = self.node
            assert node is not None
            if self._handle_frame(node, source, frame, lane, 0):
                self._settle(node)
            return
        if self.state == "down":
            self._world.network.drop("down", source, self.name)
            return
        if len(self._inbox) >= self._cpu.inbox_frames:
            self.inbox_dropped += 1
            self._world.network.drop("inbox", source, self.name)
            return
        self.port.frames_received += 1
        self.port.bytes_received += len(frame) + OVERHEAD_BYTES
        self._inbox.append((self.local(self._world.now), source, frame, lane))

    def act(self, call: Input) -> bool:
        """Let the node handle `call(local time)` as an input. False when the host is not up, or has too many waiting.

        It is handled before `act` returns, unless the host is in the middle of another input: then it is the next.
        """
        if self.state != "up" or len(self._answers) >= self._cpu.inbox_frames:
            return False
        self._answers.append((0, call))
        if self._free:
            self._take_turns()
        return True

    def _on_durable(self, ticket: int, puts: Puts) -> None:
        world = self._world
        life = self._life
        self._trace.append((world.now, "durable", self.name, "", ticket, puts))
        for observer in world.observers:
            observer.on_persisted(world, self, puts)
        if life != self._life or self.state == "down":
            return
        self._answers.append((ticket, None))
        if self._free:
            self._take_turns()

    # ---- turns. What handles inputs answers whether the host can go on: it is up, with the same node, and not busy.

    def _take_turns(self) -> None:
        """Handle all that waits: answers, one frame, due timers, and again."""
        self._free = False
        node = self.node
        assert node is not None
        while True:
            while self._answers:
                if not self._handle_answer(node, *self._answers.popleft()):
                    return
            if self._inbox:
                arrived, source, frame, lane = self._inbox.popleft()
                age_ns = self.local(self._world.now) - arrived
                if not self._handle_frame(node, source, frame, lane, age_ns):
                    return
            now = self.local(self._world.now)
            if node.next_tick_at <= now and not self._handle_ticks(node, now):
                return
            if not self._answers and not self._inbox:
                self._free = True
                if node.next_tick_at < self._armed_local:
                    self._arm(node.next_tick_at)
                return

    def _settle(self, node: "SimulatedNode") -> None:
        """What follows an input: due timers, then all that waits."""
        now = self.local(self._world.now)
        if node.next_tick_at <= now and not self._handle_ticks(node, now):
            return
        if self._answers or self._inbox:
            self._take_turns()
            return
        self._free = True
        if node.next_tick_at < self._armed_local:
            self._arm(node.next_tick_at)

    def _handle_frame(self, node: "SimulatedNode", source: str, frame: bytes, lane: Lane, age_ns: int) -> bool:
        world = self._world
        self._free = False
        self._trace.append((world.now, "frame", self.name, source, lane, frame))
        admitted = node.frames_admitted
        if world.identities:
            proven = NOBODY if lane is Lane.DATAGRAM else world.identities[source]
            effects = node.on_frame(self.local(world.now), source, frame, lane, age_ns, proven)
        else:
            effects = node.on_frame(self.local(world.now), source, frame, lane, age_ns)
        if node.frames_admitted != admitted:
            for observer in world.door_watchers:
                observer.on_admitted(world, self, frame)
            if self.node is not node:
                return False
        if self.service_ns:
            self._hold(effects, int(-log(1.0 - self._cpu_rng.random()) * self.service_ns))
            return False
        return self._emit(node, effects) if effects else self.state == "up"

    def _handle_answer(self, node: "SimulatedNode", ticket: int, call: Input | None) -> bool:
        world = self._world
        now = self.local(world.now)
        if call is None:
            self._trace.append((world.now, "persisted", self.name, "", ticket, None))
            effects = node.on_persisted(now, ticket)
        else:
            self._trace.append((world.now, "call", self.name, "", 0, None))
            effects = call(now)
        return self.node is node and self._emit(node, effects)

    def _handle_ticks(self, node: "SimulatedNode", now: int) -> bool:
        for _ in range(TICKS_LIMIT):
            self._trace.append((self._world.now, "tick", self.name, "", 0, None))
            effects = node.tick(now)
            if effects and not self._emit(node, effects):
                return False
            if node.next_tick_at > now:
                return True
        raise Invalid(
            f"host {self.name}: its node ticked {TICKS_LIMIT} times at one instant and asks for more; "
            "tick must move next_tick_at past now"
        )

    def _emit(self, node: "SimulatedNode", effects: Effects) -> bool:
        if self._pause_ns and effects:
            self._hold(effects, 0)
            return False
        return self._carry_out(node, effects)

    def _carry_out(self, node: "SimulatedNode", effects: Effects) -> bool:
        world = self._world
        for effect in effects:
            kind = type(effect)
            if kind is Transmit:
                world.network.send(self.port, effect.to, effect.frame, effect.lane)  # type: ignore[attr-defined]
            elif isinstance(effect, Persist):
                self.disk.write(effect.ticket, effect.puts)
            elif isinstance(effect, PersistBlob):
                removed = tuple((BLOB_PREFIX + digest, None) for digest in effect.removed)
                self.disk.write(effect.ticket, ((BLOB_PREFIX + effect.digest, effect.content), *removed))
            else:
                self._trace.append((world.now, "news", self.name, kind.__name__, 0, effect))
                for observer in world.observers:
                    observer.on_effect(world, self, effect)
                if self.node is not node:
                    return False
        return self.state == "up"

    def _hold(self, effects: Effects, duration_ns: int) -> None:
        world = self._world
        self._held = effects
        self._held_until = world.now + duration_ns
        self._steps += 1
        world.push(self._held_until, self._finish, (self._steps,))
        if self._pause_ns and effects:
            pause_ns, self._pause_ns = self._pause_ns, 0
            self.stall(pause_ns)

    def _finish(self, step: int) -> None:
        """The time that an input takes is over; during a stall its effects wait on."""
        if step == self._steps and self._held is not None and self.state == "up":
            self._release()

    def _release(self) -> None:
        node, effects, self._held = self.node, self._held, None
        assert node is not None and effects is not None
        # Not through `_emit`: one input is stalled once.
        if self._carry_out(node, effects):
            self._settle(node)

    # ---- timer

    def _arm(self, local_ns: int) -> None:
        world = self._world
        self._armed_local = local_ns
        self._token += 1
        heappush(world.heap, (max(self.true_of(local_ns), world.now), world.sequence(), self._on_timer, (self._token,)))

    def _rearm(self) -> None:
        self._token += 1
        self._armed_local = NEVER
        if self._free and self.node is not None and self.node.next_tick_at < NEVER:
            self._arm(self.node.next_tick_at)

    def _on_timer(self, token: int) -> None:
        if token != self._token:
            return
        self._armed_local = NEVER
        node = self.node
        # A host that is not free looks at its timers, and arms one, when it is again.
        if not self._free or node is None:
            return
        now = self.local(self._world.now)
        if node.next_tick_at > now:
            if node.next_tick_at < NEVER:
                self._arm(node.next_tick_at)
            return
        self._free = False
        if self._handle_ticks(node, now):
            self._settle(node)


def _checked_drift(ppm: int) -> int:
    if abs(ppm) > _MILLION // 2:
        raise Invalid(f"a clock drifts by at most 500,000 ppm, not {ppm}")
    return ppm
