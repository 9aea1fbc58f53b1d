from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.work.dsl import Workflow
from talka.work.durations import BadDuration
from talka.work.feeds import BadFeed, Between, Cursor, Feed, FeedUsedUp, between, pause_of

quick = settings(deadline=None, derandomize=True)
ROWS = [{"name": "ada"}, {"name": "bob"}, {"name": "cleo"}]


def names(cursor: Cursor, count: int) -> list[str]:
    return [cursor.next()["name"] for _ in range(count)]


def test_a_sequential_feed_starts_again_after_its_last_row() -> None:
    assert names(Cursor(Feed.csv("x"), ROWS, Random(0)), 5) == ["ada", "bob", "cleo", "ada", "bob"]


def test_a_feed_that_gives_rows_once_ends_with_a_sentence() -> None:
    class Shop(Workflow):
        users = Feed.jsonl("users.jsonl", order="once")

    cursor = Cursor(Shop.users, ROWS, Random(0))
    names(cursor, 3)
    with pytest.raises(FeedUsedUp, match=r"the feed users \(users.jsonl\) was used up: it has 3 rows"):
        cursor.next()


def test_a_random_feed_draws_the_same_rows_with_the_same_seed() -> None:
    feed = Feed.json("x", order="random")
    drawn = [names(Cursor(feed, ROWS, Random(7)), 50) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {"ada", "bob", "cleo"}


def test_a_random_feed_draws_other_rows_with_another_seed() -> None:
    feed = Feed.json("x", order="random")
    assert names(Cursor(feed, ROWS, Random(7)), 50) != names(Cursor(feed, ROWS, Random(8)), 50)


@given(rows=st.integers(1, 60), of=st.integers(1, 9))
@quick
def test_shards_take_every_row_once_and_none_twice(rows: int, of: int) -> None:
    feed = Feed.csv("x", order="once")
    table = [{"n": number} for number in range(rows)]
    taken: list[int] = []
    for shard in range(of):
        cursor = Cursor(feed, table, Random(0), shard=shard, of=of)
        with pytest.raises(FeedUsedUp):
            while True:
                taken.append(cursor.next()["n"])
    assert sorted(taken) == list(range(rows))


def test_a_replacement_goes_on_behind_the_rows_that_were_given() -> None:
    table = [{"n": number} for number in range(10)]
    cursor = Cursor(Feed.csv("x", order="once"), table, Random(0), shard=1, of=2, given=3)
    assert [cursor.next()["n"], cursor.next()["n"]] == [7, 9]


def test_a_user_may_change_its_row_without_changing_the_feed() -> None:
    cursor = Cursor(Feed.csv("x"), ROWS[:1], Random(0))
    cursor.next()["name"] = "eve"
    assert cursor.next() == {"name": "ada"}


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(BadFeed, match="order = 'shuffled' is not one of sequential, random, once"):
        Feed.csv("x", order="shuffled")  # type: ignore[arg-type]


def test_rows_are_there_only_while_the_workflow_runs() -> None:
    class Shop(Workflow):
        users = Feed.csv("users.csv")

    assert isinstance(Shop.users, Feed)
    with pytest.raises(BadFeed, match="feed users has no rows yet"):
        _ = Shop().users


def test_a_pause_is_drawn_between_its_ends() -> None:
    pause = between("500ms", "2s")
    drawn = [pause.draw_ns(Random(number)) for number in range(200)]
    assert all(500_000_000 <= length <= 2_000_000_000 for length in drawn)
    assert len(set(drawn)) > 100


def test_pauses_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadFeed, match="must not be the longer one"):
        between("2s", "1s")
    with pytest.raises(BadDuration):
        between("soon", "1s")
    with pytest.raises(Invalid):
        pause_of("5 parsecs")


def test_think_may_be_nothing_a_length_or_a_range() -> None:
    assert pause_of(None) is None
    assert pause_of(0) is None
    assert pause_of("1s") == Between(1_000_000_000, 1_000_000_000)
    assert pause_of(between(1, 2)) == Between(1_000_000_000, 2_000_000_000)
