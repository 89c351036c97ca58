"""Makes torch, and Python, fail in as many ways as a rank meets, and prints each exception as the hooks describe it.

    python real_errors.py FOLDER SMALL_FOLDER [NAME…]

SMALL_FOLDER: a file system with room for next to nothing, or "". Prints one JSON object: name of the failure ->
{"error", "message", "traceback"}, or null where nothing was raised. With NAMEs, only those.

tests/engine/failures/recorded/errors.json is what it printed with torch 2.13.0 on CPython 3.11, with paths made
neutral.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, Dataset

from guardrun.hooks.rank.exception_report import describe

MAKERS: dict[str, Callable[[Path], object]] = {}
STATE = {"model": {"w": torch.arange(40_000, dtype=torch.float32)}, "step": 40}


def maker(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Have a way to fail tried, under its function's name."""
    MAKERS[make.__name__] = make
    return make


def saved(folder: Path) -> Path:
    path = folder / "ckpt_40.pt"
    torch.save(STATE, path)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def inside(path: Path, name: str) -> int:
    """Where an entry's bytes begin in a zip."""
    with zipfile.ZipFile(path) as archive:
        info = next(i for i in archive.infolist() if i.filename.endswith(name))
    data = path.read_bytes()
    at = info.header_offset
    return (
        at + 30 + int.from_bytes(data[at + 26 : at + 28], "little") + int.from_bytes(data[at + 28 : at + 30], "little")
    )


@maker
def load_truncated(folder: Path) -> object:
    path = saved(folder)
    path.write_bytes(path.read_bytes()[:50_000])
    return torch.load(path)


@maker
def load_flipped_tensor(folder: Path) -> object:
    path = saved(folder)
    flip(path, inside(path, "data/0") + 1000)
    return torch.load(path)


@maker
def load_flipped_tensor_mmap(folder: Path) -> object:
    path = saved(folder)
    flip(path, inside(path, "data/0") + 1000)
    return torch.load(path, mmap=True)


@maker
def load_flipped_pickle(folder: Path) -> object:
    path = saved(folder)
    flip(path, inside(path, "data.pkl") + 40)
    return torch.load(path)


@maker
def load_flipped_pickle_unsafe(folder: Path) -> object:
    path = saved(folder)
    flip(path, inside(path, "data.pkl") + 3)
    return torch.load(path, weights_only=False)


@maker
def load_flipped_local_header(folder: Path) -> object:
    path = saved(folder)
    flip(path, inside(path, "data/0") - 40)
    return torch.load(path)


@maker
def load_empty(folder: Path) -> object:
    path = folder / "ckpt_40.pt"
    path.write_bytes(b"")
    return torch.load(path)


@maker
def load_zeros(folder: Path) -> object:
    path = folder / "ckpt_40.pt"
    path.write_bytes(bytes(5000))
    return torch.load(path)


@maker
def load_garbage(folder: Path) -> object:
    path = folder / "ckpt_40.pt"
    path.write_bytes(b"this is no checkpoint\n" * 100)
    return torch.load(path, weights_only=False)


@maker
def load_legacy_truncated(folder: Path) -> object:
    path = folder / "ckpt_40.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:100_000])
    return torch.load(path)


@maker
def load_not_a_checkpoint_of_this_model(folder: Path) -> object:
    model = torch.nn.Linear(3, 4)
    return model.load_state_dict({"weight": torch.zeros(2, 2)})


@maker
def safetensors_truncated(folder: Path) -> object:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file({"w": torch.arange(40_000)}, path)
    path.write_bytes(path.read_bytes()[:5000])
    return load_file(path)


@maker
def safetensors_flipped_length(folder: Path) -> object:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file({"w": torch.arange(40_000)}, path)
    flip(path, 6)
    return load_file(path)


@maker
def safetensors_flipped_header(folder: Path) -> object:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file({"w": torch.arange(40_000)}, path)
    flip(path, 9)
    return load_file(path)


def dcp_saved(folder: Path) -> Path:
    path = folder / "step-40"
    dcp.save({"w": torch.arange(40_000)}, checkpoint_id=path)
    return path


@maker
def dcp_without_metadata(folder: Path) -> object:
    path = dcp_saved(folder)
    (path / ".metadata").unlink()
    return dcp.load({"w": torch.zeros(40_000)}, checkpoint_id=path)


@maker
def dcp_truncated(folder: Path) -> object:
    path = dcp_saved(folder)
    part = next(path.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:5000])
    return dcp.load({"w": torch.zeros(40_000, dtype=torch.int64)}, checkpoint_id=path)


@maker
def dcp_missing_part(folder: Path) -> object:
    path = dcp_saved(folder)
    next(path.glob("*.distcp")).unlink()
    return dcp.load({"w": torch.zeros(40_000, dtype=torch.int64)}, checkpoint_id=path)


@maker
def dcp_flipped_metadata(folder: Path) -> object:
    path = dcp_saved(folder)
    flip(path / ".metadata", 30)
    return dcp.load({"w": torch.zeros(40_000, dtype=torch.int64)}, checkpoint_id=path)


