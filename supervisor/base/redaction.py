"""Leave secrets out of what is recorded and said: names are kept, values that look like secrets are not.

What comes from outside (exceptions, stderr, command lines) passes here once, before the engine sees it; the journal,
incident.json, reports and the terminal hold what is left. Logs and the terminal's lines pass here as a whole.

A secret is known by where it stands (after a name that says so, in a URL, in a header) or by the shape that a service
gives its keys. One that stands by itself and has no such shape (a password that is printed) is not known.
tests/report/secrets.py holds what must be, and what must not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

HIDDEN = "(not recorded)"

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE"
    r"|(?:^|_)(?:PWD|PAT|SAS|DSN|PASS)(?:_|$)|CONNECTION_STRING|WEBHOOK",
    re.IGNORECASE,
)
_NOT_SECRET = frozenset(
    {"PWD", "OLDPWD", "GUARDRUN_TOKEN", "KEYBOARD", "XAUTHORITY", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"}
)
"""Names that only look it. GUARDRUN_TOKEN marks the run's processes and opens nothing."""

_WORDS = (
    "eos",
    "bos",
    "pad",
    "unk",
    "cls",
    "sep",
    "mask",
    "end",
    "start",
    "image",
    "next",
    "prev",
    "first",
    "last",
    "new",
)
_NO_KEYS = "".join(rf"(?<!\b{word}_)(?<!\b{word}-)" for word in (*_WORDS, "num", "max", "min", "per", "n"))
"""Tokens of languages."""
_SURE_NAMES = r"pass(?:word|wd|phrase|code)?|pwd|secret|credentials?"
_NAMES = (
    rf"(?:{_SURE_NAMES}|{_NO_KEYS}token|(?:api|access|secret|private|auth|encryption|signing|account|shared|ssh|wandb|hf"
    r"|master|client|session|license)[-_.]?key|auth|authorization|signature|sig|cookie|sas|dsn|webhook)"
)
_AFTER = r"(?:[-_.]?(?:value|string|text|hash|base64|b64|id|url|[0-9]))?"
_START = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
"""`opt.secret_value`, `DB_PASSWORD`, `dbPassword`, but not `compass` or `bypass`."""
_WORD = r"""(?:"(?:[^"\\\n]|\\.)+"|'(?:[^'\\\n]|\\.)+'|\\"[^"\\\n]+\\"|[^\s"',;&|)}\]]+)"""
_SECRET_OPTION = re.compile(rf"{_START}{_NAMES}{_AFTER}$", re.IGNORECASE)

_HINT = re.compile(
    r"pass|pwd|secret|credential|token|key|auth|sig|cookie|sas|dsn|webhook|://|-p\b|bearer|basic|digest|sk-|[sr]k_|hf_"
    r"|gh[pousr]_|github_|glpat|A(?:KIA|SIA|ROA|IDA)|xox|eyJ|AIza|ya29|npm_|pypi-|dop_|SG\.|whsec|nvapi|r8_|gsk_|pplx"
    r"|local-|hvs\.|lsv2|sntrys",
    re.IGNORECASE,
)
"""What any of the rules needs. Most texts have none of it, and making the rules takes 15 ms."""


@functools.cache
def _rules() -> tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    """In this order: what is found, and what is put in its place."""
    after = rf"\g<before>{HIDDEN}"
    return (
        (
            re.compile(
                r"(?P<before>-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----).*?(?P<after>-----END |\Z)", re.DOTALL
            ),
            rf"{after}\g<after>",
        ),
        (
            re.compile(  # a password may hold anything; digits before a path are a port
                r"""(?P<before>[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/\s:@'"]{0,256}:)"""
                r"""(?!\d{1,5}(?:[/?#]|\b[^@]))[^\s'"]{1,512}(?=@)"""
            ),
            after,
        ),
        (re.compile(r"""(?P<before>https?://)[^/\s:@'"]{16,512}(?=@)"""), after),
        (
            re.compile(
                r"""(?P<before>https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/)[^\s'"(]+"""
            ),
            after,
        ),
        (
            re.compile(  # the shapes that services give their keys, so that one is known without its name
                r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}"
                r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"
                r"|xox[abeprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
                r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dop_v1_[a-f0-9]{32,}"
                r"|SG\.[\w-]{16,}\.[\w-]{16,}|whsec_[A-Za-z0-9+/=]{16,}|nvapi-[\w-]{30,}|r8_[A-Za-z0-9]{30,}"
                r"|gsk_[A-Za-z0-9]{30,}|pplx-[a-f0-9]{30,}|local-[a-f0-9]{40}|hvs\.[\w-]{20,}"
                r"|lsv2_[a-z]{2}_[\w]{20,}|sntrys_[\w=.-]{20,})"
            ),
            HIDDEN,
        ),
        (
            re.compile(
                r"""(?P<before>\b(?:Proxy-)?(?:Authorization|(?:Set-)?Cookie)["']?\s{0,4}[:=]\s{0,4}["']?)"""
                r"""[^\s"'][^"'\n]{0,4096}""",
                re.IGNORECASE,
            ),
            after,
        ),
        (
            re.compile(r"(?P<before>\b(?:Bearer|Basic|Digest|Token) )[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE),
            after,
        ),
        (
            re.compile(
                rf"(?P<before>(?<!\w)--?(?:[A-Za-z0-9]+[-_.]){{0,6}}(?P<name>{_NAMES}{_AFTER})(?:[ =]|['\"],\s?))"
                rf"(?P<value>{_WORD})",
                re.IGNORECASE,
            ),
            _hide,
        ),
        (
            re.compile(
                rf"(?P<before>(?:{_START}(?=[A-Za-z])|(?=passw(?:or)?d))(?P<name>{_NAMES}{_AFTER})"
                rf"(?:\\?[\"']\]?)?\s{{0,4}}[:=](?!=)\s{{0,4}})(?P<value>{_WORD})",
                re.IGNORECASE,
            ),
            _hide,
        ),
        (re.compile(rf"(?P<before>(?<![\w-])-p(?:\s|['\"],\s?))(?P<value>{_WORD})"), _hide_short),
    )


