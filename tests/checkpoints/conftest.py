"""Real files, written once by the installed torch."""

from __future__ import annotations

import importlib
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from guardrun.supervisor.checkpoints import chooser
from guardrun.supervisor.checkpoints.reading.confined_reader import Here


@pytest.fixture(autouse=True)
def _judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests' files are judged in their own process, at once; `test_judge.py` has the real one."""
    monkeypatch.setattr(chooser, "Confined", Here)


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """The installed torch."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def samples(torch: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What torch.save writes, per kind."""
    folder = tmp_path_factory.mktemp("samples")
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 40}
    torch.save(state, folder / "training")
    torch.save(state, folder / "legacy", _use_new_zipfile_serialization=False)
    torch.save(model.state_dict(), folder / "weights")
    torch.save({"loss": [2.5, 2.25], "when": "now"}, folder / "metrics")
    torch.save({"tokens": torch.arange(64)}, folder / "cache")
    torch.save({"state_dict": {}, "global_step": 77, "optimizer_states": [{"state": 1}]}, folder / "lightning")
    odd = {
        "half": torch.zeros(4, dtype=torch.bfloat16),
        "float8": torch.zeros(3).to(torch.float8_e4m3fn),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "empty": torch.empty(0),
        "meta": torch.empty(3, device="meta"),
        "bool": torch.zeros(3, dtype=torch.bool),
        "view": torch.arange(10)[2:4],
        "set": {1, 2},
    }
    torch.save(odd, folder / "odd")
    torch.save(torch.nn.Sequential(model), folder / "module")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, folder / "unchecked")
    finally:
        torch.serialization.set_crc32_options(True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="session")
def dcp_sample(torch: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What torch.distributed.checkpoint writes, per file."""
    import torch.distributed.checkpoint as dcp

    folder = tmp_path_factory.mktemp("dcp") / "step-40"
    model = torch.nn.Linear(6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nothing is distributed here.
        dcp.save({"model": model.state_dict(), "step": 40, "note": "x"}, checkpoint_id=str(folder), no_dist=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def safetensors_bytes(data: bytes = b"\0" * 4096) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps(
        {
            "weight": {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]},
            "__metadata__": {"format": "pt"},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + data


Write = Callable[[Path, dict[str, Any]], None]


@pytest.fixture
def write(samples: dict[str, bytes], dcp_sample: dict[str, bytes]) -> Write:
    """Write files below a folder: names to contents.

    A str of the form `@kind` is a sample; `@dcp` (the name then is a folder's) a DCP folder, `@safetensors` such a
    file; other values are text, bytes, or JSON.
    """

    def write_files(folder: Path, files: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            path = folder / name
            if value == "@dcp":
                path.mkdir(parents=True, exist_ok=True)
                for part, data in dcp_sample.items():
                    (path / part).write_bytes(data)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if value == "@safetensors":
                path.write_bytes(safetensors_bytes())
            elif isinstance(value, str) and value.startswith("@"):
                path.write_bytes(samples[value[1:]])
            elif isinstance(value, bytes):
                path.write_bytes(value)
            else:
                path.write_text(value if isinstance(value, str) else json.dumps(value))

    return write_files
