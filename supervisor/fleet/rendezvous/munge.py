"""MUNGE's two commands: a credential says who made it, and only the user it is for can read it.

https://dun.github.io/munge/ : a daemon on every node of a cluster that shares one key. Credentials are signed with the
uid of whoever asked for them, expire, and are decoded once on a host.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

TIMEOUT_S = 5.0
TTL_S = 60
"""A node that is introduced asks and is answered within seconds; the clocks of a cluster may differ by some."""
MAX_CREDENTIAL_BYTES = 16 * 1024
_CREDENTIAL = re.compile(rb"MUNGE:[A-Za-z0-9+/=]+:")
_STATUS = re.compile(rb"STATUS:\s*(.*)")
_UID = re.compile(rb"\((\d+)\)$")


class MungeError(Exception):
    """No credential could be made, or one is not to be trusted; says why."""


def encode(payload: bytes, uid: int, socket: str = "") -> bytes:
    """A credential that only this uid (and root) can read. Blocks up to TIMEOUT_S. Raises MungeError."""
    command = ["munge", f"--restrict-uid={uid}", f"--ttl={TTL_S}", *_socket(socket)]
    return _run(command, payload).strip()


def decode(credential: bytes, socket: str = "") -> tuple[int, bytes]:
    """(uid of its maker, payload). Blocks up to TIMEOUT_S.

    Raises MungeError for one that is forged, for somebody else, expired, or was decoded here before.
    """
    if len(credential) > MAX_CREDENTIAL_BYTES or not _CREDENTIAL.fullmatch(credential):
        raise MungeError("no credential")
    return parse_decoded(_run(["unmunge", "--keys=STATUS,UID,LENGTH", *_socket(socket)], credential))


def parse_decoded(output: bytes) -> tuple[int, bytes]:
    """(uid, payload) of what unmunge writes: a table, an empty line, the payload. Raises MungeError."""
    head, _, payload = output.partition(b"\n\n")
    fields = {key: value.strip() for key, _, value in (line.partition(b":") for line in head.splitlines())}
    uid = _UID.search(fields.get(b"UID", b""))
    if fields.get(b"STATUS") != b"Success (0)" or uid is None:
        raise MungeError(f"unmunge: {fields.get(b'STATUS', b'no answer').decode(errors='replace')}")
    if fields.get(b"LENGTH") != str(len(payload)).encode():
        raise MungeError("unmunge: the payload has another length than it says")
    return int(uid[1]), payload


def _socket(path: str) -> Sequence[str]:
    return [f"--socket={path}"] if path else []


def _run(command: Sequence[str], data: bytes) -> bytes:
    """Its output. With a status other than 0 nothing of it counts: unmunge writes the payload all the same."""
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise MungeError(f"no program {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise MungeError(f"{command[0]} gave no answer for {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise MungeError(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise MungeError(_reason(command[0], done))
    return done.stdout


def _reason(program: str, done: subprocess.CompletedProcess[bytes]) -> str:
    """unmunge says it in its table, munge on standard error."""
    status = _STATUS.match(done.stdout)
    if status is not None:
        return f"{program}: {status[1].decode(errors='replace')}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"{program} ended with {done.returncode}"
