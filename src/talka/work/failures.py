"""What *failed* means, in one place for rules, reports and views: the worse of two shares.

Steps fail when they raise or when a call in them fails. Requests fail by their answer, by having none, or by not being
sent at all; also those that no step knows of, because an action or a check made them. What was skipped or interrupted
is no part of either.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from talka.stats.tally import Exchanges, StepTally, Tally


class Failures(msgspec.Struct, frozen=True):
    """How many of those that came to an end failed."""

    of: Literal["step", "request"]
    failed: int
    ended: int

    @property
    def share(self) -> float | None:
        """None where nothing came to an end."""
        return self.failed / self.ended if self.ended else None


def of_steps(parts: Iterable[StepTally]) -> Failures:
    parts = list(parts)
    failed = sum(part.failed for part in parts)
    return Failures("step", failed, failed + sum(part.ok for part in parts))


def of_requests(exchanges: Exchanges) -> Failures:
    failed = exchanges.failed + exchanges.not_sent
    return Failures("request", failed, failed + exchanges.ok)


def worse(one: Failures, other: Failures) -> Failures:
    """The first, if they are alike."""
    return other if (other.share or 0.0) > (one.share or 0.0) or not one.ended else one


def of_all(tally: Tally) -> Failures:
    return worse(of_requests(tally.exchanges), of_steps(tally.steps.values()))
