"""What must hold of the counts of jobs beyond how many iterations began: how they ended, what was called, what was
handed on.

Judged as in `job_checkers`, by what cores really did and what is on record.
"""

from collections.abc import Sequence

import msgspec

from talka.control.jobs.effects import AttemptAccepted, JobEndStored
from talka.stats.tally import CALL_NAMES_KEPT, OTHER_CALLS, Tally, fold_calls, merged
from talka.testing.core_runs import CoreRun, Ledger
from talka.testing.cores import CONTEXT, TOKEN
from talka.testing.host import Host
from talka.testing.journeys import JourneyCounts, counts_in, discrepancies, rows_in, tally_of
from talka.testing.world import Observer, World
from talka.wire.jobs import AttemptResult, decode_result
from talka.work.lifecycle import TaskState
from tests.sim.checkers.jobs import Document, blob_of, manager_on

SETTLED = (TaskState.COMPLETED, TaskState.CANCELLED)
"""Workflows that ended with all their cores heard out. Where one failed the others are killed, and nobody promises
more."""


class RecordsChecked(Observer):
    """Reads each accepted attempt and each result once, from the disk they are on."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is AttemptAccepted and (content := self._new(world, effect.digest)) is not None:
            self.on_attempt(world, decode_result(content))
        elif type(effect) is JobEndStored and effect.result:
            if (content := self._new(world, effect.result)) is not None:
                self.on_document(world, host, msgspec.json.decode(content, type=Document))

    def _new(self, world: World, digest: str) -> bytes | None:
        if digest in self._seen:
            return None
        self._seen.add(digest)
        return blob_of(world, digest)  # that it is there at all is a matter of I6

    def on_attempt(self, world: World, result: AttemptResult) -> None: ...

    def on_document(self, world: World, host: Host, document: Document) -> None: ...


class JourneysAddUp(RecordsChecked):
    """I6: every iteration that began has ended, was cut, or was on a core of whose loss is told; every
    row is the sum of what cores counted that said their last word; of others it is what they said at some instant."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.counted = JourneyCounts()
        """Iterations in the results of jobs."""
        self.documents: list[Document] = []
        self.whole = 0
        """Results of which nothing was lost, compared row by row."""
        self._ledger = ledger
        self._accepted: dict[tuple[str, int], Tally] = {}
        self._heard_out: dict[tuple[str, int], None] = {}
        """Attempts whose whole result counts."""

    def on_attempt(self, world: World, result: AttemptResult) -> None:
        runs = [run for run in self._ledger.cores.get(result.job, ()) if run.attempt == result.attempt]
        what = f"job {result.job}, attempt {result.attempt}"
        self._accepted[result.job, result.attempt] = result.tally
        self._hold(world, what, result.tally, runs, [run for run in runs if result.is_lost or not run.has_ended_well])
        if result.is_lost:
            return
        self._heard_out[result.job, result.attempt] = None
        self._between(world, what, runs, counts_in(result.tally))
        if all(run.has_ended_well for run in runs):
            self._equal(world, what, runs, result.tally)

    def on_document(self, world: World, host: Host, document: Document) -> None:
        self.documents.append(document)
        for name, tally in document.tallies.items():
            runs = [run for run in self._ledger.cores.get(document.job, ()) if run.arm.workflow == name]
            what = f"job {document.job}, {name}"
            self.counted += counts_in(tally)
            lost = [run for run in runs if not run.has_ended_well or (document.job, run.attempt) not in self._heard_out]
            self._hold(world, what, tally, runs, lost)
            names = sum(call not in (node, OTHER_CALLS) for node, calls in tally.calls.items() for call in calls)
            if names > CALL_NAMES_KEPT:
                world.violate("I13", f"{what}: its calls have {names} names; the limit is {CALL_NAMES_KEPT}")
            self._as_accepted(world, what, document.job, runs, tally)
            if document.states[name] in SETTLED and not any(lost[0] == name for lost in document.lost):
                self.whole += 1
                self._equal(world, what, [run for run in runs if run.started], tally)

    def _hold(
        self, world: World, what: str, tally: Tally, runs: Sequence[CoreRun], lost_runs: Sequence[CoreRun]
    ) -> None:
        """`lost_runs`: those of which nobody needs to know more than what they said at some instant."""
        if not runs:
            return
        for text in discrepancies(runs[0].manner, tally):
            world.violate("I6", f"{what}: {text}")
        lost = sum(run.most_under_way for run in lost_runs)
        under_way = counts_in(tally).under_way
        if under_way > lost:
            text = f"{under_way} iterations neither ended nor were cut, and {lost} can have been lost with their cores"
            world.violate("I6", f"{what}: {text}")

    def _between(self, world: World, what: str, runs: Sequence[CoreRun], counts: JourneyCounts) -> None:
        """A core that died may have said something that its worker did not hear of any more."""
        known = sum((run.known for run in runs), JourneyCounts())
        told = sum((run.reported for run in runs), JourneyCounts())
        for field in JourneyCounts.__struct_fields__:
            least, count, most = (getattr(one, field) for one in (known, counts, told))
            if not least <= count <= most:
                world.violate("I6", f"{what}: {field} {count}, and its cores told {least} to {most}")

    def _equal(self, world: World, what: str, runs: Sequence[CoreRun], tally: Tally) -> None:
        truth = merged([tally_of(run.manner, run.arm.shard.index, run.journeys.counts) for run in runs])
        if counts_in(tally) != counts_in(truth):
            text = f"nothing was lost; it counts {counts_in(tally)}, and its cores {counts_in(truth)}"
            world.violate("I6", f"{what}: {text}")
            return
        if any(OTHER_CALLS in calls for calls in tally.calls.values()):
            fold_calls(truth.calls)
        rows, true_rows = rows_in(tally), rows_in(truth)
        for key in [key for key in {**rows, **true_rows} if rows.get(key) != true_rows.get(key)][:3]:
            text = f"it counts {rows.get(key)}, and its cores {true_rows.get(key)}"
            world.violate("I6", f"{what}, {' '.join(key).strip()}: {text}")

    def _as_accepted(self, world: World, what: str, job: str, runs: Sequence[CoreRun], tally: Tally) -> None:
        """A result is the sum of its attempts; of one that was given up without a result nobody else knows the
        counts."""
        attempts = dict.fromkeys(run.attempt for run in runs if run.started)
        if not all((job, attempt) in self._accepted for attempt in attempts):
            return
        whole = merged([self._accepted[job, attempt] for attempt in attempts])
        if counts_in(whole) != counts_in(tally):
            text = f"its result counts {counts_in(tally)}, and those accepted {counts_in(whole)}"
            world.violate("I6", f"{what}: {text}")


