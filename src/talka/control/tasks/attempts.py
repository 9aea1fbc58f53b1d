"""Attempts that are under way and the workers that have them: who beats, what each of them holds, what it is to stop.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0031-whose-attempt-it-is.md.
"""

from collections import Counter
from typing import Final

import msgspec

from talka.control.tasks.delivery import worker_key, worker_of
from talka.control.tasks.epoch_floor import EpochFloor
from talka.control.tasks.task import DagTask
from talka.control.tasks.worker_link import ToWorker
from talka.units import SECOND
from talka.wire.tasks import TASKS_LIMIT, AskHeld, Held, Recall, TaskProgress, TaskResult, TimeAnswer
from talka.work.dags.records import Change, Extend, LogRow, PutLogs

CHECK_EVERY_NS: Final = 5 * SECOND
"""How often a worker is asked whether it has what it was handed: a frame may have been lost with its connection."""
CHECK_AFTER_NS: Final = 3 * SECOND
"""What was handed later may still be on its way."""
ANSWER_NS: Final = 15 * SECOND
"""So long an answer is waited for. One that is later than the next question would speak of what was not handed then."""
GRACE_MS: Final = 30_000
TAKEN_LIMIT: Final = 65_536
"""Results that are remembered at least: one that is told again is not of a stale attempt."""


class WorkerState(msgspec.Struct):
    """What is known of one life of a worker."""

    key: str
    is_known: bool
    """What it holds of an earlier epoch or of another store is known, or there was nothing."""
    beat: int = 0
    """The number of the last that was heard."""
    asked_at: int = 0
    is_asked: bool = False
    """And has not answered yet."""
    missing: dict[int, None] = {}
    """Handed, and not held by it when it was asked: gone if it is so once more."""


