"""The commands `talka jobs …` and `talka workers …`: what a cluster has to do, and who does it.

What they need is imported when they are called, for a quick help.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.command import Command, Entry, LazyGroup
from talka.cli.connection import api_options, asked, client_of, json_option, token_hint
from talka.cli.output import ResultFile, columns_of, harmless, say, tell
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.client.client import Client
    from talka.client.requests import JobFacts, WorkerView

JOBS: Final = {
    "list": Entry("Commands", "talka.cli.cluster_jobs:list_jobs", "the newest jobs, and how they stand"),
    "show": Entry("Commands", "talka.cli.cluster_jobs:show", "everything about one"),
    "watch": Entry("Commands", "talka.cli.cluster_jobs:watch", "follow one to its end"),
    "cancel": Entry("Commands", "talka.cli.cluster_jobs:cancel", "end one early"),
    "result": Entry("Commands", "talka.cli.cluster_jobs:result", "what came of one: summary, JSON, HTML page"),
}
WORKERS: Final = {
    "list": Entry("Commands", "talka.cli.cluster_jobs:list_workers", "who is there, and how many cores are free"),
    "drain": Entry("Commands", "talka.cli.cluster_jobs:drain", "give one nothing new and let it finish"),
}
MOST_LISTED: Final = 10_000
GIBIBYTE: Final = 1024**3


class ListingGroup(LazyGroup):
    """Without a command, it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_about_itself = bool(args) and (args[0] in ctx.help_option_names or not args[0].startswith("-"))
        return super().parse_args(ctx, args if is_about_itself or ctx.resilient_parsing else ["list", *args])


@click.group(
    "jobs",
    cls=ListingGroup,
    entries=JOBS,
    examples=[
        ("talka jobs --to 10.0.0.5:8470", "the newest"),
        ("talka jobs watch k7fw2xq9bd", "follow one; its exit code is the command's"),
        ("talka jobs result k7fw2xq9bd --html report.html", "what came of it"),
    ],
    help="Jobs of a cluster: list, show, watch and cancel them, and get their results.",
)
def jobs() -> None:
    pass


@click.command(
    "list",
    cls=Command,
    examples=[
        ("talka jobs list", "the newest 50"),
        ("talka jobs list --state running", "those that run now"),
        ("talka jobs list --json", "for programs"),
    ],
    help="List jobs, newest first.",
)
@click.option("--state", default="", metavar="STATE", help="Only those that are so: queued, running, completed …")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=50, metavar="N", help="At most so many (50).")
@json_option
@api_options
def list_jobs(state: str, limit: int, as_json: bool, **where: Any) -> int:
    from talka.cli.cluster import print_json

    check_state(state)
    found = asked(where, lambda client: newest(client, state, limit))
    if as_json:
        print_json({"jobs": found})
    elif found:
        say(jobs_table(found))
        if len(found) == limit:
            tell(f"these are the newest {limit}; --limit N shows more")
    else:
        tell(f"no job is {state}" if state else "no jobs are known: talka submit FILE makes one")
    return 0


def check_state(state: str) -> None:
    from talka.work.lifecycle import JobState

    if state and state not in list(JobState):
        raise Invalid(f"--state: no job is ever {state!r}; states are {', '.join(JobState)}")


async def newest(client: "Client", state: str, limit: int) -> "list[JobFacts]":
    from talka.client.requests import PAGE_LIMIT

    found: list[JobFacts] = []
    cursor = ""
    while len(found) < limit:
        page = await client.jobs(state, cursor, min(PAGE_LIMIT, limit - len(found)))
        found += page.items
        cursor = page.next
        if not cursor:
            break
    return found


def jobs_table(found: "Sequence[JobFacts]") -> str:
    from talka.cli.cluster import table

    return table(
        ("JOB", "NAME", "STATE", "CORES", "SUBMITTED", "EXIT", "NOTE"),
        [
            (
                job.id,
                job.name,
                job.state,
                str(job.cores or ""),
                instant(job.submitted_at),
                "" if job.exit_code is None else str(job.exit_code),
                note_of(job),
            )
            for job in found
        ],
    )


def note_of(job: "JobFacts") -> str:
    return queue_text(job) or first_line(job.cancel or job.reason)


def queue_text(job: "JobFacts") -> str:
    from talka.cli.remote import waiting_text

    return waiting_text(job).removeprefix("queued").removeprefix(", ").removeprefix(": ")


def first_line(text: str) -> str:
    from talka.report.text import cut

    return cut(" ".join(text.split()), 60)


def instant(text: str) -> str:
    """Of RFC 3339, without what nobody reads in a table."""
    return text[:19].replace("T", " ")


@click.command("show", cls=Command, help="Show everything about a job.")
@click.argument("id", metavar="ID")
@json_option
@api_options
def show(id: str, as_json: bool, **where: Any) -> int:
    from talka.cli.cluster import print_json

    facts = asked(where, lambda client: client.job(id))
    if as_json:
        print_json(facts)
    else:
        say(facts_text(facts))
    return 0


def facts_text(facts: "JobFacts") -> str:
    rows = [
        ("job", facts.id),
        ("name", facts.name),
        ("state", f"{facts.state}{f': {facts.reason}' if facts.reason else ''}"),
        ("queue", queue_text(facts)),
        ("cancelled", facts.cancel),
        ("cores", str(facts.cores or "")),
        ("workers", ", ".join(facts.workers)),
        ("led by", facts.owner),
        ("submitted", f"{instant(facts.submitted_at)} UTC" if facts.submitted_at else ""),
        ("by", facts.submitted_by),
        ("ended", f"{instant(facts.ended_at)} UTC" if facts.ended_at else ""),
        ("exit code", "" if facts.exit_code is None else str(facts.exit_code)),
    ]
    return "\n".join(f"{word:<10} {harmless(text)}" for word, text in rows if text)


