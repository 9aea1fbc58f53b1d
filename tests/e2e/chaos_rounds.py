"""Rounds of chaos: a job, a blow to one of those who carry it, and what must be true of it afterwards."""

import asyncio
import json
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from talka.errors import TalkaError
from talka.units import SECOND
from tests.e2e.chaos_cluster import CLIENT, HOSTILE, LEDGER, ChaosCluster, Ledger, Watcher
from tests.e2e.chaos_hostile import Assault, assault
from tests.e2e.job_cluster import Ended, Started, until
from tests.e2e.standstill import Standstill

CORES = 3
"""Of four: one worker is spare."""
RATE_PER_S, PLAN_S = 60, 9
ARRIVALS = RATE_PER_S * PLAN_S
GRACE_S = 2
HOLD_S = 5.0
FREEZE_S = 8.0
"""Longer than the lease: whoever has the shards by then must be alone with them."""
LEFT_S = 30.0
"""After the end of a job, none of its processes is there any more."""
END_S = 90.0
UNDER_WAY = 5
"""Iterations that a lost core may have had under way when it last reported: 20 are begun in a second and take 5 ms."""
ENDS = ("completed", "partial", "failed", "cancelled")
LIMITS_S = {
    ("worker", "kill"): 10.0,
    ("core", "kill"): 1.0,
    ("owner", "kill"): 5.0,
    ("leader", "kill"): 5.0,
    ("cancel", "push lost"): 10.0,
    ("cancel", "deaf"): GRACE_S + 1.0,
}
"""The most that a recovery may take. Of a plain cancel the median counts."""
MEDIAN_LIMITS_S = {("cancel", "plain"): 1.0}
KINDS = (
    *(("worker", fault) for fault in ("kill", "stop", "freeze", "cut")),
    *(("core", fault) for fault in ("kill", "stop")),
    *(("owner", fault) for fault in ("kill", "stop", "cut")),
    *(("leader", fault) for fault in ("kill", "stop", "cut")),
    *(("client", fault) for fault in ("kill", "stop", "cut")),
    *(("cancel", fault) for fault in ("plain", "push lost", "deaf")),
    ("hostile", "member"),
    *(("store", fault) for fault in ("backup", "new")),
    *(("manager", fault) for fault in ("clock forward", "clock back", "overload")),
    *((role, "skew") for role in ("owner", "worker")),
)
CLOCKS_S = {"clock forward": 3600, "clock back": -3600}
"""By how much a manager's clock of the day is wrong for a while."""


@dataclass(frozen=True)
class Draw:
    """Which blow, and when: `early` is before the load begins, `middle` leaves time to recover, `late` is at the
    end."""

    number: int
    seed: int
    role: str
    fault: str
    phase: str = "middle"

    @property
    def kind(self) -> tuple[str, str]:
        return self.role, self.fault

    def dice(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.number}/{self.role}/{self.fault}")


def drawn(number: int, seed: int, kind: tuple[str, str]) -> Draw:
    role, fault = kind
    phase = "middle"
    if role not in ("cancel", "store"):
        phase = random.Random(f"{seed}/{number}").choices(("early", "middle", "late"), (15, 70, 15))[0]
    if role in ("core", "hostile") and phase == "early":
        phase = "middle"  # there are none yet
    return Draw(number, seed, role, fault, phase)


@dataclass
class Outcome:
    draw: Draw
    job: str = ""
    victim: str = ""
    status: str = "?"
    reason: str = ""
    counted: int = 0
    served: int = 0
    written: int = 0
    missing: int = 0
    struck_after_s: float = 0.0
    recovery_s: float | None = None
    left_s: float = 0.0
    took_s: float = 0.0
    assault: Assault | None = None
    """What somebody with a worker's certificate said."""
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def line(self) -> str:
        draw = self.draw
        recovery = "" if self.recovery_s is None else f", recovered in {self.recovery_s:.2f} s"
        counts = f"{self.counted} counted of {self.served} served and {self.written} written down"
        told = (
            f"{draw.number:3d}  {draw.role} {draw.fault} ({draw.phase}): {self.victim} at {self.struck_after_s:.2f} s"
        )
        told += f": {self.status}{recovery}, {counts}"
        told += f", {self.missing} missing" if self.missing else ""
        told += f", last core gone after {self.left_s:.1f} s, round took {self.took_s:.0f} s"
        told += "".join(f"\n       {note}" for note in self.notes)
        return told + "".join(f"\n     BROKEN {text}" for text in self.broken)


