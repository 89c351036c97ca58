from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from guardrun.supervisor.collect.host.process_table import end_processes, end_run
from guardrun.supervisor.collect.host.procfs import read_stat
from tests.collect.conftest import StartScript
from tests.support.processes import marked
from tests.support.waiting import wait_until

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(60)
"""
LAUNCHER = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
sleeper = [sys.executable, '-c', 'import time; time.sleep(60)']
double = 'import os, subprocess, sys\\nsubprocess.Popen(sys.argv[1:], start_new_session=True)'
subprocess.Popen(sleeper)
subprocess.run([sys.executable, '-c', double, *sleeper])
bare = subprocess.Popen(sleeper, env={k: v for k, v in os.environ.items() if k != 'GUARDRUN_TOKEN'})
print('ready', flush=True)
print(bare.pid, flush=True)
time.sleep(60)
"""
SPAWNER = """
import os, time
print('ready', flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    time.sleep(0.002)
"""


def test_a_process_that_ignores_sigterm_or_is_stopped_ends(start_script: StartScript) -> None:
    stubborn, stopped = start_script(STUBBORN), start_script(STUBBORN)
    os.kill(stopped.pid, signal.SIGSTOP)
    assert end_processes([(stubborn.pid, stubborn.start), (stopped.pid, stopped.start)]) == []
    assert stubborn.process.wait() == stopped.process.wait() == -signal.SIGKILL
    assert end_processes([(stubborn.pid, stubborn.start)]) == []


def test_a_pid_used_again_is_spared(start_script: StartScript) -> None:
    script = start_script(STUBBORN)
    assert end_processes([(script.pid, script.start + 1)]) == []
    assert script.process.poll() is None


def test_what_a_killed_launcher_leaves_is_found_by_mark_and_by_memory(start_script: StartScript) -> None:
    launcher = start_script(LAUNCHER, env={"GUARDRUN_TOKEN": "mark-end"})
    assert launcher.process.stdout is not None
    bare = int(launcher.process.stdout.readline())
    stat = read_stat(bare)
    assert stat is not None
    wait_until(lambda: len(marked("GUARDRUN_TOKEN", "mark-end")) == 3, 5, "launcher, child and orphan")
    launcher.process.kill()
    launcher.process.wait()
    assert end_run(launcher.pid, "mark-end", {bare: stat.start, os.getppid(): 1}) == []
    assert marked("GUARDRUN_TOKEN", "mark-end") == []
    after = read_stat(bare)
    assert after is None or after.is_dead


def test_a_launcher_that_lives_is_spared_and_its_descendants_are_not(start_script: StartScript) -> None:
    launcher = start_script(LAUNCHER)
    assert launcher.process.stdout is not None
    bare = int(launcher.process.stdout.readline())
    assert end_run(launcher.pid, "mark-none", launcher_start=launcher.start + 1) == []
    stat = read_stat(bare)
    assert stat is not None and not stat.is_dead
    assert end_run(launcher.pid, "mark-none", launcher_start=launcher.start) == []
    stat = read_stat(bare)
    assert stat is None or stat.is_dead
    assert launcher.process.poll() is None


def test_a_process_that_keeps_starting_others_is_ended_with_all_of_them(start_script: StartScript) -> None:
    spawner = start_script(SPAWNER, env={"GUARDRUN_TOKEN": "mark-bomb"}, ends_asleep=False)
    wait_until(lambda: len(marked("GUARDRUN_TOKEN", "mark-bomb")) > 20, 10, "a crowd")
    assert end_run(0, "mark-bomb", {spawner.pid: spawner.start}) == []
    assert marked("GUARDRUN_TOKEN", "mark-bomb") == []


def test_we_are_never_among_the_marked() -> None:
    code = (
        "import json\nfrom guardrun.supervisor.collect.host.process_table import end_run\n"
        "print(json.dumps(end_run(0, 'mark-self')))"
    )
    env = {**os.environ, "GUARDRUN_TOKEN": "mark-self"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
    assert json.loads(out) == []
