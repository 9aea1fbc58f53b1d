"""What must hold of dag jobs in a world, judged by what the store has, what clients were told and what handlers really
ran.

Each checker is an observer of its own. None knows a scenario or a safeguard.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from talka.control.dags.book import GONE
from talka.control.tasks.store_effects import Commit
from talka.store.dags.sqlite import SqliteRecords
from talka.testing.handler_cores import HandlerLedger, RunListener, SimulatedRun
from talka.testing.host import Host
from talka.testing.store_shell import StoreListener, StoreShell, job_numbered, jobs_in, keepers_on, task_at
from talka.testing.world import Observer, World
from talka.work.dags.dag import TaskSpec, decode_task
from talka.work.dags.elements import ElementMaker, ElementSpec, joined, kept_element
from talka.work.dags.records import Change, Complete, MoveJob, PutAttempt, PutJob, PutTasks, Release, TaskKey, TaskRow
from talka.work.lifecycle import TaskState, is_final

HANDED_ON: Final = ("completed", "dead", "failed", "timeout", "skipped", "cancelled")


class _Output(msgspec.Struct):
    """What an attempt tells of itself in what it returns."""

    run: int = 0
    fence: int = 0


_output: Final = msgspec.json.Decoder(_Output)


class Specs(Observer):
    """What was submitted, by the job's id and the task's: also of a job that is not durable yet."""

    def __init__(self) -> None:
        self.tasks: dict[tuple[str, str], TaskSpec] = {}
        self.keys: dict[tuple[str, str], TaskKey] = {}
        self.jobs: dict[int, str] = {}
        """Ids by number. A number whose job was lost in a crash is used again."""

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not Commit:
            return
        for change in effect.changes:
            if isinstance(change, PutJob):
                self.jobs[change.row.number] = change.row.id
            elif isinstance(change, PutTasks):
                for row in change.rows:
                    named = (self.jobs[row.job], row.id)
                    self.tasks[named] = self._spec(self.jobs[row.job], row)
                    self.keys[named] = (row.job, row.index)

    def _spec(self, job: str, row: TaskRow) -> TaskSpec:
        """Of an element, as its task has it, with what its inputs are of."""
        own = kept_element(row.spec)
        if own is None:
            return decode_task(row.spec)
        task = self.tasks[job, row.id.rpartition("[")[0]]
        spec = ElementMaker(task, own.fan).spec(own.place, own.item)
        return msgspec.structs.replace(spec, depends_on=task.depends_on, for_each=task.for_each)

    def output(self, records: SqliteRecords, row: TaskRow) -> bytes | None:
        """What those that depend on a task are given of it."""
        if row.state is not TaskState.COMPLETED:
            return None
        for fan in records.fans(row.job):
            if fan.index == row.index:
                rows = records.tasks(row.job, (), fan.first - 1, fan.count)
                return joined([one.output if one.state is TaskState.COMPLETED else None for one in rows])
        return row.output

    def row(self, records: SqliteRecords, job: str, task: str) -> TaskRow | None:
        """As the store has it, if it has this job."""
        key = self.keys.get((job, task))
        if key is None or records.job(job) is None:
            return None
        return task_at(records, key)


class DagHistory(Observer, StoreListener):
    """D1: what clients were told. Whoever plays the clients calls `acknowledged`. Of a store that was replaced by an
    earlier copy, what came after that copy is lost, and nothing else."""

    def __init__(self, shell: StoreShell) -> None:
        self.jobs: dict[str, int] = {}
        """Acknowledged jobs, and when."""
        self.lost = 0
        """Jobs that went with a store that was replaced."""
        self._records = shell.records
        self._by_key: dict[str, str] = {}
        self._kept: dict[str, None] = {}
        """Jobs that the copy has."""
        shell.listeners.append(self)

    def acknowledged(self, world: World, key: str, job: str) -> None:
        self.jobs.setdefault(job, world.now)
        known = self._by_key.setdefault(key, job)
        if known != job:
            world.violate("D1", f"the key {key!r} is that of job {known}, and of job {job} too")

    def backed_up(self) -> None:
        self._kept = dict.fromkeys(row.id for row in jobs_in(self._records))

    def put_back(self) -> None:
        is_new = not jobs_in(self._records)
        kept = {job: at for job, at in self.jobs.items() if job in self._kept and not is_new}
        self.lost += len(self.jobs) - len(kept)
        self.jobs = kept
        self._by_key = {key: job for key, job in self._by_key.items() if job in kept}

    def on_crash(self, world: World, host: Host) -> None:
        self._look(world)

    def at_end(self, world: World) -> None:
        self._look(world)
        for job in self.jobs:
            row = self._records.job(job)
            if row is not None and not is_final(row.state):
                states = ", ".join(f"{count} {state}" for state, count in self._records.counts(row.number).items())
                world.violate("D1", f"job {job} is {row.state} long after all faults were over: {states}")

    def _look(self, world: World) -> None:
        for job in self.jobs:
            if self._records.job(job) is None:
                world.violate("D1", f"job {job} was acknowledged, and the store does not have it")


class ResultsCountOnce(Observer, StoreListener):
    """D2, D4, D8 and D9: of an attempt one result counts, it is that of the attempt the store has, it was made from the
    outputs the store has, by a core that ran this task of this job of this life of the store. Whoever has the store
    calls `applied`."""

    def __init__(self, world: World, shell: StoreShell, ledger: HandlerLedger, specs: Specs) -> None:
        self.completed = 0
        self.failed = 0
        self.inputs = 0
        self._world = world
        self._shell = shell
        self._records = shell.records
        self._ledger = ledger
        self._specs = specs
        self._accepted: dict[int, str] = {}
        self._accepted_then: dict[int, str] = {}
        """When the store was copied."""
        self._counted: dict[int, None] = {}
        """Runs whose outputs have counted, also in a store that was replaced since."""
        shell.applied.append(self.applied)
        shell.listeners.append(self)

    def backed_up(self) -> None:
        self._accepted_then = dict(self._accepted)

    def put_back(self) -> None:
        """Only attempts that the store has given out count: of a new life there are none yet."""
        claims = self._shell.claims
        self._accepted = {fence: what for fence, what in self._accepted_then.items() if fence in claims}

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        for change, count in zip(changes, changed, strict=True):
            if isinstance(change, PutAttempt):
                self._on_failed(change)
            elif isinstance(change, Complete | Release) and not count:
                state = task_at(self._records, (change.job, change.index))
                text = f"{_name(change)} of attempt {change.fence:x}, which the store refused: it has {_shown(state)}"
                self._world.violate("D2", f"the manager decided on {text}")
            elif isinstance(change, Complete) and change.state is TaskState.COMPLETED:
                if change.fence:
                    self._on_completed(change)
                elif not any(fan.index == change.index for fan in self._records.fans(change.job)):
                    self._on_known(change)

    def _accept(self, fence: int, what: str) -> None:
        before = self._accepted.get(fence)
        if before is not None:
            self._world.violate("D2", f"attempt {fence:x}: two results were accepted, {before} and {what}")
        self._accepted[fence] = what

    def _on_completed(self, change: Complete) -> None:
        self.completed += 1
        self._accept(change.fence, f"completed at {change.at_ms}")
        run = self._ledger.by_number.get(_run_of(change.output))
        if run is None or run.outcome != "completed" or run.output != change.output or run.fence != change.fence:
            text = f"{change.output[:80]!r} was accepted as the output of attempt {change.fence:x}"
            self._world.violate("D4", f"task {change.index} of job {change.job}: {text}")
            return
        self._counted[run.number] = None
        known, row = job_numbered(self._records, change.job), task_at(self._records, (change.job, change.index))
        job = "" if known is None else known.id
        if (run.job, run.id) != (job, "" if row is None else row.id):
            text = f"it completed with the output of task {run.id} of job {run.job}"
            self._world.violate("D9", f"task {'' if row is None else row.id} of job {job}: {text}")
            return
        if self._shell.is_lost(run, (change.job, change.index)):
            text = f"it completed with the output of an attempt that another life of the store gave to {run.host.name}"
            self._world.violate("D9", f"task {run.id} of job {job}: {text}")
            return
        spec = self._specs.tasks[run.job, run.id]
        if isinstance(spec, ElementSpec) and run.item != bytes(spec.item):
            text = f"it was given the element {run.item!r}, and its own is {bytes(spec.item)!r}"
            self._world.violate("D8", f"task {run.id} of job {run.job}, attempt {run.fence:x}: {text}")
        for name in spec.depends_on:
            row = self._specs.row(self._records, run.job, name)
            if row is None:
                continue
            self.inputs += 1
            wanted = self._specs.output(self._records, row)
            if run.inputs.get(name) != wanted:
                text = f"it was given {run.inputs.get(name)!r} of {name}, whose accepted output is {wanted!r}"
                self._world.violate("D8", f"task {run.id} of job {run.job}, attempt {run.fence:x}: {text}")

    def _on_known(self, change: Complete) -> None:
        """Nobody ran it: another task with its key was completed."""
        told = _output.decode(change.output)
        if told.run not in self._counted:
            text = f"a result of attempt {told.fence:x} was accepted, which is that of no attempt that counts"
            self._world.violate("D4", f"task {change.index} of job {change.job}: {text}")

    def _on_failed(self, change: PutAttempt) -> None:
        row = change.row
        self.failed += 1
        self._accept(row.fence, f"{row.cause} at {row.ended_ms}")
        job, task = job_numbered(self._records, row.job), task_at(self._records, (row.job, row.index))
        run = None if job is None or task is None else self._ledger.find(job.id, task.id, row.fence)
        if run is not None and run.is_alive and run.has_lease and row.cause not in ("lost", "cancelled"):
            text = f"is told to have failed ({row.cause}), and runs on {run.host.name}"
            self._world.violate("D4", f"task {run.id} of job {run.job}: attempt {row.fence:x} {text}")


class RunsAreInOrder(RunListener):
    """D3, D5 and D6: what begins may begin. Told of every attempt as it does."""

    def __init__(self, world: World, shell: StoreShell, ledger: HandlerLedger, specs: Specs) -> None:
        self.begun = 0
        self.limited = 0
        self.again = 0
        """Attempts at tasks that had run before."""
        self.lost = 0
        """Attempts of a store that was replaced."""
        self._world = world
        self._shell = shell
        self._records = shell.records
        self._ledger = ledger
        self._specs = specs

    def _is_lost(self, run: SimulatedRun) -> bool:
        return self._shell.is_lost(run, self._specs.keys[run.job, run.id])

    def began(self, run: SimulatedRun) -> None:
        self.begun += 1
        if self._is_lost(run):
            self.lost += 1  # it was on its way, and nobody waits for it
            return
        spec = self._specs.tasks[run.job, run.id]
        if spec.depends_on or spec.for_each:
            self._check_order(run, spec)
        if isinstance(spec, ElementSpec) and spec.max_parallel:
            self._check_parallel(run, spec)
        if spec.limits:
            self.limited += 1
            self._check_limits(run, spec)
        others = self._ledger.runs[run.job, run.id]
        self.again += len(others) > 1
        for other in others[:-1]:
            if self._is_lost(other):
                continue
            if other.fence == run.fence:
                text = f"attempt {run.fence:x} began on {run.host.name} and on {other.host.name}"
                self._world.violate("D6", f"task {run.id} of job {run.job}: {text}")
            elif other.is_alive:
                # Whether its worker has a lease, or stands still and has not noticed, is no excuse.
                one = f"attempt {run.fence:x} began on {run.host.name}"
                text = f"{one} while attempt {other.fence:x} runs on {other.host.name}"
                self._world.violate("D6", f"task {run.id} of job {run.job}: {text}")

    def _check_order(self, run: SimulatedRun, spec: TaskSpec) -> None:
        over = (spec.for_each.partition(".")[0],) if spec.for_each else ()
        for name in (*spec.depends_on, *over):
            row = self._specs.row(self._records, run.job, name)
            if row is None or row.state.value not in HANDED_ON:
                text = f"attempt {run.fence:x} began while {name}, which it depends on, is {_shown(row)} in the store"
                self._world.violate("D3", f"task {run.id} of job {run.job}: {text}")

    def _check_parallel(self, run: SimulatedRun, spec: ElementSpec) -> None:
        """Elements of one task that run at the same time."""
        start = f"{run.id.rpartition('[')[0]}["
        others = [one for one in self._ledger.alive.values() if one.job == run.job and one.id.startswith(start)]
        found = [one for one in others if one is run or not self._is_lost(one)]
        self.limited += 1
        if len(found) > spec.max_parallel:
            names = ", ".join(f"{one.id} ({one.fence:x}) on {one.host.name}" for one in found)
            self._world.violate("D5", f"{len(found)} elements run, and {spec.max_parallel} may: {names}")

    def _check_limits(self, run: SimulatedRun, spec: TaskSpec) -> None:
        for limit in spec.limits:
            if not limit.concurrency:
                continue
            holders = [
                other
                for other in self._ledger.alive.values()
                if any(one.key == limit.key for one in self._specs.tasks[other.job, other.id].limits)
                and (other is run or not self._is_lost(other))
            ]
            if len(holders) > limit.concurrency:
                names = ", ".join(f"{one.id} of {one.job} ({one.fence:x}) on {one.host.name}" for one in holders)
                text = f"{len(holders)} attempts hold {limit.key!r}, which {limit.concurrency} may: {names}"
                self._world.violate("D5", text)


class CountsFit(Observer):
    """D7: counts of a job are those of its tasks, in memory and in the store; nothing is left when all has ended, no
    job in memory and no hold of a limit (D5)."""

    def __init__(self, world: World, host: Host, shell: StoreShell) -> None:
        self.jobs = 0
        self._world = world
        self._host = host
        self._records = shell.records
        shell.applied.append(self.applied)

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        for change in changes:
            if not isinstance(change, MoveJob) or not is_final(change.state):
                continue
            self.jobs += 1
            row = job_numbered(self._records, change.job)
            if row is None or row.state is not change.state:
                continue  # run again in the same write
            counts = self._records.counts(change.job)
            if counts != change.counts:
                text = f"ended with {change.counts}, and its tasks are {counts}"
                self._world.violate("D7", f"job {row.id} {text}")

    def on_second(self, world: World) -> None:
        for job in [job for keeper in keepers_on(self._host) or () for job in keeper.jobs.values()]:
            counts: dict[str, int] = {}
            for task in job.tasks:
                if task is GONE:
                    continue
                counts[task.state.value] = counts.get(task.state.value, 0) + 1
            if counts != job.counts():
                world.violate("D7", f"job {job.row.id} counts {job.counts()}, and its tasks are {counts}")

    def at_end(self, world: World) -> None:
        keepers = keepers_on(self._host)
        if keepers is None or self._records.live_jobs():
            return
        jobs = [job for keeper in keepers for job in keeper.jobs.values()]
        if jobs:
            left = ", ".join(f"{job.row.id} ({job.state})" for job in jobs)
            world.violate("D7", f"all jobs have ended, and the manager still has {left}")
        if keepers.expected():
            names = ", ".join(name for name, _, _ in keepers.expected())
            world.violate("D7", f"all jobs have ended, and attempts are still expected of {names}")
        # Of a private thing: only here somebody asks for all holds. All keepers have one dispatcher.
        holds = len(next(iter(keepers)).dispatcher._limits._held)
        if holds:
            world.violate("D5", f"all jobs have ended, and {holds} attempts still hold limits")


def _run_of(output: bytes) -> int:
    """The run that made it; 0 for what no core has made."""
    try:
        return _output.decode(output).run
    except (msgspec.MsgspecError, ValueError):
        return 0


def _name(change: Complete | Release) -> str:
    what = f"the end ({change.state})" if isinstance(change, Complete) else "another try"
    return f"{what} of task {change.index} of job {change.job}"


def _shown(row: TaskRow | None) -> str:
    return "not there" if row is None else f"{row.state} under {row.fence:x}"
