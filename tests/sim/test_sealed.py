"""Sealed members under crashes, doubled frames and recordings of earlier lives: nothing that is played back is
heard."""

import pytest

from talka.control.member.replay_guard import ReplayGuard
from talka.units import SECOND
from tests.sim.checkers.membership import incomplete_views
from tests.sim.sealed import CALM_FROM, PLAYED_FROM, Story
from tests.sim.seeds import first_of


@pytest.mark.parametrize("seed", first_of(range(1, 21)))
def test_no_recording_is_let_in_one_leads_per_term_and_all_that_live_are_seen_alive(seed: int) -> None:
    story = Story(seed)

    world = story.run()

    assert not world.violations, "\n".join([*map(str, world.violations), *world.recent_lines()[-20:]])
    assert CALM_FROM - PLAYED_FROM == 60 * SECOND
    assert incomplete_views(world) == []
    adversary = story.adversary
    assert adversary.heard_by_two_lives == 0
    assert adversary.leaders > 0 and adversary.admitted > 5000
    assert adversary.played - adversary.played_elsewhere > 500 and adversary.played_elsewhere > 200
    assert set(story.refused()) <= {"replayed", "forged", "own"}, "nothing else is wrong with recordings"


def test_without_asking_for_proofs_recordings_would_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayGuard, "knows", lambda self, packet: True)

    world = Story(1).run()

    assert [violation.invariant for violation in world.violations] == ["replay"]


@pytest.mark.long
def test_what_was_said_just_before_a_host_crashed_is_not_heard_again_by_its_next_life() -> None:
    stories = [Story(seed, stale_ns=0) for seed in range(1, 6)]
    for story in stories:
        story.run()

    assert [story.adversary.heard_by_two_lives for story in stories] == [0] * len(stories)


@pytest.mark.parametrize("seed", first_of(range(1, 6)))
def test_recordings_of_the_last_seconds_break_neither_leadership_nor_views(seed: int) -> None:
    world = Story(seed, stale_ns=0).run()

    assert not world.violations
    assert incomplete_views(world) == []


def test_a_seed_is_one_history() -> None:
    once, again, other = (Story(seed).run().trace_hash() for seed in (3, 3, 4))

    assert once == again != other
