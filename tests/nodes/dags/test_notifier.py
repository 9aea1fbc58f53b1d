"""Ends of jobs are told to real servers on this machine, from a real store, whatever goes wrong in between."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trustme

from talka import run_dag_inline
from talka.client.sheets import dag_sheet
from talka.control.tasks.notices import NoticeLimits, signature_of
from talka.nodes.dags.dag_service import ServiceLimits
from talka.nodes.dags.notice_sender import NO_SECRET, NotDelivered, NoticeSender, NotifyOptions, SenderLimits
from talka.nodes.dags.notifier import Notifier
from talka.store.dags.records import RecordsUnavailable, StoreLost
from talka.wire.task_views import JobNotice
from talka.work.dags.dag import BadDag, DagHead, DagSettings, DagSpec, Retry
from talka.work.dags.notify import Notifies, Notify
from talka.work.dags.records import MoveJob, NoticeRow, PutNotice
from talka.work.lifecycle import JobState
from tests.nodes.dags.test_dag_service import IDLE, RARELY, Node, dag

SECRET = b"a secret of at least 32 characters"
GOOD = b"HTTP/1.1 204 No Content\r\n\r\n"
BAD = b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello"
LIMIT_S = 30


class Request(msgspec.Struct):
    line: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A server that gives the answers it is told, and the last of them ever after. None: nothing at all."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = [GOOD]
        self.requests: list[Request] = []
        self.connections = 0
        self.moved = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.moved.set()
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = dict(one.split(": ", 1) for one in lines if one)
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append(Request(line, headers, body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.moved.set()
            if answer is None:
                await reader.read()  # until it goes
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self.moved.clear()
                await self.moved.wait()

    def url(self, path: str = "/hook?token=1") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


def row_to(url: str) -> NoticeRow:
    return NoticeRow(id="n1", job=1, job_id="j1", url=url, body=b'{"id":"n1"}')


# Sending.


async def test_a_notice_is_one_post_that_is_signed(receiver: Receiver) -> None:
    await NoticeSender(SECRET, may_be_private=True).send(row_to(receiver.url()))
    (request,) = receiver.requests
    assert request.line == "POST /hook?token=1 HTTP/1.1" and request.body == b'{"id":"n1"}'
    headers = request.headers
    assert headers["host"] == f"127.0.0.1:{receiver.port}" and headers["content-type"] == "application/json"
    assert headers["talka-delivery"] == "n1" and headers["user-agent"].startswith("talka/")
    signature = signature_of(SECRET, headers["talka-timestamp"], request.body)
    assert headers["talka-signature"] == f"sha256={signature}"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (BAD, "answered 500"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered 404"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n", "answered 302: redirects are not followed"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "does not speak HTTP"),
        (SWITCHED, "does not speak HTTP: it changed to another protocol"),
        (b"", "broke the connection"),
        (None, "did not answer within 0.2 s"),
    ],
)
async def test_what_is_no_yes_is_told_without_the_path(receiver: Receiver, answer: bytes | None, says: str) -> None:
    receiver.answers = [answer]
    sender = NoticeSender(SECRET, may_be_private=True, limits=SenderLimits(0.2 if answer is None else LIMIT_S))
    with pytest.raises(NotDelivered) as caught:
        await sender.send(row_to(receiver.url()))
    assert says in str(caught.value) and "token" not in str(caught.value) and not caught.value.is_final
    assert receiver.connections == 1, "nobody is asked elsewhere"


async def test_the_check_of_signatures_in_the_documentation_takes_ours_and_no_other(receiver: Receiver) -> None:
    page = (Path(__file__).parents[3] / "docs/pipelines.md").read_text()
    (code,) = [one for one in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "def is_from_talka" in one]
    names: dict[str, Any] = {}
    exec(code, names)
    check = names["is_from_talka"]
    await NoticeSender(SECRET, may_be_private=True).send(row_to(receiver.url()))
    (request,) = receiver.requests
    assert check(SECRET, request.headers, request.body)
    assert not check(b"another secret of 32 characters ....", request.headers, request.body)
    assert not check(SECRET, request.headers, request.body + b" ")
    old = str(int(request.headers["talka-timestamp"]) - 400)
    signed = f"sha256={signature_of(SECRET, old, request.body)}"
    assert not check(SECRET, {**request.headers, "talka-timestamp": old}, request.body)
    assert not check(SECRET, {"talka-timestamp": old, "talka-signature": signed}, request.body), "it is too old"
    assert not check(SECRET, {}, request.body)


async def test_an_answer_is_not_read_beyond_its_head(receiver: Receiver) -> None:
    receiver.answers = [b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nand then nothing more"]
    await NoticeSender(SECRET, may_be_private=True).send(row_to(receiver.url()))
    receiver.answers = [b"HTTP/1.1 200 OK\r\nx: " + b"y" * (4 << 20)]
    with pytest.raises(NotDelivered, match="does not speak HTTP|broke the connection"):
        await NoticeSender(SECRET, may_be_private=True).send(row_to(receiver.url()))


async def test_nobody_is_told_without_a_secret_and_nobody_who_is_not_there(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match=NO_SECRET):
        await NoticeSender(b"", may_be_private=True).send(row_to(receiver.url()))
    assert receiver.connections == 0
    with pytest.raises(NotDelivered, match="http://127.0.0.1:1 cannot be reached"):
        await NoticeSender(SECRET, may_be_private=True).send(row_to("http://127.0.0.1:1/"))


def names(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    """Looked up once each time; whoever asks again gets the next one."""
    answers = list(addresses)

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0).split()

    return resolve


@pytest.mark.parametrize(
    ("url", "addresses", "says"),
    [
        ("http://127.0.0.1:{}/", (), "127.0.0.1 is not a public address"),
        ("http://hook.example:{}/", ("127.0.0.1",), "hook.example is 127.0.0.1, which is not a public address"),
        ("http://hook.example:{}/", ("8.8.8.8 127.0.0.1",), "hook.example is 127.0.0.1, which is not a public"),
        ("http://hook.example:{}/", ("::ffff:127.0.0.1",), "hook.example is ::ffff:127.0.0.1, which is not"),
        ("http://hook.example:{}/", ("fe80::1%lo",), "hook.example is fe80::1%lo, which is not a public address"),
    ],
)
async def test_a_name_that_stands_for_a_private_address_is_never_connected_to(
    receiver: Receiver, url: str, addresses: tuple[str, ...], says: str
) -> None:
    sender = NoticeSender(SECRET, resolve=names(*addresses))
    with pytest.raises(NotDelivered) as caught:
        await sender.send(row_to(url.format(receiver.port)))
    assert says in str(caught.value) and "--allow-private-notify" in str(caught.value) and caught.value.is_final
    assert receiver.connections == 0


async def test_the_connection_goes_to_the_address_that_was_judged_and_not_to_what_the_name_is_then(
    receiver: Receiver,
) -> None:
    resolve = names("127.0.0.1", "192.0.2.1")
    await NoticeSender(SECRET, may_be_private=True, resolve=resolve).send(
        row_to(f"http://hook.example:{receiver.port}/")
    )
    assert receiver.requests[0].headers["host"] == f"hook.example:{receiver.port}"
    assert await resolve("hook.example", 1) == ["192.0.2.1"], "it was looked up once"


@pytest.mark.parametrize(
    ("issued_to", "is_trusted", "says"),
    [
        ("hook.example", True, ""),
        ("other.example", True, "certificate is not valid for 'hook.example'"),
        ("hook.example", False, "certificate verify failed"),
    ],
)
async def test_a_server_with_tls_is_told_if_its_certificate_is_for_the_name_and_trusted(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, issued_to: str, is_trusted: bool, says: str
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    (authority if is_trusted else other).cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(issued_to).configure_cert(context)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    sender = NoticeSender(SECRET, may_be_private=True, resolve=names("127.0.0.1"))
    with pytest.raises(NotDelivered, match=says) if says else contextlib.nullcontext():
        await sender.send(row_to(f"https://hook.example:{port}/hook"))
    assert [request.headers["host"] for request in receiver.requests] == ([] if says else [f"hook.example:{port}"])
    server.close()


async def test_a_name_without_an_address_is_told() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(NotDelivered, match="the address of hook.example cannot be found: Name or service not known"):
        await NoticeSender(SECRET, resolve=unknown).send(row_to("http://hook.example/"))
    with pytest.raises(NotDelivered, match="hook.example has no address"):
        await NoticeSender(SECRET, resolve=names("")).send(row_to("http://hook.example/"))


# A manager.


def told(url: str, *states: Any) -> DagSettings:
    return DagSettings(notify=Notify(states or ("completed", "failed", "cancelled"), url))


class TellingNode(Node):
    """Whose notices are looked at when the test says so, by a clock that it sets."""

    def __init__(self, folder: Path, notices: NotifyOptions) -> None:
        super().__init__(folder, **IDLE, notify_s=3600.0)
        self.notices = notices

    async def look(self, later_ms: int = 0) -> None:
        """And wait until what was sent then is put down."""
        self.jobs._notifier._now_ns = lambda: (NOW_MS + later_ms) * 10**6
        await self.jobs.send_notices()
        await asyncio.gather(*self.jobs._notifier._sending)


NOW_MS = 4_000_000_000_000
"""After the ends of all jobs."""


NodeAt = Callable[..., Awaitable[TellingNode]]


@pytest.fixture
async def node_at(tmp_path: Path) -> AsyncIterator[NodeAt]:
    nodes: list[TellingNode] = []

    async def make(secret: bytes = SECRET, *, may_be_private: bool = True) -> TellingNode:
        node = TellingNode(tmp_path, NotifyOptions(secret, may_be_private))
        await node.open()
        nodes.append(node)
        await node.jobs.start()
        node.beat()
        return node

    yield make
    for node in nodes:
        await node.jobs.close()


async def test_a_job_that_ended_is_told_of_and_shows_it(node_at: NodeAt, receiver: Receiver) -> None:
    node = await node_at()
    facts = await node.jobs.submit_dag(dag({"a": ""}, told(receiver.url()), name="nightly"), "", "")
    await node.finish("a")
    ended = await node.ended(facts.id)
    (waiting,) = ended.notifications
    assert (waiting.state, waiting.on, waiting.tries) == ("waiting", "completed", 0) and waiting.next_at
    await node.look()
    (request,) = receiver.requests
    document = msgspec.json.decode(request.body, type=JobNotice)
    assert (document.job, document.name, document.state) == (facts.id, "nightly", JobState.COMPLETED)
    assert (document.counts, document.tasks, document.ended_at) == ({"completed": 1}, 1, ended.ended_at)
    assert request.headers["talka-delivery"] == document.id == waiting.id
    (sent,) = (await node.jobs.dag(facts.id)).notifications
    assert (sent.state, sent.tries, sent.to) == ("sent", 1, f"http://127.0.0.1:{receiver.port}") and sent.settled_at
    assert node.jobs.metrics()["dag_notices_total"] == {"sent": 1, "failed": 0, "given_up": 0}
    await node.look(10**9)
    assert len(receiver.requests) == 1, "once"
    rows = dict(dag_sheet(await node.jobs.dag(facts.id), []).rows)
    assert re.fullmatch(r"http://127.0.0.1:\d+ of completed: sent .* UTC, 1 try", rows["notified"])


async def test_a_notice_is_in_the_very_commit_with_which_its_job_ends(
    node_at: NodeAt, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await node_at()
    commit, commits = node.store.commit, list[list[type]]()

    def noted(ticket: int, changes: Any, key: str = "") -> bool:
        ends = [one for one in changes if isinstance(one, PutNotice) or (isinstance(one, MoveJob) and one.counts)]
        commits.append([type(one) for one in ends])
        return commit(ticket, changes, key)

    monkeypatch.setattr(node.store, "commit", noted)
    facts = await node.jobs.submit_dag(dag({"a": ""}, told(receiver.url())), "", "")
    await node.finish("a")
    await node.ended(facts.id)
    assert [found for found in commits if found] == [[MoveJob, PutNotice]]


async def test_a_pipeline_that_runs_inline_tells_nobody(receiver: Receiver) -> None:
    result = await asyncio.to_thread(run_dag_inline, dag({"a": ""}, told(receiver.url())), {"h": lambda task: 1})
    assert result.state is JobState.COMPLETED and receiver.connections == 0


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_other_ends_are_told_of_too_and_those_nobody_asked_for_are_not(
    node_at: NodeAt, receiver: Receiver, state: str
) -> None:
    node = await node_at()
    wanted = await node.jobs.submit_dag(dag({"a": {"retry": Retry(max=0)}}, told(receiver.url(), state)), "", "")
    silent = await node.jobs.submit_dag(dag({"b": {"retry": Retry(max=0)}}, told(receiver.url(), "timeout")), "", "")
    for id, task in ((wanted.id, "a"), (silent.id, "b")):
        if state == "cancelled":
            await node.jobs.cancel_dag(id, "enough")
        await node.finish(task, "failed" if state == "failed" else "cancelled", error="no")
        assert (await node.ended(id)).state == state
    await node.look()
    (request,) = receiver.requests
    assert msgspec.json.decode(request.body, type=JobNotice).state == state
    assert (await node.jobs.dag(silent.id)).notifications == []


async def test_a_server_that_fails_is_asked_again_later_under_the_same_id(node_at: NodeAt, receiver: Receiver) -> None:
    receiver.answers = [BAD, BAD, GOOD]
    node = await node_at()
    facts = await node.jobs.submit_dag(dag({"a": ""}, told(receiver.url())), "", "")
    await node.finish("a")
    await node.ended(facts.id)
    await node.look()
    (waiting,) = (await node.jobs.dag(facts.id)).notifications
    assert (waiting.state, waiting.tries) == ("waiting", 1) and waiting.error.endswith("answered 500")
    text = dict(dag_sheet(await node.jobs.dag(facts.id), []).rows)["notified"]
    assert "waiting, 1 try so far, next 2096-10-02" in text and text.endswith("answered 500")
    await node.look()
    assert len(receiver.requests) == 1, "not before its time has come"
    await node.look(6_000)
    await node.look(60_000)
    assert [request.headers["talka-delivery"] for request in receiver.requests] == [waiting.id] * 3
    assert len({request.body for request in receiver.requests}) == 1
    (sent,) = (await node.jobs.dag(facts.id)).notifications
    assert (sent.state, sent.tries, sent.error) == ("sent", 3, "")


async def test_a_manager_that_starts_again_sends_what_waits(node_at: NodeAt, receiver: Receiver) -> None:
    first = await node_at()
    facts = await first.jobs.submit_dag(dag({"a": ""}, told(receiver.url())), "", "")
    await first.finish("a")
    await first.ended(facts.id)
    await first.jobs.close()
    second = await node_at()
    await second.look()
    assert len(receiver.requests) == 1
    assert [one.state for one in (await second.jobs.dag(facts.id)).notifications] == ["sent"]


async def test_a_delivery_that_was_broken_off_by_the_end_of_the_manager_is_sent_again(
    node_at: NodeAt, receiver: Receiver
) -> None:
    receiver.answers = [None, GOOD]
    first = await node_at()
    facts = await first.jobs.submit_dag(dag({"a": ""}, told(receiver.url())), "", "")
    await first.finish("a")
    await first.ended(facts.id)
    await first.jobs.send_notices()
    await receiver.until(lambda: len(receiver.requests) == 1)
    await first.jobs.close()
    second = await node_at()
    await second.look()
    assert len({request.headers["talka-delivery"] for request in receiver.requests}) == 1
    assert len(receiver.requests) == 2


async def test_what_is_given_up_is_shown_with_its_reason_and_told(node_at: NodeAt, receiver: Receiver) -> None:
    node = await node_at()
    settings = told(f"http://localhost:{receiver.port}/token")
    facts = await node.jobs.submit_dag(dag({"a": ""}, settings), "", "")
    await node.finish("a")
    await node.ended(facts.id)
    node.jobs._notifier._send = NoticeSender(SECRET).send  # the manager was started anew without the flag
    await node.look()
    (given_up,) = (await node.jobs.dag(facts.id)).notifications
    assert given_up.state == "given_up" and "is not a public address" in given_up.error
    assert receiver.connections == 0
    (event,) = [event for event in node.events if event.get("kind") == "notify"]
    assert f"was told of the end of job {facts.id}, and it is given up" in event["text"]
    assert "token" not in event["text"]
    text = dict(dag_sheet(await node.jobs.dag(facts.id), []).rows)["notified"]
    assert "given up" in text and "after 1 try: localhost is " in text
    assert text.endswith("--allow-private-notify"), "what would help is not cut off"


Ask = Callable[[Node, DagSpec], Awaitable[Any]]
WAYS: dict[str, Ask] = {
    "submit": lambda node, spec: node.jobs.submit_dag(spec, "", ""),
    "stream": lambda node, spec: node.jobs.begin_dag(DagHead(name="n", settings=spec.settings), "", ""),
    "schedule": lambda node, spec: node.jobs.put_schedule(msgspec.structs.replace(spec, schedule=RARELY), ""),
}


@pytest.mark.parametrize("way", [*WAYS, "soon"])
async def test_what_a_manager_would_not_tell_is_refused_when_it_is_submitted(node_at: NodeAt, way: str) -> None:
    async def refusal(node: Node, notify: Notifies) -> str:
        spec = dag({"a": ""}, DagSettings(notify=notify))
        if way == "soon":
            node.jobs.submit_soon(spec, "", "", node.done)
            assert isinstance(node.told[-1], BadDag)
            return str(node.told[-1])
        with pytest.raises(BadDag) as caught:
            await WAYS[way](node, spec)
        assert caught.value.field == "settings.notify"
        return str(caught.value)

    public, private = Notify(("failed",), "https://example.com/"), Notify(("failed",), "http://[::1]:9/")
    node = await node_at(may_be_private=False)
    problem = await refusal(node, (public, private))
    assert "::1 is not a public address: " in problem and "--allow-private-notify" in problem
    await node.jobs.close()
    without = await node_at(b"")
    assert "no secret to sign with: start it with --notify-secret FILE" in await refusal(without, public)


# What is under way.


class Stored:
    """A store of which only notices matter."""

    def __init__(self, count: int, url: str = "http://h{}.example/") -> None:
        self.waiting = [row_to(url.format(number)) for number in range(count)]
        self.waiting = [msgspec.structs.replace(row, id=f"n{number}") for number, row in enumerate(self.waiting)]
        self.errors: list[Exception] = []
        self.applied: list[Any] = []
        self.is_read = asyncio.Event()
        self.is_read.set()

    async def waiting_notices(self, limit: int, after: tuple[int, str] = (-1, "")) -> list[NoticeRow]:
        found = [row for row in self.waiting if (row.next_ms, row.id) > after][:limit]
        await self.is_read.wait()
        return found

    async def apply(self, changes: Any, key: str) -> list[int]:
        if self.errors:
            raise self.errors.pop(0)
        self.applied += changes
        self.waiting = [row for row in self.waiting if row.id not in {move.id for move in changes}]
        return [1]


async def all_sent(notifier: Notifier) -> None:
    while notifier._sending:
        await asyncio.gather(*notifier._sending)


async def test_no_more_are_sent_at_the_same_time_than_may_be_and_none_twice() -> None:
    store, sent, go = Stored(5), list[str](), asyncio.Event()

    async def send(row: NoticeRow) -> None:
        sent.append(row.id)
        await go.wait()

    limits = NoticeLimits(at_once=2)
    notifier = Notifier(store, send, lambda job: "k", [].append, Random(1), limits=limits)  # type: ignore[arg-type]
    for _ in range(3):
        await notifier.look()
        await asyncio.sleep(0)
    assert sent == ["n0", "n1"]
    go.set()
    await all_sent(notifier)
    assert notifier.counts["sent"] == 5 and [move.id for move in store.applied] == sent == [f"n{n}" for n in range(5)]


async def test_a_server_that_answers_is_sent_one_after_the_other_without_a_pause() -> None:
    store, under_way, most = Stored(9, "http://one.example/"), set[str](), 0

    async def send(row: NoticeRow) -> None:
        nonlocal most
        under_way.add(row.id)
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.remove(row.id)

    notifier = Notifier(store, send, lambda job: "k", [].append, Random(1))  # type: ignore[arg-type]
    await notifier.look()
    await all_sent(notifier)
    assert [move.id for move in store.applied] == [f"n{number}" for number in range(9)] and most == 2


async def test_a_server_that_is_slow_keeps_nobody_waiting_who_is_behind_a_whole_page_of_its_notices() -> None:
    store, sent, go = Stored(5, "http://slow.example/"), list[str](), asyncio.Event()
    store.waiting.append(msgspec.structs.replace(row_to("http://quick.example/"), id="other"))

    async def send(row: NoticeRow) -> None:
        sent.append(row.id)
        if "slow" in row.url:
            await go.wait()

    limits = NoticeLimits(page=2)
    notifier = Notifier(store, send, lambda job: "k", [].append, Random(1), limits=limits)  # type: ignore[arg-type]
    for _ in range(3):
        await notifier.look()
        await asyncio.sleep(0)
    assert sent == ["n0", "n1", "other"]
    go.set()
    for _ in range(3):
        await notifier.look()
        await all_sent(notifier)
    assert sorted(sent) == ["n0", "n1", "n2", "n3", "n4", "other"], "and the page after the last is the first"


async def test_a_notice_that_was_taken_while_the_store_was_read_is_not_sent_once_more() -> None:
    store, sent, go = Stored(1), list[str](), asyncio.Event()

    async def send(row: NoticeRow) -> None:
        sent.append(row.id)
        await go.wait()

    notifier = Notifier(store, send, lambda job: "k", [].append, Random(1))  # type: ignore[arg-type]
    await notifier.look()
    store.is_read.clear()
    looking = asyncio.create_task(notifier.look())
    await asyncio.sleep(0)
    go.set()
    await all_sent(notifier)
    store.is_read.set()
    await looking
    await all_sent(notifier)
    assert sent == ["n0"] and len(store.applied) == 1


async def test_a_delivery_that_cannot_be_put_down_is_not_sent_again_meanwhile() -> None:
    store, sent = Stored(1), list[str]()
    store.errors = [RecordsUnavailable("the disk is full")] * 3

    async def send(row: NoticeRow) -> None:
        sent.append(row.id)

    notifier = Notifier(store, send, lambda job: "k", [].append, Random(1), again_s=0.0)  # type: ignore[arg-type]
    await notifier.look()
    await notifier.look()
    await asyncio.gather(*notifier._sending)
    assert sent == ["n0"] and [move.state for move in store.applied] == ["sent"]
    store.waiting, store.errors = Stored(3, "http://one.example/").waiting, [StoreLost("another has it")] * 2
    await notifier.look()
    await all_sent(notifier)
    assert len(store.applied) == 1 and sent == ["n0", "n0", "n1"], "who has the store now sends it again"


async def test_a_delivery_that_fails_in_a_way_nobody_thought_of_is_a_try_like_any_other() -> None:
    store, sent, told, now_ms = Stored(1), list[str](), list[Any](), 0

    async def send(row: NoticeRow) -> None:
        sent.append(row.id)
        raise ValueError("x" * 1000)

    limits = NoticeLimits(tries=2)
    notifier = Notifier(
        store,  # type: ignore[arg-type]
        send,
        lambda job: "k",
        told.append,
        Random(1),
        now_ns=lambda: now_ms * 10**6,
        limits=limits,
    )
    await notifier.look()
    await all_sent(notifier)
    (waiting,) = store.applied
    assert (waiting.state, waiting.tries) == ("waiting", 1) and 2500 < waiting.next_ms <= 5000
    assert waiting.error == f"ValueError: {'x' * 488}", "it is no longer than others"
    store.waiting = [msgspec.structs.replace(Stored(1).waiting[0], tries=1, next_ms=waiting.next_ms)]
    await notifier.look()
    await all_sent(notifier)
    assert sent == ["n0"], "not before its time has come"
    now_ms = waiting.next_ms
    await notifier.look()
    await all_sent(notifier)
    assert [move.state for move in store.applied] == ["waiting", "given_up"] and len(sent) == 2
    assert notifier.counts == {"sent": 0, "failed": 1, "given_up": 1}
    assert "ValueError" in told[0]["text"]


async def test_notices_of_jobs_that_another_manager_has_are_left_to_it() -> None:
    store = Stored(2)

    async def send(row: NoticeRow) -> None:
        raise AssertionError("it is not its job")

    notifier = Notifier(store, send, lambda job: None, [].append, Random(1))  # type: ignore[arg-type]
    await notifier.look()
    assert not notifier._sending


async def test_looking_is_a_chore_of_the_service(tmp_path: Path, receiver: Receiver) -> None:
    node = TellingNode(tmp_path, NotifyOptions(SECRET, True))
    node.limits = ServiceLimits(**{**IDLE, "notify_s": 0.001})
    await node.open()
    await node.jobs.start()
    node.records.apply([PutNotice(msgspec.structs.replace(row_to(receiver.url()), next_ms=1))])
    await receiver.until(lambda: len(receiver.requests) == 1)
    await node.jobs.close()
