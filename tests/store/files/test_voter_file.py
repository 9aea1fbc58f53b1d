"""The voter's files: what survives a crash at any point, and what is said when a disk has spoilt them."""

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid, Unavailable
from talka.store.files import folder as folder_module
from talka.store.files import voter_file as voter_module
from talka.store.files.folder import MOST_SET_ASIDE, StoreFailed
from talka.store.files.voter_file import (
    FORMAT,
    HEADER,
    MARK,
    RECORD,
    LaterFormat,
    OtherGroup,
    Puts,
    RecordKind,
    VoterFile,
    apply_puts,
    encode_header,
    encode_record,
    read_slot,
)

GROUP = "shop/live"
SECTOR_BYTES = 512
LIMIT_S = 60
SHARES = 4
"""Every step is tried once, in tests of a fraction of a second each."""
COUNT_FOR_EVER = """
import sys
from pathlib import Path
from talka.store.files.voter_file import VoterFile
file = VoterFile(Path(sys.argv[1]), "shop/live", least_growth_bytes=2000)
count = int(file.stored.get("record", b"0"))
while True:
    count += 1
    file.write([("record", b"%d" % count), (f"entry/{count % 7}", b"%d" % count)])
    print(count, flush=True)
"""
FILL_UP = """
import resource, signal, sys
from pathlib import Path
from talka.store.files.folder import StoreFailed
from talka.store.files.voter_file import VoterFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
file = VoterFile(Path(sys.argv[1]), "shop/live")
for count in range(1, 1000):
    try:
        file.write([("record", b"%d" % count)])
    except StoreFailed as error:
        print(count - 1, error, sep="\\n")
        break
"""


class PowerLoss(BaseException):
    """The machine, or only the process, is gone. Nothing in the product may catch it."""


