"""A task of a dag job runs after the tasks it depends on have ended, and ends by policy, by its users, or by time."""

from random import Random
from typing import Any

import msgspec
import pytest

from talka.control.dags.flow import AT_ONCE, DagStep
from talka.control.dags.job import DagJob
from talka.control.tasks.retries import REFUSALS_LIMIT
from talka.control.tasks.task import DagTask, Needs
from talka.errors import Invalid, Unavailable
from talka.units import NEVER, SECOND
from talka.wire.tasks import Outcome, TaskResult
from talka.work.dags.dag import DagSettings, Retry, TaskSpec, Timeouts, checked
from talka.work.dags.records import ClaimTask, Complete, EventRow, JobRow, MoveJob, PutAttempt, PutEvent, Release, Reset
from talka.work.lifecycle import JobState, TaskState

START = 100 * SECOND
WALL_MS = 1_700_000_000_000
ONCE = Retry(max=0)


def wall_ms(now: int) -> int:
    return WALL_MS + now // 1_000_000


class Story:
    """A job with a queue and workers that do as the test says."""

    def __init__(self, tasks: dict[str, Any], *, started: bool = True, at_once: int = AT_ONCE, **settings: Any) -> None:
        """`tasks`: by id what it depends on, or all fields of its spec."""
        self.specs = [
            TaskSpec(id=id, handler="h", **(fields if isinstance(fields, dict) else {"depends_on": tuple(fields)}))
            for id, fields in tasks.items()
        ]
        row = JobRow(
            number=3, id="job", name="n", state=JobState.SUBMITTED, submitted_ms=wall_ms(START), settings=b"{}"
        )
        self.job = DagJob(row, DagSettings(**settings), Random(7), wall_ms, at_once=at_once)
        self.now = START
        self.queue: dict[str, DagTask] = {}
        self.recalled: list[str] = []
        self.changes: list[Any] = []
        self.fence = 0
        self.job.add(self.now, self.specs, checked(self.specs))
        if started:
            self.take(self.job.start(self.now))

    def __getitem__(self, id: str) -> DagTask:
        return self.job.tasks[self.job.index_by_id()[id]]

    def take(self, step: DagStep) -> DagStep:
        for task in step.unqueue:
            del self.queue[task.id]
        for task in step.ready:
            assert task.id not in self.queue
            self.queue[task.id] = task
        self.recalled += [task.id for task in step.recalls]
        self.changes += step.changes
        return step

    def give(self, *ids: str) -> None:
        for id in ids:
            self.fence += 1
            self.changes += self.job.claimed(self.now, self.queue.pop(id), "w#1", self.fence)
            self.job.began(self.now, self[id])

    def done(self, *ids: str) -> None:
        for id in ids:
            if id in self.queue:
                self.give(id)
            self.changes += self.job.completing(self.now, self[id], b"1", "", 5000)
            self.take(self.job.completed(self.now, self[id]))

    def fail(self, id: str, outcome: Outcome = "failed", error: str = "E: bad", **fields: Any) -> DagStep:
        if id in self.queue:
            self.give(id)
        result = TaskResult(self[id].fence, outcome, error=error, **fields)
        return self.take(self.job.failed(self.now, self[id], result))

    def pass_time(self, seconds: float) -> None:
        end = self.now + round(seconds * SECOND)
        while self.job.next_tick_at <= end:
            self.now = max(self.now, self.job.next_tick_at)
            self.take(self.job.tick(self.now))
        self.now = end

    def end(self) -> tuple[JobState, str]:
        assert self.job.is_over
        self.changes += self.job.end(self.now)
        return self.job.state, self.job.reason

    def made(self, kind: type) -> list[Any]:
        return [change for change in self.changes if isinstance(change, kind)]

    def events(self, kind: str) -> list[EventRow]:
        return [change.row for change in self.made(PutEvent) if change.row.kind == kind]

    def states(self) -> str:
        return " ".join(f"{task.id}:{task.state}" for task in self.job.tasks)


# The order of things.


