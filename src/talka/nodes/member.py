"""A bare member on the network: connects the pure member to its sockets, its files and the clock. Decides nothing."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final, Generic

import msgspec

from talka.clock import boottime_ns, realtime_ns
from talka.cluster.effects import Persist, PersistBlob, Transmit
from talka.cluster.leadership.lease_terms import OwnLease
from talka.cluster.leadership.timings import TIMINGS
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberJoined, MemberLeft, MemberReturned
from talka.cluster.membership.presets import PRESETS, MembershipConfig
from talka.cluster.membership.vouched import Notary
from talka.control.member.admin_queries import MemberFacts, answer
from talka.control.member.admission import HelloDeclined, RingChanged, Welcomed
from talka.control.member.announcement import ManagerPhase
from talka.control.member.composite import (
    ClusterMember,
    JobsPart,
    MemberEffect,
    NodeNews,
    PartEffect,
    QuestionAsked,
    ToNeighbour,
)
from talka.control.member.role_check import RoleRefused
from talka.control.member.voter import Voter
from talka.errors import Invalid, TalkaError
from talka.nodes.auditing import PutDown, nowhere, put_down_change, put_down_refusal
from talka.nodes.member_events import Event, event_of
from talka.nodes.member_keys import change_event, unknown_secrets
from talka.nodes.member_search import Search
from talka.nodes.runtime import Counts, NodeOptions, NodeRuntime
from talka.store.files.peers import PeerFile, RememberedPeer
from talka.store.files.voter_file import VoterFile
from talka.units import SECOND
from talka.wire.addresses import ip_target
from talka.wire.asking import AskAnswer
from talka.wire.condition import NodeCondition
from talka.wire.security.roles import Role

STALE_INTERVALS: Final = 2
"""Probe intervals after which nobody waits for an answer to a datagram any more."""
LEAVE_S: Final = 3.0
REMEMBER_S: Final = 5.0
WILDCARDS: Final = ("0.0.0.0", "::")


class MemberOptions(NodeOptions, frozen=True, kw_only=True):
    bind: tuple[str, int]
    advertise: str = ""
    """Where others reach it, when that is not where it listens."""
    voters: tuple[str, ...] = ()
    preset: str = "default"
    forget_after_s: float | None = None
    """Drop a dead member from the view after so long; the preset's time when None."""


