"""Workers that find managers again, and ask near ones first."""

import pytest

from talka.control.member.manager_search import ANSWER_NS, MET_NS, PAUSES
from talka.control.member.peer_pool import Tier
from talka.units import SECOND
from tests.sim import searching, zones
from tests.sim.checkers.searching import FOUND_WITHIN_S
from tests.sim.seeds import fresh

PER_TEST = 20


@fresh(100, PER_TEST)
def test_no_history_of_workers_that_seek_managers_breaks_an_invariant(seeds: range) -> None:
    broken = [
        f"make sim SEED={seed} KIND=searching: {violation}"
        for seed in seeds
        for violation in searching.run(seed).violations
    ]
    assert not broken, "\n".join(broken)


@fresh(40, PER_TEST)
def test_no_history_of_zones_breaks_an_invariant(seeds: range) -> None:
    broken = [
        f"make sim SEED={seed} KIND=zones: {violation}" for seed in seeds for violation in zones.run(seed).violations
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [3, 5, 7, 10, 11, 21, 34, 243])
def test_workers_whose_first_manager_is_gone_for_good_are_found_again(seed: int) -> None:
    story = searching.Story(searching.plan_of(seed))

    world = story.run()

    assert world.violations == []
    assert {story.plan.seeds[name] for name in story.workers}.intersection(story.plan.gone)
    assert world.struck[searching.GONE] and world.struck[searching.RESTART] and world.struck[searching.ZONE_CUT]


@pytest.mark.parametrize("seed", [2, 3, 5, 6])
def test_bundles_come_from_near_managers_while_those_are_well(seed: int) -> None:
    story = zones.Story(zones.plan_of(seed))

    assert story.run().violations == []
    assert sum(story.near.asked.values()) > 0


def test_where_nothing_goes_wrong_every_bundle_comes_from_the_own_zone_if_a_manager_is_there() -> None:
    story = zones.Story(zones.plan_of(6))
    story.run()
    assert story.near.asked[Tier.ZONE] == sum(story.near.asked.values()) > 0


def test_the_time_within_which_a_worker_is_found_is_more_than_one_greeting_takes() -> None:
    longest_ns = max(MET_NS, PAUSES.cap_ns * 5 // 4) + ANSWER_NS
    assert FOUND_WITHIN_S * SECOND >= 2 * longest_ns
