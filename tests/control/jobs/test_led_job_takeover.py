"""A job that another manager led: what is asked before anybody acts, and how each of its tasks is taken up."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, TypeVar

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.control.jobs.effects import AttemptAccepted, BlobWanted, DocumentWanted, KeepWanted, TaskLost
from talka.control.jobs.led_job import START_DELAY_NS, LedJob
from talka.control.member.clock_offsets import ClockOffsets
from talka.stats.tally import Tally
from talka.testing.trust import keys_of_workers
from talka.units import MILLISECOND, SECOND
from talka.wire.entries import (
    AttemptEntry,
    Grant,
    JobCheckpoint,
    JobEntry,
    ShardEntry,
    WorkflowEntry,
    encode_checkpoint,
)
from talka.wire.jobs import (
    CHANNEL,
    Acknowledge,
    Assign,
    AttemptResult,
    CheckpointStored,
    Finished,
    Halt,
    JobMessage,
    NoTask,
    Reconcile,
    Report,
    ResultAccepted,
    Start,
    StoreCheckpoint,
    Sync,
    TaskFacts,
    WorkerSnapshot,
    encode_result,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Armed, Gap, Settings, TimeAsked, TimeOver, Totals, encode
from talka.work.deadlines import Deadline, DeadlineRecord, Extension
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate
from talka.work.thresholds import Verdict
from tests.sim.variants import without

START_NS = 1_000 * SECOND
WALL_OFFSET_NS = 5_000 * SECOND
FENCE = (1, 2, 1)
LIFE = 4
PLACES = {1: "w1", 2: "w2"}
"""Attempts stored, and where."""
W1, W2, W3 = (Grant(worker, 7, 1) for worker in ("w1", "w2", "w3"))
W2_LOST = Grant("w2", 7, 1, lost="its lease is over")
PLAN = ConstantRate(100, "60s", max_vus=12).plan()
Message = TypeVar("Message")
TaskStage = Literal["arming", "armed", "running", "ended"]


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def result_of(attempt: int, **more: Any) -> bytes:
    return encode_result(AttemptResult("b4k7", attempt, Tally(started=9, iterations=9), [], ended_at_ns=SECOND, **more))


RESULT = result_of(1)


def shards_of(closed: Mapping[int, bytes], **more: Any) -> tuple[ShardEntry, ...]:
    return tuple(
        ShardEntry(
            number - 1,
            1,
            2,
            **{
                "attempts": (
                    AttemptEntry(number, place, sha256(closed[number]).digest() if number in closed else b""),
                ),
                **more,
            },
        )
        for number, place in PLACES.items()
    )


def checkpoint_of(state: TaskState = TaskState.RUNNING, closed: Mapping[int, bytes] = {}, **more: Any) -> JobCheckpoint:
    """Two tasks of one workflow; the load began two seconds ago."""
    begun = state is not TaskState.ASSIGNED
    entry = WorkflowEntry("Shop", state, more.pop("shards", None) or shards_of(closed), 0 if begun else -1)
    origin_ms = (START_NS - 2 * SECOND + WALL_OFFSET_NS) // MILLISECOND if begun else 0
    return JobCheckpoint(**{"attempts": 2, "workflows": (entry,), "origin_ms": origin_ms, **more})


def entry_of(
    checkpoint: JobCheckpoint, grants: tuple[Grant, ...] = (W1, W2), *, timeout_s: int = 120, **more: Any
) -> JobEntry:
    workflow = WorkflowOrder(
        name="Shop",
        plan=PLAN,
        priority="auto",
        is_test=True,
        depends_on=(),
        timeout_ns=timeout_s * SECOND,
        thresholds=(),
        flows=(),
        load="100/s",
        nodes=(),
        saves=True,
    )
    return JobEntry(
        job="b4k7",
        order=JobOrder("shop", BundleFacts("0" * 64, 70, b"", "shop.py"), (workflow,), Settings(30 * SECOND)),
        state=JobState.RUNNING,
        number=1,
        fence=FENCE,
        pool=2,
        grants=grants,
        checkpoint=encode_checkpoint(checkpoint),
        version=5,
        **more,
    )


class Heir:
    """The manager that takes the job over, its clock, and everything it asked for."""

    def __init__(self, checkpoint: JobCheckpoint, **more: Any) -> None:
        self.now = START_NS
        self.clocks = ClockOffsets()
        self.led = LedJob(
            entry_of(checkpoint, **more),
            life=LIFE,
            clocks=self.clocks,
            keys=keys_of_workers(1),
            wall_offset_ns=WALL_OFFSET_NS,
        )
        self.effects: list[object] = []
        self.take(self.led.start(self.now))

    def take(self, effects: list[object]) -> list[object]:
        self.effects += effects
        return effects

    def learn_clock(self, worker: str) -> None:
        self.clocks.heard(self.now, worker, self.clocks.asked(self.now, worker), self.now)

    def later(self, seconds: float) -> Heir:
        self.now += round(seconds * SECOND)
        return self

    def tick(self) -> list[object]:
        return self.take(self.led.tick(self.now))

    def say(self, worker: str, message: JobMessage) -> list[object]:
        return self.take(self.led.on_message(self.now, worker, message))

    def has(self, worker: str, *tasks: TaskFacts) -> list[object]:
        return self.say(worker, WorkerSnapshot("b4k7", FENCE, 1, tasks))

    def found(self, first: TaskFacts | None, second: TaskFacts | None) -> list[object]:
        """What the two workers have."""
        effects = self.has("w1", *([] if first is None else [first]))
        return [*effects, *self.has("w2", *([] if second is None else [second]))]

    def stored(self) -> list[object]:
        """The last checkpoint is stored, and so are those that follow from that."""
        revision = said(self.effects, StoreCheckpoint)[-1].revision
        effects = self.take(
            self.led.on_checkpoint_stored(self.now, CheckpointStored("b4k7", FENCE, revision, life=LIFE))
        )
        return [*effects, *self.stored()] if said(effects, StoreCheckpoint) else effects

    @property
    def running(self) -> dict[int, tuple[bool, int]]:
        """Attempts under way: whether each is armed, and when it went."""
        assert self.led.job is not None
        return {core: (attempt.armed, attempt.go_at_ns) for core, (_, _, attempt) in self.led.job.attempts.items()}

    @property
    def state(self) -> TaskState:
        assert self.led.job is not None
        return self.led.job.workflows["Shop"].state


def runs(attempt: int) -> TaskFacts:
    return TaskFacts(attempt, "running", 2 * SECOND, 2 * SECOND)


def told(effects: list[object], kind: type[Message]) -> list[tuple[str, Message]]:
    """Messages of a kind, and to whom."""
    words = [effect for effect in effects if isinstance(effect, Send)]
    return [(word.to, word.message) for word in words if isinstance(word.message, kind)]


def said(effects: list[object], kind: type[Message]) -> list[Message]:
    return [message for _, message in told(effects, kind)]


# -- before it acts


def test_every_worker_obeys_the_new_fence_before_anything_is_done() -> None:
    heir = Heir(checkpoint_of())

    assert heir.effects == [Send(CHANNEL, worker, Reconcile("b4k7", FENCE, 1), Lane.CONTROL) for worker in ("w1", "w2")]
    assert heir.has("w1", runs(1)) == []
    assert heir.say("w1", Report("b4k7", 1, encode(Armed()))) == []
    assert heir.say("w1", Finished("b4k7", 1, "a" * 64, 9)) == []
    assert heir.led.on_clock(heir.now, "w1") == []
    assert (heir.led.phase, heir.led.facts().state) == ("reconciling", JobState.RUNNING)

    assert heir.has("w2", runs(2)) != []

    assert heir.led.phase == "leading"


def test_workers_are_asked_again_until_each_has_answered() -> None:
    heir = Heir(checkpoint_of())
    heir.has("w1", runs(1))

    assert heir.later(0.4).tick() == []
    assert told(heir.later(0.1).tick(), Reconcile) == [("w2", Reconcile("b4k7", FENCE, 2))]


def test_a_worker_that_is_lost_is_not_waited_for_and_told_all_the_same() -> None:
    heir = Heir(checkpoint_of())
    heir.has("w1", runs(1))

    effects = heir.take(heir.led.on_entry(heir.now, entry_of(checkpoint_of(), (W1, W2_LOST), cancel="")))
    assert effects == [], "it is as old as what is known"
    newer = msgspec.structs.replace(entry_of(checkpoint_of(), (W1, W2_LOST)), version=6)
    effects = heir.take(heir.led.on_entry(heir.now, newer))

    assert TaskLost("b4k7", 2, "w2", "its lease is over") in effects
    assert told(heir.tick(), Reconcile) == [("w2", Reconcile("b4k7", FENCE, 2))]
    heir.has("w2")
    assert said(heir.later(5).tick(), Reconcile) == []


def test_a_worker_that_was_lost_before_is_told_once_a_second() -> None:
    heir = Heir(checkpoint_of(), grants=(W1, W2_LOST))

    heir.has("w1", runs(1))

    assert heir.led.phase == "leading"
    assert [worker for worker, _ in told(heir.tick(), Reconcile)] == ["w2"]
    assert [worker for worker, _ in told(heir.later(1).tick(), Reconcile)] == ["w2"]


@without("takeover_barrier")
def test_without_the_barrier_nobody_is_asked_and_nothing_is_thought_to_run() -> None:
    heir = Heir(checkpoint_of(), grants=(W1, W2_LOST))

    assert said(heir.effects, Reconcile) == []
    assert TaskLost("b4k7", 1, "w1", "is gone from its worker w1") in heir.effects
    assert said(heir.tick(), Reconcile) == [], "nor is the lost one told"


@without("takeover_barrier")
def test_without_the_barrier_a_worker_lost_meanwhile_is_not_told_either() -> None:
    result = result_of(1)
    heir = Heir(checkpoint_of(closed={1: result}))
    newer = msgspec.structs.replace(entry_of(checkpoint_of(), (W1, W2_LOST)), version=6)

    assert heir.led.on_entry(heir.now, newer) == []

    assert said(heir.tick(), Reconcile) == []


def test_a_snapshot_after_it_leads_changes_nothing() -> None:
    heir = Heir(checkpoint_of())
    heir.found(runs(1), runs(2))

    assert heir.has("w1") == []
    assert heir.running == {1: (True, START_NS - 2 * SECOND), 2: (True, START_NS - 2 * SECOND)}


def test_an_answer_of_the_leader_before_it_leads_changes_nothing() -> None:
    heir = Heir(checkpoint_of())

    assert heir.led.on_checkpoint_stored(heir.now, CheckpointStored("b4k7", FENCE, 0, life=LIFE)) == []


def test_a_blob_that_it_did_not_want_is_let_pass() -> None:
    heir = Heir(checkpoint_of())

    assert heir.led.on_blob(heir.now, "e" * 64, None) == []

    assert heir.led.warnings == []


# -- results that were accepted


def test_results_that_were_accepted_are_fetched_before_it_leads() -> None:
    result = result_of(1)
    heir = Heir(checkpoint_of(closed={1: result}))
    assert heir.effects[0] == BlobWanted("b4k7", digest_of(result), 0, ())
    assert said(heir.found(None, runs(2)), StoreCheckpoint) == []

    effects = heir.take(heir.led.on_blob(heir.now, digest_of(result), result))

    assert heir.led.phase == "leading"
    assert effects[:2] == [
        AttemptAccepted("b4k7", 1, digest_of(result)),
        Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS),
    ]
    assert heir.led.job is not None
    assert heir.led.job.tally().started == 9
    assert list(heir.running) == [2]
    assert heir.led.warnings == []


@pytest.mark.parametrize("found", [None, b"?"], ids=["nothing", "no result"])
def test_of_a_result_that_nobody_has_any_more_readers_are_warned_and_the_rest_runs_again(found: bytes | None) -> None:
    result = result_of(1)
    heir = Heir(checkpoint_of(closed={1: result}))
    heir.found(None, runs(2))

    heir.take(heir.led.on_blob(heir.now, digest_of(result), found))

    assert heir.led.warnings == ["the result of task 1 was kept and cannot be found: it is missing"]
    heir.tick()
    assert [(worker, assign.attempt) for worker, assign in told(heir.stored(), Assign)] == [("w1", 3)]


def test_last_totals_of_a_lost_task_count_and_the_rest_runs_elsewhere() -> None:
    result = result_of(2, is_lost=True, shares=(9,))
    heir = Heir(checkpoint_of(closed={2: result}), grants=(W1, W2_LOST, W3))
    heir.has("w1", runs(1))
    heir.has("w3")

    heir.take(heir.led.on_blob(heir.now, digest_of(result), result))
    heir.tick()
    effects = heir.stored()

    assert [(worker, assign.attempt, assign.iterations_done) for worker, assign in told(effects, Assign)] == [
        ("w3", 3, (9,))
    ]
    assert heir.led.job is not None
    assert heir.led.job.tally().started == 9
    assert [lost.cause for lost in heir.led.job.lost] == ["was lost with its worker w2"]


def test_a_job_whose_last_result_was_accepted_ends_with_the_next_manager() -> None:
    results = {number: result_of(number) for number in PLACES}
    heir = Heir(checkpoint_of(closed=results))
    heir.found(None, None)

    for result in results.values():
        heir.take(heir.led.on_blob(heir.now, digest_of(result), result))

    assert DocumentWanted("b4k7") in heir.effects
    assert heir.led.phase == "documenting"


def test_a_workflow_that_a_result_ends_takes_the_tasks_beside_it_along() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED, attempts=5, shards=tries()), grants=(W1, W2_LOST, W3))
    heir.has("w1", TaskFacts(1, "armed"))

    effects = heir.has("w3")

    assert heir.state is TaskState.FAILED
    assert DocumentWanted("b4k7") in effects
    assert [halt.attempt for halt in said(effects, Halt)] == [1]


def tries() -> tuple[ShardEntry, ...]:
    """The task that was lost with w2 was tried four times; then comes the one of w1."""
    lost = tuple(AttemptEntry(number, "w2") for number in (2, 3, 4, 5))
    return (ShardEntry(1, 1, 2, lost), ShardEntry(0, 1, 2, (AttemptEntry(1, "w1"),)))


def test_what_ended_before_is_not_taken_up() -> None:
    results = {number: result_of(number) for number in PLACES}
    done = shards_of(results, is_done=True)
    heir = Heir(checkpoint_of(TaskState.COMPLETED, shards=done))
    for result in results.values():
        heir.take(heir.led.on_blob(heir.now, digest_of(result), result))

    effects = heir.found(None, None)

    assert not any(isinstance(effect, AttemptAccepted) for effect in effects)
    assert DocumentWanted("b4k7") in effects
    assert heir.led.job is not None
    assert heir.led.job.tally().started == 18


def test_a_task_that_is_done_is_not_taken_up_with_those_beside_it() -> None:
    result = result_of(1)
    shards = (shards_of({1: result}, is_done=True)[0], shards_of({})[1])
    heir = Heir(checkpoint_of(shards=shards))
    heir.take(heir.led.on_blob(heir.now, digest_of(result), result))

    effects = heir.found(None, runs(2))

    assert list(heir.running) == [2]
    assert not any(isinstance(effect, AttemptAccepted) for effect in effects), "the manager before has accepted it"
    assert said(effects, ResultAccepted) == []


# -- tasks


def test_tasks_that_run_run_on() -> None:
    heir = Heir(checkpoint_of())

    effects = heir.found(runs(1), runs(2))

    assert [kind for kind in (Assign, Start, Halt) if said(effects, kind)] == []
    assert heir.running == {1: (True, START_NS - 2 * SECOND), 2: (True, START_NS - 2 * SECOND)}
    assert heir.led.job is not None
    assert heir.led.job.origin_ns == START_NS - 2 * SECOND
    totals = Totals(5, Tally(started=70), [], 1, 0)
    assert said(heir.say("w1", Report("b4k7", 1, encode(totals))), Acknowledge) == [Acknowledge("b4k7", FENCE, 1, 5, 0)]


def test_clocks_are_asked_for_at_once() -> None:
    heir = Heir(checkpoint_of())
    heir.found(runs(1), runs(2))

    assert [worker for worker, _ in told(heir.tick(), Sync)] == ["w1", "w2"]


def test_tasks_that_run_tell_that_the_load_has_begun_when_the_entry_does_not() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))
    heir.learn_clock("w2")

    heir.found(runs(1), TaskFacts(2, "armed"))

    assert heir.state is TaskState.RUNNING
    assert heir.running == {1: (True, START_NS - 2 * SECOND), 2: (True, heir.now)}
    (start,) = said(heir.stored(), Start)
    assert (start.start_at_ns, start.origin_ns) == (heir.now, START_NS - 2 * SECOND)
    assert heir.led.job is not None
    assert [lost.cause for lost in heir.led.job.lost] == ["was told to start late: its manager was lost"]


def test_it_does_not_matter_which_of_the_tasks_runs() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))

    heir.found(TaskFacts(1, "arming"), runs(2))

    assert heir.state is TaskState.RUNNING
    assert heir.running == {1: (False, 0), 2: (True, START_NS - 2 * SECOND)}


def test_when_the_plan_of_a_workflow_began_is_told_by_the_entry_where_it_is_there() -> None:
    heir = Heir(checkpoint_of())

    heir.found(TaskFacts(1, "running", SECOND, 2 * SECOND), TaskFacts(2, "running", SECOND, 2 * SECOND))

    assert heir.running == {1: (True, START_NS - 2 * SECOND), 2: (True, START_NS - 2 * SECOND)}


def test_tasks_that_have_not_begun_start_when_they_are_armed() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))
    effects = heir.found(TaskFacts(1, "arming"), TaskFacts(2, "armed"))
    assert said(effects, Assign) == []
    assert heir.running == {1: (False, 0), 2: (True, 0)}
    for worker in PLACES.values():
        heir.learn_clock(worker)

    heir.say("w1", Report("b4k7", 1, encode(Armed())))

    assert [worker for worker, _ in told(heir.stored(), Start)] == ["w1", "w2"]


def test_tasks_that_are_armed_need_not_say_it_again() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))
    for worker in PLACES.values():
        heir.learn_clock(worker)

    heir.found(TaskFacts(1, "armed"), TaskFacts(2, "armed"))

    assert [worker for worker, _ in told(heir.stored(), Start)] == ["w1", "w2"]
    assert said(heir.say("w1", Report("b4k7", 1, encode(Armed()))), Start) == []


def test_tasks_that_are_armed_do_not_start_in_a_job_that_is_to_be_cancelled() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED), cancel="alice said so")

    heir.found(TaskFacts(1, "armed"), TaskFacts(2, "armed"))

    assert said(heir.stored(), Start) == []


# -- a start that was decided, and the manager was lost before it could tell


def start_of(effects: list[object]) -> list[tuple[str, int, int]]:
    return [(worker, start.start_at_ns, start.origin_ns) for worker, start in told(effects, Start)]


@pytest.mark.parametrize("stage", ["arming", "armed"])
def test_a_start_that_no_worker_was_told_of_is_decided_again(stage: TaskStage) -> None:
    heir = Heir(checkpoint_of())
    for worker in PLACES.values():
        heir.learn_clock(worker)

    heir.found(TaskFacts(1, stage), TaskFacts(2, "armed"))
    heir.say("w1", Report("b4k7", 1, encode(Armed())))

    instant = heir.now + START_DELAY_NS
    assert start_of(heir.stored()) == [("w1", instant, instant), ("w2", instant, instant)]
    assert heir.led.job is not None
    assert (heir.led.job.origin_ns, heir.led.job.lost) == (instant, [])
    assert {checkpoint.state for checkpoint in said(heir.effects, StoreCheckpoint)} == {JobState.RUNNING}


def test_a_start_that_one_worker_was_told_of_stands() -> None:
    heir = Heir(checkpoint_of())
    heir.learn_clock("w2")

    heir.found(runs(1), TaskFacts(2, "armed"))

    assert start_of(heir.stored()) == [("w2", heir.now, START_NS - 2 * SECOND)]
    assert heir.led.job is not None
    assert [lost.cause for lost in heir.led.job.lost] == ["was told to start late: its manager was lost"]


def test_a_start_stands_when_a_worker_that_may_have_been_told_of_it_is_lost() -> None:
    heir = Heir(checkpoint_of(), grants=(W1, W2_LOST))
    heir.learn_clock("w1")

    heir.has("w1", TaskFacts(1, "armed"))

    assert start_of(heir.stored()) == [("w1", heir.now, START_NS - 2 * SECOND)]


@pytest.mark.parametrize(
    "shards",
    [
        (shards_of({1: RESULT}, is_done=True)[0], shards_of({})[1]),
        (shards_of({1: RESULT})[0], shards_of({})[1]),
        (shards_of({}, gap=0)[0], shards_of({})[1]),
        (shards_of({}, attempts=(AttemptEntry(3, "w1"), AttemptEntry(1, "w1")))[0], shards_of({})[1]),
    ],
    ids=["done", "accepted", "with a gap", "replaced"],
)
def test_a_start_stands_when_something_has_come_of_it(shards: tuple[ShardEntry, ...]) -> None:
    heir = Heir(checkpoint_of(shards=shards, attempts=3, lost=(("Shop", Gap(0, "died", 0, 0, 6, 0)),)))
    heir.learn_clock("w2")
    if shards[0].attempts[0].digest:
        heir.take(heir.led.on_blob(heir.now, digest_of(RESULT), RESULT))

    heir.found(TaskFacts(1, "arming"), TaskFacts(2, "armed"))

    assert start_of(heir.stored()) == [("w2", heir.now, START_NS - 2 * SECOND)]


def test_tasks_that_no_worker_knows_are_assigned_under_the_new_fence_once_one_checkpoint_is_stored() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))

    effects = heir.found(None, None)

    assert len(said(effects, StoreCheckpoint)) == 1
    assert said(effects, Assign) == []
    assigned = told(heir.stored(), Assign)
    assert [(worker, assign.attempt, assign.fence) for worker, assign in assigned] == [
        ("w1", 1, FENCE),
        ("w2", 2, FENCE),
    ]


def test_a_running_task_that_its_worker_does_not_know_is_lost() -> None:
    heir = Heir(checkpoint_of())

    effects = heir.found(runs(1), None)

    assert TaskLost("b4k7", 2, "w2", "is gone from its worker w2") in effects
    assert [(worker, assign.attempt) for worker, assign in told(heir.stored(), Assign)] == [("w2", 3)]
    assert heir.led.job is not None
    (lost,) = heir.led.job.lost
    assert lost.from_ns == 0, "nothing is known of it since the load began"


def test_a_result_of_a_task_that_has_ended_is_fetched_from_its_worker() -> None:
    result = result_of(2)
    heir = Heir(checkpoint_of())

    effects = heir.found(runs(1), TaskFacts(2, "ended", 2 * SECOND, 2 * SECOND, digest_of(result), len(result)))

    assert BlobWanted("b4k7", digest_of(result), len(result), ("w2",)) in effects
    assert heir.led.on_blob(heir.now, digest_of(result), result) == [KeepWanted("b4k7", digest_of(result), result)]
    assert not heir.led.is_caught_up()


def test_a_result_that_is_not_on_the_workers_disk_yet_is_offered_later() -> None:
    heir = Heir(checkpoint_of())

    effects = heir.found(runs(1), TaskFacts(2, "ended", 2 * SECOND, 2 * SECOND))

    assert not any(isinstance(effect, BlobWanted) for effect in effects)
    assert any(isinstance(effect, BlobWanted) for effect in heir.say("w2", Finished("b4k7", 2, "a" * 64, 9)))


def test_tasks_of_lost_workers_are_lost_and_run_again_where_there_is_room() -> None:
    heir = Heir(checkpoint_of(), grants=(W1, W2_LOST, W3))
    heir.has("w1", runs(1))

    effects = heir.has("w3")

    assert TaskLost("b4k7", 2, "w2", "its lease is over") in effects
    assert [(worker, assign.attempt) for worker, assign in told(heir.stored(), Assign)] == [("w3", 3)]


def test_a_worker_that_answered_and_was_lost_before_all_had_is_lost_all_the_same() -> None:
    heir = Heir(checkpoint_of(TaskState.ASSIGNED))
    heir.has("w2", TaskFacts(2, "armed"))
    newer = msgspec.structs.replace(entry_of(checkpoint_of(TaskState.ASSIGNED), (W1, W2_LOST)), version=6)
    heir.led.on_entry(heir.now, newer)

    effects = heir.has("w1", TaskFacts(1, "armed"))

    assert TaskLost("b4k7", 2, "w2", "its lease is over") in effects
    assert heir.running == {1: (True, 0), 2: (False, 0)}


@pytest.mark.parametrize("grants", [(W1, W2_LOST, W3), (W1, W2, W3)], ids=["worker", "task"])
def test_a_task_that_took_the_place_of_another_and_is_lost_too_leaves_its_gap_open(grants: tuple[Grant, ...]) -> None:
    result = result_of(2, is_lost=True, shares=(9,))
    first, second = shards_of({2: result})
    second = msgspec.structs.replace(second, attempts=(*second.attempts, AttemptEntry(3, "w2")), gap=0)
    gap = Gap(1, "died", SECOND, SECOND, 6, 0)
    heir = Heir(checkpoint_of(attempts=3, shards=(first, second), lost=(("Shop", gap),)), grants=grants)
    heir.take(heir.led.on_blob(heir.now, digest_of(result), result))
    for worker in ("w1", "w2", "w3"):
        heir.has(worker, *([runs(1)] if worker == "w1" else []))

    assert any(isinstance(effect, TaskLost) and effect.attempt == 3 for effect in heir.effects)
    assert said(heir.stored(), Assign) != []

    assert heir.led.job is not None
    assert [(lost.cause, lost.from_ns) for lost in heir.led.job.lost] == [("died", SECOND)]


def test_a_worker_that_has_no_grant_any_more_is_gone() -> None:
    heir = Heir(checkpoint_of(), grants=(W1,))

    effects = heir.has("w1", runs(1))

    assert TaskLost("b4k7", 2, "w2", "is gone") in effects


def test_the_wall_clock_tells_when_the_load_began_only_where_no_worker_knows() -> None:
    without = Heir(checkpoint_of(), grants=(W1, W2_LOST))
    without.later(3).has("w1")
    with_one = Heir(checkpoint_of(), grants=(W1, W2_LOST))
    with_one.later(3).has("w1", TaskFacts(1, "running", 4 * SECOND, 4 * SECOND))

    assert without.led.job is not None
    assert with_one.led.job is not None
    assert without.led.job.origin_ns == START_NS - 2 * SECOND
    assert with_one.led.job.origin_ns == with_one.now - 4 * SECOND


# -- what was to stop


def test_a_cancel_that_the_manager_before_did_not_carry_out_is_carried_out() -> None:
    heir = Heir(checkpoint_of(), cancel="alice said so")

    effects = heir.found(runs(1), runs(2))

    assert told(effects, Halt) == [("w1", Halt("b4k7", FENCE, 1, "stop")), ("w2", Halt("b4k7", FENCE, 2, "stop"))]
    assert heir.led.facts().state is JobState.CANCELLING


def test_a_cancel_that_the_manager_before_had_begun_is_no_second_one() -> None:
    heir = Heir(checkpoint_of(interrupted=True), cancel="alice said so")

    effects = heir.found(runs(1), runs(2))

    assert [halt.how for halt in said(effects, Halt)] == ["stop", "stop"]


def test_what_was_lost_before_a_cancel_is_told_in_the_end() -> None:
    result = result_of(2, is_lost=True, shares=(9,))
    closed = Heir(checkpoint_of(closed={2: result}), grants=(W1, W2_LOST), cancel="alice said so")
    closed.take(closed.led.on_blob(closed.now, digest_of(result), result))
    lost = Heir(checkpoint_of(), grants=(W1, W2_LOST), cancel="alice said so")
    gone = Heir(checkpoint_of(), cancel="alice said so")
    gone.has("w2")

    for heir, cause in (
        (closed, "was lost with its worker w2"),
        (lost, "its lease is over"),
        (gone, "is gone from its worker w2"),
    ):
        heir.has("w1", runs(1))
        heir.tick()

        assert list(heir.running) == [1]
        assert heir.led.job is not None
        assert [gap.cause for gap in heir.led.job.lost] == [cause]


@pytest.mark.parametrize(
    "more",
    [{"interrupted": True}, {"aborted": Verdict("failed < 1%", 0.5, False, "50 %")}],
    ids=["interrupted", "aborted"],
)
def test_what_the_manager_before_was_stopping_is_told_again_to_stop(more: dict[str, Any]) -> None:
    heir = Heir(checkpoint_of(**more))

    effects = heir.found(runs(1), runs(2))

    assert [halt.how for halt in said(effects, Halt)] == ["stop", "stop"]
    assert said(heir.say("w1", NoTask("b4k7", 1, FENCE)), Assign) == []


def test_a_cancel_of_a_job_whose_last_result_was_accepted_stops_nothing() -> None:
    results = {number: result_of(number) for number in PLACES}
    heir = Heir(checkpoint_of(closed=results), cancel="alice said so")
    heir.found(None, None)
    for result in results.values():
        heir.take(heir.led.on_blob(heir.now, digest_of(result), result))

    assert said(heir.effects, Halt) == []
    assert heir.led.job is not None
    assert (heir.state, heir.led.job.interrupted_by) == (TaskState.COMPLETED, None)
    assert heir.led.facts().state is JobState.CANCELLING


# -- deadlines


def late(record: DeadlineRecord) -> Heir:
    """Of a workflow that may run for 20 seconds, and has run for two."""
    (entry,) = checkpoint_of().workflows
    heir = Heir(checkpoint_of(workflows=(msgspec.structs.replace(entry, deadline=record),)), timeout_s=20)
    heir.found(runs(1), runs(2))
    return heir


def deadline_in(heir: Heir) -> Deadline:
    assert heir.led.job is not None
    deadline = heir.led.job.workflows["Shop"].deadline
    assert deadline is not None
    return deadline


def test_extensions_that_the_manager_before_gave_are_not_given_again() -> None:
    given = (Extension(10 * SECOND, "a large file", SECOND, 0, "1/1"), Extension(5 * SECOND, name="1/2"))
    heir = late(DeadlineRecord(35 * SECOND, given, done=70))

    deadline = deadline_in(heir)
    assert (deadline.left, deadline.until) == (3, START_NS + 33 * SECOND)
    heir.later(30).say("w1", Report("b4k7", 1, encode(Totals(9, Tally(), [], 1, 0, asked=TimeAsked(2, 30 * SECOND)))))
    assert deadline.left == 3, "the manager before had given it, and the worker had not heard"
    heir.say("w1", Report("b4k7", 1, encode(Totals(10, Tally(), [], 1, 0, asked=TimeAsked(3, 30 * SECOND)))))
    assert [extension.ns / SECOND for extension in deadline.extensions] == [10, 5, 2.5]


def test_a_warning_of_the_manager_before_is_told_again_as_nobody_may_have_heard_it_and_its_end_stays() -> None:
    heir = late(DeadlineRecord(21 * SECOND, (), is_warned=True))
    deadline = deadline_in(heir)
    assert (deadline.is_warned, deadline.until) == (True, START_NS + 19 * SECOND)
    heir.later(18.5).stored()

    heir.tick()

    assert TimeOver(SECOND // 2) in {word.over for word in said(heir.stored(), Acknowledge)}
    assert said(heir.later(0.4).tick(), Halt) == []
    assert said(heir.later(0.1).tick(), Halt) == [], "the next manager has to know why they stopped"
    assert [halt.how for halt in said(heir.stored(), Halt)] == ["stop", "stop"]


def test_a_workflow_whose_start_is_decided_again_has_all_of_its_time() -> None:
    (entry,) = checkpoint_of().workflows
    record = DeadlineRecord(10 * SECOND, (), is_warned=True)
    heir = Heir(checkpoint_of(workflows=(msgspec.structs.replace(entry, deadline=record),)))
    heir.found(TaskFacts(1, "armed"), TaskFacts(2, "armed"))

    assert heir.led.job is not None
    assert heir.led.job.workflows["Shop"].deadline is None
