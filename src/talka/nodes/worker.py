"""A worker on the network: connects the pure worker to its core processes, its disk and its managers. Decides
nothing."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import psutil

from talka.clock import boottime_ns
from talka.cluster.effects import Lane, Persist, PersistBlob, Send, Transmit
from talka.control.clients.overload import Level
from talka.control.load.core_effects import KillCore, StartCore, TellCore
from talka.control.member.admission import HelloDeclined, RingChanged, Welcomed
from talka.control.member.composite import ClusterMember, MemberEffect, QuestionAsked, ToNeighbour
from talka.control.member.manager_search import GreetManager
from talka.control.member.metrics import metrics_text
from talka.control.worker.composite import Worker
from talka.control.worker.core_turns import TURN_LIMITS, TurnLimits
from talka.control.worker.effects import (
    CoresUntil,
    Drained,
    EndHandlers,
    LookAtCore,
    ManagersLearned,
    StartHandlers,
    TellHandlers,
    WorkerEffect,
    WorkerLeaseGranted,
)
from talka.engine.core_stack import CoreLook
from talka.engine.hiding import hide
from talka.errors import Invalid, TalkaError
from talka.net.discovery import Candidates
from talka.nodes.confinement import Confinement
from talka.nodes.cores import HandlerProcesses, LoadCores, files_of, short_of_disk
from talka.nodes.job_events import WorkerNews, worker_event_of
from talka.nodes.load_sampling import LoadSampler
from talka.nodes.local import physical_cores
from talka.nodes.member_events import Event, event_of
from talka.nodes.own_machine import disk_of, found_machine
from talka.nodes.runtime import Counts, NodeOptions, NodeRuntime
from talka.nodes.trust import WorkerTrust
from talka.store.files.blobs import Blobs
from talka.store.files.shelf import Shelf
from talka.version import VERSION
from talka.wire.jobs import WorkerFacts
from talka.wire.machines import Tag
from talka.wire.security.roles import Role

LOOK_EVERY_S: Final = 1.0
RESOLVE_EVERY_S: Final = 15.0
ALONE_S: Final = 5.0
ALONE_AGAIN_S: Final = 60.0
DRAIN_S: Final = 30.0
SAMPLE_S: Final = 2.0
"""As often as it beats: nobody hears of more."""
MEMORY_SHARE: Final = 0.8
"""Of the machine's memory, for all cores together; one that wants more is refused it by the kernel."""
FOLDER_KEY: Final = "folder"
STARTS_KEY: Final = "starts"

Said = TypeVar("Said")


class WorkerOptions(NodeOptions, frozen=True, kw_only=True):
    """Its seeds are managers."""

    cores: int | None = None
    capabilities: tuple[str, ...] = ()
    tags: tuple[Tag, ...] = ()
    """What people tell workers apart by. No task asks for them."""
    handlers: tuple[Path, ...] = ()
    """Python files whose functions run tasks of dag jobs."""
    accepts_code: bool = False
    """It runs handlers that travel with dag jobs."""
    drain_s: float = DRAIN_S
    """How long what runs may go on after it was told to stop."""
    core_env: dict[str, str] | None = None
    """The environment of cores; None: that of this process."""
    core_user: str = ""
    """As whom cores run; empty: as this process does, and where that is root's, as a user who may do little."""
    turn_limits: TurnLimits = TURN_LIMITS
    """When a core whose event loop does not turn is told, and when it is replaced."""


