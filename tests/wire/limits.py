"""Contents that are beyond one limit each, by conversation."""

from typing import Any

import msgspec

from talka.wire import membership, shards
from talka.wire.asking import ANSWER_LIMIT_BYTES, SECRET_LIMIT
from talka.wire.greeting import NONCE_BYTES, RING_LIMIT_BYTES, TEXT_LIMIT
from talka.wire.jobs import MANAGERS_LIMIT, PIECE_LIMIT_BYTES, RUNNING_LIMIT, VIEW_LIMIT_BYTES, WorkerFacts
from talka.wire.leadership import ENTRIES_PER_PAGE, KEY_LIMIT, PAGES_LIMIT, VALUE_LIMIT_BYTES
from talka.wire.leases import BODY_LIMIT_BYTES, LEASE_KEY_LIMIT
from talka.wire.machines import FLAG_LIMIT, FLAGS_LIMIT, GPUS_LIMIT, TAG_VALUE_LIMIT, TAGS_LIMIT, WorkerMachine
from talka.wire.manager_calls import KEY_LIMIT as CALL_KEY_LIMIT
from talka.wire.manager_calls import REASON_LIMIT as CANCEL_REASON_LIMIT
from talka.wire.membership import (
    ADDRESS_LIMIT,
    BUCKETS,
    DIGEST_BYTES,
    PAYLOAD_LIMIT_BYTES,
    PEERS_LIMIT,
    REASON_LIMIT,
    ZONE_LIMIT,
)
from talka.wire.packets import NAME_LIMIT
from talka.wire.tasks import ERROR_LIMIT, LOG_LINE_LIMIT, TASKS_LIMIT
from tests.wire import samples
from tests.wire.samples import DIGEST, FENCE, A, B

Beyond = list[tuple[str, list[Any]]]


def entry_parts(key: str = "k", version: object = (1, 1), value: object = b"") -> list[object]:
    return [key, version, value]


WORD = "w" * 65
MINE = ["c", "e", "r", "1.0"]

LONG = "x" * 65
FACTS = [4]


def facts_on(**machine: Any) -> Any:
    """Of a worker on such a machine."""
    return msgspec.to_builtins(WorkerFacts(4, machine=WorkerMachine(**machine)))


MEMBERSHIP: Beyond = [
    ("an empty name", [1, 1, "", 1]),
    ("a long name", [1, 1, "x" * (NAME_LIMIT + 1), 1]),
    ("a negative sequence", [4, -1]),
    ("a number beyond all", [4, 2**62 + 1]),
    ("a long address", [3, 1, "a", 1, "x" * (ADDRESS_LIMIT + 1)]),
    ("a large state", [2, 1, [1, bytes(PAYLOAD_LIMIT_BYTES + 1)]]),
    ("too many digests", [6, [21, "a", 1, 0, "a"], None, bytes(BUCKETS * DIGEST_BYTES + 1)]),
    ("a bucket that does not exist", [7, [21, "a", 1, 0, "a"], [BUCKETS], []]),
    ("too many buckets", [7, [21, "a", 1, 0, "a"], [1] * (BUCKETS + 1), []]),
    ("a status that does not exist", [8, [["a", 1, 0, "a", "", b"", 4]]]),
    ("too many records", [8, [["a", 1, 0, "a", "", b"", 0]] * (membership.RECORDS_LIMIT + 1)]),
    ("too many peers", [10, 1, "a", 1, 1, None, [["a", 1, "a", 0]] * (PEERS_LIMIT + 1)]),
    ("a message of another number", [11]),
]

UPDATES: Beyond = [
    ("a long zone", [21, "a", 1, 0, "a", "z" * (ZONE_LIMIT + 1)]),
    ("large metadata", [21, "a", 1, 0, "a", "", bytes(PAYLOAD_LIMIT_BYTES + 1)]),
    ("a long reason", [22, "a", 1, 0, "b", "x" * (REASON_LIMIT + 1)]),
    ("a long accuser", [23, "a", 1, 0, "x" * (NAME_LIMIT + 1), ""]),
]

