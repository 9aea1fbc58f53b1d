"""Attempts of another store, or of another life of it: they count for nothing, and workers drop them."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.control.dags.keepers import DagKeepers
from talka.control.tasks.epoch_floor import EPOCH_LIMIT, PAUSE_NS, STEP_LIMIT, TOO_HIGH, TOO_OLD, EpochFloor
from talka.control.tasks.store_effects import RaiseEpoch, WorkerDropped, WorkerTooOld
from talka.control.worker.effects import AttemptsDropped, EndHandlers
from talka.control.worker.handlers_partition import DROPS_LIMIT
from talka.control.worker.obeyed_epoch import BrokenEpoch, ObeyedEpoch
from talka.wire.attempts import NOWHERE, Dropped, StoreLife
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    Done,
    HandedTask,
    HandlerProgress,
    Held,
    Ran,
    Recall,
    ResultsStored,
    Said,
    TaskInputs,
    TaskLine,
    TaskProgress,
    TaskResult,
)
from tests.control.dag_play import DagPlay
from tests.control.worker.test_handlers_pool import Rig
from tests.sim.variants import without

PlayOf = Callable[..., DagPlay]
ONE = StoreLife(1, 10, 100)
RESTORED = StoreLife(1, 11, 101)
"""The same store in another life."""
OTHER = StoreLife(2, 12, 102)
AGAIN = StoreLife(1, 10, 103)
"""The same life, opened by another manager."""


def task(fence: int, job: str = "lost", **more: Any) -> HandedTask:
    return HandedTask(fence, job, f"t{fence & 255}", "resize", 1, b"null", **more)


# Names.


def test_attempts_are_of_one_store_in_one_life_whoever_opened_it() -> None:
    assert ONE.is_of(AGAIN) and AGAIN.is_of(ONE)
    assert not ONE.is_of(RESTORED) and not ONE.is_of(OTHER) and not ONE.is_of(NOWHERE)
    assert not StoreLife(1, 10).is_of(StoreLife(2, 10))
    assert str(StoreLife(0xAB, 0xCD)) == "store ab, life cd"


# What a worker obeys.


def test_a_worker_remembers_whose_epoch_it_obeys() -> None:
    obeyed = ObeyedEpoch({})
    assert (obeyed.epoch, obeyed.life) == (0, NOWHERE)

    puts = obeyed.rise(7, ONE)

    again = ObeyedEpoch({key: content for key, content in puts if content is not None})
    assert (again.epoch, again.life) == (7, ONE)


@pytest.mark.parametrize(
    "content", [b"", b"1 2", b"1 2 3 2 1", b"1 2 3 0", b"1 2 3 65", b"1 2 x", b"-1 2 3", b"1 2 %d" % (1 << 62)]
)
def test_a_stored_life_that_is_none_is_told(content: bytes) -> None:
    with pytest.raises(BrokenEpoch):
        ObeyedEpoch({"epoch": b"7", "epoch/life": content})


def held(*, life: StoreLife = ONE, epoch: int = 6) -> Rig:
    """Two attempts run, one waits, one has ended and nobody took its result, one was taken."""
    rig = Rig(1, plain=("resize",))
    rig.hear(AssignTasks(epoch, tuple(task(epoch << 32 | number) for number in (1, 2)), of=life))
    rig.say(1, Ran((TaskResult(epoch << 32 | 1, "completed", b"1"),)))
    rig.say(1, Ran((TaskResult(epoch << 32 | 2, "completed", b"2"),)))
    rig.hear(ResultsStored(epoch, (epoch << 32 | 1,), life))
    rig.hear(AssignTasks(epoch, tuple(task(epoch << 32 | number) for number in (3, 4, 5)), of=life))
    return rig.forget()


def test_a_worker_drops_all_it_holds_of_another_life_and_reports_it() -> None:
    rig = held()

    rig.hear(AskHeld(7, RESTORED))

    dropped = Dropped(1, 10, 3, 1)
    assert rig.all(Held) == [Held(7, (), 0, 1, RESTORED, (dropped,))]
    assert rig.all(AttemptsDropped) == [AttemptsDropped(dropped)]
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]
    assert rig.all(Done) == [], "nothing is told of what was dropped"
    assert rig.count("attempts_dropped_total") == 4
    assert rig.pool.is_idle


def test_results_that_were_dropped_take_no_room_any_more() -> None:
    rig = held()
    assert rig.count("results_untaken_bytes") > 0

    rig.hear(AskHeld(7, RESTORED))

    assert (rig.count("results_untaken"), rig.count("results_untaken_bytes")) == (0, 0)


def test_what_was_dropped_says_nothing_any_more() -> None:
    rig = held()
    rig.say(1, Said((HandlerProgress(6 << 32 | 3, b"1"),), (TaskLine(6 << 32 | 3, 1, "row 1"),)))
    rig.hear(TaskInputs(6, 6 << 32 | 9, {"a": b"1"}, of=ONE))
    rig.hear(AskHeld(7, RESTORED))
    rig.forget()

    rig.say(1, Ran((TaskResult(6 << 32 | 3, "completed", b"3"),)))
    rig.exit(1)
    rig.later(40_000_000_000)

    assert rig.all(Done) == [] and rig.all(TaskProgress) == []
    assert rig.count("results_unknown_total") == 1


def test_the_numbers_of_what_was_dropped_begin_again() -> None:
    """Those that ran, that ended and that were taken: none of them stands in the way of a task with its number."""
    rig = held()
    rig.hear(AskHeld(7, RESTORED))
    rig.exit(1)
    rig.core_of.clear()
    rig.begun.clear()

    fences = [6 << 32 | number for number in (1, 2, 3)]
    rig.hear(AssignTasks(7, tuple(task(fence, "new") for fence in fences), of=RESTORED))
    for fence in fences:
        rig.say(rig.core_of[fence], Ran((TaskResult(fence, "completed", b"4"),)))

    assert rig.begun == fences
    assert [(result.fence, result.output) for result in rig.results] == [(fence, b"4") for fence in fences]
    assert {done.of for done in rig.all(Done)} == {RESTORED}


def test_a_task_that_waits_for_a_core_with_bounds_is_dropped_with_it() -> None:
    rig = Rig(2)
    rig.loads = False
    rig.hear(AssignTasks(6, (task(6 << 32 | 1, memory_bytes=1 << 20),), of=ONE))
    rig.hear(AssignTasks(6, (task(6 << 32 | 2, memory_bytes=1 << 20), task(6 << 32 | 3, memory_bytes=1)), of=ONE))

    rig.hear(AskHeld(7, OTHER))
    for core in rig.started:
        rig.exit(core)

    assert rig.all(AttemptsDropped) == [AttemptsDropped(Dropped(1, 10, 3, 0))]
    assert rig.pool.is_idle and rig.all(Done) == []


def test_the_next_life_of_a_manager_gets_all_that_is_held_of_its_store() -> None:
    rig = held()

    rig.hear(AskHeld(7, AGAIN))

    (holding,) = rig.all(Held)
    assert sorted(fence & 255 for fence in holding.fences) == [2, 3, 4, 5]
    assert (holding.of, holding.dropped) == (AGAIN, ())
    assert rig.all(AttemptsDropped) == []


def test_a_worker_with_nothing_to_drop_reports_nothing() -> None:
    rig = Rig()
    rig.hear(AskHeld(6, ONE))
    rig.hear(AskHeld(7, OTHER))

    assert [holding.dropped for holding in rig.all(Held)] == [(), ()]
    assert rig.all(AttemptsDropped) == []


def test_nobody_else_is_obeyed_under_the_same_epoch() -> None:
    rig = held()
    for message in (
        AskHeld(6, RESTORED),
        AssignTasks(6, (task(6 << 32 | 7),), of=OTHER),
        ResultsStored(6, (6 << 32 | 2,), AGAIN),
        Recall(6, (6 << 32 | 3,), of=NOWHERE),
    ):
        assert rig.hear(message) == []

    assert rig.pool.refused == {"life": 4}
    assert rig.count("attempts_waiting") + rig.count("attempts_running") == 3


def test_what_was_dropped_is_told_until_the_manager_commands_otherwise() -> None:
    rig = held()
    rig.hear(AskHeld(7, RESTORED))
    rig.hear(AskHeld(7, RESTORED))
    rig.hear(ResultsStored(7, (), RESTORED))
    rig.hear(AskHeld(7, RESTORED))

    assert [len(holding.dropped) for holding in rig.all(Held)] == [1, 1, 0]


def test_reports_of_many_lives_are_bounded() -> None:
    rig = Rig(1)
    for number in range(DROPS_LIMIT + 3):
        life = StoreLife(1, 50 + number)
        rig.hear(AskHeld(10 + number, life))
        rig.pool.room.add(task(number), 100)
    rig.hear(AskHeld(99, OTHER))

    (*_, holding) = rig.all(Held)
    assert len(holding.dropped) == DROPS_LIMIT
    assert holding.dropped[-1] == Dropped(1, 50 + DROPS_LIMIT + 2, 1, 0)


@without("store_life")
def test_without_names_a_worker_tells_of_what_another_gave_it() -> None:
    rig = Rig(1)
    rig.hear(AssignTasks(6, (task(6 << 32 | 1),), of=ONE))

    rig.hear(AssignTasks(6, (task(6 << 32 | 1, "new"),), of=RESTORED))
    rig.hear(AskHeld(7, RESTORED))

    assert rig.pool.repeated == 1
    assert rig.all(Held)[-1].fences == (6 << 32 | 1,)


# What counts for a manager.


@pytest.fixture
def play(play_of: PlayOf) -> DagPlay:
    return play_of(epoch=6, life=ONE)


def a_result(play: DagPlay, **changed: Any) -> TaskResult:
    (fence,) = play.handed
    handed = play.handed[fence]
    fields = {"job": handed.job, "task": handed.id, "output": b"7", **changed}
    return TaskResult(fence, fields.pop("outcome", "completed"), **fields)


def test_a_result_that_matches_all_of_its_name_counts(play: DagPlay) -> None:
    play.beat("w")
    play.submit({"a": ""})

    play.hear("w", Done((a_result(play),), AGAIN))

    assert play.row(0).output == b"7"
    assert {message.of for message in play.said(AssignTasks) + play.said(ResultsStored)} == {ONE}  # type: ignore[operator]


@pytest.mark.parametrize("life", [RESTORED, OTHER, NOWHERE], ids=str)
def test_a_result_of_another_store_or_life_does_not_count_and_is_not_taken(play: DagPlay, life: StoreLife) -> None:
    play.beat("w")
    play.submit({"a": ""})
    (fence,) = play.handed

    play.hear("w", Done((a_result(play),), life))
    play.hear("w", TaskProgress((fence,), (HandlerProgress(fence, b"1"),), (), life))
    play.hear("w", Held(6, (), of=life))

    assert (play.row(0).output, play.row(0).checkpoint, play.took) == (b"", b"", [])
    assert play.keeper.foreign_messages == 3


@pytest.mark.parametrize(
    "changed",
    [{"job": "another"}, {"task": "another"}, {"job": "", "task": ""}, {"job": "", "outcome": "failed"}],
    ids=["job", "task", "none", "failed without a name"],
)
def test_a_result_of_another_job_or_task_does_not_count(play: DagPlay, changed: dict[str, Any]) -> None:
    play.beat("w")
    play.submit({"a": ""})

    play.hear("w", Done((a_result(play, **changed),), ONE))

    assert play.row(0).output == b""
    assert play.keeper.stale_results == 1


def test_a_result_of_another_worker_does_not_count(play: DagPlay) -> None:
    play.beat("w")
    play.submit({"a": ""})

    play.hear("v", Done((a_result(play),), ONE))
    assert play.row(0).output == b""
    play.hear("w", Done((a_result(play),), ONE))
    assert play.row(0).output == b"7"


def test_one_that_the_worker_does_not_have_is_cancelled_without_a_name(play: DagPlay) -> None:
    play.beat("w")
    id = play.submit({"a": ""})
    play.change(id, "cancel", "")

    play.hear("w", Done((TaskResult(play.fence("a"), "cancelled"),), ONE))

    assert [end.job for end in play.ended] == [id]


@without("store_life")
def test_without_names_a_result_counts_whoever_gave_it_out(play_of: PlayOf) -> None:
    play = play_of(epoch=6, life=RESTORED)
    play.beat("w", remembers=(5, ONE))
    play.submit({"a": ""})

    play.hear("w", Done((a_result(play, job="lost"),), ONE))

    assert play.row(0).output == b"7"


# What a worker remembers.


def test_a_worker_that_obeyed_another_life_is_asked_before_it_is_given_anything(play: DagPlay) -> None:
    play.submit({"a": ""})
    play.beat("w", remembers=(5, RESTORED))
    assert play.said(AskHeld) == [AskHeld(6, ONE)]
    assert play.hands == []

    dropped = Dropped(1, 11, 3, 0)
    play.hear("w", Held(6, (), of=ONE, dropped=(dropped,)))
    play.hear("w", Held(6, (), of=ONE, dropped=(dropped,)))
    play.beat("w", remembers=(6, ONE))

    assert play.news == [WorkerDropped("w", dropped)], "told once"
    assert [worker for worker, _ in play.hands] == ["w"]


@pytest.mark.parametrize(
    ("remembers", "is_own"),
    [((6, RESTORED), False), ((6, AGAIN), True), ((9, ONE), True), ((9, OTHER), False)],
    ids=["another life", "another opening", "this life", "another store"],
)
def test_nothing_is_given_to_a_worker_under_an_epoch_that_it_obeyed_for_another(
    play: DagPlay, remembers: tuple[int, StoreLife], is_own: bool
) -> None:
    play.submit({"a": ""})
    for _ in range(3):
        play.beat("w", remembers=remembers)
    wanted = remembers[0] + 1
    assert play.news == [RaiseEpoch(wanted, "w", remembers[0], is_own)], "asked for once"
    assert play.told_all == []

    play.take(play.keeper.on_epoch(play.now, wanted))
    play.beat("w", remembers=remembers)
    play.hear("w", Held(wanted, (), of=ONE))
    play.beat("w", remembers=(wanted, ONE))

    (fence,) = play.handed
    assert fence >> 32 == wanted == play.keeper.floor.epoch
    assert play.said(AssignTasks)[0].epoch == wanted
    assert play.keeper.floor.raised_total == 1


def test_a_worker_that_obeys_another_meanwhile_is_given_no_more(play: DagPlay) -> None:
    play.beat("w")
    play.beat("w", remembers=(8, OTHER))
    play.submit({"a": ""})

    assert play.hands == []


def test_a_worker_that_cannot_name_attempts_is_given_none_and_that_is_told_once(play: DagPlay) -> None:
    play.beat("w")
    for _ in range(2):
        play.beat("w", names=False)
    play.submit({"a": ""})
    assert (play.news, play.hands) == ([WorkerTooOld("w")], [])

    play.beat("w")
    assert [worker for worker, _ in play.hands] == ["w"]
    play.beat("w", names=False)
    play.lose("w")
    play.beat("w", boot=2, names=False)
    assert play.news == [WorkerTooOld("w")] * 3


def test_who_is_given_nothing_is_told_why_until_it_may_be_given_something(play: DagPlay) -> None:
    keepers = DagKeepers()
    assert keepers.denied(play.now) == {}
    keepers.set(play.keeper)
    play.beat("w", remembers=(7, OTHER))
    play.beat("v", names=False)
    play.beat("x")

    assert keepers.denied(play.now) == {"w": ("refused", TOO_HIGH), "v": ("refused", TOO_OLD)}
    play.beat("w", remembers=(7, OTHER), names=False)
    assert keepers.denied(play.now)["w"] == ("refused", TOO_OLD)
    play.beat("w", remembers=(7, OTHER))
    assert keepers.denied(play.now)["w"] == ("refused", TOO_HIGH)

    play.take(play.keeper.on_epoch(play.now, 8))
    play.beat("w", remembers=(7, OTHER))
    play.lose("v")
    assert keepers.denied(play.now) == {}


def test_a_worker_was_heard_when_it_may_be_given_tasks_and_its_handlers_are_known(play: DagPlay) -> None:
    keepers = DagKeepers()
    assert not keepers.has_heard("w")
    keepers.set(play.keeper)
    assert not keepers.has_heard("w")
    play.beat("w", remembers=(7, OTHER))
    assert not keepers.has_heard("w"), "it is given nothing under this epoch"

    play.beat("v", handlers=(), is_loading=True)
    assert not keepers.has_heard("v")
    play.beat("v")
    assert keepers.has_heard("v")


def test_attempts_under_way_go_on_when_the_epoch_is_raised(play: DagPlay) -> None:
    play.beat("w")
    play.submit({"a": ""})
    first = play.fence("a")
    play.beat("v", remembers=(7, OTHER))
    play.take(play.keeper.on_epoch(play.now, 8))

    play.result(first, output=b"7")

    assert play.row(0).output == b"7"
    assert play.said(ResultsStored) == [ResultsStored(8, (first,), ONE)]


def test_an_epoch_that_the_store_did_not_take_is_asked_for_again(play: DagPlay) -> None:
    play.beat("w", remembers=(9, OTHER))
    play.take(play.keeper.on_epoch(play.now, 6))
    play.beat("w", remembers=(9, OTHER))
    assert len(play.news) == 1, "not at once"
    play.pass_time(1)
    play.beat("w", remembers=(9, OTHER))

    assert play.news == [RaiseEpoch(10, "w", 9, False)] * 2
    assert play.keeper.floor.raised_total == 0


def test_an_epoch_grows_by_no_more_than_a_step_at_once() -> None:
    floor = EpochFloor(6, ONE)
    assert floor.is_below(1 << 60, OTHER)

    assert floor.wanted(0, 1 << 60) == 6 + STEP_LIMIT
    assert floor.wanted(PAUSE_NS, 1 << 60) == 0, "one is being taken"
    floor.raised(6 + STEP_LIMIT)
    assert floor.wanted(PAUSE_NS - 1, 1 << 60) == 0
    assert floor.wanted(PAUSE_NS, 1 << 60) == 6 + 2 * STEP_LIMIT


def test_the_last_epoch_is_never_used_up() -> None:
    floor = EpochFloor(EPOCH_LIMIT - 1, ONE)
    assert floor.wanted(0, EPOCH_LIMIT) == 0
    assert floor.wanted(0, EPOCH_LIMIT - 1) == EPOCH_LIMIT
    assert EPOCH_LIMIT << 32 < 1 << 63
    assert EpochFloor(3, ONE, epoch_limit=3).wanted(0, 9) == 0


@without("epoch_floor")
def test_without_a_floor_nobody_asks_what_a_worker_remembers(play_of: PlayOf) -> None:
    play = play_of(epoch=6, life=ONE)
    play.submit({"a": ""})
    play.beat("w", remembers=(9, ONE))

    assert (play.news, len(play.hands)) == ([], 1)
