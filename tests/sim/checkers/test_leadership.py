"""Each checker fires on what it is for, and is silent on the lawful neighbour of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from talka.cluster import leases
from talka.cluster.effects import Lane, Persist, Transmit
from talka.cluster.fencing import Token
from talka.cluster.leadership.leader_term import BATCHES_LIMIT, READS_LIMIT, ROUNDS_KEPT
from talka.cluster.leadership.news import Elected, LeaseExtended, SteppedDown
from talka.cluster.leadership.peer_checks import ALARMS_LIMIT
from talka.cluster.leadership.quorum import VOTERS_LIMIT
from talka.cluster.leadership.register import HELD_LIMIT, KEYS_LIMIT, VoterRecord
from talka.cluster.leadership.snapshot_transfer import APPLICANTS_LIMIT
from talka.cluster.leadership.voter_startup import PEERS_LIMIT
from talka.cluster.leases import LeaseGranted, LeaseLost
from talka.control.member.composite import ClusterMember
from talka.control.member.owner import WANTED_LIMIT, Owner
from talka.control.member.receiver import WAITING_LIMIT, Applied, Receiver
from talka.control.member.replay_guard import BOOTS_PER_SENDER, SENDERS_LIMIT
from talka.control.member.voter import Voter
from talka.testing.disk import Disk
from talka.testing.host import Clock, Host
from talka.testing.world import Boot, Observer, World
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.leadership import PAGES_LIMIT
from tests.sim.checkers.leadership import (
    DRIFT_LIMIT_PPM,
    FORGIVEN_NS,
    CapsHold,
    LeaderInTime,
    NoReplayAccepted,
    NoStaleEffect,
    NothingGoesBack,
    OneLeaderPerTerm,
    OneLeaseAtATime,
    OneOwnerPerKey,
    RegisterIsLinearizable,
)
from tests.sim.checkers.linearizability import RegisterHistory


class Held:
    """Stands for an owner: which epoch of which key it holds, and until when."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[int, int]] = {}

    def holds(self, now: int, key: str) -> int | None:
        epoch, until = self.keys.get(key, (0, 0))
        return epoch if now < until else None


class Actor:
    """Says and writes what a test tells it to, and lets every frame in."""

    def __init__(self, boot: Boot, group: str = "g") -> None:
        self.group = group
        self.owner = Held()
        self.voter = SimpleNamespace(election=self)
        self.leads_until = -NEVER
        self.next_tick_at = NEVER
        self.frames_admitted = 0
        self.tickets = 0

    def is_leading(self, now: int) -> bool:
        return now < self.leads_until

    def write(self, *puts: tuple[str, bytes | None]) -> list[object]:
        self.tickets += 1
        return [Persist(self.tickets, puts)]

    def start(self, now: int) -> list[object]:
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        self.frames_admitted += 1
        return []

    def tick(self, now: int) -> list[object]:
        raise AssertionError("it asks for no ticks")

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return []


class Bench:
    """A world of actors, watched by one checker."""

    def __init__(self, checker: Observer, *names: str, **clocks: Clock) -> None:
        self.world = World(1)
        self.world.stop_at_first = False
        self.world.observers.append(checker)
        for name in names:
            self.add(name, Actor, clocks.get(name, Clock()))

    def add(self, name: str, starter: Callable[[Boot], Any], clock: Clock = Clock()) -> Host:  # noqa: B008 frozen
        # A crash loses no write that was given its time: only `lose_write` leaves one unfinished.
        host = self.world.add_host(name, starter, clock=clock, disk=Disk(fsync_mean_ns=0))
        host.start()
        return host

    def say(self, name: str, *effects: object) -> None:
        assert self.world.hosts[name].act(lambda now: list(effects))

    def node(self, name: str) -> Any:
        return self.world.hosts[name].node

    def write(self, name: str, key: str, content: object) -> None:
        """Durable before this returns."""
        self.say(name, *self.node(name).write((key, None if content is None else msgspec.msgpack.encode(content))))
        self.run(1)

    def run(self, duration_ns: int) -> None:
        self.world.run_until(self.world.now + duration_ns)

    def restart(self, name: str, meanwhile: Callable[[Disk], object] = lambda disk: None) -> None:
        host = self.world.hosts[name]
        host.crash()
        meanwhile(host.disk)
        host.start()

    @property
    def told(self) -> list[str]:
        return [f"{violation.invariant}: {violation.text}" for violation in self.world.violations]


