"""Histories of a register: which could have happened in one place, and what is said of those that could not."""

from itertools import permutations
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from tests.sim.checkers.linearizability import RegisterHistory, RegisterOperation


def history_of(*calls: tuple[Any, ...]) -> RegisterHistory:
    """Each call: kind, began, ended or None, outcome or None, value."""
    history = RegisterHistory()
    for kind, began, ended, outcome, value in calls:
        op = history.invoke(began, "k", kind, value if kind == "write" else None)
        if outcome is not None:
            history.ended(ended, op, outcome, value if kind == "read" else None)
    return history


def write(began: int, ended: int | None, value: bytes, outcome: str | None = "accepted") -> tuple[Any, ...]:
    return ("write", began, ended, outcome, value)


def read(began: int, ended: int | None, value: bytes | None, outcome: str | None = "accepted") -> tuple[Any, ...]:
    return ("read", began, ended, outcome, value)


LEGAL = {
    "nothing was called": [],
    "only the initial value was read": [read(0, 1, None), read(2, 3, None)],
    "a write and its read": [write(0, 1, b"a"), read(2, 3, b"a")],
    "a read during a write sees either value": [write(0, 9, b"a"), read(1, 2, None), read(3, 4, b"a")],
    "overlapping writes in either order": [write(0, 9, b"a"), write(0, 9, b"b"), read(10, 11, b"a")],
    "a read that ends as its write begins is concurrent with it": [read(0, 5, b"a"), write(5, 6, b"a")],
    "an unknown write that was read later": [
        write(0, 1, b"a", "unknown"),
        write(2, 3, b"b"),
        read(4, 5, b"b"),
        read(6, 7, b"a"),
    ],
    "an unanswered write that nobody read": [write(0, None, b"a", None), write(1, 2, b"b"), read(3, 4, b"b")],
    "a refused write that nobody read": [write(0, 1, b"a", "refused"), read(2, 3, None)],
    "reads that were not answered count for nothing": [
        write(0, 1, b"a"),
        read(2, 3, None, "refused"),
        read(2, 3, None, "unknown"),
        read(2, None, None, None),
    ],
    "zones that only touch": [write(0, 1, b"a"), read(5, 6, b"a"), write(4, 5, b"b"), read(7, 8, b"b")],
}

