"""What a member answers: shapes that programs rely on, figures that Prometheus reads, and sentences."""

import json
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist, Transmit
from talka.cluster.membership import verdicts
from talka.control.member import admin_queries
from talka.control.member.admin_queries import MemberFacts, answer
from talka.control.member.admission import RingChanged
from talka.control.member.announcement import Announcement
from talka.control.member.composite import ClusterMember, QuestionAsked
from talka.control.member.key_distribution import NotConfirmed
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire import asking
from talka.wire.asking import (
    AddKey,
    Ask,
    AskAnswer,
    AskAudit,
    AskKeys,
    AskLeader,
    AskLease,
    AskMembers,
    AskMetrics,
    ChangeLease,
    Question,
    RepairKeys,
    RetireKey,
    UseKey,
)
from talka.wire.condition import NodeCondition
from talka.wire.membership import (
    ADDRESS_LIMIT,
    REASON_LIMIT,
    ZONE_LIMIT,
    Alive,
    Dead,
    MemberHasLeft,
    MemberState,
    Stated,
    Suspect,
)
from talka.wire.packets import NAME_LIMIT, decode_packet
from talka.wire.security.keys import Keyring
from talka.wire.security.sealing import BadSeal, Seal
from tests.control.member.asked_members import BOOT, K1, K2, NEW, OLD, figures, hear, member_of


def asked(member: ClusterMember, question: Question, now: int = 0, **more: Any) -> Any:
    content, effects = answer(member, now, question, **more)
    assert effects == []
    return json.loads(content)


# -- members


UNKNOWN = {
    "cores": 0,
    "free": 0,
    "queue": 0,
    "cpu_percent": None,
    "memory_percent": None,
    "overload": "",
    "health": "",
    "decision": "route",
    "why": "",
}
HOW_IT_DOES = NodeCondition(8, 3, 2, 40, overload=2, health=1)


def test_members_are_told_with_all_that_programs_want_to_know() -> None:
    member = member_of()
    standing = msgspec.msgpack.encode(
        Announcement("digest", "gate", "1.0", "west", "0.2", region="r9", condition=HOW_IT_DOES)
    )
    hear(
        member,
        Alive("c", 3, 2, "10.0.0.2:7", "z2"),
        Stated("c", 3, MemberState(1, standing)),
        Alive("a", 4, 0, "10.0.0.3:7"),
        Suspect("a", 4, 0, "c", "no answer"),
    )

    page = asked(member, AskMembers())

    assert page == {
        "members": [
            {
                "name": "a",
                "state": "suspect",
                "address": "10.0.0.3:7",
                "boot": "4",
                "incarnation": 0,
                "zone": "",
                "role": "",
                "datacenter": "",
                "software": "",
                "accuser": "c",
                "reason": "no answer",
                "datagrams": True,
                "self": False,
                "protocol": "1.0",
                "region": "",
                **UNKNOWN,
                "decision": "hold",
                "why": "it does not answer",
            },
            {
                "name": "b",
                "state": "alive",
                "address": "10.0.0.1:7",
                "boot": str(BOOT),
                "incarnation": 0,
                "zone": "z1",
                "role": "manager",
                "datacenter": "east",
                "software": "0.1",
                "accuser": "",
                "reason": "",
                "datagrams": True,
                "self": True,
                "protocol": "1.0",
                "region": "",
                **UNKNOWN,
                "overload": "normal",
                "health": "normal",
            },
            {
                "name": "c",
                "state": "alive",
                "address": "10.0.0.2:7",
                "boot": "3",
                "incarnation": 2,
                "zone": "z2",
                "role": "gate",
                "datacenter": "west",
                "software": "0.2",
                "accuser": "",
                "reason": "",
                "datagrams": True,
                "self": False,
                "protocol": "1.0",
                "region": "r9",
                **UNKNOWN,
                "cores": 8,
                "free": 3,
                "queue": 2,
                "cpu_percent": 40,
                "overload": "stressed",
                "health": "elevated",
                "decision": "hold",
                "why": "it is overloaded",
            },
        ],
        "next": "",
    }


