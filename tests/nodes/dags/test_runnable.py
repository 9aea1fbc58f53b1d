"""Whether anybody could run the tasks of a job."""

from random import Random
from typing import Any

import msgspec
import pytest

from talka.client.requests import NobodyCanRun
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.known_workers import KnownLimits, KnownWorkers
from talka.control.tasks.worker_room import DispatchWorker
from talka.errors import Unavailable
from talka.nodes.dags.runnable import RunnableCheck, bundled_in, stuck_tasks, who_could_run
from talka.wire.task_views import TaskWants
from talka.work.dags.dag import CodeBundle, DagSpec, TaskSpec


def test_handlers_that_travel_with_a_job_are_known_to_workers_that_take_code() -> None:
    spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="mine"),))
    bundle = CodeBundle(digest="a" * 64, size_bytes=1, files=("handlers.py",), handlers=("mine",))
    with_code = msgspec.structs.replace(spec, bundle=bundle)
    known = KnownWorkers()
    known.here(0, DispatchWorker(name="own", handlers=("other",)))
    check = RunnableCheck(known, 0, lambda: 5)
    with pytest.raises(NobodyCanRun, match="^task a: no worker takes code that travels with a job"):
        check.check(spec.tasks, bundled_in(with_code))
    known.here(0, DispatchWorker(name="takes", accepts_code=True))
    check.check(spec.tasks, bundled_in(with_code))
    with pytest.raises(NobodyCanRun):
        check.check(spec.tasks, bundled_in(spec))


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        (
            {"capabilities": ("gpu",)},
            "capabilities",
            'task a: no worker that takes code has the capability "gpu"; known: ssd',
        ),
        (
            {"capabilities": ("ssd",), "min_memory": "1kB"},
            "min_memory",
            "task a: no worker that takes code and ssd has 1,000 bytes of memory; the largest has 10",
        ),
    ],
)
def test_what_else_a_task_wants_is_asked_of_those_that_take_code(fields: dict[str, Any], field: str, text: str) -> None:
    known = KnownWorkers()
    known.here(0, DispatchWorker(name="own", handlers=("mine",), capabilities=("gpu", "ssd"), memory_bytes=1 << 40))
    known.here(0, DispatchWorker(name="takes", capabilities=("ssd",), memory_bytes=10, accepts_code=True))
    check = RunnableCheck(known, 0, lambda: 5)
    tasks = [TaskSpec(id="a", handler="mine", **fields)]
    check.check(tasks)
    with pytest.raises(NobodyCanRun) as refusal:
        check.check(tasks, bundled={"mine"})
    assert refusal.value.field == field and str(refusal.value).startswith(text)


def test_who_takes_code_is_told_of_handlers_that_travel() -> None:
    dispatcher = Dispatcher(Random(1))
    wants = TaskWants("mine", ["ssd"], 10, is_brought=True)
    text = "no worker takes code that travels with a job (--accept-code)"
    assert who_could_run(dispatcher, 0, wants, 0).lack == f"{text}; no worker is known here yet"
    dispatcher.workers.set_worker(0, DispatchWorker(name="own", handlers=("mine",), capabilities=("ssd",)))
    found = who_could_run(dispatcher, 0, wants, 0)
    assert (found.lack, found.able) == (text, 0)
    assert [(one.worker, one.constraint) for one in found.workers] == [("own", "code")]

    facts = {"small": ((), 0), "no-room": (("ssd",), 9), "fits": (("ssd",), 10)}
    for name, (capabilities, memory_bytes) in facts.items():
        worker = DispatchWorker(name=name, capabilities=capabilities, memory_bytes=memory_bytes, accepts_code=True)
        dispatcher.workers.set_worker(0, worker)
    found = who_could_run(dispatcher, 0, wants, 0)
    assert (found.lack, found.able) == ("", 1)
    assert [(one.worker, one.constraint) for one in found.workers] == [
        ("fits", ""),
        ("no-room", "memory"),
        ("own", "code"),
        ("small", "capability"),
    ]