class Platter:
    """What the store uses of `os`, over real files, with a memory of what would survive a loss of power.

    Every byte written is a step, and so is every other change. At the step `stops_at` nothing more happens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stops_at: int | None = None
        self.steps = 0
        self.durable: dict[str, bytes] = {}
        self._contents: dict[str, bytes] = {}  # synced, under a name that may not be durable yet
        self._open: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._open[descriptor] = Path(path)
        return descriptor

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]
        os.close(descriptor)

    def write(self, descriptor: int, content: memoryview) -> int:
        room = len(content) if self.stops_at is None else self.stops_at - self.steps
        written = os.write(descriptor, content[: max(room, 0)])
        self.steps += written
        if written < len(content):
            raise PowerLoss
        return written

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._step()
        os.ftruncate(descriptor, length)

    def fdatasync(self, descriptor: int) -> None:
        self._step()
        path = self._open[descriptor]
        self._contents[path.name] = path.read_bytes()
        if path.name in self.durable:
            self.durable[path.name] = self._contents[path.name]

    def fsync(self, descriptor: int) -> None:
        self._step()
        assert self._open[descriptor] == self.folder
        for name in self._names():
            self.durable.setdefault(name, self._contents.get(name, b""))

    def _step(self) -> None:
        if self.stops_at is not None and self.steps >= self.stops_at:
            raise PowerLoss
        self.steps += 1

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def kill(self) -> None:
        """The process is gone; what it wrote is still in memory."""
        for descriptor in list(self._open):
            self.close(descriptor)
        self.steps, self.stops_at = 0, None

    def cut_power(self, rng: Random) -> None:
        """Of what was not synced any part may have reached the disk, sector by sector, in any order."""
        self.kill()
        for name in self._names():
            path = self.folder / name
            if name not in self.durable and rng.random() < 0.5:
                path.unlink()
                continue
            path.write_bytes(mixture(self.durable.get(name, b""), path.read_bytes(), rng))
        self.durable = {name: (self.folder / name).read_bytes() for name in self._names()}
        self._contents = dict(self.durable)


def mixture(old: bytes, new: bytes, rng: Random) -> bytes:
    if rng.random() < 0.25:
        return old
    shorter, longer = sorted((len(old), len(new)))
    length = rng.choice((len(old), len(new), rng.randint(shorter, longer)))
    sectors = range(0, length, SECTOR_BYTES)
    chosen = (rng.choice((old, new))[start : start + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0") for start in sectors)
    return b"".join(chosen)[:length]


SMALL = 100
"""Bytes by which a slot grows before the other is begun, so that a few writes do it."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Makes a function of `os` fail with this number of an error from now on."""

    def fail(name: str, number: int) -> None:
        def failed(*arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        replace_os(monkeypatch, SimpleNamespace(**{**vars(os), name: failed}))

    return fail


def replace_os(patch: pytest.MonkeyPatch, replacement: Platter | SimpleNamespace) -> None:
    patch.setattr(folder_module, "os", replacement)
    patch.setattr(voter_module, "os", replacement)


def applied(content: dict[str, bytes], puts: Puts) -> dict[str, bytes]:
    after = dict(content)
    apply_puts(after, puts)
    return after


def stored_in(folder: Path) -> dict[str, bytes]:
    """What a new start finds, which must not be damage."""
    file = VoterFile(folder, GROUP)
    file.close()
    assert file.problem == ""
    return file.stored


def written(folder: Path, *writes: Puts) -> None:
    file = VoterFile(folder, GROUP)
    for puts in writes:
        file.write(puts)
    file.close()


def newest_of(folder: Path) -> Path:
    paths = sorted(folder.glob("voter.[01]"))
    return max(paths, key=lambda path: read_slot(path.name, path.read_bytes()).generation)


def records_of(path: Path) -> list[tuple[int, int]]:
    """Where each record begins and ends."""
    data = path.read_bytes()
    start = len(encode_header(GROUP, 1))
    found = []
    while start < len(data):
        end = start + RECORD.size + RECORD.unpack_from(data, start)[2]
        found.append((start, end))
        start = end
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def assert_damage(folder: Path, about: str) -> VoterFile:
    """A start finds damage, says so, keeps the files, and goes on empty; the next start finds nothing wrong."""
    before = {path.name: path.read_bytes() for path in folder.glob("voter.[01]")}
    file = VoterFile(folder, GROUP)
    assert about in file.problem
    assert file.stored == {}
    for name, data in before.items():
        assert (folder / f"{name}.damaged").read_bytes() == data
        assert f"{name}.damaged" in file.problem
    file.write([("record", b"anew")])
    file.close()
    assert stored_in(folder) == {"record": b"anew"}
    return file


THREE: tuple[Puts, ...] = (
    [("record", b"one"), ("entry/a", b"A")],
    [("record", b"two"), ("entry/b", b"B"), ("entry/a", None)],
    [("record", b"three"), ("entry/c", b"C")],
)


@pytest.fixture
def settled(tmp_path: Path) -> Path:
    """A folder after two lives: an older slot that is retired, and a newer one with three writes."""
    written(tmp_path, [("entry/old", b"O")])
    written(tmp_path, *THREE)
    return tmp_path


# -- what is kept


def test_an_empty_folder_gives_an_empty_start_without_a_problem(tmp_path: Path) -> None:
    assert stored_in(tmp_path) == {}


def test_what_was_written_is_there_at_the_next_start_and_removed_keys_are_not(tmp_path: Path) -> None:
    written(tmp_path, *THREE)
    assert stored_in(tmp_path) == {"record": b"three", "entry/b": b"B", "entry/c": b"C"}
    assert stored_in(tmp_path) == {"record": b"three", "entry/b": b"B", "entry/c": b"C"}


def test_of_one_key_put_twice_in_a_write_the_last_holds(tmp_path: Path) -> None:
    written(tmp_path, [("a", b"1"), ("a", None), ("b", b"1"), ("b", b"2")])
    assert stored_in(tmp_path) == {"b": b"2"}


def test_a_full_register_is_kept_and_its_files_stay_within_three_snapshots(tmp_path: Path) -> None:
    file = VoterFile(tmp_path, GROUP)
    file.write([(f"entry/{number}", bytes(40)) for number in range(8192)])
    snapshot_bytes = 8192 * 56
    for number in range(300):
        file.write([("record", b"%d" % number), ("entry/5", bytes(5000))])
    file.close()
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 3 * snapshot_bytes + 10_000
    stored = stored_in(tmp_path)
    assert (len(stored), stored["record"], stored["entry/5"]) == (8193, b"299", bytes(5000))


@pytest.mark.parametrize(("beyond", "generation"), [(0, 1), (1, 2)])
def test_the_other_slot_takes_over_with_the_first_byte_beyond_the_growth_that_is_allowed(
    tmp_path: Path, beyond: int, generation: int
) -> None:
    puts = [("record", bytes(SMALL))]
    growth_bytes = RECORD.size + len(msgspec.msgpack.encode(puts))
    file = VoterFile(tmp_path, GROUP, least_growth_bytes=growth_bytes - beyond)

    file.write(puts)
    file.close()

    assert read_slot("", newest_of(tmp_path).read_bytes()).generation == generation


def test_only_the_owner_may_read_the_files(settled: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in settled.iterdir()} == {0o600}


def test_the_bytes_of_a_slot_are_those_of_format_1() -> None:
    image = encode_header("g", 2) + encode_record(2, RecordKind.SNAPSHOT, 0, b"\x81\xa1k\xc4\x01v")
    image += encode_record(2, RecordKind.WRITE, 1, b"\x91\x92\xa1k\xc0") + encode_record(2, RecordKind.RETIRED, 2, b"")
    assert image.hex() == GOLDEN
    slot = read_slot("voter.0", bytes.fromhex(GOLDEN))
    assert (slot.group, slot.generation, slot.content, slot.is_retired, slot.damage) == ("g", 2, {}, True, "")


GOLDEN = (
    "74616c6b6176747200010001000000000000000267ca187e74"
    "f57265630100000006000000000000000067fbaa1881a16bc40176"
    "f572656302000000050000000000000001af8b0e8c9192a16bc0"
    "f572656303000000000000000000000002f3ae0cc4"
)


# -- crashes


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.lists(
                    st.tuples(
                        st.sampled_from(["record", "entry/a", "entry/b", "entry/c"]),
                        st.none() | st.binary(max_size=40) | st.just(MARK * 200),
                    ),
                    max_size=4,
                ),
                max_size=6,
            ),
            st.integers(0, 1500),
            st.booleans(),
            st.integers(0, 2**32),
        ),
        max_size=5,
    )
)
def test_after_any_crashes_the_content_is_that_before_or_after_the_write_under_way(
    lives: list[tuple[list[Puts], int, bool, int]],
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        platter = Platter(Path(name))
        replace_os(patch, platter)
        possible: list[dict[str, bytes]] = [{}]
        for writes, stops_at, is_power, seed in lives:
            platter.stops_at = stops_at
            try:
                file = VoterFile(platter.folder, GROUP, least_growth_bytes=SMALL)
                assert file.problem == ""
                assert file.stored in possible
                possible = [dict(file.stored)]
                for puts in writes:
                    possible.append(applied(possible[0], puts))
                    file.write(puts)
                    possible.pop(0)
                    assert file.stored == possible[0]
            except PowerLoss:
                pass
            if is_power:
                platter.cut_power(Random(seed))
            else:
                platter.kill()
        assert stored_in(platter.folder) in possible


@pytest.mark.parametrize("share", range(SHARES))
def test_power_may_fail_at_every_byte_of_starts_writes_and_slot_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    rng = Random(share)
    stops_at, is_over = share, False
    while not is_over:
        folder = tmp_path / str(stops_at)
        folder.mkdir()
        platter = Platter(folder)
        replace_os(monkeypatch, platter)
        written(folder, THREE[0])
        platter.kill()
        platter.stops_at = stops_at
        possible = [applied({}, THREE[0])]
        try:
            file = VoterFile(folder, GROUP, least_growth_bytes=SMALL)
            for puts in (*THREE, [("entry/d", bytes(30))], [("entry/e", b"E")]):
                possible.append(applied(possible[0], puts))
                file.write(puts)
                possible.pop(0)
            assert read_slot("", newest_of(folder).read_bytes()).generation == 4  # two switches were among them
            is_over = True
        except PowerLoss:
            pass
        platter.cut_power(rng)
        assert stored_in(folder) in possible
        stops_at += SHARES
    assert stops_at > 500


def test_a_write_cut_at_any_byte_leaves_the_content_before_it(settled: Path, tmp_path: Path) -> None:
    newest = newest_of(settled)
    data = newest.read_bytes()
    start, end = records_of(newest)[-1]
    for length in range(start, end + 1):
        copy = tmp_path / f"cut-{length}"
        copy.mkdir()
        for path in settled.glob("voter.[01]"):
            shutil.copy(path, copy)
        (copy / newest.name).write_bytes(data[:length])
        assert stored_in(copy)["record"] == (b"three" if length == end else b"two")
        shutil.rmtree(copy)


@pytest.mark.parametrize("rest", [bytes(5000), b"\xff" * 700, MARK * 100], ids=["zeros", "ones", "marks"])
def test_a_last_record_of_which_nothing_arrived_but_its_length_is_cut_off(settled: Path, rest: bytes) -> None:
    newest = newest_of(settled)
    newest.write_bytes(newest.read_bytes() + rest)
    assert stored_in(settled)["record"] == b"three"


def test_writing_goes_on_behind_a_torn_record(settled: Path) -> None:
    newest = newest_of(settled)
    newest.write_bytes(newest.read_bytes()[:-1])
    written(settled, [("entry/z", b"Z")])
    assert stored_in(settled) == {"entry/old": b"O", "record": b"two", "entry/b": b"B", "entry/z": b"Z"}


def test_a_new_slot_that_was_not_finished_gives_way_to_the_older_one(tmp_path: Path) -> None:
    written(tmp_path, *THREE)
    image = encode_header(GROUP, 2) + encode_record(2, RecordKind.SNAPSHOT, 0, b"\x80" + bytes(100))
    for length in range(len(image)):
        (tmp_path / "voter.1").write_bytes(image[:length])
        copy = tmp_path / f"cut-{length}"
        copy.mkdir()
        for path in tmp_path.glob("voter.[01]"):
            shutil.copy(path, copy)
        assert stored_in(copy)["record"] == b"three"


@pytest.mark.parametrize("length", [0, 10, 40, 54])
def test_a_first_start_that_was_cut_short_is_no_damage(tmp_path: Path, length: int) -> None:
    VoterFile(tmp_path, GROUP).close()
    path = tmp_path / "voter.0"
    assert path.stat().st_size == 55
    path.write_bytes(path.read_bytes()[:length])
    assert stored_in(tmp_path) == {}


def test_a_first_start_of_which_only_the_length_arrived_is_no_damage(tmp_path: Path) -> None:
    VoterFile(tmp_path, GROUP).close()
    path = tmp_path / "voter.0"
    path.write_bytes(bytes(path.stat().st_size))
    assert stored_in(tmp_path) == {}


def test_everything_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    acknowledged = 0
    for round in range(4):
        with subprocess.Popen([sys.executable, "-c", COUNT_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(20 + 13 * round):
                acknowledged = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            for line in child.stdout:  # what it said between the last line read and its end
                acknowledged = int(line) if line.endswith(b"\n") else acknowledged
            child.wait(LIMIT_S)
        stored = stored_in(tmp_path)
        count = int(stored["record"])
        assert count in (acknowledged, acknowledged + 1)
        assert stored[f"entry/{count % 7}"] == b"%d" % count
    assert acknowledged > 100


# -- damage


def test_a_flipped_bit_anywhere_is_never_read_as_data(settled: Path) -> None:
    newest = newest_of(settled)
    (older,) = (path for path in settled.iterdir() if path != newest)
    last, _ = records_of(newest)[-1]
    images = {path.name: path.read_bytes() for path in (newest, older)}
    kept = {"entry/old": b"O", "record": b"three", "entry/b": b"B", "entry/c": b"C"}
    before = {"entry/old": b"O", "record": b"two", "entry/b": b"B"}
    for path in (newest, older):
        for position in range(len(images[path.name])):
            for left in settled.iterdir():
                left.unlink()
            for name, data in images.items():
                (settled / name).write_bytes(data)
            flip(path, position)
            file = VoterFile(settled, GROUP)
            file.close()
            is_damage = path == newest and position < last
            expected = {} if is_damage else before if path == newest else kept
            assert (file.stored, bool(file.problem)) == (expected, is_damage), (path.name, position)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 6), st.data())
def test_spoilt_stretches_give_an_earlier_whole_content_or_a_report(lives: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        replace_os(patch, Platter(folder))
        contents: list[dict[str, bytes]] = [{}]
        for life in range(lives):
            puts = [("record", b"%d" % life), (f"entry/{life}", bytes(life))]
            written(folder, puts)
            contents.append(applied(contents[-1], puts))
        path = data.draw(st.sampled_from(sorted(folder.glob("voter.[01]"))))
        image = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(image) - 1))
        spoilt = data.draw(st.binary(min_size=1, max_size=len(image) - start))
        image[start : start + len(spoilt)] = spoilt
        path.write_bytes(image)
        file = VoterFile(folder, GROUP)
        file.close()
        assert file.stored in (contents[-2:] if not file.problem else [{}])


