from random import Random

import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import DEAD, Member, Members
from talka.cluster.membership.news import DatagramsBlocked, DatagramsRestored, MembershipEffect
from talka.cluster.membership.presets import PRESETS
from talka.cluster.membership.prober import RELAYS_LIMIT, Prober
from talka.units import NEVER
from talka.wire.membership import CHANNEL, Alive, MembershipMessage, MemberState, Nack, Ping, PingRequest, ProbeAck
from tests.sim.variants import without

CONFIG = PRESETS["default"]
INTERVAL = CONFIG.probe_interval_ns
TIMEOUT = CONFIG.probe_timeout_ns


def say(out: list[MembershipEffect], to: str, message: MembershipMessage, lane: Lane, member: Member | None) -> None:
    out.append(Send(CHANNEL, to, message, lane, []))


class Bench:
    """A prober among members that answer only when told to."""

    def __init__(self, count: int = 5, seed: int = 1) -> None:
        rng = Random(seed)
        self.members = Members(100, rng)
        for number in range(count):
            self.members.add(Alive(f"m{number}", 1, 0, f"m{number}:1"), 0)
        self.health = LocalHealth(CONFIG)
        self.prober = Prober(config=CONFIG, members=self.members, health=self.health, rng=rng, say=say, now=0)
        self.now = 0
        self.out: list[MembershipEffect] = []
        self.missed: Member | None = None

    def tick(self, late_ns: int = 0) -> list[Send[MembershipMessage]]:
        """Wait for the next tick; what is said then."""
        self.now = self.prober.next_tick_at + late_ns
        before = len(self.out)
        self.missed = self.prober.tick(self.now, self.out)
        return [effect for effect in self.out[before:] if isinstance(effect, Send)]

    def ping(self) -> Ping:
        (said,) = self.tick()
        assert isinstance(said.message, Ping)
        return said.message

    def ack(self, sender: str, sequence: int) -> None:
        self.prober.on_ack(self.now, self.member(sender), ProbeAck(sequence), self.out)

    def member(self, name: str) -> Member:
        member = self.members.get(name)
        assert member is not None
        return member

    def news(self) -> list[MembershipEffect]:
        return [effect for effect in self.out if not isinstance(effect, Send)]

    def answered_over_stream_only(self) -> str:
        """One probe, begun already or not, of one who answers over the stream alone."""
        ping = next(say.message for say in self.tick() if isinstance(say.message, Ping))
        self.tick()
        self.ack(ping.target, ping.sequence + 1)
        return ping.target


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_probe_comes_at_a_random_moment_of_the_first_interval() -> None:
    firsts = [Bench(seed=seed).prober.next_tick_at for seed in range(20)]

    assert len(set(firsts)) == 20
    assert all(0 <= first < INTERVAL for first in firsts)


def test_one_who_answers_directly_is_asked_no_more_and_the_next_comes_an_interval_later(bench: Bench) -> None:
    ping = bench.ping()
    began = bench.now
    bench.health.refuted()
    bench.ack(ping.target, ping.sequence)

    assert bench.health.score == 0
    assert bench.prober.next_tick_at == began + INTERVAL
    assert bench.ping().target != ping.target
    assert bench.missed is None


def test_one_who_does_not_answer_is_asked_through_helpers_and_over_the_stream_and_then_missed(bench: Bench) -> None:
    ping = bench.ping()
    began = bench.now
    target = bench.member(ping.target)

    *requests, direct = bench.tick()
    assert bench.now == began + TIMEOUT
    assert len({request.to for request in requests}) == CONFIG.indirect_probes
    assert target.address not in [request.to for request in requests]
    assert all(
        request.message == PingRequest(ping.sequence, target.name, 1, target.address) and request.lane is Lane.DATAGRAM
        for request in requests
    )
    assert direct == Send(
        CHANNEL, target.address, Ping(ping.sequence + 1, target.name, 1, None, 0, True), Lane.STREAM, []
    )

    bench.tick()
    assert bench.now == began + INTERVAL
    assert bench.missed is target


