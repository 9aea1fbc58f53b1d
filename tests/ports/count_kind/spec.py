"""What a user submits: a number to count to."""

from typing import Annotated, Literal

import msgspec

from talka.client.requests import decoded_body

MOST = 1_000_000


class CountSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[int, msgspec.Meta(ge=1, le=MOST)]
    name: str = "counting"
    kind: Literal["count"] = "count"


def read_spec(content: bytes) -> CountSpec:
    return decoded_body(content, CountSpec)
