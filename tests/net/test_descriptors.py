"""The limit of open files: raised where the system grants it, named where it is too low."""

import resource
from collections.abc import Iterator

import pytest

from talka.net import descriptors
from talka.net.descriptors import TooFewDescriptors, ask_for, raised_to


class System:
    """A process whose limits are these."""

    def __init__(self, soft: int, hard: int, *, is_strict: bool = False) -> None:
        self.soft = soft
        self.hard = hard
        self.is_strict = is_strict
        self.asked: list[tuple[int, int]] = []

    def getrlimit(self, what: int) -> tuple[int, int]:
        assert what == resource.RLIMIT_NOFILE
        return self.soft, self.hard

    def setrlimit(self, what: int, limits: tuple[int, int]) -> None:
        assert what == resource.RLIMIT_NOFILE
        self.asked.append(limits)
        if self.is_strict:
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = limits


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    def system(soft: int, hard: int, *, is_strict: bool = False) -> System:
        made = System(soft, hard, is_strict=is_strict)
        monkeypatch.setattr(descriptors.resource, "getrlimit", made.getrlimit)
        monkeypatch.setattr(descriptors.resource, "setrlimit", made.setrlimit)
        return made

    yield system


NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "files"),
    [(1024, 4096, 2000), (1024, 1500, 1500), (1024, NONE, 2000), (1024, 1024, 1024), (3000, 4096, 3000)],
)
def test_the_soft_limit_is_raised_to_what_is_wanted_as_far_as_the_hard_one_goes(on, soft, hard, files) -> None:
    system = on(soft, hard)

    assert raised_to(2000) == files
    assert (system.soft, system.hard) == (max(soft, files), hard)


def test_no_limit_is_more_than_anybody_wants_and_is_left_alone(on) -> None:
    system = on(NONE, NONE)

    assert not ask_for("the API", least=10, wanted=5000).is_short
    assert system.asked == []


def test_a_limit_that_the_system_names_and_does_not_grant_stays(on) -> None:
    on(256, NONE, is_strict=True)

    granted = ask_for("the API", least=100, wanted=2000)

    assert granted.files == 256 and granted.is_short


def test_too_low_a_limit_is_named_as_the_cause(on) -> None:
    on(20, 20)

    with pytest.raises(
        TooFewDescriptors, match=r"may have 20 files and sockets open at once, and a manager needs at le"
    ):
        ask_for("a manager", least=64, wanted=2000)
