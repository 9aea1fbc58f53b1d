"""The steps of a job that is watched, merged a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from talka.control.jobs.step_merge import MERGE_EVERY_NS, MERGED_AT_ONCE, StepMerge
from talka.stats.tally import StepTally, Tally
from talka.work.shapes import ConstantVUs

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]


def watched(job_of: JobOf, *, workers: int, steps: int) -> Driven:
    places = {f"w{number}": 1 for number in range(workers)}
    driven = job_of({"Shop": {"shape": ConstantVUs(workers, "60s")}}, places=places, cores=workers)
    driven.run()
    for core in range(1, workers + 1):
        driven.result(core, Tally(started=core, steps={f"step {index}": StepTally(ok=core) for index in range(steps)}))
    return driven


def test_a_small_job_is_merged_at_once(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=2, steps=3), StepMerge()

    merge.advance(driven.now, driven.job)

    assert merge.passes == 1
    assert {name: tally.steps["step 2"].ok for name, tally in merge.latest.items()} == {"Shop": 3}


def test_what_is_told_has_the_status_codes_that_the_api_shows(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=2, steps=1), StepMerge()
    for shard in driven.job.workflows["Shop"].shards:
        for attempt in shard.attempts:
            attempt.tally = Tally(calls={"step 0": {"page": StepTally(outcomes={"200": 2, "OK": 1})}})

    merge.advance(driven.now, driven.job)

    page = merge.latest["Shop"].calls["step 0"]["page"]
    assert (page.status_codes, page.outcomes) == ({200: 4}, {"200": 4, "OK": 2})


def test_a_large_job_is_merged_in_turns_that_each_take_only_so_much(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=MERGED_AT_ONCE, steps=3), StepMerge()
    turns = 0

    while not merge.passes:
        assert merge.latest == {}, "what is not whole is not told"
        merge.advance(driven.now + turns * MERGE_EVERY_NS, driven.job)
        turns += 1

    assert turns == 1 + 3, "each attempt counts for its steps and one more"
    assert merge.latest["Shop"] == driven.job.workflows["Shop"].tally()


def test_an_attempt_with_more_steps_than_a_turn_bears_is_merged_all_the_same(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=2, steps=2 * MERGED_AT_ONCE), StepMerge()

    merge.advance(driven.now, driven.job)
    assert merge.passes == 0
    merge.advance(driven.now + MERGE_EVERY_NS, driven.job)

    assert merge.passes == 1


def test_however_often_it_is_called_it_works_at_a_steady_pace(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=1, steps=1), StepMerge()

    merge.advance(driven.now, driven.job)
    merge.advance(driven.now + MERGE_EVERY_NS - 1, driven.job)
    assert merge.passes == 1
    merge.advance(driven.now + MERGE_EVERY_NS, driven.job)

    assert merge.passes == 2


def test_every_pass_counts_anew(job_of: JobOf) -> None:
    driven, merge = watched(job_of, workers=2, steps=1), StepMerge()
    merge.advance(driven.now, driven.job)
    first = merge.latest

    merge.advance(driven.now + MERGE_EVERY_NS, driven.job)

    assert merge.latest == first and merge.latest is not first
