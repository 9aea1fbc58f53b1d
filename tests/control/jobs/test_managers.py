"""The managers of a cluster as its leader judges them."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.cluster.leadership.voters import Electorate, VoterConfig, VoterEntry
from talka.control.jobs.effects import HealthDecided, ManagersHeld
from talka.control.jobs.managers import (
    OWNER_SILENCE_NS,
    SETTLE_NS,
    SILENT_NS,
    STALLED_NS,
    STUCK_NS,
    Managers,
    nothing_announced,
)
from talka.control.member.announcement import Announcement
from talka.control.member.three_signals import MemberDoubted
from talka.units import MILLISECOND, SECOND
from talka.wire.condition import NodeCondition
from talka.wire.entries import JobEntry
from talka.wire.orders import JobOrder
from talka.work.lifecycle import JobState

LEASE = 5 * SECOND
OrderOf = Callable[..., JobOrder]
DISPATCHES_NOT = "it has dispatched nothing of a job since"


class Cluster:
    def __init__(self, order: JobOrder, *others: str) -> None:
        self.order = order
        voters = tuple(VoterEntry(name) for name in ("me", *others))
        self.electorate = Electorate("me", VoterConfig(1, 1, voters), 3 * SECOND)
        self.said: dict[str, Announcement] = {}
        self.managers = Managers("me", self.electorate, self.said.get)
        self.led: list[JobEntry] = []
        self.since: dict[str, int] = {}

    def hear(self, now: int, *names: str) -> None:
        for name in names:
            self.electorate.heard(now, name)

    def say(self, name: str, phase: str = "active", **facts: int) -> None:
        self.said[name] = Announcement("", condition=NodeCondition(**facts), phase=phase)

    def lead(self, job: str, owner: str, since: int, revision: int = 0) -> JobEntry:
        entry = JobEntry(
            job=job,
            key="",
            order=self.order,
            state=JobState.DISPATCHING,
            number=1,
            submitted_ms=0,
            owner=owner,
            revision=revision,
        )
        self.led = [*(one for one in self.led if one.job != job), entry]
        self.since[job] = since
        return entry

    def look(self, now: int, worker_lease_ns: int = LEASE) -> list[Any]:
        return self.managers.look(now, self.led, self.since, worker_lease_ns)

    def word(self, name: str) -> str:
        return self.managers.health_of(name).decision.word


@pytest.fixture
def trio(order_of: OrderOf) -> Cluster:
    trio = Cluster(order_of(), "b", "c")
    trio.hear(0, "b", "c")
    trio.look(0)
    return trio


# -- liveness


def test_one_that_is_silent_for_a_moment_is_held_and_asked_and_after_longer_given_up(trio: Cluster) -> None:
    trio.hear(SILENT_NS, "c")

    assert trio.look(SILENT_NS - 1) == []
    assert trio.look(SILENT_NS) == [HealthDecided("b", "hold", "it does not answer"), MemberDoubted("b")]
    trio.hear(OWNER_SILENCE_NS, "c")
    assert trio.look(OWNER_SILENCE_NS) == [HealthDecided("b", "evict", "it does not answer")]
    assert (trio.managers.is_given_up("b"), trio.managers.is_given_up("c")) == (True, False)

    trio.hear(2 * SECOND, "b", "c")
    assert trio.look(2 * SECOND) == [HealthDecided("b", "route", "")]


def test_most_that_fall_silent_together_are_not_given_up_until_a_while_has_passed(trio: Cluster) -> None:
    effects = trio.look(OWNER_SILENCE_NS)

    spared = "it does not answer; too many managers are silent at once, so none is given up yet"
    assert effects[:2] == [ManagersHeld(("b", "c")), HealthDecided("b", "hold", spared)]
    assert not trio.managers.is_given_up("b") and not trio.managers.is_given_up("c")
    assert trio.look(OWNER_SILENCE_NS + SECOND) == [], "it is told once"

    trio.look(OWNER_SILENCE_NS + 5 * SECOND)
    assert trio.managers.is_given_up("b") and trio.managers.is_given_up("c")


def test_two_that_fall_silent_far_apart_have_nothing_to_do_with_each_other(trio: Cluster) -> None:
    trio.hear(20 * SECOND, "c")
    trio.look(20 * SECOND)

    trio.look(20 * SECOND + OWNER_SILENCE_NS)

    assert trio.managers.is_given_up("b") and trio.managers.is_given_up("c")


def test_a_manager_that_votes_no_more_is_given_up(trio: Cluster) -> None:
    assert trio.managers.is_given_up("d")


# -- readiness


@pytest.mark.parametrize(
    ("phase", "facts", "word"),
    [
        ("draining", {}, "drain"),
        ("syncing", {}, "hold"),
        ("active", {"overload": 2}, "hold"),
        ("active", {"overload": 1}, "route"),
        ("active", {"health": 4}, "hold"),
        ("active", {"health": 3}, "route"),
    ],
)
def test_one_that_says_it_takes_no_work_is_given_no_jobs(
    trio: Cluster, phase: str, facts: dict[str, int], word: str
) -> None:
    trio.say("b", phase, **facts)

    trio.look(1)

    assert trio.word("b") == word
    assert ("b" in trio.managers.for_job(1, "j")) is (word == "route")
    assert not trio.managers.is_given_up("b"), "what it has goes on"


def test_where_none_takes_work_the_mildest_do(trio: Cluster) -> None:
    trio.say("me", overload=3)
    trio.say("b", overload=3)
    trio.say("c", "draining")

    trio.look(1)

    assert trio.managers.for_job(1, "j") == ["me", "b"]
    assert trio.managers.for_job(1, "j", but="me") == ["b"]


def test_the_only_manager_gets_its_own_jobs_whatever_it_says(order_of: OrderOf) -> None:
    alone = Cluster(order_of())
    alone.say("me", health=4)
    alone.look(1)

    assert alone.managers.for_job(1, "j", but="me") == ["me"]


# -- progress


def test_one_that_dispatches_nothing_of_a_job_is_looked_at_and_then_loses_it(trio: Cluster) -> None:
    entry = trio.lead("j1", "b", since=SECOND)
    at = SECOND + STALLED_NS
    trio.hear(at, "b", "c")
    assert trio.look(at - 1) == [] and trio.word("b") == "route"

    assert trio.look(at) == [HealthDecided("b", "investigate", f"{DISPATCHES_NOT} 10.0 s"), MemberDoubted("b")]
    assert trio.managers.is_routed("b"), "it is given work all the same"
    assert trio.managers.why_another(at, entry, SECOND) == ""

    at = SECOND + STUCK_NS
    trio.hear(at, "b", "c")
    assert trio.look(at) == [HealthDecided("b", "drain", f"{DISPATCHES_NOT} 30.0 s")]
    assert trio.managers.why_another(at, entry, SECOND) == "b has dispatched nothing of it for 30 s"
    assert trio.managers.for_job(at, "j") == ["me", "c"]


def test_one_that_writes_what_became_of_its_job_gets_on(trio: Cluster) -> None:
    entry = trio.lead("j1", "b", since=0, revision=1)
    trio.hear(STUCK_NS, "b", "c")

    assert trio.look(STUCK_NS) == [] and trio.word("b") == "route"
    assert trio.managers.why_another(STUCK_NS, entry, 0) == ""


def test_who_takes_a_job_over_may_wait_for_workers_whose_lease_is_long(trio: Cluster) -> None:
    trio.lead("j1", "b", since=0)
    trio.hear(STUCK_NS, "b", "c")

    trio.look(STUCK_NS, 60 * SECOND)

    assert trio.word("b") == "investigate"


def test_a_job_is_passed_on_to_each_other_manager_once(trio: Cluster) -> None:
    owners, reasons, now = ["b", "c", "me"], [], 0
    candidates = []
    for owner in owners:
        entry = trio.lead("j1", owner, since=now)
        now += STUCK_NS
        trio.hear(now, "b", "c")
        trio.look(now)
        reasons.append(trio.managers.why_another(now, entry, now - STUCK_NS))
        candidates.append(trio.managers.for_job(now, "j1", but=owner))

    assert [bool(reason) for reason in reasons] == [True, True, False]
    assert candidates[:2] == [["me", "c"], ["me"]]

    trio.managers.forget("j1")
    assert trio.managers.why_another(now, trio.led[0], now - STUCK_NS)


def test_a_job_stays_where_it_is_if_nobody_else_would_do_better(trio: Cluster) -> None:
    entry = trio.lead("j1", "b", since=0)
    trio.say("c", overload=3)
    trio.say("me", overload=3)
    trio.hear(STUCK_NS, "b", "c")
    trio.look(STUCK_NS)

    assert trio.managers.why_another(STUCK_NS, entry, 0) == ""


def test_the_leader_asks_nobody_about_itself(trio: Cluster) -> None:
    trio.lead("j1", "me", since=0)
    trio.hear(STALLED_NS, "b", "c")

    assert trio.look(STALLED_NS) == [HealthDecided("me", "investigate", f"{DISPATCHES_NOT} 10.0 s")]


# -- what follows, and what is shown


def test_jobs_of_one_that_is_given_up_get_another_owner_once_others_were_heard(trio: Cluster) -> None:
    entry = trio.lead("j1", "b", since=2 * SECOND)
    trio.hear(2 * SECOND, "c")
    trio.look(2 * SECOND)

    assert trio.managers.why_another(2 * SECOND + SETTLE_NS - 1, entry, 2 * SECOND) == ""
    assert trio.managers.why_another(2 * SECOND + SETTLE_NS, entry, 2 * SECOND) == "b does not answer"


def test_decisions_are_counted_and_shown_with_their_reason(trio: Cluster) -> None:
    trio.say("b", overload=3)
    trio.look(1)
    trio.say("b")
    trio.look(2)
    trio.say("c", "draining")
    trio.look(3)

    assert trio.managers.decided == {"hold": 1, "route": 1, "drain": 1}
    for job, owner in (("j1", "b"), ("j2", "b"), ("j3", "gone")):
        trio.lead(job, owner, since=0)
    views = {view.name: view for view in trio.managers.views(trio.led)}
    assert (views["me"].leads, views["me"].decision) == (True, "route")
    assert (views["b"].jobs, views["b"].decision, views["b"].reason) == (2, "route", "")
    assert (views["c"].decision, views["c"].reason) == ("drain", "it leaves, and takes nothing new")
    assert views["gone"].jobs == 1


def test_a_leader_that_sees_no_members_takes_all_for_ready() -> None:
    assert nothing_announced("b") is None


def test_silence_shorter_than_a_heartbeat_or_two_says_nothing(trio: Cluster) -> None:
    trio.hear(SECOND, "b", "c")

    assert trio.look(SECOND + 500 * MILLISECOND) == []
