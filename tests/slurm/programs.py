"""guardrun's programs as jobs start them, and settings for jobs that lose a node."""

from __future__ import annotations

import sys
from pathlib import Path

GUARDRUN = Path(sys.executable).with_name("guardrun")
GUARDCTL = Path(sys.executable).with_name("guardctl")
QUICKER = {"GUARDRUN_FLEET_LOST_S": "10", "GUARDRUN_FLEET_TERM_S": "6"}
"""The time that a switch needs to fail over is no part of this story."""
