"""What one rank is doing, judged from two looks."""

from __future__ import annotations

import msgspec
import pytest

from guardrun.supervisor.engine.model.looks import PYSPY, Frame, GroupLook, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.observation.rank_activity import Judgement, RankActivity, judge
from tests.sim import activity as act
from tests.sim.activity import Activity, torchs, users, waiting
from tests.sim.training import VirtualRank, make_ranks

GAP_S = 8.0
WAITING = act.WAITING.stacks[0]
IDLE = act.HANG.stacks[0]


def look(at_s: float = 10.0, *, stack: tuple[Frame, ...] = IDLE, **fields: object) -> RankLook:
    """A look at rank 1, its process's fields and its own mixed."""
    own = {name: fields.pop(name) for name in list(fields) if name in ProcessLook.__struct_fields__}
    thread = ThreadLook(tid=7, is_main=True, cpu_s=float(fields.pop("main_cpu_s", 1.0)), frames=list(stack))  # type: ignore[arg-type]
    process = ProcessLook(**{"pid": 7, "state": "S", "threads": [thread] if stack else [], **own})  # type: ignore[arg-type]
    return RankLook(**{"global_rank": 1, "at_s": at_s, "process": process, "heart_s": at_s, **fields})  # type: ignore[arg-type]


def doing(first: RankLook, second: RankLook, *, has_ended: bool = False) -> RankActivity:
    return judge(first, second, has_ended=has_ended).doing


def as_seen(activity: Activity, at_s: float = 100.0) -> Judgement:
    """A virtual rank that does this, looked at twice."""
    rank: VirtualRank = make_ranks(1, 1, 7, at_s - 60)[0]
    rank.switch(activity, at_s - 50)
    looks = []
    for when_s in (at_s, at_s + GAP_S):
        rank.book(when_s)
        child = ProcessLook(pid=8, cpu_s=rank.child_cpu_s)
        looks.append(
            RankLook(
                global_rank=0,
                at_s=when_s,
                process=rank.process(when_s),
                children=[] if activity.child_cpu is None else [child],
                socket_bytes=int(rank.socket_bytes),
                heart_s=rank.heart_s,
                in_collective=activity.in_collective,
                in_data_since_s=rank.began_s if activity.is_waiting_for_data else 0.0,
                gc_since_s=rank.began_s if activity.is_collecting else 0.0,
            )
        )
    return judge(*looks)


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (act.HANG, RankActivity.IDLE),
        (act.SPIN, RankActivity.SPINNING),
        (act.STOPPED, RankActivity.STOPPED),
        (act.TRACED, RankActivity.TRACED),
        (act.GIL_HELD, RankActivity.GIL_HELD),
        (act.IO_BLOCKED, RankActivity.IO_BLOCKED),
        (act.DATA_DEAD, RankActivity.DATA),
        (act.COLLECTING, RankActivity.COLLECTING),
        (act.WAITING, RankActivity.WAITING),
        (act.WAITING_SPINNING, RankActivity.WAITING),
        (act.WAITING_IN_INIT, RankActivity.WAITING),
        (act.TRAINING, RankActivity.BUSY),
        (act.EVALUATING, RankActivity.BUSY),
        (act.EVALUATING_ELSEWHERE, RankActivity.BUSY),
        (act.EVALUATING_IN_THREADS, RankActivity.CHURNING),
        (act.SAVING, RankActivity.BUSY),
        (act.UPLOADING, RankActivity.BUSY),
        (act.COMPILING, RankActivity.BUSY),
        (act.PARSING, RankActivity.CHURNING),
        (act.LOADING_LIBRARY, RankActivity.CHURNING),
        (act.BACKWARD, RankActivity.CHURNING),
        (act.IMPORTING, RankActivity.BUSY),
    ],
    ids=lambda value: value.name if isinstance(value, Activity) else value.value,
)
def test_each_activity_is_judged_as_what_it_is(activity: Activity, expected: RankActivity) -> None:
    assert as_seen(activity).doing is expected


def test_looks_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="wrong order"):
        judge(look(10), look(10))
    with pytest.raises(ValueError, match="ranks 1 and 2"):
        judge(look(10), msgspec.structs.replace(look(18), global_rank=2))


@pytest.mark.parametrize("state", ["Z", "X", "?"])
def test_a_process_that_is_gone(state: str) -> None:
    assert doing(look(10), look(18, state=state)) is RankActivity.GONE


def test_a_process_that_has_only_just_been_stopped_is_not_proven_to_be() -> None:
    assert doing(look(10), look(18, state="T")) is not RankActivity.STOPPED


