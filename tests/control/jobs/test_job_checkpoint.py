"""What a manager must know to lead a job on: out of one load job, into another."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.job_checkpoint import checkpoint_of, closed_of, resume, spec_of
from talka.control.load.core_effects import JobEnded, StartCore
from talka.control.load.load_job import START_DELAY_NS, LoadJob
from talka.stats.tally import Tally
from talka.stats.windows import StepWindow, Window
from talka.units import SECOND
from talka.wire.entries import JobCheckpoint, decode_checkpoint, encode_checkpoint
from talka.wire.jobs import AttemptResult, decode_result, encode_result
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Armed, BundleSource, Refused, Settings, UrlSource
from talka.work.lifecycle import TaskState
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU
from talka.work.thresholds import Verdict, parse_threshold

if TYPE_CHECKING:
    from tests.control.conftest import Driven

WALL_NS = 1_790_000_000 * SECOND
JobOf = Callable[..., "Driven"]
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=12)}
quick = settings(deadline=None, derandomize=True, max_examples=60)


class Owner:
    """A job with what its manager keeps of it: results, and the digests of those that count."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.results: dict[int, AttemptResult] = {}
        self.closed: dict[int, str] = {}

    def _close(self, core: int, **more: Any) -> AttemptResult:
        driven = self.driven
        ended_ns = more.pop("ended_ns", driven.now)
        result = AttemptResult("job", core, ended_at_ns=ended_ns - driven.job.origin_ns, **more)
        content = encode_result(result)
        self.results[core] = decode_result(content)
        self.closed[core] = sha256(content).hexdigest()
        return result

    def result(self, core: int, started: int, **more: Any) -> None:
        result = self._close(core, tally=Tally(started=started, iterations=started), windows=[], **more)
        self.driven.take(self.driven.job.on_result(self.driven.now, core, result))

    def lose(self, core: int) -> None:
        """Its last totals are stored, then it is replaced."""
        _, _, attempt = self.driven.job.attempts[core]
        if attempt.sequence:
            self._close(
                core,
                tally=attempt.tally,
                windows=[],
                shares=attempt.shares,
                ended_ns=attempt.reported_ns,
                is_lost=True,
            )
        self.driven.exit(core, "its lease is over")

    @property
    def checkpoint(self) -> JobCheckpoint:
        return checkpoint_of(self.driven.job, self.closed, WALL_NS - self.driven.now)

    def take_over(self) -> LoadJob:
        """Another manager goes on from what is stored, as it finds the workers."""
        driven, before = self.driven, self.driven.job
        checkpoint = decode_checkpoint(encode_checkpoint(self.checkpoint))
        assert closed_of(checkpoint) == self.closed
        job = resume(
            before.spec,
            checkpoint,
            self.results,
            now=driven.now,
            origin_ns=before.origin_ns,
            start_delay_ns=START_DELAY_NS,
        )
        job.workers, job.pool = before.workers, before.pool
        for run in job.workflows.values():
            for shard in run.shards:
                if run.is_under_way and not shard.is_done:
                    job.adopt(run, shard, shard.current)
                    if before.attempts[shard.current.number][2].go_at_ns:
                        shard.current.armed, shard.current.go_at_ns = True, run.origin_ns
        driven.job = job
        driven.take(job.start(driven.now))
        if job.is_stopping:
            driven.take(job.stop_again(driven.now))
        return job

    def stand(self) -> dict[str, object]:
        """Everything of the job that people see, and what decides how it goes on."""
        job = self.driven.job
        return {
            "workflows": [
                (
                    run.spec.name,
                    run.state,
                    run.origin_ns,
                    # Of what never began it is only known that it ended, and its state says that.
                    run.ended_ns if run.origin_ns else 0,
                    run.failure,
                    run.has_timed_out,
                    run.cores,
                    run.provided,
                    [
                        (shard.shard, shard.tries, shard.done_by_shard, shard.is_done, shard.is_replaced)
                        for shard in run.shards
                    ],
                )
                for run in job.workflows.values()
            ],
            "running": {core: attempt.place for core, (_, _, attempt) in job.attempts.items()},
            "tally": job.tally(),
            "lost": [
                (lost.workflow, lost.shard, lost.cause, lost.from_ns, lost.to_ns, lost.arrivals_missing)
                for lost in job.lost
            ],
            "started": job.cores_started,
            "stopping": job.is_stopping,
            "ended": self.driven.has_ended,
        }


