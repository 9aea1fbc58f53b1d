"""Text of others on lines of ours: in a log, an event or a table nobody can end a line, or steer a terminal, with a
name.

What does so is shown as it would be written in a program: nothing is lost, and nothing happens.
"""

import re
from typing import Final

STEERING: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029"  # control characters but the tab, and what else ends a line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff]"  # halves of characters, which cannot be written at all
)
LATER: Final = re.compile("[\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def tame(text: str) -> str:
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def tame_json(content: bytes) -> bytes:
    """JSON that says the same. Encoders escape line feeds and ESC, and let the later ones through."""
    if content.isascii() and b"\x7f" not in content:
        return content
    # Outside of texts JSON has nothing but ASCII.
    return LATER.sub(lambda found: f"\\u{ord(found[0]):04x}", content.decode()).encode()