def test_damage_a_record_that_later_ones_follow(settled: Path) -> None:
    newest = newest_of(settled)
    flip(newest, records_of(newest)[2][1] - 1)
    assert_damage(settled, f"{newest.name}: record 2 cannot be read, and later ones follow it")


def test_damage_a_length_that_reaches_behind_the_end_of_the_file(settled: Path) -> None:
    newest = newest_of(settled)
    flip(newest, records_of(newest)[2][0] + 5)
    assert_damage(settled, "record 2 cannot be read, and later ones follow it")


def test_damage_a_snapshot_that_writes_follow(settled: Path) -> None:
    newest = newest_of(settled)
    flip(newest, records_of(newest)[0][1] - 1)
    assert_damage(settled, "record 0 cannot be read, and later ones follow it")


def test_damage_a_newest_slot_without_a_whole_snapshot_when_the_older_one_is_retired(settled: Path) -> None:
    newest = newest_of(settled)
    newest.write_bytes(newest.read_bytes()[: records_of(newest)[0][1] - 1])
    assert_damage(settled, "which cannot be read")


def test_damage_a_spoilt_header_of_the_newest_slot(settled: Path) -> None:
    flip(newest_of(settled), HEADER.size)
    assert_damage(settled, "was followed by generation 2, which cannot be read")