def elected(term: int, until: int = 0) -> Elected:
    return Elected(Token(0, term, 1), until)


@pytest.mark.parametrize(
    "make",
    [OneLeaderPerTerm, NothingGoesBack, NoStaleEffect, OneLeaseAtATime, OneOwnerPerKey, NoReplayAccepted, CapsHold],
    ids=lambda make: make.__name__,
)
def test_what_does_not_concern_a_checker_passes_it(make: Callable[[], Observer]) -> None:
    bench = Bench(make(), "a", "b")
    bench.write("a", "else", b"where")
    bench.say("a", SimpleNamespace(term=1), Transmit("b", b"frame", Lane.DATAGRAM))
    bench.run(2 * SECOND)
    bench.restart("a")
    bench.world.finish()
    assert bench.told == []


# ---- I1


def test_two_hosts_elected_in_one_term_violate() -> None:
    bench = Bench(OneLeaderPerTerm(), "a", "b")
    bench.say("a", elected(7))
    bench.say("b", elected(7))
    assert bench.told == ["I1: group 'g': a and b were both elected in term 7"]


def test_two_boots_of_a_host_elected_in_one_term_violate() -> None:
    bench = Bench(OneLeaderPerTerm(), "a")
    bench.say("a", elected(7))
    bench.restart("a")
    bench.say("a", elected(7))
    assert bench.told == ["I1: group 'g': two boots of a were elected in term 7"]


def test_leaders_of_different_terms_or_groups_are_lawful() -> None:
    bench = Bench(OneLeaderPerTerm(), "a", "b")
    bench.add("c", lambda boot: Actor(boot, "other"))
    bench.say("a", elected(7), SteppedDown(7, "tired"))
    bench.say("b", elected(8))
    bench.say("c", elected(7))
    assert bench.told == []


# ---- I2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (VoterRecord(1, 5, 3, "a"), VoterRecord(1, 4, 3, "a"), "the revision of a's record fell from 5 to 4"),
        (VoterRecord(1, 5, 3, "a"), VoterRecord(1, 6, 2, "a"), "the term of a fell from 3 to 2"),
        (VoterRecord(1, 5, 3, "a"), VoterRecord(1, 6, 3, "b"), "the vote of a in term 3 changed from 'a' to 'b'"),
        (VoterRecord(1, 5, 3, "a"), VoterRecord(1, 6, 3, ""), "the vote of a in term 3 changed from 'a' to ''"),
        (VoterRecord(1, 5, 3, "a"), None, "a removed its voter's record"),
    ],
    ids=["revision", "term", "vote", "vote forgotten", "removed"],
)
def test_a_record_that_goes_back_violates(before: VoterRecord, after: VoterRecord | None, words: str) -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "record", before)
    bench.write("a", "record", after)
    assert bench.told == [f"I2: {words}"]


def test_a_record_that_goes_on_is_lawful() -> None:
    bench = Bench(NothingGoesBack(), "a")
    for record in (
        VoterRecord(1, 1, 3, ""),
        VoterRecord(1, 2, 3, "b"),
        VoterRecord(1, 3, 3, "b", True),
        VoterRecord(1, 4, 4, ""),
        VoterRecord(2, 4, 0, ""),  # it started over as another disk
        VoterRecord(2, 5, 3, "c"),
    ):
        bench.write("a", "record", record)
    bench.write("a", "entry/x", b"anything")
    assert bench.told == []


def test_a_fence_that_falls_or_vanishes_violates() -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "fence", Token(0, 5, 1))
    bench.write("a", "fence", Token(0, 6, 1))
    assert bench.told == []
    bench.write("a", "fence", Token(0, 5, 1))
    bench.write("a", "fence", None)
    assert bench.told == ["I2: the fence of a fell from 0.6.1 to 0.5.1", "I2: the fence of a fell from 0.5.1 to 0.0.0"]


def test_a_restart_that_lost_a_write_nobody_heard_of_is_lawful() -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "record", VoterRecord(1, 1, 3, ""))
    host = bench.world.hosts["a"]
    host.disk.slow_down(1000, SECOND)
    for seed in range(20):  # whether a crash keeps such a write is drawn
        durable = msgspec.msgpack.decode(host.disk.durable["record"], type=VoterRecord)
        promise = VoterRecord(1, durable.revision + 1, durable.term + 1, f"{seed}")
        bench.say("a", *bench.node("a").write(("record", msgspec.msgpack.encode(promise))))
        bench.restart("a")
    assert host.disk.lost_writes and host.disk.lost_writes < 20
    assert bench.told == []


