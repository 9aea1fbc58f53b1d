from talka.cluster.effects import HANDLE
from talka.control.jobs.workers.fleet import REAP_NS, Fleet
from talka.control.jobs.workers.heard_workers import HeardWorkers
from talka.control.member.admin_queries import MemberFacts
from talka.units import SECOND
from talka.wire.condition import NodeCondition
from talka.wire.jobs import Beat, WorkerFacts

FACTS = WorkerFacts(8, version="0.2", datacenter="east", folder=5)
WELL = NodeCondition(8, 6, 2, 40, 30, 1, 1)


def beat(number: int = 0, facts: WorkerFacts = FACTS, condition: NodeCondition = WELL) -> Beat:
    return Beat(number, facts, condition=condition)


def only(heard: HeardWorkers, now: int, fleet: Fleet | None = None) -> MemberFacts:
    (found,) = heard.all(now, fleet)
    return found


def test_a_worker_is_in_the_view_with_all_it_says_of_itself() -> None:
    heard = HeardWorkers()
    heard.beat(0, "w1", 7, "10.0.0.9:1", beat())

    assert only(heard, SECOND) == MemberFacts(
        "w1",
        "healthy",
        "10.0.0.9:1",
        "7",
        0,
        role="worker",
        datacenter="east",
        software="0.2",
        cores=8,
        free=6,
        queue=2,
        cpu_percent=40,
        memory_percent=30,
        overload="busy",
        health="elevated",
        decision="route",
    )


def test_a_worker_that_is_not_heard_is_silent_and_given_nothing() -> None:
    heard = HeardWorkers()
    heard.beat(0, "w1", 7, HANDLE + "3", beat())

    found = only(heard, 4 * SECOND)

    assert (found.state, found.decision, found.address) == ("silent", "hold", "")
    assert found.why == "nothing is heard of it for 4.0 s"


def test_what_a_worker_says_of_its_readiness_is_believed() -> None:
    heard = HeardWorkers()
    for name, state, reason, health in (
        ("w1", "draining", "it was told to drain", 0),
        ("w2", "degraded", "its disk is full", 0),
        ("w3", "healthy", "", 4),
        ("w4", "draining", "", 0),
    ):
        facts = WorkerFacts(2, state=state, reason=reason)  # type: ignore[arg-type]
        heard.beat(0, name, 1, "", beat(facts=facts, condition=NodeCondition(2, health=health)))

    assert [(one.decision, one.why) for one in heard.all(0, None)] == [
        ("drain", "it was told to drain"),
        ("hold", "its disk is full"),
        ("hold", "its health is critical: it handles everything late, and is given nothing new"),
        ("drain", "it takes nothing new"),
    ]


def test_where_the_leader_is_asked_its_judgement_is_what_is_told() -> None:
    heard, fleet = HeardWorkers(), Fleet()
    for at in (heard.beat, fleet.beat):
        at(0, "w1", 7, "10.0.0.9:1", beat())
    fleet.drain("w1", "ann")
    fleet.review(0)

    found = only(heard, SECOND, fleet)

    assert (found.state, found.decision, found.free) == ("draining", "drain", 0)
    assert found.why == "it was told to drain by ann, and takes nothing new"


def test_to_the_leader_a_worker_is_silent_before_it_is_offline() -> None:
    heard, fleet = HeardWorkers(), Fleet()
    for at in (heard.beat, fleet.beat):
        at(0, "w1", 7, "10.0.0.9:1", beat())

    fleet.tick(4 * SECOND)
    assert only(heard, 4 * SECOND, fleet).state == "silent"
    fleet.tick(6 * SECOND)
    found = only(heard, 6 * SECOND, fleet)

    assert (found.state, found.decision) == ("offline", "evict")


def test_a_worker_of_an_earlier_version_tells_no_levels() -> None:
    heard = HeardWorkers()
    heard.beat(0, "w1", 7, "", beat(condition=NodeCondition()))

    found = only(heard, 0)

    assert (found.overload, found.health, found.cpu_percent, found.memory_percent) == ("", "", None, None)


def test_one_that_says_goodbye_is_no_longer_in_view_and_one_of_an_earlier_life_does_not_take_it_out() -> None:
    heard = HeardWorkers()
    heard.beat(0, "w1", 7, "", beat())

    heard.left("w1", 6)
    heard.left("w2", 7)
    assert len(heard.all(0, None)) == 1
    heard.left("w1", 7)
    assert heard.all(0, None) == []


def test_those_that_were_not_heard_for_long_make_room_and_so_do_those_above_the_limit() -> None:
    heard = HeardWorkers(limit=2)
    for number in range(3):
        heard.beat(0, f"w{number}", 1, "", beat())
    assert [one.name for one in heard.all(0, None)] == ["w1", "w2"]

    heard.beat(REAP_NS, "w2", 1, "", beat())

    assert [one.name for one in heard.all(REAP_NS, None)] == ["w2"]