def test_damage_a_newest_slot_that_was_removed(settled: Path) -> None:
    newest_of(settled).unlink()
    assert_damage(settled, "was followed by generation 2, which cannot be read")


def test_damage_both_slots_overwritten(settled: Path) -> None:
    for path in settled.iterdir():
        path.write_bytes(b"\0" * 4096)
    assert_damage(settled, "voter.0: no whole snapshot; voter.1: no whole snapshot")


def test_damage_an_only_slot_overwritten(tmp_path: Path) -> None:
    written(tmp_path, *THREE)
    flip(tmp_path / "voter.0", 3)
    assert_damage(tmp_path, "voter.0: no whole snapshot")


def test_damage_a_write_in_place_of_another(settled: Path) -> None:
    newest = newest_of(settled)
    data = newest.read_bytes()
    start, end = records_of(newest)[2]
    newest.write_bytes(data[:start] + data[end:])
    assert_damage(settled, "record 3 is not the one expected there")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RecordKind.WRITE, b"\xc1"),
        (RecordKind.WRITE, b"\x91\x92\xa1\xff\xc0"),
        (RecordKind.SNAPSHOT, b"\x80"),
        (9, b"\x90"),
    ],
    ids=["no-msgpack", "no-utf8", "second-snapshot", "unknown-kind"],
)
def test_damage_a_whole_record_that_makes_no_sense(settled: Path, kind: Any, payload: bytes) -> None:
    newest = newest_of(settled)
    newest.write_bytes(newest.read_bytes() + encode_record(2, kind, 4, payload))
    assert_damage(settled, "record 4 is not the one expected there")


