"""The jobs of a cluster as its leader keeps them, over real voters and their register."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.control.jobs import entries
from talka.control.jobs.effects import (
    Forwarded,
    HealthDecided,
    JobAcceptedNews,
    JobEndStored,
    LeadWanted,
    NameTaken,
    OwnerChanged,
    WorkerJudged,
    WorkerLost,
    WorkerRegistered,
)
from talka.control.jobs.managers import OWNER_SILENCE_NS, SETTLE_NS, STUCK_NS
from talka.control.jobs.queue import QUEUE_LIMIT, QUEUE_TIMEOUT_NS
from talka.control.jobs.registry import LEAD_AGAIN_NS, Registry
from talka.control.jobs.workers.fleet import Fleet, NotFree
from talka.control.member.announcement import Announcement
from talka.control.tasks.epoch_floor import TOO_OLD
from talka.control.tasks.quarantine import QUARANTINED, Denied
from talka.testing.trust import SIGNER
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.condition import NodeCondition
from talka.wire.entries import (
    ORDER_LIMIT_BYTES,
    AttemptEntry,
    Grant,
    JobCheckpoint,
    JobEntry,
    ShardEntry,
    WorkflowEntry,
    decode_entry,
    encode_checkpoint,
)
from talka.wire.jobs import (
    CHANNEL,
    Beat,
    CheckpointStored,
    CoresBack,
    Lead,
    Leaderless,
    ManagerAt,
    QuietCore,
    Renew,
    Running,
    SpareCores,
    StoreCheckpoint,
    TaskLoad,
    WorkerFacts,
)
from talka.wire.machines import MachineView, WorkerMachine
from talka.wire.manager_calls import (
    CALLED_BY,
    CallAnswer,
    CancelJob,
    DescribeCluster,
    DrainWorker,
    GetJob,
    GetOrder,
    GetResult,
    LeaderCall,
    ListJobs,
    ListWorkers,
    ManagerCall,
    OrderTold,
    ResultTold,
    ResumeJob,
    SubmitJob,
    UndrainWorker,
)
from talka.wire.orders import BundleFacts, JobOrder
from talka.wire.security.access import own
from talka.wire.shards import UrlRequest
from talka.wire.views import ClusterView, JobFacts, JobsPage, ManagerView, WorkerDecision, WorkerView, instant_text
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.shapes import ConstantVUs
from tests.sim.variants import without

EPOCH_NS = 1_700_000_000 * SECOND
MANAGERS = (ManagerAt("m1", "10.0.0.1:9400"),)
CabinetOf = Callable[..., Any]
OrderOf = Callable[..., JobOrder]


class Desk:
    """A registry while its voter leads; what is to be told to owners is told."""

    def __init__(self, cabinet: Any, name: str, **limits: Any) -> None:
        self.voter, self.name = cabinet.voters[name], name
        self.limits = limits
        self.rng = Random(f"jobs:{cabinet.boot}")
        self.registry: Registry | None = None

    @property
    def next_tick_at(self) -> int:
        return NEVER if self.registry is None else self.registry.next_tick_at

    def on_news(self, now: int, news: object) -> list[object]:
        if isinstance(news, Elected):
            self.registry = Registry(
                now,
                me=self.name,
                voter=self.voter,
                rng=self.rng,
                wall_offset_ns=EPOCH_NS - now,
                managers=lambda: MANAGERS,
                signer=self.name.encode() * 16,
                **self.limits,
            )
        elif isinstance(news, SteppedDown):
            self.registry = None
        elif isinstance(news, WriteEnded) and self.registry is not None:
            return self.registry.on_write_ended(now, news)
        return []

    def tick(self, now: int) -> list[object]:
        assert self.registry is not None
        return self.registry.tick(now)


class Office:
    """A group whose leader keeps the jobs; the test is everybody else."""

    def __init__(self, cabinet_of: CabinetOf, *names: str, seed: int = 1, **limits: Any) -> None:
        self.group = cabinet_of(*names, part_of=partial(Desk, **limits), seed=seed)
        self.me = self.group.leader()
        self.numbers = 0

    @property
    def registry(self) -> Registry:
        found = self.group.parts[self.me].registry
        assert isinstance(found, Registry)
        return found

    @property
    def now(self) -> int:
        return int(self.group.now)

    def entry(self, job: str) -> JobEntry:
        return self.registry.entries[job]

    def free(self, worker: str) -> int:
        life = self.registry.fleet.life(worker)
        assert life is not None
        return life.free

    # What happens.

    def act(self, effects: list[Any]) -> list[Any]:
        return self._led(self.group.act(self.me, effects))

    def write(self) -> list[Any]:
        return self._led(self.group.write())

    def run(self, seconds: float) -> list[Any]:
        return self._led(self.group.run(seconds))

    def _led(self, effects: list[Any]) -> list[Any]:
        found = []
        for effect in effects:
            found += self.registry.lead_message(effect.job) if isinstance(effect, LeadWanted) else [effect]
        return found

    def ask(self, call: LeaderCall) -> list[Any]:
        self.numbers += 1
        asked = ManagerCall(self.numbers, call, own(CALLED_BY[type(call)][0]))
        effects = self.act(self.registry.on_call(self.now, "m7", asked))
        return [effect for effect in effects if not isinstance(effect, Forwarded)]

    def answer(self, call: LeaderCall, type: Any) -> Any:
        return answered(self.ask(call), type)

    def problem(self, call: LeaderCall) -> tuple[str, str]:
        (answer,) = answers(self.ask(call))
        assert answer.answer is None
        return answer.problem, answer.text

    def submit(self, order: JobOrder, key: str = "") -> JobFacts:
        facts = self.answer(SubmitJob(order, key), JobFacts)
        assert isinstance(facts, JobFacts)
        return facts

    def facts(self, job: str) -> JobFacts:
        facts = self.answer(GetJob(job), JobFacts)
        assert isinstance(facts, JobFacts)
        return facts

    def beat(self, worker: str, cores: int = 2, *, boot: int = 1, folder: int = 0, jobs: tuple[str, ...] = ()) -> Any:
        self.numbers += 1
        running = tuple(Running(job, 1, 1, "running") for job in jobs)
        beat = Beat(self.numbers, WorkerFacts(cores, folder=folder), running)
        return self.act(self.registry.on_beat(self.now, worker, boot, "#7", beat))

    def checkpoint(self, job: str, revision: int, state: str = "running", **more: Any) -> list[Any]:
        """What the manager that leads it says of it."""
        entry = self.entry(job)
        more = {"sender": entry.owner, "fence": entry.fence, "life": 3, "content": b"account", **more}
        sender, fence, content = more.pop("sender"), more.pop("fence"), more.pop("content")
        checkpoint = StoreCheckpoint(job, fence, revision, state, content, **more)
        return self.act(self.registry.on_checkpoint(self.now, sender, checkpoint))

    def leaderless(self, job: str, **more: Any) -> list[Any]:
        entry = self.entry(job)
        sender, fence = more.get("sender", entry.owner), more.get("fence", entry.fence)
        return self.act(self.registry.on_leaderless(self.now, sender, Leaderless(job, fence)))

    def take_over(self, *, is_stopped: bool = True) -> None:
        """Another manager is elected."""
        before = self.me
        if is_stopped:
            self.group.stop(before)
        else:
            self.group.act(before, self.group.voters[before].hand_over(self.now))
        self.me = self.group.leader()


def answers(effects: list[Any]) -> list[CallAnswer]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, CallAnswer)]


def answered(effects: list[Any], type: Any) -> Any:
    (answer,) = answers(effects)
    assert not answer.problem, answer
    assert answer.answer is not None
    (told,) = msgspec.structs.astuple(answer.answer)
    assert isinstance(told, type)
    return told


def led(effects: list[Any]) -> list[tuple[str, JobEntry]]:
    """Who is told to lead what."""
    words = [one for one in effects if isinstance(one, Send) and isinstance(one.message, Lead)]
    return [(word.to, decode_entry(word.message.entry)) for word in words]


def stored(effects: list[Any]) -> list[CheckpointStored]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, CheckpointStored)]


def renewed(effects: list[Any]) -> Renew:
    (renew,) = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Renew)]
    return renew


def news(effects: list[Any], kind: type) -> list[Any]:
    return [one for one in effects if isinstance(one, kind)]


@pytest.fixture
def office(cabinet_of: CabinetOf, request: pytest.FixtureRequest) -> Office:
    """One manager, which leads. With a parameter: limits of its registry."""
    return Office(cabinet_of, "m1", **getattr(request, "param", {}))


@pytest.fixture
def trio(cabinet_of: CabinetOf) -> Office:
    return Office(cabinet_of, "m1", "m2", "m3")


def with_owner(office: Office, order_of: OrderOf, *, is_me: bool) -> str:
    """A job that is led by the leader itself, or by another."""
    for number in range(40):
        job = office.submit(order_of(name=f"job {number}")).id
        if (office.entry(job).owner == office.me) == is_me:
            return job
    raise AssertionError("all jobs have the same owner")


# -- submitting


def test_a_submission_is_answered_once_it_is_on_disk(office: Office, order_of: OrderOf) -> None:
    office.group.hold()

    assert answers(office.ask(SubmitJob(order_of(), "k"))) == []
    assert answers(office.ask(SubmitJob(order_of(), "k"))) == [], "the same again"
    assert office.problem(GetJob(*office.registry.entries))[0] == "missing", "nobody is told before"
    effects = office.write()

    first, second = answers(effects)
    assert (first.number, second.number) == (1, 2)
    assert first.answer == second.answer
    (job,) = office.registry.entries
    assert news(effects, JobAcceptedNews) == [JobAcceptedNews(job, "k")]
    assert [one.lane for one in effects if isinstance(one, Send)] == [Lane.RESULTS] * 2


def test_the_same_key_is_the_same_job(office: Office, order_of: OrderOf) -> None:
    first = office.submit(order_of(), "k")
    signed = msgspec.structs.replace(order_of().bundle, signature=b"by another manager", word=b"its word")

    assert office.submit(order_of(), "k") == first
    assert office.submit(order_of(bundle=signed), "k") == first
    assert list(office.registry.entries) == [first.id]
    assert first.state is JobState.QUEUED and first.submitted_at.startswith("2023-11-14T22:13:20.")


def test_a_key_of_another_order_is_a_conflict(office: Office, order_of: OrderOf) -> None:
    first = office.submit(order_of(), "k")

    problem, text = office.problem(SubmitJob(order_of(cores=2), "k"))

    assert problem == "conflict"
    assert text == f"the key 'k' was used for another order, job {first.id}: use a key of its own"


def test_without_a_key_every_submission_is_a_job(office: Office, order_of: OrderOf) -> None:
    first, second = office.submit(order_of()), office.submit(order_of())

    assert first.id != second.id
    assert [entry.number for entry in office.registry.entries.values()] == [1, 2]


@without("idempotency_key")
def test_keys_are_what_makes_the_same_submission_one_job(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    office = Office(cabinet_of, "m1")

    assert office.submit(order_of(), "k").id != office.submit(order_of(), "k").id


@pytest.mark.parametrize("office", [{"queue_limit": 1}], indirect=True)
def test_a_full_queue_is_busy(office: Office, order_of: OrderOf) -> None:
    office.submit(order_of())

    (answer,) = answers(office.ask(SubmitJob(order_of())))

    assert (answer.problem, answer.retry_after_ms) == ("busy", 5000)
    assert answer.text == "1 jobs wait already, and that is the most: submit again when some have started"
    assert office.registry.refused == {"queue full": 1}
    assert len(office.registry.entries) == 1


@pytest.mark.parametrize("office", [{"slots": 1}], indirect=True)
def test_a_book_full_of_jobs_that_run_is_busy(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    office.submit(order_of())

    assert office.problem(SubmitJob(order_of()))[0] == "busy"
    assert len(office.registry.queue) == 0


def test_an_order_that_is_too_large_is_refused(office: Office, order_of: OrderOf) -> None:
    order = order_of(submitted_by="x" * ORDER_LIMIT_BYTES)

    problem, text = office.problem(SubmitJob(order))

    assert problem == "invalid"
    assert text.endswith(f"and may have {ORDER_LIMIT_BYTES}: split the test")


def test_what_goes_wrong_for_the_moment_is_said(
    office: Office, order_of: OrderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.beat("w1", 2)

    def refuse(*_: object) -> None:
        raise NotFree("w1", asked=1, free=0)

    monkeypatch.setattr(Fleet, "reserve", refuse)

    assert office.problem(SubmitJob(order_of())) == (
        "unavailable",
        "worker w1: 1 cores are wanted and 0 are free; choose again",
    )


@pytest.mark.parametrize(
    ("call", "problem", "text"),
    [
        (GetJob("b4k7"), "missing", "there is no job b4k7: talka jobs lists those that are known"),
        (GetOrder("b4k7"), "missing", "there is no job b4k7"),
        (GetResult("b4k7"), "missing", "there is no job b4k7"),
        (CancelJob("b" * 999), "missing", f"there is no job {'b' * 64}: talka jobs"),
        (DrainWorker("w9"), "missing", "there is no worker w9: talka workers lists them"),
        (DrainWorker("w" * 9999), "missing", "there is no worker ww"),
        (ListJobs(cursor="x"), "invalid", "cursor 'x' or state '' is not known"),
        (ListJobs(state="lost"), "invalid", "cursor '' or state 'lost' is not known"),
    ],
    ids=["job", "order", "result", "cancel", "drain", "long name", "cursor", "state"],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(
    office: Office, call: LeaderCall, problem: str, text: str
) -> None:
    said, sentence = office.problem(call)

    assert said == problem
    assert sentence.startswith(text)


def test_an_order_without_workflows_is_refused(office: Office, order_of: OrderOf) -> None:
    order = msgspec.structs.replace(order_of(), workflows=())

    assert office.problem(SubmitJob(order)) == (
        "invalid",
        "the order has no workflows: nothing would run",
    )


# -- waiting and starting


def test_a_waiting_job_knows_its_place_and_what_it_waits_for(office: Office, order_of: OrderOf) -> None:
    first, second = office.submit(order_of(2)), office.submit(order_of(9))
    assert (first.position, first.waits_for) == (1, "no workers")
    assert (second.position, second.waits_for) == (2, "no workers")

    office.beat("w1", 2)
    third = office.submit(order_of(1))

    assert office.facts(first.id).position is None
    assert office.facts(second.id).waits_for == "waits for 9 cores: the pool has 2"
    assert third.position == 2
    assert third.waits_for == "waits for 1 core: 0 of 2 are free; when it starts cannot be told"


def test_nobody_is_overtaken_but_by_a_higher_priority(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    large, small = office.submit(order_of(4)), office.submit(order_of(1))
    assert small.waits_for == "waits behind 1 other job; when it starts cannot be told"

    urgent = office.submit(order_of(1, priority=9))
    assert office.entry(urgent.id).state is JobState.DISPATCHING
    office.beat("w2", 2)
    assert office.entry(large.id).state is JobState.QUEUED, "three of four cores are free"
    office.beat("w3", 1)

    assert office.entry(large.id).state is JobState.DISPATCHING
    assert office.entry(small.id).state is JobState.QUEUED


def test_a_job_gets_its_cores_and_its_manager_once_that_is_on_disk(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2, boot=11, folder=5)
    office.group.hold()
    office.ask(SubmitJob(order_of(2)))
    (job,) = office.registry.entries
    assert office.free("w1") == 0, "taken at once, so that nobody else gets them"
    assert office.registry.lead_message(job) == [], "not yet"

    effects = office.write()

    entry = office.entry(job)
    assert (entry.state, entry.owner, entry.pool, entry.granted) == (JobState.DISPATCHING, "m1", 2, 2)
    assert entry.grants == (Grant("w1", 11, 2, "", 5),)
    token = office.registry.token
    assert entry.fence == (token.parent, token.term, 1)
    assert led(effects) == [("m1", entry)]
    assert news(effects, OwnerChanged) == [OwnerChanged(job, "m1", entry.fence, "it has its cores")]
    assert [one.lane for one in effects if isinstance(one, Send) and isinstance(one.message, Lead)] == [Lane.CONTROL]


def test_its_manager_is_told_of_a_job_again_and_again(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id

    told = led(office.run(4 * LEAD_AGAIN_NS / SECOND))

    assert told == [("m1", office.entry(job))] * 3, "looked at every quarter of a second"


def test_of_a_job_that_nobody_leads_nobody_is_told(office: Office, order_of: OrderOf) -> None:
    waiting = office.submit(order_of()).id
    office.beat("w1")
    done = office.submit(order_of()).id
    office.checkpoint(done, 1, "completed")
    waits = office.submit(order_of(9)).id

    assert office.registry.lead_message(waiting) != []
    assert office.registry.lead_message(done) == []
    assert office.registry.lead_message(waits) == []
    assert office.registry.lead_message("b4k7") == []


def test_a_job_that_waited_too_long_has_failed(office: Office, order_of: OrderOf) -> None:
    job = office.submit(order_of()).id
    office.run(QUEUE_TIMEOUT_NS / SECOND - 1)
    assert office.entry(job).state is JobState.QUEUED

    effects = office.run(2)

    facts = office.facts(job)
    assert (facts.state, facts.position, facts.exit_code, facts.cancel) == (JobState.FAILED, None, 8, "")
    assert facts.reason == "it waited 300 s for cores and got none"
    assert facts.ended_at.startswith("2023-11-14T22:18:20.")
    assert news(effects, JobEndStored) == [JobEndStored(job, JobState.FAILED, "")]


# -- what owners say


def test_a_checkpoint_is_acknowledged_once_it_is_on_disk(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    fence = office.entry(job).fence
    office.group.hold()

    assert stored(office.checkpoint(job, 1)) == []
    assert stored(office.checkpoint(job, 1)) == [], "said again meanwhile"
    assert stored(office.checkpoint(job, 1)) == []
    effects = office.write()

    assert stored(effects) == [CheckpointStored(job, fence, 1, life=3)], "once, however often it was said"
    entry = office.entry(job)
    assert (entry.revision, entry.checkpoint, entry.state) == (1, b"account", JobState.RUNNING)
    assert led(effects) == [], "nothing that its manager does not know"


def test_a_job_that_runs_has_not_ended_at_any_time(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id

    office.checkpoint(job, 1)

    facts = office.facts(job)
    assert (facts.state, facts.ended_at) == (JobState.RUNNING, "")


def test_a_revision_that_was_overtaken_is_not_written(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    office.checkpoint(job, 2, content=b"later")
    before = office.entry(job)

    effects = office.checkpoint(job, 1, content=b"sooner")

    assert stored(effects) == [CheckpointStored(job, before.fence, 2, life=3)]
    assert office.entry(job) == before


@pytest.mark.parametrize("wrong", ["job", "sender", "fence"])
def test_who_does_not_lead_a_job_is_told_to_stop(office: Office, order_of: OrderOf, wrong: str) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    before = office.entry(job)
    name = "b4k7" if wrong == "job" else job
    sender = "m9" if wrong == "sender" else "m1"
    fence = (0, 0, 1) if wrong == "fence" else before.fence

    checkpoint = StoreCheckpoint(name, fence, 7, "running", b"", life=3)
    (word,) = office.act(office.registry.on_checkpoint(office.now, sender, checkpoint))

    assert word == Send(CHANNEL, sender, CheckpointStored(name, fence, 0, superseded=True, life=3), Lane.CONTROL)
    assert office.entry(job) == before


def test_an_owner_of_another_life_gets_a_new_fence(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    office.checkpoint(job, 5, life=3)
    before = office.entry(job)

    effects = office.checkpoint(job, 6, life=4)

    entry = office.entry(job)
    assert entry.fence > before.fence
    assert (entry.owner, entry.revision, entry.checkpoint) == ("m1", 0, b"account")
    assert led(effects) == [("m1", entry)]
    assert [one.reason for one in news(effects, OwnerChanged)] == ["m1 was restarted"]
    assert stored(office.checkpoint(job, 5, life=3, fence=before.fence))[0].superseded
    assert stored(office.checkpoint(job, 1, life=4)) == [CheckpointStored(job, entry.fence, 1, life=4)]


def test_a_state_nobody_knows_is_not_written(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    before = office.entry(job)

    assert office.checkpoint(job, 1, "dreaming") == []
    assert office.entry(job) == before


def test_a_job_that_has_ended_gives_its_cores_to_the_next(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    first, second = office.submit(order_of(2)).id, office.submit(order_of(2)).id
    assert office.problem(GetResult(first)) == ("conflict", f"job {first} is dispatching: no result yet")

    effects = office.checkpoint(first, 1, "completed", result="d" * 64, exit_code=4, reason="a threshold was crossed")

    assert news(effects, JobEndStored) == [JobEndStored(first, JobState.COMPLETED, "d" * 64)]
    assert [entry.job for _, entry in led(effects)] == [second]
    facts = office.facts(first)
    assert (facts.state, facts.exit_code, facts.reason) == (JobState.COMPLETED, 4, "a threshold was crossed")
    assert facts.cores == 0 and facts.ended_at.startswith("2023-11-14T22:13:20.")
    (answer,) = answers(office.ask(GetResult(first)))
    assert answer.answer == ResultTold("d" * 64)
    assert office.free("w1") == 0, "the second has them"


def test_the_end_of_a_job_is_acknowledged_however_often_it_is_told(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    office.checkpoint(job, 1, "completed")
    before = office.entry(job)

    assert stored(office.checkpoint(job, 1, "completed", life=9)) == [CheckpointStored(job, before.fence, 1, life=9)]
    assert stored(office.checkpoint(job, 8, "running")) == [CheckpointStored(job, before.fence, 1, life=3)]
    assert office.entry(job) == before


def test_nothing_is_remembered_of_who_led_a_job_that_has_ended(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 40)
    for _ in range(9):
        job = trio.submit(order_of()).id
        trio.checkpoint(job, 1)
        trio.leaderless(job)
        trio.checkpoint(job, 1)
        trio.checkpoint(job, 2, "completed")

    kept = [trio.registry._owner_since, trio.registry._lead_at, trio.registry._lives]
    assert kept == [{}, {}, {}]


# -- who leads a job


def test_a_silent_owner_is_replaced_under_a_new_fence(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 40)
    job = with_owner(trio, order_of, is_me=False)
    trio.checkpoint(job, 4)
    before = trio.entry(job)
    trio.group.stop(before.owner)

    assert news(trio.run(OWNER_SILENCE_NS / SECOND - 0.5), OwnerChanged) == []
    effects = trio.run(1)

    entry = trio.entry(job)
    assert entry.owner not in ("", before.owner)
    assert entry.fence > before.fence and (entry.revision, entry.checkpoint) == (0, b"account")
    changed = [one for one in news(effects, OwnerChanged) if one.job == job]
    assert changed == [OwnerChanged(job, entry.owner, entry.fence, f"{before.owner} does not answer")]
    assert (entry.owner, entry) in led(effects)
    assert entry.owner in trio.group.voters


def test_a_new_leader_waits_a_moment_before_it_calls_an_owner_silent(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 40)
    job = with_owner(trio, order_of, is_me=True)
    fence, owner = trio.entry(job).fence, trio.me
    trio.take_over()
    elected_at = trio.now
    assert trio.group.voters[trio.me].election.electorate.silent_ns(trio.now, owner) >= OWNER_SILENCE_NS

    trio.run(SETTLE_NS / SECOND / 3)
    assert trio.entry(job).owner == owner
    trio.run(2)

    entry = trio.entry(job)
    assert entry.owner != owner and entry.fence > fence
    assert trio.registry._owner_since[job] >= elected_at + SETTLE_NS


def test_a_job_is_never_given_to_a_manager_that_fell_silent(trio: Office, order_of: OrderOf) -> None:
    (silent,) = [name for name in trio.group.voters if name != trio.me][:1]
    trio.group.stop(silent)
    trio.run(4)
    trio.take_over(is_stopped=False)
    trio.run(4)
    trio.beat("w1", 40)

    owners = [trio.entry(trio.submit(order_of()).id).owner for _ in range(30)]

    assert sorted(dict.fromkeys(owners)) == sorted(trio.group.voters)


def test_a_job_is_given_to_managers_that_say_they_would_take_it(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    said: dict[str, Announcement] = {}
    office = Office(cabinet_of, "m1", "m2", "m3", announced=said.get)
    (other, overloaded) = [name for name in office.group.voters if name != office.me]
    said[overloaded] = Announcement("", condition=NodeCondition(overload=3), phase="active")
    said[office.me] = Announcement("", phase="draining")
    office.run(1)
    office.beat("w1", 40)

    owners = [office.entry(office.submit(order_of()).id).owner for _ in range(20)]

    assert set(owners) == {other}
    view = office.answer(DescribeCluster(), ClusterView)
    assert {one.name: (one.decision, one.reason) for one in view.managers} == {
        other: ("route", ""),
        overloaded: ("hold", "it is overloaded"),
        office.me: ("drain", "it leaves, and takes nothing new"),
    }


def test_a_job_of_which_its_owner_dispatches_nothing_gets_another_owner(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 40)
    job = with_owner(trio, order_of, is_me=False)
    before = trio.entry(job)
    for turn in range(int(STUCK_NS // SECOND) - 2):
        trio.run(1)
        trio.beat("w1", 40)
        assert trio.entry(job).owner == before.owner, turn

    effects = trio.run(3)

    entry = trio.entry(job)
    assert entry.owner != before.owner and entry.fence > before.fence
    reasons = [one.reason for one in news(effects, OwnerChanged) if one.job == job]
    assert reasons == [f"{before.owner} has dispatched nothing of it for 30 s"]
    assert ("drain", before.owner) in [(one.decision, one.name) for one in news(effects, HealthDecided)]


def test_whoever_does_so_badly_that_it_takes_no_work_says_so_and_knows_what_it_has_taken(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    why = [""]
    office = Office(cabinet_of, "m1", why_not=lambda: why[0])
    known = office.submit(order_of(), "key")
    why[0] = "manager m1 takes no new work now"

    assert office.problem(SubmitJob(order_of())) == ("busy", "manager m1 takes no new work now")
    assert office.submit(order_of(), "key").id == known.id
    assert office.registry.refused == {"unwell": 1}


def test_a_manager_that_gives_a_job_back_does_not_get_it_again(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 40)
    job = with_owner(trio, order_of, is_me=False)
    before = trio.entry(job)

    effects = trio.leaderless(job)

    entry = trio.entry(job)
    assert entry.owner != before.owner and entry.fence > before.fence
    assert led(effects) == [(entry.owner, entry)]
    assert [one.reason for one in news(effects, OwnerChanged)] == [f"{before.owner} was restarted or leaves"]
    assert trio.leaderless(job, sender=before.owner, fence=before.fence) == [], "said twice"


def test_the_only_manager_gets_its_jobs_back_under_a_new_fence(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    fence = office.entry(job).fence

    effects = office.leaderless(job)

    assert office.entry(job).fence > fence
    assert led(effects) == [("m1", office.entry(job))]


def test_of_jobs_that_another_leads_or_that_have_ended_nobody_gives_anything_back(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    before = office.entry(job)

    assert office.act(office.registry.on_leaderless(office.now, "m1", Leaderless("b4k7", before.fence))) == []
    assert office.leaderless(job, sender="m9") == []
    assert office.leaderless(job, fence=(0, 0, 1)) == []
    assert office.entry(job) == before
    office.checkpoint(job, 1, "completed")
    assert office.leaderless(job) == []


# -- cancelling


def test_a_job_that_waits_is_cancelled_at_once(office: Office, order_of: OrderOf) -> None:
    first, second = office.submit(order_of()).id, office.submit(order_of()).id

    effects = office.ask(CancelJob(first, "a mistake"))

    facts = answered(effects, JobFacts)
    assert (facts.state, facts.cancel, facts.reason) == (JobState.CANCELLED, "a mistake", "a mistake")
    assert facts.exit_code == 8 and facts.ended_at
    assert news(effects, JobEndStored) == [JobEndStored(first, JobState.CANCELLED, "")]
    assert office.facts(second).position == 1


def test_the_manager_that_leads_a_job_is_told_that_it_is_cancelled(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    office.group.hold()
    assert office.ask(CancelJob(job)) == []

    effects = office.write()

    facts = answered(effects, JobFacts)
    assert (facts.state, facts.cancel) == (JobState.CANCELLING, "cancelled")
    ((to, entry),) = led(effects)
    assert (to, entry.cancel, entry.state) == ("m1", "cancelled", JobState.CANCELLING)


def test_what_is_not_on_disk_when_it_is_to_be_told_is_told_as_soon_as_it_is(office: Office, order_of: OrderOf) -> None:
    """A write that ends may be of an entry that has changed since: a checkpoint came in between."""
    office.beat("w1")
    job = office.submit(order_of()).id
    office.group.hold()
    office.ask(CancelJob(job))
    office.checkpoint(job, 1)

    assert office.registry.lead_message(job) == []
    told = [effect for effect in office.group.write() if isinstance(effect, LeadWanted)]

    assert told == [LeadWanted(job), LeadWanted(job)], "one is that of the cancel"


def test_a_job_that_is_being_cancelled_stays_so_until_it_has_ended(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job = office.submit(order_of()).id
    office.ask(CancelJob(job, "a mistake"))
    assert office.answer(CancelJob(job, "again"), JobFacts).cancel == "a mistake"

    office.checkpoint(job, 1, "running")
    assert office.entry(job).state is JobState.CANCELLING
    office.checkpoint(job, 2, "completed")

    assert office.answer(CancelJob(job), JobFacts).state is JobState.COMPLETED


def order_of_three(order_of: OrderOf) -> JobOrder:
    order = order_of()
    (shop,) = order.workflows
    return msgspec.structs.replace(
        order, workflows=tuple(msgspec.structs.replace(shop, name=name) for name in ("A", "B", "C"))
    )


def test_who_cancels_is_told_how_many_workflows_that_stops_and_again_the_same(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1")
    first, waiting = office.submit(order_of_three(order_of)).id, office.submit(order_of_three(order_of)).id
    assert office.facts(first).stopped is None
    states = (TaskState.COMPLETED, TaskState.RUNNING, TaskState.PENDING)
    ended = JobCheckpoint(2, tuple(WorkflowEntry(name, state) for name, state in zip("ABC", states, strict=True)))
    office.checkpoint(first, 1, content=encode_checkpoint(ended))

    assert office.answer(CancelJob(first), JobFacts).stopped == 2
    assert office.answer(CancelJob(waiting), JobFacts).stopped == 3

    all_ended = JobCheckpoint(2, tuple(WorkflowEntry(name, TaskState.CANCELLED) for name in "ABC"))
    office.checkpoint(first, 2, "cancelled", content=encode_checkpoint(all_ended))
    assert office.answer(CancelJob(first), JobFacts).stopped == 2
    assert office.facts(waiting).stopped == 3


def test_of_a_job_whose_checkpoint_nobody_can_read_all_workflows_count_as_stopped(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1")
    job = office.submit(order_of_three(order_of)).id
    office.checkpoint(job, 1, content=b"no checkpoint")

    assert office.answer(CancelJob(job), JobFacts).stopped == 3


@pytest.mark.parametrize("datacenter", ["fra1", ""])
def test_a_job_names_the_datacenter_that_accepted_it(cabinet_of: CabinetOf, order_of: OrderOf, datacenter: str) -> None:
    office = Office(cabinet_of, "m1", datacenter=datacenter)
    job = office.submit(order_of()).id
    assert office.facts(job).datacenter == office.entry(job).datacenter == datacenter


# -- workers


def test_a_beat_is_answered_with_a_renewal(office: Office) -> None:
    effects = office.beat("w1", 2)

    token = office.registry.token
    renew = Renew(
        (token.parent, token.term, token.sequence), 1, 5 * SECOND, True, MANAGERS, signers=(office.me.encode() * 16,)
    )
    assert effects == [WorkerRegistered("w1", 1, 2), Send(CHANNEL, "w1", renew, Lane.CONTROL)]


def test_where_there_are_several_managers_a_worker_does_not_go_on_without_them(trio: Office) -> None:
    assert renewed(trio.beat("w1")).sole is False


def test_a_worker_is_told_which_of_its_jobs_are_cancelled_once_that_is_on_disk(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1")
    job, other = office.submit(order_of()).id, office.submit(order_of()).id
    office.group.hold()
    office.ask(CancelJob(job))

    assert renewed(office.beat("w1", jobs=(job, other))).cancelled == ()
    office.write()

    renew = renewed(office.beat("w1", jobs=(job, other, job)))
    assert (renew.cancelled, renew.orphans) == ((job,), ())


def test_a_worker_is_told_which_of_its_jobs_nobody_waits_for(office: Office, order_of: OrderOf) -> None:
    office.beat("w1")
    job, other = office.submit(order_of()).id, office.submit(order_of()).id
    office.group.hold()
    office.checkpoint(job, 1, "completed")

    assert renewed(office.beat("w1", jobs=(job, "b4k7", other))).orphans == ("b4k7",)
    office.write()

    renew = renewed(office.beat("w1", jobs=(job, "b4k7", other)))
    assert (renew.orphans, renew.cancelled) == ((job, "b4k7"), ())


def test_a_worker_of_a_name_that_is_taken_gets_no_lease(office: Office) -> None:
    office.beat("w1", boot=1, folder=1)

    assert office.beat("w1", boot=2, folder=2) == [NameTaken("w1", 2, "#7", "#7")]


def test_a_leader_that_stalled_renews_nothing(trio: Office) -> None:
    trio.beat("w1")
    trio.group.now += 2 * SECOND

    assert trio.beat("w1") == []
    trio.run(0.1)
    trio.me = trio.group.leader()
    trio.beat("w1")
    assert renewed(trio.beat("w1")).number == trio.numbers


def test_a_drained_worker_is_told_and_gets_nothing_more(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    assert not renewed(office.beat("w1", 2)).drain

    view = office.answer(DrainWorker("w1"), WorkerView)

    assert (view.name, view.state) == ("w1", "draining")
    assert renewed(office.beat("w1", 2)).drain
    assert office.submit(order_of()).waits_for == "no worker takes new work now: w1 is draining"


def test_cores_of_a_worker_that_left_are_replaced(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of(2)).id
    office.beat("w2", 4)
    other = office.submit(order_of(1)).id
    before = office.entry(other)

    effects = office.act(office.registry.on_goodbye(office.now, "w1", 1))

    assert news(effects, WorkerLost) == [WorkerLost("w1", 1, "it left")]
    entry = office.entry(job)
    assert entry.grants == (
        Grant("w1", 1, 2, "was lost with its worker w1: it left"),
        Grant("w2", 1, 2),
    )
    assert led(effects) == [("m1", entry)]
    assert office.entry(other) == before
    assert office.free("w2") == 1
    assert office.facts(job).workers == ["w2"]


def test_lost_cores_are_replaced_as_soon_as_others_are_free(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of(2)).id
    office.act(office.registry.on_goodbye(office.now, "w1", 1))
    assert len(office.entry(job).grants) == 1
    assert office.act(office.registry.on_goodbye(office.now, "w1", 1)) == [], "said twice"
    office.beat("w2", 1)

    told = led(office.run(0.3))

    assert [grant.worker for grant in office.entry(job).grants] == ["w1", "w2"], "as many as there are"
    assert told == [("m1", office.entry(job))]
    office.beat("w3", 4)
    office.run(0.3)
    assert office.entry(job).grants[2:] == (Grant("w3", 1, 1),), "and no more than it had"


def test_a_worker_whose_lease_is_over_is_lost_to_its_jobs(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of(2)).id
    done = office.submit(order_of(1)).id
    office.ask(CancelJob(done))

    lost = news(office.run(30), WorkerLost)

    assert [one.name for one in lost] == ["w1"]
    assert office.entry(job).grants[0].lost.startswith("was lost with its worker w1: its lease is over")


def test_a_job_that_stops_gets_no_cores_in_place_of_lost_ones(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of(2)).id
    office.beat("w2", 2)
    office.ask(CancelJob(job))

    effects = office.act(office.registry.on_goodbye(office.now, "w1", 1))

    assert [grant.worker for grant in office.entry(job).grants] == ["w1"]
    assert [entry.grants[0].lost for _, entry in led(effects)] == ["was lost with its worker w1: it left"]


@pytest.mark.parametrize("office", [{"grants_limit": 1}], indirect=True)
def test_there_is_a_limit_to_the_workers_of_an_entry(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of(2)).id
    office.beat("w2", 2)

    office.act(office.registry.on_goodbye(office.now, "w1", 1))

    assert len(office.entry(job).grants) == 1


def test_a_worker_that_declined_is_avoided(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 1)
    job = office.submit(order_of(1)).id
    office.beat("w2", 1)

    effects = office.checkpoint(job, 1, unfit=("w1",))

    entry = office.entry(job)
    assert entry.grants == (Grant("w1", 1, 1, "declined: it could not take its task"), Grant("w2", 1, 1))
    assert led(effects) == [("m1", entry)]
    assert (office.free("w1"), office.free("w2")) == (1, 0)


def test_a_worker_that_declined_is_asked_again_where_there_is_no_other(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 1)
    job = office.submit(order_of(1)).id

    office.checkpoint(job, 1, unfit=("w1",))

    assert [grant.lost for grant in office.entry(job).grants] == ["declined: it could not take its task", ""]
    office.checkpoint(job, 2, unfit=("w1",))
    office.checkpoint(job, 3, unfit=("w1",))
    assert office.registry.fleet.total() == 0, "after three times it is left alone"
    assert not office.entry(job).grants[-1].lost == ""


def test_a_worker_that_declined_once_has_declined_once(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 1)
    job = office.submit(order_of(1)).id
    for worker in ("w2", "w3", "w4"):
        office.beat(worker, 1)
    unfit: tuple[str, ...] = ()
    for revision in (1, 2, 3):
        (place,) = office.facts(job).workers
        unfit = (*unfit, place)
        office.checkpoint(job, revision, unfit=unfit)

    assert office.registry.fleet.total() == 4, "all may be used"
    assert len(dict.fromkeys(grant.worker for grant in office.entry(job).grants)) == 4


# -- a new leader


def test_a_new_leader_goes_on_with_queue_grants_and_owners(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 2, boot=11, folder=5)
    lost = trio.submit(order_of(1)).id
    trio.beat("w2", 2, boot=12, folder=6)
    running = trio.submit(order_of(2)).id
    first, second = trio.submit(order_of(3)).id, trio.submit(order_of(1)).id
    urgent = trio.submit(order_of(9, priority=9)).id
    done = trio.submit(order_of()).id
    trio.ask(CancelJob(done))
    before = trio.registry
    assert trio.entry(running).grants == (Grant("w2", 12, 2, "", 6),)
    trio.act(trio.registry.on_goodbye(trio.now, "w1", 11))

    trio.take_over()

    assert trio.registry is not before
    assert trio.registry.entries == before.entries
    assert trio.registry.queue.jobs() == [urgent, first, second]
    assert trio.entry(lost).grants[0].lost
    lives = {life.name: (life.state, list(life.reserved)) for life in trio.registry.fleet.lives()}
    assert lives == {"w2": ("registering", [running])}, "of the lost one nothing is expected"
    trio.beat("w2", 3, boot=12, folder=6)
    assert trio.free("w2") == 1
    trio.run(0.3)
    assert trio.free("w2") == 0, "two are granted, and one replaces what was lost"
    fence = trio.entry(running).fence
    assert trio.registry._new_fence() > fence


def test_a_worker_that_comes_back_as_another_life_to_a_new_leader_has_lost_its_tasks(
    trio: Office, order_of: OrderOf
) -> None:
    trio.beat("w1", 2, boot=11, folder=5)
    job = trio.submit(order_of(2)).id
    trio.take_over()

    effects = trio.beat("w1", 2, boot=12, folder=5)

    assert news(effects, WorkerLost) == [WorkerLost("w1", 11, "it was restarted")]
    grants = trio.entry(job).grants
    assert grants == (
        Grant("w1", 11, 2, "was lost with its worker w1: it was restarted", 5),
        Grant("w1", 12, 2, "", 5),
    )


def test_a_worker_that_goes_on_without_its_only_manager_is_waited_for(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2, boot=11)
    job = office.submit(order_of(2)).id
    office.group.stop("m1")
    office.group.start("m1")
    office.group.leader()

    office.run(200)
    assert office.entry(job).grants[0].lost == ""
    office.run(200)

    lost = office.entry(job).grants[0].lost
    assert lost.startswith("was lost with its worker w1: not heard since the leader changed")


def test_a_worker_that_a_new_leader_does_not_hear_is_lost_after_its_lease(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 2, boot=11)
    job = trio.submit(order_of(2)).id
    trio.take_over()

    trio.run(5)
    assert trio.entry(job).grants[0].lost == "", "its lease and the drift of clocks"
    trio.run(30)

    assert trio.entry(job).grants[0].lost


def test_the_same_key_is_the_same_job_to_a_new_leader(trio: Office, order_of: OrderOf) -> None:
    first = trio.submit(order_of(), "k")
    trio.take_over()

    assert trio.submit(order_of(), "k").id == first.id
    assert trio.submit(order_of()).id != first.id
    assert [entry.number for entry in trio.registry.entries.values()] == [1, 2]


# -- what is shown


def test_jobs_are_listed_newest_first_and_page_by_page(office: Office, order_of: OrderOf) -> None:
    jobs = [office.submit(order_of(name=f"job {number}")).id for number in range(5)]
    office.ask(CancelJob(jobs[2]))

    def page(**asked: Any) -> tuple[list[str], str]:
        found = office.answer(ListJobs(**asked), JobsPage)
        return [facts.id for facts in found.items], found.next

    assert page() == (jobs[::-1], "")
    first, cursor = page(limit=2)
    second, cursor = page(limit=2, cursor=cursor)
    third, end = page(limit=2, cursor=cursor)
    assert (first + second + third, end) == (jobs[::-1], "")
    assert page(limit=-7)[0] == jobs[-1:], "at least one"
    for job, at in zip(jobs[::-1], office.answer(ListJobs(), JobsPage).cursors, strict=True):
        assert page(limit=1, cursor=at)[0] == [job], "a page begins with it"
    assert page(state="cancelled") == ([jobs[2]], "")
    assert page(state="running") == ([], "")


def test_a_job_that_is_not_on_disk_is_not_listed(office: Office, order_of: OrderOf) -> None:
    office.group.hold()
    office.ask(SubmitJob(order_of()))

    assert office.answer(ListJobs(), JobsPage).items == []


def test_an_order_is_given_out_as_it_came(office: Office, order_of: OrderOf) -> None:
    order = order_of(3, name="checkout")
    job = office.submit(order).id

    assert office.answer(GetOrder(job), JobOrder) == order


def test_an_order_is_given_out_without_values_of_variables_and_what_may_be_secret_else(
    office: Office, order_of: OrderOf
) -> None:
    request = UrlRequest("POST", {"authorization": "marker"}, b"marker")
    bundle = BundleFacts("0" * 64, 70, b"marker", "shop.py", {"TOKEN": "marker"}, "http://x/", request, b"marker")
    job = office.submit(order_of(bundle=bundle)).id

    (answer,) = answers(office.ask(GetOrder(job)))

    assert isinstance(answer.answer, OrderTold)
    assert b"marker" not in msgspec.msgpack.encode(answer)
    found = answer.answer.order.bundle
    assert (found.env, found.url, found.file) == ({"TOKEN": ""}, "http://x/", "shop.py")
    assert office.entry(job).order.bundle == bundle, "whoever leads it needs all of it"


def test_a_renewal_names_who_signs_bundles_also_managers_that_are_gone(trio: Office, order_of: OrderOf) -> None:
    bundle = msgspec.structs.replace(order_of().bundle, word=SIGNER.sign("0" * 64))
    own = trio.me.encode() * 16
    assert renewed(trio.beat("w1")).signers == (own,)

    trio.submit(order_of(bundle=bundle))
    assert renewed(trio.beat("w1")).signers == (own, SIGNER.public)

    trio.take_over()
    assert renewed(trio.beat("w1")).signers == (trio.me.encode() * 16, SIGNER.public)


def test_the_cluster_as_people_see_it(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 2)
    trio.beat("w2", 3)
    job = trio.submit(order_of(4)).id
    trio.submit(order_of(5))
    done = trio.submit(order_of(1, priority=9)).id
    trio.checkpoint(done, 1, "completed")
    gone = trio.entry(job).owner
    assert sum(is_final(entry.state) for entry in trio.registry.entries.values()) == 1

    view = trio.answer(DescribeCluster(), ClusterView)

    assert (view.leader, view.term) == (trio.me, trio.registry.token.term)
    assert view.managers == [
        ManagerView(name, "", "", name == trio.me, int(name == gone)) for name in ("m1", "m2", "m3")
    ]
    assert (view.workers, view.cores, view.cores_free, view.queue) == (2, 5, 1, 1)


def test_workers_as_people_see_them(trio: Office, order_of: OrderOf) -> None:
    machine = WorkerMachine("host1", tags=(("rack", "7"),))
    facts = WorkerFacts(2, 1 << 30, 1, ("chrome",), "1.2", 7, load_percent=93, handlers=("resize",), machine=machine)
    trio.act(trio.registry.on_beat(trio.now, "w1", 11, "10.0.0.7:9401", Beat(1, facts)))
    trio.beat("w2", 3, boot=12, folder=8)
    job = trio.submit(order_of(4)).id
    trio.run(1)
    trio.act(trio.registry.on_goodbye(trio.now, "w2", 12))

    first, second = trio.answer(ListWorkers(), tuple)

    begun = first.decisions[0].since
    assert begun.startswith(instant_text(EPOCH_NS // MILLISECOND)[:18])
    assert first == WorkerView(
        "w1",
        "healthy",
        "",
        2,
        0,
        1 << 30,
        1,
        ["chrome"],
        "1.2",
        [job],
        first.lease_ms,
        "10.0.0.7:9401",
        [WorkerDecision("healthy", "", begun)],
        load_cores=2,
        load_percent=93,
        registered_at=begun,
        heard_at=begun,
    )
    assert 4000 < first.lease_ms < 4200
    assert (second.name, second.state, second.reason, second.lease_ms) == ("w2", "offline", "it left", 0)
    assert second.address == "", "nobody can dial a connection"

    (whole,) = trio.answer(ListWorkers("w1"), tuple)
    assert (whole.handlers, whole.machine) == (["resize"], MachineView("host1", tags={"rack": "7"}))
    assert whole == msgspec.structs.replace(
        first, handlers=whole.handlers, machine=whole.machine, lease_ms=whole.lease_ms
    )
    assert trio.answer(ListWorkers("w3"), tuple) == ()

    trio.take_over()
    expected = {view.name: view for view in trio.answer(ListWorkers(), tuple)}
    assert (expected["w1"].state, expected["w1"].cores, expected["w1"].version) == ("registering", 0, "")
    assert (expected["w1"].registered_at, expected["w1"].heard_at) == ("", "")
    assert expected["w1"].capabilities == [] and expected["w1"].jobs == [job]


def test_no_more_jobs_wait_than_the_queue_of_a_new_leader_holds() -> None:
    assert QUEUE_LIMIT < entries.SLOTS


# -- workers of which a core hangs, and those that are drained no more


def told_of(office: Office, worker: str, cores: int = 2, **more: Any) -> Any:
    """A beat with more in it."""
    office.numbers += 1
    beat = Beat(office.numbers, WorkerFacts(cores), **more)
    return office.act(office.registry.on_beat(office.now, worker, 1, "#7", beat))


def agreed(office: Office) -> tuple[int, int]:
    """Cores and free ones, as workers and the cluster tell them alike."""
    views, cluster = office.answer(ListWorkers(), tuple), office.answer(DescribeCluster(), ClusterView)
    here = [view for view in views if view.state != "offline"]
    assert (cluster.cores, cluster.cores_free) == (sum(v.cores for v in here), sum(v.free for v in here))
    return cluster.cores, cluster.cores_free


def test_while_a_request_takes_forty_seconds_on_one_of_two_cores_the_next_job_gets_the_other(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1", 2)
    first = office.submit(order_of()).id
    for _ in range(40):
        office.run(1)
        told_of(office, "w1", running=(Running(first, 1, 1, "running", 1),))
        assert agreed(office) == (2, 1)

    second = office.submit(order_of()).id

    assert office.entry(second).state is JobState.DISPATCHING, "at once"
    assert agreed(office) == (2, 0)
    (view,) = office.answer(ListWorkers(), tuple)
    assert [decision.what for decision in view.decisions] == ["healthy"]


def test_a_core_that_hangs_is_told_with_its_stack_and_the_next_job_gets_the_other(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1", 2)
    first = office.submit(order_of()).id
    for _ in range(40):
        office.run(1)
        office.beat("w1", 2, jobs=(first,))
    stack = 'Current thread 0x1 (most recent call first):\n  File "shop.py", line 9 in go'
    quiet = (QuietCore(first, ("Shop",), 4711, "stuck", 31_000, stack),)

    effects = told_of(office, "w1", running=(Running(first, 1, 1, "running", 1),), quiet=quiet)

    (judged,) = [one for one in news(effects, WorkerJudged) if one.what == "stuck"]
    assert 'in File "shop.py", line 9 in go' in judged.reason
    (view,) = office.answer(ListWorkers(), tuple)
    assert (view.state, view.free, [one.what for one in view.decisions]) == ("healthy", 1, ["stuck"])
    (core,) = view.quiet_cores
    assert (core.job, core.workflows, core.pid, core.state, core.stack) == (first, ["Shop"], 4711, "stuck", stack)
    at = (office.now + office.registry.wall_offset_ns - 31 * SECOND) // MILLISECOND
    assert core.since == view.decisions[0].since == instant_text(at)
    assert judged.since == office.now - 31 * SECOND, "as long as it is so, and not since it is told"
    assert agreed(office) == (2, 1)
    assert office.entry(office.submit(order_of()).id).state is JobState.DISPATCHING


@pytest.mark.parametrize("why", ["drained", "degraded", "silent", "left"])
def test_whatever_is_so_with_a_worker_all_who_tell_of_cores_agree(office: Office, why: str) -> None:
    office.beat("w1", 2)
    office.beat("w2", 4)
    if why == "drained":
        office.answer(DrainWorker("w2"), WorkerView)
    elif why == "degraded":
        office.act(office.registry.on_beat(office.now, "w2", 1, "#7", Beat(9, WorkerFacts(4, state="degraded"))))
    elif why == "silent":
        office.run(2)
        office.beat("w1", 2)
        office.run(2)
    else:
        office.act(office.registry.on_goodbye(office.now, "w2", 1))

    assert agreed(office) == (2 if why == "left" else 6, 2)
    assert office.answer(DescribeCluster(), ClusterView).cores_usable == 2


def test_a_drained_worker_takes_work_again_when_it_is_told_so(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    office.answer(DrainWorker("w1"), WorkerView)
    office.act(office.registry.on_beat(office.now, "w1", 1, "#7", Beat(8, WorkerFacts(2, state="draining"))))
    job = office.submit(order_of()).id
    assert office.entry(job).state is JobState.QUEUED

    effects = office.ask(UndrainWorker("w1"))

    assert answered(effects, WorkerView).state == "draining", "until it says that it takes work"
    renew = renewed(
        office.act(office.registry.on_beat(office.now, "w1", 1, "#7", Beat(9, WorkerFacts(2, state="draining"))))
    )
    assert (renew.drain, renew.undrain) == (False, True)
    renew = renewed(office.act(office.registry.on_beat(office.now, "w1", 1, "#7", Beat(10, WorkerFacts(2)))))
    assert (renew.drain, renew.undrain) == (False, False)
    assert office.entry(job).state is JobState.DISPATCHING


def test_a_drain_that_a_leader_before_ordered_is_taken_back_by_the_next(trio: Office) -> None:
    trio.beat("w1", 2)
    trio.answer(DrainWorker("w1"), WorkerView)
    trio.take_over()
    trio.act(trio.registry.on_beat(trio.now, "w1", 1, "#7", Beat(8, WorkerFacts(2, state="draining"))))
    assert trio.answer(ListWorkers(), tuple)[0].state == "draining"

    trio.answer(UndrainWorker("w1"), WorkerView)

    beat = Beat(9, WorkerFacts(2, state="draining"))
    assert renewed(trio.act(trio.registry.on_beat(trio.now, "w1", 1, "#7", beat))).undrain


def test_only_a_worker_that_is_there_and_stays_is_undrained(office: Office) -> None:
    office.act(
        office.registry.on_beat(office.now, "w1", 1, "#7", Beat(1, WorkerFacts(2, state="draining"), leaves=True))
    )

    assert office.problem(UndrainWorker("w9"))[0] == "missing"
    problem, text = office.problem(UndrainWorker("w1"))
    assert (problem, text) == ("conflict", "worker w1 was told to end: start it again, and it takes work")


def test_of_a_worker_that_is_still_listed_though_it_is_gone_it_is_said_what_became_of_it(office: Office) -> None:
    office.beat("w1", 2)
    office.act(office.registry.on_goodbye(office.now, "w1", 1))

    told = [office.problem(asked) for asked in (DrainWorker("w1"), UndrainWorker("w1"))]

    assert told == [("missing", "worker w1 is offline: it left")] * 2


# -- load jobs and tasks share cores


class Tasks:
    """What keepers of dag jobs would tell."""

    def __init__(self, **busy: int) -> None:
        self.busy: dict[str, int] = busy
        self.is_waiting = False
        self.bad: dict[str, Denied] = {}

    def busy_cores(self, name: str) -> int:
        return self.busy.get(name, 0)

    def are_waiting(self) -> bool:
        return self.is_waiting

    def denied(self, now: int) -> dict[str, Denied]:
        return self.bad


def test_what_tasks_take_is_seen_and_a_load_job_gets_a_core_that_they_do_not(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    office = Office(cabinet_of, "m1", tasks=Tasks(w1=2, w2=0))
    told_of(office, "w1", 2, tasks=TaskLoad(3, 1, 2))
    told_of(office, "w2", 1)

    job = office.submit(order_of()).id
    office.run(1)

    assert [grant.worker for grant in office.entry(job).grants] == ["w2"]
    first, second = office.answer(ListWorkers(), tuple)
    assert (first.tasks, first.tasks_waiting, first.task_cores, first.load_cores, first.free) == (3, 1, 2, 0, 0)
    assert (second.tasks, second.task_cores, second.load_cores, second.free) == (0, 0, 1, 0)
    assert agreed(office) == (3, 0)


def test_a_worker_that_was_restarted_has_its_cores_again_beside_tasks_for_what_it_left_on_disk(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    tasks = Tasks()
    office = Office(cabinet_of, "m1", tasks=tasks)
    office.beat("w1", 2, boot=11, folder=5)
    job = office.submit(order_of(2)).id
    office.beat("w2", 2, boot=21, folder=6)
    tasks.busy["w1"] = 2  # they were sooner

    office.beat("w1", 2, boot=12, folder=5)

    cause = "was lost with its worker w1: it was restarted"
    assert office.entry(job).grants == (Grant("w1", 11, 2, cause, 5), Grant("w1", 12, 2, "", 5))
    (first, second) = office.answer(ListWorkers(), tuple)
    assert (first.load_cores, second.load_cores) == (2, 0)


@pytest.mark.parametrize(
    ("cores", "folder", "granted"), [(1, 5, ["w1", "w2"]), (2, 7, ["w2"])], ids=["fewer cores", "another folder"]
)
def test_what_a_worker_that_was_restarted_does_not_have_is_replaced_by_others(
    cores: int, folder: int, granted: list[str], cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    office = Office(cabinet_of, "m1")
    office.beat("w1", 2, boot=11, folder=5)
    job = office.submit(order_of(2)).id
    office.beat("w2", 2, boot=21, folder=6)

    for _ in range(60):
        office.beat("w1", cores, boot=12, folder=folder)
        office.beat("w2", 2, boot=21, folder=6)
        office.run(0.5)

    kept = [grant for grant in office.entry(job).grants if not grant.lost]
    assert [grant.worker for grant in kept] == granted
    assert sum(grant.cores for grant in kept) == 2


def test_a_worker_that_was_restarted_with_fewer_cores_has_them_for_whom_they_suffice(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    office = Office(cabinet_of, "m1")
    office.beat("w1", 2, boot=11, folder=5)
    first, second = office.submit(order_of(1)).id, office.submit(order_of(1)).id

    office.beat("w1", 1, boot=12, folder=5)

    assert [grant.boot for grant in office.entry(first).grants if not grant.lost] == [12]
    assert [grant.boot for grant in office.entry(second).grants if not grant.lost] == []


def test_a_load_job_waits_until_tasks_have_left_the_cores_held_for_it(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    tasks = Tasks(w1=2)
    office = Office(cabinet_of, "m1", tasks=tasks)
    office.beat("w1", 2)
    office.run(1)

    job = office.submit(order_of()).id
    office.run(1)

    assert office.facts(job).waits_for == (
        "waits for tasks that run on the cores held for it, which get no new ones: in 30 s it starts beside those that "
        "are left"
    )
    (cores,) = office.registry.fleet.take_shifted()
    assert (cores.name, cores.cores) == ("w1", 1), "a new task may begin on one core only"
    (view,) = office.answer(ListWorkers(), tuple)
    assert view.reason == f"1 of its cores get no new tasks: job {job} is to have them"
    tasks.busy["w1"] = 1
    office.run(1)
    assert office.entry(job).state is JobState.DISPATCHING
    assert office.registry.fleet.held() == 0


def test_cores_in_place_of_lost_ones_come_beside_tasks_after_the_patience_of_a_job_that_begins(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    office = Office(cabinet_of, "m1", tasks=Tasks(w2=2))
    office.beat("w1", 1)
    office.beat("w2", 2)
    job = office.submit(order_of()).id
    office.act(office.registry.on_goodbye(office.now, "w1", 1))
    for _ in range(29):
        office.run(1)
        office.beat("w2", 2)
    assert [grant.worker for grant in office.entry(job).grants] == ["w1"], "tasks have all cores that are left"

    for _ in range(2):
        office.run(1)
        office.beat("w2", 2)

    assert [grant.worker for grant in office.entry(job).grants] == ["w1", "w2"]
    assert office.registry.fleet.total_unreserved() == 1


def test_a_job_that_is_cancelled_holds_nothing(cabinet_of: CabinetOf, order_of: OrderOf) -> None:
    office = Office(cabinet_of, "m1", tasks=Tasks(w1=2))
    office.beat("w1", 2)
    job = office.submit(order_of()).id
    office.run(1)
    assert office.registry.fleet.held() == 1

    office.ask(CancelJob(job))
    office.run(1)

    assert office.registry.fleet.held() == 0


def test_tasks_that_wait_come_first_for_a_moment_when_a_load_job_has_ended(
    cabinet_of: CabinetOf, order_of: OrderOf
) -> None:
    tasks = Tasks()
    office = Office(cabinet_of, "m1", tasks=tasks)
    office.beat("w1", 1)
    first, second = office.submit(order_of()).id, office.submit(order_of()).id
    tasks.is_waiting = True
    office.checkpoint(first, 1, "completed", result="r" * 64)

    office.run(1)
    office.beat("w1", 1)
    assert office.entry(second).state is JobState.QUEUED
    text = office.facts(second).waits_for
    assert text == "waits for tasks of pipelines, which come first after a load test: for 5 s at most"
    for _ in range(5):
        office.run(1)
        office.beat("w1", 1)

    assert office.entry(second).state is JobState.DISPATCHING


@pytest.mark.parametrize("denied", [("quarantined", QUARANTINED), ("refused", TOO_OLD)])
def test_a_worker_that_gets_no_tasks_whatever_it_could_run_is_told(denied: Denied, cabinet_of: CabinetOf) -> None:
    tasks = Tasks()
    office = Office(cabinet_of, "m1", tasks=tasks)
    office.beat("w1", 1)
    tasks.bad["w1"] = denied

    office.run(1)

    (view,) = office.answer(ListWorkers(), tuple)
    assert [(one.what, one.reason) for one in view.decisions] == [denied]
    assert view.free == 1, "load jobs may run there"


# -- cores that come back, and jobs that pass


def test_cores_that_a_job_gives_back_are_granted_to_the_next_once_that_is_on_disk(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1", 4, boot=11)
    first, second = office.submit(order_of(4)).id, office.submit(order_of(1)).id
    office.group.hold()

    office.checkpoint(first, 1, spare=(SpareCores("w1", 11, 4, 3),))
    assert office.entry(first).grants == (Grant("w1", 11, 3),)
    assert office.entry(second).state is JobState.QUEUED, "another leader would not know it"
    effects = office.write()

    assert office.entry(second).grants == (Grant("w1", 11, 1),)
    assert office.entry(first).granted == 3
    assert [entry.grants for owner, entry in led(effects) if entry.job == first] == [(Grant("w1", 11, 3),)]
    assert office.facts(first).cores == 3


def test_a_job_that_gave_cores_back_and_loses_others_gets_no_more_than_it_needs(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1", 2, boot=11)
    office.beat("w2", 2, boot=12)
    job = office.submit(order_of(4)).id
    office.checkpoint(job, 1, spare=(SpareCores("w1", 11, 2, 0), SpareCores("w2", 12, 2, 1)))
    assert office.facts(job).workers == ["w2"]

    office.act(office.registry.on_goodbye(office.now, "w2", 12))

    live = [grant for grant in office.entry(job).grants if not grant.lost]
    assert live == [Grant("w1", 11, 0), Grant("w1", 11, 1)]


def test_cores_of_a_worker_that_is_lost_before_its_smaller_grant_is_on_disk_are_nobodys(
    office: Office, order_of: OrderOf
) -> None:
    office.beat("w1", 4, boot=11)
    first, second = office.submit(order_of(4)).id, office.submit(order_of(1)).id
    office.group.hold()
    office.checkpoint(first, 1, spare=(SpareCores("w1", 11, 4, 3),))

    office.act(office.registry.on_goodbye(office.now, "w1", 11))
    office.write()

    assert office.entry(second).state is JobState.QUEUED
    assert office.registry.granting.counts()["cores_given_back_total"] == 0


def test_a_new_leader_reserves_what_a_job_has_kept(trio: Office, order_of: OrderOf) -> None:
    for worker in ("w1", "w2"):
        trio.beat(worker, 2, boot=11)
    job = trio.submit(order_of(4)).id
    trio.checkpoint(job, 1, spare=(SpareCores("w1", 11, 2, 0), SpareCores("w2", 11, 2, 1)))

    trio.take_over()
    for worker in ("w1", "w2"):
        trio.beat(worker, 2, boot=11)

    assert trio.registry.fleet.reserved() == {job: 1}
    assert (trio.free("w1"), trio.free("w2")) == (2, 1)


def test_a_new_leader_asks_owners_when_cores_come_back_until_it_is_told(trio: Office, order_of: OrderOf) -> None:
    trio.beat("w1", 1)
    job = trio.submit(order_of(1)).id
    trio.checkpoint(job, 1)
    trio.take_over()
    asked = [one.message.asks for one in trio.run(2) if isinstance(one, Send) and isinstance(one.message, Lead)]
    assert asked and all(asked)

    trio.checkpoint(job, 2, back=(CoresBack(1, SECOND),))
    asked = [one.message.asks for one in trio.run(3) if isinstance(one, Send) and isinstance(one.message, Lead)]

    assert asked and not any(asked)


def test_a_small_job_starts_ahead_of_one_that_waits_and_it_is_said_so(office: Office, order_of: OrderOf) -> None:
    def lasting(length: str, **more: Any) -> JobOrder:
        order = order_of(**more)
        (shop,) = order.workflows
        return msgspec.structs.replace(
            order, workflows=(msgspec.structs.replace(shop, plan=ConstantVUs(64, length).plan()),)
        )

    office.beat("w1", 4)
    office.submit(lasting("10m", cores=3))
    large = office.submit(order_of(4))
    assert large.waits_for == "waits for 4 cores: 1 of 4 are free; expected to start in 10m"
    at_ns = office.now + office.registry.wall_offset_ns + 600 * SECOND
    assert large.expected_start == instant_text(at_ns // MILLISECOND)

    effects = office.ask(SubmitJob(order_of(1)))

    small = answered(effects, JobFacts).id
    (began,) = news(effects, OwnerChanged)
    assert began.job == small
    assert began.reason == f"it has its cores, ahead of job {large.id}, which cannot start before it has ended"
    page = office.answer(ListJobs(), JobsPage)
    assert {one.id: bool(one.expected_start) for one in page.items if one.position} == {large.id: True}


# -- pausing


def content_of(*aside: str, seats: tuple[int, ...] = (0, 1)) -> bytes:
    """Of a job whose workflows of these names are put aside, of two shards each."""
    shard = ShardEntry(0, 2, 2, (AttemptEntry(1, "w1", seats=seats),), is_done=True)
    workflows = [
        WorkflowEntry(name, TaskState.PENDING, (shard,), put_aside_for="it was late", aside_ns=1) for name in aside
    ]
    return encode_checkpoint(JobCheckpoint(1, (*workflows, WorkflowEntry("after", TaskState.PENDING))))


def paused(office: Office, order_of: OrderOf, *, cores: int = 2) -> str:
    """A job that had two cores of w1 and gave them back."""
    office.beat("w1", cores)
    job = office.submit(order_of(cores=2)).id
    office.checkpoint(job, 1)
    office.checkpoint(job, 2, content=content_of("shop"), spare=(SpareCores("w1", 1, 2, 0),))
    office.checkpoint(job, 3, "paused", content=content_of("shop"), reason="shop is put aside")
    return job


def test_a_job_that_is_paused_says_why_and_its_cores_are_others(office: Office, order_of: OrderOf) -> None:
    job = paused(office, order_of)

    facts = office.facts(job)
    assert (facts.state, facts.reason, facts.cores) == (JobState.PAUSED, "shop is put aside", 0)
    assert office.free("w1") == 2
    office.run(1)
    assert office.free("w1") == 2, "no core takes the place of those"


def test_a_job_that_is_resumed_runs_on_as_many_cores_as_it_had(office: Office, order_of: OrderOf) -> None:
    job = paused(office, order_of, cores=5)

    facts = office.answer(ResumeJob(job), JobFacts)

    assert facts.state in (JobState.PAUSED, JobState.RUNNING)
    entry = office.entry(job)
    assert (entry.state, entry.resumes, entry.is_resumed, entry.reason) == (JobState.RUNNING, 1, False, "")
    assert [(grant.worker, grant.cores) for grant in entry.grants] == [("w1", 2)] and entry.granted == 2
    assert office.free("w1") == 3
    assert office.answer(ResumeJob(job), JobFacts).state is JobState.RUNNING, "who asks asks again"
    office.checkpoint(job, 4, "paused", content=content_of("shop"))
    assert office.entry(job).state is JobState.RUNNING, "its owner does not know yet"
    office.checkpoint(job, 5, "paused", content=content_of("shop"), resumes=1)
    assert office.entry(job).state is JobState.PAUSED


def test_a_job_that_is_resumed_waits_for_its_cores_paused_and_under_the_next_leader_too(
    trio: Office, order_of: OrderOf
) -> None:
    job = paused(trio, order_of)
    other = trio.submit(order_of(cores=2)).id
    trio.run(1)
    assert trio.entry(other).state is JobState.DISPATCHING

    facts = trio.answer(ResumeJob(job), JobFacts)
    assert (facts.state, facts.position) == (JobState.PAUSED, 1) and "waits for 2 cores" in facts.waits_for
    assert trio.answer(ResumeJob(job), JobFacts).position == 1, "the same again"
    trio.take_over()
    trio.beat("w1", 2)
    assert trio.facts(job).position == 1
    for _ in range(160):
        trio.run(2)
        trio.beat("w1", 2, jobs=(other,))
    assert trio.facts(job).position == 1, "it ends when nobody resumes it, and somebody did"
    trio.checkpoint(other, 9, "completed")
    trio.run(1)

    assert trio.entry(job).state is JobState.RUNNING


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_paused_job_is_cancelled_also_while_it_waits_for_cores(
    office: Office, order_of: OrderOf, is_waiting: bool
) -> None:
    job = paused(office, order_of)
    if is_waiting:
        office.submit(order_of(cores=2))
        office.ask(ResumeJob(job))

    assert office.answer(CancelJob(job), JobFacts).state is JobState.CANCELLING
    assert (office.facts(job).position, office.entry(job).is_resumed) == (None, False)


def test_one_that_ends_while_it_waits_for_cores_has_left_the_queue(office: Office, order_of: OrderOf) -> None:
    job = paused(office, order_of)
    office.submit(order_of(cores=2))
    office.ask(ResumeJob(job))

    office.checkpoint(job, 4, "completing")

    assert office.facts(job).position is None


def test_what_is_not_paused_is_not_resumed(office: Office, order_of: OrderOf) -> None:
    office.beat("w1", 2)
    job = office.submit(order_of()).id
    office.checkpoint(job, 1)

    assert office.problem(ResumeJob("b4")) == ("missing", "there is no job b4: talka jobs lists those that are known")
    text = f"job {job} is running: only a job that is paused can be resumed"
    assert office.problem(ResumeJob(job)) == ("conflict", text)
    office.checkpoint(job, 2, content=content_of("shop"))
    text += ". shop is put aside, and the job is paused when nothing else of it runs"
    assert office.problem(ResumeJob(job)) == ("conflict", text)


def test_cores_of_a_worker_that_joined_go_beside_those_it_had(office: Office, order_of: OrderOf) -> None:
    job = paused(office, order_of)
    office.submit(order_of(cores=2))
    office.beat("w2", 2)

    office.ask(ResumeJob(job))

    assert [(grant.worker, grant.cores) for grant in office.entry(job).grants] == [("w1", 0), ("w2", 2)]