class Attempts:
    """Tell it what is given out, handed, recalled and gone. Whoever is `lost` is still here until it is `gone`."""

    def __init__(self, floor: EpochFloor, *, taken_limit: int = TAKEN_LIMIT, recalls_limit: int = TASKS_LIMIT) -> None:
        self._taken_limit = taken_limit
        self._recalls_limit = recalls_limit
        self.running: dict[int, DagTask] = {}
        """By fence: those that were given out and of which nothing final was heard."""
        self.times: Counter[str] = Counter()
        """How often attempts were given more time, were not, and were warned."""
        self._floor = floor
        self._handed_at: dict[int, int] = {}
        """Not of those whose claim or inputs are waited for."""
        self._on_worker: dict[str, dict[int, DagTask]] = {}
        self._workers: dict[str, WorkerState] = {}
        """By name, those that beat."""
        self._recalled: dict[str, dict[int, None]] = {}
        """By worker: told again with each of its beats."""
        self._to_recall: dict[str, dict[int, None]] = {}
        self._taken: dict[int, tuple[int, int, int, str]] = {}
        """Job, index, number and worker of attempts whose results were accepted, by fence."""
        self._taken_before: dict[int, tuple[int, int, int, str]] = {}

    # Attempts.

    def add(self, task: DagTask) -> None:
        """It has a fence and a worker."""
        self.running[task.fence] = task
        self._on_worker.setdefault(task.worker, {})[task.fence] = task

    def handed(self, now: int, fence: int) -> None:
        """Its worker was told."""
        self._handed_at[fence] = now

    def recall(self, task: DagTask) -> None:
        self._recalled.setdefault(task.worker, {})[task.fence] = None
        self._to_recall.setdefault(task.worker, {})[task.fence] = None

    def gone(self, task: DagTask) -> None:
        """It is over, whatever came of it. Its worker and its fence are still in the task; what
        is told of it from now on counts for nothing."""
        fence, key = task.fence, task.worker
        self.running.pop(fence, None)
        self._handed_at.pop(fence, None)
        for by_worker in (self._on_worker, self._recalled, self._to_recall):
            if by_worker and (fences := by_worker.get(key)) is not None:
                fences.pop(fence, None)
                if not fences:
                    del by_worker[key]

    def may_fetch(self, worker: str, digest: str) -> bool:
        """Whether any life of the worker of this name was given a task, which has not ended, of a job that brought this
        bundle."""
        given = [
            task for key, tasks in self._on_worker.items() if worker_of(key)[0] == worker for task in tasks.values()
        ]
        return any(task.job.bundle is not None and task.job.bundle.digest == digest for task in given)

    def taken(self, task: DagTask) -> None:
        self._taken[task.fence] = (task.job.row.number, task.index, task.attempts, task.worker)
        if len(self._taken) >= self._taken_limit:
            self._taken_before, self._taken = self._taken, {}

    def was_taken(self, fence: int) -> bool:
        return fence in self._taken or fence in self._taken_before

    def of_others(self, results: tuple[TaskResult, ...], sender: str) -> set[int]:
        """The fences of those that another worker than this one has."""
        running, own = self.running, f"{sender}#"
        others: set[int] = set()
        for result in results:
            task = running.get(result.fence)
            if task is None or not task.worker or task.worker.startswith(own) or task.fence != result.fence:
                continue
            others.add(result.fence)
        return others

    def of_result(self, result: TaskResult) -> DagTask | None:
        """Whose it is; None: of no attempt that is under way."""
        task = self.running.get(result.fence)
        if task is not None and (result.task != task.id or result.job != task.job.row.id):
            if result.job or result.outcome != "cancelled":  # a worker that does not have the attempt names none
                return None
        return task

    def underway(
        self, now: int, message: TaskProgress, sender: str, answers: dict[str, list[TimeAnswer]]
    ) -> list[Change]:
        """What a worker tells of those that run: what is to be kept of it. Once that is, it hears the `answers` for
        it."""
        for fence in message.began:
            task = self.running.get(fence)
            if task is not None and not _is_others(task.worker, sender):
                task.job.began(now, task)
        changes: list[Change] = []
        for progress in message.progress:
            task = self.running.get(progress.fence)
            if task is None or _is_others(task.worker, sender):
                continue
            if task.checkpoint != progress.details:
                task.checkpoint = progress.details
                changes.append(Extend(task.job.row.number, task.index, task.fence, progress.details))
        for wrote in message.wrote:
            task = self.running.get(wrote.fence)
            if task is not None and not _is_others(task.worker, sender):
                changes.append(task.job.writes(task, wrote.tails))
        for asked in message.more_time:
            task = self.running.get(asked.fence)
            if task is None or _is_others(task.worker, sender):
                continue
            known = len(changes)
            answer = task.job.more_time(now, task, asked, changes)
            if answer is not None and len(changes) > known:
                self.times["warned" if asked.is_warned else "granted" if answer.granted_ms else "denied"] += 1
            if answer is not None:
                answers.setdefault(sender, []).append(answer)
        rows: list[LogRow] = []
        for line in message.lines:
            at = self._attempt(line.fence)
            if at is not None and not _is_others(at[3], sender):
                rows.append(LogRow(job=at[0], index=at[1], attempt=at[2], at_ms=line.at_ms, text=line.text))
        if rows:
            changes.append(PutLogs(tuple(rows)))
        return changes

    def _attempt(self, fence: int) -> tuple[int, int, int, str] | None:
        """Of one that runs, or whose last lines were overtaken by its result."""
        task = self.running.get(fence)
        if task is not None:
            return task.job.row.number, task.index, task.attempts, task.worker
        return self._taken.get(fence) or self._taken_before.get(fence)

    def recalls(self) -> list[ToWorker]:
        """To be said now, once."""
        if not self._to_recall:
            return []
        to_recall, self._to_recall = self._to_recall, {}
        return [effect for key, fences in to_recall.items() for effect in self._say_recall(key, list(fences))]

    def expected(self) -> list[tuple[str, int, int]]:
        """Name, boot and folder of the workers that have attempts."""
        return [worker_of(key) for key in self._on_worker]

    # Workers.

    def heard(
        self, now: int, name: str, boot: int, folder: int, beat: int, *, is_foreign: bool = False
    ) -> list[ToWorker]:
        """A worker beats: what is to be said to it. `is_foreign`: it has obeyed another store, or another life of this
        one, and is given nothing before it has dropped what it holds of that."""
        floor = self._floor
        key = worker_key(name, boot, folder)
        known = self._workers.get(name)
        if known is None or known.key != key:
            is_known = key not in self._on_worker and not is_foreign
            known = self._workers[name] = WorkerState(key, is_known=is_known)
        known.beat = max(known.beat, beat)
        effects: list[ToWorker] = []
        if not known.is_known or self._wants_check(now, known):
            known.asked_at, known.is_asked = now, True
            effects.append(ToWorker(name, AskHeld(floor.epoch, floor.life)))
        if key in self._recalled:
            effects += self._say_recall(key, list(self._recalled[key]))
        return effects

    def knows(self, name: str) -> bool:
        """Whether it may be given more: what it has of an earlier epoch is known."""
        known = self._workers.get(name)
        return known is not None and known.is_known

    def is_waited_for(self, name: str) -> bool:
        """Whether what it holds is asked for, and was not answered yet."""
        known = self._workers.get(name)
        return known is not None and not known.is_known

    def key_of(self, name: str) -> str:
        return self._workers[name].key

    def beat_of(self, name: str) -> int:
        """The number of the last beat that was heard of it; 0: none."""
        known = self._workers.get(name)
        return 0 if known is None else known.beat

    def forget_idle(self) -> list[str]:
        """Nobody tells any more who lives: the names of those that beat. Attempts go on, and what is known of those
        that have some stays: what was handed in this epoch may still be on its way to them."""
        names = list(self._workers)
        self._workers = {name: known for name, known in self._workers.items() if known.key in self._on_worker}
        return names

    def lost(self, name: str, boot: int) -> tuple[bool, list[DagTask]]:
        """This life runs nothing any more: whether it was the present one of that name, and what it had."""
        known = self._workers.get(name)
        was_present = known is not None and worker_of(known.key)[:2] == (name, boot)
        if was_present:
            del self._workers[name]
        keys = [key for key in self._on_worker if worker_of(key)[:2] == (name, boot)]
        return was_present, [task for key in keys for task in self._on_worker[key].values()]

    def holding(self, sender: str, message: Held) -> list[DagTask]:
        """The answer of a worker that was asked: those that it should have and does not."""
        known = self._workers.get(sender)
        if known is None or not known.is_asked or message.epoch != self._floor.epoch or message.parts > 1:
            return []  # in several parts: so many that nothing can be said to be missing
        held = dict.fromkeys(message.fences)
        for fence in held:
            if fence not in self.running and not self.was_taken(fence):
                # Given out by a life of this manager that did not keep it, or to another since: nobody waits for it.
                self._to_recall.setdefault(known.key, {})[fence] = None
        latest = known.asked_at - CHECK_AFTER_NS
        lost: list[DagTask] = []
        missing: dict[int, None] = {}
        for fence, task in self._on_worker.get(known.key, {}).items():
            if fence in held:
                continue
            if not known.is_known:  # they are all of an earlier epoch
                lost.append(task)
            elif self._handed_at.get(fence, latest + 1) <= latest:
                if fence in known.missing:
                    lost.append(task)
                else:
                    missing[fence] = None
        known.missing = missing
        known.is_known, known.is_asked = True, False
        return lost

    def _wants_check(self, now: int, known: WorkerState) -> bool:
        if now - known.asked_at < (ANSWER_NS if known.is_asked else CHECK_EVERY_NS):
            return False
        for fence in self._on_worker.get(known.key, ()):
            if fence in self._handed_at:  # the oldest that was
                return self._handed_at[fence] <= now - CHECK_AFTER_NS
        return False

    def _say_recall(self, key: str, fences: list[int]) -> list[ToWorker]:
        name = worker_of(key)[0]
        epoch, life, most = self._floor.epoch, self._floor.life, self._recalls_limit
        return [
            ToWorker(name, Recall(epoch, tuple(fences[first : first + most]), GRACE_MS, life))
            for first in range(0, len(fences), most)
        ]


def _is_others(worker: str, sender: str) -> bool:
    """Whether a worker is known to have it, and is not this one. Whatever life of it speaks, its results are its
    own."""
    return bool(worker) and not worker.startswith(f"{sender}#")
