"""Causes told from what was really said: recorded exceptions, and texts of devices that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrun.supervisor.engine.failures.exception_chain import Relation, error_in_log, layers_of
from guardrun.supervisor.engine.failures.failure_causes import (
    CauseMatch,
    cause_of_error,
    cause_of_log,
    cause_with_device,
    last_words,
    lost_device,
)
from guardrun.supervisor.engine.failures.failure_patterns import PATTERNS
from guardrun.supervisor.engine.failures.root_cause import Fall, blame
from guardrun.supervisor.engine.model.events import ErrorRecord
from guardrun.supervisor.engine.model.looks import Reading

RECORDED = json.loads((Path(__file__).parent / "recorded" / "errors.json").read_text())
"""tests/support/real_errors.py has made them."""

EXPECTED = {
    "load_truncated": "checkpoint_corrupt",
    "load_flipped_pickle": "checkpoint_corrupt",
    "load_flipped_pickle_unsafe": "checkpoint_corrupt",
    "load_empty": "checkpoint_corrupt",
    "load_zeros": "checkpoint_corrupt",
    "load_garbage": "checkpoint_corrupt",
    "load_legacy_truncated": "checkpoint_corrupt",
    "load_not_a_checkpoint_of_this_model": "exception",
    "safetensors_truncated": "checkpoint_corrupt",
    "safetensors_flipped_length": "checkpoint_corrupt",
    "safetensors_flipped_header": "checkpoint_corrupt",
    "dcp_without_metadata": "checkpoint_corrupt",
    "dcp_truncated": "checkpoint_corrupt",
    "dcp_missing_part": "checkpoint_corrupt",
    "dcp_flipped_metadata": "checkpoint_corrupt",
    "worker_killed": "killed",
    "worker_bus": "bus_error",
    "worker_segv": "exception",
    "worker_exits": "exception",
    "worker_raises": "exception",
    "worker_imports": "import_error",
    "worker_disk_full": "disk_full",
    "sample_raises": "exception",
    "cpu_allocator": "host_oom",
    "memory_error": "host_oom",
    "wrapped_from": "checkpoint_corrupt",
    "wrapped_in_handler": "checkpoint_corrupt",
    "benign_context": "exception",
    "spawn_raises": "exception",
    "spawn_dies": "segfault",
    "write_to_full_device": "disk_full",
    "no_cuda": "exception",
    "save_full": "disk_full",
    "save_legacy_full": "disk_full",
    "safetensors_full": "disk_full",
    "dcp_full": "disk_full",
    "python_full": "disk_full",
}
UNNOTICED = {"load_flipped_tensor", "load_flipped_tensor_mmap", "load_flipped_local_header"}
"""torch loads them without a word: it does not look at the checksums that it writes."""


def recorded(name: str) -> ErrorRecord:
    return ErrorRecord(**RECORDED[name])


def test_all_that_was_recorded_is_judged() -> None:
    assert set(EXPECTED) | UNNOTICED == set(RECORDED)
    assert {name for name, record in RECORDED.items() if record is None} == UNNOTICED


@pytest.mark.parametrize(("name", "cause"), EXPECTED.items())
def test_recorded_exceptions(name: str, cause: str) -> None:
    assert cause_of_error(recorded(name), is_disk_full=name in ("save_full", "dcp_full")).cause == cause


@pytest.mark.parametrize("name", ["save_full", "dcp_full"])
def test_a_writer_that_failed_for_another_reason(name: str) -> None:
    assert cause_of_error(recorded(name)).cause == "exception"


# Devices that are not here: wording from the sources that engine/failures/failure_patterns.py names, put together by ha

CUDA = (
    "CUDA error: {}\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.29.7\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{}"
)


@pytest.mark.parametrize(
    ("kind", "message", "cause", "hint"),
    [
        ("torch.AcceleratorError", CUDA.format("uncorrectable ECC error encountered"), "gpu_lost", "ecc"),
        ("RuntimeError", CUDA.format("hardware stack error"), "gpu_lost", ""),
        ("RuntimeError", CUDA.format("CUDA-capable device(s) is/are busy or unavailable"), "gpu_lost", "busy"),
        ("RuntimeError", "No CUDA GPUs are available", "gpu_lost", "none_visible"),
        ("torch.AcceleratorError", CUDA.format("device-side assert triggered"), "exception", "device_assert"),
        (
            "torch.AcceleratorError",
            CUDA.format("an illegal memory access was encountered"),
            "exception",
            "illegal_access",
        ),
        ("torch.AcceleratorError", CUDA.format("unspecified launch failure"), "exception", "launch_failure"),
        ("torch.AcceleratorError", CUDA.format("out of memory"), "cuda_oom", ""),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_oom", ""),
        ("torch.distributed.DistBackendError", NCCL.format("Cuda failure 2 'out of memory'"), "cuda_oom", ""),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("Cuda failure 214 'uncorrectable ECC error encountered'"),
            "gpu_lost",
            "ecc",
        ),
        ("torch.distributed.DistBackendError", NCCL.format("Cuda failure 1 'invalid argument'"), "nccl_error", ""),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("Error while creating shared memory segment /dev/shm/nccl-X, error: No space left on device"),
            "disk_full",
            "",
        ),
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: ProcessGroupNCCL.cpp:1, invalid usage\nncclInvalidUsage: This usually reflects invalid "
            "usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
            "nccl_error",
            "usage",
        ),
        (
            "torch.distributed.DistBackendError",
            NCCL.format("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
            "nccl_error",
            "memlock",
        ),
        ("torch.AcceleratorError", CUDA.format("unknown error"), "exception", "launch_failure"),
        (
            "torch.AcceleratorError",
            CUDA.format("the launch timed out and was terminated"),
            "exception",
            "launch_timeout",
        ),
        (
            "torch.AcceleratorError",
            CUDA.format("no kernel image is available for execution on the device"),
            "exception",
            "kernel_image",
        ),
        ("torch.AcceleratorError", CUDA.format("invalid device ordinal"), "exception", "ordinal"),
        (
            "RuntimeError",
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
            "exception",
            "launch_failure",
        ),
        (
            "RuntimeError",
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "exception",
            "library_start",
        ),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda_oom", ""),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "exception", "launch_failure"),
        ("RuntimeError", "The NVIDIA driver on your system is too old (found version 11040).", "exception", "driver"),
        (
            "RuntimeError",
            "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
            "CUDA_VISIBLE_DEVICES after program start.",
            "exception",
            "cuda_setup",
        ),
        ("OSError", "[Errno 28] inotify watch limit reached", "exception", ""),
    ],
)
def test_texts_of_devices(kind: str, message: str, cause: str, hint: str) -> None:
    told = cause_of_error(ErrorRecord(error=kind, message=message))
    assert (told.cause, told.hint) == (cause, hint)


def test_a_class_that_torch_load_does_not_allow_is_no_torn_file() -> None:
    text = (
        "Weights only load failed. …\n\tWeightsUnpickler error: Unsupported global: GLOBAL {} was not an allowed global"
    )
    frames = [("/x/site-packages/torch/serialization.py", "load", 1609)]

    def told(name: str) -> tuple[str, str]:
        found = cause_of_error(ErrorRecord(error="_pickle.UnpicklingError", message=text.format(name), frames=frames))
        return found.cause, found.hint

    assert told("my_project.config.Config") == ("exception", "weights_only")
    assert told("torch._uti|s._rebuild_tensor_v2") == ("checkpoint_corrupt", ""), "no name that Python could have"


def test_every_pattern_has_a_source() -> None:
    assert all(pattern.source for pattern in PATTERNS)


# What an exception is made of ----------------------------------------------------------------------------------------


def test_layers_from_the_outside_in() -> None:
    shape = [(layer.relation, layer.error.rsplit(".", 1)[-1]) for layer in layers_of(recorded("wrapped_from"))]
    assert shape == [(Relation.ITSELF, "ValueError"), (Relation.CAUSE, "OSError")]
    shape = [(layer.relation, layer.error.rsplit(".", 1)[-1]) for layer in layers_of(recorded("worker_imports"))]
    assert shape == [(Relation.ITSELF, "ModuleNotFoundError"), (Relation.QUOTED, "ModuleNotFoundError")]
    quoted = layers_of(recorded("dcp_missing_part"))[1]
    assert quoted.error == "FileNotFoundError" and quoted.frames[-1][1] == "open"
    context = layers_of(recorded("benign_context"))[1]
    assert (context.relation, context.error) == (Relation.CONTEXT, "ModuleNotFoundError")


KILLED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. "
IN_A_WAIT = f"""Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 324, in wait
    gotit = False
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
{KILLED}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/user/train.py", line 12, in main
    for batch in loader:
  File "/usr/lib/python3.11/threading.py", line 275, in __exit__
    return self._lock.__exit__(*args)
