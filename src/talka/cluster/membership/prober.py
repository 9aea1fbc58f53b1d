"""Probes one member after the other, and helps others to probe theirs.

A probe asks directly; then, after the timeout, through helpers and over the stream as well; and ends with its interval.

SWIM §3.1 the failure detector, §4.3 round-robin targets; Lifeguard's LHA-Probe.
docs/decisions/0013-membership-measures-itself.md.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

from talka.cluster.effects import Lane
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import SUSPECT, Member, Members
from talka.cluster.membership.news import DatagramsBlocked, DatagramsRestored, MembershipEffect
from talka.cluster.membership.presets import MembershipConfig
from talka.units import NEVER
from talka.wire.membership import MembershipMessage, MemberState, Nack, Ping, PingRequest, ProbeAck

MISSES_LIMIT: Final = 3
"""Probes in a row, answered over the stream alone, after which datagrams count as blocked. One or two are mere loss."""
RELAYS_LIMIT: Final = 256
"""Pings for others under way; more are not helped."""

SayTo: TypeAlias = Callable[[list[MembershipEffect], str, MembershipMessage, Lane, Member | None], None]
"""Appends a message for an address to the effects, with updates riding on it; the member is whom it goes to, if
known."""


class Probe:
    """The probe under way."""

    __slots__ = ("answered", "boot", "ends_at", "helpers", "member", "nacks", "sequence", "stream_answered")

    def __init__(self, member: Member, sequence: int, ends_at: int) -> None:
        self.member = member
        self.boot = member.boot
        self.sequence = sequence
        """Of the direct ping and of the requests to helpers. The next one is that of the ping over the stream."""
        self.ends_at = ends_at
        self.helpers: list[str] | None = None
        """Those asked; None while only the direct ping is out."""
        self.nacks: list[str] = []
        self.answered = False
        self.stream_answered = False


class Prober:
    """Call `tick` once `next_tick_at` has come. It returns the member that did not answer, if one did not."""

    __slots__ = (
        "_again",
        "_config",
        "_health",
        "_members",
        "_phase_at",
        "_probe",
        "_relays",
        "_rng",
        "_say",
        "_sequence",
        "next_tick_at",
        "state",
    )

    def __init__(
        self,
        *,
        config: MembershipConfig,
        members: Members,
        health: LocalHealth,
        rng: Random,
        say: SayTo,
        now: int,
    ) -> None:
        self._config = config
        self._members = members
        self._health = health
        self._rng = rng
        self._say = say
        # Not from 0: an answer to one member, played to another, must not fit a question of that one.
        self._sequence = 2 * rng.getrandbits(30)
        self._probe: Probe | None = None
        self._again: Member | None = None
        self._relays = Relays(config, say)
        self.state: MemberState | None = None
        """This node's own, told to those who do not have it."""
        # Drawn, so that members that start together do not march in step.
        self._phase_at = now + int(rng.random() * config.probe_interval_ns)
        self.next_tick_at = self._phase_at

    def tick(self, now: int, out: list[MembershipEffect]) -> Member | None:
        missed = None
        if self._phase_at <= now:
            probe = self._probe
            if probe is None:
                self._begin(now, out)
            elif probe.helpers is None:
                self._ask_helpers(now, probe, out)
            else:
                missed = self._conclude(probe, out)
                self._begin(now, out)
        if self._relays.next_nack_at <= now:
            self._relays.tick(now, out)
        self._set_next_tick()
        return missed

    def on_ack(self, now: int, sender: Member, ack: ProbeAck, out: list[MembershipEffect]) -> None:
        """An answer of the member probed, of a helper, or to a ping sent for another member."""
        probe = self._probe
        if probe is None or not probe.sequence <= ack.sequence <= probe.sequence + 1:
            # A late ack of an earlier probe says nothing about the member probed now.
            self._relays.on_ack(sender, ack, out)
            return
        member = probe.member
        if sender is not member:
            if ack.sequence == probe.sequence and probe.helpers and sender.name in probe.helpers:
                self._succeed(probe)
            return
        if member.boot != probe.boot:
            return
        self._succeed(probe)
        if ack.sequence != probe.sequence:
            probe.stream_answered = True
            return
        member.misses = 0
        if member.blocked:
            member.blocked = False
            out.append(DatagramsRestored(member.name))
        self._probe = None
        self._phase_at = probe.ends_at
        self._set_next_tick()

    def probe_next(self, member: Member) -> None:
        """When the probe under way has ended, the next one is of this member."""
        self._again = member

    def on_nack(self, sender: str, nack: Nack) -> None:
        probe = self._probe
        if probe is None or nack.sequence != probe.sequence or not probe.helpers:
            return
        if sender in probe.helpers and sender not in probe.nacks:
            probe.nacks.append(sender)

    def on_ping_request(
        self, now: int, source: str, sender: Member | None, request: PingRequest, out: list[MembershipEffect]
    ) -> None:
        self._sequence += 2
        self._relays.begin(now, self._sequence, source, sender, request, out)
        self._set_next_tick()

    def _set_next_tick(self) -> None:
        self.next_tick_at = min(self._phase_at, self._relays.next_nack_at)

    def _begin(self, now: int, out: list[MembershipEffect]) -> None:
        self._probe = None
        multiplier = self._health.multiplier
        ends_at = now + self._config.probe_interval_ns * multiplier
        skipped = self._health.level.skip_probes
        member = None if skipped and self._rng.random() * 100 < skipped else self._next_member()
        if member is None:
            self._phase_at = ends_at
            return
        self._sequence += 2
        self._probe = Probe(member, self._sequence, ends_at)
        self._phase_at = now + self._config.probe_timeout_ns * multiplier
        self._say(out, member.address, self._ping(member, self._sequence, False), Lane.DATAGRAM, member)

    def _next_member(self) -> Member | None:
        again, self._again = self._again, None
        return again if again is not None and again.status <= SUSPECT else self._members.next_to_probe()

    def _ask_helpers(self, now: int, probe: Probe, out: list[MembershipEffect]) -> None:
        member = probe.member
        config = self._config
        helpers = self._members.pick(config.indirect_probes, without=member)
        probe.helpers = [helper.name for helper in helpers]
        request = PingRequest(probe.sequence, member.name, probe.boot, member.address)
        for helper in helpers:
            self._say(out, helper.address, request, Lane.DATAGRAM, helper)
        self._say(out, member.address, self._ping(member, probe.sequence + 1, True), Lane.STREAM, member)
        # A tick that comes late leaves the helpers no less time.
        longest = (config.probe_interval_ns - config.probe_timeout_ns) * self._health.multiplier
        probe.ends_at = self._phase_at = max(probe.ends_at, now + longest)

    def _conclude(self, probe: Probe, out: list[MembershipEffect]) -> Member | None:
        member = probe.member
        if member.boot != probe.boot or member.status > SUSPECT:
            return None
        if not probe.answered:
            assert probe.helpers is not None
            self._health.probe_failed(len(probe.helpers), len(probe.nacks))
            return member
        if probe.stream_answered and not member.blocked:
            member.misses += 1
            if member.misses >= MISSES_LIMIT:
                member.blocked = True
                out.append(DatagramsBlocked(member.name))
            else:
                self._again = member
        return None

    def _succeed(self, probe: Probe) -> None:
        if not probe.answered:
            probe.answered = True
            self._health.probe_succeeded()

    def _ping(self, member: Member, sequence: int, stream: bool) -> Ping:
        state = self.state
        if state is not None and state.version <= member.told:
            state = None
        return Ping(sequence, member.name, member.boot, state, member.version, stream)


