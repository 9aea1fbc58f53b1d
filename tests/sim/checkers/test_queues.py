"""The checker of counts by handler finds what is off, and for how long."""

from collections.abc import Callable

import pytest

from talka.control.dags.handler_counts import HandlerRow
from talka.testing.store_shell import keepers_on
from talka.work.lifecycle import TaskState
from tests.sim import dags
from tests.sim.checkers.queues import SETTLED_LOOKS


def in_mid_job() -> dags.Story:
    """A history without faults, while tasks wait and run."""
    story = dags.Story(dags.plan_of(0, classes=()), None)
    story.world.stop_at_first = False
    for host in story.world.hosts.values():
        host.start()
    story.clients.begin()
    second = 0
    while not (open_rows(story) and story.queues.delayed):
        second += 1
        story.world.run_until(second * 1_000_000_000)
    assert not story.world.violations
    return story


def open_rows(story: dags.Story) -> list[HandlerRow]:
    keepers = keepers_on(story.manager)
    rows = [] if keepers is None else [row for _, row in next(iter(keepers)).turns.handlers.rows()]
    return [row for row in rows if row.states[TaskState.PENDING]]


def one_more_ready(row: HandlerRow) -> None:
    row.states[TaskState.READY] += 1


def one_delayed_more(row: HandlerRow) -> None:
    row.delayed += 100


@pytest.mark.parametrize("spoil", [one_more_ready, one_delayed_more])
def test_what_is_counted_and_is_not_so_is_found(spoil: Callable[[HandlerRow], None]) -> None:
    story = in_mid_job()
    spoil(open_rows(story)[0])

    story.queues.on_second(story.world)

    assert {violation.invariant for violation in story.world.violations} == {"D16"}


def test_what_the_store_has_not_yet_is_under_way_for_some_seconds() -> None:
    story = in_mid_job()
    records = story.shell.records
    assert story.queues._kept()
    records.live_jobs = list  # type: ignore[method-assign,assignment]
    assert story.queues._kept() == {}

    for _ in range(SETTLED_LOOKS - 1):
        story.queues.on_second(story.world)
    assert not story.world.violations
    story.queues.on_second(story.world)

    (violation,) = story.world.violations
    assert violation.invariant == "D16" and "the store has {}" in str(violation)
    story.queues.at_end(story.world)
    assert len(story.world.violations) == 1 + (not story.shell.is_writing)