RuntimeError: {{}}
"""
"""Recorded with torch 2.13.0 on CPython 3.11: the worker died while the loader started its queue's thread."""


@pytest.mark.parametrize(("last", "cause"), [("release unlocked lock", "bus_error"), ("no batch left", "exception")])
def test_what_a_signal_handler_said_below_words_that_say_nothing(last: str, cause: str) -> None:
    record = ErrorRecord(error="RuntimeError", message=last, traceback=IN_A_WAIT.format(last))
    assert cause_of_error(record).cause == cause


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last)", "Traceback (most recent call last):\n  File", "\x00"]
)
def test_layers_of_broken_texts(text: str) -> None:
    record = ErrorRecord(error="ValueError", message=text, traceback=text)
    assert layers_of(record)[0].error == "ValueError"
    error_in_log(text)
    last_words(text)


def test_the_sentence_quotes_what_happened_in_the_worker() -> None:
    told = blame([Fall(global_rank=0, exitcode=1, at_s=1.0, error=recorded("worker_raises"))])
    assert told.what.startswith("raised ValueError: bad sample 5 in bad_sample (real_errors.py:")
    assert told.what.endswith(", in DataLoader worker 0")
    assert told.place == "bad_sample (real_errors.py)"


def test_a_dead_data_worker_is_no_lost_peer() -> None:
    falls = [
        Fall(global_rank=1, exitcode=1, at_s=2.0, error=recorded("worker_segv")),
        Fall(global_rank=0, exitcode=-15, at_s=3.0, stopped_by_us=True),
    ]
    assert blame(falls).culprits == [1]