def test_a_restart_that_forgot_a_term_it_led_violates() -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "record", VoterRecord(1, 1, 3, "a"))
    bench.say("a", elected(3))
    bench.restart("a")
    assert bench.told == []
    bench.say("a", elected(4))
    bench.restart("a")
    assert bench.told == ["I2: a led term 4, and starts again with term 3 on a disk that survived"]


def test_a_restart_that_forgot_a_token_it_applied_violates() -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "fence", Token(0, 3, 1))
    bench.say("a", Applied("v", Token(0, 3, 1), 1, b""))
    bench.restart("a")
    assert bench.told == []
    bench.say("a", Applied("v", Token(0, 4, 1), 1, b""))
    bench.restart("a")
    text = "a applied a command of token 0.4.1, and starts again with 0.3.1 on a disk that survived"
    assert bench.told == [f"I2: {text}"]


def test_a_voter_that_started_over_need_not_remember_the_terms_it_led() -> None:
    bench = Bench(NothingGoesBack(), "a")
    bench.write("a", "record", VoterRecord(1, 1, 3, "a"))
    bench.say("a", elected(3))
    bench.write("a", "record", VoterRecord(2, 1, 0))
    bench.restart("a")
    assert bench.told == []


def test_a_disk_that_was_lost_or_rolled_back_starts_anew() -> None:
    bench = Bench(NothingGoesBack(), "a", "b")
    bench.world.hosts["b"].disk.snapshot()
    for name in ("a", "b"):
        bench.write(name, "record", VoterRecord(1, 1, 2, "a"))
        bench.write(name, "fence", Token(0, 2, 1))
    bench.world.hosts["a"].disk.snapshot()
    for name in ("a", "b"):
        bench.write(name, "record", VoterRecord(1, 2, 3, "a"))
        bench.write(name, "fence", Token(0, 3, 1))
        bench.say(name, elected(3), Applied("v", Token(0, 3, 1), 1, b""))
    bench.restart("a", Disk.roll_back)
    bench.restart("b", Disk.lose)
    bench.write("a", "record", VoterRecord(1, 2, 3, "c"))
    bench.write("b", "record", VoterRecord(1, 1, 1, "c"))
    bench.write("b", "fence", Token(0, 1, 1))
    assert bench.told == []
    bench.write("a", "record", VoterRecord(1, 3, 1, ""))  # what the image held counts from there on
    assert bench.told == ["I2: the term of a fell from 3 to 1"]
    bench.restart("a", Disk.roll_back)
    bench.write("a", "record", VoterRecord(1, 2, 2, "b"))
    bench.write("a", "fence", Token(0, 1, 1))
    assert bench.told[1:] == [
        "I2: the vote of a in term 2 changed from 'a' to 'b'",
        "I2: the fence of a fell from 0.2.1 to 0.1.1",
    ]


# ---- I3


def test_a_command_under_an_older_token_that_takes_effect_violates() -> None:
    bench = Bench(NoStaleEffect(), "r")
    bench.say("r", Applied("v1", Token(0, 5, 1), 1, b""), Applied("v1", Token(0, 4, 9), 2, b""))
    assert bench.told == ["I3: r applied command 2 of v1 under token 0.4.9 after one under 0.5.1"]


def test_commands_under_the_same_or_later_tokens_are_lawful_and_receivers_apart() -> None:
    bench = Bench(NoStaleEffect(), "r", "s")
    bench.say("r", *(Applied("v", Token(0, term, 1), term, b"") for term in (4, 5, 5, 6)))
    bench.say("s", Applied("v", Token(0, 4, 1), 1, b""), SteppedDown(4, "other news"))
    assert bench.told == []


def test_a_restart_does_not_excuse_a_stale_effect_and_a_lost_disk_does() -> None:
    bench = Bench(NoStaleEffect(), "r", "s")
    for name in ("r", "s"):
        bench.write(name, "fence", Token(0, 5, 1))
        bench.write(name, "entry/x", b"not looked at")
        bench.say(name, Applied("v", Token(0, 5, 1), 1, b""))
    bench.restart("r")
    bench.restart("s", Disk.lose)
    for name in ("r", "s"):
        bench.say(name, Applied("v", Token(0, 4, 1), 2, b""))
    assert bench.told == ["I3: r applied command 2 of v under token 0.4.1 after one under 0.5.1"]


