"""What earlier versions left on disk is read by this one: folders that `make_folders.py` made with each of them.

Decoders pass over a field that they do not know and fill in one that is missing, so a field that was renamed is lost
without a word. Hence whatever is decoded here is encoded again and must still hold all that was on the disk.

`e2e/test_folders_of_earlier_versions.py` starts nodes on these folders. That each file of a later version is refused
and left as it is, is tested in `files/test_voter_file.py`, `files/test_shelf.py`, `dags/test_sqlite.py` and
`history/test_runs.py`; here, that the commands say what to do.
"""

import contextlib
import json
import sqlite3
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from talka.cluster.fencing import Fence
from talka.cluster.leadership.lease_terms import decode_terms, encode_terms
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.voters import decode_config, encode_config
from talka.control.worker.composite import FENCE_KEY
from talka.control.worker.fences import JobFences
from talka.control.worker.obeyed_epoch import ObeyedEpoch
from talka.store.dags.memory import StoreMemory
from talka.store.dags.sqlite import SqliteRecords
from talka.store.files.blobs import Blobs
from talka.store.files.keyring import KeyringFile
from talka.store.files.peers import PeerFile
from talka.store.files.shelf import Shelf
from talka.store.files.signing_key import signing_key
from talka.store.files.voter_file import VoterFile
from talka.wire.entries import decode_checkpoint, decode_entry, encode_checkpoint, encode_entry
from talka.wire.jobs import decode_result, encode_result
from talka.wire.security.bundles import read_word
from talka.wire.security.keys import decode_ring, encode_ring
from tests import processes
from tests.processes import TALKA
from tests.store.make_folders import FOLDERS, LARGE, NOBODY, unpack

PACKS = sorted(FOLDERS.glob("*.tar.xz"))
GROUP = "default/default"
ALL = 1 << 20


@pytest.fixture(params=PACKS, ids=[pack.name.removesuffix(".tar.xz") for pack in PACKS])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


def register(data: Path) -> Acceptor:
    """What the voter of this folder has promised and accepted."""
    file = VoterFile(data, GROUP)
    file.close()
    assert file.problem == ""
    found = Acceptor(file.stored, new_disk_id=0)
    assert loses_nothing(msgspec.msgpack.encode(found.record), file.stored["record"])
    return found


def entries(data: Path) -> dict[str, bytes]:
    return {key: entry.value for key, entry in register(data).entries.items()}


def jobs(data: Path) -> list[Any]:
    """In the order in which they were submitted."""
    found = [decode_entry(value) for key, value in entries(data).items() if key.startswith("job/")]
    return sorted(found, key=lambda job: job.number)


def loses_nothing(encoded: bytes, stored: bytes) -> bool:
    return holds(msgspec.msgpack.decode(encoded), msgspec.msgpack.decode(stored))


def holds(new: Any, old: Any) -> bool:
    """Fields may have been added, those of arrays behind the others."""
    match old:
        case dict():
            return isinstance(new, dict) and all(key in new and holds(new[key], old[key]) for key in old)
        case list():
            return isinstance(new, list) and len(new) >= len(old) and all(map(holds, new, old))
        case _:
            return bool(new == old)


# A manager's folder


@pytest.mark.parametrize(("how", "term"), [("stopped", 1), ("killed", 2)])
def test_a_voter_finds_its_vote_and_its_register(folders: Path, how: str, term: int) -> None:
    data = folders / how / "data-m1"
    record, found = register(data).record, entries(data)
    config, lease = decode_config(found["config"]), decode_terms(found["worker-lease"])

    assert (record.term, record.voted_for, record.admitted) == (term, "m1", True)
    assert found["leader"] == b"m1"
    assert [voter.name for voter in config.voters] == ["m1"]
    assert lease is not None and lease.lease_ns == 5_000_000_000
    assert loses_nothing(encode_config(config), found["config"])
    assert loses_nothing(encode_terms(lease), found["worker-lease"])