def test_a_task_becomes_ready_when_the_last_of_its_dependencies_is_done_and_kept() -> None:
    story = Story({"a": "", "b": "", "c": "ab"})
    assert list(story.queue) == ["a", "b"]
    story.done("a")
    assert not story.job.is_running
    story.give("b")
    assert story.job.is_running
    story.changes += story.job.completing(story.now, story["b"], b"1", "", 0)
    assert "c" not in story.queue, "who waits must not know before it is durable"
    story.take(story.job.completed(story.now, story["b"]))
    assert list(story.queue) == ["c"]
    assert [task.id for task in story.job.inputs_of(story["c"])] == ["a", "b"]
    story.done("c")
    assert story.end() == (JobState.COMPLETED, "")


def test_what_happens_to_a_task_is_written() -> None:
    story = Story({"a": {"key": "k"}})
    story.now += SECOND
    story.give("a")
    story.now += SECOND
    changes = story.job.completing(story.now, story["a"], b'"out"', "", 5000)
    at_ms = wall_ms(story.now)
    assert story.made(ClaimTask) == [ClaimTask(3, 0, 1, 1, "w#1", at_ms - 1000)]
    assert changes == [
        Complete(3, 0, 1, TaskState.COMPLETED, at_ms, b'"out"', started_ms=at_ms - 5, worker="w#1", attempts=1, key="k")
    ]
    assert not story.job.is_over
    story.take(story.job.completed(story.now, story["a"]))
    assert story.job.end(story.now) == [
        MoveJob(3, JobState.COMPLETED, at_ms, counts={"completed": 1}),
    ]
    assert story.job.end(story.now) == []
    assert story.job.has_ended


def test_the_memory_of_the_attempt_that_ended_a_task_is_written() -> None:
    story = Story({"a": "", "b": ""}, retry=ONCE, on_failure="continue")
    story.give("a")
    (done,) = story.job.completing(story.now, story["a"], b"1", "", 5000, 1 << 20)
    story.fail("b", memory_bytes=7)
    (dead,) = story.made(Complete)
    assert (done.memory_bytes, dead.memory_bytes) == (1 << 20, 7)
    assert [put.row.memory_bytes for put in story.made(PutAttempt)] == [7]


def test_a_task_whose_key_was_done_before_is_done_without_an_attempt() -> None:
    story = Story({"a": {"key": "k"}, "b": "a"})
    task = story.queue.pop("a")
    (change,) = story.job.completing(story.now, task, b"1", "", 0)
    assert (change.fence, change.attempts, change.worker, change.started_ms) == (0, 0, "", 0)
    story.take(story.job.completed(story.now, task))
    assert list(story.queue) == ["b"]


def test_rows_are_of_the_specs_with_indexes() -> None:
    story = Story({"a": "", "b": "a"}, started=False)
    first, second = story.job.rows(story.job.tasks)
    assert (first.index, first.id, first.state, first.depends_on) == (0, "a", TaskState.PENDING, ())
    assert (second.index, second.job, second.depends_on) == (1, 3, (0,))
    assert msgspec.json.decode(second.spec) == {"id": "b", "handler": "h", "depends_on": ["a"]}


def test_tasks_may_come_in_parts() -> None:
    story = Story({"a": ""}, started=False)
    assert story.job.index_by_id() == {"a": 0}
    more = [TaskSpec(id="b", handler="h", depends_on=("a",))]
    story.job.add(story.now, more, checked(more, story.job.index_by_id()))
    assert story.job.index_by_id() == {"a": 0, "b": 1}
    assert not story.job.is_over
    story.take(story.job.start(story.now))
    assert list(story.job.dependents_of(0)) == [1]
    assert not story.job.dependents_of(1)
    assert story.job.counts() == {"pending": 1, "ready": 1}


def test_many_tasks_become_ready_in_several_steps() -> None:
    story = Story({"a": ""} | {f"b{n}": "a" for n in range(AT_ONCE + 5)})
    story.give("a")
    story.job.completing(story.now, story["a"], b"", "", 0)
    assert len(story.take(story.job.completed(story.now, story["a"])).ready) == AT_ONCE
    assert story.job.next_tick_at == story.now
    assert len(story.take(story.job.tick(story.now)).ready) == 5
    assert story.job.next_tick_at == NEVER