# -- one thing after the other


def test_a_job_of_which_nothing_has_begun_begins_with_the_next_manager(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}, places={}))
    owner.driven.start()
    assert owner.checkpoint.origin_ms == 0

    job = owner.take_over()
    job.workers = {"w1": 2}
    (effect,) = owner.driven.start()

    assert isinstance(effect, StartCore)
    assert (effect.attempt, effect.place) == (1, "w1")


def test_attempts_that_another_manager_assigned_are_gone_on_with_and_new_ones_get_new_numbers(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1}))
    driven = owner.driven
    driven.start()
    driven.arm(1)

    owner.take_over()

    assert driven.arm(1) == [], "the other one is not ready"
    driven.job.workers = {"w1": 1, "w3": 1}
    (effect,) = driven.exit(2)
    assert isinstance(effect, StartCore)
    assert (effect.attempt, effect.place) == (3, "w3")
    assert len(driven.arm(3)) == 2, "all go together"


def test_instants_are_kept_since_the_start_and_the_start_by_the_wall_clock(job_of: JobOf) -> None:
    owner = Owner(
        job_of({"First": {"shape": ConstantVUs(1, "1s")}, "Shop": {**ARRIVALS, "after": {"First"}}}, places={"w1": 1})
    )
    driven = owner.driven
    driven.run()
    driven.later(1)
    owner.result(1, 5)
    driven.later(1).arm(2)
    driven.later(1)
    origin_ns = driven.job.origin_ns
    checkpoint = owner.checkpoint
    assert checkpoint.origin_ms == (origin_ns + WALL_NS - driven.now) // 1_000_000
    assert [(entry.origin_ns, entry.ended_ns, entry.stopped_ns) for entry in checkpoint.workflows] == [
        (0, SECOND, -1),
        (2 * SECOND + START_DELAY_NS, -1, -1),
    ]

    # The next manager's clock is another one.
    job = resume(driven.job.spec, checkpoint, owner.results, now=50, origin_ns=7 * SECOND, start_delay_ns=0)

    assert (job.origin_ns, job.workflows["First"].ended_ns) == (7 * SECOND, 8 * SECOND)
    assert job.workflows["Shop"].origin_ns == 9 * SECOND + START_DELAY_NS
    assert (job.workflows["Shop"].ended_ns, job.workflows["Shop"].stopped_ns) == (0, 0)
    assert job.workflows["First"].shards[0].current.ended_at_ns == 8 * SECOND


def test_what_was_accepted_is_known_with_its_windows_its_values_and_its_engine(job_of: JobOf) -> None:
    flows = [("Login", "token")]
    owner = Owner(
        job_of(
            {"Login": {"shape": ConstantVUs(1, "1s")}, "Shop": {**ARRIVALS, "after": {"Login"}, "flows": flows}},
            places={"w1": 1},
        )
    )
    driven = owner.driven
    driven.run()
    driven.later(1)
    owner.result(1, 5, provided={"token": b"t"}, notes=("the seed was 7",), engine="python")
    owner.results[1].windows.append(Window(3, started=5, steps={"token": StepWindow(count=4)}))

    job = owner.take_over()

    assert job.engine == "python"
    assert job.workflows["Login"].provided == {"token": b"t"}
    assert job.workflows["Login"].notes == ["the seed was 7"]
    assert [span.window.started for span in job.timeline.spans()] == [5]
    assert [span.window.steps["token"].count for span in job.workflows["Login"].timeline.spans()] == [4]
    assert job.values_for(job.workflows["Shop"]) == {"Login": {"token": b"t"}}