def test_a_worker_killed_where_memory_ran_out() -> None:
    fall = Fall(global_rank=0, exitcode=1, at_s=1.0, error=recorded("worker_killed"), has_oom_nearby=True)
    assert blame([fall]).cause == "host_oom"


def test_a_peer_that_has_gone_in_a_wrapper_is_still_a_peer_that_has_gone() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2, in all_reduce\n'
        "RuntimeError: [../gloo/pair.cc:598] Connection closed by peer [127.0.0.1]:4242\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/user/train.py", line 9, in train\n'
        "mylib.TrainingFailed: a step failed\n"
    )
    wrapped = ErrorRecord(error="mylib.TrainingFailed", message="a step failed", traceback=trace)
    falls = [
        Fall(global_rank=0, exitcode=1, at_s=1.0, error=wrapped),
        Fall(global_rank=1, exitcode=-11, at_s=1.5),
    ]
    assert blame(falls).culprits == [1]


# The log -------------------------------------------------------------------------------------------------------------

WATCHDOG = (
    "[rank1]:[E606 09:10:08.365 ProcessGroupNCCL.cpp:2197] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
    "watchdog thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds before "
    "timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: {}\n"
    "Exception raised from run at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:760 (most recent call "
    "first):\nframe #0: c10::Error::Error(…)\n"
)
"""By hand after torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, and reports of it in public."""
TIMEOUT = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST)"


def test_a_c_plus_plus_exception_in_the_last_words() -> None:
    tail = WATCHDOG.format("CUDA error: uncorrectable ECC error encountered")
    told = blame([Fall(global_rank=1, exitcode=-6, at_s=1.0, stderr_tail=tail)])
    assert told.cause == "gpu_lost"
    assert told.what == "was ended by signal 6 (SIGABRT): CUDA error: uncorrectable ECC error encountered"
    assert "frame #0" not in told.what
    assert cause_of_log(WATCHDOG.format("CUDA error: an illegal memory access was encountered")) == CauseMatch(
        cause="exception", hint="illegal_access"
    )
    assert cause_of_log(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
    ) == CauseMatch(cause="host_oom")


def test_those_whose_collective_timed_out_waited_for_another() -> None:
    tail = WATCHDOG.format(TIMEOUT)
    told = blame([Fall(global_rank=n, exitcode=-6, at_s=1.0, stderr_tail=tail) for n in (0, 1)])
    assert (told.cause, told.culprits, told.hint) == ("nccl_error", [], "watchdog")
    assert "had waited in a collective until its timeout" in told.why_nobody


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("loading\ndouble free or corruption (out)\n", "double free or corruption (out)"),
        ("train: a.c:7: f: Assertion `x > 0' failed.\n", "train: a.c:7: f: Assertion `x > 0' failed."),
        ("free(): invalid pointer\nFatal Python error: Aborted\n\nThread 0x7f", "free(): invalid pointer"),
        ("Fatal Python error: Aborted\n\nThread 0x7f", "Fatal Python error: Aborted"),
        ("free(): invalid pointer\nFatal Python error: init: no room\n", "Fatal Python error: init: no room"),
        ("step 1\nstep 2\n", ""),
        ("", ""),
    ],
)
def test_last_words(tail: str, words: str) -> None:
    assert last_words(tail) == words


def test_a_traceback_in_the_log_of_a_rank_without_hooks() -> None:
    tail = "step 9\n" + "".join(f"[rank1]: {line}\n" for line in RECORDED["python_full"]["traceback"].splitlines())
    error = error_in_log(tail)
    assert error is not None and error.error == "OSError"
    assert cause_of_error(error).cause == "disk_full"
    assert error_in_log("step 9\nkilled\n") is None


# The device's own word -----------------------------------------------------------------------------------------------


def test_a_lost_device_is_why_nccl_failed() -> None:
    lost = [Reading(name="GPU 3", value=0, is_odd=True, note="the device is lost (Xid 79)")]
    assert lost_device(lost) == "GPU 3: the device is lost (Xid 79)"
    assert cause_with_device(CauseMatch(cause="nccl_error"), lost).cause == "gpu_lost"
    assert cause_with_device(CauseMatch(cause="exception", hint="illegal_access"), lost).cause == "gpu_lost"
    assert cause_with_device(CauseMatch(cause="exception"), lost).cause == "exception"
    assert cause_with_device(CauseMatch(cause="cuda_oom"), lost).cause == "cuda_oom"
    warm = [Reading(name="GPU 3 temperature", value=91, unit="C", is_odd=True, note="hot")]
    assert cause_with_device(CauseMatch(cause="nccl_error"), warm).cause == "nccl_error"
