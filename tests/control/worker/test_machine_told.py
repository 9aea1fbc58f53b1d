"""A worker tells of its machine until the leader has it, and whenever somebody may lack it: no leader stays without."""

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.worker.machine_told import MachineTold
from talka.wire.machines import WorkerMachine

MACHINE = WorkerMachine("host1", disk_bytes=1_000, disk_free_bytes=500)
A, B = (0, 1, 1), (0, 2, 1)


def told_of(machine: WorkerMachine | None = MACHINE) -> MachineTold:
    told = MachineTold()
    if machine is not None:
        told.set(machine)
    return told


def test_it_is_told_until_a_leader_has_answered_a_beat_that_it_was_in() -> None:
    told = told_of()

    assert [told.in_beat(1), told.in_beat(2)] == [MACHINE, MACHINE]
    told.renewed(A, 1)
    assert [told.in_beat(3), told.in_beat(4)] == [None, None]
    told.renewed(A, 3)
    assert told.in_beat(5) is None


def test_another_leader_is_told_anew() -> None:
    told = told_of()
    told.in_beat(1)
    told.renewed(A, 1)
    assert told.in_beat(2) is None

    told.renewed(B, 2)

    assert told.in_beat(3) == MACHINE
    told.renewed(B, 3)
    assert told.in_beat(4) is None


def test_another_leader_that_answers_a_beat_with_it_has_it() -> None:
    told = told_of()
    told.in_beat(1)
    told.renewed(A, 1)

    told.renewed(B, 1)

    assert told.in_beat(2) is None


def test_a_late_answer_to_a_beat_without_it_does_not_count() -> None:
    told = told_of(None)
    assert told.in_beat(1) is None
    told.set(MACHINE)
    told.in_beat(2)

    told.renewed(A, 1)
    assert told.in_beat(3) == MACHINE

    told.renewed(A, 2)
    assert told.in_beat(4) is None


def test_whoever_may_have_forgotten_it_is_told_anew() -> None:
    told = told_of()
    told.in_beat(1)
    told.renewed(A, 1)

    told.tell_anew()

    assert told.in_beat(2) == MACHINE


def test_a_disk_is_told_anew_once_a_twentieth_of_it_has_changed() -> None:
    told = told_of()
    told.in_beat(1)
    told.renewed(A, 1)

    for free in (451, 549, 500):
        told.look_at_disk(free)
    assert told.in_beat(2) is None

    told.look_at_disk(450)

    machine = told.in_beat(3)
    assert machine is not None and machine.disk_free_bytes == 450


def test_a_disk_that_was_not_found_and_the_same_machine_once_more_are_nothing_new() -> None:
    told = told_of(None)
    told.look_at_disk(7)
    assert told.in_beat(1) is None

    told.set(WorkerMachine("host1"))
    told.in_beat(2)
    told.renewed(A, 2)
    told.look_at_disk(0)
    told.set(WorkerMachine("host1"))

    assert told.in_beat(3) is None


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from("beat lose renew other change lapse".split()), st.integers(0, 5)), max_size=60)
)
def test_whoever_leads_has_it_or_will_be_told(moves: list[tuple[str, int]]) -> None:
    """Beats and answers are lost and overtake each other, leaders change, and each knows what it heard in its term."""
    told, number, leader, machine = MachineTold(), 0, A, MACHINE
    told.set(machine)
    beats: list[tuple[int, WorkerMachine | None]] = []
    renewals: list[tuple[tuple[int, int, int], int]] = []
    known: WorkerMachine | None = None
    for move, choice in [*moves, *[("beat", 0), ("renew", 0), ("deliver", 0)] * 70]:
        if move == "beat":
            number += 1
            beats.append((number, told.in_beat(number)))
        elif move == "lose" and beats:
            beats.pop(choice % len(beats))
        elif move == "renew" and beats:
            said, carried = beats.pop(choice % len(beats))
            known = carried or known
            renewals.append((leader, said))
            if choice % 2 == 0:
                told.renewed(*renewals.pop(choice % len(renewals)))
        elif move == "deliver" and renewals:
            token, said = renewals.pop(0)
            if token == leader:  # the fence refuses those of earlier ones
                told.renewed(token, said)
        elif move == "other":
            leader, known = (0, leader[1] + 1, 1), None
            renewals = []
        elif move == "change":
            machine = WorkerMachine("host1", pid=choice)
            told.set(machine)
        elif move == "lapse":
            known = None
            beats, renewals = [], []
            told.tell_anew()

    assert known == machine
    assert told.in_beat(number + 1) is None, "and then it is told no more"
