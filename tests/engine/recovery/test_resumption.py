"""A restart that does not take up what is there is ended before it writes over it; and what only looks like one."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.resumption import API_STEPS, RESUMED, SETTLE_S
from tests.engine.conftest import Told, kinds

STEP_10 = ev.Checkpoint(path="/data/out/ckpt_10.pt", step=10, format="file", written_wall_s=50.0)
FAMILY = "out/ckpt_#.pt"


def restarted(told: Told, *, chosen: dict[str, object] | None = None, **settings: object) -> Told:
    """The first attempt crashed at step 15 beside a checkpoint; the second one runs."""
    told.running(**settings)
    told.step(15, 20.0)
    assert "ChooseCheckpoint" in kinds(told.crashed())
    told.chosen(STEP_10, siblings=[STEP_10.path], family=FAMILY, **(chosen or {}))
    told.started(1, at_s=told.now_s + 2)
    return told


def report(told: Told, step: int, **more: object) -> list[ac.Action]:
    one = ev.RankReport(global_rank=0, progress=step + 1, progress_s=told.now_s, step=step, **more)  # type: ignore[arg-type]
    return told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=[one]), told.now_s + 1)


def trains_on(told: Told, first: int = 1, steps: int = 20, **more: object) -> list[ac.Action]:
    """A step a second; what follows from them."""
    actions: list[ac.Action] = []
    for step in range(first, first + steps):
        actions += report(told, step, **more)
    return actions


def said(actions: list[ac.Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, ac.Say))


def ended(told: Told) -> list[ac.Action]:
    """The attempt is being stopped: nothing is alive now."""
    assert told.phase is Phase.STOPPING
    return told.stopped(told.now_s + 1)


def test_training_on_without_having_opened_it_ends_the_run(told: Told) -> None:
    restarted(told)
    assert "StopAttempt" not in kinds(trains_on(told, steps=11))
    [stop] = [one for one in report(told, 12) if isinstance(one, ac.StopAttempt)]
    assert stop.grace_s == 0, "a handler of SIGTERM's might save"
    actions = ended(told)
    [finish] = [one for one in actions if isinstance(one, ac.FinishRun)]
    assert (finish.summary.outcome, finish.exit_code) == ("gave_up", 139)
    assert "began anew beside /data/out/ckpt_10.pt (step 10)" in finish.summary.reason
    assert "--guard-run-id=run" in said(actions) and "resume_args" in said(actions)
    assert [one["outcome"] for one in finish.summary.attempts] == ["segfault", "not resumed"]
    incident = told.incidents["001"]
    assert (incident.action, "began anew" in incident.evidence["not_resumed"]) == ("give_up", True)


def test_one_step_is_none(told: Told) -> None:
    """torch.distributed.checkpoint makes an optimizer's state by a step, and loads then."""
    restarted(told)
    report(told, 1)
    told.now_s += 60
    report(told, 1, phase="load")
    told.tell(ev.CheckpointLoaded(attempt=1, global_rank=0, path=STEP_10.path, step=10))
    assert "StopAttempt" not in kinds(trains_on(told, 11))


def test_a_warm_up_before_it_loads_is_no_training_and_does_not_last(told: Told) -> None:
    restarted(told)
    trains_on(told, steps=11)
    other = told.branch()
    told.now_s += 40
    told.tell(ev.CheckpointOpened(attempt=1, path=STEP_10.path))
    assert "StopAttempt" not in kinds(trains_on(told, 11))
    other.now_s += 70
    assert "StopAttempt" in kinds(other.tell(ev.Ticked(), other.now_s))
    other.check()


@pytest.mark.parametrize("told_of_it", ["opened", "loaded", "its own word"])
def test_whoever_has_opened_one_trains_on_and_is_known_from_then_on(told: Told, told_of_it: str) -> None:
    restarted(told)
    milestones = 0
    if told_of_it == "opened":
        told.tell(ev.CheckpointOpened(attempt=1, path="/data/out/ckpt_5.pt"))
    elif told_of_it == "loaded":
        told.tell(ev.CheckpointLoaded(attempt=1, global_rank=1, path=STEP_10.path, step=10))
    else:
        milestones = RESUMED
    assert "StopAttempt" not in kinds(trains_on(told, milestones=milestones))
    assert told.state.resumes == "opens"


def test_an_open_that_is_told_late_counts(told: Told) -> None:
    restarted(told)
    trains_on(told, steps=3)
    told.tell(ev.CheckpointOpened(attempt=1, path=STEP_10.path))
    told.now_s += 2 * SETTLE_S
    assert "StopAttempt" not in kinds(trains_on(told, 4))


