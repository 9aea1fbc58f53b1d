"""Elections, register, leases and fences: thousands of drawn histories, and what they must add up to."""

import pytest

from talka.units import SECOND
from tests.sim import elections
from tests.sim.election_figures import cold_restarts, leader_losses

SEEDS = 2000
PER_TEST = 50


@pytest.mark.parametrize("first", range(1, SEEDS + 1, PER_TEST))
def test_no_history_of_elections_leases_and_commands_breaks_an_invariant(first: int) -> None:
    broken = []
    for seed in range(first, first + PER_TEST):
        world = elections.run(seed)
        broken += [f"make sim SEED={seed}: {violation}" for violation in world.violations]
        assert 3 <= elections.plan_of(seed).voters <= 7
        assert len(elections.plan_of(seed).classes) >= 3
        assert world.now >= 60 * SECOND or world.violations

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("first", range(41, 201, PER_TEST))
def test_voters_that_count_the_leaders_lease_differently_never_give_two_of_them(first: int) -> None:
    broken = []
    for seed in range(first, first + PER_TEST):
        world = elections.run(seed, is_mixed=True)
        broken += [f"seed {seed}, mixed: {violation}" for violation in world.violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(("seed", "voters"), [(seed, voters) for seed in range(10) for voters in (3, 5)])
def test_a_lost_leader_is_followed_within_three_seconds_by_one_whose_token_is_installed(seed: int, voters: int) -> None:
    times = leader_losses(seed, voters, 50)  # a thousand in all

    assert max(times) <= 3 * SECOND


@pytest.mark.parametrize("seed", range(25))
def test_a_restart_of_all_voters_at_once_loses_nothing_and_founds_no_second_group(seed: int) -> None:
    # Five thousand in all; the run itself fails when what a majority held is not read again.
    assert cold_restarts(seed, 3, 100) + cold_restarts(seed, 5, 100) == 200


def test_a_fault_of_the_plan_that_never_struck_fails_the_run() -> None:
    story = elections.Story(elections.plan_of(1), elections.ALL, None)
    story.faults.begin = lambda until: None  # type: ignore[method-assign]

    world = story.run()

    assert "plan" in {violation.invariant for violation in world.violations}
