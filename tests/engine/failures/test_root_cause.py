"""Who is to blame for a crash, and for what."""

from __future__ import annotations

import traceback

import pytest

from guardrun.supervisor.engine.failures.exception_chain import layers_of
from guardrun.supervisor.engine.failures.root_cause import (
    Fall,
    blame,
    is_peer_lost,
    is_shared_memory,
    why_repeated,
)
from guardrun.supervisor.engine.model.events import ErrorRecord
from guardrun.supervisor.engine.model.looks import Frame

TORCH = 'File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2, in all_reduce'
PEER_LOST = ErrorRecord(
    error="RuntimeError", message="[../gloo/pair.cc:598] Connection closed by peer [127.0.0.1]:4242", traceback=TORCH
)


def error(kind: str = "ValueError", message: str = "bad", **fields: object) -> ErrorRecord:
    return ErrorRecord(error=kind, message=message, **fields)  # type: ignore[arg-type]


def fall(rank: int = 0, exitcode: int | None = 1, at_s: float = 10.0, **fields: object) -> Fall:
    return Fall(global_rank=rank, exitcode=exitcode, at_s=at_s, **fields)  # type: ignore[arg-type]


def cause(kind: str, message: str = "", trace: str = "", is_disk_full: bool = False) -> str:
    return blame([fall(error=error(kind, message, traceback=trace), is_disk_full=is_disk_full)]).cause


def test_nobody_fell() -> None:
    with pytest.raises(ValueError, match="nobody fell"):
        blame([])


@pytest.mark.parametrize(
    ("exitcode", "expected"),
    [
        (-11, "segfault"),
        (139, "segfault"),
        (-6, "abort"),
        (134, "abort"),
        (-7, "bus_error"),
        (135, "bus_error"),
        (-9, "killed"),
        (137, "killed"),
        (-15, "killed"),
        (-40, "killed"),
        (3, "exit_code"),
        (1, "exit_code"),
    ],
)
def test_causes_of_exit_codes(exitcode: int, expected: str) -> None:
    assert blame([fall(exitcode=exitcode)]).cause == expected


