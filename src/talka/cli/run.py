"""Commands that take a test: run, check, debug."""

import contextlib
import sys
from typing import Any

import click

from talka.cli.command import command, option, options
from talka.cli.connection import api_options
from talka.cli.output import ResultFile, harmless, say

LOAD, REQUEST, RESULT, RUNNING = "Load (replaces what the file says)", "Request (of a URL)", "Result", "Running"
PIPELINE = "Pipeline"

# Nothing is checked by this type; shells complete names of files for it.
target = click.argument("target", type=click.Path(readable=False), metavar="TARGET")
# Values stay texts here: settings check them, wherever they come from.
load_options = options(
    option(LOAD, "--vus", "N", "Virtual users; with --rate, the most at the same time."),
    option(LOAD, "--rate", "R", "Iterations to start: 500, 500/s, 30/m."),
    option(LOAD, "--duration --for duration", "D", "How long: 30s, 1m30s, 500ms."),
    option(LOAD, "--iterations", "N", "Iterations in all, shared by the virtual users."),
)
request_options = options(
    option(REQUEST, "-X --request method", "METHOD", "GET; POST where there is a -d."),
    option(
        REQUEST,
        "-H --header headers",
        "LINE",
        "'Name: value', or @FILE with such lines, for what others must not see. Repeatable.",
        multiple=True,
    ),
    option(
        REQUEST,
        "-d --data data",
        "BODY",
        "The body, or @FILE. JSON is sent as application/json, other text as a form, unless -H says so.",
    ),
    option(REQUEST, "-k --insecure insecure", None, "Trust any certificate of the server.", is_flag=True),
    option(REQUEST, "--timeout", "D", "The longest a request may take (60s)."),
)
cores = option(RUNNING, "--cores", "N", "Core processes (one for each physical core).")
threshold = option(
    RESULT,
    "--threshold thresholds",
    "RULE",
    'A threshold, such as "response_time.p99 < 250ms". Repeatable.',
    multiple=True,
)
summary = option(RESULT, "--summary", "COLUMNS", "Times to show of each step: p50,p95,p99.9,mean (p50,p90 … max).")
html = option(RESULT, "--html", "FILE", "Write a page to open, print or send.")
env = option(
    RUNNING, "--env", "NAME[=VALUE]", "A variable for the test; without VALUE, your own. Repeatable.", multiple=True
)
param = option(PIPELINE, "--param", "NAME=VALUE", "A value of one of the pipeline's params. Repeatable.", multiple=True)
travelling = option(
    PIPELINE,
    "--with with_files",
    "FILE",
    "Handlers that travel with it, to workers that --accept-code; or data beside them. Repeatable.",
    multiple=True,
)
more_result_options = options(
    html,
    summary,
    option(RESULT, "--junit", "FILE", "Write thresholds and checks as JUnit test cases."),
    option(
        RESULT,
        "--output outputs",
        "KIND=TARGET",
        "Another output: csv, jsonl, markdown, prometheus, influx … (docs/outputs.md). Repeatable.",
        multiple=True,
    ),
    option(RESULT, "--keep/--no-keep", None, "Keep the result for talka history.", default=None),
    option(RESULT, "--store", "URL", "Where to keep it (a file below ~/.local/state)."),
    option(RESULT, "--allow-partial/--no-allow-partial", None, "Exit with 0 also if cores were lost.", default=None),
)
result_options = options(
    threshold,
    option(RESULT, "--json", "FILE", "Write the result; - prints it, without a summary."),
    more_result_options,
)
running_options = options(
    option(RUNNING, "--seed", "N", "Seed of everything that is random, to repeat a run."),
    option(RUNNING, "--grace", "D", "Time for iterations that are under way at the end (30s)."),
    option(RUNNING, "--ui", "[auto|full|ci|none]", "Live view, lines, or nothing on stderr (auto)."),
    option(RUNNING, "--engine", "[auto|native|python]", "The engine that sends the requests (auto)."),
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
    "Find mistakes in a test or a pipeline and show its plan. Runs nothing. TARGET is as for talka run and submit.",
    ("talka check shop.py", "what is wrong with it, or what it would do"),
    ("talka check shop.py:Browse --rate 200/s", "the plan with another load"),
    ("talka check etl.yaml --param day=2026-11-16", "a pipeline with a value of its params"),
    ("talka check etl.yaml --to 10.0.0.5:8470", "and which workers of that cluster could run its tasks"),
    ("talka check etl.yaml --with handlers.py", "and the handlers that are to travel with it"),
)
@target
@load_options
@request_options
@threshold
@option(
    RESULT,
    "--json plan_file",
    "[FILE]",
    "Write the plan as JSON; without FILE, print it instead.",
    is_flag=False,
    flag_value="-",
)
@cores
@env
@param
@travelling
@option(
    PIPELINE,
    "--workers-have",
    "MODULE",
    "These handlers import it, and every worker has it. Repeatable.",
    multiple=True,
)
@api_options
def check(
    target: str,
    env: tuple[str, ...],
    plan_file: str | None,
    param: tuple[str, ...],
    with_files: tuple[str, ...],
    **flags: Any,
) -> int:
    from talka.cli.config import BadSetting, pass_variables, read_settings
    from talka.cli.submit import pipeline_in
    from talka.cli.url_request import take_request

    request = take_request(flags, target)
    settings = read_settings(flags)
    file = None if plan_file is None else ResultFile(plan_file, what="--json")
    pass_variables(env)
    # Without any, they are to be given when it is submitted.
    pipeline = pipeline_in(target, settings, env, param, with_files, may_lack=not param)
    if pipeline is not None:
        from talka.cli.pipeline_check import check_pipeline
        from talka.cli.pipelines import with_code
        from talka.engine.bundle import names_in

        asks = settings.origins.get("to") == "--to"
        pipeline, code = with_code(pipeline, with_files, settings)
        travels = names_in(code) if code else ()
        return check_pipeline(pipeline, settings, file, travels=travels, asks=asks, has_values=bool(param))
    if with_files:
        raise BadSetting(f"--with is for pipelines, and {target} is a load test, which travels anyway: leave it out")
    if settings.origins.get("workers_have") == "--workers-have":
        raise BadSetting(f"--workers-have is about handlers that travel with a pipeline, and {target} is a load test")
    for name in ("to", "token_file", "ca"):
        if settings.origins.get(name, "").startswith("--"):
            raise BadSetting(f"{settings.named(name)} is for pipelines, and {target} is a load test: leave it out")
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
