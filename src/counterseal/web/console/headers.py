"""Headers that every answer of the console has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CSP", "headers"]

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing runs and nothing is styled but what comes from our own files."""

_ALWAYS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that don't know frame-ancestors
    "Referrer-Policy": "same-origin",  # addresses hold ids; only our own pages get them
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}


def headers(*, https: bool, keep: str = "no-store") -> dict[str, str]:
    """`keep` says who may keep the answer, and how long."""
    strict = {"Strict-Transport-Security": "max-age=31536000"} if https else {}
    return {**_ALWAYS, **strict, "Cache-Control": keep}
