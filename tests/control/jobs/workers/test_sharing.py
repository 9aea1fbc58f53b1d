"""Load jobs and tasks share the cores of workers: neither waits for ever, and a core that is free comes first."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.workers.fleet import Fleet
from talka.control.jobs.workers.sharing import CoreSharing, NoTasks, SharingLimits
from talka.control.tasks.quarantine import Denied
from talka.units import SECOND
from talka.wire.jobs import Beat, TaskLoad, WorkerFacts

quick = settings(deadline=None, derandomize=True, max_examples=200)


class Tasks:
    def __init__(self) -> None:
        self.busy: dict[str, int] = {}
        self.is_waiting = False

    def busy_cores(self, name: str) -> int:
        return self.busy.get(name, 0)

    def are_waiting(self) -> bool:
        return self.is_waiting

    def denied(self, now: int) -> dict[str, Denied]:
        return {}


class Shop:
    """Workers with tasks on them, and who shares them out."""

    def __init__(self, limits: SharingLimits | None = None, **cores: int) -> None:
        self.fleet, self.tasks, self.now = Fleet(), Tasks(), 0
        self.cores = cores
        self.sharing = CoreSharing(self.fleet, self.tasks, Random(1), limits or SharingLimits())
        self.beat()

    def beat(self) -> None:
        for name, count in self.cores.items():
            self.fleet.beat(self.now, name, 1, f"{name}:1", Beat(self.now, WorkerFacts(count, folder=1)))
            self.fleet.note_tasks(name, self.tasks.busy_cores(name))

    def choose(self, job: str = "j1", least: int = 1, most: int = 1, *, at_s: int = 0) -> dict[str, int] | None:
        self.now = at_s * SECOND
        self.beat()
        picks = self.sharing.choose(self.now, job, least, most)
        return None if picks is None else {name: cores for name, _, cores in picks}


def test_a_job_gets_free_cores_and_no_more_than_there_are() -> None:
    shop = Shop(a=4)
    shop.tasks.busy["a"] = 1

    assert shop.choose(least=1, most=4) == {"a": 3}
    assert shop.choose(least=0) is None


def test_where_all_cores_have_tasks_one_is_held_until_they_have_ended() -> None:
    shop = Shop(a=2)
    shop.tasks.busy["a"] = 2

    assert shop.choose() is None and shop.fleet.held() == 1
    assert shop.choose(at_s=29) is None and shop.fleet.held() == 1
    shop.tasks.busy["a"] = 1

    assert shop.choose(at_s=29) == {"a": 1} and shop.fleet.held() == 0


def test_after_its_patience_a_job_starts_beside_the_tasks_for_one_of_them_may_wait_for_it() -> None:
    shop = Shop(a=2)
    shop.tasks.busy["a"] = 2
    assert shop.choose() is None

    assert shop.choose(at_s=30) == {"a": 1}
    assert shop.fleet.held() == 0


def test_nothing_is_held_for_a_job_that_waits_for_other_load_jobs() -> None:
    shop = Shop(a=2)
    shop.tasks.busy["a"] = 2
    assert shop.choose(least=2) is None and shop.fleet.held() == 2
    shop.fleet.reserve("other", "a", 1)

    assert shop.choose(least=2) is None

    assert shop.fleet.held() == 0
    assert shop.sharing.waiting_for_tasks("j1") == ""


def test_the_patience_of_one_job_is_not_that_of_the_next() -> None:
    shop = Shop(a=1)
    shop.tasks.busy["a"] = 1
    assert shop.choose("j1") is None

    assert shop.choose("j2", at_s=20) is None
    assert shop.choose("j2", at_s=40) is None
    assert shop.choose("j2", at_s=50) == {"a": 1}


def test_cores_of_a_worker_that_is_gone_are_held_elsewhere() -> None:
    shop = Shop(a=1, b=1)
    shop.tasks.busy |= {"a": 1, "b": 1}
    assert shop.choose() is None
    (held,) = [life.name for life in shop.fleet.lives() if life.held]
    shop.fleet.left(0, held, 1)
    del shop.cores[held]

    assert shop.choose(at_s=1) is None

    assert [life.name for life in shop.fleet.lives() if life.held] == [*shop.cores]


def test_tasks_that_wait_have_a_turn_after_each_load_job_and_only_then() -> None:
    shop = Shop(a=1)
    shop.sharing.ended(0, "j0")
    assert shop.choose() == {"a": 1}, "none waits"
    shop.tasks.is_waiting = True
    assert shop.choose() == {"a": 1}, "no load job has kept them out"

    shop.sharing.ended(0, "j0")

    assert shop.choose(at_s=4) is None
    assert shop.sharing.waiting_for_tasks("j1") != ""
    assert shop.choose(at_s=5) == {"a": 1}
    shop.sharing.ended(10 * SECOND, "j1")
    shop.tasks.is_waiting = False
    assert shop.choose(at_s=11) == {"a": 1}, "they have begun"


def test_cores_in_place_of_lost_ones_are_free_ones_first_and_the_rest_is_waited_for_anew_each_time() -> None:
    shop = Shop(a=2, b=1)
    shop.tasks.busy["a"] = 2
    shop.beat()
    assert shop.sharing.replace(0, "j1", 2, ()) == [("b", 1, 1)]
    shop.fleet.reserve("j1", "b", 1)

    assert shop.sharing.replace(29 * SECOND, "j1", 1, ()) is None
    assert shop.sharing.replace(30 * SECOND, "j1", 1, ("a",)) == [("a", 1, 1)], "a bad one is better than none"
    assert shop.sharing.replace(31 * SECOND, "j1", 1, ()) is None, "it lost another one just now"
    shop.sharing.ended(40 * SECOND, "j1")
    assert shop.sharing.replace(61 * SECOND, "j1", 1, ()) is None, "it is another job"


def test_where_nobody_keeps_tasks_beats_tell_of_them() -> None:
    nobody = NoTasks()
    assert (nobody.busy_cores("a"), nobody.are_waiting(), nobody.denied(0)) == (None, False, {})
    fleet = Fleet()
    fleet.beat(0, "a", 1, "a:1", Beat(1, WorkerFacts(2, folder=1), tasks=TaskLoad(2, 0, 2)))

    assert CoreSharing(fleet, nobody, Random(1)).choose(0, "j1", 1, 2) is None


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=4),
)
@quick
def test_neither_kind_waits_for_ever_whatever_tasks_take(lengths: list[int], jobs: list[tuple[int, int]]) -> None:
    """Three cores, a stream of tasks that never ends, load jobs one after the other: each load job starts within a turn
    and its patience of when the cores it needs are no other load job's, and between two load jobs tasks run."""
    shop = Shop(a=3)
    shop.tasks.is_waiting = True
    running: list[int] = []  # when each task ends
    numbers = 0
    waiting = [(f"j{number}", least, length) for number, (least, length) in enumerate(jobs)]
    under_way: tuple[str, int] | None = None
    since, ran_since = 0, 1
    for now in range(0, 4000):
        running = [end for end in running if end > now]
        if under_way is not None and now >= under_way[1]:
            shop.fleet.release(under_way[0])
            shop.sharing.ended(now * SECOND, under_way[0])
            under_way, since, ran_since = None, now, len(running)
        life = shop.fleet.life("a")
        assert life is not None
        shop.tasks.busy["a"] = len(running)
        if waiting and under_way is None:
            job, least, length = waiting[0]
            picks = shop.choose(job, least, least, at_s=now)
            if picks is not None:
                assert ran_since, "tasks had their turn"
                for name, cores in picks.items():
                    shop.fleet.reserve(job, name, cores)
                under_way = (job, now + length)
                waiting.pop(0)
            else:
                assert now - since <= 35, "a turn and its patience"
        while len(running) < life.for_tasks.cores:
            running.append(now + lengths[numbers % len(lengths)])
            numbers, ran_since = numbers + 1, ran_since + 1
    assert not waiting