def test_a_result_that_was_accepted_but_not_yet_worked_out_is_left_to_the_manager(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}, places={"w1": 1}))
    driven = owner.driven
    driven.run()
    driven.later(1)
    owner._close(1, tally=Tally(started=5), windows=[])  # stored, and then its manager died

    job = owner.take_over()

    assert job.tally().started == 0
    assert driven.take(job.on_result(driven.now, 1, owner.results[1])) == [JobEnded()]
    assert job.tally().started == 5


def test_a_lost_attempts_last_totals_stay_and_provide_nothing(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": {"shape": IterationsPerVU(2, 100)}}, places={"w1": 2, "w2": 2}))
    driven = owner.driven
    driven.run()
    driven.later(1).report(1, Tally(started=30), shares=(10, 20))
    driven.later(1)
    driven.job.workers = {"w2": 2}
    owner.lose(1)

    job = owner.take_over()

    (shard,) = job.workflows["Shop"].shards
    assert shard.done_by_shard == (10, 20)
    assert [attempt.place for attempt in shard.attempts] == ["w1", "w2"]
    assert shard.gap is job.own_lost[0], "it is still open"
    driven.later(1).arm(2)
    assert [(lost.from_ns, lost.to_ns) for lost in job.lost] == [(SECOND, 3 * SECOND)]


def test_a_task_that_was_cut_goes_on_in_its_parts(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": {"shape": IterationsPerVU(3, 100)}}, places={"w1": 3}))
    driven = owner.driven
    driven.run()
    driven.later(1).report(1, Tally(started=60), shares=(10, 20, 30))
    driven.job.workers = {"w2": 2, "w3": 1}
    driven.later(1)
    owner.lose(1)
    before = owner.stand()

    job = owner.take_over()

    assert owner.stand() == before
    whole, first, second = job.workflows["Shop"].shards
    assert (whole.is_replaced, whole.is_done, first.is_replaced, first.is_done) == (True, True, False, False)
    assert (first.done_by_shard, second.done_by_shard) == ((10, 20), (30,))
    assert (whole.tries, first.tries, second.tries) == (1, 2, 2)
    assert job.workflows["Shop"].cores == 3
    assert [first.gap, second.gap] == job.own_lost
    driven.later(1).arm(2, 3)
    assert [(lost.shard, lost.from_ns, lost.to_ns) for lost in job.lost] == [
        (0, SECOND, 3 * SECOND),
        (2, SECOND, 3 * SECOND),
    ]


def test_the_gap_of_an_attempt_whose_loss_is_stored_begins_with_its_last_report(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1}))
    driven = owner.driven
    driven.run()
    driven.later(2).report(1, Tally(started=70))
    owner._close(1, tally=Tally(started=70), windows=[], is_lost=True)  # and then its manager died
    driven.later(3)
    job = owner.take_over()

    _, _, attempt = job.attempts[1]
    attempt.on_result(driven.now, owner.results[1], job.origin_ns)
    driven.exit(1, "its lease is over")

    assert [(lost.from_ns, lost.to_ns) for lost in job.lost] == [(2 * SECOND, 5 * SECOND)]
    assert job.tally().started == 70


def test_why_a_workflow_ended_and_the_job_stops_is_known(job_of: JobOf) -> None:
    owner = Owner(
        job_of({"Shop": {**ARRIVALS, "timeout_s": 2}, "Side": {"shape": ConstantVUs(1, "10s")}}, places={"w1": 2})
    )
    driven = owner.driven
    driven.run()
    driven.say(driven.cores("Side")[0], Refused("setup", "no such host"))
    driven.later(3).tick()
    driven.job.aborted = Verdict("failed < 1%", 0.5, False, "50 %")

    job = owner.take_over()

    side, shop = job.workflows["Side"], job.workflows["Shop"]
    assert (side.state, side.failure, side.refused) == (
        TaskState.FAILED,
        "no such host",
        Refused("setup", "no such host"),
    )
    assert (shop.has_timed_out, shop.failure) == (True, "it ran longer than its timeout of 2 s")
    assert shop.stopped_ns == driven.now
    assert job.aborted == Verdict("failed < 1%", 0.5, False, "50 %")
    assert job.interrupted_by is None
    driven.interrupt()
    assert owner.take_over().interrupted_by == "cancel"


