"""A manager, a worker, or both with their API, in one process: from their start to a signal and to their end."""

import asyncio
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
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
ENOUGH: Final = ListenGranted(WHOLE, WANTED_FILES, is_short=False)
INNER: Final = frozenset(
    {"ready", "api", "leader", "elected", "stepped-down", "keys", "starting", "lease", "worker-registered", "searching"}
)
"""Events that say nothing to whoever has everything on one machine."""


class Api:
    """Where a manager answers clients, and who may ask."""

    def __init__(
        self,
        listener: socket.socket,
        advertised: str,
        auth: Tokens | None,
        tls: ssl.SSLContext | None,
        granted: ListenGranted = ENOUGH,
    ) -> None:
        self.granted = granted
        self.listener = listener
        self.advertised = advertised
        self.auth = auth
        self.tls = tls

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.advertised}"


class ReadyWithWorker:
    """A manager's `Control` that is ready once the worker beside it is registered."""

    def __init__(self, control: ManagerControl, worker: WorkerNode) -> None:
        self._control = control
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    def is_ready(self) -> str:
        if problem := self._control.is_ready():
            return problem
        return "" if self._worker.is_registered.is_set() else "the worker beside this manager is not registered yet"


class Life:
    """The parts of one process. Workers end first: what they finish, managers still have to hear of."""

    def __init__(self, tell_event: Callable[[Event], None]) -> None:
        self._tell_event = tell_event
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
        audit = ApiAudit(node.folder / "audit.log")
        self._audits.append(audit)
        node.put_down = audit.note
        app = make_app(control, dags=node.dags, auth=api.auth, limiter=node.control.limiter, audit=audit)

        def started() -> None:
            self.event("api", url=api.url, address=api.advertised)
            self._tell_files(api)

        serving = self._serve(app, api, started)
        self._managers[self._task(node.run())] = node
        self._others.append(self._task(serving))

    def add_worker(self, node: WorkerNode, probes: Api | None = None) -> None:
        self._workers[self._task(node.run())] = node
        if probes is not None:
            app = make_health_app(node.why_not_ready, node.metrics, auth=probes.auth)

            def started() -> None:
                self.event("probes", url=probes.url, address=probes.advertised)
                self._tell_files(probes)

            self._others.append(self._task(self._serve(app, probes, started)))

    async def _serve(self, app: Starlette, api: Api, started: Callable[[], None]) -> None:
        limits = api.granted.limits
        await serve(app, api.listener, stop=self._stop_api, tls=api.tls, on_started=started, limits=limits)

    def _tell_files(self, api: Api) -> None:
        files, limits = api.granted.files, api.granted.limits
        if api.granted.is_short:
            self.event("few-files", files=files, connections=limits.places, usual=WHOLE.places, wanted=WANTED_FILES)

    def event(self, word: str, **facts: object) -> None:
        self._tell_event({"at": realtime_ns() / SECOND, "event": word, **facts})

    def on_signal(self) -> None:
        if self._first.is_set():
            self._second.set()
        else:
            self._first.set()
            self.event("stopping")

    async def run(self) -> int:
        """Until the first signal or until a part ends by itself; the exit code."""
        parts = [*self._workers, *self._managers, *self._others]
        first, second = self._task(self._wait(self._first)), self._task(self._wait(self._second))
        gently: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([first, *parts], return_when=asyncio.FIRST_COMPLETED)
            gently = self._task(self._end_gently())
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
        failures = [node.failure for node in self._workers.values()]
        failures += [node.failure for node in self._managers.values()]
        told = [failure for failure in failures if failure is not None]
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

    async def _wait(self, event: asyncio.Event) -> None:
        await event.wait()

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.create_task(work)


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
    return "" if is_inner else sentence(event)


def run_node(life: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(life)


async def live_manager(options: ManagerOptions, api: Api, as_json: bool) -> int:
    with EventsTold(as_json, sentence) as told:
        node = ManagerNode(options, told.event)
        life = told.life()
        life.add_manager(node, api, None)
        return await life.run()


async def live_worker(options: WorkerOptions, probes: Api | None, as_json: bool) -> int:
    with EventsTold(as_json, sentence) as told:
        node = WorkerNode(options, told.event)
        life = told.life()
        life.add_worker(node, probes)
        return await life.run()


async def live_up(options: ManagerOptions, api: Api, worker_at: Callable[[str], WorkerOptions], as_json: bool) -> int:
    """`worker_at` makes the options of the worker, given the address of the manager."""
    with EventsTold(as_json, brief_sentence) as told:
        manager = ManagerNode(options, told.event)
        worker = WorkerNode(worker_at(manager.runtime.address), told.event)
        life = told.life()
        life.add_manager(manager, api, worker)
        life.add_worker(worker)

        async def tell_ready() -> None:
            await worker.is_registered.wait()
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


def calm_collector() -> None:
    """What a node makes and drops are small structures without circles, tens of thousands a second: a collector that
    looks at every 700 of them takes a fifth of its processor. One that looks at 400,000 at once stands still for 0.2
    s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)


class EventsTold:
    """Prints what happens, and hears signals."""

    def __init__(self, as_json: bool, sentence: Callable[[Event], str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._printer = Printer(self._loop, as_json, sentence)

    @property
    def event(self) -> Callable[[Event], None]:
        return self._printer.event

    def life(self) -> Life:
        life = Life(self._printer.event)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, life.on_signal)
        return life

    def __enter__(self) -> "EventsTold":
        calm_collector()
        self._loop.set_exception_handler(lambda _, context: tell(mishap(context)))
        return self

    def __exit__(self, *exception: object) -> None:
        self._printer.finish()
