"""Asking Slurm by its programs: in bounded time, again where it is away, and whatever becomes of it is an answer.

`scontrol`'s one-line output is read, never --json: that differs between versions, and needs plugins. The functions
block for their time limit at most: call them from a thread that may wait, never from a loop.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

TIMEOUT_S = 10.0
"""A busy slurmctld answers within seconds; Slurm's programs themselves try for MessageTimeout, 10 s by default."""
_END_S = 0.5
_MAX_CHARS = 16 * 1024 * 1024
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/opt/slurm/current/bin")
"""Where they lie beside PATH, which a prolog does not have."""

_unreaped: list[subprocess.Popen[str]] = []
"""Killed, and stuck in the kernel: on a file system that does not answer."""


class FailureKind(str, Enum):
    """Why Slurm gave no answer, and what that means for whoever asked."""

    MISSING = "missing"
    """Its program is not there: this machine knows no Slurm. Do without, and do not ask again."""
    SILENT = "silent"
    """No answer in time, or no controller: ask again later."""
    REFUSED = "refused"
    """This user may not. Say so once, and do not ask again."""
    UNKNOWN = "unknown"
    """There is no such job or node (any more)."""
    FAILED = "failed"
    """Whatever else it said: in `text`."""


class Failure(NamedTuple):
    """No answer; one sentence for a person."""

    kind: FailureKind
    text: str


