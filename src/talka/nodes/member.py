"""A bare member on the network: connects the pure member to its sockets, its files and the clock. Decides nothing."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from talka.clock import boottime_ns, cpu_ns, realtime_ns
from talka.cluster.effects import Lane, Persist, Transmit
from talka.cluster.leadership.lease_terms import OwnLease
from talka.cluster.leadership.timings import TIMINGS
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberJoined, MemberLeft, MemberReturned
from talka.cluster.membership.presets import PRESETS, MembershipConfig
from talka.cluster.membership.vouched import Notary
from talka.control.member.admin_queries import answer
from talka.control.member.admission import Admission, HelloDeclined, RingChanged, Welcomed
from talka.control.member.composite import ClusterMember, JobsPart, QuestionAsked
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.send_queue import Class
from talka.control.member.voter import Voter
from talka.errors import Invalid, TalkaError
from talka.net.datagrams import Datagrams
from talka.net.listening import listening_sockets
from talka.net.streams import Security, Streams
from talka.nodes.auditing import PutDown, nowhere, put_down_change, put_down_news
from talka.nodes.member_events import Event, event_of
from talka.nodes.member_keys import change_event, first_ring, unknown_secrets
from talka.nodes.member_search import Search
from talka.nodes.upkeep import CoreTimer, DiskThread
from talka.store.files.folder import DataFolder
from talka.store.files.keyring import KeyringFile
from talka.store.files.peers import PeerFile, RememberedPeer
from talka.store.files.voter_file import VoterFile
from talka.units import SECOND
from talka.version import VERSION
from talka.wire.addresses import format_address, ip_target
from talka.wire.asking import AskAnswer
from talka.wire.greeting import Self
from talka.wire.security.keys import Keyring, encode_ring
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION as PROTOCOL_VERSION

STALE_INTERVALS: Final = 2
"""Probe intervals after which nobody waits for an answer to a datagram any more."""
LEAVE_S: Final = 3.0
REMEMBER_S: Final = 5.0
REFUSALS_LIMIT: Final = 256
CAPABILITIES: Final = ("challenge", "keyring")
WILDCARDS: Final = ("0.0.0.0", "::")
CLASSES: Final = {
    Lane.STREAM: Class.JOBS,
    Lane.CONTROL: Class.CONTROL,
    Lane.RESULTS: Class.RESULTS,
    Lane.STATISTICS: Class.STATISTICS,
}


class MemberOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bind: tuple[str, int]
    advertise: str = ""
    """Where others reach it, when that is not where it listens."""
    seeds: tuple[str, ...] = ()
    secrets: tuple[str, ...]
    data_dir: Path
    cluster: str = "default"
    environment: str = "default"
    datacenter: str = ""
    voters: tuple[str, ...] = ()
    preset: str = "default"
    certs: Path | None = None
    forget_after_s: float | None = None
    """Drop a dead member from the view after so long; the preset's time when None."""


