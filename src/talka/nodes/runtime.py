"""What every node has, whatever it does: its folder and keys, its admission and connections, its timer, its disk, its
chores. A node is a state machine (`ClusterMember` with its parts), a runtime, and a `carry_out` for each effect."""

import asyncio
import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec

from talka.clock import boottime_ns, cpu_ns, realtime_ns
from talka.cluster.effects import HANDLE, Lane, Send, Transmit
from talka.control.member.admission import Admission
from talka.control.member.composite import AsideMessage, ClusterMember, MemberEffect, PartEffect, ToNeighbour
from talka.control.member.metrics import Counted
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.send_queue import Class
from talka.errors import TalkaError
from talka.net.datagrams import Datagrams
from talka.net.listening import listening_sockets
from talka.net.streams import OnGone, Streams
from talka.nodes.member_events import Event
from talka.nodes.member_keys import first_ring
from talka.nodes.own_machine import disk_of
from talka.store.files.folder import DataFolder
from talka.store.files.keyring import KeyringFile
from talka.units import MILLISECOND, NEVER, SECOND
from talka.version import VERSION
from talka.wire.addresses import format_address
from talka.wire.channels import Message
from talka.wire.greeting import Self
from talka.wire.security.keys import Keyring, encode_ring
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION as PROTOCOL_VERSION
from talka.wire.versions import names_until

if TYPE_CHECKING:
    from talka.net.identity import Certified
    from talka.nodes.certificate_watch import CertificateWatch

CLOSE_S: Final = 3.0
"""For writes that are under way when a node ends."""
REFUSALS_LIMIT: Final = 256
CHORES_LIMIT: Final = 64
ASIDE_LIMIT: Final = 64
"""Messages between neighbours in one turn of the loop."""
CLASSES: Final = {
    Lane.STREAM: Class.JOBS,
    Lane.CONTROL: Class.CONTROL,
    Lane.RESULTS: Class.RESULTS,
    Lane.STATISTICS: Class.STATISTICS,
}

