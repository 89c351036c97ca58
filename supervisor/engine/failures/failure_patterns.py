"""How each cause shows in text: the table that `engine/failures/failure_causes.py` reads from the top.

Each pattern has its source: a file of torch or NCCL whose wording it is (checked with torch 2.13.0 on a CPU, in the
libraries' strings or by making it happen), libcudart's own strings (12.9), or the documentation of whoever says so.
What is not in here is `exception`: an error of the script's own.
"""

from __future__ import annotations

import msgspec


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a cause shows."""

    cause: str
    text: str = ""
    """Regular expression, searched for in `Type: message`."""
    types: tuple[str, ...] = ()
    """Names of exception types, without their modules; empty: any."""
    files: tuple[str, ...] = ()
    """Parts of paths of which the traceback shows one; empty: any."""
    hint: str = ""
    """What advice goes by, beyond the cause."""
    needs_full_disk: bool = False
    """Only where a folder that ranks write to is known to be full: the text doesn't say why writing failed."""
    source: str


LOADING = (
    "torch/serialization.py",
    "torch/_weights_only_unpickler.py",
    "torch/distributed/checkpoint/",
    "safetensors/",
)
_CUDART = "libcudart's string of"
_DATALOADER_CPP = "torch/csrc/DataLoader.cpp"

