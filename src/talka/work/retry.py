"""How long to wait before trying again. Pure policy: the caller waits, and the randomness is passed in.

The kinds of jitter: "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
"""

from math import log
from random import Random
from typing import Final, Literal, get_args

import msgspec

from talka.errors import Invalid
from talka.units import MILLISECOND

LONGEST_DELAY_NS: Final = 86_400_000 * MILLISECOND
"""One day: whoever waits longer has given up and should say so."""
FACTOR_LIMIT: Final = 100.0

Jitter = Literal["none", "full", "quarter", "decorrelated"]
_JITTERS: Final = get_args(Jitter)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is tried, and how the delays between two tries grow.

    The delay d after the n-th failed attempt is `base_ns · factor^(n − 1)`, at most `cap_ns`. What is waited is
    d (`none`), from 0 to d (`full`), from d to 5/4 d (`quarter`, so up to a quarter above the
    cap), or from the base to three times the previous wait, at most the cap (`decorrelated`, where factor has no say).
    """

    attempts: int | None
    """All tries, the first included; None means without end."""
    base_ns: int
    factor: float = 2.0
    cap_ns: int
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise Invalid(f"attempts must be at least 1, not {self.attempts}; None means without end")
        if not 1 <= self.base_ns <= self.cap_ns <= LONGEST_DELAY_NS:
            raise Invalid(
                f"base_ns must be at least 1, cap_ns at least base_ns and at most {LONGEST_DELAY_NS} (one day), "
                f"not {self.base_ns} and {self.cap_ns}"
            )
        if not 1.0 <= self.factor <= FACTOR_LIMIT:
            raise Invalid(f"factor must be from 1 to {FACTOR_LIMIT:.0f}, not {self.factor}: delays never shrink")
        if self.jitter not in _JITTERS:
            raise Invalid(f"jitter must be one of {', '.join(_JITTERS)}, not {self.jitter!r}")


DISCOVERY: Final = RetryPolicy(
    attempts=None, base_ns=500 * MILLISECOND, factor=2.0, cap_ns=15_000 * MILLISECOND, jitter="quarter"
)
"""For a member that looks for its first peer: it never gives up, and many started at once spread out."""


def delay(policy: RetryPolicy, attempt: int, previous_ns: int, rng: Random) -> int:
    """Nanoseconds to wait after failed attempt number `attempt` (from 1). `previous_ns`: the wait before, at first
    0."""
    if attempt < 1:
        raise Invalid(f"attempts are counted from 1, not {attempt}")
    if policy.jitter == "decorrelated":
        highest_ns = 3 * max(policy.base_ns, previous_ns)
        return min(policy.cap_ns, rng.randint(policy.base_ns, highest_ns))
    grown_ns = _grown(policy, attempt - 1)
    if policy.jitter == "none":
        return grown_ns
    if policy.jitter == "full":
        return rng.randint(0, grown_ns)
    return grown_ns + rng.randint(0, grown_ns // 4)


def _grown(policy: RetryPolicy, steps: int) -> int:
    # Compared by logarithms: the power itself overflows after enough attempts.
    if steps * log(policy.factor) >= log(policy.cap_ns / policy.base_ns):
        return policy.cap_ns
    return min(policy.cap_ns, round(policy.base_ns * policy.factor**steps))
