"""How many voters decide, how many may be missing, and what is said when too few answer.

docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Sequence
from typing import Final

from talka.errors import Invalid, Unavailable
from talka.units import SECOND

VOTERS_LIMIT: Final = 15
"""More voters make every write slower and no cluster noticeably safer."""


def majority(voters: int) -> int:
    """The fewest of `voters` of which any two groups share one."""
    return voters // 2 + 1


def tolerates(voters: int) -> int:
    """How many of `voters` may be lost while the rest still decide."""
    return max(0, voters - majority(voters))


class BadVoters(Invalid):
    """The configured voters cannot be a group that decides."""


class QuorumUnavailable(Unavailable):
    """Fewer than a majority of the configured voters answer. Nothing was done; it can be asked again."""

    def __init__(self, *, answering: Sequence[str], voters: Sequence[str]) -> None:
        present = [voter for voter in sorted(voters) if voter in answering]
        missing = [voter for voter in sorted(voters) if voter not in answering]
        super().__init__(
            f"{len(present)} of {_voters(len(voters))} answer{_names(present)}, {_needed(voters)}: "
            f"start or reconnect {', '.join(missing)}"
        )
        self.answering, self.missing = tuple(present), tuple(missing)
        self.needed = majority(len(voters))


class QuorumTimeout(Unavailable):
    """No majority answered in time. Whether it was done is not known; asking again with the same key is safe."""

    def __init__(self, *, answered: Sequence[str], voters: Sequence[str], waited_ns: int) -> None:
        present = [voter for voter in sorted(voters) if voter in answered]
        super().__init__(
            f"{len(present)} of {_voters(len(voters))} answered within {_seconds(waited_ns)}{_names(present)}, "
            f"{_needed(voters)}: whether it was done is not known; ask again with the same key"
        )
        self.answered, self.voters, self.waited_ns = tuple(present), tuple(sorted(voters)), waited_ns
        self.needed = majority(len(voters))


class QuorumBreakerOpen(Unavailable):
    """Too many failures in a short time: the voters are left alone for a while. Nothing was done."""

    def __init__(self, *, failures: int, window_ns: int, retry_in_ns: int) -> None:
        super().__init__(
            f"the voters failed {failures} times within {_seconds(window_ns)} and are left alone for a while: "
            f"the next try is in {_seconds(retry_in_ns)}"
        )
        self.failures, self.window_ns, self.retry_in_ns = failures, window_ns, retry_in_ns


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
    return f"{size} voters tolerate the loss of {tolerates(size)}, no more than {fewer}"


def _voters(count: int) -> str:
    return f"{count} voter" if count == 1 else f"{count} voters"


def _needed(voters: Sequence[str]) -> str:
    needed = majority(len(voters))
    return "1 is needed" if needed == 1 else f"{needed} are needed"


def _names(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _seconds(span_ns: int) -> str:
    """To a tenth of a second and never 0 for a wait that is left."""
    tenths = -(-span_ns * 10 // SECOND)
    whole, tenth = divmod(tenths, 10)
    return f"{whole}.{tenth} s" if tenth else f"{whole} s"