def test_helpers_that_say_nothing_speak_against_the_prober(bench: Bench) -> None:
    ping = bench.ping()
    helpers = [said.to.partition(":")[0] for said in bench.tick()[:-1]]
    bench.prober.on_nack(helpers[0], Nack(ping.sequence))
    bench.prober.on_nack(helpers[0], Nack(ping.sequence))
    bench.prober.on_nack("stranger", Nack(ping.sequence))
    bench.prober.on_nack(helpers[1], Nack(ping.sequence + 2))
    bench.tick()

    assert bench.health.score == CONFIG.indirect_probes - 1


def test_when_all_helpers_say_that_they_fail_the_prober_is_well(bench: Bench) -> None:
    ping = bench.ping()
    for said in bench.tick()[:-1]:
        bench.prober.on_nack(said.to.partition(":")[0], Nack(ping.sequence))
    bench.tick()

    assert (bench.health.score, bench.missed) == (0, bench.member(ping.target))


@without("nack")
def test_without_nacks_none_are_expected() -> None:
    bench = Bench()
    bench.ping()
    bench.tick()
    bench.tick()

    assert bench.health.score == 1


def test_nacks_before_anybody_was_asked_count_nothing(bench: Bench) -> None:
    bench.prober.on_nack("m1", Nack(0))
    ping = bench.ping()
    bench.prober.on_nack("m1", Nack(ping.sequence))
    bench.tick()
    bench.tick()

    assert bench.health.score == CONFIG.indirect_probes


def test_an_answer_to_a_helper_is_an_answer(bench: Bench) -> None:
    ping = bench.ping()
    helper = bench.tick()[0].to.partition(":")[0]
    bench.ack(helper, ping.sequence)
    bench.tick()

    assert bench.missed is None
    assert bench.news() == []


@pytest.mark.parametrize("sequence", [0, 1], ids=["of the probe", "of the stream"])
def test_an_answer_of_one_who_was_not_asked_is_none(bench: Bench, sequence: int) -> None:
    ping = bench.ping()
    other = next(member.name for member in bench.members.all() if member.name != ping.target)
    bench.ack(other, ping.sequence + sequence)
    helper = bench.tick()[0].to.partition(":")[0]
    bench.ack(helper, ping.sequence + 1)
    bench.tick()

    assert bench.missed is bench.member(ping.target)


def test_an_answer_of_one_who_was_not_asked_to_help_is_none(bench: Bench) -> None:
    ping = bench.ping()
    asked = [said.to for said in bench.tick()]
    other = next(member for member in bench.members.all() if member.address not in asked)
    bench.ack(other.name, ping.sequence)
    bench.tick()

    assert bench.missed is bench.member(ping.target)


def test_a_late_ack_of_an_earlier_probe_changes_nothing(bench: Bench) -> None:
    first = bench.ping()
    bench.tick()
    second = next(said.message for said in bench.tick() if isinstance(said.message, Ping))
    bench.ack(first.target, first.sequence)
    bench.ack(second.target, first.sequence)
    bench.tick()
    bench.tick()

    assert bench.missed is bench.member(second.target)


def test_an_answer_of_another_life_than_the_one_asked_is_none(bench: Bench) -> None:
    ping = bench.ping()
    member = bench.member(ping.target)
    bench.members.replace(member, Alive(ping.target, 2, 0, "new:1"), 0)
    bench.health.refuted()
    bench.ack(ping.target, ping.sequence)

    assert bench.health.score == 1
    bench.tick()
    bench.tick()
    assert bench.missed is None  # the life that was asked is over


def test_one_who_died_meanwhile_is_not_missed(bench: Bench) -> None:
    ping = bench.ping()
    bench.tick()
    bench.members.move(bench.member(ping.target), DEAD, 0)
    bench.tick()

    assert bench.missed is None
    assert bench.health.score == 0