class Round:
    """One job and one blow on a cluster that is whole. Afterwards it is whole again, or the round says why not."""

    def __init__(self, cluster: ChaosCluster, draw: Draw) -> None:
        self.cluster = cluster
        self.draw = draw
        self.outcome = Outcome(draw)
        self._dice = draw.dice()
        self._heard = {name: [len(life.events) for life in lives] for name, lives in cluster.lives.items()}
        self._begun_ns = self._struck_ns = 0
        self._victim_cores: list[int] = []
        self._known_cores: list[int] = []

    def run(self) -> Outcome:
        begun = time.monotonic()
        # Recoveries of workers and cores are read from the ledger, the others are seen or asked for by this process.
        with self.cluster.standstill(is_seen_here=self.draw.role not in ("worker", "core")) as machine:
            try:
                if self.draw.role == "cancel":
                    self._run_cancel()
                else:
                    self._run_blow()
            except AssertionError as problem:
                self._break(str(problem).partition("\n")[0])
        self._judge_recovery(machine)
        try:
            self.cluster.make_whole()
        except AssertionError as problem:
            self._break(f"the cluster is not well again: {str(problem).partition(chr(10))[0]} {self.cluster.faults()}")
        for file, text in self.cluster.mistakes().items():
            if "internal error" in text or "Traceback" in text:
                self._break(f"{file} has an internal error")
        self.outcome.took_s = time.monotonic() - begun
        events = self._keep_events()
        if self.outcome.broken:
            self.outcome.notes.append(f"events of all nodes: {events}")
        return self.outcome

    def _break(self, text: str) -> None:
        self.outcome.broken.append(text)

    def _keep_events(self) -> Path:
        """What each node said in this round, for those who look for the reason."""
        folder = self.cluster.folder / f"events-{self.draw.number}"
        folder.mkdir(exist_ok=True)
        for name, lives in self.cluster.lives.items():
            before = self._heard.get(name, [])
            lines = [
                json.dumps(event)
                for index, life in enumerate(lives)
                for event in life.events[before[index] if index < len(before) else 0 :]
            ]
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return folder

    # A blow

    def _run_blow(self) -> None:
        cluster, outcome = self.cluster, self.outcome
        ledger = Ledger(cluster.folder / f"ledger-{self.draw.number}")
        served = cluster.served()
        submit = self._submit("Ledger", ledger)
        job = outcome.job = submit.job()
        watcher = Watcher(cluster.asks(), job)
        self._await_instant(job)
        unread = self._unread() if self.draw.fault == "skew" else {}
        self._strike(job, submit)
        ended = self._end_of(submit, job)
        self._judge_end(ended, job, watcher)
        self._judge_counts(ledger, served)
        self._measure(ledger, watcher)
        for name, before in unread.items():
            if name != outcome.victim and (more := self._unread()[name] - before):
                self._break(f"{name} could not read {more:.0f} messages")

    def _unread(self) -> dict[str, float]:
        """By manager, messages that it could not read so far."""
        cluster = self.cluster
        key = ("talka_frames_refused_total", "body")
        return {name: cluster.metrics(name, "--certs", str(cluster.certs)).get(key, 0.0) for name in cluster.managers}

    def _submit(self, workflow: str, ledger: Ledger, *options: str) -> Started:
        self._begun_ns = time.monotonic_ns()
        return self.cluster.start_submit(
            f"{LEDGER}:{workflow}",
            *("--cores", str(CORES), "--rate", f"{RATE_PER_S}/s", "--duration", f"{PLAN_S}s"),
            *("--grace", f"{GRACE_S}s", "--env", "TARGET", "--env", "LEDGER", *options),
            env={"LEDGER": str(ledger.folder)},
        )

    def _await_instant(self, job: str) -> None:
        cluster, dice = self.cluster, self._dice
        if self.draw.phase == "early":
            cluster.wait_for_owner(job)
            cluster.listen(dice.uniform(0.0, 0.3))
            return
        cluster.wait_until_running(job, CORES)
        # A lost worker is replaced after its lease: what is left of the plan must be longer.
        latest_s = 2.0 if self.draw.role == "worker" else 4.0
        cluster.listen(dice.uniform(0.5, latest_s) if self.draw.phase == "middle" else dice.uniform(PLAN_S - 1, PLAN_S))

    def _strike(self, job: str, submit: Started) -> None:
        cluster, outcome = self.cluster, self.outcome
        process, name = self._choose(job, submit)
        outcome.victim = name
        self._known_cores = [core.pid for core in cluster.cores_left()]
        self._struck_ns = time.monotonic_ns()
        outcome.struck_after_s = (self._struck_ns - self._begun_ns) / SECOND
        match self.draw.fault:
            case "member":
                self._be_hostile(job)
            case "skew":  # back again with the next such blow to the same node
                cluster.kill(name)
                cluster.are_next ^= {name}
                cluster.restart(name)
                outcome.notes.append(
                    f"{name} is of the {'next' if name in cluster.are_next else 'present'} version now"
                )
            case "kill" if name in cluster.up:
                cluster.kill(name)
            case "kill":
                process.kill()
            case "stop" | "freeze":
                process.suspend()  # of a worker its process alone: its cores go on
                cluster.listen(FREEZE_S if self.draw.fault == "freeze" else HOLD_S)
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            case "clock forward" | "clock back":
                cluster.clocks[name].set(CLOCKS_S[self.draw.fault])
                cluster.listen(HOLD_S / 2)
                cluster.clocks[name].set(0)
            case "overload":
                self._flood(name)
            case _:
                cluster.cut_off(CLIENT if self.draw.role == "client" else name)
                cluster.listen(HOLD_S)
                cluster.network.mend()

    def _flood(self, name: str) -> None:
        """Its own work goes on, and once it is left alone it does well again by itself."""
        cluster = self.cluster
        flood = cluster.flood(name)
        try:
            cluster.listen(HOLD_S)
            if flood.poll() is not None:
                self._break("the flood did not go on")
            told, _ = flood.communicate("", timeout=END_S)
        finally:
            flood.kill()
            flood.communicate()
        answers = {what: found for what, found in json.loads(told).items() if found}
        self.outcome.notes.append(f"asked for, by status: {json.dumps(answers)}")
        until(lambda: cluster.overload_level(name) == 0, cluster, LEFT_S, f"{name} to do well again")

    def _be_hostile(self, job: str) -> None:
        """Nothing may come of it: the job ends as if nobody had been there."""
        cluster, outcome = self.cluster, self.outcome
        before = self._standing()
        fences = [(0, term, number) for term in range(1, 9) for number in (1, 2, 3)]
        known: dict[str, list[object]] = {
            "job": [job],
            "name": [job, *cluster.workers, *cluster.managers],
            "worker": list(cluster.workers),
            "owner": list(cluster.managers),
            "leader": list(cluster.managers),
            "candidate": [HOSTILE, *cluster.managers],
            "fence": list(fences),
            "token": list(fences),
            "highest": [(0, 99, 1)],
            "attempt": [1, 2, 3, 4],
            "digest": [path.name for path in (cluster.data("m1") / "blobs").rglob("*") if path.is_file()],
        }
        outcome.assault = asyncio.run(assault(cluster, self._dice, HOLD_S, known))
        outcome.broken += outcome.assault.broken
        if (after := self._standing()) != before:
            self._break(f"a hostile member changed {before} to {after}")
        outcome.notes.append(
            f"{sum(outcome.assault.sent.values())} messages, {sum(outcome.assault.refused.values())} refused"
        )

    def _standing(self) -> tuple[list[str], list[str], int]:
        """What nobody else changes in a round: names of jobs, who is drained, how many keys there are."""
        cluster = self.cluster

        async def ask() -> tuple[list[str], list[str]]:
            client = cluster.asks()
            jobs = [f"{one.id} {one.cancel}" for one in (await client.jobs()).items]
            return jobs, [one.name for one in await client.workers() if one.state == "draining" and one.name != HOSTILE]

        keys = cluster.told(cluster.managers[0], "keys", "--certs", str(cluster.certs))
        return (*asyncio.run(ask()), len(keys["keys"]))

    def _choose(self, job: str, submit: Started) -> tuple[psutil.Process, str]:
        cluster, dice = self.cluster, self._dice
        match self.draw.role:
            case "client":
                return psutil.Process(submit.process.pid), "talka submit"
            case "core":
                worker = dice.choice(sorted(cluster.running_tasks(job)) or sorted(cluster.busy_workers()))
                core = dice.choice(cluster.core_processes(worker))
                self._victim_cores = [core.pid]
                return core, f"a core of {worker}"
            case "hostile":
                return psutil.Process(), HOSTILE
            case "owner":
                name = cluster.wait_for_owner(job)
            case "leader":
                name = cluster.wait_for_leader()
            case "manager":
                name = dice.choice((cluster.wait_for_owner(job), cluster.wait_for_leader()))
            case _:
                name = dice.choice(sorted(cluster.running_tasks(job)) or cluster.workers)
                self._victim_cores = [core.pid for core in cluster.core_processes(name)]
        if self.draw.role in ("owner", "leader") and cluster.owner(job) == cluster.leader():
            self.outcome.notes.append("it led the cluster and the job")
        return psutil.Process(cluster.up[name].process.pid), name

    def _end_of(self, submit: Started, job: str) -> Ended:
        """Of the client, or of the next one if it was killed."""
        cluster = self.cluster
        if self.draw.kind != ("client", "kill"):
            return submit.ended(END_S)
        submit.ended(END_S)
        cluster.talka("jobs", "watch", job, "--ui", "none", timeout_s=END_S)
        file = cluster.folder / f"result-of-{job}.json"
        ended = cluster.talka("jobs", "result", job, "--json", str(file))
        return Ended(ended.code, ended.out, ended.err, file)

    # Cancelling

    def _run_cancel(self) -> None:
        cluster, outcome, is_deaf = self.cluster, self.outcome, self.draw.fault == "deaf"
        ledger = Ledger(cluster.folder / f"ledger-{self.draw.number}")
        served = cluster.served()
        submit = self._submit("Deaf" if is_deaf else "Ledger", ledger)
        job = outcome.job = submit.job()
        watcher = Watcher(cluster.asks(), job)
        cluster.wait_until_running(job, CORES)
        cluster.listen(self._dice.uniform(0.5, 5.0))
        owner, leader = cluster.owner(job), cluster.wait_for_leader()
        outcome.victim = f"{job} of {owner}"
        is_lost, is_stopped = self.draw.fault == "push lost", False
        if is_lost and owner != leader:
            # The leader answers for the cancel; the one that would push it is silent already.
            cluster.stop_process(owner)
            is_stopped = True
        try:
            asyncio.run(cluster.asks().cancel(job, "chaos"))
        except TalkaError as error:
            self._break(f"the cancel was not taken: {error}")
        self._struck_ns = time.monotonic_ns()
        if is_lost and not is_stopped:
            cluster.stop_process(owner)
        outcome.struck_after_s = (self._struck_ns - self._begun_ns) / SECOND
        if is_lost:
            cluster.listen(HOLD_S)
            cluster.continue_process(owner)
        if is_deaf:
            self._until_no_core()
            outcome.recovery_s = (time.monotonic_ns() - self._struck_ns) / SECOND
        self._judge_end(submit.ended(END_S), job, watcher)
        if outcome.status != "cancelled":
            self._break(f"a cancelled job is {outcome.status}")
        self._judge_counts(ledger, served)
        if not is_deaf:
            outcome.recovery_s = max(0, ledger.last_of() - self._struck_ns) / SECOND

    # What must be true

    def _judge_end(self, ended: Ended, job: str, watcher: Watcher) -> None:
        cluster, outcome = self.cluster, self.outcome
        ended_at = time.monotonic()
        try:
            document = ended.document()
        except AssertionError:
            self._break(f"the client got no result: {' '.join(ended.text.split())[-400:]}")
            document = json.loads(self._any_result(job) or "{}")
        outcome.status, outcome.reason = document.get("status", "?"), "; ".join(document.get("reasons", []))
        self._document = document
        if outcome.status not in ENDS:
            self._break(f"it ended {outcome.status}")
        if self.draw.fault in CLOCKS_S and outcome.status != "completed":
            self._break(f"a clock of the day decided something: it is {outcome.status}")
        if outcome.status in ("partial", "failed") and not outcome.reason:
            self._break(f"{outcome.status} without a reason")
        if not watcher.join(30):
            self._break(f"who watched saw no end: {watcher.problem or 'it still waits'}")
        if watcher.decrease():
            self._break(watcher.decrease())
        cluster.wait(lambda: cluster.said("job-ended", job=job), LEFT_S, "a manager to tell the end of the job")
        cluster.hear(0)
        states = sorted({event["state"] for _, event in cluster.said("job-ended", job=job)})
        if len(states) != 1 or states[0] != outcome.status:
            self._break(f"managers told the end as {states}")
        results = {found for name in cluster.managers if name in cluster.up if (found := cluster.result_at(name, job))}
        if len(results) != 1:
            self._break(f"{len(results)} different results")
        self._until_no_core()
        outcome.left_s = time.monotonic() - ended_at

    def _any_result(self, job: str) -> bytes | None:
        for name in self.cluster.managers:
            if found := self.cluster.result_at(name, job):
                return found
        return None

    def _until_no_core(self) -> None:
        until(lambda: not self.cluster.cores_left(), self.cluster, LEFT_S, "the last core process to end")

    def _judge_counts(self, ledger: Ledger, served: int) -> None:
        outcome, document = self.outcome, self._document
        totals: dict[str, int] = document.get("totals", {})
        lost: list[dict[str, Any]] = document.get("lost_shards", [])
        outcome.counted = totals.get("requests", 0)
        outcome.served = self.cluster.served() - served
        outcome.written = ledger.count()
        is_deaf = self.draw.kind == ("cancel", "deaf")
        if outcome.counted > outcome.served or (outcome.counted > outcome.written and not is_deaf):
            self._break("more was counted than happened")
        if not lost and not is_deaf and not outcome.counted == outcome.served == outcome.written:
            self._break("nothing was lost, and the counts differ")
        if outcome.status == "cancelled":
            return
        accounted = totals.get("iterations", 0) + totals.get("dropped_iterations", 0)
        outcome.missing = ARRIVALS - accounted
        gaps = sum(part["arrivals_missing"] for part in lost)
        if not -UNDER_WAY * len(lost) <= gaps - outcome.missing <= UNDER_WAY * len(lost):
            self._break(f"{outcome.missing} arrivals are missing, and the gaps tell of {gaps}: {lost}")
        if lost:
            causes = "; ".join(
                f"{part['cause']}, {part['from_s']:g} to {part['to_s']:g} s, {part['arrivals_missing']} missing"
                for part in lost
            )
            outcome.notes.append(f"{outcome.reason}: {causes}")

    # How long it took

    def _measure(self, ledger: Ledger, watcher: Watcher) -> None:
        outcome, role = self.outcome, self.draw.role
        recovered_ns = None
        if role in ("worker", "core"):
            recovered_ns = ledger.first_of_others(self._known_cores, self._struck_ns)
            last_ns = ledger.last_of(self._victim_cores)
            if recovered_ns is not None and last_ns > recovered_ns:
                both_s = (last_ns - recovered_ns) / SECOND
                outcome.notes.append(f"the victim's core went on for {both_s:.2f} s beside its replacement")
                if role == "worker":
                    self._break("a worker that was cut off or stood still had not stopped when it was replaced")
        elif role in ("owner", "leader"):
            recovered_ns = watcher.flows_again_ns(self._struck_ns, outcome.counted)
        if recovered_ns is not None and self.draw.phase != "early":
            outcome.recovery_s = (recovered_ns - self._struck_ns) / SECOND
        elif self.draw.phase == "middle" and role != "client" and self.draw.fault == "kill":
            self._break("nothing showed that it recovered")

    def _judge_recovery(self, machine: Standstill) -> None:
        limit_s = LIMITS_S.get(self.draw.kind)
        recovery_s = self.outcome.recovery_s
        if limit_s is None or recovery_s is None:
            return
        struck_s = self._struck_ns / SECOND
        if not machine.allows(recovery_s, limit_s, struck_s):
            self._break(f"recovered in {recovery_s:.2f} s, and {limit_s:g} s are promised")
        waited_s = machine.slack_s(recovery_s, struck_s)
        self.outcome.notes.append(
            f"{limit_s:g} s are promised, and it waited {waited_s:.2f} s for a processor meanwhile"
        )
