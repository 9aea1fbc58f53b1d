"""A bundle holds what a test needs on a worker, or what workers would miss is said before anything is sent."""

import asyncio
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import ModuleType
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import pytest

from talka.clock import monotonic_ns
from talka.engine import bundle as bundle_module
from talka.engine.bundle import BUNDLE_LIMITS, Bundle, BundleLimits, CannotTravel, make_bundle, pack_handlers
from talka.engine.load.supervisor import Supervisor
from talka.engine.loader import load
from talka.engine.unpack import checked
from talka.store.files.blobs import Blobs
from talka.units import SECOND
from talka.wire.shards import (
    Ack,
    Arm,
    Armed,
    BundleSource,
    FileSource,
    FromCore,
    Go,
    Refused,
    Settings,
    StepTotals,
    Totals,
)
from talka.work.shapes import IterationsPerVU
from talka.work.specs import BadWorkflows

WAIT_S = 60
TALKA = "from talka import CustomResponse, Directory, Feed, File, FileGlob, HTTPResponse, Workflow, step\n"
SHOP = """
class Shop(Workflow):
    @step()
    async def login(self) -> HTTPResponse: ...
"""


@pytest.fixture(autouse=True)
def imports_of_its_own() -> Iterator[None]:
    """What a test imports is gone after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is also the current one."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(name: str, text: str | bytes = "") -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())


def bundle_of(
    path: str,
    sent: Mapping[str, str] | None = None,
    *,
    allow: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    limits: BundleLimits = BUNDLE_LIMITS,
) -> Bundle:
    specs = load(FileSource(path))
    return make_bundle(path, specs, sent or {}, allow_modules=allow, environment=environment or {}, limits=limits)


def names_in(bundle: Bundle) -> list[str]:
    with ZipFile(io.BytesIO(bundle.content)) as archive:
        return list(checked(archive))


def bundled(test: str, name: str = "shop.py") -> list[str]:
    """What the bundle of a test of this text holds beside it."""
    write(name, TALKA + textwrap.dedent(test) + SHOP)
    return [each for each in names_in(bundle_of(name)) if each != name]


def problems_of(test: str, name: str = "shop.py", **options: object) -> list[str]:
    write(name, TALKA + textwrap.dedent(test) + SHOP)
    with pytest.raises(CannotTravel) as refusal:
        bundle_of(name, **options)  # type: ignore[arg-type]
    assert isinstance(refusal.value, BadWorkflows)
    return [str(problem) for problem in refusal.value.problems]


# The zip


def test_a_bundle_is_named_by_its_content(folder: Path) -> None:
    write("shop.py", TALKA + SHOP)

    bundle = bundle_of("shop.py", {"TARGET": "http://shop"})

    assert bundle.digest == sha256(bundle.content).hexdigest()
    assert (bundle.file, bundle.env) == ("shop.py", {"TARGET": "http://shop"})
    assert names_in(bundle) == ["shop.py"]


def test_the_same_files_make_the_same_bundle_wherever_and_whenever(folder: Path) -> None:
    digests = []
    for place, second in (("one", 1), ("another", 2_000_000_000)):
        for name, text in (("shop.py", TALKA + "import neighbour_a, neighbour_b\n" + SHOP), ("neighbour_b.py", "")):
            write(f"{place}/{name}", text)
        write(f"{place}/neighbour_a.py", "import neighbour_b")
        for path in Path(place).iterdir():
            os.utime(path, (second, second))
            path.chmod(0o644 if second == 1 else 0o755)
        digests.append(bundle_of(f"{place}/shop.py").digest)
        for name in ("neighbour_a", "neighbour_b"):
            del sys.modules[name]
        sys.path.remove(str(folder / place))

    assert digests[0] == digests[1]


def test_files_that_would_be_packed_too_well_are_stored(folder: Path) -> None:
    write("zeros.bin", bytes(100_000))
    write(
        "shop.py",
        TALKA + SHOP + "\n    @step()\n    async def send(self, body: File = 'zeros.bin') -> HTTPResponse: ...",
    )

    with ZipFile(io.BytesIO(bundle_of("shop.py").content)) as archive:
        checked(archive)
        assert archive.getinfo("zeros.bin").compress_type == ZIP_STORED
        assert archive.getinfo("shop.py").compress_type == ZIP_DEFLATED
        assert archive.read("zeros.bin") == bytes(100_000)


# The user's own modules


def test_neighbours_and_packages_that_were_imported_travel(folder: Path) -> None:
    write("neighbour.py", "import second_neighbour")
    write("second_neighbour.py")
    write("tools/__init__.py")
    write("tools/deep/__init__.py", "from .. import near")
    write("tools/near.py")
    write("tools/unused.py")
    write("unused.py")

    assert bundled("import neighbour\nfrom tools import deep\n") == [
        "neighbour.py",
        "second_neighbour.py",
        "tools/__init__.py",
        "tools/deep/__init__.py",
        "tools/near.py",
    ]


def test_a_module_that_is_imported_only_when_a_step_runs_travels(folder: Path) -> None:
    write("late.py", "import later.module")
    write("later/__init__.py", "raise RuntimeError('not now')")
    write("later/module.py")

    assert bundled("def go():\n    import late\n") == ["late.py", "later/__init__.py", "later/module.py"]


def test_a_module_that_the_source_can_do_without_and_what_it_takes_instead_travel(folder: Path) -> None:
    write("first.py")
    write("second.py")

    test = """
    def go():
        try:
            import first
        except ImportError:
            import second
    """
    assert bundled(test) == ["first.py", "second.py"]


def test_a_module_that_importlib_is_asked_for_travels(folder: Path) -> None:
    write("plugin_one.py")
    write("plugin_two.py")

    test = """
    import importlib
    importlib.import_module("plugin_" + "one")
    def go():
        importlib.import_module("plugin_two")
        importlib.import_module(".relative", "package")
    """
    assert bundled(test) == ["plugin_one.py", "plugin_two.py"]


def test_a_package_without_an_init_travels(folder: Path) -> None:
    write("spread/part.py")
    write("late_spread/part.py")

    assert bundled("import spread.part\ndef go():\n    from late_spread import part\n") == [
        "late_spread/part.py",
        "spread/part.py",
    ]


def test_a_test_in_a_package_travels_with_the_packages_around_it(folder: Path) -> None:
    write("load_tests/__init__.py")
    write("load_tests/shop/__init__.py")
    write("load_tests/common.py")
    write("load_tests/shop/test.py", TALKA + "from ..common import *\n" + SHOP)
    write("outer.py")

    bundle = bundle_of("load_tests/shop/test.py")

    assert bundle.file == "load_tests/shop/test.py"
    assert names_in(bundle) == [
        "load_tests/__init__.py",
        "load_tests/common.py",
        "load_tests/shop/__init__.py",
        "load_tests/shop/test.py",
    ]


def test_a_neighbour_that_another_module_of_its_name_hides_stays(folder: Path) -> None:
    write("json.py", "raise RuntimeError('hidden by the library')")
    write("msgspec.py", "raise RuntimeError('hidden by what is loaded already')")

    assert bundled("import json, msgspec\n") == []


def test_a_test_among_installed_packages_takes_only_its_own_package_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("site-packages/shop_package/__init__.py")
    write("site-packages/shop_package/test.py", TALKA + "import shop_package, installed_one\n" + SHOP)
    write("site-packages/installed_one.py")
    path = "site-packages/shop_package/test.py"

    assert names_in(bundle_of(path, allow=["installed_one"])) == ["shop_package/__init__.py", "shop_package/test.py"]
    with pytest.raises(CannotTravel, match="imports installed_one, which workers may not have"):
        bundle_of(path)


def test_a_late_module_that_cannot_be_parsed_travels_as_it_is(folder: Path) -> None:
    write("late.py", "this is no Python")

    assert bundled("def go():\n    import late\n") == ["late.py"]


def test_a_relative_import_that_leads_nowhere_is_left_to_fail_when_it_runs(folder: Path) -> None:
    write("late.py", "from . import other\nfrom ..far import other")

    assert bundled("def go():\n    import late\n") == ["late.py"]


# Other people's modules


def test_a_module_that_workers_may_not_have_is_refused_with_file_and_line(folder: Path) -> None:
    write("tools/__init__.py", "\nimport hypothesis.strategies\nimport hypothesis")

    assert problems_of("import pytest\nimport tools\n") == [
        "shop.py:2: imports pytest, which workers may not have: put its source beside shop.py, "
        "or install it on every worker and say --workers-have pytest",
        "tools/__init__.py:2: imports hypothesis, which workers may not have: put its source beside shop.py, "
        "or install it on every worker and say --workers-have hypothesis",
    ]


def test_a_module_that_is_not_there_at_all_is_refused_too(folder: Path) -> None:
    (problem,) = problems_of("def go():\n    import nowhere_to_be_found.part\n")

    assert problem.startswith("shop.py:3: imports nowhere_to_be_found, which")


def test_what_workers_are_said_to_have_is_allowed_by_its_module_or_its_distribution(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"pytest": ["Py.Test_Thing"]})
    write("shop.py", TALKA + "import pytest\n" + SHOP)

    bundle_of("shop.py", allow=["pytest"])
    bundle_of("shop.py", allow=["py-test-thing"])
    with pytest.raises(CannotTravel):
        bundle_of("shop.py", allow=["pytests"])


def test_what_talka_needs_itself_is_allowed_and_what_its_extras_need_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = ["rich>=13.9", "pytest>=8; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: required)

    (problem,) = problems_of("import rich.table, pytest\n")
    assert "imports pytest" in problem


def test_talka_run_from_its_sources_has_no_requirements(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)

    (problem,) = problems_of("import talka.errors, msgspec\n")
    assert "imports msgspec" in problem


def test_an_import_that_the_source_can_do_without_is_no_problem(folder: Path) -> None:
    test = """
    import contextlib, typing
    from typing import TYPE_CHECKING
    try:
        import pytest
    except ImportError:
        import nowhere_one
    else:
        import json
    try:
        import nowhere_two
    except (KeyError, ModuleNotFoundError):
        pass
    try:
        import nowhere_three
    except:
        pass
    with contextlib.suppress(ImportError):
        import nowhere_four
    if TYPE_CHECKING:
        import hypothesis
    if typing.TYPE_CHECKING:
        import hypothesis
    else:
        import json
    if len("a") > 1:
        import nowhere_five
    """
    assert bundled(test) == []


@pytest.mark.parametrize(
    "test",
    [
        "try:\n    import pytest\nexcept KeyError:\n    pass\n",
        "try:\n    pass\nexcept ImportError:\n    pass\nelse:\n    import pytest\n",
        "try:\n    pass\nexcept ImportError:\n    pass\nimport pytest\n",
        "import contextlib\nwith contextlib.suppress(KeyError):\n    import pytest\n",
        "with open(__file__):\n    import pytest\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import pytest\n",
        "async def go():\n    import pytest\n",
        "from pytest import *\n",
        "__import__('pytest')\n",
    ],
    ids=["other-error", "else", "after", "other-suppress", "with", "not-checking", "coroutine", "star", "call"],
)
def test_an_import_that_is_needed_is_a_problem_wherever_it_stands(folder: Path, test: str) -> None:
    (problem,) = problems_of(test)

    assert "imports pytest" in problem


def test_a_module_of_the_users_that_is_not_below_the_root_under_its_name_is_refused(folder: Path) -> None:
    write("src/mine_elsewhere.py")
    sys.path.insert(0, str(folder / "src"))

    (problem,) = problems_of("import mine_elsewhere\n")
    assert "imports mine_elsewhere" in problem


def test_a_module_without_a_specification_is_not_the_users_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))

    (problem,) = problems_of("import made_by_hand\n")
    assert "imports made_by_hand" in problem


def test_a_module_that_cannot_even_be_looked_for_is_not_the_users_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "nowhere_to_look":
                raise ImportError("no")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])

    (problem,) = problems_of("def go():\n    import nowhere_to_look\n    __import__('')\n")
    assert "imports nowhere_to_look" in problem


# Data files


def with_parameters(parameters: str) -> str:
    return f"class Data(Workflow):\n    @step()\n    async def go(self, {parameters}) -> HTTPResponse: ...\n"


def test_files_that_parameters_and_feeds_name_travel_to_the_same_place(folder: Path) -> None:
    for name in ("users.csv", "body.json", "all/1.json", "all/2.json", "all/deep/3.json", "some/a.txt", "some/b.bin"):
        write(f"tests/{name}", "name\nada\n")
    write("tests/unused.csv")
    test = with_parameters("a: File = 'body.json', b: Directory = './all', c: FileGlob = 'some/*.txt', d: File = None")
    test += "    users = Feed.csv('users.csv')\n"
    write("tests/shop.py", TALKA + test)

    assert names_in(bundle_of("tests/shop.py")) == [
        "all/1.json",
        "all/2.json",
        "body.json",
        "shop.py",
        "some/a.txt",
        "users.csv",
    ]


def test_names_are_relative_to_the_test_file_and_may_leave_its_package(folder: Path) -> None:
    write("load_tests/__init__.py")
    write("load_tests/own.csv", "a\n1\n")
    write("data/users.csv", "a\n1\n")
    write("load_tests/empty/here")
    parameters = (
        "a: File = '../data/users.csv', b: File = 'own.csv', c: File = 'empty/../own.csv', d: FileGlob = '../d*/*'"
    )
    write("load_tests/shop.py", TALKA + with_parameters(parameters))

    # Folders that a name passes through must be there, too.
    assert names_in(bundle_of("load_tests/shop.py")) == [
        "data/users.csv",
        "load_tests",
        "load_tests/__init__.py",
        "load_tests/empty",
        "load_tests/own.csv",
        "load_tests/shop.py",
    ]


def test_a_link_travels_as_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "far.csv").write_text("far")
    Path("users.csv").symlink_to(tmp_path / "far.csv")
    write("shop.py", TALKA + with_parameters("a: File = 'users.csv'"))

    with ZipFile(io.BytesIO(bundle_of("shop.py").content)) as archive:
        assert archive.read("users.csv") == b"far"


def test_data_that_workers_would_miss_is_refused_with_its_parameter_all_at_once(folder: Path) -> None:
    write("../outside.csv")
    write("empty/folder/file")
    parameters = [
        f"a: File = '{folder}/shop.py'",
        "b: File = 'missing.json'",
        "c: File = '../outside.csv'",
        "d: Directory = 'nowhere'",
        "e: Directory = 'empty'",
        "f: FileGlob = '*.none'",
        "g: FileGlob = '/etc/*'",
        "h: File = 5",
        "i: File = '../home/shop.py'",
    ]
    test = with_parameters(", ".join(parameters)) + "    users = Feed.csv('missing.csv')\n"

    where = f"in {folder}, the test file's folder"
    away = f"is outside {folder}, and only what is below that travels: put it beside the test file and name it relative"
    assert problems_of(test) == [
        f"shop.py: Data.users: there is no file missing.csv {where}: put it there",
        f"shop.py: Data.go, a: {folder}/shop.py is an absolute path, which workers do not have: "
        "put it beside the test file and name it relative to that",
        f"shop.py: Data.go, b: there is no file missing.json {where}: put it there",
        f"shop.py: Data.go, c: ../outside.csv {away} to that",
        f"shop.py: Data.go, d: nowhere cannot be looked up {where}: [Errno 2] No such file or directory: "
        f"'{folder}/nowhere'",
        f"shop.py: Data.go, e: the folder empty has no files {where}: put it there",
        f"shop.py: Data.go, f: no file matches *.none {where}: put it there",
        "shop.py: Data.go, g: /etc/* is an absolute path, which workers do not have: "
        "put it beside the test file and name it relative to that",
        "shop.py: Data.go, h: 5 is not a path",
        f"shop.py: Data.go, i: ../home/shop.py {away} to that",
    ]


def test_only_data_of_the_given_workflows_travels(folder: Path) -> None:
    write("users.csv")
    write("shop.py", TALKA + with_parameters("a: File = 'users.csv'") + SHOP)
    specs = [spec for spec in load(FileSource("shop.py")) if spec.name == "Shop"]

    assert names_in(make_bundle("shop.py", specs, {}, environment={})) == ["shop.py"]


def test_a_file_of_certificates_travels_to_where_workers_look_for_it(folder: Path) -> None:
    write("certs/ca.pem", "authority")
    write("tests/shop.py", TALKA + SHOP + "    verify = 'certs/ca.pem'\n")

    assert names_in(bundle_of("tests/shop.py")) == ["certs/ca.pem", "shop.py"]


def test_certificates_that_workers_would_miss_are_refused(folder: Path) -> None:
    write("../ca.pem")
    write("tests/ca.pem", "one")
    write("ca.pem", "other")
    test = "".join(
        f"class {name}(Workflow):\n    verify = {verify!r}\n    @step()\n"
        f"    async def go(self, a: File = 'ca.pem') -> HTTPResponse: ...\n"
        for name, verify in (("A", "/etc/ca.pem"), ("B", "none.pem"), ("C", "../ca.pem"), ("D", "ca.pem"))
    )

    problems = problems_of(test, "tests/shop.py")

    assert [problem.partition(": put")[0].partition(": rename")[0] for problem in problems] == [
        "tests/shop.py: A.verify: /etc/ca.pem is not a file below the current folder",
        "tests/shop.py: B.verify: none.pem is not a file below the current folder",
        f"tests/shop.py: C.verify: ../ca.pem is outside {folder}/tests, and only what is below that travels",
        "tests/shop.py: D.verify: ca.pem is also the name of another file of this test",
    ]


# Limits


def test_a_file_and_all_files_have_limits(folder: Path) -> None:
    write("users.csv", "x" * 500)
    test = with_parameters("a: File = 'users.csv'")

    first, second = problems_of(test, limits=BundleLimits(file_bytes=499, total_bytes=600))

    assert first == "shop.py: users.csv has 500 bytes: a file that travels may have 499"
    assert second.startswith("shop.py: its files have ") and second.endswith(" bytes together: 600 may travel")


def test_a_bundle_has_a_limit(folder: Path) -> None:
    (problem,) = problems_of("", limits=BundleLimits(bundle_bytes=100))
    assert problem.endswith("bytes: it may have 100")


def test_more_files_than_allowed_are_refused(folder: Path) -> None:
    for number in range(3):
        write(f"all/{number}")

    (problem,) = problems_of(with_parameters("a: Directory = 'all'"), limits=BundleLimits(files=3))
    assert problem == "shop.py: 4 files would travel with it: at most 3 may; name fewer"


def test_a_name_that_workers_refuse_is_refused_here(folder: Path) -> None:
    write("all/c\\d", "")
    (folder / "all" / os.fsdecode(b"\xff")).touch()

    assert problems_of(with_parameters("a: Directory = 'all'")) == [
        "shop.py: 'all/c\\\\d' cannot travel: it has a backslash or a zero byte in its name; rename it",
        "shop.py: 'all/\\udcff' cannot travel: it has characters in its name that are no text; rename it",
    ]


def test_very_many_problems_are_cut_short(folder: Path) -> None:
    test = "".join(f"def go{number}():\n    import nowhere_{number}\n" for number in range(5))
    problems = problems_of(test, limits=BundleLimits(problems=2))
    assert len(problems) == 3
    assert problems[2] == "shop.py: and 3 more"


def test_a_file_that_vanishes_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("shop.py", TALKA + SHOP)
    specs = load(FileSource("shop.py"))
    Path("shop.py").unlink()

    with pytest.raises(CannotTravel, match="shop.py: shop.py cannot be read: No such file"):
        make_bundle("shop.py", specs, {}, environment={})
    monkeypatch.setattr(bundle_module.Packer, "check_limits", lambda packer, limits: None)
    with pytest.raises(CannotTravel, match="shop.py: shop.py cannot be read: No such file"):
        make_bundle("shop.py", specs, {}, environment={})


# Variables


@pytest.mark.parametrize(
    "test",
    [
        "import os\nx = os.environ['TARGET']\n",
        "import os\nx = os.environ.get('TARGET', 'none')\n",
        "import os\nx = os.getenv('TARGET')\n",
        "import os as system\nx = system.getenv('TARGET')\n",
        "import os.path\nx = os.getenv('TARGET')\n",
        "from os import environ\nx = environ['TARGET']\n",
        "from os import environ as env, getenv\nx = env.get('TARGET')\n",
        "from os import getenv as read\nx = read('TARGET')\n",
        "import os\nx = 'TARGET' in os.environ\n",
        "import os\nx = 'TARGET' not in os.environ\n",
        "import os\nx = os.environ.setdefault('TARGET', 'x')\n",
        "import os\ndef go(): return os.environ.pop('TARGET')\n",
    ],
    ids="item get getenv alias path from from-alias getenv-alias in not-in setdefault pop".split(),
)
def test_a_variable_that_is_set_here_and_read_and_not_sent_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, test: str
) -> None:
    monkeypatch.setenv("TARGET", "http://shop")

    assert problems_of(test, environment={"TARGET": "http://shop"}) == [
        "shop.py:3: reads the variable TARGET, which is set here and would not be on workers: "
        "send it with --env TARGET, or unset it"
    ]
    bundle_of("shop.py", {"TARGET": "x"}, environment={"TARGET": "http://shop"})
    bundle_of("shop.py", environment={"OTHER": "http://shop"})


def test_what_is_no_read_of_a_known_variable_is_no_problem(folder: Path) -> None:
    test = """
    import os
    mine, NAME = {"TARGET": 1}, "TARGET"
    os.environ["TARGET"] = "x"
    x = mine["TARGET"], mine.get("TARGET"), os.environ.get(NAME), os.environ[NAME], "TARGET" in mine, os.environ.copy()
    y = os.path.join("TARGET", "b"), (lambda: mine)().get("TARGET"), "TARGET" < "b", (os).path.sep
    del os.environ["TARGET"]
    """
    write("shop.py", TALKA + textwrap.dedent(test) + SHOP)

    bundle_of("shop.py", environment={"TARGET": "x"})


def test_a_neighbours_variable_counts_and_this_process_is_asked_when_nobody_says_what_is_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("neighbour.py", "import os\ndef go():\n    return os.getenv('TARGET_OF_NEIGHBOUR')")
    write("shop.py", TALKA + "import neighbour\n" + SHOP)
    specs = load(FileSource("shop.py"))
    make_bundle("shop.py", specs, {})

    monkeypatch.setenv("TARGET_OF_NEIGHBOUR", "x")
    with pytest.raises(CannotTravel, match="neighbour.py:3: reads the variable TARGET_OF_NEIGHBOUR, which is set here"):
        make_bundle("shop.py", specs, {})


# On a worker


async def run(source: BundleSource) -> list[FromCore]:
    """Everything a core process says that runs the workflow once."""
    said: list[FromCore] = []
    over = asyncio.Event()

    def on_message(core: int, message: FromCore) -> None:
        said.append(message)
        if isinstance(message, Armed):
            now = monotonic_ns()
            supervisor.send(core, Go(now, now, now))
        elif isinstance(message, Totals):
            supervisor.send(core, Ack(message.sequence))

    supervisor = Supervisor(on_message, lambda core, cause: over.set())
    shard = IterationsPerVU(1, 1).plan().split(1)[0]
    settings = Settings(grace_ns=0, report_every_ns=3600 * SECOND)  # nothing is told before the end
    try:
        await supervisor.start(1, Arm("job", source, "Shop", shard, 0, {}, settings))
        await asyncio.wait_for(over.wait(), WAIT_S)
    finally:
        await supervisor.close()
    return said


WHOLE_TEST = """
import os
from shop_tools import answer
from talka import CustomResponse, Feed, File, FileGlob, Workflow, step
import neighbour_of_shop

