"""Who may open a connection to whom."""

from itertools import product

import pytest

from talka.wire.security.roles import MATRIX, Proven, Role, a, id_problem, may_connect

ALLOWED = {
    ("client", "gate"),
    ("client", "manager"),
    ("gate", "client"),
    ("gate", "gate"),
    ("gate", "manager"),
    ("manager", "client"),
    ("manager", "gate"),
    ("manager", "manager"),
    ("manager", "worker"),
    ("outside-worker", "gate"),
    ("outside-worker", "manager"),
    ("worker", "manager"),
}


@pytest.mark.parametrize(("initiator", "target"), list(product(Role, Role)), ids=str)
def test_exactly_the_connections_of_the_matrix_are_allowed(initiator: Role, target: Role) -> None:
    sentence = may_connect(initiator, target)
    assert (sentence == "") is ((str(initiator), str(target)) in ALLOWED)


def test_a_certificate_proves_a_role_that_is_known_and_no_other() -> None:
    assert Proven.of("w1", "worker") == Proven("w1", Role.WORKER)
    assert Proven.of("w1", "worker,manager") == Proven.of("w1", "") == Proven("w1", None)


def test_every_role_may_connect_to_somebody_and_nobody_dials_an_outside_worker() -> None:
    assert set(MATRIX) == set(Role)
    assert all(MATRIX.values())
    assert not any(Role.OUTSIDE_WORKER in targets for targets in MATRIX.values())


@pytest.mark.parametrize("initiator", list(Role), ids=str)
def test_gates_close_the_managers_to_clients_and_to_nobody_else(initiator: Role) -> None:
    changed = [
        target for target in Role if may_connect(initiator, target) != may_connect(initiator, target, has_gates=True)
    ]
    assert changed == ([Role.MANAGER] if initiator is Role.CLIENT else [])


def test_refusals_name_both_sides_and_what_is_allowed() -> None:
    assert may_connect(Role.WORKER, Role.GATE) == "a worker may not connect to a gate, only to a manager"
    assert (
        may_connect(Role.OUTSIDE_WORKER, Role.OUTSIDE_WORKER)
        == "an outside-worker may not connect to an outside-worker, only to a manager or a gate"
    )
    assert (
        may_connect(Role.CLIENT, Role.MANAGER, has_gates=True)
        == "a client may not connect to a manager where there are gates: connect to a gate"
    )


def test_roles_are_their_words() -> None:
    assert [str(role) for role in Role] == ["client", "worker", "outside-worker", "manager", "gate"]
    assert Role("gate") is Role.GATE
    assert [a(role) for role in Role] == ["a client", "a worker", "an outside-worker", "a manager", "a gate"]


@pytest.mark.parametrize("text", ["a", "Shop-1.eu_west", "x" * 64, "..."], ids=["one", "mixed", "longest", "dots"])
def test_ids_of_the_allowed_characters_are_ids(text: str) -> None:
    assert id_problem("cluster", text) == ""


@pytest.mark.parametrize(
    "text",
    ["", "x" * 65, "a b", "a/b", "a\n", "é", "a\x00", "٣"],
    ids=["empty", "long", "space", "slash", "newline", "accent", "nul", "arabic digit"],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert id_problem("cluster", text).startswith(f"cluster {text[:80]!r} is not an id: use 1 to 64 letters")


def test_a_very_long_text_is_not_repeated_whole() -> None:
    assert len(id_problem("cluster", "x" * 10_000)) < 200
