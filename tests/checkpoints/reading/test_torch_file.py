"""torch.save's files: every cut and every changed bit is found, or changes nothing; whole ones are whole."""

from __future__ import annotations

import enum
import io
import os
import shutil
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guardrun.supervisor.checkpoints.reading.torch_file import (
    CRC_LIMIT_BYTES,
    check_torch_file,
    describe_torch_file,
)
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Whole

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
KINDS = ["training", "legacy", "weights", "metrics", "cache", "odd", "module", "unchecked"]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_are_whole(samples: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(samples[kind])
    assert check_torch_file(str(path)) == Whole()
    assert check_torch_file(str(path), deep=True) == Whole()


@pytest.mark.parametrize("kind", ["metrics", "weights", "legacy"])
def test_every_cut_is_found(samples: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    data = samples[kind]
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    for size in range(len(data) - 1, -1, -1):
        os.truncate(path, size)
        assert isinstance(check_torch_file(str(path)), Torn), size


@given(data=st.data())
@SHARED
def test_any_cut_and_any_zeroed_tail_is_found(samples: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    """A file system that lost what was not yet on disk leaves zeros where the data was."""
    whole = samples[data.draw(st.sampled_from(["training", "odd", "module"]))]
    size = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path / "x.pt"
    path.write_bytes(whole[:size])
    assert isinstance(check_torch_file(str(path)), Torn)
    path.write_bytes(whole[:size] + b"\0" * (len(whole) - size))
    if whole[size:].strip(b"\0"):
        assert isinstance(check_torch_file(str(path)), Torn)


def _load(torch: ModuleType, data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def _is_same(torch: ModuleType, one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(_is_same(torch, one[key], other[key]) for key in one)
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else one == other


@given(data=st.data())
@SHARED
def test_any_changed_bit_is_found_or_changes_nothing(
    torch: ModuleType, samples: dict[str, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    """torch itself is the judge: what is called whole loads, and loads the same."""
    whole = samples["weights"]
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    path = tmp_path / "x.pt"
    path.write_bytes(changed)
    if isinstance(check_torch_file(str(path)), Whole):
        assert _is_same(torch, _load(torch, bytes(changed)), _load(torch, whole)), bit


def test_every_bit_of_the_directory_counts(torch: ModuleType, samples: dict[str, bytes], tmp_path: Path) -> None:
    whole = samples["metrics"]
    (start,) = struct.unpack("<I", whole[-6:-2])
    path = tmp_path / "x.pt"
    for bit in range(start * 8, len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        if isinstance(check_torch_file(str(path)), Whole):
            assert _load(torch, bytes(changed)) == _load(torch, whole), (bit // 8 - start, bit % 8)


@given(noise=st.binary(max_size=300), start=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x04\x95"]))
@settings(SHARED, max_examples=300)
def test_noise_is_torn_and_never_raises(tmp_path: Path, noise: bytes, start: bytes) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(start + noise)
    assert isinstance(check_torch_file(str(path)), Torn)
    assert describe_torch_file(str(path)) is None


@given(data=st.data())
@SHARED
def test_damaged_legacy_files_never_raise(samples: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(samples["legacy"])
    for _ in range(data.draw(st.integers(1, 4))):
        # It holds addresses, whose digits differ from run to run: what is drawn must not.
        changed[data.draw(st.integers(0, 9999)) % len(changed)] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.pt"
    path.write_bytes(changed)
    check_torch_file(str(path))
    describe_torch_file(str(path))


def test_a_large_file_is_read_whole_only_on_demand(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    torch.save({"w": torch.zeros(CRC_LIMIT_BYTES // 4 + 4096)}, path)
    with path.open("r+b") as file:
        file.seek(CRC_LIMIT_BYTES // 2)
        file.write(b"\1")
    assert check_torch_file(str(path)) == Whole()
    deep = check_torch_file(str(path), deep=True)
    assert isinstance(deep, Torn) and "checksum" in deep.reason
    os.truncate(path, path.stat().st_size - 1)
    assert isinstance(check_torch_file(str(path)), Torn)


def test_an_archive_that_torch_did_not_write_is_another_format(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    archive = shutil.make_archive(str(tmp_path / "other"), "zip", tmp_path / "in")
    assert isinstance(check_torch_file(archive), Torn)
    assert describe_torch_file(archive) is None


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert check_torch_file(str(tmp_path / "gone.pt")) == Torn("cannot be read: No such file or directory")
    assert check_torch_file(str(tmp_path)) == Torn("cannot be read: Is a directory")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic link" in str(check_torch_file(str(tmp_path / "a")))


@pytest.mark.parametrize(
    ("kind", "has_optimizer", "has_model", "step"),
    [
        ("training", True, True, 40),
        ("legacy", True, True, 40),
        ("weights", False, True, None),
        ("module", False, True, None),
        ("metrics", False, False, None),
        ("cache", False, False, None),
        ("lightning", True, False, 77),
    ],
)
def test_contents_are_told_without_loading(
    samples: dict[str, bytes], tmp_path: Path, kind: str, *, has_optimizer: bool, has_model: bool, step: int | None
) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(samples[kind])
    contents = describe_torch_file(str(path))
    assert contents is not None
    assert (contents.has_optimizer, contents.has_model, contents.step) == (has_optimizer, has_model, step)
    assert bool(contents.tensors) == (kind not in ("metrics", "lightning"))


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "RMSprop", "Adam"])
def test_an_optimizer_is_told_under_any_key(torch: ModuleType, tmp_path: Path, optimizer: str) -> None:
    model = torch.nn.Linear(2, 2)
    made = getattr(torch.optim, optimizer)(model.parameters())
    torch.save({"a": model.state_dict(), "b": {"c": made.state_dict()}}, tmp_path / "x.pt")
    contents = describe_torch_file(str(tmp_path / "x.pt"))
    assert contents is not None and contents.has_optimizer and contents.keys == ("a", "b")


class Settings:
    """As Trainer pickles its arguments (training_args.bin): nothing of them is trained."""

    def __init__(self) -> None:
        self.optim = Names.ADAM
        self.optim_args = {"eps": 1e-8}
        self.optim_target_modules = ["attention"]


class Names(enum.Enum):
    ADAM = "adam"


def test_settings_of_an_optimizer_are_no_state_of_one(torch: ModuleType, tmp_path: Path) -> None:
    torch.save(Settings(), tmp_path / "args.bin")
    torch.save({"optim": {"exp": {0: torch.zeros(2)}}}, tmp_path / "state.pt")
    torch.save({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict()}, tmp_path / "sgd.pt")
    found = [describe_torch_file(str(tmp_path / name)) for name in ("args.bin", "state.pt", "sgd.pt")]
    assert [contents is not None and contents.has_optimizer for contents in found] == [False, True, True]
