"""Who did what: lines in a file, and who may read them. Tokens that are revoked."""

import asyncio
import json
import stat
from pathlib import Path

import msgspec
import pytest

from talka.errors import Invalid, Unavailable
from talka.units import SECOND
from talka.web import audit as module
from talka.web.audit import ApiAudit, AuditLine, Refusals
from talka.web.auth import REVOKED_MOST, Revoked, Tokens
from tests.web.fake_control import KEY, Api, Apis
from tests.web.fake_dags import FakeDags

JSON = {"content-type": "application/json"}
LATER_S = 2**33
DAG = json.dumps({"kind": "dag", "name": "nightly", "tasks": [{"id": "a", "handler": "etl"}]}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def audit(path: Path) -> ApiAudit:
    return ApiAudit(path)


@pytest.fixture
async def guarded(apis: Apis, dags: FakeDags, tokens: Tokens, audit: ApiAudit) -> Api:
    return await apis.start(dags=dags, auth=tokens, audit=audit)


def lines_in(path: Path) -> list[AuditLine]:
    return [msgspec.json.decode(line, type=AuditLine) for line in path.read_bytes().splitlines()]


def text_in(path: Path) -> str:
    return path.read_bytes().decode()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# What is put down.


async def test_every_change_is_put_down(guarded: Api, tokens: Tokens, audit: ApiAudit, path: Path) -> None:
    token = tokens.issue("ann", "operator", LATER_S, "t1")

    await guarded.ask("POST", "/v1/jobs", DAG, JSON, token)
    await guarded.ask("POST", "/v1/jobs/dag1/pause", token=token)
    await guarded.ask("POST", "/v1/jobs/nojob/resume", token=token)
    await guarded.ask("POST", "/v1/dead-letters/dag1/a/replay", token=token)
    await guarded.ask("POST", "/v1/workers/w1/drain", token=token)
    await guarded.ask("POST", "/v1/workers/w1/undrain", token=token)
    await audit.flush()

    told = lines_in(path)
    assert [(line.what, line.job, line.status) for line in told] == [
        ("submit", "dag1", 201),
        ("pause", "dag1", 200),
        ("resume", "nojob", 404),
        ("replay", "dag1/a", 200),
        ("drain", "w1", 200),
        ("undrain", "w1", 200),
    ]
    assert {(line.who, line.role, line.token, line.source) for line in told} == {("ann", "operator", "t1", "127.0.0.1")}
    assert told[2].text.startswith("there is no job nojob")
    assert mode_of(path) == 0o600


async def test_looking_leaves_no_trace(guarded: Api, tokens: Tokens, audit: ApiAudit, path: Path) -> None:
    await guarded.ask("GET", "/v1/jobs", token=tokens.issue("ann", "viewer", LATER_S))
    await guarded.ask("GET", "/livez")
    await audit.flush()

    assert await audit.tail(1) == []


async def test_every_refusal_is_put_down_and_logged(
    guarded: Api, tokens: Tokens, audit: ApiAudit, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    viewer = tokens.issue("ann", "viewer", LATER_S)

    await guarded.ask("GET", "/v1/jobs")
    await guarded.ask("GET", "/v1/jobs", token=tokens.issue("ann", "viewer", 1))
    await guarded.ask("GET", "/v1/jobs", token=Tokens([b"o" * 32], "shop").issue("eve", "admin", LATER_S))
    await guarded.ask("POST", "/v1/jobs", DAG, JSON, viewer)
    await audit.flush()

    told = lines_in(path)
    assert [(line.what, line.who, line.status) for line in told] == [
        ("GET /v1/jobs", "", 401),
        ("GET /v1/jobs", "", 401),
        ("GET /v1/jobs", "", 401),
        ("submit", "ann", 403),
    ]
    assert [line.text.partition(":")[0] for line in told] == [
        "this needs a token",
        "the token has expired",
        "the token is not valid",
        "a viewer may not submit a job",
    ]
    assert "refused GET /v1/jobs of somebody from 127.0.0.1: this needs a token" in caplog.text
    assert not any(viewer in str(line) for line in told)


FORGED = 'eve\n{"at":"2026-01-01","who":"ann","what":"drain","status":200}\r\x1b[2K\x9b2K\x7f\u2028\u202e'


async def test_a_name_forges_no_line_and_steers_no_terminal(
    guarded: Api, tokens: Tokens, audit: ApiAudit, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forger = tokens.issue(FORGED, "viewer", LATER_S)

    await guarded.ask("POST", "/v1/jobs", DAG, JSON, forger)
    await guarded.ask("POST", "/v1/workers/w%0aw/drain", token=tokens.issue(FORGED, "operator", LATER_S))
    await guarded.ask("GET", "/v1/%0arefused%1b[2K")
    await audit.flush()

    written = text_in(path)
    assert [line.who for line in lines_in(path)] == [FORGED, FORGED, ""]
    assert all(line.isprintable() for line in written.split("\n")) and len(written.splitlines()) == 3
    assert [line.job for line in lines_in(path)][1] == "w\nw"
    told = [record.getMessage() for record in caplog.records if record.name == "talka.web"]
    assert told and all(text.isprintable() for text in told)
    assert "of eve\\n{" in told[0] and "\\x1b[2K\\x9b2K" in told[0]


async def test_who_asks_too_often_is_put_down(apis: Apis, audit: ApiAudit, path: Path) -> None:
    api = await apis.start(audit=audit, limiter=lambda operation, client: 1.0)

    await api.ask("GET", "/v1/jobs")
    await audit.flush()

    assert [(line.what, line.status) for line in lines_in(path)] == [("jobs", 429)]


async def test_a_refused_websocket_is_put_down(guarded: Api, tokens: Tokens, audit: ApiAudit, path: Path) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw==",
    }

    await guarded.ask("GET", "/v1/jobs/job1/watch", headers=upgrade)
    await guarded.ask("GET", "/v1/jobs/submit", headers=upgrade, token=tokens.issue("ann", "viewer", LATER_S))
    await audit.flush()

    assert [(line.what, line.status) for line in lines_in(path)] == [
        ("WEBSOCKET /v1/jobs/job1/watch", 401),
        ("submit_frames", 403),
    ]


async def test_admins_read_the_last_lines(guarded: Api, tokens: Tokens) -> None:
    operator, admin = tokens.issue("ann", "operator", LATER_S), tokens.issue("root", "admin", LATER_S)
    for n in range(3):
        await guarded.ask("POST", f"/v1/jobs/job{n}/pause", token=operator)

    refused = await guarded.ask("GET", "/v1/audit", token=operator)
    told = json.loads((await guarded.ask("GET", "/v1/audit?limit=2", token=admin)).body)

    assert refused.status == 403
    assert [line["what"] for line in told["items"]] == ["pause", "audit"]


async def test_without_a_file_there_is_nothing_to_read(api: Api) -> None:
    assert json.loads((await api.ask("GET", "/v1/audit")).body) == {"items": []}


# The file.


async def test_files_are_rotated_and_the_oldest_goes(path: Path) -> None:
    audit = ApiAudit(path, limit_bytes=200, files=3)

    for n in range(20):
        audit.note(f"change{n}", 200)
        await audit.flush()

    names = sorted(file.name for file in path.parent.iterdir())
    assert names in (["audit.log", "audit.log.1", "audit.log.2"], ["audit.log.1", "audit.log.2"])
    kept = [line.what for name in reversed(names) for line in lines_in(path.parent / name)]
    assert kept == [f"change{n}" for n in range(20 - len(kept), 20)]
    assert all((path.parent / name).stat().st_size < 400 for name in names)


async def test_what_waits_is_written_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = ApiAudit(path)
    audit.note("one", 200)

    audit.close()
    audit.note("two", 200)
    await audit.flush()

    assert [line.what for line in lines_in(path)] == ["one"]


async def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = ApiAudit(tmp_path / "nowhere" / "audit.log")

    for _ in range(3):
        audit.note("change", 200)
        await audit.flush()

    assert audit.left_out == 3
    assert caplog.text.count("cannot be written") == 1
    assert await audit.tail(5) == []


async def test_lines_that_wait_are_bounded(path: Path) -> None:
    audit = ApiAudit(path, waiting_limit=10)

    for n in range(15):
        audit.note(f"change{n}", 200, text="x" * 5000)
    await audit.flush()

    assert (len(lines_in(path)), audit.left_out) == (10, 5)
    assert all(len(line.text) == module.TEXT_LIMIT for line in lines_in(path))


async def test_the_tail_of_a_long_file_begins_with_a_whole_line(path: Path) -> None:
    audit = ApiAudit(path, tail_bytes=500)
    for n in range(100):
        audit.note(f"change{n}", 200)

    told = await audit.tail(50)

    assert 1 < len(told) < 10
    assert [line.what for line in told] == [f"change{n}" for n in range(100 - len(told), 100)]


async def test_a_line_that_a_death_cut_off_hides_no_other(path: Path) -> None:
    audit = ApiAudit(path)
    audit.note("one", 200)
    await audit.flush()
    cut_off(path)
    audit.note("two", 200)

    assert [line.what for line in await audit.tail(5)] == ["one", "two"]


def cut_off(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"at": "2026-\n')


def test_refusals_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    refusals = Refusals(lambda: now[0])

    for instant in (0, 1, SECOND - 1, SECOND, SECOND + 1):
        now[0] = instant
        refusals.tell("refused")

    assert [record.message for record in caplog.records] == ["refused", "refused (and 2 more before)"]


# Tokens that are revoked.


async def test_a_revoked_token_holds_no_longer(apis: Apis, tmp_path: Path) -> None:
    revoked = Revoked(tmp_path / "key.revoked")
    tokens = Tokens([KEY], "shop", revoked)
    api = await apis.start(auth=tokens)
    first, second = tokens.issue("ann", "viewer", LATER_S, "t1"), tokens.issue("bob", "viewer", LATER_S, "t2")
    assert (await api.ask("GET", "/v1/jobs", token=first)).status == 200

    assert Revoked(tmp_path / "key.revoked").add("t1") is True

    refused = await api.ask("GET", "/v1/jobs", token=first)
    assert (refused.status, b"was revoked" in refused.body) == (401, True)
    assert (await api.ask("GET", "/v1/jobs", token=second)).status == 200


def test_revoking_twice_is_told(tmp_path: Path) -> None:
    revoked = Revoked(tmp_path / "key.revoked")

    assert [revoked.add("t1"), revoked.add("t2"), revoked.add("t1")] == [True, True, False]
    assert ("t1" in revoked, "t2" in revoked, "t3" in revoked) == (True, True, False)
    assert [file.name for file in tmp_path.iterdir()] == ["key.revoked"]


@pytest.mark.parametrize("id", ["", "a b", "a\nb", "x" * 65, "ä"])
def test_what_is_no_id_of_a_token_is_refused(tmp_path: Path, tokens: Tokens, id: str) -> None:
    with pytest.raises(Invalid, match="not the id of a token"):
        Revoked(tmp_path / "key.revoked").add(id)
    if id:
        with pytest.raises(Invalid, match="not the id of a token"):
            tokens.issue("ann", "viewer", LATER_S, id)


def test_a_file_of_revoked_tokens_that_cannot_be_read_lets_no_token_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key.revoked"
    revoked = Revoked(path)
    revoked.add("t1")
    assert "t1" in revoked and "t7" not in revoked

    path.write_text("\n".join(f"t{n}" for n in range(REVOKED_MOST + 5)))
    assert "t1" in revoked, "it was revoked when the file could be read"
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"key\.revoked names more than .* Let the manager read the file"):
            _ = "t7" in revoked
    assert caplog.text.count("could not be read") == 1
    with pytest.raises(Invalid, match="more than"):
        revoked.add("t0")

    path.write_text("t1\n")
    assert "t1" in revoked and "t7" not in revoked

    path.unlink()
    assert "t1" not in revoked


async def test_tokens_that_may_be_revoked_are_refused_while_their_file_cannot_be_read(
    apis: Apis, tmp_path: Path
) -> None:
    (tmp_path / "key.revoked").mkdir()  # as unreadable for root as for anybody
    tokens = Tokens([KEY], "shop", Revoked(tmp_path / "key.revoked"))
    api = await apis.start(auth=tokens)
    named, unnamed = tokens.issue("ann", "viewer", LATER_S, "t1"), tokens.issue("bob", "viewer", LATER_S)

    refused = await api.ask("GET", "/v1/jobs", token=named)
    assert refused.status == 503 and b"key.revoked cannot be read (Is a directory)" in refused.body
    assert (await api.ask("GET", "/v1/jobs", token=unnamed)).status == 200, "without an id there is nothing to revoke"

    (tmp_path / "key.revoked").rmdir()
    assert (await api.ask("GET", "/v1/jobs", token=named)).status == 200


def test_only_so_many_are_revoked(tmp_path: Path) -> None:
    path = tmp_path / "key.revoked"
    path.write_text("\n".join(f"t{n}" for n in range(REVOKED_MOST)) + "\n")

    with pytest.raises(Invalid, match="change the key instead"):
        Revoked(path).add("one-more")


@pytest.mark.parametrize(("word", "role"), [("view", "viewer"), ("submit", "submitter"), ("operate", "operator")])
def test_a_role_in_a_token_may_be_called_by_what_it_does(tokens: Tokens, word: str, role: str) -> None:
    assert tokens.identify("Bearer " + tokens.issue("ann", word, LATER_S)).role == role  # type: ignore[arg-type]


async def test_many_notes_at_once_are_written_in_order(path: Path) -> None:
    audit = ApiAudit(path)

    for n in range(50):
        audit.note(f"change{n}", 200)
        if n % 7 == 0:
            await asyncio.sleep(0)
    await audit.flush()

    assert [line.what for line in lines_in(path)] == [f"change{n}" for n in range(50)]