def test_what_ended_before_the_load_began_ended_when_the_next_manager_looks(job_of: JobOf) -> None:
    owner = Owner(job_of({"Side": {"shape": ConstantVUs(1, "10s")}, "Shop": ARRIVALS}, places={"w1": 2}))
    driven = owner.driven
    driven.start()
    driven.say(driven.cores("Side")[0], Refused("setup", "no such host"))
    driven.later(5)

    job = owner.take_over()

    assert (job.workflows["Side"].state, job.workflows["Side"].ended_ns) == (TaskState.FAILED, driven.now)


def test_what_ended_between_the_order_and_the_instant_ended_with_the_instant(job_of: JobOf) -> None:
    owner = Owner(job_of({"Side": {"shape": ConstantVUs(1, "10s")}, "Shop": ARRIVALS}, places={"w1": 2}))
    driven = owner.driven
    driven.start()
    driven.arm(*driven.cores("Shop"))
    driven.say(driven.cores("Side")[0], Refused("setup", "no such host"))
    assert driven.now < driven.job.origin_ns

    job = owner.take_over()

    assert job.workflows["Side"].ended_ns == job.origin_ns


def test_a_job_whose_workflows_have_all_ended_ends_with_the_next_manager(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}, places={"w1": 1}))
    driven = owner.driven
    driven.run()
    driven.later(4)
    owner.result(1, 9)
    before = driven.job
    driven.later(60).effects.clear()

    owner.take_over()

    assert driven.effects == [JobEnded()]
    assert driven.job.ended_ns == before.ended_ns


# -- orders


def order(**bundle: Any) -> JobOrder:
    workflow = WorkflowOrder(
        name="Shop",
        plan=ConstantRate(100, "10s").plan(),
        priority="high",
        is_test=False,
        depends_on=("Login", "Seed"),
        timeout_ns=70 * SECOND,
        thresholds=(parse_threshold("failed < 1%"),),
        flows=(("Login", "token"),),
        load="100/s",
        nodes=(),
    )
    facts = BundleFacts("0" * 64, 70, b"", "tests/shop.py", **bundle)
    return JobOrder("shop", facts, (workflow,), Settings(30 * SECOND), (parse_threshold("rate > 50/s"),))


def test_an_order_becomes_what_the_planner_sees() -> None:
    spec = spec_of("b4k7", order(), 6)

    assert (spec.job, spec.cores, spec.settings) == ("b4k7", 6, Settings(30 * SECOND))
    assert spec.thresholds == (parse_threshold("rate > 50/s"),)
    assert spec.source == BundleSource("", "0" * 64, "tests/shop.py", "")
    assert spec.workflows == order().workflows


def test_an_order_of_a_url_has_no_bundle() -> None:
    assert spec_of("b4k7", order(url="http://shop/"), 1).source == UrlSource("http://shop/")


# -- whatever happens


WORKFLOWS = {
    "Login": {"shape": IterationsPerVU(1, 1), "is_test": False},
    "Shop": {**ARRIVALS, "after": {"Login"}},
    "Side": {"shape": IterationsPerVU(6, 50)},
}
PLACES = {"w1": 2, "w2": 2, "w3": 1}