class Items(Dataset[Any]):  # type: ignore[misc]  # torch may be untyped
    def __init__(self, fail: Callable[[int], object]) -> None:
        self._fail = fail

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self._fail(index)
        return index


def die(signum: int) -> Callable[[int], object]:
    """Dies while the reader waits for it: torch tells it in a signal handler, whose exception is lost in much else."""

    def fail(index: int) -> None:
        looks = ""
        while not looks.endswith("SSS"):
            looks += Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(") ")[2][0]
            time.sleep(0.005)
        os.kill(os.getpid(), signum)

    return fail


def read(fail: Callable[[int], object], workers: int = 1) -> object:
    return list(DataLoader(Items(fail), batch_size=2, num_workers=workers))


def read_plain(fail: Callable[[int], object]) -> object:
    """Without tensors: one that is on its way dies with its worker, and that is told before what killed it."""
    return list(DataLoader(Items(fail), batch_size=None, num_workers=1))


@maker
def worker_killed(folder: Path) -> object:
    return read_plain(die(signal.SIGKILL))


@maker
def worker_bus(folder: Path) -> object:
    return read_plain(die(signal.SIGBUS))


@maker
def worker_segv(folder: Path) -> object:
    return read_plain(die(signal.SIGSEGV))


@maker
def worker_exits(folder: Path) -> object:
    return read(lambda index: os._exit(3))


def bad_sample(index: int) -> object:
    raise ValueError(f"bad sample {index}")


@maker
def worker_raises(folder: Path) -> object:
    return read(bad_sample)


@maker
def worker_imports(folder: Path) -> object:
    return read(lambda index: __import__("no_such_tokenizer"))


@maker
def worker_disk_full(folder: Path) -> object:
    def fill(index: int) -> object:
        with open("/dev/full", "w") as file:
            return file.write("x" * 100_000)

    return read(fill)


@maker
def sample_raises(folder: Path) -> object:
    return read(bad_sample, workers=0)


@maker
def cpu_allocator(folder: Path) -> object:
    return torch.empty(1 << 50)


@maker
def memory_error(folder: Path) -> object:
    return bytearray(1 << 60)


@maker
def wrapped_from(folder: Path) -> object:
    try:
        return load_truncated(folder)
    except Exception as error:
        raise ValueError("could not restore the trainer") from error


@maker
def wrapped_in_handler(folder: Path) -> object:
    try:
        return load_truncated(folder)
    except Exception:
        raise ValueError("could not restore the trainer")  # noqa: B904  # that is the point


@maker
def benign_context(folder: Path) -> object:
    try:
        return importlib.import_module("no_such_accelerator")
    except ImportError:
        raise ValueError("bad batch")  # noqa: B904  # that is the point


def spawned(index: int, folder: str) -> None:
    bad_sample(index)


@maker
def spawn_raises(folder: Path) -> object:
    return torch.multiprocessing.spawn(spawned, (str(folder),), nprocs=1)


def spawned_dies(index: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@maker
def spawn_dies(folder: Path) -> object:
    return torch.multiprocessing.spawn(spawned_dies, nprocs=1)


@maker
def write_to_full_device(folder: Path) -> object:
    with open("/dev/full", "w") as file:
        return file.write("x" * 100_000)


@maker
def no_cuda(folder: Path) -> object:
    return torch.zeros(1, device="cuda")


SMALL: dict[str, Callable[[Path], object]] = {}


def small(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """The same for what fails where there is no room."""
    SMALL[make.__name__] = make
    return make


@small
def save_full(folder: Path) -> object:
    return torch.save(STATE, folder / "ckpt_40.pt")


@small
def save_legacy_full(folder: Path) -> object:
    return torch.save(STATE, folder / "ckpt_40.pt", _use_new_zipfile_serialization=False)


@small
def safetensors_full(folder: Path) -> object:
    from safetensors.torch import save_file

    return save_file({"w": torch.arange(40_000)}, folder / "model.safetensors")


@small
def dcp_full(folder: Path) -> object:
    return dcp.save({"w": torch.arange(40_000)}, checkpoint_id=folder / "step-40")


@small
def python_full(folder: Path) -> object:
    return (folder / "log").write_bytes(bytes(1 << 20))


def record(make: Callable[[Path], object], folder: Path) -> dict[str, Any] | None:
    """The exception as the hooks describe it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        try:
            make(folder)
        except BaseException as error:
            return _describe(error)
    except RuntimeError as late:  # torch raises about a dead worker in a signal handler, wherever the process is
        return _describe(late)
    return None


def _describe(error: BaseException) -> dict[str, Any]:
    told = describe(error, error.__traceback__)
    return {name: told[name] for name in ("error", "message", "traceback")}


def main() -> None:
    folder, small_folder, *names = Path(sys.argv[1]), *sys.argv[2:]
    told = {name: record(make, folder / name) for name, make in MAKERS.items() if not names or name in names}
    if small_folder and not names:
        for name, make in SMALL.items():
            place = Path(small_folder)
            told[name] = record(make, place)
            for path in sorted(place.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