TARGET = os.environ["TARGET"]

class Shop(Workflow):
    users = Feed.csv("data/users.csv", order="once")

    @step()
    async def go(self, body: File = "../body.json", all: FileGlob = "data/*.csv") -> CustomResponse[int]:
        import late_neighbour
        assert self.users.next() == {"name": "ada"}
        assert (TARGET, answer.ANSWER, neighbour_of_shop.NAME) == ("http://shop", 42, "near")
        assert body.content == b"{}" and late_neighbour.NAME == "late" and len(all) == 1
        return CustomResponse(1)
"""


async def test_a_core_process_runs_a_bundle_from_another_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a test with neighbours, a package, a feed, files and a variable, in a package of its own
    write("load_tests/__init__.py")
    write("load_tests/shop.py", WHOLE_TEST)
    write("load_tests/data/users.csv", "name\nada\n")
    write("body.json", "{}")
    write("neighbour_of_shop.py", "NAME = 'near'")
    write("late_neighbour.py", "NAME = 'late'")
    write("shop_tools/__init__.py")
    write("shop_tools/answer.py", "ANSWER = 42")
    monkeypatch.setenv("TARGET", "http://shop")
    bundle = bundle_of("load_tests/shop.py", {"TARGET": "http://shop"}, environment=os.environ)
    monkeypatch.delenv("TARGET")

    # when it was stored elsewhere, and the files it was made of are gone
    monkeypatch.chdir(tmp_path)
    os.rename(folder, tmp_path / "gone")
    blobs = Blobs(tmp_path / "blobs")
    blobs.put(bundle.digest, bundle.content)
    cores = tmp_path / "cores"
    source = BundleSource(str(blobs.path(bundle.digest)), bundle.digest, bundle.file, str(cores / "1"), bundle.env)
    said = await run(source)

    # then it runs
    assert not [message.text for message in said if isinstance(message, Refused)]
    (step,) = [message.tally for message in said if isinstance(message, StepTotals)]
    assert (step.ok, step.count) == (1, 1), step
    assert isinstance(said[-1], Totals) and said[-1].final


async def test_a_core_process_names_files_as_they_are_in_the_bundle(folder: Path, tmp_path: Path) -> None:
    write("data/users.csv", "name,age\nada\n")
    write("shop.py", TALKA + SHOP + "    users = Feed.csv('data/users.csv')\n")
    bundle = bundle_of("shop.py")
    blobs = Blobs(tmp_path / "blobs")
    blobs.put(bundle.digest, bundle.content)

    source = BundleSource(str(blobs.path(bundle.digest)), bundle.digest, bundle.file, str(tmp_path / "core"), {})
    (refused,) = [message for message in await run(source) if isinstance(message, Refused)]

    assert refused == Refused(
        "file",
        "shop.py:3: Shop.users: data/users.csv:2: this row has not as many values as the first line has names",
    )


async def test_a_core_process_that_cannot_unpack_its_bundle_says_so(tmp_path: Path) -> None:
    (refused,) = [
        message
        for message in await run(BundleSource(str(tmp_path / "none"), "0" * 64, "shop.py", str(tmp_path / "core")))
        if isinstance(message, Refused)
    ]

    assert refused.reason == "unreachable"
    assert refused.text == "the bundle cannot be unpacked on this worker: No such file or directory"


# Handlers


HANDLER = "from talka import handler\n@handler('{name}')\ndef run(task): ...\n"


def packed_names(*paths: str, **options: object) -> list[str]:
    from talka.engine.handlers.handler_core import load_handlers

    load_handlers(tuple(path for path in paths if path.endswith(".py")))
    content = pack_handlers(paths, **options).content  # type: ignore[arg-type]
    with ZipFile(io.BytesIO(content)) as archive:
        return list(checked(archive))


def test_files_with_handlers_travel_with_their_neighbours_and_with_data(folder: Path) -> None:
    write("handlers.py", "import helper\n" + HANDLER.format(name="a"))
    write("more.py", "import other\n" + HANDLER.format(name="b"))
    write("helper.py")
    write("other.py")
    write("data/words.txt", "words")
    assert packed_names("handlers.py", "more.py", "data/words.txt") == [
        "data/words.txt",
        "handlers.py",
        "helper.py",
        "more.py",
        "other.py",
    ]
    assert pack_handlers(["handlers.py", "more.py"]).files == ("handlers.py", "more.py")


def test_handlers_in_a_package_travel_with_it(folder: Path) -> None:
    write("jobs/__init__.py")
    write("jobs/handlers.py", "from . import helper\n" + HANDLER.format(name="a"))
    write("jobs/helper.py")
    assert packed_names("jobs/handlers.py") == ["jobs/__init__.py", "jobs/handlers.py", "jobs/helper.py"]
    assert pack_handlers(["jobs/handlers.py"]).files == ("jobs/handlers.py",)


def test_the_same_file_named_twice_travels_once(folder: Path) -> None:
    write("handlers.py", HANDLER.format(name="a"))
    assert packed_names("handlers.py", "./handlers.py") == ["handlers.py"]
    assert pack_handlers(["handlers.py", "./handlers.py"]).files == ("handlers.py",)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (
            ("handlers.py", "away/more.py"),
            "away/more.py: is imported from {folder}/away, and handlers.py from {folder}",
        ),
        (("handlers.py", "gone.txt"), "gone.txt: there is no such file"),
        (("handlers.py", "away"), "away: is a folder: name the files in it"),
        (("handlers.py", "../outside.txt"), "../outside.txt: is outside {folder}, and only what is below that travels"),
        (("needy.py",), "needy.py:1: imports pytest, which workers may not have: put its source beside needy.py"),
    ],
)
def test_what_handlers_would_miss_is_said(folder: Path, paths: tuple[str, ...], problem: str) -> None:
    write("handlers.py", HANDLER.format(name="a"))
    write("needy.py", "import pytest\n" + HANDLER.format(name="a"))
    write("away/more.py", HANDLER.format(name="b"))
    write("../outside.txt")
    with pytest.raises(CannotTravel) as refusal:
        packed_names(*paths)
    (found,) = refusal.value.problems
    assert str(found).startswith(problem.format(folder=folder.resolve()))


def test_what_workers_have_need_not_travel_with_handlers(folder: Path) -> None:
    write("needy.py", "import pytest\n" + HANDLER.format(name="a"))
    assert packed_names("needy.py", allow_modules=("pytest",)) == ["needy.py"]


def test_a_variable_that_handlers_read_is_their_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_URL", "here")
    write("handlers.py", "import os\nos.environ['DB_URL']\n" + HANDLER.format(name="a"))
    assert packed_names("handlers.py") == ["handlers.py"]
