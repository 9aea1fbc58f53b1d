"""A worker among its managers: lease, fences, tasks, reports, results."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist, PersistBlob, Send
from talka.cluster.membership.local_health import Degradation
from talka.control.load.core_effects import KillCore, StartCore, TellCore
from talka.control.member.manager_search import GreetManager
from talka.control.member.signers import Signers
from talka.control.tasks.parts import in_parts
from talka.control.worker import held_shards
from talka.control.worker.bundles import FETCHES_LIMIT, KEPT_LIMIT
from talka.control.worker.composite import WAITING_LIMIT, Worker
from talka.control.worker.core_pool import DEATH_LIMIT_NS, LEAVE_LIMIT_NS
from talka.control.worker.core_turns import TurnLimits
from talka.control.worker.effects import (
    CoreGivenUp,
    CoreQuiet,
    CoreSeen,
    CoresUntil,
    Drained,
    EndHandlers,
    ExitFacts,
    HandlersBroken,
    HandlersLoaded,
    LeaseEnded,
    LookAtCore,
    ManagersLearned,
    NeedBundle,
    ShardsNews,
    StartHandlers,
    TellHandlers,
    Undrained,
    WorkerLeaseGranted,
)
from talka.control.worker.fences import IDLE_LIMIT_NS, JOBS_LIMIT
from talka.control.worker.held_shards import STORED_LIMIT, STORED_OFFERED_NS
from talka.control.worker.reporter import LINES_FLUSH_NS, REFUSAL_KEPT_NS
from talka.stats.tally import StepTally, Tally
from talka.stats.windows import Window
from talka.testing.trust import GROUP, SIGNER, signed, trust_of_worker
from talka.units import MILLISECOND, SECOND
from talka.wire.attempts import ObeyedLife, StoreLife
from talka.wire.condition import NodeCondition
from talka.wire.jobs import (
    CHANNEL,
    MANAGERS_LIMIT,
    PIECE_LIMIT_BYTES,
    REPORT_LIMIT_BYTES,
    Acknowledge,
    Assign,
    AttemptResult,
    Beat,
    Elsewhere,
    Finished,
    Goodbye,
    Halt,
    JobMessage,
    Kept,
    LogLines,
    ManagerAt,
    NoTask,
    Piece,
    Reconcile,
    Renew,
    Report,
    ResultAccepted,
    Running,
    Stale,
    Start,
    Sync,
    Synced,
    TaskDeclined,
    TaskFacts,
    TaskLoad,
    WantBlob,
    WorkerFacts,
    WorkerSnapshot,
    decode_result,
    encode_result,
)
from talka.wire.machines import WorkerMachine
from talka.wire.orders import BundleFacts
from talka.wire.security.bundles import BundleSigner
from talka.wire.security.envelopes import Purpose, read_sealing_key, seal_variables
from talka.wire.shards import (
    Ack,
    Armed,
    BundleSource,
    FromCore,
    Go,
    Hello,
    Refused,
    Settings,
    ShardAnswer,
    StepTotals,
    Stop,
    TimeAsked,
    TimeOver,
    Totals,
    Unread,
    UnreadStep,
    UrlRequest,
    UrlSource,
    decode_unread,
    digest_of_url,
)
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    Done,
    HandedBundle,
    HandedTask,
    HandlerProgress,
    Held,
    Load,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    Said,
    TaskInputs,
    TaskProgress,
    TaskResult,
)
from talka.work.deadlines import Allowance
from talka.work.shapes import ConstantVUs
from tests.sim.variants import without

LEASE_NS = 5 * SECOND
TOKEN, LATER_TOKEN = (0, 4, 1), (0, 5, 1)
FENCE, LATER_FENCE = (0, 4, 7), (0, 5, 1)
BUNDLE = b"a bundle of modules"
DIGEST = sha256(BUNDLE).hexdigest()
FACTS = WorkerFacts(4, memory_bytes=1 << 30)
Kind = TypeVar("Kind")


TRUST = trust_of_worker("w1", 9)


def assign(attempt: int = 1, *, job: str = "job", fence: Any = FENCE, count: int = 2, **more: Any) -> Assign:
    bundle = more.pop("bundle", BundleFacts(DIGEST, len(BUNDLE), b"signed", "shop.py", {"A": "b"}))
    fields: dict[str, Any] = {"first": 0, "of": count, "iterations_done": (0,) * count, **more}
    if bundle.signature == b"signed":
        bundle = signed(bundle)
    if bundle.env:
        purpose, key = Purpose(GROUP, job, attempt, "w1", 9), read_sealing_key(TRUST.sealing)
        assert key is not None
        fields["variables"] = seal_variables(bundle.env, purpose, to=key.public, drawn=bytes(range(32)))
        bundle = msgspec.structs.replace(bundle, env={})
    return Assign(
        job=job,
        fence=fence,
        attempt=attempt,
        workflow="Shop",
        plan=ConstantVUs(8, "600s").plan(),
        count=count,
        values={},
        settings=Settings(grace_ns=30 * SECOND),
        bundle=bundle,
        **fields,
    )


class Rig:
    """A worker, its disk, its clock, and what it said to whom. The disk writes at once unless it is told to wait."""

    def __init__(
        self,
        disk: dict[str, bytes] | None = None,
        *,
        managers: tuple[str, ...] = ("m1", "m2"),
        bundles: tuple[str, ...] = (DIGEST,),
        facts: WorkerFacts = FACTS,
        lease: bool = True,
        handlers: tuple[str, ...] = (),
        now: int = 1_000 * SECOND,
        **limits: Any,
    ) -> None:
        signers = Signers(GROUP)
        signers.name([SIGNER.public])
        self.now = now
        self.disk = dict(disk or {})
        self.said: list[Send[JobMessage]] = []
        self.news: list[object] = []
        self.arms: dict[int, Any] = {}
        self.held_back: list[Persist | PersistBlob] = []
        self.disk_waits = False
        self.sequences: dict[int, int] = {}
        self.beat = 0
        """The number of the last one."""
        self.worker = Worker(
            "w1",
            9,
            self.disk,
            facts,
            managers,
            Random(3),
            self.now,
            signers=signers,
            variables=TRUST.variables,
            bundles=bundles,
            handlers=handlers,
            **limits,
        )
        self.take(self.worker.start(self.now))
        if lease:
            self.renew()

    # What happens.

    def take(self, effects: list[object]) -> list[object]:
        for effect in effects:
            match effect:
                case Send(message=message):
                    self.said.append(effect)
                    self.beat = message.number if isinstance(message, Beat) else self.beat
                case Persist() | PersistBlob():
                    self.held_back.append(effect)
                case StartCore(attempt=core):
                    self.arms[core] = self.worker.shards.arm_for(core)
                    self.news.append(effect)
                case _:
                    self.news.append(effect)
        if not self.disk_waits:
            self.write()
        assert self.worker.next_tick_at > self.now or effects, "what is due is done"
        return effects

    def write(self) -> None:
        while self.held_back:
            persist = self.held_back.pop(0)
            for key, content in persist.puts if isinstance(persist, Persist) else ():
                if content is None:
                    self.disk.pop(key, None)
                else:
                    self.disk[key] = content
            self.take(self.worker.on_persisted(self.now, persist.ticket))

    def hear(self, message: JobMessage, sender: str = "m1") -> list[object]:
        return self.take(self.worker.on_message(self.now, sender, message))

    def renew(self, sender: str = "m1", token: Any = TOKEN, **more: Any) -> list[object]:
        fields: dict[str, Any] = {"number": self.beat, "lease_ns": LEASE_NS, "sole": False, **more}
        return self.hear(Renew(token, **fields), sender)

    def until(self, at: int, *, renew: bool = True) -> Rig:
        """Let time pass, with a lease that is renewed."""
        while self.worker.next_tick_at <= at:
            self.now = max(self.now, self.worker.next_tick_at)
            beat = self.beat
            self.take(self.worker.tick(self.now))
            if renew and self.beat > beat:
                self.renew()
        self.now = at
        return self

    def later(self, ns: int, *, renew: bool = True) -> Rig:
        return self.until(self.now + ns, renew=renew)

    def core(self, core: int, message: FromCore) -> list[object]:
        return self.take(self.worker.on_core_message(self.now, core, message))

    def exit(self, core: int) -> list[object]:
        return self.take(self.worker.on_core_exit(self.now, core, "was killed by SIGKILL"))

    def count(self, core: int, started: int = 1, **more: Any) -> None:
        """The core's next report."""
        self.sequences[core] = self.sequences.get(core, 0) + 1
        windows = more.pop("windows", [])
        self.core(core, Totals(self.sequences[core], Tally(started=started), windows, 1, self.now, **more))

    def finish(self, core: int, started: int = 1) -> None:
        self.count(core, started, final=True, ended_at_ns=self.now)

    def armed(self, attempt: int = 1, **more: Any) -> list[int]:
        """A task that is ready, and its cores."""
        before = list(self.arms)
        self.hear(assign(attempt, **more))
        cores = [core for core in self.arms if core not in before]
        for core in cores:
            self.core(core, Armed())
        return cores

    def running(self, attempt: int = 1, **more: Any) -> list[int]:
        cores = self.armed(attempt, **more)
        self.hear(self.start(attempt, job=more.get("job", "job")))
        self.forget()
        return cores

    def start(self, attempt: int = 1, *, job: str = "job", fence: Any = FENCE) -> Start:
        return Start(job, fence, attempt, self.now, self.now - 5, self.now - 9)

    def ended(self, attempt: int = 1, **more: Any) -> Finished:
        for core in self.running(attempt, **more):
            self.finish(core)
            self.exit(core)
        return self.all(Finished)[-1]

    def forget(self) -> None:
        self.said.clear()
        self.news.clear()

    # What is seen.

    def all(self, kind: type[Kind]) -> list[Kind]:
        said = [speak.message for speak in self.said]
        return [thing for thing in [*said, *self.news] if isinstance(thing, kind)]

    def shards(self, what: str) -> list[ShardsNews]:
        return [news for news in self.all(ShardsNews) if news.what == what]

    def spoken(self) -> list[tuple[str, JobMessage]]:
        return [(speak.to, speak.message) for speak in self.said]

    def told(self) -> list[tuple[str, Unread, Lane]]:
        """What was reported to whom."""
        return [
            (speak.to, decode_unread(content), speak.lane)
            for speak in self.said
            if isinstance(speak.message, Report)
            for content in speak.message.contents
        ]

    def totals(self) -> list[Totals]:
        return [message for _, message, _ in self.told() if isinstance(message, Totals)]

    @property
    def states(self) -> list[Running]:
        return [held.running() for held in self.worker.shards]


# The lease.


def test_it_beats_to_every_manager_once_a_second() -> None:
    rig = Rig(lease=False)
    rig.later(2 * SECOND + 1, renew=False)

    beats = [(speak.to, speak.message, speak.lane) for speak in rig.said]

    assert [(to, beat.number) for to, beat, _ in beats if isinstance(beat, Beat)] == [
        (to, number) for number in (1, 2, 3) for to in ("m1", "m2")
    ]
    assert {lane for _, _, lane in beats} == {Lane.CONTROL}
    assert rig.all(Beat)[0].facts == FACTS


