"""Messages about jobs. Golden bytes hold them to what was released."""

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
from talka.wire import jobs
from talka.wire.attempts import NOWHERE, StoreLife
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.jobs import (
    CALL_LIMIT_BYTES,
    MANAGERS_LIMIT,
    PIECE_LIMIT_BYTES,
    RUNNING_LIMIT,
    VIEW_LIMIT_BYTES,
    Account,
    Accounted,
    Acknowledge,
    Assign,
    AttemptResult,
    BadJobMessage,
    Beat,
    BundleFacts,
    CallAnswer,
    Elsewhere,
    Finished,
    Goodbye,
    Halt,
    JobMessage,
    KeepBlob,
    Kept,
    Lead,
    Leaderless,
    LogLines,
    ManagerAt,
    ManagerCall,
    Message,
    NoTask,
    Piece,
    Reconcile,
    Renew,
    Report,
    ResultAccepted,
    Running,
    Stale,
    Start,
    Sync,
    Synced,
    TaskDeclined,
    TaskFacts,
    ViewUpdate,
    WantBlob,
    WatchJob,
    WorkerFacts,
    WorkerSnapshot,
    decode,
    decode_result,
    encode,
    encode_result,
)
from talka.wire.security.access import Asker
from talka.wire.shards import Gap, Settings
from talka.work.shapes import ConstantRate, IterationsPerVU

GOLDEN = Path(__file__).parent / "golden" / "protocol-1" / "jobs"
OLDER = GOLDEN.parent / "older" / "jobs"
quick = settings(deadline=None, derandomize=True, max_examples=200)

DIGEST = "0123456789abcdef" * 4
FENCE = (0, 7, 300)
BUNDLE = BundleFacts(
    DIGEST, 70_000, bytes(range(64)), "tests/shop.py", {"BASE": "http://shop"}, "", word=bytes(range(100))
)
WORKER = WorkerFacts(
    8,
    16 << 30,
    1,
    ("gpu", "chrome"),
    "1.0",
    2**61,
    "degraded",
    "the disk is almost full – räumen",
    "east",
    93,
    handlers=("extract", "load"),
    sealing=bytes(range(34)),
)
OLDER_FIELDS: dict[tuple[type, str], Any] = {
    (ManagerCall, "asker"): None,
    (WorkerFacts, "sealing"): b"",
    (Renew, "signers"): (),
    (BundleFacts, "word"): b"",
    (Assign, "variables"): b"",
    (Beat, "epoch"): 0,
    (Beat, "of"): NOWHERE,
    (Beat, "names"): False,
    (Assign, "life"): 0,
}
"""Fields that came later, and what they are in messages that do not have them."""

