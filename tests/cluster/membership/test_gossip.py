"""News waiting to be sent on: the order, how often, and the limits."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.membership.gossip import MISFITS_LIMIT, NEWS_LIMIT_BYTES, QUEUE_LIMIT, GossipQueue, Priority
from talka.cluster.membership.presets import PRESETS

CONFIG = PRESETS["default"]
quick = settings(deadline=None, derandomize=True, max_examples=150)
PLENTY = 10_000


def queue_of(*names: str, limit: int = QUEUE_LIMIT, multiplier: int = 4) -> GossipQueue:
    """A queue with news of the same kind and size of each name, pushed in this order."""
    queue = GossipQueue(msgspec.structs.replace(CONFIG, retransmit_multiplier=multiplier), limit)
    for name in names:
        queue.push(name, name.encode(), Priority.ALIVE)
    return queue


def test_an_empty_queue_gives_nothing() -> None:
    queue = queue_of()

    assert not queue.pending
    assert queue.take(PLENTY, 10) == []


def test_the_newest_goes_first_among_equals() -> None:
    queue = queue_of("a", "b", "c")

    assert queue.pending
    assert queue.take(PLENTY, 10) == [b"c", b"b", b"a"]


def test_joins_and_leaves_go_before_alive_before_suspect_before_dead() -> None:
    queue = queue_of()
    for name, priority in [
        ("joined", Priority.JOINED_OR_LEFT),
        ("alive", Priority.ALIVE),
        ("suspect", Priority.SUSPECT),
        ("dead", Priority.DEAD),
    ]:
        queue.push(name, name.encode(), priority)

    assert queue.take(PLENTY, 10) == [b"joined", b"alive", b"suspect", b"dead"]


def test_what_was_sent_less_goes_before_what_matters_more() -> None:
    queue = queue_of()
    queue.push("a", b"a", Priority.JOINED_OR_LEFT)
    queue.take(PLENTY, 10)

    queue.push("b", b"b", Priority.DEAD)

    assert queue.take(PLENTY, 10) == [b"b", b"a"]


def test_under_backlog_each_round_takes_those_that_were_sent_least_newest_first() -> None:
    queue = queue_of("a", "b", "c")

    rounds = [queue.take(2, 9) for _ in range(6)]

    assert rounds == [[b"c", b"b"], [b"a", b"c"], [b"b", b"a"], [b"c", b"b"], [b"a", b"c"], [b"b", b"a"]]
    assert not queue.pending


@pytest.mark.parametrize(
    ("members", "times"), [(0, 4), (1, 4), (9, 4), (10, 8), (99, 8), (100, 12), (999, 12), (1000, 16)]
)
def test_news_is_sent_as_often_as_the_size_of_the_group_asks_for(members: int, times: int) -> None:
    queue = queue_of("a")

    for _ in range(times):
        assert queue.pending
        assert queue.take(PLENTY, members) == [b"a"]

    assert not queue.pending
    assert queue.take(PLENTY, members) == []


def test_in_a_group_that_has_shrunk_news_sent_often_enough_is_given_up() -> None:
    queue = queue_of("a")
    for _ in range(5):
        queue.take(PLENTY, 100)
    queue.push("b", b"b", Priority.ALIVE)

    assert queue.take(PLENTY, 9) == [b"b"]
    assert len(queue) == 1
    queue.forget("a")
    assert len(queue) == 1


def test_in_a_group_that_has_shrunk_nothing_may_be_left() -> None:
    queue = queue_of("a")
    for _ in range(4):
        queue.take(PLENTY, 100)

    assert queue.take(PLENTY, 9) == []
    assert not queue.pending


def test_newer_news_of_a_member_replaces_the_older_and_is_sent_from_the_start() -> None:
    queue = queue_of("a", "b", multiplier=1)
    queue.push("a", b"a2", Priority.DEAD)

    assert len(queue) == 2
    assert queue.take(PLENTY, 9) == [b"b", b"a2"]
    assert not queue.pending


def test_news_replaced_after_some_sendings_counts_anew() -> None:
    queue = queue_of("a", multiplier=2)
    queue.take(PLENTY, 9)

    queue.push("a", b"a2", Priority.ALIVE)

    assert [queue.take(PLENTY, 9) for _ in range(3)] == [[b"a2"], [b"a2"], []]


def test_what_is_forgotten_is_not_sent() -> None:
    queue = queue_of("a", "b")

    queue.forget("b")
    queue.forget("stranger")

    assert queue.take(PLENTY, 10) == [b"a"]


def test_what_was_sent_can_still_be_forgotten() -> None:
    queue = queue_of("a")
    queue.take(PLENTY, 10)

    queue.forget("a")

    assert not queue.pending


def test_what_does_not_fit_is_passed_over_and_keeps_its_place() -> None:
    queue = queue_of("a")
    queue.push("large", b"large", Priority.JOINED_OR_LEFT)

    assert queue.take(4, 10) == [b"a"]
    assert queue.take(5, 10) == [b"large"]


def test_the_budget_may_be_filled_to_the_last_byte() -> None:
    queue = queue_of("aa", "bb")

    assert queue.take(4, 10) == [b"bb", b"aa"]


@pytest.mark.parametrize("budget_bytes", [-1, 0, 1])
def test_a_budget_nothing_fits_sends_nothing_and_counts_nothing(budget_bytes: int) -> None:
    queue = queue_of("aa", multiplier=1)

    assert queue.take(budget_bytes, 9) == []
    assert queue.take(2, 9) == [b"aa"]


def test_the_search_for_something_that_fits_ends() -> None:
    within = queue_of("a")
    beyond = queue_of("a")
    for number in range(MISFITS_LIMIT):
        if number < MISFITS_LIMIT - 1:
            within.push(f"large {number}", b"large", Priority.JOINED_OR_LEFT)
        beyond.push(f"large {number}", b"large", Priority.JOINED_OR_LEFT)

    assert within.take(1, 10) == [b"a"]
    assert beyond.take(1, 10) == []
    assert len(within) == MISFITS_LIMIT
    assert len(beyond) == MISFITS_LIMIT + 1


def test_news_that_fits_no_datagram_is_not_kept_and_neither_is_what_it_replaces() -> None:
    queue = queue_of("a")

    queue.push("a", bytes(NEWS_LIMIT_BYTES + 1), Priority.ALIVE)
    assert not queue.pending
    queue.push("a", bytes(NEWS_LIMIT_BYTES), Priority.ALIVE)
    assert queue.take(NEWS_LIMIT_BYTES, 10) == [bytes(NEWS_LIMIT_BYTES)]


def test_a_full_queue_gives_up_what_was_sent_most() -> None:
    queue = queue_of("a", "b", limit=2)
    assert queue.take(1, 10) == [b"b"]

    queue.push("c", b"c", Priority.DEAD)

    assert len(queue) == 2
    assert queue.take(PLENTY, 10) == [b"a", b"c"]


def test_a_full_queue_gives_up_what_matters_least_and_then_the_oldest_of_those_never_sent() -> None:
    queue = queue_of("a", "b", limit=2)

    queue.push("c", b"c", Priority.DEAD)
    assert queue.take(PLENTY, 10) == [b"b", b"a"]
    queue = queue_of("a", "b", "c", limit=2)
    assert queue.take(PLENTY, 10) == [b"c", b"b"]


def test_by_default_a_queue_holds_as_many_as_its_limit() -> None:
    queue = queue_of(*(str(number) for number in range(QUEUE_LIMIT + 1)))

    assert len(queue) == QUEUE_LIMIT
    queue.forget("0")
    assert len(queue) == QUEUE_LIMIT


class NaiveQueue:
    """The same rules, told by sorting everything each time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.arrivals = 0
        self.waiting: dict[str, tuple[int, int, int, bytes]] = {}

    def ordered(self) -> list[str]:
        return sorted(self.waiting, key=lambda name: self.waiting[name][:3])

    def push(self, name: str, raw: bytes, priority: int) -> None:
        self.arrivals += 1
        self.waiting[name] = (0, priority, -self.arrivals, raw)
        for last in self.ordered()[self.limit :]:
            del self.waiting[last]

    def take(self, budget_bytes: int, sendings: int) -> list[bytes]:
        for name in self.ordered():
            if self.waiting[name][0] >= sendings:
                del self.waiting[name]
        taken = []
        misfits = 0
        for name in self.ordered():
            times, priority, order, raw = self.waiting[name]
            if misfits == MISFITS_LIMIT:
                break
            if len(raw) > budget_bytes:
                misfits += 1
                continue
            budget_bytes -= len(raw)
            taken.append(raw)
            self.waiting[name] = (times + 1, priority, order, raw)
            if times + 1 == sendings:
                del self.waiting[name]
        return taken


