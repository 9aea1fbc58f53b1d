import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.leadership.voters import (
    Electorate,
    VoterConfig,
    VoterEntry,
    decode_config,
    digest_of,
    encode_config,
)
from talka.wire.channels import BadMessage
from tests.sim.variants import without

quick = settings(deadline=None, derandomize=True, max_examples=80)
LIVE_NS = 1_000


def config_of(*names: str, epoch: int = 1) -> VoterConfig:
    return VoterConfig(7, epoch, tuple(VoterEntry(name, 100 + index) for index, name in enumerate(names)))


def electorate_of(*names: str) -> Electorate:
    return Electorate(names[0], config_of(*names), LIVE_NS)


def some(names: str) -> dict[str, None]:
    return dict.fromkeys(names)


# -- the configuration as a value


def test_a_configuration_is_read_as_it_was_written() -> None:
    config = config_of("a", "b", "Jörg")

    assert decode_config(encode_config(config)) == config


def test_bytes_that_are_no_configuration_are_untrusted() -> None:
    for content in (b"", b"\xc1", encode_config(config_of("a"))[:-1], b"\x93\x01\x01\x91\x92\xa2\xc3\x28\x01"):
        with pytest.raises(BadMessage, match="^a voter sent a malformed configuration of voters: "):
            decode_config(content)


def test_a_voter_with_a_new_disk_keeps_its_seat_in_the_next_configuration() -> None:
    changed = config_of("a", "b", "c").with_storage("b", 999)

    assert changed == VoterConfig(7, 2, (VoterEntry("a", 100), VoterEntry("b", 999), VoterEntry("c", 102)))


def test_a_voter_that_joins_takes_its_place_by_name() -> None:
    changed = config_of("a", "c").with_storage("b", 999)

    assert changed.names() == ("a", "b", "c")
    assert changed.epoch == 2


def test_a_voter_that_leaves_has_no_disk_in_the_next_configuration() -> None:
    changed = config_of("a", "b", "c").without("b")

    assert (changed.names(), changed.epoch, changed.group_id) == (("a", "c"), 2, 7)
    assert changed.disk_id_of("b") is None
    assert changed.disk_id_of("c") == 102


@given(names=st.lists(st.text("abc", max_size=3), unique=True, min_size=1), data=st.data())
@quick
def test_a_list_of_voters_has_one_digest_whatever_its_order(names: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(names))

    assert digest_of(tuple(names)) == digest_of(tuple(shuffled))
    assert 0 <= digest_of(tuple(names)) < 2**62


def test_other_voters_have_another_digest() -> None:
    lists = [("a", "b"), ("a", "b", "c"), ("ab",), ("a", "bc"), ("ab", "c"), ()]

    assert len({digest_of(names) for names in lists}) == len(lists)


# -- majorities


@given(size=st.integers(1, 7), data=st.data())
@quick
def test_any_two_majorities_share_a_voter(size: int, data: st.DataObject) -> None:
    names = "abcdefg"[:size]
    electorate = electorate_of(*names)
    first = data.draw(st.sets(st.sampled_from(names)))
    second = data.draw(st.sets(st.sampled_from(names)))

    if electorate.is_majority(0, some("".join(first))) and electorate.is_majority(0, some("".join(second))):
        assert first & second


@given(size=st.integers(1, 6), data=st.data())
@quick
def test_a_majority_while_voters_change_shares_a_voter_with_every_majority_before_and_after(
    size: int, data: st.DataObject
) -> None:
    names = "abcdefg"[:size]
    before = config_of(*names)
    after = before.without("a") if size > 1 and data.draw(st.booleans()) else before.with_storage("g", 1)
    electorate = Electorate("a", before, LIVE_NS)
    electorate.pending = after
    both = data.draw(st.sets(st.sampled_from("abcdefg")))

    if electorate.is_majority(0, some("".join(both))):
        for config in (before, after):
            either = data.draw(st.sets(st.sampled_from(config.names())))
            alone = Electorate("a", config, LIVE_NS)
            if alone.is_majority(0, some("".join(either))):
                assert both & either


def test_half_of_the_voters_are_no_majority() -> None:
    electorate = electorate_of("a", "b", "c", "d")

    assert not electorate.is_majority(0, some("ab"))
    assert electorate.is_majority(0, some("abd"))


