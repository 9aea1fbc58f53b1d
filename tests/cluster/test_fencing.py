import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.fencing import ZERO, Apply, BrokenFence, Fence, PersistFirst, Refuse, Token
from talka.errors import Invalid
from tests.sim.variants import without

quick = settings(deadline=None, derandomize=True)
tokens = st.builds(Token, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))

OLD = Token(1, 4, 9)
NEW = Token(1, 5, 0)


def stored(token: Token) -> bytes:
    return msgspec.msgpack.encode(token)


def fence_at(token: Token) -> Fence:
    return Fence(stored(token))


def test_a_token_reads_from_the_parent_down() -> None:
    assert str(Token(1, 22, 333)) == "1.22.333"
    assert str(ZERO) == "0.0.0"


@given(tokens, tokens)
@quick
def test_tokens_compare_from_left_to_right(one: Token, other: Token) -> None:
    assert (one < other) == (tuple(msgspec.to_builtins(one)) < tuple(msgspec.to_builtins(other)))


def test_a_parents_later_term_outranks_everything_below_it() -> None:
    assert Token(2, 0, 0) > Token(1, 99, 99)


def test_a_receiver_that_starts_empty_takes_the_first_leader_after_writing_its_token() -> None:
    fence = Fence(None)
    assert fence.highest == ZERO
    assert fence.admit(NEW) == PersistFirst(NEW, stored(NEW))


def test_a_command_under_the_token_on_disk_is_applied_now() -> None:
    assert fence_at(NEW).admit(NEW) == Apply()


def test_a_higher_token_takes_effect_only_once_it_is_on_disk() -> None:
    fence = fence_at(OLD)
    fence.admit(NEW)
    assert (fence.durable, fence.highest) == (OLD, NEW)
    fence.persisted(NEW)
    assert fence.durable == NEW
    assert fence.admit(NEW) == Apply()


def test_further_commands_wait_for_the_write_under_way_and_ask_for_none_of_their_own() -> None:
    fence = fence_at(OLD)
    fence.admit(NEW)
    assert fence.admit(NEW) == PersistFirst(NEW, None)


def test_a_lower_token_is_refused_with_both_tokens_named() -> None:
    assert fence_at(NEW).admit(OLD) == Refuse(OLD, NEW)


def test_the_token_on_disk_is_refused_while_a_higher_one_is_being_written() -> None:
    fence = fence_at(OLD)
    fence.admit(NEW)
    assert fence.admit(OLD) == Refuse(OLD, NEW)


def test_a_write_of_a_lower_token_that_is_told_late_lowers_nothing() -> None:
    fence = fence_at(NEW)
    fence.persisted(OLD)
    assert fence.durable == NEW


@without("fencing")
def test_without_fencing_only_the_refusal_is_gone() -> None:
    fence = fence_at(OLD)
    assert fence.admit(NEW) == PersistFirst(NEW, stored(NEW))
    assert fence.admit(OLD) == Apply()
    assert fence.highest == NEW


def test_what_was_written_is_where_the_next_life_starts() -> None:
    admission = Fence(None).admit(NEW)
    assert isinstance(admission, PersistFirst)
    reborn = Fence(admission.content)
    assert reborn.admit(OLD) == Refuse(OLD, NEW)
    assert reborn.admit(NEW) == Apply()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"\x92\x01\x02", b"\x93\x01\x02\xa1\xff"],
    ids=["empty", "no-msgpack", "too-short", "no-number"],
)
def test_a_broken_fence_stops_the_receiver_with_a_sentence(content: bytes) -> None:
    with pytest.raises(BrokenFence, match="stored fence of this receiver is no token: .+; restore it") as caught:
        Fence(content)
    assert isinstance(caught.value, Invalid)


@given(st.lists(tokens, max_size=12), st.data())
@quick
def test_effects_never_go_back_and_are_always_covered_by_the_disk(commands: list[Token], data: st.DataObject) -> None:
    fence, disk = Fence(None), ZERO
    waiting: list[PersistFirst] = []
    applied: list[Token] = []

    def write_one() -> None:
        nonlocal disk
        first = waiting.pop(0)
        if first.content is not None:
            disk = msgspec.msgpack.decode(first.content, type=Token)
            fence.persisted(first.token)
        assert disk >= first.token
        applied.append(first.token)

    for token in commands:
        match fence.admit(token):
            case Apply():
                assert disk == token
                applied.append(token)
            case PersistFirst() as first:
                waiting.append(first)
            case Refuse(highest=highest):
                assert token < highest
        for _ in range(data.draw(st.integers(0, len(waiting)))):
            write_one()
    while waiting:
        write_one()
    assert applied == sorted(applied)
    assert fence.durable == fence.highest == disk == max([ZERO, *commands])