ALL: dict[str, JobMessage] = {
    "beat": Beat(
        70,
        WORKER,
        (Running("b4k7", 3, 2, "running", 700), Running("b4k8", 1, 1, "ended")),
        7,
        StoreLife(0x5706E, 0x11FE, 0x09E4),
        True,
    ),
    "beat-of-few-words": Beat(0, WorkerFacts(1)),
    "renew": Renew(
        FENCE,
        70,
        5 * SECOND,
        False,
        (ManagerAt("m1", "10.0.0.1:7700"), ManagerAt("m2", "")),
        ("b4k7",),
        ("b4k8",),
        True,
        (bytes(range(32)), bytes(32)),
    ),
    "renew-of-few-words": Renew((0, 0, 0), 0, 5 * SECOND, True),
    "elsewhere": Elsewhere("m2"),
    "goodbye": Goodbye(),
    "assign": Assign(
        job="b4k7",
        fence=FENCE,
        attempt=3,
        workflow="Shop",
        plan=ConstantRate("30/m", "10s", max_vus=5, policy="drop").plan(),
        first=2,
        count=2,
        of=5,
        iterations_done=(4, 5),
        values={"Login": {"token": b"\xa1t"}},
        settings=Settings(grace_ns=30 * SECOND, seed=7),
        bundle=BUNDLE,
        is_test=False,
        variables=bytes(range(70)),
    ),
    "assign-of-a-url": Assign(
        job="b4k7",
        fence=FENCE,
        attempt=1,
        workflow="Get",
        plan=IterationsPerVU(3, 100).plan(),
        first=0,
        count=1,
        of=1,
        iterations_done=(0,),
        values={},
        settings=Settings(grace_ns=0),
        bundle=BundleFacts(DIGEST, 0, b"", "", url="http://127.0.0.1:8080/"),
    ),
    "start": Start("b4k7", FENCE, 3, 1_020 * SECOND, 1_000 * SECOND, -5 * SECOND),
    "halt-stop": Halt("b4k7", FENCE, 3, "stop"),
    "halt-kill": Halt("b4k7", FENCE, 3, "kill"),
    "acknowledge": Acknowledge("b4k7", FENCE, 3, 299, 400),
    "accepted": ResultAccepted("b4k7", FENCE, 3),
    "reconcile": Reconcile("b4k7", FENCE, 2),
    "snapshot": WorkerSnapshot(
        "b4k7",
        FENCE,
        2,
        (TaskFacts(3, "ended", 9 * SECOND, 10 * SECOND, DIGEST, 5_000, 0xB007), TaskFacts(4, "arming")),
    ),
    "report": Report("b4k7", 3, b"\x91\x0c", life=0xB007),
    "finished": Finished("b4k7", 3, DIGEST, 5_000, 0xB007),
    "stale": Stale("b4k7", 3, (0, 8, 1)),
    "no-task": NoTask("b4k7", 3, FENCE),
    "sync": Sync(12),
    "synced": Synced(12, 1_020 * SECOND),
    "declined": TaskDeclined("b4k7", 3, FENCE, "it has no lease"),
    "log-lines": LogLines("b4k7", 3, 200, ("a line", "ein gr\u00fcner")),
    "want-blob": WantBlob(DIGEST, 524_288),
    "piece": Piece(DIGEST, 524_288, 524_290, b"\x00\xff"),
    "piece-of-nothing": Piece(DIGEST, 0, 0, b""),
    "keep-blob": KeepBlob(DIGEST, 0, 2, b"\x00\xff"),
    "kept": Kept(DIGEST, 2),
    "kept-with-a-problem": Kept(DIGEST, 0, "it is not what its digest says"),
    "lead": Lead(b"\x81\xa3job\xa4b4k7"),
    "account": Account("b4k7", FENCE, 9, "completed", b"\x80", "it is done", DIGEST, 3, ("w1", "w2"), 2**61),
    "accounted": Accounted("b4k7", FENCE, 9, True, 2**61),
    "leaderless": Leaderless("b4k7", FENCE),
    "call": ManagerCall(2**40, "submit", b"\x80", Asker("submit", "submitter", "ada", "t1", "10.0.0.7")),
    "call-of-nobody": ManagerCall(2**40, "submit", b"\x80"),
    "answer": CallAnswer(2**40, "", b"\x80"),
    "answer-with-a-problem": CallAnswer(2**40, "busy", b"too much to do", 1500),
    "watch": WatchJob("b4k7", 2**47, 120, True),
    "view": ViewUpdate("b4k7", 2**47, b"\x80"),
}


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


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert decode(golden) == ALL[name]
    assert encode(ALL[name]) == golden


def older(part: Any) -> Any:
    """A message as it is without the fields that came later."""
    if isinstance(part, msgspec.Struct):
        later = {name: value for (kind, name), value in OLDER_FIELDS.items() if kind is type(part)}
        inner = {name: older(getattr(part, name)) for name in part.__struct_fields__ if name not in later}
        return msgspec.structs.replace(part, **inner, **later)
    return part


