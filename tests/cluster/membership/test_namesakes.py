"""Two nodes of one name are told apart from one that was restarted, and each of the two hears of it."""

from random import Random

from talka.cluster.effects import Send
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.namesakes import AGAIN_NS, PATIENCE_NS, Namesakes
from talka.cluster.membership.news import MembershipEffect, Namesake
from talka.cluster.membership.presets import PRESETS
from talka.units import SECOND
from talka.wire.membership import Alive, Gossip, decode_update, encode_update


def member_of(name: str, *, boot: int = 1, at: str = "") -> Membership:
    where = at or f"at-{name}"
    config = PRESETS["fast"]
    return Membership(name=name, boot=boot, address=where, group="g", config=config, rng=Random(name), now=0)


def hear(member: Membership, now: int, sender: str, boot: int, source: str, *news: Alive) -> list[MembershipEffect]:
    return member.on_message(now, source, sender, boot, Gossip(), [encode_update(each) for each in news], 0)


def with_two_lives() -> Membership:
    """c knew a's first life, and another one took its place."""
    c = member_of("c")
    hear(c, 0, "a", 1, "at-a", Alive("a", 1, 0, "at-a"))
    hear(c, 0, "a", 2, "elsewhere", Alive("a", 2, 0, "elsewhere"))
    return c


def test_a_life_that_was_replaced_and_goes_on_speaking_is_told_of_once_and_hears_who_took_its_place() -> None:
    c = with_two_lives()

    assert hear(c, SECOND, "a", 1, "at-a") == []
    assert hear(c, SECOND + PATIENCE_NS - 1, "a", 1, "at-a") == [], "frames of an earlier life may be on the way"
    out = hear(c, SECOND + PATIENCE_NS, "a", 1, "at-a")

    said = [effect for effect in out if isinstance(effect, Send)]
    assert [(each.to, [decode_update(raw) for raw in each.updates]) for each in said] == [
        ("at-a", [Alive("a", 2, 0, "elsewhere")])
    ]
    assert [effect for effect in out if isinstance(effect, Namesake)] == [Namesake("a", "elsewhere", "at-a")]
    assert hear(c, SECOND + PATIENCE_NS + 1, "a", 1, "at-a") == [], "not more than once a second"
    again = hear(c, SECOND + PATIENCE_NS + AGAIN_NS, "a", 1, "at-a")
    assert [type(effect) for effect in again] == [Send], "it is told of once"


def test_one_that_was_restarted_and_says_no_more_is_no_namesake() -> None:
    c = with_two_lives()

    out = hear(c, 2 * PATIENCE_NS, "a", 2, "elsewhere")

    assert not [effect for effect in out if isinstance(effect, Namesake)]


def test_one_that_hears_of_another_life_of_its_name_for_long_says_so() -> None:
    a = member_of("a")
    other = Alive("a", 2, 0, "elsewhere")

    told = [hear(a, at, "c", 1, "at-c", other) for at in (0, PATIENCE_NS - 1, PATIENCE_NS, 2 * PATIENCE_NS)]

    found = [[effect for effect in out if isinstance(effect, Namesake)] for out in told]
    assert found == [[], [], [Namesake("a", "at-a", "elsewhere")], []]
    assert not [e for e in hear(a, 3 * PATIENCE_NS, "c", 1, "at-c", a.me) if isinstance(e, Namesake)]


def test_lives_that_are_watched_have_a_limit() -> None:
    namesakes, me = Namesakes(lives_limit=2), Alive("a", 1, 0, "at-a")
    out: list[MembershipEffect] = []

    for now in (0, PATIENCE_NS):
        for boot in (2, 3):
            namesakes.told_of(now, me, Alive("a", boot, 0, f"at-{boot}"), out)
    assert len(out) == 2
    for boot in (4, 5, 6):
        namesakes.told_of(PATIENCE_NS, me, Alive("a", boot, 0, ""), out)
        namesakes.told_of(2 * PATIENCE_NS, me, Alive("a", boot, 0, ""), out)
    assert len(out) == 5
    namesakes.told_of(2 * PATIENCE_NS, me, Alive("a", 2, 0, ""), out)
    namesakes.told_of(3 * PATIENCE_NS, me, Alive("a", 2, 0, ""), out)
    assert len(out) == 6, "of the first nothing is known any more"
