"""One case under one launcher, in a folder of its own; its processes ended whatever happens."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.gym.case import Case, Chain, Decoy, Doubt, Fault
from benchmarks.gym.launchers import FAILED, ROOT, Launcher, ask_stall, limit_s, with_heartbeats
from benchmarks.gym.observation import (
    Observation,
    Told,
    find_line,
    names_line,
    read_entries,
    read_incidents,
    read_stalls,
    read_times,
)
from benchmarks.job import free_port
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import is_alive, kill_marked, marked

SCRIPTS = ROOT / "benchmarks" / "gym" / "scripts"
MARKED = (SCRIPTS / "hangs.py", SCRIPTS / "crashes.py")
EMU_MARKED = tuple(SCRIPTS / "emu" / name for name in ("hangs.py", "layouts.py", "mixed.py"))
POLL_S = 0.1
START_CAP_S = 120.0
"""For a rank to get to the planting."""
END_GRACE_S = 45.0
"""For a launcher to end what it started, once it is told to; torchrun's own limit is 30 s."""
RESTARTED_CAP_S = 60.0
"""More, for a run that was restarted before its cap: to train to its end."""
SETTLE_S = 1.0
"""After a launcher's end, before what is left counts as left."""
PLANTED_AT, EMU_PLANTED_AT = (120, 160), (60, 80)
"""Some six seconds into training. Sooner, the start is most of what guardrun knows of this run's usual gaps, and on a
busy machine it lasts long: what is three times as long is told late."""
STEPS_AFTER, EMU_STEPS_AFTER = 45, 30
"""On the emulated device steps are half as many, and last twice as long: each costs more."""
TAIL_CHARS = 4000
AT_THE_START = (
    "init", "import_error", "first_step", "long_load", "new_group", "emu_new_group", "emu_first_call", "emu_fsdp_first"
)  # fmt: skip
"""Cases that come before the first step."""

_SIGNS = {
    "killed": r"exitcode: -9\b",
    "segfault": r"exitcode: -11\b",
    "abort": r"exitcode: -6\b",
    "bus_error": r"exitcode: -7\b",
    "exit_code": r"exitcode: [1-9]",
    "exception": r"\b(?:Value|Runtime)Error: ",
    "import_error": r"ModuleNotFoundError: ",
    "host_oom": r"MemoryError",
    "collective_mismatch": r"mismatch",
}
"""What in the output of a launcher that knows no causes tells one to a person who reads it."""


@dataclass(frozen=True)
class Turn:
    """One case to play."""

    case: Case
    launcher: Launcher
    repeat: int
    seed: int

    @property
    def lasts_s(self) -> float:
        """About how long: long ones go first, so that no single one is left at the end."""
        if isinstance(self.case, Fault) and self.case.doubt is not Doubt.CRASH:
            patience = self.launcher.patience
            return self.launcher.hang_cap_s if patience is None else limit_s(self.case, patience)
        return self.case.seconds if isinstance(self.case, Decoy) else 20.0

    @property
    def step(self) -> int:
        """At which it is planted; the same for every launcher."""
        if self.case.name in AT_THE_START:
            return 0
        return random.Random(f"{self.seed} {self.repeat} {self.case.name}").randint(
            *(EMU_PLANTED_AT if self.case.workload.is_emu else PLANTED_AT)
        )

    @property
    def plan(self) -> list[str]:
        """GYM_PLAN's items, as scripts/planted.py reads them."""
        if isinstance(self.case, Chain):
            links = enumerate(self.case.links * self.case.rounds, 1)
            return [planting(link, number * self.case.steps_apart) for number, link in links]
        return [planting(self.case, self.step)]

    @property
    def steps(self) -> int:
        """How long the script trains."""
        between = self.case.steps_apart * len(self.plan) if isinstance(self.case, Chain) else 0
        usual = EMU_STEPS_AFTER if self.case.workload.is_emu else STEPS_AFTER
        return self.step + between + (self.case.steps_after or usual)

    @property
    def script(self) -> Path:
        return SCRIPTS / "emu" / "train.py" if self.case.workload.is_emu else SCRIPTS / "train.py"

    @property
    def line(self) -> str:
        """FILE:LINE that a good verdict names; empty: there is none."""
        if not isinstance(self.case, Fault) or not self.case.has_line:
            return ""
        return find_line(self.case.name, [self.script, *(EMU_MARKED if self.case.workload.is_emu else MARKED)])


def planting(case: Case, step: int) -> str:
    """An item of GYM_PLAN."""
    ranks = "+".join(map(str, case.planted_in))
    seconds = case.seconds if isinstance(case, Decoy) else 0
    return (
        f"{case.name}@{step}:{ranks}:{seconds}:{'every' if isinstance(case, Fault) and case.every_attempt else 'first'}"
    )


class Stopped(Exception):
    """The gym is being ended."""