LEADERSHIP: Beyond = [
    ("a term below zero", [13, -1]),
    ("a term no group reaches", [13, 2**62]),
    ("a term that is no number", [13, "9"]),
    ("a key of no letters", [11, 8, 1, [entry_parts(key="")]]),
    ("a key that is too long", [11, 8, 1, [entry_parts(key="k" * (KEY_LIMIT + 1))]]),
    ("a value that is too large", [11, 8, 1, [entry_parts(value=bytes(VALUE_LIMIT_BYTES + 1))]]),
    ("a version of one number", [11, 8, 1, [entry_parts(version=[1])]]),
    ("a version below zero", [11, 8, 1, [entry_parts(version=[1, -1])]]),
    ("more entries than a page has", [11, 8, 1, [entry_parts()] * (ENTRIES_PER_PAGE + 1)]),
    ("a welcome to a group of no configuration", [2, 1, 1, 1, 1]),
    ("a seat below zero", [2, 1, 1, 1, -1, [7, 1], 8]),
    ("a welcome by a voter of no term", [2, 1, 1, 1, 1, [7, 1]]),
    ("a nonce no voter draws", [2, 1, 1, 1, 1, [7, 1], 8, 2**62]),
    ("an echo below zero", [1, 1, 1, True, 1, 1, -1]),
    ("an answer to a heartbeat by nobody's configuration", [8, 8, 300, 1, 12]),
    ("a configuration below the first", [8, 8, 300, 1, 12, [-1, 0], 0]),
    ("an answer to a heartbeat that says nothing of its health", [8, 8, 300, 1, 12, [7, 1]]),
    ("a health below zero", [8, 8, 300, 1, 12, [7, 1], -1]),
    ("a place to go on that is no key", [9, 8, "k" * (KEY_LIMIT + 1)]),
    ("a page number beyond the last", [14, 8, 5, PAGES_LIMIT, PAGES_LIMIT, [], 1]),
    ("a snapshot of no pages", [14, 8, 5, 0, 0, [], 1]),
    ("a snapshot of too many pages", [14, 8, 5, 0, PAGES_LIMIT + 1, [], 1]),
    ("a page learned by no disk", [15, 8, 5, 1]),
    ("a page learned by a disk of no number", [15, 8, 5, 1, -1]),
    ("a name that is too long", [16, 8, "n" * (NAME_LIMIT + 1)]),
    ("a number of no message", [17, 8]),
]

LEASES: Beyond = [
    ("a key of no letters", [3, "", 1]),
    ("a key that is too long to be kept", [3, "k" * (LEASE_KEY_LIMIT + 1), 1]),
    ("a key that is too long to be asked for", [1, "k" * (LEASE_KEY_LIMIT + 1), 1, 1, 1]),
    ("a key that is too long to be answered", [2, "k" * (LEASE_KEY_LIMIT + 1), 1, "busy"]),
    ("an epoch below zero", [3, "k", -1]),
    ("an epoch no counter reaches", [3, "k", 2**62]),
    ("a lease of negative length", [1, "k", 1, 1, -1]),
    ("an answer nobody gives", [2, "k", 1, "perhaps"]),
    ("a leader's name that is too long", [2, "k", 1, "elsewhere", 0, 0, 0, "n" * (NAME_LIMIT + 1)]),
    ("a token of two numbers", [4, [1, 2], 1, b""]),
    ("a token of four numbers", [4, [1, 2, 3, 4], 1, b""]),
    ("a body that is too large", [4, [1, 2, 3], 1, bytes(BODY_LIMIT_BYTES + 1)]),
    ("a number of no message", [6, "k", 1]),
]

GREETING: Beyond = [
    ("a nonce that is too short", [3, bytes(NONCE_BYTES - 1)]),
    ("a nonce that is too long", [3, bytes(NONCE_BYTES + 1)]),
    ("an echo that is too short", [4, bytes(NONCE_BYTES - 1), 0]),
    ("an echo of no bytes", [5, b"", "cluster", ""]),
    ("a floor below zero", [4, A, -1]),
    ("a floor no counter reaches", [4, A, 2**62 + 1]),
    ("a cluster that is too long", [1, [WORD, *MINE[1:]], A]),
    ("a role that is too long", [1, [*MINE[:2], WORD, "1.0"], A]),
    ("too many capabilities", [1, [*MINE, ["c"] * 65], A]),
    ("a capability that is too long", [1, [*MINE, [WORD]], A]),
    ("too many things required", [2, [*MINE, [], ["c"] * 65], A, B]),
    ("a node that says nothing of itself", [1, [], A]),
    ("a reason that is too long", [5, A, WORD, ""]),
    ("a sentence that is too long", [5, A, "role", "x" * (TEXT_LIMIT + 1)]),
    ("a ring that is too large", [6, bytes(RING_LIMIT_BYTES + 1)]),
    ("a number of no message", [7, A]),
]

ASKING: Beyond = [
    ("a number below zero", [20, -1, [2]]),
    ("a number no counter reaches", [20, 2**62 + 1, [2]]),
    ("a wait below zero", [20, 1, [2], -1]),
    ("a wait of more than ten minutes", [20, 1, [2], 600_001]),
    ("a name that is too long", [20, 1, [1, "n" * 129]]),
    ("a secret that is too long", [20, 1, [6, "s" * (SECRET_LIMIT + 1)]]),
    ("a key id that is too long", [20, 1, [7, "k" * 65]]),
    ("a force that is no yes or no", [20, 1, [8, "k", 1]]),
    ("a number of no question", [20, 1, [9]]),
    ("no question", [20, 1]),
    ("a problem that is too long", [21, 1, "p" * 4097]),
    ("an answer that is too large", [21, 1, "", bytes(ANSWER_LIMIT_BYTES + 1)]),
    ("a number of no message", [22, 1, ""]),
]

