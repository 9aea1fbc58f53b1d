"""A host: its clock, the order in which its node sees inputs, stalls, crashes and slow handling."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Persist, Transmit
from talka.errors import Invalid
from talka.testing.disk import Disk, Puts
from talka.testing.host import TICKS_LIMIT, Clock, Cpu, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, Observer, World
from talka.units import MILLISECOND, NEVER, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=100)


class Said(msgspec.Struct, frozen=True):
    word: str


class Recorder:
    """Notes every input; timers are times given at start, one tick each."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self.seen: list[tuple[Any, ...]] = []
        self.timers: list[int] = []
        self.next_tick_at = NEVER
        self.frames_admitted = 0
        self.answers: list[object] = []
        """Effects of every frame."""
        self.tick_effects: list[object] = []

    def set_timers(self, *timers: int) -> list[object]:
        self.timers = list(timers)
        self.next_tick_at = self.timers[0]
        return []

    def start(self, now: int) -> list[object]:
        self.seen.append(("start", now))
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        self.frames_admitted += 1
        self.seen.append((frame.decode(), now, age_ns))
        return list(self.answers)

    def tick(self, now: int) -> list[object]:
        self.seen.append(("tick", now))
        self.timers.pop(0)
        self.next_tick_at = self.timers[0] if self.timers else NEVER
        return list(self.tick_effects)

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        self.seen.append(("persisted", now, ticket))
        return []


def recorder(host: Host) -> Recorder:
    assert isinstance(host.node, Recorder)
    return host.node


def words(host: Host) -> list[str]:
    return [entry[0] for entry in recorder(host).seen[1:]]


def started(world: World, **options: Any) -> Host:
    host = world.add_host("a", Recorder, **options)
    host.start()
    return host


def bring(world: World, *frames: str) -> None:
    for frame in frames:
        world.network.inject("a", "x", world.network.seal(frame.encode()), Lane.DATAGRAM)


def at(world: World, when: int, action: Callable[[], object]) -> None:
    world.at(when, lambda: (action(), None)[1])


class Watcher(Observer):
    """Does something when it hears a word."""

    def __init__(self, **reactions: Callable[[], object]) -> None:
        self.reactions = reactions
        self.heard: list[tuple[int, object]] = []

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        self.heard.append((world.now, effect))
        if isinstance(effect, Said) and effect.word in self.reactions:
            self.reactions[effect.word]()

    def on_admitted(self, world: World, host: Host, frame: bytes) -> None:
        if frame.decode() in self.reactions:
            self.reactions[frame.decode()]()


# ---- clock


def test_a_clock_runs_off_true_time_by_its_offset_and_drift() -> None:
    world = World(1)
    host = started(world, clock=Clock(offset_ns=5 * SECOND, drift_ppm=-200))
    assert host.local(0) == 5 * SECOND
    assert host.local(10 * SECOND) == 15 * SECOND - 2 * MILLISECOND


@quick
@given(
    offset_ns=st.integers(-(10**15), 10**15),
    drifts=st.lists(st.integers(-50_000, 50_000), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 10**12), min_size=4, max_size=4),
    ahead=st.integers(0, 10**12),
)
def test_local_time_is_continuous_and_its_first_true_instant_is_found(
    offset_ns: int, drifts: list[int], steps: list[int], ahead: int
) -> None:
    world = World(1)
    host = started(world, clock=Clock(offset_ns, drifts[0]))
    assert host.local(steps[0]) == offset_ns + steps[0] * (10**6 + drifts[0]) // 10**6
    for drift, step in zip(drifts[1:], steps, strict=False):
        world.run_until(world.now + step % 1000)
        before = host.local(world.now)
        host.set_drift(drift)
        assert host.local(world.now) == before
        assert host.local(world.now + 10**9) == before + (10**9 * (10**6 + drift)) // 10**6
    wanted = host.local(world.now) + ahead
    instant = host.true_of(wanted)
    assert host.local(instant) >= wanted > host.local(instant - 1)


def test_a_tick_comes_when_the_local_clock_says_so() -> None:
    world = World(1)
    host = started(world, clock=Clock(drift_ppm=50_000))
    host.act(lambda now: recorder(host).set_timers(105 * MILLISECOND))
    world.run_until(100 * MILLISECOND - 1)
    assert words(host) == []
    world.run_until(100 * MILLISECOND)
    assert recorder(host).seen[-1] == ("tick", 105 * MILLISECOND)