def test_a_task_that_had_its_turn_does_not_wait_for_those_that_had_not() -> None:
    story = Story({"a": "", "b": "", "c": ""}, at_once=1)
    story.give("a")
    story.take(story.job.lost(story.now, story["a"], "gone"))
    assert list(story.queue) == ["a"]
    story.pass_time(1)
    assert list(story.queue) == ["a", "b", "c"]


# Attempts that do not complete.


def test_a_failed_task_waits_and_is_ready_again() -> None:
    story = Story({"a": ""})
    story.fail("a", cause="ValueError", took_us=2000, memory_bytes=9, exit_code=4)
    task = story["a"]
    (attempt,) = story.made(PutAttempt)
    (release,) = story.made(Release)
    assert (attempt.row.attempt, attempt.row.fence, attempt.row.worker, attempt.row.cause) == (
        1,
        1,
        "w#1",
        "ValueError",
    )
    assert (attempt.row.ended_ms - attempt.row.started_ms, attempt.row.exit_code) == (2, 4)
    assert release == Release(3, 0, 1, wall_ms(task.ready_at), 1, 0, "ValueError", "E: bad", 1)
    assert story.events("retry")[0].text.startswith("attempt 1: E: bad; tried again in ")
    assert START < task.ready_at == story.job.next_tick_at <= START + SECOND
    assert (task.state, task.worker, task.error, story.queue) == (TaskState.PENDING, "", "E: bad", {})
    story.pass_time(1)
    assert list(story.queue) == ["a"]
    story.done("a")
    assert story.end() == (JobState.COMPLETED, "")


def test_a_lost_task_is_ready_again_at_once_and_not_charged() -> None:
    story = Story({"a": ""}, retry=ONCE)
    for _ in range(5):
        story.give("a")
        step = story.take(story.job.lost(story.now, story["a"], "its worker died"))
        assert [task.id for task in step.ready] == ["a"]
    assert (story["a"].attempts, story["a"].failures) == (5, 0)
    assert story.made(PutAttempt)[0].row.cause == "lost"
    assert story.events("lost")[0].text == "attempt 1: its worker died; tried again at once"
    assert story.made(Release)[-1] == Release(3, 0, 5, wall_ms(START), 5, 0, "lost", "its worker died", 0)


def test_a_task_that_died_among_others_runs_alone_next() -> None:
    story = Story({"a": ""})
    story.fail("a", "died", signal="SIGSEGV")
    assert story.queue["a"].needs == Needs("h", alone=True)
    story.fail("a", "died", signal="SIGTERM", alone=True)
    story.pass_time(1)
    story.fail("a", "died", signal="SIGSEGV", alone=True)
    story.pass_time(1)
    story.fail("a", "died", signal="SIGSEGV", alone=True)
    assert story["a"].state is TaskState.DEAD
    assert (story["a"].attempts, story["a"].deaths) == (4, 2)


def test_a_process_stopped_by_somebody_does_not_put_its_task_alone() -> None:
    story = Story({"a": ""})
    story.fail("a", "died", signal="SIGTERM")
    assert story["a"].needs == Needs("h")


def test_a_task_that_can_be_given_to_nobody_has_failed() -> None:
    story = Story({"a": ""})
    story.give("a")
    result = TaskResult(1, "failed", error="too large", cause="inputs")
    story.take(story.job.unfit(story.now, story["a"], result))
    assert story["a"].state is TaskState.FAILED
    assert story.end() == (JobState.FAILED, "Task a failed: too large")


def test_a_late_word_that_it_began_changes_nothing() -> None:
    story = Story({"a": ""})
    story.done("a")
    story.job.began(story.now, story["a"])
    assert story["a"].state is TaskState.COMPLETED


# Failure policies.