def test_it_beats_more_often_while_a_renewal_is_late() -> None:
    """A leader that was elected just now hears of it before its lease is over, and not one beat too late."""
    rig = Rig(managers=("m1",))
    begun_at = rig.now
    beats: list[tuple[int, int]] = []
    while rig.worker.has_lease:
        rig.now = rig.worker.next_tick_at
        rig.take(rig.worker.tick(rig.now))
        if not beats or rig.beat > beats[-1][0]:
            beats.append((rig.beat, rig.now - begun_at))

    assert [at for _, at in beats] == [
        SECOND,
        2 * SECOND,
        *range(2 * SECOND + SECOND // 4, 4 * SECOND + 1, SECOND // 4),
    ]

    rig.until(rig.now + 2 * SECOND, renew=False)
    assert rig.beat - beats[-1][0] == 2, "without a lease there is no hurry"
    rig.renew()
    rig.said.clear()
    rig.later(2 * SECOND)
    assert len(rig.all(Beat)) == 2, "renewed in time, once a second is enough"


def test_of_a_short_lease_it_beats_as_often_as_it_takes() -> None:
    rig = Rig(lease=False, managers=("m1",))
    rig.renew(lease_ns=SECOND // 2)
    rig.said.clear()

    while rig.now < 1_010 * SECOND:
        rig.now = rig.worker.next_tick_at
        rig.take(rig.worker.tick(rig.now))
        rig.renew(lease_ns=SECOND // 2)
        assert rig.worker.has_lease

    assert len(rig.all(Beat)) == 100


def test_the_machine_is_in_beats_until_the_leader_has_it_and_again_when_the_lease_has_ended() -> None:
    rig, machine = Rig(lease=False), WorkerMachine("host1")
    rig.worker.machine.set(machine)

    def told() -> list[WorkerMachine | None]:
        return [beat.facts.machine for beat in rig.all(Beat)[::2]]

    rig.later(2 * SECOND, renew=False)
    assert told() == [None, machine, machine], "of the first one nothing was known yet"
    rig.renew()
    rig.forget()
    rig.later(2 * SECOND)
    assert told() == [None, None]

    rig.renew(token=LATER_TOKEN, sender="m2")
    rig.forget()
    rig.later(SECOND, renew=False)
    assert told() == [machine], "another leader knows nothing of it"
    rig.renew(token=LATER_TOKEN, sender="m2")
    rig.forget()
    rig.later(10 * SECOND, renew=False)
    assert rig.all(LeaseEnded)
    assert told()[0] is None and told()[-1] == machine, "whoever grants the next lease may have forgotten it"


def test_a_beat_says_what_the_worker_has() -> None:
    rig = Rig()
    rig.armed(1, count=1)
    rig.running(2, count=1)
    rig.ended(3, count=1)
    rig.worker.set_facts(WorkerFacts(4, load_percent=80))

    rig.later(SECOND)

    beat = rig.all(Beat)[-1]
    assert beat.facts.load_percent == 80
    assert beat.running == (
        Running("job", 1, 1, "armed"),
        Running("job", 2, 1, "running"),
        Running("job", 3, 0, "ended"),
    )


def test_the_first_renewal_of_a_leader_counts_after_its_token_is_on_disk() -> None:
    rig = Rig(lease=False)
    rig.disk_waits = True

    rig.renew()
    assert not rig.worker.has_lease
    rig.write()

    assert rig.worker.has_lease
    assert rig.all(WorkerLeaseGranted) == [WorkerLeaseGranted("m1")]
    assert "fence" in rig.disk
    rig.disk_waits = True
    rig.renew()
    assert rig.held_back == [], "it is on disk already"


def test_a_renewal_of_an_earlier_leader_is_ignored_also_after_a_restart() -> None:
    rig = Rig()
    rig.renew("m2", LATER_TOKEN)
    assert rig.renew(token=TOKEN) == []
    assert rig.worker.refused == {"token": 1}

    again = Rig(rig.disk, lease=False)
    again.renew(token=TOKEN)
    assert not again.worker.has_lease
    again.renew(token=LATER_TOKEN)

    assert again.worker.has_lease


def test_a_renewal_that_was_overtaken_by_a_later_leader_while_it_waited_for_the_disk_is_ignored() -> None:
    rig = Rig(lease=False)
    rig.disk_waits = True
    rig.renew("m1", TOKEN)
    rig.renew("m2", LATER_TOKEN)
    rig.write()

    assert rig.all(WorkerLeaseGranted) == [WorkerLeaseGranted("m2")]
    assert rig.worker.refused == {"token": 1}


def test_a_renewal_for_a_beat_nobody_remembers_is_ignored() -> None:
    rig = Rig(lease=False)

    rig.renew(number=77)

    assert not rig.worker.has_lease
    assert rig.worker.refused == {"beat": 1}


def test_when_nobody_renews_the_lease_the_tasks_are_killed_and_results_stay() -> None:
    rig = Rig()
    rig.ended(1)
    cores = rig.running(2)
    sent_ns = 1_000 * SECOND

    rig.until(sent_ns + 4 * SECOND - 1, renew=False)
    assert rig.all(LeaseEnded) == []
    rig.until(sent_ns + 4 * SECOND, renew=False)

    reason = "no manager renewed the lease in time"
    assert rig.news == [
        LeaseEnded(reason),
        *(KillCore(core) for core in cores),
        ShardsNews("job", 2, "killed", reason),
    ]
    assert rig.states == [Running("job", 1, 0, "ended")]
    assert not rig.worker.has_lease


def test_an_order_that_comes_when_the_lease_is_over_finds_nothing_even_before_the_tick() -> None:
    rig = Rig()
    cores = rig.armed()
    rig.forget()

    rig.now += 4 * SECOND
    rig.hear(rig.start())

    assert [KillCore(core) in rig.news for core in cores] == [True, True]
    assert rig.all(NoTask) == [NoTask("job", 1, FENCE)]


def test_what_its_cores_say_after_the_lease_is_over_does_not_count() -> None:
    rig = Rig()
    cores = rig.running()

    rig.now += 4 * SECOND
    assert rig.core(cores[0], Totals(1, Tally(), [], 0, 0)) == [
        LeaseEnded("no manager renewed the lease in time"),
        *(KillCore(core) for core in cores),
        ShardsNews("job", 1, "killed", "no manager renewed the lease in time"),
    ]


def test_while_the_only_manager_refuses_connections_the_tasks_go_on() -> None:
    rig = Rig(managers=("m1",))
    rig.renew(sole=True)
    rig.running()

    for _ in range(20):
        rig.take(rig.worker.on_refused(rig.now, "m1"))
        rig.later(SECOND, renew=False)
    assert rig.all(LeaseEnded) == []
    rig.later(2 * SECOND, renew=False)
    assert rig.all(LeaseEnded) == [], "a manager that was started needs a moment to answer"
    rig.later(SECOND, renew=False)

    assert len(rig.all(LeaseEnded)) == 1


def test_cores_are_told_their_end_with_every_renewal_four_fifths_of_the_lease_from_when_the_beat_was_sent() -> None:
    rig = Rig(lease=False)
    assert rig.all(CoresUntil) == []

    sent_ns = rig.now
    rig.now += SECOND // 2
    rig.renew(lease_ns=10 * SECOND)
    assert rig.all(CoresUntil) == [CoresUntil(sent_ns + 8 * SECOND)]
    rig.forget()
    rig.later(SECOND // 2 + 1, renew=False)
    rig.renew(lease_ns=10 * SECOND)

    assert rig.all(CoresUntil) == [CoresUntil(sent_ns + 9 * SECOND)]


def test_a_core_that_is_started_has_an_end_before_it_runs() -> None:
    rig = Rig(lease=False)
    rig.disk_waits = True
    rig.renew()
    rig.hear(assign(1))
    rig.disk_waits = False
    rig.write()

    started = [type(one) for one in rig.news if isinstance(one, CoresUntil | StartCore)]
    assert started == [CoresUntil, StartCore, StartCore]


def test_while_the_only_manager_refuses_connections_cores_are_told_later_ends() -> None:
    rig = Rig(managers=("m1",))
    rig.renew(sole=True)
    rig.forget()
    rig.later(SECOND, renew=False)

    rig.take(rig.worker.on_refused(rig.now, "m1"))

    assert rig.all(CoresUntil) == [CoresUntil(rig.now + 4 * SECOND)]


def test_when_the_lease_is_over_cores_are_told_nothing() -> None:
    rig = Rig()
    rig.forget()

    rig.later(6 * SECOND, renew=False)

    assert rig.all(LeaseEnded) != [] and rig.all(CoresUntil) == []


@without("core_deadline")
def test_without_its_safeguard_cores_have_no_end() -> None:
    rig = Rig()

    rig.later(3 * SECOND)

    assert rig.worker.has_lease and rig.all(CoresUntil) == []


@without("worker_lease")
def test_without_its_safeguard_tasks_outlive_the_lease() -> None:
    rig = Rig()
    rig.running()

    rig.later(60 * SECOND, renew=False)

    assert rig.states == [Running("job", 1, 2, "running")]


def test_managers_are_learned_from_the_leader() -> None:
    rig = Rig()
    managers = (ManagerAt("m1", "a:1"), ManagerAt("m3", "c:1"))

    rig.renew(managers=managers)
    rig.renew(managers=managers)
    rig.forget()
    rig.later(SECOND, renew=False)

    assert [speak.to for speak in rig.said] == ["m1", "m3"]
    assert rig.worker.managers == ("m1", "m3")


def test_managers_that_are_learned_are_told_once() -> None:
    rig = Rig()
    managers = (ManagerAt("m1", "a:1"), ManagerAt("m3", "c:1"))

    rig.renew(managers=managers)
    rig.renew(managers=managers)

    assert rig.all(ManagersLearned) == [ManagersLearned(managers)]


def test_managers_that_were_named_are_greeted_by_the_next_life() -> None:
    rig = Rig()
    rig.renew(managers=(ManagerAt("m1", "a:1"), ManagerAt("m3", "c:1")))

    again = Rig(rig.disk, managers=(), lease=False)

    assert sorted(effect.address for effect in again.all(GreetManager)) == ["a:1", "c:1"]


def test_a_worker_without_a_lease_says_so_and_asks_again_whoever_it_knows() -> None:
    rig = Rig()
    rig.renew(managers=(ManagerAt("m1", "a:1"),))
    rig.later(SECOND)
    assert not rig.all(Beat)[-1].seeks
    assert rig.all(GreetManager) == []

    rig.later(20 * SECOND, renew=False)

    assert rig.all(LeaseEnded) and rig.all(Beat)[-1].seeks
    assert {effect.address for effect in rig.all(GreetManager)} == {"a:1"}
    rig.renew()
    rig.forget()
    rig.later(20 * SECOND)
    assert rig.all(GreetManager) == []


def test_a_manager_that_does_not_lead_tells_where_the_others_are() -> None:
    rig = Rig(managers=("m2",), lease=False)
    named = (ManagerAt("m1", "a:1"), ManagerAt("m3", "c:1"))
    rig.later(SECOND // 2, renew=False)
    rig.forget()
    rig.disk_waits = True

    rig.hear(Elsewhere("m1", named), "m2")
    rig.take(rig.worker.tick(rig.now))

    assert rig.all(ManagersLearned) == [ManagersLearned(named)]
    assert [to for to, message in rig.spoken() if isinstance(message, Beat)] == ["m2", "m1", "m3"]
    rig.forget()
    rig.hear(Elsewhere("m1", named), "m2")
    assert rig.news == [], "it knows that already"
    rig.write()
    assert Rig(rig.disk, managers=(), lease=False).worker.search.remembered == named


def test_with_a_lease_only_the_leader_names_managers() -> None:
    rig = Rig()
    rig.hear(Elsewhere("m7", (ManagerAt("m7", "x:1"),)), "m2")
    rig.take(rig.worker.on_welcomed(rig.now, "y:1", "m8"))
    assert (rig.worker.managers, rig.all(ManagersLearned)) == (("m1", "m2"), [])


def test_of_too_many_managers_it_beats_to_those_it_was_told_of_last() -> None:
    rig = Rig(managers=(), lease=False)
    for number in range(MANAGERS_LIMIT + 1):
        rig.take(rig.worker.on_welcomed(rig.now, f"a{number}:1", f"m{number}"))
    assert rig.worker.managers == tuple(f"m{number}" for number in range(1, MANAGERS_LIMIT + 1))


def test_a_bundle_is_fetched_from_a_near_manager_and_from_a_far_one_when_that_is_silent() -> None:
    facts = msgspec.structs.replace(FACTS, zone="z1", datacenter="d1")
    rig = Rig(bundles=(), facts=facts)
    managers = [ManagerAt(f"m{number}", f"{number}:1", "z2" if number < 4 else "z1", "d1") for number in range(1, 5)]
    rig.renew(managers=tuple(managers))
    rig.forget()

    rig.hear(assign(), "m1")
    asked = [to for to, message in rig.spoken() if isinstance(message, WantBlob)]
    assert asked == ["m4"]
    rig.later(3 * SECOND // 2)

    assert [to for to, message in rig.spoken() if isinstance(message, WantBlob)][1] != "m4"
    counts = rig.worker.counts_of_peers()
    assert (counts["worker_bundle_sources"], counts["worker_bundle_source_failures_total"]) == (4, 1)


def test_managers_that_do_not_have_a_bundle_yet_have_not_failed() -> None:
    rig = Rig(bundles=())
    rig.renew(managers=(ManagerAt("m1", "a:1"), ManagerAt("m2", "b:1")))
    rig.hear(assign())
    for _ in range(2):
        rig.hear(
            Piece(DIGEST, 0, 0, b""), next(to for to, said in reversed(rig.spoken()) if isinstance(said, WantBlob))
        )
    rig.forget()

    rig.later(3 * SECOND // 2)

    assert rig.all(WantBlob), "they are asked again"
    assert rig.worker.counts_of_peers()["worker_bundle_source_failures_total"] == 0


def test_a_source_of_bundles_that_answers_is_kept_to() -> None:
    rig = Rig(bundles=())
    rig.renew(managers=(ManagerAt("m1", "a:1"), ManagerAt("m2", "b:1")))
    rig.hear(assign())
    (source,) = [to for to, message in rig.spoken() if isinstance(message, WantBlob)]
    rig.now += 5 * MILLISECOND
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), source)
    assert rig.worker.counts_of_peers()["worker_bundle_source_latency_seconds"] == 0.005
    assert rig.worker.shards.bundles.pool.order(rig.now)[0] == source


def test_managers_the_shell_has_met_are_told_at_once() -> None:
    rig = Rig(managers=(), lease=False)
    rig.later(SECOND // 2, renew=False)

    rig.take(rig.worker.on_welcomed(rig.now, "g:1", "m7"))

    assert [(speak.to, type(speak.message)) for speak in rig.said] == [("m7", Beat)]
    assert rig.worker.on_news(rig.now, Drained()) == []


def test_a_worker_with_a_backlog_of_writes_takes_no_new_leader() -> None:
    rig = Rig()
    rig.disk_waits = True
    for _ in range(WAITING_LIMIT):
        rig.hear(Reconcile("job", FENCE, 1))

    assert rig.renew(token=LATER_TOKEN) == []
    assert rig.hear(Reconcile("job", LATER_FENCE, 1)) == []

    assert rig.worker.refused == {"busy": 2}
    rig.write()
    assert len(rig.all(WorkerSnapshot)) == WAITING_LIMIT


# Fences.


def test_the_fence_of_a_job_is_on_disk_before_the_first_order_under_it_is_obeyed() -> None:
    rig = Rig()
    rig.disk_waits = True

    rig.hear(assign())
    rig.hear(Halt("job", FENCE, 1, "stop"))
    assert rig.all(StartCore) == []
    rig.write()

    assert "fence/job" in rig.disk
    assert len(rig.all(StartCore)) == 2
    assert rig.all(NoTask) == [], "the order waited behind the one it is about"
    assert rig.states == [Running("job", 1, 0, "ended")]


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(assign(1), id="Assign"),
        pytest.param(Start("job", FENCE, 1, 0, 0, 0), id="Start"),
        pytest.param(Halt("job", FENCE, 1, "kill"), id="Halt"),
        pytest.param(Acknowledge("job", FENCE, 1, 1), id="Acknowledge"),
        pytest.param(ResultAccepted("job", FENCE, 1), id="ResultAccepted"),
    ],
)
def test_a_manager_that_no_longer_leads_the_job_is_not_obeyed(order: JobMessage) -> None:
    rig = Rig()
    rig.running(2, fence=LATER_FENCE)
    rig.forget()

    rig.hear(order, "m2")
    with_the_task = msgspec_replace(order, attempt=2)
    rig.hear(with_the_task, "m2")

    assert rig.all(Stale) == [Stale("job", 1, LATER_FENCE), Stale("job", 2, LATER_FENCE)]
    assert rig.states == [Running("job", 2, 2, "armed")]
    assert rig.worker.refused == {"fence": 3}, "also the order to start, under the earlier fence"


def msgspec_replace(message: Any, **changes: Any) -> Any:
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**{**fields, **changes})


@without("worker_fence")
def test_without_its_safeguard_an_earlier_manager_is_obeyed() -> None:
    rig = Rig()
    rig.armed(1, fence=LATER_FENCE)

    rig.hear(Halt("job", FENCE, 1, "kill"), "m2")

    assert rig.states == []


def test_an_order_that_was_overtaken_by_a_later_manager_while_it_waited_for_the_disk_is_stale() -> None:
    rig = Rig()
    rig.disk_waits = True
    rig.hear(assign(1), "m1")
    rig.hear(Reconcile("job", LATER_FENCE, 1), "m2")
    rig.write()

    assert [(speak.to, speak.message) for speak in rig.said if isinstance(speak.message, Stale)] == [
        ("m1", Stale("job", 1, LATER_FENCE))
    ]
    assert rig.all(StartCore) == []


def test_the_fence_of_a_job_is_forgotten_when_it_has_had_no_task_for_long() -> None:
    rig = Rig()
    rig.hear(Reconcile("other", FENCE, 1))
    finished = rig.ended()
    rig.hear(ResultAccepted("job", FENCE, finished.attempt))
    assert "fence/job" in rig.disk

    rig.later(IDLE_LIMIT_NS + 30 * SECOND)

    assert [key for key in rig.disk if key.startswith("fence/")] == []


def test_the_fence_of_a_job_that_has_a_task_stays() -> None:
    rig = Rig()
    rig.ended()

    rig.later(IDLE_LIMIT_NS + 30 * SECOND)

    assert "fence/job" in rig.disk


def test_more_jobs_than_can_be_remembered_are_not_heard() -> None:
    rig = Rig()
    for number in range(JOBS_LIMIT):
        rig.hear(Reconcile(f"job{number}", FENCE, 1))
    rig.forget()

    rig.hear(Reconcile("new", FENCE, 1))

    assert rig.all(WorkerSnapshot) == []
    assert rig.worker.refused == {"busy": 1}


# Getting ready.


def test_a_task_is_armed_when_all_its_cores_are_and_its_manager_is_told_until_it_answers() -> None:
    rig = Rig()
    rig.hear(assign())
    assert [arm.source for arm in rig.arms.values()] == [
        BundleSource(f"blob:{DIGEST}", DIGEST, "shop.py", "", {"A": "b"})
    ] * 2
    rig.core(1, Armed())
    assert rig.told() == []
    rig.core(2, Armed())

    assert rig.told() == [("m1", Armed(), Lane.RESULTS)]
    assert rig.shards("armed") == [ShardsNews("job", 1, "armed")]
    rig.later(2 * SECOND)
    assert len(rig.told()) == 3
    rig.hear(Acknowledge("job", FENCE, 1, 0))
    rig.later(5 * SECOND)

    assert len(rig.told()) == 3


def test_a_task_that_is_assigned_twice_is_told_as_it_is() -> None:
    rig = Rig()
    rig.armed()
    rig.hear(Acknowledge("job", FENCE, 1, 0))
    rig.forget()

    rig.hear(assign())

    assert (rig.told(), rig.all(StartCore)) == ([("m1", Armed(), Lane.RESULTS)], [])
    rig.hear(rig.start())
    rig.forget()
    rig.hear(assign())
    assert (rig.said, rig.news) == ([], []), "of one that runs the reports tell"


def test_a_refusal_of_its_file_is_told_until_it_is_answered() -> None:
    rig = Rig()
    rig.hear(assign())
    rig.core(2, Refused("file", "no such class"))

    refusal = ("m1", Refused("file", "no such class"), Lane.RESULTS)
    assert rig.told() == [refusal]
    assert rig.all(KillCore) == [KillCore(1), KillCore(2)]
    assert rig.shards("ended") == [ShardsNews("job", 1, "ended", "no such class")]
    assert rig.states == [Running("job", 1, 0, "ended")]
    rig.later(SECOND)
    assert rig.told() == [refusal] * 2
    rig.hear(assign())
    assert rig.told() == [refusal] * 3
    rig.hear(Halt("job", FENCE, 1, "kill"))

    assert (rig.states, rig.all(NoTask)) == ([], [NoTask("job", 1, FENCE)])
    rig.later(5 * SECOND)
    assert len(rig.told()) == 3


@pytest.mark.parametrize(
    "order",
    [Start("job", FENCE, 1, 0, 0, 0), Halt("job", FENCE, 1, "stop"), Acknowledge("job", FENCE, 1, 0)],
    ids=["start", "stop", "acknowledge"],
)
def test_a_refusal_is_forgotten_with_any_answer_and_there_is_no_such_task_any_more(order: JobMessage) -> None:
    rig = Rig()
    rig.hear(assign(first=1))
    rig.forget()

    rig.hear(order)

    assert (rig.states, rig.all(NoTask), rig.told()) == ([], [NoTask("job", 1, FENCE)], [])


def test_a_refusal_nobody_answers_is_forgotten() -> None:
    rig = Rig()
    rig.hear(assign())
    rig.core(1, Refused("file", "no such class"))

    rig.later(REFUSAL_KEPT_NS)

    assert rig.states == []


@pytest.mark.parametrize(
    ("order", "text"),
    [
        pytest.param(assign(first=1), "shards 1 and 1 more of 2 do not exist", id="shards"),
        pytest.param(assign(iterations_done=()), "shards 0 and 1 more of 2 do not exist", id="iterations"),
        pytest.param(
            assign(bundle=BundleFacts(DIGEST, 9, b"forged", "shop.py")),
            "worker w1 runs nothing unsigned: no manager has signed this bundle",
            id="signature",
        ),
        pytest.param(
            assign(bundle=BundleFacts(DIGEST, 9, b"signed", "", url="http://x/")),
            "the digest of the job is not that of its URL: one of them was changed",
            id="url",
        ),
        pytest.param(
            assign(
                bundle=BundleFacts(
                    digest_of_url("http://x/"), 9, b"signed", "", url="http://x/", request=UrlRequest("DELETE")
                )
            ),
            "the digest of the job is not that of its URL: one of them was changed",
            id="request",
        ),
    ],
)
def test_what_no_worker_should_run_is_refused(order: Assign, text: str) -> None:
    rig = Rig()

    rig.hear(order)

    assert rig.told() == [("m1", Refused("setup", text), Lane.RESULTS)]
    assert rig.all(StartCore) == []


def test_a_job_of_one_url_needs_no_bundle() -> None:
    rig = Rig(bundles=())
    url = "http://x/"

    rig.hear(assign(bundle=BundleFacts(sha256(url.encode()).hexdigest(), 0, b"signed", "", url=url)))

    assert [arm.source for arm in rig.arms.values()] == [UrlSource(url)] * 2


def test_a_job_of_one_url_asks_what_its_submitter_asked() -> None:
    rig = Rig(bundles=())
    url, request = "http://x/", UrlRequest("POST", {"a": "b"}, b"[1]")

    rig.hear(assign(bundle=BundleFacts(digest_of_url(url, request), 0, b"signed", "", url=url, request=request)))

    assert [arm.source for arm in rig.arms.values()] == [UrlSource(url, request)] * 2


def test_a_bundle_of_a_signer_that_the_leader_has_not_named_yet_waits_for_it() -> None:
    rig = Rig()
    other = BundleSigner(b"o" * 32, GROUP)
    bundle = BundleFacts(DIGEST, len(BUNDLE), b"", "shop.py", word=other.sign(DIGEST))

    rig.hear(assign(bundle=bundle))
    assert (rig.told(), rig.all(TaskDeclined), rig.states) == ([], [], [])

    rig.later(SECOND)
    rig.renew(signers=(other.public,))
    rig.hear(assign(bundle=bundle))
    assert [state.attempt for state in rig.states] == [1]


def test_a_bundle_of_a_signer_that_the_leader_never_names_is_refused() -> None:
    rig = Rig()
    other = BundleSigner(b"o" * 32, GROUP)
    bundle = BundleFacts(DIGEST, len(BUNDLE), b"", "shop.py", word=other.sign(DIGEST))

    for _ in range(6):
        rig.hear(assign(bundle=bundle))
        rig.later(SECOND)

    text = "worker w1 runs nothing unsigned: no manager that the cluster's leader names has signed this bundle"
    assert ("m1", Refused("setup", text), Lane.RESULTS) in rig.told()
    assert rig.all(StartCore) == []


def test_variables_reach_the_cores_of_the_attempt_that_they_were_sealed_for() -> None:
    rig = Rig()

    rig.hear(assign())

    assert [arm.source.env for arm in rig.arms.values()] == [{"A": "b"}] * 2


def test_a_task_whose_variables_are_for_another_attempt_is_declined() -> None:
    rig = Rig()

    rig.hear(msgspec.structs.replace(assign(1), attempt=2))

    assert declined(rig) == [
        "worker w1 cannot take it: the variables were sealed to another worker, job or attempt, or were changed on"
        " their way"
    ]
    assert rig.all(StartCore) == []


def declined(rig: Rig) -> list[str]:
    return [message.reason for message in rig.all(TaskDeclined)]


def test_a_worker_without_a_lease_takes_no_task_until_it_has_one() -> None:
    """It does not decline either: a new leader gives tasks away before every worker has heard of it."""
    rig = Rig(lease=False)

    rig.hear(assign())
    assert (rig.states, rig.all(TaskDeclined), rig.worker.refused) == ([], [], {"lease": 1})

    rig.renew()
    rig.hear(assign())
    assert [state.attempt for state in rig.states] == [1]


def test_a_worker_takes_no_more_than_its_cores() -> None:
    rig = Rig()
    rig.armed(1, count=3)

    rig.hear(assign(2, count=2))
    rig.hear(assign(3, count=1))

    assert declined(rig) == ["worker w1 has 1 cores free, and 2 are asked for"]
    assert [(state.attempt, state.cores) for state in rig.states] == [(1, 3), (3, 1)]


def test_an_order_for_an_attempt_that_is_over_does_not_begin_it_again() -> None:
    rig = Rig()
    rig.armed()
    rig.hear(Halt("job", FENCE, 1, "kill"))

    rig.hear(assign())

    assert declined(rig) == ["attempt 1 is over on worker w1"]


def test_attempts_that_are_over_are_remembered_up_to_a_limit() -> None:
    rig = Rig(closed_limit=3)
    for attempt in range(4):
        rig.hear(assign(attempt))
        rig.hear(Halt("job", FENCE, attempt, "kill"))
        for core in list(rig.arms):
            rig.exit(core)
    rig.forget()

    rig.hear(assign(0))
    rig.hear(assign(1))

    assert len(rig.all(StartCore)) == 2
    assert declined(rig) == ["attempt 1 is over on worker w1"]


@pytest.mark.parametrize("limit", ["HELD_LIMIT", "RESULTS_LIMIT_BYTES"])
def test_a_worker_full_of_results_takes_no_task(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_shards, limit, 1)
    rig = Rig()
    rig.ended(1)

    rig.hear(assign(2))

    assert declined(rig) == ["worker w1 holds too many results that nobody fetched"]


def test_a_task_waits_for_cores_whose_processes_have_not_ended_yet() -> None:
    rig = Rig()
    cores = rig.running(1, count=4)
    rig.hear(Halt("job", FENCE, 1, "kill"))
    rig.forget()

    rig.hear(assign(2, count=4))
    for core in cores[:3]:
        rig.exit(core)
    assert (rig.all(StartCore), rig.states) == ([], [Running("job", 2, 4, "arming")])
    rig.exit(cores[3])

    assert len(rig.all(StartCore)) == 4


def test_a_core_that_was_killed_and_of_which_nothing_is_heard_holds_its_place_for_a_while_only() -> None:
    rig = Rig()
    rig.running(1, count=4)
    rig.hear(Halt("job", FENCE, 1, "kill"))
    rig.hear(assign(2, count=4))
    rig.forget()

    rig.later(DEATH_LIMIT_NS)

    assert len(rig.all(StartCore)) == 4


def test_a_task_that_waits_can_be_stopped() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())
    rig.forget()

    rig.hear(rig.start())
    rig.hear(Halt("job", FENCE, 1, "stop"))

    assert rig.shards("killed") == [ShardsNews("job", 1, "killed", "its job was stopped before it started")]
    assert rig.states == []


# Bundles.


def test_a_bundle_that_is_not_here_is_fetched_checked_and_put_on_disk_first() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())
    assert rig.all(NeedBundle) == [NeedBundle(DIGEST, len(BUNDLE))]
    source = rig.said[-1].to
    assert rig.said[-1].message == WantBlob(DIGEST, 0)
    rig.disk_waits = True

    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), source)
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), source)
    assert rig.all(StartCore) == []
    (write,) = rig.held_back
    assert write == PersistBlob(write.ticket, DIGEST, BUNDLE)
    rig.write()

    assert len(rig.all(StartCore)) == 2
    rig.hear(assign(2))
    assert len(rig.all(NeedBundle)) == 1


