"""Dag jobs without their safeguards: each takes away what its name says, and nothing else."""

from collections.abc import Callable
from typing import Any

from talka.wire.tasks import Held
from talka.work.dags.dag import Limit
from tests.sim.variants import without

Play = Any
PlayOf = Callable[..., Any]


@without("attempt_fence")
def test_without_the_attempt_fence_an_attempt_that_was_given_up_brings_a_result(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    first = play.fence("a")
    play.lose("w")
    play.beat("v")
    assert play.fence("a") != first
    play.result(first, output=b'"of the first"')
    assert play.row(0).output == b'"of the first"'
    assert play.keeper.stale_results == 0


@without("leased_limits")
def test_without_leases_of_limits_a_manager_that_starts_again_knows_of_no_holds(play: Play) -> None:
    limited = {"limits": (Limit("k", concurrency=1),)}
    play.beat("w")
    play.submit({"a": limited, "b": limited})
    held = play.fence("a")
    play.restart()
    play.go_on()
    play.beat("w")
    play.hear("w", Held(play.epoch, (held,)))
    play.beat("w")
    assert play.names() == {"b"}, "though a runs"


@without("commit_first")
def test_without_the_commit_first_everything_is_told_at_once(play: Play) -> None:
    play.beat("w")
    play.hold()
    id = play.submit({"a": "", "b": "a"})
    assert [one.job for one in play.answers] == [id]
    play.done("a")
    assert play.took == [play.fence("a")] and "b" in play.names()
    play.release()
    assert [one.job for one in play.answers] == [id], "that it is durable is no news then"
