"""What a manager finds out before it leads a job that another one led: what workers have of it, and what was accepted.

See docs/decisions/0018-who-may-act-on-a-job.md.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.control.jobs.job_checkpoint import lives_of, resume
from talka.control.load.load_job import JobSpec, LoadJob
from talka.control.load.shard_run import ShardRun
from talka.units import MILLISECOND, SECOND
from talka.wire.entries import JobCheckpoint
from talka.wire.jobs import CHANNEL, AttemptResult, Fence, JobMessage, Reconcile, TaskFacts, WorkerSnapshot
from talka.work.lifecycle import TaskState, move

ASK_EVERY_NS: Final = SECOND // 2
REMIND_EVERY_NS: Final = SECOND
FENCE_ROUNDS: Final = 30


class TakeOver:
    """Asks every worker until it has answered. The fence is on a worker's disk before it answers, so that nothing of
    the manager before takes effect there any more."""

    def __init__(self, job: str, fence: Fence) -> None:
        self.results: dict[int, AttemptResult] = {}
        """What was accepted, by attempt."""
        self._job = job
        self._fence = fence
        self._snapshots: dict[str, dict[int, TaskFacts]] = {}
        """What each worker that answered has of the job, by attempt."""
        self._heard_at: dict[str, int] = {}
        self._unfenced: dict[str, int] = {}
        """Workers that were lost and may be back, and how often they are still told."""
        self._uncounted: dict[int, None] = {}
        """Attempts that ran at the take-over and have told no counts since."""
        self._numbers = 0
        self._ask_at = 0
        self._remind_at = 0

    def ask(self, now: int, workers: Iterable[str]) -> list[Send[JobMessage]]:
        if now < self._ask_at:
            return []
        self._ask_at = now + ASK_EVERY_NS
        return self._reconcile(worker for worker in workers if worker not in self._snapshots)

    def _reconcile(self, workers: Iterable[str]) -> list[Send[JobMessage]]:
        self._numbers += 1
        word = Reconcile(self._job, self._fence, self._numbers)
        return [Send(CHANNEL, worker, word, Lane.CONTROL) for worker in workers]

    def also_tell(self, workers: Iterable[str]) -> None:
        """Workers that were lost may be back, and know only the manager before: they are told, and not waited for."""
        self._unfenced = {worker: FENCE_ROUNDS for worker in workers if worker not in self._snapshots}

    def remind(self, now: int) -> list[Send[JobMessage]]:
        if not self._unfenced or now < self._remind_at:
            return []
        self._remind_at = now + REMIND_EVERY_NS
        effects = self._reconcile(self._unfenced)
        self._unfenced = {worker: rounds - 1 for worker, rounds in self._unfenced.items() if rounds > 1}
        return effects

    def on_snapshot(self, now: int, worker: str, snapshot: WorkerSnapshot) -> None:
        if snapshot.fence == self._fence:
            self._unfenced.pop(worker, None)
            self._snapshots[worker] = {facts.attempt: facts for facts in snapshot.tasks}
            self._heard_at[worker] = now

    def forget_others(self, lives: Mapping[int, int]) -> None:
        """Only what the checkpoint names with number and life is there: of another life, the number is of something
        else."""
        for worker, tasks in self._snapshots.items():
            self._snapshots[worker] = {
                number: facts for number, facts in tasks.items() if facts.life in (0, lives.get(number, facts.life))
            }

    def has_all(self, workers: Iterable[str]) -> bool:
        """Whether each of these has said what it has."""
        return all(worker in self._snapshots for worker in workers)

    def facts(self, worker: str, attempt: int) -> TaskFacts | None:
        return self._snapshots.get(worker, {}).get(attempt)

    def origins(self, origin_ms: int, wall_offset_ns: int) -> tuple[int, dict[int, int]]:
        """When the load began, by this manager's clock (0: not yet), and for each running attempt when its plan did.

        The wall clock in the entry is asked only where no worker is left that knows how long ago it was.
        """
        found = [
            (self._heard_at[worker], facts)
            for worker, tasks in self._snapshots.items()
            for facts in tasks.values()
            if facts.state in ("running", "ended") and facts.job_origin_age_ns
        ]
        origins = {facts.attempt: heard_at - facts.origin_age_ns for heard_at, facts in found}
        if found:
            return min(heard_at - facts.job_origin_age_ns for heard_at, facts in found), origins
        return (origin_ms * MILLISECOND - wall_offset_ns if origin_ms else 0), origins

    def resumed(
        self, now: int, spec: JobSpec, checkpoint: JobCheckpoint, wall_offset_ns: int, start_delay_ns: int
    ) -> LoadJob:
        """The load job, going on with the attempts that the manager before had given out."""
        self.forget_others(lives_of(checkpoint))
        origin_ns, origins = self.origins(checkpoint.origin_ms, wall_offset_ns)
        job = resume(spec, checkpoint, self.results, now=now, origin_ns=origin_ns, start_delay_ns=start_delay_ns)
        self._adopt(job, origins)
        return job

    def _adopt(self, job: LoadJob, origins: Mapping[int, int]) -> None:
        for run in job.workflows.values():
            if not run.is_under_way:
                continue
            is_untold = all(map(self._is_untold, run.shards))
            if run.state is TaskState.RUNNING and not run.stopped_ns and is_untold:
                job.start_anew(run)
            for shard in run.shards:
                if shard.is_done:
                    continue
                attempt = shard.current
                job.adopt(run, shard, attempt)
                if attempt.number in origins and run.state is TaskState.ASSIGNED:
                    run.state, run.origin_ns = move(run.state, TaskState.RUNNING), origins[attempt.number]

    def _is_untold(self, shard: ShardRun) -> bool:
        """Its worker has its first attempt and was not told to start it: by nobody, as it hears the manager before no
        more."""
        if (
            shard.is_done
            or shard.gap is not None
            or len(shard.attempts) - shard.aside != 1
            or shard.current.number in self.results
        ):
            return False
        facts = self.facts(shard.current.place, shard.current.number)
        return facts is not None and facts.state in ("arming", "armed")

    # -- after it

    def expect_counts(self, attempt: int) -> None:
        """It ran: the manager before had counts of it, and this one has none yet."""
        self._uncounted[attempt] = None

    def is_caught_up(self, job: LoadJob, lost: Container[int]) -> bool:
        """Whether every attempt that ran has told its counts, or is over: until then they seem to shrink."""
        running = job.attempts
        self._uncounted = {
            attempt: None
            for attempt in self._uncounted
            if attempt in running and not running[attempt][2].sequence and attempt not in lost
        }
        return not self._uncounted
