"""What torchrun promises, and the tests that hold guardrun to it.

The promises are those that PyTorch's own tests of its launcher check (test/distributed/launcher), its documentation
makes, and users rely on. Where guardrun differs on purpose, the promise says how. Not held here: counts of accelerators
(`--nproc-per-node=gpu` where there are some, `xpu`), `--numa-binding`, and etcd.
"""

from __future__ import annotations

PROMISES: dict[str, tuple[str, ...]] = {
    "ranks see the same environment, arguments, descriptors, folder, umask, limits and signal dispositions, and "
    "besides only what docs/environment.md names": ("test_everything_a_rank_sees_is_torchruns",),
    "what stands after the script is the script's, whatever it looks like (--guard-… and -- too)": (
        "test_everything_a_rank_sees_is_torchruns",
        "test_two_dashes_before_the_script_are_the_launchers",
    ),
    "--event-log-handler gets the events of a run's end (those of torchrun's agent at work are its own)": (
        "test_the_events_of_a_runs_end",
    ),
    "-m runs a module, with relative imports": ("test_modules_with_relative_imports",),
    "--run-path runs the script inside processes of multiprocessing": (
        "test_functions_as_ranks",
        "test_functions_that_fail",
    ),
    "--no-python runs any program": ("test_other_programs_as_ranks",),
    "PYTHON_EXEC is the interpreter": ("test_python_named_by_the_user",),
    "every flag has its PET_ variable, and flags win": (
        "test_other_programs_as_ranks",
        "test_flags_and_variables_that_reach_the_ranks",
        "test_output_and_log_folders",
        "test_numbers_of_ranks",
    ),
    "flags may be written with underscores, and abbreviated": (
        "test_abbreviations_mean_what_they_meant",
        "test_flags_and_variables_that_reach_the_ranks",
        "test_output_and_log_folders",
    ),
    "--help names every flag": ("test_help_is_torchruns_and_ours",),
    "--nproc-per-node: a number, auto, cpu; 1 where it is not given": (
        "test_numbers_of_ranks",
        "test_python_named_by_the_user",
    ),
    "wrong values are refused in torchrun's words, with status 2 and before anything is started": (
        "test_refused_with_torchruns_words",
        "test_a_script_that_does_not_exist",
        "test_an_event_handler_that_torch_does_not_know",
    ),
    "--standalone, --master-addr, --master-port, --node-rank 0 and static endpoints are one node": (
        "test_one_node_however_it_is_written",
    ),
    "--rdzv-id, --role, --local-addr, --monitor-interval, --start-method, --virtual-local-rank, --signals-to-handle "
    "and the file timer reach the ranks": ("test_flags_and_variables_that_reach_the_ranks",),
    "process groups come up by env:// and by tcp:// at the chosen port; is_torchelastic_launched() is true": (
        "test_process_groups_by_env_and_tcp",
    ),
    "--redirects, --tee, --log-dir, --local-ranks-filter and the duplicates' filters: the same files, bytes and "
    "prefixes; TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": ("test_output_and_log_folders",),
    "--logs-specs takes an entry point": ("test_logs_specs_by_entry_point",),
    "--max-restarts: attempts with log folders of their own, RESTART_COUNT, MAX_RESTARTS; guardrun's default is 10": (
        "test_attempts_have_log_folders_of_their_own",
        "test_restarts_run_out",
    ),
    "error files of @record, and the copy for whoever started the launcher": ("test_error_files_with_record",),
    "without @record there is no error file; guardrun's ranks leave one": ("test_error_files_without_record",),
    "a failed rank ends the others and the launcher; guardrun ends with the rank's status, torchrun with 1": (
        "test_exit_statuses",
        "test_error_files_without_record",
    ),
    "which ranks failed is said at the end, the first of them as the root cause": ("test_the_report_of_failed_ranks",),
    "signals reach the ranks and leave nothing; guardrun ends with 128 and the signal's number, torchrun with 1": (
        "test_ranks_hear_what_the_launcher_got",
        "test_signals_to_handle",
        "test_torchruns_agent_is_signalled",
    ),
    "--shutdown-timeout ends those that stay": ("test_shutdown_timeout",),
    "a killed launcher: torchrun's ranks stay behind; guardrun's end": ("test_a_killed_launcher_leaves_no_rank",),
    "several nodes, of a fixed number or elastic, of one --role or of several": (
        "test_two_nodes_of_a_fixed_size",
        "test_an_elastic_job_of_two",
        "test_alone_in_an_elastic_job",
    ),
    'agent = "torchrun" is torchrun\'s agent, under supervision': (
        "test_torchruns_agent_on_one_node",
        "test_torchruns_agent_gives_up",
        "test_torchruns_agent_ends_for_a_rank_that_nobody_saw",
        "test_torchruns_agent_is_signalled",
    ),
    "--guard-off is torchrun": ("test_guard_off_is_torchrun",),
}
