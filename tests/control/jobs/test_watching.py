"""Watching a job: at the manager a client talks to, and at the one that leads the job."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.control.jobs.effects import Updated, WatchFailed
from talka.control.jobs.job_view import fitting
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.step_merge import StepMerge
from talka.control.jobs.watching import (
    LOOK_EVERY_NS,
    OVERTAKEN_NS,
    TELL_EVERY_NS,
    TOLD_FOR_NS,
    WATCHES_LIMIT,
    Audience,
    JobWatches,
)
from talka.control.load.load_job import LoadJob
from talka.control.load.log_lines import TOLD_FOR_NS as LINE_TOLD_FOR_NS
from talka.control.load.log_lines import JobLines
from talka.control.member.leader_calls import CallEnded, LeaderCalls
from talka.stats.tally import StepTally, Tally
from talka.stats.windows import StepWindow, Window
from talka.units import NEVER, SECOND
from talka.wire.jobs import CHANNEL, LogLines, ViewUpdate, WatchJob
from talka.wire.manager_calls import GetJob, JobTold, LeaderAnswer, ManagerCall, ResultTold
from talka.wire.shards import StepTotals
from talka.wire.views import JobFacts, JobUpdate, WorkflowUpdate
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
quick = settings(deadline=None, derandomize=True, max_examples=60)
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=12)}
FACTS = JobFacts("b4k7", "shop", JobState.RUNNING, owner="m2")
START_NS = 1_000 * SECOND


class Watching:
    """A manager of whose clients one watches a job."""

    def __init__(self, *, steps: bool = False) -> None:
        self.watches = JobWatches()
        self.calls = LeaderCalls(Random(1))
        self.now = START_NS
        self.number = self.watches.add(self.now, "b4k7", 70, steps=steps)

    def ask(self) -> int:
        """The number of the question about the job."""
        assert self.watches.next_tick_at <= self.now
        (word,) = self.watches.tick(self.now, self.calls, "m1")
        assert isinstance(word, Send) and isinstance(word.message, ManagerCall)
        assert (word.to, word.message.call) == ("m1", GetJob("b4k7"))
        assert self.watches.owns(word.message.number)
        return word.message.number

    def answer(self, facts: JobFacts | None, problem: str = "", text: str = "") -> list[object]:
        told = None if facts is None else JobTold(facts)
        return self.watches.on_facts(self.now, CallEnded(self.ask(), problem, told, text))

    def view(self, sequence: int, windows: tuple[int, ...] = (), owner: str = "m2") -> list[object]:
        facts = msgspec.structs.replace(FACTS, owner=owner)
        update = JobUpdate(facts, sequence, windows=[Window(index) for index in windows])
        return self.watches.on_view(self.now, ViewUpdate("b4k7", self.number, fitting(update)))

    def told(self, effects: list[object]) -> list[int]:
        """The windows of the one update."""
        (effect,) = effects
        assert isinstance(effect, Updated) and effect.number == self.number
        return [window.index for window in effect.update.windows]


# -- at the manager a client talks to


def test_the_leader_is_asked_who_leads_the_job_and_that_one_is_asked_to_tell() -> None:
    watching = Watching(steps=True)

    said, shown = watching.answer(FACTS)

    assert said == Send(CHANNEL, "m2", WatchJob("b4k7", 70, -1, True), Lane.STREAM)
    assert shown == Updated(70, JobUpdate(FACTS)), "nobody has told anything yet"
    assert watching.watches.next_tick_at == START_NS + LOOK_EVERY_NS


def test_while_views_come_the_entry_alone_is_not_shown() -> None:
    watching = Watching()
    watching.view(1, (0, 1))

    watching.now += LOOK_EVERY_NS
    assert watching.answer(FACTS) == [Send(CHANNEL, "m2", WatchJob("b4k7", 70, 1, False), Lane.STREAM)]


def test_the_entry_alone_is_shown_when_no_view_has_come_for_more_than_a_second() -> None:
    watching = Watching()
    watching.view(1)
    said = Send(CHANNEL, "m2", WatchJob("b4k7", 70, -1, False), Lane.STREAM)

    watching.now += SECOND
    assert watching.answer(FACTS) == [said], "the next view may be on its way"
    watching.now += LOOK_EVERY_NS

    assert watching.answer(FACTS) == [said, Updated(70, JobUpdate(FACTS))]


def test_a_job_that_nobody_leads_yet_is_shown_by_its_entry() -> None:
    watching = Watching()
    queued = JobFacts("b4k7", "shop", JobState.QUEUED, position=2)

    assert watching.answer(queued) == [Updated(70, JobUpdate(queued))]


def test_a_job_that_has_ended_is_shown_as_ended_and_the_watch_is_over() -> None:
    watching = Watching()
    ended = JobFacts("b4k7", "shop", JobState.COMPLETED, owner="m2")

    assert watching.answer(ended) == [Updated(70, JobUpdate(ended, final=True))]
    watching.now += SECOND
    assert watching.watches.tick(watching.now, watching.calls, "m1") == []
    assert watching.watches.next_tick_at == NEVER


@pytest.mark.parametrize("problem", ["missing", "forbidden"])
def test_a_job_that_does_not_exist_or_is_not_for_the_watcher_fails_the_watch(problem: str) -> None:
    watching = Watching()

    assert watching.answer(None, problem, "there is no job b4k7") == [WatchFailed(70, problem, "there is no job b4k7")]
    assert watching.view(1) == []


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(None, "unavailable"), (None, "busy"), (ResultTold(""), "")],
    ids=["nobody leads", "busy", "an answer to another question"],
)
def test_an_answer_that_tells_nothing_is_asked_for_again(answer: LeaderAnswer | None, problem: str) -> None:
    watching = Watching()

    assert watching.watches.on_facts(watching.now, CallEnded(watching.ask(), problem, answer)) == []
    watching.now += LOOK_EVERY_NS
    assert watching.ask()


def test_a_question_that_is_open_is_not_asked_twice_and_wakes_nobody_all_the_time() -> None:
    watching = Watching()
    watching.ask()

    for _ in range(3):
        watching.now += LOOK_EVERY_NS
        assert watching.watches.next_tick_at == watching.now
        assert watching.watches.tick(watching.now, watching.calls, "m1") == []
    assert watching.watches.next_tick_at == watching.now + LOOK_EVERY_NS
    assert watching.watches.tick(watching.now, watching.calls, "m1") == [], "not yet time to look again"


def test_a_watch_that_was_given_up_hears_nothing_any_more() -> None:
    watching = Watching()
    number = watching.ask()
    watching.watches.remove(70)
    watching.watches.remove(70)

    assert watching.watches.on_facts(watching.now, CallEnded(number, "", JobTold(FACTS))) == []
    assert not watching.watches.owns(number)
    assert watching.view(1) == []


def test_windows_are_shown_once_although_views_repeat_them() -> None:
    watching = Watching()

    assert watching.told(watching.view(1, (0, 1, 2))) == [0, 1, 2]
    assert watching.told(watching.view(2, (0, 1, 2, 3))) == [3]
    assert watching.told(watching.view(3)) == []


def test_a_view_that_was_overtaken_is_not_shown() -> None:
    watching = Watching()
    watching.view(2, (0, 1))

    assert watching.view(1, (0,)) == []
    assert watching.view(2, (0, 1)) == []
    assert watching.told(watching.view(3)) == []


def test_a_manager_that_counts_anew_is_believed() -> None:
    watching = Watching()
    watching.view(500)

    assert watching.told(watching.view(1, owner="m3")) == []
    watching.view(500, owner="m3")
    watching.now += OVERTAKEN_NS - 1
    assert watching.view(1, owner="m3") == []
    watching.now += 1
    assert watching.told(watching.view(1, owner="m3")) == [], "after a silence"


@pytest.mark.parametrize(
    "view",
    [
        ViewUpdate("other", 70, fitting(JobUpdate(FACTS, 1))),
        ViewUpdate("b4k7", 71, fitting(JobUpdate(FACTS, 1))),
        ViewUpdate("b4k7", 70, b"\xc1"),
        ViewUpdate("b4k7", 70, fitting(JobUpdate(FACTS, 1)).replace(b"shop", b"\xc3\x28op")),
        ViewUpdate("b4k7", 70, b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"),
    ],
    ids=["of another job", "of another watch", "garbage", "text that is not UTF-8", "too deep"],
)
def test_a_view_that_nobody_asked_for_or_can_read_is_nothing(view: ViewUpdate) -> None:
    assert Watching().watches.on_view(START_NS, view) == []


def test_windows_by_step_and_recent_ones_are_shown_as_far_as_they_were_not_seen() -> None:
    watching = Watching(steps=True)
    watching.view(1, (0, 1, 2))
    windows = [Window(index) for index in range(7)]
    workflow = WorkflowUpdate("Shop", TaskState.RUNNING, windows=windows[:5], recent=windows[5:])
    update = JobUpdate(FACTS, 2, workflows=[workflow], windows=windows[:5], recent=windows[5:])

    (shown,) = watching.watches.on_view(watching.now, ViewUpdate("b4k7", 70, fitting(update)))

    assert isinstance(shown, Updated)
    for told in (shown.update, *shown.update.workflows):
        assert ([one.index for one in told.windows], [one.index for one in told.recent]) == ([3, 4], [5, 6])


def test_who_has_windows_to_catch_up_on_says_at_once_what_has_arrived() -> None:
    watching = Watching(steps=True)
    watching.answer(FACTS)

    shown, said = watching.view(1, (0, 1, 2))

    assert isinstance(shown, Updated)
    assert said == Send(CHANNEL, "m2", WatchJob("b4k7", 70, 2, True), Lane.STREAM)
    assert len(watching.view(2, (0, 1, 2))) == 1, "nothing new has arrived"


def test_there_is_a_limit_to_watches() -> None:
    watches = JobWatches()
    for number in range(WATCHES_LIMIT):
        assert not watches.is_full
        watches.add(0, "b4k7", number, steps=False)

    assert watches.is_full


# -- at the manager that leads the job


class Led:
    """As much of a job that is led as is told of it."""

    def __init__(self, job: LoadJob | None) -> None:
        self.name = "b4k7"
        self.job = job
        self.has_all_counts = True
        self.lines = JobLines()

    def is_caught_up(self) -> bool:
        return self.has_all_counts

    def facts(self) -> JobFacts:
        return FACTS


def led(job: LoadJob | None) -> dict[str, LedJob]:
    return {"b4k7": cast(LedJob, Led(job))}


def running(job_of: JobOf) -> Driven:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()
    driven.later(2).say(1, StepTotals(1, "buy", StepTally(ok=3), True))
    driven.report(1, Tally(started=9), [Window(index, started=1) for index in range(20)])
    return driven


def read(effects: list[object]) -> JobUpdate:
    (word,) = effects
    assert isinstance(word, Send) and isinstance(word.message, ViewUpdate)
    assert (word.to, word.lane, word.message.job, word.message.number) == ("m1", Lane.STATISTICS, "b4k7", 70)
    return msgspec.msgpack.decode(word.message.content, type=JobUpdate)


def test_who_asks_to_be_told_is_told_at_once_and_then_every_while(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    assert audience.next_tick_at == NEVER

    assert audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70)) == []
    assert audience.next_tick_at == driven.now
    first = read(audience.tick(driven.now, led(driven.job)))
    assert audience.tick(driven.now, led(driven.job)) == []
    assert audience.next_tick_at == driven.now + TELL_EVERY_NS
    second = read(audience.tick(driven.now + TELL_EVERY_NS, led(driven.job)))

    assert (first.job, first.sequence, second.sequence) == (FACTS, 1, 2)
    assert first.workflows[0].tally is not None
    assert (first.workflows[0].tally.started, first.workflows[0].tally.steps) == (9, {})


def test_under_load_watchers_are_told_less_often(job_of: JobOf) -> None:
    driven, audience = job_of({"shop": ARRIVALS}), Audience()
    driven.run()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 7))

    audience.tick(driven.now, led(driven.job), SECOND // 2)

    assert audience.next_tick_at == driven.now + SECOND // 2


def test_counts_that_would_seem_to_shrink_are_not_told(job_of: JobOf) -> None:
    driven, audience, jobs = running(job_of), Audience(), {}
    jobs["b4k7"] = taken_over = Led(driven.job)
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))

    taken_over.has_all_counts = False
    assert audience.tick(driven.now, cast(dict[str, LedJob], jobs)) == []
    taken_over.has_all_counts = True

    assert read(audience.tick(driven.now + TELL_EVERY_NS, cast(dict[str, LedJob], jobs))).sequence == 1


def test_asking_again_makes_nobody_be_told_more_often(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))
    audience.tick(driven.now, led(driven.job))

    audience.on_watch(driven.now + 5, "m1", WatchJob("b4k7", 70))

    assert audience.next_tick_at == driven.now + TELL_EVERY_NS


def test_steps_are_told_to_those_who_want_them(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, -1, True))

    update = read(audience.tick(driven.now, led(driven.job)))

    assert update.workflows[0].tally is not None
    assert update.workflows[0].tally.steps["buy"].ok == 3


def test_windows_of_steps_are_told_in_every_update_to_those_who_want_steps(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    driven.report(1, windows=[Window(20, steps={"buy": StepWindow(3)})])
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, -1, True))

    for turn in range(3):
        (workflow,) = read(audience.tick(driven.now + turn * TELL_EVERY_NS, led(driven.job))).workflows
        assert len(workflow.windows) == 10 + turn
        assert workflow.recent[-1].steps["buy"].count == 3
    other = Audience()
    other.on_watch(driven.now, "m1", WatchJob("b4k7", 70))
    update = read(other.tick(driven.now, led(driven.job)))
    assert update.recent and not update.workflows[0].recent


def test_steps_that_take_long_to_merge_are_told_once_for_each_pass_over_them(job_of: JobOf) -> None:
    driven, audience = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1}), Audience(merged_at_once=1)
    driven.run()
    for core in (1, 2):
        driven.say(core, StepTotals(1, "buy", StepTally(ok=3), True))
        driven.report(core, Tally(started=9))
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, -1, True))

    def steps_told(turn: int) -> list[int]:
        update = read(audience.tick(driven.now + turn * TELL_EVERY_NS, led(driven.job)))
        assert update.workflows[0].tally is not None
        assert update.workflows[0].tally.started == 18
        return [step.ok for step in update.workflows[0].tally.steps.values()]

    assert [steps_told(turn) for turn in range(10)] == [[], [], [], [6], [], [], [], [], [], [6]]


def test_who_comes_later_is_told_the_steps_of_the_last_pass_at_once(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m2", WatchJob("b4k7", 71, -1, True))
    audience.tick(driven.now, led(driven.job))
    monkeypatch.setattr(StepMerge, "advance", lambda *_: None)  # the next pass takes long
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, -1, True))

    update = read(audience.tick(driven.now + 1, led(driven.job)))

    assert update.workflows[0].tally is not None
    assert update.workflows[0].tally.steps["buy"].ok == 3


def test_nothing_is_merged_for_nobody(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, -1, True))
    audience.tick(driven.now, led(driven.job))
    assert list(audience.merges) == ["b4k7"]

    audience.tick(driven.now + TOLD_FOR_NS, led(driven.job))
    assert list(audience.merges) == []

    audience.on_watch(driven.now + TOLD_FOR_NS, "m1", WatchJob("b4k7", 70, -1, True))
    audience.tick(driven.now + TOLD_FOR_NS, led(driven.job))
    audience.over(driven.now, cast(LedJob, Led(driven.job)))
    assert list(audience.merges) == []


def test_windows_are_told_again_until_the_watcher_has_seen_them(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, 4))

    def told(after_ns: int) -> list[int]:
        return [window.index for window in read(audience.tick(driven.now + after_ns, led(driven.job))).windows]

    assert told(0) == [5, 6, 7, 8, 9]
    assert told(TELL_EVERY_NS)[:5] == [5, 6, 7, 8, 9], "the first may be lost"
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, 8))
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70, 7))
    assert told(2 * TELL_EVERY_NS)[0] == 9, "the later word was overtaken"


def test_who_asks_no_more_is_told_no_more(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))

    assert len(audience.tick(driven.now + TOLD_FOR_NS - 1, led(driven.job))) == 1
    audience.on_watch(driven.now + SECOND, "m1", WatchJob("b4k7", 70))
    assert len(audience.tick(driven.now + TOLD_FOR_NS + SECOND - 1, led(driven.job))) == 1
    assert audience.tick(driven.now + TOLD_FOR_NS + 2 * SECOND, led(driven.job)) == []

    assert audience.next_tick_at == NEVER


def test_of_a_job_that_is_led_elsewhere_nothing_is_told(job_of: JobOf) -> None:
    audience = Audience()
    audience.on_watch(0, "m1", WatchJob("b4k7", 70))

    assert audience.tick(0, {}) == []
    assert audience.next_tick_at == NEVER


def test_of_a_job_that_is_being_taken_over_something_is_told_later(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))

    assert audience.tick(driven.now, led(None)) == []
    assert audience.next_tick_at == driven.now + TELL_EVERY_NS
    assert read(audience.tick(driven.now + TELL_EVERY_NS, led(driven.job))).sequence == 1


def test_lines_of_the_test_are_told_all_at_first_and_then_while_they_are_new(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    jobs = led(driven.job)
    jobs["b4k7"].lines.add(driven.now - LINE_TOLD_FOR_NS - 1, "w1", LogLines("b4k7", 1, 0, ("old",)))
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))

    assert [line.text for line in read(audience.tick(driven.now, jobs)).logs] == ["old"]
    jobs["b4k7"].lines.add(driven.now, "w1", LogLines("b4k7", 1, 1, ("new",)))
    assert [line.text for line in read(audience.tick(driven.now + TELL_EVERY_NS, jobs)).logs] == ["new"]


def test_the_last_lines_are_told_when_the_job_is_over(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    jobs = led(driven.job)
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))
    audience.tick(driven.now, jobs)
    jobs["b4k7"].lines.add(driven.now, "w1", LogLines("b4k7", 1, 0, ("torn down",)))

    update = read(audience.over(driven.now, jobs["b4k7"]))

    assert [line.text for line in update.logs] == ["torn down"]
    assert audience.over(driven.now, jobs["b4k7"]) == [], "nobody listens any more"


def test_when_a_job_is_over_those_who_listen_to_it_are_forgotten(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience()
    audience.on_watch(driven.now, "m1", WatchJob("b4k7", 70))
    audience.on_watch(driven.now, "m1", WatchJob("other", 71))

    assert audience.over(driven.now, None) == []
    assert audience.over(driven.now, led(None)["b4k7"]) == []

    both = {**led(driven.job), "other": led(driven.job)["b4k7"]}
    (word,) = audience.tick(driven.now, both)
    assert isinstance(word, Send) and isinstance(word.message, ViewUpdate)
    assert word.message.job == "other"


@pytest.mark.parametrize(
    ("listeners", "every_ms"), [(1, 100), (20, 100), (50, 250), (200, 1_000), (400, 1_000)], ids=str
)
def test_the_more_watch_the_less_often_is_each_told(job_of: JobOf, listeners: int, every_ms: int) -> None:
    driven, audience = running(job_of), Audience()
    for number in range(listeners):
        audience.on_watch(driven.now, "m1", WatchJob("other", number))

    audience.tick(driven.now, {"other": cast(LedJob, Led(None))})

    assert audience.next_tick_at == driven.now + every_ms * 1_000_000


def test_there_is_a_limit_to_an_audience(job_of: JobOf) -> None:
    driven, audience = running(job_of), Audience(listeners_limit=2)

    for number in (1, 2, 3):
        audience.on_watch(driven.now, "m1", WatchJob("b4k7", number))

    assert len(audience.tick(driven.now, led(driven.job))) == 2


# -- both together


@given(data=st.data())
@quick
def test_every_window_is_shown_once_and_in_order_whatever_is_lost_or_overtaken(
    job_of: JobOf, data: st.DataObject
) -> None:
    driven, audience, watch = (
        job_of({"Shop": {"shape": ConstantRate(9, "1h")}}, places={"w1": 1}),
        Audience(),
        Watching(),
    )
    driven.run()
    shown: list[int] = []
    views: list[ViewUpdate] = []
    words: list[WatchJob] = []

    def turn() -> None:
        """A tenth of a second passes; everybody does what is to be done."""
        driven.now += TELL_EVERY_NS
        watch.now = driven.now
        index = (driven.now - driven.job.origin_ns) // 100_000_000
        seen = len(driven.job.timeline.spans())
        driven.report(1, windows=[Window(number) for number in range(seen, index)])
        if watch.watches.next_tick_at <= watch.now:
            for effect in watch.answer(FACTS):
                if isinstance(effect, Send) and isinstance(effect.message, WatchJob):
                    words.append(effect.message)
        if audience.next_tick_at <= driven.now:
            for effect in audience.tick(driven.now, led(driven.job)):
                assert isinstance(effect, Send) and isinstance(effect.message, ViewUpdate)
                views.append(effect.message)

    def hear(view: ViewUpdate) -> None:
        for effect in watch.watches.on_view(watch.now, view):
            assert isinstance(effect, Updated)
            shown.extend(window.index for window in effect.update.windows)

    watch.now = driven.now
    watch.watches = JobWatches()
    watch.watches.add(driven.now, "b4k7", 70, steps=False)
    for _ in range(data.draw(st.integers(1, 30))):
        turn()
        while words and data.draw(st.booleans()):
            word = words.pop(0)
            if data.draw(st.booleans()):
                audience.on_watch(driven.now, "m1", word)
        while views and data.draw(st.booleans()):
            view = views.pop(data.draw(st.integers(0, len(views) - 1)))
            if data.draw(st.booleans()):
                hear(view)
    for _ in range(20):
        turn()
        while words:
            audience.on_watch(driven.now, "m1", words.pop(0))
        while views:
            hear(views.pop(0))

    assert shown == list(range(len(shown)))
    assert len(shown) >= (driven.now - driven.job.origin_ns) // 100_000_000 - 15


def test_what_a_manager_tells_that_was_replaced_while_it_was_cut_off_is_not_shown() -> None:
    watching = Watching()
    watching.answer(msgspec.structs.replace(FACTS, owner="m3"))
    assert watching.view(1, owner="m3") != []

    assert watching.view(900, owner="m2") == []

    assert watching.view(2, owner="m3") != []
