"""Each safeguard is needed: without it a stored seed is caught, with it the same seed is clean."""

import msgspec
import pytest

from talka.cluster.safeguards import ALL
from tests.sim.ablation import ROWS, violated
from tests.sim.membership_figures import RATES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_removed_safeguard_is_caught_by_its_stored_seed(row) -> None:
    assert violated(row.seed, row.safeguards, row.drift_limit_ppm) in row.invariants


@pytest.mark.parametrize("seed", sorted({row.seed for row in ROWS}))
def test_the_same_seed_is_clean_with_every_safeguard(seed: int) -> None:
    assert violated(seed) == ""


def test_every_switch_has_a_row() -> None:
    rows = {name for row in ROWS for name, is_on in msgspec.structs.asdict(row.safeguards).items() if not is_on}

    # Local health is a rate too: plain SWIM against Lifeguard is its row.
    assert rows | set(RATES) | {"local_health"} == set(msgspec.structs.asdict(ALL))
