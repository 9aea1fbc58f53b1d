"""The command `talka store …`: the file in which dag jobs are kept."""

import asyncio
from typing import Final

import click

from talka.cli.command import CommandEntry, LazyGroup, command
from talka.cli.output import say, tell

COMMANDS: Final = {
    "migrate": CommandEntry("Commands", "nodes.store:migrate", "make a store, or bring one to this version"),
    "check": CommandEntry("Commands", "nodes.store:check", "read all of it and tell what is wrong"),
    "backup": CommandEntry("Commands", "nodes.store:backup", "copy it while it is in use"),
}


store = LazyGroup(
    "store",
    "The store of dag jobs: bring it to this version, check it, copy it.",
    COMMANDS,
    ("talka store check --store sqlite:///jobs.sqlite", "is it whole?"),
    ("talka store backup copy.sqlite --store sqlite:///jobs.sqlite", "a copy, while jobs run"),
)


store_option = click.option(
    "--store", "url", required=True, metavar="URL", help="The store: sqlite:///FILE or the path of a file. Required."
)


@command(
    "migrate",
    "Make a store, or bring one to this version. A manager does the same when it starts.",
    ("talka store migrate --store sqlite:///jobs.sqlite", "before the first start of a new version"),
)
@store_option
def migrate(url: str) -> int:
    from talka.store.dags.opening import kind_of

    place, found, version = asyncio.run(kind_of(url).migrate(url))
    if found == version:
        say(f"{place} has schema {version} already")
    elif found:
        say(f"{place} had schema {found} and has schema {version} now")
    else:
        say(f"{place} was made, with schema {version}")
    return 0


@command(
    "check",
    "Read all of a store and tell what is wrong. Nothing is changed; the exit code is 2 if anything is wrong.",
    ("talka store check --store sqlite:///jobs.sqlite", "it may be in use meanwhile"),
)
@store_option
def check(url: str) -> int:
    from talka.report.text import counted_text
    from talka.store.dags.opening import kind_of
    from talka.work.outcome import ExitCode

    place, problems, jobs, tasks = asyncio.run(kind_of(url).look_over(url))
    if not problems:
        say(f"{place} is whole: {counted_text(jobs, 'job')}, {counted_text(tasks, 'task')}")
        return ExitCode.HELD
    for problem in problems:
        tell(f"{place}: {problem}")
    return ExitCode.USAGE


@command(
    "backup",
    "Copy a store to the new file TARGET, while it is in use. Large outputs are files of their own: copy them too.",
    ("talka store backup copy.sqlite --store sqlite:///jobs.sqlite", "as it is at this instant"),
)
@click.argument("target", metavar="TARGET")
@store_option
def backup(target: str, url: str) -> int:
    from talka.store.dags.opening import kind_of

    say(f"{asyncio.run(kind_of(url).backup(url, target))} was copied to {target}")
    return 0