def test_a_member_in_bad_health_probes_slowly_and_waits_longer(bench: Bench) -> None:
    bench.health.refuted()
    bench.ping()
    began = bench.now

    assert bench.prober.next_tick_at == began + 2 * TIMEOUT
    bench.tick()
    assert bench.prober.next_tick_at == began + 2 * INTERVAL


def test_a_tick_that_comes_late_leaves_the_helpers_no_less_time(bench: Bench) -> None:
    bench.ping()
    bench.tick(late_ns=2 * INTERVAL)

    assert bench.prober.next_tick_at == bench.now + INTERVAL - TIMEOUT


def test_a_member_in_very_bad_health_leaves_probes_out(bench: Bench) -> None:
    for _ in range(8):
        bench.health.refuted()
    pings = [said for _ in range(400) for said in bench.tick() if said.lane is Lane.DATAGRAM and said.to != ""]
    assert bench.health.score == 8

    begun = sum(isinstance(said.message, Ping) for said in pings)
    # Three quarters are left out; each of the others takes two more ticks.
    assert 40 < begun < 100


def test_nobody_is_asked_when_nobody_is_known() -> None:
    bench = Bench(count=0)

    assert bench.tick() == []
    assert bench.prober.next_tick_at == bench.now + INTERVAL


def test_one_who_answers_over_the_stream_alone_is_tried_again_at_once_and_reported_once(bench: Bench) -> None:
    names = [bench.answered_over_stream_only() for _ in range(3)]
    assert len(set(names)) == 1
    assert bench.news() == []
    bench.tick()
    assert bench.news() == [DatagramsBlocked(names[0])]

    bench.prober.tick(bench.prober.next_tick_at, bench.out)
    for _ in range(20):
        bench.answered_over_stream_only()
    assert bench.news().count(DatagramsBlocked(names[0])) == 1


def test_a_single_lost_datagram_is_not_reported(bench: Bench) -> None:
    name = bench.answered_over_stream_only()
    ping = bench.ping()
    assert ping.target == name
    bench.ack(name, ping.sequence)
    for _ in range(2):
        ping = bench.ping()
        bench.ack(ping.target, ping.sequence)

    assert bench.news() == []
    assert bench.member(name).misses == 0


def test_the_first_datagram_that_is_answered_again_is_reported(bench: Bench) -> None:
    name = [bench.answered_over_stream_only() for _ in range(3)][0]
    ping = next(said.message for said in bench.tick() if isinstance(said.message, Ping))
    while ping.target != name:
        bench.ack(ping.target, ping.sequence)
        ping = bench.ping()
    bench.ack(name, ping.sequence)

    assert bench.news() == [DatagramsBlocked(name), DatagramsRestored(name)]


def test_one_who_dies_is_not_tried_again(bench: Bench) -> None:
    ping = bench.ping()
    bench.prober._again = bench.member(ping.target)
    bench.ack(ping.target, ping.sequence)
    bench.members.move(bench.member(ping.target), DEAD, 0)

    assert bench.ping().target != ping.target


def test_answers_of_one_probe_count_once(bench: Bench) -> None:
    for _ in range(3):
        bench.health.refuted()
    ping = bench.ping()
    for said in bench.tick()[:-1]:
        bench.ack(said.to.partition(":")[0], ping.sequence)
    bench.ack(ping.target, ping.sequence)

    assert bench.health.score == 2


def test_own_state_rides_on_pings_until_the_other_has_it(bench: Bench) -> None:
    bench.prober.state = MemberState(2, b"busy")
    for member in bench.members.all():
        member.state = MemberState(9, b"")
    ping = bench.ping()
    assert (ping.state, ping.knows) == (MemberState(2, b"busy"), 9)

    for member in bench.members.all():
        member.told = 2
    bench.ack(ping.target, ping.sequence)
    assert bench.ping().state is None