JOBS: Beyond = [
    ("a worker without cores", [1, 0, [0]]),
    ("a worker with more cores than there are", [1, 0, [4097]]),
    ("more tags than a worker may have", [1, 0, facts_on(tags=[["t", ""]] * (TAGS_LIMIT + 1))]),
    ("a tag that is too long", [1, 0, facts_on(tags=[["t", "x" * (TAG_VALUE_LIMIT + 1)]])]),
    ("more graphics cards than a machine may have", [1, 0, facts_on(gpus=[["T4", 1]] * (GPUS_LIMIT + 1))]),
    ("more flags than a processor may have", [1, 0, facts_on(cpu_flags=["avx"] * (FLAGS_LIMIT + 1))]),
    ("a flag that is too long", [1, 0, facts_on(cpu_flags=["x" * (FLAG_LIMIT + 1)])]),
    ("a machine with too long a name", [1, 0, facts_on(hostname="x" * 257)]),
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
    ("a question that nobody knows", [50, 1, [99]]),
    ("a job to get without a name", [50, 1, [3]]),
    ("a key that is too long", [50, 1, [1, msgspec.to_builtins(samples.ORDER), "k" * (CALL_KEY_LIMIT + 1)]]),
    ("a reason to cancel that is too long", [50, 1, [6, "j", "x" * (CANCEL_REASON_LIMIT + 1)]]),
    ("a lease below zero", [50, 1, [11, -1]]),
    ("a name too long for who wants a lease", [50, 1, [11, 1, "x" * (CALL_KEY_LIMIT + 1)]]),
    ("an answer that nobody knows", [51, 1, [99]]),
    ("a digest of a result that is too long", [51, 1, [4, "d" * 65]]),
    ("a sentence that is too long", [51, 1, None, "busy", "x" * 4097]),
    ("a problem that nobody knows", [51, 1, None, "lost"]),
    ("a view that is too large", [53, "j", 1, bytes(VIEW_LIMIT_BYTES + 1)]),
    ("a report that is too large", [17, "j", 1, bytes(900_001)]),
    ("a number of no message", [99, 1]),
]

TASKS: Beyond = [
    ("an epoch below zero", [63, -1]),
    ("a fence below zero", [61, 7, [-1]]),
    ("more tasks than a message may have", [60, 7, [[1, "j", "t", "h", 1, b""]] * (TASKS_LIMIT + 1)]),
    ("more fences to recall than a message may have", [61, 7, [1] * (TASKS_LIMIT + 1)]),
    ("more fences that were taken than a message may have", [62, 7, [1] * (TASKS_LIMIT + 1)]),
    ("an attempt that ran longer than any can", [65, [], [], [], [0, 0, 0], [], [[1, 1, 2**40 + 1]]]),
    ("more answers than a message may have", [68, 7, [[1, 1]] * (TASKS_LIMIT + 1)]),
    ("more results than a message may have", [64, [[1, "completed"]] * (TASKS_LIMIT + 1)]),
    ("more fences than a part may have", [66, 7, [1] * 65_537]),
    ("no part at all", [66, 7, [], 0, 0]),
    ("an outcome that nobody knows", [64, [[1, "lost"]]]),
    ("an error that is too long", [64, [[1, "failed", b"", "x" * (ERROR_LIMIT + 1)]]]),
    ("a cause that is too long", [64, [[1, "failed", b"", "", "x" * 201]]]),
    ("a line that is too long", [65, [], [], [[1, 1, "x" * (LOG_LINE_LIMIT + 1)]]]),
    ("a job with too long a name", [60, 7, [[1, "j" * 201, "t", "h", 1, b""]]]),
]
TO_HANDLERS: Beyond = [
    ("a fence below zero", [2, [[-1, "j", "t", "h", 1, b""]]]),
    ("a reason to stop that nobody knows", [3, [1], "late"]),
]
FROM_HANDLERS: Beyond = [
    ("an outcome that nobody knows", [11, [[1, "lost"]]]),
    ("a line that is too long", [12, [], [[1, 1, "x" * (LOG_LINE_LIMIT + 1)]]]),
]


def arm(**changed: Any) -> list[Any]:
    """A message to a core whose shard is changed."""
    parts = msgspec.msgpack.decode(shards.encode(samples.TO_CORE["arm-url"]))
    return [*parts[:4], {**parts[4], **changed}, *parts[5:]]


TO_CORE: Beyond = [
    ("a shard that does not exist", arm(index=1)),
    ("a plan of nothing", arm(plan={**arm()[4]["plan"], "vus": 0})),
    ("an answer of no number", [5, "second", [0, 4, 1, "it has not advanced"]]),
]
FROM_CORE: Beyond = [
    ("an ask before the first", [15, 1, {}, [], 0, 0, False, {}, None, 0, [], [], 0, [], 0, 0, 0, [0, 1, ""]]),
    ("an ask for less than no time", [15, 1, {}, [], 0, 0, False, {}, None, 0, [], [], 0, [], 0, 0, 0, [1, -1, ""]]),
    ("too long a reason", [15, 1, {}, [], 0, 0, False, {}, None, 0, [], [], 0, [], 0, 0, 0, [1, 1, "x" * 201]]),
    ("an index no histogram has", [15, 1, {}, [{"index": 0, "response_time": {"counts": {3328: 1}}}], 0, 0]),
]
