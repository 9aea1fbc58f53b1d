"""What failed means."""

import pytest

from talka.stats.tally import Exchanges, StepTally, Tally
from talka.work.failures import Failures, of_all, of_requests, of_steps, worse


def test_interrupted_and_skipped_runs_are_no_part_of_the_share() -> None:
    steps = [StepTally(ok=6, failed=2, interrupted=5, skipped=9), StepTally(ok=2)]
    assert (of_steps(steps), of_steps(steps).share) == (Failures("step", 2, 10), 0.2)


def test_a_request_that_could_not_be_sent_has_failed_and_an_interrupted_one_has_not() -> None:
    found = of_requests(Exchanges(ok=5, failed=2, interrupted=4, not_sent=3))
    assert (found, found.share) == (Failures("request", 5, 10), 0.5)


def test_where_nothing_came_to_an_end_there_is_no_share() -> None:
    assert of_steps([]).share is None and of_requests(Exchanges(interrupted=1)).share is None


@pytest.mark.parametrize(
    ("requests", "steps", "expected"),
    [
        (Exchanges(ok=5, failed=5), StepTally(ok=10), Failures("request", 5, 10)),
        (Exchanges(ok=10), StepTally(ok=5, failed=5), Failures("step", 5, 10)),
        (Exchanges(ok=8, failed=2), StepTally(ok=4, failed=1), Failures("request", 2, 10)),
        (Exchanges(), StepTally(ok=4), Failures("step", 0, 4)),
        (Exchanges(ok=4), StepTally(), Failures("request", 0, 4)),
        (Exchanges(), StepTally(), Failures("step", 0, 0)),
    ],
)
def test_failed_is_the_worse_of_steps_and_requests(requests: Exchanges, steps: StepTally, expected: Failures) -> None:
    assert of_all(Tally(exchanges=requests, steps={"get": steps})) == expected


def test_the_worse_of_two_does_not_depend_on_their_order() -> None:
    one, other = Failures("step", 1, 2), Failures("request", 9, 10)
    assert worse(one, other) == worse(other, one) == other
