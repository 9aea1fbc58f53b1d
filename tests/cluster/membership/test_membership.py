"""One member, told what others say; and small groups on a network without faults or with one."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.members import ALIVE, DEAD, LEFT, SUSPECT, Member, Status
from talka.cluster.membership.membership import LEAVE_ROUNDS, OFFERS_PER_S, SEEDS_LIMIT, Membership
from talka.cluster.membership.news import (
    DatagramsBlocked,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberReturned,
    MembershipEffect,
    MemberSuspected,
    Refuted,
    StateLearned,
)
from talka.cluster.membership.presets import PRESETS, MembershipConfig
from talka.cluster.membership.suspicion import bounds
from talka.cluster.membership.updates import ACCUSATIONS_PER_S, ASK_INTERVALS, UPDATES_LIMIT
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.membership import (
    CHANNEL,
    PAYLOAD_LIMIT_BYTES,
    Alive,
    Dead,
    Gossip,
    MemberHasLeft,
    MemberRecord,
    MembershipMessage,
    MemberState,
    MemberUpdate,
    Nack,
    Ping,
    PingRequest,
    ProbeAck,
    Stated,
    Suspect,
    SyncOffer,
    SyncRecords,
    SyncReply,
    WatchGroup,
    WatchReply,
    decode,
    decode_update,
    encode,
    encode_update,
)
from talka.wire.packets import DATAGRAM_LIMIT_BYTES, Packet, encode_packet
from tests.sim.variants import without

CONFIG = PRESETS["default"]
INTERVAL = CONFIG.probe_interval_ns
quick = settings(deadline=None, derandomize=True, max_examples=50)


class Bench:
    """The member `me` among `m0`, `m1` …, who speak only when told to. Boots of others are 1."""

    def __init__(
        self,
        count: int = 5,
        *,
        config: MembershipConfig = CONFIG,
        zones: Callable[[int], str] = lambda number: "",
        zone: str = "",
        now: int = SECOND,
    ) -> None:
        self.now = now
        self.core = Membership(
            name="me",
            boot=100,
            address="me:1",
            zone=zone,
            group="g",
            config=config,
            rng=Random(1),
            now=self.now,
            meta=b"meta",
        )
        for number in range(count):
            self.hear(Alive(f"m{number}", 1, 0, f"m{number}:1", zones(number)), sender=f"m{number}")

    def on(
        self,
        message: MembershipMessage,
        *updates: MemberUpdate,
        sender: str = "m0",
        boot: int = 1,
        source: str = "",
        age_ns: int = 0,
    ) -> list[MembershipEffect]:
        raws = [encode_update(update) for update in updates]
        return self.core.on_message(self.now, source or f"{sender}:1", sender, boot, message, raws, age_ns)

    def hear(self, *updates: MemberUpdate, sender: str = "m0", boot: int = 1) -> list[MembershipEffect]:
        return self.on(Gossip(), *updates, sender=sender, boot=boot)

    def member(self, name: str) -> Member:
        member = self.core.get(name)
        assert member is not None
        return member

    def status(self, name: str) -> Status:
        return self.member(name).status

    def run(self, duration_ns: int, answering: bool = True) -> list[MembershipEffect]:
        """Ticks for so long; everybody that is pinged answers, or nobody does."""
        until = self.now + duration_ns
        effects: list[MembershipEffect] = []
        while self.core.next_tick_at <= until:
            self.now = self.core.next_tick_at
            said = self.core.tick(self.now)
            effects += said
            for effect in said if answering else []:
                if isinstance(effect, Send) and isinstance(effect.message, Ping):
                    ping = effect.message
                    self.on(ProbeAck(ping.sequence), sender=ping.target, boot=ping.target_boot)
        self.now = until
        return effects


def news(effects: list[MembershipEffect]) -> list[MembershipEffect]:
    return [effect for effect in effects if not isinstance(effect, Send)]


def says(effects: list[MembershipEffect]) -> list[Send[MembershipMessage]]:
    return [effect for effect in effects if isinstance(effect, Send)]


def told(effects: list[MembershipEffect]) -> list[MemberUpdate]:
    return [decode_update(raw) for said in says(effects) for raw in said.updates]


def suspect(name: str = "m1", accuser: str = "m2", incarnation: int = 0, boot: int = 1) -> Suspect:
    return Suspect(name, boot, incarnation, accuser, "no answer")


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.run(5 * SECOND)
    return made


# What others say of others


def test_a_newcomer_is_told_of_and_passed_on(bench: Bench) -> None:
    newcomer = Alive("new", 9, 2, "new:1", "zone", b"meta")

    assert news(bench.hear(newcomer)) == [MemberJoined("new", 9, "new:1")]
    assert newcomer in told(bench.run(SECOND))
    assert bench.hear(newcomer) == []


def test_a_full_group_takes_nobody_in() -> None:
    bench = Bench(2, config=msgspec.structs.replace(CONFIG, members_limit=2))

    assert bench.hear(Alive("new", 9, 0, "new:1")) == []
    assert bench.core.get("new") is None


def test_a_suspicion_is_told_of_passed_on_and_ends_in_death(bench: Bench) -> None:
    assert news(bench.hear(suspect())) == [MemberSuspected("m1", 1, "m2", "no answer")]
    assert suspect() in told(bench.run(SECOND))

    limits = bounds(CONFIG, 6, 0)
    effects = bench.run(limits.max_ns - SECOND - 1)
    assert bench.status("m1") is SUSPECT and news(effects) == []
    assert news(bench.run(ASK_INTERVALS * INTERVAL)) == []
    effects = bench.run(1)
    assert news(effects) == [MemberLost("m1", 1, "me", "no answer", True)]
    assert Dead("m1", 1, 0, "me", "no answer") in told(effects + bench.run(SECOND))


def test_before_a_verdict_that_nobody_shares_the_suspected_one_is_asked_a_last_time(bench: Bench) -> None:
    bench.hear(suspect())
    wait = bounds(CONFIG, 6, 0).max_ns
    bench.run(wait - 1)
    asked = says(bench.run(1))
    questions = [said for said in asked if said.message in (Ping(0, "m1", 1), Ping(0, "m1", 1, stream=True))]

    assert [said.lane for said in questions] == [Lane.DATAGRAM, Lane.STREAM]
    assert told([*questions]) == [suspect(), suspect()]
    assert any(said.message == Gossip() and suspect() in told([said]) for said in asked)
    bench.on(ProbeAck(0), Alive("m1", 1, 1, "m1:1"), sender="m1")
    assert news(bench.run(wait)) == []
    assert bench.status("m1") is ALIVE


def test_all_whose_suspicion_runs_out_at_one_moment_are_asked_in_one_tick(bench: Bench) -> None:
    bench.hear(suspect("m1"), suspect("m3"))
    bench.run(bounds(CONFIG, 6, 0).max_ns - 1)
    bench.now += 1

    asked = [said.message for said in says(bench.core.tick(bench.now))]

    assert Ping(0, "m1", 1) in asked and Ping(0, "m3", 1) in asked


def test_a_verdict_that_others_share_comes_without_a_last_question(bench: Bench) -> None:
    bench.hear(suspect())
    bench.run(bounds(CONFIG, 6, 0).max_ns)

    bench.hear(suspect(accuser="m3"))
    assert [type(item) for item in news(bench.run(0))] == [MemberLost]


@without("buddy")
def test_without_buddies_nobody_is_asked_before_a_verdict() -> None:
    bench = Bench()
    bench.hear(suspect())
    bench.run(bounds(CONFIG, 6, 0).max_ns)

    assert bench.status("m1") is DEAD


def test_each_independent_accuser_shortens_the_wait_once(bench: Bench) -> None:
    bench.hear(suspect(accuser="m2"))
    bench.hear(suspect(accuser="m2"))
    assert news(bench.run(bounds(CONFIG, 6, 0).min_ns)) == []

    bench.hear(suspect(accuser="m3"))
    assert news(bench.run(0)) == [MemberLost("m1", 1, "me", "no answer", True)]


def test_accusers_of_one_zone_count_once_where_there_are_zones_enough() -> None:
    bench = Bench(6, zones=lambda number: "left" if number < 4 else "right", zone="left")
    bench.hear(suspect("m1", "m2"))
    bench.hear(suspect("m1", "m3"))
    assert news(bench.run(bounds(CONFIG, 7, 0).min_ns)) == []

    bench.hear(suspect("m1", "m5"))
    assert [type(item) for item in news(bench.run(0))] == [MemberLost]


def test_with_more_zones_than_confirmations_each_zone_counts_once() -> None:
    config = PRESETS["fast"]
    bench = Bench(9, config=config, zones=lambda number: f"z{number % 3}")
    wanted = bounds(config, 10, 0)
    assert wanted.wanted == 2
    for accuser in ("m2", "m5", "m8", "m3"):  # of z2, z2, z2 and z0
        bench.hear(suspect("m1", accuser))
    assert news(bench.run(wanted.min_ns)) == []

    bench.hear(suspect("m1", "m4"))  # of z1
    assert [type(item) for item in news(bench.run(0))] == [MemberLost]


def test_with_only_as_many_zones_as_confirmations_each_accuser_counts() -> None:
    config = PRESETS["fast"]
    bench = Bench(9, config=config, zones=lambda number: f"z{number % 2}")
    limits = bounds(config, 10, 0)
    assert limits.wanted == 2
    for accuser in ("m2", "m4", "m6"):  # all of z0
        bench.hear(suspect("m1", accuser))

    assert [type(item) for item in news(bench.run(limits.min_ns))] == [MemberLost]


def test_where_all_are_of_one_zone_each_accuser_counts() -> None:
    bench = Bench(6, zones=lambda number: "only", zone="only")
    bench.hear(suspect("m1", "m2"))
    bench.hear(suspect("m1", "m3"))

    assert [type(item) for item in news(bench.run(bounds(CONFIG, 7, 0).min_ns))] == [MemberLost]


def test_accusers_that_nobody_knows_count_without_a_zone() -> None:
    bench = Bench(6, zones=lambda number: f"z{number}", zone="mine")
    bench.hear(suspect("m1", "stranger"))
    bench.hear(suspect("m1", "other stranger"))

    assert [type(item) for item in news(bench.run(bounds(CONFIG, 7, 0).min_ns))] == [MemberLost]


@without("confirmations")
def test_without_confirmations_the_wait_is_the_minimum() -> None:
    bench = Bench()
    bench.hear(suspect(accuser="m2"))
    assert bench.hear(suspect(accuser="m3")) == []
    wait = bounds(CONFIG, 6, 0).min_ns

    assert news(bench.run(wait - 1)) == []
    assert [type(item) for item in news(bench.run(1))] == [MemberLost]


def test_a_refutation_ends_the_suspicion(bench: Bench) -> None:
    bench.hear(suspect())

    assert news(bench.hear(Alive("m1", 1, 1, "m1:2"))) == [MemberReturned("m1", 1)]
    assert (bench.status("m1"), bench.member("m1").address) == (ALIVE, "m1:2")
    assert news(bench.run(60 * SECOND)) == []


def test_a_later_incarnation_may_bring_another_address_without_any_news(bench: Bench) -> None:
    assert news(bench.hear(Alive("m1", 1, 1, "m1:2"))) == []
    assert bench.member("m1").address == "m1:2"


def test_a_suspicion_of_a_later_incarnation_waits_anew(bench: Bench) -> None:
    bench.hear(suspect(accuser="m2"))
    bench.hear(suspect(accuser="m3"))
    bench.run(SECOND)
    bench.hear(suspect(accuser="m2", incarnation=1))

    assert news(bench.run(bounds(CONFIG, 6, 0).min_ns)) == []
    assert bench.member("m1").incarnation == 1


def test_stale_and_foreign_accusations_change_nothing(bench: Bench) -> None:
    bench.hear(Alive("m1", 1, 5, "m1:1"))

    for update in (
        suspect(incarnation=4),
        suspect(boot=2, incarnation=9),
        suspect("nobody"),
        Dead("m1", 1, 4, "m2", ""),
        Dead("m1", 2, 9, "m2", ""),
        Dead("nobody", 1, 9, "m2", ""),
        MemberHasLeft("m1", 2, 9),
        MemberHasLeft("nobody", 1, 9),
    ):
        assert bench.hear(update) == []
    assert bench.status("m1") is ALIVE


def test_a_death_told_by_others_is_not_own(bench: Bench) -> None:
    assert news(bench.hear(Dead("m1", 1, 0, "m2", "no answer"))) == [MemberLost("m1", 1, "m2", "no answer", False)]
    assert news(bench.hear(Dead("m1", 1, 0, "m3", "no answer"))) == []
    assert news(bench.hear(suspect())) == []


def test_the_dead_return_with_a_later_incarnation_also_when_it_is_suspected_already(bench: Bench) -> None:
    bench.hear(Dead("m1", 1, 0, "m2", ""), Dead("m2", 1, 0, "m3", ""))

    assert news(bench.hear(Alive("m1", 1, 1, "m1:1"))) == [MemberReturned("m1", 1)]
    assert news(bench.hear(suspect("m2", "m3", incarnation=1))) == [
        MemberReturned("m2", 1),
        MemberSuspected("m2", 1, "m3", "no answer"),
    ]


def test_who_left_does_not_return_in_the_same_life(bench: Bench) -> None:
    assert news(bench.hear(MemberHasLeft("m1", 1, 0))) == [MemberLeft("m1", 1)]
    assert bench.hear(MemberHasLeft("m1", 1, 0)) == []
    assert bench.hear(Alive("m1", 1, 9, "m1:1"), sender="m1") == []
    assert bench.status("m1") is LEFT
    assert MemberHasLeft("m1", 1, 0) in told(bench.run(SECOND))


@given(order=st.permutations([suspect(), suspect(incarnation=1), Alive("m1", 1, 1, "x:1"), Dead("m1", 1, 1, "m2", "")]))
@quick
def test_the_order_of_news_does_not_matter(order: list[MemberUpdate]) -> None:
    bench = Bench()
    bench.hear(*order)

    assert (bench.status("m1"), bench.member("m1").incarnation) == (DEAD, 1)


def test_one_accuser_is_heard_only_so_often(bench: Bench) -> None:
    for number in range(ACCUSATIONS_PER_S + 10):
        bench.hear(Alive(f"x{number}", 1, 0, "x:1"))
    for accuser in ("m2", "nobody"):
        bench.now += SECOND
        accusations = [suspect(f"x{number}", accuser) for number in range(ACCUSATIONS_PER_S + 10)]
        suspected = [item for item in bench.hear(*accusations) if isinstance(item, MemberSuspected)]
        assert len(suspected) == (ACCUSATIONS_PER_S if accuser == "m2" else 10)
    bench.now += SECOND
    dead = [Dead(f"x{number}", 1, 0, "m3", "") for number in range(ACCUSATIONS_PER_S + 10)]
    assert len(news(bench.hear(*dead))) == ACCUSATIONS_PER_S


def test_strangers_share_one_allowance(bench: Bench) -> None:
    for number in range(ACCUSATIONS_PER_S + 10):
        bench.hear(Alive(f"x{number}", 1, 0, "x:1"))
    accusations = [suspect(f"x{number}", f"stranger {number}") for number in range(ACCUSATIONS_PER_S + 10)]

    assert len([item for item in bench.hear(*accusations) if isinstance(item, MemberSuspected)]) == ACCUSATIONS_PER_S


@pytest.mark.parametrize("accuser", ["m2", "stranger"])
def test_after_a_second_and_not_before_there_is_a_new_allowance(bench: Bench, accuser: str) -> None:
    for number in range(ACCUSATIONS_PER_S + 2):
        bench.hear(Alive(f"x{number}", 1, 0, "x:1"))
    bench.hear(*[suspect(f"x{number}", accuser) for number in range(ACCUSATIONS_PER_S)])
    last_but_one, last = [suspect(f"x{ACCUSATIONS_PER_S + number}", accuser) for number in range(2)]

    bench.now += SECOND - 1
    assert news(bench.hear(last_but_one)) == []
    bench.now += 1
    assert news(bench.hear(last)) == [MemberSuspected(last.name, 1, accuser, "no answer")]


def test_strangers_have_their_whole_allowance_in_the_first_second_of_the_clock() -> None:
    bench = Bench(ACCUSATIONS_PER_S + 10, now=0)
    accusations = [suspect(f"m{number}", "stranger") for number in range(ACCUSATIONS_PER_S + 10)]

    assert len([item for item in bench.hear(*accusations) if isinstance(item, MemberSuspected)]) == ACCUSATIONS_PER_S


def test_updates_that_cannot_be_read_are_counted_and_those_after_them_ignored(bench: Bench) -> None:
    late = encode_update(MemberHasLeft("m1", 1, 0))
    bench.core.on_message(bench.now, "m0:1", "m0", 1, Gossip(), [b"\xc1", late], 0)

    assert bench.core.refused_updates == 1
    assert bench.status("m1") is ALIVE


def test_of_one_message_a_limited_number_of_updates_is_looked_at(bench: Bench) -> None:
    bench.hear(*[Alive("m1", 1, number, "m1:1") for number in range(UPDATES_LIMIT + 5)])

    assert bench.member("m1").incarnation == UPDATES_LIMIT - 1


# What others say of this member


@pytest.mark.parametrize("kind", [Suspect, Dead])
def test_an_accusation_is_refuted_at_once(bench: Bench, kind: type[Suspect] | type[Dead]) -> None:
    assert bench.hear(kind("me", 100, 3, "m2", "no answer")) == [Refuted(4)]
    assert bench.core.incarnation == 4
    assert bench.core.health.score == 1
    assert bench.core.next_tick_at <= bench.now
    assert Alive("me", 100, 4, "me:1", "", b"meta") in told(bench.run(0))
    assert bench.core.audit[-1].verdict == "refuted"


def test_accusations_of_an_earlier_incarnation_or_of_another_life_need_no_refutation(bench: Bench) -> None:
    bench.hear(suspect("me", boot=100))

    assert news(bench.hear(suspect("me", boot=100), suspect("me", boot=99, incarnation=9))) == []
    assert bench.core.incarnation == 1


def test_who_missed_the_refutation_and_asks_is_told_again(bench: Bench) -> None:
    bench.hear(suspect("me", boot=100))
    bench.run(5 * SECOND)
    ping = Ping(7, "me", 100)

    assert told(bench.on(ping)) == []
    assert told(bench.on(ping, suspect("me", boot=100))) == [Alive("me", 100, 1, "me:1", "", b"meta")]
    assert told(bench.on(ping)) == []


def test_who_missed_the_refutation_is_told_again_in_answer_to_any_message_now_and_then(bench: Bench) -> None:
    bench.hear(suspect("me", boot=100))
    bench.run(5 * SECOND)

    assert told(bench.hear(suspect("me", boot=100))) == [Alive("me", 100, 1, "me:1", "", b"meta")]
    assert bench.hear(suspect("me", boot=100)) == []
    bench.now += INTERVAL
    assert told(bench.hear(suspect("me", boot=100))) == [Alive("me", 100, 1, "me:1", "", b"meta")]


def test_who_missed_the_refutation_is_not_told_again_where_there_is_no_room() -> None:
    me = Alive("me", 1, 0, "a" * 256, "z" * 64, bytes(PAYLOAD_LIMIT_BYTES))
    core = Membership(
        name=me.name,
        boot=me.boot,
        address=me.address,
        zone=me.zone,
        group="g",
        config=CONFIG,
        rng=Random(1),
        now=0,
        meta=me.meta,
    )
    core.set_state(0, bytes(PAYLOAD_LIMIT_BYTES))
    accusation = encode_update(suspect("me", boot=1))
    core.on_message(0, "b", "m0", 1, Gossip(), [encode_update(Alive("m0", 1, 0, "b")), accusation], 0)
    while not core.tick(core.next_tick_at) or core.next_tick_at < 2 * SECOND:
        pass

    knows_nothing = core.on_message(2 * SECOND, "b", "m0", 1, Ping(7, "me", 1), [accusation], 0)
    knows_the_state = core.on_message(2 * SECOND, "b", "m0", 1, Ping(8, "me", 1, None, 1), [accusation], 0)

    assert [update for update in told(knows_nothing) if isinstance(update, Alive)] == []
    assert [update.incarnation for update in told(knows_the_state) if isinstance(update, Alive)] == [1]


def test_who_hears_of_a_former_life_of_itself_reminds_the_group_now_and_then(bench: Bench) -> None:
    former = Alive("me", 99, 7, "me:0")
    bench.hear(former)
    assert bench.core.me in told(bench.run(SECOND // 2))

    bench.hear(former)
    assert bench.core.me not in told(bench.run(SECOND // 4))
    bench.hear(Alive("me", 100, 0, "me:1"))
    bench.now += SECOND
    bench.hear(former)
    assert bench.core.me in told(bench.run(SECOND // 2))


# Lives


def test_a_life_that_speaks_itself_replaces_the_recorded_one_at_once(bench: Bench) -> None:
    assert news(bench.hear(Alive("m1", 2, 0, "m1:2"), sender="m1", boot=2)) == [
        MemberLost("m1", 1, "m1", "restarted", False),
        MemberJoined("m1", 2, "m1:2"),
    ]


def test_a_life_that_others_tell_of_replaces_a_dead_one(bench: Bench) -> None:
    bench.hear(Dead("m1", 1, 0, "m2", ""))

    assert news(bench.hear(Alive("m1", 2, 0, "m1:2"))) == [MemberJoined("m1", 2, "m1:2")]


def test_a_life_that_others_tell_of_while_another_seems_alive_has_to_answer_first(bench: Bench) -> None:
    newer = Alive("m1", 2, 0, "m1:2")
    assert bench.hear(newer) == [Send(CHANNEL, "m1:2", Ping(0, "m1", 2), Lane.DATAGRAM, [])]
    assert bench.hear(newer) == []
    assert bench.member("m1").boot == 1

    assert news(bench.on(ProbeAck(0), sender="m1", boot=2)) == [
        MemberLost("m1", 1, "m1", "restarted", False),
        MemberJoined("m1", 2, "m1:2"),
    ]


def test_a_life_that_did_not_answer_is_asked_again_later(bench: Bench) -> None:
    bench.hear(Alive("m1", 2, 0, "m1:2"))
    bench.now += INTERVAL

    assert bench.hear(Alive("m1", 3, 0, "m1:3")) == [Send(CHANNEL, "m1:3", Ping(0, "m1", 3), Lane.DATAGRAM, [])]
    assert news(bench.on(ProbeAck(0), sender="m1", boot=2)) == []


def test_a_former_life_is_neither_believed_nor_answered(bench: Bench) -> None:
    bench.hear(Alive("m1", 2, 0, "m1:2"), sender="m1", boot=2)

    assert bench.on(Ping(1, "me", 100), MemberHasLeft("m2", 1, 0), sender="m1", boot=1) == []
    assert bench.hear(Alive("m1", 1, 9, "m1:1")) == []
    assert (bench.member("m1").boot, bench.status("m2")) == (2, ALIVE)


def test_a_former_life_that_speaks_is_taken_back_once_the_one_that_replaced_it_is_dead(bench: Bench) -> None:
    bench.hear(Dead("m1", 1, 0, "m2", "no answer"))
    bench.hear(Alive("m1", 2, 0, "m1:2"))
    assert bench.hear(Alive("m1", 1, 9, "m1:1"), sender="m1", boot=1) == []

    bench.hear(Dead("m1", 2, 0, "m2", "no answer"))
    assert bench.hear(Alive("m1", 1, 9, "m1:1")) == []
    bench.hear(Alive("m1", 1, 9, "m1:1"), sender="m1", boot=1)

    assert (bench.member("m1").boot, bench.status("m1"), bench.member("m1").former) == (1, ALIVE, [2])
    assert says(bench.on(Ping(1, "me", 100), sender="m1", boot=1))


def test_another_process_of_the_same_name_is_not_listened_to(bench: Bench) -> None:
    assert bench.on(Ping(1, "me", 100), MemberHasLeft("m2", 1, 0), sender="me", boot=7) == []
    assert bench.status("m2") is ALIVE


# Probing


def test_a_ping_is_answered_to_the_address_the_member_gave(bench: Bench) -> None:
    assert bench.on(Ping(7, "me", 100), source="nat:9") == [Send(CHANNEL, "m0:1", ProbeAck(7), Lane.DATAGRAM, [])]
    assert bench.on(Ping(8, "me", 100, stream=True)) == [Send(CHANNEL, "m0:1", ProbeAck(8), Lane.STREAM, [])]


@pytest.mark.parametrize("ping", [Ping(7, "me", 99), Ping(7, "other", 100)], ids=["life", "name"])
def test_a_ping_for_another_life_or_name_is_not_answered(bench: Bench, ping: Ping) -> None:
    assert bench.on(ping) == []


def test_a_stranger_is_answered_and_asked_who_it_is_now_and_then(bench: Bench) -> None:
    answer, offer = says(bench.on(Ping(7, "me", 100), sender="x", source="x:5"))

    assert (answer.to, answer.message) == ("x:5", ProbeAck(7))
    assert (offer.to, offer.lane) == ("x:5", Lane.STREAM)
    assert isinstance(offer.message, SyncOffer)
    assert len(says(bench.on(Ping(8, "me", 100), sender="x", source="x:5"))) == 1
    assert bench.on(ProbeAck(8), sender="x", source="x:5") == []
    assert bench.on(Nack(8), sender="x", source="x:5") == []


def test_a_member_that_answers_nobody_is_suspected_by_the_one_who_probed_it() -> None:
    bench = Bench(1)
    effects = bench.run(2 * SECOND, answering=False)

    assert news(effects)[0] == MemberSuspected("m0", 1, "me", "no answer")
    assert bench.core.audit[0].own


def test_a_ping_to_a_suspected_member_tells_it_so_first(bench: Bench) -> None:
    bench.hear(Alive("x1", 1, 0, "x1:1"), suspect("m1"), Alive("x2", 1, 0, "x2:1"))
    pings = [
        said for said in says(bench.run(5 * SECOND)) if isinstance(said.message, Ping) and said.message.target == "m1"
    ]

    assert pings
    assert all(decode_update(said.updates[0]) == suspect("m1") for said in pings)


@pytest.mark.parametrize("lacking", [(), ("buddy",)])
def test_without_buddies_nobody_is_told(lacking: tuple[str, ...]) -> None:
    with without(*lacking):
        bench = Bench()
        bench.run(5 * SECOND)
        bench.hear(suspect("m0"))
        bench.run(2 * SECOND)  # what gossip there is has been sent
        assert bench.status("m0") is SUSPECT
        told = says(bench.on(Ping(7, "me", 100)))[0].updates

    assert told == ([] if lacking else [encode_update(suspect("m0"))])


def test_one_held_dead_that_still_speaks_is_told_so(bench: Bench) -> None:
    bench.hear(Dead("m0", 1, 0, "m2", "no answer"))
    bench.run(5 * SECOND)

    (answer,) = says(bench.on(Ping(7, "me", 100)))

    assert [decode_update(raw) for raw in answer.updates] == [Dead("m0", 1, 0, "m2", "no answer")]


@pytest.mark.parametrize("accusation", [suspect("m0"), Dead("m0", 1, 0, "m2", "no answer")], ids=["suspect", "dead"])
def test_whoever_speaks_is_told_what_it_stands_accused_of_now_and_then(
    bench: Bench, accusation: Suspect | Dead
) -> None:
    bench.hear(accusation, sender="m3")
    bench.run(2 * SECOND)
    bench.now += INTERVAL  # since it answered a probe

    assert bench.hear() == [Send(CHANNEL, "m0:1", Gossip(), Lane.DATAGRAM, [encode_update(accusation)])]
    assert bench.hear() == []
    bench.now += INTERVAL
    assert told(bench.hear()) == [accusation]


@without("buddy")
def test_without_buddies_whoever_speaks_is_told_of_its_death_only() -> None:
    bench = Bench()
    bench.run(5 * SECOND)
    bench.hear(suspect("m0"), sender="m3")
    bench.run(SECOND)
    assert bench.hear() == []

    bench.hear(Dead("m0", 1, 0, "m2", "no answer"), sender="m3")
    bench.run(SECOND)
    assert told(bench.hear()) == [Dead("m0", 1, 0, "m2", "no answer")]


def test_one_that_left_is_told_nothing(bench: Bench) -> None:
    bench.hear(MemberHasLeft("m0", 1, 0), sender="m3")
    bench.run(5 * SECOND)

    assert bench.on(Ping(7, "me", 100)) == [Send(CHANNEL, "m0:1", ProbeAck(7), Lane.DATAGRAM, [])]
    assert bench.hear() == []


def test_requests_for_help_and_nacks_reach_the_prober(bench: Bench) -> None:
    (said,) = says(bench.on(PingRequest(5, "m2", 1, "m2:1")))

    assert isinstance(said.message, Ping) and said.to == "m2:1"
    assert says(bench.on(ProbeAck(said.message.sequence), sender="m2"))[0].message == ProbeAck(5)
    assert bench.on(Nack(5), sender="m2") == []


def test_a_late_member_suspects_nobody_and_doubts_itself() -> None:
    bench = Bench(1)
    until = bench.now + 5 * SECOND
    while bench.core.next_tick_at < until:
        bench.now = bench.core.next_tick_at + CONFIG.lag_limit_ns + 1
        assert news(bench.core.tick(bench.now)) == []

    assert bench.core.health.score > 2


@without("lag_gate")
def test_without_the_gate_a_late_member_suspects_others() -> None:
    bench = Bench(1)
    until = bench.now + 5 * SECOND
    effects = []
    while bench.core.next_tick_at < until:
        bench.now = bench.core.next_tick_at + CONFIG.lag_limit_ns + 1
        effects += bench.core.tick(bench.now)

    assert MemberSuspected("m0", 1, "me", "no answer") in effects


@without("local_health")
def test_a_suspicion_that_runs_out_while_this_member_is_late_waits_anew() -> None:
    bench = Bench()
    bench.run(SECOND)
    bench.hear(suspect(accuser="m2"), suspect(accuser="m3"))
    wait = bounds(CONFIG, 6, 0).min_ns
    bench.run(wait - 1)
    bench.on(Gossip(), age_ns=SECOND)

    assert news(bench.run(wait)) == []
    assert [type(item) for item in news(bench.run(1))] == [MemberLost]


def test_a_member_in_bad_health_gives_no_verdict_that_nobody_confirms(bench: Bench) -> None:
    bench.hear(suspect(accuser="m2"))
    effects: list[MembershipEffect] = []
    for _ in range(600):
        bench.core.health.score = 2
        effects += bench.run(SECOND // 20)
    assert bench.status("m1") is SUSPECT and news(effects) == []

    bench.hear(suspect(accuser="m3"))
    bench.run(bounds(CONFIG, 6, 0).min_ns)
    assert bench.status("m1") is DEAD


@without("local_health")
def test_without_local_health_a_lone_accuser_is_enough() -> None:
    bench = Bench()
    bench.hear(suspect(accuser="m2"))
    bench.core.health.score = 2
    bench.run(bounds(CONFIG, 6, 0).max_ns + 3 * ASK_INTERVALS * INTERVAL)

    assert bench.status("m1") is DEAD


def test_a_member_in_bad_health_decides_alone_when_nobody_is_left_to_confirm() -> None:
    bench = Bench(4)
    effects = bench.run(120 * SECOND, answering=False)

    assert bench.core.health.score == CONFIG.awareness_max
    assert len([item for item in effects if isinstance(item, MemberLost)]) == 4


# State


def test_a_state_rides_on_acks_and_pings_until_the_other_has_it(bench: Bench) -> None:
    bench.core.set_state(bench.now, b"one")
    bench.core.set_state(bench.now, b"two")
    assert bench.core.state == MemberState(2, b"two")

    assert says(bench.on(Ping(1, "me", 100)))[0].message == ProbeAck(1, MemberState(2, b"two"))
    assert says(bench.on(Ping(2, "me", 100, None, 2)))[0].message == ProbeAck(2)
    assert bench.member("m0").told == 2
    pings = [said.message for said in says(bench.run(5 * SECOND)) if isinstance(said.message, Ping)]
    assert {ping.target for ping in pings if ping.state is None} == {"m0"}
    assert all(ping.state == MemberState(2, b"two") for ping in pings if ping.target != "m0")


def test_a_claim_to_know_a_state_that_was_never_told_is_not_believed(bench: Bench) -> None:
    bench.core.set_state(bench.now, b"one")
    bench.on(Ping(2, "me", 100, None, 9))

    assert bench.member("m0").told == 0


def test_the_state_of_others_is_learned_when_it_is_later(bench: Bench) -> None:
    assert news(bench.on(Ping(1, "me", 100, MemberState(3, b"x")))) == [StateLearned("m0", 3, b"x")]
    assert news(bench.on(ProbeAck(1, MemberState(3, b"y")))) == []
    assert news(bench.on(ProbeAck(1, MemberState(4, b"z")))) == [StateLearned("m0", 4, b"z")]
    assert says(bench.on(Ping(2, "me", 100)))[0].message == ProbeAck(2, None, 4)


def test_a_state_that_is_spread_is_gossiped_and_passed_on(bench: Bench) -> None:
    bench.core.set_state(bench.now, b"one", spread=True)
    assert Stated("me", 100, MemberState(1, b"one")) in told(bench.run(0))

    stated = Stated("m1", 1, MemberState(5, b"far"))
    assert news(bench.hear(stated, Stated("m1", 2, MemberState(9, b"")), Stated("nobody", 1, MemberState(9, b"")))) == [
        StateLearned("m1", 5, b"far")
    ]
    assert stated in told(bench.run(SECOND))
    assert news(bench.hear(stated)) == []


def test_a_state_too_large_is_refused(bench: Bench) -> None:
    with pytest.raises(Invalid, match="^member me: a state has at most 512 bytes, not 513$"):
        bench.core.set_state(bench.now, bytes(PAYLOAD_LIMIT_BYTES + 1))


def test_names_and_metadata_are_checked() -> None:
    def made(name: str, meta: bytes) -> Membership:
        return Membership(name=name, boot=1, address="a", group="g", config=CONFIG, rng=Random(1), now=0, meta=meta)

    with pytest.raises(Invalid, match="^a member's name has 1 to 128 characters, not 0$"):
        made("", b"")
    with pytest.raises(Invalid, match="^member a: its metadata has 513 bytes; give at most 512$"):
        made("a", bytes(PAYLOAD_LIMIT_BYTES + 1))


# Gossip


def test_an_idle_member_sends_nothing_but_probes_and_syncs(bench: Bench) -> None:
    effects = says(bench.run(30 * SECOND))

    assert {type(said.message) for said in effects} == {Ping, SyncOffer}
    assert not any(said.updates for said in effects)


def test_news_is_gossiped_to_a_few_at_once_and_then_by_the_interval(bench: Bench) -> None:
    bench.hear(Alive("new", 1, 0, "new:1"))
    assert bench.core.next_tick_at == bench.now
    first = [said for said in says(bench.run(0)) if isinstance(said.message, Gossip)]
    assert len({said.to for said in first}) == CONFIG.gossip_fanout

    bench.hear(Alive("newer", 1, 0, "newer:1"))
    assert not [said for said in says(bench.run(CONFIG.gossip_interval_ns - 1)) if isinstance(said.message, Gossip)]
    assert [said for said in says(bench.run(1)) if isinstance(said.message, Gossip)]


@pytest.mark.parametrize(("others", "digits"), [(8, 1), (9, 2)])
def test_news_rides_on_as_many_messages_as_the_size_of_the_group_asks_for_oneself_counted(
    others: int, digits: int
) -> None:
    bench = Bench(others)
    bench.run(5 * SECOND)
    update = Alive("m1", 1, 1, "m1:1")
    bench.hear(update)

    answers = [told(bench.on(Ping(number, "me", 100))) for number in range(1, 21)]

    assert answers.count([update]) == digits * CONFIG.retransmit_multiplier
    assert answers.count([]) == 20 - digits * CONFIG.retransmit_multiplier


def test_a_member_in_bad_health_gossips_less_often(bench: Bench) -> None:
    bench.core.health.score = 8
    bench.hear(Alive("new", 1, 0, "new:1"))
    began = bench.now
    bench.run(0)

    while not [said for said in says(bench.core.tick(bench.core.next_tick_at)) if isinstance(said.message, Gossip)]:
        pass
    assert bench.core._gossiped_at == began + 4 * CONFIG.gossip_interval_ns


def test_the_dead_are_told_for_a_while() -> None:
    bench = Bench(2)
    bench.run(5 * SECOND)
    bench.hear(Dead("m1", 1, 0, "m0", ""))
    assert "m1:1" in [said.to for said in says(bench.run(SECOND)) if isinstance(said.message, Gossip)]

    bench.run(CONFIG.gossip_to_dead_ns)
    bench.hear(Alive("m0", 1, 1, "m0:1"))
    assert "m1:1" not in [said.to for said in says(bench.run(SECOND)) if isinstance(said.message, Gossip)]


def test_no_datagram_is_longer_than_it_may_be() -> None:
    name = "ü" * 60
    core = Membership(
        name=name, boot=2**62, address="a" * 200, group="g" * 100, config=CONFIG, rng=Random(1), now=0, meta=bytes(512)
    )
    core.set_state(0, bytes(PAYLOAD_LIMIT_BYTES), spread=True)
    longest = 0
    effects: list[MembershipEffect] = []
    for number in range(200):
        other = f"{number}" + "ö" * 50
        alive = encode_update(Alive(other, 2**62, 1, "b" * 100, "", bytes(number)))
        effects += core.on_message(number, "b", other, 2**62, Ping(2**62, name, 2**62), [alive], 0)
        accusation = encode_update(Suspect(other, 2**62, 1, other, "no answer"))
        effects += core.on_message(
            number, "b", other, 2**62, PingRequest(2**62, other, 2**62, "c" * 256), [accusation], 0
        )
    for _ in range(100):
        effects += core.tick(core.next_tick_at)
    for said in says(effects):
        if said.lane is Lane.DATAGRAM:
            packet = Packet(
                1,
                "g" * 100,
                name,
                2**62,
                2**62,
                1,
                msgspec.Raw(encode(said.message)),
                list(map(msgspec.Raw, said.updates)),
            )
            longest = max(longest, len(encode_packet(packet)))

    assert DATAGRAM_LIMIT_BYTES - 300 < longest <= DATAGRAM_LIMIT_BYTES


# Joining, leaving, anti-entropy


def test_joining_offers_a_sync_to_a_few_seeds_and_again_with_longer_waits_until_somebody_answers() -> None:
    bench = Bench(0)
    seeds = [f"s{number}" for number in range(6)]

    first = says(bench.core.join(bench.now, ["me:1", *seeds]))
    assert len({said.to for said in first}) == 3
    assert all(said.to in seeds and said.lane is Lane.STREAM for said in first)
    offer = first[0].message
    assert isinstance(offer, SyncOffer) and offer.me == bench.core.me
    times = [bench.now]
    while len(times) < 9:
        now = bench.core.next_tick_at
        if says(bench.core.tick(now)):
            times.append(now)
    waits = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert waits[0] <= 2 * INTERVAL * 5 // 4
    assert all(wait <= CONFIG.rejoin_interval_ns * 5 // 4 for wait in waits)
    assert waits[-1] >= CONFIG.rejoin_interval_ns * 3 // 4


def test_seeds_are_limited() -> None:
    bench = Bench(0)
    bench.core.join(bench.now, [f"s{number}" for number in range(SEEDS_LIMIT + 10)])

    assert len(bench.core._seeds) == SEEDS_LIMIT


def test_other_seeds_may_be_set_later_and_are_asked_instead() -> None:
    bench = Bench(0)
    bench.core.join(bench.now, ["old:1"])

    bench.core.set_seeds(["me:1", "new:1", "new:1", *(f"s{number}" for number in range(SEEDS_LIMIT))])

    assert bench.core._seeds == ["new:1", *(f"s{number}" for number in range(SEEDS_LIMIT - 1))]
    bench.core.set_seeds(["new:1"])
    asked = []
    while not asked:
        bench.now = bench.core.next_tick_at
        asked = [said.to for said in says(bench.core.tick(bench.now)) if said.lane is Lane.STREAM]
    assert asked == ["new:1"]


def test_seeds_and_dead_members_are_asked_again_for_ever_while_they_are_not_alive(bench: Bench) -> None:
    bench.core.join(bench.now, ["m0:1", "away:1"])
    bench.hear(Dead("m1", 1, 0, "m2", ""), MemberHasLeft("m2", 1, 0))

    asked = [said.to for said in says(bench.run(300 * SECOND)) if isinstance(said.message, SyncOffer)]

    assert "away:1" in asked and "m1:1" in asked
    assert "m2:1" not in asked


def test_the_dead_are_forgotten_after_their_time(bench: Bench) -> None:
    bench.hear(Dead("m1", 1, 0, "m2", ""))
    bench.run(CONFIG.reap_ns + 2 * CONFIG.rejoin_interval_ns)

    assert bench.core.get("m1") is None
    assert len(bench.core.members()) == len(bench.core.alive()) == 4


def test_an_offer_is_answered_with_the_records_of_the_buckets_that_differ(bench: Bench) -> None:
    newcomer = Alive("new", 5, 0, "new:1")
    effects = bench.on(SyncOffer(newcomer, MemberState(1, b"hi"), b""), sender="new", boot=5, source="nat:1")

    assert news(effects) == [MemberJoined("new", 5, "new:1"), StateLearned("new", 1, b"hi")]
    (reply,) = says(effects)
    assert (reply.to, reply.lane) == ("new:1", Lane.STREAM)
    assert isinstance(reply.message, SyncReply)
    assert sorted(record.name for record in reply.message.records) == ["m0", "m1", "m2", "m3", "m4", "me", "new"]


@pytest.mark.parametrize("message", ["offer", "reply"])
def test_nobody_introduces_itself_as_somebody_else(bench: Bench, message: str) -> None:
    other = Alive("m3", 7, 0, "evil:1")
    forged = SyncOffer(other, None, b"") if message == "offer" else SyncReply(other, [], [])

    assert bench.on(forged, sender="m0") == []
    assert bench.member("m3").boot == 1


def test_a_full_member_answers_offers_all_the_same() -> None:
    bench = Bench(1, config=msgspec.structs.replace(CONFIG, members_limit=1))

    effects = bench.on(SyncOffer(Alive("new", 5, 0, "new:1"), MemberState(1, b""), b""), sender="new", boot=5)

    assert [type(effect) for effect in effects] == [Send]


def test_offers_are_answered_up_to_a_rate(bench: Bench) -> None:
    offer = SyncOffer(Alive("m0", 1, 0, "m0:1"), None, b"")

    assert sum(len(bench.on(offer)) for _ in range(OFFERS_PER_S + 20)) == OFFERS_PER_S
    bench.now += SECOND
    assert len(bench.on(offer)) == 1


def test_a_reply_is_answered_with_what_the_other_does_not_have(bench: Bench) -> None:
    newer = MemberRecord("m1", 1, 7, "m1:1", "", b"", 0, MemberState(4, b"s"))
    effects = bench.on(SyncReply(Alive("m0", 1, 0, "m0:1"), list(range(64)), [newer]))

    assert news(effects) == [StateLearned("m1", 4, b"s")]
    (records,) = says(effects)
    assert isinstance(records.message, SyncRecords)
    assert sorted(record.name for record in records.message.records) == ["m0", "m2", "m3", "m4", "me"]
    assert bench.on(SyncReply(Alive("m0", 1, 0, "m0:1"), [], [])) == []


def test_somebody_held_dead_by_another_is_suspected_first(bench: Bench) -> None:
    dead = MemberRecord("m1", 1, 0, "m1:1", "", b"", 2, None, "", "no answer")

    assert news(bench.on(SyncRecords([dead]), sender="m3")) == [MemberSuspected("m1", 1, "m3", "no answer")]


def test_of_the_unknown_only_the_living_are_taken_from_records(bench: Bench) -> None:
    records = [
        MemberRecord(f"x{status}", 1, 0, "x:1", "", b"", status, MemberState(1, b""), "m1", "") for status in range(4)
    ]
    effects = news(bench.on(SyncRecords(records)))

    assert [item.name for item in effects if isinstance(item, MemberJoined)] == ["x0", "x1"]
    assert MemberSuspected("x1", 1, "m1", "") in effects
    assert news(bench.on(SyncRecords([MemberRecord("m1", 1, 0, "m1:1", "", b"", 3)]))) == [MemberLeft("m1", 1)]


def test_who_reads_in_a_record_that_it_is_dead_refutes(bench: Bench) -> None:
    record = MemberRecord("me", 100, 0, "me:1", "", b"", 2, None, "m1", "no answer")

    assert Refuted(1) in bench.on(SyncRecords([record]))


def test_one_who_joins_does_not_tell_the_group_what_the_group_told_it() -> None:
    bench = Bench(0)
    records = [MemberRecord(f"x{number}", 1, 0, "x:1", "", b"", 0) for number in range(5)]
    bench.on(SyncReply(Alive("seed", 1, 0, "seed:1"), [], records), sender="seed")
    assert {update.name for update in told(bench.run(SECOND))} <= {"seed", "me"}

    bench.on(
        SyncReply(Alive("seed", 1, 0, "seed:1"), [], [MemberRecord("late", 1, 0, "x:1", "", b"", 0)]), sender="seed"
    )
    assert "late" in {update.name for update in told(bench.run(SECOND))}


def test_large_views_are_sent_in_pages() -> None:
    bench = Bench(0)
    for number in range(300):
        state = MemberState(1, bytes(PAYLOAD_LIMIT_BYTES))
        bench.on(Ping(0, "x", 0, state), Alive(f"x{number}", 1, 0, "x:1", "", bytes(512)), sender=f"x{number}")
        bench.on(ProbeAck(0, state), sender=f"x{number}")
    effects = says(bench.on(SyncOffer(Alive("x0", 1, 0, "x:1"), None, b""), sender="x0"))

    assert [type(said.message) for said in effects] == [SyncReply, SyncRecords]
    first, second = effects
    assert isinstance(first.message, SyncReply) and isinstance(second.message, SyncRecords)
    assert len(first.message.records) + len(second.message.records) == 301


def test_syncs_come_ever_later_after_joining_and_later_in_larger_groups(bench: Bench) -> None:
    def gap(count: int) -> int:
        made = Bench(count)
        made.run(120 * SECOND)
        times = []
        for _ in range(3):
            while not any(isinstance(said.message, SyncOffer) for said in says(made.run(SECOND // 10))):
                pass
            times.append(made.now)
        return (times[2] - times[0]) // 2

    assert gap(4) <= CONFIG.sync_interval_ns * 5 // 4
    assert gap(60) > CONFIG.sync_interval_ns * 5 // 4
    early = Bench(4)
    assert any(isinstance(said.message, SyncOffer) for said in says(early.run(SECOND // 2)))


def test_who_leaves_tells_it_and_then_says_nothing_more(bench: Bench) -> None:
    effects = bench.core.leave(bench.now)
    assert MemberHasLeft("me", 100, 0) in told(effects)
    assert not bench.core.has_left

    assert bench.hear(suspect("me", boot=100)) == []
    assert bench.on(SyncOffer(Alive("m0", 1, 0, "m0:1"), None, b"")) == []
    assert bench.on(SyncReply(Alive("m0", 1, 0, "m0:1"), list(range(64)), [])) == []
    assert bench.on(ProbeAck(0), Alive("me", 7, 0, "x:1"), sender="stranger") == []
    assert says(bench.on(Ping(1, "me", 100)))[0].message == ProbeAck(1)
    bench.run(LEAVE_ROUNDS * CONFIG.gossip_interval_ns)
    assert bench.core.has_left
    assert bench.core.next_tick_at == NEVER
    assert bench.on(Ping(2, "me", 100)) == []
    assert bench.core.tick(bench.now) == []
    with pytest.raises(Invalid, match="^member me has left; start it anew to join again$"):
        bench.core.join(bench.now, [])


def test_who_is_alone_has_left_at_once() -> None:
    bench = Bench(0)
    bench.core.leave(bench.now)

    assert bench.core.has_left


def test_who_cannot_tell_everybody_leaves_all_the_same() -> None:
    bench = Bench(2)
    bench.core.leave(bench.now)
    bench.core._queue.push("huge", bytes(CONFIG.members_limit), 0)
    for number in range(400):
        bench.hear(Alive(f"x{number}", 1, 0, "x:1", "", bytes(500)))
    bench.run(LEAVE_ROUNDS * CONFIG.gossip_interval_ns)

    assert bench.core.has_left


def test_a_watcher_of_another_group_gets_the_state_and_a_few_members(bench: Bench) -> None:
    bench.core.set_state(bench.now, b"busy")
    bench.hear(suspect("m1"), Dead("m2", 1, 0, "m3", ""))

    (said,) = says(bench.on(WatchGroup(3, "me"), sender="gate", source="gate:1"))

    reply = said.message
    assert isinstance(reply, WatchReply) and (said.to, said.lane) == ("gate:1", Lane.DATAGRAM)
    assert (reply.sequence, reply.name, reply.boot, reply.living) == (3, "me", 100, 5)
    assert reply.state == MemberState(1, b"busy")
    assert sorted((peer.name, peer.status) for peer in reply.peers) == [("m0", 0), ("m1", 1), ("m3", 0), ("m4", 0)]
    assert says(bench.on(WatchGroup(3, "me", True), sender="gate"))[0].lane is Lane.STREAM
    assert bench.on(WatchGroup(3, "other"), sender="gate") == []
    assert bench.core.get("gate") is None


def test_what_rides_on_messages_of_another_group_is_not_believed(bench: Bench) -> None:
    assert bench.on(WatchReply(1, "x", 1, 1), MemberHasLeft("m1", 1, 0), Alive("x", 1, 0, "x:1"), sender="x") == []
    bench.on(WatchGroup(1, "me"), MemberHasLeft("m1", 1, 0), sender="x")

    assert bench.status("m1") is ALIVE
    assert bench.core.get("x") is None


def test_a_watcher_is_told_of_no_more_members_than_a_datagram_holds() -> None:
    bench = Bench(0)
    for number in range(30):
        bench.hear(Alive(f"{number}" + "x" * 100, 1, 0, "a" * 200))
    reply = says(bench.on(WatchGroup(3, "me"), sender="gate"))[0].message

    assert isinstance(reply, WatchReply)
    assert 1 < len(reply.peers) < 16
    assert len(encode(reply)) < DATAGRAM_LIMIT_BYTES - 160


def test_of_members_with_names_of_the_longest_characters_a_watcher_is_told_of_as_many_as_fit() -> None:
    bench = Bench(0)
    for number in range(3):
        bench.hear(Alive(f"{number}" + "𝄞" * 127, 1, 0, "a:1"))
    reply = says(bench.on(WatchGroup(3, "me"), sender="gate"))[0].message

    assert isinstance(reply, WatchReply)
    assert len(reply.peers) == 2
    assert len(encode(reply)) < DATAGRAM_LIMIT_BYTES - 160


def test_every_verdict_is_kept_with_its_accuser(bench: Bench) -> None:
    bench.hear(suspect(), Dead("m1", 1, 0, "m3", "gone"), Alive("m1", 1, 1, "m1:1"), MemberHasLeft("m2", 1, 0))

    assert [(item.verdict, item.subject, item.accuser, item.own) for item in bench.core.audit] == [
        ("suspect", "m1", "m2", False),
        ("dead", "m1", "m3", False),
        ("alive", "m1", "m1", False),
        ("left", "m2", "m2", False),
    ]


# Groups


class Group:
    """Members on one heap. Frames take 1 ms; `is_cut` says which are lost."""

    def __init__(self, count_: int, seed: int = 1, config: MembershipConfig = CONFIG) -> None:
        self.now = 0
        self.order = count()
        self.events: list[tuple[int, int, str, tuple[str, int, Send[MembershipMessage]] | None]] = []
        self.cores: dict[str, Membership] = {}
        self.config, self.seed = config, seed
        self.boots = count(1)
        self.is_cut: Callable[[str, str, Lane], bool] = lambda source, to, lane: False
        self.told: list[tuple[int, str, MembershipEffect]] = []
        for number in range(count_):
            self.start(f"n{number}")

    def start(self, name: str) -> None:
        boot = next(self.boots)
        core = self.cores[name] = Membership(
            name=name,
            boot=boot,
            address=name,
            group="g",
            config=self.config,
            rng=Random(f"{self.seed} {boot}"),
            now=self.now,
        )
        self.carry_out(name, core.join(self.now, ["n0", "n1"]))

    def carry_out(self, name: str, effects: list[MembershipEffect]) -> None:
        core = self.cores[name]
        for effect in effects:
            if isinstance(effect, Send):
                if not self.is_cut(name, effect.to, effect.lane):
                    entry = (name, core.me.boot, effect)
                    heappush(self.events, (self.now + 1_000_000, next(self.order), effect.to, entry))
            else:
                self.told.append((self.now, name, effect))
        heappush(self.events, (max(self.now, core.next_tick_at), next(self.order), name, None))

    def run(self, duration_ns: int) -> None:
        until = self.now + duration_ns
        while self.events and self.events[0][0] <= until:
            self.now, _, name, entry = heappop(self.events)
            core = self.cores.get(name)
            if core is None:
                continue
            if entry is not None:
                source, boot, said = entry
                message = decode(encode(said.message))
                self.carry_out(name, core.on_message(self.now, source, source, boot, message, said.updates, 0))
            elif core.next_tick_at <= self.now:
                self.carry_out(name, core.tick(self.now))
        self.now = until

    def agree(self) -> bool:
        return all(
            {member.name for member in core.alive() if member.status is ALIVE} == set(self.cores) - {name}
            for name, core in self.cores.items()
        )

    def lost(self) -> list[tuple[str, str]]:
        return [(name, item.name) for _, name, item in self.told if isinstance(item, MemberLost)]


def test_members_that_start_together_find_each_other() -> None:
    group = Group(12)
    group.run(SECOND * 3 // 2)

    assert group.agree()


def test_a_death_is_known_to_all_in_time_and_nobody_else_is_lost() -> None:
    group = Group(12)
    group.run(5 * SECOND)
    del group.cores["n7"]
    group.run(6 * SECOND)

    assert sorted(group.lost()) == sorted((name, "n7") for name in group.cores)


def test_a_partition_heals_also_when_both_sides_gave_each_other_up() -> None:
    group = Group(8)
    group.run(5 * SECOND)
    group.is_cut = lambda source, to, lane: (source < "n4") != (to < "n4")
    group.run(90 * SECOND)
    assert all(len(core.alive()) == 3 for core in group.cores.values())

    group.is_cut = lambda source, to, lane: False
    before = len(group.lost())
    group.run(60 * SECOND)

    assert group.agree()
    assert len(group.lost()) == before


def test_a_member_that_restarts_is_known_in_its_new_life_at_once() -> None:
    group = Group(8)
    group.run(5 * SECOND)
    group.start("n5")
    group.run(SECOND)

    assert group.agree()
    assert all(core.get("n5").boot == 9 for name, core in group.cores.items() if name != "n5")  # type: ignore[union-attr]


def test_blocked_datagrams_between_two_are_reported_by_each_once_and_cost_nobody_its_life() -> None:
    group = Group(6)
    group.run(5 * SECOND)
    group.is_cut = lambda source, to, lane: {source, to} == {"n2", "n3"} and lane is Lane.DATAGRAM
    group.run(40 * SECOND)

    blocked = [(name, item.name) for _, name, item in group.told if isinstance(item, DatagramsBlocked)]
    assert sorted(blocked) == [("n2", "n3"), ("n3", "n2")]
    assert group.lost() == []


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for seed in (1, 1, 2):
        group = Group(6, seed)
        group.run(3 * SECOND)
        del group.cores["n3"]
        group.run(5 * SECOND)
        histories.append(group.told)

    assert histories[0] == histories[1] != histories[2]


def test_a_member_that_keeps_refuting_is_given_more_time_when_others_agree(bench: Bench) -> None:
    waits = []
    for incarnation in range(1, 5):
        bench.hear(suspect(incarnation=incarnation - 1))
        member = bench.core.get("m1")
        assert member is not None and member.suspicion is not None
        for accuser in ("m3", "m4", "m5"):
            bench.hear(suspect(accuser=accuser, incarnation=incarnation - 1))
        waits.append(member.suspicion.expires_at - bench.now)
        bench.hear(Alive("m1", 1, incarnation, "at-m1"))

    assert waits[0] == waits[1] < waits[2] < waits[3]


# How it does


def test_a_member_that_is_doubted_is_probed_next_and_one_that_nobody_knows_is_not(bench: Bench) -> None:
    bench.core.doubt("nobody")
    bench.core.doubt("m4")

    pings = [said.message for said in says(bench.run(INTERVAL)) if isinstance(said.message, Ping)]

    assert pings[0].target == "m4"


@pytest.mark.parametrize(("score", "share"), [(3, 100), (4, 75), (6, 50), (8, 50)])
def test_the_worse_a_member_does_the_less_it_passes_on_at_a_time(score: int, share: int) -> None:
    bench = Bench()
    bench.run(30 * SECOND)
    bench.core.health.score = score
    bench.hear(*(Suspect(f"m{n}", 1, 0, "x", "r" * 100) for n in range(5)))
    for number in range(60):
        bench.hear(Alive(f"n{number}", 1, 0, "a" * 60))
    room = bench.core._room_bytes * share // 100

    rounds = [
        sum(map(len, said.updates))
        for said in says(bench.run(10 * SECOND, answering=False))
        if isinstance(said.message, Gossip) and said.updates
    ]

    assert room - 200 < max(rounds) <= room


def test_a_member_that_does_badly_answers_an_accusation_all_the_same() -> None:
    bench = Bench()
    bench.core.health.score = 8

    effects = bench.on(Ping(1, "me", 100), Suspect("me", 100, 0, "m1", "no answer"))

    (ack,) = [said for said in says(effects) if isinstance(said.message, ProbeAck)]
    assert any(isinstance(update, Alive) and update.name == "me" for update in map(decode_update, ack.updates or []))
