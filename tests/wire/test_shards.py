"""Messages between a job's owner and its cores. Golden bytes hold them to what was released.

When a message gains a field, its bytes change: the old file moves to `older`, where it must still be read, and a new
one takes its place.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.stats.histogram import HIGHEST, index_of, lowest_of
from talka.stats.tally import CheckTally, Exchanges, GeneratorTally, MetricTally, Sample, StepTally, Tally
from talka.stats.windows import Window
from talka.wire import shards
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.shards import (
    PROTOCOL,
    VALUE_LIMIT_BYTES,
    Ack,
    Arm,
    Armed,
    BadMessage,
    BundleSource,
    FileSource,
    FromCore,
    Gap,
    Go,
    Hello,
    MemorySource,
    Message,
    MetricTotals,
    Refused,
    Settings,
    StepTotals,
    Stop,
    ToCore,
    Totals,
    UnreadMetric,
    UnreadStep,
    UrlSource,
    decode_from_core,
    decode_to_core,
    decode_unread,
    encode,
    encode_unread,
    enveloped,
    opened,
    read_metric,
    read_step,
)
from talka.work.shapes import ConstantRate, IterationsPerVU, RampingVUs, SharedIterations

GOLDEN = Path(__file__).parent / "golden" / f"protocol-{PROTOCOL}"
quick = settings(deadline=None, derandomize=True, max_examples=200)


def step_tally() -> StepTally:
    tally = StepTally(ok=2, interrupted=1)
    for value_us in (1_500, 250_000):
        tally.response_time.record(value_us)
        tally.service_time.record(value_us - 100)
    tally.saw_status(200)
    tally.fail(Sample(1_234_567_890, "status", "GET http://shop/ answered 503 – später", 503))
    return tally


def tally() -> Tally:
    distribution = MetricTally("distribution")
    distribution.add(12.5)
    generator = GeneratorTally(cpu_ns=5_000_000, wall_ns=9_000_000, max_rss_bytes=40_000_000)
    generator.start_lag.record(70)
    generator.loop_lag.record(900)
    return Tally(
        iterations=7,
        started=8,
        dropped=1,
        exchanges=Exchanges(10, 1, 2, 3, 4_000, 50_000, 5, 1),
        checks={"has_total": CheckTally(6, 1, [Sample(5, "check", "total is missing")])},
        metrics={"page_size": distribution, "orders": MetricTally("count", 3, 3.0, 1.0, 1.0)},
        generator=generator,
    )


def window() -> Window:
    made = Window(42, started=3, requests=4, failed=1, vus=2)
    made.response_time.record(1_500, 4)
    return made


TO_CORE: dict[str, ToCore] = {
    "arm-file": Arm(
        job="b4k7",
        source=FileSource("tests/shop.py"),
        workflow="Shop",
        shard=ConstantRate("30/m", "10s", max_vus=5, policy="drop").plan().split(3)[1],
        iterations_done=4,
        values={"Login": {"token": b"\xa1t"}},
        settings=Settings(grace_ns=30_000_000_000, engine="python", seed=7, report_every_ns=100_000_000),
    ),
    "arm-url": Arm(
        job="b4k7",
        source=UrlSource("http://127.0.0.1:8080/"),
        workflow="Get",
        shard=RampingVUs([(10, "1m"), (0, "30s")], start=2).plan().split(1)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=0),
    ),
    "arm-memory": Arm(
        job="b4k7",
        source=MemorySource("k3"),
        workflow="Cell",
        shard=SharedIterations(3, 100).plan().split(2)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "arm-iterations": Arm(
        job="b4k7",
        source=FileSource("shop.py"),
        workflow="Shop",
        shard=IterationsPerVU(3, 100, "1h").plan().split(2)[1],
        iterations_done=12,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "arm-bundle": Arm(
        job="b4k7",
        source=BundleSource("blobs/01", "0" * 64, "tests/shop.py", "run/1", {"BASE": "http://shop"}),
        workflow="Shop",
        shard=SharedIterations(3, 100).plan().split(1)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "go": Go(start_at_ns=1_020_000_000_000, origin_ns=1_000_020_000_000, job_origin_ns=990_000_000_000),
    "stop": Stop(),
    "ack": Ack(300),
}
FROM_CORE: dict[str, FromCore] = {
    "hello": Hello(4711, "3.13.1", "python"),
    "armed": Armed(),
    "refused": Refused("unreachable", "http://shop/: no such host"),
    "step-totals": StepTotals(3, "buy", step_tally(), True),
    "metric-totals": MetricTotals(3, "page_size", tally().metrics["page_size"]),
    "totals": Totals(3, tally(), [window()], 2, 1_020_000_100_000),
    "totals-final": Totals(
        4, Tally(), [], 0, 1_020_000_100_000, True, {"token": b"\xa1t"}, "token raised KeyError", 1_030_000_000_000
    ),
    "totals-of-a-task": Totals(
        5,
        Tally(started=8),
        [],
        2,
        1_020_000_100_000,
        notes=["the seed was 7"],
        shares=(3, 5),
        spread_ns=40_000,
        gaps=(Gap(1, "was killed by SIGKILL", 1_000_000_000, 2_000_000_000, 3, 40),),
        parts=7,
        age_ns=150_000_000,
    ),
}
ALL: dict[str, ToCore | FromCore] = {**TO_CORE, **FROM_CORE}
UNREAD: dict[str, FromCore] = {
    "unread-step": StepTotals(3, "buy", step_tally(), True, "GET /"),
    "unread-metric": MetricTotals(3, "page_size", tally().metrics["page_size"]),
}


def decoder_of(name: str) -> Callable[[bytes], ToCore | FromCore]:
    return decode_to_core if name in TO_CORE else decode_from_core


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert decoder_of(name)(golden) == ALL[name]
    assert encode(ALL[name]) == golden


@pytest.mark.parametrize("name", sorted(path.stem for path in (GOLDEN / "older").glob("*.hex")))
def test_bytes_of_a_message_that_had_fewer_fields_are_still_read(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / "older" / f"{name}.hex").read_text())

    assert golden != encode(ALL[name])
    assert decoder_of(name)(golden) == ALL[name]


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(shards).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} | {UnreadStep, UnreadMetric} == kinds - {Message}
    others = ("packet", "membership-", "leadership-", "leases-")  # conversations with tests of their own
    assert {path.stem for path in GOLDEN.glob("*.hex") if not path.stem.startswith(others)} == {*ALL, *UNREAD}


@pytest.mark.parametrize("name", UNREAD)
def test_what_workers_send_to_be_read_later_has_the_bytes_it_had(name: str) -> None:
    assert encode_unread(UNREAD[name]).hex() == (GOLDEN / f"{name}.hex").read_text().strip()


def test_no_two_messages_share_a_number() -> None:
    numbers = {type(message): msgspec.msgpack.decode(encode(message))[0] for message in ALL.values()}

    assert numbers == {
        Arm: 1,
        Go: 2,
        Stop: 3,
        Ack: 4,
        Hello: 11,
        Armed: 12,
        Refused: 13,
        StepTotals: 14,
        Totals: 15,
        MetricTotals: 16,
    }


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    short = msgspec.msgpack.encode([15, 1, {}, [], 0, 0])

    assert decode_from_core(short) == Totals(1, Tally(), [], 0, 0)


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode_to_core(msgspec.msgpack.encode([4, 300, "new", {"a": 1}])) == Ack(300)


def test_what_is_decoded_shares_nothing_with_what_is_decoded_next() -> None:
    content = encode(Totals(1, Tally(), [], 0, 0))
    first = decode_from_core(content)
    assert isinstance(first, Totals)
    first.tally.merge(tally())
    first.provided["token"] = b""

    assert decode_from_core(content) == Totals(1, Tally(), [], 0, 0)


@pytest.mark.parametrize("name", FROM_CORE)
def test_what_is_left_unread_for_now_is_the_same_when_it_is_read(name: str) -> None:
    message, unread = FROM_CORE[name], decode_unread(encode_unread(FROM_CORE[name]))

    if isinstance(message, StepTotals):
        assert isinstance(unread, UnreadStep)
        assert (unread.sequence, unread.name, unread.measured, unread.call) == (
            *(message.sequence, message.name, message.measured, message.call),
        )
        assert read_step(unread.tally) == message.tally
    elif isinstance(message, MetricTotals):
        assert isinstance(unread, UnreadMetric)
        assert (unread.sequence, unread.name) == (message.sequence, message.name)
        assert read_metric(unread.tally) == message.tally
    else:
        assert unread == message


def test_a_tally_that_turns_out_to_be_none_is_untrusted() -> None:
    step = decode_unread(msgspec.msgpack.encode([17, 1, "buy", msgspec.msgpack.encode({"ok": "three"}), True]))
    metric = decode_unread(msgspec.msgpack.encode([18, 1, "size", msgspec.msgpack.encode({"kind": "none"})]))
    assert isinstance(step, UnreadStep) and isinstance(metric, UnreadMetric)

    with pytest.raises(BadMessage, match="^a worker sent a malformed tally of a step: "):
        read_step(step.tally)
    with pytest.raises(BadMessage, match="^a worker sent a malformed tally of a metric: "):
        read_metric(metric.tally)
    with pytest.raises(BadMessage, match="^a worker sent a malformed message: "):
        decode_unread(b"")


def test_one_side_does_not_take_the_messages_of_the_other() -> None:
    for name in ALL:
        other = decode_from_core if name in TO_CORE else decode_to_core
        with pytest.raises(BadMessage):
            other(encode(ALL[name]))


def test_errors_name_the_side_that_sent_the_bytes() -> None:
    with pytest.raises(BadMessage, match="^the owner sent a malformed message: "):
        decode_to_core(b"")
    with pytest.raises(BadMessage, match="^a core sent a malformed message: "):
        decode_from_core(b"")


@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("text that is not UTF-8", msgspec.msgpack.encode([13, "file", "xx"]).replace(b"xx", b"\xc3\x28")),
        ("deeper than any message", b"\x92\x03" + b"\x91" * 100_000 + b"\xc0"),
        ("a length without content", b"\x96\x0f\x01\x80\xdd\xff\xff\xff\xff"),
        (
            "an index no histogram has",
            msgspec.msgpack.encode([15, 1, {}, [{"index": 0, "response_time": {"counts": {3328: 1}}}], 0, 0]),
        ),
        ("a shard that does not exist", encode(TO_CORE["arm-url"]).replace(b"\xa5index\x00", b"\xa5index\x01")),
        ("a plan of nothing", encode(TO_CORE["arm-url"]).replace(b"\xa3vus\x0a", b"\xa3vus\x00")),
    ],
)
def test_bytes_that_are_wrong_in_any_way_are_untrusted(reason: str, content: bytes) -> None:
    decoded = []
    for decode in (decode_to_core, decode_from_core):
        try:
            decoded.append(decode(content))
        except Untrusted:
            continue
    assert decoded == [], reason


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(name: str, data: st.DataObject) -> None:
    content = bytearray(encode(ALL[name]) if data.draw(st.booleans()) else encode_unread(FROM_CORE.get(name, Armed())))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    for decode in (decoder_of(name), decode_unread):
        try:
            message = decode(bytes(content))
            if isinstance(message, UnreadStep):
                read_step(message.tally)
            elif isinstance(message, UnreadMetric):
                read_metric(message.tally)
        except Untrusted:
            continue


@given(content=st.binary(max_size=200))
@quick
def test_random_bytes_raise_nothing_but_untrusted(content: bytes) -> None:
    for decode in (decode_to_core, decode_from_core):
        try:
            decode(content)
        except Untrusted:
            continue


def test_a_step_with_every_counter_in_use_fits_a_frame() -> None:
    full = StepTally()
    for index in range(index_of(HIGHEST) + 1):
        full.response_time.record(lowest_of(index), 100_000)
    full.service_time = full.response_time

    assert len(full.response_time.counts) > 20_000
    assert len(encode(StepTotals(1, "buy", full, True))) < FRAME_LIMIT_BYTES


def test_three_of_the_largest_values_fit_a_frame_together() -> None:
    provided = {f"value_{number}": bytes(VALUE_LIMIT_BYTES) for number in range(3)}

    assert len(encode(Totals(1, Tally(), [], 0, 0, True, provided))) < FRAME_LIMIT_BYTES


@pytest.mark.parametrize("content", [b"", b"\x93\x03", bytes(1000)])
def test_an_envelope_names_the_attempt_and_holds_what_is_said(content: bytes) -> None:
    assert opened(enveloped(7, content)) == (7, content)


def test_a_frame_too_short_for_the_number_of_an_attempt_is_no_message() -> None:
    with pytest.raises(BadMessage, match="^a frame of 7 bytes names no attempt: its number alone has 8$"):
        opened(bytes(7))
