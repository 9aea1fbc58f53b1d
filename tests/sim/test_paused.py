"""A job that is put aside stands still, and goes on where it was, whoever leads it by then."""

import pytest

from talka.work.lifecycle import JobState
from tests.sim.paused import MOMENTS, PausedStory
from tests.sim.seeds import first_of


def finished(seed: int) -> PausedStory:
    story = PausedStory(seed)
    story.run()
    assert not story.world.violations, f"seed {seed}: {story.world.violations[0]}"
    return story


@pytest.mark.parametrize("seed", first_of(range(16, 40)))
def test_a_paused_job_runs_nothing_and_does_the_rest_once_under_faults(seed: int) -> None:
    story = finished(seed)

    assert story.pauses.paused and story.people.resumed


@pytest.mark.parametrize("seed", [4, 5, 6, 7], ids=[moment.replace(" ", "-") for moment in MOMENTS])
def test_when_a_manager_falls_all_iterations_of_a_paused_job_are_run_and_counted_once(seed: int) -> None:
    story = finished(seed)

    assert story.falls.fell and story.people.resumed >= 2
    assert list(story.history.ended.values()) == [JobState.COMPLETED] * 2
    assert sorted(story.pauses.completed.values()) == [282, 287]


@pytest.mark.parametrize("seed", [12, 13, 14, 15], ids=[moment.replace(" ", "-") for moment in MOMENTS])
def test_a_worker_that_is_lost_while_a_job_is_paused_takes_nothing_with_it(seed: int) -> None:
    story = finished(seed)

    assert story.falls.fell and story.pauses.paused and story.people.resumed >= 2
