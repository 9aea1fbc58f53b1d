"""Rows of `tasks.py` that can be measured alone, each in less than two minutes: --parts configs,many ….

Every row is a ratio of two things that were measured in turns in the same run, or a wait: numbers of another day say
nothing. A chain is held against another checkout of Talka (--against PYTHON, the interpreter of its environment), and
only told without one.
"""

import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from job_progress import NotMeasured
from task_peers import Peers

from talka.client.client import Client
from talka.wire.task_views import DagFacts
from talka.work.dags.dag import DagSpec, TaskSpec

PARTS: Final = ("configs", "chain", "many", "frames", "starts", "requests")
SIZES: Final = (10_000, 60_000, 200_000, 256_000)
SHORT_BYTES: Final = 6_000_000
"""A backlog that is below what a connection holds, 8 MiB."""
LONG_BYTES: Final = 30_000_000
LINKS: Final = 1001
JOBS: Final = 1000
REQUESTS: Final = 500
LONGEST_WAIT_MS: Final = 1000
TASKS: Final = 20
PEER: Final = "BullMQ"


class Part(msgspec.Struct):
    """What was measured for one row, round by round."""

    name: str
    must: float | None
    """None: nothing is held against anything."""
    aim: float
    ours: list[float] = []
    other: list[float] = []
    """What it is held against; empty: the row is a wait or a rate."""
    unit: str = "tasks/s"
    is_least: bool = True
    """Whether the ratio must be at least so much, or at most."""
    aims_at_ours: bool = False
    """The aim is of ours alone, whatever the ratio must be."""
    worst_ms: float = 0
    """The longest wait of all; 0: nobody waited for single answers."""
    worst_must_ms: float = 0
    """0: none is too long. A median hides one that is."""
    problem: str = ""
    """Why it was not measured."""

    def ratio(self) -> float:
        """The median of the rounds' ratios: what the machine did in one of them happened to both."""
        if not self.other:
            return statistics.median(self.ours)
        return statistics.median([ours / other for ours, other in zip(self.ours, self.other, strict=True)])

    def text(self) -> str:
        if not self.other:
            worst = f", the longest wait {self.worst_ms:.0f} ms" if self.worst_ms else ""
            return f"{self.ratio():.2f} {self.unit}{worst}"
        digits = 3 if self.unit == "s" else 0
        ours, other = statistics.median(self.ours), statistics.median(self.other)
        return f"{self.ratio():.2f}: {ours:,.{digits}f} against {other:,.{digits}f} {self.unit}"

    def holds(self, limit: float) -> bool:
        return self._keeps(self.ratio(), limit) and self.worst_ms <= (self.worst_must_ms or self.worst_ms)

    def is_aim(self) -> bool:
        return self._keeps(statistics.median(self.ours) if self.aims_at_ours else self.ratio(), self.aim)

    def _keeps(self, value: float, limit: float) -> bool:
        return value >= limit if self.is_least else value <= limit


async def measure(ups: Any, tools: Any, home: Path, peers: Peers | None, settings: Any) -> list[Part]:
    """`ups`: its ways to start nodes. `tools`: the module `tasks`, with what its rows measure. Rounds of all sides in
    turns."""
    parts = settings.parts or [part for part in PARTS if part != "frames" or peers is not None]
    found: list[Part] = []
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(ups.started(home / "rows", "FULL"))
        client = Client([up.address])
        await tools.bulk(client, up, tools.WARM_UP, "nothing")
        for part in parts:
            if part == "configs":
                apart = Client([stack.enter_context(ups.apart(home / "apart", "FULL")).address])
                for where, one in (("", client), ("worker apart, ", apart)):
                    await with_configs(one, tools, 1000, [tools.WARM_UP])
                    for size in SIZES:
                        found.append(await configs(one, where, tools, size, settings.rounds))
            elif part == "many":
                found.append(await many(client, up, tools, settings.rounds))
            elif part == "starts":
                waits = [
                    tools.percentile(await tools.starts(client, settings.starts), 50) for _ in range(settings.rounds)
                ]
                found.append(Part("idle submit to start, p50, FULL", 1.0, 0.6, waits, unit="ms", is_least=False))
            elif part == "requests":
                found += await requests(client, settings.rounds)
            elif part == "frames":
                found.append(await frames(client, up, tools, peers, settings))
            else:
                other = settings.against and stack.enter_context(ups.started(home / "other", "FULL", settings.against))
                found.append(await chains(client, other, tools, settings.rounds))
    return found