@pytest.mark.parametrize(
    ("how", "states"),
    [
        ("stopped", {1: ("completed", 0), 2: ("cancelled", 8)}),
        ("killed", {1: ("completed", 0), 2: ("cancelled", 8), 3: ("running", 0), 4: ("queued", 0)}),
    ],
)
def test_jobs_of_the_register_are_read_whole(folders: Path, how: str, states: dict[int, tuple[str, int]]) -> None:
    data = folders / how / "data-m1"

    found = jobs(data)

    assert {job.number: (job.state, job.exit_code) for job in found} == states
    assert (found[0].key, found[0].owner, found[0].grants[0].worker) == ("first", "m1", "w1")
    assert found[0].order.bundle.env.keys() == {"TARGET"}
    login, shop = found[0].order.workflows
    assert (login.name, login.plan.iterations_per_vu, shop.name, shop.depends_on) == ("Login", 1, "Shop", ("Login",))
    assert ([each.text for each in shop.thresholds], shop.load) == (["response_time.p99 < 10s"], "2 VUs for 4s")
    assert [(node.name, node.tags) for node in shop.nodes] == [("look", {"page": "front"}), ("has_the_token", {})]
    stored = [value for key, value in sorted(entries(data).items()) if key.startswith("job/")]
    assert all(map(loses_nothing, map(encode_entry, found), stored))


def test_a_queued_job_knows_what_it_is_to_send(folders: Path) -> None:
    *_, queued = jobs(folders / "killed" / "data-m1")

    assert (queued.order.bundle.url, queued.order.bundle.request.headers) == (NOBODY, {"x-shop": "1"})
    assert (queued.order.workflows[0].plan.vus, queued.order.workflows[0].plan.shared_iterations) == (2, 20)


def test_the_checkpoint_of_a_running_job_says_what_is_done_and_who_does_the_rest(folders: Path) -> None:
    data = folders / "killed" / "data-m1"
    [running] = [job for job in jobs(data) if job.state == "running"]

    checkpoint = decode_checkpoint(running.checkpoint)

    login, shop = checkpoint.workflows
    assert (checkpoint.attempts, login.name, login.state, shop.name, shop.state) == (
        *(2, "Login", "completed"),
        *("Shop", "running"),
    )
    assert [(attempt.number, attempt.place) for attempt in shop.shards[0].attempts] == [(2, "w1")]
    assert loses_nothing(encode_checkpoint(checkpoint), running.checkpoint)
    stored = Blobs(data / "blobs").get(login.shards[0].attempts[0].digest.hex())
    assert stored is not None
    result = decode_result(stored)
    assert (result.job, result.attempt, result.worker, result.tally.iterations) == (running.job, 1, "w1", 1)
    assert msgspec.msgpack.decode(result.provided["self.context/token"]) == {"digits": [4, 2]}
    assert loses_nothing(encode_result(result), stored)


def test_results_and_bundles_of_a_manager_are_there_and_whole(folders: Path) -> None:
    data = folders / "stopped" / "data-m1"
    completed, cancelled = jobs(data)
    blobs = Blobs(data / "blobs")

    contents = {digest: blobs.get(digest) for digest in blobs.digests()}
    documents = [json.loads(contents[job.result] or b"") for job in (completed, cancelled)]

    assert all(contents.values()) and len(contents) == 6
    assert [(document["schema"], document["status"]) for document in documents] == [
        ("talka.result/1", "completed"),
        ("talka.result/1", "cancelled"),
    ]
    assert [document["job"]["id"] for document in documents] == [completed.job, cancelled.job]
    assert (contents[completed.order.bundle.digest] or b"").startswith(b"PK")


def test_a_manager_keeps_its_key_and_its_word_still_holds(folders: Path) -> None:
    def draw(size: int) -> NoReturn:
        raise AssertionError("a key is there")

    data = folders / "stopped" / "data-m1"
    bundle = jobs(data)[0].order.bundle

    assert len(signing_key(data, draw)) == 32
    word = read_word(bundle.word)
    assert word is not None and word.holds(GROUP, bundle.digest)


def test_a_manager_remembers_the_store_it_served(folders: Path) -> None:
    data = folders / "killed" / "data-m1"
    [(store, facts)] = json.loads((data / "stores").read_bytes()).items()

    memory = StoreMemory(data)

    assert not memory.is_damaged
    assert msgspec.to_builtins(memory.of(int(store))) == facts
    assert facts["epoch"] == 2


# A member's folder


def test_a_member_finds_the_peers_it_met_and_the_keys_of_its_group(folders: Path) -> None:
    peers, ring = PeerFile(folders / "members" / "data-a"), KeyringFile(folders / "members" / "data-a")

    met, stored = peers.load(), ring.load()

    assert (peers.problem, ring.problem) == ("", "")
    assert [(peer.name, peer.address.partition(":")[0]) for peer in met] == [("b", "127.0.0.1")]
    assert stored is not None
    keys = decode_ring(stored)
    assert len(keys.secrets()) == 2
    assert keys.secrets()[keys.primary_id] == "a second secret, for these folders alone"
    assert loses_nothing(encode_ring(keys), stored)


