from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.membership.members import (
    ALIVE,
    DEAD,
    FORMER_LIMIT,
    LEFT,
    PATIENCE_LIMIT,
    PATIENCE_NS,
    SUSPECT,
    Claim,
    Member,
    Members,
    Status,
    claim_of,
    outranks,
)
from talka.wire.membership import Alive, State

quick = settings(deadline=None, derandomize=True, max_examples=200)
news = st.tuples(st.sampled_from(list(Status)), st.integers(0, 3))


def alive(name: str, boot: int = 1, incarnation: int = 0) -> Alive:
    return Alive(name, boot, incarnation, f"{name}:1", "zone", b"meta")


def table(count: int, *, limit: int = 1000, seed: int = 1) -> Members:
    members = Members(limit, Random(seed))
    for number in range(count):
        members.add(alive(f"m{number}"), 0)
    return members


def known(members: Members, name: str) -> Member:
    member = members.get(name)
    assert member is not None
    return member


def merged(heard: list[tuple[Status, int]]) -> tuple[Status, int | None]:
    status, incarnation = ALIVE, 0
    for item in heard:
        if outranks(*item, status, incarnation):
            status, incarnation = item
    # Of one who left, the incarnation no longer matters.
    return status, None if status == LEFT else incarnation


@given(heard=st.lists(news, max_size=6), data=st.data())
@quick
def test_members_that_heard_the_same_news_agree_in_whatever_order_it_came(
    heard: list[tuple[Status, int]], data: st.DataObject
) -> None:
    other_order = data.draw(st.permutations(heard))

    assert merged(heard) == merged([*other_order, *heard])


def test_a_higher_incarnation_refutes_and_the_same_one_does_not() -> None:
    assert outranks(ALIVE, 2, DEAD, 1)
    assert not outranks(ALIVE, 1, SUSPECT, 1)
    assert outranks(SUSPECT, 1, ALIVE, 1)
    assert outranks(DEAD, 1, SUSPECT, 1)
    assert not outranks(SUSPECT, 0, ALIVE, 1)


def test_one_who_left_does_not_come_back_in_the_same_life() -> None:
    assert outranks(LEFT, 0, ALIVE, 9)
    assert not outranks(ALIVE, 99, LEFT, 0)
    assert not outranks(LEFT, 99, LEFT, 0)


def test_another_life_is_taken_when_it_speaks_itself_or_when_the_recorded_one_is_over() -> None:
    assert claim_of(2, [], ALIVE, True) is Claim.TAKE
    assert claim_of(2, [], DEAD, False) is Claim.TAKE
    assert claim_of(2, [], LEFT, False) is Claim.TAKE


def test_another_life_that_only_others_tell_of_is_verified_while_the_recorded_one_lives() -> None:
    assert claim_of(2, [], ALIVE, False) is Claim.VERIFY
    assert claim_of(2, [], SUSPECT, False) is Claim.VERIFY


def test_a_life_that_was_replaced_is_taken_back_only_when_it_speaks_itself_after_a_death() -> None:
    assert claim_of(2, [1, 2], DEAD, True) is Claim.TAKE
    assert claim_of(2, [1, 2], DEAD, False) is Claim.REFUSE
    assert claim_of(2, [1, 2], SUSPECT, True) is Claim.REFUSE


def test_a_member_that_begins_another_life_starts_anew_and_its_former_lives_are_remembered_up_to_a_limit() -> None:
    members = table(1)
    member = known(members, "m0")
    members.move(member, SUSPECT, 1)
    member.state, member.told, member.blocked, member.misses = State(3, b""), 3, True, 2

    for boot in range(2, 12):
        members.replace(member, alive("m0", boot, 5), boot)

    assert (member.boot, member.incarnation, member.status, member.since) == (11, 5, ALIVE, 11)
    assert (member.version, member.told, member.blocked, member.misses) == (0, 0, False, 0)
    assert member.former == list(range(3, 11))
    assert len(member.former) == FORMER_LIMIT
    assert (members.living, members.suspected) == (1, 0)


@given(moves=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(list(Status))), max_size=30))
@quick
def test_the_living_and_the_suspected_are_counted(moves: list[tuple[int, Status]]) -> None:
    members = table(5)

    for number, status in moves:
        members.move(known(members, f"m{number}"), status, 1)

    assert members.living == sum(member.status <= SUSPECT for member in members.all())
    assert members.suspected == sum(member.status == SUSPECT for member in members.all())


def test_who_dies_is_no_longer_held_blocked() -> None:
    members = table(1)
    member = known(members, "m0")
    member.blocked, member.misses = True, 3

    members.move(member, DEAD, 1)

    assert (member.blocked, member.misses) == (False, 0)


