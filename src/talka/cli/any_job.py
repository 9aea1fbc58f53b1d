"""A job of any kind, followed to its end and asked for its result; and the kinds that do it in a way of their own.
Imported only by commands that need it."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import msgspec

from talka.cli.config import CliSettings
from talka.cli.connection import asked
from talka.cli.dag_text import exit_code_of
from talka.cli.output import ResultFile, say, sheet_text, tell
from talka.cli.remote import LeftRunning, Signal, ended, goes_on, to_its_end
from talka.client.client import Client
from talka.client.kinds import AnyJob
from talka.client.sheets import JobSheet, ended_count
from talka.clock import monotonic_ns
from talka.errors import Invalid
from talka.nodes.local import signals_to
from talka.report.tame import tame_json
from talka.report.text import counted_text
from talka.units import SECOND

LINE_EVERY_NS: Final = 3 * SECOND
OWN_WAYS: Final = {"load": "talka.cli.load_jobs:LoadCommands", "dag": "talka.cli.pipelines:DagCommands"}
"""Kinds that are followed in a way of their own: the class that does it."""


class ResultWanted(NamedTuple):
    """Where a result is written, and what of it is shown."""

    file: ResultFile | None
    page: ResultFile | None
    columns: str | None


class KindCommands:
    """What commands do with a job, whatever its kind."""

    async def facts(self, client: Client, job: AnyJob) -> msgspec.Struct:
        """Everything about it, for programs."""
        return job

    async def updates(self, client: Client, id: str) -> AsyncGenerator[tuple[msgspec.Struct, int], None]:
        """How it stands, and the exit code if that was its end."""
        async with contextlib.aclosing(client.watch_any(id)) as updates:
            async for job in updates:
                yield job, exit_code_of(job)

    def watch(self, client: Client, job: AnyJob, given: CliSettings) -> int:
        """Show it to its end and sum it up. The exit code of the whole command."""
        if given.ui != "none":
            tell(watching_text(job.id))
        following = AnyFollowing(client, job, tells=given.ui != "none")

        def shown() -> int:
            say(sheet_text(asyncio.run(following.run())))
            return exit_code_of(following.job)

        return to_its_end(job.id, shown)

    def result(self, where: dict[str, Any], job: AnyJob, wanted: ResultWanted) -> int:
        file = wanted.file
        if wanted.page is not None:
            raise Invalid(f"--html: job {job.id} is a {job.kind} job, and pages are made of load tests: leave it out")
        content = tame_json(msgspec.json.format(asked(where, lambda client: client.result(job.id)), indent=1))
        if file is not None:
            file.write(content)
        if file is None or not file.is_stdout:
            say(content)
        return 0

    def no_lines(self, job: AnyJob) -> str:
        """Why it has no lines that a test printed; empty: it has."""
        return f"job {job.id} is a {job.kind} job: only load tests print lines; talka jobs show {job.id} shows it"


def commands_of(job: AnyJob) -> KindCommands:
    place = OWN_WAYS.get(job.kind)
    if place is None:
        return KindCommands()
    module, _, name = place.partition(":")
    found: KindCommands = getattr(importlib.import_module(module), name)()
    return found


async def facts_of(client: Client, id: str) -> msgspec.Struct:
    job = await client.any_job(id)
    return await commands_of(job).facts(client, job)


async def print_updates(client: Client, job: AnyJob) -> int:
    code = 0
    async with contextlib.aclosing(commands_of(job).updates(client, job.id)) as updates:
        async for update, as_end in updates:
            say(tame_json(msgspec.json.encode(update)))
            code = as_end
    return code


def watching_text(id: str) -> str:
    return f"watching job {id}: Ctrl-C leaves, and the job goes on"


def progress_text(job: AnyJob) -> str:
    if not job.tasks:
        return str(job.state)
    return f"{job.state}: {ended_count(job.counts):,} of {counted_text(job.tasks, 'task')} ended"


class AnyFollowing:
    """A job, from now to its end. A signal leaves it, and the job goes on."""

    def __init__(self, client: Client, job: AnyJob, *, tells: bool) -> None:
        self.job = job
        self._client = client
        self._tells = tells
        self._signal: Signal | None = None
        self._working: asyncio.Task[JobSheet] | None = None
        self._told = ""
        self._tell_at_ns = 0

    async def run(self) -> JobSheet:
        with signals_to(self._leave):
            self._working = asyncio.create_task(self._work())
            try:
                await asyncio.wait([self._working])
            finally:
                await ended(self._working)
        if self._working.cancelled():
            assert self._signal is not None  # nothing else cancels it
            raise LeftRunning(goes_on(self.job.id), self._signal)
        return self._working.result()

    async def _work(self) -> JobSheet:
        async with contextlib.aclosing(self._client.watch_any(self.job.id)) as updates:
            async for self.job in updates:
                self._tell(monotonic_ns())
        return await self._client.view(self.job.id)

    def _tell(self, now: int) -> None:
        text = progress_text(self.job)
        if self._tells and text != self._told and now >= self._tell_at_ns:
            self._told, self._tell_at_ns = text, now + LINE_EVERY_NS
            tell(text)

    def _leave(self, name: Signal) -> None:
        assert self._working is not None
        self._signal = self._signal or name
        self._working.cancel()
