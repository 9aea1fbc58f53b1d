"""What must hold of jobs in a world, judged only by what happened, what clients were told and what cores really ran.

Each checker is an observer of its own. None knows a scenario or a safeguard.
"""

from typing import Any, Final

import msgspec

from talka.cluster.fencing import Token
from talka.cluster.leadership.news import Elected
from talka.control import manager
from talka.control.blobs import replicated_blobs
from talka.control.jobs import watching
from talka.control.jobs.effects import AttemptAccepted, JobAcceptedNews, JobEndStored, JobOver, OwnerChanged, WorkerLost
from talka.control.jobs.registry import Registry
from talka.control.jobs.workers.fleet import LEFT, STARTED_ANEW
from talka.control.manager import Manager
from talka.control.member import leader_calls
from talka.control.member.composite import ClusterMember
from talka.control.worker import composite, fences, held_shards
from talka.stats.tally import Tally
from talka.testing.core_runs import CoreRun, Ledger
from talka.testing.cores import Obeyed, WorkerPart
from talka.testing.disk import BLOB_PREFIX, Puts
from talka.testing.host import Host
from talka.testing.journeys import LOOK, rows_in
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire.entries import SLOTS
from talka.wire.jobs import AttemptResult, decode_result
from talka.wire.views import JobUpdate
from talka.work.lifecycle import JobState, is_final
from tests.sim.hostile_node import HostileNode

FENCE_PREFIX: Final = "fence/"
STORM_WINDOW_NS: Final = SECOND
OVERTAKEN_NS: Final = 12 * SECOND
"""So long after a job got another owner an update may still be of the one before."""
LEASE_AND_HOLD_NS: Final = 15 * SECOND
_token_decoder = msgspec.msgpack.Decoder(Token)


class JobRule(msgspec.Struct, frozen=True):
    """How a rule stood in the end."""

    workflow: str | None
    """None: it is the job's."""
    text: str
    value: float | None


class Document(msgspec.Struct, frozen=True):
    """What a simulated result document holds."""

    job: str
    tallies: dict[str, Tally]
    states: dict[str, str]
    lost: list[tuple[str, int, int, int]]
    """Workflow, first shard, from and to."""
    rules: list[JobRule]
    aborted: str
    """The rule that stopped the job."""

    @property
    def started(self) -> dict[str, int]:
        return {name: tally.started for name, tally in self.tallies.items()}


def manager_on(host: Host) -> Manager | None:
    node = host.node
    return node.jobs if isinstance(node, ClusterMember) and isinstance(node.jobs, Manager) else None


def leading_registry(world: World) -> Registry | None:
    """Of the manager that leads at this instant, if any does."""
    for host in world.hosts.values():
        node = host.node
        if host.state != "up" or not isinstance(node, ClusterMember) or node.voter is None:
            continue
        found = manager_on(host)
        if found is not None and found.registry is not None and node.voter.election.is_leading(host.local(world.now)):
            return found.registry
    return None


def blob_of(world: World, digest: str) -> bytes | None:
    for host in world.hosts.values():
        content = host.disk.durable.get(BLOB_PREFIX + digest)
        if content is not None:
            return content
    return None


