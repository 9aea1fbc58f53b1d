"""More time outlives the manager that gave it, and a warning is heard once, whatever strikes."""

import pytest

from talka.units import SECOND
from talka.work.lifecycle import JobState
from tests.sim.late import LateStory
from tests.sim.seeds import first_of, stored


def finished(seed: int) -> LateStory:
    story = LateStory(seed)
    story.run()
    assert not story.world.violations, f"seed {seed}: {story.world.violations[0]}"
    return story


@pytest.mark.parametrize("seed", first_of(range(12)))
def test_more_time_is_given_once_also_when_who_gives_it_falls(seed: int) -> None:
    story = finished(seed)

    assert list(story.history.ended.values()) in ([JobState.FAILED], [JobState.PARTIAL])


@pytest.mark.parametrize("seed", stored("late"))
def test_a_history_that_once_broke_an_invariant_breaks_none(seed: int) -> None:
    finished(seed)


@pytest.mark.parametrize(("seed", "extensions"), [(5, 1), (6, 2), (7, 3), (9, 1), (10, 2), (13, 1), (14, 2), (15, 3)])
def test_the_next_manager_goes_on_with_the_extensions_that_the_one_before_gave(seed: int, extensions: int) -> None:
    story = finished(seed)

    assert story.owner.fell
    (record,) = story.deadlines.stored.values()
    given_s = [one.ns / SECOND for one in record.extensions]
    assert extensions <= len(given_s) <= 5
    assert given_s == [3, 1.5, 1, 1, 1][: len(given_s)]


@pytest.mark.parametrize("seed", [4, 12, 20])
def test_a_warning_is_heard_once_when_who_gave_it_falls_at_once(seed: int) -> None:
    story = finished(seed)

    assert story.owner.fell
    runs = [run for runs in story.ledger.cores.values() for run in runs]
    assert [len(run.warned_at) for run in runs] == [1] * len(runs) != []
