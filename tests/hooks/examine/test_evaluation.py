"""A person's code runs between two steps, or beside training; whatever it does, training goes on as it would have."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from guardrun.hooks.data import batch_trail
from guardrun.hooks.examine import confined_code, evaluation
from guardrun.hooks.examine.confined_code import FILE, Confined, Outlet, Program
from guardrun.hooks.examine.evaluation import Evaluation
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import EVAL, MAX_CODE_BYTES, max_bytes
from tests.support.waiting import wait_until

SECOND = 1_000_000_000


class Training:
    """A loop whose function has names of its own; one step at a time, in this thread."""

    def __init__(self, rank: Rank) -> None:
        rank.settings["eval"] = True
        self.rank = rank
        rank.steps = self.counter = OptimizerSteps(rank)
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.25, weight_decay=0.5)
        self.optimizer.register_step_post_hook(self.counter.on_step)
        self.kept: dict[str, Any] = {}

    def step(self, before: Callable[[dict[str, Any]], object] | None = None) -> dict[str, Any]:
        """Answers what locals() had been."""
        model, optimizer, batch = self.model, self.optimizer, torch.ones(1, 2)
        names = locals() if before is not None else {}
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        return names

    def ask(self, code: str, *, timeout_s: float = 60.0, wait_s: float = 60.0, **more: Any) -> Evaluation:
        return Evaluation(self.rank, {"code": code, "timeout_s": timeout_s, "wait_s": wait_s, **more})

    def eval(self, code: str, **more: Any) -> dict[str, Any]:
        """At the end of a step."""
        one = self.ask(code, **more)
        assert one.on_beat(0) is None
        self.step()
        told = one.on_beat(0)
        one.end()
        assert told is not None and len(json.dumps(told)) < max_bytes(EVAL)
        return told


@pytest.fixture
def training(rank: Rank) -> Iterator[Training]:
    one = Training(rank)
    one.step()
    yield one
    assert one.counter._and_then.__name__ == "on_step"
    assert not isinstance(sys.stdout, Outlet)


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """What is raised in a collection's callbacks (those of hypothesis, here), or in a finalizer, is told on stderr."""
    gc.disable()
    yield
    gc.enable()


def test_names_results_and_what_is_printed(training: Training) -> None:
    told = training.eval("print('lr', optimizer.param_groups[0]['lr'])\n[type(model).__name__, loss.shape, batch]")
    assert (told["outcome"], told["where"], told["error"]) == ("done", "step", "")
    assert told["result"] == "['Linear', torch.Size([]), tensor([[1., 1.]])]"
    assert told["output"] == "lr 0.25\n" and told["step"] == 2 and told["changes"] == []
    assert told["frame"].startswith("step (test_evaluation.py:")
    told = training.eval("def double(x):\n    return 2 * x\nmodel = None\n[double(SECOND) for _ in range(2)]")
    assert told["result"] == "[2000000000, 2000000000]" and told["assigned"] == ["model"]
    assert training.eval("sorted(set(locals()) & {'loss', 'self', 'SECOND'})")["result"] == "['SECOND', 'loss', 'self']"
    assert training.eval("")["result"] == training.eval("None")["result"] == ""


LIBRARY = """
class Trainer:
    def train(self, step):
        model, train_dataloader, secret = "theirs", [1], 2
        step()
"""


def test_names_of_a_library_that_runs_the_loop(training: Training) -> None:
    names: dict[str, Any] = {}
    exec(compile(LIBRARY, "/lib/site-packages/library/trainer.py", "exec"), names)
    trainer = names["Trainer"]()
    trainer.lr_scheduler, trainer.other = "cosine", 3
    one = training.ask("trainer.other, lr_scheduler, train_dataloader, type(model).__name__, optimizers == [optimizer]")
    one.on_beat(0)
    trainer.train(training.step)
    told = one.on_beat(0)
    one.end()
    assert told is not None and told["result"] == "(3, 'cosine', [1], 'Linear', True)", told["error"]
    one = training.ask("secret")
    one.on_beat(0)
    trainer.train(training.step)
    told = one.on_beat(0)
    one.end()
    assert told is not None and "name 'secret' is not defined" in told["error"]


