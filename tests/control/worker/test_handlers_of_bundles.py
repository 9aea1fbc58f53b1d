"""Handlers that travel with jobs, on a worker: each bundle has cores of its own, and all share those that there are."""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any

from talka.cluster.effects import PersistBlob, Send
from talka.control.member.peer_pool import PooledPeer
from talka.control.member.signers import Signers
from talka.control.worker.bundles import FETCHES_LIMIT, WorkerBundles
from talka.control.worker.effects import EndHandlers, HandlersBroken, HandlersLoaded, NeedBundle, StartHandlers
from talka.control.worker.handlers_outbox import HandlerLimits
from talka.control.worker.handlers_pool import CodeSource, HandlerPool
from talka.control.worker.handlers_room import RETRY_NS, STARTS_LIMIT, HandlerRoom
from talka.control.worker.writes import WorkerWrites
from talka.testing.trust import GROUP, SIGNER
from talka.units import MILLISECOND, SECOND
from talka.wire.jobs import BLOB_LIMIT_BYTES, Piece
from talka.wire.shards import BundleSource
from talka.wire.tasks import AssignTasks, HandedBundle, HandedTask, Load
from tests.control.worker.test_handlers_pool import BOOT, EPOCH, FIRST, SEGFAULT, Rig, task

TURN_NS = SECOND
IDLE_NS = 20 * SECOND
BEGAN = 200 * MILLISECOND
LIMITS = HandlerLimits(idle_ns=IDLE_NS, turn_ns=TURN_NS)


def bundle(name: str, **more: Any) -> HandedBundle:
    digest = sha256(name.encode()).hexdigest()
    fields: dict[str, Any] = {"size_bytes": len(name), "files": (f"{name}.py",), "word": SIGNER.sign(digest), **more}
    return HandedBundle(digest, **fields)


A, B, C = bundle("a"), bundle("b"), bundle("c")


class CodeRig(Rig):
    """A worker that takes code; A, B and C are on its disk unless it is said otherwise."""

    def __init__(
        self,
        cores: int = 2,
        *,
        files: tuple[str, ...] = (),
        here: tuple[HandedBundle, ...] = (A, B, C),
        plain: tuple[str, ...] = (),
        limits: HandlerLimits = LIMITS,
        loads: bool = True,
        takes: bool = True,
        names: bool = True,
    ) -> None:
        writes = WorkerWrites()
        self.bundles = WorkerBundles([one.digest for one in here], PooledPeer("w1"), Random(1), writes)
        self.bundles.pool.set_peers([PooledPeer("m1")])
        self.signers = Signers(GROUP)
        if names:
            self.signers.name([SIGNER.public])
        super().__init__(cores, files=files, plain=plain, limits=limits, loads=loads)
        self.pool = HandlerPool(
            "w1",
            cores,
            self.disk,
            boot=BOOT,
            files=files,
            writes=writes,
            limits=limits,
            code=CodeSource(self.bundles, self.signers) if takes else None,
        )
        self.forget()
        self.pool.lease_granted(1)
        self.take(self.pool.start(self.now))

    def give(self, code: HandedBundle, *tasks: HandedTask) -> list[object]:
        return self.hear(AssignTasks(EPOCH, tasks, bundle=code))

    @property
    def room(self) -> Any:
        return self.pool.room

    def code_of(self, core: int) -> str:
        """The digest of what a core was told to load."""
        (load,) = [order.message for order in self.orders if getattr(order, "core", 0) == core and is_load(order)]
        return "" if load.bundle is None else str(load.bundle.digest)

    @property
    def ended(self) -> list[int]:
        return [end.core for end in self.all(EndHandlers)]

    def runs(self, code: HandedBundle | None) -> list[int]:
        """Cores that have loaded this and were not told to end, by number."""
        digest = "" if code is None else code.digest
        return [core for core in self.started if self.code_of(core) == digest and core not in self.ended]

    def fetched(self, content: bytes) -> None:
        """A manager gives the whole of it, and it is on disk."""
        digest = sha256(content).hexdigest()
        wanted = self.room.bundles
        for effect in self.bundles.on_piece(self.now, "m1", Piece(digest, 0, len(content), content), wanted):
            if isinstance(effect, PersistBlob):
                self.bundles.on_persisted(effect.ticket)
        self.take(self.pool.on_bundles(self.now, self.bundles.take_problems()))


