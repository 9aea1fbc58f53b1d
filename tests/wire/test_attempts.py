"""Names of attempts; that they arrive as they were said is in `test_channels.py`."""

import pytest

from talka.wire.attempts import StoreLife


@pytest.mark.parametrize(
    ("partition", "partitions", "shown"),
    [(0, 1, "store 5706e, life 11fe"), (1, 2, "store 5706e, life 11fe, partition 1 of 2")],
    ids=["only one", "one of two"],
)
def test_a_life_is_told_with_its_partition_where_there_are_several(partition: int, partitions: int, shown: str) -> None:
    assert str(StoreLife(0x5706E, 0x11FE, 0x09E4, partition, partitions)) == shown