def test_what_is_changed_is_told(training: Training) -> None:
    code = "for group in optimizer.param_groups:\n    group['lr'] *= 0.1\n    group['weight_decay'] = 0.0"
    told = training.eval(code)
    assert told["changes"] == ["learning rate × 0.1 (0.25 → 0.025) in AdamW", "weight decay 0.5 → 0 in AdamW"]
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert training.eval("with torch.no_grad(): model.weight.mul_(2)")["changes"] == []


def test_what_belongs_to_training_is_as_it_was(training: Training) -> None:
    """Random numbers, gradients, streams, and what a script keeps of its variables."""
    states = random.getstate(), torch.get_rng_state()
    told = training.eval(
        "import random\n(torch.is_grad_enabled(), random.random(), torch.rand(3), model.weight.mul_(1))"
    )
    assert told["outcome"] == "done" and told["result"].startswith("(False, ")
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert torch.is_grad_enabled()
    streams = sys.stdout, sys.stderr
    training.eval("import sys\nsys.stderr.write('x')\nraise KeyError(sys.stdout)")
    assert (sys.stdout, sys.stderr) == streams
    one = training.ask("loss")
    one.on_beat(0)
    names = training.step(before=lambda names: None)
    assert sorted(names) == ["batch", "before", "model", "optimizer", "self"], "nothing was added to it"
    told_ = one.on_beat(0)
    one.end()
    assert told_ is not None and told_["result"].startswith("tensor(")


def test_batches_that_it_takes_are_not_trainings(training: Training) -> None:
    """Which batch of a pass is left out after a restart is counted by iterators that training has made."""

    class Iterating:
        def __init__(self, loader: object) -> None:
            self.loader = loader

    batch_trail.install(Iterating, training.rank)
    training.kept = {"kind": Iterating, "loader": torch.utils.data.DataLoader([1, 2])}
    code = "one = self.kept['kind'](self.kept['loader'])\nsorted(vars(one))"
    assert training.eval(code)["result"] == "['loader']"
    assert batch_trail.STREAM in vars(Iterating(training.kept["loader"]))


def test_nothing_of_a_step_lives_longer_for_it(training: Training) -> None:
    count = sys.getrefcount(training.model), sys.getrefcount(training.optimizer)
    training.eval("[model, optimizer]")
    training.eval("model.nothing")
    assert (sys.getrefcount(training.model), sys.getrefcount(training.optimizer)) == count


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("exit(3)", "exit() ends this code, and not the rank"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E: <exception str() failed>"),
        ("raise ValueError('y' * 10**7)", "yyyy"),
        ("nothing_of_that_name", "NameError: name 'nothing_of_that_name' is not defined"),
    ],
)
def test_what_it_raises_is_told(training: Training, code: str, said: str) -> None:
    told = training.eval(code)
    assert told["outcome"] == "raised" and said in told["error"] and len(told["error"]) < 9000
    assert "confined_code.py" not in told["error"]
    assert training.rank.words[Field.STEP] == 2


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        ("torch.zeros(3000, 3000)", "tensor([[0., 0., 0.,  ..., 0., 0., 0.],"),
        ("'x' * 10**7", "'xxx"),
        ("list(range(10**6))", "[0, 1, 2, "),
        ("a = []\na.append(a)\na", "[[[[[["),
        ("{n: 'v' * 9000 for n in range(999)}", "{0: 'vvv"),
        ("10**5000", "<int, whose repr() raises ValueError>"),
        ("class R:\n  def __repr__(self): return 7\nR()", "<R instance at"),
        ("class R:\n  def __repr__(self): return 'z' * 10**7\nR()", "zzz"),
    ],
)
def test_what_it_answers_is_bounded(training: Training, code: str, begins: str) -> None:
    told = training.eval(code)
    assert told["result"].startswith(begins) and len(told["result"]) <= 16_000