# ---- I4


def test_a_lease_while_another_runs_violates_once_for_two_leaderships() -> None:
    bench = Bench(OneLeaseAtATime(), "a", "b", b=Clock(offset_ns=100 * SECOND))
    bench.run(SECOND)
    bench.say("a", elected(1, 3 * SECOND))
    bench.say("b", elected(2, 102 * SECOND))
    bench.say("b", LeaseExtended(2, 103 * SECOND))
    bench.say("a", LeaseExtended(1, 3 * SECOND))
    assert bench.told == [
        "I4: group 'g': b holds the lease of term 2 for 1000000000 ns more,"
        " and a that of term 1 for 2000000000 ns, each by its own clock"
    ]


def test_a_lease_extended_into_another_violates() -> None:
    bench = Bench(OneLeaseAtATime(), "a", "b")
    bench.say("a", elected(1, SECOND))
    bench.run(SECOND)
    bench.say("b", elected(2, 3 * SECOND))
    assert bench.told == []
    bench.say("a", LeaseExtended(1, 2 * SECOND))
    assert len(bench.told) == 1 and "a holds the lease of term 1" in bench.told[0]


@pytest.mark.parametrize("ending", ["ran out", "stepped down", "crashed", "another group"])
def test_a_lease_after_another_has_ended_is_lawful(ending: str) -> None:
    bench = Bench(OneLeaseAtATime(), "a", "b")
    bench.say("a", SteppedDown(0, "of nothing"))
    if ending == "another group":
        bench.add("c", lambda boot: Actor(boot, "other"))
        bench.say("c", elected(1, 9 * SECOND))
    else:
        bench.say("a", elected(1, SECOND))
    if ending == "ran out":
        bench.run(SECOND)
    elif ending == "stepped down":
        bench.say("a", SteppedDown(1, "handed over"))
    elif ending == "crashed":
        bench.restart("a")
    bench.say("b", elected(2, 3 * SECOND), LeaseExtended(2, 4 * SECOND))
    assert bench.told == []


def test_a_stalled_host_still_believes_and_late_news_of_an_ended_lease_do_not_count() -> None:
    bench = Bench(OneLeaseAtATime(), "a", "b", "c")
    bench.say("a", elected(1, 5 * SECOND))
    bench.world.hosts["c"].stall(2 * SECOND, mid_step=True)
    bench.say("c", elected(2, SECOND))  # heard of at 2 s
    bench.run(2 * SECOND)
    assert bench.told == []
    bench.world.hosts["a"].stall(4 * SECOND)
    bench.say("b", elected(3, 3 * SECOND))
    assert len(bench.told) == 1 and "a that of term 1" in bench.told[0]


def overlap(bench: Bench, term: int) -> None:
    now = bench.world.now
    for name in ("a", "b"):
        host = bench.world.hosts[name]
        bench.say(name, elected(term, host.local(now) + SECOND))


@pytest.mark.parametrize(
    "stray",
    [
        lambda host: host.set_drift(DRIFT_LIMIT_PPM + 1),
        lambda host: host.set_drift(-DRIFT_LIMIT_PPM - 1),
        lambda host: host.jump(30 * MILLISECOND),
    ],
    ids=["fast", "slow", "leap"],
)
def test_an_overlap_under_a_clock_beyond_the_limit_is_counted_and_later_ones_are_not(
    stray: Callable[[Host], object],
) -> None:
    checker = OneLeaseAtATime()
    bench = Bench(checker, "a", "b", "voter")
    bench.run(SECOND)
    stray(bench.world.hosts["voter"])
    bench.run(SECOND)
    bench.world.hosts["voter"].set_drift(0)
    overlap(bench, 1)
    assert (checker.allowed_overlaps, bench.told) == (1, [])
    bench.run(FORGIVEN_NS + 2 * SECOND)
    overlap(bench, 2)
    assert checker.allowed_overlaps == 1 and len(bench.told) == 1


