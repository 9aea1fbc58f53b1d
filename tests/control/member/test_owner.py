from random import Random

import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.leases import LeaseGranted, LeaseLost
from talka.control.member.owner import Owner
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.leases import CHANNEL, LEASE_KEY_LIMIT, AcquireLease, LeaseAnswer, LeaseMessage, ReleaseLease

TTL = 9 * SECOND
RETRY = 500 * MILLISECOND
SHORTER = TTL - TTL // 50
"""What an owner counts a lease of `TTL` for."""
VOTERS = ("a", "b", "c")


def owner_of(*, seed: int = 1, voters: tuple[str, ...] = VOTERS, **limits: int) -> Owner:
    return Owner(voters=voters, rng=Random(seed), retry_ns=RETRY, **limits)


def asked(effects: list[object]) -> tuple[str, AcquireLease]:
    """Whom the only question of this step goes to, and the question."""
    questions = [effect for effect in effects if isinstance(effect, Send)]
    assert len(questions) == 1, effects
    message = questions[0].message
    assert isinstance(message, AcquireLease)
    return questions[0].to, message


def granted(question: AcquireLease, epoch: int = 5, ttl_ns: int = TTL) -> LeaseAnswer:
    return LeaseAnswer(question.key, question.number, "granted", epoch, ttl_ns)


def owner_with(*, epoch: int = 5) -> tuple[Owner, str]:
    """An owner that asked for the key k at 0 and got it at once, and who gave it."""
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    assert owner.on_answer(0, to, granted(question, epoch)) == [LeaseGranted("k", epoch, SHORTER)]
    return owner, to


def next_question(owner: Owner) -> tuple[int, str, AcquireLease]:
    """Tick as the owner wishes until it asks: when, whom, what."""
    for _ in range(20):
        now = owner.next_tick_at
        effects = owner.tick(now)
        if any(isinstance(effect, Send) for effect in effects):
            return now, *asked(effects)
    raise AssertionError("it does not ask")


def test_an_owner_must_know_somebody_to_ask() -> None:
    with pytest.raises(Invalid, match="must know a voter"):
        Owner(voters=(), rng=Random(1))


@pytest.mark.parametrize("retry_ns", [-1, 0, MILLISECOND - 1])
def test_an_owner_asks_again_after_a_millisecond_at_the_earliest(retry_ns: int) -> None:
    with pytest.raises(Invalid, match=f"asks again after at least 1 ms, not {retry_ns} ns"):
        Owner(voters=VOTERS, rng=Random(1), retry_ns=retry_ns)

    assert asked(Owner(voters=VOTERS, rng=Random(1), retry_ns=MILLISECOND).want(0, "k", TTL))[1].key == "k"


@pytest.mark.parametrize("key", ["", "k" * (LEASE_KEY_LIMIT + 1)], ids=["empty", "too long"])
def test_a_key_that_no_message_may_carry_is_not_asked_for(key: str) -> None:
    owner = owner_of()

    with pytest.raises(Invalid, match=f"a key has 1 to {LEASE_KEY_LIMIT} characters, not {len(key)}"):
        owner.want(0, key, TTL)

    assert owner.next_tick_at == NEVER
    assert asked(owner.want(0, "k" * LEASE_KEY_LIMIT, TTL))[1].key == "k" * LEASE_KEY_LIMIT


@pytest.mark.parametrize("ttl_ns", [0, 10 * MILLISECOND - 1, 3600 * SECOND + 1])
def test_a_time_to_live_that_no_lease_can_have_is_not_asked_for(ttl_ns: int) -> None:
    owner = owner_of()

    with pytest.raises(Invalid, match=f"lease of 'k': its time to live is between 10 ms and one hour, not {ttl_ns} ns"):
        owner.want(0, "k", ttl_ns)

    assert owner.next_tick_at == NEVER


@pytest.mark.parametrize("ttl_ns", [10 * MILLISECOND, 3600 * SECOND])
def test_the_shortest_and_the_longest_lease_are_asked_for(ttl_ns: int) -> None:
    assert asked(owner_of().want(0, "k", ttl_ns))[1].ttl_ns == ttl_ns


def test_an_owner_that_wants_nothing_asks_for_no_tick() -> None:
    assert owner_of().next_tick_at == NEVER


def test_a_wanted_key_is_asked_for_at_once_and_held_from_the_answer_on() -> None:
    owner = owner_of()

    to, question = asked(owner.want(0, "k", TTL))
    assert to in VOTERS
    assert (question.key, question.epoch, question.ttl_ns) == ("k", 0, TTL)
    assert owner.holds(0, "k") is None

    assert owner.on_answer(10 * MILLISECOND, to, granted(question)) == [LeaseGranted("k", 5, SHORTER)]
    assert owner.holds(10 * MILLISECOND, "k") == 5


