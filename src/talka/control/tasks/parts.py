"""Things to be told, in as few messages as hold them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def in_parts(
    items: Sequence[Item], size_of: Callable[[Item], int], limit_bytes: int, limit: int | None = None
) -> list[list[Item]]:
    """In order. One that is larger than a message may be is alone in its part."""
    part: list[Item] = []
    parts = [part]
    size_bytes = 0
    for item in items:
        more_bytes = size_of(item)
        if part and (len(part) == limit or size_bytes + more_bytes > limit_bytes):
            part, size_bytes = [], 0
            parts.append(part)
        part.append(item)
        size_bytes += more_bytes
    return parts if part else []
