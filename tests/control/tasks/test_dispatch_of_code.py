"""Tasks whose handlers travel with their job: how they share workers with others."""

from talka.control.tasks.task import Needs
from talka.control.tasks.worker_room import DispatchWorker
from talka.units import MILLISECOND, SECOND
from tests.control.tasks.test_dispatch import ids, new_job, tasks_of, with_workers

ONE, TWO = "1" * 64, "2" * 64
TAKES = DispatchWorker(name="w", cores=1, handlers=("resize",), plain=("resize",), accepts_code=True)


def brought(digest: str, *, is_plain: bool = True) -> Needs:
    return Needs("resize", bundle=digest, is_plain=is_plain)


def test_what_one_bundle_calls_by_a_name_says_nothing_of_how_long_others_take() -> None:
    dispatcher = with_workers(TAKES)
    (slow,) = tasks_of(new_job(1), 1, needs=brought(ONE))
    dispatcher.put(0, [slow])
    dispatcher.assign(0)
    dispatcher.ended(0, slow, 60 * SECOND)
    dispatcher.put(0, tasks_of(new_job(2), 99, needs=brought(ONE)))
    assert len(dispatcher.assign(0)) == 2, "long ones are handed in pairs"

    other = with_workers(TAKES)
    (slow,) = tasks_of(new_job(1), 1, needs=brought(ONE))
    other.put(0, [slow])
    other.assign(0)
    other.ended(0, slow, 60 * SECOND)
    other.put(0, tasks_of(new_job(2), 99, needs=brought(TWO)))
    assert len(other.assign(0)) == 8, "as many as where nothing is known"


def test_handlers_of_a_bundle_that_wait_run_side_by_side() -> None:
    dispatcher = with_workers(TAKES)
    (first,) = tasks_of(new_job(1), 1, needs=brought(ONE, is_plain=False))
    dispatcher.put(0, [first])
    dispatcher.assign(0)
    dispatcher.ended(0, first, 60 * SECOND)
    dispatcher.put(0, tasks_of(new_job(2), 99, needs=brought(ONE, is_plain=False)))
    assert len(dispatcher.assign(0)) == 32


def test_bundles_take_room_of_one_worker_once() -> None:
    dispatcher = with_workers(TAKES, length_ns=5 * MILLISECOND)
    dispatcher.put(0, [*tasks_of(new_job(1), 4, needs=brought(ONE)), *tasks_of(new_job(2), 8)])
    assert len(dispatcher.assign(0)) == 6, "four that fill half the core, and two of the four that fill it alone"


def test_queues_name_a_handler_once_whoever_brings_it() -> None:
    dispatcher = with_workers(TAKES)
    dispatcher.put(0, [*tasks_of(new_job(1), 1, needs=brought(ONE)), *tasks_of(new_job(2), 1)])
    assert len(dispatcher.assign(0)) == 2
    (queue,) = dispatcher.queues(0).queues
    assert (queue.handler, queue.active, queue.workers) == ("resize", 2, 1)


def test_a_worker_that_takes_no_code_is_given_none() -> None:
    plain = DispatchWorker(name="v", cores=1, handlers=("resize",), plain=("resize",))
    dispatcher = with_workers(plain)
    dispatcher.put(0, tasks_of(new_job(1), 1, needs=brought(ONE)))
    dispatcher.put(0, tasks_of(new_job(2), 1))
    assert ids(dispatcher.assign(0)) == ["2.0"]
    (reason,) = dispatcher.reasons(brought(ONE), 0)
    assert reason.constraint == "code"