def test_workers_that_are_heard_here_are_told_beside_members_page_by_page() -> None:
    member = member_of()
    workers = [MemberFacts(name, "healthy", "", "1", 0, role="worker") for name in ("w1", "b", "w2")]

    first = asked(member, AskMembers(), workers=workers, page_limit=1)
    second = asked(member, AskMembers(first["next"]), workers=workers, page_limit=1)
    third = asked(member, AskMembers(second["next"]), workers=workers, page_limit=1)

    assert [(one["name"], one["role"]) for one in first["members"]] == [("b", "manager"), ("b", "worker")]
    assert [one["name"] for page in (second, third) for one in page["members"]] == ["w1", "w2"]
    assert (first["next"], second["next"], third["next"]) == ("b", "w1", "")


def test_of_one_that_left_it_is_told_that_it_did() -> None:
    member = member_of()
    hear(member, Alive("z", 1, 0, "at-z"), MemberHasLeft("z", 1, 0))

    (left,) = [one for one in asked(member, AskMembers())["members"] if one["name"] == "z"]

    assert (left["decision"], left["why"]) == ("evict", "it left")


def test_every_state_has_a_word_and_one_whose_datagrams_are_blocked_is_told_so() -> None:
    member = member_of()
    hear(member, *(Alive(name, 1, 0, f"at-{name}") for name in "wxyz"))
    hear(member, Suspect("x", 1, 0, "w", "no answer"), Dead("y", 1, 0, "w", "no answer"), MemberHasLeft("z", 1, 0))
    assert member.membership is not None
    w = member.membership.get("w")
    assert w is not None
    w.blocked = True

    found = {fact["name"]: fact for fact in asked(member, AskMembers())["members"]}

    assert {name: fact["state"] for name, fact in found.items()} == {
        "b": "alive",
        "w": "alive",
        "x": "suspect",
        "y": "dead",
        "z": "left",
    }
    assert [found[name]["accuser"] for name in "wxyz"] == ["", "w", "w", ""]
    assert [found[name]["datagrams"] for name in "wxyz"] == [False, True, True, True]


def test_one_that_is_leaving_says_so_of_itself_and_without_a_porter_no_more_is_told() -> None:
    member = member_of(is_sealed=False)
    assert member.membership is not None
    member.membership.leave(0)
    now = 0
    while not member.membership.has_left:
        now = max(now, member.next_tick_at)
        member.tick(now)

    (me,) = asked(member, AskMembers(), now)["members"]

    assert (me["state"], me["role"], me["datacenter"], me["software"]) == ("left", "", "", "")


@pytest.mark.parametrize("others", [0, 2, 3, 5, 6, 7])
def test_pages_of_members_hold_each_of_them_once_in_order(others: int) -> None:
    member = member_of()
    hear(member, *(Alive(f"m{number}", 1, 0, f"at-{number}") for number in range(others)))

    names: list[str] = []
    sizes = []
    after = ""
    while True:
        page = asked(member, AskMembers(after), page_limit=3)
        names += [fact["name"] for fact in page["members"]]
        sizes.append(len(page["members"]))
        after = page["next"]
        if not after:
            break

    assert names == ["b", *(f"m{number}" for number in range(others))]
    assert all(size == 3 for size in sizes[:-1]) and 0 < sizes[-1] <= 3


def test_after_the_last_name_there_is_nobody() -> None:
    assert asked(member_of(), AskMembers("zzz")) == {"members": [], "next": ""}


def test_a_page_of_the_longest_facts_fits_an_answer() -> None:
    longest = "\x00"  # six bytes in JSON
    fact = admin_queries.MemberFacts(
        longest * NAME_LIMIT,
        "suspect",
        longest * ADDRESS_LIMIT,
        str(2**62),
        2**62,
        longest * ZONE_LIMIT,
        *(longest * 64,) * 3,
        longest * NAME_LIMIT,
        longest * REASON_LIMIT,
    )
    page = admin_queries.MembersPage([fact] * admin_queries.PAGE_LIMIT, longest * NAME_LIMIT)

    assert len(asking.encode_content(page)) < asking.ANSWER_LIMIT_BYTES


def test_the_longest_verdicts_fit_an_answer() -> None:
    longest = "\x00"
    name = longest * NAME_LIMIT
    verdict = admin_queries.VerdictFacts(1e9, name, "suspect", name, longest * REASON_LIMIT, False, str(2**62), 2**62)

    assert len(asking.encode_content([verdict] * verdicts.LIMIT)) < asking.ANSWER_LIMIT_BYTES


# -- leader


