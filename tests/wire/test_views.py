"""What people are shown travels as JSON and as MessagePack."""

import msgspec
import pytest

from talka.stats.tally import StepTally, Tally
from talka.stats.windows import StepWindow, Window
from talka.wire.views import JobFacts, JobUpdate, LostPart, WorkflowUpdate, instant_text
from talka.work.lifecycle import JobState, TaskState


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_an_update_with_everything_in_it_survives(codec) -> None:
    step = StepTally(ok=1)
    step.response_time.record(12_345)
    step.saw("200")
    window = Window(7, started=1)
    window.response_time.record(9)
    update = JobUpdate(
        JobFacts("job1", "shop.py", JobState.RUNNING, position=1, workers=["w1"], exit_code=4),
        3,
        10**18,
        True,
        [
            WorkflowUpdate(
                "Shop",
                TaskState.RUNNING,
                1,
                True,
                False,
                2,
                1,
                Tally(steps={"front": step}),
                "no",
                ["note"],
                [window],
                [window],
            )
        ],
        [window],
        [LostPart("Shop", 0, "killed", 1, 2, 3, 4, True)],
        "python",
        True,
        recent=[Window(8, steps={"front": StepWindow(1, 1, {"status": 1})})],
    )

    assert codec.decode(codec.encode(update), type=JobUpdate) == update


def test_instants_are_told_in_utc_to_the_millisecond() -> None:
    assert instant_text(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"
    assert instant_text(0) == ""
