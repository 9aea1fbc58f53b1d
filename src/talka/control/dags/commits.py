"""Changes that are made durable together, and what follows once they are.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections import Counter
from itertools import count

import msgspec

from talka.control.dags.job import DagJob
from talka.control.tasks.partition import WHOLE, Partition
from talka.control.tasks.store_effects import CallAnswered, Commit, DagEnded
from talka.control.tasks.task import DagTask
from talka.wire.tasks import TimeAnswer
from talka.work.dags.records import Change


class After(msgspec.Struct):
    """What follows once a commit holds."""

    answers: list[CallAnswered] = []
    took: dict[str, list[int]] = {}
    """By worker, the fences of results that are durable now."""
    timed: dict[str, list[TimeAnswer]] = {}
    """By worker, what attempts are answered that asked for more time."""
    hand: list[tuple[DagTask, int]] = []
    """With the fence that was claimed: it may have another since."""
    ended: list[tuple[DagJob, DagEnded]] = []
    """With how it ended: it may run again since."""
    fan_out: list[tuple[DagTask, int]] = []
    """With the number under which it was asked for."""

    def join(self, other: "After") -> None:
        self.answers += other.answers
        self.hand += other.hand
        self.ended += other.ended
        self.fan_out += other.fan_out
        for name, fences in other.took.items():
            self.took.setdefault(name, []).extend(fences)
        for name, answers in other.timed.items():
            self.timed.setdefault(name, []).extend(answers)

    def __bool__(self) -> bool:
        return bool(self.answers or self.took or self.timed or self.hand or self.ended or self.fan_out)


class Commits:
    """Add to `changes` and `after`, `take` the commit at the end of each input, and tell which of them `held`."""

    def __init__(self, partition: Partition = WHOLE) -> None:
        self._partition = partition.number
        self.changes: list[Change] = []
        self.after = After()
        self._tickets = count(partition.first_number(1), partition.count)
        """No two partitions of a store draw the same."""
        self._waiting: dict[int, After] = {}
        """By ticket, of commits that are on their way to the store."""
        self._ending: Counter[int] = Counter()
        """By number of a job, how many of its ends the store does not know yet."""

    def end(self, job: DagJob) -> None:
        """The job's end is among `changes`."""
        self.after.ended.append((job, DagEnded(job.row.id, job.state, job.reason, job.counts())))
        self._ending[job.row.number] += 1

    def is_ending(self, job: DagJob) -> bool:
        return job.row.number in self._ending

    def take(self) -> Commit | None:
        """What was added since the last one, if anything was."""
        if not self.changes and not self.after:
            return None
        ticket = next(self._tickets)
        self._waiting[ticket] = self.after
        commit = Commit(ticket, tuple(self.changes), self._partition)
        self.changes, self.after = [], After()
        return commit

    def to_hand(self, tickets: tuple[int, ...]) -> list[DagTask]:
        """These became durable, and `held` is about to be told: what they give out, once."""
        found: list[DagTask] = []
        for ticket in tickets:
            after = self._waiting.get(ticket)
            if after is not None and after.hand:
                found += [task for task, fence in after.hand if task.fence == fence and task.worker]
                after.hand = []
        return found

    def held(self, tickets: tuple[int, ...]) -> After:
        """These became durable together: what follows from all of them."""
        waiting = self._waiting  # for some nobody waits
        found = [waiting.pop(ticket) if ticket in waiting else After() for ticket in tickets]
        if len(found) == 1:
            return found[0]
        after = After()
        for one in found:
            after.join(one)
        return after

    def ended(self, job: DagJob) -> bool:
        """One end of a job is durable: whether it was the last one on its way."""
        number = job.row.number
        self._ending[number] -= 1
        if self._ending[number]:
            return False
        del self._ending[number]
        return True