def test_a_process_that_was_let_run_in_between_is_not_stopped() -> None:
    assert doing(look(10, state="T", switches=5), look(18, state="T", switches=5)) is RankActivity.STOPPED
    assert doing(look(10, state="T", switches=5), look(18, state="T", switches=9)) is not RankActivity.STOPPED


def test_collectives_that_advance_are_progress_wherever_the_stack_is() -> None:
    first, second = look(10, stack=WAITING, collectives=5), look(18, stack=WAITING, collectives=6)
    assert doing(first, second) is RankActivity.BUSY
    assert doing(look(10, group_seq=5), look(18, group_seq=9)) is RankActivity.BUSY


def test_hooks_say_in_which_collective_it_waits_and_how_far_it_is() -> None:
    found = judge(
        look(10, in_collective="barrier", collectives=7, group_seq=40),
        look(18, in_collective="barrier", collectives=7, group_seq=40),
    )
    assert (found.doing, found.waits_in, found.order) == (RankActivity.WAITING, "barrier", 40)


def test_the_stack_names_the_collective_without_the_wrappers() -> None:
    found = judge(look(10, stack=waiting("all_gather")), look(18, stack=waiting("all_gather")))
    assert (found.waits_in, found.spot) == ("all_gather", "train (train.py:60)")


def test_a_rank_that_waits_while_bytes_move_is_marked() -> None:
    still = judge(look(10, stack=WAITING), look(18, stack=WAITING))
    saving = judge(look(10, stack=WAITING, io_bytes=0), look(18, stack=WAITING, io_bytes=10**9))
    assert (still.is_moving, saving.is_moving) == (False, True)
    assert saving.doing is RankActivity.WAITING


def test_without_hooks_waiting_must_be_quiet_to_be_believed() -> None:
    quiet = doing(look(10, stack=WAITING, heart_s=0.0), look(18, stack=WAITING, heart_s=0.0))
    computing = doing(
        look(10, stack=WAITING, heart_s=0.0, cpu_s=0.0, main_cpu_s=1.0),
        look(18, stack=WAITING, heart_s=0.0, cpu_s=7.0, main_cpu_s=8.0),
    )
    assert quiet is RankActivity.WAITING
    assert computing is not RankActivity.WAITING


def test_a_quiet_backward_pass_waits_and_a_hot_one_computes() -> None:
    stack = act.BACKWARD.stacks[0]
    assert doing(look(10, stack=stack), look(18, stack=stack)) is RankActivity.WAITING
    assert doing(look(10, stack=stack, cpu_s=0), look(18, stack=stack, cpu_s=8)) is RankActivity.CHURNING


def test_without_hooks_the_gil_is_held_where_a_sleeping_main_thread_keeps_it() -> None:
    holds = [ThreadLook(tid=7, is_main=True, owns_gil=True, frames=list(IDLE))]
    first, second = (look(at_s, heart_s=0.0, threads=holds) for at_s in (10.0, 13.0))
    assert doing(first, second) is RankActivity.GIL_HELD
    assert doing(first, look(13.0, heart_s=0.0)) is RankActivity.IDLE
    assert doing(first, look(13.0, heart_s=0.0, threads=holds, cpu_s=2.0)) is not RankActivity.GIL_HELD


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (act.FITTING, (RankActivity.SPINNING, True)),
        (act.SEARCHING, (RankActivity.GIL_HELD, True)),
        (act.SPIN, (RankActivity.SPINNING, False)),
        (act.GIL_HELD, (RankActivity.GIL_HELD, False)),
        (act.HANG, (RankActivity.IDLE, False)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_native_code_that_computes_is_told_from_a_loop_and_from_a_sleep(
    activity: Activity, expected: tuple[RankActivity, bool]
) -> None:
    found = as_seen(activity)
    assert (found.doing, found.is_native) == expected


@pytest.mark.parametrize(("states", "is_native"), [("Rt", True), ("tR", True), ("tt", False), ("RD", False)])
def test_a_look_that_met_our_own_py_spy_takes_no_native_code_for_a_loop(states: str, is_native: bool) -> None:
    """It stops a process for moments, and on a busy machine these are long."""
    runs = {"stack": act.FITTING.stacks[0], "source": PYSPY}
    before, after = states
    found = judge(
        look(10, cpu_s=5.0, state=before, **runs),  # type: ignore[arg-type]
        look(18, cpu_s=11.0, main_cpu_s=7.0, state=after, **runs),  # type: ignore[arg-type]
    )
    assert found.is_native == is_native


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ((2, 2), RankActivity.TRACED),
        ((1, 3), RankActivity.CHURNING),
        ((1, 2), RankActivity.CHURNING),
        ((2, 3), RankActivity.CHURNING),
    ],
    ids=["a debugger", "in two of them", "in the first look", "in the second"],
)
def test_a_pause_of_our_own_is_no_stopped_process(pauses: tuple[int, int], expected: RankActivity) -> None:
    """Two looks half a second apart can meet one pause: what is large takes seconds to read."""
    before, after = pauses
    first, second = look(18.0, state="t", pauses=before), look(18.5, state="t", pauses=after)
    assert doing(first, second) is expected
    by_signal = look(18.0, state="T", pauses=before), look(18.5, state="T", pauses=after)
    assert doing(*by_signal) is RankActivity.STOPPED