@given(data=st.data())
@quick
def test_a_job_goes_on_the_same_however_often_its_manager_changes(job_of: JobOf, data: st.DataObject) -> None:
    steady, changing = (Owner(job_of(WORKFLOWS, cores=5, places=PLACES)) for _ in range(2))
    both = (steady, changing)
    for owner in both:
        owner.driven.start()
    counted: dict[int, list[int]] = {}

    def report(core: int, more: int) -> None:
        for owner in both:
            shard = owner.driven.job.attempts[core][1]
            shares = counted.setdefault(core, [0] * shard.shard.count)
            if owner is steady:
                shares[more % len(shares)] += more
            owner.driven.report(core, Tally(started=sum(shares)), shares=tuple(shares), vus=more)

    for _ in range(data.draw(st.integers(5, 30))):
        if steady.driven.has_ended:
            break
        event = data.draw(
            st.sampled_from(["arm", "arm", "report", "result", "lose", "worker lost", "change", "tick", "interrupt"])
        )
        for owner in both:
            owner.driven.later(0.25)
        running = steady.driven.job.attempts
        going = [core for core, (_, _, attempt) in running.items() if attempt.go_at_ns]
        waiting = [core for core in running if core not in going]
        if event == "arm" and waiting:
            ready = data.draw(st.just(waiting) | st.sampled_from(waiting).map(lambda core: [core]))
            for owner in both:
                for core in ready:
                    owner.driven.say(core, Armed())
        elif event == "report" and going:
            report(data.draw(st.sampled_from(going)), data.draw(st.integers(0, 9)))
        elif event == "result" and going:
            core = data.draw(st.sampled_from(going))
            for owner in both:
                owner.result(core, 7, provided={"token": str(core).encode()})
        elif event == "lose" and running:
            core = data.draw(st.sampled_from(sorted(running)))
            for owner in both:
                owner.lose(core)
        elif event == "worker lost":
            places = steady.driven.job.workers or {}
            lost = data.draw(st.sampled_from(sorted(places)))
            left = {place: cores for place, cores in places.items() if place != lost}
            left[f"{lost}+"] = data.draw(st.integers(1, 2))
            for owner in both:
                owner.driven.job.workers = dict(left)
                for core in sorted(owner.driven.job.attempts_at(lost)):
                    if not owner.driven.has_ended and core in owner.driven.job.attempts:
                        owner.lose(core)
        elif event == "change":
            armed = [core for core in waiting if running[core][2].armed]
            changing.take_over()
            for core in going:  # workers tell everything again
                report(core, 0)
            for core in armed:
                for owner in both:
                    owner.driven.say(core, Armed())
        elif event == "interrupt" and data.draw(st.booleans()):
            for owner in both:
                owner.driven.take(owner.driven.job.interrupt(owner.driven.now, "cancel"))
        elif event == "tick":
            for owner in both:
                owner.driven.later(1).tick()
        assert changing.stand() == steady.stand()


def test_local_shards_are_on_no_checkpoint(job_of: JobOf) -> None:
    owner = Owner(job_of({"Shop": ARRIVALS}))
    owner.driven.start()

    with pytest.raises(AssertionError):
        _ = owner.checkpoint


def test_who_sits_where_and_with_whom_is_known_to_the_next_manager(job_of: JobOf) -> None:
    driven = job_of({name: ARRIVALS for name in "ABCD"}, places={"w1": 1, "w2": 1})
    driven.run()
    sat = {core: (attempt.place, attempt.seats) for core, (_, _, attempt) in driven.job.attempts.items()}
    shared = {name: list(run.shares_with) for name, run in driven.job.workflows.items()}

    job = Owner(driven).take_over()

    assert {core: (attempt.place, attempt.seats) for core, (_, _, attempt) in job.attempts.items()} == sat
    assert {name: list(run.shares_with) for name, run in job.workflows.items()} == shared
    gone = job.attempts_at("w2")
    job.workers = {"w1": 1, "w3": 1}
    assert [job.room_besides(core) for core in gone] == [1, 1], "they may share again"


def test_attempts_of_a_checkpoint_that_names_no_seats_sit_on_the_first_ones(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 3})
    driven.run()
    driven.job.attempts[1][2].seats = ()

    job = Owner(driven).take_over()

    assert job.attempts[1][2].seats == (0, 1, 2)
