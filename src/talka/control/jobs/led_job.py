"""A job on a cluster, as the manager sees it that leads it.

Its load job thinks in cores; here a core is a task on a worker. What the load job asks for becomes commands under the
job's fence, and what must survive this manager is on a majority of managers' disks before anybody acts on it: the
attempt before a worker is told of it, an attempt's result before it counts.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final, Literal

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.safeguards import ALL, Safeguards
from talka.control.jobs.checkpoints import Checkpoints
from talka.control.jobs.commands import Commands
from talka.control.jobs.job_checkpoint import account_of, closed_of, lives_of, resume, spec_of
from talka.control.jobs.job_view import facts_of
from talka.control.jobs.led_effects import AttemptAccepted, BlobWanted, DocumentWanted, JobOver, KeepWanted, TaskLost
from talka.control.jobs.take_over import TakeOver
from talka.control.jobs.worker_keys import CannotSeal, WorkerKeys
from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore
from talka.control.load.load_job import JobSpec, LoadJob
from talka.control.load.log_lines import JobLines
from talka.control.load.shard_run import ShardAttempt, ShardRun
from talka.control.member.clock_offsets import ClockOffsets
from talka.errors import Untrusted
from talka.stats.tally import merged
from talka.units import MILLISECOND, SECOND
from talka.wire.entries import Grant, JobRecord, decode_account, encode_account
from talka.wire.jobs import (
    CHANNEL,
    Accounted,
    Acknowledge,
    Assign,
    AttemptResult,
    Finished,
    Halt,
    JobMessage,
    LogLines,
    NoTask,
    Report,
    ResultAccepted,
    Stale,
    Start,
    Sync,
    TaskDeclined,
    WorkerSnapshot,
    decode_result,
    encode_result,
)
from talka.wire.shards import Ack, Armed, Go, Refused, Stop, ToCore, Totals, decode_unread
from talka.wire.views import JobFacts
from talka.work.lifecycle import JobState, TaskState, move

START_DELAY_NS: Final = 150 * MILLISECOND
"""Between the decision to go and the instant: time to put it on record, and to reach the slowest worker."""
SYNC_EVERY_NS: Final = SECOND // 10
ACCOUNT_EVERY_NS: Final = SECOND
UNTOLD_NS: Final = 5 * SECOND
"""Without a word from the leader, which speaks once a second, it is asked whether this manager still leads the job."""
REPLACE_WAIT_NS: Final = 300 * SECOND
"""How long the rest of a lost task waits for cores, at most: a plan that is over before waits for none."""


class _Loss(msgspec.Struct):
    cause: str
    since: int
    is_recorded: bool = False
    """Its last totals are on a majority of disks."""


def _grants_of(worker: str, record: JobRecord) -> list[Grant]:
    return [grant for grant in record.grants if grant.worker == worker]


class LedJob:
    """Call `start` once, then `on_…` and `tick` as things happen, and carry out what they return."""

    def __init__(
        self,
        record: JobRecord,
        *,
        life: int,
        clocks: ClockOffsets,
        keys: WorkerKeys,
        wall_offset_ns: int,
        every_ms: Callable[[], int] = lambda: 0,
        safeguards: Safeguards = ALL,
    ) -> None:
        self._take_record(record)
        self.fence = record.fence
        self.job: LoadJob | None = None
        """None until what the workers have is known."""
        self.phase: Literal["reconciling", "leading", "documenting", "closing", "over"] = "reconciling"
        self.next_tick_at = 0
        self._life = life
        self._wall_offset_ns = wall_offset_ns
        self._every_ms = every_ms
        self._safeguards = safeguards
        self._accounting = Checkpoints(record.job, record.fence, life, is_needed=safeguards.account_first)
        self._commands = Commands(record.job, record.fence)
        self._take_over = TakeOver(record.job, record.fence)
        self._closed: dict[int, str] = {}
        self._closing: dict[str, tuple[int, AttemptResult]] = {}
        """Results on their way to a majority of disks, by digest."""
        self._fetching: dict[str, int] = {}
        self._losses: dict[int, _Loss] = {}
        self._clocks = clocks
        self._waiting_for_clock: dict[int, tuple[str, Go]] = {}
        self._keys = keys
        self._waiting_for_key: dict[int, None] = {}
        """Tasks whose workers have not told yet what variables are sealed to."""
        self._unfit: dict[str, str] = {}
        self._untold: dict[int, None] = {}
        """Tasks that the manager before had counts of, and this one not yet."""
        self._document: tuple[str, JobState, int, str] | None = None
        self._sync_at = 0
        self._account_at = 0
        self._told_at = 0
        """When the leader last said that this manager leads the job."""
        self._warnings: list[str] = []
        self.lines = JobLines()

    # -- what is known

    @property
    def name(self) -> str:
        return self.record.job

    def places(self) -> dict[str, int]:
        """Workers the job may use now, and how many of their cores."""
        places: dict[str, int] = {}
        for grant in self.record.grants:
            if not grant.lost and grant.worker not in self._unfit:
                places[grant.worker] = places.get(grant.worker, 0) + grant.cores
        return places

    def warnings(self) -> tuple[str, ...]:
        """What a reader of the result should know besides what the load job tells."""
        return tuple(self._warnings)

    def is_caught_up(self) -> bool:
        """Whether everything that ran when the job was taken over has told its counts: until then they seem to shrink."""
        if self._untold and self.job is not None:
            running = self.job.running()
            self._untold = {
                core: None
                for core in self._untold
                if core in running and not running[core][2].sequence and core not in self._losses
            }
        return not self._untold

    def facts(self) -> JobFacts:
        facts = facts_of(self.record)
        return facts if self.job is None else msgspec.structs.replace(facts, state=self._state())

    def _take_record(self, record: JobRecord) -> None:
        self.record = record
        self._ever_granted = frozenset(grant.worker for grant in record.grants)

    def _boot_of(self, worker: str) -> int:
        """The life of the worker that was granted."""
        return next((grant.boot for grant in self.record.grants if grant.worker == worker and not grant.lost), 0)

    def _gone(self) -> list[str]:
        """Workers that were lost, and have nothing new."""
        granted = self._granted()
        return [grant.worker for grant in self.record.grants if grant.lost and grant.worker not in granted]

    def _granted(self) -> list[str]:
        return list(dict.fromkeys(grant.worker for grant in self.record.grants if not grant.lost))

    # -- inputs

    def start(self, now: int) -> list[object]:
        if not self.record.account:
            return self._lead(now, LoadJob(self._spec(), start_delay_ns=START_DELAY_NS), {})
        account = decode_account(self.record.account)
        self._closed = closed_of(account)
        effects: list[object] = []
        for number, digest in self._closed.items():
            self._fetching[digest] = number
            effects.append(BlobWanted(self.name, digest, 0, ()))
        if not self._safeguards.takeover_barrier:
            self._take_over.skip(self._granted())
        else:
            self._take_over.also_tell(self._gone())
        return [*effects, *self._take_over.ask(now, self._granted()), *self._take_up_if_known(now)]

    def _spec(self) -> JobSpec:
        return spec_of(self.name, self.record.order, max(1, sum(self.places().values())))

    def on_record(self, now: int, record: JobRecord) -> list[object]:
        """The leader says how the record stands: workers may be lost or granted, or a cancel wanted."""
        if record.fence == self.fence:
            self._told_at = now
        if record.fence != self.fence or record.version <= self.record.version:
            return []
        before = self.record
        self._take_record(record)
        if self.job is None:
            if self._safeguards.takeover_barrier:
                self._take_over.also_tell(self._gone())
            return self._take_up_if_known(now)
        effects: list[object] = []
        granted = self._granted()
        for worker in list(self._unfit):
            if _grants_of(worker, record) != _grants_of(worker, before):
                del self._unfit[worker]  # the leader has heard of it, or granted it anew
        self.job.places, self.job.pool = self.places(), record.pool
        lost = {grant.worker: grant.lost for grant in record.grants if grant.lost and grant.worker not in granted}
        for worker in lost:
            for attempt in self.job.attempts_at(worker):
                effects += self._lose(now, attempt, lost[worker])
        if record.cancel and self.job.interrupted_by is None and not self.job.ended_ns:
            effects += self._carry_out(now, self.job.interrupt(now, "cancel"))
        elif record.grants != before.grants and not self.job.ended_ns:
            effects += self._settle_losses(now)
            effects += self._carry_out(now, self.job.start(now))
        return effects

    def on_message(self, now: int, sender: str, message: JobMessage) -> list[object]:
        if self._safeguards.own_attempts and sender not in self._ever_granted:
            return []  # it never had anything of this job
        match message:
            case WorkerSnapshot():
                self._take_over.on_snapshot(now, sender, message)
                return self._take_up_if_known(now)
            case Stale(highest=highest):
                return [] if highest <= self.fence else self._give_up()
            case Finished():
                return self._on_finished(now, sender, message)
            case Report() | NoTask() | TaskDeclined():
                return self._on_word(now, sender, message)
            case LogLines():
                self.lines.add(now, sender, message)
                return []
            case _:
                return []

    def _on_word(self, now: int, sender: str, message: Report | NoTask | TaskDeclined) -> list[object]:
        job, attempt = self.job, message.attempt
        if job is None:
            return []
        known = job.running().get(attempt)
        if known is None or known[2].place != sender or (isinstance(message, Report) and _is_other(known[2], message)):
            if known is None:
                self._commands.drop(attempt)
            # Nobody waits for it: what it had is on record, or it was given up.
            return [] if isinstance(message, NoTask) else [self._commands.kill(attempt, sender)]
        self._commands.heard(now, attempt)
        if isinstance(message, NoTask):
            if message.fence != self.fence or isinstance(self._commands.pending(attempt), Assign):
                return []  # it speaks of a time before the task reached it
            return self._lose(now, attempt, f"is gone from its worker {sender}")
        if isinstance(message, TaskDeclined):
            return self._turn_away(now, attempt, sender, f"was declined by {sender}: {message.reason}", message.reason)
        effects: list[object] = []
        for content in message.contents:
            if attempt not in job.running() or attempt in self._losses:
                break  # given up: what it says now is not counted any more
            effects += self._on_report(now, sender, attempt, content)
        return effects

    def _turn_away(self, now: int, attempt: int, worker: str, cause: str, reason: str) -> list[object]:
        """The worker cannot have this task, nor others of the job."""
        assert self.job is not None
        self._unfit[worker] = reason
        self.job.places = self.places()
        self._accounting.touch()  # the leader is to know, so that it grants another
        return [*self._lose(now, attempt, cause), *self._account(now)]

    def _on_report(self, now: int, sender: str, core: int, content: bytes) -> list[object]:
        assert self.job is not None
        try:
            message = decode_unread(content)
        except Untrusted:
            return []
        answered = (Assign,) if isinstance(message, Armed | Refused) else (Assign, Start)
        if isinstance(self._commands.pending(core), answered):
            self._commands.drop(core)  # a later one is repeated until it is answered itself
        if isinstance(message, Totals):
            if message.final:
                return []  # results come whole
            if message.started_at_ns:
                here_ns = self._clocks.here(sender, message.started_at_ns)
                message = msgspec.structs.replace(message, started_at_ns=here_ns)
            made_at_ns = message.made_at_ns
            if made_at_ns:
                # By this clock, where the worker's is known; when a report is read says nothing of when it was made.
                made_at_ns = self._clocks.here(sender, made_at_ns) if self._clocks.knows(sender) else 0
                message = msgspec.structs.replace(message, made_at_ns=made_at_ns)
            if not self._safeguards.cumulative_counters:
                attempt = self.job.running()[core][2]
                message.tally.merge(attempt.tally)
                message = msgspec.structs.replace(message, sequence=attempt.sequence + 1)
        effects = self.job.on_message(now, core, message)
        if all(isinstance(effect, TellCore) and isinstance(effect.message, Ack) for effect in effects):
            # Most reports change nothing that must survive; making the account of a large job takes a while.
            return [
                word
                for effect in effects
                if isinstance(effect, TellCore)
                for word in self._tell(now, effect.attempt, effect.message)
            ]
        return self._carry_out(now, effects)

    def _on_finished(self, now: int, sender: str, message: Finished) -> list[object]:
        attempt, digest, size_bytes = message.attempt, message.digest, message.size_bytes
        if self.job is None:
            return []
        if not self._safeguards.result_key and attempt not in self._fetching.values():
            return self._fetch(attempt, digest, size_bytes, sender)
        if attempt in self._losses:
            return []  # its last totals are put on record instead
        known = self.job.running().get(attempt)
        if known is None or known[2].place != sender or _is_other(known[2], message):
            if known is None:
                self._commands.drop(attempt)
            return [Send(CHANNEL, sender, ResultAccepted(self.name, self.fence, attempt), Lane.RESULTS)]
        self._commands.heard(now, attempt)
        self._commands.drop(attempt)
        if attempt in self._closed:
            return []  # accepted once that is on record: until then the worker's copy may be the last one
        if attempt in self._fetching.values() or digest in self._closing:
            return []
        return self._fetch(attempt, digest, size_bytes, sender)

    def _fetch(self, attempt: int, digest: str, size_bytes: int, holder: str) -> list[object]:
        self._fetching[digest] = attempt
        return [BlobWanted(self.name, digest, size_bytes, (holder,))]

    def on_blob(self, now: int, digest: str, content: bytes | None) -> list[object]:
        """A blob that was wanted, or None when nobody has it any more."""
        attempt = self._fetching.pop(digest, None)
        if attempt is None:
            return []
        result = None
        if content is not None:
            try:
                result = decode_result(content)
            except Untrusted:
                result = None
        if self.job is None:
            if result is None:
                self._warnings.append(f"the result of task {attempt} was kept and cannot be found: it is missing")
            self._take_over.results[attempt] = result or AttemptResult(self.name, attempt, merged([]), [], is_lost=True)
            return self._take_up_if_known(now)
        if result is None or content is None or (result.job, result.attempt) != (self.name, attempt):
            return []  # asked again when the worker offers it again
        known = self.job.running().get(attempt)
        if known is not None and _is_other(known[2], result):
            return []
        self._closing[digest] = (attempt, result)
        return [KeepWanted(self.name, digest, content)]

    def on_kept(self, now: int, digest: str) -> list[object]:
        """A blob is on a majority of disks."""
        if self._document is not None and digest == self._document[0]:
            return self._close(now)
        if digest not in self._closing:
            return []
        assert self.job is not None
        attempt, result = self._closing.pop(digest)
        if self._safeguards.result_key:
            if attempt in self._closed:
                return []
            if not result.is_lost and attempt not in self.job.running():
                return []  # given up meanwhile: another runs all of it again, or its workflow has ended
        self._closed[attempt] = digest
        return self._when_recorded(now, lambda at: self._accept(at, attempt, digest, result))

    def _accept(self, now: int, attempt: int, digest: str, result: AttemptResult) -> list[object]:
        assert self.job is not None
        known = self.job.running().get(attempt)
        effects: list[object] = [AttemptAccepted(self.name, attempt, digest)]
        if result.is_lost:
            if attempt in self._losses:
                self._losses[attempt].is_recorded = True
            return [*effects, *self._settle_losses(now)]
        if known is not None:
            effects.append(Send(CHANNEL, known[2].place, ResultAccepted(self.name, self.fence, attempt), Lane.RESULTS))
        elif not self._safeguards.result_key:
            effects += self._count_again(now, result)
        self._losses.pop(attempt, None)
        return [*effects, *self._carry_out(now, self.job.on_result(now, attempt, result))]

    def _count_again(self, now: int, result: AttemptResult) -> list[object]:
        """Without a key for each attempt, a result belongs to whatever runs in its place."""
        assert self.job is not None
        for run in self.job.workflows.values():
            for shard in run.shards:
                if any(attempt.number == result.attempt for attempt in shard.attempts):
                    shard.current.tally.merge(result.tally)
        return []

    def on_accounted(self, now: int, message: Accounted) -> list[object]:
        if not self._accounting.is_mine(message):
            return []
        if message.superseded:
            return self._give_up()
        effects = self._accounting.on_recorded(now, message.revision)
        if self._accounting.is_closed and self.phase == "closing":
            self.phase = "over"
            return [*effects, JobOver(self.name)]
        return [*effects, *self._account(now)]

    def on_document(self, now: int, content: bytes, state: JobState, exit_code: int, reason: str) -> list[object]:
        digest = sha256(content).hexdigest()
        self._document = (digest, state, exit_code, reason)
        return [KeepWanted(self.name, digest, content)]

    def tick(self, now: int) -> list[object]:
        self.next_tick_at = now + SYNC_EVERY_NS
        if self.phase == "over":
            return []
        effects = [*self._ask_leader(now), *self._take_over.remind(now)]
        if self.job is None:
            return [*effects, *self._take_over.ask(now, self._granted())]
        if not self.job.ended_ns:
            if now >= self.job.next_tick_at:
                closing = [attempt for attempt, _ in self._closing.values()]
                self.job.arriving = dict.fromkeys([*self._fetching.values(), *closing, *self._closed])
                asked = self.job.tick(now)
                effects += self._carry_out(now, asked) if asked else []
            effects += self._settle_losses(now)
            effects += self._ask_silent(now)
            effects += self._sync(now)
            effects += self._assign_waiting(now)
        effects += [*self._commands.again(now), *self._accounting.say_again(now)]
        if now >= self._account_at or self._accounting.has_untold:
            # Time alone changes little that must survive, and the account of a large job takes long to make.
            self._account_at = now + ACCOUNT_EVERY_NS
            effects += self._account(now)
        return effects

    def _ask_leader(self, now: int) -> list[object]:
        """One that was replaced while it could not be reached has to ask: nobody tells it any more."""
        self._told_at = self._told_at or now
        if now - self._told_at < UNTOLD_NS:
            return []
        self._told_at = now
        return [self._accounting.ask()]

    # -- taking over

    def _take_up_if_known(self, now: int) -> list[object]:
        if self.job is not None or self._fetching:
            return []
        if not all(self._take_over.has(worker) for worker in self._granted()):
            return []
        account = decode_account(self.record.account)
        self._take_over.forget_others(lives_of(account))
        origin_ns, origins = self._take_over.origins(account.origin_ms, self._wall_offset_ns)
        results = self._take_over.results
        job = resume(self._spec(), account, results, now=now, origin_ns=origin_ns, start_delay_ns=START_DELAY_NS)
        return self._lead(now, job, origins)

    def _lead(self, now: int, job: LoadJob, origins: dict[int, int]) -> list[object]:
        self.job = job
        job.life = self._life
        self.phase = "leading"
        job.places, job.pool = self.places(), self.record.pool or job.pool
        effects: list[object] = []
        for run in job.workflows.values():
            if not run.is_under_way:
                continue
            if run.state is TaskState.RUNNING and not run.stopped_ns and all(map(self._waits, run.shards)):
                job.start_anew(run)
            for shard in run.shards:
                if shard.is_done:
                    continue
                attempt = shard.current
                job.adopt(run, shard, attempt)
                if attempt.number in origins and run.state is TaskState.ASSIGNED:
                    run.state, run.origin_ns = move(run.state, TaskState.RUNNING), origins[attempt.number]
        for core, (run, _, attempt) in list(job.running().items()):
            if core in job.running():  # what was taken up before it may have ended its workflow
                effects += self._take_up(now, core, attempt.place, run.state is TaskState.RUNNING, run.origin_ns)
        self._take_over.results.clear()
        effects += self._carry_out(now, job.start(now))
        if self.record.cancel and job.interrupted_by is None and not job.ended_ns:
            effects += self._carry_out(now, job.interrupt(now, "cancel"))
        elif job.is_stopping:
            effects += self._carry_out(now, job.stop_again(now))
        return effects + self._go_on_arming(now)

    def _waits(self, shard: ShardRun) -> bool:
        """Nothing of it was ever started."""
        attempt = shard.current
        is_first = not shard.is_done and shard.gap is None and len(shard.attempts) == 1
        return is_first and attempt.number not in self._closed and self._take_over.waits(attempt.place, attempt.number)

    def _go_on_arming(self, now: int) -> list[object]:
        """Those that are armed may have said so before everybody had answered: they need not say it again."""
        assert self.job is not None
        effects: list[object] = []
        for core, (_, _, attempt) in list(self.job.running().items()):
            facts = self._take_over.facts(attempt.place, core)
            is_here = core in self.job.running() and core not in self._losses
            if is_here and facts is not None and facts.state == "armed":
                effects += self._carry_out(now, self.job.on_message(now, core, Armed()))
        return effects

    def _take_up(self, now: int, core: int, worker: str, is_running: bool, origin_ns: int) -> list[object]:
        assert self.job is not None
        _, shard, attempt = self.job.running()[core]
        if core in self._closed:
            result = self._take_over.results[core]
            if not result.is_lost:
                return self._accept(now, core, self._closed[core], result)
            attempt.on_result(now, result, self.job.origin_ns)
            attempt.go_at_ns = origin_ns
            self._losses[core] = _Loss(f"was lost with its worker {worker}", now, is_recorded=True)
            return []
        if worker not in self.places():
            # Where a gap is open on record nothing is known to have begun since: it stays open.
            attempt.go_at_ns = origin_ns if is_running and shard.gap is None else 0
            return self._lose(
                now, core, next((g.lost for g in self.record.grants if g.worker == worker), "") or "is gone"
            )
        facts = self._take_over.facts(worker, core)
        if facts is None and is_running:
            return self._lose(now, core, f"is gone from its worker {worker}")
        if facts is None:
            return self._accounting.hold(now, lambda at: self._assign(at, core))
        attempt.armed = facts.state in ("running", "ended")
        attempt.go_at_ns = origin_ns if attempt.armed else 0
        if attempt.armed:
            self._untold[core] = None
        if facts.digest:
            return self._fetch(core, facts.digest, facts.size_bytes, worker)
        return []

    # -- carrying out what the load job asks for

    def _carry_out(self, now: int, effects: list[LoadEffect]) -> list[object]:
        assert self.job is not None
        out: list[object] = []
        for effect in effects:
            match effect:
                case StartCore(attempt=core):
                    out += self._accounting.hold(now, lambda at, core=core: self._assign(at, core))  # type: ignore[misc]
                case TellCore(attempt=core, message=Go() as go):
                    # Load that ran must not be unknown to whoever leads the job next.
                    out += self._accounting.hold(now, lambda at, core=core, go=go: self._tell(at, core, go))  # type: ignore[misc]
                case TellCore(attempt=core, message=message):
                    out += self._tell(now, core, message)
                case KillCore(attempt=core):
                    self._waiting_for_clock.pop(core, None)
                    out.append(self._commands.kill(core, self.job.place_of(core)))
                case JobEnded():  # pragma: no branch - the type checker sees that no effect is left
                    self.phase = "documenting"
                    self._losses.clear()
                    out += [*self._account(now), DocumentWanted(self.name)]
        return [*out, *self._account(now)]

    def _assign(self, now: int, core: int) -> list[object]:
        assert self.job is not None
        known = self.job.running().get(core)
        if known is None or core in self._losses:
            return []  # stopped or lost before it began
        run, shard, attempt = known
        part, order = shard.shard, self.record.order
        boot, bundle, variables = self._boot_of(attempt.place), order.bundle, b""
        if bundle.env and self._safeguards.sealed_variables:
            try:
                sealed = self._keys.seal(bundle.env, self.name, core, attempt.place, boot)
            except CannotSeal as error:
                return self._turn_away(now, core, attempt.place, f"was not given to its worker: {error}", str(error))
            if sealed is None:
                self._waiting_for_key[core] = None
                return []
            bundle, variables = msgspec.structs.replace(bundle, env={}), sealed
        message = Assign(
            job=self.name,
            fence=self.fence,
            attempt=core,
            workflow=run.spec.name,
            plan=run.spec.plan,
            first=part.index,
            count=part.count,
            of=part.of,
            iterations_done=shard.done_by_shard,
            values=self.job.values_for(run),
            settings=order.settings,
            bundle=bundle,
            is_test=run.spec.is_test,
            boot=boot,
            seats=attempt.seats,
            variables=variables,
            life=attempt.life,
        )
        return [self._commands.give(now, core, attempt.place, message), self._ask_clock(now, attempt.place)]

    def _assign_waiting(self, now: int) -> list[object]:
        """Workers beat once a second to every manager: some may have told their key by now."""
        waiting, self._waiting_for_key = self._waiting_for_key, {}
        return [effect for core in waiting for effect in self._assign(now, core)]

    def _tell(self, now: int, core: int, message: ToCore) -> list[object]:
        assert self.job is not None
        if core in self._losses:
            return []  # its worker is gone, and a command to it would be repeated for ever
        place = self.job.place_of(core)
        if isinstance(message, Ack):
            acknowledge = Acknowledge(self.name, self.fence, core, message.sequence, self._every_ms())
            return [Send(CHANNEL, place, acknowledge, Lane.STATISTICS)]
        if isinstance(message, Go):
            if core not in self.job.running() or isinstance(self._commands.pending(core), Halt):
                return []  # ended or told to stop while the start was put on record
            if not self._clocks.knows(place):
                self._waiting_for_clock[core] = (place, message)
                return []
            return [self._start(now, core, place, message)]
        assert isinstance(message, Stop)  # what arms a core is told by StartCore
        self._waiting_for_clock.pop(core, None)
        halt = Halt(self.name, self.fence, core, "stop")
        return [self._commands.give(now, core, place, halt, Lane.RESULTS)]

    def _start(self, now: int, core: int, place: str, go: Go) -> Send[JobMessage]:
        there = self._clocks.there
        message = Start(
            self.name,
            self.fence,
            core,
            there(place, go.start_at_ns),
            there(place, go.origin_ns),
            there(place, go.job_origin_ns),
        )
        return self._commands.give(now, core, place, message, Lane.CONTROL)

    # -- clocks

    def _sync(self, now: int) -> list[object]:
        """Ask the time of workers that will soon be told an instant."""
        assert self.job is not None
        if now < self._sync_at:
            return []
        self._sync_at = now + SYNC_EVERY_NS
        workers = dict.fromkeys(
            attempt.place
            for _, _, attempt in self.job.running().values()
            if not attempt.go_at_ns or not self._clocks.knows(attempt.place)
        )
        return [self._ask_clock(now, worker) for worker in workers]

    def _ask_clock(self, now: int, worker: str) -> Send[JobMessage]:
        return Send(CHANNEL, worker, Sync(self._clocks.asked(now, worker)), Lane.CONTROL)

    def on_clock(self, now: int, worker: str) -> list[object]:
        """A worker has told its time: those that wait for it can be started."""
        ready = [core for core, (place, _) in self._waiting_for_clock.items() if place == worker]
        return [self._start(now, core, worker, self._waiting_for_clock.pop(core)[1]) for core in ready]

    # -- losses

    def _lose(self, now: int, core: int, cause: str) -> list[object]:
        """An attempt is gone. Its last totals are put on record before anything takes its place."""
        assert self.job is not None
        if core in self._losses or core not in self.job.running():
            return []
        if core in self._closed or any(number == core for number, _ in self._closing.values()):
            return []  # its whole result is here, and counts as soon as that is on record
        _, _, attempt = self.job.running()[core]
        self._losses[core] = _Loss(cause, now)
        if attempt.place in self._unfit:
            self._accounting.touch()  # it may have been the last one there
        self._commands.drop(core)
        self._waiting_for_clock.pop(core, None)
        if not attempt.go_at_ns:
            attempt.armed = False  # others that are ready wait for what takes its place
        news = TaskLost(self.name, core, attempt.place, cause)
        if not attempt.sequence:
            self._losses[core].is_recorded = True
            return [news, *self._settle_losses(now)]
        origin_ns = self.job.origin_ns
        result = AttemptResult(
            job=self.name,
            attempt=core,
            tally=attempt.tally,
            windows=[],
            shares=attempt.shares,
            started_at_ns=attempt.started_at_ns - origin_ns if attempt.started_at_ns else 0,
            ended_at_ns=attempt.reported_ns - origin_ns,
            spread_ns=attempt.spread_ns,
            gaps=attempt.gaps,
            is_lost=True,
            worker=attempt.place,
            life=attempt.life,
        )
        content = encode_result(result)
        digest = sha256(content).hexdigest()
        self._closing[digest] = (core, result)
        return [news, KeepWanted(self.name, digest, content)]

    def _settle_losses(self, now: int) -> list[object]:
        """Let the load job replace what was lost, once there are cores for it; without it after a while."""
        assert self.job is not None
        effects: list[object] = []
        for core in [core for core, loss in self._losses.items() if loss.is_recorded]:
            known = self.job.running().get(core)
            if known is None:
                del self._losses[core]
                continue
            run, shard, _ = known
            loss = self._losses[core]
            room = self.job.room_besides(core)
            length_ns = shard.shard.length_ns
            is_over = length_ns is not None and run.origin_ns > 0 and now >= run.origin_ns + length_ns
            is_wanted = not run.stopped_ns and not self.job.is_stopping and not is_over
            if is_wanted and room < shard.shard.count and now - loss.since < REPLACE_WAIT_NS:
                continue
            del self._losses[core]
            effects += self._carry_out(now, self.job.on_exit(now, core, loss.cause))
            if self.job.ended_ns:
                break
        return effects

    def _ask_silent(self, now: int) -> list[object]:
        """A task that says nothing may be gone while its worker lives: a repeated command finds out."""
        assert self.job is not None
        effects: list[object] = []
        for core, (_, _, attempt) in self.job.running().items():
            if core in self._losses or core in self._fetching.values():
                continue
            if self._commands.is_silent(now, core):
                message = Acknowledge(self.name, self.fence, core, attempt.sequence, self._every_ms())
                effects.append(Send(CHANNEL, attempt.place, message, Lane.STREAM))
        return effects

    # -- the account

    def _when_recorded(self, now: int, then: Callable[[int], list[object]]) -> list[object]:
        """Do this once everything decided so far is on a majority of disks."""
        return [*self._accounting.hold(now, then), *self._account(now)]

    def _state(self) -> JobState:
        assert self.job is not None
        if self.record.cancel:
            return JobState.CANCELLING
        if self.job.ended_ns:
            return JobState.COMPLETING
        # Once it ran it stays so, also when its start was decided again.
        has_begun = self.job.origin_ns or self.record.state is JobState.RUNNING
        return JobState.RUNNING if has_begun else JobState.DISPATCHING

    def _account(self, now: int) -> list[object]:
        """Tell the leader what is to be on record, if it is not."""
        accounting = self._accounting
        if self.job is None or self.phase == "over" or accounting.is_under_way:
            return []
        content = encode_account(account_of(self.job, self._closed, self._wall_offset_ns))
        # The leader takes all cores of such a worker back: not while something of the job may still run on them.
        unfit = tuple(
            worker for worker in sorted(self._unfit) if self._losses.keys() >= set(self.job.attempts_at(worker))
        )
        return accounting.say(now, content, self._state(), unfit)

    def _close(self, now: int) -> list[object]:
        assert self._document is not None
        if self._accounting.is_closing:
            return []
        digest, state, exit_code, reason = self._document
        self.phase = "closing"
        return self._accounting.close(now, state, reason, digest, exit_code)

    def _give_up(self) -> list[object]:
        self.phase = "over"
        self._accounting.drop()
        return [JobOver(self.name, superseded=True)]


def _is_other(known: ShardAttempt, told: Report | Finished | AttemptResult) -> bool:
    """Whether this is told of another attempt with the same number: a register that was put back drew it again. A worker of
    a version before this one does not say."""
    return told.life not in (0, known.life)
