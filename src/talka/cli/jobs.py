"""From a target and settings to a job, and from a job to its report. Imported only by commands that need a job."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from talka.cli.config import BadSetting, CliSettings, step_summary, wants_color, wants_live_view
from talka.cli.history import keep_result, open_store
from talka.cli.live.screen import LiveView
from talka.cli.live.view import Composer
from talka.cli.output import CannotWrite, ResultFile, columns_of, say, tell
from talka.cli.saved import summary_of
from talka.control.load.planning import CannotOverride, Overrides
from talka.engine.clients.urls import parse_url
from talka.engine.load.direct import engine_for
from talka.engine.loader import NoSuchFile
from talka.nodes.local import LocalJob, LocalOptions, NoSuchEngine, job_from_file, job_from_url
from talka.report.document import ResultDocument, TimelineRow
from talka.report.files import FileFailed, FilePlace
from talka.report.html.page import html_report
from talka.report.job_view import JobView
from talka.report.outputs.output import JobInfo, Output, Outputs, WindowFeed, parse_output
from talka.report.plan import PlanDocument, plan_document, plan_text
from talka.report.summary import progress_line
from talka.report.text import counted_text
from talka.store.history.runs import KEPT
from talka.units import SECOND
from talka.wire.orders import Outlined
from talka.wire.shards import PLAIN_GET, UrlRequest
from talka.work.outcome import ExitCode
from talka.work.retention import Retention, parse_keep
from talka.work.specs import WorkflowSpec
from talka.work.thresholds import BadThreshold, meaning_of

PROGRESS_EVERY_NS = 3 * SECOND
WAITING_EVERY_NS = 30 * SECOND
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


Progress = Callable[[JobView, int], None]


class ReportedJob(Protocol):
    """A job that can be run and told of, wherever it runs."""

    @property
    def name(self) -> str: ...
    @property
    def specs(self) -> Sequence[Outlined]: ...
    @property
    def cores(self) -> int: ...
    async def run(
        self, *, on_progress: Progress | None, progress_every_ns: int, handle_signals: bool
    ) -> ResultDocument: ...


def plan(target: str, settings: CliSettings, request: UrlRequest = PLAIN_GET) -> LocalJob:
    """The job of the target with the settings' load in place of its own. Nothing is sent."""
    options = LocalOptions(
        cores=settings.cores,
        overrides=overrides_of(settings),
        thresholds=settings.thresholds,
        grace=settings.grace,
        seed=settings.seed,
        engine=settings.engine,
        allow_partial=settings.allow_partial,
    )
    with mistakes_of(settings):
        if is_url(target):
            return job_from_url(target, options, request)
        return job_from_file(*file_and_names(target), options)


def overrides_of(settings: CliSettings) -> Overrides:
    return Overrides(settings.vus, settings.rate, settings.duration, settings.iterations)


@contextlib.contextmanager
def mistakes_of(settings: CliSettings) -> Iterator[None]:
    """What is wrong with a plan because of the settings is said of the settings."""
    try:
        yield
    except BadThreshold as error:
        # The rules of a file are reported with the file; this one came with the settings.
        raise BadSetting(f"{settings.named('thresholds')}: {error}") from None
    except CannotOverride as error:
        # It speaks of flags; say which of the values did not come as one.
        load = ("vus", "rate", "duration", "iterations")
        origins = {name: settings.origins[name] for name in load if name in settings.origins}
        others = [f" ({name} is from {origin})" for name, origin in origins.items() if origin[:2] != "--"]
        raise BadSetting(f"{error}{''.join(others)}") from None
    except NoSuchEngine as error:
        raise BadSetting(f"{settings.named('engine')} = native: {error}") from None


def is_url(target: str) -> bool:
    if not SCHEME.match(target):
        return False
    parse_url(target)  # here, for what is wrong with it is the command's mistake, not a test file's
    return True


def file_and_names(target: str) -> tuple[str, list[str]]:
    """`FILE`, or `FILE:Class,Class`. A file whose name has a colon is still a file."""
    if os.path.exists(target):
        return target, []
    file, colon, last = target.rpartition(":")
    names = [name.strip() for name in last.split(",")]
    if colon and file and all(name.isidentifier() for name in names):
        target = file
    elif colon and os.path.exists(file):
        raise NoSuchFile(f"{target}: {last!r} names no class: write {file}:Class or {file}:Class,Other")
    else:
        names = []
    if not os.path.exists(target) and not target.endswith(".py"):
        raise NoSuchFile(f"there is no file {target} (a URL begins with http:// or https://)")
    return target, names


