"""The load job of a led job: it thinks in cores, and here a core is an attempt on the cores of a worker.

What the load job asks for becomes commands under the job's fence, and what must survive this manager is on a majority
of managers' disks before anybody acts on it: the attempt before a worker is told of it, an attempt's result before it
counts. See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md, 0018-who-may-act-on-a-job.md and
0019-results-are-blobs-on-a-majority.md.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.jobs.attempt_results import AttemptResults
from talka.control.jobs.checkpoints import AssignAttempt, Checkpoints, CountResult, Held, StartAttempt, TellAttempt
from talka.control.jobs.commands import Assignments, Commands
from talka.control.jobs.effects import AttemptAccepted, DocumentWanted, JobLate, JobsEffect, TaskLost
from talka.control.jobs.job_checkpoint import checkpoint_of
from talka.control.jobs.losses import Losses
from talka.control.jobs.take_over import TakeOver
from talka.control.jobs.workers.granted_workers import GrantedWorkers
from talka.control.jobs.workers.worker_keys import CannotSeal, WorkerKeys
from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore, WorkflowLate
from talka.control.load.cores_back import cores_back, spare_cores
from talka.control.load.load_job import LoadJob
from talka.control.load.pausing import PAUSE_LIMIT_NS
from talka.control.load.shard_run import ShardAttempt
from talka.control.member.clock_offsets import ClockOffsets
from talka.errors import Untrusted, sendable
from talka.units import MILLISECOND, SECOND
from talka.wire.entries import JobEntry, encode_checkpoint
from talka.wire.jobs import (
    CHANNEL,
    Assign,
    AttemptResult,
    Finished,
    Halt,
    JobMessage,
    NoTask,
    Report,
    ResultAccepted,
    Start,
    TaskDeclined,
)
from talka.wire.manager_calls import REASON_LIMIT
from talka.wire.shards import Ack, Armed, Go, Refused, ShardAnswer, Stop, TimeOver, ToCore, Totals, decode_unread
from talka.wire.views import instant_text
from talka.work.lifecycle import JobState, TaskState


class RemoteLoad:
    """Call `begin` once, then the others as things happen, and carry out what they return.

    An attempt is named by its number. Numbers are never used twice under one life of a manager.
    """

    def __init__(
        self,
        job: LoadJob,
        entry: JobEntry,
        *,
        workers: GrantedWorkers,
        results: AttemptResults,
        checkpoints: Checkpoints,
        clocks: ClockOffsets,
        keys: WorkerKeys,
        wall_offset_ns: int,
        every_ms: Callable[[], int],
    ) -> None:
        self.job = job
        self.entry = entry
        self.losses = Losses()
        """Attempts that are gone, and of which the load job was not told yet."""
        self._workers = workers
        self._results = results
        self._checkpoints = checkpoints
        self._clocks = clocks
        self._wall_offset_ns = wall_offset_ns
        self._commands = Commands(entry.job, entry.fence, clocks, every_ms)
        self._assignments = Assignments(entry, keys)
        self._told_state = entry.state
        job.gone = self.losses

    @property
    def state(self) -> JobState:
        """What the entry is to say of the job."""
        if self.entry.cancel:
            return JobState.CANCELLING
        if self.job.ended_ns:
            return JobState.COMPLETING
        # Once it ran it stays so, also when its start was decided again.
        has_begun = self.job.origin_ns or self.entry.state in (JobState.RUNNING, JobState.PAUSED)
        if self.job.is_paused and self.entry.resumes <= self.job.resumes and not self._workers.has_cores():
            return JobState.PAUSED
        return JobState.RUNNING if has_begun else JobState.DISPATCHING

    @property
    def reason(self) -> str:
        """What is put aside, since when and why; empty: nothing is."""
        aside = [run for run in self.job.workflows.values() if run.aside_ns]
        if not aside or self.job.ended_ns:
            return ""
        until = min(run.aside_ns for run in aside) + PAUSE_LIMIT_NS
        told = [
            f"{run.spec.name} is put aside since {self._instant(run.aside_ns)}: {run.put_aside_for}" for run in aside
        ]
        how = f"talka jobs resume {self.entry.job} goes on with it, until {self._instant(until)}"
        return sendable("; ".join([*told, how]), REASON_LIMIT)

    def _instant(self, at_ns: int) -> str:
        return instant_text((at_ns + self._wall_offset_ns) // SECOND * SECOND // MILLISECOND)

    def _running(self, attempt: int) -> ShardAttempt | None:
        """The attempt of this number; None when it is over or was never begun."""
        known = self.job.attempts.get(attempt)
        return None if known is None else known[2]

    # -- beginning, and taking over

    def begin(self, now: int, taken: TakeOver) -> list[JobsEffect]:
        """`taken`: what was found out of a job that another manager led."""
        job = self.job
        job.workers, job.pool = self._workers.cores(), self.entry.pool or job.pool
        effects: list[JobsEffect] = []
        for attempt in list(job.attempts):
            if attempt in job.attempts:  # what was taken up before it may have ended its workflow
                effects += self._take_up(now, attempt, taken)
        effects += self._carry_out(now, job.resume(now, self.entry.resumes))
        if self._is_cancel_news:
            effects += self._carry_out(now, job.interrupt(now, "cancel"))
        else:
            effects += self._carry_out(now, job.stop_again(now))
        return [*effects, *self._go_on_arming(now, taken)]

    def on_entry(self, now: int, entry: JobEntry) -> list[JobsEffect]:
        """The leader tells a newer entry: workers may be lost or granted, or a cancel wanted."""
        before, self.entry = self.entry, entry
        job = self.job
        effects: list[JobsEffect] = []
        job.workers, job.pool = self._workers.cores(), entry.pool
        for worker, cause in self._workers.gone().items():
            for attempt in job.attempts_at(worker):
                effects += self._lose(now, attempt, cause)
        if self._is_cancel_news:
            effects += self._carry_out(now, job.interrupt(now, "cancel"))
        elif entry.grants != before.grants and not job.ended_ns:
            effects += self._settle_losses(now)
            effects += self._carry_out(now, job.resume(now, entry.resumes))
        return effects

    @property
    def _is_cancel_news(self) -> bool:
        return bool(self.entry.cancel) and self.job.interrupted_by is None and not self.job.ended_ns

    def _take_up(self, now: int, number: int, taken: TakeOver) -> list[JobsEffect]:
        """Go on with an attempt that the manager before gave out."""
        run, shard, attempt = self.job.attempts[number]
        is_running, worker = run.state is TaskState.RUNNING, attempt.place
        if number in self._results.kept:
            result = taken.results[number]
            if not result.is_lost:
                return self._count(now, self._results.kept[number], result)
            attempt.on_result(now, result, self.job.origin_ns)
            attempt.go_at_ns, shard.provided = run.origin_ns, result.provided
            self.losses.add(now, number, f"was lost with its worker {worker}", is_stored=True)
            return []
        if worker not in self._workers.cores():
            # Where the checkpoint has an open gap, nothing is known to have begun since: it stays open.
            attempt.go_at_ns = run.origin_ns if is_running and shard.gap is None else 0
            return self._lose(now, number, self._workers.gone().get(worker, "is gone"))
        facts = taken.facts(worker, number)
        if facts is None and is_running:
            return self._lose(now, number, f"is gone from its worker {worker}")
        if facts is None:
            return self.do(now, self._checkpoints.hold(AssignAttempt(number)))
        attempt.armed = facts.state in ("running", "ended")
        attempt.go_at_ns = run.origin_ns if attempt.armed else 0
        if attempt.armed:
            taken.expect_counts(number)
        return [self._results.fetch(number, facts.digest, facts.size_bytes, worker)] if facts.digest else []

    def _go_on_arming(self, now: int, taken: TakeOver) -> list[JobsEffect]:
        """Those that are armed may have said so before everybody had answered: they need not say it again."""
        effects: list[JobsEffect] = []
        for number, (_, _, attempt) in list(self.job.attempts.items()):
            facts = taken.facts(attempt.place, number)
            is_here = self._running(number) is not None and number not in self.losses
            if is_here and facts is not None and facts.state == "armed":
                effects += self._carry_out(now, self.job.on_message(now, number, Armed()))
        return effects

    # -- what workers say

    def on_word(self, now: int, sender: str, message: Report | NoTask | TaskDeclined) -> list[JobsEffect]:
        """A worker tells of one attempt: its counts, that it does not have it, or that it cannot take it."""
        attempt = message.attempt
        known = self._running(attempt)
        if known is None or known.place != sender or (isinstance(message, Report) and _is_other(known, message)):
            if known is None:
                self._commands.drop(attempt)
            # Nobody waits for it: what it had is stored, or it was given up.
            return [] if isinstance(message, NoTask) else [self._commands.kill(attempt, sender)]
        self._commands.heard(now, attempt)
        match message:
            case NoTask(fence=fence):
                if fence != self.entry.fence or isinstance(self._commands.pending(attempt), Assign):
                    return []  # it speaks of a time before the attempt reached it
                return self._lose(now, attempt, f"is gone from its worker {sender}")
            case TaskDeclined(reason=reason):
                return self._turn_away(now, attempt, sender, f"was declined by {sender}: {reason}")
            case Report(contents=contents):
                effects: list[JobsEffect] = []
                for content in contents:
                    if self._running(attempt) is None or attempt in self.losses:
                        break  # given up: what it says now is not counted any more
                    effects += self._on_report(now, sender, attempt, content)
                return effects
            case _:
                assert_never(message)

    def refuse(self, now: int, sender: str, report: Report) -> list[JobsEffect]:
        """The worker is heard, and what it counts is not: it tells all of it again."""
        attempt = report.attempt
        known = self._running(attempt)
        if known is None or known.place != sender or _is_other(known, report):
            return []
        self._commands.heard(now, attempt)
        if isinstance(self._commands.pending(attempt), Assign | Start):
            self._commands.answered(attempt)
        return [self._commands.refuse(attempt, sender)]

    def on_clock(self, now: int, worker: str) -> list[JobsEffect]:
        """A worker has told its time."""
        return [*self._commands.on_clock(now, worker)]

    def _on_report(self, now: int, sender: str, attempt: int, content: bytes) -> list[JobsEffect]:
        try:
            message = decode_unread(content)
        except Untrusted:
            return []
        answers = (Assign,) if isinstance(message, Armed | Refused) else (Assign, Start)
        if isinstance(self._commands.pending(attempt), answers):
            self._commands.answered(attempt)  # a later command is repeated until it is answered itself
        if isinstance(message, Totals):
            if message.final:
                return []  # results come whole
            message = self._by_this_clock(sender, message)
        known = self._running(attempt)
        assert known is not None, "whoever is over is not asked"
        ended = known.ended
        asked = self.job.on_message(now, attempt, message)
        if known.ended == ended and not any(map(_is_decision, asked)):
            return self._act(now, asked)
        return self._carry_out(now, asked)

    def _by_this_clock(self, worker: str, totals: Totals) -> Totals:
        """The report with its instants in nanoseconds of this manager's clock."""
        started_at_ns, made_at_ns = totals.started_at_ns, totals.made_at_ns
        if started_at_ns:
            started_at_ns = self._clocks.here(worker, started_at_ns)
        if made_at_ns:
            # When a report is read says nothing of when it was made: 0 where the worker's clock is not known.
            made_at_ns = self._clocks.here(worker, made_at_ns) if self._clocks.knows(worker) else 0
        return msgspec.structs.replace(totals, started_at_ns=started_at_ns, made_at_ns=made_at_ns)

    # -- whole results: fetched, kept by a majority, named in the checkpoint, and only then counted

    def on_finished(self, now: int, sender: str, message: Finished) -> list[JobsEffect]:
        """A worker offers the whole result of an attempt, until it is told that the result was accepted."""
        attempt = message.attempt
        if attempt in self.losses:
            return []  # its last counts are stored instead
        known = self._running(attempt)
        if known is None or known.place != sender or _is_other(known, message):
            if known is None:
                self._commands.drop(attempt)
            return [self._result_accepted(attempt, sender)]
        self._commands.heard(now, attempt)
        self._commands.drop(attempt)
        if self._results.is_known(attempt, message.digest):
            return []  # accepted once that is stored: until then the worker's copy may be the last one
        return [self._results.fetch(attempt, message.digest, message.size_bytes, sender)]

    def _result_accepted(self, attempt: int, worker: str) -> Send[JobMessage]:
        return Send(CHANNEL, worker, ResultAccepted(self.entry.job, self.entry.fence, attempt), Lane.RESULTS)

    def on_fetched(self, digest: str, content: bytes, result: AttemptResult) -> list[JobsEffect]:
        """The whole result of an attempt came from its worker."""
        known = self._running(result.attempt)
        return [] if known is not None and _is_other(known, result) else [self._results.keep(digest, content, result)]

    def on_kept(self, now: int, digest: str) -> list[JobsEffect]:
        """A majority of managers has a blob."""
        result = self._results.release(digest)
        if result is None or self._is_settled(result):
            return []
        self._results.kept[result.attempt] = digest
        return [*self.do(now, self._checkpoints.hold(CountResult(digest, result))), *self.checkpoint(now)]

    def _is_settled(self, result: AttemptResult) -> bool:
        """Whether another result of the attempt counts, or none does any more: it was given up meanwhile, and another
        runs all of it again, or its workflow has ended."""
        if result.attempt in self._results.kept:
            return True
        return not result.is_lost and self._running(result.attempt) is None

    def _count(self, now: int, digest: str, result: AttemptResult) -> list[JobsEffect]:
        """A result that a majority has and the checkpoint names."""
        attempt = result.attempt
        known = self._running(attempt)
        effects: list[JobsEffect] = [AttemptAccepted(self.entry.job, attempt, digest)]
        if result.is_lost:
            self.losses.stored(attempt)
            return [*effects, *self._settle_losses(now)]
        if known is not None:
            effects.append(self._result_accepted(attempt, known.place))
        self.losses.forget(attempt)
        return [*effects, *self._carry_out(now, self.job.on_result(now, attempt, result))]

    # -- time

    def tick(self, now: int) -> list[JobsEffect]:
        job = self.job
        effects: list[JobsEffect] = []
        if not job.ended_ns:
            if now >= job.next_tick_at:
                job.arriving = self._results.arriving()
                asked = job.tick(now)
                effects += self._carry_out(now, asked) if asked else []
            effects += self._settle_losses(now)
            running = {number: attempt for number, (_, _, attempt) in job.attempts.items()}
            awaited = [
                one
                for number, one in running.items()
                if not (number in self.losses or self._results.is_fetched(number))
            ]
            effects += self._commands.ask_silent(now, awaited)
            effects += self._commands.ask_clocks(now, running.values())
            for attempt in self._assignments.waiting():
                effects += self._assign(now, attempt)
        effects += [*self._commands.again(now), *self._checkpoints.say_again(now)]
        if self._checkpoints.is_due(now):
            effects += self.checkpoint(now)
        return effects

    # -- carrying out what the load job asks for

    def _carry_out(self, now: int, asked: list[LoadEffect]) -> list[JobsEffect]:
        """Do what the load job asks for, and let what it decided be stored."""
        return [*self._act(now, asked), *self.checkpoint(now)]

    def _act(self, now: int, asked: list[LoadEffect]) -> list[JobsEffect]:
        effects: list[JobsEffect] = []
        for effect in asked:
            match effect:
                case StartCore(attempt=attempt):
                    effects += self.do(now, self._checkpoints.hold(AssignAttempt(attempt)))
                case TellCore(attempt=attempt, message=Go() as go):
                    effects += self.do(now, self._checkpoints.hold(StartAttempt(attempt, go)))
                case TellCore(attempt=attempt, message=ShardAnswer() | TimeOver() as told) if _is_decision(effect):
                    effects += self.do(now, self._checkpoints.hold(TellAttempt(attempt, told)))
                case TellCore(attempt=attempt, message=Stop() as told) if self._is_late(attempt):
                    effects += self.do(now, self._checkpoints.hold(TellAttempt(attempt, told)))
                case TellCore(attempt=attempt, message=message):
                    effects += self._tell(now, attempt, message)
                case WorkflowLate(workflow=workflow, what=what, text=text):
                    effects.append(JobLate(self.entry.job, workflow, what, text))
                case KillCore(attempt=attempt):
                    effects.append(self._commands.kill(attempt, self.job.place_of(attempt)))
                case JobEnded():
                    self.losses.clear()
                    effects += [*self.checkpoint(now), DocumentWanted(self.entry.job)]
                case _:
                    assert_never(effect)
        return effects

    def _is_late(self, attempt: int) -> bool:
        """Whether the workflow of this attempt is stopped as its time is over."""
        run = self.job.attempts[attempt][0] if attempt in self.job.attempts else None
        return run is not None and (run.has_timed_out or bool(run.put_aside_for))

    def do(self, now: int, held: list[Held]) -> list[JobsEffect]:
        """Do what waited for a checkpoint to be stored."""
        effects: list[JobsEffect] = []
        for what in held:
            match what:
                case AssignAttempt(attempt=attempt):
                    effects += self._assign(now, attempt)
                case StartAttempt(attempt=attempt, go=go):
                    effects += self._start(now, attempt, go)
                case TellAttempt(attempt=attempt, told=told):
                    effects += self._tell(now, attempt, told)
                case CountResult(digest=digest, result=result):
                    effects += self._count(now, digest, result)
                case _:
                    assert_never(what)
        return effects

    def _assign(self, now: int, attempt: int) -> list[JobsEffect]:
        known = self._running(attempt)
        if known is None or attempt in self.losses:
            return []  # stopped or lost before it began
        worker = known.place
        try:
            message = self._assignments.make(self.job, attempt, self._workers.boot_of(worker))
        except CannotSeal as error:
            return self._turn_away(now, attempt, worker, f"was not given to its worker: {error}")
        if message is None:
            return []
        return [self._commands.give(now, attempt, worker, message), self._commands.ask_clock(now, worker)]

    def _start(self, now: int, attempt: int, go: Go) -> list[Send[JobMessage]]:
        known = self._running(attempt)
        if known is None or attempt in self.losses or isinstance(self._commands.pending(attempt), Halt):
            return []  # lost, ended or told to stop while the start was stored
        return self._commands.start(now, attempt, known.place, go)

    def _tell(self, now: int, attempt: int, message: ToCore) -> list[Send[JobMessage]]:
        """Tell what need not wait for a checkpoint."""
        if attempt in self.losses:
            return []  # its worker is gone, and a command to it would be repeated for ever
        worker = self.job.place_of(attempt)
        known = self._running(attempt)
        if isinstance(message, ShardAnswer | TimeOver):
            return [] if known is None else [self._commands.tell_time(known, message)]
        if isinstance(message, Ack):
            return [self._commands.acknowledge(attempt, worker, message.sequence, Lane.STATISTICS)]
        assert isinstance(message, Stop)  # what arms a core is told by StartCore, and a start waits for the checkpoint
        return [self._commands.stop(now, attempt, worker)]

    # -- losses

    def _turn_away(self, now: int, attempt: int, worker: str, cause: str) -> list[JobsEffect]:
        """The worker cannot have this attempt, nor others of the job."""
        self._workers.turn_away(worker)
        self.job.workers = self._workers.cores()
        self._checkpoints.touch()  # the leader is to know, so that it grants another
        return [*self._lose(now, attempt, cause), *self.checkpoint(now)]

    def _lose(self, now: int, number: int, cause: str) -> list[JobsEffect]:
        """An attempt is gone. Its last counts are stored before anything takes its place."""
        attempt = self._running(number)
        if attempt is None or number in self.losses or self._results.has(number):
            return []  # its whole result, if that is here, counts as soon as it is stored
        worker = attempt.place
        if worker in self._workers.unfit():
            self._checkpoints.touch()  # it may have been the last one there
        self._commands.drop(number)
        if not attempt.go_at_ns:
            attempt.armed = False  # others that are ready wait for what takes its place
        has_counts = attempt.sequence > 0
        self.losses.add(now, number, cause, is_stored=not has_counts)
        news = TaskLost(self.entry.job, number, worker, cause)
        if not has_counts:
            return [news, *self._settle_losses(now)]
        saved = self.job.attempts[number][1].provided
        return [news, self._results.keep_counts(attempt, saved, self.job.origin_ns)]

    def _settle_losses(self, now: int) -> list[JobsEffect]:
        """Let the load job replace what was lost, once there are cores for it; without it after a while."""
        effects: list[JobsEffect] = []
        for attempt, cause in self.losses.due(now, self.job):
            effects += self._carry_out(now, self.job.on_exit(now, attempt, cause))
            if self.job.ended_ns:
                break
        return effects

    # -- checkpoints

    def checkpoint(self, now: int) -> list[JobsEffect]:
        """Tell the leader what is to be stored, if it is not."""
        if self._checkpoints.is_under_way or self._checkpoints.is_over:
            return []
        self._give_back()
        content = encode_checkpoint(checkpoint_of(self.job, self._results.kept, self._wall_offset_ns))
        # The leader takes all cores of such a worker back: not while something of the job may still run on them.
        unfit = [worker for worker in self._workers.unfit() if self.losses.are_all(self.job.attempts_at(worker))]
        back = () if self.job.ended_ns else cores_back(self.job, now)
        state, reason, resumes = self.state, self.reason, self.job.resumes
        if state is not self._told_state:
            self._told_state = state
            self._checkpoints.touch()
        spare = self._workers.spare()
        return [*self._checkpoints.say(now, content, state, tuple(unfit), spare, back, reason, resumes)]

    def _give_back(self) -> None:
        """Cores that nothing of the job is to need are used no more from now on: before the leader knows it, and so
        before anybody else may have them."""
        if self._workers.give_back(spare_cores(self.job)):
            self.job.workers = self._workers.cores()
            self._checkpoints.touch()


def _is_decision(effect: LoadEffect) -> bool:
    """Whether something was decided that must survive this manager. Most reports change nothing that does, and to deny
    more time changes nothing either; making the checkpoint of a large job takes a while."""
    match effect:
        case TellCore(message=Ack()):
            return False
        case TellCore(message=ShardAnswer(answer=answer)):
            return bool(answer)
        case _:
            return True


def _is_other(known: ShardAttempt, told: Report | Finished | AttemptResult) -> bool:
    """Whether this is told of another attempt with the same number: a register that was put back drew it again. A
    worker of a version before this one does not say."""
    return told.life not in (0, known.life)