_PLAIN = re.compile(
    r"(?:None|null|nil|True|False|true|false|yes|no|on|off|required|missing|unset|empty|invalid|expired|<[\w ./-]*>"
    r"|\[[A-Z_]+\]?|\*+|\.\.\.|str|int|bytes|bool|Optional\[.*)\Z"
)
"""What is said of a secret, rather than one."""
_NUMBER = re.compile(r"[-+]?[0-9][0-9_.,:eEx+-]*[BKMGTkmsx%]?\Z")
_PLACE = re.compile(r"(?:\.{0,2}/|~/|[A-Za-z]:\\).*|[^/\s]+/.*|.*\.(?:json|py|pem|txt|key|toml|ya?ml|ini)\Z", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or key should not be recorded, by its name."""
    return name.upper() not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def redact_values(value: Any, name: str = "") -> Any:
    """Nested tables and lists without the values of secret-looking keys; lists of words as command lines."""
    if isinstance(value, dict):
        return {key: redact_values(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return redact_argv(value) if all(isinstance(item, str) for item in value) else value
    if not isinstance(value, str):
        return value
    return HIDDEN if value and is_secret_name(name) else redact_text(value)


def redact_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of a line of a log: its texts without secrets; names of its own are none of a secret."""
    return {name: redact_text(value) if isinstance(value, str) else value for name, value in fields.items()}


def redact_text(text: str) -> str:
    """Text without secrets, as far as they are known by where they stand or by their shape. Linear in its length."""
    if _HINT.search(text):
        for pattern, instead in _rules():
            text = pattern.sub(instead, text)
    return text


def _hide(match: re.Match[str]) -> str:
    """What follows a name; the same where it says something of a secret, rather than being one."""
    name, value = match["name"].lower(), match["value"]
    bare = value.strip("\"'\\")
    if _PLAIN.match(bare) or bare.startswith(HIDDEN[:4]):
        return match[0]
    if not name.startswith("pass") or name == "pass":
        is_prose = name == "credentials" and bare == value and "=" not in match["before"]
        if is_prose or _NUMBER.match(bare) or len(bare) < 4 or (name in ("pass", "pwd") and _PLACE.match(bare)):
            return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['before']}{quote}{HIDDEN}{quote}"


def _hide_short(match: re.Match[str]) -> str:
    bare = match["value"].strip("\"'\\")
    is_other = bare.startswith(("-", HIDDEN[:4])) or _PLAIN.match(bare) or _NUMBER.match(bare) or _PLACE.match(bare)
    return match[0] if is_other else f"{match['before']}{HIDDEN}"


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--api-key X`, `--api-key=X`, `NAME_TOKEN=X`, `https://me:X@host`."""
    kept: list[str] = []
    hide_next = ""
    for word in argv:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("-")
        is_secret = _is_secret_option(name) if is_option else bool(equals) and _is_secret_assignment(name)
        if hide_next and not is_option:
            kept.append(
                redact_text(f"{hide_next} {word}").removeprefix(f"{hide_next} ") if hide_next == "-p" else HIDDEN
            )
        elif is_secret and equals:
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(redact_text(word))
        hide_next = name if (is_secret or name == "-p") and is_option and not equals else ""
    return kept


def _is_secret_option(name: str) -> bool:
    return bool(_SECRET_OPTION.search(name.lstrip("-")))


def _is_secret_assignment(name: str) -> bool:
    """`WANDB_API_KEY=…` (an environment's) or `logger.api_key=…` (hydra's), but not `--lr=…` or a sentence."""
    return name.replace(".", "_").replace("+", "").isidentifier() and (
        is_secret_name(name) if name.isupper() else _is_secret_option(name)
    )
