"""The world: order of events, seeds, traces, violations and observers."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist, Transmit
from talka.errors import Invalid
from talka.testing import world as world_module
from talka.testing.disk import Puts
from talka.testing.host import Clock, Cpu, Host
from talka.testing.network import LinkProfile
from talka.testing.trace import CHUNK, RECENT
from talka.testing.world import Boot, Observer, SimulatedNode, Violation, World
from talka.units import NEVER, SECOND


class Greeted(msgspec.Struct, frozen=True):
    peer: str


class Wide(msgspec.Struct, frozen=True):
    number: int
    names: frozenset[str] = frozenset()


class Chatter:
    """Greets a peer every 100 ms, writes down who greeted it, and answers with news."""

    def __init__(self, boot: Boot, peer: str) -> None:
        self.boot = boot
        self.peer = peer
        self.next_tick_at = boot.now + int(boot.rng.random() * 100_000_000)
        self.frames_admitted = 0
        self.tickets = 0

    def start(self, now: int) -> list[object]:
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        self.frames_admitted += 1
        self.tickets += 1
        return [Persist(self.tickets, (("last", frame),)), Greeted(source)]

    def tick(self, now: int) -> list[object]:
        self.next_tick_at = now + 100_000_000
        return [Transmit(self.peer, self.boot.rng.randbytes(8), Lane.DATAGRAM)]

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return []


def chatters(seed: int, verbose: Callable[[str], None] | None = None) -> World:
    """Two hosts that chat under loss, drift, slow handling and a crash."""
    world = World(seed, verbose=verbose)
    world.network.default = LinkProfile(loss=0.1, duplicate=0.1, reorder=(0.1, 5_000_000))
    first = world.add_host("a", lambda boot: Chatter(boot, "b"), clock=Clock(drift_ppm=300))
    second = world.add_host("b", lambda boot: Chatter(boot, "a"), cpu=Cpu(service_ns=1_000_000))
    first.start()
    second.start()
    # News with a set: its order in memory differs from process to process.
    world.at(SECOND, lambda: (first.act(lambda now: [Wide(1, frozenset(["one", "two", "three", "four"]))]), None)[1])
    world.at(2 * SECOND, lambda: (first.crash(), None)[1])
    world.at(3 * SECOND, lambda: (first.start(), None)[1])
    return world


class Diary(Observer):
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def on_boot(self, world: World, host: Host) -> None:
        self.lines.append(("boot", host.name))

    def on_crash(self, world: World, host: Host) -> None:
        self.lines.append(("crash", host.name))

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        self.lines.append((str(effect), host.name))

    def on_persisted(self, world: World, host: Host, puts: Puts) -> None:
        self.lines.append(("persisted", host.name))

    def on_admitted(self, world: World, host: Host, frame: bytes) -> None:
        self.lines.append(("admitted", host.name))

    def on_second(self, world: World) -> None:
        self.lines.append(("second", str(world.now)))

    def at_end(self, world: World) -> None:
        self.lines.append(("end", str(world.now)))


def test_events_happen_by_time_and_at_one_time_in_the_order_they_were_asked_for() -> None:
    world = World(1)
    order: list[tuple[str, int]] = []
    for name, when in (("late", 30), ("first", 10), ("second", 10)):
        world.at(when, lambda name=name: order.append((name, world.now)))  # type: ignore[misc]
    world.after(20, lambda: order.append(("between", world.now)))
    world.run_until(29)
    assert order == [("first", 10), ("second", 10), ("between", 20)]
    assert world.now == 29
    world.run_until(30)
    assert order[-1] == ("late", 30)


def test_nothing_can_be_asked_for_in_the_past() -> None:
    world = World(1)
    world.run_until(100)
    with pytest.raises(Invalid, match="nothing can be done at 99 ns"):
        world.at(99, lambda: None)


def test_running_to_a_time_that_has_passed_changes_nothing() -> None:
    world = World(1)
    world.run_until(100)
    world.run_until(50)
    assert world.now == 100


def test_streams_and_entities_draw_independently_and_repeatably() -> None:
    def draw(seed: int, stream: str, entity: str) -> int:
        return World(seed).rng(stream, entity).getrandbits(64)

    assert draw(1, "net", "a") == draw(1, "net", "a")
    assert len({draw(1, "net", "a"), draw(1, "net", "b"), draw(1, "disk", "a"), draw(2, "net", "a")}) == 4


def test_same_seed_same_history_and_another_seed_another() -> None:
    hashes = []
    for seed in (7, 7, 8):
        world = chatters(seed)
        world.run_until(5 * SECOND)
        hashes.append(world.trace_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_hash_does_not_depend_on_how_often_one_looks_nor_on_being_verbose() -> None:
    plain = chatters(7)
    plain.run_until(5 * SECOND)
    lines: list[str] = []
    watched = chatters(7, verbose=lines.append)
    for second in range(1, 6):
        watched.run_until(second * SECOND)
        watched.trace_hash()
    assert watched.trace_hash() == plain.trace_hash()
    assert len(lines) > 100


def test_the_hash_covers_the_bytes_of_frames() -> None:
    hashes = []
    for content in (b"one", b"two"):
        world = World(1)
        world.add_host("a", lambda boot: Chatter(boot, "a")).start()
        world.network.inject("a", "x", world.network.seal(content), Lane.DATAGRAM)
        world.run_until(1)
        hashes.append(world.trace_hash())
    assert hashes[0] != hashes[1]


PROGRAM = """
import importlib.util
spec = importlib.util.spec_from_file_location("scenario", {path!r})
scenario = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scenario)
world = scenario.chatters(11)
world.run_until(5_000_000_000)
print(world.trace_hash())
"""


def test_the_history_is_the_same_in_every_process_and_under_every_hash_seed() -> None:
    source = Path(world_module.__file__).parents[2]
    answers = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(source)}
        program = PROGRAM.format(path=__file__)
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    here = chatters(11)
    here.run_until(5 * SECOND)
    assert answers == [here.trace_hash() + "\n"] * 2


def test_verbose_says_each_event_in_one_line() -> None:
    lines: list[str] = []
    world = chatters(7, verbose=lines.append)
    host = world.hosts["b"]

    def trouble() -> None:
        host.stall(5_000_000)
        host.set_drift(40)
        host.jump(5)
        world.network.cut("a", "b")
        world.network.heal("a", "b")
        world.stop_at_first = False
        world.violate("I1", "two leaders in term 3")

    world.at(SECOND, trouble)
    world.run_until(5 * SECOND)
    assert not [line for line in lines if "\n" in line]
    text = "\n".join(lines)
    assert lines[0].startswith("     0.000000000 a            starts as boot ")
    assert "a            frame from b, datagram, 8 bytes" in text
    assert "b            tick" in text
    assert "news Greeted(peer='a')" in text
    assert "frame to b dropped: loss" in text
    assert "write 1 is durable" in text
    assert "told that write 1 is durable" in text
    assert "     2.000000000 a            crash" in text
    assert "     1.000000000 b            stalls for 0.005 s" in text
    assert "     1.005000000 b            wake" in text
    assert "b            drift 40 ppm" in text
    assert "b            jump 5 ns" in text
    assert "a            cut b" in text
    assert "a            heal b" in text
    assert "violates I1: two leaders in term 3" in text


def test_the_last_events_are_kept_and_no_more() -> None:
    world = chatters(7)
    world.run_until(SECOND // 2)
    assert 0 < len(world.recent_lines()) < RECENT
    world.run_until(20 * SECOND)
    lines = world.recent_lines()
    assert len(lines) == len(world.recent) == RECENT
    assert lines[-1].startswith("    19.9")
    assert len(world.trace.pending) <= CHUNK


def test_the_trace_of_a_long_run_is_hashed_on_the_way() -> None:
    world = World(1)
    most = 0

    def note() -> None:
        nonlocal most
        world.network.drop("loss", "a", "b")
        most = max(most, len(world.trace.pending))

    for when in range(3 * CHUNK):
        world.at(when, note)
    world.run_until(3 * CHUNK)
    assert most == CHUNK
    assert world.events_handled == 3 * CHUNK


class Odd:
    """News without an encoding."""

    def __repr__(self) -> str:
        return "something odd"


@pytest.mark.parametrize("effect", [Odd(), Wide(1 << 70), Wide(1, frozenset("abc"))], ids=["odd", "wide", "set"])
def test_any_news_can_be_traced(effect: object) -> None:
    world = World(1)
    host = world.add_host("a", lambda boot: Chatter(boot, "a"))
    host.start()
    host.act(lambda now: [effect])
    with_news = world.trace_hash()
    assert "news" in world.recent_lines()[-1]
    other = World(1)
    other_host = other.add_host("a", lambda boot: Chatter(boot, "a"))
    other_host.start()
    other_host.act(lambda now: [])
    assert other.trace_hash() != with_news


def test_news_that_does_not_say_its_name_is_named_in_the_line() -> None:
    world = World(1)
    host = world.add_host("a", lambda boot: Chatter(boot, "a"))
    host.start()
    host.act(lambda now: [Odd()])
    assert world.recent_lines()[-1].endswith("news Odd something odd")


def test_the_first_violation_stops_the_run_after_its_event() -> None:
    world = World(1)
    seen: list[int] = []

    def bad() -> None:
        world.violate("I3", "a stale command was applied")
        seen.append(world.now)

    world.at(10, bad)
    world.at(11, bad)
    world.run_until(SECOND)
    assert seen == [10]
    assert world.now == 10 and world.stopped
    assert world.violations == [Violation(10, "I3", "a stale command was applied")]
    world.run_until(SECOND)
    assert world.now == 10


def test_violations_are_all_counted_when_they_may_not_stop_the_run_but_a_bounded_number_is_kept() -> None:
    world = World(1)
    world.stop_at_first = False
    for _ in range(world_module.VIOLATIONS_LIMIT + 5):
        world.violate("I3", "again")
    world.run_until(SECOND)
    assert world.now == SECOND
    assert world.violation_count == world_module.VIOLATIONS_LIMIT + 5
    assert len(world.violations) == world_module.VIOLATIONS_LIMIT


def test_observers_see_boots_admissions_effects_writes_seconds_crashes_and_the_end() -> None:
    world = World(3)
    diary = Diary()
    world.observers += [Observer(), diary]
    first = world.add_host("a", lambda boot: Chatter(boot, "b"))
    second = world.add_host("b", lambda boot: Chatter(boot, "nobody"))
    first.start()
    second.start()
    world.run_until(SECOND)
    world.at(SECOND, lambda: (second.crash(), None)[1])
    world.run_until(SECOND)
    world.finish()
    lines = diary.lines
    assert lines[:2] == [("boot", "a"), ("boot", "b")]
    assert lines[2:5] == [("admitted", "b"), ("Greeted(peer='a')", "b"), ("persisted", "b")]
    assert lines[-3:] == [("second", str(SECOND)), ("crash", "b"), ("end", str(SECOND))]
    assert [line for line in lines if line[0] == "admitted"] == [("admitted", "b")] * 10


def test_an_exception_of_a_node_ends_the_run_with_its_lines_told() -> None:
    lines: list[str] = []
    world = World(1, verbose=lines.append)
    host = world.add_host("a", lambda boot: Chatter(boot, "a"))
    host.start()

    def fail(now: int) -> list[object]:
        raise RuntimeError("a bug")

    world.at(5, lambda: (host.act(fail), None)[1])
    with pytest.raises(RuntimeError, match="a bug"):
        world.run_until(SECOND)
    assert lines[-1].endswith("call")


def test_a_host_has_a_name_of_its_own() -> None:
    world = World(1)
    world.add_host("a", lambda boot: Chatter(boot, "a"))
    with pytest.raises(Invalid, match="there is a host 'a' already"):
        world.add_host("a", lambda boot: Chatter(boot, "a"))


def test_every_boot_is_new_and_has_randomness_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    boots: list[Boot] = []

    def starter(boot: Boot) -> SimulatedNode:
        boots.append(boot)
        node = Chatter(boot, "a")
        node.next_tick_at = NEVER
        return node

    # Given: boots that would be drawn twice.
    drawn = iter([5, 5, 6])
    monkeypatch.setattr(world._boot_rng, "getrandbits", lambda bits: next(drawn))
    host = world.add_host("a", starter)
    for _ in range(2):
        host.start()
        host.crash()
    assert [boot.boot for boot in boots] == [5, 6]
    assert boots[0].rng.getrandbits(64) != boots[1].rng.getrandbits(64)
