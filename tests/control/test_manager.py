"""Managers as a whole: whose message is for which part, and what each part's news means to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Lane, PersistBlob, Send
from talka.cluster.leadership.lease_terms import OwnLease
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.control.blobs.replicated_blobs import BlobFailed, BlobKept, BlobLimits, BlobReady, LoadBlob, ServeBlob
from talka.control.clients.overload import Level
from talka.control.jobs.effects import (
    Alarmed,
    AttemptAccepted,
    DocumentWanted,
    JobAcceptedNews,
    JobEndStored,
    JobOver,
    LeadWanted,
    OwnerChanged,
    Updated,
    WatchFailed,
    WorkerLost,
)
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.workers.health import SILENT_NS
from talka.control.manager import KEEP_AGAIN_NS, LED_LIMIT, NEVER, Manager
from talka.control.member.leader_calls import CallEnded
from talka.control.tasks.paced_frames import PACE_LIMITS, PaceLimits, RoomWanted
from talka.control.tasks.store_effects import Commit, DagEnded, ReadOutputs
from talka.stats.tally import Tally
from talka.testing.disk import BLOB_PREFIX
from talka.testing.trust import keys_of_workers
from talka.units import SECOND
from talka.wire.entries import JobEntry, encode_entry
from talka.wire.jobs import (
    CHANNEL,
    Acknowledge,
    Assign,
    AttemptResult,
    Beat,
    CheckpointStored,
    Elsewhere,
    Finished,
    Goodbye,
    Halt,
    JobMessage,
    KeepBlob,
    Kept,
    Lead,
    Leaderless,
    LogLines,
    ManagerAt,
    Piece,
    Renew,
    Report,
    ResultAccepted,
    Start,
    StoreCheckpoint,
    Sync,
    Synced,
    ViewUpdate,
    WantBlob,
    WatchJob,
    WorkerFacts,
    encode_result,
)
from talka.wire.manager_calls import CallAnswer, CancelJob, GetJob, LeaderCall, ListJobs, ManagerCall, SubmitJob
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.security.roles import Role
from talka.wire.shards import Armed, Totals
from talka.wire.shards import encode as encode_word
from talka.wire.tasks import AssignTasks, Done, Held, ResultsStored, TaskProgress, TaskResult
from talka.work.dags.dag import CodeBundle, DagSpec, TaskSpec
from talka.work.lifecycle import JobState
from talka.work.retention import Keep, Retention

CLOCK_NS = 77 * SECOND
"""By how much workers' clocks are ahead."""
CabinetOf = Callable[..., Any]
OrderOf = Callable[..., JobOrder]


class Play:
    """Managers that hear each other; the test is their workers and their shells."""

    def __init__(self, cabinet_of: CabinetOf, *names: str, leases: Mapping[str, OwnLease] = {}, **limits: Any) -> None:
        self.group = cabinet_of(*names, part_of=partial(self.manager_of, **limits), leases=leases)
        self.leader = self.group.leader()
        self.numbers = 0

    @staticmethod
    def manager_of(group: Any, name: str, led_limit: int = LED_LIMIT, pace: PaceLimits = PACE_LIMITS) -> Manager:
        return Manager(
            name=name,
            boot=group.boot,
            voter=group.voters[name],
            rng=Random(f"manager:{group.boot}"),
            wall_offset_ns=SECOND,
            keys=keys_of_workers(1),
            managers=lambda: tuple(ManagerAt(one, f"at-{one}") for one in group.names),
            blobs=[key.removeprefix(BLOB_PREFIX) for key in group.disks[name] if key.startswith(BLOB_PREFIX)],
            led_limit=led_limit,
            pace=pace,
        )

    @property
    def now(self) -> int:
        return int(self.group.now)

    def manager(self, name: str = "") -> Manager:
        found = self.group.parts[name or self.leader]
        assert isinstance(found, Manager)
        return found

    def others(self) -> list[str]:
        return [name for name in self.group.parts if name != self.leader]

    def entry(self, job: str) -> JobEntry:
        registry = self.manager().registry
        assert registry is not None
        return registry.entries[job]

    # What happens.

    def hear(self, name: str, sender: str, message: Any, boot: int = 1) -> list[Any]:
        return list(self.group.act(name, self.manager(name).on_message(self.now, sender, message, boot, "#1")))

    def act(self, name: str, effects: list[Any]) -> list[Any]:
        return list(self.group.act(name, effects))

    def run(self, seconds: float) -> list[Any]:
        return list(self.group.run(seconds))

    def beat(self, worker: str = "w1", cores: int = 1, to: str = "", *, seeks: bool = False) -> list[Any]:
        self.numbers += 1
        beat = Beat(self.numbers, WorkerFacts(cores, folder=len(worker)), seeks=seeks)
        return self.hear(to or self.leader, worker, beat)

    def call(self, call: LeaderCall, by: str = "") -> list[Any]:
        _, effects = self.manager(by or self.leader).call(self.now, call)
        return self.act(by or self.leader, effects)

    def submit(self, order: JobOrder, by: str = "") -> str:
        effects = self.call(SubmitJob(order), by)
        (ended,) = [one for one in effects if isinstance(one, CallEnded)]
        assert not ended.problem
        return ended.answer.job.id

    def running(self, order: JobOrder) -> tuple[str, str]:
        """A job whose only task was told to start, and the manager that leads it."""
        self.beat()
        job = self.submit(order)
        owner = self.entry(job).owner
        self.settle_clock(owner)
        effects = self.hear(owner, "w1", Report(job, 1, encode_word(Armed())))
        assert said(effects, Start)
        return job, owner

    def settle_clock(self, owner: str) -> None:
        """The worker tells its time, for all it was asked."""
        for one in [one for one in said(self.everything(), Sync) if one.to == "w1"]:
            self.hear(owner, "w1", Synced(one.message.number, self.now + CLOCK_NS))

    def everything(self) -> list[Any]:
        return [effect for _, effect in self.group.out]


