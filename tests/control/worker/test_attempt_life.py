"""Attempts of load jobs: a register that was put back draws their numbers again, and what others did under them does
not count."""

from hashlib import sha256

import pytest

from talka.control.jobs.effects import BlobWanted, KeepWanted
from talka.control.jobs.job_checkpoint import lives_of
from talka.control.jobs.take_over import TakeOver
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.entries import decode_checkpoint
from talka.wire.jobs import (
    Finished,
    Halt,
    Report,
    ResultAccepted,
    TaskDeclined,
    TaskFacts,
    WorkerSnapshot,
    decode_result,
)
from talka.wire.shards import Totals, encode
from tests.control.jobs.test_led_job import LIFE, Led, digest_of, told
from tests.control.worker.test_composite import FENCE, Rig, assign

OTHER = 0xB007
"""Who drew the same number in a register that was put back since."""


# The manager that leads the job.


def test_who_drew_the_number_of_an_attempt_is_in_the_checkpoint() -> None:
    led = Led().started()

    assert lives_of(decode_checkpoint(led.checkpoints()[-1].content)) == {1: LIFE, 2: LIFE}


def test_a_result_of_another_attempt_with_the_same_number_is_not_fetched_and_not_kept_by_its_worker() -> None:
    led = Led().started()
    content = led.result(1, life=OTHER)

    effects = led.say("w1", Finished("b4k7", 1, digest_of(content), len(content), OTHER))

    assert [effect for effect in effects if isinstance(effect, BlobWanted)] == []
    assert [(to, accepted.attempt) for to, accepted in told(effects, ResultAccepted)] == [("w1", 1)]
    led.finish("w1", 1, life=LIFE)
    assert led.counted == 9


def test_counts_of_another_attempt_with_the_same_number_are_not_counted_and_it_is_ended() -> None:
    led = Led().started()
    totals = encode(Totals(1, Tally(started=70, iterations=70), [], 1, 0))

    effects = led.say("w1", Report("b4k7", 1, totals, life=OTHER))
    assert led.counted == 0
    assert [(to, halt.attempt, halt.how) for to, halt in told(effects, Halt)] == [("w1", 1, "kill")]

    led.say("w1", Report("b4k7", 1, totals, life=LIFE))
    assert led.counted == 70


def test_a_blob_that_holds_the_result_of_another_attempt_is_not_taken() -> None:
    led = Led().started()
    digest, content, _ = led.offer("w1", 1, life=OTHER)

    assert led.led.on_blob(led.now, digest, content) == []
    digest, content, _ = led.offer("w1", 1, life=LIFE)
    assert [type(effect) for effect in led.led.on_blob(led.now, digest, content)] == [KeepWanted]


@pytest.mark.parametrize(("life", "is_there"), [(LIFE, True), (0, True), (OTHER, False)])
def test_a_manager_that_takes_over_finds_only_what_is_in_the_checkpoint_under_its_whole_name(
    life: int, is_there: bool
) -> None:
    finds = TakeOver("b4k7", (1, 2, 1))
    finds.on_snapshot(
        0, "w1", WorkerSnapshot("b4k7", (1, 2, 1), 1, (TaskFacts(1, "running", SECOND, SECOND, life=life),))
    )

    finds.forget_others({1: LIFE})

    assert (finds.facts("w1", 1) is not None) == is_there
    assert bool(finds.origins(0, 0)[1]) == is_there


# The worker.


def test_all_that_is_told_of_an_attempt_tells_who_drew_its_number() -> None:
    rig = Rig()
    cores = rig.armed(1, life=OTHER)
    rig.hear(rig.start(1))
    for core in cores:
        rig.count(core)
    rig.later(SECOND)
    for core in cores:
        rig.finish(core)
        rig.exit(core)

    assert {report.life for report in rig.all(Report)} == {OTHER}
    (finished, *_) = rig.all(Finished)
    assert finished.life == OTHER
    assert decode_result(rig.disk[f"result/job/1-{OTHER}"]).life == OTHER
    assert [held.facts(rig.now).life for held in rig.worker.shards] == [OTHER]


def test_a_result_on_disk_tells_who_drew_its_number_after_a_restart() -> None:
    stored = b"a result"
    rig = Rig({f"result/job/1-{OTHER}": stored, "result/job/2": stored}, lease=False)

    digest = sha256(stored).hexdigest()
    assert {finished for finished in rig.all(Finished)} == {
        Finished("job", 1, digest, 8, OTHER),
        Finished("job", 2, digest, 8, 0),
    }
    rig.renew()
    rig.hear(ResultAccepted("job", FENCE, 1))
    assert list(rig.disk) == ["result/job/2", "fence", "fence/job"]


def test_an_attempt_with_the_number_of_another_is_declined_and_the_other_ended() -> None:
    rig = Rig()
    rig.running(1, life=OTHER)

    rig.hear(assign(1, life=LIFE))

    (killed,) = rig.shards("killed")
    assert killed.reason == "a restored register gave its number to another attempt"
    assert [declined.reason for declined in rig.all(TaskDeclined)] == ["attempt 1 of another life was on worker w1"]
    assert rig.states == []


def test_a_result_under_the_number_of_another_attempt_is_forgotten() -> None:
    rig = Rig()
    rig.ended(1, life=OTHER)
    rig.forget()

    rig.hear(assign(1, life=LIFE))
    rig.later(3 * SECOND)

    assert rig.all(Finished) == []
    assert [key for key in rig.disk if key.startswith("result/")] == []
