"""The lease of workers as the leader goes by it, and how it is changed."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from talka.cluster.effects import Send
from talka.cluster.leadership.lease_terms import (
    LONGEST_NS,
    WORKER_LEASE_KEY,
    LeaseDiffers,
    LeaseTerms,
    OwnLease,
    encode_terms,
)
from talka.cluster.leadership.news import WriteEnded
from talka.control.jobs.effects import Alarmed, LeaseChanged, WorkerLost
from talka.control.jobs.workers import lease_rule
from talka.control.manager import Manager
from talka.control.member.leader_calls import CallEnded
from talka.testing.trust import keys_of_workers
from talka.units import SECOND
from talka.wire.jobs import Beat, Renew, WorkerFacts
from talka.wire.leadership import Propose
from talka.wire.manager_calls import GetLease, LeaseTold, SetLease
from talka.wire.views import LeaseView
from tests.sim.variants import without

CabinetOf = Callable[..., Any]


class Play:
    """Managers that hear each other; the test is their workers and whoever changes the lease."""

    def __init__(self, cabinet_of: CabinetOf, *names: str, **leases: int) -> None:
        told = {name: OwnLease(ns, "--lease") for name, ns in leases.items()}
        self.group = cabinet_of(*names, part_of=self._manager_of, leases=told)
        self.numbers = 0
        self.group.leader()

    def _manager_of(self, group: Any, name: str) -> Manager:
        return Manager(
            name=name,
            boot=group.boot,
            voter=group.voters[name],
            rng=Random(f"manager:{group.boot}"),
            wall_offset_ns=SECOND,
            keys=keys_of_workers(group.boot),
        )

    @property
    def leader(self) -> str:
        return str(self.group.leader())

    @property
    def registry(self) -> Any:
        return self.group.parts[self.leader].registry

    def beat(self, worker: str = "w1") -> int:
        """It beats; the lease it gets."""
        self.numbers += 1
        message = Beat(self.numbers, WorkerFacts(1, folder=len(worker)))
        manager = self.group.parts[self.leader]
        effects = self.group.act(self.leader, manager.on_message(self.group.now, worker, message, 1, "#1"))
        (renew,) = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Renew)]
        return int(renew.lease_ns)

    def ask(self, lease_s: float = 0, by: str = "") -> list[Any]:
        name = by or self.leader
        call = SetLease(round(lease_s * SECOND), "talka cluster lease") if lease_s else GetLease()
        _, effects = self.group.parts[name].call(self.group.now, call)
        return list(self.group.act(name, effects))

    def run(self, seconds: float) -> list[Any]:
        return list(self.group.run(seconds))

    def fall(self) -> None:
        """Who leads is gone for good."""
        self.group.stop(self.leader)


def view(effects: list[Any]) -> LeaseView:
    (ended,) = [one for one in effects if isinstance(one, CallEnded)]
    assert isinstance(ended.answer, LeaseTold), ended
    return ended.answer.lease


def problem(effects: list[Any]) -> tuple[str, str]:
    (ended,) = [one for one in effects if isinstance(one, CallEnded)]
    return ended.problem, ended.text


def of(effects: list[Any], kind: type) -> list[Any]:
    return [one for one in effects if isinstance(one, kind)]


@pytest.fixture
def trio(cabinet_of: CabinetOf) -> Play:
    return Play(cabinet_of, "a", "b", "c")


def test_any_manager_says_how_long_it_is_and_where_it_comes_from(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "a", "b", "c", a=2 * SECOND, b=2 * SECOND, c=2 * SECOND)

    for name in ("a", "b", "c"):
        assert view(play.ask(by=name)) == LeaseView(2000, 0, 0, f"--lease of {play.leader}")


def test_whoever_leads_goes_by_the_register_and_not_by_what_it_was_told(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "a", "b", "c", a=2 * SECOND, b=2 * SECOND, c=2 * SECOND)
    for name in list(play.group.voters):
        play.group.stop(name)
    play.group.leases = {"a": OwnLease(9 * SECOND, "--lease"), "b": OwnLease(), "c": OwnLease()}
    for name in ("a", "b", "c"):
        play.group.start(name)
    play.run(10)

    assert play.leader in ("b", "c") and play.beat() == 2 * SECOND
    assert [name for name, one in play.group.out if isinstance(one, LeaseDiffers)] == ["a"]


@pytest.mark.parametrize(("before", "after"), [(5.0, 2.0), (2.0, 5.0)])
def test_a_change_gives_the_shorter_and_waits_for_the_longer(
    cabinet_of: CabinetOf, before: float, after: float
) -> None:
    play = Play(cabinet_of, "a", "b", "c", **dict.fromkeys("abc", round(before * SECOND)))
    play.run(10)
    assert play.beat() == before * SECOND
    changing = view(play.ask(after))
    assert (changing.lease_ms, changing.next_ms, changing.wait_ms) == (before * 1000, after * 1000, 5100)
    assert changing.by == "talka cluster lease"
    assert play.beat() == 2 * SECOND

    said = play.run(5.0)

    assert play.beat() == 2 * SECOND and of(said, LeaseChanged) == [], "the longer one is not over"
    said = play.run(0.6)
    assert play.beat() == after * SECOND
    assert of(said, LeaseChanged) == [LeaseChanged(round(after * SECOND), 0, "talka cluster lease")]
    assert view(play.ask()) == LeaseView(round(after * 1000), 0, 0, "talka cluster lease")


def test_a_worker_that_falls_silent_during_a_change_is_given_up_after_the_longer_one(trio: Play) -> None:
    trio.run(10)
    view(trio.ask(2))
    trio.beat("w1")

    assert of(trio.run(5.0), WorkerLost) == []
    assert [one.name for one in of(trio.run(0.5), WorkerLost)] == ["w1"]


def test_after_a_change_a_silent_worker_is_given_up_after_the_new_one(trio: Play) -> None:
    trio.run(10)
    trio.ask(2)
    trio.run(6)
    trio.beat("w1")

    assert [one.name for one in of(trio.run(2.5), WorkerLost)] == ["w1"]


@without("longer_lease")
def test_without_its_safeguard_a_change_counts_at_once(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "a")
    assert view(play.ask(2)).wait_ms == 0
    play.run(1)

    assert play.beat() == 2 * SECOND and view(play.ask()).next_ms == 0


@without("one_worker_lease")
def test_without_its_safeguard_a_manager_goes_by_what_it_was_told(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "a", a=SECOND)

    assert play.beat() == SECOND and play.registry.lease.terms.by == "this manager alone"


def test_a_new_leader_waits_again_from_its_start(trio: Play) -> None:
    trio.ask(2)
    trio.run(4)
    trio.fall()
    found = view(trio.ask())
    assert (found.lease_ms, found.next_ms) == (5000, 2000) and found.wait_ms > 4000
    assert trio.beat() == 2 * SECOND
    assert trio.registry.lease.count_ns == 5 * SECOND

    trio.run(6)

    assert view(trio.ask()) == LeaseView(2000, 0, 0, "talka cluster lease")


def test_who_asks_for_what_holds_or_is_on_its_way_is_answered(trio: Play) -> None:
    assert view(trio.ask(5)).next_ms == 0
    view(trio.ask(2))
    assert view(trio.ask(2)).next_ms == 2000
    kind, text = problem(trio.ask(3))
    assert kind == "unavailable"
    assert text == "the lease is being changed from 5s to 2s already: ask again in 5 s"


@pytest.mark.parametrize("lease_s", [0.1, 61])
def test_what_is_too_short_or_too_long_is_refused(trio: Play, lease_s: float) -> None:
    kind, text = problem(trio.ask(lease_s))

    assert kind == "invalid"
    assert text.endswith("s is not possible: write 500ms to 1m")


def test_who_asks_while_it_is_written_is_answered_once_it_is(trio: Play) -> None:
    trio.group.hold()
    first = trio.ask(2)
    again = [effect for _ in range(lease_rule.WAITING_LIMIT) for effect in trio.ask(2)]
    kind, text = problem(trio.ask(3))
    assert of(first + again, CallEnded) == []
    assert (kind, text) == (
        "unavailable",
        "the lease is being changed from 5s to 2s already: ask again in a moment",
    )

    answers = of(trio.group.write(), CallEnded)

    assert len(answers) == lease_rule.WAITING_LIMIT, "the last asks again by itself"
    assert len(of(trio.run(2), CallEnded)) == 1


def test_a_write_that_no_majority_took_is_told_as_not_known(trio: Play) -> None:
    trio.group.lost.append(Propose)
    trio.ask(2)

    ended = of(trio.run(3), CallEnded)

    assert [one.problem for one in ended] == ["unavailable"]
    assert ended[0].text.startswith("the lease may have been changed or not (")
    assert trio.beat() == 5 * SECOND, "it goes on as before"


def test_the_end_of_a_change_is_written_again_until_a_majority_has_it(trio: Play) -> None:
    trio.ask(2)
    trio.run(4.5)
    trio.group.lost.append(Propose)
    trio.run(4)
    assert view(trio.ask()).next_ms == 2000
    trio.group.lost.clear()
    trio.run(4)

    assert view(trio.ask()) == LeaseView(2000, 0, 0, "talka cluster lease")


def test_other_writes_are_not_the_leases(trio: Play) -> None:
    rule = trio.registry.lease

    assert rule.on_write_ended(trio.group.now, WriteEnded(1, "accepted")) == []
    trio.group.hold()
    trio.ask(2)
    assert rule.on_write_ended(trio.group.now, WriteEnded(1, "accepted")) == []


def test_a_value_that_this_version_cannot_read_is_told_and_waited_for_at_most(trio: Play) -> None:
    leader = trio.leader
    write = trio.group.voters[leader].write(trio.group.now, 7, WORKER_LEASE_KEY, b"\xc1")
    trio.group.act(leader, write)
    trio.fall()
    assert trio.leader != leader

    alarms = [one.text for _, one in trio.group.out if isinstance(one, Alarmed)]

    assert alarms == [
        "the register's lease of workers cannot be read by this version: 1m are waited for; update this manager, or "
        "set "
        "it again: talka cluster lease D --to HOST:PORT"
    ]
    assert trio.beat() == SECOND // 2 and trio.registry.lease.count_ns == LONGEST_NS
    trio.ask(2)
    trio.run(62)
    assert trio.beat() == 2 * SECOND == trio.registry.lease.count_ns


def test_where_the_register_has_none_the_usual_one_holds(cabinet_of: CabinetOf) -> None:
    play = Play(cabinet_of, "a")
    voter = play.group.voters[play.leader]
    voter.election.fit.own = None
    leader_term = voter.election.leader_term
    del leader_term._committed[WORKER_LEASE_KEY]

    rule = lease_rule.LeaseRule(play.group.now, voter)

    assert (rule.renew_ns, rule.count_ns, rule.earlier_ns) == (5 * SECOND, 5 * SECOND, 5 * SECOND)
    assert rule.terms == LeaseTerms(5 * SECOND, 0, "nobody", voter.token)
    assert encode_terms(rule.terms)