# A worker's folder


@pytest.mark.parametrize(("how", "fences"), [("stopped", 2), ("killed", 3)])
def test_a_worker_knows_whom_it_obeyed(folders: Path, how: str, fences: int) -> None:
    shelf = Shelf(folders / how / "data-w1" / "worker.db")
    shelf.close()
    obeyed = JobFences(0, shelf.stored)

    found = jobs(folders / how / "data-m1")[:fences]

    assert [obeyed.highest(job.job) for job in found] == [(0, 1, 1), (0, 1, 2), (0, 2, 1)][:fences]
    assert [job.fence for job in found] == [(0, 1, 1), (0, 1, 2), (0, 2, 1)][:fences]
    life = 1 if how == "stopped" else 2
    assert msgspec.structs.astuple(Fence(shelf.stored[FENCE_KEY]).highest) == (0, life, 1)
    of_dags = ObeyedEpoch(shelf.stored)
    [(store, facts)] = json.loads((folders / how / "data-m1" / "stores").read_bytes()).items()
    assert (of_dags.epoch, of_dags.life.store, of_dags.life.life) == (life, int(store), facts["life"])


def test_a_worker_still_has_the_result_that_nobody_fetched(folders: Path) -> None:
    shelf = Shelf(folders / "killed" / "data-w1" / "worker.db")
    shelf.close()
    [running] = [job for job in jobs(folders / "killed" / "data-m1") if job.state == "running"]

    [stored] = [value for key, value in shelf.stored.items() if key.startswith(f"result/{running.job}/")]
    result = decode_result(stored)

    assert (result.job, result.attempt, result.worker) == (running.job, 2, "w1")
    assert result.tally.iterations > 50
    assert loses_nothing(encode_result(result), stored)


# The store of dag jobs


ENDED = {
    "completes": (
        "completed",
        {"extract": "completed", "again": "completed", "large": "completed", "load": "completed"},
    ),
    "fails": ("failed", {"bad": "dead", "after": "cancelled"}),
    "cancelled": ("cancelled", {"long": "cancelled"}),
}
WAITING = {
    "delayed": ("running", {"later": "pending"}),
    "retries": ("running", {"bad": "pending"}),
    "goes-on": ("running", {"first": "completed", "gate": "assigned", "last": "pending"}),
    "paused": ("paused", {"one": "pending"}),
}


@pytest.mark.parametrize(("how", "expected"), [("stopped", ENDED), ("killed", ENDED | WAITING)])
def test_dag_jobs_and_their_tasks_are_listed_as_they_stood(
    folders: Path, how: str, expected: dict[str, tuple[str, dict[str, str]]]
) -> None:
    with SqliteRecords(str(folders / how / "jobs.sqlite")) as store:
        found = {
            job.name: (job.state, {task.id: task.state for task in store.tasks(job.number, (), -1, ALL)})
            for job in store.jobs((), ALL, ALL)
        }

        assert found == expected
        assert store.file.problems() == []


def test_outputs_keys_attempts_and_events_of_a_dag_job_are_kept(folders: Path) -> None:
    place = folders / "stopped" / "jobs.sqlite"
    with SqliteRecords(str(place)) as store:
        job = store.job_by_key("pipeline-1")
        assert job is not None
        tasks = {task.id: task for task in store.tasks(job.number, (), -1, ALL)}
        outputs = store.outputs([(job.number, task.index) for task in tasks.values()])
        keyed = store.keyed(["extract-1"])["extract-1"]
        attempts = store.attempts([(job.number, tasks["again"].index)])
        logs = store.logs(job.number, tasks["extract"].index, 0, ALL)
        events = store.events(job.number, 0, ALL)
        [dead] = store.dead_letters((0, 0), ALL)

    assert (job.name, job.counts, job.tasks) == ("completes", {"completed": 4}, 4)
    extracted = {"config": {"n": 1}, "inputs": {}}
    assert json.loads(outputs[job.number, tasks["extract"].index][0]) == extracted
    assert (keyed.job, keyed.task, json.loads(keyed.output)) == (job.id, "extract", extracted)
    assert tasks["load"].depends_on == (tasks["extract"].index, tasks["again"].index)
    assert (tasks["again"].attempts, [(each.attempt, each.cause) for each in attempts]) == (2, [(1, "ConnectionError")])
    assert [log.text for log in logs] == ["attempt 1 of extract"]
    assert [event.kind for event in events] == ["retry"]
    assert (dead.id, dead.cause) == ("bad", "ValueError")
    large = Blobs(Path(f"{place}.blobs")).get(tasks["large"].blob)
    assert large is not None and json.loads(large) == {"config": LARGE, "inputs": {}}


