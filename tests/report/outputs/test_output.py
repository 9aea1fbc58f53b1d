"""Outputs never block or fail a job: what goes wrong with them becomes a warning. And how they are named."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import monotonic_ns
from talka.errors import Invalid
from talka.report import files
from talka.report.document import ResultDocument, TimelineRow
from talka.report.job_view import JobView
from talka.report.outputs.output import (
    EXAMPLES,
    MOST_WAITING,
    JobInfo,
    Outputs,
    WindowFeed,
    job_info,
    new_rows,
    parse_output,
)
from talka.report.outputs.targets import SendLimits
from talka.report.over_time import timeline_of
from talka.stats.windows import StepWindow, Timeline, Window
from talka.units import SECOND
from tests.report.conftest import PATIENT, patient_output

LIMIT_S = 30
AT_ONCE = msgspec.structs.replace(PATIENT, backoff_s=0.0)
"""Servers are asked again without a pause."""


class Kept:
    """Keeps what it is given."""

    name = "kept"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self.seen += rows

    def finish(self, document: ResultDocument) -> None:
        self.seen.append("finish")

    def close(self) -> None:
        self.seen.append("close")


class Stuck(Kept):
    """Hangs in its first call until it is let go."""

    name = "stuck"

    def __init__(self) -> None:
        super().__init__()
        self.is_called, self.may_go, self.is_closed = threading.Event(), threading.Event(), threading.Event()

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self.is_called.set()
        assert self.may_go.wait(LIMIT_S)
        super().rows(rows, job)

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    output = Stuck()
    yield output
    output.may_go.set()
    assert output.is_closed.wait(LIMIT_S)


class Failing(Kept):
    name = "failing"

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        raise self.error

    def finish(self, document: ResultDocument) -> None:
        raise ValueError("a later error")


# The runner.


def test_an_output_gets_all_rows_in_order_then_the_result_then_the_end(
    result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    kept = Kept()
    outputs = Outputs([kept])
    for row in windows:
        outputs.rows([row], job)
    assert outputs.finish(result, LIMIT_S) == []
    assert kept.seen == [*windows, "finish", "close"]


def test_without_a_result_outputs_are_closed_all_the_same(windows: list[TimelineRow], job: JobInfo) -> None:
    kept = Kept()
    outputs = Outputs([kept])
    outputs.rows(windows, job)
    assert outputs.finish(None, LIMIT_S) == []
    assert kept.seen == [*windows, "close"]


def test_the_first_error_and_the_lost_rows_become_one_warning(
    result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    outputs = Outputs([Failing(OSError(28, "No space left on device"))])
    outputs.rows(windows, job)
    assert outputs.finish(result, LIMIT_S) == ["the output failing failed: No space left on device; 12 rows were lost"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), RuntimeError("x\x1b[31m\ny" * 1000)])
def test_whatever_an_output_raises_stays_with_it(
    error: BaseException, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    kept = Kept()
    outputs = Outputs([Failing(error), kept])
    outputs.rows(windows[:1], job)
    (warning,) = outputs.finish(result, LIMIT_S)
    assert warning.startswith(f"the output failing failed: {type(error).__name__}")
    assert warning.endswith("; 1 row was lost") and warning.isprintable() and len(warning) < 400
    assert kept.seen == [*windows[:1], "finish", "close"]


def test_an_error_that_cannot_say_what_it_is_is_named_by_its_type(result: ResultDocument, job: JobInfo) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    outputs = Outputs([Failing(Mute())])
    outputs.rows([TimelineRow(0, 0.1, 0, 0, 0, 0, None, None)], job)
    assert outputs.finish(result, LIMIT_S) == ["the output failing failed: Mute; 1 row was lost"]


def test_a_stuck_output_delays_neither_the_job_nor_other_outputs_and_its_rows_are_counted(
    stuck: Stuck, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    kept = Kept()
    outputs = Outputs([stuck, kept])
    outputs.rows(windows, job)
    assert stuck.is_called.wait(LIMIT_S)
    outputs.rows(windows, job)
    before_ns = monotonic_ns()
    assert outputs.finish(result, 3) == ["the output stuck failed: it was not done within 3 s; 24 rows were lost"]
    # Far above the limit, which may be exceeded on a busy machine, and far below the time the output hangs.
    assert monotonic_ns() - before_ns < LIMIT_S * SECOND
    assert kept.seen == [*windows, *windows, "finish", "close"]


def test_what_is_late_is_given_up_and_not_continued_behind_the_back(
    stuck: Stuck, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    outputs = Outputs([stuck])
    outputs.rows(windows[:1], job)
    assert stuck.is_called.wait(LIMIT_S)
    outputs.rows(windows[1:], job)
    outputs.finish(result, 0.0)
    stuck.may_go.set()
    assert stuck.is_closed.wait(LIMIT_S)
    assert stuck.seen == windows[:1]


def test_rows_beyond_the_limit_are_dropped_and_counted(stuck: Stuck, result: ResultDocument, job: JobInfo) -> None:
    row = TimelineRow(0, 0.1, 0, 0, 0, 0, None, None)
    outputs = Outputs([stuck])
    outputs.rows([row], job)
    assert stuck.is_called.wait(LIMIT_S)
    outputs.rows([row] * (MOST_WAITING + 7), job)
    outputs.rows([row], job)
    stuck.may_go.set()
    assert outputs.finish(result, LIMIT_S) == ["the output stuck failed: it was too slow; 8 rows were lost"]
    assert len(stuck.seen) == 1 + MOST_WAITING + 1  # and the result


def test_a_machine_without_threads_to_spare_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outputs = Outputs([Kept()])
    outputs.rows(windows, job)
    assert outputs.finish(result) == ["the output kept failed: can't start new thread; 12 rows were lost"]


def test_a_silent_server_and_a_full_disk_change_nothing_but_the_warnings(
    silent_server: str,
    tmp_path: Path,
    result: ResultDocument,
    windows: list[TimelineRow],
    job: JobInfo,
) -> None:
    good = tmp_path / "good.jsonl"
    texts = [f"influx=http://{silent_server}/write?db=x", f"otlp=http://{silent_server}", "jsonl=/dev/full"]
    outputs = Outputs([parse_output(text) for text in [*texts, f"jsonl={good}"]])
    outputs.rows(windows, job)
    before_ns = monotonic_ns()
    warnings = outputs.finish(result, 3)
    assert monotonic_ns() - before_ns < LIMIT_S * SECOND, "it waited for the server, not for its own limit"
    assert warnings == [
        "the output influx failed: it was not done within 3 s; 12 rows were lost",
        "the output otlp failed: it was not done within 3 s; 12 rows were lost",
        "the output jsonl failed: /dev/full: No space left on device; 12 rows were lost",
    ]
    assert len(good.read_bytes().splitlines()) == 13


@pytest.mark.parametrize("kind", ["jsonl", "junit", "markdown", "prometheus"])
def test_a_full_disk_is_a_warning_of_every_file(kind: str, result: ResultDocument) -> None:
    outputs = Outputs([parse_output(f"{kind}=/dev/full")])
    assert outputs.finish(result, LIMIT_S) == [f"the output {kind} failed: /dev/full: No space left on device"]


def test_a_server_that_never_answers_is_given_up_after_its_timeouts(silent_server: str, result: ResultDocument) -> None:
    limits = SendLimits(timeout_s=0.05, backoff_s=0.0)
    outputs = Outputs([parse_output(f"remote-write=http://{silent_server}/", limits=limits)])
    assert outputs.finish(result, LIMIT_S) == [
        f"the output remote-write failed: {silent_server} cannot be reached: no answer in time"
    ]


# Servers in general.


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_refusal_that_may_pass_is_asked_again(status: int, http_server: Any, result: ResultDocument) -> None:
    http_server.answers = [(status, b"busy"), (status, b"busy")]
    output = parse_output(f"influx={http_server.url}/write?db=x", limits=AT_ONCE)
    assert Outputs([output]).finish(result, LIMIT_S) == []
    assert http_server.requests.qsize() == 3


def test_a_server_is_asked_at_most_three_times(http_server: Any, result: ResultDocument) -> None:
    http_server.answers = [(503, b"busy\n")] * 9
    output = parse_output(f"influx={http_server.url}/write?db=x", limits=AT_ONCE)
    (warning,) = Outputs([output]).finish(result, LIMIT_S)
    assert warning.endswith("answered 503 Service Unavailable: busy")
    assert http_server.requests.qsize() == 3


def test_a_refusal_that_would_come_again_is_not_asked_for(http_server: Any, result: ResultDocument) -> None:
    http_server.answers = [(401, b"no such user")]
    url = http_server.url.replace("http://", "http://ann:secret@")
    (warning,) = Outputs([patient_output(f"influx={url}/write?db=x#X-Key=hidden")]).finish(result, LIMIT_S)
    assert warning.endswith("answered 401 Unauthorized: no such user")
    assert "secret" not in warning and "hidden" not in warning
    assert http_server.requests.qsize() == 1


def test_user_password_and_headers_of_an_address_are_sent_as_headers(http_server: Any, result: ResultDocument) -> None:
    url = http_server.url.replace("http://", "http://ann:p%40ss@")
    assert Outputs([patient_output(f"influx={url}/write?db=x#X-Team=red+blue")]).finish(result, LIMIT_S) == []
    request = http_server.next()
    assert request.path == "/write?db=x"
    assert request.headers["Authorization"] == "Basic YW5uOnBAc3M="
    assert request.headers["X-Team"] == "red blue"


def test_a_file_that_failed_once_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class NearlyFull:
        """Takes three bytes, then none, and then, after somebody has tidied up, everything."""

        def write(self, content: memoryview) -> int:
            if len(written) == 1:
                written.append(b"")
                raise OSError(28, "No space left on device")
            written.append(bytes(content[:3]))
            return 3

        def close(self) -> None:
            pass

    monkeypatch.setattr(files, "open", lambda *_, **__: NearlyFull(), raising=False)
    stream = files.FilePlace(str(tmp_path / "file"), "it").stream()
    for _ in range(2):
        with pytest.raises(files.CannotDeliver, match="file: No space left on device"):
            stream.write(b"12345")
    stream.close()
    assert written == [b"123", b""]


def test_a_file_that_cannot_be_moved_into_place_leaves_the_old_one_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: ResultDocument
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    file = tmp_path / "junit.xml"
    file.write_text("old")
    output = parse_output(f"junit={file}")
    monkeypatch.setattr("os.replace", refuse)
    assert Outputs([output]).finish(result, LIMIT_S) == [f"the output junit failed: {file}: Operation not permitted"]
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("junit.xml", "old")]


# Rows of a running job.


def rows_of(timeline: Timeline) -> list[TimelineRow]:
    return timeline_of(timeline, [])


def test_only_windows_older_than_a_second_are_final() -> None:
    timeline = Timeline()
    for index in range(25):
        timeline.add(Window(index, requests=index))
    rows, sent_until_ns = new_rows(timeline.spans(), 0)
    assert rows == rows_of(timeline)[:15]
    assert sent_until_ns == 1.5 * SECOND
    assert new_rows(timeline.spans(), sent_until_ns) == ([], sent_until_ns)
    rest, _ = new_rows(timeline.spans(), sent_until_ns, is_over=True)
    assert rest == rows_of(timeline)[15:]


def test_a_job_without_windows_has_no_rows() -> None:
    assert new_rows([], 0) == ([], 0)
    assert new_rows([], 5, is_over=True) == ([], 5)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_every_window_is_sent_once_however_often_one_asks(steps: list[int]) -> None:
    timeline, index, sent_until_ns, sent = Timeline(), 0, 0, list[TimelineRow]()
    for step in steps:
        for _ in range(step):
            timeline.add(Window(index, requests=1))
            index += 1
        rows, sent_until_ns = new_rows(timeline.spans(), sent_until_ns)
        sent += rows
    rows, _ = new_rows(timeline.spans(), sent_until_ns, is_over=True)
    sent += rows
    assert [round(row.t_s * 10) for row in sent] == list(range(index))
    assert sum(row.requests for row in sent) == index


def test_a_feed_sends_windows_while_the_job_runs_and_the_rest_with_the_result(result: ResultDocument) -> None:
    class Running:
        """As much of a job as a feed looks at."""

        id = "job-7"
        timeline = Timeline()
        workflows = {"Shop": type("Run", (), {"timeline": Timeline()})}
        origin_ns = 5 * SECOND

    class Noting(Outputs):
        """Without a thread: it sees every call by itself."""

        def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
            sent.extend(rows)
            infos.append(job)

    sent, infos = list[TimelineRow](), list[JobInfo]()
    job: JobView = Running()  # type: ignore[assignment]
    feed = WindowFeed(Noting([]), "shop.py")
    for index in range(30):
        job.timeline.add(Window(index, requests=1))
        steps = {"get": StepWindow(1, 1, {"status": 1})} if index == 7 else {}
        job.workflows["Shop"].timeline.add(Window(index, requests=1, steps=steps))
        feed(job, 5 * SECOND + index * SECOND // 10)
    assert len(sent) == 20
    assert [row.errors for row in sent] == [{"status": 1} if number == 7 else {} for number in range(20)]
    document = msgspec.structs.replace(result, timeline=timeline_of(job.timeline, [job.workflows["Shop"].timeline]))
    assert feed.finish(document, LIMIT_S) == []
    assert sent == document.timeline
    assert {(info.id, info.name) for info in infos} == {("job-7", "shop.py")}
    assert len({info.started_ns for info in infos}) == 1, "the clock's zero must not wander"


def test_a_feed_of_a_job_too_short_to_be_seen_sends_all_with_the_result(
    result: ResultDocument, windows: list[TimelineRow]
) -> None:
    kept = Kept()
    document = msgspec.structs.replace(result, timeline=windows)
    assert WindowFeed(Outputs([kept]), "shop.py").finish(document, LIMIT_S) == []
    assert kept.seen == [*windows, "finish", "close"]


def test_the_start_is_known_to_the_millisecond_in_whole_nanoseconds(result: ResultDocument) -> None:
    assert job_info(result).started_ns == 1_794_744_000_500_000_000


# Names on the command line.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("jsnl=x", "--output: there is no output 'jsnl' (did you mean jsonl?)"),
        ("zebra=x", "--output: there is no output 'zebra' (there are jsonl, csv, "),
        ("", "--output: there is no output ''"),
        ("jsonl", "--output jsonl names no target: write jsonl=windows.jsonl"),
        ("statsd=", "--output statsd names no target: write statsd=localhost:8125"),
        ("jsonl=-", "--output jsonl: - cannot be written: name a file"),
        ("jsonl=nowhere/x", "--output jsonl: nowhere/x cannot be written: its folder does not exist"),
        ("junit=.", "--output junit: . cannot be written: it is a folder; name a file in it"),
        ("junit=new/", "--output junit: new/ cannot be written: it is a folder; name a file in it"),
        ("markdown=a\0b", "cannot be written: ValueError"),
        ("csv=nowhere/x", "--output csv: nowhere/x-steps.csv cannot be written: its folder does not exist"),
        ("csv=own.py/", "--output csv: the folder own.py/ cannot be made: File exists"),
        ("influx=udp://x", "--output influx: 'x' is not an address: write host:port"),
        ("influx=ftp://x/", "--output influx: this is not the address of a server: write http://"),
        ("influx=http://h/?precision=s", "timestamps are sent in nanoseconds: leave out precision=s"),
        ("otlp=localhost:4318", "--output otlp: this is not the address of a server"),
        ("otlp=http://h:99999", "--output otlp: this is not the address of a server"),
        ("otlp=http://h/a b", "no spaces: write others as %XX"),
        ("otlp=http://h/#key", "what follows # must be headers"),
        ("otlp=http://h/#a%0Ab=c", "what follows # must be headers"),
        ("statsd=x", "--output statsd: 'x' is not an address: write host:port"),
        ("statsd=a@b:1", "--output statsd: 'a@b:1' is not an address"),
        ("graphite=x:70000", "--output graphite: 'x:70000' is not an address"),
        ("custom=own.py", "'own.py' names no class of a file: write my_output.py:MyOutput"),
        ("custom=no.py:X", "--output custom: there is no file no.py"),
        ("custom=own.py:Nope", "--output custom: own.py has no class Nope"),
        ("custom=own.py:Half", "Half of own.py lacks finish, close: an output has rows, finish and close"),
        ("custom=own.py:Eager", "own.py:19: Eager cannot be made: ZeroDivisionError: division by zero"),
        ("custom=broken.py:X", "broken.py:1: X cannot be made: SystemExit"),
    ],
)
def test_what_is_wrong_with_an_output_is_said_before_the_run(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path)
    with pytest.raises(Invalid) as caught:
        parse_output(text)
    assert sentence in str(caught.value)


def write_own(folder: Path) -> None:
    (folder / "own.py").write_text(
        """
