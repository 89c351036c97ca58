"""What may stand on the terminal while the demo trains: guardrun's own lines and the script's, and nothing else."""

from __future__ import annotations

import re

OWN = re.compile(
    r"guardrun: .+"  # the launcher's
    r"|[\d,]+ characters, [\d,]+ parameters, \d+ ranks on \w+, (from scratch|resuming from \S+)"
    r"|step +\d+  loss \d+\.\d+ +\d+\.\d+ s"
)


def foreign_lines(text: str) -> list[str]:
    """Lines that neither guardrun nor examples/demo/train.py wrote: a library's warnings, for instance."""
    return [line for line in text.splitlines() if line and not OWN.fullmatch(line)]
