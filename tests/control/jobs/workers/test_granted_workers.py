"""The workers a job was granted, as grants change."""

from talka.control.jobs.workers.granted_workers import GrantedWorkers
from talka.wire.entries import Grant
from talka.wire.jobs import SpareCores

W1, W2 = Grant("w1", 7, 2), Grant("w2", 8, 4)
W2_LOST = Grant("w2", 8, 4, lost="was lost")


def test_cores_of_all_grants_of_a_worker_add_up() -> None:
    workers = GrantedWorkers((W1, W2, Grant("w1", 7, 3)))

    assert workers.cores() == {"w1": 5, "w2": 4}
    assert workers.granted() == ["w1", "w2"]
    assert (workers.boot_of("w2"), workers.boot_of("w9")) == (8, 0)


def test_a_lost_worker_is_gone_unless_it_was_granted_anew() -> None:
    workers = GrantedWorkers((W1, W2_LOST))
    assert (workers.cores(), workers.gone()) == ({"w1": 2}, {"w2": "was lost"})

    workers.update((W1, W2_LOST, Grant("w2", 9, 1)))

    assert (workers.cores(), workers.gone(), workers.boot_of("w2")) == ({"w1": 2, "w2": 1}, {}, 9)


def test_a_worker_that_is_lost_was_granted_all_the_same() -> None:
    workers = GrantedWorkers((W1,))
    assert not workers.was_granted("w2")

    workers.update((W1, W2_LOST))

    assert workers.was_granted("w1") and workers.was_granted("w2")


def test_a_worker_that_was_turned_away_is_not_used_until_its_grants_change() -> None:
    workers = GrantedWorkers((W1, W2))

    workers.turn_away("w2")

    assert (workers.cores(), workers.granted(), workers.unfit()) == ({"w1": 2}, ["w1", "w2"], ["w2"])
    workers.update((W2, Grant("w3", 1, 1)))
    assert workers.unfit() == ["w2"], "the leader has not heard of it"
    workers.update((W2_LOST, Grant("w2", 8, 1)))
    assert (workers.cores(), workers.unfit()) == ({"w2": 1}, [])


def test_cores_that_were_given_back_are_not_used_until_the_leader_has_changed_the_grants() -> None:
    workers = GrantedWorkers((W1, W2))

    assert workers.give_back({"w2": 1}) and workers.give_back({"w2": 2})
    assert not workers.give_back({})

    assert workers.cores() == {"w1": 2, "w2": 1}
    assert workers.spare() == (SpareCores("w2", 8, 4, 1),)
    workers.update((W1, W2, Grant("w3", 1, 1)))
    assert workers.cores() == {"w1": 2, "w2": 1, "w3": 1}, "the leader has not heard of it"
    workers.update((W1, Grant("w2", 8, 1)))
    assert (workers.cores(), workers.spare()) == ({"w1": 2, "w2": 1}, ())


def test_a_worker_of_which_all_cores_were_given_back_may_still_tell_what_it_has() -> None:
    workers = GrantedWorkers((W1, Grant("w2", 8, 0)))

    assert workers.was_granted("w2") and workers.granted() == ["w1", "w2"]
    assert workers.cores() == {"w1": 2, "w2": 0}
