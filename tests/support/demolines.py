"""What may stand on the terminal while the demo trains: guardrun's own lines and the script's, and nothing else."""

from __future__ import annotations

import re

OWN = re.compile(
    r"guardrun: .+"  # the launcher's
    r"|[\d,]+ characters, [\d,]+ parameters, \d+ ranks on \w+, (from scratch|resuming from \S+)"
    r"|step +\d+  loss \d+\.\d+ +\d+\.\d+ s"
)
RESOLVER = re.compile(r".*\[W\d.*\] The hostname of the client socket cannot be retrieved\. err=-3")
"""torch's, where the machine's resolver does not answer in time (EAI_AGAIN)."""


def foreign_lines(text: str) -> list[str]:
    """Lines that neither guardrun nor examples/demo/train.py wrote: a library's warnings, for instance."""
    lines = [line for line in text.splitlines() if line and not OWN.fullmatch(line)]
    return [line for line in lines if not RESOLVER.fullmatch(line)]
