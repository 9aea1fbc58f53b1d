"""A job on a cluster that loses workers and tasks: what is stored before the rest runs elsewhere, and who waits."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.jobs.effects import AttemptAccepted, DocumentWanted, KeepWanted, TaskLost
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.losses import REPLACE_WAIT_NS
from talka.control.member.clock_offsets import ClockOffsets
from talka.stats.tally import Tally
from talka.testing.trust import keys_of_workers
from talka.units import SECOND
from talka.wire.entries import Grant, JobEntry, decode_checkpoint
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
    Report,
    ResultAccepted,
    Start,
    StoreCheckpoint,
    TaskDeclined,
    decode_result,
    encode_result,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Armed, Refused, Settings, Totals, encode
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate, LoadShape, SharedIterations

START_NS = 1_000 * SECOND
FENCE = (1, 1, 1)
LIFE = 3
RATE = ConstantRate(100, "60s", max_vus=12)
Message = TypeVar("Message")


def workflow(name: str, shape: LoadShape) -> WorkflowOrder:
    return WorkflowOrder(
        name=name,
        plan=shape.plan(),
        priority="auto",
        is_test=True,
        depends_on=(),
        timeout_ns=1000 * SECOND,
        thresholds=(),
        flows=(),
        load="100/s",
        nodes=(),
    )


def entry_of(workflows: tuple[WorkflowOrder, ...], cores: int) -> JobEntry:
    order = JobOrder("shop", BundleFacts("0" * 64, 70, b"", "shop.py"), workflows, Settings(30 * SECOND))
    return JobEntry(
        job="b4k7",
        order=order,
        state=JobState.RUNNING,
        number=1,
        fence=FENCE,
        pool=2 * cores,
        grants=(Grant("w1", 7, cores), Grant("w2", 7, cores)),
        version=1,
    )


class Led:
    """The job, its clock, and everything it asked for. Workers and the leader do what a test says."""

    def __init__(self, shape: LoadShape = RATE, cores: int = 1, workflows: tuple[str, ...] = ("Shop",)) -> None:
        self.now = START_NS
        self.effects: list[object] = []
        clocks = ClockOffsets()
        for worker in ("w1", "w2", "w3", "w4"):
            clocks.heard(self.now, worker, clocks.asked(self.now, worker), self.now)
        entry = entry_of(tuple(workflow(name, shape) for name in workflows), cores)
        self.led = LedJob(entry, life=LIFE, clocks=clocks, keys=keys_of_workers(1), wall_offset_ns=0)
        self.take(self.led.start(self.now))
        self.stored()

    def take(self, effects: list[object]) -> list[object]:
        self.effects += effects
        return effects

    def later(self, seconds: float) -> Led:
        self.now += round(seconds * SECOND)
        return self

    def say(self, worker: str, message: JobMessage) -> list[object]:
        return self.take(self.led.on_message(self.now, worker, message))

    def arm(self, worker: str, attempt: int) -> list[object]:
        return self.say(worker, Report("b4k7", attempt, encode(Armed())))

    def running(self) -> Led:
        for worker, assign in told(self.effects, Assign):
            self.arm(worker, assign.attempt)
        self.stored()
        return self

    def totals(self, worker: str, attempt: int, started: int, **more: Any) -> list[object]:
        totals = Totals(started, Tally(started=started, iterations=started), [], 1, **{"started_at_ns": 0, **more})
        return self.say(worker, Report("b4k7", attempt, encode(totals)))

    def tick(self) -> list[object]:
        return self.take(self.led.tick(self.now))

    def stored(self) -> list[object]:
        """The last checkpoint is stored, and so are those that follow from that."""
        revision = said(self.effects, StoreCheckpoint)[-1].revision
        effects = self.take(
            self.led.on_checkpoint_stored(self.now, CheckpointStored("b4k7", FENCE, revision, life=LIFE))
        )
        return [*effects, *self.stored()] if said(effects, StoreCheckpoint) else effects

    def granted(self, *grants: Grant, **more: Any) -> list[object]:
        """What the leader says of the workers; those that are not named are gone."""
        entry = msgspec.structs.replace(
            self.led.entry, version=self.led.entry.version + 1, grants=self.with_lost(grants), **more
        )
        return self.take(self.led.on_entry(self.now, entry))

    def with_lost(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        before = [msgspec.structs.replace(g, lost=g.lost or "died") for g in self.led.entry.grants if g not in grants]
        return (*before, *grants)

    def kept(self, effects: list[object]) -> list[object]:
        """What it wants to be kept is kept."""
        return [
            word
            for effect in effects
            if isinstance(effect, KeepWanted)
            for word in self.take(self.led.on_kept(self.now, effect.digest))
        ]

    def offer(self, worker: str, attempt: int) -> tuple[str, bytes, list[object]]:
        content = encode_result(
            AttemptResult("b4k7", attempt, Tally(started=90, iterations=90), [], ended_at_ns=SECOND)
        )
        digest = sha256(content).hexdigest()
        return digest, content, self.say(worker, Finished("b4k7", attempt, digest, len(content)))

    @property
    def counted(self) -> int:
        assert self.led.job is not None
        return self.led.job.tally().started

    @property
    def state(self) -> TaskState:
        assert self.led.job is not None
        return self.led.job.workflows["Shop"].state


W1, W2, W3 = (Grant(worker, 7, 1) for worker in ("w1", "w2", "w3"))


def told(effects: list[object], kind: type[Message]) -> list[tuple[str, Message]]:
    """Messages of a kind, and to whom."""
    words = [effect for effect in effects if isinstance(effect, Send)]
    return [(word.to, word.message) for word in words if isinstance(word.message, kind)]


def said(effects: list[object], kind: type[Message]) -> list[Message]:
    return [message for _, message in told(effects, kind)]


def assigned(effects: list[object]) -> list[tuple[str, int]]:
    return [(worker, assign.attempt) for worker, assign in told(effects, Assign)]


# -- a worker is lost


def test_a_lost_workers_last_totals_are_stored_before_the_rest_of_the_plan_runs_elsewhere() -> None:
    led = Led(SharedIterations(4, 1000), cores=2).running()
    led.later(2).totals("w2", 2, 50, shares=(30, 20), started_at_ns=led.now - SECOND, spread_ns=7)

    effects = led.later(5).granted(Grant("w1", 7, 2), Grant("w3", 7, 2))

    lost, keep = effects[0], effects[1]
    assert lost == TaskLost("b4k7", 2, "w2", "died")
    assert isinstance(keep, KeepWanted)
    result = decode_result(keep.content)
    assert (result.attempt, result.tally.started, result.shares) == (2, 50, (30, 20))
    assert (result.is_lost, result.worker, result.spread_ns) == (True, "w2", 7)
    assert led.led.job is not None
    origin_ns = led.led.job.origin_ns
    assert result.started_at_ns == START_NS + SECOND - origin_ns
    assert result.ended_at_ns == START_NS + 2 * SECOND - origin_ns
    assert said(effects, Assign) == []

    effects = led.kept(effects)
    (checkpoint,) = said(effects, StoreCheckpoint)
    assert effects == [Send(CHANNEL, "", checkpoint, Lane.CONTROL)]
    effects = led.stored()

    assert AttemptAccepted("b4k7", 2, keep.digest) in effects
    assert said(effects, ResultAccepted) == [], "there is nobody to tell"
    assert [(worker, assign.attempt, assign.iterations_done) for worker, assign in told(effects, Assign)] == [
        ("w3", 3, (30, 20))
    ]
    assert led.counted == 50


def test_of_a_lost_worker_that_never_reported_nothing_need_be_kept() -> None:
    led = Led().running()

    effects = led.granted(W1, W3)

    assert effects[0] == TaskLost("b4k7", 2, "w2", "died")
    assert not any(isinstance(effect, KeepWanted) for effect in effects)
    assert assigned(led.stored()) == [("w3", 3)]


def test_what_takes_the_place_of_a_lost_task_joins_the_plan_where_it_is() -> None:
    led = Led().running()
    led.granted(W1, W3)
    led.stored()

    led.later(3).arm("w3", 3)

    (start,) = said(led.stored(), Start)
    assert (start.start_at_ns - start.origin_ns, start.origin_ns) == (
        led.now - start.origin_ns,
        start.job_origin_ns,
    )


def test_a_worker_that_is_lost_and_granted_anew_has_lost_nothing_until_it_says_so() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)

    effects = led.granted(W1, Grant("w2", 8, 1))

    assert not any(isinstance(effect, TaskLost) for effect in effects)


def test_a_loss_is_told_once() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)
    led.granted(W1)

    assert led.granted(W1) == []
    assert led.say("w2", NoTask("b4k7", 2, FENCE)) == []


def test_a_loss_of_a_task_that_never_reported_is_told_once_while_it_waits_for_cores() -> None:
    led = Led().running()
    led.granted(W1)

    assert led.granted(W1, pool=3) == []
    assert led.say("w2", NoTask("b4k7", 2, FENCE)) == []


def test_what_a_task_says_after_it_was_given_up_is_not_counted() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)
    led.granted(W1)

    assert led.totals("w2", 2, 8) == []
    assert led.offer("w2", 2)[2] == []

    assert led.counted == 5


def test_a_task_that_is_back_after_another_took_its_place_is_killed() -> None:
    led = Led().running()
    effects = led.granted(W1, W3)
    led.stored()

    effects = led.totals("w2", 2, 8)

    assert effects == [Send(CHANNEL, "w2", Halt("b4k7", FENCE, 2, "kill"), Lane.RESULTS)]
    assert led.offer("w2", 2)[2] == [Send(CHANNEL, "w2", ResultAccepted("b4k7", FENCE, 2), Lane.RESULTS)]
    assert led.counted == 0


# -- a task is gone


def test_a_task_that_is_gone_while_its_worker_lives_runs_on_there() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)

    effects = led.say("w2", NoTask("b4k7", 2, FENCE))
    assert effects[0] == TaskLost("b4k7", 2, "w2", "is gone from its worker w2")
    led.kept(effects)

    assert assigned(led.stored()) == [("w2", 3)]


def test_an_answer_to_the_manager_before_does_not_tell_that_a_task_is_gone() -> None:
    led = Led().running()

    assert led.say("w2", NoTask("b4k7", 2, (1, 1, 0))) == []


# -- without cores


def test_without_cores_the_rest_waits_until_there_are_some() -> None:
    led = Led(ConstantRate(100, "1000s")).running()
    led.granted(W1)
    assert assigned(led.later(REPLACE_WAIT_NS / SECOND - 1).tick()) == []
    assert led.state is TaskState.RUNNING

    led.granted(W1, W3)

    assert assigned(led.stored()) == [("w3", 3)]


def test_after_five_minutes_without_cores_it_goes_on_without() -> None:
    led = Led(ConstantRate(100, "1000s")).running()
    led.granted(W1)
    led.later(REPLACE_WAIT_NS / SECOND).tick()

    led.granted(W1, W3)

    assert led.led.job is not None
    assert list(led.led.job.attempts) == [1]
    assert [gap.cause for gap in led.led.job.lost] == ["died"]
    assert led.state is TaskState.RUNNING


def test_when_the_plan_is_over_nothing_waits_for_cores() -> None:
    led = Led().running()
    led.granted(W1)
    led.later(59).tick()
    assert led.led.job is not None
    assert list(led.led.job.attempts) == [1, 2]

    led.later(2).tick()

    assert list(led.led.job.attempts) == [1]


def test_a_job_that_has_lost_everything_ends_when_its_plan_is_over() -> None:
    led = Led().running()
    led.granted()
    assert DocumentWanted("b4k7") not in led.effects

    effects = led.later(61).tick()

    assert DocumentWanted("b4k7") in effects
    assert led.later(1).tick() != [], "the checkpoint is still to be told"
    assert led.state is TaskState.COMPLETED


def test_lost_tasks_are_not_asked_after_and_told_nothing() -> None:
    led = Led(ConstantRate(100, "1000s")).running()
    led.totals("w1", 1, 5)
    effects = led.granted(W1)

    for _ in range(5):
        effects += led.later(1).tick()
        effects += led.totals("w1", 1, led.now // SECOND)

    assert [worker for worker, _ in told(effects, Start)] == []
    assert [worker for worker, _ in told(effects, Acknowledge)] == ["w1"] * 5


def test_a_stop_is_not_said_to_a_worker_that_is_lost_and_nothing_of_it_is_waited_for() -> None:
    led = Led().running()
    led.granted(W1)

    effects = led.granted(W1, cancel="alice said so")
    assert [worker for worker, _ in told(effects, Halt)] == ["w1"]
    led.later(1).tick()

    assert led.led.job is not None
    assert list(led.led.job.attempts) == [1]


def test_a_task_lost_before_the_start_is_replaced_before_any_begins() -> None:
    led = Led()
    led.arm("w2", 2)
    led.granted(W1)

    led.arm("w1", 1)
    assert said(led.stored(), Start) == [], "a part of the load would be another than was asked for"

    led.granted(W1, W3)
    assert assigned(led.stored()) == [("w3", 3)]
    led.arm("w3", 3)
    assert [worker for worker, _ in told(led.stored(), Start)] == ["w1", "w3"]


def test_a_task_that_waits_for_its_checkpoint_is_not_assigned_once_its_worker_is_lost() -> None:
    led = Led().running()
    led.granted(W1, W3)  # the checkpoint that names attempt 3 is on its way

    led.granted(W1)

    assert said(led.stored(), Assign) == []
    assert said(led.later(2).tick(), Assign) == []


# -- declined


def test_a_declined_task_goes_elsewhere_and_the_leader_is_told_who_is_unfit() -> None:
    led = Led()

    effects = led.say("w2", TaskDeclined("b4k7", 2, FENCE, "no room on its disk"))

    assert effects[0] == TaskLost("b4k7", 2, "w2", "was declined by w2: no room on its disk")
    assert [checkpoint.unfit for checkpoint in said(effects, StoreCheckpoint)] == [("w2",)]
    assert led.led.job.workers == {"w1": 1}
    led.stored()
    assert assigned(led.effects) == [("w1", 1), ("w2", 2)]
    led.granted(W1, W3)
    assert assigned(led.stored()) == [("w3", 3)]


def test_a_worker_that_declined_is_used_again_only_when_it_is_granted_anew() -> None:
    led = Led()
    led.say("w2", TaskDeclined("b4k7", 2, FENCE, "no room on its disk"))

    led.granted(W1, W2, W3)
    assert led.led.job.workers == {"w1": 1, "w3": 1}, "the leader has not heard of it yet"
    led.granted(W1, W3)
    assert led.led.job.workers == {"w1": 1, "w3": 1}
    led.granted(W1, W3, Grant("w2", 7, 2))

    assert led.led.job.workers == {"w1": 1, "w3": 1, "w2": 2}


def test_a_task_declined_after_it_was_given_up_is_killed_for_good() -> None:
    led = Led()
    led.granted(W1, W3)
    led.stored()

    effects = led.say("w2", TaskDeclined("b4k7", 2, FENCE, "no room on its disk"))

    assert effects == [Send(CHANNEL, "w2", Halt("b4k7", FENCE, 2, "kill"), Lane.RESULTS)]


FOUR = ("Shop", "Yard", "Mill", "Port")
"""Two tasks on each of two workers: 2 and 4 are on w2."""


def test_what_else_runs_on_a_worker_that_declined_a_task_goes_on_there_and_nowhere_else() -> None:
    led = Led(cores=2, workflows=FOUR).running()

    effects = led.say("w2", TaskDeclined("b4k7", 4, FENCE, "no room on its disk"))

    (checkpoint,) = said(effects, StoreCheckpoint)
    assert checkpoint.unfit == (), "the leader would take its cores back and grant others"
    assert led.led.job.workers == {"w1": 2}
    led.stored()
    assert said(led.later(1).tick(), StoreCheckpoint) == []


def test_the_leader_is_told_who_is_unfit_once_the_last_task_there_is_gone() -> None:
    led = Led(cores=2, workflows=FOUR).running()
    led.say("w2", TaskDeclined("b4k7", 4, FENCE, "no room on its disk"))
    led.stored()

    led.say("w2", NoTask("b4k7", 2, FENCE))

    assert [checkpoint.unfit for checkpoint in said(led.tick(), StoreCheckpoint)] == [("w2",)]


def test_the_leader_is_told_who_is_unfit_once_the_last_task_there_has_ended() -> None:
    led = Led(cores=2, workflows=FOUR).running()
    led.say("w2", TaskDeclined("b4k7", 4, FENCE, "no room on its disk"))
    led.stored()
    digest, content, _ = led.offer("w2", 2)
    led.take(led.led.on_blob(led.now, digest, content))
    led.take(led.led.on_kept(led.now, digest))

    led.stored()

    assert said(led.effects, StoreCheckpoint)[-1].unfit == ("w2",)


# -- results of lost workers


def test_a_task_whose_whole_result_is_here_is_not_lost_with_its_worker() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)
    digest, content, _ = led.offer("w2", 2)
    led.take(led.led.on_blob(led.now, digest, content))

    assert not any(isinstance(effect, TaskLost) for effect in led.granted(W1))
    led.take(led.led.on_kept(led.now, digest))
    assert not any(isinstance(effect, TaskLost) for effect in led.say("w2", NoTask("b4k7", 2, FENCE)))
    led.stored()

    assert led.counted == 90


def test_a_whole_result_that_arrives_and_is_kept_first_counts_instead_of_the_last_totals() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)
    digest, content, _ = led.offer("w2", 2)
    lost = led.granted(W1, W3)

    whole = led.take(led.led.on_blob(led.now, digest, content))
    led.kept(whole)
    assert led.kept(lost) == []
    led.stored()

    assert led.counted == 90
    assert assigned(led.later(1).tick()) == []
    assert led.offer("w2", 2)[2] == [Send(CHANNEL, "w2", ResultAccepted("b4k7", FENCE, 2), Lane.RESULTS)]


def test_last_totals_that_are_kept_first_count_instead_of_a_whole_result() -> None:
    led = Led().running()
    led.totals("w2", 2, 5)
    digest, content, _ = led.offer("w2", 2)
    lost = led.granted(W1, W3)

    led.kept(lost)
    assert led.kept(led.take(led.led.on_blob(led.now, digest, content))) == []

    assert assigned(led.stored()) == [("w3", 3)]
    assert led.counted == 5


def test_a_whole_result_that_comes_after_another_began_in_its_place_is_not_put_on_checkpoint() -> None:
    led = Led().running()
    digest, content, _ = led.offer("w2", 2)
    led.granted(W1, W3)

    assert led.kept(led.take(led.led.on_blob(led.now, digest, content))) == []
    led.stored()

    (entry,) = decode_checkpoint(said(led.effects, StoreCheckpoint)[-1].content).workflows
    assert [attempt.digest for shard in entry.shards for attempt in shard.attempts] == [b"", b"", b""]
    assert led.counted == 0


def test_a_loss_whose_workflow_has_ended_meanwhile_needs_no_replacement() -> None:
    led = Led().running()
    led.granted(W1, W3)
    led.stored()
    led.totals("w1", 1, 5)
    lost = led.granted(W3)

    effects = led.say("w3", Report("b4k7", 3, encode(Refused("setup", "no such host"))))
    assert DocumentWanted("b4k7") in effects
    assert led.offer("w1", 1)[2] == [Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)]
    led.kept(lost)
    effects = led.stored()

    assert said(effects, Assign) == []
    assert led.counted == 5


def test_a_loss_whose_workflow_was_given_up_is_forgotten_while_others_go_on() -> None:
    led = Led(workflows=("Shop", "Side"))
    led.arm("w2", 2)
    led.granted(W2)

    led.later(60).tick()

    assert led.led.job is not None
    assert led.state is TaskState.FAILED
    assert list(led.led.job.attempts) == [2]
    assert led.offer("w1", 1)[2] == [Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)]
    led.granted(W2, W3)
    assert said(led.stored(), Assign) == []


def test_a_task_that_is_lost_too_often_before_the_start_ends_the_job_and_the_losses_beside_it() -> None:
    led = Led()
    for worker in ("w3", "w4", "w5"):
        led.granted(Grant(worker, 7, 1), W2)
        led.stored()
    led.granted()
    assert [loss.attempt for loss in led.effects if isinstance(loss, TaskLost)] == [1, 3, 4, 5, 2]

    effects = led.granted(Grant("w6", 7, 1), Grant("w7", 7, 1))

    assert DocumentWanted("b4k7") in effects
    assert led.state is TaskState.FAILED


def test_a_loss_that_ends_its_workflow_takes_along_what_ran_beside_it_on_the_same_worker() -> None:
    led = Led()
    for worker in ("w3", "w4", "w5"):
        led.granted(Grant(worker, 7, 1), W2)
        led.stored()
    led.granted(Grant("w5", 7, 2))
    led.stored()
    assert led.led.job is not None
    assert led.led.job.attempts_at("w5") == [5, 6]

    effects = led.granted(Grant("w6", 7, 2))

    assert [loss.attempt for loss in effects if isinstance(loss, TaskLost)] == [5]
    assert DocumentWanted("b4k7") in effects


def test_of_a_loss_whose_workflow_ended_while_it_was_kept_the_worker_is_told_that_nobody_waits() -> None:
    led = Led(cores=2, workflows=("Shop", "Side")).running()
    two, four = Grant("w2", 7, 2), Grant("w4", 7, 1)
    led.granted(two, W3, four)
    assert assigned(led.stored()) == [("w3", 3), ("w4", 4)]
    led.totals("w3", 3, 5)
    lost = led.granted(two, four)

    led.say("w4", Report("b4k7", 4, encode(Refused("setup", "no such host"))))
    led.kept(lost)
    led.stored()

    assert (led.state, led.led.phase) == (TaskState.FAILED, "leading")
    assert led.offer("w3", 3)[2] == [Send(CHANNEL, "w3", ResultAccepted("b4k7", FENCE, 3), Lane.RESULTS)]