Counts = dict[str, Counted]


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of node is told."""

    name: str
    seeds: tuple[str, ...] = ()
    """Where others of its cluster are: HOST:PORT of their node port, names, files."""
    secrets: tuple[str, ...]
    data_dir: Path
    cluster: str = "default"
    environment: str = "default"
    zone: str = ""
    """Where in its datacenter it stands."""
    datacenter: str = ""
    region: str = ""
    certs: Path | None = None

    @property
    def group(self) -> str:
        return f"{self.cluster}/{self.environment}"


class NodeRuntime(Generic[PartEffect]):
    """Set `member` before anything arrives. Then `do` and `act` carry out what it answers; `close`, then `release`."""

    member: ClusterMember[PartEffect]

    def __init__(
        self,
        options: NodeOptions,
        role: Role,
        *,
        on_event: Callable[[Event], None],
        carry_out: Callable[[MemberEffect | PartEffect], None],
        on_done: Callable[[], None] | None = None,
        hears: Callable[[], bool] | None = None,
        on_gone: OnGone | None = None,
        on_refusing: Callable[[str], None] | None = None,
        spare_secrets: tuple[str, ...] = (),
        marks: Event | None = None,
    ) -> None:
        """`on_done` is called after each walk of effects; `hears` says whether what arrives may be looked at; `marks`
        are in every event; keys may be repaired under `spare_secrets`."""
        self.failure: TalkaError | None = None
        self.stopping = asyncio.Event()
        self.is_closed = False
        self.datagrams: Datagrams | None = None
        self.address = ""
        self.system = random.SystemRandom()
        self.boot = self.system.getrandbits(61)
        # The protocol's dice need not be unguessable, and these are faster.
        self.rng = random.Random(self.system.getrandbits(128))
        self.folder = DataFolder(options.data_dir)
        self.held = contextlib.ExitStack()
        """What is let go of at the end, or when the node cannot be opened; what was opened last goes first."""
        self.held.callback(self.folder.release)
        self._on_event = on_event
        self._carry_out = carry_out
        self._on_done = on_done
        self._hears = hears
        self._on_gone = on_gone
        self._marks = marks or {}
        self._walked: list[MemberEffect | PartEffect] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._mistake: BaseException | None = None
        self._refusals: dict[tuple[str, str], None] = {}
        self._listener: socket.socket | None = None
        with self.opening():
            self.keys = KeyringFile(self.folder.path)
            security = _security(options, role)
            self.certificates = _watched(security, options, self.tell)
            """None where there are no certificates."""
            self.replay_guard = ReplayGuard(group=options.group, name=options.name, boot=self.boot)
            me = Self(
                options.cluster,
                options.environment,
                role,
                str(PROTOCOL_VERSION),
                list(names_until(PROTOCOL_VERSION.minor)),
                [],
                options.datacenter,
                "",
                VERSION,
            )
            self.admission = Admission(
                replay_guard=self.replay_guard,
                seal=Seal(first_ring(options.secrets, self.keys), self.boot, spare_secrets),
                name=options.name,
                me=me,
                rng=self.system,
                certified=security is not None,
            )
        self.streams = Streams(
            on_frame=self._on_stream,
            on_refused=self.refused,
            rng=self.rng,
            security=security,
            on_gone=self._on_connection_gone,
            on_refusing=on_refusing,
        )
        self.neighbour: NodeRuntime[Any] | None = None
        """See `be_neighbours`."""
        self._aside: Aside | None = None
        self.timer = TickTimer(lambda: self.member.next_tick_at, self._on_timer)
        self.disk = DiskThread()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """What cannot be opened leaves nothing behind."""
        try:
            yield
        except BaseException:
            self.held.close()
            raise

    def bind(self, place: tuple[str, int], advertise: str, *, stale_ns: int, on_stale: Callable[[int], None]) -> None:
        """Have a port for others: streams, and datagrams that are not older than `stale_ns`."""
        self._listener, datagram = listening_sockets(*place)
        self.held.callback(self._listener.close)
        self.held.callback(datagram.close)
        self.address = advertise or format_address(*self._listener.getsockname()[:2])
        self.datagrams = Datagrams(datagram, self._on_datagram, stale_ns=stale_ns, on_stale=on_stale)

    # -- life

    async def listen(self) -> None:
        """From now on things arrive at the port."""
        if self._listener is not None and self.datagrams is not None:
            await self.streams.listen(self._listener)
            self.datagrams.start(asyncio.get_running_loop())

    def follow_certificates(self) -> None:
        """From now on replaced ones are taken, and people are warned in time."""
        if self.certificates is not None:
            self.spawn(self.certificates.follow())

    def spawn(self, work: Coroutine[Any, Any, None]) -> bool:
        """Something that goes on beside until the node ends. A mistake in it ends the node. False: there are too
        many."""
        if len(self._chores) >= CHORES_LIMIT:
            work.close()
            return False
        chore = asyncio.create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._on_chore_over)
        return True

    def _on_chore_over(self, chore: "asyncio.Task[None]") -> None:
        self._chores.discard(chore)
        if not chore.cancelled() and (error := chore.exception()) is not None:
            self._fail_by_mistake(error)

    def _fail_by_mistake(self, error: BaseException) -> None:
        self._mistake = self._mistake or error
        self.stopping.set()

    async def stopped(self) -> None:
        """Until it is to stop, or cannot go on."""
        await self.stopping.wait()
        if self._mistake is not None:
            raise self._mistake

    def fail(self, error: TalkaError) -> None:
        self.failure = self.failure or error
        self.stopping.set()

    async def quiet(self) -> None:
        """Nothing begins by itself any more."""
        self.is_closed = True
        self.timer.close()
        chores = list(self._chores)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)

    async def close(self) -> None:
        """What was sent and written is out; nothing arrives any more."""
        await self.quiet()
        if self.datagrams is not None:
            self.datagrams.stop(asyncio.get_running_loop())
        await self.streams.close()
        await self.disk.close(CLOSE_S)

    def release(self) -> None:
        self.held.close()
        self.tell({"event": "stopped"})

    # -- what arrives

    def _on_datagram(self, source: str, content: bytes, age_ns: int) -> None:
        self.do(self.member.on_frame(boottime_ns(), source, content, Lane.DATAGRAM, age_ns))

    def _on_stream(self, source: str, frame: bytes, proven: Proven) -> bool:
        if self._hears is not None and not self._hears():
            return True
        opened = self.admission.opened
        self.do(self.member.on_frame(boottime_ns(), source, frame, Lane.STREAM, -1, proven))
        return self.admission.opened > opened

    def _on_connection_gone(self, address: str, was_there: bool) -> None:
        if address.startswith(HANDLE):
            self.admission.agreements.gone(address)
        elif self._on_gone is not None:
            self._on_gone(address, was_there)

    def hear_neighbour(self, boot: int, message: AsideMessage) -> None:
        if not self.is_closed and (self._hears is None or self._hears()):
            self.do(self.member.on_neighbour(boottime_ns(), boot, message))

    def _on_timer(self) -> None:
        if self.datagrams is not None:
            # Answers may wait in the socket that arrived before the timer was due: they are heard first.
            self.datagrams.drain()
        now = boottime_ns()
        if now >= self.member.next_tick_at:
            try:
                self.do(self.member.tick(now))
            except Exception as error:
                # It would be due again at once and fail again, and all else that is due at some instant with it.
                self._fail_by_mistake(error)
                raise

    # -- what is to be done

    def act(self, effects: Sequence[Send[Message] | MemberEffect | PartEffect]) -> None:
        """Carry out what a part answered to a call."""
        self.do(self.member.act(boottime_ns(), effects))

    def do(self, effects: Sequence[MemberEffect | PartEffect]) -> None:
        """In the order in which they were decided: what carrying one out leads to comes after all that is there."""
        if self._walked is not None:
            self._walked += effects
            return
        walked = self._walked = [*effects]
        try:
            for effect in walked:
                self._carry_out(effect)
        finally:
            self._walked = None
            if self._aside is not None:
                self._aside.tell()
            if self._on_done is not None:
                self._on_done()
            self.timer.follow()

    def transmit(self, transmit: Transmit) -> None:
        if transmit.lane is not Lane.DATAGRAM:
            self.streams.send(transmit.to, transmit.frame, CLASSES[transmit.lane])
        elif self.datagrams is not None:
            self.datagrams.send(transmit.to, transmit.frame)

    def be_neighbour(self, other: "NodeRuntime[Any]", aside: "Aside") -> None:
        self.neighbour, self.member.neighbour, self._aside = other, other.member.name, aside

    def tell_neighbour(self, said: ToNeighbour) -> None:
        assert self.neighbour is not None and self._aside is not None, "its member has a name for it"
        self._aside.put(self.neighbour, self.boot, said.message)

    def persist(self, ticket: int, work: Callable[..., None], *arguments: object, is_vital: bool = True) -> None:
        """Write in the order in which it was asked for, and tell the member of the ticket."""
        self.write(work, *arguments, is_vital=is_vital).add_done_callback(partial(self._on_persisted, ticket))

    def _on_persisted(self, ticket: int, write: "asyncio.Future[None]") -> None:
        if self.is_closed or self.failure is not None or write.cancelled():
            return
        error = write.exception()
        if error is None:
            self.do(self.member.on_persisted(boottime_ns(), ticket))
        elif isinstance(error, TalkaError):
            self.do(self.member.on_not_persisted(boottime_ns(), ticket, str(error)))

    def write(self, work: Callable[..., None], *arguments: object, is_vital: bool = True) -> "asyncio.Future[None]":
        """A node that cannot do what is vital must not go on; that it could not do what is not, is told."""
        write = self.disk.do(work, *arguments)
        write.add_done_callback(partial(self._on_written, is_vital))
        return write

    def _on_written(self, is_vital: bool, write: "asyncio.Future[None]") -> None:
        error = None if write.cancelled() else write.exception()
        if isinstance(error, TalkaError) and is_vital:
            self.fail(error)
        elif isinstance(error, TalkaError):
            self.tell_of_files(str(error))
        elif error is not None:
            raise error

    def save_ring(self, ring: Keyring) -> None:
        """A node that forgets its keys cannot come back."""
        if ring.version or ring.era:  # what only the file of secrets says is read from there again
            self.write(self.keys.save, encode_ring(ring))

    # -- what is told

    def refused(self, address: str, reason: str, text: str) -> None:
        """Each kind of refusal of each host is told once; the counters have them all."""
        key = (address.rpartition(":")[0], reason)
        if key not in self._refusals and len(self._refusals) < REFUSALS_LIMIT:
            self._refusals[key] = None
            self.tell({"event": "refused", "address": address, "reason": reason, "text": f"{address}: {text}"})

    def tell_of_files(self, text: str) -> None:
        self.tell({"event": "alarm", "kind": "files", "text": text})

    def tell(self, event: Event) -> None:
        self._on_event({"at": realtime_ns() / SECOND, **self._marks, **event})

    def counts(self) -> Counts:
        """Metrics of what every node has."""
        streams, (disk_bytes, free_bytes) = self.streams, disk_of(self.folder.path)
        certificates = (
            {} if self.certificates is None else {"certificate_expires_seconds": self.certificates.expires_s()}
        )
        return {
            **certificates,
            "stream_frames_received_total": streams.frames_in,
            "stream_frames_sent_total": streams.frames_out,
            "stream_bytes_sent_total": streams.bytes_out,
            "stream_connections": streams.connections,
            "stream_problems_total": streams.counts,
            "stream_breakers": streams.breakers(),
            "disk_bytes": disk_bytes,
            "disk_free_bytes": free_bytes,
            "process_cpu_seconds_total": cpu_ns() / SECOND,
        }


def be_neighbours(one: NodeRuntime[Any], other: NodeRuntime[Any]) -> None:
    """Two nodes of one loop: what they say to each other of tasks needs no frame.

    Decision: docs/decisions/0057-neighbours-need-no-frames.md."""
    aside = Aside()
    one.be_neighbour(other, aside)
    other.be_neighbour(one, aside)


class Aside:
    """What two neighbours have said to each other and have not heard yet, in the order in which it was said.

    It is heard when the effects have been carried out in the midst of which it was said, and never within: what comes
    of it would be decided before they are done. What waits is bounded by what the two may say before they are
    answered."""

    def __init__(self) -> None:
        self._said: deque[tuple[NodeRuntime[Any], int, AsideMessage]] = deque()
        self._is_told = False

    def put(self, to: "NodeRuntime[Any]", boot: int, message: AsideMessage) -> None:
        self._said.append((to, boot, message))

    def tell(self) -> None:
        """Let it be heard, and what is said because of it, unless somebody does already. A long exchange goes on in
        the next turn of the loop, as others wait too."""
        said = self._said
        if self._is_told or not said:
            return
        self._is_told = True
        try:
            for _ in range(ASIDE_LIMIT):
                to, boot, message = said.popleft()
                try:
                    to.hear_neighbour(boot, message)
                except Exception as error:  # noqa: BLE001 - it is no mistake of who said it, in whose turn this is
                    context = {"message": "a neighbour was not heard", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
                if not said:
                    return
            asyncio.get_running_loop().call_soon(self.tell)
        finally:
            self._is_told = False


def _watched(
    security: "Certified | None", options: NodeOptions, tell: Callable[[Event], None]
) -> "CertificateWatch | None":
    if security is None or options.certs is None:
        return None
    from talka.nodes.certificate_watch import CertificateWatch

    return CertificateWatch(
        security,
        options.certs,
        name=options.name,
        cluster=options.cluster,
        environment=options.environment,
        tell=tell,
    )


def _security(options: NodeOptions, role: Role) -> "Certified | None":
    if options.certs is None:
        return None
    from talka.net.identity import Certified

    return Certified(
        options.certs, name=options.name, role=role, cluster=options.cluster, environment=options.environment
    )


class TickTimer:
    """Calls `fire` once the state machine's next tick has come. Say `follow` after everything it was told.

    It goes by whole milliseconds. So it asks for the next tick once in a millisecond, however much the machine was told
    in it: a busy node is told thousands of things a second, and to ask costs as much as many of them."""

    def __init__(self, next_tick_at: Callable[[], int], fire: Callable[[], None]) -> None:
        self._next_tick_at = next_tick_at
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._at = NEVER
        self._is_over = False
        self._asked_ns = -NEVER
        self._asking: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def follow(self) -> None:
        if self._asking is not None:
            return
        now = boottime_ns()
        if now - self._asked_ns >= MILLISECOND:
            self._ask(now)
        elif not self._is_over:
            self._asking = asyncio.get_running_loop().call_later(0.001, self._ask_later)

    def _ask_later(self) -> None:
        self._asking = None
        self._ask(boottime_ns())

    def _ask(self, now: int) -> None:
        self._asked_ns = now
        at = self._next_tick_at()
        if at == self._at or self._is_over:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = at
        if at < NEVER:
            self._wait(now)

    def _wait(self, now: int) -> None:
        # In whole milliseconds, rounded up: uvloop rounds to the nearest.
        delay_ms = -(-max(0, self._at - now) // MILLISECOND)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_due)

    def _on_due(self) -> None:
        now = boottime_ns()
        if now < self._at:  # uvloop counts from the millisecond that has begun: up to one too early
            self._wait(now)
            return
        self._handle, self._at = None, NEVER
        try:
            self._fire()
        finally:
            self.follow()

    def close(self) -> None:
        self._is_over = True
        for handle in (self._handle, self._asking):
            if handle is not None:
                handle.cancel()
        self._handle = self._asking = None


class DiskThread:
    """One write after the other, in a thread of its own: a slow disk must not keep the node from answering."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._writes: dict[asyncio.Future[None], int] = {}
        """Those that are not over, oldest first, and when they were asked for."""

    @property
    def is_idle(self) -> bool:
        return not self._writes

    def do(self, work: Callable[..., None], *arguments: object) -> "asyncio.Future[None]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="disk")
        write = asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *arguments))
        self._writes[write] = boottime_ns()
        write.add_done_callback(self._on_over)
        return write

    def _on_over(self, write: "asyncio.Future[None]") -> None:
        del self._writes[write]

    def oldest_ns(self, now: int) -> int:
        """For how long the oldest write is waited for."""
        return now - next(iter(self._writes.values())) if self._writes else 0

    async def written(self, within_s: float | None = None) -> None:
        """Until all that was asked for so far is done, well or not."""
        if self._writes:
            await asyncio.wait(set(self._writes), timeout=within_s)

    async def close(self, within_s: float) -> None:
        await self.written(within_s)
        if self._pool is not None:
            self._pool.shutdown(wait=True)