def test_a_voter_tells_whom_it_follows_and_no_token_that_is_not_its_own() -> None:
    facts = asked(member_of(voters=("a", "b", "c")), AskLeader())

    assert facts == {
        "leader": "",
        "term": 0,
        "token": [],
        "voters": ["a", "b", "c"],
        "role": facts["role"],
        "phase": facts["phase"],
        "answering": facts["answering"],
    }
    assert isinstance(facts["role"], str) and isinstance(facts["phase"], str)


def test_the_leader_tells_its_token() -> None:
    member = member_of(voters=("b",))
    assert member.voter is not None
    now = 0
    while not member.voter.election.is_leading(now) or member.voter.token is None:
        now = max(now, member.next_tick_at)
        todo = member.tick(now)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Persist):
                todo += member.on_persisted(now, effect.ticket)
        assert now < 60 * SECOND

    facts = asked(member, AskLeader(), now)

    assert (facts["leader"], facts["role"]) == ("b", "leader")
    assert facts["token"] == [member.voter.token.parent, facts["term"], member.voter.token.sequence]
    values = figures(member, now)
    assert (values["talka_is_leader", ""], values["talka_term", ""]) == (1, facts["term"])
    assert asked(member, AskLeader(), now + 60 * SECOND)["token"] == [], "it would not lead so long without a word"


# -- audit


def test_verdicts_are_told_with_who_accused_whom_and_how_long_ago() -> None:
    member = member_of()
    hear(member, Alive("x", 2**61, 0, "at-x"), Alive("c", 1, 0, "at-c"))
    hear(member, Suspect("x", 2**61, 0, "c", "no answer"), now=SECOND)

    (verdict,) = [each for each in asked(member, AskAudit(), 3 * SECOND + 1) if each["verdict"] == "suspect"]

    assert verdict == {
        "seconds_ago": 2.0,
        "subject": "x",
        "verdict": "suspect",
        "accuser": "c",
        "reason": "no answer",
        "own": False,
        "boot": str(2**61),
        "incarnation": 0,
    }


# -- keys


def test_keys_are_told_by_their_ids_and_never_by_their_secrets() -> None:
    member = member_of()
    hear(member, Alive("c", 3, 0, "at-c"))

    content, _ = answer(member, 0, AskKeys(), expected=("d", "b"))

    assert json.loads(content) == {
        "keys": [{"id": K1, "is_primary": True}],
        "version": 0,
        "unconfirmed": ["c", "d"],
    }
    assert OLD.encode() not in content


def test_one_without_a_vote_names_the_living_member_that_leads_in_the_latest_term() -> None:
    member = member_of()
    assert json.loads(answer(member, 0, AskLeader())[0])["leader"] == ""
    for name, boot, term in (("c", 3, 4), ("d", 4, 7), ("e", 5, 6), ("f", 6, 0)):
        hear(member, Alive(name, boot, 0, f"at-{name}"))
        hear(member, Stated(name, boot, MemberState(1, msgspec.msgpack.encode(Announcement("digest", leads=term)))))
    hear(member, Alive("g", 7, 0, "at-g"))

    facts = json.loads(answer(member, 0, AskLeader())[0])

    assert (facts["leader"], facts["term"], facts["role"], facts["token"]) == ("d", 7, "no voter", [])


def test_one_without_members_and_without_a_vote_knows_no_leader() -> None:
    bare = ClusterMember(group="c/e", name="b", boot=2)

    assert json.loads(answer(bare, 0, AskLeader())[0])["leader"] == ""


def test_keys_are_added_used_and_retired_and_the_new_state_is_the_answer() -> None:
    member = member_of()
    assert member.key_distribution is not None

    content, effects = answer(member, 0, AddKey(NEW))
    assert effects == [RingChanged(member.key_distribution.ring)]
    assert {key["id"]: key["is_primary"] for key in json.loads(content)["keys"]} == {K1: True, K2: False}
    assert NEW.encode() not in content

    content, effects = answer(member, 0, UseKey(K2))
    assert effects == [RingChanged(member.key_distribution.ring)]
    assert {key["id"]: key["is_primary"] for key in json.loads(content)["keys"]} == {K1: False, K2: True}

    content, effects = answer(member, 0, RetireKey(K1))
    assert effects == [RingChanged(member.key_distribution.ring)]
    assert json.loads(content) == {"keys": [{"id": K2, "is_primary": True}], "version": 3, "unconfirmed": []}


