"""Who is alive, as one member sees it: SWIM with Lifeguard's additions and a measured lag gate.

It is a hint, never a decision: what needs a majority asks a majority.

SWIM (Das, Gupta, Motivala, DSN 2002) and Lifeguard (arXiv 1707.00788).
docs/decisions/0013-membership-measures-itself.md.
"""

from random import Random
from typing import Final, assert_type

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.membership import anti_entropy
from talka.cluster.membership.gossip import NEWS_LIMIT_BYTES, GossipQueue, Priority
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import ALIVE, DEAD, SUSPECT, Member, Members
from talka.cluster.membership.news import MembershipEffect
from talka.cluster.membership.presets import MembershipConfig
from talka.cluster.membership.prober import Prober
from talka.cluster.membership.updates import UPDATES_LIMIT, Updates
from talka.cluster.membership.verdicts import LIMIT as VERDICTS_LIMIT
from talka.cluster.membership.verdicts import VerdictLog
from talka.cluster.membership.vouched import Notary, Vouched
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.channels import BadMessage
from talka.wire.membership import (
    CHANNEL,
    PAYLOAD_LIMIT_BYTES,
    PEERS_LIMIT,
    Alive,
    Gossip,
    GroupMessage,
    MemberHasLeft,
    MemberRecord,
    MembershipMessage,
    MemberState,
    Nack,
    PeerAddress,
    Ping,
    PingRequest,
    ProbeAck,
    SyncOffer,
    SyncRecords,
    SyncReply,
    WatchGroup,
    WatchReply,
    decode_update,
    encode_update,
)
from talka.wire.packets import DATAGRAM_LIMIT_BYTES, NAME_LIMIT

SEEDS_LIMIT: Final = 64
JOIN_SEEDS: Final = 3
"""Seeds asked at once by one who knows nobody; the first answer is enough."""
OFFERS_PER_S: Final = 128
"""Offers of a sync that are answered; who gets no answer asks again."""
LEAVE_ROUNDS: Final = 20
"""Rounds of gossip after which one is gone, told to everybody or not."""
SYNC_GROUP: Final = 32
"""Above so many members the time between syncs grows by one interval with each doubling."""
PACKET_BYTES: Final = 64
"""A packet's numbers and lengths, beside the group's and the sender's name."""
_GOSSIP: Final = Gossip()