def test_fail_fast_stops_everything() -> None:
    story = Story({"a": "", "b": "", "c": "", "d": "a"}, retry=ONCE)
    story.give("b")
    story.fail("a")
    assert story.states() == "a:dead b:running c:cancelled d:cancelled"
    assert (story.queue, story.recalled) == ({}, ["b"])
    assert story.made(MoveJob) == [MoveJob(3, JobState.COMPLETING, wall_ms(START), "Task a failed: E: bad")]
    assert not story.job.is_over
    story.fail("b", "cancelled")
    assert story["b"].state is TaskState.CANCELLED
    assert story.end() == (JobState.FAILED, "Task a failed: E: bad")
    assert story.job.counts() == {"dead": 1, "cancelled": 3}


def test_what_is_done_while_the_job_stops_counts_and_what_is_lost_or_unfit_is_cancelled() -> None:
    story = Story({"a": "", "b": "", "c": "", "d": "", "e": "b"}, retry=ONCE)
    story.give("b", "c", "d")
    story.fail("a")
    story.done("b")
    story.take(story.job.lost(story.now, story["c"], "gone"))
    story.take(story.job.unfit(story.now, story["d"], TaskResult(4, "failed", cause="inputs")))
    assert story.states() == "a:dead b:completed c:cancelled d:cancelled e:cancelled"
    assert story.end()[0] is JobState.FAILED


def test_continue_runs_what_waits_without_that_output() -> None:
    story = Story({"a": "", "b": "", "c": "ab"}, retry=ONCE, on_failure="continue")
    story.fail("a")
    story.done("b")
    assert [task.id for task in story.job.inputs_of(story.queue["c"])] == ["b"]
    story.done("c")
    assert story.end() == (JobState.PARTIAL, "1 of 3 tasks did not complete. Task a failed: E: bad")


def test_skip_dependents_skips_all_that_follows_and_nothing_else() -> None:
    story = Story({"a": "", "b": "", "c": "ab", "d": "c", "e": "b"}, retry=Retry(max=1), on_failure="skip_dependents")
    story.fail("a")
    story.pass_time(1)
    story.fail("a")
    assert story.states() == "a:dead b:ready c:skipped d:skipped e:pending"
    assert [(event.index, event.text) for event in story.events("skipped")] == [
        (0, "2 tasks that wait for it are skipped")
    ]
    story.done("b", "e")
    assert story.end() == (
        JobState.PARTIAL,
        "3 of 5 tasks did not complete. Task a failed after 2 attempts: E: bad",
    )


def test_one_task_that_is_skipped_or_run_again_is_told_as_one() -> None:
    story = Story({"a": "", "b": "a"}, retry=ONCE, on_failure="skip_dependents")
    story.fail("a")
    story.take(story.job.rerun(story.now, ["b"]))
    story.take(story.job.rerun(story.now, ["a"]))
    assert [event.text for event in story.events("skipped")] == ["1 task that waits for it is skipped"]
    assert [event.text for event in story.events("rerun")] == ["1 task is run again", "2 tasks are run again"]


def test_a_task_that_was_refused_or_took_too_long_failed_after_no_attempt_that_counts() -> None:
    story = Story({"a": ""})
    for _ in range(REFUSALS_LIMIT + 1):
        story.fail("a", "refused", error="no such file")
        story.pass_time(30)
    assert story.end() == (JobState.FAILED, "Task a failed: refused 11 times: no such file")
    story = Story({"a": {"timeouts": Timeouts(total=10)}}, retry=Retry(backoff=0.0))
    story.fail("a")
    story.give("a")
    story.pass_time(11)
    story.fail("a", "cancelled")
    late = "it had not ended 10s after the job was submitted"
    assert story.end() == (JobState.FAILED, f"Task a failed after 1 attempt that counts (2 in all): {late}")


def test_what_waits_for_several_that_are_skipped_is_skipped_once() -> None:
    story = Story({"a": "", "b": "a", "c": "a", "d": "bc"}, retry=ONCE, on_failure="skip_dependents")
    story.fail("a")
    assert story.states() == "a:dead b:skipped c:skipped d:skipped"
    assert [event.text for event in story.events("skipped")] == ["3 tasks that wait for it are skipped"]