def test_a_clock_that_strays_just_now_excuses_and_one_at_the_limit_or_of_another_group_does_not() -> None:
    checker = OneLeaseAtATime()
    fast = Clock(drift_ppm=DRIFT_LIMIT_PPM)
    bench = Bench(checker, "a", "b", "voter", a=fast, b=Clock(drift_ppm=-DRIFT_LIMIT_PPM))
    bench.add("stranger", lambda boot: Actor(boot, "other"), Clock(drift_ppm=2 * DRIFT_LIMIT_PPM))
    bench.run(10 * SECOND + 1)
    overlap(bench, 1)
    assert checker.allowed_overlaps == 0 and len(bench.told) == 1
    bench.world.hosts["voter"].set_drift(2 * DRIFT_LIMIT_PPM)
    overlap(bench, 2)
    assert checker.allowed_overlaps > 0 and len(bench.told) == 1


# ---- I4 key


def grant(bench: Bench, name: str, epoch: int, lasts_ns: int, key: str = "k") -> None:
    host = bench.world.hosts[name]
    until = host.local(bench.world.now) + lasts_ns
    bench.node(name).owner.keys[key] = (epoch, until)
    bench.say(name, LeaseGranted(key, epoch, until))


def test_a_key_granted_while_another_owner_holds_it_violates() -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b", b=Clock(offset_ns=50 * SECOND))
    grant(bench, "a", 1, SECOND)
    bench.node("a").owner.keys["k"] = (1, 3 * SECOND)  # renewed, which is told to nobody
    bench.run(2 * SECOND)
    grant(bench, "b", 2, SECOND)
    assert bench.told == ["I4 key: key 'k': b holds it under epoch 2 while a still does under epoch 1"]


@pytest.mark.parametrize("ending", ["ran out", "lost", "given back", "crashed", "another key", "another group"])
def test_a_key_granted_after_it_became_free_is_lawful(ending: str) -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b")
    bench.add("c", lambda boot: Actor(boot, "other"))
    bench.say("a", LeaseLost("k", 0))
    grant(bench, "c" if ending == "another group" else "a", 1, SECOND, "j" if ending == "another key" else "k")
    if ending == "ran out":
        bench.run(SECOND)
    elif ending == "lost":
        bench.say("a", LeaseLost("k", 1))
    elif ending == "given back":
        del bench.node("a").owner.keys["k"]
    elif ending == "crashed":
        bench.restart("a")
    grant(bench, "b", 2, SECOND)
    assert bench.told == []


def test_an_owner_that_is_granted_its_own_key_anew_is_lawful() -> None:
    bench = Bench(OneOwnerPerKey(), "a")
    grant(bench, "a", 1, SECOND)
    grant(bench, "a", 2, SECOND)
    assert bench.told == []


def test_an_epoch_that_is_granted_twice_violates_whatever_clocks_do() -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b", b=Clock(drift_ppm=100_000))
    grant(bench, "a", 1, MILLISECOND)
    bench.run(SECOND)
    grant(bench, "b", 1, MILLISECOND)
    assert bench.told == ["I4 key: key 'k': epoch 1 was granted to a, and to b again"]


def test_an_epoch_below_an_earlier_one_violates() -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b")
    grant(bench, "a", 2, MILLISECOND)
    bench.run(SECOND)
    grant(bench, "b", 1, MILLISECOND)
    assert bench.told == ["I4 key: key 'k': b was granted epoch 1 after epoch 2 had been granted"]


def test_late_news_of_an_ended_hold_is_lawful() -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b")
    bench.world.hosts["a"].stall(2 * SECOND, mid_step=True)
    grant(bench, "a", 1, SECOND)
    bench.run(SECOND)
    grant(bench, "b", 2, 5 * SECOND)
    bench.run(2 * SECOND)
    assert bench.told == []


def test_a_node_without_an_owner_holds_no_key() -> None:
    bench = Bench(OneOwnerPerKey(), "a", "b")
    grant(bench, "a", 1, SECOND)
    bench.node("a").owner = None
    grant(bench, "b", 2, SECOND)
    assert bench.told == []


def test_two_owners_under_a_clock_beyond_the_limit_are_counted() -> None:
    checker = OneOwnerPerKey(drift_limit_ppm=100)
    bench = Bench(checker, "a", "b", "leader", leader=Clock(drift_ppm=200))
    bench.run(SECOND)
    grant(bench, "a", 2, SECOND)
    grant(bench, "b", 1, SECOND)
    assert (checker.allowed_overlaps, bench.told) == (2, [])  # the hold, and the order of the epochs