def test_damage_a_snapshot_that_is_no_map(settled: Path) -> None:
    image = encode_header(GROUP, 3) + encode_record(3, RecordKind.SNAPSHOT, 0, b"\x90")
    (settled / "voter.0").write_bytes(image)
    assert_damage(settled, "voter.0: record 0 is not the one expected there")


def test_damaged_copies_of_earlier_times_are_not_overwritten(settled: Path) -> None:
    (settled / "voter.0.damaged").write_bytes(b"earlier")
    flip(newest_of(settled), 0)
    file = VoterFile(settled, GROUP)
    file.close()
    assert "voter.0.damaged.2 and" in file.problem or "and voter.0.damaged.2," in file.problem
    assert (settled / "voter.0.damaged").read_bytes() == b"earlier"


def test_a_disk_that_spoils_file_after_file_is_given_up(settled: Path) -> None:
    for number in range(2, MOST_SET_ASIDE + 1):
        (settled / f"voter.0.damaged.{number}").touch()
    (settled / "voter.0.damaged").touch()
    flip(newest_of(settled), 0)
    with pytest.raises(StoreFailed, match="100 damaged copies lie beside it"):
        VoterFile(settled, GROUP)


@pytest.mark.parametrize("spoilt", ["header", "record", "record and the mark of retirement"])
def test_setting_damaged_files_aside_may_be_interrupted(
    settled: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    newest = newest_of(settled)
    (older,) = (path for path in settled.iterdir() if path != newest)
    flip(newest, 0 if spoilt == "header" else records_of(newest)[1][0])
    if "retirement" in spoilt:
        flip(older, older.stat().st_size - 1)

    def stop(path: Path) -> None:
        raise PowerLoss

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "sync_folder", stop)
        with pytest.raises(PowerLoss):
            VoterFile(settled, GROUP)
    assert len(list(settled.glob("voter.[01]"))) == 1
    file = VoterFile(settled, GROUP)
    file.close()
    assert (file.stored, bool(file.problem)) == ({}, True)
    assert len(list(settled.glob("*.damaged"))) == 2


