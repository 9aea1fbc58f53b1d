"""What is special to jobs; what holds for every conversation is in `test_channels.py`."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.stats.tally import StepTally, Tally
from talka.stats.windows import Window
from talka.units import SECOND
from talka.wire.attempts import NOWHERE, StoreLife
from talka.wire.channels import BadMessage, Message
from talka.wire.condition import NodeCondition
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.jobs import (
    PIECE_LIMIT_BYTES,
    RUNNING_LIMIT,
    VIEW_LIMIT_BYTES,
    Acknowledge,
    Assign,
    AttemptResult,
    Beat,
    CheckpointStored,
    Finished,
    Halt,
    JobMessage,
    KeepBlob,
    Kept,
    Lead,
    ManagerAt,
    Piece,
    Renew,
    Report,
    Running,
    Start,
    StoreCheckpoint,
    Sync,
    Synced,
    TaskFacts,
    TaskLoad,
    ViewUpdate,
    WatchJob,
    WorkerFacts,
    WorkerSnapshot,
    decode,
    decode_result,
    encode,
    encode_result,
)
from talka.wire.manager_calls import GetJob, ListWorkers, ManagerCall, SetLease
from talka.wire.orders import BundleFacts
from talka.wire.shards import Gap, decode_from_core
from talka.wire.shards import encode as encode_to_owner
from talka.wire.tasks import (
    AssignTasks,
    HandedTask,
    HandlerProgress,
    Said,
    TaskProgress,
    TaskResult,
    decode_from_handlers,
    decode_to_handlers,
)
from talka.wire.views import ClusterView, JobFacts, ManagerView, WorkerView
from tests.wire.samples import DIGEST, FENCE, FROM_CORE, FROM_HANDLERS, JOBS, TASKS, TO_HANDLERS, WORKER

GOLDEN = Path(__file__).parent / "golden" / "protocol-1"
OLDER = GOLDEN / "older" / "jobs"
quick = settings(deadline=None, derandomize=True, max_examples=200)

BEFORE_CONDITION: dict[tuple[type, str], Any] = {
    (Beat, "condition"): NodeCondition(),
    (WorkerView, "decision"): "route",
    (WorkerView, "memory_percent"): None,
    (WorkerView, "health"): "",
    (ManagerView, "decision"): "route",
    (ManagerView, "reason"): "",
}
BEFORE_TIME: dict[tuple[type, str], Any] = {
    (HandedTask, "on_timeout"): "kill",
    (HandlerProgress, "done"): 0,
    (TaskProgress, "more_time"): (),
    (Said, "wanted"): (),
    (Said, "heeding"): (),
}
BEFORE_OVERLOAD: dict[tuple[type, str], Any] = {
    **BEFORE_CONDITION,
    (WorkerFacts, "overload"): 0,
    (WorkerView, "level"): "normal",
    (Acknowledge, "is_refusal"): False,
}
BEFORE_PLACES: dict[tuple[type, str], Any] = {
    **BEFORE_OVERLOAD,
    (ClusterView, "certificates"): [],
    (Beat, "seeks"): False,
    **{(kind, name): "" for kind in (ManagerAt, ManagerView) for name in ("zone", "datacenter", "region")},
    **{(WorkerFacts, name): "" for name in ("zone", "region")},
    **{(WorkerView, name): "" for name in ("zone", "datacenter", "region")},
}
BEFORE_MACHINE: dict[tuple[type, str], Any] = {
    **BEFORE_PLACES,
    (WorkerFacts, "machine"): None,
    (ListWorkers, "worker"): "",
    (WorkerView, "load_percent"): 0,
    **{(WorkerView, name): "" for name in ("registered_at", "heard_at")},
    (WorkerView, "handlers"): [],
    (WorkerView, "machine"): None,
}
BEFORE_LOADING: dict[tuple[type, str], Any] = {**BEFORE_MACHINE, (WorkerFacts, "is_loading"): False}
BEFORE_WORKERS: dict[tuple[type, str], Any] = {
    **BEFORE_LOADING,
    (Beat, "quiet"): (),
    (Beat, "tasks"): TaskLoad(),
    (Beat, "leaves"): False,
    (Renew, "undrain"): False,
    (WorkerView, "decisions"): [],
    (WorkerView, "quiet_cores"): [],
    **{(WorkerView, name): 0 for name in ("tasks", "tasks_waiting", "task_cores", "load_cores")},
    (ClusterView, "cores_usable"): 0,
    (ClusterView, "certificates"): [],
}
OLDER_FIELDS: dict[tuple[type, str], Any] = {
    **BEFORE_WORKERS,
    (WorkerFacts, "sealing"): b"",
    (Renew, "signers"): (),
    (BundleFacts, "word"): b"",
    (Assign, "variables"): b"",
    (Beat, "epoch"): 0,
    (Beat, "of"): NOWHERE,
    (Beat, "names"): False,
    (Assign, "life"): 0,
    (Beat, "others"): (),
    (WorkerFacts, "accepts_code"): False,
}
BEFORE_PARTITIONS: dict[tuple[type, str], Any] = {
    **BEFORE_TIME,
    (HandedTask, "item"): b"",
    (HandedTask, "place"): -1,
    **BEFORE_WORKERS,
    (StoreLife, "partition"): 0,
    (StoreLife, "partitions"): 1,
    (Beat, "others"): (),
    (WorkerFacts, "accepts_code"): False,
    (AssignTasks, "bundle"): None,
    (TaskResult, "tails"): (),
    (TaskProgress, "wrote"): (),
}
BEFORE_ITEM: dict[tuple[type, str], Any] = {**BEFORE_TIME, (HandedTask, "item"): b"", (HandedTask, "place"): -1}
BEFORE_SPARE: dict[tuple[type, str], Any] = {
    (Lead, "asks"): False,
    (StoreCheckpoint, "spare"): (),
    (StoreCheckpoint, "back"): (),
    (StoreCheckpoint, "resumes"): 0,
    (JobFacts, "expected_start"): "",
    (JobFacts, "stopped"): None,
    (JobFacts, "datacenter"): "",
}
BEFORE_CODE: dict[tuple[type, str], Any] = {
    **BEFORE_ITEM,
    **BEFORE_WORKERS,
    (WorkerFacts, "accepts_code"): False,
    (AssignTasks, "bundle"): None,
}
"""Fields that came later, and what they are in messages that do not have them."""


def a_result() -> AttemptResult:
    window = Window(42, started=3, requests=4, failed=1, vus=2)
    window.response_time.record(1_500, 4)
    return AttemptResult(
        job="b4k7",
        attempt=3,
        tally=Tally(iterations=7, started=8, steps={"buy": StepTally(ok=7)}),
        windows=[window],
        shares=(3, 5),
        started_at_ns=70_000,
        ended_at_ns=10 * SECOND,
        spread_ns=1_000,
        provided={"token": b"\xa1t"},
        failure="token raised KeyError",
        notes=("the seed was 7",),
        gaps=(Gap(1, "was killed by SIGKILL", SECOND, 2 * SECOND, 3, 40),),
        engine="python",
        worker="w1",
        is_cancelled=True,
    )


def older(part: Any, fields: dict[tuple[type, str], Any] = OLDER_FIELDS) -> Any:
    """A message as it is without the fields that came later."""
    if isinstance(part, msgspec.Struct):
        later = {name: value for (kind, name), value in fields.items() if kind is type(part)}
        inner = {name: older(getattr(part, name), fields) for name in part.__struct_fields__ if name not in later}
        return msgspec.structs.replace(part, **inner, **later)
    if type(part) in (tuple, list):
        return type(part)([older(one, fields) for one in part])
    return part


@pytest.mark.parametrize("name", sorted(path.stem for path in OLDER.glob("*.hex")))
def test_bytes_of_a_message_that_had_fewer_fields_are_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name])


def test_a_result_whose_rows_had_no_outcomes_is_still_read() -> None:
    golden = bytes.fromhex((GOLDEN / "older" / "results" / "attempt.hex").read_text())

    assert golden != encode_result(a_result())
    assert decode_result(golden) == a_result()


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-places").glob("*.hex")))
def test_who_does_not_say_where_it_stands_is_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-places" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_PLACES)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-partitions").glob("*.hex")))
def test_what_names_no_partition_is_of_the_only_one(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-partitions" / f"{name}.hex").read_text())
    message = {**JOBS, **TASKS}[name]

    assert golden != encode(message)
    assert decode(golden) == older(message, BEFORE_PARTITIONS)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-code").glob("*.hex")))
def test_what_names_no_code_is_of_a_worker_that_takes_none_and_of_its_own_handlers(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-code" / f"{name}.hex").read_text())
    message = {**JOBS, **TASKS}[name]

    assert golden != encode(message)
    assert decode(golden) == older(message, BEFORE_CODE)


@pytest.mark.parametrize("name", ["hand", "hand-of-few-words", "run"])
def test_a_task_that_has_no_item_is_no_element_of_a_list(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-item" / f"{name}.hex").read_text())
    message = {**TASKS, **TO_HANDLERS}[name]
    read = decode_to_handlers if name in TO_HANDLERS else decode

    assert golden != encode(message)
    assert read(golden) == older(message, BEFORE_ITEM)


@pytest.mark.parametrize("name", ["done", "underway", "ran", "said"])
def test_what_tells_no_output_is_read_as_of_attempts_that_wrote_nothing(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-output" / f"{name}.hex").read_text())
    message = {**TASKS, **FROM_HANDLERS}[name]
    read = decode_from_handlers if name in FROM_HANDLERS else decode
    fields = {**BEFORE_TIME, (TaskResult, "tails"): (), (TaskProgress, "wrote"): (), (Said, "wrote"): ()}

    assert read(golden) == older(message, fields) != message


@pytest.mark.parametrize("name", ["hand", "hand-of-few-words", "run", "said", "underway"])
def test_what_tells_nothing_of_time_is_of_attempts_that_end_at_their_timeout(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-time" / f"{name}.hex").read_text())
    message = {**TASKS, **TO_HANDLERS, **FROM_HANDLERS}[name]
    read = {"run": decode_to_handlers, "said": decode_from_handlers}.get(name, decode)

    assert golden != encode(message)
    assert read(golden) == older(message, BEFORE_TIME)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-workers").glob("*.hex")))
def test_what_tells_nothing_of_quiet_cores_tasks_and_decisions_is_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-workers" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_WORKERS)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-machine").glob("*.hex")))
def test_what_tells_nothing_of_a_machine_is_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-machine" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_MACHINE)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-spare").glob("*.hex")))
def test_what_tells_nothing_of_cores_that_come_back_is_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-spare" / f"{name}.hex").read_text())
    message = {**JOBS, **FROM_CORE}[name]
    read, write = (decode_from_core, encode_to_owner) if name in FROM_CORE else (decode, encode)

    assert golden != write(message)
    assert read(golden) == older(message, BEFORE_SPARE)


def test_who_knows_nothing_of_pauses_was_resumed_never() -> None:
    golden = bytes.fromhex((OLDER.parent / "before-pauses" / "account.hex").read_text())

    assert golden != encode(JOBS["account"])
    assert decode(golden) == older(JOBS["account"], {(StoreCheckpoint, "resumes"): 0})


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-more-time").glob("*.hex")))
def test_what_tells_nothing_of_more_time_neither_asks_nor_answers(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-more-time" / f"{name}.hex").read_text())
    message = {**JOBS, **FROM_CORE}[name]
    read, write = (decode_from_core, encode_to_owner) if name in FROM_CORE else (decode, encode)

    assert golden != write(message)
    assert read(golden) == message


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-condition").glob("*.hex")))
def test_what_tells_nothing_of_how_a_node_does_is_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-condition" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_CONDITION)


@pytest.mark.parametrize("name", ["beat", "beat-of-few-words"])
def test_what_tells_nothing_of_loading_is_of_a_worker_whose_handlers_are_known(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-loading" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_LOADING)


def test_an_answer_about_the_cluster_that_tells_no_certificates_is_still_read() -> None:
    golden = bytes.fromhex((OLDER.parent / "before-certificates" / "answer-cluster.hex").read_text())

    assert golden != encode(JOBS["answer-cluster"])
    assert decode(golden) == older(JOBS["answer-cluster"], BEFORE_PLACES)


@pytest.mark.parametrize("name", sorted(path.stem for path in (OLDER.parent / "before-overload").glob("*.hex")))
def test_what_tells_nothing_of_overload_is_of_those_who_have_little_to_do(name: str) -> None:
    golden = bytes.fromhex((OLDER.parent / "before-overload" / f"{name}.hex").read_text())

    assert golden != encode(JOBS[name])
    assert decode(golden) == older(JOBS[name], BEFORE_OVERLOAD)


def test_golden_bytes_of_a_result_are_read_as_it_and_written_from_it() -> None:
    golden = bytes.fromhex((GOLDEN / "results" / "attempt.hex").read_text())

    assert decode_result(golden) == a_result()
    assert encode_result(a_result()) == golden


def test_fields_with_a_default_may_be_missing_in_facts_of_a_worker_and_in_a_result() -> None:
    assert decode(msgspec.msgpack.encode([1, 5, [4]])) == Beat(5, WorkerFacts(4))
    short = msgspec.msgpack.encode({"job": "b4k7", "attempt": 1, "tally": {}, "windows": []})
    assert decode_result(short) == AttemptResult("b4k7", 1, Tally(), [])


def test_fields_of_a_result_of_a_newer_protocol_are_ignored() -> None:
    newer = msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_result(a_result())), "new": 1})
    assert decode_result(newer) == a_result()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_result(a_result()).replace(b"buy", b"\xc3\x28u"), id="text that is not UTF-8"),
        pytest.param(encode(Sync(1)), id="a message"),
    ],
)
def test_bytes_that_are_no_result_are_untrusted(content: bytes) -> None:
    with pytest.raises(BadMessage, match="^a blob does not hold the result of an attempt: "):
        decode_result(content)


def test_the_largest_messages_fit_a_frame() -> None:
    largest: list[JobMessage] = [
        Piece(DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES)),
        KeepBlob(DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES)),
        ViewUpdate("j" * 64, 1, bytes(VIEW_LIMIT_BYTES)),
        Report("j" * 64, 1, bytes(900_000)),
        Lead(bytes(300_000)),
        StoreCheckpoint("j" * 64, FENCE, 1, "running", bytes(200_000), "x" * 4096, DIGEST),
        Beat(1, WORKER, (Running("j" * 64, 2**61, 4096, "running"),) * RUNNING_LIMIT),
        WorkerSnapshot("j" * 64, FENCE, 1, (TaskFacts(2**61, "ended", 2**62, 2**62, DIGEST, 2**61),) * RUNNING_LIMIT),
    ]
    for message in largest:
        assert decode(encode(message)) == message
        assert len(encode(message)) < FRAME_LIMIT_BYTES - 1024


# -- whatever is said arrives as it was said


counts = st.integers(0, 2**62 - 1)
names = st.text(max_size=20)
job_names = st.text(min_size=1, max_size=64)
fences = st.tuples(counts, counts, counts)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
states = st.sampled_from(["arming", "armed", "running", "ended"])
instants = st.integers(-(2**63), 2**63 - 1)
MADE: dict[type[Message], st.SearchStrategy[Any]] = {
    Beat: st.builds(
        Beat,
        counts,
        st.builds(WorkerFacts, st.integers(1, 4096), counts, counts, st.lists(names, max_size=3).map(tuple)),
        st.lists(st.builds(Running, job_names, counts, counts, states, counts), max_size=3).map(tuple),
    ),
    Renew: st.builds(
        Renew,
        fences,
        counts,
        counts,
        st.booleans(),
        st.lists(st.builds(ManagerAt, names, names), max_size=3).map(tuple),
        st.lists(job_names, max_size=2).map(tuple),
        st.lists(job_names, max_size=2).map(tuple),
        st.booleans(),
    ),
    Start: st.builds(Start, job_names, fences, counts, instants, instants, instants),
    Halt: st.builds(Halt, job_names, fences, counts, st.sampled_from(["stop", "kill"])),
    WorkerSnapshot: st.builds(
        WorkerSnapshot,
        job_names,
        fences,
        counts,
        st.lists(st.builds(TaskFacts, counts, states, instants, instants, digests, counts), max_size=3).map(tuple),
    ),
    Report: st.builds(Report, job_names, counts, st.binary(max_size=50)),
    Finished: st.builds(Finished, job_names, counts, digests, counts),
    Synced: st.builds(Synced, counts, instants),
    Piece: st.builds(Piece, digests, counts, counts, st.binary(max_size=50)),
    KeepBlob: st.builds(KeepBlob, digests, counts, counts, st.binary(max_size=50)),
    Kept: st.builds(Kept, digests, counts, names),
    StoreCheckpoint: st.builds(
        StoreCheckpoint,
        job_names,
        fences,
        counts,
        names,
        st.binary(max_size=50),
        names,
        digests | st.just(""),
        st.integers(-5, 300),
        st.lists(names, max_size=3).map(tuple),
        counts,
    ),
    CheckpointStored: st.builds(CheckpointStored, job_names, fences, counts, st.booleans(), counts),
    ManagerCall: st.builds(ManagerCall, counts, st.builds(GetJob, names) | st.builds(SetLease, counts, names)),
    WatchJob: st.builds(WatchJob, job_names, counts, st.integers(-1, 2**40), st.booleans()),
    ViewUpdate: st.builds(ViewUpdate, job_names, counts, st.binary(max_size=50)),
}


@given(message=st.one_of(list(MADE.values())))
@quick
def test_whatever_is_said_arrives_as_it_was_said(message: JobMessage) -> None:
    assert decode(encode(message)) == message


@given(data=st.data())
@quick
def test_spoilt_results_raise_nothing_but_untrusted(data: st.DataObject) -> None:
    content = bytearray(encode_result(a_result()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        decode_result(bytes(content))
    except Untrusted:
        pass


@given(content=st.binary(max_size=200))
@quick
def test_random_bytes_as_a_result_raise_nothing_but_untrusted(content: bytes) -> None:
    try:
        decode_result(content)
    except Untrusted:
        pass
