"""What a rank sees of its launcher, written to seen-RANK-ATTEMPT.json of the working folder. Imports no torch.

Arguments are kept as they come; one of them may be a JSON object that says how to end:
    {"exit": 3, "rank": 1, "attempts": 1}   sys.exit(3) in rank 1 of the first attempt; "signal", "raise" likewise
    {"print": "lines"}                      numbered lines on stdout and stderr; "ragged": the last one unended
    {"wait": ["SIGTERM"], "deaf": false}    stay until one of these comes; deaf: note it and stay
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from typing import Any


def read_status(*names: str) -> dict[str, str]:
    with open("/proc/self/status") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    return {name: fields[name].strip() for name in names}


def kind_of(fd: int) -> str:
    try:
        return str(stat.S_IFMT(os.fstat(fd).st_mode))
    except OSError:
        return "closed"


def look() -> dict[str, Any]:
    """Everything that a launcher decides for a rank."""
    umask = os.umask(0)
    os.umask(umask)
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith(("_", "n_", "index"))}
    spec = globals()["__spec__"]
    return {
        "environment": dict(os.environ),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "executable": sys.executable,
        "path": sys.path,
        "flags": {name: value for name, value in flags.items() if not callable(value)},
        "names": [__name__, __file__, __package__, getattr(spec, "name", None)],
        "is_write_through": sys.stdout.write_through,  # type: ignore[union-attr]
        "cwd": os.getcwd(),
        "umask": oct(umask),
        "nice": os.nice(0),
        "is_session_leader": os.getsid(0) == os.getpid(),
        "is_group_leader": os.getpgid(0) == os.getpid(),
        "std": [kind_of(fd) for fd in range(3)],
        "status": read_status("SigBlk", "SigIgn", "NoNewPrivs", "Groups"),
        "stdin": sys.stdin.read() if os.environ.get("LOCAL_RANK") == "0" and "READ_STDIN" in os.environ else None,
    }


def write(name: str, text: str) -> None:
    """Whole or not at all: tests wait for these files."""
    with open(f".{name}", "w") as file:
        file.write(text)
    os.rename(f".{name}", name)


def parse_wishes(arguments: list[str]) -> dict[str, Any]:
    return next((json.loads(argument) for argument in arguments if argument.startswith("{")), {})


def wait_for(signals: list[str], me: str, is_deaf: bool) -> None:
    heard: list[str] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name] for name in signals})
    write(f"waiting-{me}", str(os.getpid()))
    while is_deaf or not heard:
        heard.append(signal.Signals(signal.sigwait({signal.Signals[name] for name in signals})).name)
        write(f"heard-{me}", " ".join(heard))


def end(wishes: dict[str, Any], rank: int, attempt: int) -> None:
    if attempt >= wishes.get("attempts", attempt + 1):
        return
    if rank != wishes.get("rank", rank):
        time.sleep(600 if wishes.get("others_stay") else 0)
        return
    while not all(os.path.exists(f"seen-{other}-{attempt}.json") for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)  # whoever fails is last
    if "raise" in wishes:
        raise ValueError(wishes["raise"])
    if "signal" in wishes:
        os.kill(os.getpid(), signal.Signals[wishes["signal"]])
    sys.exit(wishes.get("exit", 0))


def main() -> None:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    me = f"{rank}-{attempt}"
    wishes = parse_wishes(sys.argv[1:])
    if wishes.get("print"):
        for number in range(3):
            # One write a line: the ends of two ranks' lines could come apart otherwise.
            sys.stdout.write(f"line {number} of rank {rank} in attempt {attempt}\n")
            sys.stderr.write(f"error {number} of rank {rank} in attempt {attempt}\n")
        if wishes["print"] == "ragged":
            sys.stdout.write("no newline at the end")
            sys.stdout.flush()
    write(f"seen-{me}.json", json.dumps(look()))
    if "wait" in wishes:
        wait_for(wishes["wait"], me, wishes.get("deaf", False))
    end(wishes, rank, attempt)


if __name__ == "__main__":
    main()