def test_tasks_of_one_bundle_wait_for_one_fetch() -> None:
    rig = Rig(bundles=())
    rig.hear(assign(1))
    rig.hear(assign(2))
    assert len(rig.all(WantBlob)) == 1

    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), rig.said[-1].to)

    assert len(rig.all(StartCore)) == 4


def test_a_bundle_nobody_gives_is_a_reason_to_decline_and_may_be_tried_again() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())

    rig.later(61 * SECOND)

    assert declined(rig) == ["worker w1 could not get the bundle: no manager gave all of it within 60 s"]
    assert rig.states == []
    rig.hear(assign())
    assert rig.states == [Running("job", 1, 2, "arming")]


def test_a_bundle_the_disk_would_not_take_is_a_reason_to_decline() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())
    rig.disk_waits = True
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), rig.said[-1].to)
    rig.hear(Reconcile("other", FENCE, 1))
    (bundle, fence) = rig.held_back
    rig.held_back = [fence]

    rig.take(rig.worker.on_not_persisted(rig.now, bundle.ticket, "the disk is full"))
    rig.take(rig.worker.on_not_persisted(rig.now, bundle.ticket, "the disk is full"))

    assert declined(rig) == ["worker w1 could not get the bundle: the disk is full"]
    assert rig.states == []
    rig.write()
    assert len(rig.all(WorkerSnapshot)) == 1


