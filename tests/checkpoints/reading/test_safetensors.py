"""safetensors files: as long as their header says, or torn."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guardrun.supervisor.checkpoints.reading.json_documents import check_safetensors
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Whole
from tests.checkpoints.conftest import safetensors_bytes


def test_a_whole_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes())
    assert check_safetensors(str(path)) == Whole()
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    assert check_safetensors(str(path)) == Whole()


def test_every_cut_is_found_and_so_is_what_is_too_long(tmp_path: Path) -> None:
    whole = safetensors_bytes()
    path = tmp_path / "model.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert isinstance(check_safetensors(str(path)), Torn), size
    path.write_bytes(whole + b"\0")
    assert isinstance(check_safetensors(str(path)), Torn)


@given(st.binary(max_size=120))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_never_raises(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(noise)
    check_safetensors(str(path))
    path.write_bytes(struct.pack("<Q", len(noise)) + noise)
    check_safetensors(str(path))


def test_a_header_of_another_shape_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    values: list[Any] = [[], {"a": 1}, {"a": {"data_offsets": [1]}}, {"a": {"data_offsets": [5, 2]}}]
    for value in values:
        header = json.dumps(value).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        assert check_safetensors(str(path)) == Torn("has a damaged header")