class MemberNode:
    """One member, from its files to its sockets. `run` until `stop` is called."""

    _own_lease: OwnLease | None = None
    """Of workers; a bare member has none."""

    def __init__(self, options: MemberOptions, on_event: Callable[[Event], None]) -> None:
        self.failure: TalkaError | None = None
        self.put_down: PutDown = nowhere
        """Where it is put down who changed something; whoever keeps an audit log sets it."""
        self._options = options
        self._on_event = on_event
        self._system = random.SystemRandom()
        self._folder = DataFolder(options.data_dir)
        self._votes: VoterFile | None = None
        self._sockets: list[socket.socket] = []
        try:
            self._open()
        except BaseException:
            for sock in self._sockets:
                sock.close()
            if self._votes is not None:
                self._votes.close()
            self._folder.release()
            raise
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()
        self._is_closed = False
        self._timer = CoreTimer(lambda: self.member.next_tick_at, self._on_timer)
        self._disk = DiskThread()
        self._refusals: dict[tuple[str, str], None] = {}
        self._seen: dict[str, RememberedPeer] = {peer.name: peer for peer in self._peers.load()}
        self._remembering: asyncio.TimerHandle | None = None
        self._search = Search(
            options.seeds,
            own=self.address,
            remembered=lambda: [peer.address for peer in list(self._seen.values())],
            greet=lambda address: self._do(self._porter.hello(boottime_ns(), address)),
            join=self._join,
            set_seeds=self._membership.set_seeds,
            is_alone=lambda: not self._membership.alive(),
            tell=self._tell,
            rng=self._system,
        )

    def _open(self) -> None:
        options = self._options
        _check_reachable(options)
        folder = self._folder.path
        self._peers = PeerFile(folder)
        self._keys = KeyringFile(folder)
        security = _security(options)
        group = f"{options.cluster}/{options.environment}"
        is_voter = options.name in options.voters
        if is_voter:
            self._votes = VoterFile(folder, group)
        stream, datagram = listening_sockets(*options.bind)
        self._stream = stream
        self._sockets += (stream, datagram)
        self.address = options.advertise or format_address(*stream.getsockname()[:2])
        self.boot = self._system.getrandbits(61)
        now = boottime_ns()
        # The protocol's dice need not be unguessable, and these are faster.
        rng = random.Random(self._system.getrandbits(128))
        config = _membership_config(options)
        door = ReplayGuard(group=group, name=options.name, boot=self.boot)
        me = Self(
            options.cluster,
            options.environment,
            Role.MANAGER,
            str(PROTOCOL_VERSION),
            list(CAPABILITIES),
            [],
            options.datacenter,
            "",
            VERSION,
        )
        self._porter = Admission(
            door=door,
            seal=Seal(first_ring(options.secrets, self._keys), self.boot, options.secrets),
            name=options.name,
            me=me,
            rng=self._system,
            certified=security is not None,
        )
        self._membership = Membership(
            name=options.name,
            boot=self.boot,
            address=self.address,
            zone=options.datacenter,
            group=group,
            config=config,
            rng=rng,
            now=now,
            notary=_notary(options),
        )
        voter = None
        if self._votes is not None:
            voter = Voter(
                name=options.name,
                voters=options.voters,
                stored=dict(self._votes.stored),
                rng=rng,
                now=now,
                config=TIMINGS.get(options.preset, TIMINGS["default"]),
                own_lease=self._own_lease,
            )
        self.member = ClusterMember(
            group=group,
            name=options.name,
            boot=self.boot,
            membership=self._membership,
            voter=voter,
            part=self._make_part(voter, rng),
            door=door,
            porter=self._porter,
        )
        self._datagrams = Datagrams(
            datagram, self._on_datagram, stale_ns=STALE_INTERVALS * config.probe_interval_ns, on_stale=self._on_stale
        )
        self._streams = Streams(
            on_frame=self._on_stream,
            on_refused=self._on_refused,
            rng=rng,
            security=security,
            on_gone=self._on_gone,
        )

    def _make_part(self, voter: Voter | None, rng: random.Random) -> JobsPart | None:
        """What this node has to do with jobs: nothing, where it is a bare member."""
        return None

    def _join(self, seeds: list[str]) -> None:
        now = boottime_ns()
        self._do(self.member.act(now, list(self._membership.join(now, seeds))))

    def _on_gone(self, address: str, was_there: bool) -> None:
        if was_there:
            self._search.closed(address, self._porter.ring.primary_id)

    # -- life

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await self._streams.listen(self._stream)
        self._datagrams.start(loop)
        self._tell({"event": "ready", "name": self._options.name, "address": self.address, "boot": str(self.boot)})
        unknown = unknown_secrets(self._options.secrets, self._porter.ring)
        for problem in (self._peers.problem, self._keys.problem, self._votes.problem if self._votes else "", unknown):
            if problem:
                self._tell_of_files(problem)
        try:
            self._do(self.member.start(boottime_ns()))
            self._search.start(loop)
            await self._stopping.wait()
            await self._search.stop()  # who leaves must not join
            await self._leave()
        finally:
            await self._search.stop()
            await self._close()

    def stop(self) -> None:
        self._stopping.set()

    async def _leave(self) -> None:
        """Say good-bye, and hand leadership over first."""
        if self.failure is not None:
            return
        now = boottime_ns()
        if self.member.voter is not None:
            self._do(self.member.act(now, self.member.voter.drain(now)))
        self._do(self.member.act(now, list(self._membership.leave(now))))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._gone.wait()

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_closed = True
        self._timer.close()
        if self._remembering is not None:
            self._remembering.cancel()
        self._datagrams.stop(loop)
        await self._streams.close()
        await self._disk.close(LEAVE_S)
        if self.failure is None:
            try:
                self._peers.save(self._peers_now())
            except TalkaError as error:
                self._tell_of_files(str(error))
        if self._votes is not None:
            self._votes.close()
        self._folder.release()
        self._tell({"event": "stopped"})

    # -- what arrives

    def _on_datagram(self, source: str, content: bytes, age_ns: int) -> None:
        self._do(self.member.on_frame(boottime_ns(), source, content, Lane.DATAGRAM, age_ns))

    def _on_stale(self, age_ns: int) -> None:
        """A datagram nobody waits for any more: that this member is so late is all it says."""
        self._membership.health.handled(boottime_ns(), age_ns)

    def _on_stream(self, source: str, frame: bytes, proven: Proven) -> bool:
        opened = self._porter.opened
        self._do(self.member.on_frame(boottime_ns(), source, frame, Lane.STREAM, -1, proven))
        return self._porter.opened > opened

    def _on_timer(self) -> None:
        # Answers may wait in the socket that arrived before the timer was due: they are heard first.
        self._datagrams.drain()
        now = boottime_ns()
        if now >= self.member.next_tick_at:
            self._do(self.member.tick(now))

    # -- what is to be done

    def _do(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Transmit(to=to, frame=frame, lane=lane):
                    if lane is Lane.DATAGRAM:
                        self._datagrams.send(to, frame)
                    else:
                        self._streams.send(to, frame, CLASSES[lane])
                case Persist(ticket=ticket, puts=puts):
                    self._persist(ticket, puts)
                case QuestionAsked():
                    self._answer(effect)
                case Welcomed(address=address):
                    self._search.greeted(address, "")
                case HelloDeclined(address=address, text=text):
                    self._search.greeted(address, text)
                case RingChanged(ring=ring, by=by):
                    self._on_keys(ring, by)
                case _:
                    self._on_news(effect)
        if self._membership.has_left:
            self._gone.set()
        self._timer.follow()

    def _persist(self, ticket: int, puts: tuple[tuple[str, bytes | None], ...]) -> None:
        assert self._votes is not None
        write = self._on_disk(self._votes.write, puts)
        write.add_done_callback(partial(self._on_voted, ticket))

    def _on_voted(self, ticket: int, write: "asyncio.Future[None]") -> None:
        if not write.cancelled() and write.exception() is None and self.failure is None:
            self._do(self.member.on_persisted(boottime_ns(), ticket))

    def _on_written(self, is_vital: bool, write: "asyncio.Future[None]") -> None:
        error = None if write.cancelled() else write.exception()
        if isinstance(error, TalkaError) and not is_vital:
            self._tell_of_files(str(error))
        elif isinstance(error, TalkaError):
            # A voter that cannot write must not go on voting, and one that forgets its keys cannot come back.
            self.failure = self.failure or error
            self._stopping.set()
        elif error is not None:
            raise error

    def _on_disk(self, work: Callable[..., None], *arguments: object, is_vital: bool = True) -> "asyncio.Future[None]":
        write = self._disk.do(work, *arguments)
        write.add_done_callback(partial(self._on_written, is_vital))
        return write

    def _answer(self, asked: QuestionAsked) -> None:
        now = boottime_ns()
        ask = asked.ask
        try:
            content, effects = answer(
                self.member,
                now,
                ask.question,
                asked_with=asked.key_id,
                expected=tuple(self._seen),
                counts=self._counts(),
            )
            reply = AskAnswer(ask.number, "", content)
        except Invalid as error:
            reply, effects = AskAnswer(ask.number, str(error)), []
        if change := change_event(asked, self._porter.ring, reply.problem):
            self._tell(change)
        put_down_change(self.put_down, asked, reply.problem)
        self._do(self.member.answer(now, asked, reply))
        self._do(self.member.act(now, effects))

    def _counts(self) -> dict[str, dict[str, int] | float]:
        datagrams, streams = self._datagrams, self._streams
        return {
            "datagrams_received_total": datagrams.received,
            "datagrams_sent_total": datagrams.sent,
            "datagrams_unsent_total": datagrams.unsent,
            "datagrams_over_rate_total": datagrams.refused,
            "datagrams_stale_total": datagrams.stale,
            "datagram_bytes_received_total": datagrams.received_bytes,
            "datagram_bytes_sent_total": datagrams.sent_bytes,
            "stream_frames_received_total": streams.frames_in,
            "stream_frames_sent_total": streams.frames_out,
            "stream_bytes_sent_total": streams.bytes_out,
            "stream_connections": streams.connections,
            "stream_problems_total": streams.counts,
            "process_cpu_seconds_total": cpu_ns() / SECOND,
            "process_resident_memory_bytes": _resident_bytes(),
        }

    # -- news

    def _on_news(self, news: object) -> None:
        put_down_news(self.put_down, news)
        event = event_of(news)
        if event is not None:
            self._tell(event)
        if isinstance(news, MemberJoined):
            self._streams.renew(news.address)
            self._seen[news.name] = RememberedPeer(news.name, news.address, realtime_ns() // SECOND)
            self._remember_soon()
        elif isinstance(news, MemberReturned):
            self._remember_soon()
        elif isinstance(news, MemberLeft):
            self._seen.pop(news.name, None)
            self._remember_soon()

    def _on_keys(self, ring: Keyring, by: str) -> None:
        if ring.version or ring.era:  # what only the file of secrets says is read from there again
            self._on_disk(self._keys.save, encode_ring(ring))
        self._tell({"event": "keys", "keys": ", ".join(ring.accepted()), "primary": ring.primary_id, "by": by})

    def _on_refused(self, address: str, reason: str, text: str) -> None:
        """Each kind of refusal of each host is told once; the counters have them all."""
        key = (address.rpartition(":")[0], reason)
        if key not in self._refusals and len(self._refusals) < REFUSALS_LIMIT:
            self._refusals[key] = None
            self._tell({"event": "refused", "address": address, "reason": reason, "text": f"{address}: {text}"})

    def _tell_of_files(self, text: str) -> None:
        self._tell({"event": "alarm", "kind": "files", "text": text})

    def _tell(self, event: Event) -> None:
        self._on_event({"at": realtime_ns() / SECOND, **event})

    # -- remembering

    def _remember_soon(self) -> None:
        if self._remembering is None:
            self._remembering = asyncio.get_running_loop().call_later(REMEMBER_S, self._remember)

    def _remember(self) -> None:
        self._remembering = None
        self._search.refresh()
        # Peers that cannot be kept are no reason to stop: others remember this member.
        self._on_disk(self._peers.save, self._peers_now(), is_vital=False)

    def _peers_now(self) -> list[RememberedPeer]:
        now_s = realtime_ns() // SECOND
        for member in self._membership.alive():
            self._seen[member.name] = RememberedPeer(member.name, member.address, now_s)
        return list(self._seen.values())


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _check_reachable(options: MemberOptions) -> None:
    host, port = options.bind
    if host in WILDCARDS and not options.advertise:
        raise Invalid(f"{host} is every address of this machine: say with --advertise HOST:PORT where others reach it")
    target = ip_target(options.advertise) if options.advertise else (host, port)
    if target is None or (options.advertise and target[0] in WILDCARDS):
        raise Invalid(
            f"--advertise {options.advertise} is not where others reach it: give the IP address of this machine and "
            "the port, since members never look up a name that another one says"
        )


def _security(options: MemberOptions) -> Security | None:
    if options.certs is None:
        return None
    from talka.net.identity import Certified

    return Certified(
        options.certs,
        name=options.name,
        role=Role.MANAGER,
        cluster=options.cluster,
        environment=options.environment,
    )


def _notary(options: MemberOptions) -> Notary | None:
    if options.certs is None:
        return None
    from talka.net.notary import CertificateNotary
    from talka.net.tls import cert_files

    files = cert_files(options.certs, options.name)
    return CertificateNotary(files, cluster=options.cluster, environment=options.environment)


def _membership_config(options: MemberOptions) -> MembershipConfig:
    config = PRESETS[options.preset]
    if options.forget_after_s is None:
        return config
    forget_ns = round(options.forget_after_s * SECOND)
    return msgspec.structs.replace(
        config, reap_ns=forget_ns, gossip_to_dead_ns=min(config.gossip_to_dead_ns, forget_ns)
    )