def test_what_waited_behind_a_bundle_the_disk_would_not_take_is_carried_out() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())
    source = rig.said[-1].to
    rig.disk_waits = True
    rig.hear(Reconcile("other", FENCE, 1))
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), source)
    rig.hear(Reconcile("other", FENCE, 2))
    (fence, bundle) = rig.held_back

    rig.take(rig.worker.on_persisted(rig.now, fence.ticket))
    rig.take(rig.worker.on_not_persisted(rig.now, bundle.ticket, "the disk is full"))

    assert [snapshot.number for snapshot in rig.all(WorkerSnapshot)] == [1, 2]


def test_a_worker_that_knows_no_manager_cannot_fetch() -> None:
    rig = Rig(bundles=(), managers=(), lease=False)
    rig.worker._lease.beat(rig.now)
    rig.hear(Renew(TOKEN, 2, LEASE_NS, False))

    rig.hear(assign())

    assert declined(rig) == ["worker w1 could not get the bundle: no node is known that could have it"]


def test_too_many_fetches_at_a_time_are_declined() -> None:
    rig = Rig(facts=WorkerFacts(64))
    for number in range(FETCHES_LIMIT + 1):
        digest = sha256(b"%d" % number).hexdigest()
        rig.hear(assign(number, bundle=BundleFacts(digest, 5, b"signed", "shop.py")))

    assert declined(rig) == ["worker w1 could not get the bundle: 8 others are on their way"]


def test_each_bundle_is_asked_for_again_in_its_own_time() -> None:
    rig = Rig(bundles=())
    rig.hear(assign(1))
    rig.later(SECOND // 2)
    other = sha256(b"other").hexdigest()
    rig.hear(assign(2, bundle=BundleFacts(other, 5, b"signed", "shop.py")))
    rig.forget()

    rig.later(SECOND // 2)
    assert rig.all(WantBlob) == [WantBlob(DIGEST, 0)]
    rig.later(SECOND // 2)

    assert rig.all(WantBlob) == [WantBlob(DIGEST, 0), WantBlob(other, 0)]


def test_a_fetch_nobody_waits_for_any_more_is_given_up() -> None:
    rig = Rig(bundles=())
    rig.hear(assign())
    rig.hear(Halt("job", FENCE, 1, "kill"))
    rig.forget()

    rig.later(5 * SECOND)

    assert rig.all(WantBlob) == []
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE))
    assert rig.held_back == []


def test_of_many_bundles_the_one_that_was_used_longest_ago_gives_way() -> None:
    old = [sha256(b"old %d" % number).hexdigest() for number in range(KEPT_LIMIT)]
    rig = Rig(bundles=tuple(old))
    rig.armed(1, count=1, bundle=BundleFacts(old[0], 9, b"signed", "shop.py"))
    rig.hear(assign(2, count=1))
    rig.disk_waits = True

    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), rig.said[-1].to)

    (write,) = rig.held_back
    assert write == PersistBlob(write.ticket, DIGEST, BUNDLE, (old[1],))


# Running.


def test_a_task_starts_at_the_instant_it_is_told() -> None:
    rig = Rig()
    cores = rig.armed()

    start = rig.start()
    rig.hear(start)

    go = Go(start.start_at_ns, start.origin_ns, start.job_origin_ns)
    assert rig.all(TellCore) == [TellCore(core, go) for core in cores]
    assert rig.shards("started") == [ShardsNews("job", 1, "started")]
    assert rig.states == [Running("job", 1, 2, "running")]


def test_a_report_goes_out_shortly_after_something_new_came_and_the_next_after_the_answer() -> None:
    rig = Rig()
    first, second = rig.running()

    rig.count(first, 3)
    rig.later(20 * MILLISECOND)
    rig.count(second, 4)
    assert rig.told() == []
    rig.later(30 * MILLISECOND)
    assert [(to, lane) for to, _, lane in rig.told()] == [("m1", Lane.STATISTICS)]
    assert [(totals.sequence, totals.tally.started) for totals in rig.totals()] == [(1, 7)]

    rig.count(first, 5)
    rig.later(500 * MILLISECOND)
    assert len(rig.totals()) == 1, "one is on its way"
    rig.hear(Acknowledge("job", FENCE, 1, 1))

    assert [(totals.sequence, totals.tally.started) for totals in rig.totals()] == [(1, 7), (2, 9)]
    rig.hear(Acknowledge("job", FENCE, 1, 2))
    rig.later(900 * MILLISECOND)
    assert len(rig.totals()) == 2, "there is nothing new"


def test_each_report_of_a_core_is_acknowledged() -> None:
    rig = Rig()
    first, _ = rig.running()

    rig.count(first)

    assert rig.all(TellCore) == [TellCore(first, Ack(1))]


def test_what_the_manager_says_of_time_with_an_acknowledgement_reaches_the_cores_once() -> None:
    rig = Rig()
    first, second = rig.running()
    rig.count(first, asked=TimeAsked(3, SECOND))
    rig.later(50 * MILLISECOND)
    rig.forget()
    answer, over = ShardAnswer(1, Allowance(SECOND, 4, SECOND)), TimeOver(10 * SECOND)

    rig.hear(Acknowledge("job", FENCE, 1, 1, answer=answer, over=over))
    rig.hear(Acknowledge("job", FENCE, 1, 1, answer=answer, over=over))

    told = [
        TellCore(first, ShardAnswer(3, Allowance(SECOND, 4, SECOND))),
        TellCore(first, over),
        TellCore(second, over),
    ]
    assert rig.all(TellCore) == told


