"""Tasks of dag jobs on a worker: cores that run handlers, attempts in them, results until they are taken."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

import msgspec
import pytest

from talka.cluster.effects import Persist
from talka.control.tasks.worker_link import ToKeeper
from talka.control.worker import handlers_inputs
from talka.control.worker.effects import (
    EndHandlers,
    ExitFacts,
    HandlersBroken,
    HandlersLoaded,
    StartHandlers,
    TellHandlers,
)
from talka.control.worker.handlers_attempt import is_bounded
from talka.control.worker.handlers_cores import DEATH_LIMIT_NS, END_LIMIT_NS, IDLE_NS, LOAD_LIMIT_NS
from talka.control.worker.handlers_outbox import (
    AGAIN_NS,
    FLUSH_NS,
    HANDLER_LIMITS,
    LINES_LIMIT,
    LINES_OF_TASK_LIMIT,
    PROGRESS_LIMIT_BYTES,
    HandlerLimits,
)
from talka.control.worker.handlers_pool import (
    HELD_BACK_LIMIT,
    HandlerPool,
)
from talka.control.worker.handlers_room import (
    BEGAN_NS,
    FULL,
    RETRY_NS,
    SPENT_LIMIT,
    STARTS_LIMIT,
    STOP_LIMIT_NS,
)
from talka.control.worker.obeyed_epoch import BrokenEpoch
from talka.control.worker.writes import WorkerWrites
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.attempts import StoreLife
from talka.wire.jobs import TaskLoad, encode
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    INPUTS_LIMIT_BYTES,
    TASKS_LIMIT,
    AskHeld,
    AssignTasks,
    Done,
    FromHandlers,
    HandedTask,
    HandlerProgress,
    Held,
    KeeperMessage,
    Load,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskInputs,
    TaskLine,
    TaskProgress,
    TaskResult,
)
from tests.sim.variants import without

EPOCH = 7
BOOT = 0xB007
FIRST = EPOCH << 32
SEGFAULT = ExitFacts("SIGSEGV", signal="SIGSEGV", memory_bytes=4096, text="it was ended by SIGSEGV")
Kind = TypeVar("Kind")


def task(number: int, handler: str = "resize", **more: Any) -> HandedTask:
    fields: dict[str, Any] = {"attempt": 1, "config": b"null", **more}
    return HandedTask(FIRST + number, "job", f"t{number}", handler, **fields)


class Rig:
    """A pool, its disk and its clock; cores that load at once and run what they are told until they are told how it
    ended."""

    def __init__(
        self,
        cores: int = 2,
        *,
        files: tuple[str, ...] = ("etl.py",),
        plain: tuple[str, ...] = (),
        disk: dict[str, bytes] | None = None,
        loads: bool = True,
        limits: HandlerLimits = HANDLER_LIMITS,
    ) -> None:
        self.now = 1_000 * SECOND
        self.disk = dict(disk or {})
        self.disk_waits = False
        self.held_back: list[Persist] = []
        self.loads = loads
        self.plain = plain
        self.said: list[ToKeeper] = []
        self.orders: list[StartHandlers | TellHandlers | EndHandlers] = []
        self.news: list[object] = []
        self.core_of: dict[int, int] = {}
        """Of every attempt that was told to run, the core."""
        self.begun: list[int] = []
        self.pool = HandlerPool("w1", cores, self.disk, boot=BOOT, files=files, writes=WorkerWrites(), limits=limits)
        self.pool.lease_granted(1)
        self.take(self.pool.start(self.now))

    # What happens.

    def take(self, effects: list[object]) -> list[object]:
        for effect in effects:
            match effect:
                case ToKeeper():
                    encode(effect.message)
                    self.said.append(effect)
                case Persist():
                    self.held_back.append(effect)
                case StartHandlers() | EndHandlers():
                    self.orders.append(effect)
                case TellHandlers(core=core, message=message):
                    self.orders.append(effect)
                    if isinstance(message, RunTasks):
                        fences = [each.fence for each in message.tasks]
                        assert not [fence for fence in fences if fence in self.core_of], "an attempt is begun once"
                        self.core_of |= dict.fromkeys(fences, core)
                        self.begun += fences
                case _:
                    self.news.append(effect)
        if self.loads:
            for effect in effects:
                if isinstance(effect, TellHandlers) and isinstance(effect.message, Load):
                    self.loaded(effect.core)
        if not self.disk_waits:
            self.write()
        return effects

    def write(self) -> None:
        while self.held_back:
            persist = self.held_back.pop(0)
            self.disk |= {key: content for key, content in persist.puts if content is not None}
            self.take(self.pool.on_persisted(self.now, persist.ticket))

    def hear(self, message: KeeperMessage, sender: str = "m1") -> list[object]:
        return self.take(self.pool.on_message(self.now, sender, message))

    def hand(self, *tasks: HandedTask, epoch: int = EPOCH) -> list[object]:
        return self.hear(AssignTasks(epoch, tasks))

    def loaded(self, core: int, *names: str, **more: Any) -> list[object]:
        message = Loaded(100 + core, names or ("resize", "fetch"), plain=self.plain, **more)
        return self.say(core, message)

    def broken(self, core: int, problem: str = "etl.py:3: SyntaxError") -> list[object]:
        return self.say(core, Loaded(100 + core, problem=problem))

    def say(self, core: int, message: FromHandlers) -> list[object]:
        return self.take(self.pool.on_handlers_said(self.now, core, message))

    def ran(self, *numbers: int, outcome: Any = "completed", **more: Any) -> list[object]:
        """They have ended in their cores, which tell of all at once."""
        by_core: dict[int, list[TaskResult]] = {}
        for number in numbers:
            result = TaskResult(FIRST + number, outcome, **more)
            by_core.setdefault(self.core_of[result.fence], []).append(result)
        return [effect for core, results in by_core.items() for effect in self.say(core, Ran(tuple(results)))]

    def exit(self, core: int, facts: ExitFacts = SEGFAULT) -> list[object]:
        return self.take(self.pool.on_handlers_exit(self.now, core, facts))

    def took(self, *numbers: int) -> list[object]:
        return self.hear(ResultsStored(EPOCH, tuple(FIRST + number for number in numbers)))

    def recall(self, *numbers: int, grace_ms: int = 5_000) -> list[object]:
        return self.hear(Recall(EPOCH, tuple(FIRST + number for number in numbers), grace_ms))

    def until(self, at: int) -> Rig:
        while self.pool.next_tick_at <= at:
            before = self.now, self.pool.next_tick_at
            self.now = max(self.now, self.pool.next_tick_at)
            self.take(self.pool.tick(self.now))
            assert (self.now, self.pool.next_tick_at) > before, "time goes on"
        self.now = at
        return self

    def later(self, ns: int) -> Rig:
        return self.until(self.now + ns)

    def forget(self) -> Rig:
        self.said.clear()
        self.orders.clear()
        self.news.clear()
        return self

    # What is seen.

    def all(self, kind: type[Kind]) -> list[Kind]:
        said = [speak.message for speak in self.said]
        told = [order.message for order in self.orders if isinstance(order, TellHandlers)]
        return [thing for thing in [*said, *self.orders, *told, *self.news] if isinstance(thing, kind)]

    @property
    def results(self) -> list[TaskResult]:
        return [result for done in self.all(Done) for result in done.results]

    @property
    def outcomes(self) -> list[tuple[int, str, str]]:
        """Number, outcome and cause of each result, in the order in which they were told."""
        return [(result.fence - FIRST, result.outcome, result.cause) for result in self.results]

    @property
    def started(self) -> list[int]:
        return [start.core for start in self.all(StartHandlers)]

    def inside(self, core: int) -> list[int]:
        """Numbers of all attempts that were ever told to this core."""
        return [fence - FIRST for fence, where in self.core_of.items() if where == core]

    def count(self, name: str) -> int:
        return self.pool.counts()[name]


# The epoch.


def test_a_manager_is_obeyed_once_its_epoch_is_on_disk() -> None:
    rig = Rig()
    rig.disk_waits = True

    rig.hand(task(1))
    rig.hand(task(2))
    assert rig.begun == []
    rig.write()

    assert rig.begun == [FIRST + 1, FIRST + 2]
    assert rig.disk == {"epoch": b"7", "epoch/life": b"0 0 0"}
    rig.hand(task(3))
    assert rig.held_back == [], "it is on disk already, and nothing is written of a task"


def test_a_manager_of_an_earlier_epoch_is_refused_also_after_a_restart() -> None:
    rig = Rig()
    rig.hear(AskHeld(EPOCH))

    again = Rig(disk=rig.disk)
    again.hand(task(1), epoch=EPOCH - 1)
    again.hand(task(2))

    assert again.begun == [FIRST + 2]
    assert again.pool.refused == {"epoch": 1}
    assert again.pool.obeyed().epoch == EPOCH


@without("worker_fence")
def test_without_its_safeguard_an_earlier_manager_is_obeyed() -> None:
    rig = Rig(disk={"epoch": b"8"})

    rig.hand(task(1))

    assert rig.begun == [FIRST + 1]


def test_what_waits_for_the_disk_is_void_when_a_later_manager_commands() -> None:
    rig = Rig()
    rig.disk_waits = True
    rig.hand(task(1))
    rig.hear(AssignTasks(EPOCH + 1, (task(2),)), "m2")

    first = rig.held_back.pop(0)
    rig.take(rig.pool.on_persisted(rig.now, first.ticket))
    assert rig.begun == [], "the later one is not on disk"
    rig.write()

    assert rig.begun == [FIRST + 2]
    assert rig.disk["epoch"] == b"8"


def test_more_than_a_few_messages_do_not_wait_for_the_disk() -> None:
    rig = Rig()
    rig.disk_waits = True
    for number in range(HELD_BACK_LIMIT + 2):
        rig.hand(task(number))
    rig.write()

    assert len(rig.begun) == HELD_BACK_LIMIT
    assert rig.pool.refused == {"busy": 2}


def test_a_ticket_of_something_else_changes_nothing() -> None:
    rig = Rig()

    assert rig.pool.on_persisted(rig.now, 99) == []


def test_a_stored_epoch_that_is_no_number_is_told() -> None:
    with pytest.raises(BrokenEpoch, match="stored epoch of this worker is no number"):
        Rig(disk={"epoch": b"\xff"})


# Cores.


def test_one_core_is_started_to_tell_which_handlers_there_are() -> None:
    rig = Rig(loads=False)

    assert rig.orders == [StartHandlers(1), TellHandlers(1, Load(("etl.py",), 1, "w1"))]
    assert not rig.pool.room.handlers and rig.pool.room.is_loading
    rig.loaded(1, "resize", "fetch", "x" * 65)

    assert not rig.pool.room.is_loading
    assert rig.pool.room.handlers == ("resize", "fetch"), "names that facts cannot hold are left out"
    assert rig.news == [HandlersLoaded(("resize", "fetch"))]
    assert rig.pool.room.problem == ""


def test_without_files_no_core_is_started_and_every_task_refused() -> None:
    rig = Rig(files=())

    rig.hand(task(1))

    assert rig.orders == []
    assert not rig.pool.room.is_loading
    assert rig.outcomes == [(1, "refused", "handlers")]
    assert "--handlers" in rig.results[0].error
    assert rig.later(3600 * SECOND).orders == []


def test_files_that_cannot_be_used_are_told_and_tried_again() -> None:
    rig = Rig(loads=False)
    rig.hand(task(1))
    rig.broken(1)

    assert rig.news == [HandlersBroken("etl.py:3: SyntaxError")]
    assert rig.pool.room.problem == "etl.py:3: SyntaxError"
    assert rig.outcomes == [(1, "refused", "handlers")]
    assert EndHandlers(1, hard=False) in rig.orders
    rig.exit(1, ExitFacts("exit"))
    rig.hand(task(2))
    assert rig.outcomes[-1] == (2, "refused", "handlers")
    assert "SyntaxError" in rig.results[-1].error

    rig.forget().later(RETRY_NS)
    assert rig.started == [2]
    assert not rig.pool.room.is_loading, "what is known of them is that they cannot be used"
    rig.broken(2)
    assert rig.news == [], "it was told already"
    rig.exit(2, ExitFacts("exit"))

    rig.forget().later(RETRY_NS)
    assert rig.started == [3]
    rig.loaded(3)
    assert rig.news == [HandlersLoaded(("resize", "fetch"))]
    assert rig.pool.room.problem == ""
    rig.hand(task(4))
    assert rig.begun == [FIRST + 4]


def test_files_that_cannot_be_used_are_tried_again_when_told() -> None:
    rig = Rig(loads=False)
    assert rig.take(rig.pool.try_again(rig.now)) == [], "there is no problem"
    rig.broken(1)

    rig.forget()
    rig.take(rig.pool.try_again(rig.now))
    assert rig.started == [2]
    assert rig.take(rig.pool.try_again(rig.now)) == [], "one tries already"
    rig.later(3 * RETRY_NS)
    assert rig.started == [2]


def test_a_worker_whose_files_were_spoilt_goes_on_with_the_core_that_has_them() -> None:
    rig = Rig(4, plain=("resize",))
    rig.loads = False
    rig.hand(task(1), task(2))
    rig.broken(2)

    assert rig.begun == [FIRST + 1]
    assert rig.pool.room.problem
    assert rig.outcomes == []
    rig.forget().ran(1, took_us=10)
    assert rig.begun == [FIRST + 1, FIRST + 2]
    assert rig.started == [], "others would fail too"


def test_cores_that_end_while_they_load_are_a_problem_after_a_few() -> None:
    rig = Rig(loads=False)
    for core in range(1, STARTS_LIMIT):
        rig.exit(core, ExitFacts("exit", 3, text="it ended with exit code 3"))
    assert rig.started == list(range(1, STARTS_LIMIT + 1)), "the first ones are replaced at once"
    assert rig.news == []

    rig.forget().exit(STARTS_LIMIT, ExitFacts("exit", 3, text="it ended with exit code 3"))

    assert rig.started == []
    assert rig.news == [HandlersBroken("cores end while they load the handlers' files: it ended with exit code 3")]


def test_what_waits_goes_to_a_core_that_is_ready_when_the_one_before_it_ends_while_it_loads() -> None:
    last = STARTS_LIMIT + 1
    rig = Rig(last, loads=False)
    rig.hand(*[task(number) for number in range(last)])
    assert rig.started == list(range(1, last + 1))
    rig.loaded(last)
    for core in range(2, last):
        rig.exit(core)
    rig.take(rig.pool.set_limit(rig.now, 1))
    rig.hand(task(last))
    assert rig.count("attempts_waiting") == 1, "the core that loads is the one that may be used"

    rig.exit(1)

    assert rig.pool.room.problem
    assert rig.inside(last) == list(range(last + 1))
    assert rig.outcomes == []


def test_a_core_that_does_not_load_in_time_is_killed() -> None:
    rig = Rig(loads=False)
    rig.hand(task(1))
    rig.later(LOAD_LIMIT_NS - 1)
    assert rig.all(EndHandlers) == []
    rig.later(1)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]

    rig.forget().exit(1, ExitFacts("SIGKILL"))

    assert rig.news == [HandlersBroken("the handlers' files were not loaded within 60 s")]
    assert rig.outcomes == [(1, "refused", "handlers")]


def test_what_a_core_says_of_loading_after_it_was_ended_does_not_count() -> None:
    rig = Rig(loads=False)
    rig.later(LOAD_LIMIT_NS)

    assert rig.loaded(1) == []
    assert rig.loaded(99) == []
    assert rig.pool.room.handlers == ()


def test_tasks_wait_until_a_core_has_loaded() -> None:
    rig = Rig(loads=False)
    rig.hand(task(1), task(2))
    assert rig.begun == []

    rig.loaded(1)

    assert rig.begun == [FIRST + 1, FIRST + 2]


def test_further_cores_start_when_tasks_wait_up_to_the_limit() -> None:
    rig = Rig(3)
    rig.hand(*[task(number) for number in range(FULL)])
    assert rig.started == [1]

    rig.hand(*[task(number) for number in range(FULL, 3 * FULL + 10)])

    assert rig.started == [1, 2, 3]
    assert [len(rig.inside(core)) for core in (1, 2, 3)] == [FULL, FULL, FULL]
    assert rig.count("attempts_waiting") == 10
    rig.ran(*rig.inside(2)[:10])
    assert rig.count("attempts_waiting") == 0
    assert len(rig.inside(2)) == FULL + 10


def test_a_core_is_not_started_for_what_one_that_loads_will_take() -> None:
    rig = Rig(8, loads=False)
    rig.hand(task(1))
    assert rig.started == [1]
    rig.hand(task(2), task(3))
    assert rig.started == [1, 2, 3]


def test_tasks_that_share_a_core_for_long_get_another_beside_it() -> None:
    rig = Rig(2)
    rig.hand(task(1), task(2), task(3))
    assert rig.started == [1]

    rig.later(BEGAN_NS)

    assert rig.started == [1, 2]
    rig.hand(task(4))
    assert rig.inside(2) == [4], "it has the fewest"
    rig.later(SECOND)
    assert rig.started == [1, 2]


def test_tasks_that_share_a_core_for_long_wait_for_the_one_that_loads() -> None:
    rig = Rig(4)
    rig.loads = False
    rig.hand(task(1), task(2), task(3))
    rig.later(BEGAN_NS)
    rig.hand(task(4), task(5))
    assert rig.started == [1, 2]

    rig.later(BEGAN_NS)

    assert rig.started == [1, 2], "one at a time"


def test_each_goes_to_the_core_with_the_fewest() -> None:
    rig = Rig(2)
    rig.hand(*[task(number) for number in range(FULL + 1)])
    rig.ran(*rig.inside(1)[: FULL - 4])
    assert rig.inside(2) == [FULL]

    rig.hand(*[task(number) for number in range(100, 105)])

    assert [number for number in rig.inside(2) if number >= 100] == [100, 101, 102, 104]
    assert [number for number in rig.inside(1) if number >= 100] == [103]


def test_a_core_with_nothing_to_do_is_ended_but_for_the_first() -> None:
    rig = Rig(2)
    rig.hand(*[task(number) for number in range(FULL + 1)])
    rig.ran(*range(FULL + 1))
    rig.forget().later(IDLE_NS - 1)
    assert rig.orders == []

    rig.later(1)

    assert rig.orders == [EndHandlers(2, hard=False)]
    assert rig.count("handler_cores") == 1
    rig.exit(2, ExitFacts("exit"))
    assert rig.count("handler_cores_died_total") == 0
    assert rig.forget().later(10 * IDLE_NS).orders == []


def test_cores_with_nothing_to_do_are_ended_each_in_its_time() -> None:
    rig = Rig(3)
    rig.hand(*[task(number) for number in range(2 * FULL + 1)])
    rig.ran(*range(FULL, 2 * FULL))
    rig.later(SECOND)
    rig.ran(2 * FULL, *range(FULL))
    rig.forget().later(IDLE_NS - SECOND)
    assert rig.orders == [EndHandlers(2, hard=False)]
    rig.exit(2, ExitFacts("exit"))

    rig.forget().later(SECOND)

    assert rig.orders == [EndHandlers(3, hard=False)]


def test_a_core_that_does_not_end_by_itself_is_killed_and_then_counted_as_gone() -> None:
    rig = Rig(2)
    rig.hand(*[task(number) for number in range(FULL + 1)])
    rig.ran(*range(FULL + 1))
    rig.later(IDLE_NS)
    rig.forget().later(END_LIMIT_NS)
    assert rig.orders == [EndHandlers(2, hard=True)]

    rig.forget().later(DEATH_LIMIT_NS)

    assert rig.orders == [] == rig.news
    assert rig.exit(2) == [], "nobody waits for it any more"


def test_cores_that_load_tasks_take_are_given_up_once_they_are_empty() -> None:
    rig = Rig(3, plain=("resize",))
    rig.hand(task(1), task(2), task(3))
    assert rig.core_of == {FIRST + 1: 1, FIRST + 2: 2, FIRST + 3: 3}
    rig.ran(3, took_us=SECOND)
    rig.forget()

    rig.take(rig.pool.set_limit(rig.now, 1))
    assert rig.orders == [EndHandlers(3, hard=False)], "it has nothing to do"
    rig.hand(task(4))
    assert FIRST + 4 not in rig.begun, "the second core takes nothing more"
    rig.ran(2, took_us=SECOND)

    assert rig.all(EndHandlers) == [EndHandlers(3, hard=False), EndHandlers(2, hard=False)]
    rig.ran(1, took_us=SECOND)
    assert rig.inside(1) == [1, 4]
    rig.take(rig.pool.set_limit(rig.now, 3))
    rig.hand(task(5))
    assert rig.core_of[FIRST + 5] == 4


def test_where_load_tasks_have_all_cores_tasks_may_run_elsewhere() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2))

    rig.take(rig.pool.set_limit(rig.now, 0))
    assert rig.pool.room.cores.limit == 0
    assert rig.outcomes == [(2, "refused", "cores")]
    rig.hand(task(3), task(4, alone=True))

    assert rig.outcomes[1:] == [(3, "refused", "cores"), (4, "refused", "cores")]
    rig.ran(1)
    assert rig.all(EndHandlers) == [], "the first core is kept"
    rig.later(2 * IDLE_NS)
    assert rig.all(EndHandlers) == []
    rig.take(rig.pool.set_limit(rig.now, 1))
    rig.hand(task(5))
    assert rig.core_of[FIRST + 5] == 1


def test_a_core_beyond_the_limit_that_loads_is_ended_and_its_end_is_no_failure() -> None:
    rig = Rig(2, loads=False)
    rig.hand(task(1), task(2))
    assert rig.started == [1, 2]

    rig.take(rig.pool.set_limit(rig.now, 1))
    assert rig.all(EndHandlers) == [EndHandlers(2, hard=False)]
    rig.later(END_LIMIT_NS)
    rig.exit(2, ExitFacts("SIGKILL"))

    rig.loaded(1)
    assert rig.inside(1) == [1, 2]
    assert rig.all(HandlersBroken) == []


# Plain functions.


def test_a_core_is_given_one_plain_function_until_it_is_known_how_long_they_take() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(*[task(number) for number in range(200)])
    assert rig.begun == [FIRST]

    rig.ran(0, took_us=1_000)
    assert len(rig.begun) == 1 + 22, "as many as fill twenty milliseconds"
    rig.ran(*range(1, 23), took_us=1)

    assert len(rig.inside(1)) - 23 == FULL


def test_long_plain_functions_are_not_queued_in_a_core() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2))
    rig.ran(1, took_us=2_000_000)

    assert rig.begun == [FIRST + 1, FIRST + 2]
    rig.hand(task(3))
    assert rig.begun == [FIRST + 1, FIRST + 2]


def test_plain_functions_that_wait_in_a_core_for_their_turn_are_told_as_waiting() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(0), task(1, handler="fetch"), task(2, handler="fetch"))
    rig.ran(0, took_us=1)
    rig.hand(*[task(number) for number in (3, 4, 5)])
    assert len(rig.inside(1)) == 6

    assert rig.pool.room.task_load == TaskLoad(running=2 + 1, waiting=2, cores=1), "the others run side by side"
    rig.ran(3, 4, 5)

    assert rig.pool.room.task_load == TaskLoad(running=2, waiting=0, cores=1)


def test_the_time_of_a_plain_function_counts_from_when_the_one_before_it_ended() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(0))
    rig.ran(0, took_us=1)
    rig.hand(*[task(number, attempt_ms=1_000) for number in (1, 2, 3)])
    assert len(rig.begun) == 4
    rig.forget().later(900 * MILLISECOND)
    assert rig.all(TaskProgress) == [TaskProgress((FIRST + 1,))], "the others have not begun"
    rig.ran(1, took_us=900_000)

    rig.forget().later(999 * MILLISECOND)
    assert rig.all(StopTasks) == []
    rig.later(1 * MILLISECOND)

    assert rig.all(StopTasks) == [StopTasks((FIRST + 2,), "timeout")]


# Alone.


def test_a_task_that_is_to_be_alone_gets_the_idle_core_and_another_takes_its_place() -> None:
    rig = Rig(2)

    rig.hand(task(1, alone=True))

    assert rig.core_of == {FIRST + 1: 1}
    assert rig.started == [1, 2]
    rig.hand(task(2))
    assert rig.core_of[FIRST + 2] == 2
    rig.ran(1)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=False)]


def test_a_task_that_is_to_be_alone_waits_for_a_core_that_loads() -> None:
    rig = Rig(2, loads=False)

    rig.hand(task(1, alone=True), task(2))
    assert rig.started == [1, 2], "one is for it, one for the other"
    rig.loaded(1)
    assert rig.inside(1) == [1]
    rig.loaded(2)

    assert rig.inside(2) == [2]


def test_one_task_may_always_be_alone_and_more_when_there_is_room() -> None:
    rig = Rig(2)
    rig.hand(*[task(number) for number in range(2 * FULL)])
    rig.hand(*[task(number, alone=True) for number in (201, 202)])
    assert rig.core_of[FIRST + 201] == 3
    assert FIRST + 202 not in rig.core_of
    assert rig.count("handler_cores") == 3

    rig.ran(*rig.inside(2))
    assert FIRST + 202 not in rig.core_of, "two are busy"
    rig.ran(*rig.inside(1))

    assert rig.core_of[FIRST + 202] == 2
    assert rig.all(EndHandlers) == []
    rig.ran(201, 202)
    assert [end.core for end in rig.all(EndHandlers)] == [3, 2]
    assert rig.count("handler_cores") == 1


def test_many_that_are_to_be_alone_do_not_start_more_cores_than_there_are() -> None:
    rig = Rig(3)

    rig.hand(*[task(number, alone=True) for number in range(40)])

    assert [len(rig.inside(core)) for core in rig.started] == [1, 1, 1, 0]
    done = 0
    while done < 40:
        running = [number for number in range(40) if FIRST + number in rig.core_of][done:]
        rig.ran(*running)
        for end in rig.all(EndHandlers):
            rig.exit(end.core, ExitFacts("exit"))
        done += len(running)
        assert rig.count("handler_cores") <= 4
    assert rig.begun == [FIRST + number for number in range(40)]
    assert all(len(rig.inside(core)) <= 1 for core in rig.started)


@pytest.mark.parametrize(
    "bounds", [{"memory_bytes": 1 << 28}, {"cpu_ms": 5_000}, {"files": 64}], ids=lambda each: [*each][0]
)
def test_a_task_with_bounds_gets_a_core_that_has_them(bounds: dict[str, Any]) -> None:
    rig = Rig(2, loads=False)
    rig.loaded(1)

    rig.forget().hand(task(1, **bounds))
    assert rig.orders == [StartHandlers(2, **bounds), TellHandlers(2, Load(("etl.py",), 1, "w1"))]
    assert is_bounded(task(1, **bounds))
    rig.loaded(2)

    assert rig.core_of == {FIRST + 1: 2}
    rig.ran(1)
    assert rig.all(EndHandlers) == [EndHandlers(2, hard=False)]


def test_for_a_task_with_bounds_an_idle_core_is_ended_where_there_is_no_room() -> None:
    rig = Rig(3)
    rig.hand(*[task(number) for number in range(3 * FULL)])
    rig.ran(*range(3 * FULL))
    rig.forget()

    rig.hand(*[task(number, files=9) for number in (201, 202, 203, 204)])

    assert rig.all(EndHandlers) == [EndHandlers(3, hard=False), EndHandlers(2, hard=False)]
    assert [rig.core_of.get(FIRST + number) for number in (201, 202, 203, 204)] == [4, 5, 6, None]
    assert rig.count("handler_cores") == 4


def test_a_task_whose_bounds_are_too_narrow_to_load_has_failed_and_nothing_is_wrong_with_the_files() -> None:
    rig = Rig(2, loads=False)
    rig.loaded(1)
    rig.hand(task(1, memory_bytes=1), task(2, memory_bytes=1), task(3, memory_bytes=1))
    assert rig.started == [1, 2, 3]

    rig.forget().broken(2, "MemoryError")
    rig.exit(3, ExitFacts("oom", signal="SIGKILL", memory_bytes=1))

    assert rig.outcomes == [(1, "failed", "load"), (2, "died", "oom")]
    assert all(result.alone for result in rig.results)
    assert rig.pool.room.problem == ""
    assert rig.exit(2, ExitFacts("exit")) == []
    later = rig.started[-1]
    rig.later(LOAD_LIMIT_NS)
    assert EndHandlers(later, hard=True) in rig.orders
    rig.exit(later, ExitFacts("SIGKILL"))
    assert (3, "died", "load") in rig.outcomes
    assert rig.pool.room.problem == ""


def test_where_the_files_are_spoilt_no_core_is_started_for_one_that_is_to_be_alone() -> None:
    rig = Rig(2, plain=("resize",))
    rig.loads = False
    rig.hand(task(1), task(2))
    rig.broken(2)
    rig.forget()

    rig.hand(task(3, alone=True))

    assert rig.started == []
    rig.ran(1, took_us=2_000_000)
    assert rig.core_of[FIRST + 3] == 1, "the idle core that has them is taken"


def test_memory_of_a_core_that_died_is_of_an_attempt_that_had_no_company_in_it() -> None:
    sole, beside, later = Rig(1), Rig(1), Rig(1)
    sole.hand(task(1))
    beside.hand(task(1), task(2))
    later.hand(task(2))
    later.hand(task(1), task(3))
    for rig in (beside, later):
        rig.ran(2)
    later.ran(3)
    for rig in (sole, beside, later):
        rig.exit(1)
    died = [next(result for result in rig.results if result.outcome == "died") for rig in (sole, beside, later)]
    assert [(result.memory_bytes, result.alone) for result in died] == [(4096, True), (0, True), (0, True)]


# Attempts that take too long.


def test_an_attempt_that_takes_too_long_is_stopped_and_its_own_word_counts() -> None:
    rig = Rig()
    rig.hand(task(1, attempt_ms=1_500), task(2))
    rig.later(1_500 * MILLISECOND - 1)
    assert rig.all(StopTasks) == []
    rig.later(1)
    assert rig.all(StopTasks) == [StopTasks((FIRST + 1,), "timeout")]

    rig.ran(1, outcome="timeout", cause="timeout")

    assert rig.outcomes == [(1, "timeout", "timeout")]
    rig.later(10 * SECOND)
    assert rig.all(EndHandlers) == []


def test_an_attempt_that_does_not_stop_is_ended_with_its_process_and_its_neighbours() -> None:
    rig = Rig(1)
    rig.hand(task(1, attempt_ms=50), task(2))
    rig.later(50 * MILLISECOND)
    assert rig.all(StopTasks) == [StopTasks((FIRST + 1,), "timeout")], "to the millisecond"
    rig.later(STOP_LIMIT_NS)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]
    assert rig.outcomes == [], "it may still run"
    rig.forget()

    rig.exit(1, ExitFacts("SIGKILL", signal="SIGKILL"))

    assert rig.outcomes == [(1, "timeout", "timeout"), (2, "died", "neighbour")]
    assert [result.alone for result in rig.results] == [False, False]
    assert rig.results[0].error == "it ran longer than 50ms, did not stop when asked, and was ended with its process"
    assert rig.results[0].took_us == 2_050_000
    assert rig.count("handler_cores_died_total") == 0


def test_the_replacement_starts_when_the_core_is_killed_not_when_it_is_gone() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1, attempt_ms=50), task(2))

    rig.forget().later(50 * MILLISECOND + STOP_LIMIT_NS)

    assert rig.started == [2]
    assert rig.inside(2) == [2]


# Recall.


def test_what_waits_is_cancelled_at_once() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2), task(3, alone=True), task(4, alone=True))
    assert rig.count("attempts_waiting") == 2

    rig.recall(2, 4)

    assert rig.outcomes == [(2, "cancelled", "cancelled"), (4, "cancelled", "cancelled")]
    assert rig.count("attempts_waiting") == 0


def test_what_runs_is_stopped_and_its_core_killed_after_the_grace() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2), task(3))

    rig.recall(1, 2, grace_ms=3_000)
    assert rig.all(StopTasks) == [StopTasks((FIRST + 1, FIRST + 2))]
    rig.ran(2, outcome="cancelled")
    rig.later(3 * SECOND - 1)
    assert rig.all(EndHandlers) == []
    rig.later(1)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]
    rig.forget().exit(1, ExitFacts("SIGKILL"))

    assert rig.outcomes == [(1, "cancelled", "cancelled"), (3, "died", "neighbour")]


def test_a_second_recall_can_only_shorten_the_grace() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.recall(1, grace_ms=5_000)
    rig.recall(1, grace_ms=1_000)
    rig.recall(1, grace_ms=60_000)

    rig.later(SECOND)

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]
    rig.recall(1)
    assert rig.all(StopTasks) == [StopTasks((FIRST + 1,))] * 3, "one that was killed need not be asked"


def test_an_unknown_attempt_is_cancelled_and_not_begun_when_it_comes_late() -> None:
    rig = Rig()

    rig.recall(1)
    rig.hand(task(1))

    assert rig.begun == []
    assert rig.outcomes == [(1, "cancelled", "cancelled")] * 2
    assert rig.count("attempts_repeated_total") == 1


def test_a_recall_of_one_that_has_ended_is_answered_with_its_result() -> None:
    rig = Rig()
    rig.hand(task(1))
    rig.ran(1)

    rig.forget().recall(1)

    assert rig.outcomes == [(1, "completed", "")]


def test_a_task_that_waits_for_its_own_core_is_ended_with_that() -> None:
    rig = Rig(2, loads=False)
    rig.loaded(1)
    rig.hand(task(1, files=9))

    rig.recall(1)
    assert rig.all(EndHandlers) == [EndHandlers(2, hard=True)]
    rig.exit(2, ExitFacts("SIGKILL"))

    assert rig.outcomes == [(1, "cancelled", "cancelled")]
    assert rig.results[0].took_us == 0


def test_recalls_of_unknown_attempts_are_not_answered_when_there_is_no_room() -> None:
    rig = Rig(limits=HandlerLimits(results=2))

    rig.recall(1, 2)
    rig.recall(3)

    assert len(rig.outcomes) == 2
    assert rig.pool.refused == {"busy": 1}


# Death.


def test_the_only_task_of_a_core_that_dies_is_told_as_alone() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.now += 250 * MILLISECOND

    rig.exit(1)

    assert rig.results == [
        TaskResult(
            FIRST + 1,
            "died",
            error="it was ended by SIGSEGV",
            cause="SIGSEGV",
            signal="SIGSEGV",
            took_us=250_000,
            memory_bytes=4096,
            alone=True,
            job="job",
            task="t1",
        )
    ]
    assert rig.started == [1, 2], "another takes its place at once"
    assert rig.count("handler_cores_died_total") == 1


def test_the_death_of_a_core_is_told_and_another_is_started_in_the_same_input() -> None:
    rig = Rig(1, loads=False)
    rig.loaded(1)
    rig.hand(task(1))
    rig.forget()

    rig.exit(1)

    assert rig.started == [2] and rig.outcomes == [(1, "died", "SIGSEGV")]
    rig.hand(task(2, attempt=2))
    rig.loaded(2)
    assert rig.inside(2) == [2], "it was handed before there was a core, and begins as soon as one is there"


def test_several_tasks_of_a_core_that_dies_are_not_told_as_alone() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2), task(3))
    rig.ran(3)
    rig.forget()

    rig.exit(1, ExitFacts("exit", 3))

    assert rig.outcomes == [(1, "died", "exit"), (2, "died", "exit")]
    assert [(result.alone, result.exit_code) for result in rig.results] == [(False, 3)] * 2
    assert rig.results[0].error == "its process ended: exit"


def test_what_waits_runs_in_the_core_that_takes_the_place_of_a_dead_one() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2))

    rig.exit(1)

    assert rig.inside(2) == [2]


def test_words_about_a_death_are_cut_to_what_a_message_holds() -> None:
    rig = Rig(1)
    rig.hand(task(1))

    rig.exit(1, ExitFacts("c" * 300, signal="s" * 300, text="x" * 10_000))

    assert (len(rig.results[0].error), len(rig.results[0].cause), len(rig.results[0].signal)) == (8192, 200, 200)


def test_results_of_attempts_that_are_not_in_the_core_are_counted_and_dropped() -> None:
    rig = Rig(1)
    rig.hand(task(1))

    rig.say(1, Ran((TaskResult(FIRST + 9, "completed"), TaskResult(FIRST + 1, "completed"))))
    rig.say(99, Ran((TaskResult(FIRST + 1, "completed"),)))

    assert rig.outcomes == [(1, "completed", "")]
    assert rig.count("results_unknown_total") == 2


def test_a_result_that_a_killed_core_told_in_time_counts() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.recall(1, grace_ms=0)
    rig.later(0)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]

    rig.ran(1, 2)
    rig.exit(1, ExitFacts("SIGKILL"))

    assert rig.outcomes == [(1, "completed", ""), (2, "completed", "")]


# Results.


def test_what_a_core_tells_together_is_told_together() -> None:
    rig = Rig()
    rig.hand(*[task(number) for number in range(5)])

    rig.ran(0, 1, 2)

    assert rig.said[-1] == ToKeeper("m1", Done(tuple(TaskResult(FIRST + number, "completed") for number in range(3))))
    assert rig.pool.outcomes == {"completed": 3}


def test_results_are_told_again_every_second_until_they_are_taken() -> None:
    rig = Rig()
    rig.hand(task(1), task(2))
    rig.ran(1, 2)
    rig.forget().later(AGAIN_NS - 1)
    assert rig.said == []
    rig.later(1)
    assert rig.outcomes == [(1, "completed", ""), (2, "completed", "")]

    rig.took(1)
    rig.forget().later(AGAIN_NS)
    assert rig.outcomes == [(2, "completed", "")]
    rig.took(2)

    assert rig.forget().later(10 * SECOND).said == []
    assert rig.pool.is_idle
    assert rig.count("results_untaken_bytes") == 0


def test_when_a_result_was_told_is_forgotten_once_it_was_taken() -> None:
    rig = Rig()
    idle_at = rig.pool.next_tick_at
    rig.hand(task(1), task(2), task(3))
    rig.ran(1)
    told_at = rig.now
    rig.later(AGAIN_NS // 2)
    rig.ran(2, 3)
    rig.took(2, 3)
    assert rig.pool.next_tick_at == told_at + AGAIN_NS, "the first is told again"
    rig.took(1)
    assert rig.pool.next_tick_at == idle_at


def test_a_task_that_was_taken_is_not_begun_again() -> None:
    rig = Rig()
    rig.hand(task(1))
    rig.ran(1)
    rig.took(1)

    rig.forget().hand(task(1))

    assert rig.begun == [FIRST + 1]
    assert rig.said == []
    assert rig.count("attempts_repeated_total") == 1


def test_attempts_that_are_over_are_forgotten_only_when_there_were_very_many() -> None:
    rig = Rig(limits=HandlerLimits(closed=2))
    for number in range(5):
        rig.hand(task(number))
        rig.ran(number)
        rig.took(number)

    del rig.core_of[FIRST]
    rig.hand(task(0), task(3), task(4))

    assert rig.begun == [FIRST + number for number in (0, 1, 2, 3, 4, 0)]


def test_a_task_that_is_here_already_is_not_begun_again() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2))

    rig.hand(task(1), task(2))

    assert rig.begun == [FIRST + 1]
    rig.ran(1)
    assert rig.begun == [FIRST + 1, FIRST + 2]


def test_many_results_are_told_in_parts() -> None:
    rig = Rig(40)
    for start in range(0, TASKS_LIMIT + 10, TASKS_LIMIT):
        rig.hand(*[task(number) for number in range(start, min(start + TASKS_LIMIT, TASKS_LIMIT + 10))])
    for core in rig.started:
        rig.ran(*rig.inside(core))
    rig.forget().hear(AskHeld(EPOCH + 1), "m2")

    sizes = [len(done.results) for done in rig.all(Done)]

    assert sizes == [TASKS_LIMIT, 10]


def test_large_results_are_told_in_parts_that_fit_a_frame() -> None:
    rig = Rig()
    rig.hand(*[task(number) for number in range(4)])

    rig.ran(0, 1, 2, 3, output=bytes(BATCH_LIMIT_BYTES // 2 - 500))
    rig.forget().hear(AskHeld(EPOCH + 1))

    assert [len(done.results) for done in rig.all(Done)] == [2, 2]


def test_a_manager_that_begins_its_life_is_told_everything_again() -> None:
    rig = Rig()
    rig.hand(task(1), task(2))
    rig.ran(1)
    rig.say(1, Said((HandlerProgress(FIRST + 2, b"7"),)))
    rig.later(5 * AGAIN_NS)

    rig.forget().hear(AskHeld(EPOCH + 1), "m2")

    assert rig.said == [
        ToKeeper("m2", Held(EPOCH + 1, (FIRST + 2, FIRST + 1))),
        ToKeeper("m2", TaskProgress((), (HandlerProgress(FIRST + 2, b"7"),))),
        ToKeeper("m2", Done((TaskResult(FIRST + 1, "completed"),))),
    ]


def test_what_is_here_is_told_in_parts_when_there_is_much() -> None:
    rig = Rig(limits=HandlerLimits(held=2))
    rig.hand(*[task(number) for number in range(5)])

    rig.forget().hear(AskHeld(EPOCH))

    fences = [FIRST + number for number in range(5)]
    assert rig.all(Held) == [
        Held(EPOCH, tuple(fences[:2]), 0, 3),
        Held(EPOCH, tuple(fences[2:4]), 1, 3),
        Held(EPOCH, tuple(fences[4:]), 2, 3),
    ]
    empty = Rig()
    empty.hear(AskHeld(EPOCH))
    assert empty.all(Held) == [Held(EPOCH, ())]


def test_with_too_many_results_that_nobody_took_nothing_new_is_begun() -> None:
    rig = Rig(limits=HandlerLimits(results_bytes=1_000))
    rig.hand(task(1))
    rig.ran(1, output=bytes(1_000))

    rig.forget().hand(task(2))

    assert rig.outcomes == [(2, "refused", "full")]
    assert rig.count("results_untaken") == 1, "a refusal is told once, and not kept"
    rig.took(1)
    rig.hand(task(2))
    assert rig.begun == [FIRST + 1, FIRST + 2]


def test_results_are_told_as_fast_as_they_are_taken_where_they_are_large() -> None:
    rig = Rig(limits=HandlerLimits(told_bytes=2 * 1_256))
    rig.hand(*[task(number) for number in range(5)])

    rig.ran(0, 1, 2, 3, 4, output=bytes(1_000))

    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [0, 1]
    rig.forget().took(0)
    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [2]
    rig.forget().took(1, 2)
    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [3, 4]


@pytest.mark.parametrize(("told_bytes", "most"), [(8 * 1_256, 2), (3, 1)])
def test_partitions_share_what_may_be_on_its_way(told_bytes: int, most: int) -> None:
    rig = Rig(limits=HandlerLimits(told_bytes=told_bytes))
    life = StoreLife(1, 2, 3, 1, 4)
    rig.hear(AssignTasks(EPOCH, tuple(task(number) for number in range(5)), of=life))

    rig.ran(0, 1, 2, 3, 4, output=bytes(1_000))

    assert [len(done.results) for done in rig.all(Done)] == [most]
    rig.forget().hear(ResultsStored(EPOCH, (FIRST,), life))
    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [most]


def test_a_result_that_is_larger_than_what_may_be_on_its_way_is_told_alone() -> None:
    rig = Rig(limits=HandlerLimits(told_bytes=1_000))
    rig.hand(task(0), task(1))

    rig.ran(0, 1, output=bytes(5_000))

    assert [len(done.results) for done in rig.all(Done)] == [1]
    rig.forget().later(AGAIN_NS)
    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [1], "in turn"
    rig.forget().took(1)
    assert [each.fence - FIRST for done in rig.all(Done) for each in done.results] == [0]


def test_more_than_may_wait_is_refused() -> None:
    rig = Rig(1, plain=("resize",), limits=HandlerLimits(waiting=3))
    rig.hand(task(0))

    rig.hand(*[task(number) for number in range(1, 6)])

    assert rig.outcomes == [(4, "refused", "full"), (5, "refused", "full")]


@pytest.mark.parametrize(
    "large",
    [{"config": bytes(10_000)}, {"checkpoint": bytes(10_000)}, {"inputs": {"a": bytes(10_000)}}],
    ids=["config", "checkpoint", "inputs"],
)
def test_larger_tasks_than_may_wait_are_refused(large: dict[str, Any]) -> None:
    rig = Rig(1, plain=("resize",), limits=HandlerLimits(waiting_bytes=10_000))
    rig.hand(task(0, config=bytes(20_000)))
    assert rig.begun == [FIRST]

    rig.hand(task(1, **large), task(2), task(3))
    assert rig.outcomes == [(2, "refused", "full"), (3, "refused", "full")]
    rig.ran(0)

    rig.hand(task(4))
    assert rig.outcomes[2:] == [(0, "completed", "")], "what runs does not wait"


def test_a_core_is_told_large_tasks_one_after_the_other() -> None:
    rig = Rig(1, loads=False)
    large = {"a": bytes(5 * 1024 * 1024)}
    rig.hand(task(1, inputs=large), task(2, inputs=large), task(3))

    rig.loaded(1)

    assert [[each.fence - FIRST for each in run.tasks] for run in rig.all(RunTasks)] == [[1], [2, 3]]


# What runs tells of itself.


def test_what_runs_for_more_than_a_moment_is_told_once() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.ran(2)
    rig.forget().later(BEGAN_NS - 1)
    assert rig.said == []
    rig.later(1)
    assert rig.said == [ToKeeper("m1", TaskProgress((FIRST + 1,)))]

    assert rig.forget().later(SECOND // 2).said == []


def test_what_was_begun_a_little_later_is_told_a_little_later() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.later(BEGAN_NS // 2)
    rig.hand(task(2))
    rig.forget().later(BEGAN_NS // 2)
    assert rig.all(TaskProgress) == [TaskProgress((FIRST + 1,))]

    rig.forget().later(FLUSH_NS)

    assert rig.all(TaskProgress) == [TaskProgress((FIRST + 2,))]


def test_what_runs_for_too_long_is_not_told_to_have_begun_again() -> None:
    rig = Rig(1)
    rig.hand(task(1, attempt_ms=1_000))
    rig.later(BEGAN_NS)
    assert rig.all(TaskProgress) == [TaskProgress((FIRST + 1,))]

    rig.forget().later(SECOND)

    assert rig.all(StopTasks) == [StopTasks((FIRST + 1,), "timeout")]
    assert rig.all(TaskProgress) == []


def test_progress_and_lines_are_told_at_once_and_then_ten_times_a_second() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    line = TaskLine(FIRST + 1, 5, "row 7")
    rig.forget().say(1, Said((HandlerProgress(FIRST + 1, b"1"),), (line,)))
    assert rig.all(TaskProgress) == [TaskProgress((), (HandlerProgress(FIRST + 1, b"1"),), (line,))]

    for details in (b"2", b"3"):
        rig.say(1, Said((HandlerProgress(FIRST + 1, details),)))
    assert len(rig.said) == 1
    rig.later(FLUSH_NS)

    assert rig.all(TaskProgress)[1].progress == (HandlerProgress(FIRST + 1, b"3"),), "the latest wins"
    assert type(rig.said[1].message) is TaskProgress


def test_the_latest_progress_is_told_a_second_time_in_case_it_was_lost() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"1"), HandlerProgress(FIRST + 2, b"1"))))
    rig.later(AGAIN_NS // 2)
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"2"),)))
    rig.ran(2)
    rig.took(2)
    rig.forget().later(10 * SECOND)

    assert [under.progress for under in rig.all(TaskProgress)] == [(HandlerProgress(FIRST + 1, b"2"),)]


def test_progress_that_comes_between_a_repetition_and_its_telling_is_repeated_itself() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.later(BEGAN_NS)
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"1"),)))
    rig.later(AGAIN_NS - 1 + FLUSH_NS)
    rig.say(1, Said((), (TaskLine(FIRST + 1, 1, "x"),)))
    rig.now += 1
    rig.take(rig.pool.tick(rig.now))
    rig.forget().say(1, Said((HandlerProgress(FIRST + 1, b"2"),)))
    rig.later(10 * SECOND)

    told = [progress.details for under in rig.all(TaskProgress) for progress in under.progress]
    assert told.count(b"2") == 2


def test_the_last_progress_of_an_attempt_that_failed_goes_before_its_result() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"1"),)))
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"2"),)))

    rig.forget().ran(1, outcome="failed")

    assert [type(speak.message) for speak in rig.said] == [TaskProgress, Done]
    assert rig.all(TaskProgress)[0].progress == (HandlerProgress(FIRST + 1, b"2"),)
    rig.say(1, Said((HandlerProgress(FIRST + 2, b"2"),)))
    rig.forget().ran(2)
    assert [type(speak.message) for speak in rig.said] == [Done], "of one that completed it does not matter"


def test_progress_of_what_is_not_here_is_dropped() -> None:
    rig = Rig(1)
    rig.hand(task(1))

    rig.forget().say(1, Said((HandlerProgress(FIRST + 9, b"1"),)))

    assert rig.said == []


def test_progress_beyond_the_limits_is_dropped_and_counted() -> None:
    rig = Rig(1, limits=HandlerLimits(progress_bytes=PROGRESS_LIMIT_BYTES + 10))
    rig.hand(task(1), task(2))
    rig.forget().say(1, Said((HandlerProgress(FIRST + 1, bytes(PROGRESS_LIMIT_BYTES + 1)),)))
    assert rig.said == []
    rig.say(1, Said((HandlerProgress(FIRST + 1, bytes(PROGRESS_LIMIT_BYTES)), HandlerProgress(FIRST + 2, bytes(11)))))
    assert rig.count("task_progress_dropped_total") == 2

    rig.ran(1)
    rig.say(1, Said((HandlerProgress(FIRST + 2, bytes(11)),)))

    assert rig.count("task_progress_dropped_total") == 2, "there is room again"


def test_lines_beyond_the_limit_of_a_task_are_dropped_with_a_note() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.say(1, Said((), (TaskLine(FIRST + 1, 1, "first"),)))
    lines = tuple(TaskLine(FIRST + 1, at, "x") for at in range(LINES_OF_TASK_LIMIT + 5))
    rig.forget().say(1, Said((), (*lines, TaskLine(FIRST + 2, 9, "y"))))
    rig.later(FLUSH_NS)

    told = [line for under in rig.all(TaskProgress) for line in under.lines]

    assert told == [
        *lines[:LINES_OF_TASK_LIMIT],
        TaskLine(FIRST + 2, 9, "y"),
        TaskLine(FIRST + 1, LINES_OF_TASK_LIMIT + 4, "[5 lines came too fast and were dropped]"),
    ]
    assert rig.count("task_lines_dropped_total") == 5


def test_lines_of_all_tasks_together_are_bounded() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.say(1, Said((), (TaskLine(FIRST + 1, 1, "first"),)))
    rig.forget().say(1, Said((), tuple(TaskLine(fence, 1, "x") for fence in range(3 * LINES_LIMIT))))
    rig.later(FLUSH_NS)

    told = [line for under in rig.all(TaskProgress) for line in under.lines]

    assert len(told) == 2 * LINES_LIMIT, "as many notes as lines, and no more"
    assert rig.count("task_lines_dropped_total") == 2 * LINES_LIMIT


def test_many_words_are_told_in_parts_that_fit_a_frame() -> None:
    rig = Rig(1)
    rig.hand(*[task(number) for number in range(3)])
    rig.later(BEGAN_NS)
    progress = tuple(HandlerProgress(FIRST + number, bytes(200_000)) for number in range(3))

    rig.forget().later(FLUSH_NS).say(1, Said(progress, (TaskLine(FIRST, 1, "ü" * 4096),) * 100))

    parts = [(len(under.progress), len(under.lines)) for under in rig.all(TaskProgress)]
    assert parts == [(2, 0), (1, 19), (0, 31), (0, 31), (0, 19)]


# Inputs that come before their task.


def test_inputs_that_came_before_are_added_to_those_of_the_task() -> None:
    rig = Rig()
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"b": b"2"}))

    rig.hand(task(1, inputs={"c": b"3"}, fed=2), task(2))

    assert [each.inputs for each in rig.all(RunTasks)[0].tasks] == [{"a": b"1", "b": b"2", "c": b"3"}, {}]
    assert rig.pool.next_tick_at < NEVER


def test_a_task_whose_inputs_were_lost_is_refused() -> None:
    rig = Rig()
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))

    rig.hand(task(1, fed=2), task(2, fed=1))

    assert rig.outcomes == [(1, "refused", "inputs"), (2, "refused", "inputs")]
    rig.pool.has_lease = False
    rig.hand(task(3, fed=1))
    assert rig.outcomes[2] == (3, "refused", "lease")


def test_inputs_are_forgotten_when_no_task_follows() -> None:
    rig = Rig()
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))
    rig.later(SECOND)
    rig.hear(TaskInputs(EPOCH, FIRST + 2, {"a": b"1"}))
    rig.later(handlers_inputs.KEPT_NS - SECOND)

    rig.hand(task(1, fed=1), task(2, fed=1))

    assert rig.outcomes == [(1, "refused", "inputs")]
    assert rig.begun == [FIRST + 2]


def test_inputs_are_forgotten_by_when_the_first_of_their_task_came() -> None:
    rig = Rig()
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))
    rig.later(SECOND)
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"b": b"2"}))
    rig.later(handlers_inputs.KEPT_NS - SECOND)

    rig.hand(task(1, fed=2))

    assert rig.outcomes == [(1, "refused", "inputs")]


def test_inputs_beyond_the_limits_are_dropped() -> None:
    rig = Rig()
    rig.hear(TaskInputs(EPOCH, FIRST, {"a": bytes(INPUTS_LIMIT_BYTES)}))
    rig.hear(TaskInputs(EPOCH, FIRST, {"b": b"1"}))
    assert rig.pool.refused == {"inputs": 1}
    for number in range(1, handlers_inputs.TASKS_LIMIT + 2):
        rig.hear(TaskInputs(EPOCH, FIRST + number, {"a": b"1"}))
    assert rig.pool.refused == {"inputs": 2}

    rig.hand(task(0, fed=2), task(1, fed=1), task(2, fed=1))

    assert rig.outcomes == [(0, "refused", "inputs"), (1, "refused", "inputs")]
    large = bytes(INPUTS_LIMIT_BYTES)
    for number in range(100, 105):
        rig.hear(TaskInputs(EPOCH, FIRST + number, {"a": large}))
    rig.hand(task(3, fed=1))
    assert rig.outcomes[2] == (3, "refused", "inputs"), "the oldest go first"


# The lease, and the end.


def test_without_a_lease_every_task_is_refused() -> None:
    rig = Rig()
    rig.pool.has_lease = False

    rig.hand(task(1))

    assert rig.outcomes == [(1, "refused", "lease")]


def test_when_the_lease_is_over_what_runs_is_killed_and_told_once_its_process_is_gone() -> None:
    rig = Rig(2, plain=("resize",))
    rig.hear(TaskInputs(EPOCH, FIRST + 8, {"a": b"1"}))
    rig.hand(task(1), task(2), task(3))
    rig.hand(task(4, alone=True))
    rig.recall(2, grace_ms=0)
    rig.later(0)
    assert rig.all(EndHandlers) == [EndHandlers(2, hard=True, shows_stack=True)]
    rig.forget()

    rig.take(rig.pool.lease_ended(rig.now))
    assert not rig.pool.has_lease
    killed = [end.core for end in rig.all(EndHandlers) if end.hard]
    assert len(killed) == len(rig.core_of) - 1
    for core in (*killed, 2):
        rig.exit(core, ExitFacts("SIGKILL"))

    assert sorted(rig.outcomes) == [
        (1, "refused", "lease"),
        (2, "cancelled", "cancelled"),
        (3, "refused", "lease"),
        (4, "refused", "lease"),
    ]
    rig.hand(task(1))
    assert len(rig.begun) == len(rig.core_of), "it is not begun again"
    rig.pool.has_lease = True
    rig.hand(task(8, fed=1))
    assert rig.outcomes[-1] == (8, "refused", "inputs")


def test_when_the_lease_is_over_cores_with_nothing_to_do_end_too_and_one_is_started_anew() -> None:
    rig = Rig(1)
    rig.forget()

    rig.take(rig.pool.lease_ended(rig.now))

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]
    assert [start.core for start in rig.all(StartHandlers)] == [2]
    rig.exit(1, ExitFacts("SIGKILL"))
    assert rig.pool.counts()["handler_cores_died_total"] == 0, "it was to end"


# Cores in which an attempt left processes behind.


def test_a_spent_core_is_given_nothing_more_and_ends_when_nothing_runs_in_it() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.ran(1, outcome="failed")
    rig.forget()

    rig.say(1, Spent(2))
    rig.say(1, Spent(3))
    rig.hand(task(3))
    assert rig.started == [2] and rig.core_of[FIRST + 3] == 2
    assert rig.all(EndHandlers) == []
    rig.ran(2)

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=False)]
    assert rig.outcomes[-1] == (2, "completed", "")
    assert rig.count("handler_cores_spent_total") == 1


def test_a_spent_core_with_nothing_to_do_ends_at_once_and_another_takes_its_place() -> None:
    rig = Rig(1)
    rig.hand(task(1))
    rig.ran(1, outcome="failed")
    rig.forget()

    rig.say(1, Spent())
    rig.hand(task(2, alone=True))

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=False)]
    assert rig.core_of[FIRST + 2] == 2


def test_what_wants_to_be_alone_is_not_put_into_a_spent_core() -> None:
    rig = Rig(2)
    rig.hand(task(1), task(2))
    rig.say(1, Spent())

    rig.hand(task(3, alone=True))

    assert rig.core_of[FIRST + 3] != 1


def test_of_too_many_spent_cores_the_first_is_killed_and_whoever_was_in_it_runs_again() -> None:
    rig = Rig(1)
    for number in range(1, SPENT_LIMIT + 2):
        rig.hand(task(number))
        assert rig.all(EndHandlers) == []
        rig.say(number, Spent())

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]
    rig.exit(1)
    assert rig.outcomes == [(1, "died", "neighbour")]


def test_a_core_that_nobody_knows_cannot_be_spent() -> None:
    rig = Rig(1).forget()

    rig.say(9, Spent())

    assert rig.orders == []


def test_a_neighbour_of_one_that_was_killed_is_refused_when_the_lease_ends_meanwhile() -> None:
    rig = Rig(1)
    rig.hand(task(1), task(2))
    rig.recall(1, grace_ms=0)
    rig.later(0)

    rig.take(rig.pool.lease_ended(rig.now))
    rig.exit(1, ExitFacts("SIGKILL"))

    assert rig.outcomes == [(1, "cancelled", "cancelled"), (2, "refused", "lease")]


def test_what_waits_for_the_disk_when_the_lease_ends_is_not_begun_under_the_next() -> None:
    rig = Rig()
    rig.disk_waits = True
    rig.hear(AskHeld(EPOCH))
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))
    rig.hand(task(1))

    rig.take(rig.pool.lease_ended(rig.now))
    rig.pool.lease_granted(9)
    rig.write()

    assert rig.begun == [] and rig.outcomes == []
    assert rig.all(Held) == [Held(EPOCH, ())], "whoever handed it learns that it is not here"
    rig.hand(task(1, fed=1))
    assert rig.outcomes == [(1, "refused", "inputs")]


def test_what_was_handed_before_the_present_lease_is_refused() -> None:
    rig = Rig()
    rig.take(rig.pool.lease_ended(rig.now))
    rig.pool.lease_granted(9)
    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}))

    rig.hear(AssignTasks(EPOCH, (task(1, fed=1), task(2)), BOOT, 8))
    assert rig.begun == []
    assert rig.outcomes == [(1, "refused", "lease"), (2, "refused", "lease")]
    assert rig.pool.refused == {"lease": 1}
    rig.hear(AssignTasks(EPOCH, (task(2), task(3)), BOOT, 9))
    rig.hear(AssignTasks(EPOCH, (task(4),), BOOT))

    assert rig.begun == [FIRST + 3, FIRST + 4], "what was refused is another's"
    assert rig.pool.refused == {"lease": 1}


def test_what_is_meant_for_another_life_of_this_worker_is_not_begun() -> None:
    rig = Rig()

    rig.hear(TaskInputs(EPOCH, FIRST + 1, {"a": b"1"}, BOOT - 1))
    rig.hear(AssignTasks(EPOCH, (task(1), task(2)), BOOT - 1, 9))
    assert rig.begun == [] and rig.outcomes == []
    assert rig.pool.refused == {"boot": 2}
    rig.hear(TaskInputs(EPOCH, FIRST + 2, {"a": b"2"}, BOOT))
    rig.hear(AssignTasks(EPOCH, (task(1, fed=1), task(2, fed=1)), BOOT, 9))

    assert rig.outcomes == [(1, "refused", "inputs")], "its inputs went to that life"
    assert rig.begun == [FIRST + 2]


def test_results_that_nobody_took_outlive_the_lease() -> None:
    rig = Rig()
    rig.hand(task(1))
    rig.ran(1)

    rig.forget().take(rig.pool.lease_ended(rig.now))
    rig.later(AGAIN_NS)

    assert rig.outcomes == [(1, "completed", "")]


def test_a_worker_that_drains_finishes_what_runs_and_takes_nothing() -> None:
    rig = Rig(1, plain=("resize",))
    rig.hand(task(1), task(2))

    rig.take(rig.pool.drain(rig.now))
    rig.hand(task(3))
    assert rig.outcomes == [(2, "refused", "draining"), (3, "refused", "draining")]
    assert not rig.pool.is_idle
    rig.took(2, 3)
    rig.ran(1)
    assert not rig.pool.is_idle
    rig.took(1)

    assert rig.pool.is_idle


def test_an_idle_pool_wants_no_tick() -> None:
    rig = Rig()
    rig.hand(task(1))
    rig.ran(1)
    rig.took(1)
    rig.later(2 * IDLE_NS)

    assert rig.pool.next_tick_at == NEVER


# Any order of events.


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_task_that_was_handed_is_begun_once_and_ends_with_one_result(seed: int) -> None:
    rng = Random(seed)
    rig = Rig(rng.randrange(1, 4), plain=("resize",) if rng.random() < 0.5 else ())
    handed: dict[int, None] = {}
    results: dict[int, list[TaskResult]] = {}
    taken: dict[int, None] = {}
    for _ in range(80):
        match rng.randrange(9):
            case 0 | 1:
                tasks = [
                    task(
                        len(handed) + index,
                        rng.choice(("resize", "fetch")),
                        alone=rng.random() < 0.1,
                        files=9 if rng.random() < 0.1 else 0,
                        attempt_ms=rng.choice((0, 50, 5_000)),
                    )
                    for index in range(rng.randrange(1, 60))
                ]
                handed |= {each.fence: None for each in tasks}
                rig.hand(*tasks)
            case 2 | 3 | 4:
                running = [fence for fence in rig.core_of if fence not in results]
                for fence in rng.sample(running, min(len(running), rng.randrange(60))):
                    rig.say(rig.core_of[fence], Ran((TaskResult(fence, "completed", took_us=rng.randrange(9_000)),)))
            case 5:
                if rng.random() < 0.3:
                    rig.exit(rng.choice(rig.started))
            case 6:
                some = list(handed)
                rig.hear(Recall(EPOCH, tuple(rng.sample(some, min(3, len(some)))), rng.choice((0, 500))))
            case 7:
                if rng.random() < 0.2:
                    rig.take(rig.pool.lease_ended(rig.now))
                    rig.pool.has_lease = True
                elif rng.random() < 0.3:
                    rig.take(rig.pool.set_limit(rig.now, rng.randrange(4)))
            case _:
                rig.later(rng.choice((MILLISECOND, 150 * MILLISECOND, 3 * SECOND)))
        note(rig, results)
        if results and rng.random() < 0.3:
            some = [fence for fence in results if fence not in taken][:500]
            taken |= dict.fromkeys(some)
            rig.hear(ResultsStored(EPOCH, tuple(some)))
        for end in rig.all(EndHandlers):
            if end.hard and rng.random() < 0.5:
                rig.exit(end.core, ExitFacts("SIGKILL"))
    rig.take(rig.pool.set_limit(rig.now, 2))
    for _ in range(4_000):
        running = [fence for fence in rig.core_of if fence not in results]
        for fence in running:
            rig.say(rig.core_of[fence], Ran((TaskResult(fence, "completed", took_us=5_000),)))
        for end in rig.all(EndHandlers):
            rig.exit(end.core, ExitFacts("SIGKILL"))
        note(rig, results)
        if len(results) == len(handed):
            break
        rig.later(SECOND)

    assert sorted(results) == sorted(handed)
    for fence, told in results.items():
        assert len({msgspec.json.encode(result) for result in told}) == 1, f"{fence} ended in two ways"
    assert rig.count("attempts_running") == rig.count("attempts_waiting") == 0
    rig.hear(ResultsStored(EPOCH, tuple(handed)[:0]))
    for start in range(0, len(handed), TASKS_LIMIT):
        rig.hear(ResultsStored(EPOCH, tuple(list(handed)[start : start + TASKS_LIMIT])))
    assert rig.pool.is_idle
    assert rig.count("results_untaken_bytes") == 0


def note(rig: Rig, results: dict[int, list[TaskResult]]) -> None:
    """Keep what was told, and forget it where it was said."""
    for result in rig.results:
        results.setdefault(result.fence, []).append(result)
    rig.said.clear()
