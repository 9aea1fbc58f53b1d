"""Elections, register, leases and fences: drawn histories, and what they must add up to."""

import pytest

from talka.units import SECOND
from tests.sim import elections
from tests.sim.election_figures import cold_restarts, leader_losses
from tests.sim.seeds import first_of, fresh, stored

PER_TEST = 50


@pytest.mark.parametrize("seed", stored("elections"))
def test_a_history_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert elections.run(seed).violations == []


@fresh(2000, PER_TEST)
def test_no_history_of_elections_leases_and_commands_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        world = elections.run(seed)
        broken += [f"make sim SEED={seed}: {violation}" for violation in world.violations]
        assert 3 <= elections.plan_of(seed).voters <= 7
        assert len(elections.plan_of(seed).classes) >= 3
        assert world.now >= 60 * SECOND or world.violations

    assert not broken, "\n".join(broken)


@fresh(160, PER_TEST)
def test_voters_that_count_the_leaders_lease_differently_never_give_two_of_them(seeds: range) -> None:
    broken = []
    for seed in seeds:
        world = elections.run(seed, is_mixed=True)
        broken += [f"seed {seed}, mixed: {violation}" for violation in world.violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", first_of(range(10)))
def test_a_lost_leader_is_followed_within_three_seconds_by_one_whose_token_is_installed(seed: int, voters: int) -> None:
    times = leader_losses(seed, voters, 50)  # a thousand in all, of which a tenth are in every run

    assert max(times) <= 3 * SECOND


@pytest.mark.parametrize("seed", first_of(range(25)))
def test_a_restart_of_all_voters_at_once_loses_nothing_and_founds_no_second_group(seed: int) -> None:
    # Five thousand in all, of which 200 are in every run, which fails when what a majority held is not read again.
    assert cold_restarts(seed, 3, 100) + cold_restarts(seed, 5, 100) == 200


def test_a_fault_of_the_plan_that_never_struck_fails_the_run() -> None:
    story = elections.Story(elections.plan_of(1), None)
    story.faults.begin = lambda until: None  # type: ignore[method-assign]

    world = story.run()

    assert "plan" in {violation.invariant for violation in world.violations}
