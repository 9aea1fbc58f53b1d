"""A member that has to do with jobs: what reaches that part, and what becomes of what it asks for."""

from random import Random

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist, PersistBlob, Send, Transmit
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.control.member.composite import ClusterMember
from talka.control.member.receiver import Receiver
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.units import NEVER
from talka.wire import jobs, leases
from talka.wire.jobs import CHANNEL, Elsewhere, Goodbye, JobMessage, Sync
from talka.wire.leases import LeaseCommand
from talka.wire.packets import decode_packet

TOKEN = (0, 9, 1)


class Clerk:
    """Notes what it is told, and answers what the test says."""

    def __init__(self) -> None:
        self.next_tick_at = NEVER
        self.told: list[object] = []
        self.answer: list[object] = []

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: object = None
    ) -> list[object]:
        return self._note((sender, message, boot, source))

    def on_news(self, now: int, news: object) -> list[object]:
        return self._note(news)

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return self._note(("persisted", ticket))

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[object]:
        return self._note((text, ticket))

    def tick(self, now: int) -> list[object]:
        self.next_tick_at = NEVER
        return self._note(("tick", now))

    def _note(self, told: object) -> list[object]:
        self.told.append(told)
        answer, self.answer = self.answer, []
        return answer


def member_of(
    part: Clerk | None,
    *,
    has_voter: bool = False,
    has_receiver: bool = False,
    addresses: dict[str, str] | None = None,
    **limits: int,
) -> ClusterMember:
    member = ClusterMember(
        group="g",
        name="m1",
        boot=1,
        voter=Voter(name="m1", voters=("m1",), stored={}, rng=Random(1), now=0) if has_voter else None,
        receiver=Receiver({}) if has_receiver else None,
        part=part,
        **limits,
    )
    for name, address in (addresses or {}).items():
        member.note_address(name, address)
    return member


class Peer:
    def __init__(self, name: str, source: str) -> None:
        self.replay_guard, self.source = ReplayGuard(group="g", name=name, boot=77), source

    def say(self, member: ClusterMember, body: bytes, channel: int = jobs.CHANNEL.number) -> list[object]:
        return member.on_frame(0, self.source, self.replay_guard.wrap(channel, body), Lane.STREAM, 0)

    def speak(self, member: ClusterMember, message: JobMessage) -> list[object]:
        return self.say(member, jobs.encode(message))


def sent(effects: list[object]) -> list[tuple[str, JobMessage, Lane]]:
    return [
        (effect.to, jobs.decode(decode_packet(effect.frame).body), effect.lane)
        for effect in effects
        if isinstance(effect, Transmit)
    ]


def to(member: ClusterMember, *names: str) -> list[str]:
    """Where what is said to these goes."""
    return [
        address for address, _, _ in sent(member.act(0, [Send(CHANNEL, name, Sync(1), Lane.STREAM) for name in names]))
    ]


def led_by(member: ClusterMember) -> tuple[int, list[object]]:
    """Let a member that votes alone be elected, and its disk write at once; when, and all that came of it."""
    todo, found, now = member.start(0), list[object](), 0
    while not any(isinstance(effect, Elected) for effect in found):
        for effect in todo:
            found.append(effect)
            if isinstance(effect, Persist):
                todo += member.on_persisted(now, effect.ticket)
        now = max(now, member.next_tick_at)
        todo = member.tick(now)
    return now, found


def test_a_message_about_jobs_reaches_the_part_that_has_to_do_with_them() -> None:
    clerk = Clerk()
    member = member_of(clerk)
    clerk.answer = [Send(CHANNEL, "w1", Elsewhere("m2"), Lane.CONTROL)]

    effects = Peer("w1", "#7").speak(member, Goodbye())

    assert clerk.told == [("w1", Goodbye(), 77, "#7")]
    assert sent(effects) == [("#7", Elsewhere("m2"), Lane.CONTROL)]


def test_a_member_that_has_nothing_to_do_with_jobs_ignores_them() -> None:
    member = member_of(None)

    assert Peer("w1", "#7").speak(member, Goodbye()) == []
    assert (member.frames_admitted, member.replay_guard.refused) == (1, {})


def test_what_is_no_message_about_jobs_is_turned_away() -> None:
    clerk = Clerk()
    member = member_of(clerk)

    assert Peer("w1", "#7").say(member, msgspec.msgpack.encode([99])) == []
    assert (clerk.told, member.replay_guard.refused) == ([], {"body": 1})


@pytest.mark.parametrize("lane", list(Lane), ids=lambda lane: lane.name)
def test_what_is_said_travels_on_the_lane_it_was_given(lane: Lane) -> None:
    effects = member_of(None).act(0, [Send(CHANNEL, "m2", Sync(5), lane)])

    assert sent(effects) == [("m2", Sync(5), lane)]


# -- where workers are


def test_a_worker_is_answered_on_the_connection_it_opened_last() -> None:
    member = member_of(Clerk())
    peer = Peer("w1", "#7")
    peer.speak(member, Goodbye())
    assert to(member, "w1") == ["#7"]

    peer.source = "#9"
    peer.speak(member, Goodbye())

    assert to(member, "w1") == ["#9"]


