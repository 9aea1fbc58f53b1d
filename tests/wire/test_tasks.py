"""Messages about tasks of dag jobs. Golden bytes hold them to what was released."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import jobs, tasks
from talka.wire.attempts import Dropped, StoreLife
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.jobs import BadJobMessage, decode, encode
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    ERROR_LIMIT,
    LOG_LINE_LIMIT,
    TASKS_LIMIT,
    AskHeld,
    AssignTasks,
    BadTaskMessage,
    Done,
    FromHandlers,
    HandedTask,
    HandlerProgress,
    Held,
    Load,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskInputs,
    TaskLine,
    TaskMessage,
    TaskMessageBase,
    TaskProgress,
    TaskResult,
    ToHandlers,
    decode_from_handlers,
    decode_to_handlers,
)

PROTOCOL = Path(__file__).parent / "golden" / "protocol-1"
quick = settings(deadline=None, derandomize=True, max_examples=200)

FENCE = 7 << 32 | 300
LIFE = StoreLife(0x5706E, 0x11FE, 0x09E4)
TASK = HandedTask(
    FENCE,
    "b4k7",
    "resize[3]",
    "resize",
    2,
    b'{"width":80}',
    {"fetch": b'"a.png"'},
    300_000,
    "resize/a.png",
    b'{"row":7}',
    True,
    512 << 20,
    60_000,
    256,
    3,
)
FAILED = TaskResult(
    FENCE,
    "failed",
    b"",
    "ValueError: no such width – Breite (resize.py:12)",
    "ValueError",
    3,
    "",
    1_500,
    70 << 20,
    False,
    ("ValueError", "Exception", "BaseException"),
    "b4k7",
    "resize[3]",
)
DIED = TaskResult(FENCE + 1, "died", error="it was killed", cause="SIGSEGV", signal="SIGSEGV", alone=True)
LINE = TaskLine(FENCE, 1_760_000_000_123, "row 7 of 9 – fertig")
PROGRESS = HandlerProgress(FENCE, b'{"row":7}')

ALL: dict[str, TaskMessage] = {
    "hand": AssignTasks(7, (TASK,), 0xB007, 41, LIFE),
    "hand-of-few-words": AssignTasks(7, (HandedTask(FENCE, "b4k7", "a", "noop", 1, b"null"),)),
    "recall": Recall(7, (FENCE, FENCE + 1), 5_000, LIFE),
    "took": ResultsStored(7, (FENCE, FENCE + 1), LIFE),
    "which": AskHeld(7, LIFE),
    "feed": TaskInputs(7, FENCE, {"fetch": b'"a.png"'}, 0xB007, LIFE),
    "done": Done((FAILED, DIED, TaskResult(FENCE + 2, "completed", b"[1]")), LIFE),
    "underway": TaskProgress((FENCE,), (PROGRESS,), (LINE,), LIFE),
    "holding": Held(7, (FENCE, FENCE + 1), 1, 2, LIFE, (Dropped(0x5706E, 0x11FE, 3, 2),)),
}
TO_HANDLERS: dict[str, ToHandlers] = {
    "load": Load(("etl.py", "more.py"), 2, "w1"),
    "run": RunTasks((TASK,)),
    "stop": StopTasks((FENCE,), "timeout"),
}
FROM_HANDLERS: dict[str, FromHandlers] = {
    "loaded": Loaded(4711, ("resize", "fetch"), plain=("resize",)),
    "loaded-with-a-problem": Loaded(4711, problem="etl.py:3: SyntaxError: invalid syntax"),
    "ran": Ran((FAILED, DIED)),
    "said": Said((PROGRESS,), (LINE,)),
    "spent": Spent(3),
}


def golden(folder: str, name: str) -> bytes:
    return bytes.fromhex((PROTOCOL / folder / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    assert decode(golden("tasks", name)) == ALL[name]
    assert encode(ALL[name]) == golden("tasks", name)


@pytest.mark.parametrize("name", TO_HANDLERS)
def test_golden_bytes_to_cores_are_read_as_the_message_and_written_from_it(name: str) -> None:
    assert decode_to_handlers(golden("handlers", name)) == TO_HANDLERS[name]
    assert tasks.encode(TO_HANDLERS[name]) == golden("handlers", name)


@pytest.mark.parametrize("name", FROM_HANDLERS)
def test_golden_bytes_of_cores_are_read_as_the_message_and_written_from_it(name: str) -> None:
    assert decode_from_handlers(golden("handlers", name)) == FROM_HANDLERS[name]
    assert tasks.encode(FROM_HANDLERS[name]) == golden("handlers", name)


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(tasks).values() if isinstance(kind, type) and issubclass(kind, TaskMessageBase)}

    assert {type(message) for message in ALL.values()} == kinds - {TaskMessageBase} == set(get_args(TaskMessage))
    assert {type(message) for message in TO_HANDLERS.values()} == set(get_args(ToHandlers))
    assert {type(message) for message in FROM_HANDLERS.values()} == set(get_args(FromHandlers))
    assert {path.stem for path in (PROTOCOL / "tasks").iterdir()} == set(ALL)
    assert {path.stem for path in (PROTOCOL / "handlers").iterdir()} == {*TO_HANDLERS, *FROM_HANDLERS}


def test_no_two_messages_share_a_number() -> None:
    assert {type(message).__name__: encode(message)[1] for message in ALL.values()} == {
        "AssignTasks": 60,
        "Recall": 61,
        "ResultsStored": 62,
        "AskHeld": 63,
        "Done": 64,
        "TaskProgress": 65,
        "Held": 66,
        "TaskInputs": 67,
    }
    both = {**TO_HANDLERS, **FROM_HANDLERS}
    assert {type(message).__name__: tasks.encode(message)[1] for message in both.values()} == {
        "Load": 1,
        "RunTasks": 2,
        "StopTasks": 3,
        "Loaded": 10,
        "Ran": 11,
        "Said": 12,
        "Spent": 13,
    }


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("an epoch below zero", [63, -1]),
        ("a fence below zero", [61, 7, [-1]]),
        ("more tasks than a message may have", [60, 7, [[1, "j", "t", "h", 1, b""]] * (TASKS_LIMIT + 1)]),
        ("more fences to recall than a message may have", [61, 7, [1] * (TASKS_LIMIT + 1)]),
        ("more fences that were taken than a message may have", [62, 7, [1] * (TASKS_LIMIT + 1)]),
        ("more results than a message may have", [64, [[1, "completed"]] * (TASKS_LIMIT + 1)]),
        ("more fences than a part may have", [66, 7, [1] * 65_537]),
        ("no part at all", [66, 7, [], 0, 0]),
        ("an outcome that nobody knows", [64, [[1, "lost"]]]),
        ("an error that is too long", [64, [[1, "failed", b"", "x" * (ERROR_LIMIT + 1)]]]),
        ("a cause that is too long", [64, [[1, "failed", b"", "", "x" * 201]]]),
        ("a line that is too long", [65, [], [], [[1, 1, "x" * (LOG_LINE_LIMIT + 1)]]]),
        ("a job with too long a name", [60, 7, [[1, "j" * 201, "t", "h", 1, b""]]]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadJobMessage, match="^a frame holds a malformed message about jobs: "):
        decode(msgspec.msgpack.encode(parts))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(tasks.encode(Load(("m2.py",))).replace(b"m2", b"\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(b"\x91\x01" + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
        pytest.param(encode(AskHeld(1)), id="a message of managers"),
    ],
)
def test_bytes_that_are_no_message_to_or_of_a_core_are_untrusted(content: bytes) -> None:
    with pytest.raises(BadTaskMessage, match="^a frame holds a malformed message to a core: "):
        decode_to_handlers(content)
    with pytest.raises(BadTaskMessage, match="^a frame holds a malformed message from a core: "):
        decode_from_handlers(content)


def test_the_largest_messages_fit_a_frame() -> None:
    largest: list[TaskMessage] = [
        AssignTasks(7, (HandedTask(FENCE, "j", "t", "h", 1, bytes(256 << 10), {"a": bytes(BATCH_LIMIT_BYTES - 1)}),)),
        TaskInputs(7, FENCE, {"a" * 128: bytes(BATCH_LIMIT_BYTES)}),
        Done((TaskResult(FENCE, "completed", bytes(BATCH_LIMIT_BYTES), error="ü" * ERROR_LIMIT),)),
        Done((TaskResult(2**62, "failed", cause="c" * 200),) * TASKS_LIMIT),
        Held(7, (2**62,) * 65_536),
    ]
    for message in largest:
        assert decode(encode(message)) == message
        assert len(encode(message)) < FRAME_LIMIT_BYTES - 1024


# -- whatever is said arrives as it was said


fences = st.integers(0, 2**63 - 1)
some_fences = st.lists(fences, max_size=3).map(tuple)
words = st.text(max_size=20)
blobs = st.binary(max_size=50)
inputs = st.dictionaries(words, blobs, max_size=3)
outcomes = st.sampled_from(["completed", "failed", "died", "timeout", "cancelled", "refused"])
handed = st.builds(HandedTask, fences, words, words, words, fences, blobs, inputs, fences, words, blobs, st.booleans())
results = st.builds(TaskResult, fences, outcomes, blobs, words, words, st.integers(-5, 300), words, fences)
lines = st.builds(TaskLine, fences, fences, words)
progress = st.builds(HandlerProgress, fences, blobs)


def several(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=3).map(tuple)


MADE: dict[type[TaskMessageBase], st.SearchStrategy[Any]] = {
    AssignTasks: st.builds(AssignTasks, fences, several(handed)),
    Recall: st.builds(Recall, fences, some_fences, fences),
    ResultsStored: st.builds(ResultsStored, fences, some_fences),
    AskHeld: st.builds(AskHeld, fences),
    TaskInputs: st.builds(TaskInputs, fences, fences, inputs),
    Done: st.builds(Done, several(results)),
    TaskProgress: st.builds(TaskProgress, some_fences, several(progress), several(lines)),
    Held: st.builds(Held, fences, some_fences, fences, st.integers(1, 1024)),
}


@given(message=st.one_of(list(MADE.values())))
@quick
def test_whatever_is_said_arrives_as_it_was_said(message: TaskMessage) -> None:
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is type(message)


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(name: str, data: st.DataObject) -> None:
    content = bytearray(encode(ALL[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    for read in (jobs.decode, decode_to_handlers, decode_from_handlers):
        try:
            read(bytes(content))
        except Untrusted:
            continue