def request(bench: Bench, sequence: int = 77, sender: str | None = "m1") -> Ping:
    before = len(bench.out)
    member = bench.member(sender) if sender else None
    bench.prober.on_ping_request(bench.now, "source:1", member, PingRequest(sequence, "m2", 1, "m2:9"), bench.out)
    (said,) = bench.out[before:]
    assert isinstance(said, Send) and isinstance(said.message, Ping) and said.to == "m2:9"
    assert (said.message.target, said.message.target_boot) == ("m2", 1)
    return said.message


def test_a_helper_passes_the_answer_on(bench: Bench) -> None:
    ping = request(bench)
    bench.ack("m3", ping.sequence)
    assert bench.out[1:] == []

    bench.ack("m2", ping.sequence)
    bench.ack("m2", ping.sequence)

    assert bench.out[1:] == [Send(CHANNEL, "m1:1", ProbeAck(77), Lane.DATAGRAM, [])]


def test_a_helper_of_one_it_does_not_know_answers_to_where_the_request_came_from(bench: Bench) -> None:
    ping = request(bench, sender=None)
    bench.ack("m2", ping.sequence)

    assert bench.out[1:] == [Send(CHANNEL, "source:1", ProbeAck(77), Lane.DATAGRAM, [])]


def test_a_helper_says_at_four_fifths_of_the_timeout_that_it_has_no_answer_and_passes_a_late_one_on() -> None:
    bench = Bench(count=5, seed=3)
    bench.prober.tick(bench.prober.next_tick_at, bench.out)
    bench.now = bench.prober.next_tick_at - TIMEOUT + 1
    bench.out.clear()
    ping = request(bench)
    asked_at = bench.now

    assert bench.tick() == [Send(CHANNEL, "m1:1", Nack(77), Lane.DATAGRAM, [])]
    assert bench.now == asked_at + TIMEOUT * 4 // 5
    bench.out.clear()
    bench.ack("m2", ping.sequence)
    assert bench.out == [Send(CHANNEL, "m1:1", ProbeAck(77), Lane.DATAGRAM, [])]


def test_a_helper_that_had_an_answer_says_no_nack(bench: Bench) -> None:
    ping = request(bench)
    bench.ack("m2", ping.sequence)
    second = request(bench, 78)
    bench.out.clear()

    bench.prober.tick(bench.now + TIMEOUT, bench.out)

    assert [said.message for said in bench.out if isinstance(said, Send) and isinstance(said.message, Nack)] == [
        Nack(78)
    ]
    assert second.sequence != ping.sequence


def test_nacks_are_said_each_at_its_time(bench: Bench) -> None:
    bench.prober._phase_at = NEVER
    request(bench, 77)
    bench.now += 10
    request(bench, 78)

    assert [said.message for said in bench.tick()] == [Nack(77)]
    assert [said.message for said in bench.tick()] == [Nack(78)]


@without("nack")
def test_without_nacks_helpers_say_none() -> None:
    bench = Bench()
    request(bench)
    bench.out.clear()
    bench.prober.tick(bench.now + TIMEOUT, bench.out)

    assert all(isinstance(said, Send) and not isinstance(said.message, Nack) for said in bench.out)


def test_helpers_help_a_limited_number_at_once_and_forget_old_requests(bench: Bench) -> None:
    for sequence in range(RELAYS_LIMIT):
        request(bench, sequence)
    before = len(bench.out)
    bench.prober.on_ping_request(bench.now, "s:1", None, PingRequest(999, "m2", 1, "m2:9"), bench.out)
    assert len(bench.out) == before

    bench.now += INTERVAL
    request(bench, 1000)
    assert len(bench.prober._relays) == 1


def test_one_that_is_doubted_is_probed_next_out_of_its_turn(bench: Bench) -> None:
    asked = []
    for _ in range(6):
        bench.prober.probe_next(bench.member("m3"))
        ping = bench.ping()
        bench.ack(ping.target, ping.sequence)
        asked.append(ping.target)

    assert asked == ["m3"] * 6
