"""Jobs of all sizes that queue for few cores."""

import pytest

from tests.sim import queues
from tests.sim.checkers.jobs import manager_on
from tests.sim.seeds import fresh

PER_TEST = 20
STORED = (0, 2, 6, 7, 15, 17, 23, 32)
"""In each of them jobs pass others, and cores come back before their job has ended."""


@pytest.mark.parametrize("seed", STORED)
def test_nobody_is_delayed_by_whoever_passes_and_no_core_has_two_owners(seed: int) -> None:
    story = queues.Story(queues.plan_of(seed), None)

    world = story.run()

    assert world.violations == []
    assert story.delays.passed and story.owners.looks
    assert given_back(story)


def given_back(story: queues.Story) -> int:
    managers = [manager_on(host) for host in story.world.hosts.values()]
    return sum(one.registry.granting.counts()["cores_given_back_total"] for one in managers if one and one.registry)


@fresh(100, PER_TEST)
def test_no_history_of_jobs_that_queue_breaks_an_invariant(seeds: range) -> None:
    broken, passed = [], 0
    for seed in seeds:
        story = queues.Story(queues.plan_of(seed), None)
        world = story.run()
        passed += story.delays.passed
        broken += [f"make sim SEED={seed} KIND=queues: {violation}" for violation in world.violations]

    assert not broken, "\n".join(broken)
    assert passed
