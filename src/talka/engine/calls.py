"""What a client must know of the method that calls it, and tells it of every call.

It travels in a context variable, so that steps of one layer, and tasks a step starts by itself, each find their own.
See docs/decisions/0027 for what is counted.
"""

from collections.abc import Container
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from talka.errors import TalkaError
from talka.stats.tally import Sample
from talka.work.responses import Response


class CallRows(Protocol):
    """Where the calls of one method are counted, by name; None is the method's own."""

    def answered(self, name: str | None, response: Response) -> Sample | None:
        """The failure, where the answer is one."""

    def failed(self, name: str | None, error: BaseException, intended_ns: int) -> Sample: ...

    def cut(self, name: str | None) -> None: ...


@dataclass(slots=True, eq=False)
class NodeRun:
    """One run of one method: when it should have started, which answers it accepts, and what its calls came to."""

    intended_ns: int
    """Taken by the first call, which sets it to 0: later ones start when they are made."""
    _rows: CallRows
    expect: Container[int] = ()
    """Statuses of 400 and above that are no failure."""
    failure: Sample | None = None
    """Of the first call that failed."""
    has_waited: bool = False
    """A call was answered or timed out: somebody waited for the target."""

    def answered(self, name: str | None, response: Response) -> None:
        self.has_waited = True
        failure = self._rows.answered(name, response)
        if failure is not None and self.failure is None:
            self.failure = failure

    def failed(self, name: str | None, error: BaseException, intended_ns: int) -> None:
        """A call got no answer."""
        failure = self._rows.failed(name, error, intended_ns)
        self.has_waited = self.has_waited or failure.kind == "timeout"
        if self.failure is None:
            self.failure = failure

    def cut(self, name: str | None) -> None:
        """A call was interrupted."""
        self._rows.cut(name)


def checked_name(name: object) -> None:
    """Refuses what cannot be the name of a call."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name={name!r} is not a text: it is the row under which the call is counted")


current_call: ContextVar[NodeRun] = ContextVar("current_call")


class ExchangeFailed(TalkaError):
    """A call that got no answer, with the kind under which it is counted."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class NotSent(ExchangeFailed):
    """A call that failed before anything of it was on the wire."""


def taken_ns(run: NodeRun | None, now: int) -> int:
    """When a call that is made now should have been made: the first of a run takes the instant the run was due."""
    if run is None or not run.intended_ns:
        return now
    intended_ns, run.intended_ns = run.intended_ns, 0
    return intended_ns
