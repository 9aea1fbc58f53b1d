"""What a manager finds out before it leads a job that another one led: what workers have of it, and what was accepted."""

from collections.abc import Iterable, Mapping
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.units import MILLISECOND, SECOND
from talka.wire.jobs import CHANNEL, AttemptResult, Fence, Reconcile, TaskFacts, WorkerSnapshot

ASK_EVERY_NS: Final = SECOND // 2
REMIND_EVERY_NS: Final = SECOND
FENCE_ROUNDS: Final = 30


class TakeOver:
    """Asks every worker until it has answered. The fence is on a worker's disk before it answers, so that nothing of the
    manager before takes effect there any more."""

    def __init__(self, job: str, fence: Fence) -> None:
        self.results: dict[int, AttemptResult] = {}
        """What was accepted, by attempt."""
        self._job = job
        self._fence = fence
        self._snapshots: dict[str, dict[int, TaskFacts]] = {}
        self._heard_at: dict[str, int] = {}
        self._unfenced: dict[str, int] = {}
        """Workers that were lost and may be back, and how often they are still told."""
        self._numbers = 0
        self._ask_at = 0
        self._remind_at = 0

    def skip(self, workers: Iterable[str]) -> None:
        """Take it that these have nothing."""
        self._snapshots = {worker: {} for worker in workers}

    def ask(self, now: int, workers: Iterable[str]) -> list[object]:
        if now < self._ask_at:
            return []
        self._ask_at = now + ASK_EVERY_NS
        self._numbers += 1
        word = Reconcile(self._job, self._fence, self._numbers)
        return [Send(CHANNEL, worker, word, Lane.CONTROL) for worker in workers if worker not in self._snapshots]

    def also_tell(self, workers: Iterable[str]) -> None:
        """Workers that were lost may be back, and know only the manager before: they are told, and not waited for."""
        self._unfenced = {worker: FENCE_ROUNDS for worker in workers if worker not in self._snapshots}

    def remind(self, now: int) -> list[object]:
        if not self._unfenced or now < self._remind_at:
            return []
        self._remind_at = now + REMIND_EVERY_NS
        self._numbers += 1
        word = Reconcile(self._job, self._fence, self._numbers)
        effects: list[object] = [Send(CHANNEL, worker, word, Lane.CONTROL) for worker in self._unfenced]
        self._unfenced = {worker: rounds - 1 for worker, rounds in self._unfenced.items() if rounds > 1}
        return effects

    def on_snapshot(self, now: int, worker: str, snapshot: WorkerSnapshot) -> None:
        if snapshot.fence == self._fence:
            self._unfenced.pop(worker, None)
            self._snapshots[worker] = {facts.attempt: facts for facts in snapshot.tasks}
            self._heard_at[worker] = now

    def forget_others(self, lives: Mapping[int, int]) -> None:
        """Only what is on account under its whole name is there: of another life, the number is that of something else."""
        for worker, tasks in self._snapshots.items():
            self._snapshots[worker] = {
                number: facts for number, facts in tasks.items() if facts.life in (0, lives.get(number, facts.life))
            }

    def has(self, worker: str) -> bool:
        return worker in self._snapshots

    def facts(self, worker: str, attempt: int) -> TaskFacts | None:
        return self._snapshots.get(worker, {}).get(attempt)

    def waits(self, worker: str, attempt: int) -> bool:
        """The worker has it and was not told to start it: by nobody, as it hears the manager before no more."""
        facts = self.facts(worker, attempt)
        return facts is not None and facts.state in ("arming", "armed")

    def origins(self, origin_ms: int, wall_offset_ns: int) -> tuple[int, dict[int, int]]:
        """When the load began, by this manager's clock (0: not yet), and for each running attempt when its plan did.

        The wall clock in the record is asked only where no worker is left that knows how long ago it was.
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
