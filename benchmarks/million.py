"""A job of a million tasks: streamed, killed in the middle, started again and brought to its end; seconds and memory.

Starts `talka up` with a store in a folder of its own, streams the job as a task a line, kills `talka up` with SIGKILL
once a quarter of the tasks are done, starts it again and waits for the end. Depends on the machine and its disk, so it
is no test: run it on a quiet one. Prints what was asked, what was measured and whether it held; exits 1 when something
did not. Results also go to build/bench-million.json. The whole takes about two minutes; --tasks 20000 some seconds.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from job_progress import NotMeasured
from task_peers import free_port

from talka.client.client import Client
from talka.client.http import call, parse_address
from talka.errors import TalkaError
from talka.wire.task_views import DagFacts
from talka.work.dags.dag import TaskSpec
from talka.work.dags.records import TASK_STATES
from talka.work.lifecycle import JobState, TaskState, is_final

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- make bench-million: from here -->\n"
END: Final = "<!-- to here: bench-million -->\n"
HANDLERS: Final = Path(__file__).resolve().parent / "task_handlers.py"
TASKS: Final = 1_000_000
KILLED_AT: Final = 0.25
"""Of all tasks done."""
SERVING_S: Final = 10.0
MEMORY_GB: Final = 2.0
READY_S: Final = 30.0
RESTART_S: Final = 120.0
STALLED_S: Final = 60.0
"""Without another task done nobody waits any longer."""
POLL_S: Final = 0.02
ASK_S: Final = 10.0
ANSWER_LIMIT_BYTES: Final = 1024 * 1024


class Settings(argparse.Namespace):
    tasks: int
    write: bool
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"how many ({TASKS:,})")
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-million.json", help="JSON file")
    return parser.parse_args(arguments, namespace=Settings())


class Up:
    """`talka up` with a store, as often as it is started: the folder and the port stay."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store.sqlite"
        self._folder = folder
        self._port = free_port()
        self.address = parse_address(f"127.0.0.1:{self._port}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """The instant at which it was started."""
        command = [sys.executable, "-m", "talka", "up", "--json", "--port", str(self._port)]
        command += ["--data-dir", str(self._folder / "data"), "--store", self.url, "--handlers", str(HANDLERS)]
        began = time.perf_counter()
        with (self._folder / "told.jsonl").open("ab") as told:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=told, stderr=told)
        return began

    @property
    def url(self) -> str:
        return f"sqlite:///{self.store}"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            told = (self._folder / "told.jsonl").read_text().splitlines()
            raise NotMeasured(f"talka up ended with {self.process.returncode}: {' / '.join(told[-3:])}")

    def peak_gb(self) -> float:
        """Of the process that is manager and worker, since it was started or last asked."""
        home = Path(f"/proc/{self.process.pid}")
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (home / "status").read_text(), re.MULTILINE)
        if found is None:
            raise NotMeasured("this kernel does not tell how much memory a process had at most")
        (home / "clear_refs").write_text("5")
        return int(found[1]) * 1024 / 1e9

    def kept(self) -> int:
        """Tasks that the store has as completed."""
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as looking:
            state = TASK_STATES.index(TaskState.COMPLETED)
            return int(looking.execute("SELECT count(*) FROM talka_tasks WHERE state = ?", [state]).fetchone()[0])

    def kill(self) -> None:
        """SIGKILL for manager and worker. Their cores have to see for themselves that they are alone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(READY_S)
        self._process.kill()
        self._process.wait()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()

    async def facts(self, id: str) -> DagFacts | None:
        """How the job stands; None while nobody answers so."""
        try:
            answer = await call(
                self.address,
                "GET",
                f"/v1/jobs/{id}",
                headers={},
                timeout_s=ASK_S,
                limit_bytes=ANSWER_LIMIT_BYTES,
            )
        except TalkaError:
            return None
        return msgspec.json.decode(answer.body, type=DagFacts) if answer.status == 200 else None


class Found(msgspec.Struct):
    """Seconds and GB (10^9 bytes), as names say."""

    tasks: int
    submit_s: float = 0.0
    submit_gb: float = 0.0
    run_gb: float = 0.0
    """Until it was killed."""
    killed_at: int = 0
    """So many tasks were known to be done."""
    kept: int = 0
    """So many were on disk as done just before."""
    serving_s: float = 0.0
    going_on_s: float = 0.0
    again_gb: float = 0.0
    """From the second start to the end."""
    restored: int = 0
    """Tasks done, by the first answer of the second life."""
    per_s: float = 0.0
    """In the second life, from the first task that ended to the last."""
    slowest_ask_s: float = 0.0
    """Of all questions how the job stands while it ran."""
    ended: dict[str, int] = {}
    in_store: dict[str, int] = {}
    attempts: int = 0
    """Of all tasks together, as the store has them."""
    store_gb: float = 0.0
    checked: str = ""


def tasks_of(number: int) -> Iterator[TaskSpec]:
    """Every tenth waits for the one before it."""
    for n in range(number):
        config = msgspec.Raw(b'{"part": %d, "of": "a job of many tasks"}' % n)
        yield TaskSpec(id=f"t{n}", handler="nothing", config=config, depends_on=() if n % 10 else waits_for(n))


def waits_for(n: int) -> tuple[str, ...]:
    return (f"t{n - 1}",) if n else ()


def done_of(facts: DagFacts) -> int:
    return facts.counts.get("completed", 0)


async def measure(up: Up, number: int) -> Found:
    found = Found(number)
    up.start()
    while not await is_ready(up):
        up.check_alive()
        await asyncio.sleep(POLL_S)

    began = time.perf_counter()
    facts = await Client([str(up.address)]).stream_dag("million", tasks_of(number))
    found.submit_s, found.submit_gb = time.perf_counter() - began, up.peak_gb()
    say(f"  submitted in {found.submit_s:.1f} s, at most {found.submit_gb:.2f} GB")

    id = facts.id
    facts = await followed(up, id, found, until=int(number * KILLED_AT))
    found.run_gb, found.killed_at = up.peak_gb(), done_of(facts)
    found.kept = up.kept()
    up.kill()
    say(f"  killed with {found.killed_at:,} done, at most {found.run_gb:.2f} GB")

    began = up.start()
    facts = await first_answer(up, id, began)
    answered = time.perf_counter()
    found.serving_s, found.restored = answered - began, done_of(facts)
    say(f"  serving again after {found.serving_s:.1f} s, {found.restored:,} done")
    while done_of(facts) <= found.restored:
        up.check_alive()
        if time.perf_counter() - began > RESTART_S:
            raise NotMeasured(f"no task was done within {RESTART_S:.0f} s of the restart: {facts.counts}")
        await asyncio.sleep(POLL_S)
        facts = await up.facts(id) or facts
    going_on, first = time.perf_counter(), done_of(facts)
    found.going_on_s = going_on - began
    say(f"  running again after {found.going_on_s:.1f} s")
    facts = await followed(up, id, found, until=number)
    found.per_s = (done_of(facts) - first) / (time.perf_counter() - going_on)
    while not is_final(facts.state):
        up.check_alive()
        await asyncio.sleep(POLL_S)
        facts = await up.facts(id) or facts
    found.again_gb, found.ended = up.peak_gb(), facts.counts
    if facts.state is not JobState.COMPLETED:
        raise NotMeasured(f"the job is {facts.state} with {facts.counts}: {facts.reason}")
    say(f"  ended, {found.per_s:,.0f} tasks/s, at most {found.again_gb:.2f} GB")
    return found


async def is_ready(up: Up) -> bool:
    try:
        answer = await call(up.address, "GET", "/readyz", headers={}, timeout_s=ASK_S, limit_bytes=ANSWER_LIMIT_BYTES)
    except TalkaError:
        return False
    return answer.status == 200


async def first_answer(up: Up, id: str, began: float) -> DagFacts:
    while (facts := await up.facts(id)) is None:
        up.check_alive()
        if time.perf_counter() - began > RESTART_S:
            raise NotMeasured(f"the job was not answered for within {RESTART_S:.0f} s of the restart")
        await asyncio.sleep(POLL_S)
    return facts


async def followed(up: Up, id: str, found: Found, until: int) -> DagFacts:
    """Until so many tasks are done, or the job has ended."""
    done, moved = -1, time.perf_counter()
    while True:
        asked = time.perf_counter()
        facts = await up.facts(id)
        now = time.perf_counter()
        found.slowest_ask_s = max(found.slowest_ask_s, now - asked)
        if facts is not None and (done_of(facts) >= until or is_final(facts.state)):
            return facts
        if facts is not None and done_of(facts) > done:
            done, moved = done_of(facts), now
        if now - moved > STALLED_S:
            raise NotMeasured(f"no task was done for {STALLED_S:.0f} s: {None if facts is None else facts.counts}")
        up.check_alive()
        await asyncio.sleep(POLL_S)


def look_into(up: Up, found: Found) -> None:
    """What the store says, once nobody uses it any more."""
    with contextlib.closing(sqlite3.connect(f"file:{up.store}?mode=ro", uri=True)) as looking:
        rows = looking.execute("SELECT state, count(*), sum(attempts) FROM talka_tasks GROUP BY state").fetchall()
    found.in_store = {str(TASK_STATES[state]): count for state, count, _ in rows}
    found.attempts = sum(attempts for _, _, attempts in rows)
    found.store_gb = sum(file.stat().st_size for file in up.store.parent.glob(f"{up.store.name}*")) / 1e9
    checked = subprocess.run(
        [sys.executable, "-m", "talka", "store", "check", "--store", up.url], capture_output=True, text=True
    )
    found.checked = "" if checked.returncode == 0 else checked.stderr.strip() or f"exit code {checked.returncode}"


# What is made of it


class Row(msgspec.Struct):
    name: str
    must: str
    measured: str
    held: bool | None
    """None for what is only told."""


WORDS: Final = {True: "held", False: "BROKE", None: ""}


def judged(found: Found) -> list[Row]:
    rows: list[Row] = []

    def most(name: str, measured: float, limit: float, unit: str) -> None:
        rows.append(Row(name, f"at most {limit:g} {unit}", f"{measured:.2f} {unit}", measured <= limit))

    def tell(name: str, measured: str) -> None:
        rows.append(Row(name, "", measured, None))

    number = found.tasks
    rate = f"{found.submit_s:.1f} s, {number / found.submit_s:,.0f} tasks/s"
    tell(f"{number:,} tasks streamed as NDJSON, until they are acknowledged", rate)
    most("memory of manager and worker meanwhile, at most", found.submit_gb, MEMORY_GB, "GB")
    most(f"the same while it ran, until {found.killed_at:,} were done", found.run_gb, MEMORY_GB, "GB")
    most("killed and started again: how the job stands is answered after", found.serving_s, SERVING_S, "s")
    most("another task was handed out and its end is known after", found.going_on_s, SERVING_S, "s")
    most("memory from the second start to the end, at most", found.again_gb, MEMORY_GB, "GB")
    completed = {str(TaskState.COMPLETED): number}
    whole = found.ended == completed and found.in_store == completed
    rows.append(Row("tasks completed, by the job and by the store", f"{number:,}", counts_text(found), whole))
    lost = max(found.kept - found.restored, 0)
    rows.append(Row("ends that were kept before the kill and not known after", "0", f"{lost}", not lost))
    rows.append(Row("talka store check", "whole", found.checked or "whole", not found.checked))
    tell("tasks a second after the restart", f"{found.per_s:,.0f}")
    tell("tasks begun a second time because of the kill", f"{found.attempts - number:,}")
    tell("the slowest answer how the job stands, while it ran", f"{found.slowest_ask_s:.2f} s")
    tell("the store at the end", f"{found.store_gb:.2f} GB")
    return rows


def counts_text(found: Found) -> str:
    return " / ".join(
        ", ".join(f"{count:,} {state}" for state, count in counts.items()) for counts in (found.ended, found.in_store)
    )


def write(rows: list[Row], machine: str) -> None:
    """The table of docs/performance.md."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{DOCUMENT.name} has no place for the table: put back the lines {BEGIN.strip()} and {END.strip()}")
    lines = ["| | must | measured | |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.must} | {row.measured} | {WORDS[row.held]} |" for row in rows]
    DOCUMENT.write_text(before + begin + f"\n{machine}.\n\n" + "\n".join(lines) + "\n\n" + end + after)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    settings = settings_of(sys.argv[1:])
    machine = f"{os.cpu_count()} processors, {platform.platform()}, Python {platform.python_version()}"
    say(machine)
    BUILD.mkdir(exist_ok=True)
    # Beside the checkout, on a real disk.
    with tempfile.TemporaryDirectory(prefix="bench-million-", dir=BUILD) as home:
        up = Up(Path(home))
        try:
            found = asyncio.run(measure(up, settings.tasks))
            up.stop()
            look_into(up, found)
        except (NotMeasured, TalkaError) as problem:
            sys.exit(f"not measured: {problem}")
        finally:
            up.stop()
    rows = judged(found)
    results: dict[str, Any] = {"machine": machine, "found": found, "table": rows}
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    settings.output.write_bytes(json.dumps(msgspec.to_builtins(results), indent=2).encode() + b"\n")
    say("")
    for row in rows:
        say(f"  {WORDS[row.held]:<5}  {row.name:<66} {row.must:<16} {row.measured}")
    if settings.write:
        write(rows, machine)
    if broken := [row.name for row in rows if row.held is False]:
        sys.exit(f"{len(broken)} did not hold: {', '.join(broken)}")
    say("Everything held.")


if __name__ == "__main__":
    main()
