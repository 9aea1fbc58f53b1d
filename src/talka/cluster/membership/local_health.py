"""How well this member itself does: inferred from its probes (Lifeguard) and measured by how late it handles things.

A member that is slow sees everybody else as slow. So it doubts itself first.

Lifeguard's local health multiplier. docs/decisions/0013-membership-measures-itself.md.
"""

from enum import IntEnum
from typing import Final

from talka.cluster.membership.presets import PRESETS, MembershipConfig

GATE_INTERVALS: Final = 2
"""Probe intervals after the last late observation when the gate opens although nothing arrives."""


class Degradation(IntEnum):
    """What a member leaves out, the worse it does."""

    skip_probes: int
    """Of a hundred probes, so many are left out."""
    gossip_stretch: int
    """Rounds of gossip are so many times as far apart."""
    may_lead: bool
    """Whether it should stand for leader."""
    must_not_lead: bool
    """Whether it must step down."""
    piggyback_percent: int
    """Of the news that fit a datagram, so many ride along."""
    takes_work: bool
    """Whether it takes new work: submissions, jobs to lead, tasks."""

    def __new__(
        cls,
        value: int,
        skip_probes: int,
        gossip_stretch: int,
        may_lead: bool,
        must_not_lead: bool,
        piggyback_percent: int,
        takes_work: bool,
    ) -> "Degradation":
        level = int.__new__(cls, value)
        level._value_ = value
        level.skip_probes = skip_probes
        level.gossip_stretch = gossip_stretch
        level.may_lead = may_lead
        level.must_not_lead = must_not_lead
        level.piggyback_percent = piggyback_percent
        level.takes_work = takes_work
        return level

    NORMAL = 0, 0, 1, True, False, 100, True
    ELEVATED = 1, 0, 1, True, False, 100, True
    HIGH = 2, 25, 2, True, False, 75, True
    SEVERE = 3, 50, 2, False, False, 50, True
    CRITICAL = 4, 75, 4, False, True, 50, False


def degradation_of(number: int) -> Degradation:
    """Of a number that a node announced; a later version may know worse ones."""
    return _LEVELS[min(number, len(_LEVELS) - 1)]


_LEVELS: Final = tuple(Degradation)
NO_WORK_FROM: Final = min(level for level in Degradation if not level.takes_work)
_OF_SCORE: Final = (
    Degradation.NORMAL,
    Degradation.NORMAL,
    Degradation.ELEVATED,
    Degradation.ELEVATED,
    Degradation.HIGH,
    Degradation.HIGH,
    Degradation.SEVERE,
    Degradation.CRITICAL,
    Degradation.CRITICAL,
)


def _of_lag(lag_ns: int, probe_interval_ns: int) -> Degradation:
    if 2 * lag_ns < probe_interval_ns:
        return Degradation.NORMAL
    if lag_ns < probe_interval_ns:
        return Degradation.ELEVATED
    if lag_ns < 2 * probe_interval_ns:
        return Degradation.HIGH
    if lag_ns <= 4 * probe_interval_ns:
        return Degradation.SEVERE
    return Degradation.CRITICAL


class LocalHealth:
    """Keeps the score and the lag gate.

    Call `handled` for every datagram and `ticked` for every tick, before they are acted on.
    """

    __slots__ = (
        "_config",
        "_gate_opens_at",
        "_is_late",
        "_lag_level",
        "_lowers_from",
        "_of_lag",
        "_raises_from",
        "score",
    )

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self.score = 0
        """0 is well, `awareness_max` the worst."""
        self._is_late = False
        self._gate_opens_at = 0
        self._lag_level = Degradation.NORMAL
        self._raises_from: int | None = None
        self._of_lag = 0
        """So much of the score is for having been late; the rest is what probes say."""
        self._lowers_from = 0

    @property
    def multiplier(self) -> int:
        """How many times as long this member's probes and suspicions take."""
        return self.score + 1

    @property
    def level(self) -> Degradation:
        """By score or by measured lag, whichever is worse."""
        return max(_OF_SCORE[self.score], self._lag_level)

    def probe_succeeded(self) -> None:
        self._change(-1)

    def probe_failed(self, nacks_expected: int, nacks_received: int) -> None:
        """Helpers that did not even say they failed speak against this member, not against the target."""
        self._change(max(0, nacks_expected - nacks_received) if nacks_expected > 0 else 1)

    def refuted(self) -> None:
        """Others took this member for dead: it is likely slow."""
        self._change(1)

    def handled(self, now: int, age_ns: int) -> None:
        """A datagram is handled so long after it arrived at this machine. Below 0 nobody knows how long: it says
        nothing."""
        if age_ns < 0:
            return
        if age_ns > self._config.lag_limit_ns:
            self._observe_late(now, age_ns)
        elif self._is_late:
            # Datagrams are handled in order: what waited during the stall has been handled.
            self._observe_in_time()

    def ticked(self, now: int, late_ns: int) -> None:
        """A tick runs so long after it was due."""
        if late_ns > self._config.lag_limit_ns:
            self._observe_late(now, late_ns)
        elif self._is_late and now >= self._gate_opens_at:
            # A punctual tick alone proves nothing: answers may still wait in the socket.
            self._observe_in_time()
        elif self._of_lag and now >= self._lowers_from:
            # Probes are few while the score is high: by them alone it would be high for long after the last stall.
            self._lowers_from = now + self._config.probe_interval_ns
            self._change(-1)

    def gate_closed(self, now: int) -> bool:
        """Whether this member was late just now, and should give no verdict about others."""
        return self._is_late and now < self._gate_opens_at

    def _observe_late(self, now: int, lag_ns: int) -> None:
        interval_ns = self._config.probe_interval_ns
        self._is_late = True
        self._gate_opens_at = now + GATE_INTERVALS * interval_ns
        self._lag_level = _of_lag(lag_ns, interval_ns)
        # A stall leaves many late datagrams and is still one stall.
        if self._raises_from is None or now >= self._raises_from:
            self._raises_from = now + interval_ns
            self._change(1)
            self._of_lag = min(self._of_lag + 1, self.score)
        self._lowers_from = now + (GATE_INTERVALS + 1) * interval_ns

    def _observe_in_time(self) -> None:
        self._is_late = False
        self._lag_level = Degradation.NORMAL

    def _change(self, delta: int) -> None:
        self.score = min(max(self.score + delta, 0), self._config.awareness_max)
        if delta < 0 and self._of_lag:
            self._of_lag -= 1


class BeatHealth(LocalHealth):
    """Of somebody who does not probe and says now and then that he lives: by how late two beats in a row are. One
    stall, which is over when its beat is sent, makes one late."""

    __slots__ = ("_late_ns",)

    def __init__(self) -> None:
        super().__init__(PRESETS["default"])
        self._late_ns = 0

    def beat(self, now: int, late_ns: int) -> None:
        """A beat is sent so long after it was due."""
        before_ns, self._late_ns = self._late_ns, late_ns
        self.ticked(now, min(before_ns, late_ns))
