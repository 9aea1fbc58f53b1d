"""How many files and sockets this process may have open, asked before it promises to hold so many connections.

A process that runs out of descriptors fails wherever it opens something next, and says nothing of the cause. So who
needs many says at its start how many, the limit is raised as far as the system grants it, and a limit that is too low
is named.
"""

import resource
from typing import Final, NamedTuple

from talka.errors import Invalid

UNLIMITED: Final = 1 << 20
"""What is taken for no limit: more than anybody here asks for."""
ADVICE: Final = "ulimit -n in a shell, LimitNOFILE= of a service, --ulimit nofile= of a container"


class TooFewDescriptors(Invalid):
    """This process may open fewer files than it needs."""


class DescriptorsGranted(NamedTuple):
    """What the system granted of what was wanted."""

    files: int
    """So many may be open at once."""
    wanted: int

    @property
    def is_short(self) -> bool:
        return self.files < self.wanted


def ask_for(who: str, *, least: int, wanted: int) -> DescriptorsGranted:
    """Raise the soft limit to `wanted` files, or as near to it as the system grants. Below `least` nothing is begun."""
    files = raised_to(wanted)
    if files < least:
        raise TooFewDescriptors(
            f"this process may have {files} files and sockets open at once, and {who} needs at least {least}:"
            f" raise the limit ({ADVICE}); {wanted} is enough"
        )
    return DescriptorsGranted(files, wanted)


def raised_to(wanted: int) -> int:
    """How many files may be open, now that it was tried to make them `wanted`. A limit that is higher stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _number(soft)
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if aim <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
    except (OSError, ValueError):  # some systems name a limit they do not grant
        return soft
    return aim


def _number(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit
