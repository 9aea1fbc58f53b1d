"""The commands `talka jobs …` and `talka workers …`: what a cluster has to do, and who does it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.command import CommandEntry, ListingGroup, command
from talka.cli.connection import answered, api_options, asked, client_of, json_option
from talka.cli.output import PLACE, ResultFile, json_of, place_of, say, say_list, sheet_text, table, tell
from talka.errors import Invalid
from talka.report.tame import tame

if TYPE_CHECKING:
    import msgspec

    from talka.client.client import Client
    from talka.client.kinds import AnyJob
    from talka.wire.task_views import DagFacts
    from talka.wire.views import JobFacts, QuietCoreView, WorkerDecision, WorkerView

JOBS: Final = {
    "list": CommandEntry("Commands", "cluster_jobs:list_jobs", "the newest jobs and their states"),
    "show": CommandEntry("Commands", "cluster_jobs:show", "everything about one: its tasks, graph, logs, and why"),
    "watch": CommandEntry("Commands", "cluster_jobs:watch", "follow one to its end"),
    "logs": CommandEntry("Commands", "cluster_jobs:logs", "what a load test prints on its workers"),
    "cancel": CommandEntry("Commands", "cluster_jobs:cancel", "end one early"),
    "result": CommandEntry("Commands", "cluster_jobs:result", "the result of one: summary, JSON, HTML page"),
    "pause": CommandEntry("Of pipelines", "cluster_jobs:pause", "pause one: start no more of its tasks"),
    "resume": CommandEntry("Of pipelines", "cluster_jobs:resume", "resume one, or a load test, that is paused"),
    "retry": CommandEntry("Of pipelines", "cluster_jobs:retry", "run tasks again, and what depends on them"),
    "skip": CommandEntry("Of pipelines", "cluster_jobs:skip", "skip some of its tasks"),
    "queues": CommandEntry("Of pipelines", "cluster_jobs:queues", "what waits, runs and ended, for each handler"),
    "schedules": CommandEntry("Of pipelines", "schedules:schedules", "pipelines that are submitted on a schedule"),
}
WORKERS: Final = {
    "list": CommandEntry("Commands", "cluster_jobs:list_workers", "who is there, and how many cores are free"),
    "show": CommandEntry("Commands", "nodes.worker_sheet:show_worker", "one: its machine, handlers, tags and load"),
    "drain": CommandEntry("Commands", "cluster_jobs:drain", "give one no new work and let it finish"),
    "undrain": CommandEntry("Commands", "cluster_jobs:undrain", "let one that was drained take new work again"),
}
MOST_LISTED: Final = 10_000
GIBIBYTE: Final = 1024**3
REASON_COLUMNS: Final = 120
STACK_LINES: Final = 12
"""Of a core that does not turn."""


jobs = ListingGroup(
    "jobs",
    "Jobs of a cluster: list, show, watch and cancel them, and get their results.",
    JOBS,
    ("talka jobs --to 10.0.0.5:8470", "the newest"),
    ("talka jobs watch k7fw2xq9bd", "follow one; its exit code is the command's"),
    ("talka jobs result k7fw2xq9bd --html report.html", "its result"),
    ("talka jobs show k7fw2xq9bd --why load", "of a pipeline: why a task does not run"),
)


@command(
    "list",
    "List jobs, newest first.",
    ("talka jobs list", "the newest 50"),
    ("talka jobs list --state running", "those that run now"),
    ("talka jobs list --json", "for programs"),
)
@click.option("--state", default="", metavar="STATE", help="Only jobs in this state: queued, running, completed …")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=50, metavar="N", help="At most this many (50).")
@json_option
@api_options
def list_jobs(state: str, limit: int, as_json: bool, **where: Any) -> int:
    from talka.work.lifecycle import JobState

    if state and state not in list(JobState):
        raise Invalid(f"--state: no job is ever {state!r}; states are {', '.join(JobState)}")
    found = asked(where, lambda client: newest(client, state, limit))
    none = f"no job is {state}" if state else "no jobs are known: talka submit FILE makes one"
    return say_list(
        "jobs", found, as_json, jobs_table, none, f"these are the newest {limit}" if len(found) == limit else ""
    )


async def newest(client: "Client", state: str, limit: int, *, page_limit: int = 0) -> "list[AnyJob]":
    """`page_limit` jobs are asked for at once; 0: as many as a manager gives."""
    from talka.client.requests import PAGE_LIMIT

    found: list[AnyJob] = []
    cursor = ""
    while len(found) < limit:
        page = await client.all_jobs(state, cursor, min(page_limit or PAGE_LIMIT, limit - len(found)))
        found += page.items
        cursor = page.next
        if not cursor:
            break
    return found


def jobs_table(found: "Sequence[AnyJob]") -> str:
    from talka.client.sheets import ended_count

    return table(
        ("JOB", "NAME", "STATE", "CORES", "TASKS", "SUBMITTED", "EXIT", "NOTE"),
        [
            (
                job.id,
                job.name,
                job.state,
                str(job.cores or ""),
                f"{ended_count(job.counts):,}/{job.tasks:,}" if job.tasks else "",
                job.submitted_at[:19].replace("T", " "),
                "" if job.exit_code is None else str(job.exit_code),
                note_of(job),
            )
            for job in found
        ],
    )


def note_of(job: "JobFacts") -> str:
    from talka.client.sheets import one_line, queue_text

    return queue_text(job) or one_line(job.cancel or job.reason)


@command(
    "show",
    "Show everything about a job; for a pipeline also its graph, and one task at a time.",
    ("talka jobs show k7fw2xq9bd", "its state; for a pipeline, its tasks too"),
    ("talka jobs show k7fw2xq9bd --graph", "a pipeline, layer by layer"),
    ("talka jobs show k7fw2xq9bd --task load", "one task: attempts, traceback, last lines"),
    ("talka jobs show k7fw2xq9bd --why load", "why a task does not run, or how it ended"),
    ("talka jobs show k7fw2xq9bd --logs load --follow", "what its handler logs, as it happens"),
)
@click.argument("id", metavar="ID")
@click.option("--graph", is_flag=True, help="Which task waits for which.")
@click.option("--task", metavar="TASK", help="Everything about a task: state, output, attempts, last words.")
@click.option("--why", metavar="TASK", help="What a task waits for, or what happened to it.")
@click.option("--logs", metavar="TASK", help="What a task logged, and what its attempts printed.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="With --logs: of this attempt alone.")
@click.option(
    "--stream",
    type=click.Choice(("log", "stdout", "stderr", "traceback")),
    help="With --logs: this alone.",
)
@click.option("--follow", is_flag=True, help="With --logs: follow until the job has ended.")
@json_option
@api_options
def show(
    id: str,
    graph: bool,
    task: str | None,
    why: str | None,
    logs: str | None,
    attempt: int | None,
    stream: str | None,
    follow: bool,
    as_json: bool,
    **where: Any,
) -> int:
    asks = {"--graph": graph or None, "--task": task, "--why": why, "--logs": logs}
    wanted = [flag for flag, value in asks.items() if value is not None]
    if len(wanted) > 1:
        raise Invalid(f"{' and '.join(wanted)} are two questions: ask one at a time")
    of_logs = {"--follow": follow or None, "--attempt": attempt, "--stream": stream}
    for flag, value in of_logs.items():
        if value is not None and logs is None:
            raise Invalid(f"{flag} goes with --logs TASK")
    if wanted:
        from talka.cli.pipelines import LogsWanted, show_graph, show_logs, show_task, show_why

        if task is not None:
            show_task(where, id, task, as_json=as_json)
        elif why is not None:
            show_why(where, id, why, as_json=as_json)
        elif logs is not None:
            return show_logs(where, id, logs, LogsWanted(attempt or 0, stream or "", follow, as_json))
        else:
            show_graph(where, id, as_json=as_json)
        return 0
    if as_json:
        from talka.cli.any_job import facts_of

        say(json_of(asked(where, lambda client: facts_of(client, id))))
    else:
        say(sheet_text(asked(where, lambda client: client.view(id))))
    return 0


@command(
    "watch",
    "Follow a job to its end and show its result. The exit code is the job's. Ctrl-C leaves; the job goes on.",
    ("talka jobs watch k7fw2xq9bd", "as talka submit shows it"),
    ("talka jobs watch k7fw2xq9bd --json", ""),
)
@click.argument("id", metavar="ID")
@click.option("--ui", metavar="[auto|full|ci|none]", help="Live view, lines, or nothing on stderr (auto).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each update, and no summary.")
@api_options
def watch(id: str, as_json: bool, **flags: Any) -> int:
    from talka.cli.any_job import commands_of, print_updates
    from talka.cli.config import read_settings

    given = read_settings(flags)
    client = client_of(given)
    job = answered(given, client.any_job(id))
    if as_json:
        return answered(given, print_updates(client, job))
    return commands_of(job).watch(client, job, given)


@command(
    "logs",
    "Show what a load test that runs prints on its workers: the newest lines, each with its worker's name.",
    ("talka jobs logs k7fw2xq9bd", "the newest lines"),
    ("talka jobs logs k7fw2xq9bd --follow", "to its end"),
)
@click.argument("id", metavar="ID")
@click.option("--follow", is_flag=True, help="Follow until the job has ended.")
@api_options
def logs(id: str, follow: bool, **where: Any) -> int:
    return asked(where, lambda client: print_lines(client, id, follow))


async def print_lines(client: "Client", id: str, follow: bool) -> int:
    from contextlib import aclosing

    from talka.cli.any_job import commands_of
    from talka.cli.remote import LineTeller

    facts = await client.any_job(id)
    if refusal := commands_of(facts).no_lines(facts):
        raise Invalid(refusal)
    if facts.state in ("submitted", "queued") and not follow:
        tell(f"job {id} is {facts.state} and has printed nothing; --follow waits for it")
        return 0
    teller = LineTeller(say)
    async with aclosing(client.watch(id)) as updates:
        async for update in updates:
            teller(update)
            if update.final:
                tell(f"job {id} has ended: what it prints is kept while it runs")
            elif update.workflows and not follow:
                break  # whoever leads the job has told all that is kept
    return 0


def stopped_text(facts: "AnyJob") -> str:
    """How much of it a cancel stopped."""
    if facts.stopped is None:
        return ""
    noun = "workflow" if facts.kind == "load" else "task"
    verb = "was" if facts.stopped == 1 else "were"
    return f"; {facts.stopped} {noun}{'' if facts.stopped == 1 else 's'} {verb} stopped"


@command("cancel", "Ask a job to stop. What it measured so far stays its result.")
@click.argument("id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the job.")
@json_option
@api_options
def cancel(id: str, reason: str, as_json: bool, **where: Any) -> int:
    from talka.work.lifecycle import is_final

    facts = asked(where, lambda client: client.cancel(id, reason))
    text = f"job {id} has ended: it is {facts.state}" if is_final(facts.state) else f"job {id} is being cancelled"
    say(json_of(facts) if as_json else f"{text}{stopped_text(facts)}")
    return 0


@command(
    "result",
    "Show the result of a job that has ended.",
    ("talka jobs result k7fw2xq9bd", "the summary"),
    ("talka jobs result k7fw2xq9bd --json > result.json", "the document, for programs"),
    ("talka jobs result k7fw2xq9bd --html report.html", "a page to open, print or send"),
)
@click.argument("id", metavar="ID")
@click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write the result; without FILE, print it without a summary.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page to open, print or send.")
@click.option("--summary", metavar="COLUMNS", help="Times to show of each step: p50,p95,p99.9,mean.")
@api_options
def result(id: str, json_file: str | None, html_file: str | None, summary: str | None, **where: Any) -> int:
    from talka.cli.config import checked_summary

    columns = None if summary is None else checked_summary("--summary", summary)
    file = None if json_file is None else ResultFile(json_file, what="--json")
    page = None if html_file is None else ResultFile(html_file, what="--html")
    if file is not None and page is not None and file.is_stdout and page.is_stdout:
        raise Invalid("--json and --html cannot both be printed: give one of them a FILE")
    from talka.cli.any_job import ResultWanted, commands_of

    job = asked(where, lambda client: client.any_job(id))
    return commands_of(job).result(where, job, ResultWanted(file, page, columns))


# Pipelines.


@command("pause", "Pause a pipeline: no new task starts, and tasks that run go on to their end.")
@click.argument("id", metavar="ID")
@json_option
@api_options
def pause(id: str, as_json: bool, **where: Any) -> int:
    facts = asked(where, lambda client: client.pause_dag(id))
    return ordered(facts, as_json, f"no new task starts until talka jobs resume {id}")


@command("resume", "Resume a pipeline that is paused, or a load test that was put aside as its time was over.")
@click.argument("id", metavar="ID")
@json_option
@api_options
def resume(id: str, as_json: bool, **where: Any) -> int:
    job = asked(where, lambda client: client.resume(id))
    return ordered(job, as_json, "it goes on as soon as it has cores" if job.state == "paused" else "")


@command(
    "retry",
    "Run tasks of a pipeline again, and all tasks that depend on them. Without TASK: all tasks that did not complete.",
    ("talka jobs retry k7fw2xq9bd", "every task that did not complete"),
    ("talka jobs retry k7fw2xq9bd clean[3]", "one, and all that depends on it"),
    ("talka jobs retry k7fw2xq9bd --from clean[3] --dry-run", "which tasks those are; nothing is run"),
    ("talka jobs retry k7fw2xq9bd load --config load='{\"rows\": 10}'", "with another config"),
)
@click.argument("id", metavar="ID")
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--from", "first", multiple=True, metavar="TASK", help="From this task on, as TASK. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only list what would be run again.")
@click.option("--config", "configs", multiple=True, metavar="TASK=JSON", help="A new config for a task. Repeatable.")
@json_option
@api_options
def retry(
    id: str,
    tasks: tuple[str, ...],
    first: tuple[str, ...],
    dry_run: bool,
    configs: tuple[str, ...],
    as_json: bool,
    **where: Any,
) -> int:
    import msgspec

    from talka.wire.task_views import RetryRequest

    changed: dict[str, msgspec.Raw] = {}
    for text in configs:
        task, equals, value = text.partition("=")
        if not equals or not task:
            raise Invalid(f"--config {text!r} names no task: write TASK=JSON")
        changed[task] = checked_json(f"--config {task}", value)
    request = RetryRequest((*tasks, *first), changed)
    if dry_run:
        from talka.cli.pipelines import show_retry

        show_retry(where, id, request, as_json=as_json)
        return 0
    facts = asked(where, lambda client: client.retry_dag(id, request))
    return ordered(facts, as_json, f"talka jobs watch {id} shows it")


@command("skip", "Do not run these tasks. Tasks that depend on them run without their output.")
@click.argument("id", metavar="ID")
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True)
@json_option
@api_options
def skip(id: str, tasks: tuple[str, ...], as_json: bool, **where: Any) -> int:
    from talka.wire.task_views import SkipRequest
    from talka.work.lifecycle import is_final

    facts = asked(where, lambda client: client.skip_dag(id, SkipRequest(tasks)))
    rest = "that was the last of it" if is_final(facts.state) else f"it goes on without {', '.join(tasks)}"
    return ordered(facts, as_json, rest)


def checked_json(what: str, text: str) -> "msgspec.Raw":
    import msgspec

    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"{what}: {text!r} is not JSON: {error}") from None
    return msgspec.Raw(text.encode())


def ordered(facts: "DagFacts | AnyJob", as_json: bool, rest: str = "") -> int:
    """What is said of a job that was told something."""
    say(json_of(facts) if as_json else f"job {facts.id} is {facts.state}{f': {tame(rest)}' if rest else ''}")
    return 0


@command(
    "queues",
    "Show for each handler how many tasks wait, run and ended, and which limits tasks wait for.",
    ("talka jobs queues", "what is behind, and for how long"),
)
@json_option
@api_options
def queues(as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import queues_text

    found = asked(where, lambda client: client.queues())
    if as_json:
        say(json_of(found))
    elif found.queues:
        say(queues_text(found))
    else:
        tell("no worker has a handler, and no task waits for one")
    return 0


# Workers.


workers = ListingGroup(
    "workers",
    "Workers of a cluster: list them, show one, drain them and take that back.",
    WORKERS,
    ("talka workers --to 10.0.0.5:8470", "who is there, and how many cores are free"),
    ("talka workers show w3", "the machine it is on, and what it can run"),
    ("talka workers drain w3", "before its machine goes away"),
    ("talka workers undrain w3", "it stays after all"),
)


@command("list", "List the workers: cores, jobs, tasks, state, and all that was decided about each and why.")
@json_option
@api_options
def list_workers(as_json: bool, **where: Any) -> int:
    found = sorted(asked(where, lambda client: client.workers()), key=lambda worker: worker.name)
    none = "no worker is there: talka worker --seed HOST:PORT starts one"
    return say_list("workers", found, as_json, workers_text, none)


def workers_text(found: "Sequence[WorkerView]") -> str:
    """A table, and below it what cores do that do not turn their event loop."""
    quiet = [quiet_core_text(worker.name, core) for worker in found for core in worker.quiet_cores]
    return "\n\n".join([workers_table(found), *quiet])


def workers_table(found: "Sequence[WorkerView]") -> str:
    return table(
        (
            "NAME",
            "STATE",
            "CORES",
            "FREE",
            "LEVEL",
            "MEMORY",
            "GPUS",
            "JOBS",
            "TASKS",
            "CAPABILITIES",
            *PLACE,
            "ADDRESS",
            "VERSION",
            "NOTE",
        ),
        [
            (
                worker.name,
                worker.state,
                str(worker.cores),
                str(worker.free),
                "" if worker.level == "normal" else worker.level,
                f"{worker.memory_bytes / GIBIBYTE:.1f} GiB" if worker.memory_bytes else "",
                str(worker.gpus or ""),
                ", ".join(worker.jobs),
                tasks_text(worker),
                ", ".join(worker.capabilities),
                *place_of(worker),
                worker.address,
                worker.version,
                note_text(worker),
            )
            for worker in found
        ],
    )


def tasks_text(worker: "WorkerView") -> str:
    from talka.report.text import counted_text

    if not worker.tasks and not worker.tasks_waiting:
        return ""
    waiting = f", {worker.tasks_waiting} wait" if worker.tasks_waiting else ""
    return f"{worker.tasks} on {counted_text(worker.task_cores, 'core')}{waiting}"


def note_text(worker: "WorkerView") -> str:
    """Why it is as it is, since when. A manager of an earlier version tells of no instants."""
    found = [decision_text(decision) for decision in worker.decisions if decision.what != "healthy"]
    note = "; ".join(found) or worker.reason
    return note if worker.decision == "route" else f"{worker.decision}: {note}"


def decision_text(decision: "WorkerDecision") -> str:
    from talka.client.sheets import instant, one_line

    since = f" since {instant(decision.since)}" if decision.since else ""
    reason = one_line(decision.reason, REASON_COLUMNS)
    return f"{decision.what}{since}{f': {reason}' if reason else ''}"


def quiet_core_text(worker: str, core: "QuietCoreView") -> str:
    from talka.client.sheets import instant

    names = ", ".join(core.workflows)
    head = f"{worker}: core {core.pid} of job {core.job} ({names}) is {core.state} since {instant(core.since)}"
    lines = core.stack.splitlines() or ["its Python stack is not known"]
    left = [f"... and {len(lines) - STACK_LINES} lines more: --json has them"] if len(lines) > STACK_LINES else []
    return "\n".join([tame(head), *(f"  {tame(line)}" for line in [*lines[:STACK_LINES], *left])])


@command("drain", "Give a worker no new work and let it finish what it has.")
@click.argument("name", metavar="NAME")
@json_option
@api_options
def drain(name: str, as_json: bool, **where: Any) -> int:
    from talka.report.text import counted_text

    worker = asked(where, lambda client: client.drain(name))
    rest = f" and finishes {counted_text(len(worker.jobs), 'job')}" if worker.jobs else ""
    say(json_of(worker) if as_json else f"worker {name} is {worker.state}: it gets no new work{rest}")
    return 0


@command("undrain", "Let a worker that was drained take new work again.")
@click.argument("name", metavar="NAME")
@json_option
@api_options
def undrain(name: str, as_json: bool, **where: Any) -> int:
    worker = asked(where, lambda client: client.undrain(name))
    is_draining = worker.state == "draining"
    text = "is told so, and takes new work in a moment" if is_draining else "takes new work"
    say(json_of(worker) if as_json else f"worker {name} {text}")
    return 0
