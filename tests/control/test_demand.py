from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.allocation import RANK, CoreClaim, allocate, demand
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Settings
from talka.work.dsl import Priority
from talka.work.shapes import ConstantVUs

quick = settings(deadline=None, derandomize=True, max_examples=150)


def workflow(
    name: str, priority: Priority = "auto", *, vus: int = 100, is_test: bool = True, after: tuple[str, ...] = ()
) -> WorkflowOrder:
    return WorkflowOrder(
        name=name,
        plan=ConstantVUs(vus, "10s").plan(),
        priority=priority,
        is_test=is_test,
        depends_on=after,
        timeout_ns=0,
        thresholds=(),
        flows=(),
        load="",
        nodes=(),
    )


def order_of(workflows: Mapping[str, Mapping[str, Any]], cores: int = 0) -> JobOrder:
    return JobOrder(
        name="shop",
        bundle=BundleFacts("0" * 64, 0, b"", "shop.py"),
        workflows=tuple(workflow(name, **more) for name, more in workflows.items()),
        settings=Settings(0),
        cores=cores,
    )


@pytest.mark.parametrize(
    ("priority", "cores"),
    [("low", (1, 2)), ("normal", (2, 6)), ("high", (6, 8)), ("exclusive", (8, 8)), ("auto", (1, 8))],
)
def test_one_workflow_wants_what_its_priority_means_of_the_pool(priority: Priority, cores: tuple[int, int]) -> None:
    assert demand(order_of({"a": {"priority": priority}}), 8) == cores


def test_nobody_wants_more_cores_than_it_can_use_except_to_be_alone() -> None:
    assert demand(order_of({"a": {"priority": "high", "vus": 3}}), 8) == (3, 3)
    assert demand(order_of({"a": {"priority": "exclusive", "vus": 3}}), 8) == (8, 8)


def test_a_workflow_that_measures_nothing_wants_one_core() -> None:
    assert demand(order_of({"a": {"priority": "exclusive", "is_test": False}}), 8) == (1, 1)


def test_workflows_that_can_run_at_the_same_time_add_up() -> None:
    order = order_of({"a": {"priority": "normal"}, "b": {"is_test": False}, "c": {"vus": 2}})

    assert demand(order, 8) == (4, 8)
    assert demand(order, 16) == (6, 15)


def test_whoever_is_first_in_a_chain_makes_way_where_another_fits_nowhere_else() -> None:
    """ "a" comes first and could be before either; "b" is before "c" alone."""
    order = order_of(
        {"a": {"vus": 1}, "b": {"vus": 1}, "c": {"vus": 1, "after": ("a", "b")}, "d": {"after": ("a",), "vus": 1}}
    )

    assert demand(order, 8) == (2, 2), "never more than two of them at once"


def test_another_makes_way_where_the_first_in_a_chain_cannot() -> None:
    """ "a" and "b" are before "d" and fill it; "c" is before "d" alone, and only "b" can be before "e" instead."""
    order = order_of(
        {
            "a": {"vus": 1},
            "b": {"vus": 1},
            "c": {"vus": 1},
            "d": {"vus": 2, "after": ("a", "b", "c")},
            "e": {"vus": 1, "after": ("b",)},
        }
    )

    assert demand(order, 8)[1] == 3, "never more than three cores at once"


def test_workflows_that_wait_for_each_other_do_not_add_up() -> None:
    order = order_of({"a": {"vus": 3}, "b": {"vus": 5, "after": ("a",)}, "c": {"vus": 4, "after": ("b",)}})

    assert demand(order, 16) == (1, 5)


def test_workflows_of_different_depth_add_up_when_neither_waits_for_the_other() -> None:
    order = order_of({"a": {"vus": 1}, "b": {"vus": 6, "after": ("a",)}, "c": {"vus": 4}})

    assert demand(order, 16) == (2, 10)


def test_together_they_want_no_more_than_the_pool() -> None:
    order = order_of({"a": {"priority": "high"}, "b": {"priority": "high"}})

    assert demand(order, 8) == (8, 8)