def play(turn: Turn, folder: Path, *, keep: bool = False, stop: threading.Event | None = None) -> Observation:
    """Play it in a folder that is made anew. keep: leave the folder, to look into. Raises Stopped once stop is set."""
    case, launcher = turn.case, turn.launcher
    seen = Observation(
        case=case.name,
        launcher=launcher.name,
        repeat=turn.repeat,
        seed=turn.seed,
        step=turn.step,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"),
        cap_s=launcher.cap_s(case),
        patience=launcher.patience,
        load_1m=round(os.getloadavg()[0], 2),
    )
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "log").mkdir(parents=True)
    script = folder / "train.py"
    text = turn.script.read_text()
    script.write_text(with_heartbeats(text) if launcher.gives_heartbeats else text)
    run = _Run(turn, folder, script)
    try:
        seen.returncode = run.watch(seen.cap_s, stop or threading.Event())
        time.sleep(SETTLE_S)
        seen.left = [str(process) for process in marked(MARK, run.mark)]
    finally:
        kill_marked(MARK, run.mark)
        run.process.wait(10)
    read_run(seen, run, turn.line)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return seen


def read_run(seen: Observation, run: _Run, line: str) -> None:
    """Fill in what the run has left."""
    output = run.output()
    seen.output_tail = output[-TAIL_CHARS:]
    if run.launcher.name == "guardrun":
        seen.told = read_incidents(run.folder / "runs", line)
        seen.told += [] if seen.told else run.reported
        seen.stalls = read_stalls(run.folder / "runs")
    elif run.noticed_at is not None:
        seen.told = [told_by_output(output, run.launcher, run.noticed_at, line)]
    seen.ended_at = run.ended_at
    read_times(seen, read_entries(run.folder / "log"))
    if seen.planted_at is None:
        seen.trouble = "it was never planted"


class _Run:
    """The launcher at work."""

    def __init__(self, turn: Turn, folder: Path, script: Path) -> None:
        self.launcher = turn.launcher
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.noticed_at: float | None = None
        self.ended_at: float | None = None
        """When the first rank of attempt 0 was seen to have ended; POLL_S late at most."""
        self.reported: list[Told] = []
        """What guardrun had reported, and not acted on, when the gym ended it."""
        self._pids: list[int] = []
        self._output = folder / "output.txt"
        self._read = 0
        self._pending = ""
        extra: dict[str, str | None] = {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
            "XDG_RUNTIME_DIR": None,
            "GUARDRUN_DIR": str(folder / "runs"),
            "GYM_WORKLOAD": turn.case.workload.value,
            "GYM_PLAN": ",".join(turn.plan),
            "GYM_STEPS": str(turn.steps),
            "GYM_LOG": str(folder / "log"),
            **turn.launcher.environment,
            **dict(turn.case.environment),
        }
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                turn.launcher.command(turn.case, free_port(), script),
                cwd=folder,
                env=clean_environment(self.mark, extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def watch(self, cap_s: float, stop: threading.Event) -> int | None:
        """Until it ends; its exit status, or None where the gym had to end it. Raises Stopped."""
        began_s = time.monotonic()
        planted_s: float | None = None
        while self.process.poll() is None:
            self._look()
            now_s = time.monotonic()
            if planted_s is None:
                planted_s = now_s if self._has(b'"planted"') else None
            self._look_for_end(planted_s is not None)
            until_s = began_s + START_CAP_S if planted_s is None else planted_s + cap_s
            if now_s > until_s and (now_s > until_s + RESTARTED_CAP_S or not self._has(b'"attempt": 1,')):
                self._end()
                return None
            if stop.wait(POLL_S):
                raise Stopped
        self._look()
        return self.process.returncode

    def _has(self, words: bytes) -> bool:
        """Say whether the script's log has them."""
        return any(words in path.read_bytes() for path in (self.folder / "log").glob("rank-*.jsonl"))

    def _look(self) -> None:
        """Note when what counts as a finding appears."""
        if self.noticed_at is not None or self._output.stat().st_size <= self._read:
            return
        with self._output.open("rb") as file:
            file.seek(self._read)
            chunk = file.read()
        self._read += len(chunk)
        self._pending = (self._pending + chunk.decode(errors="replace"))[-100_000:]
        if any(re.search(pattern, self._pending) for pattern in self.launcher.findings):
            self.noticed_at = time.time()

    def _look_for_end(self, is_planted: bool) -> None:
        if is_planted and not self._pids:
            entries = read_entries(self.folder / "log")
            self._pids = [entry.pid for entry in entries if entry.what == "first" and entry.attempt == 0]
        if self.ended_at is None and not all(is_alive(pid) for pid in self._pids):
            self.ended_at = time.time()

    def _end(self) -> None:
        """As a person would: ask the launcher, and wait for it to end its ranks."""
        if self.launcher.patience is not None:
            self.reported = ask_stall(self.folder / "runs")
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            pass


def told_by_output(output: str, launcher: Launcher, at: float, line: str) -> Told:
    """What a person can read in the output of a launcher that knows exit codes, or heartbeats, and no causes."""
    matches = [match for pattern in launcher.findings for match in re.finditer(pattern, output)]
    first = min(matches, key=lambda match: match.start())
    same = [match for match in matches if match.re is first.re]
    # A rank that ended; else what somebody has waited for in vain: heartbeats, or, torch's watchdog, a collective.
    is_end = first.re.pattern == FAILED
    blamed = [int(first["rank"])] if is_end else sorted({int(match["rank"]) for match in same})
    causes = [cause for cause, sign in _SIGNS.items() if re.search(sign, output)] if is_end else []
    return Told(
        at=at,
        kind="crash" if is_end else "hang",
        cause=" ".join(causes),
        culprits=blamed,
        summary=first.group(),
        action="restart",
        names_line=bool(line) and names_line(output, line),
    )
