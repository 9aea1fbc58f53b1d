"""Files of feeds are read once, and what is wrong with them is said with file and line."""

from pathlib import Path

import pytest

from talka.engine.load.feeds import cursors_for, load_feeds, read_rows
from talka.engine.loader import load_file
from talka.errors import Invalid
from talka.work.feeds import Feed
from talka.work.specs import BadWorkflows

TEST = """\
from talka import Feed, HTTPResponse, Workflow, step

class Shop(Workflow):
    users = Feed.csv("data/users.csv", order="once")
    goods = Feed.json("goods.json", order="random")

    @step()
    async def buy(self) -> HTTPResponse: ...
"""


def written(folder: Path, **files: str) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "shop.py").write_text(TEST)
    for name, text in files.items():
        (folder / name.replace("__", "/").replace("_", ".")).write_text(text)
    return folder / "shop.py"


def test_paths_are_relative_to_the_test_file_and_rows_are_split_over_shards(tmp_path: Path) -> None:
    file = written(tmp_path, data__users_csv="name,age\nada,36\nbob,7\n", goods_json='[{"id": 1}]')
    [spec] = load_file(file)
    rows = load_feeds(spec)
    assert rows == {"users": [{"name": "ada", "age": "36"}, {"name": "bob", "age": "7"}], "goods": [{"id": 1}]}
    second = cursors_for(spec, rows, spec.plan.split(2)[1] if spec.plan.vus > 1 else spec.plan.split(1)[0], seed=1)
    assert second["goods"].next() == {"id": 1}


def test_every_wrong_feed_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, goods_json="{")
    with pytest.raises(BadWorkflows) as caught:
        load_feeds(load_file(file)[0])
    said = str(caught.value)
    assert f"{file}:3: Shop.users: {tmp_path / 'data' / 'users.csv'} cannot be read: No such file" in said
    assert "Shop.goods" in said and "is not a JSON list of objects" in said


@pytest.mark.parametrize(
    ("feed", "content", "said"),
    [
        (Feed.csv("x"), b"", "has no rows"),
        (Feed.csv("x"), b"a,b\n1,2\n3\n", "x:3: this row has not as many values"),
        (Feed.csv("x"), b"a,b\n1,2,3\n", "x:2: this row has not as many values"),
        (Feed.csv("x"), b"a\n\xff\n", "not a CSV file in UTF-8"),
        (Feed.csv("x"), b'a\n"b" c\n', "not a CSV file in UTF-8"),
        (Feed.json("x"), b"[1]", "not a JSON list of objects"),
        (Feed.json("x"), b"[]", "has no rows"),
        (Feed.jsonl("x"), b'{"a": 1}\n\n[2]\n', "x:3: this line is not a JSON object"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, feed: Feed, content: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Invalid, match=said):
        read_rows(feed, tmp_path / "x")


def test_rows_of_every_format_are_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'\xef\xbb\xbfname\n"ada, countess"\n')
    assert read_rows(Feed.csv("x"), tmp_path / "x") == [{"name": "ada, countess"}]
    (tmp_path / "x").write_bytes(b'{"a": 1}\n\n{"a": [2]}\n')
    assert read_rows(Feed.jsonl("x"), tmp_path / "x") == [{"a": 1}, {"a": [2]}]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    with pytest.raises(Invalid, match="has 4 bytes: a feed may have 3"):
        read_rows(Feed.csv("x"), tmp_path / "x", limit_bytes=3)
