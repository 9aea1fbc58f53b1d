import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.allocation import RANK, Claim, allocate, core_range
from talka.work.dsl import Priority

quick = settings(deadline=None, derandomize=True, max_examples=150)
priorities = st.sampled_from(list(RANK))
claims_of_all_kinds = st.lists(
    st.builds(Claim, st.text("abc", min_size=1), priorities, st.booleans(), st.integers(1, 20)),
    max_size=6,
    unique_by=lambda claim: claim.name,
)


def claim(name: str, priority: Priority = "auto", *, is_test: bool = True, useful: int = 100) -> Claim:
    return Claim(name, priority, is_test, useful)


def alone(one: Claim, *, total: int) -> int:
    return allocate([one], total=total, free=total)[one.name]


@pytest.mark.parametrize(
    ("priority", "ranges"),
    [
        # of pools of 1, 2, 3, 4, 8 and 10 cores
        ("low", [(1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 3)]),
        ("normal", [(1, 1), (1, 2), (1, 3), (1, 3), (2, 6), (3, 8)]),
        ("high", [(1, 1), (2, 2), (3, 3), (3, 4), (6, 8), (8, 10)]),
        ("exclusive", [(1, 1), (2, 2), (3, 3), (4, 4), (8, 8), (10, 10)]),
        ("auto", [(1, 1), (1, 2), (1, 3), (1, 4), (1, 8), (1, 10)]),
    ],
)
def test_a_priority_means_a_share_of_the_whole_pool(priority: Priority, ranges: list[tuple[int, int]]) -> None:
    assert [core_range(priority, total) for total in (1, 2, 3, 4, 8, 10)] == ranges


@pytest.mark.parametrize(("priority", "cores"), [("low", 2), ("normal", 6), ("high", 8), ("exclusive", 8), ("auto", 8)])
def test_one_workflow_alone_gets_the_most_it_may_have(priority: Priority, cores: int) -> None:
    assert alone(claim("a", priority), total=8) == cores


def test_nobody_gets_more_cores_than_it_can_use() -> None:
    assert alone(claim("a", "auto", useful=3), total=8) == 3
    assert alone(claim("a", "exclusive", useful=3), total=8) == 3


def test_a_workflow_that_measures_nothing_gets_one_core_whatever_its_priority() -> None:
    assert [alone(claim("a", priority, is_test=False), total=8) for priority in RANK] == [1] * 5


def test_a_workflow_that_measures_nothing_shares_the_pool_even_if_it_is_called_exclusive() -> None:
    claims = [claim("seed", "exclusive", is_test=False), claim("shop")]

    assert allocate(claims, total=4, free=4) == {"seed": 1, "shop": 3}


def test_what_is_left_goes_round_highest_priority_first() -> None:
    claims = [claim("first", "auto"), claim("second", "auto"), claim("third", "normal")]

    assert allocate(claims, total=8, free=8) == {"third": 4, "first": 2, "second": 2}


def test_a_lower_priority_does_not_overtake_one_that_has_to_wait() -> None:
    claims = [claim("small", "low"), claim("large", "high")]

    assert allocate(claims, total=8, free=5) == {}
    assert allocate(claims, total=8, free=6) == {"large": 6}
    assert allocate(claims, total=8, free=8) == {"large": 7, "small": 1}


def test_an_exclusive_workflow_waits_for_the_whole_pool_and_then_runs_alone() -> None:
    claims = [claim("other", "high"), claim("alone", "exclusive", useful=2)]

    assert allocate(claims, total=4, free=3) == {}
    assert allocate(claims, total=4, free=4) == {"alone": 2}


def test_a_workflow_of_few_users_does_not_wait_for_cores_it_cannot_use() -> None:
    claims = [claim("tiny", "high", useful=1)]

    assert allocate(claims, total=8, free=1) == {"tiny": 1}


def test_without_a_free_core_nothing_starts() -> None:
    assert allocate([claim("a"), claim("b", is_test=False)], total=4, free=0) == {}
    assert allocate([], total=4, free=4) == {}


@given(claims=claims_of_all_kinds, total=st.integers(1, 12), data=st.data())
@quick
def test_grants_fit_the_pool_the_priorities_and_the_use(claims: list[Claim], total: int, data: st.DataObject) -> None:
    free = data.draw(st.integers(0, total))
    granted = allocate(claims, total=total, free=free)
    by_name = {claim.name: claim for claim in claims}

    assert sum(granted.values()) <= free
    for name, cores in granted.items():
        one = by_name[name]
        fewest, most = core_range(one.priority, total) if one.is_test else (1, 1)
        assert min(fewest, one.useful) <= cores <= min(most, one.useful)
    # Of those that wait, none comes before one that starts.
    ranks = [RANK[by_name[name].priority] for name in granted]
    waiting = [RANK[claim.priority] for claim in claims if claim.name not in granted]
    assert not ranks or not waiting or max(ranks) <= min(waiting)


@given(claims=claims_of_all_kinds.filter(bool), total=st.integers(1, 12))
@quick
def test_with_the_whole_pool_free_somebody_always_starts(claims: list[Claim], total: int) -> None:
    assert allocate(claims, total=total, free=total)


# A job on a pool that others use as well.


def test_no_workflow_waits_for_more_cores_than_its_job_was_granted() -> None:
    claims = [claim("large", "high"), claim("small", "low")]

    assert allocate(claims, total=16, free=4, granted=4) == {"large": 4}
    assert allocate(claims, total=16, free=3, granted=4) == {}, "it has four, and one is in use"
    assert allocate(claims, total=4, free=4) == {"large": 3, "small": 1}


def test_an_exclusive_workflow_waits_for_all_cores_of_its_job_alone() -> None:
    claims = [claim("alone", "exclusive", useful=2), claim("other")]

    assert allocate(claims, total=16, free=4, granted=4) == {"alone": 2}
    assert allocate(claims, total=16, free=3, granted=4) == {}


def test_shares_are_of_the_whole_pool_whatever_was_granted() -> None:
    assert allocate([claim("a", "low")], total=16, free=8, granted=8) == {"a": 4}


def test_without_a_granted_core_nothing_starts() -> None:
    assert allocate([claim("a"), claim("b", is_test=False)], total=16, free=0, granted=0) == {}


@given(claims=claims_of_all_kinds.filter(bool), total=st.integers(1, 12), granted=st.integers(1, 12))
@quick
def test_with_all_granted_cores_free_somebody_always_starts(claims: list[Claim], total: int, granted: int) -> None:
    found = allocate(claims, total=total, free=granted, granted=granted)

    assert 0 < sum(found.values()) <= granted
