"""What code that was submitted can read on its worker: each thing is tried by a handler and by a test, on real
processes."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import talka
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import DagCluster
from tests.e2e.job_cluster import until

TRIES = '''
import glob, json, os, time

def tried(path, mode="rb"):
    """What became of opening it."""
    try:
        with open(path, mode) as file:
            if path.endswith("/mem"):
                file.seek(int(open(path[:-3] + "maps").readline().split("-")[0], 16))
            return "read" if file.read(1) or mode != "rb" else "empty"
    except OSError as error:
        return type(error).__name__

def settled(path):
    """A core that has just been started hides itself before it is told anything: it is looked at until it has."""
    for _ in range(200):
        if (became := tried(path)) != "read":
            break
        time.sleep(0.05)
    return became

def listed(path):
    try:
        return "read" if os.listdir(path) else "empty"
    except OSError as error:
        return type(error).__name__

def is_core(path):
    try:
        with open(path, "rb") as file:
            return b"talka.engine" in file.read()
    except OSError:
        return False

def facts(places):
    """`places` names files of the worker."""
    worker = os.getppid()
    fds = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
           if os.path.lexists(f"/proc/self/fd/{name}")}
    found = {name: tried(path) if not path.endswith("/") else listed(path) for name, path in places.items()}
    for name in ("environ", "mem", "maps", "auxv"):
        found[f"worker {name}"] = tried(f"/proc/{worker}/{name}")
    found["worker fds"] = listed(f"/proc/{worker}/fd")
    others = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/cmdline") if is_core(path)]
    became = {settled(f"/proc/{pid}/environ") for pid in others if pid != os.getpid()}
    found["other cores"] = sorted(became)
    files = [to for fd, to in fds.items() if fd > 2 and not to.startswith(("socket:", "pipe:", "anon_inode:", "/dev/"))]
    return {"found": found, "files": [to for to in files if "/proc/" not in to and "urandom" not in to],
            "environ": dict(os.environ), "uid": os.getuid(), "groups": os.getgroups(), "cwd": os.getcwd(),
            "home": os.path.expanduser("~"), "sockets": sum(to.startswith("socket:") for to in fds.values())}
'''
HANDLERS = (
    TRIES
    + """
from talka import handler

@handler("try")
async def attempt(task):
    if os.access(".", os.W_OK):
        open("mine", "w").close()
    return facts(task.config)

@handler("wait")
async def wait(task):
    import asyncio
    await asyncio.Event().wait()
"""
)
LOAD = (
    TRIES
    + """
from talka import *

class Tries(Workflow):
    vus = 1
    iterations = 1

    @step()
    async def go(self) -> CustomResponse[int]:
        told = json.dumps(facts(json.loads(os.environ["PLACES"])))
        with open(os.environ["OUT"], "w") as file:
            file.write(told)
        return CustomResponse(1)
"""
)
REFUSED = ("PermissionError", "FileNotFoundError", "ProcessLookupError")


def python_for(user: pwd.struct_passwd) -> list[str] | None:
    """A Python that this user can run Talka with, and the path where it is found."""
    for python in (sys.executable, "/usr/bin/python3"):
        words = [python, "-c", "import ssl, sqlite3, talka.engine.load.core_process, talka.nodes.worker"]
        own = [str(Path(talka.__file__).parent.parent), *(place for place in sys.path if "site-packages" in place)]
        path = os.pathsep.join(own)
        with_path = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
        try:
            done = subprocess.run(
                words, user=user.pw_uid, group=user.pw_gid, extra_groups=[], env=with_path, cwd="/", capture_output=True
            )
        except OSError:
            continue
        if done.returncode == 0:
            return [python, path]
    return None


class Confined(DagCluster):
    """Workers are started by a Python that other users can run, as `worker_user`; cores run as the worker says."""

    python: str
    path: str
    worker_user: pwd.struct_passwd | None = None

    def start_worker(self, name: str, *options: str, **more: Any) -> Any:
        words = [
            *(self.python, "-m", "talka", "worker", "--name", name, "--seed", self.place("m1").advertised),
            *("--secret-file", str(self.secret_file), "--data-dir", str(self.data(name)), "--cores", "2", "--json"),
            *("--handlers", str(self.handlers_file)),
        ]
        env = {key: text for key, text in self._environment.items() if not key.startswith("TALKA_")}
        env |= {
            "PYTHONPATH": self.path,
            "TALKA_TOKEN": "token-of-the-worker",
            "DB_PASSWORD": "hidden",
            "LANG": "C.UTF-8",
        }
        if self.worker_user is None:
            return self._spawn(name, words, env)
        user = self.worker_user
        os.chown(self.secret_file, user.pw_uid, user.pw_gid)
        self.data(name).mkdir(mode=0o700)
        os.chown(self.data(name), user.pw_uid, user.pw_gid)
        switch = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        return self._spawn(name, [*switch, *words], {**env, "HOME": str(self.folder)})


@pytest.fixture(params=["root", "nobody"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Confined]:
    """A worker of root, whose cores are another user's; and one of a user without rights, whose cores are the
    same's."""
    if os.geteuid() != 0 or not Path("/proc/self/environ").exists():
        pytest.skip("only root can start processes of other users, and only Linux shows processes as files")
    user = pwd.getpwnam("nobody")
    python = python_for(user)
    if python is None or (request.param == "nobody" and shutil.which("setpriv") is None):
        pytest.skip("no Python here can be run by other users")
    # Not below pytest's own folder, which is closed to others.
    folder = Path("/var/tmp") / f"talka-test-{os.getpid()}-{request.param}"
    folder.mkdir(mode=0o755)
    cluster = Confined(folder, 1, 2, handlers=HANDLERS)
    cluster.python, cluster.path = python
    cluster.worker_user = user if request.param == "nobody" else None
    cluster.handlers_file.chmod(0o644)
    for words in (("init", "pki"), ("issue", "pki", "--name", "w1", "--role", "worker")):
        made = cluster.talka("certs", *words)
        assert made.code == 0, made.text
    try:
        cluster.start_nodes()
        yield cluster
        assert not any("Traceback" in text for text in cluster.mistakes().values())
    finally:
        cluster.close()
        shutil.rmtree(folder)