def test_a_job_gets_the_cores_it_asks_for_as_far_as_it_may_and_can_use_them() -> None:
    assert demand(order_of({"a": {}}, cores=4), 8) == (4, 4)
    assert demand(order_of({"a": {"vus": 3}}, cores=4), 8) == (3, 3)
    assert demand(order_of({"a": {"priority": "low"}}, cores=4), 8) == (2, 2)
    assert demand(order_of({"a": {"priority": "exclusive"}}, cores=4), 8) == (4, 4)


def test_a_job_that_asks_for_more_than_the_pool_has_waits_for_it_to_grow() -> None:
    assert demand(order_of({"a": {}}, cores=10), 8) == (10, 10)
    assert demand(order_of({"a": {"vus": 9}}, cores=10), 8) == (9, 9)
    assert demand(order_of({"a": {"vus": 8}}, cores=10), 8) == (8, 8), "more would be idle"


def test_without_workers_a_job_wants_at_least_one_core() -> None:
    for priority in RANK:
        assert demand(order_of({"a": {"priority": priority}}), 0) == (1, 1)
    assert demand(order_of({"a": {}}, cores=4), 0) == (4, 4)


def test_names_that_nobody_has_hold_nobody_back() -> None:
    assert demand(order_of({"a": {"vus": 2, "after": ("ghost",)}, "b": {"vus": 2}}), 8) == (2, 4)


def test_of_very_many_workflows_all_count_as_running_at_the_same_time() -> None:
    chain = {f"w{turn}": {"vus": 1, "after": (f"w{turn - 1}",)} for turn in range(65)}

    assert demand(order_of(chain), 100) == (65, 65)
    del chain["w64"]
    assert demand(order_of(chain), 100) == (1, 1)


NAMES = "abcdef"
graphs = st.lists(
    st.tuples(st.integers(1, 6), st.booleans(), st.sets(st.integers(0, 5))), min_size=1, max_size=len(NAMES)
)


@given(graph=graphs, total=st.integers(1, 40))
@quick
def test_the_most_is_the_largest_sum_over_workflows_that_can_run_together(
    graph: list[tuple[int, bool, set[int]]], total: int
) -> None:
    vus = {NAMES[turn]: vus if is_test else 1 for turn, (vus, is_test, _) in enumerate(graph)}
    after = {
        NAMES[turn]: tuple(NAMES[other] for other in sorted(others) if other < turn)
        for turn, (_, _, others) in enumerate(graph)
    }
    order = order_of(
        {
            name: {"vus": vus[name], "is_test": is_test, "after": after[name]}
            for name, (_, is_test, _) in zip(NAMES, graph, strict=False)
        }
    )

    def waits(later: str, earlier: str) -> bool:
        return any(name == earlier or waits(name, earlier) for name in after[later])

    together = [
        some
        for count in range(1, len(graph) + 1)
        for some in combinations(vus, count)
        if not any(waits(one, other) or waits(other, one) for one, other in combinations(some, 2))
    ]

    least, most = demand(order, total)

    assert most == min(total, max(sum(min(vus[name], total) for name in some) for some in together))
    assert least == min(total, max(len(some) for some in together))


@given(
    priorities=st.lists(
        st.tuples(st.sampled_from(list(RANK)), st.integers(1, 12), st.booleans()), min_size=1, max_size=5
    ),
    total=st.integers(1, 12),
)
@quick
def test_with_the_fewest_it_wants_a_job_can_start_something(
    priorities: list[tuple[Priority, int, bool]], total: int
) -> None:
    order = order_of(
        {
            f"w{turn}": {"priority": priority, "vus": vus, "is_test": is_test}
            for turn, (priority, vus, is_test) in enumerate(priorities)
        }
    )
    least, most = demand(order, total)
    claims = [CoreClaim(one.name, one.priority, one.is_test, one.plan.shards_for(total)) for one in order.workflows]

    assert 1 <= least <= most <= total
    assert allocate(claims, {("", number): None for number in range(least)}, total=total)


def test_a_job_of_more_workflows_than_the_pool_has_cores_wants_the_whole_pool_and_no_more() -> None:
    six = order_of({name: {} for name in "abcdef"})

    assert demand(six, 4) == (4, 4)
    assert demand(six, 1) == (1, 1)
    assert demand(order_of({name: {} for name in "abcdef"}, cores=2), 4) == (2, 2), "they share what is asked for"
