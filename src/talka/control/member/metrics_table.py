"""Every metric that a node shows at `/metrics`: its kind, its label, and what it says.

What is counted is not shown unless it has a line here; `docs/metrics.md` is written from these lines. Names stand
without `talka_`.

Decision: docs/decisions/0065-what-a-node-tells-of-itself.md.
"""

from typing import Final, Literal, NamedTuple

MetricKind = Literal["counter", "gauge", "histogram"]


class MetricLine(NamedTuple):
    name: str
    kind: MetricKind
    text: str
    """One sentence, for whoever reads a scrape."""
    label: str = ""
    """What tells its samples apart; empty: it has one sample."""


class MetricGroup(NamedTuple):
    title: str
    lines: tuple[MetricLine, ...]


def _counter(name: str, text: str, label: str = "") -> MetricLine:
    return MetricLine(name, "counter", text, label)


def _gauge(name: str, text: str, label: str = "") -> MetricLine:
    return MetricLine(name, "gauge", text, label)


def _histogram(name: str, text: str) -> MetricLine:
    return MetricLine(name, "histogram", text)


GROUPS: Final = (
    MetricGroup(
        "Members and managers: the view of the cluster",
        (
            _gauge("members", "Members in the view of this one, itself included, by state.", "state"),
            _gauge("local_health_score", "How much this member doubts itself; 0 is well."),
            _gauge("lag_gate_closed", "1 while this member gives no verdict, because its own loop was late."),
            _gauge("incarnation", "Times this member refuted an accusation."),
            _gauge("recent_verdicts", "The last verdicts given or heard, by kind.", "verdict"),
            _gauge("datagrams_blocked", "Members that are reached over the stream only."),
            _counter("refused_updates_total", "Updates of members that nobody could read."),
            _counter("records_disbelieved_total", "Records of members that the member itself had not signed."),
            _counter("datagrams_received_total", "Datagrams that arrived."),
            _counter("datagrams_sent_total", "Datagrams that were sent."),
            _counter("datagrams_unsent_total", "Datagrams that the kernel did not take."),
            _counter("datagrams_over_rate_total", "Datagrams above the rate that one address may send."),
            _counter("datagrams_stale_total", "Datagrams that had waited in the socket for too long."),
            _counter("datagram_bytes_received_total", "Bytes of datagrams that arrived."),
            _counter("datagram_bytes_sent_total", "Bytes of datagrams that were sent."),
            _gauge("process_resident_memory_bytes", "Memory that this process has."),
        ),
    ),
    MetricGroup(
        "Voters: leadership",
        (
            _gauge("term", "The term of leadership that this voter knows."),
            _gauge("is_leader", "1 on the voter that leads."),
            _gauge("voters", "Voters that there are."),
            _gauge("quorum_breaker_open", "1 while writes are refused, because no majority answered again and again."),
            _gauge("voters_answering", "Voters heard from lately, this one included."),
        ),
    ),
    MetricGroup(
        "Every node: frames, keys, connections",
        (
            _counter("frames_admitted_total", "Frames of other nodes that were let in."),
            _counter("frames_refused_total", "Frames that were turned away, by reason.", "reason"),
            _counter("frames_refused_by_role_total", "Messages that the role of their sender may not say.", "message"),
            _gauge("certificate_expires_seconds", "Until its own certificate and its authority's end.", "certificate"),
            _gauge("peers", "Nodes that it speaks with, by the version of the protocol agreed on.", "version"),
            _counter("messages_unsaid_total", "Messages not said, as the peer is older than they.", "message"),
            _counter("challenges_total", "Lives of nodes that were asked to prove that they live."),
            _gauge("keys", "Keys that are accepted."),
            _counter("rings_unexpected_total", "Changes of keys that were not expected."),
            _counter("rings_refused_total", "Changes of keys that did not count, by reason.", "reason"),
            _counter("stream_frames_received_total", "Frames that arrived over streams."),
            _counter("stream_frames_sent_total", "Frames that were sent over streams."),
            _counter("stream_bytes_sent_total", "Bytes that were sent over streams."),
            _gauge("stream_connections", "Streams that are open."),
            _counter("stream_problems_total", "Streams that failed or were refused, by reason.", "reason"),
            _gauge("stream_breakers", "Peers that are dialled, by the state of their breaker.", "state"),
            _gauge("disk_bytes", "Size of the disk that the data folder is on."),
            _gauge("disk_free_bytes", "What is free on the disk that the data folder is on."),
            _counter("process_cpu_seconds_total", "Processor time that this process has used, in seconds."),
        ),
    ),
    MetricGroup(
        "Managers and workers: overload",
        (
            _gauge("overload_level", "0 normal, 1 busy, 2 stressed, 3 overloaded: the worst of all signals."),
            _gauge("overload_signal_level", "The same by each signal alone, in the last sample.", "signal"),
            _gauge("overload_late_seconds", "How late the loop of this process was."),
            _gauge("overload_queue_seconds", "How old the oldest is that waits for an answer or the disk."),
            _gauge("overload_latency_seconds", "How long requests take."),
            _gauge("overload_latency_rise_ratio", "By how much that grows: seconds in each second."),
            _gauge("overload_cpu_percent", "Of one processor: what this process used or was kept waiting for."),
            _gauge("overload_memory_percent", "Memory of the machine, or of the control group, that is taken."),
        ),
    ),
    MetricGroup(
        "Managers: jobs, calls, what is left undone",
        (
            _gauge("jobs_led", "Jobs that this manager leads."),
            _gauge("backpressure_level", "0: workers report at once; 1: less often; 2: what they report is refused."),
            _counter("requests_shed_total", "Requests that were refused for overload, by class.", "class"),
            _counter("statistics_refused_total", "Reports, lines and progress of workers refused for overload."),
            _counter("worker_evictions_total", "Workers that this manager heard were given up."),
            _counter("clock_jumps_total", "Times the clock of the day was set while this manager ran."),
            _gauge("api_clients", "Clients of the API whose requests are counted."),
            _counter(
                "workflows_late_total",
                "Times that a workflow was given more time, warned, put aside or resumed, by which of these.",
                "what",
            ),
            _counter("api_rate_limited_total", "Requests of the API that were beyond a client's limit.", "operation"),
            _counter("calls_total", "Questions that this manager asked the leader."),
            _counter("calls_refused_total", "Questions and requests that were refused, by reason.", "reason"),
        ),
    ),
    MetricGroup(
        "The manager that leads: workers and the queue of jobs",
        (
            _gauge("jobs_queued", "Jobs that wait for cores."),
            _gauge("workers", "Workers that the leader knows."),
            _gauge("workers_by_state", "Workers that the leader knows, by state.", "state"),
            _gauge("workers_silent", "Workers that have a lease and are silent."),
            _gauge(
                "worker_breakers", "Workers, by the state of their breaker: an open one is given no load test.", "state"
            ),
            _gauge("worker_lease_seconds", "The lease of workers: who is silent for longer is given up."),
            _gauge("cores", "Cores of workers that are there."),
            _gauge("cores_free", "Cores that no job has."),
            _gauge("cores_usable", "Cores that a job could be given."),
            _counter("submissions_refused_total", "Jobs that were not accepted, by reason.", "reason"),
            _counter("jobs_passed_total", "Jobs that started ahead of one that was next and had to wait."),
            _counter("cores_given_back_total", "Cores that jobs gave back before they had ended."),
            _gauge(
                "workers_by_decision", "Workers that the leader knows, by what it makes of their health.", "decision"
            ),
            _gauge("managers_by_decision", "Managers, by what the leader makes of their health.", "decision"),
            _counter("worker_decisions_total", "Times the leader came to a decision about a worker.", "decision"),
            _counter("manager_decisions_total", "Times the leader came to a decision about a manager.", "decision"),
        ),
    ),
    MetricGroup(
        "Managers with a store: pipelines",
        (
            _gauge("dag_jobs_live", "Dag jobs of this manager that have not ended."),
            _counter("dag_jobs_ended_total", "Dag jobs that ended since this manager started, by state.", "state"),
            _gauge("dag_tasks_under_way", "Attempts of tasks that workers have."),
            _counter("dag_results_stale_total", "Results of attempts that were given up before; they do not count."),
            _counter("dag_more_time_total", "Attempts that got more time, got none, or were warned.", "outcome"),
            _counter("dag_messages_foreign_total", "Messages of workers about another life of the store."),
            _counter("dag_messages_strayed_total", "Messages of workers about partitions that are not kept here."),
            _counter("dag_messages_lost_total", "Messages to workers that found no room; what they said is asked for."),
            _counter("dag_attempts_dropped_total", "Attempts and results that workers dropped, of an older store."),
            _counter("dag_epochs_raised_total", "Times a worker knew a later life of the store than the store itself."),
            _gauge("dag_workers_quarantined", "Workers that get no task for a while, because too many died there."),
            _counter("dag_notices_total", "Notices of ends of jobs, by what became of them.", "outcome"),
            _gauge("dag_store_has_problem", "1 while the store cannot be written."),
            _histogram("dag_store_commit_seconds", "From when a commit was asked for until it was durable."),
            _gauge("dag_store_commits_waiting", "Commits that were asked for and are not durable yet."),
            _gauge("dag_store_oldest_commit_seconds", "For how long the first of these commits has waited."),
        ),
    ),
    MetricGroup(
        "Managers with a store: tasks by handler",
        (
            _gauge("queue_waiting", "Tasks that are ready to run, by handler.", "handler"),
            _gauge("queue_active", "Tasks that workers have, by handler.", "handler"),
            _gauge("queue_delayed", "Tasks that wait for their time, by handler.", "handler"),
            _gauge("queue_blocked", "Tasks that wait for others, or whose job is paused, by handler.", "handler"),
            _gauge("queue_oldest_seconds", "For how long the first in line has been ready, by handler.", "handler"),
            _counter("queue_completed_total", "Tasks completed since this manager started, by handler.", "handler"),
            _counter("queue_failed_total", "Tasks given up since this manager started, by handler.", "handler"),
            _counter("queue_dead_total", "Those of them that became dead letters, by handler.", "handler"),
        ),
    ),
    MetricGroup(
        "Workers",
        (
            _gauge("worker_cores", "Cores that this worker offers."),
            _gauge("worker_has_lease", "1 while a manager's lease lets this worker work."),
            _counter("worker_tasks_total", "What happened on this worker, by event.", "event"),
            _counter("worker_reports_refused_total", "Reports of this worker that overloaded managers refused."),
            _counter("worker_messages_refused_total", "Messages that this worker did not obey, by reason.", "reason"),
            _counter("worker_tasks_declined_total", "Parts of load jobs that this worker did not take."),
            _gauge("worker_tasks_arming", "Parts of load jobs whose cores start."),
            _gauge("worker_tasks_armed", "Parts of load jobs that wait for the instant to start at."),
            _gauge("worker_tasks_running", "Parts of load jobs that run."),
            _gauge("worker_tasks_ended", "Parts of load jobs that ended and whose result was not taken yet."),
            _gauge("worker_manager_addresses", "Addresses at which managers may be, remembered and configured."),
            _counter("worker_manager_searches_total", "Times this worker began to look for managers."),
            _counter("worker_manager_greetings_total", "Greetings to addresses at which managers may be."),
            _counter("worker_manager_greetings_failed_total", "Greetings that were not answered in time."),
            _gauge("worker_bundle_sources", "Managers that bundles can be fetched from."),
            _counter("worker_bundle_source_failures_total", "Managers that were silent when a bundle was fetched."),
            _counter("worker_bundle_source_slow_total", "Managers that were left for being slow beside another."),
            _counter("worker_bundle_source_switches_total", "Times bundles came from another manager than before."),
            _gauge(
                "worker_bundle_source_latency_seconds",
                "Mean time until the manager that bundles come from has answered.",
            ),
            _counter("worker_attempts_total", "Attempts of tasks that ended here, by outcome.", "outcome"),
            _counter(
                "worker_task_messages_refused_total",
                "Messages about tasks that this worker did not obey, by reason.",
                "reason",
            ),
            _gauge("worker_handler_cores", "Processes that run handlers."),
            _counter("worker_handler_cores_started_total", "Processes for handlers that were started."),
            _counter("worker_handler_cores_died_total", "Processes for handlers that died by themselves."),
            _counter("worker_handler_cores_spent_total", "Processes for handlers that ended after enough attempts."),
            _gauge("worker_attempts_waiting", "Attempts of tasks that wait for a place here."),
            _gauge("worker_attempts_running", "Attempts of tasks that run here."),
            _counter("worker_attempts_repeated_total", "Attempts that were assigned here once more."),
            _counter("worker_attempts_warned_total", "Attempts that were told that their time is over."),
            _counter("worker_attempts_evicted_total", "Attempts that were ended because their time was over."),
            _counter("worker_attempts_dropped_total", "Attempts that were dropped with the life of their store."),
            _counter("worker_results_unknown_total", "Results that processes told of attempts nobody knows."),
            _gauge("worker_results_untaken", "Results that no manager has stored yet."),
            _gauge("worker_results_untaken_bytes", "Bytes of results that no manager has stored yet."),
            _counter("worker_task_lines_dropped_total", "Lines that tasks wrote and that were too many to keep."),
            _counter("worker_task_progress_dropped_total", "Steps of progress that were too many to tell."),
        ),
    ),
)
METRICS: Final = {line.name: line for group in GROUPS for line in group.lines}
