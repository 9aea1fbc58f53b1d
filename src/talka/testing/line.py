"""Calls that reach a node one after the other, as those of one thread or one connection do."""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from talka.testing.host import Effects, Host
from talka.testing.world import World

AGAIN_NS: Final = 20_000_000
"""After which a host that stood still is tried again."""

Call: TypeAlias = Callable[[int], Effects]


class CallLine:
    """Of one life of a host. Each call is handled as soon as the host can, and never before an earlier one."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host
        self._boot = host.boot
        self._waiting: deque[Call] = deque()
        self._is_timed = False

    def put(self, call: Call) -> None:
        self._waiting.append(call)
        if not self._is_timed:
            self._pump()

    def _pump(self) -> None:
        self._is_timed = False
        host, waiting = self._host, self._waiting
        while waiting:
            if host.boot != self._boot or host.state == "down":
                waiting.clear()
                return
            call = waiting.popleft()
            if not host.act(lambda now, call=call: self._handled(now, call)):  # type: ignore[misc]
                waiting.appendleft(call)
                self._is_timed = True
                self._world.after(AGAIN_NS, self._pump)
                return

    def _handled(self, now: int, call: Call) -> Effects:
        return call(now) if self._host.boot == self._boot else []