def said(effects: list[Any], kind: type) -> list[Send[JobMessage]]:
    return [one for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def of(effects: list[Any], kind: type) -> list[Any]:
    return [one for one in effects if isinstance(one, kind)]


def result_of(job: str, attempt: int = 1) -> tuple[str, bytes]:
    content = encode_result(AttemptResult(job, attempt, Tally(started=9, iterations=9), [], (9,), worker="w1"))
    return sha256(content).hexdigest(), content


@pytest.fixture
def sole(cabinet_of: CabinetOf) -> Play:
    return Play(cabinet_of, "m1")


@pytest.fixture
def trio(cabinet_of: CabinetOf) -> Play:
    return Play(cabinet_of, "m1", "m2", "m3")


# -- the whole life of a job


def test_a_manager_alone_hears_what_it_says_to_itself(sole: Play, order_of: OrderOf) -> None:
    sole.beat()
    sole.group.hold()
    assert sole.call(SubmitJob(order_of())) == []
    assert sole.manager().led == {}, "its entry is not on disk yet"

    effects = sole.group.write()

    (job,) = sole.manager().led
    assert [one.job for one in of(effects, JobAcceptedNews)] == [job]
    (owner,) = of(effects, OwnerChanged)
    assert (owner.job, owner.owner) == (job, "m1")
    (assign,) = said(effects, Assign)
    assert (assign.to, assign.message.attempt, assign.message.fence) == ("w1", 1, owner.fence)
    assert {one.to for one in of(effects, Send)} == {"w1"}
    assert of(effects, LeadWanted) == []
    assert sole.entry(job).revision > 0, "the attempt was on disk before the worker was told"


def test_a_job_goes_from_its_start_to_its_entry(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    (start,) = said(sole.everything(), Start)
    assert CLOCK_NS < start.message.start_at_ns - sole.now < CLOCK_NS + SECOND, "by the worker's clock"

    report = Report(job, 1, encode_word(Totals(1, Tally(started=3), [], 1, sole.now + CLOCK_NS)))
    (acknowledged,) = said(sole.hear("m1", "w1", report), Acknowledge)
    assert (acknowledged.to, acknowledged.message.every_ms) == ("w1", 50)

    digest, content = result_of(job)
    (want,) = sole.hear("m1", "w1", Finished(job, 1, digest, len(content)))
    assert want == Send(CHANNEL, "w1", WantBlob(digest, 0), Lane.STREAM)
    effects = sole.hear("m1", "w1", Piece(digest, 0, len(content), content))
    assert sole.group.disks["m1"][BLOB_PREFIX + digest] == content
    assert of(effects, AttemptAccepted) == [AttemptAccepted(job, 1, digest)]
    assert [one.to for one in said(effects, ResultAccepted)] == ["w1"]
    assert of(effects, DocumentWanted) == [DocumentWanted(job)]

    document = b"{}"
    name = sha256(document).hexdigest()
    effects = sole.act("m1", sole.manager().on_document(sole.now, job, document, JobState.COMPLETED, 0, ""))
    assert of(effects, BlobKept) == [BlobKept(name)]
    assert of(effects, JobEndStored) == [JobEndStored(job, JobState.COMPLETED, name)]
    assert of(effects, JobOver) == [JobOver(job)]
    assert sole.manager().led == {}
    assert sole.entry(job).result == name


def test_a_document_of_a_job_that_is_not_led_is_nothing(sole: Play) -> None:
    assert sole.manager().on_document(sole.now, "b4k7", b"{}", JobState.COMPLETED, 0, "") == []


def test_a_manager_under_load_asks_for_fewer_reports(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    sole.manager().shedding.level = Level.STRESSED

    report = Report(job, 1, encode_word(Totals(1, Tally(), [], 1, sole.now)))
    (acknowledged,) = said(sole.hear("m1", "w1", report), Acknowledge)

    assert (acknowledged.message.every_ms, acknowledged.message.is_refusal) == (500, False)


def test_an_overloaded_manager_counts_no_reports_and_the_next_one_that_it_takes_brings_all(
    sole: Play, order_of: OrderOf
) -> None:
    job, _ = sole.running(order_of())
    manager = sole.manager()
    load_job = manager.led[job].job
    assert load_job is not None
    (run,) = load_job.workflows.values()
    manager.shedding.level = Level.OVERLOADED

    (refused,) = said(sole.hear("m1", "w1", a_report(job, 1, iterations=7)), Acknowledge)
    assert (refused.message.sequence, refused.message.every_ms, refused.message.is_refusal) == (0, 1000, True)
    assert run.tally().iterations == 0
    assert manager.shedding.statistics_refused == 1
    assert not said(sole.run(2), Start), "the report answers the start all the same"
    assert said(sole.hear("m1", "w1", a_report(job, 2, iterations=8)), Acknowledge)[0].message.is_refusal

    manager.shedding.level = Level.STRESSED
    (taken,) = said(sole.hear("m1", "w1", a_report(job, 3, iterations=9)), Acknowledge)
    assert (taken.message.sequence, taken.message.is_refusal) == (3, False)
    assert run.tally().iterations == 9


def a_report(job: str, sequence: int, *, iterations: int = 0, life: int = 0) -> Report:
    return Report(job, 1, encode_word(Totals(sequence, Tally(iterations=iterations), [], 1, 0)), life=life)


def test_an_overloaded_manager_says_nothing_to_those_whose_reports_nobody_waits_for(
    sole: Play, order_of: OrderOf
) -> None:
    job, _ = sole.running(order_of())
    sole.manager().shedding.level = Level.OVERLOADED

    for sender, report in (
        ("w2", a_report(job, 1)),
        ("w1", msgspec.structs.replace(a_report(job, 1), attempt=77)),
        ("w1", a_report(job, 1, life=99)),
        ("w1", a_report("z9z9", 1)),
        ("w1", LogLines(job, 1, 0, ("a line",))),
    ):
        assert sole.hear("m1", sender, report) == []
    assert sole.manager().shedding.statistics_refused == 5


def test_an_overloaded_manager_tells_watchers_once_a_second(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    sole.manager().shedding.level = Level.OVERLOADED
    _, effects = sole.manager().watch(sole.now, job, steps=False)
    sole.act("m1", effects)
    sole.run(1)

    sole.run(0.001)
    told = len(of(sole.run(3), Updated))

    assert 3 <= told <= 4


def test_an_overloaded_manager_takes_beats_results_and_cancels(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    sole.manager().shedding.level = Level.OVERLOADED
    digest, content = result_of(job)

    assert said(sole.beat(), Renew)
    assert said(sole.call(CancelJob(job)), Halt)
    assert said(sole.hear("m1", "w1", Finished(job, 1, digest, len(content))), WantBlob)
    assert sole.manager().shedding.statistics_refused == 0


@pytest.mark.parametrize(
    ("level", "call", "asker", "problem"),
    [
        (Level.OVERLOADED, ListJobs(), Asker("jobs", "viewer", "ann", "t1"), "busy"),
        (Level.STRESSED, ListJobs(), Asker("jobs", "viewer", "ann", "t1"), "busy"),
        (Level.BUSY, ListJobs(), Asker("jobs", "viewer", "ann", "t1"), ""),
        (Level.OVERLOADED, ListJobs(), Asker("jobs", "viewer"), ""),
        (Level.OVERLOADED, CancelJob("none"), Asker("cancel", "submitter", "ann", "t1"), "missing"),
    ],
)
def test_a_leader_under_load_sheds_what_other_managers_pass_on_by_its_class(
    trio: Play, level: Level, call: LeaderCall, asker: Asker, problem: str
) -> None:
    trio.manager().shedding.level = level
    follower = trio.others()[0]

    _, effects = trio.manager(follower).call(trio.now, call, asker)
    (ended,) = of(trio.act(follower, effects), CallEnded)

    assert ended.problem == problem
    assert (ended.retry_after_ms == 1000) == (problem == "busy")
    assert sum(trio.manager().shedding.shed.values()) == (problem == "busy")


def test_a_leader_under_load_answers_what_was_let_in_at_its_own_door(trio: Play) -> None:
    trio.manager().shedding.level = Level.OVERLOADED

    _, effects = trio.manager().call(trio.now, ListJobs(), Asker("jobs", "viewer", "ann", "t1"))
    (ended,) = of(trio.act(trio.leader, effects), CallEnded)

    assert not ended.problem


def test_jobs_are_led_by_managers_that_do_not_lead_the_cluster(trio: Play, order_of: OrderOf) -> None:
    trio.beat(cores=40)
    jobs = [trio.submit(order_of()) for _ in range(12)]

    assert all(job in trio.manager(trio.entry(job).owner).led for job in jobs)
    assert sum(bool(trio.manager(name).led) for name in trio.others()) >= 1
    assert len(said(trio.everything(), Assign)) == 12


def test_time_passes_in_all_parts(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    digest, content = result_of(job)
    sole.hear("m1", "w1", Finished(job, 1, digest, len(content)))
    before = len(sole.everything())
    sole.act("m1", sole.manager().watch(sole.now, job, steps=False)[1])

    sole.run(4)

    effects = sole.everything()[before:]
    assert said(effects, WantBlob), "nobody answered the first"
    assert of(effects, Updated)
    assert sole.now < sole.manager().next_tick_at < sole.now + SECOND


# -- those who do not lead


def test_who_does_not_lead_tells_a_worker_without_a_lease_where_managers_are(trio: Play) -> None:
    follower = trio.others()[0]
    managers = tuple(ManagerAt(name, f"at-{name}") for name in trio.manager(follower)._voter.election.config.names())

    (answer,) = trio.beat(to=follower, seeks=True)

    assert answer.message == Elsewhere(trio.leader, managers)


def test_who_does_not_lead_says_who_does(trio: Play) -> None:
    follower = trio.others()[0]

    assert trio.beat(to=follower) == [Send(CHANNEL, "w1", Elsewhere(trio.leader), Lane.CONTROL)]
    assert trio.hear(follower, "x", ManagerCall(5, ListJobs())) == [
        Send(CHANNEL, "x", CallAnswer(5, None, "elsewhere", trio.leader), Lane.RESULTS)
    ]
    assert trio.hear(follower, "w1", Goodbye()) == []
    assert trio.hear(follower, "x", StoreCheckpoint("b4k7", (0, 1, 1), 1, "running", b"")) == []
    assert trio.hear(follower, "x", Leaderless("b4k7", (0, 1, 1))) == []


def test_who_leads_renews_leases_and_hears_goodbyes(trio: Play) -> None:
    (renew,) = said(trio.beat(), Renew)

    assert [one.address for one in renew.message.managers] == ["at-m1", "at-m2", "at-m3"]
    assert of(trio.hear(trio.leader, "w1", Goodbye()), WorkerLost) == [WorkerLost("w1", 1, "it left")]


def test_workers_have_the_lease_that_the_first_manager_was_told(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "m1", leases={"m1": OwnLease(SECOND // 2, "--lease")})
    (renew,) = said(play.beat(), Renew)

    assert renew.message.lease_ns == SECOND // 2
    lost = of(play.run(6), WorkerLost)
    assert [one.name for one in lost] == ["w1"], "no sooner than one of an earlier life would be over"


def test_any_manager_passes_questions_on_to_the_leader(trio: Play, order_of: OrderOf) -> None:
    follower = trio.others()[0]

    job = trio.submit(order_of(), by=follower)

    (ended,) = of(trio.call(GetJob(job), by=follower), CallEnded)
    assert ended.answer.job.id == job


def test_while_nobody_leads_questions_wait(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    play = Play.__new__(Play)
    play.group, play.leader, play.numbers = cabinet_of("m1", part_of=Play.manager_of), "m1", 0
    manager = play.manager()
    assert manager.leader == "" and manager.next_tick_at == NEVER

    assert play.beat() == [Send(CHANNEL, "w1", Elsewhere(""), Lane.CONTROL)]
    assert play.call(SubmitJob(order_of())) == []
    asked_at = manager.next_tick_at
    assert play.now < asked_at < NEVER

    assert play.group.leader() == "m1"
    (ended,) = of(play.run(1.5), CallEnded)
    assert ended.problem == ""


def test_what_is_said_to_the_leader_while_there_is_none_is_said_to_nobody(trio: Play, order_of: OrderOf) -> None:
    job, owner = trio.running(order_of())
    for name in [name for name in trio.group.voters if name != owner]:
        trio.group.stop(name)
    for effect in trio.run(8):
        assert not isinstance(effect, Send) or effect.to, "everything said has an address"
    assert trio.manager(owner).leader == ""
    assert job in trio.manager(owner).led

    assert trio.act(owner, trio.manager(owner).drain(trio.now)) == []


def test_a_leader_that_steps_down_keeps_the_jobs_it_leads_itself(trio: Play, order_of: OrderOf) -> None:
    trio.beat(cores=40)
    jobs = [trio.submit(order_of()) for _ in range(12)]
    before, led = trio.leader, list(trio.manager().led)
    assert 0 < len(led) < len(jobs)

    trio.act(before, trio.group.voters[before].hand_over(trio.now))
    assert trio.manager(before).registry is None
    trio.leader = trio.group.leader()
    trio.run(2)

    assert trio.leader != before
    assert list(trio.manager(before).led) == led
    assert [trio.entry(job).owner for job in led] == [before] * len(led)
    assert trio.manager(before).on_news(trio.now, WriteEnded(1, "accepted")) == [], "of a write as a leader"


def test_a_leader_drops_jobs_that_ended_long_ago_and_others_drop_none(trio: Play, order_of: OrderOf) -> None:
    job = trio.submit(order_of())
    trio.call(CancelJob(job, "a mistake"))
    keep = Retention(Keep(60 * SECOND, 10), Keep(60 * SECOND, 10))
    for name in trio.group.parts:
        assert trio.act(name, trio.manager(name).sweep_jobs(trio.now, keep)) == []
    assert trio.entry(job).state is JobState.CANCELLED

    trio.run(61)
    for name in trio.others():
        trio.act(name, trio.manager(name).sweep_jobs(trio.now, keep))
    assert trio.entry(job).state is JobState.CANCELLED
    trio.act(trio.leader, trio.manager().sweep_jobs(trio.now, keep))
    trio.run(1)

    registry = trio.manager().registry
    assert registry is not None and registry.entries == {}


def test_a_manager_whose_voter_steps_down_keeps_no_registry(sole: Play) -> None:
    assert sole.manager().registry is not None

    assert sole.manager().on_news(sole.now, SteppedDown(1, "draining")) == []

    assert sole.manager().registry is None


def test_a_leader_says_what_it_cannot_read_of_the_register(sole: Play) -> None:
    sole.act("m1", sole.group.voters["m1"].write(sole.now, 900, "job/007", b"\xc1"))
    sole.group.stop("m1")
    sole.group.start("m1")
    before = len(sole.everything())

    sole.group.leader()

    (alarm,) = of(sole.everything()[before:], Alarmed)
    assert alarm.text.startswith("job/007: the register holds a malformed entry of a job")


# -- being told to lead


class Told:
    """A manager that does not lead the cluster, and is told by a leader of another time what to do."""

    def __init__(self, play: Play, order: JobOrder) -> None:
        play.group.lost.append(StoreCheckpoint)
        self.play, self.order, self.name = play, order, play.others()[0]

    def lead(self, **more: Any) -> list[Any]:
        more = {"job": "b4k7", "owner": self.name, "fence": (0, 5, 1), "granted": 1, "pool": 1, "version": 1, **more}
        entry = JobEntry(order=self.order, state=JobState.DISPATCHING, number=1, **more)
        return self.play.hear(self.name, "m9", Lead(encode_entry(entry)))

    @property
    def led(self) -> dict[str, LedJob]:
        return self.play.manager(self.name).led


@pytest.fixture
def told(trio: Play, order_of: OrderOf) -> Told:
    return Told(trio, order_of())


def test_a_manager_leads_what_it_is_told_to(told: Told) -> None:
    told.lead()
    first = told.led["b4k7"]

    told.lead(version=2, cancel="a mistake")
    assert told.led["b4k7"] is first and first.entry.cancel == "a mistake"
    told.lead(fence=(0, 4, 9), version=3)
    assert told.led["b4k7"] is first, "of an earlier leader, and long on its way"
    told.lead(fence=(0, 6, 1), version=3)

    second = told.led["b4k7"]
    assert second is not first and second.fence == (0, 6, 1)


def test_what_another_leads_or_nobody_can_read_is_not_led(told: Told) -> None:
    assert told.lead(owner="m9") == []
    assert told.play.hear(told.name, "m9", Lead(b"\xc1")) == []

    assert told.led == {}


def test_a_job_whose_checkpoint_cannot_be_read_is_given_back_and_told_of(told: Told) -> None:
    alarm, given_back = told.lead(checkpoint=b"\xc1")

    assert alarm.text == (
        f"job b4k7 cannot be led on by {told.name}: the checkpoint of a job cannot be read: MessagePack data is "
        "malformed: "
        "invalid opcode '\\xc1' (byte 0); another manager is asked to"
    )
    assert given_back == Send(CHANNEL, "m9", Leaderless("b4k7", (0, 5, 1)), Lane.CONTROL)
    assert told.led == {}


def test_a_fence_of_an_earlier_life_is_given_back(told: Told) -> None:
    assert told.lead(revision=3) == [Send(CHANNEL, "m9", Leaderless("b4k7", (0, 5, 1)), Lane.CONTROL)]
    assert told.led == {}


def test_who_leaves_leads_nothing_new(told: Told) -> None:
    told.lead()
    told.play.act(told.name, told.play.manager(told.name).drain(told.play.now))

    assert told.lead(fence=(0, 6, 1)) == [Send(CHANNEL, "m9", Leaderless("b4k7", (0, 6, 1)), Lane.CONTROL)]
    assert told.lead(job="c5m8") == [Send(CHANNEL, "m9", Leaderless("c5m8", (0, 5, 1)), Lane.CONTROL)]
    assert list(told.led) == ["b4k7"], "until it hears that another leads it"


def test_there_is_a_limit_to_what_a_manager_leads(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    told = Told(Play(cabinet_of, "m1", "m2", "m3", led_limit=1), order_of())
    told.lead()

    assert told.lead(job="c5m8") == []
    assert list(told.led) == ["b4k7"]
    told.lead(fence=(0, 6, 1))
    assert told.led["b4k7"].fence == (0, 6, 1), "it takes the place of its own"


def test_a_manager_that_was_replaced_stops_leading(told: Told) -> None:
    told.lead()
    told.play.hear(told.name, "m9", WatchJob("b4k7", 1))
    life = told.play.manager(told.name)._boot

    effects = told.play.hear(told.name, "m9", CheckpointStored("b4k7", (0, 5, 1), 0, superseded=True, life=life))

    assert effects == [JobOver("b4k7", superseded=True)]
    assert told.led == {}


def test_messages_about_jobs_that_are_not_led_are_nothing(sole: Play) -> None:
    assert sole.hear("m1", "m9", CheckpointStored("b4k7", (0, 5, 1), 1)) == []
    assert sole.hear("m1", "w1", Report("b4k7", 1, b"")) == []
    assert sole.hear("m1", "w1", Elsewhere("m2")) == []


def test_a_manager_that_was_started_anew_gets_its_jobs_under_a_new_fence(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    fence = sole.entry(job).fence
    sole.group.stop("m1")
    before = len(sole.everything())
    sole.group.start("m1")
    sole.group.leader()
    sole.run(0.3)

    effects = sole.everything()[before:]
    assert sole.entry(job).fence > fence
    assert [one.reason for one in of(effects, OwnerChanged)] == ["m1 was restarted or leaves"]
    assert sole.manager().led[job].fence == sole.entry(job).fence


def test_a_manager_that_leaves_hands_its_jobs_over(trio: Play, order_of: OrderOf) -> None:
    trio.beat(cores=40)
    jobs = [trio.submit(order_of()) for _ in range(12)]
    leaving = next(name for name in trio.others() if trio.manager(name).led)
    theirs = list(trio.manager(leaving).led)

    effects = trio.act(leaving, trio.manager(leaving).drain(trio.now))

    assert [one.job for one in of(effects, OwnerChanged)] == theirs
    owners = {job: trio.entry(job).owner for job in jobs}
    assert leaving not in owners.values()
    assert all(job in trio.manager(owner).led for job, owner in owners.items())
    trio.run(1)
    for _ in range(12):
        job = trio.submit(order_of())
        assert trio.entry(job).owner != leaving, "what it is given now it gives back"
    trio.run(7)
    assert trio.manager(leaving).led == {}, "it has heard that others lead them"


# -- blobs


def test_what_a_client_brings_is_kept_by_a_majority(trio: Play) -> None:
    digest = sha256(b"bundle").hexdigest()

    effects = trio.act(trio.leader, trio.manager().keep(trio.now, digest, b"bundle"))

    assert of(effects, BlobKept) == [BlobKept(digest)]
    assert [disk[BLOB_PREFIX + digest] for disk in trio.group.disks.values()] == [b"bundle"] * 3
    follower = trio.others()[0]
    assert trio.act(follower, trio.manager(follower).fetch(trio.now, digest)) == [LoadBlob(digest)]
    assert trio.act(follower, trio.manager(follower).on_loaded(trio.now, digest, b"bundle")) == [
        BlobReady(digest, b"bundle")
    ]


def test_a_blob_that_others_have_is_fetched_from_them(trio: Play) -> None:
    digest = sha256(b"bundle").hexdigest()
    trio.group.lost += [KeepBlob]
    trio.act(trio.leader, trio.manager().keep(trio.now, digest, b"bundle"))
    follower = trio.others()[0]
    before = len(trio.everything())

    trio.act(follower, trio.manager(follower).fetch(trio.now, digest))
    trio.run(3)

    assert of(trio.everything()[before:], BlobReady) == [BlobReady(digest, b"bundle")]


def test_a_disk_that_would_not_take_a_blob_is_heard_of(trio: Play) -> None:
    digest = sha256(b"bundle").hexdigest()
    (persist,) = of(trio.manager().on_message(trio.now, "m9", KeepBlob(digest, 0, 6, b"bundle")), PersistBlob)

    effects = trio.manager().on_not_persisted(trio.now, persist.ticket, "the disk is full")

    assert effects == [Send(CHANNEL, "m9", Kept(digest, 0, "the disk is full"), Lane.RESULTS)]


def finish(play: Play, job: str) -> tuple[str, list[Any]]:
    """The worker has finished, and its result has come."""
    digest, content = result_of(job)
    play.hear("m1", "w1", Finished(job, 1, digest, len(content)))
    return digest, play.hear("m1", "w1", Piece(digest, 0, len(content), content))


def test_a_result_for_which_there_is_no_room_is_kept_later(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    blobs = sole.manager().blobs
    blobs.limits = BlobLimits(keeping_bytes=1)
    digest, effects = finish(sole, job)
    assert of(effects, BlobKept) == []
    assert sole.manager().next_tick_at <= sole.now + KEEP_AGAIN_NS
    assert of(sole.run(1.2), BlobKept) == [], "there is still none"

    blobs.limits = BlobLimits()
    effects = sole.run(1.2)

    assert of(effects, BlobKept) == [BlobKept(digest)]
    assert of(effects, AttemptAccepted) == [AttemptAccepted(job, 1, digest)]


def test_a_result_that_the_only_disk_would_not_take_is_kept_later(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    digest, content = result_of(job)
    sole.hear("m1", "w1", Finished(job, 1, digest, len(content)))
    manager = sole.manager()
    (persist,) = of(manager.on_message(sole.now, "w1", Piece(digest, 0, len(content), content)), PersistBlob)
    assert sole.act("m1", manager.on_not_persisted(sole.now, persist.ticket, "full")) == [BlobFailed(digest, "full")]

    effects = sole.run(1.2)

    assert of(effects, AttemptAccepted) == [AttemptAccepted(job, 1, digest)]


def test_what_a_client_brought_and_could_not_be_kept_is_the_clients_to_bring_again(sole: Play) -> None:
    digest = sha256(b"bundle").hexdigest()
    manager = sole.manager()
    (persist,) = of(manager.keep(sole.now, digest, b"bundle"), PersistBlob)
    assert sole.act("m1", manager.on_not_persisted(sole.now, persist.ticket, "full")) == [BlobFailed(digest, "full")]

    assert of(sole.run(3), BlobKept) == []


@pytest.mark.parametrize("is_here", [True, False])
def test_what_comes_for_a_job_that_another_leads_by_now_is_nothing(
    sole: Play, order_of: OrderOf, is_here: bool
) -> None:
    job, _ = sole.running(order_of())
    digest, content = result_of(job)
    sole.hear("m1", "w1", Finished(job, 1, digest, len(content)))
    sole.group.hold()
    piece = Piece(digest, 0, len(content), content)
    if is_here:
        sole.hear("m1", "w1", piece)
    gone = CheckpointStored(job, sole.entry(job).fence, 0, superseded=True, life=sole.group.boot)
    assert of(sole.hear("m1", "m1", gone), JobOver)

    if is_here:
        assert of(sole.group.write(), BlobKept) == [BlobKept(digest)]
    else:
        assert sole.hear("m1", "w1", piece) == [BlobReady(digest, content)]
    assert of(sole.everything(), AttemptAccepted) == []


# -- watching


def test_a_job_is_watched_wherever_it_is_led(trio: Play, order_of: OrderOf) -> None:
    job, owner = trio.running(order_of())
    watcher = next(name for name in trio.group.parts if name not in (owner, trio.leader))
    number, effects = trio.manager(watcher).watch(trio.now, job, steps=False)
    assert effects == []

    updates = of(trio.run(2), Updated)

    assert {update.number for update in updates} == {number}
    assert updates[-1].update.job.owner == owner
    assert updates[-1].update.sequence > 2, "the owner tells it, again and again"
    assert of(trio.everything(), CallEnded)[-1].number != number, "its own questions are nobody else's"

    trio.manager(watcher).unwatch(number)
    assert of(trio.run(2), Updated) == []


def test_a_job_that_nobody_knows_cannot_be_watched(sole: Play) -> None:
    number, _ = sole.manager().watch(sole.now, "b4k7", steps=True)

    (failed,) = sole.run(0.1)

    assert isinstance(failed, WatchFailed)
    assert (failed.number, failed.problem) == (number, "missing")


def test_a_view_that_nobody_asked_for_is_nothing(sole: Play) -> None:
    assert sole.hear("m1", "m9", ViewUpdate("b4k7", 1, b"")) == []


# -- small things


def test_what_the_shell_says_goes_out_as_it_is(sole: Play) -> None:
    assert sole.manager().say("w1", Piece("0" * 64, 0, 0, b"")) == [
        Send(CHANNEL, "w1", Piece("0" * 64, 0, 0, b""), Lane.STREAM)
    ]


def test_a_worker_that_tells_its_time_lets_its_tasks_start(sole: Play, order_of: OrderOf) -> None:
    sole.beat()
    job = sole.submit(order_of())
    assert said(sole.hear("m1", "w1", Report(job, 1, encode_word(Armed()))), Start) == []
    (sync,) = said(sole.everything(), Sync)

    effects = sole.hear("m1", "w1", Synced(sync.message.number, sole.now + CLOCK_NS))

    assert [one.to for one in said(effects, Start)] == ["w1"]


def test_a_cancelled_job_is_stopped_by_the_manager_that_leads_it(trio: Play, order_of: OrderOf) -> None:
    job, owner = trio.running(order_of())

    trio.call(CancelJob(job))

    led = trio.manager(owner).led[job]
    assert isinstance(led, LedJob) and led.entry.cancel == "cancelled"
    assert trio.entry(job).state is JobState.CANCELLING


# -- dag jobs


class Keeper:
    """The store of a manager's dag jobs, and one job of one task."""

    def __init__(self, play: Play, dags: Any) -> None:
        self.play = play
        self.dags = dags
        self.effects: list[Any] = []

    def take(self, effects: list[Any]) -> list[Any]:
        """Commits are done at once, and what follows from them."""
        done = list(effects)
        for commit in of(effects, Commit):
            self.dags.records.apply(commit.changes)
            follows = self.dags.keeper.on_committed(self.play.now, commit.ticket)
            done += self.take(self.play.act("m1", self.play.manager().act(self.play.now, follows)))
        for fetch in of(effects, ReadOutputs):
            specs = {
                key: (msgspec.json.decode(spec, type=TaskSpec), checkpoint)
                for key, (spec, checkpoint) in self.dags.records.specs(fetch.specs).items()
            }
            follows = self.dags.keeper.on_fetched(self.play.now, fetch.ticket, specs, {})
            done += self.take(self.play.act("m1", self.play.manager().act(self.play.now, follows)))
        return done

    def set(self) -> list[Any]:
        return self.take(self.play.act("m1", self.play.manager().set_keeper(self.play.now, self.dags.keeper)))

    def go_on(self) -> list[Any]:
        """A new life of the manager reads its jobs."""
        self.dags.restart()
        self.dags.now = self.play.now
        return self.take(
            self.play.act("m1", self.play.manager().act(self.play.now, self.dags.keeper.restored(self.play.now)))
        )

    def submit(self, bundle: CodeBundle | None = None, tasks: int = 1, **fields: Any) -> None:
        ids = ["a", *(f"a{number}" for number in range(1, tasks))]
        spec = DagSpec(name="n", tasks=tuple(TaskSpec(id=id, handler="h", **fields) for id in ids), bundle=bundle)
        effects = self.dags.keeper.submit(self.play.now, 1, spec)
        self.take(self.play.act("m1", self.play.manager().act(self.play.now, effects)))

    def beat(self, worker: str = "w1", boot: int = 1, folder: int = 2, cores: int = 1, **facts: Any) -> list[Any]:
        self.play.numbers += 1
        beat = Beat(self.play.numbers, WorkerFacts(cores, folder=folder, handlers=("h",), **facts), names=True)
        return self.hear(worker, beat, boot)

    def hear(self, worker: str, message: Any, boot: int = 1) -> list[Any]:
        return self.take(self.play.hear("m1", worker, message, boot))

    def hands(self, effects: list[Any]) -> list[tuple[str, int]]:
        return [(one.to, task.attempt) for one in said(effects, AssignTasks) for task in one.message.tasks]


@pytest.fixture
def keeper(sole: Play, play_of: Callable[..., Any]) -> Keeper:
    return Keeper(sole, play_of())


def test_a_manager_without_a_store_has_no_use_for_tasks(sole: Play) -> None:
    for message in (Done(()), TaskProgress(), Held(1, ())):
        assert sole.hear("m1", "w1", message) == []
    assert said(sole.beat(), AssignTasks) == []


def test_a_task_goes_to_a_worker_that_beats_and_its_result_is_taken(keeper: Keeper) -> None:
    keeper.set()
    keeper.submit()
    effects = keeper.beat()
    assert keeper.hands(effects) == [("w1", 1)]
    (hand,) = said(effects, AssignTasks)
    assert (hand.message.boot, hand.message.beat) == (1, keeper.play.numbers)
    task = hand.message.tasks[0]
    fence = task.fence
    effects = keeper.hear("w1", Done((TaskResult(fence, "completed", b"1", job=task.job, task=task.id),)))
    manager = keeper.play.manager()
    told = manager.tick(manager.next_tick_at)
    assert [(one.to, one.message.fences) for one in said(told, ResultsStored)] == [("w1", (fence,))]
    assert [one.state for one in of(effects, DagEnded)] == [JobState.COMPLETED]


def test_what_a_connection_had_no_room_for_is_said_once_there_is(
    cabinet_of: CabinetOf, play_of: Callable[..., Any]
) -> None:
    play = Play(cabinet_of, "m1", pace=PaceLimits(window_bytes=1))
    keeper = Keeper(play, play_of())
    keeper.set()
    keeper.submit(config=msgspec.Raw(b"1"))
    effects = keeper.beat()
    assert keeper.hands(effects) == [("w1", 1)] and of(effects, RoomWanted) == [RoomWanted("w1")]

    keeper.submit(config=msgspec.Raw(b"2"))
    assert keeper.hands(keeper.beat()) == []

    effects = list(play.manager().on_room(play.now, "w1"))
    assert keeper.hands(effects) == [("w1", 1)]
    (hand,) = said(effects, AssignTasks)
    assert [bytes(task.config) for task in hand.message.tasks] == [b"2"]
    assert play.manager().on_room(play.now, "another") == []


def test_a_worker_is_given_the_code_of_tasks_that_it_has_and_no_other_bundle(keeper: Keeper) -> None:
    content = b"handlers"
    digest = sha256(content).hexdigest()
    play = keeper.play
    play.act("m1", play.manager().keep(play.now, digest, content))
    keeper.set()

    def asked() -> list[Any]:
        want = WantBlob(digest, 0)
        return list(play.manager().on_message(play.now, "w1", want, 1, "#1", role=Role.WORKER))

    (none,) = said(asked(), Piece)
    assert (none.to, none.message.size_bytes) == ("w1", 0)
    keeper.submit(bundle=CodeBundle(digest, len(content), ("h.py",), ("h",)))
    assert keeper.hands(keeper.beat(accepts_code=True)) == [("w1", 1)]
    assert asked() == [ServeBlob("w1", digest, 0)]


def test_a_manager_whose_store_is_lost_takes_no_result_and_gives_nothing_out(keeper: Keeper) -> None:
    keeper.set()
    keeper.submit()
    (hand,) = said(keeper.beat(), AssignTasks)
    keeper.submit()
    keeper.play.manager().drop_keeper(keeper.play.now, 0)
    assert keeper.hear("w1", Done((TaskResult(hand.message.tasks[0].fence, "completed", b"1"),))) == []
    assert said(keeper.beat(), AssignTasks) == []


def test_what_is_put_down_after_the_clock_was_set_tells_the_new_one(keeper: Keeper) -> None:
    play = keeper.play
    keeper.set()
    keeper.submit()
    play.manager().set_wall_offset(500 * SECOND)
    keeper.submit()
    rows = [job.row for job in keeper.dags.keeper.jobs.values()]
    assert rows[1].submitted_ms == (play.now + 500 * SECOND) // 1_000_000
    assert rows[0].submitted_ms != rows[1].submitted_ms
    registry = play.manager().registry
    assert registry is not None and registry._wall_ms(0) == 500_000
    play.manager().registry = None
    play.manager().drop_keeper(play.now, 0)
    play.manager().set_wall_offset(SECOND)  # with nobody to be told


def test_tasks_of_a_worker_whose_lease_is_over_go_to_another(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    effects: list[Any] = []
    for _ in range(10):
        effects += keeper.take(sole.run(1))
        effects += keeper.beat("w2")
    assert [one.name for one in of(effects, WorkerLost)] == ["w1"]
    assert keeper.hands(effects) == [("w2", 2)]


def test_tasks_of_a_worker_that_leaves_go_to_another_at_once(keeper: Keeper) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    keeper.beat("w2")
    assert keeper.hands(keeper.hear("w1", Goodbye())) == [("w2", 2)]


def test_a_worker_that_was_started_anew_gets_its_task_again(keeper: Keeper) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1", boot=1, life=1)
    assert keeper.hands(keeper.beat("w1", boot=2, life=2)) == [("w1", 2)], "what became of its earlier life comes first"


def test_a_worker_that_has_anothers_name_gets_nothing(keeper: Keeper) -> None:
    keeper.set()
    keeper.beat("w1", boot=1, folder=2, state="draining")
    keeper.submit()
    assert keeper.hands(keeper.beat("w1", boot=9, folder=3)) == []


def test_dag_jobs_have_their_time(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit(delay=30.0)
    keeper.beat()
    assert sole.manager().next_tick_at <= sole.now + 30 * SECOND
    effects: list[Any] = []
    for _ in range(31):
        keeper.beat()
        effects += keeper.take(sole.run(1))
    assert keeper.hands(effects) == [("w1", 1)]


def test_a_new_life_expects_the_workers_that_had_tasks(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    sole.group.stop("m1")
    sole.group.start("m1")
    keeper.go_on()
    keeper.set()
    sole.group.leader()
    keeper.beat("w2")
    effects: list[Any] = []
    for _ in range(320):
        effects += keeper.take(sole.run(1))
        effects += keeper.beat("w2")
    (lost,) = of(effects, WorkerLost)
    assert (lost.name, lost.boot) == ("w1", 1)
    assert keeper.hands(effects) == [("w2", 2)]
    assert sole.now > 310 * SECOND


def test_a_life_that_was_over_before_its_tasks_were_read_is_lost(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1", boot=1, life=1)
    sole.group.stop("m1")
    sole.group.start("m1")
    sole.group.leader()
    keeper.go_on()
    sole.hear("m1", "w1", Beat(1, WorkerFacts(1, folder=2, handlers=("h",), life=1), names=True), 1)
    sole.hear("m1", "w1", Beat(1, WorkerFacts(1, folder=2, handlers=("h",), life=2), names=True), 2)
    effects = keeper.set()
    assert [(one.name, one.boot) for one in of(effects, WorkerLost)] == [("w1", 1)]
    assert keeper.hands(keeper.beat("w1", boot=2, life=2)) == [("w1", 2)]


def test_a_manager_that_steps_down_gives_out_nothing_until_workers_beat_again(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.beat("w1")
    sole.act("m1", sole.manager().on_news(sole.now, SteppedDown(1, "no majority")))
    keeper.submit()
    assert said(sole.everything(), AssignTasks) == []
    assert said(keeper.beat("w1"), Elsewhere)
    sole.act("m1", sole.manager().on_news(sole.now, of(sole.everything(), Elected)[-1]))
    assert keeper.hands(keeper.beat("w1")) == [("w1", 1)]


# -- a manager that stood still


def stalled(play: Play, seconds: float) -> None:
    """Its process does nothing for so long, and then goes on."""
    play.group.now += round(seconds * SECOND)


@pytest.mark.parametrize("stall_s", [1.0, 2.5, 20.0])
def test_tasks_of_a_worker_that_was_heard_and_lost_do_not_wait_for_the_grace_of_a_restart(
    keeper: Keeper, sole: Play, stall_s: float
) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    sole.run(0.5)
    stalled(sole, stall_s)
    woken_at = sole.now
    effects: list[Any] = []
    while not of(effects, WorkerLost) and sole.now < woken_at + 400 * SECOND:
        effects += keeper.take(sole.run(0.5))
        effects += keeper.beat("w2")

    assert [one.name for one in of(effects, WorkerLost)] == ["w1"]
    assert keeper.hands(effects) == [("w2", 2)]
    assert sole.now - woken_at <= 10 * SECOND, "an election and a lease, not the grace"


def test_a_load_job_does_not_wait_for_the_grace_when_its_manager_stood_still(sole: Play, order_of: OrderOf) -> None:
    job, _ = sole.running(order_of())
    stalled(sole, 2.5)
    woken_at = sole.now
    sole.run(0.1)
    sole.group.leader()
    effects = sole.run(8)

    assert [one.name for one in of(effects, WorkerLost)] == ["w1"]
    assert sole.now - woken_at < 300 * SECOND
    assert [bool(grant.lost) for grant in sole.entry(job).grants] == [True]


@pytest.mark.parametrize("is_clock_known", [True, False])
def test_a_gap_begins_where_the_last_counts_were_made_although_the_manager_stood_still(
    sole: Play, order_of: OrderOf, is_clock_known: bool
) -> None:
    job, _ = sole.running(order_of())
    led = sole.manager().led[job]
    assert led.job is not None
    origin_ns = led.job.origin_ns
    sole.group.now = origin_ns
    for second in (1, 2, 3):
        # By the worker's clock, which is ahead; the last two are read long after they were said.
        made_at_ns = origin_ns + second * SECOND + CLOCK_NS
        sole.group.now += SECOND if second == 1 else 4 * SECOND
        if not is_clock_known:
            sole.manager().clocks._peers.clear()
        words = Totals(second, Tally(started=second * 9), [], 64, 0, made_at_ns=made_at_ns, age_ns=SECOND // 4)
        sole.hear("m1", "w1", Report(job, 1, encode_word(words)))
    sole.group.leader()
    sole.hear("m1", "w1", Goodbye())
    sole.run(1)

    (lost,) = led.job.lost
    assert lost.from_ns == (3 * SECOND if is_clock_known else 9 * SECOND - SECOND // 4)


def test_why_says_for_which_worker_a_task_waits_and_how_long(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    assert why(keeper) == "it is assigned on w1"
    sole.run(4)
    assert why(keeper) == (
        "it is assigned on w1, which is silent for 4.0 s: it is given to others in 1.1 s, unless w1 is heard before"
    )
    sole.group.stop("m1")
    sole.group.start("m1")
    keeper.go_on()
    keeper.set()
    assert why(keeper) == "it is assigned on w1; this manager does not lead, and gives nothing out until it does"
    sole.group.leader()
    assert why(keeper) == (
        "it is assigned on w1, which was not heard since this manager started: w1 may go on without it, so it is given "
        "to others in 311.1 s, unless w1 is heard before"
    )
    keeper.beat("w1")
    assert why(keeper) == "it is assigned on w1"


def test_why_says_that_a_worker_was_not_heard_since_the_manager_stood_still(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.submit()
    keeper.beat("w1")
    stalled(sole, 2.5)
    sole.run(0.1)
    sole.group.leader()

    assert why(keeper).startswith("it is assigned on w1, which was not heard since this manager leads again: ")


def why(keeper: Keeper) -> str:
    durable = keeper.dags.keeper
    (job,) = durable.jobs.values()
    task = job.tasks[0]
    return str(durable.why(keeper.play.now, job.row.id, task.id, 0, task.state).text)


def test_a_core_that_a_load_job_is_granted_gets_no_task_from_that_moment_on(keeper: Keeper, order_of: OrderOf) -> None:
    keeper.set()
    keeper.beat()
    job = keeper.play.submit(order_of())
    registry = keeper.play.manager().registry
    assert registry is not None
    assert registry.fleet.total_free() == 0

    keeper.submit()
    assert registry.workers(keeper.play.now)[0].load_cores == 1
    assert [task.worker for job in keeper.dags.keeper.jobs.values() for task in job.tasks] == [""]

    registry.fleet.release(job)
    effects = keeper.take(keeper.play.act("m1", keeper.play.manager().act(keeper.play.now, [])))

    assert keeper.hands(effects) == [("w1", 1)], "and from when it is given back"


def test_a_load_job_is_not_granted_a_core_that_was_given_to_a_task_just_now(keeper: Keeper, order_of: OrderOf) -> None:
    """The last beat knows nothing of it."""
    keeper.set()
    keeper.beat()
    keeper.submit()
    registry = keeper.play.manager().registry
    assert registry is not None

    keeper.play.submit(order_of())

    assert registry.fleet.total_free() == 0 and registry.fleet.held() == 1


def test_a_load_job_is_granted_no_core_of_a_worker_that_short_tasks_fill(keeper: Keeper, order_of: OrderOf) -> None:
    keeper.set()
    keeper.beat(cores=4)
    keeper.submit(tasks=128)
    registry = keeper.play.manager().registry
    assert registry is not None

    job = keeper.play.submit(order_of())

    assert registry.fleet.total_free() == 0 and registry.fleet.held() == 1
    assert keeper.play.entry(job).grants == ()


def keeping_away(keeper: Keeper) -> list[tuple[str, str]]:
    """Which workers do not run a ready task of the last job, and why."""
    job = list(keeper.dags.keeper.jobs.values())[-1]
    task = job.tasks[0]
    found = keeper.dags.keeper.why(keeper.play.now, job.row.id, task.id, 0, task.state)
    return [(one.worker, one.text) for one in found.workers]


def test_a_silent_worker_is_given_no_task_until_it_is_heard_again(keeper: Keeper, sole: Play) -> None:
    keeper.set()
    keeper.beat()
    sole.run(SILENT_NS / SECOND + 0.5)

    keeper.submit()

    assert said(sole.everything(), AssignTasks) == []
    assert keeping_away(keeper) == [("w1", "nothing is heard of it, and it is given nothing new until it is")]
    assert keeper.hands(keeper.beat()) == [("w1", 1)]


def test_why_tells_cores_that_a_load_job_has_from_those_that_are_held_for_one(
    keeper: Keeper, order_of: OrderOf
) -> None:
    keeper.set()
    keeper.beat()
    first = keeper.play.submit(order_of())
    keeper.submit()
    assert keeping_away(keeper) == [("w1", "load jobs have all of its cores")]
    registry = keeper.play.manager().registry
    assert registry is not None
    registry.fleet.release(first)
    keeper.take(keeper.play.act("m1", keeper.play.manager().act(keeper.play.now, [])))

    second = keeper.play.submit(order_of())
    keeper.submit()

    held = f"the cores that load jobs leave of it are held for job {second}, which is next"
    assert keeping_away(keeper) == [("w1", held)]
