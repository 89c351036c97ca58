"""CURVE key pairs of a run: as ZeroMQ prints them, 40 characters of Z85."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import zmq

KEY_CHARS = 40
"""32 bytes in Z85 (ZeroMQ RFC 32)."""
_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]"
_PATTERN = re.compile(_Z85 + "{40}", re.ASCII)

Key = Annotated[str, msgspec.Meta(pattern=f"^{_Z85}{{40}}$", min_length=KEY_CHARS, max_length=KEY_CHARS)]


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A public key and its secret. Never printed: the text of one shows the public key alone."""

    public: Key
    secret: Key

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def make_key_pair() -> KeyPair:
    """A new pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode(), secret=secret.decode())


def is_key(text: str) -> bool:
    """Say whether a text is a key's form."""
    return _PATTERN.fullmatch(text) is not None
