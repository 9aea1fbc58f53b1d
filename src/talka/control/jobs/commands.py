"""What workers are told of each attempt of a job: said again until it is answered, and asked after when all is silent.

Instants are told by the worker's own clock, so a start waits until that clock is known. The variables of the job travel
sealed to the worker: see docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.jobs.workers.worker_keys import WorkerKeys
from talka.control.load.load_job import LoadJob
from talka.control.load.shard_run import ShardAttempt
from talka.control.member.clock_offsets import ClockOffsets
from talka.units import SECOND
from talka.wire.entries import JobEntry
from talka.wire.jobs import CHANNEL, Acknowledge, Assign, Fence, Halt, JobMessage, Start, Sync
from talka.wire.orders import BundleFacts
from talka.wire.shards import Go, ShardAnswer, TimeOver

AGAIN_NS: Final = SECOND
"""After which a command that nobody answered is given again."""
SILENCE_NS: Final = 3 * SECOND
"""Without a word from a running attempt its worker is asked whether it still has it."""
SYNC_EVERY_NS: Final = SECOND // 10


class _Command(msgspec.Struct):
    to: str
    message: JobMessage
    again_at: int
    lane: Lane = Lane.STREAM


class Commands:
    """Bounded by the attempts under way: whoever gives a command drops it when the attempt is over."""

    def __init__(
        self, job: str, fence: Fence, clocks: ClockOffsets, report_every_ms: Callable[[], int] = lambda: 0
    ) -> None:
        """`report_every_ms`: how often workers are to report, as the manager's load allows now; 0: as they like."""
        self._job = job
        self._fence = fence
        self._clocks = clocks
        self._report_every_ms = report_every_ms
        self._open: dict[int, _Command] = {}
        """The latest command that was not answered, per attempt."""
        self._starts: dict[int, tuple[str, Go]] = {}
        """Worker and start, per attempt that waits until the clock of its worker is known."""
        self._heard: dict[int, int] = {}
        self._answers: dict[int, ShardAnswer] = {}
        """To its latest ask for more time, per attempt: said with each acknowledgement, as one may be lost."""
        self._warnings: dict[int, TimeOver] = {}
        self._sync_at = 0

    def give(self, now: int, attempt: int, to: str, message: JobMessage, lane: Lane = Lane.STREAM) -> Send[JobMessage]:
        self._open[attempt] = _Command(to, message, now + AGAIN_NS, lane)
        return Send(CHANNEL, to, message, lane)

    def stop(self, now: int, attempt: int, worker: str) -> Send[JobMessage]:
        self._starts.pop(attempt, None)
        return self.give(now, attempt, worker, Halt(self._job, self._fence, attempt, "stop"), Lane.RESULTS)

    def kill(self, attempt: int, worker: str) -> Send[JobMessage]:
        """Said once: a worker that did not hear it is told by the leader that nobody waits for the job."""
        command, start = self._open.get(attempt), self._starts.get(attempt)
        told = command.to if command is not None else start[0] if start is not None else worker
        if told == worker:  # else another attempt of this number is under way at another worker
            self.drop(attempt)
            self._heard.pop(attempt, None)
        return Send(CHANNEL, worker, Halt(self._job, self._fence, attempt, "kill"), Lane.RESULTS)

    def acknowledge(self, attempt: int, worker: str, sequence: int, lane: Lane) -> Send[JobMessage]:
        """Say which report of the attempt arrived last; not said again, the next report is acknowledged too."""
        every_ms, answer, over = self._report_every_ms(), self._answers.get(attempt), self._warnings.get(attempt)
        message = Acknowledge(self._job, self._fence, attempt, sequence, every_ms, answer, over)
        return Send(CHANNEL, worker, message, lane)

    def tell_time(self, attempt: ShardAttempt, told: ShardAnswer | TimeOver) -> Send[JobMessage]:
        """Say that it has more time, or none: at once, and from now on with each acknowledgement."""
        if isinstance(told, ShardAnswer):
            self._answers[attempt.number] = told
        else:
            self._warnings[attempt.number] = told
        return self.acknowledge(attempt.number, attempt.place, attempt.sequence, Lane.STREAM)

    def refuse(self, attempt: int, worker: str) -> Send[JobMessage]:
        """Say that a report was not counted."""
        told = self.acknowledge(attempt, worker, 0, Lane.STATISTICS)
        return msgspec.structs.replace(told, message=msgspec.structs.replace(told.message, is_refusal=True))

    def pending(self, attempt: int) -> JobMessage | None:
        """What has not been answered."""
        command = self._open.get(attempt)
        return None if command is None else command.message

    def answered(self, attempt: int) -> None:
        """The last command need not be said again."""
        self._open.pop(attempt, None)

    def drop(self, attempt: int) -> None:
        """The attempt is over: nothing more is said to it."""
        for known in (self._open, self._starts, self._answers, self._warnings):
            known.pop(attempt, None)

    def heard(self, now: int, attempt: int) -> None:
        self._heard[attempt] = now

    def ask_silent(self, now: int, attempts: Iterable[ShardAttempt]) -> list[Send[JobMessage]]:
        """An attempt that says nothing may be gone while its worker lives: a repeated command finds out."""
        return [
            self.acknowledge(one.number, one.place, one.sequence, Lane.STREAM)
            for one in attempts
            if self.is_silent(now, one.number)
        ]

    def is_silent(self, now: int, attempt: int) -> bool:
        """Whether it is time to ask after an attempt; then not again before a while."""
        if attempt in self._open or now - self._heard.setdefault(attempt, now) < SILENCE_NS:
            return False
        self._heard[attempt] = now - SILENCE_NS + AGAIN_NS
        return True

    def again(self, now: int) -> list[Send[JobMessage]]:
        effects: list[Send[JobMessage]] = []
        for command in self._open.values():
            if now >= command.again_at:
                command.again_at = now + AGAIN_NS
                effects.append(Send(CHANNEL, command.to, command.message, command.lane))
        return effects

    # -- starts, and the clocks they are told by

    def start(self, now: int, attempt: int, worker: str, go: Go) -> list[Send[JobMessage]]:
        """Tell the attempt when to start; as soon as the clock of its worker is known, if it is not."""
        if not self._clocks.knows(worker):
            self._starts[attempt] = (worker, go)
            return []
        there = self._clocks.there
        start_at_ns, origin_ns = there(worker, go.start_at_ns), there(worker, go.origin_ns)
        job_origin_ns = there(worker, go.job_origin_ns)
        message = Start(self._job, self._fence, attempt, start_at_ns, origin_ns, job_origin_ns)
        return [self.give(now, attempt, worker, message, Lane.CONTROL)]

    def on_clock(self, now: int, worker: str) -> list[Send[JobMessage]]:
        """A worker has told its time: those that wait for it can be started."""
        ready = [(attempt, go) for attempt, (to, go) in self._starts.items() if to == worker]
        for attempt, _ in ready:
            del self._starts[attempt]
        return [said for attempt, go in ready for said in self.start(now, attempt, worker, go)]

    def ask_clock(self, now: int, worker: str) -> Send[JobMessage]:
        return Send(CHANNEL, worker, Sync(self._clocks.asked(now, worker)), Lane.CONTROL)

    def ask_clocks(self, now: int, attempts: Iterable[ShardAttempt]) -> list[Send[JobMessage]]:
        """Ask the time of workers that will soon be told an instant, ten times a second at most."""
        if now < self._sync_at:
            return []
        self._sync_at = now + SYNC_EVERY_NS
        workers = (one.place for one in attempts if not one.go_at_ns or not self._clocks.knows(one.place))
        return [self.ask_clock(now, worker) for worker in dict.fromkeys(workers)]


