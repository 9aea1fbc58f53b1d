"""What holds for a group of shards whoever owns it: a load job, or a task on a worker (decision 17).

Their own tests have the rest. Here is what the two once did differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from talka.control.load.core_effects import KillCore, StartCore
from talka.control.load.shard_group import NOTES_LIMIT, STOP_SLACK_NS
from talka.control.worker.core_pool import CorePool
from talka.control.worker.shards import ORDERED_SLACK_NS, WorkerShards
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.jobs import Assign, Start
from talka.wire.orders import BundleFacts
from talka.wire.shards import Armed, FileSource, Settings, Totals
from talka.work.shapes import ConstantRate

if TYPE_CHECKING:
    from tests.control.conftest import Driven

PLAN = ConstantRate("20/s", "4s")
GRACE_NS = 2 * SECOND
FENCE = (0, 1, 1)
JobOf = Callable[..., "Driven"]


class Owned:
    """One shard that runs since one second, in either of the two."""

    def __init__(self, driven: Driven | None) -> None:
        self.driven = driven
        self.now = 1_000 * SECOND
        self.sequence = 0
        if driven is not None:
            driven.run()
            self.now = driven.now
        else:
            fields = {"job": "job", "fence": FENCE, "attempt": 7, "workflow": "Shop", "plan": PLAN.plan(), "first": 0}
            bundle = BundleFacts("0" * 64, 1, b"", "shop.py")
            settings = Settings(grace_ns=GRACE_NS)
            more = {"iterations_done": (0,), "values": {}, "settings": settings, "bundle": bundle}
            self.task = WorkerShards(Assign(count=1, of=1, **fields, **more), FileSource("shop.py"), CorePool(1))  # type: ignore[arg-type]
            self.task.start(self.now)
            self.task.on_message(self.now, 1, Armed())
            self.task.go(self.now, Start("job", FENCE, 7, self.now, self.now, self.now))
        self.origin = self.now
        self.now += SECOND

    @property
    def owner(self) -> object:
        return self.task if self.driven is None else self.driven.job

    def on(self, what: str, *arguments: object) -> list[object]:
        found: list[object] = getattr(self.owner, what)(self.now, *arguments)
        return found

    def report(self, core: int, **more: object) -> list[object]:
        self.sequence += 1
        return self.on("on_message", core, Totals(self.sequence, Tally(), [], 1, self.origin, **more))  # type: ignore[arg-type]

    def stop(self) -> list[object]:
        return self.task.stop(self.now) if self.driven is None else self.driven.job.interrupt(self.now, "SIGINT")  # type: ignore[return-value]

    @property
    def notes(self) -> list[str]:
        if self.driven is None:
            return list(self.task.result().notes)
        return self.driven.job.workflows["Shop"].notes


@pytest.fixture(params=["job", "task"])
def owned(request: pytest.FixtureRequest, job_of: JobOf) -> Owned:
    return Owned(job_of({"Shop": {"shape": PLAN}}, cores=1) if request.param == "job" else None)


def test_a_replacement_that_is_not_ready_when_the_plan_ends_is_given_up_at_once(owned: Owned) -> None:
    (start,) = owned.on("on_exit", 1, "was killed by SIGKILL")
    assert isinstance(start, StartCore)
    owned.now = owned.origin + 4 * SECOND + 1

    effects = owned.on("tick")

    assert effects[0] == KillCore(start.attempt)
    assert [(lost.from_ns, lost.to_ns) for lost in owned.owner.own_lost] == [(0, 4 * SECOND)]  # type: ignore[attr-defined]


def test_a_core_that_says_twice_that_it_is_ready_is_told_to_go_once(owned: Owned) -> None:
    assert owned.on("on_message", 1, Armed()) == []


def test_notes_are_for_people_and_limited(owned: Owned) -> None:
    owned.report(1, final=True, notes=[f"note {number}" for number in range(100)])

    assert owned.notes == [f"note {number}" for number in range(NOTES_LIMIT)]


def test_what_does_not_stop_is_killed_after_its_grace_and_who_ordered_it_is_told_in_time(owned: Owned) -> None:
    owned.stop()
    slack_ns = ORDERED_SLACK_NS if owned.driven is None else STOP_SLACK_NS
    owned.now += GRACE_NS + slack_ns
    assert owned.on("tick") == []

    owned.now += 1

    assert owned.on("tick")[0] == KillCore(1), "a worker says so before its manager gives it up"


def test_an_attempt_that_is_over_has_nothing_to_run(owned: Owned) -> None:
    assert owned.owner.arm_for(1).workflow == "Shop"  # type: ignore[attr-defined]

    owned.report(1, final=True)

    assert owned.owner.arm_for(1) is None  # type: ignore[attr-defined]
