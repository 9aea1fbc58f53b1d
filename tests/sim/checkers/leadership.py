"""What must hold of leaders, voters, receivers and owners in a world, judged only by what happened.

Each checker is an observer of its own; a world has those its scenario can keep. None knows a scenario or a safeguard.
"""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from talka.cluster import leases
from talka.cluster.fencing import ZERO, Token
from talka.cluster.leadership.leader_term import BATCHES_LIMIT, READS_LIMIT, ROUNDS_KEPT
from talka.cluster.leadership.news import Elected, LeaseExtended, SteppedDown
from talka.cluster.leadership.peer_checks import ALARMS_LIMIT
from talka.cluster.leadership.quorum import VOTERS_LIMIT
from talka.cluster.leadership.register import HELD_LIMIT, KEYS_LIMIT, RECORD_KEY, VoterRecord
from talka.cluster.leadership.snapshot_transfer import APPLICANTS_LIMIT
from talka.cluster.leadership.voter_startup import PEERS_LIMIT
from talka.cluster.leases import LeaseGranted, LeaseLost
from talka.control.member.composite import ClusterMember
from talka.control.member.owner import WANTED_LIMIT
from talka.control.member.receiver import FENCE_KEY, WAITING_LIMIT, Applied
from talka.control.member.replay_guard import BOOTS_PER_SENDER, SENDERS_LIMIT
from talka.testing.disk import Puts
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire.leadership import PAGES_LIMIT
from tests.sim.checkers.linearizability import RegisterHistory

DRIFT_LIMIT_PPM: Final = 20_000
"""What leases bear by default: 2 %."""
FORGIVEN_NS: Final = 30 * SECOND
"""A clock that went too far excuses overlaps for this long: every promise it was part of has ended by then."""
_WATCHED: Final[tuple[str, ...]] = (RECORD_KEY, FENCE_KEY)

_record_decoder = msgspec.msgpack.Decoder(VoterRecord)
_token_decoder = msgspec.msgpack.Decoder(Token)


def _group_of(host: Host) -> str:
    """The group of the node that runs on this host. Nodes that know none are all of one."""
    group: str = getattr(host.node, "group", "")
    return group


class OneLeaderPerTerm(Observer):
    """I1: a term of a group has one leader, which is one boot of one host."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not Elected:
            return
        group, term = _group_of(host), effect.token.term
        name, boot = self._leaders.setdefault((group, term), (host.name, host.boot))
        if name != host.name:
            world.violate("I1", f"group {group!r}: {name} and {host.name} were both elected in term {term}")
        elif boot != host.boot:
            world.violate("I1", f"group {group!r}: two boots of {name} were elected in term {term}")


class _Disks:
    """Tells a disk that survived from one that was lost or rolled back: what became durable is still there."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, bytes]] = {}

    def wrote(self, host: Host, key: str, content: bytes | None) -> None:
        kept = self._kept.setdefault(host.name, {})
        if content is None:
            kept.pop(key, None)
        else:
            kept[key] = content

    def survived(self, host: Host) -> bool:
        """Ask once at every boot."""
        durable = host.disk.durable
        found = {key: durable[key] for key in _WATCHED if key in durable}
        kept = self._kept.get(host.name)
        self._kept[host.name] = found
        return kept == found


