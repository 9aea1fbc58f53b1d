"""A load job on this machine: connects the job's decisions to core processes. `cli` and `talka.run` call it."""

import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from talka.clock import monotonic_ns, utc_now
from talka.control.load.allocation import Seat, claim_of, planned
from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore, WorkflowLate
from talka.control.load.load_job import JobSpec, LoadJob
from talka.control.load.planning import Overrides, plan_load_job, with_overrides
from talka.engine.load import native
from talka.engine.load.feeds import load_feeds
from talka.engine.load.prepare import prepare
from talka.engine.load.supervisor import Supervisor
from talka.engine.loader import being_imported, in_memory, load, select
from talka.errors import Invalid
from talka.ids import new_job_id
from talka.net.descriptors import ADVICE, TooFewDescriptors
from talka.report.building import Meta, build
from talka.report.document import ResultDocument
from talka.report.job_view import JobView, refresh
from talka.units import SECOND
from talka.version import VERSION
from talka.wire.shards import (
    PLAIN_GET,
    BundleSource,
    FileSource,
    FromCore,
    MemorySource,
    Settings,
    Source,
    Stop,
    UrlRequest,
    UrlSource,
)
from talka.work.dsl import Workflow
from talka.work.durations import parse_duration
from talka.work.inspection import names_for_thresholds
from talka.work.specs import WorkflowSpec
from talka.work.thresholds import parse_threshold

LAST_WORD_S = 1.0
"""For cores to say what they counted, when the job is to end at once."""
SPARE_DESCRIPTORS = 64
"""Open files a core needs beside one connection for each virtual user."""


class TooManyUsers(Invalid):
    """More connections than this process may open."""


class NoSuchEngine(Invalid):
    """The engine that was asked for cannot run on this machine."""


class StartedByImport(Invalid):
    """A file starts its own job when it is imported, and every core imports it."""


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True):
    cores: int | None = None
    overrides: Overrides = Overrides()
    thresholds: tuple[str, ...] = ()
    grace: str | float = "30s"
    seed: int | None = None
    engine: Literal["auto", "native", "python"] = "auto"
    allow_partial: bool = False


class LocalJob:
    """A job that is planned and not started: `check` prints it, `run` runs it."""

    def __init__(self, source: Source, specs: Sequence[WorkflowSpec], options: LocalOptions) -> None:
        self.source = source
        self.options = options
        self.specs = with_overrides(specs, options.overrides)
        self.cores = physical_cores() if options.cores is None else options.cores
        if self.cores < 1:
            raise Invalid(f"cores = {self.cores} means that nothing would run: give at least 1")
        if options.engine == "native" and (obstacle := native.available()) is not None:
            raise NoSuchEngine(f"there is no native engine here: {obstacle}")
        for spec in self.specs:
            prepare(spec)
            load_feeds(spec)
        names = names_for_thresholds({spec.name: spec.nodes for spec in self.specs})
        thresholds = [parse_threshold(rule, **names) for rule in options.thresholds]
        self.spec: JobSpec = plan_load_job(
            self.specs,
            job=new_job_id(random.SystemRandom()),
            source=source,
            cores=self.cores,
            settings=Settings(
                grace_ns=parse_duration(options.grace, what="grace"), engine=options.engine, seed=options.seed
            ),
            thresholds=thresholds,
        )

    @property
    def name(self) -> str:
        match self.source:
            case FileSource(path=path):
                return Path(path).name
            case UrlSource(url=url):
                return url
            case BundleSource(file=file):
                return file
            case MemorySource():
                return ", ".join(spec.name for spec in self.specs)

    @property
    def file(self) -> str | None:
        return self.source.path if isinstance(self.source, FileSource) else None

    async def run(
        self,
        *,
        on_progress: Callable[[JobView, int], None] | None = None,
        progress_every_ns: int = SECOND,
        handle_signals: bool = False,
    ) -> ResultDocument:
        raise_descriptor_limit(self.spec)
        started_at = utc_now()
        runner = LocalRunner(self.spec, on_progress, progress_every_ns)
        with signals_to(runner.interrupt) if handle_signals else contextlib.nullcontext():
            job = await runner.run()
        return build(
            job,
            self.specs,
            Meta(
                name=self.name,
                file=self.file,
                started_at=started_at.isoformat(timespec="milliseconds"),
                version=VERSION,
                allow_partial=self.options.allow_partial,
            ),
        )