@pytest.mark.parametrize(
    ("kind", "message", "trace", "expected"),
    [
        ("ValueError", "bad", "", "exception"),
        ("ModuleNotFoundError", "No module named 'x'", "", "import_error"),
        ("ImportError", "cannot import name", "", "import_error"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate", "", "cuda_oom"),
        ("RuntimeError", "CUDA error: out of memory", "", "cuda_oom"),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory", "", "host_oom"),
        ("MemoryError", "", "", "host_oom"),
        ("OSError", "[Errno 28] No space left on device: '/out/a'", "", "disk_full"),
        ("torch.distributed.DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp", "", "nccl_error"),
        ("RuntimeError", "CUDA error: no CUDA-capable device is detected", "", "gpu_lost"),
        ("RuntimeError", "Detected mismatch between collectives on ranks", "", "collective_mismatch"),
        (
            "RuntimeError",
            "PytorchStreamReader failed reading zip archive",
            "torch/serialization.py",
            "checkpoint_corrupt",
        ),
        ("RuntimeError", "PytorchStreamReader failed reading zip archive", "my_own.py", "exception"),
    ],
)
def test_causes_of_exceptions(kind: str, message: str, trace: str, expected: str) -> None:
    assert cause(kind, message, trace) == expected


def test_a_writer_that_fails_on_a_full_disk() -> None:
    text = "PytorchStreamWriter failed writing file data/0: file write failed"
    assert cause("RuntimeError", text, is_disk_full=True) == "disk_full"
    assert cause("RuntimeError", text) == "exception"
    assert is_shared_memory(error("OSError", "[Errno 28] No space left on device: '/torch_123'"))
    assert not is_shared_memory(None)


def test_a_kill_that_the_kernel_counted_is_host_oom() -> None:
    told = blame([fall(exitcode=-9, was_oom_killed=True)])
    assert (told.cause, told.what, told.exit_code) == (
        "host_oom",
        "was killed by the kernel because memory ran out",
        137,
    )


def test_the_first_to_raise_is_not_always_to_blame() -> None:
    told = blame([fall(0, at_s=10.0, error=PEER_LOST), fall(1, exitcode=-11, at_s=11.5), fall(2, error=PEER_LOST)])
    assert (told.cause, told.culprits) == ("segfault", [1])


def test_the_earlier_of_two_independent_falls() -> None:
    told = blame([fall(0, exitcode=-11, at_s=12.0), fall(1, at_s=11.0, error=error())])
    assert (told.cause, told.culprits) == ("exception", [1])


def test_an_exceptions_own_time_counts_and_not_its_exits() -> None:
    late = fall(1, at_s=15.0, error=error(at_s=9.0))
    assert blame([fall(0, exitcode=3, at_s=10.0), late]).culprits == [1]


def test_all_ranks_with_the_same_exception_are_named() -> None:
    same = [fall(n, error=error(message=f"bad item {n}", frames=[("/a.py", "f", 7)])) for n in range(4)]
    assert blame(same).culprits == [0, 1, 2, 3]


def test_those_that_we_stopped_are_not_to_blame() -> None:
    told = blame([fall(0, exitcode=-15, at_s=1.0, stopped_by_us=True), fall(1, exitcode=-11, at_s=2.0)])
    assert told.culprits == [1]


def test_nobody_to_blame() -> None:
    told = blame([fall(0, error=PEER_LOST), fall(1, error=PEER_LOST)])
    assert (told.culprits, told.why_nobody) == ([], "every rank that fell had only lost the connection to another")
    told = blame([fall(0, error=PEER_LOST), fall(1, exitcode=0)])
    assert "rank 1 had ended with exit code 0 while others still expected it" in told.why_nobody


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (PEER_LOST, True),
        (error("torch.distributed.DistNetworkError", "The client socket has failed to connect", traceback=TORCH), True),
        (error("RuntimeError", "Broken pipe", traceback=TORCH), True),
        (error("ConnectionResetError", "Connection reset by peer", traceback="my/http.py"), False),
        (error("ValueError", "Connection reset by peer", traceback="my/http.py"), False),
    ],
)
def test_losing_a_peer(record: ErrorRecord, expected: bool) -> None:
    assert is_peer_lost(fall(error=record)) is expected


def test_an_abort_that_only_lost_a_peer() -> None:
    assert is_peer_lost(fall(exitcode=-6, stderr_tail="terminate called … Connection closed by peer"))
    assert not is_peer_lost(fall(exitcode=-11, stderr_tail="Connection closed by peer"))


@pytest.mark.parametrize(("exitcode", "expected"), [(-9, 137), (-11, 139), (3, 3), (1, 1), (139, 139), (None, 1)])
def test_the_runs_exit_status(exitcode: int | None, expected: int) -> None:
    assert blame([fall(exitcode=exitcode, error=error() if exitcode is None else None)]).exit_code == expected


def test_keys_are_equal_for_the_same_error_at_the_same_place() -> None:
    def key(message: str, line: int = 7) -> str:
        return blame([fall(error=error(message=message, frames=[("/a.py", "f", line)]))]).key

    assert key("bad item 12 at 0xdeadbeef") == key("bad item 9 at 0x1234")
    assert key("bad item 12") != key("bad item 12", line=8)
    assert key("bad") != key("worse")


def test_what_is_not_tried_again() -> None:
    assert why_repeated("import_error", "", False)
    assert why_repeated("exception", "builtins.SyntaxError", False)
    assert not why_repeated("exception", "ValueError", False)
    assert why_repeated("exception", "ValueError", True)
    assert why_repeated("cuda_oom", "", True)
    assert not why_repeated("killed", "", True)
    assert not why_repeated("segfault", "", True)


