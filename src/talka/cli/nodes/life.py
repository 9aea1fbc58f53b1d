"""A manager, a worker, or both with their API, in one process: from their start to a signal and to their end."""

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.applications import Starlette

from talka.cli.nodes.member import Printer, mishap
from talka.cli.nodes.private import own_user
from talka.cli.output import tell
from talka.client.requests import Control
from talka.clock import realtime_ns
from talka.cluster.leadership.lease_terms import OtherLease
from talka.control.clients.connections import WANTED_FILES
from talka.engine.process_start import new_event_loop
from talka.net.descriptors import ADVICE
from talka.nodes.control import ManagerControl
from talka.nodes.manager import ManagerNode, ManagerOptions
from talka.nodes.member_events import WORDS, Event, sentence_of
from talka.nodes.runtime import be_neighbours
from talka.nodes.worker import WorkerNode, WorkerOptions
from talka.units import SECOND
from talka.web.app import make_app
from talka.web.audit import ApiAudit
from talka.web.auth import Tokens
from talka.web.health import make_health_app
from talka.web.server import WHOLE, ListenGranted, serve
from talka.work.outcome import ExitCode

OWN_WORDS: Final = {
    "api": "the API is at {url}",
    "probes": "probes and metrics are at {url}",
    "few-files": (
        "this process may have {files} files open, so at most {connections} connections are served at "
        "once, not {usual}: raise the limit to {wanted} (" + ADVICE + ")"
    ),
    "starting": "worker {name} starts, with {cores} cores",
    "up": "ready at {address} with {cores} cores; try: talka submit FILE --to {address}",
    "open": "other users of this machine can submit to it as well: talka up --private keeps them out",
    "private": "only {user} can use it: commands of this user find its token by themselves",
    "stopping": "stopping: finishes what runs; a second signal ends it at once",
}
LOOK_S: Final = 0.02
"""Between two looks at whether all is ready."""
ENOUGH: Final = ListenGranted(WHOLE, WANTED_FILES, is_short=False)
INNER: Final = frozenset(
    {"ready", "api", "leader", "elected", "stepped-down", "keys", "starting", "lease", "worker-registered", "searching"}
)
"""Events that say nothing to whoever has everything on one machine."""
INNER_DECISIONS: Final = ("busy", "healthy")
"""Decisions about the worker that are as little: every load test makes its processors busy, and there is no other
worker to take instead."""


@dataclass(frozen=True, slots=True)
class Api:
    """Where a manager answers clients, and who may ask."""

    listener: socket.socket
    advertised: str
    auth: Tokens | None
    tls: ssl.SSLContext | None
    granted: ListenGranted = ENOUGH

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.advertised}"


class ReadyWithWorker:
    """A manager's `Control` that is ready once the worker beside it is registered and has loaded its handlers."""

    def __init__(self, control: ManagerControl, worker: WorkerNode) -> None:
        self._control = control
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    def is_ready(self) -> str:
        if problem := self._control.is_ready():
            return problem
        if not self._worker.is_registered.is_set():
            return "the worker beside this manager is not registered yet"
        return "the worker beside this manager loads its handlers" if self._worker.is_loading else ""


