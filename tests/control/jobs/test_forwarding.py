"""What other managers ask the leader for somebody: asked again whether they may, and put down."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from talka.cluster.effects import Send
from talka.control.jobs.effects import Forwarded
from talka.control.jobs.forwarding import REFUSED, TAKEN, forwarded
from talka.control.jobs.registry import Registry
from talka.wire.manager_calls import CallAnswer, CancelJob, DrainWorker, LeaderCall, ListJobs, ManagerCall, SubmitJob
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker, own

ADA = Asker("cancel", "submitter", "ada", "t1", "10.0.0.7")


@pytest.fixture
def registry(cabinet_of: Callable[..., Any]) -> Registry:
    group = cabinet_of("m1")
    name = group.leader()
    return Registry(group.now, me=name, voter=group.voters[name], rng=Random(1), wall_offset_ns=0, managers=lambda: ())


def answer_in(effects: list[Any]) -> CallAnswer:
    [answer] = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, CallAnswer)]
    return answer


def test_role_of_whoever_asked_is_looked_at_again(registry: Registry) -> None:
    call = ManagerCall(1, DrainWorker("w1"), Asker("drain", "viewer", "eve", "t2", "10.0.0.9"))
    effects = registry.on_call(0, "m2", call)
    answer = answer_in(effects)
    assert answer.problem == "forbidden"
    assert answer.text == "a viewer may not ask for 'drain': that takes the role operator"
    assert effects[0] == Forwarded("m2", "drain", call.asker, REFUSED, "w1", answer.text)
    assert registry.refused == {"forbidden": 1}


def test_call_that_names_nobody_is_refused_in_words_that_an_earlier_version_knows(registry: Registry) -> None:
    effects = registry.on_call(0, "m2", ManagerCall(1, CancelJob("j1")))
    assert answer_in(effects).problem == "invalid"
    assert isinstance(effects[0], Forwarded) and effects[0].asker is None


def test_change_that_was_passed_on_is_put_down_and_a_question_is_not(registry: Registry) -> None:
    effects = registry.on_call(0, "m2", ManagerCall(1, CancelJob("j1"), ADA))
    assert effects[0] == Forwarded("m2", "cancel", ADA, TAKEN, "j1")
    assert answer_in(effects).problem == "missing"
    effects = registry.on_call(0, "m2", ManagerCall(2, ListJobs(), Asker("jobs", "viewer", "ada")))
    assert len(effects) == 1 and answer_in(effects).problem == ""


def test_what_the_leaders_own_api_asks_leaves_its_line_there(registry: Registry) -> None:
    effects = registry.on_call(0, "m1", ManagerCall(1, CancelJob("j1"), ADA))
    assert len(effects) == 1 and answer_in(effects).problem == "missing"


def test_nobody_submits_in_the_name_of_another(
    cabinet_of: Callable[..., Any], order_of: Callable[..., JobOrder], registry: Registry
) -> None:
    order = order_of(submitted_by="somebody else")
    asker = Asker("submit", "submitter", "ada")
    registry.on_call(0, "m2", ManagerCall(1, SubmitJob(order), asker))
    registry.on_call(0, "m2", ManagerCall(2, SubmitJob(order), own("submit")))
    assert [entry.order.submitted_by for entry in registry.entries.values()] == ["ada", "somebody else"]


@pytest.mark.parametrize(("call", "subject"), [(CancelJob("j1", "because"), "j1"), (DrainWorker("w1"), "w1")])
def test_line_names_what_was_changed(call: LeaderCall, subject: str) -> None:
    assert [one.subject for one in forwarded("m2", ManagerCall(1, call, own("cancel")), "")] == [subject]


def test_line_of_a_submission_names_the_order(order_of: Callable[..., JobOrder]) -> None:
    call = ManagerCall(1, SubmitJob(order_of(name="shop")), own("submit"))
    assert [one.subject for one in forwarded("m2", call, "")] == ["shop"]


def test_refused_question_is_put_down_too() -> None:
    assert forwarded("m2", ManagerCall(1, ListJobs(), None), "no") == [Forwarded("m2", "jobs", None, REFUSED, "", "no")]
