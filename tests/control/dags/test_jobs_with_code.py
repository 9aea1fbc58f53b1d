"""Dag jobs that bring their handlers: who is given their tasks, with what code, and how long that is named."""

from typing import Any

import msgspec

from talka.control.tasks.delivery import unsigned
from talka.wire.tasks import AssignTasks, HandedBundle, TaskResult
from talka.work.dags.dag import CodeBundle, DagSettings, KeptSettings, Timeouts, bundle_of, with_bundle
from talka.work.lifecycle import TaskState

Play = Any
ONE = CodeBundle("1" * 64, 100, ("one.py",), ("h", "wait"), plain=("h",))
TWO = CodeBundle("2" * 64, 200, ("two.py", "more.py"), ("h",), plain=("h",))


def hands(play: Play) -> list[tuple[str, HandedBundle | None, list[str]]]:
    """To whom, with what code, which tasks."""
    return [
        (told.worker, told.message.bundle, [task.id for task in told.message.tasks])
        for told in play.told_all
        if isinstance(told.message, AssignTasks)
    ]


def test_a_task_whose_handler_the_job_brings_goes_only_to_workers_that_take_code(play: Play) -> None:
    play.beat("own", handlers=("h",))
    id = play.submit({"a": ""}, bundle=ONE)
    assert hands(play) == []
    (reason,) = play.why(id, "a").workers
    assert (reason.worker, reason.constraint) == ("own", "code")
    assert reason.text == "it takes no code (start it with --accept-code)"

    play.beat("takes", handlers=(), accepts_code=True)
    assert hands(play) == [("takes", HandedBundle("1" * 64, 100, ("one.py",), b"word for 1111"), ["a"])]


def test_nobody_is_there_says_how_to_start_one(play: Play) -> None:
    id = play.submit({"a": ""}, bundle=ONE)
    (reason,) = play.why(id, "a").workers
    assert reason.text == "there is no worker: start one with --accept-code"


def test_a_handler_that_the_job_does_not_bring_is_a_workers_own(play: Play) -> None:
    play.beat("w", handlers=("other",), accepts_code=True)
    play.submit({"a": "", "b": {"handler": "other"}}, bundle=ONE)
    assert [(bundle and bundle.digest[:1], ids) for _, bundle, ids in hands(play)] == [("1", ["a"]), (None, ["b"])]


def test_of_a_name_that_both_have_the_jobs_own_counts(play: Play) -> None:
    play.beat("w", handlers=("h",), accepts_code=True)
    play.submit({"a": ""})
    play.submit({"b": ""}, bundle=TWO)
    assert [(bundle and bundle.files, ids) for _, bundle, ids in hands(play)] == [
        (None, ["a"]),
        (("two.py", "more.py"), ["b"]),
    ]


def test_two_bundles_with_a_handler_of_one_name_go_in_messages_of_their_own(play: Play) -> None:
    play.submit({"a": "", "b": ""}, bundle=ONE)
    play.submit({"c": ""}, bundle=TWO)
    play.beat("w", handlers=(), accepts_code=True)
    told = {tuple(ids): bundle.digest[:1] for _, bundle, ids in hands(play) if bundle is not None}
    assert told == {("a", "b"): "1", ("c",): "2"}


def test_a_restarted_manager_hands_the_tasks_with_their_code(play: Play) -> None:
    id = play.submit({"a": "", "b": {"depends_on": ("a",), "capabilities": ("gpu",)}}, bundle=ONE)
    play.restart()
    play.go_on()
    assert play.keeper.shelf.bundles == {"1" * 64}
    assert play.why(id, "a").workers[0].text == "there is no worker: start one with --accept-code"
    play.beat("w", handlers=("h",))
    assert hands(play) == []
    play.beat("w2", handlers=(), accepts_code=True, capabilities=("gpu",))
    play.done("a")
    assert [(bundle and bundle.word, ids) for _, bundle, ids in hands(play)] == [
        (b"word for 1111", ["a"]),
        (b"word for 1111", ["b"]),
    ]


def test_a_keeper_without_a_key_gives_no_word_for_code() -> None:
    assert unsigned("1" * 64) == b""


def test_a_bundle_is_named_until_its_last_job_has_ended(play: Play) -> None:
    play.beat("w", handlers=(), accepts_code=True)
    play.submit({"a": ""}, bundle=ONE)
    play.submit({"b": ""}, bundle=ONE)
    play.submit({"c": ""})
    play.done("a")
    assert play.keeper.shelf.bundles == {"1" * 64}
    play.done("b")
    assert play.keeper.shelf.bundles == set()


def test_a_worker_may_fetch_the_code_of_tasks_it_was_given_and_no_other(play: Play) -> None:
    play.beat("w", handlers=(), accepts_code=True)
    play.submit({"a": ""}, bundle=ONE)
    play.submit({"b": {"capabilities": ("gpu",)}}, bundle=TWO)
    play.submit({"c": ""})
    may_fetch = play.keeper.may_fetch
    assert may_fetch("w", "1" * 64)
    assert not may_fetch("w", "2" * 64)
    assert not may_fetch("v", "1" * 64)
    play.done("a")
    assert not may_fetch("w", "1" * 64)


def test_a_worker_that_was_not_told_the_signer_costs_a_task_nothing(play: Play) -> None:
    play.beat("w", handlers=(), accepts_code=True)
    id = play.submit({"a": ""}, bundle=ONE)
    for _ in range(20):
        play.results([TaskResult(play.fence("a"), "refused", cause="signer", error="not yet")])
        play.pass_time(60)
        play.beat("w", handlers=(), accepts_code=True)
    assert play.job(id).tasks[0].state is TaskState.ASSIGNED


def test_code_that_no_worker_can_load_fails_its_task_after_some_tries(play: Play) -> None:
    play.beat("w", handlers=(), accepts_code=True)
    id = play.submit({"a": ""}, bundle=ONE)
    for _ in range(11):
        play.results([TaskResult(play.fence("a"), "refused", cause="bundle", error="one.py:3: raised KeyError")])
        play.pass_time(60)
    row = play.records.task(play.records.job(id).number, "a")
    assert (row.state, row.cause) == (TaskState.FAILED, "refused")
    assert row.error == "refused 11 times: one.py:3: raised KeyError"


def test_settings_without_a_bundle_are_kept_as_they_always_were() -> None:
    settings = DagSettings(on_failure="continue")
    assert msgspec.json.encode(with_bundle(settings, None)) == b'{"on_failure":"continue"}'
    assert bundle_of(with_bundle(settings, None)) is None
    kept = msgspec.json.decode(b'{"on_failure":"continue"}', type=KeptSettings)
    assert (kept.on_failure, bundle_of(kept)) == ("continue", None)


def test_settings_with_a_bundle_come_back_whole() -> None:
    kept = with_bundle(DagSettings(on_failure="continue", timeout="1h"), TWO)
    again = msgspec.json.decode(msgspec.json.encode(kept), type=KeptSettings)
    assert again == kept
    assert (again.on_failure, again.timeout, bundle_of(again)) == ("continue", "1h", TWO)


def test_one_that_nobody_takes_the_code_of_waits_as_long_as_it_may_and_says_so(play: Play) -> None:
    play.beat("own", handlers=("h",))
    play.submit({"a": {"timeouts": Timeouts(queue=15.0)}}, bundle=ONE)
    play.pass_time(20)
    assert play.row(0).state is TaskState.TIMEOUT
    assert play.row(0).error == "waited 15 s in the queue: no worker takes the code of its job (--accept-code)"
