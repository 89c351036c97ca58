"""What a process finds when it begins, as JSON on stdout: the same whether it was executed or forked."""

import json
import os
import signal
import sys
import traceback

FRAMES = [frame.name for frame in traceback.extract_stack()]


def read(name: str) -> str:
    with open(f"/proc/self/{name}", encoding="utf-8") as file:
        return file.read()


def stream(one: object) -> list[object]:
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed")
    return [str(getattr(one, name, None)) for name in names]


main = sys.modules["__main__"]
found = {
    "is forked": any(type(one).__name__ == "Stash" for one in sys.meta_path),
    "command": read("cmdline").split("\0"),
    "environ": sorted(read("environ").split("\0")),
    "os.environ": dict(os.environ),
    "name": read("comm"),
    "cwd": os.getcwd(),
    "umask": os.umask(0o022),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "leads a session": os.getsid(0) == os.getpid(),
    "parent": os.getppid(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "finders": [name for one in sys.meta_path if (name := getattr(one, "__name__", type(one).__name__)) != "Stash"],
    "torch": [name for name in ("torch", "numpy", "guardrun", "zmq") if name in sys.modules],
    "frames": FRAMES,
    "main": {
        name: str(value).split(" at 0x")[0]
        for name, value in vars(main).items()
        if name.startswith("__") and name != "__loader__"
    },
    "loader": type(main.__loader__).__name__,
    "signals": {str(one): str(signal.getsignal(one)).split(" at ", maxsplit=1)[0] for one in signal.valid_signals()},
    "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
    "hooks": [getattr(sys, name).__name__ for name in ("excepthook", "displayhook", "unraisablehook")],
}
print(json.dumps(found))