def test_each_round_probes_every_living_member_once_and_in_another_order() -> None:
    members = table(20)
    members.move(known(members, "m3"), DEAD, 0)
    members.move(known(members, "m4"), SUSPECT, 0)
    living = sorted(member.name for member in members.all() if member.name != "m3")

    rounds = []
    for _ in range(2):
        probed = [members.next_to_probe() for _ in range(19)]
        rounds.append([member.name for member in probed if member is not None])

    assert sorted(rounds[0]) == sorted(rounds[1]) == living
    assert rounds[0] != rounds[1]


def test_nobody_is_probed_when_nobody_lives() -> None:
    members = table(1)
    members.move(known(members, "m0"), DEAD, 0)

    assert members.next_to_probe() is None


def test_a_newcomer_is_put_anywhere_and_makes_nobody_be_probed_twice_in_a_round() -> None:
    places = []
    for seed in range(40):
        members = table(6, seed=seed)
        first = [members.next_to_probe() for _ in range(3)]
        members.add(alive("new"), 0)
        rest = []
        while len(rest) < 4 and (member := members.next_to_probe()) is not None:
            rest.append(member)
            if member.name == "new":
                break
        assert not any(member in first for member in rest[:3])
        places.append("new" in [member.name for member in rest[:3]])

    assert any(places) and not all(places)


@given(
    count=st.integers(1, 5),
    total=st.integers(0, 40),
    seed=st.integers(0, 5),
    statuses=st.lists(st.sampled_from(list(Status)), min_size=40, max_size=40),
)
@quick
def test_as_many_different_members_are_picked_as_there_are(
    count: int, total: int, seed: int, statuses: list[Status]
) -> None:
    members = table(total, seed=seed)
    for member, status in zip(members.all(), statuses, strict=False):
        members.move(member, status, 10 if member.name < "m2" else 20)
    without = members.get("m0")

    picked = members.pick(count, highest=SUSPECT, dead_since=15, without=without)

    fit = [
        m for m in members.all() if m is not without and (m.status <= SUSPECT or (m.status == DEAD and m.since >= 15))
    ]
    assert len(picked) == len({member.name for member in picked}) == min(count, len(fit))
    assert all(member in fit for member in picked)


def test_only_those_alive_are_picked_unless_more_is_asked_for() -> None:
    members = table(3)
    members.move(known(members, "m0"), SUSPECT, 0)
    members.move(known(members, "m1"), DEAD, 0)

    assert [member.name for member in members.pick(3)] == ["m2"]


def test_the_dead_and_gone_are_forgotten_after_their_time_and_the_others_keep_their_turn() -> None:
    members = table(4)
    seen = [member.name for member in (members.next_to_probe(), members.next_to_probe()) if member is not None]
    for name, status, since in ((seen[0], DEAD, 5), (seen[1], LEFT, 9)):
        members.move(known(members, name), status, since)
    left_to_probe = sorted(member.name for member in members.all() if member.name not in seen)

    assert members.reap(6) == [seen[0]]
    assert members.get(seen[0]) is None and len(members) == 3
    probed = [members.next_to_probe(), members.next_to_probe()]
    assert sorted(member.name for member in probed if member is not None) == left_to_probe
    assert members.reap(10) == [seen[1]]


def test_forgetting_one_whose_turn_is_still_to_come_moves_nobody_else() -> None:
    members = table(3)
    first = members.next_to_probe()
    assert first is not None
    others = [member for member in members.all() if member is not first]
    members.move(others[0], DEAD, 0)

    members.reap(1)

    assert members.next_to_probe() is others[1]


def test_a_full_table_gives_up_the_longest_dead_and_never_the_living() -> None:
    members = table(3, limit=3)
    assert members.add(alive("new"), 0) is None
    members.move(known(members, "m1"), DEAD, 7)
    members.move(known(members, "m2"), LEFT, 6)

    assert members.add(alive("new"), 8) is not None
    assert sorted(member.name for member in members.all()) == ["m0", "m1", "new"]
    assert members.living == 2


def test_a_member_shows_what_it_is() -> None:
    assert repr(Member(alive("a", 7, 2), 0)) == "Member('a', boot=7, ALIVE at 2)"


def test_one_that_refutes_again_and_again_is_waited_for_longer_and_not_for_ever() -> None:
    member = Member(Alive("a", 1, 0, "at-a"), 0)
    waits = []
    for number in range(6):
        member.refuted(number * PATIENCE_NS // 2)
        waits.append(member.patience(number * PATIENCE_NS // 2))

    assert waits == [1, 2, 3, PATIENCE_LIMIT, PATIENCE_LIMIT, PATIENCE_LIMIT]
    assert member.patience(member.refuted_at + PATIENCE_NS) == 1


def test_refutations_far_apart_have_nothing_to_do_with_each_other() -> None:
    member = Member(Alive("a", 1, 0, "at-a"), 0)
    for number in range(4):
        member.refuted(number * PATIENCE_NS)

    assert member.patience(member.refuted_at) == 1
