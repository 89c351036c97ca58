"""What global rank 0 tells once of what it computes with."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from guardrun.hooks.beat import environment_report
from guardrun.hooks.beat.environment_report import MAX_MODULES, choose_variables, describe, find_own_modules
from guardrun.hooks.beat.heartbeat import Heartbeat
from guardrun.hooks.patches.devices import DeviceReporter
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import MAX_MESSAGE_BYTES, EnvironmentReported, HookFailed
from tests.hooks.bed import Bed

SCRIPT = """
import time
import helper
import torch

torch.manual_seed(1234)
torch.set_float32_matmul_precision("high")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
for _ in range(3):
    optimizer.step()
time.sleep(600)
"""


def test_once_and_by_rank_0_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("")
    with Bed(world_size=2) as bed:
        for rank in range(2):
            bed.start([str(tmp_path / "train.py")], rank=rank, more={"OMP_NUM_THREADS": "1", "SOME_VARIABLE": "no"})
        told = bed.wait_for(EnvironmentReported)
        for rank in range(2):
            done_ns = bed.wait_until(Field.STEP, lambda step: step == 3, rank=rank) and time.monotonic_ns()
            bed.wait_until(Field.HEART_NS, lambda at_ns, since_ns=done_ns: at_ns > since_ns + 1e9, rank=rank)
        assert bed.hear_all(EnvironmentReported) == [told]
        assert bed.hear_all(HookFailed) == []
    assert (told.global_rank, told.seed, told.flags["float32_matmul_precision"]) == (0, 1234, "high")
    assert told.script == str(tmp_path / "train.py") and str(tmp_path / "helper.py") in told.modules
    assert not any("/torch/" in path or "/guardrun/" in path for path in told.modules)
    assert told.variables["OMP_NUM_THREADS"] == "1" and "SOME_VARIABLE" not in told.variables
    assert told.runtime["python"] == sys.version.split()[0] and any("site-packages" in entry for entry in told.path)


def test_a_script_that_ends_at_once_tells_it_with_its_last_words(rank: Rank) -> None:
    heart, sent = Heartbeat(rank), []
    heart._sender = SimpleNamespace(send=lambda kind, fields: sent.append(kind) or True)
    heart._handle(("Ended", {}))
    assert sent == ["Ended"], "there was no step"
    rank.words[Field.STEP] = 1
    heart._handle(("Ended", {}))
    heart._handle(("Ended", {}))
    assert sent == ["Ended", "Ended", "EnvironmentReported", "Ended"]


def test_the_device_is_asked_by_the_thread_that_trains_alone(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks' thread might wait in a driver, with the GIL held."""
    import torch

    def properties(index: int) -> SimpleNamespace:
        asked.append(index)
        return SimpleNamespace(name="a GPU")

    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    rank.devices = reporter = DeviceReporter(rank)
    reporter.after_set_device(torch.cuda)
    del asked[:]
    heart, sent = Heartbeat(rank), []
    heart._sender = SimpleNamespace(send=lambda kind, fields: sent.append(fields) or True)
    rank.words[Field.STEP] = 1
    heart._tell_environment()
    assert ([fields["device"] for fields in sent], asked) == (["a GPU"], [])


def test_modules_are_bounded_and_none_is_made_by_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "strange", 3)
    for number in range(MAX_MODULES + 50):
        module = ModuleType(f"own{number}")
        module.__file__ = str(tmp_path / f"own{number}.py")
        monkeypatch.setitem(sys.modules, f"own{number}", module)
    monkeypatch.chdir(tmp_path)
    found, more = find_own_modules()
    assert len(found) == MAX_MODULES and more >= 50


def test_nothing_of_a_modules_own_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apipkg's modules import all that they offer when they are asked for __dict__; a proxy asks whom it stands for."""
    asked: list[str] = []

    class Package(ModuleType):
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            asked.append("__dict__")
            raise RuntimeError("asked")

    class Proxy:
        def __getattribute__(self, name: str) -> object:
            asked.append(name)
            raise RuntimeError("asked")

    class Word(str):
        def startswith(self, *args: object) -> bool:
            asked.append("startswith")
            raise RuntimeError("asked")

    package, odd, fine = Package("package"), ModuleType("odd"), ModuleType("fine")
    vars(ModuleType)["__dict__"].__get__(package)["__file__"] = str(tmp_path / "package.py")
    odd.__file__ = Word(tmp_path / "odd.py")
    fine.__file__ = str(tmp_path / "fine.py")
    modules: dict[object, object] = {"package": package, "proxy": Proxy(), "odd": odd, "fine": fine, 3: fine}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[misc]
    have_room(monkeypatch)
    assert {str(tmp_path / "package.py"), str(tmp_path / "fine.py")} <= set(find_own_modules()[0])
    assert asked == []


