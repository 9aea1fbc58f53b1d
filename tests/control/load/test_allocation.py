import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.allocation import RANK, CoreClaim, Seat, allocate, claim_of, core_range, planned, sharing
from talka.work.dsl import Priority
from talka.work.shapes import ConstantRate, ConstantVUs
from tests.control.conftest import workflow_of

quick = settings(deadline=None, derandomize=True, max_examples=150)
priorities = st.sampled_from(list(RANK))
claims_of_all_kinds = st.lists(
    st.builds(
        CoreClaim,
        st.text("abc", min_size=1),
        priorities,
        st.booleans(),
        st.integers(1, 20),
        st.sampled_from([0.5, 1.0, 20.0, 900.0]),
    ),
    max_size=6,
    unique_by=lambda claim: claim.name,
)


def claim(
    name: str, priority: Priority = "auto", *, is_test: bool = True, useful: int = 100, weight: float = 1
) -> CoreClaim:
    return CoreClaim(name, priority, is_test, useful, weight)


def seats(free: int, *busy: float) -> dict[Seat, float | None]:
    """So many empty cores, and those that carry something."""
    loads: list[float | None] = [*([None] * free), *busy]
    return {("", number): load for number, load in enumerate(loads)}


def counts(claims: list[CoreClaim], loads: dict[Seat, float | None], total: int | None = None) -> dict[str, int]:
    found = allocate(claims, loads, total=total or len(loads))
    return {name: len(cores) for name, cores in found.items()}


def alone(one: CoreClaim, *, total: int) -> int:
    return counts([one], seats(total))[one.name]


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

    assert counts(claims, seats(4)) == {"seed": 1, "shop": 3}


def test_what_is_left_goes_round_highest_priority_first() -> None:
    claims = [claim("first", "auto"), claim("second", "auto"), claim("third", "normal")]

    assert counts(claims, seats(8)) == {"third": 4, "first": 2, "second": 2}


def test_the_fewest_of_each_priority_come_before_the_most_of_any() -> None:
    claims = [claim("small", "low"), claim("large", "high")]

    assert counts(claims, seats(8)) == {"large": 7, "small": 1}
    assert counts(claims, seats(5, 1, 1, 1)) == {"large": 4, "small": 1}, "less than it should have, and it runs"


def test_an_exclusive_workflow_waits_for_the_whole_pool_and_then_runs_alone() -> None:
    claims = [claim("other", "high"), claim("alone", "exclusive", useful=2)]

    assert counts(claims, seats(3, 1)) == {}
    assert counts(claims, seats(4)) == {"alone": 2}


def test_without_a_core_nothing_starts() -> None:
    assert counts([claim("a"), claim("b", is_test=False)], {}, total=16) == {}
    assert counts([], seats(4)) == {}


# Fewer cores than workflows.


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_workflows_share_cores_evenly_where_there_are_fewer_cores_than_workflows(cores: int) -> None:
    found = allocate([claim(name) for name in "abcdef"], seats(cores), total=cores)

    assert [len(found[name]) for name in "abcdef"] == [1] * 6
    assert {seat: sum(seat in own for own in found.values()) for seat in seats(cores)} == {
        seat: 6 // cores for seat in seats(cores)
    }


def test_what_cannot_be_packed_evenly_is_split() -> None:
    found = allocate([claim("a"), claim("b"), claim("c")], seats(2), total=2)

    assert sorted(len(own) for own in found.values()) == [1, 1, 2]


def test_a_heavy_workflow_has_more_cores_than_the_light_ones_beside_it() -> None:
    claims = [claim("heavy", weight=1000), *(claim(name) for name in "abcde")]

    found = allocate(claims, seats(2), total=2)

    assert found["heavy"] == (("", 0), ("", 1))
    assert all(len(found[name]) == 1 for name in "abcde")


def test_a_workflow_that_cannot_be_split_shares_with_fewer() -> None:
    claims = [claim("whole", weight=10, useful=1), claim("a"), claim("b")]

    found = allocate(claims, seats(2), total=2)

    assert set(found["whole"]).isdisjoint({*found["a"], *found["b"]})