def is_load(order: object) -> bool:
    return isinstance(getattr(order, "message", None), Load)


# Taking it.


def test_a_core_is_started_for_a_bundle_and_told_to_unpack_it() -> None:
    rig = CodeRig()
    assert rig.started == [], "without files and without tasks there is nothing to load"
    rig.give(A, task(1))
    (load,) = rig.all(Load)
    assert load == Load(("a.py",), 1, "w1", BundleSource(f"blob:{A.digest}", A.digest, "a.py", "", {}))
    assert rig.inside(1) == [1]
    assert rig.all(HandlersLoaded) == [HandlersLoaded(("resize", "fetch"), A.digest)]
    assert rig.room.handlers == (), "what a bundle brings is no handler of the worker's own"


def test_two_bundles_with_a_handler_of_one_name_never_share_a_core() -> None:
    rig = CodeRig()
    rig.give(A, task(1), task(2))
    rig.give(B, task(3))
    (a,), (b,) = rig.runs(A), rig.runs(B)
    assert (rig.inside(a), rig.inside(b)) == ([1, 2], [3])


def test_a_bundle_and_the_workers_own_files_never_share_a_core() -> None:
    rig = CodeRig(files=("etl.py",))
    rig.give(A, task(1))
    rig.hand(task(2))
    assert rig.inside(*rig.runs(A)) == [1]
    assert rig.inside(*rig.runs(None)) == [2]


def test_a_worker_that_takes_no_code_refuses_it_whatever_it_is_told() -> None:
    rig = CodeRig(takes=False, files=("etl.py",))
    rig.give(A, task(1))
    assert rig.outcomes == [(1, "refused", "code")]
    assert rig.results[0].error == "worker w1 takes no code: start it with --accept-code"
    assert rig.runs(A) == []


def test_a_worker_without_files_runs_bundles_and_refuses_what_is_its_own() -> None:
    rig = CodeRig()
    rig.hand(task(1))
    rig.give(A, task(2))
    rig.ran(2)
    assert [(number, outcome) for number, outcome, _ in rig.outcomes] == [(1, "refused"), (2, "completed")]


def test_files_of_its_own_that_are_broken_keep_no_bundle_from_running() -> None:
    rig = CodeRig(files=("etl.py",), loads=False)
    rig.broken(1)
    rig.give(A, task(1))
    (core,) = rig.runs(A)
    rig.loaded(core)
    assert rig.inside(core) == [1]


# Its word.


def test_what_no_manager_signed_is_not_run() -> None:
    rig = CodeRig()
    rig.give(bundle("a", word=b""), task(1))
    rig.give(bundle("a", word=SIGNER.sign(B.digest)), task(2))
    assert rig.outcomes == [(1, "refused", "bundle"), (2, "refused", "bundle")]
    assert rig.results[0].error == "worker w1 runs nothing unsigned: no manager has signed this bundle"
    assert rig.started == []


def test_a_signer_that_the_leader_has_not_named_yet_is_waited_for() -> None:
    rig = CodeRig(names=False)
    rig.give(A, task(1))
    assert rig.outcomes == [(1, "refused", "signer")]
    rig.signers.name([SIGNER.public])
    rig.give(A, task(2))
    assert rig.begun == [FIRST + 2]


def test_a_bundle_that_names_no_files_is_refused() -> None:
    rig = CodeRig()
    rig.give(bundle("a", files=()), task(1))
    assert rig.outcomes == [(1, "refused", "bundle")]


# Getting it.


def test_a_bundle_that_is_not_here_is_fetched_once_and_its_tasks_wait_for_it() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1))
    rig.give(A, task(2))
    assert rig.all(NeedBundle) == [NeedBundle(A.digest, 1)]
    assert [send.message.digest for send in rig.all(Send)] == [A.digest]
    assert rig.started == [] and rig.room.awaited == [A.digest]
    rig.fetched(b"a")
    assert rig.inside(1) == [1, 2]
    assert rig.room.awaited == []