class Life:
    """The parts of one process. Workers end first: what they finish, managers still have to hear of."""

    def __init__(self, tell_event: Callable[[Event], None]) -> None:
        self.tell_event = tell_event
        self._workers: dict[asyncio.Task[None], WorkerNode] = {}
        self._managers: dict[asyncio.Task[None], ManagerNode] = {}
        self._others: list[asyncio.Task[None]] = []
        self._audits: list[ApiAudit] = []
        self._stop_api = asyncio.Event()
        self._first, self._second = asyncio.Event(), asyncio.Event()

    def add_manager(self, node: ManagerNode, api: Api, worker: WorkerNode | None) -> None:
        control: Control = node.control
        if worker is not None:
            control = cast(Control, ReadyWithWorker(node.control, worker))
        if api.tls is not None and node.runtime.certificates is not None:
            node.runtime.certificates.shown_by(api.tls)
        audit = ApiAudit(node.folder / "audit.log")
        self._audits.append(audit)
        node.put_down = audit.note
        limiter, stopwatch = node.control.limiter, node.control
        app = make_app(control, node.kinds, auth=api.auth, limiter=limiter, stopwatch=stopwatch, audit=audit)

        self._managers[asyncio.create_task(node.run())] = node
        self._others.append(asyncio.create_task(self._serve(app, api, "api")))

    def add_worker(self, node: WorkerNode, probes: Api | None = None) -> None:
        self._workers[asyncio.create_task(node.run())] = node
        if probes is not None:
            app = make_health_app(node.why_not_ready, node.metrics, auth=probes.auth)
            self._others.append(asyncio.create_task(self._serve(app, probes, "probes")))

    async def _serve(self, app: Starlette, api: Api, word: str) -> None:
        """`word` is the event that tells where it is served."""
        files, limits = api.granted.files, api.granted.limits

        def started() -> None:
            self.event(word, url=api.url, address=api.advertised)
            if api.granted.is_short:
                self.event("few-files", files=files, connections=limits.places, usual=WHOLE.places, wanted=WANTED_FILES)

        await serve(app, api.listener, stop=self._stop_api, tls=api.tls, on_started=started, limits=limits)

    def event(self, word: str, **facts: object) -> None:
        self.tell_event({"at": realtime_ns() / SECOND, "event": word, **facts})

    def on_signal(self) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self._first.set()
            self.event("stopping")

    async def run(self) -> int:
        """Until the first signal or until a part ends by itself; the exit code."""
        parts = [*self._workers, *self._managers, *self._others]
        first, second = asyncio.create_task(self._first.wait()), asyncio.create_task(self._second.wait())
        gently: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([first, *parts], return_when=asyncio.FIRST_COMPLETED)
            gently = asyncio.create_task(self._end_gently())
            await asyncio.wait([gently, second], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (first, second, *parts, *([gently] if gently is not None else [])):
                task.cancel()
            ends = await asyncio.gather(*parts, return_exceptions=True)
            for audit in self._audits:
                audit.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end
        nodes: list[WorkerNode | ManagerNode] = [*self._workers.values(), *self._managers.values()]
        told = [node.failure for node in nodes if node.failure is not None]
        for failure in told:
            tell(str(failure))
        is_unfit = any(isinstance(failure, OtherLease) for failure in told)
        return (ExitCode.USAGE if is_unfit else 1) if told else 0

    async def _end_gently(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        if self._workers:
            await asyncio.wait(self._workers)
        for manager in self._managers.values():
            manager.stop()
        self._stop_api.set()
        if rest := [*self._managers, *self._others]:
            await asyncio.wait(rest)


def sentence(event: Event) -> str:
    word = event["event"]
    if word in OWN_WORDS:
        return OWN_WORDS[word].format(**event)
    if word in WORDS:
        return sentence_of(event)
    # One that has no words yet is better told plainly than not at all.
    facts = [f"{name} {value}" for name, value in event.items() if name not in ("at", "event")]
    return f"{word}: {', '.join(facts)}" if facts else str(word)


def brief_sentence(event: Event) -> str:
    is_inner = event["event"] in INNER or (event["event"] == "stopped" and "worker" in event)
    is_inner = is_inner or (event["event"] == "worker-judged" and event["what"] in INNER_DECISIONS)
    return "" if is_inner else sentence(event)


def run_node(life: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(life)


async def live_manager(options: ManagerOptions, api: Api, as_json: bool) -> int:
    with told_life(as_json, sentence) as life:
        manager = ManagerNode(options, life.tell_event)
        await manager.open_store()
        life.add_manager(manager, api, None)
        return await life.run()


async def live_worker(options: WorkerOptions, probes: Api | None, as_json: bool) -> int:
    with told_life(as_json, sentence) as life:
        life.add_worker(WorkerNode(options, life.tell_event), probes)
        return await life.run()


async def live_up(options: ManagerOptions, api: Api, worker_at: Callable[[str], WorkerOptions], as_json: bool) -> int:
    """`worker_at` makes the options of the worker, given the address of the manager."""
    with told_life(as_json, brief_sentence) as life:
        manager = ManagerNode(options, life.tell_event)
        await manager.open_store()
        worker = WorkerNode(worker_at(manager.runtime.address), life.tell_event)
        be_neighbours(manager.runtime, worker.runtime)
        life.add_manager(manager, api, worker)
        life.add_worker(worker)

        async def tell_ready() -> None:
            await all_ready(manager, worker)
            life.event("up", address=api.advertised, url=api.url, cores=worker.worker.facts.cores)
            if api.auth is None:
                life.event("open")
            else:
                life.event("private", user=own_user())

        ready = asyncio.create_task(tell_ready())
        try:
            return await life.run()
        finally:
            ready.cancel()


async def all_ready(manager: ManagerNode, worker: WorkerNode, look_s: float = LOOK_S) -> None:
    """Until whoever is told so finds everything there: the worker with its handlers, what the store had, and a manager
    that leads and knows what the worker can run.

    That is looked at in a later turn of the loop. The turn in which a large store was read may have taken so long that
    the manager has to be elected again."""
    await worker.is_registered.wait()
    dags = manager.dags
    if dags is not None:
        await dags.loaded.wait()
    while True:
        await asyncio.sleep(look_s)
        is_known = not worker.is_loading and (dags is None or dags.has_heard(worker.name))
        if is_known and not manager.why_not_ready():
            return


def calm_collector() -> None:
    """What a node makes and drops are small structures without circles, tens of thousands a second: a collector that
    looks at every 700 of them takes a fifth of its processor. One that looks at 400,000 at once stands still for 0.2
    s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)


@contextlib.contextmanager
def told_life(as_json: bool, sentence: Callable[[Event], str]) -> Iterator[Life]:
    """A life whose events are printed, and which hears signals."""
    loop = asyncio.get_running_loop()
    printer = Printer(loop, as_json, sentence)
    calm_collector()
    loop.set_exception_handler(lambda _, context: tell(mishap(context)))
    life = Life(printer.event)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.on_signal)
    try:
        yield life
    finally:
        printer.finish()
