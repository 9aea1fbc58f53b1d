"""Pipelines: found in a file, submitted, followed to their end and summed up. Imported only by commands that need
it."""

import ast
import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from talka.cli import dag_text
from talka.cli.any_job import KindCommands, ResultWanted, watching_text
from talka.cli.config import BadSetting, CliSettings, is_for_cores, wants_color, wants_live_view
from talka.cli.connection import answered, asked, client_of, submitted
from talka.cli.dag_text import DagResult, TaskReport
from talka.cli.jobs import file_and_names, is_url
from talka.cli.live.layout import FrameView, Size
from talka.cli.live.screen import LiveView
from talka.cli.output import CannotWrite, ResultFile, columns_of, json_of, say, tell
from talka.cli.remote import LeftRunning, Signal, ended, goes_on, to_its_end
from talka.client.client import Client
from talka.client.kinds import AnyJob
from talka.client.requests import PAGE_LIMIT, NoSuchAttempt, NotEnded
from talka.clock import monotonic_ns
from talka.engine.handlers.pipeline_file import dags_of, read_pipeline
from talka.engine.loader import NoSuchFile, import_file, workflows_of
from talka.errors import Invalid, TalkaError
from talka.nodes.local import signals_to
from talka.report.tame import tame_json
from talka.report.text import counted_text
from talka.units import SECOND
from talka.wire.task_views import AttemptView, DagFacts, GraphView, LogPage, RetryRequest, StreamText, TaskView
from talka.work.dags.dag import NULL, DagSpec, ParamValue
from talka.work.dags.params import NO_VALUES
from talka.work.durations import shown
from talka.work.lifecycle import TaskState, is_final
from talka.work.outcome import ExitCode
from talka.work.specs import BadWorkflows

if TYPE_CHECKING:
    from talka.engine.bundle import VariableRead

NAMED: Final[dict[type[ast.AST], str]] = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}
"""Nodes of a syntax tree that mention a name, and the field that holds it."""
SUFFIXES: Final = (".yaml", ".yml", ".json")
FOR_LOAD: Final = (
    *("vus", "rate", "duration", "iterations", "thresholds", "html", "junit", "outputs", "keep", "store"),
    *("allow_partial", "seed", "grace", "engine", "cores", "workers_have", "priority"),
)
"""Settings of load tests. Of the command line they are refused; elsewhere they may stand for other jobs."""
DRAW_EVERY_S: Final = 0.25
LOOK_EVERY_S: Final = 1.0
LINE_EVERY_NS: Final = 3 * SECOND
UNCHANGED_EVERY_NS: Final = 30 * SECOND
ATTEMPTS_SHOWN: Final = 50
"""Of one task, the last."""
OUTPUTS_SHOWN: Final = 3
"""Attempts at one task whose output is shown with it, the last."""
READS_SHOWN: Final = 10
RUNNING_SHOWN: Final = 8
RUNNING_EVERY_S: Final = 2.0
LOGS_EVERY_S: Final = 1.0


class ResultLimits(msgspec.Struct, frozen=True):
    """What a result for programs lists. What is beyond is left out, and the result says how many tasks that is."""

    tasks: int = 10_000
    output_bytes: int = 64 * 1024 * 1024
    page: int = PAGE_LIMIT
    """Tasks that are asked for at once."""


RESULT_LIMITS: Final = ResultLimits()


class TwoKinds(Invalid):
    """A file holds a load test and a pipeline, and the command does not say which is meant."""


# What a target is.


def pipeline_of(target: str, values: Mapping[str, ParamValue] | None = NO_VALUES) -> DagSpec | None:
    """The pipeline that the target is, checked, with values of its params, None: they come later. None where it is a
    load test."""
    if is_url(target):
        return None
    if target.lower().endswith(SUFFIXES):
        return read_pipeline(Path(target), values)
    file, names = file_and_names(target)
    if not Path(file).is_file() or not holds_pipeline(Path(file), names):
        return None
    if len(names) > 1:
        raise NoSuchFile(f"{target}: a job is one pipeline: name one of {', '.join(names)}")
    return read_pipeline(Path(target), values)


def values_in(params: Sequence[str]) -> dict[str, ParamValue]:
    """Of `--param NAME=VALUE`, as text."""
    found: dict[str, ParamValue] = {}
    for param in params:
        name, sign, value = param.partition("=")
        if not name or not sign:
            raise BadSetting(f"--param {shown(param)} names no value: write --param NAME=VALUE")
        if name in found:
            raise BadSetting(f"--param {name} is given twice: leave one of them out")
        found[name] = value
    return found