# -- refusals


def test_a_folder_of_another_group_is_refused_and_left_as_it_is(settled: Path) -> None:
    images = {path.name: path.read_bytes() for path in settled.iterdir()}
    with pytest.raises(OtherGroup, match="belongs to a voter of group 'shop/live', not 'shop/test'"):
        VoterFile(settled, "shop/test")
    assert {path.name: path.read_bytes() for path in settled.iterdir()} == images


def test_a_file_of_a_later_format_is_refused_and_left_as_it_is(settled: Path) -> None:
    later = encode_header(GROUP, 9, format=2)
    (settled / "voter.0").write_bytes(later)
    with pytest.raises(LaterFormat, match=r"voter.0 was written by a later version .*format is 2, known here is 1"):
        VoterFile(settled, GROUP)
    assert (settled / "voter.0").read_bytes() == later


@pytest.mark.parametrize(("header", "generation"), [(b"", 0), (encode_header(GROUP, 7, FORMAT + 1), 7)])
def test_no_record_is_read_without_a_whole_header_of_this_format(header: bytes, generation: int) -> None:
    slot = read_slot("voter.0", header + encode_record(generation, RecordKind.SNAPSHOT, 0, msgspec.msgpack.encode({})))

    assert (slot.generation, slot.content, slot.damage) == (generation, None, "")


@pytest.mark.parametrize("group", ["", "x" * 1025], ids=["empty", "long"])
def test_a_group_without_a_usable_name_is_refused(tmp_path: Path, group: str) -> None:
    with pytest.raises(Invalid, match="1 to 1024 bytes"):
        VoterFile(tmp_path, group)


def test_a_closed_file_takes_no_more_writes_and_may_be_closed_again(tmp_path: Path) -> None:
    file = VoterFile(tmp_path, GROUP)
    file.close()
    file.close()
    with pytest.raises(Invalid, match="has been closed"):
        file.write(THREE[0])