@pytest.mark.parametrize(
    ("stack", "starved", "asleep"),
    [
        (act.FITTING.stacks[0], RankActivity.SPINNING, RankActivity.IDLE),
        (act.BACKWARD.stacks[0], RankActivity.CHURNING, RankActivity.WAITING),
    ],
    ids=["its own", "a backward pass"],
)
def test_what_is_given_no_cpu_is_not_asleep(
    stack: tuple[Frame, ...], starved: RankActivity, asleep: RankActivity
) -> None:
    """On a node that others keep busy: runnable in both looks, and next to nothing used in between."""
    for state, expected in (("R", starved), ("S", asleep)):
        runs = {"stack": stack, "state": state, "source": PYSPY}
        found = judge(look(10, cpu_s=5.0, **runs), look(18, cpu_s=5.1, main_cpu_s=1.1, **runs))  # type: ignore[arg-type]
        assert (found.doing, found.is_starved) == (expected, state == "R")
        assert found.is_native == (expected is RankActivity.SPINNING)


@pytest.mark.parametrize(
    ("used_s", "kept_s", "expected"),
    [
        (0.64, 3.2, RankActivity.CHURNING),
        (0.64, 0.0, RankActivity.IDLE),
        (0.08, 5.0, RankActivity.IDLE),
        (0.0, 7.9, RankActivity.IDLE),
    ],
    ids=["works half of its time on a crowded node", "the same on a quiet one", "polls on a crowded one", "only woken"],
)
def test_who_is_kept_from_a_cpu_is_judged_by_what_it_would_use(
    used_s: float, kept_s: float, expected: RankActivity
) -> None:
    """Asleep in both looks, as a kernel's tuning with pauses is, or a loop that polls."""
    stack = users("main", 7, torchs("forward", "nn/modules/linear.py"))
    first = look(10, stack=stack, cpu_s=5.0, delay_s=2.0)
    second = look(18, stack=stack, cpu_s=5.0 + used_s, main_cpu_s=1.0 + used_s, delay_s=2.0 + kept_s)
    assert doing(first, second) is expected


def test_who_may_wait_for_a_device_is_not_said_to_compute() -> None:
    """`loss.item()` runs in native code at full speed until the device is done."""
    runs = {"stack": act.FITTING.stacks[0], "state": "R", "source": PYSPY}

    def is_native(**fields: object) -> bool:
        first = look(10, cpu_s=0.0, **runs, **fields)  # type: ignore[arg-type]
        return judge(first, look(18, cpu_s=8.0, main_cpu_s=9.0, **runs, **fields)).is_native  # type: ignore[arg-type]

    assert is_native()
    assert is_native(groups=[GroupLook(name="0", backend="gloo")])
    assert not is_native(groups=[GroupLook(name="0", backend="nccl")])
    assert not is_native(groups=[GroupLook(name="0", backend="cpu:gloo,cuda:nccl")])
    assert not is_native(gpu_busy=0.0)
    runs["source"] = "faulthandler"
    assert not is_native(), "who holds the GIL is not told there"


def test_who_keeps_the_gil_does_not_wait_for_a_device() -> None:
    """torch lets go of it for that; a regular expression over a corpus does not."""
    on_nccl = {"state": "R", "heart_s": 9.0, "groups": [GroupLook(name="0", backend="nccl")]}
    for state, is_native in (("R", True), ("S", False)):
        on_nccl["state"] = state
        found = judge(look(18, cpu_s=0.0, **on_nccl), look(26, cpu_s=8.0, **on_nccl))  # type: ignore[arg-type]
        assert (found.doing, found.is_native) == (RankActivity.GIL_HELD, is_native)


def test_a_stale_heart_alone_is_no_held_gil_where_bytes_move() -> None:
    held = look(18, heart_s=9.0), look(26, heart_s=9.0)
    assert doing(*held) is RankActivity.GIL_HELD
    reading = look(18, heart_s=9.0, io_bytes=0), look(26, heart_s=9.0, io_bytes=10**9)
    assert doing(*reading) is RankActivity.BUSY


