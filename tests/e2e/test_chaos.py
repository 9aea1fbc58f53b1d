"""A few rounds of chaos with fixed seeds; `make chaos` runs many more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from talka.units import SECOND
from tests.e2e.chaos import table
from tests.e2e.chaos_cluster import ChaosCluster, flows_again_ns
from tests.e2e.chaos_rounds import CLOCKS_S, KINDS, Draw, Outcome, Round, drawn
from tests.e2e.chaos_store import StoreRound
from tests.e2e.moved_clock import MovedClock


@pytest.fixture(scope="module")
def chaos_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosCluster]:
    folder: Path = tmp_path_factory.mktemp("chaos")
    cluster = ChaosCluster(folder)
    try:
        yield cluster.open()
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        pytest.param(11, [("worker", "kill"), ("core", "kill")], id="worker, then core killed"),
        pytest.param(12, [("owner", "kill"), ("cancel", "plain"), ("cancel", "deaf")], id="owner killed, then cancels"),
        pytest.param(14, [("hostile", "member")], id="a hostile member"),
        pytest.param(16, [("worker", "freeze")], id="worker frozen"),
        pytest.param(17, [("owner", "skew"), ("worker", "skew")], id="owner, then worker of the next version"),
        pytest.param(13, [("leader", "kill"), ("cancel", "push lost")], id="leader killed, then a cancel that is lost"),
    ],
)
@pytest.mark.serial
def test_every_job_ends_with_true_counts_in_time_whoever_is_struck(
    chaos_cluster: ChaosCluster, seed: int, kinds: list[tuple[str, str]]
) -> None:
    for number, (role, fault) in enumerate(kinds):
        outcome = Round(chaos_cluster, Draw(seed * 100 + number, seed, role, fault)).run()
        assert not outcome.broken, outcome.line()
        assert outcome.recovery_s is not None or role == "hostile", outcome.line()


@pytest.mark.parametrize("fault", ["backup", "new"])
@pytest.mark.serial
def test_no_task_completes_with_what_was_done_for_a_store_that_was_replaced(tmp_path: Path, fault: str) -> None:
    outcome = StoreRound(tmp_path, Draw(1400, 14, "store", fault)).run()

    assert not outcome.broken, outcome.line()
    assert outcome.counted >= 24


@pytest.mark.skipif(bool(MovedClock.why_not()), reason=MovedClock.why_not())
@pytest.mark.serial
def test_a_manager_whose_clock_is_moved_while_a_job_runs_counts_as_if_it_were_not(chaos_cluster: ChaosCluster) -> None:
    for number, fault in enumerate(CLOCKS_S):
        outcome = Round(chaos_cluster, Draw(1500 + number, 15, "manager", fault)).run()
        assert not outcome.broken, outcome.line()


@pytest.mark.parametrize(
    ("seen_s", "flows_again_s"),
    [
        pytest.param([(1, 10), (2.2, 20), (2.4, 30)], 2.2, id="grows at once"),
        pytest.param([(1, 10), (2.2, 20), (5, 30), (5.3, 40)], 5, id="the last words before the silence do not count"),
        pytest.param([(1, 10), (3, 10), (4, 20)], 4, id="an update without growth does not count"),
        pytest.param([(1, 10), (3, 10)], None, id="never"),
    ],
)
def test_progress_flows_again_when_the_last_silence_ends(
    seen_s: list[tuple[float, int]], flows_again_s: float | None
) -> None:
    seen = [(round(at_s * SECOND), counted) for at_s, counted in seen_s]

    found_ns = flows_again_ns(seen, 2 * SECOND)

    assert found_ns == (None if flows_again_s is None else round(flows_again_s * SECOND))


def test_the_same_seed_draws_the_same_blows() -> None:
    one, same = ([drawn(number, 7, kind) for number, kind in enumerate(KINDS)] for _ in range(2))

    assert one == same
    assert [draw.dice().random() for draw in one] == [draw.dice().random() for draw in same]
    assert one != [drawn(number, 8, kind) for number, kind in enumerate(KINDS)]


def test_the_table_tells_outcomes_and_the_worst_recovery_of_each_kind() -> None:
    draw = Draw(1, 7, "worker", "kill")
    outcomes = [Outcome(draw, status="partial", recovery_s=s, broken=broken) for s, broken in [(5.0, []), (7.0, ["x"])]]

    _, row = table(outcomes).splitlines()

    assert row.split() == ["worker", "kill", "2", "2", "partial", "6.00", "s", "7.00", "s", "1"]
