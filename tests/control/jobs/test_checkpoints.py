"""What is to be stored, and what waits until it is."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.control.jobs.checkpoints import AGAIN_NS, EVERY_NS, UNTOLD_NS, AssignAttempt, Checkpoints
from talka.wire.jobs import CHANNEL, CheckpointStored, StoreCheckpoint
from talka.work.lifecycle import JobState
from tests.sim.variants import without

FENCE = (1, 2, 3)
LIFE = 7
RUNNING = JobState.RUNNING


def new_checkpoints() -> Checkpoints:
    return Checkpoints("b4k7", FENCE, LIFE)


def said(revision: int, content: bytes, unfit: tuple[str, ...] = ()) -> list[object]:
    checkpoint = StoreCheckpoint("b4k7", FENCE, revision, "running", content, unfit=unfit, life=LIFE)
    return [Send(CHANNEL, "", checkpoint, Lane.CONTROL)]


THIS, THAT = AssignAttempt(1), AssignAttempt(2)


def test_a_checkpoint_is_news_when_its_content_is() -> None:
    checkpoints = new_checkpoints()

    assert checkpoints.say(0, b"one", RUNNING, ()) == said(1, b"one")
    assert checkpoints.is_under_way
    checkpoints.on_stored(1)
    assert not checkpoints.is_under_way

    assert checkpoints.say(2, b"one", RUNNING, ()) == []
    assert checkpoints.say(3, b"two", RUNNING, ("w2",)) == said(2, b"two", ("w2",))


def test_what_the_content_does_not_show_is_told_all_the_same_once() -> None:
    checkpoints = new_checkpoints()
    checkpoints.say(0, b"one", RUNNING, ())
    checkpoints.on_stored(1)

    checkpoints.touch()

    assert checkpoints.say(2, b"one", RUNNING, ("w2",)) == said(2, b"one", ("w2",))
    checkpoints.on_stored(2)
    assert checkpoints.say(4, b"one", RUNNING, ("w2",)) == []


def test_what_is_held_is_done_when_the_checkpoint_after_it_is_stored() -> None:
    checkpoints = new_checkpoints()
    assert checkpoints.hold(THIS) == []
    assert checkpoints.hold(THAT) == []

    assert checkpoints.say(0, b"one", RUNNING, ()) == said(1, b"one")

    assert checkpoints.on_stored(0) == []
    assert checkpoints.on_stored(1) == [THIS, THAT]
    assert checkpoints.on_stored(1) == []


def test_what_is_held_while_a_checkpoint_is_under_way_waits_for_the_next() -> None:
    checkpoints = new_checkpoints()
    checkpoints.say(0, b"one", RUNNING, ())
    checkpoints.hold(THIS)

    assert checkpoints.on_stored(1) == []
    assert checkpoints.say(2, b"one", RUNNING, ()) == said(2, b"one")
    assert checkpoints.on_stored(2) == [THIS]


def test_an_answer_to_an_earlier_checkpoint_takes_nothing_back() -> None:
    checkpoints = new_checkpoints()
    checkpoints.say(0, b"one", RUNNING, ())
    checkpoints.on_stored(1)
    checkpoints.say(1, b"two", RUNNING, ())
    checkpoints.on_stored(2)

    checkpoints.on_stored(1)

    assert not checkpoints.is_under_way
    assert checkpoints.say(4, b"two", RUNNING, ()) == []


def test_what_was_dropped_is_never_done() -> None:
    checkpoints = new_checkpoints()
    checkpoints.hold(THIS)
    checkpoints.say(0, b"one", RUNNING, ())

    checkpoints.drop()

    assert checkpoints.on_stored(1) == []


@without("account_first")
def test_where_no_checkpoint_is_needed_nothing_waits() -> None:
    assert new_checkpoints().hold(THIS) == [THIS]


def test_a_checkpoint_that_nobody_answered_is_made_anew() -> None:
    checkpoints = new_checkpoints()
    checkpoints.say(0, b"one", RUNNING, ())
    checkpoints.hold(THIS)

    assert checkpoints.say_again(AGAIN_NS - 1) == []
    assert checkpoints.is_under_way
    assert checkpoints.say_again(AGAIN_NS) == []
    assert not checkpoints.is_under_way

    assert checkpoints.say(AGAIN_NS, b"two", RUNNING, ()) == said(2, b"two")
    assert checkpoints.on_stored(2) == [THIS]


def test_a_checkpoint_that_was_answered_is_not_said_again() -> None:
    checkpoints = new_checkpoints()
    assert checkpoints.say_again(9 * AGAIN_NS) == []
    checkpoints.say(0, b"one", RUNNING, ())
    checkpoints.on_stored(1)

    assert checkpoints.say_again(9 * AGAIN_NS) == []
    assert checkpoints.say(9 * AGAIN_NS, b"one", RUNNING, ()) == []


def test_the_last_checkpoint_is_said_as_it_is_until_it_is_stored() -> None:
    checkpoints = new_checkpoints()
    checkpoints.say(0, b"one", RUNNING, ())
    assert not checkpoints.is_closing
    assert not checkpoints.is_closed

    end = StoreCheckpoint("b4k7", FENCE, 0, "failed", b"", "a rule was broken", "d" * 64, exit_code=4, life=LIFE)

    last = checkpoints.close(1, end)

    assert last == [Send(CHANNEL, "", msgspec.structs.replace(end, revision=2), Lane.CONTROL)]
    assert checkpoints.is_closing
    checkpoints.on_stored(1)
    assert not checkpoints.is_closed
    assert checkpoints.say_again(AGAIN_NS) == []
    assert checkpoints.say_again(1 + AGAIN_NS) == last
    assert checkpoints.say_again(2 * AGAIN_NS) == []
    checkpoints.on_stored(2)
    assert checkpoints.is_closed
    assert checkpoints.say_again(9 * AGAIN_NS) == []


def test_who_leads_the_job_is_asked_with_a_checkpoint_that_is_never_written() -> None:
    checkpoints = new_checkpoints()
    assert checkpoints.ask_leader(1) == []
    assert checkpoints.ask_leader(UNTOLD_NS) == []

    asked = checkpoints.ask_leader(1 + UNTOLD_NS)

    assert asked == [Send(CHANNEL, "", StoreCheckpoint("b4k7", FENCE, 0, "", b"", life=LIFE), Lane.CONTROL)]
    assert checkpoints.ask_leader(2 + UNTOLD_NS) == [], "it was asked just now"


def test_a_leader_that_was_heard_is_not_asked() -> None:
    checkpoints = new_checkpoints()
    checkpoints.ask_leader(1)

    checkpoints.heard_leader(UNTOLD_NS)

    assert checkpoints.ask_leader(1 + UNTOLD_NS) == []


def test_a_checkpoint_is_due_at_once_when_something_waits_and_else_once_a_second() -> None:
    checkpoints = new_checkpoints()
    assert checkpoints.is_due(0), "none was made yet"
    checkpoints.say(0, b"one", RUNNING, ())
    assert not checkpoints.is_due(1), "one is under way"
    checkpoints.on_stored(1)
    assert not checkpoints.is_due(2)
    assert checkpoints.is_due(EVERY_NS)
    assert not checkpoints.is_due(EVERY_NS + 1)

    checkpoints.hold(THIS)

    assert checkpoints.is_due(EVERY_NS + 1)


def test_only_an_answer_to_this_life_under_this_fence_counts() -> None:
    checkpoints = new_checkpoints()

    assert checkpoints.is_mine(CheckpointStored("b4k7", FENCE, 1, life=LIFE))
    assert not checkpoints.is_mine(CheckpointStored("b4k7", FENCE, 1, life=LIFE + 1))
    assert not checkpoints.is_mine(CheckpointStored("b4k7", (1, 2, 4), 1, life=LIFE))


@given(st.lists(st.sampled_from(["hold", "change", "store", "late"]), max_size=40))
@settings(deadline=None, derandomize=True)
def test_nothing_is_done_before_a_checkpoint_made_after_it_is_stored_and_nothing_twice(events: list[str]) -> None:
    checkpoints = new_checkpoints()
    now = version = 0
    decided: dict[int, int] = {}
    on_the_way: list[tuple[int, int]] = []
    done: list[int] = []

    def stored(revision: int) -> None:
        for held in checkpoints.on_stored(revision):
            assert isinstance(held, AssignAttempt)
            done.append(held.attempt)

    for number, event in enumerate(events):
        now += AGAIN_NS
        if event == "hold":
            version += 1
            decided[number] = version
            checkpoints.hold(AssignAttempt(number))
        elif event == "change":
            version += 1
        elif event == "late":
            checkpoints.say_again(now)
        elif on_the_way:
            revision, known = on_the_way.pop(0)
            before = len(done)
            stored(revision)
            assert all(decided[other] <= known for other in done[before:])
        if not checkpoints.is_under_way:
            for effect in checkpoints.say(now, str(version).encode(), RUNNING, ()):
                assert isinstance(effect.message, StoreCheckpoint)
                on_the_way.append((effect.message.revision, version))
    assert done == sorted(set(done))
    for revision, _ in on_the_way:
        stored(revision)
    if not checkpoints.is_under_way and checkpoints.say(now, str(version).encode(), RUNNING, ()):
        stored(1 << 40)
    assert done == list(decided)