def test_a_tick_moves_when_the_drift_changes() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(100 * MILLISECOND))
    at(world, 50 * MILLISECOND, lambda: host.set_drift(-500_000))
    world.run_until(150 * MILLISECOND - 1)
    assert words(host) == []
    world.run_until(150 * MILLISECOND)
    assert recorder(host).seen[-1] == ("tick", 100 * MILLISECOND)


def test_a_jump_of_the_clock_brings_what_it_passed() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(SECOND))
    at(world, MILLISECOND, lambda: host.jump(2 * SECOND))
    world.run_until(MILLISECOND)
    assert recorder(host).seen[-1] == ("tick", 2 * SECOND + MILLISECOND)


def test_a_clock_can_change_while_there_is_no_timer_or_no_node() -> None:
    world = World(1)
    host = started(world)
    host.set_drift(10)
    host.crash()
    host.set_drift(20)
    assert host.local(10**6) == 10**6 + 20
    world.run_until(SECOND)


def test_wrong_clocks_are_refused() -> None:
    world = World(1)
    host = started(world)
    with pytest.raises(Invalid, match="at most 500,000 ppm, not 600000"):
        host.set_drift(600_000)
    with pytest.raises(Invalid, match="never goes back"):
        host.jump(-1)
    assert host.local(SECOND) == SECOND


# ---- timers


def test_a_timer_that_moved_later_fires_once_at_its_new_time() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(10 * MILLISECOND))
    at(world, 5 * MILLISECOND, lambda: host.act(lambda now: recorder(host).set_timers(20 * MILLISECOND)))
    world.run_until(SECOND)
    assert recorder(host).seen[1:] == [("tick", 20 * MILLISECOND)]


def test_a_timer_that_moved_earlier_fires_once_at_its_new_time() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(20 * MILLISECOND))
    at(world, 5 * MILLISECOND, lambda: host.act(lambda now: recorder(host).set_timers(10 * MILLISECOND)))
    world.run_until(SECOND)
    assert recorder(host).seen[1:] == [("tick", 10 * MILLISECOND)]


def test_a_timer_that_was_taken_away_does_not_fire() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(20 * MILLISECOND))
    at(world, 5 * MILLISECOND, lambda: host.act(lambda now: recorder(host).set_timers(NEVER)))
    world.run_until(SECOND)
    assert words(host) == []


