"""What attempts wrote is kept with them: bounded, also while they run, and beyond a restart, a loss and a replay."""

from collections.abc import Iterator
from typing import Any

import pytest

from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.dags.rows import BY_WORTH
from talka.wire.output_tail import STREAMS, StreamTail, Wrote
from talka.wire.tasks import Held, TaskProgress
from talka.work.dags.dag import Retry, Timeouts
from talka.work.dags.records import PutStreams, StreamRow
from tests.control.dag_play import DagPlay

AGAIN = Retry(max=2, backoff=0.0)


@pytest.fixture
def play() -> Iterator[DagPlay]:
    with_store = DagPlay(limits=KeeperLimits(job_output_bytes=40))
    with_store.beat("w")
    yield with_store
    with_store.records.close()


def out(content: bytes, written: int = 0, stream: Any = "stdout") -> StreamTail:
    return StreamTail(stream, content, written or len(content))


def kept(play: DagPlay, index: int = 0, job: int = 1) -> list[tuple[int, str, int, bytes]]:
    """Attempt, stream, bytes in all, and what is kept."""
    rows: list[StreamRow] = []
    for fence in dict.fromkeys([row.fence for row in play.records.stream_sizes(job, index)]):
        rows += play.records.streams(job, index, fence)
    return [(row.attempt, row.stream, row.written, row.content) for row in rows]


def size_of(play: DagPlay) -> int:
    row = play.job_row()
    assert row is not None
    return row.output_bytes


def write(play: DagPlay, fence: int, *tails: StreamTail, worker: str = "w") -> None:
    play.hear(worker, TaskProgress(wrote=(Wrote(fence, tails),)))


def test_every_attempt_keeps_what_it_wrote_whatever_became_of_it(play: DagPlay) -> None:
    play.submit({"a": ""}, retry=AGAIN)
    play.result(play.fence("a"), "failed", tails=(out(b"one"), out(b"Tr", stream="traceback")))
    play.result(play.fence("a"), "timeout", tails=(out(b"two", 9),))
    play.result(play.fence("a"), output=b"1", tails=(out(b"three", stream="stderr"),))

    assert kept(play) == [
        (1, "stdout", 3, b"one"),
        (1, "traceback", 2, b"Tr"),
        (2, "stdout", 9, b"two"),
        (3, "stderr", 5, b"three"),
    ]
    assert size_of(play) == 13


def test_nothing_is_kept_of_attempts_that_wrote_nothing(play: DagPlay) -> None:
    play.submit({"a": "", "b": ""}, retry=AGAIN)
    play.done("a")
    play.result(play.fence("b"), "failed")

    assert play.changes(PutStreams) == []


def test_a_job_keeps_so_much_and_half_of_it_is_for_attempts_that_fail(play: DagPlay) -> None:
    play.submit({"a": "", "b": "", "c": "", "d": ""}, retry=AGAIN, on_failure="continue")
    play.result(play.fence("a"), output=b"1", tails=(out(b"a" * 15),))
    play.result(play.fence("b"), output=b"1", tails=(out(b"-" + b"b" * 14),))
    play.result(play.fence("c"), "failed", tails=(out(b"c" * 15), out(b"x" * 10, stream="stderr")))
    play.result(play.fence("c"), "failed", tails=(out(b"late"),))

    assert kept(play, 0) == [(1, "stdout", 15, b"a" * 15)]
    assert kept(play, 1) == [(1, "stdout", 15, b"b" * 5)], "what fits, and the last of it"
    assert kept(play, 2) == [(1, "stdout", 15, b"c" * 10), (1, "stderr", 10, b"x" * 10), (2, "stdout", 4, b"")]
    assert size_of(play) == 40


def test_a_job_keeps_16_mib_unless_told_otherwise() -> None:
    play = DagPlay()
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=257, backoff=0.0))
    for _ in range(257):
        play.result(play.fence("a"), "failed", tails=(out(b"x" * 65_536),))

    assert [len(content) for *_, content in kept(play)] == [65_536] * 256 + [0]
    assert size_of(play) == 16 * 1024 * 1024
    play.records.close()


@pytest.mark.parametrize(("lines", "kept_lines"), [(20, 20), (21, 20), (50, 20)])
def test_the_traceback_is_kept_before_standard_error_and_that_before_standard_output(
    play: DagPlay, lines: int, kept_lines: int
) -> None:
    play.submit({"a": ""}, retry=Retry(max=0))
    tails = out(b"-" * lines), out(b"e" * 11, stream="stderr"), out(b"Traceback", stream="traceback")
    play.result(play.fence("a"), "failed", tails=tails)

    assert kept(play) == [
        (1, "stdout", lines, b"-" * kept_lines),
        (1, "stderr", 11, b"e" * 11),
        (1, "traceback", 9, b"Traceback"),
    ]