def test_a_task_that_wants_to_be_alone_waits_for_its_bundle_too() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1, alone=True))
    assert rig.started == []
    rig.fetched(b"a")
    assert rig.inside(1) == [1]


def test_a_bundle_that_cannot_be_had_is_told_and_forgotten() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1))
    rig.take(rig.pool.on_bundles(rig.now, {A.digest: "no manager gave it"}))
    assert rig.outcomes == [(1, "refused", "bundle")]
    assert rig.results[0].error == "worker w1 could not get the code of its job: no manager gave it"
    assert rig.room.bundles == []


def test_news_of_other_bundles_change_nothing() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1))
    rig.take(rig.pool.on_bundles(rig.now, {B.digest: "no manager gave it"}))
    assert rig.outcomes == [] and rig.room.awaited == [A.digest]


def test_a_bundle_that_is_too_large_is_not_asked_for() -> None:
    rig = CodeRig(here=())
    rig.give(bundle("a", size_bytes=BLOB_LIMIT_BYTES + 1), task(1))
    rig.take(rig.pool.on_bundles(rig.now, rig.bundles.take_problems()))
    assert rig.outcomes == [(1, "refused", "bundle")]
    assert rig.all(Send) == []


def test_what_nobody_waits_for_any_more_is_not_wanted_either() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1))
    rig.recall(1)
    assert rig.room.bundles == []


def test_a_lease_that_ends_lets_go_of_what_was_on_its_way() -> None:
    rig = CodeRig(here=())
    rig.give(A, task(1))
    rig.take(rig.pool.lease_ended(rig.now))
    assert rig.outcomes == [(1, "refused", "lease")]
    assert rig.room.bundles == []


def test_more_bundles_than_may_be_on_their_way_run_elsewhere() -> None:
    rig = CodeRig(here=())
    for number in range(FETCHES_LIMIT + 1):
        rig.give(bundle(f"n{number}"), task(number))
    assert rig.outcomes == [(FETCHES_LIMIT, "refused", "full")]


def test_more_bundles_than_may_be_in_use_run_elsewhere() -> None:
    rig = CodeRig(limits=HandlerLimits(bundles=2))
    rig.give(A, task(1))
    rig.give(B, task(2))
    rig.give(C, task(3))
    rig.give(A, task(4))
    assert rig.outcomes == [(3, "refused", "full")]


# Cores that there are.


def test_bundles_share_the_cores_that_there_are() -> None:
    rig = CodeRig(2)
    rig.give(A, task(1), task(2))
    rig.give(B, task(3), task(4))
    rig.give(C, task(5), task(6))
    assert rig.count("handler_cores") == 2
    assert rig.begun == [FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 4]


def test_a_bundle_that_is_alone_has_all_cores() -> None:
    rig = CodeRig(4, loads=False)
    rig.give(A, *[task(number) for number in range(9)])
    assert len(rig.runs(A)) == 4


def test_a_core_that_has_nothing_to_do_gives_way_to_another_bundle() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    rig.ran(1)
    (a,) = rig.runs(A)
    rig.give(B, task(2))
    (b,) = rig.runs(B)
    assert rig.ended == [a] and rig.inside(b) == [2]


def test_the_workers_own_core_rests_while_bundles_have_its_place_and_takes_it_back() -> None:
    rig = CodeRig(1, files=("etl.py",))
    rig.give(A, task(1))
    (own,), (a,) = rig.runs(None), rig.runs(A)
    rig.hand(task(2))
    assert rig.inside(own) == [], "there is one core, and it has something to do"
    rig.ran(1)
    assert (rig.inside(own), rig.ended) == ([2], [a])
    assert rig.count("handler_cores") == 1
    rig.ran(2)
    rig.give(A, task(3))
    assert len(rig.runs(A)) == 1 and rig.runs(None) == [own]


