"""Has a trace read by a process of its own (reader_process.py), and says what became of that. Nothing here waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.collect.profiles.reader_process import CPU_S, Answer
from guardrun.supervisor.collect.ranks.stack_dumps import end_program
from guardrun.supervisor.rundir.profiles import MAX_SUMMARY_BYTES, Breakdown

END_S = 0.1
_ROOT = Path(__file__).absolute().parents[4]
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from guardrun.supervisor.collect.profiles.reader_process import main; main()"
)


class TraceReader:
    """One process at work."""

    def __init__(self, trace: Path, compressed: Path) -> None:
        """Begin. trace: what a rank has written, which is gone afterwards. Raises OSError."""
        self._trace = trace
        self._answer = trace.with_suffix(".answer")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        answer = os.open(self._answer, flags, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(_ROOT), str(trace), str(compressed)],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(answer)

    def poll(self) -> int | None:
        """Its exit status; None while it reads."""
        return self._process.poll()

    def end(self) -> None:
        """Stop it, whatever it has, and forget the trace."""
        if self._process.poll() is None:
            end_program(self._process, END_S)
        for path in (self._trace, self._answer):
            path.unlink(missing_ok=True)

    def read(self) -> tuple[Breakdown, int, str]:
        """What the trace comes to, once it has ended; the compressed one's bytes, or why there is none.

        Raises ValueError that says why there is nothing.
        """
        status = self._process.returncode
        if status in {-signal.SIGXCPU, -signal.SIGKILL}:
            raise ValueError(f"its trace takes longer than {CPU_S} s to read, or more memory than there is")
        if status:
            raise ValueError(f"its trace can't be read (the reader ended with {status})")
        with self._answer.open("rb") as file:
            data = file.read(MAX_SUMMARY_BYTES + 1)
        if len(data) > MAX_SUMMARY_BYTES:
            raise ValueError("what its trace comes to is too long")
        answer = msgspec.json.decode(data, type=known_type(Answer))
        if answer.breakdown is None:
            raise ValueError("its trace has no operators, and no kernels")
        return answer.breakdown, answer.trace_bytes, answer.trace_trouble
