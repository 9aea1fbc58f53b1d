"""What the pages promise, and the one test that shows it with real processes in every run of `make test`.

Left is how a promise begins on its page: a bold sentence, a sentence, or the first cell of a row. That every promise
is here is seen to by `tests/test_promises.py`. A test of this folder that is not named here is for `make test-all`:
whatever else can happen is proven by the simulator.
"""

from typing import Final

README: Final = {
    # What you can rely on
    "Every call is measured, under a name.": "e2e/test_measured_on_a_cluster.py::"
    "test_every_call_of_a_step_has_its_row_and_a_slow_one_is_in_the_steps_time",
    "Exact counts.": "e2e/test_exact_counts.py::test_shared_iterations_and_drops_add_up_exactly",
    "The plan is the load.": "e2e/test_plans.py::test_run_follows_the_plan_that_check_prints[SteadyRate-native]",
    "Losses are named.": "e2e/test_faults.py::test_killed_core_is_replaced_for_the_rest_of_the_plan[native]",
    "Exit codes tell causes apart": "e2e/test_failures.py::test_the_exit_code_tells_the_cause",
    "No process is left behind,": "e2e/test_faults.py::test_nothing_survives_the_death_of_the_owner",
    "A job that was accepted ends,": "e2e/test_job_faults.py::"
    "test_killed_talka_up_knows_its_job_when_it_is_started_again",
    # One test, many machines
    "`talka up --private` keeps other users": "cli/nodes/test_private.py::"
    "test_a_private_one_is_open_to_commands_of_its_user_and_closed_to_others",
    "`talka manager` and `talka worker` make a cluster of many": "cli/nodes/test_node_commands.py::"
    "test_manager_and_worker_find_each_other_and_let_in_who_has_a_token",
    "The test travels with its modules and data files": "e2e/test_measured_on_a_cluster.py::"
    "test_a_test_travels_with_its_module_and_data_starts_everywhere_at_once_and_is_one_result",
    "Machines may die in the middle": "e2e/test_job_faults.py::"
    "test_killed_worker_is_replaced_by_a_spare_one_for_the_rest_of_the_plan",
    # Pipelines that are never lost
    "A task starts after all tasks that it depends on": "e2e/test_dags.py::"
    "test_ten_dags_at_once_run_each_task_once_and_after_all_it_waits_for",
    "Tasks have retries, priorities, limits and schedules": "e2e/test_dag_faults.py::"
    "test_talka_up_killed_in_mid_job_goes_on_with_every_acknowledged_job_at_once",
    "A core process that dies is replaced within a second": "e2e/test_dag_faults.py::"
    "test_the_task_of_a_killed_core_runs_in_a_new_one_within_a_second",
}

OPERATIONS: Final = {
    # The table
    "a core process": "e2e/test_job_faults.py::test_killed_core_is_replaced_by_its_worker",
    "a worker (power, kernel)": "e2e/test_job_faults.py::"
    "test_killed_worker_is_replaced_by_a_spare_one_for_the_rest_of_the_plan",
    "a worker's process, restarted by its supervisor": "e2e/test_frozen_workers.py::"
    "test_a_worker_started_again_frees_its_old_task_before_a_lease_is_over",
    "a worker is cut off": "e2e/test_cut_off.py::test_the_task_of_a_worker_that_is_cut_off_ends_there_before_it_begins"
    "_elsewhere",
    "a worker's process is frozen or swapped out": "e2e/test_frozen_workers.py::"
    "test_task_of_a_frozen_worker_has_ended_there_before_it_begins_elsewhere[go-on]",
    "most workers fall silent at once": "e2e/test_cut_off.py::"
    "test_when_most_workers_fall_silent_at_once_the_leader_suspects_the_network_and_says_so",
    "a manager that leads jobs": "e2e/test_job_faults.py::test_job_survives_the_manager_that_leads_it",
    "the leader of the cluster": "e2e/test_job_faults.py::test_job_survives_the_leader_of_the_cluster",
    "a majority of managers": "e2e/test_cut_off.py::"
    "test_without_a_majority_of_managers_workers_stop_and_the_api_answers_503",
    "the only manager that a worker was given": "e2e/test_job_faults.py::"
    "test_a_worker_whose_only_manager_is_gone_finds_the_others_when_it_is_started_again",
    "the only manager of one": "e2e/test_frozen_workers.py::"
    "test_workers_go_on_without_their_only_manager_and_offer_their_results_when_it_is_back",
    "the only manager, cut off instead": "e2e/test_cut_off.py::"
    "test_workers_stop_when_their_only_manager_is_cut_off_from_them",
    "the only manager, standing still": "e2e/test_job_faults.py::"
    "test_gap_begins_where_the_load_ended_although_the_only_manager_stood_still",
    "the only manager was restarted, and a worker is gone": "e2e/test_frozen_workers.py::"
    "test_the_task_of_a_worker_that_a_new_manager_never_heard_waits_and_tells_for_whom",
    # The paragraphs below it
    "The lease of workers": "cli/nodes/test_node_commands.py::"
    "test_a_manager_that_is_told_another_lease_is_refused_until_the_lease_is_changed",
    "The lease of leaders": "e2e/test_cluster_faults.py::"
    "test_those_that_count_a_leaders_lease_alike_go_on_and_the_other_is_told",
    "The store": "e2e/test_store_hold.py::test_a_manager_that_stood_still_for_too_long_loses_its_store_and_says_so",
    "A clock that is set": "e2e/test_store_hold.py::"
    "test_a_manager_whose_clock_is_moved_keeps_its_store_its_schedules_and_its_jobs",
    "A flood of requests": "e2e/test_flood.py::test_in_a_flood_cancels_results_and_votes_pass_and_what_is_shed_is_told",
    "A full disk.": "e2e/test_store_hold.py::"
    "test_a_manager_is_not_ready_while_its_store_cannot_be_written_and_is_again_afterwards",
}

