"""A manager on the network: a member that also keeps jobs. Connects the pure manager to its disk. Decides nothing."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, get_args

import msgspec

from talka.client.dag_kind import DagKind
from talka.client.kinds import JobDirectory
from talka.client.load_kind import LoadKind
from talka.client.requests import BundleMissing
from talka.clock import boottime_ns, both_clocks, cpu_ns, realtime_ns
from talka.cluster.effects import PersistBlob, Send, Transmit
from talka.cluster.leadership.election import Phase
from talka.cluster.leadership.lease_terms import LeaseDiffers, OtherLease, OwnLease
from talka.cluster.membership.members import Member
from talka.control.blobs.replicated_blobs import BlobFailed, BlobKept, BlobReady, LoadBlob, ServeBlob, piece_of
from talka.control.clients.overload import Level
from talka.control.jobs.effects import DocumentWanted, Forwarded, JobLate, Updated, WatchFailed, WorkerLost
from talka.control.jobs.entries import PREFIX
from talka.control.jobs.job_checkpoint import closed_of
from talka.control.load.core_effects import LateNews
from talka.control.manager import Manager, PassedOn
from talka.control.member.admin_queries import STATES, MemberFacts
from talka.control.member.announcement import Announcement, ManagerPhase, standing_of, zone_of
from talka.control.member.composite import JobsPart, MemberEffect, QuestionAsked, ToNeighbour
from talka.control.member.leader_calls import CallEnded
from talka.control.member.voter import Voter
from talka.control.tasks.clock_watch import ClockWatch
from talka.control.tasks.paced_frames import RoomWanted
from talka.control.tasks.schedules import jump_text
from talka.control.tasks.store_effects import (
    CallAnswered,
    Commit,
    DagEnded,
    RaiseEpoch,
    ReadOutputs,
    WorkerDropped,
    WorkerTooOld,
)
from talka.errors import Invalid, TalkaError
from talka.nodes.auditing import put_down_change, put_down_forwarded
from talka.nodes.control import ManagerControl
from talka.nodes.dags.dag_opening import open_dags
from talka.nodes.dags.dag_service import DagService, ServiceLimits
from talka.nodes.dags.notice_sender import NotifyOptions
from talka.nodes.dags.store_upkeep import UpkeepLimits
from talka.nodes.job_events import JobNews, job_event_of
from talka.nodes.load_sampling import LoadSampler
from talka.nodes.member import MemberNode, MemberOptions
from talka.nodes.member_events import Event
from talka.nodes.runtime import Counts
from talka.nodes.trust import ManagerTrust
from talka.report.building import Meta, build
from talka.store.dags.opening import kind_of
from talka.store.dags.records import StoreLost, StoreTaken
from talka.store.files.blobs import Blobs
from talka.units import SECOND
from talka.version import VERSION
from talka.wire.asking import AskAnswer, AskLease, ChangeLease, encode_content
from talka.wire.condition import NodeCondition
from talka.wire.entries import JobEntry, decode_checkpoint, decode_entry
from talka.wire.jobs import ManagerAt
from talka.wire.orders import JobOrder
from talka.wire.security.bundles import sign_for_earlier
from talka.wire.views import CertificateView, instant_text
from talka.work.dags.dag import CodeBundle
from talka.work.lifecycle import JobState
from talka.work.retention import MANAGER_KEEPS, Keep, ManagerKeeps

SAMPLE_S: Final = 0.2
ANNOUNCED_OVER_NS: Final = 5 * SECOND
"""Others are told what it uses over so long."""
SWEEP_S: Final = 600.0
YOUNG_S: Final = 3600.0
"""A blob is put before the job that names it: one that is younger than this is not one too many."""
STEADY_NS: Final = 3600 * SECOND
"""A clock that was set a shorter time ago may be set again: nothing is dropped for being old by it."""
HAND_OVER_S: Final = 5.0
WITHIN_SHARE: Final = 0.8
"""Of the time that an asker waits: so that it is told why there is no answer."""
LINGER_S: Final = 10.0
"""For so long a manager whose store was taken still answers, that it was."""


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    member: MemberOptions
    api: str = ""
    """Where clients reach its API, for others to pass on."""
    store: str = ""
    """Where dag jobs are kept; empty: this manager takes none."""
    notify_secret: str = ""
    """With which notices of the ends of dag jobs are signed; empty: nobody is told."""
    may_notify_private: bool = False
    own_lease: OwnLease = OwnLease()
    """Of workers: how long one may be silent before its work is given to others. The register's counts; one that
    was told another is refused."""
    keeps: ManagerKeeps = MANAGER_KEEPS


class ManagerNode(MemberNode[PassedOn]):
    """One manager, from its files to its sockets. Its API is served by whoever starts it, through `control`."""

    def __init__(self, options: ManagerOptions, on_event: Callable[[Event], None]) -> None:
        self.evictions = self.clock_jumps = 0
        self.late: dict[LateNews, int] = dict.fromkeys(get_args(LateNews), 0)
        """Times that workflows of its jobs were given more time, or warned."""
        self._used_ns, self._used_at = cpu_ns(), boottime_ns()
        """What it had used, and when: at the last look at what others are told of it."""
        self.clock = ClockWatch(*both_clocks())
        self._api = options.api
        self._own_lease = options.own_lease
        self._keeps = options.keeps
        self._store_kind = kind_of(options.store) if options.store else None
        if self._store_kind is not None and len(options.member.voters) > 1 and not self._store_kind.is_shared:
            raise Invalid(
                f"dag jobs are kept in {self._store_kind.name} by one manager alone: leave --store out, or make this "
                "manager the only voter"
            )
        self._store_url = options.store
        self._notices = NotifyOptions(options.notify_secret.encode(), options.may_notify_private)
        self.dags: DagService | None = None
        super().__init__(options.member, on_event)
        self.control = ManagerControl(self)
        self.kinds = JobDirectory(LoadKind(self.control))
        self._load = LoadSampler(
            SAMPLE_S,
            oldest_ns=self._oldest_ns,
            took_ns=self.control.times.take,
            is_starting=lambda: self.dags is not None and not self.dags.is_loaded,
        )
        if self.member.announcer is not None:
            self.member.announcer.api = options.api

    async def open_store(self) -> None:
        """Before `run`, and before its API is served, where it was given a store. What cannot be opened or had leaves
        nothing behind."""
        if self._store_kind is None:
            return
        with self.runtime.opening():
            store = await self._store_kind.open(self._store_url)
            folder = self.runtime.folder
            try:
                self.dags = await open_dags(
                    self,
                    store,
                    folder.path,
                    folder.identity,
                    self.runtime.tell,
                    self._on_store_broken,
                    notices=self._notices,
                    datacenter=self.options.datacenter,
                    limits=ServiceLimits(upkeep=UpkeepLimits(self._keeps)),
                )
            except BaseException:
                await store.close()
                raise
        self.kinds = JobDirectory(DagKind(self.dags), LoadKind(self.control))

    def _on_store_broken(self, error: TalkaError) -> None:
        """What is in memory may be ahead of what can ever be kept: start again from the store.

        One that was lost is another's, or not where it was. Clients are told so: for a while, and until somebody has
        put it back, since a new start would begin with an empty one."""
        if not isinstance(error, StoreLost):
            self.runtime.fail(error)
            return
        for keeper in list(self.manager.dags):
            self.manager.drop_keeper(boottime_ns(), keeper.partition.number)
        if isinstance(error, StoreTaken):
            asyncio.get_running_loop().call_later(LINGER_S, self.runtime.fail, error)

    def _hears(self) -> bool:
        """Nobody is heard while another manager may have the store: workers that get no answer let go of their tasks in
        time."""
        return self.dags is None or not self.dags.is_doubtful(boottime_ns())

    def _make_part(self, voter: Voter | None) -> JobsPart[PassedOn]:
        if voter is None:
            name = self.options.name
            raise Invalid(f"a manager is a voter, and {name} is none of {', '.join(self.options.voters) or 'them'}")
        self._blobs = Blobs(self.folder / "blobs")
        options = self.options
        self._trust = ManagerTrust(options, self.folder)
        if self.runtime.certificates is not None:
            self.runtime.certificates.on_renewed.append(self._trust.use)
        self.manager = Manager(
            name=options.name,
            boot=self.runtime.boot,
            voter=voter,
            rng=self.runtime.rng,
            wall_offset_ns=self.clock.offset_ns,
            keys=self._trust.keys,
            signer=self._trust.named,
            datacenter=options.datacenter,
            managers=self._managers,
            blobs=self._blobs.digests(),
            announced=self._announced_by,
            health=lambda: self._membership.health.level,
        )
        return self.manager

    def _announced_by(self, name: str) -> Announcement | None:
        """What another member said of itself last."""
        other = self._membership.get(name)
        return None if other is None else standing_of(other)

    def _announcement(self, now: int) -> tuple[NodeCondition, ManagerPhase]:
        return self.manager.announcement(now)

    def _workers_heard(self, now: int) -> list[MemberFacts]:
        return self.manager.workers_heard(now)

    def _managers(self) -> tuple[ManagerAt, ...]:
        """Those that vote, and where they are; this one first."""
        voters = self.options.voters
        me = self.options
        others = [_where(one) for one in self._membership.alive() if one.name in voters]
        return (ManagerAt(me.name, self.runtime.address, me.zone, me.datacenter, me.region), *others)

    def apis(self) -> dict[str, str]:
        """Where the API of each manager that is here can be reached."""
        found = {self.options.name: self._api}
        for other in self._membership.alive():
            standing = standing_of(other)
            if standing is not None and standing.api:
                found[other.name] = standing.api
        return found

    def places(self) -> dict[str, ManagerAt]:
        """Where each manager that is here stands."""
        return {one.name: one for one in self._managers()}

    # -- life

    async def run(self) -> None:
        self.runtime.spawn(self._load.run(self._on_sample))
        self.runtime.spawn(self._sweep())
        if self.dags is not None:
            self.runtime.spawn(self._go_on_with_dags(self.dags))
        try:
            await super().run()
        finally:
            if self.dags is not None:
                await self.dags.close()

    async def _go_on_with_dags(self, dags: DagService) -> None:
        try:
            await dags.start()
        except TalkaError as error:
            self._on_store_broken(error)
            return
        for keeper in list(dags.keepers):
            self.perform(self.manager.set_keeper(boottime_ns(), keeper))

    async def _leave(self) -> None:
        """Hand jobs over before leadership, so that nobody waits for this manager."""
        if self.failure is None and len(self.options.voters) > 1:
            self.perform(self.manager.drain(boottime_ns()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HAND_OVER_S):
                    while self.manager.led:
                        await asyncio.sleep(0.05)
                        self.perform(self.manager.drain(boottime_ns()))
        await super()._leave()

    def _oldest_ns(self, now: int) -> int:
        """For how long the oldest waits: a client for an answer, a file or the store for what is to be written."""
        of_store = 0 if self.dags is None else self.dags.oldest_ns(now)
        return max(self.control.times.oldest_ns(now), self.runtime.disk.oldest_ns(now), of_store)

    def _on_sample(self, now: int, level: Level) -> None:
        """What clients and workers are asked to bear follows from it."""
        self.manager.shedding.level = level
        if now - self._used_at >= ANNOUNCED_OVER_NS:
            used_ns = cpu_ns()
            share = 100 * (used_ns - self._used_ns) // (now - self._used_at)
            self.manager.cpu_percent, self.manager.memory_percent = min(100, share), self._load.memory_percent
            self._used_ns, self._used_at = used_ns, now
        self.control.times.led(now, self.manager.leader)
        self._look_at_clock()

    @property
    def retry_after_s(self) -> float:
        """How long whoever is refused for the load of this manager should wait."""
        return self._load.overload.retry_after_ns(boottime_ns()) / SECOND

    def _look_at_clock(self) -> None:
        jump_ns = self.clock.look(*both_clocks())
        if not jump_ns:
            return
        self.clock_jumps += 1
        self.manager.set_wall_offset(self.clock.offset_ns)
        if self.dags is not None and self.dags.lost is None:
            self.dags.on_clock_jump(jump_ns)
        else:
            self.runtime.tell({"event": "alarm", "kind": "clock", "text": jump_text(jump_ns)})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            # Files are as old as a clock says that was set.
            if self.clock.is_steady(boottime_ns(), STEADY_NS):
                self.perform(self.manager.sweep_jobs(boottime_ns(), self._keeps.jobs))
                await self.drop_unnamed(self._keeps.blobs)

    async def drop_unnamed(self, keep: Keep) -> None:
        """Drop blobs that nothing names any more and that are older than this, or too many."""
        try:
            named = set[str]() if self.dags is None else await self.dags.bundles()
        except TalkaError:
            return  # what its jobs name is not known now
        for record in self.records():
            named |= {record.order.bundle.digest, record.result}
            if record.checkpoint:
                with contextlib.suppress(TalkaError):
                    named.update(closed_of(decode_checkpoint(record.checkpoint)).values())
        work = partial(
            self._blobs.sweep, named, keep.age_ns / SECOND, realtime_ns() / SECOND, most=keep.count, young_s=YOUNG_S
        )
        with contextlib.suppress(TalkaError):
            removed = await asyncio.get_running_loop().run_in_executor(None, work)
            self.manager.blobs.forget(removed)

    def records(self) -> list[JobEntry]:
        """Jobs as this voter's own disk has them: it may be behind."""
        voter = self.member.voter
        assert voter is not None
        found = []
        for key, value in voter.election.held().items():
            if key.startswith(PREFIX) and value:
                with contextlib.suppress(TalkaError):
                    found.append(decode_entry(value))
        return found

    # -- what is to be done

    def _answer(self, asked: QuestionAsked) -> None:
        question = asked.ask.question
        if not isinstance(question, AskLease | ChangeLease):
            super()._answer(asked)
            return
        self.runtime.spawn(self._answer_lease(asked, question))  # who is not answered asks again

    async def _answer_lease(self, asked: QuestionAsked, question: AskLease | ChangeLease) -> None:
        """The leader knows, and whoever is asked asks it."""
        number = asked.ask.number
        try:
            lease_ns = question.lease_ns if isinstance(question, ChangeLease) else 0
            async with asyncio.timeout(asked.ask.within_ms * WITHIN_SHARE / 1000):
                reply = AskAnswer(number, "", encode_content(await self.control.lease(lease_ns)))
        except TimeoutError:
            reply = AskAnswer(
                number, "the leader did not answer in time, or none leads: is a majority of managers there?"
            )
        except TalkaError as error:
            reply = AskAnswer(number, str(error))
        put_down_change(self.put_down, asked, reply.problem)
        self.runtime.do(self.member.answer(boottime_ns(), asked, reply))

    def perform(self, effects: Sequence[PassedOn]) -> None:
        """Carry out what the manager answered to a call."""
        self.runtime.act(effects)

    def _carry_out(self, effect: MemberEffect | PassedOn) -> None:
        match effect:
            case Transmit():
                self.runtime.transmit(effect)
            case ToNeighbour():
                self.runtime.tell_neighbour(effect)
            case PersistBlob(ticket=ticket, digest=digest, content=content):
                self.runtime.persist(ticket, self._blobs.put, digest, content, is_vital=False)
            case RoomWanted(worker=worker):
                self.runtime.streams.when_room(self.member.address_of(worker), partial(self._on_room, worker))
            case LoadBlob(digest=digest):
                self.perform(self.manager.on_loaded(boottime_ns(), digest, self._blobs.get(digest)))
            case ServeBlob(to=to, digest=digest, offset=offset):
                self.perform(self.manager.say(to, piece_of(digest, self._blobs.get(digest), offset)))
            case DocumentWanted(job=job):
                self._make_document(job)
            case LeaseDiffers(text=text):
                self.runtime.fail(OtherLease(text))
            case (
                Commit() | ReadOutputs() | RaiseEpoch() | WorkerDropped() | WorkerTooOld() | CallAnswered() | DagEnded()
            ):
                assert self.dags is not None, "nobody else has a keeper that asks for it"
                self.dags.carry_out(effect)
            case CallEnded() | BlobKept() | BlobFailed() | BlobReady() | Updated() | WatchFailed():
                self.control.on_answer(effect)
            case Send():
                raise AssertionError("its member puts every message into a frame")
            case _ if isinstance(effect, JobNews):
                self._on_job_news(effect)
            case _:
                self._carry_out_own(effect)  # the type checker finds an effect of the manager that is in no case

    def _on_room(self, worker: str) -> None:
        if not self.runtime.is_closed:
            self.perform(self.manager.on_room(boottime_ns(), worker))

    def _on_job_news(self, news: JobNews) -> None:
        if isinstance(news, Forwarded):
            put_down_forwarded(self.put_down, news)
        self.evictions += isinstance(news, WorkerLost)
        if isinstance(news, JobLate):
            self.late[news.what] += 1
        if event := job_event_of(news, self.clock.offset_ns):
            self.runtime.tell(event)

    def _make_document(self, job: str) -> None:
        led = self.manager.led.get(job)
        if led is None or led.job is None:
            return
        record, load_job = led.entry, led.job
        started_ms = record.submitted_ms
        if load_job.origin_ns:
            started_ms = (load_job.origin_ns + realtime_ns() - boottime_ns()) // 1_000_000
        document = build(
            load_job,
            record.order.workflows,
            Meta(
                name=record.order.name,
                file=record.order.bundle.file or None,
                started_at=instant_text(started_ms),
                version=VERSION,
                allow_partial=record.order.allow_partial,
                warnings=tuple(led.warnings),
                datacenters=(record.datacenter,) if record.datacenter else (),
            ),
        )
        reason = " ".join(document.reasons)[:2000]
        state = JobState(document.status)
        content = document.to_json()
        self.perform(self.manager.on_document(boottime_ns(), job, content, state, document.exit_code, reason))

    def signed(self, order: JobOrder) -> JobOrder:
        """The order with this manager's word for its bundle."""
        bundle = order.bundle
        earlier = sign_for_earlier(self.runtime.admission.ring.primary_secret, bundle.digest)
        bundle = msgspec.structs.replace(bundle, signature=earlier, word=self._trust.signer.sign(bundle.digest))
        return msgspec.structs.replace(order, bundle=bundle)

    def word_for(self, digest: str) -> bytes:
        """This manager's word for a bundle."""
        return self._trust.signer.sign(digest)

    def check_bundle(self, bundle: CodeBundle) -> None:
        """It is here, and stays for a while if nobody names it."""
        has_it = self.manager.blobs.has(bundle.digest)
        size_bytes = self._blobs.renew(bundle.digest) if has_it else None
        if size_bytes is None:
            raise BundleMissing(f"this manager has no bundle {bundle.digest[:12]}: put it first")
        if size_bytes != bundle.size_bytes:
            raise Invalid(f"the bundle {bundle.digest[:12]} has {size_bytes} bytes, not {bundle.size_bytes}")

    def why_not_ready(self) -> str:
        voter = self.member.voter
        assert voter is not None
        if voter.election.phase is not Phase.ACTIVE:
            return "this manager is still learning what others know"
        if not self.manager.leader:
            return "no manager leads: a majority of managers must be there"
        if self.dags is not None and (problem := self.dags.why_not_ready()):
            return problem
        return "this manager leaves" if self.manager.is_draining else ""

    @property
    def folder(self) -> Path:
        """Where this manager's files are."""
        return self.runtime.folder.path

    def manager_states(self) -> dict[str, str]:
        """Every voter, as this one sees it."""
        states = dict.fromkeys(sorted(self.options.voters), "dead")
        for other in self._membership.members():
            if other.name in states:
                states[other.name] = STATES[other.status].replace("alive", "active")
        own = "draining" if self.manager.is_draining else "syncing" if self.why_not_ready() else "active"
        return states | {self.options.name: own}

    def certificates(self) -> list[CertificateView]:
        """Of the cluster, as far as this manager knows them."""
        watch = self.runtime.certificates
        if watch is None:
            return []
        from talka.nodes.shown_certificates import certificates_of

        told = self._trust.keys.told()
        return certificates_of(watch, self.options.name, self._membership.members(), told, realtime_ns())

    def counts(self) -> Counts:
        counts = super().counts()
        manager, registry = self.manager, self.manager.registry
        counts |= {
            "jobs_led": len(manager.led),
            **self._load.counts(),
            "backpressure_level": int(manager.shedding.backpressure),
            "requests_shed_total": dict(manager.shedding.shed),
            "statistics_refused_total": manager.shedding.statistics_refused,
            "worker_evictions_total": self.evictions,
            "clock_jumps_total": self.clock_jumps,
            **self.control.limit_counts(),
            "workflows_late_total": {what: float(count) for what, count in self.late.items()},
            "calls_total": self.control.counts["calls"],
            "calls_refused_total": dict(self.control.refused),
        }
        if self.dags is not None:
            counts |= self.dags.metrics()
            counts["dag_messages_lost_total"] = manager.to_workers.lost
        if registry is not None:
            fleet = registry.fleet
            counts |= {
                "jobs_queued": len(registry.queue),
                "workers": len(fleet),
                "cores": fleet.total_present(),
                "cores_free": fleet.total_free(),
                "cores_usable": fleet.total(),
                "submissions_refused_total": dict(registry.refused),
                "workers_by_state": fleet.states(),
                "workers_silent": fleet.silent,
                "worker_breakers": fleet.breakers(),
                "worker_lease_seconds": registry.lease.renew_ns / SECOND,
                **registry.granting.counts(),
                "worker_decisions_total": {word: count for word, count in fleet.decided.items()},
                "manager_decisions_total": {word: count for word, count in registry.seen.decided.items()},
                "workers_by_decision": Counter[str](life.decision.word for life in fleet.lives()),
                "managers_by_decision": Counter[str](view.decision for view in registry.seen.views()),
            }
        return counts


def _where(member: Member) -> ManagerAt:
    said = standing_of(member)
    if said is None:
        return ManagerAt(member.name, member.address)
    zone = zone_of(member.zone, said.datacenter)
    return ManagerAt(member.name, member.address, zone, said.datacenter, said.region)
