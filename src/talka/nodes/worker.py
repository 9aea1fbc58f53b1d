"""A worker on the network: connects the pure worker to its core processes, its disk and its managers. Decides nothing."""

import asyncio
import contextlib
import os
import random
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import psutil

from talka.clock import boottime_ns, cpu_ns, monotonic_ns, realtime_ns
from talka.cluster.effects import Lane, Persist, PersistBlob, Transmit
from talka.control.load.core_effects import KillCore, StartCore, TellCore
from talka.control.member.admin_queries import metrics_text
from talka.control.member.admission import Admission, HelloDeclined, RingChanged, Welcomed
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.control.worker.composite import Worker
from talka.control.worker.core_end import CoresUntil
from talka.control.worker.effects import Drained, ManagersLearned
from talka.control.worker.handlers_effects import EndHandlers, ExitFacts, StartHandlers, TellHandlers
from talka.engine.hiding import hide
from talka.engine.load.supervisor import Supervisor
from talka.errors import Invalid, TalkaError
from talka.net.discovery import Candidates
from talka.net.streams import Security, Streams
from talka.nodes.confinement import Confinement
from talka.nodes.handlers import HandlerProcesses, files_of, handler_event_of, short_of_disk
from talka.nodes.job_events import job_event_of
from talka.nodes.local import physical_cores
from talka.nodes.member import CAPABILITIES, CLASSES
from talka.nodes.member_events import Event, event_of
from talka.nodes.member_keys import first_ring
from talka.nodes.trust import WorkerTrust
from talka.nodes.upkeep import CoreTimer, DiskThread
from talka.store.files.blobs import Blobs
from talka.store.files.folder import DataFolder
from talka.store.files.keyring import KeyringFile
from talka.store.files.shelf import Shelf
from talka.units import SECOND
from talka.version import VERSION
from talka.wire.greeting import Self
from talka.wire.jobs import WorkerFacts
from talka.wire.security.keys import encode_ring
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.shards import Arm, BundleSource, FromCore, Go, Totals
from talka.wire.tasks import FromHandlers
from talka.wire.versions import VERSION as PROTOCOL_VERSION

GREET_EVERY_S: Final = 1.0
SEARCH_EVERY_S: Final = 15.0
ALONE_S: Final = 5.0
ALONE_AGAIN_S: Final = 60.0
DRAIN_S: Final = 30.0
CLOSE_S: Final = 3.0
FACTS_EVERY_S: Final = 2.0
MEMORY_SHARE: Final = 0.8
"""Of the machine's memory, for all cores together; one that wants more is refused it by the kernel."""
REFUSALS_LIMIT: Final = 64
FOLDER_KEY: Final = "folder"
STARTS_KEY: Final = "starts"


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seeds: tuple[str, ...]
    """Managers: HOST:PORT of their node port, names, files, as for members."""
    secrets: tuple[str, ...]
    data_dir: Path
    cluster: str = "default"
    environment: str = "default"
    datacenter: str = ""
    certs: Path | None = None
    cores: int | None = None
    capabilities: tuple[str, ...] = ()
    handlers: tuple[Path, ...] = ()
    """Python files whose functions run tasks of dag jobs."""
    drain_s: float = DRAIN_S
    """How long what runs may go on after it was told to stop."""
    core_env: dict[str, str] | None = None
    """The environment of cores; None: that of this process."""
    core_user: str = ""
    """As whom cores run; empty: as this process does, and where that is root's, as a user who may do little."""


