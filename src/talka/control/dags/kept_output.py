"""How much is kept of what the attempts of a dag job write: by task, and of each stream of those under way.

Decision: docs/decisions/0047-the-last-words-of-an-attempt.md.
"""

from collections.abc import Iterable, Sequence

from talka.control.dags.rows import kept_streams
from talka.control.tasks.task import DagTask
from talka.wire.output_tail import STREAMS, StreamTail
from talka.wire.tasks import TaskResult
from talka.work.dags.records import Change, PutStreams, StreamRow


class KeptOutput:
    """Tell it what attempts write, when they are over, and which tasks go. Its size is that of the store's rows."""

    def __init__(self, number: int, size_bytes: int, limit_bytes: int) -> None:
        """Of the job with this number; `size_bytes`: what the store has of it. Half of the limit is for attempts that
        did not complete their tasks."""
        self.size_bytes = size_bytes
        self._number = number
        self._limit_bytes = limit_bytes
        self._of_tasks: dict[int, int] = {}
        """By index, of those of which anything is kept."""
        self._writing: dict[int, dict[str, int]] = {}
        """Of each stream of the attempts under way, by fence."""

    def restore(self, rows: Iterable[StreamRow], tasks: Sequence[DagTask]) -> None:
        """Counted in the size already. `tasks`: all that there are so far, by their index."""
        for row in rows:
            self._grow(row.index, row.kept)
            task = tasks[row.index]
            if task.worker and task.fence == row.fence:
                self._writing.setdefault(row.fence, {})[row.stream] = row.kept

    @property
    def has_writers(self) -> bool:
        """Something is kept of what attempts under way wrote."""
        return bool(self._writing)

    def writes(self, task: DagTask, tails: tuple[StreamTail, ...]) -> PutStreams:
        """What an attempt under way has written so far."""
        before = self._writing.setdefault(task.fence, {})
        change = self._put(task, tails, before, self._limit_bytes // 2)
        before.update({row.stream: row.kept for row in change.rows})
        return change

    def wrote(self, task: DagTask, result: TaskResult) -> list[Change]:
        """What an attempt wrote that has just ended: instead of what was kept while it ran. It has its fence still."""
        before = self._writing.pop(task.fence, {})
        named = [tail.stream for tail in result.tails]
        over = [stream for stream in STREAMS if stream in before and stream not in named]
        tails = result.tails + tuple([StreamTail(stream, b"", 0) for stream in over])
        if not tails:
            return []
        return [self._put(task, tails, before, self._limit_bytes // (2 if result.outcome == "completed" else 1))]

    def over(self, fence: int) -> None:
        """An attempt ended without a word of what it wrote: what is kept of it stays."""
        self._writing.pop(fence, None)

    def let_go(self, tasks: Sequence[DagTask]) -> None:
        """They are of the job no more, and nor is what they wrote."""
        self.size_bytes -= sum([self._of_tasks.pop(task.index, 0) for task in tasks])

    def _put(self, task: DagTask, tails: tuple[StreamTail, ...], before: dict[str, int], limit: int) -> PutStreams:
        """`before`: what is kept of its streams. Those that are not among the tails stay."""
        others = self.size_bytes - sum([before.get(stream, 0) for stream in {tail.stream for tail in tails}])
        change = kept_streams(self._number, task, tails, others, limit)
        self._grow(task.index, change.output_bytes - self.size_bytes)
        self.size_bytes = change.output_bytes
        return change

    def _grow(self, index: int, by: int) -> None:
        if by:
            self._of_tasks[index] = self._of_tasks.get(index, 0) + by
