from collections import Counter
from fractions import Fraction
from math import ceil, inf, nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.placement import SHARDS, BadWeight, Ewma, assign, choose, order, owner, shard_of
from talka.errors import Invalid

quick = settings(deadline=None, derandomize=True, max_examples=60)
names = st.text("abcdé", min_size=0, max_size=4)
weights = st.floats(0.001, 1000.0)
clusters = st.dictionaries(names, weights, max_size=8)
some_keys = st.lists(names, max_size=30)

KEYS = [f"key-{index}" for index in range(300)]
HALF_LIFE = 1_000_000_000


def even(*nodes: str) -> dict[str, float]:
    return dict.fromkeys(nodes, 1.0)


# Rendezvous hashing.


@given(names, clusters)
@quick
def test_an_order_names_every_node_once_and_starts_with_the_owner(key: str, nodes: dict[str, float]) -> None:
    ordered = order(key, nodes)
    assert sorted(ordered) == sorted(nodes)
    assert owner(key, nodes) == (ordered[0] if nodes else None)


@given(names, clusters, st.randoms(use_true_random=False))
@quick
def test_an_order_does_not_depend_on_the_order_of_the_mapping(
    key: str, nodes: dict[str, float], shuffler: Random
) -> None:
    shuffled = list(nodes.items())
    shuffler.shuffle(shuffled)
    assert order(key, dict(shuffled)) == order(key, nodes)


@given(names, clusters, names, weights)
@quick
def test_a_node_that_comes_or_goes_leaves_the_order_of_the_others(
    key: str, nodes: dict[str, float], node: str, weight: float
) -> None:
    without = {name: old for name, old in nodes.items() if name != node}
    ordered = order(key, {**without, node: weight})
    assert [name for name in ordered if name != node] == order(key, without)


@given(clusters, names, weights)
@quick
def test_a_new_node_only_takes_keys_and_a_lost_one_only_gives_up_its_own(
    nodes: dict[str, float], node: str, weight: float
) -> None:
    without = {name: old for name, old in nodes.items() if name != node}
    for key in KEYS[:30]:
        before, after = owner(key, without), owner(key, {**without, node: weight})
        assert after in (before, node)


@given(clusters, st.floats(1.0, 100.0))
@quick
def test_a_node_that_gains_weight_loses_no_key(nodes: dict[str, float], factor: float) -> None:
    for grown in list(nodes)[:1]:
        heavier = {**nodes, grown: nodes[grown] * factor}
        for key in KEYS[:30]:
            assert owner(key, heavier) in (owner(key, nodes), grown)


def test_keys_fall_to_nodes_in_proportion_to_their_weights() -> None:
    nodes = {"light": 1.0, "medium": 2.0, "heavy": 5.0}
    counts = Counter(owner(f"key-{index}", nodes) for index in range(8000))
    for node, weight in nodes.items():
        # Six standard deviations of so many draws are below 270.
        assert abs(counts[node] - 1000 * weight) < 270


def test_a_lost_nodes_keys_spread_over_all_others() -> None:
    nodes = even(*"abcde")
    left = even(*"bcde")
    counts = Counter(owner(key, left) for key in KEYS if owner(key, nodes) == "a")
    assert all(counts[node] >= 5 for node in left)


def test_where_the_key_ends_and_the_node_begins_matters() -> None:
    orders = [order(key, even(f"{rest}1", f"{rest}2")) for key, rest in [("a" * n, "a" * (20 - n)) for n in range(20)]]
    assert len({tuple(name[-1] for name in ordered) for ordered in orders}) == 2


def test_equal_scores_fall_by_name() -> None:
    # The lightest weight there is leaves no room between the scores of these nodes.
    assert order("key-30", dict.fromkeys("cab", 1.0)) == ["c", "b", "a"]
    assert order("key-30", dict.fromkeys("cab", 5e-324)) == ["a", "b", "c"]


def test_placements_are_the_same_in_every_process_and_version() -> None:
    nodes = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert [order(key, nodes) for key in ("k", "job", "é")] == PLACED
    assert [shard_of(job_id) for job_id in ("", "abc", "é")] == SHARDED


PLACED = [["a", "c", "b"], ["b", "c", "a"], ["b", "c", "a"]]
SHARDED = [905, 232, 123]


@pytest.mark.parametrize("weight", [0.0, -1.0, inf, nan, 2e9], ids=["zero", "negative", "infinite", "nan", "vast"])
def test_a_weight_that_is_none_is_refused_by_name(weight: float) -> None:
    for place in (
        lambda nodes: order("key", nodes),
        lambda nodes: owner("key", nodes),
        lambda nodes: assign(["key"], nodes),
    ):
        with pytest.raises(BadWeight, match="the node 'b' has weight .*: a weight is above 0") as caught:
            place({"a": 1.0, "b": weight})
        assert isinstance(caught.value, Invalid)
        assert caught.value.node == "b"


@given(names)
@quick
def test_every_job_has_a_shard(job_id: str) -> None:
    assert 0 <= shard_of(job_id) < SHARDS


def test_jobs_spread_over_all_shards() -> None:
    counts = Counter(shard_of(f"job-{index}") for index in range(16 * SHARDS))
    assert len(counts) == SHARDS
    assert max(counts.values()) < 48