class JobHistory(Observer):
    """I5, I9 and keys: what clients were told. Whoever plays the clients calls `acknowledged` and the rest."""

    def __init__(self, ledger: Ledger) -> None:
        self.jobs: dict[str, int] = {}
        """Acknowledged jobs, and when."""
        self.ended: dict[str, JobState] = {}
        self.cancelled_at: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        self.updates = 0
        self.owner_changes = 0
        self._ledger = ledger
        self._by_key: dict[str, str] = {}
        self._seen: dict[tuple[str, int], tuple[str, int, dict[str, int]]] = {}
        self._boots: dict[str, int] = {}
        self._owner_changed_at: dict[str, int] = {}
        self._reigns: dict[str, int] = {}
        """How often each job was given an owner: one that leads it again after another knows what was stored."""

    def on_boot(self, world: World, host: Host) -> None:
        self._boots[host.name] = self._boots.get(host.name, 0) + 1

    def acknowledged(self, world: World, key: str, job: str) -> None:
        self.jobs.setdefault(job, world.now)
        self._same_job(world, key, job)

    def _same_job(self, world: World, key: str, job: str) -> None:
        known = self._by_key.setdefault(key, job)
        if known != job:
            world.violate("one job per key", f"the key {key!r} is that of job {known}, and of job {job} too")

    def refused(self, world: World, key: str, what: str, problem: str, text: str) -> None:
        self.refusals[problem] = self.refusals.get(problem, 0) + 1
        if problem in ("invalid", "conflict"):
            world.violate("I5", f"{what} of {key!r} was answered with {problem}: {text}")

    def missing(self, world: World, job: str, text: str) -> None:
        if job in self.jobs:
            world.violate("I5", f"job {job} was acknowledged, and is not there: {text}")

    def cancelled(self, world: World, job: str) -> None:
        self.cancelled_at.setdefault(job, world.now)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is JobAcceptedNews:
            self._same_job(world, effect.key, effect.job)
        elif type(effect) is OwnerChanged:
            self.owner_changes += 1
            self._owner_changed_at[effect.job] = world.now
            self._reigns[effect.job] = self._reigns.get(effect.job, 0) + 1
        elif type(effect) is JobOver or (type(effect) is Obeyed and effect.what == "Reconcile"):
            # A leader that decides on another owner and is deposed at once tells nobody.
            self._owner_changed_at[effect.job] = world.now
        elif type(effect) is JobEndStored:
            before = self.ended.setdefault(effect.job, effect.state)
            if before is not effect.state:
                world.violate("I6", f"job {effect.job} ended as {before}, and then as {effect.state}")

    def saw(self, world: World, job: str, watch: tuple[str, int], update: JobUpdate) -> None:
        """A watcher was told how the job stands."""
        if not update.sequence:
            return  # facts alone
        self.updates += 1
        counts: dict[str, int] = {}
        for workflow in update.workflows:
            if workflow.tally is None:
                continue
            started = counts[workflow.name] = workflow.tally.started
            truth = self._ledger.started(job, workflow.name)
            if started > truth:
                text = f"{started} iterations were told, and {truth} were started"
                world.violate("I9", f"job {job}, {workflow.name}: {text}")
            for (kind, name, call), row in rows_in(workflow.tally).items():
                most = truth * (2 if kind == "call" and name == LOOK else 1)
                if sum(row) > most:
                    what = f"{kind} {name} {call}".strip()
                    world.violate("I9", f"job {job}, {what}: {sum(row)} were told, and there were at most {most}")
        owner = f"{update.job.owner} {self._boots.get(update.job.owner, 0)} of reign {self._reigns.get(job, 0)}"
        known_owner, sequence, before = self._seen.get(watch, ("", 0, {}))
        if known_owner == owner:
            if update.sequence <= sequence:
                return  # overtaken by a later one
            for name, count in before.items():
                if counts.get(name, 0) < count and world.now - self._owner_changed_at.get(job, -SECOND) > OVERTAKEN_NS:
                    text = f"{name} fell from {count} to {counts.get(name, 0)} iterations under {owner}"
                    world.violate("I9", f"job {job}: {text}")
        self._seen[watch] = (owner, update.sequence, counts)

    def on_second(self, world: World) -> None:
        registry = leading_registry(world)
        if registry is None:
            return
        for job, at in self.jobs.items():
            if job not in registry.entries and at < world.now:
                world.violate("I5", f"job {job} was acknowledged, and the leader's records do not have it")


def was_cut_short(run: CoreRun, mine: list[CoreRun]) -> bool:
    """Whether it was stopped before the end of its plan, and no other went on with that later."""
    same = [other for other in mine if other.shard == run.shard]
    if run.final != "stop" or any(other.began_at > run.ended_at for other in same):
        return False
    in_all = run.arm.shard.iterations_in_all
    return in_all is None or sum(other.started for other in same) < in_all