def test_a_lease_is_counted_from_before_it_was_asked_for_and_ends_by_the_owners_own_clock() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    owner.on_answer(2 * SECOND, to, granted(question))

    assert owner.holds(SHORTER - 1, "k") == 5
    assert owner.holds(SHORTER, "k") is None


def test_the_voter_asked_first_is_drawn() -> None:
    first = {asked(owner_of(seed=seed).want(0, "k", TTL))[0] for seed in range(20)}

    assert sorted(first) == list(VOTERS)


def test_an_owner_asks_the_leader_it_is_pointed_to_soon_and_from_then_on() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    leader = next(voter for voter in VOTERS if voter != to)

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "elsewhere", leader=leader))
    at, second, question = next_question(owner)

    assert (second, at) == (leader, MILLISECOND + RETRY // 10)
    owner.on_answer(at, second, granted(question))
    _, third, _ = next_question(owner)
    assert third == leader


def test_a_leader_that_is_no_voter_is_not_asked() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "elsewhere", leader="stranger"))

    at, second, _ = next_question(owner)
    assert second in VOTERS
    assert at >= RETRY, "nothing was learned, so it asks in its own time"


def test_a_pointer_for_a_key_that_is_no_longer_wanted_still_says_who_leads() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    leader = next(voter for voter in VOTERS if voter != to)
    owner.unwant(0, "k")

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "elsewhere", leader=leader))

    assert asked(owner.want(2 * MILLISECOND, "other", TTL))[0] == leader


def test_when_nobody_answers_the_owner_asks_again_a_little_later_and_then_another_voter() -> None:
    owner = owner_of()
    to, _ = asked(owner.want(0, "k", TTL))
    at = 0
    questions = []
    for _ in range(40):
        before = at
        at, whom, question = next_question(owner)
        assert RETRY <= at - before < RETRY + RETRY // 4
        questions.append((whom, question.number))

    assert questions[0][0] == to, "a single loss is no reason to go elsewhere"
    assert sorted({whom for whom, _ in questions}) == list(VOTERS)
    assert len({number for _, number in questions}) == 40, "every question has a number of its own"


def test_an_answer_of_any_kind_shows_that_the_one_asked_is_there() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    for _ in range(12):
        owner.on_answer(owner.next_tick_at - 1, to, LeaseAnswer("k", question.number, "busy"))
        _, whom, question = next_question(owner)
        assert whom == to


def test_a_lease_is_renewed_in_time_under_its_epoch() -> None:
    owner, leader = owner_with()

    at, to, question = next_question(owner)

    assert at <= TTL // 3
    assert (to, question.key, question.epoch) == (leader, "k", 5)
    assert owner.on_answer(at, to, granted(question)) == []
    assert owner.holds(at + SHORTER - 1, "k") == 5


def test_an_owner_whose_renewals_nobody_answers_stops_by_its_own_clock_and_asks_anew() -> None:
    owner, _ = owner_with()
    whom = []
    while owner.next_tick_at < SHORTER:
        for effect in owner.tick(owner.next_tick_at):
            assert isinstance(effect, Send), "nothing is lost before its end"
            whom.append(effect.to)
    assert sorted(set(whom)) == list(VOTERS), "it tried others"

    assert owner.next_tick_at == SHORTER
    news = owner.tick(SHORTER)

    assert news[0] == LeaseLost("k", 5)
    _, question = asked(news)
    assert question.epoch == 0
    assert owner.holds(SHORTER, "k") is None


def test_an_owner_that_is_told_that_its_lease_has_ended_stops_and_asks_anew() -> None:
    owner, leader = owner_with()
    at, _, question = next_question(owner)

    assert owner.on_answer(at, leader, LeaseAnswer("k", question.number, "ended", 5)) == [LeaseLost("k", 5)]

    assert owner.holds(at, "k") is None
    _, _, question = next_question(owner)
    assert question.epoch == 0


def test_a_key_that_another_holds_is_asked_for_again_when_it_may_be_free() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "held", 4, wait_ns=3 * SECOND))

    assert next_question(owner)[0] == MILLISECOND + 3 * SECOND


def test_a_key_that_another_holds_for_very_long_is_asked_for_once_in_a_ttl() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "held", 4, wait_ns=3600 * SECOND))

    assert next_question(owner)[0] == MILLISECOND + TTL


def test_a_key_that_will_be_free_at_once_is_not_asked_for_more_often_than_others() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "held", 4, wait_ns=1))

    assert next_question(owner)[0] >= RETRY


