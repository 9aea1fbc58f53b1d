"""Which of several peers a node asks."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.peer_pool import PeerPool, Place, PoolConfig, PooledPeer, Tier, tier_of
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=80)
HERE = Place("z1", "d1", "r1")
OWN = PooledPeer("own", HERE)
NEXT_ZONE = Place("z2", "d1", "r1")
NEXT_DATACENTER = Place("z1", "d2", "r1")
FAR = Place("z1", "d1", "r2")


def peers_in(place: Place, count: int, prefix: str) -> list[PooledPeer]:
    return [PooledPeer(f"{prefix}{number:02}", place) for number in range(count)]


def pool_of(
    peers: list[PooledPeer], config: PoolConfig | None = None, seed: int = 1, own: PooledPeer = OWN
) -> PeerPool:
    pool = PeerPool(own, "worker", Random(seed), config or PoolConfig())
    pool.set_peers(peers)
    return pool


def chosen(pool: PeerPool, now: int) -> str:
    name = pool.choose(now)
    assert name is not None
    return name


def answer(pool: PeerPool, now: int, peer: str, latency_ns: int, times: int = 1) -> None:
    for _ in range(times):
        pool.succeeded(now, peer, now - latency_ns)


@pytest.mark.parametrize(
    ("own", "other", "tier"),
    [
        (HERE, HERE, Tier.ZONE),
        (HERE, NEXT_ZONE, Tier.DATACENTER),
        (HERE, Place("", "d1", "r1"), Tier.DATACENTER),
        (HERE, Place("z1", "d1"), Tier.ZONE),
        (HERE, NEXT_DATACENTER, Tier.REGION),
        (HERE, FAR, Tier.ANY),
        (HERE, Place("z1", "d2"), Tier.ANY),
        (HERE, Place(), Tier.ANY),
        (Place(), Place(), Tier.DATACENTER),
        (Place("z1"), Place("z1"), Tier.ZONE),
        (Place("z1"), Place("z2"), Tier.DATACENTER),
        (Place("", "d1"), Place("", "d2"), Tier.ANY),
    ],
)
def test_a_zone_counts_within_its_datacenter_and_what_nobody_said_is_not_the_same(
    own: Place, other: Place, tier: Tier
) -> None:
    assert tier_of(own, other) is tier
    assert tier_of(other, own) is tier


def test_with_nobody_known_nobody_is_chosen() -> None:
    pool = pool_of([OWN])
    assert (len(pool), pool.choose(0), pool.order(0), pool.due(0)) == (0, None, [], [])
    assert pool.next_awake_at(0) == NEVER
    assert pool.latency_ns("own") == 0
    pool.failed(0, "own", 0)
    pool.succeeded(0, "own", 0)
    assert (pool.failures, pool.current) == (1, "")


def test_the_nearest_are_asked_first() -> None:
    pool = pool_of(
        [
            *peers_in(FAR, 3, "a"),
            *peers_in(NEXT_DATACENTER, 3, "b"),
            *peers_in(NEXT_ZONE, 3, "c"),
            *peers_in(HERE, 3, "d"),
        ]
    )
    assert [name[0] for name in pool.order(0)] == [*"dddcccbbbaaa"]
    assert pool.tier(chosen(pool, 0)) is Tier.ZONE


def test_it_stays_with_the_peer_that_does_well() -> None:
    pool = pool_of(peers_in(HERE, 8, "p"))
    first = chosen(pool, 0)
    for second in range(1, 50):
        answer(pool, second * SECOND, first, 5 * MILLISECOND)
        assert chosen(pool, second * SECOND) == first
    assert (pool.switches, pool.failures, pool.current) == (0, 0, first)
    assert pool.latency_ns(first) == 5 * MILLISECOND


def test_one_that_fails_rests_and_another_as_near_is_asked_from_then_on() -> None:
    pool = pool_of([*peers_in(HERE, 2, "near"), *peers_in(FAR, 2, "far")])
    first = chosen(pool, 0)
    pool.failed(0, first, 0)

    second = chosen(pool, 0)

    assert {first, second} == {"near00", "near01"}
    assert chosen(pool, 60 * SECOND) == second, "it has no reason to go back"
    assert (pool.switches, pool.failures) == (1, 1)


def test_where_none_that_is_near_is_left_a_farther_one_is_asked_until_a_near_one_has_rested() -> None:
    pool = pool_of([*peers_in(HERE, 1, "near"), *peers_in(NEXT_ZONE, 1, "next"), *peers_in(FAR, 1, "far")])
    assert chosen(pool, 0) == "near00"
    pool.failed(0, "near00", 0)
    assert chosen(pool, 0) == "next00"
    pool.failed(0, "next00", 0)
    assert chosen(pool, 0) == "far00"

    later = pool.next_awake_at(0)

    assert 500 * MILLISECOND <= later <= 625 * MILLISECOND
    assert chosen(pool, later - 1) == "far00"
    assert chosen(pool, SECOND) == "near00"
    assert pool.switches == 3


def test_the_rest_grows_with_each_failure_in_a_row_up_to_its_cap_and_an_answer_ends_it() -> None:
    pool = pool_of(peers_in(HERE, 1, "p"))
    rests = []
    now = 0
    for _ in range(9):
        pool.failed(now, "p00", now)
        rests.append(pool.next_awake_at(now) - now)
        now = pool.next_awake_at(now)
    assert all(
        base <= rest <= base * 1.25 for base, rest in zip((SECOND // 2, SECOND, 2 * SECOND), rests, strict=False)
    )
    assert 30 * SECOND <= rests[-1] <= 37.5 * SECOND

    pool.failed(now, "p00", now)
    answer(pool, now, "p00", SECOND)
    assert pool.next_awake_at(now) == NEVER
    pool.failed(now, "p00", now)
    assert pool.next_awake_at(now) - now <= 625 * MILLISECOND


def test_several_questions_that_one_death_ends_are_one_failure() -> None:
    pool = pool_of(peers_in(HERE, 2, "p"))
    for _ in range(10):
        pool.failed(SECOND, "p00", SECOND - 1)
    assert pool.next_awake_at(SECOND) - SECOND <= 625 * MILLISECOND
    assert pool.failures == 10


def test_where_all_rest_they_are_asked_in_turn_by_who_has_rested_longest() -> None:
    pool = pool_of(peers_in(HERE, 3, "p"))
    asked = []
    for now in range(6):
        asked.append(chosen(pool, now))
        pool.failed(now, asked[-1], now)
    assert sorted(asked[:3]) == ["p00", "p01", "p02"]
    assert sorted(asked[3:]) == ["p00", "p01", "p02"]
    order = pool.order(6)
    assert sorted(order) == ["p00", "p01", "p02"]
    assert order[0] == chosen(pool, 6)


def test_those_that_rest_come_last_in_the_order() -> None:
    pool = pool_of([*peers_in(HERE, 3, "near"), *peers_in(FAR, 1, "far")])
    pool.failed(0, "near01", 0)
    assert pool.order(0)[-2:] == ["far00", "near01"]
    assert "near01" not in pool.due(0)


def test_of_two_that_are_as_near_the_quicker_one_is_chosen() -> None:
    for seed in range(20):
        pool = pool_of(peers_in(HERE, 2, "p"), seed=seed)
        answer(pool, 0, "p00", 50 * MILLISECOND)
        answer(pool, 0, "p01", 5 * MILLISECOND)
        assert chosen(pool, 0) == "p01"


def test_nodes_spread_over_peers_that_are_as_near() -> None:
    peers = peers_in(HERE, 4, "p")
    counts = Counter(
        chosen(pool_of(peers, seed=number, own=PooledPeer(f"w{number}", HERE)), 0) for number in range(400)
    )
    assert all(70 <= count <= 130 for count in counts.values()), counts


def test_one_that_is_slow_beside_another_as_near_is_left() -> None:
    pool = pool_of(peers_in(HERE, 2, "p"))
    other = chosen(pool, 0)
    answer(pool, 0, other, 5 * MILLISECOND, times=20)
    pool.failed(0, other, 0)
    slow = chosen(pool, 0)
    answer(pool, SECOND, slow, 50 * MILLISECOND, times=19)
    assert (chosen(pool, SECOND), pool.slow) == (slow, 0), "too few answers to say so"

    answer(pool, SECOND, slow, 50 * MILLISECOND)

    assert (chosen(pool, SECOND), pool.slow, pool.failures) == (other, 1, 1)


def test_a_far_peer_is_far_and_not_slow() -> None:
    pool = pool_of([*peers_in(HERE, 1, "near"), *peers_in(FAR, 1, "far")])
    assert chosen(pool, 0) == "near00"
    answer(pool, 0, "near00", MILLISECOND, times=20)
    pool.failed(0, "near00", 0)
    assert chosen(pool, 0) == "far00"
    answer(pool, 0, "far00", 200 * MILLISECOND, times=40)
    assert (chosen(pool, 0), pool.slow) == ("far00", 0)


def test_slow_is_better_than_one_that_fails() -> None:
    pool = pool_of(peers_in(HERE, 2, "p"))
    answer(pool, 0, "p00", MILLISECOND, times=20)
    pool.failed(0, "p00", 0)
    assert chosen(pool, 0) == "p01"
    answer(pool, 0, "p01", SECOND, times=40)
    assert (chosen(pool, 0), pool.slow) == ("p01", 0)


def test_the_mean_latency_follows_the_latest_answers() -> None:
    pool = pool_of(peers_in(HERE, 1, "p"))
    answer(pool, 0, "p00", 10)
    answer(pool, 0, "p00", 20)
    assert pool.latency_ns("p00") == 12.0


def test_one_that_is_known_no_more_is_not_asked_and_its_account_is_forgotten() -> None:
    pool = pool_of(peers_in(HERE, 2, "p"))
    first = chosen(pool, 0)
    answer(pool, 0, first, MILLISECOND)
    pool.set_peers([peer for peer in peers_in(HERE, 2, "p") if peer.name != first])
    assert pool.current == ""
    assert chosen(pool, 0) != first
    pool.set_peers(peers_in(HERE, 2, "p"))
    assert pool.latency_ns(first) == 0
    assert pool.switches == 0, "whom it had was taken from it"


def test_one_that_is_said_to_stand_elsewhere_now_keeps_its_account() -> None:
    pool = pool_of(peers_in(FAR, 1, "p"))
    answer(pool, 0, "p00", MILLISECOND)
    pool.set_peers(peers_in(HERE, 1, "p"))
    assert (pool.tier("p00"), pool.latency_ns("p00")) == (Tier.ZONE, MILLISECOND)


def test_of_too_many_peers_the_farthest_are_left_out() -> None:
    pool = pool_of([*peers_in(FAR, 5, "a"), *peers_in(HERE, 3, "z")], PoolConfig(peers_limit=4))
    assert sorted(pool.order(0)) == ["a00", "z00", "z01", "z02"]


places = st.sampled_from([HERE, NEXT_ZONE, NEXT_DATACENTER, FAR])
steps = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.sampled_from(["fail", "answer", "know"]), st.integers(1, 8)))


@quick
@given(st.lists(places, min_size=8, max_size=8), steps, st.integers(0, 1000))
def test_somebody_is_always_chosen_and_stays_while_it_does_well_and_nobody_nearer_can_be_asked(
    stand: list[Place], happened: list[tuple[int, str, int]], seed: int
) -> None:
    peers = [PooledPeer(f"p{number}", place) for number, place in enumerate(stand)]
    pool = pool_of(peers, PoolConfig(samples_min=10_000), seed=seed)
    now = 0
    for step_ns, what, number in happened:
        before, now = pool.choose(now), now + step_ns
        assert before is not None
        if what == "fail":
            pool.failed(now, before, now)
        elif what == "answer":
            answer(pool, now, before, number * MILLISECOND)
        else:
            pool.set_peers(peers[:number])
        due, after = pool.due(now), pool.choose(now)
        assert after is not None
        assert pool.order(now)[0] == after
        assert sorted(pool.order(now)) == sorted(set(pool.order(now)))
        assert len(pool.order(now)) == len(pool)
        if due:
            nearest = min(pool.tier(name) for name in due)
            assert pool.tier(after) is nearest
            if before in due and pool.tier(before) is nearest:
                assert after == before
        else:
            assert pool.next_awake_at(now) < NEVER


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"candidates": 0}, "candidates is 0"),
        ({"samples_min": 0}, "samples_min is 0"),
        ({"peers_limit": 0}, "peers_limit is 0"),
        ({"alpha": 0.0}, "give alpha above 0"),
        ({"slow_factor": 1.0}, "give alpha above 0"),
    ],
)
def test_a_pool_that_could_not_work_is_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        PoolConfig(**changes)