@pytest.mark.parametrize("is_base", [False, True], ids=["a copy that was fetched", "what it began with before, too"])
def test_a_checkpoint_from_elsewhere_is_one_unless_it_is_what_training_begins_with(told: Told, is_base: bool) -> None:
    told.running()
    if is_base:
        told.tell(ev.CheckpointOpened(attempt=0, path="/elsewhere/base.pt"))
    told.step(15, 20.0)
    told.crashed()
    told.chosen(STEP_10, siblings=[STEP_10.path])
    told.started(1, at_s=told.now_s + 2)
    told.tell(ev.CheckpointOpened(attempt=1, path="/elsewhere/base.pt"))
    assert ("StopAttempt" in kinds(trains_on(told))) == is_base
    assert told.state.resumes == ("ignores" if is_base else "opens")


def test_one_of_an_attempt_before_does_not(told: Told) -> None:
    restarted(told)
    told.tell(ev.CheckpointOpened(attempt=0, path=STEP_10.path))
    assert "StopAttempt" in kinds(trains_on(told))


def test_a_save_that_is_held_ends_it_before_its_first_step(told: Told) -> None:
    restarted(told)
    report(told, 0, is_save_held=True)
    assert "StopAttempt" in kinds(told.tick())
    ended(told)


def test_steps_of_a_script_that_is_told_count_from_the_checkpoints(told: Told) -> None:
    """By resume_args, the board's base is the checkpoint's step from the start."""
    restarted(told, resumes=True)
    assert "StopAttempt" not in kinds(trains_on(told, 11, steps=10))
    assert "StopAttempt" in kinds(trains_on(told, 21))
    ended(told)


def test_a_step_that_the_script_numbers_itself_says_where_it_is(told: Told) -> None:
    restarted(told)
    assert "StopAttempt" not in kinds(trains_on(told, 11, milestones=API_STEPS))


def test_and_that_it_began_anew(told: Told) -> None:
    restarted(told)
    assert "StopAttempt" in kinds(trains_on(told, 2, milestones=API_STEPS))


@pytest.mark.parametrize(
    "why",
    ["nobody sees what is opened", "held", "observe only", "torchrun's agent", "max-restarts"],
)
def test_in_doubt_it_is_told_and_nothing_done(told: Told, why: str) -> None:
    settings: dict[str, object] = {
        "torchrun's agent": {"is_torchrun_agent": True},
        "max-restarts": {"restarts_anyway": True},
    }.get(why, {})
    if why == "torchrun's agent":
        told.running(**settings)
        told.tell(
            ev.AttemptStarted(
                attempt=1,
                ranks=[ev.Rank(global_rank=n, local_rank=n, pid=200 + n, node="node-a") for n in range(2)],
                resumed_from=STEP_10,
            ),
            5.0,
        )
    else:
        restarted(told, **settings)
    if why == "nobody sees what is opened":
        told.tell(ev.CheckpointOpened(attempt=1, trouble="No space left on device"))
    elif why == "held":
        told.tell(ev.HoldSet(is_held=True, who="me"))
    elif why == "observe only":
        told.begin_with(settings=ev.Settings(act=False))
    actions = trains_on(told, steps=20)
    assert "StopAttempt" not in kinds(actions)
    assert said(actions).count("as far as can be seen, the script began anew") == 1


def test_a_first_attempt_that_somebody_else_began_is_left_alone(told: Told) -> None:
    """A requeue, or the same command again: torchrun would train from the beginning, too."""
    told.running()
    told.step(15, 20.0)
    told.tell(ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=0.0, session=1))
    told.chosen(STEP_10, siblings=[STEP_10.path])
    told.started(1, at_s=told.now_s + 2)
    actions = trains_on(told, steps=20)
    assert "StopAttempt" not in kinds(actions)
    assert "as far as can be seen" in said(actions)


# Before it is begun -------------------------------------------------------------------------------------------------


def test_nothing_to_lose_is_no_reason_to_stop(told: Told) -> None:
    told.running()
    told.crashed()
    assert kinds(told.chosen(None))[-1] == "StartAttempt"
    told.started(1, at_s=told.now_s + 2)
    assert "StopAttempt" not in kinds(trains_on(told, steps=30))


