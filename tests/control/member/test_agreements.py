"""What was agreed on with a peer is that of its latest life, and asked before anything newer is said."""

import msgspec
import pytest

from talka.control.member.agreements import Agreements, VersionDiffers
from talka.errors import Invalid
from talka.wire import asking, manager_calls
from talka.wire.asking import Ask, AskMembers
from talka.wire.channels import Message
from talka.wire.versions import (
    CHALLENGE,
    KEYRING,
    OLDEST,
    ONE_LIFE,
    VERSION,
    NotCompatible,
    Offer,
    ProtocolVersion,
    offer_of,
)


class Rain(Message, frozen=True, tag=240):
    since = 1


class Snow(Message, frozen=True, tag=241):
    since = 2


def agreements(**limits: int) -> Agreements:
    return Agreements(offer_of("1.1"), **limits)


def test_of_a_peer_that_was_never_met_the_oldest_version_is_presumed() -> None:
    mine = agreements()

    assert (mine.of("b").version, mine.of("b").knows(CHALLENGE), mine.of("b").knows(ONE_LIFE)) == (OLDEST, True, False)
    assert (mine.life_of("b"), mine.by_version()) == (0, {})


def test_where_nobody_says_a_version_all_are_of_this_release() -> None:
    alike = Agreements.alike()

    assert (alike.of("b").version, alike.of("b").knows(ONE_LIFE), alike.may_say("b", Rain())) == (VERSION, True, True)


@pytest.mark.parametrize(
    ("said", "version"),
    [("1.0", "1.0"), ("", "1.0"), ("1.1", "1.1"), ("1.7", "1.1")],
    ids=["old", "mute", "same", "new"],
)
def test_the_lower_minor_is_spoken_with_whoever_was_met(said: str, version: str) -> None:
    mine = agreements()

    mine.meet("b", 7, said)

    assert (str(mine.of("b").version), mine.of("b").knows(ONE_LIFE)) == (version, version == "1.1")
    assert (mine.life_of("b"), mine.by_version()) == (7, {version: 1})


def test_what_a_peer_says_it_can_do_counts_more_than_what_its_version_could_have() -> None:
    mine = agreements()

    mine.meet("b", 7, "1.1", ["keyring"])

    assert (mine.of("b").knows(KEYRING), mine.of("b").knows(ONE_LIFE)) == (True, False)


def test_a_peer_of_another_minor_is_told_of_once_in_its_life() -> None:
    mine = agreements()

    assert mine.meet("b", 7, "1.1") == []
    (differs,) = mine.meet("b", 8, "1.2", ["keyring", "weather"])
    assert differs == VersionDiffers("b", "1.1", "1.2", "1.1", ("keyring",))
    assert mine.meet("b", 8, "1.2", ["keyring", "weather"]) == []


def test_the_next_life_of_a_peer_may_be_older() -> None:
    mine = agreements()
    mine.meet("b", 7, "1.1")

    mine.meet("b", 8, "1.0")

    assert (mine.of("b").version, mine.life_of("b"), mine.by_version()) == (OLDEST, 8, {"1.0": 1})


def test_what_a_peer_cannot_be_talked_with_is_not_agreed_on() -> None:
    mine = agreements()

    with pytest.raises(NotCompatible):
        mine.meet("b", 7, "2.0")
    with pytest.raises(Invalid):
        mine.meet("b", 7, "one")
    assert mine.hear("b", 7, "2.0") == mine.hear("b", 7, "one") == []
    assert mine.life_of("b") == 0


def test_what_a_member_announces_counts_until_it_speaks_itself() -> None:
    mine = agreements()

    assert mine.hear("b", 7, "1.0") == [VersionDiffers("b", "1.1", "1.0", "1.0", ("challenge", "keyring"))]
    assert (mine.of("b").version, mine.life_of("b")) == (OLDEST, 7)
    mine.meet("b", 7, "1.1", ["keyring"])
    assert mine.hear("b", 7, "1.0") == mine.hear("b", 6, "1.0") == []
    assert (str(mine.of("b").version), mine.of("b").knows(ONE_LIFE)) == ("1.1", False)


def test_a_life_that_ends_is_forgotten_and_a_later_one_is_not() -> None:
    mine = agreements()
    mine.meet("b", 8, "1.1")

    mine.end("b", 7)
    assert mine.life_of("b") == 8
    mine.end("b", 8)
    mine.end("b", 8)
    assert (mine.life_of("b"), mine.of("b").version) == (0, OLDEST)


def test_a_life_goes_with_the_connection_it_opened() -> None:
    mine = agreements()
    mine.meet("b", 7, "1.1", source="#1")
    mine.meet("c", 7, "1.1", source="10.0.0.3:8471")

    for source in ("#2", "#1", "#1", "10.0.0.3:8471"):
        mine.gone(source)

    assert (mine.life_of("b"), mine.life_of("c")) == (0, 7)


def test_a_life_that_came_back_on_another_connection_stays_when_the_first_is_closed() -> None:
    mine = agreements()
    mine.meet("b", 7, "1.1", source="#1")
    mine.meet("b", 7, "1.1", source="#2")

    mine.gone("#1")
    assert mine.life_of("b") == 7
    mine.gone("#2")
    assert mine.life_of("b") == 0


def test_more_peers_than_the_limit_push_out_the_one_known_longest() -> None:
    mine = agreements(peers_limit=2)
    for name in ("b", "c", "b", "d"):
        mine.meet(name, 7, "1.1", source=f"#{name}")

    assert [mine.life_of(name) for name in "bcd"] == [7, 0, 7]
    assert mine.by_version() == {"1.1": 2}
    mine.gone("#c")  # is of nobody any more


def test_a_message_is_said_to_those_who_know_it_and_counted_where_it_is_not() -> None:
    mine = agreements()
    mine.meet("old", 1, "1.0")
    mine.meet("new", 1, "1.1")
    mine.meet("newer", 1, "1.2")

    assert [mine.may_say(name, Rain()) for name in ("old", "new", "newer", "nobody")] == [False, True, True, False]
    assert not mine.may_say("newer", Snow()), "this node may know it, the agreement is what both know"
    assert mine.may_say("old", Ask(1, AskMembers()))
    assert mine.unsaid == {"Rain": 2, "Snow": 1}


def test_an_unsaid_question_or_call_is_counted_under_what_is_in_it() -> None:
    mine = agreements()

    mine.may_say("old", manager_calls.ManagerCall(1, Rain()))  # type: ignore[arg-type]
    mine.may_say("old", asking.Ask(1, Rain()))  # type: ignore[arg-type]

    assert mine.unsaid == {"Rain": 2}


def test_a_capability_that_is_required_and_lacking_forbids_to_talk() -> None:
    mine = Agreements(Offer(ProtocolVersion(1, 1), ("keyring",), ("keyring",)))

    with pytest.raises(NotCompatible, match="lacks 'keyring'"):
        mine.meet("b", 7, "1.1", ["other"])
    assert msgspec.structs.asdict(mine.of("b"))["capabilities"] == ("challenge", "keyring")