class Own:
    def __init__(self):
        self.seen = []
    def rows(self, rows, job):
        self.seen += rows
    def finish(self, document):
        self.seen.append(document.status)
    def close(self):
        self.seen.append("close")

class Half:
    name = "half"
    def rows(self, rows, job):
        pass

class Eager(Own):
    def __init__(self):
        1 / 0
"""
    )
    (folder / "broken.py").write_text("raise SystemExit")


def test_a_file_one_may_not_write_is_found_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "old.xml"
    file.touch()
    # Asked this way, for the super-user may write everywhere.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(Invalid, match=r"old\.xml cannot be written: you may not write to it"):
        parse_output(f"junit={file}")


def test_naming_an_output_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").write_text("old")
    for kind in ("jsonl", "junit", "markdown", "prometheus"):
        parse_output(f"{kind}=old.jsonl")
        parse_output(f"{kind}=new.{kind}")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old.jsonl", "old")]


def test_a_users_own_class_is_an_output(
    tmp_path: Path, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    write_own(tmp_path)
    output: Any = parse_output(f"custom={tmp_path / 'own.py'}:Own")
    assert output.name == "Own"
    outputs = Outputs([output])
    outputs.rows(windows, job)
    assert outputs.finish(result, LIMIT_S) == []
    assert output.seen == [*windows, "partial", "close"]


def test_every_kind_has_an_example_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_output.py").write_text(
        "class MyOutput:\n def rows(self, rows, job): ...\n def finish(self, document): ...\n def close(self): ...\n"
    )
    for kind, target in EXAMPLES.items():
        output = parse_output(f"{kind}={target}")
        assert output.name == ("MyOutput" if kind == "custom" else kind)
        output.close()