class Slurm(NamedTuple):
    """How Slurm is asked: with which environment and how much patience."""

    environ: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    @classmethod
    def here(cls, timeout_s: float = TIMEOUT_S) -> Slurm:
        """Asked with this process's own environment (SLURM_CONF, PATH)."""
        return cls(os.environ, timeout_s)

    def run(self, program: str, *arguments: str, stdin: str = "") -> str | Failure:
        """What one of Slurm's programs prints to stdout, or why it could not. stdin: what it is given to read."""
        return self._run([program, *arguments], stdin=stdin)

    def run_unstoppable(self, *commands: Sequence[str]) -> str | Failure:
        """As run, of several commands one after the other until one fails; the signals that end a job do not end them.

        For commands by which a process ends the job that it is itself part of.
        """
        ignore = "trap '' TERM INT HUP USR1 USR2; "
        # Each command is words of "$@", counted off: nothing in them is read as shell.
        steps = [f"{_quote_arguments(sum(map(len, commands[:n])), len(one))}" for n, one in enumerate(commands)]
        first = commands[0][0]
        path = self.find(first)
        if path is None:
            return _missing(first)
        words = [self.find(one[0]) or one[0] if n == 0 else word for one in commands for n, word in enumerate(one)]
        return self._run(["sh", "-c", ignore + " && ".join(steps), "sh", *words], name=first)

    def find(self, program: str) -> str | None:
        """The program's path."""
        path = os.pathsep.join((self.environ.get("PATH", ""), *_FOLDERS))
        return shutil.which(program, path=path)

    def _run(self, command: list[str], name: str = "", stdin: str = "") -> str | Failure:
        name = name or command[0]
        path = self.find(command[0])
        if path is None:
            return _missing(name)
        _reap()
        try:
            process = subprocess.Popen(
                [path, *command[1:]],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env=self._environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a name that is no argument: it holds a zero byte
            return Failure(FailureKind.FAILED, f"{name} could not be started: {error}")
        try:
            out, said = process.communicate(stdin or None, timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return Failure(FailureKind.SILENT, f"{name} did not answer within {self.timeout_s:g} s")
        if process.returncode != 0:
            return explain(name, said or out, process.returncode)
        return out[:_MAX_CHARS]

    def _environment(self) -> dict[str, str]:
        """Seconds since the epoch in place of local times, and no translation."""
        return {**self.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def explain(program: str, said: str, status: int) -> Failure:
    """What Slurm's words on stderr mean (22.05's; others' are FAILED, word for word)."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = f"{program} ended with {status} and said nothing"
    if lines:
        text = f"{program}: {lines[-1].removeprefix(f'{program}: ')[:300]}"
    lower = said.lower()
    for kind, phrases in _PHRASES.items():
        if any(phrase in lower for phrase in phrases):
            return Failure(kind, text)
    return Failure(FailureKind.FAILED, text)


_PHRASES = {
    FailureKind.MISSING: ("could not establish a configuration source",),
    FailureKind.SILENT: (
        "unable to contact slurm controller",
        "socket timed out",
        "connection refused",
        "slurm temporarily unable",
        "slurm backup controller in standby",
        "zero bytes were transmitted or received",
        "message receive failure",
        "message send failure",
        "communication connection failure",
        "munge encode failed",
    ),
    FailureKind.REFUSED: (
        "invalid user id",
        "access/permission denied",
        "permission denied",
        "job violates accounting",
        "user not permitted",
    ),
    FailureKind.UNKNOWN: ("invalid job id", "invalid node name", "not found", "invalid job array"),
}


def parse_fields(line: str) -> dict[str, str]:
    """`A=1 B=two words C=3`, as scontrol -o prints: values may hold blanks, and then end before the next ` Name=`.

    A name that comes twice keeps its first value: what a user put into a comment or a command does not replace it.
    """
    fields: dict[str, str] = {}
    name = ""
    for word in line.strip().split(" "):
        head, sign, rest = word.partition("=")
        if sign and head[:1].isalpha() and head.replace("_", "").replace("/", "").replace(":", "").isalnum():
            name = head if head not in fields else ""
            if name:
                fields[name] = rest
        elif name:
            fields[name] += f" {word}"
    return {key: value.strip() for key, value in fields.items()}


def clean_for_submission(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment to submit from: without what the job told that we are in ourselves, which sbatch would hand on."""
    kept = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"}
    return {
        name: value
        for name, value in environ.items()
        if name in kept or not name.startswith(("SLURM_", "SLURMD_", "PMI_", "PMIX_"))
    }


def _quote_arguments(begin: int, count: int) -> str:
    """A shell's words for `count` of its arguments from the one at `begin` (from 0)."""
    return " ".join(f'"${{{begin + n + 1}}}"' for n in range(count))


def _missing(program: str) -> Failure:
    return Failure(FailureKind.MISSING, f"there is no program {program} here")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it and all that it has started, and wait for neither."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session, and not reaped: the number is still its own
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        _unreaped.append(process)


def _reap() -> None:
    for process in list(_unreaped):
        if process.poll() is not None and process in _unreaped:
            _unreaped.remove(process)


# Retry --------------------------------------------------------------------------------------------------------------
# Asking again where Slurm is away: its controller is started anew, or too busy to answer.


FIRST_WAIT_S, MOST_WAIT_S = 2.0, 30.0
"""Pauses grow from one to the other. A controller of a large cluster takes a minute or two to be back."""


class _Outcome(Protocol):
    @property
    def is_silent(self) -> bool:
        """Slurm has not answered: ask again."""
        ...


Answer = TypeVar("Answer", bound=_Outcome)


class Patience(NamedTuple):
    """How long, and by which clock."""

    until_s: float
    """Of now_s: it is asked for the last time then."""
    wait: Callable[[float], object] = time.sleep
    """For so long. Something true: no time is left, ask for the last time now."""
    now_s: Callable[[], float] = time.monotonic


def ask_again(
    ask: Callable[[], Answer], patience: Patience, first_silence: Callable[[Answer], object] | None = None
) -> Answer:
    """Ask until Slurm answers, or patience is at its end: the last answer. first_silence: told once, if it is silent.

    What is asked for has to bear to be asked for twice: an order may have arrived, and its answer not.
    """
    pause_s, is_last = FIRST_WAIT_S, False
    while True:
        answer = ask()
        left_s = patience.until_s - patience.now_s()
        if not answer.is_silent or is_last or left_s <= 0:
            return answer
        if first_silence is not None:
            first_silence(answer)
            first_silence = None
        is_last = bool(patience.wait(min(pause_s, left_s)))
        pause_s = min(2 * pause_s, MOST_WAIT_S)
