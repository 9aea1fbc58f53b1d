"""The bundled demonstration: a server, and a test against it."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from talka.cli.command import command
from talka.cli.output import say, tell
from talka.cli.run import cores, html, load_options
from talka.clock import monotonic_ns
from talka.errors import Invalid, Unavailable
from talka.units import SECOND

DEMO_PORT = 8400
START_LIMIT_S = 20
STOP_LIMIT_S = 5
LISTENING = re.compile(rb"listening on (\S+)\n")


class NoDemoServer(Unavailable):
    """The server that the demonstration needs did not start."""


@command(
    "demo-server",
    "Serve HTTP for tests to aim at: /, /json, /echo, /delay/MS, /status/CODE, /bytes/N and more.",
    ("talka demo-server", f"at http://127.0.0.1:{DEMO_PORT} until Ctrl-C"),
    ("talka demo-server --port 0", "at any free port, which it prints"),
)
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to listen on (127.0.0.1).")
@click.option("--port", default=str(DEMO_PORT), metavar="N", help=f"Port to listen on ({DEMO_PORT}); 0: any free one.")
@click.option("--tls", is_flag=True, help="Speak HTTPS, with a certificate made for the occasion.")
@click.option("--certificate", metavar="FILE", help="With --tls: write the certificate here, for clients to trust.")
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
def demo_server(host: str, port: str, tls: bool, certificate: str | None, until_stdin_ends: bool) -> int:
    from talka.cli.demo.server import DemoCannotListen, serve
    from talka.work.durations import shown

    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise Invalid(f"--port = {shown(port)} is not a port: write a whole number from 0 (any free one) to 65535")
    if certificate is not None and not tls:
        raise Invalid("--certificate goes with --tls: plain HTTP has none")
    if until_stdin_ends:
        threading.Thread(target=stop_when_stdin_ends, daemon=True).start()
    try:
        serve(
            host,
            int(port),
            tls=tls,
            on_ready=lambda url: say(f"listening on {url}"),
            certificate=Path(certificate) if certificate is not None else None,
        )
    except DemoCannotListen as error:
        raise Invalid(str(error)) from None
    return 0


def stop_when_stdin_ends() -> None:
    """Whoever started us holds the other end, and lets go of it when it ends, however it ends."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@command(
    "demo",
    "Start the bundled server, run a bundled test against it, and show the summary.",
    ("talka demo", "50 customers each second for 5 s"),
    ("talka demo --rate 500/s --duration 10s", "more of them, for longer"),
)
@load_options
@html
@cores
def demo(**flags: Any) -> int:
    from talka.cli.config import layer_of_flags, pass_variables, settled
    from talka.cli.jobs import Reporting, opening_of, plan

    # The command's own flags alone: the demonstration is the same in every folder.
    settings = settled([layer_of_flags(flags)])

    test = Path(__file__).with_name("workflow.py")
    with running_demo_server() as url:
        pass_variables([f"TALKA_DEMO_URL={url}"])
        job = plan(str(test), settings)
        tell(f"a demo server listens on {url}; the test is {test}: {job.specs[0].shape.describe()}")
        reporting = Reporting(job, settings)
        code = reporting.report(reporting.carry_out(opening_of(job)))
    if settings.html is not None:
        tell(f"The report is in {settings.html}.")
    us = own_command()
    tell(f"Next: start `{us} demo-server`, then try `{us} run http://127.0.0.1:{DEMO_PORT}/delay/20 --rate 200/s`.")
    return code


def own_command() -> str:
    """What to type to call this very command: its name alone where the shell finds it by that."""
    found = shutil.which("talka")
    own = Path(sys.argv[0])
    if own.name != "talka" or not own.exists() or (found is not None and os.path.samefile(found, own)):
        return "talka"
    return os.path.relpath(own) if own.resolve().is_relative_to(Path.cwd()) else str(own)


@contextlib.contextmanager
def running_demo_server(*flags: str) -> Iterator[str]:
    """The URL of a server in a process of its own, which ends when we do."""
    server = subprocess.Popen(
        [sys.executable, "-m", "talka", "demo-server", "--port", "0", "--until-stdin-ends", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C at the terminal stops the test; the server must live to answer what is still under way.
        start_new_session=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield announced_url(server)
    finally:
        server.stdin.close()
        try:
            server.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def announced_url(server: "subprocess.Popen[bytes]") -> str:
    """The address the server prints once it listens."""
    assert server.stdout is not None
    printed, give_up_at_ns = b"", monotonic_ns() + START_LIMIT_S * SECOND
    while not printed.endswith(b"\n") and (left_ns := give_up_at_ns - monotonic_ns()) > 0:
        ready, _, _ = select.select([server.stdout], [], [], left_ns / SECOND)
        part = os.read(server.stdout.fileno(), 4096) if ready else b""
        if not part:
            break
        printed += part
    found = LISTENING.fullmatch(printed)
    if found is None:
        raise NoDemoServer("the demo server did not start: run `talka demo-server` to see why")
    return found[1].decode()
