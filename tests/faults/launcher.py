"""Faults of the launcher: guardrun itself, its streams, the folder that it was started in."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from tests.faults.bed import SAVE_EVERY, Bed, stop
from tests.faults.row import Row
from tests.faults.stories import Continued, Mended, Unfelt
from tests.runs.runs import SCRIPTS
from tests.support.outlet import guardrun_with
from tests.support.processes import Process, is_alive, read_all, read_process
from tests.support.real import find_program


def launcher(bed: Bed) -> Process:
    found = read_process(bed.run.pid)
    assert found is not None
    return found


def killed(bed: Bed) -> str:
    bed.run.send(signal.SIGKILL)
    return ""


def killed_with_its_supervisor(bed: Bed) -> str:
    """Nobody is left to end the ranks: the kernel does."""
    daemon = bed.supervisor()
    os.kill(daemon.pid, signal.SIGSTOP)
    bed.run.send(signal.SIGKILL)
    os.kill(daemon.pid, signal.SIGKILL)
    return ""


def killed_between_attempts(bed: Bed) -> str:
    bed.hurt()
    bed.wait_for(lambda: bed.said("stop_began"), "the stop to begin")
    bed.run.send(signal.SIGKILL)
    return ""


def asked_to_end_without_its_supervisor(bed: Bed) -> str:
    os.kill(bed.supervisor().pid, signal.SIGSTOP)
    bed.run.send(signal.SIGTERM)
    assert bed.is_gone().returncode == 128 + signal.SIGTERM
    return "exit 143"


@dataclass(frozen=True)
class Stopped:
    seconds: float

    def __call__(self, bed: Bed) -> str:
        before = bed.saved
        stop([launcher(bed)], self.seconds)
        assert bed.saved > before, "ranks went on meanwhile"
        return "ranks went on meanwhile"


def stopped_as_a_rank_is_killed(bed: Bed) -> str:
    stop([launcher(bed)], 3.0)
    return ""


def slow_to_stop(bed: Bed) -> None:
    bed.config += "[restart]\nstop_grace_s = 3\n"


def by_shell(line: str, *words: str) -> list[str]:
    return ["bash", "-c", f"set -o pipefail; {line}", "bash", *words]


@dataclass(frozen=True)
class Closed:
    """Streams that it is started without, as a daemon's child is."""

    streams: str

    def __call__(self, bed: Bed) -> None:
        bed.program = by_shell(f'exec {find_program("guardrun")} "$@" {self.streams}')


def heard_by_nobody(bed: Bed) -> None:
    """Whoever reads its stderr has ended."""
    bed.program = by_shell(f'{{ {find_program("guardrun")} "$@" 2>&1 >&3 | true; }} 3>&1')


def from_a_folder_of_its_own(bed: Bed) -> None:
    """The script works elsewhere."""
    own, script = bed.folder / "own", bed.folder / "elsewhere.py"
    own.mkdir()
    plain = str(SCRIPTS / "plain.py")
    script.write_text(f"import os, runpy\nos.chdir({str(bed.folder)!r})\nrunpy.run_path({plain!r})\n")
    bed.script = script
    bed.config = bed.config.replace('dir = "out"', f'dir = "{bed.folder}/out"')
    bed.flags = [f"--guard-config={bed.folder}/guardrun.toml"]
    bed.program = by_shell(f'cd {own} && exec {find_program("guardrun")} "$@"')


def without_its_folder(bed: Bed) -> str:
    (bed.folder / "own").rmdir()
    return ""


def through_a_pipe(bed: Bed) -> None:
    bed.program = guardrun_with("pipe")


def without_the_process_between(bed: Bed) -> str:
    mine = {process.pid for process in bed.run.alive()}
    between = [one for one in read_all() if one.ppid in mine and "relay.py" in one.command and is_alive(one.pid)]
    assert between
    for process in between:
        os.kill(process.pid, signal.SIGKILL)
    bed.trains(10 * SAVE_EVERY)
    return ""


STUBBORN = ("--leave-children", "--ignore-sigterm")

ROWS = (
    Row("launcher", "SIGKILL", "in training", Continued(killed), is_sample=True),
    Row("launcher", "SIGKILL", "with children of ranks that ignore SIGTERM", Continued(killed, arguments=STUBBORN)),
    Row("launcher", "SIGKILL, and of the supervisor at once", "in training", Continued(killed_with_its_supervisor)),
    Row(
        "launcher",
        "SIGKILL",
        "between two attempts",
        Continued(killed_between_attempts, slow_to_stop, ("--ignore-sigterm",)),
    ),
    Row("launcher", "SIGTERM", "with a supervisor that is stopped", Continued(asked_to_end_without_its_supervisor)),
    Row("launcher", "SIGSTOP, SIGCONT after 3 s", "in training", Unfelt(Stopped(3.0))),
    Row("launcher", "SIGSTOP, SIGCONT after 15 s", "in training", Unfelt(Stopped(15.0))),
    Row("launcher", "SIGSTOP, SIGCONT after 3 s", "as a rank is killed", Mended(stopped_as_a_rank_is_killed)),
    Row("launcher", "its stderr is closed", "from the beginning", Unfelt(prepare=Closed("2>&-"))),
    Row("launcher", "its stdin is closed", "from the beginning", Unfelt(prepare=Closed("<&-"))),
    Row("launcher", "nobody reads its stderr", "from the beginning", Unfelt(prepare=heard_by_nobody)),
    Row(
        "launcher",
        "its working folder is removed",
        "in training",
        Unfelt(without_its_folder, from_a_folder_of_its_own),
    ),
    Row(
        "launcher",
        "the process between ranks and its stderr is killed",
        "in training",
        Unfelt(without_the_process_between, through_a_pipe),
    ),
)
