"""Which peers a node keeps connections to."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.peer_pool import (
    LATENCY_CHECK_EVERY,
    OUTCOMES_KEPT,
    Added,
    Evicted,
    EvictionReason,
    PeerPool,
    PoolConfig,
    PooledPeer,
    PoolNews,
    Promoted,
    RefreshDue,
    Tier,
)
from talka.errors import Invalid
from talka.units import HOUR, MILLISECOND, NEVER, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=80)
OWN = PooledPeer("own", "d1", "r1")


def near(count: int, prefix: str = "near") -> list[PooledPeer]:
    return [PooledPeer(f"{prefix}{number:02}", "d1", "r1") for number in range(count)]


def pool_of(peers: list[PooledPeer], config: PoolConfig | None = None, seed: int = 1) -> PeerPool:
    pool = PeerPool(OWN, "worker", Random(seed), config or PoolConfig())
    pool.set_peers(0, peers)
    return pool


def members(pool: PeerPool) -> list[str]:
    return [*pool.primaries, *pool.backups]


def fail(pool: PeerPool, now: int, peer: str, times: int = 4) -> list[PoolNews]:
    return [news for _ in range(times) for news in pool.failed(now, peer)]


def answer(pool: PeerPool, now: int, peer: str, latency_ns: int, times: int) -> list[PoolNews]:
    return [news for _ in range(times) for news in pool.succeeded(now, peer, latency_ns)]


def test_the_first_peers_are_connected_at_once_three_and_two() -> None:
    pool = PeerPool(OWN, "worker", Random(1))
    news = pool.set_peers(0, near(8))
    assert [type(one) for one in news] == [Added] * 5
    assert [one.is_primary for one in news if isinstance(one, Added)] == [True, True, True, False, False]
    assert [one.peer for one in news if isinstance(one, Added)] == members(pool)
    assert (len(pool.primaries), len(pool.backups), pool.additions) == (3, 2, 5)


def test_without_peers_there_is_nothing_to_do_and_nobody_to_ask() -> None:
    pool = pool_of([])
    assert pool.next_tick_at == NEVER
    assert pool.next_primary() is None
    assert pool.tick(HOUR) == []
    assert pool.set_peers(HOUR, near(1)) == [Added("near00", True)]


def test_a_node_is_not_a_peer_of_its_own() -> None:
    assert members(pool_of([OWN, *near(1)])) == ["near00"]


def test_requests_go_to_the_primaries_in_turn() -> None:
    pool = pool_of(near(8))
    asked = [pool.next_primary() for _ in range(6)]
    assert sorted(asked[:3], key=str) == sorted(pool.primaries)
    assert asked[:3] == asked[3:]


def test_peers_of_the_same_datacenter_are_enough() -> None:
    far = [PooledPeer(f"far{number}", "d9", "r9") for number in range(5)]
    pool = pool_of([*near(3), *far])
    assert sorted(members(pool)) == ["near00", "near01", "near02"]
    assert pool.tiers == [3, 0, 0]


def test_the_region_is_added_when_the_datacenter_has_too_few_and_then_everybody() -> None:
    region = [PooledPeer("region0", "d2", "r1")]
    far = [PooledPeer("far0", "d9", "r9")]
    pool = pool_of([*near(2), *region, *far])
    assert sorted(members(pool)) == ["near00", "near01", "region0"]
    pool = pool_of([*near(1), *region, *far])
    assert sorted(members(pool)) == ["far0", "near00", "region0"]
    assert pool.tiers == [1, 1, 1]


def test_two_peers_without_a_region_are_not_in_the_same_one() -> None:
    pool = PeerPool(PooledPeer("own", "d1"), "worker", Random(1), PoolConfig(min_peers=1))
    pool.set_peers(0, [PooledPeer("a", "d2")])
    assert pool.tiers == [0, 0, 1]


def test_peers_that_rest_do_not_count_as_enough() -> None:
    pool = pool_of([*near(3), PooledPeer("far0", "d9")])
    fail(pool, 0, pool.primaries[0])
    assert "far0" in pool.candidates(0)
    assert "far0" not in pool.candidates(30 * SECOND)


def test_the_candidates_are_the_first_eight_of_an_order_of_ones_own() -> None:
    peers = near(40)
    mine = pool_of(peers).candidates(0)
    assert len(mine) == 8
    assert mine == pool_of(list(reversed(peers)), seed=9).candidates(0)
    other = PeerPool(PooledPeer("other", "d1", "r1"), "worker", Random(1))
    other.set_peers(0, peers)
    role = PeerPool(OWN, "gate", Random(1))
    role.set_peers(0, peers)
    assert mine != other.candidates(0)
    assert mine != role.candidates(0)
    assert set(members(pool_of(peers))) <= set(mine)


def test_beyond_the_limit_the_farthest_peers_are_left_out() -> None:
    pool = pool_of(
        [PooledPeer("a", "d9"), PooledPeer("b", "d1", "r1"), PooledPeer("c", "d2", "r1")], PoolConfig(peers_limit=2)
    )
    assert sorted(members(pool)) == ["b", "c"]


def test_of_two_drawn_the_quicker_is_chosen() -> None:
    peers = near(6)
    pool = pool_of(peers)
    (outsider,) = [peer.name for peer in peers if peer.name not in members(pool)]
    joined = near(1, "slow")
    pool.set_peers(0, [*peers, *joined])
    answer(pool, 0, outsider, 5 * MILLISECOND, 1)
    answer(pool, 0, "slow00", 9 * MILLISECOND, 1)
    fail(pool, 0, pool.backups[0])
    assert Added(outsider, False) in pool.tick(pool.next_tick_at)


def test_a_peer_is_evicted_at_the_fourth_failure_in_a_row_and_a_backup_takes_over_at_once() -> None:
    pool = pool_of(near(8))
    victim, backups = pool.primaries[1], pool.backups
    assert fail(pool, SECOND, victim, 3) == []
    news = pool.failed(SECOND, victim)
    assert news == [Evicted(victim, EvictionReason.FAILURES), Promoted(min(backups))]
    assert len(pool.primaries) == 3
    assert len(pool.backups) == 1
    assert pool.evictions[EvictionReason.FAILURES] == 1
    assert pool.promotions == 1


def test_an_answer_between_them_keeps_failures_from_being_in_a_row() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    fail(pool, 0, peer, 3)
    answer(pool, 0, peer, MILLISECOND, 1)
    assert fail(pool, 0, peer, 3) == []


def test_the_quicker_backup_is_promoted() -> None:
    pool = pool_of(near(8))
    first, second = pool.backups
    answer(pool, 0, first, 9 * MILLISECOND, 1)
    answer(pool, 0, second, 2 * MILLISECOND, 1)
    assert Promoted(second) in fail(pool, 0, pool.primaries[0])


def test_a_vacancy_is_filled_after_a_tenth_to_half_a_second() -> None:
    pauses = []
    for seed in range(50):
        pool = pool_of(near(8), seed=seed)
        victim = pool.primaries[0]
        fail(pool, SECOND, victim)
        pauses.append(pool.next_tick_at - SECOND)
        assert pool.tick(pool.next_tick_at - 1) == []
        (news,) = pool.tick(pool.next_tick_at)
        assert isinstance(news, Added)
        assert not news.is_primary
        assert news.peer != victim
        assert len(members(pool)) == 5
    assert 100 * MILLISECOND <= min(pauses) < 150 * MILLISECOND
    assert 450 * MILLISECOND < max(pauses) <= 500 * MILLISECOND


class Least(Random):
    """Of every range the first."""

    def randint(self, a: int, b: int) -> int:
        return a


def test_the_shortest_pause_before_a_vacancy_is_filled_is_a_tenth_of_a_second() -> None:
    pool = PeerPool(OWN, "worker", Least(1))
    pool.set_peers(0, near(8))

    fail(pool, SECOND, pool.primaries[0])

    assert pool.next_tick_at == SECOND + 100 * MILLISECOND


def test_a_second_eviction_does_not_put_off_the_filling() -> None:
    pool = pool_of(near(12))
    fail(pool, 0, pool.primaries[0])
    due = pool.next_tick_at
    fail(pool, 50 * MILLISECOND, pool.primaries[0])
    assert pool.next_tick_at == due
    assert len(pool.tick(due)) == 2


def test_a_failing_backup_is_evicted_too_and_nobody_promoted() -> None:
    pool = pool_of(near(8))
    victim = pool.backups[0]
    assert fail(pool, 0, victim) == [Evicted(victim, EvictionReason.FAILURES)]


def test_more_than_one_error_in_twenty_evicts_once_there_are_enough_samples() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    assert fail(pool, 0, peer, 1) == []  # All of one: too few to mean anything.
    assert answer(pool, 0, peer, MILLISECOND, 17) == []
    assert fail(pool, 0, peer, 1) == []  # 2 of 19.
    assert fail(pool, 0, peer, 1)[0] == Evicted(peer, EvictionReason.ERRORS)  # 3 of 20.
    assert pool.evictions[EvictionReason.ERRORS] == 1


def test_one_error_in_twenty_is_forgiven() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    answer(pool, 0, peer, MILLISECOND, 19)
    assert fail(pool, 0, peer, 1) == []
    assert pool.error_rate(peer) == 0.05


def test_the_error_rate_forgets_what_is_long_ago() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    fail(pool, 0, peer, 3)
    answer(pool, 0, peer, MILLISECOND, OUTCOMES_KEPT - 1)
    assert pool.error_rate(peer) == 0.01
    answer(pool, 0, peer, MILLISECOND, 1)
    assert pool.error_rate(peer) == 0.0
    assert fail(pool, 0, peer, 2) == []


def test_the_mean_latency_follows_by_a_fifth() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    assert pool.latency_ns(peer) == 0.0
    pool.succeeded(0, peer, 1000)
    assert pool.latency_ns(peer) == 1000.0
    pool.succeeded(0, peer, 2000)
    assert pool.latency_ns(peer) == pytest.approx(1200.0)


def busy_pool(peers: list[PooledPeer], config: PoolConfig | None = None) -> PeerPool:
    """Every member of the pool has answered in 10 ms."""
    pool = pool_of(peers, config)
    for name in members(pool):
        assert answer(pool, 0, name, 10 * MILLISECOND, LATENCY_CHECK_EVERY) == []
    return pool


def test_a_peer_three_times_slower_than_the_slowest_answers_of_the_others_is_evicted() -> None:
    pool = busy_pool(near(8))
    victim = pool.primaries[0]
    news = answer(pool, 0, victim, 100 * MILLISECOND, LATENCY_CHECK_EVERY)
    assert Evicted(victim, EvictionReason.SLOW) in news
    assert pool.evictions[EvictionReason.SLOW] == 1


def test_a_peer_is_compared_with_the_others_once_in_so_many_answers() -> None:
    pool = busy_pool(near(8))
    victim = pool.primaries[0]
    assert answer(pool, 0, victim, 100 * MILLISECOND, LATENCY_CHECK_EVERY - 1) == []
    assert Evicted(victim, EvictionReason.SLOW) in answer(pool, 0, victim, 100 * MILLISECOND, 1)


def test_a_peer_twice_as_slow_as_the_others_stays() -> None:
    pool = busy_pool(near(8))
    assert answer(pool, 0, pool.primaries[0], 20 * MILLISECOND, 10 * LATENCY_CHECK_EVERY) == []


def test_the_baseline_is_the_99th_percentile_and_not_the_slowest_answer() -> None:
    # 4 others with 64 latencies each: 256, of which 2 lie above the 99th percentile.
    pool = busy_pool(near(8))
    victim, other, *_ = members(pool)
    for name in members(pool)[1:]:
        answer(pool, 0, name, 10 * MILLISECOND, 64)
    answer(pool, 0, other, 50 * MILLISECOND, 2)
    assert Evicted(victim, EvictionReason.SLOW) in answer(pool, 0, victim, 100 * MILLISECOND, LATENCY_CHECK_EVERY)

    pool = busy_pool(near(8))
    for name in members(pool)[1:]:
        answer(pool, 0, name, 10 * MILLISECOND, 64)
    answer(pool, 0, other, 50 * MILLISECOND, 3)
    assert answer(pool, 0, victim, 100 * MILLISECOND, LATENCY_CHECK_EVERY) == []


def test_slow_peers_do_not_excuse_themselves() -> None:
    pool = busy_pool(near(8))
    victim = pool.primaries[0]
    assert len(answer(pool, 0, victim, 100 * MILLISECOND, 200)) > 0


def test_with_too_few_answers_of_others_nobody_is_slow() -> None:
    pool = pool_of(near(8))
    answer(pool, 0, pool.primaries[1], MILLISECOND, 15)
    assert answer(pool, 0, pool.primaries[0], HOUR, 5 * LATENCY_CHECK_EVERY) == []


def test_a_far_peer_is_far_and_not_slow() -> None:
    config = PoolConfig(min_peers=5)
    pool = busy_pool([*near(4), PooledPeer("far0", "d9")], config)
    assert "far0" in members(pool)
    assert answer(pool, 0, "far0", 200 * MILLISECOND, 5 * LATENCY_CHECK_EVERY) == []


def test_a_slow_peer_stays_when_there_is_nobody_else() -> None:
    pool = busy_pool(near(2))
    slow, quick_one = pool.primaries
    answer(pool, 0, quick_one, 10 * MILLISECOND, LATENCY_CHECK_EVERY)
    assert answer(pool, 0, slow, SECOND, 5 * LATENCY_CHECK_EVERY) == []
    assert len(pool.primaries) == 2
    pool.set_peers(0, near(3))
    assert Evicted(slow, EvictionReason.SLOW) in answer(pool, 0, slow, SECOND, LATENCY_CHECK_EVERY)


def test_an_evicted_peer_rests_and_may_then_be_chosen_again() -> None:
    pool = pool_of(near(5))
    victim = pool.primaries[0]
    fail(pool, 0, victim)
    assert victim not in pool.candidates(30 * SECOND - 1)
    assert 30 * SECOND + 100 * MILLISECOND <= pool.next_tick_at <= 30 * SECOND + 500 * MILLISECOND
    assert pool.tick(pool.next_tick_at) == [Added(victim, False)]
    assert fail(pool, HOUR, victim, 3) == []  # The old failures are forgiven.


def test_the_only_peer_is_tried_again_soon_though_it_failed() -> None:
    pool = pool_of(near(1))
    assert fail(pool, 0, "near00") == [Evicted("near00", EvictionReason.FAILURES)]
    assert pool.next_primary() is None
    assert pool.next_tick_at <= 500 * MILLISECOND
    assert pool.tick(pool.next_tick_at) == [Added("near00", True)]


def test_a_peer_that_is_no_longer_known_leaves_and_a_backup_takes_over() -> None:
    pool = pool_of(near(5))
    gone, backups = pool.primaries[0], pool.backups
    rest = [peer for peer in near(5) if peer.name not in (gone, backups[0])]
    assert pool.set_peers(0, rest) == [
        Evicted(gone, EvictionReason.GONE),
        Evicted(backups[0], EvictionReason.GONE),
        Promoted(backups[1]),
    ]
    assert pool.evictions[EvictionReason.GONE] == 2
    assert pool.next_tick_at >= HOUR  # Nobody is left to fill the vacancies.


def test_a_peer_that_is_new_fills_a_vacancy_after_the_pause() -> None:
    pool = pool_of(near(2))
    assert pool.set_peers(SECOND, near(3)) == []
    assert pool.tick(pool.next_tick_at) == [Added("near02", True)]


def test_what_is_known_of_a_peer_survives_a_new_list() -> None:
    pool = pool_of(near(8))
    peer = pool.primaries[0]
    answer(pool, 0, peer, 1000, 1)
    pool.set_peers(0, near(8))
    assert pool.latency_ns(peer) == 1000.0


def test_a_peer_may_move_to_another_datacenter() -> None:
    pool = pool_of(near(4), PoolConfig(primaries=1, backups=0, candidates=1))
    moved = [PooledPeer("near00", "d9"), *near(4)[1:]]
    pool.set_peers(0, moved)
    assert "near00" not in pool.candidates(0)


def test_strangers_and_peers_outside_the_pool_change_nothing_in_it() -> None:
    peers = near(6)
    pool = pool_of(peers)
    (outsider,) = [peer.name for peer in peers if peer.name not in members(pool)]
    before = members(pool)
    assert fail(pool, 0, "stranger", 9) == []
    assert answer(pool, 0, "stranger", HOUR, 40) == []
    assert fail(pool, 0, outsider, 9) == []
    assert answer(pool, 0, outsider, HOUR, 40) == []
    pool.reconnected(0, outsider)
    assert members(pool) == before
    assert (pool.latency_ns("stranger"), pool.error_rate("stranger")) == (0.0, 0.0)


def test_an_old_connection_is_due_for_refresh_after_an_hour_and_a_bit() -> None:
    pool = pool_of(near(5))
    due: dict[str, int] = {}
    while len(due) < 5:
        at = pool.next_tick_at
        for news in pool.tick(at):
            assert isinstance(news, RefreshDue)
            due[news.peer] = at
    assert sorted(due) == sorted(members(pool))
    assert all(HOUR <= at <= HOUR + HOUR // 10 for at in due.values())
    assert len(set(due.values())) == 5  # Not all at once.
    assert HOUR * 2 <= pool.next_tick_at  # One that is not renewed is named again.


def test_a_new_connection_is_young_again() -> None:
    pool = pool_of(near(1))
    pool.reconnected(HOUR - 1, "near00")
    assert pool.tick(HOUR + HOUR // 10) == []
    assert pool.next_tick_at >= 2 * HOUR - 1


def test_an_unhealthy_peer_falls_in_the_order_and_never_out_of_it() -> None:
    peers = near(20)
    config = PoolConfig(samples_min=100, failures_limit=1000)
    pool = pool_of(peers, config)
    best = pool.candidates(0)[0]
    fail(pool, 0, best, 50)
    assert pool.candidates(0)[0] != best
    small = pool_of(near(4), config)
    worst = small.candidates(0)[0]
    fail(small, 0, worst, 50)
    assert worst in small.candidates(0)


def test_a_slower_peer_falls_in_the_order_before_it_is_evicted() -> None:
    fell = 0
    for number in range(40):
        pool = busy_pool(near(8, prefix=f"{number}-"))
        order = pool.candidates(0)
        slow = pool.primaries[0]
        answer(pool, 0, slow, 28 * MILLISECOND, LATENCY_CHECK_EVERY)
        changed = pool.candidates(0)
        assert [name for name in order if name != slow] == [name for name in changed if name != slow]
        assert changed.index(slow) >= order.index(slow)
        fell += changed.index(slow) > order.index(slow)
    assert fell > 5


def test_a_pool_that_lost_its_last_peer_does_not_wait_until_the_others_have_rested() -> None:
    pool = PeerPool(OWN, "worker", Random(1))
    first, second = near(2)
    pool.set_peers(0, [first, second])
    fail(pool, 0, first.name)
    assert pool.next_tick_at > SECOND, "one is left: the other may rest"

    fail(pool, 0, second.name)

    assert pool.next_tick_at <= 500 * MILLISECOND


events = st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(0, 3), st.integers(0, 11)), max_size=120)


@quick
@given(events, st.integers(0, 1000))
def test_the_news_always_tell_what_the_pool_is(steps: list[tuple[int, int, int]], seed: int) -> None:
    """Whoever follows the news knows primaries and backups, whatever happens."""
    peers = [*near(6), *(PooledPeer(f"far{number}", "d9") for number in range(6))]
    names = [peer.name for peer in peers]
    pool = PeerPool(OWN, "worker", Random(seed))
    primaries: list[str] = []
    backups: list[str] = []
    now = 0

    def follow(all_news: list[PoolNews]) -> None:
        for news in all_news:
            match news:
                case Added(peer, is_primary):
                    assert peer not in primaries + backups
                    (primaries if is_primary else backups).append(peer)
                case Promoted(peer):
                    backups.remove(peer)
                    primaries.append(peer)
                case Evicted(peer):
                    (primaries if peer in primaries else backups).remove(peer)
                case RefreshDue(peer):
                    assert peer in primaries + backups

    follow(pool.set_peers(now, peers))
    for step_ns, kind, number in steps:
        now += step_ns
        if kind == 0:
            follow(pool.set_peers(now, peers[: number + 1]))
        elif kind == 1:
            follow(fail(pool, now, names[number]))
        elif kind == 2:
            follow(answer(pool, now, names[number], (number + 1) ** 3 * MILLISECOND, 20))
        else:
            follow(pool.tick(now))
        assert (tuple(primaries), tuple(backups)) == (pool.primaries, pool.backups)
        assert len(primaries) <= 3
        assert len(backups) <= 2
        assert len(primaries) == 3 or not backups
        assert pool.additions - sum(pool.evictions.values()) == len(primaries + backups)
        assert sum(pool.tiers) == pool.additions
        if not primaries:
            assert pool.next_tick_at <= now + 500 * MILLISECOND


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"primaries": 0}, "primaries is 0"),
        ({"min_peers": 0}, "min_peers is 0"),
        ({"peers_limit": 0}, "peers_limit is 0"),
        ({"backups": -1}, "backups is -1"),
        ({"candidates": 4}, "candidates is 4; give at least primaries"),
        ({"samples_min": 101}, "samples_min is 101"),
        ({"alpha": 0.0}, "give alpha above 0"),
        ({"error_rate_limit": 1.0}, "give alpha above 0"),
        ({"slow_factor": 1.0}, "give alpha above 0"),
        ({"replenish_min_ns": 2, "replenish_max_ns": 1}, "replenish_min_ns must be"),
        ({"replenish_min_ns": -1}, "replenish_min_ns must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_configuration_that_makes_no_sense_is_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        PoolConfig(**changes)


def test_tiers_are_ordered_from_near_to_far() -> None:
    assert list(Tier) == [Tier.DATACENTER, Tier.REGION, Tier.ANY]
