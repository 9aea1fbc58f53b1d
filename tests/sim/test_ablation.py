"""Each safeguard is needed: without it a stored seed is caught, with it the same seed is clean."""

import msgspec
import pytest

from talka.cluster.leadership.timings import LAN
from tests.sim.ablation import ROWS, Row, violated
from tests.sim.elections import DRIFT_LIMIT_PPM
from tests.sim.membership_figures import RATES
from tests.sim.variants import VARIANTS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_removed_safeguard_is_caught_by_its_stored_seed(row: Row) -> None:
    assert violated(row.seed, row) in row.invariants


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_same_seed_is_clean_with_every_safeguard(row: Row) -> None:
    intact = msgspec.structs.replace(row, lacking=(), drift_limit_ppm=DRIFT_LIMIT_PPM)

    assert violated(row.seed, intact) == ""


def test_every_safeguard_has_a_row() -> None:
    rows = {name for row in ROWS for name in row.lacking}

    # Local health is a rate too: plain SWIM against Lifeguard is its row.
    assert rows | set(RATES) | {"local_health"} == set(VARIANTS)


def test_clocks_in_histories_drift_as_far_as_leases_allow_for() -> None:
    assert DRIFT_LIMIT_PPM == 1000 * LAN.drift_per_mille