# ---- I8


def test_a_history_that_is_not_linearizable_violates_at_the_end() -> None:
    checker = RegisterIsLinearizable()
    bench = Bench(checker)
    history = checker.history
    history.ended(1, history.invoke(0, "good", "write", b"a"), "accepted")
    bench.world.finish()
    assert bench.told == []
    history.ended(3, history.invoke(2, "bad", "read"), "accepted", b"x")
    bench.world.finish()
    assert bench.told == ["I8: key 'bad': b'x' was read at 3 ns, and nobody ever wrote it"]


# ---- I12


def test_a_frame_let_in_twice_by_one_boot_violates() -> None:
    bench = Bench(NoReplayAccepted(), "a", "b")
    for frame in (b"one", b"two", b"one"):
        bench.say("b", Transmit("a", frame, Lane.CONTROL))
    bench.run(SECOND)
    assert bench.told == ["I12: a let the same frame of 3 bytes in twice"]


def test_a_frame_let_in_by_another_host_or_another_boot_is_lawful() -> None:
    bench = Bench(NoReplayAccepted(), "a", "b", "c")
    bench.say("c", Transmit("a", b"one", Lane.CONTROL), Transmit("b", b"one", Lane.CONTROL))
    bench.run(SECOND)
    bench.restart("a")
    bench.say("c", Transmit("a", b"one", Lane.CONTROL))
    bench.run(SECOND)
    assert bench.node("a").frames_admitted == 1
    assert bench.told == []


# ---- I13


def member(boot: Boot) -> ClusterMember:
    voter = Voter(name=boot.name, voters=(boot.name,), stored=boot.stored, rng=boot.rng, now=boot.now)
    return ClusterMember(
        group="g",
        name=boot.name,
        boot=boot.boot,
        voter=voter,
        receiver=Receiver(boot.stored),
        owner=Owner(voters=(boot.name,), rng=boot.rng),
    )


def test_a_datagram_above_the_mtu_violates_when_it_was_sent_and_once() -> None:
    bench = Bench(CapsHold(), "a", "b")
    bench.say("a", Transmit("b", bytes(1300), Lane.DATAGRAM), Transmit("b", bytes(9000), Lane.STREAM))
    bench.run(SECOND)
    assert bench.told == []
    bench.say("a", Transmit("b", bytes(1500), Lane.DATAGRAM))
    bench.run(2 * SECOND)
    bench.world.finish()
    assert bench.told == ["I13: 1 datagrams were longer than the MTU of their link"]


def numbered(count: int) -> dict[Any, Any]:
    return dict.fromkeys(range(count))


OVERFLOWS: dict[str, tuple[Callable[[Any, int], object], int]] = {
    "alarms": (lambda node, size: setattr(node.voter.election._checks, "_alarms", numbered(size)), ALARMS_LIMIT),
    "peers' disks": (lambda node, size: setattr(node.voter.election._startup, "_seen", numbered(size)), PEERS_LIMIT),
    "welcomes": (lambda node, size: setattr(node.voter.election._startup, "_welcomes", numbered(size)), PEERS_LIMIT),
    "nonces given": (lambda node, size: setattr(node.voter.election._startup, "_asked", numbered(size)), PEERS_LIMIT),
    "nonces to return": (
        lambda node, size: setattr(node.voter.election._startup, "_echoes", numbered(size)),
        PEERS_LIMIT,
    ),
    "pages of a snapshot": (
        lambda node, size: setattr(node.voter.election._startup, "_pages", numbered(size)),
        PAGES_LIMIT,
    ),
    "words that wait": (
        lambda node, size: setattr(node.voter.election._acceptor, "_waiting", [None] * size),
        HELD_LIMIT,
    ),
    "keys of the register": (
        lambda node, size: setattr(node.voter.election._acceptor, "entries", numbered(size)),
        KEYS_LIMIT,
    ),
    "leases": (lambda node, size: setattr(node.voter.leases, "_leases", numbered(size)), leases.KEYS_LIMIT),
    "grants under way": (lambda node, size: node.voter._grants.update(numbered(size)), BATCHES_LIMIT),
    "commands that wait": (lambda node, size: node.receiver._waiting.extend([None] * size), WAITING_LIMIT),
    "writes under way": (lambda node, size: setattr(node, "_ticket_of", numbered(size)), WAITING_LIMIT + 1),
    "senders at the replay guard": (
        lambda node, size: setattr(node.replay_guard, "_windows", {number: {} for number in range(size)}),
        SENDERS_LIMIT,
    ),
    "keys claimed": (lambda node, size: setattr(node.owner._holder, "_claims", numbered(size)), leases.KEYS_LIMIT),
    "keys wanted": (lambda node, size: node.owner._wanted.update(numbered(size)), WANTED_LIMIT),
    "boots of sender 'x'": (lambda node, size: node.replay_guard._windows.update(x=numbered(size)), BOOTS_PER_SENDER),
    "rounds of heartbeats": (
        lambda node, size: setattr(node.voter.election.leader_term, "_rounds", numbered(size)),
        ROUNDS_KEPT,
    ),
    "reads under way": (
        lambda node, size: setattr(node.voter.election.leader_term, "_reads", [None] * size),
        READS_LIMIT,
    ),
    "learners": (
        lambda node, size: setattr(node.voter.election.leader_term._lessons, "_learners", numbered(size)),
        APPLICANTS_LIMIT + VOTERS_LIMIT,
    ),
    "applicants": (
        lambda node, size: setattr(node.voter.election.leader_term._lessons, "_applicants", numbered(size)),
        APPLICANTS_LIMIT,
    ),
}