def test_a_core_that_is_busy_for_long_gives_its_place_to_code_that_waits() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    (a,) = rig.runs(A)
    rig.give(B, task(2))
    rig.give(A, task(3))
    assert rig.inside(a) == [1, 3], "its turn has just begun"
    rig.later(TURN_NS)
    rig.give(A, task(4))
    assert rig.inside(a) == [1, 3]
    rig.ran(1, 3)
    (b,) = rig.runs(B)
    assert rig.ended == [a] and rig.inside(b) == [2]
    rig.ran(2)
    assert [rig.inside(core) for core in rig.runs(A)] == [[4]]


def test_the_workers_own_core_rests_after_its_turn() -> None:
    rig = CodeRig(1, files=("etl.py",))
    rig.hand(task(1))
    rig.give(A, task(2))
    rig.later(TURN_NS)
    rig.hand(task(3))
    (own,) = rig.runs(None)
    assert rig.inside(own) == [1]
    rig.ran(1)
    assert rig.ended == [] and rig.inside(*rig.runs(A)) == [2]
    rig.ran(2)
    assert rig.inside(own) == [1, 3]


def test_a_core_stays_when_nobody_waits_for_its_place_any_more() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    rig.give(B, task(2))
    rig.later(TURN_NS)
    rig.recall(2)
    rig.give(A, task(3))
    (a,) = rig.runs(A)
    assert rig.inside(a) == [1, 3] and rig.ended == []


def test_a_core_stays_when_its_rival_found_another_place() -> None:
    rig = CodeRig(2)
    rig.give(A, task(1), task(2), task(3))
    first, second = rig.started[0], rig.later(BEGAN).started[-1]
    assert first != second
    rig.give(A, *[task(number, handler="plain") for number in range(10, 12)])
    rig.give(B, task(20))
    rig.later(TURN_NS)
    rig.exit(second, SEGFAULT)
    assert len(rig.runs(B)) == 1
    rig.give(A, task(21))
    assert 21 in rig.inside(first), "it was asked to leave, and need not any more"


def test_code_that_has_more_than_its_share_gives_some_to_who_has_less() -> None:
    rig = CodeRig(4, plain=("resize",))
    rig.give(A, *[task(number) for number in range(40)])
    assert len(rig.runs(A)) == 4
    rig.give(B, *[task(number) for number in range(50, 90)])
    for _ in range(4):
        rig.later(TURN_NS)
        for core in rig.runs(A):
            for number in rig.inside(core):
                if FIRST + number in rig.room.held:
                    rig.ran(number)
                    break
    assert (len(rig.runs(A)), len(rig.runs(B))) == (2, 2)


def test_cores_that_load_tests_take_are_not_there_for_bundles() -> None:
    rig = CodeRig(2)
    rig.take(rig.pool.set_limit(rig.now, 0))
    rig.give(A, task(1))
    assert rig.outcomes == [(1, "refused", "cores")]
    assert rig.room.fill(rig.now) == []


def test_a_bundle_that_waits_while_load_tests_take_the_cores_goes_elsewhere() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    rig.give(B, task(2))
    rig.take(rig.pool.set_limit(rig.now, 0))
    assert rig.outcomes == [(2, "refused", "cores")]


# Alone.


def test_a_task_with_bounds_runs_in_a_core_of_its_bundle_and_of_its_own() -> None:
    rig = CodeRig(2, files=("etl.py",))
    rig.give(A, task(1, memory_bytes=4096))
    (start,) = [one for one in rig.all(StartHandlers) if one.memory_bytes]
    assert rig.code_of(start.core) == A.digest and rig.inside(start.core) == [1]
    rig.ran(1)
    assert rig.ended == [start.core]


def test_a_task_that_wants_to_be_alone_makes_a_core_of_another_bundle_give_way() -> None:
    rig = CodeRig(2)
    rig.give(A, task(1))
    rig.give(B, task(2))
    rig.ran(1, 2)
    a, b = rig.runs(A), rig.runs(B)
    rig.give(C, task(3, alone=True))
    (c,) = rig.runs(C)
    assert rig.inside(c) == [3] and len(rig.ended) == 1 and rig.ended[0] in (*a, *b)