def test_what_starts_later_goes_where_least_is_carried() -> None:
    found = allocate([claim("late", weight=5)], seats(0, 100, 3, 50), total=3)

    assert found == {"late": (("", 1),)}


def test_a_workflow_may_share_one_core_and_have_another_for_itself() -> None:
    found = allocate([claim("a", weight=10), claim("b", weight=10)], seats(1, 10), total=2)

    assert {*found["a"], *found["b"]} == {("", 0), ("", 1)}


def test_a_weight_is_the_peak_of_the_rate_or_the_number_of_users() -> None:
    rate = workflow_of("a", shape=ConstantRate("50/s", "10s"))
    users = workflow_of("b", shape=ConstantVUs(7, "10s"), priority="low", is_test=False)

    assert claim_of(rate, 4) == CoreClaim("a", "auto", True, 4, 50.0)
    assert claim_of(users, 16) == CoreClaim("b", "low", False, 7, 7.0)


@given(claims=claims_of_all_kinds, total=st.integers(1, 12), data=st.data())
@quick
def test_everybody_starts_unless_one_runs_alone(claims: list[CoreClaim], total: int, data: st.DataObject) -> None:
    busy = data.draw(st.lists(st.sampled_from([0.0, 1.0, 50.0]), max_size=total))
    loads = seats(total - len(busy), *busy)
    found = allocate(claims, loads, total=total)
    by_name = {claim.name: claim for claim in claims}

    if any(one.runs_alone for one in claims):
        assert len(found) == (0 if busy else 1)
    else:
        assert set(found) == set(by_name)
    for name, cores in found.items():
        one = by_name[name]
        _, most = core_range(one.priority, total) if one.is_test else (1, 1)
        assert 1 <= len(cores) == len(set(cores)) <= min(most, one.useful)
        assert set(cores) <= set(loads)
    if len(claims) <= total - len(busy):
        taken = [seat for cores in found.values() for seat in cores]
        assert len(taken) == len(set(taken)), "each has its own"
        assert all(loads[seat] is None for seat in taken)


# A job on a pool that others use as well.


def test_shares_are_of_the_whole_pool_whatever_was_granted() -> None:
    assert counts([claim("a", "low")], seats(8), total=16) == {"a": 4}
    assert counts([claim("large", "high"), claim("small", "low")], seats(4), total=16) == {"large": 3, "small": 1}


def test_an_exclusive_workflow_waits_for_all_cores_of_its_job_alone() -> None:
    claims = [claim("alone", "exclusive", useful=2), claim("other")]

    assert counts(claims, seats(4), total=16) == {"alone": 2}
    assert counts(claims, seats(3, 1), total=16) == {}


def test_cores_of_workers_that_have_the_most_room_are_taken_first() -> None:
    loads: dict[Seat, float | None] = {("w1", 0): None, ("w2", 0): None, ("w2", 1): None, ("w3", 0): 1.0}

    assert allocate([claim("a")], loads, total=4)["a"] == (("w2", 0), ("w2", 1), ("w1", 0))


# A job that has not run.


def test_a_plan_has_those_side_by_side_that_start_at_once_and_the_others_alone() -> None:
    found = planned([claim("a"), claim("b"), claim("later")], ["later"], 2)

    assert found == {"a": (("", 0),), "b": (("", 1),), "later": (("", 0), ("", 1))}
    assert sharing(found, ["later"]) == {"a": [], "b": [], "later": []}


def test_a_plan_says_who_shares_a_core_with_whom() -> None:
    found = planned([claim("a"), claim("b"), claim("c"), claim("d")], [], 2)

    assert sharing(found, []) == {"a": ["c"], "b": ["d"], "c": ["a"], "d": ["b"]}


def test_a_plan_gives_no_cores_to_what_waits_for_one_that_runs_alone() -> None:
    assert planned([claim("a"), claim("alone", "exclusive")], [], 2) == {"a": (), "alone": (("", 0), ("", 1))}
