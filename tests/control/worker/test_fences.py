"""Who may command the tasks of a job on a worker."""

import pytest

from talka.cluster.fencing import Apply, BrokenFence, PersistFirst, Refuse
from talka.cluster.safeguards import Safeguards
from talka.control.worker.fences import IDLE_LIMIT_NS, JOBS_KEPT, JOBS_LIMIT, SWEEP_EVERY_NS, JobFences
from talka.units import NEVER

NOW = 1_000_000_000
EARLIER, LATER = (0, 3, 1), (0, 3, 2)


def written(fences: JobFences, job: str, fence: tuple[int, int, int], sender: str = "m1") -> bytes:
    """A first command of a fence, carried out."""
    admission = fences.admit(NOW, job, fence)
    assert isinstance(admission, PersistFirst) and admission.content is not None
    fences.persisted(job, fence)
    fences.obeyed(job, fence, sender)
    return admission.content


def test_a_fence_is_on_disk_before_the_first_command_under_it() -> None:
    fences = JobFences(NOW, {})

    assert isinstance(fences.admit(NOW, "job", EARLIER), PersistFirst)
    assert isinstance(fences.admit(NOW, "job", EARLIER), PersistFirst), "not yet on disk"
    fences.persisted("job", EARLIER)

    assert isinstance(fences.admit(NOW, "job", EARLIER), Apply)


def test_a_lower_fence_is_refused_for_its_job_alone() -> None:
    fences = JobFences(NOW, {})
    written(fences, "job", LATER)

    assert isinstance(fences.admit(NOW, "job", EARLIER), Refuse)
    assert fences.is_stale("job", EARLIER)
    assert not fences.is_stale("job", LATER)
    assert not fences.is_stale("other", EARLIER)
    assert isinstance(fences.admit(NOW, "other", EARLIER), PersistFirst)
    assert (fences.highest("job"), fences.highest("nobody's")) == (LATER, (0, 0, 0))


def test_fences_survive_a_restart() -> None:
    content = written(JobFences(NOW, {}), "job", LATER)

    fences = JobFences(NOW, {"fence/job": content, "fence": b"?", "result/job/1": b"?"})

    assert isinstance(fences.admit(NOW, "job", EARLIER), Refuse)
    assert isinstance(fences.admit(NOW, "job", LATER), Apply)


def test_a_fence_that_cannot_be_read_stops_the_worker() -> None:
    with pytest.raises(BrokenFence):
        JobFences(NOW, {"fence/job": b"?"})


def test_reports_go_to_whoever_commanded_under_the_highest_fence() -> None:
    fences = JobFences(NOW, {})
    assert fences.manager("job") == ""
    written(fences, "job", EARLIER, "m1")
    written(fences, "job", LATER, "m2")

    fences.obeyed("job", EARLIER, "m1")

    assert fences.manager("job") == "m2"


def test_without_its_safeguard_a_lower_fence_is_obeyed() -> None:
    fences = JobFences(NOW, {}, Safeguards(worker_fence=False))
    written(fences, "job", LATER)

    assert isinstance(fences.admit(NOW, "job", EARLIER), Apply)
    assert not fences.is_stale("job", EARLIER)


def test_the_fence_of_a_job_without_a_task_is_dropped_after_a_while() -> None:
    fences = JobFences(NOW, {})
    assert fences.next_sweep_at == NEVER
    written(fences, "idle", EARLIER)
    written(fences, "busy", EARLIER)
    assert fences.next_sweep_at == NOW + SWEEP_EVERY_NS

    assert fences.sweep(NOW + IDLE_LIMIT_NS - 1, ["busy", "unknown"]) == []
    assert fences.sweep(NOW + IDLE_LIMIT_NS, ["busy"]) == [("fence/idle", None)]
    assert fences.next_sweep_at == NOW + IDLE_LIMIT_NS + SWEEP_EVERY_NS
    assert fences.sweep(NOW + 2 * IDLE_LIMIT_NS, []) == [("fence/busy", None)]

    assert fences.next_sweep_at == NEVER


def test_the_number_of_jobs_is_limited_and_those_without_a_task_give_way() -> None:
    fences = JobFences(NOW, {})
    for number in range(JOBS_LIMIT):
        assert fences.has_room(f"job{number:05}")
        fences.admit(NOW, f"job{number:05}", EARLIER)
    assert not fences.has_room("new")
    assert fences.has_room("job00000")

    gone = fences.sweep(NOW + 1, ["job00000"])

    assert len(gone) == JOBS_LIMIT - JOBS_KEPT
    assert ("fence/job00000", None) not in gone
    assert fences.has_room("new")
