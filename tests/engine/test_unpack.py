"""A bundle is unpacked into its folder and nowhere else, or refused with a sentence."""

import errno
import hashlib
import io
import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.engine import unpack as unpack_module
from talka.engine.loader import load
from talka.engine.unpack import BadBundle, BundleUnavailable, as_in_bundle, checked, unpack
from talka.errors import Invalid, Unavailable
from talka.wire.shards import BundleSource, FileSource
from talka.work.specs import BadWorkflows

SHOP = b"""\
from talka import HTTPResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def login(self) -> HTTPResponse: ...
"""


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unpacking changes the process it happens in, which is a core's."""
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.chdir(os.getcwd())  # is undone at the end, and so is every other change of the folder
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def zipped(*entries: tuple[str | ZipInfo, bytes], method: int = ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", method) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return buffer.getvalue()


def source_of(
    folder: Path, content: bytes, *, file: str = "shop.py", env: dict[str, str] | None = None
) -> BundleSource:
    path = folder / "bundle"
    path.write_bytes(content)
    return BundleSource(str(path), hashlib.sha256(content).hexdigest(), file, str(folder / "core-1"), env or {})


def with_mode(name: str, mode: int) -> ZipInfo:
    info = ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


# What is unpacked


def test_files_are_unpacked_for_their_owner_alone_and_the_folder_is_the_current_one(tmp_path: Path) -> None:
    source = source_of(tmp_path, zipped(("shop.py", SHOP), ("data/deep/users.csv", b"a\n1\n"), ("empty/", b"")))

    path = unpack(source)

    folder = tmp_path / "core-1"
    assert path == folder / "shop.py"
    assert path.read_bytes() == SHOP
    assert (folder / "data/deep/users.csv").read_bytes() == b"a\n1\n"
    assert (folder / "empty").is_dir()
    assert Path.cwd() == folder
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.rglob("*") if each.is_file()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_is_there_already_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "core-1").mkdir(mode=0o755)

    unpack(source_of(tmp_path, zipped(("shop.py", SHOP))))

    assert stat.S_IMODE((tmp_path / "core-1").stat().st_mode) == 0o700


def test_variables_are_set_before_the_file_is_imported(tmp_path: Path) -> None:
    test = b"import os\nassert os.environ['TARGET'] == 'http://shop'\n" + SHOP
    source = source_of(tmp_path, zipped(("shop.py", test)), env={"TARGET": "http://shop"})

    assert [spec.name for spec in load(source)] == ["Shop"]


def test_importing_leaves_no_files_that_a_pattern_of_the_test_could_find(tmp_path: Path) -> None:
    load(source_of(tmp_path, zipped(("shop.py", b"import neighbour_of_shop\n" + SHOP), ("neighbour_of_shop.py", b""))))

    assert sorted(os.listdir(tmp_path / "core-1")) == ["neighbour_of_shop.py", "shop.py"]


def test_a_file_of_a_package_is_imported_as_part_of_it(tmp_path: Path) -> None:
    content = zipped(("shop_tests/__init__.py", b""), ("shop_tests/shop.py", b"from . import other\n" + SHOP))
    with ZipFile(tmp_path / "more", "w") as archive, ZipFile(io.BytesIO(content)) as first:
        for info in first.infolist():
            archive.writestr(info, first.read(info))
        archive.writestr("shop_tests/other.py", "")
    source = source_of(tmp_path, (tmp_path / "more").read_bytes(), file="shop_tests/shop.py")

    assert load(source)[0].workflow.__module__ == "shop_tests.shop"


# What is refused


def test_content_that_is_not_what_the_digest_says_is_not_unpacked(tmp_path: Path) -> None:
    source = source_of(tmp_path, zipped(("shop.py", SHOP)))
    (tmp_path / "bundle").write_bytes(zipped(("shop.py", b"evil")))

    with pytest.raises(BundleUnavailable, match=f"the bundle {source.digest} is damaged on this worker") as refusal:
        unpack(source)
    assert isinstance(refusal.value, Unavailable)
    assert not (tmp_path / "core-1").exists()


def test_a_bundle_that_is_not_there_is_said(tmp_path: Path) -> None:
    source = source_of(tmp_path, b"")
    (tmp_path / "bundle").unlink()

    with pytest.raises(BundleUnavailable, match="cannot be unpacked on this worker: No such file"):
        unpack(source)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(unpack_module, "extract", full)
    with pytest.raises(BundleUnavailable, match="cannot be unpacked on this worker: No space left on device"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP))))


