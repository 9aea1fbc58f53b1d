"""Rounds of chaos with a store that is replaced: by a backup made a while ago, or by a new one. What workers still run
for the store of before must not count for any task of this one."""

import os
import shutil
import time
from pathlib import Path
from typing import Final

from talka.units import SECOND
from tests.e2e.chaos_rounds import Draw, Outcome
from tests.e2e.dag_cluster import DagCluster, StoredTask

WORKERS, CORES = 2, 2
TASKS: Final = 24
HELD: Final = 6
"""Of each job so many wait for a gate: they run when the store is replaced."""
END_S = 90.0


class StoreRound:
    """A cluster of its own. A job is backed up with its store, another comes after that; then the store is replaced."""

    def __init__(self, folder: Path, draw: Draw) -> None:
        self.draw = draw
        self.outcome = Outcome(draw, victim="the store")
        self._folder = folder / f"store-{draw.number}"
        self._dice = draw.dice()

    def run(self) -> Outcome:
        begun = time.monotonic()
        cluster = DagCluster(self._folder, WORKERS, CORES)
        try:
            self._run(cluster.start_nodes())
        except AssertionError as problem:
            self._break(str(problem).partition("\n")[0])
        except OSError as problem:  # whoever should answer is gone, or does not listen
            self._break(f"the API of m1: {problem}; what was said until then:\n{cluster.story()}")
        finally:
            mistakes = cluster.mistakes()
            cluster.close()
        for file, text in mistakes.items():
            if "internal error" in text or "Traceback" in text:
                self._break(f"{file} has an internal error")
        self.outcome.took_s = time.monotonic() - begun
        return self.outcome

    def _break(self, text: str) -> None:
        self.outcome.broken.append(text)

    def _run(self, cluster: DagCluster) -> None:
        begun_ns = time.time_ns()
        copy = cluster.folder / "copy.sqlite"
        kept = self._submit(cluster, "kept")
        backup = cluster.talka("store", "backup", str(copy), "--store", cluster.url)
        assert backup.code == 0, backup.text
        if self._dice.randrange(3):  # the next epoch is used, and then once more
            cluster.restart("m1")
            cluster.wait_until_ready()
        lost = self._submit(cluster, "lost")
        cluster.listen(self._dice.uniform(0.0, 2.0))
        cluster.kill("m1")
        struck_ns = time.time_ns()
        self.outcome.struck_after_s = (struck_ns - begun_ns) / SECOND
        replace_store(cluster.store, copy if self.draw.fault == "backup" else None)
        cluster.listen(self._dice.uniform(0.0, 2.0))
        cluster.restart("m1")
        cluster.wait_until_ready()
        other = self.outcome.job = self._submit(cluster, "other", is_waited_for=False)
        for name in ("kept", "lost", "other"):
            cluster.open_gate(name)
        jobs = [kept, other] if self.draw.fault == "backup" else [other]
        for job in jobs:
            facts = cluster.wait_for_end(job, END_S)
            if facts["counts"] != {"completed": TASKS}:
                self._break(f"job {job} ended with {facts['counts']}")
        self.outcome.status = "completed"
        first = min(line.at_ns for line in cluster.ledger(job=other, word="began"))
        self.outcome.recovery_s = (first - struck_ns) / SECOND
        self._judge(cluster, jobs, lost)

    def _submit(self, cluster: DagCluster, name: str, *, is_waited_for: bool = True) -> str:
        """Some tasks take a moment and some wait for a gate; the output of each is its own."""
        tasks = [
            {"id": f"t{n}", "handler": "until", "config": name}
            if n < HELD
            else {"id": f"t{n}", "handler": self._dice.choice(("mark", "echo")), "config": n / 100}
            for n in range(TASKS)
        ]
        job = cluster.dag(name, *tasks)
        if is_waited_for:
            cluster.wait_for_lines(HELD, job=job, word="began")
        return job

    def _judge(self, cluster: DagCluster, jobs: list[str], lost: str) -> None:
        """What the store has is what the ledger says that this very attempt did."""
        ended = {(line.job, line.task, line.fence) for line in cluster.ledger(word="ended")}
        stored = cluster.stored()
        self.outcome.counted = sum(task.state == "completed" for task in stored)
        self.outcome.written = self.outcome.served = len(ended)
        self.outcome.broken += [text for task in stored if (text := wrong(task, ended))]
        if {task.job for task in stored} - {*jobs}:
            self._break("the store has jobs that it should not have")
        if any(task.job == lost for task in stored):
            self._break(f"job {lost}, of after the copy, is in the store")
        told = [event for name, event in cluster.said("attempts-dropped") if name == "m1"]
        dropped = sum(event["attempts"] + event["results"] for event in told)
        self.outcome.notes.append(f"workers dropped {dropped} attempts and results of the store of before")


def wrong(task: StoredTask, ended: set[tuple[str, str, int]]) -> str:
    """What is wrong with a task that completed; empty: nothing."""
    if (task.job, task.id, task.fence) not in ended:
        return f"task {task.id} of job {task.job} is {task.state} under {task.fence:x}, and no core has done that"
    if isinstance(task.output, int):
        return "" if task.output == task.fence else f"task {task.id} of job {task.job} has an output of {task.output:x}"
    own = {"config": int(task.id[1:]) / 100, "inputs": {}}
    return "" if task.output == own else f"task {task.id} of job {task.job} has the output {task.output}"


def replace_store(store: Path, copy: Path | None) -> None:
    """By this copy, or by nothing: a manager then makes a new one."""
    for end in ("", "-wal", "-shm"):
        Path(f"{store}{end}").unlink(missing_ok=True)
    if copy is not None:
        shutil.copyfile(copy, store)
        os.chmod(store, 0o600)