def test_idle_ticks_keep_one_event_in_the_heap() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(*range(MILLISECOND, SECOND, MILLISECOND)))
    world.run_until(SECOND // 2)
    assert words(host) == ["tick"] * 500
    assert len(world.heap) == 2  # the timer, and the end of the second


def test_timers_that_no_longer_count_leave_nothing_behind() -> None:
    world = World(1)
    host = started(world)
    for timer in range(20, 10, -1):
        host.act(lambda now, timer=timer: recorder(host).set_timers(timer * MILLISECOND))  # type: ignore[misc]
    host.act(lambda now: recorder(host).set_timers(*range(11 * MILLISECOND, SECOND, MILLISECOND)))
    world.run_until(100 * MILLISECOND)
    assert words(host) == ["tick"] * 90
    assert len(world.heap) == 2


def test_a_node_that_ticks_without_end_is_refused() -> None:
    world = World(1)
    host = started(world)
    with pytest.raises(Invalid, match=f"ticked {TICKS_LIMIT} times at one instant"):
        host.act(lambda now: recorder(host).set_timers(*[0] * (TICKS_LIMIT + 1)))


# ---- turns


def test_after_a_stall_one_frame_is_handled_then_all_due_timers_then_the_rest() -> None:
    world = World(1)
    host = started(world)
    host.act(
        lambda now: recorder(host).set_timers(
            110 * MILLISECOND, 120 * MILLISECOND, 130 * MILLISECOND, 900 * MILLISECOND
        )
    )
    at(world, 100 * MILLISECOND, lambda: host.stall(500 * MILLISECOND))
    for number in range(5):
        at(world, (200 + number) * MILLISECOND, lambda number=number: bring(world, f"ack{number}"))  # type: ignore[misc]
    world.run_until(599 * MILLISECOND)
    assert host.state == "stalled" and words(host) == []
    world.run_until(SECOND)
    assert host.state == "up"
    assert words(host) == ["ack0", "tick", "tick", "tick", "ack1", "ack2", "ack3", "ack4", "tick"]
    # Then: each frame says how long it waited.
    assert recorder(host).seen[1] == ("ack0", 600 * MILLISECOND, 400 * MILLISECOND)
    assert recorder(host).seen[-2] == ("ack4", 600 * MILLISECOND, 396 * MILLISECOND)
    assert recorder(host).seen[-1] == ("tick", 900 * MILLISECOND)


def test_the_age_of_a_frame_is_local_time() -> None:
    world = World(1)
    host = started(world, clock=Clock(drift_ppm=100_000))
    host.stall(100 * MILLISECOND)
    bring(world, "late")
    world.run_until(SECOND)
    assert recorder(host).seen[-1] == ("late", 110 * MILLISECOND, 110 * MILLISECOND)


def test_finished_writes_are_told_first_after_a_stall() -> None:
    world = World(1)
    host = started(world)
    bring(world, "early")
    world.run_until(0)
    host.act(lambda now: [Persist(1, (("key", b"value"),))])
    host.stall(SECOND)
    bring(world, "late")
    world.run_until(SECOND)
    assert host.disk.durable == {"key": b"value"}
    assert words(host) == ["early", "persisted", "late"]


def test_a_stall_within_another_ends_with_the_later_of_the_two() -> None:
    world = World(1)
    host = started(world)
    host.stall(100 * MILLISECOND)
    at(world, 50 * MILLISECOND, lambda: host.stall(10 * MILLISECOND))
    at(world, 70 * MILLISECOND, lambda: host.stall(200 * MILLISECOND))
    bring(world, "frame")
    world.run_until(SECOND)
    assert recorder(host).seen[1:] == [("frame", 270 * MILLISECOND, 270 * MILLISECOND)]


def test_while_a_node_alone_is_frozen_what_is_beside_it_goes_on() -> None:
    world = World(1)
    host = started(world)
    seen: list[bool] = []

    assert host.freeze(100 * MILLISECOND)
    at(world, 10 * MILLISECOND, lambda: seen.append(host.is_running))
    at(world, 20 * MILLISECOND, lambda: seen.append(host.freeze(SECOND)))
    at(world, 30 * MILLISECOND, lambda: host.stall(10 * MILLISECOND))
    at(world, 35 * MILLISECOND, lambda: seen.append(host.is_running))
    bring(world, "frame")
    world.run_until(SECOND)

    assert seen == [True, False, False], "a machine that stands still takes all with it"
    assert recorder(host).seen[1:] == [("frame", 100 * MILLISECOND, 100 * MILLISECOND)]
    assert host.is_running


def test_a_full_inbox_drops_and_counts() -> None:
    world = World(1)
    host = started(world, cpu=Cpu(inbox_frames=2))
    host.stall(MILLISECOND)
    bring(world, "one", "two", "three")
    world.run_until(SECOND)
    assert words(host) == ["one", "two"]
    assert host.inbox_dropped == world.network.dropped["inbox"] == 1


def test_an_idle_host_handles_a_frame_at_once_and_then_the_timer_it_set() -> None:
    world = World(1)
    host = started(world)
    recorder(host).set_timers(0)
    bring(world, "frame")
    world.run_until(0)
    assert recorder(host).seen[1:] == [("frame", 0, 0), ("tick", 0)]


# ---- slow handling


def test_effects_of_a_frame_leave_when_its_handling_is_over() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(service_ns=10 * MILLISECOND))
    recorder(host).answers = [Said("done")]
    bring(world, "one", "two")
    world.run_until(10 * SECOND)
    (first, _), (second, _) = watcher.heard
    assert 0 < first < second
    # Then: the second was begun when the first was done, after having waited for it.
    assert recorder(host).seen[1:] == [("one", 0, 0), ("two", first, first)]


def test_handling_takes_the_mean_time_on_average_and_can_be_changed() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(inbox_frames=1000))
    recorder(host).answers = [Said("done")]
    host.set_service(MILLISECOND)
    bring(world, *["frame"] * 1000)
    world.run_until(10 * SECOND)
    assert 0.9 * SECOND < watcher.heard[-1][0] < 1.1 * SECOND
    host.set_service(None)
    bring(world, "fast")
    world.run_until(10 * SECOND)
    assert watcher.heard[-1] == (10 * SECOND, Said("done"))


