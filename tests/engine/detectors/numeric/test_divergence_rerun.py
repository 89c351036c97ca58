"""Which of two replicas a later attempt contradicts, that trains the same steps again; and where it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from guardrun.hooks.checksums.checker import Watched
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import Told, kinds
from tests.engine.detectors.numeric.replicas import Change, Replicas, all_of, flipped, nothing, wrote
from tests.engine.detectors.numeric.training import culprits

NOBODY = "of two, nobody can say which one is right"


class Attempts(Replicas):
    """Two ranks that are trained, fall, and go on from a checkpoint; checks come where the hooks have them."""

    has_moments = True
    every = 500

    def train(self, change: Change, until: int, *, lacking: tuple[int, ...] = ()) -> Attempts:
        """All checks of this attempt up to a step. lacking: steps whose check rank 1 does not report."""
        watched = Watched(cast(Any, None), self.every, self.base)
        for count in range(1, until - self.base + 1):
            if not watched.is_due(count):
                continue
            is_echo, silent = not watched.is_main(count), (1,) if self.base + count in lacking else ()
            if self.has_moments:
                self.check(count, is_echo, nothing, silent=silent, kind=1)
            self.check(count, is_echo, change, silent=silent)
        assert self.told.phase is Phase.RUNNING
        return self

    def resume(self, step: int, *, ranks: int | None = None, nodes: tuple[str, ...] = ("node-a",)) -> Attempts:
        """A rank falls, and the next attempt goes on from a checkpoint; 0: from scratch. nodes: in turn."""
        self.told.crashed()
        checkpoint = ev.Checkpoint(path=f"/out/{step}.pt", step=step) if step else None
        self.told.chosen(checkpoint)
        number = self.told.state.next_attempt
        alive = [
            ev.Rank(global_rank=n, local_rank=n, pid=100 * (number + 1) + n, node=nodes[n % len(nodes)])
            for n in range(ranks or self.told.state.world_size)
        ]
        began = ev.AttemptStarted(attempt=number, ranks=alive, resumed_from=checkpoint)
        self.told.tell(began, self.told.now_s + 0.5)
        if checkpoint is not None:
            self.told.tell(ev.CheckpointOpened(attempt=number, path=checkpoint.path))
        self.base = step
        return self

    @property
    def diverged(self) -> list[ac.Incident]:
        return [one for one in self.told.incidents.values() if one.cause == "replica_divergence"]

    @property
    def incident(self) -> ac.Incident:
        """The one of the first attempt that differed."""
        return self.diverged[0]

    @property
    def rerun(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.incident.evidence.get("rerun", {}))

    @property
    def is_open(self) -> bool:
        """Nobody is named, and nothing is said of a later attempt."""
        return culprits(self.incident) == [] and not self.rerun and NOBODY in self.incident.summary


def attempts(told: Told, *, has_moments: bool = True, **settings: object) -> Attempts:
    found = Attempts(told, 2, **settings)  # type: ignore[arg-type]
    found.has_moments = has_moments
    return found


def other(*, since: int, until: int = 10**9) -> Change:
    """All ranks come to other numbers, and the same ones."""

    def change(sums: dict[int, list[int]], writes: dict[int, int], step: int) -> None:
        for numbers in sums.values():
            if since <= step < until:
                numbers[2] += 12345

    return change


def both(*changes: Change) -> Change:
    def change(sums: dict[int, list[int]], writes: dict[int, int], step: int) -> None:
        for one in changes:
            one(sums, writes, step)

    return change


def everywhere(*, since: int, place: int = 3) -> Change:
    """Both ranks hold what rank 1 alone held: what `flipped(1)` makes of it."""

    def change(sums: dict[int, list[int]], writes: dict[int, int], step: int) -> None:
        if since <= step:
            for numbers in sums.values():
                numbers[place] += 1 << 11

    return change


# Who is named -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "has_moments"), [(500, True), (400, False), (499, True)])
def test_the_one_that_the_next_attempt_contradicts_is_named(told: Told, base: int, has_moments: bool) -> None:
    run = attempts(told, has_moments=has_moments).train(flipped(1, since=700), 1010)
    assert run.is_open and run.incident.confidence < 0.8
    run.resume(base).train(nothing, 1000)
    assert run.is_open, "one check is none"
    run.train(nothing, 1010)
    [incident] = run.diverged
    assert incident.summary == (
        "Rank 1 on node-a computed otherwise than rank 0 in layer3.weight, between steps 510 and 1000: attempt 1 has "
        "trained the same steps again, and both its replicas hold what rank 0 held."
    )
    assert culprits(incident) == [1] and incident.culprits[0].pid == 101, "as the attempt had it that differed"
    assert incident.confidence == 0.9 and incident.action == "none" and incident.step == 1000
    assert run.rerun == {"attempt": 1, "equal_steps": [510] if base >= 499 else [500, 510], "says": "rank"}
    assert incident.evidence["differ"] == "1" and incident.evidence["agree"] == 1
    assert incident.evidence["parameters"] == ["layer3.weight"], "what was known is still there"
    assert "guardctl check --full" in incident.advice and "isolate" in incident.advice
    assert any(text.startswith("incident 001: Rank 1 on node-a computed") for text in run.said)


def test_it_may_be_the_first_rank(told: Told) -> None:
    run = attempts(told).train(flipped(0, since=700), 1010).resume(500).train(nothing, 1010)
    assert culprits(run.incident) == [0] and "what rank 1 held" in run.incident.summary


def test_or_whatever_the_checkpoint_held_is_what_rank_1_had(told: Told) -> None:
    """Both come to what rank 1 had come to: rank 0 is the odd one, whose checkpoint was of before."""
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500).train(everywhere(since=700), 1010)
    assert culprits(run.incident) == [0]


def test_a_step_that_was_checked_in_another_way_is_not_compared(told: Told) -> None:
    """Step 510 comes 10 steps after a multiple, and 50 after the checkpoint: its sums are folded otherwise."""
    run = attempts(told).train(flipped(1, since=700), 1010).resume(460).train(nothing, 1010)
    assert culprits(run.incident) == [1] and run.rerun["equal_steps"] == [500]


def test_one_that_agrees_with_each_in_turn_contradicts_neither(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500).train(everywhere(since=1005), 1010)
    assert culprits(run.incident) == [] and run.rerun["says"] == "once"


def test_from_scratch(told: Told) -> None:
    run = attempts(told, has_moments=False).train(flipped(1, since=61), 510).resume(0).train(nothing, 510)
    assert culprits(run.incident) == [1] and run.rerun["equal_steps"] == [50, 60]


def test_an_attempt_that_ended_before_leaves_it_to_the_next(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010)
    run.resume(500).train(nothing, 990).resume(1010).train(nothing, 2010)
    assert run.is_open
    run.resume(500).train(nothing, 1010)
    assert culprits(run.incident) == [1] and run.rerun["attempt"] == 3


def test_one_with_other_numbers_does_so_too(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500).train(other(since=505), 1010)
    assert run.rerun["says"] == "unlike"
    run.resume(400).train(nothing, 1010)
    assert culprits(run.incident) == [1] and run.rerun["attempt"] == 2


def test_checks_that_come_more_often_are_compared_where_they_meet(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500)
    run.every = 250
    assert culprits(run.train(nothing, 1010).incident) == [1]


def test_checks_that_are_read_all_at_once_are_compared_one_by_one(told: Told) -> None:
    """Steps are short, and a supervisor comes once a second: moments belong to the parameters of the same check."""
    run = attempts(told)
    for change in (flipped(1, since=700), nothing):
        made: dict[int, list[ev.ReplicaCheck]] = {0: [], 1: []}
        for step, is_echo in ((510, True), (1000, False), (1010, True)):
            for kind, changed in ((1, nothing), (0, change)):
                for rank, checks in run.checks(step - run.base, is_echo, changed, kind).items():
                    made[rank] += checks
        run.report(made, 1010)
        run.resume(500)
    assert culprits(run.incident) == [1] and run.rerun["equal_steps"] == [510]


def test_a_run_continued_by_another_supervisor_remembers(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500)
    run.told = told.branch()
    run.train(nothing, 1010)
    assert culprits(run.incident) == [1]
    run.told.check()


def test_the_device_is_named_where_it_is_known(told: Told) -> None:
    run = attempts(told)
    devices: dict[int, ev.Device | None] = {rank: ev.Device(subject=f"gpu:{rank}", index=4 + rank) for rank in range(2)}
    told.tell(ev.NodeFindingsReported(node="node-a", findings=[], devices=devices))
    run.train(flipped(1, since=700), 1010).resume(500, nodes=("node-b",)).train(nothing, 1010)
    assert run.incident.summary.startswith("Rank 1 on node-a (GPU 5) computed otherwise than rank 0 ")
    assert run.incident.culprits[0].gpu == 5


@pytest.mark.parametrize(
    ("settings", "is_isolated"),
    [
        ({}, False),
        ({"responses": {"replica_divergence": "note"}}, False),
        ({"responses": {"replica_divergence": "isolate"}, "act": False}, False),
        ({"responses": {"replica_divergence": "isolate"}}, True),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_its_node_is_kept_out_where_the_user_asks_for_it(
    told: Told, settings: dict[str, Any], is_isolated: bool, ranks: int
) -> None:
    """By a later attempt of two, by the majority of three."""
    run = Attempts(told, ranks, **settings)
    run.train(flipped(1, since=700), 1010)
    if ranks == 2:
        assert "Isolate" not in kinds(run.actions), "of two nobody is known yet"
        if not settings.get("act", True):
            return  # nobody restarts it
        run.resume(500).train(nothing, 1010)
    isolated = [action for action in run.actions if isinstance(action, ac.Isolate)]
    assert [(one.node, one.cause) for one in isolated] == [("node-a", "replica_divergence")] * is_isolated
    assert run.incident.action == ("isolate_node" if is_isolated else "none")


def test_until_then_the_nodes_of_both_are_named_as_those_to_look_at(told: Told) -> None:
    run = attempts(told).resume(0, nodes=("node-a", "node-b")).train(flipped(1, since=700), 1010)
    assert run.incident.evidence["nodes"] == ["node-a", "node-b"]
    assert "`guardctl check --full` on node-a and node-b has devices compute" in run.incident.advice


# What is the script's -----------------------------------------------------------------------------------------------


def test_a_difference_that_comes_again_is_the_scripts_or_a_devices_that_is_wrong_each_time(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010).resume(500).train(flipped(1, since=700), 1010)
    first, second = run.diverged
    said = "so the script lets them differ, or a device computes this wrongly each time."
    assert first.summary.endswith(f"they do so in attempt 1 in the same way, {said}") and run.rerun["says"] == "script"
    assert second.summary.endswith(f"they did so in attempt 0 in the same way, {said}")
    assert second.evidence["rerun"] == {"attempt": 0, "says": "script"}
    assert culprits(first) == culprits(second) == []
    assert "if rank == 0" in first.advice and "if rank == 0" in second.advice


@pytest.mark.parametrize("nodes", [("node-a", "node-b"), ("node-b", "node-a")])
def test_one_that_has_stayed_may_be_wrong_each_time(told: Told, nodes: tuple[str, ...]) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010)
    run.resume(500, nodes=nodes).train(flipped(1, since=700), 1010)
    assert run.incident.summary.endswith("or a device computes this wrongly each time.")


def test_on_another_node_it_is_the_scripts(told: Told) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010)
    run.resume(500, nodes=("node-b",)).train(flipped(1, since=700), 1010)
    assert run.incident.summary.endswith("in the same way, on other devices: the script lets them differ.")
    assert culprits(run.incident) == []


# What is hardly the script's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("since", [700, 1005])
def test_what_has_got_into_gradients_is_nobodys_any_more(told: Told, since: int) -> None:
    """Both ranks go on from the mean of gradients, of which one was computed with a wrong parameter."""
    run = attempts(told).train(both(flipped(1, since=700), other(since=since)), 1010)
    lines = len(run.said)
    run.resume(500).train(nothing, 1010)
    if since > 1000:
        assert culprits(run.incident) == [1], "it happened in the last step before the first of the two checks"
        return
    assert run.rerun == {"attempt": 1, "equal_steps": [510], "says": "once"} and culprits(run.incident) == []
    assert run.incident.summary == (
        "The two replicas on ranks 0-1 differ in layer3.weight: they were equal at step 510, and are not since step "
        "1000; attempt 1, which held the same up to step 510, has trained these steps again without a difference, so "
        "unless it had other data since then it is hardly the script's doing: a device computed otherwise, or a bit "
        "flipped in memory. Whose cannot be told: ranks that share gradients soon change together."
    )
    assert "`guardctl check --full` on node-a has devices" in run.incident.advice
    assert "if rank == 0" not in run.incident.advice
    assert run.incident.confidence < 0.8 and any(text.startswith("incident 001:") for text in run.said[lines:])


# Where nothing is known ---------------------------------------------------------------------------------------------


def other_batches(run: Attempts) -> None:
    run.resume(500).train(other(since=505), 1010)


def differs_otherwise(run: Attempts) -> None:
    run.resume(500).train(flipped(0, since=700), 1010)


def differs_elsewhere(run: Attempts) -> None:
    run.resume(500).train(flipped(1, since=700, place=5), 1010)


def differs_before(run: Attempts) -> None:
    run.resume(400).train(flipped(0, since=505, until=600), 1010)


def differs_after_the_first(run: Attempts) -> None:
    """Where they differed first both agree with one, and no more when it was confirmed."""
    run.resume(500).train(flipped(0, since=1005), 1010)


def differs_in_the_second(run: Attempts) -> None:
    """As then, but later."""
    run.resume(500).train(flipped(1, since=1005), 1010)


SAID: dict[str, tuple[Callable[[Attempts], None], str]] = {
    "other batches": (other_batches, "unlike"),
    "differs otherwise": (differs_otherwise, "otherwise"),
    "differs elsewhere": (differs_elsewhere, "otherwise"),
    "differs before": (differs_before, "unlike"),
    "differs after the first": (differs_after_the_first, "otherwise"),
    "differs in the second alone": (differs_in_the_second, "otherwise"),
}


@pytest.mark.parametrize("name", SAID)
def test_an_attempt_that_is_not_the_same_blames_nobody(told: Told, name: str) -> None:
    play, says = SAID[name]
    run = attempts(told).train(flipped(1, since=700), 1010)
    lines = len(run.said)
    play(run)
    assert run.rerun["says"] == says and culprits(run.incident) == [] and run.incident.confidence < 0.8
    words = "with other numbers" if says == "unlike" else "they differ in another way"
    assert f"{words}, which says nothing of it" in run.incident.summary and NOBODY not in run.incident.summary
    assert not any(text.startswith("incident 001:") for text in run.said[lines:]), "it is written down, and no news"
    assert "guardrun says whether" in run.incident.advice
    play(run)
    assert run.rerun["attempt"] == 1, "said once"


def after_it(run: Attempts) -> None:
    run.resume(1010).train(nothing, 2010)


def in_between(run: Attempts) -> None:
    """A checkpoint that was saved after the bit flipped on rank 0, which saves: both hold what it had."""
    run.resume(900).train(nothing, 1010)


def ends_before(run: Attempts) -> None:
    run.resume(500).train(nothing, 1000).resume(500).train(nothing, 990)


def more_ranks(run: Attempts) -> None:
    run.resume(500, ranks=4).train(nothing, 1010)


def other_tensors(run: Attempts) -> None:
    run.resume(500)
    run.tensors = 9
    run.train(nothing, 1010)


def another_model(run: Attempts) -> None:
    run.resume(500)
    run.of = "b2"
    run.train(nothing, 1010)


def lacks_the_check(run: Attempts) -> None:
    run.resume(500).train(nothing, 1010, lacking=(1000,))


def lacks_the_second(run: Attempts) -> None:
    run.resume(500).train(nothing, 1500, lacking=(1010,))


def lacks_those_before(run: Attempts) -> None:
    run.resume(400).train(nothing, 1010, lacking=(500, 510))


def lacks_moments(run: Attempts) -> None:
    run.resume(500)
    run.has_moments = False
    run.train(nothing, 1010)


def checks_less_often(run: Attempts) -> None:
    run.resume(400)
    run.every = 300
    run.train(nothing, 1810)


def not_numbers(run: Attempts) -> None:
    """NaN has several patterns of bits."""
    run.resume(500).train(nothing, 990)
    told = run.told
    for last in (600, 604, 608):
        odd = [ev.OddStep(last - 3 + n, None, None, 9, 0.0, 0.0, n) for n in range(4)]
        for rank in range(2):
            metrics = ev.TrainingMetrics(first=last - 3, last=last, nonfinite=last - 596, odd=odd)
            report = ev.RankReport(global_rank=rank, progress=1200 + last, step=last, metrics=metrics)
            told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=[report]), told.now_s + 5.0)
    assert any(one.cause == "nan_loss" for one in told.incidents.values())
    for count, is_echo in ((500, False), (510, True)):
        run.check(count, is_echo, nothing, kind=1)
        run.check(count, is_echo, nothing)


SILENT = (
    after_it,
    in_between,
    ends_before,
    more_ranks,
    other_tensors,
    another_model,
    lacks_the_check,
    lacks_the_second,
    lacks_those_before,
    lacks_moments,
    checks_less_often,
    not_numbers,
)


@pytest.mark.parametrize("play", SILENT)
def test_where_too_little_is_the_same_nothing_is_said(told: Told, play: Callable[[Attempts], None]) -> None:
    run = attempts(told).train(flipped(1, since=700), 1010)
    play(run)
    assert run.is_open and len(run.diverged) == 1


def test_one_check_of_parameters_alone_is_too_little(told: Told) -> None:
    """No optimizer keeps anything: what it has loaded is known by two checks."""
    run = attempts(told, has_moments=False).train(flipped(1, since=700), 1010).resume(500).train(nothing, 1010)
    assert run.is_open


def test_moments_that_were_others_are_other_numbers(told: Told) -> None:
    """Of the two before it, one had another moment already, which had not got into its parameters yet."""
    run = attempts(told).train(nothing, 500)
    run.check(510, True, flipped(0, since=0), kind=1)
    run.check(510, True, nothing)
    for count, is_echo in ((1000, False), (1010, True)):
        run.check(count, is_echo, flipped(0, since=0), kind=1)
        run.check(count, is_echo, flipped(0, since=0))
    run.resume(500).train(nothing, 1010)
    assert run.rerun["says"] == "unlike" and culprits(run.incident) == []


def test_what_only_the_later_attempt_shows_is_an_incident_of_its_own(told: Told) -> None:
    run = attempts(told).train(nothing, 1010).resume(500).train(flipped(1, since=700), 1010)
    [incident] = run.diverged
    assert incident.attempt == 1 and run.is_open


@pytest.mark.parametrize("change", [wrote(0), all_of(0, since=61), flipped(0, since=0)])
def test_what_a_script_lets_differ_is_left_alone(told: Told, change: Change) -> None:
    """Averages in rank 0's place, `if rank == 0`, and what never was equal: remarks in each attempt."""
    run = attempts(told).train(change, 1010).resume(0).train(nothing, 1010)
    assert run.diverged == [] and run.told.state.detectors.numeric.replica_divergence.rerun.unsettled == []


def test_where_a_script_lets_some_differ_no_attempt_is_compared(told: Told) -> None:
    never_equal = flipped(0, 1, place=5, since=0)
    run = attempts(told).train(both(never_equal, flipped(1, since=700)), 1010)
    run.resume(500).train(never_equal, 1010)
    assert run.is_open


def test_what_a_majority_has_named_stays_so(told: Told) -> None:
    run = Attempts(told, 3).train(flipped(1, since=700), 1010)
    before = msgspec.structs.replace(run.incident, resumed_from=None, recovered_s=None)
    run.resume(500).train(flipped(2, since=700), 1010)
    after = msgspec.structs.replace(run.diverged[0], resumed_from=None, recovered_s=None)
    assert after == before and culprits(before) == [1]


def test_little_is_kept(told: Told) -> None:
    run = attempts(told)
    for _ in range(5):
        run.train(flipped(1, since=run.base + 700), run.base + 1010).resume(run.base + 1010)
    parts = told.state.detectors.numeric.replica_divergence
    assert len(run.diverged) == len(parts.rerun.unsettled) == 3
    assert all(len(one.before) <= 3 for one in (*parts.rerun.unsettled, *parts.sets.values()))
    assert len(msgspec.json.encode(parts.rerun)) < 20_000
