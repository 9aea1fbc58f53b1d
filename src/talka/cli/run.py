"""Commands that take a test: run, check, debug. What they need is imported when they are called, for a quick help."""

import contextlib
import sys
from typing import Any

import click

from talka.cli.command import command, option, options
from talka.cli.output import ResultFile, harmless, say

LOAD, REQUEST, RESULT, RUNNING = "Load (replaces what the file says)", "Request (of a URL)", "Result", "Running"

# Nothing is checked by this type; shells complete names of files for it.
target = click.argument("target", type=click.Path(readable=False), metavar="TARGET")
# Values stay texts here: settings check them, wherever they come from.
load_options = options(
    option("--vus", section=LOAD, metavar="N", help="Virtual users; with --rate, the most at the same time."),
    option("--rate", section=LOAD, metavar="R", help="Iterations to start: 500, 500/s, 30/m."),
    option("--duration", "--for", "duration", section=LOAD, metavar="D", help="How long: 30s, 1m30s, 500ms."),
    option("--iterations", section=LOAD, metavar="N", help="Iterations in all, shared by the virtual users."),
)
request_options = options(
    option("-X", "--request", "method", section=REQUEST, metavar="METHOD", help="GET; POST where there is a -d."),
    option(
        "-H",
        "--header",
        "headers",
        section=REQUEST,
        metavar="LINE",
        multiple=True,
        help="'Name: value', or @FILE with such lines, for what others must not see. Repeatable.",
    ),
    option(
        "-d",
        "--data",
        "data",
        section=REQUEST,
        metavar="BODY",
        help="The body, or @FILE. JSON is sent as application/json, other text as a form, unless -H says so.",
    ),
    option("-k", "--insecure", "insecure", section=REQUEST, is_flag=True, help="Trust any certificate of the server."),
    option("--timeout", section=REQUEST, metavar="D", help="The longest a request may take (60s)."),
)
cores = option("--cores", section=RUNNING, metavar="N", help="Core processes (one for each physical core).")
threshold = option(
    "--threshold",
    "thresholds",
    section=RESULT,
    metavar="RULE",
    multiple=True,
    help='A threshold, such as "response_time.p99 < 250ms". Repeatable.',
)
summary = option(
    "--summary",
    section=RESULT,
    metavar="COLUMNS",
    help="Times to show of each step: p50,p95,p99.9,mean (p50,p90 … max).",
)
html = option("--html", section=RESULT, metavar="FILE", help="Write a page to open, print or send.")
env = option(
    "--env",
    section=RUNNING,
    metavar="NAME[=VALUE]",
    multiple=True,
    help="A variable for the test; without VALUE, your own. Repeatable.",
)
result_options = options(
    threshold,
    option("--json", section=RESULT, metavar="FILE", help="Write the result; - prints it, without a summary."),
    html,
    summary,
    option("--junit", section=RESULT, metavar="FILE", help="Write thresholds and checks as JUnit test cases."),
    option(
        "--output",
        "outputs",
        section=RESULT,
        metavar="KIND=TARGET",
        multiple=True,
        help="Another output: csv, jsonl, markdown, prometheus, influx … (docs/outputs.md). Repeatable.",
    ),
    option("--keep/--no-keep", section=RESULT, default=None, help="Keep the result for talka history."),
    option("--store", section=RESULT, metavar="URL", help="Where to keep it (a file below ~/.local/state)."),
    option(
        "--allow-partial/--no-allow-partial",
        section=RESULT,
        default=None,
        help="Exit with 0 also if cores were lost.",
    ),
)
running_options = options(
    option("--seed", section=RUNNING, metavar="N", help="Seed of everything that is random, to repeat a run."),
    option("--grace", section=RUNNING, metavar="D", help="Time for iterations that are under way at the end (30s)."),
    option(
        "--ui", section=RUNNING, metavar="[auto|full|ci|none]", help="Live view, lines, or nothing on stderr (auto)."
    ),
    option(
        "--engine", section=RUNNING, metavar="[auto|native|python]", help="The engine that sends the requests (auto)."
    ),
)


@command(
    "run",
    "Run a load test on this machine. TARGET is FILE, FILE:Class,Class or a URL.",
    ("talka run shop.py", "all of the file, as it says"),
    ("talka run https://staging.example.com/", "no file: 50/s for 10 s"),
    ("talka run shop.py:Browse --rate 200/s --for 1m", "one workflow, other load"),
)
@target
@load_options
@request_options
@result_options
@cores
@running_options
@env
def run(target: str, env: tuple[str, ...], **flags: Any) -> int:
    from talka.cli.config import pass_variables, read_settings
    from talka.cli.url_request import take_request

    request = take_request(flags, target)
    settings = read_settings(flags)
    pass_variables(env)
    from talka.cli.jobs import Reporting, opening_of, plan

    # What the user's file prints when it is imported must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        job = plan(target, settings, request)
    reporting = Reporting(job, settings)
    return reporting.report(reporting.carry_out(opening_of(job)))


@command(
    "check",
    "Find mistakes in a test and show its plan. Sends nothing. TARGET is as for talka run.",
    ("talka check shop.py", "what is wrong with it, or what it would do"),
    ("talka check shop.py:Browse --rate 200/s", "the plan with another load"),
)
@target
@load_options
@request_options
@threshold
@option("--json", "plan_file", section=RESULT, metavar="FILE", help="Write the plan as JSON; - prints it instead.")
@cores
@env
def check(target: str, env: tuple[str, ...], plan_file: str | None, **flags: Any) -> int:
    from talka.cli.config import pass_variables, read_settings
    from talka.cli.url_request import take_request

    request = take_request(flags, target)
    settings = read_settings(flags)
    file = None if plan_file is None else ResultFile(plan_file, what="--json")
    pass_variables(env)
    from talka.cli.jobs import plan, show_plan

    with contextlib.redirect_stdout(sys.stderr):
        job = plan(target, settings, request)
    show_plan(job, file)
    return 0


@command(
    "debug",
    "Run each workflow once in this process and show every request. Breakpoints in the test work.",
    ("talka debug shop.py", "one user, one iteration of every workflow"),
    ("talka debug shop.py:Browse", "of one, and of those it depends on"),
)
@target
@request_options
@env
def debug(target: str, env: tuple[str, ...], **flags: Any) -> int:
    from talka.cli.config import CliSettings, pass_variables
    from talka.cli.url_request import take_request

    request = take_request(flags, target)
    pass_variables(env)
    import asyncio

    from talka.cli.jobs import plan
    from talka.nodes.debug import debug_job

    # Settings are about load, of which there is none here.
    job = plan(target, CliSettings(), request)
    return asyncio.run(debug_job(job, lambda text: say(harmless(text))))
