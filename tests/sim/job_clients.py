"""What surrounds simulated managers: their shell's duties, and clients that submit, watch and cancel jobs."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.blobs.replicated_blobs import BlobKept, LoadBlob, ServeBlob, piece_of
from talka.control.jobs.effects import DocumentWanted, Updated, WatchFailed
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.leader_calls import CallEnded
from talka.testing.disk import BLOB_PREFIX
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from talka.wire.jobs import CHANNEL
from talka.wire.manager_calls import CALLED_BY, CancelJob, GetJob, JobTold, LeaderCall, SubmitJob
from talka.wire.security.access import Asker
from talka.wire.views import JobUpdate
from talka.work.lifecycle import JobState, TaskState, is_final
from tests.sim.checkers.jobs import Document, JobHistory, JobRule
from tests.sim.job_orders import Errand

PATIENCE_NS: Final = 6 * SECOND
"""After which a client asks another manager."""

Act = Callable[[Manager, int], list[object]]


def manager_of(host: Host) -> Manager | None:
    node = host.node
    return node.jobs if isinstance(node, ClusterMember) and isinstance(node.jobs, Manager) else None


def manager_act(world: World, host: Host, boot: int, act: Act) -> bool:
    """Let the manager on this host do something; False when it cannot just now."""

    def call(now: int) -> list[object]:
        manager = manager_of(host)
        if manager is None or host.boot != boot or not isinstance(host.node, ClusterMember):
            return []
        return host.node.act(now, act(manager, now))

    return host.boot == boot and host.act(call)


def insist(world: World, host: Host, boot: int, act: Act) -> None:
    """The same as soon as it can, unless it crashes before."""
    if host.boot == boot and host.state != "down" and not manager_act(world, host, boot, act):
        world.push(world.now + 20 * MILLISECOND, insist, (world, host, boot, act))


class Duties(Observer):
    """What a manager's shell does: reads blobs, serves pieces, makes result documents."""

    def __init__(self, world: World) -> None:
        self._rng = world.rng("duties")

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        match effect:
            case LoadBlob(digest=digest):
                content = host.disk.durable.get(BLOB_PREFIX + digest)
                insist(world, host, host.boot, lambda manager, now: manager.on_loaded(now, digest, content))
            case ServeBlob(to=to, digest=digest, offset=offset):
                piece = piece_of(digest, host.disk.durable.get(BLOB_PREFIX + digest), offset)
                insist(world, host, host.boot, lambda manager, now: [Send(CHANNEL, to, piece, Lane.STREAM)])
            case DocumentWanted(job=job):
                delay = self._rng.randrange(5, 100) * MILLISECOND
                world.after(delay, partial(insist, world, host, host.boot, partial(self._document, job)))

    @staticmethod
    def _document(name: str, manager: Manager, now: int) -> list[object]:
        led = manager.led.get(name)
        if led is None or led.job is None:
            return []
        job = led.job
        content = Document(
            job=name,
            tallies={run.spec.name: run.tally() for run in job.workflows.values()},
            states={run.spec.name: str(run.state) for run in job.workflows.values()},
            lost=[(lost.workflow, lost.shard, lost.from_ns, lost.to_ns) for lost in job.lost],
            rules=[JobRule(workflow, rule.text, verdict.value) for workflow, rule, verdict in job.verdicts(now)],
            aborted=job.aborted.rule if job.aborted is not None else "",
        )
        state, reason = JobState.COMPLETED, ""
        if job.interrupted_by is not None:
            state, reason = JobState.CANCELLED, "cancelled"
        elif any(run.state is not TaskState.COMPLETED for run in job.workflows.values()):
            state, reason = JobState.FAILED, "; ".join(run.failure or "" for run in job.workflows.values())
        elif job.lost:
            state, reason = JobState.PARTIAL, "shards were lost"
        encoded = msgspec.json.encode(content)
        return manager.on_document(now, name, encoded, state, 0 if state is JobState.COMPLETED else 6, reason)