class NothingGoesBack(Observer):
    """I2: on a disk that survives, revision, term, the vote of a term and the fence never go back.

    A term in which a host led, and a token under which it applied a command, were on its disk before; a restart must
    find them there. Writes that a crash took were spoken of nowhere.
    """

    def __init__(self) -> None:
        self._disks = _Disks()
        self._records: dict[str, VoterRecord] = {}
        self._fences: dict[str, Token] = {}
        self._led: dict[str, int] = {}
        self._applied: dict[str, Token] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is Elected:
            self._led[host.name] = max(self._led.get(host.name, 0), effect.token.term)
        elif type(effect) is Applied:
            self._applied[host.name] = max(self._applied.get(host.name, ZERO), effect.token)

    def on_persisted(self, world: World, host: Host, puts: Puts) -> None:
        for key, content in puts:
            if key == RECORD_KEY:
                self._disks.wrote(host, key, content)
                self._on_record(world, host, content)
            elif key == FENCE_KEY:
                self._disks.wrote(host, key, content)
                self._on_fence(world, host, content)

    def _on_record(self, world: World, host: Host, content: bytes | None) -> None:
        before = self._records.get(host.name)
        if content is None:
            world.violate("I2", f"{host.name} removed its voter's record")
            return
        after = self._records[host.name] = _record_decoder.decode(content)
        if before is None:
            return
        if before.disk_id != after.disk_id:
            self._led.pop(host.name, None)  # it started over, without a vote
        elif after.revision < before.revision:
            text = f"the revision of {host.name}'s record fell from {before.revision} to {after.revision}"
            world.violate("I2", text)
        elif after.term < before.term:
            world.violate("I2", f"the term of {host.name} fell from {before.term} to {after.term}")
        elif after.term == before.term and before.voted_for not in ("", after.voted_for):
            votes = f"from {before.voted_for!r} to {after.voted_for!r}"
            world.violate("I2", f"the vote of {host.name} in term {after.term} changed {votes}")

    def _on_fence(self, world: World, host: Host, content: bytes | None) -> None:
        before = self._fences.get(host.name, ZERO)
        after = self._fences[host.name] = ZERO if content is None else _token_decoder.decode(content)
        if after < before:
            world.violate("I2", f"the fence of {host.name} fell from {before} to {after}")

    def on_boot(self, world: World, host: Host) -> None:
        name = host.name
        if not self._disks.survived(host):
            self._start_anew(host)
            return
        record = self._records.get(name)
        term, led = 0 if record is None else record.term, self._led.get(name, 0)
        if term < led:
            world.violate("I2", f"{name} led term {led}, and starts again with term {term} on a disk that survived")
        fence, applied = self._fences.get(name, ZERO), self._applied.get(name, ZERO)
        if fence < applied:
            text = f"{name} applied a command of token {applied}, and starts again with {fence}"
            world.violate("I2", f"{text} on a disk that survived")

    def _start_anew(self, host: Host) -> None:
        for known in (self._records, self._fences, self._led, self._applied):
            known.pop(host.name, None)
        record, fence = host.disk.durable.get(RECORD_KEY), host.disk.durable.get(FENCE_KEY)
        if record is not None:
            self._records[host.name] = _record_decoder.decode(record)
        if fence is not None:
            self._fences[host.name] = _token_decoder.decode(fence)


class NoStaleEffect(Observer):
    """I3: a receiver applies nothing under a token below one it has applied before. A lost disk is a new receiver."""

    def __init__(self) -> None:
        self._disks = _Disks()
        self._highest: dict[str, Token] = {}

    def on_persisted(self, world: World, host: Host, puts: Puts) -> None:
        for key, content in puts:
            if key in _WATCHED:
                self._disks.wrote(host, key, content)

    def on_boot(self, world: World, host: Host) -> None:
        if not self._disks.survived(host):
            self._highest.pop(host.name, None)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not Applied:
            return
        highest = self._highest.get(host.name, ZERO)
        if effect.token >= highest:
            self._highest[host.name] = effect.token
            return
        what = f"command {effect.number} of {effect.sender} under token {effect.token}"
        world.violate("I3", f"{host.name} applied {what} after one under {highest}")


class _Clocks:
    """Which clocks ran too fast or too slow lately, seen from outside: at each second, and over it (so that a leap
    counts), and at the instant of the question."""

    def __init__(self, limit_ppm: int) -> None:
        self._limit_ppm = limit_ppm
        self._seen: dict[str, tuple[int, int]] = {}
        self._strayed: dict[str, int] = {}
        self._groups: dict[str, str] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._groups[host.name] = _group_of(host)

    def look(self, world: World) -> None:
        now = world.now
        for name, host in world.hosts.items():
            local = host.local(now)
            true_before, local_before = self._seen.get(name, (now, local))
            self._seen[name] = (now, local)
            if self._is_off(local - local_before, now - true_before) or self._is_off(
                host.local(now + SECOND) - local, SECOND
            ):
                self._strayed[name] = now

    def _is_off(self, local_ns: int, true_ns: int) -> bool:
        # Two nanoseconds are the rounding of two readings.
        return (abs(local_ns - true_ns) - 2) * 1_000_000 > self._limit_ppm * true_ns

    def are_within(self, world: World, group: str) -> bool:
        """Whether every clock of this group kept to the limit as far back as matters."""
        self.look(world)
        return not any(
            world.now - strayed_at <= FORGIVEN_NS and self._groups.get(name) == group
            for name, strayed_at in self._strayed.items()
        )


class _Belief(msgspec.Struct, frozen=True):
    host: Host
    term: int
    until: int