# Bounded load.


@given(some_keys, clusters, st.floats(1.0, 3.0))
@quick
def test_every_key_has_a_node_and_no_node_more_than_its_bound(
    keys: list[str], nodes: dict[str, float], slack: float
) -> None:
    chosen = assign(keys, nodes, slack)
    if not nodes:
        assert chosen == {}
        return
    assert sorted(chosen) == sorted(set(keys))
    total = sum(map(Fraction, nodes.values()))
    for node, count in Counter(chosen.values()).items():
        assert count <= ceil(Fraction(slack) * len(chosen) * Fraction(nodes[node]) / total)


@given(some_keys, clusters, st.randoms(use_true_random=False))
@quick
def test_an_assignment_depends_on_neither_order(keys: list[str], nodes: dict[str, float], shuffler: Random) -> None:
    shuffled_keys, shuffled_nodes = [*keys, *keys], list(nodes.items())
    shuffler.shuffle(shuffled_keys)
    shuffler.shuffle(shuffled_nodes)
    assert assign(shuffled_keys, dict(shuffled_nodes)) == assign(keys, nodes)


def test_with_room_for_all_every_key_has_its_first_choice() -> None:
    nodes = even("a", "b", "c")
    assert assign(KEYS, nodes, slack=3.0) == {key: owner(key, nodes) for key in KEYS}


def test_without_nodes_no_key_has_one() -> None:
    assert assign(KEYS, {}) == {}


def test_without_slack_the_shares_are_even() -> None:
    counts = Counter(assign(KEYS, even("a", "b", "c"), slack=1.0).values())
    assert counts == {"a": 100, "b": 100, "c": 100}


def test_a_key_whose_first_choice_is_full_goes_to_the_next_in_its_order() -> None:
    nodes = even("a", "b", "c")
    room = dict.fromkeys(nodes, 100)
    chosen = assign(KEYS, nodes, slack=1.0)
    assert any(node != owner(key, nodes) for key, node in chosen.items())
    for key in sorted(KEYS):
        assert chosen[key] == next(node for node in order(key, nodes) if room[node])
        room[chosen[key]] -= 1


@pytest.mark.parametrize("slack", [0.99, inf, nan], ids=["small", "infinite", "nan"])
def test_a_slack_that_leaves_keys_without_room_is_refused(slack: float) -> None:
    with pytest.raises(Invalid, match="slack must be from 1"):
        assign(["key"], even("a"), slack)


# The less loaded of two.


def test_of_two_candidates_the_less_loaded_is_chosen() -> None:
    rng = Random(1)
    assert {choose(rng, ["a", "b"], {"a": 2.0, "b": 1.0}) for _ in range(20)} == {"b"}
    assert {choose(rng, ["a", "b"], {"a": 1.0}) for _ in range(20)} == {"b"}


def test_equal_candidates_are_chosen_alike_often() -> None:
    rng = Random(1)
    counts = Counter(choose(rng, ["a", "b", "c"], {}) for _ in range(3000))
    assert all(abs(counts[name] - 1000) < 150 for name in "abc")


def test_the_most_loaded_of_many_is_never_chosen_and_the_second_least_sometimes_is() -> None:
    rng = Random(1)
    loads = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    counts = Counter(choose(rng, list(loads), loads) for _ in range(600))
    # Of the 6 pairs, a is in 3, b is the better of 2, c of 1.
    assert all(abs(counts[name] - expected) < 75 for name, expected in [("a", 300), ("b", 200), ("c", 100)])
    assert counts["d"] == 0


def test_a_lone_candidate_is_chosen_and_none_of_none() -> None:
    rng = Random(1)
    assert choose(rng, ["a"], {"a": 9.0}) == "a"
    assert choose(rng, [], {}) is None


@pytest.mark.parametrize("half_life_ns", [1, HALF_LIFE])
def test_a_mean_weighs_a_sample_half_after_each_half_life(half_life_ns: int) -> None:
    mean = Ewma(half_life_ns)
    assert mean.value == 0.0
    mean.add(5, 10.0)
    assert mean.value == 10.0
    mean.add(5 + half_life_ns, 40.0)
    assert mean.value == pytest.approx((10 * 0.5 + 40) / 1.5)


def test_samples_of_one_instant_or_of_an_earlier_one_weigh_alike() -> None:
    mean = Ewma(HALF_LIFE)
    for now, sample in [(HALF_LIFE, 10.0), (HALF_LIFE, 20.0), (0, 60.0)]:
        mean.add(now, sample)
    assert mean.value == pytest.approx(30.0)


@given(st.lists(st.tuples(st.integers(0, 10**10), st.floats(0.0, 1e9)), min_size=1, max_size=20))
@quick
def test_a_mean_lies_among_its_samples(samples: list[tuple[int, float]]) -> None:
    mean = Ewma(HALF_LIFE)
    for now, sample in samples:
        mean.add(now, sample)
    values = [sample for _, sample in samples]
    assert min(values) * (1 - 1e-9) <= mean.value <= max(values) * (1 + 1e-9)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Invalid, match="half_life_ns must be at least 1"):
        Ewma(0)
