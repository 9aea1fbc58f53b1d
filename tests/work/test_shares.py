"""One load that several workflows share: every VU, arrival and iteration of the whole belongs to one of them."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.units import SECOND
from talka.work.load import RATE_PER_S, SHARES_LIMIT, BadShape, Plan, Segment, Share, dealt
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, RampingVUs, SharedIterations

quick = settings(deadline=None, derandomize=True, max_examples=150)
mixes = st.lists(st.integers(1, 20), min_size=1, max_size=7).map(tuple)
splits = st.integers(1, 5)
lengths = st.integers(1, 40).map(lambda tenths: tenths * SECOND // 10)
rates = st.lists(
    st.builds(Segment, lengths, *(st.integers(0, 12).map(lambda rate: rate * RATE_PER_S) for _ in range(2))),
    min_size=1,
    max_size=3,
)
levels = st.lists(st.builds(Segment, lengths, st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=3)
instants = st.integers(-SECOND, 13 * SECOND)


def parts_of(plan: Plan, mix: tuple[int, ...]) -> list[Plan]:
    try:
        return [plan.part(mix, index) for index in range(len(mix))]
    except BadShape:
        return []


def is_within_one(found: int, whole: int, weight: int, mix: tuple[int, ...]) -> bool:
    return abs(found - Fraction(whole * weight, sum(mix))) < 1


@given(mix=st.lists(st.integers(1, 300), min_size=1, max_size=12).map(tuple), whole=st.integers(0, 10_000))
@quick
def test_every_number_belongs_to_one_share_and_none_is_ever_a_whole_one_from_exact(mix, whole) -> None:
    shares = [Share(mix, index) for index in range(len(mix))]

    counts = [share.count(whole) for share in shares]

    assert sum(counts) == whole
    assert all(is_within_one(found, whole, weight, mix) for found, weight in zip(counts, mix, strict=True))
    for share, found in zip(shares, counts, strict=True):
        assert share.count(share.number(found)) == found, "the next one is the first that is not counted yet"
        assert share.number(found) >= whole


def test_a_round_deals_every_number_once() -> None:
    assert dealt((7, 3)) == ((0, 1, 3, 4, 6, 7, 8), (2, 5, 9))
    assert sorted(number for part in dealt((5, 3, 1, 1)) for number in part) == list(range(10))


def test_a_share_knows_the_numbers_of_the_whole_that_are_its_own_round_after_round() -> None:
    assert [Share((7, 3), 1).number(position) for position in range(5)] == [2, 5, 9, 12, 15]


@given(parts=rates.filter(lambda parts: any(part.area for part in parts)), mix=mixes, of=splits, t_ns=instants)
@quick
def test_arrivals_of_all_shares_and_shards_are_those_of_the_whole(parts, mix, of: int, t_ns: int) -> None:
    whole = Plan.of_rate(parts, max_vus=50, policy="queue")
    found = parts_of(whole, mix)

    if found:
        due = sorted(due_ns for part in found for shard in part.split(of) for due_ns in shard.arrivals())
        assert due == list(whole.split(1)[0].arrivals())
        before = [part.arrivals_before(t_ns) for part in found]
        assert sum(before) == whole.arrivals_before(t_ns)
        for part, counted, weight in zip(found, before, mix, strict=True):
            assert is_within_one(counted, whole.arrivals_before(t_ns), weight, mix)
            listed = [due_ns for shard in part.split(of) for due_ns in shard.arrivals(t_ns)]
            assert len(listed) == part.arrivals_total - part.arrivals_before(t_ns)


@given(parts=levels, mix=mixes, of=splits, t_ns=instants)
@quick
def test_vus_of_all_shares_and_shards_are_those_of_the_whole(parts, mix, of: int, t_ns: int) -> None:
    try:
        whole = Plan.of_vus(parts)
    except BadShape:
        return
    found = parts_of(whole, mix)

    if found:
        exist = [sum(shard.vus_at(t_ns) for shard in part.split(of)) for part in found]
        assert sum(exist) == whole.vus_at(t_ns)
        for counted, weight in zip(exist, mix, strict=True):
            assert is_within_one(counted, whole.vus_at(t_ns), weight, mix)


@given(parts=levels, mix=mixes, of=splits, t_ns=instants)
@quick
def test_vus_of_a_share_change_when_it_is_said_that_they_do(parts, mix, of: int, t_ns: int) -> None:
    try:
        found = parts_of(Plan.of_vus(parts), mix)
    except BadShape:
        return
    for shard in [shard for part in found for shard in part.split(of)]:
        change_ns = shard.next_change(t_ns)
        end_ns = shard.plan.length_ns if change_ns is None else change_ns
        looks = [t_ns + (end_ns - t_ns) * step // 16 for step in range(16)] if end_ns > t_ns else []
        assert all(shard.vus_at(look) == shard.vus_at(t_ns) for look in looks if 0 <= look < end_ns or t_ns >= 0)
        if change_ns is not None:
            assert shard.vus_at(change_ns) != shard.vus_at(t_ns)
            assert shard.vus_at(change_ns - 1) == shard.vus_at(t_ns)


def test_seven_to_three_of_a_rate() -> None:
    browse, buy = (ConstantRate("100/s", "10s").plan().part((7, 3), index) for index in (0, 1))

    assert (browse.arrivals_total, buy.arrivals_total) == (700, 300)
    assert (browse.rate_at(SECOND), buy.rate_at(SECOND)) == (70, 30)
    assert buy.preview() == [(0, 30.0), (10 * SECOND, 30.0)]


def test_a_common_divisor_changes_nothing() -> None:
    plan = ConstantVUs(10, "1s").plan()

    assert plan.part((70, 30), 1) == plan.part((7, 3), 1)


def test_iterations_are_shared_too() -> None:
    parts = [SharedIterations(4, 1000).plan().part((7, 3), index) for index in (0, 1)]
    each = [IterationsPerVU(10, 5).plan().part((7, 3), index) for index in (0, 1)]

    assert [(part.vus, part.shared_iterations) for part in parts] == [(3, 700), (1, 300)]
    assert [part.split(1)[0].iterations_in_all for part in each] == [35, 15]


def test_a_share_of_few_users_of_the_open_model_has_one_all_the_same() -> None:
    assert ConstantRate("100/s", "1s", max_vus=1).plan().part((99, 1), 1).vus == 1


def test_vus_of_a_share_follow_a_ramp() -> None:
    part = RampingVUs([(10, "10s")]).plan().part((1, 1), 1)

    assert [part.vus_at(second * SECOND) for second in (0, 2, 4, 6, 8)] == [0, 1, 2, 3, 4]
    assert part.preview() == [(0, 0.0), (10 * SECOND, 5.0)]


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (ConstantVUs(3, "1s").plan(), "1 in 10 of 3 VUs are none: give more of them"),
        (SharedIterations(20, 3).plan(), "1 in 10 of 3 iterations are none"),
        (ConstantRate("3/s", "1s").plan(), "1 in 10 of 3 arrivals are none"),
    ],
)
def test_a_share_that_would_be_nothing_is_refused(plan: Plan, text: str) -> None:
    with pytest.raises(BadShape, match=text):
        [plan.part((9, 1), index) for index in (0, 1)]


@pytest.mark.parametrize(
    ("weights", "index", "text"),
    [
        ((1, 2), 2, "share 2 of 2 does not exist"),
        ((), 0, "share 0 of 0 does not exist"),
        ((1, 0), 0, "whole numbers above 0"),
        ((SHARES_LIMIT, 1), 0, "add up to 10,000 at most"),
    ],
)
def test_what_is_no_share_is_refused(weights: tuple[int, ...], index: int, text: str) -> None:
    with pytest.raises(BadShape, match=text):
        Share(weights, index)


def test_a_share_travels_with_its_plan() -> None:
    plan = ConstantRate("100/s", "10s").plan().part((7, 3), 1)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan
