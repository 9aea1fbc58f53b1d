"""`make soak-tasks`: the manager, workers and cores of a cluster are killed at random, by a seed, while tasks run that
write into a ledger. In the end store and ledger are compared.

Nothing may be lost: every task of every acknowledged job completes. Nothing may be accepted twice: what a task's output
says, its fence, is what the store has, what the ledger has, and what every task that waited for it was given; and no
attempt begins after the one that was accepted. Whatever a stopped worker reports late is refused and counted. Tasks of
a core or a worker that was killed run again in time. Judged are those where nothing else had happened; how many were
left out is told, and why.
"""

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tests.e2e.dag_cluster import DagCluster, Line, StoredTask, kill_process

WORKERS: Final = 3
CORES: Final = 2
JOB_TASKS: Final = 500
CHAIN: Final = 5
"""Of so many tasks the last waits for the ones before."""
JOBS_AHEAD: Final = 6
"""Under way at the same time: who is struck has not long to wait for its turn."""
CORE_PAUSE_S: Final = (1.0, 2.0)
"""After a core was killed."""
PAUSE_S: Final = (3.0, 7.0)
"""After anything else was."""
STOPPED_S: Final = 9.0
QUIET_NS: Final = 30 * 10**9
"""A worker that is stopped so long has lost its lease and its tasks."""
LIMITS_S: Final = {"core": 1.0, "worker": 10.0}
"""From a blow to when the task runs again, of 99 in 100."""
LONG_MINUTES: Final = 8.0
"""From so many on the handler that blocks for three minutes is among the tasks."""
BLOCKING_S: Final = 180
LONG_EVERY: Final = 125
"""Of tasks: these hold a core and take long enough to be struck, the others are quick and run beside them."""
LONG_S: Final = (0.2, 1.5)
SETTLE_S: Final = 90.0
LOOK_S: Final = 0.5
HARD: Final = ("worker", "worker", "manager", "manager", "stop")
"""In any order, and then all of them again."""
LEAST_TIMES: Final = {"core": 100, "worker": 20}
"""For a p99. Of fewer it is the worst, which for cores is that of the second in which the machine stood still."""
DEATHS_AT_MOST: Final = 2
"""Of one task's processes."""
CORES_BETWEEN: Final = 5
"""Cores that are killed between two of these."""
AFTERMATH_NS: Final = 9 * 10**9
"""So long after one of these a task may be given to somebody who is not there, or who is being started."""
MACHINE: Final = "the machine"
OTHER_BLOWS: Final = "other blows"
CALM_TRIES: Final = 3
"""In calm, of a kind of which no blow could be judged: the machine may spoil one."""
AWAY_S: Final = (0.0, 0.0, 8.0)
"""How long a killed worker stays away: its tasks are free when it is back, or when it has not been heard of."""


class Blow(NamedTuple):
    kind: str
    at_ns: int
    victims: tuple[Line, ...]
    """Attempts that ended with it."""


@dataclass
class Restarts:
    """Of those of one kind that were killed: how long it took until their tasks ran again."""

    kind: str
    blows: int = 0
    idle: int = 0
    """Of these, those that met no task."""
    times_s: list[float] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Tasks that are not judged, by what else had happened."""
    slow: list[str] = field(default_factory=list)
    """A sentence for each that took longer than is promised."""

    @property
    def judged_by(self) -> tuple[str, float]:
        """Of a few the worst says more of the machine than of the product."""
        if len(self.times_s) >= LEAST_TIMES[self.kind]:
            return "p99", _p99(self.times_s)
        return "median", statistics.median(self.times_s)

    def broken(self) -> list[str]:
        if not self.times_s:
            return [f"{self.kind} killed {self.blows} times: none could be judged"] if self.blows else []
        word, judged_s = self.judged_by
        limit_s = LIMITS_S[self.kind]
        if judged_s <= limit_s:
            return []
        return [
            f"{self.kind} killed: its tasks ran again after {judged_s:.2f} s ({word}), and {limit_s:g} s are promised"
        ]

    def text(self) -> str:
        told = f"{self.kind} killed {self.blows} times, {self.idle} of them without a task"
        told += f"; its tasks running again: {len(self.times_s)} judged"
        if self.times_s:
            median_s, most_s = statistics.median(self.times_s), max(self.times_s)
            told += f" by the {self.judged_by[0]}, median {median_s:.2f} s, p99 {_p99(self.times_s):.2f} s"
            told += f", worst {most_s:.2f} s"
        causes = " and ".join(f"{self.left_out[cause]} for {cause}" for cause in (MACHINE, OTHER_BLOWS))
        return f"{told}; {self.left_out.total()} left out: {causes}"


class Soak:
    """One run. `run` answers with what was broken."""

    def __init__(self, folder: Path, *, seed: int, minutes: float, tasks: int, say: Callable[[str], None]) -> None:
        self.cluster = DagCluster(folder, WORKERS, CORES)
        self.blows: list[Blow] = []
        self.restarts: list[Restarts] = []
        self.stale = 0
        self._seed = seed
        self._rng = Random(seed)
        self._minutes = minutes
        self._tasks = tasks
        self._say = say
        self._jobs: list[str] = []
        self._expected: dict[str, int] = {}
        self._ended: set[str] = set()
        self._submitted = 0
        self._stale_now = 0
        self._blocking = ""
        self._deck: list[str] = []
        self._away: list[tuple[float, str]] = []
        """Killed workers, and when they come back."""
        self._stopped: tuple[float, str] | None = None

    def run(self) -> list[str]:
        cluster = self.cluster
        try:
            cluster.start_nodes()
            begun_at = time.monotonic()
            if self._minutes >= LONG_MINUTES:
                self._blocking = cluster.dag("blocking", {"id": "blocked", "handler": "block", "config": BLOCKING_S})
                self._expected[self._blocking] = 1
                self._jobs.append(self._blocking)
                cluster.wait_for_lines(job=self._blocking)
            self._strike_until(begun_at + self._minutes * 60)
            took_s = time.monotonic() - begun_at
            self._strike_in_calm()
            self._settle()
            broken = self._compare()
        finally:
            cluster.close()
        self._tell(took_s)
        return broken

    # Work

    def _measured(self) -> list[Restarts]:
        began, ended = self._began_and_ended()
        stalls_ns = [round(event["at"] * 1e9) for _, event in self.cluster.said("stepped-down")]
        return restarts_of(self.blows, began, ended, stalls_ns)

    def _began_and_ended(self) -> tuple[dict[tuple[str, str], list[Line]], Counter[int]]:
        """By job and task, and by fence."""
        began: dict[tuple[str, str], list[Line]] = {}
        ended: Counter[int] = Counter()
        for line in self.cluster.ledger():
            if line.word == "began":
                began.setdefault((line.job, line.task), []).append(line)
            else:
                ended[line.fence] += 1
        return began, ended

    def _strike_until(self, over_at: float) -> None:
        next_at = time.monotonic() + PAUSE_S[0]
        look_at = 0.0
        while time.monotonic() < over_at:
            if time.monotonic() >= look_at:
                self._feed(over_at)
                look_at = time.monotonic() + LOOK_S
            self.cluster.hear(0.05)
            self._bring_back()
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + self._strike()
        while self._stopped or self._away:
            self.cluster.hear(0.05)
            self._bring_back()

    def _feed(self, over_at: float) -> None:
        """As many jobs as are to be under way, spread over the time there is."""
        with suppress(OSError, AssertionError):  # the manager is being started
            self._look()
            due = self._tasks if time.monotonic() >= over_at else self._due(over_at)
            while self._submitted < due and len(self._jobs) - len(self._ended) < JOBS_AHEAD:
                number = len(self._jobs)
                # With a key: whether the last manager took it before it died need not be known.
                answer = self.cluster.ask_api("POST", "/v1/jobs", self._job(number), key=f"soak-{number}", timeout_s=10)
                if answer.status != 201:
                    return
                job = str(answer.body["id"])
                self._jobs.append(job)
                self._expected[job] = JOB_TASKS
                self._submitted += JOB_TASKS

    def _due(self, over_at: float) -> int:
        left = max(0.0, over_at - time.monotonic()) / (self._minutes * 60)
        return max(JOB_TASKS * JOBS_AHEAD, round(self._tasks * (1 - left)))

    def _job(self, number: int) -> dict[str, Any]:
        rng = Random(f"{self._seed}/{number}")  # the same whenever it is asked for
        tasks = []
        for n in range(JOB_TASKS):
            task: dict[str, Any] = {"id": f"t{n}", "handler": "mark"}
            if n % LONG_EVERY == 0:
                task |= {"handler": "work", "config": round(rng.uniform(*LONG_S), 3)}
            if n % CHAIN == CHAIN - 1:
                task["depends_on"] = [f"t{n - back}" for back in range(1, CHAIN)]
            tasks.append(task)
        settings = {"on_failure": "continue"}
        # The manager may have been struck a moment ago, and know of no worker yet.
        return {
            "kind": "dag",
            "name": f"soak-{number}",
            "tasks": tasks,
            "settings": settings,
            "wait_for_workers": True,
        }

    def _look(self) -> None:
        for job in self._jobs:
            if job not in self._ended and self.cluster.facts(job)["exit_code"] is not None:
                self._ended.add(job)
        self._stale_now = max(self._stale_now, round(self.cluster.metric("dag_results_stale_total")))

    # Blows

    def _strike(self) -> float:
        """How long nobody strikes after it."""
        if not self._deck:
            self._deck = [
                kind for hard in self._rng.sample(HARD, len(HARD)) for kind in (*["core"] * CORES_BETWEEN, hard)
            ]
        kind = self._deck.pop(0)
        match kind:
            case "core":
                self._strike_core()
            case "worker":
                self._strike_worker()
            case "manager":
                self._strike_manager()
            case "stop":
                self._stop_worker()
        return self._rng.uniform(*(CORE_PAUSE_S if kind == "core" else PAUSE_S))

    def _strike_core(self) -> None:
        until = time.monotonic() + CORE_PAUSE_S[0]
        while not (running := self._running()) and time.monotonic() < until:
            self.cluster.hear(0.05)
        spared = {line.pid for line in running if line.job == self._blocking or self._is_worn_out(line)}
        # One that holds a task, if there is one.
        pids = sorted({line.pid for line in running} - spared)
        if not pids:
            names = [name for name in self.cluster.workers if name in self.cluster.up]
            pids = [process.pid for name in names for process in self.cluster.core_processes(name)]
            pids = sorted(set(pids) - spared)
        if pids:
            self._kill_core(self._rng.choice(pids))

    def _kill_core(self, pid: int) -> None:
        """Held first: since it was chosen it may have begun a task that is to be spared, and begins no other now."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        held = tuple(line for line in self._running() if line.pid == pid)
        if any(line.job == self._blocking or self._is_worn_out(line) for line in held):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            return
        self._note("core", held, lambda: kill_process(pid))

    def _is_worn_out(self, line: Line) -> bool:
        """Whether its process was killed so often that once more would make it a dead letter, as it should."""
        struck = [one for blow in self.blows if blow.kind == "core" for one in blow.victims]
        return sum((one.job, one.task) == (line.job, line.task) for one in struck) >= DEATHS_AT_MOST

    def _strike_in_calm(self) -> None:
        """Where every blow of a kind met another one, which in a minute is likely, or the machine."""
        for number in range(CALM_TRIES):
            for one in self._measured():
                if one.blows and not one.times_s:
                    self._strike_alone(one.kind, f"calm-{one.kind}-{number}")

    def _strike_alone(self, kind: str, gate: str) -> None:
        """With a task of its own, when all others have long been struck for the last time."""
        cluster = self.cluster
        cluster.listen(AFTERMATH_NS / 1e9)
        job = cluster.dag(gate, {"id": "held", "handler": "until", "config": gate})
        self._jobs.append(job)
        self._expected[job] = 1
        (line,) = cluster.wait_for_lines(job=job, word="began")
        name = cluster.tasks(job)["held"]["worker"]
        if kind == "core":
            self._kill_core(line.pid)
        else:
            self._note(kind, self._running_on(name), lambda: cluster.kill(name))
        cluster.wait_for_lines(2, job=job, word="began")
        cluster.open_gate(gate)
        if kind == "worker":
            cluster.start_worker(name)

    def _strike_worker(self) -> None:
        name = self._victim()
        if name:
            self._note("worker", self._running_on(name), lambda: self.cluster.kill(name))
            self._away.append((time.monotonic() + self._rng.choice(AWAY_S), name))

    def _strike_manager(self) -> None:
        self.stale += self._stale_now
        self._stale_now = 0
        self._note("manager", (), lambda: self.cluster.kill("m1"))
        self.cluster.listen(self._rng.uniform(0.0, 3.0))
        self.cluster.start_manager("m1")

    def _stop_worker(self) -> None:
        name = self._victim()
        if name and not self._stopped:
            self._note("stop", self._running_on(name), lambda: self.cluster.stop_process(name))
            self._stopped = (time.monotonic() + STOPPED_S, name)

    def _bring_back(self) -> None:
        now = time.monotonic()
        for at, name in [one for one in self._away if now >= one[0]]:
            self._away.remove((at, name))
            self.cluster.start_worker(name)
        if self._stopped and now >= self._stopped[0]:
            self.cluster.continue_process(self._stopped[1])
            self._stopped = None

    def _victim(self) -> str:
        """A worker that is up, does not stand still, and has not the task that is never to run twice."""
        spared = {line.pid for line in self._running() if line.job == self._blocking}
        names = [
            name
            for name in self.cluster.workers
            if name in self.cluster.up
            and not (self._stopped and self._stopped[1] == name)
            and not any(process.pid in spared for process in self.cluster.core_processes(name))
        ]
        return self._rng.choice(names) if len(names) > 1 else ""

    def _running_on(self, name: str) -> tuple[Line, ...]:
        pids = {process.pid for process in self.cluster.core_processes(name)}
        return tuple(line for line in self._running() if line.pid in pids)

    def _note(self, kind: str, victims: tuple[Line, ...], strike: Callable[[], None]) -> None:
        at_ns = time.time_ns()
        strike()
        self.blows.append(Blow(kind, at_ns, victims))
        with (self.cluster.folder / "blows").open("a") as file:
            file.write(f"{at_ns} {kind} {[f'{line.job}/{line.task} {line.fence}' for line in victims]}\n")

    def _running(self) -> list[Line]:
        """Attempts that began, did not end, and whose process lives."""
        over = {line.fence for line in self.cluster.ledger(word="ended")}
        return [line for line in self.cluster.ledger(word="began") if line.fence not in over and _lives(line.pid)]

    # The end

    def _settle(self) -> None:
        """Nobody strikes any more: the rest is submitted, and all that was acknowledged ends."""
        until = time.monotonic() + SETTLE_S + (BLOCKING_S if self._blocking else 0)
        while self._submitted < self._tasks or len(self._ended) < len(self._jobs):
            if time.monotonic() >= until:
                break
            self._feed(0.0)
            self.cluster.listen(LOOK_S)

    def _compare(self) -> list[str]:
        stored = self.cluster.stored()
        began, ended = self._began_and_ended()
        broken = self._lost(stored)
        check = self.cluster.talka("store", "check", "--store", self.cluster.url)
        if check.code:
            broken.append(f"talka store check: {check.text}")
        accepted = {(task.job, task.id): task for task in stored if task.state == "completed"}
        for place, task in accepted.items():
            broken += _wrong_with(task, began.get(place, []), ended, accepted)
        if self._blocking:
            lines = began.get((self._blocking, "blocked"), [])
            if len(lines) != 1:
                broken.append(f"the handler that blocks for {BLOCKING_S} s was begun {len(lines)} times")
        late = self._late(ended, accepted)
        self._count_refused(late)
        if self.stale < late:
            broken.append(f"{late} reports at least came too late, and {self.stale} were counted")
        self.restarts = self._measured()
        return broken + [text for one in self.restarts for text in one.broken()]

    def _count_refused(self, late: int) -> None:
        """A worker that stood still reports when it goes on, maybe after the last job has ended."""
        until = time.monotonic() + SETTLE_S
        while self.stale + self._stale_now < late and time.monotonic() < until:
            with suppress(OSError, AssertionError):  # the manager is being started
                self._look()
            self.cluster.listen(LOOK_S)
        self.stale += self._stale_now

    def _late(self, ended: Counter[int], accepted: dict[tuple[str, str], StoredTask]) -> int:
        """Attempts that were done on a worker that stood still, when others had been given out for them. What a manager
        counts is forgotten with it: of stops around which one was killed nothing is expected."""
        quiet = [
            blow
            for blow in self.blows
            if blow.kind == "stop"
            and not any(other.kind == "manager" and 0 < other.at_ns - blow.at_ns < QUIET_NS for other in self.blows)
        ]
        return sum(
            1
            for blow in quiet
            for line in blow.victims
            if ended[line.fence] and accepted[line.job, line.task].fence > line.fence
        )

    def _lost(self, stored: list[StoredTask]) -> list[str]:
        found: dict[str, Counter[str]] = {}
        for task in stored:
            found.setdefault(task.job, Counter())[task.state] += 1
        return [
            f"job {job}: {dict(found.get(job, {}))} of {number} tasks"
            for job, number in self._expected.items()
            if found.get(job) != Counter(completed=number)
        ]

    def _tell(self, took_s: float) -> None:
        kinds = Counter(blow.kind for blow in self.blows)
        self._say(f"{self._submitted} tasks in {len(self._jobs)} jobs, {took_s:.0f} s of blows: {dict(kinds)}")
        for one in self.restarts:
            for text in (*one.slow, one.text()):
                self._say(text)
        self._say(f"late reports refused: {self.stale}")


def restarts_of(
    blows: list[Blow], began: dict[tuple[str, str], list[Line]], ended: Counter[int], stalls_ns: list[int]
) -> list[Restarts]:
    """What the ledger says of each kind. `stalls_ns`: when the manager stood still, and had to be elected anew."""
    found = {kind: Restarts(kind) for kind in LIMITS_S}
    for blow in blows:
        if blow.kind not in found:
            continue
        one = found[blow.kind]
        one.blows += 1
        one.idle += not blow.victims
        for victim in blow.victims:
            if ended[victim.fence]:
                continue  # it was done a moment before the blow
            later = [line.at_ns for line in began[victim.job, victim.task] if line.fence > victim.fence]
            if not later:
                continue  # it is told as lost
            if cause := _disturbed_by(blow, min(later), blows, stalls_ns):
                one.left_out[cause] += 1
                continue
            took_s = (min(later) - blow.at_ns) / 1e9
            one.times_s.append(took_s)
            if took_s > LIMITS_S[blow.kind]:
                name = f"{victim.job}/{victim.task}"
                one.slow.append(f"{blow.kind} killed at {blow.at_ns}: {name} ran again after {took_s:.2f} s")
    return list(found.values())


def _disturbed_by(blow: Blow, until_ns: int, blows: list[Blow], stalls_ns: list[int]) -> str:
    """Whether somebody else had been struck when this one's tasks were given out again; or else the machine, so that
    the manager stood still and had to be elected anew."""
    if any(
        other is not blow
        and other.at_ns <= until_ns
        and other.at_ns >= blow.at_ns - (0 if other.kind == "core" else AFTERMATH_NS)
        for other in blows
    ):
        return OTHER_BLOWS
    return MACHINE if any(blow.at_ns - AFTERMATH_NS <= at_ns <= until_ns for at_ns in stalls_ns) else ""


