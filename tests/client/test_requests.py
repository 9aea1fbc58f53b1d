"""Errors become problem documents and come out of them again."""

import pytest

from talka.client.requests import (
    PROBLEMS,
    BundleMissing,
    ClusterUnreachable,
    Forbidden,
    NoSuchJob,
    NoSuchWorker,
    NotAuthorised,
    NotEnded,
    Problem,
    TooBusy,
    error_of,
    problem_of,
)
from talka.errors import Invalid, TalkaError, Unavailable


@pytest.mark.parametrize("kind", PROBLEMS, ids=[kind.name for kind in PROBLEMS])
def test_every_error_survives_the_way_through_a_problem_document(kind) -> None:
    problem = problem_of(kind.error("it cannot be"), "/v1/jobs")

    assert (problem.status, problem.detail, problem.instance) == (kind.status, "it cannot be", "/v1/jobs")
    error = error_of(problem)
    assert type(error) is kind.error
    assert str(error) == "it cannot be"


def test_no_kind_of_problem_hides_one_behind_it() -> None:
    for position, kind in enumerate(PROBLEMS):
        assert not any(issubclass(kind.error, earlier.error) for earlier in PROBLEMS[:position]), kind.name
    assert len({kind.name for kind in PROBLEMS}) == len(PROBLEMS)


def test_an_error_of_no_kind_is_internal() -> None:
    assert problem_of(TalkaError("hm")).status == 500


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, NotAuthorised), (403, Forbidden), (429, TooBusy), (404, Invalid), (503, Unavailable), (500, Unavailable)],
)
def test_a_problem_of_somebody_elses_is_told_by_its_status(status: int, error: type[TalkaError]) -> None:
    found = error_of(Problem("about:blank", "Title", status))

    assert type(found) is error
    assert str(found) == "Title"


def test_how_long_to_wait_is_kept() -> None:
    error = error_of(problem_of(TooBusy("later")), retry_after_s=7)

    assert isinstance(error, TooBusy)
    assert error.retry_after_s == 7
    assert [TooBusy("", seconds).retry_after_header for seconds in (0.01, 1.0, 1.2)] == ["1", "1", "2"]


def test_errors_are_on_the_branches_that_say_what_to_do() -> None:
    assert issubclass(NotAuthorised, ClusterUnreachable)
    assert issubclass(BundleMissing, Invalid)
    assert "no job x" in str(NoSuchJob.named("x"))
    assert "no worker x" in str(NoSuchWorker.named("x"))
    assert str(NotEnded.named("x", "queued")) == "job x is queued: there is no result yet"