def test_every_stream_has_its_place_in_that_order() -> None:
    assert sorted(BY_WORTH) == sorted(STREAMS)


def test_where_there_is_no_room_for_all_of_a_traceback_its_end_is_kept(play: DagPlay) -> None:
    play.submit({"a": ""}, retry=Retry(max=0))
    traceback = b"File\n" * 10 + b"ValueError: no"
    play.result(
        play.fence("a"), "failed", tails=(out(b"-"), out(b"e", stream="stderr"), out(traceback, 0, "traceback"))
    )

    assert kept(play) == [
        (1, "stdout", 1, b""),
        (1, "stderr", 1, b""),
        (1, "traceback", 64, traceback[-40:]),
    ]


def test_a_stream_that_is_told_twice_at_once_counts_once(play: DagPlay) -> None:
    play.submit({"a": ""})
    fence = play.fence("a")
    write(play, fence, out(b"one"), out(b"more"))
    play.result(fence, output=b"1", tails=(out(b"former"), out(b"latter!")))

    assert kept(play) == [(1, "stdout", 7, b"latter!")] and size_of(play) == 7


def test_the_bound_holds_beyond_a_restart(play: DagPlay) -> None:
    play.submit({"a": "", "b": ""}, retry=AGAIN)
    play.result(play.fence("a"), output=b"1", tails=(out(b"a" * 15),))
    play.restart()
    play.go_on()
    play.beat("w")
    (fence,) = [fence for fence, (_, task) in play.given.items() if task.id == "b"]
    play.result(fence, output=b"1", tails=(out(b"b" * 15),))

    assert kept(play, 1) == [(1, "stdout", 15, b"b" * 5)]
    assert size_of(play) == 20


def restart(play: DagPlay, *held: int) -> None:
    """While the worker has these attempts."""
    play.restart()
    play.go_on()
    play.beat("w")
    play.hear("w", Held(play.epoch, held))
    play.beat("w")


def fail_elements(play: DagPlay) -> None:
    for id in ("clean[0]", "clean[1]"):
        row = play.records.task(1, id)
        assert row is not None
        play.result(row.fence, "failed", tails=(out(id.encode() + b"!"),))


@pytest.mark.parametrize("meanwhile", ["the job ended", "the job goes on", "the manager restarted"])
def test_what_elements_wrote_makes_room_when_others_come_in_their_place(play: DagPlay, meanwhile: str) -> None:
    tasks = {"extract": "", "clean": {"for_each": "extract.parts"}, "other": ""}
    id = play.submit(tasks, retry=Retry(max=0), on_failure="continue")
    play.result(play.fence("extract"), output=b'{"parts":[1,2]}', tails=(out(b"two"),))
    if meanwhile == "the job ended":
        play.done("other")
    for _ in range(3):
        fail_elements(play)
        assert size_of(play) == 3 + 2 * 9
        if meanwhile == "the manager restarted":
            restart(play, play.row(2).fence)
        play.rerun(id, "clean")
        assert size_of(play) == 3


def test_what_is_written_is_kept_while_the_attempt_runs_and_its_result_takes_its_place(play: DagPlay) -> None:
    play.submit({"a": ""}, retry=AGAIN)
    fence = play.fence("a")
    write(play, fence, out(b"begun"), out(b"oh", stream="stderr"))
    assert kept(play) == [(1, "stdout", 5, b"begun"), (1, "stderr", 2, b"oh")]
    write(play, fence, out(b"begun, on", 9))
    assert size_of(play) == 11, "what was kept of that stream before does not count"
    play.result(fence, output=b"1", tails=(out(b"begun, on, end"),))

    assert kept(play) == [(1, "stdout", 14, b"begun, on, end"), (1, "stderr", 0, b"")]
    assert size_of(play) == 14


def test_what_a_command_wrote_is_kept_no_longer_when_it_proved_to_be_its_output(play: DagPlay) -> None:
    play.submit({"a": ""})
    fence = play.fence("a")
    write(play, fence, out(b'{"a"'))
    play.result(fence, output=b'{"a":1}')

    assert kept(play) == [(1, "stdout", 0, b"")] and size_of(play) == 0


@pytest.mark.parametrize("told", [0, 1])
def test_the_result_takes_the_place_of_what_was_kept_before_the_manager_restarted(play: DagPlay, told: int) -> None:
    play.submit({"a": ""})
    fence = play.fence("a")
    write(play, fence, out(b"begun"), out(b"oh", stream="stderr"))
    restart(play, fence)
    if told:
        write(play, fence, out(b"begun, on", 9), out(b"oh", stream="stderr"))
    play.result(fence, output=b"1", tails=(out(b"begun, on, end"), out(b"oh", stream="stderr")))

    assert kept(play) == [(1, "stdout", 14, b"begun, on, end"), (1, "stderr", 2, b"oh")]
    assert size_of(play) == 16