@click.command(
    "watch",
    cls=Command,
    examples=[("talka jobs watch k7fw2xq9bd", "as talka submit shows it"), ("talka jobs watch k7fw2xq9bd --json", "")],
    help="Follow a job to its end and show what came of it. Exits as the job does. Ctrl-C leaves; the job goes on.",
)
@click.argument("id", metavar="ID")
@click.option("--ui", metavar="[auto|full|ci|none]", help="Live view, lines, or nothing on stderr (auto).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each update, and no summary.")
@api_options
def watch(id: str, as_json: bool, **flags: Any) -> int:
    from talka.cli.config import Settings, read_settings

    given = read_settings(flags)
    client = client_of(given)
    import asyncio

    if as_json:
        with token_hint(given):
            return asyncio.run(print_updates(client, id))
    from talka.cli.jobs import Reporting
    from talka.cli.remote import RemoteJob, followed

    async def find() -> "tuple[Any, JobFacts]":
        return await client.order(id), await client.job(id)

    with token_hint(given):
        order, facts = asyncio.run(find())
    job = RemoteJob(client, order, order.workflows, cancels=False)
    job.submitted(facts)
    # Results are written where the job was submitted, or by `talka jobs result`.
    reporting = Reporting(job, Settings(ui=given.ui), job.waiting)
    return followed(job, reporting, f"watching job {id}: Ctrl-C leaves, and the job goes on")


async def print_updates(client: "Client", id: str) -> int:
    import msgspec

    code = 0
    async for update in client.watch(id):
        say(msgspec.json.encode(update))
        code = update.job.exit_code or 0
    return code


@click.command("cancel", cls=Command, help="Ask a job to stop. What it measured so far stays its result.")
@click.argument("id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Why, for those who look at it later.")
@json_option
@api_options
def cancel(id: str, reason: str, as_json: bool, **where: Any) -> int:
    from talka.cli.cluster import print_json
    from talka.work.lifecycle import is_final

    facts = asked(where, lambda client: client.cancel(id, reason))
    if as_json:
        print_json(facts)
    elif is_final(facts.state):
        say(f"job {id} has ended: it is {facts.state}")
    else:
        say(f"job {id} is being cancelled")
    return 0


@click.command(
    "result",
    cls=Command,
    examples=[
        ("talka jobs result k7fw2xq9bd", "the summary"),
        ("talka jobs result k7fw2xq9bd --json > result.json", "the document, for programs"),
        ("talka jobs result k7fw2xq9bd --html report.html", "a page to open, print or send"),
    ],
    help="Show what came of a job that has ended.",
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
@api_options
def result(id: str, json_file: str | None, html_file: str | None, **where: Any) -> int:
    file = None if json_file is None else ResultFile(json_file, what="--json")
    page = None if html_file is None else ResultFile(html_file, what="--html")
    if file is not None and page is not None and file.is_stdout and page.is_stdout:
        raise Invalid("--json and --html cannot both be printed: give one of them a FILE")
    from talka.cli.config import wants_color
    from talka.report.document import read
    from talka.report.html import html_report
    from talka.report.summary import summary

    content = asked(where, lambda client: client.result(id))
    document = read(content)
    if file is not None:
        file.write(document.to_json())
    if page is not None:
        page.write(html_report(document).encode())
    if not any(written is not None and written.is_stdout for written in (file, page)):
        say(summary(document, width=columns_of(sys.stdout), color=wants_color(sys.stdout)))
    return 0


# Workers.


@click.group(
    "workers",
    cls=ListingGroup,
    entries=WORKERS,
    examples=[
        ("talka workers --to 10.0.0.5:8470", "who is there, and how many cores are free"),
        ("talka workers drain w3", "before its machine goes away"),
    ],
    help="Workers of a cluster: list and drain them.",
)
def workers() -> None:
    pass


@click.command("list", cls=Command, help="List the workers: cores, jobs, and how they are.")
@json_option
@api_options
def list_workers(as_json: bool, **where: Any) -> int:
    from talka.cli.cluster import print_json

    found = sorted(asked(where, lambda client: client.workers()), key=lambda worker: worker.name)
    if as_json:
        print_json({"workers": found})
    elif found:
        say(workers_table(found))
    else:
        tell("no worker is there: talka worker --seed HOST:PORT starts one")
    return 0


def workers_table(found: "Sequence[WorkerView]") -> str:
    from talka.cli.cluster import table

    return table(
        ("NAME", "STATE", "CORES", "FREE", "MEMORY", "GPUS", "JOBS", "CAPABILITIES", "ADDRESS", "VERSION", "NOTE"),
        [
            (
                worker.name,
                worker.state,
                str(worker.cores),
                str(worker.free),
                f"{worker.memory_bytes / GIBIBYTE:.1f} GiB" if worker.memory_bytes else "",
                str(worker.gpus or ""),
                ", ".join(worker.jobs),
                ", ".join(worker.capabilities),
                worker.address,
                worker.version,
                first_line(worker.reason),
            )
            for worker in found
        ],
    )


@click.command("drain", cls=Command, help="Give a worker nothing new and let it finish what it has.")
@click.argument("name", metavar="NAME")
@json_option
@api_options
def drain(name: str, as_json: bool, **where: Any) -> int:
    from talka.cli.cluster import print_json
    from talka.report.text import counted_text

    worker = asked(where, lambda client: client.drain(name))
    if as_json:
        print_json(worker)
    else:
        rest = f" and finishes {counted_text(len(worker.jobs), 'job')}" if worker.jobs else ""
        say(f"worker {name} is {worker.state}: it gets nothing new{rest}")
    return 0