class WorkerNode:
    """One worker, from its files to its processes. `run` until `stop` is called."""

    def __init__(self, options: WorkerOptions, on_event: Callable[[Event], None]) -> None:
        if not options.seeds:
            raise Invalid("a worker must know a manager: name one with --seed HOST:PORT")
        self.failure: TalkaError | None = None
        self.is_registered = asyncio.Event()
        self._options = options
        self._on_event = on_event
        self._system = random.SystemRandom()
        self._folder = DataFolder(options.data_dir)
        self._shelf: Shelf | None = None
        try:
            self._open()
        except BaseException:
            if self._shelf is not None:
                self._shelf.close()
            self._folder.release()
            raise
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._is_closed = False
        self._timer = CoreTimer(lambda: self.member.next_tick_at, self._on_timer)
        self._disk = DiskThread()
        self._refusals: dict[str, None] = {}
        self._happened: dict[str, int] = {}
        self._greeted: dict[str, str] = {}
        """Address to name, of managers that welcomed this worker."""
        self._unwelcome: dict[str, None] = {}
        # Bounded by the cores and by one report of each.
        self._orders: asyncio.Queue[StartCore | TellCore | KillCore] = asyncio.Queue()
        self._folders: dict[int, Path] = {}
        self._shift_ns: dict[int, int] = {}
        """Cores count by the monotonic clock, leases by one that does not stand still while the machine sleeps."""

    def _open(self) -> None:
        options = self._options
        folder = self._folder.path
        self._shelf = Shelf(folder / "worker.db")
        self._blobs = Blobs(folder / "bundles")
        self._keys = KeyringFile(folder)
        self._cores_folder = folder / "cores"
        shutil.rmtree(self._cores_folder, ignore_errors=True)
        stored = dict(self._shelf.stored)
        number = int(stored.pop(FOLDER_KEY, b"0")) or self._system.getrandbits(61) | 1
        starts = int(stored.pop(STARTS_KEY, b"0")) + 1
        self._shelf.write(((FOLDER_KEY, str(number).encode()), (STARTS_KEY, str(starts).encode())))
        security = self._security()
        group = f"{options.cluster}/{options.environment}"
        self.boot = self._system.getrandbits(61)
        door = ReplayGuard(group=group, name=options.name, boot=self.boot)
        me = Self(
            options.cluster,
            options.environment,
            Role.WORKER,
            str(PROTOCOL_VERSION),
            list(CAPABILITIES),
            [],
            options.datacenter,
            "",
            VERSION,
        )
        self._porter = Admission(
            door=door,
            seal=Seal(first_ring(options.secrets, self._keys), self.boot),
            name=options.name,
            me=me,
            rng=self._system,
            certified=security is not None,
        )
        rng = random.Random(self._system.getrandbits(128))
        cores = physical_cores() if options.cores is None else options.cores
        if cores < 1:
            raise Invalid(f"cores = {cores} means that nothing would run: give at least 1")
        self._memory_bytes = psutil.virtual_memory().total
        trust = WorkerTrust(
            options.certs,
            name=options.name,
            boot=self.boot,
            cluster=options.cluster,
            environment=options.environment,
        )
        facts = WorkerFacts(
            cores=cores,
            memory_bytes=self._memory_bytes,
            gpus=_gpus(),
            capabilities=options.capabilities,
            version=VERSION,
            folder=number,
            datacenter=options.datacenter,
            life=starts,
            sealing=trust.sealing,
        )
        self.worker = Worker(
            options.name,
            self.boot,
            stored,
            facts,
            (),
            rng,
            boottime_ns(),
            signers=trust.signers,
            variables=trust.variables,
            bundles=self._blobs.digests(),
            handlers=files_of(options.handlers),
        )
        self.member = ClusterMember(
            group=group, name=options.name, boot=self.boot, part=self.worker, door=door, porter=self._porter
        )
        self._streams = Streams(
            on_frame=self._on_stream,
            on_refused=self._on_refused,
            rng=rng,
            security=security,
            on_refusing=self._on_refusing,
        )
        self._candidates = Candidates(options.seeds, remembered=list, own=[])
        self._confinement = confinement = self._confined(number)
        self._supervisor = Supervisor(
            self._on_core_message,
            self._on_core_exit,
            self._on_core_lines,
            has_lease=True,
            confines=None if confinement is None else confinement.confines,
        )
        self._handlers = HandlerProcesses(
            self._share_bytes(cores), self._on_handlers_said, self._on_handlers_exit, confinement
        )

    def _confined(self, number: int) -> Confinement | None:
        options = self._options
        if options.core_env is None:
            return None
        return Confinement.of(options.core_user, options.core_env, files_of(options.handlers), number)

    def _security(self) -> Security | None:
        options = self._options
        if options.certs is None:
            return None
        from talka.net.identity import Certified

        return Certified(
            options.certs,
            name=options.name,
            role=Role.WORKER,
            cluster=options.cluster,
            environment=options.environment,
        )

    # -- life

    async def run(self) -> None:
        hide()
        self._tell({"event": "starting", "name": self._options.name, "cores": self.worker.facts.cores})
        if self._confinement is not None and self._confinement.alarm:
            self._tell({"event": "alarm", "kind": "cores", "text": self._confinement.alarm})
        chores = [
            asyncio.create_task(self._obey()),
            asyncio.create_task(self._search()),
            asyncio.create_task(self._measure()),
        ]
        try:
            self._do(self.member.act(boottime_ns(), self.worker.start(boottime_ns())))
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({stopping, *chores}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for chore in chores:
                if chore.done():
                    chore.result()
            await self._drain()
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await self._close()

    def stop(self) -> None:
        """Finish what runs, take nothing new. A second time: end at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _drain(self) -> None:
        if self.failure is not None:
            return
        self._do(self.member.act(boottime_ns(), self.worker.drain(boottime_ns())))
        waits = [asyncio.create_task(self._drained.wait()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _close(self) -> None:
        self._is_closed = True
        self._timer.close()
        await asyncio.gather(self._supervisor.close(), self._handlers.close())
        self._do(self.member.act(boottime_ns(), self.worker.leave(boottime_ns())))
        await self._streams.close()
        await self._disk.close(CLOSE_S)
        assert self._shelf is not None
        self._shelf.close()
        shutil.rmtree(self._cores_folder, ignore_errors=True)
        if self._confinement is not None:
            self._confinement.close()
        self._folder.release()
        self._tell({"event": "stopped"})

    def why_not_ready(self) -> str:
        if not self.worker.has_lease:
            return "no manager has given this worker a lease"
        return "this worker finishes what runs and takes nothing new" if self.worker.is_draining else ""

    def metrics(self) -> str:
        """Of this node, in Prometheus' text format."""
        streams, tasks = self._streams, list(self.worker.tasks)
        states = dict.fromkeys(("arming", "armed", "running", "ended"), 0)
        for task in tasks:
            states[task.stage] += 1
        counts: dict[str, dict[str, int] | float] = {
            "worker_cores": self.worker.facts.cores,
            "worker_has_lease": int(self.worker.has_lease),
            "worker_tasks_total": dict(self._happened),
            "worker_messages_refused_total": dict(self.worker.refused),
            "worker_tasks_declined_total": self.worker.tasks.declined,
            "worker_attempts_total": dict(self.worker.handlers.outcomes),
            "worker_task_messages_refused_total": dict(self.worker.handlers.refused),
            "stream_frames_received_total": streams.frames_in,
            "stream_frames_sent_total": streams.frames_out,
            "stream_bytes_sent_total": streams.bytes_out,
            "stream_connections": streams.connections,
            "stream_problems_total": streams.counts,
            "process_cpu_seconds_total": cpu_ns() / SECOND,
        }
        counts |= {f"worker_tasks_{state}": number for state, number in states.items()}
        counts |= {f"worker_{name}": number for name, number in self.worker.handlers.counts().items()}
        return metrics_text(self.member, boottime_ns(), counts)

    # -- managers

    async def _search(self) -> None:
        """Greet managers until they know this worker; look for others now and then."""
        looked_at = 0.0
        known: dict[str, None] = {}
        loop = asyncio.get_running_loop()
        alone_until = loop.time() + ALONE_S
        while True:
            if not self._greeted and loop.time() >= alone_until:
                alone_until = loop.time() + ALONE_AGAIN_S
                where = ", ".join(known) or ", ".join(self._options.seeds)
                text = (
                    f"no manager answers at {where}: is one running there, is its TCP port open, and does it have the "
                    f"same secret (key {self._porter.ring.primary_id}), or certificates as this worker has?"
                )
                self._tell({"event": "searching", "text": text})
            if loop.time() - looked_at >= SEARCH_EVERY_S or not known:
                looked_at = loop.time()
                with contextlib.suppress(TalkaError):
                    known |= dict.fromkeys(await self._candidates.resolve(boottime_ns()))
            now = boottime_ns()
            for address in [*known, *self._unwelcome]:
                if address not in self._greeted:
                    self._streams.renew(address)
                    self._do([one for one in self._porter.hello(now, address) if _is_stream(one)])
            await asyncio.sleep(GREET_EVERY_S)

    def _on_welcomed(self, address: str, name: str) -> None:
        self._greeted[address] = name
        self.member.set_address(name, address)
        if name not in self.worker.managers:
            self.worker.set_managers((*self.worker.managers, name))
            self._do(self.member.act(boottime_ns(), self.worker.beat_now(boottime_ns())))

    def _on_managers(self, news: ManagersLearned) -> None:
        for manager in news.managers:
            self.member.set_address(manager.name, manager.address)
            self._greeted.setdefault(manager.address, manager.name)

    def _on_refusing(self, address: str) -> None:
        name = self._greeted.get(address)
        if name is not None:
            self._do(self.member.act(boottime_ns(), self.worker.on_refused(boottime_ns(), name)))

    def _on_refused(self, address: str, reason: str, text: str) -> None:
        key = f"{address}/{reason}"
        if key not in self._refusals and len(self._refusals) < REFUSALS_LIMIT:
            self._refusals[key] = None
            self._tell({"event": "refused", "address": address, "reason": reason, "text": f"{address}: {text}"})

    def _on_stream(self, source: str, frame: bytes, proven: Proven) -> bool:
        opened = self._porter.opened
        self._do(self.member.on_frame(boottime_ns(), source, frame, Lane.STREAM, -1, proven))
        return self._porter.opened > opened

    # -- time

    def _on_timer(self) -> None:
        now = boottime_ns()
        if now >= self.member.next_tick_at:
            self._do(self.member.tick(now))

    # -- what is to be done

    def _do(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Transmit(to=to, frame=frame, lane=lane):
                    if lane is not Lane.DATAGRAM:
                        self._streams.renew(to)  # a manager that was away is tried again with every beat
                        self._streams.send(to, frame, CLASSES[lane])
                case Persist(ticket=ticket, puts=puts):
                    assert self._shelf is not None
                    write = self._disk.do(self._shelf.write, puts)
                    write.add_done_callback(partial(self._on_written, ticket, False))
                case PersistBlob(ticket=ticket, digest=digest, content=content, removed=removed):
                    write = self._disk.do(self._write_blob, digest, content, removed)
                    write.add_done_callback(partial(self._on_written, ticket, True))
                case CoresUntil(end_ns=end_ns):
                    self._supervisor.tell_end(end_ns)
                    self._handlers.tell_end(end_ns)
                case TellHandlers() | StartHandlers() | EndHandlers():
                    self._handlers.do(effect)
                case StartCore() | TellCore() | KillCore():
                    self._orders.put_nowait(effect)
                case Welcomed(address=address, name=name):
                    self._on_welcomed(address, name)
                case HelloDeclined(address=address, reason=reason, text=text):
                    self._on_refused(address, reason, f"does not let this worker in: {text}")
                case RingChanged(ring=ring):
                    self._disk.do(self._keys.save, encode_ring(ring))
                case _:
                    self._on_news(effect)
        self._timer.follow()

    def _on_news(self, news: object) -> None:
        if isinstance(news, ManagersLearned):
            self._on_managers(news)
        elif isinstance(news, Drained):
            self._drained.set()
        event = handler_event_of(news) or job_event_of(news) or event_of(news)
        if event is not None:
            self._happened[event["event"]] = self._happened.get(event["event"], 0) + 1
            if event["event"] == "lease":
                self.is_registered.set()
            self._tell(event)

    def _tell(self, event: Event) -> None:
        self._on_event({"at": realtime_ns() / SECOND, "worker": self._options.name, **event})

    # -- disk

    def _write_blob(self, digest: str, content: bytes, removed: tuple[str, ...]) -> None:
        self._blobs.put(digest, content)
        for one in removed:
            self._blobs.remove(one)

    def _on_written(self, ticket: int, is_blob: bool, write: "asyncio.Future[None]") -> None:
        if self._is_closed or write.cancelled():
            return
        error = write.exception()
        if error is None:
            self._do(self.member.on_persisted(boottime_ns(), ticket))
        elif not isinstance(error, TalkaError):
            raise error
        elif is_blob:
            self._tell({"event": "alarm", "kind": "files", "text": str(error)})
            self._do(self.member.on_not_persisted(boottime_ns(), ticket, str(error)))
        else:
            # A worker that forgets whom it obeys could obey the wrong one.
            self.failure = self.failure or error
            self._stopping.set()

    # -- core processes

    async def _obey(self) -> None:
        """One order after the other: a core is started before it is told anything."""
        while True:
            order = await self._orders.get()
            match order:
                case StartCore(core=core, arm=arm, process=process):
                    arm, folder = self._placed(core, arm, process)
                    await self._supervisor.start(core, arm, process, folder)
                    self._limit_memory(core)
                case TellCore(core=core, message=Go() as go):
                    shift = self._shift_ns[core] = monotonic_ns() - boottime_ns()
                    shifted = Go(go.start_at_ns + shift, go.origin_ns + shift, go.job_origin_ns + shift)
                    self._supervisor.send(core, shifted)
                case TellCore(core=core, message=message):
                    self._supervisor.send(core, message)
                case KillCore(core=core):
                    self._supervisor.end(core)

    def _placed(self, core: int, arm: Arm, process: int) -> tuple[Arm, str | None]:
        """With where its bundle is and may be unpacked; and the folder that is its process's, which unpacks it once: its
        number is that of its first attempt."""
        source, name, confinement = arm.source, f"{process}-{self.boot:x}", self._confinement
        own = None if confinement is None else confinement.folder_for(name)
        folder = self._cores_folder / name if own is None else Path(own)
        if own is not None or isinstance(source, BundleSource):
            self._folders[core] = folder
        if not isinstance(source, BundleSource):
            return arm, own
        path = self._blobs.path(source.digest)
        if confinement is None or own is None:
            self._cores_folder.mkdir(mode=0o700, exist_ok=True)
        else:
            path, folder = confinement.within_reach(path, own), folder / "test"
        source = msgspec.structs.replace(source, path=str(path), folder=str(folder))
        return msgspec.structs.replace(arm, source=source), own

    def _limit_memory(self, core: int) -> None:
        pid = self._supervisor.pids().get(core)
        if pid is None:
            return
        limit = self._share_bytes(self.worker.facts.cores)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended already, or this is not Linux
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))

    def _share_bytes(self, cores: int) -> int:
        return int(self._memory_bytes * MEMORY_SHARE) // cores

    def _on_core_message(self, core: int, message: FromCore) -> None:
        shift = self._shift_ns.get(core, 0)
        if isinstance(message, Totals) and shift:
            message = msgspec.structs.replace(
                message,
                started_at_ns=message.started_at_ns - shift if message.started_at_ns else 0,
                ended_at_ns=message.ended_at_ns - shift if message.ended_at_ns else 0,
                made_at_ns=message.made_at_ns - shift if message.made_at_ns else 0,
            )
        now = boottime_ns()
        self._do(self.member.act(now, self.worker.on_core_message(now, core, message)))

    def _on_core_lines(self, core: int, lines: list[str]) -> None:
        if lines and not self._is_closed:
            now = boottime_ns()
            self._do(self.member.act(now, self.worker.on_core_lines(now, core, lines)))

    def _on_core_exit(self, core: int, cause: str) -> None:
        self._shift_ns.pop(core, None)
        folder = self._folders.pop(core, None)
        if folder is not None and folder not in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        if self._is_closed:
            return
        now = boottime_ns()
        self._do(self.member.act(now, self.worker.on_core_exit(now, core, cause)))

    # -- handler cores

    def _on_handlers_said(self, core: int, message: FromHandlers) -> None:
        if not self._is_closed:
            now = boottime_ns()
            self._do(self.member.act(now, self.worker.on_handlers_said(now, core, message)))

    def _on_handlers_exit(self, core: int, facts: ExitFacts) -> None:
        if not self._is_closed:
            now = boottime_ns()
            self._do(self.member.act(now, self.worker.on_handlers_exit(now, core, facts)))

    async def _measure(self) -> None:
        """What readiness goes by, and whether the guards of the cores live."""
        psutil.cpu_percent()
        while True:
            self._look_at_disk()
            await asyncio.sleep(FACTS_EVERY_S)
            self._supervisor.check_guard()
            self._handlers.look()
            load = min(100, round(psutil.cpu_percent()))
            self.worker.set_facts(msgspec.structs.replace(self.worker.facts, load_percent=load))

    def _look_at_disk(self) -> None:
        reason, facts = short_of_disk(self._folder.path), self.worker.facts
        if reason and not facts.reason:
            self._tell({"event": "alarm", "kind": "disk", "text": reason})
        if reason != facts.reason:
            state: Literal["healthy", "degraded"] = "degraded" if reason else "healthy"
            self.worker.set_facts(msgspec.structs.replace(facts, state=state, reason=reason))


def _is_stream(effect: object) -> bool:
    return isinstance(effect, Transmit) and effect.lane is not Lane.DATAGRAM


def _gpus() -> int:
    """Devices of the two makers whose drivers say so in /dev."""
    with contextlib.suppress(OSError):
        names = os.listdir("/dev")
        return sum(name.removeprefix("nvidia").isdigit() for name in names if name.startswith("nvidia"))
    return 0
