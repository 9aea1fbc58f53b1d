"""Reads the files of a workflow's feeds, once, before the clock starts."""

import csv
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.work.feeds import Cursor, Feed, Row
from talka.work.load import Shard
from talka.work.specs import BadWorkflows, SpecProblem, WorkflowSpec

FEED_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""Rows are held in memory, once for each core."""


def load_feeds(spec: WorkflowSpec) -> dict[str, list[Row]]:
    """The rows of every feed of the workflow, or all that is wrong with them."""
    base = Path(spec.file).resolve().parent if spec.file else Path.cwd()
    rows: dict[str, list[Row]] = {}
    problems: list[SpecProblem] = []
    for name, feed in spec.feeds.items():
        try:
            rows[name] = read_rows(feed, base / feed.path)
        except Invalid as error:
            problems.append(SpecProblem(f"{spec.name}.{name}: {error}", spec.file, spec.line))
    if problems:
        raise BadWorkflows(problems)
    return rows


def cursors_for(
    spec: WorkflowSpec, rows: Mapping[str, list[Row]], shard: Shard, *, seed: int | None, given: int = 0
) -> dict[str, Cursor]:
    """`given` rows were handed out by an attempt that was lost; each iteration is taken to have used one."""
    source = Random() if seed is None else Random(f"{seed}/feeds/{spec.name}/{shard.index}")
    return {
        name: Cursor(feed, rows[name], Random(source.random()), shard=shard.index, of=shard.of, given=given)
        for name, feed in spec.feeds.items()
    }


def read_rows(feed: Feed, path: Path, limit_bytes: int = FEED_LIMIT_BYTES) -> list[Row]:
    try:
        if (size := path.stat().st_size) > limit_bytes:
            raise Invalid(f"{path} has {size} bytes: a feed may have {limit_bytes}")
        content = path.read_bytes()
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from None
    rows = PARSERS[feed.format](content, path)
    if not rows:
        raise Invalid(f"{path} has no rows")
    return rows


def csv_rows(content: bytes, path: Path) -> list[Row]:
    try:
        text = content.decode("utf-8-sig")
        reader = csv.DictReader(text.splitlines(), strict=True, restkey="")
        rows: list[Row] = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path} is not a CSV file in UTF-8: {error}") from None
    for number, row in enumerate(rows, 2):
        if "" in row or None in row.values():
            raise Invalid(f"{path}:{number}: this row has not as many values as the first line has names")
    return rows


def json_rows(content: bytes, path: Path) -> list[Row]:
    try:
        return msgspec.json.decode(content, type=list[Row])
    except msgspec.MsgspecError as error:
        raise Invalid(f"{path} is not a JSON list of objects: {error}") from None


def jsonl_rows(content: bytes, path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=Row))
            except msgspec.MsgspecError as error:
                raise Invalid(f"{path}:{number}: this line is not a JSON object: {error}") from None
    return rows


PARSERS: Final = {"csv": csv_rows, "json": json_rows, "jsonl": jsonl_rows}