PATTERNS: tuple[Pattern, ...] = (
    # Data workers die by what kills processes; the exception only reports it.
    Pattern(
        cause="bus_error",
        text=r"DataLoader worker \(pid \d+\) is killed by signal: Bus error|out of shared memory\. Please try to raise",
        hint="worker_bus",
        source=_DATALOADER_CPP,
    ),
    Pattern(
        cause="segfault",
        text=r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault",
        hint="worker",
        source=_DATALOADER_CPP,
    ),
    Pattern(
        cause="abort",
        text=r"DataLoader worker \(pid \d+\) is killed by signal: Aborted",
        hint="worker",
        source=_DATALOADER_CPP,
    ),
    Pattern(
        cause="killed",
        text=r"DataLoader worker \(pid \d+\) is killed by signal",
        hint="worker",
        source=_DATALOADER_CPP,
    ),
    Pattern(
        cause="segfault",
        text=r"process \d+ terminated with signal SIGSEGV",
        hint="child",
        source="torch/multiprocessing/spawn.py, ProcessExitedException",
    ),
    Pattern(
        cause="killed",
        text=r"process \d+ terminated with signal SIG(?:KILL|TERM)",
        hint="child",
        source="torch/multiprocessing/spawn.py, ProcessExitedException",
    ),
    Pattern(cause="import_error", types=("ImportError", "ModuleNotFoundError"), source="Python"),
    Pattern(
        cause="collective_mismatch",
        text=r"[Dd]etected mismatch between collectives|op\.preamble\.length <= op\.nbytes|collective.*mismatch",
        source="torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp; gloo/transport/tcp/pair.cc",
    ),
    # The device's memory, in the allocator's, the runtime's and NCCL's words.
    Pattern(
        cause="cuda_oom",
        text=r"(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        source="c10/cuda/CUDACachingAllocator.cpp; aten/src/ATen/cuda/Exceptions.h; nccl src/include/checks.h",
    ),
    Pattern(cause="cuda_oom", types=("OutOfMemoryError",), source="torch.OutOfMemoryError (c10/util/Exception.h)"),
    # Memory that may be pinned, of which the host has plenty.
    Pattern(
        cause="nccl_error",
        text=r"ibv_(?:reg_|create_|alloc_)\w+ failed with error Cannot allocate memory",
        hint="memlock",
        source="nccl src/misc/ibvwrap.cc; ibv_reg_mr(3): ENOMEM where RLIMIT_MEMLOCK is too low",
    ),
    # The device itself.
    Pattern(
        cause="gpu_lost",
        text=r"uncorrectable ECC error encountered",
        hint="ecc",
        source=f"{_CUDART} cudaErrorECCUncorrectable",
    ),
    Pattern(
        cause="gpu_lost",
        text=r"uncorrectable NVLink error|Invalid access of peer GPU memory over nvlink or a hardware error",
        hint="nvlink",
        source=f"{_CUDART} cudaErrorNvlinkUncorrectable, cudaErrorContained",
    ),
    Pattern(cause="gpu_lost", text=r"hardware stack error", source=f"{_CUDART} cudaErrorHardwareStackError"),
    Pattern(
        cause="gpu_lost",
        text=r"GPU is lost|[Ff]allen off the bus|NVML_ERROR_GPU_IS_LOST",
        source="NVML, nvmlErrorString(NVML_ERROR_GPU_IS_LOST); NVIDIA's driver, Xid 79",
    ),
    Pattern(
        cause="gpu_lost",
        text=r"no CUDA-capable device is detected|No CUDA GPUs are available|device unavailable",
        hint="none_visible",
        source=f"{_CUDART} cudaErrorNoDevice; torch/cuda/__init__.py; c10/cuda/CUDAFunctions.cpp",
    ),
    Pattern(
        cause="gpu_lost",
        text=r"CUDA-capable device\(s\) is/are busy or unavailable",
        hint="busy",
        source=f"{_CUDART} cudaErrorDevicesUnavailable",
    ),
    Pattern(
        cause="gpu_lost",
        text=r"system not yet initialized",
        hint="fabric",
        source=f"{_CUDART} cudaErrorSystemNotReady: the fabric manager does not run",
    ),
    # Room on a disk.
    Pattern(
        cause="disk_full",
        text=r"No space left on device(?!.*inotify)|Errno 28\](?! inotify)|os error 28\b|error 28\b.*No space",
        source="strerror(ENOSPC); Rust's io::Error, as safetensors has it",
    ),
    Pattern(
        cause="disk_full",
        text=r"Disk quota exceeded|Errno 122\]|os error 122\b",
        hint="quota",
        source="strerror(EDQUOT)",
    ),
    Pattern(
        cause="disk_full",
        text=r"PytorchStreamWriter failed|file write failed|unexpected pos|basic_ios::clear: iostream error",
        needs_full_disk=True,
        source="caffe2/serialize/inline_container.cc",
    ),
    # The host's memory.
    Pattern(cause="host_oom", types=("MemoryError", "ArrayMemoryError", "_ArrayMemoryError"), source="Python; numpy"),
    Pattern(
        cause="host_oom",
        text=r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|Cannot allocate memory|Errno 12\]"
        r"|std::bad_alloc",
        source="c10/core/impl/alloc_cpu.cpp; strerror(ENOMEM); libstdc++",
    ),
    # Checkpoints that can't be read.
    Pattern(
        cause="checkpoint_corrupt",
        text=r"PytorchStreamReader failed|invalid magic number|unexpected EOF, expected|pickle data was truncated"
        r"|failed finding central directory|file in archive is not in a subdirectory|Ran out of input"
        r"|Cannot use ``weights_only=True`` with files saved in the legacy \.tar format|Corrupt file size",
        files=LOADING,
        source="caffe2/serialize/inline_container.cc; torch/serialization.py; Python's pickle",
    ),
    Pattern(
        cause="checkpoint_corrupt",
        text=r"Invalid argument",
        types=("OSError",),
        files=("torch/serialization.py",),
        source="torch._C.PyTorchFileReader of a torn file (2.13)",
    ),
    Pattern(
        cause="checkpoint_corrupt",
        text=r"SafetensorError: (?!.*I/O error|.*File does not contain tensor).*(?:[Hh]eader|[Mm]etadata|deserializ)",
        source="safetensors/src/tensor.rs, SafeTensorError",
    ),
    Pattern(
        cause="checkpoint_corrupt",
        text=r"metadata is None; global metadata read failed",
        files=LOADING,
        source="torch/distributed/checkpoint/state_dict_loader.py (2.9 and later)",
    ),
    Pattern(
        cause="checkpoint_corrupt",
        text=r"No such file or directory: '[^']*(?:\.distcp|\.metadata)'",
        files=("torch/distributed/checkpoint/",),
        source="torch/distributed/checkpoint/filesystem.py: a part that .metadata names is not there",
    ),
    Pattern(
        cause="exception",
        text=r"Unsupported global: GLOBAL (?:[A-Za-z_]\w*\.)*[A-Za-z_]\w* was not an allowed",
        hint="weights_only",
        source="torch/_weights_only_unpickler.py: a name that could be one, so a whole file",
    ),
    Pattern(
        cause="checkpoint_corrupt",
        types=("EOFError", "UnpicklingError", "BadZipFile", "UnicodeDecodeError"),
        files=LOADING,
        source="Python's pickle and zipfile below torch.load",
    ),
    # CUDA's errors that the script (or a kernel) has made: no fault of the device.
    Pattern(
        cause="exception",
        text=r"device-side assert triggered",
        hint="device_assert",
        source=f"{_CUDART} cudaErrorAssert: an assertion in a kernel, nearly always an index out of range",
    ),
    Pattern(
        cause="exception",
        text=r"an illegal memory access was encountered|misaligned address|illegal instruction was encountered",
        hint="illegal_access",
        source=f"{_CUDART} cudaErrorIllegalAddress, cudaErrorMisalignedAddress, cudaErrorIllegalInstruction",
    ),
    Pattern(
        cause="exception",
        text=r"unspecified launch failure|CUDA(?: driver)? error: unknown error"
        r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        hint="launch_failure",
        source=f"{_CUDART} cudaErrorLaunchFailure, cudaErrorUnknown; aten/src/ATen/cuda/Exceptions.h",
    ),
    Pattern(
        cause="exception",
        text=r"the launch timed out and was terminated",
        hint="launch_timeout",
        source=f"{_CUDART} cudaErrorLaunchTimeout",
    ),
    Pattern(
        cause="exception",
        text=r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED",
        hint="library_start",
        source="aten/src/ATen/cuda/Exceptions.h: cublasCreate and the like allocate on the device",
    ),
    Pattern(
        cause="exception",
        text=r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version",
        hint="driver",
        source=f"torch/csrc/cuda/utils; {_CUDART} cudaErrorInsufficientDriver",
    ),
    Pattern(
        cause="exception",
        text=r"no kernel image is available for execution on the device",
        hint="kernel_image",
        source=f"{_CUDART} cudaErrorNoKernelImageForDevice",
    ),
    Pattern(
        cause="exception",
        text=r"invalid device ordinal",
        hint="ordinal",
        source=f"{_CUDART} cudaErrorInvalidDevice",
    ),
    Pattern(
        cause="exception",
        text=r"CUDA unknown error - this may be due to an incorrectly set up environment",
        hint="cuda_setup",
        source="c10/cuda/CUDAFunctions.cpp",
    ),
    # Those that waited for somebody who did not come.
    Pattern(
        cause="nccl_error",
        text=r"retrieving ncclUniqueId from \[\d+\] via c10d key-value store",
        hint="store_wait",
        source="torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID",
    ),
    Pattern(
        cause="exception",
        text=r"waiting for clients\. \d+/\d+ clients joined",
        hint="store_wait",
        source="torch/csrc/distributed/c10d/TCPStore.cpp, waitForWorkers",
    ),
    Pattern(
        cause="nccl_error",
        text=r"Watchdog caught collective operation timeout",
        hint="watchdog",
        source="torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Pattern(
        cause="nccl_error",
        text=r"ncclRemoteError",
        hint="remote",
        source="torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclErrorDetailStr",
    ),
    Pattern(
        cause="nccl_error",
        text=r"ncclInvalidUsage|ncclInvalidArgument|invalid usage|Duplicate GPU detected",
        types=("DistBackendError",),
        hint="usage",
        source="torch/csrc/distributed/c10d/NCCLUtils.cpp; nccl src/init.cc",
    ),
    Pattern(
        cause="nccl_error",
        text=r"NCCL error|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|DistBackendError"
        r"|NCCL communicator was aborted|NCCL timeout in|unhandled (?:cuda|system) error",
        source="torch/csrc/distributed/c10d/NCCLUtils.{hpp,cpp}",
    ),
    Pattern(
        cause="exception",
        text=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly",
        hint="worker_gone",
        source=f"{_DATALOADER_CPP}; torch/utils/data/dataloader.py",
    ),
    Pattern(
        cause="exception",
        text=r"Connection reset by peer|EOFError|Broken pipe|unable to open shared memory object",
        types=("ConnectionResetError", "EOFError", "BrokenPipeError", "FileNotFoundError", "RuntimeError"),
        files=("torch/multiprocessing/reductions.py", "multiprocessing/resource_sharer.py"),
        hint="worker_gone",
        source="Python's resource_sharer: the data worker whose tensor is fetched is gone",
    ),
)
