"""How many voters decide, and how many may be missing.

docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Sequence
from typing import Final

from talka.errors import Invalid
from talka.units import SECOND

VOTERS_LIMIT: Final = 15
"""More voters make every write slower and no cluster noticeably safer."""


def majority(voters: int) -> int:
    """The fewest of `voters` of which any two groups share one."""
    return voters // 2 + 1


class BadVoters(Invalid):
    """The configured voters cannot be a group that decides."""


def breaker_text(failures: int, window_ns: int, retry_in_ns: int) -> str:
    """Too many failures in a short time."""
    return (
        f"the voters failed {failures} times within {_seconds(window_ns)} and are left alone for a while: "
        f"the next try is in {_seconds(retry_in_ns)}"
    )


def check_size(voters: Sequence[str], allow_two: bool = False) -> str | None:
    """Raises `BadVoters` for a group that must not start; a note for people where the size buys nothing."""
    size = len(voters)
    if size == 0:
        raise BadVoters("no voters are configured: name 1, 3 or 5 of them")
    names = sorted(voters)
    twice = [name for name, following in zip(names, names[1:], strict=False) if name == following]
    if twice:
        raise BadVoters(f"the voter {twice[0]!r} is configured twice: give every voter a name of its own")
    if size > VOTERS_LIMIT:
        raise BadVoters(
            f"{size} voters are configured, at most {VOTERS_LIMIT} may be: "
            f"take {VOTERS_LIMIT} or fewer, the others can be members without a vote"
        )
    if size == 2 and not allow_two:
        raise BadVoters("2 voters decide only while both are there, so the loss of either stops the group: name 1 or 3")
    if size % 2:
        return None
    fewer = "1 voter does" if size == 2 else f"{size - 1} voters do"
    return f"{size} voters tolerate the loss of {size - majority(size)}, no more than {fewer}"


def _seconds(span_ns: int) -> str:
    """To a tenth of a second and never 0 for a wait that is left."""
    tenths = -(-span_ns * 10 // SECOND)
    whole, tenth = divmod(tenths, 10)
    return f"{whole}.{tenth} s" if tenth else f"{whole} s"