# Its end.


def test_cores_of_a_bundle_end_after_a_while_without_tasks_and_the_workers_own_stays() -> None:
    rig = CodeRig(3, files=("etl.py",))
    rig.give(A, task(1))
    rig.ran(1)
    (a,) = rig.runs(A)
    rig.later(IDLE_NS - MILLISECOND)
    assert rig.ended == []
    rig.later(MILLISECOND)
    assert rig.ended == [a] and len(rig.runs(None)) == 1
    assert rig.room.bundles == [A.digest], "its process may still read files of it"
    rig.exit(a)
    assert rig.room.bundles == []


def test_a_bundle_that_is_used_again_in_time_keeps_its_core() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    rig.ran(1)
    rig.later(IDLE_NS // 2)
    rig.give(A, task(2))
    rig.ran(2)
    rig.later(IDLE_NS // 2 + SECOND)
    assert rig.ended == [] and len(rig.started) == 1


# What is wrong with it.


def test_a_bundle_that_cannot_be_loaded_is_told_and_tried_again_later() -> None:
    rig = CodeRig(loads=False)
    rig.give(A, task(1))
    rig.broken(1, "a.py:3: raised KeyError")
    rig.exit(1)
    rig.give(A, task(2))
    assert rig.outcomes == [(1, "refused", "bundle"), (2, "refused", "bundle")]
    assert rig.results[0].error == "this worker cannot load the job's handlers: a.py:3: raised KeyError"
    assert rig.results[1].error.endswith("cannot load the handlers of its job: a.py:3: raised KeyError")
    assert rig.all(HandlersBroken) == [HandlersBroken("a.py:3: raised KeyError", A.digest)]
    assert rig.room.problem == "", "the worker's own files are not to blame"
    rig.later(RETRY_NS)
    assert rig.room.bundles == [], "it is forgotten: whoever sends more of it finds out anew"
    rig.give(A, task(3))
    rig.loaded(rig.started[-1])
    assert rig.inside(rig.started[-1]) == [3]


def test_cores_of_a_bundle_that_end_while_they_load_are_a_problem_of_it_alone() -> None:
    rig = CodeRig(1, loads=False, files=("etl.py",))
    rig.loaded(1)
    rig.give(A, task(1))
    for _ in range(STARTS_LIMIT):
        rig.exit(rig.started[-1])
    assert rig.outcomes == [(1, "refused", "bundle")]
    rig.hand(task(2))
    assert rig.inside(1) == [2]


def test_a_bundle_with_a_problem_goes_on_in_the_cores_that_have_loaded_it() -> None:
    rig = CodeRig(2, loads=False, plain=("resize",))
    rig.give(A, task(1), task(2))
    first, second = rig.started
    rig.loaded(first)
    rig.broken(second)
    rig.give(A, task(3))
    rig.ran(1)
    assert 2 in rig.inside(first) and rig.outcomes == [(1, "completed", "")]


def test_a_worker_that_drains_lets_bundles_go_elsewhere() -> None:
    rig = CodeRig(1)
    rig.give(A, task(1))
    rig.give(B, task(2))
    rig.take(rig.pool.drain(rig.now))
    assert rig.outcomes == [(2, "refused", "draining")]


def test_where_no_core_is_left_nothing_is_started_for_what_waits() -> None:
    room = HandlerRoom("w1", (), 0, LIMITS)
    room.use(A, is_here=True)
    room.add(task(1), 100, digest=A.digest)
    assert room.fill(0) == []


def test_tasks_of_a_bundle_that_share_a_core_for_long_get_another() -> None:
    rig = CodeRig(3, files=("etl.py",), loads=False)
    rig.loaded(1)
    rig.give(A, task(1))
    (a,) = rig.runs(A)
    rig.loaded(a)
    rig.give(A, task(2))
    rig.later(BEGAN)
    assert len(rig.runs(A)) == 2
    rig.give(A, task(3))
    rig.later(BEGAN)
    assert len(rig.runs(A)) == 2, "one loads already"
