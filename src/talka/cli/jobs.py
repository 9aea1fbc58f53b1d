"""From a target and settings to a job, and from a job to its report. Imported only by commands that need a job."""

import asyncio
import contextlib
import os
import re
import sys

from talka.cli.config import BadSetting, Settings, wants_color
from talka.cli.output import CannotWrite, ResultFile, columns_of, say, tell
from talka.clock import SECOND
from talka.control.load_job import LoadJob
from talka.control.planning_load import CannotOverride, Overrides
from talka.engine.clients.urls import parse_url
from talka.engine.loader import NoSuchFile
from talka.nodes.local import LocalJob, LocalOptions, job_from_file, job_from_url
from talka.report.document import ResultDocument
from talka.report.plan import plan_document, plan_text
from talka.report.summary import progress_line, summary
from talka.report.text import counted_text
from talka.work.outcome import ExitCode
from talka.work.thresholds import BadThreshold

PROGRESS_EVERY_NS = 3 * SECOND
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def plan(target: str, settings: Settings) -> LocalJob:
    """The job of the target with the settings' load in place of its own. Nothing is sent."""
    options = LocalOptions(
        cores=settings.cores,
        overrides=Overrides(settings.vus, settings.rate, settings.duration, settings.iterations),
        thresholds=settings.thresholds,
        grace=settings.grace,
        seed=settings.seed,
        engine=settings.engine,
        allow_partial=settings.allow_partial,
    )
    try:
        if SCHEME.match(target):
            parse_url(target)  # here, for what is wrong with it is the command's mistake, not a test file's
            return job_from_url(target, options)
        return job_from_file(*file_and_names(target), options)
    except BadThreshold as error:
        # The rules of a file are reported with the file; this one came with the settings.
        raise BadSetting(f"{settings.named('thresholds')}: {error}") from None
    except CannotOverride as error:
        # It speaks of flags; say which of the values did not come as one.
        others = [f" ({name} is from {origin})" for name, origin in settings.origins.items() if origin[:2] != "--"]
        raise BadSetting(f"{error}{''.join(others)}") from None


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
    if file is not None:
        file.write(plan_document(job.specs, job.cores).to_json())
        if file.is_stdout:
            return
    for rule in job.spec.thresholds:
        say(f"threshold over the whole job: {rule.text}")
    say(plan_text(job.specs, job.cores, width=columns_of(sys.stdout)))


def carry_out(job: LocalJob, ui: str) -> ResultDocument:
    """Run the job to its end, or until it is interrupted."""
    if ui != "none":
        cores = counted_text(job.cores, "core")
        tell(f"running {job.name} on {cores}: Ctrl-C stops it and still reports, a second one ends it at once")
    # What the user's code prints here must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        return asyncio.run(job.run(on_progress=Progress() if ui != "none" else None, handle_signals=True))


class Progress:
    """A plain line every few seconds: the same on a terminal, in a pipe and in a log."""

    def __init__(self) -> None:
        self._next_at_ns = 0

    def __call__(self, job: LoadJob, now: int) -> None:
        if now >= self._next_at_ns:
            self._next_at_ns = now + PROGRESS_EVERY_NS
            tell(progress_line(job, now))


def report(document: ResultDocument, result_file: ResultFile | None) -> int:
    """Write the result and show the summary; the exit code of the whole command."""
    code = document.exit_code
    if result_file is not None:
        try:
            result_file.write(document.to_json())
        except CannotWrite as error:
            tell(str(error))
            code = code or ExitCode.INTERNAL_ERROR
    if result_file is None or not result_file.is_stdout:
        say(summary(document, width=columns_of(sys.stdout), color=wants_color(sys.stdout)))
    return code
