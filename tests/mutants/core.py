"""Mistakes in what decides: supervisor/engine, supervisor/health, and the other parts that touch nothing."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CORE: tuple[Mutation, ...] = (
    Mutation(
        name="busy_is_no_alibi",
        file="supervisor/engine/detectors/hang/hang.py",
        before="if not living or any(j.doing is RankActivity.BUSY for j in living):",
        after="if not living or all(j.doing is RankActivity.BUSY for j in living):",
        breaks="a hang is told while some rank still gets somewhere",
        quick=("tests/engine/detectors/hang/test_hang.py::test_nobody_is_suspected_while_somebody_gets_somewhere",),
    ),
    Mutation(
        name="least_patience_of_rivals",
        file="supervisor/engine/detectors/hang/hang.py",
        before="patience_s=max(_patience_s(rival, not waiting, settings) for rival in rivals),",
        after="patience_s=min(_patience_s(rival, not waiting, settings) for rival in rivals),",
        breaks="the quickest kind of doubt decides, though the most doubtful rank may be the one to blame",
        quick=("tests/engine/detectors/hang/test_hang.py::test_the_most_doubtful_rival_sets_the_patience",),
    ),
    Mutation(
        name="cpu_limit_is_a_stop",
        file="supervisor/engine/observation/rank_activity.py",
        before=" and state == before.process.state and after.process.switches == before.process.switches:",
        after=" and state == before.process.state:",
        breaks="a rank that a CPU limiter stops and continues counts as stopped: proof of a hang",
        quick=(
            "tests/engine/observation/test_rank_activity.py::test_a_process_that_was_let_run_in_between_is_not_stopped",
        ),
    ),
    Mutation(
        name="verdict_after_one_look",
        file="supervisor/engine/detectors/hang/suspicion.py",
        before="(left_s <= 0.05 and is_confirmed):",
        after="(left_s <= 0.05):",
        breaks="one look is enough for a verdict: what was seen need not be seen again",
        quick=(
            "tests/engine/detectors/hang/test_suspicion.py::test_what_one_look_shows_and_the_next_does_not_is_no_hang",
        ),
    ),
    Mutation(
        name="the_highest_of_late_alone",
        file="supervisor/engine/detectors/descriptor_leak.py",
        before="if is_even and lows.risen(start) >= least:",
        after="if is_even and closed[-1] - closed[start] >= least:",
        breaks="open files that go up, and have been as many before, are told as a leak",
        quick=("tests/engine/detectors/test_descriptor_leak.py::test_ups_and_downs_at_random_are_left_alone",),
    ),
    Mutation(
        name="first_report_is_the_first_step",
        file="supervisor/engine/detectors/numeric/nan_loss.py",
        before="awaited = self.ranks if now_s - self.since_s >= WAIT_S else attempt.ranks",
        after="awaited = self.ranks",
        breaks="a loss that is NaN in the first steps is told before all ranks have reported: of the wrong ones",
        quick=("tests/engine/detectors/numeric/test_nan_loss.py::test_the_first_steps_of_all",),
    ),
    Mutation(
        name="single_spikes_begin_it",
        file="supervisor/engine/detectors/numeric/spike_evidence.py",
        before="return self.highs > 1 or (self.highs == 1 and not is_new)",
        after="return True",
        breaks="a spike that healed is told as the beginning of the one that did not",
        quick=(
            "tests/engine/detectors/numeric/test_metric_spikes.py::test_a_single_spike_before_it_is_not_its_beginning",
        ),
    ),
    Mutation(
        name="writes_that_always_differ",
        file="supervisor/engine/detectors/numeric/divergence_evidence.py",
        before="now.get(rank) not in usual and before.get(rank) in known",
        after="now.get(rank) not in usual",
        breaks="a bit that flips is taken for the script's, where each rank updates a part of the parameters",
        quick=(
            "tests/engine/detectors/numeric/test_replica_divergence.py"
            "::test_ranks_that_always_write_differently_are_compared_all_the_same",
        ),
    ),
    Mutation(
        name="a_rerun_from_after_the_difference",
        file="supervisor/engine/detectors/numeric/divergence_rerun.py",
        before="if not (len(passage.equal) >= ENOUGH or passage.had_moments):",
        after="if passage.is_unlike:",
        breaks="the right one of two replicas is named, if the next attempt goes on from what the wrong one has saved",
        quick=(
            "tests/engine/detectors/numeric/test_divergence_rerun.py"
            "::test_where_too_little_is_the_same_nothing_is_said",
        ),
    ),
    Mutation(
        name="memory_that_is_somebody_elses",
        file="supervisor/engine/observation/memory_growth.py",
        before="if shrinks <= 0 or rate < THEIRS * shrinks:",
        after="if shrinks <= 0:",
        breaks="a rank that grows a little is blamed for memory that another job takes",
        quick=(
            "tests/engine/detectors/test_host_leak.py::"
            "test_what_is_not_the_ranks_or_takes_nothing_from_the_limit_is_left_alone",
        ),
    ),
    Mutation(
        name="a_little_of_the_room",
        file="supervisor/engine/detectors/growing.py",
        before="if growth.risen < max(least, SHARE * (growth.room + growth.risen)):",
        after="if growth.risen < least:",
        breaks="a cache that is being filled is told as a leak, though much is left",
        quick=("tests/engine/detectors/test_host_leak.py::test_what_is_held_in_daily_life_is_left_alone",),
    ),
    Mutation(
        name="gaps_that_are_given_back",
        file="supervisor/engine/detectors/gpu_fragmentation.py",
        before="min(use.inactive, use.reserved - self._needed(rank))",
        after="use.reserved - self._needed(rank)",
        breaks="ever longer sequences are told as fragmentation, though all that they leave is given back",
        quick=("tests/engine/detectors/test_gpu_memory.py::test_what_devices_hold_in_daily_life_is_left_alone",),
    ),
    Mutation(
        name="one_restart_too_many",
        file="supervisor/engine/state/state.py",
        before="if self.restarts >= self.settings.max_restarts",
        after="if self.restarts > self.settings.max_restarts",
        breaks="the job is restarted once more than allowed",
        quick=("tests/engine/recovery/test_restart_policy.py::test_max_restarts",),
    ),
    Mutation(
        name="a_save_for_another_request",
        file="supervisor/engine/recovery/memory_save.py",
        before="if not save.request or event.request != save.request:",
        after="if not save.request:",
        breaks="a checkpoint that was asked for because the job ends has its attempt restarted",
        quick=("tests/engine/recovery/test_memory_save.py::test_what_answers_another_request_is_none",),
    ),
    Mutation(
        name="the_dead_are_asked_to_save",
        file="supervisor/engine/recovery/voluntary/in_time.py",
        before="        and rank.rank.node not in gone\n",
        after="",
        breaks="ranks of a node that is gone are asked to save, and nobody does",
        quick=(
            "tests/engine/recovery/test_in_time_save.py::test_a_node_whose_connection_was_closed_is_taken_for_dead",
        ),
    ),
    Mutation(
        name="a_leak_that_is_told_once",
        file="supervisor/engine/detectors/growing.py",
        before="self.known, self.count_before = set(), self.count",
        after="self.count_before = self.count",
        breaks="a leak that comes back after a restart is not saved before again",
        quick=("tests/engine/recovery/test_memory_save.py::test_it_comes_again_and_is_saved_before_again",),
    ),
    Mutation(
        name="progress_renews_no_budget",
        file="supervisor/engine/recovery/restart_policy.py",
        before="state.no_progress = state.no_progress + 1 if is_no_further else 0",
        after="state.no_progress = state.no_progress + 1 if is_no_further else state.no_progress",
        breaks="restarts without progress are counted over the whole run: a long one is given up for nothing",
        quick=("tests/engine/recovery/test_restart_policy.py::test_progress_in_between_starts_the_count_anew",),
    ),
    Mutation(
        name="chance_turned_round",
        file="supervisor/engine/state/job_nodes.py",
        before="if comb(others, count - 1) <= CHANCE * nodes ** (count - 1):",
        after="if comb(others, count - 1) >= CHANCE * nodes ** (count - 1):",
        breaks="failures that chance explains are held against a node, and those that it does not are not",
        quick=(
            "tests/engine/state/test_job_nodes.py::test_how_often_is_more_than_chance_depends_on_how_many_nodes_there_are",
        ),
    ),
    Mutation(
        name="silence_outweighs_progress",
        file="supervisor/engine/membership/node_silence.py",
        before="return max(at_s, silence_began_s(tied) + still_s)",
        after="return min(at_s, silence_began_s(tied) + still_s)",
        breaks="a node that is only not heard is given up although the job advances",
        quick=(
            "tests/engine/membership/test_node_silence.py::test_a_silent_node_is_lost_after_its_time_and_a_spare_takes_its_place",
        ),
    ),
    Mutation(
        name="last_to_fall_is_blamed",
        file="supervisor/engine/failures/root_cause.py",
        before="first = min(guilty, key=lambda one: _when(one.fall))",
        after="first = max(guilty, key=lambda one: _when(one.fall))",
        breaks="of several errors the last is told as the cause",
        quick=("tests/engine/failures/test_root_cause.py::test_the_earlier_of_two_independent_falls",),
    ),
    Mutation(
        name="victims_are_guilty",
        file="supervisor/engine/failures/root_cause.py",
        before="guilty = [one for one in weighed if not one.is_victim and _is_suspect(one.fall)]",
        after="guilty = [one for one in weighed if _is_suspect(one.fall)]",
        breaks="a rank that only lost its connection to the one that fell is told as the culprit",
        quick=("tests/engine/failures/test_root_cause.py::test_the_first_to_raise_is_not_always_to_blame",),
    ),
    Mutation(
        name="unloadable_checkpoint_again",
        file="supervisor/engine/recovery/launcher_orders.py",
        before="""\
    return ChooseCheckpoint(choice=state.choice, avoid=list(state.avoid), spoiled=list(state.spoiled))
""",
        after="""\
    return ChooseCheckpoint(choice=state.choice, spoiled=list(state.spoiled))
""",
        breaks="the checkpoint that the script could not load is chosen for each attempt again",
        quick=("tests/engine/state/test_incidents.py::test_a_checkpoint_that_could_not_be_loaded_is_avoided",),
    ),
    Mutation(
        name="cancelled_job_requeued",
        file="supervisor/engine/recovery/requeue.py",
        before='if wish == "never" or notice.why == CANCELLED:',
        after='if wish == "never":',
        breaks="a job that a person has cancelled is put back into the queue",
        quick=(
            "tests/engine/recovery/test_requeue.py::test_a_job_that_is_cancelled_after_a_warning_is_not_started_again",
        ),
    ),
    Mutation(
        name="release_lifts_everybodys",
        file="supervisor/health/quarantine_rules.py",
        before="return is_believed and isolation.is_automatic and isolation.newest",
        after="return is_believed and isolation.newest",
        breaks="one person's release lifts what another person has isolated",
        quick=("tests/health/test_quarantine_rules.py::test_what_holds",),
    ),
)
