"""Folders of torch.distributed.checkpoint's, written by the installed torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.supervisor.checkpoints.reading.confined_reader import Here
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA, parse_extents
from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat, read_stat
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.torch_file import CRC_LIMIT_BYTES
from guardrun.supervisor.checkpoints.reading.torch_zip import Span, read_records
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Verdict, Whole
from tests.checkpoints.conftest import Write

DATA = "__0_0.distcp"


def _stats(folder: Path) -> dict[str, FileStat]:
    return {str(path): stat for path in folder.iterdir() if (stat := read_stat(str(path))) is not None}


def _check(folder: Path) -> Verdict:
    return Inspector(Here()).check_dcp(str(folder), _stats(folder))


@pytest.fixture
def folder(tmp_path: Path, write: Write) -> Path:
    write(tmp_path, {"step-40": "@dcp"})
    return tmp_path / "step-40"


def test_what_torch_wrote_is_whole(folder: Path) -> None:
    assert _check(folder) == Whole()


def test_the_metadata_names_every_byte(folder: Path) -> None:
    extents = parse_extents((folder / METADATA).read_bytes())
    assert {name for name, _, _ in extents} == {DATA}
    assert max(offset + length for _, offset, length in extents) == (folder / DATA).stat().st_size


def test_every_cut_of_the_data_is_found(folder: Path) -> None:
    whole = (folder / DATA).read_bytes()
    for size in range(0, len(whole), 97):
        (folder / DATA).write_bytes(whole[:size])
        assert isinstance(_check(folder), Torn), size
    (folder / DATA).write_bytes(whole[:-1])
    assert isinstance(_check(folder), Torn)


def test_a_cut_is_found_where_there_is_too_much_to_compare_checksums(folder: Path) -> None:
    stats = _stats(folder)
    large = {str(folder / "__1_0.distcp"): FileStat(0, CRC_LIMIT_BYTES + 1, 0, 0)}
    assert Inspector(Here()).check_dcp(str(folder), stats | large) == Whole()
    stats[str(folder / DATA)] = stats[str(folder / DATA)]._replace(size=stats[str(folder / DATA)].size - 1)
    assert f"bytes of {DATA}" in str(Inspector(Here()).check_dcp(str(folder), stats | large))


def test_every_cut_of_the_metadata_is_found(folder: Path) -> None:
    whole = (folder / METADATA).read_bytes()
    for size in range(0, len(whole), 11):
        (folder / METADATA).write_bytes(whole[:size])
        assert isinstance(_check(folder), Torn), size


def test_changed_data_is_found(folder: Path) -> None:
    whole = (folder / DATA).read_bytes()
    for _, offset, length in parse_extents((folder / METADATA).read_bytes()):
        with (folder / DATA).open("rb") as file:
            records = read_records(Span(file.fileno(), offset, length))
        for record in records.values():
            changed = bytearray(whole)
            changed[offset + record.offset] ^= 0xFF
            (folder / DATA).write_bytes(changed)
            assert isinstance(_check(folder), Torn), record.name
            (folder / DATA).write_bytes(whole)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / DATA).unlink()
    assert _check(folder) == Torn(f"lacks {DATA}, which its .metadata names")
    (folder / METADATA).unlink()
    assert "did not finish" in str(_check(folder))


def test_foreign_metadata_is_damaged(folder: Path) -> None:
    (folder / METADATA).write_bytes(b"\x80\x04}.")
    assert _check(folder) == Torn("has a damaged .metadata")