class Job:
    """One errand as its client sees it."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.name = ""
        self.phase = "waiting"
        self.asked: tuple[str, int, int] = ("", 0, 0)
        """Host, its boot, number of the call that is open."""
        self.what = ""
        self.asked_at = 0
        self.watch: tuple[str, int, int] = ("", 0, 0)
        self.is_final = False
        self.is_cancel_wanted = False
        self.is_cancel_answered = False


class Clients(Observer):
    """Submit with a key until there is an answer, by any manager; watch until the end; cancel where it is planned."""

    def __init__(self, world: World, errands: tuple[Errand, ...], managers: tuple[str, ...], history: JobHistory):
        self.jobs = [Job(errand) for errand in errands]
        self._world = world
        self._history = history
        self._managers = managers
        self._rngs: dict[int, Random] = {}
        self._calls: dict[tuple[str, int, int], Job] = {}
        self._watches: dict[tuple[str, int, int], Job] = {}
        self._keeps: dict[tuple[str, int, str], Job] = {}

    @property
    def are_done(self) -> bool:
        """Whether every client knows that its jobs have ended."""
        return all(job.is_final for job in self.jobs)

    def begin(self) -> None:
        for job in self.jobs:
            self._begin(job)

    def _begin(self, job: Job) -> None:
        self._world.at(job.errand.at_ns, partial(self._act, job))
        if job.errand.cancel_at_ns:
            self._world.at(job.errand.cancel_at_ns, partial(self._want_cancel, job))

    def once_more(self) -> None:
        """The first errand again, now, and to its end."""
        key = f"{self.jobs[0].errand.key} again"
        errand = msgspec.structs.replace(self.jobs[0].errand, key=key, at_ns=self._world.now, cancel_at_ns=0)
        self.jobs.append(Job(errand))
        self._begin(self.jobs[-1])

    def _want_cancel(self, job: Job) -> None:
        job.is_cancel_wanted = True

    def _rng(self, job: Job) -> Random:
        client = job.errand.client
        if client not in self._rngs:
            self._rngs[client] = self._world.rng("client", str(client))
        return self._rngs[client]

    def _act(self, job: Job) -> None:
        """A look at a job now and then: ask what is to be asked, and ask somebody else where it took too long."""
        world = self._world
        if job.is_final and (job.is_cancel_answered or not job.is_cancel_wanted):
            return
        world.after((200 + self._rng(job).randrange(200)) * MILLISECOND, partial(self._act, job))
        if job.what and world.now - job.asked_at < PATIENCE_NS and self._is_there(job.asked):
            return
        if job.phase == "waiting":
            self._keep(job)
        elif not job.name:
            self._ask(job, SubmitJob(job.errand.order, job.errand.key))
        elif job.is_cancel_wanted and not job.is_cancel_answered:
            self._ask(job, CancelJob(job.name, "planned"))
        elif not job.is_final and not self._is_there(job.watch):
            self._watch(job)
        elif not job.is_final and self._rng(job).randrange(12) == 0:
            self._ask(job, GetJob(job.name))

    def _is_there(self, where: tuple[str, int, int]) -> bool:
        host = self._world.hosts.get(where[0])
        return host is not None and host.boot == where[1] and host.state != "down"

    def _pick(self, job: Job) -> Host | None:
        up = [name for name in self._managers if self._world.hosts[name].state == "up"]
        return self._world.hosts[self._rng(job).choice(up)] if up else None

    def _is_shed(self, host: Host, manager: Manager, operation: str) -> bool:
        """Whether the manager has too much to do for it. Here all have little."""
        return False

    def _asker(self, job: Job, operation: str) -> Asker | None:
        """As whom it is asked; None: no tokens are used."""
        return None

    def _keep(self, job: Job) -> None:
        """The bundle first: a job whose code nobody has could never start."""
        errand = job.errand
        if not errand.bundle:
            job.phase = "kept"
            return
        host = self._pick(job)
        if host is None:
            return
        digest = errand.order.bundle.digest
        self._keeps[host.name, host.boot, digest] = job
        job.what, job.asked_at, job.asked = "keep", self._world.now, (host.name, host.boot, 0)
        manager_act(self._world, host, host.boot, lambda manager, now: manager.keep(now, digest, errand.bundle))

    def _ask(self, job: Job, asked: LeaderCall) -> None:
        host = self._pick(job)
        if host is None:
            return
        boot, what = host.boot, CALLED_BY[type(asked)][0]

        def call(manager: Manager, now: int) -> list[object]:
            if self._is_shed(host, manager, what):
                job.what = ""
                return []
            number, effects = manager.call(now, asked, self._asker(job, what))
            key = (host.name, boot, number)
            self._calls[key] = job
            job.asked = key
            return effects

        job.what, job.asked_at, job.asked = what, self._world.now, (host.name, boot, 0)
        manager_act(self._world, host, boot, call)

    def _watch(self, job: Job) -> None:
        host = self._pick(job)
        if host is None:
            return
        boot = host.boot

        def call(manager: Manager, now: int) -> list[object]:
            if self._is_shed(host, manager, "watch"):
                return []
            asker = self._asker(job, "watch")
            number, effects = manager.watch(now, job.name, steps=job.errand.client == 0, asker=asker)
            job.watch = (host.name, boot, number)
            self._watches[job.watch] = job
            return effects

        manager_act(self._world, host, boot, call)

    # -- answers

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is CallEnded:
            job = self._calls.pop((host.name, host.boot, effect.number), None)
            if job is not None:
                self._answered(job, (host.name, host.boot, effect.number), effect)
        elif type(effect) is Updated:
            job = self._watches.get((host.name, host.boot, effect.number))
            if job is not None:
                self._updated(job, host, effect.number, effect.update)
        elif type(effect) is WatchFailed:
            job = self._watches.pop((host.name, host.boot, effect.number), None)
            if job is not None:
                self._history.missing(world, job.name, f"a watch: {effect.text}")
                job.watch = ("", 0, 0)
        elif type(effect) is BlobKept:
            job = self._keeps.pop((host.name, host.boot, effect.digest), None)
            if job is not None and job.phase == "waiting":
                job.phase, job.what = "kept", ""

    def _answered(self, job: Job, key: tuple[str, int, int], ended: CallEnded) -> None:
        what = job.what
        if job.asked != key:
            what = ""  # asked elsewhere since; what it says still counts, what it does not say does not
        else:
            job.what = ""
        if ended.problem == "missing" and job.name:
            self._history.missing(self._world, job.name, ended.text)
            return
        if ended.problem:
            self._history.refused(self._world, job.errand.key, what, ended.problem, ended.text)
            return
        assert isinstance(ended.answer, JobTold)
        facts = ended.answer.job
        if not job.name:
            job.name = facts.id
        self._history.acknowledged(self._world, job.errand.key, facts.id)
        if what == "cancel":
            job.is_cancel_answered = True
            self._history.cancelled(self._world, job.name)
        if is_final(facts.state):
            job.is_final = True

    def _updated(self, job: Job, host: Host, number: int, update: JobUpdate) -> None:
        self._history.saw(self._world, job.name, (host.name, number), update)
        if update.final:
            job.is_final = True
            self._watches.pop((host.name, host.boot, number), None)