NAMES = [f"m{number}" for number in range(14)]
ACTION = st.one_of(
    st.tuples(st.just("push"), st.sampled_from(NAMES), st.integers(1, 30), st.sampled_from(list(Priority))),
    st.tuples(st.just("take"), st.just(""), st.integers(0, 80), st.sampled_from([1, 9, 10, 200])),
    st.tuples(st.just("forget"), st.sampled_from(NAMES), st.just(0), st.just(0)),
)


@given(actions=st.lists(ACTION, max_size=60), limit=st.integers(1, 14))
@quick
def test_the_queue_does_what_a_naive_one_does_within_its_limits(
    actions: list[tuple[str, str, int, int]], limit: int
) -> None:
    queue = queue_of(limit=limit, multiplier=2)
    naive = NaiveQueue(limit)
    newest: dict[str, bytes] = {}
    sent: dict[bytes, int] = {}
    for number, (action, name, size, extra) in enumerate(actions):
        if action == "push":
            raw = f"{name} {number}".encode().ljust(size, b".")
            newest[name] = raw
            queue.push(name, raw, extra)
            naive.push(name, raw, extra)
        elif action == "forget":
            newest.pop(name, None)
            queue.forget(name)
            naive.waiting.pop(name, None)
        else:
            taken = queue.take(size, extra)
            assert taken == naive.take(size, 2 * len(str(extra)))
            assert sum(map(len, taken)) <= size
            assert set(taken) <= set(newest.values())
            for raw in taken:
                sent[raw] = sent.get(raw, 0) + 1
                assert sent[raw] <= 2 * len(str(extra))
        assert len(queue) == len(naive.waiting) <= limit
        assert queue.pending == bool(naive.waiting)
