"""Members as processes: Serf's and ours behind one interface, all read by one loop.

Every line is stamped as it arrives. A fleet knows who is up, what each member believes, who was declared lost rightly
and who wrongly.
"""

import base64
import ctypes
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, Protocol

FIRST_PORT = 21000
FIRST_RPC_PORT = 23000
SEEDS = 3
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
LIBC = ctypes.CDLL(None, use_errno=True)


class Broken(Exception):
    """A scenario could not be measured; the sentence says why."""


class Event(NamedTuple):
    kind: str
    """ready, joined, returned, lost, left, leader, elected, stepped-down; marked: its own timer ran out (Serf)."""
    name: str = ""
    boot: str = ""
    """The life it is about, where the line says so."""
    own: bool = False
    """Whether the member's own timer ran out, rather than another's."""
    term: int = 0
    token: tuple[int, ...] = ()
    """Grows with every leader_term."""


class Kind(Protocol):
    label: str

    def command(self, name: str, port: int, seeds: list[int]) -> list[str]:
        """Starts a member; `seeds` are the ports of others that are up."""

    def parse(self, line: str) -> Event | None:
        """None for a line that says nothing of this."""


class Serf:
    """Debian's Serf, at the settings it ships for local networks."""

    label = "serf-lan"
    _MARKS = (
        (" serf: EventMemberJoin: ", "joined"),
        (" serf: EventMemberFailed: ", "lost"),
        (" serf: EventMemberLeave: ", "left"),
        (" memberlist: Marking ", "marked"),
    )

    def __init__(self) -> None:
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()

    def command(self, name: str, port: int, seeds: list[int]) -> list[str]:
        rpc_port = port - FIRST_PORT + FIRST_RPC_PORT
        joins = [f"-join=127.0.0.1:{seed}" for seed in seeds]
        return [
            *("serf", "agent", f"-node={name}", f"-bind=127.0.0.1:{port}", f"-rpc-addr=127.0.0.1:{rpc_port}"),
            *("-profile=lan", f"-encrypt={self._key}", *joins),
        ]

    def parse(self, line: str) -> Event | None:
        if "Serf agent running!" in line:
            return Event("ready")
        for mark, kind in self._MARKS:
            _, found, rest = line.partition(mark)
            if found:
                return Event(kind, rest.split()[0])
        return None


class Talka:
    def __init__(self, preset: str, folder: Path, voters: list[str] | None = None) -> None:
        self.label = preset
        self._folder = folder
        self._voters = voters or []
        self.secret_file = folder / "secret"
        self.secret_file.write_text(secrets.token_urlsafe(48) + "\n")
        self.secret_file.chmod(0o600)

    def command(self, name: str, port: int, seeds: list[int]) -> list[str]:
        data = self._folder / name  # the same at every start: a voter remembers
        data.mkdir(exist_ok=True)
        others = [word for seed in seeds for word in ("--seed", f"127.0.0.1:{seed}")]
        return [
            *(sys.executable, "-m", "talka", "member", "--name", name, "--bind", f"127.0.0.1:{port}", *others),
            *("--secret-file", str(self.secret_file), "--data-dir", str(data), "--preset", self.label, "--json"),
            *(("--voters", ",".join(self._voters)) if self._voters else ()),
        ]

    def parse(self, line: str) -> Event | None:
        if not line.startswith("{"):
            return None
        try:
            said = json.loads(line)
        except ValueError:
            return None
        boot, token = said.get("boot"), said.get("token")
        return Event(
            kind=str(said.get("event", "")),
            name=str(said.get("name", "")),
            boot="" if boot is None else str(boot),
            own=bool(said.get("own")),
            term=int(said.get("term") or 0),
            token=tuple(token) if isinstance(token, list) else () if token is None else (token,),
        )

    def leader_command(self, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "talka", "cluster", "leader", "--to", f"127.0.0.1:{port}"),
            *("--secret-file", str(self.secret_file), "--json"),
        ]


