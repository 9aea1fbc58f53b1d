import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid, Untrusted
from talka.wire.versions import (
    CAPABILITIES,
    CAPABILITIES_LIMIT,
    CAPABILITY_LIMIT,
    KEYRING,
    OLDEST,
    ONE_LIFE,
    VERSION,
    Agreed,
    NotCompatible,
    Offer,
    ProtocolVersion,
    compatible,
    disagreement,
    names_until,
    negotiate,
    offer_of,
)

quick = settings(deadline=None, derandomize=True, max_examples=150)
PARTS = st.integers(0, 9999)
VERSIONS = st.builds(ProtocolVersion, PARTS, PARTS)
NAMES = st.lists(st.sampled_from(["relay", "compress", "push", "sync"]), max_size=4).map(tuple)


def test_this_is_version_1_1() -> None:
    assert (VERSION, str(VERSION), str(OLDEST)) == (ProtocolVersion(1, 1), "1.1", "1.0")


@given(version=VERSIONS)
@quick
def test_a_version_is_read_as_it_is_written(version: ProtocolVersion) -> None:
    assert ProtocolVersion.parse(str(version)) == version


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.", ".1", "1.0.0", "v1.0", "1.x", "-1.0", "1.-1", "01.0", "1.00", " 1.0", "1.0\n", "10000.0", "١.٠"],
)
def test_nonsense_is_no_version(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        ProtocolVersion.parse(text)

    assert str(refusal.value) == (
        f"{ascii(text)} is not a version of the protocol. Write it as MAJOR.MINOR, for example 1.1"
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "sentence"),
    [
        ((1, 0), (1, 0), ""),
        ((1, 0), (1, 9), ""),
        ((1, 9), (1, 0), ""),
        ((1, 9), (2, 0), "this side speaks protocol 1.9, the other one 2.0. This side needs a newer release"),
        ((2, 0), (1, 9), "this side speaks protocol 2.0, the other one 1.9. The other side needs a newer release"),
    ],
)
def test_versions_of_one_major_talk_and_no_others(mine, theirs, sentence: str) -> None:
    assert compatible(ProtocolVersion(*mine), ProtocolVersion(*theirs)) == sentence


def test_the_lower_minor_and_the_shared_capabilities_are_used() -> None:
    mine = Offer(ProtocolVersion(1, 3), ("sync", "relay", "mine-only"), ("relay",))
    theirs = Offer(ProtocolVersion(1, 2), ("relay", "theirs-only", "sync", "relay"), ("sync",))

    assert negotiate(mine, theirs) == Agreed(ProtocolVersion(1, 2), ("relay", "sync"))


@given(versions=st.tuples(VERSIONS, VERSIONS), names=st.tuples(NAMES, NAMES, NAMES, NAMES), is_alike=st.booleans())
@quick
def test_both_sides_come_to_the_same(versions, names, is_alike: bool) -> None:
    one = Offer(versions[0], names[0], names[1])
    two = Offer(ProtocolVersion(versions[0].major, versions[1].minor) if is_alike else versions[1], names[2], names[3])

    def outcome(mine: Offer, theirs: Offer) -> Agreed | str:
        try:
            return negotiate(mine, theirs)
        except NotCompatible as problem:
            return problem.reason

    assert outcome(one, two) == outcome(two, one)


@pytest.mark.parametrize(
    ("mine", "theirs", "reason", "sentence"),
    [
        (
            Offer(VERSION, (), ("relay", "sync")),
            Offer(VERSION, ("sync",)),
            "capability",
            "the other side lacks 'relay', which this side requires",
        ),
        (
            Offer(VERSION, ("sync",)),
            Offer(VERSION, ("relay",), ("e", "d", "c", "b", "a", "a")),
            "capability",
            "this side lacks 'a', 'b', 'c' and 2 more, which the other one requires",
        ),
        (
            Offer(VERSION),
            Offer(VERSION, (), ("c", "b", "a")),
            "capability",
            "this side lacks 'a', 'b', 'c', which the other one requires",
        ),
        (
            Offer(VERSION),
            Offer(ProtocolVersion(2, 0), (), ("relay",)),
            "version",
            "this side speaks protocol 1.1, the other one 2.0. This side needs a newer release",
        ),
    ],
    ids=["theirs", "ours", "just as many as are named", "another major"],
)
def test_what_is_missing_is_said(mine: Offer, theirs: Offer, reason: str, sentence: str) -> None:
    with pytest.raises(NotCompatible) as refusal:
        negotiate(mine, theirs)

    assert (refusal.value.reason, str(refusal.value)) == (reason, sentence)
    assert isinstance(refusal.value, Untrusted)
    assert disagreement(mine, str(theirs.version), list(theirs.capabilities), list(theirs.required)) == sentence