def test_what_it_prints_is_bounded_and_other_threads_print_as_ever(training: Training, capsys: Any) -> None:
    code = (
        "import threading\nfor _ in range(50): print('m' * 1000)\n"
        "thread = threading.Thread(target=print, args=['mine'])\nthread.start(); thread.join()"
    )
    told = training.eval(code)
    assert (len(told["output"]), told["output_left_out"]) == (32_000, 50 * 1001 - 32_000)
    assert capsys.readouterr().out == "mine\n"
    outcome = Confined(Program("")).outcome
    Outlet(sys.stdout, outcome).writelines(["a", "b"])
    assert outcome.output == ["a", "b"]


class Beats:
    """The hooks' thread, from some moment on: its clock goes faster.

    after: at once, or when this is set.
    """

    def __init__(self, one: Evaluation, rate: float = 2.0, after: threading.Event | None = None) -> None:
        self.told: dict[str, Any] | None = None
        self._one, self._rate, self._after = one, rate, after
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        if self._after is not None:
            self._after.wait(60)
        began = time.monotonic_ns()
        while self.told is None and not self._over.wait(0.01):
            self.told = self._one.on_beat(began + int(self._rate * (time.monotonic_ns() - began)))

    def end(self) -> dict[str, Any] | None:
        """Once it is over, or can't be."""
        self._thread.join(30)
        self._over.set()
        self._one.end()
        return self.told


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "print('begun')\nself.kept['begun'].set()\n"
        "while True:\n  try:\n    for _ in range(10**9): pass\n  except BaseException: pass",
        "import time\nwhile True:\n  try:\n    try: time.sleep(0.01)\n    except: pass\n  except: continue",
        "class R:\n  def __repr__(self):\n    while True: pass\nR()",
    ],
)
def test_what_does_not_end_is_interrupted(training: Training, code: str) -> None:
    training.kept["begun"] = begun = threading.Event()
    one = training.ask(code, timeout_s=0.1)
    one.on_beat(0)
    beats = Beats(one, after=begun if "begun" in code else None)  # it is to get so far
    training.step()
    done = [training.step() for _ in range(20)]
    told = beats.end()
    assert told is not None and told["outcome"] == "interrupted" and len(done) == 20
    assert told["output"] == ("begun\n" if "begun" in code else "")
    assert training.rank.words[Field.STEP] == 22


def test_no_collection_goes_on_once_one_that_an_interruption_has_cut_short_is_over(training: Training) -> None:
    """Where it was raised in the callback at its end, the board would have it go on until the next one."""
    one = training.ask(f"self.rank.words[{int(Field.GC_SINCE_NS)}] = 7\nwhile True: pass", timeout_s=0.1)
    one.on_beat(0)
    beats = Beats(one)
    training.step()
    told = beats.end()
    assert told is not None and told["outcome"] == "interrupted"
    assert training.rank.words[Field.GC_SINCE_NS] == 0


def test_an_interruption_never_reaches_what_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is raised before each single instruction from the code's beginning to where nothing can be sent any more."""
    monkeypatch.setattr(confined_code, "LAYERS", 3)
    program = Program("for _ in range(3): pass\n7")
    reached: set[str] = set()
    kinds = []
    for turn in range(2000):
        confined = Confined(program)
        left = turn

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith((confined_code.__name__.rpartition(".")[2] + ".py", FILE)):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_name not in ("interrupt", "__init__"):
                left -= 1
                if left == -1:
                    reached.add(frame.f_code.co_name)
                    confined.interrupt()  # noqa: B023  # while this one is run
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 looks for this one when it begins to trace
        sys.settrace(trace)
        try:
            confined.run({})
        finally:
            sys.settrace(before)
        for _ in range(100):
            pass  # where one that is left over would be raised
        kinds.append(confined.outcome.kind)
        if left >= 0:
            break
    assert kinds.count("interrupted") > 50 and kinds[-1] == "done"
    assert {"<module>", "_layer", "_work", "_settle", "run"} <= reached


def test_interruptions_by_another_thread() -> None:
    program = Program("for _ in range(300): sleep(0)")
    stopped = threading.Event()
    confined = Confined(program)

    def interrupt() -> None:
        while not stopped.is_set():
            confined.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    kinds = []
    try:
        for _ in range(100):
            confined = Confined(program)
            confined.run({"sleep": time.sleep})
            kinds.append(confined.outcome.kind)
    finally:
        stopped.set()
        thread.join()
    assert len(kinds) == 100 and kinds.count("interrupted") > 5


