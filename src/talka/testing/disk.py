"""A host's disk: writes become durable some time after they were asked for, and a crash may catch them on the way."""

from collections import deque
from collections.abc import Callable
from math import log
from typing import TYPE_CHECKING, Final, TypeAlias

from talka.errors import Invalid
from talka.units import MILLISECOND

if TYPE_CHECKING:
    from talka.testing.world import World

Puts: TypeAlias = tuple[tuple[str, bytes | None], ...]

FSYNC_MEAN_NS: Final = MILLISECOND
BLOB_PREFIX: Final = "blob/"
"""A blob's key is this and its digest."""


class Disk:
    """Durable content by key. Writes are made durable one after the other, each in an exponentially drawn time.

    A disk belongs to one host, which calls `attach`, `write` and `crash`. Faults call the rest: `lose` and `roll_back`
    between a crash and the next start, `snapshot` and `slow_down` at any time.
    """

    def __init__(self, *, fsync_mean_ns: int = FSYNC_MEAN_NS) -> None:
        if fsync_mean_ns < 0:
            raise Invalid(f"a disk's fsync_mean_ns is at least 0, not {fsync_mean_ns}")
        self.durable: dict[str, bytes] = {}
        self.lost_writes = 0
        """Writes a crash took, the torn ones included."""
        self.torn_writes = 0
        """Writes a crash met half done. They leave no mark: a torn record is found out and thrown away."""
        self._fsync_mean_ns = fsync_mean_ns
        self._slowness = 1
        self._slowed_writes = 0
        self._unfinished: deque[tuple[int, Puts]] = deque()
        self._busy_until = 0
        self._last_ticket = -1
        self._crashes = 0
        self._image: dict[str, bytes] | None = None

    def attach(self, world: "World", name: str, on_durable: Callable[[int, Puts], None]) -> None:
        self._world = world
        self._name = name
        self._rng = world.rng("disk", name)
        self._on_durable = on_durable

    @property
    def slowed_writes(self) -> int:
        """Writes that were begun while the disk was slow."""
        return self._slowed_writes

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    def write(self, ticket: int, puts: Puts) -> None:
        """Begin a write. `on_durable(ticket, puts)` follows once it is durable."""
        if ticket <= self._last_ticket:
            raise Invalid(
                f"host {self._name}: ticket {ticket} of a Persist follows {self._last_ticket}; "
                "tickets of one node must grow"
            )
        self._last_ticket = ticket
        self._slowed_writes += self._slowness > 1
        self._unfinished.append((ticket, puts))
        taken_ns = int(-log(1.0 - self._rng.random()) * self._fsync_mean_ns) * self._slowness
        self._busy_until = max(self._busy_until, self._world.now) + taken_ns
        self._world.push(self._busy_until, self._finish, (self._crashes,))

    def _finish(self, crashes: int) -> None:
        if crashes == self._crashes:
            self._make_durable(*self._unfinished.popleft())

    def _make_durable(self, ticket: int, puts: Puts) -> None:
        for key, content in puts:
            if content is None:
                self.durable.pop(key, None)
            else:
                self.durable[key] = content
        self._on_durable(ticket, puts)

    def crash(self) -> None:
        """Of the unfinished writes a drawn number becomes durable, oldest first; the next is torn, the rest lost."""
        self._crashes += 1
        self._busy_until = 0
        self._last_ticket = -1
        unfinished = list(self._unfinished)
        self._unfinished.clear()
        if not unfinished:
            return
        kept = self._rng.randrange(len(unfinished) + 1)
        for ticket, puts in unfinished[:kept]:
            self._make_durable(ticket, puts)
        self.lost_writes += len(unfinished) - kept
        self.torn_writes += kept < len(unfinished)

    def slow_down(self, factor: int, duration_ns: int) -> None:
        """Writes begun within this time take `factor` times as long. Windows that overlap multiply."""
        if factor < 1:
            raise Invalid(f"a disk is slowed down by a factor of at least 1, not {factor}")
        self._slowness *= factor
        self._world.push(self._world.now + duration_ns, self._end_slow_down, (factor,))

    def _end_slow_down(self, factor: int) -> None:
        self._slowness //= factor

    def lose(self) -> None:
        """The disk was replaced by an empty one."""
        self.durable.clear()

    def snapshot(self) -> None:
        """Keep an image of what is durable now, in place of an earlier one."""
        self._image = dict(self.durable)

    @property
    def has_changed(self) -> bool:
        """Whether putting the image back would make a difference."""
        return self._image is not None and self._image != self.durable

    def roll_back(self) -> bool:
        """Put the image back. False when none was kept."""
        if self._image is None:
            return False
        self.durable = dict(self._image)
        return True