@pytest.mark.parametrize("name", sorted(path.stem for path in OLDER.glob("*.hex")))
def test_bytes_of_a_message_that_had_fewer_fields_are_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER / f"{name}.hex").read_text())

    assert golden != encode(ALL[name])
    assert decode(golden) == older(ALL[name])


def test_golden_bytes_of_a_result_are_read_as_it_and_written_from_it() -> None:
    golden = bytes.fromhex((GOLDEN / "result.hex").read_text())

    assert decode_result(golden) == a_result()
    assert encode_result(a_result()) == golden


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(jobs).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} == kinds - {Message}
    assert {path.stem for path in GOLDEN.iterdir()} == {*ALL, "result"}


def test_no_two_messages_share_a_number() -> None:
    numbers = {type(message).__name__: msgspec.msgpack.decode(encode(message))[0] for message in ALL.values()}

    assert numbers == {
        "Beat": 1,
        "Renew": 2,
        "Elsewhere": 3,
        "Goodbye": 4,
        "Assign": 10,
        "Start": 11,
        "Halt": 12,
        "Acknowledge": 13,
        "ResultAccepted": 14,
        "Reconcile": 15,
        "WorkerSnapshot": 16,
        "Report": 17,
        "Finished": 18,
        "Stale": 19,
        "NoTask": 20,
        "Sync": 21,
        "Synced": 22,
        "TaskDeclined": 23,
        "LogLines": 24,
        "WantBlob": 30,
        "Piece": 31,
        "KeepBlob": 32,
        "Kept": 33,
        "Lead": 40,
        "Account": 41,
        "Accounted": 42,
        "Leaderless": 43,
        "ManagerCall": 50,
        "CallAnswer": 51,
        "WatchJob": 52,
        "ViewUpdate": 53,
    }


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    assert decode(msgspec.msgpack.encode([1, 5, [4]])) == Beat(5, WorkerFacts(4))
    assert decode(msgspec.msgpack.encode([52, "b4k7", 1])) == WatchJob("b4k7", 1, -1, False)
    assert decode(msgspec.msgpack.encode([41, "b4k7", FENCE, 1, "running", b""])) == Account(
        "b4k7", FENCE, 1, "running", b""
    )
    short = msgspec.msgpack.encode({"job": "b4k7", "attempt": 1, "tally": {}, "windows": []})
    assert decode_result(short) == AttemptResult("b4k7", 1, Tally(), [])


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([21, 12, "new", {"a": 1}])) == Sync(12)
    newer = msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_result(a_result())), "new": 1})
    assert decode_result(newer) == a_result()


def test_a_body_of_a_packet_is_read_as_it_is() -> None:
    assert decode(msgspec.Raw(encode(Sync(12)))) == Sync(12)