def test_sides_that_agree_have_no_disagreement() -> None:
    assert disagreement(Offer(VERSION, ("sync",), ("relay",)), "1.7", ["relay"], ["sync"]) == ""


def test_nonsense_of_the_other_side_is_a_disagreement_of_bounded_length() -> None:
    wild = ["\U000e0001" * CAPABILITY_LIMIT]
    many = [chr(0xE0001 + number) * CAPABILITY_LIMIT for number in range(CAPABILITIES_LIMIT)]

    for version, required in [("\U000e0001" * 64, []), ("1.0", wild), ("1.0", many)]:
        assert 0 < len(disagreement(Offer(VERSION), version, [], required)) <= 400
    assert disagreement(Offer(VERSION), "one", [], []).startswith("'one' is not a version of the protocol.")
    assert disagreement(Offer(VERSION), "1.0", [""], []).startswith("an offer names at most 64 capabilities")


@pytest.mark.parametrize(
    "names", [("x",) * (CAPABILITIES_LIMIT + 1), ("x" * (CAPABILITY_LIMIT + 1),), ("",)], ids=["many", "long", "empty"]
)
def test_an_offer_is_bounded_when_made_and_when_read(names: tuple[str, ...]) -> None:
    for offered in ((names, ()), ((), names)):
        with pytest.raises(Invalid, match="^an offer names at most 64 capabilities of 1 to 64 characters each$"):
            Offer(VERSION, *offered)
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode([[1, 0], *offered]), type=Offer)


def test_the_largest_offer_is_taken() -> None:
    names = ("x" * CAPABILITY_LIMIT,) * CAPABILITIES_LIMIT
    offer = Offer(VERSION, names, names)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(offer), type=Offer) == offer


# -- capabilities


def test_a_side_has_what_its_minor_and_those_before_it_brought() -> None:
    assert names_until(0) == ("challenge", "keyring")
    assert names_until(VERSION.minor) == names_until(VERSION.minor + 1) == tuple(each.name for each in CAPABILITIES)


def test_every_capability_of_this_release_has_a_name_of_its_own_and_says_what_is_done_without_it() -> None:
    assert len({each.name for each in CAPABILITIES}) == len(CAPABILITIES)
    for each in CAPABILITIES:
        assert 0 <= each.since <= VERSION.minor, each.name
        assert each.otherwise, each.name
    assert {each.since for each in CAPABILITIES} == set(range(VERSION.minor + 1)), "what did a minor bring?"


def test_only_what_both_have_is_known_to_be_had() -> None:
    mine = offer_of(str(VERSION))
    older, odd = negotiate(mine, offer_of("1.0")), negotiate(mine, offer_of("1.1", ["keyring", "weather"]))

    assert (older.version, older.knows(KEYRING), older.knows(ONE_LIFE)) == (OLDEST, True, False)
    assert (odd.version, odd.knows(KEYRING), odd.knows(ONE_LIFE)) == (ProtocolVersion(1, 1), True, False)


def test_who_names_no_version_speaks_the_oldest_and_who_names_no_capability_has_those_of_its_version() -> None:
    assert offer_of("") == Offer(OLDEST, names_until(0))
    assert offer_of("1.1", (), ("keyring",)) == Offer(ProtocolVersion(1, 1), names_until(1), ("keyring",))
