from random import Random

import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.federation import (
    TARGETS_LIMIT,
    FederatedProber,
    FederationEffect,
    GroupMemberReachable,
    GroupMemberUnreachable,
    GroupStateLearned,
)
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.presets import PRESETS
from talka.cluster.safeguards import ALL
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.membership import CHANNEL, MemberState, PeerAddress, WatchGroup, WatchReply

CONFIG = PRESETS["default"]


class Bench:
    def __init__(self) -> None:
        self.health = LocalHealth(CONFIG, ALL)
        self.prober = FederatedProber(config=CONFIG, health=self.health, rng=Random(1))
        self.now = 0

    def tick(self) -> list[FederationEffect]:
        self.now = self.prober.next_tick_at
        return self.prober.tick(self.now)

    def ask(self) -> WatchGroup:
        (say,) = [effect for effect in self.tick() if isinstance(effect, Send)]
        assert isinstance(say.message, WatchGroup)
        return say.message

    def answer(self, sequence: int, boot: int = 5, state: MemberState | None = None) -> list[FederationEffect]:
        reply = WatchReply(sequence, "m1", boot, 3, state, [PeerAddress("m2", 1, "m2:1", 0)])
        return self.prober.on_reply(self.now, "dc", "m1", boot, reply)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.prober.watch(0, "dc", "m1", "m1:1")
    return made


def test_a_target_is_asked_once_per_interval_from_a_random_moment_on(bench: Bench) -> None:
    first = bench.prober.next_tick_at
    assert 0 < first < CONFIG.probe_interval_ns

    assert bench.tick() == [Send(CHANNEL, "m1:1", WatchGroup(1, "m1", False), Lane.DATAGRAM, [])]
    assert bench.prober.next_tick_at == first + CONFIG.probe_interval_ns


def test_a_tick_before_its_time_asks_nobody(bench: Bench) -> None:
    assert bench.prober.tick(0) == []


def test_the_first_answer_makes_it_reachable_and_tells_its_state_and_peers(bench: Bench) -> None:
    sequence = bench.ask().sequence

    assert bench.answer(sequence, state=MemberState(2, b"busy")) == [
        GroupMemberReachable("dc", "m1", 5),
        GroupStateLearned("dc", "m1", 2, b"busy"),
    ]
    (target,) = bench.prober.targets()
    assert (target.living, target.peers) == (3, [PeerAddress("m2", 1, "m2:1", 0)])


def test_reachable_is_told_once_and_a_state_only_when_it_is_later(bench: Bench) -> None:
    bench.answer(bench.ask().sequence, state=MemberState(2, b"busy"))

    assert bench.answer(bench.ask().sequence, state=MemberState(1, b"old")) == []
    assert bench.answer(bench.ask().sequence, state=MemberState(3, b"new")) == [
        GroupStateLearned("dc", "m1", 3, b"new")
    ]


def test_watches_in_a_row_without_answer_make_it_unreachable_once_and_every_other_goes_over_the_stream(
    bench: Bench,
) -> None:
    bench.answer(bench.ask().sequence)
    effects = [effect for _ in range(6) for effect in bench.tick()]

    news = [effect for effect in effects if not isinstance(effect, Send)]
    assert news == [GroupMemberUnreachable("dc", "m1", 5)]
    asked = [effect for effect in effects if isinstance(effect, Send)]
    assert [say.lane for say in asked] == [Lane.DATAGRAM, Lane.STREAM] * 3
    assert [isinstance(say.message, WatchGroup) and say.message.stream for say in asked] == [False, True] * 3
    assert effects.index(news[0]) == CONFIG.suspicion_multiplier


def test_one_that_never_answered_is_unreachable_too_and_then_reachable_again(bench: Bench) -> None:
    effects = [effect for _ in range(5) for effect in bench.tick()]
    assert GroupMemberUnreachable("dc", "m1", 0) in effects

    assert bench.answer(bench.ask().sequence) == [GroupMemberReachable("dc", "m1", 5)]


def test_another_life_is_told_although_the_name_was_reachable(bench: Bench) -> None:
    bench.answer(bench.ask().sequence, state=MemberState(9, b"old life"))

    assert bench.answer(bench.ask().sequence, boot=6, state=MemberState(1, b"new life")) == [
        GroupMemberReachable("dc", "m1", 6),
        GroupStateLearned("dc", "m1", 1, b"new life"),
    ]


def test_a_slow_answer_counts_and_one_answered_before_or_never_asked_does_not(bench: Bench) -> None:
    first = bench.ask().sequence
    second = bench.ask().sequence

    assert bench.answer(second + 1) == []
    assert bench.answer(first) == [GroupMemberReachable("dc", "m1", 5)]
    assert bench.answer(first, boot=6) == []
    assert bench.prober.targets()[0].boot == 5


def test_nobody_is_found_unreachable_while_this_member_itself_is_late(bench: Bench) -> None:
    effects = []
    for _ in range(8):
        bench.health.handled(bench.prober.next_tick_at, SECOND)
        effects += bench.tick()

    assert all(isinstance(effect, Send) for effect in effects)


def test_a_member_in_bad_health_asks_less_often(bench: Bench) -> None:
    bench.health.refuted()
    bench.tick()

    assert bench.prober.next_tick_at == bench.now + 2 * CONFIG.probe_interval_ns


def test_answers_of_those_nobody_watches_are_ignored(bench: Bench) -> None:
    sequence = bench.ask().sequence

    assert bench.prober.on_reply(bench.now, "elsewhere", "m1", 5, WatchReply(sequence, "m1", 5, 1)) == []


def test_a_forgotten_target_is_asked_no_more(bench: Bench) -> None:
    bench.prober.forget("dc", "m1")
    bench.prober.forget("dc", "m1")

    assert bench.tick() == []
    assert bench.prober.next_tick_at == NEVER


def test_a_target_watched_again_has_its_new_address_and_is_not_asked_twice(bench: Bench) -> None:
    bench.prober.watch(0, "dc", "m1", "m1:2")

    assert [effect.to for effect in bench.tick() if isinstance(effect, Send)] == ["m1:2"]
    assert len(bench.prober.targets()) == 1


def test_targets_are_limited(bench: Bench) -> None:
    for number in range(TARGETS_LIMIT - 1):
        bench.prober.watch(0, "dc", f"x{number}", "x")

    with pytest.raises(Invalid, match="^late of dc cannot be watched: one member watches at most 256 others$"):
        bench.prober.watch(0, "dc", "late", "x")
