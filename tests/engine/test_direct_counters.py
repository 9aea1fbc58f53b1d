"""The counters in C against the histograms in Python that they are poured into."""

import random

import pytest

from talka.engine.load import native
from talka.stats.histogram import COARSE_PRECISION, HIGHEST, PRECISION, CoarseHistogram, Histogram

if (obstacle := native.available()) is not None:
    pytest.skip(f"the native engine: {obstacle}", allow_module_level=True)

from talka._native import DenseHistogram

EDGES = [
    edge + step
    for precision in (COARSE_PRECISION, PRECISION)
    for bits in range(1, 34)
    for edge in (1 << bits, (1 << bits) + (1 << max(0, bits - precision)), HIGHEST)
    for step in (-1, 0, 1)
]


def values_of(seed: int) -> list[int]:
    """Of every size, and around every place where the layout changes."""
    source = random.Random(seed)
    drawn = [source.randrange(1 << source.randrange(1, 40)) for _ in range(2000)]
    return [*drawn, *source.choices(EDGES, k=500), -1, -(10**30), 10**30, 0]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_drained_is_what_the_python_histogram_counts(seed: int) -> None:
    dense, sparse = DenseHistogram(PRECISION), Histogram()
    for value in values_of(seed):
        dense.record(value)
        sparse.record(value)
    assert Histogram(*dense.drain()) == sparse


@pytest.mark.parametrize("seed", range(20))
def test_what_is_drained_coarsely_is_what_the_coarse_histogram_counts(seed: int) -> None:
    dense, sparse = DenseHistogram(COARSE_PRECISION), CoarseHistogram()
    for value in values_of(seed):
        dense.record(value)
        sparse.record(value)
    counts, count, _, _, greatest = dense.drain()
    assert CoarseHistogram(counts, count, greatest) == sparse


def test_every_value_around_an_edge_has_its_own_counter() -> None:
    for value in EDGES:
        dense, sparse = DenseHistogram(PRECISION), Histogram()
        dense.record(value)
        sparse.record(value)
        assert Histogram(*dense.drain()) == sparse, value


def test_draining_in_pieces_adds_up_to_draining_once() -> None:
    whole, pieces, dense = Histogram(), Histogram(), DenseHistogram(PRECISION)
    for place, value in enumerate(values_of(1)):
        whole.record(value)
        dense.record(value)
        if place % 97 == 0:
            pieces.merge(Histogram(*dense.drain()))
    pieces.merge(Histogram(*dense.drain()))
    assert pieces == whole


def test_an_empty_histogram_drains_nothing() -> None:
    dense = DenseHistogram(PRECISION)
    assert dense.drain() == ({}, 0, 0, 0, 0)
    dense.record(7)
    dense.drain()
    assert dense.drain() == ({}, 0, 0, 0, 0)


def test_other_precisions_and_what_is_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match="8 bits"):
        DenseHistogram(8)
    with pytest.raises(TypeError):
        DenseHistogram(PRECISION).record("1")