def test_one_that_can_be_dialled_is_dialled() -> None:
    member = member_of(Clerk(), addresses={"m2": "at-m2"})
    peers = [Peer(name, "#7") for name in ("m2", "m3")]
    for peer in peers:
        peer.speak(member, Goodbye())
    assert to(member, "m2", "m3") == ["at-m2", "#7"]

    peers[1].source = "from-m3"
    peers[1].speak(member, Goodbye())

    assert to(member, "m3") == ["from-m3"]


def test_of_too_many_connections_the_one_known_longest_is_forgotten() -> None:
    member = member_of(Clerk(), addresses_limit=2)
    peers = {name: Peer(name, f"#{name}") for name in ("w1", "w2", "w3")}

    for name in ("w1", "w2", "w1", "w3"):  # speaking again makes nobody known for shorter
        peers[name].speak(member, Goodbye())

    assert to(member, *peers) == ["w1", "#w2", "#w3"]


def test_where_a_node_was_greeted_is_where_it_is() -> None:
    member = member_of(Clerk(), addresses={"m2": "at-m2"})

    for name, address in (("m1", "at-m1"), ("m2", "elsewhere"), ("w1", "#7")):
        member.note_address(name, address)

    assert to(member, "m1", "m2", "w1") == ["at-m1", "elsewhere", "#7"]


# -- time


def test_the_part_is_ticked_when_its_time_has_come() -> None:
    clerk = Clerk()
    member = member_of(clerk)
    clerk.next_tick_at = 5
    assert member.act(0, []) == []
    assert member.next_tick_at == 5

    assert member.tick(4) == []
    clerk.answer = [Send(CHANNEL, "w1", Sync(1), Lane.STREAM)]
    effects = member.tick(5)

    assert clerk.told == [("tick", 5)]
    assert sent(effects) == [("w1", Sync(1), Lane.STREAM)]
    assert member.next_tick_at == NEVER


# -- news of the voter


def test_the_part_hears_that_its_voter_leads_and_what_became_of_writes() -> None:
    clerk = Clerk()
    member = member_of(clerk, has_voter=True)
    assert member.voter is not None
    now, _ = led_by(member)
    (elected,) = clerk.told
    assert isinstance(elected, Elected)

    (persist,) = [one for one in member.act(now, member.voter.write(now, 1, "job/1", b"")) if isinstance(one, Persist)]
    clerk.answer = [Send(CHANNEL, "w1", Sync(1), Lane.STREAM)]
    effects = member.on_persisted(now, persist.ticket)
    member.act(now, member.voter.drain(now))

    assert sent(effects) == [("w1", Sync(1), Lane.STREAM)], "what follows from a write is carried out"
    ended, stepped_down = clerk.told[1:]
    assert isinstance(ended, WriteEnded) and (ended.ref, ended.outcome) == (1, "accepted")
    assert isinstance(stepped_down, SteppedDown)


def test_a_member_that_leads_and_has_nothing_to_do_with_jobs_tells_its_shell_alone() -> None:
    _, effects = led_by(member_of(None, has_voter=True))

    assert sum(isinstance(effect, Elected) for effect in effects) == 1


# -- tickets


def persist_of(effects: list[object]) -> Persist | PersistBlob:
    (persist,) = [effect for effect in effects if isinstance(effect, Persist | PersistBlob)]
    return persist


def test_blobs_of_a_manager_and_promises_of_its_voter_are_kept_apart() -> None:
    clerk = Clerk()
    member = member_of(clerk, has_voter=True)
    promise = persist_of(member.start(0))
    blob = persist_of(member.act(0, [PersistBlob(1, "d", b"x")]))
    assert (promise.ticket, blob.ticket) == (1, 2)

    clerk.answer = [Send(CHANNEL, "m2", Sync(1), Lane.STREAM)]
    assert sent(member.on_persisted(0, blob.ticket)) == [("m2", Sync(1), Lane.STREAM)]
    member.on_persisted(0, promise.ticket)

    assert clerk.told == [("persisted", 1)]


def test_everything_a_worker_writes_is_of_its_part() -> None:
    clerk = Clerk()
    member = member_of(clerk)
    tickets = [persist_of(member.act(0, [Persist(7, ((key, b"x"),))])).ticket for key in ("fence", "result/j/1")]

    for ticket in tickets:
        member.on_persisted(0, ticket)

    assert clerk.told == [("persisted", 7), ("persisted", 7)]


def test_a_write_that_failed_is_told_to_the_part_that_asked_for_it() -> None:
    clerk = Clerk()
    member = member_of(clerk, has_voter=True)
    blob = persist_of(member.act(0, [PersistBlob(5, "d", b"x")]))
    clerk.answer = [Send(CHANNEL, "m2", Sync(1), Lane.STREAM)]

    effects = member.on_not_persisted(0, blob.ticket, "the disk is full")

    assert clerk.told == [("the disk is full", 5)]
    assert sent(effects) == [("m2", Sync(1), Lane.STREAM)]
    with pytest.raises(KeyError):
        member.on_persisted(0, blob.ticket)


def test_without_such_a_part_a_write_that_failed_is_nobodys() -> None:
    member = member_of(None, has_receiver=True)
    persist = persist_of(
        Peer("a", "from-a").say(member, leases.encode(LeaseCommand(TOKEN, 1, b"work")), leases.CHANNEL.number)
    )

    assert member.on_not_persisted(0, persist.ticket, "the disk is full") == []
