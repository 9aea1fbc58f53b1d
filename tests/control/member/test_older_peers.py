"""A member says to each peer only what that peer knows."""

from collections.abc import Sequence
from random import Random
from typing import Any, Never

import msgspec
import pytest

from talka.cluster.effects import Lane, Send, Transmit
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberLeft, MemberLost, StateLearned
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admin_queries import MembersPage, answer, metrics_text
from talka.control.member.admission import Admission
from talka.control.member.agreements import VersionDiffers
from talka.control.member.announcement import Announcement
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.units import NEVER
from talka.wire import jobs
from talka.wire.asking import AskMembers
from talka.wire.channels import Message
from talka.wire.framing import unpacked
from talka.wire.greeting import Self
from talka.wire.jobs import Goodbye, JobMessage
from talka.wire.manager_calls import CallAnswer, ManagerCall
from talka.wire.membership import Alive, Gossip, MemberState, Stated, encode_update
from talka.wire.packets import Packet, decode_packet
from talka.wire.security.keys import Keyring
from talka.wire.security.roles import Role
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION, names_until

RING = Keyring.of(("kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu",))
ME = Self("shop", "staging", "manager", str(VERSION), list(names_until(VERSION.minor)))


class Rain(Message, frozen=True, tag=240):
    since = 1


class Part:
    """Keeps what it hears."""

    next_tick_at = NEVER

    def __init__(self) -> None:
        self.heard: list[tuple[str, object, Role | None]] = []

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: Role | None = None
    ) -> Sequence[Never]:
        self.heard.append((sender, message, role))
        return []

    def on_news(self, now: int, news: Elected | SteppedDown | WriteEnded) -> Sequence[Never]:
        return []

    def on_persisted(self, now: int, ticket: int) -> Sequence[Never]:
        return []

    def on_not_persisted(self, now: int, ticket: int, text: str) -> Sequence[Never]:
        return []

    def tick(self, now: int) -> Sequence[Never]:
        return []


def member_a(*, part: Part | None = None, certified: bool = False, has_membership: bool = True) -> ClusterMember[Never]:
    replay_guard = ReplayGuard(group="shop/staging", name="a", boot=1)
    admission = Admission(
        replay_guard=replay_guard, seal=Seal(RING, 1), name="a", me=ME, rng=Random(1), certified=certified
    )
    members = Membership(
        name="a", boot=1, address="at-a", group="shop/staging", config=PRESETS["default"], rng=Random(1), now=0
    )
    return ClusterMember(
        group="shop/staging",
        name="a",
        boot=1,
        membership=members if has_membership else None,
        part=part,
        replay_guard=replay_guard,
        admission=admission,
    )


def said(member: ClusterMember[Never], message: Any, to: str = "b") -> list[Packet]:
    """The packets this message became."""
    out = member.act(0, [Send(jobs.CHANNEL, to, message, Lane.STREAM)])
    seal = Seal(RING, 99)
    return [decode_packet(unpacked(seal.open(one.frame, me=to).content)) for one in out if isinstance(one, Transmit)]


def metrics(member: ClusterMember[Never]) -> list[str]:
    return [line for line in metrics_text(member, 0, {}).splitlines() if not line.startswith("#")]


def test_what_is_newer_than_the_peer_is_not_said_and_counted() -> None:
    member = member_a()
    member.agreements.meet("b", 5, "1.0")

    assert said(member, Rain()) == said(member, Rain(), "c") == []
    assert len(said(member, Goodbye())) == 1
    assert 'talka_messages_unsaid_total{message="Rain"} 2' in metrics(member)
    assert 'talka_peers{version="1.0"} 1' in metrics(member)


def test_what_the_peer_knows_is_said_to_the_life_that_knows_it() -> None:
    member = member_a()
    member.agreements.meet("b", 5, "1.1")

    (rain,), (goodbye,) = said(member, Rain()), said(member, Goodbye())

    assert (rain.life, goodbye.life) == (5, 0), "what every life understands is for whichever it reaches"


@pytest.mark.parametrize(("certified", "role"), [(False, None), (True, Role.MANAGER)])
def test_who_asks_an_older_leader_something_new_is_told_at_once(certified: bool, role: Role | None) -> None:
    part = Part()
    member = member_a(part=part, certified=certified)
    member.agreements.meet("b", 5, "1.0")
    call: Any = ManagerCall(7, Rain())  # type: ignore[arg-type]

    assert said(member, call) == []

    text = "b speaks protocol 1.0 and does not know Rain: it needs a newer release"
    assert part.heard == [("b", CallAnswer(7, None, "unavailable", text), role)]


def test_a_member_that_has_nothing_to_do_with_jobs_asks_nobody() -> None:
    member = member_a()
    call: Any = ManagerCall(7, Rain())  # type: ignore[arg-type]

    assert said(member, call) == []


def told(member: ClusterMember[Never], announced: bytes, boot: int = 5) -> list[object]:
    """Somebody tells of b and of what b says of itself."""
    members = member.membership
    assert members is not None
    updates = [
        msgspec.Raw(encode_update(update))
        for update in (Alive("b", boot, 0, "at-b"), Stated("b", boot, MemberState(1, announced)))
    ]
    return [*member.act(0, members.on_message(0, "from-c", "c", 9, Gossip(), updates, 0))]


def test_the_version_that_a_member_announces_is_spoken_with_it() -> None:
    member = member_a()

    out = told(member, msgspec.msgpack.encode(Announcement("ring", "manager", "1.0")))

    assert VersionDiffers("b", str(VERSION), "1.0", "1.0", ("challenge", "keyring")) in out
    assert member.agreements.life_of("b") == 5
    page = msgspec.json.decode(answer(member, 0, AskMembers())[0], type=MembersPage)
    assert [(one.name, one.protocol) for one in page.members] == [("a", str(VERSION)), ("b", "1.0")]


def test_an_announcement_that_nobody_can_read_says_no_version() -> None:
    member = member_a()

    told(member, b"\xc1")
    member.act(0, [StateLearned("nobody", 1, b"")])

    assert member.agreements.life_of("b") == 0


def test_a_member_that_is_lost_or_left_is_presumed_to_be_of_the_oldest_version() -> None:
    for news in (MemberLost("b", 5, "c", "no answer", False), MemberLeft("b", 5)):
        member = member_a()
        member.agreements.meet("b", 5, "1.1")

        member.act(0, [news])

        assert member.agreements.life_of("b") == 0


def test_who_has_no_view_of_members_learns_nothing_from_announcements() -> None:
    member = member_a(has_membership=False)

    member.act(0, [StateLearned("b", 1, b"")])

    assert member.agreements.by_version() == {}