def test_what_proved_to_be_its_output_is_kept_no_longer_when_the_manager_restarted_before(play: DagPlay) -> None:
    play.submit({"a": ""})
    fence = play.fence("a")
    write(play, fence, out(b'{"a"'))
    restart(play, fence)
    play.result(fence, output=b'{"a":1}')

    assert kept(play) == [(1, "stdout", 0, b"")] and size_of(play) == 0


def test_what_earlier_attempts_wrote_stays_when_the_manager_restarts(play: DagPlay) -> None:
    play.submit({"a": "", "b": ""}, retry=Retry(max=2, backoff=60.0))
    play.result(play.fence("a"), "failed", tails=(out(b"one"),))
    play.pass_time(150)
    play.result(play.fence("b"), "failed", tails=(out(b"two"),))
    fence = play.fence("a")
    write(play, fence, out(b"more"))
    restart(play, fence)
    play.result(fence, output=b"1")

    assert kept(play) == [(1, "stdout", 3, b"one"), (2, "stdout", 0, b"")]
    assert kept(play, 1) == [(1, "stdout", 3, b"two")] and size_of(play) == 6


def test_one_that_wrote_nothing_beside_one_that_writes_keeps_nothing(play: DagPlay) -> None:
    play.submit({"a": "", "b": ""})
    write(play, play.fence("a"), out(b"begun"))
    play.done("b")

    assert kept(play, 1) == [] and size_of(play) == 5


def test_what_had_arrived_stays_when_the_worker_is_lost(play: DagPlay) -> None:
    play.submit({"a": "", "b": ""}, retry=AGAIN)
    fence = play.fence("a")
    write(play, fence, out(b"begun"))
    play.beat("v")
    play.lose("w")
    play.result(play.fence("a"), output=b"1", tails=(out(b"again"),), worker="v")

    assert kept(play) == [(1, "stdout", 5, b"begun"), (2, "stdout", 5, b"again")]
    assert size_of(play) == 10
    (attempt,) = play.records.attempts([(1, 0)])
    assert (attempt.attempt, attempt.outcome) == (1, "lost")


def test_what_another_worker_says_that_an_attempt_wrote_is_not_kept(play: DagPlay) -> None:
    play.submit({"a": ""})
    write(play, play.fence("a"), out(b"forged"), worker="x")
    write(play, 99, out(b"forged"))
    play.result(play.fence("a"), output=b"1", tails=(out(b"forged"),), worker="x")

    assert kept(play) == []


def test_attempts_of_before_a_replay_stay_and_those_after_it_have_the_next_numbers(play: DagPlay) -> None:
    id = play.submit({"a": "", "b": "a"}, retry=Retry(max=1, backoff=0.0))
    for number in (1, 2):
        play.result(play.fence("a"), "failed", cause="ValueError", error="ValueError: no", tails=(out(b"%d" % number),))
    play.rerun(id, "a")
    assert play.handed[play.fence("a")].attempt == 3
    play.result(play.fence("a"), "failed", cause="ValueError", error="ValueError: still")
    assert play.handed[play.fence("a")].attempt == 4, "tries are counted anew"
    play.result(play.fence("a"), output=b"1", tails=(out(b"4"),))
    play.done("b")
    play.rerun(id, "a")
    assert play.handed[play.fence("a")].attempt == 5

    attempts = play.records.attempts([(1, 0)])
    assert [(one.attempt, one.outcome, one.cause) for one in attempts] == [
        (1, "failed", "ValueError"),
        (2, "failed", "ValueError"),
        (3, "failed", "ValueError"),
        (4, "completed", "completed"),
    ]
    assert [words[::3] for words in kept(play)] == [(1, b"1"), (2, b"2"), (4, b"4")]


def test_a_delay_holds_anew_when_a_task_is_run_again(play: DagPlay) -> None:
    id = play.submit({"a": {"delay": 5.0}}, retry=Retry(max=0))
    play.pass_time(5)
    play.result(play.fence("a"), "failed")
    play.rerun(id, "a")
    assert play.why(id, "a").text == "it waits for its delay to be over in 5.0 s"
    play.pass_time(5)
    assert play.handed[play.fence("a")].attempt == 2


def test_a_task_that_waited_too_long_says_what_was_in_the_way(play: DagPlay) -> None:
    play.submit(
        {
            "a": {"capabilities": ("gpu",), "timeouts": Timeouts(queue=15.0)},
            "b": {"capabilities": ("gpu",), "timeouts": Timeouts(queue=15.0)},
        },
        on_failure="continue",
    )
    play.pass_time(20)

    assert [play.row(index).error for index in (0, 1)] == ["waited 15 s in the queue: no worker has gpu"] * 2