class LocalRunner:
    """Carries out what the job asks for. Decides nothing."""

    def __init__(
        self, spec: JobSpec, on_progress: Callable[[JobView, int], None] | None, progress_every_ns: int = SECOND
    ) -> None:
        self._job = LoadJob(spec)
        self._view = JobView(spec)
        self._on_progress = on_progress
        self._progress_every_ns = progress_every_ns
        # Bounded by the cores: each has one report under way, and a handful of other messages in its life.
        self._inbox: asyncio.Queue[Callable[[int], list[LoadEffect]]] = asyncio.Queue()
        self._supervisor = Supervisor(self._on_message, self._on_exit)
        self._interrupts = 0

    async def run(self) -> LoadJob:
        job, progress_at, was_running, was_stopping = self._job, 0, False, False
        try:
            await self._carry_out(job.start(monotonic_ns()))
            while not job.ended_ns:
                effects: list[LoadEffect] = []
                try:
                    async with asyncio.timeout(max(0, job.next_tick_at - monotonic_ns()) / SECOND):
                        happened = await self._inbox.get()
                    effects = happened(monotonic_ns())
                except TimeoutError:
                    pass
                now = monotonic_ns()
                # Checked after every arrival: a flood of messages must not starve the timer.
                if now >= job.next_tick_at:
                    effects += job.tick(now)
                    self._supervisor.children.guard.restart_if_gone()
                await self._carry_out(effects)
                has_news = (job.origin_ns and not was_running) or (job.is_stopping and not was_stopping)
                if self._on_progress is not None and (has_news or now >= progress_at):
                    progress_at = now + self._progress_every_ns
                    was_running, was_stopping = bool(job.origin_ns), job.is_stopping
                    refresh(self._view, job)
                    self._on_progress(self._view, now)
            refresh(self._view, job)  # whoever shows it to the end shows its end
        finally:
            await self._supervisor.close()
        return job

    def interrupt(self, name: Literal["SIGINT", "SIGTERM"]) -> None:
        """The first one ends the job gently. The second asks every core for its last counts, and does not wait for
        more: the job ends when all have answered, and at the latest after a moment."""
        self._interrupts += 1
        if self._interrupts == 2:
            for core in self._supervisor.pids():
                self._supervisor.send(core, Stop(at_once=True))
            asyncio.get_running_loop().call_later(LAST_WORD_S, self._interrupt_job, name)
        else:
            self._interrupt_job(name)

    def _interrupt_job(self, name: Literal["SIGINT", "SIGTERM"]) -> None:
        self._inbox.put_nowait(lambda now: self._job.interrupt(now, name))

    async def _carry_out(self, effects: Sequence[LoadEffect]) -> None:
        for effect in effects:
            match effect:
                case StartCore(attempt=attempt, process=process):
                    arm = self._job.arm_for(attempt)
                    if arm is not None:
                        await self._supervisor.start(attempt, arm, process)
                case TellCore(attempt=attempt, message=message):
                    self._supervisor.send(attempt, message)
                case KillCore(attempt=attempt):
                    self._supervisor.kill(attempt)
                case WorkflowLate() | JobEnded():
                    pass  # the loop sees the end, and notes of the workflow tell the rest

    def _on_message(self, core: int, message: FromCore) -> None:
        self._inbox.put_nowait(lambda now: self._job.on_message(now, core, message))

    def _on_exit(self, core: int, cause: str) -> None:
        self._inbox.put_nowait(lambda now: self._job.on_exit(now, core, cause))


