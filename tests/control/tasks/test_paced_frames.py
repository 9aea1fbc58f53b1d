"""What is said to a worker never finds its connection full: what is more waits until there is room."""

from collections import deque
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Send
from talka.control.member.send_queue import Class, LaneLimits, SendQueue
from talka.control.tasks.paced_frames import PacedFrames, PaceLimits, RoomWanted
from talka.control.tasks.worker_link import ToWorker
from talka.units import NEVER
from talka.wire.jobs import encode
from talka.wire.tasks import TASKS_LIMIT, AskHeld, AssignTasks, Recall, ResultsStored, TaskInputs, TaskResult

Play = Any


def config_of(size: int) -> dict[str, msgspec.Raw]:
    return {"config": msgspec.Raw(b'"' + b"x" * (size - 2) + b'"')}


class Connection:
    """Between a manager and a worker: a lane as it is, of which the worker reads whenever it `reads`."""

    def __init__(self, play: Play, limits: LaneLimits) -> None:
        self.queue = SendQueue(limits)
        self._frames = PacedFrames(PaceLimits(window_bytes=limits.size_bytes // 4))
        self._play = play
        self._seen = 0
        self._awaits_room = False
        self._lane: deque[AssignTasks | TaskInputs] = deque()
        self.most_bytes = 0

    def say(self) -> None:
        """All that the keeper said since."""
        told, self._seen = self._play.told_all[self._seen :], len(self._play.told_all)
        for said in told:
            self._put(self._frames.to_worker(0, said))

    def _put(self, effects: list[Send[Any] | RoomWanted]) -> None:
        for effect in effects:
            if isinstance(effect, RoomWanted):
                self._awaits_room = True
            else:
                assert self.queue.push(0, Class.RESULTS, encode(effect.message)), "it finds the connection full"
                self._lane.append(effect.message)
                self.most_bytes = max(self.most_bytes, self.queue.size_bytes)

    def reads(self) -> list[int]:
        """A frame arrives: fences of the attempts that it hands."""
        while self._awaits_room and self.queue.is_half_free(Class.RESULTS):
            self._awaits_room = False
            self._put(self._frames.on_room("w"))
        if self.queue.pop(0) is None:
            return []
        message = self._lane.popleft()
        return [task.fence for task in message.tasks] if isinstance(message, AssignTasks) else []


@pytest.mark.parametrize(("size", "count"), [(10_000, 1500), (60_000, 400), (200_000, 100), (256_000, 80)])
def test_a_backlog_of_large_configs_never_breaks_the_connection_of_its_worker(
    play: Play, size: int, count: int
) -> None:
    play.beat("w", cores=4, plain=("h",))
    connection = Connection(play, LaneLimits())
    play.submit({"short": ""})
    play.result(play.fence("short"), took_us=1)
    play.submit({f"t{number}": config_of(size) for number in range(count)})
    done = 0
    connection.say()
    while done < count:
        fences = connection.reads()
        play.results([TaskResult(fence, "completed", b"1", took_us=10) for fence in fences if fence in play.handed])
        done += sum([play.handed[fence].id != "short" for fence in fences])
        connection.say()
    assert not connection.queue.is_stuck and connection.queue.refused == [0] * len(Class)
    assert len(play.hands) == count + 1, "nothing had to be handed twice"


def test_small_tasks_that_come_one_by_one_never_break_the_connection_of_a_worker_that_does_not_read(play: Play) -> None:
    play.beat("w", cores=8, plain=("h",))
    connection = Connection(play, LaneLimits())
    play.submit({"short": ""})
    play.result(play.fence("short"), took_us=1)
    count = LaneLimits().frames + 1000
    for _ in range(count):
        play.submit({"a": ""})
        connection.say()
    assert len(play.hands) == count + 1, "there is room for them on the worker"
    read = 0
    while read < count + 1:
        read += len(connection.reads())
    assert not connection.queue.is_stuck


def test_inputs_of_one_task_that_are_more_than_a_connection_holds_wait_for_room(play: Play) -> None:
    play.beat("w", cores=64)
    limits = LaneLimits(size_bytes=2 * 1024 * 1024)
    connection = Connection(play, limits)
    before = [f"b{number}" for number in range(10)]
    play.submit({**dict.fromkeys(before, ""), "sink": {"depends_on": tuple(before)}})
    connection.say()
    for id in before:
        play.done(id, output=b'"' + b"x" * 500_000 + b'"')
    connection.say()
    fence = play.fence("sink")
    handed: list[int] = []
    while fence not in handed:
        handed += connection.reads()
    assert not connection.queue.is_stuck
    assert connection.most_bytes <= limits.size_bytes


def test_tasks_of_before_a_restart_are_given_by_their_bytes_too(play: Play) -> None:
    play.submit({"short": ""})
    play.submit({f"t{number}": config_of(200_000) for number in range(100)})
    play.restart()
    play.go_on()
    play.beat("w", cores=1, plain=("h",))
    play.result(play.fence("short"), took_us=1)
    assert 8 < len(play.handed) <= 1 + 8 * 1024 * 1024 // 200_000 + 2


def completes_all(play: Play) -> None:
    """Also what is handed meanwhile."""
    ended = 0
    while ended < len(play.hands):
        fences = [task.fence for _, task in play.hands[ended:]]
        ended = len(play.hands)
        play.results([TaskResult(fence, "completed", b"1", took_us=1) for fence in fences])


def test_tasks_that_are_run_again_are_given_by_their_bytes_too(play: Play) -> None:
    again = [f"t{number}" for number in range(100)]
    play.beat("w", cores=1, plain=("h",))
    job = play.submit({"nobody": {"handler": "elsewhere"}, **{id: config_of(200_000) for id in again}})
    completes_all(play)
    assert play.names() == {*again}, "and the job is not over"
    play.hands.clear()
    play.rerun(job, *again)
    assert 8 < len(play.hands) <= 8 * 1024 * 1024 // 200_000 + 2


def test_elements_that_are_run_again_are_given_by_the_bytes_of_their_items(play: Play) -> None:
    play.beat("w", cores=1, plain=("h",))
    job = play.submit({"list": "", "fan": {"for_each": "list"}, "nobody": {"handler": "elsewhere"}})
    play.done("list", output=msgspec.json.encode(["x" * 60_500] * 200))
    completes_all(play)
    again = [f"fan[{place}]" for place in range(200)]
    assert play.names() == {"list", *again}
    play.hands.clear()
    play.rerun(job, *again)
    assert 8 < len(play.hands) <= 8 * 1024 * 1024 // 60_500 + 2


def test_what_an_element_gave_before_it_was_run_again_and_skipped_counts_no_more(play: Play) -> None:
    play.beat("w")
    job = play.submit({"list": "", "fan": {"for_each": "list"}, "nobody": {"handler": "elsewhere"}})
    play.done("list", output=b"[1,2]")
    for place in range(2):
        play.done(f"fan[{place}]", output=b'"' + b"x" * 10 * 1024 + b'"')
    assert play.task("fan").output_kib == 20
    play.lose("w")
    play.rerun(job, "fan[0]")
    play.change(job, "skip", ["fan[0]"], "me")
    assert play.task("fan").output_kib == 10


def hand(number: int, size_bytes: int = 100) -> ToWorker:
    return ToWorker("w", TaskInputs(1, number, {}), size_bytes)


def fences(effects: list[Any]) -> list[object]:
    return [effect.message.fence if isinstance(effect, Send) else effect for effect in effects]


def paced(**limits: int) -> PacedFrames:
    return PacedFrames(PaceLimits(**{"window_bytes": 250, **limits}))


def test_what_is_more_than_a_window_waits_until_there_is_room_and_goes_in_order() -> None:
    frames = paced()
    assert [fences(frames.to_worker(0, hand(number))) for number in range(5)] == [
        [0],
        [1],
        [2, RoomWanted("w")],
        [],
        [],
    ]
    assert fences(frames.on_room("w")) == [3, 4]
    assert fences(frames.to_worker(0, hand(5))) == [5, RoomWanted("w")]


def test_so_much_may_wait_that_it_fills_more_than_one_window() -> None:
    frames = paced()
    for number in range(8):
        frames.to_worker(0, hand(number))
    assert fences(frames.on_room("w")) == [3, 4, 5, RoomWanted("w")]
    assert fences(frames.on_room("w")) == [6, 7]


def test_few_bytes_overtake_what_waits_but_the_question_of_what_is_held_does_not() -> None:
    frames = paced(window_bytes=1)
    recall, ask = Recall(1, (7,)), AskHeld(1)
    assert [len(frames.to_worker(0, ToWorker("w", one))) for one in (recall, ask)] == [1, 1]
    assert fences(frames.to_worker(0, hand(1))) == [1, RoomWanted("w")]
    assert [send.message for send in frames.to_worker(0, ToWorker("w", recall))] == [recall]
    assert frames.to_worker(0, hand(2)) == frames.to_worker(0, ToWorker("w", ask)) == []
    assert fences(frames.on_room("w")) == [2, RoomWanted("w")]
    assert [send.message for send in frames.on_room("w")] == [ask]


def test_workers_do_not_wait_for_each_other() -> None:
    frames = paced(window_bytes=1)
    frames.to_worker(0, hand(1))
    other = ToWorker("other", TaskInputs(1, 9, {}), 100)
    assert fences(frames.to_worker(0, other)) == [9, RoomWanted("other")]


def test_more_than_may_wait_is_lost_and_counted() -> None:
    frames = paced(window_bytes=1, waiting_bytes=150)
    for number in range(4):
        frames.to_worker(0, hand(number))
    assert frames.lost == 2
    assert fences(frames.on_room("w")) == [1, RoomWanted("w")]


def test_what_waits_for_a_worker_that_is_gone_is_told_to_nobody() -> None:
    frames = paced(window_bytes=1)
    frames.to_worker(0, hand(1))
    frames.to_worker(0, hand(2))
    frames.forget("w")
    assert frames.on_room("w") == []
    assert fences(frames.to_worker(0, hand(3))) == [3, RoomWanted("w")]


def stored(*fences: int, epoch: int = 1) -> ResultsStored:
    return ResultsStored(epoch, fences)


def test_results_that_are_stored_are_told_together_a_moment_later() -> None:
    frames = paced(stored_ns=5)
    assert frames.next_tick_at == NEVER
    for now, one in ((10, stored(1)), (12, stored(2, 3)), (14, stored(9, epoch=2))):
        assert frames.to_worker(now, ToWorker("w", one)) == []
    assert frames.to_worker(14, ToWorker("other", stored(4))) == []
    assert frames.next_tick_at == 15
    told = [(send.to, send.message) for send in frames.tick(15) if isinstance(send, Send)]
    assert told == [("w", stored(1, 2, 3)), ("w", stored(9, epoch=2)), ("other", stored(4))]
    assert (frames.next_tick_at, frames.tick(16)) == (NEVER, [])


def test_what_is_stored_is_told_at_once_when_a_message_holds_no_more() -> None:
    frames = paced()
    frames.to_worker(0, ToWorker("w", stored(*range(TASKS_LIMIT))))
    (told,) = frames.to_worker(0, ToWorker("w", stored(7)))
    assert isinstance(told, Send) and told.message == stored(*range(TASKS_LIMIT))
    (rest,) = frames.tick(frames.next_tick_at)
    assert isinstance(rest, Send) and rest.message == stored(7)


def test_nothing_is_told_to_be_stored_to_whoever_is_gone() -> None:
    frames = paced()
    for name in ("w", "other"):
        frames.to_worker(0, ToWorker(name, stored(1)))
    frames.forget("w")
    assert [told.to for told in frames.tick(0) if isinstance(told, Send)] == ["other"]