def test_what_the_manager_says_of_time_after_the_end_reaches_nobody() -> None:
    rig = Rig()
    rig.ended()
    rig.forget()

    rig.hear(Acknowledge("job", FENCE, 1, 1, over=TimeOver(10 * SECOND)))

    assert rig.all(TellCore) == []


def test_a_manager_under_load_asks_for_fewer_reports() -> None:
    rig = Rig()
    first, _ = rig.running()
    rig.count(first, 1)
    rig.later(50 * MILLISECOND)
    sent_ns = rig.now

    rig.hear(Acknowledge("job", FENCE, 1, 1, every_ms=600))
    rig.count(first, 2)
    rig.until(sent_ns + 600 * MILLISECOND - 1)
    assert len(rig.totals()) == 1
    rig.until(sent_ns + 600 * MILLISECOND)
    assert len(rig.totals()) == 2

    rig.hear(Acknowledge("job", FENCE, 1, 2, every_ms=5_000))
    rig.count(first, 3)
    rig.later(SECOND)
    assert len(rig.totals()) == 3, "but at least one a second"


def test_a_report_that_was_refused_is_made_anew_after_a_second_with_all_that_came_since() -> None:
    rig = Rig()
    first, _ = rig.running()
    rig.count(first, 1)
    rig.later(50 * MILLISECOND)
    sent_ns = rig.now

    rig.hear(Acknowledge("job", FENCE, 1, 0, every_ms=1000, is_refusal=True))
    rig.count(first, 5)
    rig.until(sent_ns + SECOND - 1)
    assert len(rig.totals()) == 1
    rig.until(sent_ns + SECOND)

    assert [(totals.sequence, totals.tally.started) for totals in rig.totals()] == [(1, 1), (2, 5)]
    assert rig.worker.reports_refused == 1
    rig.hear(Acknowledge("job", FENCE, 1, 2, every_ms=50))
    assert rig.worker.reports_refused == 1, "this one was taken"


def test_the_first_report_follows_no_other_also_when_the_clock_has_just_begun() -> None:
    rig = Rig(now=0)
    first, _ = rig.running()
    rig.hear(Acknowledge("job", FENCE, 1, 0, every_ms=600))

    rig.count(first)
    rig.later(50 * MILLISECOND)

    assert len(rig.totals()) == 1


def test_a_report_nobody_answers_is_made_anew_after_a_second() -> None:
    rig = Rig()
    first, _ = rig.running()
    rig.count(first, 1)
    rig.later(50 * MILLISECOND)
    rig.count(first, 2)

    rig.later(SECOND - 1)
    assert len(rig.totals()) == 1
    rig.later(1)

    assert [(totals.sequence, totals.tally.started) for totals in rig.totals()] == [(1, 1), (2, 2)]
    rig.hear(Acknowledge("job", FENCE, 1, 1))
    rig.count(first, 3)
    rig.later(100 * MILLISECOND)
    assert len(rig.totals()) == 2, "the later one is still on its way"


def test_windows_that_found_no_room_follow_without_anything_new() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    rig.count(core, windows=[Window(index, started=1) for index in range(45)])
    rig.later(50 * MILLISECOND)

    rig.hear(Acknowledge("job", FENCE, 1, 1))
    rig.later(100 * MILLISECOND)

    assert [len(totals.windows) for totals in rig.totals()] == [40, 5]


def test_the_parts_of_a_report_travel_together() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    rig.core(core, StepTotals(1, "buy", StepTally(ok=3), True))
    rig.count(core)

    rig.later(50 * MILLISECOND)

    assert len(rig.all(Report)) == 1
    assert [type(message) for _, message, _ in rig.told()] == [UnreadStep, Totals]