@pytest.mark.parametrize("what", OVERFLOWS)
def test_a_member_that_keeps_more_than_its_limit_violates_and_at_the_limit_does_not(what: str) -> None:
    fill, limit = OVERFLOWS[what]
    checker = CapsHold()
    bench = Bench(checker)
    bench.add("a", member)
    bench.run(10 * SECOND)
    assert bench.node("a").voter.election.is_leading(bench.world.now) and bench.told == []
    fill(bench.node("a"), limit)
    checker.on_second(bench.world)
    checker.at_end(bench.world)
    assert bench.told == []
    fill(bench.node("a"), limit + 1)
    checker.on_second(bench.world)
    assert len(bench.told) == 1 and f" {what}; the limit is {limit}" in bench.told[0]


def test_a_take_over_may_write_back_as_many_pages_as_there_are() -> None:
    checker = CapsHold()
    bench = Bench(checker)
    bench.add("a", member)
    bench.run(10 * SECOND)
    leader_term = bench.node("a").voter.election.leader_term
    leader_term._batches = numbered(BATCHES_LIMIT + 1)
    leader_term.is_serving = False
    checker.on_second(bench.world)
    assert bench.told == []
    leader_term.is_serving = True
    checker.on_second(bench.world)
    assert bench.told == [f"I13: a keeps {BATCHES_LIMIT + 1} batches under way; the limit is {BATCHES_LIMIT}"]


def test_a_member_of_few_parts_and_a_host_that_is_down_are_looked_at_as_far_as_they_go() -> None:
    bench = Bench(CapsHold())
    bench.run(2 * SECOND)  # a world without hosts
    bench.add("bare", lambda boot: ClusterMember(group="g", name="bare", boot=boot.boot))
    bench.add("down", member).crash()
    bench.run(2 * SECOND)
    bench.node("bare").replay_guard._windows["x"] = numbered(BOOTS_PER_SENDER + 1)
    bench.world.finish()
    assert bench.told == [
        f"I13: bare keeps {BOOTS_PER_SENDER + 1} boots of sender 'x'; the limit is {BOOTS_PER_SENDER}"
    ]


# ---- I14


def lead(bench: Bench, name: str, term: int, lasts_ns: int) -> None:
    until = bench.world.now + lasts_ns
    bench.node(name).leads_until = until
    bench.say(name, elected(term, until))


def liveness(*core: str) -> tuple[Bench, LeaderInTime, RegisterHistory]:
    """Three hosts one second into a run, and a calm that begins then and must have a leader after five seconds."""
    history = RegisterHistory()
    checker = LeaderInTime(history)
    bench = Bench(checker, "a", "b", "c")
    bench.run(SECOND)
    checker.begin(bench.world, list(core) or ["a", "b"], 5 * SECOND)
    return bench, checker, history


def test_before_the_calm_nobody_must_lead() -> None:
    bench = Bench(LeaderInTime(RegisterHistory()), "a")
    bench.run(60 * SECOND)
    for term in range(5):
        bench.say("a", elected(term))
    bench.world.finish()
    assert bench.told == []


