"""What a task of a pipeline costs, beside Celery, Dramatiq, Taskiq, Procrastinate and BullMQ: tasks a second.

Every engine has one worker process and runs tasks that do nothing, whose results it stores; ours take the users' way.
All are measured in one run, turn by turn; numbers are medians of the rounds. Depends on the machine and its disk, so it
is no test: run it on a quiet one. The first run installs the peers into build/peers. Prints what was asked, what was
measured and whether it held; exits 1 when something did not. Results also go to build/bench-tasks.json. The whole takes
about fifteen minutes; --quick two, whose numbers mean little. `--parts` measures rows alone: see task_rows.py.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import secrets
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import task_peers
import task_rows
from job_progress import NotMeasured
from task_peers import Peers, Turn, running
from task_rows import Part

from talka.client.client import Client
from talka.client.submitting import Submitting
from talka.errors import TalkaError
from talka.wire.task_views import DagFacts
from talka.work.dags.dag import DagSpec, TaskSpec
from talka.work.dags.records import JOB_STATES
from talka.work.lifecycle import JobState

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- make bench-tasks: from here -->\n"
END: Final = "<!-- to here -->\n"
HANDLERS: Final = Path(__file__).resolve().parent / "task_handlers.py"
MEASURE: Final = "Dramatiq"
"""The peer that ours is held against."""
LAYERS, WIDTH, PARENTS = 20, 50, 3
READY_S: Final = 30.0
LIMIT_S: Final = 120.0
POLL_S: Final = 0.02
IDLE_S: Final = 0.01
"""Between two tasks that meet an idle worker: the same for all."""
WARM_UP: Final = 500
SYNCS: Final = 200


class Settings(argparse.Namespace):
    quick: bool
    alone: bool
    write: bool
    output: Path
    rounds: int
    bulk: int
    frames: int
    starts: int
    dags: int
    peer_tasks: int
    peer_starts: int
    parts: tuple[str, ...]
    against: str | None


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--alone", action="store_true", help="without peers: what is held against them is not judged")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/performance.md")
    parser.add_argument("--rounds", type=int, help="how often each engine has its turn (3)")
    parser.add_argument("--output", type=Path, default=BUILD / "bench-tasks.json", help="JSON file")
    task_rows.add_options(parser)
    settings = parser.parse_args(arguments, namespace=Settings())
    if settings.write and settings.parts:
        parser.error("--write rewrites the whole table: leave out --parts")
    quick = settings.quick
    settings.rounds = settings.rounds or (1 if quick else 3)
    settings.bulk, settings.frames = (4000, 2000) if quick else (20_000, 10_000)
    settings.starts, settings.dags = (60, 3) if quick else (300, 5)
    settings.peer_tasks, settings.peer_starts = (1000, 30) if quick else (10_000, 200)
    return settings


# What ours is asked


class Up:
    """A store and one core process: of `talka up`, or of a worker of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str, store: Path) -> None:
        self.address = address
        self.store = store
        self._process = process

    def cpu_s(self) -> float:
        """Of manager and worker, their guard and the core."""
        return task_peers.cpu_s(self._process)

    def running_ns(self) -> int:
        """Likewise, finer: for turns that are short."""
        return task_peers.running_ns(self._process)

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, synchronous: str, python: str = sys.executable) -> "Iterator[Up]":
        folder.mkdir()
        store = folder / "store.sqlite"
        command = [python, "-m", "talka", "up", "--json", "--port", "0", "--cores", "1"]
        command += ["--data-dir", "data", "--store", url_of(store, synchronous), "--handlers", str(HANDLERS)]
        with telling(command, folder / "told.jsonl", "up") as (process, address):
            yield cls(process, address, store)

    @classmethod
    @contextlib.contextmanager
    def apart(cls, folder: Path, synchronous: str) -> "Iterator[Up]":
        """A manager and a worker, each a process, which speak over a connection. `talka up` needs none."""
        folder.mkdir()
        store, talka = folder / "store.sqlite", [sys.executable, "-m", "talka"]
        (folder / "secret").write_text(secrets.token_urlsafe(32))
        (folder / "secret").chmod(0o600)
        manager = [*talka, "manager", "--json", "--name", "m", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0"]
        manager += ["--data-dir", "m", "--store", url_of(store, synchronous), "--secret-file", "secret"]
        worker = [*talka, "worker", "--json", "--name", "w", "--cores", "1", "--data-dir", "w"]
        worker += ["--handlers", str(HANDLERS), "--secret-file", "secret"]
        with telling(manager, folder / "manager.jsonl", "api") as (process, address):
            node = address_in(folder / "manager.jsonl", process, "ready")
            with telling([*worker, "--seed", node], folder / "worker.jsonl", "handlers"):
                yield cls(process, address, store)

    def ended_since(self, number: int) -> dict[str, int]:
        """Jobs after this one that have ended, by state, as the store has them."""
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as looking:
            rows = looking.execute(
                "SELECT state, count(*) FROM talka_jobs WHERE state >= 7 AND number > ? GROUP BY state", [number]
            )
            return {JOB_STATES[state]: count for state, count in rows}

    def last_number(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as looking:
            return int(looking.execute("SELECT coalesce(max(number), 0) FROM talka_jobs").fetchone()[0])


def url_of(store: Path, synchronous: str) -> str:
    return f"sqlite:///{store}?synchronous={synchronous}"


@contextlib.contextmanager
def telling(command: list[str], told: Path, word: str) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """A node and the address that it told with this word. Into a file: what is told of ten thousand jobs is not the
    client's to read."""
    with told.open("wb") as file, running(command, cwd=told.parent, output=file) as process:
        yield process, address_in(told, process, word)


def address_in(told: Path, process: "subprocess.Popen[bytes]", word: str) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in told.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and (event := json.loads(line))["event"] == word:
                return str(event.get("address", ""))
        time.sleep(0.05)
    raise NotMeasured(f"a node did not tell {word!r} in {READY_S:.0f} s: its words were in {told.name}")


class Bulk(msgspec.Struct):
    per_s: float
    submit_per_s: float
    cpu_us: dict[str, float]


class Ours(msgspec.Struct):
    """One round of ours with one setting of the store. Seconds and milliseconds as names say."""

    bulk: Bulk
    plain: Bulk | None = None
    frames: Bulk | None = None
    dag_s: list[float] = []
    dag_inside_s: list[float] = []
    """Between the instants that the job itself tells."""
    starts_ms: list[float] = []
    frames_problem: str = ""
    """Why there are none."""


async def bulk(client: Client, up: Up, number: int, handler: str) -> Bulk:
    """One job of so many tasks that wait for nothing."""
    nodes_s, client_s, began = up.cpu_s(), time.process_time(), time.perf_counter()
    tasks = tuple(TaskSpec(id=f"t{n}", handler=handler) for n in range(number))
    facts = await client.submit_dag(DagSpec(name="bulk", tasks=tasks))
    submitted = time.perf_counter()
    completed(await client.wait_dag(facts.id), number)
    return bulk_of(number, began, submitted, time.process_time() - client_s, up.cpu_s() - nodes_s)


async def frames(client: Client, up: Up, number: int) -> Bulk:
    """So many jobs of one task, a frame each, whose answers are not waited for one by one."""
    before = up.last_number()
    nodes_s, client_s, began = up.cpu_s(), time.process_time(), time.perf_counter()
    async with client.open_submit() as submits:
        answers = [await submits.submit(TaskSpec(id="t", handler="nothing")) for _ in range(number)]
        await submits.drain()
        submitted = time.perf_counter()
    while sum((ended := up.ended_since(before)).values()) < number:
        if time.perf_counter() - began > LIMIT_S:
            raise NotMeasured(f"{ended} of {number} jobs ended in {LIMIT_S:.0f} s")
        await asyncio.sleep(POLL_S)
    found = bulk_of(number, began, submitted, time.process_time() - client_s, up.cpu_s() - nodes_s)
    refused = sum(answer.exception() is not None for answer in answers)
    if refused or ended != {JobState.COMPLETED: number}:
        raise NotMeasured(f"of {number} frames {refused} were refused; jobs that ended: {ended}")
    return found


def bulk_of(number: int, began: float, submitted: float, client_s: float, nodes_s: float) -> Bulk:
    return Bulk(
        per_s=number / (time.perf_counter() - began),
        submit_per_s=number / (submitted - began),
        cpu_us={"client": client_s / number * 1e6, "nodes and core": nodes_s / number * 1e6},
    )


async def layers(client: Client) -> tuple[float, float]:
    """A job of 1,001 tasks, each of which waits for three of the layer before: seconds, and those of the job itself."""
    tasks = [
        TaskSpec(
            id=f"{layer}.{place}",
            handler="nothing",
            depends_on=tuple(f"{layer - 1}.{(place + step) % WIDTH}" for step in range(PARENTS)) if layer else (),
        )
        for layer in range(LAYERS)
        for place in range(WIDTH)
    ]
    sink = TaskSpec(id="sink", handler="nothing", depends_on=tuple(f"{LAYERS - 1}.{n}" for n in range(WIDTH)))
    spec = DagSpec(name="layers", tasks=(*tasks, sink))
    began = time.perf_counter()
    facts = await client.wait_dag((await client.submit_dag(spec)).id)
    seconds = time.perf_counter() - began
    completed(facts, len(spec.tasks))
    return seconds, instant_s(facts.ended_at) - instant_s(facts.submitted_at)


async def starts(client: Client, number: int) -> list[float]:
    """Milliseconds from just before the submission on an open connection to the first line of the handler."""
    found: list[tuple[int, str]] = []
    async with client.open_submit() as submits:
        for _ in range(number):
            await asyncio.sleep(IDLE_S)
            found.append(await started(submits))
    waits_ms = []
    for before, job in found:
        await client.wait_dag(job)  # the last ones may run still
        task = await client.dag_task(job, "t")
        waits_ms.append((msgspec.json.decode(task.output, type=int) - before) / 1e6)
    return waits_ms


async def started(submits: Submitting) -> tuple[int, str]:
    before = time.monotonic_ns()
    answer = await submits.submit(TaskSpec(id="t", handler="instant"))
    return before, (await answer).id


def completed(facts: DagFacts, number: int) -> None:
    if facts.state is not JobState.COMPLETED or facts.counts.get("completed") != number:
        raise NotMeasured(f"a job of {number} tasks ended {facts.state} with {facts.counts}: {facts.reason}")


def instant_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def ours(folder: Path, settings: Settings, synchronous: str) -> Ours:
    with Up.started(folder, synchronous) as up:
        client = Client([up.address])
        for handler in ("nothing", "nothing-plain"):
            await bulk(client, up, WARM_UP, handler)
        found = Ours(bulk=await bulk(client, up, settings.bulk, "nothing"))
        if synchronous == "FULL":
            found.plain = await bulk(client, up, settings.bulk, "nothing-plain")
            try:
                found.frames = await frames(client, up, settings.frames)
            except (NotMeasured, TalkaError) as problem:
                found.frames_problem = str(problem)
                say(f"  one frame per task: {problem}")
            for _ in range(settings.dags):
                seconds, inside_s = await layers(client)
                found.dag_s.append(seconds)
                found.dag_inside_s.append(inside_s)
        found.starts_ms = await starts(client, settings.starts)
    return found


def syncs_ms(folder: Path) -> list[float]:
    """What the disk takes to keep one page: nothing durable is quicker."""
    found = []
    with (folder / "page").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append((time.perf_counter() - began) * 1e3)
    return found


# What is made of it


class Row(msgspec.Struct):
    name: str
    must: str
    aim: str
    measured: str
    held: bool | None
    """None for what is only told."""
    is_aim: bool = False


class Table:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def least(self, name: str, measured: float, must: float, aim: float, text: str) -> None:
        self.rows.append(
            Row(name, f"at least {must:g} x", f"{aim:g} x", text, measured >= must, is_aim=measured >= aim)
        )

    def most(
        self, name: str, measured: tuple[float, ...], must: tuple[float, ...], aim: tuple[float, ...], unit: str
    ) -> None:
        held = all(one <= limit for one, limit in zip(measured, must, strict=True))
        is_aim = all(one <= limit for one, limit in zip(measured, aim, strict=True))
        digits = 0 if unit == "µs" else 3 if unit == "s" else 2
        text = " / ".join(f"{one:.{digits}f}" for one in measured)
        asked, hoped = (" / ".join(f"{limit:g}" for limit in limits) for limits in (must, aim))
        self.rows.append(Row(name, f"at most {asked} {unit}", f"{hoped} {unit}", f"{text} {unit}", held, is_aim=is_aim))

    def add(self, name: str, must: str, aim: str, measured: str, held: bool, *, is_aim: bool) -> None:
        self.rows.append(Row(name, must, aim, measured, held, is_aim=is_aim))

    def tell(self, name: str, measured: str) -> None:
        self.rows.append(Row(name, "", "", measured, None))

    def break_(self, name: str, why: str) -> None:
        self.rows.append(Row(name, "", "", why, False))

    def print(self) -> None:
        for row in self.rows:
            print(f"  {word_of(row):<5}  {row.name:<58} {row.must:<18} {row.aim:<14} {row.measured}", flush=True)

    @property
    def broken(self) -> list[str]:
        return [row.name for row in self.rows if row.held is False]


def word_of(row: Row) -> str:
    return "" if row.held is None else "BROKE" if not row.held else "aim" if row.is_aim else "held"


class Found(msgspec.Struct):
    """Every round."""

    full: list[Ours] = []
    normal: list[Ours] = []
    peers: dict[str, list[Turn]] = {}
    syncs_ms: list[float] = []
    is_alone: bool = False
    rows: list[Part] = []


def judge(table: Table, found: Found, titles: dict[str, str]) -> None:
    task_rows.judge(table, found.rows)
    if not found.full:
        return
    against(table, "bulk submit, FULL", [one.bulk for one in found.full], found, 8, 15)
    name = "one frame per task on one WebSocket, FULL"
    problem = next((one.frames_problem for one in found.full if one.frames_problem), "")
    if problem:
        table.break_(name, problem)
    else:
        against(table, name, [one.frames for one in found.full if one.frames is not None], found, 4, 8)
    for name, rounds, must_ms, aim_ms in (
        ("idle submit to start, p50 / p99, open WebSocket, FULL", found.full, (1.0, 8), (0.6, 4)),
        ("the same, NORMAL", found.normal, (1.0, 4), (0.6, 1.5)),
    ):
        table.most(name, waits_of(one.starts_ms for one in rounds), must_ms, aim_ms, "ms")
    table.most("1,001 tasks in layers, submit to known end, FULL", (median(dag_of(found.full)),), (0.25,), (0.10,), "s")
    cpu_us = median(sum(one.bulk.cpu_us.values()) for one in found.full)
    table.most("CPU per task that does nothing, all processes", (cpu_us,), (120,), (60,), "µs")
    tell(table, found)
    for name, turns in found.peers.items():
        used = {part: median(turn.cpu_us[part] for turn in turns) for part in turns[0].cpu_us}
        waits = waits_of(turn.starts_ms for turn in turns)
        per_s = median(turn.per_s for turn in turns)
        table.tell(titles[name], f"{per_s:,.0f} tasks/s; start {waits_text(waits)}; CPU {used_text(used)}")


def against(table: Table, name: str, rounds: list[Bulk], found: Found, must: float, aim: float) -> None:
    ours_per_s = median(one.per_s for one in rounds)
    turns = found.peers.get(MEASURE)
    if not turns and found.is_alone:
        table.tell(name, f"{ours_per_s:,.0f} tasks/s")
        return
    if not turns:
        table.break_(name, f"{ours_per_s:,.0f} tasks/s; {MEASURE} was not measured")
        return
    per_s = median(turn.per_s for turn in turns)
    times = ours_per_s / per_s
    table.least(name, times, must, aim, f"{times:.1f} x {MEASURE}: {ours_per_s:,.0f} against {per_s:,.0f} tasks/s")


def tell(table: Table, found: Found) -> None:
    """What nothing was asked of."""
    full = found.full
    parts = {part: median(one.bulk.cpu_us[part] for one in full) for part in full[0].bulk.cpu_us}
    table.tell("of these", used_text(parts))
    inside = median(second for one in full for second in one.dag_inside_s)
    table.tell("1,001 tasks in layers, by the job's own instants", f"{inside:.3f} s")
    plain_per_s = median(one.plain.per_s for one in full if one.plain is not None)
    table.tell("bulk submit, FULL, plain function instead of async", f"{plain_per_s:,.0f} tasks/s")
    table.tell("bulk submit, NORMAL", f"{median(one.bulk.per_s for one in found.normal):,.0f} tasks/s")
    table.tell(
        "bulk submit, FULL, until it is acknowledged", f"{median(one.bulk.submit_per_s for one in full):,.0f} tasks/s"
    )
    table.tell(
        "the disk keeps a page, p50 / p99", waits_text((percentile(found.syncs_ms, 50), percentile(found.syncs_ms, 99)))
    )


def dag_of(rounds: list[Ours]) -> Iterator[float]:
    for one in rounds:
        yield median(one.dag_s)


def waits_of(rounds: Iterable[list[float]]) -> tuple[float, float]:
    """Medians of the rounds' p50 and p99."""
    each = list(rounds)
    return median(percentile(one, 50) for one in each), median(percentile(one, 99) for one in each)


def waits_text(waits_ms: tuple[float, float]) -> str:
    return f"{waits_ms[0]:.2f} / {waits_ms[1]:.2f} ms"


def used_text(used_us: dict[str, float]) -> str:
    return ", ".join(f"{part} {us:,.0f}" for part, us in used_us.items()) + " µs"


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: int) -> float:
    """The least value that so many of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def say(text: str) -> None:
    print(text, flush=True)


def measure(folder: Path, peers: Peers | None, settings: Settings) -> Found:
    """Turn by turn: what the machine does meanwhile happens to all."""
    found = Found(syncs_ms=syncs_ms(folder), is_alone=peers is None)
    found.rows = asyncio.run(task_rows.measure(Up, sys.modules[__name__], folder, peers, settings))
    if settings.parts:
        return found
    for number in range(1, settings.rounds + 1):
        say(f"round {number} of {settings.rounds}")
        for synchronous, rounds in (("FULL", found.full), ("NORMAL", found.normal)):
            try:
                one = asyncio.run(ours(folder / f"{synchronous}-{number}", settings, synchronous))
            except TalkaError as problem:
                raise NotMeasured(f"ours, {synchronous}: {problem}") from None
            rounds.append(one)
            say(
                f"  ours, {synchronous}: {one.bulk.per_s:,.0f} tasks/s; start "
                f"{waits_text(waits_of([one.starts_ms]))}; CPU {used_text(one.bulk.cpu_us)}"
            )
        for peer in () if peers is None else peers.found:
            tasks = int(settings.peer_tasks * peer.share)
            assert peers is not None
            try:
                turn = peers.turn(peer, tasks, settings.peer_starts)
            except NotMeasured as problem:
                say(f"  {peer.name}: not measured: {problem}")
                continue
            found.peers.setdefault(peer.name, []).append(turn)
            say(
                f"  {peer.name}: {turn.per_s:,.0f} tasks/s; start {waits_text(waits_of([turn.starts_ms]))}; CPU "
                f"{used_text(turn.cpu_us)}"
            )
    return found


def write(table: Table, machine: str) -> None:
    """The table of docs/performance.md."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{DOCUMENT.name} has no place for the table: put back the lines {BEGIN.strip()} and {END.strip()}")
    lines = ["| | must | aim | measured | |", "|---|---|---|---|---|"]
    lines += [f"| {row.name} | {row.must} | {row.aim} | {row.measured} | {word_of(row)} |" for row in table.rows]
    DOCUMENT.write_text(before + begin + f"\n{machine}.\n\n" + "\n".join(lines) + "\n\n" + end + after)