def holds_pipeline(file: Path, names: Sequence[str]) -> bool:
    """Whether a Python file's pipeline is meant, and not its load test. It is imported only where its text is not
    enough."""
    mentioned = words_of(file)
    if "Dag" not in mentioned and "Workflow" in mentioned:
        return False
    if "Dag" in mentioned and "Workflow" not in mentioned:
        return True
    module = import_file(file)
    dags = list(dags_of(module))
    if names or not dags:
        return bool(names) and names[0] in dags
    with contextlib.suppress(BadWorkflows):  # it has none
        first = workflows_of(module, file)[0].__name__
        raise TwoKinds(
            f"{file} holds a load test ({first}) and a pipeline ({dags[0]}): name the one that is meant,"
            f" {file}:{first} or {file}:{dags[0]}"
        )
    return True


def words_of(file: Path) -> frozenset[str]:
    """Every name that the file's code mentions; none where it cannot be read."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return frozenset(("Workflow",))  # a load test's reader says what is wrong with it
    return frozenset(getattr(node, NAMED[type(node)]) for node in ast.walk(tree) if type(node) in NAMED)


def check_settings(target: str, settings: CliSettings, env: Sequence[str], with_files: Sequence[str]) -> None:
    others = [name for name in FOR_LOAD if name != "workers_have" or not with_files]
    given = [settings.named(name) for name in others if settings.origins.get(name, "").startswith("--")]
    if given:
        raise BadSetting(f"{given[0]} is for load tests, and {target} is a pipeline: leave it out")
    if env:
        raise BadSetting(
            f"--env: a pipeline has no variables: write what {target} needs into the config of its tasks; its handlers"
            " have those that their worker was started with, --core-env"
        )


# Submitting.


def with_code(spec: DagSpec, files: Sequence[str], settings: CliSettings) -> tuple[DagSpec, bytes]:
    """The job with the handlers of these files, and the bundle that they are in. Without files as it is."""
    if not files:
        return spec, b""
    from talka.client.code import with_files

    reads: list[VariableRead] = []
    # What the user's files print when they are imported must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        found = with_files(spec, files, workers_have=settings.workers_have, note=reads.append)
    tell_reads([read for read in reads if not is_for_cores(read.variable)])
    return found


def tell_reads(reads: "Sequence[VariableRead]") -> None:
    """What handlers that travel read here, and may not find on workers."""
    for read in reads[:READS_SHOWN]:
        tell(
            f"{read.file}:{read.line}: reads the variable {read.variable}, which is set here and does not travel:"
            f" workers must have it (talka worker --core-env {read.variable})"
        )
    if (more := len(reads) - READS_SHOWN) > 0:
        tell(f"and {counted_text(more, 'variable')} more")


def submit_pipeline(
    spec: DagSpec, settings: CliSettings, key: str, *, with_files: Sequence[str] = (), detach: bool, waits: bool
) -> int:
    """`with_files` hold handlers that travel with it; `waits` for workers that could run its tasks."""
    spec, code = with_code(spec, with_files, settings)
    spec = msgspec.structs.replace(spec, wait_for_workers=waits)
    client = client_of(settings)
    # Before anything is sent: it finds what cannot be written.
    file = None if settings.json is None else ResultFile(settings.json, what=settings.named("json"))
    if spec.schedule:
        return put_schedule(client, spec, code, settings, file)
    facts = submitted(settings, client.submit_dag(spec, key, code=code))
    if detach:
        if file is not None:
            file.write(json_of(facts))
        if file is None or not file.is_stdout:
            say(facts.id)
        return 0
    if settings.ui != "none":
        tell(f"submitted {spec.name} as job {facts.id}: Ctrl-C leaves, and the job goes on")
    return followed(client, facts, settings, file)


def put_schedule(client: Client, spec: DagSpec, code: bytes, settings: CliSettings, file: ResultFile | None) -> int:
    schedule = answered(settings, client.put_schedule(spec, code=code))
    if file is not None:
        file.write(json_of(schedule))
    if file is None or not file.is_stdout:
        say(
            f"{schedule.name} is scheduled ({schedule.cron}){' and paused' if schedule.paused else ''}, next at"
            f" {dag_text.next_text(schedule)}: talka jobs schedules lists it"
        )
    return 0


# A job that was submitted before.


class DagCommands(KindCommands):
    async def facts(self, client: Client, job: AnyJob) -> DagFacts:
        return await client.dag(job.id)

    async def updates(self, client: Client, id: str) -> AsyncGenerator[tuple[DagFacts, int], None]:
        async with contextlib.aclosing(client.watch_dag(id)) as updates:
            async for facts in updates:
                yield facts, dag_text.exit_code_of(facts)

    def watch(self, client: Client, job: AnyJob, given: CliSettings) -> int:
        facts = answered(given, client.dag(job.id))
        if given.ui != "none":
            tell(watching_text(job.id))
        return followed(client, facts, CliSettings(ui=given.ui))

    def result(self, where: dict[str, Any], job: AnyJob, wanted: ResultWanted) -> int:
        file = wanted.file
        if wanted.page is not None:
            raise Invalid(f"--html: job {job.id} is a pipeline, and pages are made of load tests: leave it out")
        if not is_final(job.state):
            raise NotEnded.named(job.id, job.state)

        async def ask(client: Client) -> tuple[DagResult, list[TaskView]]:
            return await result_of(client, await client.dag(job.id), wants_outputs=file is not None)

        reported(*asked(where, ask), file)
        return 0

    def no_lines(self, job: AnyJob) -> str:
        return f"job {job.id} is a pipeline: talka jobs show {job.id} --logs TASK shows what a task logged"


# Following.


def followed(client: Client, facts: DagFacts, settings: CliSettings, file: ResultFile | None = None) -> int:
    """Show the job to its end and sum it up. The exit code of the whole command."""
    following = Following(client, facts, wants_outputs=file is not None)
    return to_its_end(facts.id, lambda: reported(following.run(settings.ui), following.failed, file))


def reported(result: DagResult, failed: Sequence[TaskView], file: ResultFile | None) -> int:
    code = dag_text.exit_code_of(result.job)
    if file is not None:
        try:
            file.write(json_of(result))
        except CannotWrite as error:
            tell(str(error))
            code = code or int(ExitCode.INTERNAL_ERROR)
    if file is None or not file.is_stdout:
        width, color = columns_of(sys.stdout), wants_color(sys.stdout)
        slowest = dag_text.slowest_of(result.tasks)
        say(
            dag_text.dag_summary(
                result.job, slowest, failed, result.tasks, left_out=result.left_out, width=width, color=color
            )
        )
    return code


class Following:
    """A job, from now to its end, and the frames of its live view. A signal leaves it, and the job goes on."""

    def __init__(
        self,
        client: Client,
        facts: DagFacts,
        *,
        wants_outputs: bool,
        look_every_s: float = LOOK_EVERY_S,
        running_every_s: float = RUNNING_EVERY_S,
    ) -> None:
        self._look_every_s = look_every_s
        self._running_every_s = running_every_s
        self.facts = facts
        self.running: list[TaskView] = []
        self.failed: list[TaskView] = []
        """Those that were given up, some of them, once it has ended."""
        self.pace = dag_text.TaskPace()
        self.began_ns = monotonic_ns()
        self._client = client
        self._wants_outputs = wants_outputs
        self._signal: Signal | None = None
        self._working: asyncio.Task[DagResult] | None = None
        self._told = ""
        self._tell_at_ns = self._repeat_at_ns = 0

    def run(self, ui: str) -> DagResult:
        if not wants_live_view(ui, sys.stderr):
            return asyncio.run(self._run(None, tells=ui != "none"))
        # Without a terminal for the result, the last frame is all that people see.
        keep = not sys.stdout.isatty()
        with LiveView(self, sys.stderr, color=wants_color(sys.stderr), keep=keep) as view:
            return asyncio.run(self._run(view, tells=False))

    def opening(self, size: Size) -> FrameView:
        return self.view(self, monotonic_ns(), size)

    def view(self, job: "Following", now: int, size: Size) -> FrameView:
        return dag_text.live_view(job.facts, job.running, now, job.began_ns, job.pace, size)

    async def _run(self, view: "LiveView[Following] | None", *, tells: bool) -> DagResult:
        with signals_to(self._leave):
            self._working = asyncio.create_task(self._work())
            looking = asyncio.create_task(self._look()) if view is not None else None
            every_s = DRAW_EVERY_S if view is not None else self._look_every_s
            try:
                while not self._working.done():
                    await asyncio.wait([self._working], timeout=every_s)
                    now = monotonic_ns()
                    self.pace.look(now, self.facts)
                    if view is not None:
                        view(self, now)
                    if tells and not self._working.done():
                        self._tell(now)
            finally:
                await ended(self._working, looking)
        if self._working.cancelled():
            assert self._signal is not None  # nothing else cancels it
            raise LeftRunning(goes_on(self.facts.id), self._signal)
        return self._working.result()

    async def _work(self) -> DagResult:
        self.pace.look(monotonic_ns(), self.facts)
        async with contextlib.aclosing(self._client.watch_dag(self.facts.id)) as updates:
            async for facts in updates:
                self.facts = facts
        # Kept for good, with the instant of its end: the watch may have been ahead of it.
        self.facts = await self._client.dag(self.facts.id)
        result, self.failed = await result_of(self._client, self.facts, wants_outputs=self._wants_outputs)
        return result

    async def _look(self) -> None:
        """Which tasks run now, every other second: only the view wants to know."""
        while True:
            with contextlib.suppress(TalkaError):  # the watch says what is wrong
                self.running = await some_of(self._client, self.facts, dag_text.UNDER_WAY, RUNNING_SHOWN)
            await asyncio.sleep(self._running_every_s)

    def _tell(self, now: int) -> None:
        text = dag_text.progress_text(self.facts, now, self.pace)
        if now >= self._tell_at_ns and (text != self._told or now >= self._repeat_at_ns):
            self._told, self._tell_at_ns, self._repeat_at_ns = text, now + LINE_EVERY_NS, now + UNCHANGED_EVERY_NS
            tell(text)

    def _leave(self, name: Signal) -> None:
        assert self._working is not None
        self._signal = self._signal or name
        self._working.cancel()


# Results.


async def result_of(
    client: Client, facts: DagFacts, *, wants_outputs: bool, limits: ResultLimits = RESULT_LIMITS
) -> tuple[DagResult, list[TaskView]]:
    """The job with its tasks, as many as may be listed, and some of those that were given up. Without outputs, except
    that of the task that completed last, unless they are wanted."""
    tasks: list[TaskView] = []
    last: TaskView | None = None
    cursor, room = "", limits.output_bytes
    while len(tasks) < limits.tasks and room > 0:
        page = await client.dag_tasks(facts.id, "", cursor, min(limits.page, limits.tasks - len(tasks)))
        if not wants_outputs:
            last = dag_text.last_of([*([last] if last is not None else []), *page.items])
            tasks += [msgspec.structs.replace(task, output=NULL, progress=NULL) for task in page.items]
        else:
            room -= sum(len(bytes(task.output)) for task in page.items)
            tasks += page.items
        cursor = page.next
        if not cursor or not page.items:
            break
    if last is not None:
        tasks = [last if task.id == last.id else task for task in tasks]
    failed = await some_of(client, facts, dag_text.GIVEN_UP, dag_text.FAILED_SHOWN)
    return DagResult(facts, tasks, max(0, facts.tasks - len(tasks))), failed


async def some_of(client: Client, facts: DagFacts, states: Sequence[TaskState], limit: int) -> list[TaskView]:
    """Tasks in these states, of the first state first."""
    found: list[TaskView] = []
    for state in states:
        if facts.counts.get(state) and len(found) < limit:
            found += (await client.dag_tasks(facts.id, state, "", limit - len(found))).items
    return found


# One task at a time, and the graph.


def show_task(where: dict[str, Any], id: str, task: str, *, as_json: bool) -> None:
    report = asked(where, lambda client: report_of(client, id, task, ATTEMPTS_SHOWN if not as_json else None))
    say(json_of(report) if as_json else dag_text.tried_text(id, report))


async def report_of(client: Client, id: str, task: str, most: int | None) -> TaskReport:
    """A task, with its last attempts, at most so many, and what the last of those that wrote something have written."""
    view = await client.dag_task(id, task)
    tried = await attempts_of(client, id, task)
    shown = tried if most is None else tried[-most:]
    wrote = [one.attempt for one in shown if one.streams][-OUTPUTS_SHOWN:]
    outputs = [await client.task_output(id, task, attempt) for attempt in wrote]
    return TaskReport(
        **{name: getattr(view, name) for name in view.__struct_fields__},
        tried=shown,
        wrote=outputs,
        left_out=len(tried) - len(shown),
    )


async def attempts_of(client: Client, id: str, task: str) -> list[AttemptView]:
    """All of them. No task has so many that they are many pages."""
    found: list[AttemptView] = []
    cursor = ""
    while True:
        page = await client.task_attempts(id, task, cursor, PAGE_LIMIT)
        found += page.items
        cursor = page.next
        if not cursor or not page.items:
            return found


def show_retry(where: dict[str, Any], id: str, request: RetryRequest, *, as_json: bool) -> None:
    plan = asked(where, lambda client: client.retry_plan(id, request))
    say(json_of(plan) if as_json else dag_text.retry_text(plan))


def show_why(where: dict[str, Any], id: str, task: str, *, as_json: bool) -> None:
    view = asked(where, lambda client: client.why(id, task))
    say(json_of(view) if as_json else dag_text.why_text(task, view))


def show_graph(where: dict[str, Any], id: str, *, as_json: bool) -> None:
    async def ask(client: Client) -> tuple[DagFacts, GraphView]:
        return await client.dag(id), await client.dag_graph(id)

    facts, graph = asked(where, ask)
    say(json_of(graph) if as_json else dag_text.graph_text(facts, graph))


class LogsWanted(msgspec.Struct, frozen=True):
    """What of a task's words is shown."""

    attempt: int = 0
    """0: of every attempt."""
    stream: str = ""
    """log, or one of an attempt's streams; empty: all."""
    follow: bool = False
    as_json: bool = False