LONG = "x" * 65
FACTS = [4]


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("a worker without cores", [1, 0, [0]]),
        ("a worker with more cores than there are", [1, 0, [4097]]),
        ("a number below zero", [1, -1, FACTS]),
        ("a number that no counter reaches", [1, 2**62, FACTS]),
        ("more tasks than a worker may have", [1, 0, FACTS, [["j", 1, 1, "armed"]] * (RUNNING_LIMIT + 1)]),
        ("a state that no task has", [1, 0, FACTS, [["j", 1, 1, "paused", 0]]]),
        ("more managers than there may be", [2, FENCE, 0, 0, True, [["m", ""]] * (MANAGERS_LIMIT + 1)]),
        ("a fence of two parts", [2, [0, 1], 0, 0, True]),
        ("a fence below zero", [14, "j", [0, -1, 0], 0]),
        ("a job without a name", [14, "", FENCE, 0]),
        ("a job with too long a name", [14, LONG, FENCE, 0]),
        ("a way to halt that nobody knows", [12, "j", FENCE, 0, "pause"]),
        ("a digest that is too short", [30, DIGEST[:-1], 0]),
        ("a digest that is too long", [30, DIGEST + "0", 0]),
        ("a digest of other letters", [30, DIGEST[:-1] + "G", 0]),
        ("a digest with a line after it", [30, DIGEST[:-1] + "\n", 0]),
        ("a piece that is too large", [31, DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES + 1)]),
        ("a piece to keep that is too large", [32, DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES + 1)]),
        ("a record that is too large", [40, bytes(300_001)]),
        ("an account that is too large", [41, "j", FENCE, 1, "running", bytes(200_001)]),
        ("a question that is too large", [50, 1, "submit", bytes(CALL_LIMIT_BYTES + 1)]),
        ("a problem that nobody knows", [51, 1, "lost", b""]),
        ("a view that is too large", [53, "j", 1, bytes(VIEW_LIMIT_BYTES + 1)]),
        ("a report that is too large", [17, "j", 1, bytes(900_001)]),
        ("a number of no message", [99, 1]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadJobMessage, match="^a frame holds a malformed message about jobs: "):
        decode(msgspec.msgpack.encode(parts))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode(ALL["elsewhere"]).replace(b"m2", b"\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(encode(Sync(1)) + b"\xc0", id="more than one message"),
        pytest.param(b"\x93\x15\x01" + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
        pytest.param(
            encode(ALL["assign-of-a-url"]).replace(b"\xa3vus\x03", b"\xa3vus\x00"), id="a plan of nothing at all"
        ),
    ],
)
def test_bytes_that_are_no_message_are_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_result(a_result()).replace(b"buy", b"\xc3\x28u"), id="text that is not UTF-8"),
        pytest.param(encode(Sync(1)), id="a message"),
    ],
)
def test_bytes_that_are_no_result_are_untrusted(content: bytes) -> None:
    with pytest.raises(BadJobMessage, match="^a blob does not hold the result of an attempt: "):
        decode_result(content)


def test_the_largest_messages_fit_a_frame() -> None:
    largest: list[JobMessage] = [
        Piece(DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES)),
        KeepBlob(DIGEST, 0, 1, bytes(PIECE_LIMIT_BYTES)),
        ViewUpdate("j" * 64, 1, bytes(VIEW_LIMIT_BYTES)),
        Report("j" * 64, 1, bytes(900_000)),
        Lead(bytes(300_000)),
        Account("j" * 64, FENCE, 1, "running", bytes(200_000), "x" * 4096, DIGEST),
        ManagerCall(1, "submit", bytes(CALL_LIMIT_BYTES)),
        CallAnswer(1, "", bytes(CALL_LIMIT_BYTES)),
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
    Account: st.builds(
        Account,
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
    Accounted: st.builds(Accounted, job_names, fences, counts, st.booleans(), counts),
    ManagerCall: st.builds(ManagerCall, counts, names, st.binary(max_size=50)),
    WatchJob: st.builds(WatchJob, job_names, counts, st.integers(-1, 2**40), st.booleans()),
    ViewUpdate: st.builds(ViewUpdate, job_names, counts, st.binary(max_size=50)),
}


@given(message=st.one_of(list(MADE.values())))
@quick
def test_whatever_is_said_arrives_as_it_was_said(message: JobMessage) -> None:
    assert decode(encode(message)) == message


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(name: str, data: st.DataObject) -> None:
    content = spoilt(encode(ALL[name]), data)
    try:
        decode(content)
    except Untrusted:
        pass


@given(data=st.data())
@quick
def test_spoilt_results_raise_nothing_but_untrusted(data: st.DataObject) -> None:
    content = spoilt(encode_result(a_result()), data)
    try:
        decode_result(content)
    except Untrusted:
        pass


@given(content=st.binary(max_size=200))
@quick
def test_random_bytes_raise_nothing_but_untrusted(content: bytes) -> None:
    for read in (decode, decode_result):
        try:
            read(content)
        except Untrusted:
            continue


def spoilt(content: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    return bytes(changed)
