"""The list of names that vulture is told to pass over (pyproject.toml) holds none that it would not find."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_every_name_that_is_passed_over_would_be_found(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vulture"]
    none = tmp_path / "none.toml"
    none.write_text("")
    options = ["--config", str(none), "--min-confidence", str(settings["min_confidence"])]
    command = [sys.executable, "-m", "vulture", *options, *settings["paths"]]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    found = re.findall(r"unused [\w ]+ '(\w+)' ", done.stdout)
    assert [name for name in settings["ignore_names"] if not fnmatch.filter(found, name)] == []
