"""What users may do, also where a manager asks for them."""

import pytest

from talka.wire.manager_calls import CALLED_BY, CALLS, CHANGES
from talka.wire.security.access import LEAST, OF_NODES, USER_ROLES, Asker, has_role, objection, own


@pytest.mark.parametrize("kind", CALLED_BY)
@pytest.mark.parametrize("role", [*USER_ROLES, "", "root"])
def test_whoever_has_the_least_role_of_an_operation_may_have_it_passed_on(kind: type, role: str) -> None:
    for operation in CALLED_BY[kind]:
        least = LEAST.get(operation) or OF_NODES[operation]
        assert (objection(Asker(operation, role), CALLED_BY[kind]) == "") is has_role(role, least)


def test_roles_are_in_order() -> None:
    assert has_role("admin", "viewer") and has_role("viewer", "viewer")
    assert not has_role("viewer", "submitter") and not has_role("operator", "admin")


def test_refusal_names_the_role_that_it_takes() -> None:
    assert objection(Asker("drain", "submitter"), ("drain",)) == (
        "a submitter may not ask for 'drain': that takes the role operator"
    )


def test_what_is_asked_for_must_fit_the_operation() -> None:
    """A viewer's look at jobs is no reason to drain a worker."""
    assert objection(Asker("jobs", "admin"), ("drain",)) == "nobody may ask for 'drain' by 'jobs'"
    assert objection(Asker("livez", "admin"), ("jobs",)) == "nobody may ask for 'jobs' by 'livez'"
    assert objection(Asker("no such thing", "admin"), ("jobs",))


def test_what_nobody_asked_for_is_refused() -> None:
    assert "without who asked for it" in objection(None, ("cancel",))


def test_every_call_there_is_can_be_made_by_some_operation() -> None:
    assert set(CALLED_BY) == set(CALLS) and set(CHANGES) < set(CALLED_BY)
    assert all(objection(own(operations[0]), operations) == "" for operations in CALLED_BY.values())
