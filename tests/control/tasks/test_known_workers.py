"""Whether anybody could run a task, by the workers that are here or were lately."""

from random import Random

import msgspec
import pytest

from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.known_workers import KnownLimits, KnownWorkers, Lack, Wants
from talka.control.tasks.worker_room import CoresForTasks, DispatchWorker
from talka.units import SECOND
from talka.wire.jobs import WorkerFacts

GB = 10**9


def worker(name: str, *handlers: str, capabilities: str = "", memory_gb: int = 0) -> DispatchWorker:
    return DispatchWorker(
        name=name, handlers=handlers, capabilities=tuple(capabilities.split()), memory_bytes=memory_gb * GB
    )


def known(*workers: DispatchWorker, limits: KnownLimits = KnownLimits()) -> KnownWorkers:  # noqa: B008 - a value
    made = KnownWorkers(limits)
    for one in workers:
        made.here(0, one)
    return made


FLEET = (
    worker("a", "extract", "clean", capabilities="ssd", memory_gb=4),
    worker("b", "clean", "train", capabilities="gpu", memory_gb=16),
    worker("c", "train", capabilities="tpu big", memory_gb=8),
)


@pytest.mark.parametrize(
    "wants",
    [
        Wants("extract"),
        Wants("clean", ("ssd",)),
        Wants("clean", ("gpu",), 16 * GB),
        Wants("train", ("big", "tpu"), 8 * GB),
    ],
)
def test_what_one_worker_has_can_be_run(wants: Wants) -> None:
    assert known(*FLEET).lack(0, wants) is None


def test_of_workers_that_are_degraded_and_have_no_handlers_it_is_told_why() -> None:
    facts = WorkerFacts(1, state="degraded", reason="etl.py:2: raised ModuleNotFoundError")
    broken = [DispatchWorker.of(facts, CoresForTasks(name, 1), "degraded") for name in "xyz"]
    full = DispatchWorker.of(
        WorkerFacts(1, state="degraded", reason="full", handlers=("clean",)), CoresForTasks("f", 1), "degraded"
    )

    lack = known(*broken, full).lack(0, Wants("extract"))

    problem = "is degraded and has none: etl.py:2: raised ModuleNotFoundError"
    assert lack == Lack("handler", f'no worker has the handler "extract"; known: clean; x {problem}; y {problem}')


@pytest.mark.parametrize(
    ("wants", "field", "text"),
    [
        (
            Wants("extrct", ("gpu",)),
            "handler",
            'no worker has the handler "extrct" (did you mean extract?); known: clean, extract, train',
        ),
        (Wants("zip"), "handler", 'no worker has the handler "zip"; known: clean, extract, train'),
        (
            Wants("train", ("gpus",)),
            "capabilities",
            'no worker with the handler "train" has the capability "gpus" (did you mean gpu?); known: big, gpu, tpu',
        ),
        (
            Wants("extract", ("gpu",)),
            "capabilities",
            'no worker with the handler "extract" has the capability "gpu"; known: ssd',
        ),
        (
            Wants("train", ("gpu", "tpu")),
            "capabilities",
            'no worker with the handler "train" has all of the capabilities gpu, tpu',
        ),
        (
            Wants("clean", ("ssd",), 8 * GB),
            "min_memory",
            'no worker with the handler "clean" and ssd has 8,000,000,000 bytes of memory;'
            " the largest has 4,000,000,000",
        ),
        (
            Wants("train", (), 32 * GB),
            "min_memory",
            'no worker with the handler "train" has 32,000,000,000 bytes of memory; the largest has 16,000,000,000',
        ),
    ],
)
def test_what_nobody_has_is_told_with_what_there_is(wants: Wants, field: str, text: str) -> None:
    assert known(*FLEET).lack(0, wants) == Lack(field, text)


def test_memory_that_is_not_known_is_enough() -> None:
    assert known(worker("a", "h")).lack(0, Wants("h", (), 64 * GB)) is None


def test_where_nobody_is_known_that_is_said() -> None:
    assert known().is_empty and not known(*FLEET).is_empty
    assert known().lack(0, Wants("h")) == Lack("handler", 'no worker has the handler "h"; no worker is known here yet')
    assert known(worker("a")).lack(0, Wants("h")) == Lack("handler", 'no worker has the handler "h"; known: none')
    assert known(worker("a", "h")).lack(0, Wants("h", ("gpu",))) == Lack(
        "capabilities", 'no worker with the handler "h" has the capability "gpu"; known: none'
    )


def test_of_very_many_handlers_some_are_listed() -> None:
    lack = known(worker("a", *[f"h{number:02}" for number in range(12)])).lack(0, Wants("zip"))
    assert lack is not None and lack.text.endswith("h08, h09 and 2 more")