def test_timers_and_schedules_of_a_store_that_was_killed_are_kept(folders: Path) -> None:
    assert (folders / "killed" / "jobs.sqlite-wal").stat().st_size > 0, "nothing is read from the log then"
    with SqliteRecords(str(folders / "killed" / "jobs.sqlite")) as store:
        found = {job.name: (job, store.tasks(job.number, (), -1, ALL)[0]) for job in store.live_jobs()}
        [schedule] = store.schedules()
        leases = [(lease.key, lease.epoch) for lease in store.leases("")]

    job, delayed = found["delayed"]
    assert delayed.ready_ms - job.submitted_ms == 60_000
    _, retried = found["retries"]
    assert (retried.attempts, retried.failures, retried.cause) == (1, 1, "ValueError")
    assert retried.ready_ms > retried.started_ms
    assert (schedule.name, schedule.cron) == ("nightly", "0 3 1 1 *")
    assert json.loads(schedule.spec)["tasks"] == [{"id": "extract", "handler": "echo"}]
    assert leases == [("manager", 2)]


# As users ask


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return processes.run([*TALKA, *words], capture_output=True, text=True, timeout=60)


def talka(*words: str) -> str:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kept_runs_are_listed_and_shown(folders: Path) -> None:
    place = ("--store", f"sqlite:///{folders / 'stopped' / 'history.sqlite'}")

    crossed, held = json.loads(talka("history", "list", "--json", *place))["runs"]

    assert [(run["name"], run["status"], run["exit_code"], run["failed"]) for run in (crossed, held)] == [
        ("shop.py", "completed", 4, 0),
        ("shop.py", "completed", 0, 0),
    ]
    assert f"main  {held['id']}" in talka("history", "baseline", *place)
    shown = talka("history", "show", crossed["id"], *place)
    assert "Shop" in shown and "response_time.p50 < 1ms" in shown
    talka("history", "show", held["id"], *place, "--json", str(folders / "shown.json"))
    document = json.loads((folders / "shown.json").read_bytes())
    assert (document["job"]["id"], document["totals"]["requests"]) == (held["id"], held["requests"])


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_store_is_brought_to_this_version_and_found_whole(folders: Path, how: str) -> None:
    place = ("--store", f"sqlite:///{folders / how / 'jobs.sqlite'}")
    before = run("store", "check", *place)
    talka("store", "migrate", *place)

    assert before.returncode == 2 and "run talka store migrate" in before.stdout + before.stderr
    assert "whole" in talka("store", "check", *place)


# Folders of a later version


def later_voter(folder: Path) -> None:
    name = GROUP.encode()
    header = struct.pack(">8sHHQ", b"talkavtr", 99, len(name), 9) + name
    (folder / "data-m1" / "voter.0").write_bytes(header + struct.pack(">I", zlib.crc32(header)))


def later_database(file: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(sql)


def later_shelf(folder: Path) -> None:
    later_database(folder / "data-w1" / "worker.db", "PRAGMA user_version = 99")


def later_store(folder: Path) -> None:
    later_database(folder / "jobs.sqlite", "INSERT INTO talka_tasks_version VALUES (99)")


def later_history(folder: Path) -> None:
    later_database(folder / "history.sqlite", "INSERT INTO talka_history_version VALUES (99)")


NODE = ("--secret-file", "secret", "--data-dir")
LATER: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (later_voter, ("manager", "--name", "m1", *NODE, "data-m1", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0")),
    (later_shelf, ("worker", "--name", "w1", *NODE, "data-w1", "--seed", "127.0.0.1:1")),
    (
        later_store,
        (
            *("manager", "--name", "m1", *NODE, "data-m1", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0"),
            *("--store", "sqlite:///jobs.sqlite"),
        ),
    ),
    (later_history, ("history", "list", "--store", "sqlite:///history.sqlite")),
]


@pytest.mark.parametrize(("make_later", "words"), LATER, ids=["voter", "shelf", "store", "history"])
def test_what_a_later_version_wrote_is_refused_with_a_remedy(
    folders: Path, monkeypatch: pytest.MonkeyPatch, make_later: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folders / "stopped")
    make_later(folders / "stopped")

    done = run(*words)

    assert done.returncode == 2, done
    assert "was written by a later version of talka" in done.stderr
    assert "is 99, known here is" in done.stderr
    assert "use that version or a newer one" in done.stderr
