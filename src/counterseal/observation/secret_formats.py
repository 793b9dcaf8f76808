"""The formats of secrets: a table by vendor, and the names that tell of a secret.

`FORMATS` holds the token formats of vendors, from `secret_formats.txt`. A format is found wherever
it stands, because its prefix or its form gives it away. `telling` judges names, and `looks_random`
the values for which a name alone is not enough.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).with_name("secret_formats.txt").read_text("utf-8")
FORMATS: Final = tuple(
    tuple(line.split(maxsplit=2))
    for line in _TABLE.replace("\n  ", "").splitlines()  # an indented line goes on with a pattern
    if line and line[0] != "#"
)
"""The token formats of vendors: name, RE2 pattern, the vendor's site."""

# --- names that tell of a secret ------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_END: Final = r"s?(?:\b|[_\d]|(?-i:[A-Z]))"
SURE_WORDS: Final = (
    r"(?:passw(?:or)?d|passwort|kennwort|contrase(?:n|ñ)a|senha|passphrase|passcode|pwd|secret"
    r"|cred(?:ential)?|jwt|cookie|mnemonic|(?:seed|recovery)[ _.\-]?(?:phrase|code)|authorization"
    r"|(?:api|access|private|account|encryption|signing|secret|master|auth|admin|consumer|app"
    r"|license|subscription|shared)[ _.\-]?key"
    rf"|(?:access|auth|refresh|bearer|session|csrf|api|bot|personal)[ _.\-]?token){_END}"
)
UNSURE_WORDS: Final = (
    r"(?:token|key|session|sess(?:ion)?id|webhook|(?:\b|_)(?:auth|pass|salt|sid|dsn|pat)"
    rf"|(?-i:[a-z\d](?:Auth|Pass|Salt|Sid|Dsn|Pat))){_END}"
)
"""RE2 patterns of the words that may tell of a secret; `telling` judges the whole name."""

_SURE: Final = re.compile(
    r".*(?:passw(?:or)?d|passwort|kennwort|contrase[nñ]a|senha|passphrase|passcode|pwd|secret"
    r"|apikey"
    r"|authtoken|accesstoken|privatekey|secretkey|accesskey)|credentials?|creds?|mnemonic|jwt"
    r"|cookie|authorization"
)
_SURE_OF: Final = {
    "key": _words(
        """api access private account encryption signing secret master auth admin consumer app
        license subscription shared"""
    ),
    "token": _words("access auth refresh bearer session csrf api bot personal"),
    "phrase": _words("seed recovery"),
    "code": _words("recovery"),
}
"""With one of these words before it, such a word is a secret whatever its value looks like."""
_UNSURE: Final = re.compile(
    r"key|.*token|.*sess(?:ion)?id|session|sid|auth|pass|webhook|salt|dsn|pat"
)
_NEVER_AFTER: Final = _words(
    """next prev previous page pagination continuation cursor sync cancel cancellation max min
    total prompt completion input output per eos bos pad stop start end delta resume primary
    foreign public publishable cache idempotency partition sort object routing row map
    translation message lookup group dedup deduplication business natural composite index
    range issue project parent unique order join column field shard item record entity
    document feature event"""
)
"""Words before a telling word that make it harmless: `next_page_token`, `idempotency_key`."""
_NEVER_BEFORE: Final = _words(
    """count counts type types limit limits length size expires expired expiry expiration ttl
    lifetime age url uri endpoint path file filename dir name names field header param
    policy status state version format usage used required enabled valid hint label
    description budget address rotation at in ms seconds error provider source store manager
    class method mode algorithm alg prefix suffix pattern schema index arn ref fingerprint
    issuer audience scope scopes owner hash digest"""
)
"""Words behind a telling word that make it harmless: `token_count`, `secret_name`."""
_HUMP: Final = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9ñ]+|(?<=[a-z])(?=\d)"
)


@lru_cache(maxsize=4096)
def telling(name: str) -> int:
    """Return how surely a name tells of a secret: 0 not, 1 if the value looks random, 2 surely."""
    words = [word for word in _HUMP.sub(" ", name).lower().split() if not word.isdigit()]
    best = 0
    for i, word in enumerate(words):
        before, behind = words[i - 1] if i else "", words[i + 1 :]
        if before in _NEVER_AFTER or len(behind) > 3 or not _NEVER_BEFORE.isdisjoint(behind):
            continue
        if "id" in behind and word not in ("session", "secret"):
            continue
        singular = word.removesuffix("s") if len(word) > 4 else word
        if _SURE.fullmatch(singular) or before in _SURE_OF.get(singular, ()):
            best = max(best, 1 if behind or singular != word else 2)
        elif _UNSURE.fullmatch(singular):
            best = max(best, 1)
    return best


_HEX: Final = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_RUNS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_ORDERLY: Final = re.compile(
    r"\d{4}-\d\d-\d\d.*|[vV]?\d+(?:\.\d+)+.*|(?:https?:/)?[./~].*|[\w.\-]+\.(?:[a-z]{2,4}|json"
    r"|yaml|toml)"
)


def looks_random(text: str) -> bool:
    """Return whether a text looks like the output of a generator, and not like words or a date.

    Runs of letters of one case and of digits are short in random text.
    """
    plain = text.strip("=.,;:!?*_`")
    if len(plain) < 8 or " " in plain or _ORDERLY.fullmatch(plain):
        return False
    if _HEX.fullmatch(plain):
        return True
    runs = _RUNS.findall(plain)
    digits = sum(run.isdigit() for run in runs)
    if not digits or digits == len(runs):
        return len(plain) >= 20 and len(runs) * 2.4 > len(plain) and digits == 0
    mean = sum(map(len, runs)) / len(runs)
    return mean <= 2.7 or (mean <= 4 and len(plain) >= 16 and len(runs) > 4)


_IDENTITY: Final = re.compile(
    r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9a-f]{40}|[0-9a-f]{64}"
    r"|[0-7][0-9A-HJKMNP-TV-Z]{25}"
)
"""UUID, SHA-1, SHA-256, ULID: under the bare name `key` they identify something."""


def is_identity(text: str) -> bool:
    """Return whether a text has the form of an id or a hash."""
    return _IDENTITY.fullmatch(text) is not None


_TOKEN_NAME: Final = re.compile(r"(?i:.*(?:token|sess(?:ion)?[_\-. ]?id))", re.DOTALL)
_TOKEN: Final = re.compile(r"(?=\D*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")


def is_token(name: str, text: str) -> bool:
    """Return whether a text under an unsure name is a secret.

    It looks random, or it mixes letters and digits and the name ends in `token` or `session_id`.
    """
    if looks_random(text):
        return not (name.lower() == "key" and is_identity(text))
    return bool(_TOKEN_NAME.fullmatch(name) and _TOKEN.fullmatch(text) and not is_identity(text))