def never_began(runs: list[CoreRun]) -> list[int]:
    """The first shards of tasks of which no shard was told to go, by this attempt or by another."""
    began = {run.arm.shard.index for run in runs if run.go is not None}
    tasks: dict[int, set[int]] = {}
    for run in runs:
        tasks.setdefault(run.attempt, set()).add(run.arm.shard.index)
    return [min(shards) for shards in tasks.values() if not shards & began]


class CountsAreTrue(Observer):
    """I6: of an attempt one result counts, and no more than was run; what is missing from a job's result is told."""

    def __init__(self, ledger: Ledger) -> None:
        self.results = 0
        self.lost_results = 0
        self.counted = 0
        """Iterations in the results of jobs."""
        self._ledger = ledger
        self._accepted: dict[tuple[str, int], str] = {}
        self._results: dict[tuple[str, int], AttemptResult] = {}
        self._documents: dict[str, str] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is AttemptAccepted:
            self._on_accepted(world, effect)
        elif type(effect) is JobEndStored and effect.result:
            self._on_recorded(world, effect)

    def _on_accepted(self, world: World, news: AttemptAccepted) -> None:
        key = (news.job, news.attempt)
        what = f"job {news.job}, attempt {news.attempt}"
        before = self._accepted.setdefault(key, news.digest)
        if before != news.digest:
            world.violate("I6", f"{what}: two results were accepted, {before[:8]} and {news.digest[:8]}")
            return
        if key in self._results:
            return
        content = blob_of(world, news.digest)
        if content is None:
            world.violate("I6", f"{what}: its result was accepted, and is on nobody's disk")
            return
        result = self._results[key] = decode_result(content)
        self.results += 1
        self.lost_results += result.is_lost
        counted = result.tally.started
        runs = [run for run in self._ledger.cores.get(news.job, ()) if run.attempt == news.attempt]
        truth, known = sum(run.started for run in runs), sum(run.known.started for run in runs)
        if counted > truth:
            world.violate("I6", f"{what}: {counted} iterations count, and {truth} were started")
        elif not result.is_lost and counted < known:
            world.violate("I6", f"{what}: {counted} iterations count, and {known} were acknowledged by its worker")

    def _on_recorded(self, world: World, news: JobEndStored) -> None:
        job = news.job
        before = self._documents.setdefault(job, news.result)
        if before != news.result:
            world.violate("I6", f"job {job} has two results, {before[:8]} and {news.result[:8]}")
            return
        content = blob_of(world, news.result)
        if content is None:
            world.violate("I6", f"the result of job {job} is on record and on nobody's disk")
            return
        document = msgspec.json.decode(content, type=Document)
        runs = self._ledger.cores.get(job, [])
        for workflow, counted in document.started.items():
            self.counted += counted
            mine = [run for run in runs if run.arm.workflow == workflow]
            truth = sum(run.started for run in mine)
            attempts = dict.fromkeys(run.attempt for run in mine if run.started)
            accepted = [self._results[job, one] for one in attempts if (job, one) in self._results]
            counts = sum(result.tally.started for result in accepted)
            what = f"job {job}, {workflow}"
            if counted > truth:
                world.violate("I6", f"{what}: its result has {counted} iterations, and {truth} were started")
            elif counted < counts or (counted > counts and len(accepted) == len(attempts)):
                text = f"its result has {counted} iterations, and those accepted add up to {counts}"
                world.violate("I6", f"{what}: {text}")
            elif counted < truth and document.states[workflow] == "completed":
                if not any(lost[0] == workflow for lost in document.lost):
                    text = f"its result has {counted} of {truth} iterations and tells of no loss"
                    world.violate("I6", f"{what}: {text}")
            if document.states[workflow] == "completed":
                told = {shard for name, shard, _, _ in document.lost if name == workflow}
                for shard in sorted(set(never_began(mine)) - told):
                    world.violate("I6", f"{what}: shard {shard} was never started, and its result does not tell")
                if any(was_cut_short(run, mine) for run in mine):
                    world.violate("I6", f"{what}: it was stopped, and its result says that it was completed")