class RulesAreTrue(RecordsChecked):
    """Rules: `failed` is the worse share of steps and of requests, and a job that a rule stopped runs no further."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0
        self.aborted: dict[str, str] = {}
        """Jobs, and the rule that stopped each."""

    def on_document(self, world: World, host: Host, document: Document) -> None:
        if document.aborted:
            self.aborted[document.job] = document.aborted
            if set(document.states.values()) <= {TaskState.COMPLETED}:
                text = f"{document.aborted} stopped it, and its result says that it was completed"
                world.violate("rules", f"job {document.job}: {text}")
        for rule in document.rules:
            tallies = [tally for name, tally in document.tallies.items() if rule.workflow in (None, name)]
            if not rule.text.startswith("failed") or not any(tally.steps for tally in tallies):
                continue
            self.judged += 1
            steps = [step for tally in tallies for step in tally.steps.values()]
            exchanges = [tally.exchanges for tally in tallies]
            of_steps = _share(sum(step.failed for step in steps), sum(step.ok for step in steps))
            of_requests = _share(sum(one.failed for one in exchanges), sum(one.ok for one in exchanges))
            if rule.value is None or abs(rule.value - max(of_steps, of_requests)) > 1e-9:
                text = f"{rule.value}, where {of_steps} of steps and {of_requests} of requests failed"
                world.violate("rules", f"job {document.job}, {rule.text}: {text}")


def _share(failed: int, ok: int) -> float:
    return failed / (failed + ok) if failed else 0.0


class ValuesAreHandedOn(RecordsChecked):
    """Every core of a workflow gets what those before it left: of each the value of the lowest shard that has one,
    whoever leads the job by then."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.handed = 0
        """Cores that were given what another workflow left."""
        self._ledger = ledger
        self._provided: dict[tuple[str, str], list[tuple[int, dict[str, bytes]]]] = {}
        """By job and workflow: the first shard of each accepted attempt, and what it came to."""

    def on_attempt(self, world: World, result: AttemptResult) -> None:
        runs = [run for run in self._ledger.cores.get(result.job, ()) if run.attempt == result.attempt]
        if runs and not result.is_lost:
            first = min(run.arm.shard.index for run in runs)
            self._provided.setdefault((result.job, runs[0].arm.workflow), []).append((first, result.provided))

    def on_document(self, world: World, host: Host, document: Document) -> None:
        manager = manager_on(host)
        record = manager.registry.entries.get(document.job) if manager is not None and manager.registry else None
        if record is None:
            return
        for workflow in record.order.workflows:
            expected = {
                (source, key): value
                for source in workflow.depends_on
                for key in (TOKEN, CONTEXT + source)
                if (value := self._value(document.job, source, key)) is not None
            }
            for run in self._ledger.cores.get(document.job, ()):
                if run.arm.workflow != workflow.name:
                    continue
                self.handed += bool(expected)
                given = {(source, key): value for source, one in run.arm.values.items() for key, value in one.items()}
                own = given.pop((workflow.name, CONTEXT + workflow.name), None)  # it was put aside, and goes on
                if own is not None and own not in self._left(document.job, workflow.name):
                    text = f"attempt {run.attempt} was given {own!r}, and nobody left it"
                    world.violate("handed on", f"job {document.job}, {workflow.name}: {text}")
                if given != expected:
                    text = f"attempt {run.attempt} was given {given}, and those before it left {expected}"
                    world.violate("handed on", f"job {document.job}, {workflow.name}: {text}")

    def _left(self, job: str, workflow: str) -> list[bytes]:
        key = CONTEXT + workflow
        return [provided[key] for _, provided in self._provided.get((job, workflow), ()) if key in provided]

    def _value(self, job: str, workflow: str, key: str) -> bytes | None:
        found = [
            (first, provided[key]) for first, provided in self._provided.get((job, workflow), ()) if key in provided
        ]
        return min(found)[1] if found else None