def have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all modules of this process, which may have run hundreds of the suite's own."""
    monkeypatch.setattr(environment_report, "MAX_MODULES", 1 << 20)
    monkeypatch.setattr(environment_report, "MAX_LIST_BYTES", 1 << 30)


@pytest.mark.parametrize("script", [3, None, Path("train.py")])
def test_a_script_that_leaves_odd_things_behind(
    script: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is gone, its file is no text, a function of torch is its own: what is known all the same is told."""
    asked: list[str] = []
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
    torch = ModuleType("torch")
    torch.__version__ = "2.6.0"  # type: ignore[attr-defined]
    torch.initial_seed = lambda: asked.append("seed")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = describe({"NCCL_ALGO": "Ring"})
    assert (found["script"], found["seed"], found["variables"]) == ("", None, {"NCCL_ALGO": "Ring"})
    assert found["runtime"]["torch"] == "2.6.0" and found["path"] and asked == []


def test_a_message_has_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths as long as there may be, of modules and of folders, and as many variables."""
    for number in range(MAX_MODULES):
        module = ModuleType(f"own{number}")
        module.__file__ = f"/{number}/{'x' * 900}"
        monkeypatch.setitem(sys.modules, f"own{number}", module)
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/{number}/{'y' * 2000}" for number in range(300))])
    environ = {f"NCCL_{number}": "é" * 2000 for number in range(500)}
    fields = describe(environ)
    assert fields["more_modules"] > 0
    told = EnvironmentReported(attempt=0, global_rank=0, pid=1, **fields)
    assert len(msgspec.msgpack.encode(told)) < MAX_MESSAGE_BYTES


def test_bytes_that_are_no_text_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python has undecodable file names and variables: lone surrogates, which no message can hold."""
    module = ModuleType("own")
    module.__file__ = "/\udcff/own.py"
    monkeypatch.setitem(sys.modules, "own", module)
    monkeypatch.setattr(sys, "path", [*sys.path, "/\udcff"])
    have_room(monkeypatch)
    fields = describe({"NCCL_\udcff": "\udcff"})
    msgspec.msgpack.encode(EnvironmentReported(attempt=0, global_rank=0, pid=1, **fields))
    assert fields["variables"] == {"NCCL_\\udcff": "\\udcff"} and "/\\udcff/own.py" in fields["modules"]


def test_variables_of_a_run_are_left_out() -> None:
    environ = {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/home/user", "OMP_NUM_THREADS": "x" * 5000}
    assert choose_variables(environ) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "x" * 1000}


def test_a_torch_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another version, or one that is in the middle of being imported."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    found = describe({})
    assert (found["seed"], found["flags"], found["device"]) == (None, {}, "")


def test_torch_is_not_asked_for_what_it_warns_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.9 does, on the script's own stderr; under -W error it raises, and the script's own warning never comes."""
    import torch

    def old_getter() -> str:
        asked.append("old")
        return "highest"

    asked: list[str] = []
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", old_getter)
    monkeypatch.setattr(torch._C, "_get_cudnn_allow_tf32", old_getter)
    flags = environment_report.read_flags(torch)
    assert asked == [] and not {"float32_matmul_precision", "cudnn_allow_tf32"} & flags.keys()
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        assert {"fp32_precision_matmul", "fp32_precision_conv", "fp32_precision_rnn"} <= flags.keys()


def test_it_takes_no_time_to_speak_of() -> None:
    """A few milliseconds of the interpreter lock, once."""
    import torch  # noqa: F401

    describe({})
    took_s = min(_timed() for _ in range(5))
    assert took_s < 0.02, took_s


def _timed() -> float:
    began_s = time.thread_time()
    environment_report.describe({})
    return time.thread_time() - began_s