def test_a_job_of_which_nothing_completed_has_failed() -> None:
    story = Story({"a": "", "b": ""}, retry=ONCE, on_failure="skip_dependents")
    story.fail("b", error="")
    story.fail("a")
    assert story.end() == (JobState.FAILED, "2 of 2 tasks did not complete. Task b failed: the attempt failed")


# What people ask for.


def test_a_paused_job_gives_nothing_out_and_goes_on_when_resumed() -> None:
    story = Story({"a": "", "b": "", "c": "b"})
    story.give("b")
    story.take(story.job.pause(story.now))
    assert story.job.state is JobState.PAUSED
    assert story.queue == {}
    story.done("b")
    story.pass_time(1)
    assert (story.queue, story.states()) == ({}, "a:pending b:completed c:pending")
    assert story.job.pause(story.now) == DagStep()
    story.take(story.job.resume(story.now))
    assert list(story.queue) == ["a", "c"]
    assert story.job.resume(story.now) == DagStep()
    assert [(move.state, move.reason) for move in story.made(MoveJob)] == [
        (JobState.PAUSED, ""),
        (JobState.RUNNING, ""),
    ]
    assert [len(story.events(kind)) for kind in ("paused", "resumed")] == [1, 1]


def test_a_job_may_end_while_it_is_paused() -> None:
    story = Story({"a": ""})
    story.give("a")
    story.take(story.job.pause(story.now))
    story.done("a")
    assert story.end() == (JobState.COMPLETED, "")


def test_a_retry_that_is_due_while_the_job_is_paused_waits_until_it_is_resumed() -> None:
    story = Story({"a": "", "b": ""})
    story.give("b")
    story.fail("a")
    story.take(story.job.pause(story.now))
    story.pass_time(2)
    story.fail("b")
    assert story.queue == {}
    story.take(story.job.resume(story.now))
    assert list(story.queue) == ["a"]
    story.pass_time(2)
    assert list(story.queue) == ["a", "b"]


def test_a_cancelled_job_stops_what_runs_and_cancels_what_does_not() -> None:
    story = Story({"a": "", "b": "", "c": "a"})
    story.give("a")
    story.take(story.job.cancel(story.now, "Not needed."))
    assert (story.queue, story.recalled) == ({}, ["a"])
    assert story.states() == "a:running b:cancelled c:cancelled"
    assert story.job.cancel(story.now, "again") == DagStep()
    story.fail("a", "died", signal="SIGKILL", alone=True)
    assert story.states() == "a:cancelled b:cancelled c:cancelled"
    assert story.end() == (JobState.CANCELLED, "Not needed.")
    assert story.job.cancel(story.now, "again") == DagStep()


def test_a_cancelled_job_whose_work_was_done_already_is_completed() -> None:
    story = Story({"a": ""})
    story.give("a")
    story.take(story.job.cancel(story.now, ""))
    assert story.job.reason == "It was cancelled."
    story.done("a")
    assert story.end() == (JobState.COMPLETED, "")


def test_many_tasks_are_cancelled_in_several_steps() -> None:
    story = Story({f"a{n}": "" for n in range(2 * AT_ONCE)})
    story.take(story.job.cancel(story.now, ""))
    assert story.job.counts() == {"pending": AT_ONCE, "cancelled": AT_ONCE}
    assert story.job.next_tick_at == story.now
    story.take(story.job.tick(story.now))
    assert story.end()[0] is JobState.CANCELLED


def test_what_runs_again_after_a_cancelled_job_is_not_cancelled_with_it() -> None:
    story = Story({"a": "", "b": "", "c": ""}, at_once=2)
    story.pass_time(1)
    story.done("c")
    story.take(story.job.cancel(story.now, ""))
    assert story.end()[0] is JobState.CANCELLED
    story.take(story.job.rerun(story.now, ["c"]))
    assert list(story.queue) == ["c"]