def test_more_than_can_be_kept_is_refused_and_nothing_is_done(tmp_path: Path) -> None:
    file = VoterFile(tmp_path, GROUP, most_bytes=100)
    file.write([("a", bytes(70))])
    with pytest.raises(Invalid, match="more than 100 bytes"):
        file.write([("b", bytes(40))])
    file.write([("a", bytes(20))])
    file.write([("b", bytes(40))])
    file.close()
    assert stored_in(tmp_path) == {"a": bytes(20), "b": bytes(40)}


# -- a disk that fails


@pytest.mark.parametrize(
    ("call", "number", "advice"),
    [
        ("write", errno.ENOSPC, "free some space"),
        ("fdatasync", errno.EIO, "look after the disk"),
        ("write", errno.ENXIO, "fix that"),
    ],
    ids=["full", "broken", "other"],
)
def test_after_a_failed_write_no_more_are_taken_and_a_new_start_finds_what_holds(
    tmp_path: Path,
    failing: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    advice: str,
) -> None:
    file = VoterFile(tmp_path, GROUP)
    file.write(THREE[0])
    failing(call, number)
    with pytest.raises(Unavailable, match=rf"voter.0 could not be written \(.*\): {advice}"):
        file.write(THREE[1])
    monkeypatch.undo()
    told = f"nothing more is written to {tmp_path / 'voter.0'} by this process: an earlier write failed"
    with pytest.raises(StoreFailed, match=re.escape(told)):
        file.write(THREE[1])
    file.close()
    assert stored_in(tmp_path) in (applied({}, THREE[0]), applied(applied({}, THREE[0]), THREE[1]))


def test_a_write_that_was_interrupted_is_as_bad_as_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = VoterFile(tmp_path, GROUP)
    with monkeypatch.context() as patch:
        platter = Platter(tmp_path)
        platter.stops_at = 5
        replace_os(patch, platter)
        with pytest.raises(PowerLoss):
            file.write(THREE[0])
    with pytest.raises(StoreFailed, match="an earlier write was cut short"):
        file.write(THREE[1])
    file.close()
    assert stored_in(tmp_path) == {}


def test_a_switch_of_slots_that_fails_is_a_failed_write(tmp_path: Path, failing: Callable[[str, int], None]) -> None:
    file = VoterFile(tmp_path, GROUP, least_growth_bytes=SMALL)
    failing("ftruncate", errno.EIO)
    with pytest.raises(StoreFailed):
        file.write([("a", bytes(200))])
    with pytest.raises(StoreFailed, match="an earlier write failed"):
        file.write([("a", b"")])
    file.close()


def test_a_start_on_a_full_disk_says_so_and_takes_nothing_away(
    settled: Path, failing: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("write", errno.ENOSPC)
    with pytest.raises(StoreFailed, match="No space left on device"):
        VoterFile(settled, GROUP)
    monkeypatch.undo()
    assert stored_in(settled)["record"] == b"three"


def test_a_start_that_fails_leaves_no_file_open(settled: Path, failing: Callable[[str, int], None]) -> None:
    failing("ftruncate", errno.EIO)
    with pytest.raises(StoreFailed):
        VoterFile(settled, GROUP)
    assert [file.path for file in psutil.Process().open_files() if Path(file.path).parent == settled.resolve()] == []


def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "voter.1").mkdir()
    with pytest.raises(StoreFailed, match=r"voter.1 could not be read \(Is a directory\): move that folder away"):
        VoterFile(tmp_path, GROUP)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platter = Platter(tmp_path)
    monkeypatch.setattr(platter, "write", lambda descriptor, content: os.write(descriptor, content[:3]))
    replace_os(monkeypatch, platter)
    written(tmp_path, *THREE)
    assert stored_in(tmp_path)["record"] == b"three"


def test_a_real_limit_of_the_file_size_loses_nothing_acknowledged(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FILL_UP, str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    acknowledged, sentence = child.stdout.splitlines()
    assert 50 < int(acknowledged) < 500
    assert "File too large" in sentence and "raise the limit" in sentence
    assert stored_in(tmp_path) == {"record": acknowledged.encode()}
