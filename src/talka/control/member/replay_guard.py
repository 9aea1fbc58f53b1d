"""The replay guard of a member: every frame that leaves gets a number, every frame that enters is let in once.

What is wrong with a frame is found out in the order of cost: its envelope, its group, whether it was seen before. The
body is not looked at here.

A window of numbers for each sender, as RFC 4303 §3.4.3. docs/decisions/0014-sealed-and-alive.md.
"""

from typing import Final

import msgspec

from talka.wire import greeting, membership
from talka.wire.packets import PROTOCOL, BadPacket, Packet, decode_packet, encode_packet
from talka.wire.security.replay import ReplayWindow

SENDERS_LIMIT: Final = 16_384
"""Senders whose frames are told apart; the one known longest is forgotten first."""
REPEATABLE: Final = (membership.CHANNEL.number, greeting.CHANNEL.number)
"""Conversations that bear it when a restarted member hears again what was said shortly before: news is idempotent."""
BOOTS_PER_SENDER: Final = 16
"""Lives of one sender whose frames are told apart; the oldest is forgotten first."""


class ReplayGuard:
    def __init__(self, *, group: str, name: str, boot: int, watchers: tuple[str, ...] = ()) -> None:
        self.admitted = 0
        self.refused: dict[str, int] = {}
        """How many frames were turned away, by reason: malformed, protocol, group, own, life, replayed, body."""
        self._group = group
        self._name = name
        self._boot = boot
        self._groups = (group, *watchers)
        self._counter = 0
        self._windows: dict[tuple[str, str], dict[int, ReplayWindow]] = {}

    @property
    def counter(self) -> int:
        """The number of the last frame that left."""
        return self._counter

    def wrap(self, channel: int, body: bytes, updates: list[bytes] | None = None, *, life: int = 0) -> bytes:
        """A frame for this body. Each call makes another one, also of the same body. `life`: the boot of the receiver
        that alone may hear it."""
        self._counter += 1
        news = [msgspec.Raw(update) for update in updates] if updates else []
        return encode_packet(
            Packet(PROTOCOL, self._group, self._name, self._boot, self._counter, channel, msgspec.Raw(body), news, life)
        )

    def admit(self, frame: bytes) -> Packet | None:
        """The packet of a frame that may be looked at; None for any other, which is counted."""
        try:
            packet = decode_packet(frame)
        except BadPacket as problem:
            self.turn_away(problem.reason)
            return None
        return packet if self.passes(packet) else None

    def passes(self, packet: Packet) -> bool:
        """Whether a packet is of a group that may speak here and comes for the first time. Counted either way."""
        if packet.group not in self._groups:
            self.turn_away("group")
            return False
        if packet.sender == self._name and packet.group == self._group:
            self.turn_away("own")
            return False
        if not self._is_meant(packet):
            self.turn_away("life")
            return False
        window = self._window_of(packet)
        is_old = packet.counter < window.strict_floor and packet.channel not in REPEATABLE
        if is_old or not window.admit(packet.counter):
            self.turn_away("replayed")
            return False
        self.admitted += 1
        return True

    def _is_meant(self, packet: Packet) -> bool:
        """Whether it is for this life. What was meant for an earlier one may be beyond this one, if that was newer."""
        return packet.life in (0, self._boot)

    def knows(self, packet: Packet) -> bool:
        """Whether frames of this life are told apart already."""
        return packet.boot in self._windows.get((packet.group, packet.sender), ())

    def raise_floor(self, packet: Packet, floor: int) -> None:
        """Know this life, and take no frame of it that is numbered below `floor`.

        Of what must not be heard twice, none that was sent before `packet`, with which the life became known: an
        earlier life of this member may have heard it.
        """
        is_new = not self.knows(packet)
        window = self._window_of(packet)
        window.raise_floor(floor)
        if is_new:
            window.strict_floor = packet.counter

    def _window_of(self, packet: Packet) -> ReplayWindow:
        speaker = (packet.group, packet.sender)
        windows = self._windows.get(speaker)
        if windows is None:
            if len(self._windows) >= SENDERS_LIMIT:
                del self._windows[next(iter(self._windows))]
            windows = self._windows[speaker] = {}
        window = windows.get(packet.boot)
        if window is None:
            if len(windows) >= BOOTS_PER_SENDER:
                del windows[next(iter(windows))]
            window = windows[packet.boot] = ReplayWindow()
        return window

    def turn_away(self, reason: str) -> None:
        """Count a frame that was not looked at, or whose body nobody can read."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