class Member:
    """One name and its present process: what it said, and so what it believes."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.last_lines: deque[str] = deque(maxlen=12)
        self.forget()

    def forget(self) -> None:
        """A new life knows nothing."""
        self.is_ready = False
        self.boot = ""
        self.view: set[str] = set()
        self.marked = ""
        self.leader = ""
        self.term = 0
        self.reigns = False
        self._rest = b""

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def lines(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


class FalseVerdict(NamedTuple):
    phase: str
    at_s: float
    """Since the fleet began."""
    by: str
    about: str
    own: bool


class Election(NamedTuple):
    at: float
    name: str
    term: int
    token: tuple[int, ...]


class Death(NamedTuple):
    """One kill -9, and when each survivor that knew the member reported it, by arrival of the line."""

    name: str
    at: float
    knew: list[str]
    reports: dict[str, float]

    def unaware(self, among: Callable[[str], bool]) -> list[str]:
        return [name for name in self.knew if among(name) and name not in self.reports]

    def all_knew_after(self, among: Callable[[str], bool]) -> float | None:
        if self.unaware(among):
            return None
        return max((at for name, at in self.reports.items() if among(name)), default=self.at) - self.at

    def first_knew_after(self) -> float | None:
        return min(self.reports.values()) - self.at if self.reports else None


def die_with_parent() -> None:
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)


class Fleet:
    """Starts, kills and hears members of one kind. Use in a `with`: all end with it."""

    def __init__(self, kind: Kind, size: int) -> None:
        self.kind = kind
        self.members = {f"m{index}": Member(f"m{index}", FIRST_PORT + index) for index in range(size)}
        self.phase = "start"
        self.false_verdicts: list[FalseVerdict] = []
        self.elections: list[Election] = []
        self.death: Death | None = None
        self._selector = selectors.DefaultSelector()
        self._begun_at = time.monotonic()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.process is not None:
                member.process.kill()
        for member in self.members.values():
            self._bury(member)
        self._selector.close()

    # Starting and ending

    def start(self, name: str) -> None:
        member = self.members[name]
        member.forget()
        seeds = [
            self.members[other].port
            for other in list(self.members)[:SEEDS]
            if other != name and self.members[other].is_up
        ]
        process = subprocess.Popen(
            self.kind.command(name, member.port, seeds),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # an interrupt at the terminal is for this process alone, which then ends them
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, member)
        member.process = process

    def start_all(self, stagger_s: float, patience_s: float) -> float:
        """Seeds one after the other, then the rest; seconds until all see all."""
        begun_at = time.monotonic()
        for index, name in enumerate(self.members):
            self.start(name)
            if index < SEEDS:
                self.wait(lambda member=self.members[name]: member.is_ready, 30, f"{name} to be ready")  # type: ignore[misc]
            self.listen(stagger_s)
        self.wait_until_all_see_all(patience_s)
        return time.monotonic() - begun_at

    def kill(self, name: str) -> Death:
        """kill -9; from now on reports of its loss are right."""
        member = self.members[name]
        assert member.process is not None
        self.poll(0)  # what was said before the kill is not about it
        knew = [other.name for other in self.up() if other is not member and name in other.view]
        self.death = Death(name, time.monotonic(), knew, {})
        member.process.kill()
        self._bury(member)
        return self.death

    def kill_all(self) -> None:
        self.death = None
        for member in self.up():
            os.kill(member.pid, signal.SIGKILL)
        for member in self.up():
            self._bury(member)

    def _bury(self, member: Member) -> None:
        process, member.process = member.process, None
        if process is not None:
            assert process.stdout is not None
            self._selector.unregister(process.stdout)
            process.stdout.close()
            process.wait()

    # Hearing

    def poll(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            member: Member = key.data
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
            try:
                data = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                continue
            at = time.monotonic()
            if not data:
                raise Broken(self._end_of(member))
            for line in member.lines(data):
                member.last_lines.append(line)
                event = self.kind.parse(line)
                if event is not None:
                    self._take(at, member, event)

    def _end_of(self, member: Member) -> str:
        process = member.process
        assert process is not None
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
        self._bury(member)
        said = "\n    ".join(member.last_lines)
        return (
            f"{self.kind.label}: {member.name} ended without the bench's doing, exit {process.returncode}"
            f" (negative: a signal from outside); it said last:\n    {said}"
        )

    def listen(self, seconds: float) -> None:
        """Pass this time, hearing everyone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.poll(left)

    def holds_within(self, is_so: Callable[[], bool], patience_s: float) -> bool:
        until = time.monotonic() + patience_s
        while not is_so():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self.poll(min(left, 1.0))
        return True

    def wait(self, is_so: Callable[[], bool], patience_s: float, what: str) -> None:
        if not self.holds_within(is_so, patience_s):
            raise Broken(f"{self.kind.label}: waited {patience_s:.0f} s for {what} in vain")

    def _take(self, at: float, member: Member, event: Event) -> None:
        match event.kind:
            case "ready":
                member.is_ready = True
                member.boot = event.boot
            case "joined" | "returned":
                member.view.add(event.name)
            case "left":
                member.view.discard(event.name)
            case "marked":
                member.marked = event.name
            case "lost":
                self._lost(at, member, event)
            case "leader":
                member.leader, member.term = event.name, event.term
            case "elected":
                member.leader, member.term, member.reigns = member.name, event.term, True
                self.elections.append(Election(at, member.name, event.term, event.token))
            case "stepped-down":
                member.reigns = False
            case _:
                pass  # suspicions and alarms are neither views nor verdicts

    def _lost(self, at: float, member: Member, event: Event) -> None:
        own = event.own or member.marked == event.name
        member.marked = ""
        about = self.members.get(event.name)
        if about is None:
            raise Broken(f"{self.kind.label}: {member.name} lost {event.name!r}, which never was")
        if about.is_up:
            if event.boot and about.boot and event.boot != about.boot:
                return  # an earlier life, which was killed
            self.false_verdicts.append(FalseVerdict(self.phase, at - self._begun_at, member.name, event.name, own))
        elif self.death is not None and self.death.name == event.name:
            self.death.reports.setdefault(member.name, at)
        member.view.discard(event.name)

    # What they believe

    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_up]

    def unseen(self) -> list[tuple[str, str]]:
        """Who does not see whom, of those that are up."""
        up = self.up()
        return [
            (member.name, other.name)
            for member in up
            for other in up
            if other is not member and other.name not in member.view
        ]

    def all_see_all(self) -> bool:
        up = self.up()
        names = {member.name for member in up}
        return all(names <= member.view | {member.name} for member in up)

    def wait_until_all_see_all(self, patience_s: float) -> None:
        if not self.holds_within(self.all_see_all, patience_s):
            unseen = self.unseen()
            some = ", ".join(f"{one} does not see {other}" for one, other in unseen[:5])
            raise Broken(
                f"{self.kind.label}: after {patience_s:.0f} s not all see all ({len(unseen)} pairs missing: {some})"
            )

    def agreed_leader(self) -> str:
        """The one leader that all who are up name under one term, itself included; empty where there is none."""
        up = self.up()
        named = {(member.leader, member.term) for member in up}
        if len(named) != 1:
            return ""
        (leader, _), *_ = named
        reigning = [member.name for member in up if member.reigns]
        return leader if reigning == [leader] else ""
