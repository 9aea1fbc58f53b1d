"""The jobs of a cluster as its leader keeps them: who waits, who leads what, which worker was granted to whom.

Every decision is an entry of the majority register, and nobody is told of it before a majority has it on disk. The
registry lives as long as a term: a new leader reads the entries and goes on.

Decision: docs/decisions/0020-cores-are-granted-per-job.md.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, assert_never

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import WriteEnded
from talka.cluster.leases import margin_ns
from talka.cluster.placement import order as candidates_for
from talka.control.jobs.effects import (
    FleetNews,
    JobAcceptedNews,
    JobEndStored,
    JobsEffect,
    LeadWanted,
    OwnerChanged,
    WorkerLost,
)
from talka.control.jobs.entries import EntryBook
from talka.control.jobs.forwarding import forwarded
from talka.control.jobs.granting import DECLINED, GRANTS_LIMIT, Granting
from talka.control.jobs.job_checkpoint import open_workflows
from talka.control.jobs.job_view import facts_of, late_of
from talka.control.jobs.managers import Announced, Managers, nothing_announced
from talka.control.jobs.orders import check_order
from talka.control.jobs.pauses import cannot_resume, state_told, wait_for_cores, with_its_cores
from talka.control.jobs.queue import QUEUE_LIMIT, JobQueue, QueueFull, no_workers_text
from talka.control.jobs.workers.fleet import Fleet, Leaves
from talka.control.jobs.workers.lease_rule import LeaseRule
from talka.control.jobs.workers.sharing import SHARING_LIMITS, NoTasks, SharingLimits, TasksSeen
from talka.control.jobs.workers.worker_life import HeardLives
from talka.control.jobs.workers.worker_views import views_of
from talka.control.member.signers import SignersNamed
from talka.control.member.voter import Voter
from talka.errors import Invalid, TalkaError
from talka.ids import new_job_id
from talka.units import MILLISECOND, SECOND
from talka.wire import manager_calls as calls
from talka.wire.entries import ORDER_LIMIT_BYTES, SLOTS, JobEntry, encode_entry, encode_order
from talka.wire.jobs import (
    CHANNEL,
    Beat,
    CheckpointStored,
    JobMessage,
    Lead,
    Leaderless,
    ManagerAt,
    Renew,
    StoreCheckpoint,
)
from talka.wire.orders import JobOrder, shown
from talka.wire.security.access import objection
from talka.wire.views import (
    ClusterView,
    JobFacts,
    JobsPage,
    WorkerView,
    instant_text,
)
from talka.work.lifecycle import JobState, is_final, move
from talka.work.outcome import ExitCode

LOOK_EVERY_NS: Final = SECOND // 4
LEAD_AGAIN_NS: Final = SECOND
UNWELL_RETRY_MS: Final = 5000
WAITING_STATES: Final = (JobState.SUBMITTED, JobState.QUEUED)
STATES: Final = tuple(JobState)


class Registry:
    """Made when this manager is elected. `on_…` and `tick` return effects."""

    def __init__(
        self,
        now: int,
        *,
        me: str,
        voter: Voter,
        rng: Random,
        wall_offset_ns: int,
        managers: Callable[[], tuple[ManagerAt, ...]],
        signer: bytes = b"",
        datacenter: str = "",
        heard: HeardLives | None = None,
        tasks: TasksSeen | None = None,
        slots: int = SLOTS,
        grants_limit: int = GRANTS_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
        sharing: SharingLimits = SHARING_LIMITS,
        announced: Announced = nothing_announced,
        why_not: Callable[[], str] = str,
    ) -> None:
        """`tasks`: what is known of tasks of dag jobs, if their keepers are here. `why_not`: it takes no new work."""
        assert voter.token is not None and voter.election.leader_term is not None
        self.token = voter.token
        self.lease = LeaseRule(now, voter)
        earlier_ns = self.lease.earlier_ns
        self.fleet = Fleet(earlier_until=now + earlier_ns + margin_ns(earlier_ns), heard=heard)
        self.fleet.set_lease(self.lease.count_ns, self.lease.renew_ns)
        self.queue = JobQueue(queue_limit)
        seen = NoTasks() if tasks is None else tasks
        self.granting = Granting(self.fleet, self.queue, seen, rng, sharing, grants_limit)
        self.book = EntryBook(voter, slots)
        self.next_tick_at = now
        self.refused: Counter[str] = Counter()
        self._me = me
        self._datacenter = datacenter
        self._voter, self._rng = voter, rng
        self.wall_offset_ns = wall_offset_ns
        self._managers = managers
        self._signers = SignersNamed(signer)
        self.seen = Managers(me, voter.election.electorate, announced)
        self._why_not = why_not
        self._fences = 0
        self._shrunk: dict[str, int] = {}
        """Jobs that give cores back, and the version of the entry that says so."""
        self._owner_since: dict[str, int] = {}
        self._lead_at: dict[str, int] = {}
        self._lives: dict[tuple[int, int, int], int] = {}
        """Which life of a manager leads under a fence; one that was restarted knows nothing of what it did."""
        self._take_over(now)

    @property
    def entries(self) -> dict[str, JobEntry]:
        """As decided; what is on disk may be a version behind."""
        return self.book.decided

    @property
    def _is_sole(self) -> bool:
        return len(self._voter.election.config.names()) == 1

    def _take_over(self, now: int) -> None:
        """Go on where the leader before left off: with its queue, and with the grants it gave."""
        for entry in self.book.in_order():
            self._signers.add(entry.order.bundle.word)
            if entry.state in WAITING_STATES:
                self.queue.push(now, entry.job, entry.order.priority, entry.number)
            elif not is_final(entry.state):
                self._owner_since[entry.job] = now
                if entry.is_resumed:
                    self.queue.push(now, entry.job, entry.order.priority, entry.number)
                for grant in entry.grants:
                    if not grant.lost:
                        self.fleet.expect(now, grant.worker, grant.boot, folder=grant.folder, sole=self._is_sole)
                        if grant.cores:
                            self.fleet.reserve(entry.job, grant.worker, grant.cores, grant.boot)

    def on_write_ended(self, now: int, ended: WriteEnded) -> list[JobsEffect]:
        effects = self.lease.on_write_ended(now, ended)
        self.fleet.set_lease(self.lease.count_ns, self.lease.renew_ns)
        effects += self.book.on_write_ended(now, ended)
        for job in [job for job, version in self._shrunk.items() if self.book.written[job].version >= version]:
            del self._shrunk[job]
            if self.granting.freed(self.book.written[job], self.entries[job]):
                effects += self._schedule(now)
        return effects

    def _wall_ms(self, now: int) -> int:
        return (now + self.wall_offset_ns) // MILLISECOND

    # -- what clients ask

    def on_call(self, now: int, sender: str, call: calls.ManagerCall) -> list[JobsEffect]:
        problem = objection(call.asker, calls.CALLED_BY[type(call.call)])
        news: list[JobsEffect] = [] if sender == self._me else [*forwarded(sender, call, problem)]
        if problem:
            self.refused["forbidden"] += 1
            # An earlier version knows no other word.
            kind: calls.CallProblem = "invalid" if call.asker is None else "forbidden"
            return [*news, _problem(sender, call, kind, problem)]
        try:
            return [*news, *self._answer(now, sender, call)]
        except QueueFull as full:
            self.refused["queue full"] += 1
            return [*news, _problem(sender, call, "busy", str(full), 5000)]
        except Invalid as error:
            return [*news, _problem(sender, call, "invalid", str(error))]
        except TalkaError as error:
            return [*news, _problem(sender, call, "unavailable", str(error))]

    def _answer(self, now: int, sender: str, call: calls.ManagerCall) -> list[JobsEffect]:
        match call.call:
            case calls.SubmitJob() as asked:
                return self._submit(now, sender, call, asked)
            case calls.ListJobs() as asked:
                return [_answer(sender, call, calls.JobsTold(_page(self, now, asked)))]
            case calls.GetJob(job=job) | calls.GetOrder(job=job) | calls.GetResult(job=job):
                return [self._told(now, sender, call, job)]
            case calls.CancelJob() as asked:
                return self._cancel(now, sender, call, asked)
            case calls.ResumeJob(job=job):
                return self._resume(now, sender, call, job)
            case calls.ListWorkers(worker=name):
                return [_answer(sender, call, calls.WorkersTold(tuple(self.workers(now, name))))]
            case calls.DrainWorker() | calls.UndrainWorker() as asked:
                return self._drain(now, sender, call, asked)
            case calls.GetLease():
                return [self.lease.answer(now, sender, call.number)]
            case calls.SetLease(lease_ns=lease_ns, by=by):
                return self.lease.change(now, lease_ns, by, sender, call.number)
            case calls.DescribeCluster():
                return [_answer(sender, call, calls.ClusterTold(_cluster(self, self._me)))]
            case _:
                assert_never(call.call)

    def _drain(
        self, now: int, sender: str, call: calls.ManagerCall, asked: calls.DrainWorker | calls.UndrainWorker
    ) -> list[JobsEffect]:
        """Also the reverse. Which of them holds is told with every renewal, and by the worker with every beat."""
        name = asked.worker
        try:
            if isinstance(asked, calls.DrainWorker):
                is_known = self.fleet.drain(name, "" if call.asker is None else call.asker.name)
            else:
                is_known = self.fleet.undrain(name)
        except Leaves as leaves:
            return [_problem(sender, call, "conflict", str(leaves))]
        if not is_known:
            gone = self.fleet.life(name)
            text = f"there is no worker {name}: talka workers lists them"
            return [_problem(sender, call, "missing", f"worker {name} is offline: {gone.cause}" if gone else text)]
        news = self.fleet.review(now, name)
        view = next(view for view in self.workers(now) if view.name == name)
        return [*news, _answer(sender, call, calls.WorkerTold(view))]

    def _told(self, now: int, sender: str, call: calls.ManagerCall, job: str) -> Send[JobMessage]:
        """What is on a majority of disks of a job: its facts, its order or its result."""
        entry = self.book.written.get(job)
        if entry is None:
            return _no_job(sender, call, job)
        match call.call:
            case calls.GetOrder():
                return _answer(sender, call, calls.OrderTold(shown(entry.order)))
            case calls.GetResult() if not is_final(entry.state):
                return _problem(sender, call, "conflict", f"job {job} is {entry.state}: no result yet")
            case calls.GetResult():
                return _answer(sender, call, calls.ResultTold(entry.result))
            case _:
                facts = msgspec.structs.replace(self.facts(now, entry), late=late_of(entry))
                return _answer(sender, call, calls.JobTold(facts))

    def _submit(self, now: int, sender: str, call: calls.ManagerCall, asked: calls.SubmitJob) -> list[JobsEffect]:
        order, key = asked.order, asked.key
        if call.asker is not None and call.asker.name:  # whoever showed a token is who it says
            order = msgspec.structs.replace(order, submitted_by=call.asker.name)
        known = self.book.by_key(key) if key else None
        if known is not None:
            if _unsigned(known.order) != _unsigned(order):
                text = f"the key {key!r} was used for another order, job {known.job}: use a key of its own"
                return [_problem(sender, call, "conflict", text)]
            return self.book.once_written(known, _answer(sender, call, calls.JobTold(self.facts(now, known))))
        if why_not := self._why_not():
            self.refused["unwell"] += 1
            return [_problem(sender, call, "busy", why_not, UNWELL_RETRY_MS)]
        size_bytes = len(encode_order(order))
        if size_bytes > ORDER_LIMIT_BYTES:
            raise Invalid(f"the order has {size_bytes} bytes, and may have {ORDER_LIMIT_BYTES}: split the test")
        check_order(order)
        job = new_job_id(self._rng)
        number = 1 + max((entry.number for entry in self.entries.values()), default=0)
        if not (self.queue.is_full or self.book.has_room()):
            raise QueueFull(self.book.slots)
        self.queue.push(now, job, order.priority, number)
        entry = JobEntry(
            job=job,
            key=key,
            order=order,
            state=JobState.QUEUED,
            number=number,
            submitted_ms=self._wall_ms(now),
            datacenter=self._datacenter,
        )
        self._signers.add(order.bundle.word)
        answer = _answer(sender, call, calls.JobTold(self.facts(now, entry)))
        effects = self.book.add(now, entry, JobAcceptedNews(job, key), answer)
        return [*effects, *self._schedule(now)]

    def _cancel(self, now: int, sender: str, call: calls.ManagerCall, asked: calls.CancelJob) -> list[JobsEffect]:
        entry = self.entries.get(asked.job)
        if entry is None:
            return [_no_job(sender, call, asked.job)]
        if is_final(entry.state) or entry.cancel:
            return self.book.once_written(entry, _answer(sender, call, calls.JobTold(self.facts(now, entry))))
        reason = asked.reason or "cancelled"
        if entry.state in WAITING_STATES:
            self.queue.remove(entry.job)
            cancelled = msgspec.structs.replace(entry, cancel=reason, stopped=open_workflows(entry))
            return self._end_unstarted(now, cancelled, JobState.CANCELLED, reason, answer_to=(sender, call))
        self.queue.remove(entry.job)
        state = move(entry.state, JobState.CANCELLING)
        entry = msgspec.structs.replace(
            entry, cancel=reason, stopped=open_workflows(entry), state=state, is_resumed=False
        )
        answer = _answer(sender, call, calls.JobTold(self.facts(now, entry)))
        return self.book.put(now, entry, answer, *self._lead(now, entry))

    def _resume(self, now: int, sender: str, call: calls.ManagerCall, job: str) -> list[JobsEffect]:
        entry = self.entries.get(job)
        if entry is None:
            return [_no_job(sender, call, job)]
        if problem := cannot_resume(entry):
            return [_problem(sender, call, "conflict", problem)]
        resumed = wait_for_cores(now, self.queue, entry)
        answer = _answer(sender, call, calls.JobTold(self.facts(now, resumed)))
        if resumed is entry:
            return self.book.once_written(entry, answer)
        return [*self.book.put(now, resumed, answer), *self._schedule(now)]

    def _end_unstarted(
        self,
        now: int,
        entry: JobEntry,
        state: JobState,
        reason: str,
        answer_to: tuple[str, calls.ManagerCall] | None = None,
    ) -> list[JobsEffect]:
        before = move(entry.state, JobState.CANCELLING) if state is JobState.CANCELLED else entry.state
        ended = msgspec.structs.replace(
            entry, state=move(before, state), reason=reason, ended_ms=self._wall_ms(now), exit_code=ExitCode.JOB_FAILED
        )
        then: list[JobsEffect] = [JobEndStored(entry.job, state, "")]
        if answer_to is not None:
            then.append(_answer(*answer_to, calls.JobTold(self.facts(now, ended))))
        return self.book.put(now, ended, *then)

    # -- giving out cores

    def _schedule(self, now: int) -> list[JobsEffect]:
        """Start what can be started."""
        effects: list[JobsEffect] = []
        self.granting.look(now)
        while (begun := self.granting.next(now, self.entries)) is not None:
            entry, job = begun.entry, begun.entry.job
            if entry.state is JobState.PAUSED:
                effects += self.book.put(now, with_its_cores(entry), *self._lead(now, entry))
                continue
            owner = self._owner_for(now, job)
            entry = msgspec.structs.replace(
                entry, state=move(entry.state, JobState.DISPATCHING), owner=owner, fence=self._new_fence()
            )
            self._owner_since[job] = now
            passed = (
                f", ahead of job {begun.ahead_of}, which cannot start before it has ended" if begun.ahead_of else ""
            )
            news = OwnerChanged(job, owner, entry.fence, f"it has its cores{passed}")
            effects += self.book.put(now, entry, news, *self._lead(now, entry))
        return effects

    def _new_fence(self) -> tuple[int, int, int]:
        self._fences += 1
        return (self.token.parent, self.token.term, self._fences)

    def _owner_for(self, now: int, job: str, but: str = "") -> str:
        """A manager that answers; `but` only where there is no other."""
        return candidates_for(job, dict.fromkeys(self.seen.for_job(now, job, but), 1.0))[0]

    def _lead(self, now: int, entry: JobEntry) -> list[JobsEffect]:
        self._lead_at[entry.job] = now + LEAD_AGAIN_NS
        return [LeadWanted(entry.job)]

    def lead_message(self, job: str) -> list[JobsEffect]:
        """The entry as it is on disk now, to its owner."""
        entry = self.entries.get(job)
        if entry is None or is_final(entry.state) or not entry.owner:
            return []
        if not self.book.is_written(job):
            return self.book.once_written(entry, LeadWanted(job))
        lead = Lead(encode_entry(entry), asks=not self.granting.outlook.knows(job))
        return [Send(CHANNEL, entry.owner, lead, Lane.CONTROL)]

    # -- managers that lead jobs

    def on_checkpoint(self, now: int, sender: str, checkpoint: StoreCheckpoint) -> list[JobsEffect]:
        entry = self.entries.get(checkpoint.job)
        if entry is None or entry.owner != sender or entry.fence != checkpoint.fence:
            gone = CheckpointStored(checkpoint.job, checkpoint.fence, 0, superseded=True, life=checkpoint.life)
            return [Send(CHANNEL, sender, gone, Lane.CONTROL)]
        if not is_final(entry.state) and self._lives.setdefault(entry.fence, checkpoint.life) != checkpoint.life:
            return self._change_owner(now, entry, f"{sender} was restarted")
        if checkpoint.revision <= entry.revision or is_final(entry.state):
            done = CheckpointStored(entry.job, entry.fence, entry.revision, life=checkpoint.life)
            return self.book.once_written(entry, Send(CHANNEL, sender, done, Lane.CONTROL))
        if checkpoint.state not in STATES:
            return []  # of a later version: said again to a leader that knows it
        state = JobState(checkpoint.state)
        ended = is_final(state)
        if entry.cancel and not ended:
            state = JobState.CANCELLING
        state = state_told(entry, state, checkpoint)
        if state is not JobState.PAUSED:
            self.queue.remove(entry.job)
        unfit = [grant for grant in entry.grants if grant.worker in checkpoint.unfit and not grant.lost]
        for worker in dict.fromkeys(grant.worker for grant in unfit):
            self.fleet.release_worker(entry.job, worker)
            self.fleet.failed(now, worker)
        grants = tuple(
            msgspec.structs.replace(grant, lost=f"{DECLINED}it could not take its task") if grant in unfit else grant
            for grant in entry.grants
        )
        entry = msgspec.structs.replace(
            entry,
            revision=checkpoint.revision,
            state=state,
            checkpoint=checkpoint.content,
            reason=checkpoint.reason,
            result=checkpoint.result,
            exit_code=checkpoint.exit_code,
            ended_ms=self._wall_ms(now) if ended else 0,
            grants=grants,
        )
        granted = entry.granted
        if not ended:
            self.granting.outlook.told(now, entry.job, checkpoint.back)
            entry = self.granting.spared(entry, checkpoint.spare)
        is_shrunk = entry.granted < granted
        if unfit:
            entry = self.granting.regrant(now, entry)
        done = CheckpointStored(entry.job, entry.fence, entry.revision, life=checkpoint.life)
        then: list[JobsEffect] = [Send(CHANNEL, sender, done, Lane.CONTROL)]
        if ended:
            self._forget(now, entry)
            then.append(JobEndStored(entry.job, state, entry.result))
        elif unfit or is_shrunk:
            then += self._lead(now, entry)
        if is_shrunk:
            self._shrunk[entry.job] = 1 + entry.version
        return [*self.book.put(now, entry, *then), *(self._schedule(now) if ended else [])]

    def _forget(self, now: int, entry: JobEntry) -> None:
        """It has ended."""
        self.granting.ended(now, entry.job)
        self.queue.remove(entry.job)
        self._shrunk.pop(entry.job, None)
        self._owner_since.pop(entry.job, None)
        self.seen.forget(entry.job)
        self._lead_at.pop(entry.job, None)
        self._lives.pop(entry.fence, None)

    def on_leaderless(self, now: int, sender: str, message: Leaderless) -> list[JobsEffect]:
        entry = self.entries.get(message.job)
        if entry is None or entry.owner != sender or entry.fence != message.fence or is_final(entry.state):
            return []
        # By its name a job would always come back to the same manager: one that leaves must not get it again.
        return self._change_owner(now, entry, f"{sender} was restarted or leaves", but=sender)

    def _change_owner(self, now: int, entry: JobEntry, reason: str, but: str = "") -> list[JobsEffect]:
        owner = self._owner_for(now, entry.job, but)
        self._lives.pop(entry.fence, None)
        entry = msgspec.structs.replace(entry, owner=owner, fence=self._new_fence(), revision=0)
        self._owner_since[entry.job] = now
        news = OwnerChanged(entry.job, owner, entry.fence, reason)
        return self.book.put(now, entry, news, *self._lead(now, entry))

    # -- workers

    def on_beat(self, now: int, sender: str, boot: int, source: str, beat: Beat) -> list[JobsEffect]:
        effects = self._on_fleet_news(now, self.fleet.beat(now, sender, boot, source, beat))
        effects += self._reviewed(now, sender)
        # One that stalled may have been replaced: what it renews now, another leader may have given away already.
        if not self.fleet.holds(sender, boot) or not self._voter.election.is_leading(now):
            return effects
        mine = dict.fromkeys(running.job for running in beat.running)
        written = self.book.written
        cancelled = [job for job in mine if job in written and written[job].cancel]
        orphans = [
            job
            for job in mine
            if job not in self.entries or (is_final(self.entries[job].state) and self.book.is_written(job))
        ]
        token = (self.token.parent, self.token.term, self.token.sequence)
        renew = Renew(
            token,
            beat.number,
            self.lease.renew_ns,
            self._is_sole,
            self._managers(),
            tuple(cancelled),
            tuple(orphans),
            self.fleet.is_drained(sender),
            self._signers.keys,
            self.fleet.is_undraining(sender),
        )
        return [*effects, Send(CHANNEL, sender, renew, Lane.CONTROL)]

    def on_goodbye(self, now: int, sender: str, boot: int) -> list[JobsEffect]:
        return self._on_fleet_news(now, self.fleet.left(now, sender, boot))

    def _reviewed(self, now: int, name: str = "") -> list[JobsEffect]:
        """What has changed with this worker, or with any. It may be usable now."""
        news = self.fleet.review(now, name)
        return [*news, *(self._schedule(now) if news else [])]

    def _on_fleet_news(self, now: int, news: list[FleetNews]) -> list[JobsEffect]:
        effects: list[JobsEffect] = list(news)
        for one in news:
            if isinstance(one, WorkerLost):
                effects += self._on_lost(now, one)
        if news:
            effects += self._schedule(now)
        return effects

    def _on_lost(self, now: int, lost: WorkerLost) -> list[JobsEffect]:
        effects: list[JobsEffect] = []
        for entry in list(self.entries.values()):
            if is_final(entry.state):
                continue
            its = (lost.name, lost.boot)
            gone = [grant for grant in entry.grants if (grant.worker, grant.boot) == its and not grant.lost]
            if gone:
                cause = f"was lost with its worker {lost.name}: {lost.cause}"
                grants = [msgspec.structs.replace(one, lost=cause) if one in gone else one for one in entry.grants]
                entry = msgspec.structs.replace(entry, grants=tuple(grants))
                entry = self.granting.regrant_lost(now, entry, gone)
                effects += self.book.put(now, entry, *self._lead(now, entry))
        return effects

    # -- time

    def tick(self, now: int) -> list[JobsEffect]:
        self.next_tick_at = now + LOOK_EVERY_NS
        effects = [*self._on_fleet_news(now, self.fleet.tick(now)), *self.fleet.review(now)]
        for late in self.queue.tick(now):
            entry = self.entries[late.job]
            if entry.state is JobState.PAUSED:  # it ends when nobody resumes it, and somebody did
                self.queue.push(now, entry.job, entry.order.priority, entry.number)
                continue
            effects += self._end_unstarted(now, entry, JobState.FAILED, late.reason)
        effects += self.book.write_again(now)
        effects += self.lease.tick(now)
        led = [entry for entry in self.entries.values() if entry.owner and not is_final(entry.state)]
        effects += self.seen.look(now, led, self._owner_since, self.lease.count_ns)
        for entry in led:
            if why := self.seen.why_another(now, entry, self._owner_since.get(entry.job, now)):
                effects += self._change_owner(now, entry, why, but=entry.owner)
                continue
            better = self.granting.regrant(now, entry)
            if better is not entry:
                effects += self.book.put(now, better, *self._lead(now, better))
            elif now >= self._lead_at.get(entry.job, 0):
                effects += self._lead(now, entry)
        effects += self._schedule(now)
        return effects

    # -- views

    def facts(self, now: int, entry: JobEntry, starts: Mapping[str, int] | None = None) -> JobFacts:
        """`starts`: when those that wait are expected to."""
        position = self.queue.position(entry.job)
        if position is None:
            return facts_of(entry)
        if starts is None:
            # One that was submitted just now is in the queue, and not among the entries yet.
            starts = self.granting.expected_starts(now, {**self.entries, entry.job: entry})
        at = starts.get(entry.job)
        expected = "" if at is None else instant_text((at + self.wall_offset_ns) // MILLISECOND)
        return facts_of(entry, position, self._waits_for(now, entry, position, at), expected)

    def _waits_for(self, now: int, entry: JobEntry, position: int, starts_at: int | None) -> str:
        if self.fleet.total():
            return self.granting.waits_for(now, entry, position, starts_at)
        out = [
            f"{life.name} is {life.decisions[0].what}" for life in self.fleet.lives() if life.cores and life.decisions
        ]
        return no_workers_text(out)

    def workers(self, now: int, name: str = "") -> list[WorkerView]:
        return views_of(self.fleet.lives(), now, self.wall_offset_ns, name)


def _page(registry: Registry, now: int, asked: calls.ListJobs) -> JobsPage:
    try:
        before = int(asked.cursor) if asked.cursor else 1 << 62
        state = JobState(asked.state) if asked.state else None
    except ValueError:
        raise Invalid(f"cursor {asked.cursor!r} or state {asked.state!r} is not known") from None
    found = [
        entry
        for entry in sorted(registry.book.written.values(), key=lambda entry: -entry.number)
        if entry.number < before and (state is None or entry.state is state)
    ]
    page = found[: max(1, min(asked.limit, 500))]
    following = str(page[-1].number) if len(found) > len(page) else ""
    starts = registry.granting.expected_starts(now, registry.entries)
    # A page has what is below its cursor, so one above its number begins with a job itregistry.
    cursors = [str(entry.number + 1) for entry in page]
    return JobsPage([registry.facts(now, entry, starts) for entry in page], following, cursors)


def _cluster(registry: Registry, me: str) -> ClusterView:
    fleet = registry.fleet
    return ClusterView(
        name="",
        leader=me,
        term=registry.token.term,
        managers=registry.seen.views(registry.entries.values()),
        workers=len(fleet),
        cores=fleet.total_present(),
        cores_free=fleet.total_free(),
        queue=len(registry.queue),
        cores_usable=fleet.total(),
    )


def _answer(sender: str, call: calls.ManagerCall, answer: calls.LeaderAnswer) -> Send[JobMessage]:
    return Send(CHANNEL, sender, calls.CallAnswer(call.number, answer), Lane.RESULTS)


def _problem(
    sender: str, call: calls.ManagerCall, kind: calls.CallProblem, text: str, retry_after_ms: int = 0
) -> Send[JobMessage]:
    answer = calls.CallAnswer(call.number, None, kind, text[: calls.TEXT_LIMIT], retry_after_ms)
    return Send(CHANNEL, sender, answer, Lane.RESULTS)


def _no_job(sender: str, call: calls.ManagerCall, job: str) -> Send[JobMessage]:
    return _problem(sender, call, "missing", f"there is no job {job[:64]}: talka jobs lists those that are known")


def _unsigned(order: JobOrder) -> bytes:
    """For comparing: the same bundle may be signed by another key by now."""
    bundle = msgspec.structs.replace(order.bundle, signature=b"", word=b"")
    return encode_order(msgspec.structs.replace(order, bundle=bundle))