EXAMPLES: Final = (
    "e2e/test_examples.py::test_example_runs_and_its_thresholds_hold",
    "e2e/test_examples_etl.py::test_the_example_fans_out_and_in_and_its_failing_step_is_tried_again",
)
"""Every file and folder of `examples`."""

ALSO: Final = {
    "e2e/test_core_isolation.py::test_handler_reads_nothing_of_its_worker[root]": "of docs/security.md, what no other "
    "test has: cores of another user",
    "e2e/test_chaos.py::test_progress_flows_again_when_the_last_silence_ends": "no process",
    "e2e/test_chaos.py::test_the_same_seed_draws_the_same_blows": "no process",
    "e2e/test_chaos.py::test_the_table_tells_outcomes_and_the_worst_recovery_of_each_kind": "no process",
    "e2e/test_dag_faults.py::test_a_second_manager_is_refused_the_store_with_a_sentence": "the store, while its first "
    "manager lives",
    "e2e/test_described_api.py::test_a_load_job_is_waited_for_by_whoever_may_submit_it": "the leader is asked for a "
    "load job, and decides itself who may",
    "e2e/test_described_api.py::test_no_request_of_any_role_brings_the_manager_down": "who may do what, and "
    "that nothing of the API's own description brings a manager down: only a real one shows it",
    "e2e/test_described_api.py::"
    "test_what_drawn_requests_seldom_are_right_for_is_answered_as_described_from_its_least_role_on": "the same",
    "e2e/test_dags.py::test_a_limit_holds_over_all_jobs_and_workers": "a quarter of a second on the cluster of others",
    "e2e/test_dags.py::test_a_worker_that_was_drained_takes_tasks_again_when_it_is_told_so": "the same",
    "e2e/test_dags.py::test_a_checkpoint_is_found_by_the_next_attempt": "the same",
    "e2e/test_dags.py::test_a_task_whose_key_was_done_before_has_that_output": "the same",
    "e2e/test_dags.py::test_what_never_helps_is_not_tried_again": "the same",
    "e2e/test_frozen_workers.py::test_a_worker_that_comes_back_late_is_refused_what_others_have_done": "no result of a "
    "task is accepted twice",
    "e2e/test_job_counts.py::test_four_workers_together_count_exactly_what_the_server_served": "two workers are where "
    "many mistakes of adding up do not show",
    "e2e/test_measured_on_a_cluster.py::test_journeys_that_do_not_end_within_the_grace_are_counted_as_interrupted": ""
    "what began is finished, or counted as cut",
    "e2e/test_soak.py::test_a_task_that_ran_again_is_judged_by_when_it_began": "no process",
    "e2e/test_soak.py::test_a_task_that_ran_again_too_late_is_told_and_breaks_the_promise": "no process",
    "e2e/test_soak.py::test_what_is_left_out_is_counted_by_its_cause_and_a_blow_goes_before_the_machine": "no process",
    "e2e/test_soak.py::test_a_promise_of_which_no_blow_could_be_judged_is_broken": "no process",
    "e2e/test_soak.py::test_of_many_the_p99_is_judged_and_the_word_is_told": "no process",
}
"""Tests that every run can afford besides, and why."""


def named() -> set[str]:
    """All of them, by their ids below `tests`. One without a parameter stands for all its parameters."""
    return {*README.values(), *OPERATIONS.values(), *EXAMPLES, *ALSO}
