"""For each alert what makes it fire and what does not, as series of a scrape every 15 seconds.

`promtool` plays both for a quarter of an hour. Values are written as it reads them: `1x60` stays, `0+5x60` grows by 5.
"""

from typing import Final, NamedTuple


class Fired(NamedTuple):
    fires: dict[str, str]
    """Series to values."""
    calm: dict[str, str]


AT: Final = 'cluster="c",instance="m1:8470"'
LEADS: Final = {f"talka_is_leader{{{AT}}}": "1x60"}


def one(metric: str, fires: str, calm: str, label: str = "") -> Fired:
    series = f"{metric}{{{AT}{',' if label else ''}{label}}}"
    return Fired({series: fires}, {series: calm})


def target(job: str) -> Fired:
    return Fired({f'up{{job="{job}",{AT}}}': "0x60"}, {f'up{{job="{job}",{AT}}}': "1x60"})


def buckets(fast: str, slow: str) -> dict[str, str]:
    name = "talka_dag_store_commit_seconds_bucket"
    return {f'{name}{{{AT},le="{le}"}}': values for le, values in (("0.5", fast), ("5", slow), ("+Inf", slow))}


ALERTS: Final = {
    "TalkaNoLeader": one("talka_is_leader", "0x60", "1x60"),
    "TalkaManagerGone": target("talka-managers"),
    "TalkaVoterMissing": Fired(
        {**LEADS, f"talka_voters{{{AT}}}": "3x60", f"talka_voters_answering{{{AT}}}": "2x60"},
        {**LEADS, f"talka_voters{{{AT}}}": "3x60", f"talka_voters_answering{{{AT}}}": "3x60"},
    ),
    "TalkaQuorumRefused": one("talka_quorum_breaker_open", "1x60", "0x60"),
    "TalkaPeerUnreachable": one("talka_stream_breakers", "1x60", "0x60", 'state="open"'),
    "TalkaMemberDoubtsItself": one("talka_local_health_score", "2x60", "0x60"),
    "TalkaFramesForged": one("talka_frames_refused_total", "0+60x60", "5x60", 'reason="forged"'),
    "TalkaClockJumped": one("talka_clock_jumps_total", "0x50 1x10", "1x60"),
    "TalkaCertificateEnds": one("talka_certificate_expires_seconds", "2591000x60", "2593000x60", 'certificate="own"'),
    "TalkaDiskLow": Fired(
        {f"talka_disk_bytes{{{AT}}}": "100x60", f"talka_disk_free_bytes{{{AT}}}": "9x60"},
        {f"talka_disk_bytes{{{AT}}}": "100x60", f"talka_disk_free_bytes{{{AT}}}": "11x60"},
    ),
    "TalkaWorkersLost": one("talka_worker_evictions_total", "0x50 1x10", "1x60"),
    "TalkaWorkersSilent": one("talka_workers_silent", "1x60", "0x60"),
    "TalkaWorkerGone": target("talka-workers"),
    "TalkaWorkerWithoutLease": one("talka_worker_has_lease", "0x60", "1x60"),
    "TalkaWorkerLeftAlone": one("talka_worker_breakers", "1x60", "0x60", 'state="open"'),
    "TalkaWorkersQuarantined": one("talka_dag_workers_quarantined", "1x60", "0x60"),
    "TalkaJobsWaitBesideFreeCores": Fired(
        {f"talka_jobs_queued{{{AT}}}": "1x60", f"talka_cores_free{{{AT}}}": "1x60"},
        {f"talka_jobs_queued{{{AT}}}": "1x60", f"talka_cores_free{{{AT}}}": "0x60"},
    ),
    "TalkaOverloaded": one("talka_overload_level", "3x60", "2x60"),
    "TalkaRequestsRefused": one("talka_calls_refused_total", "0+15x60", "15x60", 'reason="overload"'),
    "TalkaQueueOld": one("talka_queue_oldest_seconds", "1000x60", "800x60", 'handler="etl"'),
    "TalkaDeadLetters": one("talka_queue_dead_total", "0x50 1x10", "1x60", 'handler="etl"'),
    "TalkaNoticesGivenUp": one("talka_dag_notices_total", "0x50 1x10", "1x60", 'outcome="given_up"'),
    "TalkaStoreLost": one("talka_dag_store_has_problem", "1x60", "0x60"),
    "TalkaStoreStandsStill": one("talka_dag_store_oldest_commit_seconds", "11x60", "9x60"),
    "TalkaStoreSlow": Fired(buckets("0+50x60", "0+100x60"), buckets("0+100x60", "0+100x60")),
}