def test_a_skipped_task_does_not_hold_back_what_waits_for_it() -> None:
    story = Story({"a": "", "b": "a", "c": "b", "d": ""})
    story.take(story.job.skip(story.now, ["a", "b", "b"]))
    story.take(story.job.skip(story.now, ["b"]))
    assert story.states() == "a:skipped b:skipped c:ready d:ready"
    assert list(story.queue) == ["d", "c"]
    assert story.job.inputs_of(story["c"]) == []
    story.done("c", "d")
    assert story.end() == (JobState.PARTIAL, "2 of 4 tasks did not complete.")


def test_a_task_that_is_skipped_is_not_woken_by_what_it_waited_for() -> None:
    story = Story({"a": "", "b": "a"})
    story.take(story.job.skip(story.now, ["b"]))
    story.done("a")
    assert story.job.is_over


@pytest.mark.parametrize("ids", [["a"], ["d"], ["nobody"]])
def test_what_runs_has_ended_or_is_unknown_cannot_be_skipped(ids: list[str]) -> None:
    story = Story({"a": "", "b": "", "d": ""})
    story.give("a")
    story.done("d")
    with pytest.raises(Invalid, match=f"{ids[0]}"):
        story.job.skip(story.now, ["b", *ids])
    assert story["b"].state is TaskState.READY, "nothing was done"


def test_people_cannot_change_what_is_not_under_way() -> None:
    draft, over = Story({"a": ""}, started=False), Story({"a": ""})
    over.done("a")
    over.end()
    for job in (draft.job, over.job):
        for change in (job.pause, job.resume, lambda now, job=job: job.skip(now, ["a"])):
            with pytest.raises(Invalid, match=f"job job is {job.state} and cannot be"):
                change(START)
    with pytest.raises(Invalid):
        draft.job.cancel(START, "")
    with pytest.raises(Invalid):
        draft.job.rerun(START, [])


# Running again.


def test_what_did_not_complete_runs_again_with_all_that_follows() -> None:
    story = Story({"a": "", "b": "", "c": "ab"}, retry=ONCE, on_failure="continue")
    story.fail("a")
    story.done("b", "c")
    story.end()
    story.changes.clear()
    story.take(story.job.rerun(story.now, []))
    assert story.states() == "a:ready b:completed c:pending"
    assert story.made(Reset) == [Reset(3, 0), Reset(3, 2)]
    assert story.made(MoveJob) == [MoveJob(3, JobState.RUNNING, wall_ms(START))]
    assert (story["a"].attempts, story["a"].failures, story["a"].fence, story["a"].error) == (1, 0, 0, "")
    assert not story.job.is_over
    story.done("a", "c")
    assert story.end() == (JobState.COMPLETED, "")


def test_what_would_run_again_is_told_and_nothing_is_changed() -> None:
    story = Story({"a": "", "b": "a", "c": "", "d": "bc"}, retry=ONCE, on_failure="continue")
    story.done("a")
    story.fail("b")
    story.done("c", "d")
    story.end()
    story.changes.clear()
    told = {ids: [task.id for task in story.job.again(ids)] for ids in [(), ("a",), ("c",), ("d", "c")]}
    assert told == {(): ["b", "d"], ("a",): ["a", "b", "d"], ("c",): ["c", "d"], ("d", "c"): ["c", "d"]}
    assert [task.id for task in story.job.again((), ["c"])] == ["b", "c", "d"]
    assert story.changes == [] and story.states() == "a:completed b:dead c:completed d:completed"
    story.take(story.job.rerun(story.now, ["c"]))
    assert story.states() == "a:completed b:dead c:ready d:pending", "as was told"


def test_a_named_task_runs_again_with_another_config() -> None:
    story = Story({"a": {"config": msgspec.Raw(b"1")}, "b": "a", "c": ""})
    story.done("a", "b", "c")
    story.end()
    story.changes.clear()
    story.take(story.job.rerun(story.now, ["b"], {"a": msgspec.Raw(b"2")}))
    resets = story.made(Reset)
    assert [reset.index for reset in resets] == [0, 1]
    assert msgspec.json.decode(resets[0].spec)["config"] == 2
    assert resets[1].spec == b""
    assert story["a"].spec is not None
    assert bytes(story["a"].spec.config) == b"2"
    assert list(story.queue) == ["a"]


