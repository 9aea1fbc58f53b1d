"""A cluster of two releases, rolled up and partly back under faults: nobody hears what it does not know."""

import pytest

from talka.control.member.composite import ClusterMember
from talka.testing.faults import missing
from tests.sim.seeds import fresh
from tests.sim.skew import CLASSES, NEWER, Story, run

STORED = (1, 2, 4, 6, 7, 9, 11, 12, 13, 17, 18, 21)
"""Each catches two wrong ways of three at least: nobody asks, who is unknown counts as new, later lives hear it too."""
PER_TEST = 50


@pytest.mark.parametrize("seed", STORED)
def test_no_side_is_told_what_it_does_not_know_and_all_hear_each_other(seed: int) -> None:
    story = Story(seed)

    world = story.run()

    assert not world.violations, "\n".join([*map(str, world.violations), *world.recent_lines()[-20:]])
    assert missing(world, CLASSES) == []
    nodes = [host.node for host in world.hosts.values() if isinstance(host.node, ClusterMember)]
    assert story.told.heard > 100, "what is newer goes to those who know it"
    newer = [node.agreements for node in nodes if node.agreements.mine.version.minor == NEWER]
    assert newer and all("Rain" in agreements.unsaid for agreements in newer)
    assert {reason for node in nodes for reason in node.replay_guard.refused} <= {"replayed", "own", "life"}


def test_a_seed_is_one_history() -> None:
    once, again, other = (run(seed).trace_hash() for seed in (3, 3, 4))

    assert once == again != other


@fresh(200, PER_TEST)
def test_fresh_histories(seeds: range) -> None:
    for seed in seeds:
        assert not run(seed).violations, f"make sim SEED={seed} KIND=skew"