def places(cluster: Confined) -> dict[str, str]:
    data = cluster.data("w1")
    return {
        "secret": str(cluster.secret_file),
        "certificate's key": str(cluster.folder / "pki" / "w1.key"),
        "worker.db": str(data / "worker.db"),
        "keys": str(data / "keys"),
        "lock": str(data / "lock"),
        "data folder": f"{data}/",
        "bundles": f"{data}/bundles/",
    }


def check(cluster: Confined, told: Any) -> None:
    found, environ = told["found"], told["environ"]
    is_other = cluster.worker_user is None
    for name, became in found.items():
        if name.startswith("worker "):
            assert became in REFUSED, f"{name}: {became}"
        elif name == "other cores":
            assert set(became) <= set(REFUSED), became
        elif is_other:
            assert became in REFUSED, f"{name}: {became}"
    if not is_other:
        assert found["secret"] == "read", "of the same user files are within reach, and the documents say so"
    assert not [name for name in environ if name.startswith("TALKA_") or name in ("DB_PASSWORD", "LEDGER")], environ
    assert environ["LANG"] == "C.UTF-8" and "PATH" in environ
    assert told["uid"] == pwd.getpwnam("nobody").pw_uid and 0 not in told["groups"]
    assert told["files"] == [], "no descriptor of the worker's files is inherited"


def test_handler_reads_nothing_of_its_worker(cluster: Confined) -> None:
    cluster.dag("beside", {"id": "beside", "handler": "wait"})
    for number in range(3):  # one of them is in a core beside another
        job = cluster.dag(f"try-{number}", {"id": "t", "handler": "try", "config": places(cluster)})
        state = cluster.wait_for_end(job)["state"]
        task = cluster.ask_api("GET", f"/v1/jobs/{job}/tasks/t").good()
        assert state == "completed", task
        told = task["output"]
        check(cluster, told)
        assert told["sockets"] <= 3, "its own to the worker, and the pair of its event loop"


def test_test_reads_nothing_of_its_worker(cluster: Confined) -> None:
    file = cluster.folder / "tries.py"
    file.write_text(LOAD)
    out = cluster.folder / "out"
    out.mkdir()
    out.chmod(0o777)
    env = {"PLACES": json.dumps(places(cluster)), "OUT": str(out / "facts")}
    ended = cluster.start_submit(file, "--cores", "1", "--env", "PLACES", "--env", "OUT", env=env).ended(SOON_S)
    assert ended.code == 0, ended.text
    told = json.loads((out / "facts").read_text())
    assert told["environ"].pop("PLACES")
    check(cluster, told)


def test_folders_of_cores_are_gone_with_them(cluster: Confined) -> None:
    if cluster.worker_user is not None:
        pytest.skip("cores of the worker's own user have no folders of their own")
    job = cluster.dag("try", {"id": "t", "handler": "try", "config": {}})
    cluster.wait_for_end(job)
    told = cluster.ask_api("GET", f"/v1/jobs/{job}/tasks/t").good()["output"]
    home = Path(told["home"])
    assert told["cwd"] == told["home"] and home.stat().st_mode & 0o777 == 0o700 and (home / "mine").exists()
    cluster.stop("w1")
    until(lambda: not home.parent.exists(), cluster, SOON_S, "folders of cores to be removed")
