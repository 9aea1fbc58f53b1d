"""Completion scripts, and what they are answered."""

import shutil
import subprocess

import pytest

from talka.cli.main import COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_asks_the_command_by_its_variable(talka, shell: str) -> None:
    done = talka("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_TALKA_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_takes_the_script(talka) -> None:
    script = talka("completion", "bash").stdout
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p talka"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == "" and "_talka_completion" in done.stdout


def completions(talka, words: str) -> list[str]:
    done = talka(_TALKA_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout.splitlines()


def test_commands_are_completed(talka) -> None:
    assert completions(talka, "talka ") == [f"plain,{name}" for name in COMMANDS]
    assert completions(talka, "talka demo") == ["plain,demo", "plain,demo-server"]


def test_options_are_completed(talka) -> None:
    assert completions(talka, "talka run --du") == ["plain,--duration"]


def test_target_is_completed_by_the_shell_as_a_file(talka) -> None:
    assert completions(talka, "talka run sh") == ["file,sh"]