def show_logs(where: dict[str, Any], id: str, task: str, wanted: LogsWanted, *, every_s: float = LOGS_EVERY_S) -> int:
    """All that there is, its log first, then what each attempt wrote; or, when followed, all that will be until the job
    has ended."""

    async def ask(client: Client) -> WordsShown:
        if wanted.attempt and not wanted.follow:  # one that is followed may be yet to come
            numbers = [one.attempt for one in await attempts_of(client, id, task)]
            if wanted.attempt not in numbers:
                raise NoSuchAttempt.named(id, task, wanted.attempt)
        shown = WordsShown(client, id, task, wanted)
        cursor = ""
        while True:
            page = await client.task_logs(id, task, cursor, PAGE_LIMIT)
            shown.log(page)
            if page.items and page.next:
                cursor = page.next
                continue
            await shown.outputs()
            if not page.next or not wanted.follow:
                return shown
            await asyncio.sleep(every_s)

    shown = asked(where, ask)
    if shown.is_gone and not wanted.as_json:
        tell(
            f"job {id} ended so long ago that nothing of what its tasks logged and printed is kept any more "
            "(--keep-logs of its manager)"
        )
    elif not shown.count and not wanted.as_json:
        asked_for = " there" if wanted.attempt or wanted.stream else ""
        until = " that was told before its process died" if shown.has_died else ""
        tell(f"{task} of job {id} has logged and printed nothing{asked_for}{until}")
    return 0


