"""Jobs that wait for the cores of others."""

from pathlib import Path

NARROWING = Path(__file__).parent / "workflows" / "narrowing.py"


def test_a_core_whose_shard_has_ended_runs_the_next_job_while_the_first_goes_on(make_jobs, job_server) -> None:
    cluster = make_jobs(1, 1, 2)
    first = cluster.start_submit(NARROWING, "--cores", "2")
    job = first.job()
    client = cluster.client()

    # The first one runs for ten minutes.
    ended = cluster.submit(job_server.url, "--cores", "1", "--vus", "1", "--duration", "1s")

    assert ended.code == 0, ended.err
    facts = client.job(job)
    assert (facts.state, facts.cores) == ("running", 1)
    waiting = cluster.start_submit(job_server.url, "--cores", "2", "--vus", "2", "--duration", "1s")
    facts = client.job(waiting.job())
    assert facts.waits_for.startswith("waits for 2 cores: 1 of 2 are free; expected to start in "), facts.waits_for
    assert facts.expected_start
    client.cancel(job)
    assert waiting.ended().code == 0
    assert first.ended().code != 0
