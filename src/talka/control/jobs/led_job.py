"""A job on a cluster, as the manager sees it that leads it: from the word of the leader to the end that is stored.

A job that another manager led is taken over first: `TakeOver` finds out what the workers have. Then `RemoteLoad` runs
it. See docs/decisions/0018-who-may-act-on-a-job.md.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final, Literal

import msgspec

from talka.control.jobs.attempt_results import AttemptResults
from talka.control.jobs.checkpoints import Checkpoints
from talka.control.jobs.commands import SYNC_EVERY_NS
from talka.control.jobs.effects import JobOver, JobsEffect, KeepWanted
from talka.control.jobs.job_checkpoint import closed_of, spec_of
from talka.control.jobs.job_view import facts_of
from talka.control.jobs.remote_load import RemoteLoad
from talka.control.jobs.take_over import TakeOver
from talka.control.jobs.workers.granted_workers import GrantedWorkers
from talka.control.jobs.workers.worker_keys import WorkerKeys
from talka.control.load.load_job import JobSpec, LoadJob
from talka.control.load.log_lines import JobLines
from talka.control.member.clock_offsets import ClockOffsets
from talka.stats.tally import merged
from talka.wire.entries import JobEntry, decode_checkpoint
from talka.wire.jobs import (
    AttemptResult,
    CheckpointStored,
    Finished,
    JobMessage,
    LogLines,
    NoTask,
    Report,
    Stale,
    StoreCheckpoint,
    TaskDeclined,
    WorkerSnapshot,
)
from talka.wire.views import JobFacts
from talka.work.lifecycle import JobState

START_DELAY_NS: Final = 150_000_000
"""Between the decision to go and the instant: time to store it, and to reach the slowest worker."""


class LedJob:
    """Call `start` once, then `on_…` and `tick` as things happen, and carry out what they return."""

    def __init__(
        self,
        entry: JobEntry,
        *,
        life: int,
        clocks: ClockOffsets,
        keys: WorkerKeys,
        wall_offset_ns: int,
        every_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`life`: the boot of this manager. `every_ms`: how often workers are to report, as its load allows now."""
        self.entry = entry
        self.fence = entry.fence
        self.next_tick_at = 0
        self.lines = JobLines()
        self.warnings: list[str] = []
        """What a reader of the result should know besides what the load job tells."""
        self._load: RemoteLoad | None = None
        """None until what the workers have is known."""
        self._life = life
        self._clocks = clocks
        self._keys = keys
        self._wall_offset_ns = wall_offset_ns
        self._every_ms = every_ms
        self._workers = GrantedWorkers(entry.grants)
        self._checkpoints = Checkpoints(entry.job, entry.fence, life)
        self._take_over = TakeOver(entry.job, entry.fence)
        self._results = AttemptResults(entry.job)
        self._end: StoreCheckpoint | None = None
        """Once the job has ended and its document is made."""

    # -- what is known

    @property
    def name(self) -> str:
        return self.entry.job

    @property
    def job(self) -> LoadJob | None:
        """None until what the workers have is known."""
        return None if self._load is None else self._load.job

    @property
    def phase(self) -> Literal["reconciling", "leading", "documenting", "closing", "over"]:
        """Asking workers what they have; running it; making its result document; storing its end; nothing any more."""
        if self._checkpoints.is_over:
            return "over"
        if self._load is None:
            return "reconciling"
        if self._checkpoints.is_closing:
            return "closing"
        return "documenting" if self._load.job.ended_ns else "leading"

    def is_caught_up(self) -> bool:
        """Whether everything that ran when the job was taken over has told its counts: until then they seem to
        shrink."""
        load = self._load
        return load is None or self._take_over.is_caught_up(load.job, load.losses)

    def facts(self) -> JobFacts:
        facts = facts_of(self.entry)
        return facts if self._load is None else msgspec.structs.replace(facts, state=self._load.state)

    # -- the leader's word

    def on_entry(self, now: int, entry: JobEntry, *, asks: bool = False) -> list[JobsEffect]:
        """The leader tells the entry. `asks`: it wants a checkpoint, as it does not know when cores come back."""
        if entry.fence != self.fence:
            return []
        self._checkpoints.heard_leader(now)
        if asks and self._load is not None:
            self._checkpoints.touch()
        if entry.version <= self.entry.version:
            return []
        self.entry = entry
        self._workers.update(entry.grants)
        if self._load is not None:
            return self._load.on_entry(now, entry)
        self._fence_gone()
        return self._take_up_if_known(now)

    def on_checkpoint_stored(self, now: int, message: CheckpointStored) -> list[JobsEffect]:
        """The leader answers a checkpoint: it is on a majority of disks, or another manager leads the job."""
        if not self._checkpoints.is_mine(message) or self._checkpoints.is_over:
            return []
        if message.superseded:
            return self._give_up()
        held = self._checkpoints.on_stored(message.revision)
        if self._load is None:
            return []
        effects = self._load.do(now, held)
        if self._checkpoints.is_closed:
            return [*effects, JobOver(self.name)]
        return [*effects, *self._load.checkpoint(now)]

    def _give_up(self) -> list[JobsEffect]:
        """Another manager leads the job."""
        self._checkpoints.drop()
        return [JobOver(self.name, superseded=True)]

    # -- what workers say

    def on_message(self, now: int, sender: str, message: JobMessage) -> list[JobsEffect]:
        if not self._workers.was_granted(sender):
            return []
        match message:
            case WorkerSnapshot():
                self._take_over.on_snapshot(now, sender, message)
                return self._take_up_if_known(now)
            case Stale(highest=highest):
                return [] if highest <= self.fence else self._give_up()
            case LogLines():
                self.lines.add(now, sender, message)
                return []
            case Finished() if self._load is not None:
                return self._load.on_finished(now, sender, message)
            case Report() | NoTask() | TaskDeclined() if self._load is not None:
                return self._load.on_word(now, sender, message)
            case _:
                return []

    def refuse(self, now: int, sender: str, report: Report) -> list[JobsEffect]:
        """Not to be counted now, as this manager has too much to do."""
        if self._load is None or not self._workers.was_granted(sender):
            return []
        return self._load.refuse(now, sender, report)

    def on_clock(self, now: int, worker: str) -> list[JobsEffect]:
        """A worker has told its time."""
        return [] if self._load is None else self._load.on_clock(now, worker)

    # -- blobs

    def on_blob(self, now: int, digest: str, content: bytes | None) -> list[JobsEffect]:
        """A blob that was wanted, or None when nobody has it any more."""
        fetched = self._results.fetched(digest, content)
        if fetched is None:
            return []
        attempt, result = fetched
        if self._load is None:
            if result is None:
                self.warnings.append(f"the result of task {attempt} was kept and cannot be found: it is missing")
            self._take_over.results[attempt] = result or AttemptResult(self.name, attempt, merged([]), [], is_lost=True)
            return self._take_up_if_known(now)
        if result is None or content is None or (result.job, result.attempt) != (self.name, attempt):
            return []  # asked again when the worker offers it again
        return self._load.on_fetched(digest, content, result)

    def on_kept(self, now: int, digest: str) -> list[JobsEffect]:
        """A blob is on a majority of disks."""
        if self._end is not None and digest == self._end.result:
            return [] if self._checkpoints.is_closing else [*self._checkpoints.close(now, self._end)]
        return [] if self._load is None else self._load.on_kept(now, digest)

    def on_document(self, now: int, content: bytes, state: JobState, exit_code: int, reason: str) -> list[JobsEffect]:
        """The result document was made: it is kept by a majority, then the end of the job is stored."""
        digest = sha256(content).hexdigest()
        self._end = StoreCheckpoint(self.name, self.fence, 0, state, b"", reason, digest, exit_code, life=self._life)
        return [KeepWanted(self.name, digest, content)]

    # -- time

    def tick(self, now: int) -> list[JobsEffect]:
        self.next_tick_at = now + SYNC_EVERY_NS
        if self._checkpoints.is_over:
            return []
        effects: list[JobsEffect] = [*self._checkpoints.ask_leader(now), *self._take_over.remind(now)]
        if self._load is None:
            return [*effects, *self._take_over.ask(now, self._workers.granted())]
        return [*effects, *self._load.tick(now)]

    # -- beginning, and taking over

    def start(self, now: int) -> list[JobsEffect]:
        """Lead a new job at once; of one that another manager led, ask its workers first."""
        if not self.entry.checkpoint:
            return self._lead(now, LoadJob(self._spec(), start_delay_ns=START_DELAY_NS))
        effects = self._results.fetch_kept(closed_of(decode_checkpoint(self.entry.checkpoint)))
        self._fence_gone()
        asked = self._take_over.ask(now, self._workers.granted())
        return [*effects, *asked, *self._take_up_if_known(now)]

    def _spec(self) -> JobSpec:
        return spec_of(self.name, self.entry.order, max(1, sum(self._workers.cores().values())))

    def _fence_gone(self) -> None:
        """Workers that were lost may be back: they are told of this manager too."""
        self._take_over.also_tell(self._workers.gone())

    def _take_up_if_known(self, now: int) -> list[JobsEffect]:
        """Go on with the job, once its results are here and every worker has said what it has."""
        if self._load is not None or self._results.is_fetching or not self._take_over.has_all(self._workers.granted()):
            return []
        checkpoint = decode_checkpoint(self.entry.checkpoint)
        job = self._take_over.resumed(now, self._spec(), checkpoint, self._wall_offset_ns, START_DELAY_NS)
        return self._lead(now, job)

    def _lead(self, now: int, job: LoadJob) -> list[JobsEffect]:
        job.life = self._life
        self._load = RemoteLoad(
            job,
            self.entry,
            workers=self._workers,
            results=self._results,
            checkpoints=self._checkpoints,
            clocks=self._clocks,
            keys=self._keys,
            wall_offset_ns=self._wall_offset_ns,
            every_ms=self._every_ms,
        )
        effects = self._load.begin(now, self._take_over)
        self._take_over.results.clear()
        return effects
