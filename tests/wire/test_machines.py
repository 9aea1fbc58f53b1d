"""The machine of a worker: tags that can be, and what people are shown of it."""

import pytest

from talka.errors import Invalid
from talka.wire.machines import GpuFacts, GpuView, MachineView, WorkerMachine, tags_of


def test_a_tag_is_a_key_or_a_key_with_a_value() -> None:
    assert tags_of(["rack=7", "spare", "note=a = b", "empty="]) == (
        ("rack", "7"),
        ("spare", ""),
        ("note", "a = b"),
        ("empty", ""),
    )
    assert tags_of(["rack=7", "rack=7"]) == (("rack", "7"),)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["a b=1"], "^--tag 'a b' is not an id"),
        (["=1"], "^--tag '' is not an id"),
        (["rack=7", "rack=8"], "^--tag rack is given twice, as '7' and '8': give it once$"),
        (["rack=" + "x" * 257], "^--tag rack has a value that is no line of at most 256 characters$"),
        (["rack=a\nb"], "^--tag rack has a value that is no line"),
        ([f"t{n}" for n in range(33)], "^--tag is given 33 times: a worker has at most 32 tags$"),
    ],
)
def test_a_tag_that_cannot_be_is_a_sentence(given: list[str], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        tags_of(given, "--tag")


def test_people_are_shown_what_the_worker_told() -> None:
    machine = WorkerMachine("h", 7, cpu_flags=("avx",), gpus=(GpuFacts("T4", 1),), tags=(("rack", "7"),))

    assert MachineView.of(machine) == MachineView(
        "h", 7, cpu_flags=["avx"], gpus=[GpuView("T4", 1)], tags={"rack": "7"}
    )