def test_it_is_not_interrupted_where_locks_are_taken_if_that_passes() -> None:
    names: dict[str, Any] = {"__name__": "threading", "begun": threading.Event()}
    exec("def spin():\n  begun.set()\n  while True: pass", names)
    confined = Confined(Program("spin()"))
    thread = threading.Thread(target=confined.run, args=[{"spin": names["spin"]}])
    thread.start()
    names["begun"].wait()
    for _ in range(100):
        time.sleep(0.001)
        if sys._current_frames()[thread.ident or 0].f_code.co_name == "spin":
            break
    for _ in range(confined_code.MAX_SPARED):
        confined.interrupt()
    assert confined.sends == 0
    while thread.is_alive():
        confined.interrupt()
        thread.join(0.05)
    assert confined.outcome.kind == "interrupted"


def test_what_c_code_holds_is_said_and_training_goes_on_when_it_returns(training: Training) -> None:
    read, write = os.pipe()
    one = training.ask(f"import os\nos.read({read}, 1)\nwhile True: pass", timeout_s=0.5)
    one.on_beat(0)
    beats = Beats(one, rate=20.0)

    def let_go() -> None:
        try:
            wait_until(lambda: beats.told, 60, "an answer")
        finally:
            os.write(write, b"1")

    thread = threading.Thread(target=let_go)
    thread.start()
    training.step()
    training.step()
    thread.join()
    told = beats.end()
    os.close(read)
    os.close(write)
    assert told is not None and (told["outcome"], training.rank.words[Field.STEP]) == ("held", 3)


def test_nobody_takes_it_for_a_hang_before_its_time_is_over(training: Training) -> None:
    one = training.ask("self.kept['seen'].wait(60)", timeout_s=30)
    training.kept["seen"] = threading.Event()
    one.on_beat(0)
    progress: list[int] = []

    def beat() -> None:
        while not one._ident:
            time.sleep(0.001)
        one.on_beat(one._began_ns + 29 * SECOND)
        progress.append(training.rank.words[Field.PROGRESS_NS] - one._began_ns)
        training.kept["seen"].set()

    thread = threading.Thread(target=beat)
    thread.start()
    training.step()
    thread.join()
    one.end()
    assert progress == [29 * SECOND]


