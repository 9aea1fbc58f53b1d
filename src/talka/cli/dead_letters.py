"""The commands `talka dead-letters …`: tasks of pipelines that were given up, and another try for them."""

from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.cluster_jobs import MOST_LISTED, checked_json
from talka.cli.command import CommandEntry, ListingGroup, command
from talka.cli.connection import api_options, asked, json_option
from talka.cli.output import json_of, say, say_list, tell
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.client.client import Client
    from talka.wire.task_views import DeadLetter

LETTERS: Final = {
    "list": CommandEntry("Commands", "dead_letters:list_letters", "tasks that were given up, and why"),
    "show": CommandEntry("Commands", "dead_letters:show", "one of them, with every attempt"),
    "replay": CommandEntry("Commands", "dead_letters:replay", "run one again, as it was or with another config"),
}


dead_letters = ListingGroup(
    "dead-letters",
    "Tasks of pipelines that were given up after their last attempt: list, show and replay them.",
    LETTERS,
    ("talka dead-letters --to 10.0.0.5:8470", "what was given up"),
    ("talka dead-letters show k7fw2xq9bd/load", "every attempt of one"),
    ("talka dead-letters replay k7fw2xq9bd/load", "run it again, and then all that depends on it"),
)


@command(
    "list",
    "List the tasks that were given up, those of the oldest job first.",
    ("talka dead-letters list", "the first 50"),
    ("talka dead-letters list --job k7fw2xq9bd", "of one job"),
    ("talka dead-letters list --json", "for programs, with every attempt"),
)
@click.option("--job", default="", metavar="ID", help="Only those of this job.")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=50, metavar="N", help="At most this many (50).")
@json_option
@api_options
def list_letters(job: str, limit: int, as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import letters_table

    found = asked(where, lambda client: letters_of(client, limit, job=job))
    none = f"nothing of job {job} was given up" if job else "nothing was given up"
    cut = f"these are the first {limit}" if len(found) == limit else ""
    return say_list("dead_letters", found, as_json, letters_table, none, cut)


async def letters_of(
    client: "Client", limit: int, *, job: str = "", task: str = "", looked_at_most: int = MOST_LISTED
) -> "list[DeadLetter]":
    """Those of the job and the task, where one is named."""
    from talka.client.requests import PAGE_LIMIT

    found: list[DeadLetter] = []
    cursor, looked_at = "", 0
    while len(found) < limit and looked_at < looked_at_most:
        page = await client.dead_letters(cursor, PAGE_LIMIT)
        looked_at += len(page.items)
        found += [letter for letter in page.items if job in ("", letter.job) and task in ("", letter.task)]
        cursor = page.next
        if not cursor or not page.items:
            break
    return found[:limit]


@command(
    "show",
    "Show a task that was given up, and everything that was tried.",
    ("talka dead-letters show k7fw2xq9bd/load", "cause, error, and every attempt"),
)
@click.argument("letter", metavar="JOB/TASK")
@json_option
@api_options
def show(letter: str, as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import letter_text

    job, task = job_and_task(letter)
    found = asked(where, lambda client: letters_of(client, 1, job=job, task=task))
    if not found:
        raise Invalid(
            f"{letter} is not a dead letter: talka dead-letters lists them, talka jobs show {job} --task {quote(task)}"
            " shows the task as it is"
        )
    say(json_of(found[0]) if as_json else letter_text(found[0]))
    if not as_json:
        tell(f"talka dead-letters replay {quote(letter)} runs it again; --config JSON gives it another config")
    return 0


@command(
    "replay",
    "Run a task again that was given up, and then all tasks that depend on it.",
    ("talka dead-letters replay k7fw2xq9bd/load", "unchanged, after its cause is fixed"),
    ("talka dead-letters replay k7fw2xq9bd/load --config '{\"rows\": 10}'", "with another config"),
)
@click.argument("letter", metavar="JOB/TASK")
@click.option("--config", metavar="JSON", help="A new config for its handler (the config it had before).")
@json_option
@api_options
def replay(letter: str, config: str | None, as_json: bool, **where: Any) -> int:
    job, task = job_and_task(letter)
    changed = None if config is None else checked_json("--config", config)
    facts = asked(where, lambda client: client.replay(f"{job}/{task}", changed))
    text = f"{task} runs again: job {facts.id} is {facts.state}; talka jobs watch {facts.id} shows it"
    say(json_of(facts) if as_json else text)
    return 0


def job_and_task(letter: str) -> tuple[str, str]:
    """A task's own name may have slashes too."""
    job, slash, task = letter.partition("/")
    if not (job and slash and task):
        raise Invalid(f"{letter!r} does not name a dead letter: write JOB/TASK, as talka dead-letters lists them")
    return job, task
