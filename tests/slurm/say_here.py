"""Prints what read_slurm says, as a line of JSON: run by the jobs of test_steps.py."""

from __future__ import annotations

import json
import os
import sys

from guardrun.slurm.client.job_environment import read_slurm, refusal

here = read_slurm(os.environ)
wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1
said = None if here is None else {**here._asdict(), "job": here.job, "is_step": here.is_step}
print(json.dumps({"here": said, "refusal": refusal(here, wanted) if here else ""}), flush=True)