ILLEGAL = {
    "a value that nobody wrote": ([read(0, 1, b"a")], "nobody ever wrote it"),
    "a refused write": ([write(0, 1, b"a", "refused"), read(2, 3, b"a")], "its write was refused"),
    "a value from the future": ([read(0, 1, b"a"), write(2, 3, b"a")], "its write began at 2 ns"),
    "the initial value after a write": ([write(0, 1, b"a"), read(2, 3, None)], "ended at the beginning"),
    "an old value after a newer one": (
        [write(0, 1, b"a"), write(2, 3, b"b"), read(4, 5, b"a")],
        "b'a' and b'b' each came before the other",
    ),
    "values that alternate": (
        [write(0, 9, b"a"), write(0, 9, b"b"), read(10, 11, b"a"), read(12, 13, b"b"), read(14, 15, b"a")],
        "each came before the other",
    ),
    "an unknown write that comes and goes": (
        [write(0, 1, b"a", "unknown"), read(2, 3, b"a"), read(4, 5, None)],
        "None and b'a' each came before the other",
    ),
    "a short zone below the reach of an earlier long one": (
        [write(0, 1, b"a"), read(20, 21, b"a"), write(2, 3, b"b"), read(5, 6, b"b"), write(8, 9, b"c")],
        "b'a' and b'c' each came before the other",
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_history_that_one_place_could_have_had_is_accepted(name: str) -> None:
    assert history_of(*LEGAL[name]).check("k") == []


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_history_that_no_single_place_could_have_had_is_told(name: str) -> None:
    calls, words = ILLEGAL[name]
    told = history_of(*calls).check("k")
    assert any(words in sentence for sentence in told), told


def test_keys_are_judged_apart() -> None:
    history = RegisterHistory()
    history.ended(1, history.invoke(0, "good", "write", b"a"), "accepted")
    history.ended(3, history.invoke(2, "bad", "read"), "accepted", b"a")
    assert history.keys() == ["good", "bad"] and len(history) == 2
    assert history.check("good") == [] and history.check("never used") == []
    assert history.check("bad") == ["key 'bad': b'a' was read at 3 ns, and nobody ever wrote it"]


def test_a_sentence_names_the_calls_that_contradict_each_other() -> None:
    assert history_of(write(0, 1, b"a"), write(2, 3, b"b"), read(4, 5, b"a")).check("k") == [
        "key 'k': b'a' and b'b' each came before the other:"
        " a call with b'a' ended at 1 ns, before one with b'b' began at 2 ns,"
        " but a call with b'b' ended at 3 ns, before one with b'a' began at 4 ns"
    ]


def test_a_history_refuses_what_it_could_not_judge() -> None:
    history = history_of(write(0, 1, b"a"))
    with pytest.raises(Invalid, match="never written before"):
        history.invoke(2, "k", "write", b"a")
    with pytest.raises(Invalid, match="never written before"):
        history.invoke(2, "k", "write", None)
    with pytest.raises(Invalid, match="not known when it begins"):
        history.invoke(2, "k", "read", b"a")
    with pytest.raises(Invalid, match="has ended before, accepted"):
        history.ended(2, 0, "unknown")
    history.invoke(2, "other", "write", b"a")  # another key may hold the same value
    assert len(history) == 2
    assert history.operation(0) == RegisterOperation("k", "write", 0, b"a", 1, "accepted")


def test_ten_thousand_calls_are_judged_at_once() -> None:
    history = RegisterHistory()
    for number in range(5000):
        value = b"%d" % number
        history.ended(4 * number + 1, history.invoke(4 * number, "k", "write", value), "accepted")
        history.ended(4 * number + 3, history.invoke(4 * number + 2, "k", "read"), "accepted", value)
    assert history.check("k") == []
    history.ended(20_002, history.invoke(20_001, "k", "read"), "accepted", b"0")
    assert len(history.check("k")) == 4999  # every later value contradicts the first


# ---- against every order there is


def is_linearizable(operations: list[RegisterOperation]) -> bool:
    """By trying: every choice of what unknown writes did, in every order that respects who ended before whom began."""
    certain = [op for op in operations if op.outcome == "accepted"]
    doubtful = [op for op in operations if op.kind == "write" and op.outcome in ("unknown", None)]
    for choice in range(1 << len(doubtful)):
        chosen = certain + [op for bit, op in enumerate(doubtful) if choice >> bit & 1]
        if any(is_legal(order) for order in permutations(chosen)):
            return True
    return False


def is_legal(order: tuple[RegisterOperation, ...]) -> bool:
    held: bytes | None = None
    for index, op in enumerate(order):
        if any(end_of(later) < op.began for later in order[index + 1 :]):
            return False
        if op.kind == "write":
            held = op.value
        elif op.value != held:
            return False
    return True


def end_of(op: RegisterOperation) -> float:
    return op.ended if op.outcome == "accepted" and op.ended is not None else inf


@st.composite
def histories(draw: st.DrawFn) -> RegisterHistory:
    history = RegisterHistory()
    values = [b"a", b"b", b"c"]
    unwritten = list(values)
    for _ in range(draw(st.integers(0, 6))):
        began = draw(st.integers(0, 9))
        ended = began + draw(st.integers(0, 5))
        outcome: Any = draw(st.sampled_from(["accepted", "accepted", "accepted", "unknown", "refused", None]))
        if draw(st.booleans()) and unwritten:
            op = history.invoke(began, "k", "write", unwritten.pop(0))
        else:
            op = history.invoke(began, "k", "read")
        if outcome is not None:
            history.ended(ended, op, outcome, draw(st.sampled_from([None, *values])))
    return history


@settings(deadline=None, derandomize=True, max_examples=120)
@given(histories())
def test_the_zones_say_what_trying_every_order_says(history: RegisterHistory) -> None:
    operations = [history.operation(op) for op in range(len(history))]
    assert (history.check("k") == []) == is_linearizable(operations)