def test_a_folder_that_holds_such_a_file_already_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "core-1").mkdir()
    (tmp_path / "core-1" / "shop.py").symlink_to(tmp_path / "victim")

    with pytest.raises(BundleUnavailable, match="File exists"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP))))
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("../outside.py", "leads out of the bundle"),
        ("data/../../outside.py", "leads out of the bundle"),
        ("data/..", "leads out of the bundle"),
        ("C:/windows.py", "begins with the letter of a drive"),
        ("c:windows.py", "begins with the letter of a drive"),
        ("data\\users.csv", "has a backslash"),
        ("data//users.csv", "is not a plain path"),
        ("./users.csv", "is not a plain path"),
        ("x" * 1025, "has a name of 1025 characters: it may have 1024"),
        (with_mode("link", stat.S_IFLNK | 0o777), "is a link"),
        (with_mode("pipe", stat.S_IFIFO | 0o600), "is neither a file nor a folder"),
        (with_mode("device", stat.S_IFBLK | 0o600), "is neither a file nor a folder"),
    ],
    ids=lambda value: value.filename if isinstance(value, ZipInfo) else value[:20].replace("\\", "-"),
)
def test_an_entry_that_must_not_be_there_is_refused_and_nothing_is_written(
    tmp_path: Path, entry: str | ZipInfo, reason: str
) -> None:
    with pytest.raises(BadBundle, match=f"^the bundle holds .*, which {reason}") as refusal:
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), (entry, b"content"))))
    assert isinstance(refusal.value, Invalid)
    assert sorted(os.listdir(tmp_path)) == ["bundle"]


def test_a_name_that_hides_its_end_behind_a_zero_byte_is_refused(tmp_path: Path) -> None:
    content = zipped(("shop.py", SHOP), ("usersX.csv", b"x")).replace(b"usersX.csv", b"users\0.csv")

    with pytest.raises(BadBundle, match="has a backslash or a zero byte in its name"):
        unpack(source_of(tmp_path, content))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="the bundle holds 'shop.py' twice"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), ("shop.py", b""))))
    with pytest.raises(BadBundle, match="the bundle holds 'data' twice"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), ("data", b""), ("data/", b""))))


def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="the bundle holds 'data' as a file and as a folder"):
        unpack(source_of(tmp_path, zipped(("data/deep/users.csv", b""), ("data", b""), ("shop.py", SHOP))))


def test_more_entries_than_allowed_are_refused(tmp_path: Path) -> None:
    entries = [(f"{number}", b"") for number in range(2000)]

    with pytest.raises(BadBundle, match="the bundle holds 2001 files: it may hold 2000"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), *entries)))
    unpack(source_of(tmp_path, zipped(("shop.py", SHOP), *entries[1:])))


def test_more_bytes_than_allowed_are_refused(tmp_path: Path) -> None:
    content = zipped(("shop.py", SHOP), ("one", b"1" * 50), ("other", b"2" * 50), method=ZIP_STORED)

    with pytest.raises(BadBundle, match=f"the bundle holds more than {len(SHOP) + 99} bytes"):
        unpack(source_of(tmp_path, content), unpacked_limit_bytes=len(SHOP) + 99)
    unpack(source_of(tmp_path, content), unpacked_limit_bytes=len(SHOP) + 100)


def test_a_bundle_longer_than_allowed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="the bundle has 101 bytes: it may have 100"):
        unpack(source_of(tmp_path, b"x" * 101), bundle_limit_bytes=100)


def test_what_is_packed_too_well_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="'bomb', which is packed to less than one byte of 100"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), ("bomb", bytes(1_000_000)))))


def test_another_way_of_packing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="'shop.py', which is packed in a way that is not known here"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP), method=ZIP_BZIP2)))


def test_a_bundle_without_its_test_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="the bundle does not hold the file 'shop.py'"):
        unpack(source_of(tmp_path, zipped(("other.py", SHOP))))


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all"], ids=["empty", "start", "text"])
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadBundle, match="the bundle cannot be read: File is not a zip file"):
        unpack(source_of(tmp_path, content))


@pytest.mark.parametrize(
    "env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}], ids=["empty", "equals", "zero", "zero-value"]
)
def test_variables_that_cannot_be_are_refused(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(BadBundle, match="cannot be a variable of the environment"):
        unpack(source_of(tmp_path, zipped(("shop.py", SHOP)), env=env))


WHOLE = zipped(("shop.py", SHOP), ("data/users.csv", b"name\nada\n"))


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_spoilt_zip_is_read_or_refused_and_never_an_internal_error(changes: list[tuple[int, int]]) -> None:
    spoilt = bytearray(WHOLE)
    for place, value in changes:
        spoilt[place] = value

    try:
        with ZipFile(io.BytesIO(bytes(spoilt))) as archive:
            for info in checked(archive).values():
                archive.read(info)
    except (BadBundle, OSError, *unpack_module.NO_ZIP):
        pass


# How errors name files


def test_errors_name_files_as_they_are_in_the_bundle(tmp_path: Path) -> None:
    test = textwrap.dedent("""\
        from talka import Workflow
        raise RuntimeError("no")
    """)
    source = source_of(tmp_path, zipped(("shop.py", test.encode())))

    with pytest.raises(BadWorkflows) as refusal:
        load(source)

    assert as_in_bundle(str(refusal.value), source) == "shop.py:2: raised RuntimeError: no when it was imported"


def test_a_folder_reached_through_a_link_is_not_named_either(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    source = BundleSource("bundle", "0" * 64, "shop.py", str(tmp_path / "link"))

    for folder in ("real", "link"):
        assert as_in_bundle(f"{tmp_path / folder}/shop.py:1: no", source) == "shop.py:1: no"


def test_files_that_are_not_of_a_bundle_keep_their_names() -> None:
    assert as_in_bundle("/home/ada/shop.py: no", FileSource("/home/ada/shop.py")) == "/home/ada/shop.py: no"
