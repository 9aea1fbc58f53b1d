"""What is special to shards; what holds for every conversation is in `test_channels.py`."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.stats.histogram import HIGHEST, index_of, lowest_of
from talka.stats.tally import StepTally, Tally
from talka.wire.channels import BadMessage
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.shards import (
    PROTOCOL,
    VALUE_LIMIT_BYTES,
    Armed,
    FromCore,
    MetricTotals,
    StepTotals,
    ToCore,
    Totals,
    UnreadMetric,
    UnreadStep,
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
from tests.wire.samples import FROM_CORE, TO_CORE, step_tally, tally

GOLDEN = Path(__file__).parent / "golden" / f"protocol-{PROTOCOL}"
OLDER = GOLDEN / "older" / "shards"
quick = settings(deadline=None, derandomize=True, max_examples=200)


ALL: dict[str, ToCore | FromCore] = {**TO_CORE, **FROM_CORE}
UNREAD: dict[str, FromCore] = {
    "step": StepTotals(3, "buy", step_tally(), True, "GET /"),
    "metric": MetricTotals(3, "page_size", tally().metrics["page_size"]),
}


def decoder_of(name: str) -> Callable[[bytes], ToCore | FromCore]:
    return decode_to_core if name in TO_CORE else decode_from_core


@pytest.mark.parametrize("name", sorted(path.stem for path in OLDER.glob("*.hex")))
def test_bytes_of_a_message_that_had_fewer_fields_are_still_read(name: str) -> None:
    golden = bytes.fromhex((OLDER / f"{name}.hex").read_text())
    name = name.removesuffix("-with-codes")
    message = ALL[name]
    if isinstance(message, StepTotals):  # counted by status codes then
        counted = msgspec.structs.replace(message.tally, status_codes={200: 1})
        message = msgspec.structs.replace(message, tally=counted)

    assert golden != encode(ALL[name])
    assert decoder_of(name)(golden) == message


@pytest.mark.parametrize("name", UNREAD)
def test_what_workers_send_to_be_read_later_has_the_bytes_it_had(name: str) -> None:
    assert encode_unread(UNREAD[name]).hex() == (GOLDEN / "unread" / f"{name}.hex").read_text().strip()


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
