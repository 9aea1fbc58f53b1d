"""What is special to tasks of dag jobs; what holds for every conversation is in `test_channels.py`."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.wire.channels import Message
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.jobs import decode, encode
from talka.wire.task_views import Reason
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    ERROR_LIMIT,
    TASKS_LIMIT,
    AskHeld,
    AssignTasks,
    Done,
    HandedTask,
    HandlerProgress,
    Held,
    MoreTime,
    Recall,
    ResultsStored,
    TaskInputs,
    TaskLine,
    TaskMessage,
    TaskProgress,
    TaskResult,
    TimeAnswer,
    TimeAnswers,
)
from tests.wire.samples import TASK_FENCE

quick = settings(deadline=None, derandomize=True, max_examples=200)


def test_the_largest_messages_fit_a_frame() -> None:
    largest: list[TaskMessage] = [
        AssignTasks(
            7, (HandedTask(TASK_FENCE, "j", "t", "h", 1, bytes(256 << 10), {"a": bytes(BATCH_LIMIT_BYTES - 1)}),)
        ),
        TaskInputs(7, TASK_FENCE, {"a" * 128: bytes(BATCH_LIMIT_BYTES)}),
        Done((TaskResult(TASK_FENCE, "completed", bytes(BATCH_LIMIT_BYTES), error="ü" * ERROR_LIMIT),)),
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
lengths = st.integers(0, 2**40)
more_time = st.builds(MoreTime, fences, fences, lengths, fences, words, lengths, st.booleans())


def several(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=3).map(tuple)


MADE: dict[type[Message], st.SearchStrategy[Any]] = {
    AssignTasks: st.builds(AssignTasks, fences, several(handed)),
    Recall: st.builds(Recall, fences, some_fences, fences),
    ResultsStored: st.builds(ResultsStored, fences, some_fences),
    AskHeld: st.builds(AskHeld, fences),
    TaskInputs: st.builds(TaskInputs, fences, fences, inputs),
    Done: st.builds(Done, several(results)),
    TaskProgress: st.builds(TaskProgress, some_fences, several(progress), several(lines), more_time=several(more_time)),
    Held: st.builds(Held, fences, some_fences, fences, st.integers(1, 1024)),
    TimeAnswers: st.builds(TimeAnswers, fences, several(st.builds(TimeAnswer, fences, fences, fences, fences, words))),
}


@given(message=st.one_of(list(MADE.values())))
@quick
def test_whatever_is_said_arrives_as_it_was_said(message: TaskMessage) -> None:
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is type(message)


def test_what_a_worker_lacks_lasts_and_what_it_does_just_now_does_not() -> None:
    lasting = [word for word in ("handler", "code", "capability", "memory") if Reason("w", word, "").is_lasting]
    passing = [word for word in ("", "offline", "draining", "slots", "limit") if Reason("w", word, "").is_lasting]
    assert (len(lasting), passing) == (4, [])
