"""Reading the small files of /proc and /sys, with the reason where one cannot be read."""

from __future__ import annotations

import errno
import os

_BYTES = 1 << 20
_REASONS = {
    errno.ENOENT: "is not there",
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
    errno.EOPNOTSUPP: "is switched off in this kernel",
}


def below(root: str, path: str) -> str:
    """An absolute path, as seen from root."""
    return path if root == "/" else root.rstrip("/") + path


def why(error: OSError, path: str) -> str:
    """Why a file cannot be read, in words."""
    reason = _REASONS.get(error.errno or 0) or error.strerror or type(error).__name__
    return f"{path} {reason}"


def read_text(path: str) -> tuple[str, str]:
    """What a file holds, and why it can't be read (empty: it could)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return "", why(error, path)
    try:
        chunks = []
        left = _BYTES
        while left > 0 and (chunk := os.read(fd, min(left, 1 << 16))):
            chunks.append(chunk)
            left -= len(chunk)
    except OSError as error:
        return "", why(error, path)
    finally:
        os.close(fd)
    return b"".join(chunks).decode("utf-8", "replace"), ""


def read_word(path: str) -> str:
    """The content of a file of one value; empty where it can't be read."""
    return read_text(path)[0].strip()


def parse_count(text: str) -> int | None:
    """A whole number, in decimal or (`0x…`) hexadecimal; None where it is none."""
    text = text.strip()
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None


def read_count(path: str) -> int | None:
    """The number that a file of one value holds; None where it can't be read."""
    return parse_count(read_word(path))


def list_folder(path: str) -> list[str]:
    """Names in a folder, sorted; empty where it is not there."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