def show_plan(job: LocalJob, file: ResultFile | None) -> None:
    engines = {spec.name: engine_for(spec, job.spec.settings.engine) for spec in job.specs}
    if file is not None:
        file.write(plan_document(job.specs, job.cores, engines).to_json())
        if file.is_stdout:
            return
    for rule in job.spec.thresholds:
        say(f"threshold over the whole job: {rule.text}  ({meaning_of(rule)})")
    say(plan_text(job.specs, job.cores, engines=engines, width=columns_of(sys.stdout)))


class Reporting:
    """Everything that is told of a job while it runs and when it has ended. What cannot be written is found here
    first."""

    def __init__(self, job: ReportedJob, settings: CliSettings, waiting: Callable[[], str] = lambda: "") -> None:
        """`waiting` says what the job waits for before it begins; empty once it has begun."""
        self._job = job
        self._waiting = waiting
        self._ui = settings.ui
        self._stats = settings.summary
        self._result_file = None if settings.json is None else ResultFile(settings.json, what=settings.named("json"))
        outputs: list[Output] = [parse_output(text, settings.named("outputs")) for text in settings.outputs]
        self._asked_for: list[AskedFor] = []
        if settings.junit is not None:
            label = settings.named("junit")
            self._asked_for.append(AskedFor(parse_output(f"junit={settings.junit}", label), label))
        if (summary_file := step_summary()) is not None:
            outputs.append(parse_output(f"markdown={summary_file}", "GITHUB_STEP_SUMMARY"))
        if settings.html is not None:
            label = settings.named("html")
            self._asked_for.append(AskedFor(PageOutput(settings.html, label, job), label))
        outputs += self._asked_for
        if settings.keep:
            outputs.append(HistoryOutput(settings.store, kept_in_history(settings)))
        elif settings.store is not None:
            raise BadSetting(f"{settings.named('store')} goes with --keep: without it nothing is kept")
        self._outputs = Outputs(outputs)
        self._windows = WindowFeed(self._outputs, job.name)
        self._view: LiveView[JobView] | None = None

    def carry_out(self, opening: str) -> ResultDocument:
        """Run the job to its end, or until it is interrupted. `opening` is said first, where there is no live view."""
        # Without a terminal for the result, the last frame is all that people see.
        keep = not sys.stdout.isatty()
        with contextlib.ExitStack() as stack:
            # What the user's code prints here must not mix with the result.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            lines = None if self._ui == "none" else ProgressLines()
            if wants_live_view(self._ui, sys.stderr):
                composer = Composer(self._job.name, self._job.specs, self._waiting)
                self._view = stack.enter_context(
                    LiveView(composer, sys.stderr, color=wants_color(sys.stderr), keep=keep)
                )
                lines = None
            elif lines is not None:
                tell(opening)

            def on_progress(load: JobView, now: int) -> None:
                if load.origin_ns:
                    self._windows(load, now)
                if self._view is not None:
                    self._view(load, now)
                if lines is not None:
                    lines(load, now, self._waiting())

            every_ns = SECOND // 4 if self._view is not None else SECOND
            try:
                document = asyncio.run(
                    self._job.run(on_progress=on_progress, progress_every_ns=every_ns, handle_signals=True)
                )
            except BaseException:
                self._outputs.finish(None, limit_s=0)
                raise
        return self._finished(document)

    def _finished(self, document: ResultDocument) -> ResultDocument:
        if self._view is not None:
            share = self._view.cpu_share(round(document.duration_s * SECOND))
            generator = msgspec.structs.replace(document.generator, ui_cpu=round(share, 4))
            document = msgspec.structs.replace(document, generator=generator)
        late = self._windows.finish(document)
        return msgspec.structs.replace(document, warnings=[*document.warnings, *late])

    def report(self, document: ResultDocument) -> int:
        """Write the result and show the summary; the exit code of the whole command."""
        code = document.exit_code
        file = self._result_file
        if file is not None:
            try:
                file.write(document.to_json())
            except CannotWrite as error:
                tell(str(error))
                code = code or ExitCode.INTERNAL_ERROR
        for output in self._asked_for:
            if output.problem is not None:
                tell(output.problem)
                code = code or ExitCode.INTERNAL_ERROR
        if file is None or not file.is_stdout:
            say(summary_of(document, self._stats))
        return code


