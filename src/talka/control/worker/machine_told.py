"""What a worker tells of its machine, and to whom it need not tell it again.

It is in every beat until the leader has answered one that it was in. A leader is known by its token: another one, or
the same manager in a later term, knows nothing of it yet and is told. So is whoever renews a lease that has ended, as
it may have forgotten this worker meanwhile.

Decision: docs/decisions/0065-what-a-node-tells-of-itself.md.
"""

from typing import Final

import msgspec

from talka.wire.jobs import Fence
from talka.wire.machines import WorkerMachine

PARTS: Final = 20
"""A disk is told anew when a twentieth of it was filled or freed."""


class MachineTold:
    def __init__(self) -> None:
        self.machine: WorkerMachine | None = None
        self._leader: Fence | None = None
        """The token of the leader that has it."""
        self._first = self._last = 0
        """Numbers of the beats that it was in, since it changed or somebody had to be told anew; 0: of none."""

    def set(self, machine: WorkerMachine) -> None:
        if machine != self.machine:
            self.machine = machine
            self.tell_anew()

    def look_at_disk(self, free_bytes: int) -> None:
        """So much is free now: told where it is much more or less than was told last."""
        known = self.machine
        if known is not None and PARTS * abs(free_bytes - known.disk_free_bytes) >= max(1, known.disk_bytes):
            self.set(msgspec.structs.replace(known, disk_free_bytes=free_bytes))

    def tell_anew(self) -> None:
        self._leader = None
        self._first = self._last = 0

    def in_beat(self, number: int) -> WorkerMachine | None:
        """What the beat of this number tells."""
        if self.machine is None or self._leader is not None:
            return None
        self._first, self._last = self._first or number, number
        return self.machine

    def renewed(self, token: Fence, number: int) -> None:
        """A leader has answered the beat of this number."""
        if self._first <= number <= self._last:
            self._leader = token
        elif self._leader is not None and token != self._leader:
            self.tell_anew()
