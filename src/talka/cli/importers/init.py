"""The command `talka init`: a project that runs, from nothing, from a recording or from the description of an API."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from talka.cli.command import command
from talka.cli.output import ResultFile, harmless, say, tell
from talka.errors import Invalid

if TYPE_CHECKING:
    from talka.cli.importers.test_writer import Draft

INPUT_LIMIT_BYTES: Final = 64 * 1024 * 1024
TEST, SETTINGS, WORKFLOW = "loadtest.py", "talka.toml", ".github/workflows/loadtest.yml"

FIRST_TEST: Final = '''\
"""A first load test. It runs against the server that `talka demo-server` starts in another terminal.

`talka check loadtest.py` shows the plan and sends nothing, `talka debug loadtest.py` runs one user once and shows every
request, `talka run loadtest.py` runs it.
"""

import os

from talka import URL, Data, HTTPResponse, Workflow, check, step

# Where the requests go. Elsewhere: talka run loadtest.py --env TARGET=http://127.0.0.1:9000
TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400").rstrip("/")


class Customer(Workflow):
    """A class is one kind of user. Each of its virtual users does the steps below, over and over."""

    vus = 10  # users at the same time
    duration = "10s"
    # What must hold. If a rule does not, the command ends with exit code 4, and a CI job fails.
    thresholds = ["failed < 1%", "response_time.p95 < 500ms", "checks > 99%"]

    # A step is measured because it returns an HTTPResponse. The URL is prepared once, before the clock starts.
    @step()
    async def home(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        return await self.client.http.get(url)

    # It runs after the step it names. Two steps that name the same one would run at the same time.
    @step(home)
    async def goods(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    # A dict is sent as JSON. A status of 400 or more is a failure unless the step expects it: @step(goods, expect=404).
    @step(goods)
    async def order(self, url: URL = f"{TARGET}/echo", data: Data = {"item": 2, "pieces": 1}) -> HTTPResponse:
        return await self.client.http.post(url, data=data)

    # A check looks at the result of the step its parameter names. It fails when it raises or returns False.
    @check()
    def order_is_confirmed(self, order: HTTPResponse) -> bool:
        return bool(order.json()["method"] == "POST")
'''

FIRST_SETTINGS: Final = """\
# Settings of talka in this folder. A flag or a variable (TALKA_VUS=20) goes before what stands here;
# `talka config show` tells what holds and why. What is commented out is left to the test, or to the machine.

# The load, in place of what the test says. Either rate or iterations.
# vus = 20
# duration = "1m"
# rate = "50/s"
# iterations = 1000

# Rules over the whole job, besides those of the test.
# thresholds = ["failed < 1%", "response_time.p99 < 250ms"]

# Core processes; one for each physical core if it is left out.
# cores = 2

# Where the result goes, besides the summary: as a document, as a page, for a CI system, and window by window.
# json = "result.json"
# html = "result.html"
# junit = "result.xml"
# outputs = ["jsonl=windows.jsonl"]

# true: results are kept, to be compared later; in a file of your own if you name one.
# keep = true
# store = "history.sqlite"

# Seed of everything that is random, to repeat a run.
# seed = 1

# How long to wait for what is under way when the plan is over.
grace = "30s"

# How progress is shown.
ui = "auto"

# What sends the requests: "native", "python", or the native engine where there is one.
engine = "auto"

# true: the exit code is 0 also if cores were lost.
allow_partial = false
"""

WORKFLOW_HEAD: Final = """\
# Runs the load test and keeps its result. Exit code 4 of talka (a threshold was crossed) fails the job.
name: load test

"""
WORKFLOW_SETUP: Final = """\
    runs-on: ubuntu-latest
    timeout-minutes: 15
    permissions:
      contents: read
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install talka
        run: python -m pip install "talka[fast]"
"""
WORKFLOW_RESULT: Final = """\
      - name: Keep the result
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: load-test-result
          path: result.json
          if-no-files-found: ignore
"""
DEMO_WORKFLOW: Final = f"""\
{WORKFLOW_HEAD}on:
  push:
  workflow_dispatch:

