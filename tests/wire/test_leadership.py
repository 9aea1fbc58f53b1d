"""What is special to leadership; what holds for every conversation is in `test_channels.py`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.leadership import (
    ENTRIES_PER_PAGE,
    KEY_LIMIT,
    PAGE_LIMIT_BYTES,
    PAGES_LIMIT,
    VALUE_LIMIT_BYTES,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    Released,
    Version,
    decode,
    encode,
    pages,
)
from talka.wire.packets import NAME_LIMIT

quick = settings(deadline=None, derandomize=True, max_examples=200)


def test_what_is_just_within_the_limits_is_read() -> None:
    entry = RegisterEntry("k" * KEY_LIMIT, Version(2**62 - 1, 2**62 - 1), bytes(VALUE_LIMIT_BYTES))
    message = RegisterSnapshot(2**62 - 1, 5, PAGES_LIMIT - 1, PAGES_LIMIT, (entry,), 1)

    assert decode(encode(message)) == message
    assert decode(encode(Released(8, "n" * NAME_LIMIT))) == Released(8, "n" * NAME_LIMIT)


# -- versions


@given(
    first=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    second=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
@quick
def test_a_version_is_later_by_its_term_first_and_by_its_place_second(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    assert (Version(*first) < Version(*second)) == (first < second)


# -- pages

sizes = st.sampled_from([0, 1, 1_000, 100_000, VALUE_LIMIT_BYTES])
runs = st.lists(st.tuples(sizes, st.integers(1, 40), st.sampled_from([1, KEY_LIMIT])), max_size=6)


@given(runs=runs)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_pages_hold_every_entry_once_in_order_and_each_fits_a_message(runs: list[tuple[int, int, int]]) -> None:
    entries = [
        RegisterEntry("ü" * length, Version(1, 1), bytes(size)) for size, count, length in runs for _ in range(count)
    ]

    parts = pages(entries)

    assert [entry for part in parts for entry in part] == entries
    assert all(parts) or parts == [()]
    for part in parts:
        assert len(part) <= ENTRIES_PER_PAGE
        assert sum(len(entry.value) for entry in part) <= PAGE_LIMIT_BYTES
        message = RegisterSnapshot(2**62 - 1, 2**62 - 1, 0, PAGES_LIMIT, part, 2**62 - 1)
        assert len(encode(message)) < min(FRAME_LIMIT_BYTES, PAGE_LIMIT_BYTES + 1_000)


def test_a_page_is_not_cut_before_it_is_full() -> None:
    small = [RegisterEntry(f"k{number}", Version(1, 1), b"") for number in range(ENTRIES_PER_PAGE + 1)]
    large = [RegisterEntry("k", Version(1, 1), bytes(100_000))] * 7

    assert [len(page) for page in pages(small)] == [ENTRIES_PER_PAGE, 1]
    assert [len(page) for page in pages(large)] == [5, 2]


def test_nothing_is_one_empty_page() -> None:
    assert pages([]) == [()]


def test_a_full_page_of_the_longest_keys_is_within_what_a_message_may_have() -> None:
    entries = [RegisterEntry("k" * KEY_LIMIT, Version(1, 1), b"")] * (2 * ENTRIES_PER_PAGE)

    assert all(decode(encode(Propose(1, 1, part))) for part in pages(entries))