class OneLeaseAtATime(Observer):
    """I4: no host believes in a leader's lease of its own while another one's still runs by that one's clock.

    An overlap while a clock of the group exceeds the limit, or shortly after, is counted and allowed. An overlap of
    two leaderships is told or counted once.
    """

    def __init__(self, drift_limit_ppm: int = DRIFT_LIMIT_PPM) -> None:
        self.allowed_overlaps = 0
        self._clocks = _Clocks(drift_limit_ppm)
        self._beliefs: dict[str, dict[str, _Belief]] = {}
        self._told: dict[tuple[str, str, int, str, int], None] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._clocks.on_boot(world, host)

    def on_second(self, world: World) -> None:
        self._clocks.look(world)

    def on_crash(self, world: World, host: Host) -> None:
        for beliefs in self._beliefs.values():
            beliefs.pop(host.name, None)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is LeaseExtended:
            self._believe(world, _Belief(host, effect.term, effect.until))
        elif type(effect) is Elected:
            self._believe(world, _Belief(host, effect.token.term, effect.until))
        elif type(effect) is SteppedDown:
            self._beliefs.get(_group_of(host), {}).pop(host.name, None)

    def _believe(self, world: World, belief: _Belief) -> None:
        name, group = belief.host.name, _group_of(belief.host)
        beliefs = self._beliefs.setdefault(group, {})
        beliefs[name] = belief
        # News that a stall held back may be of a lease that has run out since.
        if len(beliefs) == 1 or _left(world, belief) <= 0:
            return
        for other in list(beliefs.values()):
            if other.host is not belief.host and _left(world, other) > 0:
                self._on_overlap(world, group, belief, other)

    def _on_overlap(self, world: World, group: str, belief: _Belief, other: _Belief) -> None:
        one, two = sorted(((belief.host.name, belief.term), (other.host.name, other.term)))
        told = (group, *one, *two)
        if told in self._told:
            return
        self._told[told] = None
        if not self._clocks.are_within(world, group):
            self.allowed_overlaps += 1
            return
        mine = f"{belief.host.name} holds the lease of term {belief.term} for {_left(world, belief)} ns more"
        theirs = f"{other.host.name} that of term {other.term} for {_left(world, other)} ns"
        world.violate("I4", f"group {group!r}: {mine}, and {theirs}, each by its own clock")


def _left(world: World, belief: _Belief) -> int:
    return belief.until - belief.host.local(world.now)


class OneOwnerPerKey(Observer):
    """I4 key: a key has one owner at a time, and every grant of it an epoch above all before.

    Overlaps and late grants that a clock beyond the limit explains are counted and allowed; an epoch that is granted
    twice never is.
    """

    def __init__(self, drift_limit_ppm: int = DRIFT_LIMIT_PPM) -> None:
        self.allowed_overlaps = 0
        self._clocks = _Clocks(drift_limit_ppm)
        self._holders: dict[tuple[str, str], dict[str, Host]] = {}
        self._epochs: dict[tuple[str, str], dict[int, str]] = {}
        self._highest: dict[tuple[str, str], int] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._clocks.on_boot(world, host)

    def on_second(self, world: World) -> None:
        self._clocks.look(world)

    def on_crash(self, world: World, host: Host) -> None:
        for holders in self._holders.values():
            holders.pop(host.name, None)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is LeaseGranted:
            self._on_granted(world, host, effect)
        elif type(effect) is LeaseLost:
            self._holders.get((_group_of(host), effect.key), {}).pop(host.name, None)

    def _on_granted(self, world: World, host: Host, news: LeaseGranted) -> None:
        group = _group_of(host)
        where = (group, news.key)
        epochs = self._epochs.setdefault(where, {})
        before = epochs.get(news.epoch)
        epochs[news.epoch] = host.name
        highest = self._highest[where] = max(self._highest.get(where, 0), news.epoch)
        holders = self._holders.setdefault(where, {})
        # News that a stall held back may be of a lease that has run out since: it says nothing about now.
        is_held = _held(world, host, news.key) == news.epoch
        if before is not None:
            text = f"epoch {news.epoch} was granted to {before}, and to {host.name} again"
            world.violate("I4 key", f"key {news.key!r}: {text}")
        elif news.epoch < highest and is_held:
            text = f"{host.name} was granted epoch {news.epoch} after epoch {highest} had been granted"
            self._judge(world, group, f"key {news.key!r}: {text}")
        if is_held:
            for name, other in holders.items():
                if name != host.name and (epoch := _held(world, other, news.key)) is not None:
                    text = f"{host.name} holds it under epoch {news.epoch} while {name} still does under epoch {epoch}"
                    self._judge(world, group, f"key {news.key!r}: {text}")
        holders[host.name] = host

    def _judge(self, world: World, group: str, text: str) -> None:
        if self._clocks.are_within(world, group):
            world.violate("I4 key", text)
        else:
            self.allowed_overlaps += 1


