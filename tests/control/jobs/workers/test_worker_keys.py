"""The keys of workers as a manager hears them, and what is sealed to them."""

import pytest

from talka.control.jobs.workers.worker_keys import WORKERS_LIMIT, CannotSeal, WorkerKeys
from talka.control.worker.variables import WorkerVariables
from talka.wire.jobs import Assign
from talka.wire.orders import BundleFacts
from talka.wire.security.envelopes import BadEnvelope, Opener, Purpose, SealingKey, vouched_for
from talka.wire.shards import Settings
from talka.work.shapes import ConstantVUs
from tests.sim.variants import without

VARIABLES = {"SHOP_TOKEN": "7f3a"}
OPENER = Opener(b"w" * 32)
TOLD = SealingKey(OPENER.public, b"voucher").encode()
PURPOSE = Purpose("g", "job", 3, "w1", 9)


def keys(**more: object) -> WorkerKeys:
    return WorkerKeys("g", lambda: b"d" * 32, **more)  # type: ignore[arg-type]


def test_variables_are_sealed_to_the_life_that_was_heard() -> None:
    known = keys()
    known.heard("w1", 9, TOLD)

    sealed = known.seal(VARIABLES, "job", 3, "w1", 9)

    assert sealed is not None
    assert OPENER.open(sealed, PURPOSE) == VARIABLES


def test_nothing_is_sealed_to_a_life_that_was_not_heard() -> None:
    known = keys()
    known.heard("w1", 9, TOLD)

    assert known.seal(VARIABLES, "job", 3, "w2", 9) is None
    assert known.seal(VARIABLES, "job", 3, "w1", 10) is None


def test_what_each_worker_told_of_its_key_is_known() -> None:
    known = keys()
    known.heard("w1", 9, TOLD)
    known.heard("w2", 4, b"key")

    assert known.told() == {"w1": TOLD, "w2": b"key"}


def test_every_envelope_is_sealed_with_a_key_of_its_own() -> None:
    drawn = [b"a" * 32, b"b" * 32]
    known = WorkerKeys("g", lambda: drawn.pop(0))
    known.heard("w1", 9, TOLD)

    assert known.seal(VARIABLES, "job", 3, "w1", 9) != known.seal(VARIABLES, "job", 3, "w1", 9)
    assert drawn == []


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (b"", "variables cannot be sealed to w1: it is of an earlier version, which opens none"),
        (b"key", "variables cannot be sealed to w1: the key that it tells cannot be read"),
        (SealingKey(bytes(32)).encode(), "variables cannot be sealed to w1: the key that worker w1 tells cannot"),
    ],
)
def test_nothing_is_sealed_to_what_is_no_key(told: bytes, text: str) -> None:
    known = keys()
    known.heard("w1", 9, told)

    with pytest.raises(CannotSeal, match=text):
        known.seal(VARIABLES, "job", 3, "w1", 9)


def test_with_certificates_nothing_is_sealed_to_a_key_that_the_workers_own_does_not_vouch_for() -> None:
    asked: list[tuple[str, bytes, bytes]] = []

    def doubt(worker: str, statement: bytes, voucher: bytes) -> str:
        asked.append((worker, statement, voucher))
        return "" if worker == "w1" else "the certificate is of w1, and not of w2"

    known = keys(doubt=doubt)
    for _ in range(3):
        known.heard("w1", 9, TOLD)
        known.heard("w2", 9, TOLD)

    assert known.seal(VARIABLES, "job", 3, "w1", 9)
    with pytest.raises(CannotSeal, match="is not proven to be its own: the certificate is of w1, and not of w2"):
        known.seal(VARIABLES, "job", 3, "w2", 9)
    said = vouched_for(OPENER.public, 9)
    assert asked == [("w1", said, b"voucher"), ("w2", said, b"voucher")], "what a life tells is looked at once"


def test_a_new_life_has_a_new_key() -> None:
    known, later = keys(), Opener(b"x" * 32)
    known.heard("w1", 9, TOLD)
    known.heard("w1", 10, SealingKey(later.public).encode())

    sealed = known.seal(VARIABLES, "job", 3, "w1", 10)

    assert sealed is not None
    assert later.open(sealed, Purpose("g", "job", 3, "w1", 10)) == VARIABLES


def test_so_many_workers_are_known_and_no_more() -> None:
    known = keys()
    for number in range(WORKERS_LIMIT + 1):
        known.heard(f"w{number}", 9, TOLD)

    assert known.seal(VARIABLES, "job", 3, "w0", 9) is None
    assert known.seal(VARIABLES, "job", 3, "w1", 9) is not None


# The other end.


def assign(variables: bytes = b"", **env: str) -> Assign:
    return Assign(
        job="job",
        fence=(0, 1, 1),
        attempt=3,
        workflow="Shop",
        plan=ConstantVUs(8, "600s").plan(),
        first=0,
        count=1,
        of=1,
        iterations_done=(0,),
        values={},
        settings=Settings(0),
        bundle=BundleFacts("0" * 64, 1, b"", "shop.py", env),
        variables=variables,
    )


def test_a_worker_opens_what_was_sealed_to_it() -> None:
    known = keys()
    known.heard("w1", 9, TOLD)
    opened = WorkerVariables(OPENER, "g", "w1", 9).opened(assign(known.seal(VARIABLES, "job", 3, "w1", 9) or b""))

    assert (opened.bundle.env, opened.variables) == (VARIABLES, b"")


def test_a_task_without_variables_is_taken_as_it_is() -> None:
    assert WorkerVariables(OPENER, "g", "w1", 9).opened(assign()) == assign()


def test_variables_that_are_open_or_for_another_are_not_taken() -> None:
    known = keys()
    known.heard("w1", 9, TOLD)
    mine = WorkerVariables(OPENER, "g", "w1", 9)

    with pytest.raises(BadEnvelope, match="not sealed"):
        mine.opened(assign(A="b"))
    with pytest.raises(BadEnvelope, match="another worker, job or attempt"):
        mine.opened(assign(known.seal(VARIABLES, "job", 4, "w1", 9) or b""))


@without("sealed_variables")
def test_without_the_safeguard_open_variables_are_taken() -> None:
    mine = WorkerVariables(OPENER, "g", "w1", 9)

    assert mine.opened(assign(A="b")).bundle.env == {"A": "b"}