def test_tasks_that_want_the_same_are_told_once() -> None:
    known = KnownWorkers()
    known.here(0, DispatchWorker(name="w", handlers=("h",), memory_bytes=10, accepts_code=True))
    tasks = [
        *[TaskSpec(id=f"x{number}", handler="x") for number in range(3)],
        TaskSpec(id="small", handler="h", min_memory="10"),
        TaskSpec(id="large", handler="h", min_memory="1kB"),
        TaskSpec(id="as large", handler="h", min_memory=1000),
        TaskSpec(id="bad", handler="h", min_memory="much"),
    ]
    found = [(stuck.lack.field, stuck.first, stuck.tasks) for stuck in stuck_tasks(known, 0, tasks)]
    assert found == [("handler", 0, 3), ("min_memory", 4, 2)]
    assert [stuck.first for stuck in stuck_tasks(known, 0, tasks, bundled={"x"})] == [4]
    check = RunnableCheck(known, 0, lambda: 5)
    with pytest.raises(NobodyCanRun, match=r"^task x0 \(and 2 tasks more\): no worker has"):
        check.check(tasks)
    with pytest.raises(NobodyCanRun, match=r"^task large \(and 1 task more\): no worker"):
        check.check(tasks, bundled={"x"})


def test_a_manager_that_took_long_to_read_its_store_has_its_first_seconds_after_that() -> None:
    now = [0]
    check = RunnableCheck(KnownWorkers(), 5, lambda: now[0])
    now[0] = 100
    check.begin()
    tasks = [TaskSpec(id="a", handler="x")]
    now[0] = 104
    with pytest.raises(Unavailable, match="has just started"):
        check.check(tasks)
    now[0] = 105
    with pytest.raises(NobodyCanRun):
        check.check(tasks)


def test_of_many_workers_those_that_could_run_a_task_are_listed_first_and_those_that_never_could_last() -> None:
    dispatcher = Dispatcher(Random(1))
    for name, handlers in (("a", "x"), ("b", "h"), ("c", "x"), ("d", "h")):
        dispatcher.workers.set_worker(0, DispatchWorker(name=name, handlers=(handlers,)))
    dispatcher.workers.set_worker(0, DispatchWorker(name="e", handlers=("h",), state="draining"))
    found = who_could_run(dispatcher, 0, TaskWants("h"), 0, workers_limit=4)
    assert (found.lack, found.able, found.left_out) == ("", 2, 1)
    assert [(one.worker, one.constraint) for one in found.workers] == [
        ("b", ""),
        ("d", ""),
        ("e", "draining"),
        ("a", "handler"),
    ]


def test_while_a_worker_loads_its_handlers_nobody_is_refused_for_good() -> None:
    known = KnownWorkers(KnownLimits(loading_ns=100))
    known.here(0, DispatchWorker(name="w", handlers=("h",)))
    known.here(5, DispatchWorker(name="slow", is_loading=True))
    now = [50]
    check = RunnableCheck(known, 0, lambda: now[0])
    tasks = [TaskSpec(id="a", handler="h"), TaskSpec(id="b", handler="x")]

    with pytest.raises(Unavailable, match=r'task b: no worker has .* "x".*; slow still loads its handlers: try again'):
        check.check(tasks)
    with pytest.raises(NobodyCanRun):
        check.check([TaskSpec(id="a", handler="x", capabilities=("gpu",))])
    now[0] = 105
    with pytest.raises(NobodyCanRun):
        check.check(tasks)


def test_of_a_worker_that_loads_its_handlers_it_is_told_that_it_does() -> None:
    dispatcher = Dispatcher(Random(1))
    dispatcher.workers.set_worker(0, DispatchWorker(name="slow", is_loading=True))
    (found,) = who_could_run(dispatcher, 0, TaskWants("h"), 0).workers
    assert (found.worker, found.text) == ("slow", "it still loads its handlers, and has not told yet which they are")