class Assignments:
    """The orders that give workers their attempts."""

    def __init__(self, entry: JobEntry, keys: WorkerKeys) -> None:
        self._entry = entry
        self._keys = keys
        self._waiting: dict[int, None] = {}
        """Attempts whose workers have not told yet which key variables are sealed to."""

    def make(self, job: LoadJob, number: int, boot: int) -> Assign | None:
        """The order for an attempt that runs; `boot` is its worker's life. None: the worker has not told its key yet,
        and the attempt is among `waiting`. `CannotSeal` when it has none that can be used."""
        run, shard, attempt = job.attempts[number]
        part, order = shard.shard, self._entry.order
        sealed = self._sealed(number, attempt.place, boot)
        if sealed is None:
            self._waiting[number] = None
            return None
        bundle, variables = sealed
        return Assign(
            job=self._entry.job,
            fence=self._entry.fence,
            attempt=number,
            workflow=run.spec.name,
            plan=run.spec.plan,
            first=part.index,
            count=part.count,
            of=part.of,
            iterations_done=shard.done_by_shard,
            values=job.values_for(run),
            settings=order.settings,
            bundle=bundle,
            is_test=run.spec.is_test,
            boot=boot,
            seats=attempt.seats,
            variables=variables,
            life=attempt.life,
        )

    def _sealed(self, number: int, worker: str, boot: int) -> tuple[BundleFacts, bytes] | None:
        """The bundle without its variables, and these sealed to the worker's life. None: it has not told its key
        yet."""
        bundle = self._entry.order.bundle
        if not bundle.env:
            return bundle, b""
        sealed = self._keys.seal(bundle.env, self._entry.job, number, worker, boot)
        return None if sealed is None else (msgspec.structs.replace(bundle, env={}), sealed)

    def waiting(self) -> list[int]:
        """Attempts to be tried again: workers beat once a second to every manager, and some may have told their key."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting)
