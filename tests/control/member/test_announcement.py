from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.cluster.membership.local_health import Degradation
from talka.cluster.membership.members import Member
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.announcement import (
    NUMBERS_EVERY_NS,
    Announcement,
    Announcer,
    ManagerPhase,
    announced_readiness,
    encode_announcement,
    in_steps,
    standing_of,
)
from talka.control.member.three_signals import Readiness
from talka.units import SECOND
from talka.wire.condition import LARGEST, UNMEASURED, NodeCondition
from talka.wire.membership import PAYLOAD_LIMIT_BYTES, Alive, MemberState

LARGEST_CONDITION = NodeCondition(LARGEST, LARGEST, LARGEST, 100, 100, 255, 255)
WIDEST = "\U0001f600"
"""Four bytes in one character."""


def read(payload: bytes) -> Announcement:
    member = Member(Alive("b", 1, 0, "at-b"), 0)
    member.state = MemberState(1, payload)
    found = standing_of(member)
    assert found is not None
    return found


class Speaker:
    """A member that says how it does; `said` counts how often that was something new."""

    def __init__(self) -> None:
        self.membership = Membership(
            name="a", boot=1, address="at-a", group="g", config=PRESETS["default"], rng=Random(1), now=0
        )
        self.announcer = Announcer(self.membership)

    def note(self, now: int, phase: ManagerPhase = "active", **facts: int) -> Announcement | None:
        """What it says now; None where it says nothing new."""
        before = self.version
        self.announcer.note(now, NodeCondition(**facts), phase)
        state = self.membership.state
        return None if self.version == before or state is None else read(state.payload)

    @property
    def version(self) -> int:
        return self.membership.state.version if self.membership.state else 0


# -- how long it is


def test_an_announcement_fits_a_state_whatever_it_says() -> None:
    words = [WIDEST * 64] * 5
    largest = Announcement(*words, (1 << 63) - 1, "x" * 200, WIDEST * 64, LARGEST_CONDITION, WIDEST * 16)

    payload = encode_announcement(largest)

    assert len(payload) <= PAYLOAD_LIMIT_BYTES
    assert read(payload).condition == LARGEST_CONDITION and read(payload).api == "x" * 200


@given(*[st.text(max_size=64)] * 6, st.integers(0, (1 << 63) - 1), st.text(max_size=300))
def test_no_announcement_is_too_long(
    ring: str, role: str, version: str, datacenter: str, software: str, region: str, leads: int, api: str
) -> None:
    said = Announcement(ring, role, version, datacenter, software, leads, api, region, LARGEST_CONDITION, "draining")

    payload = encode_announcement(said)

    assert len(payload) <= PAYLOAD_LIMIT_BYTES
    assert read(payload).leads == leads


def test_words_that_are_too_long_end_in_an_ellipsis_and_an_address_is_told_whole_or_not_at_all() -> None:
    long = Announcement("digest", "manager", "1.0", WIDEST * 60, "0.1", api="h" * 201)

    found = read(encode_announcement(long))

    assert found == msgspec.structs.replace(long, datacenter=WIDEST * 13 + "…", api="")


def test_what_is_not_too_long_is_told_as_it_is() -> None:
    where = ("digest", "manager", "1.0", "east", "0.1", 3, "10.0.0.1:8470", "europe")
    usual = Announcement(*where, NodeCondition(8, 2, 1), "active")

    assert read(encode_announcement(usual)) == usual


def test_one_of_an_earlier_version_is_read_and_nothing_is_known_of_how_it_does() -> None:
    earlier = msgspec.msgpack.encode(("digest", "manager", "1.0", "east", "0.1", 3, "10.0.0.1:8470"))

    found = read(earlier)

    assert (found.condition, found.phase) == (NodeCondition(), "")
    assert announced_readiness(found) == (Readiness.READY, "")


# -- how often it is told


