"""What clients of dag jobs have under way: jobs whose tasks come in parts, and calls that wait for an answer."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Final, TypeAlias

from talka.client.requests import TooBusy
from talka.control.tasks.store_effects import CallAnswered
from talka.errors import Invalid, TalkaError
from talka.work.dags.dag import TaskSpec, encode_task
from talka.work.dags.params import Filler
from talka.work.dags.records import JobRow

SILENCE_S: Final = 300.0
"""After which a job of which nothing more came is dropped."""
DRAFTS_LIMIT: Final = 64
BUSY_S: Final = 2.0

Waiting: TypeAlias = "Callable[[str | TalkaError], None] | asyncio.Future[str]"
"""Told the id of the job."""


class DagDraft:
    """A job whose tasks come in parts."""

    def __init__(
        self, known: JobRow | None, at_s: float, filler: Filler, bundled: Collection[str], *, waits: bool
    ) -> None:
        self.filler = filler
        self.bundled = bundled
        """Handlers that travel with it."""
        self.waits = waits
        """For workers that could run its tasks."""
        self.known = known
        """The job that has its key already, which it has to be the same as."""
        self.touched_at_s = at_s
        self.tasks = 0
        self.keys: dict[str, None] = {}
        """Idempotency keys of its tasks."""
        self.digest = hashlib.sha256()
        """Of its tasks, where there is something to compare it with."""

    def filled(self, tasks: Sequence[TaskSpec]) -> Sequence[TaskSpec]:
        """A part of it. Raises `BadDag`."""
        found = self.filler.tasks(tasks)
        if self.filler.problems:
            raise self.filler.problems[0]
        return found

    def add(self, tasks: Sequence[TaskSpec]) -> int:
        """How many there are now."""
        if self.known is not None:
            for task in tasks:
                self.digest.update(encode_task(task) + b"\n")
        self.keys.update(dict.fromkeys([task.key for task in tasks if task.key]))
        self.tasks += len(tasks)
        return self.tasks


class DagDrafts:
    """By the id of the job to be. Times are those of the loop, in seconds."""

    def __init__(self, limit: int = DRAFTS_LIMIT, silence_s: float = SILENCE_S) -> None:
        self._limit = limit
        self._silence_s = silence_s
        self._drafts: dict[str, DagDraft] = {}

    def check_room(self) -> None:
        if len(self._drafts) >= self._limit:
            raise TooBusy(f"{self._limit} jobs are being streamed already: try again later", BUSY_S)

    def open(
        self, id: str, known: JobRow | None, at_s: float, filler: Filler, bundled: Collection[str], *, waits: bool
    ) -> None:
        """`filler` of its tasks; `bundled` handlers travel with it; `waits` for workers that could run them."""
        self._drafts[id] = DagDraft(known, at_s, filler, bundled, waits=waits)

    def find(self, id: str, at_s: float) -> DagDraft:
        """One of which more comes now."""
        found = self._drafts.get(id)
        if found is None:
            raise Invalid("this job is not being submitted, or was broken off: submit it again")
        found.touched_at_s = at_s
        return found

    def close(self, id: str) -> DagDraft | None:
        """It is ended or dropped."""
        return self._drafts.pop(id, None)

    def silent(self, at_s: float) -> list[str]:
        """Those of which nothing came for too long."""
        return [id for id, draft in self._drafts.items() if at_s - draft.touched_at_s > self._silence_s]


class DagAnswers:
    """Whoever is `waiting` under a number of `calls` has an `answer` when the keeper has."""

    def __init__(self) -> None:
        self.calls = count(1)
        self.waiting: dict[int, Waiting] = {}
        self._partitions: dict[int, int] = {}
        """Of the keepers that are to answer, by call."""

    def wait(self, call: int, waiting: Waiting, partition: int) -> None:
        """Until the keeper of this partition has answered."""
        self.waiting[call], self._partitions[call] = waiting, partition

    def forget(self, call: int) -> None:
        """Nobody waits any more."""
        self.waiting.pop(call, None)
        self._partitions.pop(call, None)

    def answer(self, answer: CallAnswered) -> None:
        waiting = self.waiting.get(answer.call)
        self.forget(answer.call)
        if isinstance(waiting, asyncio.Future):
            if waiting.done():
                return
            if answer.error is None:
                waiting.set_result(answer.job)
            else:
                waiting.set_exception(answer.error)
        elif waiting is not None:
            waiting(answer.error or answer.job)

    def fail(self, error: TalkaError, partition: int | None = None) -> None:
        """Tell everybody who waits, or waits for the keeper of this partition, that this is all they will hear."""
        for call, of in list(self._partitions.items()):
            if partition in (None, of):
                self.answer(CallAnswered(call, "", error))