def _held(world: World, host: Host, key: str) -> int | None:
    """The epoch under which this host's owner holds the key at this instant of its own clock."""
    owner: Any = getattr(host.node, "owner", None)
    if owner is None:
        return None
    epoch: int | None = owner.holds(host.local(world.now), key)
    return epoch


class RegisterIsLinearizable(Observer):
    """I8: what callers were answered could have come from one register. Whoever makes calls keeps the history."""

    def __init__(self) -> None:
        self.history = RegisterHistory()

    def at_end(self, world: World) -> None:
        for key in self.history.keys():
            for sentence in self.history.check(key):
                world.violate("I8", sentence)


class NoReplayAccepted(Observer):
    """I12: a boot of a host lets the same frame in once."""

    def __init__(self) -> None:
        self._seen: dict[str, set[bytes]] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._seen[host.name] = set()

    def on_crash(self, world: World, host: Host) -> None:
        self._seen.pop(host.name, None)

    def on_admitted(self, world: World, host: Host, frame: bytes) -> None:
        seen = self._seen[host.name]
        digest = blake2b(frame, digest_size=16).digest()
        if digest in seen:
            world.violate("I12", f"{host.name} let the same frame of {len(frame)} bytes in twice")
        seen.add(digest)


class CapsHold(Observer):
    """I13: no node sends a datagram above the MTU, and what is bounded in a member stays so.

    Every second all members are looked at, one of them more closely; at the end all of them are.
    """

    def __init__(self) -> None:
        self._too_long = 0
        self._turn = 0

    def on_second(self, world: World) -> None:
        self._check_datagrams(world)
        for host in world.hosts.values():
            self._check(world, host)
        if world.hosts:
            names = list(world.hosts)
            self._turn = (self._turn + 1) % len(names)
            self._check_boots(world, world.hosts[names[self._turn]])

    def at_end(self, world: World) -> None:
        self._check_datagrams(world)
        for host in world.hosts.values():
            self._check(world, host)
            self._check_boots(world, host)

    def _check_datagrams(self, world: World) -> None:
        too_long = world.network.dropped.get("mtu", 0)
        if too_long > self._too_long:
            world.violate("I13", f"{too_long - self._too_long} datagrams were longer than the MTU of their link")
            self._too_long = too_long

    def _check(self, world: World, host: Host) -> None:
        node = host.node
        if not isinstance(node, ClusterMember):
            return
        # The limits are of private things; asking each for its size would put methods there that only this needs.
        _within(world, host, "senders at the replay guard", node.replay_guard._windows, SENDERS_LIMIT)
        _within(world, host, "writes under way", node._ticket_of, WAITING_LIMIT + 1)
        if node.receiver is not None:
            _within(world, host, "commands that wait", node.receiver._waiting, WAITING_LIMIT)
        if node.owner is not None:
            _within(world, host, "keys wanted", node.owner._wanted, WANTED_LIMIT)
            _within(world, host, "keys claimed", node.owner._holder, leases.KEYS_LIMIT)
        if node.voter is None:
            return
        _within(world, host, "leases", node.voter.leases, leases.KEYS_LIMIT)
        _within(world, host, "grants under way", node.voter._grants, BATCHES_LIMIT)
        election = node.voter.election
        _within(world, host, "peers' disks", election._startup._seen, PEERS_LIMIT)
        _within(world, host, "alarms", election._checks._alarms, ALARMS_LIMIT)
        _within(world, host, "welcomes", election._startup._welcomes, PEERS_LIMIT)
        _within(world, host, "nonces given", election._startup._asked, PEERS_LIMIT)
        _within(world, host, "nonces to return", election._startup._echoes, PEERS_LIMIT)
        _within(world, host, "pages of a snapshot", election._startup._pages, PAGES_LIMIT)
        _within(world, host, "words that wait", election._acceptor._waiting, HELD_LIMIT)
        _within(world, host, "keys of the register", election._acceptor.entries, KEYS_LIMIT)
        leader_term = election.leader_term
        if leader_term is None:
            return
        _within(world, host, "rounds of heartbeats", leader_term._rounds, ROUNDS_KEPT)
        _within(world, host, "reads under way", leader_term._reads, READS_LIMIT)
        _within(world, host, "learners", leader_term._lessons._learners, APPLICANTS_LIMIT + VOTERS_LIMIT)
        _within(world, host, "applicants", leader_term._lessons._applicants, APPLICANTS_LIMIT)
        if leader_term.is_serving:  # a take-over writes back as many pages as there are
            _within(world, host, "batches under way", leader_term._batches, BATCHES_LIMIT)

    def _check_boots(self, world: World, host: Host) -> None:
        node = host.node
        if isinstance(node, ClusterMember):
            for sender, windows in node.replay_guard._windows.items():
                _within(world, host, f"boots of sender {sender!r}", windows, BOOTS_PER_SENDER)