def test_parts_that_are_too_large_together_travel_apart() -> None:
    half = bytes(REPORT_LIMIT_BYTES // 2)

    assert in_parts([b"a", b"b"], len, REPORT_LIMIT_BYTES) == [[b"a", b"b"]]
    contents = [half, half, b"c", bytes(REPORT_LIMIT_BYTES + 1), b"d"]
    assert in_parts(contents, len, REPORT_LIMIT_BYTES) == [
        [half, half],
        [b"c"],
        [bytes(REPORT_LIMIT_BYTES + 1)],
        [b"d"],
    ]


def test_a_core_that_dies_is_replaced_at_once() -> None:
    rig = Rig()
    first, _ = rig.running()

    effects = rig.exit(first)

    assert [type(effect) for effect in effects] == [StartCore]


def test_what_is_heard_of_a_core_nobody_knows_is_nothing() -> None:
    rig = Rig()

    assert rig.core(77, Armed()) == []
    assert rig.exit(77) == []


def test_a_core_that_does_not_end_after_its_last_report_is_killed() -> None:
    rig = Rig()
    first, _ = rig.running()
    rig.finish(first)
    rig.forget()

    rig.later(LEAVE_LIMIT_NS)

    assert rig.all(KillCore) == [KillCore(first)]
    assert rig.core(first, Armed()) == []


# Ending.


def test_a_task_that_has_ended_keeps_its_result_on_disk_and_says_so_until_it_is_accepted() -> None:
    rig = Rig()
    first, second = rig.running()
    rig.finish(first, 3)
    rig.disk_waits = True
    rig.finish(second, 4)
    assert rig.all(Finished) == []
    assert rig.shards("ended") == [ShardsNews("job", 1, "ended")]
    rig.disk_waits = False
    rig.write()

    content = rig.disk["result/job/1"]
    finished = Finished("job", 1, sha256(content).hexdigest(), len(content))
    result = decode_result(content)
    assert (result.tally.started, result.shares, result.worker) == (7, (3, 4), "w1")
    assert [speak for speak in rig.said if isinstance(speak.message, Finished)] == [
        Send(CHANNEL, "m1", finished, Lane.RESULTS)
    ]
    rig.later(SECOND)
    rig.hear(Acknowledge("job", FENCE, 1, 1))
    rig.later(SECOND)
    assert rig.all(Finished) == [finished] * 3
    rig.hear(ResultAccepted("job", FENCE, 1))
    rig.later(5 * SECOND)

    assert (rig.states, len(rig.all(Finished)), "result/job/1" in rig.disk) == ([], 3, False)
    assert rig.shards("killed") == []
    rig.hear(ResultAccepted("job", FENCE, 1))
    assert rig.all(NoTask) == []


def test_a_result_that_is_forgotten_before_it_is_on_disk_is_not_told() -> None:
    rig = Rig()
    for core in rig.running():
        rig.disk_waits = True
        rig.finish(core)
    rig.hear(ResultAccepted("job", FENCE, 1))

    rig.write()

    assert (rig.all(Finished), "result/job/1" in rig.disk) == ([], False)


def test_a_result_is_given_out_in_pieces() -> None:
    stored = encode_result(AttemptResult("job", 1, Tally(), [], provided={"a": bytes(PIECE_LIMIT_BYTES)}))
    rig = Rig({"result/job/1": stored})
    digest = sha256(stored).hexdigest()
    rig.forget()

    rig.hear(WantBlob(digest, 0), "m2")
    rig.hear(WantBlob(digest, PIECE_LIMIT_BYTES), "m2")
    rig.hear(WantBlob("f" * 64, 0), "m2")

    assert [(speak.to, speak.lane) for speak in rig.said] == [("m2", Lane.RESULTS)] * 3
    pieces = rig.all(Piece)
    assert b"".join(piece.data for piece in pieces[:2]) == stored
    assert [(piece.offset, piece.size_bytes) for piece in pieces] == [
        (0, len(stored)),
        (PIECE_LIMIT_BYTES, len(stored)),
        (0, 0),
    ]


def test_results_of_an_earlier_life_are_offered_to_all_managers_for_a_while() -> None:
    rig = Rig({"result/a/b/12": b"a result"}, lease=False)
    finished = Finished("a/b", 12, sha256(b"a result").hexdigest(), 8)

    assert [speak.to for speak in rig.said if speak.message == finished] == ["m1", "m2"]
    assert rig.states == [Running("a/b", 12, 0, "ended")]
    rig.hear(Reconcile("a/b", FENCE, 1), "m2")
    rig.forget()
    rig.later(SECOND)
    assert [speak.to for speak in rig.said if speak.message == finished] == ["m2"]
    rig.later(STORED_OFFERED_NS)

    assert (rig.states, [key for key in rig.disk if key.startswith("result/")]) == ([], [])


def test_of_very_many_results_of_an_earlier_life_some_are_forgotten_and_broken_ones_too() -> None:
    stored = {f"result/job/{number}": b"x" for number in range(STORED_LIMIT + 1)}

    rig = Rig({**stored, "result/nothing": b"x", "result/job/?": b"x", "result/job/7777": b""}, lease=False)

    assert len(rig.states) == STORED_LIMIT == len([key for key in rig.disk if key.startswith("result/")])


def test_a_stop_lets_a_task_finish() -> None:
    rig = Rig()
    cores = rig.running()

    rig.hear(Halt("job", FENCE, 1, "stop"))

    assert rig.all(TellCore) == [TellCore(core, Stop()) for core in cores]
    for core in cores:
        rig.finish(core)
    assert len(rig.all(Finished)) == 1
    rig.hear(Halt("job", FENCE, 1, "stop"))
    assert len(rig.all(Finished)) == 2, "of one that has ended it is said again"


def test_cores_that_do_not_stop_in_time_are_killed() -> None:
    rig = Rig()
    cores = rig.running()
    rig.hear(Halt("job", FENCE, 1, "stop"))

    rig.later(36 * SECOND)

    assert rig.all(KillCore) == [KillCore(core) for core in cores]
    assert len(rig.all(Finished)) > 0


def test_a_kill_leaves_nothing_and_is_confirmed() -> None:
    rig = Rig()
    cores = rig.running()

    rig.hear(Halt("job", FENCE, 1, "kill"))

    assert rig.news == [*(KillCore(core) for core in cores), ShardsNews("job", 1, "killed", "its manager said so")]
    assert rig.all(NoTask) == [NoTask("job", 1, FENCE)]
    assert rig.states == []


def test_a_kill_of_what_has_ended_removes_its_result() -> None:
    rig = Rig()
    rig.ended()
    rig.forget()

    rig.hear(Halt("job", FENCE, 1, "kill"))

    assert ("result/job/1" in rig.disk, rig.shards("killed")) == (False, [])


def test_an_order_for_a_task_that_is_not_here_is_answered() -> None:
    rig = Rig()
    rig.forget()

    rig.hear(Acknowledge("job", FENCE, 5, 1))
    rig.hear(Start("job", FENCE, 5, 0, 0, 0))

    assert rig.said == [Send(CHANNEL, "m1", NoTask("job", 5, FENCE), Lane.RESULTS)] * 2


def test_an_order_for_a_task_that_went_while_it_waited_for_the_disk_is_answered() -> None:
    rig = Rig()
    rig.armed()
    rig.forget()
    rig.disk_waits = True
    rig.hear(Halt("job", LATER_FENCE, 1, "kill"))
    rig.hear(Start("job", LATER_FENCE, 1, 0, 0, 0))
    rig.hear(Halt("job", LATER_FENCE, 1, "stop"))
    rig.write()

    assert rig.all(NoTask) == [NoTask("job", 1, LATER_FENCE)] * 3


def test_jobs_that_were_cancelled_are_stopped_also_when_the_order_did_not_reach_the_worker() -> None:
    rig = Rig()
    cores = rig.running(1)
    rig.running(2, job="other")
    rig.renew(cancelled=("job",))
    rig.renew(cancelled=("job",))

    assert rig.all(TellCore) == [TellCore(core, Stop()) for core in cores]


def test_the_result_of_what_its_worker_stopped_says_that_the_job_is_cancelled() -> None:
    """The manager that leads it may not have heard: to it this would be a task that did all it was asked to."""
    rig = Rig()
    cores = rig.running(1)
    rig.renew(cancelled=("job",))

    for core in cores:
        rig.finish(core)
        rig.exit(core)

    assert decode_result(rig.disk["result/job/1"]).is_cancelled


def test_what_has_ended_of_a_cancelled_job_stays() -> None:
    rig = Rig()
    rig.ended(1)
    rig.forget()

    rig.renew(cancelled=("job",))

    assert (rig.states, rig.said) == ([Running("job", 1, 0, "ended")], [])


def test_what_nobody_waits_for_is_ended_and_forgotten() -> None:
    rig = Rig()
    rig.ended(1)
    rig.running(2)
    rig.armed(3, job="other", count=1)
    rig.later(SECOND, renew=False)

    rig.renew(orphans=("job",))

    assert [(state.job, state.attempt) for state in rig.states] == [("other", 3)]
    assert rig.shards("killed") == [ShardsNews("job", 2, "killed", "its job has ended")]
    assert "result/job/1" not in rig.disk


# A new manager.


def test_a_new_manager_learns_what_there_is_and_gets_every_report_again() -> None:
    rig = Rig()
    finished = rig.ended(1, count=1)
    ended_origin_ns = rig.now
    rig.armed(2, count=1)
    (core,) = rig.running(3, count=1)
    rig.core(core, StepTotals(1, "buy", StepTally(ok=3), True))
    rig.count(core, 5, windows=[Window(0, started=5)])
    rig.later(50 * MILLISECOND)
    rig.hear(Acknowledge("job", FENCE, 3, 1))
    rig.forget()

    rig.disk_waits = True
    rig.hear(Reconcile("job", LATER_FENCE, 8), "m2")
    assert rig.said == [], "the fence comes first"
    rig.write()

    origin_ns = rig.now - 50 * MILLISECOND
    snapshot = WorkerSnapshot(
        "job",
        LATER_FENCE,
        8,
        (
            TaskFacts(
                1, "ended", rig.now - ended_origin_ns + 5, 50 * MILLISECOND + 9, finished.digest, finished.size_bytes
            ),
            TaskFacts(2, "armed"),
            TaskFacts(3, "running", rig.now - origin_ns + 5, rig.now - origin_ns + 9),
        ),
    )
    assert rig.said[0] == Send(CHANNEL, "m2", snapshot, Lane.CONTROL)
    assert [speak.to for speak in rig.said] == ["m2"] * 4
    assert rig.all(Finished) == [finished]
    assert [type(message) for _, message, _ in rig.told()] == [Armed, UnreadStep, Totals]
    (totals,) = rig.totals()
    assert (totals.sequence, totals.tally.started, len(totals.windows)) == (2, 5, 1)


def test_a_manager_that_asks_again_is_only_answered_again() -> None:
    rig = Rig()
    rig.running()
    rig.hear(Reconcile("job", LATER_FENCE, 1), "m2")
    rig.forget()

    rig.hear(Reconcile("job", LATER_FENCE, 2), "m2")

    assert [type(speak.message) for speak in rig.said] == [WorkerSnapshot]


def test_a_manager_of_a_job_the_worker_knows_nothing_of_is_told_so() -> None:
    rig = Rig()

    rig.hear(Reconcile("job", FENCE, 3), "m2")

    assert rig.all(WorkerSnapshot) == [WorkerSnapshot("job", FENCE, 3)]
    assert "fence/job" in rig.disk, "an order of an earlier manager must not be obeyed after that"


def test_a_refusal_is_no_part_of_a_snapshot_and_told_again() -> None:
    rig = Rig(bundles=())
    rig.hear(assign(1, first=9))
    rig.hear(assign(2))
    rig.forget()

    rig.hear(Reconcile("job", LATER_FENCE, 1), "m2")

    assert [facts.attempt for facts in rig.all(WorkerSnapshot)[0].tasks] == [2]
    assert [to for to, _, _ in rig.told()] == ["m2"]


# Smaller things.


def test_it_tells_the_time() -> None:
    rig = Rig()
    rig.forget()

    rig.hear(Sync(4), "m2")

    assert rig.said == [Send(CHANNEL, "m2", Synced(4, rig.now), Lane.CONTROL)]


def test_what_is_said_to_managers_only_is_counted_and_what_others_lead_is_no_news() -> None:
    rig = Rig()

    assert rig.hear(Kept(DIGEST, 0)) == []
    assert rig.hear(Elsewhere("m2")) == []

    assert rig.worker.refused == {"unexpected": 1}


@pytest.mark.parametrize("by_leader", [True, False])
def test_a_worker_that_drains_takes_no_task_and_finishes_what_it_has(by_leader: bool) -> None:
    rig = Rig()
    cores = rig.running()

    def told() -> None:
        if by_leader:
            rig.renew(drain=True)
        else:
            rig.take(rig.worker.drain(rig.now))

    told()
    rig.hear(assign(2))
    assert declined(rig) == ["worker w1 is draining"]
    for core in cores:
        rig.finish(core)
    assert rig.all(Drained) == [], "somebody wants the result"
    rig.later(SECOND, renew=False)
    assert rig.all(Beat)[-1].facts.state == "draining"
    rig.hear(ResultAccepted("job", FENCE, 1))
    told()

    assert rig.all(Drained) == [Drained()]


def test_a_worker_that_was_told_to_drain_stays_so_whatever_the_next_leader_knows_of_it() -> None:
    rig = Rig()
    rig.renew(drain=True)
    rig.renew(drain=False)

    rig.hear(assign())

    assert declined(rig) == ["worker w1 is draining"]
    assert rig.all(Drained) == [Drained()]


def test_an_assignment_that_means_an_earlier_life_is_not_obeyed() -> None:
    rig = Rig()

    rig.hear(assign(boot=8))
    assert (rig.states, declined(rig)) == ([], [])
    assert rig.worker.refused == {"boot": 1}

    rig.hear(assign(boot=9))
    assert [task.attempt for task in rig.states] == [1]


def test_a_worker_that_leaves_says_so_to_every_manager() -> None:
    rig = Rig()

    assert rig.worker.leave(rig.now) == [Send(CHANNEL, name, Goodbye(), Lane.CONTROL) for name in ("m1", "m2")]


# Tasks of dag jobs.


def handed(number: int, **more: Any) -> HandedTask:
    return HandedTask(7 << 32 | number, "job", f"t{number}", "resize", 1, b"null", **more)


def with_handlers(**more: Any) -> Rig:
    """A worker whose first handler core has loaded."""
    rig = Rig(handlers=("etl.py",), **more)
    rig.take(rig.worker.on_handlers_said(rig.now, 1, Loaded(100, ("resize",))))
    rig.forget()
    return rig


def test_a_worker_without_handlers_starts_no_core_for_them() -> None:
    rig = Rig()

    rig.hear(AssignTasks(7, (handed(1),)))

    assert rig.all(StartHandlers) == []
    assert [result.outcome for result in rig.all(Done)[0].results] == ["refused"]


def test_the_handlers_that_were_loaded_are_told_with_a_beat_at_once() -> None:
    rig = Rig(handlers=("etl.py",))
    assert rig.all(Beat)[-1].facts.is_loading and not Rig().worker.facts.is_loading
    assert rig.all(StartHandlers) == [StartHandlers(1)]
    assert rig.all(TellHandlers) == [TellHandlers(1, Load(("etl.py",), 1, "w1"))]
    rig.forget()

    rig.take(rig.worker.on_handlers_said(rig.now, 1, Loaded(100, ("resize",))))

    assert rig.news == [HandlersLoaded(("resize",))]
    assert [(speak.to, speak.message.facts.handlers) for speak in rig.said if isinstance(speak.message, Beat)] == [
        ("m1", ("resize",)),
        ("m2", ("resize",)),
    ]
    assert not rig.all(Beat)[-1].facts.is_loading
    rig.forget()
    rig.worker.set_facts(FACTS)
    rig.later(SECOND)
    assert rig.all(Beat)[-1].facts.handlers == ("resize",), "whatever the shell says of the rest"


def test_handlers_that_cannot_be_loaded_make_a_worker_degraded_until_they_can() -> None:
    rig = Rig(handlers=("etl.py",))
    rig.forget()

    rig.take(rig.worker.on_handlers_said(rig.now, 1, Loaded(100, problem="etl.py:3: SyntaxError")))

    facts = rig.all(Beat)[-1].facts
    assert (facts.state, facts.reason, facts.handlers) == ("degraded", "etl.py:3: SyntaxError", ())
    assert not facts.is_loading
    assert rig.all(HandlersBroken) == [HandlersBroken("etl.py:3: SyntaxError")]
    rig.worker.set_facts(WorkerFacts(4, state="degraded", reason="the disk is almost full"))
    rig.later(SECOND)
    assert rig.all(Beat)[-1].facts.reason == "the disk is almost full; etl.py:3: SyntaxError"
    rig.worker.set_facts(FACTS)

    rig.later(10 * SECOND)
    core = rig.all(StartHandlers)[-1].core
    rig.take(rig.worker.on_handlers_said(rig.now, core, Loaded(100, ("resize",))))

    facts = rig.all(Beat)[-1].facts
    assert (facts.state, facts.reason, facts.handlers) == ("healthy", "", ("resize",))


def test_tasks_are_run_and_their_results_told_until_they_are_taken() -> None:
    rig = with_handlers()
    rig.hear(TaskInputs(7, 7 << 32 | 1, {"a": b"1"}))
    rig.hear(AssignTasks(7, (handed(1, fed=1), handed(2))))
    assert rig.disk["epoch"] == b"7"
    assert [
        len(run.tasks) for run in (order.message for order in rig.all(TellHandlers)) if isinstance(run, RunTasks)
    ] == [2]

    rig.take(rig.worker.on_handlers_said(rig.now, 1, Said((HandlerProgress(7 << 32 | 2, b"1"),))))
    rig.take(rig.worker.on_handlers_said(rig.now, 1, Ran((TaskResult(7 << 32 | 1, "completed", b"1"),))))
    rig.hear(AskHeld(7))
    rig.hear(Recall(7, (7 << 32 | 2,)))
    rig.take(rig.worker.on_handlers_exit(rig.now, 1, ExitFacts("exit", 3)))
    assert [type(speak.message) for speak in rig.said] == [TaskProgress, Done, Held, Done]
    assert [result.outcome for done in rig.all(Done) for result in done.results] == ["completed", "cancelled"]
    rig.forget()
    rig.later(SECOND)
    assert [len(done.results) for done in rig.all(Done)] == [2]
    rig.hear(ResultsStored(7, (7 << 32 | 1, 7 << 32 | 2)))
    rig.forget()

    rig.later(2 * SECOND)
    assert rig.all(Done) == []


def test_a_beat_tells_whom_the_worker_obeys_in_each_partition() -> None:
    first, third = StoreLife(1, 2, 3, 0, 16), StoreLife(1, 2, 4, 3, 16)
    rig = Rig()
    rig.hear(AskHeld(7, first))
    rig.hear(AskHeld(9, third), sender="m2")
    rig.later(2 * SECOND)

    beat = rig.all(Beat)[-1]
    assert (beat.epoch, beat.of, beat.others) == (7, first, (ObeyedLife(9, third),))


def test_the_epoch_outlives_the_worker() -> None:
    rig = with_handlers()
    rig.hear(AskHeld(7))

    again = with_handlers(disk=rig.disk)
    again.hear(AssignTasks(6, (handed(1),)))

    assert again.worker.handlers.refused == {"epoch": 1}


def test_when_the_lease_ends_what_handlers_run_is_killed() -> None:
    rig = with_handlers()
    rig.hear(AssignTasks(7, (handed(1),)))
    rig.forget()

    rig.later(6 * SECOND, renew=False)

    assert EndHandlers(1, hard=True) in rig.news
    assert not rig.worker.handlers.has_lease
    rig.take(rig.worker.on_handlers_exit(rig.now, 1, ExitFacts("SIGKILL")))
    assert [(result.outcome, result.cause) for done in rig.all(Done) for result in done.results] == [
        ("refused", "lease")
    ]
    rig.renew()
    assert rig.worker.handlers.has_lease


def test_a_task_that_was_handed_under_an_earlier_lease_is_refused_and_told() -> None:
    rig = with_handlers()
    first = rig.worker.handlers.first_beat
    rig.later(3 * SECOND)
    assert rig.worker.handlers.first_beat == first, "it is the same lease"
    late = rig.all(Beat)[-1].number
    rig.later(8 * SECOND, renew=False)
    rig.renew()
    present = rig.worker.handlers.first_beat
    assert present > late > first
    rig.forget()

    rig.hear(AssignTasks(7, (handed(1),), rig.worker.boot, late))
    rig.hear(AssignTasks(7, (handed(2),), rig.worker.boot + 1, present))
    rig.hear(AssignTasks(7, (handed(3),), rig.worker.boot, present))

    assert [(result.fence & 0xFF, result.cause) for done in rig.all(Done) for result in done.results] == [(1, "lease")]
    assert rig.worker.handlers.refused == {"lease": 1, "boot": 1}
    rig.hear(AskHeld(7))
    assert sorted([fence & 0xFF for fence in rig.all(Held)[0].fences]) == [1, 3], "the third is to be run"


def test_without_a_lease_no_task_is_begun() -> None:
    rig = with_handlers(lease=False)

    rig.hear(AssignTasks(7, (handed(1),)))

    assert [(result.outcome, result.cause) for done in rig.all(Done) for result in done.results] == [
        ("refused", "lease")
    ]


def test_handlers_have_the_cores_that_load_tasks_leave_them() -> None:
    rig = with_handlers()
    assert rig.worker.handlers.room.cores.limit == 4

    cores = rig.running(1, count=3)
    assert rig.worker.handlers.room.cores.limit == 1
    for core in cores:
        rig.finish(core)
        rig.exit(core)

    assert rig.worker.handlers.room.cores.limit == 4
    rig.worker.set_facts(WorkerFacts(6))
    rig.later(SECOND)
    assert rig.worker.handlers.room.cores.limit == 6


def test_a_worker_has_drained_when_its_handlers_have_and_their_results_were_taken() -> None:
    rig = with_handlers()
    rig.hear(AssignTasks(7, (handed(1),)))
    rig.take(rig.worker.drain(rig.now))
    assert rig.worker.handlers.is_draining
    rig.take(rig.worker.on_handlers_said(rig.now, 1, Ran((TaskResult(7 << 32 | 1, "completed"),))))
    assert rig.all(Drained) == []

    rig.hear(ResultsStored(7, (7 << 32 | 1,)))

    assert rig.all(Drained) == [Drained()]


# Tasks that share cores.


def starts(rig: Rig) -> dict[int, tuple[str, int]]:
    """Of each attempt at a shard: its workflow, and its process."""
    return {start.attempt: (rig.arms[start.attempt].workflow, start.process) for start in rig.all(StartCore)}


def test_tasks_of_one_job_with_a_seat_in_common_share_its_process() -> None:
    rig = Rig(facts=WorkerFacts(2))

    rig.armed(1, seats=(0, 1))
    rig.armed(2, count=1, seats=(1,))

    assert starts(rig) == {1: ("Shop", 1), 2: ("Shop", 2), 3: ("Shop", 2)}
    assert rig.worker.shards.pool.free == 0
    assert [len(held.seats) for held in rig.worker.shards] == [2, 1]


def test_seats_of_different_jobs_are_different_cores() -> None:
    rig = Rig(facts=WorkerFacts(1))
    rig.armed(1, count=1, seats=(0,))

    rig.hear(assign(1, job="other", count=1, seats=(0,)))

    assert rig.all(TaskDeclined)[-1].reason == "worker w1 has 0 cores free, and 1 are asked for"


def test_a_shared_core_is_given_to_others_when_its_last_shard_has_ended() -> None:
    rig = Rig(facts=WorkerFacts(1))
    rig.running(1, count=1, seats=(0,))
    rig.running(2, count=1, seats=(0,))
    rig.finish(1)
    rig.exit(1)
    rig.finish(2)
    rig.hear(assign(1, job="other", count=1, seats=(0,)))
    assert starts(rig) == {}, "the process of what ended last is still there"

    rig.exit(2)

    assert starts(rig) == {3: ("Shop", 3)}


def test_the_core_of_a_shard_that_has_ended_is_told_and_given_to_others_while_the_rest_of_its_task_runs() -> None:
    rig = Rig(facts=WorkerFacts(2))
    first, second = rig.running(1, seats=(0, 1))

    rig.finish(second)
    rig.exit(second)
    rig.later(SECOND)

    assert rig.totals()[-1].ended == (1,)
    assert [(running.cores, running.state) for running in rig.states] == [(1, "running")]
    rig.forget()
    (other,) = rig.armed(1, job="other", count=1, seats=(0,))
    assert starts(rig) == {other: ("Shop", other)} and not rig.all(TaskDeclined)
    rig.finish(first)
    assert [digest.attempt for digest in rig.all(Finished)] == [1]


def test_the_death_of_a_shared_process_is_a_loss_of_each_task_in_it_and_both_go_on() -> None:
    rig = Rig(facts=WorkerFacts(1))
    rig.running(1, count=1, seats=(0,))
    rig.running(2, count=1, seats=(0,))
    rig.later(SECOND)
    rig.forget()

    rig.exit(1)
    rig.exit(2)

    assert len({process for _, process in starts(rig).values()}) == 1 and len(starts(rig)) == 2
    for core in starts(rig):
        rig.core(core, Armed())
    for core in starts(rig):
        rig.count(core)
    rig.later(SECOND)
    gaps = {report.attempt: decode_unread(report.contents[-1]) for report in rig.all(Report)}
    assert {attempt: len(totals.gaps) for attempt, totals in gaps.items() if isinstance(totals, Totals)} == {1: 1, 2: 1}


def test_a_task_that_names_too_few_cores_for_its_shards_is_refused() -> None:
    rig = Rig()

    rig.hear(assign(1, count=2, seats=(1, 1)))

    (_, refused, _) = rig.told()[-1]
    assert refused == Refused("setup", "1 cores are named for 2 shards")


# What the test prints.


def lines_of(rig: Rig) -> list[tuple[int, tuple[str, ...]]]:
    return [(message.first, message.lines) for message in rig.all(LogLines)]


def test_what_cores_print_is_told_together_and_once() -> None:
    rig = Rig()
    one, other = rig.running()

    rig.take(rig.worker.on_core_lines(rig.now, one, ["a", "b"]))
    rig.take(rig.worker.on_core_lines(rig.now, other, ["c"]))
    assert lines_of(rig) == []

    rig.later(LINES_FLUSH_NS)
    assert lines_of(rig) == [(0, ("a", "b", "c"))]
    assert {(speak.to, speak.lane) for speak in rig.said if isinstance(speak.message, LogLines)} == {
        ("m1", Lane.STATISTICS)
    }

    rig.later(SECOND)
    assert len(lines_of(rig)) == 1


def test_many_lines_are_told_a_part_at_a_time() -> None:
    rig = Rig()
    one, _ = rig.running()

    rig.take(rig.worker.on_core_lines(rig.now, one, [str(number) for number in range(150)]))
    rig.later(LINES_FLUSH_NS)
    assert [len(lines) for _, lines in lines_of(rig)] == [100]

    rig.later(LINES_FLUSH_NS)
    assert [len(lines) for _, lines in lines_of(rig)] == [100, 50]


def test_what_was_printed_is_told_before_the_task_has_finished() -> None:
    rig = Rig()
    cores = rig.running()
    rig.take(rig.worker.on_core_lines(rig.now, cores[0], ["the last words"]))

    for core in cores:
        rig.finish(core)

    kinds = [type(speak.message) for speak in rig.said if isinstance(speak.message, LogLines | Finished)]
    assert kinds == [LogLines, Finished]


def test_what_a_core_without_a_task_prints_is_nobodys() -> None:
    rig = Rig()

    rig.take(rig.worker.on_core_lines(rig.now, 99, ["a"]))
    rig.later(SECOND)

    assert lines_of(rig) == []


def test_a_new_manager_is_told_the_lines_again() -> None:
    rig = Rig()
    one, _ = rig.running()
    rig.take(rig.worker.on_core_lines(rig.now, one, ["a"]))
    rig.later(LINES_FLUSH_NS)
    rig.forget()

    rig.hear(Reconcile("job", LATER_FENCE, 1), "m2")
    rig.later(LINES_FLUSH_NS)

    assert lines_of(rig) == [(0, ("a",))]


def test_an_attempt_that_is_given_up_before_its_process_starts_has_nothing_to_run_and_frees_its_core() -> None:
    rig = Rig()
    rig.hear(assign(count=4))
    assert rig.worker.shards.pool.free == 0

    rig.hear(Halt("job", FENCE, 1, "kill"))

    assert [rig.worker.shards.arm_for(attempt) for attempt in rig.arms] == [None] * 4
    for attempt in rig.arms:
        rig.exit(attempt)
    assert rig.worker.shards.pool.free == 4


# Handlers that travel with dag jobs.


def code() -> AssignTasks:
    bundle = HandedBundle(DIGEST, len(BUNDLE), ("etl.py",), SIGNER.sign(DIGEST))
    return AssignTasks(7, (handed(1),), bundle=bundle)


def taking(**more: Any) -> Rig:
    return Rig(facts=msgspec.structs.replace(FACTS, accepts_code=True), **more)


def test_a_worker_tells_that_it_takes_code_with_every_beat() -> None:
    assert [beat.facts.accepts_code for beat in taking(lease=False).all(Beat)] == [True, True]
    assert [beat.facts.accepts_code for beat in Rig(lease=False).all(Beat)] == [False, False]


def test_code_of_a_task_is_fetched_put_on_disk_and_then_unpacked_by_a_core() -> None:
    rig = taking(bundles=())
    rig.hear(code())
    assert rig.all(NeedBundle) == [NeedBundle(DIGEST, len(BUNDLE))]
    assert rig.all(StartHandlers) == []

    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), rig.said[-1].to)

    (order,) = rig.all(TellHandlers)
    assert order.message == Load(("etl.py",), 1, "w1", BundleSource(f"blob:{DIGEST}", DIGEST, "etl.py", "", {}))