def test_a_thread_that_monitors_is_no_progress_and_one_that_reads_data_is() -> None:
    """psutil, wandb and GPU loggers read /proc again and again, little a call; SQLite reads pages of 4096 bytes."""
    still = look(10)
    assert doing(still, look(18, beside_bytes=40_000_000, beside_reads=20_000)) is RankActivity.IDLE
    assert doing(still, look(18, beside_bytes=40_960_000, beside_reads=10_000)) is RankActivity.BUSY
    assert doing(still, look(18, io_bytes=1_000_000, beside_reads=20_000)) is RankActivity.BUSY


def test_what_a_thread_on_a_timer_reads_is_a_monitors() -> None:
    """/proc/stat of a node with hundreds of CPUs comes in one piece, of tens of KiB."""

    def beside(at_s: float, size: int, reads: int, *, is_timed: bool, loaded: int = 0) -> RankLook:
        main = ThreadLook(tid=7, is_main=True, cpu_s=1.0, frames=list(IDLE))
        monitor = ThreadLook(tid=8, is_timed=is_timed, read_bytes=1000 + size, reads=10 + reads)
        counts = {"beside_bytes": 1000 + size + loaded, "beside_reads": 10 + reads + loaded // 65536}
        return look(at_s, threads=[main, monitor], **counts)

    polls = beside(10, 0, 0, is_timed=True), beside(18, 400_000, 16, is_timed=True)
    assert doing(*polls) is RankActivity.IDLE
    assert doing(polls[0], beside(18, 400_000, 16, is_timed=False)) is RankActivity.IDLE, (
        "caught in the middle of a turn"
    )
    assert doing(beside(10, 0, 0, is_timed=False), beside(18, 400_000, 16, is_timed=False)) is RankActivity.BUSY
    assert doing(polls[0], beside(18, 4_000_000, 160, is_timed=True)) is RankActivity.BUSY, "too much for a monitor"
    assert doing(polls[0], beside(18, 400_000, 16, is_timed=True, loaded=1 << 20)) is RankActivity.BUSY, (
        "another thread loads"
    )
    scans = beside(10, 0, 0, is_timed=True), beside(18, 900_000, 2000, is_timed=True, loaded=1 << 20)
    assert doing(*scans) is RankActivity.BUSY, "its many reads excuse nobody else's"


def test_unreadable_counters_are_no_evidence() -> None:
    assert doing(look(10, io_bytes=-1, socket_bytes=-1, faults=-1), look(18, io_bytes=-1)) is RankActivity.IDLE
    assert doing(look(10, socket_bytes=-1), look(18, socket_bytes=10**9)) is RankActivity.IDLE


def test_a_device_that_works() -> None:
    assert doing(look(10, gpu_busy=0.9), look(18, gpu_busy=0.8)) is RankActivity.BUSY
    assert doing(look(10, gpu_busy=0.9), look(18, gpu_busy=0.1)) is RankActivity.IDLE


@pytest.mark.parametrize("fields", [{"cpu_s": 5.0}, {"io_bytes": 10**7}])
def test_a_child_that_works(fields: dict[str, float]) -> None:
    child = ProcessLook(pid=8, command="python eval.py")
    assert doing(look(10, children=[child]), look(18, children=[child])) is RankActivity.IDLE
    worked = msgspec.structs.replace(child, **fields)
    found = judge(look(10, children=[child]), look(18, children=[worked]))
    assert found.doing is RankActivity.BUSY and "python eval.py" in found.reason


def test_a_rank_that_waits_for_processes_wakes_up_with_them() -> None:
    """A spawned training of its own, in rounds: little CPU, few bytes, and it goes on."""
    joins = (
        Frame("join", "/v/site-packages/torch/multiprocessing/spawn.py", 1),
        Frame("train", "/home/me/train.py", 9),
    )
    sleeps = (Frame("fetch", "/home/me/train.py", 9),)
    first = ProcessLook(pid=8, command="python", switches=100)
    for stack, switches, expected in ((joins, 104, True), (joins, 100, False), (sleeps, 104, False)):
        second = msgspec.structs.replace(first, switches=switches)
        found = judge(look(10, stack=stack, children=[first]), look(18, stack=stack, children=[second]))
        assert (found.doing, found.is_awake) == (RankActivity.IDLE, expected)


def test_children_that_come_and_go() -> None:
    child = ProcessLook(pid=8)
    assert doing(look(10), look(18, children=[child])) is RankActivity.BUSY
    assert doing(look(10, children=[child]), look(18)) is RankActivity.BUSY


def test_no_stack_and_no_cpu_is_unseen_and_with_cpu_it_may_be_getting_somewhere() -> None:
    assert doing(look(10, stack=()), look(18, stack=(), trouble="ptrace refused")) is RankActivity.UNSEEN
    assert doing(look(10, stack=(), cpu_s=0), look(18, stack=(), cpu_s=8)) is RankActivity.CHURNING


def test_data_waited_for_without_anybody_preparing_it() -> None:
    stack = users("train", 60, torchs("_get_data", "utils/data/dataloader.py"))
    assert doing(look(10, stack=stack), look(18, stack=stack)) is RankActivity.DATA
    assert doing(look(10, in_data_since_s=5), look(18, in_data_since_s=5)) is RankActivity.DATA
    assert doing(look(10, in_data_since_s=5), look(18, in_data_since_s=12)) is RankActivity.IDLE


def test_a_quiet_rank_in_another_place_has_moved() -> None:
    assert doing(look(10, stack=users("a", 1)), look(18, stack=users("b", 2))) is RankActivity.BUSY


def test_a_polling_loop_in_one_function_is_idle() -> None:
    sleeping, checking = users("poll", 5), users("poll", 6, Frame("exists", "/usr/lib/python3.11/genericpath.py", 19))
    assert doing(look(10, stack=sleeping), look(18, stack=checking)) is RankActivity.IDLE


@pytest.mark.parametrize(
    "activity", [act.HANG, act.WAITING, act.GIL_HELD, act.SPIN, act.DATA_DEAD], ids=lambda a: a.name
)
def test_a_script_that_has_ended_lingers(activity: Activity) -> None:
    stack = activity.stacks[0]
    assert doing(look(10, stack=stack), look(18, stack=stack), has_ended=True) is RankActivity.LEAVING
    assert doing(look(10, io_bytes=0), look(18, io_bytes=10**9), has_ended=True) is RankActivity.BUSY


def test_somebody_who_debugs_is_left_in_peace() -> None:
    prompt = users(
        "train",
        61,
        Frame("cmdloop", "/usr/lib/python3.11/cmd.py", 126),
        Frame("interaction", "/usr/lib/python3.11/pdb.py", 3),
    )
    assert doing(look(10, stack=prompt), look(18, stack=prompt)) is RankActivity.BUSY
    under = (*IDLE, Frame("run", "/x/site-packages/debugpy/server/cli.py", 9))
    assert doing(look(10, stack=under), look(18, stack=under)) is RankActivity.IDLE, (
        "started under one, and not at its prompt"
    )


def test_a_program_that_shows_nothing_is_left_alone_while_its_threads_run() -> None:
    first = look(10, stack=(), heart_s=0.0, switches=0)
    assert doing(first, look(18, stack=(), heart_s=0.0, switches=400)) is RankActivity.BUSY
    assert doing(first, look(18, stack=(), heart_s=0.0, switches=8)) is RankActivity.UNSEEN


def test_a_loop_that_asks_the_standard_library_spins() -> None:
    """`while not os.environ.get("READY"): pass` is seen in four functions, three of them not the user's."""
    library = "/usr/lib/python3.11/"
    mine = [Frame("wait_for_flag", "/home/user/train.py", 80), Frame("<module>", "/home/user/train.py", 99)]
    get = [Frame("Mapping.get", f"{library}_collections_abc.py", 807), *mine]
    item = [Frame("_Environ.__getitem__", f"{library}os.py", 679), *get]
    encode = [Frame("encode", f"{library}os.py", 755), *item]
    stacks = [mine, get, item, encode]

    def seen(at_s: float) -> RankLook:
        thread = ThreadLook(tid=1, is_main=True, frames=encode, cpu_s=at_s)
        process = ProcessLook(pid=1, state="R", cpu_s=at_s, threads=[thread], variety=stacks)
        return RankLook(global_rank=1, at_s=at_s, process=process)

    assert judge(seen(10.0), seen(18.0)).doing is RankActivity.SPINNING


def test_a_loop_that_calls_a_package_may_be_an_evaluation() -> None:
    mine = [Frame("evaluate", "/home/user/train.py", 80)]
    linear = [Frame("linear", "/x/site-packages/torch/nn/functional.py", 1), *mine]

    def seen(at_s: float) -> RankLook:
        thread = ThreadLook(tid=1, is_main=True, frames=linear, cpu_s=at_s)
        process = ProcessLook(pid=1, state="R", cpu_s=at_s, threads=[thread], variety=[mine, linear])
        return RankLook(global_rank=1, at_s=at_s, process=process)

    assert judge(seen(10.0), seen(18.0)).doing is RankActivity.CHURNING
