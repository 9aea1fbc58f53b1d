"""Who waits for an answer of the keeper of dag jobs."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from talka.client.dags import Submitted
from talka.control.tasks.store_effects import CallAnswered
from talka.errors import TalkaError
from talka.wire.task_views import DagFacts

Waiting: TypeAlias = "Submitted | asyncio.Future[str]"
"""Told the facts of the job, or its id."""


class DagAnswers:
    """`add` whoever waits under a new number, and `answer` when the keeper has."""

    def __init__(self, facts_of: Callable[[str], DagFacts | TalkaError]) -> None:
        """`facts_of` a job that was just submitted, by its id."""
        self._facts_of = facts_of
        self._calls = 0
        self._waiting: dict[int, Waiting] = {}

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def add(self, call: int, waiting: Waiting) -> None:
        self._waiting[call] = waiting

    def forget(self, call: int) -> None:
        self._waiting.pop(call, None)

    def answer(self, answer: CallAnswered) -> None:
        waiting = self._waiting.pop(answer.call, None)
        if isinstance(waiting, asyncio.Future):
            if waiting.done():
                return
            if answer.error is None:
                waiting.set_result(answer.job)
            else:
                waiting.set_exception(answer.error)
        elif waiting is not None:
            waiting(answer.error or self._facts_of(answer.job))

    def fail(self, error: TalkaError) -> None:
        """Tell everybody who waits that this is all they will hear."""
        for call in list(self._waiting):
            self.answer(CallAnswered(call, "", error))