def _wrong_with(
    task: StoredTask, began: list[Line], ended: Counter[int], accepted: dict[tuple[str, str], StoredTask]
) -> list[str]:
    """What store and ledger say of one task that was accepted."""
    name = f"{task.job}/{task.id}"
    told = []
    is_blocking = task.id == "blocked"
    if not is_blocking and task.output != task.fence:
        told.append(
            f"{name}: the result of attempt {task.output} was accepted, and {task.fence} is the one that counts"
        )
    if task.fence not in {line.fence for line in began}:
        told.append(f"{name}: attempt {task.fence} was accepted, and the ledger does not know it")
    if ended[task.fence] != 1:
        told.append(f"{name}: attempt {task.fence} was accepted, and the ledger has its end {ended[task.fence]} times")
    if len({line.fence for line in began}) != len(began):
        told.append(f"{name}: an attempt was begun twice: {[line.fence for line in began]}")
    if any(line.fence > task.fence for line in began):
        told.append(f"{name}: it was begun again after attempt {task.fence} was accepted")
    for line in began:
        for word in line.text.split(",") if line.text else ():
            other, _, output = word.partition("=")
            if accepted[task.job, other].output != int(output):
                told.append(
                    f"{name}: attempt {line.fence} was given {word}, and the store has {accepted[task.job, other]}"
                )
    return told


def _p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description="Kill everything while tasks run.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--keep", action="store_true", help="keep the files, also when no promise was broken")
    asked = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="talka-soak-"))

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    say(f"seed {asked.seed}, {asked.minutes:g} minutes, {asked.tasks} tasks, files in {folder}")
    broken = Soak(folder, seed=asked.seed, minutes=asked.minutes, tasks=asked.tasks, say=say).run()
    for text in broken[:100]:
        say(f"BROKEN {text}")
    if broken or asked.keep:
        say(f"everything of this run is in {folder}")
    else:
        shutil.rmtree(folder)
        say("nothing was lost, and nothing accepted twice")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
