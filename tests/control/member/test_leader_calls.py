from random import Random

from talka.cluster.effects import Lane, Send
from talka.control.member.leader_calls import AGAIN_NS, ELSEWHERE_NS, LIMIT_NS, OPEN_LIMIT, CallEnded, LeaderCalls
from talka.units import NEVER
from talka.wire.jobs import CHANNEL
from talka.wire.manager_calls import CallAnswer, JobsTold, ListJobs, ManagerCall
from talka.wire.security.access import own
from talka.wire.views import JobsPage

ALL = ListJobs()
NONE = JobsTold(JobsPage([]))


def asked(calls: LeaderCalls, now: int = 0, leader: str = "m1") -> int:
    number, _ = calls.ask(now, ALL, leader)
    return number


def test_a_question_goes_to_the_leader_and_its_answer_ends_it() -> None:
    calls = LeaderCalls(Random(1))

    number, effects = calls.ask(0, ALL, "m1")
    assert effects == [Send(CHANNEL, "m1", ManagerCall(number, ALL, own("jobs")), Lane.RESULTS)]
    ended = calls.on_answer(5, CallAnswer(number, NONE))

    assert ended == [CallEnded(number, "", NONE)]
    assert calls.next_tick_at == NEVER
    assert calls.on_answer(6, CallAnswer(number, NONE)) == [], "a doubled answer is no news"


def test_a_problem_ends_a_question_too() -> None:
    calls = LeaderCalls(Random(1))
    number = asked(calls)

    other = asked(calls, 3)

    assert calls.on_answer(5, CallAnswer(number, None, "busy", "later", 1500)) == [
        CallEnded(number, "busy", None, "later", 1500)
    ]
    assert calls.next_tick_at <= 3 + AGAIN_NS, "the other one waits"
    calls.tick(calls.next_tick_at, "m1")
    assert calls.on_answer(6, CallAnswer(other, NONE)) == [CallEnded(other, "", NONE)]


def test_numbers_differ_within_a_life_and_from_those_of_another() -> None:
    calls, others = LeaderCalls(Random(1)), LeaderCalls(Random(2))

    numbers = [asked(calls), asked(calls), asked(others), asked(others)]

    assert len({*numbers}) == 4


def test_a_question_is_asked_again_until_it_is_answered_whoever_leads_then() -> None:
    calls = LeaderCalls(Random(1))
    number = asked(calls)
    assert calls.next_tick_at == AGAIN_NS
    assert calls.tick(AGAIN_NS - 1, "m1") == []

    assert calls.tick(AGAIN_NS, "m2") == [Send(CHANNEL, "m2", ManagerCall(number, ALL, own("jobs")), Lane.RESULTS)]
    assert calls.next_tick_at == 2 * AGAIN_NS


def test_without_a_leader_nothing_is_said_until_there_is_one() -> None:
    calls = LeaderCalls(Random(1))
    number, effects = calls.ask(0, ALL, "")
    assert effects == []
    assert calls.next_tick_at == ELSEWHERE_NS

    assert calls.tick(ELSEWHERE_NS, "") == []
    assert calls.next_tick_at == 2 * ELSEWHERE_NS
    assert calls.tick(2 * ELSEWHERE_NS, "m3") == [
        Send(CHANNEL, "m3", ManagerCall(number, ALL, own("jobs")), Lane.RESULTS)
    ]


def test_a_manager_that_does_not_lead_makes_it_ask_again_soon() -> None:
    calls = LeaderCalls(Random(1))
    number = asked(calls)

    assert calls.on_answer(100, CallAnswer(number, None, "elsewhere", "m2")) == []

    assert calls.next_tick_at == 100 + ELSEWHERE_NS
    assert calls.tick(100 + ELSEWHERE_NS, "m2") == [
        Send(CHANNEL, "m2", ManagerCall(number, ALL, own("jobs")), Lane.RESULTS)
    ]


def test_in_the_end_a_question_is_given_up_with_a_sentence() -> None:
    calls = LeaderCalls(Random(1))
    first, second = asked(calls), asked(calls, 1)
    for turn in range(1, 20):
        calls.tick(turn * AGAIN_NS + 1, "m1")

    assert calls.tick(LIMIT_NS, "m1") == [
        CallEnded(first, "unavailable", None, "the leader m1 did not answer within 20 s"),
    ]
    assert calls.tick(LIMIT_NS + 1, "") == [
        CallEnded(second, "unavailable", None, "no manager leads the cluster: a majority of managers must be there")
    ]
    assert calls.next_tick_at == NEVER


def test_a_question_wakes_no_later_than_its_end() -> None:
    calls = LeaderCalls(Random(1))
    asked(calls)
    calls.tick(LIMIT_NS - 1, "m1")

    assert calls.next_tick_at == LIMIT_NS


def test_beyond_the_limit_a_question_is_refused_and_not_sent() -> None:
    calls = LeaderCalls(Random(1))
    first = asked(calls)
    for _ in range(OPEN_LIMIT - 1):
        asked(calls)

    number, effects = calls.ask(0, ALL, "m1")
    assert effects == [CallEnded(number, "busy", None, "this manager has too many questions open", 1000)]
    calls.on_answer(1, CallAnswer(first, NONE))

    assert len(calls.ask(1, ALL, "m1")[1]) == 1