jobs:
  loadtest:
{WORKFLOW_SETUP}\
      - name: Start the demo server
        run: |
          talka demo-server &
          for attempt in $(seq 100); do
            if curl --silent --fail --output /dev/null http://127.0.0.1:8400/; then exit 0; fi
            sleep 0.1
          done
          echo "the demo server did not start"
          exit 1
      - name: Run the load test
        run: talka run loadtest.py --json result.json --ui ci
{WORKFLOW_RESULT}"""


class CannotInit(Invalid):
    """The folder cannot take the project. Nothing was written."""


class SourceUnreadable(Invalid):
    """The recording or description cannot be read."""


@command(
    "init",
    "Write a load test that runs, with settings and a CI job, into DIR (this folder). Sends nothing.",
    ("talka init", "a first test, settings and a CI job, in this folder"),
    ("talka init shop --from-har session.har", "a test that repeats a recording"),
    ("talka init shop --from-openapi openapi.json", "a test with a step for each operation"),
)
@click.argument("folder", default=".", type=click.Path(readable=False), metavar="[DIR]")
@click.option("--from-har", "har", metavar="FILE", help="Make the test from a recording (HAR) of a browser or proxy.")
@click.option("--from-openapi", "openapi", metavar="FILE", help="Make the test from an OpenAPI description.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def init(folder: str, har: str | None, openapi: str | None, force: bool) -> int:
    if har is not None and openapi is not None:
        raise CannotInit("--from-har and --from-openapi exclude each other: give one of them")
    draft: Draft | None = None
    if har is not None:
        from talka.cli.importers.har import draft_from_har

        draft = draft_from_har(read(har, "--from-har"), Path(har).name)
    elif openapi is not None:
        from talka.cli.importers.openapi import draft_from_openapi

        draft = draft_from_openapi(read(openapi, "--from-openapi"), Path(openapi).name)
    files = project(draft)
    write_all(Path(folder), files, force)
    tell(f"wrote {', '.join(files)} in {folder}")
    for note in draft.notes if draft is not None else ():
        tell(note)
    for line in next_steps(folder, draft):
        say(harmless(line))
    return 0


def read(path: str, flag: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(INPUT_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SourceUnreadable(f"{flag}: {path} cannot be read: {reason}") from None
    if len(content) > INPUT_LIMIT_BYTES:
        limit = INPUT_LIMIT_BYTES // 1024**2
        raise SourceUnreadable(f"{flag}: {path} is larger than {limit} MiB: export it without the bodies of responses")
    return content


# What is written.


def project(draft: "Draft | None") -> dict[str, str]:
    if draft is None:
        return {TEST: FIRST_TEST, SETTINGS: FIRST_SETTINGS, WORKFLOW: DEMO_WORKFLOW}
    from talka.cli.importers.test_writer import written

    return {TEST: written(draft), SETTINGS: FIRST_SETTINGS, WORKFLOW: workflow_for(draft)}


def workflow_for(draft: "Draft") -> str:
    """A job that somebody starts by hand and aims: load on a real server is nobody's default."""
    variables = "".join(f"          {name}: ${{{{ secrets.{name} }}}}\n" for name in draft.needed)
    return f"""\
{WORKFLOW_HEAD}on:
  workflow_dispatch:
    inputs:
      target:
        description: Where the requests go, such as http://127.0.0.1:8400
        required: true

jobs:
  loadtest:
{WORKFLOW_SETUP}\
      - name: Run the load test
        run: talka run loadtest.py --json result.json --ui ci
        env:
          TARGET: ${{{{ inputs.target }}}}
{variables}{WORKFLOW_RESULT}"""


def next_steps(folder: str, draft: "Draft | None") -> list[str]:
    """Three lines."""
    enter = "" if Path(folder) == Path() else f"cd {shlex.quote(folder)} && "
    if draft is None:
        return [
            "In another terminal:  talka demo-server",
            f"Then run the test:    {enter}talka run {TEST}",
            f"Make it yours:        {TEST} is the test, {SETTINGS} holds the settings, {WORKFLOW} is for CI",
        ]
    first = f"See its plan:         {enter}talka check {TEST}"
    if draft.needed:
        first = f"Set what it reads:    export {' '.join(f'{name}=…' for name in draft.needed)}"
    return [
        first,
        f"See every request:    {enter}talka debug {TEST}",
        f"Run it elsewhere:     {enter}talka run {TEST} --env TARGET=http://127.0.0.1:8400",
    ]


# Writing it.


def write_all(folder: Path, files: Mapping[str, str], force: bool) -> None:
    """All of the files, or none."""
    there = [name for name in files if os.path.lexists(folder / name)]
    if there and not force:
        shown = ", ".join(str(folder / name) for name in there)
        verb = "is there already" if len(there) == 1 else "are there already"
        raise CannotInit(f"{shown} {verb} and nothing was written: use --force to overwrite, or name another folder")
    with folders_for([folder / name for name in files]):
        # Each place is tried before the first file is written.
        places = {name: ResultFile(str(folder / name), what="talka init") for name in files}
        for name, place in places.items():
            place.write(files[name].encode())


@contextlib.contextmanager
def folders_for(files: list[Path]) -> Iterator[None]:
    """Makes the folders that are missing, and takes them away again if what follows fails."""
    made: list[Path] = []
    try:
        for file in files:
            for parent in reversed(file.parents):
                if not parent.exists():
                    parent.mkdir()
                    made.append(parent)
        yield
    except BaseException as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise CannotInit(f"{error.filename or files[0].parent}: the folder cannot be made: {error.strerror}") from None
