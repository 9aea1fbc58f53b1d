"""Histories of members, one per test, for `make mutants`: those of `make test` come in chunks."""

import pytest

from tests.sim import membership

SEEDS = range(1, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_seed_violates_an_invariant(seed: int) -> None:
    assert membership.run(seed).violations == []
