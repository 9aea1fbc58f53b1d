"""Ends of cores, as they are told."""

from talka.wire.core_end import encode_end, last_end


def test_the_last_of_several_ends_counts() -> None:
    assert last_end(encode_end(5) + encode_end(7)) == 7


def test_where_nothing_was_told_there_is_no_end() -> None:
    assert last_end(b"") == 0
