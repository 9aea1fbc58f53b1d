"""Managers with too much to do: what must pass does, and what is left undone is left in its order."""

import pytest

from tests.sim import jobs, overload
from tests.sim.seeds import fresh, stored
from tests.sim.variants import without

PER_TEST = 20


@fresh(60, PER_TEST)
def test_no_history_of_managers_with_too_much_to_do_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        world = overload.run(seed)
        broken += [f"make sim SEED={seed} KIND=overload: {violation}" for violation in world.violations]
        assert world.violations or world.struck[overload.FAULT] >= 5

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", stored("overload"))
def test_a_history_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert overload.run(seed).violations == []


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_stored_history_is_clean_and_catches_a_wrong_order(seed: int) -> None:
    assert overload.run(seed).violations == []
    with without("class_order"):
        assert overload.run(seed).violations[0].invariant == "shed"


def test_where_nothing_else_is_wrong_much_is_shed_and_every_job_ends() -> None:
    story = overload.Story(jobs.plan_of(3, classes=()), None)

    world = story.run()

    assert not world.violations
    assert story.clients.are_done
    order = story.order
    assert order.passed >= 10 and order.refused >= 5 and order.taken >= 100
    assert set(order.shed) == set(overload.SHED)
