"""Requests of browsers: the session's cookie, which page a request comes from, where to go next."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from counterseal.accounts import SESSION_SECONDS

_PATH: Final = re.compile(r"/(?:[!#-\[\]-~]*)")
"""Printable ASCII, without spaces, quotes and backslashes."""
_MAX_PATH: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}


def cookie_name(*, https: bool) -> str:
    """Return the name of the session's cookie.

    Browsers accept a `__Host-` cookie only over https, and from exactly this host.
    """
    return "__Host-counterseal" if https else "counterseal"


def session_cookie(connection: HTTPConnection, *, https: bool) -> str | None:
    """Return the session's secret from the request's cookies.

    None if there are several: another site may have set the second one.
    """
    name = cookie_name(https=https)
    sent = "; ".join(connection.headers.getlist("cookie"))
    if sum(part.strip().startswith(f"{name}=") for part in sent.split(";")) != 1:
        return None
    return connection.cookies.get(name)


def set_session_cookie(response: Response, secret: str, *, https: bool) -> None:
    """Have the browser keep the session's secret. Plain http is for loopback only."""
    response.set_cookie(
        cookie_name(https=https),
        secret,
        max_age=int(SESSION_SECONDS),
        path="/",
        secure=https,
        httponly=True,
        samesite="lax",
    )


def drop_session_cookie(response: Response, *, https: bool) -> None:
    """Have the browser forget the session."""
    response.delete_cookie(
        cookie_name(https=https), path="/", secure=https, httponly=True, samesite="lax"
    )


def safe_next(url: str | None, otherwise: str = "/") -> str:
    r"""Return where to go after signing in: the URL if it is a path of ours, else `otherwise`.

    Refused is everything that a browser reads as another host: `//host`, `/\host`, a scheme, a line
    break.
    """
    if not url or len(url) > _MAX_PATH or _PATH.fullmatch(url) is None:
        return otherwise
    path = url.partition("?")[0].partition("#")[0]
    if "//" in path or path.rstrip("/") in ("/sign-in", "/sign-out"):
        return otherwise
    return url


def origin_of(url: str) -> str | None:
    """Return a URL's origin as browsers write it; None if it has none."""
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
    """Return whether a request that changes something comes from one of our own pages.

    `own` are our origins. Browsers say where a request comes from; a client that says nothing is no
    browser, and sends no cookies but its own.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is None or (origin == "null" and site is not None):
        return True  # a page that sends no referrer says `null`, also to itself
    known = {origin_of(one) for one in own} - {None}
    return origin_of(origin) in known
