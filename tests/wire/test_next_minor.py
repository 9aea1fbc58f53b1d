"""What the next minor version may add to the conversation about jobs, and what an earlier one may lack."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from talka.wire import jobs
from talka.wire.entries import (
    JobAccount,
    JobOrder,
    JobRecord,
    decode_account,
    decode_order,
    decode_record,
    encode_account,
    encode_order,
    encode_record,
)
from talka.wire.jobs import BadJobMessage, BundleFacts, JobMessage, decode
from talka.wire.shards import Settings
from talka.work.lifecycle import JobState

PROTOCOL = Path(__file__).parent / "golden" / "protocol-1"
GOLDEN = PROTOCOL / "jobs"
NAMES = sorted(
    f"{folder}/{path.stem}"
    for folder in ("jobs", "tasks")
    for path in (PROTOCOL / folder).glob("*.hex")
    if path.stem != "result"
)
NEW_FIELDS = ["new", {"of": [1, None]}]
ORDER = JobOrder("shop", BundleFacts("0" * 64, 70_000, b"", "shop.py"), (), Settings(grace_ns=0))
RECORD = JobRecord(job="b4k7", order=ORDER, state=JobState.RUNNING, number=3, account=b"\x80")
ACCOUNT = JobAccount(attempts=2, workflows=(), engine="python")


def parts_of(name: str) -> list[object]:
    """The tag and the fields of a released message."""
    parts: list[object] = msgspec.msgpack.decode(bytes.fromhex((PROTOCOL / f"{name}.hex").read_text()))
    return parts


@pytest.mark.parametrize("name", NAMES)
def test_fields_after_the_last_one_are_ignored(name: str) -> None:
    parts = parts_of(name)

    longer = decode(msgspec.msgpack.encode([*parts, *NEW_FIELDS]))

    assert longer == decode(msgspec.msgpack.encode(parts))


@pytest.mark.parametrize("name", NAMES)
def test_fields_that_have_a_default_may_be_missing(name: str) -> None:
    parts = parts_of(name)
    fields = msgspec.structs.fields(type(decode(msgspec.msgpack.encode(parts))))
    needed = sum(field.required for field in fields)

    shorter = decode(msgspec.msgpack.encode(parts[: 1 + needed]))

    for place, field in enumerate(fields):
        assert field.required is (place < needed), "what may be missing comes last"
        if not field.required:
            assert getattr(shorter, field.name) == field.default


def test_a_message_with_a_number_that_nobody_knows_is_untrusted() -> None:
    known = {kind.__struct_config__.tag for kind in get_args(JobMessage)}

    for tag in [tag for tag in range(256) if tag not in known]:
        with pytest.raises(BadJobMessage, match="^a frame holds a malformed message about jobs: "):
            decode(msgspec.msgpack.encode([tag, "rain later"]))


def test_nothing_of_what_is_on_disk_minds_a_field_it_does_not_know() -> None:
    def longer(content: bytes) -> bytes:
        return msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "new": NEW_FIELDS})

    assert decode_record(longer(encode_record(RECORD))) == RECORD
    assert decode_order(longer(encode_order(ORDER))) == ORDER
    assert decode_account(longer(encode_account(ACCOUNT))) == ACCOUNT
    result = bytes.fromhex((GOLDEN / "result.hex").read_text())
    assert jobs.decode_result(longer(result)) == jobs.decode_result(result)