class ProgressLines:
    """A plain line every few seconds: the same on a terminal, in a pipe and in a log."""

    def __init__(self) -> None:
        self._next_at_ns = 0
        self._said = ""
        self._has_told_of_stop = False
        self._before: tuple[int, int] | None = None
        """When the line before was told, and the requests until then."""

    def __call__(self, job: JobView, now: int, waiting: str) -> None:
        if job.interrupted_by in ("SIGINT", "SIGTERM") and not self._has_told_of_stop:
            self._has_told_of_stop = True
            under_way = counted_text(job.active_vus(), "iteration")
            tell(f"stopping: waiting for {under_way} under way, Ctrl-C again to end at once")
        if waiting:
            if waiting != self._said or now >= self._next_at_ns:
                self._next_at_ns, self._said = now + WAITING_EVERY_NS, waiting
                tell(waiting)
            return
        if self._said:  # it waits no more, and the next line is due at once
            self._next_at_ns, self._said = 0, ""
        if job.origin_ns and now >= self._next_at_ns:
            self._next_at_ns = now + PROGRESS_EVERY_NS
            tell(progress_line(job, now, self._current_rate(job, now)))

    def _current_rate(self, job: JobView, now: int) -> float | None:
        """Of the requests since the line before, once there is one."""
        before = self._before
        requests = sum(tally.exchanges.requests for run in job.workflows.values() for tally in run.tallies.values())
        self._before = (now, requests)
        if before is None or now <= before[0]:
            return None
        return (requests - before[1]) * SECOND / (now - before[0])


class AskedFor:
    """An output that has a flag of its own: it cannot spoil the run, but the command fails where its file is
    missing."""

    def __init__(self, output: Output, label: str) -> None:
        self.name = output.name
        self._output = output
        self._label = label
        self.problem: str | None = None

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self._output.rows(rows, job)

    def finish(self, document: ResultDocument) -> None:
        try:
            self._output.finish(document)
        except FileFailed as error:
            self.problem = f"{self._label}: {error.path} cannot be written: {error.reason}"
            raise

    def close(self) -> None:
        self._output.close()


class EndOutput:
    """An output that takes nothing but the result."""

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        return

    def close(self) -> None:
        return


class PageOutput(EndOutput):
    """The HTML report, as one of the outputs: it cannot spoil the run either."""

    name = "html"

    def __init__(self, path: str, what: str, job: ReportedJob) -> None:
        self._place = FilePlace(path, what)
        self._job = job

    def finish(self, document: ResultDocument) -> None:
        self._place.replace(html_report(document, plan_of(self._job)).encode())


def plan_of(job: ReportedJob) -> PlanDocument | None:
    """None where the test file is not here."""
    specs = [spec for spec in job.specs if isinstance(spec, WorkflowSpec)]
    return plan_document(specs, job.cores) if len(specs) == len(job.specs) else None


def opening_of(job: LocalJob) -> str:
    stop = "Ctrl-C stops it and still reports, a second one ends it at once"
    return f"running {job.name} on {counted_text(job.cores, 'core')}: {stop}"


class HistoryOutput(EndOutput):
    """Keeps the result in the history, as one of the outputs."""

    name = "history"

    def __init__(self, store: str | None, kept: Retention) -> None:
        self._is_own = store is None
        self._history = open_store(store, kept)
        self._history.prepare()

    def finish(self, document: ResultDocument) -> None:
        keep_result(self._history, document, is_own=self._is_own)

    def close(self) -> None:
        self._history.close()


def kept_in_history(settings: CliSettings) -> Retention:
    """How long, of runs that passed and of the others. One rule alone holds for both."""
    passed, others = settings.keep_history, settings.keep_failed_history
    completed = (
        KEPT.completed if passed is None else parse_keep(passed, KEPT.completed, what=settings.named("keep_history"))
    )
    if others is None:
        return Retention(completed, completed)
    return Retention(completed, parse_keep(others, KEPT.failed, what=settings.named("keep_failed_history")))
