"""A launcher's part in passing on what one rank writes: python -m tests.launcher.attempt.stderr_bed REPORT MAX_STARTS
PROGRAM …

PROGRAM is the rank. REPORT gets a JSON line for each thing that happens: "began" (pid of the process between),
"relay_…" as the launcher's log has it, and "ended" (the rank's exit code, the end of what was kept, in hexadecimal).
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from guardrun.launcher.attempt import stderr_capture


def main(report: Path, max_starts: int, program: list[str]) -> int:
    def tell(event: str, **fields: Any) -> None:
        with report.open("a") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")

    stderr_capture.MAX_STARTS = max_starts
    way = stderr_capture.find_way()
    assert way is not None
    relay = stderr_capture.Relay([0], way, tell)
    tell("began", pids=sorted(relay.pids), is_terminal=way.is_terminal, has_stdout=way.has_stdout)
    outlets = relay.outlets()
    with ExitStack() as files:
        stderr = files.enter_context(open(outlets.stderr[0], "w"))
        stdout = files.enter_context(open(outlets.stdout[0], "w")) if outlets.stdout else None
        rank = subprocess.Popen(program, stdout=stdout, stderr=stderr, start_new_session=True)
        relay.begin()
    code = rank.wait()
    relay.settle(0, limit_s=60.0)
    kept = Path(relay.copy(0)).read_bytes()
    relay.end(still_s=60.0, limit_s=60.0)
    tell("ended", code=code, kept=kept[-4096:].hex(), kept_bytes=len(kept), left=sorted(relay.pids))
    relay.close()
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