def main() -> None:
    settings = settings_of(sys.argv[1:])
    machine = f"{os.cpu_count()} processors, {platform.platform()}, Python {platform.python_version()}"
    say(machine)
    BUILD.mkdir(exist_ok=True)
    table = Table()
    # Ours beside the checkout, on a real disk; theirs where another user may go.
    with tempfile.TemporaryDirectory(prefix="bench-tasks-", dir=BUILD) as home, tempfile.TemporaryDirectory() as other:
        needs_peers = not settings.alone and (not settings.parts or "frames" in settings.parts)
        peers = Peers(Path(other)) if needs_peers else None
        if peers is not None:
            say("installing peers into build/peers, once")
            peers.install((task_rows.PEER,) if settings.parts else ())
            for name, why in peers.missing.items():
                say(f"  {name} is left out: {why}")
        try:
            found = measure(Path(home), peers, settings)
        except NotMeasured as problem:
            sys.exit(f"not measured: {problem}")
        titles = {} if peers is None else {peer.name: peers.title(peer) for peer in peers.found}
    judge(table, found, titles)
    results: dict[str, Any] = {"machine": machine, "found": found, "table": table.rows}
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    settings.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    say("")
    table.print()
    if settings.write:
        write(table, machine)
    if table.broken:
        sys.exit(f"{len(table.broken)} did not hold: {', '.join(table.broken)}")
    say("Everything held.")


if __name__ == "__main__":
    main()