def test_the_users_own_frame_is_named() -> None:
    frames = [("/home/user/train.py", "train", 60), ("/x/site-packages/torch/nn/functional.py", "linear", 9)]
    assert blame([fall(error=error(frames=frames))]).what == "raised ValueError: bad in train (train.py:60)"


@pytest.mark.parametrize(
    ("cause", "kind", "why"),
    [
        ("exit_code", "SystemExit", "the script has ended itself"),
        ("exception", "KeyboardInterrupt", "the script was interrupted"),
        ("exception", "builtins.BrokenPipeError", "nobody reads its output any more"),
    ],
)
def test_what_is_meant_is_not_tried_again(cause: str, kind: str, why: str) -> None:
    assert why_repeated(cause, kind, False) == why
    assert not why_repeated("killed", kind, False)


def test_what_an_exception_was_raised_from_is_what_is_told() -> None:
    try:
        try:
            int("x")
        except ValueError as root:
            raise RuntimeError("step 12 failed") from root
    except RuntimeError as raised:
        told = error("RuntimeError", "step 12 failed", traceback="".join(traceback.format_exception(raised)))
    found = blame([fall(error=told)])
    assert found.what.startswith("raised ValueError: invalid literal for int() with base 10: 'x'")
    assert found.what.endswith("(told as RuntimeError: step 12 failed)")


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 24, in main
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/home/me/train.py", line 17, in inner
    | ExceptionGroup: two (2 sub-exceptions)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/home/me/train.py", line 9, in load
      | ValueError: bad sample 3
      +---------------- 2 ----------------
      | KeyError: 'x'
      +------------------------------------
"""
"""As Python 3.11 and later draw it; the last member was never raised."""


def test_of_a_group_of_exceptions_the_first_that_is_none_is_told() -> None:
    told = error("ExceptionGroup", "unhandled errors in a TaskGroup (1 sub-exception)", traceback=GROUP)
    layers = layers_of(told)
    assert [layer.error for layer in layers] == ["ExceptionGroup", "ExceptionGroup", "ValueError", "KeyError"]
    assert layers[2].message == "bad sample 3" and layers[2].frames == [("/home/me/train.py", "load", 9)]
    what = "raised ValueError: bad sample 3 in load (train.py:9) (told as ExceptionGroup)"
    assert blame([fall(error=told)]).what == what


def test_errors_of_one_moment_are_all_told() -> None:
    falls = [
        fall(0, error=error("ValueError", "bad", at_s=10.0)),
        fall(1, error=error("KeyError", "'x'", at_s=10.4)),
        fall(2, error=error("OSError", "late", at_s=13.0)),
        fall(3, error=PEER_LOST),
    ]
    found = blame(falls)
    assert found.culprits == [0, 1]
    assert (found.what, [(other.ranks, other.what) for other in found.beside]) == (
        "raised ValueError: bad",
        [([1], "raised KeyError: 'x'")],
    )


def test_where_a_signal_met_a_rank() -> None:
    stack = [
        Frame("string_at", "/usr/lib/python3.11/ctypes/__init__.py", 519),
        Frame("crash_here", "/home/me/train.py", 6),
    ]
    found = blame([fall(exitcode=-11, stack=stack)])
    assert found.what == "was ended by signal 11 (SIGSEGV) in crash_here (train.py:6)"
    assert found.place == "crash_here (train.py)"


def test_a_signal_that_meets_an_interpreter_that_ends() -> None:
    """Whose script has done all that it had to do: torch's threads end some so."""
    found = blame([fall(exitcode=-6, has_ended=True)])
    assert found.what == "was ended by signal 6 (SIGABRT) after its script had ended"


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert blame([fall(exitcode=-62)]).what == "was ended by signal 62"


def test_gloos_own_place_and_advice_are_left_out() -> None:
    message = (
        "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by "
        "a remote worker crashing."
    )
    found = blame([fall(error=error("RuntimeError", message, traceback=TORCH))])
    assert found.what == "raised RuntimeError: Connection closed by peer [127.0.0.1]:1"
