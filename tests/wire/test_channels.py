"""What holds for every conversation: golden bytes, limits, and bytes that nobody should send.

When a message gains a field, its bytes change: the old file moves to `older`, where it must still be read, and a new
one takes its place. What is special to one conversation is tested in the file of its name.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.wire import asking, greeting, jobs, leadership, leases, manager_calls, membership, shards, tasks
from talka.wire.channels import BadMessage, Channel, Message
from talka.wire.versions import VERSION
from tests.wire import limits, samples

GOLDEN = Path(__file__).parent / "golden" / "protocol-1"
NEW_FIELDS = ["new", {"of": [1, None]}]
quick = settings(deadline=None, derandomize=True, max_examples=200)


@cache
def stored(file: str) -> bytes:
    return bytes.fromhex((GOLDEN / file).read_text())


class Conversation(NamedTuple):
    channel: Channel[Any]
    refusal: str
    """The beginning of the sentence that other bytes are refused with."""
    messages: dict[str, dict[str, Any]]
    """By the folder and the name of their golden bytes."""
    tags: dict[str, int]
    """Of every message, as it was released."""
    beyond: list[tuple[str, list[Any]]]
    """Contents that are beyond one limit each."""
    encode: Callable[[Any], bytes] | None = None
    """Where it is not the channel's own."""

    def golden(self) -> dict[str, bytes]:
        return {
            f"{folder}/{name}": stored(f"{folder}/{name}.hex")
            for folder, messages in self.messages.items()
            for name in messages
        }

    def message(self, name: str) -> Any:
        folder, _, stem = name.partition("/")
        return self.messages[folder][stem]

    def written(self, message: Any) -> bytes:
        return (self.encode or self.channel.encode)(message)

    def refuses(self, content: bytes) -> None:
        with pytest.raises(BadMessage, match=f"^{self.refusal}: ") as raised:
            self.channel.decode(content)
        assert type(raised.value) is BadMessage


REPORTED = {"Hello": 11, "Armed": 12, "Refused": 13, "Totals": 15}
SAID_AS_IT_IS = {name: one for name, one in samples.FROM_CORE.items() if type(one).__name__ in REPORTED}
CONVERSATIONS = [
    Conversation(
        membership.CHANNEL,
        "a member sent a malformed membership message",
        {"membership": samples.MEMBERSHIP},
        {
            "Ping": 1,
            "ProbeAck": 2,
            "PingRequest": 3,
            "Nack": 4,
            "Gossip": 5,
            "SyncOffer": 6,
            "SyncReply": 7,
            "SyncRecords": 8,
            "WatchGroup": 9,
            "WatchReply": 10,
        },
        limits.MEMBERSHIP,
    ),
    Conversation(
        membership.UPDATES,
        "a member sent a malformed membership update",
        {"updates": samples.UPDATES},
        {"Alive": 21, "Suspect": 22, "Dead": 23, "MemberHasLeft": 24, "Stated": 25},
        limits.UPDATES,
        membership.encode_update,
    ),
    Conversation(
        leadership.CHANNEL,
        "a voter sent a malformed message",
        {"leadership": samples.LEADERSHIP},
        {
            "VoterHello": 1,
            "VoterWelcome": 2,
            "PreVote": 3,
            "PreVoteReply": 4,
            "Vote": 5,
            "VoteReply": 6,
            "Heartbeat": 7,
            "HeartbeatReply": 8,
            "Collect": 9,
            "Collected": 10,
            "Propose": 11,
            "ProposalAccepted": 12,
            "ProposalRefused": 13,
            "RegisterSnapshot": 14,
            "SnapshotReply": 15,
            "Released": 16,
        },
        limits.LEADERSHIP,
    ),
    Conversation(
        leases.CHANNEL,
        "a peer sent a malformed message",
        {"leases": samples.LEASES},
        {"AcquireLease": 1, "LeaseAnswer": 2, "ReleaseLease": 3, "LeaseCommand": 4, "CommandAnswer": 5},
        limits.LEASES,
    ),
    Conversation(
        greeting.CHANNEL,
        "a node sent a malformed greeting",
        {"greeting": samples.GREETING},
        {"GreetingHello": 1, "GreetingWelcome": 2, "Challenge": 3, "Proof": 4, "GreetingRefusal": 5, "ShareRing": 6},
        limits.GREETING,
    ),
    Conversation(
        asking.CHANNEL,
        "a node sent a malformed question or answer",
        {"asking": samples.ASKING},
        {"Ask": 20, "AskAnswer": 21},
        limits.ASKING,
    ),
    Conversation(
        jobs.CHANNEL,
        "a frame holds a malformed message about jobs",
        {"jobs": samples.JOBS, "tasks": samples.TASKS},
        {
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
            "StoreCheckpoint": 41,
            "CheckpointStored": 42,
            "Leaderless": 43,
            "ManagerCall": 50,
            "CallAnswer": 51,
            "WatchJob": 52,
            "ViewUpdate": 53,
            "AssignTasks": 60,
            "Recall": 61,
            "ResultsStored": 62,
            "AskHeld": 63,
            "Done": 64,
            "TaskProgress": 65,
            "Held": 66,
            "TaskInputs": 67,
            "TimeAnswers": 68,
        },
        limits.JOBS + limits.TASKS,
    ),
    Conversation(
        tasks.TO_HANDLERS,
        "a frame holds a malformed message to a core",
        {"handlers": samples.TO_HANDLERS},
        {"Load": 1, "RunTasks": 2, "StopTasks": 3, "WarnTasks": 4, "TellTime": 5},
        limits.TO_HANDLERS,
    ),
    Conversation(
        tasks.FROM_HANDLERS,
        "a frame holds a malformed message from a core",
        {"handlers": samples.FROM_HANDLERS},
        {"Loaded": 10, "Ran": 11, "Said": 12, "Spent": 13},
        limits.FROM_HANDLERS,
    ),
    Conversation(
        shards.TO_CORE,
        "the owner sent a malformed message",
        {"shards": samples.TO_CORE},
        {"Arm": 1, "Go": 2, "Stop": 3, "Ack": 4, "ShardAnswer": 5, "TimeOver": 6},
        limits.TO_CORE,
    ),
    Conversation(
        shards.FROM_CORE,
        "a core sent a malformed message",
        {"shards": samples.FROM_CORE},
        {**REPORTED, "StepTotals": 14, "MetricTotals": 16},
        limits.FROM_CORE,
    ),
    Conversation(
        shards.UNREAD,
        "a worker sent a malformed message",
        {"shards": SAID_AS_IT_IS, "unread": samples.UNREAD},
        {**REPORTED, "UnreadStep": 17, "UnreadMetric": 18},
        limits.FROM_CORE,
    ),
]
each = pytest.mark.parametrize("spoken", CONVERSATIONS, ids=lambda one: one.channel.name)
each_message = pytest.mark.parametrize(
    ("spoken", "name"),
    [pytest.param(one, name, id=f"{one.channel.name}: {name}") for one in CONVERSATIONS for name in one.golden()],
)
# -- golden bytes


