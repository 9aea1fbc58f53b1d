"""A job of many tasks that are alike, thrown away after its test: two numbers say which of them are ready."""

from talka.control.tasks.source import Source, TaskRange
from talka.control.tasks.task import Needs


class MillionTasks(Source):
    def __init__(self, count: int, needs: Needs, *, job: object = "million", priority: int = 5) -> None:
        self._job, self._needs, self._priority = job, needs, priority
        self._next, self._end = 0, count
        self._back: list[TaskRange] = []
        """What was drawn and is to be drawn again."""

    @property
    def job(self) -> object:
        return self._job

    @property
    def needs(self) -> Needs:
        return self._needs

    @property
    def priority(self) -> int:
        return self._priority

    @property
    def queued_at(self) -> int:
        return 0

    @property
    def ready(self) -> int:
        return self._end - self._next + sum([count for _, count in self._back])

    def draw(self, now: int, most: int) -> TaskRange:
        if not self._back:
            first = self._next
            count = min(most, self._end - first)
            self._next += count
            return first, count
        first, count = self._back.pop()
        if count > most:
            self._back.append((first + most, count - most))
        return first, min(count, most)

    def put_back(self, first: int, count: int) -> None:
        self._back.append((first, count))