def test_a_child_that_it_forks_does_not_train(training: Training) -> None:
    read, write = os.pipe()
    told = training.eval(f"import os\npid = os.fork()\nif not pid: os.write({write}, b'child')\npid")
    pid = int(told["result"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and os.read(read, 9) == b"child"
    told = training.eval("import os\npid = os.fork()\nif not pid: raise ValueError\npid")
    assert os.waitstatus_to_exitcode(os.waitpid(int(told["result"]), 0)[1]) == 0
    os.close(read)
    os.close(write)


class Preempted(Exception):
    pass


@pytest.mark.parametrize("kind", [Preempted, SystemExit, KeyboardInterrupt])
def test_what_a_signals_handler_raises_meanwhile_is_the_scripts(training: Training, kind: type[BaseException]) -> None:
    def handle(signum: int, frame: Any) -> None:
        raise kind(signum)

    number = signal.SIGINT if kind is KeyboardInterrupt else signal.SIGTERM
    before = signal.signal(number, signal.default_int_handler if kind is KeyboardInterrupt else handle)
    one = training.ask(f"import signal\nsignal.raise_signal({number.value})\nwhile True: pass")
    one.on_beat(0)
    try:
        with pytest.raises(kind):
            training.step()
    finally:
        signal.signal(number, before)
    one.end()
    training.step()
    assert training.rank.words[Field.STEP] == 3 and training.rank.passed_on is None


@pytest.mark.parametrize("raises", [True, False])
def test_a_signals_handler_is_not_interrupted(
    raises: bool, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be saving a checkpoint, and may take longer than the code has. Where it returns, the code is."""
    monkeypatch.setattr(evaluation, "HELD_NS", SECOND // 10)
    saved: list[int] = []
    begun = threading.Event()

    def save(signum: int, frame: Any) -> None:
        begun.set()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        saved.append(signum)
        if raises:
            raise Preempted

    before = signal.signal(signal.SIGTERM, save)
    one = training.ask("import signal\nsignal.raise_signal(15)\nwhile True: pass", timeout_s=0.1)
    one.on_beat(0)
    beats = Beats(one, after=begun)
    try:
        with pytest.raises(Preempted) if raises else nullcontext():
            training.step()
    finally:
        signal.signal(signal.SIGTERM, before)
        told = beats.end()
    assert saved == [signal.SIGTERM]
    assert told is not None and told["outcome"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_right_after_an_interruption_is_not_lost(
    training: Training, number: signal.Signals
) -> None:
    """What was sent while C code held it is raised in the handler, or on the way of what that has raised."""

    def handle(signum: int, frame: Any) -> None:
        raise Preempted(signum, sys._getframe(1).f_code.co_name)

    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else handle)
    one = training.ask("import time\ntime.sleep(20)")
    one.on_beat(0)

    def interrupt() -> None:
        while not one._confined._inside:
            time.sleep(0.001)
        time.sleep(0.2)  # by now it sleeps
        one._confined.interrupt()
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Preempted):
            training.step()
    finally:
        signal.signal(number, before)
        thread.join()
    one.end()
    assert training.rank.passed_on is None


def test_where_training_stands_it_runs_beside_it(training: Training, capfd: Any) -> None:
    one = training.ask(
        "import threading\nprint(batch)\n(threading.get_ident() == threading.main_thread().ident, waits)", wait_s=0
    )

    def stand(batch: str) -> dict[str, Any] | None:
        waits = 7
        assert waits
        return Beats(one).end()

    told = stand("this one")
    assert told is not None and (told["outcome"], told["where"], told["output"]) == ("done", "beside", "this one\n")
    assert told["result"] == "(False, 7)" and told["why_beside"].startswith("no optimizer's step ended")
    one = training.ask("while True: pass", wait_s=0, timeout_s=0.1)
    told = Beats(one).end()
    assert told is not None and (told["outcome"], told["where"]) == ("interrupted", "beside")
    one = training.ask("1", wait_s=0, only_at_step=True)
    with pytest.raises(ValueError, match="it was not run: no optimizer's step ended"):
        one.on_beat(time.monotonic_ns())
    training.step()
    one.end()
    assert not one._is_done


def test_not_within_a_capture_nor_twice_at_once(training: Training) -> None:
    one = training.ask("optimizer.step()\n'once'")
    one.on_beat(0)
    training.rank.words[Field.CAPTURES] = 1
    training.step()
    assert one.on_beat(0) is None
    training.rank.words[Field.CAPTURES] = 0
    training.step()
    told = one.on_beat(0)
    one.end()
    assert told is not None and told["result"] == "'once'" and training.rank.words[Field.STEP] == 4


def test_what_is_not_run(training: Training) -> None:
    for more, said in (
        ({"code": "x" * (MAX_CODE_BYTES + 1)}, "up to 64 KB"),
        ({"code": 7}, "up to 64 KB"),
        ({"code": "1", "timeout_s": 61}, "up to 60 seconds"),
        ({"code": "1", "wait_s": -1}, "up to 600 seconds"),
        ({"code": "for"}, "can't be compiled: SyntaxError: invalid syntax"),
        ({"code": "\0"}, "can't be compiled"),
        ({"code": "-" * 60_000 + "1"}, "can't be compiled"),
    ):
        with pytest.raises(ValueError, match=said):
            Evaluation(training.rank, {"timeout_s": 1, "wait_s": 1, **more})
    for setting in (False, None, "true", 1):
        training.rank.settings["eval"] = setting
        os.environ["GUARDRUN_LIVE_EVAL"] = "true"  # what the rank's environment says later is nothing
        try:
            with pytest.raises(ValueError, match=r"\[live\] eval = false"):
                training.ask("1")
        finally:
            del os.environ["GUARDRUN_LIVE_EVAL"]
