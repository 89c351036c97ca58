"""A folder of torch.distributed.checkpoint's: `.metadata`, renamed into place last, and the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from guardrun.launcher.checkpoints.pickles import BadPickle, Node, TooLong, walk_pickle
from guardrun.launcher.checkpoints.torchfile import CRC_LIMIT_BYTES, check_zip
from guardrun.launcher.checkpoints.torchzip import BadZip, Span
from guardrun.launcher.checkpoints.verdicts import Torn, Verdict, Whole, explain

METADATA = ".metadata"
METADATA_LIMIT_BYTES = 8 << 20
"""A longer one (thousands of ranks) would take seconds to read: then presence is checked, not length."""
_NAME = re.compile(rb"__\d+_\d+\.distcp")


class Extent(tuple[str, int, int]):
    """(file relative to the folder, offset, length) of one stored item."""


def parse_extents(data: bytes) -> list[Extent]:
    """List what `.metadata` says is stored where. Raises BadPickle, TooLong."""
    root, _ = walk_pickle(data)
    state = root.state if isinstance(root, Node) else None
    if not isinstance(state, dict) or "state_dict_metadata" not in state:
        raise BadPickle("is not torch.distributed.checkpoint's")
    stored = state.get("storage_data")
    extents: list[Extent] = []
    for info in stored.values() if isinstance(stored, dict) else ():
        fields: Any = info.state if isinstance(info, Node) else None
        if isinstance(fields, dict) and isinstance(fields.get("relative_path"), str):
            offset, length = fields.get("offset"), fields.get("length")
            if isinstance(offset, int) and isinstance(length, int):
                extents.append(Extent((fields["relative_path"], offset, length)))
    return extents


def _check_extents(folder: str, extents: list[Extent], sizes: Mapping[str, int]) -> str:
    """Say what is missing; empty: nothing."""
    ends: dict[str, int] = {}
    for name, offset, length in extents:
        ends[name] = max(ends.get(name, 0), offset + length)
    for name, end in sorted(ends.items()):
        size = sizes.get(os.path.join(folder, name))
        if size is None:
            return f"lacks {name}, which its .metadata names"
        if size < end:
            return f"has only {size} of {end} bytes of {name}"
    return ""


def _check_items(folder: str, extents: list[Extent]) -> str:
    """Check the CRCs of the items, each of which torch.save wrote; empty: nothing is damaged. Raises OSError."""
    by_file: dict[str, list[Extent]] = {}
    for extent in extents:
        by_file.setdefault(extent[0], []).append(extent)
    for name, items in by_file.items():
        with open(os.path.join(folder, name), "rb") as file:
            spans = [Span(file.fileno(), offset, length) for _, offset, length in items]
            starts = [os.pread(span.fd, 2, span.start) for span in spans]
            if not any(start == b"PK" for start in starts):
                continue  # Another serialisation (safetensors), or compressed.
            for span in spans:
                try:
                    check_zip(span)
                except BadZip as error:
                    return f"{name} {error}"
    return ""


def check_dcp(folder: str, sizes: Mapping[str, int], *, deep: bool = False) -> Verdict:
    """Say whether every file that `.metadata` names is there with its length (sizes: bytes per absolute path).

    Up to CRC_LIMIT_BYTES in all, or with deep, the items' checksums are compared too.
    """
    path = os.path.join(folder, METADATA)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return Torn("lacks .metadata, which is written last: the save did not finish")
    except OSError as error:
        return Torn(f".metadata {explain(error)}")
    if len(data) > METADATA_LIMIT_BYTES:
        return _check_names(folder, data, sizes)
    try:
        extents = parse_extents(data)
        trouble = _check_extents(folder, extents, sizes)
        if not trouble and (deep or sum(sizes.values()) <= CRC_LIMIT_BYTES):
            trouble = _check_items(folder, extents)
    except BadPickle:
        return Torn("has a damaged .metadata")
    except TooLong:
        return _check_names(folder, data, sizes)
    except OSError as error:
        return Torn(explain(error))
    return Torn(trouble) if trouble else Whole()


def _check_names(folder: str, data: bytes, sizes: Mapping[str, int]) -> Verdict:
    if not data.endswith(b"."):  # pickle's STOP
        return Torn("has a damaged .metadata")
    for name in sorted({match.decode() for match in _NAME.findall(data)}):
        if not sizes.get(os.path.join(folder, name)):
            return Torn(f"lacks {name}, which its .metadata names")
    return Whole()
