"""The commands `talka jobs schedules …`: pipelines that are submitted whenever the clock says so."""

import re
from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.command import CommandEntry, ListingGroup, command
from talka.cli.connection import api_options, asked, json_option, trust_options
from talka.cli.output import json_of, say, say_list
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.wire.task_views import ScheduleView

SCHEDULES: Final = {
    "list": CommandEntry("Commands", "schedules:list_schedules", "all of them, and when each is due next"),
    "pause": CommandEntry("Commands", "schedules:pause", "submit nothing for one until it is resumed"),
    "resume": CommandEntry("Commands", "schedules:resume", "follow one again"),
    "run-now": CommandEntry("Commands", "schedules:run_now", "submit the job of one now"),
    "backfill": CommandEntry("Commands", "schedules:backfill", "run what one was due for in the past"),
}

DAY: Final = re.compile(r"\d{4}-?\d\d-?\d\d")
"""How an instant begins, and no address."""

schedules = ListingGroup(
    "schedules",
    "Pipelines that are submitted on a schedule: list, pause and resume them, run one now or for the past.",
    SCHEDULES,
    ("talka jobs schedules", "all of them"),
    ("talka jobs schedules pause nightly", "until talka jobs schedules resume nightly"),
    ("talka jobs schedules backfill nightly --from 2026-11-01 --to 2026-11-08", "one job for each night"),
)


@command(
    "list",
    "List the pipelines that are submitted on a schedule, or remove a schedule.",
    ("talka jobs schedules list", "with the next instant in the zone of each and in UTC"),
    ("talka jobs schedules list --drop nightly", "remove one"),
)
@click.option("--drop", metavar="NAME", help="Remove this schedule. Jobs that it submitted stay.")
@json_option
@api_options
def list_schedules(drop: str | None, as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import schedules_table

    if drop is not None:
        asked(where, lambda client: client.drop_schedule(drop))
        if not as_json:
            say(f"{drop} is no longer scheduled")
            return 0
    found = asked(where, lambda client: client.schedules())
    none = "nothing is scheduled: submit a pipeline whose file has schedule:"
    return say_list("schedules", found, as_json, schedules_table, none)


@command("pause", "Submit nothing for a schedule until it is resumed. Jobs that it submitted go on.")
@click.argument("name", metavar="NAME")
@json_option
@api_options
def pause(name: str, as_json: bool, **where: Any) -> int:
    found = asked(where, lambda client: client.pause_schedule(name))
    return changed(found, as_json, f"{name} is paused: talka jobs schedules resume {name} goes on with it")


@command(
    "resume",
    "Follow a schedule again. What was due while it was paused is caught up with as its catch_up says: skip, one, all.",
)
@click.argument("name", metavar="NAME")
@json_option
@api_options
def resume(name: str, as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import resumed_text
    from talka.clock import realtime_ns

    found = asked(where, lambda client: client.resume_schedule(name))
    return changed(found, as_json, resumed_text(found, realtime_ns()))


@command(
    "run-now",
    "Submit the job of a schedule now, also while it is paused. When it is due next stays as it is.",
    ("talka jobs schedules run-now nightly", "prints the id of the job"),
)
@click.argument("name", metavar="NAME")
@click.option("--key", default="", metavar="KEY", help="Submitted twice with the same key, it is one job.")
@json_option
@api_options
def run_now(name: str, key: str, as_json: bool, **where: Any) -> int:
    facts = asked(where, lambda client: client.run_schedule(name, key))
    say(json_of(facts) if as_json else facts.id)
    return 0


@command(
    "backfill",
    "Submit one job for each instant at which a schedule was due in the past, oldest first. An instant that was run is "
    "not run again, as long as its job is kept.",
    ("talka jobs schedules backfill nightly --from 2026-11-01 --to 2026-11-08", "the nights of a week"),
    ("… --from 2026-11-01T12:00 --to 2026-11-02T00:00+01:00", "in the schedule's zone, or with an offset"),
    ("… --from 2026-11-01 --to 2026-11-08 --dry-run", "what it would submit"),
)
@click.argument("name", metavar="NAME")
@click.option("--from", "begin", required=True, metavar="WHEN", help="The first instant. Required.")
@click.option(
    "--to",
    "ends",
    required=True,
    multiple=True,
    metavar="WHEN",
    help="The instant up to which, without it. Required. Once more with HOST:PORT, a manager's API as elsewhere.",
)
@click.option("--dry-run", is_flag=True, help="Submit nothing, and tell what would be.")
@json_option
@trust_options
def backfill(name: str, begin: str, ends: tuple[str, ...], dry_run: bool, as_json: bool, **where: Any) -> int:
    from talka.cli.dag_text import backfill_table, backfill_text

    places = [one for one in ends if not DAY.match(one)]
    if len(ends) - len(places) != 1 or len(places) > 1:
        raise Invalid(
            f"--to {' --to '.join(ends)}: write the day or instant up to which, such as --to 2026-11-16, and if need "
            "be --to HOST:PORT of a manager"
        )
    (end,) = (one for one in ends if one not in places)
    where["to"] = places[0] if places else None
    found = asked(where, lambda client: client.backfill(name, begin, end, dry_run=dry_run))
    if as_json:
        say(json_of(found))
        return 0
    if found.runs:
        say(backfill_table(found))
    say(backfill_text(found))
    return 0


def changed(found: "ScheduleView", as_json: bool, text: str) -> int:
    say(json_of(found) if as_json else text)
    return 0