class WorkerNode:
    """One worker, from its files to its processes. `run` until `stop` is called."""

    def __init__(self, options: WorkerOptions, on_event: Callable[[Event], None]) -> None:
        if not options.seeds:
            raise Invalid("a worker must know a manager: name one with --seed HOST:PORT")
        self.is_registered = asyncio.Event()
        self._options = options
        self._hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._happened: dict[str, int] = {}
        self.runtime: NodeRuntime[WorkerEffect] = NodeRuntime(
            options,
            Role.WORKER,
            on_event=on_event,
            carry_out=self._carry_out,
            on_refusing=self._on_refusing,
            marks={"worker": options.name},
        )
        with self.runtime.opening():
            self._open()

    def _open(self) -> None:
        options, runtime = self._options, self.runtime
        folder = runtime.folder.path
        self._shelf = Shelf(folder / "worker.db")
        runtime.held.callback(self._shelf.close)
        self._blobs = Blobs(folder / "bundles")
        stored = dict(self._shelf.stored)
        number = int(stored.pop(FOLDER_KEY, b"0")) or runtime.system.getrandbits(61) | 1
        starts = int(stored.pop(STARTS_KEY, b"0")) + 1
        self._shelf.write(((FOLDER_KEY, str(number).encode()), (STARTS_KEY, str(starts).encode())))
        cores = physical_cores() if options.cores is None else options.cores
        if cores < 1:
            raise Invalid(f"cores = {cores} means that nothing would run: give at least 1")
        memory_bytes = psutil.virtual_memory().total
        share_bytes = int(memory_bytes * MEMORY_SHARE) // cores
        self._trust = trust = WorkerTrust(options, runtime.boot)
        if runtime.certificates is not None:
            runtime.certificates.on_renewed += [trust.use, self._seal_again]
        facts = WorkerFacts(
            cores=cores,
            memory_bytes=memory_bytes,
            gpus=_gpus(),
            capabilities=options.capabilities,
            version=VERSION,
            folder=number,
            datacenter=options.datacenter,
            zone=options.zone,
            region=options.region,
            life=starts,
            sealing=trust.sealing,
            accepts_code=options.accepts_code,
        )
        handlers = files_of(options.handlers)
        self.worker = Worker(
            options.name,
            runtime.boot,
            stored,
            facts,
            (),
            runtime.rng,
            boottime_ns(),
            signers=trust.signers,
            variables=trust.variables,
            bundles=self._blobs.digests(),
            handlers=handlers,
            turn_limits=options.turn_limits,
        )
        self.member = runtime.member = ClusterMember(
            group=options.group,
            name=options.name,
            boot=runtime.boot,
            part=self.worker,
            replay_guard=runtime.replay_guard,
            admission=runtime.admission,
        )
        self._candidates = Candidates(options.seeds)
        self._load = LoadSampler(SAMPLE_S, oldest_ns=runtime.disk.oldest_ns)
        self._confinement: Confinement | None = None
        if options.core_env is not None:
            self._confinement = Confinement.of(options.core_user, options.core_env, handlers, number)
            runtime.held.callback(self._confinement.close)
        self._cores = LoadCores(
            self.worker.shards.arm_for,
            share_bytes,
            partial(self._hear, self.worker.on_core_message),
            self._on_core_lines,
            partial(self._hear_while_open, self.worker.on_core_exit),
            self._on_core_turned,
            folder=folder / "cores",
            life=runtime.boot,
            bundles=self._blobs,
            confinement=self._confinement,
        )
        self._handlers = HandlerProcesses(
            share_bytes,
            partial(self._hear_while_open, self.worker.on_handlers_said),
            partial(self._hear_while_open, self.worker.on_handlers_exit),
            self._confinement,
            bundles=self._blobs,
            folder=folder / "handlers",
        )

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def is_loading(self) -> bool:
        """Which handlers its files have is not known yet."""
        return self.worker.facts.is_loading

    @property
    def failure(self) -> TalkaError | None:
        return self.runtime.failure

    # -- life

    async def run(self) -> None:
        hide()
        self.runtime.tell({"event": "starting", "name": self._options.name, "cores": self.worker.facts.cores})
        if self._confinement is not None and self._confinement.alarm:
            self.runtime.tell({"event": "alarm", "kind": "cores", "text": self._confinement.alarm})
        chores = (self._cores.obey(), self._search(), self._find_machine(), self._measure())
        for chore in chores:
            self.runtime.spawn(chore)
        self.runtime.follow_certificates()
        try:
            self.runtime.act(self.worker.start(boottime_ns()))
            await self.runtime.stopped()
            await self._drain()
        finally:
            await self._close()

    def stop(self) -> None:
        """Finish what runs, take nothing new. A second time: end at once."""
        if self.runtime.stopping.is_set():
            self._hurry.set()
        self.runtime.stopping.set()

    async def _drain(self) -> None:
        if self.failure is not None:
            return
        self._drained.clear()  # it may have been drained by order before
        self.runtime.act(self.worker.drain(boottime_ns()))
        waits = [asyncio.create_task(self._drained.wait()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _close(self) -> None:
        await self.runtime.quiet()
        await asyncio.gather(self._cores.close(), self._handlers.close())
        self.runtime.act(self.worker.leave(boottime_ns()))
        await self.runtime.close()
        self.runtime.release()

    def why_not_ready(self) -> str:
        if not self.worker.has_lease:
            return "no manager has given this worker a lease"
        return "this worker finishes what runs and takes nothing new" if self.worker.is_draining else ""

    def metrics(self) -> str:
        """Of this node, in Prometheus' text format."""
        tasks = list(self.worker.shards)
        states = dict.fromkeys(("arming", "armed", "running", "ended"), 0)
        for task in tasks:
            states[task.stage] += 1
        counts: Counts = {
            "worker_cores": self.worker.facts.cores,
            "worker_has_lease": int(self.worker.has_lease),
            "worker_tasks_total": dict(self._happened),
            "worker_messages_refused_total": dict(self.worker.refused),
            "worker_tasks_declined_total": self.worker.shards.declined,
            "worker_reports_refused_total": self.worker.reports_refused,
            "worker_attempts_total": dict(self.worker.handlers.outcomes),
            **self.worker.counts_of_peers(),
            "worker_task_messages_refused_total": dict(self.worker.handlers.refused),
            **self._load.counts(),
            **self.runtime.counts(),
        }
        counts |= {f"worker_tasks_{state}": number for state, number in states.items()}
        counts |= {f"worker_{name}": number for name, number in self.worker.handlers.counts().items()}
        return metrics_text(self.member, boottime_ns(), counts)

    # -- managers

    async def _search(self) -> None:
        """Look where managers may be, as long as none has given a lease; say so when nobody is found."""
        search, loop = self.worker.search, asyncio.get_running_loop()
        resolved_at, alone_until, searches = 0.0, loop.time() + ALONE_S, search.searches
        while True:
            if search.searches != searches:
                searches, alone_until = search.searches, loop.time() + ALONE_S
            if search.is_seeking:
                if loop.time() - resolved_at >= RESOLVE_EVERY_S or not search.has_found:
                    resolved_at = loop.time()
                    with contextlib.suppress(TalkaError):
                        # Name servers that are silent must not keep it from those it was given.
                        if not search.has_found and (given := await self._candidates.at_once()):
                            self._on_found(given)
                        self._on_found(await self._candidates.resolve(boottime_ns()))
                if search.is_alone and loop.time() >= alone_until:
                    alone_until = loop.time() + ALONE_AGAIN_S
                    self._tell_alone()
            await asyncio.sleep(LOOK_EVERY_S)

    def _on_found(self, addresses: list[str]) -> None:
        self.worker.search.found(boottime_ns(), addresses)
        self.runtime.timer.follow()

    def _tell_alone(self) -> None:
        where = ", ".join(self.worker.search.addresses) or ", ".join(self._options.seeds)
        text = (
            f"no manager answers at {where}: is one running there, is its TCP port open, and does it have the "
            f"same secret (key {self.runtime.admission.ring.primary_id}), or certificates as this worker has?"
        )
        self.runtime.tell({"event": "searching", "text": text})

    def _greet(self, address: str) -> None:
        self.runtime.streams.renew(address)
        self.runtime.do(self.runtime.admission.hello(boottime_ns(), address))

    def _on_welcomed(self, address: str, name: str) -> None:
        self.member.note_address(name, address)
        self.runtime.act(self.worker.on_welcomed(boottime_ns(), address, name))

    def _on_managers(self, news: ManagersLearned) -> None:
        for manager in news.managers:
            self.member.note_address(manager.name, manager.address)

    def _on_refusing(self, address: str) -> None:
        name = self.worker.search.name_at(address)
        if name:
            self.runtime.act(self.worker.on_refused(boottime_ns(), name))

    # -- what is to be done

    def _carry_out(self, effect: MemberEffect | WorkerEffect) -> None:
        match effect:
            case Transmit(to=to, lane=lane):
                if lane is not Lane.DATAGRAM:
                    self.runtime.streams.renew(to)  # a manager that was away is tried again with every beat
                self.runtime.transmit(effect)
            case ToNeighbour():
                self.runtime.tell_neighbour(effect)
            case Persist(ticket=ticket, puts=puts):
                # A worker that forgets whom it obeys could obey the wrong one.
                self.runtime.persist(ticket, self._shelf.write, puts)
            case PersistBlob(ticket=ticket, digest=digest, content=content, removed=removed):
                self.runtime.persist(ticket, self._write_blob, digest, content, removed, is_vital=False)
            case CoresUntil(end_ns=end_ns):
                self._cores.supervisor.children.tell_end(end_ns)
                self._handlers.supervisor.children.tell_end(end_ns)
            case TellHandlers() | StartHandlers() | EndHandlers():
                self._handlers.do(effect)
            case StartCore() | TellCore() | KillCore():
                self._cores.do(effect)
            case GreetManager(address=address):
                self._greet(address)
            case LookAtCore(process=process):
                self._cores.supervisor.look(process, partial(self._on_core_look, process))
            case Welcomed(address=address, name=name):
                self._on_welcomed(address, name)
            case HelloDeclined(address=address, reason=reason, text=text):
                self.runtime.refused(address, reason, f"does not let this worker in: {text}")
            case RingChanged(ring=ring):
                self.runtime.save_ring(ring)
            case QuestionAsked():
                pass  # workers do not answer
            case Send():
                raise AssertionError("its member puts every message into a frame")
            case _ if isinstance(effect, WorkerNews):
                self._on_news(effect)
            case _:
                self._tell(event_of(effect))  # the type checker finds an effect that is in no case

    def _on_news(self, news: WorkerNews) -> None:
        if isinstance(news, ManagersLearned):
            self._on_managers(news)
        elif isinstance(news, Drained):
            self._drained.set()
        elif isinstance(news, WorkerLeaseGranted):
            self.is_registered.set()
        self._tell(worker_event_of(news))

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._happened[event["event"]] = self._happened.get(event["event"], 0) + 1
            self.runtime.tell(event)

    def _write_blob(self, digest: str, content: bytes, removed: tuple[str, ...]) -> None:
        self._blobs.put(digest, content)
        for one in removed:
            self._blobs.remove(one)

    # -- cores

    def _hear(self, hear: Callable[[int, int, Said], Sequence[WorkerEffect]], core: int, said: Said) -> None:
        """What a core said, or how it ended."""
        self.runtime.act(hear(boottime_ns(), core, said))

    def _hear_while_open(self, hear: Callable[[int, int, Said], Sequence[WorkerEffect]], core: int, said: Said) -> None:
        if not self.runtime.is_closed:
            self._hear(hear, core, said)

    def _on_core_turned(self, process: int) -> None:
        if not self.runtime.is_closed:
            self.runtime.act(self.worker.on_core_turned(boottime_ns(), process))

    def _on_core_look(self, process: int, look: CoreLook) -> None:
        if not self.runtime.is_closed:
            self.runtime.act(self.worker.on_core_look(boottime_ns(), process, look.cpu_ns, look.stack))

    def _on_core_lines(self, core: int, lines: list[str]) -> None:
        if lines:
            self._hear_while_open(self.worker.on_core_lines, core, lines)

    async def _find_machine(self) -> None:
        found = await asyncio.to_thread(found_machine, self.runtime.folder.path, self._options.tags)
        self.worker.machine.set(found)
        facts = self.worker.facts
        if len(found.gpus) > facts.gpus:
            self.worker.set_facts(msgspec.structs.replace(facts, gpus=len(found.gpus)))

    async def _measure(self) -> None:
        psutil.cpu_percent()
        self._look_at_disk()
        await self._load.run(self._on_sample)

    def _on_sample(self, now: int, level: Level) -> None:
        """What readiness goes by, and whether the guards of the cores live."""
        self._cores.supervisor.children.guard.restart_if_gone()
        self._handlers.supervisor.look()
        load = min(100, round(psutil.cpu_percent()))
        self.worker.memory_percent = self._load.memory_percent
        self.worker.set_facts(msgspec.structs.replace(self.worker.facts, load_percent=load, overload=int(level)))
        self._look_at_disk()

    def _seal_again(self, *_: object) -> None:
        self.worker.set_facts(msgspec.structs.replace(self.worker.facts, sealing=self._trust.sealing))

    def _look_at_disk(self) -> None:
        self.worker.machine.look_at_disk(disk_of(self.runtime.folder.path)[1])
        reason, facts = short_of_disk(self.runtime.folder.path), self.worker.facts
        if reason and not facts.reason:
            self.runtime.tell({"event": "alarm", "kind": "disk", "text": reason})
        if reason != facts.reason:
            state: Literal["healthy", "degraded"] = "degraded" if reason else "healthy"
            self.worker.set_facts(msgspec.structs.replace(facts, state=state, reason=reason))


def _gpus() -> int:
    """Devices of the two makers whose drivers say so in /dev."""
    with contextlib.suppress(OSError):
        names = os.listdir("/dev")
        return sum(name.removeprefix("nvidia").isdigit() for name in names if name.startswith("nvidia"))
    return 0