def test_timers_and_calls_wait_while_a_frame_is_handled() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(service_ns=100 * MILLISECOND))
    recorder(host).answers = [Said("done")]
    host.act(lambda now: recorder(host).set_timers(1))
    bring(world, "one", "two")
    at(world, 2, lambda: host.act(lambda now: recorder(host).seen.append(("call", now)) or []))  # type: ignore[func-returns-value]
    world.run_until(100 * SECOND)
    done = watcher.heard[0][0]
    assert recorder(host).seen[1:] == [("one", 0, 0), ("tick", done), ("call", done), ("two", done, done)]


def test_a_stall_holds_back_the_effects_of_a_frame_being_handled() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(service_ns=10 * MILLISECOND))
    recorder(host).answers = [Said("done")]
    bring(world, "one")
    at(world, 1, lambda: host.stall(10 * SECOND))
    world.run_until(20 * SECOND)
    assert watcher.heard == [(10 * SECOND + 1, Said("done"))]


def test_a_stall_that_ends_before_the_handling_does_not_shorten_it() -> None:
    seen = []
    for stall_ns in (0, 2):
        world = World(1)
        watcher = Watcher()
        world.observers.append(watcher)
        host = started(world, cpu=Cpu(service_ns=SECOND))
        recorder(host).answers = [Said("done")]
        bring(world, "one")
        at(world, 1, lambda host=host, stall_ns=stall_ns: host.stall(stall_ns))  # type: ignore[misc]
        world.run_until(20 * SECOND)
        seen.append(watcher.heard)
    assert seen[0] == seen[1] and seen[0][0][0] > 3


def test_a_crash_takes_the_effects_that_had_not_left() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(service_ns=SECOND))
    recorder(host).answers = [Said("done")]
    bring(world, "one")
    at(world, 1, host.crash)
    at(world, 2, host.start)
    world.run_until(2)
    # Then: neither do they leave later, nor does the end of their time end that of the next frame.
    host.set_service(10**3 * SECOND)
    recorder(host).answers = [Said("new")]
    bring(world, "two")
    world.run_until(60 * SECOND)
    assert watcher.heard == []
    world.run_until(10**5 * SECOND)
    assert [effect for _, effect in watcher.heard] == [Said("new")]


# ---- a stall between decision and effect


def test_a_stall_in_the_middle_of_a_step_lets_the_node_act_on_an_old_decision() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world)
    host.stall(3 * SECOND, mid_step=True)
    bring(world, "no effects")
    world.run_until(MILLISECOND)
    assert host.state == "up"
    recorder(host).tick_effects = [Said("I lead")]
    host.act(lambda now: recorder(host).set_timers(2 * MILLISECOND))
    bring(world, "waits")
    world.run_until(2 * MILLISECOND)
    assert host.state == "stalled"
    bring(world, "waits too")
    world.run_until(10 * SECOND)
    assert recorder(host).seen[-2] == ("tick", 2 * MILLISECOND)
    assert watcher.heard == [(3 * SECOND + 2 * MILLISECOND, Said("I lead"))]
    assert recorder(host).seen[-1] == ("waits too", 3 * SECOND + 2 * MILLISECOND, 3 * SECOND)


def test_a_stall_in_the_middle_of_a_step_adds_to_slow_handling() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world, cpu=Cpu(service_ns=MILLISECOND))
    recorder(host).answers = [Said("late")]
    host.stall(30 * SECOND, mid_step=True)
    bring(world, "frame")
    world.run_until(60 * SECOND)
    assert watcher.heard == [(30 * SECOND, Said("late"))]


# ---- start and crash


def test_a_host_starts_from_what_is_durable_and_knows_nothing_else() -> None:
    world = World(1)
    host = started(world, disk=Disk(fsync_mean_ns=0))
    first = recorder(host)
    host.act(lambda now: [Persist(1, (("term", b"7"), ("gone", None)))])
    world.run_until(SECOND)
    assert host.crash() and host.state == "down" and host.node is None
    assert host.start() and host.state == "up"
    second = recorder(host)
    assert second is not first
    assert second.boot.stored == {"term": b"7"}
    assert second.boot.now == SECOND
    assert (second.boot.name, second.boot.boot) == ("a", host.boot)
    assert first.boot.boot != second.boot.boot
    # Then: what the node does with its copy does not touch the disk.
    second.boot.stored.clear()
    assert host.disk.durable == {"term": b"7"}