def test_the_key_of_the_question_itself_is_not_retired() -> None:
    member = member_of()
    answer(member, 0, AddKey(NEW))
    answer(member, 0, UseKey(K2))

    with pytest.raises(Invalid, match="ask with the new secret"):
        answer(member, 0, RetireKey(K1), asked_with=K1)
    answer(member, 0, RetireKey(K1), asked_with=K2)


def test_what_would_shut_somebody_out_is_refused_unless_by_force() -> None:
    member = member_of()
    hear(member, Alive("c", 3, 0, "at-c"))
    answer(member, 0, AddKey(NEW))

    with pytest.raises(NotConfirmed, match="c did not confirm"):
        answer(member, 0, UseKey(K2))
    with pytest.raises(NotConfirmed, match="c, d did not confirm"):
        answer(member, 0, RetireKey(K2), expected=("d",))
    content, _ = answer(member, 0, RetireKey(K2, force=True), expected=("d",))
    assert json.loads(content)["keys"] == [{"id": K1, "is_primary": True}]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (AddKey("short"), "^the secret cannot be used: it has 5 characters"),
        (AddKey(OLD), f"^key {K1} is in use already"),
        (UseKey("nothing"), "^there is no key 'nothing' in use"),
        (RetireKey(K1), f"^key {K1} is the primary one"),
    ],
)
def test_a_change_of_keys_that_cannot_be_is_refused_with_a_sentence(question: Question, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        answer(member_of(), 0, question)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (AskMembers(), "^b has no view of members$"),
        (AskAudit(), "^b has no view of members$"),
        (AskKeys(), "^b seals nothing and has no keys$"),
        (AddKey(NEW), "^b seals nothing and has no keys$"),
        (UseKey(K1), "^b seals nothing and has no keys$"),
        (RetireKey(K1), "^b seals nothing and has no keys$"),
        (AskLease(), "^b is not a manager: ask a manager for the lease of workers$"),
        (ChangeLease(1), "^b is not a manager: ask a manager for the lease of workers$"),
    ],
)
def test_one_without_the_part_that_is_asked_about_says_so(question: Question, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        answer(member_of(is_sealed=False, has_membership=False), 0, question)


# -- the answer on its way


def test_a_question_is_answered_under_the_key_it_came_with_also_when_that_changed_the_keys() -> None:
    member = member_of()
    answer(member, 0, AddKey(NEW))
    question = QuestionAsked("#7", "someone", Ask(4, UseKey(K2)), K1)
    content, _ = answer(member, 0, question.ask.question)

    (sent,) = member.answer(0, question, AskAnswer(4, "", content))

    assert isinstance(sent, Transmit)
    assert (sent.to, sent.lane) == ("#7", Lane.STREAM)
    asker = Seal(Keyring.of((OLD,)), 1)
    opened = asker.open(sent.frame, me="someone")
    assert asking.decode(decode_packet(opened.content[1:]).body) == AskAnswer(4, "", content)
    with pytest.raises(BadSeal):
        asker.open(sent.frame, me="another")


# -- repairing


def test_keys_are_repaired_to_those_that_are_given_and_weak_ones_are_refused() -> None:
    member = member_of()

    content, effects = answer(member, 0, RepairKeys((NEW, OLD)), asked_with=K1)

    assert json.loads(content)["keys"] == [{"id": id, "is_primary": id == K2} for id in sorted((K1, K2))]
    assert [type(effect) for effect in effects] == [RingChanged]
    with pytest.raises(Invalid, match="secret 2 cannot be used: it has 5 characters"):
        answer(member, 0, RepairKeys((NEW, "short")), asked_with=K1)


def test_under_a_key_that_is_accepted_no_more_only_a_repair_can_be_asked() -> None:
    member = member_of()

    for question in (AskMembers(), AddKey(NEW), RetireKey(K1), AskMetrics()):
        with pytest.raises(Invalid, match=f"key {K2} is no longer accepted: with it, only talka cluster keys --repair"):
            answer(member, 0, question, asked_with=K2)
    answer(member, 0, AskKeys(), asked_with=K2)
    answer(member, 0, RepairKeys((NEW,)), asked_with=K2)
    assert member.admission is not None and member.admission.ring.accepted() == (K2,)
