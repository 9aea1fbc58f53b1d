"""What was decided about a worker, why and since when: what people are told of it, and told once when it changes, also
when only the reason does.

Decision: docs/decisions/0045-a-core-works-while-its-loop-turns.md.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from talka.control.jobs.effects import WorkerJudged
from talka.wire.views import DecisionName

UNTOLD: Final = ("registering", "lost")
"""News of their own tell of them."""


class WorkerFinding(msgspec.Struct, frozen=True):
    """One thing that is so with a worker."""

    reason: str
    since: int | None = None
    """None: since it was found first."""
    key: str | None = None
    """What makes the reason another one: nothing that is measured. None: all of its text."""


class Decision(msgspec.Struct, frozen=True):
    what: DecisionName
    reason: str
    since: int
    key: str = ""
    """Of its reason."""


class Standing:
    """Call `review` with all that is found, whenever something may have changed. A worker of which nothing is found is
    healthy."""

    def __init__(self) -> None:
        self._decisions: dict[DecisionName, Decision] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions.values())

    def review(self, now: int, name: str, found: Mapping[DecisionName, WorkerFinding]) -> list[WorkerJudged]:
        """What is told of it: what is new or has another reason, and what is so no more."""
        before = self._decisions
        found = found or {"healthy": WorkerFinding("")}
        self._decisions = {}
        news: list[WorkerJudged] = []
        for what, finding in found.items():
            known = before.get(what)
            since = now if finding.since is None else finding.since
            if known is not None and finding.since is None:
                since = known.since
            key = finding.reason if finding.key is None else finding.key
            self._decisions[what] = Decision(what, finding.reason, since, key)
            is_told = known is not None and known.key == key
            # Of a worker that is new its registration tells.
            if not is_told and what not in UNTOLD and (before or what != "healthy"):
                news.append(WorkerJudged(name, what, finding.reason, since))
        # One that is lost is as silent as before.
        untold = ("healthy", "silent" if "lost" in found else "", *UNTOLD)
        over = [what for what in before if what not in found and what not in untold]
        ended = [WorkerJudged(name, what, before[what].reason, before[what].since, is_over=True) for what in over]
        return [*ended, *news]