def test_those_who_are_no_voters_do_not_count() -> None:
    assert not electorate_of("a", "b", "c").is_majority(0, some("axyz"))


def test_a_majority_is_one_of_the_configured_voters_even_when_the_others_are_silent() -> None:
    electorate = electorate_of("a", "b", "c")
    electorate.heard(10, "a")

    assert not electorate.is_majority(10, some("a"))


def test_the_word_of_an_excluded_voter_does_not_count_but_its_seat_does() -> None:
    electorate = electorate_of("a", "b", "c")

    assert not electorate.is_majority(0, some("ac"), excluding="c")
    assert electorate.is_majority(0, some("ab"), excluding="c")


def test_while_voters_change_a_majority_of_either_alone_is_not_enough() -> None:
    electorate = electorate_of("a", "b", "c")
    electorate.pending = config_of("a", "b", "c", "d", epoch=2)

    assert not electorate.is_majority(0, some("ab"))
    assert not electorate.is_majority(0, some("ad"))
    assert electorate.is_majority(0, some("abd"))
    electorate.pending = config_of("a", "d", "e")
    assert not electorate.is_majority(0, some("ade"))


# -- who is told and who is noted


def test_everybody_of_both_configurations_is_told_but_not_oneself() -> None:
    electorate = electorate_of("a", "b", "c")
    assert electorate.others() == ("b", "c")

    electorate.pending = config_of("a", "c", "d")

    assert electorate.others() == ("b", "c", "d")
    assert electorate.is_voter("d") and electorate.is_voter("b")
    assert not electorate.is_voter("e")


def test_another_configuration_changes_who_is_told_and_who_decides() -> None:
    electorate = electorate_of("a", "b", "c")
    later = config_of("a", "b", "d", epoch=2)

    electorate.config = later

    assert electorate.config == later
    assert electorate.others() == ("b", "d")
    assert electorate.is_voter("d") and not electorate.is_voter("c")
    assert electorate.is_majority(0, some("ad")) and not electorate.is_majority(0, some("ac"))


def test_a_voter_has_a_seat_with_the_disk_it_was_admitted_with_and_with_no_other() -> None:
    electorate = Electorate(
        "a", VoterConfig(7, 1, (VoterEntry("a", 100), VoterEntry("b", 101), VoterEntry("c"))), LIVE_NS
    )

    assert electorate.has_seat("b", 101)
    assert not electorate.has_seat("b", 999)
    assert electorate.has_seat("c", 999)  # no disk of it is recorded yet
    assert not electorate.has_seat("x", 0)


def test_one_that_joins_has_a_seat_while_the_change_is_written_and_a_new_disk_has_none_before_it_is() -> None:
    electorate = electorate_of("a", "b", "c")

    electorate.pending = electorate.config.with_storage("d", 555)
    assert electorate.has_seat("d", 555)
    assert not electorate.has_seat("d", 556)
    assert not electorate.has_seat("x", 555)
    electorate.pending = electorate.config.with_storage("b", 999)
    assert electorate.has_seat("b", 101)
    assert not electorate.has_seat("b", 999)


def test_only_voters_are_noted_as_heard() -> None:
    electorate = electorate_of("a", "b", "c")
    electorate.heard(5, "b")
    electorate.heard(5, "x")

    electorate.config = config_of("a", "b", "c", "x")
    assert electorate.answering(5) == ["a", "b"]


def test_it_is_known_for_how_long_a_voter_has_been_silent() -> None:
    electorate = electorate_of("a", "b", "c")
    electorate.heard(5_000, "b")

    assert electorate.silent_ns(5_700, "b") == 700
    assert electorate.silent_ns(5_700, "a") == 0, "this one hears itself"
    assert electorate.silent_ns(5_700, "c") == 5_700, "it was never heard"


@without("configured_majority")
def test_without_its_safeguard_a_majority_is_one_of_those_heard_lately() -> None:
    electorate = electorate_of("a", "b", "c")

    assert electorate.is_majority(5_000, some("a"))
    electorate.heard(5_000, "b")
    assert not electorate.is_majority(5_000 + LIVE_NS, some("a"))
    assert electorate.is_majority(5_001 + LIVE_NS, some("a"))