async def configs(client: Client, where: str, tools: Any, size: int, rounds: int) -> Part:
    """The same number of tasks as one job, and as jobs one after the other that are below what a connection holds."""
    long, short = [], []
    number, few = LONG_BYTES // size, SHORT_BYTES // size
    for _ in range(rounds):
        short.append(await with_configs(client, tools, size, [few] * (number // few)))
        long.append(await with_configs(client, tools, size, [number]))
    name = f"{where}configs of {size // 1000} kB: a backlog of {LONG_BYTES // 10**6} MB against such below 8 MiB"
    return Part(name, 0.8, 1.0, long, short)


async def with_configs(client: Client, tools: Any, size: int, jobs: list[int]) -> float:
    """Tasks a second, from the first submission to the last known end."""
    config = msgspec.Raw(msgspec.json.encode(b64encode(os.urandom(size * 3 // 4)).decode()))
    began = time.perf_counter()
    for number in jobs:
        tasks = [TaskSpec(id=f"t{n}", handler="nothing", config=config) for n in range(number)]
        facts = await client.stream_dag("configs", tasks)
        tools.completed(await client.wait_dag(facts.id), number)
    return sum(jobs) / (time.perf_counter() - began)


async def chains(client: Client, other: Any, tools: Any, rounds: int) -> Part:
    ours: list[float] = []
    theirs: list[float] = []
    turns = [(client, ours)]
    if other:
        turns.insert(0, (Client([other.address]), theirs))
    for one, _ in turns:
        await chain(one, tools)
    for _ in range(rounds):
        for one, found in turns:
            found.append(await chain(one, tools))
    return chain_part(ours, theirs)


def chain_part(ours: list[float], theirs: list[float]) -> Part:
    name = f"a chain of {LINKS:,} tasks" + (", against the other checkout" if theirs else ", submit to known end")
    must = 0.6 if theirs else None
    return Part(name, must, 0.35, ours, theirs, unit="s", is_least=False, aims_at_ours=True)


async def chain(client: Client, tools: Any) -> float:
    tasks = [TaskSpec(id=f"t{n}", handler="nothing", depends_on=(f"t{n - 1}",) if n else ()) for n in range(LINKS)]
    began = time.perf_counter()
    # Not by `submit_dag`: a server of before does not know all fields that a job has now. Frames leave them out.
    async with client.open_submit() as submits:
        told = await (await submits.submit(DagSpec(name="chain", tasks=tuple(tasks))))
    facts = await client.wait_dag(told.id)
    seconds = time.perf_counter() - began
    tools.completed(facts, LINKS)
    return seconds


async def many(client: Client, up: Any, tools: Any, rounds: int) -> Part:
    one, each = [], []
    for _ in range(rounds):
        one.append((await tools.bulk(client, up, JOBS * TASKS, "nothing")).per_s)
        each.append(await jobs_a_second(client, up, tools))
    return Part(f"{JOBS:,} jobs of {TASKS} tasks, against one job", 0.7, 0.85, each, one)


async def requests(client: Client, rounds: int) -> list[Part]:
    """One client that waits for each answer: jobs of one task, to their end, and until they are accepted."""
    spec = DagSpec(name="request", tasks=(TaskSpec(id="t", handler="nothing"),))
    ends = Part(
        "submit and wait for the end over REST, one after the other",
        150,
        300,
        unit="jobs/s",
        worst_must_ms=LONGEST_WAIT_MS,
    )
    accepted = Part(
        "submissions over REST, one after the other", 250, 400, unit="jobs/s", worst_must_ms=LONGEST_WAIT_MS
    )
    for _ in range(rounds):
        await answers(ends, lambda: client.run_dag(spec))
        await answers(accepted, lambda: client.submit_dag(spec))
    return [ends, accepted]


async def answers(part: Part, request: Callable[[], Awaitable[DagFacts]]) -> None:
    waits_s = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await request()
        waits_s.append(time.perf_counter() - began)
    part.ours.append(REQUESTS / sum(waits_s))
    part.worst_ms = max(part.worst_ms, 1000 * max(waits_s))


async def jobs_a_second(client: Client, up: Any, tools: Any) -> float:
    """Tasks of them a second."""
    spec = DagSpec(name="many", tasks=tuple([TaskSpec(id=f"t{n}", handler="nothing") for n in range(TASKS)]))
    before, began = up.last_number(), time.perf_counter()
    async with client.open_submit() as submits:
        for _ in range(JOBS):
            await submits.submit(spec)
        await submits.drain()
    while (ended := up.ended_since(before)) != {"completed": JOBS}:
        if time.perf_counter() - began > tools.LIMIT_S:
            raise NotMeasured(f"{ended} of {JOBS} jobs ended in {tools.LIMIT_S:.0f} s")
        await asyncio.sleep(tools.POLL_S)
    return JOBS * TASKS / (time.perf_counter() - began)


async def frames(client: Client, up: Any, tools: Any, peers: Peers | None, settings: Any) -> Part:
    peer = None if peers is None else next((one for one in peers.found if one.name == PEER), None)
    if peers is None or peer is None:
        why = "peers were left out" if peers is None else peers.missing.get(PEER, "")
        return frames_part(PEER, problem=f"{PEER} is not there: {why}")
    ours, theirs = [], []
    try:
        for _ in range(settings.rounds):
            ours.append((await tools.frames(client, up, settings.frames)).per_s)
            # Not in the loop: nothing else is to happen meanwhile.
            theirs.append(peers.turn(peer, settings.frames, 0).per_s)
    except NotMeasured as problem:
        return frames_part(peers.title(peer), problem=str(problem))
    return frames_part(peers.title(peer), ours, theirs)


def frames_part(title: str, ours: Sequence[float] = (), theirs: Sequence[float] = (), *, problem: str = "") -> Part:
    return Part(f"one frame per task, against {title}", 0.8, 1.1, [*ours], [*theirs], problem=problem)


def add_options(parser: Any) -> None:
    parser.add_argument("--parts", type=parts_of, default=(), help=f"only these rows: {','.join(PARTS)}")
    parser.add_argument(
        "--against", type=python_of, help="Python of another checkout's environment, which a chain is held against"
    )


def parts_of(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := [part for part in parts if part not in PARTS]:
        sys.exit(f"there is no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    return parts


def python_of(text: str) -> str:
    """As it is found from here: it is started in another folder. Not what a link leads to, which has no packages."""
    found = shutil.which(text)
    if found is None:
        sys.exit(
            f"--against: {text} cannot be run: name the Python of another checkout, such as ../before/.venv/bin/python"
        )
    return os.path.abspath(found)


def judge(table: Any, found: list[Part]) -> None:
    for part in found:
        if part.problem:
            table.break_(part.name, part.problem)
            continue
        word = "at least" if part.is_least else "at most"
        unit = " x" if part.other else f" {part.unit}"
        aim = f"{part.aim:g}" + (f" {part.unit}" if part.aims_at_ours else unit)
        waits = f", no wait above {part.worst_must_ms / 1000:g} s" if part.worst_must_ms else ""
        if part.must is None:
            table.tell(part.name, f"{part.text()}; the aim is {aim}")
            continue
        table.add(
            part.name,
            f"{word} {part.must:g}{unit}{waits}",
            aim,
            part.text(),
            part.holds(part.must),
            is_aim=part.is_aim(),
        )