@each_message
def test_golden_bytes_are_read_as_the_message_and_written_from_it(spoken: Conversation, name: str) -> None:
    golden = spoken.golden()[name]

    assert spoken.channel.decode(golden) == spoken.message(name)
    assert spoken.written(spoken.message(name)) == golden


@each_message
def test_a_message_is_read_where_it_lies_in_a_packet(spoken: Conversation, name: str) -> None:
    assert spoken.channel.decode(msgspec.Raw(spoken.golden()[name])) == spoken.message(name)


@each
def test_there_are_golden_bytes_of_every_message_and_each_has_the_tag_it_was_released_with(
    spoken: Conversation,
) -> None:
    tags = {
        type(spoken.message(name)).__name__: msgspec.msgpack.decode(golden)[0]
        for name, golden in spoken.golden().items()
    }

    assert tags == spoken.tags
    assert set(tags) == {kind.__name__ for kind in spoken.channel.kinds}


def test_there_are_golden_bytes_of_nothing_else() -> None:
    others = {"packet", "results/attempt", "sealing/frame", "sealing/frame-addressed", "sealing/ring"}
    found = {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.hex")}

    assert {name for name in found if not name.startswith("older/")} == others.union(
        *(one.golden() for one in CONVERSATIONS)
    )


def test_every_channel_is_here_and_those_of_packets_have_a_number_of_their_own() -> None:
    modules = (asking, greeting, jobs, leadership, leases, membership, shards, tasks)
    channels = [one for module in modules for one in vars(module).values() if isinstance(one, Channel)]
    numbers = sorted(one.number for one in channels if one.number)

    assert {one.name for one in channels} == {one.channel.name for one in CONVERSATIONS}
    assert numbers == [1, 2, 3, 4, 5, 6]


# -- other versions

FIRST = GOLDEN / "messages-of-1.0.txt"
"""Messages, questions, calls and answers that every side of this MAJOR knows. It never changes."""
NEWER: dict[str, int] = {"TimeAnswers": 1, "ResumeJob": 1}
"""Those that came later, and the minor that brought each. A number here never changes: sides of that minor are told
it."""
ENVELOPES = (asking.Question, manager_calls.LeaderCall, manager_calls.LeaderAnswer)


def test_every_message_says_which_minor_brought_it_and_none_is_newer_than_this_release() -> None:
    # Those of number 0 stay on one machine, or within another message that says what it needs.
    kinds = [kind for one in CONVERSATIONS if one.channel.number for kind in one.channel.kinds]
    kinds += [kind for inner in ENVELOPES for kind in get_args(inner)]

    assert all(issubclass(kind, Message) for kind in kinds)
    assert {kind.__name__ for kind in kinds if not kind.since} == set(FIRST.read_text().split())
    assert {kind.__name__: kind.since for kind in kinds if kind.since} == NEWER
    assert all(kind.since <= VERSION.minor for kind in kinds)


def test_sides_that_have_not_met_say_nothing_that_one_of_them_may_not_know() -> None:
    for channel in (greeting.CHANNEL, membership.CHANNEL, membership.UPDATES):
        assert {kind.since for kind in channel.kinds} == {0}, f"{channel.name}: another message needs another MAJOR"


def test_what_is_in_an_envelope_decides_who_understands_it() -> None:
    class Newer(Message, frozen=True, tag=240):
        since = 7

    newer: Any = Newer()
    assert (Newer.since, newer.needs) == (7, 7)
    assert asking.Ask(1, newer).needs == manager_calls.ManagerCall(1, newer).needs == 7
    assert manager_calls.CallAnswer(1, newer).needs == 7
    assert asking.AskAnswer(1, "").needs == manager_calls.CallAnswer(1, None, "busy").needs == 0


@each_message
def test_fields_after_the_last_one_are_ignored(spoken: Conversation, name: str) -> None:
    parts = msgspec.msgpack.decode(spoken.channel.encode(spoken.message(name)))

    longer = spoken.channel.decode(msgspec.msgpack.encode([*parts, *NEW_FIELDS]))

    assert longer == spoken.channel.decode(msgspec.msgpack.encode(parts))


@each_message
def test_fields_that_have_a_default_come_last_and_may_be_missing(spoken: Conversation, name: str) -> None:
    parts = msgspec.msgpack.decode(spoken.golden()[name])
    fields = msgspec.structs.fields(type(spoken.message(name)))
    needed = sum(field.required for field in fields)

    shorter = spoken.channel.decode(msgspec.msgpack.encode(parts[: 1 + needed]))

    for place, field in enumerate(fields):
        assert field.required is (place < needed)
        if not field.required:
            made = field.default_factory is not msgspec.NODEFAULT
            assert getattr(shorter, field.name) == (field.default_factory() if made else field.default)
    if needed:
        spoken.refuses(msgspec.msgpack.encode(parts[:needed]))


@each
def test_a_message_with_a_tag_that_nobody_knows_is_untrusted(spoken: Conversation) -> None:
    for tag in set(range(256)) - set(spoken.tags.values()):
        spoken.refuses(msgspec.msgpack.encode([tag, "rain later"]))


@pytest.mark.parametrize(
    ("name", "other"),
    [("membership", "updates"), ("to core", "from core"), ("to core", "from worker"), ("to handlers", "from handlers")],
)
def test_one_conversation_does_not_take_the_messages_of_another(name: str, other: str) -> None:
    one, another = (next(each for each in CONVERSATIONS if each.channel.name == word) for word in (name, other))
    for foreign in another.golden().values():
        one.refuses(foreign)
    for foreign in one.golden().values():
        another.refuses(foreign)


# -- bytes that nobody should send


@pytest.mark.parametrize(
    ("spoken", "parts"),
    [
        pytest.param(one, parts, id=f"{one.channel.name}: {reason}")
        for one in CONVERSATIONS
        for reason, parts in one.beyond
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(spoken: Conversation, parts: list[object]) -> None:
    spoken.refuses(msgspec.msgpack.encode(parts))


@each
def test_nothing_is_untrusted(spoken: Conversation) -> None:
    spoken.refuses(b"")


@each_message
def test_a_message_that_ends_too_early_is_untrusted(spoken: Conversation, name: str) -> None:
    golden = spoken.golden()[name]
    for end in range(len(golden)):
        spoken.refuses(golden[:end])


@each_message
def test_more_than_one_message_is_untrusted(spoken: Conversation, name: str) -> None:
    spoken.refuses(spoken.golden()[name] + b"\xc0")


@each_message
def test_what_is_nested_deeper_than_any_message_is_untrusted(spoken: Conversation, name: str) -> None:
    spoken.refuses(with_a_new_field(spoken.golden()[name], b"\x91" * 100_000 + b"\xc0"))


@each_message
def test_a_length_without_content_is_untrusted(spoken: Conversation, name: str) -> None:
    spoken.refuses(with_a_new_field(spoken.golden()[name], b"\xdd\xff\xff\xff\xff"))


@each
def test_text_that_is_not_utf8_is_untrusted(spoken: Conversation) -> None:
    tried = 0
    for golden in spoken.golden().values():
        for text in texts(msgspec.msgpack.decode(golden)):
            spoken.refuses(golden.replace(text.encode(), b"\xc3\x28" + text.encode()[2:], 1))
            tried += 1
    assert tried


@each
@given(data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(spoken: Conversation, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(list(spoken.golden().values()))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        spoken.channel.decode(bytes(content))
    except BadMessage:
        pass


@each
@given(content=st.binary(max_size=200))
@quick
def test_random_bytes_raise_nothing_but_untrusted(spoken: Conversation, content: bytes) -> None:
    try:
        spoken.channel.decode(content)
    except BadMessage:
        pass


def with_a_new_field(golden: bytes, content: bytes) -> bytes:
    """The message with one more field, of which these are the bytes."""
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(golden), 0])[:-1] + content


def texts(part: Any) -> list[str]:
    """Those in a message that are long enough to be spoilt; names of fields are none."""
    match part:
        case str():
            return [part] if len(part) > 1 and part.isascii() else []
        case list():
            return [text for one in part[1:] for text in texts(one)]
        case _:
            return []
