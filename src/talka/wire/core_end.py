"""How a worker tells a core process, and the guard beside it, until when cores may run: instants of the machine's
clock, one after the other in a pipe of its own. The latest counts.

Decision: docs/decisions/0032-a-core-ends-by-its-own-clock.md.
"""

from typing import Final

END_BYTES: Final = 8


def encode_end(end_ns: int) -> bytes:
    return end_ns.to_bytes(END_BYTES, "big")


def last_end(content: bytes) -> int:
    """The latest of what was read. What a pipe takes in one piece is read so: no instant is cut in two."""
    whole = len(content) - len(content) % END_BYTES
    return int.from_bytes(content[whole - END_BYTES : whole], "big")