class WordsShown:
    """What was shown of a task's words, so that each is shown once."""

    def __init__(self, client: Client, id: str, task: str, wanted: LogsWanted) -> None:
        self.count = 0
        self.has_died = False
        """The process of an attempt did: it may have had more to say."""
        self.is_gone = False
        """It is no longer kept."""
        self._client = client
        self._id = id
        self._task = task
        self._wanted = wanted
        self._seen: dict[tuple[int, str], int] = {}
        """Bytes of each stream of each attempt that were shown or left out."""

    def log(self, page: LogPage) -> None:
        wanted = self._wanted
        self.is_gone = page.is_gone
        if wanted.stream in ("", "log"):
            for line in page.items:
                if wanted.attempt in (0, line.attempt):
                    say(tame_json(msgspec.json.encode(line)) if wanted.as_json else dag_text.log_text(line))
                    self.count += 1

    async def outputs(self) -> None:
        """What attempts have written since the last time."""
        wanted = self._wanted
        if wanted.stream == "log":
            return
        for attempt in await attempts_of(self._client, self._id, self._task):
            number, is_over = attempt.attempt, attempt.outcome != "running"
            if wanted.attempt not in (0, number) or (wanted.as_json and not is_over):
                continue
            self.has_died |= attempt.outcome == "died"
            streams = [one for one in attempt.streams if wanted.stream in ("", one.stream)]
            if all(self._seen.get((number, one.stream), 0) >= one.written for one in streams):
                continue
            output = await self._client.task_output(self._id, self._task, number, wanted.stream)
            fresh = msgspec.structs.replace(output, streams=[self._fresh(number, one) for one in output.streams])
            say(tame_json(msgspec.json.encode(output)) if wanted.as_json else "\n".join(dag_text.output_texts(fresh)))
            self._seen |= {(number, one.stream): one.written for one in streams}
            self._seen |= {(number, one.stream): one.written for one in output.streams}
            self.count += 1

    def _fresh(self, attempt: int, one: StreamText) -> StreamText:
        """What of it was not shown before."""
        count = one.written - self._seen.get((attempt, one.stream), 0)
        if count >= one.kept:
            return one
        news = one.text.encode()[len(one.text.encode()) - count :]
        return StreamText(one.stream, count, count, news.decode(errors="replace"))
