"""What a rank and its node answer with where it was profiled."""

from __future__ import annotations

PROFILED = {
    "steps": [[7, 1_500_000]],
    "wanted": 1,
    "plain_ns": 1_000_000,
    "held_ns": [1, 2, 3],
    "trace": "profiles/001/rank-0.json.gz",
    "trace_folder": "/runs/vocab-1",
    "trace_bytes": 9,
    "trace_trouble": "",
    "breakdown": {"where": "host", "window_s": 1.0, "parts": {}, "communication_s": 0.0, "hidden_s": 0.0,
                  "operators": [], "events": 4},
}  # fmt: skip