def test_code_that_no_manager_gives_sends_its_task_elsewhere() -> None:
    rig = taking(bundles=())
    rig.hear(code())
    rig.later(61 * SECOND)
    (result,) = rig.all(Done)[0].results
    assert (result.outcome, result.cause) == ("refused", "bundle")
    assert result.error == "worker w1 could not get the code of its job: no manager gave all of it within 60 s"


def test_code_that_nobody_could_have_is_not_waited_for() -> None:
    rig = taking(bundles=())
    rig.worker.shards.bundles.pool.set_peers(())
    rig.hear(code())
    (result,) = [result for done in rig.all(Done) for result in done.results]
    assert result.error == "worker w1 could not get the code of its job: no node is known that could have it"


def test_a_bundle_that_a_test_and_a_task_need_is_fetched_once_for_both() -> None:
    rig = taking(bundles=())
    rig.hear(assign())
    rig.hear(code())
    assert len(rig.all(WantBlob)) == 1
    rig.hear(Piece(DIGEST, 0, len(BUNDLE), BUNDLE), rig.said[-1].to)
    assert len(rig.all(StartCore)) == 2 and len(rig.all(StartHandlers)) == 1


def test_code_in_use_is_not_what_gives_way_to_other_bundles() -> None:
    old = tuple(f"{number:064x}" for number in range(1, KEPT_LIMIT))
    rig = taking(bundles=(DIGEST, *old))
    rig.hear(code())
    other = b"another bundle"
    digest = sha256(other).hexdigest()
    rig.disk_waits = True
    rig.hear(assign(bundle=BundleFacts(digest, len(other), b"signed", "shop.py")))
    rig.write()
    rig.disk_waits = True
    rig.hear(Piece(digest, 0, len(other), other), rig.said[-1].to)
    (write,) = [one for one in rig.held_back if isinstance(one, PersistBlob)]
    assert write.removed == (old[0],)


# Taking work again.


