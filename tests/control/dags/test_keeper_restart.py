"""A manager that starts again goes on with its dag jobs as the store has them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.tasks import delivery
from talka.errors import Invalid
from talka.wire.tasks import AskHeld, HandlerProgress, Held, Recall, TaskProgress
from talka.work.dags.dag import EMPTY, Limit, Retry
from talka.work.dags.records import ClaimTask, Complete, DropJob, PutAttempt
from talka.work.lifecycle import JobState, TaskState
from tests.control.dag_play import DagPlay

Play = Any
PlayOf = Callable[..., Any]


# Jobs in every state.


def test_a_job_that_waited_goes_on(play: Play) -> None:
    id = play.submit({"a": "", "b": "a"})
    play.restart()
    play.go_on()
    play.beat("w")
    assert play.names() == {"a"}
    play.done("a")
    play.done("b")
    assert [(one.job, one.state) for one in play.ended] == [(id, JobState.COMPLETED)]


def test_what_was_not_durable_is_not_there(play: Play) -> None:
    play.submit({"a": ""})
    play.hold()
    play.submit({"b": ""})
    play.beat("w")
    play.restart()
    play.go_on()
    assert [job.tasks[0].id for job in play.keeper.jobs.values()] == ["a"]
    play.beat("w")
    assert play.handed[play.fence("a")].attempt == 1, "its claim was lost too"


def test_the_last_task_and_its_job_end_together_or_not_at_all(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    fence = play.fence("a")
    play.hold()
    play.done("a")
    play.restart()
    play.go_on()
    assert play.job_row().state is JobState.RUNNING and play.row(0).state is not TaskState.COMPLETED
    play.hold()
    play.result(fence)
    play.commit()
    play.restart()
    play.go_on()
    assert play.keeper.jobs == {}
    assert play.job_row().state is JobState.COMPLETED and play.row(0).state is TaskState.COMPLETED


def test_a_draft_that_was_broken_off_is_dropped(play: Play) -> None:
    draft = play.begin()
    play.add(draft, {"a": "", "b": ""})
    play.restart()
    play.go_on()
    assert play.changes(DropJob) == [DropJob(1)]
    assert play.keeper.jobs == {} and play.job_row() is None
    play.submit({"a": ""})


def test_a_paused_job_stays_paused(play: Play) -> None:
    id = play.submit({"a": ""})
    play.change(id, "pause")
    play.restart()
    play.go_on()
    play.beat("w")
    assert play.handed == {}
    play.change(id, "resume")
    play.done("a")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]


def test_a_job_that_is_paused_while_its_specs_are_read_waits(play: Play) -> None:
    id = play.submit({"a": ""})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.change(id, "pause")
    play.beat("w")
    play.fetched()
    assert play.handed == {}
    play.change(id, "resume")
    play.release()
    assert play.names() == {"a"}


def test_a_job_that_is_cancelled_while_its_specs_are_read_ends(play: Play) -> None:
    id = play.submit({"a": ""})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.change(id, "cancel", "")
    assert [one.state for one in play.ended] == [JobState.CANCELLED]
    play.beat("w")
    play.fetched()
    assert play.handed == {} and play.keeper.jobs == {}


def test_a_job_that_was_being_cancelled_recalls_what_runs(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": "", "b": "a"})
    fence = play.fence("a")
    play.change(id, "cancel", "enough")
    play.restart()
    play.go_on()
    assert [recall.fences for recall in play.said(Recall)] == [(fence,)]
    play.beat("w")
    assert [recall.fences for recall in play.said(Recall)] == [(fence,), (fence,)]
    play.result(fence, "cancelled")
    assert [(one.state, one.reason) for one in play.ended] == [(JobState.CANCELLED, "enough")]


def test_an_attempt_that_was_lost_with_its_worker_is_told_from_when_it_began_also_after_a_restart(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    began_ms = play.changes(ClaimTask)[0].at_ms
    play.restart(seconds=40)
    play.go_on()
    play.lose("w")
    (attempt,) = [change.row for change in play.changes(PutAttempt)]
    assert (attempt.outcome, attempt.started_ms, attempt.ended_ms) == ("lost", began_ms, began_ms + 40_000)


def test_what_the_last_attempt_ended_with_is_known_after_a_restart(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": "", "b": ""}, on_failure="continue", retry=Retry(max=0))
    play.result(play.fence("a"), "failed", error="KeyError: 'x' (etl.py:7)", cause="KeyError")
    running = play.fence("b")
    other = play.submit({"c": ""}, retry=Retry(max=1, backoff="60s"))
    play.result(play.fence("c"), "failed", error="OSError: no (etl.py:9)", cause="OSError")
    play.restart()
    play.go_on()
    assert "attempt 1 ended with OSError: no (etl.py:9)" in play.why(other, "c").text
    play.beat("w")
    play.result(running)
    assert [(one.job, one.reason) for one in play.ended] == [
        (id, "1 of 2 tasks did not complete. Task a failed: KeyError: 'x' (etl.py:7)")
    ]


def test_a_delay_is_not_begun_again(play: Play) -> None:
    play.beat("w")
    play.submit({"a": {"delay": 60.0}})
    play.restart(seconds=40)
    play.go_on()
    play.beat("w")
    play.pass_time(19)
    assert play.handed == {}
    play.pass_time(2)
    assert play.names() == {"a"}


def test_rows_come_in_pages(play: Play) -> None:
    play.submit({"a": "", "b": "a", "c": "b"})
    play.restart(page=1)
    play.go_on()
    play.beat("w")
    for id in "abc":
        play.done(id)
    assert [one.state for one in play.ended] == [JobState.COMPLETED]


def test_rows_that_are_missing_are_told(play: Play) -> None:
    play.submit({"a": "", "b": ""})
    live = play.records.live_tasks(1, 0, 10)
    play.restart(page=0)
    play.keeper.restore_tasks(play.now, 1, live, ())
    with pytest.raises(Invalid, match="are missing in the store: look at it with talka store check"):
        play.go_on()


def test_numbers_of_jobs_go_on(play: Play) -> None:
    play.submit({"a": ""})
    play.restart()
    play.go_on()
    play.submit({"b": ""})
    assert sorted(play.keeper.jobs) == [1, 2]


# Attempts under way.


def test_a_worker_is_asked_what_it_has_and_gets_nothing_before(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": ""})
    a, b = play.fence("a"), play.fence("b")
    play.restart()
    play.go_on()
    assert play.keeper.attempts.expected() == [("w", 1, 7)]
    play.submit({"c": ""})
    play.beat("w")
    play.beat("w")
    assert len(play.said(AskHeld)) == 2 and play.handed == {}
    play.hear("w", Held(play.epoch - 1, ()))
    assert len(play.keeper.attempts.running) == 2, "that is of the life before"
    play.hear("w", Held(play.epoch, (a,)))
    play.beat("w")
    assert play.names() == {"b", "c"}
    assert play.fence("b") > b
    play.result(a, output=b"1")
    assert play.row(0).output == b"1"
    assert play.keeper.stale_results == 0


def test_a_worker_that_has_nothing_from_before_gets_work_at_once(play: Play) -> None:
    play.submit({"a": ""})
    play.restart()
    play.go_on()
    play.beat("w")
    assert play.said(AskHeld) == [] and play.names() == {"a"}


def test_a_new_life_of_a_worker_does_not_free_what_the_one_before_had(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.restart()
    play.go_on()
    play.beat("w", boot=2)
    assert play.handed == {}, "the fleet says when the earlier one is over"
    play.lose("w", boot=1)
    assert [(to, task.attempt) for to, task in play.hands] == [("w", 2)]
    play.beat("w", boot=2)
    assert play.said(AskHeld) == []


def test_one_of_the_same_name_from_another_folder_has_nothing_of_it(play: Play) -> None:
    play.beat("w", folder=7)
    play.submit({"a": ""})
    play.restart()
    play.go_on()
    play.beat("w", folder=8)
    play.hear("w", Held(play.epoch, ()))
    assert len(play.keeper.attempts.running) == 1 and play.said(AskHeld) == []
    play.lose("w")
    play.beat("w", folder=8)
    assert play.names() == {"a"}


def test_what_a_former_life_did_not_keep_was_not_handed(play: Play) -> None:
    play.submit({"a": ""})
    play.hold()
    play.beat("w")
    play.restart()
    play.go_on()
    play.beat("w")
    assert play.said(AskHeld) == []
    assert [task.attempt for _, task in play.hands] == [1]


def test_what_a_former_life_gave_up_and_a_worker_still_holds_is_recalled(play: Play) -> None:
    play.submit({"a": "", "b": ""})
    play.beat("w")
    a, b = play.fence("a"), play.fence("b")
    play.lose("w")
    play.restart()
    play.go_on()
    play.beat("w")
    assert play.fence("a") > a
    for _ in range(2):
        play.pass_time(6)
        play.beat("w")
        play.hear("w", Held(play.epoch, (a, b, play.fence("a"), play.fence("b"))))
        assert play.said(Recall)[-1].fences == (a, b)
    play.result(a, "completed", output=b"1")
    assert (play.keeper.stale_results, play.took) == (1, [a])


def test_attempts_count_on(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=1, backoff=0.0))
    play.result(play.fence("a"), "failed")
    play.restart()
    play.go_on()
    play.beat("w")
    play.hear("w", Held(play.epoch, ()))
    play.beat("w")
    assert play.handed[play.fence("a")].attempt == 3
    play.result(play.fence("a"), "failed")
    assert play.row(0).state is TaskState.DEAD


def test_a_checkpoint_outlives_the_manager(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.hear("w", TaskProgress(progress=(HandlerProgress(play.fence("a"), b"17"),)))
    play.restart()
    play.go_on()
    play.lose("w")
    play.beat("v")
    assert play.handed[play.fence("a")].checkpoint == b"17"


# Specs are in the store.


def test_a_result_that_comes_before_its_spec_was_read_is_told_again(play: Play) -> None:
    play.beat("w")
    play.submit({"a": {"key": "k"}})
    fence = play.fence("a")
    play.restart()
    play.hold_reads()
    play.go_on()
    play.result(fence, output=b"1")
    assert (play.took, play.keeper.stale_results) == ([], 0)
    play.fetched()
    play.result(fence, output=b"1")
    assert play.took == [fence]
    assert [change.key for change in play.changes(Complete)] == ["k"]
    assert play.records.keyed(["k"])["k"].output == b"1"


def test_limits_are_held_across_a_restart(play: Play) -> None:
    play.beat("w")
    limited = {"limits": (Limit(key="db", concurrency=1),)}
    play.submit({"a": limited})
    fence = play.fence("a")
    play.submit({"b": limited})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.beat("v")
    assert play.handed == {}, "nothing starts before it is known what is held"
    while play.waits[1]:
        play.fetched()
    assert play.handed == {}
    assert play.keeper.dispatcher.queues(play.now).limits[0].held == 1
    play.result(fence, output=b"1")
    play.release()
    assert play.names() == {"b"}


@pytest.mark.parametrize("play", [KeeperLimits(specs_at_once=2, specs_ahead=3)], indirect=True)
def test_specs_are_read_in_parts(play: Play) -> None:
    play.beat("w", cores=8)
    play.submit(dict.fromkeys("abcde", ""))
    play.lose("w")
    play.beat("w", boot=2, cores=8)
    play.submit({f"x{number}": {"priority": 9 if number == 6 else 5} for number in range(7)}, retry=Retry(max=0))
    play.restart()
    play.lose("w", boot=2)
    play.go_on()
    assert [len(fetch.specs) for fetch in play.fetches[:3]] == [2, 2, 2]
    assert sum([len(fetch.specs) for fetch in play.fetches]) >= 12
    play.lose("w", boot=2)
    play.beat("v", cores=8)
    assert len(play.hands) == 12


@pytest.mark.parametrize("play", [KeeperLimits(specs_at_once=1)], indirect=True)
def test_those_of_high_priority_are_read_first(play: Play) -> None:
    play.submit({f"x{number}": {"priority": number + 1} for number in range(3)})
    play.restart()
    play.go_on()
    assert [fetch.specs for fetch in play.fetches] == [((1, 2),), ((1, 1),), ((1, 0),)]


@pytest.mark.parametrize("play", [KeeperLimits(specs_at_once=1, specs_ahead=2)], indirect=True)
def test_no_more_are_read_than_can_be_given_out_soon(play: Play) -> None:
    play.submit(dict.fromkeys("abcdef", ""))
    play.restart()
    play.go_on()
    assert len(play.fetches) == 2
    play.beat("w", cores=8)
    assert len(play.hands) == 6


def test_a_task_whose_row_is_gone_is_left_alone(play: Play) -> None:
    play.submit({"a": ""})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.records.apply([DropJob(1)])
    play.fetched()
    play.beat("w")
    assert play.handed == {}


def test_what_is_read_twice_counts_once(play: Play) -> None:
    id = play.submit({"a": ""})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.change(id, "pause")
    play.change(id, "resume")
    play.release()
    assert len(play.fetches) == 2
    assert play.keeper._delivery.specs_bytes == delivery.SPEC_BYTES + len(EMPTY)


# Whatever happens, in any order.

GRAPH = {"a": "", "b": "", "c": "ab", "d": "c", "e": "b", "f": "de"}
ACTS = ("commit", "commit", "fetch", "done", "done", "done", "fail", "lose", "late", "restart", "beat", "beat", "time")


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 7)), min_size=10, max_size=50))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_every_task_completes_once_and_none_before_what_it_waits_for(acts: list[tuple[str, int]]) -> None:
    play = DagPlay()
    model = Model(play)
    play.submit(GRAPH, retry=Retry(max=1000, backoff=0.0))
    model.slow()
    for act, number in [("beat", 0), ("beat", 1), *acts]:
        getattr(model, act)(number)
        model.check()
    model.finish()


class Model:
    """Workers that lose, repeat and delay, a store that is slow, and a manager that dies; and what must be so."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.boots = {"w": 1, "v": 1}
        self.held: dict[str, dict[int, str]] = {"w": {}, "v": {}}
        """What each worker has: ids by fence."""
        self.results: list[tuple[str, int, bytes]] = []
        """Told at least once."""
        self.seen = 0
        self.outputs: dict[str, bytes] = {}

    def check(self) -> None:
        play = self.play
        for to, task in play.hands[self.seen :]:
            self.held[to][task.fence] = task.id
            for before in GRAPH[task.id]:
                row = play.records.task(1, before)
                assert row.state is TaskState.COMPLETED, "handed before what it waits for was durable"
                assert task.inputs[before] == row.output
        self.seen = len(play.hands)
        for row in play.records.tasks(1, (), -1, 10):
            if row.state is TaskState.COMPLETED:
                assert self.outputs.setdefault(row.id, row.output) == row.output, "accepted twice"

    def commit(self, number: int) -> None:
        if self.play.waits[0]:
            self.play.commit()

    def fetch(self, number: int) -> None:
        if self.play.waits[1]:
            self.play.fetched()

    def slow(self) -> None:
        """The store does what it is asked when the test says so."""
        self.play.hold()
        self.play.hold_reads()

    def beat(self, number: int) -> None:
        name = "wv"[number % 2]
        for worker, boot, _ in self.play.keeper.attempts.expected():
            if worker == name and boot < self.boots[name]:
                self.play.lose(name, boot)  # the fleet sees that it was restarted
        which = len(self.play.told(AskHeld))
        self.play.beat(name, boot=self.boots[name])
        for to, _ in self.play.told(AskHeld)[which:]:
            self.check()
            self.play.hear(to, Held(self.play.epoch, tuple(self.held[to])))

    def _any(self, number: int) -> tuple[str, int] | None:
        every = [(name, fence) for name, held in self.held.items() for fence in held]
        return every[number % len(every)] if every else None

    def done(self, number: int) -> None:
        chosen = self._any(number)
        if chosen is None:
            return
        name, fence = chosen
        output = f'"{self.held[name][fence]} {fence}"'.encode()
        self.results.append((name, fence, output))
        self.play.result(fence, worker=name, output=output)
        if fence in self.play.took:
            self.held[name].pop(fence, None)

    def fail(self, number: int) -> None:
        chosen = self._any(number)
        if chosen is not None and not any([chosen[1] == fence for _, fence, _ in self.results]):
            del self.held[chosen[0]][chosen[1]]
            self.play.result(chosen[1], "failed", worker=chosen[0], error="E: no")

    def late(self, number: int) -> None:
        """A result is told again, perhaps one that is long stale."""
        if self.results:
            name, fence, output = self.results[number % len(self.results)]
            self.play.result(fence, worker=name, output=output)

    def lose(self, number: int) -> None:
        name = "wv"[number % 2]
        self.held[name] = {}
        self.play.lose(name, self.boots[name])
        self.boots[name] += 1

    def restart(self, number: int) -> None:
        self.play.restart()
        self.slow()
        self.play.go_on()
        self.seen = 0

    def time(self, number: int) -> None:
        self.play.pass_time(number)

    def finish(self) -> None:
        play = self.play
        for _ in range(60):
            play.release()
            self.beat(0)
            self.beat(1)
            self.check()
            for name in self.held:
                for fence in list(self.held[name]):
                    self.results.append((name, fence, f'"{self.held[name][fence]} {fence}"'.encode()))
                    play.result(fence, worker=name, output=self.results[-1][2])
                    if fence in play.took:
                        self.held[name].pop(fence, None)
                    self.check()
            play.pass_time(6)
            if play.job_row().state is JobState.COMPLETED:
                break
        assert play.job_row().state is JobState.COMPLETED
        assert sorted(self.outputs) == sorted(GRAPH)
        assert len(play.keeper.attempts.running) == 0 and play.keeper.jobs == {}
