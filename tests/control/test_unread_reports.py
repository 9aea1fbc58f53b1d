"""Reports of workers: read only when somebody looks, and taken only when nothing of them is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from talka.control.load.core_effects import TellCore, WorkflowLate
from talka.control.load.load_job import MERGE_STEP_NS
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.wire.shards import Ack, MetricTotals, StepTotals, Stop, Unread, decode_unread, encode_unread
from talka.work.deadlines import EXTENSION_BASE_NS
from talka.work.shapes import ConstantRate, IterationsPerVU

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=12)}


def placed(job_of: JobOf, **workflow: object) -> Driven:
    driven = job_of({"Shop": {**ARRIVALS, **workflow}}, places={"w1": 1})
    driven.run()
    driven.later(1)
    return driven


def hear(driven: Driven, message: Unread) -> None:
    assert driven.take(driven.job.on_message(driven.now, 1, message)) == []


def step(driven: Driven, sequence: int, name: str, ok: int, *, measured: bool = True) -> None:
    hear(driven, decode_unread(encode_unread(StepTotals(sequence, name, StepTally(ok=ok), measured))))


def call(driven: Driven, sequence: int, node: str, name: str, ok: int, *, is_read: bool = False) -> None:
    message = StepTotals(sequence, node, StepTally(ok=ok), False, name)
    hear(driven, message if is_read else decode_unread(encode_unread(message)))


def metric(driven: Driven, sequence: int, name: str, values: int) -> None:
    hear(driven, decode_unread(encode_unread(MetricTotals(sequence, name, MetricTally("count", values)))))


def test_steps_actions_and_metrics_count_once_their_report_is_closed_and_are_read_when_looked_at(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)
    step(driven, 1, "log_in", 2, measured=False)
    metric(driven, 1, "size", 4)
    assert driven.job.tally() == Tally()

    driven.report(1, Tally(started=9), parts=3)

    (shard,) = driven.job.workflows["Shop"].shards
    assert (shard.current.counts.started, shard.current.counts.steps) == (9, {}), "nobody has looked"
    tally = driven.job.tally()
    assert (tally.started, tally.steps["buy"].ok, tally.actions["log_in"].ok) == (9, 3, 2)
    assert tally.metrics["size"].values == 4
    assert shard.current.counts.steps["buy"].ok == 3


def test_calls_count_by_the_method_that_made_them_and_by_name(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)
    call(driven, 1, "buy", "buy", 3)
    call(driven, 1, "buy", "page", 4, is_read=True)
    call(driven, 1, "look", "page", 5)
    driven.report(1, Tally(started=9), parts=4)
    call(driven, 2, "buy", "page", 6, is_read=True)
    driven.report(1, Tally(started=10), parts=1)

    calls = driven.job.tally().calls
    assert {node: {name: row.ok for name, row in rows.items()} for node, rows in calls.items()} == {
        "buy": {"buy": 3, "page": 6},
        "look": {"page": 5},
    }


def test_the_latest_of_each_name_wins_and_what_did_not_change_stays(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)
    step(driven, 1, "look", 5)
    driven.report(1, parts=2)
    step(driven, 2, "look", 6)
    driven.report(1, parts=1)
    step(driven, 2, "look", 1)
    metric(driven, 2, "size", 9)
    driven.report(1)

    tally = driven.job.tally()
    assert {name: one.ok for name, one in tally.steps.items()} == {"buy": 3, "look": 6}
    assert tally.metrics == {}, "parts of a report that is closed come too late"


def test_a_report_of_which_a_part_is_missing_is_neither_taken_nor_acknowledged(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)

    assert driven.report(1, Tally(started=9), parts=2) == []
    assert driven.job.tally() == Tally()
    step(driven, 2, "buy", 4)
    assert driven.report(1, Tally(started=10), parts=2) == [], "a part of the one before is none of this"
    step(driven, 3, "buy", 5)
    metric(driven, 3, "size", 1)
    assert driven.report(1, Tally(started=11), parts=2) == [TellCore(1, Ack(3))]

    assert (driven.job.tally().started, driven.job.tally().steps["buy"].ok) == (11, 5)


def test_what_turns_out_to_be_no_tally_leaves_what_was_known(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)
    metric(driven, 1, "size", 4)
    driven.report(1, parts=2)
    assert driven.job.tally().steps["buy"].ok == 3
    wrong = [msgspec.msgpack.encode(tally) for tally in ({"ok": "many"}, 7, {"kind": "odd"})]
    for parts in ([17, 2, "buy", wrong[0], True], [17, 2, "look", wrong[1], True], [18, 2, "size", wrong[2]]):
        hear(driven, decode_unread(msgspec.msgpack.encode(parts)))
    step(driven, 2, "pay", 1)
    driven.report(1, parts=4)

    tally = driven.job.tally()
    assert {name: one.ok for name, one in tally.steps.items()} == {"buy": 3, "pay": 1}
    assert tally.metrics["size"].values == 4


def test_a_result_replaces_what_nobody_has_read(job_of: JobOf) -> None:
    driven = placed(job_of)
    step(driven, 1, "buy", 3)
    driven.report(1, parts=1)

    driven.result(1, Tally(started=9))

    assert driven.job.tally() == Tally(started=9)


def test_counts_leave_out_what_takes_long_to_merge(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    first = Tally(started=4, iterations=3, dropped=1)
    first.exchanges.ok = 7
    driven.result(1, first)
    driven.result(2, Tally(started=5, iterations=5, steps={"buy": StepTally(ok=5)}))

    counts = driven.job.workflows["Shop"].counts()

    assert (counts.started, counts.iterations, counts.dropped, counts.exchanges.ok) == (9, 8, 1, 7)
    assert counts.steps == {}
    assert driven.job.merging_ns == 3 * MERGE_STEP_NS, "one for each attempt, and one for the step"


# -- timeouts on a cluster


def test_a_workflow_that_is_late_and_advances_is_given_more_time_and_that_is_noted(job_of: JobOf) -> None:
    driven = placed(job_of, shape=IterationsPerVU(1, 1000), timeout_s=5)
    driven.later(4).report(1, Tally(started=5))
    assert driven.tick() == []
    driven.later(0.5)

    assert driven.tick() == [
        WorkflowLate("Shop", "given", "it was late and its cores worked, so it was given 2.5s more")
    ]

    run = driven.job.workflows["Shop"]
    assert (run.has_timed_out, len(run.notes)) == (False, 1)
    assert driven.later(0.1).tick() == [], "the time it was given is not over"
    driven.now += EXTENSION_BASE_NS
    assert driven.tick() == [TellCore(1, Stop())], "it did not advance"
    assert run.failure == "it ran longer than its timeout of 5 s: it was given 2.5s more, in 1 extension"


def test_a_workflow_that_is_late_and_does_not_advance_is_stopped(job_of: JobOf) -> None:
    driven = placed(job_of, shape=IterationsPerVU(1, 1000), timeout_s=5)

    assert driven.later(5).tick() == [TellCore(1, Stop())]
    assert driven.job.workflows["Shop"].notes == []
