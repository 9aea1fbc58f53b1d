"""Lost attempts: until when the rest of their plans waits for cores."""

from types import SimpleNamespace
from typing import Any

import pytest

from talka.control.jobs.losses import REPLACE_WAIT_NS, Losses


def load(*attempts: int, room: int = 0, length_ns: int | None = None, **more: Any) -> Any:
    """A load job of which the losses ask only this: it runs slices of two shards each since the instant 10."""
    run = SimpleNamespace(origin_ns=10, stopped_ns=more.pop("stopped_ns", 0))
    shard = SimpleNamespace(shard=SimpleNamespace(plan=SimpleNamespace(length_ns=length_ns)), left=[0, 1])
    running = {attempt: (run, shard, None) for attempt in attempts}
    known = {"attempts": running, "room_besides": lambda attempt: room, "is_stopping": False}
    return SimpleNamespace(**known | more)


def lost(*attempts: int, is_stored: bool = True) -> Losses:
    losses = Losses()
    for attempt in attempts:
        losses.add(0, attempt, f"cause {attempt}", is_stored=is_stored)
    return losses


def test_nothing_is_due_before_the_last_counts_are_stored() -> None:
    losses = lost(1, 2, is_stored=False)
    assert list(losses.due(20, load(1, 2, room=2))) == []

    losses.stored(2)
    losses.stored(9)  # was forgotten meanwhile

    assert list(losses.due(20, load(1, 2, room=2))) == [(2, "cause 2")]
    assert 1 in losses and 2 not in losses


def test_the_rest_of_a_plan_waits_for_cores_but_not_for_ever() -> None:
    losses = lost(1)
    assert list(losses.due(REPLACE_WAIT_NS - 1, load(1, room=1))) == []

    assert list(losses.due(REPLACE_WAIT_NS, load(1, room=1))) == [(1, "cause 1")]


@pytest.mark.parametrize("job", [load(1, length_ns=5), load(1, stopped_ns=12), load(1, is_stopping=True)])
def test_a_plan_that_is_over_or_stopped_waits_for_no_cores(job: Any) -> None:
    assert list(lost(1).due(20, job)) == [(1, "cause 1")]


def test_a_loss_of_what_does_not_run_any_more_is_forgotten() -> None:
    losses = lost(1, 2)

    assert list(losses.due(20, load(2, room=2))) == [(2, "cause 2")]

    assert losses.are_all([]) and not losses.are_all([1])


def test_what_is_forgotten_while_others_are_told_of_is_not_due() -> None:
    losses = lost(1, 2)
    due = losses.due(20, load(1, 2, room=2))
    assert next(due) == (1, "cause 1")

    losses.clear()

    assert list(due) == []


def test_each_of_some_attempts_is_lost_or_not() -> None:
    losses = lost(1, 2)
    assert losses.are_all([1, 2])

    losses.forget(1)
    losses.forget(1)

    assert not losses.are_all([1, 2])
