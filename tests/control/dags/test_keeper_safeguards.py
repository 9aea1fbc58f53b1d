"""Dag jobs without their safeguards: each takes away what its name says, and nothing else."""

from collections.abc import Callable
from random import Random
from typing import Any

from talka.cluster.safeguards import Safeguards
from talka.control.dags.keeper import DagKeeper
from talka.wire.tasks import Held
from talka.work.dag import Limit

Play = Any
PlayOf = Callable[..., Any]


def without(play: Play, **switches: bool) -> Play:
    """The same play, whose keeper in this life does without some of them."""
    play.keeper = DagKeeper(
        epoch=play.epoch,
        next_number=play.records.next_number(),
        rng=Random(1),
        wall_offset_ns=0,
        safeguards=Safeguards(**switches),
    )
    return play


def test_without_the_attempt_fence_an_attempt_that_was_given_up_brings_a_result(play: Play) -> None:
    without(play, attempt_fence=False)
    play.beat("w")
    play.submit({"a": ""})
    first = play.fence("a")
    play.lose("w")
    play.beat("v")
    assert play.fence("a") != first
    play.result(first, output=b'"of the first"')
    assert play.row(0).output == b'"of the first"'
    assert play.keeper.stale_results == 0


def test_without_leases_of_limits_a_manager_that_starts_again_knows_of_no_holds(play: Play) -> None:
    limited = {"limits": (Limit("k", concurrency=1),)}
    play.beat("w")
    play.submit({"a": limited, "b": limited})
    held = play.fence("a")
    play.restart()
    row, live = play.records.live_jobs()[0], play.records.live_tasks(1, -1, 10)
    without(play, leased_limits=False)
    play.keeper.restore_job(play.now, row)
    play.keeper.restore_tasks(play.now, 1, live)
    play.go_on()
    play.beat("w")
    play.hear("w", Held(play.epoch, (held,)))
    play.beat("w")
    assert play.names() == {"b"}, "though a runs"


def test_without_the_commit_first_everything_is_told_at_once(play: Play) -> None:
    without(play, commit_first=False)
    play.beat("w")
    play.hold()
    id = play.submit({"a": "", "b": "a"})
    assert [one.job for one in play.answers] == [id]
    play.done("a")
    assert play.took == [play.fence("a")] and "b" in play.names()
    play.release()
    assert [one.job for one in play.answers] == [id], "that it is durable is no news then"
