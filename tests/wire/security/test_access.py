"""What users may do, also where a manager asks for them."""

import pytest

from talka.wire.security.access import CALLED_BY, CHANGES, LEAST, OF_NODES, USER_ROLES, Asker, has_role, objection, own
from talka.wire.security.permissions import CALLS


@pytest.mark.parametrize("what", CALLED_BY)
@pytest.mark.parametrize("role", [*USER_ROLES, "", "root"])
def test_whoever_has_the_least_role_of_an_operation_may_have_it_passed_on(what: str, role: str) -> None:
    for operation in CALLED_BY[what]:
        least = LEAST.get(operation) or OF_NODES[operation]
        assert (objection(Asker(operation, role), what) == "") is has_role(role, least)


def test_roles_are_in_order() -> None:
    assert has_role("admin", "viewer") and has_role("viewer", "viewer")
    assert not has_role("viewer", "submitter") and not has_role("operator", "admin")


def test_refusal_names_the_role_that_it_takes() -> None:
    assert objection(Asker("drain", "submitter"), "drain") == (
        "a submitter may not ask for 'drain': that takes the role operator"
    )


def test_what_is_asked_for_must_fit_the_operation() -> None:
    """A viewer's look at jobs is no reason to drain a worker."""
    assert objection(Asker("jobs", "admin"), "drain") == "nobody may ask for 'drain' by 'jobs'"
    assert objection(Asker("livez", "admin"), "jobs") == "nobody may ask for 'jobs' by 'livez'"
    assert objection(Asker("no such thing", "admin"), "jobs")


def test_what_nobody_asked_for_is_refused() -> None:
    assert "without who asked for it" in objection(None, "cancel")


def test_every_call_there_is_can_be_made_by_some_operation() -> None:
    assert set(CALLED_BY) == set(CALLS) and set(CHANGES) < set(CALLED_BY)
    assert all(objection(own(what), what) == "" for what in CALLED_BY)
    assert own("unknown") == Asker("unknown", "admin")
