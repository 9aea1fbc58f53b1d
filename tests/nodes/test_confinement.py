"""What cores of a worker are kept from. What needs another user needs root; the rest is asked of everybody."""

import os
import pwd
import stat
import subprocess
from pathlib import Path

import pytest

from talka.engine import core_user
from talka.engine.core_user import CoreFolders, CoreUser, obstacle
from talka.errors import Invalid
from talka.nodes import confinement
from talka.nodes.confinement import Confinement

ENV = {"PATH": os.environ["PATH"], "TMPDIR": "/closed", "USER": "root"}
NOBODY = pwd.getpwnam("nobody")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_user_that_is_not_there_is_told_with_a_sentence() -> None:
    with pytest.raises(
        Invalid, match="there is no user nobody-of-this-name on this machine: make one, or name another"
    ):
        Confinement.of("nobody-of-this-name", ENV, (), 1)


def test_own_user_is_no_other_by_name_and_by_number() -> None:
    for wanted in (str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name):
        made = Confinement.of(wanted, ENV, (), 1)
        assert (made.confines.uid, made.alarm, made.folder_for("1")) == (None, "", None)
        assert made.confines.env == ENV
        assert made.within_reach(Path("/x"), None) == Path("/x")
        made.remove("1")
        made.close()


def test_worker_that_is_not_roots_runs_cores_as_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)

    made = Confinement.of("", ENV, (), 1)

    assert (made.confines.uid, made.alarm) == (None, "")


def test_user_who_cannot_run_cores_is_refused_where_it_was_named_and_told_where_it_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(confinement, "obstacle", lambda user, files, env: "the user nobody cannot read /root/etl.py")

    with pytest.raises(Invalid, match="cores cannot run as nobody: the user nobody cannot read /root/etl.py; fix that"):
        Confinement.of("nobody", ENV, ("/root/etl.py",), 1)
    made = Confinement.of("", ENV, ("/root/etl.py",), 1)

    assert made.confines.uid is None
    assert made.alarm == (
        "cores run as root, as this worker does, and can read the cluster's secret: the user nobody cannot read "
        "/root/etl.py; name a user who can with --core-user, or say --core-user root if that is as it should be"
    )


def test_machine_without_the_usual_user_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    made = Confinement.of("", ENV, (), 1, usual="nobody-of-this-name")

    assert "there is no user nobody-of-this-name on this machine" in made.alarm


def test_obstacles_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    user = CoreUser("ada", 1234, 1234)
    answers: list[object] = [
        PermissionError(1, "Operation not permitted"),
        PermissionError(13, "Permission denied", "/x/python"),
        OSError(8, "Exec format error"),
        subprocess.CompletedProcess([], 1, "/root/etl.py", ""),
        subprocess.CompletedProcess([], 1, "", "Traceback\nModuleNotFoundError: No module named 'talka'\n"),
        subprocess.CompletedProcess([], 3, "", ""),
        subprocess.CompletedProcess([], 0, "", ""),
    ]

    def run(*_: object, **__: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(core_user.sys, "executable", "/x/python")

    assert [obstacle(user, (), {}) for _ in range(7)] == [
        "this process may not start any as the user ada",
        "the user ada cannot run /x/python",
        "the user ada cannot run /x/python: [Errno 8] Exec format error",
        "the user ada cannot read /root/etl.py",
        "the user ada cannot load Talka: ModuleNotFoundError: No module named 'talka'",
        "the user ada cannot load Talka: exit status 3",
        "",
    ]


def test_trial_names_the_first_file_that_cannot_be_read(tmp_path: Path) -> None:
    there = tmp_path / "there.py"
    there.touch()
    own = CoreUser("own", os.geteuid(), os.getegid())
    files = [str(there), str(tmp_path / "away.py")]
    words = [core_user.sys.executable, "-P", "-m", "talka.engine.load.core_trial", *files]

    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (1, str(tmp_path / "away.py"))
    if os.geteuid() == 0:
        assert obstacle(own, (str(there),), dict(os.environ)) == ""


@AS_ROOT
def test_each_core_has_a_folder_that_is_its_users_and_nobody_elses(tmp_path: Path) -> None:
    made = Confinement(ENV, CoreUser("nobody", NOBODY.pw_uid, NOBODY.pw_gid), 7, places=[tmp_path])
    bundle = tmp_path / "bundle"
    bundle.write_bytes(b"content")
    bundle.chmod(0o600)

    folder = Path(made.folder_for("1") or "")
    copied = made.within_reach(bundle, str(folder))

    facts = folder.stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (NOBODY.pw_uid, 0o700)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o711 and folder.parent.stat().st_uid == 0
    assert copied.read_bytes() == b"content" and copied.stat().st_uid == NOBODY.pw_uid
    assert made.confines.env == {"PATH": ENV["PATH"], "USER": "nobody", "LOGNAME": "nobody"}
    made.remove("1")
    assert not folder.exists()
    made.close()
    assert not folder.parent.exists()


@AS_ROOT
def test_nothing_is_written_through_what_a_core_put_into_its_folder(tmp_path: Path) -> None:
    folders = CoreFolders(CoreUser("nobody", NOBODY.pw_uid, NOBODY.pw_gid), 7, [tmp_path])
    bundle = tmp_path / "bundle"
    bundle.write_bytes(b"content")
    folder = folders.make("1")
    (folder / "bundle").symlink_to(tmp_path / "victim")

    folders.copy(bundle, folder)

    assert not (tmp_path / "victim").exists()


def test_folders_of_an_earlier_life_are_removed_and_those_of_others_are_not_touched(tmp_path: Path) -> None:
    own = CoreUser("own", os.geteuid(), os.getegid())
    (CoreFolders(own, 7, [tmp_path]).make("1") / "left").touch()
    first = CoreFolders(own, 7, [tmp_path])
    assert list(first.root.iterdir()) == []
    first.close()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    first.root.symlink_to(tmp_path / "elsewhere")

    second = CoreFolders(own, 7, [tmp_path])

    assert second.root != first.root and second.root.parent == tmp_path
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_where_the_usual_places_are_closed_there_is_the_systems_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    folders = CoreFolders(CoreUser("own", os.geteuid(), os.getegid()), 7, [tmp_path / "none"])

    assert folders.root.parent == tmp_path