def test_a_config_without_a_name_is_of_one_that_is_run_again() -> None:
    story = Story({"a": "", "b": ""}, retry=ONCE, on_failure="continue")
    story.done("a")
    story.fail("b")
    story.end()
    story.take(story.job.rerun(story.now, [], {"a": msgspec.Raw(b"2")}))
    assert list(story.queue) == ["a", "b"]


def test_a_task_of_a_running_job_runs_again_and_those_that_wait_go_back() -> None:
    story = Story({"a": "", "b": "a", "c": "b", "d": "a"}, on_failure="continue")
    story.done("a")
    story.changes.clear()
    story.take(story.job.rerun(story.now, ["a"]))
    assert story.states() == "a:ready b:pending c:pending d:pending"
    assert list(story.queue) == ["a"]
    assert story.made(Reset) == [Reset(3, 0)], "nothing was tried of the others"
    assert story.made(MoveJob) == []
    story.done("a", "b", "c", "d")
    assert story.end() == (JobState.COMPLETED, "")


def test_a_task_that_runs_or_whose_end_is_not_kept_yet_cannot_run_again() -> None:
    story = Story({"a": "", "b": "a"})
    story.give("a")
    with pytest.raises(Invalid, match="task a is running"):
        story.job.rerun(story.now, ["a"])
    story.job.completing(story.now, story["a"], b"", "", 0)
    with pytest.raises(Invalid, match="task a is running"):
        story.job.rerun(story.now, ["a"])
    story.take(story.job.completed(story.now, story["a"]))
    story.give("b")
    with pytest.raises(Invalid, match="task b is running"):
        story.job.rerun(story.now, ["a"])


def test_a_rerun_of_nothing_or_of_a_job_that_stops_is_refused() -> None:
    story = Story({"a": ""})
    story.give("a")
    with pytest.raises(Invalid, match="name those to be run again"):
        story.job.rerun(story.now, [])
    story.take(story.job.cancel(story.now, ""))
    with pytest.raises(Invalid, match="is cancelling"):
        story.job.rerun(story.now, ["a"])


def test_a_config_cannot_be_edited_while_its_spec_is_not_in_memory() -> None:
    story = Story({"a": ""})
    story.done("a")
    spec, story["a"].spec = story["a"].spec, None
    with pytest.raises(Unavailable, match="task a"):
        story.job.rerun(story.now, [], {"a": msgspec.Raw(b"2")})
    assert spec is not None
    assert story.job.loaded(story.now, story["a"], spec, b"") == DagStep()
    story.take(story.job.rerun(story.now, [], {"a": msgspec.Raw(b"2")}))
    assert list(story.queue) == ["a"]


def test_a_job_that_fails_again_tells_of_the_task_that_failed_first() -> None:
    story = Story({"a": "", "b": ""}, retry=ONCE)
    story.fail("a")
    story.end()
    story.take(story.job.rerun(story.now, ["b"]))
    story.done("b")
    assert story.end() == (JobState.FAILED, "Task a failed: E: bad")


def test_a_job_whose_failed_task_ran_again_is_not_failed_by_it() -> None:
    story = Story({"a": "", "b": ""}, retry=ONCE)
    story.fail("a")
    story.end()
    story.take(story.job.rerun(story.now, []))
    story.done("a")
    story.take(story.job.skip(story.now, ["b"]))
    assert story.end() == (JobState.PARTIAL, "1 of 2 tasks did not complete.")


# The time.


def test_a_delay_begins_when_the_dependencies_are_done_and_is_kept() -> None:
    story = Story({"a": "", "b": {"depends_on": ("a",), "delay": "5s"}})
    story.pass_time(10)
    story.done("a")
    assert story.made(Release) == [Release(3, 1, 0, wall_ms(START + 15 * SECOND), 0)]
    story.pass_time(4.9)
    assert story.queue == {}
    story.pass_time(0.1)
    assert list(story.queue) == ["b"]