class OneAttemptAtATime(Observer):
    """I4 task: no two cores run the same shard at the same instant, and no attempt has two places."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.overlaps = 0
        self._world = world
        self._ledger = ledger
        self._places: dict[tuple[str, int], tuple[str, int]] = {}

    def ran(self, run: CoreRun) -> None:
        """A core has started iterations just now."""
        job, workflow, index, of = run.shard
        place = (run.host.name, run.boot)
        if self._places.setdefault((job, run.attempt), place) != place:
            text = f"attempt {run.attempt} of job {job} runs on {run.host.name} and ran elsewhere before"
            self._world.violate("I4 task", text)
        for other in self._ledger.working[run.shard]:
            if other is not run and other.is_working:
                self.overlaps += 1
                one = f"{run.host.name} (attempt {run.attempt})"
                two = f"{other.host.name} (attempt {other.attempt})"
                text = f"job {job}, {workflow}: {one} and {two} both run shard {index} of {of}"
                self._world.violate("I4 task", text)


class NoStaleCommand(Observer):
    """I3: a worker obeys no manager whose fence is below one it has on disk, also after a restart."""

    def __init__(self) -> None:
        self.obeyed = 0
        self._highest: dict[tuple[str, str], tuple[int, int, int]] = {}

    def on_persisted(self, world: World, host: Host, puts: Puts) -> None:
        for key, content in puts:
            if not key.startswith(FENCE_PREFIX):
                continue
            where = (host.name, key.removeprefix(FENCE_PREFIX))
            if content is None:
                self._highest.pop(where, None)
                continue
            token = _token_decoder.decode(content)
            fence = (token.parent, token.term, token.sequence)
            if fence < self._highest.get(where, (0, 0, 0)):
                world.violate("I3", f"the fence of {where[1]} on {host.name} fell to {fence}")
            self._highest[where] = fence

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not Obeyed:
            return
        self.obeyed += 1
        highest = self._highest.get((host.name, effect.job), (0, 0, 0))
        if effect.fence < highest:
            what = f"{effect.what} of job {effect.job}, attempt {effect.attempt}, under {effect.fence}"
            world.violate("I3", f"{host.name} obeyed {what}, and has {highest} on disk")


class EveryJobEnds(Observer):
    """I14 and cancels: once faults are over, every job ends in time; a cancelled one has no core that runs on."""

    def __init__(self, history: JobHistory, ledger: Ledger, stop_within_ns: int) -> None:
        self._history = history
        self._ledger = ledger
        self._stop_within_ns = stop_within_ns
        self._calm_at: int | None = None

    def begin(self, world: World) -> None:
        self._calm_at = world.now

    def on_second(self, world: World) -> None:
        if self._calm_at is None:
            return
        for job, at in self._history.cancelled_at.items():
            if world.now >= max(at, self._calm_at) + self._stop_within_ns:
                for run in self._ledger.alive(job):
                    text = f"core {run.number} of {run.host.name} (attempt {run.attempt}) runs on"
                    world.violate("cancel", f"job {job} was cancelled {(world.now - at) // SECOND} s ago: {text}")

    def at_end(self, world: World) -> None:
        if world.stopped:
            return
        registry = leading_registry(world)
        if registry is None:
            world.violate("I14", "nobody leads at the end")
            return
        for job in self._history.jobs:
            record = registry.entries.get(job)
            if record is None:
                world.violate("I5", f"job {job} was acknowledged, and is not there at the end")
            elif not is_final(record.state):
                text = f"is {record.state} at the end: {registry.facts(0, record)}"
                world.violate("I14", f"job {job}, led by {record.owner or 'nobody'}, {text}")
            elif self._ledger.alive(job):
                world.violate("I14", f"job {job} is {record.state}, and {len(self._ledger.alive(job))} cores of it run")


class NoEvictionStorm(Observer):
    """A fault that many workers share, and that is short, does not make the leader give all of them up at once."""

    def __init__(self) -> None:
        self.lost = 0
        self._workers: dict[str, None] = {}
        self._reachable: dict[tuple[str, str], int] = {}
        """By leader and worker: when they last could talk for two looks in a row."""
        self._looked: dict[tuple[str, str], int] = {}
        self._lost: dict[str, dict[str, int]] = {}

    def on_boot(self, world: World, host: Host) -> None:
        node = host.node
        is_worker = isinstance(node, ClusterMember) and isinstance(node.jobs, WorkerPart)
        if is_worker or isinstance(node, HostileNode):  # whose beats are those of a worker
            self._workers[host.name] = None

    def on_second(self, world: World) -> None:
        network = world.network
        for name, host in world.hosts.items():
            if manager_on(host) is None or host.state != "up":
                continue
            for worker_name in self._workers:
                if world.hosts[worker_name].state != "up":
                    continue
                if network.is_cut(name, worker_name) or network.is_cut(worker_name, name):
                    continue
                pair = (name, worker_name)
                if self._looked.get(pair) == world.now - SECOND:
                    self._reachable[pair] = world.now
                self._looked[pair] = world.now

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is Elected:
            self._lost.pop(host.name, None)
        if type(effect) is not WorkerLost or effect.cause in (LEFT, STARTED_ANEW) or "another worker" in effect.cause:
            return  # a worker that left, or was started again, was not given up
        self.lost += 1
        lost = self._lost.setdefault(host.name, {})
        lost[effect.name] = world.now
        recent = [
            name
            for name, at in lost.items()
            if world.now - at <= STORM_WINDOW_NS
            and world.now - self._reachable.get((host.name, name), -LEASE_AND_HOLD_NS) < LEASE_AND_HOLD_NS - 2 * SECOND
        ]
        if len(recent) >= max(3, len(self._workers) // 2 + 1):
            names = ", ".join(sorted(recent))
            world.violate("eviction storm", f"{host.name} gave {names} up at once; all were there a moment ago")


class JobCapsHold(Observer):
    """I13: what is bounded in managers and workers stays so."""

    def on_second(self, world: World) -> None:
        for host in world.hosts.values():
            node = host.node
            if not isinstance(node, ClusterMember):
                continue
            if isinstance(node.jobs, WorkerPart):
                self._check_worker(world, host, node.jobs.worker)
            elif isinstance(node.jobs, Manager):
                self._check_manager(world, host, node.jobs)

    # The limits are of private things; asking each for its size would put methods there that only this needs.

    def _check_worker(self, world: World, host: Host, one: composite.Worker) -> None:
        _within(world, host, "tasks", one.shards._held, held_shards.HELD_LIMIT)
        _within(world, host, "commands that wait", one._waiting, composite.WAITING_LIMIT)
        _within(world, host, "fences", one._fences._jobs, fences.JOBS_LIMIT)
        if one.shards.pool.free < 0:
            text = f"{-one.shards.pool.free} more cores than the {one.shards.pool.cores} there are"
            world.violate("I13", f"{host.name} runs {text}")

    def _check_manager(self, world: World, host: Host, one: Manager) -> None:
        _within(world, host, "jobs it leads", one.led, manager.LED_LIMIT)
        _within(world, host, "calls", one.calls._open, leader_calls.OPEN_LIMIT)
        _within(world, host, "watches", one.watches._watches, watching.WATCHES_LIMIT)
        _within(world, host, "listeners", one.audience._listeners, watching.AUDIENCE_LIMIT)
        _within(world, host, "blobs that come in", one.blobs._incoming, replicated_blobs.BLOB_LIMITS.incoming)
        if one.registry is not None:
            _within(world, host, "records", one.registry.entries, SLOTS)


def _within(world: World, host: Host, what: str, things: Any, limit: int) -> None:
    if len(things) > limit:
        world.violate("I13", f"{host.name} keeps {len(things)} {what}; the limit is {limit}")
