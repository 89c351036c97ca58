"""Having code run in a rank of this node: the socket of its supervisor, found by the rank's own process, and asked."""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from guardrun.supervisor.base.own_files import name_user
from guardrun.supervisor.collect.host.process_table import ProcessTable, parse_environ, read_environ
from guardrun.supervisor.wire.live_socket import LIVE_SOCKET, MAX_ANSWER_BYTES, find_fault, receive, send, who_may_not

CONNECT_S = 5.0


class LiveRefused(Exception):
    """Why code is not run; in words."""


def find_ranks(run_id: str) -> dict[int, tuple[Path, bool]]:
    """This user's ranks of a run on this node → the folder of their supervisor's sockets, and may code be run there.

    By what they were started with: a run may have several nodes, and each a folder of its own.
    """
    found: dict[int, tuple[Path, bool]] = {}
    uid = os.geteuid()
    for pid, one in sorted(ProcessTable.read().stats.items()):
        try:
            if one.state in "ZX" or os.stat(f"/proc/{pid}").st_uid != uid:
                continue
        except OSError:
            continue
        environ = parse_environ(read_environ(one))
        if environ.get("GUARDRUN_RUN_ID") != run_id:
            continue
        try:
            hooks = json.loads(environ["GUARDRUN_HOOKS"])
            found.setdefault(int(environ["RANK"]), (Path(str(hooks["sockets"])), hooks.get("eval") is True))
        except (KeyError, ValueError, TypeError, RecursionError):
            continue
    return found


def run_code(folder: Path, asked: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Ask, and wait for the answer: `told` and `node`, or `error`. Raises LiveRefused.

    Both ends look at the other's credentials: code may hold what nobody else is to read.
    """
    path = folder / LIVE_SOCKET
    try:
        if why := find_fault(folder):
            raise LiveRefused(f"{folder} {why}: code is given to this user's own supervisor alone")
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LiveRefused("its supervisor on this node is not there to be asked") from None
    except OSError as error:
        raise LiveRefused(f"{path}: {error.strerror or error}") from None
    try:
        at = os.fstat(held)
        if not stat.S_ISSOCK(at.st_mode) or at.st_uid != os.geteuid():
            raise LiveRefused(f"{path} is no socket of this user, but {name_user(at.st_uid)}'s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(CONNECT_S)
            peer.connect(f"/proc/self/fd/{held}")
            if why := who_may_not(peer):
                raise LiveRefused(f"{path}: {why}")
            with suppress(BrokenPipeError):  # it says no before it has heard all
                send(peer, asked)
            return receive(peer, MAX_ANSWER_BYTES, timeout_s)
    except (OSError, ValueError, RecursionError) as error:
        raise LiveRefused(f"its supervisor did not answer: {error}") from None
    finally:
        os.close(held)
