"""A job on a cluster, run and told of like one on this machine. Imported only by commands that need it."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from talka.cli.jobs import Progress, Reporting
from talka.cli.output import tell
from talka.client.client import Client
from talka.client.requests import ClusterUnreachable, NoResult
from talka.client.sheets import waiting_text
from talka.client.watched_job import WatchedJob
from talka.clock import monotonic_ns
from talka.control.load.log_lines import news_in
from talka.errors import TalkaError
from talka.nodes.local import signals_to
from talka.report.document import ResultDocument, read
from talka.report.tame import tame
from talka.report.text import counted_text
from talka.units import SECOND
from talka.wire.orders import JobOrder, Outlined
from talka.wire.views import JobFacts, JobUpdate
from talka.work.lifecycle import JobState
from talka.work.outcome import ExitCode

Signal = Literal["SIGINT", "SIGTERM"]


class LeftRunning(TalkaError):
    """Whoever watched does not want to any longer; the job is still there."""

    def __init__(self, text: str, signal: Signal) -> None:
        super().__init__(text)
        self.exit_code = int(ExitCode[signal])


class RemoteJob:
    """A job of the order, once `submitted` was told its id. A signal cancels it, where `cancels`; else it only
    leaves."""

    def __init__(
        self, client: Client, order: JobOrder, specs: Sequence[Outlined], *, cancels: bool, logs: bool = False
    ) -> None:
        """`logs`: what the test prints on the workers is told, too."""
        self.specs = specs
        self._lines = LineTeller(tell) if logs else None
        self.id = ""
        self._client = client
        self._order = order
        self._cancels = cancels
        self._watched = WatchedJob("", order)
        self._signal: Signal | None = None
        self._is_cancelled = False
        self._watching: asyncio.Task[bytes] | None = None
        self._cancelling: asyncio.Task[None] | None = None

    def submitted(self, facts: JobFacts) -> None:
        self.id = facts.id
        self._watched = WatchedJob(facts.id, self._order)
        self._watched.facts = facts

    @property
    def name(self) -> str:
        return self._order.name

    @property
    def cores(self) -> int:
        """Granted so far, or asked for."""
        return max(1, self._watched.view.cores)

    @property
    def facts(self) -> JobFacts | None:
        return self._watched.facts

    def exit_code_of(self, state: str, code: int) -> int:
        """Of a job that ended like this: our own signal is what people know of its cancelling."""
        return int(ExitCode[self._signal]) if self._signal is not None and state == JobState.CANCELLED else code

    def waiting(self) -> str:
        """What it waits for before it begins; empty once it has begun."""
        facts = self._watched.facts
        return "" if facts is None or self._watched.view.origin_ns else waiting_text(facts)

    async def run(
        self, *, on_progress: Progress | None = None, progress_every_ns: int = SECOND, handle_signals: bool = False
    ) -> ResultDocument:
        with signals_to(self._interrupt) if handle_signals else contextlib.nullcontext():
            self._watching = asyncio.create_task(self._watch(on_progress))
            try:
                while not self._watching.done():
                    await asyncio.wait([self._watching], timeout=progress_every_ns / SECOND)
                    if on_progress is not None:
                        on_progress(self._watched.view, monotonic_ns())
                if self._watching.cancelled():
                    assert self._signal is not None  # nothing else cancels it
                    raise LeftRunning(self._farewell(), self._signal)
                document = read(self._watching.result())
            finally:
                await ended(self._watching, self._cancelling)
        code = self.exit_code_of(document.status, document.exit_code)
        return msgspec.structs.replace(document, exit_code=code)

    async def _watch(self, on_progress: Progress | None) -> bytes:
        told: str | None = None
        async with contextlib.aclosing(self._client.watch(self.id, steps=True)) as updates:
            async for update in updates:
                now = monotonic_ns()
                self._watched.apply(now, update)
                if self._lines is not None:
                    self._lines(update)
                if on_progress is not None and told != self.waiting():  # its place in the queue, or that it begins
                    told = self.waiting()
                    on_progress(self._watched.view, now)
        return await self._client.wait(self.id)

    def _interrupt(self, name: Signal) -> None:
        assert self._watching is not None
        is_first, self._signal = self._signal is None, self._signal or name
        if is_first and self._cancels:
            tell(f"cancelling job {self.id} and waiting for its result; a second Ctrl-C leaves at once")
            self._cancelling = asyncio.create_task(self._cancel(name))
        else:
            self._watching.cancel()

    async def _cancel(self, name: Signal) -> None:
        try:
            await self._client.cancel(self.id, f"{name} to the command that submitted it")
            self._is_cancelled = True
        except TalkaError as error:
            tell(f"job {self.id} could not be cancelled: {error}")

    def _farewell(self) -> str:
        if self._is_cancelled:
            return f"job {self.id} goes on being cancelled: talka jobs show {self.id} tells what became of it"
        if self._cancels:
            return f"job {self.id} may not have been cancelled: talka jobs cancel {self.id} does it"
        return goes_on(self.id)


class LineTeller:
    """Tells each line that the test prints on its workers once, with the worker's name before it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._owner = ""
        self._number = 0

    def __call__(self, update: JobUpdate) -> None:
        if update.job.owner != self._owner:
            self._owner, self._number = update.job.owner, 0  # it counts anew
        lines, missed = news_in(update.logs, self._number)
        if missed:
            self._say(f"({counted_text(missed, 'line')} of the test were not kept)")
        for line in lines:
            self._number = line.number
            self._say(tame(f"{line.worker}: {line.text}"))


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels those that are there, and waits for their end."""
    for task in tasks:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def goes_on(id: str) -> str:
    return f"job {id} goes on: talka jobs watch {id} shows it again, talka jobs cancel {id} ends it"


def to_its_end(id: str, shown: Callable[[], int]) -> int:
    """Show the job and sum it up; it is told when whoever watches leaves, or nobody answers any more. The exit code of
    the whole command."""
    try:
        return shown()
    except LeftRunning as left:
        tell(str(left))
        return left.exit_code
    except ClusterUnreachable as error:
        tell(f"{error}\nJob {id} goes on: talka jobs watch {id} shows it again.")
        return int(ExitCode.UNREACHABLE)


def followed(job: RemoteJob, reporting: Reporting, opening: str) -> int:
    """Show the job to its end. The exit code of the whole command."""
    try:
        return to_its_end(job.id, lambda: reporting.report(reporting.carry_out(opening)))
    except NoResult as error:
        facts = job.facts
        assert facts is not None  # it was told when the job was submitted or found
        tell(f"{error}: it is {facts.state}{f', {tame(facts.reason)}' if facts.reason else ''}")
        return job.exit_code_of(facts.state, int(ExitCode.JOB_FAILED) if facts.exit_code is None else facts.exit_code)