def test_a_host_that_runs_is_not_started_and_one_that_is_down_neither_crashes_nor_stalls_nor_acts() -> None:
    world = World(1)
    host = started(world)
    assert not host.start()
    assert host.crash()
    assert not host.crash()
    assert not host.stall(SECOND)
    assert not host.act(lambda now: [])


def test_a_stalled_host_takes_no_calls() -> None:
    world = World(1)
    host = started(world)
    host.stall(SECOND)
    assert not host.act(lambda now: [])


def test_a_busy_host_takes_a_bounded_number_of_calls() -> None:
    world = World(1)
    host = started(world, cpu=Cpu(service_ns=SECOND, inbox_frames=2))
    bring(world, "frame")
    world.run_until(0)
    assert [host.act(lambda now: []) for _ in range(3)] == [True, True, False]


def test_a_crash_forgets_inbox_timers_stalls_and_answers_of_the_former_life() -> None:
    world = World(1)
    host = started(world)
    host.act(lambda now: recorder(host).set_timers(50 * MILLISECOND))
    host.act(lambda now: [Persist(1, ())])
    host.stall(20 * MILLISECOND, mid_step=True)
    host.stall(10 * MILLISECOND)
    bring(world, "lost")
    world.run_until(MILLISECOND)
    host.crash()
    host.start()
    bring(world, "new")
    at(world, 5 * MILLISECOND, lambda: host.stall(90 * MILLISECOND))
    world.run_until(50 * MILLISECOND)
    # Then: the wake-up of the first stall does not end the second.
    assert host.state == "stalled"
    world.run_until(SECOND)
    assert recorder(host).seen == [("start", MILLISECOND), ("new", MILLISECOND, 0)]
    # Then: the step to be stalled was one of the former life.
    host.act(lambda now: [Said("at once")])
    assert host.state == "up"


def test_frames_to_a_host_that_is_down_are_lost() -> None:
    world = World(1)
    host = started(world)
    host.crash()
    bring(world, "lost")
    world.network.inject("a", "x", b"neither sealed", Lane.DATAGRAM)
    world.run_until(0)
    host.start()
    world.run_until(SECOND)
    assert words(host) == []
    assert world.network.dropped == {"down": 2}


def test_a_node_may_send_and_set_timers_as_it_starts() -> None:
    class Eager(Recorder):
        def start(self, now: int) -> list[object]:
            self.set_timers(now, now + MILLISECOND)
            return [Said("hello"), *super().start(now)]

    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = world.add_host("a", Eager)
    host.start()
    world.run_until(SECOND)
    assert watcher.heard == [(0, Said("hello"))]
    assert recorder(host).seen == [("start", 0), ("tick", 0), ("tick", MILLISECOND)]


# ---- observers that act


def test_a_call_made_while_effects_are_carried_out_comes_after_them() -> None:
    world = World(1)
    host = started(world)

    def answer(now: int) -> list[object]:
        return [Said("third")]

    watcher = Watcher(first=lambda: host.act(answer))
    world.observers.append(watcher)
    host.act(lambda now: [Said("first"), Said("second")])
    assert [effect for _, effect in watcher.heard] == [Said("first"), Said("second"), Said("third")]


@pytest.mark.parametrize("again", [False, True], ids=["stays down", "starts again"])
def test_a_crash_while_effects_are_carried_out_drops_the_rest_of_them(again: bool) -> None:
    world = World(1)
    host = started(world)
    watcher = Watcher(die=lambda: host.crash() and again and host.start())
    world.observers.append(watcher)
    host.act(lambda now: [Said("die"), Said("never")])
    world.run_until(SECOND)
    assert [effect for _, effect in watcher.heard] == [Said("die")]
    assert host.state == ("up" if again else "down")
    bring(world, "frame")
    world.run_until(2 * SECOND)
    assert not again or words(host) == ["frame"]


def test_a_stall_while_effects_are_carried_out_begins_after_them() -> None:
    world = World(1)
    host = started(world)
    watcher = Watcher(stall=lambda: host.stall(SECOND))
    world.observers.append(watcher)
    host.act(lambda now: [Said("stall"), Said("still")])
    assert [effect for _, effect in watcher.heard] == [Said("stall"), Said("still")]
    assert host.state == "stalled"
    bring(world, "frame")
    world.run_until(2 * SECOND)
    assert recorder(host).seen[-1] == ("frame", SECOND, SECOND)