def test_a_script_that_ignored_one_is_restarted_no_more(told: Told) -> None:
    told.begin_with(resumes="ignores")
    told.running()
    told.crashed()
    actions = told.chosen(STEP_10, siblings=[STEP_10.path], kept="/runs/run/kept/ckpt_10.pt", resume_way="--again")
    assert "StartAttempt" not in kinds(actions) and "FinishRun" in kinds(actions)
    assert "A copy of the checkpoint is in /runs/run/kept/ckpt_10.pt" in said(actions) and "(--again)" in said(actions)


@pytest.mark.parametrize("how", ["told", "itself"])
def test_unless_it_is_told_how_now(told: Told, how: str) -> None:
    told.begin_with(resumes="ignores")
    told.running(resumes=how == "told")
    told.crashed()
    actions = told.chosen(STEP_10, siblings=[STEP_10.path], resumes_itself=how == "itself")
    assert "StartAttempt" in kinds(actions)


def test_a_program_that_nobody_can_look_into_is_not_begun_anew_beside_a_checkpoint(told: Told) -> None:
    told.running()
    told.tell(ev.HooksMissing(attempt=0, global_ranks=[0, 1], reason="no Python"))
    told.crashed()
    actions = told.chosen(STEP_10, siblings=[STEP_10.path])
    [finish] = [one for one in actions if isinstance(one, ac.FinishRun)]
    assert "nobody can see whether this program resumes" in finish.summary.reason


# Lower steps --------------------------------------------------------------------------------------------------------


def saves(told: Told, named: int, counted: int, family: str = FAMILY) -> list[ac.Action]:
    path = f"/data/out/ckpt_{named}.pt"
    return told.tell(
        ev.CheckpointSaved(
            attempt=told.attempt,
            global_rank=0,
            path=path,
            step=counted,
            duration_s=0.1,
            family=family,
            named_step=named,
        )
    )


@pytest.mark.parametrize("counted", [5, 15], ids=["from the beginning", "from the checkpoint's step"])
def test_a_save_of_a_step_before_it_ends_the_run(told: Told, counted: int) -> None:
    """It opened the checkpoint, its weights perhaps, and counts anew all the same."""
    restarted(told)
    told.tell(ev.CheckpointOpened(attempt=1, path=STEP_10.path))
    trains_on(told, 11, steps=3)
    assert "StopAttempt" in kinds(saves(told, 5, counted))
    [finish] = [one for one in ended(told) if isinstance(one, ac.FinishRun)]
    assert "saved /data/out/ckpt_5.pt after /data/out/ckpt_10.pt (step 10) was there" in finish.summary.reason


@pytest.mark.parametrize(
    ("named", "counted", "family"),
    [(20, 20, FAMILY), (3, 11, FAMILY), (0, 12, FAMILY), (5, 5, "out/best_#.pt"), (5, 5, "")],
    ids=["later", "slots in turn", "the first slot again", "another kind of file", "no step in its name"],
)
def test_other_saves_do_not(told: Told, named: int, counted: int, family: str) -> None:
    restarted(told)
    told.tell(ev.CheckpointOpened(attempt=1, path=STEP_10.path))
    assert not kinds(saves(told, named, counted, family))
    assert told.phase is Phase.RUNNING


def test_a_continued_run_of_which_nothing_is_recorded_looks_for_a_checkpoint_first() -> None:
    told = Told()
    opened = ev.RunOpened(
        run_id="run", settings=ev.Settings(), node="node-a", command=[], world_size=2, wall_s=0.0, session=2
    )
    actions = told.tell(opened, 0.1)
    assert [type(action) for action in actions] == [ac.Say, ac.ChooseCheckpoint] and told.state.session == 2
    newest = ev.Checkpoint(path="/out/ckpt_10", step=10)
    [*_, start] = told.tell(ev.CheckpointChosen(choice=told.state.choice, checkpoint=newest))
    assert isinstance(start, ac.StartAttempt) and start.checkpoint == newest


def test_a_living_run_of_which_nothing_is_recorded_is_gone_on_with_at_its_attempt() -> None:
    told = Told()
    opened = ev.RunOpened(
        run_id="run", settings=ev.Settings(), node="node-a", command=[], world_size=2, wall_s=0.0, attempt=3
    )
    [start] = told.tell(opened, 0.1)
    assert isinstance(start, ac.StartAttempt) and start.attempt == 3
    ranks = [ev.Rank(global_rank=rank, local_rank=rank, node="node-a", pid=100 + rank) for rank in range(2)]
    told.tell(ev.AttemptStarted(attempt=3, ranks=ranks, resumed_from=None))
    assert told.phase is Phase.RUNNING


def test_a_new_run_starts_at_once() -> None:
    assert [type(action) for action in Told().opened()] == [ac.StartAttempt]