def test_a_worker_that_left_counts_for_ten_minutes() -> None:
    workers = known(worker("a", "h"))
    workers.left(5 * SECOND, "a")
    workers.left(6 * SECOND, "never seen")
    assert workers.lack(604 * SECOND, Wants("h")) is None and not workers.is_empty
    assert workers.lack(605 * SECOND, Wants("h")) is not None and workers.is_empty


def test_a_worker_that_comes_back_is_what_it_is_now() -> None:
    workers = known(worker("a", "old"))
    workers.left(0, "a")
    workers.here(0, worker("a", "new"))
    assert workers.lack(0, Wants("old")) is not None and workers.lack(9000 * SECOND, Wants("new")) is None


def test_so_many_that_left_are_remembered() -> None:
    workers = known(worker("a", "x"), worker("b", "y"), limits=KnownLimits(away=1))
    workers.left(0, "a")
    workers.left(1, "b")
    assert workers.lack(1, Wants("x")) is not None and workers.lack(1, Wants("y")) is None


def test_what_was_asked_before_is_answered_until_the_workers_are_others() -> None:
    workers = known(worker("a", "h"))
    assert workers.lack(0, Wants("x")) is workers.lack(1, Wants("x"))
    workers.here(1, worker("b", "x"))
    assert workers.lack(2, Wants("x")) is None


def test_no_more_answers_are_kept_than_may_be() -> None:
    workers = known(worker("a", "h"), limits=KnownLimits(answers=2))
    for handler in ("x", "y", "z", "h", "x"):
        assert (workers.lack(0, Wants(handler)) is None) == (handler == "h")
    assert len(workers._answers) <= 2


def test_a_dispatcher_knows_who_is_here_and_who_was_lately() -> None:
    dispatcher = Dispatcher(Random(1))
    for partition in (0, 1):
        dispatcher.workers.set_worker(0, worker("a", "h"), partition)
    dispatcher.workers.remove_worker(1, "a", 0)
    assert dispatcher.workers.known.lack(9000 * SECOND, Wants("h")) is None, "it is here for another partition"
    dispatcher.workers.remove_worker(1, "a", 1)
    assert dispatcher.workers.known.lack(600 * SECOND, Wants("h")) is None
    assert dispatcher.workers.known.lack(601 * SECOND, Wants("h")) is not None
    dispatcher.workers.set_worker(0, worker("a", "g"))
    assert (
        dispatcher.workers.known.lack(0, Wants("g")) is None
        and dispatcher.workers.known.lack(0, Wants("h")) is not None
    )


def test_whoever_takes_code_has_handlers_that_travel() -> None:
    takes = DispatchWorker(name="d", capabilities=("ssd",), memory_bytes=4 * GB, accepts_code=True)
    workers = known(*FLEET, takes)
    assert workers.lack(0, Wants("", ("ssd",), 4 * GB, is_brought=True)) is None
    lack = workers.lack(0, Wants("", ("gpu",), is_brought=True))
    assert lack == Lack("capabilities", 'no worker that takes code has the capability "gpu"; known: ssd')
    text = "no worker takes code that travels with a job (--accept-code)"
    assert known(*FLEET).lack(0, Wants("", is_brought=True)) == Lack("handler", text)
    assert known().lack(0, Wants("", is_brought=True)) == Lack("handler", f"{text}; no worker is known here yet")


LOADS = DispatchWorker(name="l", is_loading=True, capabilities=("ssd",), memory_bytes=4 * GB)


@pytest.mark.parametrize(
    ("wants", "name"),
    [
        (Wants("extrct"), "l"),
        (Wants("extrct", ("ssd",), 4 * GB), "l"),
        (Wants("extrct", ("gpu",)), ""),
        (Wants("extrct", (), 5 * GB), ""),
        (Wants("", ("ssd",), is_brought=True), ""),
    ],
)
def test_a_worker_that_loads_its_handlers_may_be_able_to_run_what_it_has_the_rest_for(wants: Wants, name: str) -> None:
    assert known(*FLEET, LOADS).loading(0, wants) == name


def test_a_worker_may_load_its_handlers_for_so_long_and_no_longer() -> None:
    workers = known(*FLEET, limits=KnownLimits(loading_ns=60))
    assert workers.loading(0, Wants("x")) == ""
    workers.here(10, LOADS)
    workers.here(30, msgspec.structs.replace(LOADS, cores=3))
    assert (workers.loading(69, Wants("x")), workers.loading(70, Wants("x"))) == ("l", "")

    workers.here(70, msgspec.structs.replace(LOADS, is_loading=False))
    workers.here(80, LOADS)
    assert workers.loading(81, Wants("x")) == "l", "it was started again"
    workers.left(82, "l")
    assert workers.loading(83, Wants("x")) == ""