@pytest.mark.parametrize("answer", ["busy", "full", "held"])
def test_a_refusal_of_a_key_that_is_no_longer_wanted_changes_nothing(answer: str) -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    owner.unwant(0, "k")
    refusal = LeaseAnswer("k", question.number, answer, wait_ns=SECOND)  # type: ignore[arg-type]

    assert owner.on_answer(MILLISECOND, to, refusal) == []
    assert owner.next_tick_at == NEVER


def test_an_owner_gives_back_what_it_no_longer_wants() -> None:
    owner, leader = owner_with(epoch=7)

    assert owner.unwant(SECOND, "k") == [Send(CHANNEL, leader, ReleaseLease("k", 7), Lane.CONTROL)]

    assert owner.holds(SECOND, "k") is None
    assert owner.tick(TTL) == []
    assert owner.next_tick_at == NEVER, "it neither renews nor asks again"


def test_what_was_never_held_is_not_given_back() -> None:
    owner = owner_of()
    owner.want(0, "k", TTL)

    assert owner.unwant(MILLISECOND, "k") == []
    assert owner.unwant(MILLISECOND, "never wanted") == []
    assert owner.next_tick_at == NEVER


def test_a_grant_that_comes_after_the_key_was_given_up_is_not_taken() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    owner.unwant(MILLISECOND, "k")

    effects = owner.on_answer(2 * MILLISECOND, to, granted(question))

    assert not any(isinstance(effect, LeaseGranted) for effect in effects)
    assert owner.holds(2 * MILLISECOND, "k") is None


def test_a_grant_that_answers_no_open_question_is_not_taken() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))

    stale = LeaseAnswer("k", question.number + 1, "granted", 5, TTL)

    assert owner.on_answer(MILLISECOND, to, stale) == []
    assert owner.holds(MILLISECOND, "k") is None


def test_a_question_is_answered_once_so_a_grant_after_a_refusal_is_not_taken() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    owner.on_answer(MILLISECOND, to, LeaseAnswer("k", question.number, "busy"))

    assert owner.on_answer(2 * MILLISECOND, to, granted(question)) == []
    assert owner.holds(2 * MILLISECOND, "k") is None


def test_wanting_a_key_that_is_held_asks_nothing() -> None:
    owner, _ = owner_with()

    assert owner.want(MILLISECOND, "k", TTL) == []


def test_two_lives_of_an_owner_do_not_number_their_questions_alike() -> None:
    first = asked(owner_of(seed=1).want(0, "k", TTL))[1].number
    second = asked(owner_of(seed=2).want(0, "k", TTL))[1].number

    assert first != second


def test_an_owner_wants_a_limited_number_of_keys() -> None:
    owner = owner_of(wanted_limit=2)
    owner.want(0, "k", TTL)
    owner.want(0, "l", TTL)

    with pytest.raises(Invalid, match="lease of 'm': an owner may want 2 keys"):
        owner.want(0, "m", TTL)
    owner.want(MILLISECOND, "k", TTL)  # wanted already
    owner.unwant(MILLISECOND, "l")
    owner.want(MILLISECOND, "m", TTL)


def test_many_keys_are_asked_for_and_renewed_at_one_voter() -> None:
    owner = owner_of()
    questions: list[Send[LeaseMessage]] = []
    for number in range(50):
        questions += [effect for effect in owner.want(0, f"k{number}", TTL) if isinstance(effect, Send)]
    assert len({question.to for question in questions}) == 1

    for question in questions:
        assert isinstance(question.message, AcquireLease)
        owner.on_answer(0, question.to, granted(question.message))
    renewals = [effect for effect in owner.tick(owner.next_tick_at) if isinstance(effect, Send)]

    assert len(renewals) == 50
    assert {renewal.to for renewal in renewals} == {questions[0].to}


def test_a_voter_that_knows_no_leader_is_not_asked_for_ever() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    whom = [to]
    for _ in range(20):
        owner.on_answer(owner.next_tick_at - 1, to, LeaseAnswer("k", question.number, "elsewhere"))
        _, to, question = next_question(owner)
        whom.append(to)

    assert sorted(set(whom)) == list(VOTERS)


def test_a_grant_of_a_key_that_is_no_longer_wanted_is_given_back() -> None:
    owner = owner_of()
    to, question = asked(owner.want(0, "k", TTL))
    owner.unwant(MILLISECOND, "k")

    released = Send(CHANNEL, to, ReleaseLease("k", 5), Lane.CONTROL)
    assert owner.on_answer(2 * MILLISECOND, to, granted(question)) == [released]
