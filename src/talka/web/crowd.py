"""The connections of one server: who may have one is decided in `control/clients/connections.py` and carried out here.

Decision: docs/decisions/0035-strangers-give-way.md.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from talka.control.clients.connections import ConnectionLimits, ConnectionPlaces, PlaceVerdict, source_of

PASSES: Final = 3
"""Of the loop, until what a connection has sent by the time it is accepted was read for sure, and answered."""
PROBE_PATHS: Final = (b"/livez", b"/readyz")
PROBE_METHODS: Final = (b"GET", b"HEAD")


class Guest:
    """One connection, from its first moment to its last, whatever is spoken on it."""

    def __init__(self, crowd: "Crowd", address: str) -> None:
        self.drop: Callable[[], object] = _nothing
        """Ends the connection at once. Whoever has it says how."""
        self.source = source_of(address)
        self._crowd = crowd

    def asks(self, *, is_probe: bool) -> PlaceVerdict["Guest"]:
        return self._crowd.asks(self, is_probe=is_probe)

    def rests(self) -> None:
        self._crowd.places.rest(self)

    def left(self) -> None:
        self._crowd.places.leave(self)


class Crowd:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.places: ConnectionPlaces[Guest] = ConnectionPlaces(limits)
        self._is_looking = False

    def arrived(self, guest: Guest) -> None:
        gone = self.places.arrive(guest, guest.source)
        if gone is not None:
            gone.drop()
        self._look()

    def asks(self, guest: Guest, *, is_probe: bool) -> PlaceVerdict[Guest]:
        verdict = self.places.ask(guest, is_probe=is_probe)
        if verdict.gives_way is not None:
            verdict.gives_way.drop()
        self._look()
        return verdict

    def _look(self) -> None:
        if not self._is_looking and self.places.is_crowded:
            self._is_looking = True
            self._after(PASSES)

    def _after(self, passes: int) -> None:
        if passes:
            asyncio.get_running_loop().call_soon(self._after, passes - 1)
            return
        self._is_looking = False
        for guest in self.places.give_way():
            guest.drop()


def _nothing() -> None:
    pass


def is_probe(method: bytes, url: bytes) -> bool:
    return method in PROBE_METHODS and url.partition(b"?")[0] in PROBE_PATHS
