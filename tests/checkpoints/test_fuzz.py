"""No file that is a few bytes off is the end of whoever looks into it. `make soak` plays 100,000 such files."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path

from hypothesis import settings

from tests.checkpoints.conftest import safetensors_bytes

COUNT = 100_000 if settings.default is not None and settings.default.max_examples > 1000 else 5000
_TORCH = ("torch", "companion", "contents", "parallel")


def write_seeds(folder: Path, samples: dict[str, bytes], dcp_sample: dict[str, bytes]) -> None:
    """Files of every format as they are really written, and pickles of every protocol (`fuzz`)."""
    found: list[tuple[bytes, str, tuple[str, ...]]] = []
    for name, data in samples.items():
        found.append((data, "", _TORCH))
        if data[:2] == b"PK" and name != "unchecked":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                record = next(each for each in archive.namelist() if each.endswith("data.pkl"))
                found.append((archive.read(record), "archive", _TORCH))
    found.append((dcp_sample[".metadata"], "", ("metadata", "companion")))
    found.append((dcp_sample["__0_0.distcp"], "", ("torch", "companion")))
    plain = {"step": 3, "args": {"lr": 0.5, "names": ["a", None, True]}, 4: (1, 2), "big": 1 << 99}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found.append((pickle.dumps(plain, protocol), "", ("companion", "metadata")))
        found.append((pickle.dumps(plain, protocol), "legacy", _TORCH))
    found.append((safetensors_bytes(b"\0" * 64), "", ("safetensors",)))
    found.append((safetensors_bytes(b"")[8:], "safetensors", ("safetensors",)))
    found.append((gzip.compress(b"x" * 99), "", ("companion",)))
    index = json.dumps({"metadata": {}, "weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}})
    state = json.dumps({"global_step": 40, "log_history": [{"loss": 0.5, "step": n} for n in range(9)]}, indent=2)
    lines = "".join(f'{{"loss": {n}.5}}\n' for n in range(9))
    found += [(text.encode(), "", ("json", "shards", "step")) for text in (index, state, lines)]
    for at, (data, _, _) in enumerate(found):
        (folder / str(at)).write_bytes(data)
    (folder / "seeds.json").write_text(
        json.dumps([(str(at), wrap, kinds) for at, (_, wrap, kinds) in enumerate(found)])
    )


def test_no_mutation_is_the_end_of_anybody(
    tmp_path: Path, samples: dict[str, bytes], dcp_sample: dict[str, bytes]
) -> None:
    """In soak it takes a minute or two: each of 100,000 files is written, read and judged."""
    write_seeds(tmp_path, samples, dcp_sample)
    number = str(random.getrandbits(63))
    command = [sys.executable, "-m", "tests.checkpoints.fuzz", str(tmp_path), number, str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(240, COUNT / 50), check=False)
    last = (tmp_path / "file").read_bytes()[:2000]
    assert done.returncode == 0, (command[2:], done.returncode, done.stderr, last)
    said = json.loads(done.stdout)
    assert sum(said.values()) == COUNT
    assert said["torn"] > COUNT / 10 and said["whole"] > COUNT / 100, said