def test_a_task_that_nobody_takes_in_time_is_given_up() -> None:
    story = Story({"a": "", "b": ""}, timeouts=Timeouts(queue="2s"), on_failure="continue")
    story.pass_time(1)
    story.give("b")
    story.pass_time(1)
    assert story.queue == {}
    assert story.states() == "a:timeout b:running"
    (complete,) = story.made(Complete)
    assert (complete.fence, complete.cause, complete.error) == (
        0,
        "timeout",
        "waited 2 s in the queue: no worker could take it",
    )


def test_the_time_in_the_queue_begins_anew_when_the_job_is_resumed() -> None:
    story = Story({"a": ""}, timeouts=Timeouts(queue="2s"))
    story.pass_time(1)
    story.take(story.job.pause(story.now))
    story.pass_time(5)
    story.take(story.job.resume(story.now))
    story.pass_time(1.9)
    assert list(story.queue) == ["a"]
    story.pass_time(0.1)
    assert story["a"].state is TaskState.TIMEOUT


def test_the_total_time_counts_from_the_submission_whatever_the_task_does() -> None:
    story = Story(
        {"a": "", "b": "a", "c": "", "d": "", "e": ""},
        timeouts=Timeouts(total="1m"),
        on_failure="continue",
    )
    story.give("a", "d", "e")
    story.done("d")
    story.pass_time(60)
    assert story.states() == "a:running b:timeout c:timeout d:completed e:running"
    assert story.recalled == ["a", "e"]
    story.fail("a", "cancelled")
    story.take(story.job.lost(story.now, story["e"], "gone"))
    assert story.states() == "a:timeout b:timeout c:timeout d:completed e:timeout"
    assert story["a"].error == "it had not ended 1m after the job was submitted"
    assert story.end()[0] is JobState.PARTIAL


def test_the_first_that_ran_out_of_time_stops_a_job_that_fails_fast() -> None:
    story = Story({"a": "", "b": "", "c": ""}, timeouts=Timeouts(total="1m"))
    story.give("a")
    story.pass_time(60)
    assert story.states() == "a:running b:timeout c:cancelled"
    assert story.recalled == ["a"], "it is told once"
    story.fail("a", "cancelled")
    assert story.end()[0] is JobState.FAILED


def test_a_job_that_takes_too_long_is_stopped() -> None:
    story = Story({"a": "", "b": ""}, timeout="1m")
    assert story.job.next_tick_at == START + 60 * SECOND
    story.give("a")
    story.pass_time(60)
    assert (story.recalled, story.states()) == (["a"], "a:running b:cancelled")
    assert story.job.next_tick_at == NEVER
    story.fail("a", "cancelled")
    assert story.end() == (JobState.TIMEOUT, "It took longer than its timeout of 1m.")


def test_a_job_that_runs_again_has_its_time_again() -> None:
    story = Story({"a": ""}, timeout="1m", timeouts=Timeouts(total="50s"))
    story.pass_time(60)
    story.end()
    story.take(story.job.rerun(story.now, ["a"]))
    story.pass_time(49)
    assert list(story.queue) == ["a"]
    story.pass_time(1)
    assert story["a"].state is TaskState.TIMEOUT


def test_a_time_of_an_earlier_run_does_not_count() -> None:
    story = Story({"a": "", "b": ""}, timeouts=Timeouts(total="50s"), on_failure="continue")
    story.done("a")
    story.pass_time(40)
    story.take(story.job.rerun(story.now, ["a"]))
    story.pass_time(49)
    assert list(story.queue) == ["b", "a"]


def test_a_wait_that_ends_with_the_job_is_not_queued() -> None:
    story = Story({"a": "", "b": ""}, retry=Retry(backoff="1m"), timeout="1m")
    story.fail("a")
    story.pass_time(60)
    assert story.states() == "a:cancelled b:cancelled"
    assert story.queue == {}
