"""A job on a cluster, as the manager sees it that leads it: from the first assignment to its end stored."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.control.jobs.checkpoints import UNTOLD_NS
from talka.control.jobs.commands import SYNC_EVERY_NS
from talka.control.jobs.effects import (
    AttemptAccepted,
    BlobWanted,
    DocumentWanted,
    JobLate,
    JobOver,
    KeepWanted,
    TaskLost,
)
from talka.control.jobs.led_job import START_DELAY_NS, LedJob
from talka.control.member.clock_offsets import ClockOffsets
from talka.stats.tally import StepTally, Tally
from talka.testing.trust import keys_of_workers, trust_of_worker
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
    LogLines,
    NoTask,
    Report,
    ResultAccepted,
    SpareCores,
    Stale,
    Start,
    StoreCheckpoint,
    Sync,
    Synced,
    TaskFacts,
    WorkerSnapshot,
    decode_result,
    encode_result,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import (
    Armed,
    FromCore,
    Hello,
    Refused,
    Settings,
    StepTotals,
    TimeAsked,
    TimeOver,
    Totals,
    encode,
    encode_unread,
)
from talka.wire.views import LogLine
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate, IterationsPerVU, LoadShape
from tests.sim.variants import without

START_NS = 1_000 * SECOND
FENCE = (1, 1, 1)
LIFE = 3
OFFSETS = {"w1": 70 * SECOND, "w2": -30 * SECOND, "w3": 0}
"""By which the workers' clocks are ahead of the manager's."""
Message = TypeVar("Message")


def workflow(name: str, **more: Any) -> WorkflowOrder:
    shape: LoadShape = more.pop("shape", None) or ConstantRate(100, "60s", max_vus=12)
    known: dict[str, Any] = {
        "priority": "auto",
        "is_test": True,
        "depends_on": (),
        "timeout_ns": 120 * SECOND,
        "thresholds": (),
        "flows": (),
        "load": "100/s",
        "nodes": (),
    }
    return WorkflowOrder(name=name, plan=shape.plan(), **{**known, **more})


def entry_of(
    *workflows: WorkflowOrder,
    cores: int = 1,
    workers: tuple[str, ...] = ("w1", "w2"),
    env: dict[str, str] | None = None,
) -> JobEntry:
    order = JobOrder(
        "shop",
        BundleFacts("0" * 64, 70, b"", "shop.py", env=env or {}),
        workflows or (workflow("Shop"),),
        Settings(30 * SECOND),
    )
    return JobEntry(
        job="b4k7",
        order=order,
        state=JobState.DISPATCHING,
        number=1,
        fence=FENCE,
        pool=cores * len(workers),
        grants=tuple(Grant(worker, 7, cores) for worker in workers),
        version=1,
    )


class Led:
    """The job, its clock, and everything it asked for. Workers and the leader do what a test says."""

    def __init__(self, *workflows: WorkflowOrder, clocks: bool = True, **more: Any):
        self.now = START_NS
        self.clocks = ClockOffsets()
        self.keys = keys_of_workers(1)
        self.effects: list[object] = []
        self.led = LedJob(
            entry_of(*workflows, **more),
            life=LIFE,
            clocks=self.clocks,
            keys=self.keys,
            wall_offset_ns=0,
            every_ms=lambda: 250,
        )
        for worker in OFFSETS if clocks else ():
            self.learn_clock(worker)

    def learn_clock(self, worker: str) -> None:
        self.clocks.heard(self.now, worker, self.clocks.asked(self.now, worker), self.now + OFFSETS[worker])

    def take(self, effects: list[object]) -> list[object]:
        self.effects += effects
        return effects

    def later(self, seconds: float) -> Led:
        self.now += round(seconds * SECOND)
        return self

    def say(self, worker: str, message: JobMessage) -> list[object]:
        return self.take(self.led.on_message(self.now, worker, message))

    def report(self, worker: str, attempt: int, message: FromCore) -> list[object]:
        return self.say(worker, Report("b4k7", attempt, encode_unread(message)))

    def totals(self, worker: str, attempt: int, sequence: int, started: int, **more: Any) -> list[object]:
        totals = Totals(sequence, Tally(started=started, iterations=started), [], 1, 0, **more)
        return self.report(worker, attempt, totals)

    def tick(self) -> list[object]:
        return self.take(self.led.tick(self.now))

    def checkpoints(self) -> list[StoreCheckpoint]:
        return said(self.effects, StoreCheckpoint)

    def stored(self) -> list[object]:
        """The last checkpoint is stored, and so are those that follow from that."""
        effects = self.take(
            self.led.on_checkpoint_stored(
                self.now, CheckpointStored("b4k7", FENCE, self.checkpoints()[-1].revision, life=LIFE)
            )
        )
        return [*effects, *self.stored()] if said(effects, StoreCheckpoint) else effects

    def on_entry(self, **changes: Any) -> list[object]:
        entry = msgspec.structs.replace(self.led.entry, version=self.led.entry.version + 1, **changes)
        return self.take(self.led.on_entry(self.now, entry))

    def started(self) -> Led:
        """All tasks run."""
        self.take(self.led.start(self.now))
        self.stored()
        for worker, assign in told(self.effects, Assign):
            self.report(worker, assign.attempt, Armed())
        self.stored()
        return self

    def result(self, attempt: int, **more: Any) -> bytes:
        tally = Tally(started=9, iterations=9)
        return encode_result(AttemptResult("b4k7", attempt, tally, [], ended_at_ns=SECOND, **more))

    def offer(self, worker: str, attempt: int, **more: Any) -> tuple[str, bytes, list[object]]:
        content = self.result(attempt, **more)
        return digest_of(content), content, self.finished(worker, attempt, content)

    def finished(self, worker: str, attempt: int, content: bytes) -> list[object]:
        return self.say(worker, Finished("b4k7", attempt, digest_of(content), len(content)))

    def finish(self, worker: str, attempt: int, **more: Any) -> list[object]:
        """A result from its offer to the entry."""
        digest, content, _ = self.offer(worker, attempt, **more)
        self.take(self.led.on_blob(self.now, digest, content))
        self.take(self.led.on_kept(self.now, digest))
        return self.stored()

    @property
    def counted(self) -> int:
        assert self.led.job is not None
        return self.led.job.tally().started


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def told(effects: list[object], kind: type[Message]) -> list[tuple[str, Message]]:
    """Messages of a kind, and to whom."""
    words = [effect for effect in effects if isinstance(effect, Send)]
    return [(word.to, word.message) for word in words if isinstance(word.message, kind)]


def said(effects: list[object], kind: type[Message]) -> list[Message]:
    return [message for _, message in told(effects, kind)]


# -- assigning


def test_tasks_are_assigned_once_one_checkpoint_that_names_all_of_them_is_stored() -> None:
    led = Led(cores=2)

    effects = led.take(led.led.start(led.now))

    (checkpoint,) = said(effects, StoreCheckpoint)
    assert effects == [Send(CHANNEL, "", checkpoint, Lane.CONTROL)]
    assert (checkpoint.job, checkpoint.fence, checkpoint.revision, checkpoint.life) == ("b4k7", FENCE, 1, LIFE)
    (entry,) = decode_checkpoint(checkpoint.content).workflows
    assert [[attempt.place for attempt in shard.attempts] for shard in entry.shards] == [["w1"], ["w2"]]
    effects = led.stored()
    order = led.led.entry.order
    assert told(effects, Assign) == [
        (
            worker,
            Assign(
                job="b4k7",
                fence=FENCE,
                attempt=attempt,
                workflow="Shop",
                plan=order.workflows[0].plan,
                first=first,
                count=2,
                of=4,
                iterations_done=(0, 0),
                values={},
                settings=order.settings,
                bundle=order.bundle,
                boot=7,
                seats=(0, 1),
                life=LIFE,
            ),
        )
        for attempt, worker, first in [(1, "w1", 0), (2, "w2", 2)]
    ]
    assert [worker for worker, _ in told(effects, Sync)] == ["w1", "w2"], "each is asked the time once"
    assert said(effects, StoreCheckpoint) == []


VARIABLES = {"SHOP_TOKEN": "7f3a"}


def with_variables(*workers: str) -> Led:
    """A job with variables that is to be assigned; these workers have beaten."""
    led = Led(env=VARIABLES)
    for worker in workers:
        led.keys.heard(worker, 7, trust_of_worker(worker, 7).sealing)
    led.take(led.led.start(led.now))
    return led


def test_variables_are_sealed_to_the_worker_of_each_task_and_travel_no_other_way() -> None:
    led = with_variables("w1", "w2")

    assigned = told(led.stored(), Assign)

    assert [worker for worker, _ in assigned] == ["w1", "w2"]
    for worker, assign in assigned:
        assert assign.bundle.env == {}
        assert trust_of_worker(worker, 7).variables.opened(assign).bundle.env == VARIABLES
        assert b"7f3a" not in msgspec.msgpack.encode(assign)


@without("sealed_variables")
def test_without_the_safeguard_variables_travel_open() -> None:
    led = with_variables()

    assert [assign.bundle.env for assign in said(led.stored(), Assign)] == [VARIABLES] * 2


def test_an_assignment_that_is_said_again_is_not_sealed_again() -> None:
    led = with_variables("w1", "w2")
    first = told(led.stored(), Assign)

    led.later(1.1)

    assert told(led.tick(), Assign) == first


def test_a_task_with_variables_waits_until_its_worker_has_told_its_key() -> None:
    led = with_variables("w1")
    assert [worker for worker, _ in told(led.stored(), Assign)] == ["w1"]
    assert "w2" not in [worker for worker, _ in told(led.later(0.2).tick(), Assign)]

    led.keys.heard("w2", 6, trust_of_worker("w2", 6).sealing)
    assert "w2" not in [worker for worker, _ in told(led.later(0.2).tick(), Assign)], "another life than was granted"
    led.keys.heard("w2", 7, trust_of_worker("w2", 7).sealing)

    assert [worker for worker, _ in told(led.later(0.2).tick(), Assign)] == ["w2"]
    assert "w2" not in [worker for worker, _ in told(led.later(0.2).tick(), Assign)]


def test_a_task_that_was_lost_while_it_waited_for_a_key_is_not_assigned() -> None:
    led = with_variables("w1")
    led.stored()
    led.on_entry(grants=(Grant("w1", 7, 1), Grant("w2", 7, 1, lost="died")))
    led.keys.heard("w2", 7, trust_of_worker("w2", 7).sealing)

    assert "w2" not in [worker for worker, _ in told(led.later(0.2).tick(), Assign)]


def test_a_worker_that_opens_no_variables_gets_no_task_and_the_leader_hears_of_it() -> None:
    led = with_variables("w1")
    led.keys.heard("w2", 7, b"")

    effects = led.stored()

    assert [worker for worker, _ in told(effects, Assign)] == ["w1"]
    (lost,) = [effect for effect in effects if isinstance(effect, TaskLost)]
    assert (lost.worker, lost.cause) == (
        "w2",
        "was not given to its worker: variables cannot be sealed to w2: it is of an earlier version, which opens none",
    )
    assert led.checkpoints()[-1].unfit == ("w2",)
    assert "w2" not in led.led.job.workers


@without("account_first")
def test_without_the_account_first_nothing_is_waited_for() -> None:
    led = Led()

    effects = led.led.start(led.now)

    assert [worker for worker, _ in told(effects, Assign)] == ["w1", "w2"]


def test_a_task_whose_job_was_cancelled_before_the_checkpoint_was_stored_is_not_assigned() -> None:
    led = Led()
    led.take(led.led.start(led.now))

    effects = led.on_entry(cancel="alice said so")

    assert told(effects, Halt) == [("w1", Halt("b4k7", FENCE, 1, "kill")), ("w2", Halt("b4k7", FENCE, 2, "kill"))]
    assert DocumentWanted("b4k7") in effects
    assert said(led.stored(), Assign) == []


def test_a_task_whose_worker_was_lost_before_the_checkpoint_was_stored_is_not_assigned() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.on_entry(grants=(Grant("w1", 7, 1), Grant("w2", 7, 1, lost="died")))

    effects = led.stored()

    assert [worker for worker, _ in told(effects, Assign)] == ["w1"]


def test_values_of_earlier_workflows_go_with_the_tasks_of_later_ones() -> None:
    once = IterationsPerVU(1, 1)
    led = Led(
        workflow("Login", shape=once, is_test=False),
        workflow("Shop", depends_on=("Login",), flows=(("Login", "token"),)),
    ).started()
    assert [assign.is_test for assign in said(led.effects, Assign)] == [False]

    effects = led.finish("w1", 1, provided={"token": b"t"})

    assert [(assign.values, assign.is_test) for assign in said(effects, Assign)] == [
        ({"Login": {"token": b"t"}}, True)
    ] * 2


# -- starting


def test_tasks_start_together_when_all_are_armed_each_by_its_workers_own_clock() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()
    assert led.led.facts().state is JobState.DISPATCHING

    led.report("w1", 1, Armed())
    effects = led.report("w2", 2, Armed())
    assert [checkpoint.state for checkpoint in said(effects, StoreCheckpoint)] == [JobState.RUNNING]
    assert said(led.effects, Start) == [], "load that ran must not be unknown to whoever leads the job next"
    effects = led.stored()

    instant = led.now + START_DELAY_NS
    assert told(effects, Start) == [
        (worker, Start("b4k7", FENCE, attempt, there, there, there))
        for worker, attempt, there in [("w1", 1, instant + OFFSETS["w1"]), ("w2", 2, instant + OFFSETS["w2"])]
    ]
    assert {effect.lane for effect in effects if isinstance(effect, Send)} == {Lane.CONTROL}
    assert led.led.facts().state is JobState.RUNNING


def test_a_start_waits_until_the_workers_clock_is_known() -> None:
    led = Led(clocks=False)
    led.learn_clock("w1")
    led.take(led.led.start(led.now))
    assert led.led.on_clock(led.now, "w2") == []
    led.stored()
    led.report("w1", 1, Armed())
    led.report("w2", 2, Armed())

    assert [worker for worker, _ in told(led.stored(), Start)] == ["w1"]
    led.later(SYNC_EVERY_NS / SECOND)
    assert [worker for worker, _ in told(led.tick(), Sync)] == ["w2"]
    led.learn_clock("w2")
    effects = led.led.on_clock(led.now, "w2")

    (start,) = said(effects, Start)
    assert start.start_at_ns == START_NS + START_DELAY_NS + OFFSETS["w2"]
    assert led.led.on_clock(led.now, "w2") == []


def test_tasks_that_are_stopped_before_the_start_is_stored_are_not_started() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()
    led.report("w1", 1, Armed())
    led.report("w2", 2, Armed())

    led.on_entry(cancel="alice said so")

    assert said(led.stored(), Start) == []
    assert [halt.how for halt in said(led.later(1).tick(), Halt)] == ["stop", "stop"]


def test_tasks_that_are_killed_before_the_start_is_stored_are_not_started() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()
    led.report("w1", 1, Armed())
    led.report("w2", 2, Armed())

    led.report("w2", 2, Refused("setup", "no such host"))

    assert said(led.stored(), Start) == []


def test_clocks_are_asked_for_until_tasks_have_started() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()

    assert [worker for worker, _ in told(led.tick(), Sync)] == ["w1", "w2"]
    assert led.led.next_tick_at == led.now + SYNC_EVERY_NS
    assert said(led.later(0.05).tick(), Sync) == []
    assert [worker for worker, _ in told(led.later(0.05).tick(), Sync)] == ["w1", "w2"]
    led.report("w1", 1, Armed())
    led.report("w2", 2, Armed())
    assert said(led.later(1).tick(), Sync) == []


def test_a_task_that_is_stopped_while_it_waits_for_a_clock_is_not_started() -> None:
    led = Led(clocks=False).started()

    assert said(led.on_entry(cancel="alice said so"), Halt) == [
        Halt("b4k7", FENCE, 1, "stop"),
        Halt("b4k7", FENCE, 2, "stop"),
    ]
    led.learn_clock("w1")

    assert led.led.on_clock(led.now, "w1") == []
    assert Halt("b4k7", FENCE, 1, "stop") in said(led.later(1).tick(), Halt)


def test_a_task_that_is_lost_while_it_waits_for_a_clock_is_not_started() -> None:
    led = Led(clocks=False).started()

    led.on_entry(grants=(Grant("w1", 7, 1), Grant("w2", 7, 1, lost="died")))
    led.learn_clock("w2")

    assert led.led.on_clock(led.now, "w2") == []


def test_a_task_that_is_killed_while_it_waits_for_a_clock_is_not_started() -> None:
    led = Led(clocks=False).started()

    led.report("w2", 2, Refused("setup", "no such host"))
    led.learn_clock("w1")

    assert Halt("b4k7", FENCE, 1, "kill") in said(led.effects, Halt)
    assert led.led.on_clock(led.now, "w1") == []


# -- commands


def test_an_assignment_is_said_again_until_it_is_answered() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    first = told(led.stored(), Assign)

    assert told(led.later(0.9).tick(), Assign) == []
    assert told(led.later(0.1).tick(), Assign) == first
    led.report("w1", 1, Armed())
    assert told(led.later(1).tick(), Assign) == first[1:]
    led.report("w2", 2, Refused("file", "there is no shop.py"))
    assert told(led.later(1).tick(), Assign) == []


def test_a_start_is_said_again_until_the_task_reports() -> None:
    led = Led().started()
    starts = told(led.effects, Start)

    led.report("w1", 1, Armed())  # said twice: it may not have heard
    assert told(led.later(1).tick(), Start) == starts
    led.totals("w1", 1, 1, 5)

    assert told(led.later(1).tick(), Start) == starts[1:]


def test_a_stop_is_said_again_until_the_result_is_offered_whatever_is_reported_meanwhile() -> None:
    led = Led().started()
    led.on_entry(cancel="alice said so")
    led.totals("w1", 1, 1, 5)
    led.offer("w2", 2)

    assert told(led.later(1).tick(), Halt) == [("w1", Halt("b4k7", FENCE, 1, "stop"))]
    led.offer("w1", 1)

    assert told(led.later(1).tick(), Halt) == []


def test_a_worker_that_knows_no_task_it_is_still_being_told_of_has_lost_nothing() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()

    assert led.say("w1", NoTask("b4k7", 1, FENCE)) == []
    assert led.say("w1", NoTask("b4k7", 1, (1, 1, 0))) == []

    assert 1 in [assign.attempt for assign in said(led.later(1).tick(), Assign)]


def test_a_stop_of_a_task_whose_result_counts_already_is_said_until_its_worker_has_forgotten_it() -> None:
    for word in (NoTask("b4k7", 1, FENCE), Finished("b4k7", 1, "a" * 64, 9)):
        led = Led().started()
        digest, content, _ = led.offer("w1", 1)
        led.take(led.led.on_blob(led.now, digest, content))
        led.on_entry(cancel="alice said so")
        led.take(led.led.on_kept(led.now, digest))
        led.stored()

        assert sorted(halt.attempt for halt in said(led.later(1).tick(), Halt)) == [1, 2]
        led.say("w1", word)

        assert [halt.attempt for halt in said(led.later(1).tick(), Halt)] == [2]


def test_a_worker_that_offers_a_result_is_not_asked_after_it() -> None:
    led = Led().started()
    led.totals("w1", 1, 1, 5)
    digest, _, _ = led.later(2).offer("w1", 1)
    led.led.on_blob(led.now, digest, None)

    assert said(led.later(1.5).tick(), Acknowledge) == []


def test_a_running_task_that_says_nothing_is_asked_after() -> None:
    led = Led().started()
    led.totals("w1", 1, 4, 5)
    led.totals("w2", 2, 1, 5)
    led.offer("w2", 2)

    assert said(led.later(2.9).tick(), Acknowledge) == []
    effects = led.later(0.1).tick()

    assert told(effects, Acknowledge) == [("w1", Acknowledge("b4k7", FENCE, 1, 4, 250))]
    assert said(led.later(0.5).tick(), Acknowledge) == []


# -- reports


def test_a_report_is_counted_and_acknowledged_and_needs_no_checkpoint() -> None:
    led = Led().started()

    effects = led.totals("w1", 1, 1, 5)

    assert effects == [Send(CHANNEL, "w1", Acknowledge("b4k7", FENCE, 1, 1, 250), Lane.STATISTICS)]
    assert led.counted == 5
    led.totals("w1", 1, 2, 8)
    led.totals("w1", 1, 2, 8)
    assert led.counted == 8, "totals are of everything so far"


@without("cumulative_counters")
def test_without_cumulative_counters_a_repeated_report_counts_again() -> None:
    led = Led().started()

    led.totals("w1", 1, 1, 5)
    led.totals("w1", 1, 1, 5)

    assert led.counted == 10


def test_a_report_of_which_a_part_was_shed_is_not_acknowledged() -> None:
    led = Led().started()
    led.report("w1", 1, StepTotals(1, "login", StepTally(), measured=True))

    assert led.totals("w1", 1, 1, 5, parts=2) == []
    assert led.counted == 0

    led.report("w1", 1, StepTotals(2, "login", StepTally(), measured=True))
    assert said(led.totals("w1", 1, 2, 7, parts=1), Acknowledge) != []
    assert led.counted == 7


def test_instants_of_a_report_are_of_the_managers_clock_from_then_on() -> None:
    led = Led().started()
    totals = Totals(1, Tally(started=5), [], 1, started_at_ns=led.now + OFFSETS["w1"] + 9)

    led.report("w1", 1, totals)

    assert led.led.job is not None
    assert led.led.job.attempts[1][2].started_at_ns == led.now + 9


@pytest.mark.parametrize("content", [b"", b"\x93\x0f", encode(Armed())[:-1]], ids=["empty", "broken", "cut"])
def test_a_report_that_cannot_be_read_is_let_pass(content: bytes) -> None:
    led = Led().started()

    assert led.say("w1", Report("b4k7", 1, content)) == []


def test_a_last_report_is_not_counted_for_results_come_whole() -> None:
    led = Led().started()

    assert led.totals("w1", 1, 1, 5, final=True) == []
    assert led.counted == 0


def test_a_greeting_of_a_core_tells_its_engine() -> None:
    led = Led().started()

    assert led.report("w1", 1, Hello(7, "3.11", "native")) == []

    assert led.led.job is not None
    assert led.led.job.engine == "native"


def test_a_report_of_an_attempt_that_nobody_waits_for_ends_in_a_kill() -> None:
    led = Led().started()

    assert led.totals("w1", 77, 1, 5) == [Send(CHANNEL, "w1", Halt("b4k7", FENCE, 77, "kill"), Lane.RESULTS)]
    assert led.say("w1", NoTask("b4k7", 77, FENCE)) == []
    assert led.counted == 0


def test_a_report_of_another_workers_attempt_ends_in_a_kill_there_and_changes_nothing_here() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()

    assert led.report("w2", 1, Armed()) == [Send(CHANNEL, "w2", Halt("b4k7", FENCE, 1, "kill"), Lane.RESULTS)]
    assert led.say("w2", NoTask("b4k7", 1, FENCE)) == []

    assert [assign.attempt for assign in said(led.later(1).tick(), Assign)] == [1, 2]
    assert led.led.job is not None
    assert not led.led.job.attempts[1][2].armed


def test_messages_that_are_not_for_a_job_change_nothing() -> None:
    led = Led().started()

    assert led.say("w1", Synced(1, 5)) == []


# -- results


def test_a_result_is_fetched_kept_and_put_on_checkpoint_and_only_then_counted_and_accepted() -> None:
    led = Led().started()
    led.totals("w1", 1, 1, 5)

    digest, content, effects = led.offer("w1", 1)
    assert effects == [BlobWanted("b4k7", digest, len(content), ("w1",))]
    assert led.take(led.led.on_blob(led.now, digest, content)) == [KeepWanted("b4k7", digest, content)]
    effects = led.take(led.led.on_kept(led.now, digest))
    (checkpoint,) = said(effects, StoreCheckpoint)
    assert effects == [Send(CHANNEL, "", checkpoint, Lane.CONTROL)]
    (entry,) = decode_checkpoint(checkpoint.content).workflows
    assert [shard.attempts[0].digest.hex() for shard in entry.shards] == [digest, ""]
    assert led.counted == 5

    effects = led.stored()

    assert effects[:2] == [
        AttemptAccepted("b4k7", 1, digest),
        Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS),
    ]
    assert led.counted == 9


def test_a_result_offered_again_at_any_time_counts_once() -> None:
    led = Led().started()
    digest, content, _ = led.offer("w1", 1)

    assert led.finished("w1", 1, content) == [], "it is being fetched"
    led.take(led.led.on_blob(led.now, digest, content))
    assert led.finished("w1", 1, content) == [], "it is being kept"
    led.take(led.led.on_kept(led.now, digest))
    assert led.finished("w1", 1, content) == [], "until it is stored the worker's copy may be the last one"
    led.stored()
    accepted = [Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)]
    assert led.finished("w1", 1, content) == accepted, "it did not hear"
    assert led.led.on_blob(led.now, digest, content) == []
    assert led.led.on_kept(led.now, digest) == []

    assert led.counted == 9
    assert sum(isinstance(effect, AttemptAccepted) for effect in led.effects) == 1


def test_of_two_results_of_an_attempt_the_one_that_is_kept_first_counts() -> None:
    led = Led().started()
    for notes in (("one",), ("two",)):
        digest, content, _ = led.offer("w1", 1, notes=notes)
        assert led.led.on_blob(led.now, digest, content) == [KeepWanted("b4k7", digest, content)]

    led.take(led.led.on_kept(led.now, digest_of(led.result(1, notes=("two",)))))
    assert led.led.on_kept(led.now, digest_of(led.result(1, notes=("one",)))) == []
    led.stored()

    assert led.led.job is not None
    assert led.led.job.workflows["Shop"].notes == ["two"]
    assert sum(isinstance(effect, AttemptAccepted) for effect in led.effects) == 1


@without("result_key")
def test_without_a_key_for_results_one_that_is_offered_twice_counts_twice() -> None:
    led = Led(workflow("Shop"), workflow("Side")).started()

    led.finish("w1", 1)
    led.offer("w1", 1)
    assert led.offer("w1", 1)[2] == [Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)], (
        "it is being fetched"
    )
    led.finish("w1", 1)

    assert led.counted == 18


def test_a_result_of_another_workers_attempt_is_not_wanted() -> None:
    led = Led().started()
    starts = told(led.effects, Start)

    _, _, effects = led.offer("w2", 1)

    assert effects == [Send(CHANNEL, "w2", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)]
    assert told(led.later(1).tick(), Start) == starts, "the right one is still told"


@pytest.mark.parametrize("found", ["nothing", "no result", "another attempt", "another job"])
def test_a_result_that_cannot_be_had_is_fetched_when_it_is_offered_again(found: str) -> None:
    led = Led().started()
    digest, content, wanted = led.offer("w1", 1)
    other = AttemptResult("q9z9", 1, Tally(), [])
    contents = {
        "nothing": None,
        "no result": b"?",
        "another attempt": led.result(2),
        "another job": encode_result(other),
    }

    assert led.led.on_blob(led.now, digest, contents[found]) == []

    assert led.finished("w1", 1, content) == wanted


def test_a_result_whose_workflow_has_ended_meanwhile_does_not_count() -> None:
    led = Led().started()
    digest, content, _ = led.offer("w1", 1)
    led.take(led.led.on_blob(led.now, digest, content))

    led.report("w2", 2, Refused("setup", "no such host"))

    assert led.led.on_kept(led.now, digest) == []
    assert led.counted == 0
    assert led.finished("w1", 1, content) == [Send(CHANNEL, "w1", ResultAccepted("b4k7", FENCE, 1), Lane.RESULTS)]


def test_a_result_whose_workflow_ends_while_it_is_put_on_checkpoint_does_not_count() -> None:
    led = Led().started()
    digest, content, _ = led.offer("w1", 1)
    led.take(led.led.on_blob(led.now, digest, content))
    led.take(led.led.on_kept(led.now, digest))

    led.report("w2", 2, Refused("setup", "no such host"))
    effects = led.stored()

    assert said(effects, ResultAccepted) == []
    assert led.counted == 0


def test_a_task_whose_result_is_on_its_way_is_not_killed_for_being_late() -> None:
    led = Led(workflow("Shop", shape=ConstantRate(100, "10s"))).started()
    led.offer("w1", 1)
    for _ in range(7):
        led.later(10).tick()

    assert [halt.attempt for halt in said(led.effects, Halt)] == [2]


# -- the leader


def test_a_cancel_stops_every_task_and_the_state_tells() -> None:
    led = Led().started()

    effects = led.on_entry(cancel="alice said so")

    assert told(effects, Halt) == [("w1", Halt("b4k7", FENCE, 1, "stop")), ("w2", Halt("b4k7", FENCE, 2, "stop"))]
    assert [checkpoint.state for checkpoint in said(effects, StoreCheckpoint)] == [JobState.CANCELLING]
    assert led.on_entry(cancel="alice said so") == [], "a second word is not a second cancel"


def test_what_the_leader_says_of_another_fence_or_an_earlier_version_changes_nothing() -> None:
    led = Led().started()
    entry = msgspec.structs.replace(led.led.entry, cancel="alice said so")

    assert led.led.on_entry(led.now, entry) == []
    assert led.led.on_entry(led.now, msgspec.structs.replace(entry, fence=(1, 1, 0), version=9)) == []

    assert led.led.entry.cancel == ""


def test_one_that_is_not_told_for_five_seconds_that_it_leads_the_job_asks() -> None:
    led = Led().started()
    led.tick()
    asking = StoreCheckpoint("b4k7", FENCE, 0, "", b"", life=LIFE)
    led.later(3)
    led.led.on_entry(led.now, led.led.entry)

    assert asking not in said(led.later(UNTOLD_NS / SECOND - 0.1).tick(), StoreCheckpoint)
    assert asking in said(led.later(0.1).tick(), StoreCheckpoint)
    assert asking not in said(led.later(0.1).tick(), StoreCheckpoint)
    assert asking in said(led.later(UNTOLD_NS / SECOND - 0.1).tick(), StoreCheckpoint)


def test_an_entry_of_another_fence_does_not_tell_that_it_leads_the_job() -> None:
    led = Led().started()
    led.tick()
    led.later(3)
    led.led.on_entry(led.now, msgspec.structs.replace(led.led.entry, fence=(1, 1, 0)))

    assert StoreCheckpoint("b4k7", FENCE, 0, "", b"", life=LIFE) in said(led.later(2).tick(), StoreCheckpoint)


def test_a_checkpoint_that_nobody_answers_is_said_again() -> None:
    led = Led()
    first = led.take(led.led.start(led.now))
    led.tick()

    assert said(led.later(0.4).tick(), StoreCheckpoint) == []
    assert said(led.later(0.1).tick(), StoreCheckpoint) == said(first, StoreCheckpoint)


def test_answers_to_others_checkpoints_are_let_pass() -> None:
    led = Led()
    led.take(led.led.start(led.now))

    assert led.led.on_checkpoint_stored(led.now, CheckpointStored("b4k7", FENCE, 1, life=LIFE + 1)) == []
    assert (
        led.led.on_checkpoint_stored(led.now, CheckpointStored("b4k7", (1, 1, 2), 1, superseded=True, life=LIFE)) == []
    )

    assert led.led.phase == "leading"


@pytest.mark.parametrize("word", ["worker", "leader"])
def test_one_that_was_superseded_stops_at_once(word: str) -> None:
    led = Led().started()
    digest, content, _ = led.offer("w1", 1)
    led.take(led.led.on_blob(led.now, digest, content))
    led.take(led.led.on_kept(led.now, digest))
    led.on_entry(cancel="alice said so")  # for the next checkpoint

    if word == "worker":
        effects = led.say("w1", Stale("b4k7", 1, (1, 1, 2)))
    else:
        effects = led.led.on_checkpoint_stored(led.now, CheckpointStored("b4k7", FENCE, 0, superseded=True, life=LIFE))

    assert effects == [JobOver("b4k7", superseded=True)]
    assert led.led.phase == "over"
    assert led.later(9).tick() == []
    assert led.stored() == [], "what waited for the checkpoint is not done any more"


def test_worker_that_never_had_anything_of_a_job_has_no_say_in_it() -> None:
    led = Led().started()

    assert led.say("stranger", Stale("b4k7", 1, (1, 1, 2))) == []

    assert led.led.phase == "leading"


def test_a_command_that_was_overtaken_by_one_of_this_manager_says_nothing_of_another() -> None:
    led = Led().started()

    assert led.say("w1", Stale("b4k7", 1, FENCE)) == []

    assert led.led.phase == "leading"


# -- the end


def test_the_document_is_kept_before_the_end_is_stored() -> None:
    led = Led().started()
    led.finish("w1", 1)
    effects = led.finish("w2", 2)
    assert DocumentWanted("b4k7") in effects
    assert (led.led.phase, led.led.facts().state) == ("documenting", JobState.COMPLETING)

    digest = digest_of(b"document")
    effects = led.take(led.led.on_document(led.now, b"document", JobState.COMPLETED, 4, "a rule was broken"))
    assert effects == [KeepWanted("b4k7", digest, b"document")]
    assert led.led.on_kept(led.now, "e" * 64) == []
    effects = led.take(led.led.on_kept(led.now, digest))

    (last,) = said(effects, StoreCheckpoint)
    assert (last.state, last.content, last.result) == ("completed", b"", digest)
    assert (last.reason, last.exit_code) == ("a rule was broken", 4)
    assert led.led.on_kept(led.now, digest) == [], "it is said again by and by"
    assert said(led.later(0.5).tick(), StoreCheckpoint) == [last]
    assert led.stored() == [JobOver("b4k7")]
    assert led.led.on_checkpoint_stored(led.now, CheckpointStored("b4k7", FENCE, last.revision, life=LIFE)) == []
    assert led.later(9).tick() == []


def test_an_earlier_checkpoint_stored_is_not_the_end() -> None:
    led = Led().started()
    led.finish("w1", 1)
    led.offer("w2", 2)
    led.on_entry(cancel="alice said so")
    earlier = led.checkpoints()[-1].revision
    led.finish("w2", 2)
    assert led.led.facts().state is JobState.CANCELLING
    led.take(led.led.on_document(led.now, b"document", JobState.CANCELLED, 0, ""))
    led.take(led.led.on_kept(led.now, digest_of(b"document")))

    assert led.led.on_checkpoint_stored(led.now, CheckpointStored("b4k7", FENCE, earlier, life=LIFE)) == []

    assert led.led.phase == "closing"


def test_a_job_whose_file_is_refused_ends() -> None:
    led = Led()
    led.take(led.led.start(led.now))
    led.stored()

    effects = led.report("w1", 1, Refused("file", "there is no shop.py"))

    assert [halt.attempt for halt in said(effects, Halt)] == [1, 2]
    assert DocumentWanted("b4k7") in effects
    assert led.led.job is not None
    assert led.led.job.workflows["Shop"].state is TaskState.FAILED


def test_of_a_job_that_has_ended_a_late_grant_starts_nothing() -> None:
    led = Led().started()
    led.report("w1", 1, Refused("file", "there is no shop.py"))
    led.stored()

    assert led.on_entry(grants=(*led.led.entry.grants, Grant("w3", 7, 1))) == []
    assert said(led.later(9).tick(), Assign) == []


def test_of_a_job_that_has_ended_a_late_cancel_stops_nothing() -> None:
    led = Led().started()
    led.report("w1", 1, Refused("file", "there is no shop.py"))
    led.stored()

    assert led.on_entry(cancel="alice said so") == []


def test_what_is_known_of_a_job_is_told() -> None:
    led = Led()
    assert led.led.next_tick_at == 0

    assert led.led.name == "b4k7"
    assert led.led.facts().state is JobState.DISPATCHING, "as it is stored"
    assert led.led.job is None
    assert led.led.warnings == []


# What the test prints.


def test_lines_are_kept_of_workers_that_have_a_part_of_the_job_and_of_nobody_else() -> None:
    led = Led()

    assert led.say("w1", LogLines("b4k7", 1, 0, ("a",))) == []
    assert led.say("stranger", LogLines("b4k7", 1, 0, ("b",))) == []

    assert led.led.lines.all() == [LogLine(1, "w1", "a")]


# -- more time

ASKED = TimeAsked(1, 30 * SECOND, "the index is built")
SLOW = {"shape": IterationsPerVU(1, 1000), "timeout_ns": 60 * SECOND, "saves": True}


def test_more_time_is_told_once_a_checkpoint_with_it_is_stored() -> None:
    led = Led(workflow("Shop", **SLOW)).started().later(50)

    effects = led.totals("w1", 1, 1, 0, asked=ASKED)

    assert [word.answer for word in said(effects, Acknowledge)] == [None]
    assert (
        JobLate("b4k7", "Shop", "given", "it asked for more time and was given 15s more: the index is built") in effects
    )
    (entry,) = decode_checkpoint(said(effects, StoreCheckpoint)[0].content).workflows
    assert entry.deadline is not None
    assert [given.name for given in entry.deadline.extensions] == ["1/1"]
    (answer,) = said(led.stored(), Acknowledge)
    assert answer.answer is not None and answer.answer.answer.granted_s == 15
    (again,) = said(led.totals("w1", 1, 2, 0), Acknowledge)
    assert (again.sequence, again.answer) == (2, answer.answer), "one may be lost"


def test_that_there_is_no_more_time_is_told_at_once_and_stores_nothing() -> None:
    led = Led(workflow("Shop", **SLOW)).started().later(5)

    effects = led.totals("w1", 1, 1, 0, asked=ASKED)

    denied, acknowledged = (word.answer for word in said(effects, Acknowledge)[::-1])
    assert acknowledged is None or acknowledged == denied
    assert denied is not None and not denied.answer
    assert said(effects, StoreCheckpoint) == []


def test_a_warning_is_told_once_it_is_stored_and_with_each_acknowledgement() -> None:
    led = Led(workflow("Shop", **SLOW)).started().later(60.3)

    effects = led.tick()

    assert said(effects, Acknowledge) == []
    (entry,) = decode_checkpoint(said(effects, StoreCheckpoint)[-1].content).workflows
    assert entry.deadline is not None and entry.deadline.is_warned
    assert {word.over for word in said(led.stored(), Acknowledge)} == {TimeOver(10 * SECOND)}
    assert [word.over for word in said(led.totals("w1", 1, 1, 0), Acknowledge)] == [TimeOver(10 * SECOND)]


def test_an_attempt_that_is_over_when_its_answer_is_stored_is_told_nothing() -> None:
    led = Led(workflow("Shop", **SLOW)).started().later(50)
    led.totals("w1", 1, 1, 0, asked=ASKED)
    led.on_entry(cancel="enough")
    led.later(40).tick()
    assert led.led.job is not None and led.led.job.attempts == {}, "it did not stop in time"

    assert [word for word in said(led.stored(), Acknowledge) if word.answer is not None] == []


def test_what_a_lost_attempt_had_saved_is_in_its_result() -> None:
    led = Led(workflow("Shop", **SLOW)).started().later(60.3)
    led.tick()
    led.stored()
    led.totals("w1", 1, 1, 3, provided={"self.context/at": b"7"})

    effects = led.on_entry(grants=(Grant("w1", 7, 1, lost="its lease is over"), Grant("w2", 7, 1)))

    (kept,) = [effect for effect in effects if isinstance(effect, KeepWanted)]
    assert decode_result(kept.content).provided == {"self.context/at": b"7"}


# -- cores that come back


def counted(led: Led) -> tuple[SpareCores, ...]:
    return led.checkpoints()[-1].spare


def test_cores_of_shards_that_have_ended_are_given_back_with_the_checkpoint_that_says_so() -> None:
    led = Led(workflow("Shop", shape=IterationsPerVU(4, 9)), cores=2).started()
    assert counted(led) == ()

    led.totals("w1", 1, 1, 9, ended=(1,))

    assert counted(led) == (SpareCores("w1", 7, 2, 1),)
    (shop,) = decode_checkpoint(led.checkpoints()[-1].content).workflows
    assert [shard.ended for shard in shop.shards] == [(1,), ()]
    led.stored()
    assert led.led.job is not None and led.led.job.workers == {"w1": 1, "w2": 2}
    led.totals("w1", 1, 2, 9, ended=(1,))
    assert counted(led) == (SpareCores("w1", 7, 2, 1),), "until the leader says so"
    led.on_entry(grants=(Grant("w1", 7, 1), Grant("w2", 7, 2)))
    led.finish("w2", 2)
    assert counted(led) == (SpareCores("w2", 7, 2, 0),)
    assert led.led.job.workers == {"w1": 1, "w2": 0}


def test_a_report_that_tells_of_no_other_shard_that_ended_makes_no_checkpoint() -> None:
    led = Led(workflow("Shop", shape=IterationsPerVU(4, 9)), cores=2).started()
    led.totals("w1", 1, 1, 9, ended=(1,))
    led.stored()
    before = len(led.checkpoints())

    led.totals("w1", 1, 2, 10, ended=(1,))

    assert len(led.checkpoints()) == before


def test_the_next_owner_knows_which_shards_have_ended_and_uses_the_cores_that_are_left() -> None:
    led = Led(workflow("Shop", shape=IterationsPerVU(4, 9)), cores=2).started()
    led.totals("w1", 1, 1, 9, ended=(0,))
    content = led.checkpoints()[-1].content
    entry = msgspec.structs.replace(
        led.led.entry, checkpoint=content, grants=(Grant("w1", 7, 1), Grant("w2", 7, 2)), fence=(9, 9, 9)
    )
    other = LedJob(entry, life=LIFE + 1, clocks=led.clocks, keys=led.keys, wall_offset_ns=0)
    other.start(led.now)
    for worker, attempt in (("w1", 1), ("w2", 2)):
        facts = TaskFacts(attempt, "running", SECOND, SECOND, life=LIFE)
        other.on_message(led.now, worker, WorkerSnapshot("b4k7", (9, 9, 9), 1, (facts,)))

    assert other.job is not None
    assert other.job.used_seats() == {("w1", 1): None, ("w2", 0): None, ("w2", 1): None}
    assert other.job.workers == {"w1": 1, "w2": 2}
    assert list(other.job._sitting()) == [("w1", 1), ("w2", 0), ("w2", 1)]


def test_when_cores_come_back_is_told_with_each_checkpoint_and_once_more_to_a_leader_that_asks() -> None:
    led = Led().started()
    (back,) = led.checkpoints()[-1].back
    assert (back.cores, back.least_ns > 0, back.likely_ns == back.least_ns) == (2, True, True)
    before = len(led.checkpoints())

    led.later(1).take(led.led.on_entry(led.now, led.led.entry, asks=True))
    led.tick()

    assert len(led.checkpoints()) == before + 1
    assert led.checkpoints()[-1].back[0].least_ns < back.least_ns
    led.stored()
    led.take(led.led.on_entry(led.now, led.led.entry))
    led.tick()
    assert len(led.checkpoints()) == before + 1
