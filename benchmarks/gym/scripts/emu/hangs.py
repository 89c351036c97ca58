"""What stops training on a device for good. The comment `# here: NAME` marks the line that a good verdict names."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time


def fetch_batch() -> None:
    time.sleep(3600)  # here: emu_sleep


def fetch_beside_spinning_hosts() -> None:
    time.sleep(3600)  # here: emu_spin_wait


def wait_for_flag() -> None:
    polls = 0
    while not os.environ.get("FLAG_THAT_NOBODY_SETS"):  # here: emu_spin
        polls += 1


def call_driver() -> None:
    ctypes.PyDLL(None).sleep(3600)  # here: emu_gil


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fetch_references() -> None:
    time.sleep(3600)  # here: emu_eval


def read_features() -> None:
    time.sleep(3600)  # here: emu_backward


def read_shard_features() -> None:
    time.sleep(3600)  # here: emu_fsdp_backward


def load_experts() -> None:
    time.sleep(3600)  # here: emu_lazy_comm


def fetch_statistics() -> None:
    time.sleep(3600)  # here: emu_fsdp_sleep


def read_source() -> None:
    time.sleep(3600)  # here: emu_pp_first


def fetch_labels() -> None:
    time.sleep(3600)  # here: emu_pp_last


def fetch_positions() -> None:
    time.sleep(3600)  # here: emu_cp_sleep


def fetch_tokens() -> None:
    time.sleep(3600)  # here: emu_uneven_sleep


def query_tracker() -> None:
    time.sleep(3600)  # here: emu_mixed_metrics


def fetch_prompts() -> None:
    time.sleep(3600)  # here: emu_graph_sleep


def leave_early() -> None:
    sys.exit(0)


def leave_badly() -> None:
    sys.exit(3)


def load_sample() -> None:
    raise ValueError("bad sample 17")  # here: emu_exception


def load_tokens() -> None:
    raise ValueError("bad sample 17")  # here: emu_uneven_exception


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