def test_no_leader_in_time_violates_once() -> None:
    bench, _, _ = liveness()
    bench.run(4 * SECOND)
    assert bench.told == []
    bench.run(5 * SECOND)
    assert bench.told == ["I14: group 'g': nobody leads 5000 ms after the faults stopped"]


def test_a_leader_in_time_that_stays_is_lawful() -> None:
    bench, _, _ = liveness()
    for term in range(4):  # before it is due, leadership may change
        lead(bench, "ab"[term % 2], term, SECOND)
        bench.run(SECOND)
    lead(bench, "c", 9, NEVER)
    bench.add("d", lambda boot: Actor(boot, "other"))
    bench.run(10 * SECOND)
    for term in range(3):
        bench.say("d", elected(term))  # of another group
    bench.run(10 * SECOND)
    assert bench.told == []


@pytest.mark.parametrize("reason", ["down", "stalled", "another group", "no voter"])
def test_a_leader_that_cannot_act_for_the_group_is_none(reason: str) -> None:
    bench, _, _ = liveness()
    lead(bench, "c", 1, NEVER)
    if reason == "down":
        bench.world.hosts["c"].crash()
    elif reason == "stalled":
        bench.world.hosts["c"].stall(NEVER)
    elif reason == "another group":
        bench.node("c").group = "other"
    else:
        bench.node("c").voter = None
    bench.run(6 * SECOND)
    assert len(bench.told) == 1


def test_one_change_is_lawful_and_the_second_violates() -> None:
    bench, _, _ = liveness()
    lead(bench, "a", 1, NEVER)
    bench.run(6 * SECOND)
    bench.node("a").leads_until = 0
    lead(bench, "b", 2, NEVER)
    bench.run(6 * SECOND)
    assert bench.told == []
    lead(bench, "a", 3, NEVER)
    assert bench.told == ["I14: group 'g': a was elected in term 3, the second change without a fault"]


def test_changes_count_from_the_first_leader_of_the_core() -> None:
    bench, _, _ = liveness("a")
    lead(bench, "c", 1, NEVER)
    bench.run(6 * SECOND)
    lead(bench, "b", 2, NEVER)
    bench.run(SECOND)
    lead(bench, "a", 3, NEVER)
    bench.run(SECOND)
    lead(bench, "b", 4, NEVER)
    assert bench.told == []
    lead(bench, "c", 5, NEVER)
    assert len(bench.told) == 1


def test_the_one_change_may_take_as_long_as_the_first_election_and_no_longer() -> None:
    bench, _, _ = liveness()
    lead(bench, "a", 1, 8 * SECOND + MILLISECOND)
    bench.run(13 * SECOND)
    assert bench.told == []
    bench.run(2 * SECOND)
    assert bench.told == ["I14: group 'g': nobody has led for 6000 ms without a fault"]


def test_a_second_time_without_a_leader_violates_at_once() -> None:
    bench, _, _ = liveness()
    lead(bench, "a", 1, 6 * SECOND + MILLISECOND)
    bench.run(8 * SECOND)
    lead(bench, "a", 2, SECOND + MILLISECOND)
    bench.run(SECOND)
    assert bench.told == []
    bench.run(SECOND)
    assert bench.told == ["I14: group 'g': nobody leads, for the second time without a fault"]


def test_a_probe_that_is_never_accepted_violates_at_the_end() -> None:
    bench, checker, history = liveness()
    checker.expect_progress(history.invoke(bench.world.now, "k", "write", b"1"))
    history.ended(bench.world.now, 0, "refused")
    checker.expect_progress(history.invoke(bench.world.now, "k", "write", b"2"))
    bench.world.finish()
    text = "none of 2 writes made without a fault was accepted; the last one: no answer"
    assert bench.told == [f"I14: group 'g': {text}"]


def test_one_accepted_probe_is_progress_and_a_stopped_run_proves_nothing() -> None:
    bench, checker, history = liveness()
    checker.expect_progress(history.invoke(bench.world.now, "k", "write", b"1"))
    bench.world.stopped = True
    bench.world.finish()
    assert bench.told == []
    bench.world.stopped = False
    checker.expect_progress(history.invoke(bench.world.now, "k", "write", b"2"))
    history.ended(bench.world.now, 1, "accepted")
    bench.world.finish()
    assert bench.told == []
