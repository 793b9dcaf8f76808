"""What browsers send and get: the session's cookie, where a request comes from, where to go next.

Strings in, strings out; no web framework is needed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

__all__ = [
    "cookie_in",
    "cookie_name",
    "dropped_cookie",
    "origin_of",
    "safe_next",
    "same_origin",
    "set_cookie",
]

_PATH: Final = re.compile(r"/(?:[!#-\[\]-~]*)")
"""Printable ASCII, without spaces, quotes and backslashes."""
_LONGEST: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}


def cookie_name(*, https: bool) -> str:
    """`__Host-`: browsers take it from this very host only, and over https."""
    return "__Host-counterseal" if https else "counterseal"


def cookie_in(text: str, *, https: bool) -> str | None:
    """The session's, of a Cookie header.

    Of several, none: which one is meant could be somebody else's choice.
    """
    begins = f"{cookie_name(https=https)}="
    if begins not in text:
        return None
    found = [part.strip() for part in text.split(";") if part.strip().startswith(begins)]
    return found[0].removeprefix(begins) if len(found) == 1 else None


def set_cookie(text: str, *, https: bool, seconds: float = 8 * 3600.0) -> str:
    """The value of a Set-Cookie header. Plain http is for loopback."""
    secure = "; Secure" if https else ""
    return (
        f"{cookie_name(https=https)}={text}; Path=/; Max-Age={int(seconds)}; HttpOnly;"
        f" SameSite=Lax{secure}"
    )


def dropped_cookie(*, https: bool) -> str:
    """The same, for the browser to forget it."""
    return set_cookie("", https=https, seconds=0)


def safe_next(url: str | None, otherwise: str = "/") -> str:
    r"""Where to go after signing in: a path of ours, or else `otherwise`.

    What browsers read as another host is none: `//host`, `/\host`, a scheme, a line break.
    """
    if not url or len(url) > _LONGEST or _PATH.fullmatch(url) is None:
        return otherwise
    path = url.partition("?")[0].partition("#")[0]
    if "//" in path or path.rstrip("/") in ("/sign-in", "/sign-out"):
        return otherwise
    return url


def origin_of(url: str) -> str | None:
    """A URL's origin, as browsers write it. None: it has none."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def same_origin(headers: Mapping[str, str], own: Collection[str]) -> bool:
    """Whether a request that changes something may come from where it does.

    `headers` by lower-case name, `own` our origins. Browsers say where a request comes from; what
    says nothing is no browser, and has nobody's cookies but its own.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is None or (origin == "null" and site is not None):
        return True  # `null` is what a page without referrers sends, also to itself
    known = {origin_of(one) for one in own} - {None}
    return origin_of(origin) in known