class Membership:
    """One member's part in its group.

    Call `on_message` for every admitted message and `tick` once `next_tick_at` has come; carry out what they return. A
    sender is authenticated before it gets here.
    """

    def __init__(
        self,
        *,
        name: str,
        boot: int,
        address: str,
        zone: str = "",
        group: str,
        config: MembershipConfig,
        rng: Random,
        now: int,
        meta: bytes = b"",
        notary: Notary | None = None,
    ) -> None:
        """`notary`: where there are certificates; then only what members signed is believed of where they are."""
        if not 0 < len(name) <= NAME_LIMIT:
            raise Invalid(f"a member's name has 1 to {NAME_LIMIT} characters, not {len(name)}")
        if len(meta) > PAYLOAD_LIMIT_BYTES:
            raise Invalid(f"member {name}: its metadata has {len(meta)} bytes; give at most {PAYLOAD_LIMIT_BYTES}")
        self.config = config
        self.health = LocalHealth(config)
        self.audit = VerdictLog(maxlen=VERDICTS_LIMIT)
        self.refused_updates = 0
        """Updates of others that could not be read."""
        self._rng = rng
        self._queue = GossipQueue(config)
        self._members = Members(config.members_limit, rng)
        self._vouched = Vouched(notary)
        self._updates = Updates(
            self._vouched.signed(Alive(name, boot, 0, address, zone, meta)),
            config=config,
            members=self._members,
            queue=self._queue,
            health=self.health,
            audit=self.audit,
            vouched=self._vouched,
        )
        self._prober = Prober(
            config=config,
            members=self._members,
            health=self.health,
            rng=rng,
            say=self._say,
            now=now,
        )
        header = PACKET_BYTES + len(group.encode()) + len(name.encode())
        self._room_bytes = min(NEWS_LIMIT_BYTES, DATAGRAM_LIMIT_BYTES - header)
        self._seeds: list[str] = []
        self._join_delay_ns = 2 * config.probe_interval_ns
        self._gossip_at = NEVER
        self._gossiped_at = -NEVER
        self._sync_at = NEVER
        # Soon after joining, then ever later: of those who join together, gossip tells few of all.
        self._sync_delay_ns = config.probe_interval_ns // 2
        self._rejoin_at = now + self._jittered(config.rejoin_interval_ns)
        self._quiet_until = -NEVER
        self._introduction_at = -NEVER
        self._offers = 0
        self._offers_since = -NEVER
        self._gone_at = NEVER
        self.has_left = False
        """The group was told, or was tried to be told, that this member leaves; it says nothing more."""
        self.next_tick_at = 0
        self._schedule(now)

    @property
    def me(self) -> Alive:
        """How this member presents itself."""
        return self._updates.me

    @property
    def disbelieved(self) -> int:
        """Records and states that nobody vouched for."""
        return self._vouched.disbelieved

    @property
    def incarnation(self) -> int:
        return self._updates.me.incarnation

    @property
    def state(self) -> MemberState | None:
        return self._updates.state

    def members(self) -> list[Member]:
        """Everybody known but this member itself, also the dead until they are reaped. To be read, not changed."""
        return self._members.all()

    def alive(self) -> list[Member]:
        """Those alive or suspected, without this member itself."""
        return [member for member in self._members.all() if member.status <= SUSPECT]

    def get(self, name: str) -> Member | None:
        return self._members.get(name)

    def doubt(self, name: str) -> None:
        """Probe this member next, out of its turn."""
        member = self._members.get(name)
        if member is not None:
            self._prober.probe_next(member)

    def join(self, now: int, seeds: list[str]) -> list[MembershipEffect]:
        """Make oneself known through these addresses. They are asked again for ever while they are not alive."""
        if self._updates.is_leaving:
            raise Invalid(f"member {self.me.name} has left; start it anew to join again")
        self.set_seeds(seeds)
        self._updates.tell_of_myself(Priority.JOINED_OR_LEFT)
        out: list[MembershipEffect] = []
        self._rejoin(now, out)
        self._schedule(now)
        return out

    def set_seeds(self, seeds: list[str]) -> None:
        """Ask these from now on, whenever somebody is missing."""
        mine = self.me.address
        self._seeds = [seed for seed in dict.fromkeys(seeds) if seed != mine][:SEEDS_LIMIT]

    def leave(self, now: int) -> list[MembershipEffect]:
        """Say good-bye. Until `has_left`, keep calling `tick`."""
        me = self.me
        self._updates.is_leaving = True
        self._gone_at = now + LEAVE_ROUNDS * self.config.gossip_interval_ns
        self._queue.push(
            me.name, encode_update(MemberHasLeft(me.name, me.boot, me.incarnation)), Priority.JOINED_OR_LEFT
        )
        out: list[MembershipEffect] = []
        self._gossip(now, out)
        self._schedule(now)
        return out

    def set_state(self, now: int, payload: bytes, *, spread: bool = False) -> None:
        """Say this of oneself from now on. Others learn it with probes and syncs; with `spread` at once, by gossip."""
        if len(payload) > PAYLOAD_LIMIT_BYTES:
            raise Invalid(f"member {self.me.name}: a state has at most {PAYLOAD_LIMIT_BYTES} bytes, not {len(payload)}")
        updates = self._updates
        version = updates.state.version + 1 if updates.state else 1
        updates.state = self._prober.state = self._vouched.state(self.me, version, payload)
        if spread:
            updates.tell_of_my_state()
            self._schedule(now)

    def certify_again(self, now: int) -> None:
        """The notary has another certificate from now on: tell all what it says of this member and of its state."""
        updates = self._updates
        updates.me = self._vouched.signed(msgspec.structs.replace(updates.me, incarnation=updates.me.incarnation + 1))
        updates.tell_of_myself(Priority.JOINED_OR_LEFT)
        if updates.state is not None:
            self.set_state(now, updates.state.payload, spread=True)
        self._schedule(now)

    def on_message(
        self,
        now: int,
        source: str,
        sender: str,
        sender_boot: int,
        message: MembershipMessage,
        updates: list[bytes] | list[msgspec.Raw],
        age_ns: int,
    ) -> list[MembershipEffect]:
        """`age_ns` is how long the message waited in this machine before it was handled; -1 where that is not known.

        A `WatchReply` is for a federated prober and does nothing here.
        """
        out: list[MembershipEffect] = []
        self.health.handled(now, age_ns)
        if self.has_left:
            return out
        if isinstance(message, WatchGroup | WatchReply):
            # Of another group: its members, and whatever rides along, are nothing for this view.
            if isinstance(message, WatchGroup):
                self._answer_watch(source, message, out)
            return out
        me = self.me
        if sender == me.name or self._updates.hears_former(now, source, sender, sender_boot, out):
            return out
        self._updates.is_misjudged = False
        for raw in updates[:UPDATES_LIMIT]:
            try:
                update = decode_update(raw)
            except BadMessage:
                self.refused_updates += 1
                break
            self._updates.apply(now, update, raw, sender, sender_boot, out)
        member = self._updates.contact(now, sender, sender_boot, out)
        self._handle(now, source, sender, sender_boot, member, message, out)
        if member is not None and (member.status != ALIVE or self._updates.is_misjudged):
            self._clear_up(now, member, message, out)
        self._schedule(now)
        return out

    def tick(self, now: int) -> list[MembershipEffect]:
        out: list[MembershipEffect] = []
        self.health.ticked(now, now - self.next_tick_at)
        updates, prober = self._updates, self._prober
        if updates.is_leaving:
            if self._gossip_at <= now and not self.has_left:
                self._gossip(now, out)
            self._schedule(now)
            return out
        if prober.next_tick_at <= now:
            missed = prober.tick(now, out)
            # Late itself, a member may have missed an answer that waits in its socket.
            if missed is not None and not self.health.gate_closed(now):
                updates.accuse(now, missed, "no answer", out)
        if updates.next_expiry_at <= now:
            updates.expire(now, out)
        if self._gossip_at <= now:
            self._gossip(now, out)
        if self._sync_at <= now:
            self._sync(now, out)
        if self._rejoin_at <= now:
            self._rejoin(now, out)
        self._schedule(now)
        return out

    def _handle(
        self,
        now: int,
        source: str,
        sender: str,
        boot: int,
        member: Member | None,
        message: GroupMessage,
        out: list[MembershipEffect],
    ) -> None:
        match message:
            case Ping():
                self._answer_ping(source, member, message, out)
            case ProbeAck():
                if member is not None:
                    self._learn(member, message.state, message.knows, out)
                    self._prober.on_ack(now, member, message, out)
            case PingRequest():
                self._prober.on_ping_request(now, source, member, message, out)
            case Nack():
                self._prober.on_nack(sender, message)
            case SyncOffer():
                if (message.me.name, message.me.boot) == (sender, boot):
                    self._answer_offer(now, message, out)
                return
            case SyncReply():
                if (message.me.name, message.me.boot) == (sender, boot):
                    self._answer_reply(now, message, out)
                return
            case SyncRecords():
                self._apply_records(now, message.records, sender, out)
            case _:
                assert_type(message, Gossip)  # its updates were all of it
        if member is None and now >= self._introduction_at and not self._updates.is_leaving:
            # Somebody speaks whom nobody has introduced: exchange views with it.
            self._introduction_at = now + self.config.gossip_interval_ns
            self._offer(source, out)

    def _answer_ping(self, source: str, member: Member | None, ping: Ping, out: list[MembershipEffect]) -> None:
        me = self.me
        if ping.target != me.name or ping.target_boot != me.boot:
            return
        knows = 0
        if member is not None:
            self._learn(member, ping.state, ping.knows, out)
            source, knows = member.address, member.version
        state = self._updates.state
        if state is not None and state.version <= ping.knows:
            state = None
        lane = Lane.STREAM if ping.stream else Lane.DATAGRAM
        # Who missed the refutation would not hear it again: gossip tells it a few times only.
        again = self._updates.is_misjudged
        self._say(out, source, ProbeAck(ping.sequence, state, knows), lane, member, presents_itself=again)

    def _clear_up(self, now: int, member: Member, message: MembershipMessage, out: list[MembershipEffect]) -> None:
        """Tell one that speaks what it stands accused of, or what it missed of this member; the ack of a ping did."""
        misjudged = self._updates.is_misjudged
        if isinstance(message, Ping) or not (self._is_told_of_it(member) or misjudged):
            return
        if now >= member.answered_at + self.config.probe_interval_ns:
            member.answered_at = now
            self._say(out, member.address, _GOSSIP, Lane.DATAGRAM, member, presents_itself=misjudged)

    def _is_told_of_it(self, member: Member) -> bool:
        """Whether it stands accused of something that it can refute."""
        return member.status in (SUSPECT, DEAD)

    def _learn(self, member: Member, state: MemberState | None, knows: int, out: list[MembershipEffect]) -> None:
        mine = self._updates.state
        if mine is not None and member.told < knows <= mine.version:
            member.told = knows
        if state is not None:
            self._updates.learn_state(member, state, out)

    def _answer_offer(self, now: int, offer: SyncOffer, out: list[MembershipEffect]) -> None:
        if now >= self._offers_since + SECOND:
            self._offers_since, self._offers = now, 0
        self._offers += 1
        if self._offers > OFFERS_PER_S or self._updates.is_leaving:
            return
        self._meet(now, offer.me, offer.state, out)
        me, state, known = self.me, self._updates.state, self._members.all()
        buckets = anti_entropy.differing(anti_entropy.digests(me, state, known), offer.digests)
        first, *rest = anti_entropy.pages(anti_entropy.records_in(buckets, me, state, known))
        out.append(Send(CHANNEL, offer.me.address, SyncReply(me, buckets, first), Lane.STREAM, []))
        out.extend(Send(CHANNEL, offer.me.address, SyncRecords(page), Lane.STREAM, []) for page in rest)

    def _answer_reply(self, now: int, reply: SyncReply, out: list[MembershipEffect]) -> None:
        if not self._members.living:
            self._quiet_until = now + self.config.probe_interval_ns
        self._meet(now, reply.me, None, out)
        self._apply_records(now, reply.records, reply.me.name, out)
        if self._updates.is_leaving:
            return
        mine = anti_entropy.records_in(reply.buckets, self.me, self._updates.state, self._members.all())
        news = anti_entropy.not_in(mine, reply.records)
        if news:
            out.extend(
                Send(CHANNEL, reply.me.address, SyncRecords(page), Lane.STREAM, []) for page in anti_entropy.pages(news)
            )

    def _meet(self, now: int, other: Alive, state: MemberState | None, out: list[MembershipEffect]) -> None:
        self._updates.alive(now, other, None, True, out)
        member = self._members.get(other.name)
        if member is not None and member.boot == other.boot and state is not None:
            self._updates.learn_state(member, state, out)

    def _apply_records(self, now: int, records: list[MemberRecord], sender: str, out: list[MembershipEffect]) -> None:
        quiet = now < self._quiet_until
        for record in records:
            self._updates.apply_record(now, record, sender, quiet, out)

    def _answer_watch(self, source: str, watch: WatchGroup, out: list[MembershipEffect]) -> None:
        me = self.me
        if watch.target != me.name:
            return
        state = self._updates.state
        room = self._room_bytes - _bytes_of(me.name) - _state_bytes(state) - PACKET_BYTES
        peers = []
        for member in self._members.pick(PEERS_LIMIT, highest=SUSPECT):
            room -= _bytes_of(member.name) + _bytes_of(member.address) + 20
            if room < 0:
                break
            peers.append(PeerAddress(member.name, member.boot, member.address, int(member.status)))
        reply = WatchReply(watch.sequence, me.name, me.boot, self._members.living + 1, state, peers)
        out.append(Send(CHANNEL, source, reply, Lane.STREAM if watch.stream else Lane.DATAGRAM, []))

    def _say(
        self,
        out: list[MembershipEffect],
        to: str,
        message: MembershipMessage,
        lane: Lane,
        member: Member | None,
        *,
        presents_itself: bool = False,
    ) -> None:
        """With as much news as fits; first of all what the receiver itself stands accused of."""
        updates: list[bytes] = []
        accused = member is not None and member.status != ALIVE
        if not accused and not self._queue.pending and not presents_itself:
            out.append(Send(CHANNEL, to, message, lane, updates))
            return
        room = self._room_bytes - _message_bytes(message)
        if accused:
            assert member is not None
            if self._is_told_of_it(member):
                updates.append(self._updates.accusation_of(member))
                room -= len(updates[0])
        if presents_itself and len(me := self._updates.sign_of_life()) <= room:
            updates.append(me)
            room -= len(me)
        updates += self._queue.take(min(room, self._passes_on_bytes), self._members.living + 1)
        out.append(Send(CHANNEL, to, message, lane, updates))

    @property
    def _passes_on_bytes(self) -> int:
        """News at a time: less, the worse this member does. What is left waits, or others tell it; what a member must
        answer to an accusation is not counted."""
        return self._room_bytes * self.health.level.piggyback_percent // 100

    def _gossip(self, now: int, out: list[MembershipEffect]) -> None:
        config, queue, members = self.config, self._queue, self._members
        self._gossiped_at = now
        self._gossip_at = NEVER
        for member in members.pick(config.gossip_fanout, highest=SUSPECT, dead_since=now - config.gossip_to_dead_ns):
            news = queue.take(self._passes_on_bytes, members.living + 1)
            if not news:
                return
            out.append(Send(CHANNEL, member.address, _GOSSIP, Lane.DATAGRAM, news))

    def _sync(self, now: int, out: list[MembershipEffect]) -> None:
        total = self._members.living + 1
        growth = (total - 1).bit_length() - SYNC_GROUP.bit_length() + 2 if total > SYNC_GROUP else 1
        self._sync_delay_ns = min(2 * self._sync_delay_ns, self.config.sync_interval_ns * growth)
        self._sync_at = NEVER
        for member in self._members.pick(1):
            self._offer(member.address, out)

    def _rejoin(self, now: int, out: list[MembershipEffect]) -> None:
        """Offer a sync to somebody who is not alive in this view: only so does a partition heal that was forgotten."""
        config = self.config
        for name in self._members.reap(now - config.reap_ns):
            self._updates.forget(name)
        known = self._members.all()
        living = {member.address: None for member in known if member.status <= SUSPECT}
        wanted = [seed for seed in self._seeds if seed not in living]
        wanted += [member.address for member in known if member.status == DEAD]
        wanted = list(dict.fromkeys(wanted))
        if living:
            self._join_delay_ns = 2 * config.probe_interval_ns
            delay, most = config.rejoin_interval_ns, 1
        else:
            delay, most = min(self._join_delay_ns, config.rejoin_interval_ns), JOIN_SEEDS
            self._join_delay_ns = 2 * delay
        for address in self._rng.sample(wanted, min(most, len(wanted))):
            self._offer(address, out)
        self._rejoin_at = now + self._jittered(delay)

    def _offer(self, to: str, out: list[MembershipEffect]) -> None:
        me, state = self.me, self._updates.state
        digests = anti_entropy.digests(me, state, self._members.all())
        out.append(Send(CHANNEL, to, SyncOffer(me, state, digests), Lane.STREAM, []))

    def _jittered(self, delay_ns: int) -> int:
        return delay_ns * 3 // 4 + int(self._rng.random() * (delay_ns // 2))

    def _schedule(self, now: int) -> None:
        if self._members.living:
            if self._queue.pending and self._gossip_at == NEVER:
                interval = self.config.gossip_interval_ns * self.health.level.gossip_stretch
                self._gossip_at = max(now, self._gossiped_at + interval)
            if self._sync_at == NEVER:
                self._sync_at = now + self._jittered(self._sync_delay_ns)
        if self._updates.is_leaving:
            self.has_left = not self._queue.pending or not self._members.living or now >= self._gone_at
            self.next_tick_at = NEVER if self.has_left else min(self._gossip_at, self._gone_at)
            return
        next_tick_at = self._prober.next_tick_at
        if self._gossip_at < next_tick_at:
            next_tick_at = self._gossip_at
        if self._updates.next_expiry_at < next_tick_at:
            next_tick_at = self._updates.next_expiry_at
        if self._sync_at < next_tick_at:
            next_tick_at = self._sync_at
        if self._rejoin_at < next_tick_at:
            next_tick_at = self._rejoin_at
        self.next_tick_at = next_tick_at


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


def _state_bytes(state: MemberState | None) -> int:
    return len(state.payload) + len(state.signature) if state else 0


def _message_bytes(message: MembershipMessage) -> int:
    """At least what a message by datagram takes encoded."""
    if isinstance(message, Ping):
        return 64 + _bytes_of(message.target) + _state_bytes(message.state)
    if isinstance(message, ProbeAck):
        return 48 + _state_bytes(message.state)
    if isinstance(message, PingRequest):
        return 48 + _bytes_of(message.target) + _bytes_of(message.address)
    return 16
