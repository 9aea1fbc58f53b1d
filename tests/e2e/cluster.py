"""Members as processes: started, killed, asked, and heard line by line. Every wait has an end and an explanation."""

import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests import processes
from tests.e2e.networks import Network, Place
from tests.processes import TALKA

SAID_LIMIT = 15
"""Lines of each member that a failed wait shows."""
SOON_S = 60.0
"""For what comes by itself: on a busy machine late, and a wait costs nothing once it has come."""
METRIC = re.compile(r'^(talka_\w+)(?:\{\w+="([^"]*)"\})? (\S+)$', re.MULTILINE)


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class Life:
    """One process of one member."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: Path) -> None:
        self.process = process
        self.errors = errors
        self.events: list[dict[str, Any]] = []
        self.view: set[str] = set()
        self.leader = ""
        self.term = 0
        self.reigns = False
        self.is_over = False
        self._rest = b""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events.append(event)
            match event["event"]:
                case "joined" | "returned":
                    self.view.add(event["name"])
                case "lost" | "left":
                    self.view.discard(event["name"])
                case "leader":
                    self.leader, self.term = event["name"], event["term"]
                case "elected":
                    self.reigns = True
                case "stepped-down":
                    self.reigns = False

    def said(self, kind: str, /, **facts: Any) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["event"] == kind and all(event.get(key) == value for key, value in facts.items())
        ]


class Cluster:
    """Members of one network. `up` has the present life of each, `lives` all of them, in order."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.up: dict[str, Life] = {}
        self.lives: dict[str, list[Life]] = {}
        self.secret = new_secret()
        self.secret_file = self.write_secret("secret", self.secret)
        self._selector = selectors.DefaultSelector()
        self._options: dict[str, list[str]] = {}

    def write_secret(self, name: str, *lines: str) -> Path:
        file = self.folder / name
        file.write_text("".join(f"{line}\n" for line in lines))
        file.chmod(0o600)
        return file

    def place(self, name: str) -> Place:
        return self.network.place(name)

    # Starting and ending

    def start(
        self,
        name: str,
        *options: str,
        seeds: Iterable[str] = (),
        secret_file: Path | None = None,
        data: str = "",
        preset: str = "fast",
    ) -> Life:
        """`seeds` are names of members. `data`: another data folder than the one it always has."""
        place = self.place(name)
        folder = self.folder / f"data-{data or name}"
        words = [
            *(*place.prefix, *TALKA, "member", "--name", name, "--bind", place.bind),
            *(() if place.advertised == place.bind else ("--advertise", place.advertised)),
            *(word for seed in seeds for word in ("--seed", self.place(seed).advertised)),
            *("--secret-file", str(secret_file or self.secret_file), "--data-dir", str(folder)),
            *("--preset", preset, "--json", *options),
        ]
        return self._spawn(name, words)

    def _spawn(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> Life:
        lives = self.lives.setdefault(name, [])
        errors = self.folder / f"{name}-{len(lives)}.stderr"
        with errors.open("wb") as stream:
            process = processes.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                cwd=self.folder,
                env=environment,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        life = Life(process, errors)
        lives.append(life)
        self.up[name] = life
        self._selector.register(process.stdout, selectors.EVENT_READ, life)
        self.network.started(name, process.pid)
        return life

    def start_all(self, names: Iterable[str], *options: str, within_s: float = SOON_S, **more: Any) -> None:
        """All at once, the first one as the seed of the others, until they agree."""
        first, *rest = names
        self.start(first, *options, **more)
        for name in rest:
            self.start(name, *options, seeds=[first], **more)
        self.wait_until_all_agree(within_s)

    def kill(self, *names: str) -> None:
        """kill -9 of all of them at once."""
        lives = [self.up.pop(name) for name in names]
        for life in lives:
            life.process.kill()
        for life in lives:
            self._bury(life)

    def stop(self, name: str) -> int:
        """SIGTERM; its exit code."""
        life = self.up[name]
        life.process.terminate()
        self.wait(lambda: life.is_over, SOON_S, f"{name} to stop")
        del self.up[name]
        return life.process.wait(SOON_S)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.up[name].process.send_signal(number)

    def close(self) -> None:
        for life in self.up.values():
            life.process.kill()
        for life in self.up.values():
            self._bury(life)
        self.up.clear()
        self._selector.close()

    def _bury(self, life: Life) -> None:
        if not life.is_over:
            self._read_all(life)
            self._end(life)
        life.process.wait(SOON_S)

    def _read_all(self, life: Life) -> None:
        assert life.process.stdout is not None
        life.process.wait(SOON_S)
        while data := os.read(life.process.stdout.fileno(), 1 << 16):
            life.take(data)

    def _end(self, life: Life) -> None:
        assert life.process.stdout is not None
        life.is_over = True
        self._selector.unregister(life.process.stdout)
        life.process.stdout.close()

    def mistakes(self) -> dict[str, str]:
        """What members said on stderr, by file."""
        files = [life.errors for lives in self.lives.values() for life in lives]
        return {file.name: text for file in files if (text := file.read_text())}

    # Hearing

    def hear(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            life: Life = key.data
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                life.take(data)
            else:
                self._end(life)

    def listen(self, seconds: float) -> None:
        """Pass this time, hearing everyone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.hear(left)

    def wait(self, is_so: Callable[[], object], within_s: float, what: str) -> float:
        """How long it took."""
        begun_at = time.monotonic()
        while not is_so():
            left = begun_at + within_s - time.monotonic()
            if left <= 0:
                raise AssertionError(f"waited {within_s:g} s for {what} in vain\n{self.story()}")
            self.hear(min(left, 1.0))
        return time.monotonic() - begun_at

    def wait_for(self, who: str, kind: str, within_s: float = SOON_S, /, **facts: Any) -> dict[str, Any]:
        """The first such event of its present life."""
        life = self.up[who]
        self.wait(lambda: life.said(kind, **facts), within_s, f"{who} to say {kind} {facts or ''}")
        return life.said(kind, **facts)[0]

    def story(self) -> str:
        lines = []
        for name, life in self.up.items():
            end = f", ended with {life.process.poll()}" if life.is_over else ""
            lines.append(f"{name} sees {sorted(life.view)}, leader {life.leader!r} of term {life.term}{end}")
            lines += [f"    {json.dumps(event)}" for event in life.events[-SAID_LIMIT:]]
            lines += [f"    ! {line}" for line in life.errors.read_text().splitlines()[-SAID_LIMIT:]]
        return "\n".join(lines)

    # What they believe

    def members_up(self) -> dict[str, Life]:
        return self.up

    def all_agree(self) -> bool:
        lives = self.members_up()
        return all(life.view == set(lives) - {name} for name, life in lives.items())

    def wait_until_all_agree(self, within_s: float = SOON_S) -> float:
        return self.wait(self.all_agree, within_s, f"{', '.join(self.up)} to see each other and nobody else")

    def leader(self) -> str:
        """The one that all who are up name under one term, itself included; empty where there is none."""
        lives = self.members_up()
        named = {(life.leader, life.term) for life in lives.values()}
        if len(named) != 1:
            return ""
        (leader, _), *_ = named
        return leader if [name for name, life in lives.items() if life.reigns] == [leader] else ""

    def wait_for_leader(self, within_s: float = SOON_S) -> str:
        self.wait(self.leader, within_s, "one leader that all agree on")
        return self.leader()

    def wait_for_voters(self) -> str:
        """Until all voters of a new group take part. A majority founds it, and the leader brings the others in: without
        it before that, those are too few of whom the group knows the disks."""

        def all_take_part() -> bool:
            return all(self.told(name, "leader")["phase"] == "active" for name in self.members_up())

        self.wait_for_leader()
        self.wait(all_take_part, SOON_S, "all voters to take part")
        return self.wait_for_leader()

    def said(self, kind: str, /, **facts: Any) -> list[tuple[str, dict[str, Any]]]:
        """(who, event) of all lives of all members."""
        return [
            (name, event) for name, lives in self.lives.items() for life in lives for event in life.said(kind, **facts)
        ]

    # Asking

    def ask(
        self, name: str, *words: str, secret_file: Path | None = None, at: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """`talka cluster …` to this member, from where it stands."""
        place = self.place(name)
        self.hear(0)
        return processes.run(
            [
                *(*place.prefix, *TALKA, "cluster", *words, "--to", at or place.bind),
                *("--secret-file", str(secret_file or self.secret_file)),
            ],
            capture_output=True,
            text=True,
            timeout=SOON_S,
            cwd=self.folder,
        )

    def told(self, name: str, *words: str, **more: Any) -> Any:
        """The JSON it answers."""
        answer = self.ask(name, *words, "--json", **more)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def states(self, name: str) -> dict[str, str]:
        return {member["name"]: member["state"] for member in self.told(name, "members")}

    def wait_for_states(self, name: str, states: dict[str, str], within_s: float = SOON_S) -> None:
        """A member may be suspected for a moment, and refutes: that is asked for again, while members are heard."""
        until = time.monotonic() + within_s
        while (found := self.states(name)) != states:
            assert time.monotonic() < until, f"{name} sees {found}, not {states}\n{self.story()}"
            self.hear(0.1)

    def wait_for_leader_told(self, name: str, *words: str, within_s: float = SOON_S) -> dict[str, Any]:
        """What it answers about the leader, once it is what all agree on; another may be elected at any moment."""
        until = time.monotonic() + within_s
        while True:
            facts: dict[str, Any] = self.told(name, "leader", *words)
            self.hear(0)
            if facts["leader"] and (facts["leader"], facts["term"]) == (self.leader(), self.up[name].term):
                return facts
            assert time.monotonic() < until, f"{name} tells {facts}\n{self.story()}"
            self.hear(0.1)

    def metrics(self, name: str, *words: str) -> dict[tuple[str, str], float]:
        """(name, label) to number."""
        answer = self.ask(name, "metrics", *words)
        assert answer.returncode == 0, answer.stderr
        return {(found[1], found[2] or ""): float(found[3]) for found in METRIC.finditer(answer.stdout)}

    def refused(self, name: str, *words: str) -> dict[str, int]:
        """Frames and connections turned away, by reason."""
        counts: dict[str, int] = {}
        for (metric, reason), number in self.metrics(name, *words).items():
            if metric in ("talka_frames_refused_total", "talka_stream_problems_total"):
                counts[reason] = counts.get(reason, 0) + int(number)
        return counts

    def wait_until_refused(self, name: str, reason: str, more_than: int, *words: str, within_s: float = SOON_S) -> int:
        """Counters are not told, they are asked for."""
        until = time.monotonic() + within_s
        while (now := self.refused(name, *words).get(reason, 0)) <= more_than:
            assert time.monotonic() < until, f"{name} counted {self.refused(name, *words)}, not more {reason}"
            self.hear(0.1)
        return now