class MemberNode(Generic[PartEffect]):
    """One member, from its files to its sockets. `run` until `stop` is called. A bare one, `MemberNode[Never]`, has no
    part that has to do with jobs."""

    _own_lease: OwnLease | None = None
    """Of workers; a bare member has none."""

    def __init__(
        self, options: MemberOptions, on_event: Callable[[Event], None], *, remember_s: float = REMEMBER_S
    ) -> None:
        self._remember_s = remember_s
        self.put_down: PutDown = nowhere
        """Where it is put down who changed something; whoever keeps an audit log sets it."""
        self.options = options
        self._votes: VoterFile | None = None
        self._gone = asyncio.Event()
        self._remembering: asyncio.TimerHandle | None = None
        self.runtime: NodeRuntime[PartEffect] = NodeRuntime(
            options,
            Role.MANAGER,
            on_event=on_event,
            carry_out=self._carry_out,
            on_done=self._look_whether_gone,
            hears=self._hears,
            on_gone=self._on_gone,
            spare_secrets=options.secrets,
        )
        with self.runtime.opening():
            self._open()
        self._seen: dict[str, RememberedPeer] = {peer.name: peer for peer in self._peers.load()}
        self._search = Search(
            options.seeds,
            own=self.runtime.address,
            remembered=lambda: [peer.address for peer in list(self._seen.values())],
            greet=lambda address: self.runtime.do(self.runtime.admission.hello(boottime_ns(), address)),
            join=lambda seeds: self.runtime.act(self._membership.join(boottime_ns(), seeds)),
            set_seeds=self._membership.set_seeds,
            is_alone=lambda: not self._membership.alive(),
            tell=self.runtime.tell,
            rng=self.runtime.system,
        )

    def _open(self) -> None:
        options, runtime = self.options, self.runtime
        _check_reachable(options)
        folder = runtime.folder.path
        self._peers = PeerFile(folder)
        config, now = _membership_config(options), boottime_ns()
        if options.name in options.voters:
            self._votes = VoterFile(folder, options.group)
            runtime.held.callback(self._votes.close)
        runtime.bind(
            options.bind,
            options.advertise,
            stale_ns=STALE_INTERVALS * config.probe_interval_ns,
            on_stale=self._on_stale,
        )
        self._membership = Membership(
            name=options.name,
            boot=runtime.boot,
            address=runtime.address,
            zone=options.zone or options.datacenter,
            group=options.group,
            config=config,
            rng=runtime.rng,
            now=now,
            notary=self._notary(),
        )
        voter = None
        if self._votes is not None:
            voter = Voter(
                name=options.name,
                voters=options.voters,
                stored=dict(self._votes.stored),
                rng=runtime.rng,
                now=now,
                config=TIMINGS.get(options.preset, TIMINGS["default"]),
                own_lease=self._own_lease,
            )
        self.member = runtime.member = ClusterMember(
            group=options.group,
            name=options.name,
            boot=runtime.boot,
            membership=self._membership,
            voter=voter,
            part=self._make_part(voter),
            replay_guard=runtime.replay_guard,
            admission=runtime.admission,
            announced=self._announcement,
        )
        if self.member.announcer is not None:
            self.member.announcer.region = options.region

    def _announcement(self, now: int) -> tuple[NodeCondition, ManagerPhase]:
        """How its part does; a bare member has none."""
        return NodeCondition(), ""

    @property
    def failure(self) -> TalkaError | None:
        return self.runtime.failure

    def _notary(self) -> Notary | None:
        options, watch = self.options, self.runtime.certificates
        if options.certs is None or watch is None:
            return None
        from talka.net.notary import CertificateNotary
        from talka.net.tls import cert_files

        files = cert_files(options.certs, options.name)
        notary = CertificateNotary(files, cluster=options.cluster, environment=options.environment)
        watch.on_renewed += [notary.use, self._certify_again]
        return notary

    def _certify_again(self, *_: object) -> None:
        self._membership.certify_again(boottime_ns())
        self.runtime.timer.follow()

    def _make_part(self, voter: Voter | None) -> JobsPart[PartEffect] | None:
        """What this node has to do with jobs: nothing, where it is a bare member."""
        return None

    def _hears(self) -> bool:
        """Whether what arrives on streams may be looked at."""
        return True

    def _on_gone(self, address: str, was_there: bool) -> None:
        if was_there:
            self._search.closed(address, self.runtime.admission.ring.primary_id)

    # -- life

    async def run(self) -> None:
        runtime = self.runtime
        await runtime.listen()
        runtime.follow_certificates()
        runtime.tell(
            {"event": "ready", "name": self.options.name, "address": runtime.address, "boot": str(runtime.boot)}
        )
        unknown = unknown_secrets(self.options.secrets, runtime.admission.ring)
        problems = (self._peers.problem, runtime.keys.problem, self._votes.problem if self._votes else "", unknown)
        for problem in filter(None, problems):
            runtime.tell_of_files(problem)
        try:
            runtime.do(self.member.start(boottime_ns()))
            self._search.start(asyncio.get_running_loop())
            await runtime.stopped()
            await self._search.stop()  # who leaves must not join
            await self._leave()
        finally:
            await self._search.stop()
            await self._close()

    def stop(self) -> None:
        self.runtime.stopping.set()

    async def _leave(self) -> None:
        """Say good-bye, and hand leadership over first."""
        if self.failure is not None:
            return
        if self.member.voter is not None:
            self.runtime.act(self.member.voter.drain(boottime_ns()))
        self.runtime.act(self._membership.leave(boottime_ns()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._gone.wait()

    def _look_whether_gone(self) -> None:
        if self._membership.has_left:
            self._gone.set()

    async def _close(self) -> None:
        if self._remembering is not None:
            self._remembering.cancel()
        await self.runtime.close()
        if self.failure is None:
            try:
                self._peers.save(self._peers_now())
            except TalkaError as error:
                self.runtime.tell_of_files(str(error))
        self.runtime.release()

    def _on_stale(self, age_ns: int) -> None:
        """A datagram nobody waits for any more: that this member is so late is all it says."""
        self._membership.health.handled(boottime_ns(), age_ns)

    # -- what is to be done

    def _carry_out(self, effect: MemberEffect | PartEffect) -> None:
        """Who has a part carries out what that asks for, and leaves the rest to `_carry_out_own`."""
        assert isinstance(effect, MemberEffect), "a bare member has no part"
        self._carry_out_own(effect)

    def _carry_out_own(self, effect: MemberEffect) -> None:
        match effect:
            case Transmit():
                self.runtime.transmit(effect)
            case ToNeighbour():
                self.runtime.tell_neighbour(effect)
            case Persist(ticket=ticket, puts=puts):
                assert self._votes is not None
                self.runtime.persist(ticket, self._votes.write, puts)
            case PersistBlob():
                raise AssertionError("only a part that has to do with jobs has blobs")
            case QuestionAsked():
                self._answer(effect)
            case Welcomed(address=address):
                self._search.greeted(address, "")
            case HelloDeclined(address=address, text=text):
                self._search.greeted(address, text)
            case RingChanged(ring=ring, by=by):
                self.runtime.save_ring(ring)
                facts = {"keys": ", ".join(ring.accepted()), "primary": ring.primary_id, "by": by}
                self.runtime.tell({"event": "keys", **facts})
            case _:
                self._on_news(effect)  # the type checker finds an effect that is in no case

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
                counts=self.counts(),
                workers=self._workers_heard(now),
            )
            reply = AskAnswer(ask.number, "", content)
        except Invalid as error:
            reply, effects = AskAnswer(ask.number, str(error)), []
        if change := change_event(asked, self.runtime.admission.ring, reply.problem):
            self.runtime.tell(change)
        put_down_change(self.put_down, asked, reply.problem)
        if effects:
            self.runtime.act(effects)
            self.runtime.spawn(self._answer_once_written(asked, reply))  # who is not answered asks again
        else:
            self.runtime.do(self.member.answer(now, asked, reply))

    async def _answer_once_written(self, asked: QuestionAsked, reply: AskAnswer) -> None:
        """Whoever hears that keys were changed may rely on it, whatever becomes of this process."""
        await self.runtime.disk.written()
        if self.failure is None:
            self.runtime.do(self.member.answer(boottime_ns(), asked, reply))

    def _workers_heard(self, now: int) -> list[MemberFacts]:
        """None speaks to a bare member."""
        return []

    def counts(self) -> Counts:
        """Metrics of this node."""
        datagrams = self.runtime.datagrams
        assert datagrams is not None
        return {
            "datagrams_received_total": datagrams.received,
            "datagrams_sent_total": datagrams.sent,
            "datagrams_unsent_total": datagrams.unsent,
            "datagrams_over_rate_total": datagrams.refused,
            "datagrams_stale_total": datagrams.stale,
            "datagram_bytes_received_total": datagrams.received_bytes,
            "datagram_bytes_sent_total": datagrams.sent_bytes,
            **self.runtime.counts(),
            "process_resident_memory_bytes": _resident_bytes(),
        }

    # -- news

    def _on_news(self, news: NodeNews) -> None:
        if isinstance(news, RoleRefused):
            put_down_refusal(self.put_down, news)
        event = event_of(news)
        if event is not None:
            self.runtime.tell(event)
        match news:
            case MemberJoined(name=name, address=address):
                self.runtime.streams.renew(address)
                self._seen[name] = RememberedPeer(name, address, realtime_ns() // SECOND)
                self._remember_soon()
            case MemberReturned():
                self._remember_soon()
            case MemberLeft(name=name):
                self._seen.pop(name, None)
                self._remember_soon()
            case _:
                pass

    # -- remembering

    def _remember_soon(self) -> None:
        if self._remembering is None:
            self._remembering = asyncio.get_running_loop().call_later(self._remember_s, self._remember)

    def _remember(self) -> None:
        self._remembering = None
        self._search.refresh()
        # Peers that cannot be kept are no reason to stop: others remember this member.
        self.runtime.write(self._peers.save, self._peers_now(), is_vital=False)

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


def _membership_config(options: MemberOptions) -> MembershipConfig:
    config = PRESETS[options.preset]
    if options.forget_after_s is None:
        return config
    forget_ns = round(options.forget_after_s * SECOND)
    return msgspec.structs.replace(
        config, reap_ns=forget_ns, gossip_to_dead_ns=min(config.gossip_to_dead_ns, forget_ns)
    )