class Relay:
    """A ping sent for another member."""

    __slots__ = ("begun_at", "origin", "sequence", "target", "to")

    def __init__(self, to: str, origin: Member | None, request: PingRequest, begun_at: int) -> None:
        self.to = to
        self.origin = origin
        self.sequence = request.sequence
        self.target = request.target
        self.begun_at = begun_at


class Relays:
    """Pings sent for others. At four fifths of the timeout a nack says that no answer came yet; a late one still goes
    on."""

    __slots__ = ("_keep_ns", "_nack_after_ns", "_nacks", "_relays", "_say", "next_nack_at")

    def __init__(self, config: MembershipConfig, say: SayTo) -> None:
        self._keep_ns = config.probe_interval_ns
        self._nack_after_ns = config.probe_timeout_ns * 4 // 5
        self._say = say
        self._relays: dict[int, Relay] = {}
        self._nacks: deque[tuple[int, int]] = deque()
        self.next_nack_at = NEVER

    def __len__(self) -> int:
        return len(self._relays)

    def begin(
        self,
        now: int,
        sequence: int,
        source: str,
        sender: Member | None,
        request: PingRequest,
        out: list[MembershipEffect],
    ) -> None:
        relays = self._relays
        for old in list(relays):
            if relays[old].begun_at + self._keep_ns > now:
                break
            del relays[old]
        if len(relays) >= RELAYS_LIMIT:
            return
        relays[sequence] = Relay(sender.address if sender else source, sender, request, now)
        self._say(out, request.address, Ping(sequence, request.target, request.target_boot), Lane.DATAGRAM, None)
        self._nacks.append((now + self._nack_after_ns, sequence))
        self.next_nack_at = self._nacks[0][0]

    def on_ack(self, sender: Member, ack: ProbeAck, out: list[MembershipEffect]) -> None:
        relay = self._relays.get(ack.sequence)
        if relay is not None and relay.target == sender.name:
            del self._relays[ack.sequence]
            self._say(out, relay.to, ProbeAck(relay.sequence), Lane.DATAGRAM, relay.origin)

    def tick(self, now: int, out: list[MembershipEffect]) -> None:
        nacks = self._nacks
        while nacks and nacks[0][0] <= now:
            relay = self._relays.get(nacks.popleft()[1])
            if relay is not None:
                self._say(out, relay.to, Nack(relay.sequence), Lane.DATAGRAM, relay.origin)
        self.next_nack_at = nacks[0][0] if nacks else NEVER
