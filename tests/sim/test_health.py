"""Managers and workers that do badly, fall silent together, or get on with nothing."""

import pytest

from tests.sim import health
from tests.sim.seeds import fresh

PER_TEST = 20
STORED = range(12)


@pytest.mark.parametrize("seed", STORED)
def test_a_stored_history_is_clean_and_its_trouble_struck(seed: int) -> None:
    story = health.Story(seed)

    assert story.run().violations == []
    assert story.clients.are_done
    match story.trouble:
        case "late voter" | "all voters late":
            assert len(story.judge.elected) >= 2, "somebody led after the leader"
        case "silence":
            assert len(story.judge.elected) == 1, "the leader went on, and so did the owners of jobs"
            assert [owners for owners in story.judge.owners.values() if len(owners) > 1] == []
        case "manager that dispatches nothing":
            assert any(len(owners) > 1 for owners in story.judge.owners.values())
        case "late worker":
            assert story.judge.held > 0, "a job waited for it while it did badly"
        case "overloaded manager":
            assert len(story.judge.owners) == 8


def test_every_trouble_has_stored_histories() -> None:
    assert {health.trouble_of(seed) for seed in STORED} == set(health.TROUBLES)


@fresh(120, PER_TEST)
def test_no_history_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        broken += [f"make sim SEED={seed} KIND=health: {violation}" for violation in health.run(seed).violations]

    assert not broken, "\n".join(broken)