def job_from_file(path: str, names: Sequence[str], options: LocalOptions) -> LocalJob:
    # Cores get the whole path: a test may change the folder when it is imported.
    source = FileSource(os.path.abspath(path))
    return LocalJob(source, select(load(FileSource(path)), names, path), options)


def job_from_url(url: str, options: LocalOptions, request: UrlRequest = PLAIN_GET) -> LocalJob:
    source = UrlSource(url, request)
    return LocalJob(source, load(source), options)


async def run_workflows(
    workflows: Sequence[type[Workflow]], options: LocalOptions, *, handle_signals: bool = False
) -> ResultDocument:
    """Run classes given from Python. Those a file holds run in core processes, others in a thread of this process."""
    file = importable_file(workflows)
    if file is not None:
        return await job_from_file(file, [workflow.__name__ for workflow in workflows], options).run(
            handle_signals=handle_signals
        )
    key = new_job_id(random.SystemRandom())
    in_memory[key] = tuple(workflows)
    try:
        specs = load(MemorySource(key))
        # One thread is one core: others would only fight for the interpreter's lock.
        job = LocalJob(MemorySource(key), specs, msgspec.structs.replace(options, cores=1))
        return await job.run(handle_signals=handle_signals)
    finally:
        del in_memory[key]


def importable_file(workflows: Sequence[type[Workflow]]) -> str | None:
    """The one file that holds all the classes at its top level, if there is one."""
    if not workflows:
        raise Invalid("there are no workflows to run")
    files = set()
    for workflow in workflows:
        module = sys.modules.get(workflow.__module__)
        path = getattr(module, "__file__", None)
        if path is None or workflow.__qualname__ != workflow.__name__ or not os.path.exists(path):
            return None
        if getattr(module, workflow.__name__, None) is not workflow:
            return None
        if str(Path(path).resolve()) in being_imported:
            raise StartedByImport('it starts its own job; do so under if __name__ == "__main__" only')
        files.add(path)
    return files.pop() if len(files) == 1 else None


def physical_cores() -> int:
    """Cores this process may use; two threads of one core do not count twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def raise_descriptor_limit(spec: JobSpec) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            hard = soft  # some systems name a limit they do not grant
    if 0 <= hard <= SPARE_DESCRIPTORS:
        raise TooFewDescriptors(
            f"this process may open {hard} files, and a core process needs {SPARE_DESCRIPTORS} beside one for each "
            "virtual "
            f"user: raise the limit ({ADVICE})"
        )
    waiting = [workflow.name for workflow in spec.workflows if workflow.depends_on]
    claims = [claim_of(one, spec.cores) for one in spec.workflows]
    seats = planned(claims, waiting, spec.cores)
    users: dict[tuple[Seat, bool], int] = {}
    for workflow in spec.workflows:
        # One that waits for an exclusive workflow gets at least one core then, and that is looked at here.
        own = seats[workflow.name] or (("", 0),)
        most = max(shard.vus for shard in workflow.plan.split(len(own)))
        for seat in own:
            key = (seat, bool(seats[workflow.name]) and not workflow.depends_on)
            # Those that start at once may share a core; of others only each by itself is known.
            users[key] = users.get(key, 0) + most if key[1] else most
            if users[key] + SPARE_DESCRIPTORS > hard:
                raise TooManyUsers(
                    f"{workflow.name} wants {most} virtual users in one core process, which may open {hard} files"
                    + (f" and has {users[key] - most} of other workflows" if users[key] > most else "")
                    + ": raise the limit (ulimit -n), or use fewer virtual users or more cores"
                )


@contextlib.contextmanager
def signals_to(interrupt: Callable[[Literal["SIGINT", "SIGTERM"]], None]):  # type: ignore[no-untyped-def]
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt, "SIGINT")
    loop.add_signal_handler(signal.SIGTERM, interrupt, "SIGTERM")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