def test_a_crash_as_a_frame_is_admitted_takes_its_effects() -> None:
    world = World(1)
    host = started(world)
    watcher = Watcher(deadly=host.crash)
    world.observers.append(watcher)
    recorder(host).answers = [Said("never")]
    bring(world, "deadly")
    world.run_until(SECOND)
    assert watcher.heard == [] and host.state == "down"


def test_a_stall_as_a_frame_is_admitted_holds_what_follows() -> None:
    world = World(1)
    host = started(world)
    world.observers.append(Watcher(sleepy=lambda: host.stall(SECOND)))
    recorder(host).set_timers(0)
    bring(world, "sleepy", "next")
    world.run_until(10 * SECOND)
    assert recorder(host).seen[1:] == [("sleepy", 0, 0), ("next", SECOND, SECOND), ("tick", SECOND)]


def test_a_call_that_crashes_its_host_has_no_effects() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    host = started(world)
    assert host.act(lambda now: [Said("never")] if host.crash() else [])
    assert watcher.heard == [] and host.state == "down"


def test_a_stall_ends_the_turns_of_a_host_until_it_wakes() -> None:
    world = World(1)
    host = started(world)
    watcher = Watcher(stall=lambda: host.stall(SECOND))
    world.observers.append(watcher)
    recorder(host).tick_effects = [Said("stall")]
    host.stall(MILLISECOND)
    recorder(host).set_timers(0, 0, NEVER)
    bring(world, "one", "two")
    world.run_until(10 * SECOND)
    assert recorder(host).seen[1:] == [
        ("one", MILLISECOND, MILLISECOND),
        ("tick", MILLISECOND),
        ("two", SECOND + MILLISECOND, SECOND + MILLISECOND),
        ("tick", SECOND + MILLISECOND),
    ]


def test_a_stall_by_the_news_of_a_timer_holds_the_frames_behind_it() -> None:
    world = World(1)
    host = started(world)
    world.observers.append(Watcher(stall=lambda: host.stall(SECOND)))
    recorder(host).tick_effects = [Said("stall")]
    recorder(host).set_timers(0)
    bring(world, "one", "two")
    world.run_until(10 * SECOND)
    assert recorder(host).seen[1:] == [("one", 0, 0), ("tick", 0), ("two", SECOND, SECOND)]


def test_a_crash_as_held_effects_leave_drops_the_rest_of_them() -> None:
    world = World(1)
    host = started(world, cpu=Cpu(service_ns=MILLISECOND))
    watcher = Watcher(die=host.crash)
    world.observers.append(watcher)
    recorder(host).answers = [Said("die"), Said("never")]
    bring(world, "one", "two")
    world.run_until(10 * SECOND)
    assert [effect for _, effect in watcher.heard] == [Said("die")]
    assert host.state == "down"


def test_an_observer_that_crashes_a_host_as_it_boots_stops_the_boot() -> None:
    class Deadly(Observer):
        def on_boot(self, world: World, host: Host) -> None:
            host.crash()

    world = World(1)
    world.observers.append(Deadly())
    host = world.add_host("a", Recorder)
    host.start()
    assert host.state == "down" and host.node is None


def test_a_host_that_crashed_as_its_write_became_durable_is_not_told() -> None:
    class Deadly(Observer):
        def on_persisted(self, world: World, host: Host, puts: Puts) -> None:
            host.crash()
            host.start()

    world = World(1)
    world.observers.append(Deadly())
    host = started(world)
    host.act(lambda now: [Persist(1, (("key", b"1"),))])
    world.run_until(SECOND)
    assert words(host) == []
    assert recorder(host).boot.stored == {"key": b"1"}


def test_traffic_is_counted_with_header_and_seal() -> None:
    world = World(1)
    world.network.default = LinkProfile(latency_ns=MILLISECOND, jitter_ns=0)
    host = started(world)
    other = world.add_host("b", Recorder)
    other.start()
    host.act(lambda now: [Transmit("b", b"12345", Lane.DATAGRAM)])
    other.stall(10 * MILLISECOND)
    world.run_until(SECOND)
    other.act(lambda now: [Transmit("a", b"123", Lane.STREAM)])
    world.run_until(2 * SECOND)
    assert (host.port.frames_sent, host.port.bytes_sent) == (1, 41)
    assert (other.port.frames_received, other.port.bytes_received) == (1, 41)
    assert (host.port.frames_received, host.port.bytes_received) == (1, 39)