def _within(world: World, host: Host, what: str, things: Any, limit: int) -> None:
    if len(things) > limit:
        world.violate("I13", f"{host.name} keeps {len(things)} {what}; the limit is {limit}")


class LeaderInTime(Observer):
    """I14: once faults have stopped and a majority is connected, there is a leader in time, it stays, and it works.

    The scenario calls `begin` when that phase starts, and `expect_progress` for the writes it makes in it, at least
    one of which must be accepted. From the given time on there is a leader at every second, and once a member of the
    core leads, leadership changes at most once; that one change may take as long as the first election.
    """

    def __init__(self, history: RegisterHistory) -> None:
        self._history = history
        self._core: dict[str, None] = {}
        self._group = ""
        self._within_ns = 0
        self._due: int | None = None
        self._led_at: int | None = None
        """The last second at which somebody led."""
        self._was_led = False
        self._is_told = False
        self._gaps = 0
        """How often nobody led any more, since the leader was due."""
        self._is_settled = False
        """Whether a member of the core has led since the leader was due."""
        self._changes = 0
        self._probes: list[int] = []

    def begin(self, world: World, core: list[str], within_ns: int) -> None:
        self._core = dict.fromkeys(core)
        self._group = _group_of(world.hosts[core[0]])
        self._within_ns = within_ns
        self._due = world.now + within_ns

    def expect_progress(self, op: int) -> None:
        """This call of the history is a write made while the group must work."""
        self._probes.append(op)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not Elected or self._due is None or world.now < self._due:
            return
        if _group_of(host) != self._group:
            return
        if self._is_settled:
            self._changes += 1
            if self._changes > 1:
                text = f"{host.name} was elected in term {effect.token.term}, the second change without a fault"
                world.violate("I14", f"group {self._group!r}: {text}")
        elif host.name in self._core:
            self._is_settled = True

    def on_second(self, world: World) -> None:
        if self._due is None:
            return
        leaders = [name for name, host in world.hosts.items() if self._is_leading(world, host)]
        if leaders:
            self._led_at = world.now
            self._is_told = False
            if world.now >= self._due and any(name in self._core for name in leaders):
                self._is_settled = True
        elif world.now >= self._due:
            self._on_leaderless(world)
        self._was_led = bool(leaders)

    def _on_leaderless(self, world: World) -> None:
        self._gaps += self._was_led
        if self._is_told:
            return
        if self._led_at is None:
            text = f"nobody leads {self._within_ns // 1_000_000} ms after the faults stopped"
        elif self._gaps > 1:
            text = "nobody leads, for the second time without a fault"
        elif world.now - self._led_at > self._within_ns:
            text = f"nobody has led for {(world.now - self._led_at) // 1_000_000} ms without a fault"
        else:
            return
        self._is_told = True
        world.violate("I14", f"group {self._group!r}: {text}")

    def at_end(self, world: World) -> None:
        if world.stopped or not self._probes:
            return  # a run that ended early proves nothing about progress
        outcomes = [self._history.operation(op).outcome for op in self._probes]
        if "accepted" not in outcomes:
            tried = f"none of {len(outcomes)} writes made without a fault was accepted"
            world.violate("I14", f"group {self._group!r}: {tried}; the last one: {outcomes[-1] or 'no answer'}")

    def _is_leading(self, world: World, host: Host) -> bool:
        voter: Any = getattr(host.node, "voter", None)
        if voter is None or host.state != "up" or _group_of(host) != self._group:
            return False
        return bool(voter.election.is_leading(host.local(world.now)))