def test_at_rest_nothing_new_is_said() -> None:
    speaker = Speaker()
    speaker.note(0, cpu_percent=3, memory_percent=41, cores=8, free=8)
    first = speaker.version

    for second in range(600):
        assert (
            speaker.note(second * SECOND, cpu_percent=second % 8, memory_percent=40 + second % 10, cores=8, free=8)
            is None
        )

    assert speaker.version == first


def test_shares_are_told_in_steps_and_one_between_two_steps_changes_nothing() -> None:
    told = NodeCondition(cpu_percent=20, memory_percent=UNMEASURED)

    assert in_steps(NodeCondition(cpu_percent=29), told).cpu_percent == 20
    assert in_steps(NodeCondition(cpu_percent=11), told).cpu_percent == 20
    assert in_steps(NodeCondition(cpu_percent=30), told).cpu_percent == 30
    assert in_steps(NodeCondition(cpu_percent=9), told).cpu_percent == 0
    assert in_steps(NodeCondition(memory_percent=47), told).memory_percent == 40
    assert in_steps(NodeCondition(), told).cpu_percent == UNMEASURED


def test_numbers_alone_are_told_anew_after_a_while() -> None:
    speaker = Speaker()
    assert speaker.note(0, free=8) is not None

    assert speaker.note(SECOND, free=7) is None
    found = speaker.note(NUMBERS_EVERY_NS, free=6)

    assert found is not None and found.condition.free == 6


@pytest.mark.parametrize(
    ("phase", "facts"),
    [("draining", {}), ("active", {"overload": 2}), ("active", {"health": int(Degradation.CRITICAL)})],
)
def test_what_others_decide_by_is_told_and_spread_at_once(phase: ManagerPhase, facts: dict[str, int]) -> None:
    speaker = Speaker()
    speaker.note(0)
    version = speaker.version

    found = speaker.note(1, phase, **facts)

    assert found is not None and speaker.version == version + 1
    assert announced_readiness(found)[0] is not Readiness.READY
    assert speaker.membership._queue.pending


def test_a_level_by_which_nobody_decides_is_told_with_the_numbers() -> None:
    speaker = Speaker()
    speaker.note(0)

    assert speaker.note(1, overload=1, health=int(Degradation.HIGH)) is None
    found = speaker.note(NUMBERS_EVERY_NS, overload=1, health=int(Degradation.HIGH))

    assert found is not None and (found.condition.overload_word, found.condition.health_word) == ("busy", "high")


def test_who_leads_goes_on_telling_how_it_does() -> None:
    speaker = Speaker()
    speaker.note(0, cores=8)

    speaker.announcer.lead(1, 7)

    state = speaker.membership.state
    assert state is not None
    assert (read(state.payload).leads, read(state.payload).condition.cores) == (7, 8)


# -- what it says of readiness


@pytest.mark.parametrize(
    ("phase", "condition", "readiness", "why"),
    [
        ("active", NodeCondition(), Readiness.READY, ""),
        ("active", NodeCondition(overload=1, health=3), Readiness.READY, ""),
        ("active", NodeCondition(overload=2), Readiness.UNREADY, "it is overloaded"),
        ("active", NodeCondition(health=4), Readiness.UNREADY, "its health is critical: it handles everything late"),
        ("active", NodeCondition(health=99), Readiness.UNREADY, "its health is critical: it handles everything late"),
        ("syncing", NodeCondition(), Readiness.UNREADY, "it is still learning what others know"),
        ("draining", NodeCondition(overload=3), Readiness.LEAVING, "it leaves, and takes nothing new"),
    ],
)
def test_whether_a_member_takes_work_follows_from_what_it_says(
    phase: str, condition: NodeCondition, readiness: Readiness, why: str
) -> None:
    assert announced_readiness(Announcement("", condition=condition, phase=phase)) == (readiness, why)


def test_of_one_that_has_said_nothing_yet_nothing_bad_is_thought() -> None:
    assert announced_readiness(None) == (Readiness.READY, "")


def test_levels_of_a_later_version_are_the_worst_there_is() -> None:
    condition = NodeCondition(overload=200, health=200)

    assert (condition.overload_word, condition.health_word) == ("overloaded", "critical")