def test_a_worker_that_was_drained_takes_work_again_when_it_is_told_so() -> None:
    rig = Rig(handlers=("h.py",))
    rig.renew(drain=True)
    rig.hear(assign())
    assert declined(rig) == ["worker w1 is draining"]
    rig.forget()

    rig.renew(undrain=True)

    assert rig.all(Undrained) == [Undrained()]
    assert rig.all(Beat)[-1].facts.state == "healthy", "the leader hears of it at once"
    rig.hear(assign(2))
    assert declined(rig) == []
    assert not rig.worker.handlers.is_draining
    rig.renew(undrain=True)
    assert rig.all(Undrained) == [Undrained()], "it was told already"


def test_an_order_to_drain_that_was_overtaken_by_its_reverse_takes_nothing_back() -> None:
    rig = Rig()
    rig.later(SECOND, renew=False)
    rig.renew(drain=True)
    rig.later(SECOND, renew=False)
    late = rig.beat - 1
    rig.renew(undrain=True)

    rig.renew(drain=True, number=late)

    assert not rig.worker.is_draining
    rig.renew("m2", LATER_TOKEN, drain=True, number=late)
    assert rig.worker.is_draining, "a later leader's order is later"


def test_a_worker_that_ends_is_not_told_to_take_work_again() -> None:
    rig = Rig()
    rig.take(rig.worker.drain(rig.now))
    rig.later(SECOND)
    beat = rig.all(Beat)[-1]
    assert (beat.leaves, beat.facts.state, beat.facts.reason) == (True, "draining", "it was told to end")

    rig.renew(undrain=True)

    assert rig.worker.is_draining and rig.all(Undrained) == []


def test_a_worker_that_was_drained_by_order_says_so_and_tells_again_when_it_is_to_end() -> None:
    rig = Rig()
    rig.renew(drain=True)
    assert rig.all(Drained) == [Drained()]
    rig.later(SECOND)
    assert (rig.all(Beat)[-1].leaves, rig.all(Beat)[-1].facts.reason) == (False, "it was told to drain")

    rig.take(rig.worker.drain(rig.now))

    assert rig.all(Drained) == [Drained(), Drained()], "whoever ends it waits for that"


# Cores that do not turn.


def process_of(rig: Rig, core: int) -> int:
    return rig.worker.shards.pool.process_of(core)


def turn(rig: Rig, *cores: int) -> None:
    for core in cores:
        rig.take(rig.worker.on_core_turned(rig.now, process_of(rig, core)))


def quiet_for(rig: Rig, seconds: int, *turning: int) -> None:
    """The others do not turn."""
    for _ in range(seconds):
        rig.later(SECOND)
        turn(rig, *turning)


def test_a_core_that_does_not_turn_is_told_with_its_stack_and_the_others_go_on() -> None:
    rig = Rig()
    blocked, fine = rig.running()
    rig.core(blocked, Hello(4711, "3.11", ""))
    turn(rig, blocked, fine)
    rig.forget()

    quiet_for(rig, 11, fine)

    process = process_of(rig, blocked)
    assert rig.all(CoreQuiet) == [CoreQuiet("job", ("Shop",), 4711, "stalled", 10 * SECOND)]
    assert rig.all(LookAtCore) == [LookAtCore(process)]
    rig.take(rig.worker.on_core_look(rig.now, process, 0, ""))
    rig.take(rig.worker.on_core_look(rig.now, process, SECOND, 'File "shop.py", line 9 in go'))
    assert rig.all(CoreSeen) == [CoreSeen("job", 4711, 'File "shop.py", line 9 in go')]
    (told,) = rig.all(Beat)[-1].quiet
    assert (told.job, told.workflows, told.pid, told.state) == ("job", ("Shop",), 4711, "stalled")
    assert (told.quiet_ms, told.stack) == (11_000, 'File "shop.py", line 9 in go')
    rig.hear(assign(2, job="other"))
    assert declined(rig) == [] and len(rig.arms) == 4, "the other cores are usable"

    quiet_for(rig, 20, fine)
    assert [one.state for one in rig.all(CoreQuiet)] == ["stalled", "stuck"]
    assert rig.all(Beat)[-1].quiet[0].state == "stuck"
    turn(rig, blocked)
    assert rig.all(CoreQuiet)[-1] == CoreQuiet("job", ("Shop",), 4711, "turns", 31 * SECOND)
    assert rig.all(Beat)[-1].quiet == ()
    assert rig.all(KillCore) == []


def test_how_long_a_core_is_quiet_is_told_as_of_the_beat_and_not_of_the_look_before() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    turn(rig, core)
    quiet_for(rig, 12)
    rig.later(SECOND // 2)

    rig.take(rig.worker.beat_now(rig.now))

    assert rig.all(Beat)[-1].quiet[0].quiet_ms == 12_500


def test_a_core_that_waits_forty_seconds_for_its_target_is_healthy() -> None:
    rig = Rig()
    cores = rig.running()
    turn(rig, *cores)

    quiet_for(rig, 40, *cores)

    assert rig.all(CoreQuiet) == rig.all(LookAtCore) == rig.all(KillCore) == []
    assert all(beat.quiet == () for beat in rig.all(Beat))


def test_a_core_whose_reports_are_heard_is_not_quiet() -> None:
    """One whose worker lags in reading them does not say besides that it turns."""
    rig = Rig()
    (core,) = rig.running(count=1)
    turn(rig, core)

    for _ in range(70):
        quiet_for(rig, 1)
        rig.count(core, 1)

    assert rig.all(CoreQuiet) == rig.all(KillCore) == []


def test_a_report_ends_the_silence_of_a_core() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    turn(rig, core)
    quiet_for(rig, 12)

    rig.count(core, 1)

    assert [one.state for one in rig.all(CoreQuiet)] == ["stalled", "turns"]
    assert rig.all(Beat)[-1].quiet == ()


def test_a_core_that_never_said_that_it_turns_is_not_judged_by_its_reports() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    rig.count(core, 1)

    quiet_for(rig, 70)

    assert rig.all(CoreQuiet) == rig.all(KillCore) == []


def test_a_core_whose_deadline_is_over_is_killed_and_replaced_in_another_process() -> None:
    rig = Rig()
    blocked, fine = rig.running()
    rig.count(blocked, 3)
    rig.core(blocked, Hello(4711, "3.11", ""))
    turn(rig, blocked, fine)
    before = process_of(rig, blocked)
    rig.forget()

    quiet_for(rig, 60, fine)

    assert rig.all(KillCore) == [KillCore(blocked)]
    assert rig.all(CoreGivenUp) == [CoreGivenUp("job", ("Shop",), 4711, 60 * SECOND)]
    (start,) = rig.all(StartCore)
    assert start.process not in (before, process_of(rig, fine))
    rig.exit(blocked)
    rig.core(start.attempt, Armed())
    (go,) = [tell.message for tell in rig.all(TellCore) if isinstance(tell.message, Go)]
    assert isinstance(go, Go)
    rig.finish(start.attempt)
    rig.finish(fine)
    result = decode_result(rig.worker.shards.get("job", 1).content)  # type: ignore[union-attr]
    (gap,) = result.gaps
    assert gap.cause == "did not turn its event loop for 60 s and was killed"


def test_a_core_that_computes_gets_more_time() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    turn(rig, core)

    for second in range(1, 91):
        quiet_for(rig, 1)
        rig.take(rig.worker.on_core_look(rig.now, process_of(rig, core), second * SECOND, "computes"))
        assert (rig.all(KillCore) == []) == (second < 90), second


@pytest.mark.parametrize("stage", ["armed", "measures nothing"])
def test_a_core_that_gets_ready_or_measures_nothing_has_another_deadline(stage: str) -> None:
    """That of getting ready, and that of its workflow: what it does may be what it is for."""
    rig = Rig()
    (core,) = rig.armed(count=1) if stage == "armed" else rig.running(count=1, is_test=False)
    turn(rig, core)

    quiet_for(rig, 100)

    assert rig.all(KillCore) == [] and rig.all(Beat)[-1].quiet[0].state == "stuck"


def test_cores_that_share_a_process_share_its_silence() -> None:
    rig = Rig()
    (first,) = rig.running(1, count=1, seats=(0,))
    (second,) = rig.running(2, count=1, seats=(0,))
    assert process_of(rig, first) == process_of(rig, second)
    turn(rig, first)
    rig.forget()

    quiet_for(rig, 60)

    assert rig.all(KillCore) == [KillCore(first), KillCore(second)]
    one, other = rig.all(StartCore)
    assert one.process == other.process != 1, "what takes their place is as close"


def test_a_core_that_is_about_to_end_goes_with_the_one_that_shares_its_process() -> None:
    rig = Rig(turn_limits=TurnLimits(stalled_ns=SECOND, stuck_ns=SECOND, deadline_ns=2 * SECOND))
    (ending,) = rig.running(1, count=1, seats=(0,))
    (blocked,) = rig.running(2, count=1, seats=(0,))
    assert process_of(rig, ending) == process_of(rig, blocked)
    process = process_of(rig, blocked)
    turn(rig, blocked)
    rig.finish(ending)
    rig.forget()

    quiet_for(rig, 2)

    assert rig.all(KillCore) == [KillCore(blocked)]
    (start,) = rig.all(StartCore)
    assert start.process != process, "nothing takes the place of what had ended"


def test_last_words_of_a_process_that_is_gone_mean_nothing() -> None:
    rig = Rig()
    (core,) = rig.running(count=1)
    process = process_of(rig, core)
    turn(rig, core)
    quiet_for(rig, 12)
    assert rig.all(Beat)[-1].quiet

    rig.finish(core)
    rig.exit(core)
    rig.take(rig.worker.on_core_turned(rig.now, process))
    rig.take(rig.worker.on_core_look(rig.now, process, 1, "stack"))
    rig.later(SECOND)

    assert rig.all(Beat)[-1].quiet == () and rig.all(CoreSeen) == []


def test_of_a_core_that_is_about_to_end_nobody_is_told_that_it_is_quiet() -> None:
    rig = Rig(turn_limits=TurnLimits(stalled_ns=2 * SECOND))
    (core,) = rig.running(count=1)
    turn(rig, core)
    rig.finish(core)

    quiet_for(rig, 2)

    assert rig.all(Beat)[-1].quiet == ()


def test_a_beat_tells_how_many_tasks_run_and_what_cores_they_take() -> None:
    rig = with_handlers()
    rig.hear(AssignTasks(7, (handed(1), handed(2), handed(3))))

    rig.later(SECOND)

    assert rig.all(Beat)[-1].tasks == TaskLoad(running=3, waiting=0, cores=1)


# How it does


def beats(rig: Rig) -> list[Beat]:
    return [said.message for said in rig.said if isinstance(said.message, Beat) and said.to == "m1"]


def test_a_worker_says_how_it_does_with_every_beat() -> None:
    rig = Rig(facts=msgspec.structs.replace(FACTS, load_percent=140))
    assert beats(rig)[0].condition == NodeCondition(4, 4, 0, 100)

    rig.worker.memory_percent = 55
    rig.running()
    rig.later(2 * SECOND)

    assert beats(rig)[-1].condition == NodeCondition(4, 2, 0, 100, 55)


def test_a_worker_whose_beats_are_late_says_so_until_they_are_punctual_again() -> None:
    rig = Rig()
    rig.later(3 * SECOND)
    said = []
    for _ in range(2):
        rig.now = rig.worker.next_tick_at + 5 * SECOND
        rig.take(rig.worker.tick(rig.now))
        said.append(beats(rig)[-1].condition.health)
        rig.renew()
    rig.later(6 * SECOND)

    assert said == [Degradation.NORMAL, Degradation.CRITICAL], "one stall is over when it is told of"
    healths = [one.condition.health for one in beats(rig)]
    assert healths[-1] == Degradation.NORMAL and Degradation.CRITICAL in healths


def test_what_came_between_its_making_and_its_start_is_no_delay_of_a_worker() -> None:
    rig = Rig(lease=False)
    worker = Worker("w1", 9, {}, FACTS, ("m1",), Random(3), rig.now, signers=Signers(GROUP), variables=TRUST.variables)

    said = worker.start(rig.now + 60 * SECOND)

    (beat,) = [one.message for one in said if isinstance(one, Send) and isinstance(one.message, Beat)]
    assert beat.condition.health == Degradation.NORMAL
