"""guardrun with the small supervisor of these tests in place of guardrund."""

from __future__ import annotations

import sys
from pathlib import Path

from guardrun.launcher.main import main

SUPERVISOR = (sys.executable, str(Path(__file__).with_name("fake_supervisor.py")), "guardrund")

if __name__ == "__main__":
    sys.exit(main(supervisor_command=SUPERVISOR))
